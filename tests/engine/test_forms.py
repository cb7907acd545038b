# SPDX-License-Identifier: Apache-2.0
"""Plans and their keys: the way back gives the plan of the statement, and digests tell apart what plans tell apart."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorbackend import Backend, OpTreeNode, testing
from tensorbackend.graph import forms, fuse
from tensorbackend.graph.optree import apply
from tensorbackend.ops import OPS
from tensorbackend.testing.trees import Choices, Forest


@pytest.fixture(scope="module")
def be() -> Backend:
    """A backend that compiles nothing: plans are all that is looked at."""
    return testing.make_backend("interpreter", rng_seed=0)


def assert_same_plan(found: fuse.Plan, expected: fuse.Plan) -> None:
    """All that plans hold, the order of steps and the numbers of leaves included."""
    assert (found.targets, found.tensors) == (expected.targets, expected.tensors)
    assert found.temporaries == expected.temporaries
    assert repr(found.steps) == repr(expected.steps)
    assert found.layouts == expected.layouts


@given(data=st.binary(max_size=60), overlaps=st.booleans())
def test_a_plan_follows_from_its_key(be: Backend, data: bytes, overlaps: bool) -> None:
    tree = Forest(be, Choices(data)).grow(10)
    target = be.empty(tree.shape, tree.dtype, min_dims=0)
    tensors = [x for x in fuse.walk(tree)[0] if not isinstance(x, (OpTreeNode, bool, int, float, np.generic))]
    same = next((x for x in tensors if x.shape == tree.shape), None)
    target = same if overlaps and same is not None else target
    key, leaves = be._statement_key(target, tree)
    expected = fuse.schedule([fuse.Statement(target.structure, be._fit(target, tree), key[-1])], [leaves])
    assert_same_plan(forms.KnownPlan(key, 1, expected.tensors, be._fit), expected)


def planned(be: Backend, run: Any) -> tuple[tuple, fuse.Plan]:
    """The key and the plan of what `run` does, which is new to the backend."""
    before = set(be.structures.plans)
    run()
    (made,) = [(k, p) for k, p in be.structures.plans.items() if k not in before and isinstance(p, fuse.Plan)]
    return made


def test_the_plan_of_a_group_follows_from_its_key(be: Backend) -> None:
    p, g, m, v = (be.array(np.full((3, 4), k + 1.0)) for k in range(4))

    def step() -> None:
        with be.fuse():
            m[:] = m * 0.9 + g * 0.1
            v[:] = v * 0.999 + be.square(g) * 0.001
            p[:] = p - 0.01 * m / (be.sqrt(v) + 1e-8)

    key, plan = planned(be, step)
    assert plan.targets == 3
    assert_same_plan(forms.KnownPlan(key, 3, plan.tensors, be._fit), plan)


def test_what_trees_of_a_group_share_follows_from_its_key(be: Backend) -> None:
    x, a, b = (be.array(np.full((3, 4), k + 1.0)) for k in range(3))

    def step() -> None:
        with be.fuse():
            part = x * 0.9 + 0.1
            a[:] = be.exp(part) + part
            b[:] = x - 2.0 * part

    key, plan = planned(be, step)
    (kernel,) = plan.steps
    assert len(kernel.scalars) == 3
    assert_same_plan(forms.KnownPlan(key, 2, plan.tensors, be._fit), plan)


def test_tensors_on_one_memory_are_told_apart_on_the_way_back(be: Backend) -> None:
    """Parts that trees share read one of two tensors, which a later tree reads after the other."""
    x, a, b = (be.array(np.full((3, 4), k + 1.0)) for k in range(3))
    same = x.reshape(4, 3).reshape(3, 4)

    def step() -> None:
        with be.fuse():
            part = x * 0.9
            a[:] = part + 0.1
            b[:] = (x - part) * a + same

    key, plan = planned(be, step)
    assert plan.targets == 2 and forms.leads_back(key)
    known = forms.KnownPlan(key, 2, plan.tensors, be._fit)
    assert forms.statements_of(key)[1][1][0] is not forms.statements_of(key)[1][1][2]
    assert_same_plan(known, plan)


def test_a_key_that_does_not_lead_back_is_known_for_it(be: Backend) -> None:
    """A tensor is read in two statements, in one after another on its memory; the third shares parts of both."""
    x, a, b, c = (be.array(np.full((3, 4), k + 1.0)) for k in range(4))
    same = x.reshape(4, 3).reshape(3, 4)

    def step() -> None:
        with be.fuse():
            first = x * 0.9
            a[:] = first + 0.1
            second = x * 0.8
            b[:] = second + a + same
            c[:] = first * second + b

    key, plan = planned(be, step)
    assert plan.targets == 3
    found = [fuse.walk(statement.value)[1] for statement in forms.statements_of(key)[0]]
    assert found != [key[at + 3] for at in (0, 7, 14)] and not forms.leads_back(key)


class Level(enum.IntEnum):
    LOW = 5


@pytest.mark.parametrize("value", [2.0, 3, True, np.float32(1), Level.LOW], ids=str)
def test_the_plan_of_a_number_follows_from_its_key(be: Backend, value: Any) -> None:
    y = be.empty((2, 3))
    key, leaves = be._statement_key(y, value)
    expected = fuse.schedule([fuse.Statement(y.structure, value)], [leaves])
    assert_same_plan(forms.KnownPlan(key, 1, expected.tensors, be._fit), expected)


def test_unknown_attributes_of_a_plan_schedule_nothing(be: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "schedule", None)
    with pytest.raises(AttributeError, match="nothing"):
        forms.KnownPlan((), 1, [], be._fit).nothing  # noqa: B018


def test_equal_keys_of_two_backends_have_one_digest() -> None:
    names = set()
    for _ in range(2):
        be = testing.make_backend("interpreter")
        x, y = be.ones((3, 4)), be.empty((3, 4))
        names.add(forms.digest(be._statement_key(y, be.tanh(x * 2.0) + be.sum(x, 1))[0]))
    assert len(names) == 1 and None not in names


def test_different_keys_have_different_digests(be: Backend) -> None:
    x, w, y = be.ones((4, 4)), be.ones((4, 4)), be.empty((4, 4))
    half, row = be.ones((4, 4), dtype="float16"), be.ones((1, 4))
    part = be.tanh(x)
    statements = [
        (y, x + w), (y, w + 2.0), (y, w + 2), (y, w - 2), (y, 2 - w), (y, half + w), (y, row + w), (y, w.T + w),
        (w, x + w), (w.T, x + w), (y.T, x + w), (y[::-1], x + w), (y, part + be.tanh(x)), (y, part + part),
        (y, be.sum(x, 0) + w), (y, be.sum(x, 1) + w), (y, 2), (y, 2.0), (y, x), (half, x), (half, half), (y, x[::-1]),
        (y, x + x), (y, be.exp(x).reshape(2, 8).reshape(4, 4) + w), (y, be.dropout(0.5) * x),
        (y, be.rand(shape=(4, 4)) * x),
    ]  # fmt: skip
    keys = [be._statement_key(target, value)[0] for target, value in statements]
    names = [forms.digest(key) for key in keys]
    assert None not in names
    assert len(set(names)) == len(set(keys)) == len(keys)


def test_the_text_of_an_op_is_part_of_the_digest(be: Backend) -> None:
    x, y = be.ones((2, 2)), be.empty((2, 2))
    ops = [OPS["tanh"], dataclasses.replace(OPS["tanh"], code="{x} * 1")]
    names = {forms.digest(be._statement_key(y, apply(op, x))[0]) for op in ops}
    assert len(names) == 2


def test_what_only_this_process_knows_has_no_digest(be: Backend) -> None:
    x, y = be.ones((2, 2)), be.empty((2, 2))
    tree = apply(OPS["tanh"], x, params=(object(),))
    assert forms.digest(be._statement_key(y, tree)[0]) is None
    assert forms.digest(be._statement_key(y, tree * 2 + x)[0]) is None


def test_depth_is_no_limit(be: Backend) -> None:
    x, y = be.ones((2, 2)), be.empty((2, 2))
    tree = x
    for _ in range(5000):
        tree = tree + x
    key, leaves = be._statement_key(y, tree)
    assert forms.digest(key)
    assert len(forms.KnownPlan(key, 1, [], be._fit).steps) == len(fuse.schedule(*forms.statements_of(key)).steps) > 1
