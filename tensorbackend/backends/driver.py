# SPDX-License-Identifier: Apache-2.0
"""What a CUDA backend asks of a machine: memory, copies, modules, launches, events. Three drivers answer.

`cupy` and `pycuda` run kernels on a device, `emulator` runs the same source on the CPU. A driver knows nothing of
tensors: it moves bytes between addresses and starts kernels. It has one stream, in whose order everything happens.

Sources     CUDA C++17 as NVRTC takes it: no system header; `#include "vmath.h"` finds `kernels/c` and `kernels/cuda`.
            Compiled without contraction into FMA. The same text goes to every driver.
Kernels     take one structure by value, and have C names:
            `struct NAME_args { ... };  extern "C" __global__ void NAME(const NAME_args a)`
Arguments   of a launch are the bytes of that structure, laid out as C does (NumPy: `np.dtype(..., align=True)`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorbackend.backends.cublas import Cublas, Product, find_library
from tensorbackend.backends.cuda_launch import NativeLaunches, NotedLaunch, NotedProduct
from tensorbackend.backends.locks import Lock
from tensorbackend.errors import BackendError, KernelFault, complain, nearest
from tensorbackend.kernel_files import kernel_dir

__all__ = [
    "DRIVERS", "WARP", "DeviceDriver", "DeviceFacts", "Driver", "Function", "HostDriver", "Module", "check_launch",
    "open_driver",
]  # fmt: skip

_log = logging.getLogger("tensorbackend")

WARP = 32
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
GRAIN = 512
"""Bytes to whose multiples a device's allocations are rounded up."""
MOST_KEPT = 256 << 20
"""Bytes of freed memory that are kept for the next tensor of the same size: a pool takes longer to find them."""
MOST_NOTED = 8 << 20
"""Bytes of memory at most that a call of a primitive takes which native code is to repeat: all share them."""
# What a block may have without asking for more.
PLAIN_SHARED = 48 << 10

DRIVERS = {
    "cupy": ("tensorbackend.backends.driver_cupy", "CupyDriver"),
    "pycuda": ("tensorbackend.backends.driver_pycuda", "PycudaDriver"),
    "emulator": ("tensorbackend.backends.emulator", "EmulatorDriver"),
}
# Package and extra of the drivers of a device, in the order they are tried.
DEVICE_DRIVERS = {"cupy": "cuda", "pycuda": "pycuda"}


@dataclass(frozen=True)
class DeviceFacts:
    """A device: its `name`, `multiprocessors`, most `threads` a block, bytes of `shared` memory a block may have (with
    `launch`'s help), `capability` (major, minor), bytes of `memory`, and whether it is the emulator."""

    name: str
    multiprocessors: int
    threads: int
    shared: int
    capability: tuple[int, int]
    memory: int
    emulated: bool = False


@dataclass(frozen=True)
class Function:
    """A kernel to launch: its `name`, the most `threads` a block may have for its registers or launch bounds, and what
    the compiler made of it where that is known: bytes of static `shared` memory, `registers`, spilled `local` bytes.
    `handle` is the driver's."""

    name: str
    handle: Any
    threads: int = MAX_BLOCK[0]
    shared: int = 0
    registers: int = 0
    local: int = 0


class Module(ABC):
    """Compiled kernels, loaded. Stays loaded as long as it is referred to."""

    @abstractmethod
    def function(self, name: str) -> Function:
        """The kernel `name`; ask once and keep it. Raises `BackendError` when the module has none of that name."""


