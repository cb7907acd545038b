# SPDX-License-Identifier: Apache-2.0
"""Which products of matrices the processor's matrix unit computes, and in what parts.

Large products of float32 and halves are sums of products of planes of bfloat16 there (`kernels/c/gemm_amx.h`). As in
`gemm.py`, whose blocking this is, a cost model on the shape decides.
"""

from __future__ import annotations

from tensorbackend.primitives.gemm import FAR, LARGE, SIDE, Blocking, Facts, Matrices, even, least_cost, phase
from tensorbackend.primitives.matrix_unit import EDGE, multiple

__all__ = ["in_planes"]

UNIT_MULTIPLY, UNIT_START = 0.0013, 16000.0
"""Nanoseconds of a multiply-add of the matrix unit, and of what a pair of planes costs beside them."""
UNIT_COPY_NEAR, UNIT_COPY_FAR = 0.2, 0.28
"""Nanoseconds of copying one number of a plane, where all copies together are fewer than `FAR`, and where not."""
UNIT_FROM_MEMORY, UNIT_TO_MEMORY = 0.1, 1.0
"""Nanoseconds more of a number of a plane whose operand has more than `FAR`, and of a sum where there are more (half
of it where there are more than a quarter)."""
LEAST_K, LARGE_RESULT = EDGE * 3 // 2, FAR // 8
"""Steps of k at least for several planes where a result has more elements than that: sums take long to come and go."""
UNIT_PANEL = 49152
"""Numbers of a panel of b, of all its planes, that stay in the second-level cache beside the rows of a task."""
UNIT_ROWS, UNIT_COLUMNS = 256, 1024
"""Rows and columns of a task of the matrix unit at most."""
UNIT_TASKS = 8
"""Tasks of the matrix unit at least, where there are so many blocks."""
KEPT, KEPT_NARROW, KEPT_SIDE, KEPT_K = 1 << 18, 1 << 19, 128, 512
"""Where tasks of the matrix unit copy both operands: numbers at most of what is kept for several, and where all tasks
have all of the few rows or columns; how few those are; and steps of k that are used at a time."""
KEPT_MULTIPLY, KEPT_START, KEPT_COPY, KEPT_FROM_MEMORY = 0.00105, 55000.0, 0.12, 0.03
"""Nanoseconds of such tasks: of a multiply-add of a pair of planes; once a launch; of copying a number of a plane; and
more of one whose operand has more than `FAR`."""
KEPT_PIECES = 0.3
"""Nanoseconds more of a number of such an operand whose k is not along memory: a task then reads short pieces of it."""
PAIRS = {1: 1, 2: 4, 3: 6}
"""Products of planes that make one product."""


