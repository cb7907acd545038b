# SPDX-License-Identifier: Apache-2.0
"""The small layer hooks, the hooks for several devices, and the shared workspace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorbackend import ShapeError


class Recorder:
    """A layer that writes down how it was called."""

    def __init__(self, name: str, calls: list[tuple]) -> None:
        self.name = name
        self.calls = calls

    def fprop(self, *arguments: Any, **keywords: Any) -> None:
        """Note a forward call."""
        self.calls.append((self.name, *arguments, keywords))

    bprop = fprop

    def allocate(self, shared_outputs: Any = None) -> None:
        """Note an allocation."""
        self.calls.append((self.name, shared_outputs))


class Tanh:
    """A transform as layers have them: of op-trees, with a derivative by its output."""

    def __init__(self, be: Any) -> None:
        self.be = be

    def __call__(self, x: Any) -> Any:
        return self.be.tanh(x)

    def bprop(self, y: Any) -> Any:
        """The derivative where the output is y."""
        return 1 - y * y


@pytest.fixture
def calls() -> list[tuple]:
    """What recorders write to."""
    return []


@pytest.fixture
def layers(calls: list) -> list[Recorder]:
    """Three layers."""
    return [Recorder(name, calls) for name in "abc"]


def drawn(be: Any, seed: int) -> tuple[np.ndarray, Any]:
    """Random numbers, on the host and as a tensor."""
    host = np.random.default_rng(seed).standard_normal((5, 7)).astype(np.float32)
    return host, be.array(host)


def test_transforms(backend) -> None:
    (x, X), (e, E) = drawn(backend, 0), drawn(backend, 1)
    y, deltas = backend.empty((5, 7)), backend.empty((5, 7))
    assert backend.fprop_transform(None, Tanh(backend), X, y, relu=False) is None
    np.testing.assert_allclose(y.get(), np.tanh(x), rtol=1e-6)
    backend.bprop_transform(None, Tanh(backend), y, E, deltas, False)
    np.testing.assert_allclose(deltas.get(), (1 - np.tanh(x) ** 2) * e, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("beta", [0, 1, -0.5])
def test_skips(backend, beta) -> None:
    (x, X), (y, Y) = drawn(backend, 0), drawn(backend, 1)
    backend.fprop_skipnode(X, Y, beta)
    np.testing.assert_allclose(Y.get(), y * beta + x, rtol=1e-6, atol=1e-6)
    d, D = drawn(backend, 2)
    backend.bprop_skipnode(X, D, 2.0, beta)
    np.testing.assert_allclose(D.get(), d * beta + 2 * x, rtol=1e-6, atol=1e-6)


def test_skips_do_not_read_what_beta_0_forgets(backend) -> None:
    X, Y = backend.ones((2, 3)), backend.full((2, 3), np.nan)
    backend.fprop_skipnode(X, Y, 0.0)
    assert Y.tolist() == [[1.0] * 3] * 2
    Y.fill(np.nan)
    backend.bprop_skipnode(X, Y, 3.0, 0)
    assert Y.tolist() == [[3.0] * 3] * 2


def test_skips_refuse_other_shapes(backend) -> None:
    X, Y = backend.ones((2, 3)), backend.full((2, 1), 7.0)
    with pytest.raises(ShapeError, match=r"x \(2, 3\), y \(2, 1\)"):
        backend.fprop_skipnode(X, Y, 1.0)
    with pytest.raises(ShapeError, match=r"error \(2, 3\), deltas \(2, 1\)"):
        backend.bprop_skipnode(X, Y, 1.0, 1.0)
    assert Y.tolist() == [[7.0]] * 2


def test_functions_and_factors_of_another_kind_are_refused(backend) -> None:
    X, Y = backend.ones((2, 3)), backend.full((2, 3), 7.0)
    with pytest.raises(TypeError, match=r"fprop_transform: transform[\s\S]*function"):
        backend.fprop_transform(None, None, X, Y)
    with pytest.raises(TypeError, match=r"bprop_transform: transform[\s\S]*method bprop"):
        backend.bprop_transform(None, backend.tanh, X, X, Y, False)
    with pytest.raises(TypeError, match=r"compound_rnn_unroll_bprop: activation[\s\S]*method bprop"):
        backend.compound_rnn_unroll_bprop(backend.ones((2, 2)), [X], [Y], [X], 2, 1, None, backend.tanh)
    for bad in (None, "1", [1.0], np.ones(3)):
        with pytest.raises(TypeError, match="fprop_skipnode: beta"):
            backend.fprop_skipnode(X, Y, bad)
        with pytest.raises(TypeError, match="bprop_skipnode: alpha"):
            backend.bprop_skipnode(X, Y, bad, 1.0)
    assert Y.tolist() == [[7.0] * 3] * 2


def test_sums_of_branches(backend, layers, calls) -> None:
    assert backend.mergesum_layer(3) is None
    backend.fprop_mergesum(None, "x", True, layers, None, (1, 2))
    assert calls == [(n, "x", True, {"beta": b}) for n, b in (("a", 0.0), ("b", 1.0), ("c", 1.0))]
    calls.clear()
    backend.bprop_mergesum(None, 2.0, 0.5, layers, "e", None)
    assert calls == [(n, "e", {"alpha": 2.0, "beta": b}) for n, b in (("c", 0.5), ("b", 1.0), ("a", 1.0))]


def test_branches_on_one_input(backend, layers, calls) -> None:
    assert backend.mergebroadcast_layer(3) is None
    backend.fprop_mergebroadcast(None, "x", False, None, layers, None)
    assert calls == [(n, "x", False, {}) for n in "abc"]
    calls.clear()
    betas = [1.0, 1.0, 0.0]
    backend.bprop_mergebroadcast(None, layers, ["e", "f", "g"], None, None, None, 2.0, 0.25, [1.0, 3.0, 0.5], betas)
    assert betas == [1.0, 1.0, 0.25]
    wanted = [("c", "g", 1.0, 0.25), ("b", "f", 6.0, 1.0), ("a", "e", 2.0, 1.0)]
    assert calls == [(n, e, {"alpha": a, "beta": b}) for n, e, a, b in wanted]


def test_branches_need_an_entry_each(backend, layers, calls) -> None:
    betas = [1.0, 1.0]
    with pytest.raises(ShapeError, match="3 layers, 2 error_views, 3 alphas, 2 betas"):
        backend.bprop_mergebroadcast(None, layers, ["e", "f"], None, None, None, 1.0, 0.0, [1.0] * 3, betas)
    assert (calls, betas) == ([], [1.0, 1.0])


def test_a_loader_s_buffers(backend) -> None:
    hosts = [np.arange(6, dtype=t).reshape(2, 3) for t in (np.int32, np.float32)]
    devices = [None, backend.zeros((3, 2))]
    for index in (0, 1):
        backend.consume(index, hosts, devices)
        np.testing.assert_array_equal(devices[index].get(), hosts[index].T)
    assert devices[0].dtype == np.int32
    with pytest.raises(ValueError, match="buf_index[\\s\\S]*2[\\s\\S]*0 or 1"):
        backend.consume(2, hosts, devices)
    with pytest.raises(ShapeError, match=r"buffer \(3, 2\), data \(2, 2\)"):
        backend.consume(1, [None, np.ones((2, 2))], devices)
    np.testing.assert_array_equal(devices[1].get(), hosts[1].T)


def test_a_loader_s_numbers_along_one_axis(backend) -> None:
    hosts, devices = [np.arange(3, dtype=np.int32), np.arange(4.0)], [None, backend.zeros((1, 4))]
    for _ in range(2):
        for index, shape in ((0, (3, 1)), (1, (1, 4))):
            backend.consume(index, hosts, devices)
            np.testing.assert_array_equal(devices[index].get(), hosts[index].reshape(shape))
    with pytest.raises(ShapeError, match=r"buffer \(1, 4\), data \(3,\)"):
        backend.consume(1, [None, hosts[0]], devices)


def test_relu_of_arrays_and_trees(backend) -> None:
    x, X = drawn(backend, 0)
    np.testing.assert_array_equal(backend.Relu(x), np.maximum(x, 0))
    out = np.empty_like(x)
    assert backend.Relu(x, out) is out
    assert backend.evaluate(backend.Relu(X)).get().tolist() == np.maximum(x, 0).tolist()
    assert backend.Relu(X, X) is X
    np.testing.assert_array_equal(X.get(), out)


def test_one_device_has_nothing_to_distribute(backend, layers, calls) -> None:
    x, X = drawn(backend, 0)
    for parallelism in ("Data", "Model", "Disabled", "Unknown", None):
        assert backend.distribute_data(X, parallelism) is None
        assert backend.allocate_new_deltas(X, (5,), parallelism) is X
    assert backend.revert_tensor(X) is None
    assert backend.is_mkl() is False
    assert backend.convert_data(X, None) is None
    assert backend.clean_data(X, None) is None
    backend.allocate_new_outputs(layers[0], X)
    assert calls == [("a", X)]
    np.testing.assert_array_equal(X.get(), x)


# The shared workspace


@pytest.fixture
def scratch(backend) -> Any:
    """`backend` without a workspace."""
    backend.scratch_buffer_reset()
    yield backend
    backend.scratch_buffer_reset()


def test_pieces_of_the_workspace_follow_each_other(scratch) -> None:
    scratch.set_scratch_size(100, 300)
    scratch.set_scratch_size(8)
    assert scratch.scratch_size == 512
    start = scratch.scratch_buffer(100)
    assert scratch.scratch_offset == 128
    assert scratch.scratch_buffer_offset(300) == start + 128
    assert scratch.scratch_offset == 128 + 384
    scratch.scratch_buffer_init()
    assert scratch.scratch_offset == 0
    assert scratch.scratch_buffer_offset(1) == start


def test_the_workspace_has_the_size_that_was_planned(scratch) -> None:
    with pytest.raises(RuntimeError, match=r"1 bytes from 0 on[\s\S]*at most 0[\s\S]*set_scratch_size\(128\)"):
        scratch.scratch_buffer(1)
    scratch.set_scratch_size(256)
    scratch.scratch_buffer(200)
    with pytest.raises(RuntimeError, match="1 bytes from 256 on"):
        scratch.scratch_buffer_offset(1)
    scratch.set_scratch_size(1024)
    with pytest.raises(RuntimeError, match="it would move"):
        scratch.scratch_buffer_offset(1)
    scratch.scratch_buffer(1024)
    scratch.scratch_buffer_reset()
    with pytest.raises(RuntimeError, match="at most 0"):
        scratch.scratch_buffer(1)
    with pytest.raises(ValueError, match="-1"):
        scratch.set_scratch_size(-1)


@pytest.mark.parametrize("slope", [0.0, 0.25, -1.0])
def test_relu_and_its_derivative(backend: Any, slope: float) -> None:
    assert backend.relu_layer() is None and backend.batchnorm_layer((3, 4)) is None
    host = np.array([[-2.0, -0.0, 0.0, 3.0, np.inf, -np.inf, np.nan]], np.float32)
    x = backend.array(host)
    with np.errstate(invalid="ignore"):
        expected = np.maximum(host, 0) + (slope * np.minimum(host, 0) if slope else 0)
    np.testing.assert_array_equal(backend.evaluate(backend.fprop_relu(None, x, slope)).get(), expected)
    derivative = backend.evaluate(backend.bprop_relu(None, x, None, None, slope))
    assert derivative.dtype == np.float32
    np.testing.assert_array_equal(derivative.get(), (host > 0) + np.float32(slope) * (host < 0))
