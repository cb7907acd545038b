# SPDX-License-Identifier: Apache-2.0
"""Whole sequences through layers of recurrent units.

Sequences go through a layer as the engine has them, (features, T B): step t of all B in columns t B to (t + 1) B. The
shorter ones are filled up, and keep their state from their end on (backwards: until they begin). LSTMs and GRUs are one
call of the engine for all steps, forward and back; gradients that are to have gradients are those of the same steps by
functions, one by one, as which plain units always run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorbackend.errors import complain
from tensorbackend.function import arrays, type_check
from tensorbackend.function.backprop import grad
from tensorbackend.function.node import FunctionNode
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions import arranging, elementwise, picking, products, shapes
from tensorbackend.functions.activations import relu
from tensorbackend.functions.arguments import Array
from tensorbackend.functions.noise import dropout
from tensorbackend.functions.recurrent import cell
from tensorbackend.graph import composite as o
from tensorbackend.graph import ranges

__all__ = ["n_step_bigru", "n_step_bilstm", "n_step_birnn", "n_step_gru", "n_step_lstm", "n_step_rnn"]

# A step of all sequences: what the input adds up to, the products with the state, the state, and a cell or a bias


def _groups(x: Any, count: int) -> list[Any]:
    """Rows in groups, one for each gate."""
    width = x.shape[0] // count
    return [o.slice(x, (slice(k * width, (k + 1) * width), slice(None))) for k in range(count)]


def _lstm(c: Any, sums: Any, products: Any) -> tuple[Any, Any]:
    i, f, a, out = (x + r for x, r in zip(_groups(sums, 4), _groups(products, 4)))
    new = cell(c, a, i, f)
    return o.sig(out) * o.tanh(new), new


def _gru(h: Any, sums: Any, products: Any, bias: Any) -> Any:
    (xr, xz, xn), (hr, hz, hn) = _groups(sums, 3), _groups(products, 3)
    z = o.sig(xz + hz)
    return (1 - z) * o.tanh(xn + o.sig(xr + hr) * (hn + bias)) + z * h


_LSTM_STEP, _GRU_STEP = Rule("lstm", _lstm), Rule("gru", _gru)

_Step = Callable[..., tuple[Variable, ...]]


def _rnn(activation: Callable[[Any], Variable]) -> _Step:
    return lambda sums, products, h: (activation(sums + products),)


@dataclass(frozen=True)
class _Unit:
    """A kind of units with `gates`, `count` weights in all, and so many `states`. `step(sums, products, h, *others)`
    gives the next state and the others: an LSTM's cell, the bias that a GRU resets with the state. `engine` is what the
    engine calls it, if it does."""

    gates: int
    count: int
    states: int
    step: _Step
    engine: str = ""


_LSTM = _Unit(4, 8, 2, lambda sums, products, h, c: _LSTM_STEP(c, sums, products), "lstm")
_GRU = _Unit(3, 6, 1, lambda sums, products, h, bias: (_GRU_STEP(h, sums, products, bias), bias), "gru")
_PLAIN = {name: _Unit(1, 2, 1, _rnn(function)) for name, function in (("tanh", elementwise.tanh), ("relu", relu))}


@dataclass(frozen=True)
class _Steps:
    """How units go through sequences of these `lengths`: forwards or `backwards`."""

    lengths: tuple[int, ...]
    backwards: bool

    @property
    def count(self) -> int:
        """How many steps there are."""
        return max(self.lengths)

    @property
    def columns(self) -> slice:
        """Where the last state is."""
        first = 0 if self.backwards else (self.count - 1) * len(self.lengths)
        return slice(first, first + len(self.lengths))

    @property
    def ragged(self) -> bool:
        """Whether some are shorter than others."""
        return min(self.lengths) < self.count

    def going(self, t: int) -> np.ndarray:
        """Which sequences have a step t, as a row."""
        return np.array([self.lengths]) > t


def _by_functions(unit: _Unit, steps: _Steps, operands: Sequence[Any]) -> tuple[Variable, ...]:
    """The states of all steps, (D, T B), and the last cells (D, B) of units that have some: step by step."""
    x, w_in, w, bias, h, *others = operands
    sums = shapes.split_axis(products.matmul(w_in, x) + bias, steps.count, 1)
    found, backend = list(sums), arrays.backend_of(h._known())
    for t in range(steps.count)[:: -1 if steps.backwards else 1]:
        new = list(unit.step(sums[t], products.matmul(w, h), h, *others))
        going = steps.going(t)
        if not going.all():
            going = arrays.moved(going, backend)
            for k, before in enumerate([h, *others][: unit.states]):
                new[k] = elementwise.where(going, new[k], before)
        h, *others = new
        found[t] = h
    return shapes.concat(found, 1), *others[: unit.states - 1]


class _ByEngine(FunctionNode):
    """The same by the engine, from (x, W_in, W, bias, h, cell or bias)."""

    def __init__(self, unit: _Unit, steps: _Steps) -> None:
        self._unit, self._steps = unit, steps
        self._made: tuple[Any, ...] = ()

    @property
    def label(self) -> str:
        """The name of the unit."""
        return self._unit.engine

    def check_type_forward(self, in_types: Any) -> None:
        """Floats of one type."""
        type_check.expect_float(*in_types)
        for x in in_types:
            type_check.expect(x.dtype == in_types[1].dtype)

    def _options(self, be: Any) -> dict[str, Any]:
        """What all calls of the engine are told."""
        lengths = None
        if self._steps.ragged:
            lengths = be.array(np.array([self._steps.lengths]), dtype=np.int32)
        return {"num_steps": self._steps.count, "lengths": lengths, "reverse": self._steps.backwards}

    def _run_forward(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        self.retain_inputs(range(len(data)))
        self.retain_outputs((0,))
        x, w_in, w, bias, state, other = map(arrays.tensor_of, data)
        be, width, columns = w.backend, w.shape[1], x.shape[1]
        options = self._options(be)
        h, gates = arrays.fresh(be, (width, columns), w.dtype), arrays.fresh(be, (4 * width, columns), w.dtype)
        if self._unit is _LSTM:
            c = arrays.fresh(be, (width, columns), w.dtype)
            be.compound_lstm_unroll_fprop(w_in, w, bias, x, h, c, gates, h_init=state, c_init=other, **options)
            self._made, outputs = (c, gates), [h, arrays.copied(c[:, self._steps.columns])]
        else:
            be.compound_gru_unroll_fprop(w_in, w, bias, other, x, h, gates, h_init=state, **options)
            self._made, outputs = (gates,), [h]
        return tuple([y._tensor for y in outputs] if type(data[0]) is np.ndarray else outputs)

    def _input_gradients(self, targets: tuple[int, ...], grads: tuple[Any, ...], present: Any, double: bool) -> Any:
        if double:
            operands = self.get_retained_inputs()
            outputs = _by_functions(self._unit, self._steps, operands)
            there = [(y, g) for y, g in zip(outputs, grads) if g is not None]
            found = grad([y for y, _ in there], [operands[i] for i in targets], [as_variable(g) for _, g in there],
                         enable_double_backprop=True)  # fmt: skip
            return tuple(found), False
        data = [node.data for node in self.inputs]
        x, w_in, w, bias, state, other = tensors = [arrays.tensor_of(a) for a in data]
        be, (h,) = w.backend, map(arrays.tensor_of, self._output_data)
        delta, *last = [None if g is None else arrays.tensor_of(g) for g in grads]
        made = [arrays.fresh(be, a.shape, a.dtype) if i in targets else None for i, a in enumerate(tensors)]
        outputs = dict(zip(("dx", "dW_in", "dW_recur", "dbias", "dh_init"), made))
        options = self._options(be) | outputs
        delta = arrays.zeros(be, h.shape, h.dtype) if delta is None else delta
        if self._unit is _LSTM:
            be.compound_lstm_unroll_bprop(w_in, w, x, h, *self._made, delta, h_init=state, c_init=other,
                                          dc_init=made[5], dc_last=last[0], **options)  # fmt: skip
        else:
            be.compound_gru_unroll_bprop(w_in, w, x, h, *self._made, delta, h_init=state, dbias_recur=made[5],
                                         **options)  # fmt: skip
        host = type(data[0]) is np.ndarray
        return tuple([made[i]._tensor if host else made[i] for i in targets]), False


def _layer(unit: _Unit, steps: _Steps, x: Variable, states: Sequence[Variable], w: Sequence[Any],
           b: Sequence[Any]) -> tuple[Variable, list[Variable]]:  # fmt: skip
    """One layer in one direction: the outputs (D, T B), and the last states (B, D)."""
    n, width = unit.gates, w[-1].shape[0]
    data = as_variable(w[-1])._known()
    none = arrays.zeros(arrays.backend_of(data), (width,), data.dtype)
    biases = [none if x is None else x for x in b]
    others = [shapes.transpose(s) for s in states]
    if unit is _GRU:  # the bias behind the reset
        others.append(shapes.reshape(biases.pop(), (width, 1)))
        biases.append(none)
    bias = shapes.concat([p + q for p, q in zip(map(as_variable, biases[:n]), biases[n:])], 0)
    operands = (x, shapes.concat(w[:n], 0), shapes.concat(w[n:], 0), shapes.reshape(bias, (n * width, 1)), *others)
    outputs, *cells = _ByEngine(unit, steps).apply(operands) if unit.engine else _by_functions(unit, steps, operands)
    last = [picking.get_item(outputs, (slice(None), steps.columns)), *cells]
    return outputs, [shapes.transpose(s) for s in last]


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


def _plain(name: str, activation: str) -> _Unit:
    """Units without gates. Raises `ValueError` for an activation that is neither."""
    if activation not in _PLAIN:
        raise ValueError(complain(f"{name}: activation", repr(activation), "'tanh' or 'relu'"))
    return _PLAIN[activation]


def _n_step(name: str, unit: _Unit, n_layers: int, ratio: float, states: list[Any], ws: Any, bs: Any,
            xs: Sequence[Any], directions: int = 1) -> tuple[list[Variable], list[Variable]]:  # fmt: skip
    """All layers: the last states (layers × directions, B, D), and the last layer's outputs for each sequence."""
    ranges.check(name, "0 or more, and below 1", dropout_ratio=ratio)
    _check_n_step(name, unit.count, n_layers, directions, states, ws, bs, xs)
    lengths, width = tuple([x.shape[0] for x in xs]), directions * states[0].shape[2]
    count, sequences = max(lengths, default=0), len(xs)
    if not count:
        data = [as_variable(x)._known() for x in xs]
        empty = [arrays.zeros(arrays.backend_of(a), (0, width), a.dtype) for a in data]
        return [elementwise.identity(s) for s in states], list(map(as_variable, empty))
    x = shapes.stack(xs) if min(lengths) == count else arranging.pad_sequence(xs)
    x = shapes.reshape(shapes.transpose(x, (2, 1, 0)), (x.shape[2], count * sequences))
    last: list[list[Variable]] = [[] for _ in states]
    for layer in range(n_layers):
        x, found = dropout(x, ratio) if layer else x, []
        for direction in range(directions):
            k = layer * directions + direction
            steps = _Steps(lengths, direction == 1)
            outputs, new = _layer(unit, steps, x, [picking.get_item(s, k) for s in states], ws[k], bs[k])
            found.append(outputs)
            for kept, s in zip(last, new):
                kept.append(s)
        x = found[0] if directions == 1 else shapes.concat(found, 0)
    ys = shapes.separate(shapes.transpose(shapes.reshape(x, (width, count, sequences)), (2, 1, 0)))
    outs = [y if n == count else picking.get_item(y, slice(n)) for y, n in zip(ys, lengths)]
    return [shapes.stack(kept) for kept in last], outs


