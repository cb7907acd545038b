# SPDX-License-Identifier: Apache-2.0
"""Operands whose axes lie in memory in another order than they are seen in: kernels go through them as they lie."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, Tensor, testing
from tensorbackend.backends import jit as backends_jit
from tensorbackend.codegen.nest import nest
from tensorbackend.graph import composite
from tensorbackend.graph.loops import in_memory_order
from tensorbackend.graph.plan import Kernel
from tests.engine.test_schedule import steps_of

pytestmark = pytest.mark.rehearsed

SHAPE = (3, 5, 4, 7)
ORDERS = list(itertools.permutations(range(4)))
PLAIN, LAST = (0, 1, 2, 3), (1, 2, 3, 0)


def seen(be: Backend, values: np.ndarray, order: tuple[int, ...], dtype: Any = "float32") -> Tensor:
    """A tensor of values whose axis `order[0]` is the outermost in memory, and so on."""
    return be.array(values.transpose(order), dtype=dtype, min_dims=0).transpose(*map(int, np.argsort(order)))


def kernel_of(tree: Any, target: Tensor) -> Kernel:
    """The kernel that assigning a tree becomes."""
    (found,) = steps_of(tree, target)
    return found


def normalised(be: Backend, x: Tensor, scale: Tensor) -> Any:
    """Batch normalisation of images that are seen batch first."""
    away = x - be.mean(x, (0, 2, 3))
    return away / be.sqrt(be.mean(away * away, (0, 2, 3)) + 1e-5) * scale


TREES: dict[str, Callable] = {
    "map": lambda be, x, scale: x * scale + 1,
    "sum": lambda be, x, scale: be.sum(x * scale, (0, 2, 3)),
    "sum of neighbours": lambda be, x, scale: be.sum(x, (1, 2)),
    "maximum": lambda be, x, scale: be.max(x - scale, (2, 3)),
    "normalised": normalised,
}


def expected(name: str, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """What the trees are, in float64."""
    axes = (0, 2, 3)
    away = x - x.mean(axes, keepdims=True)
    return {
        "map": lambda: x * scale + 1,
        "sum": lambda: (x * scale).sum(axes, keepdims=True),
        "sum of neighbours": lambda: x.sum((1, 2), keepdims=True),
        "maximum": lambda: (x - scale).max((2, 3), keepdims=True),
        "normalised": lambda: away / np.sqrt((away * away).mean(axes, keepdims=True) + 1e-5) * scale,
    }[name]()


@pytest.mark.parametrize("name", TREES)
def test_every_order_gives_the_same(backend: Backend, name: str) -> None:
    """A sum is right to 1e-7 of its terms' sizes: 84 here, of at most 16."""
    rng = np.random.default_rng(0)
    values, row = rng.uniform(-4, 4, SHAPE), rng.uniform(1, 4, (1, SHAPE[1], 1, 1))
    wanted = expected(name, *(v.astype("f").astype("d") for v in (values, row)))
    scale = backend.array(row, dtype="float32", min_dims=0)
    for order in testing.some(backend, ORDERS, 3):
        tree = TREES[name](backend, seen(backend, values, order), scale)
        y = seen(backend, np.zeros(wanted.shape), order)
        y[:] = tree
        np.testing.assert_allclose(y.get(), wanted, rtol=1e-5, atol=1.4e-4, err_msg=str(order))


@pytest.mark.parametrize(("name", "shape"), [("map", (5, 84)), ("sum", (5, 84)), ("normalised", (5, 84))])
def test_images_with_their_batch_last_in_memory_are_rows(backend: Backend, name: str, shape: tuple[int, ...]) -> None:
    x = seen(backend, np.zeros(SHAPE), LAST)
    tree = TREES[name](backend, x, backend.ones((1, SHAPE[1], 1, 1)))
    target = seen(backend, np.zeros(tree.shape), LAST)
    assert nest(in_memory_order(kernel_of(tree, target))).kernel.shape == shape


def test_what_lies_in_order_stays(backend: Backend) -> None:
    x = backend.zeros(SHAPE)
    for tree in (x + 1, backend.sum(x, (0, 2, 3)), x[:, ::2] * 2):
        kernel = kernel_of(tree, backend.empty(tree.shape))
        assert in_memory_order(kernel) is kernel


