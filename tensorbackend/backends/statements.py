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
from typing import Any, NamedTuple

from tensorbackend import settings
from tensorbackend.backends import watch
from tensorbackend.backends.random_numbers import drawn
from tensorbackend.graph.fuse import can_join, walk
from tensorbackend.graph.optree import Operators
from tensorbackend.graph.plan import Plan, Statement
from tensorbackend.graph.tensor import Tensor, overlap, share_memory

__all__ = ["FuseBlock", "Method", "StatementGroup"]

MAX_STATEMENTS = 16


class _Waiting(NamedTuple):
    """Statements that wait, and their form: the numbers of their views, and where the parts of their trees are, as
    (statement, place in its tree)."""

    targets: tuple[Tensor, ...] = ()
    statements: tuple[Statement, ...] = ()
    leaves: tuple[list[Any], ...] = ()
    forms: tuple = ()
    numbers: dict[tuple, int] = {}
    parts: dict[int, tuple[int, int]] = {}


_NOTHING = _Waiting()


class _Stated:
    """A statement on its way into a group. `parts` are the places of its tree's parts."""

    def __init__(self, target: Tensor, value: Any) -> None:
        self.target, self.value = target, value
        self.parts: dict[int, int] = {}
        self.leaves, self.repeats = walk(value, self.parts)
        self.tensors = [x for x in self.leaves if isinstance(x, Tensor)]
        self.overlap = overlap(target, self.tensors)

    def statement(self, value: Any) -> Statement:
        """The statement, of that value."""
        return Statement(self.target.structure, value, self.overlap, self.target.address)

    def form(self, waits: _Waiting) -> tuple[tuple, dict[tuple, int]]:
        """What it adds to the form of what waits, and the numbers of views then. Parts that an earlier tree has as well
        come as (place, statement, place there)."""
        numbers = dict(waits.numbers)
        read = tuple([numbers.setdefault((x.address, x.structure), len(numbers)) for x in self.tensors])
        written = numbers.setdefault((self.target.address, self.target.structure), len(numbers))
        root = self.value.structure if isinstance(self.value, Operators) else self.value.__class__
        common = waits.parts.keys() & self.parts.keys() - set(map(id, self.tensors))
        shared = tuple(sorted((self.parts[x], *waits.parts[x]) for x in common))
        return (self.target.structure, written, root, self.repeats, self.overlap, shared, read), numbers

    def is_apart(self, waits: _Waiting) -> bool:
        """Whether what it touches shares memory with what the group touches as the very same view or not."""
        for x in self.tensors:
            if any(_partly(x, t) for t in waits.targets):
                return False
        group = (x for found in waits.leaves for x in found if isinstance(x, Tensor))
        return not any(_partly(self.target, x) for x in [*group, *waits.targets])

    def draws_anew(self, waits: _Waiting) -> bool:
        """Whether it has a random node in common with the group that draws in each statement that runs it."""
        sources = [self.leaves[n] for n in drawn(self.leaves)]
        return any(id(x) in waits.parts and not hasattr(x, "draw") for x in sources)

    def can_join(self, waits: _Waiting, value: Any) -> bool:
        """Whether it may run in one group with what waits. `value` is what it assigns, of a shape that fits."""
        if len(waits.targets) >= MAX_STATEMENTS or waits.statements[0].overlap > 1:
            return False
        targets = [*waits.targets, self.target]
        return can_join(list(waits.statements), list(waits.leaves), targets, self.statement(value), self.leaves)


