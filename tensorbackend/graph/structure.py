# SPDX-License-Identifier: Apache-2.0
"""Structures: what can be known of a tree without its numbers, worked out once and remembered.

A structure is an op with the structures of its operands, and the shape and type that follow; a leaf is the layout
of a tensor (type, shape, strides) or the kind of a number. Structures are interned in the table of a backend, so
that a repeated expression costs one look-up a node: the rules of this module (broadcasting, types, complaints) run
only when an expression is new. A structure holds no tensor and no number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.errors import BackendError, DTypeError, ShapeError, complain
from tensorbackend.graph import indexing

__all__ = ["Structure", "StructureTable", "as_axis", "broadcast_shapes", "normalize_axes", "one_axis"]

Shape = tuple[int, ...]

MAX_STRUCTURES = 1 << 16
MAX_PLANS = 1 << 13
_INTS = frozenset((int,))
UNKNOWN = -1
"""The length of an axis that the partner or the target decides (onehot, rand)."""


class Structure:
    """The form of a tree: `op` (None for a leaf), `inputs`, `params`, and the `shape` and `dtype` that follow.

    `operands` is the type in which the op's operands are read; `weak` is the Python type of a number leaf, and
    `strides` (in elements), `extent` (lowest and highest byte offset) and `combs` (see `indexing.combs`) are those of a
    tensor leaf, of which `nested` says that no two elements can share memory. A `shape` of None, or an axis of length
    -1, is decided by the partner or the target. `min_dims` is the rank rule: the least of tensors', where `ruled` says
    that there are some, else the backend's. `digest` is for `forms.py`.
    """

    __slots__ = ("__weakref__", "combs", "digest", "dtype", "extent", "flexible", "inputs", "min_dims", "nested", "op",
                 "operands", "params", "ruled", "shape", "strides", "table", "weak")  # fmt: skip

    def __init__(
        self, table: StructureTable, op: ops.Op | None, inputs: tuple, shape: Shape | None, dtype: Any
    ) -> None:
        self.table = table
        self.op = op
        self.inputs = inputs
        self.shape = shape
        self.dtype = dtype
        self.params: tuple = ()
        self.digest: str | None = None
        self.operands = dtype
        self.weak: type | None = None
        self.strides: Shape | None = None
        self.min_dims: int = table.backend.min_dims
        self.ruled = False
        self.extent = (0, 0)
        self.combs = b""
        self.nested = True
        self.flexible = shape is None or UNKNOWN in shape or any(s.flexible for s in inputs)


class Plans(dict):
    """What is remembered under the forms of statements and calls: plans, and which statements may run together.

    Bounded: when full it is emptied. Whoever runs one holds it.
    """

    emptied = 0
    """How often that was."""

    def make(self, key: tuple, made: Callable[[], Any]) -> Any:
        """What `made()` gives, remembered unless all was forgotten meanwhile: then it may be out of date."""
        before = self.emptied
        plan = made()
        if self.emptied == before:
            self[key] = plan
        return plan

    def clear(self) -> None:
        """Forget all."""
        self.emptied += 1
        super().clear()

    def __setitem__(self, key: tuple, plan: Any) -> None:
        if len(self) >= MAX_PLANS:
            self.clear()
        super().__setitem__(key, plan)


class StructureTable(dict):
    """The structures and plans that a backend remembers: keys of structures and ops to structures.

    Bounded: when full it is emptied, which costs the next statements their look-ups and nothing else.
    """

    most_operands = 0
    """Operands of a native node at most."""
    grow: Callable[[list[Any], list[Any], list[int]], None] | None = None
    """`grow(values, nodes, draws)` of a backend with native nodes appends nodes to a list. Each is given by its layout,
    where its operands are in the list (`most_operands`), and which of the draws is its number (-1: none)."""
    look: Callable[[list[Any], tuple], bool] | None = None
    """`look(values, views)` appends views. Each is given by where its tensor is in the list, its layout, and in bytes
    how far it begins from the tensor, and its extent. False, with some of them there, when Python must make them."""
    fresh: Callable[[type, Structure, int, int], Any] | None = None
    """`fresh(class, structure, nbytes, rounding)` of a backend in the host's memory makes a tensor of a layout without
    gaps in fresh memory; None when Python must make it."""

    def __init__(self, backend: Any, default_dtype: np.dtype) -> None:
        super().__init__()
        self.backend = backend
        self.default_dtype = default_dtype
        self.plans = Plans()
        self.closed = False

    def close(self) -> None:
        """Forget everything; from now on building a node raises `BackendError`."""
        self.closed = True
        self.clear()
        self.plans.clear()

    def linker(self, variable: type, node: type) -> Callable[..., tuple[Any, ...] | None] | None:
        """What makes, of a backend with native nodes, variables and their nodes, of these classes, of a function's
        outputs: `link(function, variables, outputs, inputs kept, outputs kept)`, of lists and of tuples of numbers. It
        gives None when Python must make them."""
        return None

    def check_open(self) -> None:
        """Raise `BackendError` when the backend was cleaned up."""
        if self.closed:
            raise BackendError(
                complain(
                    f"{self.backend.backend_name} backend: closed",
                    "a tensor of a backend that was cleaned up",
                    "an open backend",
                    "get() still reads its tensors; make a new backend with gen_backend() and copy them there",
                )
            )

    def remember(self, key: tuple, structure: Structure) -> Structure:
        """Store a structure under a key, and return it."""
        if len(self) >= MAX_STRUCTURES:
            self.clear()
            self.plans.clear()
        self[key] = structure
        return structure

    def tensor(self, dtype: np.dtype, shape: Shape, strides: Shape, min_dims: int) -> Structure:
        """The leaf of tensors with this layout; `strides` are in elements."""
        key = (dtype, shape, strides, min_dims)
        found = self.get(key)
        if found is None:
            found = Structure(self, None, (), shape, dtype)
            found.strides, found.min_dims, found.ruled = strides, min_dims, True
            found.extent = indexing.extent(shape, strides, dtype.itemsize)
            found.combs = indexing.combs(shape, strides, dtype.itemsize)
            found.nested = indexing.nested(shape, strides)
            self.remember(key, found)
        return found

    def contiguous(self, dtype: np.dtype, shape: Shape, min_dims: int) -> Structure:
        """The leaf of new tensors, in C order without gaps. Raises `BackendError` for a closed backend."""
        key = (dtype, shape, min_dims)
        found = self.get(key)
        if found is None:
            self.check_open()
            found = self.remember(key, self.tensor(dtype, shape, indexing.contiguous_strides(shape), min_dims))
        return found

    def number(self, kind: type) -> Structure:
        """The leaf of numbers of a Python or NumPy type."""
        found = self.get((kind,))
        if found is None:
            strong = not issubclass(kind, (bool, int, float)) or issubclass(kind, np.generic)
            found = Structure(self, None, (), (), dtypes.as_dtype(kind) if strong else None)
            found.weak = None if strong else next(base for base in (bool, int, float) if issubclass(kind, base))
            self.remember((kind,), found)
        return found

    def derive(self, key: tuple, op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> Structure:
        """The structure of an op on operands: the one place where shapes and types are inferred and refused."""
        op = _as_they_are(op, inputs)
        dtype, operands = _infer_dtype(op, inputs, self.default_dtype)
        shape, params = (op.shape or _SHAPE_RULES.get(op.name) or _KIND_RULES[op.kind])(op, inputs, params)
        found = Structure(self, op, inputs, shape, dtype)
        found.params, found.operands = params, operands
        ranked = inputs[:1] if op.name in ("take", "put") else inputs  # indices keep the rank rule of what they index
        found.ruled = any(s.ruled for s in ranked)
        found.min_dims = min((s.min_dims for s in ranked if s.ruled), default=found.min_dims)
        return self.remember(key, found)


def _as_they_are(op: ops.Op, inputs: tuple[Structure, ...]) -> ops.Op:
    """The op; a comparison of uint64 with signed integers as the one that does not read them as float64."""
    mixed = ops.MIXED.get(op.name)
    if mixed is None:
        return op
    types = [s.dtype for s in inputs]
    return mixed if np.uint64 in types and any(t is not None and t.kind == "i" for t in types) else op


def _infer_dtype(op: ops.Op, inputs: tuple[Structure, ...], default: np.dtype) -> tuple[np.dtype, np.dtype]:
    """The result's type and the type in which operands are read, by the op's rule."""
    considered = inputs[1:] if op.dtype == "choice" else inputs
    strong = [s.dtype for s in considered if s.dtype is not None]
    common = dtypes.promote(strong, [s.weak for s in considered if s.weak], default)
    return _DTYPE_RULES[op.dtype](op, common, default, inputs)


def _arith(op: ops.Op, common: np.dtype, default: np.dtype, inputs: tuple) -> tuple[np.dtype, np.dtype]:
    dtype = np.dtype(np.int64) if common == dtypes.BOOL else common
    return dtype, dtype


def _float(op: ops.Op, common: np.dtype, default: np.dtype, inputs: tuple) -> tuple[np.dtype, np.dtype]:
    dtype = common if dtypes.is_float(common) else default
    return dtype, dtype


def _sum(op: ops.Op, common: np.dtype, default: np.dtype, inputs: tuple) -> tuple[np.dtype, np.dtype]:
    if dtypes.is_float(common):
        return common, common
    wide = np.dtype(np.uint64 if common.kind == "u" else np.int64)
    return wide, wide


def _bits(op: ops.Op, common: np.dtype, default: np.dtype, inputs: tuple) -> tuple[np.dtype, np.dtype]:
    if dtypes.is_float(common):
        given = " and ".join(str(s.dtype or s.weak.__name__) for s in inputs)
        if not any(s.weak is float or s.dtype is not None and dtypes.is_float(s.dtype) for s in inputs):
            given += f", whose common type is {common}"
        raise DTypeError(complain(f"{op.name}: works on the bits of integers", given, "integers or bool"))
    return common, common


def _integer(op: ops.Op, common: np.dtype, default: np.dtype, inputs: tuple) -> tuple[np.dtype, np.dtype]:
    return _arith(op, _bits(op, common, default, inputs)[0], default, inputs)


def _stochastic(op: ops.Op, common: np.dtype, default: np.dtype, inputs: tuple) -> tuple[np.dtype, np.dtype]:
    dtype = np.dtype(np.float64 if inputs[0].dtype == np.float64 else np.float32)
    return dtype, dtype


_DTYPE_RULES: dict[str, Callable[..., tuple[np.dtype, np.dtype]]] = {
    "arith": _arith,
    "float": _float,
    "sum": _sum,
    "product": _sum,
    "bits": _bits,
    "integer": _integer,
    "sround": _stochastic,
    "same": lambda op, common, default, inputs: (common, common),
    "whole": lambda op, common, default, inputs: (common, common),
    "choice": lambda op, common, default, inputs: (common, common),
    "truth": lambda op, common, default, inputs: (dtypes.BOOL, common),
    "mixed": lambda op, common, default, inputs: (dtypes.BOOL, common),
    "index": lambda op, common, default, inputs: (np.dtype(np.int64), common),
    "default": lambda op, common, default, inputs: (default, default),
    "float16": lambda op, common, default, inputs: (dtypes.FLOATS[0], dtypes.FLOATS[0]),
    "bfloat16": lambda op, common, default, inputs: (dtypes.BFLOAT16, dtypes.BFLOAT16),
    "int32": lambda op, common, default, inputs: (np.dtype(np.int32), np.dtype(np.int32)),
    "uint32": lambda op, common, default, inputs: (np.dtype(np.uint32), np.dtype(np.uint32)),
    "int64": lambda op, common, default, inputs: (np.dtype(np.int64), np.dtype(np.int64)),
    "first": lambda op, common, default, inputs: (inputs[0].dtype, inputs[0].dtype),
}


# Shapes


def broadcast_shapes(name: str, shapes: list[Shape]) -> Shape:
    """NumPy's broadcasting of `shapes`; an unknown length takes its partner's. Raises `ShapeError`."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for axis, length in enumerate(shape, rank - len(shape)):
            if length == 1 or length == result[axis]:
                continue
            if result[axis] in (1, UNKNOWN):
                result[axis] = length
            elif length != UNKNOWN:
                raise ShapeError(_clash(name, shapes))
    return tuple(result)


