# SPDX-License-Identifier: Apache-2.0
"""Other programs, started so that a child of this process forked meanwhile holds none of their pipes.

It would keep the ends that it inherits: messages would seem to go on, a source not to end, and the start itself not to
be over, for as long as the child lives.
"""

from __future__ import annotations

import os
import subprocess
import threading

__all__ = ["ask", "starting"]

starting = threading.Lock()
"""Held while a program is started, and while this process forks."""


def ask(command: list[str], timeout: float, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program to its end: what it said, as text. Raises `OSError` where it cannot be started, and
    `subprocess.TimeoutExpired` after `timeout` seconds, when it has been stopped."""
    pipe = subprocess.PIPE
    with starting:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=env)
    with process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _renew() -> None:
    """In a forked child: the thread that may hold the lock does not exist there."""
    global starting
    starting = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: starting.acquire(), after_in_parent=lambda: starting.release(), after_in_child=_renew
    )
