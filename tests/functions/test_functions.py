# SPDX-License-Identifier: Apache-2.0
"""What the contract says of single functions beside their values: ties, extremes, nothing, refusals."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import re
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import dtypes, gradient_check, optimizers, testing
from tensorbackend.errors import DTypeError, ShapeError
from tensorbackend.function import arrays
from tensorbackend.function.type_check import InvalidType
from tensorbackend.graph import contraction
from tensorbackend.graph.tensor import Tensor

pytestmark = pytest.mark.rehearsed

FLAT = {"ceil": np.ceil, "fix": np.fix, "floor": np.floor, "sign": np.sign}


def test_public_names_are_functions() -> None:
    assert len(F.__all__) > 150
    assert not [name for name in F.__all__ if not inspect.isfunction(getattr(F, name))]


@pytest.mark.parametrize("name", FLAT)
def test_flat_functions_have_no_gradient(name, array, host) -> None:
    x = tb.Variable(array([-1.5, 0.3, 2.7]))
    y = getattr(F, name)(x)
    testing.assert_allclose(y, FLAT[name](np.array([-1.5, 0.3, 2.7])))
    F.sum(y).backward()
    assert x.grad is None


@pytest.mark.parametrize("function", [F.maximum, F.minimum, tb.fused(lambda x, n: x * n)])
def test_integers_have_no_gradient_from_rules_of_functions_own(function, array, host) -> None:
    x, n = tb.Variable(array([1.0, 3.0])), tb.Variable(array([2, 2], np.int32))
    y = function(x, n)
    y.grad = array([0.5, 0.5])
    y.backward()
    assert n.grad is None and x.grad.dtype == np.float32 and host(x.grad).any()


def test_integers_that_are_cast_have_no_gradient(array, host) -> None:
    x, n = tb.Variable(array([1.0, 2.0])), tb.Variable(array([1, 2], np.int32))
    F.sum(F.cast(x, np.float64) * 0.5 + F.cast(n, np.float64) * 0.5).backward()
    assert n.grad is None and host(x.grad).tolist() == [0.5, 0.5]


@pytest.mark.filterwarnings("error")
def test_casts_are_those_of_the_engine(be, array, host) -> None:
    x = array([[300.0, -5.0, np.nan], [1e20, -1.5, np.inf]], np.float64)
    assert host(F.cast(x, "uint8")).tolist() == [[255, 0, 0], [255, 0, 255]]
    assert host(F.cast(x, "int64")).tolist() == [[300, -5, 0], [2**63 - 1, -1, 2**63 - 1]]
    assert host(F.cast(x, "float16")).tolist()[1] == [np.inf, -1.5, np.inf]
    assert host(F.cast(array([1e300], np.float64), "float32")).tolist() == [np.inf]
    assert F.cast(x, "float32").array.shape == (2, 3)
    if be is None:
        assert F.cast(x.T, "float32").array.strides == (4, 12)


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_a_type_draw_no_warning(be, array, host) -> None:
    x = tb.Variable(array(1.0))
    (x * 3e38 + x * 3e38).backward()
    assert host(x.grad) == np.inf
    (x * -np.inf).backward()
    assert np.isnan(host(x.grad))
    F.sum(x).backward(loss_scale=1e300)
    x.copydata(tb.Variable(np.array(1e300)))
    assert host(x) == np.inf
    assert "max inf" in x.debug_print()
    n = tb.Variable(array([1, 2], np.uint8))
    n.copydata(tb.Variable(np.array([300.0, -1.0])))
    assert host(n).tolist() == [255, 0]
    y = np.array([1e200, 1.0, -np.inf])
    assert np.isnan(host(F.r2_score(array(y, np.float64), array(y, np.float64))))


def test_ties(array, host) -> None:
    a, b = tb.Variable(array([1.0, 2.0])), tb.Variable(array([1.0, 0.0]))
    for function, first, second in ((F.maximum, [1, 1], [0, 0]), (F.minimum, [1, 0], [0, 1])):
        a.cleargrad(), b.cleargrad()
        F.sum(function(a, b)).backward()
        assert host(a.grad).tolist() == first and host(b.grad).tolist() == second
    x = tb.Variable(array([-0.0, 0.0, 3.0, 3.0, 5.0]))
    for function, expected in (
        (F.relu, [0, 0, 1, 1, 1]), (lambda x: F.clipped_relu(x, 5.0), [0, 0, 1, 1, 0]),
        (lambda x: F.clip(x, 0.0, 3.0), [1, 1, 1, 1, 0]), (F.max, [0, 0, 0, 0, 1]), (F.min, [1, 1, 0, 0, 0]),
    ):  # fmt: skip
        x.cleargrad()
        F.sum(function(x)).backward()
        assert host(x.grad).tolist() == expected


@pytest.mark.parametrize(("dtype", "bound"), [("float16", 0.1), ("bfloat16", 0.7), ("float32", 0.7)])
@pytest.mark.parametrize("form", [lambda f: f, tb.fused], ids=["eager", "fused"])
def test_what_is_cut_off_has_no_gradient_where_the_bound_is_rounded(form, dtype, bound, array, host) -> None:
    x = tb.Variable(array([-1.0, 0.05, 1.0, 2.0], tb.dtypes.as_dtype(dtype)))
    assert dtype == "float32" or float(x.dtype.type(bound)) < bound
    F.sum(form(lambda x: F.clipped_relu(x, bound))(x)).backward()
    assert host(x.grad).tolist() == [0, 1, 0, 0]


def test_extremes_stay_finite(array, host) -> None:
    x = tb.Variable(array([[-1000.0, 0.0, 1000.0, 200.0]]))
    for function in (F.sigmoid, F.softplus, F.softmax, F.log_softmax, F.logsumexp):
        x.cleargrad()
        y = function(x)
        F.sum(y).backward()
        assert np.isfinite(host(y)).all() and np.isfinite(host(x.grad)).all()


def test_losses_of_scores_at_zero_have_their_gradient(array, host) -> None:
    y, w = tb.Variable(array([0.0, -0.0])), tb.Variable(array(np.zeros((3, 2))))
    F.bernoulli_nll(array([0.0, 1.0]), y).backward()
    assert host(y.grad).tolist() == [0.5, -0.5]
    F.negative_sampling(array([[1.0, 2.0]]), array([0], np.int32), w, np.ones, 1).backward()
    assert host(w.grad).tolist() == [[-0.5, -1.0], [0.5, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4)], ids=str)
def test_places_of_no_maxima_are_an_empty_array(array, host, shape) -> None:
    y, places = F.max_pooling_2d(array(np.zeros(shape)), 2, 1, return_indices=True)
    assert y.shape == places.shape == (*shape[:2], 3, 3)
    assert isinstance(places, np.ndarray) == isinstance(y.array, np.ndarray) and host(places).dtype == np.int32


def test_poolings_have_the_same_places_where_the_backend_sizes_as_caffe_does(be, host) -> None:
    if be is None:
        return
    values = np.random.default_rng(3).standard_normal((2, 3, 7, 8)).astype(np.float32)
    for pool, more in ((F.max_pooling_2d, (0, False)), (F.max_pooling_2d, (0, True)), (F.average_pooling_2d, (1,)),
                       (F.average_pooling_2d, (0,))):  # fmt: skip
        found = []
        for be.compat_mode in (None, "caffe"):
            try:
                x = tb.Variable(arrays.moved(values, be))
                y = pool(x, 2, 3, *more)
                F.sum(y * y).backward()
                found.append((host(y), host(x.grad)))
            finally:
                be.compat_mode = None
        for plain, caffe in zip(*found):
            np.testing.assert_array_equal(plain, caffe)


@pytest.mark.parametrize("size, parts", [(25, 11), (7, 25), (14, 41), (23, 21)])
def test_bins_of_means_are_those_of_maxima(array, host, size, parts) -> None:
    """A bin's ends are quotients of integers; rounded ones are off by a pixel where they are whole."""
    x = array(np.eye(size + 4).reshape(size + 4, 1, 1, size + 4))  # image k has a 1 in column k
    rois = array([[k, 2, 0, size + 1, 0] for k in range(size + 4)])
    found, largest = (host(f(x, rois, 1, parts, 1.0))[:, 0, 0] for f in (F.roi_average_pooling_2d, F.roi_pooling_2d))
    inside = np.array([[k * parts < (b + 1) * size and (k + 1) * parts > b * size for b in range(parts)]
                       for k in range(-2, size + 2)])  # fmt: skip
    np.testing.assert_array_equal(found > 0, inside)
    np.testing.assert_array_equal(largest > 0, inside)
    far = F.roi_average_pooling_2d(x, array([[1, -1e30, -1e30, 1e30, 1e30]]), 1, 1, 1.0)
    assert host(far).item() == pytest.approx(1 / (size + 4))


def test_lengths_of_rows_let_nan_through(array, host) -> None:
    x = array([[np.nan, 1.0], [0.0, 0.0]])
    losses = F.contrastive(x, array(np.zeros((2, 2))), array([0, 0], np.int32), reduce="no")
    np.testing.assert_array_equal(host(losses), [np.nan, 0.5])
    np.testing.assert_array_equal(host(F.normalize(x)), [[np.nan, np.nan], [0, 0]])


