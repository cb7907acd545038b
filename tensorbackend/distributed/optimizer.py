# SPDX-License-Identifier: Apache-2.0
"""Optimizers of the function layer whose steps use the gradients of all processes."""

from __future__ import annotations

from typing import Any

from tensorbackend.distributed.buckets import BUCKET_BYTES, GradientBuckets
from tensorbackend.distributed.communicator import Communicator
from tensorbackend.errors import BackendError, complain
from tensorbackend.function import arrays
from tensorbackend.optimizers import Optimizer

__all__ = ["AverageGradients", "distributed_optimizer"]


class AverageGradients:
    """A hook of an optimizer: before each step, gradients become their means over the processes.

    A parameter takes part if it has a gradient, which must be so in all processes. `compress` is that of
    `GradientBuckets`.
    """

    name = "AverageGradients"
    timing = "pre"

    def __init__(self, comm: Communicator, nbytes: int = BUCKET_BYTES, compress: Any = None) -> None:
        self.comm = comm
        self._options = {"nbytes": nbytes, "compress": compress}
        self._buckets: dict[tuple, GradientBuckets] = {}

    def __call__(self, optimizer: Optimizer) -> None:
        """Average the gradients of the optimizer's target."""
        found = [p for _, p in sorted(optimizer.target.namedparams()) if p.grad is not None]
        gradients = [arrays.tensor_of(arrays.plain(p.grad)) for p in found]
        key = tuple((g.shape, g.dtype) for g in gradients)
        if key not in self._buckets:
            self._buckets[key] = GradientBuckets(self.comm, gradients, **self._options)
        buckets = self._buckets[key]
        buckets.gradients[:] = gradients
        buckets.reduce()


def distributed_optimizer(optimizer: Optimizer, comm: Communicator, nbytes: int = BUCKET_BYTES,
                          compress: Any = None) -> Optimizer:  # fmt: skip
    """Have the steps of an optimizer, which has its target, use the gradients of all processes; returns it.

    Call it in every process, before other hooks are added: they see averaged gradients. Parameters become those of
    process 0. Raises `BackendError` where the parameters are not on the communicator's backend, or have no shape yet.
    """
    for path, p in sorted(optimizer.target.namedparams()):
        if p.array is None:
            raise BackendError(complain("distributed_optimizer", f"{path} has no shape yet", "a forward pass before"))
        tensor = arrays.tensor_of(arrays.plain(p.array))
        if tensor.backend is not comm.backend:
            given, hint = f"{path} of {tensor.backend}", "link.to_device(comm.backend)"
            raise BackendError(complain("distributed_optimizer", given, f"{comm.backend}", hint))
        comm.broadcast(tensor)
    optimizer.add_hook(AverageGradients(comm, nbytes, compress))
    return optimizer
