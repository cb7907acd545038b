# SPDX-License-Identifier: Apache-2.0
"""How a product of matrices is computed on the CPU: which operand is copied, tiles, blocks, segments of k.

A cost model on the shape decides, never the number of threads or a clock, so that results repeat bit for bit. The loops
are those of `kernels/c/gemm.c`, whose names the fields here have. What a matrix unit computes is `gemm_planes.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from tensorbackend.primitives.matrix_unit import multiple

__all__ = ["Blocking", "Facts", "Matrices", "choose", "even", "kinds_of_tiles", "least_cost", "phase"]

BLOCK_K = 1024
"""Steps of k for which a block of rows stays in the second-level cache."""
STREWN_K, STREWN_SEGMENTS = 256, 4
"""The same where b is used in place and its lines are far apart; and segments of k then, at most."""
ONE_PANEL = 1 << 18
"""Elements of a panel of b, if it is the only one, that stay in the second-level cache."""
SHORT_K = 32
"""Steps of k up to which a product takes the time that its result takes to be written."""
DOT_K, DOT_PANEL = 512, 1 << 16
"""Elements of a row that the dots of a narrow type widen at a time, as in gemm.c; and of all columns of b, if there are
several, that stay in the second-level cache beside the rows."""
ROWS_IN_CACHE = 128
"""Rows of a task: with `BLOCK_K` float32 numbers each they take a part of the second-level cache."""
COPIED = 1 << 22
"""Elements that are copied together at most, about."""
NEAR, FAR = 1 << 16, 1 << 22
"""Elements of an operand up to which it stays in the second-level cache wherever it lies, and from which on in none."""
ONE_SET, WAYS, ONE_FAR_SET, FAR_WAYS = 1 << 10, 8, 1 << 15, 6
"""Where rows lie a multiple of so many elements apart, their lines compete for one set of the first-level cache, and of
the second, into which lines come ahead: the rows that a tile reads in place then."""
NEAREST = 1 << 13
"""Elements that stay in the first-level cache."""
ONE_PART = 128
"""Lines that lie a multiple of so many elements apart share a part of the second-level cache that holds too few."""
OWN_K, OWN_COPY, OWN_ROWS = 576, 1 << 17, 1024
"""Where tasks copy b themselves: steps of k, elements of the columns of a task, and rows, at most."""
UNIT_OWN_K = 288
"""Such steps of k on processors with a matrix unit, whose cores look less far ahead: two panels are then copied at a
time, which takes 0.92 of the time (35 x 8457 x 1760)."""
FEW_OWN_K = 200
"""Such steps of k for up to `LONGER_ROWS` rows with 16 registers: longer pieces of the rows of b, all of a task's
copied at once, take 0.84 of the time (35 x 8457 x 1760; 64 x 2560 x 2560 0.95)."""
TOGETHER = 1 << 15
"""Elements of such a copy that a task makes before it uses them, while lines of the next ones come: as many stay in
cache beside the rows, and half as many would come from memory in pieces that are too short."""
MANY_ROWS, OWN_COLUMNS, OWN_LEAST = 96, 2, 1024
"""Rows from which on each number of such a copy is used so often that columns need only be so many times as many, and
enough for some tasks."""
THIN_ROWS, THIN_SUMS, THIN_LANES = 48, 1 << 20, 8
"""Rows and sums at most of a product that reads a b of no cache in place, a segment of k a task; lanes at least."""
LONGER_ROWS, LONGER_K = 64, 16
"""Rows of one at most, and more steps of k for each than that, whose b may be in the cache that cores share."""
THIN_BLOCK, THIN_K, THIN_SEGMENT, THIN_COLUMNS, THIN_TASKS = 1 << 16, 128, 640, 256, 16
"""Elements of b that it uses at a time, about, and steps of k of these at most; steps of k at least, and of a segment
(half as many where b may be in a cache); columns of a task at least, and tasks, about."""
LONG, LONG_K, LONG_SIDE, LONG_COLUMNS, LONG_SUMS = 1 << 19, 8, 32, 512, 1 << 18
"""Of a product whose long k is cut into segments with their own copies: elements of both operands, steps of k for each
of its rows and columns, and rows and columns at least; columns and sums at most."""
SIDE = 4096
"""Rows and columns that are copied together at most."""
LEAST_ROWS, NEAR_ROWS = 48, 24
"""Rows of a task at least, where there are so many: a panel of b that was fetched should be used more than once; and
fewer where b stays in cache."""
TASKS = 32
"""Tasks that a product is cut into, about, unless they would be too small or too large."""
LEAST_TASK, MOST_TASK = 1 << 17, 1 << 25
"""Multiply-adds of a task."""
SEGMENTS = 16
"""Segments of k at most, which tasks share where there are few rows and columns."""
LEAST_SEGMENT = 4096
TURNED_K = 16
"""Steps of k that are turned at a time as they are copied."""
SMALL_TASKS, SMALL_TASK = 4, 1 << 20
"""Tasks of a small product at least, and multiply-adds from which on there are more of them."""
AGAIN = 0.1
"""Nanoseconds more of reading a number of a once more, on a processor with `quick_sums`."""
FEW_TILES = 8
"""Tiles below which a long k is cut into segments."""
FEW_COLUMNS, MOST_DOTS = 4, 8
"""Columns up to which a is read in the order of memory, by dots or sweeps (`kernels/c/gemm_few.h`); and by dots where
so many fill but half a vector."""
DOT_ROWS = {1: 8, 2: 8, 4: 6, 8: 3}
"""Rows that dots of so many columns, or fewer, take at a time, at most."""
DOT_TASKS, DOT_TASK = 16, 1 << 14
"""Tasks of dots with several columns, about, since all of b comes by in each; and multiply-adds of one at least."""
SWEEP_ROWS = 4096
"""Rows of a sweep at most: their sums wait in the first-level cache."""
SWEEPS, SWEEP_K = 16, 256
"""Tasks of sweeps, about, and steps of k of one at least."""
COPYING = 2000.0
"""Nanoseconds of starting copies, whatever their size."""
LINE = 5.0
"""Nanoseconds more for a line of b, as it is copied, that does not fill its panel."""
DOT = 5.0
"""Nanoseconds of adding up the lanes of a dot."""
OWN_LINES = 0.25
"""Nanoseconds of copying one number of b, whose columns lie side by side, in the task that uses it."""
CYCLE = 0.4
"""Nanoseconds of a cycle, about."""
LARGE = 1 << 25
"""Multiply-adds of a product from which on a batch is a round of its own."""


@dataclass(frozen=True)
class Facts:
    """What a compiled gemm.c has: `lanes` of a vector, `rows[v - 1]` the most rows of a tile of v vectors (0: none).

    `matrix_unit`: the processor has one that gemm_amx.h knows. `half_rows`: the most rows of a tile of half a vector of
    columns (0: none). `quick_sums`: vectors of sums from which on tiles have loops for known strides, on processors
    that begin two multiply-adds a cycle and little else, where those take less time (0: elsewhere).
    """

    lanes: int
    rows: tuple[int, ...]
    matrix_unit: bool = False
    half_rows: int = 0
    quick_sums: int = 0

    @property
    def few_registers(self) -> bool:
        """Whether vectors have 16 registers, not 32: tiles have fewer sums."""
        return max(rows * vectors for vectors, rows in enumerate(self.rows, start=1)) < 16


TILES = "half", "one", "wide"
"""Kinds of tiles of gemm_tiles.c: of half a vector of columns, of one, of more. Each is compiled by itself."""


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

    def stored_by_rows(self) -> Matrices:
        """The same product with its sums where a new result has them."""
        return replace(self, sums=(1 if self.m == 1 else self.n, 1))


@dataclass(frozen=True)
class Blocking:
    """How a product is computed; `swap` says that rows and columns change places first.

    `round_` batches are computed together, k in `splits` segments of `split_k`, of which `phase_k` steps are copied and
    `block_k` used at a time. A task takes `task_rows` by `task_columns`, a tile `tile_rows` by `panel` (1: gemm_few.h).
    `phase_rows` of a are copied together if `pack_a`, and of `phase_columns` of b those from column `pack_b` on; with
    `own` a task copies the columns that it takes itself, so many before it uses them; with `own_a` its rows. What other
    tasks need, too, is kept for the next one.
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
    own: int = 0
    own_a: bool = False