@pytest.mark.parametrize("size", [1e-25, 1e20, 1e38])
def test_rows_whose_squares_are_no_numbers_are_normalized(array, host, size) -> None:
    direction = np.array([[0.6, -0.8, 0.0], [2.0, 1.0, -2.0]])
    x = tb.Variable(array(direction * size))
    y = F.normalize(x, eps=0.0)
    y.grad = array([[1.0, 0.0, 0.0]] * 2)
    y.backward()
    norms = np.array([[1.0], [3.0]])
    unit = direction / norms
    wanted = (np.array([[1.0, 0.0, 0.0]]) - unit[:, :1] * unit) / norms
    np.testing.assert_allclose(host(y).astype(np.float64), unit, rtol=0, atol=5e-7)
    np.testing.assert_allclose(host(x.grad).astype(np.float64) * size, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("function, slope", [(F.elu, 1.0), (F.selu, 1.0507009873554805 * 1.6732632423543772)])
def test_slopes_far_below_zero_have_their_digits(array, host, function, slope) -> None:
    x = tb.Variable(array([-20.0, -80.0]))
    F.sum(function(x)).backward()
    np.testing.assert_allclose(host(x.grad), slope * np.exp([-20.0, -80.0]), rtol=2e-6)


@pytest.mark.parametrize("dtype", [np.float16, dtypes.BFLOAT16, np.float32])
def test_gelu_by_tanh_vanishes_far_below_zero(array, host, dtype) -> None:
    y = host(F.gelu(array([-4.0, -50.0, -30000.0], dtype), approximate=True)).astype(np.float64)
    wanted = -4.0 / (1 + math.exp(math.sqrt(8 / math.pi) * (4 + 0.044715 * 64)))
    assert y[0] == pytest.approx(wanted, rel=2.0**-8) and y[1:].tolist() == [0.0, 0.0]


def standard(x: tb.Variable, axes: tuple[int, ...]) -> tb.Variable:
    away = x - F.broadcast_to(F.mean(x, axes, keepdims=True), x.shape)
    return away / F.broadcast_to(F.sqrt(F.mean(away * away, axes, keepdims=True) + 1e-5), x.shape)


@pytest.mark.parametrize(("name", "normalized", "defined"), [
    ("layer", F.layer_normalization, lambda x, c, d: standard(x, (1,)) * c + d),
    ("batch", lambda x, c, d: F.batch_normalization(x, c, d, eps=1e-5), lambda x, c, d: standard(x, (0,)) * c + d),
    ("group", lambda x, c, d: F.group_normalization(x, 2, c, d),
     lambda x, c, d: F.reshape(standard(F.reshape(x, (5, 2, 3)), (2,)), (5, 6)) * c + d),
])  # fmt: skip
def test_normalizations_have_gradients_of_any_order(array, host, name, normalized, defined) -> None:
    random = np.random.default_rng(5)
    given = [random.normal(size=shape) for shape in ((5, 6), 6, 6)]
    rows = []
    for function in (normalized, defined):
        x, c, d = (tb.Variable(array(v)) for v in given)
        y, row = F.sum(function(x, c, d) ** 3), []
        for _ in range(3):
            gradients = tb.grad([y], [x, c], enable_double_backprop=True)
            row += [host(g) for g in gradients]
            y = F.sum(gradients[0] ** 2) + F.sum(gradients[1] ** 2)
        rows.append(row)
    for made, expected in zip(*rows, strict=True):
        error = 1e-9 if made.dtype == np.float64 else 1e-3
        np.testing.assert_allclose(made, expected, rtol=error, atol=error * abs(expected).max())


def test_powers_of_zero_have_gradients_of_any_order(array, host) -> None:
    x = tb.Variable(array([0.0, 1.0, 2.0]))
    for exponent, orders in ((0, [[0, 0, 0]]), (1, [[1, 1, 1], [0, 0, 0]]), (2, [[0, 2, 4], [2, 2, 2], [0, 0, 0]])):
        y = x**exponent
        for expected in orders:
            (y,) = tb.grad([F.sum(y)], [x], enable_double_backprop=True)
            assert host(y).tolist() == expected
    a, b = tb.Variable(array([0.0, 0.0, 0.0, 2.0])), tb.Variable(array([0.0, 1.0, 2.0, 0.0]))
    ga, gb = tb.grad([F.sum(a**b)], [a, b], enable_double_backprop=True)
    testing.assert_allclose(ga, [0, 1, 0, 0])
    testing.assert_allclose(gb, [0, 0, 0, np.log(2)])
    testing.assert_allclose(tb.grad([F.sum(ga)], [a])[0], [0, 0, 2, 0])
    testing.assert_allclose(tb.grad([F.sum(0.0**b)], [b])[0], [0, 0, 0, 0])


def by_minors(x: np.ndarray, order: int) -> np.ndarray:
    """A derivative of the determinant of a matrix: what is left of it without so many rows and columns, signed."""
    found = np.zeros(x.shape * order)
    for rows in itertools.permutations(range(len(x)), order):
        for columns in itertools.permutations(range(len(x)), order):
            rest = np.delete(np.delete(x, rows, 0), columns, 1)
            ranks = [sum(a > b for i, b in enumerate(at) for a in at[:i]) for at in (rows, columns)]
            sign = (-1) ** (sum(rows) + sum(columns) + sum(ranks))
            found[tuple(itertools.chain(*zip(rows, columns, strict=True)))] = sign * np.linalg.det(rest)
    return found


RANKS = [np.random.RandomState(0).normal(size=(4, rank)) @ np.random.RandomState(1).normal(size=(rank, 4))
         for rank in (4, 3, 2, 1, 0)]  # fmt: skip
RANKS[1] = np.array([[1.0, 2, 3, 4], [5, 6, 7, 8], [0, 0, 0, 0], [1, 0, -1, 2]])
SINGULAR = [RANKS[4], RANKS[1], np.eye(4)[[1, 0, 2, 3]] * [1.0, 2, 3, 0], np.eye(4)[[1, 0, 2, 3]] * [0.0, 2, 0, 3]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_determinants_of_any_matrix_have_two_derivatives(dtype, array, host) -> None:
    """At a matrix of zeros it was LinAlgError."""
    tolerance = {"rtol": 0, "atol": 1e-4 if dtype == np.float32 else 1e-11}
    matrices = [*RANKS, *SINGULAR]
    x, g = tb.Variable(array(matrices, dtype)), tb.Variable(array(np.arange(1, len(matrices) + 1), dtype))
    direction = np.random.RandomState(2).normal(size=(4, 4))
    (gx,) = tb.grad([F.batch_det(x)], [x], [g], enable_double_backprop=True)
    slope = F.sum(gx * array(np.broadcast_to(direction, x.shape), dtype))
    second, of_g = tb.grad([slope], [x, g], enable_double_backprop=True)
    for i, matrix in enumerate(matrices):
        expected = by_minors(matrix, 1)
        np.testing.assert_allclose(host(gx)[i], (i + 1) * expected, **tolerance)
        np.testing.assert_allclose(host(of_g)[i], (expected * direction).sum(), **tolerance)
        expected = np.einsum("ijkl,ij->kl", by_minors(matrix, 2), direction)
        np.testing.assert_allclose(host(second)[i], (i + 1) * expected, **tolerance)
    one = tb.Variable(array(matrices[1], dtype))
    F.det(one).backward()
    np.testing.assert_allclose(host(one.grad), by_minors(matrices[1], 1), **tolerance)


def test_determinants_have_derivatives_of_any_order(array, host) -> None:
    x = tb.Variable(array(RANKS[0], np.float64))
    directions = [array(np.random.RandomState(k).normal(size=(4, 4)), np.float64) for k in range(4)]
    y = F.det(x)
    for h in directions:
        (gx,) = tb.grad([y], [x], enable_double_backprop=True)
        y = F.sum(gx * h)
    tensor = by_minors(RANKS[0], 4)
    for h in directions:
        tensor = np.einsum("ij...,ij->...", tensor, host(h))
    np.testing.assert_allclose(host(y), tensor, rtol=1e-8)
    (zeros,) = tb.grad([y], [x])
    np.testing.assert_allclose(host(zeros), 0, atol=1e-8)
    with pytest.raises(np.linalg.LinAlgError, match="gradient of gradient of det: a singular matrix"):
        x.array[...] = 0
        y = F.det(x)
        for h in directions[:3]:
            (gx,) = tb.grad([y], [x], enable_double_backprop=True)
            y = F.sum(gx * h)


def test_determinants_of_what_is_no_number_have_no_gradient_beside_others(array, host) -> None:
    x = tb.Variable(array([[[math.nan, 0], [0, 0]], [[0, 0], [0, 2]], [[math.inf, 0], [0, 0]]]))
    (gx,) = tb.grad([F.sum(F.batch_det(x))], [x], enable_double_backprop=True)
    (second,) = tb.grad([F.sum(gx)], [x])
    assert host(gx)[1].tolist() == [[2, 0], [0, 0]] and host(second)[1].tolist() == [[1, -1], [-1, 1]]
    assert np.isnan(host(second)[[0, 2]]).all() and np.isnan(host(gx)[[0, 2]]).any((1, 2)).all()


def test_matrices_without_an_inverse_are_named(array) -> None:
    with pytest.raises(np.linalg.LinAlgError, match=r"^inv: a singular matrix\n.*shape \(2, 2\)\n"):
        F.inv(array(np.zeros((2, 2))))
    x = np.stack([np.eye(3), 2 * np.eye(3), np.ones((3, 3)), np.zeros((3, 3))])
    with pytest.raises(np.linalg.LinAlgError, match=r"^batch_inv: a singular matrix\n.*number 2 of shape \(4, 3, 3\)"):
        F.batch_inv(array(x))


@pytest.mark.parametrize("zeros", [[], [1], [1, 3], [0, 2, 3]], ids=str)
def test_products_with_zeros_have_gradients(zeros, array, host) -> None:
    numbers, weights = np.array([1.5, -2.0, 3.0, 0.5]), np.array([0.3, 1.1, -0.7, 2.0])
    numbers[zeros] = 0
    first = [np.prod(np.delete(numbers, i)) for i in range(4)]
    second = [sum(weights[i] * np.prod(np.delete(numbers, [i, k])) for i in range(4) if i != k) for k in range(4)]
    x = tb.Variable(array(numbers))
    for y in (F.prod(x), F.cumprod(x)[3]):
        (g,) = tb.grad([y], [x], enable_double_backprop=True)
        testing.assert_allclose(g, first)
        testing.assert_allclose(tb.grad([F.sum(g * array(weights))], [x])[0], second)
    x = tb.Variable(array(np.outer([1.0, 0.0, 2.0], numbers)))
    (g,) = tb.grad([F.sum(F.prod(x, 0, keepdims=True))], [x])
    testing.assert_allclose(g, np.outer([0, 2, 0], numbers**2))


@pytest.mark.parametrize("zeros", [[], [7], [0, 19999], [3, 500, 501]], ids=str)
def test_gradients_of_long_running_products_take_linear_time(zeros, array, host) -> None:
    rng = np.random.default_rng(0)
    numbers = np.exp(rng.normal(size=20000) * 0.01) * rng.choice([-1, 1], 20000)
    weights = rng.normal(size=20000)
    numbers[zeros] = 0
    expected, behind = np.zeros(20000), 0.0
    before = np.concatenate([[1], np.cumprod(numbers)[:-1]])
    for i in reversed(range(20000)):  # S_i = g_i + x_{i+1} S_{i+1}, times the product of what comes before
        behind = weights[i] + (numbers[i + 1] * behind if i < 19999 else 0)
        expected[i] = before[i] * behind
    x = tb.Variable(array(numbers))
    (g,) = tb.grad([F.sum(F.cumprod(x) * array(weights))], [x])
    testing.assert_allclose(g, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("number", [0.5, 1, np.float64(0.5), np.float16(2)])
@pytest.mark.parametrize("loss", [
    F.squared_error, F.mean_squared_error, F.absolute_error, F.mean_absolute_error, F.cross_entropy,
    lambda a, b: F.huber_loss(a, b, 0.75), lambda a, b: F.huber_loss(a, b, 0.75, "no"),
], ids=["squared", "mean_squared", "absolute", "mean_absolute", "cross_entropy", "huber", "huber_no"])  # fmt: skip
def test_losses_of_pairs_take_numbers(loss, number, array, host) -> None:
    """They were a ValueError of unpacking."""
    values, full = array([[0.25, 2.0, 3.0]]), array(np.full((1, 3), number))
    for place in (0, 1):
        x, same = tb.Variable(values), tb.Variable(values)
        y = loss(x, number) if place == 0 else loss(number, x)
        expected = loss(same, full) if place == 0 else loss(full, same)
        assert (y.dtype, y.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(host(y), host(expected), rtol=1e-6, atol=1e-6)
        F.sum(y).backward()
        F.sum(expected).backward()
        np.testing.assert_allclose(host(x.grad), host(same.grad), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("number", [2, 2.5, True, np.float64(2.5)])
def test_numbers_are_broadcast_beside_arrays(number, be, array, host) -> None:
    x = tb.Variable(array([[1.0], [2.0]], np.float16))
    made = F.broadcast(number, x, array(np.zeros(3), np.float16))
    assert [(y.shape, y.dtype, y.device) for y in made] == [((2, 3), np.float16, be)] * 3
    assert (host(made[0]) == number).all()
    F.sum(made[0] * made[1]).backward()
    assert host(x.grad).tolist() == [[3 * number]] * 2
    whole = F.broadcast(array([1, 2], np.int32), number)[1]
    assert whole.dtype == (np.float32 if isinstance(number, float) else np.int32) and (host(whole) == number).all()
    with pytest.raises(TypeError, match="broadcast: no arrays"):
        F.broadcast(number, number)


def test_losses_of_ignored_and_empty_batches_are_zero(array, host) -> None:
    for x, t in (([[1.0, 2.0]], [-1]), (np.zeros((0, 2)), np.zeros(0))):
        v = tb.Variable(array(x))
        loss = F.softmax_cross_entropy(v, array(t, np.int32))
        loss.backward()
        assert host(loss) == 0 and host(v.grad).shape == v.shape and not host(v.grad).any()


def test_what_is_ignored_may_be_anything(array, host) -> None:
    """Rows that a mask has emptied, or NaN of padding, get to no gradient, once and twice."""
    t = array([-1, 2, -1, -1], np.int32)
    x = tb.Variable(array([[np.nan, 1, 2], [0, 1, 0], [-np.inf, -np.inf, -np.inf], [np.inf, 0, np.inf]]))
    for reduce in ("mean", "sum", "no"):
        (g,) = tb.grad([F.sum(F.softmax_cross_entropy(x, t, reduce=reduce))], [x], enable_double_backprop=True)
        (gg,) = tb.grad([F.sum(g * g)], [x])
        for found in (host(g), host(gg)):
            assert not found[[0, 2, 3]].any() and found[1].all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_labels_that_are_no_class_are_nan(dtype, array, host) -> None:
    x, t = np.float32([[1, 2], [3, 5], [4, 0], [1, 1]]), array([0, 2, 1, -7], np.int32)
    for function, ignored in (
        (lambda v: F.softmax_cross_entropy(v, t, reduce="no"), ()),
        (lambda v: F.softmax_cross_entropy(v, t, ignore_label=-7, reduce="no"), (3,)),
        (lambda v: F.hinge(v, t, reduce="no"), ()),
        (lambda v: F.select_item(v, t), ()),
    ):
        v = tb.Variable(array(x, dtype))
        y = function(v)
        F.sum(y).backward()
        assert y.dtype == v.grad.dtype == np.dtype(dtype)
        for found in (host(y), host(v.grad)):
            rows = np.isnan(found.reshape(4, -1))
            assert rows.any(1).tolist() == rows.all(1).tolist() == [False, True, False, not ignored]
        assert not ignored or not host(v.grad)[3].any()
        with tb.using_config("debug", True), pytest.raises(IndexError, match="no class"):
            function(v)
    rows = array(np.ones((3, 2)))
    with pytest.raises(IndexError, match="negative_sampling"):
        F.negative_sampling(array(x), t, rows, lambda shape: np.zeros(shape, np.int64), 1)


def test_labels_that_are_neither_0_nor_1_show(array, host) -> None:
    """As labels that are no class: a negative loss, or the loss of a pair alike, would pass for a good one."""
    scores, rows = tb.Variable(array([[1.0, 2.0, -1.0, 0.5, 3.0]])), tb.Variable(array(np.ones((5, 2))))
    t = array([[0, 2, -1, 1, -2]], np.int32)
    for x, function, wrong in (
        (scores, lambda v: F.sigmoid_cross_entropy(v, t, reduce="no"), [0, 1, 0, 0, 1]),
        (rows, lambda v: F.contrastive(v, array(np.zeros((5, 2))), t[0], reduce="no"), [0, 1, 1, 0, 1]),
    ):
        y = function(x)
        F.sum(y).backward()
        assert np.isnan(host(y)).ravel().tolist() == [bool(w) for w in wrong]
        assert np.isnan(host(x.grad).reshape(5, -1)).all(1).tolist() == [bool(w) for w in wrong]
        with tb.using_config("debug", True), pytest.raises(IndexError, match="no class\n.*given +2 for 2"):
            function(x)
    assert np.isnan(host(F.sigmoid_cross_entropy(scores, t))) and host(scores.grad)[0, 2] == 0
    (g,) = tb.grad([F.sum(F.sigmoid_cross_entropy(scores, t, reduce="no"))], [scores], enable_double_backprop=True)
    (gg,) = tb.grad([F.sum(g)], [scores])
    assert np.isnan(host(gg)).tolist() == [[False, True, False, False, True]] and host(gg)[0, 2] == 0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_sigmoid_that_is_sure(dtype, array, host) -> None:
    """Infinite scores have their loss, and far ones a slope that 1 - sigmoid would round to nothing."""
    far = 12.0 if dtype == "float16" else 20.0
    x, t = tb.Variable(array([np.inf, -np.inf, np.inf, -np.inf, far, -far], dtype)), [1, 0, 0, 1, 1, 0]
    loss = F.sigmoid_cross_entropy(x, array(t, np.int32), reduce="no")
    F.sum(loss).backward()
    small = np.exp(-far)
    testing.assert_allclose(loss, [0, 0, np.inf, np.inf, small, small], rtol=0.1, atol=0)
    testing.assert_allclose(x.grad, [0, 0, 1, -1, -small, small], rtol=0.1, atol=0)


def test_there_may_be_one_class(array, host) -> None:
    x, t = tb.Variable(array([[0.5], [-2.0], [3.0]])), array([0, 0, 0], np.int32)
    for function, y, slopes in (
        (lambda: F.hinge(x, t, reduce="no"), [[0.5], [3.0], [0.0]], [[-1], [-1], [0]]),
        (lambda: F.hinge(x, t) * 3.0, 3.5, [[-1], [-1], [0]]),
        (lambda: F.select_item(x, t), [0.5, -2.0, 3.0], [[1], [1], [1]]),
    ):
        x.cleargrad()
        found = function()
        F.sum(found).backward()
        assert host(found).tolist() == y and host(x.grad).tolist() == slopes


def test_a_label_of_a_byte_picks_in_any_row(array, host) -> None:
    """Rows are counted in more than the labels' type holds."""
    x, t = np.arange(900.0).reshape(3, 300), [255, 0, 199]
    v = tb.Variable(array(x))
    y = F.select_item(v, array(t, np.uint8))
    F.sum(y).backward()
    assert host(y).tolist() == [255, 300, 799]
    assert np.flatnonzero(host(v.grad)).tolist() == [255, 300, 799]


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_labels_of_any_integers_select(kind, array, host) -> None:
    x, t = tb.Variable(array(np.arange(12.0).reshape(3, 4))), array([3, 0, 4], kind)
    y = F.select_item(x, t)
    F.sum(y).backward()
    np.testing.assert_array_equal(host(y), [3, 4, np.nan])
    np.testing.assert_array_equal(host(x.grad), [[0, 0, 0, 1], [1, 0, 0, 0], [np.nan] * 4])


def test_what_is_resized_depends_on_its_neighbours_alone(array, host) -> None:
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 0, 3] = np.nan
    y = host(F.resize_images(array(x), (7, 7)))[0, 0]
    assert np.isnan(y).sum() == 6 and np.isnan(y[:2, 4:]).all()


@pytest.mark.parametrize("loss, size", [(F.softmax_cross_entropy, 2), (F.sigmoid_cross_entropy, (2, 3))])
def test_labels_of_a_type_without_the_ignored_number_all_count(loss, size, array, host) -> None:
    random = np.random.RandomState(0)
    x, t = random.normal(size=(2, 3)), random.randint(0, 2, size)
    v, w = tb.Variable(array(x)), tb.Variable(array(x))
    found, expected = loss(v, array(t, np.uint8)), loss(w, array(t, np.int32))
    found.backward()
    expected.backward()
    np.testing.assert_array_equal(host(found), host(expected))
    np.testing.assert_array_equal(host(v.grad), host(w.grad))


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5), np.float16(0.5), np.int64(2)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numbers_of_numpy_change_no_type(number, dtype, array, host) -> None:
    """As Python's; float64 is the one that is a `float` too, and what `np.sqrt` gives."""
    x, plain = tb.Variable(array([-1.0, 2.0], dtype)), number.item()
    for function in (
        lambda n: x * n, lambda n: n - x, lambda n: x**n, lambda n: F.maximum(x, n), lambda n: F.leaky_relu(x, n),
        lambda n: F.clip(x, -n, n), lambda n: F.squared_difference(n, x), lambda n: tb.fused(lambda v: v * n)(x),
    ):  # fmt: skip
        found = function(number)
        assert found.dtype == dtype
        np.testing.assert_array_equal(host(found), host(function(plain)))


def test_numbers_of_numpy_change_no_type_in_a_program(be, array, host) -> None:
    if be is None:
        pytest.skip("programs are of tensors")
    x = array([1.0, 2.0])
    program = be.capture(lambda x, n: (tb.Variable(x) * n).array, x, np.float64(0.5))
    assert program.result.dtype == np.float32
    assert program(x, np.float64(3)).get().tolist() == [3.0, 6.0]


class Doubled(tb.FunctionNode):
    """A node on arrays that behave as NumPy's."""

    def forward(self, inputs: tuple) -> tuple:
        return (2 * inputs[0],)


@pytest.mark.parametrize("min_dims", [0, 2])
@pytest.mark.parametrize("part", [lambda x: x, lambda x: x[...], lambda x: x[1:3]], ids=["whole", "view", "part"])
def test_programs_take_the_tensors_of_each_call(part, min_dims, be) -> None:
    """In functions, too, which work on plain tensors and arrays on the same memory, and know those that there are."""
    if be is None:
        pytest.skip("programs are of tensors")
    functions = {
        "tree": lambda x: F.tanh(x).array,
        "of a part": lambda x: F.exp(x[:1]).array,
        "node": lambda x: Doubled().apply((x,))[0].array,
        "array": lambda x: be.xp.tanh(tb.Variable(x).array),
    }
    tensors = [part(be.array(np.full((3, 2), k, np.float32), min_dims=min_dims)) for k in range(3)]
    held = [tb.Variable(x).array for x in tensors]  # the same arrays that functions get, as long as these are held
    for name, function in functions.items():
        program = be.capture(function, tensors[0])
        for x in tensors:
            np.testing.assert_array_equal(program(x).get(), function(x).get(), name)
    del held


def test_single_elements(array, host) -> None:
    x, w = tb.Variable(array([[2.0]])), tb.Variable(array([[1.0], [1.0]]))
    F.sum(F.softmax(F.linear(F.tanh(x), w)) * 2).backward()
    assert host(x.grad).tolist() == [[0.0]] and host(w.grad).tolist() == [[0.0], [0.0]]


def strides(x: Any) -> list[int]:
    """By how many elements neighbours along each axis lie apart."""
    data = x.array if isinstance(x, tb.Variable) else x
    return [n // (data.dtype.itemsize if isinstance(data, np.ndarray) else 1) for n in data.strides]


@pytest.mark.slow
def test_images_stay_as_convolutions_make_them(array, host) -> None:
    x, w = tb.Variable(array(np.ones((2, 3, 4, 5)))), tb.Variable(array(np.ones((6, 3, 3, 3))))
    y = F.convolution_2d(x, w, pad=1)
    z = F.max_pooling_2d(F.relu(y) + 1, (2, 5))
    assert strides(y) == strides(F.relu(y)) == strides(1 - F.tanh(y)) == [1, 40, 10, 2] and strides(z) == [1, 4, 2, 2]
    assert strides(F.sum(y, 1)) == [20, 5, 1]
    F.sum(z * z).backward(retain_grad=True)
    assert strides(y.grad) == strides(y) and strides(w.grad) == strides(w) and strides(x.grad) == strides(x)
    assert (host(F.reshape(y, (2, 120))) == host(y).reshape(2, 120)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("window", "stride", "pad"), [(2, 2, 1), (3, 2, 1), (4, 1, 0)])
def test_images_that_lie_batch_first_are_pooled_where_they_lie(window, stride, pad) -> None:
    image = np.random.default_rng(0).permutation(96).astype(np.float32).reshape(2, 3, 4, 4)
    turned = np.moveaxis(np.ascontiguousarray(np.moveaxis(image, 0, -1)), -1, 0)
    found = []
    for data in (image, turned):
        x = tb.Variable(data)
        y, places = F.max_pooling_2d(x, window, stride, pad, cover_all=False, return_indices=True)
        z = F.average_pooling_2d(x, window, stride, pad)
        errors = [tb.Variable(y.array + 1), tb.Variable(z.array + 1)]
        (gx,) = tb.grad([y, z], [x], errors, enable_double_backprop=True)
        F.sum(gx * gx).backward()
        pooled = (y, gx) if window == 4 else (y, z, gx)  # one mean for each map is a plain reduction
        assert all(v.array.flags.c_contiguous == (data is image) for v in pooled)
        found.append([y.array, places, z.array, gx.array, *(v.grad for v in errors)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.slow
def test_a_mixture_of_far_targets_has_a_finite_loss(array, host) -> None:
    names = [tb.Variable(array(np.full((2, 1), v))) for v in (0.0, 500.0, -500.0, 0.0, 0.0, 20.0)]  # tanh(20) is 1
    targets = [array(np.zeros((2, 1)))] * 2
    loss = F.gaussian_mixture_2d_nll(*names, *targets, reduce="no")
    F.sum(loss).backward()
    assert loss.shape == (2,) and np.isfinite(host(loss)).all() and (host(loss) > 1e4).all()
    assert all(np.isfinite(host(v.grad)).all() for v in names)


@pytest.mark.parametrize("c_hat", [0.0, -3.0, 7.5, -7.5, 8.0, 30.0, 200.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_by_correlations_follow_the_formula_near_1_and_behind_the_bound(dtype, c_hat, array, host) -> None:
    values = [0.0, 0.0, 0.0, 0.2, 0.3, c_hat, 0.1, 0.2]
    inputs = [tb.Variable(array([[v]], dtype)) for v in values]
    (found,) = tb.grad([F.gaussian_mixture_2d_nll(*inputs)], inputs[5:6], enable_double_backprop=True)
    z1, z2 = (values[i + 6] / np.exp(np.array(values[i + 3], np.longdouble)) for i in (0, 1))
    c, q = np.tanh(np.longdouble(c_hat)), max(1 / np.cosh(np.longdouble(c_hat)) ** 2, 1e-6)
    expected = -(z1 * z2 + c * (1 - (z1 * z1 + z2 * z2 - 2 * c * z1 * z2) / q))
    np.testing.assert_allclose(host(found)[0, 0], float(expected), rtol=1e-5 if dtype == "float32" else 1e-9)
    assert c_hat != 8.0 or abs(float(expected) - 4393.43) < 0.01
    for g in tb.grad([F.sum(found)], inputs[1:6]):
        assert np.isfinite(host(g)).all()


@pytest.mark.parametrize(("reduce", "c_hat"), [
    ("mean", 0.0), ("mean", 2.0), ("mean", -8.0), *(pytest.param(r, 2.0, marks=pytest.mark.slow) for r in ("sum", "no"))
])  # fmt: skip
def test_the_gradient_of_a_mixture_is_differentiated(c_hat, reduce, array) -> None:
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(2, 3)) for _ in range(5)] + [np.full((2, 3), c_hat)] + [np.ones((2, 1)), np.zeros((2, 1))]
    inputs = [array(x, "float64") for x in data]

    def gradients(*xs: Any) -> Any:
        return tuple(tb.grad([F.sum(F.gaussian_mixture_2d_nll(*xs, reduce=reduce))], xs, enable_double_backprop=True))

    starts = [array(rng.normal(size=x.shape), "float64") for x in data]
    gradient_check.check_backward(gradients, inputs, starts, eps=1e-6, atol=1e-4, rtol=1e-4)


def test_a_density_without_a_weight_has_a_gradient(array, host) -> None:
    w = tb.Variable(array(np.zeros((2, 3))))
    others = [array(np.full((2, 3), v)) for v in (0.1, 0.2, 1.0, 1.0, 0.5)]
    F.sum(F.gaussian_mixture_2d(w, *others, array(np.zeros((2, 1))), array(np.zeros((2, 1))))).backward()
    assert (host(w.grad) > 0.1).all()


def test_slopes_of_prelu_begin_below_zero(array, host) -> None:
    x, w = tb.Variable(array([[0.0, -0.0, -1.0]])), tb.Variable(array(0.25))
    F.sum(F.prelu(x, w)).backward()
    assert host(x.grad).tolist() == [[1.0, 1.0, 0.25]] and host(w.grad) == -1.0


@pytest.mark.parametrize("loss", [F.contrastive, F.triplet])
@pytest.mark.parametrize("margin", [0, -1.0])
def test_margins_are_above_zero(loss, margin, array) -> None:
    rows = array(np.ones((2, 3)))
    last = array([0, 1], np.int32) if loss is F.contrastive else rows
    with pytest.raises(ValueError, match="margin"):
        loss(rows, rows, last, margin=margin)


def test_a_column_may_need_no_gradient(array, host) -> None:
    lhs, rhs = tb.Variable(array(np.full((2, 1), 3.0))), tb.Variable(array(np.ones((2, 3))))
    y = F.broadcast_sub(lhs, rhs, lhs_bwd=False)
    F.sum(y).backward()
    assert (host(y) == 2).all()
    assert lhs.grad is None and (host(rhs.grad) == -1).all()


def test_bilinear_takes_all_linear_terms_or_none(array) -> None:
    e1, e2, w, v1 = (array(np.ones(shape)) for shape in ((2, 3), (2, 4), (3, 4, 5), (3, 5)))
    with pytest.raises(ValueError, match="1 of V1, V2 and b"):
        F.bilinear(e1, e2, w, v1)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, w: F.convolution_2d(x, w), r"3[\s\S]*5"),
        (lambda x, w: F.deconvolution_2d(x, w, outsize=(20, 20)), r"\(3, 3\) to \(20, 20\)"),
        (lambda x, w: F.max_pooling_2d(x, 5, cover_all=False), r"\(3, 3\)[\s\S]*\(5, 5\)"),
        (lambda x, w: F.im2col(x, 5), r"\(3, 3\)[\s\S]*\(5, 5\)"),
    ],
)
def test_no_output_is_refused_with_the_sizes(call, text, array) -> None:
    with pytest.raises(ShapeError, match=text):
        call(array(np.ones((1, 2, 3, 3))), array(np.ones((2, 2, 5, 5))))


@pytest.mark.parametrize(("length", "places"), [(1, [0]), (4, [0, 2]), (5, [0, 2, 4])])
def test_no_window_begins_behind_the_image(length, places, array, host) -> None:
    numbers = np.arange(1.0 * length).reshape(1, 1, length)
    x = tb.Variable(array(numbers))
    y = F.max_pooling_1d(x, 1, 2)
    F.sum(y).backward()
    assert host(y).tolist() == [[places]] and host(x.grad)[0, 0].tolist() == [float(i in places) for i in range(length)]
    again = host(F.unpooling_2d(y[..., None], (1, 1), (2, 1)))
    assert again.ravel().tolist() == [float(i) if i in places else 0.0 for i in range(places[-1] + 1)]


@pytest.mark.parametrize(("outsize", "expected"), [(3, [2, 4, 2]), (4, [2, 4, 2, 2]), (6, [2, 4, 2, 2, 0, 0])])
def test_unpooled_windows_reach_as_far_as_the_image(outsize, expected, array, host) -> None:
    x = tb.Variable(array(np.full((1, 1, 2, 1), 2.0)))
    y = F.unpooling_2d(x, (3, 1), (2, 1), (1, 0), (outsize, 1))
    F.sum(y).backward()
    assert host(y).ravel().tolist() == expected and host(x.grad).ravel().tolist() == [2.0, min(outsize - 1, 3)]
    with pytest.raises(ShapeError, match=r"unpooling_2d: outsize\n.*\(0, 1\)"):
        F.unpooling_2d(x, (3, 1), outsize=(0, 1))


def test_places_of_maxima_are_arrays_or_variables_like_what_is_put_there(be, array, host) -> None:
    x = array(np.random.RandomState(0).permutation(48).reshape(2, 1, 4, 6))
    y, places = F.max_pooling_2d(x, 2, return_indices=True)
    for given in (places, tb.Variable(places), array(host(places), np.int64)):
        found = host(F.upsampling_2d(y, given, 2, outsize=(4, 6)))
        np.testing.assert_array_equal(found, np.where(np.isin(host(x), host(y)), host(x), 0))
    for wrong in (places.reshape(-1), places.transpose(0, 1, 3, 2), places[:1]):
        with pytest.raises(ValueError, match=r"upsampling_2d: indexes\n.*\n  expected  \(2, 1, 2, 3\), as x"):
            F.upsampling_2d(y, wrong, 2)
    with pytest.raises(TypeError, match="upsampling_2d: [\\s\\S]*indexes.dtype is an integer type"):
        F.upsampling_2d(y, array(host(places), np.float32), 2)
    moved = arrays.moved(host(places), testing.make_backend("interpreter"))
    with pytest.raises(TypeError, match="upsampling_2d: arrays of different kinds"):
        F.upsampling_2d(y, host(places) if be is not None else moved, 2)


def test_pyramids_of_odd_images(array, host) -> None:
    numbers = -np.random.RandomState(0).permutation(70).reshape(1, 2, 5, 7) - 1.0
    parts = [[numbers[0, :, a:b, c:d].max((1, 2)) for c, d in ((0, 3), (3, 7))] for a, b in ((0, 2), (2, 5))]
    y = F.spatial_pyramid_pooling_2d(array(numbers), 2)
    expected = np.concatenate([numbers.max((2, 3)).ravel(), np.moveaxis(parts, 2, 0).ravel()])
    assert y.shape == (1, 10, 1, 1) and host(y).ravel().tolist() == expected.tolist()
    with pytest.raises(ShapeError, match=r"spatial_pyramid_pooling_2d\n.*\(5, 7\), 3 levels"):
        F.spatial_pyramid_pooling_2d(array(numbers), 3)


def test_what_is_no_float_is_padded_in_its_type(array, host) -> None:
    for dtype, value in ((np.int32, 2**24 + 1), (np.int8, -1), (np.uint8, 255), (np.bool_, 1)):
        y = F.pad(array([1, 0], dtype), 1, constant_values=value)
        np.testing.assert_array_equal(host(y), np.pad(np.array([1, 0], dtype), 1, constant_values=value), strict=True)
    words = F.pad_sequence([array([1, 2**24 + 1], np.int32), array([3], np.int32)], padding=-1)
    assert words.dtype == np.int32 and host(words).tolist() == [[1, 2**24 + 1], [3, -1]]


def test_a_repeated_letter_of_einsum_reads_the_diagonal_alone() -> None:
    """Not the matrix: of a tensor it is a view."""
    be = testing.make_backend("jit-python", rng_seed=0)
    x = be.array(np.arange(18.0).reshape(2, 3, 3), min_dims=0)
    view = contraction.einsum("kii->ki", [x])
    assert isinstance(view, Tensor)
    assert view.get().tolist() == [[0, 4, 8], [9, 13, 17]]
    be.cleanup_backend()


@pytest.mark.parametrize(
    ("expression", "left", "right"),
    [
        ("...ij,...jk->...ik", (2, 3, 4), (4, 2)),
        ("...,...b->...", (3,), (2,)),
        ("i...,...", (2, 3), (4, 3)),
        ("...i,...i", (4, 3, 2), (3, 2)),
        ("...i,...i", (4, 1, 2), (3, 1)),
        ("ij,jk->ik", (2, 1), (3, 4)),
        ("ij,jk", (2, 3), (1, 4)),
        ("ij,ij->ij", (1, 3), (2, 1)),
        ("ii,ij->i", (1, 1), (3, 2)),
        ("ij,i->j", (2, 3), (1,)),
    ],
)
def test_further_axes_may_be_fewer_in_an_operand(expression, left, right, array, host) -> None:
    a, b = (np.arange(1.0, 1 + np.prod(shape)).reshape(shape) for shape in (left, right))
    x, y = tb.Variable(array(a)), tb.Variable(array(b))
    found = F.einsum(expression, x, y)
    F.sum(found).backward()
    np.testing.assert_array_equal(host(found), np.einsum(expression, a, b))
    total = np.einsum(expression, a, b).sum()
    ends = [np.einsum(expression, a, b + h).sum() - total for h in np.eye(b.size).reshape(-1, *right)]
    assert host(y.grad).ravel().tolist() == ends


def test_dropout(array, host) -> None:
    x = tb.Variable(array(np.ones((50, 40))))
    y = F.dropout(x, 0.25)
    F.sum(y).backward()
    kept = host(y)
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)} and 0.7 < (kept > 0).mean() < 0.8
    assert (host(x.grad) == kept).all()
    z, mask = F.dropout(x, 0.5, return_mask=True)
    assert (host(F.dropout(x, 0.5, mask=mask)) == host(z)).all()
    with tb.using_config("train", False):
        assert F.dropout(x, 0.5) is x
    with pytest.raises(ValueError, match="ratio"):
        F.dropout(x, 1.0)


def test_functions_draw_after_what_waits(be) -> None:
    backend = be or arrays.host_backend()
    x, found = backend.ones((4, 50)), []
    for block in (contextlib.nullcontext, backend.fuse):
        backend.rng_reset()
        before, after = backend.empty(x.shape), backend.empty(x.shape)
        with block():
            before[:] = backend.rand()
            y = F.dropout(x, 0.5)
            after[:] = backend.rand()
        found.append([before.get(), y.array.get(), after.get()])
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_functions_that_draw_keep_the_type(array, host, dtype) -> None:
    kind = tb.dtypes.as_dtype(dtype)
    x, w = (tb.Variable(array(np.ones(shape), kind)) for shape in ((4, 6), (3, 6)))
    kept, mask = F.dropout(x, 0.25, return_mask=True)
    made = [
        F.dropout(x, 0.25), kept, F.dropout(x, 0.25, mask=mask), F.gaussian(x, x), F.gumbel_softmax(x), F.rrelu(-x),
        F.simplified_dropconnect(x, w), F.simplified_dropconnect(x, w, use_batchwise_mask=False), F.zoneout(x, x),
    ]  # fmt: skip
    assert [y.dtype for y in made] == [kind] * len(made) and mask.dtype == kind
    assert set(np.unique(host(made[0]))) <= {kind.type(0), kind.type(1 / 0.75)}
    for y in made:
        x.cleargrad()
        F.sum(y).backward()
        assert x.grad.dtype == kind
    assert tb.fused(lambda x: F.dropout(x * 2, 0.25))(x).dtype == kind


DRAWING = {
    "gaussian": lambda x: F.gaussian(x, x),
    "gumbel_softmax": F.gumbel_softmax,
    "rrelu": lambda x: F.relu(F.rrelu(-x) + x),
    "zoneout": lambda x: F.zoneout(x, 2 * x),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", DRAWING)
def test_functions_that_draw_are_the_same_fused_and_captured(backend, name, dtype) -> None:
    x = backend.array(np.linspace(-2, 2, 28).reshape(4, 7), dtype=dtype, min_dims=0)
    found = []
    for form in (lambda f: f, tb.fused, lambda f: backend.capture(lambda x: f(tb.Variable(x)).array, x)):
        call = form(DRAWING[name])
        backend.rng_reset()
        y = call(x)
        y = y if isinstance(y, tb.Variable) else tb.Variable(y)
        assert y.dtype == x.dtype
        found.append(y.array.get())
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize("shapes", [((2, 1), (2, 50)), ((1, 50), (2, 50)), ((2, 50), (2, 1))])
def test_each_element_of_a_broadcast_has_its_own_draw(array, host, shapes) -> None:
    a, b = array(np.zeros(shapes[0])), array(np.ones(shapes[1]))
    assert len(np.unique(host(F.gaussian(a, b)))) == 100
    kept = host(F.zoneout(a, b))
    assert (kept[:, :1] != kept).any() and (kept[0] != kept[1]).any()
    with tb.using_config("train", False):  # without draws the shape is the same
        assert F.gaussian(a, b).shape == F.zoneout(a, b).shape == (2, 50)


def test_dropped_weights_take_what_linear_takes(array, host) -> None:
    x, w, b = array(np.arange(12.0).reshape(3, 2, 2)), array(np.ones((5, 4))), array(np.ones(5))
    for shape in ((5, 4), (3, 5, 4)):
        y = F.simplified_dropconnect(x, w, b, mask=array(np.ones(shape)))
        np.testing.assert_allclose(host(y), 2 * host(F.linear(x, w, b)) - 1)
    drop = F.simplified_dropconnect
    for refused in (
        lambda: drop(x[:, :1, :1], w), lambda: drop(x, w[:, :1]), lambda: drop(x, w, w), lambda: drop(b, w),
        lambda: drop(x, b), lambda: drop(x, w, mask=w[:1]), lambda: drop(x, w, mask=array(np.ones((1, 5, 4)))),
    ):  # fmt: skip
        with pytest.raises(InvalidType, match="simplified_dropconnect: invalid inputs"):
            refused()


def test_operators_of_variables(array, host) -> None:
    x, a = tb.Variable(array([[1.0, -2.0], [3.0, 4.0]])), np.array([[1.0, -2.0], [3.0, 4.0]])
    pairs = [
        (x + 1, a + 1), (2 - x, 2 - a), (x * array(a), a * a), (array(a) / x, a / a), (x / 2, a / 2), (x // 2, a // 2),
        (x**2, a**2), (x @ x, a @ a), (-x, -a), (abs(x), abs(a)), (+x, a), (x.T, a.T), (x.sum(0), a.sum(0)),
        (x.mean(), a.mean()), (x.reshape(4), a.reshape(4)), (x.transpose(1, 0), a.T), (x.flatten(), a.ravel()),
        (x[0], a[0]), (x.transpose(), a.T), (array(a) @ x, a @ a),
    ]  # fmt: skip
    for found, expected in pairs:
        assert isinstance(found, tb.Variable) and found.dtype == np.float32
        testing.assert_allclose(found, expected)
    y = x
    y += 1
    assert y is not x and host(x).tolist() == a.tolist()
    assert x[0, 0].item() == 1.0 and len(x) == 2


def test_an_average_of_halves_whose_sums_are_too_large_for_them(array, host) -> None:
    x, weights = (tb.Variable(array(np.full(800, v), np.float16)) for v in (9.0, 10.0))
    y = F.average(x, 0, weights)
    y.backward()
    assert y.dtype == np.float16 and host(y) == 9.0
    testing.assert_allclose(x.grad, np.full(800, 1 / 800), rtol=1e-3)
    assert not host(weights.grad).any()


@pytest.mark.filterwarnings("error")
def test_running_statistics_hold_what_halves_do_not(array, host) -> None:
    x, ones = array(np.array([[-1000.0], [0.0], [1007.0]]), np.float16), array(np.ones(1), np.float16)
    mean, var = array(np.zeros(1), np.float32), array(np.zeros(1), np.float32)
    F.batch_normalization(x, ones, ones, running_mean=mean, running_var=var)
    values = host(x).astype(np.float64)
    testing.assert_allclose(mean, 0.1 * values.mean(0), rtol=1e-5)
    testing.assert_allclose(var, 0.1 * values.var(0, ddof=1), rtol=1e-5)
    half = array(np.full(1, 60000.0), np.float16)
    F.batch_normalization(x, ones, ones, running_var=half)
    assert host(half) == np.inf


def test_running_statistics_of_another_shape_are_refused_before_one_is_written(array, host) -> None:
    x, ones = array(np.arange(8.0).reshape(4, 2)), array(np.ones(2))
    for shapes in ((2,), (4,)), ((3, 2), (2,)):
        mean, var = (array(np.zeros(shape)) for shape in shapes)
        with pytest.raises(ShapeError, match=r"running_(mean|var)\n.*\n.*\(2,\), as gamma"):
            F.batch_normalization(x, ones, ones, running_mean=mean, running_var=var)
        assert not host(mean).any() and not host(var).any()


def test_running_statistics_of_integers_are_refused_before_one_is_written(array, host) -> None:
    """Decayed means would be cut to whole numbers."""
    x, ones = array(np.arange(8.0).reshape(4, 2)), array(np.ones(2))
    mean, var = array(np.zeros(2)), array(np.zeros(2), np.int32)
    with pytest.raises(DTypeError, match=r"batch_normalization: type of running_var\n  given     int32"):
        F.batch_normalization(x, ones, ones, running_mean=mean, running_var=var)
    assert not host(mean).any() and not host(var).any()


def test_rests_are_exact_whatever_the_quotient(array, host) -> None:
    x, d = np.float32([0.9, -0.9, 1e8, 5, -3e7, 7]), np.float32([0.3, 0.3, 3, np.inf, -0.1, -2])
    a, b = tb.Variable(array(x, np.float32)), tb.Variable(array(d, np.float32))
    y = F.fmod(a, b)
    assert (host(y) == np.fmod(x, d)).all()
    F.sum(y).backward()
    times = np.rint((x - np.fmod(x, d).astype(np.float64)) / d)
    assert (host(a.grad) == 1).all() and np.allclose(host(b.grad), -times, rtol=1e-6)
    testing.assert_allclose(F.fmod(a, 0.3), np.fmod(x, np.float32(0.3)))


def test_parts_between_places(array, host) -> None:
    for places in ([-2], [0, -1, 9], [2, 2], []):
        x = tb.Variable(array(np.arange(5.0)))
        parts = F.split_axis(x, places, 0)
        for part, expected in zip(parts, np.split(np.arange(5.0), places), strict=True):
            assert (host(part) == expected).all()
        F.sum(parts[0] * 2.0).backward()
        assert (host(x.grad) == np.where(np.arange(5) < len(host(parts[0])), 2, 0)).all()
    with pytest.raises(ValueError, match=r"split_axis[\s\S]*\[3, 1\] of 5"):
        F.split_axis(x, [3, 1], 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.squeeze(x, 2),
        lambda x: F.squeeze(x, (1, -1)),
        lambda x: F.expand_dims(x, 3),
        lambda x: F.stack([x, x], -4),
        lambda x: F.swapaxes(x, 0, 2),
        lambda x: F.moveaxis(x, 2, 0),
        lambda x: F.moveaxis(x, (0, 0), (0, 1)),
        lambda x: F.moveaxis(x, (0, 1), 0),
        lambda x: F.rollaxis(x, -3),
        lambda x: F.rollaxis(x, 0, 3),
        lambda x: F.split_axis(x, 2, 2),
        lambda x: F.repeat(x, 2, -3),
        lambda x: F.flip(x, 2),
        lambda x: F.fliplr(F.flatten(x)),
        lambda x: F.permutate(x, [0, 1], 2),
        lambda x: F.cumsum(x, 2),
        lambda x: F.cumprod(x, -3),
        lambda x: F.maxout(x, 1, 2),
        lambda x: F.scale(x, x[0], 3),
        lambda x: F.batch_normalization(x, x[:, 0], x[:, 0], axis=3),
    ],
)
def test_axes_that_are_not_there_are_refused(call, array) -> None:
    with pytest.raises(ShapeError, match="no such axis|named twice|numbers of axes"):
        call(tb.Variable(array(np.ones((2, 1)))))


@pytest.mark.parametrize("name", F.regions.__all__)
@pytest.mark.parametrize("image", [2, -1, 0.5, np.nan, np.inf])
def test_regions_of_no_image_are_refused(name, image, array) -> None:
    with pytest.raises(IndexError, match="whole numbers from 0 to 1"):
        getattr(F, name)(array(np.ones((2, 1, 4, 4))), array([[image, 0, 0, 3, 3]]), 2, 2, 1.0)


@pytest.mark.parametrize("name", F.regions.__all__)
@pytest.mark.parametrize(("images", "rois"), [
    ((2, 1, 4, 4), (3, 4)), ((2, 1, 4, 4), (5,)), ((2, 1, 4, 4), (1, 3, 5)),
    ((1, 4, 4), (3, 5)), ((1, 1, 1, 4, 4), (3, 5)),
], ids=str)  # fmt: skip
def test_regions_and_images_of_other_shapes_are_refused(name, images, rois, array) -> None:
    with pytest.raises(ShapeError, match=rf"{name}: shapes\n.*{re.escape(f'x {images}, rois {rois}')}"):
        getattr(F, name)(array(np.ones(images)), array(np.zeros(rois)), 2, 2, 1.0)


@pytest.mark.parametrize("corner", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", F.regions.__all__)
def test_regions_whose_corners_are_nowhere_are_refused(name, corner, array) -> None:
    for place in range(1, 5):
        rois = np.array([[0, 0, 0, 1, 1], [1, 0, 0, 3, 3]], np.float32)
        rois[1, place] = corner
        with pytest.raises(ValueError, match=f"{name}: corners of a region\n  given     .*\n  expected  finite"):
            getattr(F, name)(array(np.ones((2, 1, 4, 4))), array(rois), 2, 2, 1.0)


def test_regions_lie_where_they_do_whatever_the_images_are_of(host) -> None:
    x = np.zeros((1, 1, 1, 260), np.float32)
    x[..., 257] = 1
    rois = np.array([[0, 257, 0, 257, 0]], np.float32)
    for dtype in (np.float32, dtypes.BFLOAT16):
        np.testing.assert_array_equal(host(F.roi_pooling_2d(x.astype(dtype), rois, 1, 1, 1.0)), [[[[1]]]])


def test_one_of_equal_points_of_a_bin_has_the_gradient(array, host) -> None:
    """Points beyond the border are those on it."""
    x = tb.Variable(array(np.arange(9.0).reshape(1, 1, 3, 3)))
    y = F.roi_max_align_2d(x, np.array([[0, 2, 0, 3, 1]]), 1, 1, 1.0)
    y.grad = array(np.ones((1, 1, 1, 1)))
    y.backward()
    np.testing.assert_array_equal(host(y), [[[[4.25]]]])
    np.testing.assert_array_equal(host(x.grad), [[[[0, 0, 0.25], [0, 0, 0.75], [0, 0, 0]]]])


OF_WINDOWS = {
    "convolution": (F.convolution_2d, {"W": np.ones((2, 2, 2, 2))}, ("stride", "dilate", "groups")),
    "deconvolution": (F.deconvolution_2d, {"W": np.ones((2, 2, 2, 2))}, ("stride", "dilate", "outsize", "groups")),
    "local convolution": (F.local_convolution_2d, {"W": np.ones((2, 3, 3, 2, 2, 2))}, ("stride",)),
    "max pooling": (F.max_pooling_2d, {"ksize": 2}, ("ksize", "stride")),
    "average pooling": (F.average_pooling_2d, {"ksize": 2}, ("ksize", "stride")),
    "unpooling": (F.unpooling_2d, {"ksize": 2}, ("ksize", "stride")),
    "upsampling": (F.upsampling_2d, {"ksize": 2, "indexes": np.zeros((1, 2, 4, 4))}, ("ksize", "stride")),
    "pyramid": (F.spatial_pyramid_pooling_2d, {}, ("pyramid_height",)),
    "im2col": (F.im2col, {"ksize": 2}, ("ksize", "stride", "dilate")),
    "space2depth": (F.space2depth, {}, ("r",)),
    "depth2space": (F.depth2space, {}, ("r",)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "size"), [(name, size) for name in OF_WINDOWS for size in OF_WINDOWS[name][2]])
@pytest.mark.parametrize("given", [0, -1, 1.5, "x", [1, 2, 3]], ids=str)
def test_sizes_of_windows_are_ints_of_at_least_one(given, name, size, array) -> None:
    function, params, _ = OF_WINDOWS[name]
    params = {key: array(v) if isinstance(v, np.ndarray) else v for key, v in params.items()}
    with pytest.raises(ShapeError, match="expected  an int of at least 1"):
        function(array(np.ones((1, 2, 4, 4))), **params | {size: given})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a: F.add(a(np.ones((2, 3))), a(np.ones((2, 4)))), "add: shapes do not broadcast"),
        (lambda a: F.matmul(a(np.ones((2, 3))), a(np.ones((4, 3)))), r"matmul[\s\S]*\(2, 3\)[\s\S]*\(4, 3\)"),
        (lambda a: F.linear(a(np.ones((2, 3))), a(np.ones((5, 4)))), r"linear[\s\S]*W.shape\[1\]"),
        (lambda a: F.exp(a([1, 2], np.int32)), "exp[\\s\\S]*x.dtype is floating"),
        (lambda a: F.softmax(a(np.ones((2, 3))), axis=2), "softmax[\\s\\S]*axis < x.ndim"),
        (lambda a: F.reshape(a(np.ones((2, 3))), (4,)), "reshape[\\s\\S]*size"),
        (lambda a: F.softmax_cross_entropy(a(np.ones((2, 3))), a([0, 1])), "t.dtype is an integer type"),
        (lambda a: F.concat([a(np.ones((2, 3))), a(np.ones((3, 3)))]), "concat[\\s\\S]*shape"),
        (lambda a: F.sum(a([1.0]), axis=1), "sum[\\s\\S]*axis"),
        (lambda a: F.sum(a([1.0]), axis=-2), "sum[\\s\\S]*axis >= -1"),
        (lambda a: F.concat([a([1.0])] * 2, -3), "concat[\\s\\S]*axis >= -1"),
        (lambda a: F.average(a(np.ones((2, 3))), weights=a(np.ones(3))), "average[\\s\\S]*weights.shape == x.shape"),
        (lambda a: F.average(a(np.ones((2, 3))), 0, a(np.ones(3))), "average[\\s\\S]*weights.shape\\[0\\] == x.shape"),
    ],
)
def test_wrong_inputs_are_refused(call, text, array) -> None:
    with pytest.raises(InvalidType, match=text):
        call(array)


