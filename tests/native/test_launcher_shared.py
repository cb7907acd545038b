# SPDX-License-Identifier: Apache-2.0
"""Groups of `be.fuse()` whose trees have nodes in common: native code tells them from those whose trees are alike."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tensorbackend import Backend, Tensor
from tensorbackend.conformance.plugin import PROFILE
from tensorbackend.settings import config
from tests.native.statements import assert_no_references_left, counts, tensors

Statements = Callable[..., Iterator[tuple[Tensor, object]]]


def one_node(be, x, y, u, v, w, n):
    part = be.tanh(x * n) + y
    yield u, part * 2.0
    yield v, part - u


def the_whole_tree(be, x, y, u, v, w, n):
    part = x * n + y
    yield u, part
    yield v, part
    yield w, part * part + v


def parts_in_pairs(be, x, y, u, v, w, n):
    a, b, c = x * n + 1.0, x * y - n, y + n
    yield u, a * b
    yield v, b * c + u
    yield w, c * a - v


def a_part_of_a_part(be, x, y, u, v, w, n):
    inner = be.exp(x * n)
    outer = inner + y
    yield u, outer * inner
    yield v, inner - u
    yield w, outer + (inner + y) * v


def operands_overwritten(be, x, y, u, v, w, n):
    part = x * n + y
    yield x, part * 0.5
    yield u, part + x
    yield y, part - u
    yield v, part * y


def sums_of_rows(be, x, y, u, v, w, n):
    mean = be.mean(x * n, axis=1)
    centred = x - mean
    yield u, centred * centred
    yield v, be.sqrt(be.mean(be.square(centred), axis=1) + n) * y + u


def a_target_of_its_own(be, x, y, u, v, w, n):
    part = u * n + x
    yield u, part
    yield u, part + u
    yield v, part * u


FORMS = [one_node, the_whole_tree, parts_in_pairs, a_part_of_a_part, operands_overwritten, sums_of_rows,
         a_target_of_its_own]  # fmt: skip


def made(be: Backend) -> list[Tensor]:
    numbers = np.random.default_rng(3)
    return [be.array(numbers.random((3, 21), dtype=np.float32)) for _ in range(5)]


def values(made: list[Tensor]) -> list[np.ndarray]:
    return [t.get() for t in made]


def run(be: Backend, form: Statements, made: list[Tensor], n: float, fused: bool = True) -> None:
    """All trees are there before the first statement, and go when the last one has run."""
    stated = list(form(be, *made, n))
    if not fused:
        for target, value in stated:
            target[:] = value
        return
    with be.fuse():
        for target, value in stated:
            target[:] = value
        del stated, value


def launches_of_plans(be: Backend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many kernels each group launches that Python runs from now on."""
    found = []
    original = be._block._run

    def run_group(plan, targets, leaves):
        original(plan, targets, leaves)
        found.append(sum(len(prepared.launches) for prepared, *_ in plan.cache[True].steps))

    monkeypatch.setattr(be._block, "_run", run_group)
    return found


@pytest.fixture
def recipes(be, monkeypatch) -> list[int]:
    """How many kernels each recipe launches that native code is given."""
    found = []
    original = be._plan_recipe

    def plan_recipe(plan, leaves):
        recipe = original(plan, leaves)
        found.append(struct.unpack_from("q", recipe[0])[0])
        return recipe

    monkeypatch.setattr(be, "_plan_recipe", plan_recipe)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_they_are_repeated_with_the_launches_and_bits_of_python(be, plain, recipes, monkeypatch, form) -> None:
    launched = launches_of_plans(plain, monkeypatch)
    native, python, single = made(be), made(plain), made(plain)
    for k in range(5):
        before, ran, planned = counts(be)[2], len(recipes), len(launched)
        run(be, form, native, 0.25 + k / 8)
        run(plain, form, python, 0.25 + k / 8)
        run(plain, form, single, 0.25 + k / 8, fused=False)
        for x, y, z in zip(values(native), values(python), values(single)):
            np.testing.assert_array_equal(x, y)
            np.testing.assert_array_equal(x, z)
        if k == 0:
            assert recipes == launched
        else:
            assert counts(be)[2] - before == len(launched) - planned
            assert len(recipes) == ran


def state(be: Backend, tensors: list[Tensor], pattern: tuple[int, ...], numbers: list[float]) -> list[np.ndarray]:
    """Three statements whose six parts are alike: `pattern` says which of them are one. Returns what is to come."""
    x, y, *targets = tensors
    parts = {k: x * n + y for k, n in zip(sorted(set(pattern)), numbers)}
    known = {k: x.get() * np.float32(n) + y.get() for k, n in zip(sorted(set(pattern)), numbers)}
    expected = []
    with be.fuse():
        for target, a, b in zip(targets, pattern[::2], pattern[1::2]):
            target[:] = parts[a] * parts[b]
            expected.append(known[a] * known[b])
    return expected


def patterns(count: int) -> list[tuple[int, ...]]:
    """All ways in which so many parts can be the same: each is one of those before it, or new."""
    found = [(0,)]
    for _ in range(count - 1):
        found = [(*p, k) for p in found for k in range(max(p) + 2)]
    return found


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(3 if PROFILE == "long" else 1))
def test_what_is_one_and_what_is_alike_take_turns(be, seed: int) -> None:
    """All 203 ways in which six parts can be the same, in an order of their own, with other numbers each time."""
    tensors, numbers = made(be), np.random.default_rng(seed)
    for turn in range(3):
        before = counts(be)[2]
        for p in numbers.permutation(patterns(6)).tolist():
            scales = numbers.integers(-4, 5, 6).tolist()
            for t, expected in zip(tensors[2:], state(be, tensors, tuple(p), scales)):
                np.testing.assert_allclose(t.get(), expected, rtol=1e-6, atol=1e-6)
        assert counts(be)[2] - before == (203 if turn else 0)


