# SPDX-License-Identifier: Apache-2.0
"""Indexing: the shapes, values and memory of what integers, slices, arrays and masks pick."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import Backend, BackendError
from tensorbackend.graph.tensor import Tensor

pytestmark = pytest.mark.rehearsed

shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # a backend serves all examples
ALL = slice(None)
INTEGERS = [int, np.int64, np.int32, np.uint8]
TWO_AXES = [
    (1, (1, 4)),
    (-1, (1, 4)),
    ((ALL, 2), (3, 1)),
    ((1, 2), (1, 1)),
    ((-3, -4), (1, 1)),
    ((1, slice(1, 3)), (1, 2)),
    (slice(0, 2), (2, 4)),
    (slice(None, None, -2), (2, 4)),
    (slice(5, 9), (0, 4)),
    (slice(0, 1, 2**70), (1, 4)),
    ((Ellipsis, 1), (3, 1)),
    ((1, Ellipsis), (1, 4)),
    (Ellipsis, (3, 4)),
    ((), (3, 4)),
    (None, (1, 3, 4)),
    ((ALL, None), (3, 1, 4)),
    ((Ellipsis, None), (3, 4, 1)),
    ((None, 1), (1, 4)),
]
THREE_AXES = [
    (1, (3, 4)),
    ((ALL, 1), (2, 4)),
    ((ALL, ALL, -1), (2, 3)),
    ((Ellipsis, 0), (2, 3)),
    (slice(0, 1), (1, 3, 4)),
    ((1, 2), (1, 4)),
    ((1, 2, 3), (1, 1)),
    ((None, 1), (1, 3, 4)),
]


def numbers(*shape: int) -> np.ndarray:
    """0, 1, 2 … in C order."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def column(expected: np.ndarray) -> np.ndarray:
    """As tensors of two axes at least have it."""
    return expected[:, None] if expected.ndim == 1 else expected


def read(x: Any) -> np.ndarray:
    """What an index picked: a tensor, or a view of picked entries that is evaluated."""
    return x.get() if isinstance(x, Tensor) else x.backend.evaluate(x).get()


# Integers, slices, ellipsis, new axes


@pytest.mark.parametrize(("key", "shape"), TWO_AXES, ids=str)
def test_integer_keeps_its_axis_of_a_matrix(backend, key, shape) -> None:
    host = numbers(3, 4)
    view = backend.array(host)[key]
    assert view.shape == shape
    np.testing.assert_array_equal(view.get().ravel(), host[key].ravel())


@pytest.mark.parametrize(("key", "shape"), THREE_AXES, ids=str)
def test_integer_drops_its_axis_of_three(backend, key, shape) -> None:
    host = numbers(2, 3, 4)
    view = backend.array(host)[key]
    assert view.shape == shape
    np.testing.assert_array_equal(view.get().ravel(), host[key].ravel())


def test_other_axes_of_length_one_stay(backend) -> None:
    t = backend.zeros((3, 1, 4, 1))
    assert t[1].shape == (1, 4, 1)
    assert t[:, :, 2].shape == (3, 1, 1)


@pytest.mark.parametrize("kind", INTEGERS, ids=lambda k: k.__name__)
def test_numpy_integers_are_integers(backend, kind) -> None:
    host = numbers(2, 3)
    assert backend.array(host)[kind(1)].shape == (1, 3)
    assert backend.array(host)[:, kind(1)].shape == (2, 1)
    assert backend.array(host, min_dims=0)[kind(1)].shape == (3,)
    np.testing.assert_array_equal(backend.array(host)[kind(1), kind(2)].get(), [[5]])


@pytest.mark.parametrize("min_dims", [1, 2])
def test_rank_does_not_fall_below_min_dims(backend, min_dims) -> None:
    t = backend.array(numbers(2, 3, 4), min_dims=min_dims)
    assert t[1, 2, 3].ndim == min_dims
    assert t[0]._min_dims == min_dims


def test_whole_slice_is_the_tensor_itself(backend) -> None:
    t = backend.zeros((2, 3))
    assert t[:] is t


