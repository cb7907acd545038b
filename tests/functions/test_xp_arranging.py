# SPDX-License-Identifier: Apache-2.0
"""`be.xp` arranges as NumPy does: joins, cuts, repeats, triangles, grids, and what goes through the host."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, dtypes, testing
from tensorbackend.backends.xp_arranging import THROUGH_HOST
from tensorbackend.errors import CaptureError
from tests.functions.conftest import KINDS, shared

pytestmark = pytest.mark.rehearsed

SHAPES = [(), (1,), (5,), (0,), (3, 4), (1, 5), (4, 0), (2, 3, 4), (2, 0, 3)]
TYPES = [np.float32, np.float64, np.int8, np.uint16, np.bool_]


@pytest.fixture(params=[*KINDS[1:], "emulator"])
def be(request: pytest.FixtureRequest, absent: Callable[[str, str], None]) -> Backend:
    """Each kind of backend in turn."""
    made = shared(request.param)
    if request.param != "interpreter" and not testing.compiles(made):
        absent("cpu", "no C compiler works here")
    return made


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, 5, shape).astype(dtype)


def both(call: Any, xp: Any, *given: np.ndarray) -> tuple[Any, Any]:
    """What a call gives of NumPy, and of the module, where both have to fail if one does."""
    try:
        expected = call(np, *given)
    except (ValueError, TypeError, IndexError, ZeroDivisionError):
        with pytest.raises((ValueError, TypeError, IndexError)):
            call(xp, *map(xp.array, given))
        return None, None
    return expected, call(xp, *map(xp.array, given))


def check(expected: Any, found: Any) -> None:
    """Shapes, types and numbers of arrays, or of all arrays of a sequence."""
    if isinstance(expected, (tuple, list)):
        assert len(expected) == len(found)
        for x, y in zip(expected, found):
            check(x, y)
    elif isinstance(expected, (bool, int)):
        assert found == expected and type(found) is type(expected)
    elif expected is not None:
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(found.get(), expected)


ONE = {
    "at least": lambda xp, a: [f(a) for f in (xp.atleast_1d, xp.atleast_2d, xp.atleast_3d)],
    "flip": lambda xp, a: [xp.flip(a)] + [xp.flip(a, k) for k in (-1, 0) if a.ndim],
    "flip of an axis": lambda xp, a: xp.flip(a, 1), "flip of axes": lambda xp, a: xp.flip(a, (0, -1)),
    "diag": lambda xp, a: [xp.diag(a, k) for k in (0, 1, -2, 9, -9)],
    "triangles": lambda xp, a: [f(a, k) for f in (xp.tril, xp.triu) for k in (0, 1, -1, 9, -9)],
    "tile": lambda xp, a: [xp.tile(a, r) for r in (2, 0, (2,), (2, 1), (3, 1, 2), (1, 2, 0, 1), ())],
    "repeat": lambda xp, a: [xp.repeat(a, 3), xp.repeat(a, 0), xp.repeat(a, [2])],
    "repeat along": lambda xp, a: xp.repeat(a, 2, -1), "repeat each": lambda xp, a: xp.repeat(a, [2, 0, 1], 1),
    "roll": lambda xp, a: [xp.roll(a, s) for s in (0, 2, -7)],
    "roll along": lambda xp, a: xp.roll(a, 3, 1),
    "roll along several": lambda xp, a: [xp.roll(a, (1, -2), (0, 1)), xp.roll(a, 2, (1, -1)), xp.roll(a, (1, 2), 0)],
    "roll all twice": lambda xp, a: xp.roll(a, (1, 3)),
    "split": lambda xp, a: xp.split(a, 2), "split last": lambda xp, a: xp.split(a, 2, -1),
    "split at": lambda xp, a: xp.split(a, [1, 1, 3, 9]), "split at ends": lambda xp, a: xp.split(a, (-1,), 1),
    "split in none": lambda xp, a: xp.split(a, 0), "array_split": lambda xp, a: xp.array_split(a, 3, -1),
    "array_split at": lambda xp, a: xp.array_split(a, [2, 1]),
    "array_split in none": lambda xp, a: xp.array_split(a, 0),
    "array_split outside": lambda xp, a: xp.array_split(a, 2, 3),
    "meshgrid": lambda xp, a: [*xp.meshgrid(a), *xp.meshgrid(a, a), *xp.meshgrid(a, a[:1], indexing="ij")],
    "three of a grid": lambda xp, a: xp.meshgrid(a, a, xp.arange(2)),
    "unique": lambda xp, a: [xp.unique(a), *xp.unique(a, True, True, True)],
    "unique rows": lambda xp, a: xp.unique(a, axis=0),
    "nonzero": lambda xp, a: [*xp.nonzero(a), xp.flatnonzero(a)], "argwhere": lambda xp, a: xp.argwhere(a),
    "count_nonzero": lambda xp, a: [xp.count_nonzero(a), xp.count_nonzero(a > 2)],
    "searchsorted": lambda xp, a: [xp.searchsorted(xp.sort(a), 2), xp.searchsorted(xp.sort(a), [0, 9], "right")],
    "histogram": lambda xp, a: xp.histogram(a * 1, 4, (0, 8))[0], "bincount": lambda xp, a: xp.bincount(a, minlength=3),
    "equal": lambda xp, a: [xp.array_equal(a, a), xp.array_equal(a, a[None]), xp.allclose(a, a), xp.isclose(a, a)],
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_functions_of_an_array_are_numpys(name: str, be: Any) -> None:
    """In all types where nothing is compiled for each of them."""
    for shape, dtype in itertools.product(SHAPES, TYPES if be is shared("interpreter") else TYPES[:1]):
        if name == "nonzero" and not shape:
            continue  # NumPy 2.0 has it
        check(*both(ONE[name], be.xp, numbers(shape, dtype)))


@pytest.mark.parametrize("name", ["vstack", "hstack", "dstack", "column_stack"])
def test_arrays_are_joined_as_numpy_joins_them(name: str, be: Any) -> None:
    xp = be.xp
    for first, second in itertools.product(SHAPES, repeat=2):
        pair = numbers(first, np.float32), numbers(second, np.float32, 1)
        check(*both(lambda m, a, b: getattr(m, name)([a, b]), xp, *pair))
    with pytest.raises(ValueError):
        getattr(xp, name)([])
    assert getattr(xp, name)([xp.zeros(3, xp.float32), xp.ones(3, xp.int8)]).dtype == np.float32


def test_cuts_are_views(be: Any) -> None:
    xp = be.xp
    a = xp.zeros((4, 3))
    upper, lower = xp.split(a, 2)
    upper[...] = 1
    xp.flip(lower, 1)[:, 0] = 2
    assert a.tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 2], [0, 0, 2]]
    xp.diag(a)  # has memory of its own, or cannot be written
    xp.tile(a, 1)[...] = 7
    assert a[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("numbers_of", [(0, 1), (0, 1, 7), (5, -5, 4, False), (2, 2, 0), (0, 9, 1), (0, 1, 3, True)])
def test_numbers_at_equal_distances(numbers_of: tuple, be: Any) -> None:
    for dtype in (None, np.float64, np.int32):
        found = be.xp.linspace(*numbers_of, dtype=dtype)
        assert found.dtype == (dtype or np.float32)
        np.testing.assert_array_equal(found.get(), np.linspace(*numbers_of, dtype=dtype).astype(found.dtype))
    for wrong in (-1, 2.5):
        with pytest.raises((TypeError, ValueError)):
            be.xp.linspace(0, 1, wrong)


@pytest.mark.parametrize("dtype", [*dtypes.FLOATS, np.dtype(np.int32)], ids=str)
def test_averages_have_the_type_of_the_array_or_the_default(dtype: Any, be: Any) -> None:
    x = be.xp.array(np.array([[3, 1, 2], [0, 4, 4]]), dtype)
    for found, expected in (
        (be.xp.median(x), 2.5), (be.xp.median(x, 1), [2, 4]), (be.xp.median(x, axis=-1, keepdims=True), [[2], [4]]),
        (be.xp.percentile(x, [0, 100]), [0, 4]), (be.xp.quantile(x, 0.5, axis=0), [1.5, 2.5, 3]),
    ):  # fmt: skip
        assert found.dtype == (dtype if dtypes.is_float(dtype) else np.float32)
        testing.assert_allclose(found, np.array(expected, np.float32))
    assert be.xp.unique(x).dtype == dtype and be.xp.unique(x).tolist() == [0, 1, 2, 3, 4]


def test_numbers_that_are_compared_on_the_host(be: Any) -> None:
    xp = be.xp
    a, b = xp.array([1.0, np.inf, np.nan]), xp.array([1 + 1e-7, np.inf, np.nan])
    assert not xp.allclose(a, b) and xp.allclose(a, b, equal_nan=True) and not xp.allclose(a[:1], [2])
    assert xp.isclose(a, b).tolist() == [True, True, False]
    assert not xp.array_equal(a, a) and xp.array_equal(a, a, equal_nan=True) and xp.array_equal([1, 2], [1, 2])


def test_what_is_none_is_refused_by_name(be: Any) -> None:
    xp = be.xp
    x = xp.zeros((3, 4))
    for call, text in (
        (lambda: xp.split(x, 2), r"split: parts\n  given     2 of an axis of length 3\n.*that divides it"),
        (lambda: xp.split(x, 2, 2), "split: .*axis"), (lambda: xp.array_split(x, 0), "array_split: parts"),
        (lambda: xp.repeat(x, [1, 2], 0), "repeats"), (lambda: xp.repeat(x, 1.5), "repeats"),
        (lambda: xp.tile(x, -1), "tile: reps"), (lambda: xp.diag(x[None]), "diag"), (lambda: xp.triu(1.0), "triu"),
        (lambda: xp.meshgrid(x, indexing="yx"), "'yx'"), (lambda: xp.flip(x, 2), "flip"),
        (lambda: xp.roll(x, 1, 5), "roll"), (lambda: xp.roll(x, (1, 2), (0, 1, 1)), r"roll: [\s\S]*\(1, 2\)"),
        (lambda: xp.roll(x, (), 0), "roll"), (lambda: xp.median(x, 7), "out of bounds"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(TypeError, match="median: out"):
        xp.median(x, out=xp.zeros(()))


def test_what_goes_through_the_host_is_not_captured(be: Any) -> None:
    for name in THROUGH_HOST:
        assert "host" in getattr(be.xp, name).__doc__
    with pytest.raises(CaptureError):
        be.capture(lambda x: be.xp.unique(x), be.zeros((3,), min_dims=0))
