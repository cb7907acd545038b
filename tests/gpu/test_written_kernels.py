# SPDX-License-Identifier: Apache-2.0
"""Written kernels of the primitives on the emulator, in two orders of threads: values of the CPU, in bounds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend
from tensorbackend.backends import compiler, cuda_primitives
from tensorbackend.backends.driver import open_driver
from tensorbackend.backends.emulator import ORDERS
from tensorbackend.backends.gpu import GpuBackend
from tensorbackend.backends.null import NullDriver
from tensorbackend.graph import composite

CLOSE = {"rtol": 2e-5, "atol": 2e-5}  # float32 sums in another order


@pytest.fixture(params=ORDERS[:2])
def be(request: pytest.FixtureRequest, absent: Callable[[str, str], None]) -> Iterator[GpuBackend]:
    """The emulator, in two orders of threads."""
    if compiler.find_compiler() is None:
        absent("cc", compiler.compiler_status())
    made = GpuBackend(driver=open_driver("emulator", order=request.param), rng_seed=0)
    yield made
    made.cleanup_backend()


@pytest.fixture
def cpu() -> Iterator[Backend]:
    """The plain NumPy meaning."""
    made = Backend.allocate_backend("cpu", rng_seed=0, jit=False)
    yield made
    made.cleanup_backend()


def drawn(be: Any, *shapes: tuple[int, int]) -> list[Any]:
    """The same random tensors on any backend."""
    return [be.array(np.random.default_rng(n).standard_normal(shape)) for n, shape in enumerate(shapes)]


def convolved(be: Any, sizes: dict) -> list[np.ndarray]:
    """What the three passes give."""
    layer = be.conv_layer("float32", **sizes)
    I, F, E = drawn(be, layer.dimI2, layer.dimF2, layer.dimO2)
    O, gI, gF = (be.empty(dim) for dim in (layer.dimO2, layer.dimI2, layer.dimF2))
    be.fprop_conv(layer, I, F, O, relu=True)
    be.bprop_conv(layer, F, E, gI)
    be.update_conv(layer, I, E, gF)
    return [O.get(), gI.get(), gF.get()]


def pooled(be: Any, op: str) -> list[np.ndarray]:
    """What both passes of pooling give."""
    layer = be.pool_layer("float32", op, 37, 3, H=7, W=6, R=3, S=2, pad_h=1, str_h=2, str_w=1)
    I, E = drawn(be, layer.dimI2, layer.dimO2)
    O, delta, argmax = be.empty(layer.dimO2), be.empty(layer.dimI2), be.zeros(layer.dimO2, np.uint8)
    be.fprop_pool(layer, I, O, argmax)
    be.bprop_pool(layer, E, delta, argmax, X=I, Y=O)
    return [O.get(), argmax.get(), delta.get()]


def normalised(be: Any) -> list[np.ndarray]:
    """What both passes of response normalisation give."""
    layer = be.lrn_layer("float32", 37, 7, H=3, W=5, J=5)
    I, E = drawn(be, layer.dimI2, layer.dimI2)
    O, denom, delta = (be.empty(layer.dimI2) for _ in range(3))
    be.fprop_lrn(layer, I, O, denom, ascale=0.5, bpower=0.75)
    be.bprop_lrn(layer, I, O, E, delta, denom, ascale=0.5, bpower=0.75)
    return [O.get(), denom.get(), delta.get()]


CONVOLUTIONS = [
    {"N": 3, "C": 6, "K": 34, "H": 9, "W": 7, "R": 3, "S": 2, "pad_h": 2, "str_w": 2, "dil_h": 2, "groups": 2},
    {"N": 17, "C": 20, "K": 5, "D": 5, "H": 4, "W": 4, "T": 2, "S": 2, "pad_d": 1, "pad_w": 1, "str_d": 2, "dil_d": 2},
    {"N": 9, "C": 6, "K": 201, "H": 4, "W": 5, "R": 2, "S": 2, "groups": 3},  # several tiles a group, two segments
]


@pytest.mark.parametrize("sizes", CONVOLUTIONS, ids=["groups", "3d", "tiles of groups"])
def test_convolution(be: GpuBackend, cpu: Backend, sizes: dict) -> None:
    for ours, theirs in zip(convolved(be, sizes), convolved(cpu, sizes)):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


@pytest.fixture
def wide_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that count in 64 bits, as for sizes that no test has memory for."""
    monkeypatch.setattr(cuda_primitives, "MOST", 0)


