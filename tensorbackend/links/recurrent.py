# SPDX-License-Identifier: Apache-2.0
"""Recurrent links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tensorbackend import functions as F
from tensorbackend.errors import complain
from tensorbackend.function import arrays
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions.arguments import Array
from tensorbackend.graph import ranges
from tensorbackend.links.basic import Linear
from tensorbackend.links.link import Chain, ChainList, Link

__all__ = [
    "GRU", "LSTM", "NStepBiGRU", "NStepBiLSTM", "NStepBiRNNReLU", "NStepBiRNNTanh", "NStepGRU", "NStepLSTM",
    "NStepRNNReLU", "NStepRNNTanh", "StatelessLSTM",
]  # fmt: skip


def _zeros(x: Any, width: int) -> Variable:
    """A state of zeros for a batch."""
    data = as_variable(x)._known()
    return as_variable(arrays.zeros(arrays.backend_of(data), (data.shape[0], width), data.dtype))


def _there(state: Any, device: Any) -> Any:
    """A state on a device, with its history; None stays None."""
    return state if state is None or as_variable(state).device is device else F.copy(state, device)


class StatelessLSTM(Chain):
    """A step of long short-term memory: (c, h, x) → (c', h'). The forget gates start with a bias of 1.

    Raises `TypeError` without a size of the state, `ValueError` for one that is no int of 0 or more.
    """

    def __init__(self, in_size: int | None, out_size: int | None = None, forget_bias: float = 1.0) -> None:
        super().__init__()
        in_size, out_size = (None, in_size) if out_size is None else (in_size, out_size)
        if out_size is None:
            raise TypeError(complain(f"{type(self).__name__}: out_size", "None", "how many units there are"))
        ranges.check(type(self).__name__, "an int of 0 or more", out_size=out_size)
        self.state_size = out_size
        with self.init_scope():
            self.upward = Linear(in_size, 4 * out_size, initial_bias=np.tile([0.0, 0.0, forget_bias, 0.0], out_size))
            self.lateral = Linear(out_size, 4 * out_size, nobias=True)

    def forward(self, c: Array, h: Array, x: Array) -> tuple[Variable, Variable]:
        """The next states (c', h'); None stands for zeros."""
        gates = self.upward(x)
        if h is not None:
            gates = gates + self.lateral(h)
        return F.lstm(_zeros(x, self.state_size) if c is None else c, gates)


class LSTM(StatelessLSTM):
    """Long short-term memory that keeps its state, `c` and `h`, from call to call."""

    def __init__(self, in_size: int | None, out_size: int | None = None, forget_bias: float = 1.0) -> None:
        super().__init__(in_size, out_size, forget_bias)
        self.c: Any = None
        self.h: Any = None

    def reset_state(self) -> None:
        """Start from zeros at the next call."""
        self.c = self.h = None

    def set_state(self, c: Any, h: Any) -> None:
        """Start from these states at the next call."""
        self.c, self.h = as_variable(c), as_variable(h)

    def forward(self, x: Array) -> Variable:
        """The next h. x may have fewer rows than the states, as with `F.lstm`: those of the others stay."""
        h, over = self.h, []
        if h is not None and x.shape[:1] < h.shape[:1]:
            h, *over = F.split_axis(h, list(x.shape[:1]), 0)
        self.c, y = super().forward(self.c, h, x)
        self.h = F.concat([y, *over], 0) if over else y
        return y

    def _move(self, device: Any) -> None:
        super()._move(device)
        self.c, self.h = _there(self.c, device), _there(self.h, device)


class GRU(Chain):
    """A gated recurrent unit (Cho et al. 2014): h' = (1 - z) h + z h̄, with h̄ = tanh(W x + U (r h))."""

    def __init__(self, in_size: int | None, out_size: int) -> None:
        super().__init__()
        with self.init_scope():
            self.W_r, self.U_r = Linear(in_size, out_size), Linear(out_size, out_size)
            self.W_z, self.U_z = Linear(in_size, out_size), Linear(out_size, out_size)
            self.W, self.U = Linear(in_size, out_size), Linear(out_size, out_size)
        self.state_size = out_size
        self.h: Any = None

    def reset_state(self) -> None:
        """Start from zeros at the next call."""
        self.h = None

    def set_state(self, h: Any) -> None:
        """Start from this state at the next call."""
        self.h = as_variable(h)

    def forward(self, x: Array) -> Variable:
        """The next h."""
        h = _zeros(x, self.state_size) if self.h is None else self.h
        r = F.sigmoid(self.W_r(x) + self.U_r(h))
        z = F.sigmoid(self.W_z(x) + self.U_z(h))
        proposal = F.tanh(self.W(x) + self.U(r * h))
        self.h = h + z * (proposal - h)
        return self.h

    def _move(self, device: Any) -> None:
        super()._move(device)
        self.h = _there(self.h, device)


# Sequences, in layers