@pytest.mark.parametrize(
    "key", [3, -4, np.int64(3), (0, 4), (0, -5), (ALL, 4), (Ellipsis, 4), (0, 0, 0), (Ellipsis, Ellipsis)], ids=str
)
@pytest.mark.parametrize("min_dims", [0, 2])
def test_out_of_range_raises_and_writes_nothing(backend, key, min_dims) -> None:
    host = numbers(3, 4)
    t = backend.array(host, min_dims=min_dims)
    with pytest.raises(IndexError):
        t[key]
    with pytest.raises(IndexError):
        t[key] = 9
    np.testing.assert_array_equal(t.get(), host)


@pytest.mark.parametrize("key", ["a", 1.5, (0, "b"), {1}, pytest.param(object(), id="object")], ids=repr)
def test_other_keys_raise(backend, key) -> None:
    t = backend.zeros((3, 4))
    with pytest.raises((IndexError, TypeError)):
        t[key]
    with pytest.raises((IndexError, TypeError)):
        t[key] = 1


def numpy_ints(key: Any, kind: Any) -> Any:
    """The key with its integers of another type."""
    parts = key if isinstance(key, tuple) else (key,)
    changed = tuple(kind(k) if isinstance(k, int) else k for k in parts)
    return changed if isinstance(key, tuple) else changed[0]


shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)


@shared
@given(data=st.data(), shape=shapes)
def test_basic_indices_pick_what_numpy_picks(backend, data, shape) -> None:
    host = numbers(*shape)
    key = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True, max_dims=8))
    view = backend.array(host, min_dims=0)[numpy_ints(key, data.draw(st.sampled_from([int, np.int64])))]
    np.testing.assert_array_equal(view.get(), host[key], strict=True)


@shared
@given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5))
def test_basic_indices_are_views_in_both_directions(backend, data, shape) -> None:
    host = numbers(*shape)
    t = backend.array(host, min_dims=0)
    for value in (-1, -2):
        key = data.draw(hnp.basic_indices(shape, allow_ellipsis=True))
        t[key].fill(value)
        host[key] = value
    np.testing.assert_array_equal(t.get(), host)
    t.fill(3)
    assert np.all(t[key].get() == 3)


@shared
@given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=6))
def test_indices_of_indices(backend, data, shape) -> None:
    host = numbers(*shape)
    view = backend.array(host, min_dims=0)
    for _ in range(data.draw(st.integers(1, 4))):
        if 0 in host.shape or host.ndim == 0:
            break
        key = data.draw(hnp.basic_indices(host.shape, allow_newaxis=True, max_dims=6))
        view, host = view[key], host[key]
        if data.draw(st.booleans()):
            view, host = view.T, host.T
    np.testing.assert_array_equal(view.get(), host, strict=True)


@shared
@given(data=st.data(), shape=hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=5))
def test_matrix_rule_picks_the_same_numbers(backend, data, shape) -> None:
    host = numbers(*shape)
    key = data.draw(hnp.basic_indices(shape, allow_ellipsis=True, allow_newaxis=True, max_dims=8))
    view = backend.array(host)[key]
    np.testing.assert_array_equal(view.get().ravel(), host[key].ravel())
    assert view.ndim >= 2
    assert sorted(n for n in view.shape if n != 1) == sorted(n for n in host[key].shape if n != 1)


# One index array: a writable view


ONE_ARRAY = [
    [2, 0],
    [0, 0, 2],
    [-1],
    [],
    (ALL, [3, 1]),
    (ALL, (3, 1)),
    (slice(None, None, 2), [3, 1, 1]),
    (Ellipsis, [0, 3]),
    np.array([2, 1]),
    np.array([[2, 1], [0, 0]]),
    np.array([2, 1], np.uint8),
    (ALL, np.array([1], np.int16)),
    ([2, 0],),
]


