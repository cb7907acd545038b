# SPDX-License-Identifier: Apache-2.0
"""Cells of recurrent layers: what a step assigns, forward and back, and their steps as one primitive.

`gated.py` says what the cells compute. A cell is written once, over any functions and arrays: as op-trees it becomes
one kernel, on NumPy arrays it is the meaning of the primitive that runs all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tensorbackend import numerics, ops
from tensorbackend.ops import Op

__all__ = ["CELLS", "GRU", "GRU_BACK", "GRU_USE", "LSTM", "LSTM_BACK", "LSTM_BACK_LENGTHS", "LSTM_USE", "Cell", "Part",
           "Run", "reference", "with_input"]  # fmt: skip

Kept = Callable[[Any, Any], Any]
Statements = Iterator[tuple[Any, Any]]


@dataclass(frozen=True)
class Part:
    """What a cell reads or writes: `groups` of nout rows, and N columns.

    `kind`: "step" (a step of a buffer of all steps), "before" (read: the step of a buffer that comes next in the run,
    and another matrix after the last), "own" (what the cell keeps from step to step) or "fixed" (a column, the same
    at all steps). The first `state` groups, once written, are what the next step's product reads.
    """

    name: str
    kind: str
    groups: int = 1
    read: bool = True
    written: bool = False
    state: int = 0


@dataclass(frozen=True)
class Run:
    """Sizes of a run over `steps` steps, in the order of time or `reverse`; `from_zero`: the first state is zero; `nin`
    rows of the input, where the cell has one."""

    nout: int
    N: int
    steps: int
    reverse: bool
    from_zero: bool
    nin: int = 0

    def times(self) -> range:
        """The steps as they are run."""
        return range(self.steps)[::-1] if self.reverse else range(self.steps)


@dataclass(frozen=True, eq=False)
class Cell:
    """A cell: `products` groups of rows of the weights, its parts, and what it assigns.

    `assign(o, kept, sums, **parts)` yields targets and values; `o` has the functions `sig` and `tanh`, `sums` are the
    groups of the product; a part of several groups is a list. Nothing is read after it was assigned.

    `has_input`: the product is W x + R state, with a step of the input x (nin, N steps).
    """

    name: str
    products: int
    parts: tuple[Part, ...]
    assign: Callable[..., Statements]
    has_input: bool = False

    @property
    def multiplied(self) -> tuple[str, ...]:
        """The names of what the products read beside the state, which are the first operands."""
        return ("weights", "W_in", "x") if self.has_input else ("weights",)

    @property
    def state(self) -> Part:
        """The part that the product reads."""
        return next(p for p in self.parts if p.state)

    @property
    def op(self) -> Op:
        """All steps as a call: operands are `multiplied` and what is read; results what is written; then a `Run`."""
        return _OPS[self.name]

    def operands(self, tensors: dict[str, Any]) -> tuple[list, list]:
        """What the call writes and reads, in its order, from tensors by name; of "before" a pair, buffer and last."""
        reads = [tensors[name] for name in self.multiplied]
        for p in self.parts:
            if p.read:
                reads += tensors[p.name] if p.kind == "before" else [tensors[p.name]]
        return [tensors[p.name] for p in self.parts if p.written], reads


_NUMPY = SimpleNamespace(sig=numerics.sigmoid, tanh=np.tanh)


def reference(cell: Cell, *rest: Any) -> tuple[np.ndarray, ...]:
    """All steps on NumPy arrays: operands as `Cell.operands` says, then the `Run`; the arrays that are written."""
    *arrays, run = rest
    found, nout, N = {}, run.nout, run.N
    given = iter(arrays)
    weights, *inputs = (next(given) for _ in cell.multiplied)
    for p in cell.parts:
        read = [next(given) for _ in range(p.read + (p.kind == "before"))]
        columns = N if p.kind == "own" else N * run.steps
        found[p.name] = read if p.kind == "before" else read[0].copy() if read else np.empty(
            (p.groups * nout, columns), weights.dtype)  # fmt: skip
    times = list(run.times())
    zeros = np.zeros((cell.state.state * nout, N), weights.dtype)
    state = found[cell.state.name] if cell.state.kind == "own" else zeros
    for number, t in enumerate(times):
        after = times[number + 1] if number + 1 < run.steps else None
        views = {p.name: _at(p, found[p.name], t, after, N) for p in cell.parts}
        product = weights @ state
        if inputs:
            product += inputs[0] @ inputs[1][:, t * N : (t + 1) * N]
        sums = _groups(product, nout)
        parts = {p.name: _groups(views[p.name], nout) if p.groups > 1 else views[p.name] for p in cell.parts}
        for target, value in list(cell.assign(_NUMPY, _all_kept, sums, **parts)):
            target[...] = value
        state = views[cell.state.name][: cell.state.state * nout]
    return tuple(found[p.name] for p in cell.parts if p.written)


def _at(p: Part, x: Any, t: int, after: int | None, N: int) -> np.ndarray:
    """A part at step t of a run that goes on to step `after`."""
    if p.kind == "before":
        return x[1] if after is None else x[0][:, after * N : (after + 1) * N]
    return x[:, t * N : (t + 1) * N] if p.kind == "step" else x


def _groups(x: np.ndarray, nout: int) -> list[np.ndarray]:
    return [x[n : n + nout] for n in range(0, x.shape[0], nout)]


def _all_kept(new: Any, old: Any) -> Any:
    return new


# What is assigned


def _lstm(o: Any, kept: Kept, sums: list, gates: list, state: Any, carry: Any, h: Any, c: Any = None,
          values: Any = ()) -> Statements:  # fmt: skip
    """h and c from the product with the state; `gates` are W x + b, and `values` what becomes of them."""
    i, f, g, out = [function(pre + s) for function, pre, s in zip((o.sig, o.sig, o.tanh, o.sig), gates, sums)]
    cell = f * carry + i * g
    value = kept(out * o.tanh(cell), state)
    cell = kept(cell, carry)
    yield h, value
    yield state, value
    if c is not None:
        yield c, cell
    yield carry, cell
    yield from zip(values, (i, f, g, out))


def _lstm_back(o: Any, kept: Kept, sums: list, delta: Any, gates: list, c: Any, before: Any, errors: list, carry: Any,
               passed: Any = None) -> Statements:  # fmt: skip
    """The errors of the gates' arguments; `carry` and `passed` go on to c and h of the step before."""
    i, f, g, out = gates
    dh = delta + sums[0] if passed is None else delta + sums[0] + passed
    tanh = o.tanh(c)
    dc = carry + dh * out * (1 - tanh * tanh)
    values = (dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g), dh * tanh * out * (1 - out))
    for target, value in zip(errors, values):
        yield target, kept(value, 0)
    yield carry, kept(dc * f, carry)
    if passed is not None:
        yield passed, kept(0, dh)


