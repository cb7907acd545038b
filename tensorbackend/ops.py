# SPDX-License-Identifier: Apache-2.0
"""The op table: every elementwise op, random source and reduction, declared once.

An entry says how the op is computed by NumPy and in C, what type it gives, what its derivative is, how it is
spelled in Python, and over which inputs tests draw. Backend methods, operators, gradients, the interpreter, the
printers of generated code, the type stubs, docs/ops.md and the property tests are all derived from it.

Ops that are expressions of others (mean, softmax, gelu …) are in `graph/composite.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensorbackend import numerics
from tensorbackend.errors import complain

__all__ = [
    "ELEMENTWISE", "MIXED", "MOVEMENT", "OPS", "PRIMITIVE", "REDUCTION", "SOURCE", "Op", "call", "check_places",
    "elementwise", "out_of_range", "primitive", "reductions", "sources",
]  # fmt: skip

ELEMENTWISE, REDUCTION, SOURCE = "elementwise", "reduction", "source"
MOVEMENT, PRIMITIVE = "movement", "primitive"


@dataclass(frozen=True, eq=False)
class Op:
    """One op of the table.

    `numpy(*arrays, out=None)` computes it; a reduction's is `numpy(array, axis, dtype)`, a source's makes numbers
    of Philox words. `code` is C text with `{x}`, `{y}`, `{z}` for operands and `{t}` for the type's tag; a
    reduction's combines `{x}` and `{y}`, and starts from `identity`. `vjp(o, g, z, *inputs)` gives one gradient an
    input (None for zero), where `o` holds all op functions, `g` the incoming gradient and `z` the op's own value.
    `dtype` names the rule of the result's type (see `graph/structure.py`). `methods` are the Backend methods of the
    op, the first its NumPy-like name. `domain` bounds test inputs; `ulps` bounds the error of the compiled form in
    float32; `half_ulps`, also in units of float32, that of the shorter form for values which the rules of types store
    as halves: the C function's name with `half` for the tag. A primitive that is declared beside its geometry brings
    its rule of shapes, `shape(op, inputs, params)`, which gives the result's shape and the params, and `work(*params)`,
    how many operations a call is. `alike` operands have one type, which adds up in the result's, or are copied first.
    What `narrows` can write its results as halves and narrower integers, as a copy of them would.
    """

    name: str
    arity: int
    kind: str
    numpy: Callable[..., Any]
    code: str
    dtype: str
    doc: str
    vjp: Callable[..., tuple] | None = None
    methods: tuple[str, ...] = ()
    dunder: str | None = None
    symbol: str | None = None
    edge: str = ""
    domain: tuple[float, float] = (-4.0, 4.0)
    smooth: tuple[float, float] | None = None
    ulps: float = 0.5
    half_ulps: float | None = None
    flops: int = 1
    identity: str | None = None
    combine: Callable[..., Any] | None = None
    params: tuple[str, ...] = field(default=())
    shape: Callable[..., tuple] | None = None
    work: Callable[..., int] | None = None
    alike: bool = False
    narrows: bool = False

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    @property
    def said(self) -> str:
        """What it gives, and its edge cases."""
        return f"{self.doc} Edge cases: {self.edge}." if self.edge else self.doc


OPS: dict[str, Op] = {}


def _define(name: str, arity: int, numpy: Callable, code: str, dtype: str, doc: str, **columns: Any) -> None:
    kind = columns.pop("kind", ELEMENTWISE)
    OPS[name] = Op(name, arity, kind, numpy, code, dtype, doc, **columns)


def primitive(name: str, arity: int, numpy: Callable, dtype: str, doc: str, **columns: Any) -> Op:
    """Put a primitive into the table: for modules that hold a primitive's geometry and meaning. Returns the entry."""
    _define(name, arity, numpy, "", dtype, doc, kind=PRIMITIVE, **columns)
    return OPS[name]


def call(name: str, arity: int, numpy: Callable, doc: str, work: Callable[..., int]) -> Op:
    """A primitive that methods call and no tree holds, since it has several results or reads its output."""
    return Op(name, arity, PRIMITIVE, numpy, "", "same", doc, work=work)


def _call(name: str, arity: int = 1) -> str:
    return f"tb_{name}_{{t}}({', '.join('{' + letter + '}' for letter in 'xyz'[:arity])})"


def _ln(o: Any, x: Any) -> Any:
    """The logarithm of an operand, which may be a number."""
    return o.log(x) if hasattr(x, "structure") else math.log(x) if x > 0 else -math.inf if x == 0 else math.nan


