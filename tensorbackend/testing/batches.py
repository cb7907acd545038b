# SPDX-License-Identifier: Apache-2.0
"""Compiling what many statements need in a few runs of the compiler, which takes a fraction of the time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorbackend.backends import jit
from tensorbackend.backends.base import Backend
from tensorbackend.graph.plan import Kernel, Plan
from tensorbackend.graph.tensor import Tensor
from tensorbackend.testing.inputs import compiles


def compile_together(backend: Backend, statements: Iterable[tuple[Tensor, Any]]) -> int:
    """Compile the kernels of statements `target[:] = value`, which do not run: when they do, they find them.

    Gives the number of kernels that were not known to be compiled. Does nothing on a backend that does not compile.
    Raises what the statements raise, and `CompileError`.
    """
    if not compiles(backend):
        return 0
    plans: list[Plan] = []
    backend._run_plan = lambda plan, targets, leaves: plans.append(plan)
    try:
        for target, value in statements:
            target[:] = value
    finally:
        del backend._run_plan
    return compile_plans(backend, [plan for plan in plans if not plan.cache.get(True)])


def _writes(kernel: Kernel) -> bool:
    return all(0 not in ref.shape for ref, _ in kernel.outputs)


def compile_plans(backend: Backend, plans: Iterable[Plan]) -> int:
    """Compile the kernels of plans.

    Gives the number of kernels. The backend must compile. Raises `CompileError`.
    """
    kernels = [step for plan in plans for step in plan.steps if isinstance(step, Kernel) and _writes(step)]
    getattr(backend, "_compile_kernels", jit.compile_all)(kernels)
    return len(kernels)