@pytest.mark.parametrize("number", [0, -1.0, float("nan")])
@pytest.mark.parametrize(("call", "text"), [
    (lambda x, n: F.huber_loss(x, x, n), "huber_loss: delta"),
    (lambda x, n: F.contrastive(x, x, np.zeros(2, np.int32), n), "contrastive: margin"),
    (lambda x, n: F.triplet(x, x, x, n), "triplet: margin"),
], ids=["huber_loss", "contrastive", "triplet"])  # fmt: skip
def test_bounds_of_losses_that_are_not_above_0_are_refused(call, text, number) -> None:
    with pytest.raises(ValueError, match=rf"{text}\n  given     {number}\n  expected  above 0"):
        call(np.ones((2, 3), np.float32), number)


OF_ONE_AXIS = {
    name: getattr(F, name)
    for name in ("squeeze", "expand_dims", "separate", "flip", "cumsum", "cumprod", "softmax", "sum", "rollaxis")
} | {
    "concat": lambda x, axis: F.concat([x, x], axis),
    "stack": lambda x, axis: F.stack([x, x], axis),
    "split_axis": lambda x, axis: F.split_axis(x, 1, axis),
    "repeat": lambda x, axis: F.repeat(x, 2, axis),
    "permutate": lambda x, axis: F.permutate(x, np.array([0]), axis),
    "maxout": lambda x, axis: F.maxout(x, 1, axis),
    "moveaxis": lambda x, axis: F.moveaxis(x, axis, 0),
    "moveaxis to": lambda x, axis: F.moveaxis(x, 0, axis),
    "swapaxes": lambda x, axis: F.swapaxes(x, axis, 0),
    "tensordot": lambda x, axis: F.tensordot(x, x, ([axis], [0])),
}


