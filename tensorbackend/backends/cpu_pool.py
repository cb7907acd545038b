# SPDX-License-Identifier: Apache-2.0
"""Pooling and response normalisation on the compiled CPU backend: files of `kernels/c`, their macros, their tasks.

How work is cut into tasks depends on sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends import caches, jit, native, written
from tensorbackend.codegen.render import ctype
from tensorbackend.graph.plan import Primitive
from tensorbackend.primitives.geometry import PoolGeometry

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = ["PRIMITIVES"]

TASK_BYTES = 1 << 19
"""Bytes that a task moves: some microseconds of work, and rows enough for the processor to see what comes."""
LRN_STRIP = 512
"""Neighbouring pixels and images that a normalisation takes through all maps at a time."""
LRN_MAPS = 256
"""The longest window over maps that has a compiled kernel."""
POOL_CELLS = 1024
"""The most cells of a window that has a compiled kernel."""
USUAL_CELLS, USUAL_MAPS = (4, 9), (3, 5)
"""The cells of windows, and the maps of normalisations, for which kernels have a loop of their own."""
USUAL_WIDTHS, USUAL_STEPS = (2, 3), (1, 2)
"""The widths and the strides of windows for which rows of few images have a loop of their own."""
VECTOR_BYTES = 64
"""Bytes of a vector of `kernels/c/block_vectors.h`."""
LEAST_BYTES = 8
"""Less than the bytes of the shortest vectors: kernels of fewer bytes of images are the same."""
_POOL_OPS = {"max": 0, "avg": 1, "l2": 2}


def _streams(step: Primitive) -> int:
    """What a kernel is told: whether its results go past the caches."""
    results = sum(math.prod(ref.shape) * ref.dtype.itemsize for ref in (step.output, *step.others))
    return caches.PAST * caches.go_past(written.nbytes(step), results)


def _prepared(step: Primitive, file: str, macros: dict[str, Any], tasks: int, cost: float, sizes: list[int],
              strides: list[int]) -> jit.Prepared:  # fmt: skip
    """The launch of the function of a file that has the op's name; its pointers are the step's operands."""
    macros |= {**written.block_macros(step.output.dtype), "TB_OUTPUT": len(step.inputs)}
    macros["TB_BACK"] = int(step.op.name.endswith("bprop"))
    library, source = written.block_library(file, macros)
    address = library.address(step.op.name)
    launch = native.runtime().prepare(address, tasks, int(cost), len(step.operands), sizes, strides, 0)
    return jit.Prepared(step, source, step.op.name, [launch], 0)


def _side(g: PoolGeometry) -> int:
    """The side of windows that are squares over one map, with usual sides and strides, which leave no gaps; else 0."""
    (J, T, R, S), (str_c, str_d, str_h, str_w) = g.window, g.strides
    flat = (J, T, str_c, str_d) == (1, 1, 1, 1)  # so that maps and depth have no padding
    return R if flat and R == S in USUAL_WIDTHS and str_h == str_w in USUAL_STEPS else 0


def _lines(width: int, stride: int) -> int:
    """How many lines of the cache, with images of a pixel, blocks take together: as many as registers hold, which keep
    fewer windows with a longer stride. 0 if one is partly taken."""
    lines, rest = divmod(width, VECTOR_BYTES)
    return 0 if rest else math.gcd(lines, 2 * stride)


def _prepare_pool(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """Pooling or its gradient: rows of the result shared among threads."""
    g, alpha, beta = step.params
    if g.cells > POOL_CELLS:
        return None
    places = [ref.dtype for ref in step.operands if dtypes.is_integer(ref.dtype)]
    macros = {"TB_OP": _POOL_OPS[g.op], "TB_I": ctype(places[0]) if places else "char"}
    macros |= {"TB_PLAIN": int(alpha == 1 and beta == 0), "TB_CELLS": POOL_CELLS}
    usual = g.cells in USUAL_CELLS and g.S in USUAL_WIDTHS
    macros["TB_WHOLE"], macros["TB_ACROSS"] = (g.cells, g.S) if usual else (0, 0)
    width = g.N * dtypes.compute(step.output.dtype).itemsize
    macros["TB_BITS"] = int(len(places) > 0 and places[0].itemsize == 1 and width == 4 * g.N)
    # Only few images are pooled along the width; a text that many shapes share is compiled once.
    forward = step.op.name == "pool_fprop"
    side = 0 if forward else _side(g)
    # Shorter vectors beat those along the width, unless windows are dense.
    narrow = VECTOR_BYTES // 2 <= width < VECTOR_BYTES
    narrow &= usual if forward else side > 0
    narrow &= not (g.op == "max" and g.strides[3] == 1)
    few = width < VECTOR_BYTES and not narrow
    macros["TB_SPREAD"] = int(side > 0 and 2 * width <= VECTOR_BYTES)
    macros["TB_NARROW"] = int(narrow)
    macros["TB_LEAST"] = max(1 << min(width, VECTOR_BYTES).bit_length() - 1, LEAST_BYTES) if width else VECTOR_BYTES
    macros["TB_SIDE"] = 0 if few else side
    macros["TB_LINES"] = _lines(width, g.strides[3]) if macros["TB_SIDE"] else 0
    macros["TB_STEP"] = (g.strides[3] if g.strides[3] in USUAL_STEPS else 0) if few or side else 1
    rows, nbytes = math.prod(step.output.shape[:3]), written.nbytes(step)
    group = max(1, min(TASK_BYTES * rows // nbytes, rows))
    sizes = [g.N, *g.dimI[:4], *g.dimO[:4], *g.window, *g.steps, *(before for before, _ in g.pads)]
    strides = [s for ref in step.operands for s in ref.strides[:4]]
    cost = nbytes * 0.05 + math.prod(g.dimO) * g.cells * 0.1
    streams = _streams(step)
    # Of many images, neighbours along a row lie too far apart for the processor to see what comes.
    far = streams or (nbytes > caches.OWN_BYTES and width >= 2 * VECTOR_BYTES)
    sizes += [group, int(far), streams, *written.words(alpha, beta)]
    return _prepared(step, "pool", macros, -(-rows // group), cost, sizes, strides)


def _quarters(power: float) -> int:
    """How many quarters a power is, if it is 1 to 4 of them, else 0: roots are cheaper than powers."""
    return int(4 * power) if 4 * power in (1, 2, 3, 4) else 0


def _prepare_lrn(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """Normalisation across maps or its gradient: strips of pixels shared among threads."""
    g, alpha, beta, ascale, bpower = step.params
    if g.J > LRN_MAPS:
        return None
    macros = {"TB_STRIP": LRN_STRIP, "TB_MAPS": LRN_MAPS, "TB_WHOLE": g.J if g.J in USUAL_MAPS else 0}
    macros["TB_PLAIN"] = int(alpha == 1 and beta == 0)
    macros["TB_QUARTERS"] = _quarters(bpower) if dtypes.compute(step.output.dtype) == np.float32 else 0
    length = math.prod(g.dimI[1:])
    strip = max(min(LRN_STRIP, LRN_STRIP * 8 // g.J // 16 * 16), 16)
    sizes = [g.C, length, g.J, strip, *written.words(alpha, beta, ascale / g.J, bpower)]
    sizes.append(_streams(step))
    return _prepared(step, "lrn", macros, -(-length // strip), written.nbytes(step) * 0.1, sizes, [])


PRIMITIVES: dict[str, Callable[[Primitive, Backend], jit.Prepared | None]] = {
    "pool_fprop": _prepare_pool,
    "pool_bprop": _prepare_pool,
    "lrn_fprop": _prepare_lrn,
    "lrn_bprop": _prepare_lrn,
}
