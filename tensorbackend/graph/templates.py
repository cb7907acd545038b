# SPDX-License-Identifier: Apache-2.0
"""Trees made once and repeated: what a function of trees builds for operands of known layouts.

A function is traced on *placeholders*, tensors without memory. What it builds is noted as a `Template`, which makes the
same trees of any tensors of these layouts, without running the function again. `differentiate` goes back through traced
trees, so that gradients are templates too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tensorbackend import dtypes, ops
from tensorbackend.errors import ShapeError, complain
from tensorbackend.graph import composite, indexing
from tensorbackend.graph.autodiff import fitted
from tensorbackend.graph.optree import OpTreeNode, apply, nodes_of
from tensorbackend.graph.structure import Structure
from tensorbackend.graph.tensor import Tensor

__all__ = ["Template", "differentiate", "opaque", "placeholder"]

_new = object.__new__
_LEAST_DISTANCE = 1 << 44
"""Bytes between placeholders, so that none seems to overlap another."""


def placeholder(structure: Structure, number: int) -> Tensor:
    """A tensor of a layout without memory, the `number`-th of a trace."""
    made = _new(structure.table.backend.tensor_cls)
    made._place(structure, None, (number + 1) * _LEAST_DISTANCE)
    made.base = made.name = None
    made.persist_values, made.rounding = True, 0
    return made


def opaque(tensor: Tensor) -> OpTreeNode:
    """The tensor as a node, whose views are nodes too: gradients are worked out through nodes."""
    return apply(ops.OPS["broadcast"], tensor, params=(tensor.shape,))


class Template:
    """The trees of `roots`, made of `operands`: placeholders and numbers.

    The first `optional` operands are left out where no tree reads them: `taken` are the numbers of those that `make`
    takes. `draws` is how many random nodes there are.
    """

    def __init__(self, roots: Sequence[Any], operands: Sequence[Any], optional: int = 0) -> None:
        self._sources: list[OpTreeNode] = []
        self.views: list[tuple[int, Structure, int]] = []
        self.constants: list[Any] = []
        self.nodes: list[tuple[Structure, tuple[int, ...], int]] = []
        simple: dict[int, Any] = {}
        flat = [None if root is None else _simplified(root, simple) for root in roots]
        leaves = _leaves(flat)
        self._numbers: dict[int, int] = {}
        self.taken = self._note_operands(leaves, operands, optional)
        self._count = len(self.taken)
        self._note_leaves(leaves)
        self.roots = tuple(None if root is None else self._note_tree(root) for root in flat)
        self.structures = tuple(getattr(root, "structure", None) for root in flat)
        self.draws = len(self._sources)
        del self._numbers, self._sources  # by what is gone from here on
        table = self.nodes[0][0].table if self.nodes else None
        native = table is not None and all(len(inputs) <= table.most_operands for _, inputs, _ in self.nodes)
        self._grow = table.grow if native else None
        self._look = self.views[0][1].table.look if self.views else None
        self._looks = tuple((at, s, struct.pack("3q", offset, *s.extent)) for at, s, offset in self.views)

    def _note_operands(self, leaves: list[Any], operands: Sequence[Any], optional: int) -> tuple[int, ...]:
        """Number the operands; the result says which ones."""
        read = {id(_root(x)) for x in leaves} if optional else ()
        taken = tuple(i for i, x in enumerate(operands) if i >= optional or id(x) in read)
        self._numbers.update((id(operands[i]), n) for n, i in enumerate(taken) if isinstance(operands[i], Tensor))
        return taken

    def _note_leaves(self, leaves: list[Any]) -> None:
        """Number the leaves that are no operands: first views of them, then constants."""
        for x in leaves:
            base = _root(x)
            number = self._numbers.get(id(base))
            if number is None:
                self.constants.append(x)
            elif base is not x:
                self.views.append((number, x.structure, x.address - base.address))
                self._numbers[id(x)] = self._next()
        for x in self.constants:
            self._numbers[id(x)] = self._next()

    def _next(self) -> int:
        self._count += 1
        return self._count - 1

    def _note_tree(self, root: Any) -> int:
        for node in nodes_of(root) if isinstance(root, OpTreeNode) else ():
            if id(node) in self._numbers:
                continue
            operands = tuple(self._numbers[id(x)] for x in node.inputs)
            source = -1
            if node.structure.op.kind == ops.SOURCE and node.structure.op.name != "index":
                source = getattr(node, "draw", len(self._sources))
                self._sources.append(node)
            self._numbers[id(node)] = self._next()
            self.nodes.append((node.structure, operands, source))
        return self._numbers[id(root)]

    def make(self, operands: Sequence[Any], draws: list[int]) -> list[Any]:
        """The trees' values by number, of tensors as the placeholders `taken` were; `roots` are the roots' numbers."""
        values = list(operands)
        if self._look is None or not self._look(values, self._looks):
            del values[len(operands) :]
            for number, structure, offset in self.views:
                base = values[number]
                values.append(base._seen_as(type(base), structure, base.address + offset))
        values += self.constants
        if self._grow is not None:
            self._grow(values, self.nodes, draws)
            return values
        for structure, inputs, source in self.nodes:
            node = _new(OpTreeNode)
            node.structure = structure
            node.inputs = tuple([values[i] for i in inputs])
            if source >= 0:
                node.draw = draws[source]
            values.append(node)
        return values


def _leaves(roots: Sequence[Any]) -> list[Any]:
    """The distinct leaves of trees."""
    found: dict[int, Any] = {}
    for root in roots:
        every = nodes_of(root) if isinstance(root, OpTreeNode) else []
        leaves = [x for node in every for x in node.inputs] if every else [] if root is None else [root]
        found.update((id(x), x) for x in leaves if not isinstance(x, OpTreeNode))
    return list(found.values())


def _root(x: Any) -> Any:
    while isinstance(x, Tensor) and x.base is not None:
        x = x.base
    return x


def _simplified(root: Any, done: dict[int, Any]) -> Any:
    """The tree with movements of tensors carried out, where a view has the shape. `done`: what was simplified."""
    if not isinstance(root, OpTreeNode):
        return root
    for node in nodes_of(root):
        if id(node) not in done:
            inputs = tuple(done.get(id(x), x) for x in node.inputs)
            done[id(node)] = _simple(node, inputs)
    return done[id(root)]


def _simple(node: OpTreeNode, inputs: tuple[Any, ...]) -> Any:
    structure = node.structure
    op, params = structure.op, structure.params
    if op.name == "broadcast" and inputs[0].shape == node.shape:
        return inputs[0]
    if op.kind == ops.MOVEMENT and isinstance(inputs[0], Tensor):
        try:
            return inputs[0][params[0]] if op.name == "slice" else inputs[0]._move(op.name, *params)
        except ShapeError:
            pass  # a reshape that no view has: it stays a node
    if all(x is y for x, y in zip(inputs, node.inputs)):
        return node
    hashed = tuple(indexing.hashable(p) if isinstance(p, tuple) else p for p in params)
    return apply(op, *inputs, params=hashed)


def differentiate(
    roots: Sequence[Any],
    values: Sequence[Any],
    starts: Sequence[Any],
    leaves: Sequence[Any],
    rules: Mapping[int, Callable[[Any], Iterable[tuple[Any, Any]]]] = MappingProxyType({}),
) -> list[Any]:
    """The gradients with respect to `leaves`, which are nodes of `opaque`: trees, or None where there is none.

    `roots` are trees, `values` tensors that hold their values (None: not at hand), and `starts` their gradients (None:
    none). `rules` are those that hold for nodes, by id, in place of their ops': of a node's gradient each makes nodes
    below it, with their gradients. Raises `ValueError` where an op has no derivative.
    """
    flowing: dict[int, Any] = {}
    held: dict[int, Any] = {}
    order: dict[int, OpTreeNode] = {}
    for root, value, start in zip(roots, values, starts):
        if start is not None and isinstance(root, OpTreeNode):
            order.update((id(node), node) for node in nodes_of(root) if id(node) not in order)
            _flow(flowing, root, start)
            if value is not None and value.dtype == root.dtype:
                held[id(root)] = value
    wanted = {id(x) for x in leaves}
    for node in reversed(order.values()):
        g = flowing.get(id(node))
        if g is None or id(node) in wanted or not node.inputs:
            continue
        own = rules.get(id(node))
        for x, gx in zip(node.inputs, _rule(node, g, held.get(id(node)))) if own is None else own(g):
            if gx is not None and isinstance(x, OpTreeNode) and dtypes.is_float(x.dtype):
                _flow(flowing, x, fitted(gx, x))
    return [flowing.get(id(x)) for x in leaves]


def _flow(flowing: dict[int, Any], node: OpTreeNode, g: Any) -> None:
    before = flowing.get(id(node))
    flowing[id(node)] = g if before is None else before + g


def _rule(node: OpTreeNode, g: Any, held: Any) -> tuple:
    """The derivative rule of a node. Its own value is read from memory where it is held and the rule asks for nothing
    else of the node."""
    op = node.structure.op
    if op.vjp is None:
        raise ValueError(complain(f"{op.name}: no derivative", "", "", "a function with a backward of its own"))
    plain = held is not None and op.kind in (ops.ELEMENTWISE, ops.REDUCTION)
    return op.vjp(composite, g, held if plain else node, *node.inputs)