@pytest.mark.parametrize("axis", [4, -5])
@pytest.mark.parametrize("name", OF_ONE_AXIS)
def test_an_axis_out_of_range_is_no_other_axis(name, axis, array) -> None:
    with pytest.raises((ShapeError, InvalidType)):
        OF_ONE_AXIS[name](array(np.ones((1, 1, 1))), axis)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x, t: F.embed_id(np.arange(2), np.ones(3)), TypeError, "embed_id: .*W.ndim == 2"),
        (lambda x, t: F.embed_id(t, x), TypeError, "embed_id: .*float32.*x.dtype is an integer type"),
        (lambda x, t: F.accuracy(x, t), TypeError, "accuracy: .*float32.*t.dtype is an integer type"),
        (lambda x, t: F.negative_sampling(x, t, x, lambda s: np.zeros(s, np.int32), 2), TypeError,
            "negative_sampling: .*float32.*t.dtype is an integer type"),
        (lambda x, t: F.batch_matmul(F.reshape(x, (1, 2, 3)), F.reshape(x, (1, 2, 3))), TypeError,
            r"batch_matmul: .*\(1, 2, 3\), \(1, 2, 3\)"),
        (lambda x, t: F.batch_matmul(t, x), TypeError, "batch_matmul: .*a.ndim >= 2"),
        (lambda x, t: F.im2col(x, 2), ValueError, r"im2col: images\s.*\(2, 3\)"),
    ],
)  # fmt: skip
def test_wrong_types_and_ranks_are_told_in_the_name_of_the_function(call, error, text, array) -> None:
    with pytest.raises(error, match="(?s)" + text):
        call(array(np.ones((2, 3))), array([0.0, 1.0]))


