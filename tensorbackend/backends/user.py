# SPDX-License-Identifier: Apache-2.0
"""What `be.elementwise` and `be.reduction` give: kernels to call, on one backend.

A call checks and binds its arguments, brings them into memory the kernel can walk, and runs a launch that is prepared
once for each layout of arguments (`user_launch.py`). Nothing is written before all checks have passed. What a call
decided is remembered by the layouts of its arguments, so that its like only fills in addresses and numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorbackend import dtypes, settings
from tensorbackend.backends import watch
from tensorbackend.backends.anywhere import TextKernel
from tensorbackend.backends.locks import Lock
from tensorbackend.backends.user_known import NUMBERS, Known, Prepared, remember, tokens_of
from tensorbackend.backends.user_launch import Run, Target, Work
from tensorbackend.backends.user_texts import described, described_form, explained
from tensorbackend.codegen.user import POSITION, Form, UserSource, indexed_by_arrays, names_position
from tensorbackend.errors import BackendError, CompileError, ShapeError, complain
from tensorbackend.graph import indexing, ranges
from tensorbackend.graph.structure import as_axis
from tensorbackend.graph.tensor import Tensor, check_writable, share_memory
from tensorbackend.user_kernels import Elementwise, Parameter, Reduction, Weak, bind, broadcast, by_memory, merged

__all__ = ["ElementwiseKernel", "ReductionKernel"]

SHORT = 24
"""Elements of a result below which it is best computed beside others, wherever they lie."""


class _Kernel(TextKernel):
    """What both kinds share: arguments to tensors, launches, compile errors by the user's lines."""

    def __init__(self, backend: Any, spec: Elementwise | Reduction) -> None:
        self.backend = backend
        self.spec = spec
        self._target: Target | None = None
        self._sources: dict[Form, UserSource] = {}
        self._launches: dict[tuple, Prepared] = {}
        self._known: dict[tuple, Known] = {}
        self._making = Lock()

    @property
    def source(self) -> str:
        """The generated texts of the forms that were called so far."""
        return "\n".join(made.source for made in self._sources.values())

    def explain(self) -> str:
        """The kernel's texts, then each form that was called: its types, how its arrays are walked, its source."""
        lines = [f"{self.name} on {self.backend!r}", *described(self.spec)]
        for form, made in self._sources.items():
            lines += ["", *described_form(self.spec, form), *(f"  | {line}" for line in made.source.splitlines())]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<kernel {self.name} on {self.backend!r}>"

    # Arguments

    def _given(self, parameters: Sequence[Parameter], arguments: Sequence[Any]) -> list[Any]:
        """The arguments as tensors of the backend, numbers, or None for outputs to be made."""
        found = []
        for p, x in zip(parameters, arguments):
            made = x is None and p.written and not p.pointer
            if isinstance(x, np.generic) or (isinstance(x, np.ndarray) and not (x.ndim or p.written or p.whole)):
                x = _Number(x.item(), np.dtype(x.dtype))
            elif not made and not isinstance(x, (Tensor, *NUMBERS)):
                x = self._tensor(p, x)
            if isinstance(x, Tensor) and x.backend is not self.backend:
                hint = f"be.array(x.get()), or the kernel of {x.backend!r}"
                raise BackendError(complain(f"{self.name}: {p.name} is another backend's tensor", "", "", hint))
            if p.whole and not made and not isinstance(x, Tensor):
                given, how = x.value if isinstance(x, _Number) else x, "a pointer" if p.pointer else "raw"
                raise TypeError(complain(f"{self.name}: argument {p.name}", repr(given), f"an array: it is {how}"))
            found.append(x)
        return found

    def _tensor(self, p: Parameter, x: Any) -> Tensor:
        """A foreign array as a tensor: on its own memory where the backend can reach that, else a copy. Raises
        `ValueError` for a read-only output, `TypeError` for what is no array."""
        be = self.backend
        if isinstance(x, np.ndarray):
            if p.written and not x.flags.writeable:  # what is written may be a copy, which tells nobody
                expected = "one that may be written"
                raise ValueError(complain(f"{self.name}: output {p.name}", "a read-only array", expected, "a copy"))
            seen = be._views_host and (x.dtype.isnative or p.written)
            return be.view(x, min_dims=0) if seen else be.array(x, dtype=x.dtype, min_dims=0)
        foreign = hasattr(x, "__dlpack__") or (be.device_type == 1 and hasattr(x, "__cuda_array_interface__"))
        if foreign and hasattr(be, "from_dlpack"):
            return be.from_dlpack(x, min_dims=0)
        expected = "a tensor, an array or a number"
        raise TypeError(complain(f"{self.name}: argument {p.name}", type(x).__name__, expected))

    def _bound(self, parameters: Sequence[Parameter], values: list[Any]) -> tuple[tuple, list[np.dtype], list[Any]]:
        """Placeholders, types, and the values with numbers plain and tensors without axes in their parameter's type."""
        kinds = [_kind(p, x) for p, x in zip(parameters, values)]
        bound, types = bind(self.name, parameters, kinds, self.backend.default_dtype)
        plain = []
        for x, kind, dtype in zip(values, kinds, types):
            if isinstance(x, _Number):
                x = x.value
            elif isinstance(kind, Weak) and x.dtype != dtype:
                x = self.backend.evaluate(x, dtype=dtype)
            plain.append(x)
        return tuple(sorted(bound.items())), types, plain

    def _in_reach(self, p: Parameter, x: Any) -> Any:
        """A whole array as the body can index it: contiguous, halves as float32."""
        if not p.whole or not isinstance(x, Tensor) or (x.is_contiguous and not dtypes.is_half(x.dtype)):
            return x
        copy = self.backend.empty(x.shape, dtypes.compute(x.dtype), min_dims=min(x.structure.min_dims, x.ndim))
        return copy._assign(x)

    def _whole(self, values: list[Any]) -> tuple[tuple[tuple[str, int], ...], tuple[int, ...]]:
        """Of arrays that are indexed by arrays of places: the axes by name, and the lengths of all but the first.
        Raises `ShapeError` for one without axes."""
        names, given = indexed_by_arrays(self.spec), zip(self.spec.parameters, values)
        arrays = [(p.name, x.shape) for p, x in given if p.name in names and isinstance(x, Tensor)]
        for name, shape in arrays:
            if not shape:
                what = f"{self.name}: {name} is indexed by an array of places"
                raise ShapeError(complain(what, "an array without axes", "an axis for each place", f"{name}[0]"))
        return tuple((name, len(shape)) for name, shape in arrays), tuple(n for _, shape in arrays for n in shape[1:])

    # Launches

    def _launch(self, key: tuple, prepare: Callable[[], Prepared], values: list[Any]) -> Prepared:
        """Run the launch for values of these layouts, which is prepared the first time."""
        launches = self._launches
        prepared = launches.get(key)
        if prepared is None:
            with self._making.now, settings.as_they_are():
                prepared = launches.get(key) or prepare()
                remember(launches, key, prepared)
        tensors = [values[k] for k in prepared.pointers]
        numbers = [values[k] for k in prepared.numbers]
        self.backend._flush()  # in a `fuse` block what the arguments hold may wait, copies made for this call too
        with self.backend._lock:
            self.backend.structures.check_open()
            self.backend._run_user(prepared, tensors, numbers)
        return prepared

    def forget(self) -> None:
        """Forget what calls decided, and all launches. Calls that go on end as they began: they are remembered where
        nobody looks any more."""
        self._known, self._launches, self._target = {}, {}, None

    def _observed(self) -> bool:
        """Whether somebody looks at what runs, or records it."""
        return self.backend._recorder is not None or watch.wanted(self.backend)

    def _where(self) -> Target:
        """What compiles and launches it, found once."""
        target = self._target
        if target is None:
            target = self._target = self.backend._user_target()
        return target

    def _compiled(self, form: Form, work: Work) -> tuple[UserSource, Run]:
        target = self._where()
        made = self._sources.get(form)
        if made is None:
            made = target.printer(self.spec, form).result()
        try:
            run = target.prepare(made, form, work)
        except CompileError as error:
            raise CompileError(explained(self.spec, str(error))) from error
        self._sources[form] = made
        return made, run


