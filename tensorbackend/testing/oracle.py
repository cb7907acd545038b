# SPDX-License-Identifier: Apache-2.0
"""The oracle: any tree on whole arrays, in extended precision, by rules of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend import ops
from tensorbackend.backends.base import Backend
from tensorbackend.graph.optree import Operators, OpTreeNode, nodes_of
from tensorbackend.testing.bounds import BOOL, WIDE, Bounded, compute, converted, is_float, spacing
from tensorbackend.testing.elementwise import elementwise
from tensorbackend.testing.inputs import compiles
from tensorbackend.testing.reductions import PRIMITIVES, reduce

# Types by the documented rules


def result_type(op: ops.Op, operands: list[Any], default: np.dtype) -> tuple[np.dtype, np.dtype]:
    """The type of an op's result and the type its operands are read in.

    `operands` are dtypes, or int, float or bool for a Python number. Written from the rules, not from the engine's
    code: NumPy 2 promotion, but an integer beside a float takes the float's type, and integers divide to the default.
    """
    choice = operands[1:] if op.name == "where" else operands
    weak = {t for t in choice if isinstance(t, type)}
    common = _common([t for t in choice if isinstance(t, np.dtype)], weak, default)
    if op.dtype == "arith" or op.dtype == "integer":
        common = np.dtype(np.int64) if common == BOOL else common
    if op.dtype == "float" and not is_float(common):
        common = default
    if op.dtype in ("sum", "product") and not is_float(common):
        common = np.dtype(np.uint64 if common.kind == "u" else np.int64)
    if op.dtype == "first":
        common = operands[0]
    if op.dtype == "mixed":  # uint64 beside signed integers: they compare as they are
        common = WIDE
    fixed = {"truth": np.dtype(bool), "mixed": np.dtype(bool), "index": np.dtype(np.int64)}
    return fixed.get(op.dtype, common), common


def _common(strong: list[np.dtype], weak: set[type], default: np.dtype) -> np.dtype:
    floats = {t for t in strong if is_float(t)}
    if len(floats) > 1 and all(t.itemsize == 2 for t in floats):
        return np.dtype(np.float32)
    if floats:
        return max(floats, key=lambda t: t.itemsize)
    whole = np.result_type(*strong) if strong else np.dtype(bool)
    if is_float(whole):
        return whole
    if float in weak:
        return default
    if int in weak and whole == BOOL:
        return np.dtype(np.int64)
    return whole


# Evaluation


def reference(expression: Any, backend: Backend | None = None, draws: dict[int, int] | None = None) -> Bounded:
    """The value of a tree, tensor or number with bounds. `draws` gives the draw's number of random nodes, by id.

    Sources need a shape of their own. Fails where a node's type is not the one the rules give.
    """
    if not isinstance(expression, Operators):
        value = np.asarray(expression)
        value = value.astype(WIDE) if is_float(value.dtype) else value
        return Bounded(value, np.zeros(value.shape, WIDE), np.asarray(expression).dtype)
    if not isinstance(expression, OpTreeNode):
        return _leaf(expression)
    found: dict[int, Bounded] = {}
    with np.errstate(all="ignore"):
        for node in nodes_of(expression):
            found[id(node)] = _evaluate(node, found, draws or {})
            assert node.dtype == found[id(node)].dtype, f"{node!r}: the rules give {found[id(node)].dtype}"
    return found[id(expression)]


def _leaf(tensor: Any) -> Bounded:
    value = tensor.get()
    value = converted(value, WIDE) if is_float(value.dtype) else value
    return Bounded(value, np.zeros(value.shape, WIDE), tensor.dtype)


def _evaluate(node: OpTreeNode, found: dict[int, Bounded], draws: dict[int, int]) -> Bounded:
    op, backend = node.structure.op, node.backend
    if op.kind == ops.SOURCE:
        return _source(node, backend, draws.get(id(node), getattr(node, "draw", None)))
    kinds = [x.dtype if isinstance(x, Operators) else _kind(x) for x in node.inputs]
    dtype, operands = result_type(op, kinds, backend.default_dtype)
    read = compute(operands)
    args = []
    for position, x in enumerate(node.inputs):
        raw = op.name in ("take", "put") and position == 1 or op.name == "where" and position == 0
        given = (found[id(x)] if isinstance(x, OpTreeNode) else _leaf(x)) if isinstance(x, Operators) else None
        wanted = read if not raw else np.dtype(bool) if op.name == "where" else given.dtype
        args.append(_number(x, wanted) if given is None else _cast(given, wanted))
    if op.kind == ops.MOVEMENT:
        return _moved(op, args[0], node)
    if op.kind == ops.REDUCTION:
        value, error = reduce(op, args[0], node.structure.params[0], read)
    elif op.kind == ops.PRIMITIVE:
        value, error = PRIMITIVES[op.name](*args, *node.structure.params)
    else:
        value, error = elementwise(op, args, read, dtype, compiles(backend))
        if _is_gate(node) and read == np.float32:
            error = error + ops.GATE.ulps * spacing(value, read)
    return _finished(value, error, dtype)


def _is_gate(node: OpTreeNode) -> bool:
    """Whether kernels may compute a product and its two factors at once."""
    factors = {x.structure.op.name for x in node.inputs if isinstance(x, OpTreeNode)}
    return node.structure.op.name == "mul" and factors == {"sig", "tanh"}


def _kind(number: Any) -> Any:
    if isinstance(number, np.generic):
        return number.dtype
    return next(t for t in (bool, int, float) if isinstance(number, t))


def _number(x: Any, dtype: np.dtype) -> Bounded:
    value = np.asarray(converted(np.asarray(x), dtype))
    return Bounded(value.astype(WIDE) if is_float(dtype) else value, np.zeros((), WIDE), dtype)


def _cast(x: Bounded, dtype: np.dtype) -> Bounded:
    """An operand read in a compute type."""
    if dtype == BOOL and x.value.dtype != BOOL:
        unsure = (x.error > 0) & (np.abs(x.value) <= x.error)
        return Bounded(x.value != 0, np.where(unsure, np.inf, 0).astype(WIDE), dtype)
    if not is_float(dtype):
        return Bounded(x.value.astype(dtype), x.error, dtype)
    rounded = x.value.astype(dtype)
    error = np.where(x.error > 0, x.error + spacing(x.value, dtype), 0)
    return Bounded(rounded.astype(WIDE), error, dtype)


def _finished(value: np.ndarray, error: np.ndarray, dtype: np.dtype) -> Bounded:
    """A result in its type: overflow becomes infinity, and where it might or might not, nothing is known."""
    if not is_float(dtype):
        return Bounded(np.asarray(value), np.where(error > 0, np.inf, 0).astype(WIDE), dtype)
    limit = WIDE.type(np.finfo(compute(dtype)).max) * (1 + 2.0**-25 if compute(dtype) == np.float32 else 1 + 2.0**-54)
    size = np.abs(value)
    certain = np.where(size - error >= limit, 0, np.where(size + error >= limit, np.inf, error))
    value = np.where(size >= limit, np.copysign(WIDE.type(np.inf), value), value)
    error = np.where(np.isfinite(value) | (error == np.inf), certain, 0)
    return Bounded(value, np.where(np.isnan(error), np.inf, error).astype(WIDE), dtype)


# Movements and sources


def _moved(op: ops.Op, x: Bounded, node: OpTreeNode) -> Bounded:
    (param,) = node.structure.params
    function = {
        "transpose": lambda a: np.transpose(a, param),
        "reshape": lambda a: np.reshape(a, param),
        "broadcast": lambda a: np.broadcast_to(a, param),
        "slice": lambda a: a[param],
    }[op.name]
    value, error = function(x.value), function(x.error)
    if op.name == "slice":  # an integer index keeps its axis where the rank would fall below the tensor's least
        value, error = value.reshape(node.shape), error.reshape(node.shape)
    return Bounded(value, error, node.inputs[0].dtype)


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox-4x32-10 on Python integers: four words from a counter of four words under a key of two (Salmon 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 % 2**32, p0 >> 32 ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def _source(node: OpTreeNode, backend: Backend, draw: int | None) -> Bounded:
    name, shape, dtype = node.structure.op.name, node.shape, node.dtype
    if name == "index":
        place = np.indices(shape)[node.structure.params[0]]
        return Bounded(place.astype(np.int64), np.zeros(shape, WIDE), dtype)
    key = backend._key % 2**32, backend._key >> 32
    words = [philox((i % 2**32, i >> 32, draw % 2**32, draw >> 32), key) for i in range(math.prod(shape))]
    form, slack = _DISTRIBUTIONS[name]
    value = np.array([form(w, dtype.itemsize == 8) for w in words], WIDE if is_float(dtype) else dtype).reshape(shape)
    eps = np.finfo(compute(dtype)).eps if slack else 0
    return Bounded(value, slack * eps * (1 + np.abs(value.astype(WIDE))), dtype)


def _uniform(words: tuple[int, ...], double: bool) -> float:
    return ((words[0] >> 5) * 2**26 + (words[1] >> 6)) * 2.0**-53 if double else (words[0] >> 8) * 2.0**-24


def _normal(words: tuple[int, ...], double: bool) -> float:
    if double:
        u, v = _uniform(words, True) + 2.0**-53, _uniform(words[2:], True)
    else:
        u, v = _uniform(words, False) + 2.0**-24, _uniform(words[1:], False)
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)


_DISTRIBUTIONS: dict[str, tuple[Callable, float]] = {
    "rand": (_uniform, 0.0),
    "randn": (_normal, 32.0),
    "randbits": (lambda words, double: words[0], 0.0),
}
