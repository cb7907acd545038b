# SPDX-License-Identifier: Apache-2.0
"""What the schedule hands on: plans of kernels and primitive calls over places in memory, and the statements before it.

A kernel is a list of instructions in SSA form over an iteration space; it knows nothing of its target language.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.graph.structure import Structure

__all__ = ["Instruction", "Kernel", "Plan", "Primitive", "Ref", "Statement"]

Shape = tuple[int, ...]


class Ref(NamedTuple):
    """A strided place in buffer number `buffer` of the plan; strides and offset count elements."""

    buffer: int
    shape: Shape
    strides: Shape
    offset: int
    dtype: np.dtype

    def broadcast_to(self, shape: Shape) -> Ref:
        """The same place read over a larger space: strides of 0 where an axis repeats. It leaves out leading axes of
        length 1 that the space does not have."""
        lead = len(shape) - len(self.shape)
        own, along = self.shape[max(-lead, 0) :], self.strides[max(-lead, 0) :]
        strides = tuple(0 if n == 1 and m != 1 else s for n, m, s in zip(own, shape[max(lead, 0) :], along))
        return Ref(self.buffer, shape, (0,) * lead + strides, self.offset, self.dtype)


class Instruction(NamedTuple):
    """One SSA value: `kind` is load, scalar, source, cast, op or reduce; `args` are earlier values by number.

    `slot` counts the kernel's inputs, scalars or draws (load, scalar, source). `shape` has the kernel's rank, with 1
    where the value does not vary. `stage` is how many reductions must be complete before it can be computed. `half`
    says that the value is one of a half type, computed in float32.
    """

    kind: str
    dtype: np.dtype
    shape: Shape
    op: ops.Op | None = None
    args: tuple[int, ...] = ()
    slot: int = 0
    axis: int = 0
    stage: int = 0
    half: bool = False


@dataclass
class Kernel:
    """One fused kernel: `body` over the space `shape`, whose `axes` are reduced (none: elementwise).

    `inputs` are read, `scalars` are (leaf number, type), `draws` the leaf numbers of random nodes; `outputs` are
    (place, value number). `reason` says why it is a kernel of its own. `in_place` says that an output with an element
    for each of the space may be the very view that an input reads, so that an element may be written only when no later
    one needs it, or memory that steps before read. What is reduced is written when its row is done.
    """

    shape: Shape
    axes: tuple[int, ...]
    body: list[Instruction]
    inputs: list[Ref]
    scalars: list[tuple[int, np.dtype]]
    draws: list[int]
    outputs: list[tuple[Ref, int]]
    reason: str
    in_place: bool = False
    cache: dict = field(default_factory=dict, repr=False)

    @property
    def operands(self) -> list[Ref]:
        """The places that it reads, then those that it writes."""
        return [*self.inputs, *(ref for ref, _ in self.outputs)]

    @property
    def name(self) -> str:
        """A name that says what it does: the last ops, the reduced axes, the output's type."""
        named = [i.op.name for i in self.body if i.op is not None]
        kind = "reduce" if self.axes else "ew"
        axes = "_axis" + "".join(map(str, self.axes)) if self.axes else ""
        return f"{kind}_{'_'.join(named[-4:]) or 'copy'}{axes}_{dtypes.tag(self.outputs[0][0].dtype)}"


@dataclass
class Primitive:
    """One call of a primitive of the op table on places in memory.

    With a `tail` (see `tails.py`), an elementwise kernel that reads `output` through its input number `product`, the
    call writes what the tail writes, and `output` is a place that need not exist. `others` are the results beyond the
    first, of those primitives that have several.
    """

    op: ops.Op
    inputs: list[Ref]
    output: Ref
    params: tuple
    reason: str = "a primitive"
    tail: Kernel | None = None
    product: int = 0
    cache: dict = field(default_factory=dict, repr=False)
    others: list[Ref] = field(default_factory=list)

    @property
    def beside(self) -> list[Ref]:
        """What the tail reads beside the product."""
        return [] if self.tail is None else [r for n, r in enumerate(self.tail.inputs) if n != self.product]

    @property
    def target(self) -> Ref:
        """Where the results go."""
        return self.output if self.tail is None else self.tail.outputs[0][0]

    @property
    def written(self) -> list[Ref]:
        """All places that it writes."""
        return [self.target, *self.others]

    @property
    def operands(self) -> list[Ref]:
        """The places that it reads, then those that it writes."""
        return [*self.inputs, *self.beside, *self.written]

    @property
    def scalars(self) -> list[tuple[int, np.dtype]]:
        """The numbers that the tail takes, as a kernel's."""
        return [] if self.tail is None else self.tail.scalars

    @property
    def draws(self) -> list[int]:
        """The random nodes that it draws: none."""
        return []

    @property
    def name(self) -> str:
        """The op, and what follows it."""
        return self.op.name if self.tail is None else f"{self.op.name}+{self.tail.name}"


@dataclass
class Plan:
    """What statements become: `steps` in order, over buffers: targets, then tensor leaves, then temporaries.

    `tensors` are the leaf numbers of the buffers after the targets, and `layouts` their places; `temporaries` are the
    temporaries' (shape, type). `draws` says whether random nodes are among the leaves, read by a step or not.
    """

    targets: int
    tensors: list[int]
    temporaries: list[tuple[Shape, np.dtype]]
    steps: list[Kernel | Primitive]
    draws: bool
    layouts: list[Ref] = field(default_factory=list)
    cache: dict = field(default_factory=dict, repr=False)


@dataclass
class Statement:
    """`target = value`.

    `overlap` is 0 when the target shares no memory with the value's leaves, 1 when all that do are the very same view
    (each element is read before it is written), else 2 (the value goes through a temporary). `address` is the
    target's; statements that run as one group find by it what earlier ones wrote.
    """

    target: Structure
    value: Any
    overlap: int = 0
    address: int = 0