def test_each_way_of_sharing_is_learnt_once(be, recipes) -> None:
    tensors = made(be)
    for _ in range(3):
        for p in [(0, 1, 0, 1, 0, 1), (0, 1, 1, 0, 0, 0), (0, 1, 2, 3, 4, 5), (0, 0, 0, 0, 0, 0)]:
            state(be, tensors, p, [1.0] * 6)
        assert len(recipes) == 4


def test_addresses_of_nodes_that_went_are_new_nodes(be) -> None:
    """What one group had at an address, the next one, in the same block or another, has not."""
    x, y, u, v, w = made(be)
    other = be.zeros((4, 9))
    reused = 0
    for k in range(40):
        numbers = [k % 3 + 1.0, k % 5 + 2.0]
        with be.fuse():
            part = x * numbers[0] + y
            u[:] = part * 2.0
            v[:] = part + u
            gone = {id(part), id(part.inputs[0])}
            del part
            other[:] = other + 1.0
            part = x * numbers[1] + y
            reused += id(part) in gone
            w[:] = part * 2.0
            v[:] = w - part
        a, b = (x.get() * np.float32(n) + y.get() for n in numbers)
        np.testing.assert_allclose(u.get(), a * 2, rtol=1e-6)
        np.testing.assert_allclose(v.get(), b * 2 - b, rtol=1e-6)
    assert (other.get() == 40).all()
    assert reused > 10 or config.sanitize  # which gives no address out again soon


def test_addresses_of_nodes_that_python_s_group_had(be) -> None:
    """As above, where the groups wait in Python: a statement in each is only Python's to understand."""
    x, y, u, v, w = made(be)
    w.rounding = 23
    for k in range(12):
        numbers = [k % 3 + 1.0, k % 5 + 2.0]
        with be.fuse():
            part = x * numbers[0] + y
            w[:] = part
            u[:] = part * 2.0
            del part
            v[:] = np.float32(7.0) + np.zeros(v.shape, np.float32)
            part = x * numbers[1] + y
            v[:] = part - u
            w[:] = part
            u[:] = v * part
        a, b = (x.get() * np.float32(n) + y.get() for n in numbers)
        np.testing.assert_allclose(v.get(), b - a * 2, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(u.get(), (b - a * 2) * b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("statements", [12, 16])
def test_groups_of_more_nodes_than_are_told_apart_are_python_s(be, plain, statements: int) -> None:
    """Statements of 39 nodes each: sixteen have too many."""
    native, python = ([*tensors(backend, 2), backend] for backend in (be, plain))
    for turn in range(4):
        before = counts(be)[2]
        for x, t, backend in (native, python):
            part = x * 1.5
            with backend.fuse():
                for _ in range(statements):
                    value = t * 0.5
                    for _ in range(18):
                        value = -backend.tanh(value)
                    t[:] = value - part
        assert counts(be)[2] - before == (turn > 0 and statements == 12)
        np.testing.assert_array_equal(native[1].get(), python[1].get())


@pytest.mark.ci
def test_a_full_table_of_groups_is_emptied(be) -> None:
    """More forms than the memo holds, within a block whose first group it knows; what it knew is learnt again."""
    x, y, u, v, w = made(be)
    others = [be.zeros((1, k)) for k in range(1, 8400)]
    for shared, between in [(True, []), (False, []), (True, others), (False, []), (True, []), (False, []), (True, [])]:
        a, b = (x * n + y for n in (2.0, 3.0))
        before = counts(be)[2]
        with be.fuse():
            u[:] = a
            for t in between:
                t[:] = t + 1.0
            v[:] = (a if shared else b) * u
            w[:] = a + v
        first, second = (x.get() * n + y.get() for n in (2, 2 if shared else 3))
        np.testing.assert_allclose(v.get(), second * first, rtol=1e-6)
        np.testing.assert_allclose(w.get(), first + second * first, rtol=1e-6)
        if between:
            assert counts(be)[0] < len(between)
    assert counts(be)[2] == before + 1
    assert all((t.get() == 1).all() for t in others)


def test_threads_state_the_same_nodes(be) -> None:
    """Nodes that are in the groups of two threads at once, in one as one, in the other beside others alike."""
    x, y, *_ = made(be)
    part, alike = x * 2.0 + y, x * 3.0 + y
    a, b = (x.get() * n + y.get() for n in (2, 3))
    failures = []

    def work(second, expected) -> None:
        u, v = be.empty(x.shape), be.empty(x.shape)
        for _ in range(300):
            with be.fuse():
                u[:] = part
                v[:] = second * u
            if not np.allclose(v.get(), expected, rtol=1e-6):
                failures.append(expected)

    threads = [threading.Thread(target=work, args=pair) for pair in [(part, a * a), (alike, b * a)] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_they_leave_no_references(be) -> None:
    def statements(x, w, o, number) -> None:
        part = be.tanh(x) * number
        with be.fuse():
            o[:] = part + w
            w[:] = part * 1e-9
            del part

    assert_no_references_left(be, statements, 5000)
