# SPDX-License-Identifier: Apache-2.0
"""Statements repeated without the native types: the function of a form is used where it fits, and only there."""

from __future__ import annotations

import numpy as np
import pytest

import tensorbackend
from tensorbackend.backends import toolchain
from tests.entered import entered

pytestmark = pytest.mark.skipif(toolchain.find_compiler() is None, reason="no C compiler works here")
N = 20


@pytest.fixture
def be():
    with tensorbackend.using(native=False):
        made = tensorbackend.Backend.allocate_backend("cpu", min_dims=0, jit=True)
    yield made
    made.cleanup_backend()


def values(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.random(N, dtype=np.float32) + 0.5 for _ in range(count)]


def repeated(be) -> int:
    """How many forms have a function."""
    return sum(map(callable, be._repeats.values()))


def test_operands_and_numbers_change_from_run_to_run(be):
    arrays = values(8)
    xs, y = [be.array(a) for a in arrays], be.empty((N,))
    for k in range(8):
        a, b, c = (arrays[(k + shift) % 8] for shift in range(3))
        y[:] = (xs[k] * 0.5 + xs[(k + 1) % 8]) * xs[(k + 2) % 8] - k
        np.testing.assert_allclose(y.get(), (a * 0.5 + b) * c - k, rtol=1e-6, atol=1e-6)
    assert repeated(be) == 1


def test_operands_that_become_the_same_object_and_cease_to_be(be):
    arrays = values(3)
    (x, y, z), o = map(be.array, arrays), be.empty((N,))
    for pair in [(x, y)] * 5 + [(x, x), (y, y), (x, y), (z, z), (y, x)]:
        o[:] = pair[0] * 2.0 + pair[1]
        np.testing.assert_allclose(o.get(), pair[0].get() * 2 + pair[1].get(), rtol=1e-6)
    for pair in [(x, x)] * 5 + [(x, y), (z, z)]:
        o[:] = pair[0] / pair[1]
        np.testing.assert_allclose(o.get(), pair[0].get() / pair[1].get(), rtol=1e-6)
    assert repeated(be) == 2


def test_shared_parts_of_a_tree(be):
    (a, b), o = values(2), be.empty((N,))
    x, y = be.array(a), be.array(b)
    for shared in [True] * 5 + [False, True]:
        part = x + y
        other = part if shared else x - y
        o[:] = part * other
        np.testing.assert_allclose(o.get(), (a + b) * ((a + b) if shared else (a - b)), rtol=1e-5, atol=1e-6)


def test_targets_that_are_read_and_targets_that_overlap(be):
    memory = values(2)[0]
    whole = be.array(np.concatenate([memory, memory]))
    apart, low, high = whole[N:], whole[:N], whole[3 : N + 3]
    for _ in range(6):
        expected = low.get() * 0.5 + 1
        low[:] = low * 0.5 + 1.0
        np.testing.assert_array_equal(low.get(), expected)
    assert repeated(be) == 1
    for source in [apart] * 5 + [high, low, apart]:
        expected = source.get() * 0.25 + 1
        low[:] = source * 0.25 + 1.0
        np.testing.assert_array_equal(low.get(), expected)


def test_parts_of_the_target_are_written_where_they_lie(be):
    x, o = be.array(values(1)[0]), be.empty((N,))
    for start in [3] * 5 + [8, 3]:
        part = (x + 1.0)[start : start + 5] * 2.0
        o[:] = tensorbackend.Autodiff(part, be).get_grad_op_tree([x])[0]
        np.testing.assert_array_equal(o.get(), np.where((np.arange(N) >= start) & (np.arange(N) < start + 5), 2, 0))
    assert repeated(be) == 1


def test_statements_that_read_positions(be):
    x = be.array(values(1)[0])
    words, o = be.array(np.arange(N) % 4, dtype=np.int32), be.empty((4, N))
    for k in range(6):
        o[:] = (x + k) * be.onehot(words, axis=0)
        np.testing.assert_array_equal(o.get(), (x.get() + k) * (np.arange(4)[:, None] == words.get()))


def test_numbers_that_are_refused_are_refused_again(be):
    x, o = be.array(np.arange(N, dtype=np.int8), dtype=np.int8), be.empty((N,), dtype=np.int8)
    for k in range(6):
        o[:] = x + k
        assert o.get()[1] == 1 + k
    before = o.get()
    with pytest.raises(OverflowError, match="number out of range"):
        o[:] = x + 1000
    np.testing.assert_array_equal(o.get(), before)


def test_what_is_looked_at_runs_in_the_open(be):
    x, o = be.array(values(1)[0]), be.empty((N,))

    def statement():
        o[:] = x * 3.0

    for _ in range(5):
        statement()
    assert repeated(be) == 1
    assert len(be.explain(statement).statements) == 1
    program = be.capture(statement)
    o[:] = 0.0
    program()
    np.testing.assert_array_equal(o.get(), x.get() * 3)


def test_draws_temporaries_and_a_closed_backend_have_no_function(be):
    x, o = be.array(np.ones((4, 5), np.float32)), be.empty((4, 4))
    seen = set()
    for _ in range(6):
        o[:] = be.rand() * 1.0
        seen.add(float(o.get()[0, 0]))
        o[:] = be.dot(x, x.T) + 1.0
    assert len(seen) == 6 and repeated(be) == 0
    y = be.empty((4, 5))
    for _ in range(5):
        y[:] = x + 1.0
    assert repeated(be) == 1
    be.cleanup_backend()
    with pytest.raises(tensorbackend.BackendError):
        y[:] = x + 1.0


def test_statements_of_nothing_are_repeated(be):
    for shape in [(0,), (0, 9)]:
        x, y = be.empty(shape), be.empty(shape)
        for k in range(5):
            y[:] = x * 2 + k
        assert y.get().shape == shape
    assert repeated(be) > 0


VIEWS = {
    "t[2:5]": lambda t: t[2:5],
    "t[3]": lambda t: t[3],
    "t[1:9, 2]": lambda t: t[1:9, 2],
    "t.T": lambda t: t.T,
    "t.reshape": lambda t: t.reshape(8, 4, 4),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_views_run_no_loops_of_python(be, make) -> None:
    """Views are made in statements again and again: no function runs more than once, and few at all."""
    t = be.zeros((8, 16))
    make(t)
    own = [name for name in entered(lambda: make(t)) if name not in ("<lambda>", "_is_int")]
    assert len(own) == len(set(own)) <= 12


def test_a_node_that_python_makes_of_known_structures_enters_no_generator(be) -> None:
    x = be.ones((3, 4))
    be.clip(x, 0, 1)
    names = entered(lambda: be.clip(x, 0, 1))
    assert names.count("apply") == 2
    assert "<genexpr>" not in names
