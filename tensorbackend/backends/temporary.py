# SPDX-License-Identifier: Apache-2.0
"""Temporary folders of a process: locked while it lives, so that those of killed ones are known, and removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

with contextlib.suppress(ImportError):  # There is none on Windows: nothing is swept there.
    import fcntl

__all__ = ["temporary_folder"]

PREFIX, LOCK = "tensorbackend-", ".lock"
LOCKED_WITHIN = 60.0
"""Seconds in which a process has surely locked a folder that it has made."""


def temporary_folder(parent: str | os.PathLike | None = None) -> Path:
    """A new folder in `parent` (None: where temporary files go), the caller's to remove.

    Those that killed processes have left there are removed now.
    """
    with contextlib.suppress(OSError, NameError):
        for left in _left(Path(tempfile.gettempdir() if parent is None else parent)):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    with contextlib.suppress(OSError, NameError):  # without locks it is not swept
        # Open, and with it locked, until this process and its forked children have ended.
        fcntl.flock(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600), fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder


def _left(parent: Path) -> Iterator[Path]:
    """The folders of this user that no process has locked."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if time.time() - os.fstat(lock).st_mtime > LOCKED_WITHIN:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield folder
            finally:
                os.close(lock)
