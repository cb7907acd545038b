# SPDX-License-Identifier: Apache-2.0
"""Indices with arrays and masks beside NumPy's, and sums at such places, on all backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import Backend, testing
from tensorbackend.function import arrays
from tests.functions.conftest import KINDS, shared

pytestmark = pytest.mark.rehearsed

X = np.random.RandomState(0).normal(size=(3, 4, 5)).astype(np.float32)
MASK = X > 0.3
A, COLUMN = np.array([0, 2, -1]), np.array([[1], [-2]])
KEYS = {
    "mask": MASK,
    "mask of two axes": MASK[:, :, 0],
    "mask behind": (slice(None), MASK[0]),
    "mask and places": (MASK[:, 0, 0], slice(None), [4]),
    "mask and integer": (1, MASK[0]),
    "mask of nothing": np.zeros((3, 4), bool),
    "places": A,
    "places from the end": (Ellipsis, A),
    "places of two axes": (A, [1, 0, 3]),
    "places apart": (A, slice(1, 3), A),
    "places beside an integer": (slice(None), A, 1),
    "places apart from an integer": (0, slice(None), A),
    "places that broadcast": (slice(None), COLUMN, A, None),
    "places behind a new axis": (None, A, Ellipsis, [1, 2, 0]),
    "places and steps": (slice(None, None, 2), A[:2], slice(None, None, -1)),
    "one place": np.array(1),
    "no places": [],
    "short integers": np.array([[0, 1], [2, 2]], np.int8),
    "several short integers": (np.array([2, 1], np.int8), slice(None), np.array([[4], [-5]], np.int8)),
    "slice": slice(1, 2),
}


def placed(key: Any, be: Backend | None) -> tuple:
    """An index with its arrays on a backend."""
    parts = key if isinstance(key, tuple) else (key,)
    return tuple(arrays.moved(k, be) if isinstance(k, np.ndarray) else k for k in parts)


@pytest.fixture(params=[*KINDS, "emulator"])
def where(request, absent) -> Backend | None:
    """The backends in turn; None stands for NumPy."""
    be = None if request.param == "numpy" else shared(request.param)
    if request.param in ("jit", "emulator") and not testing.compiles(be):
        absent("cpu", "no C compiler works here")
    return be


def test_indices_are_numpys(where) -> None:
    for name, key in KEYS.items():
        for index in (key, placed(key, where)):
            x = tb.Variable(arrays.moved(X, where))
            y = F.get_item(x, index)
            testing.assert_allclose(y, X[key], atol=0, rtol=0)
            g = np.random.RandomState(1).normal(size=y.shape).astype(np.float32)
            y.grad = arrays.moved(g, where)
            y.backward()
            expected = np.zeros(X.shape)
            np.add.at(expected, key, g)
            assert y.shape == g.shape, name
            testing.assert_allclose(x.grad, expected, atol=1e-6)


@pytest.mark.parametrize("truth", [True, False, np.bool_(True), np.array(False), (True,)], ids=repr)
def test_a_truth_value_is_an_axis(truth, where) -> None:
    for index in (truth, placed(truth, where)):
        x = tb.Variable(arrays.moved(X, where))
        y = x[index]
        testing.assert_allclose(y, X[truth], atol=0, rtol=0)
        F.sum(y).backward()
        testing.assert_allclose(x.grad, np.full(X.shape, len(X[truth])), atol=0, rtol=0)


def test_sums_at_places_are_numpys(where) -> None:
    for key in KEYS.values():
        b = np.random.RandomState(2).normal(size=X[key].shape).astype(np.float32)
        expected = X.astype(np.float64)
        np.add.at(expected, key, b)
        a = arrays.moved(X, where)
        found = F.scatter_add(a, placed(key, where), arrays.moved(b, where))
        testing.assert_allclose(found, expected, atol=1e-6)
        testing.assert_allclose(a, X, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "added", "of"),
    [("int64", 100, "int8"), ("int64", 1, "bool"), ("bool", 1, "bool"), ("float32", 2050, "float16")],
)
def test_sums_at_places_have_the_type_of_the_result(dtype, added, of, where) -> None:
    """That of what is added may be too narrow for a sum: three truths are 3, as in NumPy's sums."""
    a, b = arrays.moved(np.ones(3, dtype), where), arrays.moved(np.full(4, added, of), where)
    found = arrays.to_cpu(F.scatter_add(a, [2, 0, 2, 2], b).array)
    assert found.dtype == (np.int64 if dtype == "bool" else dtype)
    one = float(np.asarray(added, of))
    np.testing.assert_array_equal(found, [1 + one, 1, 1 + 3 * one])


