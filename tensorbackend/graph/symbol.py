# SPDX-License-Identifier: Apache-2.0
"""Numbers that change from one call of a captured program to the next.

While a function is captured, each of its arguments that is a number is a `Symbol`: it stands wherever a number may
stand beside a tensor, and arithmetic with it gives symbols, which the program works out anew in each call. What would
fix its value in the program (a branch, an index, `math.sqrt`) is an error that names the line.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorbackend.errors import CaptureError, DTypeError, complain, user_line
from tensorbackend.graph.order import operands_first

__all__ = ["Arithmetic", "Symbol", "is_symbol", "known", "refuse_array"]

_NUMBERS = (bool, int, float, np.generic)


class Symbol:
    """A number that was `value` when the program was captured: an argument, or `function` of `operands`.

    Its class is said to be that of the value, so that types are promoted as those of the number.
    """

    __slots__ = ("function", "operands", "value")

    def __init__(self, value: Any, function: Callable[..., Any] | None = None, operands: tuple = ()) -> None:
        self.value = value
        self.function = function
        self.operands = operands

    @property
    def __class__(self) -> type:
        return type(self.value)

    @property
    def dtype(self) -> np.dtype:
        """The type of a NumPy scalar."""
        return self.value.dtype

    def item(self) -> Symbol:
        """A NumPy scalar as Python's number, which changes no type."""
        return Symbol(self.value.item(), _item, (self,))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **keywords: Any) -> Any:
        if method != "__call__" or keywords or ufunc.nout > 1 or not all(isinstance(x, _NUMBERS) for x in operands):
            return _refused("a NumPy function")(self)
        return Symbol(ufunc(*map(known, operands)), ufunc, operands)

    def __str__(self) -> str:
        return str(self.value)

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return format(self.value, form)


def is_symbol(x: Any) -> bool:
    """Whether an object, whatever it says of itself, is a `Symbol`."""
    return type(x) is Symbol


def known(x: Any) -> Any:
    """The number, or the value that a symbol had when the program was captured."""
    return x.value if type(x) is Symbol else x


_item = operator.methodcaller("item")


def _binary(function: Callable[[Any, Any], Any]) -> tuple[Callable, Callable]:
    def method(self: Symbol, other: Any) -> Any:
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        return Symbol(function(self.value, known(other)), function, (self, other))

    def reflected(self: Symbol, other: Any) -> Any:
        if not isinstance(other, _NUMBERS):
            return NotImplemented
        return Symbol(function(other, self.value), function, (other, self))

    return method, reflected


def _unary(function: Callable[[Any], Any]) -> Callable:
    return lambda self: Symbol(function(self.value), function, (self,))


def _refused(what: str) -> Callable:
    def method(self: Symbol, *others: Any) -> Any:
        given = f"{what} of a number that is an argument of the program (it was {self.value!r}), in {user_line()}"
        hint = "work it out before the call and pass the result, or keep it out of the arguments"
        raise CaptureError(complain("capture: a number would be fixed in the program", given, "arithmetic", hint))

    return method


refuse_array = _refused("a host array")


def _compared(self: Symbol, other: Any) -> Any:
    """Beside a tensor or a tree, whose own method makes a tree of it, nothing is fixed."""
    return NotImplemented if hasattr(other, "structure") else _refused("a comparison")(self, other)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor"):
    _method, _reflected = _binary(getattr(operator, f"__{_name}__"))
    setattr(Symbol, f"__{_name}__", _method)
    setattr(Symbol, f"__r{_name}__", _reflected)
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Symbol, f"__{_name}__", _unary(getattr(operator, _name)))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Symbol, f"__{_name}__", _compared)
for _name, _what in {
    "bool": "the truth value", "hash": "the hash", "float": "the float", "int": "the integer", "index": "the integer",
    "complex": "the value", "round": "the rounded value", "trunc": "the integer", "floor": "the integer",
    "ceil": "the integer", "divmod": "the quotient", "rdivmod": "the quotient",
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", _refused(_what))
del _name, _what, _method, _reflected


class Arithmetic:
    """The values of `wanted` symbols from those of `arguments`, worked out each operation once.

    Raises `CaptureError` for a symbol of another program.
    """

    def __init__(self, arguments: Sequence[Symbol], wanted: Sequence[Symbol]) -> None:
        self._first: list[Any] = []
        self._steps: list[tuple[Callable, list[int]]] = []
        order = operands_first(wanted, lambda x: [y for y in x.operands if type(y) is Symbol], arguments)
        for s in order:
            if s.function is None:  # kept somewhere, as an optimizer's rate, when its capture was over
                given = f"a number that an argument of another program left behind (it was {s.value!r})"
                hint = "set it to a number again, or pass it as an argument"
                raise CaptureError(complain("capture: no value", given, "arguments of this program", hint))
        constants = [x for s in order for x in s.operands if type(x) is not Symbol]
        self._constants = [None] * len(arguments) + constants
        places = {id(x): n for n, x in enumerate(arguments)}
        next_constant = len(arguments)
        for number, s in enumerate(order, start=len(self._constants)):
            operands = []
            for x in s.operands:
                if type(x) is Symbol:
                    operands.append(places[id(x)])
                else:
                    operands.append(next_constant)
                    next_constant += 1
            places[id(s)] = number
            self._steps.append((s.function, operands))
        self._wanted = [(places[id(x)], type(x.value)) for x in wanted]

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """The values for numbers as arguments. Raises `DTypeError` when one is of another type than it was."""
        values = self._constants.copy()
        values[: len(arguments)] = arguments
        for function, operands in self._steps:
            values.append(function(*[values[n] for n in operands]))
        found = [values[n] for n, _ in self._wanted]
        for value, (_, kind) in zip(found, self._wanted):
            if type(value) is not kind:
                given = f"{value!r}, a {type(value).__name__}"
                raise DTypeError(complain("program: a number of another type", given, f"a {kind.__name__}"))
        return found
