# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of captured programs: nested tuples, lists and dictionaries, as leaves and a form.

A leaf is a tensor or a number; all else is part of the form, and must be the same in each call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tensorbackend.errors import complain
from tensorbackend.graph.optree import OpTreeNode
from tensorbackend.graph.symbol import is_symbol
from tensorbackend.graph.tensor import Tensor

__all__ = ["TENSOR", "flatten", "holds_objects", "rebuild"]

TENSOR = "tensor"
_PLAIN = (bool, str, bytes, type(None), np.bool_)


class _Same:
    """A part of a form that is no leaf: equal to its like."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return False
        x, y = self.value, other.value
        return x is y or (type(x) is type(y) and self.is_plain and x == y)

    __hash__ = None

    @property
    def is_plain(self) -> bool:
        """Whether its like may be another object."""
        return isinstance(self.value, _PLAIN)

    def __repr__(self) -> str:
        return repr(self.value) if self.is_plain else f"<{type(self.value).__name__} at {id(self.value):#x}>"


def flatten(x: Any, leaves: list[Any]) -> Any:
    """The form of a value; its tensors and numbers are appended to `leaves`.

    Raises `TypeError` for host arrays and op-trees, which are neither tensors nor the same in each call.
    """
    if isinstance(x, Tensor):
        leaves.append(x)
        return TENSOR
    kind = type(x)
    if kind is int or kind is float or is_symbol(x) or (isinstance(x, np.generic) and not isinstance(x, np.bool_)):
        leaves.append(x)
        return x.__class__
    if isinstance(x, (tuple, list)):
        return (kind, *(flatten(part, leaves) for part in x))
    if isinstance(x, dict):
        return (kind, tuple(x), *(flatten(part, leaves) for part in x.values()))
    if isinstance(x, (np.ndarray, OpTreeNode)):
        hint = "be.array(x)" if isinstance(x, np.ndarray) else "be.evaluate(x)"
        raise TypeError(complain("capture: arguments and results", kind.__name__, "tensors and numbers", hint))
    return _Same(x)


def holds_objects(form: Any) -> bool:
    """Whether a form holds what must be the very same object in each call."""
    if isinstance(form, _Same):
        return not form.is_plain
    return isinstance(form, tuple) and any(map(holds_objects, form[1:]))


def rebuild(form: Any, leaf: Callable[[], Any]) -> Any:
    """The value of a form, whose leaves are what `leaf` gives one after the other."""
    if isinstance(form, _Same):
        return form.value
    if not isinstance(form, tuple):
        return leaf()
    kind, *parts = form
    if issubclass(kind, dict):
        keys, *parts = parts
        made = OrderedDict if issubclass(kind, OrderedDict) else dict
        return made(zip(keys, (rebuild(part, leaf) for part in parts)))
    values = [rebuild(part, leaf) for part in parts]
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def names(form: Any, at: str) -> Iterator[str]:
    """What the leaves of a form are called, as `argument 0[1]`."""
    if isinstance(form, _Same):
        return
    if not isinstance(form, tuple):
        yield at
        return
    kind, *parts = form
    keys = range(len(parts))
    if issubclass(kind, dict):
        keys, *parts = parts
    for key, part in zip(keys, parts):
        yield from names(part, f"{at}[{key!r}]")
