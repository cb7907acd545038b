# SPDX-License-Identifier: Apache-2.0
"""Products with what follows them: an elementwise kernel that reads a product runs on each part of it once complete.

`with_tails` changes a plan so. The product then needs no memory of its own, and its elements are used while they are in
cache; values are those of the plan without tails. A backend that has no such kernels runs the plan as it is.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tensorbackend.graph.plan import Instruction, Kernel, Plan, Primitive, Ref
from tensorbackend.graph.structure import broadcast_shapes

__all__ = ["MOST_OPERANDS", "as_matrix", "over_matrix", "small_products", "with_tails"]

MOST_OPERANDS = 32
"""Operands of a tail at most, as in kernels/c/gemm.c."""
SMALL, SMALL_ROWS, FEWEST_SMALL = 4, 16, 8
"""Of small products steps of k and columns (or rows) at most, and rows (or columns); how many there are at least."""
ROWS, COLUMNS = 4099, 4111
"""Lengths that stand for any: the text of a kernel does not depend on them."""


def with_tails(plan: Plan) -> Plan:
    """The plan with every elementwise kernel that may do so made the tail of the product it reads."""
    steps: list[Kernel | Primitive] = list(plan.steps)
    freed = set()
    for kernel in plan.steps:
        product = _product_of(kernel, plan) if isinstance(kernel, Kernel) else None
        if product is None:
            continue
        steps = [s for s in steps if s is not product]
        place = next(n for n, s in enumerate(steps) if s is kernel)
        slot = next(n for n, ref in enumerate(kernel.inputs) if ref.buffer == product.output.buffer)
        steps[place] = replace(product, tail=kernel, product=slot, cache={})
        freed.add(product.output.buffer)
    if not freed:
        return plan
    temporaries = [((), d) if -1 - n in freed else (shape, d) for n, (shape, d) in enumerate(plan.temporaries)]
    return replace(plan, temporaries=temporaries, steps=steps, cache={})


def _product_of(kernel: Kernel, plan: Plan) -> Primitive | None:
    """The product whose tail a kernel can be: the last of those it reads."""
    simple = not kernel.axes and not kernel.draws and not any(i.kind == "source" for i in kernel.body)
    if not simple or len(kernel.outputs) != 1 or len(kernel.inputs) >= MOST_OPERANDS or 0 in kernel.shape:
        return None
    for step in reversed(plan.steps):
        if isinstance(step, Primitive) and _takes(step, kernel) and _may_follow(kernel, step, plan):
            return step
    return None


def _takes(step: Primitive, kernel: Kernel) -> bool:
    """Whether a primitive runs a tail: products but small ones, and convolutions whose parts are runs of places."""
    if step.op.name == "dot":
        return not small_products(step)
    if step.op.name not in ("conv", "conv_bprop"):
        return False
    (g,) = step.params
    runs = step.op.name == "conv" or g.strides == (1, 1, 1)
    return runs and kernel.shape[0] == step.output.shape[0] and as_matrix(kernel) is not None


def small_products(step: Primitive) -> bool:
    """Whether a `dot` is many products of a few elements each: to begin a tail takes longer than they do."""
    *lengths, m, n = step.output.shape
    k = step.inputs[0].shape[-1]
    few = max(k, min(m, n)) <= SMALL and max(m, n) <= SMALL_ROWS and min(m, n, k) > 0
    return few and math.prod(lengths) >= FEWEST_SMALL


def _may_follow(kernel: Kernel, product: Primitive, plan: Plan) -> bool:
    """Whether a kernel reads all of a product, element by element, and is the only one to read it."""
    out = product.output
    if out.buffer >= 0 or _without_ones(kernel.shape) != _without_ones(out.shape) or len(kernel.shape) < 2:
        return False
    reads = [ref for step in plan.steps for ref in _inputs(step) if ref.buffer == out.buffer]
    if len(reads) != 1 or not any(reads[0] is ref for ref in kernel.inputs):
        return False
    whole = kernel.shape[-2:] == out.shape[-2:] and math.prod(kernel.shape) == math.prod(out.shape)
    plain = _steps(reads[0]) == _steps(out) and not reads[0].offset
    return whole and plain and reads[0].shape == kernel.shape and not _overwrites(kernel, product, plan)


def _inputs(step: Kernel | Primitive) -> list[Ref]:
    return step.inputs


def _steps(ref: Ref) -> list[tuple[int, int]]:
    """Lengths and strides, without axes of length 1."""
    return [(n, s) for n, s in zip(ref.shape, ref.strides) if n != 1]


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def _overwrites(kernel: Kernel, product: Primitive, plan: Plan) -> bool:
    """Whether the kernel's target may share memory with an operand of the product, which is read until it ends.

    Where the kernel reads the target itself, only the very same view does; otherwise something before it reads it.
    """
    target = kernel.outputs[0][0]
    if not kernel.in_place or target.buffer < 0:
        return False
    own = _layout(target)
    leaves = [plan.layouts[ref.buffer - plan.targets] for ref in product.inputs if ref.buffer >= 0]
    read_here = any(ref.buffer >= 0 and _layout(ref) == own for ref in kernel.inputs)
    return not read_here or any(_layout(leaf) == own for leaf in leaves)


def _layout(ref: Ref) -> tuple:
    """What two references have in common when they are the same view, axes of length 1 and their order aside."""
    return ref.dtype, sorted(_steps(ref))


def as_matrix(kernel: Kernel) -> Kernel | None:
    """A kernel over maps and places: all axes but the first as one. None where an operand's places are not evenly
    spaced. The places of its values are those of the kernel before; `over_matrix` makes them anew."""
    shape = kernel.shape[0], math.prod(kernel.shape[1:])
    inputs = [_joined(ref, shape[1]) for ref in kernel.inputs]
    outputs = [_joined(ref, shape[1]) for ref, _ in kernel.outputs]
    if None in inputs or None in outputs:
        return None
    results = [(ref, value) for ref, (_, value) in zip(outputs, kernel.outputs)]
    return replace(kernel, shape=shape, inputs=inputs, outputs=results, cache={})


def _joined(ref: Ref, places: int) -> Ref | None:
    """A place with all axes but the first as one, which has 1 or `places` entries."""
    count = math.prod(ref.shape[1:])
    axes = [(n, s) for n, s in zip(ref.shape[1:], ref.strides[1:]) if n != 1]
    if count not in (1, places) or any(outer != n * inner for (_, outer), (n, inner) in zip(axes, axes[1:])):
        return None
    stride = axes[-1][1] if axes else 0
    return Ref(ref.buffer, (ref.shape[0], count), (ref.strides[0], stride), ref.offset, ref.dtype)


def over_matrix(kernel: Kernel, slot: int, product: tuple[int, int], swap: bool, column: bool = False) -> Kernel:
    """A tail as a kernel over rows and columns of any number, which reads the product through input `slot`.

    `product` are the strides of its rows and columns (as the swapped product has them, if `swap`). `column`: there is
    one column, so rows are to be the inner axis.
    """
    inputs = [_flat(ref, swap) for ref in kernel.inputs]
    inputs[slot] = _spread(kernel.inputs[slot], product, column)
    outputs = [(_full(ref, swap, column), value) for ref, value in kernel.outputs]
    body: list[Instruction] = []
    for i in kernel.body:
        shape = (1, 1)
        if i.kind == "load":
            shape = inputs[i.slot].shape
        elif i.args:
            shape = broadcast_shapes("tail", [body[a].shape for a in i.args])
        body.append(i._replace(shape=shape))
    return Kernel((ROWS, COLUMNS), (), body, inputs, kernel.scalars, [], outputs, kernel.reason, kernel.in_place)


def _flat(ref: Ref, swap: bool) -> Ref:
    """The place of one matrix, repeated where it has length 1."""
    lengths = [1 if n == 1 else long for n, long in zip(ref.shape[-2:], (COLUMNS, ROWS) if swap else (ROWS, COLUMNS))]
    strides = list(ref.strides[-2:])
    if swap:
        lengths, strides = lengths[::-1], strides[::-1]
    return Ref(ref.buffer, tuple(lengths), tuple(strides), 0, ref.dtype)


def _full(ref: Ref, swap: bool, column: bool) -> Ref:
    row, step = ref.strides[-2:][::-1] if swap else ref.strides[-2:]
    return Ref(ref.buffer, (ROWS, COLUMNS), (row, abs(row) * ROWS + 7 if column else step), 0, ref.dtype)


def _spread(ref: Ref, strides: tuple[int, int], column: bool) -> Ref:
    """The product, with strides that keep rows and columns from being merged."""
    row, step = strides
    if step == 1 and not column:
        apart = COLUMNS + 7, 1
    elif row == 1:
        apart = 1, ROWS + 7
    else:
        apart = (3, 3 * ROWS + 1) if column else (3 * COLUMNS + 1, 3)
    return Ref(ref.buffer, (ROWS, COLUMNS), apart, 0, ref.dtype)
