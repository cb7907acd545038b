# SPDX-License-Identifier: Apache-2.0
"""Additions as multiply-adds, where a pass over rows has more additions than products.

Processors that add in other units than they multiply in (AMD's since Zen) have as many of both: a pass of additions
leaves half of them idle. x * 1 + y is x + y, with the same rounding and the same signs of zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorbackend.codegen.hoist import HoistRenderer
from tensorbackend.codegen.nest import ROWS
from tensorbackend.codegen.render import tag

__all__ = ["PipeRenderer"]

ADDITIONS = {"add": "TB_PLUS", "sub": "TB_LESS"}
"""Ops that may become multiply-adds, by the macros of `kernels/c/kernel.h` that do so."""
CHEAP = {*ADDITIONS, "mul", "neg"}
"""All ops of a pass whose pipes can be told from their number; others take many instructions."""


class PipeRenderer(HoistRenderer):
    """A dialect that can share additions between pipes. `shares`: whether it has done so."""

    shares = False

    def _shared(self, loop: Sequence[int]) -> dict[int, str]:
        """The text of those values of the loop that are multiply-adds instead, so that there are as many of these as of
        additions."""
        made = [n for n in loop if self.body[n].kind == "op"]
        if self.nest.form != ROWS or not all(self.body[n].op.name in CHEAP for n in made):
            return {}
        additions = [n for n in made if self.body[n].op.name in ADDITIONS]
        products = sum(self.body[n].op.name == "mul" for n in made)
        sums = sum(self.body[n].op.name == "sum" for n in self._reduced_in(self.stage))
        floats = [n for n in additions if self.body[n].dtype in (np.float32, np.float64)]
        chosen = floats[: max(len(additions) + sums - products, 0) // 2]
        self.shares |= bool(chosen)
        return {n: self._as_product(n) for n in chosen}

    def _as_product(self, n: int) -> str:
        i = self.body[n]
        x, y = map(self._value, i.args)
        return f"{ADDITIONS[i.op.name]}_{tag(i.dtype)}({x}, {y})"
