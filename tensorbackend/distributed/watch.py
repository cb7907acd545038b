# SPDX-License-Identifier: Apache-2.0
"""A watch over one process of several: one that has made no progress for too long ends all, and says where it is.

Processes wait for each other, so the first whose time is up may be innocent. Each therefore prints its own position, on
the standard error, and all get a moment to do so before the first ends the others.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

from tensorbackend.distributed.runner import STARTERS, tell

__all__ = ["GRACE", "Watch"]

GRACE = 2.0
"""Seconds between a process's report and the end of all: the others' time is up within them."""


class Watch:
    """Calls `end(1)` when `timeout` seconds go by without `enter` or `leave`."""

    def __init__(self, end: Callable[[int], None], rank: int, size: int, timeout: float) -> None:
        self._end = end
        self._name = f"rank {rank} of {size}"
        self._timeout = timeout
        self._doing = "its own work, before the first exchange"
        self._since = time.monotonic()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="tensorbackend watch", daemon=True).start()

    def enter(self, name: str) -> None:
        """An exchange begins."""
        self._doing = name
        self._since = time.monotonic()

    def leave(self) -> None:
        """An exchange is over."""
        self._doing = f"its own work, after {self._doing}"
        self._since = time.monotonic()

    def close(self) -> None:
        """Watch no longer."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(max(0.05, self._since + self._timeout - time.monotonic())):
            if time.monotonic() - self._since >= self._timeout:
                self._report()
                if not self._closed.wait(GRACE):
                    self._end(1)

    def _report(self) -> None:
        seconds = time.monotonic() - self._since
        tell(f"{self._name}: {seconds:.0f} s in {self._doing}. It is at:\n{_positions()}")


def _positions() -> str:
    """The stacks of all threads but this one, without what started the script."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for number, frame in sys._current_frames().items():
        if number != threading.get_ident():
            stack = [entry for entry in traceback.extract_stack(frame) if entry.filename not in STARTERS]
            parts.append(f"  thread {names.get(number, number)}\n{''.join(traceback.format_list(stack))}")
    return "".join(parts)
