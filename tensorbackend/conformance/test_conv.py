# SPDX-License-Identifier: Apache-2.0
"""Convolution: all passes against the definition over random geometry, the tail, gradients, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from tensorbackend import Autodiff, Backend, BackendError, DTypeError, ShapeError
from tensorbackend.conformance import references as ref

pytestmark = pytest.mark.rehearsed

# A backend serves all examples.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])
FLOATS = pytest.mark.parametrize("dtype", ref.TYPES)
SMALL = {"N": 3, "C": 4, "K": 6, "H": 5, "W": 6, "R": 3, "S": 2, "pad_h": 1, "pad_w": (0, 2), "str_h": 2}


@st.composite
def geometries(draw: Callable) -> dict[str, Any]:
    """Arguments of `conv_layer`: 1-D to 3-D, sizes around tiles, padding up to beyond the filter, strides beyond it."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    found = {
        "N": draw(st.sampled_from([1, 2, 3, 4, 7, 8, 17, 33])),
        "C": groups * draw(st.sampled_from([1, 2, 3, 5])),
        "K": groups * draw(st.sampled_from([1, 2, 3, 7, 16, 19])),
        "groups": groups,
    }
    axes = draw(st.sampled_from(["W", "HW", "HW", "DHW"]))
    for image, window, letter in zip("DHW", "TRS", "dhw"):
        if image not in axes:
            continue
        found[image] = draw(st.integers(1, 7 if len(axes) < 3 else 4))
        found[window] = draw(st.integers(1, 4 if len(axes) < 3 else 3))
        pad = st.integers(0, found[window] + 1)
        found[f"pad_{letter}"] = draw(st.one_of(pad, st.tuples(pad, pad)))
        found[f"str_{letter}"] = draw(st.integers(1, found[window] + 1))
        found[f"dil_{letter}"] = draw(st.sampled_from([1, 1, 2, 3]))
    return found


def layer_of(backend: Any, sizes: dict[str, Any], dtype: str = "float32") -> Any:
    """The layer, or a rejected example when its windows do not fit."""
    try:
        return backend.conv_layer(dtype, **sizes)
    except ShapeError as error:
        assert "no output" in str(error)
        assume(False)


def tensors(backend: Any, dtype: str, *shapes: tuple) -> list[tuple[Any, np.ndarray]]:
    """Random tensors as matrices, and their numbers in float64 in the shapes given."""
    pairs = []
    for seed, shape in enumerate(shapes):
        host = ref.draw(shape, dtype, seed)
        flat = host.reshape(-1, shape[-1])
        pairs.append((backend.array(flat, dtype=host.dtype), ref.wide(host)))
    return pairs


def assert_passes(backend: Any, layer: Any, dtype: str) -> None:
    """All passes of a layer are their definitions."""
    (I, i), (F, f), (E, e) = tensors(backend, dtype, layer.dimI, layer.dimF, layer.dimO)
    O, gI, gF = (backend.empty(d, dtype) for d in (layer.dimO2, layer.dimI2, layer.dimF2))
    backend.fprop_conv(layer, I, F, O)
    backend.bprop_conv(layer, F, E, gI)
    backend.update_conv(layer, I, E, gF)
    taps = int(np.prod(layer.TRS))
    magnitudes = np.abs(i), np.abs(f), np.abs(e)
    ref.assert_near(O.get(), ref.fprop(layer, i, f), ref.fprop(layer, *magnitudes[:2]), taps * layer.C, dtype)
    ref.assert_near(gI.get(), ref.bprop(layer, f, e), ref.bprop(layer, *magnitudes[1:]), taps * layer.K, dtype)
    terms = layer.sizeO // layer.K
    ref.assert_near(gF.get(), ref.update(layer, i, e), ref.update(layer, *magnitudes[::2]), terms, dtype)


# Values


@shared
@example(sizes={"W": 1, "S": 2, "pad_w": 1, "dil_w": 2, **dict.fromkeys(("N", "C", "K"), 1)}, dtype="float32")
@given(sizes=geometries(), dtype=st.sampled_from(["float32"] * 3 + ["float64", "float16", "bfloat16"]))
def test_passes_are_their_definitions(backend: Any, sizes: dict[str, Any], dtype: str) -> None:
    layer = layer_of(backend, sizes, dtype)
    assert_passes(backend, layer, dtype)


