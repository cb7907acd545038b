# SPDX-License-Identifier: Apache-2.0
"""Views whose elements lie apart: axes in another order, of which tiles are turned, and steps along an axis."""

from __future__ import annotations

import numpy as np
import pytest

from tensorbackend import Backend

SIDES = [(8, 8), (9, 23), (16, 64), (31, 17), (40, 100), (65, 71), (130, 12)]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_tiles_of_all_sides(jit: Backend, dtype: str) -> None:
    """Every number is in its place, of squares and what they leave at the sides; nothing is written beside them."""
    for rows, columns in SIDES:
        host = (np.arange(2 * rows * columns) % 251).reshape(2, rows, columns).astype(dtype)
        around = jit.full((2, columns, rows + 3), 7, dtype=dtype)
        around[:, :, 1 : rows + 1] = jit.array(host, dtype=dtype).transpose((0, 2, 1))
        expected = np.full((2, columns, rows + 3), 7, dtype)
        expected[:, :, 1 : rows + 1] = host.transpose(0, 2, 1)
        np.testing.assert_array_equal(around.get(), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_copies_of_halves_move_all_bits(jit: Backend, dtype: str) -> None:
    """A signalling NaN stays what it is, which it would not on the way through float32."""
    words = np.arange(0, 1 << 16, 37, dtype=np.uint16)[:1764].reshape(42, 42)
    words[0, 0] = 0x7D01 if dtype == "float16" else 0x7FA1
    x = jit.array(words.view(jit.empty((1, 1), dtype=dtype).get().dtype), dtype=dtype)
    for view, bits in ((x, words), (x.T, words.T), (x[:, ::-1], words[:, ::-1]), (x[::2], words[::2])):
        target = jit.empty(view.shape, dtype=dtype)
        target[:] = view
        np.testing.assert_array_equal(target.get().view(np.uint16), bits)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
def test_steps_along_rows(jit: Backend, dtype: str) -> None:
    """Maps and reductions read what lies apart by blocks, of short rows and of long ones."""
    for rows, columns in ((3, 5000), (40, 100), (70, 7)):
        host = (np.arange(rows * columns) * 7 % 61 - 30).reshape(rows, columns).astype(dtype)
        x = jit.array(host, dtype=dtype)
        for step in (-1, 2, -2, 3):
            view, expected = x[:, ::step], host[:, ::step].astype(np.float64)
            twice = jit.evaluate(view + view[::-1])
            np.testing.assert_array_equal(twice.get(), expected + expected[::-1])
            np.testing.assert_array_equal(jit.evaluate(jit.sum(view, axis=1)).get()[:, 0], expected.sum(1))
            np.testing.assert_array_equal(jit.evaluate(jit.max(view, axis=0)).get()[0], expected.max(0))
            np.testing.assert_array_equal(jit.evaluate(jit.argmax(view, axis=1)).get()[:, 0], expected.argmax(1))


def test_sums_go_along_what_lies_near(jit: Backend) -> None:
    """Rows of every other element are read as rows; columns of such a matrix share no line of the cache."""
    x, sums = jit.zeros((100, 2000)), jit.empty((100, 1))
    (kernel,) = jit.explain(sums, jit.sum(x[:, ::2], axis=1)).steps
    assert kernel.form == "rows"
