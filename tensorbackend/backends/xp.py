# SPDX-License-Identifier: Apache-2.0
"""The array module of a backend, `be.xp`: NumPy's names for layer code that is written once.

Functions take arrays of the backend, host arrays, lists and numbers, and give arrays (see `numpy_like.py`). Each runs
when it is called; random numbers are drawn then.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.backends.allocation import host_range
from tensorbackend.backends.numpy_like import REDUCTIONS, as_operand, check_order, presented, result, wrapped
from tensorbackend.backends.xp_arranging import THROUGH_HOST, Arranging, sortable, through_host
from tensorbackend.errors import ShapeError, complain, is_complaint, ours
from tensorbackend.graph import composite, contraction
from tensorbackend.graph.indexing import as_array, pad_parts, pad_places, pad_widths
from tensorbackend.graph.optree import Operators, apply, source
from tensorbackend.graph.ranges import check, check_bounds
from tensorbackend.graph.structure import moved_axes, normalize_axes, one_axis
from tensorbackend.graph.tensor import Tensor

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = ["ArrayModule"]


class ArrayModule(Arranging):
    """NumPy's functions on the arrays of one backend, `backend`."""

    float16, float32, float64 = np.float16, np.float32, np.float64
    int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
    uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
    bool_ = np.bool_
    bfloat16 = dtypes.BFLOAT16.type
    ndarray = Tensor
    newaxis = None
    pi, e, inf, nan = math.pi, math.e, math.inf, math.nan

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.random = RandomModule(self)

    def __repr__(self) -> str:
        return f"<array module of {self.backend!r}>"

    def _of(self, x: Any) -> Any:
        return as_operand(x, self.backend)

    def _tree(self, x: Any) -> Any:
        """An operand that has a shape."""
        x = self._of(x)
        return x if isinstance(x, Operators) else self.backend.array(x, dtype=np.asarray(x).dtype, min_dims=0)

    def _shaped(self, x: Any) -> Any:
        """What has a shape and a type as it is; lists and numbers as an array."""
        return x if hasattr(x, "shape") else self.asarray(x)

    # Making arrays

    def empty(self, shape: Any, dtype: Any = None) -> Any:
        """An uninitialised array; `dtype` None is the backend's default."""
        return wrapped(self.backend.empty(shape, dtype, min_dims=0))

    def zeros(self, shape: Any, dtype: Any = None) -> Any:
        """An array of zeros."""
        return wrapped(self.backend.zeros(shape, dtype, min_dims=0))

    def ones(self, shape: Any, dtype: Any = None) -> Any:
        """An array of ones."""
        return wrapped(self.backend.ones(shape, dtype, min_dims=0))

    def full(self, shape: Any, fill_value: Any, dtype: Any = None) -> Any:
        """An array with every element `fill_value`: a number, or an array that is broadcast."""
        if not isinstance(fill_value, (Operators, np.ndarray, list, tuple)):
            return wrapped(self.backend.full(shape, fill_value, dtype, min_dims=0))
        out = self.empty(shape, dtype)
        out[...] = fill_value
        return out

    def empty_like(self, a: Any, dtype: Any = None) -> Any:
        """An uninitialised array of a's shape and type."""
        a = self._shaped(a)
        return self.empty(a.shape, dtype or a.dtype)

    def zeros_like(self, a: Any, dtype: Any = None) -> Any:
        """Zeros of a's shape and type."""
        a = self._shaped(a)
        return self.zeros(a.shape, dtype or a.dtype)

    def ones_like(self, a: Any, dtype: Any = None) -> Any:
        """Ones of a's shape and type."""
        a = self._shaped(a)
        return self.ones(a.shape, dtype or a.dtype)

    def full_like(self, a: Any, fill_value: Any, dtype: Any = None) -> Any:
        """An array of a's shape and type with every element `fill_value`."""
        a = self._shaped(a)
        return self.full(a.shape, fill_value, dtype or a.dtype)

    def array(self, a: Any, dtype: Any = None, copy: bool = True) -> Any:
        """An array with a copy of `a`; integers and floats of the host keep their type, Python floats the default."""
        if isinstance(a, Operators):
            return result(a, dtype)
        kind = dtype
        if kind is None:
            values = as_array("array", a)
            given = isinstance(a, (np.ndarray, np.generic)) or values.dtype.kind != "f"
            kind = values.dtype if given else self.backend.default_dtype
        return wrapped(self.backend.array(a, dtype=kind, min_dims=0))

    def asarray(self, a: Any, dtype: Any = None) -> Any:
        """`a` as an array of the backend; itself if it is one, of that type."""
        same = isinstance(a, Tensor) and a.backend is self.backend and (dtype is None or dtype == a.dtype)
        return presented(a) if same else self.array(a, dtype)

    def round(self, a: Any, decimals: int = 0, out: Any = None) -> Any:
        """Numbers rounded to so many decimals, halves to even. Raises `ValueError` for decimals of integers."""
        tree = self._tree(a)
        check("round", "an int", decimals=decimals)
        if decimals == 0:
            return result(apply(ops.OPS["rint"], tree, table=self.backend.structures), None, out)
        if not dtypes.is_float(tree.dtype):
            raise ValueError(complain("round: decimals of integers", f"{tree.dtype}, decimals={decimals}", "0"))
        scale = 10.0 ** abs(decimals)
        whole = apply(ops.OPS["rint"], tree * scale if decimals > 0 else tree / scale, table=self.backend.structures)
        return result(whole / scale if decimals > 0 else whole * scale, None, out)

    def copy(self, a: Any) -> Any:
        """A copy in C order."""
        return self.array(a)

    def ascontiguousarray(self, a: Any, dtype: Any = None) -> Any:
        """`a` as an array in C order without gaps."""
        a = self.asarray(a, dtype)
        return a if a.is_contiguous else result(a)

    def asnumpy(self, a: Any) -> np.ndarray:
        """A copy as a NumPy array."""
        return a.get() if isinstance(a, Operators) else np.array(a)

    def arange(self, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
        """The numbers from `start` (0 if only one is given) up to `stop`."""
        values = host_range(start, stop, step)
        return self.array(values, dtype or (self.backend.default_dtype if values.dtype.kind == "f" else values.dtype))

    def eye(self, n: int, m: int | None = None, k: int = 0, dtype: Any = None) -> Any:
        """Ones on the k-th diagonal, counted to the right, of a matrix of zeros of n rows and m (None: n) columns."""
        k = operator.index(k)
        made = self.zeros((n, n if m is None else m), dtype)
        rows, columns = made.shape
        first, count = (k, min(rows, columns - k)) if k >= 0 else (-k * columns, min(rows + k, columns))
        if count > 0:
            made.reshape(-1)[first : first + (count - 1) * (columns + 1) + 1 : columns + 1] = 1
        return made

    # Shapes

    def reshape(self, a: Any, shape: Any, order: str = "C") -> Any:
        """The elements in C order, the only one, under another shape: a view where there is one, else a copy."""
        check_order("reshape", order)
        return self.asarray(a).reshape(shape)

    def ravel(self, a: Any, order: str = "C") -> Any:
        """The elements in C order, the only one, along one axis."""
        check_order("ravel", order)
        return self.asarray(a).ravel()

    def transpose(self, a: Any, axes: Any = None) -> Any:
        """The axes in another order (None: reversed), as a view."""
        return self.asarray(a).transpose(axes)

    def swapaxes(self, a: Any, axis1: int, axis2: int) -> Any:
        """Two axes exchanged, as a view."""
        a = self.asarray(a)
        rank = len(a.shape)
        order, first, second = list(range(rank)), *(one_axis("swapaxes", x, rank) for x in (axis1, axis2))
        order[first], order[second] = second, first
        return self.transpose(a, order)

    def moveaxis(self, a: Any, source: Any, destination: Any) -> Any:
        """One axis or several moved to other places, as a view. Raises `ShapeError` unless there are as many places."""
        a = self.asarray(a)
        return self.transpose(a, moved_axes("moveaxis", source, destination, len(a.shape)))

    def expand_dims(self, a: Any, axis: Any) -> Any:
        """A new axis of length 1, or several."""
        a, wanted = self.asarray(a), axis if isinstance(axis, (tuple, list)) else (axis,)
        rank = len(a.shape) + len(wanted)
        new = normalize_axes("expand_dims", tuple(wanted), rank)
        return a[tuple(None if k in new else slice(None) for k in range(rank))]

    def squeeze(self, a: Any, axis: Any = None) -> Any:
        """Axes of length 1 dropped."""
        return self.asarray(a).squeeze(axis)

    def broadcast_to(self, a: Any, shape: Any) -> Any:
        """`a` repeated along axes of length 1 to a shape: a view that is read only."""
        return composite.broadcast_to(self.asarray(a), _shape(shape))

    def concatenate(self, arrays: Sequence[Any], axis: int | None = 0) -> Any:
        """Arrays one after the other along an axis (None: of all elements in C order)."""
        parts = [self.asarray(a) for a in arrays]
        if axis is None:
            parts, axis = [p.ravel() for p in parts], 0
        if not parts:
            raise ShapeError(complain("concatenate: no arrays", "", "one or more"))
        rank = len(parts[0].shape)
        axis = one_axis("concatenate", axis, rank)
        rest = {p.shape[:axis] + p.shape[axis + 1 :] for p in parts}
        if len(rest) > 1 or any(len(p.shape) != rank for p in parts):
            given = " and ".join(str(p.shape) for p in parts)
            raise ShapeError(complain("concatenate: shapes", given, f"equal lengths but for axis {axis}"))
        kind = dtypes.promote([p.dtype for p in parts], [], self.backend.default_dtype)
        length = sum(p.shape[axis] for p in parts)
        shape = (*parts[0].shape[:axis], length, *parts[0].shape[axis + 1 :])
        out = self.backend.empty(shape, kind, min_dims=0)
        start, before = 0, (slice(None),) * axis
        for p in parts:
            end = start + p.shape[axis]
            out[(*before, slice(start, end))] = p
            start = end
        return wrapped(out)

    def stack(self, arrays: Sequence[Any], axis: int = 0) -> Any:
        """Arrays of one shape along a new axis."""
        arrays = [self.asarray(a) for a in arrays]
        if len({a.shape for a in arrays}) == 1:
            shape = arrays[0].shape
            axis = one_axis("stack", axis, len(shape) + 1)
            kind = dtypes.promote([a.dtype for a in arrays], [], self.backend.default_dtype)
            out = self.backend.empty((*shape[:axis], len(arrays), *shape[axis:]), kind, min_dims=0)
            for i, a in enumerate(arrays):
                out[(*(slice(None),) * axis, i)] = a
            return wrapped(out)
        for a in arrays:
            one_axis("stack", axis, len(a.shape) + 1)
        return self.concatenate([self.expand_dims(a, axis) for a in arrays], axis)

    def pad(self, a: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Any:
        """`a` with more entries around it: (before, after) for each axis, one pair for all, or one number.

        `mode` is 'constant', 'edge', 'reflect', 'symmetric' or 'wrap', as in NumPy. Raises `ValueError` for another,
        and for widths that are no such integers of 0 or more.
        """
        a = self.asarray(a)
        widths = pad_widths(pad_width, len(a.shape))
        shape = tuple(n + before + after for n, (before, after) in zip(a.shape, widths))
        if mode != "constant":
            return self._padded_by(a, widths, mode, shape)
        out = self.full(shape, constant_values, a.dtype)
        out[tuple(slice(before, before + n) for n, (before, _) in zip(a.shape, widths))] = a
        return out

    def _padded_by(self, a: Any, widths: tuple[tuple[int, int], ...], mode: str, shape: tuple[int, ...]) -> Any:
        parts = pad_parts(a.shape, widths, mode)
        if parts is None:
            for axis, entries in pad_places(a.shape, widths, mode):
                a = self.take(a, entries, axis)
            return a
        base, out = a.base, self.backend.empty(shape, a.dtype, min_dims=0)
        if base is not None and base.structure is a.structure and base.address == a.address:
            a = base  # whose views need not be seen as arrays
        for there, here, _ in parts:
            out[there] = a[here]
        return wrapped(out)

    def take(self, a: Any, indices: Any, axis: int | None = None) -> Any:
        """The entries along an axis at integer places."""
        return result(self.backend.take(self.asarray(a), indices, axis))

    # Products

    def matmul(self, a: Any, b: Any) -> Any:
        """The product over the last two axes, others broadcast; a vector is a row or a column."""
        return result(self.backend.matmul(self._tree(a), self._tree(b)))

    def dot(self, a: Any, b: Any) -> Any:
        """NumPy's `dot`: the product over a's last axis and b's last but one; of numbers the plain product."""
        a, b = self._of(a), self._of(b)
        if not all(isinstance(x, Operators) and x.shape for x in (a, b)):
            return result(apply(ops.OPS["mul"], a, b, table=self.backend.structures))
        return result(contraction.tensordot(a, b, ([-1], [-2 if len(b.shape) > 1 else 0])))

    def tensordot(self, a: Any, b: Any, axes: Any = 2) -> Any:
        """Products summed over so many last and first axes, or over two lists of axes."""
        return result(contraction.tensordot(self._tree(a), self._tree(b), axes))

    def einsum(self, expression: str, *operands: Any, optimize: Any = False) -> Any:
        """Einstein's summation, without `...`. `optimize` changes nothing: the order of products is chosen anyway."""
        return result(contraction.einsum(expression, [self._tree(x) for x in operands]))

    def outer(self, a: Any, b: Any) -> Any:
        """All products of the elements of two arrays."""
        return self.einsum("i,j->ij", self.ravel(a), self.ravel(b))

    # What is no elementwise op of the table

    def divmod(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The quotients rounded down, and what is left."""
        return self.floor_divide(a, b), self.remainder(a, b)

    def clip(self, a: Any, a_min: Any, a_max: Any) -> Any:
        """Elements between two bounds (None: none)."""
        tree = self._tree(a)
        tree = tree if a_min is None else composite.maximum(tree, self._of(a_min))
        return result(tree if a_max is None else composite.minimum(tree, self._of(a_max)))

    def where(self, condition: Any, x: Any = None, y: Any = None) -> Any:
        """x where the condition holds, else y; without both the places where it holds, as `nonzero`."""
        if x is None and y is None:
            return self.nonzero(condition)
        if x is None or y is None:
            raise ValueError(complain("where: one of x and y", "None", "both, or neither"))
        return result(composite.where(self._tree(condition), self._of(x), self._of(y)))

    def cumsum(self, a: Any, axis: int | None = None) -> Any:
        """Running sums along an axis (None: of all in C order)."""
        tree = self._tree(a)
        return result(composite.cumsum(composite.reshape(tree, (-1,)) if axis is None else tree, axis or 0))

    def cumprod(self, a: Any, axis: int | None = None) -> Any:
        """Running products along an axis (None: of all in C order)."""
        tree = self._tree(a)
        return result(composite.cumprod(composite.reshape(tree, (-1,)) if axis is None else tree, axis or 0))

    def sort(self, a: Any, axis: int | None = -1) -> Any:
        """In rising order along an axis (None: all elements), NaN last. It is sorted on the host, which reads `a`."""
        a = self.asarray(a)
        return self.array(np.sort(sortable(a.get()), axis), a.dtype)

    def argsort(self, a: Any, axis: int | None = -1) -> Any:
        """Where the elements of `sort` are (int64), the first of equals first. On the host, too."""
        return self.array(np.argsort(sortable(self.asarray(a).get()), axis, kind="stable"))

    def diag_indices(self, n: int, ndim: int = 2) -> tuple:
        """The index of the diagonal of an n x n array."""
        return (self.arange(n),) * ndim

    def may_share_memory(self, a: Any, b: Any) -> bool:
        """Whether the extents of two arrays overlap."""
        return a.start < b.stop and b.start < a.stop


class RandomModule:
    """Random numbers of the backend's seed, as `numpy.random` gives them; drawn at the call."""

    def __init__(self, module: ArrayModule) -> None:
        self._module = module

    @property
    def _backend(self) -> Backend:
        return self._module.backend

    def rand(self, *shape: int, dtype: Any = None) -> Any:
        """Uniform numbers of [0, 1); halves round those next to 1 to it."""
        return result(self._backend.rand(shape=shape), dtype)

    def randn(self, *shape: int, dtype: Any = None) -> Any:
        """Standard normal numbers."""
        return result(self._backend.randn(shape=shape), dtype)

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None, dtype: Any = None) -> Any:
        """Uniform numbers of [low, high], where `high` comes of rounding alone. Raises `ValueError` for bounds in the
        wrong order."""
        check_bounds("uniform", low, high)
        return result(self._backend.rand(shape=_shape(size)) * (high - low) + low, dtype)

    def normal(self, loc: float = 0.0, scale: float = 1.0, size: Any = None, dtype: Any = None) -> Any:
        """Normal numbers. Raises `ValueError` for a deviation below 0."""
        check("normal", "0 or more, and finite", scale=scale)
        return result(self._backend.randn(shape=_shape(size)) * scale + loc, dtype)

    def randint(self, low: int, high: int | None = None, size: Any = None, dtype: Any = np.int64) -> Any:
        """Integers of [low, high), or of [0, low) if only one is given.

        Raises `ValueError` when there are none, or some that `dtype` lacks.
        """
        low, high = map(operator.index, (0, low) if high is None else (low, high))
        if high <= low:
            raise ValueError(complain("randint: no integers", f"from {low} below {high}", "low < high"))
        kind, shape = dtypes.as_dtype(dtype), _shape(size)
        if dtypes.is_integer(kind) and (low < np.iinfo(kind).min or high - 1 > np.iinfo(kind).max):
            raise ValueError(complain("randint: integers that the type lacks", f"{low} to {high - 1}", f"{kind}"))
        if high - low > 1 << 32 or max(abs(low), abs(high)) > 1 << 53:  # more than a word, or a float64, tells apart
            wide = np.uint64 if high > 1 << 63 else np.int64
            return self._module.array(self._backend.rng.randint(low, high, shape, wide), kind)
        words = apply(ops.OPS["mul"], _words(self._backend, shape), np.float64((high - low) / 2**32))
        return result(composite.floor(words) + low, kind)

    def permutation(self, x: Any) -> Any:
        """The numbers below `x` in random order, or the entries of an array along axis 0. Raises `ValueError` for a
        number below 0."""
        if isinstance(x, (int, np.integer)):
            check("permutation", "an int of 0 or more", x=x)
            return self._module.array(self._backend.rng.permutation(int(x)))
        x = self._module._shaped(x)
        order = self._module.array(self._backend.rng.permutation(x.shape[0]))
        return self._module.take(x, order, 0)

    def seed(self, seed: int | None = None) -> None:
        """Seed the backend's generators."""
        self._backend.gen_rng(seed)


def _shape(size: Any) -> tuple[int, ...]:
    return () if size is None else tuple(size) if isinstance(size, (tuple, list)) else (size,)


def _words(backend: Backend, shape: tuple[int, ...]) -> Any:
    return source(ops.OPS["randbits"], backend.structures, shape)


def _elementwise(op: ops.Op, name: str) -> Any:
    def function(self: ArrayModule, *operands: Any, out: Any = None, dtype: Any = None) -> Any:
        if len(operands) == op.arity + 1 and out is None:  # as in NumPy, the last one by its place
            *operands, out = operands
        if len(operands) != op.arity:
            raise TypeError(f"{op.arity} operands, and perhaps out, are wanted")
        found = [self._of(x) for x in operands]
        return result(apply(op, *found, table=self.backend.structures), dtype, out)

    function.__name__, function.__doc__ = name, op.doc
    return function


def _reduction(name: str, compute: str) -> Any:
    method = REDUCTIONS[compute]

    def function(self: ArrayModule, a: Any, *options: Any, **named: Any) -> Any:
        return method(self._tree(a), *options, **named)

    own, taken = inspect.signature(function), inspect.signature(method)
    first = [*own.parameters.values()][:2]
    function.__signature__ = taken.replace(parameters=[*first, *[*taken.parameters.values()][1:]])
    function.__name__, function.__doc__ = name, method.__doc__
    return function


def _install() -> None:
    for op in ops.elementwise():
        for name in op.methods:
            if name not in vars(ArrayModule):
                setattr(ArrayModule, name, _elementwise(op, name))
    for name, compute in {**{name: name for name in REDUCTIONS}, "amax": "max", "amin": "min"}.items():
        setattr(ArrayModule, name, _reduction(name, compute))
    for name, typed in THROUGH_HOST.items():
        setattr(ArrayModule, name, through_host(name, typed))
    for module in (ArrayModule, RandomModule):
        for name in dir(module):
            if not name.startswith("_") and inspect.isfunction(getattr(module, name)):
                setattr(module, name, _said(name, getattr(module, name)))


def _said(name: str, function: Any) -> Any:
    """A function that says what it was given, and what it takes, where Python's or NumPy's error says neither."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(self, *args, **kwargs)
        except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            if is_complaint(error) or not ours(error):
                raise
            try:
                signature.bind(self, *args, **kwargs)
                what = str(error)
            except TypeError:  # too many arguments, too few, or others
                what = re.sub(r"^[\w.<>]+\(\) ", "", str(error))
            kind = TypeError if isinstance(error, (TypeError, AttributeError)) else ValueError
            given = ", ".join([*map(_described, args), *(f"{k}={_described(x)}" for k, x in kwargs.items())])
            takes = str(signature.replace(parameters=[*signature.parameters.values()][1:], return_annotation=str))
            raise kind(complain(f"{name}: {what}", given, f"{name}{takes.removesuffix(' -> str')}")) from error

    return call


def _described(x: Any) -> str:
    """An argument in a few words."""
    shape = getattr(x, "shape", None)
    return f"{x.dtype} {shape}" if isinstance(shape, tuple) and hasattr(x, "dtype") else repr(x)[:80]


_install()
