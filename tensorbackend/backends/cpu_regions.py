# SPDX-License-Identifier: Apache-2.0
"""Look-ups, regions and boxes on the compiled CPU backend: files of `kernels/c`, their macros, tasks and checks.

Words, places and regions are checked by a launch of their own, which writes what is wrong to scratch: Python looks
before the launches that write. How work is cut into tasks depends on sizes alone.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.backends import caches, jit, native, written
from tensorbackend.backends.compiler import Library
from tensorbackend.codegen.render import ctype
from tensorbackend.graph import indexing
from tensorbackend.graph.plan import Primitive, Ref
from tensorbackend.primitives import lookup, regions
from tensorbackend.user_kernels import merged

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = ["PRIMITIVES"]

TASKS_A_THREAD = 3
SUM_BYTES = {"float": 4, "double": 8}
STATUS = 64
"""Bytes of scratch for what a check finds."""
COLUMNS = 128
"""Columns of a row that are worth a task of their own, a multiple of what put.c has in registers."""
ELEMENTS = {1: "unsigned char", 2: "tb_u16", 4: "tb_u32", 8: "tb_u64"}
"""What moves elements of so many bytes."""
ASKED, NEAR_BYTES = 256, 1 << 20
"""Bytes of a row that are asked for before it is taken (processors by themselves fetch what follows), and those of an
array from which on: a core's cache has fewer."""
VECTOR = 64
"""Bytes of a vector of roi.c and nms.c, at most, and of a line that take.c stores past the caches."""


class _Checked(jit.Prepared):
    """Launches of which the first one checks: where it finds something, the others write nothing, and it is raised.

    They are `checked`; `launches` is empty for whoever would run them without looking.
    """

    __slots__ = ("_error", "checked")

    def __init__(self, step: Primitive, source: str, launches: Sequence[Any], scratch_words: int,
                 error: Callable[[int, int], IndexError]) -> None:  # fmt: skip
        super().__init__(step, source, step.op.name, launches, scratch_words)
        self.launches, self.checked = [], launches
        self._error = error

    def run(self, addresses: Sequence[int], numbers: Sequence[Any]) -> None:
        words = self.pack(*addresses)
        for launch in self.checked:
            launch.run_on(words)
        wrong, value = (ctypes.c_int64 * 2).from_address(addresses[-1])
        if wrong:
            raise self._error(wrong - 1, value)


def _turning(file: str, dtype: np.dtype, macros: dict[str, Any]) -> tuple[Library, str, int]:
    """A file that turns squares of vectors of `dtype`: the library, its text, and the lanes of a vector."""
    macros |= {"TB_SIZE": dtypes.compute(dtype).itemsize, **written.block_macros(dtype)}
    library, source = written.block_library(file, macros)
    return library, source, library.function("tb_block_lanes")()