@pytest.mark.slow
@pytest.mark.usefixtures("wide_counters")
def test_kernels_that_count_in_64_bits(be: GpuBackend, cpu: Backend) -> None:
    for ours, theirs in zip(convolved(be, CONVOLUTIONS[0]), convolved(cpu, CONVOLUTIONS[0])):
        np.testing.assert_allclose(ours, theirs, **CLOSE)
    for ours, theirs in zip(pooled(be, "max"), pooled(cpu, "max")):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_terms_beyond_32_bits_are_counted_in_64(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"N": 1, "C": 6, "K": 34, "H": 4, "W": 4, "R": 3, "S": 2, "groups": 2}
    options: list[str] = []
    compiled = GpuBackend._compiled_file

    def noted(be: GpuBackend, path: Any, name: str, macros: list[str]) -> Any:
        options.extend(macros)
        return compiled(be, path, name, macros)

    monkeypatch.setattr(GpuBackend, "_compiled_file", noted)
    for most, counter in ((17 * 6, "int"), (17 * 6 - 1, "tb_i64")):
        monkeypatch.setattr(cuda_primitives, "MOST", most)
        options.clear()
        be = GpuBackend(driver=NullDriver())
        convolved(be, sizes)
        assert {option for option in options if "TB_INT" in option} == {f"-DTB_INT={counter}"}
        be.cleanup_backend()


