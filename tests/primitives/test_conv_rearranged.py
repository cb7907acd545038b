# SPDX-License-Identifier: Apache-2.0
"""Convolutions on the CPU of rearranged images: any sizes, pads and types, and what follows them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import Backend, testing
from tensorbackend.backends import cpu_conv_passes
from tensorbackend.conformance import references as ref
from tensorbackend.primitives import conv_blocking
from tensorbackend.primitives.conv import bprop_reference, fprop_reference, update_reference
from tensorbackend.primitives.conv_blocking import BPROP, FPROP, UPDATE
from tensorbackend.primitives.conv_rearranged import Apart, taken_apart, unrolled
from tensorbackend.primitives.conv_ways import Direct, Facts, Few, Parted, Unrolled, Way, Winograd
from tensorbackend.primitives.geometry import ConvGeometry, output_length
from tests.conv_tails import tails_change_no_bit
from tests.threads import same_bits, same_bits_shared

pytestmark = pytest.mark.usefixtures("light")

shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

BOUNDS = {0: 2e-6, 2: 1e-5, 4: 2e-4}
"""The largest error in float32, as a share of the largest result that the magnitudes of its operands give, for each
setting of `enable_winograd`: those of convolutions that are not taken apart."""
VOLUME = {"N": 2, "C": 20, "K": 32, "D": 5, "H": 9, "W": 11, "T": 3, "R": 3, "S": 3, "str_d": 2, "pad_d": 2, "pad_h": 1}
DILATED = {"N": 2, "C": 20, "K": 32, "H": 17, "W": 15, "R": 3, "S": 3, "pad_h": 3, "pad_w": 2, "dil_h": 3, "dil_w": 2}


@st.composite
def dilated(draw: Any) -> ConvGeometry:
    """Any geometry: few taps, odd lengths, pads wider than filters, strides on some axes, dilations on others."""
    groups = draw(st.sampled_from([1, 1, 2]))
    axes = []
    for _ in range(3):
        taps, dilation, stride = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.sampled_from([1, 1, 1, 2]))
        pad = draw(st.integers(0, 7)), draw(st.integers(0, 7))
        reach = dilation * (taps - 1) + 1
        length = draw(st.integers(max(1, reach - sum(pad)), max(1, reach - sum(pad)) + 9))
        axes.append((length, output_length(length, reach, pad, stride), taps, stride, pad, dilation))
    lengths, results, taps, strides, pads, dilations = zip(*axes)
    maps = groups * draw(st.integers(1, 4)), groups * draw(st.sampled_from([1, 3, 5, 16]))
    N = draw(st.sampled_from([1, 2, 3, 16]))
    found = ConvGeometry(N, maps[0], *lengths, maps[1], *results, *taps, strides, pads, dilations, groups)
    return found.without_idle()


def apart(x: np.ndarray, found: Apart, part: tuple[int, ...], front: tuple[int, ...]) -> np.ndarray:
    """Images in parts, by NumPy: filled up with zeros, cut, and their places in parts side by side."""
    lengths = [n * step for n, step in zip(part, found.steps)]
    whole = np.zeros((x.shape[0], *lengths, x.shape[4]), x.dtype)
    taken = x[(slice(None), *(slice(n - f) for n, f in zip(lengths, front)))]
    whole[(slice(None), *(slice(f, f + n) for f, n in zip(front, taken.shape[1:4])))] = taken
    axes = [x.shape[0], *(n for pair in zip(part, found.steps) for n in pair), x.shape[4]]
    return whole.reshape(axes).transpose(0, 1, 3, 5, 2, 4, 6, 7).reshape(x.shape[0], *part, -1)


@given(g=dilated(), seed=st.integers(0, 99))
def test_a_dilated_convolution_is_one_of_its_parts(g: ConvGeometry, seed: int) -> None:
    found = taken_apart(g)
    if found is None:
        assert all(d == 1 or s > 1 for d, s in zip(g.dilations, g.strides)) or not fprop_reference(
            np.ones(g.dimI), np.ones(g.dimF), g).any()  # fmt: skip
        return
    small, whole = found.geometry, (0, 0, 0)
    assert all(d == 1 or s > 1 for d, s in zip(small.dilations, small.strides))
    draw = np.random.default_rng(seed)
    I, F, E = (draw.integers(-3, 4, shape).astype(float) for shape in (g.dimI, g.dimF, g.dimO))
    images, errors = apart(I, found, small.image, found.front), apart(E, found, small.result, whole)
    assert (images.shape, errors.shape) == (small.dimI, small.dimO)
    result = fprop_reference(images, F, small)
    filled = apart(np.ones(g.dimO), found, small.result, whole) == 0
    wanted = apart(fprop_reference(I, F, g), found, small.result, whole)
    np.testing.assert_array_equal(np.where(filled, 0, result), wanted)
    np.testing.assert_array_equal(update_reference(images, errors, small), update_reference(I, E, g))
    real = apart(np.ones(g.dimI), found, small.image, found.front) == 1
    gradient, parts = bprop_reference(F, E, g), bprop_reference(F, errors, small)
    np.testing.assert_array_equal(parts[real], apart(gradient, found, small.image, found.front)[real])
    assert parts[real].sum() == gradient.sum()  # what is cut off is never read


@given(g=dilated(), seed=st.integers(0, 99))
def test_a_convolution_of_volumes_is_one_of_planes(g: ConvGeometry, seed: int) -> None:
    flat = unrolled(g)
    assert (flat is None) == (g.T == 1)
    if flat is None:
        return
    draw = np.random.default_rng(seed)
    I, F, E = (draw.integers(-3, 4, shape).astype(float) for shape in (g.dimI, g.dimF, g.dimO))
    images, (before, _) = np.zeros((g.C, g.T, *flat.dimI[1:])), g.pads[0]
    at = [(t, m, m * g.strides[0] + t * g.dilations[0] - before) for t in range(g.T) for m in range(g.M)]
    at = [(t, m, z) for t, m, z in at if 0 <= z < g.D]
    for t, m, z in at:
        images[:, t, m] = I[:, z]
    images, filters = images.reshape(flat.dimI), F.reshape(flat.dimF)
    np.testing.assert_array_equal(fprop_reference(images, filters, flat), fprop_reference(I, F, g))
    np.testing.assert_array_equal(update_reference(images, E, flat).reshape(g.dimF), update_reference(I, E, g))
    planes, gradient = bprop_reference(filters, E, flat).reshape(g.C, g.T, *flat.dimI[1:]), np.zeros(g.dimI)
    for t, m, z in at:
        gradient[:, z] += planes[:, t, m]
    np.testing.assert_array_equal(gradient, bprop_reference(F, E, g))


def _rank(way: Way, inmost: type) -> float:
    """Rearranged ways first, of them those whose kernels are of a kind."""
    rearranged = isinstance(way, (Parted, Unrolled))
    while isinstance(way, (Parted, Unrolled)):
        way = way.way
    return 2.0 * (not rearranged) + (not isinstance(way, inmost))


def _by_winograd(g: ConvGeometry, op: str, facts: Facts, way: Way) -> float:
    return _rank(way, Winograd)


def _directly(g: ConvGeometry, op: str, facts: Facts, way: Way) -> float:
    return _rank(way, Direct)


def _from_few(g: ConvGeometry, op: str, facts: Facts, way: Way) -> float:
    return _rank(way, Few)


@pytest.fixture(params=[_by_winograd, _directly, _from_few], ids=["winograd", "direct", "few"])
def preferred(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, absent: Any) -> Any:
    """Images are rearranged wherever they can be."""
    if not testing.compiles(Backend.allocate_backend("cpu")):
        absent("cpu", "no C compiler works here")
    monkeypatch.setattr(conv_blocking, "nanoseconds", request.param)
    return request.param


def made(winograd: int = 4, **options: Any) -> Backend:
    return Backend.allocate_backend("cpu", enable_winograd=winograd, rng_seed=0, **options)


def layer_of(backend: Backend, g: ConvGeometry, dtype: str) -> Any:
    names = zip(("d", "h", "w"), g.pads, g.strides, g.dilations)
    taps = {f"{key}_{axis}": n for axis, *each in names for key, n in zip(("pad", "str", "dil"), each)}
    return backend.conv_layer(dtype, g.N, g.C, g.K, *g.image, *g.window, groups=g.groups, **taps)


def how(backend: Backend, layer: Any) -> str:
    """How a backend computes a layer's images."""
    node = backend.conv(layer, *(backend.ones(dim, dtype=layer.dtype) for dim in (layer.dimI, layer.dimF)))
    return backend.explain(node).steps[0].source.partition("\n")[0]


