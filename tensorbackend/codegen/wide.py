# SPDX-License-Identifier: Apache-2.0
"""Blocks of elementwise kernels on the vectors of `kernels/c/wide.h`: halves are widened and narrowed in registers.

A step is `TB_WIDE` elements, in two vectors; each value is two variables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorbackend import dtypes
from tensorbackend.codegen.nest import MAP
from tensorbackend.codegen.render import Renderer, operation
from tensorbackend.graph.plan import Instruction

__all__ = ["WideRenderer"]

LANES = "ab"
ARITHMETIC = frozenset(("add", "sub", "mul", "div", "neg"))
"""Ops whose C text computes with vectors as with numbers."""
FUNCTIONS = frozenset(("abs", "maximum", "minimum"))
"""Ops of which `wide.h` has the function that they are; it also has those that have a form for halves."""


class WideRenderer(Renderer):
    """A dialect that can print the loop over a padded block of a map on vectors."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.lane = ""
        self.in_lanes: set[int] = set()

    def _value(self, n: int) -> str:
        return f"v{n}{self.lane}" if n in self.in_lanes else super()._value(n)

    def _fits_wide(self, loop: Sequence[int]) -> bool:
        """Whether the padded loop over these values can be printed on vectors."""
        outputs = self.kernel.outputs
        varies = all(value in loop and self.nest.varies(self.body[value]) for _, value in outputs)
        if self.nest.form != MAP or not varies:
            return False
        loads = [self.body[n] for n in loop if self.body[n].kind == "load"]
        places = [self.kernel.inputs[i.slot] for i in loads] + [ref for ref, _ in outputs]
        types = {ref.dtype for ref in places}
        if not any(map(dtypes.is_half, types)) or dtypes.BFLOAT16 in types and len(types) > 1:
            return False
        if any(dtypes.compute(t) != np.float32 for t in types):
            return False
        if any(self._stride_class(self.kernel.inputs[i.slot], self.nest.inner) != "one" for i in loads):
            return False
        return all(self.body[n].kind == "load" or self._has_wide_form(self.body[n]) for n in loop)

    def _has_wide_form(self, i: Instruction) -> bool:
        """Of operands that have one: what is computed in another type begins with a cast, which has none."""
        plain = i.op is not None and i.op.name in ARITHMETIC | FUNCTIONS
        return i.kind == "op" and (plain or (i.half and i.op.half_ulps is not None))

    def _wide_loop(self, loop: Sequence[int]) -> None:
        """The loop over m elements, a multiple of `TB_WIDE`, from p<slot> on to w<output>, or d<output> of float32."""
        loads = {n: self.kernel.inputs[self.body[n].slot] for n in loop if self.body[n].kind == "load"}
        for k, (ref, _) in enumerate(self.kernel.outputs):
            if dtypes.is_half(ref.dtype):
                self.say(f"const int past{k} = streams & TB_STREAM_PAST && ((tb_u64)w{k} & 63) == 0;")
        self.open("for (int j = 0; j < m; j += TB_WIDE)")
        for n, ref in loads.items():
            place = f"p{self.body[n].slot} + j"
            self.say(f"tb_wide_f32 v{n}a, v{n}b;", f"tb_wide_load_{dtypes.tag(ref.dtype)}({place}, &v{n}a, &v{n}b);")
        self.in_lanes = set(loop)
        for self.lane in LANES:  # one vector after the other: both at a time need too many registers
            for n in loop:
                if n not in loads:
                    self._wide_statement(n)
        self.in_lanes = set()
        for k, (ref, value) in enumerate(self.kernel.outputs):
            place, past = (f"w{k} + j", f"past{k}") if dtypes.is_half(ref.dtype) else (f"d{k} + j", "0")
            self.say(f"tb_wide_store_{dtypes.tag(ref.dtype)}({place}, v{value}a, v{value}b, {past});")
        self.close()

    def _wide_statement(self, n: int) -> None:
        i = self.body[n]
        text = operation(i, [self.body[a] for a in i.args], [self._value(a) for a in i.args], self._c_type(n))
        if i.op.name not in ARITHMETIC:
            text = "tb_wide" + text.removeprefix("tb")
        self.say(f"const tb_wide_f32 v{n}{self.lane} = {text};")
