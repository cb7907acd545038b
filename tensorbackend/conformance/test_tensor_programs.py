# SPDX-License-Identifier: Apache-2.0
"""Random programs of assignments between overlapping views, run on NumPy arrays and on tensors: equal at each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.rehearsed

# One backend serves all examples; half as many as elsewhere, since each has several statements to compile.
shared = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=settings().max_examples // 2
)
PRIME = 101  # values stay below it, so that every type holds each result exactly


@dataclass(frozen=True)
class View:
    """A view of the program's array: slices, then perhaps axes reversed, then perhaps one axis cut to length 1."""

    slices: tuple[slice, ...]
    transposed: bool = False
    single: int | None = None

    def of(self, x: Any) -> Any:
        """The view of an array or tensor."""
        part = x[self.slices]
        part = part.T if self.transposed else part
        if self.single is None:
            return part
        return part[tuple(slice(0, 1) if a == self.single else slice(None) for a in range(len(self.slices)))]


def total(x: Any, axis: int, be: Any) -> Any:
    """The sum along an axis that stays with length 1, of either kind."""
    return x.sum(axis=axis, keepdims=True) if be is None else be.sum(x, axis)


def extreme(x: Any, axis: int, be: Any) -> Any:
    """The maximum along an axis that stays with length 1, of either kind."""
    return x.max(axis=axis, keepdims=True) if be is None else be.max(x, axis)


STEPS = {
    "copy": lambda x, y, axis, be: x,
    "increment": lambda x, y, axis, be: (x + 1) % PRIME,
    "add": lambda x, y, axis, be: (x + y) % PRIME,
    "chain": lambda x, y, axis, be: ((x - y) * 3 + x) % PRIME,
    "centre": lambda x, y, axis, be: (x - total(y, axis, be)) % PRIME,
    "spread": lambda x, y, axis, be: (total(x, axis, be) + y) % PRIME,
    "highest": lambda x, y, axis, be: extreme(x, axis, be) + y * 0,
    "product": lambda x, y, axis, be: ((x[..., :1] * y[:1]) + x) % PRIME,
    "turn": lambda x, y, axis, be: (x.T + y.T).T % PRIME,
}