def drawn(layer: Any) -> list[np.ndarray]:
    return [ref.draw(shape, layer.dtype.name, seed) for seed, shape in enumerate((layer.dimI, layer.dimF, layer.dimO))]


def run(backend: Backend, layer: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
    """Results of the three passes."""
    I, F, E = (backend.array(x, dtype=layer.dtype) for x in operands)
    O, gI, gF = (backend.empty(dim, dtype=layer.dtype) for dim in (layer.dimO, layer.dimI, layer.dimF))
    backend.fprop_conv(layer, I, F, O)
    backend.bprop_conv(layer, F, E, gI)
    backend.update_conv(layer, I, E, gF)
    return [O.get(), gI.get(), gF.get()]


def exact(layer: Any, operands: list[np.ndarray]) -> list[np.ndarray]:
    I, F, E = (x.astype(np.float64) for x in operands)
    return [ref.fprop(layer, I, F), ref.bprop(layer, F, E), ref.update(layer, I, E)]


@shared
@given(g=dilated(), dtype=st.sampled_from(["float32", "float64", "float16", "bfloat16"]),
       winograd=st.sampled_from([0, 2, 4]))  # fmt: skip
def test_passes_are_the_definition(preferred: Any, g: ConvGeometry, dtype: str, winograd: int) -> None:
    backend = made(winograd)
    layer = layer_of(backend, g, dtype)
    operands = drawn(layer)
    most = exact(layer, [np.abs(x) for x in operands])
    rounding = {"float32": 0.0, "float64": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    bound = 1e-14 if dtype == "float64" else BOUNDS[winograd]
    for found, wanted, scale in zip(run(backend, layer, operands), exact(layer, operands), most):
        assert np.abs(found - wanted).max() <= (bound + rounding) * max(scale.max(), 1e-30)


@pytest.mark.parametrize("sizes", [DILATED, {**VOLUME, "pad_d": (3, 1), "dil_d": 2}], ids=["dilated", "volume"])
def test_halves_are_rounded_once(preferred: Any, sizes: dict[str, int]) -> None:
    """Planes of volumes, too, are added up before they are narrowed."""
    backend = made(winograd=2)
    layer = backend.conv_layer("bfloat16", **sizes)
    operands = drawn(layer)
    most = exact(layer, [np.abs(x) for x in operands])
    for found, wanted, scale in zip(run(backend, layer, operands), exact(layer, operands), most):
        bound = 2.0**-8 * np.abs(wanted) + BOUNDS[2] * scale.max()
        assert (np.abs(found.astype(np.float64) - wanted) <= bound).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("sizes", [DILATED, VOLUME], ids=["dilated", "volume"])
def test_what_follows_changes_no_bit(preferred: Any, sizes: dict[str, int], dtype: str) -> None:
    backend = made()
    layer = backend.conv_layer(dtype, **sizes)
    if preferred is _by_winograd:
        assert ("Parted" if sizes is DILATED else "Unrolled") in how(backend, layer)
    tails_change_no_bit(backend, layer)
    I, F, E = (backend.array(x, dtype=dtype) for x in drawn(layer))
    gradient, gated = (backend.empty(layer.dimI, dtype=dtype) for _ in range(2))
    backend.bprop_conv(layer, F, E, gradient)
    backend.bprop_conv(layer, F, E, gated, X=I, brelu=True)
    np.testing.assert_array_equal(gated.get(), gradient.get() * (I.get() > 0))
    if dtype == "float32":
        first, twice = backend.empty(layer.dimF), backend.empty(layer.dimF)
        backend.update_conv(layer, I, E, first)
        twice[:] = first
        backend.update_conv(layer, I, E, twice, alpha=0.5, beta=2.0)
        np.testing.assert_array_equal(twice.get(), first.get() * np.float32(0.5) + first.get() * 2)


@pytest.mark.parametrize("sizes", [DILATED, VOLUME], ids=["dilated", "volume"])
def test_threads_change_no_bit(preferred: Any, sizes: dict[str, int]) -> None:
    backend = made()
    layer = backend.conv_layer("float32", **sizes)
    operands = drawn(layer)
    same_bits(lambda: run(backend, layer, operands))
    same_bits_shared(lambda: run(made(), layer, operands))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [DILATED, VOLUME, {**VOLUME, "dil_h": 2}], ids=["dilated", "volume", "both"])
def test_operands_with_gaps(preferred: Any, sizes: dict[str, int]) -> None:
    backend = made()
    layer = backend.conv_layer("float32", **sizes)
    operands = drawn(layer)
    wanted = run(backend, layer, operands)
    I, E = (backend.array(np.moveaxis(x, 4, 0).copy()).transpose(1, 2, 3, 4, 0) for x in (operands[0], operands[2]))
    F = backend.array(operands[1].T.copy()).transpose(4, 3, 2, 1, 0)
    gradients = [backend.empty(dim) for dim in (layer.dimI, layer.dimF)]
    backend.bprop_conv(layer, F, E, gradients[0])
    backend.update_conv(layer, I, E, gradients[1])
    for found, x in zip([backend.conv(layer, I, F), *gradients], wanted):
        np.testing.assert_array_equal(found.get(), x)


def test_infinities_meet_no_more_than_they_should(preferred: Any) -> None:
    """What fills up parts stays out of results, by the definition at least."""
    backend = made(winograd=0)
    layer = backend.conv_layer("float32", N=2, C=5, K=16, H=16, W=14, R=3, S=2, dil_h=3, dil_w=4)
    operands = drawn(layer)
    operands[0][0, 0, 5, 6, 0] = operands[2][1, 0, 3, 4, 0] = np.inf
    operands[0][1, 0, 13, 9, 1] = np.inf  # which errors beyond the last would meet
    with np.errstate(all="ignore"):
        expected = exact(layer, operands)
    for found, wanted in zip(run(backend, layer, operands), expected):
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))