def _clash(name: str, shapes: list[Shape]) -> str:
    given = " and ".join(map(str, shapes))
    return complain(f"{name}: shapes do not broadcast", given, "each axis, from the last, equal or of length 1")


def _elementwise_shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[Shape | None, tuple]:
    known = [s.shape for s in inputs if s.shape is not None]
    if not known and inputs:
        return None, params
    shape = broadcast_shapes(op.name, known)
    unsized = any(s.shape is None for s in inputs)
    numbers_only = all(s.dtype is None or not s.shape for s in inputs if s.shape is not None)
    return (None if unsized and shape == () and numbers_only else shape), params


def as_axis(name: str, axis: Any) -> Any:
    """`axis` (None, an int or several) as it can be part of a key. Raises `ShapeError` for other numbers, which
    dictionaries would take for ints."""
    if axis is None or axis.__class__ is int:
        return axis
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if not _INTS.issuperset(map(type, axes)):
        axes = tuple(map(int, _whole_axes(name, axis, axes)))
    return axes if isinstance(axis, (tuple, list)) else axes[0]


def _whole_axes(name: str, axis: Any, axes: tuple) -> tuple:
    for a in axes:
        if not isinstance(a, (int, np.integer)) or isinstance(a, bool):
            raise ShapeError(complain(f"{name}: axis is not an integer", repr(axis), "an int, several, or None"))
    return axes


