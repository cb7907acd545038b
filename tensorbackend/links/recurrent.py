# SPDX-License-Identifier: Apache-2.0
"""Recurrent links."""

from __future__ import annotations

from typing import Any

from tensorbackend import functions as F
from tensorbackend.function import arrays
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.links.basic import Linear
from tensorbackend.links.link import Chain

__all__ = ["GRU", "LSTM", "StatelessLSTM"]


def _zeros(x: Any, width: int) -> Variable:
    """A state of zeros for a batch."""
    data = as_variable(x)._known()
    return as_variable(arrays.zeros(arrays.backend_of(data), (data.shape[0], width), data.dtype))


class StatelessLSTM(Chain):
    """A step of long short-term memory: (c, h, x) → (c', h'). The forget gates start with a bias of 1."""

    def __init__(self, in_size: int | None, out_size: int | None = None, forget_bias: float = 1.0) -> None:
        super().__init__()
        in_size, out_size = (None, in_size) if out_size is None else (in_size, out_size)
        self.state_size = out_size
        with self.init_scope():
            self.upward = Linear(in_size, 4 * out_size)
            self.lateral = Linear(out_size, 4 * out_size, nobias=True)
        gates = self.upward.b.array.reshape(out_size, 4)
        gates[:, 2] = forget_bias

    def forward(self, c: Any, h: Any, x: Any) -> tuple[Variable, Variable]:
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

    def forward(self, x: Any) -> Variable:
        """The next h."""
        self.c, self.h = super().forward(self.c, self.h, x)
        return self.h


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

    def forward(self, x: Any) -> Variable:
        """The next h."""
        h = _zeros(x, self.state_size) if self.h is None else self.h
        r = F.sigmoid(self.W_r(x) + self.U_r(h))
        z = F.sigmoid(self.W_z(x) + self.U_z(h))
        proposal = F.tanh(self.W(x) + self.U(r * h))
        self.h = h + z * (proposal - h)
        return self.h
