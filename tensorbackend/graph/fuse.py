# SPDX-License-Identifier: Apache-2.0
"""The schedule: which kernels an assignment becomes, and what each of them computes.

`schedule` turns trees into a `Plan`: kernels and primitive calls over places in memory (the targets, the tensors of
the trees, temporaries). It is the only module that decides what one kernel is:

- elementwise ops, sources and broadcasts fuse into the kernel of their user; equal sub-expressions are computed once;
- reductions over the same axes of the same space fuse with the work before and after them (softmax is one kernel);
- a tensor's reduction over axes that lie apart, the inner one short, as over windows of images, is two;
- a tree is cut at primitives (dot, take …), at movements of computed values, at reductions that do not fit the
  kernel's space, and where a kernel would grow beyond `MAX_INSTRUCTIONS`. Each cut is listed with its reason.

What a plan consists of is in `plan.py`, how the instructions of one kernel are made in `region.py`. Values pass between
kernels in the compute type, so a cut changes no number (but sums that are two are rounded in between).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.graph import indexing
from tensorbackend.graph.loops import lying_across
from tensorbackend.graph.optree import Operators, OpTreeNode, apply, nodes_of
from tensorbackend.graph.plan import Instruction, Kernel, Plan, Primitive, Ref, Statement
from tensorbackend.graph.region import OPERAND_OF, Region, is_gate
from tensorbackend.graph.structure import UNKNOWN, Structure, broadcast_shapes, sized
from tensorbackend.graph.tensor import share_memory

__all__ = ["can_join", "is_drawn", "schedule", "single_call", "walk"]

Shape = tuple[int, ...]
MAX_INSTRUCTIONS = 200
APART, RUN = 1 << 12, 64
"""Elements from which on a tensor is reduced in two steps, where else rows of at most so many, far apart, would be."""
LEAST_ROW = 64
"""Elements from which on a row is reduced in one order, whatever its kernel stores; shorter ones lie side by side."""


def walk(root: Any, seen: dict[int, int] | None = None) -> tuple[list[Any], tuple[int, ...]]:
    """The leaves of a tree (tensors, numbers, random nodes) in a fixed order, and where parts are used again.

    Trees of equal structure and equal repeats have corresponding leaves. Iterative and by identity. An empty `seen`
    takes the number of each part, by its id.
    """
    if type(root) is not OpTreeNode and not isinstance(root, OpTreeNode):
        return [root], ()
    leaves: list[Any] = []
    repeats: list[int] = []
    seen = {} if seen is None else seen
    seen[id(root)] = 0
    count = 0
    stack = [root]
    while stack:
        node = stack.pop()
        if not node.inputs:
            leaves.append(node)
        for x in node.inputs:
            count += 1
            if not isinstance(x, Operators):
                leaves.append(x)
                continue
            first = seen.setdefault(id(x), count)
            if first != count:
                repeats += (count, first)
            elif isinstance(x, OpTreeNode):
                stack.append(x)
            else:
                leaves.append(x)
    return leaves, tuple(repeats)


def is_drawn(leaf: Any) -> bool:
    """Whether a leaf is a random node."""
    return isinstance(leaf, OpTreeNode) and leaf.structure.op.name != "index"


def can_join(
    statements: list[Statement], leaves: list[list[Any]], targets: list[Any], new: Statement, read: list[Any]
) -> bool:
    """Whether statement `new`, which reads `read`, may run in one group with those before it, which read `leaves`.

    `targets` are the tensors they write, and last the one it writes. It writes a space of the same shape, or for each
    of its rows what comes of their reductions; what it reads of their targets are the very views, of a type that stores
    values as they are computed; what it writes they have read at most as the very view, elementwise; no statement has a
    primitive or moves computed values.
    """
    if new.overlap > 1 or not (new.target.shape == statements[0].target.shape or _is_of_rows(new, statements)):
        return False
    if not _is_plain(new.value) or not _is_plain(statements[0].value):
        return False
    for x in read:
        if (
            not isinstance(x, OpTreeNode)
            and isinstance(x, Operators)
            and not _reads_what_was_written(x, statements, targets)
        ):
            return False
    reduces = any(_reduces(statement.value) for statement in [*statements, new])
    written = targets[-1]
    for x in [leaf for found in leaves for leaf in found] + targets[:-1]:
        if isinstance(x, Operators) and not isinstance(x, OpTreeNode) and share_memory(x, written):
            if reduces or (x.address, x.structure) != (written.address, written.structure):
                return False
    return True


def _is_of_rows(new: Statement, statements: list[Statement]) -> bool:
    """Whether a statement stores numbers of rows that come of reductions which those before it compute, too."""
    space, shape, value = statements[0].target.shape, new.target.shape, new.value
    if not isinstance(value, OpTreeNode) or value.shape != shape or len(shape) != len(space) or math.prod(shape) < 2:
        return False
    axes = tuple(a for a, (n, m) in enumerate(zip(shape, space)) if n != m)
    if any(shape[a] != 1 for a in axes) or math.prod(space[a] for a in axes) < LEAST_ROW:
        return False
    found = [n for n in nodes_of(value) if n.structure.op.kind == ops.REDUCTION]
    there = {id(n) for s in statements if isinstance(s.value, OpTreeNode) for n in nodes_of(s.value)}
    return bool(found) and all(id(n) in there and n.structure.params[0] == axes for n in found)


def _reads_what_was_written(x: Any, statements: list[Statement], targets: list[Any]) -> bool:
    """Whether a tensor is apart from every earlier target, or is one whose value is stored without rounding."""
    for statement, target in zip(statements, targets):
        same = (x.address, x.structure) == (target.address, target.structure)  # also where it has no elements
        if not same and not share_memory(x, target):
            continue
        value = statement.value
        if not same or not isinstance(value, OpTreeNode) or value.structure.dtype != target.structure.dtype:
            return False
        if dtypes.is_half(target.structure.dtype):
            return False
    return True


def _is_plain(value: Any) -> bool:
    if not isinstance(value, OpTreeNode):
        return True
    return not value.structure.flexible and all(
        n.structure.op.kind not in (ops.PRIMITIVE, ops.MOVEMENT) for n in nodes_of(value)
    )


def _reduces(value: Any) -> bool:
    return isinstance(value, OpTreeNode) and any(n.structure.op.kind == ops.REDUCTION for n in nodes_of(value))


def schedule(statements: list[Statement], leaves: list[list[Any]]) -> Plan:
    """The plan of one statement, or of a group of statements that `can_join` allowed; their values are those of
    statements run one after the other. `leaves[i]` is what `walk` gave for statement i."""
    return Scheduler(statements, leaves).run()


def single_call(op: ops.Op, params: tuple, outputs: list[Structure], inputs: list[Structure]) -> Plan:
    """The plan of one call of a primitive of several results: its targets are the outputs, its leaves the inputs."""
    places = [Ref(n, s.shape, s.strides, 0, s.dtype) for n, s in enumerate([*outputs, *inputs])]
    first, *others = places[: len(outputs)]
    step = Primitive(op, places[len(outputs) :], first, params, "a call", others=others)
    return Plan(len(outputs), list(range(len(inputs))), [], [step], False, places[len(outputs) :])


class Scheduler:
    """The making of one plan. Regions read what is known of nodes: `shapes`, `cuts`, `places` in memory, numbers;
    `was_read` has the operands (user, position) that statements run one by one would read from memory."""

    def __init__(self, statements: list[Statement], leaves: list[list[Any]]) -> None:
        self.statements = statements
        self.leaf_numbers: dict[int, int] = {}
        self.number_leaves: dict[tuple[int, int], int] = {}
        self.tensors: list[int] = []
        self.layouts: list[Ref] = []
        self.places: dict[int, Ref] = {}
        self.temporaries: list[tuple[Shape, np.dtype]] = []
        self.steps: list[Kernel | Primitive] = []
        self.shapes: dict[int, Shape] = {}
        self.cuts: dict[int, str] = {}
        self.was_read: set[tuple[int, int]] = set()
        self.kept_alive: list[Any] = []
        self.overlaps = _in_place(statements, leaves)
        self.draws = any(is_drawn(x) for found in leaves for x in found)
        self._number(leaves)

    def _number(self, leaves: list[list[Any]]) -> None:
        """Give every leaf its number and every tensor its buffer."""
        number = 0
        for index, (statement, found) in enumerate(zip(self.statements, leaves)):
            if not isinstance(statement.value, Operators):
                self.number_leaves[0, index] = number
            for x in found:
                if isinstance(x, Operators):
                    self.leaf_numbers[id(x)] = number
                    if not isinstance(x, OpTreeNode):
                        self.places[id(x)] = self._tensor(x.structure, number)
                number += 1
            self._number_constants(statement.value, found, number - len(found))

    def _number_constants(self, root: Any, found: list[Any], first: int) -> None:
        """Numbers are leaves by position: walk as `walk` does and note (user, operand) → leaf."""
        if not isinstance(root, OpTreeNode):
            return
        seen = {id(root)}
        number = first
        stack = [root]
        while stack:
            node = stack.pop()
            if not node.inputs:
                number += 1
            for position, x in enumerate(node.inputs):
                if not isinstance(x, Operators):
                    self.number_leaves[id(node), position] = number
                    number += 1
                elif id(x) not in seen:
                    seen.add(id(x))
                    if isinstance(x, OpTreeNode):
                        stack.append(x)
                    else:
                        number += 1
        assert number == first + len(found)

    def _tensor(self, s: Structure, number: int) -> Ref:
        self.tensors.append(number)
        self.layouts.append(Ref(len(self.statements) + len(self.tensors) - 1, s.shape, s.strides, 0, s.dtype))
        return self.layouts[-1]

    def run(self) -> Plan:
        """Make the plan."""
        if len(self.statements) == 1:
            self._statement(0, self.statements[0])
        else:
            self._group()
        return Plan(len(self.statements), self.tensors, self.temporaries, self.steps, self.draws, self.layouts)

    def _temporary(self, shape: Shape, dtype: np.dtype, order: Shape | None = None) -> Ref:
        # Temporaries are numbered from -1 downwards, so that their buffers need not wait for the tensors' count.
        self.temporaries.append((shape, dtype))
        strides = indexing.contiguous_strides(shape) if order is None else indexing.dense_strides(shape, order)
        return Ref(-len(self.temporaries), shape, strides, 0, dtype)

    def _home(self, node: OpTreeNode, order: Shape | None = None) -> Ref:
        """Memory for the value of a node, whose axes lie in an order (None: C order)."""
        shape = self.shapes[id(node)]
        fits = order is not None and len(order) == len(shape)
        return self._temporary(shape, self._kept_type(node), order if fits else None)

    def _kept_type(self, node: OpTreeNode) -> np.dtype:
        """The type in which a node's value is in memory: that in which it is computed; `take` moves what there is."""
        source = self.places.get(id(node.inputs[0])) if node.structure.op.name == "take" else None
        return dtypes.compute(node.structure.dtype) if source is None else source.dtype

    def _statement(self, index: int, statement: Statement) -> None:
        s = statement.target
        target = Ref(index, s.shape, s.strides, 0, s.dtype)
        value = self._replaced(statement.value, {})
        if isinstance(value, OpTreeNode):
            self._resolve(value, s.shape)
            self._mark_cuts(value)
            if statement.overlap != 1:
                value, target = self._peel(value, target)
        goal = target if statement.overlap < 2 else self._temporary(target.shape, dtypes.compute(s.dtype))
        if statement.overlap != 1 and self._runs_into(value, goal):
            self._primitive(value, goal)
        else:
            self._emit([(value, goal, "the statement")])
        if goal is not target:
            self._copy(goal, target, "the target overlaps what is read")

    def _group(self) -> None:
        """Statements over one space as few kernels: a later one that reads an earlier target takes its value, one that
        writes it has the last word."""
        written: dict[tuple, OpTreeNode] = {}
        outputs: dict[tuple, tuple[Any, Ref | None, str]] = {}
        for index, statement in enumerate(self.statements):
            s = statement.target
            value = self._replaced(statement.value, written)
            if isinstance(value, OpTreeNode):
                self._resolve(value, s.shape)
                self._mark_cuts(value)
            elif isinstance(value, Operators):
                value = apply(ops.OPS["broadcast"], value, params=(s.shape,))
                self.shapes[id(value)] = s.shape
            self.kept_alive.append(value)
            target = Ref(index, s.shape, s.strides, 0, s.dtype)
            outputs[statement.address, s] = (value, target, "the statements of be.fuse()")
            if isinstance(value, OpTreeNode):
                whole = apply(ops.OPS["broadcast"], value, params=(s.shape,)) if value.shape != s.shape else value
                self.shapes[id(whole)] = s.shape
                self.kept_alive.append(whole)
                written[statement.address, s] = whole
        self._emit(list(outputs.values()))

    def _replaced(self, root: Any, written: dict[tuple, OpTreeNode]) -> Any:
        """The tree with tensors that an earlier statement wrote replaced by what it wrote there, and reductions by
        two where those are faster."""
        if not isinstance(root, Operators):
            return root
        if not isinstance(root, OpTreeNode):
            return written.get((root.address, root.structure), root)
        made: dict[int, Any] = {}
        for node in nodes_of(root):
            inputs = tuple(self._replacement(x, made, written) for x in node.inputs)
            first = self._reduced_first(node, *inputs) if node.structure.op.kind == ops.REDUCTION else None
            if first is None and all(x is y for x, y in zip(inputs, node.inputs)):
                made[id(node)] = node
                continue
            params = node.structure.params
            if first is not None:
                inputs = (apply(node.structure.op, *inputs, params=(first, *params[1:])),)
                self.kept_alive.append(inputs[0])
                params = (tuple(a for a in params[0] if a not in first), *params[1:])
            new = apply(node.structure.op, *inputs, params=params)
            made[id(node)] = new
            self.kept_alive.append(new)
            for position, x in enumerate(inputs):
                if isinstance(x, OpTreeNode) and not isinstance(node.inputs[position], OpTreeNode):
                    self.was_read.add((id(new), position))
                if not isinstance(x, Operators):
                    self.number_leaves[id(new), position] = self.number_leaves[id(node), position]
        return made[id(root)]

    @functools.cached_property
    def _computed_shapes(self) -> set[Shape | None]:
        """The shapes of all nodes of the statements' trees."""
        trees = [statement.value for statement in self.statements if isinstance(statement.value, OpTreeNode)]
        return {node.structure.shape for tree in trees for node in nodes_of(tree)}

    def _reduced_first(self, node: OpTreeNode, x: Any) -> Shape | None:
        """The axes of a reduction of a tensor to reduce first, into memory; None: all at once. Where what is reduced
        innermost, or around an axis of a few elements, are short rows with an axis between them and others that are,
        as in windows of images: lines of all these lie side by side. Not where a kernel goes over the tensor's elements
        once more."""
        if not isinstance(x, Operators) or isinstance(x, OpTreeNode):
            return None
        s, axes = x.structure, node.structure.params[0]
        if node.structure.op.name not in ("sum", "max", "min") or 0 in s.shape:
            return None
        inner = [a for a in reversed(indexing.memory_order(s.shape, s.strides)) if s.shape[a] != 1]
        few = next((n for n, a in enumerate(inner) if a in axes), 0)
        end = next((n for n, a in enumerate(inner) if n > few and a not in axes), 0)
        first = tuple(sorted(a for a in inner[end:] if a in axes))
        run = math.prod(s.shape[a] for a in inner[:end])
        if not end or not first or run > RUN or math.prod(s.shape) < APART or s.shape in self._computed_shapes:
            return None
        return first if s.strides[inner[0]] == 1 and s.strides[inner[end]] == run else None

    @staticmethod
    def _replacement(x: Any, made: dict[int, Any], written: dict[tuple, OpTreeNode]) -> Any:
        if isinstance(x, OpTreeNode):
            return made[id(x)]
        return written.get((x.address, x.structure), x) if isinstance(x, Operators) else x

    def _peel(self, value: Any, target: Ref) -> tuple[Any, Ref]:
        """A transpose at the root, or a reshape that the target has a view for, moves the target instead."""
        while isinstance(value, OpTreeNode) and self.shapes[id(value)] == target.shape:
            op, source = value.structure.op, value.inputs[0] if value.inputs else None
            if op.name == "transpose":
                order = np.argsort(value.structure.params[0])
                target = _transposed(target, tuple(order.tolist()))
            elif op.name == "reshape":
                shape = self.shape_of(source)
                strides = indexing.view_strides(target.shape, target.strides, shape)
                if strides is None:
                    break
                target = Ref(target.buffer, shape, strides, target.offset, target.dtype)
            else:
                break
            value = source
        return value, target

    def _runs_into(self, value: Any, goal: Ref) -> bool:
        """Whether a primitive at the root can write its result where it belongs."""
        return (
            isinstance(value, OpTreeNode)
            and value.structure.op.kind == ops.PRIMITIVE
            and self.shapes[id(value)] == goal.shape
            and self._stores(value, goal.dtype)
            and goal.strides == indexing.contiguous_strides(goal.shape)
        )

    def _stores(self, value: OpTreeNode, dtype: np.dtype) -> bool:
        """Whether a primitive can write its result as elements of a type."""
        kept = self._kept_type(value)
        if kept == dtype:
            return True
        narrower = dtypes.compute(dtype) == kept or (dtypes.is_integer(dtype) and dtypes.is_integer(kept))
        return value.structure.op.narrows and narrower

    # Shapes that the partner or the target decides

    def shape_of(self, x: Any) -> Shape:
        """The shape of a node, tensor or number, once `_resolve` has worked it out."""
        if isinstance(x, OpTreeNode):
            return self.shapes[id(x)]
        return x.shape if isinstance(x, Operators) else ()

    def _resolve(self, root: OpTreeNode, target: Shape) -> None:
        """Work out the shape of every node; flexible ones take their user's, the root the target's."""
        order = nodes_of(root)
        if not root.structure.flexible:
            self.shapes.update((id(n), n.structure.shape) for n in order)
            return
        wanted = {id(root): target}
        for node in reversed(order):
            s = node.structure
            shape = s.shape if not s.flexible else _decided(s, wanted.get(id(node)))
            self.shapes[id(node)] = shape
            for x in node.inputs:
                if isinstance(x, OpTreeNode) and x.structure.flexible:
                    asked = shape if s.op.kind == ops.ELEMENTWISE else sized(s.op, x.structure)
                    wanted[id(x)] = _agree(x.structure, wanted.get(id(x)), asked)

    # Cuts known before any kernel is made

    def _mark_cuts(self, root: OpTreeNode) -> None:
        """Nodes that are computed into memory whoever uses them. No cut for size parts a gate from its factors, which
        have other bits by themselves."""
        weight: dict[int, int] = {}
        order = nodes_of(root)
        factors = {id(x) for node in order if is_gate(node) for x in node.inputs}
        for node in order:
            kind = node.structure.op.kind
            if id(node) in self.cuts:
                continue
            parts = {id(x): weight.get(id(x), 1) for x in node.inputs}
            weight[id(node)] = 1 + sum(parts.values())
            if kind in (ops.MOVEMENT, ops.PRIMITIVE) and node.structure.op.name != "broadcast":
                self.cuts[id(node)] = (
                    "a primitive" if kind == ops.PRIMITIVE else f"{node.structure.op.name} of a computed value"
                )
            elif weight[id(node)] > MAX_INSTRUCTIONS and node is not root and id(node) not in factors:
                self.cuts[id(node)] = f"a kernel of over {MAX_INSTRUCTIONS} operations"
            if id(node) in self.cuts:
                weight[id(node)] = 1

    # Emission

    def _emit(self, outputs: list[tuple[Any, Ref | None, str]]) -> None:
        """Emit kernels until the outputs are computed. What a kernel needs in memory is emitted before it."""
        pending = [outputs] if outputs else []
        while pending:
            value, place, _ = pending[-1][0]
            if place is None and id(value) in self.places:
                pending.pop()
                continue
            if place is None and value.structure.op.name == "unslice":
                pending.pop()
                self.places[id(value)] = self._home(value)
                if part := self._among_zeros(value, self.places[id(value)]):
                    pending.append(part)
                continue
            region = Region(self, pending[-1])
            missing = region.collect()
            if missing:
                pending.extend([(node, None, reason)] for node, reason in missing)
                continue
            pending.pop()
            if region.is_memory:
                self._into_memory(region.outputs[0][0])
            else:
                self._computed(region)

    def _computed(self, region: Region) -> None:
        for position, (value, place, reason) in enumerate(region.outputs):
            if place is None:  # movements and primitives want C order, kernels that follow what this one reads along
                order = None if reason.startswith(OPERAND_OF) else region.memory_order()
                region.outputs[position] = (value, self._home(value, order), reason)
        kernel = region.kernel()
        order, across = lying_across(kernel)
        for n in across:
            source = kernel.inputs[n]
            kernel.inputs[n] = self._temporary(source.shape, source.dtype, order)
            self._copy(source, kernel.inputs[n], "it lies across the largest operand")
        self.steps.append(kernel)
        for value, place, _ in region.outputs:
            if isinstance(value, OpTreeNode) and place.buffer < 0:
                self.places.setdefault(id(value), place)

    def _into_memory(self, node: OpTreeNode) -> None:
        """A movement or primitive whose operands are in memory."""
        if node.structure.op.kind == ops.PRIMITIVE:
            place = self._home(node)
            self._primitive(node, place)
            self.places[id(node)] = place
            return
        source = self.places[id(node.inputs[0])]
        view = _moved(node, source)
        if view is None:
            packed = self._temporary(source.shape, source.dtype)
            self._copy(source, packed, "a reshape needs its elements in C order")
            view = _moved(node, packed)
        self.places[id(node)] = view

    def _primitive(self, node: OpTreeNode, place: Ref) -> None:
        if node.structure.op.name == "unslice":
            self._emit(self._among_zeros(node, place))
            return
        for x in node.inputs:
            if id(x) not in self.places:
                self._emit([(x, None, OPERAND_OF + node.structure.op.name)])
        inputs = [self.places[id(x)] for x in node.inputs]
        kind = dtypes.compute(node.structure.dtype)
        alike = all(ref.dtype == inputs[0].dtype for ref in inputs) and dtypes.compute(inputs[0].dtype) == kind
        if node.structure.op.alike and not alike:
            inputs = [self._alike(ref, kind) for ref in inputs]
        self.steps.append(Primitive(node.structure.op, inputs, place, node.structure.params))

    def _among_zeros(self, node: OpTreeNode, place: Ref) -> list[tuple[Any, Ref | None, str]]:
        """Write zeros for an `unslice`, whose operand is then to be computed into its part of them: the output to emit,
        none where the part is empty."""
        (x,), (shape, key) = node.inputs, node.structure.params
        zero = Instruction("op", dtypes.compute(place.dtype), (1,) * len(shape), ops.ZERO)
        self.steps.append(Kernel(shape, (), [zero], [], [], [], [(place, 0)], "zeros around a part"))
        part, strides, offset = indexing.basic(key, shape, place.strides, 0)
        if 0 in part:
            return []
        strides = indexing.view_strides(part, strides, self.shape_of(x))
        within = Ref(place.buffer, self.shape_of(x), strides, place.offset + offset, place.dtype)
        return [(x, within, "a part among zeros")]

    def _alike(self, ref: Ref, kind: np.dtype) -> Ref:
        """An operand in the type in which the result adds up, copied where it has another."""
        if ref.dtype == kind:
            return ref
        same = self._temporary(ref.shape, kind)
        self._copy(ref, same, "operands are in the type of the sums")
        return same

    def _copy(self, source: Ref, target: Ref, reason: str) -> None:
        """Copy elements to a temporary, or to a target whose memory the steps before read."""
        body = [Instruction("load", dtypes.compute(source.dtype), target.shape)]
        self.steps.append(Kernel(target.shape, (), body, [source], [], [], [(target, 0)], reason, target.buffer >= 0))


