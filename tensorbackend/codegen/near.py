# SPDX-License-Identifier: Apache-2.0
"""Maps over rows that lie in the caches, printed without what memory far away asks for.

    for each row:  z = the last vector, if it is not whole;  whole vectors;  store z over the end

Rows of a few vectors take as long to begin as to compute where the loop over them also knows how to ask ahead, to store
past the caches and to pad: a bias over rows of 64 elements takes twice the time so.
"""

from __future__ import annotations

from tensorbackend.codegen.bands import BandRenderer
from tensorbackend.codegen.lanes import ALIGNED
from tensorbackend.codegen.render import ctype

__all__ = ["NearRenderer"]


class NearRenderer(BandRenderer):
    """The part of the C printer that prints maps over rows for the caches."""

    def _near_row(self) -> None:
        """A row: its last vector first, where it is not whole, as operands may be results; all of a row that has no
        whole one is padded."""
        refs, inner = self.kernel.inputs, self.nest.inner
        loop = [n for n in self._needed([value for _, value in self.kernel.outputs]) if self.nest.varies(self.body[n])]
        lanes = 64 // self.kernel.outputs[0][0].dtype.itemsize
        reads = {n: self.body[n].slot for n in loop if self.body[n].kind == "load"}
        rows = {n: slot for n, slot in reads.items() if self._stride_class(refs[slot], inner) == "one"}
        for slot in sorted(set(reads.values())):
            self.say(f"const {ctype(refs[slot].dtype)} *const p{slot} = i{slot}{self._offset(slot, refs[slot])};")
        for k, (ref, _) in enumerate(self.kernel.outputs):
            self.say(f"{ctype(ref.dtype)} *const q{k} = {self._output_row(k)}, z{k}[{lanes}] {ALIGNED};")
        self.say(f"const int m = (int)(to - from), over = m & {lanes - 1};")
        self.open("if (over)")
        along = sorted(set(rows.values()))
        last = {slot: self._last_of(f"{slot}", f"p{slot} + from", refs[slot], lanes) for slot in along}
        self.say(f"const tb_i64 b = m < {lanes} ? from : to - {lanes};")
        self._near_vector(loop, lanes, {n: last[slot] for n, slot in rows.items()}, "z{}[l]")
        self.close()
        self.open(f"for (tb_i64 b = from; b < to - over; b += {lanes})")
        self._near_vector(loop, lanes, {n: f"p{slot}[at]" for n, slot in rows.items()}, "q{}[at]")
        self.close()
        self.open("if (over)")
        for k in range(len(self.kernel.outputs)):
            self.say(f"if (m < {lanes}) tb_unpad(q{k} + from, z{k}, m * {64 // lanes}, 64);")
            self.say(f"else __builtin_memcpy(q{k} + to - {lanes}, z{k}, 64);")
        self.close()

    def _near_vector(self, loop: list[int], lanes: int, buffers: dict[int, str], place: str) -> None:
        """The loop over the elements of a vector from `b` on, to `place` of each output's number."""
        self.say("#pragma GCC ivdep")
        self.open(f"for (int l = 0; l < {lanes}; ++l)")
        self.say("const tb_i64 j = l;")
        self._element_of_block(loop, buffers)
        for k in range(len(self.kernel.outputs)):
            self._store(k, place.format(k), "plain")
        self.close()
