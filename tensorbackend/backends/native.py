# SPDX-License-Identifier: Apache-2.0
"""The native runtime: thread pool, launches and memory, bound with ctypes.

`runtime()` builds `kernels/c/runtime.c`, `allocator.c` and `facts.c` on first use and gives the one `Runtime` of
the process. A `Launch` is packed once, so that repeating it costs one call. When a launch is shared among threads, and
how memory is kept, is decided in C.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tensorbackend.backends.compiler import Library, compile_source
from tensorbackend.backends.cores import allowed_cores, control_group_limit
from tensorbackend.settings import config

__all__ = ["Launch", "LaunchList", "MemoryStats", "Runtime", "has_runtime", "runtime"]

SOURCE = '#include "runtime.c"\n#include "allocator.c"\n#include "facts.c"\n'
# The library is never unloaded: its sleeping workers would be left without code.
FLAGS = ("-O1", "-pthread", "-Wl,-z,nodelete")
# Taking the interpreter lock back may wait for other threads, so short launches keep it.
KEEP_LOCK_BELOW_NS = 20_000
HEAD = 7  # words of a tb_launch: fn, tasks, cost, ptr, size, stride, scalar


class MemoryStats(NamedTuple):
    """Bytes in use, bytes kept for reuse, the most bytes ever in use, and the number of allocations."""

    in_use: int
    cached: int
    peak: int
    calls: int


class Launch:
    """One launch of one kernel, packed in memory: set `ptr`, `scalar` and `tasks`, and call `run()`, again and again.

    `ptr` holds addresses; `size`, `stride` and `scalar` 8-byte integers. `run` returns when the launch is complete. The
    memory behind the addresses is the caller's to keep alive. Where others may launch the same at any time, as what
    finalizers state does, `run_on(words)` takes the addresses and then the scalars as bytes, in place of `ptr` and
    `scalar`.
    """

    __slots__ = ("_lengths", "_words", "address", "run", "run_on")

    def __init__(
        self,
        run: Callable[..., None],
        run_on: Callable[..., None],
        fn: int,
        tasks: int,
        cost: int,
        nptr: int,
        sizes: Sequence[int],
        strides: Sequence[int],
        nscalars: int,
    ) -> None:
        lengths = self._lengths = (nptr, len(sizes), len(strides), nscalars)
        blank = (0,) * (HEAD - 3 + nptr)
        words = (ctypes.c_int64 * (HEAD + sum(lengths)))(fn, tasks, cost, *blank, *sizes, *strides)
        self._words = words
        self.address = ctypes.addressof(words)
        at = self.address + 8 * HEAD
        for place, length in enumerate(lengths, start=3):
            words[place] = at
            at += 8 * length
        self.run = functools.partial(run, ctypes.byref(words))
        self.run_on = functools.partial(run_on, ctypes.byref(words), ctypes.c_int64(nptr))

    def _part(self, number: int) -> ctypes.Array:
        at = HEAD + sum(self._lengths[:number])
        return (ctypes.c_int64 * self._lengths[number]).from_buffer(self._words, 8 * at)

    @property
    def ptr(self) -> ctypes.Array:
        """The addresses that the kernel is given."""
        return self._part(0)

    @property
    def size(self) -> ctypes.Array:
        """The sizes of its loops."""
        return self._part(1)

    @property
    def stride(self) -> ctypes.Array:
        """The strides of its operands."""
        return self._part(2)

    @property
    def scalar(self) -> ctypes.Array:
        """The numbers that it is given."""
        return self._part(3)

    @property
    def doubles(self) -> ctypes.Array:
        """The scalars seen as float64."""
        return (ctypes.c_double * len(self.scalar)).from_buffer(self.scalar)

    @property
    def tasks(self) -> int:
        """The number of tasks of the launch."""
        return self._words[1]

    @tasks.setter
    def tasks(self, tasks: int) -> None:
        self._words[1] = tasks

    @property
    def cost(self) -> int:
        """Estimated nanoseconds of the whole launch on one thread."""
        return self._words[2]

    @cost.setter
    def cost(self, cost: int) -> None:
        self._words[2] = cost


class LaunchList:
    """Launches to replay in order with one call of `run()`.

    Later runs see changes of a launch's `ptr`, `size`, `stride` and `scalar`, not of its `tasks` and `cost`.
    """

    __slots__ = ("_launches", "_words", "run")

    def __init__(self, run_list: Callable[..., None], launches: Sequence[Launch]) -> None:
        self._launches = tuple(launches)
        self._words = (ctypes.c_int64 * (HEAD * len(launches)))()
        for index, launch in enumerate(launches):
            self._words[HEAD * index : HEAD * (index + 1)] = launch._words[:HEAD]
        self.run = functools.partial(run_list, ctypes.byref(self._words), ctypes.c_int64(len(launches)))


class Runtime:
    """The pool of threads and the memory of this process. Get it with `runtime()`. Any thread may call any method."""

    def __init__(self, library: Library) -> None:
        self.library = library
        address = library.address
        # Without argtypes, a prebuilt argument is passed on as it is: 0.07 us less a call.
        names = ("tb_run", "tb_run_on")
        self._run_locked = [ctypes.PYFUNCTYPE(None)(address(name)) for name in names]
        self._run_unlocked = [ctypes.CFUNCTYPE(None)(address(name)) for name in names]
        self._run_list = ctypes.CFUNCTYPE(None)(address("tb_run_list"))
        self._run_list_locked = ctypes.PYFUNCTYPE(None)(address("tb_run_list"))
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self._alloc = ctypes.CFUNCTYPE(pointer, number)(address("tb_alloc"))
        # Gives back a block of `alloc`, `free(address, nbytes)`, with the same `nbytes`; see `memory.owner`.
        self.free = ctypes.CFUNCTYPE(None, pointer, number)(address("tb_free"))
        self._stats = ctypes.CFUNCTYPE(None, pointer)(address("tb_alloc_stats"))
        self._trim = ctypes.CFUNCTYPE(None)(address("tb_alloc_trim"))
        self._set_limit = ctypes.CFUNCTYPE(None, number)(address("tb_alloc_set_limit"))
        self._reset_peak = ctypes.CFUNCTYPE(None)(address("tb_alloc_reset_peak"))
        self._set_threads = ctypes.CFUNCTYPE(number, number)(address("tb_set_threads"))
        self._get_threads = ctypes.CFUNCTYPE(number)(address("tb_get_threads"))

    def facts(self, primitive: str, *arguments: int) -> list[int]:
        """What the kernels of a primitive ("gemm" or "conv") have: the numbers of a function of `kernels/c/facts.c`."""
        found = (ctypes.c_int64 * 8)()
        self.library.function(f"tb_{primitive}_facts")(*map(ctypes.c_int64, arguments), found)
        return list(found)

    def address(self, name: str) -> int:
        """The address of a function of the runtime, for native callers: `tb_run`, `tb_run_list`, `tb_alloc`, ..."""
        return self.library.address(name)

    def prepare(
        self, fn: int, tasks: int, cost: int, nptr: int, sizes: Sequence[int], strides: Sequence[int], nscalars: int
    ) -> Launch:
        """Pack a launch of the kernel at address `fn`: `tasks` tasks that take about `cost` ns on one thread.

        Its `nptr` pointers and `nscalars` scalars are zero and to be filled in.
        """
        run = self._run_locked if cost < KEEP_LOCK_BELOW_NS else self._run_unlocked
        return Launch(*run, fn, tasks, cost, nptr, sizes, strides, nscalars)

    def prepare_list(self, launches: Sequence[Launch]) -> LaunchList:
        """Pack launches for replay in order by one call."""
        return LaunchList(self._run_list, launches)

    def prepare_words(self, address: int, count: int, cost: int) -> Callable[[], None]:
        """What runs `count` packed launches (`tb_launch`) at an address; Python's lock is kept when `cost` ns are few.

        The memory is the caller's to keep alive.
        """
        run = self._run_list_locked if cost < KEEP_LOCK_BELOW_NS else self._run_list
        return functools.partial(run, ctypes.c_void_p(address), ctypes.c_int64(count))

    def run(self, launch: Launch) -> None:
        """Run one launch."""
        launch.run()

    def run_list(self, launches: Sequence[Launch]) -> None:
        """Run launches in order. To do so again and again, keep the result of `prepare_list`."""
        self.prepare_list(launches).run()

    @property
    def threads(self) -> int:
        """Threads that work on a launch, the caller's included."""
        return self._get_threads()

    def set_threads(self, threads: int | None = None) -> int:
        """Use `threads` threads (None: the default), up to the runtime's bound; returns what is in force.

        The default is the setting `threads`, else OMP_NUM_THREADS, else the CPUs that this process may use.
        """
        if threads is not None and threads < 1:
            raise ValueError(f"set_threads: expected at least 1 thread, given {threads}")
        return self._set_threads(_default_threads() if threads is None else min(threads, 1 << 30))

    def alloc(self, nbytes: int) -> int:
        """The address of `nbytes` bytes, aligned to 64, contents undefined. `MemoryError` names the size asked for."""
        address = self._alloc(nbytes)
        if not address:
            stats = self.stats()
            raise MemoryError(
                f"cannot allocate {_readable(nbytes)} for a tensor; in use: {_readable(stats.in_use)}; "
                f"free some tensors or use a smaller batch"
            )
        return address

    def stats(self) -> MemoryStats:
        """What is in use and kept, in bytes (rounded up to block sizes)."""
        out = (ctypes.c_int64 * 4)()
        self._stats(ctypes.addressof(out))
        return MemoryStats(*out)

    def trim(self) -> None:
        """Give the memory kept for reuse back to the system."""
        self._trim()

    def set_memory_limit(self, nbytes: int) -> None:
        """Keep at most `nbytes` bytes of freed blocks for reuse (default: a quarter of the machine's memory)."""
        if nbytes < 0:
            raise ValueError(f"set_memory_limit: expected 0 bytes or more, given {nbytes}")
        self._set_limit(nbytes)

    def reset_peak(self) -> None:
        """Make the bytes now in use the peak."""
        self._reset_peak()


@functools.cache
def runtime() -> Runtime:
    """The runtime of this process, built or loaded on the first call. Raises `CompileError` without a compiler."""
    made = Runtime(compile_source(SOURCE, flags=FLAGS, libc=True))
    made.set_threads()
    memory = control_group_limit("memory.max")
    if memory:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        made.set_memory_limit(min(memory, physical) // 4)
    return made


def has_runtime() -> bool:
    """Whether this process has its runtime; until then it has all settings before it."""
    return runtime.cache_info().currsize > 0


def _default_threads() -> int:
    """The setting, else 0 for what the runtime reads in OMP_NUM_THREADS, else the cores allowed."""
    if config.threads is not None:
        return config.threads
    return 0 if os.environ.get("OMP_NUM_THREADS") else allowed_cores()


def _readable(nbytes: int) -> str:
    return f"{nbytes} bytes ({nbytes / 2**30:.2f} GiB)" if nbytes >= 1 << 20 else f"{nbytes} bytes"
