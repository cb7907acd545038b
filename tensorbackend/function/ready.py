# SPDX-License-Identifier: Apache-2.0
"""Who is told of gradients while a backward pass goes on: each leaf's as soon as nothing more can be added to it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from tensorbackend.function.node import FunctionNode
from tensorbackend.function.variable import Variable, VariableNode

__all__ = ["Countdown", "Listener", "listeners"]


class Listener(Protocol):
    """What is told, once it is among `listeners`, of each pass of `backward` (not of `grad`), and of what an optimizer
    with a loss scale does to gradients after it."""

    def begin(self, leaves: Sequence[Variable]) -> None:
        """A pass begins that reaches these leaves; their gradients will be there in about this order."""

    def ready(self, leaf: Variable) -> None:
        """The gradient of a leaf is there; nobody but its holders changes it any more."""

    def end(self) -> None:
        """The pass is over. Leaves of which `ready` was not called got no gradient."""

    def scaled(self, leaf: Variable, before: Any) -> None:
        """An optimizer has put a multiple, the same in all processes, in the place of a leaf's gradient `before`."""


class _Listeners:
    """Every `Listener`, as long as somebody else holds it, in the order in which they came.

    Each may make exchanges with its like in other processes. A WeakSet would give them in the order of addresses.
    """

    def __init__(self) -> None:
        self._here: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._here)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._here)

    def add(self, listener: Any) -> None:
        """Tell it from now on."""
        self._here[listener] = None

    def discard(self, listener: Any) -> None:
        """Tell it no longer."""
        self._here.pop(listener, None)


listeners = _Listeners()


class Countdown:
    """How many functions each leaf still waits for, of those that a pass from the deepest on may visit."""

    def __init__(self, functions: Iterable[FunctionNode]) -> None:
        self._left: dict[VariableNode, int] = {}
        for function in sorted(functions, key=lambda f: -f.rank):
            for node in _leaves(function):
                self._left[node] = self._left.pop(node, 0) + 1  # the last in line is the last to be whole

    @property
    def leaves(self) -> list[Variable]:
        """The leaves that are still there, in the order in which their last functions come."""
        found = [node.variable() for node in self._left]
        return [leaf for leaf in found if leaf is not None]

    def visited(self, function: FunctionNode) -> Iterator[VariableNode]:
        """Note that a function was visited. Gives the leaves that wait for no other."""
        for node in _leaves(function):
            self._left[node] -= 1
            if not self._left[node]:
                yield node


def _leaves(function: FunctionNode) -> dict[VariableNode, None]:
    """The leaves that are inputs of a function, each once."""
    return dict.fromkeys(x for x in function.inputs or () if x.creator_node is None and x.requires_grad)
