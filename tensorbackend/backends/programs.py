# SPDX-License-Identifier: Apache-2.0
"""Other programs, started so that a child of this process forked meanwhile holds none of their pipes.

It would keep the ends that it inherits: messages would seem to go on, a source not to end, and the start itself not to
be over, for as long as the child lives.
"""

from __future__ import annotations

import os
import subprocess

from tensorbackend.backends.locks import Lock

__all__ = ["ask", "starting"]

starting = Lock()
"""Held while a program is started, and while this process forks."""


def ask(command: list[str], timeout: float, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end: what it said, as text. Raises `OSError` where it cannot be started, and
    `subprocess.TimeoutExpired` after `timeout` seconds, when it has been stopped.

    Names of files in that text are Python's: bytes that the locale has no characters for are kept as surrogates.
    """
    pipe = subprocess.PIPE
    with starting.now:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True,
                                   errors="surrogateescape", env=env)  # fmt: skip
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _acquire() -> None:
    starting.now.acquire()


def _release() -> None:
    starting.now.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire, after_in_parent=_release, after_in_child=_release)
