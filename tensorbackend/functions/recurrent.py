# SPDX-License-Identifier: Apache-2.0
"""Steps of recurrent networks."""

from __future__ import annotations

from typing import Any

from tensorbackend.errors import complain
from tensorbackend.function import type_check
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable
from tensorbackend.functions import shapes
from tensorbackend.functions.arguments import Array
from tensorbackend.graph import composite as o

__all__ = ["lstm", "slstm", "tree_lstm"]


def _gate(x: Any, k: int) -> Any:
    """Gate k of four that are interleaved: (N, 4D) seen as (N, D, 4)."""
    n, width = x.shape
    return o.drop_axes(o.slice(o.reshape(x, (n, width // 4, 4)), (slice(None), slice(None), slice(k, k + 1))), 2)


def cell(c: Any, a: Any, i: Any, f: Any) -> Any:
    """The next cell of an LSTM."""
    return o.tanh(a) * o.sig(i) + o.sig(f) * c


def _lstm(c: Any, x: Any) -> tuple[Any, Any]:
    a, i, f, out = (_gate(x, k) for k in range(4))
    new = cell(c, a, i, f)
    return new, o.sig(out) * o.tanh(new)


def _slstm(c1: Any, c2: Any, x1: Any, x2: Any) -> tuple[Any, Any]:
    a1, i1, f1, o1 = (_gate(x1, k) for k in range(4))
    a2, i2, f2, o2 = (_gate(x2, k) for k in range(4))
    new = cell(c1, a1, i1, f1) + cell(c2, a2, i2, f2)
    return new, o.sig(o1 + o2) * o.tanh(new)


def _tree_lstm(*operands: Any) -> tuple[Any, Any]:
    *cells, x = operands
    width = cells[0].shape[1]
    a, i, out, *forget = (o.slice(x, (slice(None), slice(k * width, (k + 1) * width))) for k in range(3 + len(cells)))
    new = o.tanh(a) * o.sig(i)
    for f, c in zip(forget, cells):
        new = new + o.sig(f) * c
    return new, o.sig(out) * o.tanh(new)


def _check_gates(in_types: Any) -> None:
    cells, inputs = in_types[: len(in_types) // 2], in_types[len(in_types) // 2 :]
    type_check.expect_float(*in_types)
    for c, x in zip(cells, inputs):
        width = type_check.make_variable(4 * c.shape.value[1] if c.ndim.value == 2 else -1, "4 * c.shape[1]")
        type_check.expect(c.ndim == 2, x.ndim == 2, c.shape[0] == x.shape[0], x.shape[1] == width, c.dtype == x.dtype)


def _check_tree(in_types: Any) -> None:
    *cells, x = in_types
    type_check.expect_float(*in_types)
    type_check.expect(x.ndim == 2)
    for c in cells:
        type_check.expect(c.ndim == 2, c.shape == cells[0].shape, c.shape[0] == x.shape[0])
    width = type_check.make_variable((3 + len(cells)) * cells[0].shape.value[1], f"{3 + len(cells)} * c.shape[1]")
    type_check.expect(x.shape[1] == width)


_LSTM = Rule("lstm", _lstm, None, _check_gates, ("c", "x"))
_SLSTM = Rule("slstm", _slstm, None, _check_gates, ("c1", "c2", "x1", "x2"))
_TREE_LSTM = Rule("tree_lstm", _tree_lstm, None, _check_tree)


def lstm(c_prev: Array, x: Array) -> tuple[Variable, Variable]:
    """(cell, output) after a step of an LSTM (Hochreiter and Schmidhuber 1997; Gers et al. 2000): c' = tanh(a) sig(i) +
    sig(f) c, h = sig(o) tanh(c'), with the gates a, i, f, o interleaved in x (N, 4D), seen as (N, D, 4).

    x may have fewer rows than `c_prev` (sequences that have ended): the cells of the others stay, and are not output.
    """
    if len(x.shape) != 2 or len(c_prev.shape) != 2 or x.shape[0] == c_prev.shape[0]:
        return _LSTM(c_prev, x)
    going, over = shapes.split_axis(c_prev, [x.shape[0]], 0)
    c, h = _LSTM(going, x)
    return shapes.concat([c, over], 0), h


def slstm(c_prev1: Array, c_prev2: Array, x1: Array, x2: Array) -> tuple[Variable, Variable]:
    """(cell, output) of an LSTM with two branches of a tree (Zhu et al. 2015): each has a cell (N, D) and gates (N, 4D)
    as `lstm`; the cells add up, and so do the output gates."""
    return _SLSTM(c_prev1, c_prev2, x1, x2)


def tree_lstm(*inputs: Array) -> tuple[Variable, Variable]:
    """(cell, output) of an N-ary tree LSTM (Tai et al. 2015): cells c1 … cn (N, D), then x (N, (3 + n) D), the gates
    a, i, o, f1 … fn one after the other. Raises `ValueError` without a cell."""
    if len(inputs) < 2:
        raise ValueError(complain("tree_lstm", f"{len(inputs)} arrays", "cells, and the gates last"))
    return _TREE_LSTM(*inputs)
