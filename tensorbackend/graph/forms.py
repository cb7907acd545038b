# SPDX-License-Identifier: Apache-2.0
"""What a plan is remembered by, and the way back: statements of the same form, with stand-ins for their leaves.

A plan follows from its key: the structures of targets and values, which parts of a tree are used again, which memory
overlaps. So a digest of the key names the plan in any process (`digest`), and what a plan's steps are can be worked
out from the key alone, long after the tensors are gone (`statements_of`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.graph.fuse import schedule, walk
from tensorbackend.graph.indexing import SliceKey
from tensorbackend.graph.optree import Operators, OpTreeNode
from tensorbackend.graph.plan import Plan, Statement
from tensorbackend.graph.structure import Structure

__all__ = ["KnownPlan", "digest", "leads_back", "statements_of"]

NAMELESS = ""
"""The digest of a structure that has none: something in it means nothing in another process."""
_PLAIN = (int, float, bool, str, type(None), np.integer, np.floating, np.dtype)


def digest(key: tuple) -> str | None:
    """A name for a plan's key (see `Backend._statement_key` and `StatementGroup`) that is the same in every process.

    None where the key holds objects that only this process knows.
    """
    parts = [_part(x) for x in key]
    return _hash(parts) if NAMELESS not in parts else None


def _part(x: Any) -> str:
    if isinstance(x, Structure):
        return x.digest or _name_structures(x)
    return x.__name__ if isinstance(x, type) else repr(x)


def _name_structures(root: Structure) -> str:
    """Give a structure and those it is made of their digests, however deep they go; the digest of the first."""
    stack = [root]
    while stack:
        s = stack[-1]
        waiting = [x for x in s.inputs if x.digest is None]
        stack += waiting
        if not waiting:
            stack.pop().digest = _structure_digest(s)
    return root.digest


def _structure_digest(s: Structure) -> str:
    given = [x.digest for x in s.inputs]
    if NAMELESS in given or not _is_plain(s.params):
        return NAMELESS
    facts = f"{s.shape} {s.strides} {s.min_dims} {s.params} {s.weak} {_tag(s.dtype)} {_tag(s.operands)}"
    return _hash([facts, "" if s.op is None else _op_text(s.op), *given])


def _tag(dtype: np.dtype | None) -> str:
    return "" if dtype is None else dtypes.tag(dtype)


def _is_plain(x: Any) -> bool:
    if isinstance(x, tuple):
        return all(map(_is_plain, x))
    if isinstance(x, slice):
        return _is_plain((x.start, x.stop, x.step))
    return isinstance(x, _PLAIN) or (isinstance(x, SliceKey) and _is_plain(x.indices))


@functools.cache
def _op_text(op: ops.Op) -> str:
    """What the schedule and the printers read of an op, which may be a user's."""
    return repr((op.name, op.arity, op.kind, op.code, op.dtype, op.ulps, op.half_ulps, op.flops, op.identity))


def _hash(parts: list[str]) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


# The way back


class KnownPlan(Plan):
    """A plan of which only the key and what a run of it takes are known; the rest is scheduled when somebody looks.

    `fit(layout, value)` gives the value a shape that fits the target's, as for the statement.
    """

    def __init__(self, key: tuple, targets: int, tensors: list[int], fit: Callable[[Any, Any], Any]) -> None:
        self.targets = targets
        self.tensors = tensors
        self.cache = {}
        self._key = key
        self._fit = fit

    def __getattr__(self, name: str) -> Any:
        if name not in ("draws", "layouts", "steps", "temporaries"):
            raise AttributeError(name)
        statements, leaves = statements_of(self._key)
        if len(statements) == 1:
            statements[0].value = self._fit(statements[0].target, statements[0].value)
        plan = schedule(statements, leaves)
        self.layouts, self.steps, self.temporaries, self.draws = plan.layouts, plan.steps, plan.temporaries, plan.draws
        return getattr(self, name)


class _StandIn(Operators):
    """A tensor as the schedule sees it: a layout, and an address that tells views apart."""

    __slots__ = ("address", "structure")

    def __init__(self, structure: Structure, address: int) -> None:
        self.structure = structure
        self.address = address


