# SPDX-License-Identifier: Apache-2.0
"""What primitives ask of their operands, and how they are read and written under the shapes of a geometry."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import BackendError, DTypeError, ShapeError, complain
from tensorbackend.graph import composite, indexing
from tensorbackend.graph.optree import Operators
from tensorbackend.graph.symbol import is_symbol
from tensorbackend.graph.tensor import Tensor, check_writable, share_memory
from tensorbackend.ops import Op

__all__ = [
    "assign", "call", "check", "check_column", "check_function", "check_home", "check_integers", "check_layer",
    "check_output", "check_parallelism", "float_type", "matrix", "numbers", "repeated", "runs", "size", "sums_of_maps",
]  # fmt: skip


size = math.prod
PARALLELISM = ("Data", "Model", "Disabled", "Unknown")
"""How a layer of several devices shares its work; None: not said."""


def matrix(dim: tuple[int, ...]) -> tuple[int, int]:
    """A shape with all axes but the last as one."""
    return math.prod(dim[:-1]), dim[-1]


def float_type(name: str, dtype: Any) -> np.dtype:
    """A layer's element type. Raises `DTypeError` for one that is no float, and for None (NumPy's float64)."""
    if dtype is None:
        raise DTypeError(complain(f"{name}: element type", "None", "a float", "be.default_dtype"))
    found = dtypes.as_dtype(dtype)
    if not dtypes.is_float(found):
        raise DTypeError(complain(f"{name}: element type", found.name, "a float"))
    return found


def check(name: str, dtype: np.dtype | None, **named: tuple[Any, tuple[int, ...]]) -> None:
    """That each operand is of the type (None: any float) and has as many elements as the shape beside it.

    Raises `TypeError` for what is neither tensor nor op-tree, `DTypeError` and `ShapeError`.
    """
    for letter, (x, dim) in named.items():
        if not isinstance(x, Operators):
            raise TypeError(complain(f"{name}: {letter}", type(x).__name__, "a tensor", "be.array(x)"))
        if x.dtype != dtype if dtype is not None else not dtypes.is_float(x.dtype):
            wanted = "a float type" if dtype is None else str(dtype)
            raise DTypeError(complain(f"{name}: type of {letter}", str(x.dtype), wanted))
        if x.shape is None or math.prod(x.shape) != math.prod(dim):
            raise ShapeError(complain(f"{name}: size of {letter}", f"{x.shape}", f"{math.prod(dim)} elements: {dim}"))


def check_layer(name: str, layer: Any, kind: type, maker: str, ops: tuple[str, ...] = ()) -> None:
    """That a layer is one that the method `maker` made; `ops`: what it may be for, where the class does not say it.

    Raises `TypeError`.
    """
    if not isinstance(layer, kind):
        raise TypeError(complain(f"{name}: layer", type(layer).__name__, f"what be.{maker} returned"))
    if ops and layer.op not in ops:
        raise TypeError(complain(f"{name}: layer", repr(layer), f"what be.{maker} returned"))


def check_output(name: str, out: Any, *inputs: Any) -> None:
    """That an output is a tensor that can be written and shares no memory with what is read.

    Raises `TypeError` for an op-tree, `ValueError` for the rest.
    """
    if not isinstance(out, Tensor):
        raise TypeError(complain(f"{name}: the output", type(out).__name__, "a tensor"))
    check_writable(out)
    for x in inputs:
        if isinstance(x, Tensor) and share_memory(x, out):
            given = f"output {out.shape}, operand {x.shape}"
            raise ValueError(complain(f"{name}: the output overlaps an operand", given, "distinct memory"))


def check_integers(name: str, values: int, **named: tuple[Any, tuple[int, ...]]) -> None:
    """That each is a tensor of integers that hold 0 to `values` - 1, of the size of the shape beside it.

    Raises `TypeError`, `DTypeError` and `ShapeError`.
    """
    for letter, (x, dim) in named.items():
        if not isinstance(x, Tensor):
            raise TypeError(complain(f"{name}: {letter}", type(x).__name__, "a tensor"))
        if not dtypes.is_integer(x.dtype) or np.iinfo(x.dtype).max < values - 1:
            wanted = "integers" if values < 2 else f"integers up to {values - 1}"
            raise DTypeError(complain(f"{name}: type of {letter}", str(x.dtype), wanted))
        if x.size != math.prod(dim):
            raise ShapeError(complain(f"{name}: size of {letter}", f"{x.shape}", f"{math.prod(dim)} elements: {dim}"))


Shaped = tuple[Any, tuple[int, ...]]
"""An operand and the shape under which a primitive sees it."""


def call(backend: Any, op: Op, params: tuple, outputs: list[Shaped], inputs: list[Shaped], repeat: int = 1,
         whole: bool = False) -> None:  # fmt: skip
    """Run a primitive of several results; `params` are its geometry, alpha, beta and more. All else is checked.

    Operands are views of their tensors in which neighbours along the last axis lie side by side (`whole`: that are
    contiguous), or copies where no such view exists. Where beta is not 0 the first output is read, too.
    """
    views = [_viewed(backend, *pair, whole) for pair in inputs]
    read = [_copied(backend, *pair) if view is None else view for view, pair in zip(views, inputs)]
    views = [None if out.rounding else _viewed(backend, out, dim, whole) for out, dim in outputs]
    places = [_copied(backend, *pair) if view is None else view for view, pair in zip(views, outputs)]
    old = places[:1] if params[2] != 0 else []
    repeated(backend, repeat, lambda: backend._call(op, params, places, [*read, *old]), op.work(*params), op.name)
    for (out, _), view, place in zip(outputs, views, places):
        if view is None:
            assign(out, place)


def check_home(backend: Any, x: Any) -> None:
    """That an operand belongs to a backend. Raises `BackendError`."""
    if x.structure.table is not backend.structures:
        x.structure.table.check_open()
        given = f"{x.backend!r} and {backend!r}"
        raise BackendError(complain("tensors of different backends", given, "one backend", "be.array(t.get())"))


def _viewed(backend: Any, x: Any, dim: tuple[int, ...], whole: bool) -> Tensor | None:
    """The view of an operand that kernels take; None where there is none."""
    check_home(backend, x)
    strides = _strides(x.shape, x.strides, dim, whole) if isinstance(x, Tensor) else None
    return None if strides is None else x._view(dim, strides, 0)


@functools.lru_cache(maxsize=1024)
def _strides(shape: tuple[int, ...], strides: tuple[int, ...], dim: tuple[int, ...],
             whole: bool) -> tuple[int, ...] | None:  # fmt: skip
    """The strides of that view."""
    found = indexing.view_strides(shape, strides, dim)
    if found is None:
        return None
    checked = list(zip(dim, found, indexing.contiguous_strides(dim)))
    fits = all(n == 1 or have == wanted for n, have, wanted in (checked if whole else checked[-1:]))
    return found if fits else None


def _copied(backend: Any, x: Any, dim: tuple[int, ...]) -> Tensor:
    made = backend.empty(dim, x.dtype, min_dims=0)
    return made._assign(composite.reshape(x, dim))


def assign(out: Tensor, value: Any) -> None:
    """Assign a tree to an output of another shape: to a view of it, if there is one, so that no copy is needed."""
    view = composite.reshape(out, value.shape)
    if isinstance(view, Tensor):
        view._assign(value)
    else:
        out._assign(composite.reshape(value, out.shape))


def check_column(name: str, what: str, x: Any, maps: int, *others: Any) -> None:
    """That a column (maps, 1) of sums can be written, is of the backend of `others` and shares no memory with them."""
    check(name, None, **{what: (x, (maps, 1))})
    check_home(others[0].backend, x)
    check_output(f"{name}: {what}", x, *others)


def sums_of_maps(out: Tensor, x: Any, dim: tuple[int, ...]) -> None:
    """out (maps, 1) = the sums of x over all but its first axis; halves add up in float32."""
    sums = composite.sum(composite.reshape(x, dim), (1, 2, 3, 4))
    out._assign(composite.reshape(sums, out.shape))


def check_numbers(name: str, **named: Any) -> None:
    """Raise `TypeError` for scales and powers that are no real numbers, nor numbers that change in a program."""
    for letter, x in named.items():
        if isinstance(x, (int, float)) or is_symbol(x):  # a symbol says itself why it is no float
            continue
        host = None if isinstance(x, (Operators, list, tuple)) else np.asarray(x)
        if host is None or host.ndim or not (dtypes.is_float(host.dtype) or host.dtype.kind in "biu"):
            raise TypeError(complain(f"{name}: {letter}", type(x).__name__, "a number"))


def numbers(name: str, **named: Any) -> list[float]:
    """Scales and powers as Python's floats. Raises as `check_numbers`, and `OverflowError` for larger integers.

    A NumPy scalar of a narrow type would round what is worked out with it, and a tensor's value would be read once.
    """
    check_numbers(name, **named)
    return [_double(f"{name}: {letter}", x) for letter, x in named.items()]


def _double(head: str, x: Any) -> float:
    try:
        return float(x)
    except OverflowError:
        raise OverflowError(complain(head, f"{int(x).bit_length()} bits", "a number that fits float64")) from None


def check_function(name: str, what: str, f: Any, method: str = "") -> None:
    """That an activation or transform can be called, or has a method. Raises `TypeError`."""
    if not callable(getattr(f, method, None) if method else f):
        expected = f"an object with a method {method}" if method else "a function of op-trees"
        raise TypeError(complain(f"{name}: {what}", repr(f), expected))


def runs(name: str, repeat: Any) -> int:
    """How often a call is to run. Raises `TypeError` for what is no integer (a tensor's `int` is its address),
    `ValueError` for less than 1."""
    if not isinstance(repeat, (int, np.integer)):
        raise TypeError(complain(f"{name}: repeat", type(repeat).__name__, "an int"))
    if repeat < 1:
        raise ValueError(complain(f"{name}: repeat", f"{repeat}", "1, or more to time it"))
    return int(repeat)


def check_parallelism(name: str, parallelism: Any) -> None:
    """Raise `ValueError` for what is no name of `PARALLELISM`, nor None."""
    if parallelism is not None and parallelism not in PARALLELISM:
        expected = f"one of {', '.join(PARALLELISM)}, or None"
        raise ValueError(complain(f"{name}: parallelism", repr(parallelism), expected))


def repeated(backend: Any, repeat: int, run: Callable[[], Any], flops: int,
             name: str = "a primitive") -> tuple[float, float] | None:  # fmt: skip
    """Run once; or, for timing, a tenth of `repeat` times and then `repeat`: (milliseconds a run, GFLOP/s), which is
    also logged and one of the backend's `bench_records`, under `name`."""
    if runs(name, repeat) <= 1:
        run()
        return None
    for _ in range(max(repeat // 10, 1)):
        run()
    start, end = backend.init_mark(), backend.init_mark()
    backend.record_mark(start)
    for _ in range(repeat):
        run()
    backend.record_mark(end)
    backend.synchronize_mark(end)
    return backend._record_repeats(name, repeat, backend.get_time(start, end) / repeat, flops)
