# SPDX-License-Identifier: Apache-2.0
"""Assignment: what may be assigned, how it broadcasts, and what each element type makes of each number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import dtypes, using

pytestmark = pytest.mark.rehearsed

shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # a backend serves all examples
EVERY_DTYPE = pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
EDGES = [0.0, 0.5, -0.5, 1.0, -1.0, 1.9, -1.9, 127.0, 128.0, -129.0, 255.0, 256.0, 3e4, 7e4, -7e4, 2.0**31, -(2.0**33),
         2.0**63, -(2.0**63), 2.0**64, 1e30, math.inf, -math.inf, math.nan]  # fmt: skip
WHOLE = [0, 1, -1, 100, -100, 127, 128, 255, 256, -129, 2**15, 2**31, -(2**31), 2**32 + 5, 2**63 - 1, -(2**63)]


def numbers(*shape: int) -> np.ndarray:
    """0, 1, 2 … in C order."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def stored(value: Any, dtype: np.dtype) -> Any:
    """What an element of `dtype` holds of a finite or other number, by Python's exact integers."""
    if dtype == dtypes.BOOL:
        return bool(value != 0)
    if dtypes.is_float(dtype):
        return dtype.type(value)
    info = np.iinfo(dtype)
    if isinstance(value, int):
        bits = 8 * dtype.itemsize
        wrapped = value % 2**bits
        return wrapped - 2**bits if wrapped > info.max else wrapped
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return info.max if value > 0 else info.min
    return max(info.min, min(info.max, math.trunc(value)))


