# SPDX-License-Identifier: Apache-2.0
"""What is remembered changes nothing: steps that differ in small ways alone, each as if it were the first.

A step is run on a backend that remembers all steps before it, and again on one that has forgotten everything; numbers
are compared bit by bit, errors by their texts. A key that leaves out what a result depends on finds another step's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import tensorbackend as tb
from tensorbackend import Backend, Tensor, distributed, testing
from tensorbackend import functions as F
from tensorbackend.backends import jit
from tensorbackend.backends.anywhere import host_backend
from tensorbackend.conformance.plugin import PROFILE
from tensorbackend.distributed.optimizer import AverageGradients
from tensorbackend.errors import ShapeError
from tensorbackend.function import arrays, type_check
from tensorbackend.function.trees import Rule
from tensorbackend.graph import composite as o
from tensorbackend.graph import structure
from tensorbackend.graph.plan import Plan

KINDS = testing.backend_kinds()
ONES = (1, 0, True, 0.0, -0.0, 1.0, False)
NUMBERS = (*ONES, np.float32(-0.0), 2, -1, np.float32(1.0), np.float64(1.0), np.int32(1), 0.5)
AXES = (1, True, 1.0, 0, None, False, -1, 0.0, (1,), (0, 1), (True,), [1], np.int64(1), (0,), 7)
LENGTHS = ((3, 2), (3.0, 2), (2, 3), (6, True), (6, 1), (np.int64(3), 2), (-1, 2))
SLICES = (slice(0, 2), slice(0, 2.0), slice(False, 2), slice(0, 2, True), slice(0, 2, 1.0), 1, np.int64(1), None)
VIEWS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda m: m[6:12].reshape(2, 3),
    lambda m: m[:6].reshape(2, 3),
    lambda m: m[7:13].reshape(2, 3),
    lambda m: m[6:12].reshape(3, 2).T,
    lambda m: m[:12:2].reshape(2, 3),
)
FIELDS = 10
DATA = np.array([0.0, -0.0, 1.5, -2.25, 3.0, -0.5] * 4)


@cache
def shared(kind: str) -> Backend:
    """One backend of a kind for all tests."""
    return testing.make_backend(kind, min_dims=0, rng_seed=0)


class World:
    """Memory with numbers in it, on which steps work. A choice is a number; what it stands for depends on the step."""

    def __init__(self, be: Backend, host: bool = False) -> None:
        be.rng_reset()
        self.be, self.host = be, host
        self.is_wide = not testing.compiles(be) or PROFILE == "long"
        self.memory = {name: be.array(DATA.astype(name), dtype=name) for name in ("float32", "int32")}
        self.columns = be.array(np.abs(DATA).astype("float32"))
        self.choices = FIELDS * [0]

    def of(self, field: int, alternatives: Sequence, few: int | None = None) -> Any:
        """What a field of the step chooses; of the first few alternatives where each may compile a kernel."""
        alternatives = alternatives if self.is_wide else alternatives[:few]
        return alternatives[self.choices[field] % len(alternatives)]

    def number(self, field: int = 1) -> Any:
        """A number that a field chooses."""
        return self.of(field, NUMBERS, len(ONES))

    def view(self, field: int, dtype: str) -> Tensor:
        """A view that a field chooses, as an object of its own; views may overlap."""
        return self.of(field, VIEWS, 3)(self.memory[dtype])

    def state(self) -> list[Any]:
        """All numbers, as bytes."""
        return [exactly(x) for x in (*self.memory.values(), self.columns)]


def exactly(x: Any) -> Any:
    """A result, so that equal means the same bits of the same type and shape."""
    if isinstance(x, (tuple, list)):
        return [exactly(part) for part in x]
    x = x.get() if hasattr(x, "get") else x
    return (x.dtype.name, x.shape, x.tobytes()) if isinstance(x, np.ndarray) else repr(x)


# Steps


def statement(w: World) -> None:
    """Assignments whose target may be read, in part or as it is; two in a block."""
    be, dtype, number = w.be, w.of(5, ("float32", "float32", "int32"), 2), w.number()
    t, a = w.view(2, dtype), w.view(3, dtype)
    b = a if w.of(6, (False, True)) else w.view(4, dtype)
    t.rounding = w.of(7, (0, 0, 4))
    form = w.of(0, range(8))
    if form == 0:
        t[:] = a * number
    elif form == 1:
        t[:] = (number - a) * b
    elif form == 2:
        t[:] = number
    elif form == 3:
        t[:] = be.maximum(a, number)
    elif form == 4:
        t[:] = (a < number) + b
    elif form == 5:
        part = a + b
        t[:] = part * (part if w.of(6, (True, False)) else a + b)
    elif form == 6:
        t[:] = a
    else:
        with be.fuse():
            t[:] = a * number
            w.view(4, dtype)[:] = w.view(w.of(6, (2, 3)), dtype) + number


def tree(w: World) -> Tensor:
    """Expressions by axes, lengths and slices."""
    be, axis, number, a = w.be, w.of(2, AXES, 6), w.number(), w.view(3, "float32")
    x = a + 1.0 if w.of(4, (True, False)) else a
    makers = (
        lambda: be.sum(x, axis=axis), lambda: be.sum(x, axis, keepdims=w.of(5, (False, 0, 1, True))),
        lambda: be.mean(x, axis), lambda: be.argmax(x, axis), lambda: be.softmax(x, axis),
        lambda: be.norm(x, axis, ord=w.of(1, (2, 1, 2.0, True, 3))), lambda: be.leaky_relu(x, number),
        lambda: be.isclose(x, number), lambda: be.clip(x, number, 2), lambda: be.cumsum(x, axis),
        lambda: be.take(x, [1, 0], axis), lambda: (x + number).reshape(*w.of(5, LENGTHS)),
        lambda: (x + number).transpose(*w.of(5, ((1, 0), (True, False), (1.0, 0), (0, 1), (0, 1.0)))),
        lambda: (x + number)[w.of(5, SLICES)], lambda: be.reshape(x * 2, w.of(5, LENGTHS)),
    )  # fmt: skip
    return be.evaluate(w.of(0, makers)())


def call(w: World) -> Any:
    """Primitives by numbers, layouts and what their tensors share; a form that comes again is native code's."""
    be, number, other = w.be, w.number(), w.number(5)
    out, x = w.view(2, "float32"), w.view(3, "float32")
    x = out if w.of(6, (False, False, True)) else x
    out.rounding = w.of(7, (0, 0, 4))
    column = [w.columns[2 * k : 2 * k + 2].reshape(2, 1) for k in range(6)]
    form = w.of(0, range(4))
    if form == 0:
        number, other = w.of(1, (0.5, 0.0, -0.0, 1.0, *NUMBERS), 4), w.of(5, (0.0, -0.0, 1.0, *NUMBERS), 3)
        eps, given, relu = w.of(8, (1e-3, 0.0, -0.0)), w.of(4, (True, 1, False), 2), w.of(9, (False, True, 1), 1)
        inference = w.of(8, (False, False, False, True), 3)
        return be.compound_fprop_bn(x, *column, out, eps, number, given, other, relu, inference=inference)
    if form == 1:
        layer, where = pooling(be), be.zeros((1, 1, 1, 3, 1), dtype="int32")
        return be.fprop_pool(layer, x, out[0], where, number, other), exactly(where)
    if form == 2:
        product = be.compound_dot(x, w.view(4, "float32").T, be.copy(out[:, :2]), number, other, w.of(9, (False, True)))
        return exactly(product)
    with be.fuse() if w.of(8, (False, True)) else tb.using():
        return be.update_fc_bias(x, column[w.of(9, range(2))])


