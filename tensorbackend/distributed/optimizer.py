# SPDX-License-Identifier: Apache-2.0
"""Optimizers of the function layer whose steps use the gradients of all processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorbackend.distributed.buckets import BUCKET_BYTES, GradientBuckets, check_options
from tensorbackend.distributed.communicator import Communicator
from tensorbackend.errors import BackendError, complain
from tensorbackend.function import arrays
from tensorbackend.function.ready import listeners
from tensorbackend.function.variable import Variable
from tensorbackend.graph.tensor import check_writable
from tensorbackend.links import Link
from tensorbackend.optimizers import Optimizer

__all__ = ["AverageGradients", "distributed_optimizer"]


class AverageGradients:
    """A hook of an optimizer: before each step, gradients become their means over the processes.

    A parameter takes part if it has a gradient, which must be so in all processes. `compress` is that of
    `GradientBuckets`. With `watch(link)` the gradients of a link's parameters are exchanged while backward passes go
    on, and are means when a pass is over; what has other gradients by the time of the step is averaged then.
    """

    name = "AverageGradients"
    timing = "pre"

    def __init__(self, comm: Communicator, nbytes: int = BUCKET_BYTES, compress: Any = None) -> None:
        check_options(nbytes, compress)
        self.comm = comm
        self._options = {"nbytes": nbytes, "compress": compress}
        self._buckets: dict[tuple[tuple, ...], tuple[list[str], GradientBuckets]] = {}
        self._watched: Link | None = None
        self._means: dict[int, Any] = {}  # by the parameter's identity, from a pass to the step
        self._pass: _Exchange | None = None

    def watch(self, link: Link) -> None:
        """Average the gradients of a link's parameters in each backward pass, beside it."""
        self._watched = link
        if self.comm.size > 1:
            listeners.add(self)

    def __call__(self, optimizer: Optimizer) -> None:
        """Average the gradients of the optimizer's target that are not means yet."""
        params = {path: p for path, p in sorted(optimizer.target.namedparams()) if p.grad is not None}
        self._average({path: p for path, p in params.items() if _raw(p) is not self._means.get(id(p))})
        self._means.clear()

    def _average(self, params: dict[str, Variable]) -> None:
        if params:
            tensors = {path: arrays.tensor_of(_raw(p)) for path, p in params.items()}
            order, buckets = self._of(tensors)
            buckets.gradients[:] = [tensors[path] for path in order]
            buckets.ready(*reversed(range(len(order))))
            _renew(buckets, [params[path] for path in order])
            buckets.wait()

    def _of(self, tensors: dict[str, Any]) -> tuple[list[str], GradientBuckets]:
        """The buckets of gradients that are like these tensors, and their order, which is that of process 0 when they
        first came. Raises `BackendError`, in all processes, where they have other ones then."""
        key = tuple([(path, tensors[path].shape, tensors[path].dtype) for path in sorted(tensors)])
        if key not in self._buckets:
            self.comm.wait()
            every = self.comm._agree(tuple([(path, x.shape, str(x.dtype)) for path, x in tensors.items()]))
            for rank, other in enumerate(every):
                for here, there, these, those in ((0, rank, every[0], other), (rank, 0, other, every[0])):
                    if odd := {*these} - {*those}:
                        given = "{} {} {}".format(*min(odd)) + f" in process {here}, not in process {there}"
                        raise BackendError(complain("gradients of processes", given, "the same in all"))
            order = [path for path, *_ in reversed(every[0])]
            self._buckets[key] = order, GradientBuckets(self.comm, [tensors[p] for p in order], **self._options)
        return self._buckets[key]

    # ---- as a listener of backward passes

    def begin(self, leaves: Sequence[Variable]) -> None:
        """A pass begins: choose the buckets for the watched parameters that it reaches."""
        paths = {id(p): path for path, p in self._watched.namedparams()}
        params = {paths[id(leaf)]: leaf for leaf in leaves if id(leaf) in paths}
        self._means.clear()
        there = {path: arrays.tensor_of(arrays.plain(p.array)) for path, p in params.items()}
        self._pass = _Exchange(params, *self._of(there)) if params else None

    def ready(self, leaf: Variable) -> None:
        """A gradient is there: its exchange may begin."""
        if self._pass is not None:
            self._pass.ready(leaf)

    def end(self) -> None:
        """The pass is over: wait for the exchanges."""
        if self._pass is not None:
            rest = self._pass.end()
            self._average(rest)
            self._means = {id(p): _raw(p) for p in self._pass.params.values() if p.grad is not None}
            self._pass = None

    def scaled(self, leaf: Variable, before: Any) -> None:
        """A multiple of a mean is one."""
        if self._means.get(id(leaf)) is before:
            self._means[id(leaf)] = _raw(leaf)


