# SPDX-License-Identifier: Apache-2.0
"""Winograd's algorithm for a convolution on the CPU: in which parts, tiles and blocks, and about how long it takes.

The loops are those of `kernels/c/conv_winograd.c`. Of which algorithm is the fastest `conv_blocking.py` decides.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tensorbackend.primitives.conv_measured import measured
from tensorbackend.primitives.conv_ways import BPROP, FPROP, TASKS, UNIT_PLANES, UPDATE, Facts, Winograd, sides
from tensorbackend.primitives.geometry import ConvGeometry, share_inside
from tensorbackend.primitives.matrix_unit import EDGE, PLANE_BYTES, multiple

__all__ = ["adjoints", "blocks", "choices", "far_filters", "may_be_cut", "nanoseconds", "own_blocks"]

STAGE_BYTES, UNIT_STAGE_BYTES = 700_000, 1_500_000
"""Bytes of a block of lanes that one task takes through all stages of Winograd's algorithm, and on the matrix unit."""
MOST_STAGE_BYTES = 2_200_000
"""Bytes of a panel from which stages are shared: it would not stay in the second-level cache, and the filters would
come from memory for each panel."""
SHARED_PANELS, SHARED_LANES = 6, 288
"""Panels of a block whose stages are shared, for the filters' gradient at least; lanes of one for the other passes."""
OWN_MAPS, FEWEST_OWN_TASKS = (32, 16), 4
"""Maps of a task that transforms their filters itself, and tasks that there must be."""
OWN_BYTES, DATA_BYTES = 1 << 20, 14 << 20
"""Bytes of such a task's filters and products at most, and of the transformed data that tasks share."""
OWN_SUMS, MOST_NEAR_SUMS = (32, 16, 8), 1 << 20
"""Channels of a task that takes their sums to the end, and sums up to which it is as well to put them aside."""
ADJOINT_CHANNELS, ADJOINT_BYTES, ADJOINT_DATA_BYTES = (32, 24, 16, 8), 2 << 20, 64 << 20
"""Channels of a task of the images' gradient that is the forward pass, transposed; bytes of filters up to which a task
may have all of them; of the transformed errors at most."""
ADJOINT_PRODUCTS, ADJOINT_ERROR_NS, ADJOINT_SUM_NS, ADJOINT_JOIN_NS = 104, 0.35, 0.23, 1.7
"""Of it: operations of the products a nanosecond; nanoseconds of a number of the transformed errors, of one of the
products, and of one of the result."""
OWN_CHANNELS = 64
"""Channels of its filters at a time, as in `conv_winograd.c`."""
SUM_BYTES = 48 << 20
"""Bytes of the transformed inputs and errors of a block, for the filters' gradient."""
SHARES, SHARED_SUMS = 2, 0.04
"""Blocks of the filters' gradient that go through a stage at a time, each with sums of its own, where there are at most
so many sums for each transformed number."""
MOST_PANELS = 64
"""Of a block at most: tasks that leave out panels of padding count them in a word's bits."""
CHUNK, MOST_CHUNK = 128, 192
"""Channels that Winograd's algorithm takes at a time where filters are cut into parts: where maps are fewer, and at
most."""
PART_TAPS, WHOLE_TAPS = {4: (3, 2), 6: (3, 4, 5)}, 3
"""Taps of a side of such a part, by points; of a filter's side that is never cut."""
PRODUCTS, UNIT_PRODUCTS = 120, 260
"""Operations of Winograd's products a nanosecond, by multiply-adds and on the matrix unit."""
NEARLY = 1.3
"""How much longer Winograd's algorithm may take without the matrix unit, or on it, than the other way, to be a choice
as well: how fast the unit is depends on what else draws on the processor's power."""
NEAR, SHARED_NEAR = 0.6, 0.7
"""How much less long transforms take where one task takes a block through all stages, as its data stay in the cache,
and on the matrix unit where stages are shared."""
ALONE_NS = {4: ((0.22, 0.14), (0.29, 0.14), (0.4, 0.4)), 6: ((0.3, 0.18), (0.35, 0.18), (0.6, 0.4))}
"""Nanoseconds of a number of the transformed data and of the products where one task takes a block through all stages
by multiply-adds, by points: lanes that are images of one tile, a part of them, one image."""
FEW_REGISTERS = {4: 2.5, 6: 1.9}
"""How many times as long the latter take with 16 registers, by points: of few channels they are most of it."""
UPDATE_PRODUCTS, UPDATE_SUM_NS = 110, (0.62, 0.5)
UPDATE_DATA_NS, UPDATE_ERROR_NS, UPDATE_FETCH_NS = 0.45, 0.32, 0.29
"""Of the filters' gradient where there is no matrix unit: operations of the products a nanosecond; nanoseconds of a
sum, and of one that a task takes to the end, of a number of the transformed data and of the transformed errors, and of
an error before. However many images a tile has, its lanes are put together as fast."""
UNIT_FILTERS = {4: 1.0, 6: 2.0}
"""Nanoseconds of a number of the transformed filters on the matrix unit, by points."""
FILTER_NS, FILTER_RISE, FILTER_MOST_NS = 0.35, 1.5e-7, 1.2
"""The same by multiply-adds: of the first ones, for each number that there is, and of as many as no cache holds."""
OWN_PRODUCTS, OWN_DATA_NS, OWN_SUM_NS, OWN_FILTER_NS = 115, 0.55, 0.57, {4: 0.65, 6: 0.85}
"""Where data are shared: operations of the products a nanosecond. Where tasks transform filters themselves: nanoseconds
of a number of the transformed data and of the products, and of a number of the filters, by points."""
FAR_FILTERS, FAR_FILTER_NS = 1 << 22, 0.6
"""Numbers of filters that no cache holds, and of one of them, where filters are not transformed."""
AGAIN_NS = 2.5
"""Of one of them that a forward pass reads again for another block of lanes: a task's maps of a tap are a line or two,
far from those of the next."""
FILTER_READ_NS = 0.4
"""Of a number of them in the products, which take no less however few the lanes are."""