def normalize_axes(name: str, axis: Any, rank: int) -> tuple[int, ...]:
    """`axis` (None, an int or several) as sorted axes from 0. Raises `ShapeError` for one out of range or repeated."""
    if axis is None:
        return tuple(range(rank))
    axes = _whole_axes(name, axis, axis if isinstance(axis, tuple) else (axis,))
    for a in axes:
        if not -rank <= a < rank:
            expected = f"-{rank} to {rank - 1}" if rank else "None: there are no axes"
            raise ShapeError(complain(f"{name}: no such axis", f"axis={axis} of rank {rank}", expected))
    found = sorted(int(a) % rank for a in axes)
    if len(set(found)) < len(found):
        raise ShapeError(complain(f"{name}: an axis is named twice", f"axis={axis}", "each axis once"))
    return tuple(found)


def one_axis(name: str, axis: Any, rank: int) -> int:
    """`axis`, an int, counted from 0. Raises `ShapeError` for several, and for one out of range."""
    if not isinstance(axis, (int, np.integer)) or isinstance(axis, bool):
        raise ShapeError(complain(f"{name}: axis is not an integer", repr(axis), "an int"))
    return normalize_axes(name, (axis,), rank)[0]


def moved_axes(name: str, source: Any, destination: Any, rank: int) -> tuple[int, ...]:
    """The axes in their order once those of `source` are at the places of `destination`: an int or several each.

    Raises `ShapeError` for one out of range or repeated, and unless there are as many places as axes.
    """
    named = [tuple(a) if isinstance(a, (tuple, list)) else (a,) for a in (source, destination)]
    if len({len(normalize_axes(name, axes, rank)) for axes in named}) > 1:
        raise ShapeError(complain(f"{name}: numbers of axes differ", f"{source} to {destination}", "as many places"))
    sources, places = ([int(a) % rank for a in axes] for axes in named)
    order = [a for a in range(rank) if a not in sources]
    for place, axis in sorted(zip(places, sources)):
        order.insert(place, axis)
    return tuple(order)


