# SPDX-License-Identifier: Apache-2.0
"""Tensors: shapes of allocations, facts about layout, movements, methods, and reading back."""

from __future__ import annotations

import copy
import functools
import gc
import operator
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

from tensorbackend import dtypes
from tensorbackend.graph.tensor import Tensor

pytestmark = pytest.mark.rehearsed

EVERY_DTYPE = pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
COLUMN_RULE = [
    ((), {0: (), 1: (1,), 2: (1, 1)}),
    (5, {0: (5,), 1: (5,), 2: (5, 1)}),
    ((5,), {0: (5,), 1: (5,), 2: (5, 1)}),
    ([2, 3], {0: (2, 3), 1: (2, 3), 2: (2, 3)}),
    (np.int64(4), {0: (4,), 1: (4,), 2: (4, 1)}),
    ((np.int32(2), 3), {0: (2, 3), 1: (2, 3), 2: (2, 3)}),
    (np.array([2, 3]), {0: (2, 3), 1: (2, 3), 2: (2, 3)}),
    ((0,), {0: (0,), 1: (0,), 2: (0, 1)}),
    ((2, 3, 4), {0: (2, 3, 4), 1: (2, 3, 4), 2: (2, 3, 4)}),
    ((1,) * 16, {0: (1,) * 16, 1: (1,) * 16, 2: (1,) * 16}),
]


