# SPDX-License-Identifier: Apache-2.0
"""Compiled pooling of data that count as beyond the caches: results go past them, lines are asked for ahead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tensorbackend as tb
from tensorbackend.backends import caches
from tensorbackend.conformance.test_pool import check_both_passes
from tests.thinned import thinned

WINDOWS = [(2, 1, 0), (3, 1, 1), (2, 2, 0), (3, 2, 0), (3, 2, 1)]
"""Sides, strides and paddings."""


@pytest.fixture
def be(absent, monkeypatch) -> Iterator[tb.Backend]:
    """A backend that takes all data to be beyond the caches."""
    monkeypatch.setattr(caches, "near_bytes", lambda: 0)
    made = tb.Backend.allocate_backend("cpu", rng_seed=0)
    if not made.jit:
        absent("cpu", "no C compiler works here")
    yield made
    made.cleanup_backend()


@pytest.mark.parametrize(
    ("op", "window", "N"), thinned(5, ["max", "avg", "l2"], WINDOWS, [4, 16, 8, 48, 1, 20, 128]), ids=str
)
def test_results_past_the_caches(be: tb.Backend, op: str, window: tuple[int, int, int], N: int) -> None:
    side, stride, pad = window
    sizes = {"R": side, "S": side, "str_h": stride, "str_w": stride, "pad_h": pad, "pad_w": pad}
    check_both_passes(be, be.pool_layer("float32", op, N, 2, H=13, W=11, **sizes), "float32")


@pytest.mark.parametrize("N", [4, 16, 64, 192])
def test_whole_images_past_the_caches(be: tb.Backend, N: int) -> None:
    check_both_passes(be, be.pool_layer("float32", "avg", N, 3, H=4, W=5, R=4, S=5), "float32")
