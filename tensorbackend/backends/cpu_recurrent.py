# SPDX-License-Identifier: Apache-2.0
"""The steps of recurrent layers on the compiled CPU backend: `kernels/c/rnn.c`, and the cell as a printed kernel.

How work is cut into blocks depends on sizes alone.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensorbackend import settings
from tensorbackend.backends import jit, native, written
from tensorbackend.backends.compiler import Library
from tensorbackend.backends.plans import ALIGNMENT, letter
from tensorbackend.graph import composite
from tensorbackend.graph.fuse import schedule, walk
from tensorbackend.graph.plan import Kernel, Primitive, Ref, Statement
from tensorbackend.graph.tensor import Tensor
from tensorbackend.primitives import cells
from tensorbackend.primitives.cells import Cell, Run
from tensorbackend.primitives.matrix_unit import EDGE, PLANE_BYTES, PLANES, multiple

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = ["PRIMITIVES", "runs_steps"]

FEWEST_STEPS = 4
"""Steps from which on copying the weights pays."""
MOST_SAMPLES = 128
"""Samples up to which a task's buffers stay in cache; products of more are as fast by themselves."""
LONG_BLOCK = 24
"""Units of a block where lanes are samples and there are many units."""
CACHED = 1 << 13
"""Elements of a panel of the state that stay in the first-level cache."""
UNIT_PANELS = (1, 2, 4, 6, 8)
"""Vectors of a panel where lanes are units, as rnn_fma.h has them; those above 4 for 3 samples at most."""
FEW_LINES = 8
"""Vectors of units up to which a step is too short to be shared."""
WHOLE = 1 << 40
"""Steps of k, more than there are: lanes along units need no chunks."""
BLOCKS = 12
"""Blocks that there should be at least."""
MOST_WEIGHTS = 1 << 22
"""Weights for each vector of samples up to which the input is multiplied step by step: more come too late."""
FEWEST_COLUMNS = 512
"""Columns of the input, of all steps, from which on copying its weights pays."""
STAND_IN = 4099
"""Elements of the tensors that stand for a cell's operands when its kernel is made: its text depends on no length."""
FLOPS_A_NANOSECOND = 100
NARROW_WEIGHTS = 1 << 19
"""Weights that half a block of samples is worth: planes of more do not stay in two threads' second-level caches."""
FEWEST_UNIT_BLOCKS = 4
"""Blocks from which on the matrix unit is used: threads share them."""
KEPT = "own", "fixed"
"""Kinds of parts that a block keeps from step to step."""
_KINDS = {"step": 0, "before": 1, "own": 2, "fixed": 3}


class Facts(NamedTuple):
    """What a compiled rnn.c has: `rows[v - 1]` of a tile of v vectors of samples (0: none), `few` samples at most where
    lanes are units, `room` elements of a task's buffers, and whether products may run on the matrix unit."""

    lanes: int
    rows: tuple[int, ...]
    few: int
    room: int
    matrix_unit: bool = False


class Blocks(NamedTuple):
    """How units are cut into blocks, by the names of rnn.c's `size`; `planes` of the matrix unit's numbers, or 0."""

    planes: int
    by_units: bool
    units: int
    width: int
    rows: int
    panel: int
    chunk: int


def runs_steps(cell: Cell, run: Run, dtype: np.dtype, compiled: bool) -> bool:
    """Whether a run is one for the kernel of all steps. `compiled`: whether that is compiled, not NumPy's."""
    plain = dtype in (np.float32, np.float64)
    if not (plain and run.nout) or run.steps < FEWEST_STEPS or not 0 < run.N <= MOST_SAMPLES:
        return False
    return not cell.has_input or (compiled and _takes_input(cell, run, dtype))


