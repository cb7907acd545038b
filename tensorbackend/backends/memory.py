# SPDX-License-Identifier: Apache-2.0
"""What owns a piece of memory: it goes back with its last reference, not when the garbage collector says so."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

__all__ = ["owner"]


_OBJECTS = np.dtype(object)


class _Owner:
    """What calls the object in its slot when it ends. A finalizer that is written in Python could meet an interrupt,
    which is then lost, and the memory with it; where `free` is native, nothing of this is Python."""

    __slots__ = ("__del__",)


def owner(free: Callable[..., object], *arguments: int) -> np.ndarray:
    """An array to refer to: `free(*arguments)` is called when nothing does any more.

    The garbage collector calls all finalizers of a cycle, in any order, before it breaks the cycle: with one of ours
    among them, the others would use memory that has gone. Into arrays it does not look, so that what one holds is to
    it in use, and ends with the array.
    """
    hidden = np.empty(1, _OBJECTS)
    hidden[0] = held = _Owner()
    held.__del__ = functools.partial(free, *arguments)
    return hidden
