# SPDX-License-Identifier: Apache-2.0
"""Native nodes, operators and assignment: what they remember, and that they mean what Python does."""

from __future__ import annotations

import copy
import inspect
import itertools
import operator
import threading
import time

import numpy as np
import pytest

from tensorbackend import Backend, BackendError, DTypeError, OpTreeNode, ShapeError, Tensor, dtypes, testing
from tensorbackend.backends import launcher
from tensorbackend.graph import composite
from tensorbackend.graph.optree import Operators
from tensorbackend.graph.templates import Template, opaque, placeholder
from tests.native.statements import SIXTEEN, counts, native_runs, tensors

# What is remembered


def test_a_repeated_statement_runs_without_python(be) -> None:
    x, w, b, y, o = tensors(be, 5)

    def statement() -> None:
        o[:] = (x * w + b) * y - w

    assert native_runs(be, statement) == 1
    expected = (x.get() * w.get() + b.get()) * y.get() - w.get()
    np.testing.assert_array_equal(o.get(), expected)


@pytest.mark.parametrize("letter", np.typecodes["AllInteger"] + "efd?")
def test_numbers_of_numpy_are_read_without_python(be, letter: str) -> None:
    o, i = be.ones(16), be.ones(16, dtype=np.int64)
    numbers = iter(np.array([2, 0, 1]).astype(letter))
    whole = letter not in "efd?"

    def statement() -> None:
        n = next(numbers)
        o[:] = o + n
        if whole:
            i[:] = i * 3 + n

    assert native_runs(be, statement) == 1 + whole
    assert (o.get() == (3 if letter == "?" else 4)).all()
    assert (i.get() == (46 if whole else 1)).all()


@pytest.mark.parametrize("dtype", [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)])
def test_the_ends_of_the_range_of_integers_are_read_without_python(be, dtype: str) -> None:
    info = np.iinfo(dtype)
    o, numbers = be.zeros(4, dtype=dtype), [info.min, min(info.max, 2**63 - 1)]
    given = iter([1, 1, *numbers])

    def statement() -> None:
        o[:] = next(given)

    assert native_runs(be, statement) == 1
    assert (o.get() == info.min).all()
    statement()
    assert (o.get() == numbers[1]).all()
    o[:] = info.max  # that of uint64 through Python
    for beyond in (info.min - 1, info.max + 1):
        with pytest.raises(OverflowError):
            o[:] = beyond
        assert (o.get() == info.max).all()


def test_gradients_of_slices_run_without_python(be) -> None:
    x, o = tensors(be, 2)

    def statement() -> None:
        o[:] = composite.unslice(x[2:5] * x[3:6], x.shape, (slice(4, 7),))

    assert native_runs(be, statement) == 1
    expected = np.zeros_like(x.get())
    expected[4:7] = x.get()[2:5] * x.get()[3:6]
    np.testing.assert_array_equal(o.get(), expected)


def test_new_numbers_and_tensors_of_a_known_form_are_read_anew(be) -> None:
    o, *xs = tensors(be, 4)
    for x, factor in itertools.product(xs, (2.0, -0.5, 1e30)):
        o[:] = x * factor + x
        np.testing.assert_array_equal(o.get(), x.get() * np.float32(factor) + x.get())
    assert counts(be)[1] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "o[:] = 2.5", "o[:] = 3", "o[:] = True", "o[:] = np.float32(1.5)", "o[:] = np.float64(0.1)", "o[:] = x",
        "o[:] = o", "o[:] = -x", "o[:] = abs(x)", "o[:] = 2 - x", "o[:] = x ** 2", "o[:] = 2 ** x", "o[:] = x % y",
        "o[:] = x // y", "o[:] = (x < y) * 2", "o[:] = 1.0 > x", "o[:] = x == y", "o[:] = x != 1", "o[:] = o * 2 + o",
        "o[:] = be.tanh(x) * be.maximum(x, 0)", "o[:] = be.where(x > 0, x, y)", "be.add(x, y, out=o)", "o.fill(7)",
        "o.copy(x * 2)", "o[:] = be.sum(x * y, axis=0)", "o[:] = be.softmax(x, axis=0)", "o[:] = (x + y).T.T",
        "o[:] = (x * y + x) / (x * x + 1)", "o[:] = x[::-1] * 2", "o[2:5] = x[2:5] * 2", "o[:] = o[::-1] + 0",
        "n = x * y; o[:] = n * n + n", "o[:] = x * np.float32(0.1) + np.float64(0.1)", "i[:] = i * 2 + 1",
        "i[:] = i & 7", "i[:] = ~i | 1", "i[:] = i << 2", "i[:] = i >> 1", "i[:] = i ^ 3", "i[:] = 5",
        "i[:] = True", "i[:] = 2.75", "i[:] = -1e30", "i[:] = i * 1.5", "m[:] = True", "m[:] = 0", "m[:] = 0.5",
        "m[:] = be.logical_xor(m, True)", "o[:] = x * bfloat16(0.1)", "i[:] = bfloat16(2.75)",
    ],
)  # fmt: skip
def test_it_means_what_it_means_without_native_types(be, plain, text: str) -> None:
    results = []
    for engine in (be, plain):
        x, y, o = tensors(engine, 3)
        names = {"be": engine, "np": np, "x": x, "y": y, "o": o, "i": engine.array(np.arange(16), dtype=np.int32),
                 "m": engine.array(np.arange(16) % 3, dtype="bool"), "bfloat16": dtypes.BFLOAT16.type}  # fmt: skip
        for _ in range(3):
            exec(text, names)
        results.append((o.get(), names["i"].get(), names["m"].get()))
    for native, python in zip(*results):
        np.testing.assert_array_equal(native, python)


