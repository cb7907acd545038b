# SPDX-License-Identifier: Apache-2.0
"""The C dialect: a kernel's loop nest as C that gcc and clang vectorise by themselves.

Inner loops run over blocks of at most `BLOCK` elements: halves are converted into stack buffers before the loop,
results that go past the cache are computed into one and streamed after it, and reductions are handed to the block
reducers of `kernels/c/reduce.h`, which add up in a fixed order. Elementwise kernels on halves have a second form on
vectors where that is faster (`wide.py`). No system header is included.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tensorbackend import dtypes
from tensorbackend.codegen.hoist import HoistRenderer
from tensorbackend.codegen.nest import COLUMNS, MAP, ROWS, Nest, nest
from tensorbackend.codegen.render import Printed, accumulator, ctype, tag
from tensorbackend.graph.plan import Instruction, Kernel, Ref

__all__ = ["print_kernel"]

HEADER = "kernel.h"
BLOCK = 1024
HALF_BLOCK = 256  # elementwise work on halves: 1 KB a buffer, or the first-level cache loses what has been converted
FAR_BLOCK = 64
"""Elements of a block of elementwise work on memory beyond the caches: so few that the processor computes one block
while it stores the one before and fetches those to come."""
STRIP = 1024
LOT = 512
"""Results that a task joins from the partial results of segments."""
TILE = 64
ALIGNED = "__attribute__((aligned(64)))"
FEW_ROWS = 16
"""Rows that a column sum of float32 adds up in float32 before it goes to float64."""
ROWS_AT_ONCE = 4
"""Rows that a reduction of columns takes between two looks at its running results."""
COSTLY = 8
"""Floating-point operations from which on a value is kept for the next pass rather than computed again."""


def print_kernel(kernel: Kernel, split: bool = False) -> Printed:
    """Print a kernel. `split` prints functions to launch one after the other, so that threads share long reductions:
    for each pass partial results of segments and what joins them, then the loop that writes what is not reduced.
    """
    printer = _Printer(nest(kernel), split)
    return printer.result()


class _Printer(HoistRenderer):
    header = HEADER
    sizes = ("chunk", "pieces", "group", "streams", "segments", "segment")

    def __init__(self, found: Nest, split: bool) -> None:
        super().__init__(found, split)
        self.stage = 0
        self.kept_value: int | None = None
        self.kept_stage = 0
        self.segmented_stage = 0
        self.kept_value, self.kept_stage = self._value_to_keep()

    def _signature(self, name: str) -> str:
        parameters = "const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin, tb_i64 end"
        return f"void {name}(void *const *ptr, {parameters})"

    def _open_join(self, total: str) -> None:
        self.open("for (tb_i64 task = begin; task < end; ++task)")

    def _functions(self) -> dict[str, Callable[[], None]]:
        if not self.split:
            return super()._functions()
        found: dict[str, Callable[[], None]] = {}
        for stage in range(1, self.nest.passes + 1):
            found[f"_{stage}" if stage > 1 else ""] = partial(self._segments_of, stage)
            found[f"_join{stage}"] = partial(self._join_stage, stage)
        full = [self._full_output(k) for k in range(len(self.kernel.outputs))]
        if any(full):
            found["_out"] = partial(self._segments_of, self.nest.passes + 1)
            if not all(full):  # they may lie where the others' loop reads
                found["_join_out"] = partial(self._join_stage, self.nest.passes + 1)
        return found

    def _segments_of(self, stage: int) -> None:
        """The pass `stage` over segments; the one after the last writes the outputs that are not reduced."""
        self.segmented_stage = stage
        self._bodies()

    def _load(self, i: Instruction) -> str:
        ref = self.kernel.inputs[i.slot]
        if not self.nest.turned(ref):
            return super()._load(i)
        return self._widened(ref, f"turned{i.slot}[(row - first) * {TILE} + (at - from)]")

    def _value_to_keep(self) -> tuple[int | None, int]:
        """A costly value of an early pass that waits in the output for the last pass, and the pass that makes it."""
        outputs = self.kernel.outputs
        if not self.nest.passes or len(outputs) != 1 or not self._full_output(0):
            return None, 0
        ref, result = outputs[0]
        if self._stride_class(ref, self.nest.inner) != "one":
            return None, 0
        last = self._needed([result])
        for n in reversed(last):
            i = self.body[n]
            fits = i.kind == "op" and n != result and i.dtype == ref.dtype and i.shape == ref.shape == self.kernel.shape
            if not fits or sum(self.body[k].op.flops for k in self._needed([n]) if self.body[k].kind == "op") < COSTLY:
                continue
            makers = [self.body[r].stage for r in self.reductions if n in self._needed(self.body[r].args)]
            if makers and not (self.kernel.in_place and self._reads_after(n, min(makers))):
                return n, min(makers)
        return None, 0

    def _reads_after(self, n: int, stage: int) -> bool:
        """Whether a pass after `stage` reads an input of the full space, once value `n` is kept."""
        self.kept_value, self.kept_stage, self.stage = n, stage, self.nest.passes + 1
        goals = [
            self.kernel.outputs[0][1],
            *(a for r in self.reductions if self.body[r].stage > stage for a in self.body[r].args),
        ]
        reads = any(self.body[k].kind == "load" and self.full[k] for k in self._needed(goals))
        self.kept_value, self.kept_stage, self.stage = None, 0, 0
        return reads

    # Text

    def _bodies(self) -> None:
        self._statements([n for n, i in enumerate(self.body) if self._constant(i)])
        if self.nest.form == MAP and not self.nest.kept:
            self._flat_map()
            return
        self.open("for (tb_i64 task = begin; task < end; ++task)")
        where = "task"
        if self.split:
            self.say(f"const tb_i64 lots = ({self._rows()} + group - 1) / group * pieces;")
            self.say("const tb_i64 part = task / lots;")
            where = "(task % lots)"
        if self.nest.tiled is None:
            self.say(f"const tb_i64 first = {where} / pieces * group;")
            self.say(f"const tb_i64 last = first + group < {self._rows()} ? first + group : {self._rows()};")
        else:
            n = f"n{self.nest.tiled}"
            self.say(f"const tb_i64 tiles = ({n} + {TILE - 1}) / {TILE}, whole = task / pieces / tiles * {n};")
            self.say(f"const tb_i64 first = whole + task / pieces % tiles * {TILE};")
            self.say(f"const tb_i64 last = first + {TILE} < whole + {n} ? first + {TILE} : whole + {n};")
        if self.nest.form != ROWS:
            n = f"n{self.nest.inner}"
            self.say(f"const tb_i64 from = {where} % pieces * chunk, to = from + chunk < {n} ? from + chunk : {n};")
        if self.nest.tiled is not None:
            self._turn_tiles()
        self.open("for (tb_i64 row = first; row < last; ++row)")
        self._row_position(self.nest.kept, "row")
        {MAP: self._map, ROWS: self._rows_form, COLUMNS: self._columns}[self.nest.form]()
        self.close(2)
        self.say("tb_stream_end(streams);")

    def _turn_tiles(self) -> None:
        """Copy the tiles of inputs that lie across, reading along their memory."""
        for slot, ref in enumerate(self.kernel.inputs):
            if self.nest.turned(ref):
                self.say(f"{ctype(ref.dtype)} turned{slot}[{TILE * TILE}];")
        self.open("")
        self._row_position(self.nest.kept, "first")
        for slot, ref in enumerate(self.kernel.inputs):
            if not self.nest.turned(ref):
                continue
            inner = self.nest.inner
            self.open("for (tb_i64 at = from; at < to; ++at)")
            self.say(f"const {ctype(ref.dtype)} *const line = i{slot}{self._offset(slot, ref)} + at * s{slot}_{inner};")
            self.say(
                f"for (int r = 0; r < (int)(last - first); ++r) turned{slot}[r * {TILE} + (int)(at - from)] = line[r];"
            )
            self.close()
        self.close()

    def _flat_map(self) -> None:
        """A map along one axis: tasks that follow each other are one stretch of it."""
        n = f"n{self.nest.inner}"
        self.say(f"const tb_i64 from = begin * chunk, to = end * chunk < {n} ? end * chunk : {n};")
        self._map()
        self.say("tb_stream_end(streams);")

    def _map(self) -> None:
        self._statements([n for n, i in enumerate(self.body) if not self._constant(i) and not self.nest.varies(i)])
        goals = [value for _, value in self.kernel.outputs]
        loop = self._needed(goals)
        if self._is_contiguous(loop):
            self._padded_loop(loop)
        else:
            self._block_loop(goals, [], store=True)

    def _rows_form(self) -> None:
        self._statements(
            [n for n, i in enumerate(self.body) if not self.full[n] and not self._constant(i) and i.stage == 0]
        )
        for stage in range(1, self.nest.passes + 1):
            self.stage = stage
            here = [n for n in self.reductions if self.body[n].stage == stage]
            if not self._joined_before(stage):
                self._reduce_pass(here)
            if stage == self.segmented_stage:
                self._leave_partials(here)
                return
            for n in here:
                self._finish(n, *self._accumulated(n))
            self._statements(self._rows_after(stage))
        self.stage = self.nest.passes + 1
        if any(self._full_output(k) for k in range(len(self.kernel.outputs))):
            self._reduce_loops([], store=True)
        if not self.split:
            self._row_outputs("")

    def _columns(self) -> None:
        self.say("const int m = (int)(to - from);")
        self._statements(
            [n for n, i in enumerate(self.body) if not (self.full[n] or self._constant(i) or self.nest.varies(i))]
        )
        needed = self._array_values()
        for n in sorted(needed):
            self.say(f"{ctype(self.body[n].dtype)} w{n}[{STRIP}];")
        self._column_values(0, needed)
        for stage in range(1, self.nest.passes + 1):
            self.stage = stage
            here = [n for n in self.reductions if self.body[n].stage == stage]
            if not self._joined_before(stage):
                self._reduce_pass(here)
            if stage == self.segmented_stage:
                self._leave_partials(here)
                return
            self._column_values(stage, needed)
        self.stage = self.nest.passes + 1
        if any(self._full_output(k) for k in range(len(self.kernel.outputs))):
            self._reduce_loops([], store=True)
        self.in_arrays = needed
        if not self.split:
            self._row_outputs("column")
        self.in_arrays = set()

    def _array_values(self) -> set[int]:
        """Values of a strip that later loops read: kept in arrays, one entry a column."""
        found = set()
        for n, i in enumerate(self.body):
            if not self._differs_by_column(n):
                continue
            readers = [k for k, other in enumerate(self.body) if n in other.args]
            output = any(value == n for _, value in self.kernel.outputs)
            later = any(self.full[k] or self.body[k].stage > i.stage or self.body[k].kind == "reduce" for k in readers)
            if output or later:
                found.add(n)
        return found

    def _differs_by_column(self, n: int) -> bool:
        """Whether a value is one for each column of a strip, and not for each element of it."""
        return not self.full[n] and self.nest.varies(self.body[n])

    def _column_values(self, stage: int, needed: set[int]) -> None:
        wanted = [n for n, i in enumerate(self.body) if self._differs_by_column(n) and i.stage == stage]
        if not wanted:
            return
        self.in_arrays = {n for n in needed if n not in wanted}
        self.say("#pragma GCC ivdep")
        self.open("for (int j = 0; j < m; ++j)")
        self.say("const tb_i64 at = from + j;")
        for n in wanted:
            if self.body[n].kind == "reduce":
                self._finish(n, *self._accumulated(n))
            else:
                self._statements([n])
            if n in needed:
                self.say(f"w{n}[j] = v{n};")
        self.close()
        self.in_arrays = set(needed)

    # Reductions

    def _reduce_pass(self, here: list[int]) -> None:
        for n in here:
            self._declare(n)
        self._reduce_loops(here)

    def _joined_before(self, stage: int) -> bool:
        """Whether an earlier launch has joined the reductions of a stage."""
        return stage < self.segmented_stage

    def _accumulated(self, n: int) -> tuple[str, str]:
        """A reduction's value and place: what this function has accumulated, or what an earlier one has joined."""
        columns = self.nest.form == COLUMNS
        if not self._joined_before(self.body[n].stage):
            return (f"a{n}[j]", f"k{n}[j]") if columns else (f"a{n}", f"k{n}")
        where = f"row * n{self.nest.inner} + at" if columns else "row"
        return self._word(n, "a", where, "0"), self._word(n, "k", where, "0")

    def _plane(self, n: int, kind: str, part: str) -> str:
        """Where the partial results of a segment begin: the results of one reduction lie side by side."""
        k = [*self._partials(), (n, "k")].index((n, kind))
        return f"({k} * segments + {part}) * {self._results()}"

    def _results(self) -> str:
        """How many results a reduction has."""
        return f"({self._rows()} * n{self.nest.inner})" if self.nest.form == COLUMNS else f"({self._rows()})"

    def _word(self, n: int, kind: str, where: str, part: str) -> str:
        """A partial result, in the type in which it is accumulated."""
        word = f"scratch[{self._plane(n, kind, part)} + {where}]"
        if kind == "k":
            return word
        kind = self._partial_type(n)
        return f"({kind})tb_word_{'double' if kind in ('float', 'double') else 'tb_i64'}({word})"

    def _partial_type(self, n: int) -> str:
        i = self.body[n]
        return ctype(self.body[i.args[0]].dtype) if i.op.dtype == "index" else accumulator(i)

    def _declare(self, n: int) -> None:
        i = self.body[n]
        kind, start = accumulator(i), self._start(n)
        array = f"[{STRIP}]" if self.nest.form == COLUMNS else ""
        value_type = ctype(self.body[i.args[0]].dtype)
        if i.op.dtype == "index":
            self.say(f"{value_type} a{n}{array};", f"tb_i64 k{n}{array};")
            names = [f"a{n}", f"k{n}"]
        else:
            self.say(f"{kind} a{n}{array};")
            names = [f"a{n}"]
        if self._buffered_sum(n):
            self.say(f"float b{n}{array};", f"int t{n} = 0;")
            names.append(f"b{n}")
        starts = dict(zip(names, [start, "0"] if i.op.dtype == "index" else [start, start]))
        if array:
            assignments = " ".join(f"{name}[j] = {starts[name]};" for name in names)
            self.say(f"for (int j = 0; j < m; ++j) {{ {assignments} }}")
        else:
            self.say(*(f"{name} = {starts[name]};" for name in names if name != f"b{n}"))

    def _buffered_sum(self, n: int) -> bool:
        """Column sums of float32 add up a few rows in float32 before they go to float64."""
        i = self.body[n]
        return self.nest.form == COLUMNS and i.op.dtype == "sum" and i.dtype == np.float32

    def _reduce_loops(self, here: list[int], store: bool = False) -> None:
        """The loops over the reduced axes: accumulate the reductions `here`, or store the full outputs."""
        goals = [a for n in here for a in self.body[n].args]
        if store:
            goals = [value for k, (_, value) in enumerate(self.kernel.outputs) if self._full_output(k)]
        several = not store and self._takes_several_rows(goals)
        for axis in self.nest.reduced:
            lo, hi = self._range(axis) if axis == self.segment_axis else ("0", f"n{axis}")
            if several and axis == self.nest.reduced[-1]:
                self._several_rows(axis, lo, hi, goals, here)
            else:
                self.open(f"for (tb_i64 x{axis} = {lo}; x{axis} < {hi}; ++x{axis})")
        if not several:
            self._block_loop(goals, here, store)
            self._empty_buffers(here, 1)
        self.close(len(self.nest.reduced))
        for n in self._buffered(here):
            self.say(f"for (int j = 0; j < m; ++j) a{n}[j] {self._assigning(n)} b{n}[j];")

    @staticmethod
    def _range(axis: int) -> tuple[str, str]:
        """Where a segment begins and ends."""
        return "part * segment", f"((part + 1) * segment < n{axis} ? (part + 1) * segment : n{axis})"

    def _takes_several_rows(self, goals: list[int]) -> bool:
        """Whether running results of columns are worth keeping in registers for some rows: where little is computed."""
        needed = [self.body[n] for n in self._needed(goals)]
        halves = any(i.kind == "load" and dtypes.is_half(self.kernel.inputs[i.slot].dtype) for i in needed)
        costly = sum(i.op.flops for i in needed if i.op is not None) >= COSTLY
        return self.nest.form == COLUMNS and not halves and not costly and self.stage != self.kept_stage

    def _several_rows(self, axis: int, lo: str, hi: str, goals: list[int], here: list[int]) -> None:
        """The loop over the innermost reduced axis of columns, some rows at a time; the caller closes it."""
        x, y, stop = f"x{axis}", f"y{axis}", f"stop{axis}"
        needed = self._needed(goals)
        self.open(f"for (tb_i64 {y} = {lo}, {stop} = {hi}; {y} < {stop}; {y} += {ROWS_AT_ONCE})")
        self.open(f"if ({y} + {ROWS_AT_ONCE} <= {stop})")
        self.say("#pragma GCC ivdep")
        self.open("for (int j = 0; j < m; ++j)")
        self.say("const tb_i64 at = from + j;", "(void)at;")
        for row in range(ROWS_AT_ONCE):
            self.open("")
            self.say(f"const tb_i64 {x} = {y} + {row};", f"(void){x};")
            self._statements(needed)
            for n in here:
                self._accumulate(n)
            self.close()
        self.close(2)
        self.open(f"else for (tb_i64 {x} = {y}; {x} < {stop}; ++{x})")
        self._block_loop(goals, here, store=False)
        self.close()
        self._empty_buffers(here, ROWS_AT_ONCE)

    def _buffered(self, here: list[int]) -> list[int]:
        return [n for n in here if self._buffered_sum(n)]

    def _assigning(self, n: int) -> str:
        return "+=" if self.body[n].op.name == "sum" else "*="

    def _empty_buffers(self, here: list[int], rows: int) -> None:
        """After some rows, what float32 has added up goes to float64."""
        for n in self._buffered(here):
            self.open(f"if ((t{n} += {rows}) >= {FEW_ROWS})")
            self.say(f"t{n} = 0;")
            start = self._start(n)
            self.say(f"for (int j = 0; j < m; ++j) {{ a{n}[j] {self._assigning(n)} b{n}[j]; b{n}[j] = {start}; }}")
            self.close()

    def _leave_partials(self, here: list[int]) -> None:
        columns = self.nest.form == COLUMNS
        where = f"row * n{self.nest.inner} + from + j" if columns else "row"
        if columns:
            self.open("for (int j = 0; j < m; ++j)")
        for n, kind in self._partials():
            if n in here:
                value = f"{kind}{n}[j]" if columns else f"{kind}{n}"
                self.say(f"scratch[{self._plane(n, kind, 'part')} + {where}] = {self._as_word(n, kind, value)};")
        if columns:
            self.close()

    def _join_stage(self, stage: int) -> None:
        """Join the partial results of a stage, and write what is reduced when no other function follows."""
        here = [(n, kind) for n, kind in self._partials() if self.body[n].stage == stage]
        self.segmented_stage, self.in_arrays = stage, set()
        self._statements([n for n, i in enumerate(self.body) if self._constant(i)])
        self.open("for (tb_i64 task = begin; task < end; ++task)")
        self.say(f"const tb_i64 from = task * {LOT}, left = {self._results()} - from;")
        self.say(f"const int m = (int)(left < {LOT} ? left : {LOT});")
        if here:
            self._join_partials(here)
        last = self.nest.passes + any(map(self._full_output, range(len(self.kernel.outputs))))
        if stage == last:
            self._joined_outputs()
        else:
            texts = ((n, kind, self._as_word(n, kind, f"{kind}{n}[j]")) for n, kind in here)
            self._each_result([f"scratch[{self._plane(n, kind, '0')} + from + j] = {t};" for n, kind, t in texts])
        self.close()

    def _join_partials(self, here: list[tuple[int, str]]) -> None:
        for n, kind in here:
            self.say(f"{self._partial_type(n) if kind == 'a' else 'tb_i64'} {kind}{n}[{LOT}];")
        self._each_result([f"{kind}{n}[j] = {self._word(n, kind, 'from + j', '0')};" for n, kind in here])
        self.open("for (tb_i64 part = 1; part < segments; ++part)")
        self._each_result([text for n, kind in here if kind == "a" for text in self._joined_text(n)])
        self.close()

    def _each_result(self, lines: list[str]) -> None:
        self.say("#pragma GCC ivdep")
        self.open("for (int j = 0; j < m; ++j)")
        self.say(*lines)
        self.close()

    def _joined_text(self, n: int) -> list[str]:
        """How the partial result of one more segment joins those before."""
        i = self.body[n]
        given = f"const {self._partial_type(n)} g{n} = {self._word(n, 'a', 'from + j', 'part')};"
        if i.op.dtype != "index":
            return [given, f"a{n}[j] = {self._combined(n, f'a{n}[j]', f'g{n}', accumulator(i))};"]
        better = ">" if i.op.name == "argmax" else "<"
        choice = f"const int z{n} = (g{n} {better} a{n}[j]) | ((g{n} != g{n}) & (a{n}[j] == a{n}[j]));"
        place = f"k{n}[j] = z{n} ? {self._word(n, 'k', 'from + j', 'part')} : k{n}[j];"
        return [given, choice, place, f"a{n}[j] = z{n} ? g{n} : a{n}[j];"]

    def _joined_outputs(self) -> None:
        """Everything that follows from the reductions and is no longer than they."""
        columns = self.nest.form == COLUMNS
        self.open("for (int j = 0; j < m; ++j)")
        self.say("const tb_i64 result = from + j;")
        self._row_position([*self.nest.kept, self.nest.inner] if columns else self.nest.kept, "result")
        if columns:
            self.say(f"const tb_i64 at = x{self.nest.inner};", "(void)at;")
        for n, i in enumerate(self.body):
            if self.full[n] or self._constant(i):
                continue
            if i.kind != "reduce":
                self._statements([n])
            elif self._joined_before(i.stage):
                self._finish(n, self._word(n, "a", "result", "0"), self._word(n, "k", "result", "0"))
            else:
                self._finish(n, f"a{n}[j]", f"k{n}[j]")
        self._row_outputs("single" if columns else "")
        self.close()

    # Blocks

    def _block_loop(self, goals: list[int], here: list[int], store: bool) -> None:
        """The loop over the inner axis, a block at a time."""
        inner = self.nest.inner
        needed = self._needed(goals)
        columns = self.nest.form == COLUMNS
        lo, hi = ("from", "to") if self.nest.form != ROWS else ("0", f"n{inner}")
        if inner == self.segment_axis:
            lo, hi = self._range(inner)
        if store and self.nest.form == ROWS and self.kept_value is None and self._is_contiguous(needed):
            self._padded_row(needed, lo, hi)
            return
        far = self.nest.form == MAP
        if not columns:
            step = f"(streams ? {FAR_BLOCK} : {self._block()})" if far else self._block()
            self.open(f"for (tb_i64 b = {lo}, stop = {hi}; b < stop; b += {step})")
            self.say(f"const int m = (int)(stop - b < {step} ? stop - b : {step});")
        else:
            self.open("")
            self.say("const tb_i64 b = from;")
        before = [n for n in needed if not self.nest.varies(self.body[n])]
        self._statements(before)
        loop = [n for n in needed if n not in before]
        direct = {} if columns else self._direct_sources(here, loop)
        along = self._sums_run_along(here, direct)
        buffers = self._prepare_inputs(loop, along) | self._drawn(loop, self._block())
        if along:
            self._running_sums(loop, here, buffers)
        else:
            self._buffered_block(loop, here, direct, buffers, store)
        self.close()

    def _buffered_block(self, loop: list[int], here: list[int], direct: dict[int, str], buffers: dict[int, str],
                        store: bool) -> None:  # fmt: skip
        """One block: compute what is stored or reduced, into buffers for the block reducers where they need them."""
        for n in here:
            if n not in direct and self.nest.form != COLUMNS:
                self.say(f"{ctype(self.body[self.body[n].args[0]].dtype)} r{n}[{self._block()}];")
        targets = self._prepare_outputs() if store else {}
        goals_in_loop = [n for n in here if n not in direct]
        keeps = self.stage == self.kept_stage and self.kept_value in loop
        if store or goals_in_loop or keeps:
            self._inner_loop(loop, goals_in_loop, targets, buffers)
        self._after_block(here, direct, targets)

    def _padded_row(self, needed: list[int], lo: str, hi: str) -> None:
        """What is stored of a row, in padded blocks."""
        self.open("")
        before = [n for n in needed if not self.nest.varies(self.body[n])]
        self._statements(before)
        self.say(f"const tb_i64 from = {lo}, to = {hi};")
        self._padded_loop([n for n in needed if n not in before])
        self.close()

    def _is_contiguous(self, loop: list[int]) -> bool:
        """Whether all that a loop reads and stores along the inner axis lies side by side."""
        reads = [self.kernel.inputs[self.body[n].slot] for n in loop if self.body[n].kind == "load"]
        stores = [self.kernel.outputs[k][0] for k in self._stored()]
        along = [self._stride_class(ref, self.nest.inner) for ref in stores]
        return set(along) == {"one"} and "other" not in [self._stride_class(ref, self.nest.inner) for ref in reads]

    def _stored(self) -> list[int]:
        """The outputs with an element for each of the space."""
        return [k for k in range(len(self.kernel.outputs)) if self._full_output(k)]

    def _padded_loop(self, loop: list[int]) -> None:
        """The loop over the inner axis, by whole vectors: what is left at the end is padded in buffers to one more.

        So the compiler has one loop to make, without the remainders of its own.
        """
        inner, lanes, block = self.nest.inner, self._lanes(), self._block()
        self.open("for (tb_i64 b = from; b < to;)")
        self.say("const tb_i64 left = to - b;", f"const int tail = left < {lanes};")
        self.say(f"const int most = streams ? {FAR_BLOCK} : {block};")
        self.say(f"const int m = tail ? {lanes} : left < most ? (int)left & -{lanes} : most;")
        self.say("const int n = tail ? (int)left : m;")
        read = sorted({self.body[n].slot for n in loop if self.body[n].kind == "load"})
        rows = {slot: ref for slot in read if self._stride_class(ref := self.kernel.inputs[slot], inner) == "one"}
        for slot, ref in rows.items():
            kind = ctype(ref.dtype)
            self.say(f"const {kind} *p{slot} = i{slot}{self._offset(slot, ref)} + b;")
            self.say(f"{kind} t{slot}[{lanes}] {ALIGNED};")
        targets = {k: self._padded_output(k, self.kernel.outputs[k][0], lanes) for k in self._stored()}
        self.say("if (streams) { " + " ".join(self._fetch(slot, ref) for slot, ref in rows.items()) + " }")
        self.open("if (tail)")
        for slot, ref in rows.items():
            size = ref.dtype.itemsize
            self.say(f"p{slot} = (const {ctype(ref.dtype)} *)tb_pad(t{slot}, p{slot}, n * {size}, {lanes * size});")
        self.close()
        wide = self._fits_wide(loop)
        if wide:
            self.say("#ifdef TB_WIDE")
            self._wide_loop(loop)
            self.say("#else")
        self._vector_loop(loop, rows, targets)
        if wide:
            self.say("#endif")
        for k in self._stored():
            self._take_back(k, self.kernel.outputs[k][0], lanes)
        self.say("b += n;")
        self.close()

    def _fetch(self, slot: int, ref: Ref) -> str:
        """Ask for what is read later: further on in the row, or what follows a row that an earlier pass has read."""
        cached = self.stage > 1 and not self.split
        return f"tb_fetch_after(p{slot} + left, b);" if cached else f"tb_fetch{ref.dtype.itemsize}(p{slot});"

    def _padded_output(self, k: int, ref: Ref, lanes: int) -> tuple[str, str]:
        """Declare where an output's results go in the loop: in place, or into a buffer."""
        kind = ctype(ref.dtype)
        self.say(f"{kind} *const q{k} = o{k}{self._offset(len(self.kernel.inputs) + k, ref)} + b;")
        if dtypes.is_half(ref.dtype):
            self.say(f"{kind} e{k}[{lanes}] {ALIGNED}, *const w{k} = tail ? e{k} : q{k};")
            self.say(f"float d{k}[{self._block()}];")
            return f"d{k}[j]", "half"
        self.say(f"{kind} e{k}[{FAR_BLOCK}] {ALIGNED};")
        aligned = f"n == {FAR_BLOCK} && ((unsigned long)q{k} & 63) == 0"
        past = f"TB_PAST && streams > 1 && {aligned}" if ref.dtype.itemsize >= 4 else "0"
        self.say(f"const int past{k} = {past};", f"{kind} *const d{k} = past{k} || tail ? e{k} : q{k};")
        return f"d{k}[j]", "stream"

    def _vector_loop(self, loop: list[int], rows: dict[int, Ref], targets: dict) -> None:
        """The loop over a padded block."""
        buffers = self._drawn(loop, self._block())
        for n in loop:
            i = self.body[n]
            if i.kind != "load" or i.slot not in rows:
                continue
            buffers[n] = f"p{i.slot}[j]"
            if dtypes.is_half(i_dtype := rows[i.slot].dtype):
                self.say(f"float h{i.slot}[{self._block()}];")
                self.say(f"tb_load_{dtypes.tag(i_dtype)}(h{i.slot}, p{i.slot}, m);")
                buffers[n] = f"h{i.slot}[j]"
        self._inner_loop(loop, [], targets, buffers)
        for k in targets:
            if dtypes.is_half((ref := self.kernel.outputs[k][0]).dtype):
                self.say(f"tb_store_{dtypes.tag(ref.dtype)}(w{k}, d{k}, m);")

    def _take_back(self, k: int, ref: Ref, lanes: int) -> None:
        """Move an output's results from its buffer to where they belong."""
        size = ref.dtype.itemsize
        if not dtypes.is_half(ref.dtype):
            self.say(f"if (past{k}) tb_past{size}(q{k}, e{k});")
        self.say(f"if (tail) tb_unpad(q{k}, e{k}, n * {size}, {lanes * size});")

    def _lanes(self) -> int:
        """Elements of the widest vector (64 bytes) of the smallest type that a loop handles."""
        kinds = [ref.dtype for ref in self.kernel.inputs] + [ref.dtype for ref, _ in self.kernel.outputs]
        return 64 // min(dtype.itemsize for dtype in [*kinds, *(i.dtype for i in self.body)])

    def _block(self) -> int:
        """Elements of a block."""
        operands = [*self.kernel.inputs, *(ref for ref, _ in self.kernel.outputs)]
        halves = any(dtypes.is_half(ref.dtype) for ref in operands)
        return HALF_BLOCK if halves and self.nest.form == MAP else BLOCK

    def _is_kept(self, n: int) -> bool:
        """Whether an earlier pass left the value in the output."""
        return n == self.kept_value and self.stage > self.kept_stage

    def _kept_place(self) -> str:
        return f"(o0{self._offset(len(self.kernel.inputs), self.kernel.outputs[0][0])})[at]"

    def _prepare_inputs(self, needed: list[int], fetched: bool = False) -> dict[int, str]:
        """Addresses of what the block reads; halves that lie contiguously are converted into a buffer.

        `fetched`: the loop itself asks for what is not halves before it is needed.
        """
        buffers = {}
        for n in needed:
            i = self.body[n]
            if i.kind != "load":
                continue
            ref = self.kernel.inputs[i.slot]
            self.say(f"const {ctype(ref.dtype)} *const p{i.slot} = i{i.slot}{self._offset(i.slot, ref)};")
            half = dtypes.is_half(ref.dtype)
            far = self.nest.form == MAP or (self.nest.form == ROWS and self.stage == 1 and (half or not fetched))
            if far and self._stride_class(ref, self.nest.inner) == "one":
                self.say(f"if (streams) tb_prefetch(p{i.slot} + b, m * (int)sizeof(p{i.slot}[0]));")
            if half and self._stride_class(ref, self.nest.inner) == "one":
                load = f"tb_load_{dtypes.tag(ref.dtype)}(h{i.slot}, p{i.slot} + b, m);"
                self.say(f"float h{i.slot}[{self._block()}];", load)
                buffers[n] = f"h{i.slot}[j]"
        return buffers

    def _direct_sources(self, here: list[int], needed: list[int]) -> dict[int, str]:
        """Reductions of plain contiguous input, or of what this pass keeps: the reducer reads it where it lies."""
        direct = {}
        for n in here:
            source = self.body[n].args[0]
            i = self.body[source]
            if source == self.kept_value and self.stage >= self.kept_stage:
                direct[n] = f"o0{self._offset(len(self.kernel.inputs), self.kernel.outputs[0][0])} + b"
            elif i.kind == "load" and source in needed:
                ref = self.kernel.inputs[i.slot]
                if self._stride_class(ref, self.nest.inner) == "one" and dtypes.compute(ref.dtype) == ref.dtype:
                    direct[n] = f"p{i.slot} + b"
        return direct

    def _prepare_outputs(self) -> dict[int, tuple[str, str]]:
        """Where each full output's results go in the loop: in place, or into a buffer that is streamed or converted."""
        targets = {}
        for k, (ref, _) in enumerate(self.kernel.outputs):
            if not self._full_output(k):
                continue
            slot = len(self.kernel.inputs) + k
            kind = ctype(ref.dtype)
            self.say(f"{kind} *const q{k} = o{k}{self._offset(slot, ref)};")
            if self._stride_class(ref, self.nest.inner) != "one":
                targets[k] = (self._output_place(k, ref), "plain")
            elif dtypes.is_half(ref.dtype):
                self.say(f"float d{k}[{self._block()}];")
                targets[k] = (f"d{k}[j]", "half")
            elif ref.dtype.itemsize >= 4 and self.kept_value is None:
                self.say(f"{kind} e{k}[{self._block()}] __attribute__((aligned(64)));")
                self.say(f"{kind} *const d{k} = streams > 1 ? e{k} : q{k} + b;")
                targets[k] = (f"d{k}[j]", "stream")
            else:
                targets[k] = (f"q{k}[b + j]", "plain")
        return targets

    def _output_place(self, k: int, ref: Ref) -> str:
        slot = len(self.kernel.inputs) + k
        kind = self._stride_class(ref, self.nest.inner)
        return f"q{k}[0]" if kind == "zero" else f"q{k}[(b + j) * s{slot}_{self.nest.inner}]"

    def _inner_loop(self, loop: list[int], here: list[int], targets: dict, buffers: dict[int, str]) -> None:
        self.say("#pragma GCC ivdep")
        self.open("for (int j = 0; j < m; ++j)")
        self._element_of_block(loop, buffers)
        for n in here:
            self._accumulate(n)
        for k, (place, form) in targets.items():
            self._store(k, place, form)
        self.close()

    def _element_of_block(self, loop: list[int], buffers: dict[int, str]) -> None:
        """The values of element j of a block."""
        self.say("const tb_i64 at = b + j;", "(void)at;")
        self._statements(loop, buffers)
        if self.stage == self.kept_stage and self.kept_value in loop:
            self.say(f"{self._kept_place()} = v{self.kept_value};")

    def _accumulate(self, n: int) -> None:
        i = self.body[n]
        value = self._value(i.args[0])
        if self.nest.form != COLUMNS:
            self.say(f"r{n}[j] = {value};")
        elif i.op.dtype == "index":
            better = ">" if i.op.name == "argmax" else "<"
            self.say(f"const int z{n} = ({value} {better} a{n}[j]) | (({value} != {value}) & (a{n}[j] == a{n}[j]));")
            self.say(f"a{n}[j] = z{n} ? {value} : a{n}[j];", f"k{n}[j] = z{n} ? {self._position()} : k{n}[j];")
        elif self._buffered_sum(n):
            self.say(f"b{n}[j] = {i.op.code.format(x=f'b{n}[j]', y=value, t='f32')};")
        else:
            kind = accumulator(i)
            given = f"({value} != 0)" if i.dtype == dtypes.BOOL else f"({kind}){value}"
            self.say(f"a{n}[j] = {self._combined(n, f'a{n}[j]', given, kind)};")

    def _after_block(self, here: list[int], direct: dict[int, str], targets: dict) -> None:
        if self.nest.form == ROWS:
            for n in here:
                self._reduce_block(n, direct.get(n, f"r{n}"))
        for k, (_, form) in targets.items():
            ref = self.kernel.outputs[k][0]
            if form == "half":
                self.say(f"tb_store_{dtypes.tag(ref.dtype)}(q{k} + b, d{k}, m);")
            elif form == "stream":
                self.say(f"if (streams > 1) tb_stream(q{k} + b, e{k}, m * (int)sizeof(e{k}[0]));")

    def _reduce_block(self, n: int, buffer: str) -> None:
        i = self.body[n]
        suffix = tag(self.body[i.args[0]].dtype)
        if i.op.dtype == "index":
            better = ">" if i.op.name == "argmax" else "<"
            base = self._position("b")
            value_type = ctype(self.body[i.args[0]].dtype)
            self.open("")
            self.say("int where;")
            self.say(f"const {value_type} most = tb_block_{i.op.name}_{suffix}({buffer}, m, &where);")
            self.open(f"if (most {better} a{n} || (most != most && a{n} == a{n}))")
            self.say(f"a{n} = most;", f"k{n} = {base} + where;")
            self.close(2)
        else:
            self.say(
                f"a{n} = {self._combined(n, f'a{n}', f'tb_block_{i.op.name}_{suffix}({buffer}, m)', accumulator(i))};"
            )
