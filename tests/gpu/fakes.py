# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for CuPy and PyCUDA over the emulator: what our drivers call, with the packages' signatures.

They run the drivers' code without a device, and check that device and context are current at each call. What only a
device can tell, they do not.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tensorbackend.backends import toolchain
from tensorbackend.backends.driver import Driver, Function, open_driver
from tensorbackend.errors import CompileError as OurCompileError
from tensorbackend.errors import KernelFault

MEMORY = 1 << 30
CONTEXT = 4711
ILLEGAL = "cudaErrorIllegalAddress: an illegal memory access was encountered"

Making = Callable[[Callable[[], None]], Callable[[], None]]


def disturbed(graph: Making, other: threading.Thread) -> Making:
    """A driver's `graph` in the middle of which another thread starts, and has 0.2 s."""

    def with_another(run: Callable[[], None]) -> Callable[[], None]:
        def both() -> None:
            run()
            other.start()
            other.join(0.2)

        return graph(both)

    return with_another


class _World:
    """One emulator, and what is current."""

    def __init__(self) -> None:
        self.emulator: Driver = open_driver("emulator")
        self.current: list[Any] = []
        self.capturing: list | None = None
        self.trimmed = 0  # how often the pool gave back what it holds

    def check(self) -> None:
        assert self.current, "no device or context is current"

    def compile(self, source: str, options: Any) -> Any:
        self.check()
        assert {"--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"} <= set(options)
        return self.emulator.compile(source, options=[o for o in options if o.startswith("-D")])

    @contextlib.contextmanager
    def at_hand(self) -> Iterator[None]:
        """For a compiler, which needs no device."""
        self.current.append(self)
        yield
        self.current.pop()

    def do(self, work: Any) -> None:
        """Do something in the stream, or note it for a graph."""
        self.check()
        if self.capturing is None:
            work()
        else:
            self.capturing.append(work)

    def launch(self, function: Function, grid: Any, block: Any, shared: int, arguments: bytes, error: type) -> None:
        def work() -> None:
            try:
                self.emulator.launch(function, grid, block, shared, arguments)
            except KernelFault:
                raise error(ILLEGAL) from None

        self.do(work)


class _Memory:
    """A piece of a pool, given back when nothing refers to it."""

    def __init__(self, world: _World, size: int, error: type) -> None:
        world.check()
        assert size > 0, "a pool gives null for nothing"
        if size > MEMORY:
            raise error(f"out of memory allocating {size} bytes")
        self._emulator, self.ptr = world.emulator, world.emulator.allocate(size)

    def __int__(self) -> int:
        return self.ptr

    def __del__(self) -> None:
        if hasattr(self, "ptr"):
            self._emulator.free(self.ptr)


def _move(world: _World, to: int, source: int, size: int) -> None:
    world.do(lambda: ctypes.memmove(to, source, size))