def _pow_vjp(o: Any, g: Any, z: Any, x: Any, y: Any) -> tuple:
    """Where x is 0 neither 1 / x nor ln x may stand beside a factor of 0: their product would be NaN."""
    if not hasattr(y, "structure"):
        constant = issubclass(type(y), (int, float, np.generic)) and y == 0  # a symbol hides its type
        return g * y * x ** (y if constant else y - 1), None
    if not hasattr(x, "structure"):
        nowhere = issubclass(type(x), (int, float, np.generic)) and x == 0
        return None, g * z * (o.where(y >= 0, 0.0, -math.inf) if nowhere else _ln(o, x))
    flat = o.logical_and(x == 0, y == 0) if y.dtype.kind in "fV" else y == 0
    below = x ** o.where(flat, 0, y - 1)
    return g * y * below, g * z * o.log(o.where(o.logical_and(x == 0, y >= 0), 1, x))


def _arctan2_vjp(o: Any, g: Any, z: Any, x: Any, y: Any) -> tuple:
    """The larger side is taken out of x x + y y, which would overflow or vanish; if it is infinite, nothing changes."""
    side = o.maximum(abs(x), abs(y))
    x, y = x / side, y / side
    square = x * x + y * y
    far = side == math.inf
    return g * o.where(far, 0, y / square) / side, -g * o.where(far, 0, x / square) / side


def _nothing(o: Any, g: Any, z: Any, *inputs: Any) -> tuple:
    """The derivative of a step function."""
    return (None,) * len(inputs)


# Arithmetic

_define("add", 2, np.add, "{x} + {y}", "arith", "x + y.", vjp=lambda o, g, z, x, y: (g, g),
        methods=("add",), dunder="add", symbol="+")  # fmt: skip
_define("sub", 2, np.subtract, "{x} - {y}", "arith", "x - y.", vjp=lambda o, g, z, x, y: (g, -g),
        methods=("subtract",), dunder="sub", symbol="-")  # fmt: skip
_define("mul", 2, np.multiply, "{x} * {y}", "arith", "x y.", vjp=lambda o, g, z, x, y: (g * y, g * x),
        methods=("multiply",), dunder="mul", symbol="*")  # fmt: skip
_define("div", 2, np.divide, "{x} / {y}", "float", "x / y; true division of integers too.",
        vjp=lambda o, g, z, x, y: (g / y, -g * z / y), methods=("divide", "true_divide"), dunder="truediv",
        symbol="/", edge="x/0 is an infinity, 0/0 NaN", smooth=(0.5, 4.0), flops=4)  # fmt: skip
_define("pow", 2, numerics.power, _call("pow", 2), "arith", "x to the power y.",
        vjp=_pow_vjp, methods=("power",), dunder="pow", symbol="**",
        edge="negative base with fractional exponent NaN; integers wrap, and a negative exponent gives 0 "
        "unless the base is 1 or -1", domain=(0.1, 4.0), smooth=(0.5, 3.0), ulps=1.0, flops=30)  # fmt: skip
_define("floordiv", 2, np.floor_divide, _call("floordiv", 2), "arith", "The largest integer not above x / y.",
        vjp=_nothing, methods=("floor_divide",), dunder="floordiv", symbol="//",
        edge="integer x//0 is 0", flops=5)  # fmt: skip
_define("mod", 2, np.remainder, _call("mod", 2), "arith", "x - y floor(x / y), with the sign of y.",
        vjp=lambda o, g, z, x, y: (g, -g * o.floordiv(x, y)), methods=("remainder", "mod"), dunder="mod", symbol="%",
        edge="integer x % 0 is 0; a float's is NaN", smooth=(1.1, 1.9), flops=6)  # fmt: skip
_define("maximum", 2, np.maximum, _call("max", 2), "same", "The larger of x and y.",
        vjp=lambda o, g, z, x, y: (g * (x >= y), g * (y >= x)), methods=("maximum",),
        edge="NaN from either side passes; a tie gives the whole gradient to both")  # fmt: skip
_define("minimum", 2, np.minimum, _call("min", 2), "same", "The smaller of x and y.",
        vjp=lambda o, g, z, x, y: (g * (x <= y), g * (y <= x)), methods=("minimum",),
        edge="NaN from either side passes; a tie gives the whole gradient to both")  # fmt: skip
_define("arctan2", 2, np.arctan2, _call("atan2", 2), "float", "The angle of the point (y, x): arctan of x / y.",
        vjp=_arctan2_vjp, methods=("arctan2",),
        ulps=2.0, flops=20)  # fmt: skip
_define("where", 3, numerics.where, "{x} ? {y} : {z}", "choice", "y where the condition x is not zero, else z.",
        vjp=lambda o, g, z, c, x, y: (None, o.where(c, g, 0), o.where(c, 0, g)), methods=("where",))  # fmt: skip

# Comparison and logic

for _name, _method, _symbol, _ufunc in [
    ("eq", "equal", "==", np.equal),
    ("ne", "not_equal", "!=", np.not_equal),
    ("lt", "less", "<", np.less),
    ("le", "less_equal", "<=", np.less_equal),
    ("gt", "greater", ">", np.greater),
    ("ge", "greater_equal", ">=", np.greater_equal),
]:
    _define(_name, 2, _ufunc, f"{{x}} {_symbol} {{y}}", "truth", f"1 where x {_symbol} y, else 0.", vjp=_nothing,
            methods=(_method,), dunder=_name, symbol=_symbol,
            edge="1 if either is NaN" if _name == "ne" else "0 if either is NaN")  # fmt: skip

