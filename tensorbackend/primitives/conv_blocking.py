# SPDX-License-Identifier: Apache-2.0
"""How a convolution is computed on the CPU: by which algorithm, in which blocks.

A cost model on the geometry decides, never the number of threads or a clock, so that results repeat bit for bit. The
loops are those of `kernels/c/conv.c` and `kernels/c/conv_winograd.c`, whose names the fields here have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tensorbackend.primitives.geometry import ConvGeometry

__all__ = ["BPROP", "FPROP", "UPDATE", "Direct", "Facts", "Winograd", "choices", "nanoseconds", "sides"]

FPROP, BPROP, UPDATE = "conv", "conv_bprop", "conv_update"

COPY_BYTES = 768 << 10
"""Bytes of a task's copy of the input: a part of the second-level cache."""
UPDATE_BYTES = 512 << 10
UPDATE_PLACES = 1024
"""Places whose products a tile of the filters' gradient adds up before it goes to memory."""
TASKS = 8
"""Tasks that a pass is cut into at least, where its size allows."""
STAGE_BYTES = 1_500_000
"""Bytes of a block of lanes that one task takes through all stages of Winograd's algorithm."""
SHARED_PANELS = 8
"""Panels of a block whose stages are shared; with fewer in all, tasks of their own would be too few."""
SUM_BYTES = 16 << 20
"""Bytes of the transformed inputs and errors of a block, for the filters' gradient."""
MOST_PANELS = 64


@dataclass(frozen=True)
class Facts:
    """What the compiled kernels have: `lanes` of a vector, `rows` and `width` of a tile."""

    lanes: int
    rows: int
    width: int


@dataclass(frozen=True)
class Direct:
    """Blocks of `kernels/c/conv.c`: outputs of a task, channels at a time, parts of the maps (segments of places)."""

    rows: int
    columns: int
    channels: int
    flat: bool
    splits: int
    part_maps: int
    tasks: int


@dataclass(frozen=True)
class Winograd:
    """Blocks of `kernels/c/conv_winograd.c`. `points`, `out` and `taps` of its tiles; `length` lanes of one tile."""

    points: int
    out: int
    taps: int
    length: int
    panels: int
    blocks: int
    shared: bool


