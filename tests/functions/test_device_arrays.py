# SPDX-License-Identifier: Apache-2.0
"""The function layer on the CUDA path, run by the emulator; and arrays of other libraries of a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import testing
from tensorbackend.errors import BackendError

A = np.random.RandomState(0).normal(size=(3, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    """The global backend: a CUDA backend that the emulator runs."""
    yield tb.gen_backend("gpu:emulator", rng_seed=1)
    tb.cleanup_backend()


class OtherLibrarys:
    """An array of a device as other libraries show theirs."""

    def __init__(self, tensor: Any) -> None:
        self._keep = tensor
        self.__cuda_array_interface__ = {
            "shape": tensor.shape, "typestr": tensor.dtype.str, "data": (tensor.address, False), "version": 3,
            "strides": tuple(s * tensor.dtype.itemsize for s in tensor.strides),
        }  # fmt: skip


def test_other_librarys_arrays_are_taken_without_a_copy(device) -> None:
    memory = device.array(A, min_dims=0)
    x = tb.Variable(OtherLibrarys(memory.T))
    assert tb.get_array_module(OtherLibrarys(memory)) is device.xp
    F.sum(x * x).backward()
    testing.assert_allclose(x.grad, 2 * A.T)
    memory[:] = 1
    testing.assert_allclose(x, np.ones((4, 3)))


class Split(tb.FunctionNode):
    """x y, with a forward for each device."""

    def forward_cpu(self, inputs):
        raise AssertionError("tensors of a device go to forward_gpu")

    def forward_gpu(self, inputs):
        self.retain_inputs((0, 1))
        x, y = inputs
        return (x * y,)

    def backward(self, target_input_indexes, grad_outputs):
        x, y = self.get_retained_inputs()
        return y * grad_outputs[0], x * grad_outputs[0]


def test_tensors_of_a_device_go_to_the_forward_of_the_device(device) -> None:
    x, y = (tb.Variable(A).to_gpu() for _ in range(2))
    F.sum(Split().apply((x, y))[0]).backward()
    testing.assert_allclose(x.grad, A)
    assert isinstance(x.to_cpu().array, np.ndarray)
    with pytest.raises(TypeError, match="different kinds"):
        F.add(x, y)


def test_functions_run_on_the_device(device) -> None:
    x, w = tb.Variable(device.array(A, min_dims=0)), tb.Variable(device.ones((2, 4), min_dims=0))
    y = F.softmax_cross_entropy(F.tanh(F.linear(x, w)), device.array([0, 1, -1], dtype="int32", min_dims=0))
    y.backward(enable_double_backprop=True)
    here = tb.Variable(A), tb.Variable(np.ones((2, 4), np.float32))
    expected = F.softmax_cross_entropy(F.tanh(F.linear(*here)), np.array([0, 1, -1], np.int32))
    expected.backward()
    testing.assert_allclose(y, expected)
    testing.assert_allclose(x.grad, here[0].grad)
    testing.assert_allclose(w.grad, here[1].grad)


def test_the_array_module_of_the_device(device) -> None:
    xp = device.xp
    a, expected = xp.array(A), A.copy()
    places = xp.arange(3)
    a += 1
    a[places, places] += 5
    expected += 1
    expected[np.arange(3), np.arange(3)] += 5
    testing.assert_allclose(xp.einsum("ij,ik->jk", a, a) / a.sum(), expected.T @ expected / expected.sum())


def test_without_a_device_there_is_none() -> None:
    tb.gen_backend("cpu")
    with pytest.raises(BackendError, match="no CUDA backend"):
        tb.to_gpu(A)
    tb.cleanup_backend()


def test_equal_infinities_are_not_the_worst_elements() -> None:
    with pytest.raises(AssertionError, match=r"worst at \(2,\): .*3.0"):
        testing.assert_allclose(np.array([np.inf, -np.inf, 2.0]), np.array([np.inf, -np.inf, 3.0]))
