# SPDX-License-Identifier: Apache-2.0
"""Tensors among NumPy arrays, DLPack and views of host memory; who keeps memory alive."""

from __future__ import annotations

import gc
import operator
import tracemalloc
import weakref

import numpy as np
import pytest

from tensorbackend import OpTreeNode, ShapeError, dtypes

EVERY_DTYPE = pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)


def numbers(*shape: int) -> np.ndarray:
    """0, 1, 2 … in C order."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# NumPy


@EVERY_DTYPE
def test_asarray_gives_values_and_type(backend, dtype) -> None:
    host = numbers(3, 4).astype(dtype)
    t = backend.array(host, dtype=dtype)
    for x, expected in ((t, host), (t.T, host.T), (t[::-1, 1:], host[::-1, 1:])):
        np.testing.assert_array_equal(np.asarray(x), expected, strict=True)
        np.testing.assert_array_equal(np.array(x), expected, strict=True)
    assert np.asarray(t, np.float64).dtype == t.__array__(np.float64, copy=True).dtype == np.float64


def test_numpy_reads_trees(backend) -> None:
    host = numbers(3, 4)
    tree = backend.array(host) * 2
    for made in (np.asarray(tree), np.array(tree), backend.array(tree).get(), backend.zeros((3, 4)).set(tree).get()):
        np.testing.assert_array_equal(made, host * 2, strict=True)


@pytest.mark.parametrize("shape", [(2000,), (30, 40), (7, 300), (2, 8, 3, 30)])
def test_large_tensors_are_printed_as_numpy_prints_arrays(backend, shape) -> None:
    host = numbers(*shape)
    t = backend.array(host, min_dims=0)
    for x, expected in ((t, host), (t.T, host.T), (t[::-1], host[::-1])):
        assert repr(x).partition("\n")[2] == np.array2string(expected, threshold=1000, precision=5)


def test_a_tensor_of_one_element_is_formatted_as_a_number(backend) -> None:
    t = backend.array([[2 / 3]])
    assert f"{t:.3f}" == format(t, ".3f") == "0.667" and f"{t}" == str(t)
    with pytest.raises(ShapeError, match="one element"):
        format(backend.ones((2, 2)), ".3f")


def test_array_copies_on_request(backend) -> None:
    t = backend.zeros((2, 2))
    copied = np.array(t)
    copied[:] = 5
    assert t.tolist() == [[0.0, 0.0]] * 2


def test_host_memory_is_shared(backend) -> None:
    if backend.device_type != 0:
        pytest.skip("the memory of a device is not the host's")
    t = backend.array(numbers(3, 4))
    live = t.asnumpyarray()
    live[0, 0] = 50
    assert t[0, 0].item() == 50
    t[1] = 7
    assert np.all(live[1] == 7)
    assert np.shares_memory(np.asarray(t), live)
    assert np.shares_memory(t.T.asnumpyarray(), live)


def test_array_interface_names_the_memory(backend) -> None:
    if backend.device_type != 0:
        pytest.skip("the memory of a device is not the host's")
    t = backend.array(numbers(4, 6), dtype=np.int16)
    facts = t[1:, ::2].__array_interface__
    assert facts["data"] == (t.ptr + 12, False)
    assert facts["shape"] == (3, 3)
    assert facts["strides"] == (12, 4)
    assert np.dtype(facts["typestr"]) == np.int16


OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.lt, operator.eq]


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_arrays_beside_tensors_make_trees_both_ways_round(backend, function) -> None:
    host, other = numbers(3, 4) + 1, numbers(3, 4)[::-1] / 8 + 1
    t = backend.array(host)
    for tree, expected in ((function(t, other), function(host, other)), (function(other, t), function(other, host))):
        assert isinstance(tree, OpTreeNode)
        np.testing.assert_allclose(backend.evaluate(tree).get(), expected, rtol=1e-6)


def test_a_matrix_product_with_an_array(backend) -> None:
    host = numbers(3, 4)
    t = backend.array(host)
    for tree in (t @ host.T, host @ t.T):
        assert isinstance(tree, OpTreeNode)
        np.testing.assert_array_equal(backend.evaluate(tree).get(), host @ host.T)


@pytest.mark.parametrize("scalar", [np.float32(2), np.float64(2), np.int32(2), np.array(2.0)], ids=repr)
def test_numpy_scalars_beside_tensors_make_trees(backend, scalar) -> None:
    t = backend.array(numbers(2, 2))
    for tree in (t + scalar, scalar + t):
        assert isinstance(tree, OpTreeNode)
        np.testing.assert_array_equal(backend.evaluate(tree).get(), numbers(2, 2) + 2)


def test_an_array_operand_is_copied_when_the_tree_is_built(backend) -> None:
    host = np.ones((2, 2), np.float32)
    tree = backend.zeros((2, 2)) + host
    host[:] = 9
    assert backend.evaluate(tree).tolist() == [[1.0, 1.0]] * 2


def test_one_dimensional_arrays_keep_their_rank(backend) -> None:
    tree = backend.zeros((3, 4), min_dims=0) + np.arange(4.0)
    np.testing.assert_array_equal(backend.evaluate(tree).get(), np.tile(np.arange(4.0), (3, 1)))


def test_ufuncs_leave_tensors_alone(backend) -> None:
    with pytest.raises(TypeError):
        np.add(numbers(2, 2), backend.zeros((2, 2)))


# Views of host memory


@EVERY_DTYPE
def test_view_shares_the_memory_of_an_array(backend, dtype) -> None:
    host = numbers(4, 6).astype(dtype)
    t = backend.view(host)
    assert (t.shape, t.dtype, t.ptr) == ((4, 6), dtype, host.ctypes.data)
    host[0, 0] = 1
    assert t[0, 0].item() == 1
    t[1:] = 0
    assert not host[1:].any()
    with pytest.raises(TypeError, match="list"):
        backend.view([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"alignment[\s\S]*a multiple of 4"):
        backend.view(np.ndarray((5,), np.float32, np.zeros(24, np.uint8), 1))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(
    "pick",
    [lambda a: a.T, lambda a: a[::-1], lambda a: a[:, ::2], lambda a: a[1:, 1:], lambda a: a[:0], lambda a: a[0],
     lambda a: a[0, ::-2]],
    ids=["transposed", "reversed", "strided", "inner", "empty", "row", "turned row"],
)  # fmt: skip
def test_view_of_any_layout(backend, pick, dtype) -> None:
    host = numbers(4, 6).astype(dtype)
    part = pick(host)
    t = backend.view(part, min_dims=0)
    np.testing.assert_array_equal(t.get(), part, strict=True)
    t[:] = t * 2 + 1
    np.testing.assert_array_equal(part, pick(numbers(4, 6)) * 2 + 1)
    np.testing.assert_array_equal(t[..., ::-1].get(), part[..., ::-1])


def test_view_follows_the_column_rule(backend) -> None:
    host = np.arange(3.0)
    assert backend.view(host).shape == (3, 1)
    assert backend.view(host, min_dims=0).shape == (3,)
    assert backend.view(np.array(5.0)).shape == (1, 1)


def test_view_of_a_matrix_is_one_of_an_array(backend) -> None:
    host = numbers(2, 3).view(np.matrix)
    t = backend.view(host, min_dims=0)
    assert type(t.get()) is type(t.asnumpyarray()) is np.ndarray
    assert t[[0, 1], [1, 2]].tolist() == [1, 5]
    t[[0, 1], [1, 2]] = [7, 8]
    assert host.tolist() == [[0, 7, 2], [3, 4, 8]]


def test_view_of_a_read_only_array_can_be_read_alone(backend) -> None:
    host = numbers(2, 3)
    host.flags.writeable = False
    t = backend.view(host)
    np.testing.assert_array_equal(backend.evaluate(t + 1).get(), host + 1)
    for attempt in (lambda: t.fill(0), lambda: t[:1].fill(0), lambda: t[[0]].fill(0), lambda: t.set(np.ones((2, 3)))):
        with pytest.raises(ValueError, match="read-only"):
            attempt()
    np.testing.assert_array_equal(host, numbers(2, 3))


def test_broadcast_arrays_cannot_be_written(backend) -> None:
    t = backend.view(np.broadcast_to(np.ones(3), (4, 3)))
    np.testing.assert_array_equal(backend.evaluate(t * 2).get(), np.full((4, 3), 2))
    with pytest.raises(ValueError, match=r"read-only|share memory"):
        t.fill(0)


@pytest.mark.parametrize(
    ("shape", "steps", "shared"),
    [
        ((4, 3), (1, 1), True),
        ((4, 3), (1, 2), True),
        ((2, 3), (3, 2), False),  # 0 2 4, 3 5 7
        ((4, 3), (2, 3), True),  # 6 twice
        ((2, 3), (-3, 2), False),
        ((5, 1), (1, 9), False),
        ((0, 3), (1, 1), False),
    ],
)
def test_windows_that_overlap_cannot_be_written(backend, shape, steps, shared) -> None:
    host = numbers(20)
    whole = np.lib.stride_tricks.as_strided(host[3:], shape, [4 * s for s in steps])
    t, expected = backend.view(whole), np.array(whole)
    np.testing.assert_array_equal(backend.evaluate(t * 2).get(), expected * 2)
    if shared:
        for attempt in (lambda: t.__setitem__(slice(None), t + 1), lambda: t.fill(0), lambda: backend.exp(t, out=t)):
            with pytest.raises(ValueError, match="share memory"):
                attempt()
        np.testing.assert_array_equal(host, numbers(20))
    else:
        t[:] = t + 1
        np.testing.assert_array_equal(t.get(), expected + 1)


@pytest.mark.parametrize(
    "host",
    [
        np.arange(4).astype(">i4"),
        np.zeros(4, [("a", np.int8), ("b", np.float32)])["b"],
        np.array(["a"]),
        np.array([1j]),
        np.array([object()]),
        np.ones((1,) * 17),
    ],
    ids=["byte order", "odd strides", "strings", "complex", "objects", "17 axes"],
)
def test_arrays_that_no_tensor_can_view(backend, host) -> None:
    with pytest.raises((TypeError, ValueError), match=r"expected|dtype"):
        backend.view(host)


@pytest.mark.parametrize("host", [np.arange(4).astype(">i4"), np.zeros(4, [("a", np.int8), ("b", np.int32)])["b"]],
                         ids=["byte order", "odd strides"])  # fmt: skip
def test_what_is_said_of_an_array_that_cannot_be_viewed_makes_one_that_can(backend, host) -> None:
    with pytest.raises(ShapeError, match=r"array\.astype\('int32'\)"):
        backend.view(host)
    np.testing.assert_array_equal(backend.view(host.astype("int32"), min_dims=0).get(), host)


# DLPack


EXPORTED = [d for d in dtypes.DTYPES if d != dtypes.BFLOAT16]


@pytest.mark.parametrize("dtype", EXPORTED, ids=str)
def test_dlpack_of_numpy_in_both_directions(backend, dtype) -> None:
    host = numbers(4, 6).astype(dtype)
    t = backend.array(host, dtype=dtype)
    out = np.from_dlpack(t[1:, ::2])
    np.testing.assert_array_equal(out, host[1:, ::2], strict=True)
    back = backend.from_dlpack(host[::2].T)
    np.testing.assert_array_equal(back.get(), host[::2].T, strict=True)
    assert back.ptr == host.ctypes.data
    assert t.__dlpack_device__() == host.__dlpack_device__()


def test_dlpack_of_bfloat16_is_refused(backend) -> None:
    with pytest.raises(BufferError, match="bfloat16"):
        backend.zeros((2, 2), dtype="bfloat16").__dlpack__()


def test_from_dlpack_needs_the_protocol(backend) -> None:
    with pytest.raises(TypeError, match="__dlpack__"):
        backend.from_dlpack([1, 2])


@pytest.mark.slow
def test_from_dlpack_of_a_type_that_numpy_lacks_is_refused(backend, absent) -> None:
    try:
        import torch
    except ImportError:
        absent("torch", "PyTorch is not installed")
    with pytest.raises(BufferError, match="Tensor: .*\n.*of a type that NumPy has"):
        backend.from_dlpack(torch.zeros(2, 3, dtype=torch.bfloat16))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int64", "uint8", "bool"])
def test_torch_shares_memory_both_ways(backend, absent, dtype) -> None:
    try:
        import torch
    except ImportError:
        absent("torch", "PyTorch is not installed")
    theirs = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    t = backend.from_dlpack(theirs.T)
    np.testing.assert_array_equal(t.get(), theirs.numpy().T)
    t[0, 1] = 0
    assert theirs[1, 0] == 0
    ours = backend.ones((2, 3), dtype=dtype)
    shared = torch.from_dlpack(ours)
    shared[1, 2] = 0
    assert ours[1, 2].item() == 0


# Memory


def alive(t: object) -> weakref.ref:
    """A reference to a tensor's storage that does not keep it alive."""
    return weakref.ref(t.storage)  # type: ignore[attr-defined]


