# SPDX-License-Identifier: Apache-2.0
"""Products: values against float64 with derived tolerances, all forms of the arguments, refusals that write nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, BackendError, DTypeError, ShapeError, dtypes

pytestmark = pytest.mark.rehearsed

FLOATS = pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=str)
INTEGERS = pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Half the distance from 1 to the next number: the largest relative error of one rounding."""

SIZES = [(1, 1, 1), (3, 4, 5), (1, 7, 1), (1, 1, 6), (17, 1, 9), (33, 65, 31), (128, 300, 2), (2, 300, 128)]
EMPTY = [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)]
LAYOUTS: dict[str, tuple[Callable, Callable]] = {
    "contiguous": (lambda x: x, lambda t: t),
    "transposed": (lambda x: x.T, lambda t: t.T),
    "strided": (lambda x: np.repeat(np.repeat(x, 2, -2), 3, -1), lambda t: t[..., ::2, ::3]),
    "reversed": (lambda x: x[..., ::-1, ::-1], lambda t: t[..., ::-1, ::-1]),
    "columns": (lambda x: np.repeat(x, 2, -1), lambda t: t[..., ::2]),
}
"""For each layout, what is stored and which view of it has the numbers asked for."""


def draw(*shape: int, dtype: Any = np.float64, seed: int = 0) -> np.ndarray:
    """Numbers of a type: normal for floats, small whole numbers for integers."""
    random = np.random.default_rng([seed, *shape])
    dtype = np.dtype(dtype)
    if dtypes.is_float(dtype):
        return random.standard_normal(shape).astype(np.float32 if dtypes.is_half(dtype) else dtype).astype(dtype)
    return random.integers(0 if dtype.kind == "u" else -4, 5, shape).astype(dtype)


def placed(backend: Any, host: np.ndarray, layout: str = "contiguous") -> Any:
    """A tensor with the numbers of `host` on memory of a layout."""
    stored, view = LAYOUTS[layout]
    tensor = view(backend.array(stored(host), dtype=host.dtype, min_dims=0))
    np.testing.assert_array_equal(tensor.get(), host)
    return tensor


def wide(x: np.ndarray) -> np.ndarray:
    """The numbers in float64 (float64 itself in extended precision)."""
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def bound(scale: np.ndarray, terms: int, dtype: Any) -> np.ndarray:
    """The error allowed of a sum of `terms` products whose magnitudes add up to `scale`.

    Adding k terms in any order costs at most (k + 3) eps of the magnitudes (Higham 2002, section 3.1); halves add up in
    float32 and are rounded once.
    """
    name = np.dtype(dtype).name
    inner = EPSILON["float32" if dtypes.is_half(np.dtype(dtype)) else name]
    return (terms + 3) * inner * scale + EPSILON[name] * scale + np.finfo(np.float32).tiny


def assert_near(actual: np.ndarray, expected: np.ndarray, error: np.ndarray) -> None:
    """Every element within its bound."""
    assert actual.shape == expected.shape
    excess = np.abs(wide(actual) - expected) - error
    assert np.all(excess <= 0), f"beyond the bound by {excess.max()} at {np.argwhere(~(excess <= 0))[0]}"


def check_product(actual: np.ndarray, a: np.ndarray, b: np.ndarray, dtype: Any) -> None:
    """`actual` against a times b."""
    scale = np.abs(wide(a)) @ np.abs(wide(b))
    assert_near(actual, wide(a) @ wide(b), bound(scale, a.shape[-1], dtype))


# dot


@FLOATS
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_dot_of_floats(backend, dtype, size) -> None:
    m, k, n = size
    a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
    out = backend.dot(placed(backend, a), placed(backend, b), backend.empty((m, n), dtype=dtype))
    assert out.dtype == dtype
    check_product(out.get(), a, b, dtype)


@INTEGERS
@pytest.mark.parametrize("size", [(3, 4, 5), (17, 40, 9)], ids=str)
def test_dot_of_integers_is_exact_in_64_bits(backend, dtype, size) -> None:
    m, k, n = size
    a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
    product = backend.evaluate(backend.dot(placed(backend, a), placed(backend, b)))
    expected = a.astype(product.dtype) @ b.astype(product.dtype)
    assert product.dtype == (np.uint64 if dtype.kind == "u" else np.int64)
    np.testing.assert_array_equal(product.get(), expected)


def test_dot_of_large_int64_keeps_its_bits(backend) -> None:
    a, b = np.array([[2**40 + 1, 3]]), np.array([[2**20], [2**61]])
    product = backend.evaluate(backend.dot(placed(backend, a), placed(backend, b)))
    assert product.item() == (2**40 + 1) * 2**20 + 3 * 2**61 - 2**64 * (((2**40 + 1) * 2**20 + 3 * 2**61) >> 63)


