# SPDX-License-Identifier: Apache-2.0
"""The CPU's convolution kernels: each algorithm by itself, any number of images, strided operands, bounds of error."""

from __future__ import annotations

import functools
import itertools
import math
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import Backend, testing
from tensorbackend.backends import caches, cpu_conv, cpu_conv_passes, cpu_primitives, native, tuning
from tensorbackend.conformance import references as ref
from tensorbackend.primitives import conv_blocking, few_blocking, winograd_blocking
from tensorbackend.primitives.conv_blocking import BPROP, FPROP, UPDATE
from tensorbackend.primitives.conv_ways import TASKS, DepthwiseFew, Direct, Facts, Few, Winograd
from tensorbackend.primitives.geometry import ConvGeometry, share_inside
from tests.conv_tails import tails_change_no_bit
from tests.threads import same_bits, same_bits_shared

pytestmark = pytest.mark.usefixtures("light")

shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

BOUNDS = {0: 2e-6, 2: 1e-5, 4: 2e-4}
"""The largest error of a pass, as a share of the largest result that the magnitudes of its operands give."""


@pytest.fixture
def cc(absent: Any) -> None:
    """Skips, or fails if it must be there, where no C compiler works."""
    if not testing.compiles(Backend.allocate_backend("cpu")):
        absent("cpu", "no C compiler works here")


@functools.cache
def allocated() -> dict[int, Backend]:
    return {ways: Backend.allocate_backend("cpu", enable_winograd=ways) for ways in BOUNDS}


@pytest.fixture
def backends(cc: None) -> dict[int, Backend]:
    """A backend for each setting of `enable_winograd`."""
    return allocated()


@st.composite
def squares(draw: Any) -> dict[str, int]:
    """Layers of square filters at stride 1, around sizes of tiles and vectors."""
    taps = draw(st.sampled_from([3, 3, 5, 7, 9]))
    groups = draw(st.sampled_from([1, 1, 2]))
    pads = st.integers(0, taps - 1)
    return {
        "N": draw(st.sampled_from([1, 2, 4, 5, 8, 16, 33, 48])),
        "C": groups * draw(st.integers(1, 20)),
        "K": groups * draw(st.integers(1, 20)),
        "D": draw(st.sampled_from([1, 1, 2])),
        "H": taps + draw(st.integers(0, 12)),
        "W": taps + draw(st.integers(0, 12)),
        "R": taps,
        "S": taps,
        "pad_h": (draw(pads), draw(pads)),
        "pad_w": (draw(pads), draw(pads)),
        "groups": groups,
    }


def run(backend: Backend, layer: Any, operands: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Results of the three passes."""
    I, F, E = (backend.array(operands[n].reshape(-1, operands[n].shape[-1]), dtype=layer.dtype) for n in "IFE")
    O, gI, gF = (backend.empty(d, dtype=layer.dtype) for d in (layer.dimO2, layer.dimI2, layer.dimF2))
    backend.fprop_conv(layer, I, F, O)
    backend.bprop_conv(layer, F, E, gI)
    backend.update_conv(layer, I, E, gF)
    return [t.get().reshape(d) for t, d in ((O, layer.dimO), (gI, layer.dimI), (gF, layer.dimF))]


def drawn(layer: Any) -> dict[str, np.ndarray]:
    shapes = {"I": layer.dimI, "F": layer.dimF, "E": layer.dimO}
    return {name: ref.draw(shape, "float32", seed) for seed, (name, shape) in enumerate(shapes.items())}


def exact(layer: Any, x: dict[str, np.ndarray]) -> list[np.ndarray]:
    I, F, E = (x[name].astype(np.float64) for name in "IFE")
    return [ref.fprop(layer, I, F), ref.bprop(layer, F, E), ref.update(layer, I, E)]


@shared
@given(sizes=squares())
def test_every_algorithm_is_the_definition(backends: dict[int, Backend], sizes: dict[str, int]) -> None:
    layer = backends[0].conv_layer("float32", **sizes)
    operands = drawn(layer)
    expected = exact(layer, operands)
    most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    for ways, backend in backends.items():
        for found, wanted, scale in zip(run(backend, layer, operands), expected, most):
            assert np.abs(found - wanted).max() <= BOUNDS[ways] * max(scale.max(), 1e-30)


def need_unit() -> None:
    if not cpu_conv.facts(np.dtype("float32")).matrix_unit:
        pytest.skip("for a processor with a matrix unit, or with AVX-512 and TB_CFLAGS=-DTB_SOFT_TILES")


@pytest.fixture
def unit(cc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix unit is chosen wherever it can be."""
    need_unit()
    monkeypatch.setattr(conv_blocking, "FEWEST_UNIT_MAPS", 1)
    for blocking in (conv_blocking, winograd_blocking):
        monkeypatch.setattr(blocking, "nanoseconds", _favoured)


def _favoured(g: ConvGeometry, op: str, facts: Facts, way: Direct | Few | Winograd) -> float:
    return 8.0 - way.planes - isinstance(way, Winograd) if isinstance(way, (Direct, Winograd)) else 9.0


def _shared(g: ConvGeometry, op: str, facts: Facts, way: Direct | Few | Winograd) -> float:
    return _favoured(g, op, facts, way) - 2 * (isinstance(way, Direct) and way.shared)


def chosen(backend: Backend, layer: Any) -> str:
    """How a backend computes a layer's images."""
    node = backend.conv(layer, backend.ones(layer.dimI, dtype=layer.dtype), backend.ones(layer.dimF, dtype=layer.dtype))
    return backend.explain(node).steps[0].source.partition("\n")[0]


def on_unit(backend: Backend, layer: Any) -> bool:
    return "planes=3" in chosen(backend, layer)


@pytest.mark.parametrize("favoured", [_favoured, _shared], ids=["filters copied before", "copies shared"])
@pytest.mark.parametrize("value", [None, *(pytest.param(x, marks=pytest.mark.ci) for x in (np.inf, np.nan))])
@pytest.mark.parametrize("sizes", [
    {"N": 16, "C": 40, "K": 50, "H": 14, "W": 14, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 3, "C": 5, "K": 90, "H": 20, "W": 17, "R": 7, "S": 5, "str_h": 2, "str_w": 3, "pad_h": 2},
    {"N": 1, "C": 300, "K": 30, "H": 12, "W": 40, "R": 3, "S": 3, "dil_w": 2},
    {"N": 2, "C": 34, "K": 66, "D": 3, "H": 9, "W": 9, "T": 2, "R": 3, "S": 3, "pad_h": (0, 2), "groups": 2},
    {"N": 7, "C": 3, "K": 67, "H": 31, "W": 29, "R": 3, "S": 3, "str_h": 2, "str_w": 2, "pad_h": 4, "pad_w": 1},
    {"N": 13, "C": 2, "K": 17, "H": 40, "W": 67, "R": 4, "S": 20, "str_h": 5, "str_w": 2, "dil_h": 3},
    {"N": 2, "C": 6, "K": 34, "D": 5, "H": 9, "W": 11, "T": 3, "R": 3, "S": 2, "pad_d": 3, "str_w": 3, "groups": 2},
    {"N": 1, "C": 67, "K": 37, "H": 13, "W": 11, "R": 2, "S": 3, "str_h": 2, "str_w": 2, "pad_h": 3, "pad_w": (4, 3)},
    {"N": 1, "C": 35, "K": 70, "H": 9, "W": 9, "R": 1, "S": 2, "str_h": 3, "str_w": 4, "pad_w": 1},
    {"N": 1, "C": 70, "K": 67, "H": 7, "W": 7, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 5, "C": 40, "K": 70, "H": 9, "W": 8, "R": 1, "S": 1, "str_h": 2, "str_w": 3, "pad_h": 1},
    {"N": 5, "C": 48, "K": 16, "H": 9, "W": 9, "R": 5, "S": 5, "pad_h": 2, "pad_w": 2},
    {"N": 16, "C": 16, "K": 72, "H": 8, "W": 9, "R": 2, "S": 4, "dil_w": 2, "pad_w": (3, 5)},
    {"N": 1, "C": 80, "K": 48, "H": 9, "W": 12, "R": 3, "S": 2, "str_h": 2, "str_w": 2},
], ids=["square", "strided", "deep", "groups", "few channels", "few and far", "few in depth",
        "pads", "gaps", "seven", "one cell", "halves", "pairs of taps", "halves and strides"])  # fmt: skip
def test_direct_products_of_the_matrix_unit(
    unit: None, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int], value: float | None, favoured: Any
) -> None:
    monkeypatch.setattr(conv_blocking, "nanoseconds", favoured)
    backend = Backend.allocate_backend("cpu", enable_winograd=0, rng_seed=0)
    layer = backend.conv_layer("float32", **sizes)
    assert on_unit(backend, layer)
    assert ("shared=True" in chosen(backend, layer)) == (favoured is _shared)
    operands = drawn(layer)
    most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    if value is not None:
        operands["I"][0, 0, 2, 3, 0] = operands["E"][1, 0, layer.P // 2, layer.Q // 2, 0] = value
    with np.errstate(all="ignore"):
        expected = exact(layer, operands)
    for found, wanted, scale in zip(run(backend, layer, operands), expected, most):
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(found[~finite], wanted[~finite])
        assert np.abs(found[finite] - wanted[finite]).max() <= BOUNDS[0] * scale.max()


@pytest.mark.parametrize("sizes", [
    {"N": 7, "C": 3, "K": 67, "H": 11, "W": 10, "R": 3, "S": 3, "str_h": 2, "str_w": 5, "pad_h": 4, "pad_w": (3, 8)},
    {"N": 32, "C": 1, "K": 19, "H": 7, "W": 7, "R": 5, "S": 5, "pad_h": 6, "pad_w": 9, "dil_h": 2, "dil_w": 3},
], ids=["strided", "dilated"])  # fmt: skip
def test_padding_wider_than_the_filters_on_the_matrix_unit(unit: None, sizes: dict[str, int]) -> None:
    backend = Backend.allocate_backend("cpu", enable_winograd=0, rng_seed=0)
    layer = backend.conv_layer("float32", **sizes)
    operands = drawn(layer)
    most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    for found, wanted, scale in zip(run(backend, layer, operands), exact(layer, operands), most):
        assert np.abs(found - wanted).max() <= BOUNDS[0] * scale.max()


def test_few_channels_of_rows_that_go_on_on_the_matrix_unit(unit: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of the filters' gradient whose last one has fewer rows than the others."""

    def flat(g: ConvGeometry, op: str, *rest: Any) -> Iterator[Direct]:
        yield conv_blocking._unit_update_cost(g, 2, 16, 8, 80, True)[1]

    monkeypatch.setattr(conv_blocking, "choices", flat)
    backend = Backend.allocate_backend("cpu", rng_seed=0)
    sizes = {"N": 32, "C": 8, "K": 80, "H": 11, "W": 13, "R": 2, "S": 5, "str_h": 3, "pad_h": 2, "pad_w": (0, 7)}
    layer = backend.conv_layer("float32", **sizes)
    operands = drawn(layer)
    gradient = backend.empty(layer.dimF)
    backend.update_conv(layer, backend.array(operands["I"]), backend.array(operands["E"]), gradient)
    _, _, most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    _, _, wanted = exact(layer, operands)
    assert np.abs(gradient.get() - wanted).max() <= BOUNDS[0] * most.max()


@pytest.mark.parametrize("favoured", [_favoured, _shared], ids=["filters copied before", "copies shared"])
@pytest.mark.parametrize("sizes", [
    {"N": 16, "C": 9, "K": 11, "H": 6, "W": 9, "R": 2, "S": 5, "pad_h": 1},
    {"N": 3, "C": 37, "K": 37, "H": 7, "W": 6, "R": 3, "S": 3, "dil_w": 2, "pad_w": 3, "str_h": 2},
    {"N": 8, "C": 40, "K": 20, "D": 2, "H": 5, "W": 12, "T": 2, "R": 1, "S": 4, "str_w": 2, "pad_d": 1},
], ids=["taps in pairs", "dilated", "deep"])  # fmt: skip
def test_what_memory_held_is_no_part_of_results_of_the_matrix_unit(
    unit: None, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int], favoured: Any
) -> None:
    monkeypatch.setattr(conv_blocking, "nanoseconds", favoured)
    made: list[tuple[Any, Any]] = []
    kept = cpu_primitives.prepare_conv
    monkeypatch.setattr(
        cpu_primitives, "prepare_conv", lambda step, *rest: made.append((step, kept(step, *rest))) or made[-1][1]
    )
    backend = Backend.allocate_backend("cpu", enable_winograd=0, rng_seed=0)
    layer = backend.conv_layer("float32", **sizes)
    run(backend, layer, drawn(layer))
    assert len(made) == 3
    for step, prepared in made:
        assert "planes=3" in prepared.source.partition("\n")[0]
        x, y = (ref.draw(place.shape, "float32", 1) for place in step.inputs)
        found = []
        for held in (0x00, 0xFF, 0x7F):
            result = np.zeros(step.output.shape, np.float32)
            room = np.full(8 * prepared.scratch_words + 64, held, np.uint8)
            scratch = room.ctypes.data + -room.ctypes.data % 64
            prepared.run([x.ctypes.data, y.ctypes.data, result.ctypes.data, scratch], [])
            found.append(result)
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("sizes", [
    {"N": 16, "C": 64, "K": 80, "H": 14, "W": 14, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 5, "C": 40, "K": 50, "H": 13, "W": 11, "R": 3, "S": 3, "pad_h": (1, 0), "pad_w": 1},
    {"N": 4, "C": 64, "K": 48, "H": 14, "W": 14, "R": 5, "S": 5, "pad_h": 2, "pad_w": 2},
    {"N": 16, "C": 66, "K": 72, "H": 12, "W": 12, "R": 3, "S": 3, "groups": 2},
], ids=["even", "odd", "five", "groups"])  # fmt: skip
def test_the_matrix_unit_is_as_exact(unit: None, sizes: dict[str, int]) -> None:
    for winograd in (2, 4):
        backend = Backend.allocate_backend("cpu", enable_winograd=winograd, rng_seed=0)
        layer = backend.conv_layer("float32", **sizes)
        assert winograd == 2 and layer.TRS[1] == 5 or "Winograd" in chosen(backend, layer) and on_unit(backend, layer)
        operands = drawn(layer)
        most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
        for found, wanted, scale in zip(run(backend, layer, operands), exact(layer, operands), most):
            assert np.abs(found - wanted).max() <= BOUNDS[winograd] * scale.max()


@pytest.mark.slow
@pytest.mark.parametrize("points", [pytest.param(4, marks=pytest.mark.ci), 6])
@pytest.mark.parametrize("planes", [0, 3])
@pytest.mark.parametrize("sizes", [
    {"N": 1, "C": 20, "K": 33, "H": 28, "W": 28, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 2, "C": 5, "K": 17, "H": 9, "W": 230, "R": 3, "S": 3, "pad_h": (0, 2), "pad_w": 1},
    {"N": 3, "C": 4, "K": 5, "D": 3, "H": 3, "W": 4, "R": 3, "S": 3, "pad_h": 2, "pad_w": 2},
    {"N": 15, "C": 3, "K": 6, "H": 14, "W": 21, "R": 3, "S": 3, "groups": 3},
    {"N": 1, "C": 3, "K": 4, "D": 2, "H": 12, "W": 41, "R": 3, "S": 3, "pad_w": (2, 0)},
], ids=["one", "two, wide", "three, deep", "groups", "one, deep"])  # fmt: skip
def test_tiles_of_few_images(
    cc: Any, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int], planes: int, points: int
) -> None:
    if planes:
        need_unit()

    def alone(g: ConvGeometry, op: str, facts: Facts, itemsize: int, winograd: int) -> Iterator[Winograd]:
        yield winograd_blocking.blocks(g, op, facts, itemsize, points, planes, 3)

    monkeypatch.setattr(conv_blocking, "choices", alone)
    backend = Backend.allocate_backend("cpu", rng_seed=0)
    layer = backend.conv_layer("float32", **sizes)
    operands = drawn(layer)
    most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    for found, wanted, scale in zip(run(backend, layer, operands), exact(layer, operands), most):
        assert np.abs(found - wanted).max() <= BOUNDS[2 if points == 4 else 4] * scale.max()


