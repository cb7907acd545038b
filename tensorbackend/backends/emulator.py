# SPDX-License-Identifier: Apache-2.0
"""The driver without a device: CUDA C through the host's C++ compiler, each CUDA thread run on the CPU.

For tests, and for debugging kernels: see docs/debugging.md. The C++ side is `kernels/cuda/emulator.h` (what a kernel
sees) and `emulator.cpp` (the scheduler). `emulator_module.py` makes a source into a library; here it is launched, and
faults become exceptions.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import numpy as np

from tensorbackend.backends import toolchain
from tensorbackend.backends.driver import DeviceFacts, Function, HostDriver, Triple
from tensorbackend.backends.emulator_check import FILL, Buffers, run_twice
from tensorbackend.backends.emulator_module import BOUNDS_FLAGS, EmulatorModule, Report, Setup, runtime
from tensorbackend.backends.locks import Lock
from tensorbackend.errors import BackendError, KernelFault, complain
from tensorbackend.settings import config

__all__ = ["ORDERS", "EmulatorDriver"]

ORDERS = ("forward", "reverse", "random")
_launching = Lock()  # one kernel at a time in a process: the scheduler's state is static


class EmulatorDriver(HostDriver):
    """CUDA on the CPU, in the calling thread: whatever is asked is done when the call returns.

    `order` of threads and blocks: 'forward', 'reverse' or 'random' by `seed` (None: `TB_EMULATOR_ORDER`).
    `multiprocessors` is what `facts` says, for launches that depend on it. `bounds` also checks each index of an array
    whose extent is in its type, at half the speed; the ends of shared arrays are always guarded. `twice` runs each
    kernel a second time, in another order and with other bytes in memory that nobody wrote, and compares.

    Raises `CompileError` without a C++ compiler.
    """

    name = "emulator"

    def __init__(
        self,
        device_id: int = 0,
        *,
        order: str | None = None,
        seed: int = 1,
        multiprocessors: int = 4,
        bounds: bool = False,
        twice: bool = False,
    ) -> None:
        self.order = config.emulator_order if order is None else order
        if self.order not in ORDERS:
            raise ValueError(complain("no such order of threads", repr(self.order), ", ".join(ORDERS)))
        self.seed = seed
        self.twice = twice
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.facts = DeviceFacts("emulator", multiprocessors, 1024, 227 << 10, (9, 0), memory, emulated=True)
        self._runtime = runtime()
        self._flags = BOUNDS_FLAGS[toolchain.require_compiler().family] if bounds else ()
        self._live = Buffers()

    def allocate(self, nbytes: int) -> int:
        """As `Driver.allocate`; the bytes are 0xFF, NaN in every format. Multiples of 16, not more."""
        address = self._runtime.emulator_allocate(nbytes)
        if address is None:
            raise BackendError(complain("the emulator's memory is exhausted", f"{nbytes} bytes"))
        self._live.add(address, nbytes)
        return address

    def free(self, address: int) -> None:
        """As `Driver.free`; a later use is a fault."""
        if address not in self._live.sizes:
            raise BackendError(complain("freed twice, or never allocated", hex(address)))
        if self._live.freed is not None:
            self._live.freed.append(address)
            return
        self._live.remove(address)
        self._runtime.emulator_free(address)

    def upload(self, address: int, host: np.ndarray, wait: bool = True) -> None:
        ctypes.memmove(self._range(address, host.nbytes, True), host.ctypes.data, host.nbytes)

    def download(self, host: np.ndarray, address: int, wait: bool = True) -> None:
        ctypes.memmove(host.ctypes.data, self._range(address, host.nbytes), host.nbytes)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        ctypes.memmove(self._range(to, nbytes, True), self._range(source, nbytes), nbytes)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        ctypes.memset(self._range(address, nbytes, True), byte, nbytes)

    def _range(self, address: int, nbytes: int, written: bool = False) -> int:
        if nbytes and not self._runtime.emulator_contains(address, nbytes):
            raise BackendError(complain("a copy out of bounds", f"{nbytes} bytes at {address:#x}", "one allocation"))
        if written and self.twice:
            self._live.write(address)
        return address

    def compile(self, source: str, name: str = "kernels.cu", options: Sequence[str] = ()) -> EmulatorModule:
        return EmulatorModule(source, name, (*self._flags, *options))

    def _launch(self, function: Function, grid: Triple, block: Triple, shared: int, arguments: bytes) -> None:
        _, entry, size = function.handle
        if len(arguments) != size:
            given, expected = f"{len(arguments)} bytes", f"{size} bytes, the size of its structure"
            raise BackendError(complain(f"{function.name}: arguments of another size", given, expected))

        def run(again: bool, fill: int) -> None:
            order = self.order if not again else "reverse" if self.order == "forward" else "forward"
            setup = Setup(grid, block, shared, self.facts.shared, ORDERS.index(order), self.seed, arguments, size, fill)
            report = Report()
            with _launching.now:
                ended_well = entry(ctypes.byref(setup), ctypes.byref(report))
            if not ended_well:
                raise self._fault(function, grid, block, report, order)

        if not self.twice:
            run(False, FILL)
            return
        self._live.freed = []
        try:
            run_twice(self._live, run, function.name)
        finally:
            freed, self._live.freed = self._live.freed, None
            for address in freed:
                self.free(address)

    def _fault(self, function: Function, grid: Triple, block: Triple, report: Report, order: str) -> KernelFault:
        module = function.handle[0]
        place = f"{os.fsdecode(report.file)}:{report.line}" if report.line else ""
        if report.program_counter:
            place = module.locate(report.program_counter)
        rows = [f"{function.name}: {report.message.decode()}"]
        if place:
            rows.append(f"  at        {place}: {module.line(place)}")
        block_thread = (report.block.triple(), report.thread.triple()) if report.has_thread else (None, None)
        if report.has_thread:
            rows.append(f"  in        block {block_thread[0]}, thread {block_thread[1]}")
        rows.append(f"  launched  grid {grid}, block {block}, order {order!r}")
        return KernelFault(
            "\n".join(rows), kernel=function.name, location=place, block=block_thread[0], thread=block_thread[1]
        )

    def memory(self) -> tuple[int, int]:
        """The host's memory."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"), self.facts.memory

    def close(self) -> None:
        """Free what was allocated."""
        for address in tuple(self._live.sizes):
            self.free(address)
