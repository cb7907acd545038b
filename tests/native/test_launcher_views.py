# SPDX-License-Identifier: Apache-2.0
"""Native views: `t[key]`, `t.T`, `t.reshape(...)` and `t[key] = value`, and that they are those of Python."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorbackend import Backend, BackendError, ShapeError, Tensor, testing
from tests.entered import entered
from tests.native.statements import assert_no_references_left

SLOTS = ("dtype", "shape", "strides", "start", "stop", "name", "persist_values", "rounding", "_array")


def python_calls(function: Callable[[], Any]) -> int:
    """How many Python functions a call enters, beside itself, when it has been made twice before."""
    function()
    function()
    return len(entered(function)) - 1


def facts(view: Tensor, base: Tensor) -> list[Any]:
    """What a view is, with places counted from the tensor's."""
    found = [getattr(view, name) for name in SLOTS]
    found[3] -= base.address
    found[4] -= base.address
    return [*found, view.address - base.address, view.base is base, view is base, view.storage is base.storage]


def attempt(function: Callable[[], Tensor]) -> Any:
    """The view, or the type and text of what was raised."""
    try:
        return function()
    except (IndexError, ShapeError, TypeError, ValueError) as error:
        return type(error), str(error)


ENDS = st.none() | st.integers(-6, 6)
PARTS = st.integers(-5, 5) | st.builds(slice, ENDS, ENDS, ENDS) | st.none() | st.just(Ellipsis)
KEYS = PARTS | st.lists(PARTS, max_size=5).map(tuple)
SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple)


@pytest.fixture(scope="module")
def pair() -> Any:
    """A backend with native types, and one without."""
    both = testing.make_backend("jit", rng_seed=0), testing.make_backend("jit-python", rng_seed=0)
    yield both
    for be in both:
        be.cleanup_backend()


@given(SHAPES, KEYS, KEYS, st.sampled_from((np.float32, np.int8)))
def test_views_by_an_index_are_those_of_python(pair, shape, key, second, dtype) -> None:
    found = []
    for be in (*pair, pair[0], pair[0]):
        base = be.empty(shape, dtype=dtype, name="t")
        view = attempt(lambda base=base: base[key])
        found.append(view if isinstance(view, tuple) else facts(view, base))
        if not isinstance(view, tuple):
            other = attempt(lambda view=view: view[second])
            found[-1] = found[-1], other if isinstance(other, tuple) else facts(other, view)
    assert found[0] == found[1] == found[2] == found[3]


@given(SHAPES, st.lists(st.integers(-1, 8), max_size=4), st.booleans())
def test_turned_and_reshaped_tensors_are_those_of_python(pair, shape, wanted, in_tuple) -> None:
    found = []
    for be in (*pair, pair[0], pair[0]):
        base = be.empty(shape)
        for make in (lambda base=base: base.T, lambda base=base: base.T.T,
                     lambda base=base: base.reshape(tuple(wanted)) if in_tuple else base.reshape(*wanted),
                     lambda base=base: base.T.reshape(*wanted)):  # fmt: skip
            view = attempt(make)
            found.append(view if isinstance(view, tuple) else facts(view, base))
    assert found[:4] == found[4:8] == found[8:12] == found[12:]


@given(SHAPES, KEYS)
def test_assignment_to_a_part_is_that_of_numpy(pair, shape, key) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for be in (*pair, pair[0], pair[0]):
        expected, given_ = values.copy(), be.array(values, min_dims=0)
        view = attempt(lambda given_=given_: given_[key])
        if isinstance(view, tuple):
            with pytest.raises(view[0]):
                given_[key] = 7
            continue
        given_[key] = given_[key] * 2 + 7
        expected[key] = expected[key] * 2 + 7
        np.testing.assert_array_equal(given_.get(), expected)


KNOWN = ["t[1]", "t[-1, 2]", "t[:, 3]", "t[1:3, ::2]", "t[..., 0]", "t[None, 1:]", "t[:]", "t.T", "t.T.T",
         "t.reshape(2, 10)", "t.reshape((20, 1))", "t.reshape(4, 5)", "t.reshape(-1)",
         "t[1:3].T[0].reshape(2, 1)"]  # fmt: skip


@pytest.mark.parametrize("text", KNOWN)
def test_a_known_view_is_made_without_python(be, text: str) -> None:
    t = be.zeros((4, 5))
    code = compile(text, "", "eval")
    assert python_calls(lambda: eval(code, {"t": t})) == 1  # the text itself


def test_assignment_to_a_known_part_runs_without_python(be) -> None:
    t, x = be.zeros((4, 5)), be.ones((4, 1))

    def statement() -> None:
        t[:, 2] = x * 3
        t[1:, 0:1] = t[1:, 2:3]

    assert python_calls(statement) == 0
    expected = np.zeros((4, 5))
    expected[:, 2], expected[1:, 0] = 3, 3
    np.testing.assert_array_equal(t.get(), expected)


def test_integers_that_are_not_python_s_are_no_other_key(be) -> None:
    t = be.array(np.arange(20.0).reshape(4, 5))
    for _ in range(3):
        assert t[np.int64(1)].get().tolist() == t[1].get().tolist()
        assert t[:, np.uint8(2)].address == t[:, 2].address
        assert t[slice(np.int32(1), None)].shape == t[1:].shape
        with pytest.raises((IndexError, TypeError)):
            t[1.0]
        with pytest.raises(IndexError):
            t[1 << 70]
        with pytest.raises(TypeError):
            t.reshape(4.0, 5)
        assert t[1,].address == t[1].address
        assert t[True,].shape == (1, 4, 5)


