# SPDX-License-Identifier: Apache-2.0
"""The CPU backend: memory that NumPy can see, and plans run as compiled C, or by the interpreter.

With a compiler each kernel of a plan is printed as C, compiled once for its structure and launched on the process's
thread pool (`jit.py`). With `jit=False`, or where there is no compiler, the interpreter runs the same kernels through
NumPy, and the log says so once. Primitives that have no C form are NumPy's.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes, settings
from tensorbackend.backends import (
    cpu_primitives,
    cpu_recurrent,
    jit,
    launcher,
    memory,
    native,
    recipes,
    repeats,
    toolchain,
    warm,
    watch,
)  # fmt: skip
from tensorbackend.backends.allocation import check_room
from tensorbackend.backends.base import Backend
from tensorbackend.backends.cores import allowed_cores
from tensorbackend.backends.host import host_key, host_picked, host_values, picked_shape
from tensorbackend.backends.interpreter import Interpreter
from tensorbackend.backends.plans import (
    ALIGNMENT,
    Action,
    CompiledPlan,
    addresses_of,
    number,
    references,
    written,
)
from tensorbackend.backends.random_numbers import drawn
from tensorbackend.backends.user_launch import HostTarget, Target
from tensorbackend.errors import BackendError, ShapeError, complain
from tensorbackend.graph import indexing
from tensorbackend.graph.forms import KnownPlan, leads_back
from tensorbackend.graph.optree import OpTreeNode
from tensorbackend.graph.plan import Kernel, Plan, Primitive, Ref, Statement
from tensorbackend.graph.structure import Structure
from tensorbackend.graph.tails import with_tails
from tensorbackend.graph.tensor import Storage, Tensor, check_min_dims, check_writable

__all__ = ["CPUBackend", "CPUTensor", "array_at"]

RUNS_OF_A_REPEAT = 3
"""Runs of a form of statement after which it counts as repeated."""
MOST_FORMS = 1 << 13

_log = logging.getLogger("tensorbackend")


class CPUTensor(Tensor):
    """A tensor in host memory; `_tensor` is a NumPy array on the same memory."""

    def __init__(
        self,
        backend: Any,
        shape: Any = None,
        dtype: Any = np.float32,
        ary: np.ndarray | None = None,
        name: str | None = None,
        persist_values: bool = True,
        base: Tensor | None = None,
        min_dims: int | None = None,
        allocator: Callable[[int], Any] | None = None,
    ) -> None:
        """A tensor on the memory of `ary`, or in fresh memory of `shape` and `dtype`."""
        if ary is None:
            super().__init__(backend, shape, dtype, name, persist_values, min_dims, allocator)
            return
        minimum = backend.min_dims if min_dims is None else min_dims
        check_min_dims(minimum)
        wanted = ary.shape + (1,) * (minimum - ary.ndim)
        indexing.check_rank("array view", len(wanted))
        ary = np.asarray(ary).reshape(wanted)  # not a matrix, whose parts have two axes
        kind = dtypes.as_dtype(ary.dtype)
        if not ary.dtype.isnative or any(s % kind.itemsize for s in ary.strides):
            given = f"{ary.dtype} with strides of {ary.strides} bytes"
            expected, hint = "native byte order, whole-element strides", f"array.astype('{kind.name}')"
            raise ShapeError(complain("array view: layout", given, expected, hint))
        address = ary.__array_interface__["data"][0]
        if address % kind.alignment:
            given, expected = f"{ary.dtype} at address {address}", f"a multiple of {kind.alignment}"
            raise ShapeError(complain("array view: alignment", given, expected, "array.copy()"))
        strides = tuple(s // kind.itemsize for s in ary.strides)
        layout = backend.structures.tensor(kind, wanted, strides, minimum)
        low, high = layout.extent
        self._place(layout, Storage(address + low, high - low, ary, ary.flags.writeable), address)
        self._array = ary
        self.base = base
        self.name = name
        self.persist_values = persist_values
        self.rounding = backend.round_mode

    @property
    def _tensor(self) -> np.ndarray:
        array = self._array
        if array is None:
            s, storage = self.structure, self.storage
            item = s.dtype.itemsize
            strides = tuple(n * item for n in s.strides)
            array = self._array = np.ndarray(s.shape, s.dtype, _bytes(storage), self.address - storage.address, strides)
            if any(step == 0 and n > 1 for step, n in zip(strides, s.shape)):
                array.flags.writeable = False  # as NumPy's own: to write one element would change others
        return array

    def asnumpyarray(self) -> np.ndarray:
        """The elements as a live NumPy array: writing to it changes the tensor."""
        self.backend._host_access()
        return self._tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self.backend._host_access()
        wanted = self.structure.dtype if dtype is None else np.dtype(dtype)
        if copy is False and wanted != self.structure.dtype:
            raise ValueError(complain("asarray: a copy is needed", f"{self.structure.dtype} to {wanted}", "copy=None"))
        return self._tensor.astype(wanted, copy=bool(copy))

    @property
    def __array_interface__(self) -> dict:
        if self.structure.dtype == dtypes.BFLOAT16:  # it has no letter there: NumPy then asks __array__
            raise AttributeError("__array_interface__ cannot name bfloat16")
        self.backend._host_access()
        return self._tensor.__array_interface__

    def __dlpack__(self, **keywords: Any) -> Any:
        if self.structure.dtype == dtypes.BFLOAT16:
            raise BufferError(
                complain("DLPack: NumPy exports no bfloat16", "", "", "be.copy(t.share(t.shape, 'uint16'))")
            )
        self.backend._host_access()
        return self._tensor.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def asbuffer(self) -> memoryview:
        """The bytes of a contiguous tensor. Raises `ShapeError` for others."""
        if not self.is_contiguous:
            raise ShapeError(complain("asbuffer: not contiguous", f"strides {self.strides}", "C order", "be.copy(t)"))
        self.backend._host_access()
        return memoryview(self._tensor.reshape(-1).view(np.uint8))


def _runtime_memory(nbytes: int) -> Storage:
    """Memory of the runtime, given back when nothing refers to it any more."""
    size = max(nbytes, 1)
    if size >= 1 << 62:  # beyond any address, and beyond what a native call can be told
        raise MemoryError(complain("allocation: out of memory", f"{size} bytes", "", "smaller tensors"))
    runtime = native.runtime()
    address = runtime.alloc(size)
    return Storage(address, nbytes, memory.owner(runtime.free, address, size))


def _bytes(storage: Storage) -> np.ndarray:
    owner = storage.owner
    if not isinstance(owner, np.ndarray) or owner.dtype.hasobject:  # the runtime's
        raw = (ctypes.c_ubyte * max(storage.nbytes, 1)).from_address(storage.address)
        raw.owner = owner
        return np.frombuffer(raw, np.uint8)
    if owner.flags.c_contiguous and storage.address == owner.__array_interface__["data"][0]:
        return owner.reshape(-1).view(np.uint8)
    return _window(storage)


def _window(storage: Storage) -> np.ndarray:
    """The bytes from lowest to highest address of memory that is not one contiguous array."""

    class Window:
        __array_interface__ = {  # noqa: RUF012
            "data": (storage.address, not storage.writable),
            "shape": (storage.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }
        owner = storage.owner

    return np.asarray(Window())


class CPUBackend(launcher.NativeStatements, Backend):
    """Runs on the host's cores.

    `jit` (None: the setting `jit`) compiles trees to C; False, or no compiler, runs them through NumPy in cache-sized
    blocks. `threads` is how many threads kernels are shared among (None: the setting, `OMP_NUM_THREADS`, or all cores
    allowed; one number for the process). Raises `ValueError` for a `jit` that is neither yes nor no.
    """

    backend_name = "cpu"
    device_type = 0
    _views_host = True
    tensor_cls = CPUTensor
    default_dtypes = tuple(d for d in dtypes.FLOATS)
    _ready = True

    def __init__(self, *arguments: Any, jit: bool | None = None, threads: int | None = None, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.jit = (settings.config.jit if jit is None else settings.checked("jit", jit)) and _has_compiler()
        self.threads = _thread_count(threads)
        if self.jit and (threads is not None or native.has_runtime()):  # which an earlier backend may have told
            self.threads = native.runtime().set_threads(threads)
        self._interpreter = Interpreter()
        self._repeats: dict[tuple, Any] = {}
        if self.jit:
            self._use_native_types()
        if self._native is not None and type(self)._allocate is CPUBackend._allocate:
            self.structures.fresh = self.structures.memo.fresh
        watch.join(self)
        if settings.config.debug >= 1:
            how = toolchain.compiler_status() if self.jit else "the interpreter"
            _log.warning("%r: %d threads, %s", self, self.threads, how)

    # Memory

    def _allocate(self, nbytes: int) -> Storage:
        if self.jit:
            found = None if self._native is None else self.structures.memo.allocate(nbytes)
            return _runtime_memory(nbytes) if found is None else found
        try:
            raw = np.empty(max(nbytes, 1) + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):  # NumPy calls a size beyond any address a ValueError
            raise MemoryError(complain("allocation: out of memory", f"{nbytes} bytes", "", "smaller tensors")) from None
        start = -raw.__array_interface__["data"][0] % ALIGNMENT
        owner = raw[start : start + max(nbytes, 1)]
        return Storage(raw.__array_interface__["data"][0] + start, nbytes, owner)

    def _given_memory(self, memory: Any, nbytes: int) -> Storage:
        try:
            if getattr(getattr(memory, "dtype", None), "hasobject", False):
                raise TypeError
            raw = np.frombuffer(np.asarray(memory) if isinstance(memory, Tensor) else memory, np.uint8)
        except (TypeError, ValueError, BufferError):
            given, expected = type(memory).__name__, "a contiguous array of numbers, or a buffer"
            raise TypeError(complain("allocator: what it gave", given, expected)) from None
        if not raw.flags.writeable:
            raise ValueError(complain("allocator: memory that may not be written", type(memory).__name__, ""))
        check_room(raw.nbytes, nbytes)
        return Storage(raw.__array_interface__["data"][0], nbytes, raw[: max(nbytes, 1)])

    def _trim(self) -> None:
        if self.jit:
            native.runtime().trim()

    def view(self, ary: np.ndarray, name: str | None = None, min_dims: int | None = None) -> CPUTensor:
        """A tensor on the memory of a NumPy array, without a copy; read-only if the array is. Bytes of bools have to be
        0 or 1, as NumPy writes them; those of others `be.array` takes.

        Raises `TypeError` for other objects, `ShapeError` for foreign byte orders, and for strides or addresses that
        are no multiples of an element.
        """
        self.structures.check_open()
        if not isinstance(ary, np.ndarray):
            raise TypeError(complain("view", type(ary).__name__, "a NumPy array", "be.array or be.from_dlpack"))
        indexing.refuse_mask("view", ary)
        return self.tensor_cls(self, ary=ary, name=name, min_dims=min_dims)

    def from_dlpack(self, x: Any, min_dims: int | None = None) -> CPUTensor:
        """A tensor on the memory of any host array with `__dlpack__` (PyTorch, JAX …), without a copy.

        Raises `TypeError` or `BufferError` when it has none, lies on another device or has a type NumPy lacks.
        """
        if not hasattr(x, "__dlpack__"):
            raise TypeError(complain("from_dlpack", type(x).__name__, "an object with __dlpack__"))
        try:
            found = np.from_dlpack(x)
        except (BufferError, RuntimeError) as error:  # what NumPy raises for types and devices that it lacks
            given, expected = f"{type(x).__name__}: {error}", "host memory of a type that NumPy has"
            raise BufferError(complain("from_dlpack", given, expected)) from error
        return self.view(found, min_dims=min_dims)

    def _upload(self, tensor: Tensor, values: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            dtypes.cast(values, tensor.dtype, tensor._tensor)

    def _download(self, tensor: Tensor) -> np.ndarray:
        self._flush()
        with self._lock:
            return tensor._tensor.copy(order="C")

    def _host_view(self, tensor: Tensor) -> np.ndarray:
        self._flush()
        return tensor._tensor

    def _gather(self, tensor: Tensor, key: Any) -> Tensor:
        self._flush()
        picked = host_picked(tensor._tensor, host_key(key))
        return self.array(picked, dtype=tensor.dtype, min_dims=tensor._min_dims)

    def _scatter(self, tensor: Tensor, key: Any, value: Any) -> None:
        self._flush()
        check_writable(tensor)
        key = host_key(key)
        values = host_values(self, tensor.dtype, picked_shape(tensor.shape, key), value)
        if np.may_share_memory(values, tensor._tensor):
            values = values.copy()
        with self._lock:
            tensor._tensor[key] = values

    def _close(self) -> None:
        self._interpreter = Interpreter()
        self._repeats.clear()

    def _forget_plans(self) -> None:
        super()._forget_plans()
        self._repeats = {}  # what is noted meanwhile, is noted in that of before

    # Plans

    def _run_plan(self, plan: Plan, targets: list[Tensor], leaves: list[Any]) -> None:
        self._run_planned(self._planned(plan), targets, leaves)

    def _planned(self, plan: Plan) -> HostPlan | InterpretedPlan:
        run = plan.cache.get(self.jit)
        if run is None:
            emptied = self.structures.plans.emptied
            run = plan.cache[self.jit] = HostPlan(plan, self) if self.jit else InterpretedPlan(plan, self)
            if self.jit and plan.cache.get("name") and self.structures.plans.emptied == emptied:  # else it is misnamed
                warm.add(plan.cache["name"], run)
        return run

    def _runs_steps(self, cell: Any, run: Any, dtype: np.dtype) -> bool:
        return cpu_recurrent.runs_steps(cell, run, dtype, self.jit)

    def _schedule(self, key: tuple, statements: list[Statement], leaves: list[list[Any]]) -> Plan:
        if not self.jit or watch.wanted(self) or self._recorder is not None:
            return super()._schedule(key, statements, leaves)
        name = warm.name_of(key)
        found = name and warm.find(name)
        if found and leads_back(key):
            return RestoredPlan(key, self, found).plan
        plan = super()._schedule(key, statements, leaves)
        plan.cache["name"] = name
        return plan

    def _run_statement(self, target: Tensor, value: Any) -> None:
        if self._native is not None or not isinstance(value, OpTreeNode):
            super()._run_statement(target, value)
            return
        form = (target.structure, value.structure)
        repeat = self._repeats.get(form, 0)
        looked_at = self._recorder is not None or watch.watching or self._bench
        if callable(repeat) and not looked_at and repeat(target, value):
            return
        super()._run_statement(target, value)
        if type(repeat) is int and not looked_at:
            self._note_run(form, repeat + 1, target, value)

    def _note_run(self, form: tuple, runs: int, target: Tensor, value: OpTreeNode) -> None:
        """Count a run of a form of statement; one that keeps coming gets a function of its own (see `repeats.py`)."""
        known = self._repeats
        if len(known) >= MOST_FORMS:
            known.clear()
        known[form] = runs
        if runs == RUNS_OF_A_REPEAT and self.jit:
            key, leaves = self._statement_key(target, value)
            plan = self.structures.plans.get(key)
            known[form] = plan and repeats.repeater(self._planned(plan), target, value, leaves)

    def _tensor_at(self, layout: Structure, address: int) -> CPUTensor:
        return self.tensor_cls(self, ary=array_at(address, layout), min_dims=layout.min_dims)

    def _array_at(self, ref: Any, address: int) -> np.ndarray:
        return array_at(address, ref)

    def _user_target(self) -> Target:
        if self.jit:
            return HostTarget()
        hint = "gen_backend('cpu') with a C compiler (python -m tensorbackend info), without jit=False and TB_JIT=0"
        raise BackendError(complain(f"{self!r}: user kernels need a C compiler", "it runs without one", "", hint))


def _thread_count(threads: int | None) -> int:
    """The threads asked for: the argument, `TB_THREADS`, `OMP_NUM_THREADS`, or the cores allowed."""
    outer = re.match(r"\s*\d+", os.environ.get("OMP_NUM_THREADS", ""))  # "4,2": of nested regions; read as C reads it
    if threads is None:
        return settings.config.threads or int(outer[0] if outer else 0) or allowed_cores()
    if not isinstance(threads, (int, np.integer)) or threads < 1:
        raise ValueError(complain("threads", repr(threads), "an int, 1 or more"))
    return threads


_warned_no_compiler = False


def _has_compiler() -> bool:
    """Whether C can be compiled here; when not, the log says once why and what to do."""
    global _warned_no_compiler
    if toolchain.find_compiler() is not None:
        return True
    if not _warned_no_compiler:
        _warned_no_compiler = True
        _log.warning("%s; trees run through NumPy, which is slower", toolchain.compiler_status())
    return False


class InterpretedPlan:
    """A plan run by the interpreter: each reference becomes a NumPy array."""

    def __init__(self, plan: Plan, backend: CPUBackend) -> None:
        self.plan = plan
        self.backend = backend
        self.draws = plan.draws
        self.places = [_places(step) for step in plan.steps]

    def __call__(self, targets: list[Tensor], leaves: list[Any], draws: dict[int, int]) -> None:
        plan, backend = self.plan, self.backend
        buffers = [*targets, *(leaves[n] for n in plan.tensors)]
        temporaries = [np.empty(shape, dtype) for shape, dtype in plan.temporaries]
        with np.errstate(all="ignore"):
            for step, (reads, writes) in zip(plan.steps, self.places):
                inputs = [read(buffers, temporaries) for read in reads]
                outputs = [write(buffers, temporaries) for write in writes]
                if isinstance(step, Kernel):
                    scalars = [number(leaves[n], dtype) for n, dtype in step.scalars]
                    numbers = [draws[n] for n in step.draws]
                    backend._interpreter.kernel(step, inputs, outputs, scalars, numbers, backend._key)
                else:
                    backend._interpreter.primitive(step, inputs, outputs)

    def actions(self) -> Iterator[Action]:
        """The steps, to be made one by one on any operands of the plan's layouts."""
        return (_host_action(self.backend, step) for step in self.plan.steps)


