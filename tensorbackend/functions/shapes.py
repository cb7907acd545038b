# SPDX-License-Identifier: Apache-2.0
"""Functions that move elements: reshape, transpose, broadcast, concatenation, splitting, copies."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import complain
from tensorbackend.function import arrays, type_check
from tensorbackend.function.config import lookup
from tensorbackend.function.node import FunctionNode
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions.arguments import Array, Axis, Sizes
from tensorbackend.graph import composite as o
from tensorbackend.graph import indexing, ranges
from tensorbackend.graph.parts import Parts
from tensorbackend.graph.structure import broadcast_shapes, moved_axes, normalize_axes, one_axis

__all__ = [
    "broadcast", "broadcast_to", "cast", "concat", "copy", "expand_dims", "flatten", "moveaxis", "reshape",
    "rollaxis", "separate", "split_axis", "squeeze", "stack", "swapaxes", "transpose",
]  # fmt: skip


def _check_size(in_types: Any, shape: tuple[int, ...]) -> None:
    (x,) = in_types
    if -1 not in shape:
        size = type_check.make_variable(math.prod(x.shape.value), "x.size")
        type_check.expect(size == type_check.make_variable(math.prod(shape), f"size of {shape}"))


def _check_order(in_types: Any, axes: tuple[int, ...]) -> None:
    (x,) = in_types
    type_check.expect(x.ndim == type_check.make_variable(len(axes), f"length of {axes}"))


_RESHAPE = Rule("reshape", lambda x, shape: o.reshape(x, shape), None, _check_size, ("x",))
_TRANSPOSE = Rule("transpose", lambda x, axes: o.transpose(x, axes), None, _check_order, ("x",))
_BROADCAST_TO = Rule("broadcast_to", lambda x, shape: o.broadcast_to(x, shape), names=("x",))
_PART = Rule("get_item", lambda x, key: o.slice(x, indexing.unhashed(key)), names=("x",))


def part(x: Any, key: tuple) -> Variable:
    """The part that integers, slices, `...` and new axes pick, given as `indexing.hashable` makes them."""
    return _PART(x, key=key)


def reshape(x: Array, shape: Sizes) -> Variable:
    """The elements in C order under another shape; one length may be -1."""
    wanted = shape if isinstance(shape, (tuple, list)) else (shape,)
    return _RESHAPE(x, shape=indexing.whole("reshape", wanted))


def flatten(x: Array) -> Variable:
    """The elements in C order along one axis."""
    return reshape(x, (-1,))


def transpose(x: Array, axes: Axis = None) -> Variable:
    """The axes in another order (None: reversed). Raises `TypeError` for one axis alone."""
    rank = len(x.shape)
    if isinstance(axes, (int, np.integer)):
        raise TypeError(complain("transpose: axes", f"{axes}", f"{rank} ints, or None", "moveaxis for one"))
    order = tuple(range(rank))[::-1] if axes is None else tuple(axes)
    return _TRANSPOSE(x, axes=order)


def swapaxes(x: Array, axis1: int, axis2: int) -> Variable:
    """Two axes exchanged."""
    order = list(range(len(x.shape)))
    axis1, axis2 = (one_axis("swapaxes", a, len(order)) for a in (axis1, axis2))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return transpose(x, order)


def moveaxis(x: Array, source: Axis, destination: Axis) -> Variable:
    """Axes moved to other places, the rest in their order. Raises `ShapeError` unless there are as many places."""
    return transpose(x, moved_axes("moveaxis", source, destination, len(x.shape)))


def rollaxis(x: Array, axis: int, start: int = 0) -> Variable:
    """One axis moved to before another."""
    rank = len(x.shape)
    axis = one_axis("rollaxis", axis, rank)
    ranges.check("rollaxis", "an int", start=start)
    start = one_axis("rollaxis: start", start + rank if start < 0 else start, rank + 1)
    return moveaxis(x, axis, start - 1 if axis < start else start)


def expand_dims(x: Array, axis: int) -> Variable:
    """A new axis of length 1."""
    place = one_axis("expand_dims", axis, len(x.shape) + 1)
    return reshape(x, (*x.shape[:place], 1, *x.shape[place:]))


def squeeze(x: Array, axis: Axis = None) -> Variable:
    """Axes of length 1 dropped (None: all of them). Raises `ValueError` for others."""
    rank = len(x.shape)
    named = None if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    ones = [a for a, n in enumerate(x.shape) if n == 1]
    dropped = ones if named is None else normalize_axes("squeeze", tuple(named), rank)
    if any(x.shape[a] != 1 for a in dropped):
        raise ValueError(complain("squeeze: an axis of another length than 1", f"{axis} of {x.shape}", "length 1"))
    return reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in dropped))


def broadcast_to(x: Array, shape: Sequence[int]) -> Variable:
    """x repeated along axes of length 1, and new ones in front, to a shape."""
    return _BROADCAST_TO(x, shape=tuple(shape))


def broadcast(*args: Array) -> Any:
    """The arguments, broadcast together: a tuple of variables, or the one. Numbers are of the first array's type."""
    args = _with_numbers(args)
    shape = broadcast_shapes("broadcast", [x.shape for x in args])
    made = tuple(broadcast_to(x, shape) for x in args)
    return made[0] if len(made) == 1 else made


