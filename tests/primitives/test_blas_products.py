# SPDX-License-Identifier: Apache-2.0
"""Products by NumPy's BLAS: right for every layout and tail, chosen by the clock alone, and no thread count is lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import Backend, testing
from tensorbackend.backends import blas, native, tuning

shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
MARGIN = 1 << 16
"""Bytes of a guard, more than the operands beside it have."""


@pytest.fixture(autouse=True)
def library(absent: Any) -> blas.Blas:
    """NumPy's OpenBLAS; skips, or fails if it must be there, where no C compiler works."""
    if not testing.compiles(Backend.allocate_backend("cpu")):
        absent("cpu", "no C compiler works here")
    found = blas.library()
    if found is None:
        pytest.skip("NumPy uses no OpenBLAS here")
    return found


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """A backend whose products, of any size, are the library's where they can be."""
    monkeypatch.setattr(tuning, "ENOUGH_NS", 0)
    monkeypatch.setattr(tuning, "choose", lambda step, ways, prepared: len(ways) - 1)
    backend = Backend.allocate_backend("cpu")
    yield backend
    backend.cleanup_backend()


def by_library(backend: Backend, tree: Any) -> bool:
    """Whether a tree's product is the library's."""
    (step,) = (found for found in backend.explain(tree).steps if found.name.startswith("dot"))
    return "openblas" in step.source.partition("\n")[0]


def values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def stored(backend: Backend, a: np.ndarray, turned: bool, gap: int) -> Any:
    """A tensor with these values, whose columns lie side by side if `turned`, and more elements between its lines."""
    rows, columns = a.shape[::-1] if turned else a.shape
    room = backend.zeros((rows, columns + gap), dtype=a.dtype)
    view = room[:, :columns]
    view[:] = backend.array(a.T if turned else a, dtype=a.dtype)
    return view.T if turned else view


