# SPDX-License-Identifier: Apache-2.0
"""Pooling: layers, the plain NumPy meaning of both passes, and the methods of the contract.

Both passes are calls, not nodes of trees: the largest of a window comes with its place, and `alpha` and `beta` belong
to the same pass over memory. Places count the cells of the whole window, padding included.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorbackend import ops
from tensorbackend.errors import ShapeError, complain
from tensorbackend.primitives import operands
from tensorbackend.primitives.geometry import Pad, PoolGeometry, each_tap, output_length, pad_pair, positive

__all__ = ["BPROP", "FPROP", "PoolLayer", "Pooling", "bprop_reference", "fprop_reference", "pool_geometry"]

KINDS = ("max", "avg", "l2")


# Meaning: one cell of all windows at a time


def _cells(g: PoolGeometry) -> Iterator[tuple[tuple, tuple, tuple]]:
    """For each cell of a window: its index, the windows that have it in the image, and their pixels."""
    return each_tap(g.dimI[:4], g.dimO[:4], g.window, g.strides, g.pads, (1, 1, 1, 1))


def _counts(g: PoolGeometry) -> np.ndarray:
    """How many cells of each window are inside the image."""
    counts = np.zeros((*g.dimO[:4], 1), np.int64)
    for _, windows, _ in _cells(g):
        counts[windows] += 1
    return counts


def _added(value: np.ndarray, alpha: float, beta: float, old: tuple) -> np.ndarray:
    value = value * value.dtype.type(alpha)
    return value + value.dtype.type(beta) * old[0] if old else value


def fprop_reference(I: np.ndarray, *rest: Any, dtype: Any = None) -> Any:
    """The pooled I (C, D, H, W, N): operands I and, where beta is not 0, the old output; then geometry, alpha, beta.

    Sums are of `dtype` (None: that of I). For max a pair: the values, and the places of the first that are largest.
    """
    *old, g, alpha, beta = rest
    I = I.astype(dtype or I.dtype, copy=False)
    if g.op == "max":
        best, places = _largest(I, g)
        return _added(best, alpha, beta, old), places
    total = np.zeros(g.dimO, I.dtype)
    for _, windows, pixels in _cells(g):
        total[windows] += I[pixels] if g.op == "avg" else I[pixels] * I[pixels]
    value = total / _counts(g).astype(I.dtype) if g.op == "avg" else np.sqrt(total)
    return _added(value, alpha, beta, old)


def _largest(I: np.ndarray, g: PoolGeometry) -> tuple[np.ndarray, np.ndarray]:
    """The largest of each window and its place; the first NaN wins."""
    best, places = np.empty(g.dimO, I.dtype), np.full(g.dimO, -1)
    for cell, windows, pixels in _cells(g):
        x, before = I[pixels], best[windows]
        wins = (places[windows] < 0) | (~(x <= before) & (before == before))
        best[windows] = np.where(wins, x, before)
        places[windows] = np.where(wins, np.ravel_multi_index(cell, g.window), places[windows])
    return best, places


def bprop_reference(E: np.ndarray, *rest: Any, dtype: Any = None) -> np.ndarray:
    """The gradient by the images: operands E; the places (max), or the forward input and output (l2); the old gradient
    where beta is not 0; then geometry, alpha, beta. Sums are of `dtype` (None: that of E)."""
    *arrays, g, alpha, beta = rest
    E = E.astype(dtype or E.dtype, copy=False)
    grad = np.zeros(g.dimI, E.dtype)
    if g.op == "avg":
        E = E / _counts(g).astype(E.dtype)
    elif g.op == "l2":
        E = np.where(arrays[1] != 0, E / arrays[1], 0).astype(E.dtype)
    for cell, windows, pixels in _cells(g):
        part = E[windows]
        if g.op == "max":
            part = np.where(arrays[0][windows] == np.ravel_multi_index(cell, g.window), part, 0)
        grad[pixels] += part
    used = {"max": 1, "avg": 0, "l2": 2}[g.op]
    return _added(grad * arrays[0] if g.op == "l2" else grad, alpha, beta, tuple(arrays[used:]))


def _operations(g: PoolGeometry, alpha: float, beta: float) -> int:
    return math.prod(g.dimO) * g.cells


FPROP = ops.call("pool_fprop", 1, fprop_reference, "The largest, mean or root of squares of windows.", _operations)
BPROP = ops.call("pool_bprop", 1, bprop_reference, "The gradient of pooling by its images.", _operations)


# Layers


def _one_or_pair(pad: Pad) -> int | Pad:
    return pad[0] if pad[0] == pad[1] else pad


class PoolLayer:
    """A pooling's parameters, worked out once: element type, sizes and shapes by their names in the contract.

    `op`; `N`, `C`, `K`, `M`, `P`, `Q`; `JTRS`, `DHW`, `MPQ`; `padding` (a pair where ends differ) and `strides` for
    maps, depth, height and width; `dimI`, `dimO` and as matrices `dimI2`, `dimO2`; `dimF2` None; `sizeI`, `sizeO`;
    `nOut`, the results of one image; `overlap`, 0.0 where windows do not overlap, else about how many hold a pixel.
    """

    def __init__(self, dtype: Any, op: str, geometry: PoolGeometry) -> None:
        g = self.geometry = geometry
        self.dtype, self.op = operands.float_type("pool_layer", dtype), op
        self.N, self.C, self.K, self.M, self.P, self.Q = g.N, g.C, g.K, g.M, g.P, g.Q
        self.JTRS, self.DHW, self.MPQ = g.window, g.dimI[1:4], g.dimO[1:4]
        self.padding, self.strides = tuple(map(_one_or_pair, g.pads)), g.strides
        self.dimI, self.dimO = g.dimI, g.dimO
        self.dimI2, self.dimO2, self.dimF2 = operands.matrix(g.dimI), operands.matrix(g.dimO), None
        self.sizeI, self.sizeO = operands.size(g.dimI), operands.size(g.dimO)
        self.nOut = self.dimO2[0]
        overlaps = any(s < w for s, w in zip(g.strides, g.window))
        self.overlap = float(math.prod(-(-w // s) for s, w in zip(g.strides, g.window))) if overlaps else 0.0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.op} {self.JTRS} of {self.dimI} -> {self.dimO} {self.dtype}>"


def pool_geometry(name: str, op: str, sizes: list[int], window: list[int], pads: list[Any], strides: list[Any],
                  caffe: bool = False) -> PoolGeometry:  # fmt: skip
    """The geometry of windows over images of `sizes` (N, C, D, H, W). Raises `ShapeError` as `pool_layer` says."""
    letters, stride_names = "CDHW", ("str_c", "str_d", "str_h", "str_w")
    steps = [w if s is None else positive(name, **{n: s})[0] for w, s, n in zip(window, strides, stride_names)]
    ends = [pad_pair(name, pad) for pad in pads]
    axes = list(zip(sizes[1:], window, ends, steps))
    results = [
        output_length(n, w, pad, s, pooling=True, caffe=caffe, what=f"{name}: padding of {letter}")
        for letter, (n, w, pad, s) in zip(letters, axes)
    ]
    for letter, count, (n, w, pad, s) in zip(letters, results, axes):
        given = f"{letter} = {n}, windows of {w}, padding {pad}, stride {s}"
        if count < 1:
            raise ShapeError(complain(f"{name}: no output", f"{given}, which gives {count}", "at least 1"))
        if (count - 1) * s - pad[0] >= n:
            raise ShapeError(complain(f"{name}: a window wholly outside the image", given, "a stride up to the window"))
    return PoolGeometry(*sizes, *results, op, *window, tuple(steps), tuple(ends))


# Methods of the contract


def _check_places(name: str, layer: PoolLayer, argmax: Any) -> None:
    """That places have a tensor of the output's size whose integers can hold them."""
    if argmax is None:
        raise ValueError(complain(f"{name}: no argmax", "None", f"a tensor of integers, {layer.sizeO} elements"))
    operands.check_integers(name, layer.geometry.cells, argmax=(argmax, layer.dimO))


