# SPDX-License-Identifier: Apache-2.0
"""What functions take: the words that their signatures say it by, and refusals of calls that do not fit them.

A call that goes well pays for this only where it passes flags. One that fails by an error that is none of this
package's is looked through: the first argument that is not what the signature says is named in place of the error.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend.errors import complain, is_complaint, ours
from tensorbackend.function.arrays import is_array
from tensorbackend.function.variable import Variable
from tensorbackend.graph.optree import OPERAND
from tensorbackend.graph.symbol import known

__all__ = ["Array", "Axis", "Sizes", "Variables", "explained", "look_through"]

Array = Any
"""An operand: a NumPy array, a tensor, an expression of tensors or a variable; of many functions also a number."""

Axis = int | tuple[int, ...] | None
"""One axis, several, or None for all."""

Sizes = Any
"""An int, or several, one for each axis."""

Variables = Any
"""A list of variables, or one."""


def _is_int(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _are_ints(x: Any) -> bool:
    if isinstance(x, np.ndarray):
        return x.dtype.kind in "iu"
    return isinstance(x, (list, tuple)) and all(map(_is_int, x))


def _is_operand(x: Any) -> bool:
    if isinstance(x, (np.ndarray, np.generic)):
        return x.dtype.kind not in "OSUmM" and x.dtype.names is None
    return isinstance(x, Variable) or is_array(x)


def _is_operand_or_number(x: Any) -> bool:
    return _is_operand(x) or isinstance(x, (bool, int, float))


def _are_operands(x: Any) -> bool:
    return (_is_operand(x) and len(x.shape) > 0) or (isinstance(x, (list, tuple)) and all(map(_is_operand, x)))


def _are_lists_of_operands(x: Any) -> bool:
    return isinstance(x, (list, tuple)) and all(map(_are_operands, x))


def _are_variables(x: Any) -> bool:
    return isinstance(x, Variable) or (isinstance(x, (list, tuple)) and all(isinstance(v, Variable) for v in x))


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, np.integer, np.floating))


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "Array": ("a NumPy array, a tensor or a variable", _is_operand_or_number),
    "Sequence[Array]": ("a list of arrays or variables", _are_operands),
    "Sequence[Sequence[Array]]": ("a list of lists of arrays or variables", _are_lists_of_operands),
    "Variables": ("a list of variables", _are_variables),
    "Callable": ("a function", callable),
    "Axis": ("an axis, a tuple of axes or None", lambda x: x is None or _is_int(x) or _are_ints(x)),
    "Sizes": ("an int, or a tuple of ints", lambda x: _is_int(x) or _are_ints(x)),
    "Sequence[int]": ("a tuple of ints", _are_ints),
    "tuple[int, ...]": ("a tuple of ints", _are_ints),
    "int | Sequence[int]": ("an int, or a tuple of ints", lambda x: _is_int(x) or _are_ints(x)),
    "int": ("an int", _is_int),
    "float": ("a number", _is_number),
    "str": ("a text", lambda x: isinstance(x, str)),
    "bool": ("True or False", lambda x: isinstance(x, (bool, np.bool_)) or (_is_int(x) and x in (0, 1))),
}
"""The words of signatures, how messages say them, and what holds then. `| None` may follow; of others nothing is
asked."""

NAMELESS = ("Variable: ", "dtype: ")
"""How complaints begin that know the array and not whose it is."""

MOST_SHOWN = 200
"""Characters of what was given that a message shows."""


def explained(function: Callable[..., Any], module: str = "") -> Callable[..., Any]:
    """A public function that names the argument that does not fit its signature; `module` is where it is public, if
    that is not where it is defined.

    Flags are looked at in every call, since any object has a truth value: `keepdims="no"` would be True. Raises
    `TypeError`.
    """
    signature = inspect.signature(function)
    names = [*signature.parameters]
    flags = {name for name, p in signature.parameters.items() if p.annotation == "bool"}
    first = min(map(names.index, flags), default=len(names))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if flags and (kwargs or len(args) > first):
            given = {**dict(zip(names, args)), **kwargs} if len(args) > first else kwargs
            for name in flags.intersection(given):
                if given[name] is not True and given[name] is not False:
                    _check(function.__name__, name, "bool", given[name])
        try:
            return function(*args, **kwargs)
        except Exception as error:
            text = str(error)
            nameless = not is_complaint(error) or text.startswith(NAMELESS) or OPERAND in text
            if nameless and ours(error):
                look_through(function.__name__, signature, args, kwargs)
            raise

    call.__module__ = module or function.__module__
    return call


def look_through(function: str, signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse the first argument that is not what the signature says; if there is none, the first number in place of an
    array, which many functions take and this one failed at. Arguments that Python refuses are left to its own error."""
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return
    found = []
    for name, value in bound.items():
        p = signature.parameters[name]
        found += [(name, p.annotation, x) for x in (value if p.kind is p.VAR_POSITIONAL else (value,))]
    for name, annotation, value in found:
        _check(function, name, annotation, value)
    for name, annotation, value in found:
        if annotation.startswith("Array") and value is not None:
            _check(function, name, annotation, value, numbers=False)


def _check(function: str, name: str, annotation: str, value: Any, numbers: bool = True) -> None:
    wanted = annotation.removesuffix(" | None")
    expected, holds = KINDS.get("Callable" if wanted.startswith("Callable") else wanted, ("", None))
    value = known(value)
    if holds is None or (value is None and wanted != annotation) or holds(value):
        if numbers or not isinstance(value, (bool, int, float, np.generic)):
            return
    kind = type(value).__name__
    given = f"{kind} of shape {value.shape}" if is_array(value) else f"{kind} {value!r}"[:MOST_SHOWN]
    raise TypeError(complain(f"{function}: {name}", given, expected + " or None" * (wanted != annotation))) from None
