# SPDX-License-Identifier: Apache-2.0
"""The transport of CPU tensors: MPI, through mpi4py. Memory of tensors is handed over as it is, without a copy.

Tensors of the emulated GPU lie in the same memory, so they take this way too.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

from tensorbackend.backends.base import Backend
from tensorbackend.distributed.communicator import Communicator, Reduction
from tensorbackend.distributed.watch import Watch
from tensorbackend.graph.tensor import Tensor

__all__ = ["MpiCommunicator", "local_rank"]


def local_rank(comm: Any) -> int:
    """The number of this process among those of `comm` (of mpi4py) on its machine. Collective."""
    from mpi4py import MPI

    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    rank = here.Get_rank()
    here.Free()
    return rank


class MpiCommunicator(Communicator):
    """Processes that talk over `comm`, an mpi4py communicator, of which a copy is made.

    `timeout` are the seconds that a process may spend between two exchanges, or in one, before all are ended (None:
    for ever).
    """

    def __init__(self, backend: Backend, comm: Any, timeout: float | None = None) -> None:
        from mpi4py import MPI

        super().__init__(backend, comm.Get_rank(), comm.Get_size(), local_rank(comm))
        self._mpi = MPI
        self._comm = comm.Dup()
        self._watch = None if timeout is None else Watch(self._comm.Abort, self.rank, self.size, timeout)

    def _reducing(self, flat: Tensor, largest: bool) -> Reduction:
        memory = [self._memory(flat), flat.size, self._mpi.Datatype.fromcode(flat.dtype.char)]
        operation = self._mpi.MAX if largest else self._mpi.SUM
        reduce = functools.partial(self._comm.Allreduce, self._mpi.IN_PLACE, memory, operation)
        return reduce if self._watch is None else functools.partial(self._call, "allreduce", reduce)

    def _broadcast(self, flat: Tensor, root: int) -> None:
        self._call("broadcast", self._comm.Bcast, self._bytes(flat), root)

    def _allgather(self, part: Tensor, whole: Tensor) -> None:
        self._call("allgather", self._comm.Allgather, self._bytes(part), self._bytes(whole))

    def _alltoall(self, given: Tensor, taken: Tensor) -> None:
        self._call("alltoall", self._comm.Alltoall, self._bytes(given), self._bytes(taken))

    def _barrier(self) -> None:
        self._call("barrier", self._comm.Barrier)

    def _agree(self, words: Hashable) -> list[Any]:
        return self._call("comparison", self._comm.allgather, words)

    def _call(self, name: str, function: Any, *arguments: Any) -> Any:
        if self._watch is None:
            return function(*arguments)
        self._watch.enter(name)
        try:
            return function(*arguments)
        finally:
            self._watch.leave()

    def close(self) -> None:
        super().close()
        if self._watch is not None:
            self._watch.close()

    def _bytes(self, flat: Tensor) -> list[Any]:
        return [self._memory(flat), self._mpi.BYTE]

    def _memory(self, flat: Tensor) -> Any:
        return self._mpi.buffer.fromaddress(flat.address, flat.nbytes)
