# SPDX-License-Identifier: Apache-2.0
"""Arrays that are written part by part: several statements on one piece of memory in place of one tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorbackend.graph import composite, indexing
from tensorbackend.graph.optree import OpTreeNode

__all__ = ["Parts", "gathered", "roots_and_starts"]

MOST_COMPARED = 64
"""Parts up to which each pair is looked at for whether they overlap."""


class Parts:
    """An array of which `parts` are written: pairs of a basic index and a tree of that part's shape.

    Parts do not overlap, and beside them is `fill` (None: nothing, they cover the array). With `added` they may, and
    are added to what is there.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, parts: Sequence[tuple[tuple, Any]],
                 fill: float | None = None, added: bool = False) -> None:  # fmt: skip
        self.shape, self.dtype, self.parts, self.fill, self.added = shape, dtype, parts, fill, added


def roots_and_starts(
    roots: Sequence[Any], values: Sequence[Any], starts: Sequence[Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """Roots, their values and their gradients as `templates.differentiate` takes them: a tree for each part, whose
    gradient is that part of the whole's."""
    found: list[tuple[Any, Any, Any]] = []
    for root, value, start in zip(roots, values, starts):
        if isinstance(root, Parts):
            for key, tree in root.parts if start is not None else ():
                found.append((tree, None, composite.slice(start, key)))
        else:
            found.append((root, value, start))
    return tuple(map(list, zip(*found))) if found else ([], [], [])


def gathered(root: Any) -> Any:
    """A sum of arrays that are zero but for a part each, as gradients of several parts of an array are, as `Parts`;
    others as they are. So are sums of halves whose parts overlap: they are rounded once."""
    if not isinstance(root, OpTreeNode) or root.structure.op.name != "add":
        return root
    terms = _terms(root)
    if terms is None:
        return root
    shape = root.shape
    parts = [(indexing.unhashed(node.structure.params[1]), node.inputs[0]) for node in terms]
    apart = len(parts) <= MOST_COMPARED and _apart([_box(key, shape) for key, _ in parts])
    if not apart and root.dtype.itemsize < 4:
        return root
    covered = apart and sum(math.prod(tree.shape) for _, tree in parts) == math.prod(shape)
    return Parts(shape, root.dtype, parts, None if covered else 0, not apart)


def _terms(root: OpTreeNode) -> list[OpTreeNode] | None:
    """The terms of a sum from left to right, None unless all are arrays that are zero but for a part."""
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, OpTreeNode) or node.shape != root.shape or node.dtype != root.dtype:
            return None
        if node.structure.op.name == "add":
            waiting += reversed(node.inputs)
        elif node.structure.op.name == "unslice":
            found.append(node)
        else:
            return None
    return found


def _box(key: tuple, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """The first and last place of a part on each axis, and the distance of its places; nothing for a part without
    elements."""
    box = []
    lengths = iter(shape)
    for k in indexing.expand(key, len(shape)):
        if k is not None:
            found = range(next(lengths))[k]
            places = range(found, found + 1) if isinstance(found, int) else found
            if not places:
                return []
            box.append((min(places[0], places[-1]), max(places[0], places[-1]), abs(places.step)))
    return box


def _apart(boxes: list[list[tuple[int, int, int]]]) -> bool:
    """Whether no two boxes overlap."""
    pairs = ((one, other) for i, one in enumerate(boxes) for other in boxes[:i] if one and other)
    return all(any(map(_miss, one, other)) for one, other in pairs)


def _miss(one: tuple[int, int, int], other: tuple[int, int, int]) -> bool:
    """Whether two boxes have no place of an axis in common: one ends before the other, or their teeth mesh."""
    (low, high, step), (start, end, other_step) = one, other
    return high < start or end < low or (step == other_step and (low - start) % step != 0)