def bound(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What rounding k products and sums may leave, in the type of the operands."""
    unit = np.finfo(a.dtype).eps / 2
    return (a.shape[1] + 2) * unit * (np.abs(a).astype(np.longdouble) @ np.abs(b).astype(np.longdouble))


@shared
@given(
    st.sampled_from(["float32", "float64"]),
    st.tuples(*[st.sampled_from([1, 2, 3, 17, 64, 130])] * 3),
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from([0, 5]),
)
def test_products_and_tails(be: Backend, dtype: str, lengths: tuple, turned: tuple, gap: int) -> None:
    m, n, k = lengths
    a, b, bias = values((m, k), dtype, 1), values((k, n), dtype, 2), values((m, 1), dtype, 3)
    x, y = stored(be, a, turned[0], gap), stored(be, b, turned[1], gap)
    out = stored(be, np.full((m, n), 7.0, dtype), False, gap)
    assert by_library(be, be.dot(x, y))
    out[:] = be.dot(x, y)
    product = out.get()
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    assert np.all(np.abs(product - exact) <= bound(a, b))
    shift = be.array(bias, dtype=dtype)
    out[:] = be.maximum(be.dot(x, y) + shift, 0)
    np.testing.assert_array_equal(out.get(), np.maximum(product + bias, 0))
    out[:] = out - be.dot(x, y)
    np.testing.assert_array_equal(out.get(), np.maximum(product + bias, 0) - product)
    wide = be.empty((m, n), dtype="float64")
    wide[:] = be.dot(x, y) * 2
    np.testing.assert_array_equal(wide.get(), 2 * product.astype("float64"))


@pytest.mark.parametrize(("m", "n"), [(1100, 40), (40, 1100), (9000, 3)])
def test_stripes_give_the_same_bits_on_any_number_of_threads(be: Backend, m: int, n: int) -> None:
    x, y = be.array(values((m, 300), "float32", 1)), be.array(values((300, n), "float32", 2))
    found = []
    for threads in (1, 2):
        native.runtime().set_threads(threads)
        out = be.empty((m, n))
        out[:] = be.dot(x, y) + 1
        found.append(out.get())
    native.runtime().set_threads()
    np.testing.assert_array_equal(*found)
    exact = x.get().astype(np.float64) @ y.get().astype(np.float64) + 1
    assert np.all(np.abs(found[0] - exact) <= bound(x.get(), y.get()) + np.spacing(np.abs(found[0])))


def test_what_the_library_does_not_add_up_is_ours(be: Backend) -> None:
    stacked = be.array(values((2, 8, 8), "float32", 0))
    out = be.empty((2, 8, 8))
    be.batched_dot(stacked, stacked, out)
    np.testing.assert_allclose(out.get(), stacked.get() @ stacked.get(), rtol=1e-5, atol=1e-6)
    halves = be.array(values((8, 8), "float32", 0), dtype="float16")
    sparse = be.array(values((16, 16), "float32", 0))[::2, ::2]
    for x in (halves, sparse):
        assert not by_library(be, be.dot(x, x))


def test_not_a_number_and_infinity_spread(be: Backend) -> None:
    a, b = values((20, 30), "float32", 1), values((30, 25), "float32", 2)
    a[3, 4], b[7, 9] = np.nan, np.inf
    out = be.array(np.full((20, 25), np.nan))
    x, y = be.array(a), be.array(b)
    assert by_library(be, be.dot(x, y))
    out[:] = be.dot(x, y)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(out.get()), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(out.get()), np.isinf(expected))


def test_the_clock_chooses_unless_there_is_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"own": 1.0, "library": 1.0}
    monkeypatch.setattr(tuning, "_seconds", lambda way, *_: seconds["library" if "openblas" in way.source else "own"])
    monkeypatch.setattr(tuning, "_chosen", {})
    kept: dict[str, list] = {}
    monkeypatch.setattr(tuning.warm, "recall", kept.get)
    monkeypatch.setattr(tuning.warm, "remember", kept.__setitem__)

    def chosen(seed: int | None, n: int) -> bool:
        backend = Backend.allocate_backend("cpu", rng_seed=seed)
        return by_library(backend, backend.dot(backend.ones((n, n)), backend.ones((n, n))))

    assert not chosen(None, 300)  # as fast as ours is not enough
    seconds["library"] = 0.5
    assert not chosen(None, 300)  # what was found stays
    assert chosen(None, 301)
    assert not chosen(0, 301)
    assert not chosen(None, 20)  # too small to be timed
    (first, second) = sorted(record[0] for record in kept.values() if len(record) == 1)
    assert first == 0 < second  # the library is the last of two, or three where the processor has a matrix unit


@pytest.mark.parametrize("step", [(1, -1), (-1, 1), (-2, -3)])
def test_what_is_timed_stays_in_its_memory_whatever_the_strides(
    monkeypatch: pytest.MonkeyPatch, step: tuple[int, int]
) -> None:
    rooms: list[np.ndarray] = []

    def guarded(size: int) -> np.ndarray:
        rooms.append(np.ones(size + 2 * MARGIN, np.uint8))
        rooms[-1][MARGIN:-MARGIN] = 0
        return rooms[-1][MARGIN:-MARGIN]

    monkeypatch.setattr(tuning, "ENOUGH_NS", 0)
    monkeypatch.setattr(tuning, "_zeros", guarded)
    monkeypatch.setattr(tuning, "_chosen", {})
    monkeypatch.setattr(tuning.warm, "recall", lambda name: None)
    monkeypatch.setattr(tuning.warm, "remember", lambda name, chosen: None)
    backend = Backend.allocate_backend("cpu")
    a, b = values((24, 30), "float32", 1), values((30, 20), "float32", 2)
    out = backend.zeros((48, 60))[:: step[0], :: step[1]][:24, :20]
    out[:] = backend.dot(backend.array(a), backend.array(b))
    np.testing.assert_allclose(out.get(), a @ b, rtol=1e-5, atol=1e-5)
    assert rooms
    for room in rooms:
        assert room[:MARGIN].all() and room[-MARGIN:].all()


def test_threads_of_the_library_are_restored(be: Backend, library: blas.Blas) -> None:
    x = be.array(values((600, 600), "float32", 0))
    assert by_library(be, be.dot(x, x))
    before = library.get_threads()
    library.set_threads(2)
    try:
        outs = [be.empty((600, 600)) for _ in range(4)]

        def work(out: Any) -> None:
            for _ in range(5):
                out[:] = be.dot(x, x)

        threads = [threading.Thread(target=work, args=(out,)) for out in outs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert library.get_threads() == 2
        for out in outs[1:]:
            np.testing.assert_array_equal(out.get(), outs[0].get())
    finally:
        library.set_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_multiplies(be: Backend) -> None:
    x, out = be.array(values((600, 600), "float32", 0)), be.empty((600, 600))
    out[:] = be.dot(x, x)
    expected = out.get()
    child = os.fork()
    if not child:
        out[:] = be.dot(x, x)
        os._exit(0 if np.array_equal(out.get(), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_short_products_have_a_stripe_for_each_of_two_threads(be: Backend) -> None:
    """What is chosen where one thread runs is kept for more: a single stripe of 256 took twice as long for two."""
    for m, n, stripe in ((256, 256, 128), (512, 100, 256), (100, 130, 128), (1024, 1024, 512), (16000, 10, 1000)):
        (step,) = be.explain(be.dot(be.zeros((m, 40)), be.zeros((40, n)))).steps
        assert f"stripes of {stripe}\n" in step.source + "\n", step.source[:100]