@pytest.mark.parametrize("order", ORDERS[1::4])
def test_the_first_of_equals_is_the_first_as_seen(backend: Backend, order: tuple[int, ...]) -> None:
    values = np.zeros(SHAPE)
    values[:, :, 1, 5] = values[:, :, 3, 2] = 1
    x = seen(backend, values, order)
    assert (backend.argmax(x, 3).asnumpyarray()[:, :, 1] == 5).all()
    assert backend.argmax(x, None).asnumpyarray().item() == SHAPE[3] + 5
    assert backend.argmin(x - backend.max(x, 3), None).asnumpyarray().item() == SHAPE[3]


@pytest.mark.parametrize("axis", range(4))
def test_positions_are_those_as_seen(backend: Backend, axis: int) -> None:
    values = np.random.default_rng(1).integers(-9, 9, SHAPE)
    places = np.arange(SHAPE[axis]).reshape([-1 if a == axis else 1 for a in range(4)])
    for order in testing.some(backend, ORDERS, 3 - axis):
        x = seen(backend, values, order)
        y = seen(backend, values, order)
        y[:] = x * 2 + composite.positions(x.structure.table, axis, SHAPE)
        np.testing.assert_array_equal(y.get(), values * 2 + places)
        total = backend.sum(x * composite.positions(x.structure.table, axis, SHAPE), (0, 2, 3))
        np.testing.assert_array_equal(total.asnumpyarray(), (values * places).sum((0, 2, 3), keepdims=True))


def test_numbers_are_drawn_as_seen(backend: Backend) -> None:
    drawn = []
    for order in (PLAIN, LAST):
        backend.rng_reset()
        y = seen(backend, np.zeros(SHAPE), order)
        y[:] = seen(backend, np.zeros(SHAPE), order) + backend.rand()
        drawn.append(y.get())
    np.testing.assert_array_equal(*drawn)


def test_over_the_memory_that_is_read(backend: Backend) -> None:
    values = np.random.default_rng(1).uniform(-4, 4, SHAPE)
    for order in (LAST, (3, 2, 1, 0)):
        x = seen(backend, values, order)
        wanted = TREES["normalised"](backend, x, backend.ones((1, SHAPE[1], 1, 1))).asnumpyarray()
        x[:] = TREES["normalised"](backend, x, backend.ones((1, SHAPE[1], 1, 1)))
        np.testing.assert_allclose(x.get(), wanted, rtol=1e-6, atol=1e-6)


MIXED = [(PLAIN, LAST), (LAST, PLAIN), ((3, 2, 1, 0), PLAIN), ((0, 2, 3, 1), (3, 0, 1, 2))]
Axes = tuple[int, ...]


