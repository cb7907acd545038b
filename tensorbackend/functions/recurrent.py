# SPDX-License-Identifier: Apache-2.0
"""Steps of recurrent networks, and whole sequences in layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorbackend.errors import complain
from tensorbackend.function import arrays, type_check
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions import arranging, picking, shapes
from tensorbackend.functions.activations import relu
from tensorbackend.functions.arguments import Array
from tensorbackend.functions.elementwise import tanh
from tensorbackend.functions.noise import dropout
from tensorbackend.functions.products import linear
from tensorbackend.graph import composite as o
from tensorbackend.graph import ranges

__all__ = [
    "lstm", "n_step_bigru", "n_step_bilstm", "n_step_birnn", "n_step_gru", "n_step_lstm", "n_step_rnn", "slstm",
    "tree_lstm",
]  # fmt: skip

# One step


def _gate(x: Any, k: int) -> Any:
    """Gate k of four that are interleaved: (N, 4D) seen as (N, D, 4)."""
    n, width = x.shape
    return o.drop_axes(o.slice(o.reshape(x, (n, width // 4, 4)), (slice(None), slice(None), slice(k, k + 1))), 2)


def _cell(c: Any, *parts: Any) -> Any:
    a, i, f = parts
    return o.tanh(a) * o.sig(i) + o.sig(f) * c


def _lstm(c: Any, x: Any) -> tuple[Any, Any]:
    a, i, f, out = (_gate(x, k) for k in range(4))
    new = _cell(c, a, i, f)
    return new, o.sig(out) * o.tanh(new)


def _slstm(c1: Any, c2: Any, x1: Any, x2: Any) -> tuple[Any, Any]:
    a1, i1, f1, o1 = (_gate(x1, k) for k in range(4))
    a2, i2, f2, o2 = (_gate(x2, k) for k in range(4))
    new = _cell(c1, a1, i1, f1) + _cell(c2, a2, i2, f2)
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


# Sequences, in layers

Step = Callable[[list[Variable], Any, Sequence[Any], Sequence[Any]], list[Variable]]


def _lstm_step(state: list[Variable], x: Any, w: Sequence[Any], b: Sequence[Any]) -> list[Variable]:
    h, c = state
    i, f, a, out = (linear(x, w[k], b[k]) + linear(h, w[k + 4], b[k + 4]) for k in range(4))
    c, h = _GATES(c, a, i, f, out)
    return [h, c]


def _gates(c: Any, a: Any, i: Any, f: Any, out: Any) -> tuple[Any, Any]:
    new = _cell(c, a, i, f)
    return new, o.sig(out) * o.tanh(new)


def _gru(h: Any, xr: Any, xz: Any, xn: Any, hr: Any, hz: Any, hn: Any) -> Any:
    z = o.sig(xz + hz)
    return (1 - z) * o.tanh(xn + o.sig(xr + hr) * hn) + z * h


_GATES = Rule("lstm", _gates)
_GRU = Rule("gru", _gru)


def _gru_step(state: list[Variable], x: Any, w: Sequence[Any], b: Sequence[Any]) -> list[Variable]:
    (h,) = state
    return [_GRU(h, *(linear(x, w[k], b[k]) for k in range(3)), *(linear(h, w[k], b[k]) for k in range(3, 6)))]


def _rnn_step(name: str, activation: str) -> Step:
    function = {"tanh": tanh, "relu": relu}.get(activation)
    if function is None:
        raise ValueError(complain(f"{name}: activation", repr(activation), "'tanh' or 'relu'"))

    def step(state: list[Variable], x: Any, w: Sequence[Any], b: Sequence[Any]) -> list[Variable]:
        return [function(linear(x, w[0], b[0]) + linear(state[0], w[1], b[1]))]

    return step


def _run(step: Step, states: list[Any], w: Sequence[Any], b: Sequence[Any], steps: Sequence[Any],
         backwards: bool) -> tuple[list[Variable], list[Variable]]:  # fmt: skip
    """One layer in one direction: the last states, and the output of each step. Sequences that have ended, or have not
    begun, keep their state."""
    states, outputs = [as_variable(s) for s in states], []
    for x in reversed(steps) if backwards else steps:
        going = [shapes.split_axis(s, [x.shape[0]], 0) for s in states]
        new = step([parts[0] for parts in going], x, w, b)
        outputs.append(new[0])
        states = [shapes.concat([s, parts[1]], 0) for s, parts in zip(new, going)]
    return states, outputs[::-1] if backwards else outputs


def _check_n_step(name: str, count: int, n_layers: int, directions: int, states: list[Any],
                  ws: Sequence[Sequence[Array]], bs: Sequence[Sequence[Array]],
                  xs: Sequence[Any]) -> None:  # fmt: skip
    """Raise `ValueError` for what is no input of layers with `count` weights and biases each."""
    layers, given = n_layers * directions, [tuple(s.shape) for s in states]
    width = given[0][-1] if given[0] else 0
    if n_layers < 1 or not len(ws) == len(bs) == layers or any(s != (layers, len(xs), width) for s in given):
        found = f"states of {given}, {len(ws)} and {len(bs)} sets of weights and biases, {len(xs)} sequences"
        expected = f"{layers} sets and states ({layers}, {len(xs)}, D)" if n_layers > 0 else "1 or more"
        raise ValueError(complain(f"{name}: {n_layers} layers", found, expected))
    sizes = [tuple(x.shape) for x in xs]
    if any(len(size) != 2 or size[1] != sizes[0][1] for size in sizes):
        raise ValueError(complain(f"{name}: sequences", f"{sizes}", "(length, features), as many features in all"))
    for k, (w, b) in enumerate(zip(ws, bs)):
        features = directions * width if k >= directions else sizes[0][1] if sizes else None
        weights, biases = [tuple(x.shape) for x in w], [(width,) if x is None else tuple(x.shape) for x in b]
        features = features if features is not None or not weights else weights[0][-1]
        wanted = [(width, features)] * (count // 2) + [(width, width)] * (count // 2)
        if weights != wanted or biases != [(width,)] * count:
            expected = f"weights {wanted}, {count} biases {(width,)}"
            raise ValueError(complain(f"{name}: layer {k}", f"weights {weights}, biases {biases}", expected))


def _n_step(name: str, step: Step, count: int, n_layers: int, ratio: float, states: list[Any],
            ws: Any, bs: Any, xs: Sequence[Any],
            directions: int = 1) -> tuple[list[Variable], list[Variable]]:  # fmt: skip
    """All layers: the last states (layers × directions, B, D), and the last layer's outputs for each sequence."""
    ranges.check(name, "0 or more, and below 1", dropout_ratio=ratio)
    _check_n_step(name, count, n_layers, directions, states, ws, bs, xs)
    order = sorted(range(len(xs)), key=lambda i: -xs[i].shape[0])
    if order != sorted(order):
        states = [arranging.permutate(s, order, 1) for s in states]
        found = _n_step(name, step, count, n_layers, ratio, states, ws, bs, [xs[i] for i in order], directions)
        back = sorted(order, key=order.__getitem__)
        return [arranging.permutate(s, back, 1) for s in found[0]], [found[1][i] for i in back]
    steps = list(arranging.transpose_sequence(xs))
    last: list[list[Variable]] = [[] for _ in states]
    for layer in range(n_layers):
        steps = [dropout(x, ratio) for x in steps] if layer else steps
        found = []
        for direction in range(directions):
            k = layer * directions + direction
            new, outputs = _run(step, [picking.get_item(s, k) for s in states], ws[k], bs[k], steps, direction == 1)
            found.append(outputs)
            for kept, s in zip(last, new):
                kept.append(s)
        steps = found[0] if directions == 1 else [shapes.concat(pair, 1) for pair in zip(*found)]
    ys = list(arranging.transpose_sequence(steps))
    for x in xs[len(ys) :]:  # sequences without steps
        data = as_variable(x)._known()
        ys.append(as_variable(arrays.zeros(arrays.backend_of(data), (0, directions * states[0].shape[2]), data.dtype)))
    return [shapes.stack(kept) for kept in last], ys


