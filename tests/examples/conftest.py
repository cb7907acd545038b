# SPDX-License-Identifier: Apache-2.0
"""How the examples are run as a user runs them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("sklearn", "matplotlib", "tqdm")


@pytest.fixture
def script(absent: Callable[[str, str], None], tmp_path: Path) -> Callable[..., tuple[str, str, bytes]]:
    """Run a script of examples/ with options; what it printed, its standard error, and the curves' file."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        absent("examples", f"not installed: {', '.join(missing)} (pip install tensorbackend[examples])")
    # One BLAS thread: its waiting threads slow others down on a machine that is busy with tests.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}

    def run(name: str, *options: str) -> tuple[str, str, bytes]:
        plot = tmp_path / "curves" / "curve.png"
        command = [sys.executable, str(ROOT / "examples" / name), "--plot", str(plot), *options]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr, plot.read_bytes()

    return run


@pytest.fixture
def train(script: Callable) -> Callable[..., tuple[str, bytes]]:
    """Run a script that trains with a bar of progress; what it printed, and the curves' file."""

    def run(*options: str, script_name: str = "mlp_digits.py") -> tuple[str, bytes]:
        output, errors, curves = script(script_name, *options)
        assert "training: 100%" in errors
        return output, curves

    return run


def accuracy_of(output: str) -> float:
    """The last line's accuracy in per cent."""
    return float(re.search(r"^test +\S+ +(\S+)%$", output, re.MULTILINE)[1])


def same_numbers(one: str, other: str) -> None:
    """Assert that two runs in float64 printed the same costs and accuracies, but for how a last digit was rounded.

    Runs in float32 do not: the first steps of Adam are the sign of a gradient, which is rounding where it is nothing.
    """
    pattern = re.compile(r"^(?:training|validation|test) +(\d+\.\d+) +(\S+)%$", re.MULTILINE)
    rows = [pattern.findall(output) for output in (one, other)]
    assert len(rows[0]) == 3
    for (cost, accuracy), (other_cost, other_accuracy) in zip(*rows, strict=True):
        assert accuracy == other_accuracy
        assert abs(float(cost) - float(other_cost)) < 1.5e-4