def numbers(*shape: int) -> np.ndarray:
    """0, 1, 2 … in C order."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# Allocation


@pytest.mark.parametrize("min_dims", [0, 1, 2])
@pytest.mark.parametrize(("asked", "shapes"), COLUMN_RULE, ids=str)
def test_shape_follows_the_column_rule(backend, asked, shapes, min_dims) -> None:
    made = [f(asked, min_dims=min_dims) for f in (backend.empty, backend.zeros, backend.ones)]
    assert [t.shape for t in made] == [shapes[min_dims]] * 3
    assert {t._min_dims for t in made} == {min_dims}


def test_two_dimensions_are_the_default(backend) -> None:
    assert backend.min_dims == 2
    assert backend.zeros(3).shape == (3, 1)
    assert backend.array([1, 2, 3]).shape == (3, 1)
    assert backend.array(7).shape == (1, 1)


@pytest.mark.parametrize("make", ["empty", "zeros", "ones"])
def test_allocation_keeps_type_and_name(backend, make) -> None:
    t = getattr(backend, make)((2, 3), np.int16, "weights", False)
    assert (t.shape, t.dtype, t.name, t.persist_values) == ((2, 3), np.int16, "weights", False)
    assert t.backend is backend
    assert t.base is None
    assert t._original_base is t


def test_fills_have_their_numbers(backend) -> None:
    assert backend.zeros((2, 3)).tolist() == [[0.0] * 3] * 2
    assert backend.ones((2, 3)).tolist() == [[1.0] * 3] * 2
    assert backend.full((2, 2), 7, dtype=np.int32).tolist() == [[7, 7], [7, 7]]


@pytest.mark.parametrize(
    "host",
    [[[1, 2], [3, 4]], ((1.5, 2.5),), range(4), np.float16(3), True, np.eye(3, dtype=np.uint8), np.zeros((0, 3))],
    ids=repr,
)
def test_array_converts_host_data_to_the_default_type(backend, host) -> None:
    t = backend.array(host, min_dims=0)
    expected = np.asarray(host, np.float32)
    assert t.dtype == np.float32
    np.testing.assert_array_equal(t.get(), expected, strict=True)


def test_array_copies(backend) -> None:
    host = numbers(2, 3)
    t = backend.array(host)
    host[:] = -1
    np.testing.assert_array_equal(t.get(), numbers(2, 3))


def test_truths_of_any_bytes_are_taken_as_0_and_1(backend) -> None:
    host = np.array([[0, 1, 2], [255, 0, 128]], np.uint8).view(np.bool_)  # a mask as an image has it
    expected = np.array([[0, 1, 1], [1, 0, 1]])
    assigned, put, picked = (backend.zeros(host.shape, dtype=bool, min_dims=0) for _ in range(3))
    assigned[:] = host
    put.set(host.T.copy().T)
    picked[[1, 0]] = host[::-1]
    for t in (backend.array(host, dtype=bool, min_dims=0), assigned, put, picked):
        np.testing.assert_array_equal(t.get().view(np.uint8), expected)
        np.testing.assert_array_equal(backend.evaluate(t * 3).get(), expected * 3)
    ones = backend.ones(host.shape, min_dims=0)
    np.testing.assert_array_equal(backend.evaluate(ones * host).get(), expected)


@pytest.mark.parametrize("bounds", [(5,), (2, 7), (1, 2, 0.25), (5, 0, -2)], ids=str)
def test_arange_counts_like_numpy(backend, bounds) -> None:
    np.testing.assert_array_equal(backend.arange(*bounds, min_dims=0).get(), np.arange(*bounds, dtype=np.float32))


@EVERY_DTYPE
def test_likes_take_shape_and_type_of_the_argument(backend, dtype) -> None:
    t = backend.zeros((2, 3), dtype=dtype)
    for made in (backend.empty_like(t), backend.zeros_like(t, "n"), backend.ones_like(t)):
        assert (made.shape, made.dtype) == ((2, 3), dtype)
    assert backend.zeros_like(t, "n").name == "n"
    assert backend.ones_like(t, dtype=np.float64).dtype == np.float64
    assert backend.zeros_like(np.zeros((4,), np.int8)).dtype == np.int8


def test_likes_persist_as_the_argument_does(backend) -> None:
    t = backend.zeros((2, 3), persist_values=False)
    for make in (backend.empty_like, backend.zeros_like, backend.ones_like):
        assert [make(x).persist_values for x in (t, t + 1, np.zeros(2))] == [False, True, True]
        assert make(t, persist_values=True).persist_values


# Memory of a caller's allocator


@pytest.mark.parametrize("make", ["empty", "zeros", "ones", "array"])
def test_an_allocator_gives_the_memory_which_lives_as_long_as_the_tensor(backend, make) -> None:
    asked, given = [], []

    def allocator(nbytes: int) -> Any:
        memory = backend.empty(nbytes + 64, np.uint8, min_dims=0)[64:]
        asked.append(nbytes)
        given.append(weakref.ref(memory.storage))
        return memory

    what = np.ones((3, 5)) if make == "array" else (3, 5)
    t = getattr(backend, make)(what, np.float16, None, True, False, False, allocator)
    assert (asked, t.shape, t.dtype) == ([30], (3, 5), np.float16)
    assert t.base is None
    t[:] = t * 0 + 7 if make != "empty" else 7
    rows = t[1:]
    del t
    gc.collect()
    assert (rows.get() == 7).all()
    assert given[0]() is not None
    del rows
    gc.collect()
    assert given[0]() is None


def test_an_arena_is_an_allocator(backend) -> None:
    arena, used = backend.zeros(4096, np.uint8, min_dims=0), 0

    def allocator(nbytes: int) -> Any:
        nonlocal used
        used += -(-nbytes // 64) * 64
        return arena[used - -(-nbytes // 64) * 64 : used]

    x, y = (backend.array(np.full((4, 9), n), allocator=allocator) for n in (1, 2))
    x[:] = x + y
    assert (x.get() == 3).all() and (y.get() == 2).all()
    assert x.ptr == arena.ptr and y.ptr == arena.ptr + 192
    np.testing.assert_array_equal(arena.get()[:144].view(np.float32), np.full(36, 3, np.float32))
    assert backend.empty((0, 3), allocator=allocator).size == 0


def test_memory_that_no_tensor_can_have_is_refused(backend) -> None:
    bytes_of = functools.partial(backend.empty, dtype=np.uint8, min_dims=0)
    with pytest.raises(ValueError, match="too little memory"):
        backend.empty((3, 4), allocator=lambda nbytes: bytes_of(nbytes - 1))
    with pytest.raises(ValueError, match="not aligned"):
        backend.empty((3, 4), allocator=lambda nbytes: bytes_of(nbytes + 1)[1:])
    for nothing in (None, "memory", 1.5, [1, 2], np.zeros(99, object)):
        with pytest.raises(TypeError, match="what it gave"):
            backend.empty((3, 4), allocator=lambda nbytes, nothing=nothing: nothing)
    for allocator in (3, "pool", np.zeros(3)):
        with pytest.raises(TypeError, match="function of the number of bytes"):
            backend.empty((3, 4), allocator=allocator)


@pytest.mark.parametrize("make", ["empty_like", "zeros_like", "ones_like"])
def test_likes_of_nothing_are_refused(backend, make) -> None:
    for wrong in ([1, 2], None, 3, "abc"):
        with pytest.raises(TypeError, match="a tensor, op-tree or array"):
            getattr(backend, make)(wrong)
    with pytest.raises(ValueError, match="not known"):
        getattr(backend, make)(backend.rand())


@pytest.mark.parametrize("make", ["empty", "zeros", "ones"])
def test_allocations_refuse_what_they_would_take_for_a_default(backend, make) -> None:
    with pytest.raises(TypeError, match="None"):
        getattr(backend, make)(None)
    for dtype in (0, "", False, [], {}):
        with pytest.raises(TypeError, match="dtype"):
            getattr(backend, make)((2, 2), dtype=dtype)
    for min_dims in (3, 17, -1, 1.5, "2", float("nan")):
        with pytest.raises(ValueError, match="0, 1 or 2"):
            getattr(backend, make)(3, min_dims=min_dims)


# Facts


def test_fresh_tensors_lie_in_c_order(backend) -> None:
    t = backend.empty((2, 3, 4), dtype=np.float64)
    assert t.strides == (12, 4, 1)
    assert (t.size, t.nbytes, t.ndim, len(t)) == (24, 192, 3, 2)
    assert t.is_contiguous
    assert t.ptr == t.raw() == int(t) == t.gpudata
    assert t.ptr % 64 == 0


def test_strides_count_elements(backend) -> None:
    t = backend.array(numbers(4, 6), dtype=np.float64)
    assert t.T.strides == (1, 6)
    assert t[::2, ::-3].strides == (12, -3)
    assert t[1:, 2:].ptr - t.ptr == (6 + 2) * 8
    assert t[::-1].ptr - t.ptr == 3 * 6 * 8


@pytest.mark.parametrize(
    ("key", "contiguous"),
    [
        ((slice(1, 3),), True),
        ((slice(0, 1), slice(1, 4)), True),
        ((slice(None), slice(0, 3)), False),
        ((slice(None, None, 2),), False),
        ((slice(None, None, -1),), False),
        ((slice(2, 2), slice(0, 3)), True),
        ((slice(2, 3), slice(3, 4)), True),
    ],
    ids=str,
)
def test_is_contiguous_means_c_order_without_gaps(backend, key, contiguous) -> None:
    host = numbers(4, 6)
    view = backend.array(host)[key]
    assert view.is_contiguous is contiguous
    assert host[key].flags.c_contiguous is contiguous


def test_is_trans_after_an_odd_number_of_transposes(backend) -> None:
    t = backend.zeros((3, 4))
    assert [t.is_trans, t.T.is_trans, t.T.T.is_trans] == [False, True, False]


def test_base_is_the_tensor_viewed_and_its_chain_ends_at_the_owner(backend) -> None:
    t = backend.zeros((4, 6))
    rows = t[1:]
    part = rows.T[2:]
    assert rows.base is t
    assert part._original_base is t
    assert t._original_base is t


def test_hash_is_of_the_object(backend) -> None:
    t, u = backend.zeros((2, 2)), backend.zeros((2, 2))
    assert hash(t) == hash(t)
    names = {t: "t", u: "u"}
    assert names[t] == "t"
    assert names[u] == "u"


def test_own_attributes_stay_with_the_object(backend) -> None:
    t = backend.zeros((2, 2))
    t.auto_reduce = True
    t.parent = "layer"
    assert (t.auto_reduce, t.parent) == (True, "layer")
    assert not hasattr(t[:1], "auto_reduce")


def test_length_and_iteration_go_over_the_first_axis(backend) -> None:
    host = numbers(3, 4)
    rows = list(backend.array(host))
    assert [r.shape for r in rows] == [(1, 4)] * 3
    for row, expected in zip(rows, host):
        np.testing.assert_array_equal(row.get()[0], expected)
    scalars = list(backend.array([5.0, 6.0], min_dims=0))
    assert [float(s) for s in scalars] == [5.0, 6.0]


def test_a_tensor_without_axes_has_no_length(backend) -> None:
    with pytest.raises(TypeError, match="without axes"):
        len(backend.array(5, min_dims=0))


def test_truth_and_membership_are_refused(backend) -> None:
    t = backend.ones((2, 2))
    with pytest.raises(TypeError, match=r"be\.any"):
        bool(t)
    with pytest.raises(TypeError, match=r"be\.any"):
        1 in t  # noqa: B015


@EVERY_DTYPE
def test_item_and_float_read_one_element(backend, dtype) -> None:
    t = backend.array([[1]], dtype=dtype)
    assert t.item() == 1
    assert isinstance(t.item(), (bool, int, float))
    assert float(t) == 1.0


def test_a_tree_of_one_element_is_read_as_a_tensor_is(backend) -> None:
    total = backend.sum(backend.array([[1, 2], [3, 4]]))
    assert (total.item(), float(total), f"{total:.2f}", total.tolist()) == (10.0, 10.0, "10.00", [[10.0]])
    assert isinstance((total > 3).item(), (bool, int))
    assert f"{total}" == str(total)
    with pytest.raises(TypeError, match=r"int\(tree\.item\(\)\)"):
        int(total)


def test_item_refuses_several_elements(backend) -> None:
    for several in (backend.zeros((2, 3)), backend.zeros((2, 3)) + 1):
        with pytest.raises(ValueError, match=r"\(2, 3\)"):
            several.item()
    with pytest.raises(ValueError, match="shape None"):
        float(backend.rand())


@EVERY_DTYPE
@pytest.mark.parametrize("min_dims", [0, 2])
def test_repr_shows_shape_type_and_numbers(backend, dtype, min_dims) -> None:
    text = repr(backend.array([[1, 0, 1]], dtype=dtype, name="mask", min_dims=min_dims))
    for part in ("'mask'", "(1, 3)", dtype.name, backend.backend_name, "True" if dtype == dtypes.BOOL else "1"):
        assert part in text
    assert str(backend.zeros((0, 3), dtype=dtype)).count("\n") == 0


def test_repr_of_a_large_tensor_is_short(backend) -> None:
    assert len(repr(backend.zeros((500, 400)))) < 2000


# Movements


@pytest.mark.parametrize("min_dims", [0, 2])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (2, 3, 4, 5), (1, 1), (0, 3)], ids=str)
def test_transpose_property(backend, shape, min_dims) -> None:
    host = numbers(*shape)
    order = range(len(shape))[::-1] if len(shape) == 2 or min_dims == 0 else (0, *range(len(shape) - 1, 0, -1))
    t = backend.array(host, min_dims=min_dims)
    np.testing.assert_array_equal(t.T.get(), host.transpose(tuple(order)), strict=True)
    assert t.T.base is t
    np.testing.assert_array_equal(t.T.T.get(), host)


@pytest.mark.parametrize("number", [2, 2.0, np.float32(2), np.int64(2)], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("min_dims", [0, 2])
def test_a_tree_of_numbers_leaves_the_rank_rule_to_tensors(backend, number, min_dims) -> None:
    scale = backend.sqrt(number)
    x = backend.ones((2, 3, 4), min_dims=min_dims)
    for plain, scaled in ((x, x * scale), (x, scale * x), (x, backend.evaluate(x * scale)), (x[0], x[0] * scale)):
        assert scaled.T.shape == plain.T.shape
        assert scaled[0].shape == plain[0].shape
    assert backend.evaluate(scale).shape == ()
    np.testing.assert_allclose((scale + np.arange(3.0)).get(), np.sqrt(2) + np.arange(3), rtol=1e-6)


@pytest.mark.parametrize("min_dims", [0, 2])
def test_trees_without_tensors_follow_the_rank_rule_of_their_backend(make_another, min_dims) -> None:
    be = make_another(rng_seed=1, min_dims=min_dims)
    x = be.ones((2, 3, 4))
    forms = be.rand(shape=x.shape), be.rand(shape=x.shape) + be.sqrt(2.0), be.broadcast_to(be.sqrt(2.0), x.shape)
    for tree in (*forms, *map(be.evaluate, forms)):
        assert tree.T.shape == x.T.shape
        assert tree[0][0].shape == x[0][0].shape
    other = be.ones(x.shape, min_dims=2 - min_dims)
    for tree in (other * be.rand(), other * be.rand(shape=x.shape), be.take(other * be.rand(), [0, 1], 0)):
        assert tree.T.shape == other.T.shape


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (-1, 0, 1), (1, 2, 0)], ids=str)
def test_transpose_with_axes_is_a_view(backend, axes) -> None:
    host = numbers(2, 3, 4)
    t = backend.array(host)
    for moved in (t.transpose(*axes), t.transpose(axes), t.transpose(list(axes)), backend.transpose(t, axes)):
        np.testing.assert_array_equal(moved.get(), host.transpose(axes), strict=True)
        assert moved._original_base is t
    out = backend.empty(host.transpose(axes).shape)
    assert t.transpose(*axes, out=out) is out
    np.testing.assert_array_equal(out.get(), host.transpose(axes))


@pytest.mark.parametrize("wanted", [(6, 4), (24,), (-1, 8), (2, -1, 2), (2, 3, 4), (1, 24, 1)], ids=str)
def test_reshape_is_a_view(backend, wanted) -> None:
    host = numbers(2, 3, 4)
    t = backend.array(host)
    for moved in (t.reshape(*wanted), t.reshape(wanted), t.reshape(list(wanted)), backend.reshape(t, wanted)):
        np.testing.assert_array_equal(moved.get(), host.reshape(wanted), strict=True)
        assert moved.ptr == t.ptr


def test_reshape_to_the_same_shape_is_the_tensor_itself(backend) -> None:
    t = backend.zeros((3, 4))
    assert t.reshape(3, 4) is t
    assert t.reshape((3, -1)) is t


def test_reshape_of_a_strided_view_where_one_exists(backend) -> None:
    host = numbers(4, 6)
    t = backend.array(host)
    view = t[:, ::2].reshape(4, 3, 1)
    view[:] = -1
    host[:, ::2] = -1
    np.testing.assert_array_equal(t.get(), host)
    np.testing.assert_array_equal(t[::2].reshape(2, 2, 3).get(), host[::2].reshape(2, 2, 3))


def test_backend_reshape_copies_where_no_view_exists(backend) -> None:
    host = numbers(4, 6)
    moved = backend.reshape(backend.array(host).T, (24,))
    np.testing.assert_array_equal(backend.evaluate(moved).get(), host.T.reshape(24))


def test_dimension_reorder_moves_no_data(backend) -> None:
    host = numbers(2, 3, 4)
    moved = backend.array(host).dimension_reorder((2, 0, 1))
    np.testing.assert_array_equal(moved.get(), host.reshape(4, 2, 3), strict=True)


@pytest.mark.parametrize("shape", [(2, 3), (6, 4), 5, (1, 1), (0, 3)], ids=str)
def test_share_views_the_first_elements(backend, shape) -> None:
    host = numbers(4, 6)
    t = backend.array(host)
    shared = t.share(shape, name="scratch")
    np.testing.assert_array_equal(shared.get().ravel(), host.ravel()[: shared.size])
    assert shared.ptr == t.ptr
    assert shared.name == "scratch"
    assert shared.base is t


def test_share_counts_another_type_in_bytes(backend) -> None:
    t = backend.array(numbers(2, 3))
    words = t.share((2, 3), dtype=np.uint32)
    np.testing.assert_array_equal(words.get(), t.get().view(np.uint32))
    assert t.share((4, 6), dtype=np.uint8).nbytes == t.nbytes
    with pytest.raises(ValueError, match="24 contiguous bytes"):
        t.share((2, 3), dtype=np.float64)


def test_share_as_another_type_begins_at_an_element_of_it(backend) -> None:
    t = backend.zeros((64, 1), dtype=np.int8)
    assert t[4:].share(4, dtype=np.float32).fill(1).tolist() == [[1.0]] * 4
    for offset, dtype in ((1, np.int16), (2, np.float32), (4, np.float64)):
        with pytest.raises(ValueError, match="alignment"):
            t[offset:].share(2, dtype=dtype)


def test_share_of_a_view_starts_where_the_view_does(backend) -> None:
    t = backend.array(numbers(4, 6))
    np.testing.assert_array_equal(t[2:].share((2, 2)).get(), [[12, 13], [14, 15]])
    with pytest.raises(ValueError, match="contiguous"):
        t.T.share((2, 2))


# Methods that write


def test_writing_methods_return_the_tensor(backend) -> None:
    t = backend.empty((2, 3))
    host = numbers(2, 3)
    assert t.fill(4) is t
    assert t.tolist() == [[4.0] * 3] * 2
    assert t.set(host) is t
    np.testing.assert_array_equal(t.get(), host)
    assert t.copy(backend.array(host * 2)) is t
    np.testing.assert_array_equal(t.get(), host * 2)
    assert t.copy_from(host.tolist()) is t
    np.testing.assert_array_equal(t.get(), host)


@pytest.mark.parametrize("layout", ["C", "F", "strided", "reversed", "1-D"])
def test_set_takes_any_layout_of_the_same_size(backend, layout) -> None:
    host = numbers(4, 6)
    given = {
        "C": host,
        "F": np.asfortranarray(host),
        "strided": np.repeat(host, 2, axis=1)[:, ::2],
        "reversed": host[::-1].copy()[::-1],
        "1-D": host.ravel(),
    }[layout]
    np.testing.assert_array_equal(backend.empty((4, 6)).set(given).get(), host)
    column = backend.zeros((6, 4)).T
    np.testing.assert_array_equal(column.set(given).get(), host)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3)], ids=str)
def test_asbuffer_has_the_bytes_of_any_shape(backend, shape, dtype) -> None:
    t = backend.ones(shape, dtype=dtype, min_dims=0)
    found = t.asbuffer()
    assert (found.format, found.ndim, bytes(found)) == ("B", 1, t.get().tobytes())


def test_get_is_a_new_contiguous_array(backend) -> None:
    t = backend.array(numbers(3, 4))
    for view in (t, t.T, t[::2, ::-1]):
        values = view.get()
        assert values.flags.c_contiguous
        assert values.flags.owndata
        values[...] = -5
    np.testing.assert_array_equal(t.get(), numbers(3, 4))


def test_take_reads_rows_and_columns(backend) -> None:
    host = numbers(4, 6)
    t = backend.array(host)
    np.testing.assert_array_equal(backend.evaluate(t.take([2, 0, 2], 0)).get(), host[[2, 0, 2]])
    np.testing.assert_array_equal(backend.evaluate(t.take(np.array([5, -1]), 1)).get(), host[:, [5, -1]])
    out = backend.empty((4, 2))
    assert t.take(backend.array([1, 3], dtype=np.int32), 1, out) is out
    np.testing.assert_array_equal(out.get(), host[:, [1, 3]])
    places = backend.array([[7, 0]], dtype=np.int64)
    np.testing.assert_array_equal(backend.evaluate(backend.take(t, places, None)).get(), [[7], [0]])


def test_take_of_a_tree(backend) -> None:
    host = numbers(4, 6)
    picked = backend.take(backend.array(host) * 2, [3, 1], 0)
    np.testing.assert_array_equal(backend.evaluate(picked).get(), host[[3, 1]] * 2)


def test_places_may_be_a_tree(backend) -> None:
    host = numbers(4, 6)
    t, places = backend.array(host), backend.array([0, 2], dtype=np.int32)
    for tree in (places + 1, (places + 1).T):
        np.testing.assert_array_equal(backend.evaluate(backend.take(t, tree, 0)).get(), host[[1, 3]])
        np.testing.assert_array_equal(backend.evaluate(t[tree]).get(), host[[1, 3]])
    with pytest.raises(TypeError, match="indices must be integers"):
        backend.take(t, places * 0.5, 0)


@pytest.mark.parametrize("of", [copy.copy, copy.deepcopy, lambda t: t.backend.copy(t)], ids=["copy", "deepcopy", "be"])
def test_copies_have_memory_of_their_own(backend, of) -> None:
    t = backend.array(numbers(3, 4), dtype=np.float16)
    made = of(t.T)
    assert (made.shape, made.dtype, made.is_contiguous) == ((4, 3), np.float16, True)
    t.fill(0)
    np.testing.assert_array_equal(made.get(), numbers(3, 4).T)


def test_deepcopy_of_a_container(backend) -> None:
    t = backend.array(numbers(2, 2))
    made = copy.deepcopy({"weights": [t]})
    assert isinstance(made["weights"][0], Tensor)
    assert made["weights"][0] is not t


@pytest.mark.parametrize("of", [copy.copy, copy.deepcopy])
def test_copies_keep_name_and_own_attributes(backend, of) -> None:
    t = backend.zeros((2, 2), name="weights", persist_values=False)
    t.parents = ["layer"]
    made = of(t)
    assert (made.name, made.persist_values, made.parents) == ("weights", False, ["layer"])
    assert (made.parents is t.parents) == (of is copy.copy)
    array = backend.xp.zeros((2, 2))
    assert type(of(array)) is type(array)


def test_deepcopy_of_trees_copies_their_tensors(backend) -> None:
    t = backend.array(numbers(3, 4))
    tree = (t.T * 2 + t[::-1].T)[:, ::2] + backend.exp(t[:1, :1])
    picked = backend.take(t, [2, 0], 0)
    held, made, entries, drawn = copy.deepcopy([t, tree, picked, backend.rand() + t])
    expected, old = tree.get(), numbers(3, 4)[[2, 0]]
    t.fill(0)
    np.testing.assert_array_equal(made.get(), expected)
    np.testing.assert_array_equal(entries.get(), old)
    entries[:] = -1
    assert (held.get()[[2, 0]] == -1).all()
    assert (drawn.get()[[2, 0]] < 0).all()
    assert not t.get().any()
    copy.copy(picked)[:] = 5
    assert (t.get()[[2, 0]] == 5).all()


def test_pickle_is_refused(backend) -> None:
    with pytest.raises(TypeError, match=r"t\.get\(\)"):
        pickle.dumps(backend.zeros((2, 2)))
    with pytest.raises(TypeError, match=r"tree\.get\(\)"):
        pickle.dumps(backend.zeros((2, 2)) + 1)


def test_arrays_of_trees_are_new(backend) -> None:
    tree = backend.ones((2, 2)) + 1
    assert np.asarray(tree).tolist() == [[2.0, 2.0]] * 2
    with pytest.raises(ValueError, match="copy=None"):
        tree.__array__(copy=False)


def test_augmented_assignment_into_a_slice_writes(backend) -> None:
    host = numbers(3, 4)
    t = backend.array(host)
    t[:] += 2
    t[1:] *= backend.array([[1, 2, 3, 4]])
    t[:, 1] -= t[:, :1]
    host += 2
    host[1:] *= [1, 2, 3, 4]
    host[:, 1:2] -= host[:, :1].copy()
    np.testing.assert_array_equal(t.get(), host)


def test_augmented_assignment_to_a_name_rebinds_it(backend) -> None:
    t = u = backend.ones((2, 2))
    t += 1
    assert t is not u
    assert u.tolist() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize("other", [[1.0, 2.0], (1.0, 2.0)], ids=str)
def test_comparisons_with_lists_are_refused(backend, other) -> None:
    t = backend.ones((1, 2))
    for x in (t, t + 1):
        for compare in (operator.eq, operator.ne, operator.lt):
            with pytest.raises(TypeError, match="list|tuple"):
                compare(x, other)
        with pytest.raises(TypeError, match="list|tuple"):
            assert other == x