def n_step_lstm(n_layers: int, dropout_ratio: float, hx: Array, cx: Array, ws: Sequence[Sequence[Array]],
                bs: Sequence[Sequence[Array]], xs: Sequence[Array]) -> tuple:  # fmt: skip
    """(hy, cy, ys): sequences `xs` of (length, features) through layers of LSTMs; the longest first saves sorting them.

    hx and cx (layers, B, D) are the states before. `ws` and `bs` hold for each layer eight weights (D, inputs or D) and
    biases (D,): of the input for the gates i, f, a, o, then of the state. Between layers there is dropout. hy and cy
    are the states after, `ys` the last layer's outputs, (length, D) for each sequence. Raises `ValueError` for other
    shapes and other numbers of weights.
    """
    (hy, cy), ys = _n_step("n_step_lstm", _lstm_step, 8, n_layers, dropout_ratio, [hx, cx], ws, bs, xs)
    return hy, cy, ys


def n_step_bilstm(n_layers: int, dropout_ratio: float, hx: Array, cx: Array, ws: Sequence[Sequence[Array]],
                  bs: Sequence[Sequence[Array]], xs: Sequence[Array]) -> tuple:  # fmt: skip
    """As `n_step_lstm`, with a second LSTM in each layer that runs backwards: states and weights are twice as many, a
    layer's forward one first, and outputs (length, 2D)."""
    (hy, cy), ys = _n_step("n_step_bilstm", _lstm_step, 8, n_layers, dropout_ratio, [hx, cx], ws, bs, xs, 2)
    return hy, cy, ys