class HostPlan(CompiledPlan):
    """A plan of C kernels. Primitives that have no C form run on NumPy arrays."""

    def __init__(self, plan: Plan, backend: CPUBackend) -> None:
        super().__init__(with_tails(plan), backend)

    def _compile(self, kernels: list[Kernel]) -> None:
        jit.compile_all(kernels)

    def _prepare(self, step: Kernel | Primitive) -> jit.Prepared | None:
        if isinstance(step, Kernel):
            return jit.prepare(step)
        maker = cpu_primitives.PRIMITIVES.get(step.op.name)
        return None if maker is None else maker(step, self.backend)

    def _prepare_primitive(self, step: Primitive, arena: int, offsets: list[int]) -> tuple:
        return _places(step)

    def _primitive_action(self, step: Primitive, places: tuple) -> Action:
        return _host_action(self.backend, step)

    def recipe(self, leaves: list[Any]) -> tuple | None:
        """The plan as native code runs it; None when it needs Python: primitives that NumPy runs or that may refuse
        what they read after others wrote, or drew, unusual numbers, draws of kernels that write nothing."""
        if any(prepared is None for prepared, _, _, _ in self.steps):
            return None
        if self.draws and {leaf for *_, step in self.steps for leaf in step.draws} != set(drawn(leaves)):
            return None  # numbers that nothing takes are counted all the same
        targets = self.plan.targets
        sources = [recipes.TARGET - k for k in range(targets)] + self.plan.tensors + [recipes.ARENA]
        steps, check, checked = [], -1, 0
        for n, (prepared, places, _, step) in enumerate(self.steps):
            pointers = [(sources[b], offset) for b, offset in places]
            launches = prepared.launches or prepared.checked
            scalars = list(step.scalars)
            if step.draws:
                scalars += [*((leaf, recipes.DRAW) for leaf in step.draws), (-1, recipes.KEY)]
            steps += [recipes.Step(launch, pointers, scalars) for launch in launches]
            if prepared.checked:
                if check >= 0 or self.draws or any(_writes_target(before) for *_, before in self.steps[:n]):
                    return None
                check, checked = places[-1][1], len(steps)  # the scratch's place
        given = (ctypes.addressof(self.backend.generator), drawn(leaves)) if self.draws else ()
        return recipes.recipe(steps, self.total, leaves, self, check, checked, *given)

    def _temporaries(self, storage: Storage | None) -> list[np.ndarray]:
        """The temporaries of a run, in the memory that it has for them."""
        if storage is None:
            return []
        whole = _bytes(storage)
        pairs = zip(self.plan.temporaries, self.offsets)
        return [np.ndarray(shape, dtype, whole, offset) for (shape, dtype), offset in pairs]

    def _primitive(
        self, step: Primitive, places: tuple, buffers: list, bases: list[int], storage: Storage | None
    ) -> None:
        temporaries = self._temporaries(storage)
        reads, writes = places
        inputs = [read(buffers, temporaries) for read in reads]
        with np.errstate(all="ignore"):
            self.backend._interpreter.primitive(step, inputs, [write(buffers, temporaries) for write in writes])