def statements_of(key: tuple) -> tuple[list[Statement], list[list[Any]]]:
    """Statements whose plan a key is remembered by, and their leaves, as `schedule` takes them."""
    if len(key) == 4:
        target, root, repeats, overlap = key
        statements = [Statement(target, _tree(root, repeats, {}, lambda s, place: _StandIn(s, 0)), overlap)]
    else:
        views: dict[int, list[_StandIn]] = {}
        parts: list[dict[int, Any]] = []
        statements = [_grouped(views, parts, *key[at : at + 7]) for at in range(0, len(key), 7)]
    return statements, [walk(statement.value)[0] for statement in statements]


def leads_back(key: tuple) -> bool:
    """Whether the way back from a key gives trees with the leaves of those that it was made of, in their order.

    A key does not say which of several tensors on one memory is read where, and trees that share parts may ask.
    """
    forms = [key[at : at + 7] for at in range(0, len(key), 7)] if len(key) != 4 else []
    if not any(form[5] for form in forms):
        return True
    statements, _ = statements_of(key)
    return all(walk(statement.value)[1] == form[3] for statement, form in zip(statements, forms))


def _grouped(views: dict[int, list[_StandIn]], parts: list[dict[int, Any]], target: Structure, number: int,
             root: Any, repeats: tuple[int, ...], overlap: int, shared: tuple[tuple[int, int, int], ...],
             numbers: tuple[int, ...]) -> Statement:  # fmt: skip
    """A statement of a group, whose `views` are tensors by their numbers; two on one view in a statement are two.
    `parts` are those of the trees so far, by their places."""
    parts.append({place: parts[statement][there] for place, statement, there in shared})
    known = _leaves_of_known(root, repeats, parts[-1])
    taken = {id(x) for x in known.values()}
    left = iter(numbers)

    def view(s: Structure, place: int) -> _StandIn:
        n = next(left)
        if place in known:
            return known[place]
        alike = views.setdefault(n, [])
        found = next((x for x in alike if id(x) not in taken), None)
        if found is None:
            alike.append(found := _StandIn(s, n))
        taken.add(id(found))
        return found

    return Statement(target, _tree(root, repeats, parts[-1], view), overlap, number)


def _leaves_of_known(root: Structure | type, repeats: tuple[int, ...], made: dict[int, Any]) -> dict[int, Any]:
    """The tensors that parts `made` before read, by their first places in this tree."""
    found: dict[int, Any] = {}
    again = dict(zip(repeats[::2], repeats[1::2]))
    stack = [] if isinstance(root, type) or not root.op else [(root, made.get(0))]
    count = 0
    while stack:
        structure, node = stack.pop()
        for position, s in enumerate(structure.inputs):
            count += 1
            if s.op is None and node is not None and isinstance(node.inputs[position], Operators):
                found[again.get(count, count)] = node.inputs[position]
            elif s.op and count not in again:
                stack.append((s, made.get(count)))
    return found


def _tree(
    root: Structure | type, repeats: tuple[int, ...], made: dict[int, Any], tensor: Callable[[Structure, int], Any]
) -> Any:
    """A tree of a structure in which parts repeat as `walk` said; `tensor` makes its tensors, in the leaves' order, of
    layouts and places.

    `made` are parts that are there, by their places, and takes the others.
    """
    if isinstance(root, type):
        return 0  # no root(0), which not every enum has
    again = dict(zip(repeats[::2], repeats[1::2]))
    first = made.setdefault(0, _part_of(root, tensor, 0))
    stack = [first] if root.op else []
    count = 0
    while stack:
        node = stack.pop()
        inputs = []
        for s in node.structure.inputs:
            count += 1
            if count not in again:
                part = made.setdefault(count, _part_of(s, tensor, count))
                if s.op:
                    stack.append(part)
            inputs.append(made[again.get(count, count)])
        node.inputs = node.inputs or tuple(inputs)
    return first


def _part_of(s: Structure, tensor: Callable[[Structure, int], Any], place: int) -> Any:
    """What stands for a part of a tree: a node without its operands yet, a tensor, or a number."""
    if s.op is None:
        return 0 if s.strides is None else tensor(s, place)
    node = object.__new__(OpTreeNode)
    node.structure, node.inputs = s, ()
    return node