PARTS = {
    "seven": {"N": 16, "C": 3, "K": 9, "H": 14, "W": 17, "R": 7, "S": 7},
    "nine, one image": {"N": 1, "C": 5, "K": 20, "H": 23, "W": 30, "R": 9, "S": 9, "pad_h": (3, 1), "pad_w": 4},
    "eleven, deep groups": {
        "N": 5, "C": 4, "K": 6, "D": 2, "H": 15, "W": 13, "R": 11, "S": 11, "pad_h": 5, "pad_w": 10, "groups": 2
    },
    "shares of a part": {"N": 48, "C": 200, "K": 17, "H": 9, "W": 9, "R": 7, "S": 5, "pad_w": 3},
    "parts over padding": {"N": 64, "C": 130, "K": 17, "H": 10, "W": 10, "R": 7, "S": 7, "pad_h": 9, "pad_w": 6},
    "four images": {"N": 4, "C": 7, "K": 60, "H": 14, "W": 37, "R": 7, "S": 7, "pad_h": 3, "pad_w": (0, 2)},
    "eight images": {"N": 8, "C": 5, "K": 9, "H": 9, "W": 37, "R": 4, "S": 5, "pad_h": 1, "pad_w": 2, "groups": 1},
    "rectangles": {"N": 2, "C": 34, "K": 17, "H": 10, "W": 12, "R": 5, "S": 8, "pad_h": 1, "pad_w": 2},
    "all short": {"N": 3, "C": 20, "K": 33, "H": 11, "W": 13, "R": 4, "S": 4, "pad_h": 1, "pad_w": 2},
    "short down": {"N": 16, "C": 70, "K": 9, "H": 12, "W": 14, "R": 5, "S": 3, "pad_h": 2, "pad_w": 1},
    "short across": {"N": 16, "C": 70, "K": 9, "H": 12, "W": 14, "R": 3, "S": 8, "pad_h": 1, "pad_w": 2},
    "strided": {
        "N": 16, "C": 3, "K": 17, "H": 40, "W": 42, "R": 11, "S": 11, "str_h": 4, "str_w": 4, "pad_h": 2, "pad_w": 9
    },
    "strides that differ": {
        "N": 6, "C": 2, "K": 40, "H": 20, "W": 32, "R": 5, "S": 20, "str_h": 2, "str_w": 3, "pad_w": 3
    },
}  # fmt: skip