class Pooling:
    """Pooling of the contract; `Backend` inherits it."""

    def pool_layer(self, dtype: Any, op: str, N: int, C: int, D: int = 1, H: int = 1, W: int = 1, J: int = 1,
                   T: int = 1, R: int = 1, S: int = 1, pad_c: int | Pad = 0, pad_d: int | Pad = 0,
                   pad_h: int | Pad = 0, pad_w: int | Pad = 0, str_c: int | None = None, str_d: int | None = None,
                   str_h: int | None = None, str_w: int | None = None) -> PoolLayer:  # fmt: skip
        """The parameters of a pooling of N images (C, D, H, W) by windows of J maps and T x R x S.

        `op` is 'max', 'avg' or 'l2'. A stride of None is the window's length; a pad is one number or a pair (before,
        after), below the window's length. Output lengths are those of `output_dim` with `pooling`. Raises `ValueError`
        for other kinds, `ShapeError` for sizes below 1, too much padding, no output, or (Caffe's sizes, strides above
        the window) a window that lies wholly outside.
        """
        if op not in KINDS:
            raise ValueError(complain("pool_layer: kind", repr(op), " or ".join(map(repr, KINDS))))
        sizes = positive("pool_layer", N=N, C=C, D=D, H=H, W=W)
        window = positive("pool_layer", J=J, T=T, R=R, S=S)
        pads, strides = [pad_c, pad_d, pad_h, pad_w], [str_c, str_d, str_h, str_w]
        caffe = self.check_caffe_compat()
        return PoolLayer(dtype, op, pool_geometry("pool_layer", op, sizes, window, pads, strides, caffe))

    def fprop_pool(self, layer: PoolLayer, I: Any, O: Any, argmax: Any = None, alpha: float = 1.0, beta: float = 0.0,
                   repeat: int = 1) -> None:  # fmt: skip
        """O = alpha times the pooled I + beta O. Tensors may have any shape of the right size.

        max: padding never wins, a NaN does; `argmax` (integers, O's size; required) becomes the place of the first
        largest in its window. avg: the mean over the cells inside the image. l2: the root of the sum of squares.
        `repeat` runs it as often, for timing. Raises `ShapeError`, `DTypeError`, `TypeError` for another layer or a
        factor that is no number, and `ValueError` when outputs overlap I or each other, or argmax is missing.
        """
        name = "fprop_pool"
        operands.check_layer(name, layer, PoolLayer, "pool_layer", KINDS)
        operands.check(name, layer.dtype, I=(I, layer.dimI), O=(O, layer.dimO))
        operands.check_output(name, O, I)
        scales = operands.numbers(name, alpha=alpha, beta=beta)
        places = []
        if layer.op == "max":
            _check_places(name, layer, argmax)
            operands.check_output(f"{name}: argmax", argmax, I, O)
            places = [(argmax, layer.dimO)]
        outputs = [(O, layer.dimO), *places]
        operands.call(self, FPROP, (layer.geometry, *scales), outputs, [(I, layer.dimI)], repeat)

    def bprop_pool(self, layer: PoolLayer, I: Any, O: Any, argmax: Any = None, alpha: float = 1.0, beta: float = 0.0,
                   repeat: int = 1, X: Any = None, Y: Any = None) -> None:  # fmt: skip
        """O = alpha times the gradient by the images + beta O: I is the error (`sizeO`), O has the images' size.

        max: each error goes to the pixel that `argmax` names; avg: error over count to each cell inside the image; l2:
        error x / y to each cell, 0 where y = 0, with `X` and `Y` the input and output of `fprop_pool` (required).
        Where windows overlap, what they send adds up. A pixel that no window holds gets 0 (l2: 0 times the pixel, NaN
        for one that is not finite). `repeat` and errors as `fprop_pool`.
        """
        name, extra = "bprop_pool", []
        operands.check_layer(name, layer, PoolLayer, "pool_layer", KINDS)
        operands.check(name, layer.dtype, I=(I, layer.dimO), O=(O, layer.dimI))
        scales = operands.numbers(name, alpha=alpha, beta=beta)
        if layer.op == "max":
            _check_places(name, layer, argmax)
            extra = [(argmax, layer.dimO)]
        elif layer.op == "l2":
            if X is None or Y is None:
                missing = " and ".join(letter for letter, x in (("X", X), ("Y", Y)) if x is None)
                raise ValueError(complain(f"{name}: l2 needs {missing}", "None", "what fprop_pool read and wrote"))
            operands.check(name, layer.dtype, X=(X, layer.dimI), Y=(Y, layer.dimO))
            extra = [(X, layer.dimI), (Y, layer.dimO)]
        operands.check_output(name, O, I, *(x for x, _ in extra))
        inputs = [(I, layer.dimO), *extra]
        operands.call(self, BPROP, (layer.geometry, *scales), [(O, layer.dimI)], inputs, repeat)
