# SPDX-License-Identifier: Apache-2.0
"""What the C dialect computes ahead of a loop: the random words of a block, by vectors of their own, and reciprocals of
the numbers that all elements are divided by. Both give the bits of what they stand for.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tensorbackend.codegen.lanes import LaneRenderer
from tensorbackend.codegen.nest import Nest
from tensorbackend.graph.plan import Instruction

__all__ = ["HoistRenderer"]

WORDS = {"rand": 1, "randn": 2, "randbits": 1}
"""Random words of 32 bits that a number takes, in types of 4 bytes; twice as many in types of 8."""


class HoistRenderer(LaneRenderer):
    """A dialect that can compute ahead of its inner loops."""

    def __init__(self, found: Nest, split: bool) -> None:
        super().__init__(found, split)
        self.divisors = {i.args[1] for i in self.body if self._is_ratio(i)}

    def _is_ratio(self, i: Instruction) -> bool:
        """Whether an instruction divides changing numbers of float32 by one that is the same for the whole kernel."""
        if i.kind != "op" or i.op.name != "div" or i.dtype != np.float32:
            return False
        number, divisor = (self.body[a] for a in i.args)
        return self._constant(divisor) and not self._constant(number)

    def _statements(self, numbers: Iterable[int], buffers: dict[int, str] | None = None) -> None:
        for n in numbers:
            super()._statements([n], buffers)
            if n in self.divisors:
                self.say(f"const tb_inverse inverse{n} = tb_inverse_f32(v{n});")

    def _expression(self, n: int) -> str:
        i = self.body[n]
        if not self._is_ratio(i):
            return super()._expression(n)
        return f"tb_over_f32({self._value(i.args[0])}, {self._value(i.args[1])}, inverse{i.args[1]})"

    def _drawn(self, loop: Iterable[int], block: int) -> dict[int, str]:
        """Draw the random words of the m elements from b on; for values of the loop that are made of them, how."""
        found = {}
        for n in loop:
            i = self.body[n]
            if i.kind != "source" or i.op.name not in WORDS or not self._runs_along(i):
                continue
            count = WORDS[i.op.name] * i.dtype.itemsize // 4
            index = self._index(i, "b")
            self.say(f"tb_u32 words{n}[{count * block}];")
            self.say(f"tb_philox_block(words{n}, {block}, {count}, {index}, m, draw{i.slot}, key);")
            found[n] = self._random(i, f"tb_words_at(words{n}, {block}, {count}, j)")
        return found

    def _runs_along(self, i: Instruction) -> bool:
        """Whether elements of a source that follow each other along the inner axis have numbers that do."""
        return all(n == 1 for n in i.shape[self.nest.inner + 1 :])