@pytest.mark.parametrize(
    "text",
    [
        "o[:] = x * 2 + x", "o[:] = 1.5", "be.add(x, x, out=o)", "o.fill(2)", "o[:] = o[::-1] * 2", "o[3] = 1.0 + x[3]",
        "o[:] = x * True", "o[:] = be.rand() * x", "be.make_binary_mask(o)", "o[:] = be.cumsum(x, axis=0)",
    ],
)  # fmt: skip
def test_such_statements_are_native(be, text: str) -> None:
    x, o = tensors(be, 2)
    assert native_runs(be, lambda: exec(text, {"be": be, "x": x, "o": o})) >= 1


@pytest.mark.parametrize("text", ["x.hist('x')", "o[:] = np.ones((16, 1))"])
def test_what_needs_python_goes_there(be, text: str) -> None:
    x, o = tensors(be, 2)
    assert native_runs(be, lambda: exec(text, {"np": np, "x": x, "o": o})) == 0


def test_overlap_chooses_the_plan(be) -> None:
    base = be.array(np.arange(20.0), min_dims=0)
    values = np.arange(20.0, dtype=np.float32)
    for k in (0, 10, 1, 0, 1, 10, 2):
        base[k : k + 10][:] = base[:10] + 1
        values[k : k + 10] = values[:10] + 1
        np.testing.assert_array_equal(base.get(), values)


def test_repeats_choose_the_plan(be) -> None:
    x, y, o = tensors(be, 3)
    for a, b in [(x, y), (x, x), (y, x), (y, y), (o, x), (x, o), (o, o)] * 2:
        expected = a.get() * b.get()
        o[:] = a * b
        np.testing.assert_array_equal(o.get(), expected)


def test_large_trees_go_to_python(be) -> None:
    x, o = tensors(be, 2)
    for _ in range(2):
        tree = x
        for _ in range(300):
            tree = tree + 1
        o[:] = tree
    np.testing.assert_allclose(o.get(), x.get() + 300, rtol=1e-6)


def test_temporaries_come_from_the_runtime(be) -> None:
    m = be.array(np.arange(12.0).reshape(3, 4))
    o = be.empty((3, 4))

    def statement() -> None:
        o[:] = m - be.sum(be.transpose(m * 2) * 1, axis=0).T

    runs = native_runs(be, statement)
    values = np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(o.get(), values - (values * 2).sum(axis=1, keepdims=True))
    assert runs == 1


@pytest.mark.slow
def test_long_statements_let_other_threads_run(be) -> None:
    x, o = be.ones((1000, 1000)), be.empty((1000, 1000))
    stamps, ended = [], threading.Event()

    def tick() -> None:
        while not ended.wait(0.001):
            stamps.append(time.perf_counter())

    def statement() -> None:
        tree = x
        for _ in range(30):
            tree = be.sin(tree) + x
        o[:] = tree

    assert native_runs(be, statement) == 1
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for _ in range(20):  # of which a busy machine leaves no time to some
            begin = time.perf_counter()
            statement()
            quarter = (time.perf_counter() - begin) / 4
            if any(begin + quarter < stamp < begin + 3 * quarter for stamp in stamps):
                break
        else:
            raise AssertionError("none ran")
    finally:
        ended.set()
        thread.join()


# The checks of every statement


def test_writability_is_looked_at_each_time(be) -> None:
    x, o = tensors(be, 2)
    for _ in range(3):
        o[:] = x + 1
    o.storage.writable = False
    before = o.get()
    with pytest.raises(ValueError, match="read-only"):
        o[:] = x + 2
    np.testing.assert_array_equal(o.get(), before)


