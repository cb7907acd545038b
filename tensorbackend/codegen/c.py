# SPDX-License-Identifier: Apache-2.0
"""The C dialect: a kernel's loop nest as C that gcc and clang vectorise by themselves.

Inner loops run over blocks of at most `BLOCK` elements: halves are converted into stack buffers before the loop,
results that go past the cache are computed into one and streamed after it, and reductions are handed to the block
reducers of `kernels/c/reduce.h`, which add up in a fixed order. No system header is included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tensorbackend import dtypes
from tensorbackend.codegen.nest import COLUMNS, MAP, ROWS, Nest, nest
from tensorbackend.graph.fuse import Instruction, Kernel, Ref

__all__ = ["Printed", "print_kernel"]

HEADER = "kernel.h"
BLOCK = 1024
STRIP = 512
TILE = 64
FEW_ROWS = 16
"""Rows that a column sum of float32 adds up in float32 before it goes to float64."""
C_TYPES = {
    "f16": "tb_u16", "bf16": "tb_u16", "f32": "float", "f64": "double", "b8": "tb_u8",
    **{f"{k}{n}": f"tb_{k}{n}" for k in "iu" for n in (8, 16, 32, 64)},
}  # fmt: skip
COSTLY = 8
"""Floating-point operations from which on a value is kept for the next pass rather than computed again."""


@dataclass
class Printed:
    """The C text of a kernel: the `source`, the name of the function (`name`), and of the second stage (`join`) of a
    reduction that is split, its `form` and the number of 8-byte partial results a segment leaves (`partials`)."""

    nest: Nest
    source: str
    name: str
    join: str | None = None
    partials: int = 0


def print_kernel(kernel: Kernel, split: bool = False) -> Printed:
    """Print a kernel. `split` prints two functions: partial results of segments, and their sum."""
    printer = _Printer(nest(kernel), split)
    return printer.result()


def _ctype(dtype: np.dtype) -> str:
    return C_TYPES[dtypes.tag(dtype)]


def _accumulator(i: Instruction) -> str:
    """The C type in which a reduction adds up or compares."""
    if i.op.dtype == "sum" and dtypes.is_float(i.dtype):
        return "double"
    return "tb_i64" if i.op.dtype == "index" else _ctype(i.dtype)


class _Printer:
    def __init__(self, found: Nest, split: bool) -> None:
        self.nest = found
        self.kernel = found.kernel
        self.body = found.kernel.body
        self.split = split
        self.lines: list[str] = []
        self.depth = 1
        self.in_arrays: set[int] = set()
        self.full = [found.is_full(i) for i in self.body]
        self.reductions = [n for n, i in enumerate(self.body) if i.kind == "reduce"]
        self.segment_axis = self._segment_axis() if split else None
        self.stage = 0
        self.kept_value: int | None = None
        self.kept_stage = 0
        self.kept_value, self.kept_stage = self._value_to_keep()

    def _segment_axis(self) -> int:
        return self.nest.reduced[0] if self.nest.reduced else self.nest.inner

    def _value_to_keep(self) -> tuple[int | None, int]:
        """A costly value of an early pass that waits in the output for the last pass, and the pass that makes it."""
        outputs = self.kernel.outputs
        if not self.nest.passes or self.split or len(outputs) != 1 or not self._full_output(0):
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

    def say(self, *lines: str) -> None:
        for line in lines:
            self.lines.append("    " * self.depth + line)

    def open(self, line: str) -> None:
        self.say(line + " {")
        self.depth += 1

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self.say("}")

    def result(self) -> Printed:
        self._function("KERNEL", self._bodies)
        join = None
        if self.split:
            self._function("KERNEL_join", self._join)
            join = "KERNEL_join"
        text = "\n".join(self.lines)
        source = f'#include "{HEADER}"\n{text}\n'
        name = "tb_" + hashlib.sha256(source.encode()).hexdigest()[:16]
        partials = len(self._partials()) if self.split else 0
        return Printed(self.nest, source.replace("KERNEL", name), name, join and name + "_join", partials)

    def _function(self, name: str, content: object) -> None:
        self.depth = 0
        self.say(
            f"void {name}(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar,"
            " tb_i64 begin, tb_i64 end) {"
        )
        self.depth = 1
        self._arguments()
        content()  # type: ignore[operator]
        self.depth = 0
        self.say("}")

    def _arguments(self) -> None:
        kernel, rank = self.kernel, len(self.kernel.shape)
        for slot, ref in enumerate(kernel.inputs):
            self.say(f"const {_ctype(ref.dtype)} *const i{slot} = ptr[{slot}];")
        for k, (ref, _) in enumerate(kernel.outputs):
            self.say(f"{_ctype(ref.dtype)} *const o{k} = ptr[{len(kernel.inputs) + k}];")
        if self.split:
            self.say(f"tb_i64 *const scratch = ptr[{len(kernel.inputs) + len(kernel.outputs)}];")
        for axis in range(rank):
            self.say(f"const tb_i64 n{axis} = size[{axis}];")
        names = ("chunk", "pieces", "group", "streams", "segments", "segment")
        self.say(*(f"const tb_i64 {name} = size[{rank + k}];" for k, name in enumerate(names)))
        for slot, ref in enumerate([*kernel.inputs, *(ref for ref, _ in kernel.outputs)]):
            for axis in range(rank):
                if self._stride_class(ref, axis) == "other":
                    self.say(f"const tb_i64 s{slot}_{axis} = stride[{slot * rank + axis}];")
        for k, (_, dtype) in enumerate(kernel.scalars):
            kind = "double" if dtypes.is_float(dtype) else "tb_i64"
            self.say(f"const {_ctype(dtype)} c{k} = ({_ctype(dtype)})tb_word_{kind}(scalar[{k}]);")
        for k in range(len(kernel.draws)):
            self.say(f"const tb_u64 draw{k} = (tb_u64)scalar[{len(kernel.scalars) + k}];")
        if kernel.draws:
            self.say(f"const tb_u64 key = (tb_u64)scalar[{len(kernel.scalars) + len(kernel.draws)}];")
        self.say("(void)size; (void)stride; (void)scalar; (void)chunk; (void)pieces; (void)group; (void)streams;")
        self.say("(void)segments; (void)segment;")

    def _stride_class(self, ref: Ref, axis: int) -> str:
        if ref.shape[axis] == 1 or ref.strides[axis] == 0:
            return "zero"
        return "one" if axis == self.nest.inner and ref.strides[axis] == 1 else "other"

    # Loops

    def _bodies(self) -> None:
        self._statements([n for n, i in enumerate(self.body) if self._constant(i)])
        self.open("for (tb_i64 task = begin; task < end; ++task)")
        where = "task"
        if self.split:
            self.say("const tb_i64 part = task % segments;")
            where = "(task / segments)"
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
                self.say(f"{_ctype(ref.dtype)} turned{slot}[{TILE * TILE}];")
        self.open("")
        self._row_position(self.nest.kept, "first")
        for slot, ref in enumerate(self.kernel.inputs):
            if not self.nest.turned(ref):
                continue
            inner = self.nest.inner
            self.open("for (tb_i64 at = from; at < to; ++at)")
            self.say(
                f"const {_ctype(ref.dtype)} *const line = i{slot}{self._offset(slot, ref)} + at * s{slot}_{inner};"
            )
            self.say(
                f"for (int r = 0; r < (int)(last - first); ++r) turned{slot}[r * {TILE} + (int)(at - from)] = line[r];"
            )
            self.close()
        self.close()

    def _rows(self) -> str:
        return " * ".join(f"n{a}" for a in self.nest.kept) or "1"

    def _row_position(self, axes: list[int], name: str) -> None:
        """x<axis> for each outer axis, from a row's number."""
        rest = name
        for axis in reversed(axes[1:]):
            self.say(f"const tb_i64 x{axis} = {rest} % n{axis};")
            rest = f"({rest} / n{axis})"
        if axes:
            self.say(f"const tb_i64 x{axes[0]} = {rest};")

    def _constant(self, i: Instruction) -> bool:
        return all(n == 1 for n in i.shape) and i.stage == 0 and i.kind != "reduce" and not self._is_place(i)

    def _is_place(self, i: Instruction) -> bool:
        return i.kind == "load" and any(s for s in self.kernel.inputs[i.slot].strides)

    def _map(self) -> None:
        inner = self.nest.inner
        self._statements([n for n, i in enumerate(self.body) if not self._constant(i) and i.shape[inner] == 1])
        goals = [value for _, value in self.kernel.outputs]
        self._block_loop(goals, [], store=True)

    def _rows_form(self) -> None:
        self._statements(
            [n for n, i in enumerate(self.body) if not self.full[n] and not self._constant(i) and i.stage == 0]
        )
        for stage in range(1, self.nest.passes + 1):
            self.stage = stage
            here = [n for n in self.reductions if self.body[n].stage == stage]
            for n in here:
                self._declare(n)
            self._reduce_loops(here)
            if self.split:
                self._leave_partials()
                return
            for n in here:
                self._finish(n, f"a{n}", f"k{n}")
            self._statements(self._rows_after(stage))
        self.stage = self.nest.passes + 1
        if any(self._full_output(k) for k in range(len(self.kernel.outputs))):
            self._reduce_loops([], store=True)
        self._row_outputs("")

    def _rows_after(self, stage: int) -> list[int]:
        return [n for n, i in enumerate(self.body) if not self.full[n] and i.stage == stage and i.kind != "reduce"]

    def _columns(self) -> None:
        self.say("const int m = (int)(to - from);")
        needed = self._array_values()
        for n in sorted(needed):
            self.say(f"{_ctype(self.body[n].dtype)} w{n}[{STRIP}];")
        self._column_values(0, needed)
        for stage in range(1, self.nest.passes + 1):
            self.stage = stage
            here = [n for n in self.reductions if self.body[n].stage == stage]
            for n in here:
                self._declare(n)
            self._reduce_loops(here)
            if self.split:
                self._leave_partials()
                return
            self._column_values(stage, needed)
        self.stage = self.nest.passes + 1
        if any(self._full_output(k) for k in range(len(self.kernel.outputs))):
            self._reduce_loops([], store=True)
        self.in_arrays = needed
        self._row_outputs("column")
        self.in_arrays = set()

    def _array_values(self) -> set[int]:
        """Values of a strip that later loops read: kept in arrays, one entry a column."""
        found = set()
        for n, i in enumerate(self.body):
            if self.full[n] or self._constant(i):
                continue
            readers = [k for k, other in enumerate(self.body) if n in other.args]
            output = any(value == n for _, value in self.kernel.outputs)
            later = any(self.full[k] or self.body[k].stage > i.stage or self.body[k].kind == "reduce" for k in readers)
            if output or later:
                found.add(n)
        return found

    def _column_values(self, stage: int, needed: set[int]) -> None:
        wanted = [
            n for n, i in enumerate(self.body)
            if not self.full[n] and not self._constant(i) and i.stage == stage
        ]  # fmt: skip
        if not wanted:
            return
        self.in_arrays = {n for n in needed if n not in wanted}
        self.say("#pragma GCC ivdep")
        self.open("for (int j = 0; j < m; ++j)")
        self.say("const tb_i64 at = from + j;")
        for n in wanted:
            if self.body[n].kind == "reduce":
                self._finish(n, f"a{n}[j]", f"k{n}[j]")
            else:
                self._statements([n])
            if n in needed:
                self.say(f"w{n}[j] = v{n};")
        self.close()
        self.in_arrays = set(needed)

    # Reductions

    def _declare(self, n: int) -> None:
        i = self.body[n]
        kind, start = _accumulator(i), self._start(n)
        array = f"[{STRIP}]" if self.nest.form == COLUMNS else ""
        value_type = _ctype(self.body[i.args[0]].dtype)
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

    def _start(self, n: int) -> str:
        i = self.body[n]
        dtype = self.body[i.args[0]].dtype if i.op.dtype == "index" else i.dtype
        return {"zero": "0", "one": "1", "lowest": f"TB_LOWEST_{_tag(dtype)}", "highest": f"TB_HIGHEST_{_tag(dtype)}"}[
            i.op.identity
        ]

    def _reduce_loops(self, here: list[int], store: bool = False) -> None:
        """The loops over the reduced axes: accumulate the reductions `here`, or store the full outputs."""
        segmented = self.segment_axis
        for axis in self.nest.reduced:
            lo, hi = ("0", f"n{axis}")
            if axis == segmented:
                lo = "part * segment"
                hi = f"(part + 1) * segment < n{axis} ? (part + 1) * segment : n{axis}"
            self.open(f"for (tb_i64 x{axis} = {lo}; x{axis} < ({hi}); ++x{axis})")
        goals = [a for n in here for a in self.body[n].args]
        if store:
            goals = [value for k, (_, value) in enumerate(self.kernel.outputs) if self._full_output(k)]
        self._block_loop(goals, here, store)
        if self.nest.form == COLUMNS:
            for n in here:
                if self._buffered_sum(n):
                    combine = "+=" if self.body[n].op.name == "sum" else "*="
                    start = self._start(n)
                    self.open(f"if (++t{n} == {FEW_ROWS})")
                    self.say(f"t{n} = 0;")
                    self.say(f"for (int j = 0; j < m; ++j) {{ a{n}[j] {combine} b{n}[j]; b{n}[j] = {start}; }}")
                    self.close()
        self.close(len(self.nest.reduced))
        if self.nest.form == COLUMNS:
            for n in here:
                if self._buffered_sum(n):
                    combine = "+=" if self.body[n].op.name == "sum" else "*="
                    self.say(f"for (int j = 0; j < m; ++j) a{n}[j] {combine} b{n}[j];")

    def _finish(self, n: int, value: str, place: str) -> None:
        i = self.body[n]
        chosen = place if i.op.dtype == "index" else value
        self.say(f"const {_ctype(i.dtype)} v{n} = ({_ctype(i.dtype)})({chosen});")

    def _partials(self) -> list[tuple[int, str]]:
        return [
            (n, kind) for n in self.reductions for kind in (("a", "k") if self.body[n].op.dtype == "index" else ("a",))
        ]

    def _leave_partials(self) -> None:
        count = len(self._partials())
        if self.nest.form == COLUMNS:
            place = f"(((part * ({self._rows()}) + row) * n{self.nest.inner}) + from + j) * {count}"
            self.open("for (int j = 0; j < m; ++j)")
        else:
            place = f"(part * ({self._rows()}) + row) * {count}"
        for k, (n, kind) in enumerate(self._partials()):
            value = f"{kind}{n}[j]" if self.nest.form == COLUMNS else f"{kind}{n}"
            self.say(f"scratch[{place} + {k}] = {self._as_word(n, kind, value)};")
        if self.nest.form == COLUMNS:
            self.close()

    def _as_word(self, n: int, kind: str, value: str) -> str:
        i = self.body[n]
        dtype = self.body[i.args[0]].dtype if i.op.dtype == "index" else i.dtype
        if kind == "k" or not dtypes.is_float(dtype):
            return f"(tb_i64){value}"
        return f"tb_double_word((double){value})"

    def _join(self) -> None:
        """The second stage: combine the segments' partial results, then everything that follows from them."""
        columns = self.nest.form == COLUMNS
        self._statements([n for n, i in enumerate(self.body) if self._constant(i)])
        inner = self.nest.inner
        axes = [*self.nest.kept, inner] if columns else self.nest.kept
        total = " * ".join(f"n{a}" for a in axes) or "1"
        self.open("for (tb_i64 task = begin; task < end; ++task)")
        self._row_position(self.nest.kept if not columns else axes, "task")
        if columns:
            self.say(f"const tb_i64 at = x{inner};", "(void)at;")
        self._statements(
            [n for n, i in enumerate(self.body) if not self.full[n] and not self._constant(i) and i.stage == 0]
        )
        count = len(self._partials())
        for n in self.reductions:
            i = self.body[n]
            value_type = _ctype(self.body[i.args[0]].dtype) if i.op.dtype == "index" else _accumulator(i)
            self.say(f"{value_type} a{n} = {self._start(n)};")
            if i.op.dtype == "index":
                self.say(f"tb_i64 k{n} = 0;")
        self.open("for (tb_i64 part = 0; part < segments; ++part)")
        self.say(f"const tb_i64 *const given = scratch + (part * ({total}) + task) * {count};")
        for k, (n, kind) in enumerate(self._partials()):
            if kind == "a":
                self._combine(n, k)
        self.close()
        for n in self.reductions:
            self._finish(n, f"a{n}", f"k{n}")
        self._statements(self._rows_after(1))
        self._row_outputs("single" if columns else "")
        self.close()

    def _combine(self, n: int, k: int) -> None:
        i = self.body[n]
        dtype = self.body[i.args[0]].dtype if i.op.dtype == "index" else i.dtype
        kind = "double" if dtypes.is_float(dtype) else "tb_i64"
        value_type = _ctype(dtype) if i.op.dtype != "sum" else _accumulator(i)
        self.say(f"const {value_type} g{n} = ({value_type})tb_word_{kind}(given[{k}]);")
        if i.op.dtype == "index":
            better = ">" if i.op.name == "argmax" else "<"
            self.say(
                f"if (g{n} {better} a{n} || (g{n} != g{n} && a{n} == a{n})) {{ a{n} = g{n}; k{n} = given[{k + 1}]; }}"
            )
            self.say(f"else if (part == 0) k{n} = given[{k + 1}];")
        else:
            self.say(f"a{n} = {self._combined(n, f'a{n}', f'g{n}', _accumulator(i))};")

    def _combined(self, n: int, x: str, y: str, kind: str) -> str:
        i = self.body[n]
        tag = {"double": "f64", "float": "f32"}.get(kind) or _tag(i.dtype)
        return f"({kind})({i.op.code.format(x=x, y=y, t=tag)})"

    # Blocks

    def _block_loop(self, goals: list[int], here: list[int], store: bool) -> None:
        """The loop over the inner axis, a block at a time."""
        inner = self.nest.inner
        needed = self._needed(goals)
        columns = self.nest.form == COLUMNS
        lo, hi = ("from", "to") if self.nest.form != ROWS else ("0", f"n{inner}")
        if inner == self.segment_axis:
            lo = "part * segment"
            hi = f"((part + 1) * segment < n{inner} ? (part + 1) * segment : n{inner})"
        if not columns:
            self.open(f"for (tb_i64 b = {lo}, stop = {hi}; b < stop; b += {BLOCK})")
            self.say(f"const int m = (int)(stop - b < {BLOCK} ? stop - b : {BLOCK});")
        else:
            self.open("")
            self.say("const tb_i64 b = from;")
        buffers = self._prepare_inputs(needed)
        direct = {} if columns else self._direct_sources(here, needed)
        for n in here:
            if n not in direct and not columns:
                self.say(f"{_ctype(self.body[self.body[n].args[0]].dtype)} r{n}[{BLOCK}];")
        targets = self._prepare_outputs() if store else {}
        before = [n for n in needed if self.body[n].shape[inner] == 1]
        self._statements(before)
        loop = [n for n in needed if n not in before]
        goals_in_loop = [n for n in here if n not in direct]
        if loop and (store or goals_in_loop) or goals_in_loop or store:
            self._inner_loop(loop, goals_in_loop, targets, buffers)
        self._after_block(here, direct, targets)
        self.close()

    def _needed(self, goals: Iterable[int]) -> list[int]:
        """The values to compute inside a loop over the full space for the goals, in order."""
        needed: set[int] = set()
        stack = list(goals)
        while stack:
            n = stack.pop()
            if n in needed or self._known(n):
                continue
            needed.add(n)
            if not self._is_kept(n):
                stack.extend(self.body[n].args)
        return sorted(needed)

    def _is_kept(self, n: int) -> bool:
        """Whether an earlier pass left the value in the output."""
        return n == self.kept_value and self.stage > self.kept_stage

    def _kept_place(self) -> str:
        return f"(o0{self._offset(len(self.kernel.inputs), self.kernel.outputs[0][0])})[at]"

    def _known(self, n: int) -> bool:
        """Whether a value has been computed before the loop over the block."""
        i = self.body[n]
        if self._constant(i):
            return True
        return i.shape[self.nest.inner] == 1 if self.nest.form == MAP else not self.full[n]

    def _prepare_inputs(self, needed: list[int]) -> dict[int, str]:
        """Addresses of what the block reads; halves that lie contiguously are converted into a buffer."""
        buffers = {}
        for n in needed:
            i = self.body[n]
            if i.kind != "load":
                continue
            ref = self.kernel.inputs[i.slot]
            self.say(f"const {_ctype(ref.dtype)} *const p{i.slot} = i{i.slot}{self._offset(i.slot, ref)};")
            if dtypes.is_half(ref.dtype) and self._stride_class(ref, self.nest.inner) == "one":
                tag = dtypes.tag(ref.dtype)
                self.say(f"float h{i.slot}[{BLOCK}];", f"tb_load_{tag}(h{i.slot}, p{i.slot} + b, m);")
                buffers[n] = f"h{i.slot}[j]"
        return buffers

    def _offset(self, slot: int, ref: Ref, skip: int | None = None) -> str:
        parts = [
            f"x{a} * s{slot}_{a}"
            for a in range(len(ref.shape))
            if a != self.nest.inner and a != skip and self._stride_class(ref, a) == "other"
        ]
        return "".join(f" + {p}" for p in parts)

    def _direct_sources(self, here: list[int], needed: list[int]) -> dict[int, str]:
        """Reductions of plain contiguous input: the reducer reads it where it lies."""
        direct = {}
        for n in here:
            source = self.body[n].args[0]
            i = self.body[source]
            if i.kind == "load" and source in needed:
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
            kind = _ctype(ref.dtype)
            self.say(f"{kind} *const q{k} = o{k}{self._offset(slot, ref)};")
            if self._stride_class(ref, self.nest.inner) != "one":
                targets[k] = (self._output_place(k, ref), "plain")
            elif dtypes.is_half(ref.dtype):
                self.say(f"float d{k}[{BLOCK}];")
                targets[k] = (f"d{k}[j]", "half")
            elif ref.dtype.itemsize >= 4 and self.kept_value is None:
                self.say(f"{kind} e{k}[{BLOCK}] __attribute__((aligned(64)));")
                self.say(f"{kind} *const d{k} = streams ? e{k} : q{k} + b;")
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
        self.say("const tb_i64 at = b + j;", "(void)at;")
        self._statements(loop, buffers)
        if self.stage == self.kept_stage and self.kept_value in loop:
            self.say(f"{self._kept_place()} = v{self.kept_value};")
        for n in here:
            self._accumulate(n)
        for k, (place, form) in targets.items():
            self._store(k, place, form)
        self.close()

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
            kind = _accumulator(i)
            given = f"({value} != 0)" if i.dtype == dtypes.BOOL else f"({kind}){value}"
            self.say(f"a{n}[j] = {self._combined(n, f'a{n}[j]', given, kind)};")

    def _position(self) -> str:
        """The number of the element among the reduced axes, in C order."""
        text = ""
        for axis in self.kernel.axes:
            here = "at" if axis == self.nest.inner else f"x{axis}"
            text = f"({text} * n{axis} + {here})" if text else here
        return text

    def _store(self, k: int, place: str, form: str) -> None:
        ref, value = self.kernel.outputs[k]
        given = self.body[value]
        text = self._value(value)
        if dtypes.is_half(ref.dtype):
            single = self._converted(text, given.dtype, np.dtype(np.float32))
            self.say(f"{place} = {single if form == 'half' else f'tb_f32_to_{dtypes.tag(ref.dtype)}({single})'};")
        else:
            self.say(f"{place} = {self._converted(text, given.dtype, ref.dtype)};")

    def _after_block(self, here: list[int], direct: dict[int, str], targets: dict) -> None:
        if self.nest.form == ROWS:
            for n in here:
                self._reduce_block(n, direct.get(n, f"r{n}"))
        for k, (_, form) in targets.items():
            ref = self.kernel.outputs[k][0]
            if form == "half":
                self.say(f"tb_store_{dtypes.tag(ref.dtype)}(q{k} + b, d{k}, m);")
            elif form == "stream":
                self.say(f"if (streams) tb_stream(q{k} + b, e{k}, m * (int)sizeof(e{k}[0]));")

    def _reduce_block(self, n: int, buffer: str) -> None:
        i = self.body[n]
        tag = _tag(self.body[i.args[0]].dtype)
        if i.op.dtype == "index":
            better = ">" if i.op.name == "argmax" else "<"
            base = self._block_base()
            value_type = _ctype(self.body[i.args[0]].dtype)
            self.open("")
            self.say("int where;")
            self.say(f"const {value_type} most = tb_block_{i.op.name}_{tag}({buffer}, m, &where);")
            self.open(f"if (most {better} a{n} || (most != most && a{n} == a{n}))")
            self.say(f"a{n} = most;", f"k{n} = {base} + where;")
            self.close(2)
        else:
            self.say(
                f"a{n} = {self._combined(n, f'a{n}', f'tb_block_{i.op.name}_{tag}({buffer}, m)', _accumulator(i))};"
            )

    def _block_base(self) -> str:
        text = ""
        for axis in self.kernel.axes:
            here = "b" if axis == self.nest.inner else f"x{axis}"
            text = f"({text} * n{axis} + {here})" if text else here
        return text

    # Outputs that do not vary along the reduced axes

    def _full_output(self, k: int) -> bool:
        ref = self.kernel.outputs[k][0]
        axes = self.kernel.axes or (self.nest.inner,)
        return self.nest.form == MAP or any(ref.shape[a] != 1 for a in axes)

    def _row_outputs(self, form: str) -> None:
        chosen = [k for k in range(len(self.kernel.outputs)) if not self._full_output(k)]
        if not chosen:
            return
        if form == "column":
            self.say("#pragma GCC ivdep")
            self.open("for (int j = 0; j < m; ++j)")
            self.say("const tb_i64 at = from + j;")
        for k in chosen:
            ref = self.kernel.outputs[k][0]
            slot = len(self.kernel.inputs) + k
            place = f"o{k}{self._offset(slot, ref)}"
            kind = self._stride_class(ref, self.nest.inner)
            if form and kind != "zero":
                place += " + at" if kind == "one" else f" + at * s{slot}_{self.nest.inner}"
            self._store(k, f"*({place})", "plain")
        if form == "column":
            self.close()

    # Instructions

    def _value(self, n: int) -> str:
        return f"w{n}[j]" if n in self.in_arrays else f"v{n}"

    def _statements(self, numbers: Iterable[int], buffers: dict[int, str] | None = None) -> None:
        for n in numbers:
            i = self.body[n]
            text = self._kept_place() if self._is_kept(n) else (buffers or {}).get(n) or self._expression(i)
            self.say(f"const {_ctype(i.dtype)} v{n} = {text};")

    def _expression(self, i: Instruction) -> str:
        if i.kind == "load":
            return self._load(i)
        if i.kind == "scalar":
            return f"c{i.slot}"
        if i.kind == "source":
            return self._source(i)
        given = [self.body[a] for a in i.args]
        names = [self._value(a) for a in i.args]
        if i.kind == "cast":
            return self._converted(names[0], given[0].dtype, i.dtype)
        return _operation(i, given, names)

    def _load(self, i: Instruction) -> str:
        ref = self.kernel.inputs[i.slot]
        inner = self.nest.inner
        kind = self._stride_class(ref, inner)
        index = {"zero": "0", "one": "at"}.get(kind) or f"at * s{i.slot}_{inner}"
        text = f"(i{i.slot}{self._offset(i.slot, ref)})[{index}]"
        if self.nest.turned(ref):
            text = f"turned{i.slot}[(row - first) * {TILE} + (at - from)]"
        return f"tb_{dtypes.tag(ref.dtype)}_to_f32({text})" if dtypes.is_half(ref.dtype) else text

    def _source(self, i: Instruction) -> str:
        def place(axis: int) -> str:
            return "at" if axis == self.nest.inner else f"x{axis}"

        if i.op.name == "index":
            return place(i.axis)
        text = ""
        for axis, n in enumerate(i.shape):
            if n != 1:
                text = f"({text} * n{axis} + {place(axis)})" if text else place(axis)
        return i.op.code.format(index=f"(tb_u64)({text or 0})", draw=f"draw{i.slot}", key="key", t=_tag(i.dtype))

    @staticmethod
    def _converted(text: str, given: np.dtype, wanted: np.dtype) -> str:
        if given == wanted:
            return text
        if wanted == dtypes.BOOL:
            return f"({text} != 0)"
        if dtypes.is_float(given) and dtypes.is_integer(wanted):
            return f"tb_{_tag(given)}_to_{_tag(wanted)}({text})"
        return f"({_ctype(wanted)})({text})"


def _tag(dtype: np.dtype) -> str:
    """The tag of a type's functions; truth values share those of bytes."""
    return "u8" if dtype == dtypes.BOOL else dtypes.tag(dtype)


def _operation(i: Instruction, given: list[Instruction], names: list[str]) -> str:
    dtype = given[-1].dtype if i.op.name != "sround" else given[0].dtype
    if i.op.dtype == "whole" and not dtypes.is_float(dtype):
        return names[0]
    if i.op.name in ("finite", "isinf", "isnan") and not dtypes.is_float(dtype):
        return "1" if i.op.name == "finite" else "0"
    if i.op.name == "invert" and dtype == dtypes.BOOL:
        return f"!{names[0]}"
    text = i.op.code.format(**dict(zip("xyz", names)), t=_tag(dtype))
    return text if dtypes.is_float(i.dtype) else f"({_ctype(i.dtype)})({text})"