def _axes(shape: tuple[int, ...], *strides: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The axes of a space as few as its arrays allow, one at least: (length, stride of each array)."""
    axes = merged(shape, strides)
    return list(zip(axes.lengths, *axes.strides))


def _as_given(places: Ref, entry: int) -> int:
    """An entry that a check found, a signed number there, as the places have it."""
    return entry % (1 << 64) if places.dtype.kind == "u" else entry


def _outside(name: str, places: Ref, entries: int) -> Callable[[int, int], IndexError]:
    """What says that a place, and which entry, is out of range."""

    def error(place: int, entry: int) -> IndexError:
        return ops.out_of_range(name, place, _as_given(places, entry), entries)

    return error


def _prepare_take(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """Entries at places: places checked by one task, then rows copied, by lines and parts of the places."""
    (x, places), out, (axis,) = step.inputs, step.output, step.params
    item = x.dtype.itemsize
    library, source = written.block_library("take", {"TB_X": ELEMENTS[item], "TB_I": ctype(places.dtype)})
    along = indexing.contiguous_strides(x.shape)
    picks = _axes(places.shape, places.strides, (0,) * len(places.shape))
    *inner, (length, apart, _) = _axes(x.shape[axis + 1 :], x.strides[axis + 1 :], along[axis + 1 :])
    behind = indexing.contiguous_strides(out.shape)[:axis]
    outer = [*_axes(x.shape[:axis], x.strides[:axis], behind), *inner]
    count, lines = math.prod(places.shape), math.prod(n for n, _, _ in outer)
    runtime = native.runtime()
    moved = 2 * math.prod(out.shape) * item
    wanted = TASKS_A_THREAD * runtime.threads
    lot = max(1, -(-lines // wanted))
    pieces = max(1, -(-lines // lot))
    parts = max(1, min(count, wanted // pieces))
    sizes = [count, x.shape[axis], length, apart, x.strides[axis], along[axis], lines, lot, parts, len(picks)]
    asked = min(length * item, ASKED) if math.prod(x.shape) * item > NEAR_BYTES else 0
    past = length * item % VECTOR == 0 and caches.go_past(moved, moved // 2)
    sizes += [len(outer), asked, caches.PAST * past]
    strides = [number for of_axis in (*picks, *outer) for number in of_axis]
    tasks = {"take_check": (1, count), "take_copy": (pieces * parts, int(moved * 0.05) + 2 * count * lines)}
    launches = [
        runtime.prepare(library.address(name), number, cost, 4, sizes, strides, 0)
        for name, (number, cost) in tasks.items()
    ]
    return _Checked(step, source, launches, STATUS // 8, _outside("take", places, x.shape[axis]))


def _prepare_put(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """Zeros with floats added at places: places checked and sorted by one task, then groups of entries added up.

    Numbers along one axis alone are left to NumPy: it adds them where they belong, in a fourth of the time of sorting.
    """
    (x, places), out, (shape, axis) = step.inputs, step.output, step.params
    if not dtypes.is_float(out.dtype) or math.prod(shape) == shape[axis]:
        return None
    macros = {"TB_I": ctype(places.dtype), "TB_S": "double", **written.block_macros(x.dtype)}
    library, source = written.block_library("put", macros)
    behind, along = axis + len(places.shape), indexing.contiguous_strides(shape)
    picks = _axes(places.shape, x.strides[axis:behind], places.strides)
    *inner, (length, apart, _) = _axes(shape[axis + 1 :], x.strides[behind:], along[axis + 1 :])
    outer = [*_axes(shape[:axis], x.strides[:axis], along[:axis]), *inner]
    count, entries, lines = math.prod(places.shape), shape[axis], math.prod(n for n, _, _ in outer)
    nbytes, runtime = written.nbytes(step), native.runtime()
    wanted = TASKS_A_THREAD * runtime.threads
    lot = max(1, -(-lines // wanted))
    pieces = max(1, -(-lines // lot))
    columns = max(1, -(-length // (COLUMNS * runtime.threads))) * COLUMNS
    parts, groups = max(1, -(-length // columns)), max(1, min(entries, wanted // pieces))
    sizes = [count, entries, length, apart, along[axis], lines, lot, groups, parts, columns, len(picks), len(outer)]
    sizes.append(caches.PAST * caches.go_past(nbytes))
    strides = [number for of_axis in (*picks, *outer) for number in of_axis]
    tasks = {"put_sort": (1, 4 * count + entries), "put_sum": (pieces * groups * parts, int(nbytes * 0.1))}
    launches = [
        runtime.prepare(library.address(name), number, cost, 4, sizes, strides, 0)
        for name, (number, cost) in tasks.items()
    ]
    return _Checked(step, source, launches, STATUS // 8 + entries + 2 + count, _outside("put", places, entries))


def _prepare_lut(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """The gradient of look-ups: words numbered by one task, then vectors of columns added up, and the other rows."""
    g, alpha, beta = step.params
    errors, ids = step.inputs[:2]
    sums = "float" if dtypes.is_half(errors.dtype) else "double"
    macros = {"TB_I": ctype(ids.dtype), "TB_S": sums, "TB_OUTPUT": len(step.inputs)}
    library, source, lanes = _turning("lookup", errors.dtype, macros)
    nbytes, columns = written.nbytes(step), -(-g.length // lanes)
    cost, pointers, runtime = int(nbytes * 0.1), len(step.operands) + 1, native.runtime()
    vectors = max(1, columns // (TASKS_A_THREAD * runtime.threads))  # what a task has added up, it has in cache
    parts, group = -(-columns // vectors), -(-g.words // (TASKS_A_THREAD * runtime.threads))
    sizes = [g.count, g.words, g.length, errors.strides[0], g.pad_word, int(g.pad is not None), group, parts]
    sizes += [vectors, *written.words(alpha, beta), caches.PAST * (caches.go_past(nbytes) and beta == 0)]
    tasks = {"lut_number": 1, "lut_sum": parts + -(-g.words // group)}
    launches = [
        runtime.prepare(library.address(name), count, cost, pointers, sizes, [], 0) for name, count in tasks.items()
    ]
    occur = min(g.words, g.count)
    scratch = STATUS + 4 * (g.words + occur + g.count) + 128 + parts * (occur + 1) * lanes * SUM_BYTES[sums]

    def error(place: int, word: int) -> IndexError:
        return lookup.out_of_range(g, place, _as_given(ids, word))

    return _Checked(step, source, launches, -(-scratch // 8), error)


def _roi_library(step: Primitive) -> tuple[Library, str, int]:
    """roi.c for a step's types, its text, and the lanes of a vector."""
    pooled = [ref.dtype for ref in (*step.inputs, *step.others) if len(ref.shape) == 4]
    (places,) = filter(dtypes.is_integer, pooled)
    half = int(dtypes.is_half(step.output.dtype))
    return _turning("roi", step.output.dtype, {"TB_I": ctype(places), "TB_HALF": half})


def _prepare_roi(step: Primitive, library: Library, source: str, names: Sequence[str], tasks: Sequence[int],
                 scratch: int) -> jit.Prepared:  # fmt: skip
    """Launches of roi.c, the first of which checks the regions."""
    g = step.params[0]
    sizes = [g.images, g.C, g.H, g.W, g.regions, g.P, g.Q]
    cost, runtime = int(written.nbytes(step) * 0.3), native.runtime()
    launches = [
        runtime.prepare(library.address(name), count, cost, 5, sizes, [], 0) for name, count in zip(names, tasks)
    ]
    words = STATUS // 8 + scratch // 8
    return _Checked(step, source, launches, words, lambda place, image: regions.no_such_image(g, place, image))


def _prepare_roi_fprop(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """Pooling of regions: images copied with maps innermost, then vectors of maps times groups of regions."""
    g = step.params[0]
    library, source, lanes = _roi_library(step)
    vectors = -(-g.C // lanes)
    tasks = (1, vectors * g.H, vectors * -(-g.regions // lanes))
    copy, bins = math.prod(g.dimI[1:]) * vectors * VECTOR, g.regions * (g.P + g.Q) * 8
    names = "roi_fprop_check", "roi_turn", "roi_fprop"
    return _prepare_roi(step, library, source, names, tasks, copy + bins + VECTOR)


def _prepare_roi_bprop(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """The gradient of that, a map a task; halves add up in scratch."""
    g = step.params[0]
    library, source, _ = _roi_library(step)
    sums = 4 * math.prod(g.dimI) if dtypes.is_half(step.output.dtype) else 0
    return _prepare_roi(step, library, source, ("roi_bprop_check", "roi_bprop"), (1, g.C), -(-sums // 8) * 8)


def _prepare_nms(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """Suppression of boxes, by one task."""
    threshold, _, _, wider = step.params
    (boxes,) = step.inputs
    library, source = written.block_library("nms", written.block_macros(boxes.dtype))
    count, wide = boxes.shape[0], dtypes.compute(boxes.dtype)
    sizes = [count, *written.words(threshold, wider)]
    launch = native.runtime().prepare(library.address("nms"), 1, count * 100, 3, sizes, [], 0)
    scratch = -(-count * wide.itemsize // VECTOR) * VECTOR * 5 // 8
    return jit.Prepared(step, source, "nms", [launch], scratch)


PRIMITIVES: dict[str, Callable[[Primitive, Backend], jit.Prepared | None]] = {
    "put": _prepare_put,
    "take": _prepare_take,
    "lut_bprop": _prepare_lut,
    "roi_fprop": _prepare_roi_fprop,
    "roi_bprop": _prepare_roi_bprop,
    "nms": _prepare_nms,
}
