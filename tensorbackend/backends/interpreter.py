# SPDX-License-Identifier: Apache-2.0
"""Kernels run through NumPy, block by block: the living definition of a kernel, and the fallback without a compiler.

A block of the iteration space goes through all instructions before the next one, in buffers that stay in cache, so a
chain of ops reads and writes main memory once. Values are held in the compute type; float32 sums add up in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorbackend import dtypes, numerics
from tensorbackend.backends import blas
from tensorbackend.graph.loops import collapse
from tensorbackend.graph.plan import Instruction, Kernel, Primitive

__all__ = ["Interpreter"]

BLOCK = 1 << 15
"""Elements of a block: 128 KiB of float32, so that a chain's few buffers stay in a core's L2 cache."""

Slices = tuple[slice, ...]
_ACCUMULATORS = {np.dtype(np.float32): np.dtype(np.float64)}
_MISPLACED = (np.isfinite, np.isnan, np.isinf)
"""Functions whose results NumPy (2.4, with AVX-512) puts in wrong places of an `out` whose elements are not side by
side: they are computed elsewhere and copied there."""


class Interpreter:
    """Runs kernels and primitives on NumPy arrays, in buffers that all kernels share: for one thread at a time."""

    def __init__(self) -> None:
        self._memory: list[np.ndarray] = []
        self._runs = False

    def kernel(self, kernel: Kernel, inputs: list, outputs: list, scalars: list, draws: list[int], key: int) -> None:
        """Run a kernel on arrays shaped as its references; `scalars` are numbers, `draws` the draws' numbers."""
        program = kernel.cache.get("interpreter")
        if program is None:
            program = kernel.cache["interpreter"] = _Program(kernel, self)
        shared = program.interpreter
        if shared._runs:  # what a finalizer or a signal's handler states in the middle of another kernel
            _Program(kernel, Interpreter()).run(inputs, outputs, scalars, draws, key)
            return
        try:
            shared._runs = True
            program.run(inputs, outputs, scalars, draws, key)
        finally:
            shared._runs = False

    def primitive(self, step: Primitive, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        """Run a primitive into `outputs`. Raises `IndexError` before writing when places are out of range."""
        operands = [_in_compute_type(x) for x in inputs]
        output = outputs[0]
        if step.op.name == "dot":
            operands = [dtypes.cast(x, output.dtype) if x.dtype != output.dtype else x for x in operands]
            with blas.threads_for(operands[0].shape[-1] * output.size):
                np.matmul(*operands, out=output)
            return
        if step.op.name in ("cumsum", "cumprod"):
            wide = dtypes.compute(output.dtype) if dtypes.is_float(output.dtype) else np.dtype(np.int64)
            operands = [x if x.dtype == wide else dtypes.cast(x, wide) for x in operands]
        result = step.op.numpy(*operands, *step.params)
        for value, place in zip(result if step.others else [result], outputs):
            dtypes.cast(value, place.dtype, place)

    def register(self, number: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Scratch of at most `BLOCK` elements in register `number`'s memory."""
        while len(self._memory) <= number:
            self._memory.append(np.empty(BLOCK * 8, np.uint8))
        return np.ndarray(shape, dtype, self._memory[number])


def _in_compute_type(x: np.ndarray) -> np.ndarray:
    wanted = dtypes.compute(x.dtype)
    return x if x.dtype == wanted else x.astype(wanted)


class _Program:
    """A kernel prepared for the interpreter: how the space is cut into blocks, and which buffer each value uses."""

    def __init__(self, kernel: Kernel, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.original = kernel
        self.kernel = kernel = collapse(kernel) if math.prod(kernel.shape) > BLOCK else kernel
        self.kept = [a for a in range(len(kernel.shape)) if a not in kernel.axes]
        self.reduced = list(kernel.axes)
        whole_rows = any(i.kind == "reduce" and i.op.combine is None for i in kernel.body)
        across = math.prod(kernel.shape[a] for a in self.reduced)
        self.kept_steps = _steps(kernel.shape, self.kept, max(1, BLOCK // max(across, 1)))
        self.reduced_steps = {} if whole_rows else _steps(kernel.shape, self.reduced, BLOCK)
        self.single = not self.kept_steps and not self.reduced_steps
        self.passes = 1 + max((i.stage for i in kernel.body), default=0)
        self.empty = 0 in kernel.shape
        self.registers = self._assign_registers()
        self.regular = self._regular_block()
        small = math.prod(self.regular) <= BLOCK and not self.empty  # an empty space may have long operands
        self.views = self._views(self.regular) if small else None
        self.direct = self._direct_output()
        self.full = [k for k, (ref, _) in enumerate(kernel.outputs) if any(ref.shape[a] != 1 for a in kernel.axes)]
        self.order = range(len(kernel.body))
        self.whole = (slice(None),) * len(kernel.shape)

    # Preparation

    def _assign_registers(self) -> list[int]:
        """A register for each value that needs one, reused once the value is dead. Ready only without later passes."""
        body = self.kernel.body
        last = list(range(len(body)))
        for number, i in enumerate(body):
            for a in i.args:
                last[a] = number
        for _, value in self.kernel.outputs:
            last[value] = len(body)
        if self.passes > 1:
            return list(range(len(body)))
        free: list[int] = []
        used = 0
        registers = []
        for number in range(len(body)):
            if free:
                registers.append(free.pop())
            else:
                registers.append(used)
                used += 1
            free += {registers[a] for a in body[number].args if last[a] == number}
            if last[number] == number:
                free.append(registers[number])
        return registers

    def _regular_block(self) -> tuple[int, ...]:
        """The shape of all blocks but the last of an axis."""
        return tuple(self.kept_steps.get(a, n) for a, n in enumerate(self.kernel.shape))

    def _views(self, block: tuple[int, ...]) -> list[np.ndarray]:
        """The buffer of each value over a block of at most `BLOCK` elements."""
        body = self.kernel.body
        shapes = [tuple(1 if n == 1 else b for n, b in zip(i.shape, block)) for i in body]
        return [self.interpreter.register(r, i.dtype, shape) for r, i, shape in zip(self.registers, body, shapes)]

    def _direct_output(self) -> dict[int, int]:
        """Values that can be computed in the output itself: of its type and shape, by a ufunc, read by nobody else."""
        direct: dict[int, int] = {}
        body = self.kernel.body
        if len(self.kernel.outputs) > 1:  # one statement's target may be what another reads
            return direct
        for position, (ref, value) in enumerate(self.kernel.outputs):
            i = body[value]
            used = any(value in other.args for other in body) or any(
                v == value for _, v in self.kernel.outputs[:position]
            )
            if (
                i.kind == "op"
                and isinstance(i.op.numpy, np.ufunc)
                and i.op.numpy not in _MISPLACED
                and i.shape == ref.shape
                and i.dtype == ref.dtype
                and not used
            ):
                direct[value] = position
        return direct

    # Running

    def run(self, inputs: list, outputs: list, scalars: list, draws: list[int], key: int) -> None:
        """Run over all blocks; the arrays have the shapes of the kernel's references before collapsing."""
        if self.empty and not any(ref.shape and 0 not in ref.shape for ref, _ in self.kernel.outputs):
            return
        kernel = self.kernel
        if kernel is not self.original:
            inputs = [_restrided(x, ref) for x, ref in zip(inputs, kernel.inputs)]
            outputs = [_restrided(x, ref) for x, (ref, _) in zip(outputs, kernel.outputs)]
        state = _State(inputs, outputs, scalars, draws, key)
        if self.single:
            values: list[Any] = [None] * len(kernel.body)
            self._instructions(state, values, None, self.order, self.views)
            self._store(state, values, None)
            return
        for place in _blocks(kernel.shape, self.kept_steps):
            self._block(state, place)

    def _block(self, state: _State, place: Slices) -> None:
        """One block of kept axes: the passes over the reduced axes, then the outputs."""
        kernel = self.kernel
        body = kernel.body
        if not self.reduced_steps:
            values: list[Any] = [None] * len(body)
            block = tuple(n if p.start is None else p.stop - p.start for p, n in zip(place, kernel.shape))
            views = self.views if block == self.regular or self.views is None else self._views(block)
            self._instructions(state, values, place, self.order, views)
            self._store(state, values, place)
            return
        rows: list[Any] = [None] * len(body)
        for stage in range(1, self.passes):
            wanted = [n for n, i in enumerate(body) if i.kind == "reduce" and i.stage == stage]
            needed = self._needed([a for n in wanted for a in body[n].args], rows)
            totals: dict[int, np.ndarray] = {}
            for part in _blocks(kernel.shape, self.reduced_steps):
                values = list(rows)
                within = _both(place, part)
                self._instructions(state, values, within, needed, None)
                for n in wanted:
                    partial = self._partial(body[n], values[body[n].args[0]], within)
                    totals[n] = partial if n not in totals else body[n].op.combine(totals[n], partial)
            for n in wanted:
                rows[n] = totals[n].astype(body[n].dtype, copy=False)
        if self.full:
            for part in _blocks(kernel.shape, self.reduced_steps):
                self._results(state, list(rows), _both(place, part), self.full)
        self._results(state, rows, place, [k for k in range(len(kernel.outputs)) if k not in self.full])

    def _results(self, state: _State, values: list, place: Slices, positions: list[int]) -> None:
        """Compute and store some of the outputs over a block."""
        needed = self._needed([self.kernel.outputs[k][1] for k in positions], values)
        self._instructions(state, values, place, needed, None)
        self._store(state, values, place, positions)

    def _needed(self, goals: list[int], known: list[Any]) -> list[int]:
        """The instructions that lead to `goals` from the values already known, in order."""
        needed: set[int] = set()
        stack = list(goals)
        while stack:
            n = stack.pop()
            if n not in needed and known[n] is None:
                needed.add(n)
                stack.extend(self.kernel.body[n].args)
        return sorted(needed)

    def _instructions(self, state: _State, values: list, place: Slices | None, order: Any, views: list | None) -> None:
        """Compute values of a block; a `place` of None is the whole space, `views` of None takes scratch as needed."""
        body, direct = self.kernel.body, self.direct
        for n in order:
            i = body[n]
            kind = i.kind
            if kind == "op":
                position = direct.get(n)
                if position is not None:
                    out = state.outputs[position]
                    out = out if place is None else out[_part(place, i.shape)]
                else:
                    out = views[n] if views is not None else None
                values[n] = i.op.numpy(*[values[a] for a in i.args], out=out)
            elif kind == "load":
                x = state.inputs[i.slot]
                x = x if place is None else x[_part(place, i.shape)]
                values[n] = x if x.dtype == i.dtype else dtypes.cast(x, i.dtype)
            elif kind == "scalar":
                values[n] = state.scalars[i.slot]
            elif kind == "cast":
                values[n] = dtypes.cast(values[i.args[0]], i.dtype)
            elif kind == "reduce":
                values[n] = self._partial(i, values[i.args[0]], place or self.whole).astype(i.dtype, copy=False)
            else:
                values[n] = _source(i, place or self.whole, state)

    def _partial(self, i: Instruction, x: np.ndarray, place: Slices) -> np.ndarray:
        """A reduction over the block's part of the reduced axes, in the accumulator's type."""
        space = self.kernel.shape
        block = tuple(len(range(*s.indices(m))) for s, m in zip(place, space))
        if x.ndim == 0:
            x = np.reshape(x, (1,) * len(block))
        if x.shape != block:
            lengths = tuple(m if a in self.kernel.axes else n for a, (m, n) in enumerate(zip(block, x.shape)))
            x = np.broadcast_to(x, lengths)
        wide = _ACCUMULATORS.get(i.dtype, i.dtype) if i.op.dtype == "sum" else i.dtype
        return i.op.numpy(x, self.kernel.axes, wide)

    def _store(self, state: _State, values: list, place: Slices | None, positions: list[int] | None = None) -> None:
        """Store outputs over a block (None: all of them)."""
        for position in range(len(self.kernel.outputs)) if positions is None else positions:
            ref, value = self.kernel.outputs[position]
            if value in self.direct:
                continue
            output = state.outputs[position]
            output = output if place is None else output[_part(place, ref.shape)]
            x = values[value]
            if x.dtype == output.dtype:
                np.copyto(output, x)
            else:
                x = x if x.shape == output.shape else np.broadcast_to(x, output.shape)
                dtypes.cast(x, output.dtype, output)


class _State:
    """What one run works on."""

    __slots__ = ("draws", "inputs", "key", "outputs", "scalars")

    def __init__(self, inputs: list, outputs: list, scalars: list, draws: list[int], key: int) -> None:
        self.inputs, self.outputs, self.scalars, self.draws, self.key = inputs, outputs, scalars, draws, key


def _restrided(x: np.ndarray, ref: Any) -> np.ndarray:
    """The array with merged axes."""
    if x.shape == ref.shape:
        return x
    strides = tuple(s * x.dtype.itemsize for s in ref.strides)
    return np.lib.stride_tricks.as_strided(x, ref.shape, strides)


def _steps(shape: tuple[int, ...], axes: list[int], block: int) -> dict[int, int]:
    """For each axis that is cut, how many entries a block takes, so that a block has about `block` elements."""
    steps: dict[int, int] = {}
    inner = math.prod(shape[a] for a in axes)
    for axis in axes:
        if inner <= block:
            break
        inner //= max(shape[axis], 1)
        steps[axis] = max(1, block // max(inner, 1)) if inner < block else 1
    return {axis: step for axis, step in steps.items() if step < shape[axis]}


def _blocks(shape: tuple[int, ...], steps: dict[int, int]) -> Iterator[Slices]:
    """The blocks of a space, as slices; axes that are not cut are whole."""
    whole = slice(None)
    choices = [
        [slice(i, min(i + steps[a], n)) for i in range(0, n, steps[a])] if a in steps else [whole]
        for a, n in enumerate(shape)
    ]
    return itertools.product(*choices)


def _both(place: Slices, part: Slices) -> Slices:
    return tuple(p if q == slice(None) else q for p, q in zip(place, part))


def _part(place: Slices, shape: tuple[int, ...]) -> Slices:
    """The part of a value that belongs to a block: whole where it does not vary."""
    return tuple(s if n != 1 else slice(None) for s, n in zip(place, shape))


def _source(i: Instruction, place: Slices, state: _State) -> np.ndarray:
    """Numbers that depend on the place alone: positions along an axis, or random numbers."""
    ranges = [np.arange(n, dtype=np.uint64)[s] for n, s in zip(i.shape, _part(place, i.shape))]
    if i.op.name == "index":
        shape = [1] * len(i.shape)
        shape[i.axis] = len(ranges[i.axis])
        return ranges[i.axis].astype(i.dtype).reshape(shape)
    position = np.zeros((1,) * len(i.shape), np.uint64)
    for axis, along in enumerate(ranges):
        step = np.uint64(math.prod(i.shape[axis + 1 :]))
        position = position + (along * step).reshape([-1 if a == axis else 1 for a in range(len(i.shape))])
    words = numerics.philox(position, state.draws[i.slot], state.key)
    return i.op.numpy(words, i.dtype)
