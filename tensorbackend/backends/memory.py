# SPDX-License-Identifier: Apache-2.0
"""What owns a piece of memory: it goes back with its last reference, not when the garbage collector says so."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["owner"]


_OBJECTS = np.dtype(object)


class _Owner:
    __slots__ = ("_arguments", "_free")

    def __init__(self, free: Callable[..., object], arguments: tuple[int, ...]) -> None:
        self._free, self._arguments = free, arguments

    def __del__(self) -> None:
        self._free(*self._arguments)


def owner(free: Callable[..., object], *arguments: int) -> np.ndarray:
    """An array to refer to: `free(*arguments)` is called when nothing does any more.

    The garbage collector calls all finalizers of a cycle, in any order, before it breaks the cycle: with one of ours
    among them, the others would use memory that has gone. Into arrays it does not look, so that what one holds is to
    it in use, and ends with the array.
    """
    hidden = np.empty(1, _OBJECTS)
    hidden[0] = _Owner(free, arguments)
    return hidden