def cublas(folder: Path) -> ctypes.CDLL:
    """The stand-in for cuBLAS, compiled in a folder."""
    path = folder / "libcublas.so"
    source = Path(__file__).parent / "cublas.c"
    command = toolchain.require_compiler().command
    subprocess.run([*command, "-O2", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


# CuPy


def cupy() -> ModuleType:
    """A cupy with one device."""
    world = _World()

    class CUDARuntimeError(RuntimeError):
        pass

    class OutOfMemoryError(MemoryError):
        pass

    class CUDADriverError(RuntimeError):
        pass

    class NVRTCError(RuntimeError):
        pass

    class Current:
        def __enter__(self) -> Any:
            world.current.append(self)
            return self

        def __exit__(self, *error: object) -> None:
            assert world.current.pop() is self

    class Device(Current):
        def __init__(self, device: int) -> None:
            assert device == 0

    class Graph:
        def __init__(self, works: list) -> None:
            self.works = works

        def launch(self, stream: Any = None) -> None:
            world.check()
            for work in self.works:
                work()

    class Stream(Current):
        def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False,
                     priority: Any = None) -> None:  # fmt: skip
            world.check()
            context.here = CONTEXT  # as whatever the runtime does
            self.ptr = 1234

        def synchronize(self) -> None:
            world.check()
            assert world.capturing is None, "cudaErrorStreamCaptureUnsupported"
            waited.append(self.ptr)

        def begin_capture(self, mode: Any = None) -> None:
            world.check()
            world.capturing = []

        def end_capture(self) -> Graph:
            works, world.capturing = world.capturing, None
            return Graph(works)

    class ExternalStream:
        """Another library's stream; `waited` has those that were waited for."""

        def __init__(self, ptr: int, device_id: int = -1) -> None:
            self.ptr = ptr

        def synchronize(self) -> None:
            world.check()
            waited.append(self.ptr)

    class Event:
        def record(self, stream: Any = None) -> None:
            world.check()
            self.time = time.perf_counter()

        def synchronize(self) -> None:
            world.check()

    class MemoryPool:
        def malloc(self, size: int) -> _Memory:
            return _Memory(world, size, OutOfMemoryError)

        def free_bytes(self) -> int:
            return 0

        def free_all_blocks(self, stream: Any = None) -> None:
            world.check()
            world.trimmed += 1

    class Kernel:
        """A kernel by its address, as the driver's functions take it."""

        def __init__(self, function: Function) -> None:
            self.ptr = id(self)
            kernels[self.ptr] = function

    class Module:
        def load(self, cubin: bytes) -> None:
            source, options = json.loads(cubin)
            self._module = world.compile(source, options)

        def get_function(self, name: str) -> Kernel:
            world.check()
            return Kernel(self._module.function(name))

    context = threading.local()  # `here`: the thread's, which functions of the driver take
    waited: list[int] = []
    kernels: dict[int, Function] = {}
    most_shared: dict[int, int] = {}
    programs: dict[int, Any] = {}

    def createProgram(src: str, name: str, headers: tuple, include_names: tuple) -> int:
        programs[len(programs)] = src
        return len(programs) - 1

    def compileProgram(prog: int, options: tuple) -> None:
        assert options[0] == "-arch=sm_90"
        with world.at_hand():
            try:
                world.compile(programs[prog], options)
            except OurCompileError as error:
                programs[prog] = str(error)
                raise NVRTCError("NVRTC_ERROR_COMPILATION (6)") from None
        programs[prog] = json.dumps([programs[prog], options]).encode()

    def ctxGetCurrent() -> int:
        return getattr(context, "here", 0)

    def ctxSetCurrent(ctx: int) -> None:
        context.here = ctx

    def check_context() -> None:
        if ctxGetCurrent() != CONTEXT:
            raise CUDADriverError("CUDA_ERROR_INVALID_CONTEXT: invalid device context")

    def funcGetAttribute(attribute: int, f: int) -> int:
        check_context()
        return kernels[f].threads if attribute == 0 else 0

    def funcSetAttribute(f: int, attribute: int, value: int) -> None:
        check_context()
        assert attribute == 8
        most_shared[f] = value

    def launchKernel(f: int, grid_x: int, grid_y: int, grid_z: int, x: int, y: int, z: int, shared: int, stream: int,
                     kernel_params: int, extra: int) -> None:  # fmt: skip
        check_context()
        assert stream == 1234 and kernel_params == 0
        assert shared <= most_shared.get(f, 48 << 10)
        pointer, arguments, size, nbytes, end = (ctypes.c_size_t * 5).from_address(extra)
        assert (pointer, size, end) == (1, 2, 0)
        packed = ctypes.string_at(arguments, ctypes.c_size_t.from_address(nbytes).value)
        world.launch(kernels[f], (grid_x, grid_y, grid_z), (x, y, z), shared, packed, CUDADriverError)

    # The NVIDIA driver's library, as C calls it

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3)
    def cuLaunchKernel(f: int, *arguments: Any) -> int:
        *sizes, stream, kernel_params, extra = arguments
        try:
            launchKernel(f, *sizes, stream, kernel_params or 0, extra)
        except CUDADriverError:
            return 700
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
    def cuCtxGetCurrent(found: Any) -> int:
        found[0] = CONTEXT if world.current else None
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def cuCtxSetCurrent(ctx: int | None) -> int:
        assert ctx in (None, CONTEXT)
        world.current[:] = [world] if ctx else []
        ctxSetCurrent(ctx or 0)
        return 0

    def cuGetErrorName(status: int, name: Any) -> None:
        name._obj.value = {700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}[status]

    def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
        assert stream == 1234 and kind in (1, 2, 3)
        _move(world, dst, src, size)

    def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
        assert stream == 1234
        world.do(lambda: world.emulator.fill(ptr, value, size))

    def getDeviceProperties(device: int) -> dict:
        return {"name": b"a fake", "multiProcessorCount": 4, "maxThreadsPerBlock": 1024, "major": 9, "minor": 0,
                "sharedMemPerBlockOptin": 227 << 10, "totalGlobalMem": 2 * MEMORY}  # fmt: skip

    runtime = SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError, getDeviceCount=lambda: 1, getDeviceProperties=getDeviceProperties,
        memcpyAsync=memcpyAsync, memsetAsync=memsetAsync, memGetInfo=lambda: (MEMORY, 2 * MEMORY),
        memcpyHostToDevice=1, memcpyDeviceToHost=2, memcpyDeviceToDevice=3,
    )  # fmt: skip
    made = ModuleType("cupy")
    made.waited, made.world = waited, world
    made.library = SimpleNamespace(cuLaunchKernel=cuLaunchKernel, cuCtxGetCurrent=cuCtxGetCurrent,
                                   cuCtxSetCurrent=cuCtxSetCurrent, cuGetErrorName=cuGetErrorName)  # fmt: skip
    made.cuda = SimpleNamespace(
        runtime=runtime, memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError), Device=Device, Stream=Stream,
        ExternalStream=ExternalStream,
        driver=SimpleNamespace(CUDADriverError=CUDADriverError, launchKernel=launchKernel,
                               funcGetAttribute=funcGetAttribute, funcSetAttribute=funcSetAttribute,
                               ctxGetCurrent=ctxGetCurrent, ctxSetCurrent=ctxSetCurrent),
        nvrtc=SimpleNamespace(NVRTCError=NVRTCError, createProgram=createProgram, compileProgram=compileProgram,
                              getCUBIN=programs.get, getProgramLog=programs.get, destroyProgram=lambda prog: None,
                              getSupportedArchs=lambda: (75, 80, 90, 100), getVersion=lambda: (13, 0)),
        function=SimpleNamespace(Module=Module), Event=Event, MemoryPool=MemoryPool,
        alloc_pinned_memory=bytearray, get_elapsed_time=lambda start, end: (end.time - start.time) * 1e3,
    )  # fmt: skip
    return made


