# SPDX-License-Identifier: Apache-2.0
"""Each launch of the emulator twice: in another order of threads, with other bytes where nobody has written.

What then differs depends on a race, on a missing barrier, or on memory that nobody wrote. Sums by floating-point
atomics depend on the order too, in their last bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from tensorbackend.errors import KernelFault

__all__ = ["FILL", "Buffers", "run_twice"]

FILL, OTHER_FILL = 0xFF, 0x5A
"""What memory holds that nobody has written: NaN in every format. The second time shared memory holds other bytes, and
each buffer bytes of its own, so that a copy of one to another shows."""


class Buffers:
    """The allocations of a driver, by address with their sizes, and which of them nobody has written yet. While they
    are compared, `freed` holds those given back meanwhile, by the garbage collector or another thread."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.fresh: set[int] = set()
        self.freed: list[int] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def add(self, address: int, nbytes: int) -> None:
        """A new allocation."""
        self.sizes[address] = nbytes
        self.fresh.add(address)

    def remove(self, address: int) -> None:
        """An allocation is given back."""
        del self.sizes[address]
        self.fresh.discard(address)

    def write(self, address: int) -> None:
        """Somebody writes at an address, which may lie inside an allocation."""
        if address in self.sizes or not self.fresh:
            self.fresh.discard(address)
        else:
            self.fresh -= {start for start in self.fresh if start <= address < start + self.sizes[start]}

    def bytes(self, address: int) -> np.ndarray:
        """The bytes of an allocation, in place."""
        return np.frombuffer((ctypes.c_ubyte * self.sizes[address]).from_address(address), np.uint8)


def run_twice(buffers: Buffers, run: Callable[[bool, int], None], name: str) -> None:
    """Call `run(again, fill)` twice on the same memory, the second time in another order. Leaves what the first run
    left, also where a run fails. Raises `KernelFault` for a buffer in which the two left different bytes."""
    before = {address: buffers.bytes(address).copy() for address in tuple(buffers.sizes)}
    first: dict[int, np.ndarray] = {}
    try:
        run(False, FILL)
        first = {address: buffers.bytes(address).copy() for address in before}
        fills = {address: OTHER_FILL + 1 + number % 160 for number, address in enumerate(tuple(buffers.fresh))}
        for address, values in before.items():
            buffers.bytes(address)[:] = fills.get(address, values)
        run(True, OTHER_FILL)
    except KernelFault:
        _give_up(buffers, before, first)
        raise
    wrong = []
    for address, once in first.items():
        again = buffers.bytes(address)
        differs, written = once != again, once != before[address]
        if address in fills:
            differs &= (once != FILL) | (again != fills[address])
            written |= again != fills[address]  # what was written may be the very bytes of fresh memory: -1
        if differs.any():
            wrong.append(differs)
        again[:] = once
        if written.any():
            buffers.fresh.discard(address)
    if wrong:
        raise _fault(name, int(np.argmax(wrong[0])), int(wrong[0].sum()), wrong[0].size)


def _give_up(buffers: Buffers, before: dict[int, np.ndarray], first: dict[int, np.ndarray]) -> None:
    """After a kernel that failed: leave what its first run left, if that ended (`first`). Buffers in which bytes have
    changed were written."""
    for address, values in first.items():
        buffers.bytes(address)[:] = values
    for address, values in before.items():
        if (buffers.bytes(address) != values).any():
            buffers.fresh.discard(address)


def _fault(name: str, byte: int, count: int, size: int) -> KernelFault:
    what = f"{name}: what it computes depends on the order of threads, or on memory that nobody wrote"
    where = f"byte {byte} of a buffer of {size} bytes ({count} bytes in all) differs when the kernel runs again"
    return KernelFault(f"{what}\n  at        {where}\n  look for  a missing barrier, a race, an uninitialised read",
                       kernel=name)  # fmt: skip
