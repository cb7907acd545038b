# SPDX-License-Identifier: Apache-2.0
"""Pooling: both passes against the definition over random geometry, places, accumulation, Caffe's sizes, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from tensorbackend import DTypeError, ShapeError
from tensorbackend.conformance import references as ref

# A backend serves all examples. An example may need four compiled files, so there are few; the long profile has many.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
                  max_examples=settings.default.max_examples // 4)  # fmt: skip
KINDS = pytest.mark.parametrize("op", ["max", "avg", "l2"])


@st.composite
def geometries(draw: Callable) -> dict[str, Any]:
    """Arguments of `pool_layer`: any axes, windows over maps too, padding up to below the window, strides beyond it."""
    found = {"N": draw(st.sampled_from([1, 2, 3, 16, 31, 257])), "C": draw(st.integers(1, 5))}
    axes = draw(st.sampled_from(["HW", "HW", "W", "DHW", "C", "CHW"]))
    for image, window, letter in zip("CDHW", "JTRS", "cdhw"):
        if image not in axes:
            continue
        found[image] = draw(st.integers(1, 9))
        found[window] = draw(st.integers(1, 6))
        pad = st.integers(0, found[window] - 1)
        found[f"pad_{letter}"] = draw(st.one_of(pad, st.tuples(pad, pad)))
        found[f"str_{letter}"] = draw(st.one_of(st.none(), st.integers(1, found[window] + 1)))
    return found


def layer_of(backend: Any, op: str, sizes: dict[str, Any], dtype: str = "float32") -> Any:
    """The layer, or a rejected example when its windows do not fit."""
    try:
        return backend.pool_layer(dtype, op, **sizes)
    except ShapeError as error:
        assert "no output" in str(error) or "wholly outside" in str(error)
        assume(False)


def close(actual: np.ndarray, expected: np.ndarray, dtype: str, factor: float = 8.0) -> None:
    """Within some roundings of the type, and of float32 sums."""
    precision = factor * max(ref.EPSILON[dtype], ref.EPSILON["float32"] if dtype != "float64" else 0)
    actual = ref.wide(actual).reshape(expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=precision, atol=16 * precision)


def check_both_passes(backend: Any, layer: Any, dtype: str, places: str = "uint8") -> None:
    """Forward and back, with alpha and beta and without, against the definition."""
    i, e, old_o, old_i = (ref.draw(d, dtype, n) for n, d in enumerate((layer.dimI, layer.dimO, layer.dimO, layer.dimI)))
    i = np.where(ref.draw(layer.dimI, "float32", 9).astype(np.float32) > 0.8, 0, i.astype(np.float32)).astype(i.dtype)
    I, E, O, grad = (backend.array(x.reshape(-1, x.shape[-1]), dtype=x.dtype) for x in (i, e, old_o, old_i))
    argmax = backend.zeros(layer.dimO2, places)
    i, e, old_o, old_i = map(ref.wide, (i, e, old_o, old_i))
    o, winners = ref.pooled(layer, i)
    backend.fprop_pool(layer, I, O, argmax, alpha=0.5, beta=-1.0)
    close(O.get(), 0.5 * o - old_o, dtype, 40)
    backend.fprop_pool(layer, I, O, argmax)
    close(O.get(), o, dtype)
    if layer.op == "max":
        np.testing.assert_array_equal(argmax.get().reshape(layer.dimO), winners)
    expected = ref.pooled_back(layer, e, i, ref.wide(O.get()).reshape(layer.dimO), winners)
    scale = ref.pooled_back(layer, np.abs(e), np.abs(i), ref.wide(O.get()).reshape(layer.dimO), winners).max() + 1
    backend.bprop_pool(layer, E, grad, argmax, X=I, Y=O, alpha=-2.0, beta=0.5)
    close(grad.get() / scale, (-2.0 * expected + 0.5 * old_i) / scale, dtype, 40)
    backend.bprop_pool(layer, E, grad, argmax, X=I, Y=O)
    close(grad.get() / scale, expected / scale, dtype, 40)
    np.testing.assert_array_equal(ref.wide(E.get()).reshape(e.shape), e)


@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.0), (1.0, 3.0)])
def test_each_factor_alone_takes_effect(backend: Any, alpha: float, beta: float) -> None:
    layer = backend.pool_layer("float32", "avg", 4, 2, H=5, W=6, R=2, S=2)
    I, E = (backend.array(ref.draw(d, "float32", n)) for n, d in enumerate((layer.dimI, layer.dimO)))
    O, grad, plain_o, plain_grad = (backend.ones(d) for d in (layer.dimO, layer.dimI) * 2)
    backend.fprop_pool(layer, I, plain_o)
    backend.bprop_pool(layer, E, plain_grad)
    backend.fprop_pool(layer, I, O, alpha=alpha, beta=beta)
    backend.bprop_pool(layer, E, grad, alpha=alpha, beta=beta)
    close(O.get(), alpha * plain_o.get() + beta, "float32")
    close(grad.get(), alpha * plain_grad.get() + beta, "float32")


@shared
@given(
    sizes=geometries(),
    op=st.sampled_from(["max", "max", "avg", "l2"]),
    dtype=st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16"]),
    places=st.sampled_from(["uint8", "uint8", "int16", "int32"]),
)
@example({"N": 2, "C": 1, "W": 11, "S": 6, "pad_w": 2, "str_w": 4}, "max", "float32", "uint8")
@example({"N": 16, "C": 1, "W": 11, "S": 5, "str_w": 3}, "avg", "float32", "uint8")
@example({"N": 17, "C": 2, "H": 7, "W": 8, "R": 7, "S": 7, "str_w": 9}, "avg", "float32", "uint8")
@example({"N": 8, "C": 3, "H": 7, "W": 7, "R": 7, "S": 7}, "avg", "float32", "uint8")
@example({"N": 48, "C": 3, "H": 5, "W": 9, "R": 5, "S": 9}, "avg", "float32", "uint8")
@example({"N": 192, "C": 2, "H": 3, "W": 5, "R": 3, "S": 5}, "avg", "float32", "uint8")
@example({"N": 1, "C": 3, "H": 5, "W": 9, "R": 5, "S": 9}, "avg", "bfloat16", "uint8")
@example({"N": 48, "C": 2, "H": 21, "W": 5, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1}, "max", "float32", "uint8")
@example({"N": 33, "C": 2, "W": 9, "S": 3, "str_w": 4}, "l2", "float32", "uint8")
@example({"N": 3, "C": 3, "D": 4, "H": 4, "W": 5, "J": 2, "T": 3, "R": 2, "S": 2}, "max", "float32", "uint8")
def test_passes_are_their_definitions(backend: Any, sizes: dict, op: str, dtype: str, places: str) -> None:
    check_both_passes(backend, layer_of(backend, op, sizes, dtype), dtype, places)


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize(("side", "stride"), [(2, 1), (2, 2), (3, 1), (3, 2)])
def test_squares_of_usual_sizes(backend: Any, op: str, side: int, stride: int) -> None:
    squares = {"R": side, "S": side, "str_h": stride, "str_w": stride}
    for pad_h, pad_w, W in ((0, 0, 7), (1, (0, 1), 8), ((1, 0), side - 1, 1)):
        for N in (9, 20):
            layer = backend.pool_layer("float32", op, N, 2, H=6, W=W + 2, pad_h=pad_h, pad_w=pad_w, **squares)
            check_both_passes(backend, layer, "float32")


@pytest.mark.slow
def test_squares_of_many_rows_and_of_halves(backend: Any) -> None:
    squares = {"R": 3, "S": 3, "str_h": 2, "str_w": 2}
    check_both_passes(backend, backend.pool_layer("float32", "max", 32, 1, H=99, W=61, **squares), "float32")
    for op, dtype, places in (("max", "float16", "int16"), ("avg", "bfloat16", "uint8"), ("max", "float64", "uint8")):
        check_both_passes(backend, backend.pool_layer(dtype, op, 33, 2, H=5, W=6, pad_w=1, **squares), dtype, places)
    for dtype, places in (("float64", "uint8"), ("float32", "int32"), ("bfloat16", "uint8")):
        layer = backend.pool_layer(dtype, "max", 5 if dtype == "float64" else 11, 2, H=5, W=6, pad_w=1, **squares)
        check_both_passes(backend, layer, dtype, places)


@pytest.fixture
def caffe(backend: Any) -> Iterator[Any]:
    """The backend, sizing outputs as Caffe does."""
    backend.set_caffe_compat()
    yield backend
    backend.compat_mode = None


@pytest.mark.slow
@KINDS
def test_caffes_sizes_end_with_cut_windows(caffe: Any, op: str) -> None:
    layer = caffe.pool_layer("float32", op, 5, 2, H=6, W=7, R=3, S=3, str_h=2, str_w=2)
    assert layer.MPQ == (1, 3, 3)
    check_both_passes(caffe, layer, "float32")
    check_both_passes(caffe, caffe.pool_layer("float32", op, 16, 2, H=6, W=8, R=3, S=3, str_h=2, str_w=2), "float32")
    padded = caffe.pool_layer("float32", op, 5, 2, H=4, W=5, R=2, S=2, pad_h=1, str_h=2, str_w=2)
    assert padded.MPQ == (1, 3, 3)
    if op == "avg":  # how many cells a mean has depends on padding
        check_both_passes(caffe, padded, "float32")
    with pytest.raises(ShapeError, match=r"wholly outside[\s\S]*H = 5, windows of 2, padding \(0, 0\), stride 7"):
        caffe.pool_layer("float32", op, 1, 1, H=5, R=2, str_h=7)


@pytest.mark.slow
@KINDS
def test_strides_of_one_window_may_be_of_any_length(backend: Any, op: str) -> None:
    found = []
    for stride in (2, 2**64):
        layer = backend.pool_layer("float32", op, 2, 1, W=3, S=2, str_w=stride)
        I, O, delta = backend.array([[1, 2], [4, 3], [5, 6]]), backend.empty(layer.dimO2), backend.empty(layer.dimI2)
        places = backend.zeros(layer.dimO2, np.uint8)
        backend.fprop_pool(layer, I, O, places)
        backend.bprop_pool(layer, O, delta, places, X=I, Y=O)
        assert layer.strides == (1, 1, 1, stride)
        found.append([x.get().tolist() for x in (O, places, delta)])
    assert found[0] == found[1]


def test_nan_wins_and_ties_go_to_the_first(backend: Any) -> None:
    layer = backend.pool_layer("float32", "max", 4, 1, W=3, S=3)
    nan = np.nan
    rows = np.array([[1, 2, nan, -np.inf], [3, 2, 5, -np.inf], [3, 1, nan, -np.inf]], np.float32)
    O, argmax = backend.empty((1, 4)), backend.empty((1, 4), np.uint8)
    backend.fprop_pool(layer, backend.array(rows), O, argmax)
    np.testing.assert_array_equal(O.get(), [[3, 2, nan, -np.inf]])
    np.testing.assert_array_equal(argmax.get(), [[1, 0, 0, 0]])


def test_old_outputs_are_not_read_without_beta(backend: Any) -> None:
    layer = backend.pool_layer("float32", "avg", 3, 2, H=4, W=4, R=2, S=2)
    I, O = backend.ones(layer.dimI2), backend.full(layer.dimO2, np.nan)
    backend.fprop_pool(layer, I, O)
    np.testing.assert_array_equal(O.get(), 1)
    delta = backend.full(layer.dimI2, np.nan)
    backend.bprop_pool(layer, O, delta)
    np.testing.assert_array_equal(delta.get(), 0.25)


@KINDS
def test_operands_may_be_views(backend: Any, op: str) -> None:
    layer = backend.pool_layer("float32", op, 5, 2, H=5, W=4, R=3, S=2, str_h=1)
    i = ref.draw(layer.dimI2, "float32")
    wide = backend.array(np.concatenate([i, i], 1))
    room, turned = backend.zeros((layer.nOut, 2 * layer.N)), backend.zeros((layer.N, layer.nOut))
    argmax = backend.zeros((layer.N, layer.nOut), np.uint8)
    backend.fprop_pool(layer, wide[:, layer.N :], room[:, layer.N :], argmax.T)
    backend.fprop_pool(layer, backend.array(i.T).T, turned.T, argmax.T)
    expected, winners = ref.pooled(layer, ref.wide(i).reshape(layer.dimI))
    np.testing.assert_allclose(room.get()[:, layer.N :], expected.reshape(layer.dimO2), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(turned.get().T, expected.reshape(layer.dimO2), rtol=1e-6, atol=1e-6)
    assert not room.get()[:, : layer.N].any()
    if op == "max":
        np.testing.assert_array_equal(argmax.get().T, winners.reshape(layer.dimO2))


def test_a_call_inside_fuse_sees_what_was_stated(backend: Any) -> None:
    layer = backend.pool_layer("float32", "avg", 3, 2, H=4, W=4, R=2, S=2)
    I, O = backend.zeros(layer.dimI2), backend.zeros(layer.dimO2)
    with backend.fuse():
        I[:] = 3.0
        backend.fprop_pool(layer, I, O)
        O[:] = O + 1
    np.testing.assert_array_equal(O.get(), 4)


def test_l2_gradient_by_central_differences(backend: Any) -> None:
    layer = backend.pool_layer("float64", "l2", 3, 2, H=5, W=4, R=3, S=2, str_h=2, str_w=1, pad_h=1)
    i, e = ref.draw(layer.dimI2), ref.draw(layer.dimO2, seed=1)
    I, E, O, grad = backend.array(i, np.float64), backend.array(e, np.float64), *(
        backend.empty(d, np.float64) for d in (layer.dimO2, layer.dimI2)
    )
    backend.fprop_pool(layer, I, O)
    backend.bprop_pool(layer, E, grad, X=I, Y=O)
    direction, step = ref.draw(layer.dimI2, seed=2), 1e-6
    ends = []
    for sign in (1, -1):
        backend.fprop_pool(layer, backend.array(i + sign * step * direction, np.float64), O)
        ends.append((O.get() * e).sum())
    assert (grad.get() * direction).sum() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-7)


# The layer


def test_a_layer_has_the_contracts_attributes(backend: Any) -> None:
    layer = backend.pool_layer("float32", "max", 32, 64, 1, 55, 55, 1, 1, 3, 3, 0, 0, 0, (0, 1), None, None, 2, 2)
    assert (layer.op, layer.N, layer.C, layer.K, layer.M, layer.P, layer.Q) == ("max", 32, 64, 64, 1, 27, 27)
    assert (layer.JTRS, layer.DHW, layer.MPQ) == ((1, 1, 3, 3), (1, 55, 55), (1, 27, 27))
    assert (layer.padding, layer.strides) == ((0, 0, 0, (0, 1)), (1, 1, 2, 2))
    assert (layer.dimI2, layer.dimO2, layer.dimF2) == ((64 * 55 * 55, 32), (64 * 27 * 27, 32), None)
    assert (layer.nOut, layer.sizeO, layer.overlap) == (64 * 27 * 27, 64 * 27 * 27 * 32, 4.0)
    maxout = backend.pool_layer("float32", "max", 2, 6, J=3)
    assert (maxout.K, maxout.dimO2, maxout.overlap) == (2, (2, 2), 0.0)


# Refusals

BAD = [
    ({"H": 2, "R": 4}, r"no output[\s\S]*H = 2, windows of 4"),
    ({"H": 4, "R": 2, "pad_h": 2}, r"padding[\s\S]*2 with windows of 2"),
    ({"str_w": 0}, r"str_w[\s\S]*given\s+0"),
    ({"C": 2, "J": 3}, r"C = 2, windows of 3"),
    ({"N": -3}, r"N[\s\S]*-3"),
]


@pytest.mark.parametrize("sizes, message", BAD, ids=lambda p: None if isinstance(p, dict) else p[:10])
def test_impossible_geometry_is_refused(backend: Any, sizes: dict, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        backend.pool_layer("float32", "max", **{"N": 1, "C": 4, **sizes})


def test_bad_operands_are_refused(backend: Any) -> None:
    layer = backend.pool_layer("float32", "max", 3, 2, H=20, W=20, R=17, S=17, str_h=1, str_w=1)
    I, O, argmax = backend.zeros(layer.dimI2), backend.ones(layer.dimO2), backend.zeros(layer.dimO2, np.uint16)
    with pytest.raises(ValueError, match="kind[\\s\\S]*'median'"):
        backend.pool_layer("float32", "median", 1, 1)
    with pytest.raises(ValueError, match="no argmax"):
        backend.fprop_pool(layer, I, O)
    with pytest.raises(DTypeError, match=r"argmax[\s\S]*uint8[\s\S]*up to 288"):
        backend.fprop_pool(layer, I, O, backend.zeros(layer.dimO2, np.uint8))
    with pytest.raises(DTypeError, match=r"argmax[\s\S]*float32"):
        backend.fprop_pool(layer, I, O, backend.zeros(layer.dimO2))
    with pytest.raises(ShapeError, match=r"argmax[\s\S]*96 elements"):
        backend.fprop_pool(layer, I, O, backend.zeros((2, 2), np.uint16))
    with pytest.raises(ShapeError, match=r"size of O"):
        backend.fprop_pool(layer, I, I, argmax)
    with pytest.raises(DTypeError, match=r"type of I[\s\S]*float64"):
        backend.fprop_pool(layer, backend.zeros(layer.dimI2, np.float64), O, argmax)
    with pytest.raises(ValueError, match="overlaps"):
        backend.bprop_pool(layer, I.reshape(-1)[: layer.sizeO], I, argmax)
    with pytest.raises(ValueError, match="l2 needs X and Y"):
        backend.bprop_pool(backend.pool_layer("float32", "l2", 1, 1), I[:1, :1], O[:1, :1])
    lrn = backend.lrn_layer("float32", 3, 32, J=3)
    with pytest.raises(TypeError, match=r"fprop_pool: layer[\s\S]*lrn[\s\S]*be.pool_layer"):
        backend.fprop_pool(lrn, backend.ones(lrn.dimI2), O)
    with pytest.raises(TypeError, match=r"bprop_pool: layer[\s\S]*lrn[\s\S]*be.pool_layer"):
        backend.bprop_pool(lrn, backend.ones(lrn.dimI2), O)
    np.testing.assert_array_equal(O.get(), 1)
