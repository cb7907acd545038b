# SPDX-License-Identifier: Apache-2.0
"""Tensors that behave as NumPy's arrays: what layer code written for any array module works on.

`presented(tensor)` gives a tensor's array: a view with `min_dims` 0 whose operators and methods take NumPy's arguments
and give NumPy's shapes. Every result is stated at once, into memory of its own, so that in-place operators and item
assignment mean what they mean in NumPy. Inside `be.fuse()`, where methods of user-defined functions run, the statements
wait and become a few kernels.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.errors import ShapeError, complain
from tensorbackend.graph import composite, indexing
from tensorbackend.graph.optree import Operators, OpTreeNode, finished
from tensorbackend.graph.structure import normalize_axes
from tensorbackend.graph.tensor import Tensor

__all__ = ["REDUCTIONS", "NumpyLike", "as_operand", "check_order", "presented", "result", "wrapped"]


@functools.cache
def _class_of(cls: type[Tensor]) -> type[Tensor]:
    facts = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (NumpyLike, cls), facts)


def presented(tensor: Tensor) -> Tensor:
    """The array of a tensor: the same one as long as somebody has it."""
    if isinstance(tensor, NumpyLike):
        return tensor
    known = tensor.__dict__.get("_presented")
    found = None if known is None else known()
    if found is None:
        found = wrapped(tensor)
        tensor.__dict__["_presented"] = weakref.ref(found)
    return found


def wrapped(tensor: Tensor) -> Tensor:
    """A new array on the memory of a tensor."""
    s = tensor.structure
    layout = s.table.tensor(s.dtype, s.shape, s.strides, 0)
    return tensor._seen_as(_class_of(s.table.backend.tensor_cls), layout, tensor.address)


def result(tree: Any, dtype: Any = None, out: Any = None) -> Any:
    """The value of a tree as an array: in fresh memory, or in `out`."""
    if out is not None:
        return finished(tree, out)
    backend = tree.backend
    kind = tree.dtype if dtype is None else dtypes.as_dtype(dtype)
    return wrapped(backend.empty(tree.shape, kind, min_dims=0)._assign(tree))


def as_operand(x: Any, backend: Any) -> Any:
    """An argument of an array function as an operand of trees; NumPy's scalars, too, change no type. Raises `TypeError`
    for what is none."""
    if isinstance(x, np.generic):  # float64 is a Python float as well
        return x.item()
    if isinstance(x, (Operators, bool, int, float)):
        return x
    if isinstance(x, (np.ndarray, list, tuple)):
        values = indexing.as_array("array function", x)
        return backend.array(values, dtype=values.dtype, min_dims=0)
    raise TypeError(complain("array function: an argument", type(x).__name__, "an array or a number"))


def check_order(name: str, order: Any) -> None:
    """Raise `ValueError` for another order of elements than C's."""
    if order != "C":
        given, hint = repr(order), "the transpose has the elements in Fortran's order"
        raise ValueError(complain(f"{name}: order of the elements", given, "'C'", hint))


# Reductions with NumPy's arguments: methods of arrays, and functions of `be.xp`


def _reduced(name: str, x: Any, axis: Any, keepdims: bool, dtype: Any, out: Any) -> Any:
    axis = tuple(axis) if isinstance(axis, list) else axis
    return result(getattr(composite, name)(x, axis, keepdims), dtype, out)


_WITH = {"sum": composite.add, "prod": composite.multiply, "max": composite.maximum, "min": composite.minimum}
"""How a value to begin from is combined with what the rest gives."""


def _from(name: str, x: Any, axis: Any, keepdims: bool, dtype: Any, out: Any, initial: Any) -> Any:
    """A reduction from a value on, if there is one; the type stays."""
    if initial is None:
        return _reduced(name, x, axis, keepdims, dtype, out)
    if not isinstance(initial, (bool, int, float, np.generic)):
        raise TypeError(complain(f"{name}: initial", repr(initial)[:80], "a number"))
    axis = tuple(axis) if isinstance(axis, list) else axis
    if 0 in x.shape and name in ("max", "min"):  # there may be nothing to choose from
        axes = normalize_axes(name, axis, len(x.shape))
        if any(x.shape[a] == 0 for a in axes):
            kept = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
            full = x.backend.full(tuple(kept), initial, x.dtype if dtype is None else dtype, min_dims=0)
            return result(full, None, out)
    tree = getattr(composite, name)(x, axis, keepdims)
    number = initial.item() if isinstance(initial, np.generic) else initial
    return result(_WITH[name](tree, number), tree.dtype if dtype is None else dtype, out)


