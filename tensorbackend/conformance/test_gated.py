# SPDX-License-Identifier: Apache-2.0
"""LSTM and GRU: values from the equations, gradients by central differences, types, directions, lengths, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import BackendError, DTypeError, ShapeError, testing
from tensorbackend.conformance import recurrent_references as ref
from tensorbackend.conformance.references import EPSILON, TYPES, draw, wide

pytestmark = pytest.mark.rehearsed

# A backend serves all examples.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
KINDS = pytest.mark.parametrize("kind", ["lstm", "gru"])
SIZE = st.sampled_from([1, 2, 3, 5, 7, 13, 16, 17, 31, 37])


class Case:
    """A layer's sizes and flags, its numbers as `dtype` holds them, and both passes on a backend."""

    def __init__(self, kind: str, nin: int = 3, nout: int = 5, N: int = 4, steps: int = 6, used: int | None = None,
                 reverse: bool = False, lengths: list[int] | None = None, dtype: str = "float64",
                 initial: bool = True) -> None:  # fmt: skip
        self.kind, self.sizes, self.dtype = kind, (nin, nout, N, steps), dtype
        self.flags = {"num_used_steps": used, "reverse": reverse}
        self.used = steps if used is None else min(used, steps)
        self.lengths = None if lengths is None else np.array(lengths)
        gates = {"lstm": 4, "gru": 3}[kind]
        shapes = {"W_in": (gates * nout, nin), "W_recur": (gates * nout, nout), "bias": (gates * nout, 1),
                  "bias_recur": (nout, 1), "x": (nin, N * steps), "delta": (nout, N * steps), "h_init": (nout, N),
                  "c_init": (nout, N), "dc_last": (nout, N)}  # fmt: skip
        self.numbers = {name: draw(shape, dtype, seed) for seed, (name, shape) in enumerate(shapes.items())}
        for name in ("W_in", "W_recur"):
            self.numbers[name] = (self.numbers[name] / shapes[name][1] ** 0.5).astype(self.numbers[name].dtype)
        if not initial:
            self.numbers["h_init"], self.numbers["c_init"] = (np.zeros_like(self.numbers["h_init"]),) * 2
        self.initial = initial
        names = ["dx", "dW_in", "dW_recur", "dbias", "dh_init"]
        names += ["dc_init"] if kind == "lstm" else ["dbias_recur"]
        self.gradients = {name: shapes[name[1:]] for name in names}

    def expected(self, **changed: np.ndarray) -> ref.State:
        """What the equations give, with some of the numbers changed."""
        x = {name: wide(values) for name, values in (self.numbers | changed).items()}
        weights = ref.Weights(x["W_in"], x["W_recur"], x["bias"], x["bias_recur"])
        _, _, N, steps = self.sizes
        lengths = np.full(N, steps) if self.lengths is None else self.lengths
        first = ref.State(x["h_init"], x["c_init"])
        return ref.unrolled(self.kind, weights, x["x"], first, steps, self.used, self.flags["reverse"], lengths)

    def forward(self, be: Any, h: Any = None) -> dict[str, Any]:
        """Run the forward pass, into `h` if given; the tensors."""
        _, nout, N, steps = self.sizes
        t = {name: be.array(values, dtype=self.dtype) for name, values in self.numbers.items()}
        for name, rows in (("h", nout), ("c", nout), ("gates", 4 * nout)):
            t[name] = be.full((rows, N * steps), np.nan, dtype=self.dtype)
        t["h"] = t["h"] if h is None else h
        first = self.first(t)
        if self.lengths is not None:
            self.flags["lengths"] = be.array(self.lengths[None], dtype=np.int32)
        if self.kind == "lstm":
            be.compound_lstm_unroll_fprop(t["W_in"], t["W_recur"], t["bias"], t["x"], t["h"], t["c"], t["gates"], steps,
                                          **first, **self.flags)  # fmt: skip
        else:
            be.compound_gru_unroll_fprop(t["W_in"], t["W_recur"], t["bias"], t["bias_recur"], t["x"], t["h"],
                                         t["gates"], steps, **first, **self.flags)  # fmt: skip
        return t

    def first(self, t: dict[str, Any]) -> dict[str, Any]:
        """The initial state, as arguments."""
        names = ("h_init", "c_init") if self.kind == "lstm" else ("h_init",)
        return {name: t[name] for name in names if self.initial}

    def back(self, be: Any, t: dict[str, Any]) -> dict[str, np.ndarray]:
        """Run the backward pass on the forward pass's tensors; the gradients."""
        out = {name: be.full(shape, np.nan, dtype=self.dtype) for name, shape in self.gradients.items()}
        first = self.first(t)
        steps = self.sizes[-1]
        if self.kind == "lstm":
            be.compound_lstm_unroll_bprop(t["W_in"], t["W_recur"], t["x"], t["h"], t["c"], t["gates"], t["delta"],
                                          steps, **out, **first, dc_last=t["dc_last"], **self.flags)  # fmt: skip
        else:
            be.compound_gru_unroll_bprop(t["W_in"], t["W_recur"], t["x"], t["h"], t["gates"], t["delta"], steps, **out,
                                         **first, **self.flags)  # fmt: skip
        return {name: wide(x.get()) for name, x in out.items()}

    def cost(self, **changed: np.ndarray) -> float:
        """The number whose gradients the backward pass gives: h times delta, and the last c times dc_last."""
        found = self.expected(**changed)
        _, _, N, _ = self.sizes
        total = float(np.nansum(found.h * wide(self.numbers["delta"])))
        if self.kind == "lstm" and self.used:
            last = 0 if self.flags["reverse"] else self.used - 1
            total += float((found.c[:, last * N : last * N + N] * wide(self.numbers["dc_last"])).sum())
        return total


