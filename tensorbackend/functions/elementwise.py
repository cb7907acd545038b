# SPDX-License-Identifier: Apache-2.0
"""Elementwise functions of the op table: one generic node, made for each op, with the table's derivative.

Functions whose derivative the contract fixes otherwise at ties or edges have a gradient here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorbackend import ops
from tensorbackend.errors import complain
from tensorbackend.function import type_check
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions.arguments import Array
from tensorbackend.graph import composite as o
from tensorbackend.graph import ranges
from tensorbackend.graph.optree import apply

__all__ = [
    "absolute", "add", "arccos", "arcsin", "arctan", "arctan2", "ceil", "clip", "cos", "cosh", "divide", "erf", "erfc",
    "exp", "expm1", "fix", "floor", "floor_divide", "fmod", "identity", "log", "log10", "log1p", "log2", "maximum",
    "minimum", "multiply", "negative", "power", "rsqrt", "sign", "sin", "sinh", "sqrt", "square", "squared_difference",
    "subtract", "tan", "tanh", "where",
]  # fmt: skip


def _broadcasting(in_types: Any, **params: Any) -> None:
    type_check.expect_broadcast_shapes(*(t.shape for t in in_types))


def _floating(in_types: Any, **params: Any) -> None:
    type_check.expect_float(*in_types)
    _broadcasting(in_types)


def _rule(name: str, op: str, gradient: Callable[..., Any] | None = None) -> Rule:
    """The rule of an op of the table. Those that give floats take nothing else."""
    entry = ops.OPS[op]
    check = _floating if entry.dtype == "float" and op != "div" else _broadcasting
    names = ("x",) if entry.arity == 1 else ("x0", "x1")
    return Rule(name, lambda *operands: apply(entry, *operands), gradient, check, names)


def _unary(name: str, op: str, doc: str) -> Callable[[Any], Variable]:
    rule = _rule(name, op)

    def function(x: Array) -> Variable:
        return rule(x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


absolute = _unary("absolute", "abs", "The absolute value |x|; its gradient at 0 is 0.")
arccos = _unary("arccos", "arccos", "The inverse cosine, in radians.")
arcsin = _unary("arcsin", "arcsin", "The inverse sine, in radians.")
arctan = _unary("arctan", "arctan", "The inverse tangent, in radians.")
ceil = _unary("ceil", "ceil", "The smallest integer not below x; no gradient.")
cos = _unary("cos", "cos", "The cosine of x radians.")
cosh = _unary("cosh", "cosh", "The hyperbolic cosine.")
erf = _unary("erf", "erf", "The error function.")
erfc = _unary("erfc", "erfc", "1 - erf(x), exact for large x.")
exp = _unary("exp", "exp", "e to the x.")
expm1 = _unary("expm1", "expm1", "exp(x) - 1, exact for small x.")
fix = _unary("fix", "trunc", "x rounded towards zero; no gradient.")
floor = _unary("floor", "floor", "The largest integer not above x; no gradient.")
log = _unary("log", "log", "The natural logarithm.")
log10 = _unary("log10", "log10", "The logarithm to base 10.")
log1p = _unary("log1p", "log1p", "ln(1 + x), exact for small x.")
log2 = _unary("log2", "log2", "The logarithm to base 2.")
negative = _unary("negative", "neg", "-x.")
sign = _unary("sign", "sgn", "-1, 0 or 1; no gradient.")
sin = _unary("sin", "sin", "The sine of x radians.")
sinh = _unary("sinh", "sinh", "The hyperbolic sine.")
sqrt = _unary("sqrt", "sqrt", "The square root.")
square = _unary("square", "sqr", "x squared.")
tan = _unary("tan", "tan", "The tangent of x radians.")
tanh = _unary("tanh", "tanh", "The hyperbolic tangent.")

_ADD, _SUBTRACT, _MULTIPLY = _rule("add", "add"), _rule("subtract", "sub"), _rule("multiply", "mul")
_DIVIDE, _FLOOR_DIVIDE = _rule("divide", "div"), _rule("floor_divide", "floordiv")
_POWER, _ARCTAN2 = _rule("power", "pow"), _rule("arctan2", "arctan2")
_MAXIMUM = _rule("maximum", "maximum", lambda g, y, a, b: (o.where(a >= b, g, 0), o.where(a >= b, 0, g)))
_MINIMUM = _rule("minimum", "minimum", lambda g, y, a, b: (o.where(a <= b, g, 0), o.where(a <= b, 0, g)))
_WHERE = Rule("where", lambda c, x, y: apply(ops.OPS["where"], c, x, y), None, _broadcasting, ("condition", "x", "y"))
_CLIP = Rule(
    "clip",
    lambda x, low, high: o.clip(x, low, high),
    lambda g, y, x, low, high: (o.where((x >= low) * (x <= high), g, 0), None, None),
    names=("x",),
)
_RSQRT = Rule("rsqrt", o.rsqrt, lambda g, y, x: (g * y * y * y * -0.5,), _floating, ("x",))
_IDENTITY = Rule("identity", lambda *xs: xs)
_SQUARED_DIFFERENCE = Rule("squared_difference", lambda a, b: o.square(a - b), None, _broadcasting, ("x0", "x1"))


def _fmod(x: Any, d: Any) -> Any:
    rest = apply(ops.OPS["mod"], abs(x), abs(d))
    return o.where(x < 0, -rest, rest)


_FMOD = Rule("fmod", _fmod, lambda g, y, x, d: (g, -g * o.rint((x - y) / d)), _floating, ("x", "divisor"))


def add(*xs: Array) -> Variable:
    """The sum of operands, with broadcasting. Raises `TypeError` for none."""
    if not xs:
        raise TypeError(complain("add: no inputs", "()", "one array or more"))
    total = as_variable(xs[0]) if len(xs) == 1 else _ADD(xs[0], xs[1])
    for x in xs[2:]:
        total = _ADD(total, x)
    return total


def subtract(x0: Array, x1: Array) -> Variable:
    """x0 - x1, with broadcasting."""
    return _SUBTRACT(x0, x1)


def multiply(x0: Array, x1: Array) -> Variable:
    """x0 x1, with broadcasting."""
    return _MULTIPLY(x0, x1)


def divide(x0: Array, x1: Array) -> Variable:
    """x0 / x1, with broadcasting."""
    return _DIVIDE(x0, x1)


def floor_divide(x0: Array, x1: Array) -> Variable:
    """The largest integer not above x0 / x1; no gradient."""
    return _FLOOR_DIVIDE(x0, x1)


def power(x0: Array, x1: Array) -> Variable:
    """x0 to the power x1, with broadcasting."""
    return _POWER(x0, x1)


def fmod(x: Array, divisor: Array) -> Variable:
    """The rest of x / divisor, with the sign of x."""
    return _FMOD(x, divisor)


def arctan2(x0: Array, x1: Array) -> Variable:
    """The angle of the point (x1, x0), in radians."""
    return _ARCTAN2(x0, x1)


def maximum(x0: Array, x1: Array) -> Variable:
    """The larger of two; at ties the first gets the whole gradient."""
    return _MAXIMUM(x0, x1)


def minimum(x0: Array, x1: Array) -> Variable:
    """The smaller of two; at ties the first gets the whole gradient."""
    return _MINIMUM(x0, x1)


def where(condition: Array, x: Array, y: Array) -> Variable:
    """x where the condition is not zero, else y; no gradient for the condition."""
    return _WHERE(condition, x, y)


def clip(x: Array, x_min: float, x_max: float) -> Variable:
    """x between two numbers; the gradient passes at the bounds, too. Raises `ValueError` for bounds in the wrong
    order."""
    ranges.check("clip", "a number, not NaN", x_min=x_min, x_max=x_max)
    ranges.check_bounds("clip", x_min, x_max)
    return _CLIP(x, x_min, x_max)


def rsqrt(x: Array) -> Variable:
    """1 / sqrt(x)."""
    return _RSQRT(x)


def identity(*inputs: Array) -> Any:
    """The inputs as they are: a variable, or a tuple of them."""
    made = _IDENTITY(*inputs)
    return made[0] if len(inputs) == 1 else made


def squared_difference(x0: Array, x1: Array) -> Variable:
    """(x0 - x1) squared, with broadcasting."""
    return _SQUARED_DIFFERENCE(x0, x1)
