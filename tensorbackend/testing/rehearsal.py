# SPDX-License-Identifier: Apache-2.0
"""Statements of backends that compile, run through NumPy for once: the kernels that they need are noted, not compiled.

What many tests need can so be compiled together, which takes a fraction of the time, before they run in earnest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tensorbackend.backends.base import Backend
from tensorbackend.backends.cpu import CPUBackend, array_at
from tensorbackend.backends.gpu import GpuBackend
from tensorbackend.backends.interpreter import Interpreter
from tensorbackend.backends.plans import ALIGNMENT, arena, number, placed, references, written
from tensorbackend.graph.plan import Kernel, Plan, Primitive
from tensorbackend.graph.tails import with_tails
from tensorbackend.graph.tensor import Tensor
from tensorbackend.testing.batches import compile_plans
from tensorbackend.testing.inputs import compiles

__all__ = ["Rehearsal"]

TOGETHER = 100
"""Plans whose kernels are compiled as one: a compiler should take some seconds, not minutes."""


class Rehearsal:
    """The plans that backends ran while it was `noting`, to be compiled by `compile`.

    Backends are those with memory that NumPy sees: the CPU's, and the emulator's. A plan that is compiled already runs
    as always; one that was noted before goes on through NumPy, which may have other bits.
    """

    def __init__(self) -> None:
        self._plans: dict[Backend, dict[int, Plan]] = {}
        self._interpreter = Interpreter()

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """A block in which plans of all backends that compile run through NumPy and are noted. In one thread."""
        originals = {kind: kind._run_plan for kind in (CPUBackend, GpuBackend)}
        for kind, original in originals.items():
            kind._run_plan = self._standing_in(original)
        try:
            yield
        finally:
            for kind, original in originals.items():
                kind._run_plan = original

    def _standing_in(self, original: Callable[..., None]) -> Callable[..., None]:
        def run(backend: Backend, plan: Plan, targets: list[Tensor], leaves: list[Any]) -> None:
            noted = self._plans.get(backend, {})
            is_known = id(plan) not in noted and (plan.cache.get(True) or plan.cache.get("gpu"))
            if is_known or not compiles(backend):
                original(backend, plan, targets, leaves)
                return
            self._plans.setdefault(backend, {})[id(plan)] = plan
            backend._run_planned(_ByNumPy(plan, backend._key, self._interpreter), targets, leaves)

        return run

    def compile(self) -> None:
        """Compile what was noted. Raises `CompileError`."""
        for backend, noted in self._plans.items():
            plans = [with_tails(plan) if isinstance(backend, CPUBackend) else plan for plan in noted.values()]
            for first in range(0, len(plans), TOGETHER):
                if not backend.closed:
                    compile_plans(backend, plans[first : first + TOGETHER])
        self._plans.clear()


class _ByNumPy:
    """A plan run by the interpreter on memory at addresses."""

    def __init__(self, plan: Plan, key: int, interpreter: Interpreter) -> None:
        self.plan = plan
        self.draws = plan.draws
        self._key = key
        self._interpreter = interpreter
        self._offsets, self._total = arena(plan.temporaries)

    def __call__(self, targets: list[Tensor], leaves: list[Any], draws: dict[int, int]) -> None:
        bases = [t.address for t in (*targets, *(leaves[n] for n in self.plan.tensors))]
        room = np.empty(self._total + ALIGNMENT, np.uint8)
        bases.append(-(-room.__array_interface__["data"][0] // ALIGNMENT) * ALIGNMENT)
        with np.errstate(all="ignore"):
            for step in self.plan.steps:
                self._step(step, self._operands(step, bases), leaves, draws)

    def _operands(self, step: Kernel | Primitive, bases: list[int]) -> list[np.ndarray]:
        arrays = []
        for ref in references(step):
            buffer, offset = placed(ref, len(bases) - 1, self._offsets)
            arrays.append(array_at(bases[buffer] + offset, ref))
        return arrays

    def _step(self, step: Kernel | Primitive, arrays: list, leaves: list[Any], draws: dict[int, int]) -> None:
        count = len(arrays) - written(step)
        inputs, outputs = arrays[:count], arrays[count:]
        if isinstance(step, Primitive):
            self._interpreter.primitive(step, inputs, outputs)
            return
        scalars = [number(leaves[n], dtype) for n, dtype in step.scalars]
        self._interpreter.kernel(step, inputs, outputs, scalars, [draws[n] for n in step.draws], self._key)
