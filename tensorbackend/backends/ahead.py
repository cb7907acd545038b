# SPDX-License-Identifier: Apache-2.0
"""Compilers that are started ahead: while one works, the next one starts, and then waits for its source.

To start takes gcc a third of the time that it takes for a kernel. A compiler that waits reads a file whose one line
includes its standard input; what comes there is the line that includes the kernel. Its input ends with this process,
or when nothing came for `PATIENCE` seconds, and so does the compiler.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Hashable
from pathlib import Path

from tensorbackend.backends import programs
from tensorbackend.backends.locks import Lock
from tensorbackend.backends.toolchain import compiler_environment
from tensorbackend.errors import CompileError

__all__ = ["PATIENCE", "Waiting", "drop_all", "keep", "start", "stop", "take"]

PATIENCE = 2.0
"""Seconds for which a compiler is kept waiting."""
INPUT = Path("/dev/stdin")

_open: set[Waiting] = set()
"""Those whose input is open, kept or not."""
_kept: dict[Hashable, Waiting] = {}
_keeping = Lock()
_timer: threading.Timer | None = None
_log = logging.getLogger(__name__)


def start(command: list[str], folder: Path, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start a compiler that keeps its temporary files in `folder`, as the leader of a group of processes. Raises
    `CompileError` where it cannot be started."""
    environment = {**compiler_environment(), "TMPDIR": os.fspath(folder)}
    with programs.starting.now:
        return _popen(command, environment, stdin)


def _popen(command: list[str], environment: dict[str, str], stdin: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, bufsize=0, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                env=environment, start_new_session=True)  # fmt: skip
    except OSError as error:  # it is gone, or there are too many processes: not a matter of files that are written
        raise CompileError(f"the C compiler cannot be started: {error}\n  command   {shlex.join(command)}") from error


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a compiler and the programs it started, when it is still running."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


class Waiting:
    """A compiler that waits, and will write `library` into a `folder` of its own, which goes with it.

    `command(unit, library)` is how a compiler is started on a source. Raises `CompileError` where it cannot be started,
    `OSError` where the folder cannot be written.
    """

    def __init__(self, folder: Path, command: Callable[[Path, Path], list[str]]) -> None:
        self.folder = folder
        self.library = folder / "library.so"
        unit = folder / "unit.c"
        unit.write_text(f'#include "{INPUT}"\n')
        self.command = command(unit, self.library)
        environment = {**compiler_environment(), "TMPDIR": os.fspath(folder)}
        try:
            with programs.starting.now:
                self.process = _popen(self.command, environment, subprocess.PIPE)
                _open.add(self)
        except CompileError:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def feed(self, unit: Path) -> None:
        """Let it compile a file. If it has ended meanwhile, its end says so."""
        try:
            os.write(self.process.stdin.fileno(), os.fsencode(f'#include "{unit}"\n'))
        except BrokenPipeError:
            return
        finally:
            with programs.starting.now:
                self.process.stdin.close()
                self.process.stdin = None
                _open.discard(self)

    def close(self) -> None:
        """End it, and remove its folder."""
        stop(self.process)
        with programs.starting.now:
            _open.discard(self)
        shutil.rmtree(self.folder, ignore_errors=True)


def take(key: Hashable) -> Waiting | None:
    """The compiler that waits under a key, which is the caller's to close; None when there is none."""
    with _keeping.now:
        return _kept.pop(key, None)


def keep(key: Hashable, begin: Callable[[], Waiting]) -> None:
    """Have a compiler wait under a key for the next `PATIENCE` seconds, begun now unless there is one."""
    global _timer
    with _keeping.now:
        if key not in _kept:
            try:
                begun = begin()
            except (OSError, CompileError) as error:
                _log.debug("tensorbackend: no compiler is started ahead: %s", error)
                return
            if _kept.setdefault(key, begun) is not begun:  # a finalizer or a signal's handler has begun one meanwhile
                begun.close()
        if _timer is not None:
            _timer.cancel()
        timer = _timer = threading.Timer(PATIENCE, _expire)
        timer.daemon = True
        try:
            timer.start()
            return
        except RuntimeError:  # In what atexit has registered there are no new threads: nothing would end it.
            _timer = None
    drop_all()


def drop_all() -> None:
    """End the compilers that wait."""
    global _timer
    waiting = []
    with _keeping.now:
        with contextlib.suppress(KeyError):
            while True:
                waiting.append(_kept.popitem()[1])
        if _timer is not None:
            _timer.cancel()
            _timer = None
    for compiler in waiting:
        compiler.close()


def _expire() -> None:
    """In a timer's thread: end what waits, unless a later timer counts, which a busy machine may have begun first."""
    if _timer is threading.current_thread():
        drop_all()


def _forget() -> None:
    """In a forked child: compilers are the parent's, and the timer's thread does not exist."""
    global _timer
    _timer = None
    for waiting in _open:
        waiting.process.stdin.close()
        waiting.process.stdout.close()  # else Python warns of it as it goes, where somebody asked for such warnings
        waiting.process.returncode = 0  # so that nobody here waits for it
    _open.clear()
    _kept.clear()


atexit.register(drop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
