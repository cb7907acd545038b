# SPDX-License-Identifier: Apache-2.0
"""The order in which what depends on each other is worked out. Iterative: depth is no limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

__all__ = ["operands_first"]

_Node = TypeVar("_Node")


def operands_first(roots: Iterable[_Node], operands_of: Callable[[Any], list[_Node]],
                   known: Iterable[_Node] = ()) -> list[_Node]:  # fmt: skip
    """The distinct nodes that `roots` depend on, and these, operands before users; `known` ones are left out."""
    order: list[_Node] = []
    seen = {id(node) for node in known}
    pending = [(node, False) for node in roots]
    while pending:
        node, done = pending.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            pending.append((node, True))
            pending += [(x, False) for x in operands_of(node)]
    return order