class _Way(NamedTuple):
    """One way to compute a product: a rough `cost` of it in nanoseconds of one thread, and what is decided."""

    cost: float
    swap: bool
    panel: int
    tile_rows: int
    pack_a: bool
    pack_b: bool
    own: bool = False


def choose(given: Matrices, facts: Facts, may_swap: bool = True) -> Blocking:
    """The blocking of a product: of all ways, the one that should take least time.

    The order in which a sum adds up its products is that of a result stored by rows, wherever this one goes.
    """
    plain = given.stored_by_rows()
    if [step == 1 for step in plain.sums] == [step == 1 for step in given.sums]:
        return _blocking(given, min(_all_ways(given, facts, may_swap)), facts)
    wanted = _blocking(plain, min(_all_ways(plain, facts, may_swap)), facts)
    order = _order(plain, wanted)
    found = (_blocking(given, way, facts) for way in sorted(_all_ways(given, facts, may_swap)))
    return next((by for by in found if _order(given, by) == order), wanted)


def kinds_of_tiles(x: Matrices, by: Blocking, facts: Facts) -> list[str]:
    """Which of `TILES` a product by multiply-adds needs (`x` as it is computed)."""
    kinds = set()
    for width in (by.panel if x.n >= by.panel > 1 else 0, x.n % by.panel):
        half = facts.half_rows > 0 and width == facts.lanes // 2
        if half:
            kinds.add("half")
        if width and (not half or by.tile_rows > facts.half_rows):
            kinds.add("wide" if width > facts.lanes else "one")
    return [kind for kind in TILES if kind in kinds]