@pytest.mark.parametrize(("one", "other"), MIXED)
@pytest.mark.parametrize("inputs", [1, 3])
def test_maps_of_what_lies_otherwise(backend: Backend, one: Axes, other: Axes, inputs: int) -> None:
    """However many inputs lie across, a map is written as its outputs lie, of which some may lie across, too."""
    shape = (9, 10, 8, 11)
    values = [np.random.default_rng(k).integers(-9, 9, shape).astype(float) for k in range(inputs + 1)]
    xs = [seen(backend, v, one) for v in values[:-1]]
    last = seen(backend, values[-1], other)
    y, z = seen(backend, 0 * values[0], other), seen(backend, 0 * values[0], one)
    tree = sum(x * (k + 1) for k, x in enumerate(xs)) + last
    wanted = sum(v * (k + 1) for k, v in enumerate(values[:-1])) + values[-1]
    y[:] = tree
    np.testing.assert_array_equal(y.get(), wanted)
    with backend.fuse():
        y[:] = tree * 2
        z[:] = tree * 3
    np.testing.assert_array_equal(y.get(), wanted * 2)
    np.testing.assert_array_equal(z.get(), wanted * 3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_maps_of_what_lies_across_and_repeated_rows(backend: Backend, dtype: str) -> None:
    """Inputs that lie across go by tiles; beside them, a view of the same elements in each row does not."""
    across = np.random.default_rng(0).integers(-9, 9, (16, 20)).astype(dtype)
    column = np.arange(16, dtype=dtype)[:, None]
    repeated = backend.xp.broadcast_to(backend.array(column, dtype=dtype), (16, 20))
    assert repeated.strides == (1, 0)
    y = backend.empty((16, 20), dtype=dtype)
    y[:] = seen(backend, across, (1, 0), dtype) + repeated
    np.testing.assert_array_equal(y.get(), across + column)


@pytest.mark.parametrize(("one", "other"), MIXED)
def test_reductions_of_what_lies_otherwise(backend: Backend, one: Axes, other: Axes) -> None:
    shape = (9, 10, 8, 11)
    values = [np.random.default_rng(k).integers(-9, 9, shape).astype(float) for k in range(4)]
    x, y, z = (seen(backend, v, one) for v in values[:3])
    w = seen(backend, values[3], other)
    for axes in ((0, 2, 3), (1,), (2, 3), (0,), (0, 1, 2, 3)):
        wanted = (values[0] * values[1] + values[2] + values[3]).sum(axes, keepdims=True)
        tree = x * y + z + w
        np.testing.assert_array_equal(backend.sum(tree, axes).asnumpyarray(), wanted)
        for target in (one, other):
            out = seen(backend, 0 * values[0], target)
            out[:] = tree - backend.sum(tree, axes)
            np.testing.assert_array_equal(out.get(), sum(values[2:]) + values[0] * values[1] - wanted)


def test_loops_that_are_all_remainder_are_compiled_for_it(jit: Backend) -> None:
    for columns, narrow in ((8, True), (31, True), (32, False)):
        x = seen(jit, np.zeros((columns, 5, 40, 7)), LAST)
        for tree, aims in (
            (jit.max(x, (2, 3)), ("quick", "narrow")),
            (x * jit.rand(), ("speed", "speed, narrow")),
        ):
            found = backends_jit._nest(kernel_of(tree, seen(jit, np.zeros(tree.shape), LAST)))
            assert backends_jit._aim(found) == aims[narrow]
    assert backends_jit._aim(backends_jit._nest(kernel_of(x[:8] + 1, jit.empty((8, 5, 40, 7))))) == "quick"


LARGE = (4, 8, 32, 32)
"""More elements than from which on a small operand may be copied."""


@pytest.mark.parametrize(("whole", "row"), [(LAST, PLAIN), (PLAIN, LAST), (PLAIN, PLAIN), (LAST, LAST)])
def test_a_small_operand_that_lies_across_is_copied(backend: Backend, whole: Axes, row: Axes) -> None:
    """Labels of pixels, say: beside images with their batch last, each would be read from another line."""
    rng = np.random.default_rng(0)
    values, labels = rng.integers(-9, 9, LARGE), rng.integers(-9, 9, (4, 1, 32, 32))
    x, t = seen(backend, values, whole), seen(backend, labels, row)
    y = seen(backend, values, whole)
    *copies, last = steps_of(x * t + 1, y)
    assert [step.reason for step in copies] == ["it lies across the largest operand"] * (whole != row)
    assert not copies or last.inputs[1] == copies[0].outputs[0][0]
    y[:] = x * t + 1
    np.testing.assert_array_equal(y.get(), values * labels + 1)
    total = backend.sum(x * t, 1).asnumpyarray()
    np.testing.assert_array_equal(total, (values * labels).sum(1, keepdims=True))


def test_what_is_not_copied(backend: Backend) -> None:
    """Few numbers, one that is large too, one along an axis, and where the order as seen counts."""
    x = seen(backend, np.zeros(LARGE), LAST)
    row, part = backend.zeros((4, 1, 32, 32)), backend.zeros((4, 4, 32, 32))
    few = seen(backend, np.zeros(SHAPE), LAST)
    trees = [
        few + backend.zeros((3, 1, 4, 7)), x[:, :4] + part, x + backend.zeros((1, 8, 1, 1)), x + row + backend.rand(),
        backend.argmax(x + row, 1),
    ]  # fmt: skip
    for tree in trees:
        assert len(steps_of(tree, seen(backend, np.zeros(tree.shape), LAST))) == 1


def test_what_is_between_two_kernels_lies_as_what_they_read(backend: Backend) -> None:
    x = seen(backend, np.random.default_rng(0).uniform(-4, 4, SHAPE), LAST)
    tree = backend.sum(backend.exp(x - backend.max(x, 1)), (2, 3))
    first, *_ = steps_of(tree)
    ((place, _),) = first.outputs
    assert place.buffer < 0
    assert np.argsort([-s for n, s in zip(place.shape, place.strides) if n != 1]).tolist() == [1, 2, 0]
    wanted = np.exp(x.get().astype("d") - x.get().max(1, keepdims=True)).sum((2, 3), keepdims=True)
    np.testing.assert_allclose(tree.asnumpyarray(), wanted, rtol=1e-5)
    flat = composite.reshape(backend.exp(x), (3, 140))
    np.testing.assert_allclose(flat.asnumpyarray(), np.exp(x.get()).reshape(3, 140), rtol=1e-6)
