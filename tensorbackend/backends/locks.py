# SPDX-License-Identifier: Apache-2.0
"""Locks that are free in a forked child where a thread holds them in the parent: that thread does not exist there."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref

__all__ = ["Lock"]

_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """A re-entrant lock, which finalizers and signal handlers of the thread that holds it may take again.

    `now` is what to hold: `with lock.now:`. `held` counts for native code how often it is held by those who tell
    (`kernels/c/launcher/memo.h`).
    """

    __slots__ = ("__weakref__", "held", "now")

    def __init__(self) -> None:
        self._begin()
        _locks.add(self)

    def _begin(self) -> None:
        self.now, self.held = threading.RLock(), ctypes.c_longlong(0)

    def renew(self) -> None:
        """In a forked child: begin anew where a thread holds it that does not exist there."""
        if self.now.acquire(blocking=False):
            self.now.release()
        else:
            self._begin()


def _renew_all() -> None:
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
