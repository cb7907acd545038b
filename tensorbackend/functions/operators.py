# SPDX-License-Identifier: Apache-2.0
"""The operators and methods of variables, which are functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorbackend.backends.numpy_like import refuse_modulo
from tensorbackend.errors import ShapeError, complain
from tensorbackend.function.variable import Variable
from tensorbackend.functions import elementwise, picking, products, reductions, shapes
from tensorbackend.functions.arguments import explained

__all__ = ["install"]


def _reflected(function: Any) -> Any:
    def method(self: Variable, other: Any) -> Variable:
        return function(other, self)

    method.__doc__ = function.__doc__
    return method


def _reshape(self: Variable, *shape: Any) -> Variable:
    """The elements in C order under another shape; one length may be -1."""
    return shapes.reshape(self, shape[0] if len(shape) == 1 else shape)


def _transpose(self: Variable, *axes: Any) -> Variable:
    """The axes in another order (none given: reversed)."""
    order = axes[0] if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], (tuple, list))) else axes or None
    return shapes.transpose(self, order)


def _item(self: Variable) -> Any:
    """The only element, as a Python number. Raises `ShapeError` when there is more than one."""
    data = self._known()
    if data.size != 1:
        raise ShapeError(complain("item: not one element", f"shape {data.shape}", "one element"))
    return (data if type(data) is np.ndarray else data.get()).reshape(()).item()


def _power(self: Variable, other: Any, modulo: Any = None) -> Variable:
    """self to the power other, with broadcasting. Raises `TypeError` for a modulo."""
    refuse_modulo(modulo)
    return elementwise._POWER(self, other)


def install() -> None:
    """Give `Variable` its operators and the methods that compute."""
    pairs = {"add": elementwise._ADD, "sub": elementwise._SUBTRACT, "mul": elementwise._MULTIPLY,
             "truediv": elementwise._DIVIDE, "floordiv": elementwise._FLOOR_DIVIDE, "pow": elementwise._POWER,
             "matmul": explained(products.matmul)}  # fmt: skip
    for name, function in pairs.items():
        setattr(Variable, f"__{name}__", _method(function))
        setattr(Variable, f"__r{name}__", _reflected(function))
    Variable.__pow__ = _power
    Variable.__neg__ = _method(elementwise.negative)
    Variable.__abs__ = _method(elementwise.absolute)
    Variable.__pos__ = _method(elementwise.identity)
    Variable.__getitem__ = _method(picking.get_item)
    Variable.reshape, Variable.transpose, Variable.item = _reshape, _transpose, _item
    Variable.T = property(_method(shapes.transpose))
    for function in (reductions.sum, reductions.mean, shapes.flatten):
        setattr(Variable, function.__name__, _method(function))


def _method(function: Any) -> Any:
    """A function as a method: rules are objects, which are no methods by themselves."""

    def method(self: Variable, *arguments: Any, **keywords: Any) -> Any:
        return function(self, *arguments, **keywords)

    method.__doc__ = function.__doc__
    method.__name__ = getattr(function, "__name__", getattr(function, "name", "method"))
    return method


install()
