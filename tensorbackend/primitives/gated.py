# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks with gates, unrolled: LSTM and GRU, forward and back.

Buffers hold the steps side by side: (features, N steps), step t in columns t N to (t + 1) N. The products with the
input are one product over all steps before the first of them, unless the backend multiplies step by step; the weights'
gradients are one after the last. A step is the product with the state, and one elementwise kernel. With s the logistic
function and * elementwise:

LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers, Schmidhuber and Cummins 2000, without peepholes):

    i, f, o = s(W x + R h' + b)    g = tanh(W x + R h' + b)    c = f * c' + i * g    h = o * tanh(c)

GRU (Cho et al. 2014, in the variant in which the gate r scales the product with the state, not the state, so that a
step has one product; cuDNN's and PyTorch's):

    r, z = s(W x + R h' + b)    q = R h' + b_recur    n = tanh(W x + b + r * q)    h = (1 - z) * n + z * h'
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tensorbackend import dtypes
from tensorbackend.errors import ShapeError, complain
from tensorbackend.graph import composite
from tensorbackend.graph.tensor import Tensor
from tensorbackend.primitives import cells, operands
from tensorbackend.primitives.recurrent import by_rows, check_tensor, used_steps

__all__ = ["Gated"]


class _Steps:
    """The steps of a pass over buffers with `num_steps` steps of N columns, `used` of them run.

    `lengths` are the samples' own numbers of steps, N in any shape and here as (1, N), or None.
    """

    def __init__(self, be: Any, name: str, h: Any, num_steps: int, num_used_steps: int | None, reverse: bool,
                 lengths: Any) -> None:  # fmt: skip
        self.backend, self.name, self.reverse, self.lengths = be, name, bool(reverse), lengths
        self.num_steps, self.used = num_steps, used_steps(name, num_steps, num_used_steps)
        if not isinstance(h, Tensor) or len(h.shape) != 2 or h.shape[1] % num_steps:
            given = f"{h.shape} of {num_steps} steps" if isinstance(h, Tensor) else type(h).__name__
            raise ShapeError(complain(f"{name}: h", given, "a tensor (nout, N steps)"))
        check_tensor(be, name, "h", h, h.shape)
        self.nout, self.columns, self.N, self.dtype = h.shape[0], h.shape[1], h.shape[1] // num_steps, h.dtype
        if lengths is not None:
            operands.check_integers(name, num_steps + 1, lengths=(lengths, (1, self.N)))
            operands.check_home(be, lengths)
            self.lengths = composite.reshape(lengths, (1, self.N))  # be.array makes a column of a list

    def check(self, **named: tuple[Any, int, int]) -> None:
        """That operands are tensors of the type with so many rows and columns."""
        for what, (x, rows, columns) in named.items():
            check_tensor(self.backend, self.name, what, x, (rows, columns), self.dtype)

    def check_given(self, **named: tuple[Any, int, int]) -> None:
        """The same of operands that may be None."""
        self.check(**{what: operand for what, operand in named.items() if operand[0] is not None})

    def rows(self, x: Any) -> int:
        """The rows of the input. Raises `TypeError` for what is no tensor, `ShapeError` for what is no matrix."""
        if not isinstance(x, Tensor):
            raise TypeError(complain(f"{self.name}: x", type(x).__name__, "a tensor", "be.array(x)"))
        if len(x.shape) != 2:
            raise ShapeError(complain(f"{self.name}: shape of x", f"{x.shape}", f"(nin, {self.columns})"))
        return x.shape[0]

    def check_outputs(self, read: list, **named: Any) -> None:
        """That outputs can be written, and share no memory with what is read or with each other."""
        seen = [x for x in read if x is not None]
        for what, x in named.items():
            if x is not None:
                operands.check_output(f"{self.name}: {what}", x, *seen)
                seen.append(x)

    def order(self, back: bool = False) -> list[int]:
        """The steps in the order in which they run forward; or back."""
        steps = list(range(self.used))
        return steps[::-1] if self.reverse != back else steps

    def at(self, buffer: Tensor, t: int) -> Tensor:
        """Step t of a buffer."""
        return buffer[:, t * self.N : (t + 1) * self.N]

    def before(self, buffer: Tensor, t: int, first: Tensor) -> Tensor:
        """The step of a buffer that runs forward before step t, or `first`."""
        t += 1 if self.reverse else -1
        return self.at(buffer, t) if 0 <= t < self.used else first

    def all(self, buffer: Tensor) -> Tensor:
        """The steps of a buffer that are run."""
        return buffer if self.used == self.num_steps else buffer[:, : self.used * self.N]

    def kept(self, t: int, new: Any, old: Any) -> Any:
        """A value where step t is one of the sample's own, else the old one."""
        return new if self.lengths is None else composite.where(self.lengths > t, new, old)

    def groups(self, x: Tensor, count: int) -> Any:
        """Rows as a list of groups of `nout`, or the tensor itself if it is one."""
        return x if count == 1 else [x[n * self.nout : (n + 1) * self.nout] for n in range(count)]


def _state(be: Any, steps: _Steps, given: Tensor | None, dtype: Any) -> Tensor:
    """A copy of a state, or zeros."""
    return be.empty((steps.nout, steps.N), dtype)._assign(0 if given is None else given)


def _through(be: Any, W_in: Tensor, bias: Tensor | None, x: Tensor, out: Tensor) -> None:
    """out = W_in x + bias, for all steps."""
    product = be.dot(W_in, x)
    out._assign(product if bias is None else product + bias)


def _forward(be: Any, steps: _Steps, cell: cells.Cell, W: Tensor, tensors: dict[str, Any], from_zero: bool) -> None:
    """All steps: the product with the state, and the cell."""
    if _by_primitive(be, steps, cell, W, tensors, from_zero, steps.reverse):
        return
    rows, state = by_rows(be, W, steps.used), tensors["state"]
    sums = be.empty((W.shape[0], steps.N), dtypes.compute(steps.dtype))
    for number, t in enumerate(steps.order()):
        sums._assign(0 if from_zero and not number else be.dot(rows, state))
        _run_cell(be, steps, cell, t, steps.groups(sums, cell.products), tensors)


def _back(be: Any, steps: _Steps, cell: cells.Cell, W: Tensor, tensors: dict[str, Any], dh_init: Any) -> None:
    """All steps back: the cell, and the product with what it wrote. `dh_init` becomes the error of the first state."""
    errors, order = tensors["errors"][: W.shape[1]], steps.order(back=True)
    if not _by_primitive(be, steps, cell, W, tensors, True, not steps.reverse):
        sums, rows = be.empty((steps.nout, steps.N), dtypes.compute(steps.dtype)), by_rows(be, W, steps.used)
        for number, t in enumerate(order):
            sums._assign(be.dot(rows, steps.at(errors, order[number - 1])) if number else 0)
            _run_cell(be, steps, cell, t, [sums], tensors)
    if dh_init is not None:
        last = be.dot(W, steps.at(errors, order[-1])) if order else 0
        dh_init._assign(last + tensors["passed"] if "passed" in tensors else last)


def _by_primitive(be: Any, steps: _Steps, cell: cells.Cell, W: Tensor, tensors: dict[str, Any], from_zero: bool,
                  reverse: bool, through: tuple[Tensor, Tensor | None, Tensor] | None = None) -> bool:  # fmt: skip
    """Run all steps as one primitive, if the backend has it for this case; else False. `through`: the weights, the bias
    and the steps of an input, for a cell that has one."""
    W_in, bias, x = through or (None, None, None)
    run = cells.Run(steps.nout, steps.N, steps.used, reverse, from_zero, 0 if x is None else x.shape[0])
    if steps.lengths is not None or not be._runs_steps(cell, run, steps.dtype):
        return False
    if through is not None:
        column = be.zeros((W_in.shape[0], 1), steps.dtype) if bias is None else bias
        tensors = tensors | {"gates": column, "W_in": W_in, "x": x}
    every = {p.name: steps.all(tensors[p.name]) if p.kind == "step" else tensors[p.name] for p in cell.parts}
    be._call(cell.op, (run,), *cell.operands(tensors | every | {"weights": W}))
    return True


def _run_cell(be: Any, steps: _Steps, cell: cells.Cell, t: int, sums: list[Tensor], tensors: dict[str, Any]) -> None:
    """The cell of step t as one kernel."""
    parts = {}
    for p in cell.parts:
        x = tensors[p.name]
        x = steps.before(x[0], t, x[1]) if p.kind == "before" else steps.at(x, t) if p.kind == "step" else x
        parts[p.name] = steps.groups(x, p.groups)
    with be.fuse():
        for target, value in cell.assign(composite, partial(steps.kept, t), sums, **parts):
            target._assign(value)


def _recurrent_gradient(be: Any, steps: _Steps, errors: Tensor, h: Tensor, h_init: Tensor | None, out: Tensor) -> None:
    """out = the sum over steps of error times the state before: one product, and one more for the initial state."""
    N, last = steps.N, (steps.used - 1) * steps.N
    later, earlier, first = (slice(N, last + N), slice(0, last), slice(0, N))
    if steps.reverse:
        later, earlier, first = earlier, later, slice(last, last + N)
    parts = [be.dot(errors[:, later], h[:, earlier].T)] if steps.used > 1 else []
    parts += [be.dot(errors[:, first], h_init.T)] if h_init is not None and steps.used else []
    out._assign(sum(parts[1:], parts[0]) if parts else 0)


def _gradients(be: Any, steps: _Steps, parts: list[tuple[slice, Tensor]], W_in: Tensor, x: Tensor,
               dx: Tensor | None, dW_in: Tensor | None, dbias: Tensor | None) -> None:  # fmt: skip
    """The gradients by what the input's product has, from `parts`: rows of W_in, and their errors for all steps."""
    for rows, errors in parts:
        if dW_in is not None:
            dW_in[rows]._assign(be.dot(errors, steps.all(x).T))
        if dbias is not None:
            dbias[rows]._assign(composite.sum(errors, 1))
    if dx is not None:
        first, *others = (be.dot(by_rows(be, W_in[rows].T, steps.used), errors) for rows, errors in parts)
        steps.all(dx)._assign(sum(others, first))


class Gated:
    """LSTM and GRU; `Backend` inherits them."""

    def compound_lstm_unroll_fprop(self, W_in: Any, W_recur: Any, bias: Any, x: Any, h: Any, c: Any, gates: Any,
                                   num_steps: int, h_init: Any = None, c_init: Any = None, lengths: Any = None,
                                   num_used_steps: int | None = None, reverse: bool = False) -> None:  # fmt: skip
        """An LSTM over `num_steps` steps: i, f, o = s(W x + R h' + b), g = tanh(W x + R h' + b), c = f c' + i g,
        h = o tanh(c), where h', c' are those of the step before.

        Read: `W_in` (4 nout, nin), `W_recur` (4 nout, nout), `bias` (4 nout, 1) or None, rows in the order i, f, g, o;
        `x` (nin, N steps). Written: `h`, `c` (nout, N steps), and `gates` (4 nout, N steps), the values of i, f, g, o;
        c and gates, which only the backward pass reads, may both be None. All of one float type; step t is in columns
        t N to (t + 1) N. `h_init`, `c_init` (nout, N) are the state before the first step (None: zeros, a reset); they
        may be steps of h and c. `reverse` begins at the last step; only the first `num_used_steps` are run, if that is
        not None. With `lengths` (N integers in any shape) a sample's state is passed on unchanged from its step
        `lengths` on, and a reversed one begins before it. They are not read before the steps: one below 0 is as 0, one
        above `num_steps` as that. For two directions, call twice, with halves of the rows of one buffer as h. All else
        is checked first. Raises `ShapeError`, `DTypeError`, `TypeError`, `BackendError`, and `ValueError` when outputs
        overlap operands or each other.
        """
        steps = _Steps(self, "compound_lstm_unroll_fprop", h, num_steps, num_used_steps, reverse, lengths)
        nout, N, columns = steps.nout, steps.N, steps.columns
        nin = steps.rows(x)
        steps.check(W_in=(W_in, 4 * nout, nin), W_recur=(W_recur, 4 * nout, nout), x=(x, nin, columns))
        steps.check_given(bias=(bias, 4 * nout, 1), c=(c, nout, columns), gates=(gates, 4 * nout, columns),
                          h_init=(h_init, nout, N), c_init=(c_init, nout, N))  # fmt: skip
        if (c is None) != (gates is None):
            raise ValueError(complain(f"{steps.name}: c and gates", "one of them", "both, or None for both"))
        steps.check_outputs([W_in, W_recur, bias, x, lengths], h=h, c=c, gates=gates)
        cell = cells.LSTM_USE if gates is None else cells.LSTM
        tensors = {"values": gates, "h": h, "c": c, "state": _state(self, steps, h_init, steps.dtype)}
        tensors["carry"] = _state(self, steps, c_init, dtypes.compute(steps.dtype))
        if _by_primitive(self, steps, cells.with_input(cell), W_recur, tensors, h_init is None, steps.reverse,
                         (W_in, bias, steps.all(x))):  # fmt: skip
            return
        before = tensors["gates"] = self.empty((4 * nout, steps.used * N), steps.dtype) if gates is None else gates
        _through(self, W_in, bias, steps.all(x), before[:, : steps.used * N])
        _forward(self, steps, cell, W_recur, tensors, h_init is None)

    def compound_lstm_unroll_bprop(self, W_in: Any, W_recur: Any, x: Any, h: Any, c: Any, gates: Any, delta: Any,
                                   num_steps: int, dx: Any = None, dW_in: Any = None, dW_recur: Any = None,
                                   dbias: Any = None, h_init: Any = None, c_init: Any = None, dh_init: Any = None,
                                   dc_init: Any = None, dc_last: Any = None, lengths: Any = None,
                                   num_used_steps: int | None = None, reverse: bool = False) -> None:  # fmt: skip
        """The gradients of `compound_lstm_unroll_fprop` from the errors `delta` (nout, N steps) of h.

        Read: what the forward pass read and wrote, with the same `lengths`, `num_used_steps` and `reverse`; `dc_last`
        (nout, N), the error of the last step's c (None: zeros). Each output may be None: `dx` (nin, N steps), `dW_in`,
        `dW_recur`, `dbias` shaped as what they belong to, `dh_init` and `dc_init` (nout, N). Raises as the forward
        pass.
        """
        steps = _Steps(self, "compound_lstm_unroll_bprop", h, num_steps, num_used_steps, reverse, lengths)
        nout, N, columns = steps.nout, steps.N, steps.columns
        nin = steps.rows(x)
        steps.check(W_in=(W_in, 4 * nout, nin), W_recur=(W_recur, 4 * nout, nout), x=(x, nin, columns),
                    c=(c, nout, columns), gates=(gates, 4 * nout, columns), delta=(delta, nout, columns))  # fmt: skip
        steps.check_given(dx=(dx, nin, columns), dW_in=(dW_in, 4 * nout, nin), dW_recur=(dW_recur, 4 * nout, nout),
                          dbias=(dbias, 4 * nout, 1), h_init=(h_init, nout, N), c_init=(c_init, nout, N),
                          dh_init=(dh_init, nout, N), dc_init=(dc_init, nout, N),
                          dc_last=(dc_last, nout, N))  # fmt: skip
        read = [W_in, W_recur, x, h, c, gates, delta, h_init, c_init, dc_last, lengths]
        steps.check_outputs(read, dx=dx, dW_in=dW_in, dW_recur=dW_recur, dbias=dbias, dh_init=dh_init, dc_init=dc_init)
        wide, errors = dtypes.compute(steps.dtype), self.empty((4 * nout, steps.used * N), steps.dtype)
        tensors = {"delta": delta, "gates": gates, "c": c, "before": (c, _state(self, steps, c_init, steps.dtype))}
        tensors |= {"errors": errors, "carry": _state(self, steps, dc_last, wide)}
        tensors |= {} if lengths is None else {"passed": _state(self, steps, None, wide)}
        cell = cells.LSTM_BACK if lengths is None else cells.LSTM_BACK_LENGTHS
        _back(self, steps, cell, W_recur.T, tensors, dh_init)
        _gradients(self, steps, [(slice(None), errors)], W_in, x, dx, dW_in, dbias)
        if dW_recur is not None:
            _recurrent_gradient(self, steps, errors, h, h_init, dW_recur)
        if dc_init is not None:
            dc_init._assign(tensors["carry"])

    def compound_gru_unroll_fprop(self, W_in: Any, W_recur: Any, bias: Any, bias_recur: Any, x: Any, h: Any,
                                  gates: Any, num_steps: int, h_init: Any = None, lengths: Any = None,
                                  num_used_steps: int | None = None, reverse: bool = False) -> None:  # fmt: skip
        """A GRU over `num_steps` steps: r, z = s(W x + R h' + b), q = R h' + bias_recur, n = tanh(W x + b + r q),
        h = (1 - z) n + z h', where h' is that of the step before.

        Read: `W_in` (3 nout, nin), `W_recur` (3 nout, nout), `bias` (3 nout, 1) or None, rows in the order r, z, n;
        `bias_recur` (nout, 1) or None, of q alone. Written: `h` (nout, N steps) and `gates` (4 nout, N steps) or None,
        the values of r, z, q, n. All else as `compound_lstm_unroll_fprop`.
        """
        steps = _Steps(self, "compound_gru_unroll_fprop", h, num_steps, num_used_steps, reverse, lengths)
        nout, N, columns = steps.nout, steps.N, steps.columns
        nin = steps.rows(x)
        steps.check(W_in=(W_in, 3 * nout, nin), W_recur=(W_recur, 3 * nout, nout), x=(x, nin, columns))
        steps.check_given(bias=(bias, 3 * nout, 1), bias_recur=(bias_recur, nout, 1),
                          gates=(gates, 4 * nout, columns), h_init=(h_init, nout, N))  # fmt: skip
        steps.check_outputs([W_in, W_recur, bias, bias_recur, x, lengths], h=h, gates=gates)
        before = self.empty((3 * nout, steps.used * N), steps.dtype) if gates is None else gates[: 3 * nout]
        tensors = {"gates": before, "values": gates, "h": h, "state": _state(self, steps, h_init, steps.dtype)}
        tensors["bias"] = self.zeros((nout, 1), steps.dtype) if bias_recur is None else bias_recur
        _through(self, W_in, bias, steps.all(x), before[:, : steps.used * N])
        _forward(self, steps, cells.GRU_USE if gates is None else cells.GRU, W_recur, tensors, h_init is None)

    def compound_gru_unroll_bprop(self, W_in: Any, W_recur: Any, x: Any, h: Any, gates: Any, delta: Any,
                                  num_steps: int, dx: Any = None, dW_in: Any = None, dW_recur: Any = None,
                                  dbias: Any = None, dbias_recur: Any = None, h_init: Any = None, dh_init: Any = None,
                                  lengths: Any = None, num_used_steps: int | None = None,
                                  reverse: bool = False) -> None:  # fmt: skip
        """The gradients of `compound_gru_unroll_fprop` from the errors `delta` (nout, N steps) of h.

        `dbias_recur` (nout, 1) is that of `bias_recur`; all else as `compound_lstm_unroll_bprop`.
        """
        steps = _Steps(self, "compound_gru_unroll_bprop", h, num_steps, num_used_steps, reverse, lengths)
        nout, N, columns = steps.nout, steps.N, steps.columns
        nin = steps.rows(x)
        steps.check(W_in=(W_in, 3 * nout, nin), W_recur=(W_recur, 3 * nout, nout), x=(x, nin, columns),
                    gates=(gates, 4 * nout, columns), delta=(delta, nout, columns))  # fmt: skip
        steps.check_given(dx=(dx, nin, columns), dW_in=(dW_in, 3 * nout, nin), dW_recur=(dW_recur, 3 * nout, nout),
                          dbias=(dbias, 3 * nout, 1), dbias_recur=(dbias_recur, nout, 1), h_init=(h_init, nout, N),
                          dh_init=(dh_init, nout, N))  # fmt: skip
        read = [W_in, W_recur, x, h, gates, delta, h_init, lengths]
        steps.check_outputs(read, dx=dx, dW_in=dW_in, dW_recur=dW_recur, dbias=dbias, dbias_recur=dbias_recur,
                            dh_init=dh_init)  # fmt: skip
        errors = self.empty((4 * nout, steps.used * N), steps.dtype)
        tensors = {"delta": delta, "gates": gates, "before": (h, _state(self, steps, h_init, steps.dtype))}
        tensors |= {"errors": errors, "passed": _state(self, steps, None, dtypes.compute(steps.dtype))}
        _back(self, steps, cells.GRU_BACK, W_recur.T, tensors, dh_init)
        parts = [(slice(0, 2 * nout), errors[: 2 * nout]), (slice(2 * nout, 3 * nout), errors[3 * nout :])]
        _gradients(self, steps, parts, W_in, x, dx, dW_in, dbias)
        if dW_recur is not None:
            _recurrent_gradient(self, steps, errors[: 3 * nout], h, h_init, dW_recur)
        if dbias_recur is not None:
            dbias_recur._assign(composite.sum(errors[2 * nout : 3 * nout], 1))
