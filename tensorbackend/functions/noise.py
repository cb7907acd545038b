# SPDX-License-Identifier: Apache-2.0
"""Functions that draw random numbers."""

from __future__ import annotations

from typing import Any

from tensorbackend.errors import complain
from tensorbackend.function import type_check
from tensorbackend.function.config import lookup
from tensorbackend.function.trees import Rule, uniform
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.graph import composite as o

__all__ = ["dropout"]


def _check(in_types: Any, **params: Any) -> None:
    type_check.expect_float(in_types[0])


def _mask(x: Any, ratio: float) -> Any:
    return o.where(uniform(x) >= ratio, 1.0 / (1.0 - ratio), 0.0)


_DROPOUT = Rule("dropout", lambda x, ratio: x * _mask(x, ratio), None, _check, ("x",))
_MASK = Rule("dropout", lambda x, ratio: o.where(x != x, 0, _mask(x, ratio)), lambda g, y, x, ratio: (None,), _check)
_MASKED = Rule("dropout", lambda x, mask: x * mask, None, _check, ("x", "mask"))


def dropout(x: Any, ratio: float = 0.5, *, mask: Any = None, return_mask: bool = False) -> Any:
    """Elements dropped at probability `ratio`, the others times 1 / (1 - ratio); x as it is when not training.

    `mask` is used as it is if given; with `return_mask` the result is (variable, mask's array). Raises `ValueError` for
    a ratio outside [0, 1).
    """
    if not 0.0 <= ratio < 1.0:
        raise ValueError(complain("dropout: ratio", repr(ratio), "0 or more, and below 1"))
    if not lookup("train") or (ratio == 0.0 and mask is None):
        return (as_variable(x), None) if return_mask else as_variable(x)
    if mask is None and not return_mask:
        return _DROPOUT(x, ratio=ratio)
    mask = _MASK(x, ratio=ratio).array if mask is None else mask
    y: Variable = _MASKED(x, mask)
    return (y, mask) if return_mask else y