_define("logical_and", 2, np.logical_and, "({x} != 0) & ({y} != 0)", "truth", "1 where both are not zero.",
        vjp=_nothing, methods=("logical_and",), symbol="and")  # fmt: skip
_define("logical_or", 2, np.logical_or, "({x} != 0) | ({y} != 0)", "truth", "1 where either is not zero.",
        vjp=_nothing, methods=("logical_or",), symbol="or")  # fmt: skip
_define("logical_xor", 2, np.logical_xor, "({x} != 0) ^ ({y} != 0)", "truth", "1 where just one is not zero.",
        vjp=_nothing, methods=("logical_xor",), symbol="xor")  # fmt: skip
_define("logical_not", 1, np.logical_not, "{x} == 0", "truth", "1 where x is zero.", vjp=_nothing,
        methods=("logical_not",))  # fmt: skip
_define("finite", 1, np.isfinite, _call("isfinite"), "truth", "1 where x is neither infinite nor NaN.", vjp=_nothing,
        methods=("finite", "isfinite"))  # fmt: skip
_define("isnan", 1, np.isnan, "{x} != {x}", "truth", "1 where x is NaN.", vjp=_nothing, methods=("isnan",))
_define("isinf", 1, np.isinf, _call("isinf"), "truth", "1 where x is infinite.", vjp=_nothing, methods=("isinf",))

# Bits of integers

for _name, _method, _symbol, _ufunc in [
    ("bitand", "bitwise_and", "&", np.bitwise_and),
    ("bitor", "bitwise_or", "|", np.bitwise_or),
    ("bitxor", "bitwise_xor", "^", np.bitwise_xor),
]:
    _define(_name, 2, _ufunc, f"{{x}} {_symbol} {{y}}", "bits", f"x {_symbol} y, bit by bit.", vjp=_nothing,
            methods=(_method,), dunder={"&": "and", "|": "or", "^": "xor"}[_symbol], symbol=_symbol)  # fmt: skip
_define("shl", 2, np.left_shift, _call("shl", 2), "integer", "x shifted left by y bits.", vjp=_nothing,
        methods=("left_shift",), dunder="lshift", symbol="<<", edge="counts outside the width give 0",
        domain=(0.0, 6.0))  # fmt: skip
_define("shr", 2, np.right_shift, _call("shr", 2), "integer", "x shifted right by y bits, keeping the sign.",
        vjp=_nothing, methods=("right_shift",), dunder="rshift", symbol=">>",
        edge="counts outside the width give 0, or -1 for negative x", domain=(0.0, 6.0))  # fmt: skip
_define("invert", 1, np.invert, _call("invert"), "bits", "Every bit of x flipped; of a truth value, its opposite.",
        vjp=_nothing, methods=("bitwise_not", "invert"), dunder="invert", symbol="~")  # fmt: skip

# One operand: sign and rounding

_define("neg", 1, numerics.negative, "-{x}", "arith", "-x; unsigned integers wrap.", vjp=lambda o, g, z, x: (-g,),
        methods=("negative",), dunder="neg", symbol="-")  # fmt: skip
_define("abs", 1, np.abs, _call("abs"), "same", "|x|.", vjp=lambda o, g, z, x: (g * o.sgn(x),),
        methods=("absolute", "fabs", "abs"), dunder="abs", edge="the most negative integer wraps to itself",
        smooth=(0.5, 4.0))  # fmt: skip
_define("sgn", 1, numerics.sign, _call("sign"), "same", "-1, 0 or 1.", vjp=_nothing, methods=("sgn", "sign"),
        edge="0 for both zeros; NaN stays NaN")  # fmt: skip
_define("rint", 1, numerics.whole(np.rint), _call("rint"), "whole", "The nearest integer, halves to even.",
        vjp=_nothing, methods=("rint", "round"))  # fmt: skip
_define("floor", 1, numerics.whole(np.floor), _call("floor"), "whole", "The largest integer not above x.",
        vjp=_nothing, methods=("floor",))  # fmt: skip
_define("ceil", 1, numerics.whole(np.ceil), _call("ceil"), "whole", "The smallest integer not below x.",
        vjp=_nothing, methods=("ceil",))  # fmt: skip
_define("trunc", 1, numerics.whole(np.trunc), _call("trunc"), "whole", "x without its fraction.",
        vjp=_nothing, methods=("trunc",))  # fmt: skip
_define("sqr", 1, np.square, "{x} * {x}", "arith", "x squared.", vjp=lambda o, g, z, x: (2 * g * x,),
        methods=("square",))  # fmt: skip
