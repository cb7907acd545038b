# SPDX-License-Identifier: Apache-2.0
"""Random trees against the oracle: into new tensors, into targets of other types, and over their own operands.

A tree is a string of bytes (see `testing/trees.py`). The oracle says how far each element may be off, and where a jump
is within reach; those elements alone are not judged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tensorbackend import Backend, testing
from tensorbackend.testing.trees import DTYPES, Choices, Forest

NODES = 12


def explore(backend: Backend, check: Callable[[bytes], None]) -> None:
    """Run a check on random bytes: 8 times the profile's examples, or half of them where each compiles kernels."""
    examples = settings().max_examples
    count = examples // 2 if testing.compiles(backend) else 8 * examples
    settings(max_examples=count)(given(st.binary(min_size=24, max_size=160))(check))()


def expected_of(forest: Forest, tree: Any) -> testing.Bounded:
    """The oracle's value of a tree that is to run next."""
    note(f"{tree!r}, leaves {[(x.shape, str(x.dtype), getattr(x, 'strides', None)) for x in forest.pool]}")
    draws = {} if forest.random is None else {id(forest.random): forest.backend._draws}
    return testing.reference(tree, draws=draws)


def test_trees_into_new_tensors(backend: Backend) -> None:
    def check(data: bytes) -> None:
        forest = Forest(backend, Choices(data))
        tree = forest.grow(NODES)
        expected = expected_of(forest, tree)
        actual = backend.evaluate(tree)
        assert (actual.shape, actual.dtype) == (expected.value.shape, tree.dtype)
        testing.assert_bounded(actual.get(), expected)

    explore(backend, check)


def test_trees_into_targets_of_other_types(backend: Backend) -> None:
    def check(data: bytes) -> None:
        choices = Choices(data)
        dtype, stretched, backwards = choices.of(DTYPES), choices.chance(3), choices.chance(2)
        forest = Forest(backend, choices)
        tree = forest.grow(NODES)
        expected = expected_of(forest, tree)
        target = backend.empty((2, *tree.shape) if stretched and tree.ndim < 5 else tree.shape, dtype, min_dims=0)
        target = target[::-1] if backwards and target.ndim else target
        target[:] = tree
        testing.assert_bounded(target.get(), expected)

    explore(backend, check)


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


def test_trees_over_their_own_operands(backend: Backend) -> None:
    def check(data: bytes) -> None:
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
        expected = expected_of(forest, tree)
        target[:] = tree
        testing.assert_bounded(target.get(), expected)

    explore(backend, check)


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