def _gru(o: Any, kept: Kept, sums: list, gates: list, state: Any, bias: Any, h: Any, values: Any = ()) -> Statements:
    """h from the product with the state; `gates` are W x + b of r, z, n, and `values` are r, z, q, n."""
    r, z, q = o.sig(gates[0] + sums[0]), o.sig(gates[1] + sums[1]), sums[2] + bias
    n = o.tanh(gates[2] + r * q)
    value = kept(n + z * (state - n), state)
    yield h, value
    yield state, value
    yield from reversed([*zip(values, (r, z, q, n))])  # n is a value of what r, z and q are written over


def _gru_back(o: Any, kept: Kept, sums: list, delta: Any, gates: list, before: Any, errors: list,
              passed: Any) -> Statements:  # fmt: skip
    """The errors of the arguments of r, z, of q, and of n's argument; `passed` goes on to h of the step before."""
    r, z, q, n = gates
    dh = delta + sums[0] + passed
    dn = dh * (1 - z) * (1 - n * n)
    values = (dn * q * r * (1 - r), dh * (before - n) * z * (1 - z), dn * r, dn)
    for target, value in zip(errors, values):
        yield target, kept(value, 0)
    yield passed, kept(dh * z, dh)


_STATE = Part("state", "own", written=True, state=1)
_WRITTEN = partial(Part, read=False, written=True)

_VALUES = _WRITTEN("values", "step", 4)

LSTM_USE = Cell("lstm_use", 4, (Part("gates", "step", 4), _STATE, Part("carry", "own", written=True),
                                _WRITTEN("h", "step")), _lstm)  # fmt: skip
LSTM = replace(LSTM_USE, name="lstm_fprop", parts=(*LSTM_USE.parts, _WRITTEN("c", "step"), _VALUES))
LSTM_BACK = Cell("lstm_bprop", 1, (Part("delta", "step"), Part("gates", "step", 4), Part("c", "step"),
                                   Part("before", "before"), _WRITTEN("errors", "step", 4, state=4),
                                   Part("carry", "own", written=True)), _lstm_back)  # fmt: skip
LSTM_BACK_LENGTHS = replace(LSTM_BACK, name="lstm_bprop_lengths",
                            parts=(*LSTM_BACK.parts, Part("passed", "own", written=True)))  # fmt: skip
GRU_USE = Cell("gru_use", 3, (Part("gates", "step", 3), _STATE, Part("bias", "fixed"), _WRITTEN("h", "step")), _gru)
GRU = replace(GRU_USE, name="gru_fprop", parts=(*GRU_USE.parts, _VALUES))
GRU_BACK = Cell("gru_bprop", 1, (Part("delta", "step"), Part("gates", "step", 4), Part("before", "before"),
                                 _WRITTEN("errors", "step", 4, state=3), Part("passed", "own", written=True)),
                _gru_back)  # fmt: skip


def with_input(cell: Cell) -> Cell:
    """An LSTM whose steps multiply the input, too; `gates` is the bias (4 nout, 1) alone then."""
    return _WITH_INPUT[cell.name]


def _with_input(cell: Cell) -> Cell:
    parts = tuple(replace(p, kind="fixed") if p.name == "gates" else p for p in cell.parts)
    return replace(cell, name=f"{cell.name}_input", parts=parts, has_input=True)


_WITH_INPUT = {cell.name: _with_input(cell) for cell in (LSTM_USE, LSTM)}


def _operations(cell: Cell, run: Run) -> int:
    return 2 * cell.products * run.nout * (cell.state.state * run.nout + run.nin) * run.N * run.steps


CELLS = (LSTM_USE, LSTM, LSTM_BACK, GRU_USE, GRU, GRU_BACK, *_WITH_INPUT.values())
"""Those whose steps can be one primitive: without lengths of samples."""


def _op(cell: Cell) -> Op:
    _, reads = cell.operands({p.name: (0, 0) for p in cell.parts} | dict.fromkeys(cell.multiplied, 0))
    run, work = partial(reference, cell), partial(_operations, cell)
    return ops.call(cell.name, len(reads), run, f"The steps of {cell.name}.", work)


_OPS = {cell.name: _op(cell) for cell in CELLS}
