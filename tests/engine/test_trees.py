# SPDX-License-Identifier: Apache-2.0
"""Random trees against the oracle: into new tensors, into targets of other types, and over their own operands.

A tree is a string of bytes (see `testing/trees.py`). The oracle says how far each element may be off, and where a jump
is within reach; those elements alone are not judged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorbackend import Backend, testing
from tensorbackend.testing.trees import DTYPES, Choices, Forest

NODES = 12
COMPILED = 20
"""Trees of each form that are compiled every day, together."""


@dataclass(frozen=True)
class Statement:
    """`target[:] = tree`, as the bytes `data` decided."""

    data: bytes
    forest: Forest
    target: Any
    tree: Any

    def check(self) -> None:
        """Run it, and judge the target; says which bytes it came from when something is wrong."""
        try:
            random = self.forest.random
            draws = {} if random is None else {id(random): self.forest.backend._draws}
            expected = testing.reference(self.tree, draws=draws)
            assert expected.value.shape == self.tree.shape
            self.target[:] = self.tree
            testing.assert_bounded(self.target.get(), expected)
        except BaseException:
            leaves = [(x.shape, str(x.dtype), getattr(x, "strides", None)) for x in self.forest.pool]
            print(f"bytes.fromhex({self.data.hex()!r}): {self.tree!r}, leaves {leaves}")
            raise


def into_a_new_tensor(backend: Backend, data: bytes) -> Statement:
    """Of the tree's own shape and type."""
    forest = Forest(backend, Choices(data))
    tree = forest.grow(NODES)
    return Statement(data, forest, backend.empty(tree.shape, tree.dtype, min_dims=0), tree)


def into_another_type(backend: Backend, data: bytes) -> Statement:
    """Converted, perhaps repeated along a new axis, perhaps backwards."""
    choices = Choices(data)
    dtype, stretched, backwards = choices.of(DTYPES), choices.chance(3), choices.chance(2)
    forest = Forest(backend, choices)
    tree = forest.grow(NODES)
    target = backend.empty((2, *tree.shape) if stretched and tree.ndim < 5 else tree.shape, dtype, min_dims=0)
    target = target[::-1] if backwards and target.ndim else target
    return Statement(data, forest, target, tree)


def over_its_own_operand(backend: Backend, data: bytes) -> Statement:
    """Into memory that it also reads."""
    choices = Choices(data)
    shape = choices.of(((5,), (3, 4), (4, 4), (2, 3, 3), (1, 6)))
    operand, views = windows(backend, shape, choices.of(DTYPES), choices.below(256))
    target = choices.of(views)
    forest = Forest(backend, choices, lengths=shape, pool=[operand])
    tree = forest.grow(NODES)
    try:
        fits = np.broadcast_shapes(tree.shape, shape) == shape
    except ValueError:
        fits = False
    tree = tree + operand if fits else backend.sum(tree, keepdims=False) + operand
    return Statement(data, forest, target, tree)


def windows(backend: Backend, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> tuple[Any, list[Any]]:
    """A tensor in the middle of a larger one, and views of the same shape that overlap it in different ways."""
    whole = backend.array(np.random.default_rng(seed).uniform(-4, 4, np.add(shape, 2)), dtype=dtype, min_dims=0)
    inner = (slice(1, -1),) * len(shape)
    operand = whole[inner]
    first = (slice(0, -2),) + inner[1:]
    last = inner[:-1] + (slice(2, None),)
    views = [operand, whole[first], whole[last], operand[::-1], operand[..., ::-1]]
    if len(set(shape)) == 1:
        views.append(operand.T)
    return operand, views


FORMS = [into_a_new_tensor, into_another_type, over_its_own_operand]
Form = Callable[[Backend, bytes], Statement]
each_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)


def check_together(backend: Backend, statements: Iterable[Statement]) -> None:
    """Check statements whose kernels are compiled in one go."""
    statements = list(statements)
    testing.compile_together(backend, [(s.target, s.tree) for s in statements])
    for statement in statements:
        statement.check()


def many(seed: list[int], count: int) -> list[bytes]:
    """The bytes of `count` trees."""
    rng = np.random.default_rng(seed)
    return [rng.bytes(160) for _ in range(count)]


@each_form
def test_trees(backend: Backend, form: Form) -> None:
    if testing.compiles(backend):
        seed = [0] if settings().derandomize else list(os.urandom(8))
        check_together(backend, [form(backend, data) for data in many(seed, COMPILED)])
    else:
        examples = given(st.binary(min_size=24, max_size=160))(lambda data: form(backend, data).check())
        settings(max_examples=8 * settings().max_examples)(examples)()


PARTS, PART = 6, 115  # 2,070 trees of three forms


@pytest.mark.ci
@pytest.mark.parametrize("part", range(PARTS))
@each_form
def test_two_thousand_compiled_trees(
    form: Form, part: int, absent: Callable[[str, str], None], request: pytest.FixtureRequest
) -> None:
    if part:  # the first of each form is compiled as for users
        request.getfixturevalue("light")
    backend = testing.make_backend("jit", rng_seed=0)
    if not testing.compiles(backend):
        absent("cpu", "no C compiler works here")
    check_together(backend, [form(backend, data) for data in many([FORMS.index(form), part], PART)])


THOUSANDS = 1000


@pytest.mark.long
@pytest.mark.parametrize("thousand", range(THOUSANDS), ids="{:03d}".format)
def test_a_million_trees_through_the_interpreter(thousand: int) -> None:
    """In parts that stand alone, so that a run can be shared among processes (`-n 8`) and taken up again (`-k`)."""
    backend = testing.make_backend("interpreter", rng_seed=thousand)
    for number, data in enumerate(many([thousand], 1000)):
        FORMS[number % len(FORMS)](backend, data).check()
    backend.cleanup_backend()


def test_most_elements_are_judged(backend: Backend) -> None:
    """The bounds must not be so wide, or so often unknown, that the other tests say nothing."""
    rng = np.random.default_rng(0)
    judged = []
    tight = []
    for _ in range(100 if not testing.compiles(backend) else 10):
        forest = Forest(backend, Choices(rng.bytes(160)))
        tree = forest.grow(NODES)
        expected = testing.reference(tree, draws={id(forest.random): 0})
        if expected.value.size:
            judged.append((expected.error < np.inf).mean())
            finite = np.isfinite(expected.value) & (expected.error < np.inf)
            narrow = expected.error <= 1e-3 * np.abs(expected.value.astype(float)) + 1e-6
            tight.append(narrow[finite].mean() if finite.any() else 1.0)
    assert np.mean(judged) > 0.7
    assert np.mean(tight) > 0.9


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 1), (1, 1), ()], ids=str)
def test_trees_of_little(backend: Backend, shape: tuple[int, ...]) -> None:
    x = backend.array(np.ones(shape), min_dims=0)
    for tree in (backend.exp(x) * 2 + x, backend.sum(x * x) - x, (x + backend.sum(x, axis=()))):
        testing.assert_bounded(backend.evaluate(tree).get(), testing.reference(tree))
