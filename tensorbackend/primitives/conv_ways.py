# SPDX-License-Identifier: Apache-2.0
"""The ways to compute a convolution on the CPU: an algorithm, and its blocks.

The loops are those of `kernels/c/conv.c`, `conv_depthwise.c`, `conv_depthwise_few.c`, `conv_few.c`, `conv_update.c`,
`conv_winograd.c`, `space_to_batch.c` and `unroll_depth.c`, whose names the fields here have. Which way is taken is for
`conv_blocking.py` to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tensorbackend.primitives.geometry import ConvGeometry, share_inside
from tensorbackend.primitives.matrix_unit import EDGE, PLANES

__all__ = [
    "BPROP", "FPROP", "TASKS", "UNIT_PLANES", "UPDATE", "Depthwise", "DepthwiseFew", "Direct", "Facts", "Few",
    "Parted", "Unrolled", "Way", "Winograd", "met_taps", "outputs_apart", "sides", "taps_along",
]  # fmt: skip

FPROP, BPROP, UPDATE = "conv", "conv_bprop", "conv_update"
TASKS = 8
"""Tasks that a pass is cut into at least, where its size allows."""
UNIT_PLANES = PLANES["float32"]


@dataclass(frozen=True)
class Facts:
    """What the compiled kernels have: `lanes` of a vector, `rows` and `width` of a tile.

    `matrix_unit` says whether products may run on the processor's, `plain` whether numbers add up in the type that they
    have in memory.
    """

    lanes: int
    rows: int
    width: int
    matrix_unit: bool = False
    plain: bool = True

    @property
    def few_registers(self) -> bool:
        """Whether vectors have 16 registers, not 32: tiles have fewer sums."""
        return self.rows * self.width // self.lanes < 16

    def tile(self, planes: int) -> Facts:
        """With the rows and width of the matrix unit's tiles, if numbers have `planes` there."""
        return replace(self, rows=EDGE, width=EDGE) if planes else self


@dataclass(frozen=True)
class Direct:
    """Blocks of `conv.c` and `conv_update.c`: outputs of a task, channels at a time, parts of the maps (or segments of
    the places). `planes` as those of `Winograd`; `shared`: tasks share copies of the input and copy filters themselves;
    `dots`: sums of the filters' gradient run over lanes of places.
    """

    rows: int
    columns: int
    channels: int
    flat: bool
    splits: int
    part_maps: int
    tasks: int
    planes: int = 0
    shared: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Depthwise:
    """Blocks of `conv_depthwise.c`: `rows` and `columns` of outputs (of one phase) of a task."""

    rows: int
    columns: int
    tasks: int


@dataclass(frozen=True)
class DepthwiseFew:
    """Blocks of `conv_depthwise_few.c`: a vector of maps is a task."""

    tasks: int


@dataclass(frozen=True)
class Few:
    """Blocks of `conv_few.c`: places and maps of a task, channels that are added up at a time, whether their filters
    are copied, and whether the copy of the input is the image alone (`within`)."""

    part: int
    panel: int
    channels: int
    tasks: int
    copied: bool = False
    within: bool = False


@dataclass(frozen=True)
class Winograd:
    """Blocks of `conv_winograd.c`. `points`, `out` and `taps` of its tiles; `length` lanes of one tile.

    Filters are cut into `parts`, which make as many channels of each map; `chunk` of these channels are transformed and
    multiplied at a time. `planes` are those of a number on the matrix unit, 0 for multiply-adds. `part`: maps of a task
    that transforms their filters itself (or channels whose sums a task takes to the end), 0 where all tasks share them.

    `adjoint`: the images' gradient as the transpose of the forward pass, `conv_winograd_adjoint.h`. A task has `part`
    channels and one of `blocks` of `panels` rows of tiles.

    `shares`: of the filters' gradient, how many blocks go through a stage at a time, each with sums of its own.
    """

    points: int
    out: int
    taps: int
    length: int
    panels: int
    blocks: int
    shared: bool
    planes: int
    parts: int
    chunk: int
    part: int = 0
    adjoint: bool = False
    shares: int = 1


@dataclass(frozen=True)
class Parted:
    """Images taken apart by `space_to_batch.c`, so that filters are not dilated, and a way for what they are then."""

    way: Direct | Few | Unrolled | Winograd


@dataclass(frozen=True)
class Unrolled:
    """Volumes whose depth is unrolled by `unroll_depth.c`, so that filters have one cell of it, and a way for that."""

    way: Winograd


Way = Depthwise | DepthwiseFew | Direct | Few | Parted | Unrolled | Winograd


def sides(g: ConvGeometry, op: str) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Maps of a group in and out, lengths of an image in and out, as the kernels see a pass."""
    c, k = g.C // g.groups, g.K // g.groups
    return (k, c, g.result, g.image) if op == BPROP else (c, k, g.image, g.result)


def met_taps(g: ConvGeometry, axis: int) -> float:
    """Of the taps of all outputs along an axis, the share that meets inputs."""
    return share_inside(*taps_along(g, axis))


def taps_along(g: ConvGeometry, axis: int) -> tuple[np.ndarray, int, int, int]:
    """Where each tap of the first output along an axis lies, how many outputs there are and how far apart, and the
    length of the axis: for `share_inside` and `spans_inside`."""
    firsts = np.arange(g.window[axis]) * g.dilations[axis] - g.pads[axis][0]
    return firsts, g.result[axis], g.strides[axis], g.image[axis]


def outputs_apart(g: ConvGeometry, op: str) -> tuple[int, ...]:
    """From an output to the next of its phase, along each axis."""
    return g.strides if op == BPROP else (1, 1, 1)
