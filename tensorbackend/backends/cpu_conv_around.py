# SPDX-License-Identifier: Apache-2.0
"""Passes of convolutions on the compiled CPU backend around others: operands are rearranged, by
`kernels/c/space_to_batch.c` or `unroll_depth.c`, and results put back."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tensorbackend.backends import written
from tensorbackend.backends.cpu_conv_passes import JOINED, PASSES, Pass, Place, head_between, source_of
from tensorbackend.graph import indexing
from tensorbackend.graph.plan import Primitive
from tensorbackend.primitives.conv_blocking import BPROP, FPROP, UPDATE
from tensorbackend.primitives.conv_rearranged import taken_apart, unrolled
from tensorbackend.primitives.conv_ways import Parted, Unrolled, Way
from tensorbackend.primitives.geometry import ConvGeometry

__all__ = ["pass_of"]

_DIMS = {FPROP: ("dimI", "dimF", "dimO"), BPROP: ("dimF", "dimO", "dimI"), UPDATE: ("dimI", "dimO", "dimF")}


def pass_of(way: Way) -> type[Pass]:
    """What makes the launches of a way."""
    return _AROUND.get(type(way)) or PASSES[type(way)]


class _Around(Pass):
    """A pass around another.

    The other pass is made as if its operands lay where its step says. Its places are then moved: operands and results
    to what was rearranged, scratch behind the scratch of this pass.
    """

    FILE: ClassVar[str]
    TAKEN: ClassVar[dict[str, tuple[str, ...]]]
    """Of each pass the operands that are rearranged, as in `PLACES`."""
    PUT: ClassVar[tuple[str, ...]]
    """The passes whose results are put back. Those of others, and their tails, the other pass computes in place."""

    @staticmethod
    @abstractmethod
    def inside(g: ConvGeometry) -> ConvGeometry:
        """The geometry of the other pass."""

    @abstractmethod
    def take(self, name: str) -> tuple[str, int, list[int]]:
        """The launch that rearranges an operand: its function, tasks, and the words behind the places."""

    @abstractmethod
    def put(self) -> tuple[str, int, list[int]]:
        """The launch that puts results back."""

    @classmethod
    def step_inside(cls, step: Primitive) -> Primitive:
        """The step of the other pass, its operands without gaps."""
        g, put = cls.inside(step.params[0]), step.op.name in cls.PUT
        refs = [
            ref._replace(shape=getattr(g, name), strides=indexing.contiguous_strides(getattr(g, name)))
            for ref, name in zip((*step.inputs, step.output), _DIMS[step.op.name])
        ]
        tail = None if put else step.tail
        return replace(step, params=(g,), inputs=refs[:2], output=refs[2], tail=tail, cache={})

    @classmethod
    def text(cls, step: Primitive, way: Any) -> str:
        """The source of the other pass."""
        return pass_of(way.way).text(cls.step_inside(step), way.way)

    def _result(self) -> None:
        if self.op in self.PUT:
            super()._result()

    def layout(self) -> None:
        """Scratch: operands and results as they are rearranged, and that of the other pass."""
        step, put = self.step_inside(self.step), self.op in self.PUT
        self.inner = inner = pass_of(self.way.way)(step, self.facts, self.way.way, self.slots)
        self.of_slot, self.of_tail = inner.of_slot, self.of_tail + inner.of_tail
        mover = source_of(self.FILE, self.step.inputs[0].dtype, self.dtype)
        self.mover, self.source = written.library(mover, "convolutions"), f"{mover}\n{self.source}"
        self.whole = dict(self.places)
        for name, ref in zip(("filters", "in") if self.backward else ("in", "filters"), step.inputs):
            if name in self.TAKEN[self.op]:
                self.places[name] = self._reserve(math.prod(ref.shape) * ref.dtype.itemsize)
        if put:
            self.places["result"] = self._reserve(math.prod(step.output.shape) * step.output.dtype.itemsize)
        images, filters = (1, 0) if self.backward else (0, 1)
        moved = {(images, 0): self.places["in"], (filters, 0): self.places["filters"]}
        if put:
            moved[1 + len(inner.others), 0] = self.places["result"]
        own, (number, first) = 2 + len(inner.others), self._reserve(inner.scratch)
        inner.move(lambda at: (number, first + at[1]) if at[0] == own else moved.get(at, at))

    def move(self, place_of: Callable[[Place], Place]) -> None:
        """The same for the other pass."""
        super().move(place_of)
        self.whole = {name: place_of(place) for name, place in self.whole.items()}
        self.inner.move(place_of)

    def launches(self) -> list[tuple[str, int, list[int]]]:
        """Those of the other pass."""
        return self.inner.launches()

    def parts(self) -> list[tuple[int, int, list[int], bool]]:
        """Copies, operands rearranged, the other pass, results put back."""
        put, places, whole = self.op in self.PUT, self.places, self.whole
        found = [(self.library.address(name), *rest, False) for name, *rest in (self._copy(*c) for c in self.copies)]
        for name in self.TAKEN[self.op]:
            found.append(self._moved(whole[name], places[name], *self.take(name), False))
        found += [(*part[:3], part[3] and not put) for part in self.inner.parts()]
        if put:
            found.append(self._moved(places["result"], whole["result"], *self.put(), True))
        return found

    def _moved(self, source: Place, target: Place, function: str, tasks: int, words: Sequence[int],
               followed: bool) -> tuple[int, int, list[int], bool]:  # fmt: skip
        return self.mover.address(function), tasks, [*head_between(source, target), *words], followed


class _Parted(_Around):
    """`kernels/c/space_to_batch.c`: images and errors taken apart, results put together."""

    FILE = "space_to_batch.c"
    TAKEN = {FPROP: ("in",), BPROP: ("in",), UPDATE: ("in", "filters")}
    PUT = (FPROP, BPROP)

    @staticmethod
    def inside(g: ConvGeometry) -> ConvGeometry:
        """Without the dilations that images are taken apart for."""
        return taken_apart(g).geometry

    def _words(self, images: bool) -> tuple[int, tuple[int, ...], tuple[int, ...], list[int]]:
        """Of images or errors: maps, lengths whole and in parts, and the words of a launch."""
        g, apart = self.geometry, taken_apart(self.geometry)
        small = apart.geometry
        maps, whole, part, front = (
            (g.C, g.image, small.image, apart.front) if images else (g.K, g.result, small.result, (0, 0, 0))
        )
        return maps, whole, part, [g.N, *whole, *part, *apart.steps, *front, JOINED]

    def take(self, name: str) -> tuple[str, int, list[int]]:
        """A task for each row of all parts of width."""
        maps, _, part, words = self._words(images=name == "in" and not self.backward)
        steps = taken_apart(self.geometry).steps
        return "tb_space_to_batch", maps * part[0] * steps[0] * part[1] * steps[1], words

    def put(self) -> tuple[str, int, list[int]]:
        """A task for some rows of a map."""
        maps, whole, _, words = self._words(images=bool(self.backward))
        return "tb_batch_to_space", maps * whole[0] * -(-whole[1] // JOINED), words


class _Unrolled(_Around):
    """`kernels/c/unroll_depth.c`: planes of images copied for each cell of depth, those of their gradient added up."""

    FILE = "unroll_depth.c"
    TAKEN = {FPROP: ("in",), BPROP: (), UPDATE: ("in",)}
    PUT = (BPROP,)

    @staticmethod
    def inside(g: ConvGeometry) -> ConvGeometry:
        """With a map for each map and cell of depth."""
        return unrolled(g)

    def _words(self) -> list[int]:
        g = self.geometry
        return [g.H * g.W * g.N, g.D, g.M, g.T, g.strides[0], g.dilations[0], g.pads[0][0]]

    def take(self, name: str) -> tuple[str, int, list[int]]:
        """A task for each plane."""
        g = self.geometry
        return "tb_unroll_depth", g.C * g.T * g.M, self._words()

    def put(self) -> tuple[str, int, list[int]]:
        """A task for each plane."""
        return "tb_fold_depth", self.geometry.C * self.geometry.D, self._words()


_AROUND: dict[type, type[Pass]] = {Parted: _Parted, Unrolled: _Unrolled}
