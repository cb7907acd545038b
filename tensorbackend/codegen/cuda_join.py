# SPDX-License-Identifier: Apache-2.0
"""How reductions join in CUDA: values of threads, and the partial results that segments leave (the second launch)."""

from __future__ import annotations

from collections.abc import Callable

from tensorbackend import dtypes
from tensorbackend.codegen.nest import COLUMNS
from tensorbackend.codegen.render import Renderer, accumulator, ctype

__all__ = ["Join"]


class Join(Renderer):
    """The part of the CUDA printer that joins."""

    def _functions(self) -> dict[str, Callable[[], None]]:
        return {"": self._bodies, "_join": self._join} if self.split else {"": self._bodies}

    def _kind(self, n: int) -> str:
        i = self.body[n]
        return f"tb_place<{ctype(self.body[i.args[0]].dtype)}>" if i.op.dtype == "index" else accumulator(i)

    def _begin(self, n: int) -> None:
        nowhere = ", TB_HIGHEST_i64" if self.body[n].op.dtype == "index" else ""
        self.say(f"{self._kind(n)} a{n} = {{{self._start(n)}{nowhere}}};")

    def _joined(self, n: int, x: str, y: str) -> str:
        i = self.body[n]
        return f"tb_first_{i.op.name}({x}, {y})" if i.op.dtype == "index" else self._combined(n, x, y, accumulator(i))

    def _over_threads(self, join: str, n: int) -> None:
        kind = self._kind(n)
        self.say(f"a{n} = {join}(a{n}, []({kind} x, {kind} y) {{ return {self._joined(n, 'x', 'y')}; }});")

    def _join(self) -> None:
        """Combine the segments' partial results, then everything that follows from them. Threads of x take neighbouring
        results, those of y share the segments."""
        columns = self.nest.form == COLUMNS
        self._statements([n for n, i in enumerate(self.body) if self._constant(i)])
        axes = [*self.nest.kept, self.nest.inner] if columns else self.nest.kept
        total = " * ".join(f"n{a}" for a in axes) or "1"
        self.say(f"const tb_i64 results = {total};")
        self.say("const tb_i64 step = gridDim.x * (tb_i64)blockDim.x;")
        self.open("for (tb_i64 first = blockIdx.x * (tb_i64)blockDim.x; first < results; first += step)")
        self.say("const bool inside = first + threadIdx.x < results;")
        self.say("const tb_i64 task = inside ? first + threadIdx.x : results - 1;")
        self._row_position(axes, "task")
        if columns:
            self.say(f"const tb_i64 at = x{self.nest.inner};", "(void)at;")
        self._statements(
            [n for n, i in enumerate(self.body) if not self.full[n] and not self._constant(i) and i.stage == 0]
        )
        for n in self.reductions:
            self._begin(n)
        partials = self._partials()
        self.open("for (tb_i64 part = threadIdx.y; part < segments; part += blockDim.y)")
        self.say(f"const tb_i64 *const given = scratch + (part * results + task) * {len(partials)};")
        for k, (n, kind) in enumerate(partials):
            if kind == "a":
                self.say(f"a{n} = {self._joined(n, f'a{n}', self._given(n, k))};")
        self.close()
        for n in self.reductions:
            self._over_threads("tb_join_column", n)
        for n in self.reductions:
            self._finish(n, f"a{n}", f"a{n}.at")
        self._statements(self._rows_after(1))
        self.open("if (inside && threadIdx.y == 0)")
        self._row_outputs("single" if columns else "")
        self.close(2)

    def _given(self, n: int, k: int) -> str:
        """A partial result, word k and, of the place of an extreme, the next."""
        i = self.body[n]
        dtype = self.body[i.args[0]].dtype if i.op.dtype == "index" else i.dtype
        word = f"tb_word_{'double' if dtypes.is_float(dtype) else 'tb_i64'}(given[{k}])"
        if i.op.dtype == "index":
            return f"{self._kind(n)}{{({ctype(dtype)}){word}, given[{k + 1}]}}"
        return f"({accumulator(i)}){word}"