@st.composite
def strided(draw: Any, length: int, count: int) -> slice:
    """A slice of `count` entries of an axis, in either direction."""
    step = draw(st.integers(1, max(1, (length - 1) // max(count - 1, 1))))
    start = draw(st.integers(0, length - 1 - (count - 1) * step))
    if count and draw(st.booleans()):
        last = start + (count - 1) * step
        return slice(last, start - 1 if start else None, -step)
    return slice(start, start + (count - 1) * step + 1, step)


@st.composite
def views(draw: Any, shape: tuple[int, ...], counts: tuple[int, ...], source: bool) -> View:
    """A view with `counts` entries along the axes (a source may also have length 1 along one)."""
    turned = draw(st.booleans()) and all(c <= n for c, n in zip(counts[::-1], shape))
    inner = counts[::-1] if turned else counts
    slices = tuple(draw(strided(n, c)) for n, c in zip(shape, inner))
    single = draw(st.none() | st.integers(0, len(shape) - 1)) if source else None
    return View(slices, turned, single)


@st.composite
def programs(draw: Any) -> tuple[tuple[int, ...], list[tuple]]:
    """A shape, and steps (name, target, two sources, axis)."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    steps = []
    for _ in range(draw(st.integers(1, 5))):
        counts = tuple(draw(st.integers(1, n)) for n in shape)
        target = draw(views(shape, counts, False))
        sources = [draw(views(shape, counts, True)) for _ in range(2)]
        steps.append((draw(st.sampled_from(sorted(STEPS))), target, *sources, draw(st.integers(0, len(shape) - 1))))
    return shape, steps


def run_on_numpy(host: np.ndarray, step: tuple) -> None:
    """One step on an array: the value is complete before anything is written."""
    name, target, first, second, axis = step
    value = STEPS[name](first.of(host).copy(), second.of(host).copy(), axis, None)
    target.of(host)[...] = value


def run_on_tensor(be: Any, tensor: Any, step: tuple) -> None:
    """One step on a tensor."""
    name, target, first, second, axis = step
    target.of(tensor)[:] = STEPS[name](first.of(tensor), second.of(tensor), axis, be)


@shared
@given(program=programs(), dtype=st.sampled_from([np.int64, np.float32, np.int16]))
def test_programs_of_overlapping_views_run_as_in_numpy(backend, program, dtype) -> None:
    shape, steps = program
    host = (np.arange(np.prod(shape)) * 37 % PRIME).astype(dtype).reshape(shape)
    tensor = backend.array(host, dtype=dtype, min_dims=0)
    for step in steps:
        run_on_numpy(host, step)
        run_on_tensor(backend, tensor, step)
        np.testing.assert_array_equal(tensor.get(), host, strict=True)


OVERLAPS = {
    "shift down": (lambda x: x[1:], lambda x: x[:-1]),
    "shift up": (lambda x: x[:-1], lambda x: x[1:]),
    "reverse": (lambda x: x, lambda x: x[::-1]),
    "reverse both": (lambda x: x, lambda x: x[::-1, ::-1]),
    "transpose": (lambda x: x, lambda x: x.T),
    "row to all": (lambda x: x, lambda x: x[3:4]),
    "column to all": (lambda x: x, lambda x: x[:, 2:3]),
    "interleave": (lambda x: x[1::2], lambda x: x[::2]),
    "other stride": (lambda x: x[:300], lambda x: x[::2]),
}


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("form", ["copy", "tree", "reduction"])
def test_large_overlapping_views(backend, overlap, form) -> None:
    """As above, over many blocks of any kernel."""
    target, source = OVERLAPS[overlap]
    host = np.arange(600 * 600, dtype=np.float32).reshape(600, 600)
    t = backend.array(host)
    value, given_ = source(host).copy(), source(t)
    if form == "tree":
        value, given_ = value * 2 + 1, given_ * 2 + 1
    elif form == "reduction":
        value, given_ = value - value.max(axis=0, keepdims=True), given_ - backend.max(given_, axis=0)
    target(host)[...] = value
    target(t)[:] = given_
    np.testing.assert_array_equal(t.get(), host)


@shared
@given(
    lengths=st.tuples(*[st.sampled_from([1, 2, 3, 5, 6, 13, 16, 17, 33, 40, 65])] * 3),
    turned=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    at=st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 3),
    tail=st.sampled_from(["", "more", "itself"]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_products_may_read_their_target(backend, lengths, turned, at, tail, dtype) -> None:
    m, n, k = lengths
    host = np.arange(70.0 * 70).reshape(70, 70) % 7
    t = backend.array(host, dtype=dtype)

    def windows(x: Any) -> Iterator[Any]:
        for (rows, columns), (i, j), turn in zip([(m, n), (m, k), (k, n)], at, turned):
            yield x[j : j + columns, i : i + rows].T if turn else x[i : i + rows, j : j + columns]

    for x in (t, host):
        y, a, b = windows(x)
        product = backend.dot(a, b) if x is t else a @ b
        y[:] = product * 2 + 1 if tail == "more" else product + y if tail else product
    np.testing.assert_array_equal(t.get(), host)


@pytest.mark.parametrize("size", [6, 40, 100])
@pytest.mark.parametrize("kind", ["dot", "cumsum", "take"])
def test_primitives_may_read_their_target(backend, kind, size) -> None:
    host = np.arange(size * size, dtype=np.float64).reshape(size, size) % 7
    t = backend.array(host, dtype=np.float64)
    if kind == "dot":
        t[:] = backend.dot(t, t.T)
        host[:] = host @ host.T
    elif kind == "cumsum":
        t[::-1] = backend.cumsum(t, 1)
        host[::-1] = np.cumsum(host, 1)
    else:
        t[:] = backend.take(t, range(size - 1, -1, -1), 0)
        host[:] = host[::-1].copy()
    np.testing.assert_array_equal(t.get(), host)