@pytest.mark.parametrize("size", EMPTY, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_empty_products_are_zero(backend, size, dtype) -> None:
    m, k, n = size
    product = backend.evaluate(backend.dot(backend.zeros((m, k), dtype=dtype), backend.zeros((k, n), dtype=dtype)))
    np.testing.assert_array_equal(product.get(), np.zeros((m, n)))
    out = backend.ones((m, n), dtype=dtype)
    backend.compound_dot(backend.zeros((m, k), dtype=dtype), backend.zeros((k, n), dtype=dtype), out)
    np.testing.assert_array_equal(out.get(), np.zeros((m, n)))


@pytest.mark.parametrize(("left", "right"), list(itertools.product(LAYOUTS, LAYOUTS)))
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_dot_of_any_layout(backend, left, right, dtype) -> None:
    a, b = draw(9, 20, dtype=dtype), draw(20, 7, dtype=dtype, seed=1)
    x, y = placed(backend, a, left), placed(backend, b, right)
    check_product(backend.evaluate(backend.dot(x, y)).get(), a, b, dtype)
    out = backend.zeros((7, 9), dtype=dtype)
    out.T[:] = backend.dot(x, y)
    check_product(out.T.get(), a, b, dtype)
    out = backend.zeros((18, 14), dtype=dtype)
    out[::2, ::-2] = backend.dot(x, y)
    check_product(out[::2, ::-2].get(), a, b, dtype)
    assert not out[1::2].get().any()


def test_dot_of_trees(backend) -> None:
    a, b = draw(5, 6, dtype=np.float32), draw(6, 4, dtype=np.float32, seed=1)
    x, y = placed(backend, a), placed(backend, b)
    tree = backend.dot(x * 2 - 1, backend.dot(y, y.T)) + backend.sum(x, axis=1)
    expected = (wide(a) * 2 - 1) @ (wide(b) @ wide(b).T) + wide(a).sum(1, keepdims=True)
    np.testing.assert_allclose(backend.evaluate(tree).get(), expected, rtol=1e-4, atol=1e-4)
    for form in (backend.dot(x, y).T, backend.dot(y.T, x.T)):
        check_product(backend.evaluate(form).get(), b.T, a.T, np.float32)


def test_dot_of_mixed_types_promotes(backend) -> None:
    a, b = draw(5, 6, dtype=np.float32), draw(6, 4, dtype=np.float64, seed=1)
    product = backend.evaluate(backend.dot(placed(backend, a), placed(backend, b)))
    assert product.dtype == np.float64
    check_product(product.get(), a.astype(np.float64), b, np.float64)
    counts = draw(5, 6, dtype=np.int8)
    mixed = backend.evaluate(backend.dot(placed(backend, counts), placed(backend, b.astype(np.float32))))
    assert mixed.dtype == np.float32
    check_product(mixed.get(), counts.astype(np.float32), b.astype(np.float32), np.float32)


def test_infinities_and_nan_pass_through_products(backend) -> None:
    a = np.array([[np.inf, 1], [np.nan, 0], [0, 0]], np.float32)
    product = backend.evaluate(backend.dot(placed(backend, a), backend.ones((2, 2)))).get()
    np.testing.assert_array_equal(product, [[np.inf] * 2, [np.nan] * 2, [0] * 2])


# matmul


MATMUL = [
    ((4,), (4,)),
    ((3, 4), (4,)),
    ((4,), (4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (6, 4, 5)),
    ((2, 0, 4), (4, 5)),
    ((0, 3, 4), (4, 5)),
]


@pytest.mark.parametrize("shapes", MATMUL, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_matmul_is_numpy_s(backend, shapes, dtype) -> None:
    a, b = draw(*shapes[0], dtype=dtype), draw(*shapes[1], dtype=dtype, seed=1)
    product = backend.evaluate(backend.matmul(placed(backend, a), placed(backend, b))).get()
    expected = np.matmul(wide(a), wide(b))
    assert_near(product, expected, bound(np.matmul(np.abs(wide(a)), np.abs(wide(b))), a.shape[-1], dtype))


def test_the_operator_of_matrices(backend) -> None:
    a, b = draw(3, 4, dtype=np.float32), draw(4, 5, dtype=np.float32)
    check_product(backend.evaluate(placed(backend, a) @ placed(backend, b)).get(), a, b, np.float32)


# compound_dot


THREE_LAYOUTS = list(itertools.product(["contiguous", "transposed", "strided"], repeat=3))


@pytest.mark.parametrize("function", ["compound_dot", "cublas_dot"])
@pytest.mark.parametrize("alpha", [1.0, -0.5, 0.0])
@pytest.mark.parametrize("beta", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, "bfloat16"])
def test_scaled_products(backend, function, alpha, beta, dtype) -> None:
    dtype = dtypes.as_dtype(dtype)
    a, b, c = (draw(*s, dtype=dtype, seed=i) for i, s in enumerate([(6, 30), (30, 5), (6, 5)]))
    out = placed(backend, c)
    assert getattr(backend, function)(placed(backend, a), placed(backend, b), out, alpha, beta) is out
    scale = abs(alpha) * (np.abs(wide(a)) @ np.abs(wide(b))) + abs(beta) * np.abs(wide(c))
    assert_near(out.get(), alpha * (wide(a) @ wide(b)) + beta * wide(c), bound(scale, 33, dtype))


@pytest.mark.parametrize("alpha", [1.0, -2.0])
@pytest.mark.parametrize("beta", [0.0, -1.0])
def test_relu_acts_before_the_beta_term(backend, alpha, beta) -> None:
    a, b, c = (draw(*s, dtype=np.float32, seed=i) for i, s in enumerate([(6, 3), (3, 5), (6, 5)]))
    out = placed(backend, c)
    backend.compound_dot(placed(backend, a), placed(backend, b), out, alpha, beta, relu=True)
    expected = np.maximum(alpha * (wide(a) @ wide(b)), 0) + beta * wide(c)
    np.testing.assert_allclose(out.get(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("relu", [False, True])
def test_row_sums_are_those_of_the_new_matrix(backend, n, relu) -> None:
    a, b, c = (draw(*s, dtype=np.float32, seed=i) for i, s in enumerate([(6, 3), (3, n), (6, n)]))
    out, sums = placed(backend, c), backend.full((6, 1), 99.0)
    backend.compound_dot(placed(backend, a), placed(backend, b), out, 0.5, 1.0, relu, bsum=sums)
    product = 0.5 * (wide(a) @ wide(b))
    expected = (np.maximum(product, 0) if relu else product) + wide(c)
    np.testing.assert_allclose(out.get(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums.get(), out.get().sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layouts", THREE_LAYOUTS, ids="-".join)
def test_compound_dot_of_views(backend, layouts) -> None:
    a, b, c = (draw(*s, dtype=np.float32, seed=i) for i, s in enumerate([(6, 8), (8, 5), (6, 5)]))
    x, y, z = (placed(backend, host, layout) for host, layout in zip((a, b, c), layouts))
    backend.compound_dot(x, y, z, alpha=0.5, beta=2.0)
    np.testing.assert_allclose(z.get(), 0.5 * (wide(a) @ wide(b)) + 2 * wide(c), rtol=1e-5, atol=1e-5)


@INTEGERS
def test_compound_dot_of_integers(backend, dtype) -> None:
    a, b, c = (np.abs(draw(*s, dtype=dtype, seed=i)) for i, s in enumerate([(3, 4), (4, 5), (3, 5)]))
    out = placed(backend, c)
    backend.compound_dot(placed(backend, a), placed(backend, b), out, alpha=2, beta=3)
    expected = 2 * (a.astype(np.int64) @ b.astype(np.int64)) + 3 * c.astype(np.int64)
    np.testing.assert_array_equal(out.get(), expected.astype(dtype))


@pytest.mark.parametrize("scale", [float, np.float16, np.float32, np.int8])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_products_of_large_integers_are_exact_for_whole_scales(backend, dtype, scale) -> None:
    a, b, c = (np.array(x, dtype) for x in ([[1, 1]], [[2**24 + 1], [2]], [[2**24 + 5]]))
    for beta in (0, 3):
        out = placed(backend, c)
        backend.compound_dot(placed(backend, a), placed(backend, b), out, scale(2), scale(beta), relu=True)
        assert out.item() == 2 * (2**24 + 3) + beta * (2**24 + 5)
        out, batch = placed(backend, c), placed(backend, np.stack([a, a]))
        backend.batched_dot(batch, placed(backend, b), out, scale(2), scale(beta))
        assert out.item() == 4 * (2**24 + 3) + beta * (2**24 + 5)


def test_scales_of_unsigned_products_may_be_negative_and_no_integers(backend) -> None:
    ones = backend.ones((2, 2), dtype=np.uint8)
    for alpha, beta, expected in ((-10.0, 1.0, 30), (0.5, 0.25, 13), (5.0, float("nan"), 0)):
        out = backend.full((1, 1), 50, dtype=np.uint8)
        assert backend.compound_dot(ones[:1], ones[:, :1], out, alpha, beta).item() == expected


def test_beta_zero_does_not_read_the_target(backend) -> None:
    out = backend.full((2, 2), np.nan)
    backend.compound_dot(backend.ones((2, 3)), backend.ones((3, 2)), out, beta=0.0)
    assert out.tolist() == [[3.0, 3.0]] * 2


def test_repeat_and_tile_hints_change_nothing(backend) -> None:
    out = backend.zeros((2, 2))
    backend.compound_dot(backend.ones((2, 3)), backend.ones((3, 2)), out, repeat=3, size="32x128")
    assert out.tolist() == [[3.0, 3.0]] * 2


# batched_dot


def batched(a: np.ndarray, b: np.ndarray, summed: bool) -> np.ndarray:
    """The products of batches by a plain loop."""
    count = max(x.shape[0] for x in (a, b) if x.ndim == 3)
    products = [(a[i] if a.ndim == 3 else a) @ (b[i] if b.ndim == 3 else b) for i in range(count)]
    return np.sum(products, axis=0) if summed else np.stack(products)


BATCHES = [(a, b, c) for a, b in [(3, 3), (2, 3), (3, 2)] for c in (2, 3)]


@pytest.mark.parametrize("ranks", BATCHES, ids=str)
@pytest.mark.parametrize(("alpha", "beta", "relu"), [(1.0, 0.0, False), (-0.5, 2.0, False), (2.0, 1.0, True)])
@pytest.mark.parametrize("count", [1, 4])
def test_batched_dot(backend, ranks, alpha, beta, relu, count) -> None:
    shapes = [(count, 6, 5), (count, 5, 7), (count, 6, 7)]
    a, b, c = (draw(*s[3 - r :], dtype=np.float32, seed=i) for i, (s, r) in enumerate(zip(shapes, ranks)))
    out = placed(backend, c)
    assert backend.batched_dot(placed(backend, a), placed(backend, b), out, alpha, beta, relu) is out
    product = alpha * batched(wide(a), wide(b), ranks[2] == 2)
    expected = (np.maximum(product, 0) if relu else product) + beta * wide(c)
    scale = abs(alpha) * batched(np.abs(wide(a)), np.abs(wide(b)), ranks[2] == 2) + np.abs(beta * wide(c))
    assert_near(out.get(), expected, bound(scale, 5 * count + 4, np.float32))


def test_the_three_passes_of_a_batched_dense_layer(backend) -> None:
    w, i, e = (draw(*s, dtype=np.float32, seed=k) for k, s in enumerate([(5, 4), (3, 4, 6), (3, 5, 6)]))
    weights, inputs, errors = backend.array(w), backend.array(i), backend.array(e)
    outputs, deltas, update = backend.empty((3, 5, 6)), backend.empty((3, 4, 6)), backend.empty((5, 4))
    backend.batched_dot(weights, inputs, outputs)
    backend.batched_dot(weights.T, errors, deltas)
    backend.batched_dot(errors, inputs.T, update)
    np.testing.assert_allclose(outputs.get(), wide(w) @ wide(i), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(deltas.get(), wide(w).T @ wide(e), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(update.get(), np.einsum("xob,xib->oi", wide(e), wide(i)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int32])
def test_batched_dot_of_other_types(backend, dtype) -> None:
    a, b = draw(3, 4, 5, dtype=dtype), draw(3, 5, 2, dtype=dtype, seed=1)
    out = backend.zeros((3, 4, 2), dtype=dtype)
    backend.batched_dot(placed(backend, a), placed(backend, b), out)
    np.testing.assert_allclose(out.get().astype(float), wide(a) @ wide(b), rtol=2e-3, atol=2e-3)


# Signs


@pytest.mark.parametrize("k", [1, 31, 32, 100])
def test_product_of_signs(backend, k) -> None:
    a, b = draw(5, k), draw(k, 4, seed=1)
    a[0, 0] = 0
    out, sums = backend.full((5, 4), 9.0), backend.full((5, 1), 9.0)
    x, y = backend.array(a), backend.array(b)
    assert backend.xnor_compound_dot(x, y, out, beta=5.0, bsum=sums) is out
    bits = (a >= 0)[:, :, None] ^ (b >= 0)[None]
    expected = k - 2 * bits.sum(axis=1)
    np.testing.assert_array_equal(out.get(), expected)
    np.testing.assert_array_equal(sums.get(), expected.sum(1, keepdims=True))


# copy_transpose


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_copy_transpose_of_any_rank(backend, rank) -> None:
    host = draw(*range(2, 2 + rank), dtype=np.float32)
    a = placed(backend, host)
    for axes in [None, *itertools.islice(itertools.permutations(range(rank)), 0, None, 7)]:
        expected = host.transpose(axes)
        out = backend.zeros(expected.shape, min_dims=0)
        assert backend.copy_transpose(a, out, axes) is out
        np.testing.assert_array_equal(out.get(), expected)


@pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(70, 130), (1, 5), (0, 3)], ids=str)
def test_copy_transpose_of_any_type(backend, dtype, shape) -> None:
    host = draw(*shape).astype(dtype)
    out = backend.zeros(shape[::-1], dtype=dtype)
    backend.copy_transpose(backend.array(host, dtype=dtype), out)
    np.testing.assert_array_equal(out.get(), host.T)


# compensated_sum


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_compensated_sum_keeps_what_rounding_loses(backend, dtype) -> None:
    """A thousand steps each below half a rounding unit of the sum: a plain sum would never move."""
    eps = np.finfo(dtype).eps
    total, low = backend.ones((2, 3), dtype=dtype), backend.zeros((2, 3), dtype=dtype)
    step = backend.full((2, 3), float(eps) / 4, dtype=dtype)
    plain = backend.ones((2, 3), dtype=dtype)
    for _ in range(1000):
        backend.compensated_sum(total, low, step)
        plain[:] = plain + step
    assert np.all(plain.get() == 1)
    exact = 1 + 250 * float(eps)
    assert np.all(np.abs(wide(total.get()) + wide(low.get()) - exact) <= 4 * float(eps))


def test_compensated_sum_follows_its_formula(backend) -> None:
    s, c, a = (draw(3, 4, dtype=np.float32, seed=i) for i in range(3))
    total, low = backend.array(s), backend.array(c)
    backend.compensated_sum(total, low, backend.array(a), cmp_scale=0.5, add_scale=-2.0)
    y = (a * np.float32(-2) + c * np.float32(0.5)).astype(np.float32)
    t = s + y
    np.testing.assert_array_equal(total.get(), t)
    np.testing.assert_array_equal(low.get(), y - (t - s))


def test_compensation_is_dropped_when_its_count_passes_the_limit(backend) -> None:
    total, low, nothing = backend.zeros((1, 1)), backend.full((1, 1), 0.5), backend.zeros((1, 1))
    low.kahan_reset, low.kahan_count = 2, 3
    backend.compensated_sum(total, low, nothing)
    assert (total.item(), low.kahan_count) == (0.0, 1)
    low.fill(0.5)
    backend.compensated_sum(total, low, nothing)
    assert total.item() == 0.5
    with pytest.raises(BackendError, match="different backends"):
        backend.compensated_sum(total, low, Backend.allocate_backend("cpu", jit=False).zeros((1, 1)))
    assert low.kahan_count == 2


# Biases, softmax, clip and the like


def test_biases_of_a_dense_layer(backend) -> None:
    e, bias = draw(4, 9, dtype=np.float32), draw(4, 1, dtype=np.float32)
    grad = backend.empty((4, 1))
    assert backend.update_fc_bias(backend.array(e), grad) is grad
    np.testing.assert_allclose(grad.get(), wide(e).sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    inputs = backend.array(e)
    assert backend.add_fc_bias(inputs, backend.array(bias)) is inputs
    np.testing.assert_array_equal(inputs.get(), e + bias)


@pytest.mark.parametrize("axis", [0, 1])
@FLOATS
def test_softmax(backend, axis, dtype) -> None:
    host = draw(7, 9, dtype=dtype)
    out = backend.empty((7, 9), dtype=dtype)
    out[:] = backend.fprop_softmax(placed(backend, host), axis)
    e = np.exp(wide(host) - wide(host).max(axis, keepdims=True))
    np.testing.assert_allclose(wide(out.get()), e / e.sum(axis, keepdims=True), rtol=16 * EPSILON[np.dtype(dtype).name])


def test_softmax_does_not_overflow(backend) -> None:
    value = backend.evaluate(backend.fprop_softmax(backend.array([[1e4, 1e4, -1e4]]), 1)).get()
    np.testing.assert_array_equal(value, [[0.5, 0.5, 0.0]])


def test_clip_keeps_nan(backend) -> None:
    host = np.array([[-3, 0.5, np.nan, 9, np.inf, -np.inf]], np.float32)
    clipped = backend.evaluate(backend.clip(backend.array(host), -1, 2))
    np.testing.assert_array_equal(clipped.get(), np.clip(host, -1, 2))
    out = backend.empty((1, 6))
    assert backend.clip(backend.array(host), 0, 1, out=out) is out
    np.testing.assert_array_equal(out.get(), np.clip(host, 0, 1))


def test_binarize_by_sign(backend) -> None:
    host = np.array([[-2, -0.0, 0, 0.1, 5, -1e-9]], np.float32)
    out = backend.empty((1, 6))
    assert backend.binarize(backend.array(host), out, stochastic=False) is out
    np.testing.assert_array_equal(out.get(), [[-1, 1, 1, 1, 1, -1]])


SHIFTS = np.array([[1, 2, 3, -3, 0, 0.3, 1.4142, 1.4143, -0.5, 100, 2.0**-20]], np.float32)


def nearest_power(s: np.ndarray) -> np.ndarray:
    """sgn(s) 2^rint(log2 |s|), 0 for 0, in float64."""
    wide_s = s.astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.where(wide_s == 0, 0, np.sign(wide_s) * 2.0 ** np.rint(np.log2(np.abs(wide_s))))


@pytest.mark.parametrize("shape", [(3, 11), (1, 11), (3, 1), (1, 1)], ids=str)
def test_shift_multiplies_by_the_nearest_power_of_two(backend, shape) -> None:
    host = draw(3, 11, dtype=np.float32)
    by = np.resize(SHIFTS, shape)
    made = backend.shift(backend.array(host), backend.array(by))
    np.testing.assert_array_equal(made.get(), host * nearest_power(by))
    out = backend.empty((3, 11))
    assert backend.shift(backend.array(host), backend.array(by), True, out) is out
    np.testing.assert_array_equal(out.get(), made.get())


def test_shift_by_exponents(backend) -> None:
    host = draw(2, 3, dtype=np.float32)
    exponents = np.array([[-3, 0, 4]], np.float32)
    made = backend.shift(backend.array(host), backend.array(exponents), value=False)
    np.testing.assert_array_equal(made.get(), host * np.exp2(exponents))
    np.testing.assert_array_equal(backend.shift(backend.array(host), 3, value=False).get(), host * 8)


def test_shift_of_a_number_is_one_element(backend) -> None:
    made = backend.shift(3.0, 5.0)
    assert (made.shape, made.item()) == ((1, 1), 12.0)


def test_shift_keeps_type_and_rank(backend) -> None:
    host = np.array([1 + 2.0**-40, 3.0])
    made = backend.shift(backend.array(host, dtype=np.float64, min_dims=0), 4.0)
    np.testing.assert_array_equal(made.get(), host * 4, strict=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [np.int32, np.uint8, np.float32, int])
def test_shift_takes_exponents_whose_power_the_type_does_not_hold(backend, dtype, kind) -> None:
    host = np.array([[1.5, -(2.0**-120), 0.0]], dtype)
    for exponent in (200, 127) if kind is np.uint8 else (200, 127, -126, -200):
        by = exponent if kind is int else backend.full((1, 1), exponent, dtype=kind)
        made = backend.shift(backend.array(host, dtype=dtype), by, value=False)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(made.get(), np.ldexp(host, exponent), strict=True)


def test_shift_by_integers_keeps_the_type(backend) -> None:
    for dtype in dtypes.FLOATS:
        for value, expected in ((True, 12), (False, 48)):
            made = backend.shift(backend.full((1, 2), 3.0, dtype=dtype), backend.full((1, 1), 4, dtype=np.int32), value)
            np.testing.assert_array_equal(made.get(), np.full((1, 2), expected, dtype), strict=True)
    integers = backend.shift(backend.full((1, 1), 5, dtype=np.int32), backend.full((1, 1), 4, dtype=np.uint8), False)
    assert (integers.dtype, integers.item()) == (backend.default_dtype, 80)


def test_shift_by_numbers_near_the_largest(backend) -> None:
    by = np.array([[2.0**127, 1.7e38, -(2.0**126), 2.0**-149]], np.float32)
    made = backend.shift(backend.ones((1, 4)), backend.array(by))
    np.testing.assert_array_equal(made.get(), nearest_power(by).astype(np.float32))


# onehot, take, cumsum


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("column", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.uint8, np.int64])
def test_onehot(backend, axis, column, dtype) -> None:
    places = np.array([2, 0, 3, 7, 1], dtype)
    indices = backend.array(places.reshape(-1, 1) if column else places.reshape(1, -1), dtype=dtype)
    expected = (np.arange(4)[:, None] == places).astype(np.float32)
    expected = expected if axis == 0 else expected.T
    out = backend.empty(expected.shape)
    assert backend.onehot(indices, axis, out) is out
    np.testing.assert_array_equal(out.get(), expected)
    scores = draw(*expected.shape, dtype=np.float32)
    picked = backend.evaluate(backend.array(scores) * backend.onehot(indices, axis) - 1)
    np.testing.assert_array_equal(picked.get(), scores * expected - 1)


@pytest.mark.parametrize("dtype", dtypes.DTYPES, ids=str)
def test_take_of_any_type(backend, dtype) -> None:
    host = draw(5, 6).astype(dtype)
    t = backend.array(host, dtype=dtype)
    for axis, places in ((0, [4, 0, 0]), (1, [5, -1, 2]), (-1, [0])):
        taken = backend.evaluate(backend.take(t, places, axis))
        np.testing.assert_array_equal(taken.get(), np.take(host, places, axis), strict=True)


def test_take_of_views_and_index_arrays_of_any_rank(backend) -> None:
    host = draw(3, 4, 5, dtype=np.float32)
    t = backend.array(host)
    places = np.array([[1, 0], [2, 3]])
    taken = backend.evaluate(backend.take(t[::-1], places, 1))
    np.testing.assert_array_equal(taken.get(), np.take(host[::-1], places, 1))
    np.testing.assert_array_equal(backend.evaluate(backend.take(t, [7, 59], None)).get(), host.reshape(-1, 1)[[7, 59]])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@FLOATS
def test_cumsum_of_floats(backend, axis, dtype) -> None:
    host = draw(5, 6, 7, dtype=dtype)
    sums = backend.evaluate(backend.cumsum(placed(backend, host), axis))
    assert sums.dtype == dtype
    scale = np.cumsum(np.abs(wide(host)), axis)
    assert_near(sums.get(), np.cumsum(wide(host), axis), bound(scale, host.shape[axis], dtype))


@pytest.mark.parametrize("axis", [0, -1])
@FLOATS
def test_cumprod_of_floats(backend, axis, dtype) -> None:
    """Each factor rounds once: n of them are off by n ulps of the product, and halves by one of theirs."""
    host = (1 + draw(5, 6, 7, dtype=dtype) / 4).astype(dtype)  # no product is subnormal
    products = backend.evaluate(backend.cumprod(placed(backend, host), axis))
    assert products.dtype == dtype
    exact = np.cumprod(wide(host), axis)
    assert_near(products.get(), exact, bound(np.abs(exact), host.shape[axis], dtype))


@pytest.mark.slow
@INTEGERS
def test_running_results_of_integers_in_their_own_type(backend, dtype) -> None:
    host = draw(5, 6, dtype=dtype)
    for name in ("cumsum", "cumprod"):
        target = backend.empty(host.shape, dtype=dtype)
        target[:] = getattr(backend, name)(placed(backend, host), 0)
        expected = getattr(np, name)(host, 0, dtype=np.uint64 if host.dtype.kind == "u" else np.int64)
        np.testing.assert_array_equal(target.get(), expected.astype(dtype), strict=True)


@INTEGERS
def test_cumsum_of_integers(backend, dtype) -> None:
    host = draw(5, 6, dtype=dtype)
    sums = backend.evaluate(backend.cumsum(placed(backend, host), 1))
    np.testing.assert_array_equal(sums.get(), np.cumsum(host, 1, dtype=sums.dtype), strict=True)
    assert sums.dtype.itemsize == 8


# Refusals


def operands(backend: Any) -> dict[str, Any]:
    """Tensors to combine wrongly: named by shape, and by type where it is not float32."""
    shapes = {"a": (3, 4), "b": (4, 5), "c": (3, 5), "x": (2, 3, 4), "y": (2, 4, 5), "z": (2, 3, 5), "w": (7, 4, 5)}
    made = {name: backend.array(draw(*shape)) for name, shape in shapes.items()}
    made["i"] = backend.array(np.array([[0, 2, 1, 1]]), dtype=np.int32)
    made["row"], made["one"] = backend.array(draw(4), min_dims=0), backend.array(draw(), min_dims=0)
    return {**made, "d": backend.array(draw(4, 5), dtype=np.float64), "square": backend.array(draw(4, 4))}


REFUSED: dict[str, tuple[Callable, type, str]] = {
    "dot inner": (lambda be, t: be.dot(t["a"], t["a"], t["c"]), ShapeError, r"\(3, 4\) and \(3, 4\)"),
    "dot rank": (lambda be, t: be.dot(t["x"], t["y"], t["z"]), ShapeError, "2 axes"),
    "dot out": (lambda be, t: be.dot(t["a"], t["b"], t["b"]), ShapeError, r"\(4, 5\)"),
    "matmul": (lambda be, t: be.matmul(t["x"], t["a"], t["z"]), ShapeError, r"\(3, 4\)"),
    "compound inner": (lambda be, t: be.compound_dot(t["a"], t["c"], t["c"]), ShapeError, r"A \(3, 4\)"),
    "compound out": (lambda be, t: be.compound_dot(t["a"], t["b"], t["a"]), ShapeError, r"C \(3, 4\)"),
    "compound rank": (lambda be, t: be.compound_dot(t["x"], t["y"], t["z"]), ShapeError, "matrices"),
    "compound batch": (lambda be, t: be.compound_dot(t["a"], t["b"], t["z"]), ShapeError, r"C \(2, 3, 5\)"),
    "compound row": (lambda be, t: be.compound_dot(t["row"], t["b"], t["c"]), ShapeError, r"A \(4,\), B \(4, 5\)"),
    "compound column": (lambda be, t: be.compound_dot(t["a"], t["row"], t["c"]), ShapeError, r"B \(4,\)"),
    "compound one": (lambda be, t: be.cublas_dot(t["one"], t["row"], t["one"]), ShapeError, r"A \(\), B \(4,\)"),
    "xnor row": (lambda be, t: be.xnor_compound_dot(t["row"], t["b"], t["c"]), ShapeError, r"A \(4,\), B \(4, 5\)"),
    "matmul none": (lambda be, t: be.matmul(t["a"], None, t["c"]), TypeError, "matmul: operand"),
    "compound type": (lambda be, t: be.compound_dot(t["a"], t["d"], t["c"]), DTypeError, "float64"),
    "compound bsum": (lambda be, t: be.compound_dot(t["a"], t["b"], t["c"], bsum=t["a"]), ShapeError, r"\(3, 1\)"),
    "compound overlap": (lambda be, t: be.compound_dot(t["square"], t["square"].T, t["square"]), ValueError, "overlap"),
    "compound part": (lambda be, t: be.compound_dot(t["c"], t["b"].T, t["b"][:3, :4]), ValueError, "overlap"),
    "compound sums": (lambda be, t: be.compound_dot(t["a"], t["b"], t["c"], bsum=t["c"][:, :1]), ValueError, "overlap"),
    "compound number": (lambda be, t: be.compound_dot(t["a"], t["b"], t["c"], bsum=3), TypeError, "bsum: tensors only"),
    "compound alpha": (lambda be, t: be.compound_dot(t["a"], t["b"], t["c"], None), TypeError, "compound_dot: alpha"),
    "batched beta": (lambda be, t: be.batched_dot(t["x"], t["y"], t["z"], 1, "x"), TypeError, "batched_dot: beta"),
    "batched ranks": (lambda be, t: be.batched_dot(t["a"], t["b"], t["c"]), ShapeError, "ranks"),
    "batched count": (lambda be, t: be.batched_dot(t["x"], t["w"], t["z"]), ShapeError, "axis 0"),
    "batched shape": (lambda be, t: be.batched_dot(t["x"], t["a"], t["z"]), ShapeError, r"A \(2, 3, 4\)"),
    "batched overlap": (lambda be, t: be.batched_dot(t["square"], t["y"], t["y"]), ValueError, "overlap"),
    "xnor shape": (lambda be, t: be.xnor_compound_dot(t["a"], t["a"], t["c"]), ShapeError, r"A \(3, 4\)"),
    "xnor batch": (lambda be, t: be.xnor_compound_dot(t["a"], t["b"], t["z"]), ShapeError, r"C \(2, 3, 5\)"),
    "xnor overlap": (lambda be, t: be.xnor_compound_dot(t["square"], t["square"], t["square"]), ValueError, "overlap"),
    "xnor bsum": (lambda be, t: be.xnor_compound_dot(t["a"], t["b"], t["c"], bsum=t["b"]), ShapeError, r"\(3, 1\)"),
    "transpose shape": (lambda be, t: be.copy_transpose(t["a"], t["c"]), ShapeError, r"\(4, 3\)"),
    "transpose type": (lambda be, t: be.copy_transpose(t["d"], t["c"]), DTypeError, "float64"),
    "transpose axes": (lambda be, t: be.copy_transpose(t["a"], t["c"], (0, 0)), ShapeError, r"\(0, 0\)"),
    "transpose axis": (lambda be, t: be.copy_transpose(t["a"], t["c"], 5), ShapeError, r"\(5,\) for \(3, 4\)"),
    "transpose text": (lambda be, t: be.copy_transpose(t["a"], t["c"], "x"), ShapeError, "axis is not an integer"),
    "transpose overlap": (lambda be, t: be.copy_transpose(t["square"], t["square"].T), ValueError, "overlap"),
    "kahan shape": (lambda be, t: be.compensated_sum(t["a"], t["a"][:1], t["a"]), ShapeError, r"\(1, 4\)"),
    "kahan type": (lambda be, t: be.compensated_sum(t["b"], t["d"], t["b"]), DTypeError, "float64"),
    "kahan scale": (lambda be, t: be.compensated_sum(t["a"], t["a"], t["a"], None), TypeError, "cmp_scale"),
    "kahan overlap": (lambda be, t: be.compensated_sum(t["a"], t["a"], t["b"][:3, :4]), ValueError, "overlap"),
    "kahan lost": (lambda be, t: be.compensated_sum(t["c"], t["b"][:3], t["b"][:3]), ValueError, "overlap"),
    "bias": (lambda be, t: be.add_fc_bias(t["a"], t["b"]), ShapeError, r"\(4, 5\)"),
    "bias row": (lambda be, t: be.add_fc_bias(t["square"], t["row"]), ShapeError, r"\(4,\)[\s\S]*\(4, 1\)"),
    "bias gradients": (lambda be, t: be.update_fc_bias(t["a"], t["c"]), ShapeError, r"\(3, 5\)[\s\S]*\(3, 1\)"),
    "bias gradient": (lambda be, t: be.update_fc_bias(t["a"], t["b"]), ShapeError, r"\(4, 5\)"),
    "binarize": (lambda be, t: be.binarize(t["a"], t["b"]), ShapeError, r"\(4, 5\)"),
    "onehot axis": (lambda be, t: be.onehot(t["i"], 0.0, t["a"]), ShapeError, r"axis is not an integer[\s\S]*0\.0"),
    "onehot truth": (lambda be, t: be.onehot(t["i"], False, t["a"]), ShapeError, "axis is not an integer"),
    "shift": (lambda be, t: be.shift(t["a"], t["b"], out=t["a"]), ShapeError, r"\(4, 5\)"),
    "cumsum axis": (lambda be, t: be.cumsum(t["a"], 2, out=t["a"]), ShapeError, "axis=2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_written(backend, case) -> None:
    call, error, text = REFUSED[case]
    tensors = operands(backend)
    before = {name: t.get() for name, t in tensors.items()}
    with pytest.raises(error, match=text):
        call(backend, tensors)
    for name, t in tensors.items():
        np.testing.assert_array_equal(t.get(), before[name], err_msg=name)
