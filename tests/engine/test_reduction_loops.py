# SPDX-License-Identifier: Apache-2.0
"""How reductions are walked: axes of length 1, passes that are cut into segments, lengths around the blocks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tensorbackend import Backend, using
from tensorbackend.backends import caches, jit, native, warm
from tensorbackend.backends.cpu import CPUBackend
from tensorbackend.backends.toolchain import cpu_features
from tensorbackend.codegen.c import print_kernel
from tensorbackend.codegen.nest import MANY, SHORT, nest
from tensorbackend.graph import fuse

pytestmark = pytest.mark.rehearsed

SINGLE = [((7, 1), 1), ((1, 7), 0), ((7, 1, 3), 1), ((1, 1), None), ((1, 7, 1, 3), (0, 2))]


def kernels_of(tree: object) -> list[fuse.Kernel]:
    """The kernels that assigning a tree becomes."""
    target = tree.backend.empty(tree.shape, tree.dtype, min_dims=0)
    leaves, _ = fuse.walk(tree)
    return fuse.schedule([fuse.Statement(target.structure, tree, 0)], [leaves]).steps


@pytest.mark.parametrize(("shape", "axis"), SINGLE)
def test_a_reduction_of_one_element_each_is_a_map(backend: Backend, shape: tuple[int, ...], axis: object) -> None:
    values = np.resize(np.array([-0.0, 1.5, np.nan, -np.inf, -2.0], np.float32), shape)
    x = backend.array(values, min_dims=0)
    names = ["sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin"]
    for name in names if not isinstance(axis, tuple) else names[:-2]:
        tree = getattr(backend, name)(x, axis)
        assert nest(kernels_of(tree)[0]).form == "map"
        expected = getattr(np, name)(values, axis=axis, keepdims=True)
        got = tree.asnumpyarray().reshape(expected.shape)
        assert np.array_equal(got, expected, equal_nan=name not in ("any", "all"))
        numbers = ~np.isnan(expected)
        assert np.array_equal(np.signbit(got[numbers].astype("f")), np.signbit(expected[numbers].astype("f")))


def test_an_axis_of_one_among_reduced_axes_is_dropped(backend: Backend) -> None:
    x = backend.ones((1, 5, 1, 4))
    assert nest(kernels_of(backend.sum(x))[0]).kernel.shape == (20,)
    assert backend.sum(x).asnumpyarray().item() == 20


WINDOWS = [
    ((8, 3, 14, 2, 15, 2), (3, 5), 2), ((40, 7, 2, 9, 4, 3), (2, 4), 2), ((70, 20, 7), (0, 2), 2),
    ((9, 30, 1, 5, 5), (0, 2, 3, 4), 2), ((30, 20, 20, 4), (1, 3), 2), ((70, 20, 65), (0, 2), 1),
    ((7, 20, 7), (0, 2), 1), ((9, 3, 40, 5), (0, 3), 2), ((60, 30, 5), (0, 1), 1), ((60, 30, 5), (1, 2), 1),
    ((60, 30, 5), 2, 1),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis", "steps"), WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "uint8", "bool"])
def test_short_rows_with_an_axis_between_are_reduced_in_two_steps(
    backend: Backend, shape: tuple[int, ...], axis: object, steps: int, dtype: str
) -> None:
    """Sums over windows of images took 30 times as long, row by row of two elements."""
    wide = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 99, shape).astype(np.float64)
    if dtype in ("float32", "float64"):
        wide[wide == 7] = np.nan
    x = backend.array(wide, dtype=dtype, min_dims=0)
    for name in ("sum", "max", "min"):
        tree = getattr(backend, name)(x, axis) * 2
        assert len(kernels_of(tree)) == steps
        wanted = 2 * getattr(np, name)(wide, axis=axis, keepdims=True)
        got = tree.asnumpyarray().astype(np.float64).reshape(wanted.shape)
        np.testing.assert_allclose(got, wanted, rtol=2**-8 if dtype == "bfloat16" else 0)


def test_a_reduction_that_others_need_in_full_stays_in_their_kernel(backend: Backend) -> None:
    x = backend.array(np.random.default_rng(0).standard_normal((70, 20, 7)), min_dims=0)
    assert len(kernels_of(x - backend.sum(x, (0, 2)))) == 1
    assert len(kernels_of(backend.sum(backend.exp(x), (0, 2)))) == 1
    turned = backend.array(np.ones((20, 70, 7), np.float32), min_dims=0).transpose((1, 0, 2))
    assert len(kernels_of(backend.sum(turned, (0, 2)))) == 1  # in memory these axes lie side by side
    assert backend.sum(3.0).asnumpyarray() == 3


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64"])
def test_extremes_of_integers_are_found_wherever_they_are(backend: Backend, dtype: str) -> None:
    """Also where 0 lies beyond all numbers."""
    for length in (1, 37, 64, 300):
        for least in (1, -90 if dtype != "uint16" else 40_000):
            host = np.full((length, length), least + 20)
            np.fill_diagonal(host, least)
            x = backend.array(host, dtype=dtype)
            assert (backend.min(x, axis=1).asnumpyarray() == least).all()
            x[:] = backend.array(2 * least + 20 - host, dtype=dtype)
            assert (backend.max(x, axis=1).asnumpyarray() == (least + 20)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("length", [37, 64, 200, 5000])
def test_products_along_rows_are_no_sums(backend: Backend, dtype: str, length: int) -> None:
    """Powers of two have exact products. They are computed first: sums of such values have loops of their own."""
    x = np.exp2(np.random.default_rng(length).integers(-1, 2, (3, length)).astype(float))
    x[:, 9:] = 1
    x[:, -1] = [0.5, 2, 4]
    tree = backend.prod(backend.array(x / 2, dtype=dtype, min_dims=0) * 2, axis=1)
    assert np.array_equal(tree.asnumpyarray(), x.prod(1, keepdims=True))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_columns_see_what_varies_along_their_rows_alone(backend: Backend, dtype: str) -> None:
    a, b, x = np.arange(3.0).reshape(3, 1, 1), np.arange(5.0).reshape(1, 5, 1), np.arange(30.0).reshape(3, 5, 2)
    row, column, values = (backend.array(v, dtype=dtype, min_dims=0) for v in (a, b, x))
    tree = backend.sum(backend.where(backend.equal(row * 2, column), values, 0), axis=1)
    assert np.array_equal(tree.asnumpyarray(), np.where(a * 2 == b, x, 0).sum(1, keepdims=True))
    scaled = backend.sum((row * column + row) * values, axis=1)
    assert np.array_equal(scaled.asnumpyarray(), ((a * b + a) * x).sum(1, keepdims=True))


@pytest.mark.parametrize("axis", [0, 1, None])
def test_reductions_read_what_lies_across(backend: Backend, axis: int | None) -> None:
    """It is turned in tiles for maps alone; most operands decide along which axis a reduction goes."""
    random = np.random.default_rng(0)
    x, y, z = (random.integers(-9, 9, shape) for shape in [(70, 90), (70, 90), (90, 70)])
    a, b, c = (backend.array(values, dtype="float32") for values in (x, y, z))
    for tree, values in ((a + b + c.T, x + y + z.T), (a.T + b.T + c, (x + y).T + z)):
        for name in ("sum", "max", "argmin"):
            found = getattr(backend, name)(tree, axis).asnumpyarray()
            np.testing.assert_array_equal(found.ravel(), getattr(np, name)(values, axis).ravel(), err_msg=name)


def test_reductions_of_reductions(backend: Backend) -> None:
    """Values of rows and columns, spread and reduced again: they wait from one pass to the next."""
    values = np.random.default_rng(0).integers(-9, 9, (37, 65))
    x = backend.array(values, dtype="float32")
    for axis in (0, 1):
        spread = backend.broadcast_to(backend.max(x, axis), x.shape)
        expected = values.max(axis, keepdims=True) * values.shape[axis]
        np.testing.assert_array_equal(backend.sum(spread, axis).asnumpyarray(), expected)
        np.testing.assert_array_equal((x + backend.sum(spread, axis)).asnumpyarray(), values + expected)


# Rows in bands

BANDED = [(37, 64), (100, 3), (18, 100), (2, 5, 65), (9, 1000), (3, 5000), (0, 9)]


def banded(be: Backend, x: object, row: object, flags: object) -> list:
    """Trees of several passes over rows: with values before, between and after them, and of several types."""
    mean = be.mean(x, axis=-1)
    return [
        be.log_softmax(x, axis=-1) * row,
        be.sqrt(be.sum(be.square(x), axis=-1)),
        (x - mean) / be.sqrt(be.mean(be.square(x - mean), axis=-1) + row),
        be.where(be.greater(mean, row), be.max(x, axis=-1), be.sum(be.exp(x - row), axis=-1)),
        be.argmax(be.where(flags, x - mean, -x), axis=-1) + 1,
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape", BANDED)
def test_rows_of_several_passes(backend: Backend, shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(3)
    x = backend.array(rng.standard_normal(shape), dtype=dtype, min_dims=0)
    row = backend.array(rng.random((*shape[:-1], 1)) + 0.5, dtype=dtype, min_dims=0)
    flags = backend.array(rng.random((*shape[:-1], 1)) < 0.5, min_dims=0)
    plain = CPUBackend(jit=False)
    same = [plain.array(t.asnumpyarray(), dtype=t.dtype, min_dims=0) for t in (x, row, flags)]
    for tree, expected in zip(banded(backend, x, row, flags), banded(plain, *same)):
        got, wanted = tree.asnumpyarray(), expected.asnumpyarray()
        assert np.allclose(got.astype("d"), wanted.astype("d"), rtol=2e-2 if dtype == "bfloat16" else 1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [64, 100, 300])
def test_a_row_has_the_same_bits_alone_and_in_a_band(backend: Backend, length: int) -> None:
    x = backend.array(np.random.default_rng(4).standard_normal((35, length)).astype("f"))
    row, flags = backend.ones((35, 1)), backend.array(np.arange(35).reshape(35, 1) % 2 == 0)
    whole = [tree.asnumpyarray() for tree in banded(backend, x, row, flags)]
    for r in (0, 15, 16, 34):
        alone = banded(backend, x[r : r + 1], row[r : r + 1], flags[r : r + 1])
        for tree, expected in zip(alone, whole):
            assert np.array_equal(tree.asnumpyarray(), expected[r : r + 1])


# Rows stored beside the next

BESIDE = [(37, 64), (100, 3), (2, 5, 65), (9, 1000), (33, 127), (3, 5000), (1, 4099), (0, 9), (21, 90001)]
"""The last is so large that results go past the cache; its rows begin anywhere in a line."""


def scaled_rows(be: Backend, x: object, row: object) -> list:
    """Trees whose first pass adds up what it computes, and whose last stores an element for each."""
    away = x - row
    near = be.sum(be.square(away), axis=-1)
    return [
        x / be.sqrt(near + 1),
        away * be.rsqrt(be.mean(be.square(away), axis=-1) + row) + near,
        x * be.sum(away * be.sum(be.abs(away), axis=-1), axis=-1),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape", BESIDE)
def test_rows_stored_beside_the_next(backend: Backend, shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(5)
    x = backend.array(rng.random(shape), dtype=dtype, min_dims=0)
    row = backend.array(rng.random((*shape[:-1], 1)) + 2, dtype=dtype, min_dims=0)
    plain = CPUBackend(jit=False)
    same = [plain.array(t.asnumpyarray(), dtype=t.dtype, min_dims=0) for t in (x, row)]
    for tree, expected in zip(scaled_rows(backend, x, row), scaled_rows(plain, *same)):
        out = backend.empty(tree.shape, tree.dtype, min_dims=0)
        out[:] = tree
        wanted = expected.asnumpyarray().astype("d")
        assert np.allclose(out.get().astype("d"), wanted, rtol=2e-2 if dtype == "bfloat16" else 2e-5)
        assert_same_on_all_threads(out, tree)


def test_rows_stored_beside_the_next_over_what_they_were_made_of(backend: Backend) -> None:
    for shape in [(35, 64), (7, 3001), (21, 90001)]:
        x = backend.array(np.random.default_rng(6).random(shape).astype("f"))
        row = backend.ones((shape[0], 1)) * 2
        for k in range(3):
            expected = scaled_rows(backend, x, row)[k].asnumpyarray()
            y = backend.copy(x)
            y[:] = scaled_rows(backend, y, row)[k]
            assert np.array_equal(y.get(), expected)


def test_rows_of_several_axes_stored_beside_the_next(backend: Backend) -> None:
    values = np.random.default_rng(7).random((3, 5, 130)).astype("f")
    x = backend.array(values, min_dims=0)
    maps = backend.array(np.arange(3.0).reshape(3, 1, 1).astype("f"), min_dims=0)
    tree = x * maps / backend.sum(backend.square(x - maps), axis=(0, 2))
    m = np.arange(3.0).reshape(3, 1, 1)
    expected = values * m / ((values - m) ** 2).sum((0, 2), keepdims=True)
    assert np.allclose(tree.asnumpyarray(), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_the_logarithm_of_the_softmax_of_one_number(backend: Backend, dtype: str) -> None:
    """A difference, without the exponential and the logarithm: 0, and NaN of what is not finite."""
    values = np.array([[3], [-7], [0]], dtype)
    if dtype != "int32":
        values = np.concatenate([values, np.array([[np.nan], [np.inf], [-np.inf]], dtype)])
    tree = backend.log_softmax(backend.array(values, dtype=dtype), 1)
    expected = np.where(np.isfinite(values), 0.0, np.nan)
    np.testing.assert_array_equal(tree.asnumpyarray(), expected)
    (kernel,) = kernels_of(tree)
    assert ("exp" in [i.op.name for i in kernel.body if i.op]) == (dtype == "int32")


# Passes in segments

PASSES: dict[str, Callable] = {
    "sum": lambda be, x, axis: be.sum(x, axis),
    "two sums": lambda be, x, axis: be.sum(x, axis) / be.sum(x * x, axis),
    "argmax of an expression": lambda be, x, axis: be.argmax(be.tanh(x), axis),
    "softmax": lambda be, x, axis: be.softmax(x, axis),
    "log-softmax": lambda be, x, axis: be.log_softmax(x, axis),
    "variance": lambda be, x, axis: be.var(x, axis),
    "normalised": lambda be, x, axis: (x - be.mean(x, axis)) / be.std(x, axis),
    "place and extreme": lambda be, x, axis: be.argmin(x, axis) + be.min(x, axis),
}


SEGMENTED = [
    *((name, shape, axis) for name in PASSES for shape, axis in [((9001, 17), 0), ((3, 70001), 1)]),
    *((name, (2, 4099, 33), 1) for name in ("softmax", "place and extreme")),
    *((name, (131, 1031), None) for name in ("softmax", "two sums")),
]


@pytest.mark.parametrize("backend", ["jit"], indirect=True)
@pytest.mark.parametrize(("name", "shape", "axis"), SEGMENTED)
def test_segments_change_no_number(backend: Backend, name: str, shape: tuple[int, ...], axis: int | None) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    tree = PASSES[name](backend, backend.array(values, min_dims=0), axis)
    out = backend.empty(tree.shape, tree.dtype, min_dims=0)
    out[:] = tree
    plain = CPUBackend(jit=False)
    expected = PASSES[name](plain, plain.array(values, min_dims=0), axis).asnumpyarray()
    np.testing.assert_allclose(out.get(), expected, rtol=2e-5, atol=2e-5)
    assert_same_on_all_threads(out, tree)


@pytest.mark.parametrize("backend", ["jit"], indirect=True)
def test_more_results_of_segments_than_one_task_joins(backend: Backend) -> None:
    """What lies beside them stays."""
    values = np.random.default_rng(0).integers(-4, 5, (2100, 1030))
    x, wide = backend.array(values, dtype="float32"), backend.full((1, 2048), 7)
    assert jit._wants_split(nest(kernels_of(backend.sum(x, 0))[0]))
    wide[:, :1030] = backend.sum(x, 0)
    np.testing.assert_array_equal(wide.get(), [[*values.sum(0), *[7] * 1018]])


@pytest.mark.parametrize("shape", [(500, 2, 100, 3), (100, 2, 500, 3), (3, 2, 40_000), (40_000, 2, 3)])
def test_segments_of_one_of_several_axes(backend: Backend, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)
    x = backend.array(values, min_dims=0)
    np.testing.assert_array_equal(backend.sum(x, (0, 2)).asnumpyarray(), values.sum((0, 2), keepdims=True))
    np.testing.assert_allclose(
        backend.var(x, (0, 2)).asnumpyarray(), values.var((0, 2), keepdims=True, dtype="d"), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("shape", "axis", "name", "wanted"),
    [
        ((3, 70_001), 1, "sum", True),
        ((64, 70_001), 1, "sum", False),
        ((3, 7001), 1, "sum", False),  # of little
        ((60, 2000), 0, "sum", False),  # a few numbers each
        ((9001, 17), 0, "sum", True),
        ((300, 20_000), 0, "sum", False),  # strips enough
        ((3, 70_001), 1, "softmax", True),
        ((8, 70_001), 1, "softmax", False),
        ((20_000, 256), 0, "softmax", True),  # strips of few columns
        ((300, 2000), 0, "softmax", False),
    ],
)
def test_which_reductions_go_by_segments(backend: Backend, shape: tuple, axis: int, name: str, wanted: bool) -> None:
    """Those of many numbers that would otherwise be the work of a few threads."""
    (kernel,) = kernels_of(PASSES[name](backend, backend.ones(shape), axis))
    assert jit._wants_split(nest(kernel)) == wanted
    assert jit._Work(nest(kernel), wanted).results == shape[1 - axis]


@pytest.mark.parametrize(("shape", "axis"), [((0, 5), 0), ((5, 0), 1), ((3, 0, 5), 1), ((0, 5, 0), (0, 2))])
def test_reductions_of_no_elements(backend: Backend, shape: tuple[int, ...], axis: object) -> None:
    plain = CPUBackend(jit=False)
    for name in ("sum", "prod", "mean", "var", "any", "all"):
        got, wanted = (getattr(be, name)(be.zeros(shape, min_dims=0), axis).asnumpyarray() for be in (backend, plain))
        np.testing.assert_array_equal(got, wanted, err_msg=name)


def assert_same_on_all_threads(out: object, tree: object) -> None:
    """The bits of a tree do not depend on the number of threads."""
    bits = out.get().tobytes()
    runtime = native.runtime()
    before = runtime.threads
    try:
        for threads in (1, 2, 5):
            runtime.set_threads(threads)
            out[:] = 0
            out[:] = tree
            assert out.get().tobytes() == bits
    finally:
        runtime.set_threads(before)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((40, 33), 0), ((5, 3), 0), ((9001, 17), 0), ((17, 9001), 1), ((3, 70001), 1)]
)
def test_the_first_extreme_is_found_and_not_a_number_before_all(backend: Backend, shape: tuple, axis: int,
                                                                 dtype: str) -> None:  # fmt: skip
    """Few different values, so that there are equals in all parts; NaN at the ends and in the middle of some rows."""
    values = np.random.default_rng(0).integers(1, 4, shape).astype(dtype)
    rows = np.moveaxis(values, axis, 1)
    rows[1:, :2] = 2  # extremes come later
    rows[0, : rows.shape[1] // 2] = 2
    if dtype != "int32":
        rows[1, -1] = rows[2, rows.shape[1] // 2 :] = np.nan
        if len(rows) > 5:
            rows[3, 0] = rows[4, 1] = rows[4, -1] = np.nan
    x = backend.array(values, dtype=dtype)
    for name in ("argmax", "argmin", "max", "min"):
        found = getattr(backend, name)(x, axis).asnumpyarray()
        np.testing.assert_array_equal(found, getattr(np, name)(values, axis, keepdims=True), err_msg=name)


@pytest.mark.parametrize(("shape", "axis"), [((40, 33), 0), ((9001, 17), 0), ((3, 70001), 1)])
def test_truth_of_columns_and_of_segments(backend: Backend, shape: tuple, axis: int) -> None:
    values = np.ones(shape)
    rows = np.moveaxis(values, axis, 1)
    rows[0, -1] = rows[1, 0] = 0
    rows[2] = 0
    x = backend.array(values, dtype="bool")
    for name in ("any", "all"):
        for truth in (x, backend.logical_not(x)):
            expected = getattr(np, name)(truth.asnumpyarray(), axis, keepdims=True)
            np.testing.assert_array_equal(getattr(backend, name)(truth, axis).asnumpyarray(), expected)
    np.testing.assert_array_equal(backend.sum(x, axis).asnumpyarray(), values.sum(axis, keepdims=True))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(("shape", "axis"), [((40, 33), 0), ((41, 33), 0), ((9001, 17), 0), ((3, 70001), 1)])
def test_products_of_columns_and_of_segments(backend: Backend, shape: tuple, axis: int, dtype: str) -> None:
    """Powers of two have exact products, whatever their order."""
    values = np.ones(shape)
    rows = np.moveaxis(values, axis, 1)
    for n, row in enumerate(rows):
        row[[0, n % len(row), len(row) // 2, -1]] = [2, 4, 0.5, 8]
    found = backend.prod(backend.array(values, dtype=dtype), axis).asnumpyarray()
    np.testing.assert_array_equal(found, values.prod(axis, keepdims=True))


def test_results_are_written_when_no_loop_reads_them_any_more(backend: Backend) -> None:
    """Two statements, of which one overwrites what the other's last loop reads."""
    values = np.random.default_rng(1).standard_normal((9001, 17)).astype(np.float32)
    x, mean = backend.array(values), backend.full((1, 17), 3.0)
    y = backend.empty(x.shape)
    with backend.fuse():
        y[:] = x - backend.mean(x, 0) + mean
        mean[:] = backend.mean(x, 0)
    np.testing.assert_allclose(y.get(), values - values.mean(0) + 3, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(mean.get(), values.mean(0, keepdims=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["softmax", "normalised"])
def test_segments_work_in_place(backend: Backend, name: str) -> None:
    values = np.random.default_rng(2).standard_normal((9001, 17)).astype(np.float32)
    x = backend.array(values)
    y = backend.empty(x.shape)
    y[:] = PASSES[name](backend, x, 0)
    x[:] = PASSES[name](backend, x, 0)
    assert x.get().tobytes() == y.get().tobytes()


def normalised(x: object) -> object:
    """Rows less their mean, over their standard deviation: two sums, one after the other, and a pass that writes."""
    be = x.backend
    away = x - be.mean(x, 1)
    return away / be.sqrt(be.mean(away * away, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [48, 2049, 4097])
@pytest.mark.parametrize("complexes", [False, True])
def test_rows_of_two_sums_beyond_the_caches(
    backend: Backend, length: int, dtype: str, complexes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "near_bytes", lambda: 0)
    monkeypatch.setattr(caches, "has_complexes", lambda: complexes)
    monkeypatch.setattr(warm, "name_of", lambda key: None)  # what is remembered was launched as before
    values = np.random.default_rng(0).standard_normal((5, length + 7)).astype(dtype)
    wanted = values[:, :length].astype(np.float64)
    wanted = (wanted - wanted.mean(1, keepdims=True)) / wanted.std(1, keepdims=True)
    out = backend.empty((5, length), dtype)
    out[:] = normalised(backend.array(values, dtype=dtype)[:, :length])
    assert np.allclose(out.get(), wanted, rtol=0, atol=1e-5 if dtype == "float32" else 1e-12)


def standardised(x: object, out: object, sums: object, scale: object) -> None:
    """Both moments of rows, which also stay, and rows by them: one pass that adds up and one that stores."""
    be = x.backend
    total, squares = be.sum(x, 1), be.sum(be.square(x - scale), 1)
    with be.fuse():
        sums[:, 0:1] = total
        sums[:, 1:2] = squares + sums[:, 1:2]
        out[:] = x * scale - total / be.sqrt(squares + 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("length", [2049, 3072, 4096, 7001])
def test_long_rows_beyond_the_caches_go_by_pieces_to_the_same_bits(
    backend: Backend, rows: int, length: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stores a row goes beside the sums of the next one."""
    monkeypatch.setattr(caches, "has_complexes", lambda: True)
    monkeypatch.setattr(warm, "name_of", lambda key: None)
    draw, small = np.random.default_rng(length), "float32" if "16" in dtype else dtype
    values, scales = draw.standard_normal((rows, length + 3)), draw.standard_normal((rows, 1))
    found = []
    for near in (1 << 40, -1):
        monkeypatch.setattr(caches, "near_bytes", lambda near=near: near)
        backend.structures.clear()
        backend.structures.plans.clear()
        for first in (0, 1, 3):
            x, scale = backend.array(values, dtype=dtype)[:, :length], backend.array(scales, dtype=small)
            wide, sums = backend.full((rows, length + 4), 7, dtype), backend.ones((rows, 2), small)
            standardised(x, wide[:, first : first + length], sums, scale)
            assert (np.delete(wide.get(), slice(first, first + length), 1) == 7).all()
            standardised(x, x, sums, scale)
            found.append([wide.get(), sums.get(), x.get()])
    for before, after in zip(found[:3], found[3:]):
        for a, b in zip(before, after):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("build", [lambda x: x * 2 + 1, normalised], ids=["map", "rows"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
def test_short_rows_beyond_the_caches_leave_what_is_beside_them(
    backend: Backend, build: Callable, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that end before the next line of the cache begins."""
    values = np.random.default_rng(0).integers(-9, 9, (7, 40)).astype(dtype)
    shapes = [(length, first) for length in (2, 3, 5, 9, 15, 17, 33) for first in (0, 1, 3, 6)]
    results = []
    for near in (1 << 40, 0):
        monkeypatch.setattr(caches, "near_bytes", lambda near=near: near)
        monkeypatch.setattr(warm, "name_of", lambda key: None)
        backend.structures.clear()
        backend.structures.plans.clear()
        wide = [backend.full((7, 48), 7, dtype=dtype) for _ in shapes]
        for out, (length, first) in zip(wide, shapes):
            x = backend.array(values, dtype=dtype)[:, :length]
            out[:, first : first + length] = build(x)
            assert (np.delete(out.get(), slice(first, first + length), 1) == 7).all()
        results.append([out.get() for out in wide])
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("shape", "axis"), [((3, 1024 * 40), 1), ((1024 * 40, 3), 0), ((16 * 40, 33), 0)])
def test_sums_of_float32_keep_what_one_number_would_lose(backend: Backend, shape: tuple, axis: int) -> None:
    """After 2^24 each part of a row adds 1, which float32 would round away."""
    values = np.zeros(shape)
    rows = np.moveaxis(values, axis, 1)
    rows[:, :: rows.shape[1] // 40] = 1
    rows[:, 0] = 2**24
    for of in (lambda x: x, lambda x: x * 1.0 + 0.0):
        found = backend.sum(of(backend.array(values)), axis).asnumpyarray()
        np.testing.assert_array_equal(found, values.sum(axis, keepdims=True).astype(np.float32))


@pytest.mark.parametrize("axis", [0, 1])
def test_sums_of_float64_are_of_float64(backend: Backend, axis: int) -> None:
    values = np.moveaxis(np.full((700, 40), 1 / 3), 1, axis)
    for of in (lambda x: x, lambda x: x * 1.0 + 0.0):
        found = backend.evaluate(backend.sum(of(backend.array(values, dtype="float64")), axis)).get()
        np.testing.assert_allclose(found, values.sum(axis, keepdims=True), rtol=1e-14)


VECTORS = ["", *(f"-mno-{feature}" for feature in ("avx512f", "avx") if feature in cpu_features().split())]


@pytest.mark.slow
@pytest.mark.parametrize("cflags", VECTORS)
@pytest.mark.parametrize("kinds", [("float32",) * 3, ("float64",) * 3, ("float32", "float64", "float16")])
def test_several_results_of_rows_beyond_the_caches(
    backend: Backend, kinds: tuple[str, str, str], cflags: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin anywhere in a line, one over what is read; what is beside them stays."""
    monkeypatch.setattr(caches, "near_bytes", lambda: 0)
    monkeypatch.setattr(warm, "name_of", lambda key: None)
    with using(cflags=cflags):
        for shape in [(3, 1000), (70, 37), (2, 2051)]:
            rows, length = shape
            values = np.random.default_rng(length).standard_normal(shape).astype(kinds[0])
            wide = [backend.full((rows, length + 9), 7, dtype=kind) for kind in kinds]
            first, second, third = (w[:, k : k + length] for k, w in zip((3, 8, 2), wide))
            first[:] = backend.array(values, dtype=kinds[0])
            with backend.fuse():
                away = normalised(first)
                second[:] = away + 1
                third[:] = away * 0.5
                first[:] = away
            wanted = values.astype(np.float64)
            wanted = (wanted - wanted.mean(1, keepdims=True)) / wanted.std(1, keepdims=True)
            for x, kind, expected in zip((first, second, third), kinds, (wanted, wanted + 1, wanted * 0.5)):
                error = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-5 if "float32" in kinds else 1e-12}[kind]
                assert np.allclose(x.get().astype("d"), expected, rtol=error, atol=error)
            for w, x in zip(wide, (first, second, third)):
                x[:] = 7
                assert (w.get() == 7).all()


BOTH = caches.AHEAD | caches.PAST


@pytest.mark.parametrize(
    ("expression", "in_place", "complexes", "elsewhere"),
    [
        (lambda be, x: x * 2, False, caches.PAST, BOTH),
        (lambda be, x: x * 2, True, 0, caches.AHEAD),
        (lambda be, x: be.tanh(x), False, caches.PAST | caches.NEXT, BOTH),
        (lambda be, x: be.tanh(x), True, 0, caches.AHEAD),
        (lambda be, x: be.sum(x, 1), False, 0, BOTH),
        (lambda be, x: be.var(x, 1), False, caches.AHEAD, BOTH),
        (lambda be, x: x / be.sum(x, 1), False, caches.PAST, BOTH),
        (lambda be, x: be.softmax(x, 1), False, caches.AHEAD, BOTH),
        (lambda be, x: x / be.sum(x, 0), False, caches.PAST, BOTH),
    ],
)
def test_how_kernels_go_about_memory(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, expression, in_place: bool, complexes: int, elsewhere: int
) -> None:
    """Beyond the caches; within them there is nothing to ask for or to store past."""
    (kernel,) = kernels_of(expression(backend, backend.ones((64, 640))))
    found = nest(replace(kernel, in_place=in_place))
    for has, wanted in ((True, complexes), (False, elsewhere)):
        monkeypatch.setattr(caches, "has_complexes", lambda has=has: has)
        for near, streams in ((0, wanted), (1 << 30, 0)):
            monkeypatch.setattr(caches, "near_bytes", lambda near=near: near)
            assert jit._Work(found, split=False).sizes[-3] == streams


def test_results_that_are_half_of_the_bytes_stay_in_the_cache_of_a_complex(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, z = (backend.ones((64, 640)) for _ in range(3))
    for tree, operands, complexes in ((x * 2, 2, 0), (x + y + z, 4, caches.PAST)):
        (kernel,) = kernels_of(tree)
        monkeypatch.setattr(caches, "near_bytes", lambda operands=operands: operands * 64 * 640 * 4 * 7 // 8)
        for has, wanted in ((True, complexes), (False, BOTH)):
            monkeypatch.setattr(caches, "has_complexes", lambda has=has: has)
            assert jit._Work(nest(kernel), split=False).sizes[-3] == wanted


@pytest.mark.parametrize(("columns", "one", "two"), [(512, True, True), (1568, False, False), (2049, True, False)])
def test_which_rows_are_asked_for_while_those_before_are_stored(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, columns: int, one: bool, two: bool
) -> None:
    monkeypatch.setattr(caches, "has_complexes", lambda: True)
    monkeypatch.setattr(caches, "near_bytes", lambda: 0)
    x, y = backend.ones((64, columns)), backend.ones((64, columns))
    for tree, wanted in ((x / backend.sum(x, 1), one), ((x + y) / backend.sum(x * y, 1), two)):
        (kernel,) = kernels_of(tree)
        streams = jit._Work(nest(kernel), split=False).sizes[-3]
        assert streams == (caches.PAST | caches.NEXT if wanted else caches.PAST)
        asks = "tb_bring1(" if len(kernel.inputs) == 1 else "tb_touch1("  # one row has the time to come later
        assert print_kernel(nest(kernel)).source.count(asks) == len(kernel.inputs)


@pytest.mark.parametrize(
    ("columns", "tree", "wanted"),
    [
        (2049, lambda be, x: x / be.sum(x, 1), True),
        (2048, lambda be, x: x / be.sum(x, 1), False),
        (512, lambda be, x: x / be.sum(x, 1), False),
        (2049, lambda be, x: x / be.sum(x, 0), False),
        (2049, lambda be, x: x / be.max(x, 1), False),
        (2049, lambda be, x: be.exp(x) / be.sum(be.exp(x), 1), False),  # which waits in the output
        (2049, lambda be, x: be.sum(x, 1), False),
        (4098, lambda be, x: (y := x[:, ::2]) / be.sum(y, 1), False),
        (2049, lambda be, x: (y := be.reshape(x, (2, 32, 2049))) / be.sum(y, (0, 2)), False),
    ],
)
def test_which_rows_are_stored_by_pieces(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, columns: int, tree: Callable, wanted: bool
) -> None:
    monkeypatch.setattr(caches, "has_complexes", lambda: True)
    for near in (0, 1 << 30):
        monkeypatch.setattr(caches, "near_bytes", lambda near=near: near)
        (kernel,) = kernels_of(tree(backend, backend.ones((64, columns))))
        by_pieces = wanted and not near
        assert jit._goes_by_pieces(nest(kernel), split=False) == by_pieces
        source = jit.prepare(kernel).source
        assert source == print_kernel(nest(kernel), by_pieces=by_pieces).source
        assert source.count("start - over : 0, to = till") == by_pieces  # each element is stored once


def test_the_second_pass_asks_for_the_next_short_rows(backend: Backend) -> None:
    """A few lines at a time, between its sums; of long rows the first pass asks, as it does of all that have one."""
    x = backend.ones((64, 100))
    (both,), (one,) = kernels_of(normalised(x)), kernels_of(x / backend.sum(x, 1))
    source = print_kernel(nest(both)).source
    assert source.index("tb_prefetch(") < source.index("tb_touch4(")
    assert source.count("tb_touch4(") == 1
    assert "tb_touch4(" not in print_kernel(nest(one)).source


SHORT_ROWS = {
    "sum": (lambda be, x: be.sum(x, axis=-1), lambda x: x.sum(-1, keepdims=True)),
    "max": (lambda be, x: be.max(x, axis=-1), lambda x: x.max(-1, keepdims=True)),
    "argmin": (lambda be, x: be.argmin(x, axis=-1), lambda x: x.argmin(-1, keepdims=True)),
    "a sum of squares": (lambda be, x: be.sum(x * x, axis=-1), lambda x: (x * x).sum(-1, keepdims=True)),
    "what is left of the mean": (lambda be, x: x - be.mean(x, axis=-1), lambda x: x - x.mean(-1, keepdims=True)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("shape", [(64, 4), (1025, 7), (200, 31), (3, 70, 16), (70, 2, 8)], ids=str)
@pytest.mark.parametrize("name", SHORT_ROWS)
def test_short_rows_are_reduced_side_by_side(backend: Backend, name: str, shape: tuple[int, ...], dtype: str) -> None:
    """Small whole numbers, whose sums are exact; means are rounded once."""
    values = np.random.default_rng(3).integers(-4, 5, shape).astype("f8")
    values[5 % shape[0], ..., 3] = -9
    tree, reference = SHORT_ROWS[name]
    got = backend.evaluate(tree(backend, backend.array(values, dtype=dtype, min_dims=0))).get().astype("f8")
    np.testing.assert_allclose(got, reference(values), rtol=2**-7 if dtype == "bfloat16" else 2**-23, atol=2**-20)


def test_which_rows_are_reduced_side_by_side(backend: Backend) -> None:
    def form(*shape: int, axis: int = -1) -> str:
        return nest(kernels_of(backend.sum(backend.ones(shape, min_dims=0) * 2, axis))[0], side_by_side=True).form

    assert form(MANY, SHORT - 1) == form(2, MANY, 5) == form(MANY, 2, 5) == "columns"
    assert form(MANY, SHORT) == form(MANY - 1, 5) == form(MANY // 2 - 1, 2, 5) == "rows"


def test_rows_of_several_vectors_that_are_read_once_from_afar_go_by_themselves(backend: Backend) -> None:
    def forms(rows: int, length: int) -> list[str]:
        x = backend.ones((rows, length))
        trees = backend.sum(x, 1), backend.var(x, 1), backend.softmax(x, 1)
        return [jit._nest(kernels_of(tree)[0]).form for tree in trees]

    assert forms(100, 40) == forms(140_000, 31) == ["columns"] * 3
    assert forms(110_000, 40) == ["rows", "columns", "columns"]


def test_each_element_of_short_rows_is_moved_and_its_power_taken_once(backend: Backend) -> None:
    """The loops of a softmax: one turn for what is read, one for what is stored, one exponential."""
    (kernel,) = kernels_of(backend.softmax(backend.ones((200, 10)), axis=1))
    source = print_kernel(nest(kernel, side_by_side=True)).source
    assert source.count("tb_turn4(") == 2 and source.count("exp_f32(") == 1, source


@pytest.mark.parametrize(("count", "form"), [(16, "columns"), (17, "rows"), (60, "rows")])
def test_rows_of_many_operands_do_not_fill_the_stack(backend: Backend, count: int, form: str) -> None:
    hosts = [np.random.default_rng(n).standard_normal((64, 20)) for n in range(count)]
    total = functools.reduce(operator.add, [backend.array(host, dtype="float64") for host in hosts])
    assert jit._nest(kernels_of(backend.sum(total, 1))[0]).form == form
    expected, scale = sum(hosts).sum(1), np.abs(hosts).sum((0, 2))
    assert (np.abs(backend.evaluate(backend.sum(total, 1)).get().ravel() - expected) <= 1e-14 * scale).all()
