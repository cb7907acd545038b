# SPDX-License-Identifier: Apache-2.0
"""Tensors of more than 2^31 elements: no count, place or stride is kept in 32 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorbackend import Backend, Tensor

COUNT = (1 << 31) + 1024
FREE = 12 << 30
"""Bytes that must be free; the tests take up to half of them."""


def free_memory() -> int:
    """The bytes of memory that processes can have; 0 where nobody says."""
    facts = Path("/proc/meminfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


pytestmark = [
    pytest.mark.xdist_group("large"),  # one after the other
    pytest.mark.skipif(free_memory() < FREE, reason="too little memory is free"),
]


def marked(be: Backend, rows: int, columns: int, dtype: type) -> Tensor:
    """Zeros, but for a row of 3 near the first and one of 7 near the last."""
    x = be.zeros((rows, columns), dtype=dtype)
    x[1:2] = 3
    x[rows - 2 : rows - 1] = 7
    return x


def ends(x: Tensor) -> list[float]:
    """The first column's second number and its last but one, and how many are not 0."""
    count = x.backend.empty((1, 1), dtype=np.int64)
    count[:] = x.backend.sum(x != 0)
    return [x[1, 0].item(), x[x.shape[0] - 2, 0].item(), count.item()]


@pytest.mark.ci
def test_elements_and_their_places(jit: Backend) -> None:
    x, y = marked(jit, COUNT, 1, np.uint8), jit.empty((COUNT, 1), dtype=np.uint8)
    y[:] = x * 2
    assert ends(y) == [6, 14, 2]
    y[:] = x[::-1]
    assert ends(y) == [7, 3, 2]
    place, total = jit.empty((1, 1), dtype=np.int64), jit.empty((1, 1), dtype=np.uint64)
    place[:] = jit.argmax(x, axis=0)
    total[:] = jit.sum(x)
    assert (place.item(), total.item()) == (COUNT - 2, 10)
    picked = jit.empty((2, 1), dtype=np.uint8)
    picked[:] = jit.take(x, jit.array([[COUNT - 2], [1]], dtype=np.int64)[:, 0], 0)
    assert picked.get().ravel().tolist() == [7, 3]


@pytest.mark.ci
def test_rows_and_columns(jit: Backend) -> None:
    x = marked(jit, COUNT // 1024, 1024, np.uint8)
    rows, columns = jit.empty((COUNT // 1024, 1), dtype=np.uint64), jit.empty((1, 1024), dtype=np.uint64)
    rows[:] = jit.sum(x, axis=1)
    columns[:] = jit.sum(x, axis=0)
    assert ends(rows) == [3 * 1024, 7 * 1024, 2]
    assert (columns.get() == 10).all()


@pytest.mark.long
def test_products(jit: Backend) -> None:
    a, b = marked(jit, COUNT // 64, 64, np.float16), jit.ones((64, 2), dtype=np.float16)
    tall, small = jit.empty((COUNT // 64, 2), dtype=np.float16), jit.empty((64, 2), dtype=np.float16)
    jit.compound_dot(a, b, tall)
    assert ends(tall) == [3 * 64, 7 * 64, 4]
    jit.compound_dot(a.T, tall, small)
    assert (small.get() == 64 * (9 + 49)).all()


@pytest.mark.long
@pytest.mark.parametrize("op", ("max", "avg"))
def test_pooling(jit: Backend, op: str) -> None:
    maps, side = COUNT // 1024 // 2, 32
    layer = jit.pool_layer(np.float16, op, 2, maps, 1, side, side, 1, 1, 2, 2)
    x = marked(jit, maps * side * side, 2, np.float16)
    y = jit.empty((maps * side * side // 4, 2), dtype=np.float16)
    argmax = jit.empty(y.shape, dtype=np.uint8) if op == "max" else None
    jit.fprop_pool(layer, x, y, argmax)
    found, share = y.get(), 1 if op == "max" else 0.25
    assert (found[0] == 3 * share).all() and (found[-1] == 7 * share).all() and np.count_nonzero(found) == 4
    jit.bprop_pool(layer, y, x, argmax)
    assert ends(x) == [3 * share * share, 7 * share * share, 4 if op == "max" else 16]


@pytest.mark.long
def test_convolution(jit: Backend) -> None:
    maps, side = COUNT // 1024 // 4, 32
    layer = jit.conv_layer(np.float16, 4, maps, 1, 1, side, side, 1, 1, 1)
    x = marked(jit, maps * side * side, 4, np.float16)
    filters = jit.ones((maps, 1), dtype=np.float16)
    y = jit.empty((side * side, 4), dtype=np.float16)
    jit.fprop_conv(layer, x, filters, y)
    assert ends(y) == [3, 7, 8]
    jit.update_conv(layer, x, y, filters)
    gradient = filters.get().ravel()
    assert (gradient[0], gradient[-1]) == (4 * 9, 4 * 49) and np.count_nonzero(gradient) == 2
    jit.bprop_conv(layer, jit.ones((maps, 1), dtype=np.float16), y, x)
    last = x[(maps - 1) * side * side :].get()
    assert (last[1] == 3).all() and (last[-2] == 7).all() and np.count_nonzero(last) == 8