@pytest.mark.parametrize("key", ONE_ARRAY, ids=str)
def test_index_array_picks_what_numpy_picks(backend, key) -> None:
    host = numbers(3, 4)
    expected = host[np.array(key, int) if isinstance(key, list) else key]
    picked = backend.array(host)[key]
    assert picked.shape == expected.shape
    assert picked.dtype == np.float32
    np.testing.assert_array_equal(read(picked), expected)


@pytest.mark.parametrize("key", ONE_ARRAY, ids=str)
def test_assignment_at_an_index_array_scatters(backend, key) -> None:
    host = numbers(3, 4)
    t = backend.array(host)
    key_of_numpy = np.array(key, int) if isinstance(key, list) else key
    values = -1 - numbers(*host[key_of_numpy].shape)
    t[key] = values
    host[key_of_numpy] = values
    np.testing.assert_array_equal(t.get(), host)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("shape", [(2,), (2, 1), (1, 2)], ids=str)
def test_index_tensor_of_any_integer_type(backend, dtype, shape) -> None:
    host = numbers(3, 4)
    places = backend.array(np.array([2, 0]).reshape(shape), dtype=dtype, min_dims=min(len(shape), 2))
    t = backend.array(host)
    np.testing.assert_array_equal(read(t[places]), host[[2, 0]])
    t[:, places] = 7
    host[:, [2, 0]] = 7
    np.testing.assert_array_equal(t.get(), host)


def test_picked_entries_are_a_writable_view(backend) -> None:
    host = numbers(4, 3)
    t = backend.array(host)
    rows = t[[3, 1]]
    rows[:] = backend.array([[10, 20, 30]])
    host[[3, 1]] = [10, 20, 30]
    np.testing.assert_array_equal(t.get(), host)
    rows.fill(5)
    np.testing.assert_array_equal(t.get()[[1, 3]], np.full((2, 3), 5))
    rows.set(-numbers(2, 3))
    np.testing.assert_array_equal(t.get()[[3, 1]], -numbers(2, 3))


def test_augmented_assignment_at_an_index_array(backend) -> None:
    host = numbers(4, 3)
    t = backend.array(host)
    t[[3, 1]] += 10
    t[:, [0, 2]] *= backend.array([[2, 3]])
    host[[3, 1]] += 10
    host[:, [0, 2]] *= [2, 3]
    np.testing.assert_array_equal(t.get(), host)


def test_entries_keep_the_rank_rule_of_their_tensor(backend) -> None:
    t = backend.array(numbers(4, 3))
    for picked in (t[[3, 1]], backend.evaluate(backend.take(t, [3, 1], 0)), t[np.array([0, 3])] * 2):
        assert picked._min_dims == 2
        assert picked[0].shape == (1, 3)


def test_picked_entries_are_read_when_used(backend) -> None:
    t = backend.array(numbers(3, 2))
    rows = t[[0, 2]]
    t[0] = 100
    np.testing.assert_array_equal(read(rows + 1), [[101, 101], [5, 6]])


def test_picked_entries_say_what_is_picked(backend) -> None:
    t = backend.array(numbers(4, 3))
    indices, axis = t[:, [2, 0]].take_array
    assert (indices.tolist(), axis) == ([2, 0], 1)
    assert t.take_array is None and t[1:].take_array is None


def test_picked_entries_are_views_of_their_tensor(backend) -> None:
    t = backend.array(numbers(4, 3), name="weights", persist_values=False)
    v = t[[3, 1]]
    assert v.base is t and v._original_base is t and v[:] is v
    assert (v.name, v.persist_values, v.rounding, v.nbytes, v.is_contiguous) == ("weights", False, 0, 24, False)
    v.name, v.pruned = "rows", True
    assert (v.name, t.name, v.pruned) == ("rows", "weights", True)
    with pytest.raises(AttributeError, match="gpudata"):
        _ = v.gpudata
    host = numbers(4, 3)
    np.testing.assert_array_equal(read(v.take([2, 0], 1)), host[[3, 1]][:, [2, 0]])
    assert v.copy(backend.array([[1], [2]])) is v and v.copy_from(np.ones((2, 1)) * [[5], [6]]) is v
    host[[3, 1]] = [[5], [6]]
    np.testing.assert_array_equal(t.get(), host)


