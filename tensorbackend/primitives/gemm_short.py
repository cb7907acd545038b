# SPDX-License-Identifier: Apache-2.0
"""Which products of matrices take about the time that their results take to be written, and so have loops of their own.

Those are `kernels/c/gemm_short.c`'s: gradients of weights, for few samples. They add up as tiles do, to the same bits.
"""

from __future__ import annotations

from tensorbackend.primitives.gemm import TASKS, Facts, Matrices
from tensorbackend.primitives.matrix_unit import multiple

__all__ = ["is_short", "task_rows"]

RESULT, SIDE = 1 << 14, 32
"""Elements of a result, and its rows and columns, at least."""
STEPS, FEWER_STEPS, NEAR = 63, 24, 1 << 18
"""Steps of k at most, as in `gemm_short.c`; and where a result has no more elements than NEAR, or registers are few."""
ROWS, MOST_ROWS = 6, 60
"""Rows that are taken together, and rows of a task at most, as in `gemm_short.c`."""


def is_short(x: Matrices, facts: Facts) -> bool:
    """Whether a product is one of those, seen so that columns of the result lie side by side."""
    large = min(x.m, x.n) >= SIDE and x.m * x.n >= RESULT
    most = STEPS if x.m * x.n > NEAR and not facts.few_registers else FEWER_STEPS
    return large and x.batches == 1 and 0 < x.k <= most and x.plain_a and x.plain_b and x.sums[1] == 1


def task_rows(m: int) -> int:
    """Rows of a task, of m."""
    return min(multiple(-(-m // TASKS), ROWS), MOST_ROWS)
