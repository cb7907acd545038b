# SPDX-License-Identifier: Apache-2.0
"""How a convolution is computed on the CPU: by which algorithm, in which blocks.

A cost model on the geometry puts the ways in order, never the number of threads, so that results repeat bit for bit.
What a way is stands in `conv_ways.py`, which of Winograd's ways there are in `winograd_blocking.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from tensorbackend.primitives import few_blocking, winograd_blocking
from tensorbackend.primitives.conv_measured import measured
from tensorbackend.primitives.conv_rearranged import taken_apart, unrolled
from tensorbackend.primitives.conv_ways import (
    BPROP,
    FPROP,
    TASKS,
    UNIT_PLANES,
    UPDATE,
    Depthwise,
    DepthwiseFew,
    Direct,
    Facts,
    Few,
    Parted,
    Unrolled,
    Way,
    Winograd,
    met_taps,
    outputs_apart,
    sides,
)
from tensorbackend.primitives.geometry import ConvGeometry
from tensorbackend.primitives.matrix_unit import EDGE, HALF, PLANE_BYTES, multiple

__all__ = ["BPROP", "FPROP", "UPDATE", "choices", "few_channels", "has_gaps", "nanoseconds", "sides"]

COPY_BYTES, FEW_COPY_BYTES = 768 << 10, 400 << 10
"""Bytes of a task's copy of the input and of its sums: a part of the second-level cache, and of that of processors with
16 registers."""
FEWEST_CHANNELS, FEWEST_TILES = 8, 4
"""Channels of a block, and tiles of a row where it is cut into more than 16, at least."""
STEP_NS, SINGLE_NS = 1.3, 0.7
"""Of a tap of a channel: for each vector of places and a tile's maps, and more for a tile that is not full."""
TILE_NS, CHUNK_NS, PUT_NS, COPY_NS, ROW_NS = 100.0, 40.0, 20.0, 0.2, 25.0
"""Of a tile; of a tile's sums that are put aside and taken up again, and that are no part of a row of the result as
they are; of an element that is copied, and of a row."""
SMALL_STEP_NS, SMALL_TILE_NS, SMALL_CHUNK_NS = 0.65, 15.0, 15.0
"""The same of a step, of a tile and of its sums put aside with 16 registers."""
UNIT_BYTES, UNIT_STEP_NS, UNIT_COPY_NS, UNIT_HALF = 1400 << 10, 4.5, 0.6, 0.6
"""The same on the matrix unit: with the filters of a tile of maps; of a tap of a channel for a tile; of an element that
is copied; of half a tile, beside a whole one."""
UNIT_PAIRS = 1.5
"""How much longer pairs of taps take there than their products alone: their channels are copied twice."""
UNIT_BLOCK_NS, UNIT_SUMS_NS, JOIN_NS = 200.0, 250.0, 0.5
"""Of a block of products of the filters' gradient on the matrix unit; of a tile's sums, taken up and put aside; of a
sum of a segment."""
FEW_UNIT = 1.4
"""How much longer the unit takes where it meets gathered inputs only now and then."""
GATHER_NS, TURN_NS, PLACE_NS, RUN_NS = 100.0, 0.35, 0.45, 4.0
"""For it too: of a block of inputs that is gathered; of an error that is turned; of a place that is copied, and of a
run of them."""
GATHERED = 16
"""Blocks of inputs at a time, as in `conv_update_amx.h`."""
UPDATE_FLOPS, ERROR_NS, SUM_NS, SEGMENT_NS = 105, 0.4, 0.14, 0.45
"""The filters' gradient by multiply-adds: operations a nanosecond; nanoseconds of an error that is turned, of a sum
that a block of places adds to, and of a sum of a segment that is read or written once more."""
DOTS, DOT_SUM_NS, DOT_REST_NS = 115, 2.5, 40.0
"""Where sums run over lanes of places: operations a nanosecond; nanoseconds of a sum that is put aside and taken up
again, and of a tile's places that are no whole vector."""
DOT_INPUTS, DOT_MAPS, DOT_PLACES = 9, 3, 4096
"""Inputs and maps of a tile, and places of a block."""
UPDATE_BYTES = 1400 << 10
"""Bytes of a task's copy of the input for the filters' gradient, which is read in long runs."""
UPDATE_ROWS = 8
"""Channels of a tile there, with fewer of which tiles leave out no columns."""
UPDATE_PLACES = 1024
"""Places whose products a tile of the filters' gradient adds up before it goes to memory."""
FEWEST_PLACES, WORTH_TASKS = 96, 1 << 24
"""Places of a block at least, where blocks are cut to make enough tasks; and operations from which on they are."""
FEWEST_UNIT_MAPS = 16
"""Maps of a group, and for the filters' gradient inputs of an output, from which on it is worth while to fill them up
for the matrix unit."""
DIRECT_PRODUCTS, DIRECT_MET_PRODUCTS = 110, 105
"""Operations of the definition a nanosecond by multiply-adds: all of them, and those that are not left out."""
STRIDED_COPY = 3
"""How much longer a copy of the input takes with strides: places of each phase are put together."""
STRIDED_BACK, APART_NS = 1.05, 1.0
"""How much longer products of the gradient by the images take with strides; of a result that is put between
others."""
UNIT_DIRECT, UNIT_SHARED = 185, 230
"""Operations of all lanes of `conv.c` a nanosecond on the matrix unit; and where copies are shared."""
SHARED_FILTER_NS = 0.6
"""Of a number of the filters that a task copies itself."""
DEPTHWISE, DEPTHWISE_MAP_NS = 60, 150.0
"""Operations of `conv_depthwise.c` a nanosecond; nanoseconds of a map."""
PART_NS, UNROLL_NS = 0.5, (0.2, 0.4)
"""Nanoseconds of a number that `space_to_batch.c` takes apart or puts together, that `unroll_depth.c` copies, and that
it adds up."""
DEPTHWISE_STRIDED_NS = 0.5
"""Of an element there that is copied apart from its neighbours."""
LANES_BYTES, LANES_TASK_NS, TURNED_NS, TAP_NS = 512 << 10, 200.0, (0.3, 0.35), 0.4
"""Of `conv_depthwise_few.c`: bytes of what a task has of its maps at most; nanoseconds of a task, of an element that is
turned, there or back, and for the filters' gradient, and of a tap at a place of 64 bytes of maps."""
DEPTHWISE_TABLE = 1024
"""Taps of filters, and phases of results, at most: tables of them are on the stack."""


