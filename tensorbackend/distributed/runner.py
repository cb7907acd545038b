# SPDX-License-Identifier: Apache-2.0
"""One process of a launch: runs the script, and tells the launcher why it fails.

`launch` starts this file, by its path, in every process. It imports nothing of the package, so that a script is the
first to do so. A starter such as mpiexec may drop what a process wrote just before its end, and lets others wait for
ever for one that failed before it had joined them. So last words go through a folder of the launcher's, which prints
them and ends all.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import runpy
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

__all__ = ["FOLDER", "STARTERS", "give_up", "main", "processes", "tell"]

FOLDER = "TB_LAUNCH_FOLDER"
"""The variable with the launcher's folder. Files in it: NAME.said is to be printed, so is NAME.end, after which all are
to be ended; NAME.fault is what the interpreter wrote when it crashed."""
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")
"""Variables in which starters (MPICH's Hydra, Intel MPI, Open MPI, MVAPICH) say how many processes there are."""
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "MV2_COMM_WORLD_RANK")
STARTERS = (__file__, runpy.__file__, "<frozen runpy>")
"""The files that are on the stack before a script's own."""
PATIENCE = 5.0
"""Seconds that a process waits for the launcher: to print, and then to end all."""


def processes() -> int:
    """How many processes were started together with this one, itself included: what their starter says, or 1."""
    return max(_numbers(SIZES), default=1)


def _numbers(names: tuple[str, ...]) -> Iterator[int]:
    return (int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit())


def _failure(error: BaseException) -> str:
    """An exception's traceback, from the script's first line on, under the number of this process."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in STARTERS:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    return f"rank {next(_numbers(RANKS), '?')} of {processes()} failed:\n{text}"


def tell(text: str, end: bool = False) -> bool:
    """Print on the standard error, through the launcher if there is one here; with `end` it then ends all processes.

    Returns when the text is printed: whether there is a launcher.
    """
    folder = Path(os.environ.get(FOLDER, "/nowhere"))
    if not folder.is_dir():
        sys.stderr.write(text)
        sys.stderr.flush()
        return False
    words = folder / f"{time.time_ns()}-{os.getpid()}.part"
    words.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files may be no UTF-8
    words = words.replace(words.with_suffix(".end" if end else ".said"))
    given_up = time.monotonic() + PATIENCE
    while words.exists() and time.monotonic() < given_up:
        time.sleep(0.01)
    return True


def give_up(error: BaseException) -> None:
    """Tell of an error that nobody has caught; if there is a launcher here, let it end this process with all."""
    sys.stdout.flush()
    if tell(_failure(error), end=True):
        time.sleep(PATIENCE)


def main(script: str, *arguments: str) -> None:
    """Run a script as `python script arguments` does, the standard input empty but for process 0. Where it fails, tell
    the launcher, and wait for the end."""
    sys.argv[:] = [script, *arguments]
    if next(_numbers(RANKS), 0):  # what the starter gives may be a pipe that nobody writes or closes
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(script).resolve().parent)
    sys.excepthook = _hook
    with _crashes():
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as leaving:
            if leaving.code not in (None, 0):
                _hook(SystemExit, leaving, leaving.__traceback__)


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    give_up(error.with_traceback(trace))
    os._exit(1)


@contextlib.contextmanager
def _crashes() -> Iterator[None]:
    """Inside, what the interpreter says of a crash goes where the launcher finds it."""
    with open(Path(os.environ[FOLDER]) / f"{os.getpid()}.fault", "w", encoding="utf-8") as file:
        faulthandler.enable(file)
        try:
            yield
        finally:
            faulthandler.disable()


if __name__ == "__main__":
    main(*sys.argv[1:])
