# SPDX-License-Identifier: Apache-2.0
"""The transport of GPU tensors: NCCL, through CuPy, on the stream that runs the backend's kernels.

An exchange is put into the stream like a kernel, so it begins when those before it are done, and nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends.base import Backend
from tensorbackend.distributed.communicator import Communicator, Reduction, done
from tensorbackend.distributed.mpi import local_rank
from tensorbackend.errors import BackendError, complain
from tensorbackend.graph.tensor import Tensor

__all__ = ["NcclCommunicator"]

TYPES = {
    "int8": "NCCL_INT8", "uint8": "NCCL_UINT8", "int32": "NCCL_INT32", "uint32": "NCCL_UINT32", "int64": "NCCL_INT64",
    "uint64": "NCCL_UINT64", "float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64",
}  # fmt: skip


class NcclCommunicator(Communicator):
    """Processes with a GPU each. `world`, an mpi4py communicator, tells all of them the identity of NCCL's.

    `timeout` is not used: NCCL's own (NCCL_TIMEOUT) ends an exchange that hangs. Raises `BackendError` without NCCL.
    """

    def __init__(self, backend: Backend, world: Any, timeout: float | None = None) -> None:
        nccl = _nccl()
        super().__init__(backend, world.Get_rank(), world.Get_size(), local_rank(world))
        self._world = world
        self._nccl = nccl
        identity = world.bcast(nccl.get_unique_id() if self.rank == 0 else None, root=0)
        with self._device("init"):
            self._comm = nccl.NcclCommunicator(self.size, identity, self.rank)

    def _device(self, what: str) -> AbstractContextManager[None]:
        """NCCL works on the current device, which need not be that of the backend."""
        return self.backend.driver.using_device(what)

    @property
    def _stream(self) -> int:
        return self.backend.stream

    def _adds(self, dtype: np.dtype) -> bool:
        return dtypes.as_dtype(dtype).name in TYPES

    def _reducing(self, flat: Tensor, largest: bool) -> Reduction:
        kind = getattr(self._nccl, TYPES[flat.dtype.name])
        operation = self._nccl.NCCL_MAX if largest else self._nccl.NCCL_SUM

        def reduce() -> None:
            with self._device("allreduce"):
                self._comm.allReduce(flat.address, flat.address, flat.size, kind, operation, self._stream)

        return reduce

    def _broadcast(self, flat: Tensor, root: int) -> None:
        with self._device("broadcast"):
            self._comm.bcast(flat.address, flat.nbytes, self._nccl.NCCL_UINT8, root, self._stream)

    def _allgather(self, part: Tensor, whole: Tensor) -> None:
        with self._device("allgather"):
            self._comm.allGather(part.address, whole.address, part.nbytes, self._nccl.NCCL_UINT8, self._stream)

    def _alltoall(self, given: Tensor, taken: Tensor) -> None:
        nbytes = given.nbytes // self.size
        with self._device("alltoall"):
            self._nccl.groupStart()
            for k in range(self.size):
                self._comm.send(given.address + k * nbytes, nbytes, self._nccl.NCCL_UINT8, k, self._stream)
                self._comm.recv(taken.address + k * nbytes, nbytes, self._nccl.NCCL_UINT8, k, self._stream)
            self._nccl.groupEnd()

    def _barrier(self) -> None:
        self.backend.driver.synchronise()
        self._world.Barrier()

    def _agree(self, words: Hashable) -> list[Any]:
        return self._world.allgather(words)

    def _start(self, call: Callable[[], None]) -> Future:
        return done(call)

    def close(self) -> None:
        super().close()
        self._comm.destroy()


def _nccl() -> Any:
    """CuPy's module of NCCL."""
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise BackendError(
            complain("GPUs that talk", f"no NCCL in CuPy ({error})", "CuPy with NCCL",
                     "pip install 'tensorbackend[cuda,mpi]' nvidia-nccl-cu13")) from error  # fmt: skip
    return nccl
