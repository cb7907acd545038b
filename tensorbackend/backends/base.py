# SPDX-License-Identifier: Apache-2.0
"""The contract: the abstract `Backend`, every public method documented here and only here.

A backend subclass implements the hooks at the end of the class (memory, copies, running a plan, marks) and has
everything else: allocation, op-trees, elementwise ops and reductions (made from the op table), random numbers, linear
algebra, histograms. All checks happen here, before a hook is called, so every backend raises the same errors.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.backends import watch
from tensorbackend.backends.host import host_key, host_values
from tensorbackend.backends.scratch import ScratchMemory
from tensorbackend.backends.statements import FuseBlock, StatementGroup
from tensorbackend.errors import BackendError, CaptureError, DTypeError, ShapeError, complain, nearest
from tensorbackend.graph import composite
from tensorbackend.graph.fuse import schedule, single_call, walk
from tensorbackend.graph.optree import Operators, OpTreeNode, apply, source
from tensorbackend.graph.plan import Plan, Statement
from tensorbackend.graph.structure import Structure, StructureTable, broadcast_shapes, sized
from tensorbackend.graph.tensor import Storage, TakeView, Tensor, as_shape, check_cast, check_writable
from tensorbackend.primitives.conv import Convolution
from tensorbackend.primitives.gated import Gated
from tensorbackend.primitives.geometry import output_length, pad_pair
from tensorbackend.primitives.hooks import LayerHooks
from tensorbackend.primitives.linear import LinearAlgebra
from tensorbackend.primitives.lookup import LookupTables
from tensorbackend.primitives.lrn import ResponseNorm
from tensorbackend.primitives.norm import Normalization
from tensorbackend.primitives.pool import Pooling
from tensorbackend.primitives.recurrent import Recurrent
from tensorbackend.primitives.regions import Regions

if TYPE_CHECKING:  # what few programs need is imported by the methods that need it
    from tensorbackend.backends.capture import Recorder
    from tensorbackend.backends.program import Program
    from tensorbackend.backends.user import ElementwiseKernel, ReductionKernel
    from tensorbackend.backends.user_launch import Target
    from tensorbackend.backends.xp import ArrayModule
    from tensorbackend.explain import Explanation

__all__ = ["Backend", "Block"]

MAX_PLANS = 1 << 13
MAX_HISTOGRAMS = 4096
MOST_RECORDS = 1 << 16


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
                                 nearest(unknown[0], taken - {"arguments", "keywords"})))  # fmt: skip


class Backend(
    LinearAlgebra, Convolution, Pooling, ResponseNorm, Normalization, Recurrent, Gated, LookupTables, Regions,
    LayerHooks, ScratchMemory, ABC,
):  # fmt: skip
    """Tensors, op-trees and deep-learning primitives on one kind of machine.

    `rng_seed` seeds all random numbers (None: different each run) and, when given, makes every result reproducible
    (`deterministic`). `default_dtype` is the element type of new tensors. `compat_mode` is None or 'caffe' (output
    sizes of pooling). `stochastic_round` is the mantissa bits that new tensors keep (True: 10, False or None: off).
    `num_devices` and `device_id` have no effect here; `deterministic` is deprecated. `min_dims` is
    the least rank of new tensors: with 2, shape n becomes the column (n, 1). `bench` logs and records the time of each
    kernel. `enable_winograd` lets convolutions use Winograd's algorithm with tiles up to 4 x 4 (True, 4) or 2 x 2 (2),
    see docs/accuracy.md. `scratch_size` bounds the bytes of a convolution's scratch where there is a choice (0: none).

    Defining a subclass registers it under `backend_name`; `gen_backend(name)` finds it. Classes with abstract methods
    left are not registered.
    """

    backends: ClassVar[dict[str, type[Backend]]] = _Backends(OUR_BACKENDS)
    backend_name: ClassVar[str] = "Backend"
    device_type: ClassVar[int] = 0
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
        self.default_dtype = dtypes.as_dtype(default_dtype)
        if self.default_dtype not in self.default_dtypes:
            names = ", ".join(d.name for d in self.default_dtypes)
            raise ValueError(complain(f"{self.backend_name}: default type", self.default_dtype.name, f"one of {names}"))
        if compat_mode not in (None, "caffe"):
            raise ValueError(complain("compat_mode", repr(compat_mode), "None or 'caffe'"))
        if min_dims not in (0, 1, 2):
            raise ValueError(complain("min_dims", repr(min_dims), "0, 1 or 2"))
        if enable_winograd not in (False, 2, 4, True):
            raise ValueError(complain("enable_winograd", repr(enable_winograd), "True (as 4), 4, 2 or False"))
        if not isinstance(scratch_size, int) or scratch_size < 0:
            raise ValueError(complain("scratch_size", repr(scratch_size), "bytes, or 0 for no bound"))
        self.enable_winograd = 4 if enable_winograd is True else int(enable_winograd)
        self.scratch_size = scratch_size
        self.compat_mode = compat_mode
        self.min_dims = min_dims
        self._bench = bool(bench)
        self.bench_records: deque[watch.BenchRecord] = deque(maxlen=MOST_RECORDS)
        self.device_id = device_id or 0
        self.num_devices = 1
        self.use_pinned_mem = False
        self.bsz: int | None = None
        self.round_mode = _mantissa_bits(10 if stochastic_round is True else stochastic_round or 0)
        self.deterministic = rng_seed is not None
        self._lock = threading.RLock()
        self.structures = StructureTable(self, self.default_dtype)
        self._block = FuseBlock(self._schedule, self._run_group, self._fit, self.structures.plans)
        self.gen_rng(rng_seed)
        self._hist_rows: list[tuple[str, Tensor]] = []
        self.hist_bins, self.hist_offset = hist_bins, hist_offset
        self._events: tuple[Any, Any] | None = None
        self._recorder: Recorder | None = None
        self._user_kernels: dict[tuple, ElementwiseKernel | ReductionKernel] = {}

    # The registry

    @staticmethod
    def backend_choices() -> list[str]:
        """The names of all registered backends, sorted."""
        return sorted(Backend.backends)

    @staticmethod
    def allocate_backend(name: str, **kargs: Any) -> Backend:
        """A backend by name, with the constructor's arguments; the global backend stays.

        Raises `ValueError` for an unknown name, or a driver of a backend without drivers, `TypeError` for an option
        that the backend does not take.
        """
        cls = Backend.backends.get(name)
        if cls is None:
            raise ValueError(complain(f"backend {name!r}: unknown", "", nearest(name, Backend.backends)))
        _check_options(name, cls, kargs)
        return cls(**kargs)

    @property
    def closed(self) -> bool:
        """Whether `cleanup_backend` was called."""
        return self.structures.closed

    def cleanup_backend(self) -> None:
        """Free the device's resources. Tensors can still be read with `get()`; all else raises. Safe to call twice."""
        if not self.closed:
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

    # Allocation

    def empty(
        self,
        shape: Any,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
        min_dims: int | None = None,
    ) -> Tensor:
        """An uninitialised tensor. `dtype` None is `default_dtype`; `parallel`, `distributed`: no effect here."""
        self.structures.check_open()
        kind = dtype or self.default_dtype
        return self.tensor_cls(self, shape, kind, name=name, persist_values=persist_values, min_dims=min_dims)

    def array(
        self,
        ary: Any,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
        min_dims: int | None = None,
    ) -> Tensor:
        """A tensor with a copy of host data (anything `np.asarray` takes), converted to `dtype` (None: the default)."""
        self.structures.check_open()
        values = _host_array(ary, "array")
        out = self.empty(values.shape, dtype, name, persist_values, min_dims=min_dims)
        self._upload(out, values.reshape(out.shape))
        return out

    def zeros(self, shape: Any, dtype: Any = None, name: str | None = None, persist_values: bool = True,
              parallel: bool = False, distributed: bool = False, min_dims: int | None = None) -> Tensor:  # fmt: skip
        """A tensor of zeros; arguments as `empty`."""
        return self.empty(shape, dtype, name, persist_values, min_dims=min_dims)._assign(0)

    def ones(self, shape: Any, dtype: Any = None, name: str | None = None, persist_values: bool = True,
             parallel: bool = False, distributed: bool = False, min_dims: int | None = None) -> Tensor:  # fmt: skip
        """A tensor of ones; arguments as `empty`."""
        return self.empty(shape, dtype, name, persist_values, min_dims=min_dims)._assign(1)

    def full(self, shape: Any, value: Any, dtype: Any = None, name: str | None = None,
             min_dims: int | None = None) -> Tensor:  # fmt: skip
        """A tensor with every element `value`."""
        return self.empty(shape, dtype, name, min_dims=min_dims)._assign(value)

    def arange(
        self, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, min_dims: int | None = None
    ) -> Tensor:
        """The numbers from `start` (0 if only one is given) up to `stop`, as NumPy's `arange`."""
        values = np.arange(start, step=step) if stop is None else np.arange(start, stop, step)
        return self.array(values, dtype=dtype, min_dims=min_dims)

    def empty_like(self, other_ary: Any, name: str | None = None, dtype: Any = None) -> Tensor:
        """An uninitialised tensor of the argument's shape and (unless `dtype` is given) type."""
        return self.empty(other_ary.shape, dtype or other_ary.dtype, name, min_dims=_rank_rule(self, other_ary))

    def zeros_like(self, other_ary: Any, name: str | None = None, dtype: Any = None) -> Tensor:
        """Zeros of the argument's shape and (unless `dtype` is given) type."""
        return self.empty_like(other_ary, name, dtype)._assign(0)

    def ones_like(self, other_ary: Any, name: str | None = None, dtype: Any = None) -> Tensor:
        """Ones of the argument's shape and (unless `dtype` is given) type."""
        return self.empty_like(other_ary, name, dtype)._assign(1)

    def copy(self, a: Any, name: str | None = None) -> Tensor:
        """A new contiguous tensor with the value of a tensor or op-tree."""
        out = self.evaluate(a)
        out.name = name
        return out

    def iobuf(
        self,
        dim0: Any,
        x: Tensor | None = None,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        shared: Tensor | None = None,
        parallelism: str | None = None,
    ) -> Tensor:
        """A zeroed buffer for activations of the current batch size `bsz`.

        `x` is returned unchanged if given. `dim0` an int gives (dim0, bsz), two ints (features, steps · bsz), more
        (their product, bsz). `shared` lends its memory. `parallelism` ('Data', 'Model', 'Disabled') has no effect
        on one device. Raises `ValueError` when no batch size is set.
        """
        if x is not None:
            return x
        if self.bsz is None:
            raise ValueError(
                complain(
                    "iobuf: no batch size", "be.bsz is None", "an int", "be.bsz = 128, or gen_backend(batch_size=128)"
                )
            )
        if isinstance(dim0, (tuple, list)):
            pair = len(dim0) == 2
            shape = (dim0[0], dim0[1] * self.bsz) if pair else (math.prod(dim0), self.bsz)
        else:
            shape = (dim0, self.bsz)
        if shared is None:
            return self.zeros(shape, dtype, name, persist_values)
        fits = shared.shape == shape and dtype in (None, shared.dtype)
        out = shared if fits else shared.share(shape, dtype, name)
        return out._assign(0)

    def shared_iobuf_size(self, shape: Any, parallelism: str | None) -> int:
        """The elements of a shared buffer: the shape's, times the devices unless `parallelism` is 'Data' or 'Model'."""
        size = math.prod(shape) if isinstance(shape, (tuple, list)) else int(shape)
        return size if parallelism in ("Data", "Model") else size * self.num_devices

    def output_dim(
        self, X: int, S: int, padding: int | tuple[int, int], strides: int, pooling: bool = False, dilation: int = 1
    ) -> int:
        """The output length of a convolution or pooling along one axis.

        `X` is the input's length, `S` the window's, `padding` both ends' or a pair (before, after):
        floor((X - Sd + 2 padding) / strides) + 1 with Sd = dilation (S - 1) + 1, and in Caffe's mode for pooling the
        ceiling, less a last window wholly in padding. Raises `ValueError` when pooling's padding is not below the
        window's length.
        """
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
        return self.evaluate(optree) if out is None else out._assign(optree)

    def evaluate(self, expr: Any, out: Tensor | None = None, dtype: Any = None) -> Tensor:
        """The value of an expression (op-tree, tensor, number, array) in `out`, or in a new tensor.

        A new tensor has the expression's type unless `dtype` says otherwise. Raises `ShapeError` when nothing
        decides the shape (rand or onehot alone).
        """
        if out is not None:
            return out._assign(expr)
        if not isinstance(expr, Operators):
            return self.array(expr, dtype=dtype or np.asarray(expr).dtype)
        shape = sized(expr.structure.op, expr.structure) if expr.structure.op else expr.shape
        made = self.empty(shape, dtype or expr.dtype, min_dims=_rank_rule(self, expr))
        return made._assign(expr)

    def _assign(self, target: Tensor, value: Any) -> None:
        """`target[:] = value` for a tensor, an op-tree, a number or host data: all checks, then one plan."""
        layout = target.structure
        table = layout.table
        if table.closed:
            table.check_open()
        if not target.storage.writable or 0 in layout.strides:
            check_writable(target)
        if isinstance(value, Operators):
            if value.structure.table is not table:
                _foreign(target, value)
        elif not isinstance(value, (bool, int, float, np.generic)):
            value = self._host_value(target, value)
            if value is None:
                return
        if target.rounding and dtypes.is_float(layout.dtype):
            value = self._rounded(target, value)
        if watch.watching:
            watch.state(target, value)
        if self._block.add(target, value):
            return
        with self._lock:
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
        says more. Raises `CaptureError` for what cannot be repeated: a host read, a branch on an argument.
        """
        from tensorbackend.backends.program import capture

        self.structures.check_open()
        return capture(self, fn, args)

    def elementwise(self, *texts: str, preamble: str = "", options: Sequence[str] = ()) -> ElementwiseKernel:
        """A kernel from C text, to be called: `be.elementwise("T x, T y", "T z", "z = x * y + 1", "muladd")`.

        Three texts of which the first holds a `*` are parameters, body and name in the pointer style. `preamble` is put
        before the kernel; `options` are macros, such as '-DSIZE=3'. The same texts give the same kernel.
        docs/user-kernels.md says what texts may hold. Raises `ValueError` for texts that are none; `CompileError` comes
        from the first call.
        """
        from tensorbackend import user_kernels
        from tensorbackend.backends.user import ElementwiseKernel

        key = ("elementwise", *texts, preamble)
        spec = functools.partial(user_kernels.elementwise, texts, preamble, options)
        return self._user_kernel((*key, *options), lambda: ElementwiseKernel(self, spec()))

    def reduction(self, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str,
                  identity: Any, name: str, preamble: str = "",
                  options: Sequence[str] = ()) -> ReductionKernel:  # fmt: skip
        """A reduction from C text: `be.reduction("T x", "T y", "x * x", "a + b", "y = a", "0", "sqsum")`.

        Elements become `map_expr`, two of them `reduce_expr` of `a` and `b`, and the output is assigned from `a`; no
        elements give `identity`. Raises as `elementwise`.
        """
        from tensorbackend import user_kernels
        from tensorbackend.backends.user import ReductionKernel

        texts = (in_params, out_params, map_expr, reduce_expr, post_map_expr, str(identity), name, preamble)
        key = ("reduction", *texts)
        spec = functools.partial(user_kernels.reduction, *texts, options)
        return self._user_kernel((*key, *options), lambda: ReductionKernel(self, spec()))

    def _user_kernel(self, key: tuple, make: Callable[[], Any]) -> Any:
        self.structures.check_open()
        kernel = self._user_kernels.get(key)
        if kernel is None:
            kernel = self._user_kernels[key] = make()
        return kernel

    def _run_user(self, launch: Any, tensors: list[Tensor], numbers: list[Any]) -> None:
        """Run a user kernel's launch on tensors and numbers."""
        run = functools.partial(launch, self, [x.address for x in tensors], numbers)
        if watch.wanted(self):
            watch.run_user(self, launch, launch.call(tensors), run)
        else:
            run()

    def _user_target(self) -> Target:
        """Where user kernels are compiled and run. Raises `BackendError` when nothing compiles them here."""
        hint = "gen_backend('cpu') with a C compiler (python -m tensorbackend info), without jit=False and TB_JIT=0"
        raise BackendError(complain(f"{self!r}: user kernels need a C compiler", "it runs without one", "", hint))

    def fuse(self) -> FuseBlock:
        """Assignments inside the `with` block run together, in as few kernels as possible; their values are the same.

        An Adam step is one pass over memory. What was stated runs at the block's end, before anything is read or an
        exception leaves it, and wherever a statement cannot join those before it. Blocks may nest; each thread has
        its own.
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
            if watch.watching:
                watch.state(target, value)
            group.put(target, value)
        targets = group.targets
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

    def _forget_recipes(self) -> None:
        """Have native code forget what it repeats by itself: all statements come through Python from now on."""

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
                host = _host_array(value, "assignment")
                value = self.array(host, dtype=host.dtype, min_dims=0)
            part = self._gather(target, key)
            part.rounding = target.rounding
            value = part._assign(value)
        self._scatter(target, key, value)

    def _host_value(self, target: Tensor, value: Any) -> Any:
        """Copy host data in; a single number, or data to round, is given back to be assigned."""
        values = _host_array(value, "assignment")
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
        return apply(ops.OPS["sround"], value, bits, _mantissa_bits(target.rounding))

    def _statement_key(self, target: Tensor, value: Any) -> tuple[tuple, list[Any]]:
        """What the plan of `target[:] = value` is remembered by, and the leaves of the value."""
        leaves, repeats = walk(value)
        overlap = 0
        start, stop = target.start, target.stop
        for x in leaves:
            if isinstance(x, Tensor) and x.start < stop and start < x.stop:
                same = x.address == target.address and x.structure is target.structure
                overlap = max(overlap, 1 if same else 2)
        root = value.structure if isinstance(value, Operators) else value.__class__
        return (target.structure, root, repeats, overlap), leaves

    def _call(self, op: ops.Op, params: tuple, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        """Run a primitive of several results on tensors; all checks are done."""
        self.structures.check_open()
        self._flush()
        with self._lock:
            plans = self.structures.plans
            key = (op, params, *(x.structure for x in (*outputs, *inputs)))
            plan = plans.get(key)
            if plan is None:
                if len(plans) >= MAX_PLANS:
                    plans.clear()
                made = single_call(op, params, [x.structure for x in outputs], [x.structure for x in inputs])
                plan = plans[key] = made
            self._run_plan(plan, outputs, inputs)

    def _run_statement(self, target: Tensor, value: Any) -> None:
        key, leaves = self._statement_key(target, value)
        plans = self.structures.plans
        plan = plans.get(key)
        if plan is None:
            if len(plans) >= MAX_PLANS:
                plans.clear()
            value = self._fit(target, value)
            plan = plans[key] = self._schedule(key, [Statement(target.structure, value, key[-1])], [leaves])
        self._run_plan(plan, [target], leaves)

    def _schedule(self, key: tuple, statements: list[Statement], leaves: list[list[Any]]) -> Plan:
        """The plan of statements that are new here, and are to be remembered by `key`."""
        return schedule(statements, leaves)

    def _fit(self, target: Tensor, value: Any) -> Any:
        """The value, of a shape that broadcasts to the target's (leading axes of length 1 are dropped)."""
        shape = value.shape if isinstance(value, Operators) else ()
        if shape is None:
            return value
        if len(shape) > len(target.shape) and set(shape[: len(shape) - len(target.shape)]) == {1}:
            return apply(ops.OPS["reshape"], value, params=(shape[len(shape) - len(target.shape) :],))
        if broadcast_shapes("assignment", [shape, target.shape]) != target.shape:
            raise ShapeError(
                complain(
                    "assignment: shapes do not fit",
                    f"{shape} into {target.shape}",
                    "a shape that broadcasts to the target's",
                )
            )
        return value

    def _run_planned(self, run: Any, targets: list[Tensor], leaves: list[Any]) -> None:
        """Run a plan made ready, with new draws; watched where somebody wants that."""
        draws = self._draw_numbers(leaves) if run.draws else {}
        if watch.wanted(self):
            watch.run_plan(self, run, targets, leaves, draws)
        else:
            run(targets, leaves, draws)

    def _draw_numbers(self, leaves: list[Any]) -> dict[int, int]:
        """The draw of each random leaf: its pinned number, or the next."""
        draws = {}
        for number, x in enumerate(leaves):
            if isinstance(x, OpTreeNode) and x.structure.op.name != "index":
                pinned = getattr(x, "draw", None)
                draws[number] = self._next_draw() if pinned is None else pinned
        return draws

    # Elementwise ops, reductions and composites: methods made from the table, below the class

    def _finish(self, node: Any, out: Tensor | None) -> Any:
        """The node, or `out` with its value."""
        return node if out is None else out._assign(node)

    def mean(
        self, a: Any, axis: Any = None, partial: Any = None, out: Tensor | None = None, keepdims: bool = True
    ) -> Any:
        """The sum over `axis` (None: all) divided by the count; NaN of nothing. `partial` is not used."""
        return self._finish(composite.mean(a, _axis(axis), keepdims), out)

    def var(self, a: Any, axis: Any = None, partial: Any = None, out: Tensor | None = None, keepdims: bool = True,
            binary: bool = False) -> Any:  # fmt: skip
        """The population variance over `axis`. `binary`: the square x x is x times its nearest power of two."""
        return self._finish(composite.var(a, _axis(axis), keepdims, binary), out)

    def std(
        self, a: Any, axis: Any = None, partial: Any = None, out: Tensor | None = None, keepdims: bool = True
    ) -> Any:
        """The population standard deviation over `axis`. `partial` is not used."""
        return self._finish(composite.std(a, _axis(axis), keepdims), out)

    def onehot(self, indices: Tensor, axis: int, out: Tensor | None = None) -> Any:
        """1 where the position along `axis` equals the index: (classes, n) for axis 0, (n, classes) for axis 1.

        `indices` is an integer row or column; the partner or the target decides the number of classes; an index out
        of range gives zeros. Raises `ShapeError` or `DTypeError` for other indices.
        """
        return self._finish(composite.onehot(indices, axis), out)

    def take(self, a: Any, indices: Any, axis: int | None, out: Tensor | None = None) -> Any:
        """The entries of `a` along `axis` at integer `indices` (tensor, array or list); `axis` None flattens `a` first.

        Without `out` a node, to which a tensor's entries can also be assigned. Raises `IndexError` when it runs and a
        place is out of range, `DTypeError` for indices that are not integers.
        """
        places = self._as_indices(indices)
        if places is None:
            raise DTypeError(
                complain("take: indices must be integers", repr(indices), "a tensor, array or list of integers")
            )
        if axis is None:
            a, axis = composite.reshape(a, (-1,)), 0
        if isinstance(a, Tensor):
            return self._finish(TakeView.of(a, places, axis), out)
        return self._finish(composite.take(a, places, axis), out)

    def _as_indices(self, indices: Any) -> Tensor | None:
        """Indices as an integer tensor (a row or column becomes 1-D), or None when they are not integers."""
        if isinstance(indices, Tensor):
            if not dtypes.is_integer(indices.dtype):
                return None
            flat = indices.structure.min_dims == 2 and indices.ndim == 2 and 1 in indices.shape
            along = next((s for n, s in zip(indices.shape, indices.strides) if n != 1), 1)
            return indices._view((indices.size,), (along,), 0) if flat else indices
        values = np.asarray(indices)
        if values.size == 0 and not isinstance(indices, np.ndarray):
            values = values.astype(np.int64)
        if values.dtype.kind not in "iu":
            return None
        return self.array(values, dtype=values.dtype, min_dims=0)

    def cumsum(self, a: Any, axis: int = 0, out: Tensor | None = None) -> Any:
        """The running sum along `axis`; halves add up in float32, integers in 64 bits."""
        return self._finish(composite.cumsum(a, axis), out)

    def reshape(self, a: Any, shape: Any, out: Tensor | None = None) -> Any:
        """`a` under another shape, in C order: a view where one exists, else a node."""
        return self._finish(composite.reshape(a, tuple(shape)), out)

    def transpose(self, a: Any, axes: Any = None, out: Tensor | None = None) -> Any:
        """The axes of `a` in another order (None: as `.T`)."""
        return self._finish(composite.transpose(a, axes), out)

    def binarize(self, ary: Any, out: Tensor, stochastic: bool = True) -> Tensor:
        """-1 or 1 into `out`: at random with probability clip((a + 1) / 2, 0, 1) of 1, or by the sign (0 gives 1)."""
        if stochastic:
            up = self.rand() <= self.clip((ary + 1) / 2, 0, 1)
        else:
            up = ary >= 0
        return out._assign(2 * up - 1)

    def shift(self, ary: Any, shift_ary: Any, value: bool = True, out: Tensor | None = None) -> Tensor:
        """`ary` times a power of two: sgn(s) 2^rint(log2 |s|), 0 for s = 0; with `value` False, 2^s.

        Runs at once, and returns a tensor shaped like `ary` (a number: one element).
        """
        power = apply(ops.OPS["pow2near" if value else "exp2"], shift_ary, table=self.structures)
        product = apply(ops.OPS["mul"], ary, power)
        if out is None:
            tree = isinstance(ary, Operators)
            out = self.empty(
                ary.shape if tree else (1, 1), product.dtype, min_dims=_rank_rule(self, ary) if tree else 2
            )
        return out._assign(product)

    # Random numbers

    def gen_rng(self, seed: int | None = None) -> np.random.RandomState:
        """Seed the host generator `rng` and the counter-based generator of tensors; returns `rng`.

        Raises `ValueError` for a seed outside 0 to 2^32 - 1.
        """
        if seed is not None and not (isinstance(seed, (int, np.integer)) and 0 <= seed < 2**32):
            raise ValueError(complain("rng_seed", repr(seed), "an int from 0 to 2^32 - 1"))
        self.rng_seed = seed
        self.rng = np.random.RandomState(seed)
        self._key = int.from_bytes(os.urandom(8), "little") if seed is None else _spread_seed(int(seed))
        self._draws = 0
        self.init_rng_state = self.rng_get_state()
        return self.rng

    def rng_get_state(self) -> tuple:
        """The state of all generators: the host's, the key and the number of draws made."""
        return self.rng.get_state(), self._key, self._draws

    def rng_set_state(self, rng_states: tuple) -> None:
        """Return to a state that `rng_get_state` gave. Raises `ValueError` for anything else."""
        if not (isinstance(rng_states, tuple) and len(rng_states) == 3):
            raise ValueError(complain("rng_set_state", type(rng_states).__name__, "what rng_get_state returned"))
        host, key, draws = rng_states
        self.rng.set_state(host)
        self._key, self._draws = key, draws

    def rng_reset(self) -> None:
        """Return to the state right after seeding."""
        self.rng_set_state(self.init_rng_state)

    def _next_draw(self) -> int:
        with self._lock:
            self._draws += 1
            return self._draws - 1

    def rand(self, out: Tensor | None = None, shape: Any = None) -> Any:
        """Uniform random numbers of [0, 1): a node that takes its partner's or target's shape (or `shape`).

        A node is drawn anew by each statement that runs it.
        """
        return self._finish(source(ops.OPS["rand"], self.structures, self._asked(shape)), out)

    def randn(self, out: Tensor | None = None, shape: Any = None) -> Any:
        """Standard normal random numbers; as `rand`."""
        return self._finish(source(ops.OPS["randn"], self.structures, self._asked(shape)), out)

    def _asked(self, shape: Any) -> tuple | None:
        return None if shape is None else as_shape(shape, 0)

    def fill_normal(self, ary: Tensor, mean: float = 0, stdv: float = 1) -> Tensor:
        """Fill with normal random numbers of a mean and standard deviation; returns the tensor."""
        return ary._assign(self.randn(shape=ary.shape) * stdv + mean)

    def make_binary_mask(self, out: Tensor, keepthresh: float = 0.5) -> Tensor:
        """Fill with 1 at probability `keepthresh`, else 0; returns the tensor."""
        return out._assign(self.rand(shape=out.shape) < keepthresh)

    def dropout(self, keep: float = 0.5, out: Tensor | None = None) -> Any:
        """1 at probability `keep`, else 0; not rescaled. A node, or `out`."""
        return self._finish(self.rand() <= keep, out)

    # Histograms

    def set_hist_buffers(self, hist_bins: int, hist_offset: int) -> None:
        """Choose the number of bins and the exponent of the first; drops what was counted if they change.

        Raises `ValueError` for fewer bins than one.
        """
        if hist_bins < 1:
            raise ValueError(complain("set_hist_buffers: bins", repr(hist_bins), "1 or more"))
        if (hist_bins, hist_offset) != (self.hist_bins, self.hist_offset):
            self.hist_bins, self.hist_offset = int(hist_bins), int(hist_offset)
            self._hist_rows.clear()

    def _histogram(self, tensor: Tensor, tag: str) -> Tensor:
        if len(self._hist_rows) >= MAX_HISTOGRAMS:
            raise ValueError(complain("hist: full", f"{MAX_HISTOGRAMS} histograms", "fewer", "dump_hist_data() resets"))
        counts = apply(ops.OPS["histogram"], tensor, params=(self.hist_offset, self.hist_bins))
        row = self.evaluate(counts)
        self._hist_rows.append((tag, row))
        return row

    def dump_hist_data(self) -> tuple[Tensor, dict[str, int]]:
        """All histograms since the last call: int32 (histograms, bins) in order, and each tag's (last) row. Resets."""
        rows = self._hist_rows
        data = self.zeros((max(len(rows), 1), self.hist_bins), dtype=np.int32)[: len(rows)]
        for number, (_, row) in enumerate(rows):
            data[number] = row
        tags = {tag: number for number, (tag, _) in enumerate(rows)}
        self._hist_rows = []
        return data, tags

    # Time

    def get_events(self) -> tuple[Any, Any]:
        """A pair of marks for timing, always the same two."""
        if self._events is None:
            self._events = (self.init_mark(), self.init_mark())
        return self._events

    def init_mark(self) -> dict:
        """A new mark for `record_mark` and `get_time`."""
        return {"event": None}

    def record_mark(self, marker: dict) -> None:
        """Note the time in the stream of work."""
        self._flush()
        marker["event"] = self._record()

    def synchronize_mark(self, marker: dict) -> None:
        """Wait until the work before the mark is done."""
        self._synchronise()

    def get_time(self, start: dict, end: dict) -> float:
        """The milliseconds from one recorded mark to another. Raises `ValueError` for marks not recorded."""
        if start["event"] is None or end["event"] is None:
            raise ValueError(complain("get_time: a mark was not recorded", "", "", "record_mark(mark) first"))
        return self._elapsed(start["event"], end["event"])

    def _timed(self, run: Callable[[], None]) -> float:
        """Do something, and return the seconds that it took."""
        start = self._record()
        run()
        end = self._record()
        self._synchronise()
        return self._elapsed(start, end) * 1e-3

    # Hooks about time: the host's, where work is done when a call returns

    def _record(self) -> Any:
        """An event: the time, in the order of what is asked for."""
        return time.perf_counter_ns()

    def _elapsed(self, start: Any, end: Any) -> float:
        """The milliseconds between two events."""
        return (end - start) * 1e-6

    def _synchronise(self) -> None:
        """Wait until everything is done."""

    # Hooks about indexing by arrays and masks: through the host, where a backend has nothing better

    def _gather(self, tensor: Tensor, key: Any) -> Tensor:
        """A copy of what NumPy's indexing by arrays and masks picks."""
        picked = self._download(tensor)[host_key(key)]
        return self.array(picked, dtype=tensor.dtype, min_dims=min(tensor._min_dims, picked.ndim))

    def _scatter(self, tensor: Tensor, key: Any, value: Any) -> None:
        """`tensor[key] = value` for an index of arrays or masks. Raises `IndexError` before writing."""
        check_writable(tensor)
        whole, key = self._download(tensor), host_key(key)
        whole[key] = host_values(self, tensor.dtype, whole[key].shape, value)
        self._upload(tensor, whole)

    # Hooks: what a backend implements

    @abstractmethod
    def _allocate(self, nbytes: int) -> Storage:
        """Fresh memory of `nbytes` (at least one byte), aligned to 64. Raises `MemoryError` naming the size."""

    @abstractmethod
    def _upload(self, tensor: Tensor, values: np.ndarray) -> None:
        """Copy host numbers of the tensor's shape in, cast as `dtypes.cast` does."""

    @abstractmethod
    def _download(self, tensor: Tensor) -> np.ndarray:
        """The elements as a new host array. Works on a closed backend too."""

    @abstractmethod
    def _run_plan(self, plan: Plan, targets: list[Tensor], leaves: list[Any]) -> None:
        """Run the steps of a plan on its targets and leaves (see `graph/plan.py`), in order."""

    @abstractmethod
    def _close(self) -> None:
        """Free what the backend holds beside tensors."""


