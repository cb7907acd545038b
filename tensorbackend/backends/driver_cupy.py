# SPDX-License-Identifier: Apache-2.0
"""The driver of a CUDA device through CuPy: its memory pool, NVRTC and stream.

Modules are compiled and kept here (`cubins.py`): `cupy.RawModule` takes subnormal numbers for zero (it adds -ftz=true).
The device stays the one given, whatever is current in the calling thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence

import cupy
import numpy as np

from tensorbackend.backends import driver as base
from tensorbackend.backends.cubins import cubin_of
from tensorbackend.backends.cuda_launch import NativeLaunches, native_launches
from tensorbackend.backends.driver import DeviceDriver, Function, Triple
from tensorbackend.errors import BackendError, complain

__all__ = ["CupyDriver"]

# CUfunction_attribute: threads of a block, static shared memory, registers, local memory; dynamic shared memory
FACTS, MOST_SHARED = (0, 1, 4, 3), 8


class _Extra(ctypes.Structure):
    """The argument `extra` of cuLaunchKernel: the kernel's arguments as one piece of memory."""

    _fields_ = (
        ("pointer", ctypes.c_size_t), ("arguments", ctypes.c_char_p),
        ("size", ctypes.c_size_t), ("nbytes", ctypes.POINTER(ctypes.c_size_t)), ("end", ctypes.c_size_t),
    )  # fmt: skip


class CupyModule(base.Module):
    """A `cupy.cuda.function.Module` of one device."""

    def __init__(self, cubin: bytes, driver: CupyDriver) -> None:
        self._driver = driver
        self._module = cupy.cuda.function.Module()
        self._module.load(cubin)

    def function(self, name: str) -> Function:
        with self._driver.using_device(name):
            kernel = self._module.get_function(name)
            facts = [cupy.cuda.driver.funcGetAttribute(fact, kernel.ptr) for fact in FACTS]
        return Function(name, kernel, *facts)


class CupyDriver(DeviceDriver):
    """Device `device_id` by CuPy. Raises `BackendError` saying what is missing: the NVIDIA driver, or that device."""

    name = "cupy"
    has_graphs = True

    def __init__(self, device_id: int = 0) -> None:
        super().__init__()
        runtime = cupy.cuda.runtime
        base.require_device("cupy", runtime.getDeviceCount, device_id, (runtime.CUDARuntimeError, ImportError))
        self._device = cupy.cuda.Device(device_id)
        with self._device:
            self._stream, facts = cupy.cuda.Stream(non_blocking=True), runtime.getDeviceProperties(device_id)
            self._context = cupy.cuda.driver.ctxGetCurrent()
        self.stream = self._stream.ptr
        self._pool = cupy.cuda.MemoryPool()
        self.facts = base.DeviceFacts(
            facts["name"].decode(), facts["multiProcessorCount"], facts["maxThreadsPerBlock"],
            facts["sharedMemPerBlockOptin"], (facts["major"], facts["minor"]), facts["totalGlobalMem"],
        )  # fmt: skip

    @contextlib.contextmanager
    def using_device(self, what: str) -> Iterator[None]:
        """Context, device and stream are current inside, and CUDA's errors become ours; `what` was being done."""
        self.check_noting()
        try:
            with base.in_context(self._context, cupy.cuda.driver), self._device, self._stream:
                yield
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise BackendError(complain(f"{what}: the device's memory is exhausted", str(error))) from error
        except (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError) as error:
            raise base.device_fault(what, error) from error

    @functools.cached_property
    def native(self) -> NativeLaunches | None:
        """As `Driver.native`."""
        with self.using_device("native"):
            return native_launches(self.stream)

    def _pool_allocate(self, nbytes: int) -> tuple[int, cupy.cuda.MemoryPointer]:
        memory = self._pool.malloc(nbytes)
        return memory.ptr, memory

    def pinned(self, nbytes: int) -> np.ndarray:
        with self.using_device("pinned"):
            return np.frombuffer(cupy.cuda.alloc_pinned_memory(max(nbytes, 1)), np.uint8, nbytes)

    def upload(self, address: int, host: np.ndarray, wait: bool = True) -> None:
        self._transfer(address, host.ctypes.data, host.nbytes, cupy.cuda.runtime.memcpyHostToDevice, wait)

    def download(self, host: np.ndarray, address: int, wait: bool = True) -> None:
        self._transfer(host.ctypes.data, address, host.nbytes, cupy.cuda.runtime.memcpyDeviceToHost, wait)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        self._transfer(to, source, nbytes, cupy.cuda.runtime.memcpyDeviceToDevice, False)

    def _transfer(self, to: int, source: int, nbytes: int, kind: int, wait: bool) -> None:
        with self.using_device("copy"):
            cupy.cuda.runtime.memcpyAsync(to, source, nbytes, kind, self.stream)
        if wait:
            self.synchronise()

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        with self.using_device("fill"):
            cupy.cuda.runtime.memsetAsync(address, byte, nbytes, self.stream)

    def compile(self, source: str, name: str = "kernels.cu", options: Sequence[str] = ()) -> CupyModule:
        """As `Driver.compile`, by NVRTC."""
        flags = (*base.compile_options(), *options)
        cubin = cubin_of(base.named(source, name), name, flags, self.facts.capability, cupy.cuda.nvrtc)
        with self.using_device(name):
            return CupyModule(cubin, self)

    def _launch(self, function: Function, grid: Triple, block: Triple, shared: int, arguments: bytes) -> None:
        extra = _Extra(1, arguments, 2, ctypes.pointer(ctypes.c_size_t(len(arguments))), 0)
        place, handle = ctypes.addressof(extra) if arguments else 0, function.handle.ptr
        with self.using_device(function.name):
            if shared + function.shared > base.PLAIN_SHARED:
                cupy.cuda.driver.funcSetAttribute(handle, MOST_SHARED, shared)
            cupy.cuda.driver.launchKernel(handle, *grid, *block, shared, self.stream, 0, place)

    def graph(self, run: Callable[[], None]) -> Callable[[], None]:
        with self.using_device("graph"):
            self._stream.begin_capture()
            try:
                run()
            finally:
                graph = self._stream.end_capture()
        return functools.partial(self._repeat, graph)

    def _repeat(self, graph: cupy.cuda.Graph) -> None:
        with self.using_device("graph"):
            graph.launch(self._stream)

    def follow(self, stream: int) -> None:
        with self.using_device("follow"):
            cupy.cuda.ExternalStream(stream).synchronize()

    def record(self) -> cupy.cuda.Event:
        with self.using_device("record"):
            event = cupy.cuda.Event()
            event.record(self._stream)
        return event

    def elapsed(self, start: cupy.cuda.Event, end: cupy.cuda.Event) -> float:
        with self.using_device("elapsed"):
            end.synchronize()
            return cupy.cuda.get_elapsed_time(start, end)

    def memory(self) -> tuple[int, int]:
        with self.using_device("memory"):
            free, total = cupy.cuda.runtime.memGetInfo()
        return free + self._pool.free_bytes() + self._kept_bytes, total

    def _trim_pool(self) -> None:
        with self.using_device("free"):
            self._pool.free_all_blocks(stream=self._stream)
