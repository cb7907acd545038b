# SPDX-License-Identifier: Apache-2.0
"""Random trees: what users can write, of any types, shapes and layouts, decided by a string of bytes.

Bytes can be drawn and shrunk by any fuzzer. A byte of 0, or the end of the bytes, stands for the plainest choice, so
that shorter and smaller bytes mean simpler trees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.backends.base import Backend
from tensorbackend.graph import composite
from tensorbackend.graph.optree import OpTreeNode, apply
from tensorbackend.testing.bounds import is_float
from tensorbackend.testing.inputs import sample

LARGEST = 4096
NUMBERS = (2, 0.5, True, 3, -1.5, 0, np.float32(1.25), np.int8(2), np.float64(0.1), np.uint16(3), np.bool_(True),
           math.inf)  # fmt: skip
_NAMES = ("float32", "float64", "bfloat16", "float16", "int32", "int8", "uint8", "int64", "bool", "uint32", "int16")
DTYPES = tuple(map(dtypes.as_dtype, _NAMES))


def _broadcasts(*shapes: tuple[int, ...]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(*shapes)) <= LARGEST
    except ValueError:
        return False


def _itself(x: Any) -> Any:
    return x


def _any(x: Any) -> bool:
    return True


def _is_whole(x: Any) -> bool:
    return not is_float(x.dtype)


def _is_whole_type(*given: np.dtype) -> bool:
    return not is_float(np.result_type(*given))


class Choices:
    """Decisions read from bytes, one byte each."""

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def below(self, n: int) -> int:
        """A number from 0 to n - 1."""
        return next(self._bytes, 0) % n

    def of(self, alternatives: Sequence) -> Any:
        """One of several alternatives, the first the plainest."""
        return alternatives[self.below(len(alternatives))]

    def chance(self, n: int) -> bool:
        """Once in n times."""
        return self.below(n) == n - 1


@dataclass
class Forest:
    """Trees that grow on one backend: `pool` holds the tensors and nodes to combine, the latest last.

    `lengths` are the axes from which leaves take theirs; `types` the types of leaves. `random` is the one random node.
    """

    backend: Backend
    choices: Choices
    types: tuple[np.dtype, ...] = DTYPES
    lengths: tuple[int, ...] = ()
    pool: list[Any] = field(default_factory=list)
    random: Any = None

    def __post_init__(self) -> None:
        if not self.lengths:
            rank = self.choices.of((2, 1, 3, 0, 4))
            self.lengths = tuple(self.choices.of((3, 1, 4, 2, 7, 0, 33, 130)) for _ in range(rank))

    def grow(self, nodes: int) -> OpTreeNode:
        """A tree of up to `nodes` random steps."""
        for _ in range(1 + self.choices.below(3)):
            self.pool.append(self.leaf())
        for _ in range(1 + self.choices.below(nodes)):
            made = self.choices.of(_STEPS)(self)
            if made is not None and (made.size <= LARGEST):
                self.pool.append(made)
        root = self.pool[-1]
        return root if isinstance(root, OpTreeNode) else apply(ops.OPS["maximum"], root, root)

    def leaf(self, shape: tuple[int, ...] | None = None, dtype: np.dtype | None = None) -> Any:
        """A tensor of random type, layout and numbers, of a shape that broadcasts to the lengths."""
        c = self.choices
        if shape is None:
            kept = self.lengths[c.below(len(self.lengths) + 1) if c.chance(3) else 0 :]
            shape = tuple(1 if c.chance(5) else n for n in kept)
        while math.prod(shape) > LARGEST:
            shape = shape[1:]
        dtype = dtype or c.of(self.types)
        (array,) = sample(ops.OPS["add"], (shape,), dtype, seed=c.below(256), special=c.chance(3))[:1]
        return self._laid_out(array)

    def _laid_out(self, array: np.ndarray) -> Any:
        """The array as a tensor with one of several strides."""
        layout = self.choices.below(6) if array.ndim else 0
        back = (slice(None, None, -1),) * array.ndim
        inner = (slice(1, -1),) * array.ndim
        arrange, view = {
            1: (lambda a: np.repeat(a, 2, -1), lambda t: t[..., ::2]),
            2: (lambda a: a[back], lambda t: t[back]),
            3: (lambda a: a.T, lambda t: t.T),
            4: (lambda a: np.pad(a, 1), lambda t: t[inner]),
        }.get(layout, (_itself, _itself))
        return view(self.backend.array(arrange(array), dtype=array.dtype, min_dims=0))

    def pick(self, suits: Callable[[Any], bool] = _any) -> Any:
        """A tensor or node of the pool that suits, preferably a late one; None if there is none."""
        suitable = [x for x in reversed(self.pool) if suits(x)]
        return self.choices.of(suitable) if suitable else None

    def partner(self, x: Any, suits: Callable[[Any], bool] = _any) -> Any:
        """Something that broadcasts with `x`."""
        return self.pick(lambda y: suits(y) and _broadcasts(x.shape, y.shape))

    def number(self, beside: Any) -> Any:
        """A Python or NumPy number that fits beside an operand."""
        number = self.choices.of(NUMBERS)
        return 3 if beside.dtype.kind == "u" and number is not True and number < 0 else number


_OPS = [op for op in ops.elementwise() if op.name != "sround"]
_BINARY = [op for op in _OPS if op.arity == 2]
_UNARY = [op for op in _OPS if op.arity == 1]


def _unary(f: Forest) -> Any:
    op = f.choices.of(_UNARY)
    x = f.pick(_is_whole if op.dtype in ("bits", "integer") else _any)
    return x if x is None else apply(op, x)


def _binary(f: Forest) -> Any:
    op = f.choices.of(_BINARY)
    suits = _is_whole if op.dtype in ("bits", "integer") else _any
    x = f.pick(suits)
    if x is None:
        return None
    # NumPy 2 makes a float of uint64 beside a signed integer, whose bits are refused.
    return apply(op, x, f.partner(x, lambda y: suits(y) and (suits is _any or _is_whole_type(x.dtype, y.dtype))))


def _with_number(f: Forest) -> Any:
    op = f.choices.of([op for op in _BINARY if op.dtype not in ("bits", "integer")])
    x = f.pick()
    number = f.number(x)
    return apply(op, number, x) if f.choices.chance(3) else apply(op, x, number)


def _where(f: Forest) -> Any:
    x = f.pick()
    y = f.partner(x)
    condition = f.pick(lambda c: _broadcasts(x.shape, y.shape, c.shape))
    if condition is None:
        return None
    return apply(ops.OPS["where"], condition, x, f.number(x) if f.choices.chance(4) else y)


def _reduction(f: Forest) -> Any:
    op = f.choices.of(ops.reductions())
    x = f.pick()
    some = tuple(a for a in range(x.ndim) if f.choices.chance(2))
    axis = f.choices.of((None, some, *range(-x.ndim, 0)))
    chosen = x.shape if axis is None else tuple(x.shape[a] for a in (axis if isinstance(axis, tuple) else (axis,)))
    if op.name in ("max", "min", "argmax", "argmin") and 0 in chosen:
        return None
    return getattr(composite, op.name)(x, axis, f.choices.chance(2))


def _comparison_sum(f: Forest) -> Any:
    x = f.pick()
    return apply(ops.OPS["add"], x > f.partner(x), x < f.number(x))


def _transpose(f: Forest) -> Any:
    x = f.pick(lambda x: x.ndim > 1)
    if x is None:
        return None
    rest = list(range(x.ndim))
    return x.transpose([rest.pop(f.choices.below(len(rest))) for _ in range(x.ndim)])


def _reshape(f: Forest) -> Any:
    x = f.pick()
    at = f.choices.below(x.ndim + 1)
    shapes = [(x.size,), (*x.shape[:at], 1, *x.shape[at:]), tuple(n for n in x.shape if n != 1)]
    if x.ndim > 1:
        shapes.append((x.shape[0] * x.shape[1], *x.shape[2:]))
    return composite.reshape(x, f.choices.of(shapes))


_INDICES = (slice(None), slice(None, None, -1), slice(1, None), slice(None, None, 2), slice(-2, None), 0, -1)


def _slice(f: Forest) -> Any:
    x = f.pick()
    key = [f.choices.of(_INDICES if n else _INDICES[:5]) for n in x.shape]
    if f.choices.chance(4):
        key.insert(f.choices.below(len(key) + 1), None)
    return x[tuple(key)]


def _broadcast(f: Forest) -> Any:
    x = f.pick()
    shape = tuple(2 if n == 1 and f.choices.chance(2) else n for n in x.shape)
    return composite.broadcast_to(x, (3, *shape) if f.choices.chance(3) and x.ndim < 5 else shape)


def _dot(f: Forest) -> Any:
    x = f.pick(lambda x: x.ndim > 1)
    if x is None:
        return None
    other = composite.swap_last(x) if f.choices.chance(3) else f.leaf((x.shape[-1], f.choices.of((3, 1, 5))))
    return x @ other


def _cumsum(f: Forest) -> Any:
    x = f.pick(lambda x: x.ndim > 0)
    return x if x is None else f.backend.cumsum(x, f.choices.below(x.ndim))


def _take(f: Forest) -> Any:
    x = f.pick(lambda x: x.ndim > 0 and x.size > 0)
    if x is None:
        return None
    axis = f.choices.below(x.ndim)
    places = [f.choices.below(x.shape[axis]) for _ in range(1 + f.choices.below(4))]
    return f.backend.take(x, np.array(places), axis)


def _random(f: Forest) -> Any:
    if f.random is not None:
        return None
    f.random = f.backend.rand(shape=f.lengths)
    return f.random


_STEPS = (_binary, _unary, _with_number, _reduction, _where, _binary, _unary, _reduction, _comparison_sum, _transpose,
          _slice, _broadcast, _reshape, _dot, _cumsum, _take, _random)  # fmt: skip
