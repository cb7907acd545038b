# SPDX-License-Identifier: Apache-2.0
"""Convolutions of few places on the CPU: in which blocks, and about how long they take.

The loops are those of `kernels/c/conv_few.c`. Of which algorithm is the fastest `conv_blocking.py` decides.
"""

from __future__ import annotations

import math

from tensorbackend.primitives import winograd_blocking
from tensorbackend.primitives.conv_ways import (
    BPROP,
    TASKS,
    UPDATE,
    Facts,
    Few,
    met_taps,
    outputs_apart,
    sides,
    taps_along,
)
from tensorbackend.primitives.geometry import ConvGeometry, spans_inside
from tensorbackend.primitives.matrix_unit import multiple

__all__ = ["blocks", "kinds", "may_be_few", "nanoseconds"]

VECTORS, MAPS = (2, 3), 8
"""Vectors of maps of a tile forward, maps of one backward."""
PRODUCTS, SUM_NS, APART_NS = (106, 98), (0.5, 3.0), 5.0
"""Operations a nanosecond, forward and backward; nanoseconds of a result, whose lanes are added up backward, and of one
that is put between others."""
FILTER_NS, COPY_NS = 0.1, 1.0
"""Of a number of the filters, and of the copy of the input."""
READ_NS = (1 << 18, (0.05, 0.02)), (3 << 20, (0.1, 0.12)), (math.inf, (0.5, 0.5))
"""Of a number of the copy, for each task's maps, forward and backward, by how many there are: what the second-level
cache holds, the third, or none."""
PLACES, SUMS, TILE = 1152, 64, (8, 3)
"""Places of a task at most, forward and backward, where sums are a vector each; places of a tile."""
ROWS, BYTES = 768, 64 << 10
"""Rows of filters that are in use at a time, forward: more would meet in the same sets of a cache; bytes of them for a
tile of maps, backward: a part of the second-level cache."""
COPYING, COPIED_ROWS, LINE = (256, 24), (288, 576), 16
"""Places of a task forward from which on it copies the filters of a block of channels, where these have several taps:
with 32 registers, and with 16, whose tiles read filters twice as often, a line of a row at a time; rows of such a
block, about, of few places and of many; and channels of which it is a multiple, a line of the copy of the input."""
BROAD = 8, 4
"""Vectors of the panels of copied filters with 16 registers, where there are so many places (`COPYING` of 32): inputs
that are in the nearest cache meet all of them. Backward, too, where lanes are then maps and need not be added up."""
WITHIN_SHARE, WITHIN_PLACES, WITHIN_TAPS = 1.5, 48, 64
"""Of zeros and images of a copy beside the images from which on it has no zeros; places that meet the same taps then,
on average, at least; and taps at most."""


def may_be_few(g: ConvGeometry, op: str, facts: Facts) -> bool:
    """Whether it computes a pass: what lies side by side in the filters is whole vectors in each group."""
    return op != UPDATE and facts.plain and not g.K // g.groups % facts.lanes


def blocks(g: ConvGeometry, op: str, facts: Facts) -> Few:
    """Even panels of maps, and as many parts of the places as make enough tasks."""
    maps_in, maps_out, _, out = sides(g, op)
    steps = outputs_apart(g, op)
    cells = math.prod(-(-n // step) for n, step in zip(g.window, steps))
    places = g.N * math.prod(-(-n // step) for n, step in zip(out, steps))
    each = g.groups * math.prod(steps)
    broad = _broad_panel(maps_out, each, facts) if cells > 1 and places >= COPYING[False] else 0
    if op == BPROP and not broad:
        panel, most = MAPS, SUMS
    else:
        vectors, most = maps_out // facts.lanes, PLACES
        panel = broad or min(VECTORS, key=lambda n: (-(-vectors // n) * n, -n)) * facts.lanes
    items = each * -(-maps_out // panel)
    parts = max(-(-places // most), min(-(-TASKS // items), places))
    part = -(-places // parts)
    copied = bool(broad) or (op != BPROP and cells > 1 and part >= COPYING[facts.few_registers])
    if copied:
        rows = COPIED_ROWS[part >= COPYING[False] and not broad]
        channels = multiple(_each(maps_in, maps_in * cells, rows), LINE)
    elif op == BPROP:
        channels = multiple(_each(maps_in, maps_in * 4 * MAPS * cells, BYTES), facts.lanes)
    else:
        channels = _each(maps_in, maps_in * cells, ROWS)
    return Few(part, panel, channels, items * -(-places // part), copied, _is_within(g, op))


def _broad_panel(maps: int, each: int, facts: Facts) -> int:
    """Maps of a panel of copied filters that has more than the vectors of a tile, or 0: `each` times as many tasks as
    panels, which must be enough."""
    panels = (vectors * facts.lanes for vectors in BROAD if facts.few_registers)
    return next((panel for panel in panels if maps % panel == 0 and maps // panel * each >= TASKS), 0)


def _is_within(g: ConvGeometry, op: str) -> bool:
    """Whether the copy of the input is the image alone: zeros around would take longer than tiles that are not full."""
    if math.prod(g.window) > WITHIN_TAPS or g.strides != (1, 1, 1):
        return False
    read, written = (g.result, g.image) if op == BPROP else (g.image, g.result)
    reach = ((n - 1) * dilation for n, dilation in zip(g.window, g.dilations))
    around = math.prod(n + more for n, more in zip(written, reach)) / math.prod(read)
    met = kinds(g, 0) * kinds(g, 1) * kinds(g, 2)
    return around >= WITHIN_SHARE and g.N * math.prod(written) >= WITHIN_PLACES * met


def _each(length: int, size: int, most: int) -> int:
    """Of a length: an even part that has at most so much of its size, about."""
    return -(-length // -(-size // most))


def nanoseconds(g: ConvGeometry, op: str, facts: Facts, way: Few) -> float:
    """The time on one thread: taps that no place of a tile meets are not added up."""
    _, maps_out, _, _ = sides(g, op)
    read, written = (g.dimO, g.dimI) if op == BPROP else (g.dimI, g.dimO)
    backward = op == BPROP and not way.copied
    high = met_taps(g, 1)
    mixed = 0 if way.within else kinds(g, 1) * kinds(g, 2) * TILE[backward] / 2 / math.prod(written[1:])
    products = g.flops * min(high, high * met_taps(g, 2) + mixed)
    if op == BPROP:
        products *= max(1.0, g.W / (g.Q * g.strides[2]))
    if backward:
        products *= multiple(maps_out, MAPS) / maps_out
    again = 1 if backward else -(-math.prod(written[1:]) // PLACES)  # for each block of places
    filters = math.prod(g.dimF) * FILTER_NS + winograd_blocking.far_filters(g) * again / 2
    copied = math.prod(read[1:]) * multiple(read[0], facts.lanes)
    read_ns = next(ns[backward] for most, ns in READ_NS if copied <= most)
    moved = filters + copied * (COPY_NS + -(-maps_out // way.panel) * read_ns)
    sum_ns = SUM_NS[backward] + (APART_NS if op == BPROP and g.strides != (1, 1, 1) else 0.0)
    return products / PRODUCTS[backward] + moved + math.prod(written) * sum_ns


def kinds(g: ConvGeometry, axis: int) -> int:
    """How many kinds of outputs there are along an axis, by the taps that meet inputs."""
    bounds = {int(n) for ends in spans_inside(*taps_along(g, axis)) for n in ends}
    return 1 + sum(0 < n < g.result[axis] for n in bounds)