WHOLE = {
    "images": {"H": 5, "W": 6, "R": 5, "S": 6},
    "columns": {"H": 5, "W": 6, "R": 5},
    "volumes": {"D": 2, "H": 3, "W": 4, "T": 2, "R": 3, "S": 4, "str_h": 2, "str_w": 4, "pad_w": (0, 1)},
    "planes": {"D": 2, "H": 3, "W": 4, "T": 2},
}
PARTS = {
    "rows": {"H": 5, "W": 6, "S": 6},
    "taps apart": {"W": 2, "S": 2, "dil_w": 2, "pad_w": (0, 1)},
    "padding": {"W": 3, "S": 3, "pad_w": (1, 0)},
    "groups": {"H": 5, "W": 6, "R": 5, "S": 6, "groups": 2},
}


@FLOATS
@pytest.mark.parametrize("name", [*WHOLE, *PARTS])
def test_filters_as_long_as_images_are_products(backend: Any, name: str, dtype: str) -> None:
    """Along the first axes, with one cell along the others; not what only looks like it. And what follows them."""
    layer = backend.conv_layer(dtype, **{"N": 5, "C": 4, "K": 6, "H": 1, **(WHOLE | PARTS)[name]})
    assert_right_and_product(backend, layer, dtype, name in WHOLE)


def assert_right_and_product(backend: Any, layer: Any, dtype: str, product: bool) -> None:
    """Whether a layer is a product; its passes, and the images' gradient with all that may follow its sums."""
    assert layer.dot == product
    assert_passes(backend, layer, dtype)
    (F, f), (E, e), (X, x), (b, bias) = tensors(backend, dtype, layer.dimF, layer.dimO, layer.dimI, (layer.C, 1))
    grad, bsum = backend.empty(layer.dimI2, dtype), backend.empty((layer.C, 1), "float32")
    backend.bprop_conv(layer, F, E, grad, X=X, bias=b, bsum=bsum, alpha=2.0, beta=0.5, brelu=True)
    sums = 2 * (ref.bprop(layer, f, e) + bias.reshape(-1, 1, 1, 1, 1)) + 0.5 * x
    found, precision = ref.wide(grad.get()).reshape(layer.dimI), max(40 * ref.EPSILON[dtype], 1e-12)
    np.testing.assert_allclose(found, sums * (x > 0), rtol=precision, atol=20 * precision)
    np.testing.assert_allclose(bsum.get().ravel(), found.reshape(layer.C, -1).sum(1), rtol=1e-5, atol=1e-4)


TILED = {
    "one cell": {"H": 7, "W": 6, "str_h": 3, "str_w": 2},
    "patches": {"H": 6, "W": 9, "R": 2, "S": 3, "str_h": 2, "str_w": 3},
    "patches and more": {"H": 7, "W": 8, "R": 2, "S": 1, "str_h": 2, "str_w": 3, "dil_w": 2},
    "volumes": {"D": 5, "H": 2, "W": 4, "T": 2, "S": 4, "str_d": 2, "str_h": 2, "str_w": 4},
}
NOT_TILED = {
    "overlap": {"H": 7, "W": 6, "R": 3, "str_h": 2},
    "gaps": {"H": 7, "W": 6, "R": 2, "str_h": 3},
    "cells apart": {"H": 7, "W": 6, "R": 2, "str_h": 2, "dil_h": 2},
    "padding": {"H": 7, "W": 6, "str_h": 2, "pad_h": (0, 1)},
    "groups": {"H": 7, "W": 6, "str_h": 2, "groups": 2},
    "few maps": {"H": 7, "W": 6, "str_h": 2, "K": 254},
}


@FLOATS
@pytest.mark.parametrize("name", [*TILED, *NOT_TILED])
def test_windows_side_by_side_are_products(backend: Any, name: str, dtype: str) -> None:
    """Of many maps; not what only looks like it. Inputs that no window meets have no gradient. And what follows."""
    layer = backend.conv_layer(dtype, **{"N": 3, "C": 2, "K": 256, "H": 1, **(TILED | NOT_TILED)[name]})
    assert_right_and_product(backend, layer, dtype, name in TILED)


