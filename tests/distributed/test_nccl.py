# SPDX-License-Identifier: Apache-2.0
"""The transport of GPU tensors: on devices where there are two, and everywhere against a stand-in for NCCL.

The stand-in takes the calls that CuPy's module takes, with addresses, counts and types, on the emulated GPU's memory;
processes are threads, of which one runs at a time.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorbackend import BackendError
from tensorbackend.backends import registry
from tensorbackend.distributed import nccl
from tests.distributed.test_communicator import EXCHANGES

SIZE = 2
NUMBERS = {getattr(np, name): f"NCCL_{name.upper()}" for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64",
                                                                  "float32", "float64")}  # fmt: skip


class Board:
    """Where the ranks meet: `exchange` gives all that the ranks said. Only who has the turn runs."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self._met = threading.Barrier(SIZE, timeout=60)
        self._said: list[Any] = [None] * SIZE

    def exchange(self, rank: int, words: Any) -> list[Any]:
        self._said[rank] = words
        self.turn.release()
        try:
            self._met.wait()
            said = list(self._said)
            self._met.wait()
        finally:
            self.turn.acquire()
        return said


class World:
    """What is used of mpi4py's communicator."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank

    def Get_rank(self) -> int:  # noqa: N802
        return self._rank

    def Get_size(self) -> int:  # noqa: N802
        return SIZE

    def allgather(self, words: Any) -> list[Any]:
        return self._board.exchange(self._rank, words)

    def bcast(self, words: Any, root: int) -> Any:
        return self._board.exchange(self._rank, words)[root]

    def Barrier(self) -> None:  # noqa: N802
        self._board.exchange(self._rank, None)


def read(address: int, count: int, kind: type) -> np.ndarray:
    """A copy of so many numbers in memory."""
    return np.frombuffer(ctypes.string_at(address, count * np.dtype(kind).itemsize), kind)


def write(address: int, values: np.ndarray) -> None:
    """Numbers into memory."""
    ctypes.memmove(address, values.tobytes(), values.nbytes)


class Module:
    """What is used of `cupy.cuda.nccl`, for one rank; types are NumPy's, operations its functions."""

    NCCL_SUM, NCCL_MAX = np.add, np.maximum

    def __init__(self, board: Board) -> None:
        self.board = board
        self.group: list[tuple] | None = None
        for kind, name in NUMBERS.items():
            setattr(self, name, kind)

    def get_unique_id(self) -> str:
        return "the one"

    def NcclCommunicator(self, size: int, identity: str, rank: int) -> Link:  # noqa: N802
        assert (size, identity) == (SIZE, "the one")
        self.link = Link(self, rank)
        return self.link

    def groupStart(self) -> None:  # noqa: N802
        self.group = []

    def groupEnd(self) -> None:  # noqa: N802
        calls, self.group = self.group, None
        said = self.board.exchange(self.link.rank, [(peer, data) for what, peer, data in calls if what == "send"])
        for what, peer, (address, count, kind) in [c for c in calls if c[0] == "recv"]:
            (values,) = [data for to, data in said[peer] if to == self.link.rank]
            assert values.size == count and values.dtype == kind, what
            write(address, values)


class Link:
    """A rank's communicator."""

    def __init__(self, module: Module, rank: int) -> None:
        self.module, self.rank, self.destroyed = module, rank, False

    def _all(self, address: int, count: int, kind: type) -> list[np.ndarray]:
        return self.module.board.exchange(self.rank, read(address, count, kind))

    def allReduce(self, given: int, taken: int, count: int, kind: type, op: Any, stream: int) -> None:  # noqa: N802
        write(taken, op.reduce(self._all(given, count, kind), dtype=kind))

    def bcast(self, address: int, count: int, kind: type, root: int, stream: int) -> None:
        write(address, self._all(address, count, kind)[root])

    def allGather(self, given: int, taken: int, count: int, kind: type, stream: int) -> None:  # noqa: N802
        write(taken, np.concatenate(self._all(given, count, kind)))

    def send(self, address: int, count: int, kind: type, peer: int, stream: int) -> None:
        self.module.group.append(("send", peer, read(address, count, kind)))

    def recv(self, address: int, count: int, kind: type, peer: int, stream: int) -> None:
        self.module.group.append(("recv", peer, (address, count, kind)))

    def destroy(self) -> None:
        self.destroyed = True


@pytest.mark.ci
def test_every_exchange_makes_the_right_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board()
    modules = threading.local()
    monkeypatch.setattr(nccl, "_nccl", lambda: modules.mine)
    monkeypatch.setattr(nccl, "local_rank", lambda world: world.Get_rank())
    ended: list[Any] = []

    def run(rank: int) -> None:
        with board.turn:
            try:
                be = registry.allocate("gpu:emulator", rng_seed=0)
                be.driver.using_device = lambda what: contextlib.nullcontext()
                modules.mine = Module(board)
                comm = nccl.NcclCommunicator(be, World(board, rank))
                exec(EXCHANGES, {"comm": comm, "be": be, "np": np})
                comm.close()
                ended.append(modules.mine.link.destroyed)
            except BaseException as error:
                ended.append(error)
                raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == [True, True]


def test_without_nccl_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendError, match="nvidia-nccl"):
        nccl.NcclCommunicator(None, None)


def test_every_exchange_on_two_devices(check: Callable[..., None], absent: Callable[[str, str], None]) -> None:
    if importlib.util.find_spec("cupy") is None:
        absent("nccl", "not installed: cupy")
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < SIZE:
        absent("nccl", "NCCL was not run: it takes two devices")
    check(SIZE, EXCHANGES, backend="gpu")
