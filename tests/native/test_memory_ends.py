# SPDX-License-Identifier: Apache-2.0
"""Kernels touch nothing beside their operands. Here these end before a page that nobody may touch, or begin behind one,
as do the addresses of them: memory of our own has room around it, in which what is read beyond does not show."""

from __future__ import annotations

import sys

import pytest

PLACED = """
import ctypes, mmap
import numpy as np
import tensorbackend as tb
from tensorbackend.backends import native

PAGE, kept = mmap.PAGESIZE, []
protect = ctypes.CDLL(None, use_errno=True).mprotect
protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

def placed(shape, dtype, last):
    "An array of ones that ends with the pages that may be touched or, unless `last`, begins with them."
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    pages = -(-nbytes // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, pages + 1):
        assert protect(start + page * PAGE, PAGE, 0) == 0
    first = PAGE + (pages * PAGE - nbytes if last else 0)
    array = np.frombuffer(memory, np.uint8, nbytes, first).view(dtype).reshape(shape)
    array[...] = 1
    return be.view(array, min_dims=0)

class Launch(native.Launch):
    "One whose addresses and numbers end with a page that may be touched."
    __slots__ = ("memory",)

    def __init__(self, *rest):
        super().__init__(*rest)
        run = self.run_on
        self.memory = mmap.mmap(-1, 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        assert protect(start + PAGE, PAGE, 0) == 0
        def run_at_the_end(words):
            self.memory[PAGE - len(words) : PAGE] = words
            run(ctypes.c_void_p(start + PAGE - len(words)))
        self.run_on = run_at_the_end

native.Launch = Launch
be = tb.Backend.allocate_backend("cpu", rng_seed=0)
assert be.jit
for last in (True, False):
    def new(*shape, dtype=DTYPE):
        return placed(shape, dtype, last)
    RUN
"""

PRODUCTS = """
    for m, k, n in ((5, 7, 3), (1, 33, 17), (40, 16, 48), (13, 70, 1), (70, 5, 33)):
        for a, b in ((new(m, k), new(k, n)), (new(k, m).T, new(n, k).T)):
            out = new(m, n)
            out[:] = be.dot(a, b) + out
            assert (out.get() == k + 1).all()
"""
POOLING = """
    for op, N, (side, stride) in zip(("max", "avg", "l2", "avg"), (1, 3, 16, 16), ((2, 2), (3, 1), (3, 2), (2, 2))):
        layer = be.pool_layer(DTYPE, op, N, 2, H=7, W=9, R=side, S=side, str_h=stride, str_w=stride)
        I, O, grad = new(*layer.dimI), new(*layer.dimO), new(*layer.dimI)
        places = [new(*layer.dimO, dtype="uint8")] if op == "max" else []
        be.fprop_pool(layer, I, O, *places)
        assert (O.get() == (side if op == "l2" else 1)).all()
        be.bprop_pool(layer, O, grad, *places, **({"X": I, "Y": O} if op == "l2" else {}))
"""
NORMALISATION = """
    for N, C, W in ((1, 5, 3), (16, 3, 4), (9, 20, 7)):
        layer = be.lrn_layer(DTYPE, N, C, W=W, J=3)
        I, O, denom, delta = (new(*layer.dimI) for _ in range(4))
        be.fprop_lrn(layer, I, O, denom, bpower=0.75)
        be.bprop_lrn(layer, I, O, I, delta, denom, bpower=0.75)
"""
CONVOLUTION = """
    for sizes in ({"N": 1, "C": 3, "K": 5}, {"N": 16, "C": 5, "K": 8}, {"N": 3, "C": 9, "K": 9, "groups": 9},
                  {"N": 5, "C": 9, "K": 9, "groups": 9, "R": 7, "S": 5, "pad_w": 2}):
        layer = be.conv_layer(DTYPE, **{"H": 7, "W": 9, "R": 3, "S": 3, "pad_h": 1, **sizes})
        I, F, O = new(*layer.dimI), new(*layer.dimF), new(*layer.dimO)
        be.fprop_conv(layer, I, F, O)
        be.bprop_conv(layer, F, O, new(*layer.dimI))
        be.update_conv(layer, I, O, new(*layer.dimF))
    for N in (2, 7, 16):
        layer = be.conv_layer(DTYPE, N, 5, 2 * N, H=7, W=9, R=3, S=2)
        I, F, O = new(N, 5, 1, 7, 9), new(2 * N, 5, 1, 3, 2), new(*layer.dimO)
        be.conv(layer, *(x.transpose(1, 2, 3, 4, 0) for x in (I, F)), out=O)
        assert (O.get() == 30).all()
"""
PLACES = """
    for rows, width, n in ((5, 3, 7), (9, 16, 20), (3, 65, 33)):
        at = new(n, dtype="int32")
        out, table = new(n, width), new(rows, width)
        out[:] = be.take(table, at, 0)
        be.compound_bprop_lut(n, at.reshape(1, n), new(width, n), None, table, None, 1.0, 0.0)
        assert (table.get()[1] == n).all() and not table.get()[2:].any()
"""
SHORT_ROWS = """
    for rows, width in ((70, 3), (70, 17), (33, 100), (90, 8)):
        x, scale, bias = new(rows, width), new(1, width), new(rows, 1)
        wider, out, sums = new(rows, 2 * width), new(rows, width), new(rows, 1)
        out[:] = x * scale + bias + wider[:, 1 : width + 1] + wider[:, ::2]
        sums[:] = be.sum(x * scale, axis=1)
        for axis in (0, 1):
            x[:] = be.cumsum(scale * bias, axis)
            out[:] = be.cumsum(x, axis) - out
"""
APART = """
    for rows, width in ((1, 1000), (70, 33)):
        wide, out, sums = new(rows, 2 * width), new(rows, width), new(rows, 1)
        for view in (wide[:, 1::2], wide[::-1, width - 1 :: -1], new(width, rows).T):
            out[:] = view
            out[:] = view * view + out
            assert (out.get() == 2).all()
            sums[:] = be.sum(view, axis=1)
            assert (sums.get() == width).all()
        out[:] = be.cumprod(out, 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what mprotect and mmap are told is Linux's")
@pytest.mark.parametrize("dtype", ["float32", *(pytest.param(x, marks=pytest.mark.ci) for x in ("float64", "float16"))])
def test_nothing_beside_the_operands_is_touched(cc, run_python, dtype) -> None:
    run = "".join([PRODUCTS, POOLING, NORMALISATION, CONVOLUTION, PLACES, SHORT_ROWS, APART])
    run_python(PLACED.replace("RUN", run.strip()).replace("DTYPE", repr(dtype)))
