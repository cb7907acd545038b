# SPDX-License-Identifier: Apache-2.0
"""How user kernels are compiled and launched: on the process's threads, and on a CUDA device or its emulator.

A target says how work is divided, which dialect prints it, and makes of a printed form and its sizes something to call.
Division depends on sizes alone, so that results do not depend on the number of threads or the device.
"""

from __future__ import annotations

import functools
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend import settings
from tensorbackend.backends import jit, native, toolchain
from tensorbackend.backends.plans import letter
from tensorbackend.codegen.geometry import BLOCKS, THREADS
from tensorbackend.codegen.user import BLOCK, CHUNK, RUN, SEGMENT, STRIP, CPrinter, Form, UserPrinter, UserSource
from tensorbackend.codegen.user_cuda import CudaPrinter, argument_counts

if TYPE_CHECKING:
    from tensorbackend.backends.gpu import GpuBackend

__all__ = ["DeviceTarget", "HostTarget", "Run", "Target", "Work"]

Run = Callable[[Sequence[int], Sequence[Any]], None]
"""Runs a prepared kernel on operands at addresses, with the values of its numbers."""


@dataclass(frozen=True)
class Work:
    """The sizes of a call: `lengths` of the axes, `strides` of what is walked, `count` elements (of each of the `rows`
    results; 0 rows: elementwise), in how many `segments` of what length, the number of `pointers`, types of numbers;
    `whole` are the lengths of axes, but the first, of arrays that are indexed by arrays of places."""

    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    count: int
    pointers: int
    types: tuple[np.dtype, ...]
    rows: int = 0
    segments: int = 1
    segment: int = 0
    whole: tuple[int, ...] = ()

    def sizes(self, *strips: int) -> list[int]:
        """What a kernel is told, in its order; `strips`, where a target wants it, is how many a row has."""
        reduced = [self.rows, self.segments, self.segment, *strips] if self.rows else []
        return [*self.lengths, self.count, *reduced, *self.whole]

    @property
    def numbers(self) -> str:
        """How the values of numbers are packed, as `struct` says it."""
        return "".join(map(letter, self.types))


class Target(ABC):
    """Where user kernels run: the dialect's `printer`, and how work is divided and launched."""

    printer: type[UserPrinter]

    @abstractmethod
    def divide(self, rows: int, count: int, wide: int) -> tuple[bool, int, int]:
        """For `rows` results of `count` elements, of which `wide` lie side by side (0: none): whether neighbouring
        results are computed together, in how many segments, and how long each is."""

    @abstractmethod
    def prepare(self, made: UserSource, form: Form, work: Work) -> Run:
        """Compile a kernel (or find it) and pack its launches. Raises `CompileError`."""


