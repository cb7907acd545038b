# SPDX-License-Identifier: Apache-2.0
"""What the dialects share: the text of values, addresses, arguments, results and second stages of a loop nest.

A dialect (`c.py`, `cuda.py`) subclasses `Renderer` and adds its loops: how a space is walked by threads, how a row is
folded to one value, and how a function begins. All else is here, once: both languages spell expressions alike, and the
headers in `kernels/c` serve both.
"""

from __future__ import annotations

import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from tensorbackend import dtypes
from tensorbackend.codegen.nest import MAP, Nest
from tensorbackend.graph.plan import Instruction, Ref

__all__ = ["Printed", "Renderer", "accumulator", "ctype", "tag"]

C_TYPES = {
    "f16": "tb_u16", "bf16": "tb_u16", "f32": "float", "f64": "double", "b8": "tb_u8",
    **{f"{k}{n}": f"tb_{k}{n}" for k in "iu" for n in (8, 16, 32, 64)},
}  # fmt: skip


class Printed(NamedTuple):
    """The text of a kernel: the `source`, the name of the function (`name`), and of the second stage (`join`) of a
    reduction that is split, its `nest` and the number of 8-byte partial results a segment leaves (`partials`).

    `functions` are all functions in the order of their launches, with whether each joins partial results.
    """

    nest: Nest
    source: str
    name: str
    join: str | None = None
    partials: int = 0
    functions: tuple[tuple[str, bool], ...] = ()


def ctype(dtype: np.dtype) -> str:
    """The C type in which elements of a type are stored; halves are 16-bit words."""
    return C_TYPES[dtypes.tag(dtype)]


def accumulator(i: Instruction) -> str:
    """The C type in which a reduction adds up or compares."""
    if i.op.dtype == "sum" and dtypes.is_float(i.dtype):
        return "double"
    return "tb_i64" if i.op.dtype == "index" else ctype(i.dtype)


def tag(dtype: np.dtype) -> str:
    """The tag of a type's functions; truth values share those of bytes."""
    return "u8" if dtype == dtypes.BOOL else dtypes.tag(dtype)


def operation(i: Instruction, given: list[Instruction], names: list[str], kind: str) -> str:
    """The expression of an op on named operands, as a value of the C type `kind`."""
    dtype = (given or [i])[0 if i.op.name == "sround" else -1].dtype
    if i.op.dtype == "whole" and not dtypes.is_float(dtype):
        return names[0]
    if i.op.name in ("finite", "isinf", "isnan") and not dtypes.is_float(dtype):
        return "1" if i.op.name == "finite" else "0"
    if i.op.name == "invert" and dtype == dtypes.BOOL:
        return f"!{names[0]}"
    text = i.op.code.format(**dict(zip("xyz", names)), t="half" if i.half and i.op.half_ulps else tag(dtype))
    return text if dtypes.is_float(i.dtype) else f"({kind})({text})"


def wide_truths(body: list[Instruction]) -> list[bool]:
    """Which values of a kernel are truths of 32 bits: what comparisons of wide operands give, and what follows from
    that. To narrow and widen it again takes a vector longer than to compare."""
    found: list[bool] = []
    for i in body:
        wide = any(found[a] or body[a].dtype.itemsize >= 4 for a in i.args)
        found.append(i.kind == "op" and i.dtype == dtypes.BOOL and wide)
    return found


