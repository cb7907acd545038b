# SPDX-License-Identifier: Apache-2.0
"""Response normalisation: both passes against the definition and central differences, accumulation, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import DTypeError, ShapeError
from tensorbackend.conformance import references as ref

# A backend serves all examples.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture],
                  max_examples=settings.default.max_examples // 2)  # fmt: skip


def near(actual: Any, expected: np.ndarray, dtype: str) -> None:
    """Within some roundings of the type, and of float32 sums."""
    precision = 24 * max(ref.EPSILON[dtype], ref.EPSILON["float32"] if dtype != "float64" else 0)
    actual = ref.wide(actual.get()).reshape(expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=precision, atol=precision * (1 + np.abs(expected).max()))


def gradient(layer: Any, i: np.ndarray, e: np.ndarray, ascale: float, bpower: float) -> np.ndarray:
    """By the sums of the contract's formula, map by map."""
    o, denom = ref.normalised(layer, i, ascale, bpower)
    J, grad = layer.JTRS[0], e * denom**-bpower
    for c in range(layer.C):
        for by in range(max(0, c - J // 2), min(layer.C, c + J // 2 + 1)):
            grad[c] -= 2 * bpower * ascale / J * i[c] * o[by] * e[by] / denom[by]
    return grad


@shared
@given(
    sizes=st.fixed_dictionaries(
        {
            "N": st.sampled_from([1, 3, 16, 37]),
            "C": st.integers(1, 9),
            "D": st.sampled_from([1, 1, 2]),
            "H": st.integers(1, 7),
            "W": st.integers(1, 7),
            "J": st.sampled_from([1, 3, 5, 11]),
        }
    ),
    dtype=st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16"]),
    powers=st.sampled_from([(1.0, 1.0), (0.5, 0.75), (0.7, 0.5), (0.3, 0.25), (2.0, -0.5), (0.1, 0.0)]),
)
def test_passes_are_their_definitions(backend: Any, sizes: dict, dtype: str, powers: tuple[float, float]) -> None:
    layer = backend.lrn_layer(dtype, **sizes)
    hosts = [ref.draw(layer.dimI, dtype, n) for n in range(4)]
    I, E, O, delta = (backend.array(x.reshape(layer.dimI2), dtype=x.dtype) for x in hosts)
    i, e, old_o, old_d = map(ref.wide, hosts)
    denom = backend.empty(layer.dimI2, dtype)
    keywords = {"ascale": powers[0], "bpower": powers[1]}
    o, d = ref.normalised(layer, i, *powers)
    backend.fprop_lrn(layer, I, O, denom, alpha=0.5, beta=2.0, **keywords)
    near(O, 0.5 * o + 2.0 * old_o, dtype)
    near(denom, d, dtype)
    backend.fprop_lrn(layer, I, O, denom, **keywords)
    near(O, o, dtype)
    backend.bprop_lrn(layer, I, O, E, delta, denom, alpha=-1.0, beta=0.5, **keywords)
    near(delta, 0.5 * old_d - gradient(layer, i, e, *powers), dtype)


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.0), (1.0, 3.0)])
def test_each_factor_alone_takes_effect(backend: Any, alpha: float, beta: float) -> None:
    layer = backend.lrn_layer("float32", 4, 5, H=3, W=2, J=3)
    I, E = (backend.array(ref.draw(layer.dimI, "float32", n)) for n in range(2))
    O, delta, denom, plain_o, plain_delta, plain_denom = (backend.ones(layer.dimI) for _ in range(6))
    backend.fprop_lrn(layer, I, plain_o, plain_denom)
    backend.bprop_lrn(layer, I, plain_o, E, plain_delta, plain_denom)
    backend.fprop_lrn(layer, I, O, denom, alpha=alpha, beta=beta)
    backend.bprop_lrn(layer, I, plain_o, E, delta, denom, alpha=alpha, beta=beta)
    near(O, alpha * plain_o.get() + beta, "float32")
    near(denom, plain_denom.get(), "float32")
    near(delta, alpha * plain_delta.get() + beta, "float32")


