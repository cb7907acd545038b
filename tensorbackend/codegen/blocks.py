# SPDX-License-Identifier: Apache-2.0
"""The loop over a kernel's inner axis in C, a block at a time.

Halves are converted into stack buffers before the loop over a block; results that go past the cache are computed into
one and streamed after it; what is reduced goes into one for the block reducers of `kernels/c/reduce.h`, which add up in
a fixed order. Where everything lies side by side, a block is whole vectors, and what is left at the end is padded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorbackend import dtypes
from tensorbackend.codegen.lanes import ALIGNED
from tensorbackend.codegen.nest import COLUMNS, MAP, ROWS, Nest
from tensorbackend.codegen.pipes import PipeRenderer
from tensorbackend.codegen.render import accumulator, ctype, tag
from tensorbackend.graph.plan import Ref

__all__ = ["BlockRenderer"]

BLOCK = 1024
HALF_BLOCK = 256  # elementwise work on halves: 1 KB a buffer, or the first-level cache loses what has been converted
FAR_BLOCK = 64
"""Elements of a block of elementwise work on memory beyond the caches: so few that the processor computes one block
while it stores the one before and fetches those to come."""
AHEAD = 4096
"""Bytes from what is read to what is asked for: further than processors look by themselves."""

SHORT_ROW = 256
"""Elements up to which rows that lie apart are asked for, so many rows ahead: processors do not look that far."""
ROWS_AHEAD = 2


class BlockRenderer(PipeRenderer):
    """A dialect that can print the loop over the inner axis, for a map, or one pass over a row or a strip of columns.

    `stage` is the pass that is printed. `kept_value` is a value that the pass `kept_stage` leaves in the output, for
    later passes to read; `kept_lane` is where a loop over the last vector of a block reads it. `at_once`: results of
    the padded loop that is printed leave when they are computed, where `_lines` says so. `span` is where the loop over
    a row begins and ends, if it is not the whole row.
    """

    def __init__(self, found: Nest, split: bool) -> None:
        super().__init__(found, split)
        self.stage = 0
        self.kept_value: int | None = None
        self.kept_stage = 0
        self.kept_lane = ""
        self.at_once = False
        self.span: tuple[str, str] | None = None

    def _block_loop(self, goals: list[int], here: list[int], store: bool) -> None:
        """The loop over the inner axis, a block at a time."""
        inner = self.nest.inner
        needed = self._needed(goals)
        columns = self.nest.form == COLUMNS
        lo, hi = ("from", "to") if self.nest.form != ROWS else self.span or ("0", f"n{inner}")
        if inner == self.segment_axis:
            lo, hi = self._range(inner)
        if store and self.nest.form == ROWS and self.kept_value is None and self._is_contiguous(needed):
            self.open("")
            self.say(f"const tb_i64 from = {lo}, to = {hi};")
            self._padded_values(needed)
            self.close()
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

    @staticmethod
    def _range(axis: int) -> tuple[str, str]:
        """Where a segment begins and ends."""
        return "part * segment", f"((part + 1) * segment < n{axis} ? (part + 1) * segment : n{axis})"

    def _buffered_block(self, loop: list[int], here: list[int], direct: dict[int, str], buffers: dict[int, str],
                        store: bool) -> None:  # fmt: skip
        """One block: compute what is stored or reduced, into buffers for the block reducers where they need them."""
        for n in here:
            if n not in direct and self.nest.form != COLUMNS:
                self.say(f"{ctype(self.body[self.body[n].args[0]].dtype)} r{n}[{self._block()}];")
        targets = self._prepare_outputs() if store else {}
        goals_in_loop = [n for n in here if n not in direct]
        if store or goals_in_loop or self._keeps(loop):
            self._inner_loop(loop, goals_in_loop, targets, buffers)
        self._after_block(here, direct, targets)

    def _inner_loop(self, loop: list[int], here: list[int], targets: dict, buffers: dict[int, str]) -> None:
        ends = not buffers and self._ends_first(loop, targets)
        if ends:
            self._last_vector(loop, here, targets)
        self.say("#pragma GCC ivdep")
        self.open(f"for (int j = 0; j < {'full' if ends else 'm'}; ++j)")
        self._element_of_block(loop, buffers)
        for n in here:
            self._accumulate(n)
        for k, (place, form) in targets.items():
            self._store(k, place, form)
        self.close()
        if ends:
            place, lanes, size = f"{self._output_row(0)} + b", self._lanes(), self.kernel.outputs[0][0].dtype.itemsize
            self.say(f"if (m >= {lanes} && m > full) __builtin_memcpy({place} + m - {lanes}, z0, {lanes * size});")
            self.say(f"else if (m > full) tb_unpad({place}, z0, m * {size}, {lanes * size});")

    def _ends_first(self, loop: list[int], targets: dict) -> bool:
        """Whether the last vector of a block is computed before the others: of what is kept in the output, and of what
        follows from it. It may overlap the one before, and takes no longer than it."""
        if self.kept_value is None or self.nest.form != ROWS or self.nest.short is not None or len(targets) > 1:
            return False
        follows = self.stage > self.kept_stage and {k: form for k, (_, form) in targets.items()} == {0: "plain"}
        kept = self._keeps(loop) and not targets
        alongside = self._stride_class(self.kernel.outputs[0][0], self.nest.inner) == "one"
        return (kept or follows) and alongside and self._reads_side_by_side(loop)

    def _last_vector(self, loop: list[int], here: list[int], targets: dict) -> None:
        """The last vector of a block, to `z0`; of a block that has none, what there is, padded."""
        lanes, ref = self._lanes(), self.kernel.outputs[0][0]
        self.say(f"const int full = m & -{lanes};", f"{ctype(ref.dtype)} z0[{lanes}] {ALIGNED};")
        self.open("if (m > full)")
        buffers = {}
        for n in loop:
            i = self.body[n]
            if self._is_kept(n):
                self.kept_lane = self._last_of("kept", f"{self._output_row(0)} + b", ref, lanes)
            elif i.kind == "load" and self._stride_class(self.kernel.inputs[i.slot], self.nest.inner) == "one":
                buffers[n] = self._last_of(f"{i.slot}", f"p{i.slot} + b", self.kernel.inputs[i.slot], lanes)
        self.say("#pragma GCC ivdep")
        self.open(f"for (int l = 0; l < {lanes}; ++l)")
        self.say(f"const int j = (m < {lanes} ? 0 : m - {lanes}) + l;")
        self._element_of_block(loop, buffers, "z0[l]")
        for n in here:
            self._accumulate(n)
        for k in targets:
            self._store(k, f"z{k}[l]", "plain")
        self.kept_lane = ""
        self.close(2)

    def _last_of(self, name: str, place: str, ref: Ref, lanes: int) -> str:
        """Where lane l of the last vector of a block, or row, of m elements is read, which begins at a place."""
        kind, size = ctype(ref.dtype), ref.dtype.itemsize
        self.say(f"{kind} t{name}[{lanes}] {ALIGNED};")
        padded = f"(const {kind} *)tb_pad(t{name}, {place}, m * {size}, {lanes * size})"
        self.say(f"const {kind} *const y{name} = m < {lanes} ? {padded} : {place} + m - {lanes};")
        return f"y{name}[l]"

    def _keeps(self, loop: Sequence[int]) -> bool:
        """Whether a loop leaves a value in the output for later passes."""
        return self.stage == self.kept_stage and self.kept_value in loop

    def _element_of_block(self, loop: list[int], buffers: dict[int, str], kept: str = "") -> None:
        """The values of element j of a block; the one that is kept goes to its place, or to `kept`."""
        self.say("const tb_i64 at = b + j;", "(void)at;")
        self._statements(loop, {**self._shared(loop), **buffers})
        if self._keeps(loop):
            self.say(f"{kept or self._kept_place()} = v{self.kept_value};")

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

    def _buffered_sum(self, n: int) -> bool:
        """Column sums of float32 add up a few rows in float32 before they go to float64."""
        i = self.body[n]
        return self.nest.form == COLUMNS and i.op.dtype == "sum" and i.dtype == np.float32

    def _after_block(self, here: list[int], direct: dict[int, str], targets: dict) -> None:
        if self.nest.form == ROWS:
            for n in here:
                self._reduce_block(n, direct.get(n, f"r{n}"))
        for k, (_, form) in targets.items():
            ref = self.kernel.outputs[k][0]
            if form == "half":
                self.say(f"tb_store_{dtypes.tag(ref.dtype)}(q{k} + b, d{k}, m);")
            elif form == "stream":
                self.say(f"if (streams & TB_STREAM_PAST) tb_stream(q{k} + b, e{k}, m * (int)sizeof(e{k}[0]));")

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

    # Where a block is read and written

    def _block(self) -> int:
        """Elements of a block."""
        operands = [*self.kernel.inputs, *(ref for ref, _ in self.kernel.outputs)]
        halves = any(dtypes.is_half(ref.dtype) for ref in operands)
        return HALF_BLOCK if halves and self.nest.form == MAP else BLOCK

    def _prepare_inputs(self, needed: list[int], fetched: bool = False) -> dict[int, str]:
        """Addresses of what the block reads; what lies apart is brought side by side into a buffer, and halves are
        converted into one.

        `fetched`: the loop itself asks for what is not halves before it is needed.
        """
        buffers = {}
        for n in needed:
            i = self.body[n]
            if i.kind != "load":
                continue
            ref = self.kernel.inputs[i.slot]
            self.say(f"const {ctype(ref.dtype)} *const p{i.slot} = i{i.slot}{self._offset(i.slot, ref)};")
            kind, place = self._stride_class(ref, self.nest.inner), f"p{i.slot} + b"
            half = dtypes.is_half(ref.dtype)
            if kind == "zero" or (self.nest.turned(ref) and self.nest.short is None):
                continue
            if self.nest.turned(ref):
                place = self._turned_place(f"&turned{i.slot}", "0")
                buffers[n] = self._turned_place(f"turned{i.slot}", "j")
            elif kind == "one":
                self._ask_ahead(i.slot, ref, fetched and not half)
            else:
                step, size = f"s{i.slot}_{self.nest.inner}", ref.dtype.itemsize
                self.say(f"{ctype(ref.dtype)} g{i.slot}[{self._block()}];")
                self.say(f"tb_apart{size}(g{i.slot}, {place} * {step}, {step}, m);")
                place, buffers[n] = f"g{i.slot}", f"g{i.slot}[j]"
            if half:
                self.say(f"float h{i.slot}[{self._block()}];")
                self.say(f"tb_load_{dtypes.tag(ref.dtype)}(h{i.slot}, {place}, m);")
                buffers[n] = f"h{i.slot}[j]"
        return buffers

    def _ask_ahead(self, slot: int, ref: Ref, fetched: bool) -> None:
        """Ask for what later blocks read: of this row, or in the second pass over a band, of the next band."""
        place, size = f"p{slot} + b", f"m * {ref.dtype.itemsize}"
        apart = self.nest.reduced[-1] if self.nest.form == ROWS and self.stage == 1 and self.nest.reduced else None
        if apart is not None and ref.shape[apart] != 1 and ref.strides[apart] not in (0, 1):
            step = f"{ROWS_AHEAD} * s{slot}_{apart}"
            self.say(f"if (n{self.nest.inner} <= {SHORT_ROW}) tb_prefetch({place} + {step}, {size});")
        if self.nest.form == MAP or (self.nest.form == ROWS and self.stage == 1 and not fetched):
            self.say(f"if ({self._early(slot)}) tb_prefetch({place} + {AHEAD // ref.dtype.itemsize}, {size});")
        elif self.stage == 2 and slot in self.late and not fetched:
            self.say(f"if (near) tb_prefetch({place} + band * {self._across()}, {size});")

    def _direct_sources(self, here: list[int], needed: list[int]) -> dict[int, str]:
        """Reductions of plain contiguous input, or of what this pass keeps: the reducer reads it where it lies."""
        direct = {}
        for n in here:
            source = self.body[n].args[0]
            i = self.body[source]
            if source == self.kept_value and self.stage >= self.kept_stage:
                direct[n] = f"{self._output_row(0)} + b"
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
            if self.nest.laid(ref):
                targets[k] = (self._turned_place(f"laid{k}", "j"), "plain")
            elif self._stride_class(ref, self.nest.inner) != "one":
                targets[k] = (self._output_place(k, ref), "plain")
            elif dtypes.is_half(ref.dtype):
                self.say(f"float d{k}[{self._block()}];")
                targets[k] = (f"d{k}[j]", "half")
            elif ref.dtype.itemsize >= 4 and self.kept_value is None:
                self.say(f"{kind} e{k}[{self._block()}] __attribute__((aligned(64)));")
                self.say(f"{kind} *const d{k} = streams & TB_STREAM_PAST ? e{k} : q{k} + b;")
                targets[k] = (f"d{k}[j]", "stream")
            else:
                targets[k] = (f"q{k}[b + j]", "plain")
        return targets

    def _output_place(self, k: int, ref: Ref) -> str:
        slot = len(self.kernel.inputs) + k
        kind = self._stride_class(ref, self.nest.inner)
        return f"q{k}[0]" if kind == "zero" else f"q{k}[(b + j) * s{slot}_{self.nest.inner}]"

    def _turned_place(self, buffer: str, column: str) -> str:
        """Where an element of a short row lies in the buffer that its operand is turned into."""
        return f"{buffer}[x{self.nest.short} * {self.nest.pitch} + {column}]"

    def _is_kept(self, n: int) -> bool:
        """Whether an earlier pass left the value in the output."""
        return n == self.kept_value and self.stage > self.kept_stage

    def _kept_place(self) -> str:
        if self.kept_lane:
            return self.kept_lane
        if self.nest.laid(self.kernel.outputs[0][0]):
            return self._turned_place("laid0", "(at - from)")
        return f"({self._output_row(0)})[at]"

    def _output_row(self, k: int) -> str:
        """Where the row of an output begins that the loops over rows are at."""
        return f"o{k}{self._offset(len(self.kernel.inputs) + k, self.kernel.outputs[k][0])}"

    # Padded blocks

    def _padded_values(self, needed: list[int]) -> None:
        """Values that are stored, in padded blocks, after what all of a row's blocks share."""
        before = [n for n in needed if not self.nest.varies(self.body[n])]
        self._statements(before)
        self._padded_loop([n for n in needed if n not in before])

    def _is_contiguous(self, loop: list[int]) -> bool:
        """Whether all that a loop reads and stores along the inner axis lies side by side."""
        stores = [self.kernel.outputs[k][0] for k in self._stored()]
        along = [self._stride_class(ref, self.nest.inner) for ref in stores]
        return set(along) == {"one"} and self._reads_side_by_side(loop)

    def _stored(self) -> list[int]:
        """The outputs with an element for each of the space."""
        return [k for k in range(len(self.kernel.outputs)) if self._full_output(k)]

    def _padded_loop(self, loop: list[int]) -> None:
        """The loop over the inner axis, by whole vectors: what is left at the end is padded in buffers to one more, and
        so is what lies before a line of the cache where results go past it.

        So the compiler has one loop to make, without the remainders of its own. The last vector of a row that has at
        least one is computed first and stored at the end, over some of what the others store: that takes less time
        than to pad, and operands may be results.
        """
        inner, lanes, block = self.nest.inner, self._lanes(), self._block()
        self.at_once = self._leaves_at_once(loop)
        ends = self._ends_overlap()
        if ends:
            whole = f"streams & TB_STREAM_PAST || to - from < {lanes}"
            self.say(f"const int over = {whole} ? 0 : (int)(to - from) & {lanes - 1};")
            self.say(*(f"{ctype(self.kernel.outputs[k][0].dtype)} z{k}[{lanes}] {ALIGNED};" for k in self._stored()))
            self.say("int last = over > 0;")
            self.open(f"for (tb_i64 b = last ? to - {lanes} : from, stop = to - over; last || b < stop;)")
            self.say(f"const tb_i64 left = last ? {lanes} : stop - b;")
        else:
            self.open("for (tb_i64 b = from; b < to;)")
            self.say("const tb_i64 left = to - b;")
        self.say(f"const int head = {self._to_a_line()};")
        self.say(f"const int tail = left < {lanes} || head;")
        asks = f"streams & ({self._lines()} ? TB_STREAM_AHEAD : -1)" if self.at_once else "streams"
        self.say(f"const int most = {asks} ? {FAR_BLOCK} : {block};")
        self.say(f"const int m = tail ? {lanes} : left < most ? (int)left & -{lanes} : most;")
        self.say("const int n = !tail ? m : head && head < left ? head : (int)left;")
        read = sorted({self.body[n].slot for n in loop if self.body[n].kind == "load"})
        rows = {slot: ref for slot in read if self._stride_class(ref := self.kernel.inputs[slot], inner) == "one"}
        spread = self.nest.spread_slots
        for slot, ref in rows.items():
            kind = ctype(ref.dtype)
            place = f"y{slot} + (b - from)" if slot in spread else f"i{slot}{self._offset(slot, ref)} + b"
            self.say(f"const {kind} *p{slot} = {place};")
            self.say(f"{kind} t{slot}[{lanes}] {ALIGNED};")
        targets = {k: self._padded_output(k, self.kernel.outputs[k][0], lanes) for k in self._stored()}
        when = "streams & TB_STREAM_AHEAD && !near" if self.late else "streams & TB_STREAM_AHEAD"
        far = {slot: ref for slot, ref in rows.items() if slot not in spread}
        self.say(f"if ({when}) {{ {' '.join(self._fetch(slot, ref, len(far)) for slot, ref in far.items())} }}")
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
        self.say(*(("b = last ? from : b + n;", "last = 0;") if ends else ("b += n;",)))
        self.close()
        for k in self._stored() if ends else ():
            size = lanes * self.kernel.outputs[k][0].dtype.itemsize
            self.say(f"if (over) __builtin_memcpy({self._output_row(k)} + to - {lanes}, z{k}, {size});")

    def _ends_overlap(self) -> bool:
        """Whether the last vector of what a padded loop goes over may overlap the one before: that of rows, of which
        each has an end, where all vectors are of one length."""
        by_rows = self.nest.form == ROWS or (self.nest.kept and not self.nest.spread)
        return bool(self.at_once and by_rows)

    def _to_a_line(self) -> str:
        """The elements before the first output's next line of the cache: stores past the cache are of whole lines."""
        return f"TB_PAST && streams & TB_STREAM_PAST ? {before} : 0" if (before := self._to_line("-", " + b")) else "0"

    def _over_a_line(self) -> str:
        """The elements of a line of the cache that lie before a row of the first output."""
        return self._to_line() or "0"

    def _to_line(self, sign: str = "", at: str = "") -> str:
        """The elements from a line of the cache to the first output's element `at`, or with "-" on to the next line."""
        for k in self._stored():
            ref = self.kernel.outputs[k][0]
            if ref.dtype.itemsize >= 4:
                place = f"{self._output_row(k)}{at}"
                return f"(int)({sign}(unsigned long)({place}) & 63) / {ref.dtype.itemsize}"
        return ""

    def _fetch(self, slot: int, ref: Ref, count: int) -> str:
        """Ask for what is read later: further on in one of `count` rows, or what follows a row that an earlier pass
        has read."""
        if self.stage > 1 and not self.split:
            return f"tb_fetch_after(p{slot} + left, b);"
        return f"tb_{'reach' if count == 1 else 'fetch'}{ref.dtype.itemsize}(p{slot});"

    def _leaves_at_once(self, loop: list[int]) -> bool:
        """Whether all that the loop reads and stores is of one size: a line of each goes with a line of the others."""
        reads = [self.kernel.inputs[self.body[n].slot] for n in loop if self.body[n].kind == "load"]
        stores = [self.kernel.outputs[k][0] for k in self._stored()]
        sizes = {ref.dtype.itemsize for ref in [*reads, *stores]}
        return sizes in ({4}, {8})

    def _lines(self) -> str:
        """The macro that tells whether results leave by lines: those of a map where a line is one vector, those of rows
        wherever something can be stored past the caches."""
        return "TB_PAST" if self.nest.form == ROWS else "TB_WHOLE_LINES"

    def _padded_output(self, k: int, ref: Ref, lanes: int) -> tuple[str, str]:
        """Declare where an output's results go in the loop: in place, or into a buffer."""
        kind = ctype(ref.dtype)
        self.say(f"{kind} *const q{k} = {self._output_row(k)} + b;")
        if self._narrows(k):
            self.say(f"{kind} e{k}[{lanes}] {ALIGNED}, *const w{k} = tail ? e{k} : q{k};")
            self.say(f"float d{k}[{self._block()}];")
            return f"d{k}[j]", "half"
        self.say(f"{kind} e{k}[{FAR_BLOCK}] {ALIGNED};")
        aligned = f"!tail && n % {64 // ref.dtype.itemsize} == 0 && ((unsigned long)q{k} & 63) == 0"
        past = f"TB_PAST && streams & TB_STREAM_PAST && {aligned}" if ref.dtype.itemsize >= 4 else "0"
        buffered = f"past{k} && !{self._lines()}" if self.at_once else f"past{k}"
        place = f"{buffered} || tail ? e{k} : q{k}"
        first = f"last ? z{k} : " if self._ends_overlap() else ""
        self.say(f"const int past{k} = {past};", f"{kind} *const d{k} = {first}{place};")
        return f"d{k}[j]", "stream"

    def _narrows(self, k: int) -> bool:
        """Whether a loop's results become halves, of which each is another."""
        ref, value = self.kernel.outputs[k]
        return dtypes.is_half(ref.dtype) and self.nest.varies(self.body[value])

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
        if self.at_once:
            self.say(f"#if {self._lines()}")
            self._loop_of_lines(loop, buffers)
            self.say("#else")
        self._inner_loop(loop, [], targets, buffers)
        if self.at_once:
            self.say("#endif")
        for k in targets:
            if self._narrows(k):
                ref = self.kernel.outputs[k][0]
                self.say(f"tb_store_{dtypes.tag(ref.dtype)}(w{k}, d{k}, m);")

    def _loop_of_lines(self, loop: list[int], buffers: dict[int, str]) -> None:
        """The loop over a padded block, each line of whose results leaves from the register that it is computed in."""
        outputs = {k: self.kernel.outputs[k][0].dtype for k in self._stored()}
        step = 64 // min(dtype.itemsize for dtype in outputs.values())
        reads = {self.body[n].slot for n in loop if n in buffers and self.body[n].kind == "load"}
        reads = sorted(reads - self.nest.spread_slots)
        self.open(f"for (int g = 0; g < m; g += {step})")
        if reads and not self.split:
            ask = " ".join(f"{self._next_of(slot, len(reads))};" for slot in reads)
            self.say(f"if (__builtin_expect(streams & TB_STREAM_NEXT, 0)) {{ {ask} }}")
        self.say(*(f"{ctype(dtype)} u{k}[{step}] {ALIGNED};" for k, dtype in outputs.items()))
        self.say("#pragma GCC ivdep")
        self._open_lanes(str(step), "g", loop, buffers)
        for k in outputs:
            self._store(k, f"u{k}[l]", "plain")
        self.close()
        self.say(*(f"tb_leave(d{k} + g, u{k}, past{k});" for k in outputs))
        self.close()

    def _next_of(self, slot: int, count: int) -> str:
        """What asks for what is read later, beside the line from element g on: further on, or of the next band. Where
        that is all that is read, it has the time to come into the second-level cache only."""
        if self.nest.form != ROWS:
            return f"tb_next1(p{slot} + g)"
        return f"tb_{'bring' if count == 1 else 'touch'}1(p{slot} + g + next)"

    def _take_back(self, k: int, ref: Ref, lanes: int) -> None:
        """Move an output's results from its buffer to where they belong."""
        size = ref.dtype.itemsize
        if not self._narrows(k):
            buffered = f"past{k} && !{self._lines()}" if self.at_once else f"past{k}"
            self.say(f"if ({buffered}) tb_stream(q{k}, e{k}, n * {size});")
        self.say(f"if (tail) tb_unpad(q{k}, e{k}, n * {size}, {lanes * size});")

    def _lanes(self) -> int:
        """Elements of the widest vector (64 bytes) of the smallest type that a loop handles."""
        varying = [n for n, i in enumerate(self.body) if self.nest.varies(i)]
        values = [4 if self.wide[n] else self.body[n].dtype.itemsize for n in varying]
        stores = [ref.dtype.itemsize for ref, _ in self.kernel.outputs]
        reads = [self.kernel.inputs[self.body[n].slot].dtype.itemsize for n in varying if self.body[n].kind == "load"]
        return 64 // min([*values, *stores, *reads])
