# SPDX-License-Identifier: Apache-2.0
"""Methods that make op-trees: those of the op table and of the composites, and those with arguments of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.backends.allocation import rank_rule
from tensorbackend.errors import DTypeError, complain
from tensorbackend.graph import composite, indexing
from tensorbackend.graph.optree import Operators, apply, check_target, finished, operand
from tensorbackend.graph.structure import StructureTable, as_axis
from tensorbackend.graph.tensor import TakeView, Tensor

__all__ = ["Expressions", "install"]


class Expressions:
    """Methods that take more than a node's operands; `Backend` inherits them, and `install` adds those of the table."""

    structures: StructureTable
    array: Callable[..., Tensor]
    empty: Callable[..., Tensor]
    rand: Callable[..., Any]
    clip: Callable[..., Any]
    add: Callable[..., Any]
    multiply: Callable[..., Any]
    greater_equal: Callable[..., Any]

    def mean(
        self, a: Any, axis: Any = None, partial: Any = None, out: Tensor | None = None, keepdims: bool = True
    ) -> Any:
        """The sum over `axis` (None: all) divided by the count, of integers too whatever their sum is; NaN of nothing.
        `partial` is not used."""
        return finished(composite.mean(self._operand("mean", a), axis, keepdims), out)

    def var(self, a: Any, axis: Any = None, partial: Any = None, out: Tensor | None = None, keepdims: bool = True,
            binary: bool = False) -> Any:  # fmt: skip
        """The population variance over `axis`. `binary`: the square x x is x times its nearest power of two."""
        return finished(composite.var(self._operand("var", a), axis, keepdims, binary), out)

    def std(
        self, a: Any, axis: Any = None, partial: Any = None, out: Tensor | None = None, keepdims: bool = True
    ) -> Any:
        """The population standard deviation over `axis`. `partial` is not used."""
        return finished(composite.std(self._operand("std", a), axis, keepdims), out)

    def _operand(self, name: str, x: Any) -> Any:
        """A tensor or op-tree as it is, a number or NumPy array as a node."""
        return x if isinstance(x, Operators) else operand(name, x, self.structures)

    def onehot(self, indices: Tensor, axis: int, out: Tensor | None = None) -> Any:
        """1 where the position along `axis` equals the index: (classes, n) for axis 0, (n, classes) for axis 1.

        `indices` is an integer row or column; the partner or the target decides the number of classes; an index out
        of range gives zeros. Raises `ShapeError` or `DTypeError` for other indices.
        """
        return finished(composite.onehot(indices, axis), out)

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
            a, axis = composite.reshape(a, (-1, 1)[: max(rank_rule(a), 1)]), 0
        if isinstance(a, Tensor):
            return finished(TakeView.of(a, places, axis), out)
        return finished(composite.take(a, places, axis), out)

    def _as_indices(self, indices: Any) -> Tensor | None:
        """Indices as an integer tensor (a row or column becomes 1-D), or None when they are not integers. A tree is
        computed here."""
        if isinstance(indices, Operators):
            if not dtypes.is_integer(indices.dtype):
                return None
            indices = indices if isinstance(indices, Tensor) else self.evaluate(indices)
            flat = indices.structure.min_dims == 2 and indices.ndim == 2 and 1 in indices.shape
            along = next((s for n, s in zip(indices.shape, indices.strides) if n != 1), 1)
            return indices._view((indices.size,), (along,), 0) if flat else indices
        values = indexing.as_array("indices", indices)
        if values.size == 0 and not isinstance(indices, np.ndarray):
            values = values.astype(np.int64)
        if values.dtype.kind not in "iu":
            return None
        return self.array(values, dtype=values.dtype, min_dims=0)

    def cumsum(self, a: Any, axis: int = 0, out: Tensor | None = None) -> Any:
        """The running sum along `axis`; halves add up in float32, integers in 64 bits."""
        return finished(composite.cumsum(a, axis), out)

    def cumprod(self, a: Any, axis: int = 0, out: Tensor | None = None) -> Any:
        """The running product along `axis`, of factors in order; floats multiply in float64, integers in 64 bits."""
        return finished(composite.cumprod(a, axis), out)

    def reshape(self, a: Any, shape: Any, out: Tensor | None = None) -> Any:
        """`a` under another shape, in C order: a view where one exists, else a node."""
        return finished(composite.reshape(a, shape), out)

    def transpose(self, a: Any, axes: Any = None, out: Tensor | None = None) -> Any:
        """The axes of `a` in another order (None: as `.T`)."""
        return finished(composite.transpose(a, axes), out)

    def binarize(self, ary: Any, out: Tensor, stochastic: bool = True) -> Tensor:
        """-1 or 1 into `out`: at random with probability clip((a + 1) / 2, 0, 1) of 1, or by the sign (0 gives 1).

        Every element of `out` is drawn by itself, also where `ary` is broadcast.
        """
        check_target("binarize: out", out)
        if stochastic:
            up = self.rand(shape=out.shape) <= self.clip(self.add(self.multiply(ary, 0.5), 0.5), 0, 1)
        else:
            up = self.greater_equal(ary, 0)
        return out._assign(2 * up - 1)

    def shift(self, ary: Any, shift_ary: Any, value: bool = True, out: Tensor | None = None) -> Tensor:
        """`ary` times a power of two: sgn(s) 2^rint(log2 |s|), 0 for s = 0; with `value` False, 2^s.

        Runs at once, and returns a tensor shaped like `ary` (a number: one element). Where s is no float, it has the
        type of `ary`, or the default. Exponents may be up to twice the type's largest where the product is a number.
        """
        if isinstance(ary, np.ndarray):
            ary = self._operand("shift", ary)
        kind = ary.dtype if _is_float(ary) else self.structures.default_dtype
        if not _is_float(shift_ary) or shift_ary.dtype.itemsize < kind.itemsize:
            shift_ary = apply(ops.OPS["mul"], shift_ary, kind.type(1), table=self.structures)
        if value:
            powers = [apply(ops.OPS["pow2near"], shift_ary, table=self.structures)]
        else:
            powers = self._powers_of_two(shift_ary)
        product = ary
        for power in powers:
            product = apply(ops.OPS["mul"], product, power, table=self.structures)
        if out is None:
            tree = isinstance(ary, Operators)
            out = self.empty(ary.shape if tree else (1, 1), product.dtype, min_dims=rank_rule(ary) if tree else 2)
        return finished(product, out)

    def _powers_of_two(self, exponent: Any) -> list[Any]:
        """2^exponent as two factors, the second of which is 1 unless the first alone would overflow or vanish."""
        info = np.finfo(dtypes.compute(exponent.dtype))
        near = self.minimum(self.maximum(exponent, int(info.minexp)), int(info.maxexp) - 2)
        return [apply(ops.OPS["exp2"], x, table=self.structures) for x in (near, self.subtract(exponent, near))]