@st.composite
def cases(draw_: Callable) -> Case:
    """Any sizes and flags."""
    N, steps = draw_(SIZE), draw_(st.integers(1, 5))
    used = draw_(st.sampled_from([None, None, 0, 1, steps - 1, steps + 3]))
    lengths = draw_(st.none() | st.lists(st.integers(0, steps), min_size=N, max_size=N))
    return Case(draw_(st.sampled_from(["lstm", "gru"])), draw_(SIZE), draw_(SIZE), N, steps, used, draw_(st.booleans()),
                lengths, draw_(st.sampled_from(TYPES)), draw_(st.booleans()))  # fmt: skip


def close(actual: np.ndarray, expected: np.ndarray, dtype: str, factor: float) -> None:
    """Within some roundings of numbers as large as the largest."""
    scale = max(np.nanmax(np.abs(expected), initial=0), 1.0)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=factor * EPSILON[dtype] * scale)


@shared
@given(case=cases())
def test_values_are_those_of_the_equations(backend: Any, case: Case) -> None:
    t, expected = case.forward(backend), case.expected()
    close(wide(t["h"].get()), expected.h, case.dtype, 64)
    if case.kind == "lstm":
        close(wide(t["c"].get()), expected.c, case.dtype, 64)


@shared
@given(case=cases())
def test_gradients_are_those_of_float64(backend: Any, case: Case) -> None:
    found = case.back(backend, case.forward(backend))
    exact = Case(case.kind, *case.sizes, case.flags["num_used_steps"], case.flags["reverse"],
                 None if case.lengths is None else list(case.lengths), "float64", case.initial)  # fmt: skip
    exact.numbers = {name: wide(x) for name, x in case.numbers.items()}
    expected = exact.back(backend, exact.forward(backend))
    for name, gradient in found.items():
        close(gradient, expected[name], case.dtype, 4096)


@KINDS
@pytest.mark.parametrize("options", [
    {}, {"reverse": True}, {"lengths": [6, 0, 3, 1]}, {"lengths": [1, 5, 6, 0], "reverse": True},
    {"used": 4, "lengths": [3, 6, 4, 1]}, {"used": 1, "reverse": True}, {"nin": 1, "nout": 1, "N": 1, "steps": 3},
])  # fmt: skip
def test_gradients_by_central_differences(backend: Any, kind: str, options: dict) -> None:
    case = Case(kind, **options)
    gradients = case.back(backend, case.forward(backend))
    for seed, (name, gradient) in enumerate(gradients.items()):
        direction, step, values = draw(gradient.shape, seed=50 + seed), 1e-6, case.numbers[name[1:]]
        ends = [case.cost(**{name[1:]: values + sign * step * direction}) for sign in (1, -1)]
        if name == "dx":  # columns of steps that are not used stay as they were
            gradient = np.nan_to_num(gradient)
        difference = (ends[0] - ends[1]) / (2 * step)
        assert (gradient * direction).sum() == pytest.approx(difference, rel=1e-6, abs=1e-8), name