def test_a_view_takes_names_and_rounding_of_its_tensor_as_they_are(be) -> None:
    t = be.zeros((4, 5), name="first")
    assert [t[1].name, t[1].name] == ["first"] * 2
    t.name, t.rounding, t.persist_values = "second", 7, False
    view = t[1]
    assert (view.name, view.rounding, view.persist_values, view._original_base) == ("second", 7, False, t)
    view.extra = 3
    assert not hasattr(t[1], "extra")
    assert copy.copy(view).extra == 3


def test_a_view_keeps_its_tensor_and_no_other_one(be) -> None:
    t = be.array(np.arange(20.0).reshape(4, 5))
    for _ in range(3):
        view = t[2].T
    gone = weakref.ref(t)
    del t
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(view.get().ravel(), [10, 11, 12, 13, 14])
    del view
    gc.collect()
    assert gone() is None


def test_views_leave_no_references(be) -> None:
    def statements(x, w, o, number) -> None:
        o[1:3] = x[2:4] * number
        assert w.T[0].base.base is w
        with pytest.raises(IndexError):
            x[16]

    assert_no_references_left(be, statements, 5_000)


def test_more_views_than_are_remembered(be) -> None:
    t = be.array(np.arange(20_000.0, dtype=np.float32), min_dims=0)
    for _ in range(2):
        for i in range(0, 20_000, 3):
            assert t[i : i + 2].address == t.address + 4 * i
            assert t[i:].address == t.address + 4 * i


def test_a_closed_backend_makes_no_views_from_memory() -> None:
    def outcome(native: str) -> tuple:
        be = testing.make_backend(native)
        t = be.zeros((4, 5))
        for _ in range(3):
            view = t[1:]
        be.cleanup_backend()
        with pytest.raises(BackendError):
            t[1:] = 3
        return attempt(lambda: t[1:].shape), view.shape

    assert outcome("jit") == outcome("jit-python")


def test_a_class_of_one_s_own_may_pick_otherwise() -> None:
    class Mine(Backend.backends["cpu"]):
        pass

    try:
        be = Mine()

        class Odd(be.tensor_cls):
            __slots__ = ()

            def __getitem__(self, key: Any) -> str:
                return f"picked {key}"

        t = Odd(be, (4, 5))
        assert [t[1], t[1]] == ["picked 1"] * 2
        assert type(t.T) is type(t.T.T) is Odd
        be.cleanup_backend()
    finally:
        del Backend.backends["Mine"]


# Trees whose numbers are operands

TREES = ["be.clip(x, {}, {})", "be.clip(x, y, {1})", "be.clip(x, {}, y)", "be.leaky_relu(x, {})", "be.elu(x, {})",
         "be.leaky_relu(x, slope={})", "be.elu(x, alpha={1})", "be.leaky_relu(x)", "be.clip(x, {0}, {0})",
         "be.clip(x, x, y)", "be.clip(x, y, x)", "be.clip(x + {}, y, y)", "be.clip(x, a_min={}, a_max={})"]  # fmt: skip
NUMBERS = st.integers(-3, 3) | st.floats(-3, 3, width=32) | st.just(float("nan")) | st.just(300)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=4, max_size=6), st.data())
def test_numbers_in_a_tree_are_those_of_the_call(pair, numbers, data) -> None:
    text = data.draw(st.sampled_from(TREES))
    given_ = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    for few in numbers:
        made = []
        names = [f"n{i}" for i in range(2)]
        for be in pair:
            held = dict(zip(names, few), be=be, x=be.array(given_), y=be.array(given_[::-1].copy()))
            node = eval(text.format(*names), held)
            out = be.empty(node.shape, dtype=node.dtype)
            out[:] = node
            made.append((str(node), out.get()))
        assert made[0][0] == made[1][0]
        np.testing.assert_array_equal(made[0][1], made[1][1])


def test_the_same_object_as_two_operands_is_told_from_two(be) -> None:
    x, y, z = (be.array(np.full((2, 2), v)) for v in (1.0, 5.0, 3.0))
    for _ in range(2):
        assert (be.clip(x, x, x).inputs[1] is x, be.clip(x, y, z).inputs[1] is z) == (True, True)
        assert be.clip(x, 0, 0).inputs[1] == 0
        assert be.clip(x, 2, 3).inputs[1] == 3
        assert be.leaky_relu(x, 0).inputs[0].inputs[1] == 0
        assert [str(n) for n in be.leaky_relu(x, 2).inputs[0].inputs[1:]] == ["0"]


@pytest.mark.parametrize("text", ["be.clip(x, -1, 1)", "be.clip(x, -0.5, 0.5)", "be.leaky_relu(x, 0.2)",
                                  "be.leaky_relu(x, slope=0.2)", "be.elu(x, 2.0)", "be.clip(x, y, 1)"])  # fmt: skip
def test_trees_of_numbers_are_made_without_python(be, text: str) -> None:
    x, y = be.zeros((4, 5)), be.zeros((4, 5))
    code = compile(text, "", "eval")
    assert python_calls(lambda: eval(code, {"be": be, "x": x, "y": y})) == 1