def _writes_target(step: Kernel | Primitive) -> bool:
    return any(ref.buffer >= 0 for ref in references(step)[-written(step) :])


class RestoredPlan(HostPlan):
    """A plan that another process compiled: launches from the index (see `warm.py`). Whoever looks at its steps has
    it made from its key."""

    def __init__(self, key: tuple, backend: CPUBackend, found: warm.Found) -> None:
        self.plan = KnownPlan(key, found.targets, found.tensors, backend._fit)
        self.plan.cache[True] = self
        self.backend = backend
        self.total = found.total
        self.steps = [(prepared, places, addresses_of(places), step) for prepared, places, step in found.steps]
        self.draws = found.draws

    def actions(self) -> Iterator[Action]:
        """As a `HostPlan`'s."""
        return HostPlan(self.plan, self.backend).actions()


def _host_action(backend: CPUBackend, step: Kernel | Primitive) -> Action:
    return Action(step, references(step), 0, _HostStep(backend, step))


class _HostStep:
    """A step that NumPy runs on operands at addresses, which are usually those of the time before."""

    def __init__(self, backend: CPUBackend, step: Kernel | Primitive) -> None:
        self.backend = backend
        self.step = step
        self._refs = references(step)
        self._last: tuple[Sequence[int], list[np.ndarray]] = (), []

    def __call__(self, addresses: Sequence[int], scalars: Sequence[Any], draws: Sequence[int], key: int) -> None:
        step, run = self.step, self.backend._interpreter
        before, arrays = self._last
        if addresses != before:
            arrays = [array_at(address, ref) for address, ref in zip(addresses, self._refs)]
            self._last = addresses, arrays
        inputs, outputs = arrays[: len(step.inputs)], arrays[len(step.inputs) :]
        with np.errstate(all="ignore"):
            if isinstance(step, Kernel):
                numbers = [number(x, dtype) for x, (_, dtype) in zip(scalars, step.scalars)]
                run.kernel(step, inputs, outputs, numbers, list(draws), key)
            else:
                run.primitive(step, inputs, outputs)