@pytest.mark.parametrize("count", [5, 50])
@pytest.mark.parametrize(("rows", "axis"), [(7, 0), (7, 1), (300, 0), (300, 1)])
def test_rows_at_equal_places_add_up(rows, axis, count, where) -> None:
    """Of few elements and of many, at most places and at few."""
    shape = (count, rows) if axis == 0 else (rows, count)
    x = tb.Variable(arrays.moved(np.zeros(shape, np.float32), where))
    places = np.array([4, 0, -1, 0, 2, 0])
    g = np.random.RandomState(1).normal(size=np.take(np.zeros(shape), places, axis).shape).astype(np.float32)
    y = F.get_item(x, (slice(None),) * axis + (places,))
    y.grad = arrays.moved(g, where)
    y.backward()
    expected = np.zeros(shape)
    np.add.at(expected, (slice(None),) * axis + (places,), g)
    np.testing.assert_array_equal(arrays.to_cpu(x.grad), expected.astype(np.float32))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (([0, 3], [0, 0]), r"out of range[\s\S]*0 to 3[\s\S]*length 3"),
        ([-4], "out of range"),
        (np.zeros((2, 4), bool), r"mask of another shape[\s\S]*\(2, 4\)[\s\S]*\(3, 4\)"),
        (np.array([0.5]), r"another type[\s\S]*float64"),
        ((0, 0, 0, [1]), "too many indices"),
        ((0, True), r"no places[\s\S]*a single truth value, True[\s\S]*only by itself"),
    ],
)
def test_what_is_no_index_is_refused(key, text, where) -> None:
    with pytest.raises(IndexError, match=text):
        F.get_item(tb.Variable(arrays.moved(X, where)), key)


@pytest.mark.parametrize("outside", [np.array([0, 4]), np.array([0, 2**64 - 1], np.uint64)], ids=str)
def test_places_outside_are_refused_on_the_device_too(outside, where) -> None:
    x, rows, columns = (arrays.moved(k, where) for k in (X, outside, np.array([0, 0], np.uint64)))
    for key in ((rows, columns), (columns, rows), (outside[1], columns)):
        with pytest.raises(IndexError):
            F.get_item(tb.Variable(x), key)
        with pytest.raises(IndexError):
            F.scatter_add(tb.Variable(x), key, arrays.moved(np.ones((), np.float32), where))


@pytest.mark.parametrize("key", [A, MASK, (slice(None), MASK[0]), (A, [0, 1, 2])], ids=str)
def test_an_index_of_another_backend_is_refused(key, where) -> None:
    x, other = tb.Variable(arrays.moved(X, where)), Backend.allocate_backend("cpu", jit=False)
    elsewhere = placed(key, other)
    if where is None:  # NumPy takes places from anywhere
        np.testing.assert_array_equal(F.get_item(x, elsewhere).array, X[key])
    else:
        with pytest.raises(TypeError, match="get_item: an index of arrays of different kinds"):
            F.get_item(x, elsewhere)
        with pytest.raises(TypeError, match="scatter_add: an index of arrays of different kinds"):
            F.scatter_add(x, elsewhere, arrays.moved(np.ones((), np.float32), where))
    other.cleanup_backend()


def test_places_of_several_axes_go_to_a_device_as_one_array(where, monkeypatch) -> None:
    moved, found = [], arrays.moved
    monkeypatch.setattr(arrays, "moved", lambda x, to: moved.append(x) or found(x, to))
    x = found(X, where)
    for key in ((A, slice(None), A), (A, np.array([1, 0, 3], np.int8), 2), (A, -1)):
        moved.clear()
        y = F.get_item(x, key)
        assert len(moved) == 1
        np.testing.assert_array_equal(arrays.to_cpu(y.array), X[key])
