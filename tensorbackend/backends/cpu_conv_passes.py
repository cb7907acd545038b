# SPDX-License-Identifier: Apache-2.0
"""Passes of convolutions on the compiled CPU backend: the launches of `kernels/c/conv.c`, `conv_depthwise.c`,
`conv_depthwise_few.c`, `conv_few.c`, `conv_update.c` and `conv_winograd.c`.

Operands are those of the step: its two inputs, what the tail reads beside the sums, and its result; then scratch, in
which copies, transforms and sums lie.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends import caches, jit, native, written
from tensorbackend.backends.compiler import Library
from tensorbackend.backends.plans import ALIGNMENT
from tensorbackend.graph import indexing
from tensorbackend.graph.plan import Kernel, Primitive, Ref
from tensorbackend.graph.tails import as_matrix
from tensorbackend.primitives import conv_blocking
from tensorbackend.primitives.conv_blocking import BPROP, FPROP, UPDATE
from tensorbackend.primitives.conv_ways import Depthwise, DepthwiseFew, Direct, Facts, Few, Winograd
from tensorbackend.primitives.geometry import ConvGeometry
from tensorbackend.primitives.matrix_unit import EDGE, HALF

__all__ = ["JOINED", "PASSES", "PLACES", "Pass", "Place", "head_between", "sheet", "source_of"]

PLACES = ("in", "filters", "result", "packed", "own", "data", "products")
"""Operands and parts of the scratch, in the order of conv.h."""
Place = tuple[int, int]
"""The number of an operand, and bytes to add."""
COPIED_CHANNELS, COPIED_MAPS, JOINED, COPY_LENGTH = 16, 32, 8, 256
"""Channels, and maps, whose filters a task copies, rows of an image whose sums it joins, and lengths of the part of an
operand that it copies, as in the sources."""


def source_of(file: str, dtype: np.dtype, result: np.dtype, macros: tuple[tuple[str, int], ...] = ()) -> str:
    """A file of `kernels/c` with the macros of types and others."""
    tag, wide, half = dtypes.tag(dtype), dtypes.compute(dtype), dtypes.is_half(dtype)
    lines = ['#include "half.h"'] if half else ["#define TB_PLAIN"]
    lines += [
        f"#define TB_T {written.c_type(wide)}",
        f"#define TB_S {written.c_type(dtype)}",
        f"#define TB_R {written.c_type(result)}",
        f"#define TB_WIDE(x) {written.widened(dtype)}",
        f"#define TB_NARROW(x) {f'tb_f32_to_{tag}(x)' if half and result == dtype else '(x)'}",
        f"#define TB_INDEX int{wide.itemsize * 8}_t",
        *(f"#define {name} {value}" for name, value in macros),
    ]
    return "\n".join([*lines, f'#include "{file}"', ""])


def _call(library: Library, name: str, sizes: Sequence[int], results: int) -> list[int]:
    """What a function of the library says about sizes."""
    given, said = (ctypes.c_int64 * max(len(sizes), 1))(*sizes), (ctypes.c_int64 * results)()
    library.function(name)(given, said)
    return list(said)


def head_between(source: Place, target: Place) -> list[int]:
    """The first words of `size` of a launch that reads and writes one place each."""
    places = {**dict.fromkeys(PLACES, (0, 0)), "in": source, "result": target}
    return list(itertools.chain.from_iterable(places[name] for name in PLACES))


class Pass(ABC):
    """One pass as launches: sizes are collected first, then the scratch is laid out."""

    kernels: Callable[[Primitive, Any], tuple[str, tuple[tuple[str, int], ...]]]
    """The file of the kernels of a way, and its macros beside those of types."""

    @classmethod
    def text(cls, step: Primitive, way: Any) -> str:
        """The source of the kernels of a way."""
        file, macros = cls.kernels(step, way)
        return source_of(file, step.inputs[0].dtype, step.output.dtype, macros)

    def __init__(self, step: Primitive, facts: Facts, way: Any, slots: int = 0) -> None:
        self.step, self.facts, self.way = step, facts, way
        self.slots = slots or native.runtime().threads
        self.geometry: ConvGeometry = step.params[0]
        self.op = step.op.name
        self.backward = int(self.op == BPROP)
        self.dtype = step.output.dtype
        self.source = self.text(step, way)
        self.library = written.library(self.source, "convolutions")
        self.estimate = conv_blocking.nanoseconds(self.geometry, self.op, facts, way)
        self.others = [*step.beside, step.target]
        self.scratch = self.of_slot = self.of_tail = 0
        self.places = {name: (0, 0) for name in PLACES}
        self.copies: list[tuple[Place, Place, Ref]] = []
        images, filters = (1, 0) if self.backward else (0, 1)
        self._operand("in", images, step.inputs[images])
        self._operand("filters", filters, step.inputs[filters])
        self._result()
        self.layout()

    @abstractmethod
    def layout(self) -> None:
        """Reserve scratch, once sizes are known."""

    @abstractmethod
    def launches(self) -> list[tuple[str, int, list[int]]]:
        """Each launch: its function, tasks and sizes."""

    def move(self, place_of: Callable[[Place], Place]) -> None:
        """Have everything lie elsewhere."""
        self.places = {name: place_of(place) for name, place in self.places.items()}

    def room(self, slots: int) -> int:
        """Bytes of scratch with so many slots, without the sums that a tail reads, which all ways need."""
        return self.scratch - self.of_tail + (slots - self.slots) * self.of_slot

    def _reserve(self, nbytes: int) -> Place:
        offset = self.scratch
        self.scratch += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return 2 + len(self.others), offset

    def _reserve_slots(self, nbytes: int) -> None:
        """Memory of the tasks that run at a time, whose parts begin with whole lines."""
        self.slot_bytes = -(-nbytes // ALIGNMENT) * ALIGNMENT
        self.of_slot = ALIGNMENT + self.slot_bytes
        self.places["own"] = self._reserve(self.slots * self.of_slot)

    def _result(self) -> None:
        """Where sums go: with a tail to the target where it can hold them, else to scratch."""
        step, target = self.step, 1 + len(self.others)
        if step.tail is None:
            self.places["result"] = (target, 0)
            return
        ((ref, _),) = self._matrix().outputs
        fits = ref.dtype == self.dtype and not step.tail.in_place and ref.strides == (ref.shape[1], 1)
        size, before = math.prod(step.output.shape) * self.dtype.itemsize, self.scratch
        self.places["result"] = (target, 0) if fits else self._reserve(size)
        self.of_tail = self.scratch - before

    def _matrix(self) -> Kernel:
        """The tail over maps and places."""
        kernel = as_matrix(self.step.tail)
        assert kernel is not None
        return kernel

    def _tail(self) -> tuple[list[int], str]:
        """The words of tail.h, and the tail's text."""
        step = self.step
        if step.tail is None:
            return [0], ""
        matrix = self._matrix()
        refs = [ref for n, ref in enumerate(matrix.inputs) if n != step.product] + [matrix.outputs[0][0]]
        return written.tail(matrix, step.product, matrix.shape[1], [ref.broadcast_to(matrix.shape) for ref in refs])

    def _operand(self, name: str, number: int, ref: Ref) -> None:
        """Where an operand lies: kernels want it contiguous, so others go through a copy."""
        plain = all(n == 1 or s == t for n, s, t in zip(ref.shape, ref.strides, indexing.contiguous_strides(ref.shape)))
        self.places[name] = (number, 0)
        if not plain:
            self.places[name] = copy = self._reserve(math.prod(ref.shape) * ref.dtype.itemsize)
            self.copies.append(((number, 0), copy, ref))

    def head(self) -> list[int]:
        """The first words of `size`: where everything is."""
        return list(itertools.chain.from_iterable(self.places[name] for name in PLACES))

    def axes(self) -> list[int]:
        """The last words of `size` where the geometry is any: of each axis the members of `axis`."""
        g = self.geometry
        _, _, image, result = conv_blocking.sides(g, self.op)
        axes = zip(image, result, g.window, g.strides, g.dilations, (before for before, _ in g.pads))
        return list(itertools.chain.from_iterable(axes))

    def sizes(self, blocks: Sequence[int], slot_bytes: int) -> list[int]:
        """The words of `size` that conv_copies.h or conv_channels.h reads; `blocks`: those from ROWS to SHARED, or from
        PART to WITHIN."""
        g = self.geometry
        maps_in, maps_out, _, _ = conv_blocking.sides(g, self.op)
        maps = [g.N, maps_in, maps_out, g.groups, self.backward]
        return [*self.head(), *maps, *blocks, self.slots, slot_bytes, *self.axes()]

    def _copy(self, source: Place, target: Place, ref: Ref) -> tuple[str, int, list[int]]:
        head = head_between(source, target)
        lengths, x, y = sheet(ref.shape, ref.strides)
        tasks = math.prod(lengths[:3]) * -(-lengths[3] // COPY_LENGTH) * -(-lengths[4] // COPY_LENGTH)
        return "tb_conv_copy", tasks, [*head, *lengths, *x, *y]

    def prepared(self) -> jit.Prepared:
        """All launches, packed."""
        runtime = native.runtime()
        cost = int(self.estimate) + 1
        pointers = 2 + len(self.others) + bool(self.scratch)
        tail, text = self._tail()
        scalars = len(self.step.scalars)
        launches = [
            runtime.prepare(address, tasks, cost, pointers, sizes, tail if followed else [0], scalars)
            for address, tasks, sizes, followed in self.parts()
        ]
        source = "\n".join(filter(None, [f"// {self.way}", self.source, text]))
        return jit.Prepared(self.step, source, self.step.name, launches, self.scratch // 8)

    def parts(self) -> list[tuple[int, int, list[int], bool]]:
        """Each launch: the address of its function, tasks, sizes, and whether the tail follows what it computes."""
        parts = [*(self._copy(*copy) for copy in self.copies), *self.launches()]
        return [(self.library.address(name), tasks, sizes, True) for name, tasks, sizes in parts]


def sheet(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, ...]]:
    """Lengths and strides of an operand and of its copy without gaps, as `kernels/c/conv_strided.h` has them.

    Of the five axes the last but one lies side by side in the operand, if one does, and the last in the copy; axes that
    go on into each other are joined.
    """
    axes: list[list[int]] = []
    for n, x, y in zip(shape, strides, indexing.contiguous_strides(shape)):
        if axes and axes[-1][1:] == [x * n, y * n]:
            axes[-1] = [axes[-1][0] * n, x, y]
        elif n > 1:
            axes.append([n, x, y])
    across = axes.pop() if axes else [1, 1, 1]
    beside = [axis for axis in axes if axis[1] == 1] or axes[-1:] or [[1, 1, 1]]
    others = [axis for axis in axes if axis is not beside[0]]
    return list(zip(*[[1, 1, 1]] * (3 - len(others)), *others, beside[0], across))


def _planes(way: Direct | Winograd) -> tuple[tuple[str, int], ...]:
    """The macro of what runs on the matrix unit."""
    return (("TB_PLANES", way.planes),) if way.planes else ()


def _adjoint(way: Winograd) -> tuple[tuple[str, int], ...]:
    """The macro of a gradient that is the forward pass, transposed."""
    return (("TB_ADJOINT", 1),) if way.adjoint else ()


def _dots(way: Direct) -> tuple[tuple[str, int], ...]:
    """The macro of sums that run over lanes of places."""
    return (("TB_DOTS", 1),) if way.dots else ()


def _copied_channels(way: Direct | Winograd) -> int:
    """Channels whose filters a task copies."""
    return EDGE if way.planes else COPIED_CHANNELS


class DirectPass(Pass):
    """`kernels/c/conv.c` and `kernels/c/conv_update.c`."""

    @staticmethod
    def kernels(step: Primitive, way: Direct) -> tuple[str, tuple[tuple[str, int], ...]]:
        """One file for the gradient by the filters, one for the other passes."""
        return "conv_update.c" if step.op.name == UPDATE else "conv.c", (*_planes(way), *_dots(way))

    def _sizes(self, slot_bytes: int = 0) -> list[int]:
        way = self.way
        maps = way.channels, int(way.flat), way.splits, way.part_maps, int(way.shared)
        return self.sizes((way.rows, way.columns, *maps), slot_bytes)

    def layout(self) -> None:
        """Scratch: the copied filters, the shared copies of the input or the sums, and a slot a thread."""
        needs = "tb_update_needs" if self.op == UPDATE else "tb_conv_needs"
        packed, slot = _call(self.library, needs, self._sizes(), 2)
        self.places["packed"] = self.places["result"] if self._joined() else self._reserve(packed)
        self._reserve_slots(slot)

    def _joined(self) -> bool:
        """Whether the sums of the filters' gradient lie as the result does: one segment, and whole vectors, or tiles of
        the matrix unit."""
        g, maps = self.geometry, EDGE if self.way.planes else self.facts.lanes
        rows, inputs = (EDGE, math.prod(g.dimF[:-1])) if conv_blocking.few_channels(g) else (HALF, g.C)
        whole = not (g.K % maps or self.way.planes and inputs % rows)
        return self.op == UPDATE and self.way.splits == g.groups == 1 and whole

    def launches(self) -> list[tuple[str, int, list[int]]]:
        """Zeros for phases without taps, copies, products; of the filters' gradient products, sums of segments."""
        g, sizes = self.geometry, self._sizes(self.slot_bytes)
        if self.op == UPDATE:
            update = ("tb_conv_update", self.way.tasks, sizes)
            join = [] if self._joined() else [("tb_conv_join", g.C, sizes)]
            return [("tb_conv_start", 1, sizes), update, *join]
        maps_in, _, _, _ = conv_blocking.sides(g, self.op)
        cleared = [("tb_conv_clear", g.C, sizes)] if self.backward and conv_blocking.has_gaps(g) else []
        if self.way.shared:
            copies = self.way.tasks // self.way.splits * -(-maps_in // self.way.channels)
            return [*cleared, ("tb_conv_copies", copies, sizes), ("tb_conv", self.way.tasks, sizes)]
        phases = g.strides[2] if self.backward else 1
        blocks = -(-maps_in // _copied_channels(self.way)) * phases * g.groups
        return [*cleared, ("tb_conv_filters", blocks, sizes), ("tb_conv", self.way.tasks, sizes)]


class DepthwisePass(Pass):
    """`kernels/c/conv_depthwise.c`."""

    START, MULTIPLY = "tb_conv_start", "tb_depthwise"
    """The functions before the first task, and of the products; the latter's, with `_needs`, says what a slot takes."""

    @staticmethod
    def kernels(step: Primitive, way: Any) -> tuple[str, tuple[tuple[str, int], ...]]:
        """One file, which has no macros of its own."""
        return "conv_depthwise.c", ()

    def _sizes(self, slot_bytes: int = 0) -> list[int]:
        return self.sizes((self.way.rows, self.way.columns, 1, 0, 1, 1, 0), slot_bytes)

    def layout(self) -> None:
        """Scratch: a slot a thread."""
        self._reserve_slots(*_call(self.library, f"{self.MULTIPLY}_needs", self._sizes(), 1))

    def launches(self) -> list[tuple[str, int, list[int]]]:
        """Products, by tasks of a map or several."""
        sizes = self._sizes(self.slot_bytes)
        name = f"{self.MULTIPLY}_update" if self.op == UPDATE else self.MULTIPLY
        return [(self.START, 1, sizes), (name, self.way.tasks, sizes)]


class DepthwiseFewPass(DepthwisePass):
    """`kernels/c/conv_depthwise_few.c`."""

    START, MULTIPLY = "tb_depthwise_few_start", "tb_depthwise_few"

    @staticmethod
    def kernels(step: Primitive, way: Any) -> tuple[str, tuple[tuple[str, int], ...]]:
        """One file, which has no macros of its own."""
        return "conv_depthwise_few.c", ()

    def _sizes(self, slot_bytes: int = 0) -> list[int]:
        return self.sizes((0, 0, 0, 0, 0), slot_bytes)


class FewPass(Pass):
    """`kernels/c/conv_few.c`."""

    @staticmethod
    def kernels(step: Primitive, way: Any) -> tuple[str, tuple[tuple[str, int], ...]]:
        """One file, which has no macros of its own."""
        return "conv_few.c", ()

    def _sizes(self, slot_bytes: int = 0) -> list[int]:
        way = self.way
        return self.sizes((way.part, way.panel, way.channels, int(way.copied), int(way.within)), slot_bytes)

    def layout(self) -> None:
        """Scratch: the copy of the input, and a slot a thread."""
        copy, slot = _call(self.library, "tb_few_needs", self._sizes(), 2)
        self.places["data"] = self._reserve(copy)
        self._reserve_slots(slot)

    def launches(self) -> list[tuple[str, int, list[int]]]:
        """The copy of the input, then products."""
        maps_in, _, _, _ = conv_blocking.sides(self.geometry, self.op)
        copies = -(-maps_in * self.geometry.groups // self.facts.lanes)
        sizes = self._sizes(self.slot_bytes)
        return [("tb_few_copy", copies, sizes), ("tb_few", self.way.tasks, sizes)]


class WinogradPass(Pass):
    """`kernels/c/conv_winograd.c`."""

    @staticmethod
    def kernels(step: Primitive, way: Winograd) -> tuple[str, tuple[tuple[str, int], ...]]:
        """Tiles, how far they lie apart, and how images do."""
        g = step.params[0]
        stride = way.taps if step.op.name == UPDATE else way.out
        columns = way.length == g.N and g.strides == (1, 1, 1)
        return "conv_winograd.c", (
            ("POINTS", way.points), ("OUT", way.out), ("TAPS", way.taps), ("STEP", stride), ("LENGTH", way.length),
            ("COLUMNS", int(columns)), *_planes(way), *_adjoint(way),
        )  # fmt: skip

    def _sizes(self, slot_bytes: int = 0, block: int = 0, first: int = 0) -> list[int]:
        g, way = self.geometry, self.way
        maps_in, maps_out, image, result = conv_blocking.sides(g, FPROP if way.adjoint else self.op)
        turned = self.backward and not way.adjoint
        pads = [n - 1 - before if turned else before for n, (before, _) in zip(g.window[1:], g.pads[1:])]
        past = self.step.tail is None and caches.go_past(math.prod(self.step.output.shape) * self.dtype.itemsize)
        return [
            *self.head(), g.N, maps_in, maps_out, g.groups, self.backward, *image, *result[1:], *pads, *g.window[1:],
            *g.strides[1:], int(past), way.panels, way.chunk, way.part, way.shares, self.slots, slot_bytes, block,
            first,
        ]  # fmt: skip

    def layout(self) -> None:
        """Scratch: the filters, and the stages of a block, shared or a slot a thread; for their gradient the sums."""
        if self.way.adjoint:
            data, sums, slot = _call(self.library, "tb_winograd_adjoint_needs", self._sizes(), 3)
            self.places["data"], self.places["products"] = self._reserve(data), self._reserve(sums)
            self._reserve_slots(slot)
            return
        needs = _call(self.library, "tb_winograd_needs", self._sizes(), 8)
        filters, data, products, columns, errors, sums, own, own_sums = needs
        slot = 0 if self.way.shared else data + products
        if self.op == UPDATE:
            filters, data, products, own = sums, columns, errors, own_sums
        if self.way.part:
            slot, filters, products = own, 0, products if self.op == UPDATE else 0
        self.places["packed"] = self._reserve(filters)
        if self.way.shared:
            self.places["data"], self.places["products"] = self._reserve(data), self._reserve(products)
        self._reserve_slots(slot)

    def launches(self) -> list[tuple[str, int, list[int]]]:
        """The stages."""
        g, way, facts = self.geometry, self.way, self.facts.tile(self.way.planes)
        maps_in, maps_out, _, _ = conv_blocking.sides(g, self.op)
        if way.adjoint:
            sizes, blocks = self._sizes(self.slot_bytes), way.blocks * g.groups
            shares, lanes = -(-maps_out // way.part), way.panels * -(-g.Q // way.out) * g.N
            copies = -(-maps_in // facts.rows) * -(-lanes // facts.width) * blocks if shares > 1 else 1
            join = g.C * g.D * -(-g.H // JOINED)
            return [("tb_winograd_adjoint_in", copies, sizes), ("tb_winograd_adjoint_rows", shares * blocks, sizes),
                    ("tb_winograd_adjoint_join", join, sizes)]  # fmt: skip
        maps_in *= way.parts
        points, sizes = way.points**2, self._sizes(self.slot_bytes)
        blocks = range(way.blocks * g.groups)
        chunks = [(first, min(way.chunk, maps_in - first)) for first in range(0, maps_in, way.chunk)]
        parts: list[tuple[str, int, list[int]]] = []
        if self.op == UPDATE and way.part:
            tasks = -(-maps_in // facts.lanes) + -(-maps_out // facts.lanes)
            pieces = -(-maps_in // way.part) * -(-maps_out // facts.width)
            for group in blocks:
                chunk = self._sizes(self.slot_bytes, group)
                parts.append(("tb_winograd_update_in", tasks * way.panels, chunk))
                parts.append(("tb_winograd_update_parts", pieces, chunk))
            return parts
        if self.op == UPDATE:
            firsts = [b for b in blocks if b % way.blocks % way.shares == 0]
            for block, (first, count) in itertools.product(firsts, chunks):
                shares = min(way.shares, way.blocks - block % way.blocks)
                tasks = -(-count // facts.lanes) + (0 if first else -(-maps_out // facts.lanes))
                chunk = self._sizes(self.slot_bytes, block, first)
                parts.append(("tb_winograd_update_in", shares * tasks * way.panels, chunk))
                parts.append(("tb_winograd_update_multiply", shares * points, chunk))
            return [*parts, ("tb_winograd_update_out", g.C, sizes)]
        copies = -(-maps_in // _copied_channels(way)) * -(-maps_out // COPIED_MAPS) * g.groups
        if way.part:
            for block in blocks:
                chunk = self._sizes(self.slot_bytes, block)
                parts.append(("tb_winograd_in", -(-maps_in // facts.rows) * way.panels, chunk))
                parts.append(("tb_winograd_maps", -(-maps_out // way.part), chunk))
            return parts
        filters = ("tb_winograd_filters", copies, sizes)
        if not way.shared:
            return [filters, ("tb_winograd", way.blocks * g.groups, sizes)]
        for block in blocks:
            for first, count in chunks:
                chunk = self._sizes(self.slot_bytes, block, first)
                parts.append(("tb_winograd_in", -(-count // facts.rows) * way.panels, chunk))
                parts.append(("tb_winograd_multiply", points, chunk))
            tiles = -(-maps_out // facts.rows) * way.panels
            parts.append(("tb_winograd_out", tiles, self._sizes(self.slot_bytes, block)))
        return [filters, *parts]


PASSES: dict[type, type[Pass]] = {
    Depthwise: DepthwisePass, DepthwiseFew: DepthwiseFewPass, Direct: DirectPass, Few: FewPass, Winograd: WinogradPass,
}  # fmt: skip
"""What makes the launches of a way."""
