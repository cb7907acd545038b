# SPDX-License-Identifier: Apache-2.0
"""Pooling and response normalisation on the compiled CPU backend: files of `kernels/c`, their macros, their tasks.

How work is cut into tasks depends on sizes alone.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends import jit, native
from tensorbackend.backends.compiler import Library
from tensorbackend.codegen.render import ctype
from tensorbackend.graph.fuse import Primitive
from tensorbackend.kernel_files import kernel_path
from tensorbackend.settings import config

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = ["PRIMITIVES"]

TASK_BYTES = 1 << 17
"""Bytes that a task moves: some microseconds of work."""
STREAM_ABOVE = 48 << 20
"""Bytes that a call moves from which on results are stored past the cache."""
LRN_STRIP = 1024
"""Neighbouring pixels and images that a normalisation takes through all maps at a time."""
LRN_MAPS = 256
"""The longest window over maps that has a compiled kernel."""
POOL_CELLS = 1024
"""The most cells of a window that has a compiled kernel."""
_POOL_OPS = {"max": 0, "avg": 1, "l2": 2}
_BLOCK_MOVES = {
    "float32": ("(from)", "tb_put_f32(to, from, m, past)"),
    "float64": ("(from)", "tb_put_f64(to, from, m, past)"),
    "float16": ("(tb_load_f16(buffer, from, m), (const float *)buffer)", "tb_store_f16(to, from, m)"),
    "bfloat16": ("(tb_load_bf16(buffer, from, m), (const float *)buffer)", "tb_store_bf16(to, from, m)"),
}
"""For each type, how `TB_READ(buffer, from, m)` and `TB_WRITE(to, from, m, past)` move a block."""


@functools.lru_cache(maxsize=256)
def _library(file: str, macros: tuple, sanitize: bool, cflags: str) -> tuple[Library, str]:
    """A file compiled with macros, and its text. `sanitize` and `cflags` are part of what the answer is kept for."""
    head = "".join(f"#define {macro} {value}\n" for macro, value in macros)
    source = head + kernel_path(f"c/{file}.c").read_text(encoding="utf-8")
    return jit.compile_text(source), source


def _types(dtype: np.dtype) -> dict[str, Any]:
    """The macros by which a kernel works on blocks of a float type."""
    read, write = _BLOCK_MOVES[dtype.name]
    wide = dtypes.compute(dtype)
    return {
        "TB_X": ctype(dtype),
        "TB_W": ctype(wide),
        "TB_N": f"tb_i{8 * wide.itemsize}",
        "TB_SQRT": f"tb_sqrt_{dtypes.tag(wide)}",
        "TB_LOG2": f"tb_log2_{dtypes.tag(wide)}",
        "TB_EXP2": f"tb_exp2_{dtypes.tag(wide)}",
        "TB_READ(buffer, from, m)": read,
        "TB_WRITE(to, from, m, past)": write,
    }


def _nbytes(step: Primitive) -> int:
    return sum(math.prod(ref.shape) * ref.dtype.itemsize for ref in step.operands)


def _words(*numbers: float) -> tuple[int, ...]:
    """Floats as the 8-byte words of a launch."""
    return struct.unpack(f"{len(numbers)}q", struct.pack(f"{len(numbers)}d", *numbers))


def _prepared(step: Primitive, file: str, macros: dict[str, Any], tasks: int, cost: float, sizes: list[int],
              strides: list[int]) -> jit.Prepared:  # fmt: skip
    """The launch of the function of a file that has the op's name; its pointers are the step's operands."""
    macros |= {**_types(step.output.dtype), "TB_OUTPUT": len(step.inputs)}
    library, source = _library(file, tuple(macros.items()), config.sanitize, config.cflags)
    address = library.address(step.op.name)
    launch = native.runtime().prepare(address, tasks, int(cost), len(step.operands), sizes, strides, 0)
    return jit.Prepared(step, source, step.op.name, [launch], 0)


def _prepare_pool(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """Pooling or its gradient: rows of the result shared among threads."""
    g, alpha, beta = step.params
    if g.cells > POOL_CELLS:
        return None
    places = [ref.dtype for ref in step.operands if dtypes.is_integer(ref.dtype)]
    macros = {"TB_OP": _POOL_OPS[g.op], "TB_I": ctype(places[0]) if places else "char"}
    macros |= {"TB_PLAIN": int(alpha == 1 and beta == 0), "TB_CELLS": POOL_CELLS}
    rows, nbytes = math.prod(step.output.shape[:3]), _nbytes(step)
    group = max(1, min(TASK_BYTES * rows // nbytes, rows))
    sizes = [g.N, *g.dimI[:4], *g.dimO[:4], *g.window, *g.strides, *(before for before, _ in g.pads)]
    strides = [s for ref in step.operands for s in ref.strides[:4]]
    cost = nbytes * 0.05 + math.prod(g.dimO) * g.cells * 0.1
    return _prepared(step, "pool", macros, -(-rows // group), cost, [*sizes, group, *_words(alpha, beta)], strides)


def _prepare_lrn(step: Primitive, backend: Backend) -> jit.Prepared | None:
    """Normalisation across maps or its gradient: strips of pixels shared among threads."""
    g, alpha, beta, ascale, bpower = step.params
    if g.J > LRN_MAPS:
        return None
    macros = {"TB_STRIP": LRN_STRIP, "TB_MAPS": LRN_MAPS}
    length = math.prod(g.dimI[1:])
    strip = max(min(LRN_STRIP, LRN_STRIP * 8 // g.J // 16 * 16), 16)
    sizes = [g.C, length, g.J, strip, *_words(alpha, beta, ascale / g.J, bpower)]
    sizes.append(2 * (_nbytes(step) > STREAM_ABOVE))
    return _prepared(step, "lrn", macros, -(-length // strip), _nbytes(step) * 0.1, sizes, [])


PRIMITIVES: dict[str, Callable[[Primitive, Backend], jit.Prepared | None]] = {
    "pool_fprop": _prepare_pool,
    "pool_bprop": _prepare_pool,
    "lrn_fprop": _prepare_lrn,
    "lrn_bprop": _prepare_lrn,
}