def test_rounding_is_looked_at_each_time(be) -> None:
    x, o = tensors(be, 2)
    for _ in range(3):
        o[:] = x * 0.3
    exact = o.get()
    o.rounding = 3
    o[:] = x * 0.3
    assert (o.get() != exact).any()
    o.rounding = 0
    o[:] = x * 0.3
    np.testing.assert_array_equal(o.get(), exact)


def test_a_closed_backend_refuses_what_it_knew(be) -> None:
    x, o = tensors(be, 2)
    tree = x + 1
    for _ in range(3):
        o[:] = x + 1
    be.cleanup_backend()
    assert counts(be)[:2] == (0, 0)
    for act in (lambda: x + 1, lambda: operator.setitem(o, slice(None), tree), lambda: be.tanh(x), lambda: o.fill(0)):
        with pytest.raises(BackendError, match="closed"):
            act()
    assert o.get().shape == (16, 1)


def test_tensors_of_another_backend_are_refused(be, plain) -> None:
    other = testing.make_backend("jit")
    (x, o), (z,), (p,) = tensors(be, 2), tensors(other, 1), tensors(plain, 1)
    o[:] = x + x
    o[:] = x
    for foreign in (z, p):
        acts = "x + f", "f + x", "operator.setitem(o, slice(None), f)", "be.add(x, f)", "be.tanh(f)"
        for act in acts:
            with pytest.raises(BackendError):
                eval(act, {"x": x, "o": o, "f": foreign, "be": be, "operator": operator})
    other.cleanup_backend()


@pytest.mark.parametrize("foreign", [object(), "text", None, [1, 2], {}])
def test_foreign_operands_are_a_type_error(be, foreign: object) -> None:
    x, o = tensors(be, 2)
    for act in (lambda: x + foreign, lambda: foreign - x, lambda: x * 2 + foreign, lambda: x < foreign):
        with pytest.raises(TypeError):
            act()
    if type(foreign) in (str, list):  # Python would repeat them, or put them together
        with pytest.raises(TypeError, match="add: operands"):
            (x + 1).__add__(foreign)
    else:
        assert (x + 1).__add__(foreign) is NotImplemented
    with pytest.raises((TypeError, DTypeError, ShapeError)):
        operator.setitem(o, slice(None), foreign)


def test_a_foreign_operand_may_know_how(be) -> None:
    class Knows:
        def __radd__(self, other: object) -> str:
            return "radd"

        def __add__(self, other: object) -> str:
            return "add"

    (x,) = tensors(be, 1)
    for _ in range(3):
        assert x + Knows() == "radd"
        assert Knows() + x == "add"


def test_errors_are_raised_again_and_again(be) -> None:
    x, o = tensors(be, 2)
    wide = be.zeros((3, 5))
    i = be.zeros(16, dtype=np.int32)
    for _ in range(3):
        with pytest.raises(ShapeError):
            x + wide
        with pytest.raises(ShapeError):
            o[:] = wide
        with pytest.raises(OverflowError):
            i[:] = i + 2**40
        with pytest.raises(OverflowError):
            o[:] = x * 10**400
        with pytest.raises(TypeError):
            bool(x == x)
    i[:] = i + 2**30
    assert i.get()[0, 0] == 2**30


def test_deleting_an_item_is_refused(be) -> None:
    (x,) = tensors(be, 1)
    with pytest.raises(TypeError, match="del: the elements of a tensor stay"):
        del x[:]


# The types


def test_types_stand_beside_python_types(be) -> None:
    x, y = tensors(be, 2)
    node = x + y
    assert isinstance(x, Tensor) and isinstance(x, be.tensor_cls) and isinstance(x, Backend.backends["cpu"].tensor_cls)
    assert isinstance(node, OpTreeNode) and isinstance(node, Operators)
    assert type(node).__name__ == "OpTreeNode" and type(x).__name__ == "CPUTensor"
    assert type(node) is be._native.node
    assert node.inputs == (x, y) or all(a is b for a, b in zip(node.inputs, (x, y)))
    assert hash(node) == id(node) >> 4 and hash(x) == id(x) >> 4
    assert str(node) == str(OpTreeNode.build("add", x, y))
    assert len({node, x, y, x + y}) == 4