@pytest.mark.parametrize("pool", [
    F.max_pooling_1d, F.max_pooling_2d, F.max_pooling_3d, F.average_pooling_1d, F.average_pooling_2d,
    F.average_pooling_3d,
], ids=lambda pool: pool.__name__)  # fmt: skip
def test_images_of_another_rank_are_refused(pool, array) -> None:
    """They were pooled along the axes that they had."""
    axes = int(pool.__name__[-2])
    assert pool(array(np.ones((1, 1, *(2,) * axes))), 2).size == 1
    for other in {1, 2, 3} - {axes}:
        with pytest.raises(ValueError, match=pool.__name__ + ": images"):
            pool(array(np.ones((1, 1, *(2,) * other))), 2)


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("unpooling_2d", (2,)), ("upsampling_2d", (np.zeros((2, 3)), 2)), ("spatial_pyramid_pooling_2d", (2,)),
        ("resize_images", ((2, 2),)), ("space2depth", (2,)), ("depth2space", (2,)), ("im2col", (2,)),
    ],
)  # fmt: skip
def test_images_without_their_axes_are_refused(name, others, array) -> None:
    """They met an unpacking or an empty minimum, whose message said nothing of images."""
    for shape in ((2, 3), (2, 3, 4), (1, 2, 3, 4, 4)):
        with pytest.raises(ShapeError, match=rf"{name}: images\n.*{re.escape(str(shape))}\n.*\(N, C, H, W\)"):
            getattr(F, name)(array(np.ones(shape)), *others)


