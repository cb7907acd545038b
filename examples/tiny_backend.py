# SPDX-License-Identifier: Apache-2.0
"""A backend in a hundred lines, which passes the conformance suite: docs/write-a-backend.md explains it.

Its memory is NumPy's, and its kernels are run by the interpreter, one instruction after the other. A backend for a real
device replaces these two and leaves the rest.

    PYTHONPATH=examples python -m tensorbackend.conformance --backend tiny -p tiny_backend
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import tensorbackend
from tensorbackend import dtypes
from tensorbackend.backends.base import Backend
from tensorbackend.backends.cpu import array_at
from tensorbackend.backends.interpreter import Interpreter
from tensorbackend.backends.plans import Action, number, references
from tensorbackend.graph.plan import Kernel, Plan, Primitive, Ref
from tensorbackend.graph.tensor import Storage, Tensor

ALIGNMENT = 64


class TinyBackend(Backend):
    """Runs on NumPy arrays. Defining the class registers it as 'tiny'."""

    backend_name = "tiny"

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._interpreter = Interpreter()

    # Memory

    def _allocate(self, nbytes: int) -> Storage:
        """Memory with an address, which views of a tensor add to, and an owner, who keeps it alive."""
        try:
            memory = np.empty(max(nbytes, 1) + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):
            raise MemoryError(f"{nbytes} bytes") from None
        start = -memory.ctypes.data % ALIGNMENT
        return Storage(memory.ctypes.data + start, nbytes, memory[start:])

    def _upload(self, tensor: Tensor, values: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            dtypes.cast(values, tensor.dtype, array_at(tensor.address, tensor.structure))

    def _download(self, tensor: Tensor) -> np.ndarray:
        self._flush()  # statements that wait in `with be.fuse()`
        with self._lock:
            return array_at(tensor.address, tensor.structure).copy(order="C")

    def _close(self) -> None:
        self._interpreter = Interpreter()

    # Plans

    def _run_plan(self, plan: Plan, targets: list[Tensor], leaves: list[Any]) -> None:
        self._run_planned(self._planned(plan), targets, leaves)

    def _planned(self, plan: Plan) -> TinyPlan:
        run = plan.cache.get("tiny")
        if run is None:
            run = plan.cache["tiny"] = TinyPlan(plan, self)
        return run


class TinyPlan:
    """A plan made ready: what is worked out here, once, serves each time a statement of the same form runs."""

    def __init__(self, plan: Plan, backend: TinyBackend) -> None:
        self.plan = plan
        self.backend = backend
        self.draws = plan.draws

    def actions(self) -> Iterator[Action]:
        """The steps, each of which runs on operands at any addresses: captured programs (docs/capture.md) use them."""
        for step in self.plan.steps:
            yield Action(step, references(step), 0, partial(self.run, step))

    def __call__(self, targets: list[Tensor], leaves: list[Any], draws: dict[int, int]) -> None:
        """Run on the tensors that are written, and the leaves of the expressions: tensors and numbers."""
        tensors = [*targets, *(leaves[n] for n in self.plan.tensors)]
        temporaries = [np.empty(shape, dtype) for shape, dtype in self.plan.temporaries]

        def address(ref: Ref) -> int:
            given = ref.buffer >= 0
            start = tensors[ref.buffer].address if given else temporaries[-ref.buffer - 1].ctypes.data
            return start + ref.offset * ref.dtype.itemsize

        for action in self.actions():
            numbers = [leaves[n] for n, _ in action.step.scalars]
            drawn = [draws[n] for n in action.step.draws]
            action.run([address(ref) for ref in action.refs], numbers, drawn, self.backend._key)

    def run(self, step: Kernel | Primitive, addresses: Sequence[int], numbers: Sequence[Any], draws: Sequence[int],
            key: int) -> None:  # fmt: skip
        """One step: an elementwise kernel or reduction, or a primitive such as a product or a convolution."""
        arrays = [array_at(address, ref) for address, ref in zip(addresses, references(step))]
        inputs, outputs = arrays[: len(step.inputs)], arrays[len(step.inputs) :]
        with np.errstate(all="ignore"):
            if isinstance(step, Kernel):
                scalars = [number(x, dtype) for x, (_, dtype) in zip(numbers, step.scalars)]
                self.backend._interpreter.kernel(step, inputs, outputs, scalars, list(draws), key)
            else:
                self.backend._interpreter.primitive(step, inputs, outputs)


def main() -> None:
    """Train nothing, but compute something."""
    be = tensorbackend.gen_backend("tiny", rng_seed=0)
    x, w = be.array([[1, -2, 3], [4, 5, -6]]), be.ones((1, 2))
    y = be.empty((1, 3))
    y[:] = be.maximum(be.dot(w, x), 0) * 0.5
    print(be, y.tolist())


if __name__ == "__main__":
    main()
