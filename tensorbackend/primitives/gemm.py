# SPDX-License-Identifier: Apache-2.0
"""How a product of matrices is computed on the CPU: which operand is copied, tiles, blocks, segments of k.

A cost model on the shape decides, never the number of threads or a clock, so that results repeat bit for bit. The loops
are those of `kernels/c/gemm.c`, whose names the fields here have.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Blocking", "Facts", "Matrices", "choose"]

BLOCK_K = 768
"""Steps of k for which a block of rows stays in the second-level cache."""
DOT_K = 512
"""Elements of a row that the dots of a narrow type widen at a time, as in gemm.c."""
ROWS_IN_CACHE = 128
"""Rows of a task: with `BLOCK_K` float32 numbers each they take a part of the second-level cache."""
COPIED = 1 << 22
"""Elements that are copied together at most, about."""
SIDE = 4096
"""Rows and columns that are copied together at most."""
TASKS = 32
"""Tasks that a product is cut into, about, unless they would be too small or too large."""
LEAST_TASK, MOST_TASK = 1 << 19, 1 << 25
"""Multiply-adds of a task."""
SEGMENTS = 16
"""Segments of k at most, which tasks share where there are few rows and columns."""
LEAST_SEGMENT = 4096
FEW_TILES = 8
"""Tiles below which a long k is cut into segments."""
FEW_COLUMNS = 4
"""Columns up to which sums run along k."""
COPY_FROM = 3
"""Panels of b, or tiles of a, from which on a copy of an operand whose lines are far apart pays."""
LARGE = 1 << 25
"""Multiply-adds of a product from which on a batch is a round of its own."""


@dataclass(frozen=True)
class Facts:
    """What a compiled gemm.c has: `lanes` of a vector, `rows[v - 1]` the most rows of a tile of v vectors (0: none)."""

    lanes: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Matrices:
    """A product: lengths, strides in elements of a (row, k), b (k, column) and the sums (row, column).

    `plain_a`, `plain_b`: whether an operand is stored in the type in which products add up.
    """

    m: int
    n: int
    k: int
    batches: int
    a: tuple[int, int]
    b: tuple[int, int]
    sums: tuple[int, int]
    plain_a: bool = True
    plain_b: bool = True

    def swapped(self) -> Matrices:
        """The same product seen as (b' a')': rows and columns change places."""
        a, b, c = self.a, self.b, self.sums
        return Matrices(self.n, self.m, self.k, self.batches, b[::-1], a[::-1], c[::-1], self.plain_b, self.plain_a)


@dataclass(frozen=True)
class Blocking:
    """How a product is computed; `swap` says that rows and columns change places first.

    `round_` batches are computed together, k in `splits` segments of `split_k`, of which `phase_k` steps are copied and
    `block_k` used at a time. A task takes `task_rows` by `task_columns`, a tile `tile_rows` by `panel` (1: dots).
    `phase_rows` of a are copied together if `pack_a`, and of `phase_columns` of b those from column `pack_b` on.
    """

    swap: bool
    round_: int
    splits: int
    split_k: int
    phase_k: int
    block_k: int
    phase_rows: int
    phase_columns: int
    task_rows: int
    task_columns: int
    tile_rows: int
    panel: int
    pack_a: bool
    pack_b: int


def choose(given: Matrices, facts: Facts, may_swap: bool = True) -> Blocking:
    """The blocking of a product."""
    swap = may_swap and _nanoseconds(given.swapped(), facts) < _nanoseconds(given, facts)
    x = given.swapped() if swap else given
    dots = _takes_dots(x)
    panel, tile_rows = (1, 4) if dots else _tile(x, facts)
    pack_a, pack_b = _copies_a(x, panel, dots), _first_copied(x, tile_rows, panel, dots)
    splits, split_k = _segments(x, tile_rows, panel)
    block_k = min(max(split_k, 1), BLOCK_K) if not dots else max(split_k, 1) if x.plain_a else DOT_K
    phase_rows = _multiple(min(x.m, SIDE), tile_rows) if pack_a else max(x.m, 1)
    phase_columns = _multiple(min(x.n, SIDE), panel)
    round_ = x.batches if x.m * x.n * x.k < LARGE else 1
    copied = (phase_rows if pack_a else 0) + max(min(x.n, phase_columns) - pack_b, 0)
    phase_k, round_ = _phase(copied * splits, split_k, block_k, round_)
    rows, columns = _task(x, tile_rows, panel, splits, min(round_, x.batches), pack_a)
    return Blocking(
        swap, max(round_, 1), splits, split_k, phase_k, block_k, phase_rows, phase_columns, rows, columns, tile_rows,
        panel, pack_a, pack_b,
    )  # fmt: skip


