# SPDX-License-Identifier: Apache-2.0
"""Regions: the part of the trees that one kernel computes, and the kernel's instructions.

The scheduler (`fuse.py`) asks a region what must be in memory before it, and for its kernel when that is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.graph import indexing
from tensorbackend.graph.optree import Operators, OpTreeNode
from tensorbackend.graph.plan import Instruction, Kernel, Ref
from tensorbackend.graph.structure import Structure, broadcast_shapes

if TYPE_CHECKING:
    from tensorbackend.graph.fuse import Scheduler

__all__ = ["OPERAND_OF", "Region", "is_gate"]

Shape = tuple[int, ...]
WHOLE_REDUCTION = 1 << 15
"""Elements above which a reduction to one number is a kernel of its own, so that all cores share it."""
OPERAND_OF = "an operand of "
"""How the reason begins of what a movement or primitive reads."""


class Region:
    """The part of the trees that one kernel computes, and its instructions."""

    def __init__(self, scheduler: Scheduler, outputs: list[tuple[Any, Ref, str]]) -> None:
        self.scheduler = scheduler
        self.outputs = outputs
        shapes = [scheduler.shapes[id(value)] if place is None else place.shape for value, place, _ in outputs]
        self.rank = max(map(len, shapes))
        self.space = _aligned(broadcast_shapes("fuse", shapes), self.rank)
        self.axes: tuple[int, ...] = ()
        self.order: list[OpTreeNode] = []
        value, place, _ = outputs[0]
        moved = place is None and value.structure.op.kind in (ops.MOVEMENT, ops.PRIMITIVE)
        self.is_memory = moved and all(isinstance(x, Operators) for x in value.inputs)  # a spread number is computed

    def collect(self) -> list[tuple[OpTreeNode, str]]:
        """Gather the nodes to compute here; the result is what must be in memory first (empty: ready)."""
        known = self.scheduler.places
        roots = {id(value) for value, _, _ in self.outputs}
        missing: dict[int, tuple[OpTreeNode, str]] = {}
        seen: set[int] = set()
        stack = [(value, False) for value, _, _ in self.outputs if isinstance(value, OpTreeNode)]
        while stack:
            node, done = stack.pop()
            if done:
                self.order.append(node)
                continue
            if id(node) in seen or id(node) in known:
                continue
            seen.add(id(node))
            if self.is_memory:
                needed = [x for x in node.inputs if id(x) not in known]
                missing.update((id(x), (x, OPERAND_OF + node.structure.op.name)) for x in needed)
                continue
            reason = self._must_cut(node, id(node) in roots)
            if reason:
                missing[id(node)] = (node, reason)
                continue
            stack.append((node, True))
            stack.extend((x, False) for x in node.inputs if isinstance(x, OpTreeNode))
        return list(missing.values())

    def _must_cut(self, node: OpTreeNode, is_root: bool) -> str | None:
        """Why a node can't be computed in this kernel, or None. The first reduction decides the kernel's space."""
        if id(node) in self.scheduler.cuts and (not is_root or node.structure.op.kind in (ops.MOVEMENT, ops.PRIMITIVE)):
            return self.scheduler.cuts[id(node)]
        axes = node.structure.params[0] if node.structure.op.kind == ops.REDUCTION else ()
        if not axes:
            return None
        space = self.scheduler.shape_of(node.inputs[0])
        if self.axes and (space != self.space or axes != self.axes):
            return "its axes are not the kernel's"
        if not self.axes and not self._fits(space, axes):
            return "its space is not the kernel's"
        whole = all(n == 1 for a, n in enumerate(space) if a not in axes)
        if whole and not is_root and math.prod(space) > WHOLE_REDUCTION:
            return "a whole large tensor to one number"
        self.space, self.axes = space, axes
        return None

    def _fits(self, space: Shape, axes: tuple[int, ...]) -> bool:
        if len(space) != self.rank:
            return False
        kept = all(n == m for a, (n, m) in enumerate(zip(self.space, space)) if a not in axes)
        across = [(self.space[a], space[a]) for a in axes]
        return kept and (all(n == 1 for n, _ in across) or all(n == m for n, m in across))

    def memory_order(self) -> Shape | None:
        """The order in which the largest operand's axes lie in memory; None where none has all axes."""
        read = {id(x): x for node in self.order for x in node.inputs if isinstance(x, Operators)}
        places = [self.scheduler.places[key] for key in read if key in self.scheduler.places]
        whole = [ref for ref in places if len(ref.shape) == self.rank]
        if not whole:
            return None
        largest = max(whole, key=lambda ref: math.prod(ref.shape))
        return indexing.memory_order(largest.shape, largest.strides)

    # Instructions

    def kernel(self) -> Kernel:
        """The kernel of the region, once everything it reads is in memory."""
        self.body: list[Instruction] = []
        self.numbered: dict[Any, int] = {}
        self.values: dict[int, int] = {}
        self.inputs: list[Ref] = []
        self.scalars: list[tuple[int, np.dtype]] = []
        self.draws: list[int] = []
        for node in self.order:
            self.values[id(node)] = self._node(node)
        outputs = [(_lifted(place, self.rank), self._output(value, place)) for value, place, _ in self.outputs]
        outputs = self._drop_unused(outputs)
        reason = self.outputs[0][2]
        in_place = any(self.scheduler.overlaps[p.buffer] and self._is_full(p) for p, _ in outputs if p.buffer >= 0)
        return Kernel(
            self.space, self.axes, self.body, self.inputs, self.scalars, self.draws, outputs, reason, in_place
        )

    def _drop_unused(self, outputs: list[tuple[Ref, int]]) -> list[tuple[Ref, int]]:
        """Take out the factors that only gates had; the outputs with the numbers of what is left."""
        needed = {value for _, value in outputs}.union(*(i.args for i in self.body))
        kept = [n for n, i in enumerate(self.body) if n in needed or i.kind != "op"]
        if len(kept) == len(self.body):
            return outputs
        numbers = {n: number for number, n in enumerate(kept)}
        self.body = [self.body[n]._replace(args=tuple(numbers[a] for a in self.body[n].args)) for n in kept]
        return [(place, numbers[value]) for place, value in outputs]

    def _is_full(self, place: Ref) -> bool:
        """Whether an output has an element for each of the space, not one for each row."""
        return not self.axes or any(place.shape[a] != 1 for a in self.axes)

    def _output(self, value: Any, place: Ref) -> int:
        if isinstance(value, Operators):
            return self._operand(value, None)
        return self._scalar(self.scheduler.number_leaves[0, place.buffer], dtypes.compute(place.dtype))

    def _add(self, key: tuple, instruction: Callable[[], Instruction]) -> int:
        """The number of an instruction: an equal one made before serves."""
        found = self.numbered.get(key)
        if found is None:
            found = self.numbered[key] = len(self.body)
            self.body.append(instruction())
        return found

    def _load(self, place: Ref) -> int:
        shape = _aligned(place.shape, self.rank)
        lifted = _lifted(place, self.rank)

        def make() -> Instruction:
            self.inputs.append(lifted)
            return Instruction("load", dtypes.compute(place.dtype), shape, slot=len(self.inputs) - 1)

        return self._add(("load", lifted), make)

    def _scalar(self, leaf: int, dtype: np.dtype) -> int:
        def make() -> Instruction:
            self.scalars.append((leaf, dtype))
            return Instruction("scalar", dtype, (1,) * self.rank, slot=len(self.scalars) - 1)

        return self._add(("scalar", leaf, dtype), make)

    def _cast(self, value: int, dtype: np.dtype) -> int:
        given = self.body[value]
        if given.dtype == dtype:
            return value
        return self._add(
            ("cast", value, dtype), lambda: Instruction("cast", dtype, given.shape, args=(value,), stage=given.stage)
        )

    def _operand(self, x: Any, dtype: np.dtype | None) -> int:
        value = self.values.get(id(x))
        if value is None:
            value = self._load(self.scheduler.places[id(x)])
        return value if dtype is None else self._cast(value, dtype)

    def _node(self, node: OpTreeNode) -> int:
        s = node.structure
        if s.op.kind == ops.SOURCE:
            return self._source(node)
        args = tuple(self._argument(node, position, wanted) for position, wanted in enumerate(_operand_types(s)))
        if s.op.name == "broadcast":
            return args[0]
        gate = self._gate(node, args)
        return self._operation(s, args) if gate is None else self._add((ops.GATE, gate.args, gate.half), lambda: gate)

    def _gate(self, node: OpTreeNode, args: tuple[int, ...]) -> Instruction | None:
        """The product of a sigmoid and a hyperbolic tangent of float32 values as `ops.GATE`.

        Both are in the statement's own tree, so that it has the same bits beside others as alone, whoever else needs
        the factors.
        """
        if not is_gate(node) or any((id(node), position) in self.scheduler.was_read for position in (0, 1)):
            return None
        factors, half = [self.body[a] for a in args], dtypes.is_half(node.structure.dtype)
        if any(i.kind != "op" or i.dtype != np.float32 or i.half != half for i in factors):
            return None
        sig, tanh = factors if node.inputs[0].structure.op is ops.OPS["sig"] else reversed(factors)
        if sig.shape != tanh.shape:
            return None
        return sig._replace(op=ops.GATE, args=sig.args + tanh.args, stage=max(sig.stage, tanh.stage))

    def _argument(self, node: OpTreeNode, position: int, wanted: np.dtype | None) -> int:
        x = node.inputs[position]
        if isinstance(x, Operators):
            return self._operand(x, wanted)
        return self._scalar(self.scheduler.number_leaves[id(node), position], wanted or dtypes.BOOL)

    def _operation(self, s: Structure, args: tuple[int, ...]) -> int:
        if s.op.kind == ops.REDUCTION and not s.params[0]:
            return self._reduced_over_nothing(s, args[0])
        given = [self.body[a] for a in args]
        stage = max((g.stage for g in given), default=0)
        shape = broadcast_shapes(s.op.name, [g.shape for g in given])
        kind = "op"
        if s.op.kind == ops.REDUCTION:
            kind = "reduce"
            shape = tuple(1 if a in self.axes else n for a, n in enumerate(_aligned(self.space, self.rank)))
            stage += 1
        dtype, half = dtypes.compute(s.dtype), dtypes.is_half(s.dtype)
        return self._add(
            (kind, s.op, args, dtype, half),
            lambda: Instruction(kind, dtype, shape, s.op, args, stage=stage, half=half),
        )

    def _reduced_over_nothing(self, s: Structure, value: int) -> int:
        """A reduction over no axes: the value itself, or position 0."""
        if s.op.dtype == "index":
            truth = self._cast(value, dtypes.BOOL)
            shape, xor = self.body[truth].shape, ops.OPS["bitxor"]
            zero = Instruction("op", dtypes.BOOL, shape, xor, (truth, truth), stage=self.body[truth].stage)
            value = self._add((xor, truth, truth), lambda: zero)
        return self._cast(value, dtypes.compute(s.dtype))

    def _source(self, node: OpTreeNode) -> int:
        s = node.structure
        shape = _aligned(self.scheduler.shapes[id(node)], self.rank)
        dtype = dtypes.compute(s.dtype)
        if s.op.name == "index":
            axis = s.params[0] + self.rank - len(self.scheduler.shapes[id(node)])
            shape = tuple(n if a == axis else 1 for a, n in enumerate(shape))
            return self._add((s.op, axis, shape), lambda: Instruction("source", dtype, shape, s.op, axis=axis))
        self.draws.append(self.scheduler.leaf_numbers[id(node)])
        self.body.append(Instruction("source", dtype, shape, s.op, slot=len(self.draws) - 1))
        return len(self.body) - 1


def is_gate(node: OpTreeNode) -> bool:
    """Whether a node is the product of a sigmoid and a hyperbolic tangent."""
    if node.structure.op is not ops.OPS["mul"]:
        return False
    return {x.structure.op.name for x in node.inputs if isinstance(x, OpTreeNode)} == {"sig", "tanh"}


def _aligned(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + tuple(shape)


def _lifted(ref: Ref, rank: int) -> Ref:
    """The place with leading axes of length 1."""
    lead = rank - len(ref.shape)
    return (
        ref if not lead else Ref(ref.buffer, (1,) * lead + ref.shape, (0,) * lead + ref.strides, ref.offset, ref.dtype)
    )


def _operand_types(s: Structure) -> list[np.dtype | None]:
    """The type in which each operand is read; None: as it is."""
    if s.op.name == "where":
        return [None, dtypes.compute(s.operands), dtypes.compute(s.operands)]
    if s.op.dtype == "mixed":
        return [x.dtype for x in s.inputs]
    if s.op.name == "sround":
        return [s.dtype, np.dtype(np.uint32), np.dtype(np.uint32)]
    return [dtypes.compute(s.operands)] * len(s.inputs)