class HostTarget(Target):
    """C on the process's thread pool."""

    printer = CPrinter
    FEW = 16
    """Tasks below which a long reduction is divided into segments."""
    NARROW = 16
    """Fewer neighbouring results than this are computed one by one."""

    def divide(self, rows: int, count: int, wide: int) -> tuple[bool, int, int]:
        columns = wide >= self.NARROW
        tasks = rows // wide * -(-wide // STRIP) if columns else rows
        length = max(RUN, 2 * SEGMENT // min(wide, STRIP)) if columns else SEGMENT
        if tasks >= self.FEW or count <= 2 * length:
            return columns, 1, max(count, 1)
        return columns, -(-count // length), length

    def prepare(self, made: UserSource, form: Form, work: Work) -> Run:
        config = settings.config
        library = _library(made.source, config.sanitize, config.cflags, toolchain.require_compiler())
        cost = work.count * max(work.rows, 1) // 2 + 20
        wide = work.lengths[form.kept - 1] if form.columns else 1
        strips = -(-wide // STRIP)
        sizes = work.sizes(strips)
        if not work.rows:
            stages = [(made.name, -(-work.count // CHUNK), cost)]
        else:
            stages = [(made.name, work.rows // wide * strips * work.segments, cost)]
        if made.join:
            stages.append((made.join, work.rows, work.rows * work.segments))
        launches = [
            native.runtime().prepare(
                library.address(name), tasks, cost, work.pointers, sizes, work.strides, len(work.types)
            )
            for name, tasks, cost in stages
        ]
        return _HostRun(launches, struct.Struct(f"{work.pointers}Q{work.numbers}").pack)


class _HostRun:
    """Launches of the pool, one after the other, which take the same addresses and numbers."""

    __slots__ = ("_pack", "launches")

    def __init__(self, launches: list[native.Launch], pack: Callable[..., bytes]) -> None:
        self.launches = launches
        self._pack = pack

    def __call__(self, addresses: Sequence[int], numbers: Sequence[Any]) -> None:
        words = self._pack(*addresses, *numbers)
        for launch in self.launches:
            launch.run_on(words)


@functools.lru_cache(maxsize=1024)
def _library(source: str, sanitize: bool, cflags: str, found: Any) -> Any:
    """`cflags` and the compiler `found` are here only to be part of what the answer is remembered for."""
    return jit.user_library(source, sanitize)


class DeviceTarget(Target):
    """CUDA through a driver."""

    printer = CudaPrinter
    FEW_BLOCKS = 512
    FEW_THREADS = 1 << 16
    SHORT = 64
    """Fewer elements than this are one thread's."""
    LONGEST = 1 << 12
    """Elements that a thread combines one by one."""

    def __init__(self, backend: GpuBackend) -> None:
        self.driver = backend.driver
        self._modules: dict[str, Any] = {}

    def divide(self, rows: int, count: int, wide: int) -> tuple[bool, int, int]:
        if wide >= THREADS // 8 or count <= self.SHORT:
            wanted = max(self.FEW_THREADS // max(rows, 1), -(-count // self.LONGEST), 1)
            segment = max(-(-count // wanted), min(self.SHORT, count), 1)
            return True, max(-(-count // segment), 1), segment
        wanted = max(2 * self.FEW_BLOCKS // max(rows, 1), 1) if rows < self.FEW_BLOCKS else 1
        segment = -(-count // wanted // BLOCK) * BLOCK if wanted > 1 else count
        segment = max(segment, BLOCK)
        return False, max(-(-count // segment), 1), segment

    def prepare(self, made: UserSource, form: Form, work: Work) -> Run:
        module = self._module(made.source)
        total = work.rows * work.segments
        if not work.rows:
            stages = [(made.name, *_plane(work.count // max(work.lengths[-1], 1), work.lengths[-1]))]
        elif form.columns:
            stages = [(made.name, (min(max(-(-total // THREADS), 1), BLOCKS),), (THREADS,))]
        else:
            stages = [(made.name, (min(total, BLOCKS),), (THREADS,))]
        if made.join:
            stages.append((made.join, (min(work.rows, BLOCKS),), (THREADS,)))
        launches = [(module.function(name), grid, block) for name, grid, block in stages]
        sizes = work.sizes()
        counts = argument_counts(work.pointers, len(sizes), len(work.strides), len(work.types))
        template = struct.pack(f"{sum(counts)}q", *_padded([[], sizes, work.strides, []], counts))
        addresses_at, numbers_at = struct.Struct(f"{work.pointers}Q").pack_into, 8 * sum(counts[:3])
        pack, driver = struct.Struct(work.numbers).pack_into, self.driver

        def run(addresses: Sequence[int], numbers: Sequence[Any]) -> None:
            arguments = bytearray(template)
            addresses_at(arguments, 0, *addresses)
            if numbers:
                pack(arguments, numbers_at, *numbers)
            for function, grid, block in launches:
                driver.launch(function, grid, block, 0, bytes(arguments))

        return run

    def _module(self, source: str) -> Any:
        found = self._modules.get(source)
        if found is None:
            found = self._modules[source] = self.driver.compile(source)
        return found


def _plane(rows: int, inner: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Grid and block for threads over rows and an inner axis."""
    x = min(1 << max(inner - 1, 0).bit_length(), THREADS)
    y = min(1 << max(rows - 1, 0).bit_length(), THREADS // x)
    across = min(max(-(-inner // x), 1), BLOCKS)
    return (across, min(max(-(-rows // y), 1), max(BLOCKS // across, 1))), (x, y)


def _padded(parts: list[Sequence[int]], counts: Sequence[int]) -> list[int]:
    """The parts of a kernel's arguments, each filled up to its count of words."""
    return [word for part, count in zip(parts, counts) for word in [*part, *[0] * (count - len(part))]]