_define("sqrt", 1, np.sqrt, _call("sqrt"), "float", "The square root.", vjp=lambda o, g, z, x: (g / (2 * z),),
        methods=("sqrt",), edge="negative: NaN", domain=(0.0, 9.0), smooth=(0.2, 9.0), flops=6)  # fmt: skip

# One operand: exponentials and logarithms

_LN2 = float(np.log(2.0))
_LN10 = float(np.log(10.0))

_define("exp", 1, np.exp, _call("exp"), "float", "e to the x.", vjp=lambda o, g, z, x: (g * z,), methods=("exp",),
        edge="overflow: infinity", ulps=1.1, flops=12)  # fmt: skip
_define("exp2", 1, np.exp2, _call("exp2"), "float", "2 to the x.", vjp=lambda o, g, z, x: (g * z * _LN2,),
        methods=("exp2",), edge="overflow: infinity", ulps=1.1, flops=11)  # fmt: skip
_define("expm1", 1, np.expm1, _call("expm1"), "float", "exp(x) - 1, exact for small x.",
        vjp=lambda o, g, z, x: (g * o.exp(x),), methods=("expm1",), ulps=1.5, flops=15)  # fmt: skip
_define("log", 1, np.log, _call("log"), "float", "The natural logarithm.", vjp=lambda o, g, z, x: (g / x,),
        methods=("log",), edge="0: -infinity; negative: NaN", domain=(0.0, 9.0), smooth=(0.2, 9.0), ulps=1.1,
        flops=15)  # fmt: skip
_define("log2", 1, np.log2, _call("log2"), "float", "The logarithm to base 2.",
        vjp=lambda o, g, z, x: (g / (x * _LN2),), methods=("log2",), edge="0: -infinity; negative: NaN",
        domain=(0.0, 9.0), smooth=(0.2, 9.0), ulps=1.5, flops=15)  # fmt: skip
_define("log10", 1, np.log10, _call("log10"), "float", "The logarithm to base 10.",
        vjp=lambda o, g, z, x: (g / (x * _LN10),), methods=("log10",), edge="0: -infinity; negative: NaN",
        domain=(0.0, 9.0), smooth=(0.2, 9.0), ulps=2.0, flops=15)  # fmt: skip
_define("log1p", 1, np.log1p, _call("log1p"), "float", "ln(1 + x), exact for small x.",
        vjp=lambda o, g, z, x: (g / (1 + x),), methods=("log1p",), edge="-1: -infinity; below: NaN",
        domain=(-1.0, 9.0), smooth=(-0.5, 9.0), ulps=1.5, flops=16)  # fmt: skip
_define("safelog", 1, numerics.safelog, _call("safelog"), "float", "max(ln x, -50), and -50 for x <= 0.",
        vjp=lambda o, g, z, x: (o.where(z > -50, g / x, 0),), methods=("safelog",), edge="NaN stays NaN",
        smooth=(0.2, 9.0), ulps=1.1, flops=17)  # fmt: skip
_define("sig", 1, numerics.sigmoid, _call("sigmoid"), "float", "The logistic function 1 / (1 + exp(-x)).",
        vjp=lambda o, g, z, x: (g * z * (1 - z),), methods=("sig", "sigmoid"), edge="never overflows", ulps=2.0,
        half_ulps=90.0, flops=17)  # fmt: skip
_define("sig2", 1, numerics.sigmoid2, _call("sigmoid2"), "float", "1 / (1 + 2^-x).",
        vjp=lambda o, g, z, x: (g * z * (1 - z) * _LN2,), methods=("sig2",), ulps=3.0, flops=17)  # fmt: skip
_define("tanh", 1, np.tanh, _call("tanh"), "float", "The hyperbolic tangent.",
        vjp=lambda o, g, z, x: (g * (1 - z * z),), methods=("tanh",), ulps=1.5, half_ulps=24.0,
        flops=20)  # fmt: skip
_define("tanh2", 1, numerics.tanh2, _call("tanh2"), "float", "(2^2x - 1) / (2^2x + 1).",
        vjp=lambda o, g, z, x: (g * (1 - z * z) * _LN2,), methods=("tanh2",), edge="tends to -1 and 1", ulps=3.0,
        flops=21)  # fmt: skip
_define("erf", 1, numerics.erf, _call("erf"), "float",
        "The error function, 2/sqrt(pi) times the integral of exp(-t^2) to x.",
        vjp=lambda o, g, z, x: (g * o.exp(-x * x) * float(2 / np.sqrt(np.pi)),), methods=("erf",), ulps=1.1,
        flops=25)  # fmt: skip
_define("erfc", 1, numerics.erfc, _call("erfc"), "float", "1 - erf(x), exact for large x.",
        vjp=lambda o, g, z, x: (-g * o.exp(-x * x) * float(2 / np.sqrt(np.pi)),), methods=("erfc",), ulps=2.0,
        flops=30)  # fmt: skip

# One operand: circular and hyperbolic functions