@pytest.fixture
def parts(cc: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A backend that computes by parts of filters wherever it can, made from points and taps of a part. `own`: tasks
    transform filters, or take sums to the end, themselves where they can. `planes`: on the matrix unit."""
    monkeypatch.setattr(winograd_blocking, "FEWEST_OWN_TASKS", 0)

    def make(points: int, taps: int, own: bool = False, planes: int = 0) -> Backend:
        def alone(g: ConvGeometry, op: str, facts: Facts, itemsize: int, winograd: int) -> Iterator[Direct | Winograd]:
            if winograd_blocking.may_be_cut(g, op):
                way = winograd_blocking.blocks(g, op, facts, itemsize, points, planes, taps)
                if own:
                    yield from winograd_blocking.own_blocks(g, op, facts, itemsize, replace(way, shared=True))
                yield way
            else:
                yield from _plain_alone(g, op, facts, itemsize, winograd)

        monkeypatch.setattr(conv_blocking, "choices", alone)
        return Backend.allocate_backend("cpu", rng_seed=0)

    return make


@pytest.mark.slow
@pytest.mark.parametrize(("points", "taps", "name"), [
    *((6, 3, name) for name in PARTS),
    *(pytest.param(*way, name, marks=pytest.mark.ci) for way in [(6, 4), (6, 5), (4, 3), (4, 2)]
      for name in ("shares of a part", "rectangles", "strided")),
    (4, 2, "seven"),
])  # fmt: skip
def test_filters_in_parts(parts: Any, points: int, taps: int, name: str) -> None:
    assert_parts(parts(points, taps), points, name)


@pytest.mark.parametrize("points", [4, 6])
@pytest.mark.parametrize("name", PARTS)
def test_filters_in_parts_on_the_matrix_unit(parts: Any, points: int, name: str) -> None:
    need_unit()
    assert_parts(parts(points, 3, planes=3), points, name)


def test_parts_have_each_tap_once() -> None:
    for taps, stride, most in itertools.product(range(1, 24), range(1, 6), range(2, 6)):
        g = geometry(R=taps, strides=(1, stride, 1))
        found = winograd_blocking._parts(g, 1, most)
        assert sorted(first + i * stride for first, count in found for i in range(count)) == list(range(taps))
        counts = [count for _, count in found]
        assert max(counts) <= most and sorted(counts, reverse=True) == counts


def test_short_parts_have_no_products_at_infinity() -> None:
    five = geometry(R=5, S=5)  # three and two taps a side
    way = winograd_blocking.blocks(five, FPROP, Facts(16, 8, 48), 4, 4, 0, 3)
    assert winograd_blocking._points(five, FPROP, way) == 3.5**2
    assert winograd_blocking._points(geometry(R=9, S=9), FPROP, way) == 16


def assert_parts(backend: Backend, points: int, name: str) -> None:
    """All passes of a case of `PARTS`, by Winograd's algorithm."""
    layer = backend.conv_layer("float32", **PARTS[name])
    assert chosen(backend, layer).startswith("// Winograd")
    operands = drawn(layer)
    most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    for found, wanted, scale in zip(run(backend, layer, operands), exact(layer, operands), most):
        assert np.abs(found - wanted).max() <= BOUNDS[2 if points == 4 else 4] * scale.max()


@pytest.mark.slow
@pytest.mark.parametrize("sum_bytes", [1, 1 << 26])
@pytest.mark.parametrize(("points", "lanes"), [(4, 960), (6, 240)])
def test_two_blocks_of_the_filters_gradient_at_a_time(
    parts: Any, monkeypatch: pytest.MonkeyPatch, points: int, lanes: int, sum_bytes: int
) -> None:
    sizes = {"N": 16, "C": 16, "K": 70, "H": 20, "W": 12, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1, "groups": 2}
    monkeypatch.setattr(winograd_blocking, "SUM_BYTES", sum_bytes)
    backend = parts(points, 3)
    layer = backend.conv_layer("float32", **sizes)
    found: list[Winograd] = []
    kept = winograd_blocking.blocks
    monkeypatch.setattr(winograd_blocking, "blocks", lambda *given: found.append(kept(*given)) or found[-1])
    operands = drawn(layer)
    results = run(backend, layer, operands)
    update = next(way for way in found if way.shares == 2)
    panels = -(-lanes // cpu_conv.facts(np.dtype("float32")).width)
    assert update.blocks == panels if sum_bytes == 1 else 1 < update.blocks < panels
    most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    for result, wanted, scale in zip(results, exact(layer, operands), most):
        assert np.abs(result - wanted).max() <= BOUNDS[2 if points == 4 else 4] * scale.max()


OWN = {
    "whole tiles": {"N": 1, "C": 70, "K": 96, "H": 14, "W": 14, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    "tiles that are not": {"N": 3, "C": 37, "K": 43, "D": 2, "H": 9, "W": 11, "R": 3, "S": 3, "pad_w": 1, "groups": 1},
    "deep groups": {"N": 2, "C": 66, "K": 58, "H": 8, "W": 8, "R": 3, "S": 3, "pad_h": 2, "groups": 2},
    "many lanes": {"N": 16, "C": 20, "K": 40, "H": 21, "W": 20, "R": 3, "S": 3},
    **PARTS,
}


@pytest.mark.slow
@pytest.mark.parametrize(("points", "taps", "name"), [
    *((6, 3, name) for name in OWN if name not in PARTS),
    *(pytest.param(6, 3, name, marks=pytest.mark.ci) for name in PARTS),
    *((*way, name) for way in [(6, 4), (4, 3)] for name in ("deep groups", "rectangles")),
])  # fmt: skip
def test_tasks_with_filters_or_sums_of_their_own_change_no_bit(
    parts: Any, monkeypatch: pytest.MonkeyPatch, points: int, taps: int, name: str
) -> None:
    monkeypatch.setattr(winograd_blocking, "DATA_BYTES", 1 << 20)  # several blocks, where lanes are many
    if name != "many lanes":  # of which shared stages add up two blocks one after the other
        monkeypatch.setattr(winograd_blocking, "MOST_NEAR_SUMS", 0)
    results = []
    for own in (False, True):
        backend = parts(points, taps, own)
        layer = backend.conv_layer("float32", **OWN[name])
        assert ("part=0," in chosen(backend, layer)) != own
        operands = drawn(layer)
        results.append(run(backend, layer, operands))
    most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    for shared_stages, found, wanted, scale in zip(*results, exact(layer, operands), most):
        np.testing.assert_array_equal(found, shared_stages)
        assert np.abs(found - wanted).max() <= BOUNDS[2 if points == 4 else 4] * scale.max()


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    "name", ["seven", *(pytest.param(name, marks=pytest.mark.ci) for name in ("shares of a part", "strided"))]
)
def test_filters_in_parts_of_halves(parts: Any, name: str, own: bool) -> None:
    backend = parts(6, 4, own)
    layer = backend.conv_layer("float16", **PARTS[name])
    operands = {name: x.astype("float16") for name, x in drawn(layer).items()}
    most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    for found, wanted, scale in zip(run(backend, layer, operands), exact(layer, operands), most):
        bound = BOUNDS[4] + DEPTHWISE_BOUNDS["float16"]
        assert np.abs(found.astype(np.float64) - wanted).max() <= bound * scale.max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["seven", "eleven, deep groups", "parts over padding", "strided"])
def test_filters_in_parts_and_threads(parts: Any, name: str) -> None:
    for own in (False, True):
        same_bits_of(parts(6, 3, own), PARTS[name])


@pytest.mark.slow
def test_results_past_the_caches(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    results = []
    for past in (False, True):
        monkeypatch.setattr(caches, "go_past", lambda nbytes, past=past: asked.append(nbytes) or past)
        backend = parts(6, 4)
        layer = backend.conv_layer("float32", **PARTS["parts over padding"])
        results.append(run(backend, layer, drawn(layer)))
    assert len(set(asked)) == 3 and asked[: len(asked) // 2] == asked[len(asked) // 2 :]  # three passes, twice
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_filters_in_parts_and_what_follows_them(parts: Any, own: bool) -> None:
    backend = parts(6, 4, own)
    layer = backend.conv_layer("float32", **PARTS["parts over padding"])
    I, F, _ = (backend.array(x) for x in drawn(layer).values())
    bias = backend.array(ref.draw((layer.K, 1, 1, 1, 1), "float32", 3))
    sums = backend.empty(layer.dimO)
    backend.conv(layer, I, F, out=sums)
    together = backend.maximum(backend.conv(layer, I, F) + bias, 0)
    assert len(steps(backend, together)) == 1
    np.testing.assert_array_equal(together.get(), np.maximum(sums.get() + bias.get(), 0))


@pytest.mark.parametrize("facts", [Facts(4, 4, 8), Facts(8, 4, 24), Facts(16, 8, 48)], ids=["4", "8", "16"])
@pytest.mark.parametrize("op", [FPROP, BPROP, UPDATE])
def test_panels_of_a_block_are_bits_of_a_word(op: str, facts: Facts) -> None:
    """Also of few channels, of whose lanes many panels stay in the cache."""
    for side, points in itertools.product((3, 7), (4, 6)):
        few = geometry(N=3, C=1, K=1, H=512, W=512, P=514 - side, Q=514 - side, R=side, S=side)
        way = winograd_blocking.blocks(few, op, facts, 4, points, 0, 3)
        for one in (way, *winograd_blocking.own_blocks(few, op, facts, 4, replace(way, shared=True))):
            assert 1 < one.panels <= 64


@pytest.mark.parametrize("op", [FPROP, BPROP, UPDATE])
def test_tasks_have_filters_or_sums_of_their_own_where_blocks_allow_it(op: str) -> None:
    """By multiply-adds; sums are one block's."""
    g, facts = geometry(N=1, H=14, W=14, P=14, Q=14), Facts(16, 8, 48)
    way = replace(winograd_blocking.blocks(g, op, facts, 4, 6, 0, 3), shared=True, blocks=1)
    assert winograd_blocking.own_blocks(g, op, facts, 4, way)
    assert not winograd_blocking.own_blocks(g, op, facts, 4, replace(way, planes=3))
    several = winograd_blocking.own_blocks(g, op, facts, 4, replace(way, blocks=way.shares + 1))
    assert bool(several) == (op != UPDATE)


@pytest.mark.parametrize("op", [FPROP, BPROP, UPDATE])
def test_large_filters_go_in_parts(op: str) -> None:
    large = geometry(C=64, K=128, H=64, W=64, P=56, Q=56, R=9, S=9, pads=((0, 0),) * 3)
    assert ways(large, op)[0].parts == 9
    assert ways(large, op, 2)[0].parts == (25 if op == BPROP else 9) and ways(large, op, 2)[0].points == 4
    first = geometry(N=64, C=3, K=96, H=231, W=231, P=56, Q=56, R=11, S=11, pads=((0, 0),) * 3, strides=(1, 4, 4))
    assert isinstance(ways(first, op)[0], Winograd)


@pytest.fixture
def adjoint(cc: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A backend whose images' gradients are the forward pass, transposed, made from points, taps of a part, channels of
    a task and rows of tiles of a block."""

    def make(points: int, taps: int, part: int, rows: int) -> Backend:
        def alone(g: ConvGeometry, op: str, facts: Facts, itemsize: int, winograd: int) -> Iterator[Direct | Winograd]:
            if op == BPROP:
                way = winograd_blocking.adjoints(g, facts, itemsize, points, taps)[-1]
                all_rows, channels = g.D * -(-g.P // way.out), g.C // g.groups
                each, own = min(rows, all_rows), min(part, channels)
                yield replace(way, part=own, panels=each, blocks=-(-all_rows // each))
            else:
                yield from _plain_alone(g, op, facts, itemsize, winograd)

        monkeypatch.setattr(winograd_blocking, "ADJOINT_BYTES", 1 << 40)
        monkeypatch.setattr(conv_blocking, "choices", alone)
        return Backend.allocate_backend("cpu", rng_seed=0)

    return make


def backward(backend: Backend, layer: Any, operands: dict[str, np.ndarray]) -> np.ndarray:
    """The gradient by the images, over a result that held other numbers."""
    F, E = (backend.array(operands[name], dtype=layer.dtype) for name in "FE")
    grad = backend.full(layer.dimI, 7, dtype=layer.dtype)
    backend.bprop_conv(layer, F, E, grad)
    return grad.get().astype(np.float64)


ADJOINT = {
    "one image": {"N": 1, "C": 17, "K": 20, "H": 29, "W": 30, "R": 3, "S": 3},
    "two, wide": {"N": 2, "C": 5, "K": 17, "H": 9, "W": 230, "R": 3, "S": 3, "pad_h": (0, 2), "pad_w": 1},
    "places that no tap reaches": {"N": 3, "C": 9, "K": 4, "H": 31, "W": 45, "R": 5, "S": 4, "str_h": 4, "str_w": 3},
    **OWN,
}


@pytest.mark.slow
@pytest.mark.parametrize(("points", "taps", "name"), [
    *((6, 3, name) for name in ADJOINT),
    *(pytest.param(*way, name, marks=pytest.mark.ci) for way in [(6, 4), (6, 5), (4, 3), (4, 2)]
      for name in ("one image", "deep groups", "eleven, deep groups", "rectangles", "strided")),
])  # fmt: skip
def test_images_gradients_as_the_forward_pass_transposed(adjoint: Any, points: int, taps: int, name: str) -> None:
    for part, rows in [(8, 1 << 30), (1 << 30, 2), (3, 1)]:
        backend = adjoint(points, taps, part, rows)
        layer = backend.conv_layer("float32", **ADJOINT[name])
        operands = drawn(layer)
        _, most, _ = exact(layer, {name: np.abs(x) for name, x in operands.items()})
        _, wanted, _ = exact(layer, operands)
        found = backward(backend, layer, operands)
        assert np.abs(found - wanted).max() <= BOUNDS[2 if points == 4 else 4] * most.max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deep groups", "eleven, deep groups", "strided"])
def test_gradients_transposed_and_threads(adjoint: Any, name: str) -> None:
    for part, rows in [(8, 1 << 30), (1 << 30, 2)]:
        same_bits_of(adjoint(6, 3, part, rows), ADJOINT[name])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["four images", "strided"])
def test_gradients_transposed_of_halves(adjoint: Any, name: str, dtype: str) -> None:
    backend = adjoint(6, 3, 4, 2)
    layer = backend.conv_layer(dtype, **ADJOINT[name])
    operands = {name: x.astype(layer.dtype) for name, x in drawn(layer).items()}
    _, most, _ = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    _, wanted, _ = exact(layer, operands)
    bound = BOUNDS[4] + DEPTHWISE_BOUNDS[dtype]
    assert np.abs(backward(backend, layer, operands) - wanted).max() <= bound * most.max()


def test_gradients_transposed_and_what_follows_them(adjoint: Any) -> None:
    backend = adjoint(6, 3, 8, 2)
    layer = backend.conv_layer("float32", **ADJOINT["deep groups"])
    I, F, E = (backend.array(x) for x in drawn(layer).values())
    grads, gated = backend.empty(layer.dimI), backend.empty(layer.dimI)
    backend.bprop_conv(layer, F, E, grads)
    backend.bprop_conv(layer, F, E, gated, X=I, brelu=True)
    np.testing.assert_array_equal(gated.get(), grads.get() * (I.get() > 0))


def test_gradients_transposed_where_the_gradients_own_convolution_is_larger() -> None:
    unpadded = geometry(N=8, C=384, K=384, H=13, W=13, P=11, Q=11, R=3, S=3, pads=((0, 0),) * 3)
    padded = geometry(N=64, C=64, K=64, H=32, W=32, P=32, Q=32, R=3, S=3, pads=((0, 0), (1, 1), (1, 1)))
    strided = geometry(N=8, C=3, K=96, H=231, W=231, P=56, Q=56, R=11, S=11, pads=((0, 0),) * 3, strides=(1, 4, 4))
    assert [ways(g, BPROP)[0].adjoint for g in (unpadded, padded, strided)] == [True, False, True]
    assert not any(getattr(way, "adjoint", False) for way in [*ways(unpadded, BPROP, 0), *ways(unpadded, FPROP)])


@pytest.fixture
def few(cc: Any, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A backend that reads filters where they lie wherever it can."""
    monkeypatch.setattr(conv_blocking, "nanoseconds", lambda g, op, facts, way: 1.0 + (not isinstance(way, Few)))
    return Backend.allocate_backend("cpu", rng_seed=0)


FEW_PLACES = pytest.mark.parametrize("sizes", [
    {"N": 1, "C": 67, "K": 80, "H": 7, "W": 7, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 3, "C": 130, "K": 16, "H": 5, "W": 6, "R": 3, "S": 2, "pad_h": (0, 2), "pad_w": 3},
    {"N": 1, "C": 19, "K": 48, "H": 23, "W": 20, "R": 3, "S": 2, "str_h": 2, "str_w": 3, "pad_h": 1},
    {"N": 2, "C": 33, "K": 32, "H": 11, "W": 9, "R": 1, "S": 2, "str_h": 3, "str_w": 3, "pad_w": 1},
    {"N": 1, "C": 12, "K": 64, "H": 13, "W": 17, "R": 3, "S": 3, "dil_h": 2, "dil_w": 5, "pad_w": 4},
    {"N": 2, "C": 34, "K": 96, "D": 3, "H": 5, "W": 4, "T": 2, "R": 3, "S": 3, "str_d": 2, "pad_d": 1, "groups": 2},
    {"N": 1, "C": 5, "K": 16, "H": 1, "W": 31, "R": 1, "S": 1, "pad_h": 2, "str_w": 4},
    {"N": 7, "C": 1, "K": 16, "H": 17, "W": 19, "R": 3, "S": 3},
    {"N": 2, "C": 35, "K": 48, "H": 19, "W": 22, "R": 3, "S": 3, "dil_h": 7, "dil_w": 8, "pad_h": 7, "pad_w": 8},
    {"N": 1, "C": 3, "K": 16, "H": 12, "W": 13, "R": 9, "S": 11, "pad_h": 6, "pad_w": 5},
    {"N": 1, "C": 2, "K": 32, "H": 43, "W": 44, "R": 2, "S": 3, "pad_h": 1, "pad_w": 9},
], ids=["seven", "pads", "strided", "gaps", "dilated", "deep groups", "one row", "one channel", "kinds of places",
        "many taps", "many places"])  # fmt: skip


def right_of_few_places(backend: Backend, sizes: dict[str, int], dtype: str) -> str:
    """What is chosen for a layer's forward pass; all passes are right."""
    layer = backend.conv_layer(dtype, **sizes)
    operands = {name: x.astype(dtype) for name, x in drawn(layer).items()}
    most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    bound = BOUNDS[0] if dtype == "float32" else 1e-14
    for found, wanted, scale in zip(run(backend, layer, operands), exact(layer, operands), most):
        assert np.abs(found - wanted).max() <= bound * scale.max()
    return chosen(backend, layer)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@FEW_PLACES
def test_few_places_of_filters_where_they_lie(
    few: Backend, sizes: dict[str, int], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_blocking, "COPYING", (1 << 30, 1 << 30))
    way = right_of_few_places(few, sizes, dtype)
    assert way.startswith("// Few") and "copied=False" in way


@FEW_PLACES
def test_few_places_of_filters_that_each_task_copies(
    few: Backend, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a line of channels, and one of what is left."""
    monkeypatch.setattr(few_blocking, "COPYING", (1, 1))
    monkeypatch.setattr(few_blocking, "COPIED_ROWS", (1, 1))
    copied = math.prod(sizes.get(n, 1) for n in "TRS") > 1
    assert f"copied={copied}" in right_of_few_places(few, sizes, "float32")


@pytest.mark.parametrize("within", [False, True], ids=["zeros around", "the image alone"])
@pytest.mark.parametrize("sizes", [
    {"N": 1, "C": 80, "K": 80, "H": 20, "W": 18, "R": 3, "S": 3, "dil_h": 5, "dil_w": 5, "pad_h": 5, "pad_w": 5},
    {"N": 2, "C": 48, "K": 112, "H": 13, "W": 9, "R": 3, "S": 2, "str_h": 2, "str_w": 3, "pad_h": (0, 2)},
    {"N": 3, "C": 160, "K": 64, "D": 3, "H": 4, "W": 5, "T": 2, "R": 3, "S": 3, "pad_d": 1, "pad_w": 1, "groups": 2},
    {"N": 1, "C": 16, "K": 32, "H": 6, "W": 7, "R": 2, "S": 3, "pad_h": 3, "pad_w": 9, "dil_w": 8},
], ids=["dilated", "strided", "deep groups", "padding alone"])  # fmt: skip
def test_panels_of_more_vectors_than_a_tile_has(
    few: Backend, sizes: dict[str, int], within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also backward, where lanes are maps then, as forward; of copies with zeros around the image, and without."""

    def broad(maps: int, _: int, facts: Facts) -> int:
        return max(n * facts.lanes for n in range(1, 9) if maps % (n * facts.lanes) == 0)

    monkeypatch.setattr(few_blocking, "COPYING", (1, 1))
    monkeypatch.setattr(few_blocking, "COPIED_ROWS", (200, 200))
    monkeypatch.setattr(few_blocking, "_broad_panel", broad)
    monkeypatch.setattr(few_blocking, "_is_within", lambda *_: within)
    assert f"copied=True, within={within}" in right_of_few_places(few, sizes, "float32")


def test_few_places_and_what_follows_them(few: Backend) -> None:
    layer = few.conv_layer("float32", N=1, C=48, K=80, H=9, W=11, R=3, S=3, pad_h=1, pad_w=1)
    I, F, E = (few.array(x) for x in drawn(layer).values())
    bias = few.array(ref.draw((layer.K, 1, 1, 1, 1), "float32", 3))
    sums, grads = few.empty(layer.dimO), few.empty(layer.dimI)
    few.conv(layer, I, F, out=sums)
    few.bprop_conv(layer, F, E, grads)
    together = few.maximum(few.conv(layer, I, F) + bias, 0)
    assert len(steps(few, together)) == 1
    np.testing.assert_array_equal(together.get(), np.maximum(sums.get() + bias.get(), 0))
    gated = few.empty(layer.dimI)
    few.bprop_conv(layer, F, E, gated, X=I, brelu=True)
    np.testing.assert_array_equal(gated.get(), grads.get() * (I.get() > 0))


@pytest.fixture
def dots(cc: Any, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A backend whose filters' gradients run over lanes of places."""
    monkeypatch.setattr(conv_blocking, "choices", _dots_alone)
    return Backend.allocate_backend("cpu", rng_seed=0)


def _dots_alone(g: ConvGeometry, op: str, facts: Facts, itemsize: int, winograd: int) -> Iterator[Direct]:
    assert op == UPDATE
    yield conv_blocking._dots_update(g, facts, itemsize)


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("sizes", [
    {"N": 16, "C": 1, "K": 16, "H": 20, "W": 31, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 1, "C": 3, "K": 64, "H": 40, "W": 37, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 3, "C": 5, "K": 7, "H": 20, "W": 17, "R": 7, "S": 5, "str_h": 2, "str_w": 3, "pad_h": 2},
    {"N": 2, "C": 6, "K": 34, "D": 5, "H": 9, "W": 11, "T": 3, "R": 3, "S": 2, "pad_d": 3, "str_w": 3, "groups": 2},
    {"N": 7, "C": 3, "K": 1, "H": 31, "W": 29, "R": 3, "S": 3, "dil_h": 2, "dil_w": 3, "pad_h": 4, "pad_w": 1},
    {"N": 1, "C": 40, "K": 50, "H": 3, "W": 5, "R": 2, "S": 1},
], ids=["one channel", "one image", "strided", "deep groups", "one map", "short rows"])  # fmt: skip
def test_filters_gradients_over_lanes_of_places(
    dots: Backend, sizes: dict[str, int], dtype: str, value: float | None
) -> None:
    layer = dots.conv_layer(dtype, **sizes)
    operands = {name: x.astype(dtype) for name, x in drawn(layer).items()}
    _, _, most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    if value is not None:
        operands["I"][0, 0, 1, 2, 0] = operands["E"][-1, layer.M // 2, layer.P // 2, layer.Q // 2, 0] = value
    with np.errstate(all="ignore"):
        _, _, expected = exact(layer, operands)
    gradient = dots.empty(layer.dimF, dtype=dtype)
    dots.update_conv(layer, dots.array(operands["I"], dtype=dtype), dots.array(operands["E"], dtype=dtype), gradient)
    found, finite = gradient.get().astype(np.float64), np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    assert np.abs(found[finite] - expected[finite]).max(initial=0) <= DEPTHWISE_BOUNDS[dtype] * most.max()


@pytest.fixture
def plain(cc: Any, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """A backend whose convolutions are direct ones, by multiply-adds."""
    monkeypatch.setattr(conv_blocking, "choices", _plain_alone)
    return Backend.allocate_backend("cpu", rng_seed=0)


def _plain_alone(g: ConvGeometry, op: str, facts: Facts, itemsize: int, winograd: int) -> Iterator[Direct]:
    yield conv_blocking._turned_update(g, itemsize) if op == UPDATE else conv_blocking._direct(g, op, facts, itemsize)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes", [
    {"N": 48, "C": 9, "K": 19, "H": 7, "W": 9, "R": 5, "S": 5, "pad_h": 2, "pad_w": 2},
    {"N": 64, "C": 12, "K": 8, "H": 5, "W": 8, "R": 2, "S": 4, "str_w": 2, "pad_w": (9, 3)},
    {"N": 32, "C": 10, "K": 11, "H": 6, "W": 6, "R": 3, "S": 7, "dil_w": 2, "pad_h": 4, "pad_w": 8},
    {"N": 50, "C": 24, "K": 6, "H": 4, "W": 20, "R": 3, "S": 6, "str_w": 4, "pad_w": 1, "groups": 2},
    {"N": 49, "C": 8, "K": 17, "H": 9, "W": 11, "R": 7, "S": 7},
    {"N": 8, "C": 6, "K": 64, "H": 6, "W": 5, "R": 3, "S": 3, "pad_h": 2, "groups": 2},
], ids=["five", "strided and far", "dilated", "gaps", "seven", "groups of whole vectors"])  # fmt: skip
def test_taps_that_meet_padding_are_left_out(plain: Backend, sizes: dict[str, int], dtype: str) -> None:
    layer = plain.conv_layer(dtype, **sizes)
    operands = {name: x.astype(dtype) for name, x in drawn(layer).items()}
    most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    for found, wanted, scale in zip(run(plain, layer, operands), exact(layer, operands), most):
        assert np.abs(found - wanted).max() <= DEPTHWISE_BOUNDS[dtype] * scale.max()


def test_strides_past_the_filters_clear_no_memory_behind_results(plain: Backend) -> None:
    """Only gradients by the images have places that no tap serves."""
    layer = plain.conv_layer("float32", N=2, C=9, K=3, H=4, W=9, R=2, S=2, str_w=3)
    memory, operands = plain.full((layer.C, *layer.dimO[1:]), 7), drawn(layer)
    plain.conv(layer, plain.array(operands["I"]), plain.array(operands["F"]), out=memory[: layer.K])
    assert (memory.get()[layer.K :] == 7).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("images", [1, 2, 4, 6, 8])
def test_strides_of_two_and_few_images(plain: Backend, images: int, dtype: str) -> None:
    sizes = {"N": images, "C": 3, "K": 9, "H": 11, "W": 37, "R": 3, "S": 4, "str_h": 2, "str_w": 2, "pad_w": 1}
    test_taps_that_meet_padding_are_left_out(plain, sizes, dtype)


DEPTHWISE_BOUNDS = {"float32": 2e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}


@pytest.fixture(params=["rows", "lanes"])
def depthwise(request: pytest.FixtureRequest, cc: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """How depthwise convolutions start: with maps one by one, or in the lanes of vectors."""
    if request.param == "rows":
        monkeypatch.setattr(conv_blocking, "_depthwise_few", lambda *_: [])
        return "// Depthwise("
    monkeypatch.setattr(conv_blocking, "LANES_BYTES", 1 << 40)
    monkeypatch.setattr(conv_blocking, "nanoseconds", lambda g, op, facts, way: 1.0 - isinstance(way, DepthwiseFew))
    return "// DepthwiseFew("


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DEPTHWISE_BOUNDS)
@pytest.mark.parametrize("sizes", [
    {"N": 1, "C": 9, "H": 14, "W": 14, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 16, "C": 8, "H": 40, "W": 31, "R": 3, "S": 3, "pad_h": (0, 2), "pad_w": 1},
    {"N": 1, "C": 8, "H": 37, "W": 67, "R": 3, "S": 3, "str_h": 2, "str_w": 2, "pad_h": 1, "pad_w": (1, 4)},
    {"N": 3, "C": 11, "H": 15, "W": 17, "R": 5, "S": 4, "str_h": 3, "str_w": 2, "pad_w": 6},
    {"N": 2, "C": 8, "H": 20, "W": 9, "R": 3, "S": 3, "dil_h": 2, "dil_w": 3},
    {"N": 1, "C": 8, "D": 5, "H": 9, "W": 8, "T": 3, "R": 3, "S": 3, "str_d": 2, "pad_d": 3, "pad_h": 2},
    {"N": 1, "C": 8, "H": 9, "W": 11, "R": 1, "S": 1, "str_h": 2, "str_w": 4, "pad_h": 1},
    {"N": 128, "C": 8, "H": 40, "W": 40, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 2, "C": 8, "H": 7, "W": 9, "R": 16, "S": 7, "pad_h": (15, 8), "pad_w": 3},
    {"N": 1, "C": 8, "H": 40, "W": 9, "R": 13, "S": 4, "str_h": 2, "pad_h": (3, 40), "pad_w": 1},
    {"N": 1, "C": 8, "H": 5, "W": 20, "R": 6, "S": 5, "pad_h": (0, 22)},
    {"N": 3, "C": 8, "D": 2, "H": 70, "W": 6, "T": 2, "R": 4, "S": 2, "str_h": 3, "pad_d": 2, "dil_w": 2},
    {"N": 16, "C": 8, "H": 13, "W": 17, "R": 3, "S": 3, "str_h": 2, "str_w": 3, "pad_h": (0, 2), "pad_w": 1},
    {"N": 16, "C": 8, "H": 31, "W": 12, "R": 5, "S": 5, "str_h": 2, "str_w": 2, "pad_h": 2, "pad_w": 2},
    {"N": 32, "C": 8, "D": 3, "H": 6, "W": 9, "T": 2, "R": 2, "S": 2, "str_d": 2, "pad_d": 1, "pad_h": 1},
    {"N": 16, "C": 8, "H": 3, "W": 4, "R": 3, "S": 5, "str_w": 2, "pad_h": 2, "pad_w": 4},
    {"N": 16, "C": 8, "H": 12, "W": 11, "R": 3, "S": 2, "dil_h": 2, "dil_w": 3, "pad_h": 1, "pad_w": 2},
    {"N": 48, "C": 8, "H": 3, "W": 20, "R": 1, "S": 1, "str_w": 3, "pad_w": 4},
], ids=["small", "many images", "strided", "wide", "dilated", "deep", "one cell", "blocks of rows", "tall filters",
        "rows of phases", "outputs of padding", "depths of padding", "in place, strided", "in place, five",
        "in place, deep", "in place, no whole window", "in place, dilated", "in place, padding alone"])  # fmt: skip
def test_depthwise(depthwise: str, sizes: dict[str, int], dtype: str) -> None:
    backend = Backend.allocate_backend("cpu", rng_seed=0)
    layer = backend.conv_layer(dtype, K=sizes["C"], groups=sizes["C"], **sizes)
    assert chosen(backend, layer).startswith(depthwise)
    operands = {name: x.astype(layer.dtype) for name, x in drawn(layer).items()}
    most = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    for found, wanted, scale in zip(run(backend, layer, operands), exact(layer, operands), most):
        assert np.abs(found.astype(np.float64) - wanted).max() <= DEPTHWISE_BOUNDS[dtype] * scale.max()


@pytest.mark.parametrize("images", [3, 16])
def test_tails_of_maps_in_lanes(depthwise: str, images: int) -> None:
    backend = Backend.allocate_backend("cpu", rng_seed=0)
    layer = backend.conv_layer("float32", N=images, C=37, K=37, H=9, W=11, R=3, S=3, str_w=2, pad_h=1, groups=37)
    tails_change_no_bit(backend, layer)


def test_maps_lie_in_lanes_where_rows_are_short() -> None:
    def first(op: str, **sizes: int) -> Any:
        backend = Backend.allocate_backend("cpu", jit=False)
        layer = backend.conv_layer("float32", C=256, K=256, R=3, S=3, pad_h=1, pad_w=1, groups=256, **sizes)
        return next(conv_blocking.choices(layer.geometry, op, Facts(16, 8, 48), 4, 4))

    for op in (FPROP, BPROP, UPDATE):
        assert isinstance(first(op, N=1, H=7, W=7), DepthwiseFew)
        assert isinstance(first(op, N=1, H=28, W=28, str_h=2, str_w=2), DepthwiseFew)
        assert not isinstance(first(op, N=32, H=14, W=14), DepthwiseFew)
        assert not isinstance(first(op, N=1, H=112, W=112), DepthwiseFew)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("maps", [
    {"C": 8, "K": 8, "groups": 8}, {"C": 8, "K": 16, "groups": 8}, {"C": 3, "K": 16},
], ids=["depthwise", "two maps of each", "dense"])  # fmt: skip
def test_one_place_of_one_image(cc: None, maps: dict[str, int], dtype: str) -> None:
    """Its results are copied to the layer's shape by a tail over one column."""
    backend = Backend.allocate_backend("cpu", rng_seed=0)
    layer = backend.conv_layer(dtype, N=1, H=5, W=4, R=5, S=4, **maps)
    operands = {name: np.ones_like(x) for name, x in drawn(layer).items()}
    for found, wanted in zip(run(backend, layer, operands), exact(layer, operands)):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("images", [1, 16])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_depthwise_taps_that_miss_a_pixel_do_not_see_it(depthwise: str, value: float, images: int) -> None:
    """What lies behind a row of places in a vector is left out, not multiplied by 0."""
    backend = Backend.allocate_backend("cpu", rng_seed=0)
    layer = backend.conv_layer("float32", N=images, C=8, K=8, H=5, W=7, R=3, S=3, groups=8)
    operands = drawn(layer)
    operands["I"][:, 0, 0, -1] = value
    for found, wanted in zip(run(backend, layer, operands), exact(layer, operands)):
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
        assert np.isfinite(wanted).any()


@pytest.mark.parametrize("sizes", [
    {"S": 20_000, "W": 20_010, "groups": 8}, {"S": 2, "W": 2_002, "str_w": 2_000, "groups": 8},
    {"S": 3, "W": 50_001, "str_w": 20_000}, {"S": 2, "W": 21_002, "str_w": 21_000, "groups": 2},
], ids=["taps, depthwise", "gaps, depthwise", "gaps", "gaps, groups"])  # fmt: skip
def test_many_taps_or_phases(cc: None, sizes: dict[str, int]) -> None:
    backend = Backend.allocate_backend("cpu", rng_seed=0)
    layer = backend.conv_layer("float32", N=1, C=8, K=8, H=1, R=1, **sizes)
    assert not chosen(backend, layer).startswith("// Depthwise")  # of which tables would be on the stack
    operands = {name: np.ones_like(x) for name, x in drawn(layer).items()}
    forward, backward, update = run(backend, layer, operands)
    products = sizes["S"] * 8 // sizes.get("groups", 1)
    np.testing.assert_array_equal(forward, products)
    assert backward.sum() == update.sum() == products * forward.size


@pytest.mark.parametrize("sizes", [
    {"N": 16, "C": 40, "K": 50, "H": 14, "W": 14, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 3, "C": 5, "K": 90, "H": 20, "W": 17, "R": 7, "S": 5, "str_h": 2, "str_w": 3, "pad_h": 2},
    {"N": 1, "C": 300, "K": 30, "H": 12, "W": 40, "R": 3, "S": 3, "dil_w": 2},
    {"N": 8, "C": 3, "K": 64, "H": 55, "W": 53, "R": 3, "S": 3, "str_h": 2, "str_w": 2, "pad_h": 1, "pad_w": 1},
    {"N": 1, "C": 320, "K": 160, "H": 7, "W": 7, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
], ids=["square", "strided", "deep", "few channels", "few places"])  # fmt: skip
def test_threads_change_no_bit(backends: dict[int, Backend], sizes: dict[str, int]) -> None:
    for backend in backends.values():
        same_bits_of(backend, sizes)


@pytest.mark.parametrize("sizes", [
    {"N": 1, "C": 9, "H": 40, "W": 13, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 1, "C": 9, "H": 40, "W": 19, "R": 12, "S": 3, "pad_h": 5, "pad_w": 1},
    {"N": 3, "C": 9, "H": 41, "W": 9, "R": 10, "S": 4, "str_h": 2, "str_w": 2, "pad_h": 4},
    {"N": 16, "C": 9, "H": 41, "W": 9, "R": 3, "S": 3, "str_h": 2, "str_w": 2, "pad_h": 1, "pad_w": 1},
    {"N": 16, "C": 9, "H": 40, "W": 9, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
], ids=["square", "rows of seven and five", "strided", "in place, strided", "in place"])  # fmt: skip
def test_threads_change_no_bit_of_depthwise_ones(depthwise: str, monkeypatch: Any, sizes: dict[str, int]) -> None:
    """Nor do they where a map is cut into tasks of few rows."""
    monkeypatch.setattr(conv_blocking, "COPY_BYTES", 1 << 11)

    def computed() -> list[np.ndarray]:
        backend = Backend.allocate_backend("cpu", rng_seed=0)
        layer = backend.conv_layer("float32", K=sizes["C"], groups=sizes["C"], **sizes)
        assert chosen(backend, layer).startswith(depthwise)
        return run(backend, layer, drawn(layer))

    same_bits_shared(computed)


def same_bits_of(backend: Backend, sizes: dict[str, int]) -> None:
    """Results of a layer are the same for any number of threads."""
    layer = backend.conv_layer("float32", **sizes)
    operands = drawn(layer)
    same_bits(lambda: run(backend, layer, operands))


def test_gradients_of_patches_take_no_longer_for_their_phases(plain: Backend) -> None:
    """Each pixel of a patch is a phase of its own. They share copies of the errors; to list channels is little."""
    layer = plain.conv_layer("float32", N=1, C=3, K=512, H=64, W=64, R=16, S=16, str_h=16, str_w=16)
    I, F, E = (plain.array(x) for x in drawn(layer).values())
    O, gI = plain.empty(layer.dimO), plain.empty(layer.dimI)

    def seconds(work: Callable[[], Any]) -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    forward = min(seconds(lambda: plain.fprop_conv(layer, I, F, O)) for _ in range(5))
    assert min(seconds(lambda: plain.bprop_conv(layer, F, E, gI)) for _ in range(5)) < 5 * forward


@pytest.mark.parametrize("sizes", [
    {"N": 3, "C": 5, "K": 40, "H": 35, "W": 38, "R": 5, "S": 4, "str_h": 4, "str_w": 3, "pad_h": 2},
    {"N": 2, "C": 9, "K": 70, "D": 4, "H": 23, "W": 20, "T": 2, "R": 3, "S": 3, "str_d": 2, "str_h": 9, "str_w": 2},
    {"N": 2, "C": 6, "K": 20, "H": 17, "W": 33, "R": 3, "S": 3, "str_h": 20, "str_w": 2, "pad_h": 4, "groups": 2},
    {"N": 2, "C": 4, "K": 12, "H": 9, "W": 15, "R": 2, "S": 3, "str_w": 2, "dil_w": 2},
], ids=["uneven phases", "gaps and depth", "phases of one row", "dilated by the stride"])  # fmt: skip
@pytest.mark.parametrize("each", [1, 2, 5])
def test_phases_share_a_copy_of_their_errors(
    cc: None, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int], each: int
) -> None:
    """In blocks of some rows and columns, of all channels and of some."""

    def alone(g: ConvGeometry, op: str, facts: Facts, itemsize: int, winograd: int) -> Iterator[Direct]:
        if op != BPROP:
            yield from _plain_alone(g, op, facts, itemsize, winograd)
            return
        channels = g.K // g.groups if each % 2 else 8
        yield conv_blocking._DirectCost(g, op, facts, itemsize, 0, each, 2 * each, channels)._with(False)[1]

    monkeypatch.setattr(conv_blocking, "choices", alone)
    backend = Backend.allocate_backend("cpu", rng_seed=0)
    layer = backend.conv_layer("float32", **sizes)
    operands = drawn(layer)
    _, most, _ = exact(layer, {name: np.abs(x) for name, x in operands.items()})
    _, wanted, _ = exact(layer, operands)
    assert np.abs(backward(backend, layer, operands) - wanted).max() <= BOUNDS[0] * most.max()
    same_bits_shared(lambda: [backward(Backend.allocate_backend("cpu", rng_seed=0), layer, operands)])


SHORT, LONG = {"R": 3, "str_h": 2, "pad_h": (1, 2)}, {"S": 4, "dil_w": 2, "pad_w": 3}
TURNED = {
    "depth alone": ({"W": 150, **LONG}, {"D": 150, "H": 1, "W": 1, "T": 4, "dil_d": 2, "pad_d": 3}),
    "height alone": ({"W": 150, **LONG}, {"H": 150, "W": 1, "R": 4, "dil_h": 2, "pad_h": 3}),
    "depth and height": (
        {"H": 21, "W": 30, **SHORT, **LONG},
        {"D": 21, "H": 30, "W": 1, "T": 3, "str_d": 2, "pad_d": (1, 2), "R": 4, "dil_h": 2, "pad_h": 3},
    ),
    "depth and width": (
        {"H": 21, "W": 30, **SHORT, **LONG},
        {"D": 21, "H": 1, "W": 30, "T": 3, "str_d": 2, "pad_d": (1, 2), **LONG},
    ),
}


@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("name", TURNED)
def test_axes_on_which_nothing_happens_cost_nothing(backends: dict[int, Backend], name: str, groups: int) -> None:
    """Images of depth alone are computed as those of width alone, not in a task a place."""
    backend, maps = backends[4], {"N": 3, "C": 8, "K": 8, "groups": groups}
    layers = [backend.conv_layer("float32", **maps, **{"H": 1, **sizes}) for sizes in TURNED[name]]
    numbers, found = drawn(layers[0]), []
    for layer in layers:
        dims = {"I": layer.dimI, "F": layer.dimF, "E": layer.dimO}
        operands = {part: x.reshape(dims[part]) for part, x in numbers.items()}
        most = exact(layer, {part: np.abs(x) for part, x in operands.items()})
        found.append(run(backend, layer, operands))
        for one, wanted, scale in zip(found[-1], exact(layer, operands), most):
            assert np.abs(one - wanted).max() <= BOUNDS[4] * scale.max()
    assert chosen(backend, layers[0]) == chosen(backend, layers[1])
    for one, other in zip(*found):
        np.testing.assert_array_equal(one.ravel(), other.ravel())


def test_padding_before_an_axis_of_one_place_is_not_left_out(backends: dict[int, Backend]) -> None:
    layer = backends[0].conv_layer("float32", N=2, C=8, K=8, D=9, H=1, W=1, T=3, str_h=2, pad_h=(1, 0))
    assert layer.MPQ == (7, 1, 1) and layer.geometry.idle_first()[1] == (2, 0, 1)
    for found in run(backends[0], layer, drawn(layer)):
        assert not found.any()


def test_strided_operands_are_copied(backends: dict[int, Backend]) -> None:
    for backend in backends.values():
        layer = backend.conv_layer("float32", N=4, C=6, K=7, H=9, W=8, R=3, S=3, pad_h=1)
        operands = drawn(layer)
        expected = run(backend, layer, operands)[0]
        wide = backend.zeros((layer.C, 1, 9, 16, 8))
        images = wide[:, :, :, ::2, ::2]
        images[:] = operands["I"]
        filters = backend.array(np.ascontiguousarray(operands["F"].transpose(4, 0, 1, 2, 3))).transpose(1, 2, 3, 4, 0)
        target = backend.zeros((layer.K, 1, *layer.MPQ[1:], 8))
        backend.conv(layer, images, filters, out=target[..., 1::2])
        np.testing.assert_array_equal(target.get()[..., 1::2], expected)
        assert not target.get()[..., ::2].any()


LAID = {
    "rows cut short": ({"N": 3, "W": 5}, (4, 2, 6, 9, 3), lambda x: x[:, :, :, 2:7]),
    "columns cut short": ({"N": 3}, (4, 2, 9, 7, 3), lambda x: x[:, :, 1:7]),
    "every other of each axis": ({"N": 5}, (8, 4, 12, 14, 10), lambda x: x[1::2, ::2, ::2, 1::2, ::2]),
    "channels last": ({"N": 3}, (3, 2, 6, 7, 4), lambda x: x.transpose(4, 1, 2, 3, 0)),
    "mirrored": ({"N": 3}, (4, 2, 6, 7, 3), lambda x: x[:, :, :, ::-1]),
    "many images first": ({"N": 300}, (300, 4, 2, 6, 7), lambda x: x.transpose(1, 2, 3, 4, 0)),
    "many images, every other": ({"N": 300}, (4, 2, 6, 7, 600), lambda x: x[..., ::2]),
}  # fmt: skip


@pytest.mark.parametrize("name", LAID)
def test_operands_that_lie_otherwise(backends: dict[int, Backend], name: str) -> None:
    """Also more axes than two, and parts of long ones."""
    sizes, memory, view = LAID[name]
    backend = backends[0]
    layer = backend.conv_layer("float32", **{"C": 4, "K": 3, "D": 2, "H": 6, "W": 7, "R": 2, **sizes})
    operands = drawn(layer)
    images, out = view(backend.zeros(memory)), backend.empty(layer.dimO)
    images[:] = operands["I"]
    backend.conv(layer, images, backend.array(operands["F"]), out=out)
    np.testing.assert_array_equal(out.get(), run(backend, layer, operands)[0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("images", [2, 3, 4, 8, 16, 21])
def test_operands_with_the_batch_first_are_turned(backends: dict[int, Backend], images: int, dtype: str) -> None:
    backend = backends[0]
    layer = backend.conv_layer(dtype, N=images, C=5, K=2 * images, H=9, W=23, R=2, S=3)
    operands = drawn(layer)
    expected = run(backend, layer, operands)[0]
    first = (np.ascontiguousarray(np.moveaxis(operands[name], -1, 0)) for name in "IF")
    I, F = (backend.array(x, dtype=dtype).transpose(1, 2, 3, 4, 0) for x in first)
    out = backend.empty(layer.dimO, dtype=dtype)
    backend.conv(layer, I, F, out=out)
    np.testing.assert_array_equal(out.get(), expected)


@pytest.mark.parametrize(("shape", "order", "expected"), [
    ((5, 1, 9, 23, 8), (4, 0, 1, 2, 3), [(1, 1, 1, 1035, 8), (1, 1, 1, 1, 1035), (1, 1, 1, 8, 1)]),
    ((5, 1, 9, 23, 8), (0, 4, 1, 2, 3), [(1, 1, 5, 207, 8), (1, 1, 1656, 1, 207), (1, 1, 1656, 8, 1)]),
    ((5, 1, 9, 23, 1), (4, 0, 3, 2, 1), [(1, 1, 5, 9, 23), (1, 1, 207, 1, 9), (1, 1, 207, 23, 1)]),
    ((5, 2, 9, 23, 8), (2, 3, 0, 1, 4), [(1, 1, 10, 207, 8), (1, 1, 8, 80, 1), (1, 1, 1656, 8, 1)]),
    ((1, 1, 1, 1, 1), (0, 1, 2, 3, 4), [(1,) * 5] * 3),
], ids=["batch first", "after channels", "columns first", "places first", "one number"])  # fmt: skip
def test_axes_of_an_operand_are_joined(shape: Any, order: Any, expected: Any) -> None:
    strides = np.empty([shape[a] for a in order], "u1").transpose(np.argsort(order)).strides
    assert cpu_conv_passes.sheet(shape, strides) == expected


def steps(backend: Backend, tree: Any) -> list[str]:
    return [step.name for step in backend.explain(tree).steps]


def test_a_tree_of_halves_beside_a_tensor_runs_kernels(backends: dict[int, Backend]) -> None:
    """Trees of halves are float32 until they are stored: the tensor is widened, and the tail narrows the result."""
    for backend in backends.values():
        layer = backend.conv_layer("float16", N=4, C=3, K=8, H=8, W=8, R=3, S=3)
        I, F, _ = (backend.array(x, dtype="float16") for x in drawn(layer).values())
        for pair in ((I * 2.0, F), (I, F * 2.0)):
            found = backend.explain(backend.maximum(backend.conv(layer, *pair), 0.0))
            assert len(found.steps) == 3 and all(step.source for step in found.steps)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float16", marks=pytest.mark.ci)])
@pytest.mark.parametrize("sizes", [
    {"N": 16, "C": 20, "K": 19, "H": 13, "W": 14, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 5, "C": 3, "K": 12, "H": 13, "W": 9, "R": 5, "S": 3, "str_h": 2, "str_w": 2, "pad_w": 1},
    {"N": 32, "C": 64, "K": 40, "H": 14, "W": 14, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 8, "C": 128, "K": 256, "H": 6, "W": 6, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1, "groups": 2},
    {"N": 3, "C": 40, "K": 40, "H": 30, "W": 30, "R": 3, "S": 3},
], ids=["small", "strided", "winograd", "shared", "few images"])  # fmt: skip
def test_tails_change_no_bit(backends: dict[int, Backend], sizes: dict[str, int], dtype: str) -> None:
    for backend in backends.values():
        tails_change_no_bit(backend, backend.conv_layer(dtype, **sizes))


@pytest.mark.parametrize("groups", [1, 8])
def test_tails_over_depth_alone_change_no_bit(backends: dict[int, Backend], groups: int) -> None:
    for backend in backends.values():
        tails_change_no_bit(backend, backend.conv_layer(
            "float32", N=2, C=8, K=16 if groups == 1 else 8, D=90, H=1, W=1, T=3, pad_d=1, groups=groups
        ))  # fmt: skip


def test_tails_of_the_images_gradient(backends: dict[int, Backend]) -> None:
    backend = backends[4]
    layer = backend.conv_layer("float32", N=16, C=20, K=19, H=13, W=14, R=3, S=3, pad_h=1)
    I, F, E = (backend.array(x) for x in drawn(layer).values())
    plain, gated = backend.empty(layer.dimI), backend.empty(layer.dimI)
    backend.bprop_conv(layer, F, E, plain)
    backend.bprop_conv(layer, F, E, gated, X=I, brelu=True, alpha=2.0)
    np.testing.assert_array_equal(gated.get(), 2 * plain.get() * (I.get() > 0))


def test_what_differs_from_image_to_image_is_no_tail(backends: dict[int, Backend]) -> None:
    backend = backends[4]
    layer = backend.conv_layer("float32", N=4, C=3, K=5, H=6, W=6, R=3, S=3)
    I, F, _ = (backend.array(x) for x in drawn(layer).values())
    weights = backend.array(ref.draw((1, 1, 1, 1, 4), "float32", 3))
    tree = backend.conv(layer, I, F) * weights
    assert len(steps(backend, tree)) == 2
    np.testing.assert_array_equal(tree.get(), backend.conv(layer, I, F).get() * weights.get())


def test_what_turns_one_place_of_one_image_is_no_tail(backends: dict[int, Backend]) -> None:
    """Places and images of length 1 may stand before the maps, whose number is the first length of a tail."""
    for backend in backends.values():
        layer = backend.conv_layer("float32", N=1, C=4, K=5, H=3, W=3, R=3, S=3)
        images, filters = (ref.draw(dims, "float32", k) for k, dims in enumerate((layer.dimI, layer.dimF)))
        I, F = (backend.array(x, min_dims=0) for x in (images, filters))
        sums = backend.conv(layer, I, F).get()
        bias = backend.array(ref.draw((5, 1, 1, 1, 1), "float32", 3), min_dims=0)
        for order in ((4, 0, 1, 2, 3), (1, 2, 0, 3, 4)):
            turned = backend.conv(layer, I, F).transpose(*order)
            expected = sums.transpose(order)
            np.testing.assert_array_equal((turned + bias.transpose(*order)).get(), (sums + bias.get()).transpose(order))
            np.testing.assert_array_equal(backend.maximum(turned, 0).get(), np.maximum(expected, 0))


def geometry(**sizes: Any) -> ConvGeometry:
    g = {"N": 16, "C": 256, "D": 1, "H": 28, "W": 28, "K": 256, "M": 1, "P": 28, "Q": 28, "T": 1, "R": 3, "S": 3}
    return ConvGeometry(**{**g, "pads": ((0, 0), (1, 1), (1, 1)), **sizes})


def ways(g: ConvGeometry, op: str = FPROP, winograd: int = 4, itemsize: int = 4) -> list[Direct | Few | Winograd]:
    return list(conv_blocking.choices(g, op, Facts(16, 8, 48), itemsize, winograd))


@pytest.mark.parametrize("op", [FPROP, BPROP])
def test_long_rows_are_cut_until_copies_fit_the_cache(op: str) -> None:
    line = {"H": 1, "P": 1, "R": 1, "W": 4000, "Q": 4000, "S": 5, "pads": ((0, 0), (0, 0), (2, 2))}
    way = ways(geometry(**line), op)[-1]
    assert isinstance(way, Direct)
    assert 4 * way.channels * (way.columns + 4) * 16 <= conv_blocking.COPY_BYTES


@pytest.mark.parametrize("op", [FPROP, BPROP, UPDATE])
def test_winograd_is_for_squares_in_float32(op: str) -> None:
    assert isinstance(ways(geometry(), op)[0], Winograd)
    assert ways(geometry(), op)[0].points == 6
    assert {w.points for w in ways(geometry(), op, 2)[:-1]} == {4}
    strided = ways(geometry(strides=(1, 2, 2), P=14, Q=14), op)[0]
    assert (strided.points, strided.taps, strided.out) == ((4, 3, 2) if op == UPDATE else (4, 2, 3))
    for g in (
        geometry(dilations=(1, 2, 2), strides=(1, 2, 2), P=14, Q=14, pads=((0, 0), (2, 2), (2, 2))),
        geometry(R=3, S=1, pads=((0, 0), (1, 1), (0, 0))),
    ):
        assert [type(w) for w in ways(g, op)] == [Direct]
    assert [type(w) for w in ways(geometry(), op, 0)] == [Direct]
    assert [type(w) for w in ways(geometry(), op, itemsize=8)] == [Direct]


@pytest.mark.parametrize("op", [FPROP, BPROP, UPDATE])
def test_winograd_is_for_planes_and_filters_longer_than_strides(op: str) -> None:
    assert winograd_blocking.may_be_cut(geometry(D=5, M=5), op)
    for other in (
        {"D": 5, "M": 3, "T": 3},
        {"D": 5, "M": 3, "strides": (2, 1, 1)},
        {"D": 5, "M": 6, "pads": ((1, 0), (1, 1), (1, 1))},
        {"R": 1, "pads": ((0, 0), (0, 0), (1, 1))},
        {"S": 1, "pads": ((0, 0), (1, 1), (0, 0))},
        {"P": 10, "strides": (1, 3, 1)},
        {"Q": 10, "strides": (1, 1, 3)},
    ):
        assert not winograd_blocking.may_be_cut(geometry(**other), op)
    assert winograd_blocking.may_be_cut(geometry(P=14, Q=14, strides=(1, 2, 2)), op) == (op != BPROP)


@pytest.mark.parametrize("op", [FPROP, BPROP])
def test_filters_of_few_places_are_not_copied(op: str) -> None:
    small = {"N": 1, "C": 512, "K": 512, "H": 5, "W": 5, "P": 5, "Q": 5}
    assert isinstance(ways(geometry(**small), op)[0], Few)
    others = geometry(), geometry(**{**small, "K": 500}), geometry(**small, groups=64)
    assert not any(isinstance(way, Few) for g in others for way in ways(g, op))


def test_taps_that_meet_padding_are_counted_out() -> None:
    """Two fifths of the products of a layer of DeepLab: of few places they need not be computed."""
    sizes = {"N": 1, "C": 2048, "H": 33, "W": 33, "P": 33, "Q": 33, "strides": (1, 1, 1)}
    dilated = geometry(**sizes, dilations=(1, 12, 12), pads=((0, 0), (12, 12), (12, 12)))
    assert isinstance(ways(dilated)[0], Few)
    for op, (lanes, rows) in itertools.product((FPROP, BPROP), ((8, 6), (16, 8))):
        way = few_blocking.blocks(dilated, op, Facts(lanes, rows, 2 * lanes))
        assert way.within and way.tasks >= TASKS
    assert [few_blocking.kinds(dilated, axis) for axis in (0, 1, 2)] == [1, 3, 3]
    for taps, stride, dilation, pad in itertools.product(range(1, 5), range(1, 4), range(1, 5), range(6)):
        places = (12 + 2 * pad - (taps - 1) * dilation - 1) // stride + 1
        axis = {"W": 12, "Q": places, "S": taps, "strides": (1, 1, stride), "dilations": (1, 1, dilation)}
        g = geometry(**axis, pads=((0, 0), (1, 1), (pad, pad)))
        met = [tuple(0 <= o * stride + n * dilation - pad < 12 for n in range(taps)) for o in range(places)]
        assert few_blocking.kinds(g, 2) == 1 + sum(a != b for a, b in zip(met, met[1:]))


@pytest.mark.parametrize("facts", [Facts(8, 4, 24), Facts(16, 8, 48)], ids=["16 registers", "32"])
def test_first_layers_of_three_channels_go_by_their_definition_with_few_registers(facts: Facts) -> None:
    """There Winograd's sums take longer than the products that they save; of more channels they do not."""
    sizes = {"N": 32, "H": 224, "W": 224, "P": 112, "Q": 112, "K": 32, "strides": (1, 2, 2)}
    first, later = (next(conv_blocking.choices(geometry(C=c, **sizes), FPROP, facts, 4, 4)) for c in (3, 32))
    assert isinstance(first, Direct if facts.few_registers else Winograd) and isinstance(later, Winograd)


def test_copies_are_as_large_as_second_level_caches_are() -> None:
    """Processors with 16 registers have smaller ones."""
    sizes = {"N": 8, "C": 128, "H": 56, "W": 56, "P": 28, "Q": 28, "K": 128, "strides": (1, 2, 2)}
    held = []
    for facts in (Facts(8, 4, 24), Facts(16, 8, 48)):
        way = conv_blocking._direct(geometry(**sizes), FPROP, facts, 4)
        held.append(way.channels * 4 * (way.rows + 1) * (way.columns + 1) * 8 * 4)
    assert held[0] <= conv_blocking.FEW_COPY_BYTES < held[1] <= conv_blocking.COPY_BYTES


@pytest.mark.parametrize("facts", [Facts(8, 4, 24), Facts(16, 8, 48)], ids=["16 registers", "32"])
def test_filters_gradient_of_long_signals_is_cut_into_tasks(facts: Facts) -> None:
    """Also where there is one channel and one row; of few operations it is not worth the sums."""

    def tasks(length: int, taps: int, stride: int) -> int:
        outputs = (length - taps) // stride + 1
        row = {"H": 1, "P": 1, "R": 1, "W": length, "Q": outputs, "S": taps}
        g = geometry(N=16, C=1, K=64, strides=(1, 1, stride), pads=((0, 0),) * 3, **row)
        return next(conv_blocking.choices(g, UPDATE, facts, 4, 4)).tasks

    assert tasks(16000, 400, 160) >= TASKS and tasks(16000, 1024, 256) >= TASKS
    assert tasks(1600, 400, 160) == 1


def test_few_maps_have_tiles_of_few_rows() -> None:
    facts = Facts(16, 8, 48)
    assert [conv_blocking._tile_rows(maps, facts) for maps in (1, 2, 4, 5, 8, 9, 12, 13)] == [2, 5, 5, 8, 8, 10, 13, 16]


@pytest.mark.parametrize("sizes", [
    {"H": 10**6, "P": 10**6 - 99, "R": 100, "W": 1, "Q": 1, "S": 1},
    {"N": 48, "H": 3, "P": 2, "R": 2, "W": 10**5, "Q": 10**5 - 99, "S": 100},
    {"H": 1, "P": 1, "R": 1, "W": 10**6, "Q": 999, "S": 2000, "strides": (1, 1, 1000)},
], ids=["tall", "parts of wide filters", "strided"])  # fmt: skip
@pytest.mark.parametrize("op", [FPROP, BPROP, UPDATE])
def test_choosing_for_long_signals_takes_no_time_and_memory(op: str, sizes: dict[str, Any]) -> None:
    """Nothing is listed for each output and tap, or for each tap and phase: that would be billions."""
    long = geometry(**{"N": 1, "C": 16, "K": 16, "pads": ((0, 0),) * 3, **sizes})
    tracemalloc.start()
    start = time.process_time()
    try:
        assert ways(long, op)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 2 and most < 100 << 20


def test_shares_inside_an_axis_are_counted() -> None:
    for first, count, step, length in itertools.product(range(-9, 9), range(1, 6), range(1, 5), range(1, 8)):
        firsts = np.array([first, first + 2])
        at = firsts[:, None] + np.arange(count) * step
        assert share_inside(firsts, count, step, length) == ((at >= 0) & (at < length)).mean()


def test_reaches_and_blocks_are_those_of_all_taps_and_phases() -> None:
    for taps, stride, dilation, pad in itertools.product(range(1, 6), range(1, 5), range(1, 4), range(6)):
        g = geometry(R=taps, strides=(1, stride, 1), dilations=(1, dilation, 1), pads=((0, 0), (pad, pad), (0, 0)))
        cells = [tap * dilation - pad for tap in range(taps)]
        errors = [(phase - n) // stride for phase in range(stride) for n in cells if (phase - n) % stride == 0]
        for places in ([n // stride for n in cells], errors):
            assert max(places) - min(places) == conv_blocking._reach(g, 1)
    for length, phases, each in itertools.product(range(1, 12), range(1, 14), range(1, 5)):
        blocks = sum(-(-len(range(phase, length, phases)) // each) for phase in range(phases))
        assert blocks == conv_blocking._blocks(length, phases, each)


@pytest.mark.slow
def test_scratch_is_bounded_where_there_is_a_choice(cc: Any) -> None:
    sizes = {"N": 16, "C": 128, "K": 128, "H": 28, "W": 28, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1}
    results = []
    for bound in (0, 1 << 20):
        backend = Backend.allocate_backend("cpu", scratch_size=np.int64(bound), rng_seed=0)
        layer = backend.conv_layer("float32", **sizes)
        conv = backend.conv(layer, backend.ones(layer.dimI), backend.ones(layer.dimF))
        (step,) = (found for found in backend.explain(conv).steps if found.name == "conv")
        results.append(step.source.startswith("// Direct"))
    assert results == [False, True]


@pytest.mark.parametrize("bound", [1 << 16, 1])
def test_of_several_direct_ways_too_the_one_that_fits_is_taken(
    cc: Any, monkeypatch: pytest.MonkeyPatch, bound: int
) -> None:
    """As there are with a matrix unit; the last one where none fits."""

    def two(g: ConvGeometry, op: str, facts: Facts, itemsize: int, winograd: int) -> Iterator[Direct]:
        for rows in (g.P, 1):
            yield conv_blocking._DirectCost(g, op, facts, itemsize, 0, rows, g.Q, 8)._with(False)[1]

    monkeypatch.setattr(conv_blocking, "choices", two)
    backend = Backend.allocate_backend("cpu", scratch_size=bound, rng_seed=0)
    layer = backend.conv_layer("float32", N=1, C=8, K=8, H=40, W=10, R=3, S=3)
    assert chosen(backend, layer).startswith("// Direct(rows=1,")


@pytest.mark.parametrize("bound", [1 << 21, 1 << 22])
def test_a_bound_on_scratch_lets_neither_threads_nor_tails_change_a_bit(cc: Any, bound: int) -> None:
    """Between them they would decide which ways the bound allows."""
    sizes = {"N": 32, "C": 64, "K": 64, "H": 14, "W": 14, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1}
    layer = allocated()[4].conv_layer("float32", **sizes)
    operands = drawn(layer)

    def computed() -> list[np.ndarray]:
        backend = Backend.allocate_backend("cpu", scratch_size=bound, rng_seed=0)
        images, filters = (backend.array(operands[name], min_dims=0) for name in "IF")
        conv = backend.conv(layer, images, filters)
        tailed = backend.zeros((*layer.dimO[:-1], 2 * layer.N), min_dims=0)[..., ::2]
        tailed[:] = backend.maximum(backend.conv(layer, images, filters), 0)
        plain = backend.evaluate(conv).get()
        np.testing.assert_array_equal(tailed.get(), np.maximum(plain, 0))
        return [plain, *run(backend, layer, operands)]

    same_bits(computed)


@pytest.mark.parametrize("threads", [1, 5, 40])
def test_scratch_stays_within_its_bound_with_any_number_of_threads(cc: Any, monkeypatch: Any, threads: int) -> None:
    """But for the last way, which is taken where none does; more threads share the memory that there is."""
    prepared, taken = cpu_conv_passes.Pass.prepared, []
    monkeypatch.setattr(cpu_conv_passes.Pass, "prepared", lambda self: taken.append(self) or prepared(self))
    bounds = [1 << 21, 3 << 20, 1 << 22, 1 << 23]
    try:
        for bound in bounds:
            backend = Backend.allocate_backend("cpu", scratch_size=bound, rng_seed=0, threads=threads)
            layer = backend.conv_layer("float32", N=32, C=64, K=64, H=14, W=14, R=3, S=3, pad_h=1, pad_w=1)
            operands = drawn(layer)
            found = backend.evaluate(backend.conv(layer, *(backend.array(operands[x], min_dims=0) for x in "IF"))).get()
            assert abs(found - ref.fprop(layer, *(operands[x].astype(np.float64) for x in "IF"))).max() <= 2e-3
    finally:
        native.runtime().set_threads()
    assert len(taken) == len(bounds) and any(isinstance(one.way, Winograd) for one in taken)
    for one, bound in zip(taken, bounds):
        assert one.scratch <= bound or isinstance(one.way, Direct)


def test_what_was_chosen_by_time_is_kept(cc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"N": 16, "C": 48, "K": 56, "H": 28, "W": 28, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1}
    clock = iter(range(10**6))
    runs: list[float] = []
    monkeypatch.setattr(tuning, "_seconds", lambda *way: runs.append(0.5 ** next(clock)) or runs[-1])
    monkeypatch.setattr(tuning, "_chosen", {})
    kept: dict[str, list] = {}
    monkeypatch.setattr(tuning.warm, "recall", kept.get)
    monkeypatch.setattr(tuning.warm, "remember", kept.__setitem__)
    found, counts = [], []
    for seed in (None, None, 0):
        backend = Backend.allocate_backend("cpu", rng_seed=seed)
        layer = backend.conv_layer("float32", **sizes)
        explained = backend.explain(backend.conv(layer, backend.ones(layer.dimI), backend.ones(layer.dimF)))
        found.append(explained.steps[0].source.split("(")[0])
        counts.append(len(runs))
        tuning.forget()
    assert found == ["// Direct", "// Direct", "// Winograd"]
    assert counts[0] > 0 and counts == counts[:1] * 3  # ways are timed once


@pytest.mark.parametrize(("seconds", "runs"), [(1e-6, tuning.MOST_RUNS), (0.01, tuning.RUNS), (1, 1)])
def test_ways_take_turns_on_the_clock(cc: Any, monkeypatch: pytest.MonkeyPatch, seconds: float, runs: int) -> None:
    """After one run that is not counted, a few; more of what is short, fewer of what is long."""
    sizes = {"N": 16, "C": 48, "K": 56, "H": 28, "W": 28, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1}
    order: list[int] = []
    monkeypatch.setattr(tuning, "_seconds", lambda way, *rest: order.append(id(way)) or seconds)
    monkeypatch.setattr(tuning, "_chosen", {})
    monkeypatch.setattr(tuning.warm, "recall", lambda name: None)
    monkeypatch.setattr(tuning.warm, "remember", lambda name, chosen: None)
    backend = Backend.allocate_backend("cpu")
    layer = backend.conv_layer("float32", **sizes)
    backend.explain(backend.conv(layer, backend.ones(layer.dimI), backend.ones(layer.dimF)))
    ways = len(set(order))
    assert ways > 1
    assert order == order[:ways] * (1 + runs)


@pytest.mark.parametrize(("busy", "waited"), [(0, tuning.CALM_S), (0.1, 0.1), (1e9, tuning.MOST_WAIT_S)])
def test_timing_waits_for_threads_that_compute(monkeypatch: pytest.MonkeyPatch, busy: float, waited: float) -> None:
    """Of another library, say, that spins for a while after its work; but not for ever."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(perf_counter=lambda: now, process_time=lambda: min(now, busy), sleep=sleep)
    monkeypatch.setattr(tuning, "time", clock)
    tuning.wait_for_threads()
    assert waited - 1e-9 <= now <= waited + 2 * tuning.CALM_S


@pytest.mark.slow
@pytest.mark.parametrize(("H", "W", "R", "S"), [(1, 200_003, 1, 200_000), (100_003, 1, 100_000, 1)])
def test_more_taps_than_a_stack_holds(cc: Any, H: int, W: int, R: int, S: int) -> None:
    backend = Backend.allocate_backend("cpu", rng_seed=0)
    layer = backend.conv_layer("float32", N=1, C=1, K=16, H=H, W=W, R=R, S=S)
    I, F, E = (backend.ones(dim) for dim in (layer.dimI, layer.dimF, layer.dimO))
    result, filters = backend.empty(layer.dimO), backend.empty(layer.dimF)
    backend.fprop_conv(layer, I, F, result)
    backend.update_conv(layer, I, E, filters)
    assert (result.get() == max(R, S)).all() and (filters.get() == 4).all()
    if R == 1:
        grads = backend.empty(layer.dimI)
        backend.bprop_conv(layer, F, E, grads)
        assert (grads.get().ravel() == 16 * np.minimum(4, np.minimum(np.arange(1, W + 1), np.arange(W, 0, -1)))).all()


def test_kernels_say_what_they_need(cc: Any) -> None:
    facts = cpu_conv.facts(np.dtype("float32"))
    assert facts.width % facts.lanes == 0
    assert facts.rows >= 4
