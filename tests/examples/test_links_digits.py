# SPDX-License-Identifier: Apache-2.0
"""The digits example with links: its accuracy, and that a run which was stopped goes on to the same numbers."""

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


@pytest.fixture
def train(absent: Callable[[str, str], None], tmp_path: Path) -> Callable[..., str]:
    """Run the example with options; what it printed."""
    if importlib.util.find_spec("sklearn") is None:
        absent("examples", "not installed: sklearn (pip install tensorbackend[examples])")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}

    def run(*options: str) -> str:
        command = [sys.executable, str(ROOT / "examples" / "links_digits.py"), *options]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.ci
def test_defaults_reach_97_per_cent(train: Callable[..., str]) -> None:
    assert float(re.search(r"test +(\d+\.\d+)%", train()).group(1)) >= 97.0


@pytest.mark.ci
def test_a_stopped_run_goes_on_to_the_same_numbers(train: Callable[..., str]) -> None:
    straight = train("--maps", "4", "--epochs", "2").splitlines()
    train("--maps", "4", "--epochs", "1", "--save", "run.npz")
    resumed = train("--maps", "4", "--epochs", "1", "--resume", "run.npz").splitlines()
    assert resumed[0] == straight[1] and resumed[-1] == straight[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "message"), [("nowhere.npz", "No such file"), (__file__, "not a whole .npz")])
def test_a_run_that_cannot_go_on_is_told_in_a_line(train: Callable[..., str], wrong: str, message: str) -> None:
    with pytest.raises(AssertionError, match=f"--resume.*{message}") as told:
        train("--resume", wrong)
    assert "Traceback" not in str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["--maps=0", "--epochs=-1"])
def test_numbers_that_make_no_sense_are_refused(train: Callable[..., str], wrong: str) -> None:
    with pytest.raises(AssertionError, match=f"error: argument {wrong.partition('=')[0]}: .* 1 or more"):
        train(wrong)
