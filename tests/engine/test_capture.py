# SPDX-License-Identifier: Apache-2.0
"""Captured programs do what their functions do: values in bits, random draws, state, results; and refuse the rest."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import math
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import Backend, CaptureError, DTypeError, ShapeError, Tensor, testing
from tensorbackend.backends import native

EXPRESSIONS = [
    lambda be, x, y, k: x + y * k,
    lambda be, x, y, k: be.tanh(x * 0.5) - y / (k + 2),
    lambda be, x, y, k: be.where(x > y, x * 2.0, y),
    lambda be, x, y, k: x - be.mean(y, axis=1),
    lambda be, x, y, k: be.softmax(x, axis=1) + y * 0.1,
    lambda be, x, y, k: be.sum(x, axis=0) * 0.01 + y,
    lambda be, x, y, k: be.dot(be.dot(x, y.T), x) * 0.001,
    lambda be, x, y, k: x * be.dropout(0.5) + be.rand() * k,
    lambda be, x, y, k: be.take(x, [2, 0, 0], 0) + y,
    lambda be, x, y, k: be.cumsum(x, 1) * 0.1,
    lambda be, x, y, k: k,
]
# Places to read and write: arguments, tensors from outside, and what the function makes.
PLACES = [
    lambda t: t[0],
    lambda t: t[1],
    lambda t: t[2][:, :8],
    lambda t: t[2][:, 8:0:-1],
    lambda t: t[3],
    lambda t: t[4],
]
statement = st.tuples(
    st.integers(0, len(EXPRESSIONS) - 1), *(st.integers(0, len(PLACES) - 1) for _ in range(3)), st.booleans()
)


def assert_same(x: Any, y: Any) -> None:
    """Equal in bits, results of any form."""
    if isinstance(x, Tensor):
        np.testing.assert_array_equal(x.get(), y, strict=True)
    elif isinstance(x, (tuple, list)):
        assert len(x) == len(y)
        for a, b in zip(x, y):
            assert_same(a, b)
    else:
        assert x == y
        assert type(x) is type(y)


def values(x: Any) -> Any:
    """A result with its tensors read."""
    if isinstance(x, Tensor):
        return x.get()
    return [values(part) for part in x] if isinstance(x, (tuple, list)) else x


def both_ways(be: Backend, function: Callable, calls: list[tuple], state: list[Tensor]) -> None:
    """Check that a program gives what its function gives in a row of calls, and leaves the same state and draws."""
    before, random = [t.get() for t in state], be.rng_get_state()
    wanted = [values(function(*arguments)) for arguments in calls]
    after, draws = [t.get() for t in state], be._draws
    for t, value in zip(state, before):
        t.set(value)
    program = be.capture(function, *calls[0])
    for t, value in zip(state, before):
        t.set(value)
    be.rng_set_state(random)
    for arguments, expected in zip(calls, wanted):
        assert_same(program(*arguments), expected)
    assert [t.get().tobytes() for t in state] == [x.tobytes() for x in after]
    assert be._draws == draws


def numbers(be: Backend, shape: tuple[int, ...], seed: int, dtype: str = "float32") -> Tensor:
    return be.array(np.random.RandomState(seed).randn(*shape), dtype=dtype)


@pytest.mark.slow
def test_programs_have_the_bits_of_their_functions(backend: Backend) -> None:
    @settings(max_examples=max(settings.default.max_examples // 3, 5))
    @given(program=st.lists(statement, min_size=1, max_size=6), inside=st.booleans())
    def check(program: list, inside: bool) -> None:
        outside = [numbers(backend, (3, 16), 1), numbers(backend, (3, 8), 2)]

        def function(x: Tensor, y: Tensor, k: float) -> tuple:
            made = backend.zeros((3, 8))
            tensors = [x, y, *outside, made]
            kept = []
            for expression, a, b, out, fresh in program:
                value = EXPRESSIONS[expression](backend, PLACES[a](tensors), PLACES[b](tensors), k)
                if fresh and not isinstance(value, (int, float)) and expression != len(EXPRESSIONS) - 1:
                    kept.append(backend.evaluate(value))
                else:
                    PLACES[out](tensors)[:] = value
            return kept[-1:], backend.copy(made), k * 2

        def fused(x: Tensor, y: Tensor, k: float) -> tuple:
            with backend.fuse():
                return function(x, y, k)

        calls = [(numbers(backend, (3, 8), 3 + n), numbers(backend, (3, 8), 9 + n), 0.5 + n) for n in range(3)]
        arguments = [t for call in calls for t in call[:2]]
        both_ways(backend, fused if inside else function, calls, [*outside, *arguments])

    check()


def test_random_numbers_go_on_as_if_the_function_was_called(backend: Backend) -> None:
    x, y = backend.zeros((4, 5)), backend.zeros((4, 5))

    def draw() -> Tensor:
        x[:] = backend.rand()
        y[:] = backend.randn() * x
        return backend.evaluate(x + backend.rand(shape=(4, 5)))

    both_ways(backend, draw, [()] * 4, [x, y])
    program = backend.capture(draw)
    assert not np.array_equal(program().get(), program().get())
    backend.rng_reset()
    first = program().get()
    backend.rng_reset()
    np.testing.assert_array_equal(program().get(), first)


def test_a_pinned_draw_stays_and_one_pinned_inside_goes_on(backend: Backend) -> None:
    x, w = numbers(backend, (4, 5), 1), numbers(backend, (4, 5), 2)

    def step(x: Tensor) -> tuple:
        cost = backend.sum(backend.square(w * x * backend.dropout(0.5)))
        (gradient,) = tb.Autodiff(cost, backend).get_grad_tensor([w])
        w[:] = w - 0.1 * gradient
        return (backend.evaluate(cost),)

    both_ways(backend, step, [(x,)] * 3, [w])


def test_a_pinned_draw_follows_the_key_of_each_call(backend: Backend) -> None:
    x, y, state = backend.ones((4, 5)), backend.zeros((4, 5)), backend.rng_get_state()
    cost = backend.sum(x * backend.dropout(0.5))
    (mask,) = tb.Autodiff(cost, backend).get_grad_op_tree([x])

    def step() -> None:
        y[:] = x * mask

    program = backend.capture(step)
    for key in (1, 2):
        backend.rng_set_state((state[0], key, state[2]))
        step()
        expected = y.get()
        program()
        np.testing.assert_array_equal(y.get(), expected)
    backend.rng_set_state(state)


def test_stochastic_rounding_goes_on(backend: Backend) -> None:
    y = backend.zeros((8, 8))
    y.rounding = 5

    def step(x: Tensor) -> None:
        y[:] = y + x

    both_ways(backend, step, [(numbers(backend, (8, 8), n),) for n in range(3)], [y])


def test_what_is_written_must_be_writable_in_each_call(backend: Backend) -> None:
    x, y, other = numbers(backend, (2, 3), 1), backend.zeros((2, 3)), backend.zeros((2, 3))
    program = backend.capture(lambda x, y: y._assign(y + x), x, y)
    for out in (y, y, other, other):
        program(x, out)
        for change in ("read-only", "rounded"):
            out.storage.writable, out.rounding = change != "read-only", 5 * (change == "rounded")
            before = out.get()
            with pytest.raises(ValueError, match="argument 1 is written[\\s\\S]*read-only, or rounded otherwise"):
                program(x, out)
            np.testing.assert_array_equal(out.get(), before)
            out.storage.writable, out.rounding = True, 0
        program(x, out)
    np.testing.assert_array_equal(y.get(), 5 * x.get())
    np.testing.assert_array_equal(other.get(), 4 * x.get())


def test_numbers_of_all_kinds_take_effect(backend: Backend) -> None:
    x, n = numbers(backend, (2, 3), 1), backend.array([[1, 2, 3]], dtype=np.int32)
    y, m = backend.zeros((2, 3)), backend.zeros((1, 3), dtype=np.int32)

    def step(rate: float, count: int, scale: Any) -> list:
        y[:] = x * (1 - 0.9**count) / rate + scale
        m[:] = n * count - abs(-count) // 2
        return [rate + count, -rate, 7]

    calls = [(0.5, 3, np.float32(2)), (0.25, 40, np.float32(1e-3)), (-3.0, 1, np.float32(np.inf))]
    both_ways(backend, step, calls, [y, m])


def test_powers_by_numbers_that_change_are_of_each_call(backend: Backend) -> None:
    x, y = numbers(backend, (2, 3), 1), backend.zeros((2, 3))

    def step(by: float) -> None:
        y[:] = abs(x) ** by

    program = backend.capture(step, 2.0)
    for by in (2.0, 0.5, 1.7, 3.0):
        program(by)
        error = 4 * 2.0**-23  # as good as NumPy's, and pow's own is better
        np.testing.assert_allclose(y.get(), abs(x.get().astype(np.float64)) ** by, rtol=error)


def test_the_result_of_the_capture_has_numbers(backend: Backend) -> None:
    program = backend.capture(lambda x, k: (x, [2 * k + 1, k, 7]), backend.ones((2, 2)), 3)
    assert [type(n) for n in program.result[1]] == [int] * 3
    assert program.result[1] == [7, 3, 7]


@pytest.mark.parametrize("use", [
    lambda x, n: n.item() * x, lambda x, n: x.backend.xp.sqrt(x) * n, lambda x, n: n - x.backend.xp.exp(x),
    lambda x, n: x.backend.xp.maximum(n, x), lambda x, n: x.backend.xp.sum(x, initial=n),
    lambda x, n: np.sqrt(n) * x, lambda x, n: x - np.maximum(np.float32(2) * n, 3), lambda x, n: np.log1p(n / 10) * x,
])  # fmt: skip
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32])
def test_numpys_numbers_and_functions_of_numbers_take_effect(backend: Backend, use: Callable, kind: type) -> None:
    x = numbers(backend, (2, 3), 1)
    y = backend.zeros((2, 3))

    def step(n: Any) -> None:
        y[:] = use(x, n)

    both_ways(backend, step, [(kind(2),), (kind(5),)], [y])


@pytest.mark.parametrize("calls", [
    [(0.75,), (1.5,), (-2.25,)], [(2,), (5,)], [(np.float32(1.5),), (np.float32(0.5),)], [(np.int8(3),), (np.int8(4),)],
])  # fmt: skip
def test_numbers_have_their_own_type_where_no_tensor_says_one(backend: Backend, calls: list[tuple]) -> None:
    """Letters of user kernels that only a number binds, numbers alone as tensors, and beside integers of `F`."""
    x = backend.array([[0, 1, 2]], dtype="int32")
    both = backend.elementwise("T x, U k", "U y, T z", "y = x + k; z = k * 4", "both")
    most = backend.reduction("T x, U k", "U y", "x * k", "max(a, b)", "y = a", "-100", "most")

    def step(k: Any) -> list:
        kernels = [*both(x, k), most(x, k)] if testing.compiles(backend) else []
        return [*kernels, backend.evaluate(k), F.broadcast(x, k)[1].array, F.broadcast(x > 0, k)[1].array]

    both_ways(backend, step, calls, [])


def test_bits_of_numbers_take_effect(backend: Backend) -> None:
    x, y = numbers(backend, (2, 3), 1), backend.zeros((2, 3))

    def step(n: int) -> None:
        y[:] = x * (n << 1 | n & 1) + (~n ^ 3) - (64 >> n)

    both_ways(backend, step, [(2,), (5,)], [y])


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("compare", [
    lambda x, k: x < k, lambda x, k: k < x, lambda x, k: k == x, lambda x, k: k != x * 1, lambda x, k: x >= k,
])  # fmt: skip
def test_numbers_are_compared_with_tensors_anew(backend: Backend, dtype: str, compare: Callable) -> None:
    x, y = backend.array([[1, 2, 3]], dtype=dtype), backend.zeros((1, 3))

    def step(x: Tensor, k: int) -> None:
        y[:] = compare(x, k)

    both_ways(backend, step, [(x, 2), (x, 3), (x, 0), (x, 256), (x, -1)], [y])
    both_ways(backend, step, [(x, -1), (x, 2)], [y])


@pytest.mark.parametrize("compare", [lambda x, k: x < k, lambda x, k: k == x, lambda x, k: x != k])
def test_an_answer_that_a_number_of_another_range_fixes_is_refused(backend: Backend, compare: Callable) -> None:
    """A comparison with a number beyond 64 bits has one answer for all elements, whatever comes later."""
    with pytest.raises(CaptureError, match=r"test_capture\.py:\d+"):
        backend.capture(lambda k: backend.evaluate(compare(backend.ones((2, 2), dtype="int64"), k)), 2**63)


def test_arguments_may_be_nested_and_other_things_stay_as_they_are(backend: Backend) -> None:
    y = backend.zeros((2, 2))

    def step(pair: tuple, named: dict, how: str, on: bool) -> dict:
        y[:] = pair[0] * named["rate"] + (pair[1][0] if on else 0)
        return {"how": how, "y": (y, named["x"]), "first": pair[0]}

    def given(n: int) -> tuple:
        x, z = numbers(backend, (2, 2), n), numbers(backend, (2, 2), n + 9)
        return (x, [z]), {"rate": 0.1 * n, "x": z}, "sum", True

    program = backend.capture(step, *given(1))
    arguments = given(2)
    found = program(*arguments)
    assert found["how"] == "sum"
    assert found["first"] is arguments[0][0]
    assert found["y"][0] is y
    assert found["y"][1] is arguments[1]["x"]
    wanted = arguments[0][0].get() * np.float32(0.1 * 2) + arguments[0][1][0].get()
    np.testing.assert_allclose(y.get(), wanted, rtol=1e-6)
    for changed in [(*arguments[:2], "other", True), (*arguments[:3], False), arguments[:3], (*arguments[:3], 1)]:
        with pytest.raises(TypeError, match="program: arguments of another form"):
            program(*changed)


def test_another_object_is_told_from_that_of_the_capture(backend: Backend) -> None:
    """However alike they look: a variable among the arguments belongs to the program."""
    v = tb.Variable(backend.ones((2, 3)))
    program = backend.capture(lambda parts: F.relu(parts[0]).array, [v])
    assert_same(program([v]), np.ones((2, 3), np.float32))
    with pytest.raises(TypeError, match="another form") as refusal:
        program([tb.Variable(backend.ones((2, 3)))])
    rows = str(refusal.value).splitlines()[1:]
    assert rows[0].split(maxsplit=1)[1] != rows[1].split(maxsplit=1)[1]
    assert "Variable at" in rows[1]
    assert "a variable's array" in rows[2]
    with pytest.raises(TypeError, match="another form") as refusal:
        backend.capture(lambda how: how, "sum")("mean")
    assert str(refusal.value).splitlines()[1:] == ["  given     ('mean',)", "  expected  ('sum',)"]


def test_results_are_the_programs_own_and_views_of_arguments_are_theirs(backend: Backend) -> None:
    def step(x: Tensor) -> tuple:
        made = backend.evaluate(x * 2)
        return made, made[1:], x[:, 1:].T

    program = backend.capture(step, numbers(backend, (3, 4), 1))
    x = numbers(backend, (3, 4), 2)
    made, part, view = program(x)
    np.testing.assert_array_equal(made.get(), x.get() * 2)
    np.testing.assert_array_equal(part.get(), x.get()[1:] * 2)
    np.testing.assert_array_equal(view.get(), x.get()[:, 1:].T)
    view[:] = 0
    assert not x.get()[:, 1:].any()
    assert program(numbers(backend, (3, 4), 3))[0] is made
    np.testing.assert_array_equal(made.get(), numbers(backend, (3, 4), 3).get() * 2)


@pytest.mark.parametrize("form", [lambda y: [y], lambda y: {"y": y}, lambda y: (1, [y]), lambda y: (({"y": y},),)])
def test_lists_and_dictionaries_of_results_are_the_callers(backend: Backend, form: Callable) -> None:
    def innermost(found: Any) -> Any:
        while isinstance(found, tuple):
            found = found[-1]
        return found

    def step(x: Tensor) -> Any:
        return form(backend.evaluate(x * 2))

    x = numbers(backend, (3, 4), 1)
    program = backend.capture(step, x)
    for _ in range(3):
        found = innermost(program(x))
        assert len(found) == 1
        found.clear()


def test_results_that_are_always_the_same_are_not_made_again(backend: Backend) -> None:
    def step(x: Tensor) -> tuple:
        return backend.evaluate(x * 2), (backend.evaluate(x + 1),)

    program = backend.capture(step, numbers(backend, (3, 4), 1))
    assert program(numbers(backend, (3, 4), 2)) is program(numbers(backend, (3, 4), 3))


def test_views_of_arguments_and_other_memory_than_the_captured_ones(backend: Backend) -> None:
    big = numbers(backend, (6, 20), 4)
    y = backend.zeros((4, 4))

    def step(x: Tensor) -> None:
        y[:, :3] = x.T + x[:, :1].T
        y[1:] = backend.dot(x.T[1:], x) * 0.1

    def part(n: int) -> Tensor:
        return big[n : n + 3, 2 * n : 2 * n + 4]

    both_ways(backend, step, [(part(0),), (part(1),), (part(3),)], [y])


class Tripled(tb.FunctionNode):
    """A function of arrays as users see them."""

    def forward(self, inputs: tuple) -> tuple:
        return (inputs[0] * 3,)


@pytest.mark.parametrize("min_dims", [0, 2])
@pytest.mark.parametrize(
    "read",
    [
        lambda be, x: F.tanh(tb.Variable(x)).array,
        lambda be, x: Tripled().apply((x,))[0].array,
        lambda be, x: be.evaluate(tb.Variable(x).array * 2),
        lambda be, x: be.evaluate(be.xp.asarray(x) * 2),
        lambda be, x: be.xp.pad(be.xp.asarray(x), 1, "wrap"),
        lambda be, x: be.evaluate((x if x.base is None else x.base) * 2),
    ],
)
def test_an_argument_seen_as_another_object_is_still_the_argument(
    backend: Backend, read: Callable, min_dims: int
) -> None:
    x, y, z = (backend.array(numbers(backend, (3, 4), n), min_dims=min_dims) for n in range(3))
    seen = tb.Variable(x).array, backend.xp.asarray(x)  # which the tensor knows, and gives again
    both_ways(backend, lambda t: read(backend, t), [(x,), (y,), (z,)], [])
    both_ways(backend, lambda t: read(backend, t), [(backend.xp.array(t),) for t in (x, y, z)], [])
    assert all(t.get().tobytes() == x.get().tobytes() for t in seen)


def test_views_of_arguments_are_arrays_where_the_functions_are(backend: Backend) -> None:
    x, y = numbers(backend, (3, 4), 0), numbers(backend, (3, 4), 1)
    for seen in (lambda t: F.reshape(t, (4, 3)).array, lambda t: backend.xp.asarray(t)[1:], lambda t: t[1:]):
        program = backend.capture(seen, x)
        for arguments in ((x, y), (backend.array(x, min_dims=2), y)):
            for t in arguments:
                found, wanted = program(t), seen(t)
                assert (type(found), found.structure, found.address) == (type(wanted), wanted.structure, wanted.address)
                assert_same(found, wanted.get())


def test_what_an_argument_is_a_view_of_is_no_argument(backend: Backend) -> None:
    big = numbers(backend, (6, 4), 4)
    both_ways(backend, lambda x: backend.evaluate(x.base[:2] + x), [(big[n : n + 2],) for n in range(3)], [])


def test_host_numbers_inside_are_as_they_were(backend: Backend) -> None:
    table = np.arange(6.0).reshape(2, 3)
    y = backend.zeros((2, 3))

    def step(x: Tensor) -> Tensor:
        t = backend.array(table)
        t[:] = t + x
        y.set(table)
        y[:, :2] = y[:, :2] * t[:, 1:]
        return t

    both_ways(backend, step, [(numbers(backend, (2, 3), n),) for n in range(3)], [y])


def test_host_numbers_that_are_returned_are_written_anew(backend: Backend) -> None:
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        table = backend.array(np.arange(6.0).reshape(2, 3))
        return table[1:], backend.evaluate(x + table)

    program = backend.capture(step, backend.zeros((2, 3)))
    for _ in range(2):
        row, total = program(backend.ones((2, 3)))
        assert row.tolist() == [[3, 4, 5]]
        assert total.tolist() == [[1, 2, 3], [4, 5, 6]]
        row[:] = 0  # the caller's, until the next call


def test_assigning_to_picked_entries(backend: Backend) -> None:
    y = backend.zeros((5, 2))

    def step(x: Tensor, where: Tensor, k: float) -> None:
        y[[0, 3]] = x
        backend.take(y, where, 0)[:] = x * k
        y[y > 100.0] = 1.0
        y[[4]] = k

    backend.capture(lambda x: y.__setitem__([0, 3], x), numbers(backend, (2, 2), 1))(numbers(backend, (2, 2), 2))
    np.testing.assert_array_equal(y.get()[[0, 3]], numbers(backend, (2, 2), 2).get())
    places = [backend.array(w, dtype=np.int64, min_dims=0) for w in ([1, 2], [3, 1], [0, 4])]
    calls = [(numbers(backend, (2, 2), n), w, 0.5 * n) for n, w in enumerate(places)]
    both_ways(backend, step, calls, [y])


def test_places_may_be_a_tree(backend: Backend) -> None:
    def largest(x: Tensor) -> Tensor:
        return backend.evaluate(backend.take(x, backend.argmax(x, axis=0), 1))

    host = np.array([[1, 5, 3], [4, 2, 6], [0, 9, 9]], np.float32)
    program = backend.capture(largest, backend.array(host))
    for values in (host, host[::-1]):
        np.testing.assert_array_equal(program(backend.array(values)).get(), values[:, values.argmax(0)])


def test_assigning_to_picked_entries_in_a_block(backend: Backend, caplog: Any) -> None:
    y, z = backend.ones((4,)), backend.zeros((3, 1))
    rows, places = np.array([[1.0], [2.0]]), [0, 2]

    def step(x: Tensor) -> None:
        with backend.fuse():
            y[:] = y * 2
            z[places] = rows
            z[[1]] = x * 3

    with caplog.at_level(logging.WARNING, "tensorbackend"):
        program = backend.capture(step, backend.ones((1, 1)))
    assert "outlive" not in caplog.text
    rows[:], places[1] = 7.0, 1
    program(backend.array([[2.0]]))
    assert y.tolist() == [[4.0]] * 4
    assert z.tolist() == [[1.0], [6.0], [2.0]]


def test_an_error_of_a_primitive_comes_through(backend: Backend) -> None:
    x, y = numbers(backend, (5, 2), 1), backend.zeros((2, 2))

    def step(where: Tensor) -> None:
        y[:] = backend.take(x, where, 0)

    program = backend.capture(step, backend.array([0, 1], dtype=np.int64, min_dims=0))
    with pytest.raises(IndexError):
        program(backend.array([0, 5], dtype=np.int64, min_dims=0))
    program(backend.array([4, 0], dtype=np.int64, min_dims=0))
    np.testing.assert_array_equal(y.get(), x.get()[[4, 0]])


def test_independent_work_side_by_side_has_the_same_bits(backend: Backend) -> None:
    weights = [numbers(backend, (96, 96), n) for n in range(4)]
    state = [numbers(backend, (96, 200), 10 + n) for n in range(4)]

    def step(x: Tensor, k: float) -> tuple:
        parts = [backend.evaluate(backend.dot(w, x) * k) for w in weights]
        for s, y in zip(state, parts):
            s[:] = s * 0.9 + backend.tanh(y) * backend.dropout(0.5)
        for s, w in zip(state, weights):
            w[:] = w - backend.dot(s, parts[0].T) * 1e-3
        state[0][:] = sum(state[1:], state[0])
        return backend.evaluate(backend.sum(state[0], axis=1)), backend.evaluate(backend.max(parts[1]))

    calls = [(numbers(backend, (96, 200), 30 + n), 0.1 * n) for n in range(3)]
    both_ways(backend, step, calls, [*weights, *state])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_launches_runs_side_by_side(backend: Backend, count: int) -> None:
    state = [numbers(backend, (100, 400), n) for n in range(count)]

    def step(k: float) -> None:
        for x in state:
            x[:] = backend.tanh(x) * k

    both_ways(backend, step, [(0.5,), (0.25,)], state)


# Memory


def test_temporaries_share_an_arena(backend: Backend) -> None:
    weights = [numbers(backend, (64, 64), n) for n in range(20)]

    def chain(x: Tensor) -> Tensor:
        for w in weights:
            x = backend.evaluate(backend.tanh(backend.dot(w, x) * 0.1))
        return x

    x = numbers(backend, (64, 32), 50)
    program = backend.capture(chain, x)
    assert program.least_bytes >= 2 * x.nbytes
    assert program.peak_bytes <= 1.1 * program.least_bytes
    assert program.kept_bytes == x.nbytes
    expected = chain(x).get()
    np.testing.assert_array_equal(program(x).get(), expected)
    assert f"arena of {program.peak_bytes} bytes" in repr(program)


def test_a_capture_lets_go_of_what_the_function_does() -> None:
    backend = Backend.allocate_backend("cpu", rng_seed=0)
    if not testing.compiles(backend):
        pytest.skip("memory of the compiled engine")
    x = backend.zeros((1 << 20, 2))

    def chain(x: Tensor) -> Tensor:
        for n in range(20):
            step = backend.array(np.full((1, 2), n))  # numbers of the host are kept
            x = backend.evaluate(x + step)
        return x

    runtime = native.runtime()
    chain(x)
    gc.collect()  # what other tests left in cycles would be counted as kept once it is freed
    runtime.trim()
    runtime.reset_peak()
    before = runtime.stats().in_use
    program = backend.capture(chain, x)
    assert runtime.stats().peak - before < 4 * x.nbytes
    assert runtime.stats().cached < 2 * x.nbytes
    np.testing.assert_array_equal(program(x).get(), np.full((1 << 20, 2), 190))


def test_long_reductions_have_scratch_in_the_arena(backend: Backend) -> None:
    x = numbers(backend, (2, 200_000), 1)

    def step(x: Tensor) -> Tensor:
        return backend.evaluate(backend.sum(x, axis=1) * backend.sum(backend.square(x)))

    both_ways(backend, step, [(x,), (numbers(backend, (2, 200_000), 2),)], [])


def test_what_outlives_the_function_stays_in_place_and_is_told(backend: Backend, caplog: Any) -> None:
    class Layer:
        y: Tensor
        mask: Tensor

    layer, x = Layer(), numbers(backend, (3, 3), 1)

    def step(x: Tensor) -> None:
        layer.y = backend.evaluate(x * 2)

    with caplog.at_level(logging.WARNING, "tensorbackend"):
        program = backend.capture(step, x)
    assert "outlive the function" in caplog.text
    assert "test_capture.py" in caplog.text
    caplog.clear()
    backend.capture(lambda: setattr(layer, "mask", backend.array([1.0, 2.0])))  # made once: nothing to tell
    assert not caplog.text
    other = numbers(backend, (3, 3), 2)
    program(other)
    np.testing.assert_array_equal(layer.y.get(), other.get() * 2)


def test_memory_is_given_back_with_the_program(backend: Backend) -> None:
    import gc
    import weakref

    def step(x: Tensor) -> Tensor:
        return backend.evaluate(backend.evaluate(x + 1) * 2)

    program = backend.capture(step, numbers(backend, (3, 3), 1))
    program(numbers(backend, (3, 3), 2))
    seen = weakref.ref(program)
    del program
    gc.collect()
    assert seen() is None


# Refusals


def test_a_program_is_not_copied_with_what_holds_it(backend: Backend) -> None:
    program = backend.capture(lambda t: backend.evaluate(t * 2), backend.ones((2, 2)))
    with pytest.raises(TypeError, match="capture the copy's function"):
        copy.deepcopy({"step": program})


@pytest.fixture
def x(backend: Backend) -> Tensor:
    return numbers(backend, (3, 4), 1)


READS: dict[str, Callable[[Backend, Tensor], Any]] = {
    "get": lambda be, x: x.get(),
    "item": lambda be, x: x[0, 0].item(),
    "float": lambda be, x: float(x[0, 0]),
    "asarray": lambda be, x: np.asarray(x),
    "asnumpyarray": lambda be, x: x.asnumpyarray(),
    "tolist": lambda be, x: x.tolist(),
    "branch": lambda be, x: be.any(x > 0).get(),
    "mask": lambda be, x: x[x > 0],
    "tree": lambda be, x: (x + 1).get(),
    "print": lambda be, x: repr(x),
    "seed": lambda be, x: be.rng_reset(),
    "histogram": lambda be, x: x.hist("x"),
    "close": lambda be, x: be.cleanup_backend(),
    "allocator": lambda be, x: be.empty((3, 4), allocator=bytearray),
    "time": lambda be, x: be.compound_dot(x, x.T, be.empty((3, 3)), repeat=2),
}


@pytest.mark.parametrize("read", READS)
def test_what_cannot_be_repeated_is_refused_by_line(backend: Backend, x: Tensor, read: str) -> None:
    with pytest.raises(CaptureError, match=r"test_capture\.py:\d+"):
        backend.capture(lambda x: READS[read](backend, x), x)
    x[:] = x + 1
    assert x.get().shape == (3, 4)
    assert not backend.closed


@pytest.mark.parametrize(
    "use",
    [lambda k: 1 if k > 0 else 2, lambda k: math.sqrt(k), lambda k: [5, 6][k], bool, float, int, round, hash,
     lambda k: k == 2, lambda k: range(k), lambda k: max(k, 3), lambda k: divmod(7, k), lambda k: np.divmod(k, 2),
     lambda k: np.ones(2) * k, lambda k: np.add(k, 1, dtype=float), lambda k: [[k, 1.0]], lambda k: [[k], [k + 1]]],
)  # fmt: skip
def test_a_number_that_would_be_fixed_is_refused_by_line(backend: Backend, use: Callable) -> None:
    y = backend.zeros((2, 2))

    def step(k: int) -> None:
        y[:] = use(k)

    with pytest.raises(CaptureError, match=r"test_capture\.py:\d+"):
        backend.capture(step, 1)


@pytest.mark.parametrize("use", [
    lambda be, k: be.array(k), lambda be, k: be.array([k, 1]), lambda be, k: be.xp.asarray([[k]]),
])  # fmt: skip
def test_a_number_in_a_host_array_is_refused_by_line(backend: Backend, use: Callable) -> None:
    with pytest.raises(CaptureError, match=r"a host array of a number .*test_capture\.py:\d+"):
        backend.capture(lambda k: use(backend, k), 0.5)


def test_layouts_types_and_numbers_that_changed(backend: Backend, x: Tensor) -> None:
    def step(x: Tensor, k: float) -> Tensor:
        return backend.evaluate(x + k)

    program = backend.capture(step, x, 1.0)
    with pytest.raises(ShapeError, match=r"layout of argument 0(.|\n)*\(4, 3\)(.|\n)*\(3, 4\)"):
        program(numbers(backend, (4, 3), 1), 1.0)
    with pytest.raises(ShapeError, match="layout of argument 0"):
        program(numbers(backend, (4, 3), 1).T, 1.0)
    with pytest.raises(ShapeError, match=r"layout of argument 0(.|\n)*of min_dims 0(.|\n)*of min_dims 2"):
        program(backend.array(x, min_dims=0), 1.0)
    with pytest.raises(DTypeError, match=r"type of argument 0(.|\n)*float64(.|\n)*float32"):
        program(numbers(backend, (3, 4), 1, "float64"), 1.0)
    with pytest.raises(ShapeError, match="layout of argument 1"):
        backend.capture(lambda k, x: backend.evaluate(x + k), 1.0, x)(1.0, x.T)
    with pytest.raises(TypeError, match="another form"):
        program(x, 1)
    with pytest.raises(TypeError, match="another form"):  # the same types, but side by side
        backend.capture(lambda pair: backend.evaluate(pair[0] + pair[1]), (x, x))(x, x)
    with pytest.raises(TypeError, match="host|tensors and numbers"):
        program(x.get(), 1.0)
    np.testing.assert_array_equal(program(x, 2.0).get(), x.get() + 2)


def test_tensors_of_other_and_of_closed_backends(backend: Backend, x: Tensor) -> None:
    other = testing.make_backend("interpreter")
    foreign = other.zeros((3, 4))
    program = backend.capture(lambda x: backend.evaluate(x + 1), x)
    with pytest.raises(tb.BackendError, match="another backend"):
        program(foreign)
    with pytest.raises(tb.BackendError, match="another backend"):
        backend.capture(lambda x: None, foreign)
    mine = other.capture(lambda x: other.evaluate(x + 1), foreign)
    other.cleanup_backend()
    with pytest.raises(tb.BackendError, match="closed"):
        mine(foreign)


def test_shared_memory_must_be_shared_alike(backend: Backend) -> None:
    def step(x: Tensor, y: Tensor) -> None:
        y[:] = x.T + 1

    x, y = numbers(backend, (4, 4), 1), backend.zeros((4, 4))
    program = backend.capture(step, x, y)
    with pytest.raises(ValueError, match="memory is shared otherwise"):
        program(x, x)
    for _ in range(2):  # an answer that is remembered is the same
        program(x, y)
        np.testing.assert_array_equal(y.get(), x.get().T + 1)
        with pytest.raises(ValueError, match="memory is shared otherwise"):
            program(x, x)
    other_way = backend.capture(lambda y, x: step(x, y), y, x)
    with pytest.raises(ValueError, match="memory is shared otherwise"):
        other_way(x, x)
    in_place = backend.capture(step, x, x)
    with pytest.raises(ValueError, match="memory is shared otherwise"):
        in_place(x, y)
    before = y.get()
    in_place(y, y)
    np.testing.assert_array_equal(y.get(), before.T + 1)
    result = backend.capture(lambda x: backend.evaluate(x.T * 2), x)
    with pytest.raises(ValueError, match="memory is shared otherwise"):
        result(result(x))


def test_shared_memory_must_lie_alike(backend: Backend) -> None:
    whole = numbers(backend, (6, 4), 1)
    low = whole[:4]

    def step(x: Tensor, y: Tensor) -> None:
        y[:] = x + 1

    arguments = backend.capture(step, low, whole[1:5])
    elsewhere = backend.capture(lambda y: step(low, y), whole[1:5])
    apart = backend.capture(lambda y: step(low, y), backend.zeros((4, 4)))
    written = backend.capture(lambda x: step(low + x, low), backend.zeros((4, 4)))
    cases = (arguments, (low, whole[2:])), (elsewhere, (whole[2:],)), (apart, (low,)), (written, (whole[1:5],))
    for program, wrong in cases:
        before = whole.get()
        with pytest.raises(ValueError, match="memory is shared otherwise"):
            program(*wrong)
        np.testing.assert_array_equal(whole.get(), before)


def test_memory_side_by_side_is_not_shared(backend: Backend) -> None:
    """Neither of arguments with each other, nor of one with what the function finds elsewhere and writes."""
    whole = numbers(backend, (6, 4), 1)
    low, middle, high = whole[:2], whole[2:4], whole[4:]

    def step(x: Tensor, y: Tensor) -> None:
        y[:] = x + 1

    def count(x: Tensor, y: Tensor) -> None:
        step(x, y)
        middle[:] = middle + x

    for function, pairs in (step, [(low, middle), (middle, low)]), (count, [(low, high), (high, low)]):
        program = backend.capture(function, numbers(backend, (2, 4), 2), backend.zeros((2, 4)))
        for x, y in pairs:
            before, other = x.get(), middle.get()
            program(x, y)
            np.testing.assert_array_equal(y.get(), before + 1)
        if function is count:
            np.testing.assert_array_equal(middle.get(), other + before)


def test_captures_do_not_nest_but_programs_do(backend: Backend, x: Tensor) -> None:
    inner = backend.capture(lambda x: backend.evaluate(x + 1), x)
    with pytest.raises(CaptureError, match=r"inside another capture\s+given +\S*test_capture.py:"):
        backend.capture(lambda x: backend.capture(lambda x: None, x), x)
    outer = backend.capture(lambda x: backend.evaluate(inner(x) * 2), x)
    other = numbers(backend, (3, 4), 5)
    np.testing.assert_array_equal(outer(other).get(), (other.get() + 1) * 2)


def test_numbers_of_another_program_are_refused(backend: Backend, x: Tensor) -> None:
    kept = []

    def scaled(x: Tensor, rate: float) -> Tensor:
        kept.append(rate)
        return backend.evaluate(x * rate)

    backend.capture(scaled, x, 0.5)
    with pytest.raises(CaptureError, match="argument of another program left behind \\(it was 0.5\\)"):
        backend.capture(lambda x, n: backend.evaluate(x * kept[0] * n), x, 2.0)


def test_a_block_left_open_is_refused(backend: Backend, x: Tensor) -> None:
    def step(x: Tensor) -> None:
        block = backend.fuse()
        block.__enter__()
        x[:] = x + 1

    before = x.get()
    with pytest.raises(CaptureError, match="left open"):
        backend.capture(step, x)
    backend.fuse().__exit__(None, None, None)
    np.testing.assert_array_equal(x.get(), before + 1)


@pytest.mark.parametrize("change", [
    lambda given, x: given["list"].append(x), lambda given, x: given["list"].reverse(), lambda given, x: given.pop("n"),
], ids=["longer", "turned", "shorter"])  # fmt: skip
def test_lists_and_dictionaries_among_the_arguments_stay(backend: Backend, x: Tensor, change: Callable) -> None:
    with pytest.raises(CaptureError, match="changes a list or dictionary"):
        backend.capture(change, {"list": [x, x[:1], 2.0], "n": 1}, x)
    program = backend.capture(lambda given, x: sorted(given)[0], {"list": [x], "n": 1}, x)
    assert program.result == "list"


def test_ordered_dictionaries_among_the_arguments_are_such(backend: Backend, x: Tensor) -> None:
    def step(given: OrderedDict) -> OrderedDict:
        given.move_to_end("a")
        return OrderedDict((name, backend.evaluate(value * 2)) for name, value in given.items())

    program = backend.capture(lambda given: step(given.copy()), OrderedDict(a=x, b=x[:1]))
    found = program(OrderedDict(a=x, b=x[:1]))
    assert type(found) is OrderedDict and list(found) == ["b", "a"]
    np.testing.assert_array_equal(found["a"].get(), x.get() * 2)


def test_an_error_inside_leaves_the_backend_as_it_was(backend: Backend, x: Tensor) -> None:
    def step(x: Tensor) -> None:
        x[:] = x * 0
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        backend.capture(step, x)
    assert not x.get().any()
    x[:] = x + 1
    assert x.get().all()


def test_other_threads_are_not_recorded_and_may_not_work_on_the_functions_tensors(backend: Backend, x: Tensor) -> None:
    other, errors = numbers(backend, (3, 4), 2), []

    def work(t: Tensor) -> None:
        try:
            t[:] = t + 1
        except CaptureError as error:
            errors.append(str(error))

    def step(x: Tensor) -> Tensor:
        made = backend.evaluate(x * 2)
        for t in (other, made):
            thread = threading.Thread(target=work, args=(t,))
            thread.start()
            thread.join()
        return made

    before = other.get()
    program = backend.capture(step, x)
    assert len(errors) == 1
    assert "another thread" in errors[0]
    np.testing.assert_array_equal(other.get(), before + 1)
    program(x)
    np.testing.assert_array_equal(other.get(), before + 1)


@pytest.fixture
def between() -> Iterator[dict[str, Callable]]:
    """By what comes in the middle of something: has it make a call, now."""
    calls: list[Callable[[], None]] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: calls.pop()())

    def handler(call: Callable[[], None]) -> None:
        calls.append(call)
        signal.raise_signal(signal.SIGUSR1)

    class Last:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            calls.pop()()

    def finalizer(call: Callable[[], None]) -> None:
        calls.append(call)
        Last()
        gc.collect()

    yield {"handler": handler, "finalizer": finalizer}
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("what", ["handler", "finalizer"])
@pytest.mark.parametrize("in_block", [False, True])
def test_what_handlers_and_finalizers_do_is_no_part_of_the_function(
    backend: Backend, x: Tensor, between: dict[str, Callable], what: str, in_block: bool
) -> None:
    other, own, read, errors = numbers(backend, (3, 4), 2), backend.zeros((3, 4)), [], []

    def step(x: Tensor) -> Tensor:
        made = backend.evaluate(x * 2)

        def work() -> None:
            read.append(own.get())
            other[:] = other * 2 + backend.rand() * 0
            try:
                made[:] = made + 1
            except CaptureError as error:
                errors.append(str(error))

        with backend.fuse() if in_block else contextlib.nullcontext():
            own[:] = made + 1
            between[what](work)
            made[:] = made * 3
        return made

    before, handler = other.get(), signal.getsignal(signal.SIGUSR1)
    program = backend.capture(step, x)
    draws = backend._draws
    assert signal.getsignal(signal.SIGUSR1) is handler
    assert len(errors) == 1 and "a handler or a finalizer works on the function's tensors" in errors[0]
    np.testing.assert_array_equal(read, [x.get() * 2 + 1])
    np.testing.assert_array_equal(other.get(), before * 2)
    np.testing.assert_array_equal(program(x).get(), x.get() * 6)
    np.testing.assert_array_equal(own.get(), x.get() * 2 + 1)
    np.testing.assert_array_equal(other.get(), before * 2)
    assert (backend._draws, len(read)) == (draws, 1)


def test_any_thread_may_call_a_program(backend: Backend) -> None:
    state = backend.zeros((16, 16))

    def step(x: Tensor) -> None:
        state[:] = state + x

    program = backend.capture(step, backend.ones((16, 16)))
    state[:] = 0
    ones = [backend.ones((16, 16)) for _ in range(4)]

    def work(x: Tensor) -> None:
        for _ in range(25):
            program(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in ones]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (state.get() == 100).all()


def test_statements_that_wait_run_before_a_program(backend: Backend, x: Tensor) -> None:
    y = backend.zeros((3, 4))
    program = backend.capture(lambda: y.__setitem__(slice(None), x * 2))
    with backend.fuse():
        x[:] = 3
        program()
        np.testing.assert_array_equal(y.get(), np.full((3, 4), 6, np.float32))


def test_statements_that_wait_run_before_a_capture(backend: Backend, x: Tensor) -> None:
    x[:] = 1
    with backend.fuse():
        x[:] = x * 2
        program = backend.capture(lambda: backend.evaluate(x + 1))
        assert program().tolist() == [[3] * 4] * 3


def test_a_checked_program_gives_the_same(backend: Backend, x: Tensor) -> None:
    w = numbers(backend, (3, 3), 7)

    def step(x: Tensor, k: float) -> Tensor:
        y = backend.evaluate(backend.tanh(backend.dot(w, x) * k) + 1)
        return backend.evaluate(backend.softmax(y * backend.dropout(0.5), axis=0))

    program = backend.capture(step, x, 2.0)
    state = backend.rng_get_state()
    expected = program(x, 0.5).get()
    backend.rng_set_state(state)
    with tb.using(check=True):
        np.testing.assert_array_equal(program(x, 0.5).get(), expected)


def test_a_program_is_explained(backend: Backend, x: Tensor) -> None:
    program = backend.capture(lambda x: backend.evaluate(backend.tanh(backend.evaluate(x + 1)) * 2), x)
    assert (program.kernels, program.calls) == (2, 0)
    text = str(backend.explain(program, x))
    assert "ew_tanh_mul" in text
    assert f"arena of {program.peak_bytes} bytes" in text
    assert "test_capture.py" in text


@pytest.fixture(autouse=True)
def _not_recording(backend: Backend) -> Iterator[None]:
    yield
    assert backend._recorder is None
    assert "_run_plan" not in vars(backend)


def test_a_program_refuses_words_that_a_table_has_not(backend) -> None:
    ids, dW = backend.array([[1, 0, 1]], dtype=np.int32), backend.zeros((2, 4))

    def step(error: Tensor, ids: Tensor) -> None:
        backend.compound_bprop_lut(3, ids, error, None, dW, None)

    error = backend.ones((4, 3))
    program = backend.capture(step, error, ids)
    program(backend.full((4, 3), 2.0), ids)
    assert dW.tolist() == [[2.0] * 4, [4.0] * 4]
    with pytest.raises(IndexError, match="word 7 at place 1"):
        program(error, backend.array([[1, 7, 1]], dtype=np.int32))
    assert dW.tolist() == [[2.0] * 4, [4.0] * 4]
