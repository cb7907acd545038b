# SPDX-License-Identifier: Apache-2.0
"""Buffers of activations, output sizes, hints."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, Block, ShapeError


@pytest.fixture
def sized(backend: Backend) -> Any:
    """`backend` with a batch size of 8."""
    backend.bsz = 8
    yield backend
    backend.bsz = None


BUFFERS = [(5, (5, 8)), ((3, 4), (3, 32)), ([3, 4], (3, 32)), ((2, 3, 4), (24, 8)), ((6,), (6, 8))]


@pytest.mark.parametrize(("dim0", "shape"), BUFFERS)
def test_iobuf_shapes(sized, dim0, shape) -> None:
    t = sized.iobuf(dim0, dtype=np.float16, name="deltas", persist_values=False, parallelism="Data")
    assert (t.shape, t.dtype, t.name, t.persist_values) == (shape, np.float16, "deltas", False)
    assert not t.get().any()


@pytest.mark.parametrize("dim0", [-5, (3, -4), (-2, -3), (-2, -3, 4)], ids=str)
def test_iobuf_refuses_negative_lengths(sized, dim0) -> None:
    with pytest.raises(ShapeError, match="negative"):
        sized.iobuf(dim0)


def test_iobuf_refuses_shared_memory_that_is_none_of_its_own(sized) -> None:
    for wrong in (np.ones((3, 8), np.float32), 5, sized.ones((3, 8)) + 1):
        with pytest.raises(TypeError, match="shared"):
            sized.iobuf(3, shared=wrong)
    other = Backend.allocate_backend("cpu", jit=False)
    foreign = other.ones((3, 8))
    with pytest.raises(RuntimeError, match="another backend"):
        sized.iobuf(3, shared=foreign)
    assert foreign.get().all()
    other.cleanup_backend()


def test_shared_iobuf_size_counts_whole_numbers(backend) -> None:
    for wrong in (2.5, (2.5, 2), "3", None):
        with pytest.raises(TypeError, match="integers"):
            backend.shared_iobuf_size(wrong, None)
    with pytest.raises(ValueError, match="negative"):
        backend.shared_iobuf_size(-1, None)


def test_iobuf_returns_what_it_is_given(sized) -> None:
    x = sized.ones((2, 2))
    assert sized.iobuf(5, x=x) is x
    assert x.get().all()


def test_iobuf_in_shared_memory_is_zeroed(sized) -> None:
    shared = sized.ones((10, 8))
    same = sized.iobuf(10, shared=shared)
    assert same is shared
    assert not shared.get().any()
    shared.fill(1)
    part = sized.iobuf((2, 3), shared=shared, name="part")
    assert (part.shape, part.ptr, part.name) == ((2, 24), shared.ptr, "part")
    assert shared.get().sum() == 80 - 48
    with pytest.raises(ValueError, match=r"\(11, 8\)"):
        sized.iobuf(11, shared=shared)


def test_iobuf_in_shared_memory_of_another_type(sized) -> None:
    narrow = sized.ones((4, 8), np.float32)
    with pytest.raises(ValueError, match="256 contiguous bytes"):
        sized.iobuf(4, dtype=np.dtype(np.float64), shared=narrow)
    shared = sized.ones((4, 8))
    t = sized.iobuf(4, dtype=np.float16, shared=shared)
    assert (t.shape, t.dtype, t.ptr) == ((4, 8), np.float16, shared.ptr)
    assert np.count_nonzero(shared.get()) == 16


@pytest.mark.parametrize("parallelism", ["Data", "Model", "Disabled", None])
def test_shared_iobuf_size_on_one_device(backend, parallelism) -> None:
    assert backend.shared_iobuf_size((3, 4, 5), parallelism) == 60
    assert backend.shared_iobuf_size(7, parallelism) == 7


def test_more_devices_than_one_change_no_size(make_another) -> None:
    be = make_another(num_devices=4)
    assert be.shared_iobuf_size(7, "Disabled") == 7
    be.cleanup_backend()


# Output sizes


def windows(x: int, s: int, padding: int, strides: int, dilation: int) -> int:
    """How many windows fit, by trying their places."""
    span = dilation * (s - 1) + 1
    return len([p for p in range(-padding, x + padding) if (p + padding) % strides == 0 and p + span <= x + padding])


def caffe_windows(x: int, s: int, padding: int, strides: int) -> int:
    """As Caffe counts: one more window for a remainder, unless it would start in the padding behind the image."""
    count = math.ceil((x - s + 2 * padding) / strides) + 1
    return count - 1 if padding and (count - 1) * strides >= x + padding else count


@pytest.mark.parametrize("pooling", [False, True])
def test_output_dim_counts_windows(backend, pooling) -> None:
    for x in range(3, 12):
        for s, padding, strides, dilation in np.ndindex(3, 3, 3, 2):
            s, strides, dilation = s + 1, strides + 1, dilation + 1
            span = dilation * (s - 1) + 1
            if span > x + 2 * padding or (pooling and padding >= span):
                continue
            found = backend.output_dim(x, s, padding, strides, pooling=pooling, dilation=dilation)
            assert found == windows(x, s, padding, strides, dilation), (x, s, padding, strides, dilation)


def test_output_dim_in_caffe_s_mode(make_another) -> None:
    be = make_another(compat_mode="caffe")
    assert be.check_caffe_compat()
    for x in range(3, 12):
        for s, padding, strides in ((2, 0, 2), (3, 1, 2), (3, 0, 2), (2, 1, 2), (3, 2, 3), (1, 0, 3)):
            assert be.output_dim(x, s, padding, strides, pooling=True) == caffe_windows(x, s, padding, strides)
            assert be.output_dim(x, s, padding, strides) == windows(x, s, padding, strides, 1)
    be.cleanup_backend()


def test_caffe_s_mode_can_be_set(make_another) -> None:
    be = make_another()
    assert not be.check_caffe_compat()
    assert be.output_dim(4, 3, 0, 2, pooling=True) == 1
    be.set_caffe_compat()
    assert be.check_caffe_compat()
    assert be.output_dim(4, 3, 0, 2, pooling=True) == 2
    be.cleanup_backend()


@pytest.mark.parametrize(("window", "padding", "dilation"), [(2, 2, 1), (1, 1, 1), (2, 3, 2)])
def test_output_dim_refuses_windows_within_the_padding(backend, window, padding, dilation) -> None:
    with pytest.raises(ValueError, match=str(padding)):
        backend.output_dim(9, window, padding, 1, pooling=True, dilation=dilation)


@pytest.mark.parametrize("given", [{"X": 1.5}, {"S": 0}, {"strides": 0}, {"dilation": None}], ids=str)
def test_output_dim_takes_sizes_alone(backend, given) -> None:
    with pytest.raises(ValueError, match="expected  an int of at least 1"):
        backend.output_dim(**{"X": 9, "S": 2, "padding": 0, "strides": 1} | given)


def test_copies_of_a_backend_are_itself_and_pickles_refused(backend) -> None:
    assert copy.copy(backend) is copy.deepcopy([backend])[0] is backend
    with pytest.raises(TypeError, match="a backend belongs to its process"):
        pickle.dumps(backend)


# Hints


def test_blocks_are_hints() -> None:
    assert [Block.epoch, Block.minibatch, Block.fprop, Block.bprop, Block.update] == [0, 1, 2, 3, 4]


def test_begin_and_end_change_no_value(backend) -> None:
    t = backend.ones((2, 2), persist_values=False)
    backend.begin(Block.epoch, 0)
    backend.begin(Block.fprop, 7)
    t[:] = t + 1
    backend.end(Block.fprop, 7)
    backend.end(Block.epoch, 0)
    assert t.tolist() == [[2.0, 2.0]] * 2
