# SPDX-License-Identifier: Apache-2.0
"""Long reductions in C: threads reduce a segment each, and other functions join what they leave in scratch."""

from __future__ import annotations

from tensorbackend.codegen.blocks import BlockRenderer
from tensorbackend.codegen.nest import COLUMNS, Nest
from tensorbackend.codegen.render import accumulator, ctype

__all__ = ["SegmentRenderer"]

LOT = 512
"""Results that a task joins from the partial results of segments."""


class SegmentRenderer(BlockRenderer):
    """A dialect that can leave partial results of segments and join them.

    `segmented_stage` is the pass over segments that the function at hand makes, or whose results it joins.
    """

    def __init__(self, found: Nest, split: bool) -> None:
        super().__init__(found, split)
        self.segmented_stage = 0

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
        last = self.nest.passes + bool(self._stored())
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
