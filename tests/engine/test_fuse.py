# SPDX-License-Identifier: Apache-2.0
"""`with be.fuse():` runs statements in few kernels, with the bits of statements run one by one."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorbackend import Autodiff, Backend, Tensor, testing
from tensorbackend.graph.fuse import schedule, walk
from tensorbackend.graph.plan import Kernel, Plan, Statement
from tensorbackend.ops import GATE

pytestmark = pytest.mark.rehearsed

SHAPE = (3, 40)
EXPRESSIONS = [
    lambda be, x, y: x + y,
    lambda be, x, y: be.tanh(x * 0.5) - y,
    lambda be, x, y: be.tanh(x * 0.5) * be.sig(y),
    lambda be, x, y: be.where(x > y, x * 2.0, y),
    lambda be, x, y: x - be.mean(y, axis=1),
    lambda be, x, y: be.softmax(x, axis=1) + y * 0.1,
    lambda be, x, y: be.sum(x, axis=0) * 0.01 + y,
    lambda be, x, y: be.dot(be.dot(x, y.T), x) * 0.001,
    lambda be, x, y: x,
    lambda be, x, y: 0.25,
]
# Statements of two parts that are trees, and a tensor.
COMBINED = [
    lambda be, a, b, t: a * b,
    lambda be, a, b, t: a - t * b,
    lambda be, a, b, t: be.exp(a * -0.1) + b,
    lambda be, a, b, t: a - be.mean(b, axis=1),
    lambda be, a, b, t: a,
]
# Where a statement writes: a whole tensor or a part, which may overlap others; all of SHAPE but the last.
PLACES = [
    lambda t: t[0][:, :40],
    lambda t: t[0][:, 1:41],
    lambda t: t[1][:, :40],
    lambda t: t[1][:, 39::-1],
    lambda t: t[2][:, :40],
    lambda t: t[3][:, :40],
]

statements = st.tuples(st.integers(0, len(EXPRESSIONS) - 1), *(st.integers(0, len(PLACES) - 1) for _ in range(3)))


def tensors(be: Backend, dtypes: tuple[str, ...]) -> list:
    numbers = np.random.RandomState(1)
    return [be.array(numbers.randn(3, 44), dtype=dtype) for dtype in dtypes]


def run(be: Backend, program: list, made: list) -> None:
    for expression, x, y, out in program:
        target = PLACES[out](made)
        target[:] = EXPRESSIONS[expression](be, PLACES[x](made), PLACES[y](made))


@pytest.mark.parametrize(
    "dtypes", [("float32",) * 4, ("float32", "float16", "float32", "float64")], ids=["one", "mixed"]
)
def test_a_fused_program_has_the_bits_of_single_statements(backend: Backend, dtypes: tuple[str, ...]) -> None:
    @settings(max_examples=settings.default.max_examples // 2)
    @given(program=st.lists(statements, min_size=1, max_size=6))
    def check(program: list) -> None:
        one_by_one, together = tensors(backend, dtypes), tensors(backend, dtypes)
        for _ in range(3):  # at first Python decides, then its answers are remembered
            run(backend, program, one_by_one)
            with backend.fuse():
                run(backend, program, together)
            for x, y in zip(one_by_one, together):
                np.testing.assert_array_equal(x.get(), y.get())

    check()


# Parts of statements: one of the pool, of which statements may share any, or a new one of the same structure.
parts = st.tuples(st.booleans(), st.integers(0, 2))
sharing = st.tuples(st.integers(0, len(COMBINED) - 1), st.integers(0, 3), parts, parts)


def sharing_statements(be: Backend, program: list, made: list, turn: int) -> list:
    """Targets and trees on what they write. Parts of the pool are made before the first statement runs."""
    x, y = made[:2]
    numbers = [0.5 + turn, 0.25 * turn, 0.125]
    pool = [be.tanh(x * n) + y for n in numbers]
    stated = []
    for combination, out, *wanted in program:
        a, b = (pool[k] if from_pool else be.tanh(x * numbers[k]) + y for from_pool, k in wanted)
        stated.append((made[out], COMBINED[combination](be, a, b, made[2])))
    return stated


@pytest.mark.slow
def test_a_fused_program_whose_trees_share_parts_has_the_bits_of_single_statements(backend: Backend) -> None:
    @settings(max_examples=settings.default.max_examples // 2)
    @given(program=st.lists(sharing, min_size=2, max_size=5))
    def check(program: list) -> None:
        one_by_one, together = tensors(backend, ("float32",) * 4), tensors(backend, ("float32",) * 4)
        for turn in range(3):
            for target, value in sharing_statements(backend, program, one_by_one, turn):
                target[:] = value
            stated = sharing_statements(backend, program, together, turn)
            with backend.fuse():
                for target, value in stated:
                    target[:] = value
            for x, y in zip(one_by_one, together):
                np.testing.assert_array_equal(x.get(), y.get())

    check()


def adam(be: Backend, p: object, g: object, m: object, v: object) -> None:
    m[:] = m * 0.9 + g * 0.1
    v[:] = v * 0.999 + be.square(g) * 0.001
    p[:] = p - 0.01 * (m / 0.1) / (be.sqrt(v / 0.001) + 1e-8)


def forget_plans(be: Backend) -> None:
    """Forget plans, and what native code remembers of statements that had one."""
    be.structures.clear()
    be.structures.plans.clear()


def group_plans(be: Backend) -> list[Plan]:
    return [p for p in be.structures.plans.values() if isinstance(p, Plan) and p.targets > 1]


def test_an_adam_step_is_one_kernel(backend: Backend) -> None:
    forget_plans(backend)
    state = [backend.array(np.random.RandomState(k).rand(6, 7)) for k in range(4)]
    with backend.fuse():
        adam(backend, *state)
    (plan,) = group_plans(backend)
    assert plan.targets == 3
    assert len(plan.steps) == 1


@pytest.mark.parametrize(("shape", "axis"), [((9, 130), 1), ((200, 70), 0), ((3, 40, 5), (1, 2)), ((70, 4, 3), (0, 2))])
def test_numbers_of_rows_leave_the_kernel_that_reduces_to_them_on_its_way(backend: Backend, shape, axis) -> None:
    x = backend.array(np.random.RandomState(1).normal(size=shape), min_dims=0)

    def run() -> list[Tensor]:
        mean = backend.mean(x, axis=axis)
        away = x - mean
        variance = backend.mean(away * away, axis=axis)
        found = [backend.zeros(t.shape, min_dims=0) for t in (x, mean, variance)]
        for target, value in zip(found, (away / backend.sqrt(variance + 1e-3), mean, variance * 2.0), strict=True):
            target[:] = value
        return found

    forget_plans(backend)
    with backend.fuse():
        together = run()
    (plan,) = group_plans(backend)
    assert (plan.targets, len(plan.steps)) == (3, 1)
    for a, b in zip(together, run(), strict=True):
        np.testing.assert_array_equal(a.get(), b.get())


@pytest.mark.parametrize("form", ["of other axes", "of another sum", "of a short row", "of nothing", "of all"])
def test_other_numbers_of_rows_run_alone(backend: Backend, form: str) -> None:
    shape = {"of a short row": (9, 5), "of nothing": (9, 0)}.get(form, (70, 130))
    x = backend.array(np.random.RandomState(1).normal(size=shape), min_dims=0)
    total = backend.sum(x, axis=None if form == "of all" else 1)
    other = {"of other axes": backend.sum(x, axis=0), "of another sum": backend.sum(x * x, axis=1)}.get(form, total)
    forget_plans(backend)
    y, z = backend.zeros(shape, min_dims=0), backend.zeros(other.shape, min_dims=0)
    with backend.fuse():
        y[:] = x - total
        z[:] = other
    assert group_plans(backend) == []
    expected = [backend.zeros(t.shape, min_dims=0) for t in (y, z)]
    expected[0][:] = x - total
    expected[1][:] = other
    for a, b in zip((y, z), expected, strict=True):
        np.testing.assert_array_equal(a.get(), b.get())


def test_a_repeated_group_is_planned_once(backend: Backend) -> None:
    state = [backend.array(np.random.RandomState(k).rand(5, 9)) for k in range(4)]
    for _ in range(3):
        with backend.fuse():
            adam(backend, *state)
    before = len(backend.structures.plans)
    with backend.fuse():
        adam(backend, *state)
    assert len(backend.structures.plans) == before


def test_reading_inside_sees_what_was_stated(backend: Backend) -> None:
    t = backend.zeros((2, 3))
    with backend.fuse():
        t[:] = t + 1
        assert t.get().tolist() == [[1, 1, 1], [1, 1, 1]]
        t[:] = t * 3
        assert np.asarray(t).max() == 3
        t[0, 0] = 7
    assert t.get().tolist() == [[7, 3, 3], [3, 3, 3]]


def test_an_exception_runs_what_was_stated(backend: Backend) -> None:
    t = backend.zeros((2, 2))
    with pytest.raises(KeyError), backend.fuse():
        t[:] = t + 5
        raise KeyError
    assert t.get().tolist() == [[5, 5], [5, 5]]


def test_a_refused_statement_leaves_the_others(backend: Backend) -> None:
    t, u = backend.zeros((2, 2)), backend.zeros((3, 3))
    with pytest.raises(ValueError, match="assignment"), backend.fuse():
        t[:] = t + 5
        u[:] = t
    assert t.get().tolist() == [[5, 5], [5, 5]]
    assert not u.get().any()


@pytest.mark.parametrize("length", [0, 2])
def test_what_a_group_reads_has_the_type_it_was_stored_in(backend: Backend, length: int) -> None:
    whole = backend.ones((length,), dtype=np.uint16)
    x, o = backend.zeros((length,)), backend.zeros((length,))
    with backend.fuse():
        x[:] = whole
        o[:] = backend.clip(backend.sum(x, axis=0), -8, 8)  # of whole numbers -8 would be no uint64
    assert o.get().tolist() == [[float(length)]] * length


def test_blocks_nest(backend: Backend) -> None:
    t = backend.ones((2, 2))
    with backend.fuse():
        t[:] = t + 1
        with backend.fuse():
            t[:] = t * 10
        t[:] = t - 1
    assert t.get().tolist() == [[19, 19], [19, 19]]


@pytest.mark.parametrize("first", ["writes", "reads"])
def test_a_group_is_not_repeated_where_its_tensors_overlap(backend: Backend, first: str) -> None:
    """Views of one layout, some elements apart: nothing but their addresses says so."""
    together, one_by_one, x, out = (backend.array(np.random.RandomState(k).rand(300)) for k in (1, 1, 2, 3))

    def run(t: Tensor, shift: int) -> list:
        for statement in ("writes", "reads") if first == "writes" else ("reads", "writes"):
            if statement == "writes":
                t[shift : shift + 100] = x[:100] * 2
            else:
                out[:100] = t[100:200] + x[:100]
        return out[:100].tolist()

    for shift in (0, 200, 0, 99, 101, 3):
        with backend.fuse():
            found = run(together, shift)
        assert found == run(one_by_one, shift)
    assert together.tolist() == one_by_one.tolist()


def _write_overlapping_parts(t: Tensor, u: Tensor) -> None:
    t[:, :6] = u[:, :6] * 2
    t[:, 1:7] = u[:, :6] + 1


def _turn_what_was_read(t: Tensor, u: Tensor) -> None:
    u[:] = t * 2
    t[:] = t.T + 1


def _turn_and_write_what_was_read(t: Tensor, u: Tensor) -> None:
    u[:] = t.T * 2
    t[:] = u + 1


def _write_other_shapes(t: Tensor, u: Tensor) -> None:
    t[:3] = u[:1] + 1
    t[4:6] = u[:1] * 2


def _multiply_matrices_first(t: Tensor, u: Tensor) -> None:
    u[:] = t @ t
    t[:] = u + 1


def _multiply_matrices_later(t: Tensor, u: Tensor) -> None:
    u[:] = t + 1
    t[:] = u @ u


def _turn_values_first(t: Tensor, u: Tensor) -> None:
    u[:] = (t * 2).T
    t[:] = u + 1


def _turn_values_later(t: Tensor, u: Tensor) -> None:
    u[:] = t * 2
    t[:] = (u + 1).T


def _reduce_what_is_written_later(t: Tensor, u: Tensor) -> None:
    u[:] = t - t.backend.sum(t, axis=1)
    t[:] = u * 2


def _shape_by_the_target(t: Tensor, u: Tensor) -> None:
    u[:] = t.backend.rand() * 0
    t[:] = u + 1


def _read_what_was_rounded(t: Tensor, u: Tensor) -> None:
    u[:] = t * 3 / 7
    t[:] = u * 3 / 7


APART = {
    "overlapping parts": (_write_overlapping_parts, "float32", "float32"),
    "turned what it writes": (_turn_what_was_read, "float32", "float32"),
    "writes what was turned": (_turn_and_write_what_was_read, "float32", "float32"),
    "other shapes": (_write_other_shapes, "float32", "float32"),
    "product first": (_multiply_matrices_first, "float32", "float32"),
    "product later": (_multiply_matrices_later, "float32", "float32"),
    "movement first": (_turn_values_first, "float32", "float32"),
    "movement later": (_turn_values_later, "float32", "float32"),
    "shape by the target": (_shape_by_the_target, "float32", "float32"),
    "reduction": (_reduce_what_is_written_later, "float32", "float32"),
    "halves": (_read_what_was_rounded, "float16", "float16"),
    "narrower": (_read_what_was_rounded, "float64", "float32"),
}


@pytest.mark.parametrize("name", APART)
def test_statements_that_would_not_be_one_kernel_with_the_same_bits_run_alone(backend: Backend, name: str) -> None:
    """What a statement reads is stored by those before it as they compute it, and written by others as that view at
    most; all write one shape, and nothing goes through memory between them."""
    forget_plans(backend)
    run, *dtypes = APART[name]
    numbers = np.random.RandomState(1).rand(2, 7, 7)
    together, one_by_one = ([backend.array(x, dtype=d) for x, d in zip(numbers, dtypes)] for _ in range(2))
    run(*one_by_one)
    with backend.fuse():
        run(*together)
    assert group_plans(backend) == []
    for x, y in zip(together, one_by_one):
        np.testing.assert_array_equal(x.get(), y.get())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "bool"])
@pytest.mark.parametrize("length", [7, 48, 1000])
def test_the_last_statement_that_writes_a_view_has_the_last_word(backend: Backend, dtype: str, length: int) -> None:
    values = np.arange(length) % 50
    x, y = backend.array(values, dtype=dtype, min_dims=1), backend.zeros((length,), dtype, min_dims=1)
    with backend.fuse():
        y[:] = x
        y[:] = 1
    assert (y.get() == 1).all()
    with backend.fuse():
        y[:] = 0
        x[:] = x
        y[:] = x
        x[:] = 1
    np.testing.assert_array_equal(y.get(), values.astype(y.dtype))
    assert (x.get() == 1).all()


def test_a_value_that_was_spread_is_read_as_a_whole(backend: Backend) -> None:
    """One row is assigned to all: the sum of its columns is seven times that row."""
    forget_plans(backend)
    x, t, u = (backend.array(np.random.RandomState(k).randint(0, 9, (7, 5))) for k in range(3))
    expected = x.get() - 7 * 2 * x.get()[:1]
    with backend.fuse():
        t[:] = x[:1] * 2
        u[:] = x - backend.sum(t, axis=0)
    (plan,) = group_plans(backend)
    assert plan.targets == 2
    np.testing.assert_array_equal(u.get(), expected)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_value_of_more_axes_loses_those_that_the_target_has_not(backend: Backend, rows: int) -> None:
    x = backend.array(np.random.RandomState(2).randn(2, rows, 40))
    alone, ours, others = (backend.empty((3, 40)) for _ in range(3))
    values = [lambda: backend.var(x, axis=0), lambda: backend.sqrt(backend.absolute(x))[1:], lambda: x[:1]]
    for value in values:
        alone[:] = value()
        for _ in range(3):  # also as native code repeats it
            with backend.fuse():
                ours[:] = value()
                others[:] = value() + ours
            assert np.array_equal(ours.get(), alone.get())
            assert np.array_equal(others.get(), 2 * alone.get())


def test_neighbours_in_memory_are_one_group(backend: Backend) -> None:
    forget_plans(backend)
    t = backend.array(np.random.RandomState(1).rand(40))
    with backend.fuse():
        t[10:20][:] = t[20:30] * 2
        t[:10][:] = t[10:20] + t[20:30]
    (plan,) = group_plans(backend)
    assert len(plan.steps) == 1


def test_a_statement_that_reads_what_it_writes_elsewhere_runs_alone(backend: Backend) -> None:
    forget_plans(backend)
    t, u = backend.array(np.arange(44.0)), backend.zeros((43,))
    with backend.fuse():
        t[1:] = t[:-1] * 2
        u[:] = t[1:] + 1
    assert group_plans(backend) == []
    np.testing.assert_array_equal(u.get().ravel(), np.arange(43.0) * 2 + 1)


def test_statements_that_share_nothing_stay_apart(backend: Backend) -> None:
    forget_plans(backend)
    x, y, u, v = (backend.array(np.random.RandomState(k).rand(6, 11)) for k in range(4))
    expected = x.get() * 2, y.get() * 3
    with backend.fuse():
        u[:] = x * 2
        v[:] = y * 3
    assert group_plans(backend) == []
    for made, value in zip((u, v), expected):
        np.testing.assert_allclose(made.get(), value, rtol=1e-6)


def test_a_long_chain_of_statements_is_several_groups(backend: Backend) -> None:
    t = backend.zeros((3, 13))
    for _ in range(3):
        with backend.fuse():
            for _ in range(40):
                t[:] = t + 1
    assert (t.get() == 120).all()


def test_each_thread_has_its_own_block(backend: Backend) -> None:
    results = []

    def work(number: float) -> None:
        t, u = backend.zeros((4, 9)), backend.zeros((4, 9))
        for _ in range(50):
            with backend.fuse():
                t[:] = t + number
                u[:] = u + t
        results.append((number, t.get(), u.get()))

    def beside() -> None:
        t = backend.zeros((4, 9))
        for k in range(200):
            t[:] = t + 1
            assert float(np.asarray(t)[0, 0]) == k + 1
        results.append((0, t.get() - 200, t.get() - 200))

    threads = [threading.Thread(target=work, args=(number,)) for number in (1.0, 2.0)]
    threads.append(threading.Thread(target=beside))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    for number, t, u in results:
        assert (t == 50 * number).all()
        assert (u == 1275 * number).all()


def test_cleaning_up_inside_runs_what_was_stated() -> None:
    be = testing.make_backend("jit")
    t = be.zeros((2, 3))
    for _ in range(3):
        with be.fuse():
            t[:] = t + 1
    with be.fuse():
        t[:] = t + 1
        be.cleanup_backend()
    assert (t.get() == 4).all()


def test_random_nodes_draw_once_a_statement(backend: Backend) -> None:
    backend.rng_reset()
    a, b = backend.empty((4, 8)), backend.empty((4, 8))
    a[:] = backend.rand()
    b[:] = backend.rand()
    expected = a.get(), b.get()
    backend.rng_reset()
    with backend.fuse():
        a[:] = backend.rand()
        b[:] = backend.rand()
    np.testing.assert_array_equal((a.get(), b.get()), expected)


def test_numbers_whose_statement_is_overwritten_are_drawn_all_the_same(backend: Backend) -> None:
    """A value that the block overwrites unread is not computed; what is drawn later is as without a block."""
    x, y, z = (backend.array(np.random.RandomState(k).rand(4, 8)) for k in range(3))
    found = []
    for block in (contextlib.nullcontext, backend.fuse):
        backend.rng_reset()
        values = []
        for _ in range(5):  # native code repeats what it has seen
            with block():
                backend.fill_normal(y)
                y[:] = x * 2
            with block():
                z[:] = x + backend.rand(shape=x.shape)
                z[:] = y - x
            values.append(backend.evaluate(backend.rand(shape=x.shape)).get())
        found.append((values, backend.rng_get_state()[-1]))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] == 15


def test_a_random_node_of_two_statements_draws_in_each_of_them(backend: Backend) -> None:
    """As it does outside; one that has a number has it in both. The forms are the same but for that."""

    def run(fused: bool) -> list[bytes]:
        backend.rng_reset()
        a, b, found = backend.zeros((4, 8)), backend.zeros((4, 8)), []
        for pinned in (False, False, True, True, False, True):
            node = backend.rand(shape=(4, 8))
            if pinned:
                node.draw = 5
            part = node * 2.0
            with backend.fuse() if fused else contextlib.nullcontext():
                a[:] = part + 1.0
                b[:] = a - part
            found += [a.get().tobytes(), b.get().tobytes()]
        return [*found, backend.rng_get_state()[2]]

    assert run(fused=True) == run(fused=False)


@pytest.mark.parametrize("address_of", [lambda t: t.ptr, lambda t: t.gpudata, lambda t: t.raw(), int])
def test_who_takes_an_address_finds_numbers_there(backend: Backend, address_of: Callable[[Any], int]) -> None:
    t = backend.zeros((2, 3))
    with backend.fuse():
        t[:] = 7
        assert ctypes.c_float.from_address(address_of(t)).value == 7


def test_gradients_draw_after_what_waits(backend: Backend) -> None:
    """They fix the numbers of random nodes, which statements before them have drawn by then."""

    def run(fused: bool) -> list[bytes]:
        backend.rng_reset()
        x, (y, z, g) = backend.ones((4, 8)), (backend.zeros((4, 8)) for _ in range(3))
        tree = x * backend.rand()
        with backend.fuse() if fused else contextlib.nullcontext():
            y[:] = tree
            z[:] = backend.rand() + y
            Autodiff(tree, backend).back_prop_grad([x], [g])
        return [t.get().tobytes() for t in (y, z, g)]

    assert run(fused=True) == run(fused=False)


def test_a_group_with_a_shared_part_is_not_repeated_for_one_without(backend: Backend) -> None:
    x, u, v = backend.array([[3.0, 5.0]]), backend.empty((1, 2)), backend.empty((1, 2))
    for a, b, shared in [(3, 3, True)] * 4 + [(3, 4, False), (2, 2, True), (5, 6, False)]:
        first = x * a + 1
        second = first if shared else x * b + 1
        with backend.fuse():
            u[:] = first
            v[:] = second * u
        assert v.get().tolist() == [[(n * a + 1) * (n * b + 1) for n in (3.0, 5.0)]]


class Bell:
    """Calls a function when it goes."""

    def __init__(self, ring) -> None:
        self.ring = ring

    def __del__(self) -> None:
        self.ring()


@pytest.mark.parametrize("shape", [(3, 7), (2, 2)])
@pytest.mark.parametrize("reads", [True, False])
def test_what_a_group_frees_may_state_something(backend: Backend, shape: tuple[int, int], reads: bool) -> None:
    """A tensor that only a group holds goes when the group runs, since the next statement cannot join it; that one
    comes after what the tensor's finalizer states, and groups that follow are remembered as what they are."""
    x, t, z, w = backend.ones((3, 7)), backend.zeros((3, 7)), backend.zeros(shape), backend.empty((3, 7))
    rung = 0

    def ring() -> None:
        nonlocal rung
        t[:] = t + 1
        rung += 1
        if reads:
            assert (t.get() == rung).all()

    for k in range(6):
        going = backend.copy(x)
        if k % 3 == 0:
            going.bell = Bell(ring)
        with backend.fuse():
            w[:] = going * (k + 2)
            del going
            z[:] = t * 2 if z.shape == t.shape else z + 1
            z[:] = z * 1
        assert rung == k // 3 + 1
        assert (t.get() == rung).all()
        assert (w.get() == k + 2).all()
        assert (z.get() == (2 * rung if z.shape == t.shape else k + 1)).all()


