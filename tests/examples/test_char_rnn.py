# SPDX-License-Identifier: Apache-2.0
"""The character network: what it has learned, that a seed repeats it, captured or not, and on the emulated GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG\r\n\x1a\n"
SHORT = ("--iterations", "40", "--hidden", "24", "--batch-size", "8", "--steps", "12")
TINY = ("--iterations", "4", "--hidden", "8", "--batch-size", "4", "--steps", "6", "--length", "5")


def costs_of(output: str) -> list[float]:
    """The costs of the samples' iterations."""
    return [float(cost) for cost in re.findall(r"^iteration +\d+ +cost (\d\.\d+)", output, re.MULTILINE)]


@pytest.mark.ci
def test_the_defaults_know_the_zen(script: Callable) -> None:
    output, _, curve = script("char_rnn.py", "--iterations", "300")
    costs = costs_of(output)
    assert len(costs) == 4
    assert costs[0] > costs[-1] < 0.6
    assert "is better than" in output.partition("curve ")[2]
    assert curve.startswith(PNG)


@pytest.mark.ci
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_seed_repeats_a_run_captured_or_not(script: Callable, cell: str) -> None:
    runs = [script("char_rnn.py", *SHORT, "--cell", cell, *extra)[0] for extra in ((), ("--capture",))]
    assert costs_of(runs[0])[-1] < costs_of(runs[0])[0] < 3.8
    assert costs_of(runs[0]) == costs_of(runs[1])


@pytest.mark.ci
def test_the_emulated_gpu_has_the_same_costs(script: Callable) -> None:
    cpu, gpu = (costs_of(script("char_rnn.py", *TINY, "--backend", name)[0]) for name in ("cpu", "gpu:emulator"))
    assert cpu == pytest.approx(gpu, abs=2e-4)


@pytest.mark.slow
def test_the_batch_size_is_the_number_of_windows(script: Callable) -> None:
    few, many = (costs_of(script("char_rnn.py", *TINY, "--batch-size", size)[0]) for size in ("4", "5"))
    assert few != many


@pytest.mark.slow
def test_a_temperature_near_zero_leaves_the_likeliest(script: Callable) -> None:
    texts = [script("char_rnn.py", *TINY, "--temperature", t)[0].splitlines()[-1] for t in ("1e-9", "1e-320")]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_any_text_can_be_learned_and_wrong_starts_are_named(script: Callable, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcd" * 10, encoding="utf-8")
    output, _, _ = script("char_rnn.py", "--text", str(text), "--start", "ab", "--hidden", "16", "--iterations", "60")
    assert "abcdabcdabcd" in output
    with pytest.raises(AssertionError, match="not in it: \\['x'\\]"):
        script("char_rnn.py", "--text", str(text), "--start", "x")
    text.write_text("aaaa", encoding="utf-8")
    with pytest.raises(AssertionError, match="two different characters"):
        script("char_rnn.py", "--text", str(text), "--start", "a")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "missing"), [
    ("char_rnn", "matplotlib"), ("mlp_digits", "matplotlib"), ("cnn_digits", "matplotlib"), ("mlp_digits", "tqdm"),
    ("mlp_digits", "sklearn"), ("cnn_digits", "sklearn"), ("links_digits", "sklearn"), ("parallel_digits", "sklearn"),
])  # fmt: skip
def test_missing_packages_are_named_with_the_command(tmp_path: Path, name: str, missing: str) -> None:
    """Before anything is learnt."""
    blocker = tmp_path / "sitecustomize.py"
    blocker.write_text(f"import sys; sys.modules[{missing!r}] = None\n", encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'tensorbackend[examples]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert "epoch" not in done.stdout
