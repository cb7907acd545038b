# SPDX-License-Identifier: Apache-2.0
"""Products of many shapes, layouts and types; what follows them; the same bits however they are computed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tensorbackend import BackendError, dtypes
from tensorbackend.backends import cpu_primitives, native
from tensorbackend.backends.interpreter import Interpreter
from tensorbackend.codegen.nest import nest
from tensorbackend.graph.fuse import schedule, walk
from tensorbackend.graph.plan import Primitive, Statement
from tensorbackend.graph.tails import over_matrix, with_tails
from tensorbackend.primitives import gemm, gemm_planes, gemm_short
from tensorbackend.settings import using
from tests.thinned import thinned

LENGTHS = (0, 1, 2, 3, 5, 7, 8, 13, 14, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 97, 130, 257, 1000)
HALF_UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""The largest relative error of one rounding."""
LAYOUTS: list[tuple[Callable, Callable]] = [
    (lambda x: x, lambda t: t),
    (lambda x: x.T, lambda t: t.T),
    (lambda x: np.repeat(x, 2, 1), lambda t: t[:, ::2]),
    (lambda x: x[::-1], lambda t: t[::-1]),
    (lambda x: x.T[:, ::-1], lambda t: t[:, ::-1].T),
    (lambda x: np.pad(x, ((1, 2), (3, 1))), lambda t: t[1:-2, 3:-1]),
]
"""For each layout, what is stored and which view of it has the numbers asked for."""


