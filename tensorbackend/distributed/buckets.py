# SPDX-License-Identifier: Apache-2.0
"""Gradients of all processes averaged, in few exchanges that run beside the rest of the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.distributed.communicator import Communicator, done, vector
from tensorbackend.errors import BackendError, DTypeError, complain
from tensorbackend.graph import ranges
from tensorbackend.graph.tensor import Tensor

__all__ = ["BUCKET_BYTES", "GradientBuckets", "check_options"]

BUCKET_BYTES = 4 << 20
"""Bytes from which a bucket is full: large enough for the links' bandwidth, small enough to begin early."""


class _Bucket:
    """Gradients that are exchanged together: `parts` are (number of a gradient, its place in `flat`)."""

    def __init__(self, gradients: Sequence[tuple[int, Tensor]], dtype: np.dtype) -> None:
        self.flat = vector(gradients[0][1].backend, sum(g.size for _, g in gradients), dtype)
        self.missing = self.numbers = frozenset(k for k, _ in gradients)
        self.exchange: Future | None = None
        self.parts = []
        first = 0
        for k, g in gradients:
            self.parts.append((k, self.flat[first : first + g.size].reshape(g.shape)))
            first += g.size

    def start(self, comm: Communicator, gradients: Sequence[Tensor], beside: bool) -> None:
        """Pack, and begin the exchange, `beside` this thread's work or before it goes on."""
        op = self._pack(gradients, comm.size)
        if beside:
            self.exchange = comm.start_allreduce(self.flat, op)
        else:
            self.exchange = done(lambda: comm.allreduce(self.flat, op))

    def _pack(self, gradients: Sequence[Tensor], size: int) -> str:
        """Make the memory ready; returns what to do with it. Halves would lose small shares: their mean is made in
        float32, on the way."""
        half = dtypes.is_half(self.flat.dtype)
        elsewhere = [(place, gradients[k]) for k, place in self.parts if gradients[k] is not place]
        with self.flat.backend.fuse():
            if half:
                for place, gradient in elsewhere:
                    place[:] = gradient
            elif not elsewhere:
                self.flat[:] = self.flat * (1 / size)
            else:
                for k, place in self.parts:
                    place[:] = gradients[k] * (1 / size)
        return "mean" if half else "sum"

    def end(self, gradients: Sequence[Tensor]) -> None:
        """Wait for the exchange, and unpack."""
        self.exchange.result()
        self.exchange = None
        with self.flat.backend.fuse():
            for k, place in self.parts:
                if gradients[k] is not place:
                    gradients[k][:] = place


def check_options(nbytes: int, compress: Any) -> np.dtype | None:
    """The type of halves that buckets are sent as, if any. Raises `DTypeError` for another type, `ValueError` for a
    size of buckets below 1."""
    ranges.check("GradientBuckets", "an int of 1 or more", nbytes=nbytes)
    half = None if compress is None else dtypes.as_dtype(compress)
    if half is not None and not dtypes.is_half(half):
        raise DTypeError(complain("GradientBuckets", f"compress={compress!r}", "float16, bfloat16 or None"))
    return half


class GradientBuckets:
    """Averages `gradients` over the processes of `comm`, in place. The list is the user's: other tensors of the same
    shapes and types may take the place of its entries between steps.

    In a backward pass, tell it of each gradient when it is written: `ready(k, ...)` with its place in the list. A
    bucket whose gradients are all there, and all those before it, is packed and its exchange begins, while the pass
    goes on: in the same order in every process, in whatever order gradients come; the last one's is over when `ready`
    returns. `wait()` ends the step: then every gradient holds the mean over processes. `reduce()` does all at once.
    Gradients that are written to the tensors of `in_place()` need no packing.

    Buckets are filled from the last gradient to the first, the order of a backward pass, up to `nbytes` each.
    `compress` ("float16" or "bfloat16") sends halves instead of the gradients' own type, for half the bytes; sums
    are made in float32 and rounded once, so a gradient is off by one or two roundings of the half type.

    Raises `DTypeError` for gradients that are not floats or a `compress` that is not a half type, `BackendError` when a
    step is ended before all gradients were there, or a gradient comes twice.
    """

    def __init__(
        self, comm: Communicator, gradients: Iterable[Tensor], nbytes: int = BUCKET_BYTES, compress: Any = None
    ) -> None:
        self.comm = comm
        self.gradients = list(gradients)
        for g in self.gradients:
            comm._check(g, "GradientBuckets", "mean")
        half = check_options(nbytes, compress)
        self.buckets = [_Bucket(group, half or group[0][1].dtype) for group in self._groups(nbytes)]
        self._bucket_of = {k: bucket for bucket in self.buckets for k in bucket.numbers}

    def in_place(self) -> list[Tensor]:
        """Make tensors in the buckets' own memory the gradients, with the numbers that the gradients hold: nothing is
        packed and unpacked then. Returns them, in the order of the list, for whoever writes gradients; with `compress`
        the gradients stay where they are."""
        for bucket in self.buckets:
            for k, place in bucket.parts:
                if place.dtype == self.gradients[k].dtype:
                    place[:] = self.gradients[k]
                    self.gradients[k] = place
        return list(self.gradients)

    def ready(self, *numbers: int) -> None:
        """The gradients of these numbers are written. Nobody may change them before `wait`.

        Raises `BackendError` for a number that comes twice in one step, `IndexError` for one that no gradient has,
        before anything is sent.
        """
        came: set[int] = set()
        for k in numbers:
            if k not in self._bucket_of:
                expected = f"0 to {len(self.gradients) - 1}" if self.gradients else "none, of no gradients"
                raise IndexError(complain("GradientBuckets.ready: no such gradient", repr(k), expected))
            if k not in self._bucket_of[k].missing or k in came:
                raise BackendError(complain("GradientBuckets.ready", f"gradient {k} twice in one step", "each once"))
            came.add(k)
        for k in came:
            self._bucket_of[k].missing -= {k}
        for bucket in self.buckets if self.comm.size > 1 else ():
            if bucket.missing:
                break
            if bucket.exchange is None:
                bucket.start(self.comm, self.gradients, beside=bucket is not self.buckets[-1])

    def wait(self) -> None:
        """End the step: every gradient is the mean over processes. Raises `BackendError` while some are not ready."""
        missing = sorted(k for bucket in self.buckets for k in bucket.missing)
        if missing:
            raise BackendError(complain("GradientBuckets.wait", f"no gradients {missing} yet", "ready(k) for each"))
        self.stop()

    def stop(self) -> list[int]:
        """End the step as it is: gradients whose exchange has begun are means. Returns the numbers of the others."""
        others = [k for bucket in self.buckets if bucket.exchange is None for k in bucket.numbers]
        for bucket in self.buckets:
            bucket.missing = bucket.numbers
            if bucket.exchange is not None:
                bucket.end(self.gradients)
        return sorted(others)

    def reduce(self) -> None:
        """`ready` for all, and `wait`."""
        self.ready(*reversed(range(len(self.gradients))))
        self.wait()

    def _groups(self, nbytes: int) -> list[list[tuple[int, Tensor]]]:
        groups: list[list[tuple[int, Tensor]]] = []
        for k, g in reversed(list(enumerate(self.gradients))):
            last = groups[-1] if groups else []
            if not last or last[0][1].dtype != g.dtype or sum(x.nbytes for _, x in last) >= nbytes:
                groups.append([])
            groups[-1].append((k, g))
        return groups
