# SPDX-License-Identifier: Apache-2.0
"""The driver without a device: CUDA C through the host's C++ compiler, each CUDA thread run on the CPU.

For tests, and for debugging kernels: see docs/debugging.md. The C++ side is `kernels/cuda/emulator.h` (what a kernel
sees) and `emulator.cpp` (the scheduler). Here the source is made into a library and faults into exceptions.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tensorbackend.backends import compiler, toolchain
from tensorbackend.backends.driver import DeviceFacts, Driver, Function, Module, Triple, host_clock
from tensorbackend.backends.emulator_source import kernels_of, translate
from tensorbackend.errors import BackendError, KernelFault, complain, nearest
from tensorbackend.kernel_files import kernel_path
from tensorbackend.settings import config

__all__ = ["ORDERS", "EmulatorDriver"]

ORDERS = ("forward", "reverse", "random")
# Overruns are to reach a guard page, not to be reasoned away; pointers to vectors alias arrays, as they do in CUDA.
FLAGS = (
    *("-x", "c++", "-std=c++17", "-O2", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fwrapv"),
    *("-fno-strict-aliasing", "-fno-aggressive-loop-optimizations", "-fno-omit-frame-pointer"),
)
if sys.platform == "darwin":
    FLAGS += ("-undefined", "dynamic_lookup")
BOUNDS_FLAGS = {
    "gcc": (
        "-fsanitize=bounds-strict",
        "-fsanitize-undefined-trap-on-error",
        "-fno-crossjumping",
        "-fno-tree-tail-merge",
    ),
    "clang": ("-fsanitize=array-bounds", "-fsanitize-trap=array-bounds"),
}
MODULE_FLAGS = (*FLAGS, "-g1", "-gdwarf-4")  # addr2line misreads version 5 in binutils 2.40
_launching = threading.Lock()  # one kernel at a time in a process: the scheduler's state is static


class _Index(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]

    def triple(self) -> Triple:
        return self.x, self.y, self.z


class _Setup(ctypes.Structure):
    _fields_ = [
        ("grid", _Index),
        ("block", _Index),
        ("shared", ctypes.c_uint),
        ("shared_limit", ctypes.c_uint),
        ("order", ctypes.c_int),
        ("seed", ctypes.c_ulonglong),
        ("arguments", ctypes.c_char_p),
        ("argument_size", ctypes.c_size_t),
    ]


class _Report(ctypes.Structure):
    _fields_ = [
        ("message", ctypes.c_char * 512),
        ("file", ctypes.c_char * 256),
        ("line", ctypes.c_int),
        ("has_thread", ctypes.c_int),
        ("block", _Index),
        ("thread", _Index),
        ("program_counter", ctypes.c_void_p),
    ]


@functools.cache
def _runtime() -> ctypes.CDLL:
    """The scheduler, compiled once, its functions visible to the modules loaded after it."""
    library = compiler.compile_source(kernel_path("cuda/emulator.cpp").read_text(), flags=FLAGS, libc=True)
    runtime = ctypes.CDLL(os.fspath(library.path), mode=ctypes.RTLD_GLOBAL)
    runtime.emulator_allocate.argtypes = [ctypes.c_size_t]
    runtime.emulator_allocate.restype = ctypes.c_void_p
    runtime.emulator_free.argtypes = [ctypes.c_void_p]
    runtime.emulator_free.restype = ctypes.c_bool
    runtime.emulator_contains.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    runtime.emulator_contains.restype = ctypes.c_bool
    return runtime


class EmulatorModule(Module):
    """Kernels compiled for the host: `name` and `source` as they were given, `path` of the library."""

    def __init__(self, source: str, name: str, options: Sequence[str]) -> None:
        _runtime()
        self.name = name
        self.source = source
        self._kernels = [kernel for _, kernel in kernels_of(source)]
        self._library = compiler.compile_source(translate(source, name), flags=(*MODULE_FLAGS, *options), libc=True)
        self.path = os.fspath(self._library.path)

    def function(self, name: str) -> Function:
        """As `Module.function`. The handle is (module, entry point, size of the arguments)."""
        if name not in self._kernels:
            expected = f'extern "C" __global__ void {name}(const {name}_args a)'
            raise BackendError(
                complain(f"{self.name}: no such kernel", repr(name), expected, nearest(name, self._kernels))
            )
        threads = ctypes.c_uint.from_address(self._library.address(f"emulator_threads_{name}")).value
        size = ctypes.c_size_t.from_address(self._library.address(f"emulator_arguments_{name}")).value
        return Function(name, (self, self._library.function(f"emulator_launch_{name}"), size), threads=threads)

    def locate(self, address: int) -> str:
        """The "file:line" of an instruction, or "" where that is not known (no debugger's tools, another library)."""
        base = _base_of(address, self.path)
        tool = shutil.which("addr2line")
        if base is None or tool is None:
            return ""
        command = [tool, "-i", "-e", self.path, hex(address - base)]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.split("\n")
        places = [line.partition(" (")[0] for line in lines if ":" in line and "??" not in line]
        ours = [place for place in places if not place.rpartition(":")[0].endswith("/emulator.h")]
        return self._shorten(ours[0]) if ours else ""

    def _shorten(self, place: str) -> str:
        """`place` without the folder that the compiler ran in."""
        file, _, line = place.rpartition(":")
        return f"{self.name if file.endswith('/' + self.name) else file}:{line}"

    def line(self, place: str) -> str:
        """The source line at a "file:line"; "" when it is not at hand."""
        file, _, number = place.rpartition(":")
        try:
            text = self.source if file == self.name else Path(file).read_text()
            return text.splitlines()[int(number) - 1].strip()
        except (OSError, ValueError, IndexError):
            return ""


class _Symbol(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_char_p if "name" in name else ctypes.c_void_p) for name in ("name", "base", "sname", "at")
    ]


