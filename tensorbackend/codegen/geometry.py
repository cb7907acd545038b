# SPDX-License-Identifier: Apache-2.0
"""How printed CUDA kernels are launched: grid and block for a kernel's shape, packs, the words of its arguments.

Grids, blocks and segments depend on shapes alone, so that results do not depend on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorbackend.codegen.nest import COLUMNS, MAP, ROWS, Nest, nest
from tensorbackend.graph.loops import in_memory_order
from tensorbackend.graph.plan import Kernel, Ref

__all__ = [
    "SIZES",
    "THREADS",
    "Geometry",
    "argument_words",
    "choose",
    "join_blocks",
    "pack_width",
    "packed",
    "wants_split",
    "wants_stages",
]

THREADS = 256
"""Threads of a block at most."""
BLOCKS = 1 << 13
"""Blocks of a grid at most: several times what a large device holds. Threads walk by grid strides."""
SIZES = ("vector", "segments", "segment")
"""What a kernel is told beside the lengths of its axes: whether packs are whole, and how its reduction is split."""
PACK_BYTES = 16
PACKED_BYTES = 256
"""Bytes of packs that a thread holds at most: they live in registers."""
STEPPED_WIDTH = 4
"""Neighbours at a time at most beside an operand that lies in steps: it takes an address for each, in registers."""
SPLIT_BELOW = 512
"""Blocks below which a long reduction is split into segments, about `SPLIT_BLOCKS` blocks in all."""
SPLIT_BLOCKS = 2048
SEGMENT = 1 << 12
"""Elements that a segment has at least."""
COLUMN_SEGMENT = 1 << 8
"""The same of columns, of which a block takes 32 together."""
STAGES_BELOW = 256
"""Blocks below which a kernel of several passes over long rows or columns becomes a kernel for each pass."""
STAGES_FROM = 4
"""Segments from which on rows or columns are that long."""
JOINED_TOGETHER = 64
"""Threads that share the segments of one result, in the second launch."""
COLUMN_ROWS = 16
"""Rows that a thread of a column takes at least, where there are `MANY_COLUMNS`."""
MANY_COLUMNS = 1 << 15
ARGUMENT_BYTES = 32764
"""What a launch can take (compute capability 7.0 and up)."""


@dataclass(frozen=True)
class Geometry:
    """A launch's `grid` and `block` (x, y), the `segments` of a split reduction, and the length of each."""

    grid: tuple[int, int]
    block: tuple[int, int]
    segments: int = 1
    segment: int = 0

    def __post_init__(self) -> None:
        assert 1 <= self.grid[0] < 1 << 31 and 1 <= self.grid[1] < 1 << 16, self
        assert self.block[0] >= 1 and self.block[1] >= 1 and self.block[0] * self.block[1] <= THREADS, self


def packed(found: Nest) -> list[Ref | None]:
    """The references whose neighbours along the inner axis are neighbours in memory; None for others."""
    kernel, inner = found.kernel, found.inner
    references = [*kernel.inputs, *(ref for ref, _ in kernel.outputs)]
    inline = [found.form != COLUMNS and ref.shape[inner] != 1 and ref.strides[inner] == 1 for ref in references]
    return [ref if along else None for ref, along in zip(references, inline)]