def test_views_of_foreign_memory_are_assigned_natively(be, monkeypatch) -> None:
    (x,) = tensors(be, 1)
    own = np.zeros((16, 1), np.float32)
    views = [be.view(own), be.from_dlpack(own), be.view(own)[4:8]]
    assert all(type(view) is be.tensor_cls for view in views)
    for view in views:
        view[:] = x[: view.shape[0]] * 2 + view
    monkeypatch.setattr(be, "_run_statement", None)
    for view in views:
        view[:] = x[: view.shape[0]] * 2 + view
    expected = np.zeros((16, 1), np.float32)
    for _ in range(2):
        expected += x.get() * 2
        expected += x.get() * 2
        expected[4:8] += x.get()[:4] * 2
    np.testing.assert_allclose(own, expected, rtol=1e-6)


def test_copies_of_a_node_have_its_inputs(be) -> None:
    x, y = tensors(be, 2)
    node = x * y
    other = copy.copy(node)
    assert all(a is b for a, b in zip(other.inputs, node.inputs)) and other.structure is node.structure
    np.testing.assert_array_equal(other.get(), node.get())
    with pytest.raises(AttributeError):
        node.inputs = (x,)
    empty = type(node).__new__(type(node))
    with pytest.raises((AttributeError, TypeError)):
        empty + x


def test_subclasses_of_tensors_keep_their_ways(be) -> None:
    class Mine(be.tensor_cls):
        def __add__(self, other: object) -> str:
            return "mine"

    mine = Mine(be, (16, 1))
    (x,) = tensors(be, 1)
    for _ in range(3):
        mine[:] = x * 2
        assert mine + 1 == "mine"
        np.testing.assert_array_equal((mine * x).get(), 2 * x.get() ** 2)


def test_methods_look_like_python_methods(be, plain) -> None:
    for name in ("tanh", "maximum", "where"):
        native, python = getattr(be, name), getattr(plain, name)
        assert inspect.signature(native) == inspect.signature(python)
        assert (native.__name__, native.__doc__) == (python.__name__, python.__doc__)
    x, y = tensors(be, 2)
    for _ in range(3):
        with pytest.raises(TypeError):
            be.tanh()
        with pytest.raises(TypeError):
            be.tanh(x, y, x)
        with pytest.raises(TypeError):
            be.maximum(x, object())
        assert be.tanh(a=x).structure is be.tanh(x).structure
        assert be.maximum(x, y, out=y) is y


TREES = ["be.softmax(x, axis=1)", "be.var(x, 0)", "be.mean(x, axis=-1)", "be.sum(x)", "be.sum(x, keepdims=False)",
         "be.argmax(x, axis=0)", "be.norm(x, ord=1)", "be.gelu(x)", "be.std(x * 2 + 1, axis=None)"]  # fmt: skip


@pytest.mark.parametrize("text", TREES)
def test_methods_of_one_operand_repeat_their_tree(be, plain, text: str) -> None:
    given = np.arange(12, dtype=np.float32).reshape(3, 4)
    made = []
    for backend in (be, be, be, plain):
        node = eval(text, {"be": backend, "x": backend.array(given)})
        out = backend.empty(node.shape, dtype=node.dtype)
        out[:] = node
        made.append((str(node), node.shape, node.dtype, out.get()))
    assert type(eval(text, {"be": be, "x": be.array(given)})) is not OpTreeNode, "the third call is native"
    for other in made[1:]:
        assert other[:3] == made[0][:3]
        np.testing.assert_array_equal(other[3], made[0][3])


def test_arguments_choose_the_tree(be) -> None:
    x = be.array(np.arange(6.0).reshape(2, 3))
    shapes = [(1, 3), (2, 1), (1, 1), (3,)]
    for _ in range(3):
        found = [be.sum(x, 0), be.sum(x, axis=1), be.sum(x), be.sum(x, axis=0, keepdims=False)]
        assert [node.shape for node in found] == shapes
        with pytest.raises(ShapeError):  # also where axis 1 is known
            be.sum(x, axis=True)
        assert [be.max(x, axis=(0, 1)).shape, be.max(x, axis=[1]).shape] == [(1, 1), (2, 1)]
        with pytest.raises(ShapeError):
            be.sum(x, axis=7)
        with pytest.raises(TypeError):
            be.softmax(x, axes=1)


def test_trees_of_another_backend_are_not_mixed_up(be) -> None:
    other = testing.make_backend("jit", rng_seed=0)
    x = other.array(SIXTEEN.reshape(4, 4))
    for _ in range(3):
        assert be.softmax(x, axis=1).structure.table is other.structures
    other.cleanup_backend()


def test_random_parts_are_made_anew(be) -> None:
    out = be.empty((1, 1))
    drawn = set()
    for _ in range(4):
        out[:] = be.mean(be.rand() + be.zeros((4, 4)))
        drawn.add(float(out.get()[0, 0]))
    assert len(drawn) == 4


