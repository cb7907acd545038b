# SPDX-License-Identifier: Apache-2.0
"""Functions against NumPy, and their gradients, once and twice, against differences.

A case is a function, its reference in NumPy, and the inputs. Add a line for a new function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import gradient_check, testing
from tensorbackend.function import arrays
from tensorbackend.function.type_check import InvalidType
from tests.functions.cases import Case, between, labels, normal
from tests.functions.image_cases import IMAGE_CASES
from tests.functions.more_cases import MORE_CASES


def softmax(x: np.ndarray, axis: int = 1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def entropy(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    p = np.moveaxis(softmax(x), 1, -1).reshape(-1, x.shape[1])
    valid = t.reshape(-1) >= 0
    picked = p[np.arange(len(p)), np.maximum(t.reshape(-1), 0)]
    return -np.log(picked[valid]).sum() / max(valid.sum(), 1)


def sigmoid_entropy(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    each = np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0) - x * t
    return each[t >= 0].sum() / max((t >= 0).sum(), 1)


X, Y = normal(2, 3), normal(2, 3)
UNIT, POSITIVE = between(-0.8, 0.8, 2, 3), between(0.3, 3.0, 2, 3)
erf = np.vectorize(math.erf)
CASES = {
    "absolute": Case(F.absolute, np.abs, (X,)),
    "add": Case(F.add, np.add, (X, Y)),
    "add broadcast": Case(F.add, np.add, (normal(3), normal(2, 1))),
    "add of three": Case(F.add, lambda a, b, c: a + b + c, (X, Y, X)),
    "arccos": Case(F.arccos, np.arccos, (UNIT,)),
    "arcsin": Case(F.arcsin, np.arcsin, (UNIT,)),
    "arctan": Case(F.arctan, np.arctan, (X,)),
    "arctan2": Case(F.arctan2, np.arctan2, (X, Y)),
    "average": Case(lambda x, w: F.average(x, 1, w), lambda x, w: np.average(x, 1, w), (X, POSITIVE)),
    "batch_matmul": Case(F.batch_matmul, np.matmul, (normal(2, 3, 4), normal(2, 4, 2))),
    "broadcast_to": Case(lambda x: F.broadcast_to(x, (4, 2, 3)), lambda x: np.broadcast_to(x, (4, 2, 3)), (X,)),
    "clip": Case(lambda x: F.clip(x, -0.5, 0.6), lambda x: np.clip(x, -0.5, 0.6), (X,)),
    "clipped_relu": Case(lambda x: F.clipped_relu(x, 0.7), lambda x: np.clip(x, 0, 0.7), (X,)),
    "concat": Case(lambda a, b: F.concat([a, b]), lambda a, b: np.concatenate([a, b], 1), (X, normal(2, 1))),
    "cos": Case(F.cos, np.cos, (X,)),
    "cosh": Case(F.cosh, np.cosh, (X,)),
    "cross_entropy": Case(F.cross_entropy, lambda p, y: -(y * np.log(p + 1e-6)).sum(), (POSITIVE, POSITIVE)),
    "divide": Case(F.divide, np.divide, (X, POSITIVE)),
    "elu": Case(F.elu, lambda x: np.where(x > 0, x, np.expm1(x)), (X,)),
    "erf": Case(F.erf, erf, (X,)),
    "erfc": Case(F.erfc, lambda x: 1 - erf(x), (X,)),
    "exp": Case(F.exp, np.exp, (X,)),
    "expand_dims": Case(lambda x: F.expand_dims(x, 1), lambda x: x[:, None], (X,)),
    "expm1": Case(F.expm1, np.expm1, (X,)),
    "flatten": Case(F.flatten, np.ravel, (X,)),
    "get_item": Case(lambda x: x[1, ::-1, None, 1:], lambda x: x[1, ::-1, None, 1:], (normal(2, 3, 4),)),
    "get_item by places": Case(lambda x: x[:, [2, 0, 2]], lambda x: x[:, [2, 0, 2]], (X,)),
    "get_item by two": Case(lambda x: x[[1, 0, 1], [2, 0, 2]], lambda x: x[[1, 0, 1], [2, 0, 2]], (X,)),
    "get_item by mask": Case(lambda x: x[np.eye(2, 3) > 0], lambda x: x[np.eye(2, 3) > 0], (X,)),
    "hard_sigmoid": Case(F.hard_sigmoid, lambda x: np.clip(0.2 * x + 0.5, 0, 1), (X,)),
    "huber_loss": Case(
        lambda x, t: F.huber_loss(x, t, 0.7),
        lambda x, t: np.where(abs(x - t) < 0.7, (x - t) ** 2 / 2, 0.7 * (abs(x - t) - 0.35)).sum(1),
        (X, Y),
    ),
    "leaky_relu": Case(F.leaky_relu, lambda x: np.where(x > 0, x, 0.2 * x), (X,)),
    "linear": Case(F.linear, lambda x, w, b: x.reshape(4, 6) @ w.T + b, (normal(4, 2, 3), normal(5, 6), normal(5))),
    "linear no bias": Case(F.linear, lambda x, w: x @ w.T, (X, normal(4, 3))),
    "linear of axes": Case(
        lambda x, w: F.linear(x, w, n_batch_axes=2), lambda x, w: x @ w.T, (normal(2, 3, 4), normal(5, 4))
    ),
    "log": Case(F.log, np.log, (POSITIVE,)),
    "log10": Case(F.log10, np.log10, (POSITIVE,)),
    "log1p": Case(F.log1p, np.log1p, (POSITIVE,)),
    "log2": Case(F.log2, np.log2, (POSITIVE,)),
    "log_softmax": Case(F.log_softmax, lambda x: np.log(softmax(x)), (X,)),
    "logsumexp": Case(lambda x: F.logsumexp(x, 1), lambda x: np.log(np.exp(x).sum(1)), (X,)),
    "matmul": Case(F.matmul, np.matmul, (X, normal(3, 4))),
    "matmul transa": Case(lambda a, b: F.matmul(a, b, True), lambda a, b: a.T @ b, (normal(3, 2), normal(3, 4))),
    "matmul all": Case(lambda a, b: F.matmul(a, b, True, True, True), lambda a, b: b @ a, (normal(3, 2), normal(4, 3))),
    "matmul batches": Case(F.matmul, np.matmul, (normal(2, 1, 3, 4), normal(3, 4, 2))),
    "matmul vectors": Case(F.matmul, np.matmul, (normal(3), normal(3))),
    "matmul vector": Case(F.matmul, np.matmul, (X, normal(3))),
    "max": Case(lambda x: F.max(x, 1), lambda x: x.max(1), (X,)),
    "maximum": Case(F.maximum, np.maximum, (X, Y)),
    "mean": Case(lambda x: F.mean(x, (0, 2)), lambda x: x.mean((0, 2)), (normal(2, 3, 4),)),
    "mean_absolute_error": Case(F.mean_absolute_error, lambda a, b: abs(a - b).mean(), (X, Y)),
    "mean_squared_error": Case(F.mean_squared_error, lambda a, b: ((a - b) ** 2).mean(), (X, Y)),
    "min": Case(lambda x: F.min(x, 0, True), lambda x: x.min(0, keepdims=True), (X,)),
    "minimum": Case(F.minimum, np.minimum, (X, Y)),
    "moveaxis": Case(lambda x: F.moveaxis(x, 0, 2), lambda x: np.moveaxis(x, 0, 2), (normal(2, 3, 4),)),
    "multiply": Case(F.multiply, np.multiply, (X, normal(3))),
    "negative": Case(F.negative, np.negative, (X,)),
    "power": Case(F.power, np.power, (POSITIVE, Y)),
    "power of number": Case(lambda x: 2 ** x ** 3, lambda x: 2 ** x ** 3, (UNIT,)),
    "prod": Case(lambda x: F.prod(x, 1), lambda x: x.prod(1), (X,)),
    "relu": Case(F.relu, lambda x: np.maximum(x, 0), (X,)),
    "reshape": Case(lambda x: F.reshape(x, (3, -1)), lambda x: x.reshape(3, -1), (X,)),
    "rollaxis": Case(lambda x: F.rollaxis(x, 2), lambda x: np.rollaxis(x, 2), (normal(2, 3, 4),)),
    "rsqrt": Case(F.rsqrt, lambda x: 1 / np.sqrt(x), (POSITIVE,)),
    "scatter_add": Case(
        lambda a, b: F.scatter_add(a, ([0, 0], [1, 1]), b), lambda a, b: a + np.array([[0, b.sum(), 0], [0] * 3]),
        (X, normal(2)),
    ),
    "selu": Case(F.selu, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)), (X,)),
    "sigmoid": Case(F.sigmoid, lambda x: 1 / (1 + np.exp(-x)), (X,)),
    "sigmoid_cross_entropy": Case(F.sigmoid_cross_entropy, sigmoid_entropy, (X, labels(2, 2, 3))),
    "sin": Case(F.sin, np.sin, (X,)),
    "sinh": Case(F.sinh, np.sinh, (X,)),
    "softmax": Case(F.softmax, softmax, (X,)),
    "softmax axis 0": Case(lambda x: F.softmax(x, 0), lambda x: softmax(x, 0), (X,)),
    "softmax_cross_entropy": Case(F.softmax_cross_entropy, entropy, (normal(4, 3), labels(3, 4))),
    "softmax_cross_entropy of images": Case(F.softmax_cross_entropy, entropy, (normal(2, 3, 4), labels(3, 2, 4))),
    "softplus": Case(lambda x: F.softplus(x, 2.0), lambda x: np.log1p(np.exp(2 * x)) / 2, (X,)),
    "split_axis": Case(lambda x: F.split_axis(x, [1], 1), lambda x: (x[:, :1], x[:, 1:]), (X,)),
    "sqrt": Case(F.sqrt, np.sqrt, (POSITIVE,)),
    "square": Case(F.square, np.square, (X,)),
    "squared_difference": Case(F.squared_difference, lambda a, b: (a - b) ** 2, (X, Y)),
    "squeeze": Case(F.squeeze, np.squeeze, (normal(2, 1, 3, 1),)),
    "stack": Case(lambda a, b: F.stack([a, b], 1), lambda a, b: np.stack([a, b], 1), (X, Y)),
    "subtract": Case(F.subtract, np.subtract, (X, Y)),
    "sum": Case(F.sum, np.sum, (X,)),
    "sum of axes": Case(lambda x: F.sum(x, (0, 2), True), lambda x: x.sum((0, 2), keepdims=True), (normal(2, 3, 4),)),
    "sum_to": Case(lambda x: F.sum_to(x, (1, 3)), lambda x: x.sum(0, keepdims=True), (X,)),
    "swapaxes": Case(lambda x: F.swapaxes(x, 0, 2), lambda x: np.swapaxes(x, 0, 2), (normal(2, 3, 4),)),
    "swish": Case(F.swish, lambda x: x / (1 + np.exp(-x)), (X,)),
    "swish of beta": Case(F.swish, lambda x, b: x / (1 + np.exp(-b * x)), (X, normal(3))),
    "tan": Case(F.tan, np.tan, (UNIT,)),
    "tanh": Case(F.tanh, np.tanh, (X,)),
    "transpose": Case(lambda x: F.transpose(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1), (normal(2, 3, 4),)),
    "where": Case(lambda a, b: F.where(np_mask(a), a, b), lambda a, b: np.where(MASK, a, b), (X, Y)),
}
CASES |= MORE_CASES | IMAGE_CASES
MASK = np.array([[True, False, True], [False, False, True]])
FLAT = {"ceil": np.ceil, "fix": np.fix, "floor": np.floor, "sign": np.sign}


def np_mask(like: Any) -> Any:
    """MASK where an array is."""
    return arrays.moved(MASK, arrays.backend_of(tb.as_variable(like)._data))


def inputs_of(case: Case, dtype: str, array: Callable[..., Any]) -> list[Any]:
    """The inputs of a case, integers as they are."""
    made = [make(np.random.RandomState(i)) for i, make in enumerate(case.inputs)]
    return [array(x, x.dtype if x.dtype.kind == "i" else dtype) for x in made]


def listed(y: Any) -> list[Any]:
    return list(y) if isinstance(y, tuple) else [y]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_forward_is_numpys(name, dtype, array, host) -> None:
    case = CASES[name]
    data = inputs_of(case, dtype, array)
    found = listed(case.function(*data))
    wide = [host(x).astype(np.float64) if host(x).dtype.kind != "i" else host(x) for x in data]
    tolerance = {"float16": 4e-3, "float32": 2e-6, "float64": 1e-12}[dtype]
    for y, expected in zip(found, listed(case.reference(*wide))):
        assert y.shape == np.shape(expected) and y.dtype == dtype
        testing.assert_allclose(y, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_differences(name, array) -> None:
    case = CASES[name]
    data = inputs_of(case, "float64", array)
    grads = [array(np.random.RandomState(9).normal(size=y.shape), "float64") for y in listed(case.function(*data))]
    gradient_check.check_backward(case.function, data, grads, eps=1e-4, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.double])
def test_second_gradient_is_that_of_differences(name, array) -> None:
    case = CASES[name]
    data = inputs_of(case, "float64", array)
    random = np.random.RandomState(9)
    grads = [array(random.normal(size=y.shape), "float64") for y in listed(case.function(*data))]
    second = [array(random.normal(size=x.shape), "float64") for x in data]
    gradient_check.check_double_backward(case.function, data, grads, second, eps=1e-4, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", FLAT)
def test_flat_functions_have_no_gradient(name, array, host) -> None:
    x = tb.Variable(array([-1.5, 0.3, 2.7]))
    y = getattr(F, name)(x)
    testing.assert_allclose(y, FLAT[name](np.array([-1.5, 0.3, 2.7])))
    F.sum(y).backward()
    assert x.grad is None


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


def test_extremes_stay_finite(array, host) -> None:
    x = tb.Variable(array([[-1000.0, 0.0, 1000.0, 200.0]]))
    for function in (F.sigmoid, F.softplus, F.softmax, F.log_softmax, F.logsumexp):
        x.cleargrad()
        y = function(x)
        F.sum(y).backward()
        assert np.isfinite(host(y)).all() and np.isfinite(host(x.grad)).all()


def test_losses_of_ignored_and_empty_batches_are_zero(array, host) -> None:
    for x, t in (([[1.0, 2.0]], [-1]), (np.zeros((0, 2)), np.zeros(0))):
        v = tb.Variable(array(x))
        loss = F.softmax_cross_entropy(v, array(t, np.int32))
        loss.backward()
        assert host(loss) == 0 and host(v.grad).shape == v.shape and not host(v.grad).any()


@pytest.mark.parametrize("shape", [(0, 3), (1, 1)])
def test_empty_and_single(shape, array, host) -> None:
    x = tb.Variable(array(np.ones(shape)))
    w = tb.Variable(array(np.ones((2, shape[1]))))
    y = F.sum(F.softmax(F.linear(F.tanh(x), w)) * 2)
    y.backward()
    assert host(x.grad).shape == shape and host(w.grad).shape == w.shape


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
    ],
)
def test_wrong_inputs_are_refused(call, text, array) -> None:
    with pytest.raises(InvalidType, match=text):
        call(array)