def test_the_last_row_of_the_last_tile_is_counted_in_32_bits() -> None:
    tile = cuda_primitives.CONV_TILE
    for most in range(2**31 - 2 * tile, 2**31):
        last = -(-most // tile) * tile - 1 + cuda_primitives.CONV_DEPTH
        assert cuda_primitives._counter(most) == "tb_i64" or last < 2**31, most


@pytest.mark.parametrize("op", ["max", "avg"])
@pytest.mark.parametrize(
    ("window", "pad", "place"),
    [((50000, 50000), (49999, 49999), 50000**2 - 1), ((1, 2**31 + 7), (0, 2**31 + 6), 2**31 + 6)],
)
def test_windows_of_more_cells_than_32_bits_count(be: GpuBackend, op: str, window: tuple, pad: tuple,
                                                  place: int) -> None:  # fmt: skip
    """All padding but one pixel, which is the last cell."""
    sizes = {"H": 3, "W": 3, "R": window[0], "S": window[1], "pad_h": pad[0], "pad_w": pad[1]}
    layer = be.pool_layer("float32", op, 1, 1, **sizes, str_h=2**32, str_w=2**33)
    I = be.array(np.arange(9).reshape(layer.dimI) + 5)
    O, delta, argmax = be.empty(layer.dimO), be.empty(layer.dimI), be.zeros(layer.dimO, np.int64)
    be.fprop_pool(layer, I, O, argmax)
    be.bprop_pool(layer, O, delta, argmax)
    assert O.get().tolist() == [[[[[5]]]]]
    assert op == "avg" or argmax.get().tolist() == [[[[[place]]]]]
    np.testing.assert_array_equal(delta.get().ravel(), [5, 0, 0, 0, 0, 0, 0, 0, 0])


def test_any_number_of_groups_has_a_grid() -> None:
    be = GpuBackend(driver=NullDriver())
    convolved(be, {"N": 1, "C": 65537, "K": 65537, "groups": 65537})
    grids = [launch.grid for launch in be.driver.launches if launch.name.startswith("conv_")]
    assert grids == [(1, 32769, 2)] * 3
    be.cleanup_backend()


def test_any_number_of_products_has_a_grid() -> None:
    be = GpuBackend(driver=NullDriver())
    be.evaluate(be.matmul(be.ones((65537, 2, 3)), be.ones((65537, 3, 1))))
    assert [launch.grid for launch in be.driver.launches if launch.name == "gemm"] == [(1, 65535, 1)]
    be.cleanup_backend()


@pytest.mark.parametrize("op", ["max", "avg", "l2"])
def test_pooling(be: GpuBackend, cpu: Backend, op: str) -> None:
    for ours, theirs in zip(pooled(be, op), pooled(cpu, op)):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_normalisation(be: GpuBackend, cpu: Backend) -> None:
    for ours, theirs in zip(normalised(be), normalised(cpu)):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


def looked_up(be: Any) -> list[np.ndarray]:
    """The gradient of a table of 31 words, 300 look-ups, one word more often than others."""
    ids = np.minimum(np.random.default_rng(0).integers(0, 60, (1, 300)), 30)
    (error,), dW = drawn(be, (7, 300)), be.empty((31, 7))
    be.compound_bprop_lut(3, be.array(ids, dtype=np.int32), error, None, dW, 2)
    return [dW.get()]


def regions_pooled(be: Any) -> list[np.ndarray]:
    """What both passes of region pooling give."""
    rois = be.array([[n % 2, 2 * n - 6, n - 3, 3 * n, 2 * n + 1] for n in range(9)])
    I, E = drawn(be, (3 * 8 * 9, 2), (3 * 2 * 3, 9))
    O, argmax, delta = be.empty(E.shape), be.empty(E.shape, np.int32), be.empty(I.shape)
    be.roipooling_fprop(I, rois, O, argmax, 9, 3, 8, 9, 2, 3, 0.5)
    be.roipooling_bprop(E, rois, delta, argmax, 9, 3, 8, 9, 2, 3, 0.5)
    return [O.get(), argmax.get(), delta.get()]


def suppressed(be: Any) -> list[np.ndarray]:
    """Which of 150 boxes are kept."""
    draw = np.random.default_rng(0)
    low, score = draw.uniform(0, 50, (150, 2)), np.linspace(1, 0, 150)[:, None]
    boxes = be.array(np.concatenate([low, low + draw.uniform(5, 30, (150, 2)), score], 1))
    return [np.array(be.nms(boxes, threshold)) for threshold in (0.2, 0.5)]


@pytest.mark.parametrize("made", [looked_up, regions_pooled, suppressed])
def test_lookup_tables_and_regions(be: GpuBackend, cpu: Backend, made: Callable[[Any], list[np.ndarray]]) -> None:
    for ours, theirs in zip(made(be), made(cpu)):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


def multiplied(be: Any) -> list[np.ndarray]:
    """Products of batches, of small tiles and of large ones."""
    a, b, c, d = drawn(be, (7, 3, 21), (7, 21, 5), (5, 97, 3), (3, 99))
    return [be.evaluate(be.matmul(*pair)).get() for pair in ((a, b), (c, d))]


def placed(be: Any) -> list[np.ndarray]:
    """Rows taken and put: along an axis of 7 between others, at 40 places."""
    x, e = drawn(be, (6, 7, 9), (6, 40, 9))
    places = be.array(np.random.default_rng(0).integers(-7, 7, 40), dtype=np.int64, min_dims=0)
    return [be.evaluate(t).get() for t in (be.take(x, places, 1), composite.put(e, places, (6, 7, 9), 1))]


def test_neighbouring_axes_are_one_to_a_kernel() -> None:
    """Rows at 4 x 7 places in a table: 28 times 64 numbers."""
    be = GpuBackend(driver=NullDriver())
    be.evaluate(be.take(be.ones((50, 64)), np.zeros((4, 7), np.int64), 0))
    (taken,) = (launch for launch in be.driver.launches if launch.name == "take")
    count, length, stride, rank, *axes = np.frombuffer(taken.arguments, np.int64)[3:].tolist()
    assert (count, length, stride, rank) == (28 * 64, 50, 64, 2)
    lengths, first, second = (axes[part * cuda_primitives.MAX_AXES :][:2] for part in range(3))
    assert (lengths, first, second) == ([28, 64], [0, 1], [1, 0])
    be.cleanup_backend()


def run_through(be: Any) -> list[np.ndarray]:
    """Running sums and products of 300 lines, and counts of their magnitudes."""
    (x,) = drawn(be, (300, 11))
    x.hist("x")
    return [be.evaluate(be.cumsum(x, 1)).get(), be.evaluate(be.cumprod(x, 1)).get(), be.dump_hist_data()[0].get()]


@pytest.fixture
def small_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids of few blocks, so that each has as much to do as for sizes that no test has memory for."""
    monkeypatch.setattr(cuda_primitives, "BLOCKS", 1)
    monkeypatch.setattr(cuda_primitives, "MAX_GRID", (2**31 - 1, 2, 2))
    monkeypatch.setattr(cuda_primitives, "PUT_THREADS", 270)  # five for each of 54 lines


MADE = [*(functools.partial(convolved, sizes=sizes) for sizes in CONVOLUTIONS), functools.partial(pooled, op="avg"),
        normalised, looked_up, regions_pooled, suppressed, multiplied, placed, run_through]  # fmt: skip


@pytest.mark.usefixtures("small_grids")
@pytest.mark.parametrize("made", MADE, ids=lambda made: getattr(made, "__name__", "passes"))
def test_small_grids_do_all_of_the_work(be: GpuBackend, cpu: Backend, made: Callable[[Any], list[np.ndarray]]) -> None:
    for ours, theirs in zip(made(be), made(cpu), strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)
