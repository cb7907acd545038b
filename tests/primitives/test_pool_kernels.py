# SPDX-License-Identifier: Apache-2.0
"""Compiled pooling: of images whose lines go side by side, and of data that count as beyond the caches, where results
go past them and lines are asked for ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tensorbackend as tb
from tensorbackend.backends import caches
from tensorbackend.conformance.test_pool import check_both_passes
from tests.thinned import thinned

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


@pytest.mark.parametrize(
    ("op", "window", "N"), thinned(5, ["max", "avg", "l2"], WINDOWS, [4, 16, 8, 48, 1, 20, 128, 32]), ids=str
)
def test_results_past_the_caches(be: tb.Backend, op: str, window: tuple[int, int, int], N: int) -> None:
    check_both_passes(be, layer_of(be, op, window, N), "float32")


@pytest.mark.parametrize(
    ("op", "window", "N", "dtype"),
    thinned(6, ["max", "avg", "l2"], WINDOWS, [16, 32, 64, 96, 128, 192], ["float32", "float64", "bfloat16"]), ids=str,
)  # fmt: skip
def test_lines_side_by_side(near: tb.Backend, op: str, window: tuple[int, int, int], N: int, dtype: str) -> None:
    check_both_passes(near, layer_of(near, op, window, N, dtype, 8), dtype)


@pytest.mark.parametrize("N", [4, 16, 64, 192])
def test_whole_images_past_the_caches(be: tb.Backend, N: int) -> None:
    check_both_passes(be, be.pool_layer("float32", "avg", N, 3, H=4, W=5, R=4, S=5), "float32")