LONG = [(32, 20, 1, 13, 11, 5), (2, 300, 1, 3, 3, 255), (1, 8, 1, 1, 1, 301), (700, 3, 1, 2, 2, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", LONG)
def test_wide_windows_and_long_strips(backend: Any, sizes: tuple[int, ...]) -> None:
    layer = backend.lrn_layer("float32", *sizes)
    i, e = ref.draw(layer.dimI, "float32"), ref.draw(layer.dimI, "float32", 1)
    I, E, O, denom, delta = backend.array(i), backend.array(e), *(backend.empty(layer.dimI) for _ in range(3))
    backend.fprop_lrn(layer, I, O, denom, ascale=0.3, bpower=0.75)
    backend.bprop_lrn(layer, I, O, E, delta, denom, ascale=0.3, bpower=0.75)
    near(O, ref.normalised(layer, ref.wide(i), 0.3, 0.75)[0], "float32")
    near(delta, gradient(layer, ref.wide(i), ref.wide(e), 0.3, 0.75), "float32")


@pytest.mark.parametrize("bpower", [0.75, 0.7])
def test_denominators_that_have_no_ordinary_power(backend: Any, bpower: float) -> None:
    layer = backend.lrn_layer("float32", 5, 1)
    I, O, denom = backend.array([[0.0, 1, 2, np.inf, np.nan]], np.float32), backend.empty((1, 5)), backend.empty((1, 5))
    backend.fprop_lrn(layer, I, O, denom, ascale=-1.0, bpower=bpower)
    np.testing.assert_array_equal(denom.get(), [[1, 0, -3, -np.inf, np.nan]])
    np.testing.assert_allclose(O.get()[0, :2], [0, np.inf])
    assert np.isnan(O.get()[0, [2, 4]]).all()
    E, delta = backend.ones((1, 5)), backend.empty((1, 5))
    denom[:] = np.array([[np.inf, 1e30, 1, 1e-30, np.nan]], np.float32)
    backend.bprop_lrn(layer, backend.zeros((1, 5)), backend.zeros((1, 5)), E, delta, denom, ascale=-1.0, bpower=bpower)
    expected = [[0, 1e30**-bpower, 1, 1e-30**-bpower, np.nan]]
    np.testing.assert_allclose(delta.get(), expected, rtol=1e-5)


def test_narrow_numbers_round_nothing(backend: Any) -> None:
    layer = backend.lrn_layer("float64", 2, 3, J=3)
    I, O, denom = backend.ones((3, 2), np.float64), backend.empty((3, 2), np.float64), backend.empty((3, 2), np.float64)
    backend.fprop_lrn(layer, I, O, denom, ascale=np.float16(2), bpower=np.float32(1))
    np.testing.assert_allclose(denom.get()[:, 0], [1 + 4 / 3, 3, 1 + 4 / 3], rtol=1e-12)
    np.testing.assert_allclose(O.get(), 1 / denom.get(), rtol=1e-12)
    backend.bprop_lrn(layer, I, O, I, backend.empty((3, 2), np.float64), denom, ascale=np.array(2.0), alpha=np.int8(2))


def test_gradient_by_central_differences(backend: Any) -> None:
    layer = backend.lrn_layer("float64", 3, 6, H=2, W=3, J=3)
    i, e, direction = (ref.draw(layer.dimI2, seed=n) for n in range(3))
    I, E = backend.array(i, np.float64), backend.array(e, np.float64)
    O, denom, delta = (backend.empty(layer.dimI2, np.float64) for _ in range(3))
    backend.fprop_lrn(layer, I, O, denom, ascale=0.7, bpower=0.75)
    backend.bprop_lrn(layer, I, O, E, delta, denom, ascale=0.7, bpower=0.75)
    ends = []
    for sign in (1, -1):
        moved = backend.array(i + sign * 1e-6 * direction, np.float64)
        backend.fprop_lrn(layer, moved, O, denom, ascale=0.7, bpower=0.75)
        ends.append((O.get() * e).sum())
    assert (delta.get() * direction).sum() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-7)


def test_strided_operands_are_copied(backend: Any) -> None:
    layer = backend.lrn_layer("float32", 4, 5, H=3, W=2, J=3)
    i = ref.draw(layer.dimI2, "float32")
    wide, room = backend.array(np.concatenate([i, i], 1)), backend.zeros((layer.nOut, 8))
    denom = backend.empty((layer.N, layer.nOut))
    backend.fprop_lrn(layer, wide[:, 4:], room[:, :4], denom.T)
    o, d = ref.normalised(layer, ref.wide(i).reshape(layer.dimI), 1.0, 1.0)
    near(room[:, :4], o.reshape(layer.dimI2), "float32")
    near(denom.T, d.reshape(layer.dimI2), "float32")
    assert not room.get()[:, 4:].any()


def test_the_layer_is_a_pool_layer_over_maps(backend: Any) -> None:
    layer = backend.lrn_layer("float32", 8, 16, H=5, W=4, J=5)
    assert (layer.op, layer.JTRS, layer.padding, layer.strides) == ("lrn", (5, 1, 1, 1), (2, 0, 0, 0), (1, 1, 1, 1))
    assert layer.dimI == layer.dimO == (16, 1, 5, 4, 8)


def test_bad_arguments_are_refused(backend: Any) -> None:
    with pytest.raises(ShapeError, match=r"J[\s\S]*4[\s\S]*odd"):
        backend.lrn_layer("float32", 1, 8, J=4)
    layer = backend.lrn_layer("float32", 3, 4, J=3)
    I, O, denom = backend.ones(layer.dimI2), backend.zeros(layer.dimI2), backend.empty(layer.dimI2)
    with pytest.raises(ShapeError, match=r"size of denom[\s\S]*12 elements"):
        backend.fprop_lrn(layer, I, O, denom[:2])
    with pytest.raises(DTypeError, match=r"type of O[\s\S]*float64"):
        backend.fprop_lrn(layer, I, backend.zeros(layer.dimI2, np.float64), denom)
    with pytest.raises(ValueError, match="overlaps"):
        backend.fprop_lrn(layer, I, O, O)
    with pytest.raises(ValueError, match="overlaps"):
        backend.bprop_lrn(layer, I, O, I, O, denom)
    pool = backend.pool_layer("float32", "avg", 3, 4, J=3, pad_c=1, str_c=1)
    with pytest.raises(TypeError, match=r"fprop_lrn: layer[\s\S]*avg[\s\S]*be.lrn_layer"):
        backend.fprop_lrn(pool, I, O, denom)
    with pytest.raises(TypeError, match=r"bprop_lrn: layer[\s\S]*avg[\s\S]*be.lrn_layer"):
        backend.bprop_lrn(pool, I, I, I, O, denom)
    np.testing.assert_array_equal(O.get(), 0)
