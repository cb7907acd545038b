# SPDX-License-Identifier: Apache-2.0
"""Sums of rows that run along while their elements are computed: 64 running sums in registers, and the next elements
fetched between them. Short buffers for the block reducers would cost as much as the reading itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorbackend import dtypes
from tensorbackend.codegen.nest import ROWS, Nest
from tensorbackend.codegen.render import accumulator, ctype, tag
from tensorbackend.codegen.wide import WideRenderer

__all__ = ["ALIGNED", "LaneRenderer"]

LANES = 64
ALIGNED = "__attribute__((aligned(64)))"


class LaneRenderer(WideRenderer):
    """A dialect that can print a block of a row whose sums run along.

    `late` are the inputs that the second pass over a band of rows asks for, a band ahead.
    """

    def __init__(self, found: Nest, split: bool) -> None:
        super().__init__(found, split)
        self.late: set[int] = set()

    def _early(self, slot: int) -> str:
        """When the first pass over a row asks for what follows."""
        return "streams & TB_STREAM_AHEAD && !near" if slot in self.late else "streams & TB_STREAM_AHEAD"

    def _sums_run_along(self, here: Sequence[int], direct: dict[int, str]) -> bool:
        """Whether the reductions `here` are sums of floats, of which a value must be computed first."""
        sums = all(self.body[n].op.name == "sum" and self.body[n].dtype in (np.float32, np.float64) for n in here)
        return self.nest.form == ROWS and sums and any(n not in direct for n in here)

    def _running_sums(self, loop: list[int], here: list[int], buffers: dict[int, str]) -> None:
        """Add up a block of m elements from b on."""
        self.say(f"const int full = m & -{LANES};")
        self._declare_lanes(here)
        self._add_to_lanes(loop, here, buffers)
        self._join_lanes(here)

    def _declare_lanes(self, here: list[int]) -> None:
        """Declare the running sums of whole lanes, and room for what is left of a block after them."""
        for n in here:
            kind = self.body[n].dtype
            self.say(f"tb_v_{tag(kind)} s{n}[{LANES // 16}] = {{{{{{{{0}}}}}}}};")
            self.say(f"{ctype(kind)} r{n}[{LANES}] {ALIGNED};")

    def _add_to_lanes(self, loop: list[int], here: list[int], buffers: dict[int, str]) -> None:
        """Add up m elements from b on: whole lanes, then what is left."""
        self.open(f"for (int g = 0; g < full; g += {LANES})")
        self._fetch_ahead(loop)
        self.say(*(f"{ctype(self.body[n].dtype)} u{n}[{LANES}] {ALIGNED};" for n in here))
        self.say("#pragma GCC ivdep")
        self._open_lanes(str(LANES), "g", loop, buffers)
        self.say(*(f"u{n}[l] = {self._value(self.body[n].args[0])};" for n in here))
        self.close()
        self.say(*(f"tb_add_{tag(self.body[n].dtype)}(s{n}, u{n});" for n in here))
        self.close()
        self._rest_of_block(loop, here, buffers)

    def _rest_of_block(self, loop: list[int], here: list[int], buffers: dict[int, str]) -> None:
        """What is left of a block after whole lanes. What it reads is padded, where that lies side by side and nothing
        is written, so that the loop is of whole vectors.
        """
        keeps = self.stage == self.kept_stage
        self.open("if (m > full)")
        count = "m - full"
        if self._reads_side_by_side(loop) and not keeps:
            lanes, count = self._lanes(), "rest"
            self.say(f"const int rest = (m - full + {lanes - 1}) & -{lanes};")
            buffers = self._pad_rest(loop, buffers)
        self._open_lanes(count, "full", loop, buffers)
        for n in here:
            self.say(f"r{n}[l] = {self._value(self.body[n].args[0])};")
        self.close(2)

    def _reads_side_by_side(self, loop: Sequence[int]) -> bool:
        """Whether what a loop reads along the inner axis lies side by side, or is one number."""
        reads = [self.kernel.inputs[self.body[n].slot] for n in loop if self.body[n].kind == "load"]
        return "other" not in [self._stride_class(ref, self.nest.inner) for ref in reads]

    def _pad_rest(self, loop: Sequence[int], buffers: dict[int, str]) -> dict[int, str]:
        """Pad what a block reads after its first `full` elements to all lanes, but for what buffers hold; where element
        l of each value is then."""
        padded = dict(buffers)
        for n in loop:
            i = self.body[n]
            if i.kind != "load" or n in buffers:
                continue
            slot, ref = i.slot, self.kernel.inputs[i.slot]
            if self._stride_class(ref, self.nest.inner) != "one":
                continue
            size = ref.dtype.itemsize
            self.say(f"{ctype(ref.dtype)} t{slot}[{LANES}] {ALIGNED};")
            self.say(f"tb_pad_all(t{slot}, p{slot} + b + full, (m - full) * {size}, {LANES * size});")
            padded[n] = f"t{slot}[l]"
        return padded

    def _open_lanes(self, count: str, first: str, loop: list[int], buffers: dict[int, str]) -> None:
        """Open a loop over so many elements of a block from `first` on, and compute their values."""
        self.open(f"for (int l = 0; l < {count}; ++l)")
        self.say(f"const tb_i64 j = (tb_i64){first} + l;")
        self._element_of_block(loop, buffers)

    def _fetch_ahead(self, loop: list[int]) -> None:
        """Ask for what a later block reads, a few lines at a time: many at once would make the processor wait."""
        for n in loop:
            i = self.body[n]
            if i.kind != "load" or self._stride_class(ref := self.kernel.inputs[i.slot], self.nest.inner) != "one":
                continue
            if self.stage == 1 and not dtypes.is_half(ref.dtype):
                self.say(f"if ({self._early(i.slot)}) tb_fetch{ref.dtype.itemsize}(p{i.slot} + b + g);")
            elif self.stage == 2 and i.slot in self.late and not dtypes.is_half(ref.dtype):
                place = f"p{i.slot} + b + g + band * {self._across()}"
                self.say(f"if (near) tb_touch{ref.dtype.itemsize}({place});")

    def _join_lanes(self, here: list[int]) -> None:
        """Add a block's sums to those of its row: of whole lanes, if there are any, and of the rest."""
        rest = "m - full"
        for n in here:
            kind = tag(self.body[n].dtype)
            for when, total in (("full", f"tb_total_{kind}(s{n})"), (rest, f"tb_block_sum_{kind}(r{n}, {rest})")):
                self.say(f"if ({when}) a{n} = {self._combined(n, f'a{n}', total, accumulator(self.body[n]))};")