@cache
def pooling(be: Backend) -> Any:
    """A layer: calls are known by it."""
    return be.pool_layer(np.float32, "max", N=1, C=1, H=6, R=2)


@tb.fused
def scaled(x: Any, y: Any, by: Any = 1) -> Any:
    """A function with a parameter, on two variables that may be one."""
    return F.tanh(x * by) * y


def function(w: World) -> Any:
    """Functions of variables and numbers, and their gradients."""
    number, axis = w.number(), w.of(2, AXES, 6)
    data = [w.view(3, w.of(5, ("float32", "float32", "int32"), 2)), w.view(4, "float32")]
    data = [x.get() if w.host else arrays.plain(x) for x in data]
    x, y = map(tb.Variable, data)
    y = x if w.of(6, (False, True)) else y
    makers = (
        lambda: x * number, lambda: number - x, lambda: F.sum(x, axis=axis, keepdims=w.of(7, (False, True, 0, 1))),
        lambda: scaled(x, y, by=number), lambda: F.leaky_relu(x, slope=number), lambda: x**number,
        lambda: F.clip(x, number, 2.0), lambda: F.softmax(x, axis=axis), lambda: x * y + number,
    )  # fmt: skip
    made = w.of(0, makers)()
    if made.dtype != np.float32 or x.dtype != np.float32 or not w.of(8, (True, False)):
        return exactly(made.array)
    F.sum(made).backward()
    return exactly([made.array, x.grad, y.grad if y.grad is not None else None])