def may_be_cut(g: ConvGeometry, op: str) -> bool:
    """Whether `conv_winograd.c` computes a pass as it stands, not transposed: filters along height and width, longer
    than their strides and not dilated, and of the images' gradient at stride 1."""
    flat = g.T == g.strides[0] == 1 and g.pads[0] == (0, 0) and g.dilations == (1, 1, 1)
    cells = all(taps > stride for taps, stride in zip(g.window[1:], g.strides[1:]))
    return flat and cells and (op != BPROP or g.strides == (1, 1, 1))


def choices(g: ConvGeometry, op: str, facts: Facts, itemsize: int, points: int) -> list[Winograd]:
    """Winograd's algorithm with so many points, filters cut into the cheapest parts: by multiply-adds, on the matrix
    unit, or both where they are as fast."""
    planes = (0, UNIT_PLANES) if facts.matrix_unit else (0,)
    longest = max(-(-n // stride) for n, stride in zip(g.window[1:], g.strides[1:]))
    each = []
    for taps in PART_TAPS[points]:
        if taps > max(longest, WHOLE_TAPS) or taps < longest == WHOLE_TAPS:
            continue
        ways = adjoints(g, facts, itemsize, points, taps) if op == BPROP else []
        if may_be_cut(g, op):
            ways += (cut := [blocks(g, op, facts, itemsize, points, n, taps) for n in planes])
            ways += own_blocks(g, op, facts, itemsize, cut[0])
        if not ways:
            continue
        costs = [nanoseconds(g, op, facts, way) for way in ways]
        each.append((min(costs), [way for way, cost in zip(ways, costs) if cost <= NEARLY * min(costs)]))
    return min(each, key=lambda pair: pair[0])[1] if each else []


def blocks(g: ConvGeometry, op: str, facts: Facts, itemsize: int, points: int, planes: int, taps: int) -> Winograd:
    """Blocks for parts of `taps` x `taps` taps."""
    maps, maps_out, _, out = sides(g, op)
    width = facts.tile(planes).width
    tile = points + 1 - taps
    parts = len(_parts(g, 1, taps)) * len(_parts(g, 2, taps))
    chunk = maps_in = _chunk(maps, parts, planes)
    lanes = out[0] * -(-out[1] // tile) * -(-out[2] // tile) * g.N
    total = -(-lanes // width)
    length = _lanes(g.N, facts.lanes)
    each, data = points**2 * width, PLANE_BYTES * planes or itemsize
    if op == UPDATE:
        padded = -(-maps_out // width) * width
        panel = each * data * (maps_in + padded)
        most = max(SHARED_PANELS, SUM_BYTES // 6 // panel)
        few = maps * parts * padded <= SHARED_SUMS * total * width * (maps * parts + padded)
        shares = min(SHARES, total) if few else 1
        panels = max(1, min(min(most, MOST_PANELS, SUM_BYTES // panel) // shares, -(-total // shares)))
        panels = -(-total // multiple(-(-total // panels), shares))
        way = Winograd(points, taps, tile, length, panels, -(-total // panels), True, planes, parts, chunk)
        return replace(way, shares=shares)
    panel = each * (data * maps_in + itemsize * maps_out)
    # The matrix unit is done with a panel so soon that filters must come from the same cache.
    filters = points**2 * data * maps_in * maps_out if planes else 0
    if total < TASKS or panel + filters > MOST_STAGE_BYTES:
        blocks = -(-total // (SHARED_LANES // width))
        return Winograd(points, tile, taps, length, -(-total // blocks), blocks, True, planes, parts, chunk)
    panels = max(1, min(total // TASKS, MOST_PANELS, (UNIT_STAGE_BYTES if planes else STAGE_BYTES) // panel))
    return Winograd(points, tile, taps, length, panels, -(-total // panels), False, planes, parts, chunk)


def own_blocks(g: ConvGeometry, op: str, facts: Facts, itemsize: int, way: Winograd) -> list[Winograd]:
    """Where stages are shared, the same with tasks that transform filters themselves: as many maps and panels as caches
    hold."""
    maps, maps_out, _, _ = sides(g, op)
    if op == UPDATE and not way.planes and way.blocks <= way.shares:
        return _update_own(g, facts, itemsize, way)
    if not way.shared or way.planes or op == UPDATE or maps_out < FEWEST_OWN_TASKS * OWN_MAPS[-1]:
        return []
    total, each = -(-_computed_lanes(g, op, facts, way) // facts.width), way.points**2 * itemsize
    most = min(total, MOST_PANELS, max(1, DATA_BYTES // (each * facts.width * maps * way.parts)))
    for part in OWN_MAPS:
        panels = (OWN_BYTES // (each * part) - OWN_CHANNELS) // facts.width
        if -(-maps_out // part) >= TASKS and panels >= most:
            break
    blocks = -(-total // max(1, min(most, panels)))
    chunk = maps * way.parts
    return [replace(way, panels=-(-total // blocks), blocks=blocks, chunk=chunk, part=part, shares=1)]


def _update_own(g: ConvGeometry, facts: Facts, itemsize: int, way: Winograd) -> list[Winograd]:
    """The filters' gradient from one block of lanes, with tasks that take sums of some channels to the end."""
    channels, maps = g.C // g.groups * way.parts, g.K // g.groups
    if channels * maps * way.points**2 <= MOST_NEAR_SUMS:
        return []
    lanes = -(-_computed_lanes(g, UPDATE, facts, way) // facts.width)
    if itemsize * way.points**2 * lanes * facts.width * (channels + multiple(maps, facts.width)) > SUM_BYTES:
        return []
    panels = -(-maps // facts.width)
    part = next((n for n in OWN_SUMS if -(-channels // n) * panels >= TASKS), OWN_SUMS[-1])
    return [replace(way, panels=lanes, blocks=1, chunk=channels, part=part, shares=1)]


def adjoints(g: ConvGeometry, facts: Facts, itemsize: int, points: int, taps: int) -> list[Winograd]:
    """The images' gradient as the transpose of the forward pass: tasks have some channels and all tiles or, of few
    channels, all of them and some rows of tiles."""
    channels, tile = g.C // g.groups, points + 1 - taps
    parts, rows = len(_parts(g, 1, taps)) * len(_parts(g, 2, taps)), g.D * -(-g.P // tile)
    way = Winograd(points, tile, taps, _lanes(g.N, facts.lanes), rows, 1, True, 0, parts, g.K // g.groups, 0, True)
    found = []
    part = next((n for n in ADJOINT_CHANNELS if g.groups * -(-channels // n) >= TASKS), ADJOINT_CHANNELS[-1])
    data = itemsize * points**2 * _computed_lanes(g, FPROP, facts, way) * g.K
    if part < channels and data <= ADJOINT_DATA_BYTES:
        found.append(replace(way, part=part))
    if itemsize * points**2 * channels * parts * way.chunk <= ADJOINT_BYTES:
        each = max(1, rows * g.groups // TASKS)
        found.append(replace(way, panels=each, blocks=-(-rows // each), part=channels))
    return found


def _lanes(images: int, most: int) -> int:
    """The largest power of 2 that divides the number of images, at most a vector."""
    length = most
    while images % length:
        length //= 2
    return length


def _parts(g: ConvGeometry, axis: int, most: int) -> list[tuple[int, int]]:
    """The even parts of at most `most` taps that an axis of the filters is cut into, as the first tap of each, and how
    many it has: `cut` in C."""
    taps, stride = g.window[axis], g.strides[axis]
    longest = -(-taps // stride)
    count = -(-longest // most)
    each, longer = divmod(longest, count)
    found = []
    for before in range(count):
        for phase in range(min(taps, stride)):
            first = phase + (before * each + min(before, longer)) * stride
            found.append((first, min(each + (before < longer), -(-(taps - first) // stride))))
    return found


def _points(g: ConvGeometry, op: str, way: Winograd) -> float:
    """How many points a part of the filters has products of, on average: those at infinity are of whole parts alone."""
    most = way.out if op == UPDATE else way.taps
    share = 1.0
    for axis in (1, 2):
        parts = _parts(g, axis, most)
        share *= way.points - sum(taps < most for _, taps in parts) / len(parts)
    return share


def _chunk(maps: int, parts: int, planes: int) -> int:
    """Channels at a time, where filters are cut into parts: whole parts, or a share of one."""
    if parts == 1:
        return maps
    shares = -(-maps // MOST_CHUNK)
    chunk = -(-maps // shares) if shares > 1 else maps * min(parts, max(1, CHUNK // maps))
    return multiple(chunk, EDGE) if planes else chunk


def nanoseconds(g: ConvGeometry, op: str, facts: Facts, way: Winograd) -> float:
    """About how long one thread takes."""
    counted = _adjoint_cost(g, facts, way) if way.adjoint else _counted(g, op, facts, way)
    return counted * measured(op, facts, way)


def _counted(g: ConvGeometry, op: str, facts: Facts, way: Winograd) -> float:
    """The time by operations and moved numbers."""
    maps_in, maps_out, _, _ = sides(g, op)
    maps_in *= way.parts
    cells = way.points**2
    lanes = _computed_lanes(g, op, facts, way)
    met = _points(g, op, way) / cells
    if g.N >= facts.tile(way.planes).width:  # panels have the images of one tile
        met *= _met(g, op, way, 1) * _met(g, op, way, 2)
    if op == UPDATE and not facts.matrix_unit:
        each_error = UPDATE_ERROR_NS * cells + UPDATE_FETCH_NS * way.taps**2
        moved = lanes * (UPDATE_DATA_NS * cells * maps_in + each_error * maps_out)
        each_sum = 2 * lanes * met / UPDATE_PRODUCTS + UPDATE_SUM_NS[way.part > 0]
        return g.groups * (moved + maps_in * maps_out * cells * each_sum)
    # Data of few images are put together from several tiles; by multiply-adds results go back to memory as they are.
    kind = 0 if way.length == facts.lanes else 1 if way.length >= facts.lanes // 4 else 2
    slow = ((1, 1.2, 1.5) if way.planes else (0.7, 1.4, 4 if g.N >= facts.lanes else 1))[kind]
    if way.planes or way.shared or slow == 4:
        near = (SHARED_NEAR if way.planes else 1.0) if way.shared else NEAR
        data = near * slow * (1.2 if way.planes else 0.5 if op == UPDATE else 0.8)
        back = slow if way.planes or kind == 2 else 1.0
        sums = near * back * ((1.4 if op == UPDATE else 0.6) if way.planes else 0.5)
    else:
        data, sums = ALONE_NS[way.points][kind]
        sums *= FEW_REGISTERS[way.points] if facts.few_registers else 1
    moved = g.groups * lanes * cells * (data * maps_in + sums * maps_out)
    numbers = g.groups * maps_in * maps_out * cells
    if way.part:
        moved = lanes * cells * (OWN_DATA_NS * min(slow, 2) * maps_in + OWN_SUM_NS * maps_out)
        products = 2 * maps_in * maps_out * lanes * cells * met / OWN_PRODUCTS
        own, far = way.taps**2 * maps_in * maps_out, far_filters(g)
        filters = OWN_FILTER_NS[way.points] * own * way.blocks + far
        if op == FPROP and far:
            filters += AGAIN_NS * own * (way.blocks - 1)
        return g.groups * (moved + products + filters)
    each_filter = min(max(FILTER_NS, FILTER_RISE * numbers), FILTER_MOST_NS)
    filters = numbers * (0.5 if op == UPDATE else UNIT_FILTERS[way.points] if way.planes else each_filter)
    if way.planes:
        maps_in, maps_out = (multiple(maps, EDGE) for maps in (maps_in, maps_out))
    rate = UNIT_PRODUCTS if way.planes else OWN_PRODUCTS if way.shared else PRODUCTS
    products = 2 * g.groups * maps_in * maps_out * lanes * cells * met / rate
    if not way.planes and op != UPDATE:
        products = max(products, FILTER_READ_NS * numbers)
    return products + moved + filters


def _adjoint_cost(g: ConvGeometry, facts: Facts, way: Winograd) -> float:
    """The time of one of `adjoints` on one thread."""
    maps, channels, cells = g.K // g.groups, g.C // g.groups, way.points**2
    line = -(-g.Q // way.out) * g.N  # lanes of a row of tiles
    lanes = way.blocks * multiple(way.panels * line, facts.lanes)
    rows = -(-channels // way.part) * multiple(way.part * way.parts, facts.rows)
    sums = way.panels * way.blocks * multiple(line, facts.lanes) * channels * way.parts
    products = 2 * rows * maps * lanes * _points(g, FPROP, way) / ADJOINT_PRODUCTS
    moved = cells * (ADJOINT_ERROR_NS * lanes * maps + ADJOINT_SUM_NS * sums)
    filters = OWN_FILTER_NS[way.points] * way.taps**2 * maps * channels * way.parts * way.blocks
    filters += 2 * far_filters(g)
    return g.groups * (products + moved + filters) + ADJOINT_JOIN_NS * math.prod(g.dimI)


def _met(g: ConvGeometry, op: str, way: Winograd, axis: int) -> float:
    """Of the tiles along an axis, for each part of the filters, the share whose data are not all padding."""
    if op == UPDATE or way.parts == 1:
        return 1.0
    _, _, image, out = sides(g, op)
    taps, stride, (pad, _) = g.window[axis], g.strides[axis], g.pads[axis]
    pad = taps - 1 - pad if op == BPROP else pad
    reach = way.points * stride - 1
    firsts = np.array([first - pad + reach for first, _ in _parts(g, axis, way.taps)])
    return share_inside(firsts, -(-out[axis] // way.out), way.out * stride, image[axis] + reach)


def _computed_lanes(g: ConvGeometry, op: str, facts: Facts, way: Winograd) -> int:
    """Lanes that are computed: the matrix unit fills up panels, multiply-adds vectors or, of the filters' gradient,
    nothing."""
    if way.planes:
        return way.blocks * way.panels * EDGE
    _, _, _, out = sides(g, op)
    step = way.taps if op == UPDATE else way.out
    lanes = out[0] * -(-out[1] // step) * -(-out[2] // step) * g.N
    return lanes if op == UPDATE else multiple(lanes, facts.lanes)


def far_filters(g: ConvGeometry) -> float:
    """What it takes more to read filters that no cache holds."""
    numbers = math.prod(g.dimF)
    return FAR_FILTER_NS * numbers if numbers > FAR_FILTERS else 0.0
