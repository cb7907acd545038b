# SPDX-License-Identifier: Apache-2.0
"""Which of several ways to run a convolution or a product is the fastest here: timed once a shape, kept for good.

The ways add up in different orders. So what is chosen depends on the shape, the type and the settings alone, whatever
follows the sums and however many threads run, and a process that follows finds it in the index of `warm.py`.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorbackend import settings
from tensorbackend.backends import jit, warm
from tensorbackend.graph import indexing
from tensorbackend.graph.plan import Primitive

__all__ = ["ENOUGH_NS", "MOST_NS", "choose", "forget", "wait_for_threads"]

ENOUGH_NS, MOST_NS = 200_000, 100_000_000
"""Estimates, on one thread, between which ways are timed: below it cannot matter, above it would take too long."""
RUNS, BUDGET_S = 4, 0.5
"""Runs of a way that are timed, after one that is not: the fastest counts. The ways take turns, so that a busy moment
of the machine meets all of them. After so many seconds one timed run is enough."""
MOST_RUNS, MOMENT_S = 24, 0.05
"""Runs of short ways, for so many seconds: longer than a moment in which one of the threads has no CPU."""
CALM_S, MOST_WAIT_S = 0.002, 0.3
"""A rest in which the process should need less than half as much CPU time, before anything is timed; and how long to
wait for that: threads of other libraries spin for 0.2 s after their work."""
CLEARLY = 0.95
"""The share of the time of an earlier way that a later one must stay below to be taken."""

_log = logging.getLogger(__name__)
_chosen: dict[str, int] = {}


def choose(step: Primitive, ways: Sequence[Any], prepared: Sequence[jit.Prepared]) -> int:
    """The number of the way to take, of `ways` that are `prepared`."""
    described = f"{step.op.name} {step.params} {step.inputs[0].dtype} {list(map(str, ways))}"
    name = hashlib.blake2b(described.encode(), digest_size=16).hexdigest()
    if name not in _chosen:
        kept = warm.recall(name)
        _chosen[name] = kept[0] if kept is not None else _fastest(step, prepared)
        if kept is None:
            warm.remember(name, [_chosen[name]])
            if settings.config.debug >= 1:
                _log.warning("%s: %s", described, ways[_chosen[name]])
    return _chosen[name]


def forget() -> None:
    """Ask the index again for what was chosen."""
    _chosen.clear()


def _fastest(step: Primitive, prepared: Sequence[jit.Prepared]) -> int:
    """The first of the ways than which none is clearly faster, on operands of zeros."""
    extents = [indexing.extent(ref.shape, ref.strides, ref.dtype.itemsize) for ref in step.operands]
    operands = [_zeros(high - low) for low, high in extents]
    firsts = [memory.ctypes.data - low for memory, (low, _) in zip(operands, extents)]  # a stride may be negative
    scratch = [way.scratch_words for way in prepared]
    room = _zeros(8 * max(scratch))
    addresses = [[*firsts, *([room.ctypes.data] if size else [])] for size in scratch]
    numbers = [0] * len(step.scalars)
    times: list[list[float]] = []
    wait_for_threads()
    while len(times) < 2 or _is_uncertain(len(times) - 1, sum(map(sum, times))):
        times.append([_seconds(way, at, numbers) for way, at in zip(prepared, addresses)])
    found, least = 0, math.inf
    for number, seconds in enumerate(map(min, zip(*times[1:]))):
        if seconds < CLEARLY * least:
            found, least = number, seconds
    return found


def wait_for_threads() -> None:
    """Until this process's other threads rest, or a while: they would take a CPU from ways that use all."""
    end = time.perf_counter() + MOST_WAIT_S
    while (start := time.perf_counter()) < end:
        used = time.process_time()
        time.sleep(CALM_S)
        if time.process_time() - used < (time.perf_counter() - start) / 2:
            return


def _is_uncertain(runs: int, seconds: float) -> bool:
    """Whether to go on after so many timed runs, which took so long with the first one."""
    return runs < RUNS and seconds < BUDGET_S or runs < MOST_RUNS and seconds < MOMENT_S


def _zeros(size: int) -> np.ndarray:
    """Bytes at an address that is a multiple of 64, in memory of their own: what is only promised is one page."""
    room = np.full(size + 64, 0, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size]


def _seconds(way: jit.Prepared, addresses: list[int], numbers: list[int]) -> float:
    start = time.perf_counter()
    way.run(addresses, numbers)
    return time.perf_counter() - start
