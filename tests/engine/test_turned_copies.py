# SPDX-License-Identifier: Apache-2.0
"""Copies that change the order of axes: tiles turned to where they belong, of elements that are moved as they are."""

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