@dataclass
class _Number:
    """A NumPy number, with the type that it has there."""

    value: Any
    dtype: np.dtype


def _kind(p: Parameter, x: Any) -> Any:
    """What `bind` is told of an argument."""
    if isinstance(x, _Number):
        return Weak(x.dtype)
    if isinstance(x, Tensor):
        return x.dtype if x.shape or p.written or p.whole else Weak(x.dtype)
    return None if x is None else x.__class__  # which a symbol says to be that of its number


def all_host(arguments: Sequence[Any]) -> bool:
    """Whether all arrays among arguments are NumPy's, and there is one."""
    arrays = [x for x in arguments if isinstance(x, (Tensor, np.ndarray))]
    return bool(arrays) and all(isinstance(x, np.ndarray) for x in arrays)


class ElementwiseKernel(_Kernel):
    """A kernel over elements. Call it with inputs, then outputs (those left out are made), and `size` if all arrays are
    raw; the pointer style takes all its parameters and returns None. Make it with `Backend.elementwise`. Raises
    `ValueError` or `TypeError` for a `size` that is no int of 0 or more."""

    spec: Elementwise

    def __call__(self, *arguments: Any, size: int | None = None) -> Any:
        self.backend.structures.check_open()
        if size is not None and (type(size) is not int or size < 0):
            ranges.check(self.name, "an int of 0 or more", size=size)
        tokens = tokens_of(arguments, self.backend.tensor_cls)
        known = self._known.get((size, *tokens))
        if known is not None and not self._observed():
            self.backend._flush()
            values = known(self.backend, arguments)
            if values is not None:
                return self._result(values)
        return self._first(arguments, size, tokens)

    def _result(self, values: Sequence[Any]) -> Any:
        outputs = values[len(self.spec.inputs) :]
        return None if self.spec.pointer else outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _first(self, arguments: tuple, size: int | None, tokens: list[Any]) -> Any:
        """A call whose layouts are not known: everything is decided, and remembered if it can be."""
        spec, count, known = self.spec, len(arguments), self._known
        least = self.nargs if spec.pointer else len(spec.inputs)
        if not least <= count <= self.nargs:
            expected = str(self.nargs) if least == self.nargs else f"{least} to {self.nargs}"
            names = ", ".join(p.name for p in spec.parameters)
            raise TypeError(complain(f"{self.name}: arguments", str(count), f"{expected}: {names}"))
        given = self._given(spec.parameters, arguments) + [None] * (self.nargs - count)
        for p, x in zip(spec.outputs, given[len(spec.inputs) :]):
            if x is not None and not isinstance(x, Tensor):
                raise TypeError(complain(f"{self.name}: output {p.name}", repr(x), "a tensor or an array"))
        bound, types, values = self._bound(spec.parameters, given)
        shape = self._space(values, size)
        host = all_host(arguments)
        full = self._with_outputs(values, types, shape)
        reached = [self._in_reach(p, x) for p, x in zip(spec.parameters, full)]
        if math.prod(shape):
            prepared = self._start(reached, bound, types, shape)
            same = all(x is y for x, y in zip(given, reached) if x is not None and not isinstance(x, _Number))
            if tokens and same:
                self._learn(known, (size, *tokens), prepared, arguments, full, host)
        self._give_back(arguments, given, full, reached)
        outputs = [y.get() if host and x is None else y for x, y in zip(given, full)]
        outputs[: len(arguments)] = [y if x is None else x for x, y in zip(arguments, outputs)]
        return self._result(outputs)

    def _learn(self, known: dict, key: tuple, prepared: Prepared, arguments: tuple, full: list[Any],
               host: bool) -> None:  # fmt: skip
        written = [k for k, p in enumerate(self.spec.parameters) if p.written and k < len(arguments)]
        if host != any(isinstance(x, np.ndarray) for x in arguments) or (host and not self.backend._views_host):
            return
        arrays = [k for k, x in enumerate(arguments) if isinstance(full[k], Tensor) and not self.spec.pointer]
        apart = [(j, k, self._may_be_one(full, j, k)) for j in written for k in arrays if k != j]
        made = [x.structure for x in full[len(arguments) :]]
        remember(known, key, Known(prepared, full, made, host, written, apart))

    def _may_be_one(self, values: list[Any], j: int, k: int) -> bool:
        """Whether an output may be the very view that an input is."""
        p, q = self.spec.parameters[j], self.spec.parameters[k]
        return not (p.raw or q.raw or q.written) and values[j].structure is values[k].structure

    def _give_back(self, arguments: tuple, given: list[Any], full: list[Any], reached: list[Any]) -> None:
        """Copy what was written in a copy to where it belongs: whole halves, arrays of the host. Other libraries'
        arrays are written when a call returns: nobody who reads them waits for our statements, or for our stream."""
        for k, p in enumerate(self.spec.parameters):
            if not p.written:
                continue
            if reached[k] is not full[k]:
                full[k]._assign(reached[k])
            if k < len(arguments) and isinstance(arguments[k], np.ndarray) and not self.backend._views_host:
                np.copyto(arguments[k], given[k].get())
            elif k < len(arguments) and given[k] is not arguments[k]:
                self.backend._flush()
                self.backend._synchronise()

    def _space(self, values: list[Any], size: int | None) -> tuple[int, ...]:
        """The shape of the loop. Raises `ShapeError` where arguments do not fit."""
        spec = self.spec
        if spec.pointer:
            first = next(x for p, x in zip(spec.parameters, values) if p.pointer)
            return (size if size is not None else first.size,)
        shapes = [x.shape for p, x in zip(spec.inputs, values) if isinstance(x, Tensor) and not p.raw]
        outputs = [(p, x) for p, x in zip(spec.outputs, values[len(spec.inputs) :]) if x is not None and not p.raw]
        if size is not None:
            shapes.append((size,))
        if not shapes and not outputs and any(isinstance(x, Tensor) for x in values):
            raise ShapeError(complain(f"{self.name}: nothing says how long the loop is", "raw arrays", "", "size="))
        shape = broadcast(self.name, shapes) if shapes else outputs[0][1].shape if outputs else ()
        for p, y in outputs:
            if y.shape != shape:
                raise ShapeError(complain(f"{self.name}: shape of output {p.name}", str(y.shape), str(shape)))
        return shape

    def _with_outputs(self, values: list[Any], types: list[np.dtype], shape: tuple[int, ...]) -> list[Any]:
        """The values with all outputs made, and inputs that outputs would overwrite too early copied."""
        spec = self.spec
        written = [(p, x) for p, x in zip(spec.parameters, values) if p.written and x is not None]
        self._check_written(written)
        ranks = [x.structure.min_dims for x in values if isinstance(x, Tensor)]
        minimum = min([*ranks, len(shape)])
        result = []
        for p, x, dtype in zip(spec.parameters, values, types):
            if x is None:
                x = self.backend.empty(shape, dtype, min_dims=minimum)
            elif isinstance(x, Tensor) and not p.written and not p.pointer and _in_the_way(p, x, written):
                x = self.backend.copy(x)
            result.append(x)
        return result

    def _check_written(self, written: list[tuple[Parameter, Tensor]]) -> None:
        """Raise `ShapeError` or `ValueError` for outputs that cannot be written element by element."""
        for p, x in written:
            check_writable(x)
            if p.whole and not x.is_contiguous:
                text = f"strides {x.strides} of shape {x.shape}"
                raise ShapeError(complain(f"{self.name}: output {p.name} is not contiguous", text, "C order"))
        for k, (p, x) in enumerate(written):
            for q, y in written[:k]:
                if share_memory(x, y) and not self.spec.pointer:
                    given = f"{q.name} {y.shape} and {p.name} {x.shape}"
                    raise ShapeError(complain(f"{self.name}: two outputs share memory", given))

    def _start(self, values: list[Any], bound: tuple, types: list[np.dtype], shape: tuple[int, ...]) -> Prepared:
        """Run the kernel on values that it can walk."""
        layouts = tuple(x.structure if isinstance(x, Tensor) else type(x) for x in values)

        def prepare() -> Prepared:
            return self._prepare(values, bound, types, shape)

        return self._launch((layouts, bound, shape), prepare, values)

    def _prepare(self, values: list[Any], bound: tuple, types: list[np.dtype], shape: tuple[int, ...]) -> Prepared:
        parameters = self.spec.parameters
        tensors = [k for k, x in enumerate(values) if isinstance(x, Tensor)]
        walked = [k for k in tensors if not parameters[k].whole]
        walked.sort(key=lambda k: not parameters[k].written)
        names = [parameters[k].name for k in walked]
        strides = [_strides(values[k], shape) for k in walked]
        if names_position(self.spec, self.spec.body):
            names.append(POSITION)
            strides.append(indexing.contiguous_strides(shape))
        order = by_memory(shape, strides)
        axes = merged(tuple(shape[a] for a in order), [tuple(s[a] for a in order) for s in strides])
        is_number = tuple(not isinstance(x, Tensor) for x in values)
        units = tuple((name, _units(s)) for name, s in zip(names, axes.strides))
        ranks, whole = self._whole(values)
        form = Form(bound, tuple(types), is_number, units, len(axes.lengths), ranks=ranks)
        numbers = [(k, types[k]) for k, flag in enumerate(is_number) if flag]
        pointers = walked + [k for k in tensors if parameters[k].whole]
        flat = tuple(step for s in axes.strides for step in s)
        work = Work(axes.lengths, flat, math.prod(shape), len(pointers), tuple(d for _, d in numbers), whole=whole)
        made, run = self._compiled(form, work)
        writes = [parameters[k].written for k in pointers]
        return Prepared(run, (self.spec, made, shape, ()), pointers, writes, numbers)