def user_kernel(w: World) -> Any:
    """Kernels of the user's, by types of numbers, layouts and overlaps."""
    be, number = w.be, w.number()
    out, x = w.view(2, "float32"), w.view(3, w.of(5, ("float32", "float32", "int32"), 2))
    kernel = be.elementwise("T x, S a", "float32 z", "z = x * a", "memo_scale")
    if w.of(0, (True, True, False)):
        return exactly(kernel(x, number, out) if w.of(6, (True, False)) else kernel(x, number))
    total = be.reduction("T x", "T y", "x", "a + b", "y = a", "0", "memo_total")
    return exactly(total(x, axis=w.of(7, (1, 0, None, True, (0, 1), -1)), keepdims=w.of(8, (False, True, 1), 1)))


# Each as if it were the first


def forget(be: Backend) -> None:
    """Have a backend, and the one for arrays of the host, forget everything."""
    for backend in (be, host_backend()):
        backend._forget_plans()


def outcome(step: Callable[[World], Any], w: World) -> Any:
    """What a step gives and leaves, or the error that it raises."""
    try:
        found = step(w)
    except Exception as error:  # noqa: BLE001  whatever it is, it is to be the same again
        found = f"{type(error).__name__}: {error}"
    return exactly(found), w.state()


CHANGES = st.lists(
    st.tuples(st.sampled_from([1, 1, 1, *range(1, FIELDS)]), st.integers(0, 15), st.integers(1, 4)), max_size=24
)
"""A field of the step, most often its number, what it becomes, and how often the step is run then."""


def assert_forgetting_changes_nothing(be: Backend, step: Callable[[World], Any], form: int, changes: list,
                                      host: bool = False) -> None:  # fmt: skip
    """The same steps twice: each as the first, then each known by those before it; plans are on disk by then."""
    runs = []
    for forgets in (True, False):
        w = World(be, host)
        w.choices[0] = form
        forget(be)
        found = []
        for field, choice, times in changes:
            w.choices[field] = choice
            for _ in range(times):
                if forgets:
                    forget(be)
                found.append((list(w.choices), outcome(step, w)))
        runs.append(found)
    for first, known in zip(*runs):
        assert known == first, known[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(form=st.integers(0, 7), changes=CHANGES)
def test_statements(kind: str, form: int, changes: list) -> None:
    assert_forgetting_changes_nothing(shared(kind), statement, form, changes)


@pytest.mark.parametrize("kind", KINDS)
@given(form=st.integers(0, 14), changes=CHANGES)
def test_trees(kind: str, form: int, changes: list) -> None:
    assert_forgetting_changes_nothing(shared(kind), tree, form, changes)


@pytest.mark.parametrize("kind", KINDS)
@example(form=0, changes=[(5, 2, 4)])  # in place, through two tensors, and the old numbers are added
@given(form=st.integers(0, 3), changes=CHANGES)
def test_calls(kind: str, form: int, changes: list) -> None:
    assert_forgetting_changes_nothing(shared(kind), call, form, changes)


@pytest.mark.parametrize("kind", [*KINDS, "numpy"])
@example(form=0, changes=[(1, 1, 1), (1, 0, 1), (1, 2, 1)])  # x * 0, x * 1, x * True
@example(form=3, changes=[(1, 3, 1), (1, 4, 1), (1, 1, 1)])  # by 0.0, by -0.0, by 0
@given(form=st.integers(0, 8), changes=CHANGES)
def test_functions(kind: str, form: int, changes: list) -> None:
    host = kind == "numpy"
    assert_forgetting_changes_nothing(shared("interpreter" if host else kind), function, form, changes, host)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "interpreter"])