@KINDS
def test_a_run_goes_on_from_steps_of_its_own_buffers(backend: Any, kind: str) -> None:
    case = Case(kind)
    _, nout, N, steps = case.sizes
    whole = case.forward(backend)
    x, h, c, gates = (whole[name].get() for name in ("x", "h", "c", "gates"))
    t = dict(whole, h=backend.zeros((nout, 3 * N), "float64"), c=backend.zeros((nout, 3 * N), "float64"))
    t["gates"] = backend.zeros((4 * nout, 3 * N), "float64")
    state = {"h_init": t["h_init"], "c_init": t["c_init"]}
    for first in range(0, steps, 3):
        part = backend.array(x[:, first * N : (first + 3) * N], dtype="float64")
        if kind == "lstm":
            backend.compound_lstm_unroll_fprop(t["W_in"], t["W_recur"], t["bias"], part, t["h"], t["c"], t["gates"], 3,
                                               **state)  # fmt: skip
        else:
            backend.compound_gru_unroll_fprop(t["W_in"], t["W_recur"], t["bias"], t["bias_recur"], part, t["h"],
                                              t["gates"], 3, state["h_init"])  # fmt: skip
        columns = slice(first * N, (first + 3) * N)
        np.testing.assert_allclose(t["h"].get(), h[:, columns], rtol=1e-12)
        np.testing.assert_allclose(t["gates"].get(), gates[:, columns], rtol=1e-12)
        state = {"h_init": t["h"][:, 2 * N :], "c_init": t["c"][:, 2 * N :]}
    if kind == "lstm":
        np.testing.assert_allclose(t["c"].get(), c[:, 3 * N :], rtol=1e-12)


@KINDS
@pytest.mark.parametrize("options", [{}, {"lengths": [6, 0, 3, 1]}, {"used": 2, "reverse": True}])
def test_without_a_backward_pass_nothing_is_kept(backend: Any, kind: str, options: dict) -> None:
    case = Case(kind, **options)
    t = case.forward(backend)
    h = backend.full(t["h"].shape, np.nan, dtype="float64")
    if kind == "lstm":
        backend.compound_lstm_unroll_fprop(t["W_in"], t["W_recur"], t["bias"], t["x"], h, None, None, 6, t["h_init"],
                                           t["c_init"], **case.flags)  # fmt: skip
    else:
        backend.compound_gru_unroll_fprop(t["W_in"], t["W_recur"], t["bias"], t["bias_recur"], t["x"], h, None, 6,
                                          t["h_init"], **case.flags)  # fmt: skip
    np.testing.assert_allclose(h.get(), t["h"].get(), rtol=1e-12)


@KINDS
@pytest.mark.parametrize("dtype", TYPES)
def test_a_run_repeats_bit_for_bit(backend: Any, kind: str, dtype: str) -> None:
    case = Case(kind, 17, 33, 16, 3, dtype=dtype)
    runs = []
    for _ in range(2):
        t = case.forward(backend)
        runs.append([t["h"].get().tobytes(), *(x.tobytes() for x in case.back(backend, t).values())])
    assert runs[0] == runs[1]


@KINDS
def test_a_captured_pass_repeats_it(backend: Any, kind: str) -> None:
    case = Case(kind, dtype="float32")
    t = case.forward(backend)
    h = t["h"].get()

    def step(x: Any) -> Any:
        y = backend.empty_like(t["h"])
        if kind == "lstm":
            backend.compound_lstm_unroll_fprop(t["W_in"], t["W_recur"], t["bias"], x, y, t["c"], t["gates"], 6,
                                               t["h_init"], t["c_init"])  # fmt: skip
        else:
            backend.compound_gru_unroll_fprop(t["W_in"], t["W_recur"], t["bias"], t["bias_recur"], x, y, t["gates"], 6,
                                              t["h_init"])  # fmt: skip
        return y

    program = backend.capture(step, t["x"])
    np.testing.assert_array_equal(program(t["x"]).get(), h)
    assert (program(backend.array(-case.numbers["x"])).get() != h).any()