def expected(host: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`stored` for each element; floats of 16 bits are reached through float32, as they are computed."""
    with np.errstate(all="ignore"):
        if dtypes.is_float(dtype):
            return host.astype(np.float32 if dtypes.is_half(dtype) else dtype).astype(dtype)
        wide = host.astype(np.float64) if dtypes.is_float(host.dtype) else host
        return np.array([stored(v, dtype) for v in wide.ravel().tolist()], dtype).reshape(host.shape)


def values_of(dtype: np.dtype) -> np.ndarray:
    """A row of numbers of a type, with its edges."""
    with np.errstate(all="ignore"):
        if dtypes.is_float(dtype):
            return np.array([EDGES]).astype(dtype)
        if dtype == dtypes.BOOL:
            return np.array([[True, False]])
    info = np.iinfo(dtype)
    return np.array([[v for v in WHOLE if info.min <= v <= info.max] + [info.max, info.min]], dtype)


def assert_same(actual: np.ndarray, wanted: np.ndarray) -> None:
    """Equal in type, shape and every number, NaN too (which NumPy's own test does not know of bfloat16)."""
    assert actual.dtype == wanted.dtype
    if dtypes.is_half(wanted.dtype):
        actual, wanted = actual.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_array_equal(actual, wanted, strict=True)


# Element types


@pytest.mark.parametrize("source", dtypes.DTYPES, ids=str)
@EVERY_DTYPE
def test_host_arrays_tensors_and_trees_are_cast_alike(backend, source, dtype) -> None:
    host = values_of(source)
    wanted = expected(host, dtype)
    target = backend.zeros(host.shape, dtype=dtype)
    tensor = backend.array(host, dtype=source)
    trees = [tensor, backend.where(tensor == tensor, tensor, tensor)]
    for value in [host, *trees]:
        target.fill(1)
        target[:] = value
        assert_same(target.get(), wanted)


@EVERY_DTYPE
@pytest.mark.parametrize("value", EDGES, ids=repr)
def test_python_floats_are_cast_as_arrays_are(backend, dtype, value) -> None:
    target = backend.zeros((2, 2), dtype=dtype)
    wanted = np.broadcast_to(expected(np.array(value), dtype), (2, 2))
    for number in (value, np.float64(value), np.array(value)):
        target.fill(1)
        target[:] = number
        assert_same(target.get(), wanted)


@EVERY_DTYPE
@pytest.mark.parametrize("value", [0, 1, 100, True, np.int8(3), np.uint16(9), np.int64(5), np.float16(2.5)], ids=repr)
def test_numbers_and_numpy_scalars_fill(backend, dtype, value) -> None:
    target = backend.zeros((2, 3), dtype=dtype)
    target[:] = value
    number = value.item() if isinstance(value, np.generic) else value
    np.testing.assert_array_equal(target.get(), np.full((2, 3), stored(number, dtype)))
    assert target.dtype == dtype


@EVERY_DTYPE
@pytest.mark.parametrize("kind", dtypes.FLOATS, ids=str)
def test_scalars_of_every_float_type_are_cast_as_arrays_are(backend, dtype, kind) -> None:
    for value in np.array([2.75, -300, 6e4, np.inf, -np.inf, np.nan], np.float32).astype(kind):
        target = backend.ones((1, 2), dtype=dtype)
        target[:] = value
        assert_same(target.get(), np.broadcast_to(expected(np.array(value), dtype), (1, 2)))


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_the_ends_of_integer_types_can_be_filled(backend, dtype) -> None:
    info = np.iinfo(dtype)
    for end in (info.min, info.max):
        assert backend.zeros((1, 2), dtype=dtype).fill(end).tolist() == [[end, end]]


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_integers_that_do_not_fit_are_refused(backend, dtype) -> None:
    info = np.iinfo(dtype)
    t = backend.ones((1, 2), dtype=dtype)
    for value in (info.max + 1, info.min - 1):
        with pytest.raises(OverflowError, match=str(value)):
            t[:] = value
    assert t.tolist() == [[1, 1]]


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_numbers_at_an_index_array_must_fit_too(backend, dtype) -> None:
    info = np.iinfo(dtype)
    t = backend.ones((2, 2), dtype=dtype)
    arrays = [] if info.bits == 64 else [np.array(info.max + 1)]
    for value in (info.max + 1, info.min - 1, 10**30, *arrays):
        with pytest.raises(OverflowError, match="out of range"):
            t[[0]] = value
    assert t.tolist() == [[1, 1]] * 2
    for value, kept in ((info.max, info.max), (1e30, info.max), (math.nan, 0), (2.7, 2), (True, 1)):
        t[[1]] = value
        assert t.tolist() == [[1, 1], [kept, kept]]


@pytest.mark.parametrize("foreign", [">f2", ">f4", ">f8", np.longdouble, ">i2", ">u8"], ids=str)
@EVERY_DTYPE
def test_types_that_tensors_lack_are_cast_as_those_nearest(backend, dtype, foreign) -> None:
    kind = np.dtype(foreign)
    near = np.dtype(np.float64) if foreign is np.longdouble else kind.newbyteorder("=")
    host = values_of(near)
    t = backend.zeros(host.shape, dtype=dtype)
    t[:] = host.astype(kind)
    assert_same(t.get(), expected(host, dtype))


@shared
@given(value=st.floats(width=32), dtype=st.sampled_from(dtypes.INTEGERS))
def test_float_to_integer_truncates_and_saturates(backend, value, dtype) -> None:
    target = backend.zeros((1, 1), dtype=dtype)
    target[:] = backend.array([[value]])
    assert target.item() == stored(value, dtype)


@shared
@given(value=st.integers(-(2**63), 2**63 - 1), dtype=st.sampled_from(dtypes.INTEGERS))
def test_integer_to_integer_wraps(backend, value, dtype) -> None:
    target = backend.zeros((1, 1), dtype=dtype)
    target[:] = backend.array([[value]], dtype=np.int64)
    assert target.item() == stored(value, dtype)


def test_int64_keeps_all_its_bits(backend) -> None:
    big = 2**62 + 1
    t = backend.array([[big]], dtype=np.int64)
    assert t.item() == big
    assert backend.evaluate(t + 1).item() == big + 1
    t[:] = big + 2
    assert t.item() == big + 2


# Sources of numbers and broadcasting


@pytest.mark.parametrize(
    "value",
    [5, numbers(3, 4), numbers(12), numbers(4, 3), numbers(2, 6).tolist(), np.asfortranarray(numbers(3, 4))],
    ids=lambda v: f"{type(v).__name__}{np.shape(v)}",
)
def test_host_data_of_equal_size_fits(backend, value) -> None:
    t = backend.empty((3, 4))
    t[:] = value
    host = np.asarray(value, np.float32)
    np.testing.assert_array_equal(t.get(), np.broadcast_to(host, (3, 4)) if host.size == 1 else host.reshape(3, 4))


@pytest.mark.parametrize("shape", [(3, 4), (3, 1), (1, 4), (1, 1), (1, 3, 4), (1, 1, 1, 4)], ids=str)
def test_tensors_and_trees_broadcast(backend, shape) -> None:
    host = numbers(*shape)
    for value in (backend.array(host), backend.array(host) + 0):
        t = backend.empty((3, 4))
        t[:] = value
        wanted = np.broadcast_to(host, (1,) * (len(shape) - 2) + (3, 4)).reshape(3, 4)
        np.testing.assert_array_equal(t.get(), wanted)


@pytest.mark.parametrize("shape", [(), (4,), (1,), (3, 1)], ids=str)
def test_lower_ranks_broadcast(backend, shape) -> None:
    host = numbers(*shape)
    t = backend.empty((3, 4), min_dims=0)
    t[:] = backend.array(host, min_dims=0)
    np.testing.assert_array_equal(t.get(), np.broadcast_to(host, (3, 4)))


KEYS = [1, np.s_[:, 2], (1, 2), np.s_[::2, ::-1], np.s_[..., 1:3], np.s_[3:3]]


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("kind", ["number", "array", "tensor", "tree"])
def test_assignment_into_views(backend, key, kind) -> None:
    host = numbers(3, 4)
    t = backend.array(host)
    values = -numbers(*t[key].shape) - 1
    value = {"number": 9, "array": values}.get(kind)
    if value is None:
        value = backend.array(values) if kind == "tensor" else backend.array(values) * 1
    t[key] = value
    host[key] = 9 if kind == "number" else values.reshape(host[key].shape)
    np.testing.assert_array_equal(t.get(), host)


VIEWS = {
    "T": lambda t: t.T,
    "reversed": lambda t: t[::-1],
    "strided": lambda t: t[:, ::2],
    "reshaped": lambda t: t.reshape(4, 3),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_assignment_through_any_view_reaches_the_tensor(backend, view) -> None:
    host = numbers(3, 4)
    t = backend.array(host)
    part = view(t)
    values = numbers(*part.shape) * 10
    part[:] = values
    view(host)[...] = values
    np.testing.assert_array_equal(t.get(), host)


def test_empty_assignments_do_nothing(backend) -> None:
    t = backend.array(numbers(3, 4))
    t[0:0] = 5
    t[0:0] = np.zeros((0, 4))
    t[:, 4:] = backend.ones((3, 1))
    np.testing.assert_array_equal(t.get(), numbers(3, 4))
    assert backend.zeros((0, 3)).fill(1).get().shape == (0, 3)


def test_a_tree_reads_values_when_it_is_assigned(backend) -> None:
    x = backend.ones((2, 2))
    tree = x * 10
    x.fill(3)
    out = backend.empty((2, 2))
    out[:] = tree
    assert out.tolist() == [[30.0, 30.0]] * 2


@pytest.mark.parametrize("value", [True, np.bool_(True)], ids=repr)
def test_truth_values_are_numbers(backend, value) -> None:
    t = backend.zeros((2, 2))
    t[:] = value
    assert t.tolist() == [[1.0, 1.0]] * 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_numbers_beyond_a_type_are_infinite_in_silence(backend, dtype, check) -> None:
    t = backend.zeros((4, 2), dtype=dtype)
    with using(check=check):
        t[:1] = -1e300
        t[[1]] = 1e300
        t[np.array([False, False, True, False])] = 1e300
        t[t > 1] = -1e300
        t[3:] = t[3:] - 1e300
    assert t.tolist() == [[-np.inf] * 2] * 4