class _Exchange:
    """The parameters of one backward pass, by path, and the buckets in which their gradients travel."""

    def __init__(self, params: dict[str, Variable], order: list[str], buckets: GradientBuckets) -> None:
        self.params = params
        self._order = order
        self._buckets = buckets
        self._numbers = {id(params[path]): k for k, path in enumerate(order)}
        buckets.stop()  # what a pass has left that was broken off

    def ready(self, p: Variable) -> None:
        k = self._numbers.get(id(p))
        if k is not None:
            self._buckets.gradients[k] = arrays.tensor_of(_raw(p))
            self._buckets.ready(k)

    def end(self) -> dict[str, Variable]:
        """Wait. Returns the parameters with gradients that were not exchanged, since others got none in this pass."""
        _renew(self._buckets, [self.params[path] for path in self._order])
        left = [self._order[k] for k in self._buckets.stop()]
        return {path: self.params[path] for path in left if self.params[path].grad is not None}


def _renew(buckets: GradientBuckets, params: Sequence[Variable]) -> None:
    """Have the means of gradients that are on their way go to new memory: a gradient's own may be that of another
    variable's gradient too, or of all its elements."""
    for k in [k for bucket in buckets.buckets if bucket.exchange is not None for k in bucket.numbers]:
        before, found = buckets.gradients[k], params[k].grad_var
        buckets.gradients[k] = arrays.fresh(before.backend, before.shape, before.dtype)
        made = Variable(buckets.gradients[k])
        made._node = found._node  # a gradient with a history keeps it
        params[k].grad_var = made


def _raw(p: Variable) -> Any:
    """A gradient's plain array, the same object as long as nobody has replaced it."""
    return p.grad_var._data


def distributed_optimizer(optimizer: Optimizer, comm: Communicator, nbytes: int = BUCKET_BYTES,
                          compress: Any = None, overlap: bool = True) -> Optimizer:  # fmt: skip
    """Have the steps of an optimizer, which has its target, use the gradients of all processes; returns it.

    Call it in every process, before other hooks are added: they see averaged gradients. Parameters become those of
    process 0. With `overlap` gradients are exchanged while backward passes go on, as buckets of them get whole, and
    are means as soon as `backward` returns; otherwise in the step.

    Raises `BackendError` where the parameters are not on the communicator's backend, or have no shape yet,
    `RuntimeError` before `setup`, and as `GradientBuckets` and `add_hook`, before anything is changed.
    """
    if optimizer.target is None:
        raise RuntimeError(complain("distributed_optimizer: no target", "", "a link", "optimizer.setup(link)"))
    tensors = []
    for path, p in sorted(optimizer.target.namedparams()):
        if p.array is None:
            raise BackendError(complain("distributed_optimizer", f"{path} has no shape yet", "a forward pass before"))
        tensor = arrays.tensor_of(arrays.plain(p.array))
        if tensor.backend is not comm.backend:
            given, hint = f"{path} of {tensor.backend}", "link.to_device(comm.backend)"
            raise BackendError(complain("distributed_optimizer", given, f"{comm.backend}", hint))
        check_writable(tensor)
        tensors.append(tensor)
    hook = AverageGradients(comm, nbytes, compress)
    optimizer.add_hook(hook)
    for tensor in tensors:
        comm.broadcast(tensor)
    if overlap:
        hook.watch(optimizer.target)
    optimizer.comm = comm
    return optimizer