def sized(op: ops.Op, structure: Structure) -> Shape:
    """The shape of an operand that must be known here. Raises `ShapeError` when a partner would have to decide it."""
    if structure.shape is None or UNKNOWN in structure.shape:
        raise unknown_shape(f"{op.name}: the operand's shape")
    return structure.shape


def unknown_shape(what: str) -> ShapeError:
    """The error of who asks for what a partner or the target would have to decide."""
    given, hint = "an expression of rand or onehot alone", "combine it with a tensor first, or assign it to one"
    return ShapeError(complain(f"{what} is not known", given, "a shape", hint))


_NO_IDENTITY = ("max", "min", "argmax", "argmin")


def _reduction_shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[Shape, tuple]:
    shape = sized(op, inputs[0])
    axes = normalize_axes(op.name, params[0], len(shape))
    if op.name in _NO_IDENTITY and any(shape[a] == 0 for a in axes):
        raise ShapeError(
            complain(f"{op.name}: nothing to choose from", f"shape {shape}, axis {params[0]}", "length > 0")
        )
    return tuple(1 if a in axes else n for a, n in enumerate(shape)), (axes,)


def _transpose_shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[Shape, tuple]:
    shape = sized(op, inputs[0])
    axes = params[0]
    if sorted(a % len(shape) if -len(shape) <= a < len(shape) else -1 for a in axes) != list(range(len(shape))):
        raise ShapeError(complain("transpose: not an order of the axes", f"{axes} for {shape}", "each axis once"))
    axes = tuple(a % len(shape) for a in axes)
    return tuple(shape[a] for a in axes), (axes,)


