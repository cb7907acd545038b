# SPDX-License-Identifier: Apache-2.0
"""Products on the processor's matrix unit: any shape and layout, within the bound of multiply-adds."""

from __future__ import annotations

import numpy as np
import pytest

from tensorbackend import Backend, dtypes
from tensorbackend.backends import cpu_conv, native, tuning
from tensorbackend.primitives import gemm, gemm_planes
from tensorbackend.settings import using
from tests.engine.test_gemm import assert_product, laid, numbers

DTYPES = ["float32", "float16", "bfloat16"]
SHAPES = [
    (32, 32, 32), (1, 1, 40), (33, 65, 97), (100, 70, 90), (16, 200, 33), (300, 17, 64), (70, 130, 1300), (64, 50, 96),
    (300, 257, 160), (200, 60, 1100),
]  # fmt: skip
LAYOUTS = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (2, 3, 0), (0, 2, 1), (4, 1, 1), (5, 5, 2)]
"""Of a, b and the result, as `test_gemm.LAYOUTS` has them."""


@pytest.fixture(params=[0, 1 << 19], ids=["shared", "kept"])
def unit(request, jit, monkeypatch):
    """The compiled CPU backend with the unit chosen wherever it can be, and copies shared or each task's own."""
    if not cpu_conv.facts(np.dtype("float32")).matrix_unit:
        pytest.skip("for a processor with a matrix unit, or with AVX-512 and TB_CFLAGS=-DTB_SOFT_TILES")
    backend = jit
    backend.structures.clear()
    for name in ("UNIT_MULTIPLY", "UNIT_START", "UNIT_COPY_NEAR", "UNIT_COPY_FAR", "KEPT_MULTIPLY", "KEPT_START"):
        monkeypatch.setattr(gemm_planes, name, -1.0)
    for name in ("KEPT", "KEPT_NARROW"):
        monkeypatch.setattr(gemm_planes, name, request.param)
    if not on_unit(backend, "float32"):
        backend.structures.clear()
        pytest.skip("for products that can go to the matrix unit")
    yield backend
    backend.structures.clear()


def on_unit(be, dtype: str) -> bool:
    """Whether a product of a type goes to the unit."""
    x, y, z = be.ones((64, 64), dtype=dtype), be.ones((64, 64), dtype=dtype), be.empty((64, 64), dtype=dtype)
    return "TB_PLANES" in be.explain(z, be.dot(x, y)).steps[0].source


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layouts", LAYOUTS)
def test_products_of_any_shape_and_layout(unit, shape, dtype, layouts) -> None:
    m, n, k = shape
    a, b = numbers(0, m, k, dtype=dtype), numbers(1, k, n, dtype=dtype)
    out = laid(unit, numbers(2, m, n, dtype=dtype), layouts[2])
    out[:] = unit.dot(laid(unit, a, layouts[0]), laid(unit, b, layouts[1]))
    assert_product(out.get(), a, b, dtypes.as_dtype(dtype))


