# SPDX-License-Identifier: Apache-2.0
"""Compiled pooling: of images whose lines go side by side, and of data that count as beyond the caches, where results
go past them and lines are asked for ahead."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
from tensorbackend.backends import caches, compiler, cpu_pool
from tensorbackend.conformance import references as ref
from tensorbackend.conformance.test_pool import check_both_passes
from tests.thinned import thinned
from tests.threads import same_bits_shared

pytestmark = pytest.mark.usefixtures("light")

WINDOWS = [(2, 1, 0), (3, 1, 1), (2, 2, 0), (3, 2, 0), (3, 2, 1)]
"""Sides, strides and paddings."""


@pytest.fixture
def near(absent) -> Iterator[tb.Backend]:
    """A backend that compiles."""
    made = tb.Backend.allocate_backend("cpu", rng_seed=0)
    if not made.jit:
        absent("cpu", "no C compiler works here")
    yield made
    made.cleanup_backend()


@pytest.fixture
def be(near, monkeypatch) -> tb.Backend:
    """One that takes all data to be beyond the caches."""
    monkeypatch.setattr(caches, "near_bytes", lambda: 0)
    return near


def layer_of(be: tb.Backend, op: str, window: tuple[int, int, int], N: int, dtype: str = "float32", W: int = 11) -> Any:
    """A layer of square windows over two maps of 13 rows."""
    side, stride, pad = window
    sizes = {"R": side, "S": side, "str_h": stride, "str_w": stride, "pad_h": pad, "pad_w": pad}
    return be.pool_layer(dtype, op, N, 2, H=13, W=W, **sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "window", "N"), thinned(8, ["max", "avg", "l2"], WINDOWS, [4, 16, 8, 48, 1, 20, 128, 32], ci=1), ids=str
)
def test_results_past_the_caches(be: tb.Backend, op: str, window: tuple[int, int, int], N: int) -> None:
    check_both_passes(be, layer_of(be, op, window, N), "float32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "window", "N", "dtype"),
    thinned(9, ["max", "avg", "l2"], WINDOWS, [16, 32, 64, 96, 128, 192], ["float32", "float64", "bfloat16"], ci=1),
    ids=str,
)
def test_lines_side_by_side(near: tb.Backend, op: str, window: tuple[int, int, int], N: int, dtype: str) -> None:
    check_both_passes(near, layer_of(near, op, window, N, dtype, 8), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("N", [4, 16, 64, 192])
def test_whole_images_past_the_caches(be: tb.Backend, N: int) -> None:
    check_both_passes(be, be.pool_layer("float32", "avg", N, 3, H=4, W=5, R=4, S=5), "float32")


ALMOST = {
    "strides that differ": {"R": 3, "S": 3, "str_h": 1, "str_w": 2},
    "wide": {"R": 2, "S": 3, "str_h": 2, "str_w": 2},
    "two maps": {"J": 2, "R": 2, "S": 2, "str_c": 1},
    "every second map": {"R": 2, "S": 2, "str_c": 2},
    "deep": {"D": 4, "T": 2, "R": 2, "S": 2, "str_d": 1},
    "every second image in depth": {"D": 4, "R": 2, "S": 2, "str_d": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "op"), thinned(3, list(ALMOST), ["max", "avg", "l2"]), ids=str)
def test_windows_that_are_almost_squares_over_one_map(near: tb.Backend, name: str, op: str) -> None:
    check_both_passes(near, near.pool_layer("float32", op, 16, 4, H=7, W=8, **ALMOST[name]), "float32")


@pytest.mark.slow
@pytest.mark.parametrize("places", ["int16", "int32"])
def test_places_of_more_bytes_of_usual_windows(near: tb.Backend, places: str) -> None:
    for window in ((2, 2, 0), (3, 2, 1)):
        check_both_passes(near, layer_of(near, "max", window, 32), "float32", places)


@pytest.mark.slow
@pytest.mark.parametrize("op", ["max", "avg"])
@pytest.mark.parametrize(("R", "S"), [(32, 32), (1, 1024), (1024, 1), (40, 60)])
def test_as_many_cells_as_kernels_take_and_more(near: tb.Backend, op: str, R: int, S: int) -> None:
    sizes = {"H": R + 1, "W": S + 2, "R": R, "S": S, "pad_w": S // 3, "str_h": 1, "str_w": max(1, S // 2)}
    layer = near.pool_layer("float32", op, 3, 1, **sizes)
    check_both_passes(near, layer, "float32", "int16")


APART = {
    "whole images": {"N": 32, "R": 7, "S": 8, "H": 7, "W": 8},
    "one image": {"N": 1, "R": 7, "S": 8, "H": 7, "W": 8},
    "long rows": {"N": 1, "R": 1, "S": 4, "H": 1, "W": 9_001, "str_w": 5, "pad_w": 3},
    "long rows of two images": {"N": 2, "R": 1, "S": 3, "H": 2, "W": 5_000, "str_w": 3},
    "wide padding": {"N": 3, "J": 2, "str_c": 2, "R": 4, "S": 5, "H": 9, "W": 7, "str_h": 6, "str_w": 5, "pad_h": 3,
                     "pad_w": 4},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("places", ["int16", "int32"])
def test_windows_that_share_no_pixel(near: tb.Backend, name: str, places: str) -> None:
    sizes = {"str_h": APART[name]["R"], "str_w": APART[name]["S"], "C": 4, **APART[name]}
    layer = near.pool_layer("float32", "max", **sizes)
    x, errors = (ref.draw(d, "float32", n) for n, d in enumerate((layer.dimI, layer.dimO)))
    _, winners = ref.pooled(layer, x)
    grad = near.full(layer.dimI, 7)
    near.bprop_pool(layer, near.array(errors), grad, near.array(winners, dtype=places))
    np.testing.assert_array_equal(grad.get(), ref.pooled_back(layer, errors, x, None, winners))


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("cell", [0, 3, 4, 11, 255])
def test_places_in_the_padding_or_in_no_window_send_nothing(near: tb.Backend, cell: int, step: int) -> None:
    """Nor is anything written beside the gradient."""
    layer = near.pool_layer("float32", "max", 3, 2, H=5, W=6, R=3, S=4, str_h=3, str_w=4, pad_h=2, pad_w=3)
    errors, winners = ref.draw(layer.dimO, "float32", 0), np.full(layer.dimO, cell, np.uint8)
    around = near.full((4, *layer.dimI[1:3], 6 * step, layer.dimI[4]), 7)
    expected = around.get()
    grad, wanted = (x[1:3, :, :, : 6 * step : step] for x in (around, expected))
    near.bprop_pool(layer, near.array(errors), grad, near.array(winners, dtype="uint8"))
    wanted[...] = ref.pooled_back(layer, errors, np.zeros(layer.dimI), None, winners)
    np.testing.assert_array_equal(around.get(), expected)


FULL_STACK = "void fill(void) { volatile float all[1 << 16]; for (int i = 0; i < 1 << 16; ++i) all[i] = 9; }"


@pytest.mark.parametrize("N", [5, 8])
def test_nothing_is_sent_from_before_the_first_window(near: tb.Backend, N: int) -> None:
    """Of more images than half a vector of 32 bytes, whatever is in memory there."""
    layer = layer_of(near, "avg", (3, 1, 0), N)
    errors, grad = near.full(layer.dimO, 9), near.empty(layer.dimI)
    near.bprop_pool(layer, errors, grad)
    ctypes.CFUNCTYPE(None)(compiler.compile_source(FULL_STACK).address("fill"))()
    near.bprop_pool(layer, errors, grad)
    np.testing.assert_allclose(grad.get(), ref.pooled_back(layer, errors.get(), None, None, None), rtol=1e-6)


@pytest.mark.parametrize(("op", "window", "N"), [
    ("max", (2, 1, 0), 4), ("max", (3, 2, 1), 16), ("avg", (2, 1, 0), 1), ("l2", (3, 2, 0), 4), ("avg", (3, 2, 1), 4),
])  # fmt: skip
def test_threads_change_no_bit(near: tb.Backend, monkeypatch, op: str, window: tuple[int, int, int], N: int) -> None:
    """Each task has a few rows, and each thread goes on from those before."""
    monkeypatch.setattr(cpu_pool, "TASK_BYTES", 1 << 11)

    def computed() -> list[np.ndarray]:
        be = tb.Backend.allocate_backend("cpu", rng_seed=0)
        layer = layer_of(be, op, window, N)
        I, E = (be.array(ref.draw(d, "float32", n)) for n, d in enumerate((layer.dimI, layer.dimO)))
        O, grad = be.empty(layer.dimO), be.empty(layer.dimI)
        argmax = be.empty(layer.dimO, dtype="uint8") if op == "max" else None
        be.fprop_pool(layer, I, O, argmax)
        be.bprop_pool(layer, E, grad, argmax, X=I, Y=O)
        return [O.get(), grad.get()]

    same_bits_shared(computed)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "N"), [("max", 1), ("max", 3), ("avg", 1), ("avg", 3), ("l2", 1), ("l2", 3)])
def test_whole_images_of_few(near: tb.Backend, op: str, N: int) -> None:
    check_both_passes(near, near.pool_layer("float32", op, N, 4, H=7, W=5, R=7, S=5), "float32")


@pytest.mark.parametrize("N", [1, 3])
def test_the_first_of_equals_or_of_nans_is_the_largest_of_a_whole_image(near: tb.Backend, N: int) -> None:
    layer = near.pool_layer("float32", "max", N, 9, H=7, W=5, R=7, S=5)
    x = np.round(np.random.default_rng(N).standard_normal(layer.dimI)).astype(np.float32)
    x[0], x[1, 0, 2:4], x[2, 0, 3, 1:], x[3], x[4, 0, 6, 4] = -np.inf, np.nan, np.nan, np.nan, np.nan
    out, places = near.empty(layer.dimO), near.zeros(layer.dimO, dtype=np.uint8)
    near.fprop_pool(layer, near.array(x), out, places)
    maps = x.reshape(9, 35, N)
    np.testing.assert_array_equal(places.get().reshape(9, N), np.argmax(maps, 1))
    np.testing.assert_array_equal(out.get().reshape(9, N), maps.max(1))


DENSE = {
    "square": {"R": 5, "S": 5, "str_h": 1, "str_w": 1, "pad_h": 2, "pad_w": 2},
    "deep": {"D": 5, "T": 3, "R": 2, "S": 4, "str_d": 2, "str_h": 1, "str_w": 3, "pad_d": 1, "pad_w": 2},
    "over maps": {"J": 2, "R": 4, "S": 3, "str_c": 1, "str_h": 2, "str_w": 2, "pad_h": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DENSE)
@pytest.mark.parametrize("task", [1, 1000, cpu_pool.TASK_BYTES])
def test_windows_of_many_cells_in_tasks_of_any_size(near: tb.Backend, name: str, task: int, monkeypatch) -> None:
    monkeypatch.setattr(cpu_pool, "TASK_BYTES", task)
    layer = near.pool_layer("float32", "max", N=2, C=3, H=9, W=10, **DENSE[name])
    x, errors = ref.draw(layer.dimI, "float32", 0), np.round(8 * ref.draw(layer.dimO, "float32", 1))
    _, winners = ref.pooled(layer, x)
    grad = near.full(layer.dimI, 7)
    near.bprop_pool(layer, near.array(errors), grad, near.array(winners, dtype="uint8"))
    np.testing.assert_array_equal(grad.get(), ref.pooled_back(layer, errors, x, None, winners))