def _order(given: Matrices, by: Blocking) -> tuple[str, int, int]:
    """What adds up, since sweeps round products and tiles do not; the steps of k that it adds up by themselves, and of
    these again."""
    x = given.swapped() if by.swap else given
    dots = "pairs" if _pairs(x) else "dots"
    return "tiles" if by.panel > 1 else dots if x.a[1] == 1 else "sweeps", by.split_k, by.block_k


def _pairs(x: Matrices) -> bool:
    """Whether dots of several columns are made together, with one vector of sums each, not two."""
    return x.n > 1 and x.m > (3 if x.n <= FEW_COLUMNS else 1)


def _blocking(given: Matrices, way: _Way, facts: Facts) -> Blocking:
    """All that a way decides."""
    x = given.swapped() if way.swap else given
    panel, tile_rows, pack_a = way.panel, way.tile_rows, way.pack_a
    pack_b = 0 if way.pack_b else _columns_in_place(x, panel, tile_rows, facts)
    if way.own:
        return _own_blocking(x, way, facts)
    if not way.pack_b and _is_thin(x, facts):
        return _thin_blocking(x, way, pack_b)
    splits, split_k = _sweep_segments(x, tile_rows) if panel == 1 and x.a[1] != 1 else _segments(x, tile_rows, panel)
    strewn = panel > 1 and not way.pack_b and _strewn(x, panel, facts)
    if strewn and splits == 1:
        splits, split_k = _strewn_segments(x, panel)
    block_k = even(split_k, STREWN_K if strewn and x.sums[1] == 1 else BLOCK_K)
    if x.n <= panel and not pack_a:  # rows of a are read once, in one go
        block_k = even(split_k, ONE_PANEL // panel)
    if panel == 1:
        block_k = _few_steps(x, split_k) if x.plain_a else DOT_K
    alone = block_k >= split_k or (facts.quick_sums > 0 and splits == 1 and way.pack_b)  # then in phases of block_k
    # Less is near for everybody, and segments are longer; what a task keeps of its rows is of one segment.
    own_a = pack_a and alone and splits == 1 and x.m * x.k > NEAR
    phase_rows = multiple(min(x.m, SIDE), tile_rows) if pack_a and not own_a else max(x.m, 1)
    phase_columns = multiple(min(x.n, SIDE), panel)
    round_ = x.batches if x.m * x.n * x.k < LARGE else 1
    copied = (phase_rows if pack_a and not own_a else 0) + max(min(x.n, phase_columns) - pack_b, 0)
    phase_k, round_ = phase(copied * splits, split_k, block_k, round_)
    phase_k = block_k if own_a else phase_k
    steps = min(phase_k, split_k)  # of a task
    work = x.m * x.n * steps * splits * min(round_, x.batches) // (TASKS // 2 if strewn else TASKS)
    rows, columns = _task(x, tile_rows, panel, steps, min(max(work, LEAST_TASK), MOST_TASK))
    rows = _evenly(-(-x.m // tile_rows), rows // tile_rows) * tile_rows if own_a else rows
    return Blocking(
        way.swap, max(round_, 1), splits, split_k, phase_k, block_k, phase_rows, phase_columns, rows, columns,
        tile_rows, panel, pack_a, pack_b, 0, own_a,
    )  # fmt: skip


def _few_steps(x: Matrices, split_k: int) -> int:
    """Steps of k that few columns take at a time: dots of several, as many as stay in cache."""
    return even(split_k, DOT_PANEL // x.n) if _several_dots(x) else split_k


def _several_dots(x: Matrices) -> bool:
    """Whether few columns, but more than one, are dots with the rows of a."""
    return x.n > 1 and x.a[1] == 1


def _is_thin(x: Matrices, facts: Facts) -> bool:
    """Whether tasks should read long pieces of the rows of b where they lie, and a segment of k each.

    Short pieces that are far apart are read at a fraction of the speed of memory. Tiles must be wide for that.
    """
    if facts.few_registers or facts.lanes < THIN_LANES:
        return False
    few = x.m * x.n <= THIN_SUMS and x.batches == 1 and x.n >= THIN_COLUMNS and x.k >= THIN_SEGMENT
    far = x.m <= THIN_ROWS and x.n * x.k > FAR
    longer = x.m <= LONGER_ROWS and x.n * x.k > FAR // 4 and x.k > LONGER_K * x.m
    return few and (far or longer) and x.plain_b and x.b[1] == 1


def _thin_blocking(x: Matrices, way: _Way, pack_b: int) -> Blocking:
    """The blocking of such a product: all rows a task, and the columns in as many pieces as make enough tasks."""
    least = THIN_SEGMENT if x.n * x.k > FAR else THIN_SEGMENT // 2
    segments = min(1 << (x.k // least).bit_length() - 1, SEGMENTS)  # threads share a power of two evenly
    split_k = multiple(-(-x.k // segments), TURNED_K)
    splits = -(-x.k // split_k)
    pieces = max(min(THIN_TASKS // splits, x.n // THIN_COLUMNS), 1)
    block_k = even(split_k, min(max(THIN_BLOCK * pieces // x.n, THIN_K // 2), THIN_K))
    rows = multiple(x.m, way.tile_rows)
    phase_columns = multiple(x.n if pack_b == x.n else min(x.n, SIDE), way.panel)
    copied = (rows if way.pack_a else 0) + max(min(x.n, phase_columns) - pack_b, 0)
    phase_k, _ = phase(copied * splits, split_k, block_k, 1)
    return Blocking(
        way.swap, 1, splits, split_k, phase_k, block_k, rows if way.pack_a else x.m, phase_columns,
        rows, multiple(-(-x.n // pieces), way.panel), way.tile_rows, way.panel, way.pack_a, pack_b,
    )  # fmt: skip


def _own_blocking(x: Matrices, way: _Way, facts: Facts) -> Blocking:
    """The blocking where each task copies the columns of b that it takes."""
    if _is_long(x):
        return _long_blocking(x, way)
    if _is_small(x):
        return _small_blocking(x, way)
    few = facts.few_registers and x.m <= LONGER_ROWS and x.b[1] == 1
    block_k = even(x.k, FEW_OWN_K if few else UNIT_OWN_K if facts.matrix_unit else OWN_K)
    most, tasks = (TOGETHER, TASKS // 2) if few else (OWN_COPY, TASKS)
    columns = max(min(most // block_k, x.n // tasks) // way.panel, 1) * way.panel
    rows = multiple(x.m, way.tile_rows)
    return Blocking(
        way.swap, 1, 1, x.k, multiple(x.k, block_k), block_k, rows if way.pack_a else x.m, multiple(x.n, way.panel),
        rows, columns, way.tile_rows, way.panel, way.pack_a, 0,
        _copied_columns(columns, block_k, way.panel, _together(x, facts)),
    )  # fmt: skip


def _copied_columns(columns: int, block_k: int, panel: int, together: int = TOGETHER) -> int:
    """Of the columns that a task takes, those that it copies before it uses them: about so many elements."""
    return min(max(together // block_k // panel, 1) * panel, columns)


def _together(x: Matrices, facts: Facts) -> int:
    """Elements of b that a task copies before it uses them: all, where pieces would begin and end within lines."""
    within = x.b[1] == 1 and x.b[0] % facts.lanes != 0
    return OWN_COPY if within and facts.quick_sums else TOGETHER


def _may_own(x: Matrices, facts: Facts) -> bool:
    """Whether tasks may copy b themselves: few rows, of which a copy stays in cache, and more of b than does."""
    if _is_thin(x, facts):
        return False
    many = x.m >= MANY_ROWS and x.n >= OWN_LEAST
    columns, size = (OWN_COLUMNS, FAR // 16) if many else (TASKS, FAR // 2)
    wide = x.m <= OWN_ROWS and x.m * x.k <= COPIED and x.n * x.k > size and x.n >= columns * x.m
    return wide or _is_long(x) or _is_small(x)


def _is_small(x: Matrices) -> bool:
    """Whether b stays in cache, so that a copy of each task costs less than it takes to wait for a shared one."""
    return LONG_SIDE <= x.m <= OWN_ROWS and x.n >= LONG_SIDE and 0 < x.n * x.k <= NEAR


def _small_blocking(x: Matrices, way: _Way) -> Blocking:
    """The blocking of a small product, a panel of columns a task, and a part of the rows where there are few panels.

    Tasks with the same panel are neighbours, and its copy stays for the next one.
    """
    panels, work = max(-(-x.n // way.panel) * x.batches, 1), x.m * way.panel * x.k
    parts = max(min(TASKS // panels, work // SMALL_TASK), _row_parts(x, way.panel))
    rows, columns = multiple(even(x.m, -(-x.m // parts)), way.tile_rows), multiple(x.n, way.panel)
    block_k = even(x.k, BLOCK_K)
    return Blocking(
        way.swap, x.batches, 1, x.k, multiple(x.k, block_k), block_k, x.m, columns, rows, way.panel, way.tile_rows,
        way.panel, False, 0, way.panel,
    )  # fmt: skip


def _row_parts(x: Matrices, panel: int) -> int:
    """Tasks that the rows of a small product are cut into at least, and so copies of a panel at most."""
    return 1 if -(-x.n // panel) * x.batches >= SMALL_TASKS else 2


def _is_long(x: Matrices) -> bool:
    """Whether k is so long beside rows and columns that a task should take a segment of it, and all of these."""
    far = (x.m + x.n) * x.k > LONG and x.batches == 1
    fits = min(x.m, x.n) >= LONG_SIDE and x.m * x.n <= LONG_SUMS and x.n <= LONG_COLUMNS
    return far and fits and x.k >= LONG_K * max(x.m, x.n)


def _long_blocking(x: Matrices, way: _Way) -> Blocking:
    """The blocking of a long k, of which each task has a segment, all rows and all columns."""
    rows, columns = multiple(x.m, way.tile_rows), multiple(x.n, way.panel)
    split_k = multiple(-(-x.k // min(multiple(-(-x.k // BLOCK_K), 4), SEGMENTS)), TURNED_K)
    block_k = multiple(even(split_k, BLOCK_K), TURNED_K)
    return Blocking(
        way.swap, 1, -(-x.k // split_k), split_k, split_k, block_k, x.m, columns, rows, columns, way.tile_rows,
        way.panel, False, 0, _copied_columns(columns, block_k, way.panel),
    )  # fmt: skip


def least_cost(given: Matrices, facts: Facts) -> float:
    """Nanoseconds of one thread, roughly, of the best way to compute a product by multiply-adds."""
    return min(_all_ways(given, facts)).cost


def _all_ways(given: Matrices, facts: Facts, may_swap: bool = True) -> Iterator[_Way]:
    """All ways to compute a product by multiply-adds, seen from both sides."""
    return (way for swap in (False, True)[: 1 + may_swap] for way in _ways(given, swap, facts))


def _ways(given: Matrices, swap: bool, facts: Facts) -> Iterator[_Way]:
    """All ways to compute a product, seen one way round."""
    x = given.swapped() if swap else given
    stored = x.m * x.n * (0.05 if x.sums[1] == 1 else 1.5)
    dots = x.a[1] == 1
    if 1 in x.a and x.n <= FEW_COLUMNS or dots and x.n <= min(MOST_DOTS, facts.lanes // 2) and x.k >= facts.lanes:
        pack_b = not x.plain_b or (dots and x.b[0] != 1)
        cost = (0.02 * x.n + (0.04 if x.plain_a else 0.3)) * x.m * x.k + pack_b * x.n * x.k + stored
        cost += DOT * x.m * x.n if dots else 0
        yield _Way(cost, swap, 1, _dot_rows(x) if dots else min(multiple(x.m, 128), SWEEP_ROWS), False, pack_b)
    for vectors, most in enumerate(facts.rows, start=1):
        panel = vectors * facts.lanes
        for pack_a, cost_a in _costs_of_a(x, panel, facts) if most else ():
            height = _height(x, vectors, pack_a, facts)
            for pack_b, cost_b in _costs_of_b(x, height, panel, facts):
                cost = cost_a + cost_b + stored + _multiplying(x, vectors, height, pack_a, pack_b, facts)
                yield _Way(cost * _waiting(x, panel), swap, panel, height, pack_a, pack_b)
            if _may_own(x, facts) and not ((_is_long(x) or _is_small(x)) and pack_a):
                copies = (1 + _row_parts(x, panel)) / 2 if _is_small(x) else 1
                own = copies * x.n * x.k * (OWN_LINES if x.b[1] == 1 else _copying(x.b))
                cost = cost_a + stored + _multiplying(x, vectors, height, pack_a, True, facts)
                yield _Way((cost + own) * _waiting(x, panel), swap, panel, height, pack_a, True, True)


def _dot_rows(x: Matrices) -> int:
    """Rows that dots take at a time."""
    return next(rows for columns, rows in DOT_ROWS.items() if x.n <= columns)


def _waiting(x: Matrices, panel: int) -> float:
    """How much longer an odd number of panels takes, where there are few rows: the last has no other beside it."""
    panels = -(-x.n // panel)
    return (panels + panels % 2) / panels if x.m <= LEAST_ROWS and panels > 2 else 1


def _costs_of_a(x: Matrices, panel: int, facts: Facts) -> list[tuple[bool, float]]:
    """Whether to copy a: it must be widened, or is read so often, few numbers of a line at a time, that a copy pays.

    Or because tiles of copies take less time, where that counts.
    """
    entries, passes, far = x.m * x.k, -(-x.n // panel), x.m * x.k > FAR
    copied = entries * ((0.8 if far else 0.5) if 1 in x.a else 1.5)
    if not x.plain_a:
        return [(True, copied)]
    each = 0.01 if x.a[1] == 1 else 0.02 if entries <= NEAR else 1.7 if far else 0.45
    again = AGAIN * (passes - 1) if facts.quick_sums and entries > NEAR else 0
    return _either(entries * (each * passes + again), copied, facts)


def _either(in_place: float, copied: float, facts: Facts) -> list[tuple[bool, float]]:
    """Whether to copy an operand, and its cost: both, where tiles take different times, else the cheaper."""
    both = [(False, in_place), (True, copied)]
    return both if facts.quick_sums else [both[copied < in_place]]


def _costs_of_b(x: Matrices, height: int, panel: int, facts: Facts) -> list[tuple[bool, float]]:
    """Whether to copy b; only columns side by side can stay where they are, but for a last panel that no tile fits."""
    entries, passes = x.n * x.k, -(-x.m // height)
    far = 2 if entries > FAR else 1
    start = COPYING / max(x.batches, 1) + (LINE * x.k if x.n % panel else 0)
    copied = entries * (_copying(x.b) + 0.15 * far) + start
    if not x.plain_b or x.b[1] != 1:
        return [(True, copied)]
    if _is_copy(x, panel) and _columns_in_place(x, panel, height, facts) == x.n:
        return [(False, 0.0)]
    aligned = x.b[0] % facts.lanes == 0  # else vectors lie in two cache lines each, and a panel in one more
    if _strewn(x, panel, facts):
        again = 0.06 if facts.few_registers and panel == 4 * facts.lanes else 0.02  # of its sums two rows fit, no more
        in_place = entries * (far * 6 / panel * (1 if aligned else 1 + facts.lanes / panel) + again * passes)
    else:
        cheap = height * x.k <= NEAREST if entries > NEAR else aligned
        in_place = entries * (0.004 if cheap else 0.01) * passes
    in_place += start if _columns_in_place(x, panel, height, facts) < x.n else 0
    return _either(in_place, copied, facts)


def _copying(strides: tuple[int, int]) -> float:
    """Nanoseconds of copying one number of b."""
    return 0.4 if strides[1] == 1 else 0.3 if strides[0] == 1 else 1.5


def _columns_in_place(x: Matrices, panel: int, height: int, facts: Facts) -> int:
    """The columns of b that tiles can read where they lie: full panels, and a last one that is as wide as a tile."""
    rest, lanes = x.n % panel, facts.lanes
    half = rest == lanes // 2 and height <= facts.half_rows
    fits = not rest or half or (rest % lanes == 0 and facts.rows[rest // lanes - 1] >= height)
    return x.n if fits else x.n - rest


def _strewn(x: Matrices, panel: int, facts: Facts) -> bool:
    """Whether the lines of a panel of b lie far apart in memory that no cache holds."""
    return x.n * x.k > NEAR and x.b[0] != panel and not _is_copy(x, panel) and not _is_held(x, facts)


def _is_held(x: Matrices, facts: Facts) -> bool:
    """Whether b is held by caches in which its lines do not compete for a few sets, and a row of a panel is lines.

    With 16 registers it is one line: copied, a product takes 0.8 to 0.9 of the time (512 x 196 x 512 0.7).
    """
    return not facts.few_registers and NEAR < x.n * x.k <= FAR // 4 and x.b[0] % ONE_PART != 0


def _is_copy(x: Matrices, panel: int) -> bool:
    """Whether b lies as a copy of its only panel would."""
    return x.n <= panel and x.b == (x.n, 1)


def even(length: int, most: int) -> int:
    """The length of equal parts, of which none is longer than `most`."""
    return -(-length // -(-length // most))


def _panels(x: Matrices, vectors: int, facts: Facts) -> list[tuple[int, int]]:
    """How many panels there are of which width, in vectors: full ones, and what is left."""
    full, rest = divmod(-(-max(x.n, 1) // facts.lanes), vectors)
    rest = next(v for v in range(rest, vectors + 1) if not v or facts.rows[v - 1])
    return [(count, width) for count, width in ((full, vectors), (1, rest)) if count and width]


def _height(x: Matrices, vectors: int, pack_a: bool, facts: Facts) -> int:
    """Rows of a tile: as few tiles as there can be, of equal height, which all panels have."""
    most = min(facts.rows[width - 1] for _, width in _panels(x, vectors, facts))
    if not pack_a and x.a[1] == 1 and x.a[0] % ONE_SET == 0:
        most = min(most, WAYS if x.a[0] % ONE_FAR_SET else FAR_WAYS)
    tiles = max(-(-x.m // most), 1)
    return max(-(-x.m // tiles), 1)


def _multiplying(x: Matrices, vectors: int, height: int, pack_a: bool, pack_b: bool, facts: Facts) -> float:
    """Nanoseconds of the tiles of a product with panels of so many vectors, by their instructions."""
    quick = facts.quick_sums > 0 and pack_b and (pack_a or x.a[1] == 1)
    tiles, last = divmod(max(x.m, 1), height)
    cycles = 0.0
    for count, width in _panels(x, vectors, facts):
        whole = quick and width == vectors and height * width >= facts.quick_sums
        cycles += count * tiles * (_quick_cycles if whole else _tile_cycles)(height, width, facts)
        cycles += count * _tile_cycles(last, width, facts) if last else 0
    return cycles * x.k * CYCLE


def _tile_cycles(rows: int, vectors: int, facts: Facts) -> float:
    """Two multiply-adds a cycle, four cycles until a sum can be added to again; loads cost a little."""
    late = facts.few_registers and rows * vectors <= 8  # loads wait for registers, and sums for loads
    return max(rows * vectors / 2, 5 if late else 4) + 0.15 * (rows + vectors)


def _quick_cycles(rows: int, vectors: int, facts: Facts) -> float:
    """The same of tiles whose strides are known: little else is started beside multiply-adds, lines of b cost more."""
    return rows * vectors / 2 + 0.02 * rows + 0.2 * vectors


def _evenly(length: int, most: int) -> int:
    """The length of parts, about `most`: the last one should lack little, and an even number of threads share them."""
    if length <= most:
        return most

    def idle(part: int) -> tuple[int, int]:
        return -length % part + -(-length // part) % 2 * part // 4, abs(part - most)

    return min(range(max(most * 3 // 4, 1), most * 11 // 8 + 1), key=idle)


def _segments(x: Matrices, tile_rows: int, panel: int) -> tuple[int, int]:
    """How many segments k has, and their length."""
    tiles = -(-x.m // tile_rows) * -(-x.n // panel) * x.batches
    if tiles >= FEW_TILES or x.batches != 1 or x.k < 2 * LEAST_SEGMENT:
        return 1, max(x.k, 1)
    length = multiple(max(-(-x.k // SEGMENTS), LEAST_SEGMENT), LEAST_SEGMENT)
    return -(-x.k // length), length


def _strewn_segments(x: Matrices, panel: int) -> tuple[int, int]:
    """The same where columns of b are read in place: of a long k, where there would be few tasks, a few segments."""
    tasks = -(-x.m // LEAST_ROWS) * -(-x.n // panel)
    most = min(STREWN_SEGMENTS, x.k // (2 * STREWN_K), TASKS // max(tasks, 1)) if x.batches == 1 else 1
    length = max(-(-x.k // max(most, 1)), 1)
    return max(-(-x.k // length), 1), length


def _sweep_segments(x: Matrices, tile_rows: int) -> tuple[int, int]:
    """The same of sweeps, whose rows should be many: side by side they are read faster."""
    if x.batches != 1 or x.m * x.k <= NEAR:
        return 1, max(x.k, 1)
    wanted = max(SWEEPS // -(-x.m // tile_rows), 1)
    length = multiple(-(-x.k // wanted), SWEEP_K)
    return -(-x.k // length), length


def phase(copied: int, split_k: int, block_k: int, round_: int) -> tuple[int, int]:
    """Steps of k that are copied together, and batches of a round."""
    if not copied:
        return split_k, round_
    round_ = max(min(round_, COPIED // (copied * split_k)), 1)
    steps = max(COPIED // (copied * round_), block_k)
    return multiple(even(split_k, steps), block_k), round_


def _task(x: Matrices, tile_rows: int, panel: int, k: int, wanted: int) -> tuple[int, int]:
    """Rows and columns of a task of about so many multiply-adds, whose rows of a stay in cache."""
    if x.k <= SHORT_K and x.sums[1] == 1 and x.m * x.n > FAR:  # most of the work is to write the result, along rows
        return tile_rows, multiple(min(x.n, SIDE), panel)
    rows = min(multiple(x.m, tile_rows), max(ROWS_IN_CACHE // tile_rows, 1) * tile_rows)
    if panel == 1:  # a is read once for all columns
        if not _several_dots(x):
            return rows, x.n
        wanted = max(-(-x.m // DOT_TASKS), DOT_TASK // max(x.n * k, 1), 1)
        return min(rows, multiple(wanted, tile_rows)), x.n
    columns = wanted // max(rows * k, 1) // panel * panel
    if columns >= panel:
        return rows, min(columns, multiple(x.n, panel))
    near = x.n * x.k <= NEAR
    rows = max(wanted // (panel * k), min(x.m, NEAR_ROWS if near else LEAST_ROWS), 1)
    tiles = -(-min(rows, max(x.m, 1)) // tile_rows)
    return (even(-(-max(x.m, 1) // tile_rows), tiles) if near else tiles) * tile_rows, panel
