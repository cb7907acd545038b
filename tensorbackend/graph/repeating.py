# SPDX-License-Identifier: Apache-2.0
"""Trees of arrays that are repeated, as a whole or each entry, for the function layer and the array module."""

from __future__ import annotations

from itertools import chain
from typing import Any

from tensorbackend.graph import composite

__all__ = ["repeated", "tiled"]


def tiled(x: Any, reps: tuple[int, ...]) -> Any:
    """x as a whole repeated `reps` times along each axis; new axes come in front."""
    rank = max(len(reps), len(x.shape))
    reps = (1,) * (rank - len(reps)) + reps
    shape = (1,) * (rank - len(x.shape)) + x.shape
    apart = chain.from_iterable((1, n) if r != 1 else (n,) for r, n in zip(reps, shape))
    whole = chain.from_iterable((r, n) if r != 1 else (n,) for r, n in zip(reps, shape))
    spread = composite.broadcast_to(composite.reshape(x, tuple(apart)), tuple(whole))
    return composite.reshape(spread, tuple(r * n for r, n in zip(reps, shape)))


def repeated(x: Any, repeats: int, axis: int) -> Any:
    """Each entry along an axis so many times."""
    before, n, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    spread = composite.broadcast_to(composite.reshape(x, (*before, n, 1, *behind)), (*before, n, repeats, *behind))
    return composite.reshape(spread, (*before, n * repeats, *behind))