@pytest.mark.slow
@pytest.mark.parametrize("reads", [True, False])
def test_a_collection_may_come_at_any_moment_of_a_statement(backend: Backend, reads: bool) -> None:
    """A finalizer that the collector runs while a statement is on its way into a group states something, and may read
    it; neither is lost nor mixed up with the other."""
    t, u = backend.zeros((3, 7)), backend.zeros((3, 7))
    rung, within, thresholds = 0, 0, gc.get_threshold()

    def ring() -> None:
        nonlocal rung
        t[:] = t + 1
        u[:] = u + t
        rung += 1
        if reads:
            assert (t.get() == rung).all()

    gc.collect()
    gc.freeze()  # what there is already is not gone through each time
    try:
        for allocations in range(1, 200):
            x, y = backend.ones((3, allocations)), backend.ones((3, allocations))  # a new form each time
            gc.collect()  # allocations are counted from here
            going = Bell(ring)
            going.itself = going
            del going
            with backend.fuse():
                gc.set_threshold(allocations, 1, 1)
                x[:] = y * allocations
                y[:] = x - y * (allocations - 2)
                y[:] = y * 0.5
                within += rung == allocations
                gc.set_threshold(*thresholds)
            assert (x.get() == allocations).all()
            assert (y.get() == 1).all()
        assert within > 20
        gc.collect()
        assert rung == 199
        assert (t.get() == rung).all()
        assert (u.get() == rung * (rung + 1) / 2).all()
    finally:
        gc.set_threshold(*thresholds)


