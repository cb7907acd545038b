# SPDX-License-Identifier: Apache-2.0
"""Where temporaries lie in one piece of memory: those that are never needed at once may share bytes.

A pure function from lifetimes to offsets. To find the least memory is NP-hard; here several orders of first-fit are
tried until one reaches the lower bound, the most bytes that are needed at one time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["Arena", "Lifetime", "plan_arena"]

MOST_TRIED = 2000
"""Temporaries above which one order must do: an order takes time in their square."""


class Lifetime(NamedTuple):
    """A temporary of `nbytes` bytes that is needed in the steps `first` to `last`, both included."""

    nbytes: int
    first: int
    last: int


class Arena(NamedTuple):
    """The byte `offsets` of temporaries, the `peak` of bytes they take, and the `least` that any plan must take."""

    offsets: list[int]
    peak: int
    least: int


def plan_arena(lifetimes: Sequence[Lifetime], alignment: int = 64) -> Arena:
    """Offsets, multiples of `alignment`, such that temporaries needed at one time share no byte."""
    sizes = [-(-t.nbytes // alignment) * alignment for t in lifetimes]
    least = _most_at_once(lifetimes, [t.nbytes for t in lifetimes])
    enough = _most_at_once(lifetimes, sizes)
    best: tuple[int, list[int]] | None = None
    for key in _ORDERS if len(lifetimes) <= MOST_TRIED else _ORDERS[:1]:
        order = sorted(range(len(lifetimes)), key=lambda n: key(lifetimes[n]))
        offsets = _first_fit(lifetimes, sizes, order)
        peak = max((offset + size for offset, size in zip(offsets, sizes)), default=0)
        if best is None or peak < best[0]:
            best = peak, offsets
        if peak == enough:
            break
    return Arena(best[1], best[0], least)


def _length(t: Lifetime) -> int:
    return t.last - t.first + 1


_ORDERS: tuple[Callable[[Lifetime], tuple], ...] = (
    lambda t: (-t.nbytes, t.first),
    lambda t: (-t.nbytes * _length(t), t.first),
    lambda t: (-_length(t), -t.nbytes),
    lambda t: (t.first, -t.nbytes),
    lambda t: (t.last, -t.nbytes),
)


def _most_at_once(lifetimes: Sequence[Lifetime], sizes: Sequence[int]) -> int:
    """The most bytes that are needed in one step."""
    changes: dict[int, int] = {}
    for t, size in zip(lifetimes, sizes):
        changes[t.first] = changes.get(t.first, 0) + size
        changes[t.last + 1] = changes.get(t.last + 1, 0) - size
    most = now = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most


def _first_fit(lifetimes: Sequence[Lifetime], sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Each temporary, in an order, at the lowest place that is free for as long as it is needed."""
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for n in order:
        t = lifetimes[n]
        taken = sorted(
            (offsets[m], offsets[m] + sizes[m])
            for m in placed
            if lifetimes[m].first <= t.last and t.first <= lifetimes[m].last
        )
        at = 0
        for start, stop in taken:
            if start - at >= sizes[n]:
                break
            at = max(at, stop)
        offsets[n] = at
        placed.append(n)
    return offsets