def test_a_backend_class_keeps_its_own_methods() -> None:
    class Louder(Backend.backends["cpu"]):
        def tanh(self, a: object, out: object = None) -> object:
            return super().tanh(a, out) * 2

    try:
        be = Louder()
        x = be.array([[0.5]])
        for _ in range(3):
            np.testing.assert_allclose(be.tanh(x).get(), 2 * np.tanh([[0.5]]), rtol=1e-6)
        be.cleanup_backend()
    finally:
        del Backend.backends["Louder"]


# With and without


def test_native_false_is_python_alone(run_python) -> None:
    code = """
import tensorbackend as tb
be = tb.gen_backend("cpu")
x = be.ones((4, 1)); y = be.empty((4, 1)); y[:] = x + 1
print(be._native, type(x + 1) is tb.OpTreeNode, float(y[0, 0]))
"""
    assert run_python(code, TB_NATIVE="0").stdout.split() == ["None", "True", "2.0"]


def test_a_build_that_fails_is_said_once(run_python) -> None:
    code = """
import logging, tensorbackend as tb
from tensorbackend.backends import launcher
logging.basicConfig(format="%(message)s")
launcher.SOURCE = "#error broken\\n"
for _ in range(2):
    be = tb.Backend.allocate_backend("cpu")
    x = be.ones((4, 1)); y = be.empty((4, 1)); y[:] = x + 1
    print(be._native, be.jit, float(y[0, 0]))
"""
    done = run_python(code)
    assert done.stdout.split() == ["None", "True", "2.0"] * 2
    assert done.stderr.count("native node and tensor types cannot be used") == 1


def test_memory_laid_out_otherwise_is_noticed() -> None:
    class Odd:
        __slots__ = ("a", "b")

    x = Odd()
    mark = object()
    x.a = x.b = mark
    with pytest.raises(LookupError, match="Odd"):
        launcher._offset(x, Odd.__basicsize__, mark)


def test_importing_builds_nothing(run_python) -> None:
    code = """
import sys, tensorbackend
from tensorbackend.backends import compiler, launcher
print(len(compiler._loaded), launcher._started_types.cache_info().currsize)
"""
    assert run_python(code).stdout.split() == ["0", "0"]


# Trees of templates


def test_nodes_of_a_template_are_native_and_as_python_makes_them(be) -> None:
    x, y, z = tensors(be, 3)
    drawn = [be.rand(shape=(16,)), be.rand(shape=(16,))]
    traced = [placeholder(t.structure, i) for i, t in enumerate((x, y))]
    a, b = map(opaque, traced)
    roots = [be.where(a > b, a * drawn[0], be.tanh(b)) - 2, be.sum(a * drawn[1] + b, axis=0), a[12:4:-2] * b[1:5]]
    template = Template(roots, traced)
    made = template.make([x, y], [5, 6])
    template._grow = template._look = None
    plain = template.make([x, y], [5, 6])
    assert len(template.views) == 2
    assert len(made) == len(plain) == 4 + len(template.constants) + len(template.nodes)
    native = type(be.tanh(x))
    assert native is not OpTreeNode and native is type(x + y)
    places = [{id(value): at for at, value in enumerate(values)} for values in (made, plain)]
    for one, other in zip(made, plain):
        if isinstance(one, OpTreeNode):
            assert type(one) is native and type(other) is OpTreeNode
            assert one.structure is other.structure
            assert getattr(one, "draw", None) == getattr(other, "draw", None)
            assert [places[0][id(v)] for v in one.inputs] == [places[1][id(v)] for v in other.inputs]
        elif isinstance(one, Tensor) and one is not other:
            assert type(one) is type(other) and one.structure is other.structure and one.base is other.base
            assert (one.address, one.start, one.stop) == (other.address, other.start, other.stop)
            assert (one.name, one.rounding) == (other.name, other.rounding)
    assert [getattr(v, "draw", None) for v in made if isinstance(v, OpTreeNode)].count(5) == 1
    for number, _ in zip(template.roots, roots):
        np.testing.assert_array_equal(be.evaluate(made[number]).get(), be.evaluate(plain[number]).get())


def test_places_that_a_template_does_not_have_are_refused(be) -> None:
    x, y = tensors(be, 2)
    structure = (x + y).structure
    values = [x, y]
    for places, source in (((0, 2), -1), ((0, 1), 0)):
        with pytest.raises(IndexError):
            be.structures.grow(values, [(structure, places, source)], [])
    assert len(values) == 2
