# SPDX-License-Identifier: Apache-2.0
"""The GPU backend: memory of a CUDA device, and plans run as printed kernels. The emulator is one of its drivers.

Everything that a user can see is decided in `base.py`; here are the hooks: memory and copies through the driver,
launches of printed kernels (`codegen/cuda.py`) and of the primitives (`cuda_primitives.py`), marks.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorbackend import dtypes, settings
from tensorbackend.backends import cuda_primitives, cuda_regions, disk_cache, memory, native, recipes, watch
from tensorbackend.backends.base import Backend
from tensorbackend.backends.cuda_launch import NotedLaunch, Place, stand_ins
from tensorbackend.backends.cuda_primitives import Runner
from tensorbackend.backends.driver import Driver, Function, open_driver
from tensorbackend.backends.interpreter import Interpreter
from tensorbackend.backends.launcher import NativeStatements
from tensorbackend.backends.plans import Action, CompiledPlan, number_format, placed, references
from tensorbackend.backends.user_launch import DeviceTarget, Target
from tensorbackend.codegen.cuda import print_kernel
from tensorbackend.codegen.geometry import (
    Geometry,
    argument_words,
    choose,
    join_blocks,
    pack_width,
    packed,
    wants_split,
    wants_stages,
)
from tensorbackend.codegen.nest import COLUMNS, nest
from tensorbackend.codegen.render import Printed
from tensorbackend.errors import BackendError, ShapeError, complain
from tensorbackend.graph import indexing
from tensorbackend.graph.loops import in_memory_order
from tensorbackend.graph.plan import Kernel, Plan, Primitive
from tensorbackend.graph.stages import in_stages
from tensorbackend.graph.tensor import Storage, Tensor, check_min_dims

__all__ = ["GpuBackend", "GPUTensor"]

PRIMITIVES = {**cuda_primitives.PRIMITIVES, **cuda_regions.PRIMITIVES}
INCLUDE = '#include "kernel.cuh"\n'

_CUDA_MEMORY = (2, 13)
"""DLPack's numbers of a CUDA device's memory: its own, and managed."""
MOST_KEPT = 8 << 20
"""Bytes of temporaries and scratch up to which a plan keeps them, so that native code can repeat it."""
MOST_PINNED = 64 << 20
"""Bytes of a transfer up to which it goes by pinned memory, which other programs then cannot have."""

_log = logging.getLogger("tensorbackend")


class GPUTensor(Tensor):
    """A tensor in a device's memory. Reading (`get`, `asnumpyarray`, `__array__`) copies to the host."""

    def __init__(
        self,
        backend: Any,
        shape: Any = None,
        dtype: Any = np.float32,
        name: str | None = None,
        persist_values: bool = True,
        allocator: Callable[[int], Any] | None = None,
        base: Tensor | None = None,
        gpudata: Any = None,
        rounding: int | None = None,
        min_dims: int | None = None,
    ) -> None:
        """A tensor in fresh memory of the device, in that of `allocator` (see `empty`), or at `gpudata`: an address, or
        memory of which `int()` makes one and which is kept alive. `rounding` None is the backend's. Raises as `empty`.
        """
        given = allocator if gpudata is None else lambda nbytes: gpudata
        super().__init__(backend, shape, dtype, name, persist_values, min_dims, given)
        self.base = base
        if rounding is not None:
            self.rounding = rounding

    @property
    def __cuda_array_interface__(self) -> dict:
        s, driver = self.structure, self.backend.driver
        if driver.facts.emulated or s.dtype == dtypes.BFLOAT16:
            what = "the emulator's memory is the host's" if driver.facts.emulated else "it cannot name bfloat16"
            raise AttributeError(complain("__cuda_array_interface__", what, "", "t.get()"))
        self.backend._host_access()
        return {
            "shape": s.shape,
            "strides": None if self.is_contiguous else tuple(n * s.dtype.itemsize for n in s.strides),
            "typestr": s.dtype.str,
            "data": (self.address, not self.storage.writable),
            "stream": driver.stream or 1,
            "version": 3,
        }

    def __dlpack__(self, **keywords: Any) -> Any:
        """A capsule of the device's memory through CuPy; on the emulator, of a copy on the host.

        Raises `BufferError` for bfloat16, without CuPy, and on the emulator for `copy=False`.
        """
        if self.backend.driver.facts.emulated and keywords.get("copy") is False:
            raise BufferError(complain("DLPack: the emulator's memory is copied", "copy=False", "copy=None"))
        return self._exporter().__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self.backend.driver.facts.emulated else (2, self.backend.device_id)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            given = f"{self.structure.dtype} on the device to {np.dtype(dtype or self.structure.dtype)} on the host"
            raise ValueError(complain("asarray: a copy is needed", given, "copy=None"))
        return super().__array__(dtype)

    def _exporter(self) -> Any:
        if self.structure.dtype == dtypes.BFLOAT16:
            raise BufferError(complain("DLPack: bfloat16 is not exported", "", "", "t.share(t.shape, 'uint16')"))
        if self.backend.driver.facts.emulated:
            return self.get()
        try:
            return importlib.import_module("cupy").asarray(self)
        except ImportError:
            raise BufferError(complain("DLPack of device memory goes through CuPy", "", "", "t.get()")) from None


