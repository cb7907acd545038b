# SPDX-License-Identifier: Apache-2.0
"""The contract: the abstract `Backend`.

A family of methods is a class that `Backend` inherits: tensors, expressions, random numbers and others beside this
module, deep learning in `primitives/`. Here are its options, what happens when a statement runs, and at the end of the
class the hooks that a backend implements. All checks are made before a hook is called, so every backend raises the same
errors.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tensorbackend import dtypes, ops, settings
from tensorbackend.backends import watch
from tensorbackend.backends.allocation import Allocation, check_room, host_array, rank_rule
from tensorbackend.backends.expressions import Expressions, install
from tensorbackend.backends.histograms import Histograms
from tensorbackend.backends.host import filled, host_key, host_picked, host_values, picked_shape
from tensorbackend.backends.locks import Lock
from tensorbackend.backends.marks import Marks
from tensorbackend.backends.random_numbers import RandomNumbers
from tensorbackend.backends.scratch import ScratchMemory
from tensorbackend.backends.statements import FuseBlock, StatementGroup
from tensorbackend.backends.user_methods import UserKernels
from tensorbackend.errors import BackendError, CaptureError, DTypeError, ShapeError, complain, nearest
from tensorbackend.graph import indexing
from tensorbackend.graph.fuse import schedule, single_call, walk
from tensorbackend.graph.keys import exact
from tensorbackend.graph.optree import Operators, OpTreeNode, apply, finished, source
from tensorbackend.graph.plan import Plan, Statement
from tensorbackend.graph.structure import UNKNOWN, Structure, StructureTable, broadcast_shapes, sized
from tensorbackend.graph.symbol import is_symbol, known
from tensorbackend.graph.tensor import Storage, Tensor, check_cast, check_min_dims, check_writable, overlap
from tensorbackend.primitives.conv import Convolution
from tensorbackend.primitives.gated import Gated
from tensorbackend.primitives.geometry import output_length, pad_pair, positive
from tensorbackend.primitives.hooks import LayerHooks
from tensorbackend.primitives.linear import LinearAlgebra
from tensorbackend.primitives.lookup import LookupTables
from tensorbackend.primitives.lrn import ResponseNorm
from tensorbackend.primitives.norm import Normalization
from tensorbackend.primitives.operands import check_home
from tensorbackend.primitives.pool import Pooling
from tensorbackend.primitives.recurrent import Recurrent
from tensorbackend.primitives.regions import Regions

if TYPE_CHECKING:  # what few programs need is imported by the methods that need it
    from tensorbackend.backends.capture import Recorder
    from tensorbackend.backends.program import Program
    from tensorbackend.backends.user import ElementwiseKernel, ReductionKernel
    from tensorbackend.backends.xp import ArrayModule
    from tensorbackend.explain import Explanation

__all__ = ["Backend", "Block"]

MOST_RECORDS = 1 << 16

_living: weakref.WeakSet[Backend] = weakref.WeakSet()


OUR_BACKENDS = {
    "cpu": ("tensorbackend.backends.cpu", "CPUBackend"),
    "gpu": ("tensorbackend.backends.gpu", "GpuBackend"),
}


class _Backends(dict[str, Any]):
    """Registered backends by name. This package's own are imported when someone asks for them."""

    def __getitem__(self, name: str) -> type[Backend]:
        found = super().__getitem__(name)
        if isinstance(found, tuple):
            module, wanted = found
            found = self[name] = getattr(importlib.import_module(module), wanted)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def values(self) -> Any:
        return {name: self[name] for name in self}.values()

    def items(self) -> Any:
        return {name: self[name] for name in self}.items()

    def copy(self) -> dict[str, Any]:
        return dict(self.items())


class Block:
    """The names of loops for `begin` and `end`."""

    epoch, minibatch, fprop, bprop, update = range(5)