@pytest.mark.parametrize("shape", [(40, 500, 700), (300, 257, 160), (64, 64, 1100)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [0, 1])
def test_a_result_has_the_same_bits_in_any_layout(unit, shape, dtype, layout) -> None:
    """Planes are multiplied in one order, though rows and columns change places where columns are side by side."""
    m, n, k = shape
    x, y = (laid(unit, numbers(i, *s, dtype=dtype), layout) for i, s in enumerate([(m, k), (k, n)]))
    wanted = unit.evaluate(unit.dot(x, y)).get()
    for other in (1, 2):
        got = laid(unit, np.zeros((m, n), wanted.dtype), other)
        got[:] = unit.dot(x, y)
        np.testing.assert_array_equal(got.get(), wanted)


def test_no_product_is_less_exact_than_by_multiply_adds(unit) -> None:
    """The mean error of many sums is at most that of float32 multiply-adds."""
    a, b = numbers(0, 256, 512), numbers(1, 512, 256)
    exact, scale = a.astype(np.float64) @ b.astype(np.float64), np.abs(a) @ np.abs(b)
    errors = []
    for on in (True, False):
        with using(matrix_unit=on):
            unit.structures.clear()
            assert on_unit(unit, "float32") == on
            got = unit.evaluate(unit.dot(unit.array(a), unit.array(b))).get()
        errors.append(np.mean(np.abs(got - exact) / scale))
    assert errors[0] <= errors[1]


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4028235e38])
@pytest.mark.parametrize("layout", [0, 1])
def test_numbers_that_are_not_finite_or_huge(unit, value, layout) -> None:
    a, b = numbers(0, 40, 50), numbers(1, 50, 70)
    a[3, 7], b[9, 5] = value, -value
    with np.errstate(all="ignore"):
        expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    got = unit.evaluate(unit.dot(laid(unit, a, layout), laid(unit, b, layout))).get()
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_and_tails(unit, dtype) -> None:
    a, b, c = numbers(0, 3, 60, 40, dtype=dtype), numbers(1, 40, 90, dtype=dtype), numbers(2, 60, 1, dtype=dtype)
    x, y, z = (unit.array(v, dtype=v.dtype, min_dims=0) for v in (a, b, c))
    wide = a.astype(np.float32) @ b.astype(np.float32)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    got = unit.evaluate(unit.tanh(unit.matmul(x, y) + z)).get().astype(np.float32)
    np.testing.assert_allclose(got, np.tanh(wide + c.astype(np.float32)), rtol=tolerance, atol=tolerance)


def test_long_sums_are_copied_in_phases(unit, monkeypatch) -> None:
    monkeypatch.setattr(gemm, "COPIED", 1 << 14)
    monkeypatch.setattr(gemm_planes, "UNIT_PANEL", 96 * 64)
    monkeypatch.setattr(gemm_planes, "SIDE", 96)
    a, b = numbers(0, 130, 500), numbers(1, 500, 200)
    got = unit.evaluate(unit.dot(unit.array(a), unit.array(b))).get()
    assert_product(got, a, b, np.dtype(np.float32))


@pytest.mark.parametrize("shape", [(300, 257, 160), (200, 60, 1100), (40, 500, 700)], ids=str)
def test_threads_change_no_bits(unit, shape) -> None:
    """Whichever thread copies what, and keeps it for its next task: three batches of several tasks each."""
    m, n, k = shape
    x, y = unit.array(numbers(0, 3, m, k), min_dims=0), unit.array(numbers(1, 3, k, n), min_dims=0)
    runtime = native.runtime()
    before, found = runtime.threads, []
    try:
        for threads in (1, 2, 3):
            runtime.set_threads(threads)
            unit.structures.clear()
            found.append(unit.evaluate(unit.matmul(x, y)).get())
    finally:
        runtime.set_threads(before)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    for got, a, b in zip(found[0], x.get(), y.get()):
        assert_product(got, a, b, np.dtype(np.float32))


def test_without_a_seed_multiply_adds_are_a_candidate(unit, monkeypatch) -> None:
    """Where the clock chooses: the second of the ways, before NumPy's BLAS."""
    monkeypatch.setattr(tuning, "ENOUGH_NS", 0)
    monkeypatch.setattr(tuning, "choose", lambda step, ways, prepared: ways.index("multiply-adds"))
    unseeded = Backend.allocate_backend("cpu")
    try:
        a, b = numbers(0, 96, 200), numbers(1, 200, 70)
        x, y, z = unseeded.array(a), unseeded.array(b), unseeded.empty((96, 70))
        assert "TB_PLANES" not in unseeded.explain(z, unseeded.dot(x, y)).steps[0].source
        z[:] = unseeded.dot(x, y)
        assert_product(z.get(), a, b, np.dtype(np.float32))
        monkeypatch.setattr(tuning, "choose", lambda step, ways, prepared: 0)
        assert on_unit(unseeded, "float32") and on_unit(unseeded, "bfloat16")
    finally:
        unseeded.cleanup_backend()
