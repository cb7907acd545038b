# SPDX-License-Identifier: Apache-2.0
"""Gradients against central differences in float64, op by op and for random trees, and the contract of `Autodiff`."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import weakref
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tensorbackend import Autodiff, Backend, ShapeError, ops, testing
from tensorbackend.graph import composite
from tensorbackend.graph.optree import apply
from tensorbackend.testing.trees import Choices

pytestmark = pytest.mark.rehearsed

STEP = 1e-3


def numbers(backend: Backend, shape: tuple[int, ...], low: float = -2.0, high: float = 2.0, seed: int = 0) -> Any:
    """A float64 tensor of numbers further apart than the steps, also from those of other seeds, and not at 0."""
    count = math.prod(shape)
    even = (np.arange(count) + (0.29, 0.62, 0.87)[seed % 3]) / max(count, 1)
    values = np.random.default_rng(seed).permutation(low + (high - low) * even)
    return backend.array(values.reshape(shape), dtype="float64", min_dims=0)


def difference(backend: Backend, tree: Any, tensor: Any, direction: np.ndarray, weights: np.ndarray) -> float:
    """The derivative of sum(weights · tree) along a direction of a tensor, by central differences of two widths.

    Richardson's extrapolation of the two leaves an error of the order of STEP^4.
    """
    start = tensor.get()
    slopes = []
    for h in (STEP, STEP / 2):
        ends = []
        for sign in (1, -1):
            tensor[:] = start + sign * h * direction
            ends.append(float((backend.evaluate(tree, dtype="float64").get() * weights).sum()))
        slopes.append((ends[0] - ends[1]) / (2 * h))
    tensor[:] = start
    return (4 * slopes[1] - slopes[0]) / 3


def check(backend: Backend, tree: Any, tensors: list[Any], tolerance: float = 1e-7) -> None:
    """The gradients of a tree with respect to its tensors, with a random incoming gradient, along random directions."""
    rng = np.random.default_rng(7)
    weights = rng.uniform(0.5, 1.5, tree.shape)
    error = backend.array(weights, dtype="float64", min_dims=0)
    for tensor, gradient in zip(tensors, Autodiff(tree, backend, error).get_grad_tensor(tensors)):
        assert (gradient.shape, gradient.dtype) == (tensor.shape, tensor.dtype)
        direction = rng.uniform(-1, 1, tensor.shape)
        wanted = difference(backend, tree, tensor, direction, weights)
        terms = gradient.get() * direction
        assert abs(terms.sum() - wanted) <= tolerance * (1 + abs(wanted) + np.abs(terms).sum())


# Op by op


DIFFERENTIABLE = [op for op in ops.elementwise() if op.arity < 3 and op.dtype not in ("bits", "integer")]
STEPS = [op for op in DIFFERENTIABLE if op.dtype in ("truth", "whole") or op.name in ("sgn", "floordiv", "pow2near")]
SMOOTH = [op for op in DIFFERENTIABLE if op not in STEPS]


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=attrgetter("name"))
def test_gradient_of_an_op(backend: Backend, op: ops.Op) -> None:
    operands = [numbers(backend, (3, 5), *(op.smooth or op.domain), seed=s) for s in range(op.arity)]
    if op in STEPS:
        for gradient in Autodiff(apply(op, *operands), backend).get_grad_tensor(operands):
            assert (gradient.get() == 0).all()
    else:
        check(backend, apply(op, *operands), operands)


@pytest.mark.parametrize("op", [op for op in SMOOTH if op.arity == 2], ids=attrgetter("name"))
def test_gradient_of_a_broadcast_operand(backend: Backend, op: ops.Op) -> None:
    low, high = op.smooth or op.domain
    for shapes in (((4, 1), (3,)), ((), (2, 3)), ((2, 1, 3), (4, 1)), ((1, 1), (1, 3))):
        x, y = (numbers(backend, shape, low, high, seed=s) for s, shape in enumerate(shapes))
        check(backend, apply(op, x, y), [x, y])
    x = numbers(backend, (3,), low, high)
    check(backend, apply(op, x, 1.3), [x])
    check(backend, apply(op, 1.7, x), [x])


def test_gradient_of_powers_by_numbers(backend: Backend) -> None:
    x = numbers(backend, (3, 5), 0.5, 3.0)
    for y in testing.some(backend, (2, 3, 4, -1, -2, 0.5, -0.5, 1.5, -1.5, 1.7), 0, part=3):
        check(backend, x**y, [x])


def test_gradient_of_where(backend: Backend) -> None:
    x, y, c = (numbers(backend, shape, seed=s) for s, shape in enumerate(((3, 4), (4,), (3, 1))))
    check(backend, backend.where(c > 0, x * x, backend.exp(y)), [x, y, c])


REDUCED = [(2, 3, 4), (1, 5), (6,)]


@pytest.mark.parametrize("shape", REDUCED, ids=str)
@pytest.mark.parametrize("op", ops.reductions(), ids=attrgetter("name"))
def test_gradient_of_a_reduction(backend: Backend, op: ops.Op, shape: tuple[int, ...]) -> None:
    low, high = op.smooth or (-2.0, 2.0)
    x = numbers(backend, shape, low, high)
    cases = itertools.product((None, 0, -1, (0, -1) if len(shape) > 1 else (0,)), (True, False))
    for axis, keepdims in testing.some(backend, cases, len(shape), part=3):
        check(backend, getattr(backend, op.methods[0])(x, axis=axis, keepdims=keepdims) * 1.5, [x])


COMPOSITES: dict[str, Callable] = {
    "mean": lambda o, x: o.mean(x, axis=1),
    "var": lambda o, x: o.var(x, axis=0),
    "std": lambda o, x: o.std(x, axis=1, keepdims=False),
    "norm": lambda o, x: o.norm(x, axis=1),
    "norm 3": lambda o, x: o.norm(x, axis=0, ord=3),
    "norm inf": lambda o, x: o.norm(x, axis=1, ord=math.inf),
    "logsumexp": lambda o, x: o.logsumexp(x, axis=1),
    "softmax": lambda o, x: o.softmax(x, axis=1),
    "log_softmax": lambda o, x: o.log_softmax(x, axis=0),
    "clip": lambda o, x: o.clip(x, -1.01, 0.53),
    "reciprocal": lambda o, x: o.reciprocal(x + 3),
    "rsqrt": lambda o, x: o.rsqrt(x + 3),
    "relu": lambda o, x: o.relu(x),
    "leaky_relu": lambda o, x: o.leaky_relu(x, 0.1),
    "elu": lambda o, x: o.elu(x),
    "gelu": lambda o, x: o.gelu(x),
    "gelu by tanh": lambda o, x: o.gelu(x, approximate=True),
    "softplus": lambda o, x: o.softplus(x),
    "silu": lambda o, x: o.silu(x),
    "hard_sigmoid": lambda o, x: o.hard_sigmoid(x),
    "isclose": lambda o, x: o.isclose(x, 1.0) * x,
    "broadcast_to": lambda o, x: o.broadcast_to((x * x)[:, :1], (4, 6)) * x,
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_gradient_of_a_composite(backend: Backend, name: str) -> None:
    x = numbers(backend, (4, 6), -2.0, 2.1)
    check(backend, COMPOSITES[name](backend, x), [x], 1e-6)


def test_composites_are_all_tested() -> None:
    assert set(composite.COMPOSITES) <= {name.split()[0] for name in COMPOSITES}


MOVEMENTS: dict[str, Callable] = {
    "transpose": lambda o, x: (x * 2).T,
    "permute": lambda o, x: (x * x).transpose(2, 0, 1),
    "reshape": lambda o, x: (x * 2).reshape(6, -1),
    "broadcast": lambda o, x: o.broadcast_to(x * 2, (2, *x.shape)),
    "slice": lambda o, x: (x * x)[1:, ::-2, 0],
    "new axis": lambda o, x: (x * x)[:, None, ..., -1],
    "empty slice": lambda o, x: (x * x)[:0],
    "two slices": lambda o, x: (x * 2)[:1] + (x * x)[1:],
    "cumsum": lambda o, x: o.cumsum(x * x, 1),
    "cumprod": lambda o, x: o.cumprod(x * x + 0.5, 1),
    "take": lambda o, x: o.take(x * x, np.array([2, 0, 2]), 1),
    "take of a matrix": lambda o, x: o.take(x * x, np.array([[1, 0], [2, 2]]), 1),
    "take of all": lambda o, x: o.take(x * x, np.array([5, 0, 5]), None),
}


@pytest.mark.parametrize("name", MOVEMENTS)
def test_gradient_of_a_movement(backend: Backend, name: str) -> None:
    x = numbers(backend, (2, 3, 4))
    check(backend, MOVEMENTS[name](backend, x), [x])


PRODUCTS = [((3, 4), (4, 2)), ((1, 3), (3, 1)), ((2, 3, 4), (4, 5)), ((2, 1, 2, 3), (4, 3, 2)), ((3, 0), (0, 2))]


@pytest.mark.parametrize(("left", "right"), PRODUCTS, ids=str)
def test_gradient_of_dot(backend: Backend, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = numbers(backend, left), numbers(backend, right, seed=1)
    check(backend, backend.tanh(x * 0.5 @ y), [x, y], 1e-6)


def test_gradient_of_a_square_by_dot(backend: Backend) -> None:
    x = numbers(backend, (4, 4))
    check(backend, x @ x + x @ (x * 1.0).T * 0.5, [x])


VIEWS = {
    "transpose": lambda x: x @ x.T,
    "slice": lambda x: x[:1] * x,
    "reversed": lambda x: x[:, ::-1] * x,
    "reshape": lambda x: x.reshape(2, 8) * x.reshape(2, 8),
    "several": lambda x: x.T @ (x[1:2].T + x[:, :1]),
}


@pytest.mark.parametrize("use", VIEWS.values(), ids=VIEWS.keys())
def test_gradient_through_views_of_a_tensor(backend: Backend, use: Any) -> None:
    x = numbers(backend, (4, 4))
    check(backend, use(x), [x])


# Random trees


def squashed(x: Any, low: float, high: float) -> Any:
    """`x` brought smoothly into the middle of an interval, so that whatever comes next is smooth there."""
    return composite.sig(x) * (0.8 * (high - low)) + (low + 0.1 * (high - low))


JUMPS = ("maximum", "minimum", "mod")  # smooth between jumps, which random trees would meet
KINDS = ("op op op sum mean softmax max reshape transpose slice broadcast dot cumsum take").split()


def smooth_tree(backend: Backend, c: Choices) -> tuple[Any, list[Any]]:
    """A random tree of smooth ops on float64 tensors, and the tensors. Parts are shared."""
    lengths = c.of(((3,), (2, 3), (1, 4), (2, 1, 3), ()))
    tensors = [numbers(backend, tuple(1 if c.chance(4) else n for n in lengths), seed=i) for i in range(1 + c.below(3))]
    pool: list[Any] = list(tensors)
    for _ in range(1 + c.below(8)):
        made = smooth_step(backend, c, pool)
        if made is not None and 0 < made.size <= 200:
            pool.append(made)
    return pool[-1] * 1.0, tensors


def smooth_step(backend: Backend, c: Choices, pool: list[Any]) -> Any:
    """One more node on top of some of the pool."""
    x = pool[-1 - c.below(len(pool))] * 1.0  # a view of a tensor would count as a tensor of its own
    kind = c.of(KINDS)
    axis = c.below(max(x.ndim, 1)) - x.ndim if x.ndim else None
    if kind == "op":
        op = c.of([op for op in SMOOTH if op.name not in JUMPS])
        others = [y for y in pool if y.ndim == x.ndim and all(1 in (n, m) or n == m for n, m in zip(x.shape, y.shape))]
        return apply(op, *[squashed(y, *(op.smooth or op.domain)) for y in (x, c.of(others))[: op.arity]])
    if kind in ("sum", "mean"):
        return getattr(backend, kind)(x, axis=axis, keepdims=c.chance(2)) * 0.5
    if kind == "softmax":
        return backend.softmax(x, axis)
    if kind == "max":
        return x * backend.max(pool[0], axis=-1) if pool[0].ndim == 1 == x.ndim else None
    if kind == "reshape":
        return composite.reshape(x, (-1,))
    if kind == "broadcast":
        return backend.broadcast_to(x, (2, *x.shape)) if x.ndim < 4 else None
    if x.ndim == 0:
        return None
    if kind == "transpose":
        return composite.transpose(x, tuple(range(x.ndim))[::-1])
    if kind == "slice":
        return x[c.of((slice(None, None, -1), slice(0, 1), slice(1, None), 0))]
    if kind == "dot":
        return squashed(x, -1, 1) @ composite.swap_last(x) if x.ndim > 1 else None
    if kind == "cumsum":
        return backend.cumsum(x, x.ndim - 1)
    return backend.take(x, np.array([c.below(x.shape[0]), 0]), 0) if x.shape[0] else None


def test_gradients_of_random_trees(backend: Backend) -> None:
    def judge(data: bytes) -> None:
        tree, tensors = smooth_tree(backend, Choices(data))
        note(f"{tree!r}")
        check(backend, tree, tensors, 1e-6)

    examples = settings().max_examples
    count = max(examples // 10, 5) if testing.compiles(backend) else 3 * examples
    settings(max_examples=count)(given(st.binary(min_size=16, max_size=80))(judge))()


# The contract


def test_gradients_come_in_three_forms(backend: Backend) -> None:
    x, y = backend.array([[1.0, 2.0]]), backend.array([[3.0], [4.0]])
    ad = Autodiff(x * y, backend)
    first, second = ad.get_grad_op_tree([y, x])
    assert backend.evaluate(first).tolist() == [[3.0], [3.0]]
    assert backend.evaluate(second).tolist() == [[7.0, 7.0]]
    assert [g.tolist() for g in ad.get_grad_tensor([y, x])] == [[[3.0], [3.0]], [[7.0, 7.0]]]
    host = ad.get_grad_asnumpyarray([y])
    assert [type(g) for g in host] == [np.ndarray]
    assert (host[0].dtype, host[0].tolist()) == (backend.default_dtype, [[3.0], [3.0]])


def test_deep_copies_have_the_gradients_of_the_copied_tensors(backend: Backend) -> None:
    x = backend.array([[1.0, -2.0, 3.0]])
    found = Autodiff(backend.sum(backend.square(x) * (backend.rand(shape=(1, 3)) < 0.5)), backend)
    (tree,) = found.get_grad_op_tree([x])
    expected = tree.get()
    made, (again, y) = copy.deepcopy(tree), copy.deepcopy((found, x))
    x[:] = 0
    np.testing.assert_array_equal(made.get(), expected)
    np.testing.assert_array_equal(again.get_grad_asnumpyarray([y])[0], expected)
    assert not found.get_grad_asnumpyarray([x])[0].any()
    again.cleanup()
    assert copy.deepcopy(again).op_tree is None and found.op_tree is not None


def test_gradient_of_a_tensor_is_the_incoming_one(backend: Backend) -> None:
    x, error = backend.ones((2, 3)), backend.full((2, 3), 5.0)
    assert Autodiff(x, backend).get_grad_tensor([x])[0].tolist() == [[1.0] * 3] * 2
    assert Autodiff(x, backend, error).get_grad_tensor([x])[0].tolist() == [[5.0] * 3] * 2


def test_softplus_is_smooth(backend: Backend) -> None:
    host = np.array([[0.0, -0.0, 35.0, 36.0, 37.0, -800.0, 800.0, -math.inf, math.inf]])
    x = backend.array(host, dtype="float64")
    (first,) = Autodiff(backend.softplus(x), backend).get_grad_op_tree([x])
    (second,) = Autodiff(first, backend).get_grad_tensor([x])
    slopes = 1 / (1 + np.exp(np.minimum(-host, 700)))
    testing.assert_close(backend.evaluate(first).get(), slopes, 1e-15, 1e-300)
    testing.assert_close(second.get(), slopes * (1 - slopes), 1e-15, 1e-14)


def test_gradient_of_a_number_is_zero(backend: Backend) -> None:
    x = backend.ones((2, 3))
    assert Autodiff(3.0, backend).get_grad_tensor([x])[0].tolist() == [[0.0] * 3] * 2


def test_absent_tensors_get_zeros(backend: Backend) -> None:
    x, y = backend.ones((2, 3)), backend.full((4, 1), 7.0)
    ad = Autodiff(backend.exp(x), backend)
    assert ad.get_grad_tensor([y])[0].tolist() == [[0.0]] * 4
    assert ad.get_grad_op_tree([y])[0].shape == (4, 1)
    out = backend.ones((4, 1))
    ad.back_prop_grad([y], [out])
    assert out.tolist() == [[0.0]] * 4


def test_tensors_may_repeat_and_come_in_any_order(backend: Backend) -> None:
    x, y = backend.full((1, 2), 2.0), backend.full((1, 2), 3.0)
    gradients = Autodiff(x * y, backend).get_grad_tensor([y, x, y])
    assert [g.tolist() for g in gradients] == [[[2.0, 2.0]], [[3.0, 3.0]], [[2.0, 2.0]]]


def test_incoming_gradient_of_another_shape_is_refused(backend: Backend) -> None:
    x = backend.ones((2, 3))
    with pytest.raises(ShapeError, match=r"\(3, 2\)"):
        Autodiff(x * x, backend, backend.ones((3, 2)))


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_ties_give_the_gradient_to_both(backend: Backend, name: str) -> None:
    x, y = backend.array([[1.0, 2.0, 3.0]]), backend.array([[1.0, 3.0, 2.0]])
    gx, gy = Autodiff(getattr(backend, name)(x, y), backend).get_grad_tensor([x, y])
    larger = [[1.0, 0.0, 1.0]] if name == "maximum" else [[1.0, 1.0, 0.0]]
    smaller = [[1.0, 1.0, 0.0]] if name == "maximum" else [[1.0, 0.0, 1.0]]
    assert [gx.tolist(), gy.tolist()] == [larger, smaller]


@pytest.mark.parametrize("name", ["max", "min"])
def test_tied_extremes_all_get_the_gradient(backend: Backend, name: str) -> None:
    sign = 1 if name == "max" else -1
    x = backend.array(np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]) * sign)
    (gradient,) = Autodiff(getattr(backend, name)(x, axis=1) * 5, backend).get_grad_tensor([x])
    assert gradient.tolist() == [[0.0, 5.0, 5.0], [5.0, 5.0, 5.0]]


def test_steps_have_no_gradient(backend: Backend) -> None:
    x = backend.array([[0.3, -1.2, 2.0]])
    trees = [x > 1, backend.sgn(x), backend.rint(x), backend.finite(x), backend.argmax(x, axis=1), x != 2, x // 0.7]
    for tree in trees:
        (gradient,) = Autodiff(tree * x if tree.shape == x.shape else tree + 0 * x, backend).get_grad_tensor([x])
        expected = backend.evaluate(tree, dtype="float32").get() if tree.shape == x.shape else np.zeros(x.shape)
        testing.assert_close(gradient.get(), expected, 1e-6)


def test_safelog_has_no_gradient_below_its_floor(backend: Backend) -> None:
    x = backend.array([[0.5, 1e-30, -1.0, 0.0]])
    (gradient,) = Autodiff(backend.safelog(x), backend).get_grad_tensor([x])
    assert gradient.tolist() == [[2.0, 0.0, 0.0, 0.0]]


def test_the_gradient_by_a_divisor_fits_the_remainder(backend: Backend) -> None:
    x, y = (backend.array(v, dtype="float64") for v in ([1.0, 2.5, -0.5, 1.0], [0.1, 1.0, 1.0, math.inf]))
    (g,) = Autodiff(x % y, backend).get_grad_asnumpyarray([y])
    assert g.ravel().tolist() == [-9, -2, 1, 0]  # 1 / 0.1 is rounded to 10, and the remainder is nearly 0.1


def test_back_prop_grad_writes_and_keeps_the_type(backend: Backend) -> None:
    x = backend.full((2, 2), 3.0)
    for dtype in ("float32", "float16", "float64"):
        out = backend.empty((2, 2), dtype=dtype)
        Autodiff(x * x, backend).back_prop_grad([x], [out])
        assert (out.dtype, out.tolist()) == (dtype, [[6.0, 6.0]] * 2)


def test_back_prop_grad_may_overwrite_the_incoming_gradient_last(backend: Backend) -> None:
    x, w = backend.array([[1.0, 2.0]]), backend.array([[3.0], [4.0]])
    error, gw = backend.full((1, 1), 10.0), backend.empty((2, 1))
    gx_and_error = backend.full((1, 2), 2.0)
    Autodiff(x * x, backend, gx_and_error).back_prop_grad([x], [gx_and_error])
    assert gx_and_error.tolist() == [[4.0, 8.0]]
    product = backend.dot(x, w)
    bias = backend.zeros((1, 1))
    Autodiff(product + bias, backend, error).back_prop_grad([bias, w], [error, gw])
    assert gw.tolist() == [[10.0], [20.0]]
    assert error.tolist() == [[10.0]]


def test_back_prop_grad_refuses_memory_of_the_tree(backend: Backend) -> None:
    x, y = backend.full((2, 2), 3.0), backend.full((2, 2), 4.0)
    good = backend.empty((2, 2))
    for bad in (x, y, x[:1], x.T):
        with pytest.raises(ValueError, match="overlap"):
            Autodiff(x * y, backend).back_prop_grad([x, y], [good, bad])
    assert x.tolist() == [[3.0, 3.0]] * 2
    with pytest.raises(ValueError, match="2 tensors, 1 gradients"):
        Autodiff(x * y, backend).back_prop_grad([x, y], [good])


def test_back_prop_grad_checks_all_before_it_writes(backend: Backend) -> None:
    x, y = backend.array([[1.0, 2.0, 3.0]]), backend.array([[4.0, 5.0, 6.0]])
    good, wide = backend.full((1, 3), 9.0), backend.full((3, 3), 9.0)
    for kind, bad in [
        (ShapeError, wide), (ShapeError, backend.empty((1, 1))), (TypeError, None), (TypeError, np.zeros((1, 3))),
    ]:  # fmt: skip
        with pytest.raises(kind, match="back_prop_grad"):
            Autodiff(x * y, backend).back_prop_grad([x, y], [good, bad])
    with pytest.raises(TypeError, match="OpTreeNode"):
        Autodiff(x * y, backend).back_prop_grad([x, x * 2], [good, backend.empty((1, 3))])
    assert (good.tolist(), wide.tolist()) == ([[9.0] * 3], [[9.0] * 3] * 3)


def test_back_prop_grad_refuses_memory_that_a_later_gradient_reads(backend: Backend) -> None:
    x, y, error = (backend.array([[v, v + 1.0, v + 2.0]]) for v in (1.0, 4.0, 7.0))
    first, second = backend.empty((1, 3)), backend.empty((1, 3))
    absent, flag = backend.ones((1, 2)), backend.array([[1, 0, 1]])
    refused = [
        (x * y, error, [x, y], [first, first]),
        (x * y, error, [x, y], [error, error]),
        (x * y, error, [absent, y], [error[:, 1:], second]),
        (x * y, error * 2, [x, y], [error, second]),
        (backend.greater(flag, 0) * x * y, error, [x, y], [flag, second]),  # flag has no gradient, and is read
    ]
    for tree, incoming, tensors, out in refused:
        with pytest.raises(ValueError, match="overlaps"):
            Autodiff(tree, backend, incoming).back_prop_grad(tensors, out)
    assert error.tolist() == [[7.0, 8.0, 9.0]]


def test_what_is_no_tree_or_gradient_is_refused(backend: Backend) -> None:
    x = backend.ones((1, 3))
    for tree, incoming in [("x", None), (np.ones((1, 3)), None), (x * x, 2.0), (x * x, np.ones((1, 3)))]:
        with pytest.raises(TypeError, match="Autodiff: (op_tree|next_error)"):
            Autodiff(tree, backend, incoming)
    for asked in (x * 2, 3.0):
        with pytest.raises(TypeError, match="no tensor to differentiate by"):
            Autodiff(x * x, backend).get_grad_tensor([asked])


def test_gradients_see_the_mask_of_the_value(backend: Backend) -> None:
    x = backend.ones((50, 40))
    mask = backend.dropout(0.5)
    tree = x * mask + mask
    ad = Autodiff(tree, backend)
    value = backend.evaluate(tree).get() / 2
    (first,) = ad.get_grad_tensor([x])
    (second,) = ad.get_grad_tensor([x])
    assert 0.3 < value.mean() < 0.7
    assert (first.get() == value).all()
    assert (second.get() == value).all()


def test_deep_chains(backend: Backend) -> None:
    x = backend.full((1, 3), 1.0, dtype="float64")
    tree = x
    for _ in range(5000):
        tree = tree * 1.0001
    (gradient,) = Autodiff(tree, backend).get_grad_tensor([x])
    testing.assert_close(gradient.get(), np.full((1, 3), 1.0001**5000), 1e-12)


def test_gradients_of_float64_are_worked_out_in_float64(backend: Backend) -> None:
    x = backend.full((1, 1), 1.0, dtype="float64")
    (gradient,) = Autodiff(x * 1.1, backend).get_grad_op_tree([x])
    assert gradient.dtype == np.float64
    assert backend.evaluate(gradient).item() == 1.1


def test_shared_parts_cost_no_more_than_their_nodes(backend: Backend) -> None:
    x = backend.full((1, 3), 1.0, dtype="float64")
    tree = x
    for _ in range(60):
        tree = tree * 0.5 + tree * 0.5
    (gradient,) = Autodiff(tree, backend).get_grad_tensor([x])
    assert gradient.tolist() == [[1.0] * 3]


def test_gradients_of_gradients(backend: Backend) -> None:
    x = numbers(backend, (5,))
    tree = backend.sin(x) * x * x
    (slope,) = Autodiff(tree, backend).get_grad_op_tree([x])
    check(backend, slope, [x])
    (curvature,) = Autodiff(slope, backend).get_grad_tensor([x])
    host = x.get()
    expected = 2 * np.sin(host) + 4 * host * np.cos(host) - host * host * np.sin(host)
    testing.assert_close(curvature.get(), expected, 1e-12, 1e-12)


def test_views_of_one_buffer_have_gradients_of_their_own(backend: Backend) -> None:
    whole = numbers(backend, (4, 3))
    top, bottom = whole[:2], whole[2:]
    gt, gb, gw = Autodiff(top * bottom, backend).get_grad_tensor([top, bottom, whole])
    assert (gt.get() == bottom.get()).all()
    assert (gb.get() == top.get()).all()
    np.testing.assert_array_equal(gw.get(), np.concatenate([bottom.get(), top.get()]))
    (again,) = Autodiff(top * bottom, backend).get_grad_tensor([whole[:2]])
    assert (again.get() == bottom.get()).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_halves(backend: Backend, dtype: str) -> None:
    x = backend.array([[1.5, -2.0]], dtype=dtype)
    (gradient,) = Autodiff(x * x * 3, backend).get_grad_tensor([x])
    assert (gradient.dtype, gradient.tolist()) == (x.dtype, [[9.0, -12.0]])


def test_integers_get_no_gradient(backend: Backend) -> None:
    x, n = backend.array([[1.5, 2.0]]), backend.array([[2, 3]], dtype="int32")
    gx, gn = Autodiff(x * n, backend).get_grad_tensor([x, n])
    assert gx.tolist() == [[2.0, 3.0]]
    assert (gn.dtype, gn.tolist()) == (np.int32, [[0, 0]])


def test_cleanup_lets_go_of_tensors(backend: Backend) -> None:
    x = backend.ones((2, 2))
    gone = weakref.ref(x)
    ad = Autodiff(x * 2, backend)
    ad.cleanup()
    del x
    gc.collect()
    assert gone() is None
    assert ad.op_tree is None
    with pytest.raises(ValueError, match=r"after cleanup"):  # it gave zeros
        ad.get_grad_tensor([backend.ones((2, 2))])


def test_dropping_autodiff_lets_go_of_tensors(backend: Backend) -> None:
    x = backend.ones((2, 2))
    gone = weakref.ref(x)
    ad = Autodiff(backend.exp(x) * x, backend)
    ad.get_grad_tensor([x])
    del ad, x
    gc.collect()
    assert gone() is None


EXTREMES = [
    ("div", 1, (1e-30, 1e-30), -1e30),
    ("div", 1, (0.0, 1e-40), 0.0),
    ("div", 1, (1e25, 1e25), -1e-25),
    ("arctan2", 0, (1e-25, 1e-25), 0.5e25),
    ("arctan2", 1, (1e25, 1e25), -0.5e-25),
    ("arctan2", 0, (1e-30, 1e25), 1e-25),
    ("arctan2", 1, (0.0, 1e-40), 0.0),
    ("arctan2", 0, (math.inf, 0.0), 0.0),
    ("arctan2", 1, (1.0, -math.inf), 0.0),
    ("expm1", 0, (-20.0,), 2.0611536e-9),
    ("arcsinh", 0, (1e30,), 1e-30),
    ("arcsinh", 0, (-math.inf,), 0.0),
    ("arccosh", 0, (1e30,), 1e-30),
    ("arcsin", 0, (1 - 2.0**-24,), 2896.309376),
    ("arccos", 0, (2.0**-24 - 1,), -2896.309376),
    ("arctanh", 0, (1 - 2.0**-24,), 2.0**23 / (1 - 2.0**-25)),
]
"""(op, operand, where, derivative) at which a square of an operand overflows, vanishes, or loses its digits."""


@pytest.mark.parametrize("name, operand, values, wanted", EXTREMES)
def test_gradients_far_from_one(backend: Backend, name: str, operand: int, values: tuple, wanted: float) -> None:
    operands = [backend.array([value], dtype="float32", min_dims=0) for value in values]
    tree = apply(ops.OPS[name], *operands)
    (found,) = Autodiff(tree, backend).get_grad_asnumpyarray([operands[operand]])
    assert found.item() == pytest.approx(wanted, rel=1e-5)