class Driver(ABC):
    """One device, or its emulation. All calls but `download`, `elapsed` and `synchronise` may return before the device
    is done; what they asked for happens in the order of the calls. Addresses are integers, multiples of 16 at least.

    Errors: `BackendError` for what the device refuses (memory, launches), `KernelFault` (a `BackendError`) for what a
    kernel did wrong, `CompileError` for source that does not compile.
    """

    name: str
    facts: DeviceFacts
    # The CUDA stream of this driver as an integer, as __cuda_array_interface__ wants it; 0 in the emulator.
    stream: int
    # NVIDIA's matrix products on this stream, where the device and the library are at hand.
    blas: Cublas | None = None
    # How native code launches by itself what Python launched before, where the driver has handles for it.
    native: NativeLaunches | None = None
    # Whether `graph` is there: CuPy and the drivers without a device have it, PyCUDA has not.
    has_graphs = False

    @property
    def turn(self) -> Lock:
        """Held by whoever asks for something in the stream's order: what others ask meanwhile would come between, or
        into a graph. All backends of a driver share it."""
        return vars(self).setdefault("_turn", Lock())

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """The address of `nbytes` >= 0 new bytes, from a pool on a device. Ask for each tensor: the emulator finds
        accesses out of bounds by allocation."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Give back what `allocate` gave. What is queued may still use it: memory is reused in the stream's order."""

    @abstractmethod
    def pinned(self, nbytes: int) -> np.ndarray:
        """A host array of `nbytes` bytes (uint8) that copies need no staging for; freed with the array."""

    @abstractmethod
    def upload(self, address: int, host: np.ndarray, wait: bool = True) -> None:
        """Copy the C-contiguous `host` to the device. When it returns, `host` may be changed; without `wait`, which is
        for arrays of `pinned`, only after `synchronise`."""

    @abstractmethod
    def download(self, host: np.ndarray, address: int, wait: bool = True) -> None:
        """Copy from the device into the C-contiguous `host`, which is filled on return; without `wait`, which is for
        arrays of `pinned`, after `synchronise`."""

    @abstractmethod
    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy `nbytes` on the device; the ranges do not overlap."""

    @abstractmethod
    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Set `nbytes` bytes to `byte`."""

    @abstractmethod
    def compile(self, source: str, name: str = "kernels.cu", options: Sequence[str] = ()) -> Module:
        """Compile and load `source`; from a cache on disk when it was compiled before.

        `name` is what messages and debuggers call the source (the path of a file, if it came from one). `options` are
        macros: "-DNAME" or "-DNAME=VALUE". Put many kernels in one source: most of the time goes by the module.
        """

    def launch(
        self, function: Function, grid: tuple[int, ...], block: tuple[int, ...], shared: int, arguments: bytes
    ) -> None:
        """Run `function` on `grid` blocks of `block` threads, up to three numbers each, with `shared` bytes of dynamic
        shared memory. Raises `BackendError` before anything runs when the device cannot have such a launch."""
        grid, block = check_launch(self.facts, function, grid, block, shared)
        self._launch(function, grid, block, shared, arguments)

    def multiply(self, product: Product, a: int, b: int, c: int) -> None:
        """C = A B by `blas`, which is there."""
        self.blas.multiply(product, a, b, c)

    def noted(self, run: Callable[[], None]) -> Notes | None:
        """What `run` launches, which is not run; None where it asks for more meanwhile than launches and a little
        memory."""
        return None

    def graph(self, run: Callable[[], None]) -> Callable[[], None]:
        """Note the launches that `run` makes, which are not run, and give a function that runs them in one call. They
        keep their arguments. `run` does nothing but launch: it allocates nothing and waits for nothing."""
        raise BackendError(complain(f"the driver {self.name} has no graphs", "", "one with `has_graphs`"))

    @abstractmethod
    def _launch(self, function: Function, grid: Triple, block: Triple, shared: int, arguments: bytes) -> None:
        """`launch`, checked."""

    @abstractmethod
    def follow(self, stream: int) -> None:
        """What comes from now on happens after what another stream was asked before: its number is as
        `__cuda_array_interface__` has it. Our stream waits for none by itself."""

    @abstractmethod
    def synchronise(self) -> None:
        """Wait until all is done. Raises `KernelFault` when a kernel failed meanwhile."""

    @abstractmethod
    def record(self) -> Any:
        """An event: a mark in the stream's order."""

    @abstractmethod
    def elapsed(self, start: Any, end: Any) -> float:
        """Milliseconds between two events, waiting for the later."""

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Bytes of memory free and in all, those of the pool counted as free."""

    @abstractmethod
    def trim(self) -> None:
        """Give memory that is kept for reuse back to the device."""

    @abstractmethod
    def close(self) -> None:
        """Wait, and give back the pool. The driver is not used afterwards; closing twice does nothing."""


class _MoreThanLaunches(Exception):
    """Something was asked for that cannot be noted."""


@dataclass
class Notes:
    """What was noted: `calls` in their order, and the bytes of the driver's scratch memory that they use."""

    calls: list[NotedLaunch | NotedProduct]
    scratch: int = 0