@pytest.mark.parametrize("name", ["concat", "stack", "hstack", "vstack", "dstack", "pad_sequence"])
def test_no_arrays_are_refused_by_name(name) -> None:
    with pytest.raises(TypeError, match=f"{name}: no inputs"):
        getattr(F, name)([])


@pytest.mark.parametrize("name", ["add", "identity"])
def test_no_operands_are_refused_by_name(name) -> None:
    with pytest.raises(TypeError, match=f"{name}: no inputs"):
        getattr(F, name)()


def test_the_sum_of_one_is_a_variable(array, host) -> None:
    y = F.add(array([1.0, 2.0]))
    assert isinstance(y, tb.Variable) and host(y).tolist() == [1, 2]


@pytest.mark.parametrize("axis", [1, -1])
def test_an_axis_without_entries_is_separated_into_none(axis, array) -> None:
    assert F.separate(array(np.ones((3, 0))), axis) == ()
    assert [y.shape for y in F.separate(array(np.ones((3, 0))), 0)] == [(0,)] * 3


IMAGE, FILTERS = np.ones((2, 3, 4, 4)), np.ones((3, 3, 2, 2))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a: F.convolution_2d(a(IMAGE), a(np.ones((2, 3, 7, 7)))), "convolution_2d: no output\n.*(4, 4).*(7, 7)"),
        (lambda a: F.convolution_2d(a(IMAGE), a(FILTERS), stride=0), "convolution_2d: stride\n"),
        (lambda a: F.convolution_2d(a(IMAGE[0]), a(FILTERS)), "convolution_2d: images\n.*(3, 4, 4)"),
        (lambda a: F.convolution_3d(a(IMAGE), a(FILTERS)), "convolution_3d: images\n.*\n.*(N, C, D, H, W)"),
        (lambda a: F.convolution_1d(a(IMAGE), a(FILTERS)), "convolution_1d: images\n.*\n.*(N, C, L)"),
        (lambda a: F.convolution_nd(a(FILTERS[0, 0]), a(FILTERS)), "convolution_nd: images\n.*(2, 2)"),
        (lambda a: F.convolution_2d(a(IMAGE), a(IMAGE[:, :2])), "convolution_2d: invalid inputs"),
        (lambda a: F.deconvolution_2d(a(IMAGE), a(FILTERS), outsize=(1, 1)), "deconvolution_2d: sizes\n.*(1, 1)"),
        (lambda a: F.deconvolution_2d(a(IMAGE), a(IMAGE[:, :2])), "deconvolution_2d: invalid inputs"),
        (lambda a: F.deconvolution_2d(a(IMAGE[0]), a(FILTERS)), "deconvolution_2d: images\n.*(3, 4, 4)"),
        (lambda a: F.average_pooling_nd(a(np.ones((1,) * 6)), 1), "average_pooling_nd: images\n.*\n.*one to three"),
        (lambda a: F.max_pooling_2d(a(IMAGE), 0), "max_pooling_2d: windows\n"),
        (lambda a: F.rowconv(a(IMAGE), a(np.ones((5, 2))), a(np.ones(2)), 2), "rowconv: shapes\n.*(5, 2).*\n.*(12, F)"),
        (lambda a: F.rowconv(a(IMAGE), a(np.ones((12, 2))), a(np.ones(3)), 2), "rowconv: shapes\n.*(3,)"),
        (lambda a: F.rowconv(a(IMAGE[0]), a(np.ones((12, 2))), a(np.ones(2)), 2), "rowconv: images\n"),
        (lambda a: F.normalize(a(IMAGE), axis=5), "normalize: no such axis\n"),
        (lambda a: F.stack([a(np.ones((2, 3))), a(np.ones((4, 3)))]), "stack: shapes\n.*(2, 3) and (4, 3)"),
        (lambda a: F.stack([a([1.0]), a([1.0], np.float64)]), "stack: invalid inputs\n.*float64"),
        (lambda a: F.hstack([a(np.ones((2, 3))), a(np.ones((4, 3)))]), "hstack: invalid inputs"),
        (lambda a: F.vstack([a(np.ones(3)), a(np.ones(4))]), "vstack: invalid inputs"),
        (lambda a: F.dstack([a(np.ones(3)), a(np.ones(4))]), "dstack: invalid inputs"),
        (lambda a: F.pad_sequence([a(np.ones((1, 3))), a(np.ones((2, 4)))]), "pad_sequence: shapes\n"),
        (lambda a: F.transpose_sequence([a(np.ones((1, 3))), a(np.ones((1, 4)))]), "transpose_sequence: shapes\n"),
        (lambda a: F.crelu(a(np.ones((2, 3))), axis=2), "crelu: invalid inputs"),
        (lambda a: F.convolution_2d(a(IMAGE[:, :2]), a(FILTERS[:, :1]), groups=2), "convolution_2d: groups\n.*2 and 3"),
        (lambda a: F.deconvolution_2d(a(IMAGE), a(FILTERS), groups=2), "deconvolution_2d: groups\n.*6 and 3 maps"),
        (lambda a: F.max_pooling_2d(a(IMAGE), 2, 1, 3), "max_pooling_2d: padding of H\n"),
        (lambda a: F.average_pooling_2d(a(IMAGE), 2, 1, 3), "average_pooling_2d: padding of H\n"),
        (lambda a: F.flip(a(IMAGE), (0, 4)), "flip: no such axis\n.*(0, 4)"),
        (lambda a: F.flip(a(IMAGE), 0.5), "flip: axis is not an integer\n.*0.5\n  expected  an int$"),
        (lambda a: F.fliplr(a(np.ones(3))), "fliplr: no such axis"),
        (lambda a: F.flipud(a(1.0)), "flipud: no such axis"),
        (lambda a: F.tile(a(np.ones(3)), (2, -1)), "tile: reps\n.*(2, -1)"),
        (lambda a: F.lstm(a(np.ones((2, 3))), a(1.0)), "lstm: [cx].shape.[01]. does not exist"),
        (lambda a: F.lstm(a(1.0), a(np.ones((2, 12)))), "lstm: [cx].shape.[01]. does not exist"),
    ],
)
def test_errors_name_the_function_that_was_called(call, text, array) -> None:
    """They named what it is made of: conv_layer, deconvolution, matmul, sum, concat."""
    with pytest.raises((ValueError, InvalidType), match="^" + text.replace("(", r"\(").replace(")", r"\)")):
        call(array)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x * sqrt(2)", lambda x: x * np.sqrt(2)), ("exp(1 - 3) / x", lambda x: np.exp(-2) / x),
        ("abs(-2)\n * x", lambda x: 2 * x), ("x + 1/0", lambda x: x + np.inf),
        ("tanh(1)", lambda x: np.full(x.shape, np.tanh(1))),
    ],
)  # fmt: skip
def test_numbers_in_expressions_are_computed(text, expected, array, host) -> None:
    x = np.linspace(0.5, 2, 24).reshape(2, 3, 4)
    v = tb.Variable(array(x))
    found, squares = F.sum_axis02(v, None, text, "x * x * exp(1)")
    testing.assert_allclose(found, expected(x).sum((0, 2))[None, :, None], rtol=1e-5)
    F.sum(squares).backward()
    testing.assert_allclose(v.grad, 2 * x * np.exp(1), rtol=1e-5)