def _is_float(x: Any) -> bool:
    """Whether an operand is of a float type of its own: a Python number is of none."""
    return isinstance(x, (Operators, np.generic, np.ndarray)) and dtypes.is_float(x.dtype)


def _unary_method(op: ops.Op) -> Callable:
    def method(self: Any, a: Any, out: Tensor | None = None) -> Any:
        node = apply(op, a, table=self.structures)
        return finished(node, out)

    return method


def _binary_method(op: ops.Op) -> Callable:
    def method(self: Any, a: Any, b: Any, out: Tensor | None = None) -> Any:
        node = apply(op, a, b, table=self.structures)
        return finished(node, out)

    return method


def _ternary_method(op: ops.Op) -> Callable:
    def method(self: Any, a: Any, b: Any, c: Any, out: Tensor | None = None) -> Any:
        node = apply(op, a, b, c, table=self.structures)
        return finished(node, out)

    return method


def _reduction_method(op: ops.Op) -> Callable:
    first = 1 if op.dtype == "index" else None

    def method(self: Any, a: Any, axis: Any = first, out: Tensor | None = None, keepdims: bool = True) -> Any:
        axis = as_axis(op.name, axis)
        node = apply(op, a, params=(axis,), table=self.structures)
        return finished(node if keepdims else composite.drop_axes(node, axis), out)

    return method


def _composite_method(function: Callable) -> Callable:
    """The composite as a method, `out` behind its own arguments."""
    takes = list(inspect.signature(function).parameters.values())
    first = takes[0].name
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own, last = inspect.Parameter("self", kind), inspect.Parameter("out", kind, default=None)

    def method(self: Any, *arguments: Any, out: Tensor | None = None, **keywords: Any) -> Any:
        if len(arguments) == len(takes) + 1:
            *arguments, out = arguments
        if not arguments and first in keywords:
            arguments = (keywords.pop(first),)
        if arguments and not isinstance(arguments[0], Operators):
            if not any(isinstance(x, Operators) for x in (*arguments, *keywords.values())):
                arguments = (self._operand(function.__name__, arguments[0]), *arguments[1:])
        return finished(function(*arguments, **keywords), out)

    method.__signature__ = inspect.Signature([own, *takes, last])
    return method


def install(cls: type) -> None:
    """Give the class a method for each method name of the table, and for each composite."""
    makers = {1: _unary_method, 2: _binary_method, 3: _ternary_method}
    for op in ops.OPS.values():
        for name in op.methods:
            method = makers[op.arity](op) if op.kind == ops.ELEMENTWISE else _reduction_method(op)
            method.__name__ = name
            method.__qualname__ = f"Backend.{name}"
            method.__doc__ = op.said
            setattr(cls, name, method)
    for name, function in composite.COMPOSITES.items():
        method = _composite_method(function)
        method.__name__, method.__qualname__, method.__doc__ = name, f"Backend.{name}", function.__doc__
        setattr(cls, name, method)