@pytest.mark.parametrize(("N", "C", "K", "dot"), [
    (8, 96, 128, True), (1, 96, 128, True), (7, 96, 128, False), (8, 95, 128, False), (8, 96, 127, False),
    (2, 1, 256, True),
])  # fmt: skip
def test_which_windows_side_by_side_are_products(backend: Any, N: int, C: int, K: int, dot: bool) -> None:
    layer = backend.conv_layer(np.float32, N=N, C=C, K=K, H=4, W=4, R=2, S=2, str_h=2, str_w=2)
    assert layer.dot is dot
    assert not backend.conv_layer(np.float32, N=N, C=C, K=K, H=4, W=4, R=2, S=2).dot


def test_windows_side_by_side_with_a_bound_on_scratch(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"N": 3, "C": 2, "K": 256, "H": 6, "W": 8, "R": 2, "str_h": 2}
    for bound, product in ((0, True), (3 * 2 * 48 * 4, True), (3 * 2 * 48 * 4 - 1, False)):
        monkeypatch.setattr(backend, "_most_scratch", bound)
        assert backend.conv_layer("float32", **sizes).dot == product


# The tail

TAILS = [
    {"bias": True},
    {"relu": True},
    {"relu": True, "slope": 0.25, "bias": True},
    {"alpha": 0.5},
    {"beta": 2.0},
    {"beta": 1.0, "X": True},
    {"brelu": True, "X": True},
    {"brelu": True, "slope": 0.1},
    {"bias": True, "relu": True, "slope": 0.5, "alpha": -2.0, "beta": 0.5, "X": True, "brelu": True, "bsum": True},
    {"bsum": True},
]


def expected_tail(acc: np.ndarray, old: np.ndarray, tail: dict, hosts: dict[str, np.ndarray]) -> np.ndarray:
    """The steps of the contract, one after the other."""
    X = hosts["X"] if tail.get("X") else old
    v = acc + hosts["bias"].reshape(-1, 1, 1, 1, 1) if tail.get("bias") else acc
    slope = tail.get("slope", 0.0)
    if tail.get("relu"):
        v = np.maximum(v, 0) + slope * np.minimum(v, 0)
    v = tail.get("alpha", 1.0) * v + tail.get("beta", 0.0) * X
    return v * ((X > 0) + slope * (X < 0)) if tail.get("brelu") else v


