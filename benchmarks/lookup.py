# SPDX-License-Identifier: Apache-2.0
"""Look-ups in a table beside NumPy, PyTorch and JAX; their gradient beside PyTorch's embedding, its operator and JAX.

Words are drawn by Zipf's law, as in text; the shape says vocabulary, columns, look-ups. The error lies as each library
has it: (columns, look-ups) here, (look-ups, columns) elsewhere. All gradients write the whole table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import libraries
import numpy as np

from tensorbackend import bench


@dataclass(frozen=True)
class Table:
    """A table of so many words and columns, and a batch of look-ups."""

    words: int
    columns: int
    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        """What the table of results shows."""
        return self.words, self.columns, self.count


TABLES = [Table(1000, 128, 20480), Table(10000, 200, 12800), Table(10000, 650, 700), Table(30522, 768, 4096),
          Table(50257, 768, 8192), Table(50257, 64, 16384)]  # fmt: skip
"""Characters, reviews, a recurrent language model, BERT, GPT-2, and a narrow one."""


@cache
def data(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Words by Zipf's law, and errors (look-ups, columns) in float32."""
    draw = np.random.default_rng(0)
    weights = 1 / np.arange(1, table.words + 1)
    ids = draw.choice(table.words, table.count, p=weights / weights.sum())
    return draw.permutation(table.words)[ids], draw.standard_normal((table.count, table.columns), dtype=np.float32)


def ours(table: Table, dtype: str, options: Any, jit: bool = True) -> bench.Contender:
    """The engine."""
    be = libraries.backend(options, jit)
    ids, errors = data(table)
    inputs, error = be.array(ids[None], dtype=np.int32), be.array(np.ascontiguousarray(errors.T), dtype=dtype)
    turned, dW = be.empty(errors.shape, dtype=dtype), be.empty((table.words, table.columns), dtype=dtype)
    call = partial(be.compound_bprop_lut, 1, inputs, error, turned, dW, None)
    return libraries.own(call, dW.get, jit)


def torch(table: Table, dtype: str, how: str) -> bench.Contender:
    """PyTorch: through autograd, as a program calls it, or the operator alone."""
    library = libraries.Torch()
    t = library.torch
    ids, errors = data(table)
    inputs, error = library.array(ids), library.array(errors).to(getattr(t, dtype))
    kept = [None]
    if how == "torch":
        with t.enable_grad():
            W = t.zeros((table.words, table.columns), dtype=error.dtype, requires_grad=True)
            y = t.nn.functional.embedding(inputs, W)

    def call() -> None:
        if how == "torch":
            (kept[0],) = t.autograd.grad(y, W, error, retain_graph=True)
        else:
            kept[0] = t.ops.aten.embedding_dense_backward(error, inputs, table.words, -1, False)

    return bench.Contender(how, call, lambda: library.numpy(kept[0]))


def jax(table: Table, dtype: str) -> bench.Contender:
    """JAX: an addition at places, into a donated table."""
    library = libraries.Jax()
    ids, errors = data(table)
    add = library.jax.jit(lambda o, i, e: (o * 0).at[i].add(e), donate_argnums=0)
    arrays = [library.array(ids.astype(np.int32)), library.array(errors.astype(libraries.dtype_of(dtype)))]
    zeros = library.array(np.zeros((table.words, table.columns), libraries.dtype_of(dtype)))
    return library.donating(add, None, zeros, arrays)


def rows(table: Table, dtype: str) -> np.ndarray:
    """A table's words."""
    numbers = np.random.default_rng(1).standard_normal((table.words, table.columns), dtype=np.float32)
    return numbers.astype(libraries.dtype_of(dtype))


def ours_forward(table: Table, dtype: str, options: Any, jit: bool = True) -> bench.Contender:
    """The engine's look-ups."""
    be = libraries.backend(options, jit)
    W = be.array(rows(table, dtype), dtype=dtype)
    ids, y = be.array(data(table)[0], dtype=np.int32, min_dims=0), be.empty((table.count, table.columns), dtype=dtype)

    def call() -> None:
        y[:] = be.take(W, ids, 0)

    return libraries.own(call, y.get, jit)


def numpy_forward(table: Table, dtype: str) -> bench.Contender:
    """NumPy's look-ups, which check places by way of a copy."""
    W, ids = rows(table, dtype), data(table)[0]
    y = np.empty((table.count, table.columns), W.dtype)
    return bench.Contender("numpy", partial(np.take, W, ids, 0, y), lambda: y)


def torch_forward(table: Table, dtype: str) -> bench.Contender:
    """PyTorch's look-ups."""
    library = libraries.Torch()
    W, ids = library.array(rows(table, dtype)), library.array(data(table)[0])
    y = library.torch.empty((table.count, table.columns), dtype=W.dtype)
    return bench.Contender("torch", partial(library.torch.index_select, W, 0, ids, out=y), lambda: library.numpy(y))


def jax_forward(table: Table, dtype: str) -> bench.Contender:
    """JAX's look-ups, into donated memory."""
    library = libraries.Jax()
    take = library.jax.jit(lambda o, W, i: o.at[:].set(W[i]), donate_argnums=0)
    arrays = [library.array(rows(table, dtype)), library.array(data(table)[0].astype(np.int32))]
    memory = library.array(np.zeros((table.count, table.columns), libraries.dtype_of(dtype)))
    return library.donating(take, None, memory, arrays)


def forward_case(table: Table, dtype: str, options: Any) -> bench.Case:
    """Look-ups with all contenders: each row is read and written once."""
    makers: dict[str, Callable[[], bench.Contender]] = {
        "tensorbackend": partial(ours_forward, table, dtype, options),
        "interpreter": partial(ours_forward, table, dtype, options, False),
        "numpy": partial(numpy_forward, table, dtype),
        "torch": partial(torch_forward, table, dtype),
        "jax": partial(jax_forward, table, dtype),
    }
    moved = 2 * table.count * table.columns * libraries.dtype_of(dtype).itemsize

    def truth() -> np.ndarray:
        return rows(table, dtype)[data(table)[0]]

    return bench.Case("lookup fprop", table.shape, dtype, truth, makers, moved, 0, 0, written=moved // 2)


def case(table: Table, dtype: str, options: Any) -> bench.Case:
    """One table's gradient with all contenders."""
    makers: dict[str, Callable[[], bench.Contender]] = {
        "tensorbackend": partial(ours, table, dtype, options),
        "interpreter": partial(ours, table, dtype, options, False),
        "torch": partial(torch, table, dtype, "torch"),
        "torch operator": partial(torch, table, dtype, "torch operator"),
        "jax": partial(jax, table, dtype),
    }
    item = libraries.dtype_of(dtype).itemsize
    moved = (table.count + table.words) * table.columns * item

    truth = libraries.computed(partial(ours, table, "float64", options, False))
    tolerance = libraries.tolerance(dtype)
    return bench.Case("lookup bprop", table.shape, dtype, truth, makers, moved, 0, tolerance,
                      libraries.largest(truth))  # fmt: skip


def cases(options: Any, session: bench.Session) -> Iterator[bench.Case]:
    """The cases that are asked for."""
    for dtype in options.dtype or ("float32",):
        for table in TABLES[::3] if options.quick else TABLES:
            for make in (forward_case, case):
                found = make(table, dtype, options)
                if session.wants(found.name, found.shape, dtype):
                    yield found


if __name__ == "__main__":
    sys.exit(bench.main(__doc__, cases))
