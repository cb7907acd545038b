# SPDX-License-Identifier: Apache-2.0
"""Running sums and products on the compiled CPU backend: which lines `kernels/c/cumsum.c` goes over together, its tasks
and segments.

How work is cut depends on sizes alone, and so do the bits of a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends import jit, native, written
from tensorbackend.codegen.render import ctype
from tensorbackend.graph.plan import Primitive
from tensorbackend.user_kernels import merged

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = ["PRIMITIVES"]

STRIP = 256
"""Columns of a strip at most."""
ELEMENT_NS = 0.5
"""About how long one thread takes for an element."""


def _prepare_cumsum(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """Running sums or products."""
    (x,), out, (axis,) = step.inputs, step.output, step.params
    if 0 in x.shape:
        return None
    products = step.op.name == "cumprod"
    library, source = written.block_library("cumsum", _macros(x.dtype, out.dtype, products))
    others = [a for a in range(len(x.shape)) if a != axis and x.shape[a] != 1]
    beside = [] if out.strides[axis] == 1 != x.shape[axis] else [a for a in others if out.strides[a] == 1]
    places = [(x.shape[a], x.strides[a], out.strides[a]) for a in others if a not in beside]
    axes = merged(tuple(n for n, _, _ in places), [tuple(p[1] for p in places), tuple(p[2] for p in places)])
    length, lines = x.shape[axis], math.prod(axes.lengths)
    columns, x_next, out_next = (x.shape[beside[0]], x.strides[beside[0]], 1) if beside else (1, 0, 0)
    strips = -(-columns // STRIP)
    lot = max(1, jit.TASK_ELEMENTS // (length * min(columns, STRIP)))
    parts = -(-lines * strips // lot)
    segment = length if products else _segment(length, parts, columns)
    segments = -(-length // segment)
    sizes = [length, x.strides[axis], out.strides[axis], lines, lot, columns, x_next, out_next, parts, segment]
    sizes += [segments, len(axes.lengths)]
    strides = [number for of_axis in zip(axes.lengths, *axes.strides) for number in of_axis]
    name, cost = "column" if beside else "line", int(math.prod(x.shape) * ELEMENT_NS) + 20
    tasks = {f"cumsum_{name}_sums": parts * (segments - 1), f"cumsum_{name}s": parts * segments}
    pointers, runtime = 2 + (segments > 1), native.runtime()
    launches = [
        runtime.prepare(library.address(function), count, cost, pointers, sizes, strides, 0)
        for function, count in tasks.items() if count
    ]  # fmt: skip
    return jit.Prepared(step, source, step.op.name, launches, lines * columns * (segments - 1))


def _macros(x: np.dtype, out: np.dtype, products: bool) -> dict[str, Any]:
    """The macros of `cumsum.c` for types of elements and results."""
    if dtypes.is_float(out):
        written_from, sums, none = dtypes.compute(out), "double", "1.0" if products else "-0.0"
    else:
        written_from, sums, none = out, "tb_u64", str(int(products))
    return {
        "TB_NARROW": 1,
        "TB_STRIP": STRIP,
        **written.block_macros(x),
        "TB_Y": ctype(out),
        "TB_V": ctype(written_from),
        "TB_PUT(to, from, m, past)": written.block_macros(out)["TB_WRITE(to, from, m, past)"],
        "TB_S": sums,
        "TB_NONE": none,
        "TB_PRODUCTS": int(products),
        "TB_SCANS": int(dtypes.is_float(out) and not products),
        "TB_JOIN(x, y)": f"((x) {'*' if products else '+'} (y))",
    }


def _segment(length: int, parts: int, columns: int) -> int:
    """How many elements of a line a task adds up: all, where there are tasks enough."""
    if parts >= jit.SPLIT_BELOW:
        return length
    return max(jit.SEGMENT // min(columns, STRIP), -(-length // jit.SEGMENTS), 1)


PRIMITIVES: dict[str, Callable[[Primitive, Backend], jit.Prepared | None]] = {
    "cumsum": _prepare_cumsum,
    "cumprod": _prepare_cumsum,
}