def test_views_keep_storage_alive_and_the_last_one_frees_it(backend) -> None:
    t = backend.array(numbers(3, 4))
    storage = alive(t)
    view = t[1:].T
    del t
    gc.collect()
    assert storage() is not None
    np.testing.assert_array_equal(view.get(), numbers(3, 4)[1:].T)
    del view
    gc.collect()
    assert storage() is None


def test_trees_keep_their_tensors_alive_until_they_go(backend) -> None:
    t = backend.ones((2, 2))
    storage = alive(t)
    tree = t + 1
    del t
    assert storage() is not None
    assert backend.evaluate(tree).tolist() == [[2.0, 2.0]] * 2
    del tree
    gc.collect()
    assert storage() is None


def test_plans_keep_no_tensor_alive(backend) -> None:
    t = backend.ones((7, 3))
    storage = alive(t)
    t[:] = backend.exp(t) / backend.sum(t, axis=0)
    del t
    gc.collect()
    assert storage() is None


def test_numpy_views_keep_the_memory_alive(backend) -> None:
    live = np.asarray(backend.array(numbers(100, 100)))
    gc.collect()
    others = [backend.zeros((100, 100)) for _ in range(4)]
    np.testing.assert_array_equal(live, numbers(100, 100))
    assert len(others) == 4