def test_scratch_is_bounded(preferred: Any) -> None:
    layer = made().conv_layer("float32", **DILATED)
    assert "Parted" in how(made(), layer)
    assert "Parted" not in how(made(scratch_size=4096), layer)


@pytest.mark.parametrize("sizes", [DILATED, VOLUME], ids=["dilated", "volume"])
def test_the_sums_of_a_tail_are_not_counted(preferred: Any, monkeypatch: Any, sizes: dict[str, int]) -> None:
    """What follows would else decide which ways a bound allows, and so the bits."""
    prepared, taken = cpu_conv_passes.Pass.prepared, []
    monkeypatch.setattr(cpu_conv_passes.Pass, "prepared", lambda self: taken.append(self) or prepared(self))
    backend = made()
    layer = backend.conv_layer("float32", **sizes)
    images, filters, _ = (backend.array(x) for x in drawn(layer))
    backend.evaluate(backend.conv(layer, images, filters))
    every_other = backend.zeros((*layer.dimO[:-1], 2 * layer.N))[..., ::2]
    every_other[:] = backend.maximum(backend.conv(layer, images, filters), 0)
    alone, followed = taken
    assert alone.way == followed.way and followed.scratch > alone.scratch
    assert alone.room(8) == followed.room(8)


def ways(op: str, **sizes: Any) -> list[Way]:
    """What is chosen from on a machine of AVX-512, the likely fastest first."""
    layer = Backend.allocate_backend("cpu", jit=False).conv_layer("float32", **sizes)
    return list(conv_blocking.choices(layer.geometry, op, Facts(16, 8, 48), 4, 4))


