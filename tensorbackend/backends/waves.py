# SPDX-License-Identifier: Apache-2.0
"""Which launches of a program may run side by side: waves of those that need nothing of each other.

Small kernels are not worth sharing among threads one by one; several that are independent are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["Node", "levels", "waves"]

TOGETHER_NS = 4000
"""Estimated work below which launches are not worth sharing: `HOT_NS` of kernels/c/runtime.c."""


class Node(NamedTuple):
    """A launch: the extents (first byte, one past the last) that it reads and that it writes, its tasks and its
    estimated nanoseconds on one thread. `after` is the launch that it must follow besides, or -1; `shares`: whether it
    shares its work among threads by itself, unless it runs beside others."""

    reads: list[tuple[int, int]]
    writes: list[tuple[int, int]]
    tasks: int
    cost: int
    after: int = -1
    shares: bool = False


def levels(nodes: Sequence[Node]) -> list[int]:
    """For launches in their order: how many others must run before each one, one after the other."""
    total = sum(len(n.reads) + len(n.writes) for n in nodes)
    starts, stops, found = (np.zeros(total, np.int64) for _ in range(3))
    written = np.zeros(total, bool)
    used = 0
    result: list[int] = []
    for node in nodes:
        level = result[node.after] + 1 if node.after >= 0 else 0
        for extents, writes in ((node.reads, False), (node.writes, True)):
            for start, stop in extents:
                meets = (starts[:used] < stop) & (stops[:used] > start)
                if not writes:
                    meets &= written[:used]
                level = max(level, int(np.max(found[:used][meets], initial=-1)) + 1)
        for extents, writes in ((node.reads, False), (node.writes, True)):
            for start, stop in extents:
                starts[used], stops[used], found[used], written[used] = start, stop, level, writes
                used += 1
        result.append(level)
    return result


def waves(nodes: Sequence[Node], threads: int) -> list[list[int]]:
    """The launches in an order that serves each with what it needs, those side by side that `threads` may share.

    A launch that shares its work by itself and is more than one thread's part of its wave runs alone.
    """
    if threads == 1:
        return [[n] for n in range(len(nodes))]
    by_level: dict[int, list[int]] = {}
    for n, level in enumerate(levels(nodes)):
        by_level.setdefault(level, []).append(n)
    found: list[list[int]] = []
    for level in sorted(by_level):
        members = by_level[level]
        total = sum(nodes[n].cost for n in members)
        alone = [n for n in members if nodes[n].shares and nodes[n].cost * threads > 1.25 * total]
        found += [[n] for n in alone]
        rest = [n for n in members if n not in alone]
        if len(rest) > 1 and total >= TOGETHER_NS:
            found.append(sorted(rest, key=lambda n: -nodes[n].cost // max(nodes[n].tasks, 1)))
        else:
            found += [[n] for n in rest]
    return found
