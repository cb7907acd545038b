# SPDX-License-Identifier: Apache-2.0
"""Plain recurrent layers: both passes and directions step by step in float64, accumulation, used steps, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import BackendError, DTypeError, ShapeError, testing
from tensorbackend.conformance.references import EPSILON, TYPES, draw, wide

pytestmark = pytest.mark.rehearsed

# A backend serves all examples.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
SIZE = st.sampled_from([1, 2, 3, 5, 7, 16, 17, 31])


class Tanh:
    """tanh, on op-trees and on arrays."""

    def __init__(self, be: Any) -> None:
        self.be = be

    def __call__(self, x: Any) -> Any:
        return np.tanh(x) if isinstance(x, np.ndarray) else self.be.tanh(x)

    def bprop(self, h: Any) -> Any:
        """The derivative, from the value h."""
        return 1 - h * h


class ClippedRelu:
    """min(max(x, 0), 1/2); its derivative from the output."""

    def __init__(self, be: Any) -> None:
        self.be = be

    def __call__(self, x: Any) -> Any:
        return np.clip(x, 0, 0.5) if isinstance(x, np.ndarray) else self.be.clip(x, 0, 0.5)

    def bprop(self, h: Any) -> Any:
        """The derivative, from the value h."""
        return (h > 0) * (h < 0.5)


ACTIVATIONS = {"tanh": Tanh, "clipped": ClippedRelu}


class Case:
    """A layer: W (nout, nout), bias, and buffers of steps as `dtype` holds them."""

    def __init__(self, nout: int = 5, N: int = 4, steps: int = 6, dtype: str = "float64") -> None:
        self.nout, self.N, self.steps, self.dtype = nout, N, steps, dtype
        self.W = (draw((nout, nout), dtype, 1) / nout**0.5).astype(draw((1,), dtype).dtype)
        self.bias = draw((nout, 1), dtype, 2)
        self.ff, self.delta = (draw((nout, N * steps), dtype, seed) for seed in (3, 4))
        self.first = draw((nout, N), dtype, 5)

    def at(self, buffer: Any, t: int) -> Any:
        """Step t of a buffer."""
        return buffer[:, t * self.N : (t + 1) * self.N]

    def each(self, buffer: Any) -> list:
        """All steps of a buffer."""
        return [self.at(buffer, t) for t in range(self.steps)]

    def before(self, buffer: Any, first: Any, reverse: bool) -> list:
        """For each step the one that runs before it."""
        steps = self.each(buffer)
        return [*steps[1:], first] if reverse else [first, *steps[:-1]]

    def unrolled(self, activation: Any, used: int, reverse: bool, **changed: np.ndarray) -> np.ndarray:
        """h in float64, from the definition; NaN where no step is run."""
        x = {name: wide(changed.get(name, getattr(self, name))) for name in ("W", "bias", "ff", "first")}
        h, state = np.full((self.nout, self.N * self.steps), np.nan), x["first"]
        for t in reversed(range(used)) if reverse else range(used):
            state = self.at(h, t)[:] = activation(x["W"] @ state + self.at(x["ff"], t) + x["bias"])
        return h


def close(actual: np.ndarray, expected: np.ndarray, dtype: str, factor: float = 256) -> None:
    """Within some roundings of numbers as large as the largest."""
    scale = max(np.nanmax(np.abs(expected), initial=0), 1.0)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=factor * EPSILON[dtype] * scale)


@shared
@given(nout=SIZE, N=SIZE, steps=st.integers(1, 4), dtype=st.sampled_from(TYPES), reverse=st.booleans(),
       name=st.sampled_from(sorted(ACTIVATIONS)), in_place=st.booleans(), own=st.booleans())  # fmt: skip
def test_steps_are_their_definition(backend: Any, nout: int, N: int, steps: int, dtype: str, reverse: bool, name: str,
                                    in_place: bool, own: bool) -> None:  # fmt: skip
    """With views of one buffer or tensors of their own, and the input in `h_s` itself or beside it."""
    case, activation = Case(nout, N, steps, dtype), ACTIVATIONS[name](backend)
    W, bias, first = (backend.array(x, dtype=dtype) for x in (case.W, case.bias, case.first))
    ff = backend.array(case.ff, dtype=dtype)
    buffer = ff if in_place else backend.zeros(ff.shape, dtype=dtype)
    h_s, ff_s = case.each(buffer), case.each(ff)
    if own:
        ff_s = [backend.copy(x) for x in ff_s]
        h_s = ff_s if in_place else [backend.zeros((nout, N), dtype=dtype) for _ in h_s]
    prev = [*h_s[1:], first] if reverse else [first, *h_s[:-1]]
    ff_s = h_s if in_place else ff_s
    backend.compound_rnn_unroll_fprop(W, prev, ff_s, h_s, bias, nout, steps, None, activation, reverse)
    expected = case.unrolled(activation, steps, reverse)
    close(np.concatenate([wide(x.get()) for x in h_s], 1), expected, dtype)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("N", [1, 4])
def test_gradients_by_central_differences(backend: Any, reverse: bool, N: int) -> None:
    case, activation = Case(N=N), Tanh(backend)
    h = backend.array(case.unrolled(activation, 6, reverse), dtype="float64")
    delta, of_first = backend.array(case.delta, dtype="float64"), backend.zeros((5, N), "float64")
    prev = case.before(delta, of_first, reverse)
    W = backend.array(case.W, dtype="float64")
    backend.compound_rnn_unroll_bprop(W.T, prev, case.each(delta), case.each(h), 5, 6, None, activation, not reverse)
    for name, gradient in (("ff", delta), ("first", of_first)):
        direction, values, ends = draw(gradient.shape, seed=9), getattr(case, name), []
        for sign in (1, -1):
            moved = case.unrolled(activation, 6, reverse, **{name: values + sign * 1e-6 * direction})
            ends.append((moved * case.delta).sum())
        assert (gradient.get() * direction).sum() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-7)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_way_back_in_every_type(backend: Any, dtype: str) -> None:
    case, activation = Case(17, 3, 4, dtype), ClippedRelu(backend)
    h = backend.array(np.clip(wide(case.ff), 0, 0.5), dtype=dtype)
    delta, of_first = backend.array(case.delta, dtype=dtype), backend.zeros((17, 3), dtype)
    prev = case.before(delta, of_first, False)
    W, sizes = backend.array(case.W, dtype=dtype), (17, 4, None, activation)
    backend.compound_rnn_unroll_bprop(W.T, prev, case.each(delta), case.each(h), *sizes)
    expected, error = wide(case.delta), np.zeros((17, 3))
    for t in reversed(range(4)):
        error = activation.bprop(case.at(wide(h.get()), t)) * (case.at(expected, t) + error)
        case.at(expected, t)[:] = error
        error = wide(case.W).T @ error
    close(wide(delta.get()), expected, dtype)
    close(wide(of_first.get()), error, dtype)


@pytest.mark.parametrize("used", [0, 1, 4, 9])
@pytest.mark.parametrize("reverse", [False, True])
def test_only_the_first_used_steps_are_run(backend: Any, used: int, reverse: bool) -> None:
    case, activation, count = Case(), Tanh(backend), min(used, 6)
    W, bias, ff = (backend.array(x, dtype="float64") for x in (case.W, case.bias, case.ff))
    h, first = backend.full(ff.shape, 7.0, dtype="float64"), backend.array(case.first, dtype="float64")
    prev = case.before(h, first, reverse)
    if reverse and 0 < used < 6:
        prev[used - 1] = first
    sizes = (5, 6, used, activation)
    backend.compound_rnn_unroll_fprop(W, prev, case.each(ff), case.each(h), bias, *sizes, reverse)
    shorter = Case()
    shorter.steps = max(count, 1)
    shorter.ff = case.ff[:, : shorter.steps * 4]
    expected = shorter.unrolled(activation, count, reverse)[:, : count * 4]
    np.testing.assert_allclose(h.get()[:, : count * 4], expected, rtol=1e-12)
    assert (h.get()[:, count * 4 :] == 7).all()
    delta = backend.array(case.delta, dtype="float64")
    prev = case.before(delta, backend.zeros((5, 4), "float64"), reverse)
    if reverse and 0 < used < 6:
        prev[used - 1] = backend.zeros((5, 4), "float64")
    backend.compound_rnn_unroll_bprop(W.T, prev, case.each(delta), case.each(h), *sizes, not reverse)
    np.testing.assert_array_equal(delta.get()[:, count * 4 :], case.delta[:, count * 4 :])
    assert not count or (delta.get()[:, : count * 4] != case.delta[:, : count * 4]).all()


def test_two_directions_are_one_after_the_other(backend: Any) -> None:
    case, other, activation = Case(), Case(), Tanh(backend)
    other.W, other.bias, other.first = draw((5, 5), seed=11) / 3, draw((5, 1), seed=12), draw((5, 4), seed=13)
    ff = backend.array(np.concatenate([case.ff, case.ff]), dtype="float64")
    first, last = (backend.array(x.first, dtype="float64") for x in (case, other))
    h = backend.zeros(ff.shape, "float64")
    W_f, b_f, W_b, b_b = (backend.array(x, dtype="float64") for x in (case.W, case.bias, other.W, other.bias))
    sizes = (5, 6, None, activation)
    assert backend.bibnrnn_layer(h, ff, W_f, W_b, 6, 5) is None
    backend.compound_rnn_unroll_fprop_bibnrnn(
        None, h, ff, W_f, case.before(h[:5], first, False), case.each(ff[:5]), case.each(h[:5]), b_f, W_b,
        case.before(h[5:], last, True), case.each(ff[5:]), case.each(h[5:]), b_b, *sizes)  # fmt: skip
    expected = [case.unrolled(activation, 6, False), other.unrolled(activation, 6, True)]
    np.testing.assert_allclose(h.get(), np.concatenate(expected), rtol=1e-12)

    both = backend.array(np.concatenate([case.delta, case.delta]), dtype="float64")
    alone = [backend.array(case.delta, dtype="float64") for _ in range(2)]
    ends = [backend.zeros((5, 4), "float64") for _ in range(4)]
    backend.compound_rnn_unroll_bprop_bibnrnn(
        None, both, case.each(both[:5]), case.before(both[:5], ends[0], False), case.each(both[5:]),
        case.before(both[5:], ends[1], True), W_f, W_b, case.each(h[:5]), case.each(h[5:]), *sizes, h)  # fmt: skip
    for part, (W, reverse) in enumerate([(W_f, False), (W_b, True)]):
        prev, half = case.before(alone[part], ends[2 + part], reverse), h[5 * part : 5 * part + 5]
        backend.compound_rnn_unroll_bprop(W.T, prev, case.each(alone[part]), case.each(half), *sizes, not reverse)
    np.testing.assert_array_equal(both.get(), np.concatenate([x.get() for x in alone]))
    for one, two in ((0, 2), (1, 3)):
        np.testing.assert_array_equal(ends[one].get(), ends[two].get())


# Refusals


BAD: list[tuple[dict[str, Callable], type, str]] = [
    ({"W_recur": lambda be: be.zeros((5, 4))}, ShapeError, r"shape of W_recur[\s\S]*\(5, 5\)"),
    ({"W_recur": lambda be: be.zeros((5, 5), np.int32)}, DTypeError, "type of W_recur"),
    ({"bias": lambda be: be.zeros((5, 1), "float64")}, DTypeError, "type of bias[\\s\\S]*float64"),
    ({"h_ff_s": lambda be: [be.zeros((5, 4))] * 5}, ShapeError, "h_ff_s[\\s\\S]*5 steps"),
    ({"h_ff_s": lambda be: [be.zeros((5, 4))] * 5 + [be.zeros((5, 3))]}, ShapeError, r"h_ff_s\[5\][\s\S]*\(5, 3\)"),
    ({"h_ff_s": lambda be: be.zeros((6, 5))}, TypeError, "h_ff_s[\\s\\S]*Tensor[\\s\\S]*a list"),
    ({"h_prev_s": lambda be: [np.zeros((5, 4))] * 6}, TypeError, r"h_prev_s\[0\][\s\S]*ndarray"),
    ({"h_prev_s": lambda be: [be.empty((), min_dims=0)] * 6}, ShapeError, r"shape of h_prev_s\[0\]"),
    ({"num_steps": lambda be: 0}, ShapeError, "num_steps"),
    ({"num_steps": lambda be: float("nan")}, ShapeError, "num_steps[\\s\\S]*nan"),
    ({"num_steps": lambda be: "6"}, ShapeError, "num_steps[\\s\\S]*'6'"),
    ({"num_used_steps": lambda be: -2}, ValueError, "num_used_steps[\\s\\S]*-2"),
    ({"activation": lambda be: "tanh"}, TypeError, "activation[\\s\\S]*'tanh'[\\s\\S]*function"),
    ({"num_used_steps": lambda be: 1.5}, ValueError, "num_used_steps[\\s\\S]*1.5"),
]


@pytest.mark.parametrize("changed, error, message", BAD, ids=lambda p: next(iter(p)) if isinstance(p, dict) else None)
def test_bad_operands_are_refused_before_anything_is_written(backend: Any, changed: dict, error: type,
                                                             message: str) -> None:  # fmt: skip
    steps = [backend.zeros((5, 4)) for _ in range(6)]
    arguments = {"W_recur": backend.ones((5, 5)), "h_prev_s": [backend.ones((5, 4))] * 6, "h_ff_s": steps, "h_s": steps,
                 "bias": backend.ones((5, 1)), "nout": 5, "num_steps": 6, "num_used_steps": None,
                 "activation": Tanh(backend)}  # fmt: skip
    with pytest.raises(error, match=message):
        backend.compound_rnn_unroll_fprop(**arguments | {name: make(backend) for name, make in changed.items()})
    assert not any(x.get().any() for x in steps)


@pytest.mark.parametrize(
    "changed, error, message",
    [
        ({"W_recur": lambda be: be.ones((5, 4))}, ShapeError, "shape of W_recur"),
        ({"h_s": lambda be: [be.ones((5, 4))] * 5}, ShapeError, "h_s[\\s\\S]*5 steps"),
        ({"delta_s": lambda be: [be.zeros((5, 4))] * 5 + [be.zeros((5, 3))]}, ShapeError, r"delta_s\[5\]"),
        ({"activation": lambda be: be.tanh}, TypeError, "activation[\\s\\S]*a method bprop"),
    ],
)
def test_bad_operands_of_the_way_back_are_refused_before_anything_is_written(
    backend: Any, changed: dict, error: type, message: str
) -> None:
    steps = [backend.ones((5, 4)) for _ in range(6)]
    arguments = {"W_recur": backend.ones((5, 5)), "delta_prev_s": steps, "delta_s": steps, "h_s": steps, "nout": 5,
                 "num_steps": 6, "num_used_steps": None, "activation": Tanh(backend)}  # fmt: skip
    with pytest.raises(error, match=message):
        backend.compound_rnn_unroll_bprop(**arguments | {name: make(backend) for name, make in changed.items()})
    assert all((x.get() == 1).all() for x in steps)


def test_steps_run_forward_and_back_unless_said_otherwise(backend: Any) -> None:
    W, bias, one, ones = backend.ones((1, 1)), backend.zeros((1, 1)), backend.ones((1, 1)), [backend.ones((1, 1))] * 3
    fixed = [backend.full((1, 1), n / 4) for n in range(3)]
    found: list[list[float]] = []
    for order in ({}, {"reverse": False}, {"reverse": True}):
        h, delta = ([backend.full((1, 1), n / 8) for n in range(3)] for _ in range(2))
        backend.compound_rnn_unroll_fprop(W, [one, *h[:2]], ones, h, bias, 1, 3, None, Tanh(backend), **order)
        found.append([float(x.get()[0, 0]) for x in h])
        before = [backend.zeros((1, 1)), *delta[:2]]
        backend.compound_rnn_unroll_bprop(W, before, delta, fixed, 1, 3, None, Tanh(backend), **order)
        found.append([float(x.get()[0, 0]) for x in delta])
    assert found[0] == found[2] != found[4]
    assert found[1] == found[5] != found[3]


def test_outputs_on_the_memory_of_weights_are_refused(backend: Any) -> None:
    memory, steps = backend.zeros((5, 30)), [backend.ones((5, 4)) for _ in range(6)]
    W, bias, later = memory[:, :5], memory[:, 5:6], memory[:, 6:10]
    for on in (memory[:, 1:5], memory[:, 4:8], memory[:, 5:9]):
        outputs = [later] * 5 + [on]
        with pytest.raises(ValueError, match=r"h_s\[5\][\s\S]*overlaps"):
            backend.compound_rnn_unroll_fprop(W, steps, steps, outputs, bias, 5, 6, None, Tanh(backend))
    for name in ("delta_prev_s", "delta_s"):
        given = {"delta_prev_s": [later] * 6, "delta_s": [later] * 6, name: [later] * 5 + [memory[:, 4:8]]}
        with pytest.raises(ValueError, match=name + r"\[5\][\s\S]*overlaps"):
            backend.compound_rnn_unroll_bprop(W, h_s=steps, nout=5, num_steps=6, num_used_steps=None,
                                              activation=Tanh(backend), **given)  # fmt: skip
    assert not memory.get().any()


def test_a_wrong_second_direction_stops_the_first(backend: Any) -> None:
    steps = [backend.zeros((5, 4)) for _ in range(6)]
    W, bias, bad = backend.ones((5, 5)), backend.ones((5, 1)), backend.ones((4, 4))
    prev = [backend.ones((5, 4))] * 6
    with pytest.raises(ShapeError, match="W_recur"):
        backend.compound_rnn_unroll_fprop_bibnrnn(None, None, None, W, prev, steps, steps, bias, bad, prev, steps,
                                                  steps, bias, 5, 6, None, Tanh(backend))  # fmt: skip
    with pytest.raises(ShapeError, match="W_recur_b"):
        backend.compound_rnn_unroll_bprop_bibnrnn(None, None, prev, steps, prev, steps, W, bad, prev, prev, 5, 6, None,
                                                  Tanh(backend), None)  # fmt: skip
    elsewhere = testing.make_backend("interpreter").ones((5, 5))
    with pytest.raises(BackendError, match="different backends"):
        backend.compound_rnn_unroll_fprop_bibnrnn(None, None, None, W, prev, steps, steps, bias, elsewhere, prev, steps,
                                                  steps, bias, 5, 6, None, Tanh(backend))  # fmt: skip
    assert not any(x.get().any() for x in steps)