def n_step_lstm(n_layers: int, dropout_ratio: float, hx: Array, cx: Array, ws: Sequence[Sequence[Array]],
                bs: Sequence[Sequence[Array]], xs: Sequence[Array]) -> tuple:  # fmt: skip
    """(hy, cy, ys): sequences `xs` of (length, features) through layers of LSTMs, which take as long as if all were as
    long as the longest.

    hx and cx (layers, B, D) are the states before. `ws` and `bs` hold for each layer eight weights (D, inputs or D) and
    biases (D,): of the input for the gates i, f, a, o, then of the state. Between layers there is dropout. hy and cy
    are the states after, `ys` the last layer's outputs, (length, D) for each sequence. Raises `ValueError` for other
    shapes and other numbers of weights.
    """
    (hy, cy), ys = _n_step("n_step_lstm", _LSTM, n_layers, dropout_ratio, [hx, cx], ws, bs, xs)
    return hy, cy, ys


def n_step_bilstm(n_layers: int, dropout_ratio: float, hx: Array, cx: Array, ws: Sequence[Sequence[Array]],
                  bs: Sequence[Sequence[Array]], xs: Sequence[Array]) -> tuple:  # fmt: skip
    """As `n_step_lstm`, with a second LSTM in each layer that runs backwards: states and weights are twice as many, a
    layer's forward one first, and outputs (length, 2D)."""
    (hy, cy), ys = _n_step("n_step_bilstm", _LSTM, n_layers, dropout_ratio, [hx, cx], ws, bs, xs, 2)
    return hy, cy, ys