# Refusals


def arguments(be: Any) -> dict[str, Any]:
    """Those of a small LSTM, all right."""
    case = Case("lstm", dtype="float32")
    t = {name: be.array(case.numbers[name]) for name in ("W_in", "W_recur", "bias", "x")}
    return t | {"h": be.zeros((5, 24)), "c": be.zeros((5, 24)), "gates": be.zeros((20, 24)), "num_steps": 6}


BAD: list[tuple[dict[str, Callable], type, str]] = [
    ({"W_recur": lambda be: be.zeros((20, 4))}, ShapeError, r"shape of W_recur[\s\S]*\(20, 5\)"),
    ({"W_in": lambda be: be.zeros((20, 3), "float64")}, DTypeError, r"type of W_in[\s\S]*float64"),
    ({"bias": lambda be: be.zeros((5, 1))}, ShapeError, "shape of bias"),
    ({"x": lambda be: np.zeros((3, 24))}, TypeError, "x[\\s\\S]*ndarray"),
    ({"x": lambda be: be.zeros((3, 20))}, ShapeError, "shape of x"),
    ({"x": lambda be: be.zeros((3, 4, 6))}, ShapeError, "shape of x"),
    ({"c": lambda be: be.zeros((5, 23))}, ShapeError, "shape of c"),
    ({"c": lambda be: None}, ValueError, "c and gates[\\s\\S]*both"),
    ({"num_steps": lambda be: 5}, ShapeError, "h[\\s\\S]*5 steps"),
    ({"num_steps": lambda be: 0}, ShapeError, "num_steps[\\s\\S]*0"),
    ({"h": lambda be: 3}, ShapeError, "h[\\s\\S]*int"),
    ({"h": lambda be: be.zeros((5, 24), np.int32)}, DTypeError, "type of h"),
    ({"num_used_steps": lambda be: -1}, ValueError, "num_used_steps[\\s\\S]*-1"),
    ({"lengths": lambda be: be.zeros((1, 3), np.int32)}, ShapeError, "lengths"),
    ({"lengths": lambda be: be.zeros((1, 4))}, DTypeError, "lengths"),
    ({"h_init": lambda be: be.zeros((4, 5))}, ShapeError, "h_init"),
]


@pytest.mark.parametrize("changed, error, message", BAD, ids=lambda p: next(iter(p)) if isinstance(p, dict) else None)
def test_bad_operands_are_refused_before_anything_is_written(backend: Any, changed: dict, error: type,
                                                             message: str) -> None:  # fmt: skip
    given_ = arguments(backend)
    with pytest.raises(error, match=message):
        backend.compound_lstm_unroll_fprop(**given_ | {name: make(backend) for name, make in changed.items()})
    for name in ("h", "c", "gates"):
        assert not given_[name].get().any()


@KINDS
def test_what_is_missing_or_elsewhere_is_refused_before_anything_is_written(backend: Any, kind: str) -> None:
    other, rows = testing.make_backend("interpreter"), {"lstm": 20, "gru": 15}[kind]
    shapes = {"W_in": (rows, 3), "W_recur": (rows, 5), "x": (3, 24), "h": (5, 24), "gates": (20, 24), "h_init": (5, 4)}
    shapes |= {"c": (5, 24)} if kind == "lstm" else {"bias_recur": (5, 1)}
    made = {name: backend.zeros(shape) for name, shape in shapes.items()} | {"num_steps": 6}
    made |= {"bias": backend.ones((rows, 1)), "lengths": backend.zeros((1, 4), np.int32)}
    made |= {} if kind == "lstm" else {"bias_recur": backend.ones((5, 1))}
    back = {f"d{name}": backend.zeros(made[name].shape) for name in ("x", "W_in", "W_recur", "bias", "h_init")}
    back |= {name: made[name] for name in (*shapes, "num_steps", "lengths") if name != "bias_recur"}
    back |= {"delta": backend.ones((5, 24))}
    for direction, given_ in (("fprop", made), ("bprop", back)):
        method = getattr(backend, f"compound_{kind}_unroll_{direction}")
        written = ["h", "gates"] if direction == "fprop" else [name for name in back if name.startswith("d")][:5]
        for name in given_:
            wrong = [None] if name in ("W_in", "W_recur", "x", "delta") else []
            wrong += [] if name == "num_steps" else [other.zeros(given_[name].shape, given_[name].dtype)]
            for x in wrong:
                with pytest.raises(TypeError if x is None else BackendError, match=name if x is None else "different"):
                    method(**given_ | {name: x})
                assert not any(given_[output].get().any() for output in written)