def _in_place(statements: list[Statement], leaves: list[list[Any]]) -> list[bool]:
    """Whether each target is the very view that its statement, or another of the group, reads."""
    if len(statements) == 1:
        return [statements[0].overlap == 1]
    tensors = (x for found in leaves for x in found if isinstance(x, Operators) and not isinstance(x, OpTreeNode))
    read = {(x.address, x.structure) for x in tensors}
    return [(statement.address, statement.target) in read for statement in statements]


def _transposed(ref: Ref, order: tuple[int, ...]) -> Ref:
    shape = tuple(ref.shape[a] for a in order)
    return Ref(ref.buffer, shape, tuple(ref.strides[a] for a in order), ref.offset, ref.dtype)


def _moved(node: OpTreeNode, ref: Ref) -> Ref | None:
    """The place of a movement's value, given the place of its operand; None when elements must be copied first."""
    s = node.structure
    (param,) = s.params
    if s.op.name == "transpose":
        return _transposed(ref, param)
    if s.op.name == "broadcast":
        return ref.broadcast_to(param)
    if s.op.name == "reshape":
        strides = indexing.view_strides(ref.shape, ref.strides, param)
        return None if strides is None else Ref(ref.buffer, param, strides, ref.offset, ref.dtype)
    shape, strides, offset = indexing.basic(param, ref.shape, ref.strides, node.inputs[0].structure.min_dims)
    return Ref(ref.buffer, shape, strides, ref.offset + offset, ref.dtype)


def _decided(s: Structure, wanted: Shape | None) -> Shape:
    """The shape of a flexible node whose user reads it over `wanted`."""
    if s.shape is None:
        return wanted if wanted is not None else ()
    if wanted is None or UNKNOWN not in s.shape:
        return tuple(1 if n == UNKNOWN else n for n in s.shape)
    lead = len(wanted) - len(s.shape)
    return tuple(wanted[lead + a] if n == UNKNOWN else n for a, n in enumerate(s.shape))


def _agree(s: Structure, before: Shape | None, asked: Shape) -> Shape:
    """The shape over which several users read one flexible node."""
    if before is None or before == asked:
        return asked
    return broadcast_shapes(f"{s.op.name}: one node used at two shapes", [before, asked])
