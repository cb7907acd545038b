# SPDX-License-Identifier: Apache-2.0
"""Checks of inputs whose errors can be read: `type_check.expect(in_types[0].shape[1] == in_types[1].shape[1])`.

What is compared are `Value`s, which carry the text they were written as. A comparison gives a `Claim`; `expect` raises
`InvalidType` for one that is false, with the function's name, the text and the values.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import complain
from tensorbackend.function.config import lookup
from tensorbackend.graph.structure import broadcast_shapes

__all__ = [
    "Claim", "InvalidType", "Types", "Value", "argname", "check", "eval", "expect", "expect_broadcast_shapes",
    "make_variable",
]  # fmt: skip


class InvalidType(TypeError):
    """Inputs of a type or shape that a function does not take."""


class Value:
    """A value and the text it was written as. Arithmetic, indexing and attributes give values again; one of a
    number counts and slices as the number does."""

    __slots__ = ("text", "value")
    __hash__ = None

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self.text = text

    def __getattr__(self, name: str) -> Value:
        return Value(getattr(self.value, name), f"{self.text}.{name}")

    def __getitem__(self, key: Any) -> Value:
        index = eval(key)
        try:
            return Value(self.value[index], f"{self.text}[{_text(key)}]")
        except IndexError:
            head = f"{_function()}: {self.text}[{_text(key)}] does not exist"
            raise InvalidType(complain(head, f"{self.text} = {_shown(self.value)}", "more axes")) from None

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Value]:
        return (self[i] for i in range(len(self.value)))

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __neg__(self) -> Value:
        return Value(-self.value, f"(-{self.text})")

    def __repr__(self) -> str:
        return f"{self.text} = {_shown(self.value)}"


class Claim:
    """A comparison: whether it is true, its text, and if it is not, the text of what is."""

    __slots__ = ("holds", "text", "values")

    def __init__(self, holds: bool, text: str, values: str) -> None:
        self.holds = holds
        self.text = text
        self.values = values

    def __bool__(self) -> bool:
        return self.holds


_OPPOSITE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_COMPUTED = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "truediv": "/", "mod": "%", "pow": "**"}


def _comparison(name: str, symbol: str) -> Callable[[Any, Any], Claim]:
    compare = getattr(operator, name)

    def method(self: Value, other: Any) -> Claim:
        right = eval(other)
        holds = bool(compare(self.value, right))
        values = "" if holds else f"{_shown(self.value)} {_OPPOSITE[symbol]} {_shown(right)}"
        return Claim(holds, f"{self.text} {symbol} {_text(other)}", values)

    return method


def _computation(name: str, symbol: str) -> tuple[Callable[[Any, Any], Value], Callable[[Any, Any], Value]]:
    compute = getattr(operator, name)

    def method(self: Value, other: Any) -> Value:
        return Value(compute(self.value, eval(other)), f"({self.text} {symbol} {_text(other)})")

    def reflected(self: Value, other: Any) -> Value:
        return Value(compute(eval(other), self.value), f"({_text(other)} {symbol} {self.text})")

    return method, reflected


for _name, _symbol in _COMPARED.items():
    setattr(Value, f"__{_name}__", _comparison(_name, _symbol))
for _name, _symbol in _COMPUTED.items():
    _method, _reflected = _computation(_name, _symbol)
    setattr(Value, f"__{_name}__", _method)
    setattr(Value, f"__r{_name}__", _reflected)
del _name, _symbol, _method, _reflected


def _shown(value: Any) -> str:
    if isinstance(value, type) and issubclass(value, np.generic):
        value = np.dtype(value)
    return value.name if isinstance(value, np.dtype) else str(value)


def _text(x: Any) -> str:
    if isinstance(x, slice):
        start, stop, step = ("" if part is None else _text(part) for part in (x.start, x.stop, x.step))
        return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"
    return x.text if isinstance(x, Value) else _shown(x)


def eval(x: Any) -> Any:  # noqa: A001  the contract's name
    """The value of an expression; all else as it is."""
    return x.value if isinstance(x, Value) else x


def make_variable(value: Any, name: str) -> Value:
    """A value to be used in expressions under a name."""
    return Value(value, name)


class Type:
    """What is known of one input: `shape`, `dtype` and `ndim`, as values."""

    __slots__ = ("dtype", "name", "ndim", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, name: str) -> None:
        self.shape = Value(shape, f"{name}.shape")
        self.dtype = Value(dtype, f"{name}.dtype")
        self.ndim = Value(len(shape), f"{name}.ndim")
        self.name = name

    def renamed(self, name: str) -> Type:
        """The same under another name."""
        return Type(self.shape.value, self.dtype.value, name)


class Types(Sequence):
    """The inputs' types: `in_types[0].shape`."""

    def __init__(self, types: Sequence[tuple[tuple[int, ...], np.dtype]], names: Sequence[str] = ()) -> None:
        given = [*names, *(f"in_types[{i}]" for i in range(len(names), len(types)))]
        self._types = [Type(shape, dtype, name) for (shape, dtype), name in zip(types, given)]

    def size(self) -> Value:
        """The number of inputs."""
        return Value(len(self._types), "in_types.size()")

    def __len__(self) -> int:
        return len(self._types)

    def __iter__(self) -> Iterator[Type]:
        return iter(self._types)

    def __getitem__(self, key: Any) -> Any:
        try:
            return self._types[eval(key)]
        except IndexError:
            head = f"{_function()}: too few inputs"
            raise InvalidType(complain(head, f"{len(self._types)}", f"in_types[{_text(key)}]")) from None