def test_a_gate_has_the_bits_that_its_statement_has_alone(backend) -> None:
    x, z = tensors(backend, ("float32",) * 2)
    gate, first, second = (backend.empty((3, 44)) for _ in range(3))
    sig, tanh = backend.sig(x), backend.tanh(z)
    programs = [
        [(gate, lambda: sig * tanh)],
        [(first, lambda: sig), (second, lambda: tanh), (gate, lambda: first * second)],
        [(first, lambda: sig), (gate, lambda: first * tanh)],
        [(first, lambda: sig), (second, lambda: tanh), (gate, lambda: sig * tanh)],
        [(first, lambda: sig * tanh), (gate, lambda: first * tanh + sig)],
    ]
    for program in programs:
        for out, value in program:
            out[:] = value()
        alone = [out.get() for out, _ in program]
        with backend.fuse():
            for out, value in program:
                out[:] = value()
        for (out, _), expected in zip(program, alone):
            np.testing.assert_array_equal(out.get(), expected)


SIGMOIDS_BY_TANGENTS: dict[str, tuple[bool, Callable]] = {
    "reduced after the tangent's reduction": (True, lambda be, x, z: be.sum(be.sig(x) * be.tanh(z - be.max(z, 1)), 1)),
    "reduced after the sigmoid's reduction": (True, lambda be, x, z: be.sum(be.tanh(x) * be.sig(z - be.max(z, 1)), 1)),
    "of halves": (True, lambda be, x, z: be.sig(be.array(x, "float16")) * be.tanh(be.array(z, "float16"))),
    "a factor of halves": (False, lambda be, x, z: be.sig(be.array(x, "float16")) * be.tanh(z)),
    "of float64": (False, lambda be, x, z: be.sig(be.array(x, "float64")) * be.tanh(be.array(z, "float64"))),
    "a factor in memory": (False, lambda be, x, z: (sig := be.sig(x)) * be.tanh(z) + be.dot(sig, be.ones((44, 44)))),
    "a number a row": (False, lambda be, x, z: be.sig(x[:, :1]) * be.tanh(z)),
}


