# SPDX-License-Identifier: Apache-2.0
"""Products of the compiled CPU backend by NumPy's BLAS: launches of `kernels/c/blas.c`, which the clock may choose.

On most processors `gemm.c` is as fast or faster. What a library takes for an unknown processor may be slow, too: so it
is used where it was timed, never by a rule.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os

from tensorbackend.backends import blas, jit, native, written
from tensorbackend.backends.compiler import Library
from tensorbackend.graph.plan import Primitive, Ref

__all__ = ["prepare"]

STRIPE, LEAST, MOST_STRIPES = 512, 128, 16
"""Rows or columns of a stripe, for each of which the library copies the other operand, and of a half of what is shorter
than two, so that two threads have one each; stripes at most. What the clock chose counts for any number of threads."""


def prepare(step: Primitive, cost: int) -> tuple[str, jit.Prepared] | None:
    """What computes the product, in words, and its launch, which takes about `cost` nanoseconds of a thread.

    None where NumPy has no OpenBLAS, for several matrices, for types that it does not add up, and for operands with no
    axis of stride 1. Raises `CompileError`.
    """
    found, (x, y), out = blas.library(), step.inputs, step.output
    alike = x.dtype == y.dtype == out.dtype and math.prod(out.shape[:-2]) == 1
    if found is None or not alike or out.dtype.name not in found.products:
        return None
    (m, n), k = out.shape[-2:], x.shape[-1]
    left, right, target = _lines(x), _lines(y), _lines(step.target)
    fits = target is not None and not target[0] and step.target.dtype == out.dtype
    if left is None or right is None or step.tail is None and not fits:
        return None
    in_target = fits and (step.tail is None or not step.tail.in_place)
    line = target[1] if in_target else n
    if not found.wide and max(m, n, k, left[1], right[1], line) >= 1 << 31:
        return None
    others = [*step.beside, step.target]
    runtime, compiled = native.runtime(), _library(found.wide)
    longest = max(m, n)
    stripe = max(-(-longest // MOST_STRIPES), min(STRIPE, max(LEAST, -(-longest // 2))))
    functions = (found.products[out.dtype.name], found.set_threads, found.get_threads)
    size = [
        *map(_address, functions), m, n, k, left[0], right[0], left[1], right[1], line, int(m >= n), stripe,
        1 + len(others) + (not in_target), runtime.address("tb_run"),
    ]  # fmt: skip
    words, text = [0], ""
    if step.tail is not None:
        words, text = written.tail(step.tail, step.product, line, [ref.broadcast_to(out.shape) for ref in others])
    pointers = 2 + len(others) + (not in_target)
    address = compiled.address(f"tb_blas_f{8 * out.dtype.itemsize}")
    launch = runtime.prepare(address, 1, cost, pointers, size, words, len(step.scalars))
    scratch = 0 if in_target else -(-m * n * out.dtype.itemsize // 8)
    name = f"{found.name}, stripes of {stripe}"
    source = "\n".join(filter(None, [f"// {name}", text]))
    return name, jit.Prepared(step, source, step.name, [launch], scratch)


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value


def _lines(ref: Ref) -> tuple[int, int] | None:
    """Whether columns lie side by side, not rows, and elements from one of these to the next; None: neither do."""
    (rows, columns), (row, column) = ref.shape[-2:], ref.strides[-2:]
    if (columns == 1 or column == 1) and (rows == 1 or row >= columns):
        return 0, row if rows > 1 else columns
    if (rows == 1 or row == 1) and column >= rows:
        return 1, column
    return None


def _library(wide: bool) -> Library:
    """blas.c for a library with lengths of 64 bits, or of 32."""
    compiled = written.library(f'#define TB_INT {"int64_t" if wide else "int"}\n#include "blas.c"\n')
    _mend_children(compiled)
    return compiled


@functools.cache
def _mend_children(compiled: Library) -> None:
    """Have forked children forget what the parent's threads were doing."""

    def forget() -> None:
        threads, found = compiled.function("tb_blas_forget")(), blas.library()
        if threads and found is not None:
            found.set_threads(threads)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget)