def _scale(name: str, x: Any, axis: Any, ddof: Any) -> float:
    """What makes a variance over n elements one over n - `ddof`."""
    if not isinstance(ddof, (int, float, np.integer, np.floating)):
        raise TypeError(complain(f"{name}: ddof", repr(ddof)[:80], "a number"))
    axes = normalize_axes(name, tuple(axis) if isinstance(axis, list) else axis, len(x.shape))
    count = math.prod(x.shape[a] for a in axes)
    return count / (count - float(ddof)) if count > ddof else math.inf


def _named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {name} over the axes (None: all), as NumPy's."
    return function


def _sum(name: str) -> Callable[..., Any]:
    def method(self: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False,
               initial: Any = None) -> Any:  # fmt: skip
        return _from(name, self, axis, keepdims, dtype, out, initial)

    return _named(name, method)


def _extreme(name: str) -> Callable[..., Any]:
    def method(self: Any, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None) -> Any:
        return _from(name, self, axis, keepdims, None, out, initial)

    return _named(name, method)


def _mean(name: str) -> Callable[..., Any]:
    def method(self: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _reduced(name, self, axis, keepdims, dtype, out)

    return _named(name, method)


def _variance(name: str) -> Callable[..., Any]:
    def method(self: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0,
               keepdims: bool = False) -> Any:  # fmt: skip
        if type(ddof) is int and ddof == 0:
            return _reduced(name, self, axis, keepdims, dtype, out)
        axis = tuple(axis) if isinstance(axis, list) else axis
        tree = composite.var(self, axis, keepdims) * _scale(name, self, axis, ddof)
        return result(tree if name == "var" else composite.sqrt(tree), dtype, out)

    return _named(name, method)


def _choice(name: str) -> Callable[..., Any]:
    def method(self: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        return _reduced(name, self, axis, keepdims, None, out)

    return _named(name, method)


REDUCTIONS = {
    **{name: _sum(name) for name in ("sum", "prod")},
    "mean": _mean("mean"),
    **{name: _variance(name) for name in ("var", "std")},
    **{name: _extreme(name) for name in ("max", "min")},
    **{name: _choice(name) for name in ("argmax", "argmin", "any", "all")},
}
"""The reductions of arrays, by name: the array, then NumPy's arguments in NumPy's order."""


class NumpyLike:
    """What arrays do otherwise than tensors. All results are arrays."""

    __slots__ = ()

    # Operators: made from the op table, below the class

    def __matmul__(self, other: Any) -> Any:
        return self._product(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return self._product(other, self)

    def _product(self, a: Any, b: Any) -> Any:
        if not all(isinstance(x, (Operators, np.ndarray)) for x in (a, b)):
            return NotImplemented
        return result(self.backend.matmul(as_operand(a, self.backend), as_operand(b, self.backend)))

    def __bool__(self) -> bool:
        if self.size != 1:
            given = f"shape {self.shape}"
            raise ValueError(complain("truth value of an array", given, "one element", "any() or all()"))
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.size != 1 or not dtypes.is_integer(self.dtype):
            raise TypeError(complain("index: an array", f"shape {self.shape}, {self.dtype}", "one integer"))
        return int(self.item())

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return result(found) if isinstance(found, OpTreeNode) else found if _is_own(found) else wrapped(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(value, (Operators, np.generic, bool, int, float)):
            value = indexing.as_array("assignment", value)
        if isinstance(value, np.ndarray) and value.ndim and not indexing.is_fancy(key):
            value = _spread(value, super().__getitem__(key).shape)  # tensors take any array of as many elements
        super().__setitem__(key, value)

    def reshape(self, *shape: Any, order: str = "C") -> Any:
        """The elements in C order, the only one, under another shape: a view where there is one, else a copy."""
        check_order("reshape", order)
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        found = composite.reshape(self, tuple(wanted))
        return result(found) if isinstance(found, OpTreeNode) else found

    def ravel(self, order: str = "C") -> Any:
        """The elements in C order, the only one, along one axis: a view where there is one, else a copy."""
        check_order("ravel", order)
        return self.reshape(-1)

    def flatten(self, order: str = "C") -> Any:
        """A copy of the elements in C order, the only one, along one axis."""
        check_order("flatten", order)
        return result(composite.reshape(self, (-1,)))

    def transpose(self, *axes: Any, out: Any = None) -> Any:
        """The axes in another order (none given: reversed), as a view."""
        order = () if axes == (None,) else axes
        return super().transpose(*order, out=out)

    def squeeze(self, axis: Any = None) -> Any:
        """Axes of length 1 dropped (None: all of them). Raises `ValueError` for others."""
        dropped = [a for a, n in enumerate(self.shape) if n == 1]
        if axis is not None:
            named = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
            dropped = normalize_axes("squeeze", named, len(self.shape))
        if any(self.shape[a] != 1 for a in dropped):
            raise ShapeError(complain("squeeze: another length than 1", f"{axis} of {self.shape}", "length 1"))
        return self.reshape(tuple(n for a, n in enumerate(self.shape) if a not in dropped))

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """The elements as another type; without `copy` the array itself if it has the type."""
        return self if not copy and self.dtype == dtypes.as_dtype(dtype) else result(self, dtype)

    def copy(self, a: Any = None) -> Any:
        """A copy; of a tensor's kind, `copy(a)` writes `a` into this array."""
        return result(self) if a is None else super().copy(a)

    def _copied(self) -> Any:
        return wrapped(super()._copied())

    def dot(self, b: Any) -> Any:
        """NumPy's `dot`."""
        return self.backend.xp.dot(self, b)

    def clip(self, min: Any = None, max: Any = None) -> Any:
        """The elements between two bounds."""
        return self.backend.xp.clip(self, min, max)

    def cumsum(self, axis: int | None = None) -> Any:
        """Running sums along an axis (None: of all in C order)."""
        return self.backend.xp.cumsum(self, axis)


def _spread(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Host values broadcast to the shape of what they are assigned to; leading axes of length 1 may be too many."""
    try:
        return np.broadcast_to(values.reshape(indexing.without_leading(values.shape, len(shape))), shape)
    except ValueError:
        given = f"{values.shape} into {shape}"
        raise ShapeError(complain("assignment: shapes do not fit", given, "a shape that broadcasts")) from None


def _is_own(x: Any) -> bool:
    return isinstance(x, NumpyLike)


def _operator(dunder: str, mirrored: bool) -> Callable[[Any, Any], Any]:
    name = f"__r{dunder}__" if mirrored else f"__{dunder}__"

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, np.generic):
            other = other.item()
        tree = getattr(super(NumpyLike, self), name)(other)
        return tree if tree is NotImplemented else result(tree)

    return method


def refuse_modulo(modulo: Any) -> None:
    """Raise `TypeError` for the third argument of `pow`, unless it is None."""
    if modulo is not None:
        given, hint = repr(modulo)[:80], "x ** y % modulo"
        raise TypeError(complain("pow: a modulo is not supported", given, "two arguments", hint))


def _power(self: Any, other: Any, modulo: Any = None) -> Any:
    refuse_modulo(modulo)
    return _TO_THE_POWER(self, other)


_TO_THE_POWER = _operator("pow", False)


def _in_place(dunder: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, np.generic):
            other = other.item()
        tree = getattr(super(NumpyLike, self), f"__{dunder}__")(other)
        return tree if tree is NotImplemented else self._assign(tree)

    return method


def _single(dunder: str) -> Callable[[Any], Any]:
    return lambda self: result(getattr(super(NumpyLike, self), f"__{dunder}__")())


def _install() -> None:
    for op in ops.elementwise():
        if op.dunder is None:
            continue
        if op.arity == 1:
            setattr(NumpyLike, f"__{op.dunder}__", _single(op.dunder))
            continue
        setattr(NumpyLike, f"__{op.dunder}__", _operator(op.dunder, False))
        if hasattr(Operators, f"__r{op.dunder}__"):
            setattr(NumpyLike, f"__r{op.dunder}__", _operator(op.dunder, True))
            setattr(NumpyLike, f"__i{op.dunder}__", _in_place(op.dunder))
    NumpyLike.__pow__ = _power
    for name, method in REDUCTIONS.items():
        setattr(NumpyLike, name, method)
    NumpyLike.__hash__ = Operators.__hash__


_install()
