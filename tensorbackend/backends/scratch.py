# SPDX-License-Identifier: Apache-2.0
"""The shared workspace of the contract: memory that operations lend each other, one at a time.

Callers plan its size once, then take pieces of it. The engine's own kernels do not use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend.errors import complain
from tensorbackend.graph.structure import StructureTable

__all__ = ["ScratchMemory"]

GRAIN = 128
"""Bytes to whose multiples sizes are rounded up."""


def _rounded(name: str, size: Any) -> int:
    """A size in bytes, rounded up. Raises `ValueError` for what is no size."""
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 0:
        raise ValueError(complain(f"{name}: size", repr(size), "bytes, an int of at least 0"))
    return -(-int(size) // GRAIN) * GRAIN


class ScratchMemory:
    """The scratch methods of the contract; `Backend` inherits them."""

    structures: StructureTable
    _allocate: Callable[[int], Any]
    scratch_size = 0
    """The bytes that are planned."""
    _scratch: Any = None
    scratch_offset = 0

    def set_scratch_size(self, *sizes: int) -> None:
        """Plan a workspace for pieces of these sizes (bytes, each rounded up to 128) at once; it never shrinks."""
        self.scratch_size = max(self.scratch_size, sum(_rounded("set_scratch_size", size) for size in sizes))

    def scratch_buffer_init(self) -> None:
        """Start handing out pieces from the beginning again."""
        self.scratch_offset = 0

    def scratch_buffer(self, size: int) -> int:
        """The address of the workspace, of which the first `size` bytes are taken.

        Raises `RuntimeError` when fewer were planned.
        """
        self.scratch_buffer_init()
        return self.scratch_buffer_offset(size)

    def scratch_buffer_offset(self, size: int) -> int:
        """The address of the next `size` bytes. Raises `RuntimeError` when fewer are left of what was planned."""
        self.structures.check_open()
        wanted, planned = self.scratch_offset + _rounded("scratch_buffer", size), self.scratch_size
        if wanted > planned:
            given = f"{size} bytes from {self.scratch_offset} on"
            hint = f"set_scratch_size({wanted}) first"
            raise RuntimeError(complain("scratch_buffer: too small", given, f"at most {planned} in all", hint))
        if self._scratch is None or self._scratch.nbytes < planned:
            if self.scratch_offset:
                given = f"{planned} bytes planned, {self._scratch.nbytes} handed out from"
                raise RuntimeError(complain("scratch_buffer: it would move", given, "", "scratch_buffer_init() first"))
            self._scratch = self._allocate(planned)
        address = self._scratch.address + self.scratch_offset
        self.scratch_offset = wanted
        return address

    def scratch_buffer_reset(self) -> None:
        """Free the workspace and forget the plan."""
        self._scratch, self.scratch_size, self.scratch_offset = None, 0, 0
