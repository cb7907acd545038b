# SPDX-License-Identifier: Apache-2.0
"""How much data the caches of this machine take, and how data beyond them is best read and stored."""

from __future__ import annotations

import functools
from pathlib import Path

from tensorbackend.backends import toolchain

__all__ = ["AHEAD", "NEXT", "PAST", "go_past", "has_complexes", "near_bytes"]

AHEAD, PAST, NEXT = 1, 2, 4
"""The ways of kernels with memory beyond the caches: ask ahead for what is read, store past them, ask for what a map
that computes much, or the next rows of a kernel that stores rows, read. `kernels/c/kernel.h` names them too."""

OWN_BYTES = 6 << 20
"""What the caches of cores take together, where the shared one is hardly faster than memory."""
SHARED = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
COMPLEXES = "AuthenticAMD"
"""The maker of processors whose third cache belongs to a complex of a few cores, and is several times as fast as
memory: a copy of 8 MiB takes a third of the time there (Zen 4). One of a whole socket, behind a mesh, is not near.
They also look further ahead by themselves than a kernel that asks: a row sum of 25 MB takes 1.4 times as long if it
does. But what a map computes holds up its own reads: a gate of 84 MB that asks for the next lines takes 0.88 of the
time, an x * w + b of 67 MB 1.1 times."""


def go_past(nbytes: int, results: int = 0) -> bool:
    """Whether a kernel touches so many bytes that most of its results would leave the caches before they are read.

    Where `results` are about half of the bytes or more, a third more may stay: three maps of 26 MB, of which each reads
    what the one before has stored, take half of the time so in a cache of 32 MB. A kernel that reads more than that
    keeps what it reads there by storing past it.
    """
    return (nbytes * 3 // 4 if 9 * results > 4 * nbytes else nbytes) > near_bytes()


def has_complexes() -> bool:
    """Whether the third cache belongs to a few cores."""
    return COMPLEXES in toolchain.cpu_features()


@functools.cache
def near_bytes() -> int:
    """The bytes that caches much faster than memory take: three quarters of a complex's, since others use it too."""
    if not has_complexes():
        return OWN_BYTES
    try:
        text = SHARED.read_text().strip()
        return max(OWN_BYTES, int(text.removesuffix("K")) * 1024 * 3 // 4)
    except (OSError, ValueError):  # no such file, or in other units
        return OWN_BYTES