class StatementGroup:
    """The statements of one thread's `fuse` block that have not run yet.

    `schedule(key, statements, leaves)` and `run(plan, targets, leaves)` are the backend's; `plans` is its bounded
    memory of plans and decisions. What waits is never changed but replaced as a whole: a finalizer, which may come at
    any time, may add statements and flush, and who was interrupted begins anew.
    """

    def __init__(self, schedule: Callable[..., Plan], run: Callable[[Plan, list, list], None], plans: dict) -> None:
        self._schedule = schedule
        self._run = run
        self._plans = plans
        self._waits = _NOTHING

    @property
    def targets(self) -> tuple[Tensor, ...]:
        """What the statements that wait will write."""
        return self._waits.targets

    def add(self, target: Tensor, value: Any, fit: Callable[[], Any]) -> None:
        """Add a statement, running those before it first if it may not join them. `fit()` checks the value's shape.

        One that touches nothing that the group touches would gain nothing in its kernel, and stays apart.
        """
        new = _Stated(target, value)
        while True:
            waits = self._waits
            form, numbers = new.form(waits)
            if not waits.targets:
                if self._plans.get(("fits", form)) is None:
                    fit()
                    self._plans["fits", form] = True
            elif not self._joins(waits, new, form, fit):
                self.flush()
                continue
            if self._append(waits, new, form, numbers):
                return

    def put(self, target: Tensor, value: Any) -> None:
        """Add a statement that is known to fit those before it: over their space, or with one result for each row. It
        reads no target of theirs, and writes what they read at most as the very view that the space is."""
        new = _Stated(target, value)
        while not self._append(self._waits, new, *new.form(self._waits)):
            pass

    def _append(self, waits: _Waiting, new: _Stated, form: tuple, numbers: dict[tuple, int]) -> bool:
        """Add a statement of that form to what waited; False if others have come or gone since."""
        targets, statements, leaves, forms, _, parts = waits
        parts = {x: (len(targets), place) for x, place in new.parts.items()} | parts
        after = _Waiting(
            (*targets, new.target), (*statements, new.statement(new.value)), (*leaves, new.leaves), forms + form,
            numbers, parts,
        )
        if self._waits is not waits:
            return False
        self._waits = after
        return True

    def _joins(self, waits: _Waiting, new: _Stated, form: tuple, fit: Callable[[], Any]) -> bool:
        """Whether a statement of that form may join what waits, checked or remembered."""
        draws_anew = new.draws_anew(waits)
        key = ("join", waits.forms, form, new.is_apart(waits), draws_anew)
        joins = self._plans.get(key)
        if joins is None:
            value, views = fit(), (form[1], *form[-1])
            joins = min(views) < len(waits.numbers) and not draws_anew and new.can_join(waits, value)
            self._plans[key] = joins
        return joins

    def flush(self) -> tuple[Plan, list[Any]] | None:
        """Run what waits. Returns the plan and its leaves, None when nothing waited."""
        waits, self._waits = self._waits, _NOTHING
        if not waits.targets:
            return None
        plan = self._plans.get(waits.forms)
        if plan is not None:
            return self._run_waiting(plan, waits)
        with settings.as_they_are():
            made = functools.partial(self._schedule, waits.forms, list(waits.statements), list(waits.leaves))
            return self._run_waiting(self._plans.make(waits.forms, made), waits)

    def _run_waiting(self, plan: Plan, waits: _Waiting) -> tuple[Plan, list[Any]]:
        every = [x for found in waits.leaves for x in found]
        if watch.watching:
            with watch.stating(zip(waits.targets, [s.value for s in waits.statements])):
                self._run(plan, list(waits.targets), every)
        else:
            self._run(plan, list(waits.targets), every)
        return plan, every


class _Here(threading.local):
    """What a thread has of a fuse block."""

    depth = 0
    group: StatementGroup | None = None


class Method(property):
    """A special method that a function of the instance gives anew each time that one looks for it, as `with` does."""

    def __call__(self, instance: Any, *arguments: Any) -> Any:  # as contextlib.ExitStack calls it
        return self.__get__(instance)(*arguments)


class _End:
    """Ends a block when it is called, or else when nothing refers to it any more: an interrupt may come just as it is
    called, before any of its lines. Made when a `with` begins, it knows how deep the thread was in blocks then."""

    __slots__ = ("_block", "_depth", "_ended", "_thread")

    def __init__(self, block: FuseBlock) -> None:
        self._block, self._ended, self._thread = block, False, threading.get_ident()
        self._depth = block._here.depth

    def __call__(self, *error: object) -> None:
        here = self._block._here
        if not here.depth:
            raise RuntimeError("be.fuse(): a block ends in the thread in which it began")
        self._ended = True
        here.depth -= 1  # nothing is called in between: no interrupt comes
        if here.depth:
            return
        group, here.group = here.group, None
        try:
            group.flush()
        except BaseException:  # an interrupt, perhaps before it began: nobody else would run what waits
            group.flush()
            raise

    def __del__(self) -> None:
        if not self._ended and self._thread == threading.get_ident() and self._block._here.depth > self._depth:
            self()


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
        if here.group is None:
            here.group = StatementGroup(self._schedule, self._run, self._plans)
        here.depth += 1

    __exit__ = Method(_End)

    def add(self, target: Tensor, value: Any) -> bool:
        """Take a statement of a thread that is in a block; False when it is in none."""
        group = self._here.group
        if group is None:
            return False
        if isinstance(value, Operators) and len(value.shape or ()) > len(target.shape):
            value = self._fit(target, value)  # without the axes that the target has not: kernels run over its space
        group.add(target, value, functools.partial(self._fit, target, value))
        return True

    def flush(self) -> None:
        """Run the statements of this thread that wait."""
        group = self._here.group
        if group is not None:
            group.flush()


def _partly(x: Tensor, y: Tensor) -> bool:
    return share_memory(x, y) and not (x.address == y.address and x.structure is y.structure)