def numbers(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Normal numbers of a type; small whole numbers for integers."""
    random, dtype = np.random.default_rng([seed, *shape]), dtypes.as_dtype(dtype)
    if dtypes.is_float(dtype):
        return random.standard_normal(shape).astype(np.float32 if dtypes.is_half(dtype) else dtype).astype(dtype)
    return random.integers(0, 4, shape).astype(dtype)


def laid(backend: Any, host: np.ndarray, layout: int = 0) -> Any:
    """A tensor with the numbers of `host` in a layout."""
    stored, view = LAYOUTS[layout]
    return view(backend.array(stored(host), dtype=host.dtype, min_dims=0))


def limits(a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The product in float64 (float64 in extended precision), and the error that adding up in any order may have."""
    kind = np.longdouble if dtype == np.float64 else np.float64
    a, b = a.astype(kind), b.astype(kind)
    inner = HALF_UNITS["float32" if dtypes.is_half(dtype) else dtype.name]
    scale = np.abs(a) @ np.abs(b)
    least = 2.0**-25 if dtype == np.float16 else 0  # half the spacing below its normal numbers
    return a @ b, ((a.shape[-1] + 3) * inner + HALF_UNITS[dtype.name]) * scale + least


def assert_product(got: np.ndarray, a: np.ndarray, b: np.ndarray, dtype: np.dtype) -> None:
    """Within the bound; exact for integers."""
    if not dtypes.is_float(dtype):
        np.testing.assert_array_equal(got, (a.astype(np.int64) @ b.astype(np.int64)).astype(dtype))
        return
    expected, error = limits(a, b, dtype)
    assert got.shape == expected.shape
    assert np.all(np.abs(got.astype(expected.dtype) - expected) <= error)


# Values

SHAPES = st.tuples(*[st.sampled_from(LENGTHS)] * 3)
LAYOUT = st.integers(0, len(LAYOUTS) - 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=SHAPES, layouts=st.tuples(LAYOUT, LAYOUT, LAYOUT), dtype=st.sampled_from(dtypes.DTYPES[:-1]))
def test_products_of_any_shape_layout_and_type(backend, shape, layouts, dtype) -> None:
    m, n, k = (min(x, 17) for x in shape) if math.prod(shape) > work_of(backend) else shape
    a, b = numbers(0, m, k, dtype=dtype), numbers(1, k, n, dtype=dtype)
    out = laid(backend, numbers(2, m, n, dtype=dtype), layouts[2])
    out[:] = backend.dot(laid(backend, a, layouts[0]), laid(backend, b, layouts[1]))
    assert_product(out.get(), a, b, dtype)


def work_of(backend: Any) -> int:
    """Multiply-adds that a backend computes in no time."""
    return 1 << 22 if getattr(backend, "jit", False) else 1 << 16


@st.composite
def small_operands(draw: Any) -> tuple[np.dtype, list[tuple[tuple[int, ...], tuple[int, ...], int]]]:
    """A type, and of two operands of many small products their shapes, orders in memory, and steps along the last."""
    lengths = draw(st.sampled_from([(8,), (67,), (3, 5), (2, 1, 9), (130,)]))
    sides = draw(st.tuples(*[st.integers(1, 4)] * 3))
    long = draw(st.sampled_from([None, 0, 1]))
    m, n, k = (draw(st.integers(5, 16)) if side == long else x for side, x in enumerate(sides))
    operands = []
    for rows, columns in ((m, k), (k, n)):
        batch = draw(st.sampled_from([lengths, lengths, lengths, lengths[1:], tuple(1 for _ in lengths)]))
        order = draw(st.permutations(range(len(batch) + 2))) if draw(st.booleans()) else range(len(batch) + 2)
        operands.append(((*batch, rows, columns), tuple(order), draw(st.sampled_from([1, 1, 2, -1]))))
    return draw(st.sampled_from(dtypes.DTYPES[:-1])), operands


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(small=small_operands(), follow=st.booleans())
def test_many_small_products(backend, small, follow) -> None:
    dtype, operands = small
    hosts, tensors = [], []
    for seed, (shape, order, step) in enumerate(operands):
        host = numbers(seed, *shape, dtype=dtype)
        stored = np.repeat(host, abs(step), -1)[..., :: 1 if step > 0 else -1].transpose(order)
        tensor = backend.array(np.ascontiguousarray(stored), dtype=dtype, min_dims=0)
        hosts.append(host)
        tensors.append(tensor.transpose(*np.argsort(order))[..., ::step])
        np.testing.assert_array_equal(tensors[-1].get(), host)
    product = tensors[0] @ tensors[1]
    if follow and dtypes.is_float(dtype):
        np.testing.assert_array_equal((backend.maximum(product, 0)).get(), np.maximum(product.get(), 0))
    assert_product(product.get(), *hosts, dtype)


def test_small_products_have_a_kernel_of_their_own(jit) -> None:
    for count, m, k, n, small in [(8, 4, 4, 4, True), (9, 16, 1, 3, True), (8, 2, 3, 16, True), (7, 4, 4, 4, False),
                                  (8, 17, 4, 4, False), (8, 4, 5, 4, False), (8, 5, 4, 5, False)]:  # fmt: skip
        a, b = jit.ones((count, m, k), min_dims=0), jit.ones((count, k, n), min_dims=0)
        steps = jit.explain(jit.maximum(jit.matmul(a, b), 0)).steps
        assert ("gemm_small.c" in steps[0].source, len(steps)) == (small, 1 + small)


LONG = [
    (1, 1, 70_000), (3, 2, 50_001), (7, 40, 20_000), (2, 70, 9_000), (1, 4500, 60), (4500, 1, 60), (5, 3, 4097),
    (2500, 3, 61), (9, 513, 8_300), (520, 17, 8_200), (30, 1100, 4_000), (40, 7, 20_000), (6, 61, 9_000),
]  # fmt: skip


@pytest.mark.parametrize("shape", LONG, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("layout", [0, 1])
def test_long_and_thin_products(backend, shape, dtype, layout) -> None:
    if math.prod(shape) > work_of(backend):
        shape = tuple(min(x, 300) for x in shape)
    m, n, k = shape
    a, b = numbers(0, m, k, dtype=dtype), numbers(1, k, n, dtype=dtype)
    got = backend.evaluate(backend.dot(laid(backend, a, layout), laid(backend, b, layout)))
    assert_product(got.get(), a, b, dtypes.as_dtype(dtype))


SHORT = [(5, 7, 3), (33, 20, 40), (70, 66, 100), (1, 65, 20), (66, 1, 20), (40, 6, 33), (9, 3, 20)]


@pytest.mark.parametrize("shape", SHORT, ids=str)
@pytest.mark.parametrize("layout", [0, 1])
def test_zero_times_infinity_is_seen_everywhere(backend, shape, layout) -> None:
    m, n, k = shape
    a, b = numbers(0, m, k), numbers(1, k, n)
    a[:, k // 2], b[k // 2] = 0, 1
    b[k // 2, ::2] = np.inf
    b[k // 2, 1::3] = np.nan
    got = backend.evaluate(backend.dot(laid(backend, a, layout), laid(backend, b, layout))).get()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(a @ b))


SHORT_STEPS = [
    (200, 130, 1), (131, 127, 9), (600, 32, 2), (33, 640, 63), (128, 143, 63), (128, 144, 48), (1300, 1280, 5),
    (61, 300, 31), (60, 4480, 20), (63, 4097, 13), (130, 4608, 5),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHORT_STEPS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("layouts", [(0, 0), (1, 2), (3, 4), (5, 1)])
def test_products_of_few_steps(jit, monkeypatch, shape, dtype, layouts) -> None:
    """Into results by rows and by columns, past the caches and not, with the bits of the tiles that a tail follows; by
    tasks of rows, and where there are many columns, of columns."""
    for name, value in (("FEWER_STEPS", gemm_short.STEPS), ("NEAR_B", 1 << 30), ("WIDE_RESULT", 0)):
        monkeypatch.setattr(gemm_short, name, value)
    m, n, k = shape
    a, b = numbers(0, m, k, dtype=dtype), numbers(1, k, n, dtype=dtype)
    a[m // 2, 0], b[0, n // 3] = np.inf, np.nan
    x, y = (laid(jit, operand, layout) for operand, layout in zip((a, b), layouts))
    rows, columns, tailed = (jit.array(np.full(s, -1, dtype), dtype=dtype) for s in ((m, n), (n, m), (m, n)))
    with using(matrix_unit=False):
        (step,) = jit.explain(rows, jit.dot(x, y)).steps
        assert "gemm_short.c" in step.source
        rows[:] = jit.dot(x, y)
        columns.T[:] = jit.dot(x, y)
        tailed[:] = jit.dot(x, y) * 1.0 + 0.0
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64)
        scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
        error = np.abs(rows.get() - wanted)
    finite = np.isfinite(scale)
    assert (error <= k * np.finfo(dtype).eps * scale)[finite].all()
    np.testing.assert_array_equal(rows.get()[~finite], wanted[~finite].astype(dtype))
    np.testing.assert_array_equal(columns.get().T, rows.get())
    np.testing.assert_array_equal(tailed.get(), rows.get())


@pytest.mark.parametrize("shape", [(2, 8200, 9), (5, 4100, 32), (9, 4111, 63), (31, 4224, 40)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wide_products_of_few_steps_and_rows(jit, shape, dtype) -> None:
    """With few registers, too, from two rows on, and with the bits of tiles, where such have so few rows."""
    m, n, k = shape
    a, b = numbers(0, m, k, dtype=dtype), numbers(1, k, n, dtype=dtype)
    x, y = jit.array(a, dtype=dtype), jit.array(b, dtype=dtype)
    with using(matrix_unit=False):
        (step,) = jit.explain(jit.dot(x, y)).steps
        assert ("gemm_short.c" in step.source) == cpu_primitives._facts(np.dtype(dtype)).few_registers
        got, tailed = jit.evaluate(jit.dot(x, y)), jit.evaluate(jit.dot(x, y) * 1.0 + 0.0)
    assert_product(got.get(), a, b, dtypes.as_dtype(dtype))
    if m >= 5:
        np.testing.assert_array_equal(tailed.get(), got.get())


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_dots_use_nothing_beside_their_lines(backend, n, dtype) -> None:
    """Lines of k that fill no vectors, between others of NaN, and any number of rows."""
    for m, k in itertools.product((2, 5, 9, 25), (1, 5, 16, 17, 31, 70)):
        operands = [numbers(i, rows, k, dtype=dtype) for i, rows in enumerate((m, n))]
        views = []
        for x in operands:
            whole = backend.array(np.full((x.shape[0] + 2, k + 9), np.nan, dtype), dtype=dtype)
            whole[1:-1, 3 : 3 + k] = x
            views.append(whole[1:-1, 3 : 3 + k])
        got = backend.evaluate(backend.dot(views[0], views[1].T))
        assert_product(got.get(), operands[0], operands[1].T, dtypes.as_dtype(dtype))


@pytest.mark.parametrize("batches", [((3,), (3,)), ((4, 1), (1, 5)), ((), (6,)), ((2, 3), ())], ids=str)
@pytest.mark.parametrize("shape", [(6, 5, 9), (8, 8, 8), (26, 24, 3), (33, 70, 40)], ids=str)
def test_batches(backend, batches, shape) -> None:
    m, n, k = shape
    a, b, c = numbers(0, *batches[0], m, k), numbers(1, *batches[1], k, n), numbers(2, m, 1)
    x, y, z = (backend.array(v, min_dims=0) for v in (a, b, c))
    for tree, expected in ((backend.matmul(x, y), a @ b), (backend.tanh(backend.matmul(x, y) + z), np.tanh(a @ b + c))):
        np.testing.assert_allclose(backend.evaluate(tree).get(), expected, rtol=1e-5, atol=1e-5)


# Tails

TAILS: dict[str, Callable] = {
    "bias by row": lambda be, p, t: p + t["column"],
    "bias by column, relu": lambda be, p, t: be.maximum(p + t["row"], 0),
    "gelu": lambda be, p, t: be.gelu(p * 0.5),
    "scaled": lambda be, p, t: p * 2.5 - 1,
    "a matrix": lambda be, p, t: p * t["z"] + t["column"] * t["row"],
    "a matrix across": lambda be, p, t: p + t["across"].T,
    "used twice": lambda be, p, t: p * be.sigmoid(p),
    "another product": lambda be, p, t: p + be.dot(t["z"], t["square"]),
    "compared": lambda be, p, t: be.where(p > t["row"], p, t["z"]),
}
TAILED_SHAPES = [
    (6, 9, 5), (1, 40, 7), (40, 1, 7), (1, 1, 9), (70, 70, 33), (3, 5, 30_000), (130, 200, 900), (20, 20, 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "layout"), thinned(3, list(TAILS), TAILED_SHAPES, [0, 1, 2], ci=1), ids=str)
def test_a_tail_gives_the_bits_of_two_statements(jit, name, shape, layout) -> None:
    m, n, k = shape
    x, y = laid(jit, numbers(0, m, k), layout), laid(jit, numbers(1, k, n), layout)
    shapes = {"column": (m, 1), "row": (1, n), "z": (m, n), "across": (n, m), "square": (n, n)}
    t = {key: jit.array(numbers(5, *s), min_dims=0) for key, s in shapes.items()}
    product = jit.evaluate(jit.dot(x, y))
    wanted = jit.evaluate(TAILS[name](jit, product, t))
    for dtype in (np.float32, np.float16):
        got = laid(jit, np.zeros((m, n), dtype), layout)
        got[:] = TAILS[name](jit, jit.dot(x, y), t)
        np.testing.assert_array_equal(got.get(), wanted.get().astype(dtype))


@pytest.mark.parametrize("size", [4, 40, 100])
def test_a_target_that_is_an_operand(backend, size) -> None:
    x, y = (backend.array(numbers(i, size, size)) for i in range(2))
    product, before = backend.evaluate(backend.dot(x, y)), y.get()
    y[:] = backend.dot(x, y) * 2 + y
    np.testing.assert_array_equal(y.get(), product.get() * 2 + before)


@pytest.mark.parametrize("size", [8, 100])
def test_a_product_added_to_its_target(backend, size) -> None:
    x, y, z = (backend.array(numbers(i, *s)) for i, s in enumerate([(size, 7), (7, size + 1), (size, size + 1)]))
    expected = backend.evaluate(backend.dot(x, y)).get() + z.get()
    z[:] = backend.dot(x, y) + z
    np.testing.assert_array_equal(z.get(), expected)


def steps(target: Any, tree: Any, overlap: int = 0) -> list:
    """What a statement becomes where products have tails."""
    leaves = walk(tree)[0]
    return with_tails(schedule([Statement(target.structure, tree, overlap)], [leaves])).steps


@pytest.mark.parametrize("strides", [(1, 1), (134, 1)], ids=str)
def test_the_tail_of_a_column_runs_along_it(backend, strides) -> None:
    """Not along its rows of one number, which would be a vector each."""
    x, y, z = (backend.ones(s, min_dims=0) for s in [(300, 7), (7, 1), (300, 1)])
    (step,) = steps(z, backend.tanh(backend.dot(x, y) + z * 2))
    for column in (True, False):
        kernel = over_matrix(step.tail, step.product, strides, False, column)
        assert nest(kernel).inner == (0 if column else 1)


def test_which_kernels_become_tails(backend) -> None:
    be = backend
    x, y, z, row = (be.ones(s, min_dims=0) for s in [(6, 5), (5, 7), (6, 7), (1, 7)])
    (one,) = steps(z, be.maximum(be.dot(x, y) + row, 0))
    assert isinstance(one, Primitive) and one.name.startswith("dot+ew_add_maximum")
    first, second = steps(z, be.tanh(be.dot(x, y)) + be.dot(x, y * 2)), steps(z, be.dot(x, y))
    assert [s.name.split("+")[0] for s in first][-1] == "dot" and first[-1].tail is not None
    assert len(second) == 1 and second[0].tail is None
    product = be.dot(x, y)
    read_twice, last = steps(z, be.dot(product, be.ones((7, 7), min_dims=0)) + product)
    assert read_twice.tail is None and last.tail is not None
    assert steps(be.ones((6, 1), min_dims=0), be.sum(be.dot(x, y), axis=1))[-1].axes == (1,)
    assert len(steps(z, be.dot(x, y) + be.rand())) == 2  # random numbers are counted over the whole space
    assert len(steps(z, be.dot(x, y) + z, overlap=1)) == 1
    square = be.ones((6, 6), min_dims=0)
    assert len(steps(square, be.dot(square, x @ y @ be.ones((7, 6), min_dims=0)) + square, overlap=1)) > 2


# However it is computed


WAYS = list(itertools.product([False, True], [1, 2, 4], [False, True], [False, True]))
THREADED = [(200, 300, 100), (3, 5, 60_000), (1, 1, 100_000), (64, 16, 2000), (900, 2, 3000), (30, 130_000, 40),
            (40, 70, 50_000), (9, 520, 8_300), (300, 7, 9_000),
            (700, 300, 40)]  # fmt: skip
FACTS = [gemm.Facts(16, (12, 14, 0, 6), half_rows=12), gemm.Facts(4, (8, 6, 0, 2)),
         gemm.Facts(16, (12, 14, 0, 6), half_rows=12, quick_sums=20)]  # fmt: skip


@pytest.mark.parametrize(("swap", "vectors", "pack_a", "pack_b"), WAYS)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("own", ["", "a", "b", "both panels of b"])
def test_every_way_gives_the_same_bits(jit, monkeypatch, swap, vectors, pack_a, pack_b, layout, own) -> None:
    """Tiles, copies and blocks of rows are no part of the result, and a small cache's worth of blocks is used."""
    m, n, k = 45, 70, 90
    a, b = numbers(0, m, k), numbers(1, k, n)
    chosen = []

    def choose(given: gemm.Matrices, facts: gemm.Facts, may_swap: bool = True) -> gemm.Blocking:
        x = given.swapped() if swap else given
        width = next(v for v in range(vectors, 5) if facts.rows[v - 1]) * facts.lanes
        height = min(facts.rows[width // facts.lanes - 1], 12 if vectors == 2 else 5)  # quick where they are many
        side_by_side = x.b[1] == 1
        first = 0 if pack_b or not side_by_side else x.n // width * width
        rows, phase_k = height if pack_a else 2 * height, 40 if pack_a or not first else k
        phase_rows = 3 * height if pack_a else x.m
        if "b" in own:
            copied = width if own == "b" else 2 * width
            by = (swap, 1, 1, k, 120, 40, phase_rows, 4 * width, rows, 2 * width, height, width, pack_a, 0, copied)
            chosen.append(gemm.Blocking(*by))
            return chosen[-1]
        own_a = pack_a and own == "a"
        phase_rows = x.m if own_a else phase_rows
        by = (swap, 1, 1, k, phase_k, 40, phase_rows, 2 * width, rows, width, height, width, pack_a, first)
        chosen.append(gemm.Blocking(*by, own_a=own_a))
        return chosen[-1]

    monkeypatch.setattr(gemm, "choose", choose)
    jit.structures.clear()
    try:
        got = [jit.evaluate(jit.dot(laid(jit, a, layout), laid(jit, b, layout))).get()]
        got.append(jit.evaluate(jit.tanh(jit.dot(laid(jit, a, layout), laid(jit, b, layout)) + 1)).get())
    finally:
        jit.structures.clear()
    assert chosen
    assert_product(got[0], a, b, np.dtype(np.float32))
    np.testing.assert_array_equal(got[1], jit.evaluate(jit.tanh(jit.array(got[0]) + 1)).get())


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.float16])
@pytest.mark.parametrize("k", [1281, 1300, 1345])
def test_a_last_segment_that_ends_before_the_others(jit, monkeypatch, k, dtype) -> None:
    """Copies are made in phases, of which the last segment has fewer."""
    kept, chosen = gemm.choose, []

    def choose(*given: Any, **may: Any) -> gemm.Blocking:
        by = replace(kept(*given, **may), splits=-(-k // 128), split_k=128, phase_k=32, block_k=16)
        chosen.append(by)
        return by

    monkeypatch.setattr(gemm, "choose", choose)
    a, b = (np.round(numbers(i, *shape)).astype(dtype) for i, shape in enumerate([(15, k), (k, 13)]))
    jit.structures.clear()
    try:
        product = jit.dot(laid(jit, a), laid(jit, b))
        got, tailed = jit.evaluate(product).get(), jit.evaluate(product * 2).get()
    finally:
        jit.structures.clear()
    assert chosen and all(by.panel > 1 and not by.own for by in chosen)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(got, expected.astype(dtype))
    np.testing.assert_array_equal(tailed, 2 * expected.astype(dtype))


@pytest.mark.slow
@pytest.mark.parametrize("shape", THREADED, ids=str)
def test_threads_change_no_bits(jit, shape) -> None:
    m, n, k = shape
    x, y, bias = (jit.array(numbers(i, *s)) for i, s in enumerate([(m, k), (k, n), (m, 1)]))
    runtime = native.runtime()
    before, found = runtime.threads, []
    try:
        for threads in (1, 2, 3):
            runtime.set_threads(threads)
            found.append(jit.evaluate(jit.maximum(jit.dot(x, y) + bias, 0)).get())
    finally:
        runtime.set_threads(before)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


STRIDES = st.sampled_from([(1000, 1), (1, 1000), (2, 2000), (2000, 2), (-1000, 1)])


MATRICES = {
    "lengths": st.tuples(*[st.sampled_from(LENGTHS) | st.integers(0, 5000) | st.integers(0, 500_000)] * 3),
    "batches": st.sampled_from([1, 3, 500]), "a": STRIDES, "b": STRIDES, "sums": STRIDES,
    "plain": st.booleans(), "facts": st.sampled_from(FACTS),
}  # fmt: skip


@example(lengths=(949, 2, 10), batches=1, a=(1, 949), b=(2, 1), sums=(1, 949), plain=True, facts=FACTS[0])
@given(**MATRICES | {"lengths": st.tuples(*[st.sampled_from(LENGTHS[1:]) | st.integers(1, 100_000)] * 3)})
def test_sums_add_up_in_the_same_order_wherever_they_go(lengths, batches, a, b, sums, plain, facts) -> None:
    x = gemm.Matrices(*lengths, batches, a, b, sums, plain, plain)
    assert order_of(x, gemm.choose(x, facts)) == order_of(x, gemm.choose(x.stored_by_rows(), facts))


def order_of(x: gemm.Matrices, by: gemm.Blocking) -> tuple[str, int, int]:
    """What adds up, and how many steps of k do, in segments and blocks of them."""
    x = x.swapped() if by.swap else x
    dots = "pairs" if x.n > 1 and x.m > (3 if x.n <= 4 else 1) else "dots"
    kind = "tiles" if by.panel > 1 else dots if x.a[1] == 1 else "sweeps"
    return kind, min(by.split_k, x.k), min(by.block_k, x.k)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        (3, 4, 20_000), (4, 2, 20_000), (60, 2, 9000), (40, 70, 50_000), (2, 300, 300), (949, 2, 10), (3, 396, 149),
        (70, 6, 9000), (2, 8, 5000), (8, 3, 30_000), (130, 135, 20), (700, 800, 40),
    ],
    ids=str,
)
@pytest.mark.parametrize("layouts", list(itertools.product([0, 1], repeat=2)))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_result_has_the_same_bits_in_any_layout(jit, shape, layouts, dtype) -> None:
    m, n, k = shape
    x, y = laid(jit, numbers(0, m, k, dtype=dtype), layouts[0]), laid(jit, numbers(1, k, n, dtype=dtype), layouts[1])
    wanted = jit.evaluate(jit.dot(x, y)).get()
    for layout in range(1, len(LAYOUTS)):
        got = laid(jit, np.zeros((m, n), wanted.dtype), layout)
        got[:] = jit.dot(x, y)
        np.testing.assert_array_equal(got.get(), wanted)


@example(lengths=(0, 0, 8193), batches=3, a=(2, 2000), b=(2, 2000), sums=(1000, 1), plain=False, facts=FACTS[0])
@given(**MATRICES)
def test_blockings_are_sound(lengths, batches, a, b, sums, plain, facts) -> None:
    x = gemm.Matrices(*lengths, batches, a, b, sums, plain, plain)
    assert_sound(x, gemm.choose(x, facts), facts)


@pytest.mark.parametrize("facts", FACTS, ids=["32 registers", "16 registers", "quick tiles"])
@pytest.mark.parametrize("copying", [-1e18, 1e18], ids=["copied where it can be", "copied where it must"])
def test_every_way_to_block_a_product_is_sound(monkeypatch, copying, facts) -> None:
    """Not the cheapest ones alone: with any number of columns left for the last panel, and few rows or many."""
    monkeypatch.setattr(gemm, "COPYING", copying)
    shapes = [(m, n, k) for n in range(1, 6 * facts.lanes) for m, k in [(1, 40), (7, 1000), (30, 9000), (600, 50)]]
    for m, n, k in [*shapes, (40, 40_000, 300), (300, 70, 20_000), (12, 5000, 9000)]:
        x = gemm.Matrices(m, n, k, 1, (k, 1), (n, 1), (n, 1))
        for way in gemm._all_ways(x, facts):
            assert_sound(x, gemm._blocking(x, way, facts), facts)


@pytest.mark.parametrize("facts", FACTS, ids=["32 registers", "16 registers", "quick tiles"])
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)])
def test_blockings_of_dense_operands_are_sound(facts, turned) -> None:
    """Of lengths as layers have them, few of some and many of others."""
    lengths = 16, 35, 64, 256, 1000, 4096, 9216
    for m, n, k in itertools.product(lengths, repeat=3):
        a, b = (1, m) if turned[0] else (k, 1), (1, k) if turned[1] else (n, 1)
        x = gemm.Matrices(m, n, k, 1, a, b, (n, 1))
        assert_sound(x, gemm.choose(x, facts), facts)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("turned", [(1, 0), (0, 1), (1, 1), (0, 0)])
def test_few_samples_go_back_through_a_long_layer(jit, dtype, turned) -> None:
    """Segments of k, of operands of which one is copied and one is not."""
    for m, n, k in ((256, 32, 4096), (32, 256, 4096), (40, 200, 3000), (130, 24, 5000)):
        a, b = numbers(0, m, k, dtype=dtype), numbers(1, k, n, dtype=dtype)
        with using(matrix_unit=False):
            got = jit.evaluate(jit.dot(laid(jit, a, turned[0]), laid(jit, b, turned[1]))).get()
        assert_product(got, a, b, np.dtype(dtype))


def assert_sound(x: gemm.Matrices, by: gemm.Blocking, facts: gemm.Facts) -> None:
    steps = by.round_, by.splits, by.split_k, by.phase_k, by.block_k, by.task_rows, by.task_columns
    assert 0 in (x.m, x.n, x.k) or min(steps) > 0
    x = x.swapped() if by.swap else x
    if by.panel > 1:
        for width in (min(by.panel, x.n), x.n % by.panel):
            vectors = -(-width // facts.lanes)
            assert not width or by.tile_rows <= facts.rows[(4 if vectors == 3 else vectors) - 1]
        phases = [min(by.phase_columns, x.n - first) for first in range(0, x.n, by.phase_columns)]
        panels = {min(by.panel, columns - first) for columns in phases for first in range(0, columns, by.panel)}
        rows = {min(by.tile_rows, max(x.m, 1)), x.m % by.tile_rows} - {0}
        needed = {
            "half" if facts.half_rows >= height and columns == facts.lanes // 2
            else "one" if columns <= facts.lanes else "wide"
            for columns in panels for height in rows
        }  # fmt: skip
        assert needed <= set(gemm.kinds_of_tiles(x, by, facts)) <= needed | {"half"}
    assert by.task_rows % by.tile_rows == by.task_columns % by.panel == by.phase_columns % by.panel == 0
    assert by.splits * by.split_k >= x.k and (by.splits - 1) * by.split_k < max(x.k, 1)
    assert by.pack_b % by.panel == 0 or by.pack_b == x.n
    assert x.b[1] == 1 or by.panel == 1 or by.pack_b == 0
    if rest := by.pack_b % by.panel:  # a last panel that is read where it lies needs a tile of its width
        width = 2 * rest if 2 * rest == facts.lanes else rest
        assert width % facts.lanes == 0
        assert by.tile_rows <= (facts.half_rows if width > rest else facts.rows[rest // facts.lanes - 1])
    assert by.phase_k % by.block_k == 0 or by.phase_k >= by.split_k
    assert by.pack_a or by.phase_rows >= x.m
    assert not by.pack_a or by.own_a or by.phase_rows % by.tile_rows == 0  # copies are of whole tiles
    if by.own:
        assert by.phase_columns >= x.n and by.split_k <= by.phase_k
        assert 0 < by.own <= by.task_columns and by.own % by.panel == 0
        assert by.block_k * by.own <= max(gemm._together(x, facts), by.block_k * by.panel)
        assert by.splits > 1 or by.block_k * by.task_columns <= max(gemm.OWN_COPY, by.block_k * by.panel)
        assert by.block_k <= gemm.BLOCK_K
    assert not by.own_a or (by.pack_a and by.splits == 1 and by.phase_k == by.block_k)
    copied = by.phase_rows if by.pack_a and not by.own_a else 0
    copied += 0 if by.own else min(max(x.n - by.pack_b, 0), by.phase_columns)
    assert copied * by.phase_k * by.splits * by.round_ <= 4 * gemm.COPIED


@pytest.mark.parametrize(("m", "n", "k", "segments"), [
    (16, 1024, 131_072, 16), (48, 2048, 16_384, 16), (24, 4096, 4096, 4), (35, 8457, 1760, 2), (32, 9216, 5000, 4),
    (16, 65_536, 2048, 2), (49, 1024, 131_072, 16), (17, 65_536, 2048, 0), (16, 1024, 2048, 4), (16, 8192, 1279, 1),
    (16, 8192, 639, 0), (35, 700, 2048, 4), (64, 1760, 1760, 4), (64, 4096, 1024, 0), (65, 1024, 8192, 0),
    (16, 1024, 1024, 0), (16, 100, 65_536, 0),
])  # fmt: skip
def test_a_few_rows_times_a_long_k_read_long_pieces_of_b(m, n, k, segments) -> None:
    """Short pieces that are far apart come from memory at a fraction of its speed."""
    by = gemm.choose(gemm.Matrices(m, n, k, 1, (k, 1), (n, 1), (n, 1)), gemm.Facts(16, (12, 14, 0, 6)))
    assert (by.block_k <= gemm.THIN_K) == bool(segments)
    assert not segments or (by.splits == segments and by.task_columns >= gemm.THIN_COLUMNS and not by.own)
    narrow = gemm.choose(gemm.Matrices(m, n, k, 1, (k, 1), (n, 1), (n, 1)), gemm.Facts(8, (6, 6, 0, 3)))
    assert narrow.block_k > gemm.THIN_K


def test_blocks_of_rows_that_tasks_of_the_matrix_unit_keep_have_a_bit_each() -> None:
    """Of 64, in `gemm.c`: more would be taken for copied when they are not."""
    for m, n, k in itertools.product(range(1024, 1 << 16, 1024), (129, 1000, 5000, 20_000), (32, 64)):
        x = gemm.Matrices(m, n, k, 1, (1, m), (n, 1), (n, 1))
        by = gemm_planes._kept_blocking(x, False)
        assert not gemm_planes._may_keep(x, 3) or by.task_columns >= by.phase_columns or m <= 64 * by.task_rows


def test_explain_names_the_core_and_its_tail(jit) -> None:
    x, y, z = jit.ones((6, 5)), jit.ones((5, 7)), jit.empty((6, 7))
    (step,) = jit.explain(z, jit.tanh(jit.dot(x, y) + 1)).steps
    assert step.name.startswith("dot+ew_add_tanh")
    assert "gemm.c" in step.source and "tb_tanh_f32" in step.source
    assert step.flops > 2 * 6 * 7 * 5
    with using(check=True):
        z[:] = jit.tanh(jit.dot(x, y) + 1)


def test_check_finds_a_wrong_product(jit, monkeypatch) -> None:
    x, y, z = jit.ones((6, 5)), jit.ones((5, 7)), jit.empty((6, 7))
    monkeypatch.setattr(Interpreter, "primitive", lambda self, step, inputs, outputs: outputs[0].fill(4))
    with using(check=True), pytest.raises(BackendError, match="dot"):
        z[:] = jit.dot(x, y)


FLAT = [(2100, 16, 2100), (2100, 2100, 16), (16, 2100, 2100), (7, 200_003, 33), (40, 9999, 700), (37, 70, 50_003)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", FLAT, ids=str)
@pytest.mark.parametrize("layout", [0, 1])
def test_flat_products_of_matrices_beyond_the_caches(jit, shape, layout) -> None:
    m, n, k = shape
    a, b = numbers(0, m, k), numbers(1, k, n)
    got = jit.evaluate(jit.dot(laid(jit, a, layout), laid(jit, b, layout))).get()
    assert_product(got, a, b, np.dtype(np.float32))


FAR_TAILS = ["a matrix", "a matrix across", "used twice"]
FAR_SHAPES = [(1500, 1301, 70), (70, 30_016, 80), (600, 2500, 600)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape", "layout"), thinned(3, FAR_TAILS, FAR_SHAPES, [0, 3, 5], ci=1), ids=str)
def test_tails_of_products_beyond_the_caches(jit, name, shape, layout) -> None:
    m, n, k = shape
    x, y = jit.array(numbers(0, m, k)), jit.array(numbers(1, k, n))
    shapes = {"column": (m, 1), "row": (1, n), "z": (m, n), "across": (n, m)}
    t = {key: jit.array(numbers(5, *s), min_dims=0) for key, s in shapes.items()}
    product = jit.evaluate(jit.dot(x, y))
    wanted = jit.evaluate(TAILS[name](jit, product, t)).get()
    for dtype in (np.float32, np.float16):
        got = laid(jit, np.ones((m, n), dtype), layout)
        got[:] = TAILS[name](jit, jit.dot(x, y), t)
        np.testing.assert_array_equal(got.get(), wanted.astype(dtype))
    got[:] = jit.dot(x, y) * 0.5 + got
    halved = product.get() * np.float32(0.5) + wanted.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(got.get(), halved.astype(dtype))


@pytest.mark.parametrize(
    "shape", [(0, 40, 50), (2, 0, 50), (2, 40, 0), (0, 0, 0), (2, 0, 3), (1, 0, 50), (1, 40, 0)], ids=str
)
@pytest.mark.parametrize("k", [0, 5, 64, 600, 9000])
def test_products_without_elements(backend, shape, k) -> None:
    batches, m, n = shape
    x, y = (backend.array(np.ones(s, np.float32), min_dims=0) for s in ((batches, m, k), (batches, k, n)))
    product = backend.matmul(x, y)
    for value in (product, backend.tanh(product) + 1):
        assert backend.evaluate(value).get().shape == shape


@pytest.mark.parametrize("shape", [(2, 40, 50), (40, 50), (1, 3), (3, 1), (600, 700)], ids=str)
def test_sums_of_nothing_are_zero(backend, shape) -> None:
    *batches, m, n = shape
    x, y = (backend.array(np.ones(s, np.float32), min_dims=0) for s in ((*batches, m, 0), (*batches, 0, n)))
    np.testing.assert_array_equal(backend.evaluate(backend.matmul(x, y)).get(), np.zeros(shape))
    np.testing.assert_array_equal(backend.evaluate(backend.matmul(x, y) * 2 + 1).get(), np.ones(shape))
