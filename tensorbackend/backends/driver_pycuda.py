# SPDX-License-Identifier: Apache-2.0
"""The driver of a CUDA device through PyCUDA: its memory pool, nvcc, and one stream.

PyCUDA compiles with nvcc and caches what it compiled on disk. The context is the device's primary one, so that other
libraries in the process share it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pycuda.driver as cuda
import pycuda.tools
from pycuda.compiler import SourceModule

from tensorbackend.backends import driver as base
from tensorbackend.backends.driver import DeviceDriver, Function, Triple
from tensorbackend.errors import BackendError, CompileError, complain

__all__ = ["PycudaDriver"]

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING, for which PyCUDA has no name


class PycudaModule(base.Module):
    """A `pycuda.driver.Module` of one context."""

    def __init__(self, module: cuda.Module, driver: PycudaDriver) -> None:
        self._module = module
        self._driver = driver

    def function(self, name: str) -> Function:
        with self._driver.using_device(name):
            kernel = self._module.get_function(name)
            threads, shared = kernel.max_threads_per_block, kernel.shared_size_bytes
            # The handle holds the module too, which must stay loaded.
            return Function(name, (kernel, self), threads, shared, kernel.num_regs, kernel.local_size_bytes)


class PycudaDriver(DeviceDriver):
    """Device `device_id` by PyCUDA. Raises `BackendError` saying what is missing: the NVIDIA driver, or that device."""

    name = "pycuda"

    def __init__(self, device_id: int = 0) -> None:
        super().__init__()
        base.require_device("pycuda", _count, device_id, (cuda.Error,))
        device = cuda.Device(device_id)
        self._context = device.retain_primary_context()
        with self.using_device("open"):
            self._stream = cuda.Stream(NON_BLOCKING)
            self._pool = pycuda.tools.DeviceMemoryPool()
            self._pinned = pycuda.tools.PageLockedMemoryPool()
        self.stream = self._stream.handle
        self.facts = base.DeviceFacts(
            device.name(),
            device.multiprocessor_count,
            device.max_threads_per_block,
            getattr(device, "max_shared_memory_per_block_optin", device.max_shared_memory_per_block),
            device.compute_capability(),
            device.total_memory(),
        )

    @contextlib.contextmanager
    def using_device(self, what: str) -> Iterator[None]:
        """The context is current inside, and CUDA's errors become ours; `what` was being done."""
        self._context.push()
        try:
            yield
        except cuda.MemoryError as error:
            raise BackendError(complain(f"{what}: the device's memory is exhausted", str(error))) from error
        except cuda.Error as error:
            raise base.device_fault(what, error) from error
        finally:
            cuda.Context.pop()

    def _pool_allocate(self, nbytes: int) -> tuple[int, cuda.PooledDeviceAllocation]:
        memory = self._pool.allocate(nbytes)
        return int(memory), memory

    def pinned(self, nbytes: int) -> np.ndarray:
        with self.using_device("pinned"):
            return self._pinned.allocate((nbytes,), np.dtype(np.uint8))

    def upload(self, address: int, host: np.ndarray, wait: bool = True) -> None:
        self._transfer(cuda.memcpy_htod_async, address, host, wait)

    def download(self, host: np.ndarray, address: int, wait: bool = True) -> None:
        self._transfer(cuda.memcpy_dtoh_async, host, address, wait)

    def _transfer(self, copy: Callable[..., None], to: int | np.ndarray, source: int | np.ndarray, wait: bool) -> None:
        with self.using_device("copy"):
            copy(to, source, self._stream)
            if wait:
                self._stream.synchronize()

    def copy(self, to: int, source: int, nbytes: int) -> None:
        with self.using_device("copy"):
            cuda.memcpy_dtod_async(to, source, nbytes, self._stream)

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        with self.using_device("fill"):
            cuda.memset_d8_async(address, byte, nbytes, self._stream)

    def compile(self, source: str, name: str = "kernels.cu", options: Sequence[str] = ()) -> PycudaModule:
        """As `Driver.compile`, by nvcc."""
        text, flags = base.named(source, name), [*base.compile_options(), *options]
        with self.using_device(name):
            try:
                return PycudaModule(SourceModule(text, options=flags, no_extern_c=True), self)
            except cuda.CompileError as error:
                raise CompileError(complain(f"{name} does not compile for the device", str(error))) from error

    def _launch(self, function: Function, grid: Triple, block: Triple, shared: int, arguments: bytes) -> None:
        kernel, _ = function.handle
        with self.using_device(function.name):
            if shared + function.shared > base.PLAIN_SHARED:
                kernel.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
            kernel.prepare([f"{len(arguments)}s"] if arguments else [])
            packed = (arguments,) if arguments else ()
            kernel.prepared_async_call(grid, block, self._stream, *packed, shared_size=shared)

    def follow(self, stream: int) -> None:
        """As `Driver.follow`, by waiting for all streams: PyCUDA has no name for another's."""
        with self.using_device("follow"):
            cuda.Context.synchronize()

    def record(self) -> cuda.Event:
        with self.using_device("record"):
            return cuda.Event().record(self._stream)

    def elapsed(self, start: cuda.Event, end: cuda.Event) -> float:
        with self.using_device("elapsed"):
            end.synchronize()
            return start.time_till(end)

    def memory(self) -> tuple[int, int]:
        with self.using_device("memory"):
            free, total = cuda.mem_get_info()
            return free + self._pool.managed_bytes - self._pool.active_bytes + self._kept_bytes, total

    def _trim_pool(self) -> None:
        with self.using_device("free"):
            self._pool.free_held()

    def _release(self) -> None:
        with self.using_device("close"):
            self._pool.stop_holding()
            self._pinned.stop_holding()
        self._context.detach()


def _count() -> int:
    cuda.init()
    return cuda.Device.count()
