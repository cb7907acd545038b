# SPDX-License-Identifier: Apache-2.0
"""Numbers within bounds: what functions, links, initializers and optimizers ask of the numbers that they are given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from tensorbackend.errors import complain
from tensorbackend.graph.symbol import known

__all__ = ["RANGES", "Ranged", "check", "check_bounds", "check_named"]

RANGES: dict[str, Callable[[Any], bool]] = {
    "a number": lambda x: True,
    "a number, not NaN": lambda x: x == x,
    "a finite number": lambda x: -math.inf < x < math.inf,
    "a finite number, not 0": lambda x: x != 0 and -math.inf < x < math.inf,
    "0 or more": lambda x: x >= 0,
    "0 or more, and finite": lambda x: 0 <= x < math.inf,
    "above 0": lambda x: x > 0,
    "above 0, and finite": lambda x: 0 < x < math.inf,
    "0 to 1": lambda x: 0 <= x <= 1,
    "0 or more, and below 1": lambda x: 0 <= x < 1,
    "an int": lambda x: _is_int(x),
    "an int of 0 or more": lambda x: _is_int(x) and x >= 0,
    "an int of 1 or more": lambda x: _is_int(x) and x >= 1,
}
"""What may be expected, as messages say it, and what holds then."""


def check(name: str, expected: str, **numbers: Any) -> None:
    """Raise `ValueError` for a number that is not what `RANGES` calls `expected`, `TypeError` for what is no number.

    Of a symbol the value counts that it had when its program was captured. Where no int is asked for,
    arrays, tensors and trees pass, and are not read.
    """
    for label, given in numbers.items():
        if not _is_number(known(given)):
            if not hasattr(given, "dtype") or expected.startswith("an int"):
                raise TypeError(complain(f"{name}: {label}", type(given).__name__, "a number"))
        elif not RANGES[expected](known(given)):
            raise ValueError(complain(f"{name}: {label}", repr(given), expected))


def check_bounds(name: str, low: Any, high: Any) -> None:
    """Raise `ValueError` for a lower bound that is NaN or above the higher one. Symbols and arrays are as in `check`,
    and None is no bound."""
    found = [known(x) for x in (low, high) if _is_number(known(x))]
    if any(x != x for x in found) or (len(found) == 2 and found[0] > found[1]):
        raise ValueError(complain(f"{name}: bounds", f"{low} and {high}", "a lower one, then a higher one"))


def _is_int(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, np.generic))


class Ranged:
    """An object whose attributes that `ranges` names are checked whenever they are set: by its class, or by a user."""

    ranges: ClassVar[dict[str, str]] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        check_named(type(self), name, value)
        super().__setattr__(name, value)


def check_named(owner: type, name: str, value: Any) -> None:
    """Check a number by what the `ranges` of a class say of its name; of a name that they lack nothing is asked."""
    expected = owner.ranges.get(name)
    if expected is not None:
        check(owner.__name__, expected, **{name: value})