def _axis(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _mantissa_bits(asked: Any) -> int:
    """The bits that stochastic rounding keeps; float32 has 23. Raises `ValueError` for others."""
    if not isinstance(asked, (int, np.integer)) or not 0 <= asked <= 23:
        raise ValueError(complain("stochastic rounding: mantissa bits", repr(asked), "an int from 0 (off) to 23"))
    return int(asked)


def _rank_rule(backend: Backend, like: Any) -> int:
    return min(like.structure.min_dims, len(like.shape)) if isinstance(like, Operators) else 0


def _host_array(value: Any, name: str) -> np.ndarray:
    """Host data as an array of numbers. Raises `DTypeError` for objects, strings and complex numbers."""
    if isinstance(value, Tensor):
        return value.get()
    try:
        values = np.asarray(value)
    except ValueError as error:
        raise ShapeError(complain(f"{name}: not an array", str(error), "rows of equal length")) from None
    if values.dtype.kind not in "biuf" and not dtypes.is_float(values.dtype):
        raise DTypeError(complain(f"{name}: not numbers", f"{type(value).__name__} of {values.dtype}", "numbers"))
    return values


def _foreign(target: Tensor, value: Any) -> None:
    value.structure.table.check_open()
    given = f"{value.backend!r} into {target.backend!r}"
    raise BackendError(
        complain("assignment: another backend's tensor", given, "tensors of one backend", "t.set(other.get())")
    )


def _spread_seed(seed: int) -> int:
    """A 64-bit key from a seed, by SplitMix64 (Steele et al. 2014), so that neighbouring seeds share no bits."""
    z = (seed + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return z ^ (z >> 31)


# Methods from the table


def _unary_method(op: ops.Op) -> Callable:
    def method(self: Backend, a: Any, out: Tensor | None = None) -> Any:
        node = apply(op, a, table=self.structures)
        return node if out is None else out._assign(node)

    return method


def _binary_method(op: ops.Op) -> Callable:
    def method(self: Backend, a: Any, b: Any, out: Tensor | None = None) -> Any:
        node = apply(op, a, b, table=self.structures)
        return node if out is None else out._assign(node)

    return method


def _ternary_method(op: ops.Op) -> Callable:
    def method(self: Backend, a: Any, b: Any, c: Any, out: Tensor | None = None) -> Any:
        node = apply(op, a, b, c, table=self.structures)
        return node if out is None else out._assign(node)

    return method


def _reduction_method(op: ops.Op) -> Callable:
    first = 1 if op.dtype == "index" else None

    def method(self: Backend, a: Any, axis: Any = first, out: Tensor | None = None, keepdims: bool = True) -> Any:
        node = apply(op, a, params=(_axis(axis),), table=self.structures)
        return self._finish(node if keepdims else composite.drop_axes(node, _axis(axis)), out)

    return method


def _composite_method(function: Callable) -> Callable:
    """The composite as a method, `out` behind its own arguments."""
    takes = list(inspect.signature(function).parameters.values())
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own, last = inspect.Parameter("self", kind), inspect.Parameter("out", kind, default=None)

    def method(self: Backend, *arguments: Any, out: Tensor | None = None, **keywords: Any) -> Any:
        if len(arguments) == len(takes) + 1:
            *arguments, out = arguments
        return self._finish(function(*arguments, **keywords), out)

    method.__signature__ = inspect.Signature([own, *takes, last])
    return method


def _install(cls: type[Backend]) -> None:
    """Give the class a method for each method name of the table, and for each composite."""
    makers = {1: _unary_method, 2: _binary_method, 3: _ternary_method}
    for op in ops.OPS.values():
        for name in op.methods:
            method = makers[op.arity](op) if op.kind == ops.ELEMENTWISE else _reduction_method(op)
            method.__name__ = name
            method.__qualname__ = f"Backend.{name}"
            method.__doc__ = f"{op.doc}{' ' + op.edge.capitalize() + '.' if op.edge else ''}"
            setattr(cls, name, method)
    for name, function in composite.COMPOSITES.items():
        method = _composite_method(function)
        method.__name__, method.__qualname__, method.__doc__ = name, f"Backend.{name}", function.__doc__
        setattr(cls, name, method)


_install(Backend)
