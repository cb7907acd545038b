# SPDX-License-Identifier: Apache-2.0
"""Layers as people write them with an array module, forward and backward by hand, on NumPy's and every backend's: they
give what the functions of this package give. Windows as columns and rows are with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import testing, utils
from tensorbackend.errors import ShapeError
from tensorbackend.function import arrays
from tests.functions.conftest import KINDS, shared


def softmax_forward(xp: Any, x: Any) -> Any:
    e = xp.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def softmax_backward(xp: Any, y: Any, g: Any) -> Any:
    """Through the Jacobian of each row, of which the diagonal is added to."""
    jacobian = -xp.einsum("ij,ik->ijk", y, y)
    places = xp.arange(y.shape[1])
    jacobian[:, places, places] += y
    found = xp.einsum("ik,ikj->ij", g, jacobian)
    again = xp.squeeze(xp.matmul(g[:, xp.newaxis, :], jacobian))
    testing.assert_allclose(again, found)
    return found


def row_layer_backward(xp: Any, rows: Any, w: Any, g: Any) -> tuple[Any, Any, Any]:
    """The gradients by the filters, the bias and the rows; g may come flat."""
    g = g.reshape(rows.shape[0], rows.shape[1], w.shape[1])
    return xp.einsum("ijk,ijl->kl", rows, g), xp.sum(g, axis=(0, 1)), xp.einsum("ijl,kl->ijk", g, w)


def dense_backward(xp: Any, x: Any, w: Any, g: Any) -> tuple[Any, Any, Any]:
    flat, g = x.reshape(x.shape[0], -1), g.reshape(x.shape[0], -1)
    gx = xp.einsum("ik,jk->ij", g, w).reshape(x.shape)
    return gx, xp.einsum("ij,ik->jk", flat, g), g.sum(axis=0)


def cross_entropy_forward(xp: Any, yhat: Any, y: Any, eps: float = 1e-6) -> Any:
    return -xp.sum(y * xp.log(yhat + eps))


def some(*shape: int) -> np.ndarray:
    return np.random.RandomState(len(shape)).normal(size=shape).astype(np.float32)


@pytest.fixture(params=[*KINDS, "emulator"])
def xp(request, absent) -> Any:
    """The array modules in turn."""
    be = None if request.param == "numpy" else shared(request.param)
    if request.param in ("jit", "emulator") and not testing.compiles(be):
        absent("cpu", "no C compiler works here")
    return np if be is None else be.xp


def gradients(y: tb.Variable, inputs: list[tb.Variable], g: Any) -> list[Any]:
    return [v.array for v in tb.grad([y], inputs, [tb.Variable(g)])]


@pytest.mark.slow
def test_softmax(xp) -> None:
    x, g = xp.array(some(3, 4)), xp.array(some(3, 4)[::-1].copy())
    v = tb.Variable(x)
    y = F.softmax(v)
    testing.assert_allclose(softmax_forward(xp, x), y)
    testing.assert_allclose(softmax_backward(xp, y.array, g), gradients(y, [v], g)[0])


def test_softmax_of_far_apart_numbers(xp) -> None:
    x = xp.array(np.array([[0, 200], [-200, 0]], np.float32))
    for found in (softmax_forward(xp, x), F.softmax(x)):
        testing.assert_allclose(found, [[0, 1], [0, 1]])


def test_a_convolution_by_rows(xp) -> None:
    x, w, b = (xp.array(some(*shape)) for shape in ((2, 3, 5, 4), (18, 4), (4,)))
    inputs = [tb.Variable(a) for a in (x, w, b)]
    y = F.rowconv(*inputs, (3, 2), 2, 1)
    g = xp.array(some(*y.shape))
    rows = utils.im2row(x, 3, 2, 2, 2, 1, 1)
    testing.assert_allclose(xp.matmul(rows, w) + b, y)
    gw, gb, grows = row_layer_backward(xp, rows, w, g.reshape(-1))
    with pytest.raises(ShapeError, match="stride[\\s\\S]*at least 1"):
        utils.row2im(grows, 3, 2, 0, 2, 1, 1, 5, 4)
    gx = utils.row2im(grows, 3, 2, 2, 2, 1, 1, *x.shape[2:])
    for found, expected in zip((gx, gw, gb), gradients(y, inputs, g), strict=True):
        testing.assert_allclose(found, expected)


def test_a_dense_layer(xp) -> None:
    x, w, b = (xp.array(some(*shape)) for shape in ((3, 2, 4), (8, 5), (5,)))
    inputs = [tb.Variable(a) for a in (x, w, b)]
    y = F.dense(*inputs)
    g = xp.array(some(3, 5))
    testing.assert_allclose(xp.einsum("ij,jk->ik", x.reshape(3, 8), w) + b, y)
    for found, expected in zip(dense_backward(xp, x, w, g), gradients(y, inputs, g), strict=True):
        testing.assert_allclose(found, expected)


def test_cross_entropy(xp) -> None:
    yhat, y = xp.array(np.abs(some(3, 4)) + 0.1), xp.array(np.eye(3, 4, dtype=np.float32))
    inputs = [tb.Variable(yhat), tb.Variable(y)]
    loss = F.cross_entropy(*inputs)
    testing.assert_allclose(cross_entropy_forward(xp, yhat, y), loss)
    g_yhat, g_y = gradients(loss, inputs, xp.array(np.float32(1)))
    testing.assert_allclose(g_yhat, -y / (yhat + 1e-6))
    testing.assert_allclose(g_y, -xp.log(yhat + 1e-6))


@pytest.mark.parametrize("cover_all", [False, True])
def test_columns_are_the_windows_and_their_adjoint_adds_up(cover_all, xp) -> None:
    x = some(2, 3, 6, 5)
    windows = (2, 3, 2, 1, 1, 0, cover_all, 2, 1)  # kh, kw, sy, sx, ph, pw, cover_all, dy, dx
    columns = utils.im2col(xp.array(x), *windows)
    kh, kw, sy, sx, ph, pw, _, dy, dx = windows
    whole = np.pad(x, [(0, 0), (0, 0), (ph, ph + sy), (pw, pw + sx)])
    expected = np.zeros(columns.shape, np.float32)
    for i, j, p, q in np.ndindex(kh, kw, *columns.shape[4:]):
        expected[:, :, i, j, p, q] = whole[:, :, p * sy + i * dy, q * sx + j * dx]
    assert columns.shape[4] == (6 + 2 - 3 + cover_all) // 2 + 1
    testing.assert_allclose(columns, expected)
    g = some(*columns.shape)
    back = utils.col2im(xp.array(g), sy, sx, ph, pw, 6, 5, cover_all, dy, dx)
    found = np.asarray(arrays.moved(arrays.plain(back), None), np.float64)
    assert np.isclose(np.sum(found * x), np.sum(g.astype(np.float64) * expected), rtol=1e-5)


def test_convolution_by_columns(xp) -> None:
    x, w, b = (some(*shape) for shape in ((2, 3, 5, 4), (4, 3, 3, 2), (4,)))
    inputs = [tb.Variable(xp.array(a)) for a in (x, w, b)]
    y = F.convolution_2d(*inputs, (2, 1), (1, 0))
    columns = utils.im2col(inputs[0].array, 3, 2, 2, 1, 1, 0).reshape(2, 18, -1)
    by_columns = xp.matmul(inputs[1].array.reshape(4, 18), columns).reshape(y.shape) + xp.array(b.reshape(4, 1, 1))
    testing.assert_allclose(by_columns, y)
    g = xp.array(some(*y.shape))
    flat = g.reshape(2, 4, -1)
    gw = xp.einsum("nop,nkp->ok", flat, columns).reshape(w.shape)
    gcol = xp.matmul(inputs[1].array.reshape(4, 18).T, flat).reshape(2, 3, 3, 2, *y.shape[2:])
    gx = utils.col2im(gcol, 2, 1, 1, 0, 5, 4)
    for found, expected in zip((gx, gw, g.sum(axis=(0, 2, 3))), gradients(y, inputs, g), strict=True):
        testing.assert_allclose(found, expected)