def _takes_input(cell: Cell, run: Run, dtype: np.dtype) -> bool:
    """Whether multiplying the input step by step, by multiply-adds, is faster than at once: where lanes are samples,
    and weights come in time. The products need no copies, and sums are used where they arise."""
    if not run.nin or run.N * run.steps < FEWEST_COLUMNS:
        return False
    found, weights = facts(dtype), cell.products * run.nout * (run.nout + run.nin)
    fits = weights <= MOST_WEIGHTS * -(-run.N // found.lanes)
    return run.N > found.few and not found.matrix_unit and fits


def facts(dtype: np.dtype) -> Facts:
    """What rnn.c has for a type, and may use. Raises `CompileError`."""
    found = _facts(written.library(_source(dtype), "products"))
    return found._replace(matrix_unit=found.matrix_unit and settings.config.matrix_unit and dtype == np.float32)


def _source(dtype: np.dtype, planes: int = 0) -> str:
    lines = [f"#define TB_T {written.c_type(dtype)}", *([f"#define TB_PLANES {planes}"] if planes else [])]
    return "\n".join([*lines, '#include "rnn.c"', ""])


@functools.lru_cache(maxsize=256)
def _facts(library: Library) -> Facts:
    found = (ctypes.c_int64 * 8)()
    library.function("tb_rnn_facts")(found)
    return Facts(found[0], tuple(found[1:5]), found[5], found[6], bool(found[7]))


def blocks(cell: Cell, run: Run, facts: Facts) -> Blocks:
    """The blocks of a run of a cell."""
    buffers = cell.products + sum(p.groups for p in cell.parts if p.kind not in KEPT)
    if cell.has_input:
        return _by_samples(run, facts, buffers)
    if run.N <= facts.few:
        return _by_units(cell, run, facts)
    return _on_unit(cell, run, facts, buffers) or _by_samples(run, facts, buffers)


def _by_units(cell: Cell, run: Run, facts: Facts) -> Blocks:
    """The blocks whose lanes are units. A panel has as many sums as registers hold, of all groups of a block."""
    shared = FEW_LINES * facts.lanes < run.nout <= 3 * BLOCKS * facts.lanes
    units = min(facts.lanes * (2 if shared else 4), multiple(run.nout, facts.lanes))
    vectors, sums = cell.products * units // facts.lanes, 2 * facts.rows[1]
    fits = [v for v in UNIT_PANELS if vectors % v == 0 and (v <= 4 or run.N <= 3) and v * run.N <= sums]
    return Blocks(0, True, units, run.N, 0, max(fits, default=1), WHOLE)


def _on_unit(cell: Cell, run: Run, facts: Facts, buffers: int) -> Blocks | None:
    """The blocks on the matrix unit, if it may be used, there are enough of them, and it is faster."""
    narrow = run.N <= facts.lanes
    if narrow and cell.products * cell.state.state * run.nout**2 > NARROW_WEIGHTS:
        return None
    units, panel = (2 * EDGE, 1) if narrow else (EDGE, 2)
    width = multiple(run.N, panel * facts.lanes)
    if not facts.matrix_unit or -(-run.nout // units) < FEWEST_UNIT_BLOCKS or units * width * buffers > facts.room:
        return None
    return Blocks(PLANES["float32"], False, units, width, units, panel, WHOLE)


def _by_samples(run: Run, facts: Facts, buffers: int) -> Blocks:
    """The blocks of multiply-adds whose lanes are samples."""
    vectors = -(-run.N // facts.lanes)
    panels = [v for v, rows in enumerate(facts.rows, start=1) if rows]
    panel = min(panels, key=lambda v: (-(-vectors // v) * v, -v))
    rows = facts.rows[panel - 1]
    width = multiple(run.N, panel * facts.lanes)
    wanted = LONG_BLOCK if run.nout >= 2 * LONG_BLOCK * BLOCKS else rows
    units = rows * max(min(wanted, facts.room // (width * buffers)) // rows, 1)
    return Blocks(0, False, units, width, rows, panel, CACHED // (panel * facts.lanes))


class _Buffers:
    """The buffers of a task: one tensor stands for each group of rows of each operand, the own ones first."""

    def __init__(self, cell: Cell, backend: Backend, dtype: np.dtype) -> None:
        self.tensors: list[Tensor] = []
        self.first: dict[str, int] = {}
        own = [p for p in cell.parts if p.kind in KEPT]
        self.owns = sum(p.groups for p in own)
        counts = [*((p.name, p.groups) for p in own), ("sums", cell.products)]
        counts += [(p.name, p.groups) for p in cell.parts if p.kind not in KEPT]
        for name, groups in counts:
            self.first[name] = len(self.tensors)
            self.tensors += [backend.empty((STAND_IN,), dtype, min_dims=1) for _ in range(groups)]

    def of(self, name: str, groups: int) -> Any:
        """The tensors of an operand: a list, or the one."""
        first = self.first[name]
        return self.tensors[first] if groups == 1 else self.tensors[first : first + groups]

    def number(self, tensor: Tensor) -> int:
        """The number of a tensor's buffer."""
        return next(n for n, x in enumerate(self.tensors) if x is tensor)


def _kernel(cell: Cell, buffers: _Buffers) -> tuple[Kernel, list[int], list[int]]:
    """The cell as one kernel; the buffer of each of its operands; its numbers as 8-byte words."""
    sums = buffers.tensors[buffers.first["sums"] :][: cell.products]
    parts = {p.name: buffers.of(p.name, p.groups) for p in cell.parts}
    assigned = list(cell.assign(composite, lambda new, old: new, sums, **parts))
    leaves = [walk(value)[0] for _, value in assigned]
    statements = [
        Statement(target.structure, value, int(any(x is target for x in found)), target.address)
        for (target, value), found in zip(assigned, leaves)
    ]
    plan = schedule(statements, leaves)
    (kernel,) = plan.steps
    every = [x for found in leaves for x in found]
    places = [target for target, _ in assigned] + [every[n] for n in plan.tensors]
    slots = [buffers.number(places[ref.buffer]) for ref in kernel.operands]
    words = [struct.unpack("q", struct.pack(letter(dtype), every[n]))[0] for n, dtype in kernel.scalars]
    return kernel, slots, words


def _strides(ref: Ref) -> list[int]:
    """The strides of rows and columns; a column that is repeated has stride 0."""
    return [ref.strides[0], 0 if ref.shape[1] == 1 else ref.strides[1]]


def _parts(cell: Cell, step: Primitive, buffers: _Buffers) -> Iterator[list[int]]:
    """The table of the operands, as rnn.c reads it."""
    read, place = iter(range(len(cell.multiplied), len(step.inputs))), iter(range(len(step.inputs), len(step.operands)))
    for p in cell.parts:
        entry = [_KINDS[p.kind], p.groups, p.state, buffers.first[p.name]]
        for wanted in (p.read, p.kind == "before"):
            number = next(read) if wanted else -1
            entry += [number, *(_strides(step.operands[number]) if wanted else (0, 0))]
        number = next(place) if p.written else -1
        yield [*entry, number, *(_strides(step.operands[number]) if p.written else (0, 0))]


def _multiplied(cell: Cell, run: Run, step: Primitive) -> Iterator[int]:
    """What the products read: the numbers and strides of R, W and the input, and the input's rows."""
    for number in range(3):
        yield from (number, *step.inputs[number].strides) if number < len(cell.multiplied) else (0, 0, 0)
    yield run.nin


def _prepare(cell: Cell, step: Primitive, backend: Backend) -> jit.Prepared:
    """The launch of all steps."""
    (run,), dtype = step.params, step.output.dtype
    buffers = _Buffers(cell, backend, dtype)
    by = blocks(cell, run, facts(dtype))
    source = _source(dtype, by.planes)
    library = written.library(source, "products")
    kernel, slots, words = _kernel(cell, buffers)
    tail = jit.compile_tail(kernel)
    places, total = _placed(_lengths(cell, run, by, buffers.owns), ALIGNMENT // dtype.itemsize)
    parts = [word for entry in _parts(cell, step, buffers) for word in entry]
    runtime = native.runtime()
    head = [
        run.nout, run.N, run.steps, int(run.reverse), cell.products, cell.state.state, int(run.from_zero),
        *map(int, by[1:]), *places, len(buffers.tensors), buffers.owns, *_multiplied(cell, run, step),
        len(step.operands), runtime.address("tb_run"), tail.address, len(slots),
    ]  # fmt: skip
    size = [*head, len(head) + 2 + len(parts) + len(slots), len(cell.parts), *parts, *slots, *words]
    cost = cell.op.work(run) // FLOPS_A_NANOSECOND + 100
    launch = runtime.prepare(library.address("tb_rnn"), 1, cost, len(step.operands) + 1, size, [], 0)
    text = "\n".join([f"// {by}", source, tail.source])
    return jit.Prepared(step, text, step.op.name, [launch], -(-total * dtype.itemsize // 8))


def _lengths(cell: Cell, run: Run, by: Blocks, owns: int) -> list[int]:
    """Elements of the scratch's parts: weights, two states, and what blocks keep."""
    count = -(-run.nout // by.units)
    rows = by.units if by.by_units else multiple(by.units, by.rows)
    group = count * by.units if by.planes else run.nout
    depth, words = run.nin + cell.state.state * group, by.planes * PLANE_BYTES / 4
    state = depth * by.width + int(depth * multiple(by.width, EDGE) * words)
    weights = int(count * cell.products * rows * depth * (words or 1))
    return [weights, 2 * state, count * owns * by.units * by.width]


def _placed(lengths: list[int], unit: int) -> tuple[list[int], int]:
    """Where parts of so many elements begin, each at a multiple of `unit`; the length of all."""
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + math.ceil(length / unit) * unit)
    return ends[:-1], ends[-1]


PRIMITIVES = {cell.name: functools.partial(_prepare, cell) for cell in cells.CELLS}
