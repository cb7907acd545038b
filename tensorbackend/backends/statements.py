# SPDX-License-Identifier: Apache-2.0
"""Statements that wait to run as one: what `with be.fuse():` keeps.

A group is recognised by its form: the structures of its trees and targets, which parts trees have in common, and which
tensors are the same view. Whether a statement may join, and the plan of the whole group, are remembered under that
form, so a repeated group costs look-ups alone.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from tensorbackend.graph.fuse import can_join, walk
from tensorbackend.graph.optree import Operators
from tensorbackend.graph.plan import Plan, Statement
from tensorbackend.graph.tensor import Tensor

__all__ = ["FuseBlock", "StatementGroup"]

MAX_STATEMENTS = 16


class StatementGroup:
    """The statements of one thread's `fuse` block that have not run yet.

    `schedule(key, statements, leaves)` and `run(plan, targets, leaves)` are the backend's; `plans` is its bounded
    memory of plans and decisions.
    """

    def __init__(self, schedule: Callable[..., Plan], run: Callable[[Plan, list, list], None], plans: dict) -> None:
        self._schedule = schedule
        self._run = run
        self._plans = plans
        self._reset()

    def _reset(self) -> None:
        self.targets: list[Tensor] = []
        self._statements: list[Statement] = []
        self._leaves: list[list[Any]] = []
        self._forms: tuple = ()
        self._numbers: dict[tuple, int] = {}
        self._parts: dict[int, tuple[int, int]] = {}

    def add(self, target: Tensor, value: Any, fit: Callable[[], Any]) -> None:
        """Add a statement, running those before it first if it may not join them. `fit()` checks the value's shape.

        One that touches nothing that the group touches would gain nothing in its kernel, and stays apart.
        """
        parts: dict[int, int] = {}
        leaves, repeats = walk(value, parts)
        overlap = self._overlap(target, leaves)
        apart = self._apart(target, leaves)
        seen = len(self._numbers)
        form = self._form(target, value, leaves, repeats, overlap, parts)
        while self.targets:  # also after a flush: what it frees may state something
            key = ("join", self._forms, form, apart)
            joins = self._plans.get(key)
            if joins is None:
                value_fits, numbers = fit(), (form[1], *form[-1])
                joins = min(numbers) < seen and self._decide(target, value_fits, leaves, overlap)
                self._plans[key] = joins
            if joins:
                break
            self.flush()
            apart, seen = self._apart(target, leaves), len(self._numbers)
            form = self._form(target, value, leaves, repeats, overlap, parts)
        if not self.targets and self._plans.get(("fits", form)) is None:
            fit()
            self._plans["fits", form] = True
        self._append(target, value, leaves, overlap, form, parts)

    def put(self, target: Tensor, value: Any) -> None:
        """Add a statement that is known to fit those before it: over their space, or with one result for each row. It
        reads no target of theirs, and writes what they read at most as the very view that the space is."""
        parts: dict[int, int] = {}
        leaves, repeats = walk(value, parts)
        overlap = self._overlap(target, leaves)
        form = self._form(target, value, leaves, repeats, overlap, parts)
        self._append(target, value, leaves, overlap, form, parts)

    def _append(
        self, target: Tensor, value: Any, leaves: list[Any], overlap: int, form: tuple, parts: dict[int, int]
    ) -> None:
        for x, place in parts.items():
            self._parts.setdefault(x, (len(self.targets), place))
        self.targets.append(target)
        self._statements.append(Statement(target.structure, value, overlap, target.address))
        self._leaves.append(leaves)
        self._forms += form

    def _decide(self, target: Tensor, value: Any, leaves: list[Any], overlap: int) -> bool:
        if len(self.targets) >= MAX_STATEMENTS or self._statements[0].overlap > 1:
            return False
        new = Statement(target.structure, value, overlap, target.address)
        return can_join(self._statements, self._leaves, [*self.targets, target], new, leaves)

    def flush(self) -> tuple[Plan, list[Any]] | None:
        """Run what waits. Returns the plan and its leaves, None when nothing waited."""
        if not self.targets:
            return None
        targets, statements, leaves, forms = self.targets, self._statements, self._leaves, self._forms
        self._reset()
        plan = self._plans.get(forms)
        if plan is None:
            plan = self._plans[forms] = self._schedule(forms, statements, leaves)
        every = [x for found in leaves for x in found]
        self._run(plan, targets, every)
        return plan, every

    # Forms

    def _number(self, tensor: Tensor) -> int:
        return self._numbers.setdefault((tensor.address, tensor.structure), len(self._numbers))

    def _form(
        self, target: Tensor, value: Any, leaves: list[Any], repeats: tuple, overlap: int, parts: dict[int, int]
    ) -> tuple:
        """What a statement adds to the group's form. `parts` are the places of its tree's parts; those that an earlier
        tree has as well come as (place, statement, place there)."""
        root = value.structure if isinstance(value, Operators) else value.__class__
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        common = self._parts.keys() & parts.keys() - set(map(id, tensors))
        shared = tuple(sorted((parts[x], *self._parts[x]) for x in common))
        numbers = tuple(map(self._number, tensors))
        return (target.structure, self._number(target), root, repeats, overlap, shared, numbers)

    @staticmethod
    def _overlap(target: Tensor, leaves: list[Any]) -> int:
        overlap = 0
        for x in leaves:
            if isinstance(x, Tensor) and x.start < target.stop and target.start < x.stop:
                same = x.address == target.address and x.structure is target.structure
                overlap = max(overlap, 1 if same else 2)
        return overlap

    def _apart(self, target: Tensor, leaves: list[Any]) -> bool:
        """Whether what the statement touches shares memory with what the group touches as the very same view or not."""
        for x in leaves:
            if isinstance(x, Tensor) and any(_partly(x, t) for t in self.targets):
                return False
        group = (x for found in self._leaves for x in found if isinstance(x, Tensor))
        return not any(_partly(target, x) for x in [*group, *self.targets])


class _Here(threading.local):
    """What a thread has of a fuse block."""

    depth = 0
    group: StatementGroup | None = None


class FuseBlock:
    """What `be.fuse()` gives, always the same object: blocks may nest, and each thread has its own.

    `schedule(key, statements, leaves)` and `run(plan, targets, leaves)` are the backend's, `fit(target, value)` its
    check of a value's shape, and `plans` gives its memory of plans.
    """

    __slots__ = ("_fit", "_here", "_plans", "_run", "_schedule")

    def __init__(self, schedule: Callable[..., Plan], run: Callable[[Plan, list, list], None],
                 fit: Callable[[Any, Any], Any], plans: dict) -> None:  # fmt: skip
        self._here = _Here()
        self._schedule = schedule
        self._run = run
        self._fit = fit
        self._plans = plans

    def __enter__(self) -> None:
        here = self._here
        if not here.depth:
            here.group = StatementGroup(self._schedule, self._run, self._plans)
        here.depth += 1

    def __exit__(self, *error: object) -> None:
        here = self._here
        here.depth -= 1
        if not here.depth:
            group, here.group = here.group, None
            group.flush()

    def add(self, target: Tensor, value: Any) -> bool:
        """Take a statement of a thread that is in a block; False when it is in none."""
        group = self._here.group
        if group is None:
            return False
        group.add(target, value, functools.partial(self._fit, target, value))
        return True

    def flush(self) -> None:
        """Run the statements of this thread that wait."""
        group = self._here.group
        if group is not None:
            group.flush()


def _partly(x: Tensor, y: Tensor) -> bool:
    return x.start < y.stop and y.start < x.stop and not (x.address == y.address and x.structure is y.structure)