def pack_width(found: Nest) -> int:
    """How many neighbours a thread reads and writes at a time."""
    sizes = [ref.dtype.itemsize for ref in packed(found) if ref is not None]
    width = min(PACK_BYTES // max(sizes), 8) if sizes else 1
    while width > 1 and width * sum(sizes) > PACKED_BYTES:
        width //= 2
    return min(width, STEPPED_WIDTH) if _has_steps(found) else width


def _has_steps(found: Nest) -> bool:
    """Whether an operand is read or written in steps along the inner axis."""
    kernel, inner = found.kernel, found.inner
    references = [*kernel.inputs, *(ref for ref, _ in kernel.outputs)]
    return any(ref.shape[inner] != 1 and ref.strides[inner] not in (0, 1) for ref in references)


def argument_words(kernel: Kernel, split: bool) -> tuple[int, int, int, int]:
    """The addresses, sizes, strides and scalars of a kernel's arguments, in 8-byte words; no part is empty."""
    references, rank = len(kernel.inputs) + len(kernel.outputs), len(kernel.shape)
    scalars = len(kernel.scalars) + (len(kernel.draws) + 1 if kernel.draws else 0)
    counts = (references + split, rank + len(SIZES), max(references * rank, 1), max(scalars, 1))
    assert 8 * sum(counts) <= ARGUMENT_BYTES, counts
    return counts


def choose(found: Nest, split: bool = False) -> Geometry:
    """The launch of a kernel's loops."""
    shape = found.kernel.shape
    inner, rows = shape[found.inner], math.prod(shape[a] for a in found.kept)
    packs = -(-inner // pack_width(found))
    if found.form == MAP:
        x = _power(min(packs, THREADS))
        y = _power(min(rows, THREADS // x))
        across = min(max(-(-packs // x), 1), BLOCKS)
        return Geometry((across, min(max(-(-rows // y), 1), max(BLOCKS // across, 1))), (x, y))
    if found.form == ROWS:
        x = _power(min(packs, THREADS))
        y = 1 if x > 32 else _power(min(rows, THREADS // x))
        blocks = -(-rows // y)
    else:
        x = _power(min(inner, 32))
        least = COLUMN_ROWS if inner * rows >= MANY_COLUMNS else 1
        y = _power(min(max(shape[found.reduced[0]] // least, 1), THREADS // x, 32))
        x = _power(min(inner, THREADS // y))
        blocks = -(-inner // x) * rows
    segments, segment = _segments(found, blocks) if split else (1, 0)
    return Geometry((min(max(blocks, 1), BLOCKS), segments), (x, y), segments, segment)


def _segments(found: Nest, blocks: int) -> tuple[int, int]:
    """How many segments a reduction is split into, and how many entries of the split axis each takes."""
    shape = found.kernel.shape
    axis = found.reduced[0] if found.reduced else found.inner
    each = math.prod(shape[a] for a in found.kernel.axes) // max(shape[axis], 1)
    wanted = max(SPLIT_BLOCKS // max(blocks, 1), 1)
    segment = max(-(-shape[axis] // wanted), -(-_least(found) // max(each, 1)), 1)
    segment = -(-segment // PACK_BYTES) * PACK_BYTES if axis == found.inner else segment  # packs stay aligned
    return max(-(-shape[axis] // segment), 1), segment


def wants_split(found: Nest) -> bool:
    """Whether a reduction is split into segments: few blocks, much to reduce, and nothing after but the results."""
    kernel = found.kernel
    if not kernel.axes or any(i.stage > 1 for i in kernel.body):
        return False
    if any(ref.shape[a] != 1 for ref, _ in kernel.outputs for a in kernel.axes if kernel.shape[a] != 1):
        return False
    blocks = choose(found).grid[0]
    return blocks < SPLIT_BELOW and math.prod(kernel.shape[a] for a in kernel.axes) >= 2 * _least(found)


def wants_stages(kernel: Kernel) -> bool:
    """Whether each pass of a kernel is to be a kernel of its own: few blocks, several passes over much."""
    if not kernel.axes or math.prod(kernel.shape[a] for a in kernel.axes) < STAGES_FROM * COLUMN_SEGMENT:
        return False
    found = nest(in_memory_order(kernel))
    axes = found.kernel.axes
    if not axes or wants_split(found) or choose(found).grid[0] >= STAGES_BELOW:
        return False
    return math.prod(found.kernel.shape[a] for a in axes) >= STAGES_FROM * _least(found)


def _least(found: Nest) -> int:
    return COLUMN_SEGMENT if found.form == COLUMNS else SEGMENT


def join_blocks(results: int, segments: int) -> Geometry:
    """The launch of the second stage of a split reduction."""
    y = _power(min(segments, JOINED_TOGETHER))
    x = _power(min(results, THREADS // y))
    return Geometry((min(max(-(-results // x), 1), BLOCKS), 1), (x, y))


def _power(n: int) -> int:
    """The smallest power of two that is not below n, at least 1."""
    return 1 << max(n - 1, 0).bit_length()
