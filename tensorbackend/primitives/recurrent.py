# SPDX-License-Identifier: Apache-2.0
"""Plain recurrent networks of the contract, unrolled over lists of steps, one or two directions.

Buffers hold the steps side by side: (nout, N steps), step t in columns t N to (t + 1) N. Each step is a product with
what follows it, so that every backend runs it as it runs `h[:] = f(be.dot(W, g) + x + b)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import DTypeError, ShapeError, complain
from tensorbackend.graph.tensor import Tensor
from tensorbackend.primitives import operands
from tensorbackend.primitives.geometry import positive

__all__ = ["Recurrent", "by_rows", "check_tensor", "used_steps"]

COPIED_FROM = 3
"""Steps from which on weights that lie by columns are copied first: products read weights by rows."""


def used_steps(name: str, num_steps: int, num_used_steps: int | None) -> int:
    """How many steps are run. Raises `ShapeError` for no steps at all, `ValueError` for what is no int from 0 on."""
    (steps,) = positive(name, num_steps=num_steps)
    if num_used_steps is None:
        return steps
    whole = isinstance(num_used_steps, (int, np.integer)) and not isinstance(num_used_steps, bool)
    if not whole or num_used_steps < 0:
        raise ValueError(complain(f"{name}: num_used_steps", repr(num_used_steps), "None, or an int of at least 0"))
    return min(int(num_used_steps), steps)


def check_tensor(be: Any, name: str, what: str, x: Any, shape: tuple[int, ...], dtype: Any = None) -> None:
    """That an operand is a backend's tensor of a float type (`dtype`, if given) and of a shape.

    Raises `TypeError`, `DTypeError`, `ShapeError` and `BackendError`.
    """
    if not isinstance(x, Tensor):
        raise TypeError(complain(f"{name}: {what}", type(x).__name__, "a tensor", "be.array(x)"))
    if x.dtype != dtype if dtype is not None else not dtypes.is_float(x.dtype):
        wanted = "a float type" if dtype is None else str(dtype)
        raise DTypeError(complain(f"{name}: type of {what}", str(x.dtype), wanted))
    if x.shape != shape:
        raise ShapeError(complain(f"{name}: shape of {what}", f"{x.shape}", f"{shape}"))
    operands.check_home(be, x)


def by_rows(backend: Any, W: Tensor, uses: int) -> Tensor:
    """Weights as products read them fast: a copy, if they lie otherwise and are used often enough."""
    return W if W.strides[-1] == 1 or uses < COPIED_FROM else backend.copy(W)


def _check_steps(be: Any, name: str, used: int, rows: int, dtype: Any, **lists: Sequence) -> None:
    """That each list has tensors of its type for so many steps, with so many rows and all with equal columns."""
    columns, right = None, set()
    for what, steps in lists.items():
        if not isinstance(steps, Sequence):  # nor is a tensor one: rows of a whole buffer are no steps
            raise TypeError(complain(f"{name}: {what}", type(steps).__name__, "a list of tensors, one a step"))
        if len(steps) < used:
            raise ShapeError(complain(f"{name}: {what}", f"{len(steps)} steps", f"{used}"))
        for t in range(used):
            if isinstance(steps[t], Tensor) and steps[t].structure in right:  # most are views of one layout
                continue
            if columns is None and isinstance(steps[t], Tensor):
                columns = steps[t].shape[-1] if steps[t].shape else 1
            check_tensor(be, name, f"{what}[{t}]", steps[t], (rows, columns), dtype)
            right.add(steps[t].structure)


def _fprop(be: Any, W: Any, h_prev_s: Sequence, h_ff_s: Sequence, h_s: Sequence, bias: Any, nout: int, num_steps: int,
           num_used_steps: int | None, activation: Any, reverse: bool) -> Callable[[], None]:  # fmt: skip
    """The forward pass of one direction, checked and not yet run."""
    name = "compound_rnn_unroll_fprop"
    used = used_steps(name, num_steps, num_used_steps)
    operands.check_function(name, "activation", activation)
    check_tensor(be, name, "W_recur", W, (nout, nout))
    check_tensor(be, name, "bias", bias, (nout, 1), W.dtype)
    _check_steps(be, name, used, nout, W.dtype, h_prev_s=h_prev_s, h_ff_s=h_ff_s, h_s=h_s)
    for t in range(used):
        operands.check_output(f"{name}: h_s[{t}]", h_s[t], W, bias)

    def run() -> None:
        rows = by_rows(be, W, used)
        for t in _order(used, reverse):
            h_s[t]._assign(activation(be.dot(rows, h_prev_s[t]) + h_ff_s[t] + bias))

    return run


def _bprop(be: Any, W: Any, delta_prev_s: Sequence, delta_s: Sequence, h_s: Sequence, nout: int, num_steps: int,
           num_used_steps: int | None, activation: Any, reverse: bool) -> Callable[[], None]:  # fmt: skip
    """The backward pass of one direction, checked and not yet run."""
    name = "compound_rnn_unroll_bprop"
    used = used_steps(name, num_steps, num_used_steps)
    operands.check_function(name, "activation", activation, "bprop")
    check_tensor(be, name, "W_recur", W, (nout, nout))
    _check_steps(be, name, used, nout, W.dtype, delta_prev_s=delta_prev_s, delta_s=delta_s, h_s=h_s)
    for t in range(used):
        operands.check_output(f"{name}: delta_prev_s[{t}]", delta_prev_s[t], W)
        operands.check_output(f"{name}: delta_s[{t}]", delta_s[t], W)

    def run() -> None:
        rows = by_rows(be, W, used)
        for t in _order(used, reverse):
            delta_s[t]._assign(activation.bprop(h_s[t]) * delta_s[t])
            delta_prev_s[t]._assign(delta_prev_s[t] + be.dot(rows, delta_s[t]))

    return run


def _order(steps: int, backwards: bool) -> range:
    return range(steps - 1, -1, -1) if backwards else range(steps)


class Recurrent:
    """Unrolled recurrent layers of the contract; `Backend` inherits them."""

    def compound_rnn_unroll_fprop(self, W_recur: Any, h_prev_s: Sequence, h_ff_s: Sequence, h_s: Sequence, bias: Any,
                                  nout: int, num_steps: int, num_used_steps: int | None, activation: Any,
                                  reverse: bool = False) -> None:  # fmt: skip
        """h_s[t] = f(W_recur h_prev_s[t] + h_ff_s[t] + bias) for t = 0, 1, …; with `reverse` from the last step back.

        Lists of a tensor (nout, N) a step, usually views of buffers (nout, N steps): `h_s` is written, `h_prev_s[t]` is
        usually h_s[t - 1] (reversed h_s[t + 1]), and the initial state at the first step; `h_ff_s[t]` may be `h_s[t]`,
        to whose value the product is then added. `W_recur` (nout, nout), `bias` (nout, 1). `activation` is called with
        an op-tree. Only the first `num_used_steps` steps are run, where that is not None and less. Everything is
        checked first. Raises `ShapeError`, `DTypeError`, `TypeError` for what is no tensor, `BackendError`, and
        `ValueError` for an output that cannot be written, or shares memory with the weights or the bias.
        """
        _fprop(self, W_recur, h_prev_s, h_ff_s, h_s, bias, nout, num_steps, num_used_steps, activation, reverse)()

    def compound_rnn_unroll_bprop(self, W_recur: Any, delta_prev_s: Sequence, delta_s: Sequence, h_s: Sequence,
                                  nout: int, num_steps: int, num_used_steps: int | None, activation: Any,
                                  reverse: bool = True) -> None:  # fmt: skip
        """delta_s[t] = f'(h_s[t]) delta_s[t], then delta_prev_s[t] += W_recur delta_s[t], from the last step back;
        without `reverse` from the first on.

        `W_recur` is the transpose of the forward pass's. `activation.bprop` is called with the output h_s[t] and gives
        f' there. `delta_prev_s[t]` is usually delta_s[t - 1] (for a reversed layer delta_s[t + 1]). Shapes, types,
        `num_used_steps` and errors as `compound_rnn_unroll_fprop`.
        """
        _bprop(self, W_recur, delta_prev_s, delta_s, h_s, nout, num_steps, num_used_steps, activation, reverse)()

    def bibnrnn_layer(self, h_buffer_all: Any, h_ff_buffer: Any, W_recur_f: Any, W_recur_b: Any, nsteps: int,
                      nout: int) -> None:  # fmt: skip
        """What a backend would prepare for both directions of a layer: nothing, None."""

    def compound_rnn_unroll_fprop_bibnrnn(self, ngLayer: Any, h_buffer_all: Any, h_ff_buffer: Any, W_recur_f: Any,
                                          h_prev: Sequence, h_ff_f: Sequence, h_f: Sequence, b_f: Any, W_recur_b: Any,
                                          h_next: Sequence, h_ff_b: Sequence, h_b: Sequence, b_b: Any, nout: int,
                                          nsteps: int, used_nsteps: int | None, activation: Any) -> None:  # fmt: skip
        """Both directions, by `compound_rnn_unroll_fprop` of (W_recur_f, h_prev, h_ff_f, h_f, b_f), then, reversed, of
        (W_recur_b, h_next, h_ff_b, h_b, b_b). The first three arguments have no effect."""
        sizes = (nout, nsteps, used_nsteps, activation)
        forwards = _fprop(self, W_recur_f, h_prev, h_ff_f, h_f, b_f, *sizes, False)
        backwards = _fprop(self, W_recur_b, h_next, h_ff_b, h_b, b_b, *sizes, True)
        forwards()
        backwards()

    def compound_rnn_unroll_bprop_bibnrnn(self, ngLayer: Any, error: Any, in_deltas_f: Sequence,
                                          prev_in_deltas: Sequence, in_deltas_b: Sequence, next_in_deltas: Sequence,
                                          W_recur_f: Any, W_recur_b: Any, h_f: Sequence, h_b: Sequence, nout: int,
                                          nsteps: int, used_nsteps: int | None, activation: Any,
                                          h_buffer_all: Any) -> None:  # fmt: skip
        """Both directions back, by `compound_rnn_unroll_bprop` of (W_recur_f.T, prev_in_deltas, in_deltas_f, h_f), and
        of (W_recur_b.T, next_in_deltas, in_deltas_b, h_b) from the first step on. The weights are the forward pass's.
        `ngLayer`, `error` and `h_buffer_all` have no effect."""
        sizes = (nout, nsteps, used_nsteps, activation)
        for what, W in (("W_recur_f", W_recur_f), ("W_recur_b", W_recur_b)):
            check_tensor(self, "compound_rnn_unroll_bprop_bibnrnn", what, W, (nout, nout))
        forwards = _bprop(self, W_recur_f.T, prev_in_deltas, in_deltas_f, h_f, *sizes, True)
        backwards = _bprop(self, W_recur_b.T, next_in_deltas, in_deltas_b, h_b, *sizes, False)
        forwards()
        backwards()
