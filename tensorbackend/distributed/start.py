# SPDX-License-Identifier: Apache-2.0
"""How a process learns that it is one of several, and gets its communicator."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from tensorbackend.backends.base import Backend
from tensorbackend.backends.registry import gen_backend
from tensorbackend.distributed.communicator import Alone, Communicator
from tensorbackend.distributed.mpi import MpiCommunicator, local_rank
from tensorbackend.distributed.runner import give_up, processes
from tensorbackend.errors import BackendError, complain
from tensorbackend.settings import checked, config

__all__ = ["init", "processes"]

def init(backend: Backend | str | None = "cpu", *, timeout: float | None = None, **options: Any) -> Communicator:
    """The communicator of this process. Call it once, in every process.

    `backend` is one that exists, or the name of one to make (None: `TB_BACKEND`, else 'cpu'), with `options` as
    `gen_backend` takes them; a GPU backend that is made here takes the device number `local_rank` of its machine,
    unless `device_id` is given. With `rng_seed`, every process makes the same random numbers until `comm.seed(seed)`
    sets them apart. After `timeout` seconds without an exchange (None: TB_DISTRIBUTED_TIMEOUT) every process prints
    where it is, and all end.

    An exception that nobody catches ends all processes, after its traceback. Raises `BackendError` when processes were
    started together but mpi4py, its MPI or, on GPUs, NCCL is missing, with the pip command, and `ValueError` for a
    `timeout` that TB_DISTRIBUTED_TIMEOUT would not take.
    """
    timeout = config.distributed_timeout if timeout is None else checked("distributed_timeout", timeout)
    if processes() == 1:
        return Alone(backend if isinstance(backend, Backend) else gen_backend(backend, **options))
    world = _world()
    backend = config.backend if backend is None else backend
    if not isinstance(backend, Backend):
        if backend.partition(":")[0] == "gpu":
            options.setdefault("device_id", local_rank(world))
        backend = gen_backend(backend, **options)
    _end_all_on_errors(world)
    if getattr(backend, "driver", None) is not None and backend.driver.name != "emulator":
        from tensorbackend.distributed.nccl import NcclCommunicator

        return NcclCommunicator(backend, world, timeout)
    return MpiCommunicator(backend, world, timeout)


def _world() -> Any:
    """All processes, as mpi4py sees them."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # the latter where mpi4py, which has no MPI of its own, finds none
        missing = "no mpi4py" if isinstance(error, ImportError) else "no MPI for mpi4py"
        given = f"{processes()} of them, and {missing} ({str(error).partition(chr(10))[0]})"
        hint = "pip install 'tensorbackend[mpi]'"
        raise BackendError(complain("processes that talk", given, "mpi4py and an MPI", hint)) from error
    return MPI.COMM_WORLD


def _end_all_on_errors(world: Any) -> None:
    """Let an uncaught exception of this process end all, whoever started them: others would wait for it for ever."""
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        give_up(error.with_traceback(trace))
        world.Abort(1)

    sys.excepthook = hook