@pytest.mark.parametrize("text", ["sum(x)", "rand(x)", "cumsum(x)", "pow(x)", "invert(x)", "sqrt(x, y=3)", "x**2"])
def test_expressions_of_other_functions_are_refused(text, array) -> None:
    with pytest.raises(ValueError, match="sum_axis02: expression\n  given     .*\n  expected  x, y, numbers"):
        F.sum_axis02(array(np.ones((2, 3, 4))), expr1=text)


def test_a_modulo_is_refused(array) -> None:
    for x in (tb.Variable(array(IMAGE)), tb.Variable(array(IMAGE)).array):
        assert pow(x, 2).shape == IMAGE.shape
        if not isinstance(x, np.ndarray):
            with pytest.raises(TypeError, match="pow: a modulo is not supported\n  given     3\n"):
                pow(x, 2, 3)


@pytest.mark.parametrize("widths", [-1, 1.5, [1, 2, 3], [[1, 2]] * 3, [(0, -1), (0, 0)]], ids=str)
@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_widths_of_padding_are_refused_by_name(widths, mode, array) -> None:
    with pytest.raises(ValueError, match="pad: widths"):
        F.pad(array(np.ones((2, 3))), widths, mode)


def test_integers_are_padded_with_what_they_hold(array, host) -> None:
    for dtype, number in (("uint8", -1), ("uint8", np.float64(300)), ("int32", np.nan), ("int64", np.inf)):
        x = array([1, 2], dtype)
        with pytest.raises(ValueError, match=rf"pad: constant_values\n  given     .*\n  expected  a number .*{dtype}"):
            F.pad(x, 1, constant_values=number)
        with pytest.raises(ValueError, match=rf"pad_sequence: padding\n  given     .*\n  expected  .*{dtype}"):
            F.pad_sequence([x, x], 3, number)
    large = 2**53 + 1
    assert host(F.pad(array([1], np.int64), 1, constant_values=large)).tolist() == [large, 1, large]
    assert host(F.pad(array([1], np.int32), 1, constant_values=2.7)).tolist() == [2, 1, 2]  # as NumPy
    assert host(F.pad_sequence([array([1], np.int64)], 2, large)).tolist() == [[1, large]]