def test_what_masks_and_arrays_pick_is_a_column(backend) -> None:
    host = numbers(4, 3)
    t = backend.array(host)
    picked = t[t > 5]
    assert picked.shape == (6, 1) and t[[0, 1], [1, 2]].shape == (2, 1)
    assert backend.evaluate(backend.take(t, [0, 11], None)).shape == (2, 1)
    assert backend.array(host, min_dims=0)[host > 5].shape == (6,)
    t[t > 5] = picked * 10
    t[[0, 1], [1, 2]] = t[[0, 1], [1, 2]] + 100
    host[host > 5] *= 10
    host[[0, 1], [1, 2]] += 100
    np.testing.assert_array_equal(t.get(), host)
    with pytest.raises(ValueError, match="do not fit"):
        t[t > 5] = backend.ones((2, 1))


def test_picked_entries_cannot_be_reshaped_as_a_view(backend) -> None:
    with pytest.raises(ValueError, match=r"be\.evaluate"):
        backend.zeros((3, 4))[[0, 1]].reshape(8)


def test_last_value_stays_for_a_place_named_twice(backend) -> None:
    t = backend.zeros((3, 1))
    t[[1, 1, 1]] = np.array([[1], [2], [3]])
    assert t.tolist() == [[0], [3], [0]]


def test_value_read_from_the_tensor_it_is_scattered_into(backend) -> None:
    host = numbers(4, 2)
    t = backend.array(host)
    t[[0, 1, 2, 3]] = t[[3, 2, 1, 0]]
    np.testing.assert_array_equal(t.get(), host[::-1])


LAST = np.array([0, 2**64 - 1], np.uint64)


@pytest.mark.parametrize(
    "key", [[3], [-4], (ALL, [0, 4]), np.array([99]), ([0, 3], [0, 0]), LAST, (LAST, [0, 0]), ([0], LAST[1])], ids=str
)
def test_index_array_out_of_range_raises_and_writes_nothing(backend, key) -> None:
    host = numbers(3, 4)
    t = backend.array(host)
    out = backend.zeros((1, 4))
    with pytest.raises(IndexError):
        t[key] = 9
    with pytest.raises(IndexError):
        out[:] = t[key][:1, :1]
    np.testing.assert_array_equal(t.get(), host)
    np.testing.assert_array_equal(out.get(), np.zeros((1, 4)))


# Several arrays, masks


ARRAYS = [
    ([0, 2], [1, 3]),
    ([[0], [2]], [1, 3]),
    (np.array([0, 1]), 2),
    (1, [0, 2]),
    (ALL, [0, 2], [1, 3]),
    ([0, 1], ALL, [1, 3]),
    ([0, 1], slice(1, None), 2),
    (None, [0, 1], 1),
    (Ellipsis, [0, 2], [1, 3]),
]


@pytest.mark.parametrize("key", ARRAYS, ids=str)
def test_several_index_arrays(backend, key) -> None:
    host = numbers(3, 4, 5)
    t = backend.array(host)
    np.testing.assert_array_equal(read(t[key]), host[key], strict=True)
    values = -numbers(*host[key].shape)
    t[key] = values
    host[key] = values
    np.testing.assert_array_equal(t.get(), host)


MASKS = {
    "full": lambda host: host > 5,
    "rows": lambda host: np.array([True, False, True]),
    "list": lambda host: [True, False, True],
    "columns": lambda host: (ALL, np.array([False, True, True, False])),
    "none": lambda host: np.zeros(host.shape, bool),
    "true": lambda host: (True, ALL, 1),
    "false": lambda host: (Ellipsis, 1, 2, np.False_),
}


@pytest.mark.parametrize("mask", MASKS)
def test_masks(backend, mask) -> None:
    host = numbers(3, 4)
    key = MASKS[mask](host)
    t = backend.array(host)
    np.testing.assert_array_equal(read(t[key]), column(host[key]), strict=True)
    np.testing.assert_array_equal(read(backend.array(host, min_dims=0)[key]), host[key], strict=True)
    t[key] = -1
    host[key] = -1
    np.testing.assert_array_equal(t.get(), host)