@KINDS
def test_overlapping_gradients_are_refused(backend: Any, kind: str) -> None:
    case = Case(kind, dtype="float32")
    rows = case.numbers["W_in"].shape[0]
    given_ = {"W_in": (rows, 3), "W_recur": (rows, 5), "x": (3, 24), "h": (5, 24), "gates": (20, 24), "delta": (5, 24)}
    given_ |= {"c": (5, 24)} if kind == "lstm" else {}
    read = {name: backend.ones(shape) for name, shape in given_.items()} | {"num_steps": 6}
    both, method = backend.zeros((rows + 5, 24)), getattr(backend, f"compound_{kind}_unroll_bprop")
    for outputs in ({"dx": read["x"]}, {"dx": both[4:7], "dW_in": both[:rows, :3]}, {"dbias": read["W_in"][:, :1]}):
        with pytest.raises(ValueError, match="overlaps"):
            method(**read | outputs)
    assert all((x.get() == 1).all() for name, x in read.items() if name != "num_steps")
    assert not both.get().any()


def test_lengths_hold_the_number_of_steps(backend: Any) -> None:
    for steps in (127, 128):
        W, x, h = backend.ones((4, 1)), backend.ones((1, steps)), backend.zeros((1, steps))
        lengths = backend.array([[127]], dtype=np.int8)
        sizes = W, W, None, x, h, None, None, steps
        if steps == 127:
            backend.compound_lstm_unroll_fprop(*sizes, lengths=lengths)
            assert h.get().all()
        else:
            with pytest.raises(DTypeError, match=r"type of lengths[\s\S]*up to 128"):
                backend.compound_lstm_unroll_fprop(*sizes, lengths=lengths)


@KINDS
@pytest.mark.parametrize("nout", [1, 4, 5])
def test_lengths_may_have_any_shape(backend: Any, kind: str, nout: int) -> None:
    """A column, as an array of a list is: it was taken for lengths of rows where there are as many rows as samples."""
    case = Case(kind, nout=nout, lengths=[6, 0, 3, 1], dtype="float32")
    t = case.forward(backend)
    row, h = case.flags.pop("lengths"), t["h"].get()
    gradients, case.lengths = None, None
    for lengths in (row, backend.array([6, 0, 3, 1], dtype=np.int32), row.reshape(2, 2), row[:, ::-1].T[::-1]):
        case.flags["lengths"] = lengths
        found = case.forward(backend)
        np.testing.assert_array_equal(found["h"].get(), h)
        back = case.back(backend, found)
        gradients = gradients or back
        for name, gradient in gradients.items():
            np.testing.assert_array_equal(back[name], gradient)


@KINDS
@pytest.mark.parametrize("reverse", [False, True])
def test_lengths_beyond_the_steps_are_those_of_all_or_none(backend: Any, kind: str, reverse: bool) -> None:
    cases = [Case(kind, reverse=reverse, lengths=lengths) for lengths in ([6, 0, 3, 1], [2**31 - 1, -5, 3, 1])]
    first, second = ((t := case.forward(backend), case.back(backend, t)) for case in cases)
    np.testing.assert_array_equal(first[0]["h"].get(), second[0]["h"].get())
    for name, gradient in first[1].items():
        np.testing.assert_array_equal(gradient, second[1][name])


def test_overlapping_outputs_are_refused(backend: Any) -> None:
    given_ = arguments(backend)
    both = backend.zeros((40, 24))
    for outputs in ({"c": given_["h"]}, {"h": both[:5], "gates": both[4:24]}, {"h": both[:5], "x": both[2:5]}):
        with pytest.raises(ValueError, match="overlaps"):
            backend.compound_lstm_unroll_fprop(**given_ | outputs)
    assert not both.get().any()