def _in_the_way(p: Parameter, x: Tensor, written: list[tuple[Parameter, Tensor]]) -> bool:
    """Whether an output overwrites elements of an input that are still to be read."""
    over = [(q, y) for q, y in written if share_memory(x, y)]
    return any(p.raw or q.raw or x.address != y.address or x.structure is not y.structure for q, y in over)


class ReductionKernel(_Kernel):
    """A reduction. Call it with inputs, and `axis` (None: all), `keepdims`, `out`. Make it with `Backend.reduction`."""

    spec: Reduction

    def __call__(self, *arguments: Any, axis: Any = None, keepdims: bool = False, out: Any = None) -> Any:
        self.backend.structures.check_open()
        axis = as_axis(self.spec.name, axis)
        if not isinstance(keepdims, (bool, int, np.bool_)):
            raise TypeError(complain(f"{self.spec.name}: keepdims", repr(keepdims)[:200], "True or False"))
        everything = arguments if out is None else (*arguments, out)
        tokens = tokens_of(everything, self.backend.tensor_cls)
        key = (axis, keepdims, out is None, *tokens)
        known = self._known.get(key)
        if known is not None and not self._observed():
            self.backend._flush()
            values = known(self.backend, everything)
            if values is not None:
                return values[-1]
        return self._first(arguments, axis, keepdims, out, key if tokens else None)

    def _first(self, arguments: tuple, axis: Any, keepdims: bool, out: Any, key: tuple | None) -> Any:
        spec, known = self.spec, self._known
        if len(arguments) != len(spec.inputs):
            names = ", ".join(p.name for p in spec.inputs)
            expected = f"{len(spec.inputs)}: {names}"
            raise TypeError(complain(f"{self.name}: arguments", str(len(arguments)), expected))
        given = self._given(spec.parameters, [*arguments, out])
        bound, types, values = self._bound(spec.parameters, given)
        tensors = [x for p, x in zip(spec.inputs, values) if isinstance(x, Tensor) and not p.raw]
        shape = broadcast(self.name, [x.shape for x in tensors]) if tensors else ()
        axes = _axes(self.name, axis, len(shape))
        target = self._output(values[-1], tensors, types[-1], shape, axes, keepdims)
        host = all_host(arguments)
        reached = [self._in_reach(p, self._apart(x, target)) for p, x in zip(spec.inputs, values)]
        if target.size:
            prepared = self._start([*reached, target], bound, types, shape, axes)
            same = all(x is y for x, y in zip(given, reached) if not isinstance(x, _Number))
            if key is not None and same and self._may_learn(arguments, out):
                made = [target.structure] if out is None else []
                written = [] if out is None else [len(arguments)]
                inputs = [k for k, x in enumerate(values[:-1]) if isinstance(x, Tensor)]
                apart = [(j, k, False) for j in written for k in inputs]
                remember(known, key, Known(prepared, [*values[:-1], target], made, host, written, apart))
        if isinstance(out, np.ndarray):
            if not self.backend._views_host:
                np.copyto(out, target.get())
            return out
        if out is not None and out is not target:
            self.backend._synchronise()
        return target if out is not None or not host else target.get()

    def _may_learn(self, arguments: tuple, out: Any) -> bool:
        """Whether calls of these layouts are known from now on: all arrays are the host's, or none."""
        arrays = [isinstance(x, np.ndarray) for x in (*arguments, out) if isinstance(x, (np.ndarray, Tensor))]
        return not any(arrays) or (all(arrays) and self.backend._views_host)

    def _apart(self, x: Any, target: Tensor) -> Any:
        """An input, copied where the output shares its memory."""
        return self.backend.copy(x) if isinstance(x, Tensor) and share_memory(x, target) else x

    def _output(self, out: Any, tensors: list[Tensor], dtype: np.dtype, shape: tuple[int, ...],
                axes: tuple[int, ...], keepdims: bool) -> Tensor:  # fmt: skip
        """The output: made, or the one given. Raises `ShapeError` when that does not fit."""
        kept = tuple(1 if a in axes else n for a, n in enumerate(shape))
        lean = tuple(n for a, n in enumerate(shape) if a not in axes)
        wanted = kept if keepdims else lean
        if out is None:
            least = min([x.structure.min_dims for x in tensors] or [0])
            return self.backend.empty(wanted, dtype, min_dims=min(least, max(len(wanted), 0)))
        if not isinstance(out, Tensor):
            raise TypeError(complain(f"{self.name}: out", repr(out), "a tensor or an array"))
        check_writable(out)
        if tuple(n for n in out.shape if n != 1) != tuple(n for n in kept if n != 1):
            raise ShapeError(complain(f"{self.name}: shape of out", str(out.shape), str(wanted)))
        return out

    def _start(self, values: list[Any], bound: tuple, types: list[np.dtype], shape: tuple[int, ...],
               axes: tuple[int, ...]) -> Prepared:  # fmt: skip
        layouts = tuple(x.structure if isinstance(x, Tensor) else type(x) for x in values)

        def prepare() -> Prepared:
            return self._prepare(values, bound, types, shape, axes)

        return self._launch((layouts, bound, axes), prepare, values)

    def _prepare(self, values: list[Any], bound: tuple, types: list[np.dtype], shape: tuple[int, ...],
                 axes: tuple[int, ...]) -> Prepared:  # fmt: skip
        parameters = self.spec.inputs
        tensors = [k for k, x in enumerate(values[:-1]) if isinstance(x, Tensor)]
        walked = [k for k in tensors if not parameters[k].raw]
        names = [parameters[k].name for k in walked]
        strides = [_strides(values[k], shape) for k in walked]
        if names_position(self.spec, self.spec.map):
            names.append(POSITION)
            strides.append(indexing.contiguous_strides(shape))
        outer, inner = _spaces(shape, axes, [*strides, _output_strides(values[-1], shape, axes)])
        rows, count = math.prod(outer.lengths), math.prod(inner.lengths)
        columns, segments, segment = self._where().divide(rows, count, _wide(outer, inner))
        both = [(*o, *i) for o, i in zip(outer.strides, inner.strides)][: len(strides)]
        is_number = tuple(not isinstance(x, Tensor) for x in values)
        units = tuple((name, _units(s)) for name, s in zip(names, both))
        lengths = (*outer.lengths, *inner.lengths)
        ranks, whole = self._whole(values)
        kept, split = len(outer.lengths), segments > 1
        form = Form(bound, tuple(types), is_number, units, len(lengths), kept, columns, split, ranks)
        numbers = [(k, types[k]) for k, flag in enumerate(is_number) if flag]
        pointers = walked + [k for k in tensors if parameters[k].raw] + [len(values) - 1]
        flat = (*(step for s in both for step in s), *outer.strides[-1])
        scratch = rows * segments if split else 0
        kinds = tuple(d for _, d in numbers)
        work = Work(lengths, flat, count, len(pointers) + split, kinds, rows, segments, segment, whole)
        made, run = self._compiled(form, work)
        writes = [k == len(values) - 1 for k in pointers]
        return Prepared(run, (self.spec, made, shape, axes), pointers, writes, numbers, scratch)


