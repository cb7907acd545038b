# SPDX-License-Identifier: Apache-2.0
"""Native nodes and statements: that nothing leaks, and that threads see whole statements."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
import weakref

import numpy as np
import pytest

from tensorbackend import testing
from tensorbackend.backends import native
from tensorbackend.function import arrays
from tensorbackend.graph.optree import nodes_of
from tests.native.statements import assert_no_references_left, counts, tensors

# Memory


def test_repeated_statements_leave_no_references(be) -> None:
    def statements(x, w, o, number) -> None:
        o[:] = (x * w + number) * be.tanh(x) - w
        assert (x + w).inputs[0] is x
        assert (o == x).shape == (16, 1)

    assert_no_references_left(be, statements, 20_000)


def test_repeated_draws_leave_no_references(be) -> None:
    def statements(x, w, o, number) -> None:
        o[:] = x * be.rand() + number
        w[:] = be.rand(shape=w.shape) < number

    assert_no_references_left(be, statements, 20_000)


@pytest.mark.slow
def test_a_million_statements_take_no_memory(run_python) -> None:
    code = """
import numpy as np, tensorbackend
be = tensorbackend.Backend.allocate_backend("cpu", min_dims=0)
x, w, o = (be.array(np.ones(16, np.float32)) for _ in range(3))
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4
def repeat(count):
    for _ in range(count):
        o[:] = (x * 0.5 + w) * x - 1
