# SPDX-License-Identifier: Apache-2.0
"""Captured programs on a device: launches that stay the same become a graph, which one call repeats.

A graph holds addresses and numbers as they were. A program whose arguments or numbers change makes its launches one by
one; one that is called again with the same becomes a graph at the second such call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tensorbackend.graph.plan import Kernel

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = ["Replay"]

LAUNCHES_ALONE = {"dot"}
"""Primitives that, like kernels, do nothing but launch: no memory is allocated, and the host looks at nothing."""


class Replay:
    """Runs `steps`, as a graph while `state` (all that the launches depend on) is that of the calls before."""

    def __init__(self, backend: Backend, steps: Sequence[Callable[[], None]]) -> None:
        self._backend = backend
        self._steps = steps
        self._state: Any = None
        self._graph: Callable[[], None] | None = None

    @staticmethod
    def suits(steps: Sequence[Any]) -> bool:
        """Whether the steps of plans, of kernels and primitives, can be a graph."""
        return all(isinstance(step, Kernel) or getattr(getattr(step, "op", None), "name", "") in LAUNCHES_ALONE
                   for step in steps)  # fmt: skip

    def __call__(self, state: Any) -> None:
        """Run the steps."""
        if state != self._state:
            self._state, self._graph = state, None
            self._run()
            return
        if self._graph is None:
            self._graph = self._backend._graph(self._run)
        self._graph()

    def _run(self) -> None:
        for step in self._steps:
            step()
