# SPDX-License-Identifier: Apache-2.0
"""Scripts in several processes, started as a user starts them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    """The environment of a launch: this checkout, one thread a process."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TB_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **more}


@pytest.fixture
def mpi(absent: Callable[[str, str], None]) -> None:
    """mpi4py and an MPI are here."""
    if importlib.util.find_spec("mpi4py") is None:
        absent("mpi", "not installed: mpi4py (pip install 'tensorbackend[mpi]')")


def command(n: int, *rest: str, options: tuple[str, ...] = ()) -> list[str]:
    """A command line that launches n processes."""
    return [sys.executable, "-m", "tensorbackend", "launch", "-n", str(n), *options, *rest]


@pytest.fixture
def launch(mpi: None, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a text of Python in n processes, with `comm`, `be`, `np` and `distributed` at hand."""

    def run(
        n: int, text: str, *options: str, backend: str = "cpu", **env: str
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        head = "import os, sys, time, signal\nimport numpy as np\nfrom tensorbackend import distributed\n"
        head += f"comm = distributed.init({backend!r}, rng_seed=0)\nbe = comm.backend\n"
        script.write_text(head + textwrap.dedent(text), encoding="utf-8")
        return subprocess.run(command(n, str(script), options=options), env=environment(**env), cwd=tmp_path,
                              capture_output=True, text=True, timeout=120)  # fmt: skip

    return run


@pytest.fixture
def check(launch: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., None]:
    """Run a text of Python in n processes; all must come to its end."""

    def run(n: int, text: str, **options: str) -> None:
        text = textwrap.dedent(text) + "\ncomm.close()\nsys.stdout.write(f'the end of {comm.rank}\\n')\n"
        done = launch(n, text, **options)
        assert done.returncode == 0, done.stderr
        assert all(f"the end of {rank}" in done.stdout for rank in range(n)), done.stdout

    return run