repeat(10_000)
before = resident()
repeat(1_000_000)
assert be.structures.memo.counts()[2] > 1_000_000
print(resident() - before)
"""
    assert int(run_python(code).stdout) < 1024


def test_memory_goes_back_with_its_last_reference(be) -> None:
    gc.collect()
    before = native.runtime().stats().in_use
    for nbytes in (0, 1, 100, 4096, 1 << 20):
        storage = be._allocate(nbytes)
        owner = storage.owner
        assert type(owner).__name__ == "Memory"
        assert not gc.is_tracked(owner)  # or it would be finalized with the cycle that it is in, before others use it
        assert storage.nbytes == nbytes
        assert storage.writable is True
        assert storage.address % 64 == 0
        assert native.runtime().stats().in_use >= before + nbytes
        del storage
        assert native.runtime().stats().in_use > before
        del owner
        assert native.runtime().stats().in_use == before


def test_memory_that_only_python_can_make(be) -> None:
    allocate = be.structures.memo.allocate
    assert [allocate(x) for x in (-1, 1 << 70, (1 << 20) + 1, 1.0, np.int64(8), True, None)] == [None] * 7
    big, odd = be._allocate((1 << 20) + 1), be._allocate(np.int64(8))
    assert isinstance(big.owner, np.ndarray)
    assert (big.nbytes, odd.nbytes) == ((1 << 20) + 1, 8)


def test_arrays_keep_fresh_memory(be) -> None:
    x = be.empty((3, 5))
    x[:] = 7
    array = np.asarray(x)
    del x
    others = [be.zeros((3, 5)) for _ in range(20)]
    assert (array == 7).all()
    del others


def test_fresh_tensors_are_those_of_python(be) -> None:
    layout = be.structures.contiguous(np.dtype("f"), (3, 5), 0)
    x, y = arrays.laid_out(be, layout, 60), arrays.placed(be, layout, be._allocate(60))
    facts = ("structure", "base", "name", "persist_values", "rounding", "shape", "strides")
    assert [getattr(x, name) for name in facts] == [getattr(y, name) for name in facts]
    assert type(x) is type(y) is be.tensor_cls
    assert (x.address, x.start, x.stop) == (x.storage.address, x.address, x.address + 60)
    x[:], y[:] = 3, x + 1  # each in memory of its own
    assert (x.get() == 3).all() and (y.get() == 4).all()
    gone = weakref.ref(x.storage)
    del x
    assert gone() is None


def test_fresh_tensors_leave_no_references_and_what_is_no_size_is_pythons(be) -> None:
    layout = be.structures.contiguous(np.dtype("f"), (16, 1), 0)

    def statements(x, w, o, number) -> None:
        o[:] = arrays.laid_out(be, layout, 64)

    assert_no_references_left(be, statements, 20_000)
    fresh = be.structures.fresh
    assert [fresh(be.tensor_cls, layout, n, 0) for n in (-1, (1 << 20) + 1, 1.0, None)] == [None] * 4
    be._stand_aside(True)  # as while a function is captured, which notes what memory it takes
    assert fresh(be.tensor_cls, layout, 64, 0) is None
    be._stand_aside(False)


def test_nodes_in_cycles_are_collected(be) -> None:
    x, y = tensors(be, 2)
    x.tree = x + y * 2
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


def test_backends_are_collected() -> None:
    be = testing.make_backend("jit")
    x, o = tensors(be, 2)
    for _ in range(3):
        o[:] = be.tanh(x) * 2 + x
    gone = weakref.ref(be)
    del be, x, o
    gc.collect()
    assert gone() is None


def test_weak_references_to_nodes_end(be) -> None:
    (x,) = tensors(be, 1)
    calls = []
    for _ in range(3):
        x + 1
    node = x + 1
    outer = node * 2
    references = [weakref.ref(n, lambda r: calls.append(r())) for n in (node, outer)]
    del node
    assert calls == []
    del outer
    assert calls == [None, None] and all(r() is None for r in references)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape, depth",
    [("left", 100_000), *(pytest.param(x, 100_000, marks=pytest.mark.ci) for x in ("right", "both")),
     ("through python", 30_000)],
)
def test_deep_trees_are_freed(be, shape: str, depth: int) -> None:
    (x,) = tensors(be, 1)
    grow = {
        "left": lambda t: t + 1.0,
        "right": lambda t: 1.0 + t,
        "both": lambda t: t * t,
        "through python": lambda t: be.sum(t * 2.0, axis=0) + x,
    }[shape]
    tree = x
    for _ in range(depth):
        tree = grow(tree)
    gone = weakref.ref(tree)
    del tree
    assert gone() is None


def test_trees_that_share_parts_are_freed_last_user_first(be) -> None:
    x, y = tensors(be, 2)
    layers = [[x + y, x * y]]
    for _ in range(200):
        a, b = layers[-1]
        layers.append([a + b, a * b])
    parts = [weakref.ref(n) for layer in layers for n in layer]
    kept = layers[100][0]
    del a, b, layers
    assert [p() is not None for p in parts].count(True) == len(nodes_of(kept))
    del kept
    assert all(p() is None for p in parts)


def test_forgetting_is_only_forgetting(be) -> None:
    x, o = tensors(be, 2)
    for k in range(6):
        o[:] = x * 2 + k
        if k % 2:
            be.structures.clear()
            assert counts(be)[:2] == (0, 0)
        np.testing.assert_array_equal(o.get(), x.get() * 2 + k)


def test_many_forms_are_held_within_bounds(be) -> None:
    o = be.zeros((1, 1))
    for k in range(1, 600):
        t = be.zeros((k, 1))
        t[:] = t + 1
        t[:] = t + 1
    structures, statements, _ = counts(be)
    assert 500 <= structures <= 1 << 16 and 500 <= statements <= 1 << 13
    o[:] = 1
    assert o.get()[0, 0] == 1


# Threads


def test_four_threads_use_one_backend(be) -> None:
    failures = []

    def work(seed: int) -> None:
        x, w, o = tensors(be, 3)
        big, out = be.array(np.full((300, 300), seed, np.float32)), be.empty((300, 300))
        expected = (x.get() * w.get() + np.float32(seed)) * x.get()
        for _ in range(400):
            o[:] = (x * w + float(seed)) * x
            out[:] = big * 2 + float(seed)
            if not (np.array_equal(o.get(), expected) and (out.get() == 3 * seed).all()):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_statements_are_whole_to_other_threads(be) -> None:
    t, one = be.zeros((700, 700)), be.zeros((1, 1))
    torn = []

    def write(number: int) -> None:
        for _ in range(60):
            t[:] = t * 0 + number
            t[:1] = float(number)
            one[:] = one * 0 + number

    def read() -> None:
        for _ in range(60):
            values = t[1:].get()
            torn.append(values.min() != values.max())

    threads = [threading.Thread(target=write, args=(n,)) for n in (1, 2)] + [threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(torn)


def test_an_interrupted_statement_gives_the_lock_back(be) -> None:
    """The signal comes while a long statement runs, of which native code then raises the exception."""
    x, y, one = be.ones((1000, 1000)), be.empty((1000, 1000)), be.zeros((1, 1))
    handled, ran = [], []

    def interrupt(*_: object) -> None:
        handled.append(True)
        raise KeyboardInterrupt

    def statement() -> None:
        y[:] = be.tanh(be.exp(be.tanh(x) * 0.5))

    def of_another_thread() -> None:
        with be._lock:
            one[:] = one + 1
            ran.append(True)

    for _ in range(3):
        statement()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(20):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 5e-4)
                statement()
                while not handled:  # it came later
                    time.sleep(1e-3)
            handled.clear()
    finally:
        signal.signal(signal.SIGALRM, before)
    thread = threading.Thread(target=of_another_thread, daemon=True)
    thread.start()
    thread.join(20)
    assert ran