# PyCUDA


def pycuda() -> dict[str, ModuleType]:
    """The modules of a pycuda with one device, by name."""
    world = _World()

    class Error(Exception):
        pass

    class CudaMemoryError(Error):
        pass

    class CompileError(Exception):
        pass

    class Context:
        def push(self) -> None:
            world.current.append(self)

        @staticmethod
        def pop() -> None:
            world.current.pop()

        @staticmethod
        def synchronize() -> None:
            world.check()

        def detach(self) -> None:
            assert not world.current

    class Device:
        multiprocessor_count, max_threads_per_block = 4, 1024
        max_shared_memory_per_block, max_shared_memory_per_block_optin = 48 << 10, 227 << 10

        def __init__(self, ordinal: int) -> None:
            assert ordinal == 0

        @staticmethod
        def count() -> int:
            return 1

        def retain_primary_context(self) -> Context:
            return Context()

        def name(self) -> str:
            return "a fake"

        def compute_capability(self) -> tuple[int, int]:
            return 9, 0

        def total_memory(self) -> int:
            return 2 * MEMORY

    class Stream:
        def __init__(self, flags: int = 0) -> None:
            world.check()
            self.handle = 1234

        def synchronize(self) -> None:
            world.check()

    class Event:
        def record(self, stream: Any = None) -> Event:
            world.check()
            self.time = time.perf_counter()
            return self

        def synchronize(self) -> Event:
            return self

        def time_till(self, other: Event) -> float:
            return (other.time - self.time) * 1e3

    class DeviceMemoryPool:
        managed_bytes = active_bytes = 0

        def allocate(self, size: int) -> _Memory:
            return _Memory(world, size, CudaMemoryError)

        def free_held(self) -> None:
            world.check()
            world.trimmed += 1

        def stop_holding(self) -> None:
            world.check()

    class PageLockedMemoryPool:
        def allocate(self, shape: tuple, dtype: np.dtype, order: str = "C") -> np.ndarray:
            world.check()
            return np.empty(shape, dtype)

        def stop_holding(self) -> None:
            world.check()

    class Kernel:
        num_regs = local_size_bytes = shared_size_bytes = 0

        def __init__(self, function: Function) -> None:
            self._function, self.max_threads_per_block, self._most = function, function.threads, 48 << 10

        def set_attribute(self, attribute: str, value: int) -> None:
            assert attribute == "MAX_DYNAMIC_SHARED_SIZE_BYTES"
            self._most = value

        def prepare(self, arg_types: list[str]) -> None:
            self._format = arg_types

        def prepared_async_call(self, grid: tuple, block: tuple, stream: Stream, *args: bytes,
                                shared_size: int = 0) -> None:  # fmt: skip
            assert shared_size <= self._most
            assert [f"{len(a)}s" for a in args] == self._format
            world.launch(self._function, grid, block, shared_size, b"".join(args), Error)

    class SourceModule:
        def __init__(self, source: str, nvcc: str = "nvcc", options: Any = None, keep: bool = False,
                     no_extern_c: bool = False) -> None:  # fmt: skip
            assert no_extern_c
            try:
                self._module = world.compile(source, options)
            except OurCompileError as error:
                raise CompileError(str(error)) from None

        def get_function(self, name: str) -> Kernel:
            world.check()
            return Kernel(self._module.function(name))

    def memcpy_htod_async(dest: int, src: np.ndarray, stream: Stream | None = None) -> None:
        _move(world, dest, src.ctypes.data, src.nbytes)

    def memcpy_dtoh_async(dest: np.ndarray, src: int, stream: Stream | None = None) -> None:
        _move(world, dest.ctypes.data, src, dest.nbytes)

    def memcpy_dtod_async(dest: int, src: int, size: int, stream: Stream | None = None) -> None:
        _move(world, dest, src, size)

    def memset_d8_async(dest: int, data: int, size: int, stream: Stream | None = None) -> None:
        world.do(lambda: world.emulator.fill(dest, data, size))

    attributes = SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES="MAX_DYNAMIC_SHARED_SIZE_BYTES")
    driver, tools, compiler = (ModuleType(f"pycuda.{name}") for name in ("driver", "tools", "compiler"))
    vars(driver).update(
        init=lambda: None, Error=Error, MemoryError=CudaMemoryError, CompileError=CompileError, Context=Context,
        Device=Device, Stream=Stream, Event=Event, function_attribute=attributes,
        memcpy_htod_async=memcpy_htod_async, memcpy_dtoh_async=memcpy_dtoh_async,
        memcpy_dtod_async=memcpy_dtod_async, memset_d8_async=memset_d8_async,
        mem_get_info=lambda: (MEMORY, 2 * MEMORY),
    )  # fmt: skip
    tools.DeviceMemoryPool, tools.PageLockedMemoryPool = DeviceMemoryPool, PageLockedMemoryPool
    compiler.SourceModule = SourceModule
    package = ModuleType("pycuda")
    package.driver, package.tools, package.compiler = driver, tools, compiler
    driver.world = world
    return {"pycuda": package, **{f"pycuda.{m.__name__.partition('.')[2]}": m for m in (driver, tools, compiler)}}
