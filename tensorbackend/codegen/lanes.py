# SPDX-License-Identifier: Apache-2.0
"""Sums of rows that run along while their elements are computed: 64 running sums in registers, and the next elements
fetched between them. Short buffers for the block reducers would cost as much as the reading itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorbackend import dtypes
from tensorbackend.codegen.nest import ROWS
from tensorbackend.codegen.render import accumulator, ctype, tag
from tensorbackend.codegen.wide import WideRenderer

__all__ = ["LaneRenderer"]

LANES = 64
ALIGNED = "__attribute__((aligned(64)))"


class LaneRenderer(WideRenderer):
    """A dialect that can print a block of a row whose sums run along."""

    def _sums_run_along(self, here: Sequence[int], direct: dict[int, str]) -> bool:
        """Whether the reductions `here` are sums of floats, of which a value must be computed first."""
        plain = all(self.body[n].op.dtype == "sum" and self.body[n].dtype in (np.float32, np.float64) for n in here)
        floats = plain and all(self.body[self.body[n].args[0]].dtype == self.body[n].dtype for n in here)
        return self.nest.form == ROWS and floats and any(n not in direct for n in here)

    def _running_sums(self, loop: list[int], here: list[int], buffers: dict[int, str]) -> None:
        """Add up a block of m elements from b on: whole lanes, then what is left."""
        self.say(f"const int full = m & -{LANES};")
        for n in here:
            self.say(f"{ctype(self.body[n].dtype)} s{n}[{LANES}] {ALIGNED}, r{n}[{LANES}] {ALIGNED};")
        self.open("if (full)")
        starts = " ".join(f"s{n}[l] = {self._start(n)};" for n in here)
        self.say(f"for (int l = 0; l < {LANES}; ++l) {{ {starts} }}")
        self.open(f"for (int g = 0; g < full; g += {LANES})")
        self._fetch_ahead(loop)
        self.say("#pragma GCC ivdep")
        self.open(f"for (int l = 0; l < {LANES}; ++l)")
        self.say("const int j = g + l;")
        self._element_of_block(loop, buffers)
        for n in here:
            self.say(f"s{n}[l] = {self.body[n].op.code.format(x=f's{n}[l]', y=self._value(self.body[n].args[0]))};")
        self.close(3)
        self.open("for (int j = full; j < m; ++j)")
        self._element_of_block(loop, buffers)
        for n in here:
            self.say(f"r{n}[j - full] = {self._value(self.body[n].args[0])};")
        self.close()
        for n in here:
            self._join_lanes(n, "full", f"(s{n}, {LANES})")
            self._join_lanes(n, "m > full", f"(r{n}, m - full)")

    def _fetch_ahead(self, loop: list[int]) -> None:
        """Ask for what a later block reads, a few lines at a time: many at once would make the processor wait."""
        for n in loop:
            i = self.body[n]
            if i.kind != "load" or self.stage != 1:
                continue
            ref = self.kernel.inputs[i.slot]
            if self._stride_class(ref, self.nest.inner) == "one" and not dtypes.is_half(ref.dtype):
                self.say(f"if (streams) tb_fetch{ref.dtype.itemsize}(p{i.slot} + b + g);")

    def _join_lanes(self, n: int, when: str, lanes: str) -> None:
        i = self.body[n]
        total = f"tb_block_{i.op.name}_{tag(i.dtype)}{lanes}"
        self.say(f"if ({when}) a{n} = {self._combined(n, f'a{n}', total, accumulator(i))};")
