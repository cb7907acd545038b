# SPDX-License-Identifier: Apache-2.0
"""Groups of statements that a call runs, remembered: the next call of the same form builds and walks no trees."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tensorbackend.graph.tensor import Tensor

__all__ = ["Steps"]


class Steps:
    """What runs on `operands` as it is stated. `again` repeats it on others of the same layouts, overlaps and numbers.

    Parts of operands and tensors for values between come from `part` and `new`, so that a repetition can make its own.
    """

    def __init__(self, backend: Any, operands: Sequence[Tensor]) -> None:
        self._backend = backend
        self._emptied = backend.structures.plans.emptied
        self._kept_alive: list[Any] = list(operands)
        self._places = {id(x): number for number, x in enumerate(operands)}
        self._made: list[tuple[Any, ...]] = []
        self._runs: list[tuple[Any, list[int], list[tuple[bool, Any]]]] = []
        self.repeatable = True

    def part(self, x: Tensor, key: tuple[slice, ...]) -> Tensor:
        """The view `x[key]` of an operand."""
        return self._noted(x[key], (self._places[id(x)], key))

    def new(self, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
        """A tensor for a value between."""
        return self._noted(self._backend.empty(shape, dtype, min_dims=0), (shape, dtype))

    def _noted(self, made: Tensor, recipe: tuple[Any, ...]) -> Tensor:
        self._places[id(made)] = len(self._kept_alive)
        self._kept_alive.append(made)
        self._made.append(recipe)
        return made

    def assign(self, statements: Sequence[tuple[Tensor, Any]]) -> None:
        """Run statements as `Backend._assign_together` does."""
        if not statements:
            return
        plan, targets, leaves = self._backend._assign_together(statements)
        tensors = [x for x in (*targets, *leaves) if isinstance(x, Tensor)]
        self.repeatable &= not any(t.rounding for t in targets) and all(id(x) in self._places for x in tensors)
        if self.repeatable:
            tokens = [(True, self._places[id(x)]) if isinstance(x, Tensor) else (False, x) for x in leaves]
            self._runs.append((plan, [self._places[id(t)] for t in targets], tokens))

    def remember(self, key: Hashable) -> None:
        """Keep what can be repeated, without the tensors, beside the backend's plans."""
        self._kept_alive, self._places = [], {}
        plans = self._backend.structures.plans
        if self.repeatable and plans.emptied == self._emptied:
            plans[key] = self

    def again(self, operands: Sequence[Tensor]) -> None:
        """The same on other operands."""
        backend, tensors = self._backend, list(operands)
        backend.structures.check_open()
        backend._flush()
        for first, second in self._made:
            made = tensors[first][second] if isinstance(first, int) else backend.empty(first, second, min_dims=0)
            tensors.append(made)
        for plan, targets, tokens in self._runs:
            leaves = [tensors[x] if is_place else x for is_place, x in tokens]
            backend._run_group(plan, [tensors[n] for n in targets], leaves)