class GpuBackend(NativeStatements, Backend):
    """Runs on a CUDA device, or on the emulator of one.

    `driver` is 'cupy', 'pycuda' or 'emulator' (None: a device, by CuPy or else by PyCUDA), or an open driver; with
    `gen_backend`, 'gpu:emulator' says the same. `device_id` chooses the device. Raises `BackendError` saying which of
    package, driver and device is missing.
    """

    backend_name = "gpu"
    device_type = 1
    tensor_cls = GPUTensor
    default_dtypes = tuple(dtypes.FLOATS)
    jit = True
    _ready = "gpu"

    def __init__(
        self,
        rng_seed: int | None = None,
        default_dtype: Any = np.float32,
        stochastic_round: bool | int | None = False,
        deterministic: bool | None = None,
        device_id: int | None = 0,
        bench: bool = False,
        scratch_size: int = 0,
        hist_bins: int = 64,
        hist_offset: int = -48,
        compat_mode: str | None = None,
        enable_winograd: bool | int = True,
        num_devices: int | None = None,
        min_dims: int = 2,
        driver: str | Driver | None = None,
    ) -> None:
        super().__init__(
            rng_seed, default_dtype, hist_bins, hist_offset, compat_mode, num_devices, stochastic_round, device_id,
            deterministic, min_dims, bench, enable_winograd, scratch_size,
        )  # fmt: skip
        self.driver = driver if isinstance(driver, Driver) else open_driver(driver, self.device_id)
        self._take_lock(self.driver.turn)
        self.choices: dict[Any, int] = {}
        self._functions: dict[Any, Function] = {}
        self._process = os.getpid()
        self._use_native_types()
        watch.join(self)
        if settings.config.debug >= 1:
            _log.warning("%r: %s", self, self.driver.facts)

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<{type(self).__name__} 'gpu:{self.driver.name}' {self.driver.facts.name} {self.default_dtype}{state}>"

    # Facts

    @property
    def stream(self) -> int:
        """The CUDA stream in which everything happens, as an integer."""
        return self.driver.stream

    @property
    def sm_count(self) -> int:
        """The multiprocessors of the device."""
        return self.driver.facts.multiprocessors

    @property
    def gpu_memory_size(self) -> int:
        """The bytes of memory of the device."""
        return self.driver.facts.memory

    @property
    def compute_capability(self) -> tuple[int, int]:
        """The compute capability of the device (major, minor)."""
        return self.driver.facts.capability

    @property
    def use_cudac_kernels(self) -> bool:
        """Whether kernels are CUDA C: always."""
        return True

    @property
    def cache_dir(self) -> str:
        """The folder that keeps compiled kernels."""
        return str(disk_cache.cache_for_writing().folder)

    # Memory

    def _allocate(self, nbytes: int) -> Storage:
        self._check_process()
        if nbytes > self.driver.facts.memory:
            raise MemoryError(complain("allocation: out of memory", f"{nbytes} bytes", "", "smaller tensors"))
        try:
            address = self.driver.allocate(max(nbytes, 1))
        except BackendError:
            given = f"{nbytes} bytes"
            raise MemoryError(complain("allocation: out of memory", given, "", "smaller tensors")) from None
        return Storage(address, nbytes, memory.owner(self.driver.free, address))

    def view(self, ary: Any, name: str | None = None, min_dims: int | None = None) -> GPUTensor:
        """A tensor on the memory of another library's array of the device, which it keeps alive, without a copy.

        `ary` has `__cuda_array_interface__` (CuPy, PyTorch, JAX, Numba); what its stream (1: the default one, which
        older versions do not name; None: none) still does with it comes first. Raises `TypeError` for what has none
        and for masked arrays, `BackendError` for another device's, `ShapeError` for strides or addresses that are no
        multiples of an element and for too many axes, `DTypeError` for a type that tensors do not have.
        """
        self.structures.check_open()
        minimum = self.min_dims if min_dims is None else min_dims
        check_min_dims(minimum)
        facts = getattr(ary, "__cuda_array_interface__", None)
        if facts is None:
            expected = "an array with __cuda_array_interface__"
            raise TypeError(complain("view", type(ary).__name__, expected, "be.array copies from the host"))
        if facts.get("mask") is not None:
            given = f"masked array of shape {tuple(facts['shape'])}"
            raise TypeError(complain("view: a masked array", given, "an array without a mask"))
        if not isinstance(ary, Tensor) and hasattr(ary, "__dlpack_device__"):
            kind, number = ary.__dlpack_device__()
            if kind in _CUDA_MEMORY and number != self.device_id:
                raise BackendError(complain("view: another device's array", f"device {number}", f"{self.device_id}"))
        stream = facts.get("stream", 1)
        if stream is not None:
            self.driver.follow(stream)
        dtype, shape, address = dtypes.as_dtype(facts["typestr"]), tuple(facts["shape"]), facts["data"][0]
        steps = facts.get("strides") or tuple(n * dtype.itemsize for n in indexing.contiguous_strides(shape))
        foreign = not np.dtype(facts["typestr"]).isnative
        if foreign or address % dtype.itemsize or any(n % dtype.itemsize for n in steps):
            given = f"{facts['typestr']} at address {address} with strides of {tuple(steps)} bytes"
            expected = "native byte order, whole elements"
            raise ShapeError(complain("view: layout", given, expected, "a contiguous copy"))
        indexing.check_rank("view", len(shape))
        missing = max(minimum - len(shape), 0)
        strides = tuple(n // dtype.itemsize for n in steps) + (1,) * missing
        view = self._tensor_at(self.structures.tensor(dtype, shape + (1,) * missing, strides, minimum), address)
        view.storage.owner, view.storage.writable, view.name = ary, not facts["data"][1], name
        return view

    def from_dlpack(self, x: Any, min_dims: int | None = None) -> GPUTensor:
        """A tensor on the memory of an array of the device with `__dlpack__`, without a copy.

        By its `__cuda_array_interface__` where it has one, else through CuPy. Raises `TypeError` for what has neither,
        `BufferError` for memory of the host or when CuPy is missing, and as `view`.
        """
        if hasattr(x, "__cuda_array_interface__"):
            return self.view(x, min_dims=min_dims)
        if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
            raise TypeError(complain("from_dlpack", type(x).__name__, "an object with __dlpack__"))
        kind, number = x.__dlpack_device__()
        if kind not in _CUDA_MEMORY:
            given, hint = f"memory of DLPack's kind {int(kind)}, number {number}", "be.array copies from the host"
            raise BufferError(complain("from_dlpack: not on the device", given, "memory of a CUDA device", hint))
        try:
            cupy = importlib.import_module("cupy")
        except ImportError:
            hint = "pip install tensorbackend[cuda]"
            raise BufferError(complain("from_dlpack: device memory comes through CuPy", "", "", hint)) from None
        return self.view(cupy.from_dlpack(x), min_dims=min_dims)

    def _check_process(self) -> None:
        """A device's context does not survive a fork."""
        if os.getpid() != self._process and not self.driver.facts.emulated:
            what = f"made in process {self._process}, used in {os.getpid()}"
            raise BackendError(complain("gpu backend: a forked process", what, "", "make a backend in each process"))

    def _upload(self, tensor: Tensor, values: np.ndarray) -> None:
        self._check_process()
        host = np.ndarray(tensor.shape, tensor.dtype, self._host_memory(tensor.nbytes))
        with np.errstate(all="ignore"):
            dtypes.cast(values, tensor.dtype, host)
        with self._lock:
            if tensor.is_contiguous:
                self.driver.upload(tensor.address, host)
                return
            packed_copy = self.tensor_cls(self, tensor.shape, tensor.dtype, min_dims=0)
            self.driver.upload(packed_copy.address, host)
            self._run_statement(tensor, packed_copy)

    def _download(self, tensor: Tensor) -> np.ndarray:
        self._flush()
        self._check_process()
        if not self.closed and tensor.stop - tensor.start > 2 * tensor.nbytes:
            packed_copy = self.tensor_cls(self, tensor.shape, tensor.dtype, min_dims=0)
            with self._lock:
                self._run_statement(packed_copy, tensor)
            tensor = packed_copy
        return self._array_at(tensor.structure, tensor.address).copy(order="C")

    def _array_at(self, ref: Any, address: int) -> np.ndarray:
        array, whole, low = self._host_array(ref)
        with self._lock:
            self.driver.download(whole, address + low)
        return array

    def _host_array(self, ref: Any) -> tuple[np.ndarray, np.ndarray, int]:
        """An array on the host as `ref` lies, its bytes, and how far the first of these is from the first element."""
        item = ref.dtype.itemsize
        low, high = indexing.extent(ref.shape, ref.strides, item)
        whole = self._host_memory(high - low)
        return np.ndarray(ref.shape, ref.dtype, whole, -low, tuple(s * item for s in ref.strides)), whole, low

    def _host_memory(self, nbytes: int) -> np.ndarray:
        """Bytes for a transfer: pinned, so that the device reads or writes them itself, unless they are very many."""
        return self.driver.pinned(nbytes) if 0 < nbytes <= MOST_PINNED else np.empty(nbytes, np.uint8)

    def _close(self) -> None:
        self._functions.clear()
        if os.getpid() == self._process:
            with contextlib.suppress(BackendError):  # a kernel that failed took the context, and all memory, with it
                self.driver.trim()

    def _forget_plans(self) -> None:
        super()._forget_plans()
        self._functions.clear()
        self.choices.clear()

    # Plans

    def _run_plan(self, plan: Plan, targets: list[Tensor], leaves: list[Any]) -> None:
        self._check_process()
        self._run_planned(self._planned(plan), targets, leaves)

    def _planned(self, plan: Plan) -> GpuPlan:
        run = plan.cache.get(self._ready)
        if run is None:
            run = plan.cache[self._ready] = GpuPlan(plan, self)
        return run

    def _compile_kernels(self, kernels: Sequence[Kernel]) -> None:
        """Compile what is new among kernels, as one module. Raises `CompileError`."""
        printed = {p.name: p for p in map(_printed, kernels) if p.name not in self._functions}
        if not printed:
            return
        source = INCLUDE + "\n".join(p.source.removeprefix(INCLUDE) for p in printed.values())
        if settings.config.debug >= 4:
            _log.warning("%s", source)
        module = self.driver.compile(source)
        for p in printed.values():
            for name in filter(None, (p.name, p.join)):
                self._functions[name] = module.function(name)

    def _compiled_file(self, path: Path, name: str, macros: list[str]) -> Function:
        """A kernel of a hand-written file, compiled with macros."""
        key = (path.name, name, *macros)
        if key not in self._functions:
            module = self.driver.compile(path.read_text(encoding="utf-8"), str(path), macros)
            self._functions[key] = module.function(name)
        return self._functions[key]

    def _prepare(self, kernel: Kernel) -> Prepared:
        """A kernel compiled (or found), its launches packed. Raises `CompileError`."""
        self._compile_kernels([kernel])
        return Prepared(self, _printed(kernel))

    def _arena_of_recipe(self, nbytes: int) -> tuple[int, int, Any] | None:
        if nbytes > MOST_KEPT:
            return None
        kept = self._allocate(nbytes) if nbytes else None
        return (kept.address if kept is not None else 0), 0, kept

    def _user_target(self) -> Target:
        self._check_process()
        return DeviceTarget(self)

    @property
    def _has_graphs(self) -> bool:
        return self.driver.has_graphs

    def _graph(self, run: Callable[[], None]) -> Callable[[], None]:
        with self._lock:  # what others ask of the stream meanwhile would go into the graph
            return self.driver.graph(run)

    # Time

    def _record(self) -> Any:
        self._check_process()
        with self._lock:
            return self.driver.record()

    def _elapsed(self, start: Any, end: Any) -> float:
        return self.driver.elapsed(start, end)

    def _synchronise(self) -> None:
        self._check_process()
        with self._lock:
            self.driver.synchronise()


def _printed(kernel: Kernel) -> Printed:
    printed = kernel.cache.get("cuda")
    if printed is None:
        found = nest(in_memory_order(kernel))
        printed = kernel.cache["cuda"] = print_kernel(found, wants_split(found))
    return printed


class GpuPlan(CompiledPlan):
    """A plan of CUDA kernels and primitives."""

    backend: GpuBackend

    def __init__(self, plan: Plan, backend: GpuBackend) -> None:
        super().__init__(in_stages(plan, wants_stages), backend)

    def _compile(self, kernels: list[Kernel]) -> None:
        self.backend._compile_kernels(kernels)

    def recipe(self, leaves: list[Any]) -> tuple | None:
        """The plan as native code runs it; None when it needs Python: primitives, draws, unusual numbers.

        Its temporaries are kept: runs follow each other in the stream, and no thread comes between one's launches.
        """
        arena = None if self.draws else self.backend._arena_of_recipe(self.total)
        if arena is None:
            return None
        start, _, owner = arena
        sources = [recipes.TARGET - k for k in range(self.plan.targets)] + self.plan.tensors
        steps = []
        for prepared, found, _, step in self.steps:
            runner, places = (prepared, found) if prepared is not None else found
            launches = [] if runner is None else runner.repeated
            if runner is not None and not launches:
                return None
            pointers = [(sources[b], offset) if b < len(sources) else (recipes.ARENA, start + offset)
                        for b, offset in places]  # fmt: skip
            steps += [recipes.Step(launch, pointers, step.scalars) for launch in launches]
        return recipes.recipe(steps, 0, leaves, (self, owner))

    def _prepare(self, step: Kernel | Primitive) -> Prepared | None:
        return self.backend._prepare(step) if isinstance(step, Kernel) else None

    def _prepare_primitive(self, step: Primitive, arena: int, offsets: list[int]) -> tuple:
        places = [placed(ref, arena, offsets) for ref in (*step.inputs, *step.written)]
        idle = 0 in step.output.shape and step.op.name not in cuda_primitives.CHECKED
        runner = None if idle else PreparedPrimitive(self.backend, step, len(places))
        return runner, places

    def _primitive_action(self, step: Primitive, places: tuple) -> Action:
        runner, _ = places
        run = lambda addresses, *numbers: runner and runner.run(list(addresses))  # noqa: E731
        return Action(step, references(step), 0, run, repeated=runner.repeated if runner is not None else ())

    def _primitive(self, step: Primitive, places: Any, buffers: list, bases: list[int], storage: Any) -> None:
        runner, where = places
        if runner is not None:
            runner.run([bases[number] + offset for number, offset in where])


def _prepare_on_host(backend: GpuBackend, step: Primitive) -> Runner:
    """A primitive that has no kernel: its NumPy meaning, on copies on the host. A warning says so, once for each."""
    _tell_of_host(step.op.name)
    interpreter, read = Interpreter(), len(step.inputs)

    def run(addresses: list[int]) -> None:
        inputs = [backend._array_at(ref, address) for ref, address in zip(step.inputs, addresses)]
        outputs = [backend._host_array(ref) for ref in step.written]
        with backend._lock:
            for address, (array, whole, low) in zip(addresses[read:], outputs):
                if array.nbytes < whole.nbytes:  # between its elements lies what stays
                    backend.driver.download(whole, address + low)
            with np.errstate(all="ignore"):
                interpreter.primitive(step, inputs, [array for array, _, _ in outputs])
            for address, (_, whole, low) in zip(addresses[read:], outputs):
                backend.driver.upload(address + low, whole)

    return run


@functools.cache
def _tell_of_host(name: str) -> None:
    _log.warning("tensorbackend: %s has no CUDA kernel; its operands go to the host, and its results back", name)


class PreparedPrimitive:
    """A primitive made ready: `run(addresses)` launches."""

    def __init__(self, backend: GpuBackend, step: Primitive, operands: int) -> None:
        self.run = PRIMITIVES.get(step.op.name, _prepare_on_host)(backend, step)
        self._driver = backend.driver
        self._operands = operands
        self._repeated: list[native.Launch] = []

    @property
    def repeated(self) -> list[native.Launch]:
        """The launches as native code makes them; empty where it cannot, or where a choice is still to be made."""
        if not self._repeated and self._driver.native is not None:
            addresses = stand_ins(self._operands)
            notes = self._driver.noted(lambda: self.run(addresses))
            if notes is not None:
                self._repeated = self._driver.native.noted(notes.calls, self._operands, self._driver.blas) or []
        return self._repeated


class Prepared:
    """A printed kernel with its launches packed: `run(addresses, numbers)` fills in what changes, and launches.

    `scratch_words` is the number of 8-byte words behind the last address.
    """

    def __init__(self, backend: GpuBackend, printed: Printed) -> None:
        found, split = printed.nest, printed.join is not None
        self.source = printed.source
        kernel = found.kernel
        geometry = choose(found, split)
        counts = argument_words(kernel, split)
        self.driver = backend.driver
        rows = math.prod(kernel.shape[a] for a in found.kept)
        results = rows * (kernel.shape[found.inner] if found.form == COLUMNS else 1)
        self.scratch_words = geometry.segments * results * printed.partials if split else 0
        self._launches = [(backend._functions[printed.name], geometry)]
        if split:
            self._launches.append((backend._functions[printed.join], join_blocks(results, geometry.segments)))
        self._grains = _grains(printed)
        self._template = self._packed(kernel, geometry, counts)
        self._vector_at = 8 * (counts[0] + len(kernel.shape))
        self._scalars_at = 8 * sum(counts[:3])
        self._addresses = struct.Struct(f"{counts[0]}Q")
        self._numbers = struct.Struct(number_format(kernel))
        self._scalars = len(kernel.scalars)
        self._pointers = counts[0]

    @functools.cached_property
    def repeated(self) -> list[native.Launch]:
        """The launches as native code makes them; empty where it cannot."""
        if self.driver.native is None:
            return []
        scalars, whole = (self._scalars, self._scalars_at // 8), self._vector_at // 8 if self._grains else -1
        grains = [*(self._grains or ()), *[1] * self._pointers]
        places = [Place(n, n, 0, grains[n]) for n in range(self._pointers)]
        found = []
        for function, geometry in self._launches:
            noted = NotedLaunch(function.handle.ptr, (*geometry.grid, 1), (*geometry.block, 1), self._template)
            found.append(self.driver.native.prepare(noted, self._pointers, places, scalars, whole))
        return found if all(found) else []

    @staticmethod
    def _packed(kernel: Kernel, geometry: Geometry, counts: tuple[int, int, int, int]) -> bytes:
        """The arguments without addresses, numbers, and whether packs are whole."""
        references = [*kernel.inputs, *(ref for ref, _ in kernel.outputs)]
        strides = [s for ref in references for s in ref.strides] or [0]
        sizes = [*kernel.shape, 0, geometry.segments, geometry.segment]
        return struct.pack(f"{sum(counts)}q", *[0] * counts[0], *sizes, *strides, *[0] * counts[3])

    def run(self, addresses: Sequence[int], numbers: Sequence[Any]) -> None:
        """Run on operands at `addresses`: inputs, outputs, then scratch; `numbers` are scalars, draws and the key."""
        arguments = bytearray(self._template)
        self._addresses.pack_into(arguments, 0, *addresses)
        whole = self._grains is not None and not any(a % g for a, g in zip(addresses, self._grains))
        struct.pack_into("q", arguments, self._vector_at, whole)
        if numbers:
            self._numbers.pack_into(arguments, self._scalars_at, *numbers)
        for function, geometry in self._launches:
            self.driver.launch(function, geometry.grid, geometry.block, 0, bytes(arguments))


def _grains(printed: Printed) -> list[int] | None:
    """To how many bytes each address must be aligned for whole packs; None when strides rule them out."""
    found, width = printed.nest, pack_width(printed.nest)
    grains = []
    for ref in packed(found):
        if ref is None:
            grains.append(1)
            continue
        others = [s for a, (n, s) in enumerate(zip(ref.shape, ref.strides)) if a != found.inner and n != 1]
        if any(s % width for s in others):
            return None
        grains.append(width * ref.dtype.itemsize)
    return grains