@pytest.mark.parametrize("op", [FPROP, BPROP, UPDATE])
def test_images_are_rearranged_where_it_pays(op: str) -> None:
    square = {"R": 3, "S": 3, "pad_h": 2, "pad_w": 2, "dil_h": 2, "dil_w": 2}
    large, few = {"N": 8, "C": 256, "K": 256, "H": 32, "W": 32}, {"N": 8, "C": 3, "K": 16, "H": 64, "W": 64}
    assert isinstance(ways(op, **large, **square)[0], Parted)
    assert not any(isinstance(way, Parted) for way in ways(op, **few, **square))
    assert not any(isinstance(way, Parted) for way in ways(op, **large, **square, groups=256))
    assert not any(isinstance(way, (Parted, Unrolled)) for way in ways(op, **large, R=3, S=3))
    volume = {"N": 2, "C": 64, "K": 64, "D": 8, "H": 28, "W": 28, "T": 3, "R": 3, "S": 3, "pad_d": 1, "pad_h": 1}
    assert isinstance(ways(op, **volume)[0], Unrolled)
    assert not any(isinstance(way, Unrolled) for way in ways(op, **{**volume, "str_h": 3, "str_w": 3}))
    both = ways(op, **{**volume, "dil_h": 2, "dil_w": 2})[0]
    assert isinstance(both, Parted) and isinstance(both.way, Unrolled)


def test_a_way_says_its_sources(preferred: Any) -> None:
    backend = made()
    layer = backend.conv_layer("float32", **DILATED)
    node = backend.conv(layer, backend.ones(layer.dimI), backend.ones(layer.dimF))
    source = backend.explain(node).steps[0].source
    assert all(file in source for file in ("space_to_batch.c", "// Parted(way="))