class _Here(threading.local):
    """The function whose inputs this thread checks."""

    label = "type check"


_here = _Here()


def _function() -> str:
    return _here.label


def expect(*claims: Any) -> None:
    """Raise `InvalidType` unless all claims are true. Does nothing when `config.type_check` is off."""
    if not lookup("type_check"):
        return
    for claim in claims:
        if not claim:
            text, values = (claim.text, claim.values) if isinstance(claim, Claim) else (str(claim), "")
            raise InvalidType(complain(f"{_function()}: invalid inputs", values, text))


def expect_broadcast_shapes(*shapes: Value) -> None:
    """Raise `InvalidType` unless the shapes broadcast together."""
    try:
        broadcast_shapes(_function(), [eval(s) for s in shapes])
    except ValueError:
        given = " and ".join(map(repr, shapes))
        raise InvalidType(complain(f"{_function()}: shapes do not broadcast", given)) from None


def expect_float(*types: Type) -> None:
    """Raise `InvalidType` unless all inputs are of a floating type."""
    for t in types:
        if not dtypes.is_float(t.dtype.value):
            expect(Claim(False, f"{t.dtype.text} is floating", _shown(t.dtype.value)))


def argname(in_types: Types, names: Sequence[str]) -> None:
    """Give the inputs the names of the function's arguments, and check that there are as many."""
    expect(in_types.size() == len(names))
    in_types._types = [t.renamed(name) for t, name in zip(in_types, names)]


_argname = argname


def checked(label: str, method: Callable[[Types], Any], types: Sequence[tuple[tuple[int, ...], np.dtype]],
            names: Sequence[str] = ()) -> None:  # fmt: skip
    """Run a check of inputs of the given shapes and dtypes, in the name of a function."""
    before, _here.label = _here.label, label
    try:
        method(Types(types, names))
    finally:
        _here.label = before


def check(function: Any, data: Sequence[Any]) -> None:
    """Run a function's own check of its inputs, if it has one."""
    if type(function).check_type_forward is not _UNCHECKED:
        checked(function.label, function.check_type_forward, [(x.shape, x.dtype) for x in data])


_UNCHECKED: Any = None


def leave_out(method: Any) -> None:
    """Name the method that stands for no check, so that it need not be called."""
    global _UNCHECKED
    _UNCHECKED = method