def array_at(address: int, ref: Any) -> np.ndarray:
    """The elements at an address, laid out as a reference or structure says, as an array that keeps nothing alive."""
    item = ref.dtype.itemsize
    low, high = indexing.extent(ref.shape, ref.strides, item)
    memory = (ctypes.c_ubyte * (high - low)).from_address(address + low)
    return np.ndarray(ref.shape, ref.dtype, memory, -low, tuple(s * item for s in ref.strides))


Reader = Callable[[list, list], np.ndarray]


def _places(step: Any) -> tuple[list[Reader], list[Reader]]:
    """How each reference of a step becomes an array, given the buffers and temporaries."""
    outputs = [ref for ref, _ in step.outputs] if isinstance(step, Kernel) else step.written
    return [_reader(ref) for ref in step.inputs], [_reader(ref) for ref in outputs]


def _reader(ref: Ref) -> Reader:
    if ref.buffer < 0:
        number = -ref.buffer - 1
        strides = tuple(s * ref.dtype.itemsize for s in ref.strides)
        start = ref.offset * ref.dtype.itemsize

        plain = ref.offset == 0 and ref.strides == indexing.contiguous_strides(ref.shape)

        def read_temporary(buffers: list, temporaries: list) -> np.ndarray:
            whole = temporaries[number]
            return (
                whole if plain and whole.shape == ref.shape else np.ndarray(ref.shape, ref.dtype, whole, start, strides)
            )

        return read_temporary

    def read(buffers: list, temporaries: list) -> np.ndarray:
        tensor = buffers[ref.buffer]
        s = tensor.structure
        if s.shape == ref.shape and s.strides == ref.strides:
            return tensor._tensor
        return tensor._view(ref.shape, ref.strides, ref.offset, min_dims=0)._tensor

    return read