def in_planes(given: Matrices, planes: int, facts: Facts) -> Blocking | None:
    """The blocking of a product of so many planes on the matrix unit; None where multiply-adds take less time.

    That is decided for a result stored by rows, so that the bits of one that is not are the same.
    """
    large = planes > 1 and given.m * given.n > LARGE_RESULT
    if given.k < (LEAST_K if large else EDGE) or not given.batches:
        return None
    plain = given.stored_by_rows()
    if _cost_in_planes(plain, planes) > least_cost(plain, facts):
        return None
    x = given.swapped() if given.sums[1] != 1 and given.sums[0] == 1 else given
    if _may_keep(x, planes):
        return _kept_blocking(x, x is not given)
    in_place, (m, n, k) = _lies_in_blocks(x, planes), _in_blocks(x)
    block_k = min(UNIT_PANEL // (EDGE * planes) // EDGE * EDGE, k)
    phase_rows, phase_columns = m if in_place else min(m, SIDE), min(n, SIDE)
    copied, together = phase_columns + (0 if in_place else phase_rows), x.m * x.n * x.k < LARGE
    phase_k, round_ = phase(copied, k, block_k, x.batches if together else 1)
    rows, columns = _unit_task(m, n, round_)
    return Blocking(
        x is not given, max(round_, 1), 1, k, phase_k, block_k, phase_rows, phase_columns, rows, columns,
        EDGE, EDGE, not in_place, 0,
    )  # fmt: skip


def _in_blocks(x: Matrices) -> tuple[int, int, int]:
    """Rows, columns and steps of k, filled up to whole blocks of the unit."""
    return multiple(x.m, EDGE), multiple(x.n, EDGE), multiple(x.k, EDGE)


def _lies_in_blocks(x: Matrices, planes: int) -> bool:
    """Whether the unit can read the rows of a where they lie."""
    return planes == 1 and x.a[1] == 1 and x.m % EDGE == x.k % EDGE == 0


def _may_keep(x: Matrices, planes: int) -> bool:
    """Whether tasks of the matrix unit may copy both operands themselves: what several tasks need stays in cache."""
    m, n, k = _in_blocks(x)
    fits = k * m <= KEPT or (k * min(m, n) <= KEPT_NARROW and min(m, n) <= KEPT_SIDE)
    return fits and not _lies_in_blocks(x, planes)


def _cost_in_planes(x: Matrices, planes: int) -> float:
    """Nanoseconds of one batch on the matrix unit, on one thread."""
    m, n, k = _in_blocks(x)
    if _may_keep(x, planes):
        pieces = sum(size for size, step in ((m * k, x.a[1]), (n * k, x.b[0])) if size > FAR and step != 1)
        return _kept_cost(m, n, k, planes, x.batches) + pieces * KEPT_PIECES
    return _unit_cost(m, n, k, planes, _lies_in_blocks(x, planes), x.batches)


def _kept_blocking(x: Matrices, swap: bool) -> Blocking:
    """The blocking where tasks of the matrix unit copy both operands themselves."""
    m, n, k = _in_blocks(x)
    if min(m, n) <= KEPT_SIDE:
        part = _even_blocks(max(m, n), min(max(m, n) * x.batches // UNIT_TASKS, KEPT_SIDE))
        rows, columns = (part, n) if n <= m else (m, part)
    else:
        rows, columns = _unit_task(m, n, x.batches)
    return Blocking(
        swap, x.batches, 1, k, k, _even_blocks(k, KEPT_K), m, n, rows, columns, EDGE, EDGE, True, 0, columns, True,
    )  # fmt: skip


def _kept_cost(m: int, n: int, k: int, planes: int, batches: int) -> float:
    """Nanoseconds of one batch where tasks copy both operands, on one thread."""
    copies = (m + n) * k * KEPT_COPY + _of_far(m, n, k) * KEPT_FROM_MEMORY
    return m * n * k * PAIRS[planes] * KEPT_MULTIPLY + copies * planes + _storing(m, n) + KEPT_START / batches


def _unit_cost(m: int, n: int, k: int, planes: int, in_place: bool, batches: int) -> float:
    """Nanoseconds of one batch where copies are shared, on one thread."""
    pairs = PAIRS[planes]
    copies = (n + (0 if in_place else m)) * k * planes
    each = UNIT_COPY_NEAR if copies < FAR else UNIT_COPY_FAR
    waits = _of_far(m, n, k) * planes * UNIT_FROM_MEMORY
    return m * n * k * pairs * UNIT_MULTIPLY + copies * each + waits + _storing(m, n) + pairs * UNIT_START / batches


def _of_far(m: int, n: int, k: int) -> int:
    """The numbers of the operands that are in no cache."""
    return sum(operand for operand in (m * k, n * k) if operand > FAR)


def _storing(m: int, n: int) -> float:
    """Nanoseconds of the sums of the matrix unit on their way to memory, or to a cache that other cores share."""
    return m * n * UNIT_TO_MEMORY * (1 if m * n > FAR else 0.5 if m * n > FAR // 4 else 0)


def _unit_task(m: int, n: int, batches: int) -> tuple[int, int]:
    """Rows and columns of a task of the matrix unit."""
    rows, columns = _even_blocks(m, UNIT_ROWS), _even_blocks(n, UNIT_COLUMNS)
    while rows * columns * UNIT_TASKS > m * n * batches and max(rows, columns) > EDGE:
        if columns >= rows:
            columns = _even_blocks(columns, columns // 2)
        else:
            rows = _even_blocks(rows, rows // 2)
    return rows, columns


def _even_blocks(length: int, most: int) -> int:
    """Equal parts of a length, each of whole blocks of the matrix unit, and about `most` at most."""
    return multiple(even(length, max(most, EDGE)), EDGE)
