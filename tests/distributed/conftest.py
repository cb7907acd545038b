# SPDX-License-Identifier: Apache-2.0
"""Scripts in several processes, started as a user starts them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
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


HEAD = """
import os, sys, time, signal
import numpy as np
from tensorbackend import distributed
"""
INIT = "comm = distributed.init({!r}, rng_seed=0)\nbe = comm.backend\n"
"""What a text begins with."""


@pytest.fixture
def launch(mpi: None, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a text of Python in n processes, with `comm`, `be`, `np` and `distributed` at hand."""

    def run(
        n: int, text: str, *options: str, backend: str | None = "cpu", **env: str
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(HEAD + INIT.format(backend) + textwrap.dedent(text), encoding="utf-8")
        return subprocess.run(command(n, str(script), options=options), env=environment(**env), cwd=tmp_path,
                              capture_output=True, text=True, timeout=120)  # fmt: skip

    return run


class Pair:
    """Two processes that run one text after the other, each with a communicator of its own.

    To start them takes longer than to run most texts. They end with the first that fails, or when there is none for a
    minute, and are then started anew.
    """

    SCRIPT = HEAD + """
import itertools
from pathlib import Path
folder = Path(sys.argv[1])
for number in itertools.count():
    text, until = folder / f"{number}.py", time.monotonic() + 60
    while not text.exists():
        if time.monotonic() > until:
            sys.exit()
        time.sleep(0.005)
    names = {"__name__": "__main__"}
    exec(compile(text.read_text(), str(text), "exec"), names)
    (folder / f"{number}.{names['comm'].rank}").touch()
"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "script.py").write_text(self.SCRIPT, encoding="utf-8")
        self.output = (folder / "output").open("w+", encoding="utf-8")
        self.process = subprocess.Popen(command(2, str(folder / "script.py"), str(folder)), env=environment(),
                                        stdout=self.output, stderr=subprocess.STDOUT, cwd=folder)  # fmt: skip
        self.number = 0

    def run(self, text: str) -> bool:
        """Run a text; whether both processes came to its end. What they printed since they started: `output`."""
        whole = self.folder / f"{self.number}.whole"
        whole.write_text(HEAD + INIT.format("cpu") + text, encoding="utf-8")
        whole.rename(whole.with_suffix(".py"))
        ends = [self.folder / f"{self.number}.{rank}" for rank in range(2)]
        self.number += 1
        given_up = time.monotonic() + 120
        while not all(end.exists() for end in ends) and self.process.poll() is None and time.monotonic() < given_up:
            time.sleep(0.005)
        return all(end.exists() for end in ends)

    def end(self) -> None:
        """End both."""
        self.process.terminate()
        self.process.wait(20)
        self.output.close()


@pytest.fixture(scope="session")
def pairs() -> Iterator[list[Pair]]:
    """The pair that runs, if any."""
    found: list[Pair] = []
    yield found
    for pair in found:
        pair.end()


@pytest.fixture
def check(mpi: None, launch: Callable[..., subprocess.CompletedProcess[str]], pairs: list[Pair],
          tmp_path: Path) -> Callable[..., None]:  # fmt: skip
    """Run a text of Python in n processes; all must come to its end."""

    def in_pair(text: str) -> None:
        if not pairs or pairs[0].process.poll() is not None:
            pairs[:] = [Pair(tmp_path)]
        if not pairs[0].run(text):
            failed = pairs.pop()
            failed.end()
            pytest.fail((failed.folder / "output").read_text(encoding="utf-8"))

    def run(n: int, text: str, **options: str) -> None:
        text = textwrap.dedent(text) + "\ncomm.close()\n"
        if n == 2 and not options:
            in_pair(text)
            return
        done = launch(n, text + "sys.stdout.write(f'the end of {comm.rank}\\n')\n", **options)
        assert done.returncode == 0, done.stderr
        assert all(f"the end of {rank}" in done.stdout for rank in range(n)), done.stdout

    return run
