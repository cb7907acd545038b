# SPDX-License-Identifier: Apache-2.0
"""How much data the caches of this machine take: beyond it, results are stored past them."""

from __future__ import annotations

import functools
from pathlib import Path

from tensorbackend.backends import toolchain

__all__ = ["go_past", "near_bytes"]

OWN_BYTES = 6 << 20
"""What the caches of cores take together, where the shared one is hardly faster than memory."""
SHARED = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
COMPLEXES = "AuthenticAMD"
"""The maker of processors whose third cache belongs to a complex of a few cores, and is several times as fast as
memory: a copy of 8 MiB takes a third of the time there (Zen 4). One of a whole socket, behind a mesh, is not near."""


def go_past(nbytes: int) -> bool:
    """Whether a kernel that touches so many bytes stores results past the caches, and has operands fetched ahead."""
    return nbytes > near_bytes()


@functools.cache
def near_bytes() -> int:
    """The bytes that caches take which are much faster than memory: half of a complex's, since others use it too."""
    if COMPLEXES not in toolchain.cpu_features():
        return OWN_BYTES
    try:
        text = SHARED.read_text().strip()
        return max(OWN_BYTES, int(text.removesuffix("K")) * 1024 // 2)
    except (OSError, ValueError):  # no such file, or in other units
        return OWN_BYTES
