# SPDX-License-Identifier: Apache-2.0
"""What processes say to each other, whatever carries it.

`Communicator` checks, and brings tensors into the form that a transport takes: contiguous memory of one of its element
types. A transport is a subclass with five methods. It sees memory as it is, and what is remembered of an exchange keeps
none alive: no statement of an exchange waits in a `fuse` block. Calls are collective: every process makes the same ones
in the same order, with tensors of the same shape and type; TB_CHECK=1 compares what they ask for before each.

What `allreduce` has to do is worked out once for each place in memory: an exchange of a few bytes takes a microsecond.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends.base import Backend
from tensorbackend.errors import BackendError, DTypeError, ShapeError, complain
from tensorbackend.graph import ranges
from tensorbackend.graph.structure import Structure
from tensorbackend.graph.tensor import Tensor, check_writable
from tensorbackend.settings import MOST_SEED, anywhere, config, when_changed

__all__ = ["OPERATIONS", "Alone", "Communicator", "Reduction"]

OPERATIONS = ("sum", "mean", "max")
MAX_REDUCTIONS = 1 << 10
Reduction = Callable[[], object]
"""Replaces the elements at one place in memory, in every process, by what an operation makes of them."""

checking = False
"""Whether any thread has TB_CHECK on."""


def _decide() -> None:
    global checking
    checking = anywhere("check", bool)


when_changed(_decide)


class Communicator(ABC):
    """One process among `size`, number `rank` of them and `local_rank` of those on its machine.

    `backend` owns the tensors. Close it, or use it in a `with` block, to end the helper thread.
    """

    def __init__(self, backend: Backend, rank: int, size: int, local_rank: int) -> None:
        self.backend = backend
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        backend.num_devices = size
        backend.communicator = self if size > 1 else None
        self._helper: ThreadPoolExecutor | None = None
        self._last: Future | None = None
        self._reductions: dict[tuple[Structure, int, str], Reduction] = {}
        self._flush = backend.fuse().flush

    def __copy__(self) -> Communicator:
        return self

    def __deepcopy__(self, memo: dict) -> Communicator:
        return self  # so that copies of links that hold it share it

    # ---- what users call

    def allreduce(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """Replace `tensor`, in every process, by the sum, mean or maximum over processes of its elements.

        Halves are added in float32 and rounded once. The order of additions depends on the number of processes alone,
        so a run repeats to the last bit. Returns `tensor`. Raises `ValueError` for another `op` and for a tensor that
        may not be written, `DTypeError` for a mean of integers or a sum of booleans, `BackendError` for a tensor of
        another backend.
        """
        try:
            reduce = self._reductions[tensor.structure, tensor.address, op] if tensor.storage.writable else None
        except (AttributeError, KeyError):
            reduce = None
        if reduce is None:
            reduce = self._reduction(tensor, op)
        self._flush()
        if self._last is not None or checking or self.backend._recorder is not None:
            self._begin("allreduce", tensor, op)
        reduce()
        return tensor

    def broadcast(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Replace `tensor` in every process by that of process `root`. Returns it. Raises `ValueError` for a `root`
        that is not a rank, and for a tensor that may not be written."""
        self._check(tensor, "broadcast", writes=True)
        if not (isinstance(root, (int, np.integer)) and 0 <= root < self.size):
            raise ValueError(complain("broadcast", f"root {root!r}", f"a rank, 0 to {self.size - 1}"))
        self._begin("broadcast", tensor, int(root))
        self._in_contiguous(tensor, lambda flat: self._broadcast(flat, int(root)))
        return tensor

    def allgather(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, in order of rank, joined along the first axis: (n, ...) becomes (size n, ...)
        in every process. Raises `ShapeError` for a tensor without axes."""
        self._check(tensor, "allgather", axes=True)
        self._begin("allgather", tensor)
        whole = vector(self.backend, self.size * tensor.size, tensor.dtype)
        if whole.size:
            self._allgather(self._flat(tensor), whole)
        return whole.reshape(self.size * tensor.shape[0], *tensor.shape[1:])

    def reduce_scatter(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """This process's part of what `allreduce` would give: rows rank n/size to (rank + 1) n/size of (n, ...).

        Raises what `allreduce` does, and `ShapeError` where the first axis does not divide by the number of processes.
        """
        self._check(tensor, "reduce_scatter", op, axes=True)
        if tensor.shape[0] % self.size:
            raise ShapeError(
                complain("reduce_scatter", f"shape {tensor.shape}", f"a first axis that {self.size} processes share")
            )
        self._begin("reduce_scatter", tensor, op)
        part = vector(self.backend, tensor.size // self.size, tensor.dtype)
        if part.size:
            self._scatter(self._flat(tensor), part, op)
        return part.reshape(tensor.shape[0] // self.size, *tensor.shape[1:])

    def columns(self, tensor: Tensor) -> Tensor:
        """This process's equal share of the columns of `tensor` (features, N), as a view. Raises `ShapeError` where N
        does not divide by the number of processes, or there is no second axis."""
        self._check(tensor, "columns")
        if tensor.ndim != 2 or tensor.shape[1] % self.size:
            expected = f"(features, N), with an N that {self.size} processes share"
            raise ShapeError(complain("columns", f"shape {tensor.shape}", expected))
        each = tensor.shape[1] // self.size
        return tensor[:, self.rank * each : (self.rank + 1) * each]

    def join_columns(self, tensor: Tensor) -> Tensor:
        """Every process's `columns(tensor)` into `tensor` (features, N) of all. Returns it; raises as `columns`."""
        mine = self.columns(tensor)
        if self.size > 1 and tensor.size:
            tensor[:] = self.allgather(mine.transpose(1, 0)).transpose(1, 0)
        return tensor

    def agreed(self, words: Hashable) -> Any:
        """What process 0 says, in every process: any object that can be pickled."""
        self.wait()
        return self._agree(words)[0]

    def barrier(self) -> None:
        """Wait until every process is here."""
        self._begin("barrier")
        self._barrier()

    def start_allreduce(self, flat: Tensor, op: str = "sum") -> Future:
        """Begin `allreduce` of a contiguous tensor, which nobody may touch before the result's `result()` returns.

        Exchanges run one after the other, in the order of their starts, beside whatever this thread does meanwhile.
        Raises `ShapeError` for a tensor with gaps; what the exchange itself raises comes from `result()`.
        """
        reduce = self._reduction(flat, op)
        if not flat.is_contiguous:
            raise ShapeError(complain("start_allreduce", f"strides {flat.strides}", "a contiguous tensor"))
        self.backend._host_access()

        def exchange() -> None:
            self._compare("start_allreduce", flat, op)
            reduce()

        self._last = self._start(exchange)
        return self._last

    def wait(self) -> None:
        """Wait for all exchanges that were started. Raises what they raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def seed(self, seed: int, apart: bool = True) -> None:
        """Seed the backend: `apart`, each process draws numbers of its own (dropout, noise), which still repeat from
        run to run; otherwise all draw the same (initial weights, the order of samples). Raises `ValueError` for a seed
        outside 0 to 2^32 - 1, `TypeError` for what is no number."""
        ranges.check("seed", "an int of 0 or more", seed=seed)
        if seed > MOST_SEED:
            raise ValueError(complain("seed: seed", repr(seed), "an int from 0 to 2^32 - 1"))
        key = np.random.SeedSequence([seed, self.rank]).generate_state(1)[0] if apart and self.size > 1 else seed
        self.backend.gen_rng(int(key))

    def close(self) -> None:
        """Finish what was started and end the helper thread. May be called again."""
        self.wait()
        if self._helper is not None:
            self._helper.shutdown()
            self._helper = None

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if error is None:  # after an error the others may never come: nothing is waited for
            self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank {self.rank} of {self.size}, {self.backend.backend_name})"

    # ---- a transport: contiguous tensors, not empty

    @abstractmethod
    def _reducing(self, flat: Tensor, largest: bool) -> Reduction:
        """What adds up over processes in place, or with `largest` takes the maximum, at the place of a tensor of an
        element type that `_adds` names."""

    @abstractmethod
    def _broadcast(self, flat: Tensor, root: int) -> None:
        """Bytes of `root` to all."""

    @abstractmethod
    def _allgather(self, part: Tensor, whole: Tensor) -> None:
        """Bytes of all, in order of rank, to all."""

    @abstractmethod
    def _alltoall(self, given: Tensor, taken: Tensor) -> None:
        """Part k of `given` to process k, where it becomes part `rank` of `taken`: parts of equal size."""

    @abstractmethod
    def _barrier(self) -> None:
        """Wait for all."""

    def _adds(self, dtype: np.dtype) -> bool:
        """Whether the transport adds this type by itself. Others are exchanged as bytes, and added by the backend."""
        return dtype.kind in "iuf" and not dtypes.is_half(dtype)

    def _start(self, call: Callable[[], None]) -> Future:
        """Run a call beside this thread, after those started before."""
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "tensorbackend exchange")
        return self._helper.submit(call)

    def _agree(self, words: Hashable) -> list[Any]:
        """What every process says, in order of rank."""
        return [words]

    # ---- from what users ask to what transports do

    def _begin(self, name: str, tensor: Tensor | None = None, detail: Any = None) -> None:
        """What comes before every exchange: earlier ones end, what waits in a `fuse` block runs, requests agree."""
        if self._last is not None:
            self.wait()
        self.backend._host_access()
        if checking:
            self._compare(name, tensor, detail)

    def _reduction(self, tensor: Tensor, op: str) -> Reduction:
        """What `allreduce` does with tensors of this layout at this place: worked out, checked and remembered."""
        self._check(tensor, "allreduce", op, writes=True)
        key = (tensor.structure, tensor.address, op)
        if key not in self._reductions:
            if len(self._reductions) >= MAX_REDUCTIONS:
                self._reductions.clear()
            place = self.backend._tensor_at(tensor.structure, tensor.address)  # keeps no memory alive
            self._reductions[key] = self._way(place, op)
        return self._reductions[key]

    def _way(self, tensor: Tensor, op: str) -> Reduction:
        if self.size == 1 or not tensor.size:
            return lambda: None
        if not tensor.is_contiguous:
            return lambda: self._in_contiguous(tensor, lambda flat: self._way(flat, op)())
        lossy = op == "max" and dtypes.is_float(tensor.dtype)  # transports' maxima drop a NaN, or not, by its rank
        if lossy or not self._adds(tensor.dtype):
            return lambda: self._reduce_by_parts(tensor.reshape(-1), op)
        reduce = self._reducing(tensor, op == "max")
        return self._mean_of(tensor, reduce) if op == "mean" else reduce

    def _mean_of(self, flat: Tensor, add: Reduction) -> Reduction:
        def mean() -> None:
            add()
            flat[:] = flat / self.size
            self._flush()

        return mean

    def _reduce_by_parts(self, flat: Tensor, op: str) -> None:
        """Each process combines one part of all, and all gather the parts: as many bytes as a reduction of the same
        type, but the sums are the backend's, in float32 for halves."""
        each = -(-flat.size // self.size)
        padded = flat
        if each * self.size != flat.size:
            padded = vector(self.backend, each * self.size, flat.dtype)
            padded[: flat.size] = flat
            padded[flat.size :] = 0
            self._flush()
        part = vector(self.backend, each, flat.dtype)
        self._scatter(padded, part, op)
        self._allgather(part, padded)
        if padded is not flat:
            flat[:] = padded[: flat.size]
            self._flush()

    def _scatter(self, flat: Tensor, part: Tensor, op: str) -> None:
        """`reduce_scatter` of contiguous memory into `part`: sums in order of rank, whatever the transport."""
        taken = vector(self.backend, flat.size, flat.dtype)
        self._alltoall(flat, taken)
        combine = {"sum": self.backend.sum, "mean": self.backend.mean, "max": self.backend.max}[op]
        part.reshape(1, -1)[:] = combine(taken.reshape(self.size, part.size), axis=0)
        self._flush()

    def _flat(self, tensor: Tensor) -> Tensor:
        """The elements in one axis: a view, or a copy of what is not contiguous."""
        if tensor.is_contiguous:
            return tensor.reshape(-1)
        copied = vector(self.backend, tensor.size, tensor.dtype)
        copied.reshape(tensor.shape)[:] = tensor
        self._flush()
        return copied

    def _in_contiguous(self, tensor: Tensor, change: Callable[[Tensor], None]) -> None:
        """Let `change` work on the elements of `tensor` in contiguous memory."""
        if not tensor.size:
            return
        if tensor.is_contiguous:
            change(tensor)
            return
        flat = self._flat(tensor)
        change(flat)
        tensor[:] = flat.reshape(tensor.shape)
        self._flush()

    def _check(self, tensor: Any, name: str, op: str = "max", axes: bool = False, writes: bool = False) -> None:
        if not isinstance(tensor, Tensor):
            raise TypeError(complain(name, type(tensor).__name__, "a tensor"))
        if tensor.backend is not self.backend:
            raise BackendError(complain(name, f"a tensor of {tensor.backend}", f"one of {self.backend}"))
        if op not in OPERATIONS:
            raise ValueError(complain(name, f"op {op!r}", f"one of {', '.join(OPERATIONS)}"))
        if op == "mean" and not dtypes.is_float(tensor.dtype) or op == "sum" and tensor.dtype == dtypes.BOOL:
            raise DTypeError(complain(name, f"op {op!r} of {tensor.dtype}", "numbers, and floats for a mean"))
        if writes:
            check_writable(tensor)
        if axes and not tensor.shape:
            raise ShapeError(complain(name, "a tensor without axes", "at least one axis", "tensor.reshape(1)"))

    def _compare(self, name: str, tensor: Tensor | None = None, detail: Any = None) -> None:
        """With TB_CHECK=1: refuse to begin where processes ask for different things."""
        if self.size == 1 or not config.check:
            return
        said = (name, *((tensor.shape, str(tensor.dtype)) if tensor is not None else ()), detail)
        asked = self._agree(said)
        for rank, other in enumerate(asked):
            if other != asked[0]:
                raise BackendError(complain("processes do not agree", f"rank 0: {asked[0]}; rank {rank}: {other}"))


class Alone(Communicator):
    """A communicator of size 1: everything is there already."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, 0, 1, 0)

    def _reducing(self, flat: Tensor, largest: bool) -> Reduction:
        return lambda: None

    def _broadcast(self, flat: Tensor, root: int) -> None:
        pass

    def _allgather(self, part: Tensor, whole: Tensor) -> None:
        whole[:] = part

    def _alltoall(self, given: Tensor, taken: Tensor) -> None:
        taken[:] = given

    def _barrier(self) -> None:
        pass

    def _start(self, call: Callable[[], None]) -> Future:
        return done(call)


def vector(backend: Backend, n: int, dtype: np.dtype) -> Tensor:
    """New memory for n elements, in one axis whatever the backend's least number of axes."""
    return backend.empty((n, 1), dtype=dtype).reshape(n)


def done(call: Callable[[], None]) -> Future:
    """The future of a call that is made now."""
    future: Future = Future()
    call()
    future.set_result(None)
    return future