def _check_options(name: str, cls: type, options: dict[str, Any]) -> None:
    """Raise for options that no constructor of a backend's class takes."""
    makers = [vars(c)["__init__"] for c in cls.__mro__ if "__init__" in vars(c) and c is not object]
    taken = {p for maker in makers for p in inspect.signature(maker).parameters} - {"self"}
    unknown = [option for option in options if option not in taken]
    if "driver" in unknown:
        with_drivers = "'gpu:cupy', 'gpu:pycuda', 'gpu:emulator'"
        raise ValueError(complain(f"backend {name!r} has no drivers", repr(options["driver"]), with_drivers))
    if unknown:
        raise TypeError(complain(f"backend {name!r} takes no {unknown[0]}", f"{unknown[0]}={options[unknown[0]]!r}",
                                 nearest(unknown[0], taken - {"arguments", "keywords"}),
                                 "gen_backend itself takes backend, datatype, batch_size, max_devices"))  # fmt: skip


def _go_on_alone() -> None:
    """In a forked child: of the threads only this one is there."""
    for backend in list(_living):
        backend._take_lock(backend._turn)
        recorder = backend._recorder
        if recorder is not None and not recorder.is_here():
            recorder.leave()
    watch.go_on_alone()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_go_on_alone)  # after what `locks.py` does


