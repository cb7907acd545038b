# SPDX-License-Identifier: Apache-2.0
"""Orders of axes in memory."""

from __future__ import annotations

import pytest

from tensorbackend.graph import indexing


@pytest.mark.parametrize(
    ("shape", "strides", "order"),
    [
        ((2, 3), (3, 1), (0, 1)),
        ((2, 3), (1, 2), (1, 0)),
        ((2, 3, 4), (1, 8, 2), (1, 2, 0)),
        ((2, 1, 3), (1, 99, 2), (2, 1, 0)),  # an axis of one entry may have any stride
        ((1, 1), (5, 7), (0, 1)),
        ((), (), ()),
        ((2, 3), (4, 1), (0, 1)),  # gaps
        ((2, 3), (1, -2), (0, 1)),  # turned
        ((2, 3), (0, 1), (0, 1)),  # repeated
    ],
)
def test_the_order_of_axes_in_memory(shape, strides, order) -> None:
    assert indexing.memory_order(shape, strides) == order


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)])
def test_an_array_without_gaps_has_its_order(order) -> None:
    strides = indexing.dense_strides((2, 3, 4), order)
    assert sorted(strides)[0] == 1 and indexing.memory_order((2, 3, 4), strides) == order