def n_step_gru(n_layers: int, dropout_ratio: float, hx: Array, ws: Sequence[Sequence[Array]],
               bs: Sequence[Sequence[Array]], xs: Sequence[Array]) -> tuple:  # fmt: skip
    """(hy, ys): as `n_step_lstm`, of gated recurrent units (Cho et al. 2014, with the reset behind the product): six
    weights and biases a layer, of the input for r, z and the new state, then of the state."""
    (hy,), ys = _n_step("n_step_gru", _GRU, n_layers, dropout_ratio, [hx], ws, bs, xs)
    return hy, ys


def n_step_bigru(n_layers: int, dropout_ratio: float, hx: Array, ws: Sequence[Sequence[Array]],
                 bs: Sequence[Sequence[Array]], xs: Sequence[Array]) -> tuple:  # fmt: skip
    """As `n_step_gru`, in both directions, as `n_step_bilstm`."""
    (hy,), ys = _n_step("n_step_bigru", _GRU, n_layers, dropout_ratio, [hx], ws, bs, xs, 2)
    return hy, ys


def n_step_rnn(n_layers: int, dropout_ratio: float, hx: Array, ws: Sequence[Sequence[Array]],
               bs: Sequence[Sequence[Array]], xs: Sequence[Array], activation: str = "tanh") -> tuple:  # fmt: skip
    """(hy, ys): as `n_step_lstm`, of plain units with 'tanh' or 'relu': two weights and biases a layer, of the input
    and of the state. Raises `ValueError` for another activation."""
    unit = _plain("n_step_rnn", activation)
    (hy,), ys = _n_step("n_step_rnn", unit, n_layers, dropout_ratio, [hx], ws, bs, xs)
    return hy, ys


def n_step_birnn(n_layers: int, dropout_ratio: float, hx: Array, ws: Sequence[Sequence[Array]],
                 bs: Sequence[Sequence[Array]], xs: Sequence[Array], activation: str = "tanh") -> tuple:  # fmt: skip
    """As `n_step_rnn`, in both directions, as `n_step_bilstm`."""
    unit = _plain("n_step_birnn", activation)
    (hy,), ys = _n_step("n_step_birnn", unit, n_layers, dropout_ratio, [hx], ws, bs, xs, 2)
    return hy, ys