def _spaces(shape: tuple[int, ...], axes: tuple[int, ...], strides: list[tuple[int, ...]]) -> tuple[Any, Any]:
    """The kept and the reduced space with what walks them, each in few axes. The order of the kept axes is that of
    memory; that of the reduced ones stays."""
    parts = []
    for reduced in (False, True):
        chosen = [a for a in range(len(shape)) if (a in axes) == reduced]
        lengths, steps = tuple(shape[a] for a in chosen), [tuple(s[a] for a in chosen) for s in strides]
        order = range(len(chosen)) if reduced else by_memory(lengths, steps)
        parts.append(merged(tuple(lengths[a] for a in order), [tuple(s[a] for a in order) for s in steps]))
    return parts[0], parts[1]


def _wide(outer: Any, inner: Any) -> int:
    """How many results lie side by side where that is how memory is best walked, else 0."""
    along = sum(s[-1] == 1 for s in outer.strides[:-1])
    across = sum(s[-1] == 1 for s in inner.strides[:-1])
    short = math.prod(inner.lengths) < SHORT
    return outer.lengths[-1] if along > across or short else 0


def _output_strides(out: Tensor, shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an output along the axes of the space; 0 along reduced ones."""
    steps = iter([s for n, s in zip(out.shape, out.strides) if n != 1])
    return tuple(0 if a in axes or n == 1 else next(steps) for a, n in enumerate(shape))


def _units(strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(s if s in (0, 1) else -1 for s in strides)


def _strides(x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A tensor's strides over a space that it broadcasts to."""
    lead = len(shape) - x.ndim
    own = tuple(0 if n == 1 else s for n, s in zip(x.shape, x.strides))
    return (0,) * lead + own


def _axes(name: str, axis: Any, rank: int) -> tuple[int, ...]:
    wanted = range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    found = sorted(a + rank if a < 0 else a for a in wanted)
    if len(set(found)) != len(found) or any(not 0 <= a < rank for a in found):
        raise ShapeError(complain(f"{name}: axis", repr(axis), f"different axes of {rank}"))
    return tuple(found)
