# SPDX-License-Identifier: Apache-2.0
"""Which products of matrices take about the time that their results take to be written, and so have loops of their own.

Those are `kernels/c/gemm_short.c`'s: gradients of weights, for few samples. They add up as tiles do, to the same bits.
"""

from __future__ import annotations

from tensorbackend.primitives.gemm import TASKS, Facts, Matrices
from tensorbackend.primitives.matrix_unit import multiple

__all__ = ["is_short", "task"]

RESULT, SIDE = 1 << 14, 32
"""Elements of a result, and its rows and columns, at least."""
STEPS, FEWER_STEPS, NEAR = 63, 24, 1 << 18
"""Steps of k at most, as in `gemm_short.c`; and where a result has no more elements than NEAR, or registers are few."""
NEAR_B = 1 << 16
"""Elements of b at most where registers are few, if each task reads all of it."""
ROWS, MOST_ROWS = 6, 60
"""Rows that are taken together, and rows of a task at most."""
WIDE, WIDE_COLUMNS, WIDE_RESULT = 4, 1 << 12, 1 << 20
"""Tasks are columns, which read b once, from so many times as many columns as rows on, and so many columns; with more
than `MOST_ROWS` rows, which are then copied for each block of columns, also so many elements of the result."""
FEW, FEW_STEPS = 6, 32
"""Where registers are few, wide products have `STEPS` steps at most, and any rows; fewer than FEW, so many steps."""
COLUMNS, MOST_COLUMNS, COLUMN_TASKS = 384, 3072, 8
"""Columns of a task are a multiple of the first; the second, if there are so many tasks."""


def is_short(x: Matrices, facts: Facts) -> bool:
    """Whether a product is one of those, seen so that columns of the result lie side by side."""
    if x.batches != 1 or not (x.plain_a and x.plain_b and x.sums[1] == 1) or x.m * x.n < RESULT or x.k < 1:
        return False
    if facts.few_registers and _is_wide(x):
        return x.m > 1 and x.k <= (STEPS if x.m >= FEW else FEW_STEPS)
    most = STEPS if x.m * x.n > NEAR and not facts.few_registers else FEWER_STEPS
    near = not facts.few_registers or x.n * x.k <= NEAR_B
    return min(x.m, x.n) >= SIDE and x.k <= most and near


def _is_wide(x: Matrices) -> bool:
    return x.n >= max(WIDE * x.m, WIDE_COLUMNS) and (x.m <= MOST_ROWS or x.m * x.n >= WIDE_RESULT)


def task(x: Matrices) -> tuple[int, int]:
    """Rows and columns of a task; the last one of a row of tasks has the columns that are left, too."""
    if not _is_wide(x):
        return min(multiple(-(-x.m // TASKS), ROWS), MOST_ROWS), x.n
    columns = max(x.n // TASKS, min(x.n // COLUMN_TASKS, MOST_COLUMNS))
    return x.m, min(max(columns // COLUMNS * COLUMNS, COLUMNS), x.n)
