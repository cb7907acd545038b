# SPDX-License-Identifier: Apache-2.0
"""What primitives ask of their operands, and how they are read and written under the shapes of a geometry."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import DTypeError, ShapeError, complain
from tensorbackend.graph import composite
from tensorbackend.graph.optree import Operators
from tensorbackend.graph.tensor import Tensor, check_writable

__all__ = [
    "check", "check_column", "check_output", "float_type", "matrix", "repeated", "size", "sums_of_maps",
]  # fmt: skip


size = math.prod


def matrix(dim: tuple[int, ...]) -> tuple[int, int]:
    """A shape with all axes but the last as one."""
    return math.prod(dim[:-1]), dim[-1]


def float_type(name: str, dtype: Any) -> np.dtype:
    """A layer's element type. Raises `DTypeError` for one that is no float."""
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
            wanted = "a float type" if dtype is None else f"{dtype}, the layer's"
            raise DTypeError(complain(f"{name}: type of {letter}", str(x.dtype), wanted))
        if x.shape is None or math.prod(x.shape) != math.prod(dim):
            raise ShapeError(complain(f"{name}: size of {letter}", f"{x.shape}", f"{math.prod(dim)} elements: {dim}"))


def check_output(name: str, out: Any, *inputs: Any) -> None:
    """That an output is a tensor that can be written and shares no memory with what is read.

    Raises `TypeError` for an op-tree, `ValueError` for the rest.
    """
    if not isinstance(out, Tensor):
        raise TypeError(complain(f"{name}: the output", type(out).__name__, "a tensor"))
    check_writable(out)
    for x in inputs:
        if isinstance(x, Tensor) and x.start < out.stop and out.start < x.stop:
            given = f"output {out.shape}, operand {x.shape}"
            raise ValueError(complain(f"{name}: the output overlaps an operand", given, "distinct memory"))


def check_column(name: str, what: str, x: Any, maps: int, *others: Any) -> None:
    """That a column (maps, 1) of sums can be written and shares no memory with `others`."""
    check(name, None, **{what: (x, (maps, 1))})
    check_output(f"{name}: {what}", x, *others)


def sums_of_maps(out: Tensor, x: Any, dim: tuple[int, ...]) -> None:
    """out (maps, 1) = the sums of x over all but its first axis; halves add up in float32."""
    sums = composite.sum(composite.reshape(x, dim), (1, 2, 3, 4))
    out._assign(composite.reshape(sums, out.shape))


def repeated(backend: Any, repeat: int, run: Callable[[], Any], flops: int,
             name: str = "a primitive") -> tuple[float, float] | None:  # fmt: skip
    """Run once; or, for timing, a tenth of `repeat` times and then `repeat`: (milliseconds a run, GFLOP/s), which is
    also logged and one of the backend's `bench_records`, under `name`."""
    if repeat <= 1:
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