class Renderer(ABC):
    """Prints one kernel; `split` prints partial results of segments and their sum as two functions.

    A dialect sets `header` (what its source includes) and `sizes` (what the host passes after the lengths of the
    axes), and implements `_signature` and `_bodies`.
    """

    header = ""
    sizes: tuple[str, ...] = ()

    def __init__(self, found: Nest, split: bool) -> None:
        self.nest = found
        self.kernel = found.kernel
        self.body = found.kernel.body
        self.split = split
        self.lines: list[str] = []
        self.depth = 1
        self.in_arrays: set[int] = set()
        self.full = [found.is_full(i) for i in self.body]
        self.wide = wide_truths(self.body)
        self.reductions = [n for n, i in enumerate(self.body) if i.kind == "reduce"]
        self.segment_axis = self._segment_axis() if split else None

    def result(self) -> Printed:
        """The printed kernel, its functions named by a digest of their text."""
        functions = self._functions()
        for suffix, content in functions.items():
            self._function("KERNEL" + suffix, content)
        text = "\n".join(self.lines)
        source = f'#include "{self.header}"\n// kernel: {self.kernel.name}\n{text}\n'
        name = "tb_" + hashlib.sha256(source.encode()).hexdigest()[:16]
        join = name + "_join" if self.split else None
        partials = len(self._partials()) if self.split else 0
        named = tuple((name + suffix, "join" in suffix) for suffix in functions)
        source = sys.intern(source.replace("KERNEL", name))  # that of other sizes is the same
        return Printed(self.nest, source, name, join, partials, named)

    def _functions(self) -> dict[str, Callable[[], None]]:
        """The functions in the order of their launches, by the ends of their names; those that join say so there."""
        return {"": self._bodies}

    # What a dialect adds

    @abstractmethod
    def _signature(self, name: str) -> str:
        """The head of a function that can see ptr, size, stride and scalar."""

    @abstractmethod
    def _bodies(self) -> None:
        """Print the kernel's loops."""

    def _is_kept(self, n: int) -> bool:
        """Whether an earlier pass left the value in memory."""
        return False

    def _kept_place(self) -> str:
        """Where a kept value lies."""
        return ""

    def _segment_axis(self) -> int:
        return self.nest.reduced[0] if self.nest.reduced else self.nest.inner

    def say(self, *lines: str) -> None:
        """Print lines at the current depth."""
        for line in lines:
            self.lines.append("    " * self.depth + line)

    def open(self, line: str) -> None:
        """Print the head of a block, and go into it."""
        self.say(line + " {")
        self.depth += 1

    def close(self, count: int = 1) -> None:
        """Close the innermost blocks."""
        for _ in range(count):
            self.depth -= 1
            self.say("}")

    def _function(self, name: str, content: Callable[[], None]) -> None:
        self.depth = 0
        self.say(self._signature(name) + " {")
        self.depth = 1
        self._arguments()
        content()
        self.depth = 0
        self.say("}")

    def _arguments(self) -> None:
        kernel, rank = self.kernel, len(self.kernel.shape)
        for slot, ref in enumerate(kernel.inputs):
            kind = f"const {ctype(ref.dtype)} *"
            self.say(f"{kind}const i{slot} = ({kind})ptr[{slot}];")
        for k, (ref, _) in enumerate(kernel.outputs):
            kind = f"{ctype(ref.dtype)} *"
            self.say(f"{kind}const o{k} = ({kind})ptr[{len(kernel.inputs) + k}];")
        if self.split:
            self.say(f"tb_i64 *const scratch = (tb_i64 *)ptr[{len(kernel.inputs) + len(kernel.outputs)}];")
        for axis in range(rank):
            self.say(f"const tb_i64 n{axis} = size[{axis}];")
        self.say(*(f"const tb_i64 {name} = size[{rank + k}];" for k, name in enumerate(self.sizes)))
        for slot, ref in enumerate([*kernel.inputs, *(ref for ref, _ in kernel.outputs)]):
            for axis in range(rank):
                if self._stride_class(ref, axis) == "other":
                    self.say(f"const tb_i64 s{slot}_{axis} = stride[{slot * rank + axis}];")
        for k, (_, dtype) in enumerate(kernel.scalars):
            kind = "double" if dtypes.is_float(dtype) else "tb_i64"
            self.say(f"const {ctype(dtype)} c{k} = ({ctype(dtype)})tb_word_{kind}(scalar[{k}]);")
        for k in range(len(kernel.draws)):
            self.say(f"const tb_u64 draw{k} = (tb_u64)scalar[{len(kernel.scalars) + k}];")
        if kernel.draws:
            self.say(f"const tb_u64 key = (tb_u64)scalar[{len(kernel.scalars) + len(kernel.draws)}];")
        self.say(" ".join(f"(void){name};" for name in ("size", "stride", "scalar", *self.sizes)))

    def _stride_class(self, ref: Ref, axis: int) -> str:
        if ref.shape[axis] == 1 or ref.strides[axis] == 0:
            return "zero"
        return "one" if axis == self.nest.inner and ref.strides[axis] == 1 else "other"

    def _rows(self) -> str:
        return " * ".join(f"n{a}" for a in self.nest.kept) or "1"

    def _across(self) -> str:
        """How many elements are reduced to one."""
        product = " * ".join(f"n{a}" for a in self.kernel.axes)
        return f"({product})" if len(self.kernel.axes) > 1 else product

    def _row_position(self, axes: list[int], name: str, kind: str = "const tb_i64") -> None:
        """x<axis> for each outer axis, from a row's number."""
        rest = name
        for axis in reversed(axes[1:]):
            self.say(f"{kind} x{axis} = {rest} % n{axis};")
            rest = f"({rest} / n{axis})"
        if axes:
            self.say(f"{kind} x{axes[0]} = {rest};")

    def _constant(self, i: Instruction) -> bool:
        folded = i.kind == "reduce" and self.kernel.axes
        return all(n == 1 for n in i.shape) and i.stage == 0 and not folded and not self._is_place(i)

    def _is_place(self, i: Instruction) -> bool:
        return i.kind == "load" and any(s for s in self.kernel.inputs[i.slot].strides)

    def _reduced_in(self, stage: int) -> list[int]:
        """The reductions of a pass."""
        return [n for n in self.reductions if self.body[n].stage == stage]

    def _rows_after(self, stage: int) -> list[int]:
        return [n for n, i in enumerate(self.body) if not self.full[n] and i.stage == stage and i.kind != "reduce"]

    def _start(self, n: int) -> str:
        i = self.body[n]
        dtype = self.body[i.args[0]].dtype if i.op.dtype == "index" else i.dtype
        return {"zero": "0", "one": "1", "lowest": f"TB_LOWEST_{tag(dtype)}", "highest": f"TB_HIGHEST_{tag(dtype)}"}[
            i.op.identity
        ]

    def _finish(self, n: int, value: str, place: str) -> None:
        i = self.body[n]
        chosen = place if i.op.dtype == "index" else value
        self.say(f"const {ctype(i.dtype)} v{n} = ({ctype(i.dtype)})({chosen});")

    def _partials(self) -> list[tuple[int, str]]:
        return [
            (n, kind) for n in self.reductions for kind in (("a", "k") if self.body[n].op.dtype == "index" else ("a",))
        ]

    def _as_word(self, n: int, kind: str, value: str) -> str:
        i = self.body[n]
        dtype = self.body[i.args[0]].dtype if i.op.dtype == "index" else i.dtype
        if kind == "k" or not dtypes.is_float(dtype):
            return f"(tb_i64){value}"
        return f"tb_double_word((double){value})"

    def _combined(self, n: int, x: str, y: str, kind: str) -> str:
        i = self.body[n]
        suffix = {"double": "f64", "float": "f32"}.get(kind) or tag(i.dtype)
        return f"({kind})({i.op.code.format(x=x, y=y, t=suffix)})"

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

    def _known(self, n: int) -> bool:
        """Whether a value has been computed before the loop over the block."""
        i = self.body[n]
        if self._constant(i):
            return True
        return i.shape[self.nest.inner] == 1 if self.nest.form == MAP else not self.full[n]

    def _offset(self, slot: int, ref: Ref, skip: int | None = None) -> str:
        parts = [
            f"x{a} * s{slot}_{a}"
            for a in range(len(ref.shape))
            if a != self.nest.inner and a != skip and self._stride_class(ref, a) == "other"
        ]
        return "".join(f" + {p}" for p in parts)

    def _position(self, inner: str = "at") -> str:
        """The number of the element at `inner` of the inner axis among the reduced axes, in C order."""
        text = ""
        for axis in self.kernel.axes:
            here = inner if axis == self.nest.inner else f"x{axis}"
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

    def _full_output(self, k: int) -> bool:
        ref = self.kernel.outputs[k][0]
        axes = self.kernel.axes or (self.nest.inner,)
        return self.nest.form == MAP or any(ref.shape[a] != 1 for a in axes)

    def _row_outputs(self, form: str, columns: str = "m") -> None:
        chosen = [k for k in range(len(self.kernel.outputs)) if not self._full_output(k)]
        if not chosen:
            return
        if form == "column":
            self.say("#pragma GCC ivdep")
            self.open(f"for (int j = 0; j < {columns}; ++j)")
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

    def _value(self, n: int) -> str:
        return f"w{n}[j]" if n in self.in_arrays else f"v{n}"

    def _statements(self, numbers: Iterable[int], buffers: dict[int, str] | None = None) -> None:
        for n in numbers:
            text = self._kept_place() if self._is_kept(n) else (buffers or {}).get(n) or self._expression(n)
            self.say(f"const {self._c_type(n)} v{n} = {text};")

    def _c_type(self, n: int) -> str:
        """The C type of a value."""
        return "tb_i32" if self.wide[n] else ctype(self.body[n].dtype)

    def _expression(self, n: int) -> str:
        i = self.body[n]
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
        if i.kind == "reduce":
            return self._reduced_alone(i, names[0], given[0].dtype)
        return operation(i, given, names, self._c_type(n))

    def _reduced_alone(self, i: Instruction, name: str, given: np.dtype) -> str:
        """The reduction of one element, in a map; a sum begins with +0."""
        if i.op.dtype == "index":
            return "0"
        text = self._converted(name, given, i.dtype)
        return f"{text} + 0" if i.op.name == "sum" and dtypes.is_float(i.dtype) else text

    def _load(self, i: Instruction) -> str:
        ref = self.kernel.inputs[i.slot]
        inner = self.nest.inner
        kind = self._stride_class(ref, inner)
        index = {"zero": "0", "one": "at"}.get(kind) or f"at * s{i.slot}_{inner}"
        text = f"(i{i.slot}{self._offset(i.slot, ref)})[{index}]"
        return self._widened(ref, text)

    @staticmethod
    def _widened(ref: Ref, text: str) -> str:
        """What was read, in the compute type."""
        return f"tb_{dtypes.tag(ref.dtype)}_to_f32({text})" if dtypes.is_half(ref.dtype) else text

    def _source(self, i: Instruction) -> str:
        if i.op.name == "index":
            return "0" if self._constant(i) else "at" if i.axis == self.nest.inner else f"x{i.axis}"
        return self._random(i, f"tb_philox({self._index(i, 'at')}, draw{i.slot}, key)")

    def _index(self, i: Instruction, inner: str) -> str:
        """The number of an element of a source, in C order; `inner` is its place on the inner axis."""
        text = ""
        for axis, n in enumerate(i.shape):
            if n != 1:
                here = inner if axis == self.nest.inner else f"x{axis}"
                text = f"({text} * n{axis} + {here})" if text else here
        return f"(tb_u64)({text or 0})"

    @staticmethod
    def _random(i: Instruction, words: str) -> str:
        """The random number that is made of the `words` of its place."""
        return i.op.code.format(words=words, t=tag(i.dtype))

    @staticmethod
    def _converted(text: str, given: np.dtype, wanted: np.dtype) -> str:
        if given == wanted:
            return text
        if wanted == dtypes.BOOL:
            return f"({text} != 0)"
        if dtypes.is_float(given) and dtypes.is_integer(wanted):
            return f"tb_{tag(given)}_to_{tag(wanted)}({text})"
        return f"({ctype(wanted)})({text})"