class _NStep(ChainList):
    """Layers of units over sequences: a link for each layer and direction, with the weights w0, w1, … and the biases
    b0, b1, … of a function, in its order."""

    _function: ClassVar[Callable[..., Any]]
    _count: ClassVar[int]
    _directions = 1

    def __init__(self, n_layers: int, in_size: int | None, out_size: int, dropout: float, initialW: Any = None,
                 initial_bias: Any = None) -> None:  # fmt: skip
        super().__init__()
        ranges.check(type(self).__name__, "an int of 1 or more", n_layers=n_layers)
        ranges.check(type(self).__name__, "0 or more, and below 1", dropout=dropout)
        self.n_layers, self.out_size, self.dropout = n_layers, out_size, dropout
        for k in range(n_layers * self._directions):
            unit, size = Link(), in_size if k < self._directions else out_size * self._directions
            for i in range(self._count):
                width = size if i < self._count // 2 else out_size
                unit.add_param(f"w{i}", None if width is None else (out_size, width), initializer=initialW)
                unit.add_param(f"b{i}", out_size, initializer=0 if initial_bias is None else initial_bias)
            self.append(unit)

    @property
    def in_size(self) -> int | None:
        """The numbers of a step of a sequence; None until the weights have arrays, by a call, a file or a copy."""
        w = self[0].w0
        return w.shape[1] if w.is_initialized else None

    @property
    def ws(self) -> list[list[Any]]:
        """The weights of each layer and direction."""
        return [[getattr(unit, f"w{i}") for i in range(self._count)] for unit in self]

    @property
    def bs(self) -> list[list[Any]]:
        """The biases of each layer and direction."""
        return [[getattr(unit, f"b{i}") for i in range(self._count)] for unit in self]

    def forward(self, hx: Array | None, xs: Sequence[Array]) -> tuple[Any, ...]:
        """(hy, ys) after sequences `xs`; None as the state before stands for zeros."""
        return self._run([hx], xs)

    def _run(self, states: list[Any], xs: Sequence[Any]) -> tuple[Any, ...]:
        for w in (w for layer in self.ws for w in layer if len(xs) and not w.is_initialized):
            if len(xs[0].shape) != 2:
                given = f"shape {xs[0].shape}"
                raise ValueError(complain(f"{type(self).__name__}: sequences", given, "(length, in_size)"))
            w.initialize((self.out_size, xs[0].shape[1]))
        b = self[0].b0._known()
        shape = (len(self), len(xs), self.out_size)
        states = [arrays.zeros(arrays.backend_of(b), shape, b.dtype) if s is None else s for s in states]
        return self._function(self.n_layers, self.dropout, *states, self.ws, self.bs, xs)


class NStepLSTM(_NStep):
    """Layers of LSTMs over sequences of any lengths, (hx, cx, xs) → (hy, cy, ys), as `F.n_step_lstm` has them.

    An `in_size` of None is that of the first sequences; `dropout` goes between layers. `initialW` and `initial_bias`
    are initializers (None: LeCunNormal and 0). Layer k is the link k, with weights `w0` to `w7` and biases `b0` to
    `b7`; `ws` and `bs` are those of all. Raises `ValueError` for less than one layer and a `dropout` outside [0, 1).
    """

    _function, _count = staticmethod(F.n_step_lstm), 8

    def forward(self, hx: Array | None, cx: Array | None, xs: Sequence[Array]) -> tuple[Any, ...]:
        """(hy, cy, ys) after sequences `xs`; None as a state before stands for zeros."""
        return self._run([hx, cx], xs)


class NStepBiLSTM(NStepLSTM):
    """As `NStepLSTM` in both directions, by `F.n_step_bilstm`: layer k has the links 2k and 2k + 1."""

    _function, _directions = staticmethod(F.n_step_bilstm), 2


class NStepGRU(_NStep):
    """As `NStepLSTM`, of gated recurrent units: (hx, xs) → (hy, ys) by `F.n_step_gru`."""

    _function, _count = staticmethod(F.n_step_gru), 6


class NStepBiGRU(NStepGRU):
    """As `NStepGRU` in both directions, by `F.n_step_bigru`."""

    _function, _directions = staticmethod(F.n_step_bigru), 2


class NStepRNNTanh(_NStep):
    """As `NStepLSTM`, of plain units with tanh: (hx, xs) → (hy, ys) by `F.n_step_rnn`."""

    _function, _count = staticmethod(F.n_step_rnn), 2


class NStepBiRNNTanh(NStepRNNTanh):
    """As `NStepRNNTanh` in both directions, by `F.n_step_birnn`."""

    _function, _directions = staticmethod(F.n_step_birnn), 2


class NStepRNNReLU(_NStep):
    """As `NStepRNNTanh`, with relu."""

    _function, _count = staticmethod(partial(F.n_step_rnn, activation="relu")), 2


class NStepBiRNNReLU(NStepRNNReLU):
    """As `NStepRNNReLU` in both directions, by `F.n_step_birnn`."""

    _function, _directions = staticmethod(partial(F.n_step_birnn, activation="relu")), 2
