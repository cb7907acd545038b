# SPDX-License-Identifier: Apache-2.0
"""What `be.elementwise` and `be.reduction` give: kernels to call, on one backend.

A call checks and binds its arguments, brings them into memory the kernel can walk, and hands text and addresses to the
backend's hook `_run_user`. Nothing is written before all checks have passed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends.plans import word
from tensorbackend.codegen.user import CHUNK, SEGMENT, UserSource, print_elementwise, print_reduction
from tensorbackend.errors import BackendError, CompileError, ShapeError, complain
from tensorbackend.graph import indexing
from tensorbackend.graph.tensor import Tensor, check_writable
from tensorbackend.user_kernels import Elementwise, Parameter, Reduction, bind, broadcast, merged

__all__ = ["ElementwiseKernel", "ReductionKernel"]

NUMBERS = (bool, int, float, np.generic)


class _Kernel:
    """What both kinds share: arguments to tensors, texts to sources, compile errors to the user's lines."""

    def __init__(self, backend: Any, spec: Elementwise | Reduction) -> None:
        self.backend = backend
        self.spec = spec
        self._sources: dict[tuple, UserSource] = {}

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.spec.name

    @property
    def nargs(self) -> int:
        """The number of parameters, outputs included."""
        return len(self.spec.parameters)

    @property
    def source(self) -> str:
        """The generated texts of the forms that were called so far."""
        return "\n".join(made.source for made in self._sources.values())

    def explain(self) -> str:
        """The texts of the kernel, and each form that was called with its generated source."""
        return "\n".join([repr(self.spec), *(made.source for made in self._sources.values())])

    def __repr__(self) -> str:
        return f"<kernel {self.name} on {self.backend!r}>"

    def _given(self, parameters: Sequence[Parameter], arguments: Sequence[Any]) -> list[Any]:
        """The arguments as tensors of the backend, numbers, or None."""
        be = self.backend
        be.structures.check_open()
        be._flush()
        found = []
        for p, x in zip(parameters, arguments):
            if isinstance(x, np.ndarray):
                x = be.view(x, min_dims=0) if hasattr(be, "view") else be.array(x, dtype=x.dtype, min_dims=0)
            if isinstance(x, np.generic):
                x = x.item()
            if isinstance(x, Tensor) and x.backend is not be:
                raise BackendError(complain(f"{self.name}: {p.name} is another backend's tensor", repr(x.backend)))
            if x is not None and not isinstance(x, (Tensor, *NUMBERS)):
                expected = "a tensor, an array or a number"
                raise TypeError(complain(f"{self.name}: argument {p.name}", type(x).__name__, expected))
            if p.pointer and not isinstance(x, Tensor):
                raise TypeError(complain(f"{self.name}: argument {p.name}", repr(x), "an array: it is a pointer"))
            found.append(x)
        return found

    def _kinds(self, values: Sequence[Any]) -> list[Any]:
        return [x.dtype if isinstance(x, Tensor) else None if x is None else type(x) for x in values]

    def _made(self, key: tuple, make: Any) -> UserSource:
        made = self._sources.get(key)
        if made is None:
            made = self._sources[key] = make()
        return made

    def _run(self, made: UserSource, *launch: Any) -> None:
        try:
            self.backend._run_user(made, *launch)
        except CompileError as error:
            raise CompileError(_explained(self.spec, str(error))) from error

    def _private(self, x: Tensor) -> Tensor:
        """A contiguous copy, of a type that the body can index: halves become float32."""
        be = self.backend
        copy = be.empty(x.shape, dtypes.compute(x.dtype), min_dims=min(x.structure.min_dims, x.ndim))
        copy._assign(x)
        return copy