def _with_numbers(args: Sequence[Any]) -> Sequence[Any]:
    """The arguments, numbers as arrays beside the first array. Raises `TypeError` for numbers alone."""
    numbers = [isinstance(x, (bool, int, float, np.generic)) for x in args]
    if not any(numbers):
        return args
    if all(numbers):
        raise TypeError(complain("broadcast: no arrays", ", ".join(map(repr, args))[:200], "one array or more"))
    first = as_variable(args[numbers.index(False)])
    return [_number(x, first) if number else x for x, number in zip(args, numbers)]


def _number(x: Any, like: Variable) -> Variable:
    x = x.item() if isinstance(x, np.generic) else x
    kind = dtypes.promote([like.dtype], [x.__class__], np.dtype(lookup("dtype")))  # a symbol's is its number's
    return as_variable(arrays.filled_like(arrays.zeros(like.device, (), kind), x))


# Several arrays


def _check_joined(in_types: Any, axis: int) -> None:
    """All but the lengths along the axis agree."""
    first = in_types[0]
    place = type_check.make_variable(axis, "axis")
    type_check.expect(place < first.ndim, place >= -first.ndim.value)
    for t in list(in_types)[1:]:
        type_check.expect(t.dtype == first.dtype, t.ndim == first.ndim)
        for a in range(first.ndim.value):
            if a != axis % first.ndim.value:
                type_check.expect(t.shape[a] == first.shape[a])


def _joined(*xs: Any, axis: int) -> Parts:
    shape = xs[0].shape
    axis %= len(shape)
    lengths = [x.shape[axis] for x in xs]
    whole = (*shape[:axis], sum(lengths), *shape[axis + 1 :])
    return Parts(whole, xs[0].dtype, list(zip(_parts(axis, lengths), xs)))


def _check_stacked(in_types: Any, axis: int) -> None:
    first = in_types[0]
    for t in list(in_types)[1:]:
        type_check.expect(t.dtype == first.dtype)


def _stacked(*xs: Any, axis: int) -> Parts:
    shape = xs[0].shape
    whole = (*shape[:axis], len(xs), *shape[axis:])
    return Parts(whole, xs[0].dtype, list(zip(_entries(axis, len(xs)), xs)))


@functools.cache
def _joining(name: str) -> tuple[Rule, Rule]:
    """`concat` and `stack` under the name that their errors have."""
    return Rule(name, _joined, None, _check_joined), Rule(name, _stacked, None, _check_stacked)


def _parts(axis: int, lengths: Sequence[int]) -> list[tuple]:
    """The indices of consecutive parts of an axis."""
    ends = [0, *itertools.accumulate(lengths)]
    whole = (slice(None),) * axis
    return [(*whole, slice(a, b)) for a, b in zip(ends, ends[1:])]


def _entries(axis: int, count: int) -> list[tuple]:
    """The indices of the entries of an axis."""
    whole = (slice(None),) * axis
    return [(*whole, i) for i in range(count)]


def concat(xs: Sequence[Array], axis: int = 1) -> Variable:
    """Arrays one after the other along an axis."""
    return joined("concat", xs, axis)


def stack(xs: Sequence[Array], axis: int = 0) -> Variable:
    """Arrays of one shape along a new axis. Raises `TypeError` for none, `InvalidType` for several shapes."""
    return stacked("stack", xs, axis)


def joined(name: str, xs: Sequence[Any], axis: int) -> Variable:
    """`concat` for a function whose name its errors have."""
    if axis.__class__ is not int:
        ranges.check(name, "an int", axis=axis)
    return _joining(name)[0](*_arrays(name, xs), axis=axis)


