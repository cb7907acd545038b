# SPDX-License-Identifier: Apache-2.0
"""Loop nests: fewer, longer axes for a kernel, the same for every target.

`collapse` merges neighbouring axes over which everything that the kernel touches is evenly strided, so that kernels
depend on structure rather than on shapes, and inner loops are long. `in_memory_order` brings together what is to merge:
images that are seen batch first lie in memory with their batch last. Labels or gates beside them, which do not, are
`lying_across`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tensorbackend.graph import indexing
from tensorbackend.graph.plan import Kernel, Ref

__all__ = ["collapse", "in_c_order", "in_memory_order", "lying_across"]

Shape = tuple[int, ...]
WORTH_A_COPY, SMALL = 1 << 14, 4
"""Elements of the largest operand from which on others may be copied, and how many times as many as theirs they are."""


def collapse(kernel: Kernel) -> Kernel:
    """The same kernel with axes merged where possible; lengths of 1 disappear.

    At least one axis stays, and of a reduction's axes too.
    """
    reduced = [a for a in kernel.axes if kernel.shape[a] != 1] or kernel.axes[:1]
    shapes = {i.shape for i in kernel.body}  # few, however many instructions there are
    groups: list[list[int]] = []
    for axis, length in enumerate(kernel.shape):
        if length == 1 and axis not in reduced:
            continue
        if groups and _mergeable(kernel, shapes, groups[-1][-1], axis):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    groups = groups or [[len(kernel.shape) - 1] if kernel.shape else []]
    axes = tuple(i for i, group in enumerate(groups) if group and group[0] in kernel.axes)
    position = {axis: i for i, group in enumerate(groups) for axis in group}
    merged = {shape: _merged(shape, groups) for shape in shapes}
    return Kernel(
        _merged(kernel.shape, groups),
        axes,
        [i._replace(shape=merged[i.shape], axis=position.get(i.axis, 0)) for i in kernel.body],
        [_merged_ref(ref, groups) for ref in kernel.inputs],
        kernel.scalars,
        kernel.draws,
        [(_merged_ref(ref, groups), value) for ref, value in kernel.outputs],
        kernel.reason,
        kernel.in_place,
    )


def in_memory_order(kernel: Kernel) -> Kernel:
    """The kernel with its axes as its largest operand has them in memory, the outermost first, where more of them merge
    then.

    Not where the order of axes counts: random numbers are drawn, and the first of equals is found, in C order.
    """
    rank = len(kernel.shape)
    if rank < 2 or in_c_order(kernel):
        return kernel
    largest = sorted(reversed(kernel.operands), key=lambda ref: -math.prod(ref.shape))
    steps = [[-abs(s) if n != 1 else 0 for n, s in zip(ref.shape, ref.strides)] for ref in largest]
    order = sorted(range(rank), key=lambda axis: [step[axis] for step in steps])
    if order == list(range(rank)):
        return kernel
    turned = _permuted(kernel, order)
    return turned if len(collapse(turned).shape) < len(collapse(kernel).shape) else kernel


def in_c_order(kernel: Kernel) -> bool:
    """Whether the order of a kernel's axes counts."""
    return bool(kernel.draws) or any(i.kind == "reduce" and i.op.dtype == "index" for i in kernel.body)


def lying_across(kernel: Kernel) -> tuple[Shape, list[int]]:
    """The order in which the axes of a kernel's largest operand lie in memory, and the inputs to copy into that order.

    These are small and lie in another: a line of them would be read for each number.
    """
    largest = max(kernel.operands, key=lambda ref: math.prod(ref.shape))
    size, order = math.prod(largest.shape), indexing.memory_order(largest.shape, largest.strides)
    dense = indexing.dense_strides(largest.shape, order)
    alike = all(n == 1 or s == t for n, s, t in zip(largest.shape, largest.strides, dense))
    if size < WORTH_A_COPY or not alike or in_c_order(kernel):
        return order, []
    small = (n for n, ref in enumerate(kernel.inputs) if SMALL * math.prod(ref.shape) <= size)
    return order, [n for n in small if _lies_across(kernel.inputs[n], order)]


def _lies_across(ref: Ref, order: Shape) -> bool:
    steps = [abs(ref.strides[axis]) for axis in order if ref.shape[axis] != 1]
    return 0 not in steps and any(outer < inner for outer, inner in zip(steps, steps[1:]))


def _permuted(kernel: Kernel, order: list[int]) -> Kernel:
    """The kernel with axis `order[n]` as its axis n."""
    position = {axis: n for n, axis in enumerate(order)}

    def turn(entries: Shape) -> Shape:
        return tuple([entries[axis] for axis in order])

    def turn_ref(ref: Ref) -> Ref:
        return ref._replace(shape=turn(ref.shape), strides=turn(ref.strides))

    return replace(
        kernel,
        shape=turn(kernel.shape),
        axes=tuple(sorted(position[axis] for axis in kernel.axes)),
        body=[i._replace(shape=turn(i.shape), axis=position[i.axis]) for i in kernel.body],
        inputs=[turn_ref(ref) for ref in kernel.inputs],
        outputs=[(turn_ref(ref), value) for ref, value in kernel.outputs],
        cache={},
    )


def _mergeable(kernel: Kernel, shapes: set[Shape], first: int, second: int) -> bool:
    """Whether axis `second` continues axis `first` for every reference of the kernel, and its values, which have these
    `shapes`."""
    if second != first + 1 and any(kernel.shape[a] != 1 for a in range(first + 1, second)):
        return False
    if (first in kernel.axes) != (second in kernel.axes):
        return False
    if any(i.axis in (first, second) for i in kernel.body if i.op is not None and i.op.name == "index"):
        return False
    alike = all((shape[first] == 1) == (shape[second] == 1) for shape in shapes)
    return alike and all(_even(ref, first, second) for ref in kernel.operands)


def _even(ref: Ref, first: int, second: int) -> bool:
    n, m = ref.shape[first], ref.shape[second]
    outer = ref.strides[first] if n != 1 else None
    inner = ref.strides[second] if m != 1 else None
    if outer is None and inner is None:
        return True
    if outer is None or inner is None:
        return (outer or inner or 0) == 0
    return outer == inner * m


def _merged(shape: Shape, groups: list[list[int]]) -> Shape:
    return tuple(math.prod(shape[a] for a in group) for group in groups)


def _merged_ref(ref: Ref, groups: list[list[int]]) -> Ref:
    strides = tuple(
        ref.strides[group[-1]] if group and ref.shape[group[-1]] != 1 else _last(ref, group) for group in groups
    )
    return Ref(ref.buffer, _merged(ref.shape, groups), strides, ref.offset, ref.dtype)


def _last(ref: Ref, group: list[int]) -> int:
    """The stride of a merged axis whose last part has length 1."""
    return next((ref.strides[a] for a in reversed(group) if ref.shape[a] != 1), 0)
