# SPDX-License-Identifier: Apache-2.0
"""The processor's matrix unit as `kernels/c/amx.h` uses it: numbers as sums of planes of bfloat16, in square blocks."""

from __future__ import annotations

__all__ = ["EDGE", "HALF", "PLANES", "PLANE_BYTES", "multiple"]

EDGE = 32
"""Rows, columns and steps of k of a block."""
HALF = EDGE // 2
"""Rows of a tile of the unit: products may go without the second half of a block's rows."""
PLANES = {"float32": 3, "float16": 2, "bfloat16": 1}
"""Of how many bfloat16 numbers one of a type is the sum."""
PLANE_BYTES = 2
"""Bytes of a plane's number."""


def multiple(length: int, of: int) -> int:
    """The least multiple of `of` that is at least 1 and `length`."""
    return -(-max(length, 1) // of) * of