def test_measures_of_integers_are_no_integers(array, host) -> None:
    y, t = array([[1, 2], [3, 1], [0, 5]], np.int64), array([1, 0, 0], np.int32)
    ones = array([1, -1, 1], np.int32)
    measures = [F.accuracy(y, t), F.binary_accuracy(ones, t), F.r2_score(ones, t), *F.f1_score(y, t)[:1]]
    assert {m.dtype for m in measures} == {np.dtype(np.float32)}
    expected = [2 / 3, 2 / 3, 1 - 2 / (2 / 3), [2 / 3, 2 / 3]]
    for measure, value in zip(measures, expected):
        testing.assert_allclose(measure, np.array(value))
    assert F.accuracy(array([[True, False]], bool), array([0], np.int32)).dtype == np.float32


def test_labels_of_a_summary_are_classes(array, host) -> None:
    y, t = array(np.ones((2, 3))), array([-1, 1], np.int32)
    assert host(F.classification_summary(y, t)[3]).tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="a negative label"):
        F.classification_summary(y, t, ignore_label=-2)


def test_truths_of_any_bytes_are_0_and_1() -> None:
    mask = np.array([0, 1, 255, 2], np.uint8).view(np.bool_)
    np.testing.assert_array_equal(F.multiply(np.full(4, 3, np.float32), mask).array, [0, 3, 3, 3])
    assert mask.view(np.uint8).tolist() == [0, 1, 255, 2]


def misaligned(values: Any) -> np.ndarray:
    """A copy at an address that is no multiple of an element."""
    values = np.asarray(values)
    memory = np.zeros(values.nbytes + 1, np.uint8)
    found = np.ndarray(values.shape, values.dtype, memory, 1)
    found[...] = values
    return found


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_between_elements_are_copied(dtype) -> None:
    x = misaligned(np.arange(4, dtype=dtype))
    seen = arrays.tensor_of(x)
    assert seen.address % np.dtype(dtype).alignment == 0
    assert F.square(x).array.tolist() == [0, 1, 4, 9]
    p = tb.Parameter(x)
    p.grad = np.ones(4, dtype)
    rule = optimizers.SGD(lr=1.0).create_update_rule()
    rule.update(p)
    assert p.array.tolist() == [-1, 0, 1, 2]


def test_infinities_have_the_gradients_of_their_limits(array, host) -> None:
    x = tb.Variable(array([[math.inf, -math.inf, 1.0, 0.25]]))
    for reduce in ("no", "sum_along_second_axis"):
        x.cleargrad()
        F.sum(F.huber_loss(x, array(np.zeros((1, 4))), 0.5, reduce)).backward()
        assert host(x.grad).tolist() == [[0.5, -0.5, 0.5, 0.25]]
    x, w = tb.Variable(array([[math.inf, 2.0], [3.0, -2.0]])), tb.Variable(array([0.5, 0.25]))
    F.sum(F.prelu(x, w)).backward()
    assert host(w.grad).tolist() == [0, -2] and host(x.grad).tolist() == [[1, 1], [1, 0.25]]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ws": [[]], "bs": [[]]}, r"n_step_rnn: layer 0\n.*weights \[\], biases \[\]\n.*\[\(2, 3\), \(2, 2\)\]"),
        ({"ws": []}, r"n_step_rnn: 1 layers\n.*0 and 1 sets of weights and biases"),
        ({"n_layers": 0, "ws": [], "bs": []}, "n_step_rnn: 0 layers\n.*\n.*1 or more"),
        ({"rows": (1, 3)}, r"layer 0\n.*\(1, 3\)"),
        ({"bias": 1}, r"layer 0\n.*biases \[\(1,\), \(1,\)\]"),
        ({"batch": 1}, r"states of \[\(1, 1, 2\)\].*2 sequences\n.*\(1, 2, D\)"),
        ({"features": 4}, r"layer 0\n.*\n.*\(2, 4\)"),
        ({"xs": [np.ones(3)] * 2}, r"n_step_rnn: sequences\n.*\(3,\)"),
    ],
)
def test_layers_over_sequences_refuse_what_does_not_fit(changes, text, array) -> None:
    """A state of one sequence was broadcast to all; too few weights were an IndexError."""
    ones = lambda *shape: array(np.ones(shape))  # noqa: E731  an array's shape is all that counts
    changes = dict(changes)
    weights, bias = [ones(*changes.pop("rows", (2, 3))), ones(2, 2)], ones(changes.pop("bias", 2))
    n, features = changes.pop("batch", 2), changes.pop("features", 3)
    given = {"n_layers": 1, "dropout_ratio": 0.0, "hx": ones(1, n, 2), "ws": [weights], "bs": [[bias] * 2]}
    given["xs"] = [ones(2, features), ones(1, features)]
    given |= {k: [array(x) for x in v] if k == "xs" else v for k, v in changes.items()}
    with pytest.raises(ValueError, match=text):
        F.n_step_rnn(**given)


def test_sequences_come_in_any_order(array, host) -> None:
    random = np.random.RandomState(0)
    xs = [array(random.normal(size=(n, 3))) for n in (1, 4, 0, 2)]
    w, h = [[array(random.normal(size=(2, k))) for k in (3, 2)]], array(random.normal(size=(1, 4, 2)))
    b, order = [[array(np.ones(2))] * 2], [1, 3, 0, 2]
    last, ys = F.n_step_rnn(1, 0.0, h, w, b, xs)
    sorted_last, sorted_ys = F.n_step_rnn(1, 0.0, F.permutate(h, order, 1), w, b, [xs[i] for i in order])
    assert (host(F.permutate(last, order, 1)) == host(sorted_last)).all()
    assert all((host(ys[i]) == host(y)).all() for i, y in zip(order, sorted_ys, strict=True))


@pytest.mark.parametrize("function", [F.max_pooling_2d, F.average_pooling_2d])
def test_windows_that_equal_known_ones_are_checked_too(function):
    x = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
    known = function(x, (2, 2), 2, 0).array
    for window, stride, pad in [((2.0, 2.0), 2, 0), (2, (2.0, 2), 0), (2, 2, (False, 0.0)), (2.0, 2, 0)]:
        with pytest.raises(ShapeError, match="an int"):
            function(x, window, stride, pad)
    np.testing.assert_array_equal(function(x, np.int64(2), [2, 2], 0).array, known)
    wide = function(np.repeat(x, 2, 3), (2, 2), 2, 0).array
    assert wide.shape == (1, 2, 2, 4)