class ElementwiseKernel(_Kernel):
    """A kernel over elements. Call it with inputs, then outputs (those left out are made), and `size` if all arrays are
    raw; the pointer style takes all its parameters and returns None. Make it with `Backend.elementwise`."""

    spec: Elementwise

    def __call__(self, *arguments: Any, size: int | None = None) -> Any:
        spec, count = self.spec, len(arguments)
        least = self.nargs if spec.pointer else len(spec.inputs)
        if not least <= count <= self.nargs:
            given = f"{count} arguments"
            raise TypeError(complain(f"{self.name}: arguments", given, f"{least} to {self.nargs}"))
        values = self._given(spec.parameters, arguments) + [None] * (self.nargs - count)
        arrays = [x for x in arguments if isinstance(x, (Tensor, np.ndarray))]
        for p, x in zip(spec.outputs, values[len(spec.inputs) :]):
            if isinstance(x, NUMBERS):
                raise TypeError(complain(f"{self.name}: output {p.name}", repr(x), "a tensor or an array"))
        bound, types = bind(self.name, spec.parameters, self._kinds(values), self.backend.default_dtype)
        shape = self._space(values, size)
        values = self._with_outputs(values, types, shape)
        with self.backend._lock:
            self._launch(values, bound, types, shape)
        if spec.pointer:
            return None
        outputs = values[len(spec.inputs) :]
        if arrays and all(isinstance(x, np.ndarray) for x in arrays):
            kept = [x for x in arguments[len(spec.inputs) :]]
            outputs = [*kept, *(y.get() for y in outputs[len(kept) :])]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _space(self, values: list[Any], size: int | None) -> tuple[int, ...]:
        """The shape of the loop. Raises `ShapeError` where arguments do not fit."""
        spec = self.spec
        if spec.pointer:
            first = next((x for p, x in zip(spec.parameters, values) if p.pointer), None)
            return (size if size is not None else first.size,)
        shapes = [x.shape for p, x in zip(spec.inputs, values) if isinstance(x, Tensor) and not p.raw]
        given = [x for p, x in zip(spec.outputs, values[len(spec.inputs) :]) if x is not None and not p.raw]
        if size is not None:
            shapes.append((size,))
        if not shapes and not given and any(isinstance(x, Tensor) for x in values):
            raise ShapeError(complain(f"{self.name}: nothing says how long the loop is", "raw arrays", "", "size="))
        shape = broadcast(self.name, shapes) if shapes else given[0].shape if given else ()
        for p, y in zip(spec.outputs, values[len(spec.inputs) :]):
            if y is not None and not p.raw and y.shape != shape:
                raise ShapeError(complain(f"{self.name}: shape of output {p.name}", str(y.shape), str(shape)))
        return shape

    def _with_outputs(self, values: list[Any], types: list[np.dtype], shape: tuple[int, ...]) -> list[Any]:
        """The values with all outputs made, and inputs that outputs would overwrite too early copied."""
        spec = self.spec
        written = [x for p, x in zip(spec.parameters, values) if p.written and x is not None]
        for p, x in zip(spec.parameters, values):
            if p.written and x is not None:
                check_writable(x)
                if p.whole and not x.is_contiguous:
                    text = f"strides {x.strides} of shape {x.shape}"
                    raise ShapeError(complain(f"{self.name}: output {p.name} is not contiguous", text, "C order"))
        for k, x in enumerate(written):
            for y in written[:k]:
                if x.start < y.stop and y.start < x.stop and not spec.pointer:
                    raise ShapeError(complain(f"{self.name}: two outputs share memory", f"{x.shape} and {y.shape}"))
        ranks = [x.structure.min_dims for x in values if isinstance(x, Tensor)]
        minimum = min([*ranks, len(shape)])
        result = []
        for p, x, dtype in zip(spec.parameters, values, types):
            if x is None:
                x = self.backend.empty(shape, dtype, min_dims=minimum)
            elif isinstance(x, Tensor) and not p.written and not p.pointer and self._in_the_way(p, x, written):
                x = self._private(x) if p.raw else self.backend.copy(x)
            result.append(x)
        return result

    @staticmethod
    def _in_the_way(p: Parameter, x: Tensor, written: list[Tensor]) -> bool:
        """Whether an output overwrites elements of an input that are still to be read."""
        over = [y for y in written if x.start < y.stop and y.start < x.stop]
        return any(p.raw or x.address != y.address or x.structure is not y.structure for y in over)

    def _launch(self, values: list[Any], bound: dict, types: list[np.dtype], shape: tuple[int, ...]) -> None:
        parameters = self.spec.parameters
        is_number = [not isinstance(x, Tensor) for x in values]
        total = math.prod(shape)
        if total == 0:
            return
        staged = [(p, x) for p, x in zip(parameters, values) if p.whole and isinstance(x, Tensor)]
        copies = {p.name: self._private(x) for p, x in staged if not x.is_contiguous or dtypes.is_half(x.dtype)}
        whole = [copies.get(p.name, x) for p, x in staged]
        walked = [(p, x) for p, x in zip(parameters, values) if not p.whole and isinstance(x, Tensor)]
        strides = [_strides(x, shape) for _, x in walked]
        axes = merged(shape, strides)
        rank = len(axes.lengths)
        units = tuple((p.name, s[-1] if s[-1] in (0, 1) else -1) for (p, _), s in zip(walked, axes.strides))
        key = (tuple(types), tuple(is_number), units, rank, tuple(bound.items()))
        made = self._made(key, lambda: print_elementwise(self.spec, bound, types, is_number, units, rank))
        words = [word(x, dtype) for x, dtype, flag in zip(values, types, is_number) if flag]
        flat = [step for s in axes.strides for step in s]
        tensors = [x for _, x in walked] + whole
        self._run(
            made, tensors, [[*axes.lengths, total]], flat, words, types_of(types, is_number), [-(-total // CHUNK)]
        )
        for p, x in staged:
            if p.written and p.name in copies:
                x._assign(copies[p.name])


class ReductionKernel(_Kernel):
    """A reduction. Call it with inputs, and `axis` (None: all), `keepdims`, `out`. Make it with `Backend.reduction`."""

    spec: Reduction

    def __call__(self, *arguments: Any, axis: Any = None, keepdims: bool = False, out: Any = None) -> Any:
        spec = self.spec
        if len(arguments) != len(spec.inputs):
            raise TypeError(complain(f"{self.name}: arguments", str(len(arguments)), str(len(spec.inputs))))
        values = self._given(spec.parameters, [*arguments, out])
        bound, types = bind(self.name, spec.parameters, self._kinds(values), self.backend.default_dtype)
        tensors = [x for x in values[:-1] if isinstance(x, Tensor)]
        shape = broadcast(self.name, [x.shape for x in tensors]) if tensors else ()
        axes = _axes(self.name, axis, len(shape))
        kept = tuple(1 if a in axes else n for a, n in enumerate(shape))
        target = values[-1]
        if target is None:
            lean = tuple(n for a, n in enumerate(shape) if a not in axes)
            wanted = kept if keepdims else lean
            least = min([x.structure.min_dims for x in tensors] or [0])
            target = self.backend.empty(wanted, types[-1], min_dims=min(least, len(wanted)))
        else:
            check_writable(target)
            if target.size != math.prod(kept) or not isinstance(target, Tensor):
                raise ShapeError(complain(f"{self.name}: shape of out", str(target.shape), str(kept)))
        inside = target if target.is_contiguous else self._private(target)
        tensors = [self.backend.copy(x) if x.start < inside.stop and inside.start < x.stop else x for x in tensors]
        with self.backend._lock:
            self._launch(values, tensors, inside, bound, types, shape, axes)
        if inside is not target:
            target._assign(inside)
        given = [x for x in arguments if isinstance(x, (Tensor, np.ndarray))]
        if out is not None:
            return out
        return target.get() if given and all(isinstance(x, np.ndarray) for x in given) else target

    def _launch(self, values: list[Any], tensors: list[Tensor], out: Tensor, bound: dict, types: list[np.dtype],
                shape: tuple[int, ...], axes: tuple[int, ...]) -> None:  # fmt: skip
        strides = [_strides(x, shape) for x in tensors]
        kept = [a for a in range(len(shape)) if a not in axes]
        outer = merged(
            tuple(shape[a] for a in kept),
            [*(tuple(s[a] for a in kept) for s in strides), indexing.contiguous_strides(tuple(shape[a] for a in kept))],
        )
        inner = merged(
            tuple(shape[a] for a in axes), [tuple(s[a] for a in axes) for s in strides] or [(0,) * len(axes)]
        )
        rows, count = math.prod(outer.lengths), math.prod(inner.lengths)
        if rows == 0:
            return
        segments = max(1, -(-count // SEGMENT))
        is_number = [not isinstance(x, Tensor) for x in values[:-1]] + [False]
        key = (tuple(types), tuple(is_number), len(outer.lengths), len(inner.lengths), tuple(bound.items()))
        made = self._made(
            key,
            lambda: print_reduction(self.spec, bound, types, is_number, len(outer.lengths), len(inner.lengths)),
        )
        words = [word(x, dtype) for x, dtype, flag in zip(values, types, is_number) if flag]
        flat = [step for k in range(len(tensors)) for step in (*outer.strides[k], *inner.strides[k])]
        flat += outer.strides[-1]
        scratch = self.backend.empty((rows * segments,), np.int64, min_dims=0)
        sizes = [*outer.lengths, *inner.lengths, rows, count, segments]
        kinds = types_of(types, is_number)
        self._run(made, [*tensors, out, scratch], [sizes, sizes], flat, words, kinds, [rows * segments, rows])


def types_of(types: Sequence[np.dtype], is_number: Sequence[bool]) -> list[np.dtype]:
    """The types of the parameters that are numbers."""
    return [dtype for dtype, flag in zip(types, is_number) if flag]


def _strides(x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A tensor's strides over a space that it broadcasts to."""
    lead = len(shape) - x.ndim
    own = tuple(0 if n == 1 else s for n, s in zip(x.shape, x.strides))
    return (0,) * lead + own


def _axes(name: str, axis: Any, rank: int) -> tuple[int, ...]:
    wanted = range(rank) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    found = sorted(a + rank if a < 0 else a for a in wanted)
    if len(set(found)) != len(found) or any(not 0 <= a < rank for a in found):
        raise ShapeError(complain(f"{name}: axis", repr(axis), f"different axes of {rank}"))
    return tuple(found)


def _explained(spec: Elementwise | Reduction, message: str) -> str:
    """A compile error with the kernel's name and the line of the user's text that the compiler names first."""
    texts = [spec.body] if isinstance(spec, Elementwise) else [spec.map, spec.reduce, spec.post, spec.identity]
    found = re.search(
        rf"^.*\b{spec.name}( \(preamble\))?:(\d+):(?:\d+:)? (?:fatal )?error: (.*)$", message, re.MULTILINE
    )
    if found is None:
        return f"{spec.name}: the kernel cannot be compiled\n{message}"
    source = (spec.preamble if found[1] else "\n".join(texts) if len(texts) == 1 else " | ".join(texts)).splitlines()
    number = int(found[2])
    line = source[number - 1].strip() if len(source) >= number else source[-1].strip() if source else ""
    where = "preamble" if found[1] else "operation"
    return f"{spec.name}: {found[3]}\n  line {number} of the {where}: {line}\n{message}"