def test_a_view_of_an_array_keeps_the_array_alive(backend) -> None:
    host = np.ones((50, 50))
    t = backend.view(host)
    reference = weakref.ref(host)
    del host
    gc.collect()
    assert reference() is not None
    np.testing.assert_array_equal(t.get(), np.ones((50, 50)))
    del t
    gc.collect()
    assert reference() is None


def test_repeated_statements_hold_no_more_memory(backend) -> None:
    x, out = backend.ones((64, 64)), backend.empty((64, 64))

    def statements(count: int) -> int:
        for _ in range(count):
            out[:] = backend.exp(x * 2) + backend.sum(x[1:].T, axis=0).reshape(1, 63)[:, :1]
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    statements(20)
    tracemalloc.start()
    try:
        before = statements(50)
        assert statements(500) - before < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_histograms_take_blocks_of_a_tensor(backend, dtype) -> None:
    host = np.broadcast_to(np.array([[1], [2], [4], [16], [0], [3]], dtype), (6, 1 << 18))
    t = backend.view(host)
    backend.set_hist_buffers(6, 0)
    tracemalloc.start()
    try:
        counts = t.hist("x").get()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        backend.dump_hist_data()
        backend.set_hist_buffers(64, -48)
    np.testing.assert_array_equal(counts, np.array([[2, 1, 2, 0, 1, 0]]) << 18)
    assert most < 12 * host.size  # halves are widened as a whole