class DeviceDriver(Driver):
    """A driver of a CUDA device through a package: what such drivers share.

    `_pool_allocate` gives (address, memory) that a pool takes back when nothing refers to the memory any more, and
    `using_device` makes device and stream current, and CUDA's errors ours. `_stream` is the package's.
    """

    _stream: Any

    def __init__(self) -> None:
        self._live: dict[int, tuple[int, Any]] = {}
        self._kept: dict[int, list[tuple[int, Any]]] = {}
        self._kept_bytes = 0
        self._keeping = Lock()
        self._notes = threading.local()
        self._scratch = 0
        self._closed = False

    @abstractmethod
    def using_device(self, what: str) -> AbstractContextManager[None]:
        """The device is current inside, and CUDA's errors become ours; `what` was being done."""

    def launch(
        self, function: Function, grid: tuple[int, ...], block: tuple[int, ...], shared: int, arguments: bytes
    ) -> None:
        notes = getattr(self._notes, "here", None)
        if notes is None:
            super().launch(function, grid, block, shared, arguments)
            return
        if shared:
            raise _MoreThanLaunches
        grid, block = check_launch(self.facts, function, grid, block, shared)
        notes.calls.append(NotedLaunch(function.handle.ptr, grid, block, arguments))

    def multiply(self, product: Product, a: int, b: int, c: int) -> None:
        notes = getattr(self._notes, "here", None)
        if notes is None:
            super().multiply(product, a, b, c)
        else:
            notes.calls.append(NotedProduct(product, (a, b, c)))

    def noted(self, run: Callable[[], None]) -> Notes | None:
        """As `Driver.noted`."""
        notes = self._notes.here = Notes([])
        try:
            run()
        except _MoreThanLaunches:
            return None
        finally:
            self._notes.here = None
        return notes

    def _allocate_noted(self, notes: Notes, nbytes: int) -> int:
        """A part of the scratch memory. All that is noted shares it: launches follow each other in the stream."""
        start = notes.scratch
        notes.scratch += -(-max(nbytes, 1) // GRAIN) * GRAIN
        if notes.scratch > MOST_NOTED:
            raise _MoreThanLaunches
        if not self._scratch:
            self._notes.here = None
            try:
                self._scratch = self.allocate(MOST_NOTED)
            finally:
                self._notes.here = notes
        return self._scratch + start

    def check_noting(self) -> None:
        """Whatever is no launch asks this first."""
        if getattr(self._notes, "here", None) is not None:
            raise _MoreThanLaunches

    @functools.cached_property
    def blas(self) -> Cublas | None:
        """cuBLAS on the driver's stream; None where the library is not installed, or refuses to start: it is too new
        for the NVIDIA driver, or finds no memory. Then a warning says so."""
        library = find_library()
        try:
            return None if library is None else Cublas(library, self.stream, self.using_device)
        except BackendError as error:
            _log.warning("tensorbackend: products go by the tiled kernel, without cuBLAS (%s)", error)
            return None

    @abstractmethod
    def _pool_allocate(self, nbytes: int) -> tuple[int, Any]:
        """New memory of the pool: its address, and what keeps it. `nbytes` is not 0, for which a pool gives null."""

    @abstractmethod
    def _trim_pool(self) -> None:
        """Give back what the pool holds and nobody uses."""

    def _release(self) -> None:
        """Give back the context if it was taken."""

    def allocate(self, nbytes: int) -> int:
        notes = getattr(self._notes, "here", None)
        if notes is not None:
            return self._allocate_noted(notes, nbytes)
        size = -(-max(nbytes, 1) // GRAIN) * GRAIN
        address, memory = self._take(size) or self._new(size)
        self._live[address] = size, memory
        return address

    def _take(self, size: int) -> tuple[int, Any] | None:
        """Memory that is kept, if there is some of a size."""
        with self._keeping.now:
            blocks = self._kept.get(size)
            if not blocks:
                return None
            found = blocks.pop()
            self._kept_bytes -= size
            if not blocks:
                self._kept.pop(size, None)
        return found

    def _new(self, size: int) -> tuple[int, Any]:
        """Memory of the pool; what is kept for other sizes goes back first where that is needed."""
        try:
            with self.using_device("allocate"):
                return self._pool_allocate(size)
        except BackendError:
            if not self._kept_bytes:
                raise
        self._give_back()
        with self.using_device("allocate"):
            return self._pool_allocate(size)

    def free(self, address: int) -> None:
        if self._closed or 0 <= address - self._scratch < MOST_NOTED:
            return  # closing gave it back, or it is scratch memory
        size, memory = self._live.pop(address)
        with self._keeping.now:
            if self._kept_bytes + size <= MOST_KEPT:
                self._kept_bytes += size
                blocks = self._kept.setdefault(size, [])
                blocks.append((address, memory))
                kept = self._kept.setdefault(size, blocks)
                if kept is not blocks:  # finalizers have taken the last of that size meanwhile, and freed others
                    kept += blocks
                return
        with self.using_device("free"):
            del memory

    def _give_back(self) -> None:
        """Give what is kept for the next tensor of its size back to the pool, while others free and allocate."""
        with self.using_device("free"):
            for size in list(self._kept):
                while self._take(size):
                    pass

    def trim(self) -> None:
        if not self._closed:
            self._give_back()
            self._trim_pool()

    def synchronise(self) -> None:
        with self.using_device("synchronise"):
            self._stream.synchronize()
        error = self.native.error() if self.native is not None else ""
        if error:
            raise device_fault("launch", RuntimeError(error))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.synchronise()
        with self.using_device("close"):
            self._live.clear()
        self._give_back()
        self._trim_pool()
        self._release()


class HostDriver(Driver):
    """A driver whose work is done when a call returns: its memory is the host's, its events are the host's clock."""

    stream = 0
    has_graphs = True
    _noted: list[tuple] | None = None

    def launch(
        self, function: Function, grid: tuple[int, ...], block: tuple[int, ...], shared: int, arguments: bytes
    ) -> None:
        if self._noted is None:
            super().launch(function, grid, block, shared, arguments)
        else:
            self._noted.append((function, grid, block, shared, arguments))

    def graph(self, run: Callable[[], None]) -> Callable[[], None]:
        """As `Driver.graph`: a list of launches."""
        noted = self._noted = []
        try:
            run()
        finally:
            self._noted = None

        def repeat() -> None:
            for launch in noted:
                self.launch(*launch)

        return repeat

    def pinned(self, nbytes: int) -> np.ndarray:
        """An ordinary array."""
        return np.empty(nbytes, np.uint8)

    def follow(self, stream: int) -> None:
        """There is one stream."""

    def trim(self) -> None:
        """Nothing is kept."""

    def synchronise(self) -> None:
        """Nothing is under way."""

    def record(self) -> int:
        """The host's clock, in nanoseconds."""
        return time.perf_counter_ns()

    def elapsed(self, start: int, end: int) -> float:
        """As `Driver.elapsed`."""
        return (end - start) * 1e-6


@contextlib.contextmanager
def in_context(own: int, driver: Any) -> Iterator[None]:
    """The context `own` is current inside, and afterwards the one from before, or none, as in a thread that has not
    called the runtime yet. `driver` is CuPy's module: its functions ask for a context, and CuPy makes none current
    where the device is the thread's already."""
    before = driver.ctxGetCurrent()
    if before == own:
        yield
        return
    driver.ctxSetCurrent(own)
    try:
        yield
    finally:
        driver.ctxSetCurrent(before)


Triple = tuple[int, int, int]
ExceptionTypes = tuple[type[Exception], ...]


def check_launch(
    facts: DeviceFacts, function: Function, grid: Sequence[int], block: Sequence[int], shared: int
) -> tuple[Triple, Triple]:
    """Grid and block as three numbers each. Raises `BackendError` saying which limit of the device they pass."""
    grid = _triple("grid", function, grid, MAX_GRID)
    block = _triple("block", function, block, MAX_BLOCK)
    threads = block[0] * block[1] * block[2]
    most = min(function.threads, facts.threads)
    if threads > most:
        raise BackendError(
            complain(
                f"{function.name}: too many threads a block",
                f"block {block} = {threads} threads",
                f"at most {most}" + (" (its launch bounds or registers)" if function.threads < facts.threads else ""),
            )
        )
    if not 0 <= shared <= facts.shared - function.shared:
        raise BackendError(
            complain(
                f"{function.name}: too much shared memory a block",
                f"{shared} bytes dynamic, {function.shared} static",
                f"at most {facts.shared} bytes together",
            )
        )
    return grid, block


def _triple(what: str, function: Function, sizes: Sequence[int], limits: Triple) -> Triple:
    padded = (*map(int, sizes), 1, 1, 1)[: max(3, len(sizes))]
    if len(padded) == 3 and all(1 <= size <= limit for size, limit in zip(padded, limits)):
        return padded
    raise BackendError(
        complain(f"{function.name}: a {what} that no device takes", str(tuple(sizes)), f"1 to {limits} in x, y, z")
    )


def named(source: str, name: str) -> str:
    """`source` under the name that messages and debuggers call it."""
    return f'#line 1 "{name}"\n{source}'


def compile_options() -> tuple[str, ...]:
    """For the compilers of CUDA: where our headers are, and what gives the same bits as on the CPU: no contraction into
    FMA, subnormal numbers as they are, quotients and roots rounded correctly."""
    exact = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
    return "-std=c++17", *exact, *(f"-I{kernel_dir() / folder}" for folder in ("cuda", "c"))


# What CUDA says when a kernel itself failed; the context is lost with it.
_FAULTS = (
    "ILLEGAL_ADDRESS", "MISALIGNED", "LAUNCH_FAILED", "ILLEGAL_INSTRUCTION", "HARDWARE_STACK", "ASSERT",
    "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_TIMEOUT",
)  # fmt: skip
_FAULT_WORDS = (
    "illegal memory access", "misaligned address", "unspecified launch failure", "illegal instruction",
    "hardware stack error", "shared address space", "invalid program counter", "launch timed out",
)  # fmt: skip


def device_fault(what: str, error: Exception) -> BackendError:
    """CUDA's `error` as ours: a `KernelFault` when a kernel failed, which is noticed at any later call."""
    text = str(error)
    if not any(word in text.upper() for word in _FAULTS) and not any(word in text.lower() for word in _FAULT_WORDS):
        return BackendError(complain(f"{what}: CUDA refuses", text))
    hint = "the same program with gen_backend('gpu:emulator'), which names kernel, line and thread (docs/debugging.md)"
    return KernelFault(
        complain(f"a kernel failed, here or before ({what}); the device takes no more calls", text, "", hint)
    )


def open_driver(name: str | None = None, device_id: int = 0, **options: Any) -> Driver:
    """The driver `name`: 'cupy', 'pycuda' or 'emulator' (None: a device, by CuPy or else by PyCUDA).

    `options` go to the driver: the emulator takes `order`, `seed` and others. Raises `BackendError` saying which of
    package, driver and device is missing, and what to install; `ValueError` for an unknown name.
    """
    if name is None:
        return _open_device(device_id, options)
    if name not in DRIVERS:
        raise ValueError(complain("no such driver", repr(name), ", ".join(DRIVERS), nearest(name, DRIVERS)))
    if name in DEVICE_DRIVERS and importlib.util.find_spec(name) is None:
        raise BackendError(complain(f"the package {name} is not installed", hint=_pip(DEVICE_DRIVERS[name])))
    module, attribute = DRIVERS[name]
    return getattr(importlib.import_module(module), attribute)(device_id, **options)


def _open_device(device_id: int, options: dict[str, Any]) -> Driver:
    """A device by the first package that is installed."""
    for name in DEVICE_DRIVERS:
        if importlib.util.find_spec(name) is not None:
            return open_driver(name, device_id, **options)
    raise BackendError(
        complain(
            "no package that talks to a CUDA device is installed",
            "neither cupy nor pycuda can be imported",
            "one of them, the NVIDIA driver, and a device",
            f"{_pip('cuda')}, or {_pip('pycuda')}; without a device: gen_backend('gpu:emulator')",
        )
    )


def _pip(extra: str) -> str:
    return f"pip install 'tensorbackend[{extra}]'"


def require_device(package: str, count: Callable[[], int], device_id: int, cuda_errors: ExceptionTypes) -> None:
    """Raise `BackendError` when the installed `package` reaches no device of that number, saying which part is missing.

    `count` asks it for the number of devices; `cuda_errors` is what it raises without the NVIDIA driver.
    """
    try:
        devices = count()
    except cuda_errors as error:
        raise _no_device(package, "the NVIDIA driver is missing or reports no device", error) from error
    if not 0 <= device_id < devices:
        raise _no_device(package, f"there is no device {device_id}", IndexError(f"{devices} devices"))


def _no_device(package: str, what: str, error: Exception) -> BackendError:
    return BackendError(
        complain(
            f"{package} is installed, but {what}",
            f"{type(error).__name__}: {error}",
            "an NVIDIA driver (nvidia-smi lists the device) and a device of that number",
            "another device_id; without a device: gen_backend('gpu:emulator')",
        )
    )
