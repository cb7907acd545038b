# SPDX-License-Identifier: Apache-2.0
"""What this machine can do at most, as launches on the pool that runs the kernels: the roofs of a roofline.

Time the `run()` of a probe beside the kernel in question: what a shared machine can do changes by the minute.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tensorbackend.backends.compiler import Library, compile_source
from tensorbackend.backends.native import Launch, runtime

__all__ = ["Probe", "copy", "handover", "multiply_adds", "one_pass", "triad"]

BLOCK = 16384  # elements a task, as in probes.c
ALIGNMENT = 64


@dataclass(frozen=True)
class Probe:
    """A prepared `launch`, the `bytes` it moves and `flops` it computes in one run, and the `arrays` it works on."""

    launch: Launch
    bytes: int
    flops: int
    arrays: tuple[np.ndarray, ...]

    def run(self) -> None:
        """One run, complete on return."""
        self.launch.run()

    def seconds(self) -> float:
        """The median of a few runs, in seconds, after two that warm up."""
        times = []
        for _ in range(9):
            started = time.perf_counter_ns()
            self.run()
            times.append(time.perf_counter_ns() - started)
        return max(float(np.median(times[2:])), 1) * 1e-9


def copy(elements: int) -> Probe:
    """Copy `elements` float32 numbers with streaming stores."""
    return _streams("tb_copy", elements, operands=2, flops=0)


def triad(elements: int, cached: bool = False) -> Probe:
    """`o = x + 3 * y` on `elements` float32 numbers, with streaming stores unless `cached`."""
    return _streams("tb_triad_cached" if cached else "tb_triad", elements, operands=3, flops=2 * elements)


def one_pass(read: int, written: int, cached: bool = False) -> Probe:
    """Read `read` float32 numbers and write `written` others, with streaming stores unless `cached`."""
    tasks = -(-(read + written) // BLOCK)
    arrays = (_aligned(written), _aligned(read))
    name = "tb_pass_cached" if cached else "tb_pass"
    return _probe(name, arrays, tasks, [read, written, tasks], flops=0)


def multiply_adds(tasks: int = 64, iterations: int = 10_000) -> Probe:
    """Multiply-adds on float32 registers: `tasks` tasks of `iterations` rounds each."""
    library = _library()
    flops = tasks * iterations * library.function("tb_fma_flops")()
    sums = _aligned(tasks)
    # At about 64 operations a nanosecond on one thread.
    launch = runtime().prepare(library.address("tb_fma_peak"), tasks, flops // 64, 1, [iterations], [], 0)
    launch.ptr[0] = sums.ctypes.data
    return Probe(launch, 0, flops, (sums,))


def handover(first: int, second: int, times: int = 10_000) -> float:
    """Seconds that a line of the cache takes from one CPU to another and back, the mean of so many round trips.

    About 100 ns where both share a cache, 200 to 600 ns where they do not. Raises `ValueError` for CPUs that are one,
    or not this process's, or where the system cannot keep a thread on a CPU.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if first == second or not {first, second} <= allowed:
        raise ValueError(f"handover: two of the CPUs {sorted(allowed)} are needed, given {first} and {second}")
    bounce = _library().function("tb_bounce")
    bounce.argtypes, bounce.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64], None
    line = _aligned(ALIGNMENT)
    line[:] = 0
    ready = threading.Barrier(2)

    def bounces(cpu: int, turn: int) -> float:
        os.sched_setaffinity(0, {cpu})  # of this thread
        ready.wait()
        start = time.perf_counter()
        bounce(line.ctypes.data, turn, times)
        return time.perf_counter() - start

    with ThreadPoolExecutor(2) as pool:
        return max(pool.map(bounces, (first, second), (0, 1))) / times


def _streams(name: str, elements: int, operands: int, flops: int) -> Probe:
    arrays = tuple(_aligned(elements) for _ in range(operands))
    return _probe(name, arrays, -(-elements // BLOCK), [elements], flops)


def _probe(name: str, arrays: tuple[np.ndarray, ...], tasks: int, sizes: list[int], flops: int) -> Probe:
    moved = sum(array.nbytes for array in arrays)
    # At about 20 bytes a nanosecond on one thread.
    launch = runtime().prepare(_library().address(name), tasks, moved // 20, len(arrays), sizes, [], 1)
    launch.ptr[:] = [array.ctypes.data for array in arrays]
    launch.doubles[0] = 3.0
    return Probe(launch, moved, flops, arrays)


def _aligned(elements: int) -> np.ndarray:
    """Ones, at an address that vector loads want."""
    spare = ALIGNMENT // 4
    whole = np.ones(elements + spare, np.float32)
    start = -whole.ctypes.data % ALIGNMENT // 4
    return whole[start : start + elements]


@functools.cache
def _library() -> Library:
    return compile_source('#include "probes.c"\n')