def sides(g: ConvGeometry, op: str) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Maps of a group in and out, lengths of an image in and out, as the kernels see a pass."""
    c, k = g.C // g.groups, g.K // g.groups
    return (k, c, g.result, g.image) if op == BPROP else (c, k, g.image, g.result)


def _reach(g: ConvGeometry, axis: int, backward: bool) -> int:
    """How far the inputs of an output's taps lie apart, in places of a phase."""
    stride, dilation, (pad, _) = g.strides[axis], g.dilations[axis], g.pads[axis]
    away = [tap * dilation - pad for tap in range(g.window[axis])]
    if not backward:
        shifts = [n // stride for n in away]
    else:
        shifts = [(phase - n) // stride for n in away for phase in range(stride) if (phase - n) % stride == 0]
    return max(shifts, default=0) - min(shifts, default=0)


def _blocks(length: int, phases: int, each: int) -> int:
    lengths = [len(range(phase, length, phases)) for phase in range(phases)]
    return sum(-(-n // each) for n in lengths)


def _direct(g: ConvGeometry, op: str, facts: Facts, itemsize: int) -> Direct:
    backward = op == BPROP
    maps_in, maps_out, _, out = sides(g, op)
    out_step = g.strides if backward else (1, 1, 1)
    apart = 1 if backward else g.strides[1] * g.strides[2]
    tall, broad = (_reach(g, axis, backward) for axis in (1, 2))
    rows, columns = (-(-out[axis] // out_step[axis]) for axis in (1, 2))

    def copied(rows: int, columns: int, channels: int) -> int:
        return channels * g.T * apart * (rows + tall) * (columns + broad) * g.N * itemsize

    def vectors(places: int) -> int:
        return -(-places // facts.lanes)

    channels = maps_in
    flat = vectors(((rows - 1) * (columns + broad) + columns) * g.N) < rows * vectors(columns * g.N)
    if flat:
        while copied(rows, columns, channels) > COPY_BYTES and rows > 4:
            rows = -(-rows // 2)
        while copied(rows, columns, channels) > COPY_BYTES and channels > 32:
            channels = -(-channels // 2)
    else:
        rows = min(rows, 4)
        if copied(rows, columns, channels) > COPY_BYTES:
            rows = min(rows, 2)
        while copied(rows, columns, channels) > COPY_BYTES and columns * g.N >= 16 * facts.width and columns > 1:
            columns = -(-columns // 2)
        if copied(rows, columns, channels) > COPY_BYTES:
            rows = 1
        while copied(rows, columns, channels) > 2 * COPY_BYTES and channels > 64:
            channels = -(-channels // 2)
    pieces = _blocks(out[1], out_step[1], rows) * _blocks(out[2], out_step[2], columns)
    items = g.groups * out[0] * pieces
    tiles, splits = -(-maps_out // facts.rows), 1
    while items * splits < TASKS and splits * 2 <= tiles:
        splits *= 2
    part_maps = -(-tiles // splits) * facts.rows
    splits = -(-maps_out // part_maps)
    return Direct(rows, columns, channels, flat, splits, part_maps, items * splits)


def _direct_update(g: ConvGeometry, itemsize: int) -> Direct:
    rows, columns, channels = 1, g.Q, g.C // g.groups
    while columns * g.N > 2 * UPDATE_PLACES and columns > 1:
        columns = -(-columns // 2)
    if columns == g.Q:
        rows = max(1, min(g.P, UPDATE_PLACES // (g.Q * g.N)))
    apart = g.T * g.strides[1] * g.strides[2]
    places = (rows + _reach(g, 1, False)) * (columns + _reach(g, 2, False)) * g.N
    while channels * apart * places * itemsize > UPDATE_BYTES and channels > 8:
        channels = -(-channels // 2)
    parts = -(-(g.C // g.groups) // channels) * g.groups
    items = g.M * -(-g.P // rows) * -(-g.Q // columns)
    splits = 1
    while splits * parts < TASKS and splits * 2 <= items:
        splits *= 2
    return Direct(rows, columns, channels, False, splits, 0, splits * parts)


def _lanes(images: int, most: int) -> int:
    """The largest power of 2 that divides the number of images, at most a vector."""
    length = most
    while images % length:
        length //= 2
    return length


def _winograd(g: ConvGeometry, op: str, facts: Facts, itemsize: int, points: int) -> Winograd:
    maps_in, maps_out, _, out = sides(g, op)
    taps = g.S
    tile = points + 1 - taps
    lanes = out[0] * -(-out[1] // tile) * -(-out[2] // tile) * g.N
    total = -(-lanes // facts.width)
    length = _lanes(g.N, facts.lanes)
    each = points**2 * facts.width * itemsize
    if op == UPDATE:
        padded = -(-maps_out // facts.width) * facts.width
        panels = max(1, min(MOST_PANELS, total, SUM_BYTES // (each * (maps_in + padded))))
        blocks = -(-total // panels)
        return Winograd(points, taps, tile, length, -(-total // blocks), blocks, True)
    shared = total < TASKS
    most = SHARED_PANELS if shared else STAGE_BYTES // (each * (maps_in + maps_out))
    panels = max(1, min(total if shared else total // TASKS, most))
    return Winograd(points, tile, taps, length, panels, -(-total // panels), shared)


def _square(g: ConvGeometry) -> bool:
    """Whether filters are squares of 3 or 5 along height and width, at stride 1, and paddings those that tiles take."""
    plain = g.T == 1 and g.D == g.M and g.pads[0] == (0, 0) and g.strides == g.dilations == (1, 1, 1)
    return plain and g.R == g.S and g.S in (3, 5)


def choices(g: ConvGeometry, op: str, facts: Facts, itemsize: int, winograd: int) -> Iterator[Direct | Winograd]:
    """The ways to compute a pass, the one that should be fastest first; the last needs least memory.

    `itemsize` is that of the type in which products add up. `winograd`: 0 never, 2 tiles of 2 x 2 outputs at most, 4
    tiles of 4 x 4; it is for sums in float32 only.
    """
    found: list[Direct | Winograd] = []
    if winograd and _square(g) and itemsize == 4:
        points = (4, 6) if winograd >= 4 else (4,)
        found = [_winograd(g, op, facts, itemsize, p) for p in points if p + 1 - g.S > 1]
    direct = _direct_update(g, itemsize) if op == UPDATE else _direct(g, op, facts, itemsize)
    found = sorted([*found, direct], key=lambda way: nanoseconds(g, op, facts, way))
    yield from found[: found.index(direct) + 1]


def nanoseconds(g: ConvGeometry, op: str, facts: Facts, way: Direct | Winograd) -> float:
    """About how long one thread takes."""
    maps_in, maps_out, _, out = sides(g, op)
    if isinstance(way, Direct):
        # Few maps leave rows of a tile empty, few places lanes.
        used = maps_out / (-(-maps_out // facts.rows) * facts.rows) if op != UPDATE else 1.0
        filters = math.prod(g.dimF) * 0.5
        return g.flops / 110 / max(used, 0.25) + filters
    cells = way.points**2
    lanes = way.blocks * way.panels * facts.width
    slow = 1 if way.length == facts.lanes else 2 if way.length >= facts.lanes // 4 else 4
    products = 2 * g.groups * maps_in * maps_out * lanes * cells / 130
    moved = g.groups * lanes * cells * slow * (0.8 * maps_in + (1.4 if op == UPDATE else 0.6) * maps_out)
    filters = g.groups * maps_in * maps_out * cells * 1.5
    return products + moved + filters