def _phases(g: ConvGeometry, op: str) -> int:
    """Phases of an image that a copy has: places that are equal modulo the strides, of those that a tap reads."""
    return 1 if op == BPROP else math.prod(s for s, n in zip(g.strides[1:], g.window[1:]) if n > 1)


def has_gaps(g: ConvGeometry) -> bool:
    """Whether the gradient by the images has phases that no tap serves: zeros, whatever the errors are."""
    axes = zip(g.window[1:], g.strides[1:], g.dilations[1:])
    return any(len({n * dilation % stride for n in range(taps)}) < stride for taps, stride, dilation in axes)


def _reach(g: ConvGeometry, axis: int) -> int:
    """How far the inputs of an output's taps lie apart, in places of a phase: the same in all passes."""
    stride, dilation, (pad, _) = g.strides[axis], g.dilations[axis], g.pads[axis]
    return ((g.window[axis] - 1) * dilation - pad) // stride - (-pad // stride)


def _pitch(places: int, line: int) -> int:
    """Places from a row of a copy for the matrix unit to the next, filled up to cache lines where that is little."""
    filled = -(-places // line) * line
    return filled if 4 * filled <= 5 * places else places


def _blocks(length: int, phases: int, each: int) -> int:
    """Into how many blocks of `each` places the phases of an axis are cut."""
    short, longer = divmod(length, phases)
    return longer * -(-(short + 1) // each) + (phases - longer) * -(-short // each)


def _direct(g: ConvGeometry, op: str, facts: Facts, itemsize: int, planes: int = 0) -> Direct:
    """Of all blocks the ones that a cost model finds cheapest."""
    facts = facts.tile(planes)
    maps_in, _, _, out = sides(g, op)
    steps = outputs_apart(g, op)
    high, wide = (-(-out[axis] // steps[axis]) for axis in (1, 2))
    rows = [n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n < high] + [high]
    columns = sorted({-(-wide // parts) for parts in _column_parts(wide * g.N // (FEWEST_TILES * facts.width))})
    channels = _halves(maps_in, EDGE if planes else FEWEST_CHANNELS)
    blocks = itertools.product(rows, columns, channels)
    found = (_DirectCost(g, op, facts, itemsize, planes, *block) for block in blocks)
    return min((cost.best() for cost in found), key=lambda pair: pair[0])[1]


def _column_parts(most: int) -> list[int]:
    """Into how many parts columns are cut: up to 16, and further up to `most`."""
    parts = [1, 2, 3, 4, 6, 8, 12, 16]
    while 2 * parts[-2] <= most:
        parts.append(2 * parts[-2])
    return parts


def _halves(whole: int, least: int) -> list[int]:
    """A length cut into 1, 2, 4, ... equal parts that are multiples of `least`."""
    found, parts = [whole], 2
    while whole > least * parts // 2:
        found.append(-(-whole // (parts * least)) * least)
        parts *= 2
    return found


class _DirectCost:
    """What a pass costs with `rows` x `columns` outputs of a phase a task and `channels` at a time."""

    def __init__(self, g: ConvGeometry, op: str, facts: Facts, itemsize: int, planes: int, rows: int, columns: int,
                 channels: int) -> None:  # fmt: skip
        self.facts, self.rows, self.columns, self.channels, self.planes = facts, rows, columns, channels, planes
        self.itemsize = PLANE_BYTES * planes or itemsize
        maps_in, maps_out, _, out = sides(g, op)
        tall, broad = (_reach(g, axis) for axis in (1, 2))
        apart = _phases(g, op)
        steps = outputs_apart(g, op)
        blocks = _blocks(out[1], steps[1], rows) * _blocks(out[2], steps[2], columns)
        self.items = g.groups * out[0] * blocks
        self.tiles, self.chunks = -(-maps_out // facts.rows), -(-maps_in // channels)
        self.pitch, self.places = _pitch((columns + broad) * g.N, EDGE // 2 if planes else 1), columns * g.N
        self.copied = g.T * apart * (rows + tall) * self.pitch
        self.rows_copied = g.T * apart * (rows + tall)
        self.added = _unit_channels(g, maps_in) if planes else maps_in
        self.maps_in, self.held = (multiple(n, EDGE) if planes else n for n in (maps_in, channels))
        self.filled = _unit_tiles(maps_out) / self.tiles if planes else 1.0
        self.taps = g.T * -(-g.R // steps[1]) * -(-g.S // steps[2])
        self.phased = steps[2] > 1
        whole = columns * steps[2] >= out[2]
        self.alike = steps[2] * (steps[1] if whole else 1) if self.chunks == 1 else 1
        """Tasks of neighbouring phases, whose copy is the same: it is made once where it has all channels."""

    def best(self) -> tuple[float, Direct]:
        """The cost of the better way to run tiles over rows, and its blocks."""
        return min((self._with(flat) for flat in (False, True)), key=lambda pair: pair[0])

    def _with(self, flat: bool) -> tuple[float, Direct]:
        part = -(-self.tiles // _splits(self.items, self.tiles))
        splits = -(-self.tiles // part)
        tasks = self.items * splits
        places = ((self.rows - 1) * self.pitch if flat else 0) + self.places
        segments = 1 if flat else self.rows
        vectors, tiles = -(-places // self.facts.lanes) * segments, -(-places // self.facts.width) * segments
        short = segments if places % self.facts.width else 0
        held = self.copied * self.held + (part * self.facts.rows * places if self.chunks > 1 else 0)
        # The matrix unit uses a tile's filters so fast that they must stay beside the copy.
        filters = self.taps * self.held * EDGE if self.planes else 0
        over = max(0.0, (held + filters) * self.itemsize / self._most_held() - 1)
        small = self.facts.few_registers
        step_ns, tile_ns = (SMALL_STEP_NS, SMALL_TILE_NS) if small else (STEP_NS, TILE_NS)
        chunk_ns = SMALL_CHUNK_NS if small else CHUNK_NS
        steps = tiles * UNIT_STEP_NS if self.planes else (vectors + short * SINGLE_NS / STEP_NS) * step_ns
        each = part * self.filled * steps * self.added * self.taps * (1 + min(over, 1))
        put = PUT_NS if not self.planes and (flat or self.chunks > 1 or self.phased) else 0.0
        each += part * tiles * (tile_ns + (self.chunks - 1) * chunk_ns + put)
        copy = self.copied * (UNIT_COPY_NS if self.planes else COPY_NS) + self.rows_copied * ROW_NS
        each += self.maps_in * copy / self.alike
        way = Direct(self.rows, self.columns, self.channels, flat, splits, part * self.facts.rows, tasks, self.planes)
        return -(-tasks // TASKS) * TASKS * each, way

    def _most_held(self) -> int:
        """Bytes of what a task holds in the second-level cache."""
        return UNIT_BYTES if self.planes else FEW_COPY_BYTES if self.facts.few_registers else COPY_BYTES


def _unit_tiles(maps: int) -> float:
    """Tiles that maps of results are on the matrix unit: half a tile takes more than half the time."""
    return maps // EDGE + (0 if not maps % EDGE else UNIT_HALF if maps % EDGE <= HALF else 1)


def _unit_channels(g: ConvGeometry, channels: int) -> float:
    """Channels that are added up there, with those that fill up a block: taps go in pairs where few are left."""
    left = channels % EDGE
    pairs = 0 < left <= HALF and g.strides[2] == 1
    return channels - left + UNIT_PAIRS * EDGE * -(-g.S // 2) / g.S if pairs else multiple(channels, EDGE)


def _shared(g: ConvGeometry, op: str) -> Direct:
    """Blocks on the matrix unit for few places: a task takes a tile of maps and all places, where that makes enough."""
    maps_in, maps_out, _, out = sides(g, op)
    steps = outputs_apart(g, op)
    high, wide = (-(-out[axis] // steps[axis]) for axis in (1, 2))
    tiles, items = -(-maps_out // EDGE), g.groups * out[0] * steps[1] * steps[2]
    rows = -(-high // min(-(-TASKS // (tiles * items)), high))
    tasks = tiles * g.groups * out[0] * _blocks(out[1], steps[1], rows) * _blocks(out[2], steps[2], wide)
    over, by_rows = (_tile_lanes(g, rows, wide, flat, EDGE, EDGE // 2) for flat in (True, False))
    return Direct(rows, wide, EDGE, over < by_rows, tiles, EDGE, tasks, UNIT_PLANES, True)


def _tile_lanes(g: ConvGeometry, rows: int, columns: int, flat: bool, edge: int, line: int = 1) -> int:
    """Lanes of tiles of `edge` over so many rows of so many columns: `flat` tiles go on from row to row, which a copy
    fills up to lines of `line` places."""
    if not flat:
        return rows * multiple(columns * g.N, edge)
    pitch = _pitch((columns + _reach(g, 2)) * g.N, line)
    return multiple((rows - 1) * pitch + columns * g.N, edge)


def _shared_cost(g: ConvGeometry, op: str, way: Direct) -> float:
    """The time of `_shared` on one thread."""
    maps_in, maps_out, _, out = sides(g, op)
    steps = outputs_apart(g, op)
    blocks = _blocks(out[1], steps[1], way.rows) * _blocks(out[2], steps[2], way.columns)
    lanes = _tile_lanes(g, way.rows, way.columns, way.flat, EDGE, EDGE // 2)
    tall, broad = (_reach(g, axis) for axis in (1, 2))
    copy = g.T * _phases(g, op) * (way.rows + tall) * _pitch((way.columns + broad) * g.N, HALF)
    over = max(0.0, copy * EDGE * UNIT_PLANES * PLANE_BYTES / UNIT_BYTES - 1)
    cells = g.T * g.R * g.S / (steps[1] * steps[2])
    met = 1.0  # taps that meet no errors are left out
    if op == BPROP and not way.flat:
        met = min(1.0, math.prod(g.result) * math.prod(steps) / math.prod(g.image))
    sums = _unit_channels(g, maps_in) * EDGE * _unit_tiles(maps_out)
    products = 2 * g.groups * sums * cells * met * out[0] * blocks * lanes / UNIT_SHARED * (1 + min(over / 4, 1))
    maps_in, maps_out = multiple(maps_in, HALF), multiple(maps_out, HALF)
    copied = UNIT_COPY_NS * g.groups * maps_in * out[0] * blocks * copy
    return products + copied + SHARED_FILTER_NS * g.groups * maps_in * maps_out * cells * out[0] * blocks


def _is_depthwise(g: ConvGeometry) -> bool:
    """Whether each map meets filters of its own, and maps are enough tasks."""
    largest = max(math.prod(g.window), math.prod(g.strides))
    return g.C == g.K == g.groups >= TASKS and largest <= DEPTHWISE_TABLE


def _depthwise(g: ConvGeometry, op: str, itemsize: int) -> Depthwise:
    """As many rows as a copy of their input leaves in the cache."""
    _, _, _, out = sides(g, op)
    steps = outputs_apart(g, op)
    high, wide = (-(-out[axis] // steps[axis]) for axis in (1, 2))
    row = g.T * _phases(g, op) * (wide + _reach(g, 2)) * g.N * itemsize
    rows = max(1, min(high, COPY_BYTES // row - _reach(g, 1)))
    blocks = out[0] * -(-high // rows)
    return Depthwise(rows, wide, g.C * (1 if op == UPDATE else blocks))


def _depthwise_few(g: ConvGeometry, op: str, facts: Facts, itemsize: int) -> list[DepthwiseFew]:
    """With maps in the lanes, where a vector of them and its results stay in the cache."""
    read, written = (g.result, g.image) if op == BPROP else (g.image, g.result)
    reaches = [-(-n // step) + _reach(g, axis) for axis, (n, step) in enumerate(zip(written, outputs_apart(g, op)))]
    copied = math.prod(reaches if op == BPROP else (n * s for n, s in zip(reaches, g.strides)))
    if g.N * (copied + math.prod(read) + math.prod(written)) * facts.lanes * itemsize > LANES_BYTES:
        return []
    return [DepthwiseFew(-(-g.C // facts.lanes))]


def _depthwise_few_cost(g: ConvGeometry, op: str, facts: Facts, way: DepthwiseFew) -> float:
    """The time of `_depthwise_few` on one thread."""
    images, errors = (g.N * math.prod(lengths) for lengths in (g.image, g.result))
    turned = (images + errors) * facts.lanes * TURNED_NS[op == UPDATE]
    return way.tasks * (LANES_TASK_NS + turned + errors * math.prod(g.window) * TAP_NS * facts.lanes / 16)


def _splits(parts: int, items: int) -> int:
    """Into how many segments, a power of 2, each of so many parts is cut to make enough tasks of its items."""
    splits = 1
    while splits * parts < TASKS and splits * 2 <= items:
        splits *= 2
    return splits


def few_channels(g: ConvGeometry) -> bool:
    """Whether tiles of the filters' gradient on the matrix unit have inputs of several channels: see
    `conv_update_amx.h`."""
    return g.C // g.groups < HALF


def _direct_update(g: ConvGeometry, facts: Facts, itemsize: int) -> Direct:
    """Blocks of the filters' gradient by multiply-adds, in the way that should be faster."""
    ways = [_turned_update(g, itemsize), _dots_update(g, facts, itemsize)]
    return min(ways, key=lambda way: nanoseconds(g, UPDATE, facts, way))


def _turned_update(g: ConvGeometry, itemsize: int) -> Direct:
    """As many channels as the cache holds, since errors are turned for each block."""
    rows, columns = _update_places(g, 2 * UPDATE_PLACES, UPDATE_PLACES)
    rows, columns = _enough_blocks(g, FEWEST_CHANNELS, rows, columns)
    copied = itemsize * _update_copy(g, rows, columns)
    return _update_blocks(g, rows, columns, FEWEST_CHANNELS, lambda channels: channels * copied)


def _dots_update(g: ConvGeometry, facts: Facts, itemsize: int) -> Direct:
    """Rows in blocks for all tasks, where that leaves them long; as many channels as leave their sums in the cache."""
    maps = g.K // g.groups
    places = DOT_PLACES if maps > DOT_MAPS else 16 * UPDATE_PLACES
    rows, columns = _update_places(g, places, places)
    least, _ = _update_places(g, places, UPDATE_PLACES)
    rows = max(min(least, rows), -(-g.P // multiple(-(-g.P // rows), TASKS)))
    rows, columns = _enough_blocks(g, 1, rows, columns)
    each = itemsize * (_update_copy(g, rows, columns) + facts.lanes * maps * g.T * g.R * g.S)
    return replace(_update_blocks(g, rows, columns, 1, lambda channels: channels * each), dots=True)


def _update_places(g: ConvGeometry, most: int, whole: int) -> tuple[int, int]:
    """Rows and columns of a block: `most` places of a row, or rows with about `whole`."""
    rows, columns = 1, g.Q
    while columns * g.N > most and columns > 1:
        columns = -(-columns // 2)
    if columns == g.Q:
        rows = max(1, min(g.P, whole // (g.Q * g.N)))
    return rows, columns


def _enough_blocks(g: ConvGeometry, least: int, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a block, fewer where blocks and parts of `least` channels would make too few tasks of many
    operations."""
    if g.flops < WORTH_TASKS:
        return rows, columns
    parts = g.M * g.groups * -(-(g.C // g.groups) // least)
    blocks = max(1, -(-min(TASKS, math.prod(g.dimO[1:]) // FEWEST_PLACES) // parts))
    rows = min(rows, -(-g.P // blocks))
    return rows, min(columns, -(-g.Q // -(-blocks // -(-g.P // rows))))


def _update_copy(g: ConvGeometry, rows: int, columns: int) -> int:
    """Places of a channel's copy."""
    return g.T * _phases(g, UPDATE) * (rows + _reach(g, 1)) * (columns + _reach(g, 2)) * g.N


def _update_blocks(g: ConvGeometry, rows: int, columns: int, least: int, held: Callable[[int], int]) -> Direct:
    """Such blocks of places with so many channels, `least` or more, that the cache holds them and tasks are enough."""
    items = g.M * -(-g.P // rows) * -(-g.Q // columns)
    for channels in _halves(g.C // g.groups, least):
        parts = -(-(g.C // g.groups) // channels) * g.groups
        splits = _splits(parts, items)
        if held(channels) <= UPDATE_BYTES and splits * parts >= TASKS:
            break
    return Direct(rows, columns, channels, False, splits, g.K // g.groups, splits * parts)


def _turned_cost(g: ConvGeometry, facts: Facts, way: Direct) -> float:
    """The time of `_turned_update` on one thread."""
    channels, maps = g.C // g.groups, g.K // g.groups
    met = math.prod(met_taps(g, axis) for axis in ((0, 1, 2) if way.channels >= UPDATE_ROWS else (0, 1)))
    products = g.flops * met * multiple(maps, facts.lanes) / maps / UPDATE_FLOPS
    blocks = g.M * -(-g.P // way.rows) * -(-g.Q // way.columns)
    joined = way.splits == g.groups == 1 and not maps % facts.lanes
    sums = math.prod(g.dimF) * (blocks * SUM_NS + (0 if joined else way.splits + 1) * SEGMENT_NS)
    return products + math.prod(g.dimO) * -(-channels // way.channels) * ERROR_NS + sums


def _dots_cost(g: ConvGeometry, facts: Facts, way: Direct) -> float:
    """The time of `_dots_update` on one thread."""
    lanes, maps = facts.lanes, g.K // g.groups
    blocks = g.M * -(-g.P // way.rows) * -(-g.Q // way.columns)
    runs, length = g.M * g.P * -(-g.Q // way.columns), way.columns * g.N
    inputs = g.C * multiple(g.T * g.R * g.S * way.channels, DOT_INPUTS) / way.channels
    products = 2 * lanes * runs * (length // lanes) * inputs * maps / DOTS
    if length % lanes:
        products += runs * inputs / DOT_INPUTS * -(-maps // DOT_MAPS) * DOT_REST_NS
    copied = g.C * _update_copy(g, way.rows, way.columns)
    return products + blocks * (inputs * maps * DOT_SUM_NS + copied * COPY_NS)


def _unit_update(g: ConvGeometry) -> tuple[float, Direct]:
    """The time and the blocks of the filters' gradient on the matrix unit that a cost model finds cheapest."""
    rows = [n for n in (1, 2, 3, 4, 6, 8, 12, 16) if n < g.P] + [g.P]
    columns = sorted({-(-g.Q // parts) for parts in (1, 2, 3, 4, 8, 12)})
    channels, maps = _halves(g.C // g.groups, EDGE), _halves(g.K // g.groups, EDGE)
    blocks = itertools.product(rows, columns, channels, maps, (False, True))
    return min((_unit_update_cost(g, *block) for block in blocks), key=lambda pair: pair[0])


def _unit_update_cost(
    g: ConvGeometry, rows: int, columns: int, channels: int, maps: int, flat: bool
) -> tuple[float, Direct]:
    maps_in, maps_out, cells = g.C // g.groups, g.K // g.groups, g.T * g.R * g.S
    tall, broad = (_reach(g, axis) for axis in (1, 2))
    pitch, apart = _pitch((columns + broad) * g.N, EDGE), g.T * _phases(g, UPDATE)
    places = columns * g.N
    runs, run = (1, (rows - 1) * pitch + places) if flat else (rows, places)
    few = few_channels(g)
    copied_channels = channels if few else multiple(channels, HALF)
    copied = copied_channels * apart * (rows + tall) * pitch
    steps, wide = runs * -(-run // EDGE), -(-maps // EDGE)
    left = 0 < channels % EDGE <= HALF  # channels that share tiles with those of the next column's tap
    high = channels // EDGE * cells + g.T * g.R * -(-g.S // 2) if left else -(-channels // EDGE) * cells
    high = -(-channels * cells // EDGE) if few else high
    items = g.M * -(-g.P // rows) * -(-g.Q // columns)
    parts = g.groups * -(-maps_in // channels) * -(-maps_out // maps)
    splits = _splits(parts, items)
    held = UNIT_PLANES * PLANE_BYTES * (copied + (wide * steps + GATHERED) * EDGE**2)
    over = min(max(0.0, held / UNIT_BYTES - 1), 4)
    products = steps * (wide * UNIT_BLOCK_NS + few * GATHER_NS) * (1 + over)
    products *= FEW_UNIT if few else 1
    each = high * (products + (-(-steps // GATHERED) if few else 1) * wide * UNIT_SUMS_NS)
    each += PLACE_NS * copied + TURN_NS * wide * steps * EDGE**2
    runs_copied = channels * apart * (rows + tall) * (columns + broad if g.strides[2] > 1 else 1)
    each += RUN_NS * runs_copied + ROW_NS * channels * apart * (rows + tall)
    tasks = splits * parts
    total = -(-tasks // TASKS) * TASKS * -(-items // splits) * each + splits * parts * JOIN_NS * cells * channels * maps
    return total, Direct(rows, columns, channels, flat, splits, maps, tasks, UNIT_PLANES)


def choices(g: ConvGeometry, op: str, facts: Facts, itemsize: int, winograd: int) -> Iterator[Way]:
    """The ways to compute a pass, the one that should be fastest first; the last needs least memory.

    `itemsize` is that of the type in which products add up. `winograd`: 0 never, 2 tiles of 2 x 2 outputs at most, 4
    tiles of 4 x 4; it is for sums in float32 only.
    """
    direct = _direct_update(g, facts, itemsize) if op == UPDATE else _direct(g, op, facts, itemsize)
    if _is_depthwise(g):  # nothing else comes near
        found = [_depthwise(g, op, itemsize), *_depthwise_few(g, op, facts, itemsize)]
        yield from sorted(found, key=lambda way: nanoseconds(g, op, facts, way))
        yield direct
        return
    found: list[Way] = [few_blocking.blocks(g, op, facts)] if few_blocking.may_be_few(g, op, facts) else []
    if winograd and winograd_blocking.may_be_cut(g, FPROP if op == BPROP else op) and itemsize == 4:
        for points in (4, 6) if winograd >= 4 else (4,):
            found += winograd_blocking.choices(g, op, facts, itemsize, points)
    inputs = g.C // g.groups * (g.T * g.R * g.S if op == UPDATE and few_channels(g) else 1)
    if facts.matrix_unit and itemsize == 4 and min(inputs, g.K // g.groups) >= FEWEST_UNIT_MAPS:
        if op == UPDATE:
            found.append(_unit_update(g)[1])
        else:
            found += [_direct(g, op, facts, itemsize, UNIT_PLANES), _shared(g, op)]
    apart = taken_apart(g)
    if apart is not None:
        # An infinity must not meet a zero that fills up errors; with Winograd's algorithm it spreads anyway.
        filled = op == UPDATE and math.prod(apart.geometry.dimO) > math.prod(g.dimO)
        inner = choices(apart.geometry, op, facts, itemsize, winograd)
        found += [Parted(way) for way in inner if isinstance(way, (Unrolled, Winograd)) or not filled]
    flat = unrolled(g) if apart is None else None
    if flat is not None:
        found += [Unrolled(way) for way in choices(flat, op, facts, itemsize, winograd) if isinstance(way, Winograd)]
    found = sorted([*found, direct], key=lambda way: nanoseconds(g, op, facts, way))
    yield from found[: found.index(direct) + 1]


def _beyond(g: ConvGeometry, facts: Facts, way: Direct) -> float:
    """How many times the products of the definition tiles of `conv.c` compute for the gradient by the images: taps that
    one of a tile's columns meets count for all of them, where tiles go on from row to row all taps do."""
    if way.flat or g.strides != (1, 1, 1):
        return math.prod(g.image) / (math.prod(g.result) * math.prod(g.strides)) if way.flat else 1.0
    each, (pad, _), dilation = max(1, facts.width // g.N), g.pads[2], g.dilations[2]
    first = np.arange(0, g.W, each)
    last = np.minimum(first + each, g.W) - 1
    lowest, highest = (first + pad - g.Q) // dilation + 1, (last + pad) // dilation  # taps that a column meets
    met = np.minimum(highest, g.S - 1) - np.maximum(lowest, 0) + 1
    products = int(((last - first + 1) * np.maximum(met, 0)).sum())
    return max(products, 1) / (g.Q * g.S)  # padding may be all that taps meet


def _tile_rows(maps: int, facts: Facts) -> int:
    """Rows of tiles of `conv.c` for so many maps; one takes as long as two, four as five."""
    left = maps % facts.rows
    return maps - left + (0 if not left else 2 if left == 1 else 5 if left <= 4 < facts.rows else facts.rows)


def _filled_up(g: ConvGeometry, way: Direct, edge: int) -> float:
    """How many lanes tiles of `edge` have for each that is an output."""
    return _tile_lanes(g, way.rows, way.columns, way.flat, edge) / (way.rows * way.columns * g.N)


def _direct_tiles(g: ConvGeometry, op: str, facts: Facts, way: Direct) -> tuple[float, float]:
    """How many lanes tiles of `conv.c` have for each that is an output; and how many tiles there are."""
    _, maps_out, _, out = sides(g, op)
    width = _tile_lanes(g, way.rows, way.columns, way.flat, facts.width)
    items = g.groups * math.prod(out) / (way.rows * way.columns) * -(-maps_out // facts.rows)
    return _filled_up(g, way, facts.lanes), items * width / facts.width


def nanoseconds(g: ConvGeometry, op: str, facts: Facts, way: Way) -> float:
    """About how long one thread takes."""
    if isinstance(way, Winograd):
        return winograd_blocking.nanoseconds(g, op, facts, way)
    if isinstance(way, Parted):
        inner = taken_apart(g).geometry
        moved = sum(math.prod(x) for side in (g, inner) for x in (side.dimI, side.dimO))
        return nanoseconds(inner, op, facts, way.way) + PART_NS * moved / 2
    if isinstance(way, Unrolled):
        flat = unrolled(g)
        return nanoseconds(flat, op, facts, way.way) + UNROLL_NS[op == BPROP] * math.prod(flat.dimI)
    return _counted(g, op, facts, way) * measured(op, facts, way)


def _counted(g: ConvGeometry, op: str, facts: Facts, way: Depthwise | DepthwiseFew | Few | Direct) -> float:
    """The time by operations and moved numbers."""
    maps_in, maps_out, _, _ = sides(g, op)
    if isinstance(way, Depthwise):
        copy = COPY_NS + (DEPTHWISE_STRIDED_NS / g.N if g.strides[2] > 1 else 0)
        return g.flops / DEPTHWISE + math.prod(g.dimI) * copy + DEPTHWISE_MAP_NS * g.C
    if isinstance(way, DepthwiseFew):
        return _depthwise_few_cost(g, op, facts, way)
    if isinstance(way, Few):
        return few_blocking.nanoseconds(g, op, facts, way)
    if way.planes and op == UPDATE:
        return _unit_update_cost(g, way.rows, way.columns, way.channels, way.part_maps, way.flat)[0]
    if way.dots:
        return _dots_cost(g, facts, way)
    if op == UPDATE:
        return _turned_cost(g, facts, way)
    if way.shared:
        return _shared_cost(g, op, way)
    # Few maps leave rows of a tile empty.
    if way.planes:
        used = maps_out * maps_in / (EDGE * _unit_tiles(maps_out) * _unit_channels(g, maps_in))
        return g.flops / UNIT_DIRECT * _filled_up(g, way, EDGE) / used + math.prod(g.dimF) * 1.5
    used = maps_out / _tile_rows(maps_out, facts) / (_beyond(g, facts, way) if op == BPROP else 1.0)
    products = g.flops / DIRECT_PRODUCTS
    if op == FPROP and not way.flat:  # tiles leave out taps that meet padding
        met = met_taps(g, 1) * (met_taps(g, 2) if g.N >= facts.width else 1.0)
        products = g.flops * met / DIRECT_MET_PRODUCTS
    strided = g.strides != (1, 1, 1)
    copied = math.prod(g.dimO) if op == BPROP else math.prod(g.dimI) * (STRIDED_COPY if strided else 1)
    moved = way.splits * copied * COPY_NS
    if op == BPROP and strided:
        products *= STRIDED_BACK
        moved += math.prod(g.dimI) * APART_NS
    lanes, tiles = _direct_tiles(g, op, facts, way)
    filters = math.prod(g.dimF) * 0.7 + winograd_blocking.far_filters(g)
    each_tile = SMALL_TILE_NS if facts.few_registers else TILE_NS
    return products * lanes / max(used, 0.25) + moved + tiles * each_tile + filters