_define("sin", 1, np.sin, _call("sin"), "float", "The sine of x radians.", vjp=lambda o, g, z, x: (g * o.cos(x),),
        methods=("sin",), edge="infinity: NaN", ulps=1.5, flops=15)  # fmt: skip
_define("cos", 1, np.cos, _call("cos"), "float", "The cosine of x radians.", vjp=lambda o, g, z, x: (-g * o.sin(x),),
        methods=("cos",), edge="infinity: NaN", ulps=1.5, flops=15)  # fmt: skip
_define("tan", 1, np.tan, _call("tan"), "float", "The tangent of x radians.",
        vjp=lambda o, g, z, x: (g * (1 + z * z),), methods=("tan",), edge="infinity: NaN", smooth=(-1.2, 1.2),
        ulps=2.0, flops=25)  # fmt: skip
_define("arcsin", 1, np.arcsin, _call("asin"), "float", "The inverse sine, in radians.",
        vjp=lambda o, g, z, x: (g / o.sqrt((1 - x) * (1 + x)),), methods=("arcsin",), edge="|x| > 1: NaN",
        domain=(-1.0, 1.0), smooth=(-0.8, 0.8), ulps=2.0, flops=20)  # fmt: skip
_define("arccos", 1, np.arccos, _call("acos"), "float", "The inverse cosine, in radians.",
        vjp=lambda o, g, z, x: (-g / o.sqrt((1 - x) * (1 + x)),), methods=("arccos",), edge="|x| > 1: NaN",
        domain=(-1.0, 1.0), smooth=(-0.8, 0.8), ulps=2.0, flops=20)  # fmt: skip
_define("arctan", 1, np.arctan, _call("atan"), "float", "The inverse tangent, in radians.",
        vjp=lambda o, g, z, x: (g / (1 + x * x),), methods=("arctan",), ulps=2.0, flops=20)  # fmt: skip
_define("sinh", 1, np.sinh, _call("sinh"), "float", "The hyperbolic sine.", vjp=lambda o, g, z, x: (g * o.cosh(x),),
        methods=("sinh",), ulps=2.0, flops=20)  # fmt: skip
_define("cosh", 1, np.cosh, _call("cosh"), "float", "The hyperbolic cosine.", vjp=lambda o, g, z, x: (g * o.sinh(x),),
        methods=("cosh",), ulps=2.0, flops=20)  # fmt: skip
_define("arcsinh", 1, np.arcsinh, _call("asinh"), "float", "The inverse hyperbolic sine.",
        vjp=lambda o, g, z, x: (g / o.where(abs(x) > 1e8, abs(x), o.sqrt(x * x + 1)),), methods=("arcsinh",),
        ulps=2.0, flops=25)  # fmt: skip
_define("arccosh", 1, np.arccosh, _call("acosh"), "float", "The inverse hyperbolic cosine.",
        vjp=lambda o, g, z, x: (g / (o.sqrt(x - 1) * o.sqrt(x + 1)),), methods=("arccosh",), edge="x < 1: NaN",
        domain=(1.0, 9.0), smooth=(1.5, 9.0), ulps=2.0, flops=25)  # fmt: skip
_define("arctanh", 1, np.arctanh, _call("atanh"), "float", "The inverse hyperbolic tangent.",
        vjp=lambda o, g, z, x: (g / ((1 - x) * (1 + x)),), methods=("arctanh",), edge="1: infinity; |x| > 1: NaN",
        domain=(-1.0, 1.0), smooth=(-0.8, 0.8), ulps=2.0, flops=25)  # fmt: skip

# Powers of two and rounding to few bits

_define("pow2near", 1, numerics.shift_exponent, _call("pow2near"), "float",
        "sgn(x) 2^rint(log2 |x|): the power of two nearest in the logarithm, 0 for 0.", vjp=_nothing,
        methods=("nearest_power_of_two",), ulps=1.0, flops=20)  # fmt: skip
_define("sround", 3, numerics.round_stochastic, "tb_sround_{t}({x}, {y}, {z})", "sround",
        "x with z mantissa bits, rounded up with probability equal to the fraction lost; y are random words.",
        vjp=lambda o, g, z, x, bits, kept: (g, None, None), edge="infinities and NaN pass", flops=5)  # fmt: skip

# Sources: numbers that depend on the place in the array alone

_define("rand", 0, numerics.uniform, "tb_uniform_{t}({words})", "default",
        "Uniform random numbers of [0, 1): 24 bits in float32, 53 in float64; halves round those next to 1 to it.",
        kind=SOURCE, flops=40)  # fmt: skip
_define("randn", 0, numerics.normal, "tb_normal_{t}({words})", "default",
        "Standard normal random numbers (Box and Muller).", kind=SOURCE, flops=80)  # fmt: skip
_define("randbits", 0, numerics.bits, "tb_randbits({words})", "uint32", "32 random bits.",
        kind=SOURCE, flops=40)  # fmt: skip
_define("index", 0, lambda position: position, "{index}", "int64", "The position along an axis, counted from 0.",
        kind=SOURCE, params=("axis",))  # fmt: skip