class Backend(
    Allocation, Expressions, RandomNumbers, UserKernels, Histograms, Marks, LinearAlgebra, Convolution, Pooling,
    ResponseNorm, Normalization, Recurrent, Gated, LookupTables, Regions, LayerHooks, ScratchMemory, ABC,
):  # fmt: skip
    """Tensors, op-trees and deep-learning primitives on one kind of machine.

    `rng_seed` seeds all random numbers (None: different each run) and, when given, makes every result reproducible
    (`deterministic`). `default_dtype` is the element type of new tensors. `compat_mode` is None or 'caffe' (output
    sizes of pooling). `stochastic_round` is the mantissa bits that new tensors keep (True: 10, False or None: off).
    `num_devices` and `device_id` have no effect here; `deterministic` is deprecated. `min_dims` is
    the least rank of new tensors: with 2, shape n becomes the column (n, 1). `bench` logs and records the time of each
    kernel. `enable_winograd` lets convolutions use Winograd's algorithm with tiles up to 4 x 4 (True, 4) or 2 x 2 (2),
    see docs/accuracy.md. `scratch_size` bounds the bytes of a convolution's scratch where there is a choice (0: none),
    counted for eight threads at least; the shared workspace has as many at first (see `set_scratch_size`).

    Defining a subclass registers it under `backend_name`; `gen_backend(name)` finds it. Classes with abstract methods
    left are not registered.
    """

    backends: ClassVar[dict[str, type[Backend]]] = _Backends(OUR_BACKENDS)
    backend_name: ClassVar[str] = "Backend"
    device_type: ClassVar[int] = 0
    _views_host: ClassVar[bool] = False  # whether `view` gives tensors on the memory of NumPy arrays
    default_dtypes: ClassVar[tuple[np.dtype, ...]] = dtypes.FLOATS
    tensor_cls: ClassVar[type[Tensor]] = Tensor

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "backend_name" not in cls.__dict__:
            cls.backend_name = cls.__name__
        missing = {n for c in cls.__mro__ for n, f in vars(c).items() if getattr(f, "__isabstractmethod__", False)}
        if all(getattr(getattr(cls, n), "__isabstractmethod__", False) is False for n in missing):
            Backend.backends[cls.backend_name] = cls

    def __init__(
        self,
        rng_seed: int | None = None,
        default_dtype: Any = np.float32,
        hist_bins: int = 64,
        hist_offset: int = -48,
        compat_mode: str | None = None,
        num_devices: int | None = None,
        stochastic_round: bool | int | None = None,
        device_id: int | None = None,
        deterministic: bool | None = None,
        min_dims: int = 2,
        bench: bool = False,
        enable_winograd: bool | int = True,
        scratch_size: int = 0,
    ) -> None:
        self._default_dtype = self._default_type(default_dtype)
        if compat_mode not in (None, "caffe"):
            raise ValueError(complain("compat_mode", repr(compat_mode), "None or 'caffe'"))
        check_min_dims(min_dims)
        if enable_winograd not in (False, 2, 4, True):
            raise ValueError(complain("enable_winograd", repr(enable_winograd), "True (as 4), 4, 2 or False"))
        if not isinstance(scratch_size, (int, np.integer)) or scratch_size < 0:
            raise ValueError(complain("scratch_size", repr(scratch_size), "bytes, or 0 for no bound"))
        for option, number in {"device_id": device_id, "num_devices": num_devices}.items():
            if number is not None and not (isinstance(number, (int, np.integer)) and number >= 0):
                raise ValueError(complain(option, repr(number), "an int of 0 or more, or None"))
        self.enable_winograd = 4 if enable_winograd == 1 else int(enable_winograd)
        self.scratch_size = self._most_scratch = int(scratch_size)
        self.compat_mode = compat_mode
        self.min_dims = min_dims
        self._bench = bool(bench)
        self.bench_records: deque[watch.BenchRecord] = deque(maxlen=MOST_RECORDS)
        self.device_id = device_id or 0
        self.num_devices = 1
        self.use_pinned_mem = False
        self.bsz = None
        self.round_mode = _mantissa_bits(10 if stochastic_round is True else stochastic_round or 0)
        self.deterministic = rng_seed is not None
        self._take_lock(Lock())
        _living.add(self)
        self.structures = StructureTable(self, self.default_dtype)
        self._block = FuseBlock(self._schedule, self._run_group, self._fit, self.structures.plans)
        self.gen_rng(rng_seed)
        self._hist_rows: list[tuple[str, Tensor]] = []
        self.hist_bins = self.hist_offset = 0
        self.set_hist_buffers(hist_bins, hist_offset)
        self._events: tuple[Any, Any] | None = None
        self._recorder: Recorder | None = None
        self._user_kernels: dict[tuple, ElementwiseKernel | ReductionKernel] = {}

    @property
    def default_dtype(self) -> np.dtype:
        """The element type of new tensors: one for a backend's life, since trees and kernels that are kept know it."""
        return self._default_dtype

    @default_dtype.setter
    def default_dtype(self, asked: Any) -> None:
        given, hint = f"{asked} for {self._default_dtype}", "gen_backend(datatype=...), or dtype= for a tensor"
        raise AttributeError(complain("default_dtype: set on a backend", given, "that which it was made with", hint))

    def _default_type(self, asked: Any) -> np.dtype:
        """The element type of new tensors. Raises `ValueError` for what this backend does not compute by default."""
        try:
            found = dtypes.as_dtype(asked)
        except DTypeError:
            found = None
        if found is None or found not in self.default_dtypes:
            names, given = ", ".join(d.name for d in self.default_dtypes), str(asked) if found is None else found.name
            raise ValueError(complain(f"{self.backend_name}: default type", given, f"one of {names}"))
        return found

    # The registry

    @staticmethod
    def backend_choices() -> list[str]:
        """The names of all registered backends, sorted."""
        return sorted(Backend.backends)

    @staticmethod
    def allocate_backend(name: str, **kargs: Any) -> Backend:
        """A backend by name, with the constructor's arguments; the global backend stays.

        A driver may follow the name: 'gpu:emulator'. Raises `ValueError` for an unknown name, a driver of a backend
        without drivers, or another one as `driver`, `TypeError` for an option that the backend does not take.
        """
        if not isinstance(name, str):
            raise ValueError(complain("backend: no name", repr(name), ", ".join(sorted(Backend.backends))))
        name, _, driver = name.partition(":")
        if driver and kargs.get("driver") not in (None, driver):
            raise ValueError(complain(f"backend '{name}:{driver}': driver", repr(kargs["driver"]), repr(driver)))
        if driver:
            kargs["driver"] = driver
        cls = Backend.backends.get(name)
        if cls is None:
            for unfinished in (c for c in Backend.__subclasses__() if c.backend_name == name):
                lacks = ", ".join(sorted(unfinished.__abstractmethods__))
                raise ValueError(complain(f"backend {name!r}: its class is not finished", "", f"methods {lacks}"))
            raise ValueError(complain(f"backend {name!r}: unknown", "", nearest(name, Backend.backends)))
        _check_options(name, cls, kargs)
        return cls(**kargs)

    def __copy__(self) -> Backend:
        return self

    def __deepcopy__(self, memo: dict) -> Backend:
        return self  # so that copies of layers that hold it share it

    def __reduce__(self) -> Any:
        hint = "gen_backend in the other process"
        raise TypeError(complain("pickle: a backend belongs to its process", repr(self), "", hint))

    @property
    def closed(self) -> bool:
        """Whether `cleanup_backend` was called."""
        return self.structures.closed

    def cleanup_backend(self) -> None:
        """Free the device's resources, once the statements that run in other threads have ended. Tensors can still be
        read with `get()`; what makes, writes or computes raises. Safe to call twice."""
        with self._lock:
            if self.closed:
                return
            self._flush()
            self.structures.close()
            self._hist_rows.clear()
            self.scratch_buffer_reset()
            self._close()

    @property
    def _min_dims(self) -> int:
        return self.min_dims

    @property
    def bench(self) -> bool:
        """Whether the time of each kernel and primitive is logged, with GFLOP/s, GB/s and the share of the machine's
        limits, and added to `bench_records`. Runs take longer meanwhile: each kernel is waited for."""
        return self._bench

    @bench.setter
    def bench(self, wanted: bool) -> None:
        with self._lock:
            self._bench = bool(wanted)
            self._forget_recipes()

    @functools.cached_property
    def xp(self) -> ArrayModule:
        """NumPy's functions on this backend's arrays, for layer code that is written once."""
        from tensorbackend.backends.xp import ArrayModule

        return ArrayModule(self)

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<{type(self).__name__} {self.backend_name!r} {self.default_dtype}{state}>"

    def output_dim(
        self, X: int, S: int, padding: int | tuple[int, int], strides: int, pooling: bool = False, dilation: int = 1
    ) -> int:
        """The output length of a convolution or pooling along one axis.

        `X` is the input's length, `S` the window's, `padding` both ends' or a pair (before, after):
        floor((X - Sd + 2 padding) / strides) + 1 with Sd = dilation (S - 1) + 1, and in Caffe's mode for pooling the
        ceiling, less a last window wholly in padding. Raises `ValueError` for lengths, strides and dilations below 1,
        and when pooling's padding is not below the window's length.
        """
        X, S, strides, dilation = positive("output_dim", X=X, S=S, strides=strides, dilation=dilation)
        window, pad = dilation * (S - 1) + 1, pad_pair("output_dim", padding)
        return output_length(X, window, pad, strides, pooling, self.check_caffe_compat())

    def set_caffe_compat(self) -> None:
        """Size pooling outputs as Caffe does."""
        self.compat_mode = "caffe"

    def check_caffe_compat(self) -> bool:
        """Whether outputs are sized as Caffe does."""
        return self.compat_mode == "caffe"

    def begin(self, block: int, identifier: int) -> None:
        """A hint that a loop's body starts (`Block` names them); no effect on values."""

    def end(self, block: int, identifier: int) -> None:
        """A hint that a loop's body ends."""

    # Running op-trees

    def execute(self, optree: Any, out: Tensor | None = None) -> Tensor:
        """Run an op-tree into `out`, or into a new tensor of its type, and return the tensor."""
        return self.evaluate(optree, out)

    def evaluate(self, expr: Any, out: Tensor | None = None, dtype: Any = None) -> Tensor:
        """The value of an expression (op-tree, tensor, number, array) in `out`, or in a new tensor.

        A new tensor has the expression's type unless `dtype` says otherwise. Raises `ShapeError` when nothing
        decides the shape (rand or onehot alone).
        """
        if out is not None:
            return finished(expr, out)
        if not isinstance(expr, Operators):
            value = known(expr)
            made = self.array(value, dtype=dtype or indexing.as_array("evaluate", value).dtype)
            return made._assign(expr) if is_symbol(expr) else made
        shape = sized(expr.structure.op, expr.structure) if expr.structure.op else expr.shape
        made = self.empty(shape, dtype or expr.dtype, min_dims=rank_rule(expr))
        return made._assign(expr)

    def _assign(self, target: Tensor, value: Any) -> None:
        """`target[:] = value` for a tensor, an op-tree, a number or host data: all checks, then one plan."""
        layout = target.structure
        table = layout.table
        if table.closed:
            table.check_open()
        if not target.storage.writable or not layout.nested:
            check_writable(target)
        if isinstance(value, Operators):
            if value.structure.table is not table:
                _foreign(target, value)
        elif not isinstance(value, (bool, int, float)):
            if isinstance(value, np.generic):
                check_cast(layout.dtype, value)
            else:
                value = self._host_value(target, value)
                if value is None:
                    return
        if target.rounding and dtypes.is_float(layout.dtype):
            value = self._rounded(target, value)
        if self._recorder is not None and self._recorder.is_between():
            self._flush()  # the function's block is not the handler's
        elif self._block.add(target, value):
            return
        with self._lock:
            if table.closed:  # while this thread waited for its turn
                table.check_open()
            if watch.watching:
                with watch.stating([(target, value)]):
                    self._run_statement(target, value)
            else:
                self._run_statement(target, value)

    def explain(self, what: Any, *arguments: Any, repeat: int | None = None) -> Explanation:
        """What statements become: kernels, why they were cut there, sources, bytes, operations, measured times.

        `what` is an expression; or a tensor, and the value that is assigned to it follows (`be.explain(y, tree)`); or a
        function or captured program, called with `arguments`, whose statements are explained. They run: `repeat` times
        (None: a function once, others ten times), which leaves tensors and random numbers as one run would. `str()` of
        the result fits a bug report, `save(path)` writes a page.
        """
        from tensorbackend.backends.program import Program

        self.structures.check_open()
        found = watch.explain(self, what, arguments, repeat)
        found.about = repr(what) if isinstance(what, Program) else ""
        return found

    def capture(self, fn: Callable, *args: Any) -> Program:
        """Run `fn(*args)` once, and record what it launches: `program(*args)` then repeats that with one call.

        Arguments and results are tensors and numbers, also in tuples, lists and dictionaries. A call takes tensors of
        the same layouts and other numbers, and does what `fn` would: random draws go on, and tensors that `fn` finds
        elsewhere (weights) are read and written in place. What `fn` decides in Python is decided once. docs/capture.md
        says more. Raises `CaptureError` for what cannot be repeated: a host read, a branch on an argument, a list
        among them that is changed; `TypeError` for what is no function.
        """
        from tensorbackend.backends.program import capture

        self.structures.check_open()
        if not callable(fn):
            raise TypeError(complain("capture: fn", f"{type(fn).__name__}", "a function", "be.capture(fn, *arguments)"))
        return capture(self, fn, args)

    def fuse(self) -> FuseBlock:
        """Assignments inside the `with` block run together, in as few kernels as possible; their values are the same.

        Sums may be added up in another order, beside operands that lie in memory otherwise. An Adam step is one pass
        over memory. What was stated runs at the block's end, before anything is read or an exception leaves it, and
        wherever a statement cannot join those before it. Blocks may nest; each thread has its own.
        """
        return self._block

    def _assign_together(self, statements: Sequence[tuple[Tensor, Any]]) -> tuple[Plan, list[Tensor], list[Any]]:
        """Assign values to targets in as few kernels as there can be: values over one space, and results of its rows.

        All checks are done. No value reads the target of a statement before it (`StatementGroup.put` says the rest).
        Returns the plan, its targets and its leaves, with which `_run_group` does the same again.
        """
        self.structures.check_open()
        self._flush()
        group = StatementGroup(self._schedule, self._run_group, self.structures.plans)
        for target, value in statements:
            if target.rounding and dtypes.is_float(target.dtype):
                value = self._rounded(target, value)
            group.put(target, value)
        targets = list(group.targets)
        plan, leaves = group.flush()
        return plan, targets, leaves

    def _runs_steps(self, cell: Any, run: Any, dtype: np.dtype) -> bool:
        """Whether the steps of a recurrent layer's cell (`primitives/cells.py`) run as one primitive here."""
        return False

    @property
    def _watched(self) -> bool:
        """Whether somebody looks at what runs."""
        return watch.wanted(self)

    def _run_group(self, plan: Plan, targets: list[Tensor], leaves: list[Any]) -> None:
        with self._lock:
            self.structures.check_open()
            self._run_plan(plan, targets, leaves)

    def _planned(self, plan: Plan) -> Any:
        """A plan as the backend runs it, with `actions()` (see `plans.py`) if programs can be captured."""
        raise CaptureError(complain(f"capture: {self!r} records no programs", "", "a backend with `_planned`"))

    def _tensor_at(self, layout: Structure, address: int) -> Tensor:
        """A tensor on memory that somebody else keeps alive."""
        tensor = object.__new__(self.tensor_cls)
        low, high = layout.extent
        tensor._place(layout, Storage(address + low, high - low, self), address)
        tensor.base = tensor.name = None
        tensor.persist_values, tensor.rounding = True, 0
        return tensor

    def _array_at(self, ref: Any, address: int) -> np.ndarray:
        """What lies at an address, laid out as a reference says, on the host."""
        layout = self.structures.tensor(ref.dtype, ref.shape, ref.strides, 0)
        return self._download(self._tensor_at(layout, address))

    def _record_repeats(self, name: str, runs: int, milliseconds: float, flops: int) -> tuple[float, float]:
        """Report what `repeat=` asked for: the mean time of `runs` runs. Returns (milliseconds, GFLOP/s)."""
        record = watch.BenchRecord(name, (), max(milliseconds, 1e-6) * 1e-3, 0, flops, runs=runs)
        watch.report(self, record)
        return milliseconds, record.gflops

    @property
    def _has_graphs(self) -> bool:
        """Whether launches can become a graph, which `_graph` makes."""
        return False

    def _graph(self, run: Callable[[], None]) -> Callable[[], None]:
        """What `run` launches, not yet run, as one call that repeats it."""
        return run

    def _arena_of_recipe(self, nbytes: int) -> tuple[int, int, Any] | None:
        """Memory for temporaries of what native code repeats: where it begins, the bytes that native code takes for it
        at each repeat, and what keeps it; None where it would be too much."""
        return 0, nbytes, None

    def _forget_plans(self) -> None:
        """Forget how everything is run: plans, and the launches of user kernels. They are made again."""
        self.structures.clear()
        self.structures.plans.clear()
        for kernel in list(self._user_kernels.values()):
            kernel.forget()

    def _forget_recipes(self) -> None:
        """Have native code forget what it repeats by itself: all statements come through Python from now on."""

    def _take_lock(self, turn: Lock) -> None:
        """From now on statements run while `turn` is held. `_lock` is that lock as it is now: a forked child may have
        another one."""
        self._turn, self._lock = turn, turn.now

    def _stand_aside(self, aside: bool) -> None:
        """Have native code pass all statements and calls on to Python from now on, or no more."""

    def _host_access(self) -> None:
        """The host is about to see memory as it is: what waits is run."""
        self._flush()

    def _flush(self) -> None:
        """Run the statements that wait in this thread's `fuse` block: something is about to look at memory."""
        self._block.flush()

    def _scatter_rounded(self, target: Tensor, key: Any, value: Any) -> None:
        """`target[key] = value` for an index of arrays or masks, with the target's stochastic rounding."""
        if target.rounding and dtypes.is_float(target.dtype):
            if not isinstance(value, Operators):
                host = host_array(value, "assignment")
                value = self.array(host, dtype=host.dtype, min_dims=0)
            part = self._gather(target, key)
            part.rounding = target.rounding
            value = part._assign(value)
        tree = None if target.rounding else filled(target, key, value)
        if tree is None:
            self._scatter(target, key, value)
        else:
            target._assign(tree)

    def _host_value(self, target: Tensor, value: Any) -> Any:
        """Copy host data in; a single number, or data to round, is given back to be assigned."""
        values = host_array(value, "assignment")
        check_cast(target.dtype, values)
        if values.ndim == 0:
            return values[()]
        if values.size != target.size:
            raise ShapeError(
                complain(
                    "assignment: sizes differ", f"array {values.shape} into {target.shape}", f"{target.size} elements"
                )
            )
        values = values.reshape(target.shape)
        if target.rounding and dtypes.is_float(target.dtype):
            return self.array(values, dtype=values.dtype, min_dims=0)
        self._flush()
        with self._lock:
            self._upload(target, values)
        return None

    def _rounded(self, target: Tensor, value: Any) -> OpTreeNode:
        bits = source(ops.OPS["randbits"], self.structures, target.shape)
        if target.dtype == np.float64 and isinstance(value, (int, float)):
            value = np.float64(value)
        return apply(ops.OPS["sround"], value, bits, _mantissa_bits(target.rounding))

    def _statement_key(self, target: Tensor, value: Any) -> tuple[tuple, list[Any]]:
        """What the plan of `target[:] = value` is remembered by, and the leaves of the value."""
        leaves, repeats = walk(value)
        root = value.structure if isinstance(value, Operators) else value.__class__
        return (target.structure, root, repeats, overlap(target, leaves)), leaves

    def _call(self, op: ops.Op, params: tuple, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        """Run a primitive of several results on tensors; all checks are done."""
        self._flush()
        with self._lock:
            self.structures.check_open()
            plans = self.structures.plans
            key = (op, exact(params), *(x.structure for x in (*outputs, *inputs)))
            plan = plans.get(key)
            if plan is not None:
                self._run_plan(plan, outputs, inputs)
                return
            with settings.as_they_are():
                made = single_call(op, params, [x.structure for x in outputs], [x.structure for x in inputs])
                plans[key] = made
                self._run_plan(made, outputs, inputs)

    def _run_statement(self, target: Tensor, value: Any) -> None:
        key, leaves = self._statement_key(target, value)
        plans = self.structures.plans
        plan = plans.get(key)
        if plan is not None:
            self._run_plan(plan, [target], leaves)
            return
        value = self._fit(target, value)
        with settings.as_they_are():
            statements = [Statement(target.structure, value, key[-1])]
            plan = plans.make(key, lambda: self._schedule(key, statements, [leaves]))
            self._run_plan(plan, [target], leaves)

    def _schedule(self, key: tuple, statements: list[Statement], leaves: list[list[Any]]) -> Plan:
        """The plan of statements that are new here, and are to be remembered by `key`."""
        return schedule(statements, leaves)

    def _fit(self, target: Tensor, value: Any) -> Any:
        """The value, of a shape that broadcasts to the target's (leading axes of length 1 are dropped)."""
        shape = value.shape if isinstance(value, Operators) else ()
        if shape is None:
            return value
        kept = indexing.without_leading(shape, len(target.shape))
        least = tuple(1 if n == UNKNOWN else n for n in kept)
        if broadcast_shapes("assignment", [least, target.shape]) != target.shape:
            raise ShapeError(
                complain(
                    "assignment: shapes do not fit",
                    f"{shape} into {target.shape}",
                    "a shape that broadcasts to the target's",
                )
            )
        return value if kept is shape else apply(ops.OPS["reshape"], value, params=(kept,))

    def _run_planned(self, run: Any, targets: list[Tensor], leaves: list[Any]) -> None:
        """Run a plan made ready, with new draws; watched where somebody wants that."""
        draws = self._draw_numbers(leaves) if run.draws else {}
        if watch.wanted(self):
            watch.run_plan(self, run, targets, leaves, draws)
        else:
            run(targets, leaves, draws)

    # Hooks about indexing by arrays and masks: through the host, where a backend has nothing better

    def _gather(self, tensor: Tensor, key: Any) -> Tensor:
        """A copy of what NumPy's indexing by arrays and masks picks."""
        picked = host_picked(self._download(tensor), host_key(key))
        return self.array(picked, dtype=tensor.dtype, min_dims=tensor._min_dims)

    def _scatter(self, tensor: Tensor, key: Any, value: Any) -> None:
        """`tensor[key] = value` for an index of arrays or masks. Raises `IndexError` before writing."""
        check_writable(tensor)
        whole, key = self._download(tensor), host_key(key)
        whole[key] = host_values(self, tensor.dtype, picked_shape(whole.shape, key), value)
        self._upload(tensor, whole)

    # Hooks: what a backend implements

    @abstractmethod
    def _allocate(self, nbytes: int) -> Storage:
        """Fresh memory of `nbytes` (at least one byte), aligned to 64. Raises `MemoryError` naming the size."""

    def _given_memory(self, memory: Any, nbytes: int) -> Storage:
        """What a caller's allocator gave for `nbytes`: by `int()` an address, which the object keeps alive."""
        if isinstance(memory, Tensor):
            check_home(self, memory)
        if not hasattr(memory, "__int__") or isinstance(memory, (float, np.floating, np.ndarray)):
            expected = "an address, or an object of which int() makes one"
            raise TypeError(complain("allocator: what it gave", type(memory).__name__, expected))
        check_room(getattr(memory, "nbytes", nbytes), nbytes)
        return Storage(int(memory), nbytes, memory)

    def _trim(self) -> None:
        """Give memory that is kept for reuse back to the system, where that is this class's to do."""
        return

    @abstractmethod
    def _upload(self, tensor: Tensor, values: np.ndarray) -> None:
        """Copy host numbers of the tensor's shape in, cast as `dtypes.cast` does."""

    def _host_view(self, tensor: Tensor) -> np.ndarray:
        """A tensor's numbers on the host, to be read at once: in its own memory, where the host has it."""
        return self._download(tensor)

    @abstractmethod
    def _download(self, tensor: Tensor) -> np.ndarray:
        """The elements as a new host array. Works on a closed backend too."""

    @abstractmethod
    def _run_plan(self, plan: Plan, targets: list[Tensor], leaves: list[Any]) -> None:
        """Run the steps of a plan on its targets and leaves (see `graph/plan.py`), in order."""

    @abstractmethod
    def _close(self) -> None:
        """Free what the backend holds beside tensors."""


def _mantissa_bits(asked: Any) -> int:
    """The bits that stochastic rounding keeps; float32 has 23. Raises `ValueError` for others."""
    if not isinstance(asked, (int, np.integer)) or not 0 <= asked <= 23:
        raise ValueError(complain("stochastic rounding: mantissa bits", repr(asked), "an int from 0 (off) to 23"))
    return int(asked)


def _foreign(target: Tensor, value: Any) -> None:
    value.structure.table.check_open()
    given = f"{value.backend!r} into {target.backend!r}"
    raise BackendError(
        complain("assignment: another backend's tensor", given, "tensors of one backend", "t.set(other.get())")
    )


install(Backend)