def _multiple(length: int, of: int) -> int:
    """The least multiple of a number that is at least 1 and `length`."""
    return -(-max(length, 1) // of) * of


def _takes_dots(x: Matrices) -> bool:
    return x.n <= FEW_COLUMNS and (x.a[1] == 1 or x.k == 1)


def _tile(x: Matrices, facts: Facts) -> tuple[int, int]:
    """Columns and rows of a tile: as few tiles as there can be, of equal height."""
    vectors = 1 if x.n <= facts.lanes else 2 if x.n <= 2 * facts.lanes else 4
    most = facts.rows[vectors - 1]
    tiles = max(-(-x.m // most), 1)
    return vectors * facts.lanes, max(-(-x.m // tiles), 1)


def _copies_a(x: Matrices, panel: int, dots: bool) -> bool:
    """Whether a is copied: it must be widened, or its rows are no lines of memory and it is read several times."""
    if dots:
        return False
    return not x.plain_a or (x.a[1] != 1 and x.n >= COPY_FROM * panel) or 1 not in x.a


def _first_copied(x: Matrices, tile_rows: int, panel: int, dots: bool) -> int:
    """The first column of b that is copied: none where columns lie side by side, but the last panel if not full."""
    if dots:
        return x.n if x.plain_b and (x.b[0] == 1 or x.k == 1) else 0
    in_place = x.plain_b and x.b[1] == 1 and (x.m < COPY_FROM * tile_rows or x.b[0] == panel)
    return x.n // panel * panel if in_place else 0


def _segments(x: Matrices, tile_rows: int, panel: int) -> tuple[int, int]:
    """How many segments k has, and their length."""
    tiles = -(-x.m // tile_rows) * -(-x.n // panel) * x.batches
    if tiles >= FEW_TILES or x.batches != 1 or x.k < 2 * LEAST_SEGMENT:
        return 1, max(x.k, 1)
    length = _multiple(max(-(-x.k // SEGMENTS), LEAST_SEGMENT), BLOCK_K * 4)
    return -(-x.k // length), length


def _phase(copied: int, split_k: int, block_k: int, round_: int) -> tuple[int, int]:
    """Steps of k that are copied together, and batches of a round."""
    if not copied:
        return split_k, round_
    round_ = max(min(round_, COPIED // (copied * split_k)), 1)
    steps = COPIED // (copied * round_)
    return min(split_k, max(steps // block_k, 1) * block_k), round_


def _task(x: Matrices, tile_rows: int, panel: int, splits: int, batches: int, pack_a: bool) -> tuple[int, int]:
    """Rows and columns of a task."""
    k = max(x.k // splits, 1)
    wanted = min(max(x.m * x.n * k * splits * batches // TASKS, LEAST_TASK), MOST_TASK)
    rows = min(_multiple(x.m, tile_rows), max(ROWS_IN_CACHE // tile_rows, 1) * tile_rows)
    columns = wanted // max(rows * k, 1) // panel * panel
    if columns >= panel:
        return rows, min(columns, _multiple(x.n, panel))
    rows = max(wanted // (panel * k) // tile_rows, 1) * tile_rows
    return min(rows, _multiple(x.m, tile_rows)), panel


def _nanoseconds(x: Matrices, facts: Facts) -> float:
    """A rough estimate of one thread's time, to compare the two ways to see a product."""
    stored = x.m * x.n * (0.05 if x.sums[1] == 1 else 1.5)
    if _takes_dots(x):
        widened = 0 if x.plain_a else x.m * x.k * 0.3
        return x.m * x.n * x.k * 0.02 + (x.n - _first_copied(x, 1, 1, True)) * x.k + stored + widened
    panel, tile_rows = _tile(x, facts)
    columns = _multiple(x.n, facts.lanes)
    idle = 8 / min(8, tile_rows * panel // facts.lanes)  # sums to work on while others are under way
    copied = (x.m * x.k if _copies_a(x, panel, False) else 0) + (x.n - _first_copied(x, tile_rows, panel, False)) * x.k
    return x.m * columns * x.k * 0.2 / facts.lanes * idle + copied * 0.7 + stored
