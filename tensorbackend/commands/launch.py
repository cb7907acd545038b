# SPDX-License-Identifier: Apache-2.0
"""`launch`: start a script in several processes that train together. The work is mpiexec's."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tensorbackend.arguments import whole
from tensorbackend.backends.cores import allowed_cores
from tensorbackend.backends.temporary import temporary_folder
from tensorbackend.commands import Failure
from tensorbackend.errors import complain
from tensorbackend.settings import READ_AS, seconds

__all__ = ["add", "run"]

LOOK = 0.1
"""Seconds between two looks at what processes have said."""
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


def add(commands: argparse._SubParsersAction) -> None:
    """Describe the command."""
    text = (
        "Start SCRIPT in N processes, which find each other by tensorbackend.distributed.init(). When one fails or is "
        "killed, all end, and the exit status is not 0. Cores are shared out: each process gets TB_THREADS = cores / N "
        "threads, unless TB_THREADS is set."
    )
    parser = commands.add_parser("launch", help="run a script in several processes (MPI)", description=text)
    parser.add_argument("-n", type=whole(1), default=None, metavar="N", help="processes (default: one a core)")
    parser.add_argument("--timeout", type=_timeout, default=None, metavar="SECONDS",
                        help="end all when one makes no exchange for so long, after each has printed where it is "
                             "(default: TB_DISTRIBUTED_TIMEOUT, else never)")  # fmt: skip
    parser.add_argument("--mpiexec", default=None, metavar="COMMAND", help="the starter (default: mpiexec)")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="arguments of the script")


def _timeout(text: str) -> float:
    try:
        return seconds(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} given, expected {READ_AS[seconds]}") from None


def run(options: argparse.Namespace) -> Iterator[str]:
    """Hand over to mpiexec. Raises `Failure` when a process failed, with nothing more to say if it said why itself."""
    cores = allowed_cores()
    n = cores if options.n is None else options.n
    if not Path(options.script).is_file():
        raise Failure(complain("launch", f"no file {options.script}", "a Python script"))
    threads = os.environ.get("TB_THREADS") or str(max(1, cores // n))
    env = {**os.environ, "TB_THREADS": threads, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or threads}
    if options.timeout is not None:
        env["TB_DISTRIBUTED_TIMEOUT"] = str(options.timeout)
    script = [options.script, *options.rest]
    with _ends_with_all():
        if n > 1:
            _together([*_starter(options.mpiexec), "-n", str(n), sys.executable, "-u"], script, env)
        elif subprocess.run([sys.executable, "-u", *script], env=env, preexec_fn=_ends_when_killed()).returncode:
            raise Failure("")
    yield from ()


@contextlib.contextmanager
def _ends_with_all() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP are exceptions: what was started ends with the launcher. mpiexec's processes have
    sessions of their own, and are not told that a terminal closes."""
    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # as under nohup
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ends_when_killed() -> Callable[[], int] | None:
    """What a child runs first, to get SIGTERM where the launcher has no time to send it; None on other systems than
    Linux."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return prctl and (lambda: prctl(PARENT_DEATH_SIGNAL, int(signal.SIGTERM)))


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A temporary folder, removed at the end."""
    folder = temporary_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _together(python: list[str], script: list[str], env: dict[str, str]) -> None:
    """Run a script in many, and print what they say on their way out. Raises `Failure` when not all went well."""
    from tensorbackend.distributed import runner  # with all that training needs: other commands do without

    with _folder() as folder:
        env = {**env, runner.FOLDER: str(folder)}
        with subprocess.Popen([*python, runner.__file__, *script], env=env, preexec_fn=_ends_when_killed()) as starter:
            try:
                told = _attend(starter, folder)
            except BaseException:
                starter.terminate()
                raise
        if starter.returncode or told:
            crashes = "".join(file.read_text("utf-8") for file in sorted(folder.glob("*.fault")))
            silent = complain("launch", f"a process ended without a word; status {starter.returncode}", "status 0")
            raise Failure(crashes or ("" if told else silent))


def _attend(starter: subprocess.Popen, folder: Path) -> bool:
    """Print what processes say, the first first, until the starter has ended; end it when one has failed. Returns
    whether anything was said."""
    told = False
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            starter.wait(timeout=LOOK)
        ended = starter.returncode is not None
        words = sorted(path for path in folder.iterdir() if path.suffix in (".said", ".end"))
        for path in words:
            sys.stderr.write(path.read_text("utf-8"))
            sys.stderr.flush()
            path.unlink()
        told = told or bool(words)
        if ended:
            return told
        if any(path.suffix == ".end" for path in words):
            time.sleep(LOOK)  # the starter passes on what others have printed
            starter.terminate()


def _starter(wanted: str | None) -> list[str]:
    """mpiexec: as asked, else the one installed beside this Python, else the one on PATH."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = shutil.which(wanted or (str(beside) if beside.exists() else "mpiexec"))
    if found is None:
        raise Failure(complain("launch", f"no {wanted or 'mpiexec'}", "an MPI", "pip install 'tensorbackend[mpi]'"))
    return [found]