@given(form=st.integers(0, 2), changes=CHANGES)
def test_user_kernels(kind: str, form: int, changes: list) -> None:
    assert_forgetting_changes_nothing(shared(kind), user_kernel, form, changes)


# What was mended, one by one


@pytest.fixture(params=KINDS)
def be(request: pytest.FixtureRequest) -> Backend:
    """Each kind of backend in turn, which knows nothing."""
    made = shared(request.param)
    made.rng_reset()
    forget(made)
    return made


@pytest.mark.parametrize("known, alike, error", [
    (lambda be, x: be.sum(x, axis=1), lambda be, x: be.sum(x, axis=True), ShapeError),
    (lambda be, x: be.max(x, axis=(0, 1)), lambda be, x: be.max(x, axis=(False, 1.0)), ShapeError),
    (lambda be, x: be.cumsum(x, 1), lambda be, x: be.cumsum(x, 1.0), ShapeError),
    (lambda be, x: be.take(x, [0], 1), lambda be, x: be.take(x, [0], True), ShapeError),
    (lambda be, x: (x + 1).reshape(3, 2), lambda be, x: (x + 1).reshape(3.0, 2), TypeError),
    (lambda be, x: (x + 1).transpose(1, 0), lambda be, x: (x + 1).transpose(1.0, 0), TypeError),
    (lambda be, x: (x + 1)[:2], lambda be, x: (x + 1)[:2.0], TypeError),
])  # fmt: skip
def test_what_is_refused_is_refused_when_its_like_is_known(be: Backend, known, alike, error) -> None:
    x = be.ones((2, 3))
    known(be, x)
    with pytest.raises(error):
        alike(be, x)


def test_primitives_tell_zeros_apart(be: Backend) -> None:
    x, y, where = be.ones((1, 1, 1, 6, 1)), be.empty((1, 1, 1, 3, 1)), be.empty((1, 1, 1, 3, 1), dtype="int32")
    for alpha in (0.0, -0.0, 0.0, -0.0):
        be.fprop_pool(pooling(be), x, y, where, alpha=alpha)
        assert (np.signbit(y.get()) == np.signbit(alpha)).all()