@pytest.mark.parametrize(("dtype", "forward"), [
    pytest.param(dtype, forward, id=f"{dtype}-{name}", marks=[pytest.mark.slow] * (not forward and dtype != "float32"))
    for dtype in ref.TYPES for forward, name in ((True, "fprop"), (False, "bprop"))
])  # fmt: skip
@pytest.mark.parametrize("tail", TAILS, ids=lambda t: "-".join(t))
def test_the_tail_keeps_its_order(backend: Any, dtype: str, tail: dict, forward: bool) -> None:
    layer = backend.conv_layer(dtype, **SMALL)
    dim = layer.dimO if forward else layer.dimI
    shapes = [layer.dimI if forward else layer.dimO, layer.dimF, dim, dim, (dim[0], 1)]
    (A, a), (F, f), (out, old), (X, x), (bias, b) = tensors(backend, dtype, *shapes)
    acc = ref.fprop(layer, a, f) if forward else ref.bprop(layer, f, a)
    given = {"X": X, "bias": bias, "bsum": backend.empty((dim[0], 1), "float32")}
    keywords = {name: given[name] if name in given else value for name, value in tail.items()}
    call = backend.fprop_conv if forward else backend.bprop_conv
    call(layer, *((A, F) if forward else (F, A)), out, **keywords)
    expected = expected_tail(acc, old, tail, {"X": x, "bias": b})
    precision = max(40 * ref.EPSILON[dtype], 2e-6 if dtype != "float64" else 0)
    np.testing.assert_allclose(ref.wide(out.get()).reshape(dim), expected, rtol=precision, atol=20 * precision)
    if tail.get("bsum"):
        sums = ref.wide(out.get()).reshape(dim[0], -1).sum(1)
        np.testing.assert_allclose(given["bsum"].get()[:, 0], sums, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
@FLOATS
@pytest.mark.parametrize("forward", [True, False], ids=["fprop", "bprop"])
def test_the_tail_follows_trees_of_other_types_than_the_tensor_beside_them(
    backend: Any, dtype: str, forward: bool
) -> None:
    """A tree of halves is float32 until it is stored."""
    layer = backend.conv_layer(dtype, **SMALL | {"str_h": 1})
    dim = layer.dimO if forward else layer.dimI
    shapes = [layer.dimI, layer.dimF] if forward else [layer.dimF, layer.dimO]
    (x, _), (y, _), (bias, _) = tensors(backend, dtype, *shapes, (dim[0], 1))
    call = backend.fprop_conv if forward else backend.bprop_conv
    expected, found = backend.empty(dim, dtype), backend.empty(dim, dtype)
    call(layer, x, y, expected, bias=bias, relu=True, alpha=-0.5)
    for pair in ((x * 2.0 * 0.5, y), (x, y * 2.0 * 0.5)):
        call(layer, *pair, found, bias=bias, relu=True, alpha=-0.5)
        precision = max(4 * ref.EPSILON[dtype], 2e-6 if dtype != "float64" else 0)
        np.testing.assert_allclose(ref.wide(found.get()), ref.wide(expected.get()), rtol=precision, atol=precision)


@FLOATS
def test_update_scales_and_sums(backend: Any, dtype: str) -> None:
    layer = backend.conv_layer(dtype, **SMALL)
    (I, i), (E, e), (gF, old) = tensors(backend, dtype, layer.dimI, layer.dimO, layer.dimF)
    grad_bias = backend.empty(layer.dimS, "float32")
    backend.update_conv(layer, I, E, gF, alpha=0.5, beta=-1.0, grad_bias=grad_bias)
    expected = 0.5 * ref.update(layer, i, e) - old
    precision = max(40 * ref.EPSILON[dtype], 2e-6 if dtype != "float64" else 0)
    np.testing.assert_allclose(ref.wide(gF.get()).reshape(layer.dimF), expected, rtol=precision, atol=20 * precision)
    np.testing.assert_allclose(grad_bias.get()[:, 0], e.reshape(layer.K, -1).sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("taps", [1, 3])
def test_update_and_sums_see_one_value_of_an_error_that_is_an_expression(backend: Any, taps: int) -> None:
    """Of one that draws random numbers, or reads what is written."""
    layer = backend.conv_layer("float32", N=4, C=2, K=3, H=5, W=5, R=taps, S=taps, pad_h=taps // 2, pad_w=taps // 2)
    I, grad_F, sums = backend.ones(layer.dimI), backend.zeros(layer.dimF), backend.empty(layer.dimS)
    backend.update_conv(layer, I, backend.rand(shape=layer.dimO) - 0.5, grad_F, grad_bias=sums)
    middle = grad_F.get()[0, 0, taps // 2, taps // 2]  # this tap meets no padding
    np.testing.assert_allclose(middle, sums.get()[:, 0], rtol=1e-5, atol=1e-4)
    grad_F[:] = 100.0
    backend.update_conv(layer, I, backend.ones(layer.dimO) * (backend.max(grad_F) - 99.0), grad_F, grad_bias=sums)
    np.testing.assert_allclose(grad_F.get()[0, 0, taps // 2, taps // 2], 100.0, rtol=1e-5)
    np.testing.assert_allclose(sums.get(), np.full((3, 1), 100.0), rtol=1e-5)


def test_operands_may_be_views(backend: Any) -> None:
    layer = backend.conv_layer("float32", **SMALL)
    (I, i), (F, f) = tensors(backend, "float32", layer.dimI, layer.dimF)
    wider = backend.array(np.repeat(i.reshape(layer.dimI2), 2, 1))
    turned = backend.array(np.ascontiguousarray(f.reshape(layer.dimF2).T))
    room = backend.zeros((layer.nOut, 2 * layer.N))
    backend.fprop_conv(layer, wider[:, ::2], turned.T, room[:, layer.N :])
    expected = ref.fprop(layer, i, f).reshape(layer.dimO2)
    np.testing.assert_allclose(room.get()[:, layer.N :], expected, rtol=1e-5, atol=1e-5)
    assert not room.get()[:, : layer.N].any()
    backend.fprop_conv(layer, I, F * 2, room[:, layer.N :])
    np.testing.assert_allclose(room.get()[:, layer.N :], 2 * expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [SMALL, SMALL | {"N": 4}], ids=["3 images", "4 images"])
def test_gradients_take_views_as_they_lie(backend: Any, sizes: dict) -> None:
    """Every other image, images amid others, images as rows; filters amid others, and as rows."""
    layer = backend.conv_layer("float32", **sizes)
    i, f, e = (ref.draw(dim, "float32", n) for n, dim in enumerate((layer.dimI2, layer.dimF2, layer.dimO2)))
    views = (
        lambda x: backend.array(np.repeat(x, 2, 1))[:, ::2],
        lambda x: backend.array(np.pad(x, ((0, 0), (1, 3))))[:, 1 : 1 + x.shape[1]],
        lambda x: backend.array(np.pad(x, ((0, 0), (2, 0))))[:, 2:],
        lambda x: backend.array(np.ascontiguousarray(x.T)).T,
    )
    expected = [backend.empty(dim) for dim in (layer.dimO2, layer.dimI2, layer.dimF2)]
    backend.fprop_conv(layer, *map(backend.array, (i, f)), expected[0])
    backend.bprop_conv(layer, *map(backend.array, (f, e)), expected[1])
    backend.update_conv(layer, *map(backend.array, (i, e)), expected[2])
    for view in views:
        I, F, E, room = view(i), view(f), view(e), backend.zeros(1 + max(layer.sizeI, layer.sizeO, layer.sizeF))
        for call, pair, wanted in zip((backend.fprop_conv, backend.bprop_conv, backend.update_conv),
                                      ((I, F), (F, E), (I, E)), expected):  # fmt: skip
            out = backend.reshape(room.reshape(-1)[1 : 1 + wanted.size], wanted.shape)
            call(layer, *pair, out)
            np.testing.assert_allclose(out.get(), wanted.get(), rtol=2e-5, atol=2e-5)


def test_repeat_gives_a_time(backend: Any) -> None:
    layer = backend.conv_layer("float32", **SMALL)
    (I, i), (F, f), (O, _) = tensors(backend, "float32", layer.dimI, layer.dimF, layer.dimO)
    assert backend.fprop_conv(layer, I, F, O) is None
    milliseconds, gflops = backend.fprop_conv(layer, I, F, O, repeat=3)
    assert milliseconds > 0
    assert gflops == pytest.approx(layer.flops / milliseconds * 1e-6)
    np.testing.assert_allclose(O.get().reshape(layer.dimO), ref.fprop(layer, i, f), rtol=1e-5, atol=1e-5)


# Trees


def test_a_node_computes_what_the_method_does(backend: Any) -> None:
    layer = backend.conv_layer("float32", **SMALL)
    (I, _), (F, _), (O, _) = tensors(backend, "float32", layer.dimI, layer.dimF, layer.dimO)
    node = backend.conv(layer, I, F)
    assert node.shape == layer.dimO
    backend.fprop_conv(layer, I, F, O, relu=True)
    tree = backend.evaluate(backend.maximum(node, 0))
    np.testing.assert_array_equal(tree.get(), O.get().reshape(layer.dimO))
    out = backend.empty(layer.dimO2)
    assert backend.conv(layer, I, F, out=out) is out


def test_gradients_of_gradients_by_central_differences(backend: Any) -> None:
    layer = backend.conv_layer("float64", N=2, C=2, K=4, H=4, W=3, R=2, S=3, pad_h=1, pad_w=(1, 0), str_h=2, groups=2)
    (I, _), (F, _), (E, e) = tensors(backend, "float64", layer.dimI, layer.dimF, layer.dimO)

    def loss(I: Any, F: Any) -> Any:
        z = backend.conv(layer, I, F)
        return backend.sum(backend.tanh(z) * backend.reshape(E, layer.dimO))

    def slopes(I: Any, F: Any) -> Any:
        first, second = Autodiff(loss(I, F), backend).get_grad_op_tree([I, F])
        return backend.sum(first * first) + backend.sum(second * second)

    for function in (loss, slopes):
        found = Autodiff(function(I, F), backend).get_grad_tensor([I, F])
        for x, gradient in zip((I, F), found):
            direction = np.random.default_rng(5).standard_normal(x.shape)
            start, step = x.get(), 1e-5
            values = []
            for sign in (1, -1):
                x[:] = start + sign * step * direction
                values.append(float(backend.evaluate(function(I, F)).get().item()))
            x[:] = start
            wanted = (values[0] - values[1]) / (2 * step)
            assert float((gradient.get() * direction).sum()) == pytest.approx(wanted, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("most", [2**20, 2**32, 2**64])
def test_strides_and_dilations_that_reach_beyond_an_axis_may_be_of_any_length(backend: Any, most: int) -> None:
    """One window on an axis, one that lies in padding behind it, one cell of a filter: forward, back and turned."""
    sizes = {"N": 2, "C": 3, "K": 4, "H": 4, "W": 5}
    for near, far in (
        ({"R": 2, "S": 3, "str_h": 4, "str_w": 5}, {"str_h": most, "str_w": most}),
        ({"R": 2, "S": 2, "str_h": 5, "pad_h": (0, 5)}, {"str_h": most, "pad_h": (0, most)}),
        ({"R": 1, "S": 2, "dil_h": 1}, {"dil_h": most}),
        ({"R": 1, "S": 2, "dil_w": 6, "pad_w": (1, 6)}, {"dil_w": most, "pad_w": (1, most)}),
    ):
        found = []
        for layer in (backend.conv_layer("float32", **sizes, **taps) for taps in (near, near | far)):
            (I, _), (F, _), (E, _) = tensors(backend, "float32", layer.dimI, layer.dimF, layer.dimO)
            O, delta, grad = (backend.empty(dim) for dim in (layer.dimO2, layer.dimI2, layer.dimF2))
            backend.fprop_conv(layer, I, F, O)
            backend.bprop_conv(layer, F, E, delta)
            backend.update_conv(layer, I, E, grad)
            found.append([x.get() for x in (O, delta, grad)])
        assert layer.strides == tuple((near | far).get(f"str_{a}", 1) for a in "dhw")
        assert layer.dilation == tuple((near | far).get(f"dil_{a}", 1) for a in "dhw")
        for x, y in zip(*found):
            np.testing.assert_array_equal(x, y)
    turned = backend.deconv_layer("float32", 1, 1, 1, 1, 1, 1, R=2, S=1, str_h=most, dil_w=most)
    backend.bprop_conv(turned, backend.array([[2], [3]]), backend.array([[5]]), out := backend.empty((2, 1)))
    assert out.get().tolist() == [[10], [15]] and turned.dilation == (1, 1, most)


# The layer


def test_a_layer_has_the_contracts_attributes(backend: Any) -> None:
    layer = backend.conv_layer(np.float32, 32, 3, 64, 1, 24, 20, 1, 5, 3, 0, 2, (0, 1), 1, 4, 2, 1, 1, 2)
    assert (layer.N, layer.C, layer.K, layer.M, layer.P, layer.Q) == (32, 3, 64, 1, 6, 9)
    assert layer.NCK == (32, 3, 64)
    assert (layer.TRS, layer.DHW, layer.MPQ) == ((1, 5, 3), (1, 24, 20), (1, 6, 9))
    assert (layer.padding, layer.strides, layer.dilation) == ((0, 2, (0, 1)), (1, 4, 2), (1, 1, 2))
    assert (layer.dimI, layer.dimI2) == ((3, 1, 24, 20, 32), (1440, 32))
    assert (layer.dimF, layer.dimF2) == ((3, 1, 5, 3, 64), (45, 64))
    assert (layer.dimO, layer.dimO2) == ((64, 1, 6, 9, 32), (3456, 32))
    assert (layer.dimS, layer.nOut, layer.sizeO) == ((64, 1), 3456, 3456 * 32)
    assert layer.flops == 2 * 32 * 64 * 6 * 9 * 3 * 15
    assert not layer.dot
    assert backend.conv_layer("float32", 2, 3, 4, H=5, W=5).dot


# Refusals

BAD = [
    ({"H": 2, "R": 4}, r"P = -1"),
    ({"W": 1, "S": 3, "dil_w": 2}, r"Q = -3"),
    ({"C": 4, "K": 6, "groups": 4}, r"4 groups of 4 and 6"),
    ({"N": 0}, r"N[\s\S]*given\s+0"),
    ({"str_h": 0}, r"str_h[\s\S]*given\s+0"),
    ({"pad_h": -1}, r"padding[\s\S]*-1"),
    ({"pad_w": (1, 2, 3)}, r"padding[\s\S]*\(1, 2, 3\)"),
    ({"pad_w": 2**64, "str_w": 2**64}, r"padding before an axis[\s\S]*less than 4611686018427387904"),
    ({"pad_w": 2**48, "str_w": 2**48}, r"padded images[\s\S]*1 x 1 x 281474976710657, 4 maps of 1 images"),
    ({"K": 2.5}, r"K[\s\S]*2\.5"),
]


@pytest.mark.parametrize("sizes, message", BAD, ids=lambda p: None if isinstance(p, dict) else p[:12])
def test_impossible_geometry_is_refused(backend: Any, sizes: dict, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        backend.conv_layer("float32", **{"N": 1, "C": 4, "K": 6, **sizes})


def test_bad_operands_are_refused_before_anything_is_written(backend: Any) -> None:
    layer = backend.conv_layer("float32", **SMALL)
    (I, _), (F, _), (O, before) = tensors(backend, "float32", layer.dimI, layer.dimF, layer.dimO)
    with pytest.raises(ShapeError, match=rf"size of I[\s\S]*{layer.sizeI} elements"):
        backend.fprop_conv(layer, F, F, O)
    with pytest.raises(ShapeError, match="size of output"):
        backend.fprop_conv(layer, I, F, backend.empty((3, 3)))
    with pytest.raises(ShapeError, match="size of X"):
        backend.fprop_conv(layer, I, F, O, X=I, beta=1.0)
    with pytest.raises(ShapeError, match=rf"bias[\s\S]*{layer.K} elements"):
        backend.fprop_conv(layer, I, F, O, bias=backend.empty((layer.C, 1)))
    with pytest.raises(DTypeError, match=r"type of F[\s\S]*float64"):
        backend.fprop_conv(layer, I, backend.empty(layer.dimF2, "float64"), O)
    for make in (backend.conv_layer, backend.deconv_layer):
        with pytest.raises(DTypeError, match=r"element type[\s\S]*None[\s\S]*default_dtype"):  # NumPy's float64
            make(None, *[1] * 6)
    with pytest.raises(DTypeError, match="element type"):
        backend.conv_layer("int8", **SMALL)
    with pytest.raises(TypeError, match="ndarray"):
        backend.fprop_conv(layer, I.get(), F, O)
    with pytest.raises(ValueError, match="overlaps"):
        backend.update_conv(layer, I, O, O.reshape(-1)[: layer.sizeF])
    with pytest.raises(ValueError, match="overlaps"):
        backend.fprop_conv(layer, I, F, O, bsum=O.reshape(-1)[: layer.K])
    elsewhere = Backend.allocate_backend("cpu", jit=False).ones((layer.K, 1))
    with pytest.raises(BackendError, match="different backends"):
        backend.fprop_conv(layer, I, F, O, bsum=elsewhere)
    with pytest.raises(BackendError, match="different backends"):
        backend.update_conv(layer, I, O, F, grad_bias=elsewhere)
    with pytest.raises(BackendError, match="different backends"):
        backend.fprop_conv(layer, I, F, O, X=elsewhere.backend.ones(O.shape))
    with pytest.raises(TypeError, match="repeat"):
        backend.fprop_conv(layer, I, F, O, repeat=2.5)
    np.testing.assert_array_equal(O.get().reshape(layer.dimO), before.astype(np.float32))


def test_operands_that_all_belong_to_another_backend_are_refused(backend: Any) -> None:
    layer, elsewhere = backend.conv_layer("float32", **SMALL), Backend.allocate_backend("cpu", jit=False)
    I, F, O = (elsewhere.ones(dim) for dim in (layer.dimI2, layer.dimF2, layer.dimO2))
    fprop, bprop, update = backend.fprop_conv, backend.bprop_conv, backend.update_conv
    for method, x, y, out in ((fprop, I, F, O), (bprop, F, O, I), (update, I, O, F), (backend.conv, I, F, O)):
        with pytest.raises(BackendError, match="different backends"):
            method(layer, x, y, out)
        assert out.get().min() == out.get().max() == 1