def _arrays(name: str, xs: Sequence[Any]) -> Sequence[Any]:
    """Arrays and variables, which alone can be joined. Raises `TypeError` for none."""
    if not len(xs):
        raise TypeError(complain(f"{name}: no inputs", "()", "one array or more"))
    return [x if isinstance(x, Variable) else as_variable(x) for x in xs]


def stacked(name: str, xs: Sequence[Any], axis: int = 0) -> Variable:
    """`stack` for a function whose name its errors have."""
    if not len(xs):
        raise TypeError(complain(f"{name}: no inputs", "()", "one array or more"))
    first = tuple(xs[0].shape)
    for x in xs:
        if tuple(x.shape) != first:
            raise type_check.InvalidType(complain(f"{name}: shapes", f"{first} and {tuple(x.shape)}", "one shape"))
    place = one_axis(name, axis, len(first) + 1)
    return _joining(name)[1](*_arrays(name, xs), axis=place)


def _split(x: Any, axis: int, lengths: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(o.slice(x, part) for part in _parts(axis, lengths))


def _separate(x: Any, axis: int) -> tuple[Any, ...]:
    return tuple(o.slice(x, entry) for entry in _entries(axis, x.shape[axis]))


_SPLIT = Rule("split_axis", _split, names=("x",))
_SEPARATE = Rule("separate", _separate, names=("x",))


def split_axis(x: Array, indices_or_sections: Any, axis: int, force_tuple: bool = True) -> Any:
    """Parts of an axis: so many of equal length, or between the given places. A tuple of variables.

    Negative places count from the end. Raises `ValueError` where the parts would not be equal, or the places do not
    increase. With `force_tuple` False a
    single part comes bare.
    """
    axis = one_axis("split_axis", axis, len(x.shape))
    length = x.shape[axis]
    if isinstance(indices_or_sections, (int, np.integer)):
        count = int(indices_or_sections)
        if count < 1 or length % count:
            raise ValueError(complain("split_axis: parts are not equal", f"{length} into {count}", "a divisor"))
        lengths = [length // count] * count
    else:
        found = indexing.as_array("split_axis: places of parts", indices_or_sections).reshape(-1)
        if found.size and found.dtype.kind not in "iu":
            given = repr(indices_or_sections)
            raise ValueError(complain("split_axis: places of parts", given, "ints, or a number of parts"))
        given = [int(p) for p in found]
        places = [0, *(min(max(p + length if p < 0 else p, 0), length) for p in given), length]
        if places != sorted(places):
            raise ValueError(complain("split_axis: places of parts", f"{given} of {length}", "increasing places"))
        lengths = [b - a for a, b in zip(places, places[1:])]
    made = _SPLIT(x, axis=axis, lengths=tuple(lengths))
    return made[0] if len(made) == 1 and not force_tuple else made


def separate(x: Array, axis: int = 0) -> tuple[Variable, ...]:
    """The entries along an axis, without it: a tuple of variables."""
    axis = one_axis("separate", axis, len(x.shape))
    if not x.shape[axis]:
        return ()
    return _SEPARATE(x, axis=axis)


# Copies


class _Cast(FunctionNode):
    """Another element type."""

    label = "cast"

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype

    def _run_forward(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        (x,) = data
        self._before = x.dtype
        return (arrays.as_type(x, self._dtype),)

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradient in the type that there was; none for what were no floats."""
        return (cast(grad_outputs[0], self._before) if dtypes.is_float(self._before) else None,)


def cast(x: Array, dtype: Any) -> Variable:
    """x as another element type."""
    variable, wanted = as_variable(x), dtypes.as_dtype(dtype)
    return variable if variable.dtype == wanted else _Cast(wanted).apply((variable,))[0]


class _Copy(FunctionNode):
    """A copy on a backend."""

    label = "copy"

    def __init__(self, device: Any) -> None:
        self._device = device

    def _run_forward(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        (x,) = data
        self._from = arrays.backend_of(x)
        if self._from is not self._device:
            return (arrays.moved(x, self._device),)
        return (arrays.copied(x),)

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradient where the input was."""
        return (copy(grad_outputs[0], self._from),)


def copy(x: Array, dst: Any) -> Variable:
    """x in new memory of a backend (None: as a NumPy array)."""
    arrays.check_device(dst)
    return _Copy(dst).apply((x,))[0]