def test_mask_of_the_backend_itself(backend) -> None:
    host = numbers(3, 4)
    t = backend.array(host)
    mask = backend.array(host > 5, dtype=bool)
    np.testing.assert_array_equal(read(t[mask]), column(host[host > 5]))
    np.testing.assert_array_equal(read(t[t > 5]), column(host[host > 5]))
    t[t > 5] = 0
    np.testing.assert_array_equal(t.get(), np.where(host > 5, 0, host))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint64", "bool"])
@pytest.mark.parametrize("value", [0, 3, -2.5, True])
def test_a_mask_of_the_backend_takes_numbers_as_one_of_the_host(backend, dtype, value) -> None:
    """Of views as well, and of those whose memory the mask shares."""
    host = numbers(3, 4) % 5 > 2
    ours, theirs = (backend.array(numbers(3, 4) % 3, dtype=dtype) for _ in range(2))
    for t, mask in ((ours, backend.array(host.T, dtype=bool)), (theirs, host.T)):
        t.T[mask] = value
    np.testing.assert_array_equal(ours.get(), theirs.get())
    if dtype == "bool":
        ours[ours] = not value
        np.testing.assert_array_equal(ours.get(), theirs.get() & (not value))


def test_numbers_that_do_not_fit_are_refused_at_a_mask(backend) -> None:
    t = backend.array(numbers(3, 4), dtype="int8")
    before = t.get()
    with pytest.raises(OverflowError):
        t[t > 5] = 1000
    np.testing.assert_array_equal(t.get(), before)


def test_what_is_written_at_places_may_lie_in_the_target(backend) -> None:
    host = numbers(6, 3)
    t = backend.array(host)
    t[[5, 4, 0]] = t[::2]
    expected = host.copy()
    expected[[5, 4, 0]] = host[::2]
    np.testing.assert_array_equal(t.get(), expected)


def test_reading_by_several_arrays_copies(backend) -> None:
    t = backend.array(numbers(3, 4))
    t[[0, 1], [0, 1]].fill(-1)
    t[np.ones((3, 4), bool)].fill(-1)
    np.testing.assert_array_equal(t.get(), numbers(3, 4))


@pytest.mark.parametrize("shape", [(3, 3), (4,), (3, 4, 1)], ids=str)
def test_mask_of_another_shape_raises_and_writes_nothing(backend, shape) -> None:
    mask = np.ones(shape, bool)
    t = backend.array(numbers(3, 4))
    with pytest.raises(IndexError):
        t[mask] = 0
    with pytest.raises(IndexError):
        t[mask]
    np.testing.assert_array_equal(t.get(), numbers(3, 4))


def test_indices_of_another_backend_are_refused_and_write_nothing(backend) -> None:
    other = Backend.allocate_backend("cpu", jit=False)
    t = backend.array(numbers(3, 4))
    places = other.array([0, 2], dtype=np.int64, min_dims=0)
    mask = other.array(numbers(3, 4) > 5, dtype=bool)
    for key in (places, mask, mask == 0, (slice(None), places), ([0, 1], places)):
        with pytest.raises(BackendError, match="another backend"):
            t[key]
        with pytest.raises(BackendError, match="another backend"):
            t[key] = 0
    np.testing.assert_array_equal(t.get(), numbers(3, 4))
    other.cleanup_backend()


@shared
@given(data=st.data(), shape=hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5))
def test_integer_arrays_pick_and_scatter_like_numpy(backend, data, shape) -> None:
    host = numbers(*shape)
    key = data.draw(hnp.integer_array_indices(shape))
    t = backend.array(host, min_dims=0)
    np.testing.assert_array_equal(read(t[key]), host[key], strict=True)
    t[key] = -1
    host[key] = -1
    np.testing.assert_array_equal(t.get(), host)