def _reshape_shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[Shape, tuple]:
    shape = indexing.reshaped(sized(op, inputs[0]), params[0])
    return shape, (shape,)


def _broadcast_shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[Shape, tuple]:
    shape = sized(op, inputs[0])
    if broadcast_shapes(op.name, [shape, params[0]]) != tuple(params[0]):
        raise ShapeError(_clash(op.name, [shape, params[0]]))
    return tuple(params[0]), params


def _slice_shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[Shape, tuple]:
    shape = sized(op, inputs[0])
    key = tuple(slice(*k.indices) if isinstance(k, indexing.SliceKey) else k for k in params[0])
    return indexing.basic(key, shape, (0,) * len(shape), inputs[0].min_dims)[0], (key,)


def _dot_shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[Shape, tuple]:
    a, b = (sized(op, s) for s in inputs)
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise ShapeError(
            complain("dot: inner lengths differ", f"{a} and {b}", "(…, m, k) and (…, k, n)", "transpose one with .T")
        )
    return (*broadcast_shapes("dot", [a[:-2], b[:-2]]), a[-2], b[-1]), params


def _only_axis(name: str, axis: Any, rank: int) -> int:
    axes = normalize_axes(name, axis, rank)
    if len(axes) != 1:
        raise ShapeError(complain(f"{name}: not one axis", f"axis={axis} of rank {rank}", f"-{rank} to {rank - 1}"))
    return axes[0]


def _running_shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[Shape, tuple]:
    shape = sized(op, inputs[0])
    return shape, (_only_axis(op.name, params[0], len(shape)),)


def _indices(op: ops.Op, structure: Structure) -> Shape:
    if structure.dtype is None or not dtypes.is_integer(structure.dtype):
        raise DTypeError(complain(f"{op.name}: indices must be integers", str(structure.dtype), "an integer dtype"))
    return sized(op, structure)


def _take_shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[Shape, tuple]:
    shape, places = sized(op, inputs[0]), _indices(op, inputs[1])
    axis = _only_axis("take", params[0], len(shape))
    return (*shape[:axis], *places, *shape[axis + 1 :]), (axis,)


def _put_shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[Shape, tuple]:
    given, places = sized(op, inputs[0]), _indices(op, inputs[1])
    shape, axis = params[0], _only_axis("put", params[1], len(params[0]))
    wanted = (*shape[:axis], *places, *shape[axis + 1 :])
    if given != wanted:
        raise ShapeError(complain("put: another shape than the places have", f"{given}", f"{wanted}"))
    return shape, (shape, axis)


def _unslice_shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[Shape, tuple]:
    key = tuple(slice(*k.indices) if isinstance(k, indexing.SliceKey) else k for k in params[1])
    return params[0], (params[0], key)


_KIND_RULES: dict[str, Callable[..., tuple]] = {
    ops.ELEMENTWISE: _elementwise_shape,
    ops.SOURCE: lambda op, inputs, params: (params[1], params[:1]) if op.name == "index" else (params[0], ()),
    ops.REDUCTION: _reduction_shape,
}
_SHAPE_RULES: dict[str, Callable[..., tuple]] = {
    "transpose": _transpose_shape,
    "reshape": _reshape_shape,
    "broadcast": _broadcast_shape,
    "slice": _slice_shape,
    "dot": _dot_shape,
    "cumsum": _running_shape,
    "cumprod": _running_shape,
    "take": _take_shape,
    "put": _put_shape,
    "unslice": _unslice_shape,
    "histogram": lambda op, inputs, params: ((1, params[1]), params),
}
