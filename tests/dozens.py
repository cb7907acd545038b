# SPDX-License-Identifier: Apache-2.0
"""How tests go to workers: groups whole, the others some at a time.

What xdist does for each test that ends takes as long as tests have been handed out. With 18,000 of them, each by
itself, the process that hands them out was busy for a minute of every run.
"""

from __future__ import annotations

from functools import cached_property

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

__all__ = ["Dozens"]

TOGETHER = 12
"""Tests without a group that go to a worker at once: neighbours in one module."""


class Dozens(LoadGroupScheduling):
    """`--dist loadgroup`, with tests that have no group in groups of neighbours, and ended groups forgotten."""

    @cached_property
    def _places(self) -> dict[str, int]:
        return {nodeid: place for place, nodeid in enumerate(self.collection)}

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        if scope != nodeid:
            return scope
        return f"{nodeid.partition('::')[0]}, {self._places[nodeid] // TOGETHER}"

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Note that a test has ended."""
        super().mark_test_complete(node, item_index, duration)
        self._forget_if_ended(node, self._split_scope(self.registered_collections[node][item_index]))

    def _reschedule(self, node: WorkerController) -> None:
        """xdist fails for a worker that has yet to collect, as where two have ended and the first one's successor is
        there. It gets its tests when it has collected."""
        if node in self.registered_collections:
            super()._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """What a worker that ended leaves goes to the others, but for the test that ended it, which is returned.

        xdist hands that test out again, and ends the next worker, and so on.
        """
        work = self.assigned_work[node]
        if (scope := next(iter(work), None)) is None:
            return super().remove_node(node)
        crashed = next(nodeid for nodeid, done in work[scope].items() if not done)
        work[scope][crashed] = True
        self._forget_if_ended(node, scope)
        super().remove_node(node)
        return crashed

    def _forget_if_ended(self, node: WorkerController, scope: str) -> None:
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]
