# SPDX-License-Identifier: Apache-2.0
"""The C dialect: a kernel's loop nest as C that gcc and clang vectorise by themselves.

Here are the outer loops: maps, rows, and columns in strips; rows of several passes go in bands (`bands.py`). Inside
them run the loops over blocks (`blocks.py`): those of maps of halves have a second form on vectors (`wide.py`), and
those of sums one that adds up as it goes (`lanes.py`). Long reductions are cut into segments (`segments.py`). No system
header is included.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache, partial

from tensorbackend import dtypes
from tensorbackend.codegen.joined import WIDEST
from tensorbackend.codegen.lanes import ALIGNED
from tensorbackend.codegen.near import NearRenderer
from tensorbackend.codegen.nest import COLUMNS, MAP, ROWS, SHORT, Nest, Pattern
from tensorbackend.codegen.render import Printed, accumulator, ctype
from tensorbackend.graph.plan import Instruction, Ref

__all__ = ["fits_pieces", "print_kernel"]

HEADER = "kernel.h"
STRIP = 1024
TILE = 64
FEW_ROWS = 16
"""Rows that a column sum of float32 adds up in float32 before it goes to float64."""
ROWS_AT_ONCE = 4
"""Rows that a reduction of columns takes between two looks at its running results."""
STRETCH = 1024
"""Elements of joined rows for which inputs are spread at a time."""
COSTLY = 8
"""Floating-point operations from which on a value is kept for the next pass rather than computed again."""


def print_kernel(found: Nest, split: bool = False, by_pieces: bool = False) -> Printed:
    """Print the kernel of a nest. `split` prints functions to launch one after the other, so that threads share long
    reductions: for each pass partial results of segments and what joins them, then the loop that writes what is not
    reduced. `by_pieces`: long rows of sums are stored by pieces, beside the sums of the next one (`bands.py`).
    """
    return _print(found.pattern(), split, by_pieces)._replace(nest=found)


@lru_cache(maxsize=1024)
def _print(pattern: Pattern, split: bool, by_pieces: bool) -> Printed:
    return _Printer(pattern.nest(), split, by_pieces).result()


def fits_pieces(found: Nest) -> bool:
    """Whether rows of sums can be stored by pieces."""
    return _Printer(found, split=False, by_pieces=True).fits_pieces()


class _Printer(NearRenderer):
    header = HEADER
    sizes = ("chunk", "pieces", "group", "streams", "segments", "segment")

    def __init__(self, found: Nest, split: bool, by_pieces: bool) -> None:
        super().__init__(found, split, by_pieces)
        if found.width:
            strides = [f"{name}{spread.slot}" for spread in found.spread for name in ("along", "across")]
            self.sizes = (*self.sizes, "width", *strides)
        self.kept_value, self.kept_stage = self._value_to_keep()

    def _signature(self, name: str) -> str:
        parameters = "const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin, tb_i64 end"
        return f"void {name}(void *const *ptr, {parameters})"

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
        if self.nest.short is not None:
            return self._widened(ref, self._turned_place(f"turned{i.slot}", "(at - from)"))
        return self._widened(ref, f"turned{i.slot}[(row - first) * {TILE} + (at - from)]")

    def _value_to_keep(self) -> tuple[int | None, int]:
        """A costly value of an early pass that waits in the output for the last pass, and the pass that makes it."""
        outputs = self.kernel.outputs
        if not self.nest.passes or len(outputs) != 1 or not self._full_output(0):
            return None, 0
        ref, result = outputs[0]
        if self._stride_class(ref, self.nest.inner) != "one" and not self.nest.laid(ref):
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
        begin, self.shares = len(self.lines), False
        self._statements([n for n, i in enumerate(self.body) if self._constant(i)])
        if self.nest.form == MAP and not self.nest.kept:
            self._flat_map()
        elif self._goes_in_bands():
            last = f"end * group < {self._rows()} ? end * group : {self._rows()}"
            self.say(f"const tb_i64 first = begin * group, last = {last};")
            self._bands()
        else:
            self._task_loop()
        if self.shares:
            self.lines.insert(begin, "    TB_ONE;")
        self.say("tb_stream_end(streams);")

    def _task_loop(self) -> None:
        """The loop over tasks: rows of a group, of a segment or a tile, and for maps and columns a piece of each."""
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
            if self._turns_alone():
                self._turn_into_place()
                self.close()
                return
            self._turn_tiles()
        self._open_rows()
        {MAP: self._map, ROWS: self._rows_form, COLUMNS: self._columns}[self.nest.form]()
        self.close(2)

    def _open_rows(self) -> None:
        """Begin the loop over rows. Where these have several axes, places on them are counted: to divide takes longer
        than to move a short row."""
        axes, following = self.nest.kept, ""
        if len(axes) > 1:
            self._row_position(axes, "first", "tb_i64")
            following = f"++x{axes[0]}"
            for axis in axes[1:]:
                following = f"x{axis} = x{axis} + 1 < n{axis} ? x{axis} + 1 : ({following}, 0)"
            following = f", {following}"
        self.open(f"for (tb_i64 row = first; row < last; ++row{following})")
        if len(axes) == 1:
            self._row_position(axes, "row")

    def _turn_tiles(self) -> None:
        """Copy the tiles of inputs that lie across, reading along their memory."""
        for slot, ref in enumerate(self.kernel.inputs):
            if self.nest.turned(ref):
                self.say(f"{ctype(ref.dtype)} turned{slot}[{TILE * TILE}];")
        self.open("")
        self._row_position(self.nest.kept, "first")
        for slot, ref in enumerate(self.kernel.inputs):
            if self.nest.turned(ref):
                self._turn(slot, ref, f"turned{slot}", str(TILE))
        self.close()

    def _turn(self, slot: int, ref: Ref, target: str, pitch: str) -> None:
        """Turn an input's tile into rows that lie `pitch` apart."""
        step = f"s{slot}_{self.nest.inner}"
        self.say(
            f"tb_turn{ref.dtype.itemsize}((const void *)(i{slot}{self._offset(slot, ref)} + from * {step}), {step}, "
            f"(int)(to - from), (int)(last - first), (void *)({target}), {pitch});"
        )

    def _turns_alone(self) -> bool:
        """Whether all that a map by tiles does is to turn them, to where their rows lie side by side."""
        (source, *others), (target, *_) = self.kernel.inputs, [ref for ref, _ in self.kernel.outputs]
        one = not others and len(self.body) == len(self.kernel.outputs) == 1 and source.dtype == target.dtype
        return one and self._stride_class(target, self.nest.inner) == "one"

    def _turn_into_place(self) -> None:
        self._row_position(self.nest.kept, "first")
        target = self.kernel.outputs[0][0]
        alone = self._stride_class(target, self.nest.tiled) == "zero"  # a tail's only column
        pitch = "0" if alone else f"s1_{self.nest.tiled}"
        self._turn(0, self.kernel.inputs[0], f"o0{self._offset(1, target)} + from", pitch)

    def _flat_map(self) -> None:
        """A map along one axis: tasks that follow each other are one stretch of it."""
        n = f"n{self.nest.inner}"
        self.say(f"const tb_i64 from = begin * chunk, to = end * chunk < {n} ? end * chunk : {n};")
        self._map()

    def _map(self) -> None:
        if self.nest.copies:
            self._copied_row()
            return
        self._statements([n for n, i in enumerate(self.body) if not self._constant(i) and not self.nest.varies(i)])
        if self.nest.near:
            self._near_row()
            return
        goals = [value for _, value in self.kernel.outputs]
        loop = self._needed(goals)
        if self.nest.spread:
            self._stretches(loop)
        elif self._is_contiguous(loop):
            self._padded_loop(loop)
        else:
            self._block_loop(goals, [], store=True)

    def _copied_row(self) -> None:
        source, target = self.kernel.inputs[0], self.kernel.outputs[0][0]
        places = f"o0{self._offset(1, target)} + from, i0{self._offset(0, source)} + from"
        self.say(f"tb_copy_row({places}, (to - from) * {source.dtype.itemsize});")

    def _stretches(self, loop: list[int]) -> None:
        """The loop over joined rows, a stretch at a time, for which inputs are spread into buffers."""
        for slot, form, _, _ in self.nest.spread:
            ref = self.kernel.inputs[slot]
            kind, size = ctype(ref.dtype), ref.dtype.itemsize
            self.say(f"{kind} spread{slot}[{STRETCH + WIDEST + 64}] {ALIGNED};")
            self.say(f"const {kind} *const r{slot} = i{slot}{self._offset(slot, ref)}, *y{slot} = spread{slot};")
            if form == "period":
                count = f"(to - from < {STRETCH} ? to - from : {STRETCH}) + width"
                self.say(f"tb_period{size}(spread{slot}, r{slot}, across{slot}, width, {count});")
        self.say("const tb_i64 begun = from, ended = to;")
        self.open(f"for (tb_i64 lead = begun; lead < ended; lead += {STRETCH})")
        self.say(f"const tb_i64 from = lead, to = lead + {STRETCH} < ended ? lead + {STRETCH} : ended;")
        for slot, form, _, _ in self.nest.spread:
            if form == "period":
                self.say(f"y{slot} = spread{slot} + lead % width;")
                continue
            strides = f"along{slot}, across{slot}" if form == "rows" else f"along{slot}"
            size = self.kernel.inputs[slot].dtype.itemsize
            self.say(f"tb_{form}{size}(spread{slot}, r{slot}, {strides}, width, from, to - from);")
        self._padded_loop(loop)
        self.close()

    def _passes(self, after: Callable[[int], None]) -> bool:
        """The passes over the reduced axes, `after` each what follows from it, and the loop that stores what is not
        reduced. False where the function ends with a pass over segments."""
        for stage in range(1, self.nest.passes + 1):
            self.stage = stage
            here = self._reduced_in(stage)
            if not self._joined_before(stage):
                self._reduce_pass(here)
            if stage == self.segmented_stage:
                self._leave_partials(here)
                return False
            after(stage)
        self.stage = self.nest.passes + 1
        if self._stored():
            self._reduce_loops([], store=True)
        return True

    def _rows_form(self) -> None:
        self._statements(self._given_rows())
        if self._passes(self._row_values) and not self.split:
            self._row_outputs("")

    def _row_values(self, stage: int) -> None:
        for n in self.reductions:
            if self.body[n].stage == stage:
                self._finish(n, *self._accumulated(n))
        self._statements(self._rows_after(stage))

    def _columns(self) -> None:
        self.say(f"const int {self.columns} = (int)(to - from);")
        if self.columns != "m":
            self.say(f"const int m = ({self.columns} + {self._lanes() - 1}) & -{self._lanes()};")
        self._statements(
            [n for n, i in enumerate(self.body) if not (self.full[n] or self._constant(i) or self.nest.varies(i))]
        )
        needed = self._array_values()
        for n in sorted(needed):
            self.say(f"{ctype(self.body[n].dtype)} w{n}[{STRIP}];")
        self._column_values(0, needed)
        self._turn_short_rows()
        if self._passes(lambda stage: self._column_values(stage, needed)):
            self._turn_back()
            self.in_arrays = needed
            if not self.split:
                self._row_outputs("column", self.columns)
            self.in_arrays = set()

    @cached_property
    def columns(self) -> str:
        """What names how many columns of a strip there are; `m` may be a few more."""
        return "some" if self._fills_up() else "m"

    def _fills_up(self) -> bool:
        """Whether loops over columns may go on to the end of a vector: where all that they read and store for each one
        lies in buffers. So compilers have no remainders to make."""
        if self.nest.short is None or self.kernel.draws:
            return False
        along = [ref for ref in self.kernel.inputs if self._stride_class(ref, self.nest.inner) != "zero"]
        full = [ref for k, (ref, _) in enumerate(self.kernel.outputs) if self._full_output(k)]
        return all(map(self.nest.turned, [*along, *full]))

    def _turn_short_rows(self) -> None:
        """Bring what lies along short rows into buffers, in which it lies along their columns."""
        pitch, room = self.nest.pitch, SHORT * self.nest.pitch
        for slot, ref in enumerate(self.kernel.inputs):
            if self.nest.turned(ref):
                first, step = self._short_rows(f"i{slot}", slot, ref)
                self.say(f"{ctype(ref.dtype)} turned{slot}[{room}] {ALIGNED};")
                tile = f"{self.columns}, (int)n{self.nest.short}, (void *)turned{slot}, {pitch}"
                self.say(f"tb_turn{ref.dtype.itemsize}((const void *)({first}), {step}, {tile});")
        for k, (ref, _) in enumerate(self.kernel.outputs):
            if self.nest.laid(ref):
                self.say(f"{ctype(ref.dtype)} laid{k}[{room}] {ALIGNED};")

    def _turn_back(self) -> None:
        """Move results of short rows from their buffers to where the rows lie."""
        for k, (ref, _) in enumerate(self.kernel.outputs):
            if self.nest.laid(ref):
                first, step = self._short_rows(f"o{k}", len(self.kernel.inputs) + k, ref)
                laid = f"(const void *)laid{k}, {self.nest.pitch}"
                tile = f"(int)n{self.nest.short}, {self.columns}, (void *)({first}), {step}"
                self.say(f"tb_turn{ref.dtype.itemsize}({laid}, {tile});")

    def _short_rows(self, name: str, slot: int, ref: Ref) -> tuple[str, str]:
        """Where the first of a strip of short rows begins, and how far they lie apart."""
        step = f"s{slot}_{self.nest.inner}"
        return f"{name}{self._offset(slot, ref, self.nest.short)} + from * {step}", step

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
