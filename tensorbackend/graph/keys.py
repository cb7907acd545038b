# SPDX-License-Identifier: Apache-2.0
"""Numbers and parameters as parts of keys under which something is remembered."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorbackend.graph.indexing import SliceKey

__all__ = ["exact"]

_INTS = frozenset((int,))


def exact(x: Any) -> Any:
    """A number or parameter as a part of a key: Python takes 1, 1.0 and True for the same there, and 0.0 and -0.0.

    Ints, slices and None are themselves; of tuples each part is told apart.
    """
    kind = x.__class__
    if kind is int or x is None:
        return x
    if kind is float:
        return (kind, x) if x else (kind, x, math.copysign(1.0, x))
    if kind is tuple:
        return x if _INTS.issuperset(map(type, x)) else tuple([exact(part) for part in x])
    if isinstance(x, tuple):
        return (kind, exact(tuple(x)))
    if kind is SliceKey:  # holds ints and None alone
        return x
    return (kind, x, math.copysign(1.0, x)) if isinstance(x, (float, np.floating)) and not x else (kind, x)
