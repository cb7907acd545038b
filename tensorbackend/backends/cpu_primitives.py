# SPDX-License-Identifier: Apache-2.0
"""The primitives of the compiled CPU backend: which source of `kernels/c` each is, its types, its arguments.

Each `prepare_…` gives a primitive's launches, as `jit.prepare` gives a kernel's. Operands are those of the step:
inputs, what the tail reads beside the product, the target; then scratch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tensorbackend import dtypes, settings
from tensorbackend.backends import (
    caches,
    cpu_blas,
    cpu_cumsum,
    cpu_pool,
    cpu_recurrent,
    cpu_regions,
    jit,
    native,
    tuning,
    written,
)
from tensorbackend.backends.cpu_conv import prepare_conv
from tensorbackend.backends.plans import ALIGNMENT
from tensorbackend.graph import indexing
from tensorbackend.graph.plan import Primitive, Ref
from tensorbackend.graph.tails import over_matrix, small_products
from tensorbackend.primitives import gemm, gemm_planes, gemm_short
from tensorbackend.primitives.gemm import Blocking, Facts, Matrices
from tensorbackend.primitives.matrix_unit import PLANE_BYTES, PLANES

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = ["PRIMITIVES"]

FLOPS_A_NANOSECOND = 100
PAST_K = 64
"""Steps of k from which on a tail's stores past the caches take less time than those through them."""
SMALL_TASK = 64
"""Batches of a task of `gemm_small.c`."""
STORED_A_NANOSECOND = 4
"""Results that `gemm_short.c` stores, about."""


def _source(
    a: np.dtype, b: np.dtype, sum_type: np.dtype, planes: int = 0, few: bool = False, file: str = "gemm.c"
) -> str:
    """The text of gemm.c, or another, for these types: on the matrix unit with so many planes, or for few columns."""
    lines = ['#include "half.h"'] if dtypes.is_half(a) or dtypes.is_half(b) else []
    lines += [f"#define TB_PLANES {planes}"] if planes else []
    lines += ["#define TB_FEW"] if few else []
    lines.append(f"#define TB_T {written.c_type(sum_type)}")
    for name, dtype in (("A", a), ("B", b)):
        lines.append(f"#define TB_{name} {written.c_type(dtype)}")
        lines.append(f"#define TB_WIDE_{name}(x) ((TB_T){written.widened(dtype)})")
        lines += [f"#define TB_PLAIN_{name}"] if dtype == sum_type else []
    return "\n".join([*lines, f'#include "{file}"', ""])


def _tiles_source(sum_type: np.dtype, kind: str) -> str:
    """The text of gemm_tiles.c for types that add up in this one, and one of `gemm.TILES`."""
    macros = [f"#define TB_T {written.c_type(sum_type)}"]
    macros += [f"#define TB_{kind.upper()}_TILES"] if kind != "one" else []
    macros += ["#define TB_WHOLE"] if sum_type.kind in "iu" else []
    return "\n".join([*macros, '#include "gemm_tiles.c"', ""])


def _facts(sum_type: np.dtype) -> Facts:
    """The tiles for types that add up in this one."""
    lanes, *rows, unit, half_rows, quick_sums = native.runtime().facts("gemm", sum_type.itemsize, sum_type.kind in "iu")
    return Facts(lanes, tuple(rows), bool(unit), half_rows, quick_sums)


def prepare_dot(step: Primitive, backend: Backend) -> jit.Prepared:
    """The product over the last two axes, batches broadcast, and its tail: by gemm.c or, where the clock may choose, by
    what is faster: that, gemm.c without the matrix unit, which others may be using, or NumPy's BLAS. Many products of a
    few elements each: by gemm_small.c; with a few steps of k: by gemm_short.c."""
    small = _prepare_small(step)
    if small is not None:
        return small
    product = _Product(step)
    own = _prepare_short(product) or product.prepared()
    timed = tuning.ENOUGH_NS <= product.cost <= tuning.MOST_NS
    if backend.deterministic or not settings.config.tune or not timed:
        return own
    # What follows the product has no part in the choice: values are the same with it and without.
    x = product.given.swapped() if product.by.swap else product.given
    ways = [(f"{x.m} {x.n} {x.k} {x.a} {x.b} {product.planes}", own)]
    if product.planes > 1:
        ways.append(("multiply-adds", _Product(step, unit=False).prepared()))
    library = cpu_blas.prepare(step, product.cost)
    ways += [library] if library is not None else []
    names, prepared = zip(*ways)
    return prepared[tuning.choose(step, names, prepared)] if len(ways) > 1 else own