def _base_of(address: int, path: str) -> int | None:
    """Where the library at `path` begins in memory, when `address` lies in it."""
    symbol = _Symbol()
    found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(symbol))
    return symbol.base if found and os.fsdecode(symbol.name) == path else None


# Driver ---------------------------------------------------------------------------------------------------------------


class EmulatorDriver(Driver):
    """CUDA on the CPU, in the calling thread: whatever is asked is done when the call returns.

    `order` of threads and blocks: 'forward', 'reverse' or 'random' by `seed` (None: `TB_EMULATOR_ORDER`).
    `multiprocessors` is what `facts` says, for launches that depend on it. `bounds` also checks each index of an array
    whose extent is in its type, at half the speed; the ends of shared arrays are always guarded.

    Raises `CompileError` without a C++ compiler.
    """

    name = "emulator"
    stream = 0

    def __init__(
        self,
        device_id: int = 0,
        *,
        order: str | None = None,
        seed: int = 1,
        multiprocessors: int = 4,
        bounds: bool = False,
    ) -> None:
        self.order = config.emulator_order if order is None else order
        if self.order not in ORDERS:
            raise ValueError(complain("no such order of threads", repr(self.order), ", ".join(ORDERS)))
        self.seed = seed
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.facts = DeviceFacts("emulator", multiprocessors, 1024, 227 << 10, (9, 0), memory, emulated=True)
        self._runtime = _runtime()
        self._flags = BOUNDS_FLAGS[toolchain.require_compiler().family] if bounds else ()
        self._live: set[int] = set()

    def allocate(self, nbytes: int) -> int:
        """As `Driver.allocate`; the bytes are 0xFF, NaN in every format. Multiples of 16, not more."""
        address = self._runtime.emulator_allocate(nbytes)
        if address is None:
            raise BackendError(complain("the emulator's memory is exhausted", f"{nbytes} bytes"))
        self._live.add(address)
        return address

    def free(self, address: int) -> None:
        """As `Driver.free`; a later use is a fault."""
        if address not in self._live:
            raise BackendError(complain("freed twice, or never allocated", hex(address)))
        self._live.remove(address)
        self._runtime.emulator_free(address)

    def pinned(self, nbytes: int) -> np.ndarray:
        """An ordinary array."""
        return np.empty(nbytes, np.uint8)

    def upload(self, address: int, host: np.ndarray, wait: bool = True) -> None:
        ctypes.memmove(self._range(address, host.nbytes), host.ctypes.data, host.nbytes)

    def download(self, host: np.ndarray, address: int, wait: bool = True) -> None:
        ctypes.memmove(host.ctypes.data, self._range(address, host.nbytes), host.nbytes)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        ctypes.memmove(self._range(to, nbytes), self._range(source, nbytes), nbytes)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        ctypes.memset(self._range(address, nbytes), byte, nbytes)

    def _range(self, address: int, nbytes: int) -> int:
        if nbytes and not self._runtime.emulator_contains(address, nbytes):
            raise BackendError(complain("a copy out of bounds", f"{nbytes} bytes at {address:#x}", "one allocation"))
        return address

    def compile(self, source: str, name: str = "kernels.cu", options: Sequence[str] = ()) -> EmulatorModule:
        return EmulatorModule(source, name, (*self._flags, *options))

    def _launch(self, function: Function, grid: Triple, block: Triple, shared: int, arguments: bytes) -> None:
        _, entry, size = function.handle
        if len(arguments) != size:
            given, expected = f"{len(arguments)} bytes", f"{size} bytes, the size of its structure"
            raise BackendError(complain(f"{function.name}: arguments of another size", given, expected))
        setup = _Setup(
            grid, block, shared, self.facts.shared, ORDERS.index(self.order), self.seed, arguments, len(arguments)
        )
        report = _Report()
        with _launching:
            ended_well = entry(ctypes.byref(setup), ctypes.byref(report))
        if not ended_well:
            raise self._fault(function, grid, block, report)

    def _fault(self, function: Function, grid: Triple, block: Triple, report: _Report) -> KernelFault:
        module = function.handle[0]
        place = f"{report.file.decode()}:{report.line}" if report.line else ""
        if report.program_counter:
            place = module.locate(report.program_counter)
        rows = [f"{function.name}: {report.message.decode()}"]
        if place:
            rows.append(f"  at        {place}: {module.line(place)}")
        block_thread = (report.block.triple(), report.thread.triple()) if report.has_thread else (None, None)
        if report.has_thread:
            rows.append(f"  in        block {block_thread[0]}, thread {block_thread[1]}")
        rows.append(f"  launched  grid {grid}, block {block}, order {self.order!r}")
        return KernelFault(
            "\n".join(rows), kernel=function.name, location=place, block=block_thread[0], thread=block_thread[1]
        )

    def synchronise(self) -> None:
        """Nothing is under way."""

    def record(self) -> float:
        """The host's clock, in milliseconds."""
        return host_clock()

    def elapsed(self, start: float, end: float) -> float:
        return end - start

    def memory(self) -> tuple[int, int]:
        """The host's memory."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"), self.facts.memory

    def close(self) -> None:
        """Free what was allocated."""
        for address in tuple(self._live):
            self.free(address)
