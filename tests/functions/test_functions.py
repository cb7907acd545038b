# SPDX-License-Identifier: Apache-2.0
"""What the contract says of single functions beside their values: ties, extremes, nothing, refusals."""

from __future__ import annotations

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import testing
from tensorbackend.function.type_check import InvalidType

FLAT = {"ceil": np.ceil, "fix": np.fix, "floor": np.floor, "sign": np.sign}


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