def n_step_gru(n_layers: int, dropout_ratio: float, hx: Array, ws: Sequence[Sequence[Array]],
               bs: Sequence[Sequence[Array]], xs: Sequence[Array]) -> tuple:  # fmt: skip
    """(hy, ys): as `n_step_lstm`, of gated recurrent units (Cho et al. 2014, with the reset behind the product): six
    weights and biases a layer, of the input for r, z and the new state, then of the state."""
    (hy,), ys = _n_step("n_step_gru", _gru_step, 6, n_layers, dropout_ratio, [hx], ws, bs, xs)
    return hy, ys


def n_step_bigru(n_layers: int, dropout_ratio: float, hx: Array, ws: Sequence[Sequence[Array]],
                 bs: Sequence[Sequence[Array]], xs: Sequence[Array]) -> tuple:  # fmt: skip
    """As `n_step_gru`, in both directions, as `n_step_bilstm`."""
    (hy,), ys = _n_step("n_step_bigru", _gru_step, 6, n_layers, dropout_ratio, [hx], ws, bs, xs, 2)
    return hy, ys


def n_step_rnn(n_layers: int, dropout_ratio: float, hx: Array, ws: Sequence[Sequence[Array]],
               bs: Sequence[Sequence[Array]], xs: Sequence[Array], activation: str = "tanh") -> tuple:  # fmt: skip
    """(hy, ys): as `n_step_lstm`, of plain units with 'tanh' or 'relu': two weights and biases a layer, of the input
    and of the state. Raises `ValueError` for another activation."""
    step = _rnn_step("n_step_rnn", activation)
    (hy,), ys = _n_step("n_step_rnn", step, 2, n_layers, dropout_ratio, [hx], ws, bs, xs)
    return hy, ys


def n_step_birnn(n_layers: int, dropout_ratio: float, hx: Array, ws: Sequence[Sequence[Array]],
                 bs: Sequence[Sequence[Array]], xs: Sequence[Array], activation: str = "tanh") -> tuple:  # fmt: skip
    """As `n_step_rnn`, in both directions, as `n_step_bilstm`."""
    step = _rnn_step("n_step_birnn", activation)
    (hy,), ys = _n_step("n_step_birnn", step, 2, n_layers, dropout_ratio, [hx], ws, bs, xs, 2)
    return hy, ys