@pytest.mark.parametrize("name", SIGMOIDS_BY_TANGENTS)
def test_which_products_of_a_sigmoid_and_a_tangent_are_gates(backend: Backend, name: str) -> None:
    x, z = tensors(backend, ("float32",) * 2)
    is_gate, build = SIGMOIDS_BY_TANGENTS[name]
    tree = build(backend, x, z)
    testing.assert_bounded(backend.evaluate(tree).get(), testing.reference(tree))
    plan = schedule([Statement(backend.empty(tree.shape, tree.dtype).structure, tree)], [walk(tree)[0]])
    assert any(i.op is GATE for step in plan.steps if isinstance(step, Kernel) for i in step.body) == is_gate


@pytest.mark.parametrize("length", range(194, 204))
def test_a_gate_has_those_bits_where_the_group_is_too_large_for_a_kernel(backend, length: int) -> None:
    x, z = tensors(backend, ("float32",) * 2)
    gate, first = backend.empty((3, 44)), backend.empty((3, 44))

    def chain() -> object:
        value = -x if length % 2 else x * 0.5
        for k in range(length // 2):
            value = value + z if k % 2 else value - z
        return value

    first[:] = chain()
    gate[:] = backend.sig(first) * backend.tanh(z)
    expected = gate.get()
    with backend.fuse():
        first[:] = chain()
        gate[:] = backend.sig(first) * backend.tanh(z)
    np.testing.assert_array_equal(gate.get(), expected)
