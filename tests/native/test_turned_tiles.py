# SPDX-License-Identifier: Apache-2.0
"""Operands that lie across are read in tiles turned in registers: any type, size, place and width of vectors."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from tensorbackend import dtypes, testing
from tensorbackend.backends import jit
from tensorbackend.settings import config
from tests.thinned import thinned

X86 = platform.machine() in ("x86_64", "AMD64")
WIDTHS = ["", "-mno-avx512f", "-mno-avx"] if X86 else [""]
SIZES = [(8, 8), (9, 200), (64, 64), (65, 63), (130, 70), (17, 33), (200, 9)]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "cflags"), thinned(len(WIDTHS), dtypes.DTYPES, WIDTHS), ids=str)
def test_turned_tiles_are_the_same_numbers(cc, monkeypatch, dtype: np.dtype, cflags: str) -> None:
    monkeypatch.setitem(config._values, "cflags", cflags)
    jit._definitions.cache_clear()
    backend = testing.make_backend("cpu", rng_seed=0)
    draw = np.random.default_rng(0)
    for rows, columns in SIZES:
        for away in (0, 1):
            values = draw.integers(0, 100, (rows + away, columns + away + 3)).astype(dtype)
            other = draw.integers(0, 20, (columns, rows)).astype(dtype)
            x, y = backend.array(values, dtype=dtype)[away:, away : away + columns], backend.array(other, dtype=dtype)
            seen = values[away:, away : away + columns]
            out = backend.empty((columns, rows), dtype=dtype)
            out[:] = x.T + y
            assert (out.get() == seen.T + other).all(), (rows, columns, away)
            out[:] = x[::-1].T + y
            assert (out.get() == seen[::-1].T + other).all(), (rows, columns, away)
    backend.cleanup_backend()
    monkeypatch.undo()
    jit._definitions.cache_clear()


def test_tiles_of_three_axes(cc) -> None:
    """Tiles go along the axis of what lies across, wherever it is among the outer ones; columns are no tiles."""
    backend = testing.make_backend("cpu", rng_seed=0)
    draw = np.random.default_rng(0)
    y, z, w, c = (draw.integers(0, 20, s).astype("f") for s in [(13, 70, 9), (9, 13, 70), (1, 13, 1), (9, 1, 1)])
    a, b, d, e = (backend.array(v, min_dims=0) for v in (y, z, w, c))
    turned, shown = backend.transpose(a, (2, 0, 1)), y.transpose(2, 0, 1)
    for tree, expected in ((turned * d + b, shown * w + z), (turned * d + b * e, shown * w + z * c)):
        out = backend.empty(expected.shape, min_dims=0)
        out[:] = tree
        np.testing.assert_array_equal(out.get(), expected)
    backend.cleanup_backend()