# Reductions


def _reducer(ufunc: np.ufunc) -> Callable:
    def reduce(x: np.ndarray, axis: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return ufunc.reduce(x, axis=axis, dtype=dtype, keepdims=True)

    return reduce


def _position(function: Callable) -> Callable:
    def reduce(x: np.ndarray, axis: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if len(axis) == 1:
            return function(x, axis=axis[0], keepdims=True)
        last = tuple(range(x.ndim - len(axis), x.ndim))
        moved = np.moveaxis(x, axis, last)
        flat = moved.reshape(*moved.shape[: x.ndim - len(axis)], -1)
        return np.expand_dims(function(flat, axis=-1), axis)

    return reduce


def _spread(o: Any, g: Any, z: Any, x: Any) -> tuple:
    return (g,)


def _extreme(o: Any, g: Any, z: Any, x: Any) -> tuple:
    return (g * (x == z),)


def _others(o: Any, g: Any, z: Any, x: Any) -> tuple:
    """The product of the other factors: of those that are not 0 by division, times one that is 0, if it is alone.

    That one is there for its derivative; of a product of two, which second derivatives do not see, there is none.
    """
    axes = tuple(a for a, n in enumerate(z.shape) if n == 1)
    none = x == 0
    count = o.sum(none, axes) - none
    alone = o.sum(o.where(none, x, 0), axes) - o.where(none, x, 0)
    rest = o.where(none, 1, x)
    return (g * o.prod(rest, axes) / rest * o.where(count == 0, 1, o.where(count == 1, alone, 0)),)


_define("sum", 1, _reducer(np.add), "{x} + {y}", "sum", "The sum over the axes.", kind=REDUCTION, vjp=_spread,
        methods=("sum",), identity="zero", combine=np.add,
        edge="halves add up in float32, float32 pairwise or wider; integers in 64 bits; of nothing 0")  # fmt: skip
_define("prod", 1, _reducer(np.multiply), "{x} * {y}", "sum", "The product over the axes.", kind=REDUCTION,
        vjp=_others, methods=("prod",), identity="one", combine=np.multiply,
        edge="of nothing 1; where x is 0, the gradient is right to the second order", domain=(0.5, 1.5),
        smooth=(0.5, 1.5))  # fmt: skip
_define("max", 1, _reducer(np.maximum), _call("max", 2), "same", "The largest over the axes.", kind=REDUCTION,
        vjp=_extreme, methods=("max",), identity="lowest", combine=np.maximum,
        edge="NaN passes; every tied element gets the gradient; of nothing: ShapeError")  # fmt: skip
_define("min", 1, _reducer(np.minimum), _call("min", 2), "same", "The smallest over the axes.", kind=REDUCTION,
        vjp=_extreme, methods=("min",), identity="highest", combine=np.minimum,
        edge="NaN passes; every tied element gets the gradient; of nothing: ShapeError")  # fmt: skip
_define("argmax", 1, _position(np.argmax), "{x} > {y}", "index", "The first position of the largest.", kind=REDUCTION,
        vjp=_nothing, methods=("argmax",), identity="lowest",
        edge="the first NaN wins; of nothing: ShapeError")  # fmt: skip
_define("argmin", 1, _position(np.argmin), "{x} < {y}", "index", "The first position of the smallest.",
        kind=REDUCTION, vjp=_nothing, methods=("argmin",), identity="highest",
        edge="the first NaN wins; of nothing: ShapeError")  # fmt: skip
_define("any", 1, _reducer(np.logical_or), "{x} | {y}", "truth", "1 where any element is not zero.", kind=REDUCTION,
        vjp=_nothing, methods=("any",), identity="zero", combine=np.logical_or, edge="of nothing 0")  # fmt: skip
_define("all", 1, _reducer(np.logical_and), "{x} & {y}", "truth", "1 where every element is not zero.",
        kind=REDUCTION, vjp=_nothing, methods=("all",), identity="one", combine=np.logical_and,
        edge="of nothing 1")  # fmt: skip


# Movements: other views of the same numbers. They have no code: they change addresses.


def _no_code(*arrays: np.ndarray) -> np.ndarray:
    raise AssertionError("a movement is a change of strides, and unslice two kernels")


_define("transpose", 1, _no_code, "", "same", "The axes in another order.", kind=MOVEMENT, params=("axes",),
        vjp=lambda o, g, z, x: (o.turned(g, tuple(np.argsort(z.structure.params[0]).tolist())),))  # fmt: skip
_define("reshape", 1, _no_code, "", "same", "The numbers in C order under another shape.", kind=MOVEMENT,
        params=("shape",), vjp=lambda o, g, z, x: (o.reshape(g, x.shape),))  # fmt: skip
_define("broadcast", 1, _no_code, "", "same", "Repeated along axes of length 1 to a shape.", kind=MOVEMENT,
        params=("shape",), vjp=lambda o, g, z, x: (g,))  # fmt: skip
_define("slice", 1, _no_code, "", "same", "The part that an index of integers, slices and new axes picks.",
        kind=MOVEMENT, params=("key",),
        vjp=lambda o, g, z, x: (o.unslice(g, x.shape, z.structure.params[0]),))  # fmt: skip

# Primitives: each is one call of a backend hook on operands in memory


def _running(accumulate: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A running result along an axis, of float32 by way of float64."""

    def run(x: np.ndarray, axis: int) -> np.ndarray:
        wide = np.float64 if x.dtype == np.float32 else x.dtype
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return accumulate(x, axis=axis, dtype=wide).astype(x.dtype, copy=False)

    return run


def out_of_range(name: str, place: int, entry: int, length: int) -> IndexError:
    """The error for an entry of an axis that it does not have: it is at `place` among those given."""
    given = f"{entry} at place {place}"
    expected = f"{-length} to {length - 1}" if length else "no place: it is an axis of length 0"
    return IndexError(complain(f"{name}: a place out of range", given, expected))


def check_places(name: str, places: np.ndarray, length: int) -> None:
    """Raise `IndexError` for places that an axis does not have; NumPy would count huge unsigned ones from its end."""
    wrong = (places < -length) | (places >= length)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise out_of_range(name, place, places.flat[place], length)


def _take(x: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    check_places("take", indices, x.shape[axis])
    return np.take(x, indices, axis=axis)


LONG_ROW = 64
"""Elements that are added in less time as a row by itself than among those of other rows."""


def _put(g: np.ndarray, indices: np.ndarray, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Sums in the order of the indices; where these are few, of the places that occur, among zeros."""
    check_places("put", indices, shape[axis])
    rest = (*shape[:axis], *shape[axis + 1 :])
    rows = np.moveaxis(g, range(axis, axis + indices.ndim), range(indices.ndim)).reshape(indices.size, *rest)
    found, number, count = slice(None), indices.reshape(-1), shape[axis]
    if indices.size < count:
        found, number = np.unique(np.arange(count)[number], return_inverse=True)
        count = len(found)
    sums = np.zeros((count, *rest), np.float64 if g.dtype == np.float32 else g.dtype)
    if math.prod(rest) < LONG_ROW:
        np.add.at(sums, number, rows.astype(sums.dtype))  # of two types it takes five times as long
    else:
        for place, row in zip(number.tolist(), rows):
            sums[place] += row
    put = np.zeros(shape, g.dtype)
    np.moveaxis(put, axis, 0)[found] = sums
    return put


def _dot_vjp(o: Any, g: Any, z: Any, x: Any, y: Any) -> tuple:
    return o.dot(g, o.swap_last(y)), o.dot(o.swap_last(x), g)


def _running_back(o: Any, x: Any, axis: int) -> Any:
    """The running sum from the end of an axis."""
    back = tuple(slice(None, None, -1) if a == axis else slice(None) for a in range(len(x.shape)))
    return o.slice(o.cumsum(o.slice(x, back), axis), back)


def _cumsum_vjp(o: Any, g: Any, z: Any, x: Any) -> tuple:
    return (_running_back(o, g, z.structure.params[0]),)


def _cumprod_vjp(o: Any, g: Any, z: Any, x: Any) -> tuple:
    """The sum of g z from an entry on, divided by it. At the first 0 of a line, that of products without it; at the
    second, without both, times the first, which is there for its derivative; others have none to the second order."""
    axis = z.structure.params[0]
    none = x == 0
    zero = o.where(none, o.cumsum(none, axis), 0)  # the how many-th 0 of its line
    once = o.where(zero == 1, 1, x)
    twice = o.where(zero == 2, 1, once)
    first = _running_back(o, g * o.cumprod(once, axis), axis)
    second = _running_back(o, g * o.cumprod(twice, axis), axis) * o.sum(o.where(zero == 1, x, 0), axis)
    others = _running_back(o, g * z, axis) / o.where(none, 1, x)
    return (o.where(zero == 0, others, o.where(zero == 1, first, o.where(zero == 2, second, 0))),)


_define("dot", 2, np.matmul, "", "product", "The matrix product of the last two axes.", kind=PRIMITIVE, vjp=_dot_vjp,
        symbol="@", edge="halves add up in float32, integers in 64 bits")  # fmt: skip
_define("cumsum", 1, _running(np.cumsum), "", "sum", "The running sum along an axis.", kind=PRIMITIVE,
        params=("axis",), vjp=_cumsum_vjp, narrows=True)  # fmt: skip
_define("cumprod", 1, _running(np.cumprod), "", "sum", "The running product along an axis.", kind=PRIMITIVE,
        params=("axis",), vjp=_cumprod_vjp, narrows=True, domain=(0.5, 1.5),
        edge="factors are taken in order; where x is 0, the gradient is right to the second order")  # fmt: skip
_define("take", 2, _take, "", "first", "The entries of x along an axis at the places y.", kind=PRIMITIVE,
        params=("axis",), edge="a place out of range: IndexError",
        vjp=lambda o, g, z, x, i: (o.put(g, i, x.shape, z.structure.params[0]), None))  # fmt: skip
_define("put", 2, _put, "", "first", "Zeros with x added along an axis at the places y, the adjoint of take.",
        kind=PRIMITIVE, params=("shape", "axis"),
        vjp=lambda o, g, z, x, i: (o.take(g, i, z.structure.params[1]), None))  # fmt: skip
_define("unslice", 1, _no_code, "", "first", "Zeros with x at an index, the adjoint of slice.", kind=PRIMITIVE,
        params=("shape", "key"), narrows=True,
        vjp=lambda o, g, z, x: (o.slice(g, z.structure.params[1]),))  # fmt: skip


def _histogram(x: np.ndarray, offset: float, bins: int) -> np.ndarray:
    counts = np.zeros((1, bins), np.int64)
    for block in np.nditer(x, ["external_loop", "buffered", "zerosize_ok"], order="K", buffersize=1 << 16):
        counts[0] += np.bincount(numerics.histogram_bin(block, offset, bins), minlength=bins)
    return counts


_define("histogram", 1, _histogram, "", "int32", "Counts of clamp(rint(log2 |x|) - offset, 0, bins - 1).",
        kind=PRIMITIVE, params=("offset", "bins"), vjp=_nothing, edge="zero and NaN count in bin 0")  # fmt: skip


def _zero(out: np.ndarray | None = None) -> np.ndarray:
    out = np.empty(()) if out is None else out
    out[...] = 0
    return out


ZERO = Op("zero", 0, ELEMENTWISE, _zero, "0", "same", "0.", flops=0)
"""What surrounds the operand of `unslice`; no tree holds it."""
GATE = Op("gate", 2, ELEMENTWISE, numerics.gate, _call("gate", 2), "float", "sig(x) * tanh(y), which divides once.",
          ulps=7.5, half_ulps=120.0, flops=30)  # fmt: skip
"""Kernels of float32 and halves have it for the product; no tree holds it."""

_RADICAND = "tb_radicand_{t}({x})"
_ROOT = f"tb_sqrt_{{t}}({_RADICAND})"

POWERS: dict[float, Op] = {
    y: replace(OPS["pow"], code=code, ulps=ulps, flops=flops)
    for y, code, ulps, flops in [
        (0, "1", 0.0, 0), (1, "{x}", 0.0, 0), (2, "{x} * {x}", 0.5, 1), (3, "{x} * {x} * {x}", 1.5, 2),
        (4, "({x} * {x}) * ({x} * {x})", 2.5, 2), (-1, "1 / {x}", 0.5, 4), (-2, "(1 / {x}) * (1 / {x})", 2.5, 5),
        (0.5, _ROOT, 0.5, 7), (-0.5, f"1 / {_ROOT}", 1.5, 11), (1.5, f"{_RADICAND} * {_ROOT}", 1.5, 8),
        (-1.5, f"(1 / {_RADICAND}) * (1 / {_ROOT})", 3.5, 16),
    ]
}  # fmt: skip
"""Powers by numbers that need no logarithm: by others they take ten times as long. Bounds add up what is rounded."""
_AS_UNSIGNED = "((tb_u64){x} %s (tb_u64){y})"
MIXED: dict[str, Op] = {
    name: replace(OPS[name], dtype="mixed", code=code.format(_AS_UNSIGNED % OPS[name].symbol, x="{x}", y="{y}"))
    for name, code in {
        "eq": "({x} >= 0) & ({y} >= 0) & {}", "ne": "({x} < 0) | ({y} < 0) | {}",
        "lt": "({y} >= 0) & (({x} < 0) | {})", "le": "({y} >= 0) & (({x} < 0) | {})",
        "gt": "({x} >= 0) & (({y} < 0) | {})", "ge": "({x} >= 0) & (({y} < 0) | {})",
    }.items()
}  # fmt: skip
"""Comparisons of uint64 with signed integers as they are: their common type, float64, would round them."""
HALF_SOURCES: dict[tuple[str, str], Op] = {
    (name, dtype): replace(OPS[name], dtype=dtype, methods=())
    for name in ("rand", "randn") for dtype in ("float16", "bfloat16")
}  # fmt: skip
"""Random numbers that are halves whatever the backend's default type is, so that what they are beside stays halves."""


def elementwise() -> list[Op]:
    """The elementwise ops, in the order of the table."""
    return [op for op in OPS.values() if op.kind == ELEMENTWISE]


def reductions() -> list[Op]:
    """The reductions, in the order of the table."""
    return [op for op in OPS.values() if op.kind == REDUCTION]


def sources() -> list[Op]:
    """The sources of numbers (random, index), in the order of the table."""
    return [op for op in OPS.values() if op.kind == SOURCE]