def _prepare_small(step: Primitive) -> jit.Prepared | None:
    """Many small products, if batches lie evenly."""
    places = [*step.inputs, step.output]
    (m, n), k, lengths = step.output.shape[-2:], step.inputs[0].shape[-1], step.output.shape[:-2]
    batches, swap = math.prod(lengths), n > m
    if step.tail is not None or not small_products(step):
        return None
    strides = []
    for ref in places:
        whole = ref.broadcast_to((*lengths, *ref.shape[-2:]))
        found = indexing.view_strides(whole.shape, whole.strides, (batches, *ref.shape[-2:]))
        if found is None:
            return None
        strides.append(found)
    if swap:  # t' = b' a'
        places[:2], m, n = places[1::-1], n, m
        strides = [(batch, column, row) for batch, row, column in (*strides[1::-1], strides[2])]
    source = _source(places[0].dtype, places[1].dtype, step.output.dtype, file="gemm_small.c")
    runtime = native.runtime()
    address = written.library(source, "products").address("tb_gemm_small")
    cost = m * n * k * batches + 100
    flat = [stride for each in strides for stride in each]
    launch = runtime.prepare(address, -(-batches // SMALL_TASK), cost, 3, [m, n, k, batches, int(swap)], flat, 0)
    return jit.Prepared(step, source, step.name, [launch], 0)


def _prepare_short(product: _Product) -> jit.Prepared | None:
    """A product of few steps of k, whose result takes the time, if the rows or columns of that lie in order."""
    step, x, swap = product.step, product.given, product.by.swap
    if x.sums[1] != 1:
        x, swap = x.swapped(), not swap
    short = step.tail is None and not product.planes and gemm_short.is_short(x, product.facts)
    if not short or product.out.dtype.kind != "f":
        return None
    rows, columns = gemm_short.task(x)
    source = _source(*(ref.dtype for ref in step.inputs), product.out.dtype, file="gemm_short.c")
    runtime = native.runtime()
    address = written.library(source, "products").address("tb_gemm_short")
    size = [x.m, x.n, x.k, rows, columns, int(swap), int(caches.go_past(x.m * x.n * product.out.dtype.itemsize))]
    cost = 2 * x.m * x.n * x.k // FLOPS_A_NANOSECOND + x.m * x.n // STORED_A_NANOSECOND
    tasks = -(-x.m // rows) * (x.n // columns)
    launch = runtime.prepare(address, tasks, cost, 3, size, [*x.a, *x.b, x.sums[0]], 0)
    return jit.Prepared(step, source, step.name, [launch], 0)


class _Product:
    """One product as a launch of gemm.c, on the matrix unit only with `unit`."""

    def __init__(self, step: Primitive, unit: bool = True) -> None:
        x, y = step.inputs
        self.step = step
        self.out = step.output
        self.lengths = self.out.shape[:-2]
        self.facts = facts = _facts(self.out.dtype)
        self.in_target = step.tail is None or (
            step.target.dtype == self.out.dtype and not step.tail.in_place and 0 not in self._places(step.target)
        )
        sums = self._places(step.target) if self.in_target else self._places(self.out)
        given = Matrices(
            *self.out.shape[-2:], x.shape[-1], math.prod(self.lengths), _matrix(x), _matrix(y), sums[-2:],
            x.dtype == self.out.dtype, y.dtype == self.out.dtype,
        )  # fmt: skip
        unit = unit and facts.matrix_unit and settings.config.matrix_unit and x.dtype == y.dtype
        self.planes = PLANES.get(x.dtype.name, 0) if unit else 0
        by = gemm_planes.in_planes(given, self.planes, facts) if self.planes else None
        if by is None:
            self.planes = 0
            by = gemm.choose(given, facts, may_swap=x.dtype == y.dtype)
        self.by = by
        self.given = given.swapped() if self.by.swap else given
        self.sums = sums
        moved = sum(math.prod(ref.shape) * ref.dtype.itemsize for ref in (x, y, self.out))
        self.far = caches.go_past(moved)
        self.cost = 2 * given.m * given.n * given.k * given.batches // FLOPS_A_NANOSECOND + 100
        # Where a task adds up its block from beginning to end, the block alone needs memory.
        whole = self.by.splits == 1 and self.by.phase_k >= self.by.split_k and self.by.panel > 1
        self.tail_past = whole and self.far and self._tail_may_go_past()
        self.apart = whole and (self.tail_past or not self.in_target)
        self.in_target = self.in_target and not self.apart

    def _places(self, ref: Ref) -> tuple[int, ...]:
        """The strides of a place over the axes of the product; an axis of length 1 has stride 1."""
        strides = ref.broadcast_to(self.out.shape).strides
        return tuple(1 if n == 1 else s for n, s in zip(self.out.shape, strides))

    def _tail_may_go_past(self) -> bool:
        """Whether the tail's results may be stored past the caches: where they are not read, and sums take a while."""
        return self.step.tail is not None and not self.step.tail.in_place and self.given.k >= PAST_K

    def prepared(self) -> jit.Prepared:
        """The launch, packed."""
        step, by, x = self.step, self.by, self.given
        source = _source(*(ref.dtype for ref in step.inputs), self.out.dtype, self.planes, few=by.panel == 1)
        kinds = [] if self.planes else gemm.kinds_of_tiles(x, by, self.facts)
        of_tiles = [_tiles_source(self.out.dtype, kind) for kind in kinds]
        library, *found = written.libraries((source, *of_tiles), "products")
        tiles = {kind: made.address("tb_gemm_tiles") for kind, made in zip(kinds, found)}
        tail, sizes, texts = self._tail()
        scratch, places = self._scratch()
        others = [*step.beside, step.target]
        first = 2 + len(others)
        sums_at = (first if not self.in_target else first - 1) if by.splits == 1 else first - 1
        runtime = native.runtime()
        past = int(step.tail is None and by.own > 0 and by.block_k >= by.split_k and self.far)
        size = [
            x.m, x.n, x.k, x.batches, int(by.swap), by.round_, by.splits, by.split_k, by.phase_k, by.block_k,
            by.phase_rows, by.phase_columns, by.task_rows, by.task_columns, by.tile_rows, by.panel, int(by.pack_a),
            by.pack_b, by.own, *self._own(), places[0], past, *places[1:], sums_at, runtime.address("tb_run"),
            *(tiles.get(kind, 0) for kind in gemm.TILES), tail, *sizes,
            len(others) + (step.tail is not None), scratch, len(self.lengths), *self.lengths,
            *(ref.dtype.itemsize for ref in others),
        ]  # fmt: skip
        pointers = first + bool(scratch)
        address = library.address("tb_gemm")
        launch = runtime.prepare(address, 1, self.cost, pointers, size, self._strides(others), len(step.scalars))
        text = "\n".join([describe(by), source, *texts])
        return jit.Prepared(step, text, step.name, [launch], -(-scratch // 8))

    def _strides(self, others: Sequence[Ref]) -> list[int]:
        x, y = self.step.inputs
        lead = len(self.lengths)
        left, right = ([*self._batches(ref), *_matrix(ref)] for ref in (x, y))
        rows = [left, right, list(self.sums), *(list(ref.broadcast_to(self.out.shape).strides) for ref in others)]
        if self.by.swap:
            rows[:2] = rows[1::-1]
            rows = [[*row[:lead], *row[lead:][::-1]] for row in rows]
        return [stride for row in rows for stride in row]

    def _batches(self, ref: Ref) -> tuple[int, ...]:
        return ref.broadcast_to((*self.lengths, *ref.shape[-2:])).strides[: len(self.lengths)]

    def _tail(self) -> tuple[int, list[int], list[str]]:
        """The tail's address (0: none); its inner axis, tile side, way of storing, and the product's number; text."""
        step = self.step
        if step.tail is None:
            return 0, [0, 0, 0, 0], []
        strides = self.given.sums
        if self.apart or self.by.splits > 1:
            strides = (self.by.task_columns if self.apart else self.given.n), 1
        tail = jit.compile_tail(over_matrix(step.tail, step.product, strides, self.by.swap, self.given.n == 1))
        streams = caches.AHEAD | caches.PAST if self.tail_past else 0
        return tail.address, [tail.inner, tail.tile, streams, step.product], [tail.source]

    def _scratch(self) -> tuple[int, list[int]]:
        """Bytes of scratch, and where slots, the copies of a and b, and the sums lie in it."""
        by, x, item = self.by, self.given, self.out.dtype.itemsize
        parts = by.round_ * by.splits
        copied = self._copied()
        panels = -(-min(x.n, by.phase_columns) // by.panel) if not by.pack_b else int(by.pack_b < x.n)
        *own, slots = self._own()
        lengths = [
            slots * (ALIGNMENT + sum(own)) // item,
            int(parts * by.phase_rows * by.phase_k * copied) if by.pack_a and not by.own_a else 0,
            0 if by.own else int(parts * panels * by.panel * by.phase_k * copied),
            by.splits * x.m * x.n if by.splits > 1 else self._whole(),
        ]
        places, total = [], 0
        for length in lengths:
            places.append(total)
            total += _aligned(length * item)
        if by.splits == 1 and self.in_target:
            places[3] = 0
        return total, places

    def _whole(self) -> int:
        """How many sums need memory of their own for the time of the call."""
        return 0 if self.in_target or self.apart else math.prod(self.out.shape)

    def _copied(self) -> float:
        """Elements that hold the copy of one."""
        return self.planes * PLANE_BYTES / self.out.dtype.itemsize if self.planes else 1

    def _own(self) -> tuple[int, int, int, int]:
        """Bytes of a task's copies of b and a and of its sums, and how many tasks have such memory at a time."""
        by, item = self.by, self.out.dtype.itemsize
        rows, columns = by.task_rows, by.task_columns
        keep_b, keep_a = rows < by.phase_rows, by.own > 0 and columns < by.phase_columns
        of_b = (columns * by.phase_k if keep_b else by.own * by.block_k) if by.own else 0
        of_a = (by.phase_rows * by.phase_k if keep_a else rows * by.block_k) if by.own_a else 0
        copies = (_aligned(int(elements * self._copied()) * item) for elements in (of_b, of_a))
        of_sums = _aligned(min(rows, self.given.m) * columns * item) if self.apart else 0
        return *copies, of_sums, native.runtime().threads if of_b or of_a or of_sums else 0


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _matrix(ref: Ref) -> tuple[int, int]:
    """The strides of an operand's last two axes; an axis of length 1 has stride 1."""
    row, column = (1 if n == 1 else s for n, s in zip(ref.shape[-2:], ref.strides[-2:]))
    return row, column


def describe(by: Blocking) -> str:
    """A blocking as a comment."""
    names = [f"{name.rstrip('_')} {int(value)}" for name, value in vars(by).items()]
    return f"// {', '.join(names)}"


def prepare_convolution(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """A convolution or a gradient of it."""
    tune = settings.config.tune and not backend.deterministic
    return prepare_conv(step, backend.enable_winograd, backend._most_scratch, tune)


PRIMITIVES: dict[str, Callable[[Primitive, Backend], jit.Prepared | None]] = {
    "dot": prepare_dot,
    "conv": prepare_convolution,
    "conv_bprop": prepare_convolution,
    "conv_update": prepare_convolution,
    **cpu_cumsum.PRIMITIVES,
    **cpu_pool.PRIMITIVES,
    **cpu_regions.PRIMITIVES,
    **cpu_recurrent.PRIMITIVES,
}
"""What makes a step's launches; None where NumPy runs it."""