def normalised(be: Backend, rho: float = 0.5, rounding: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The result of a batch normalisation, and its running mean, of numbers around 0."""
    x, y, mean = be.array(np.array([[1.0, 2.0, -3.0]])), be.empty((1, 3)), be.full((1, 1), -0.0)
    y.rounding = rounding
    sums, variance, running, ones, zeros = (be.ones((1, 1)) for _ in range(5))
    be.compound_fprop_bn(x, sums, variance, mean, running, ones, zeros, y, 1e-5, rho, False)
    return y.get(), mean.get()


def test_normalisation_rounds_where_its_like_did_not(be: Backend) -> None:
    plain, _ = normalised(be)
    rounded, _ = normalised(be, rounding=3)
    words = rounded.view(np.uint32)
    assert (words % (1 << 20) == 0).all() and (words != plain.view(np.uint32)).any()


def test_steps_of_calls_that_are_remembered_are_bounded(be: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "MAX_PLANS", 20)
    for k in range(50):
        normalised(be, rho=k / 64)
    assert len(be.structures.plans) <= 20


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "interpreter"])
def test_settings_of_the_compiler_hold_for_what_is_known(kind: str) -> None:
    be = shared(kind)
    x, y = be.ones((2, 3)), be.empty((2, 3))
    twice = be.elementwise("float32 x", "float32 y", "y = MEMO_FACTOR * x", "memo_factor",
                           preamble="#ifndef MEMO_FACTOR\n#define MEMO_FACTOR 2\n#endif")  # fmt: skip

    def made() -> tuple[list, set[str]]:
        for _ in range(4):
            y[:] = x * 3.0
            result = twice(x, y).get()
        plans = [p for p in be.structures.plans.values() if isinstance(p, Plan)]
        steps = [step for p in plans for step in p.cache[True].steps]
        return result.tolist(), {launch._words[0] for prepared, *_ in steps for launch in prepared.launches}

    forget(be)
    values, before = made()
    assert values == [[2.0] * 3] * 2
    with tb.using(cflags="-DMEMO_FACTOR=5"):
        values, inside = made()
        assert values == [[5.0] * 3] * 2 and not before & inside
    values, after = made()
    assert values == [[2.0] * 3] * 2 and after == before


@pytest.mark.skipif(len(KINDS) == 1, reason="no C compiler works here")
def test_headers_are_read_with_the_flags_of_the_kernel() -> None:
    """Of the thread that asked, whichever does the work."""
    source = '#include "kernel.h"\nfloat x = tb_memo_tanh(1);\n'
    plain = jit._expander()
    with tb.using(cflags="-Dtb_tanh_f32=tb_memo_tanh"):
        renamed = jit._expander()
    assert [expand(source).count("tb_memo_tanh") > 1 for expand in (plain, renamed, plain)] == [False, True, False]


def test_texts_of_user_kernels_are_not_taken_for_each_other() -> None:
    be = shared(KINDS[-1])
    four = be.elementwise("float32 x", "float32 y", "y = x", "memo_name")
    with pytest.raises(ValueError, match="option"):
        be.elementwise("float32 x", "float32 y", "y = x", preamble="memo_name", options=("",))
    assert be.elementwise("float32 x", "float32 y", "y = x", "memo_name") is four


def test_types_are_checked_when_they_were_not_at_first(be: Backend) -> None:
    x, w = (tb.Variable(arrays.plain(be.ones(shape))) for shape in ((4, 3), (2, 3)))
    rule = Rule("picky", lambda x, w: x * o.sum(w), check=lambda types, **params: type_check.expect(types[0].ndim == 1))
    with tb.using_config("type_check", False):
        rule(x, w)
    with pytest.raises(type_check.InvalidType):
        rule(x, w)
    with tb.using_config("type_check", False):
        rule(x, w)


def test_memoize_without_parentheses_is_refused() -> None:
    with pytest.raises(TypeError, match=r"@tb\.memoize\(\)"):

        @tb.memoize
        def double(x: int) -> int:
            return 2 * x


def test_memoized_functions_name_what_has_no_hash() -> None:
    @tb.memoize()
    def length(x: list) -> int:
        return len(x)

    with pytest.raises(TypeError, match="memoize: arguments\n.*'list'"):
        length([1])


def test_memoized_functions_tell_arguments_apart() -> None:
    seen = []

    @tb.memoize()
    def noted(*arguments: Any, **keywords: Any) -> int:
        seen.append((arguments, keywords))
        return len(seen)

    by_place = [(0.0,), (-0.0,), (0,), (False,), (np.float32(-0.0),), ((1, 2),), ((True, 2),), ((1, 2.0),)]
    by_name = [{"a": 1, "b": True}, {"b": 1, "a": True}]
    calls = [*((arguments, {}) for arguments in by_place), *(((), keywords) for keywords in by_name)]
    for _ in range(2):
        assert [noted(*arguments, **keywords) for arguments, keywords in calls] == list(range(1, len(calls) + 1))


def test_buckets_of_gradients_belong_to_shapes_and_types() -> None:
    be = shared(KINDS[0])
    hook = AverageGradients(distributed.Alone(be))
    arrays_of = [be.ones((2, 3)), be.ones((2, 3), dtype="float64"), be.ones((3, 3)), be.zeros((2, 3))]
    found = [hook._of({"w": x})[1] for x in arrays_of]
    assert len(set(map(id, found))) == 3 and found[3] is found[0]
