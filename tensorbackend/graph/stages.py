# SPDX-License-Identifier: Apache-2.0
"""Kernels of several passes, each pass as a kernel of its own, so that many blocks of a device can share it.

A softmax over few long rows is three passes: maximum, sum, quotients. In one kernel each row is one block's.
`in_stages` cuts such kernels: the reductions of a pass go through temporaries, and every kernel has one pass at most.
Values are those of the whole kernel but for the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from tensorbackend import dtypes
from tensorbackend.graph.indexing import contiguous_strides
from tensorbackend.graph.plan import Instruction, Kernel, Plan, Primitive, Ref

__all__ = ["in_stages"]

Temporaries = list[tuple[tuple[int, ...], np.dtype]]


def in_stages(plan: Plan, wanted: Callable[[Kernel], bool]) -> Plan:
    """The plan with each kernel that `wanted` picks cut after its passes; those that draw random numbers stay whole."""
    temporaries, steps = list(plan.temporaries), []
    for step in plan.steps:
        cut = isinstance(step, Kernel) and _may_be_cut(step) and wanted(step)
        steps += _parts(step, temporaries) if cut else [step]
    if len(steps) == len(plan.steps):
        return plan
    return replace(plan, temporaries=temporaries, steps=steps, cache={})


def _may_be_cut(kernel: Kernel) -> bool:
    plain = not kernel.draws and not any(i.kind == "source" for i in kernel.body)
    reduced = [i.dtype for i in kernel.body if i.kind == "reduce"]
    return plain and bool(reduced) and all(dtypes.compute(dtype) == dtype for dtype in reduced)


def _parts(kernel: Kernel, temporaries: Temporaries) -> list[Kernel | Primitive]:
    """A kernel for each pass, one for the outputs over the whole space, and one for those of a row or column each."""
    parts: list[Kernel | Primitive] = []
    known: dict[int, Ref] = {}
    reductions = [(n, i) for n, i in enumerate(kernel.body) if i.kind == "reduce"]
    for stage in sorted({i.stage for _, i in reductions}):
        results = {}
        for n, i in reductions:
            if i.stage == stage:
                temporaries.append((i.shape, i.dtype))
                results[n] = Ref(-len(temporaries), i.shape, contiguous_strides(i.shape), 0, i.dtype)
        parts.append(_part(kernel, [(place, n) for n, place in results.items()], known, kernel.shape, kernel.axes))
        known |= results
    full = [any(ref.shape[a] != 1 for a in kernel.axes) for ref, _ in kernel.outputs]
    rows = tuple(1 if a in kernel.axes else n for a, n in enumerate(kernel.shape))
    for whole, shape in ((True, kernel.shape), (False, rows)):
        outputs = [output for output, is_full in zip(kernel.outputs, full) if is_full == whole]
        if outputs:
            parts.append(_part(kernel, outputs, known, shape, ()))
    return parts


def _part(kernel: Kernel, outputs: list[tuple[Ref, int]], known: Mapping[int, Ref], shape: tuple[int, ...],
          axes: tuple[int, ...]) -> Kernel:  # fmt: skip
    """The kernel of some outputs, which reads `known` values from memory."""
    needed: set[int] = set()
    stack = [n for _, n in outputs]
    while stack:
        n = stack.pop()
        if n not in needed:
            needed.add(n)
            stack += () if n in known else kernel.body[n].args
    body: list[Instruction] = []
    numbers: dict[int, int] = {}
    made = Kernel(shape, axes, body, [], [], [], [], kernel.reason, kernel.in_place and not axes)
    for n in sorted(needed):
        i = kernel.body[n]
        if n in known or i.kind == "load":
            made.inputs.append(known[n] if n in known else kernel.inputs[i.slot])
            i = Instruction("load", i.dtype, i.shape, slot=len(made.inputs) - 1, half=i.half)
        elif i.kind == "scalar":
            made.scalars.append(kernel.scalars[i.slot])
            i = i._replace(slot=len(made.scalars) - 1)
        else:
            args = tuple(numbers[a] for a in i.args)
            stage = max((body[a].stage for a in args), default=0) + (i.kind == "reduce")
            i = i._replace(args=args, stage=stage)
        numbers[n] = len(body)
        body.append(i)
    made.outputs[:] = [(ref, numbers[n]) for ref, n in outputs]
    return made
