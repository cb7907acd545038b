# SPDX-License-Identifier: Apache-2.0
"""Statements in `be.fuse()` that wait in native code: which run together, and what ends a group."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable

import numpy as np
import pytest

from tensorbackend import ShapeError, Tensor
from tensorbackend.backends import recipes
from tensorbackend.kernel_files import kernel_path
from tests.native.statements import assert_no_references_left, counts, tensors


def test_fuse_blocks_wait_for_their_end(be) -> None:
    x, y, o = tensors(be, 3)
    for k in range(4):
        runs, before = counts(be)[2], o.get()
        expected = x.get() + y.get()
        with be.fuse():
            o[:] = x + y
            y[:] = o * 2
            np.testing.assert_array_equal(np.ctypeslib.as_array(_memory(o)), before.reshape(-1))
        assert counts(be)[2] == runs + (k > 0)
        np.testing.assert_array_equal(o.get(), expected)
        np.testing.assert_array_equal(y.get(), expected * 2)


def _memory(tensor: Tensor) -> object:
    return (ctypes.c_float * tensor.size).from_address(tensor.address)  # which runs nothing


def test_an_optimizer_step_over_many_parameters_is_a_launch_each(be) -> None:
    params = [[be.array(np.random.RandomState(k).rand(n, 3)) for k in range(4)] for n in (2, 5, 5, 7, 2)]
    copies = [[be.copy(t) for t in row] for row in params]

    def step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, rate: float) -> None:
        m[:] = m * 0.9 + g * 0.1
        v[:] = v * 0.999 + be.square(g) * 0.001
        p[:] = p - rate * m / (be.sqrt(v) + 1e-8)

    for k in range(4):
        runs = counts(be)[2]
        with be.fuse():
            for row in params:
                step(*row, 0.1 / (k + 1))
        assert k < 2 or counts(be)[2] == runs + len(params)
        for row in copies:
            step(*row, 0.1 / (k + 1))
        for row, copied in zip(params, copies):
            for t, u in zip(row, copied):
                np.testing.assert_array_equal(t.get(), u.get())


def test_what_native_code_cannot_hold_waits_in_python(be) -> None:
    x, o, u = tensors(be, 3)
    u.rounding = 20
    for _ in range(4):
        before = x.get()
        with be.fuse():
            o[:] = x * 2
            u[:] = o + 1
            x[:] = o - x
            o[:] = x + be.dot(be.ones((16, 16)), x) * 0
        np.testing.assert_allclose(o.get(), before, rtol=1e-6)
        np.testing.assert_allclose(u.get(), before * 2 + 1, rtol=1e-4)
        x[:] = before


@pytest.mark.parametrize("before", [0, 1])
def test_host_arrays_leave_no_block_behind(be, before: int) -> None:
    x, o, u = tensors(be, 3)
    host = np.arange(x.size, dtype=np.float32).reshape(x.shape)
    with be.fuse():
        for _ in range(before):
            u[:] = x - o
        x[:] = host
    o[:] = x * 2 + before
    np.testing.assert_array_equal(np.ctypeslib.as_array(_memory(o)), (host * 2 + before).reshape(-1))


def test_numbers_that_do_not_fit_are_refused_at_the_end(be) -> None:
    i, j = be.zeros(16, dtype=np.int32), be.zeros(16, dtype=np.int32)
    for number in (1, 2, 3):
        with be.fuse():
            i[:] = i + number
            j[:] = i * 2
    with pytest.raises(OverflowError), be.fuse():
        i[:] = i + 2**40
        j[:] = i * 2
    assert (i.get() == 6).all() and (j.get() == 12).all()
    with be.fuse():
        i[:] = i + 1
        j[:] = i * 2
    assert (j.get() == 14).all()


def test_refused_statements_change_no_group(be) -> None:
    x, o = tensors(be, 2)
    wide = be.zeros((3, 5))
    start = x.get()
    for k in range(1, 5):
        with be.fuse():
            o[:] = x * 2
            with pytest.raises(ShapeError):
                o[:] = wide
            x[:] = o * 0.5 + 1
        np.testing.assert_allclose(x.get(), start + k, rtol=1e-5)


def test_forgetting_inside_a_block_is_only_forgetting(be) -> None:
    x, o = tensors(be, 2)
    start = x.get()
    for k in range(1, 6):
        with be.fuse():
            o[:] = x * 2
            be.structures.clear()
            x[:] = o * 0.5 + 1
        np.testing.assert_allclose(x.get(), start + k, rtol=1e-5)


def test_a_block_ends_where_it_began(be) -> None:
    with be.fuse():
        errors = []

        def leave() -> None:
            try:
                be.fuse().__exit__(None, None, None)
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
    assert len(errors) == 1 and "thread" in errors[0]


def test_fused_statements_leave_no_references(be) -> None:
    def statements(x, w, o, number) -> None:
        with be.fuse():
            o[:] = (x * w + number) * be.tanh(x) - w
            w[:] = o * 1e-9

    assert_no_references_left(be, statements, 5000)


def test_the_limits_of_recipes_are_those_of_native_code() -> None:
    """Which has that much room on its stack."""
    text = kernel_path("c/launcher/statements.h").read_text(encoding="utf-8")
    (line,) = re.findall(r"enum \{ MOST_LAUNCHES = (\d+), MOST_POINTERS = (\d+), MOST_SCALARS = (\d+) \};", text)
    assert tuple(map(int, line)) == (recipes.MOST_LAUNCHES, recipes.MOST_POINTERS, recipes.MOST_SCALARS)


@pytest.mark.parametrize("numbers", [4, 5])
def test_groups_of_as_many_numbers_as_there_is_room_for_and_of_more(be, numbers: int) -> None:
    """Sixteen statements: 64 numbers, and 80, which go through Python."""
    x = be.array(np.arange(16.0).reshape(4, 4))
    outs = [be.empty((4, 4)) for _ in range(16)]

    def group() -> None:
        with be.fuse():
            for k, out in enumerate(outs):
                value = x
                for n in range(numbers):
                    value = value * (1.5 + n) if n % 2 else value + (k + n)
                out[:] = value

    for _ in range(2):
        group()
    before = counts(be)[2]
    group()
    assert (counts(be)[2] > before) == (16 * numbers <= recipes.MOST_SCALARS)
    for k, out in enumerate(outs):
        expected = x.get()
        for n in range(numbers):
            expected = expected * np.float32(1.5 + n) if n % 2 else expected + np.float32(k + n)
        np.testing.assert_allclose(out.get(), expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [12, 15])
def test_groups_of_more_addresses_than_there_is_room_for_go_through_python(be, rounds: int) -> None:
    """880, and 1152 of fewer launches than there is room for."""
    x = be.array(np.arange(20.0).reshape(4, 5) ** 2)

    def value(x: object, highest: Callable) -> object:
        for k in range(rounds):
            x = x - highest(x, k % 2)
        return x

    expected = value(x.get(), lambda y, axis: y.max(axis, keepdims=True))
    outs = [be.empty(x.shape) for _ in range(16)]
    runs = []
    for _ in range(3):
        before = counts(be)[2]
        with be.fuse():
            for out in outs:
                out[:] = value(x, be.max)
        runs.append(counts(be)[2] - before)
        for out in outs:
            np.testing.assert_array_equal(out.get(), expected)
    assert bool(runs[-1]) == (rounds == 12)
