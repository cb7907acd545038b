# SPDX-License-Identifier: Apache-2.0
"""Every op of the table, for every type, shape and layout, against the oracle; its rules, spellings and columns."""

from __future__ import annotations

import itertools
import math
import operator
from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, DTypeError, ShapeError, dtypes, ops, testing
from tensorbackend.graph import composite
from tensorbackend.graph.optree import Operators, OpTreeNode, apply

pytestmark = pytest.mark.rehearsed

ELEMENTWISE = [op for op in ops.elementwise() if op.name != "sround"]  # needs random words: see test_random
BITS = [op for op in ELEMENTWISE if op.dtype in ("bits", "integer")]

each_op = pytest.mark.parametrize("op", ELEMENTWISE, ids=attrgetter("name"))
each_reduction = pytest.mark.parametrize("op", ops.reductions(), ids=attrgetter("name"))


def turn(op: ops.Op) -> int:
    """Which part of the cases an op takes where each compiles a kernel: neighbours take different ones."""
    return list(ops.OPS).index(op.name)


def check(backend: Backend, *nodes: OpTreeNode) -> None:
    """The value of each node in a new tensor of its type, against the oracle."""
    for node in nodes:
        actual = backend.evaluate(node)
        assert (actual.shape, actual.dtype) == (node.shape, node.dtype)
        testing.assert_bounded(actual.get(), testing.reference(node))


def tensors(backend: Backend, arrays: list[np.ndarray]) -> list[Any]:
    """Tensors of the arrays' own rank and type."""
    return [backend.array(a, dtype=a.dtype, min_dims=0) for a in arrays]


def layouts(backend: Backend, array: np.ndarray) -> dict[str, Any]:
    """The array as tensors with the strides that a kernel must tell apart."""
    host = {
        "contiguous": (array, lambda t: t),
        "every second": (np.repeat(array, 2, axis=-1), lambda t: t[..., ::2]),
        "backwards": (array[::-1, ..., ::-1], lambda t: t[::-1, ..., ::-1]),
        "transposed": (array.transpose(), lambda t: t.transpose(*range(array.ndim)[::-1])),
        "a part": (np.pad(array, 1), lambda t: t[(slice(1, -1),) * array.ndim]),
        "repeated": (array[:1], lambda t: backend.broadcast_to(t, array.shape)),
    }
    return {name: view(tensors(backend, [given])[0]) for name, (given, view) in host.items()}


# Values


@each_op
def test_elementwise_values(backend: Backend, op: ops.Op) -> None:
    singles = [] if op in BITS else [np.dtype(np.float32), np.dtype(np.float64)]
    others = [d for d in dtypes.DTYPES if d not in singles and not (op in BITS and dtypes.is_float(d))]
    chosen = singles + testing.some(backend, others, turn(op))
    operands = [testing.sample(op, ((97,),) * 3, dtype, special=True) for dtype in chosen]
    check(backend, *[apply(op, *tensors(backend, arrays)) for arrays in operands])


@each_op
def test_elementwise_broadcasts(backend: Backend, op: ops.Op) -> None:
    dtype = "int32" if op in BITS else "float32"
    operands = [testing.sample(op, shapes, dtype) for shapes in testing.some(backend, testing.BROADCASTS, turn(op))]
    check(backend, *[apply(op, *tensors(backend, arrays)) for arrays in operands])


@each_op
def test_elementwise_layouts(backend: Backend, op: ops.Op) -> None:
    dtype = "int16" if op in BITS else "float32"
    arrays = testing.sample(op, ((3, 4, 5),) * 3, dtype)
    others = tensors(backend, arrays[1:])
    views = testing.some(backend, layouts(backend, arrays[0]).values(), turn(op))
    check(backend, *[apply(op, view, *others) for view in views])


TARGETS = {
    "every second": lambda be, shape, dtype: be.empty((2 * shape[0], *shape[1:]), dtype, min_dims=0)[::2],
    "backwards": lambda be, shape, dtype: be.empty(shape, dtype, min_dims=0)[::-1],
    "transposed": lambda be, shape, dtype: be.empty(shape[::-1], dtype, min_dims=0).transpose(*range(len(shape))[::-1]),
}


@each_op
def test_elementwise_targets(backend: Backend, op: ops.Op) -> None:
    kinds = ["int32"] if op in BITS else ["float32", "float64"]
    cases = itertools.product(kinds, TARGETS.values(), [(97,), (40, 1), (5, 33)])
    for dtype, target, shape in testing.some(backend, cases, turn(op), 9):
        node = apply(op, *tensors(backend, testing.sample(op, (shape,) * 3, dtype, special=True)))
        expected = testing.reference(node)
        written = target(backend, shape, node.dtype)
        written[:] = node
        testing.assert_bounded(written.get(), expected)


@pytest.mark.parametrize("name", ["add", "div", "maximum", "lt", "where"])
def test_elementwise_of_two_types(backend: Backend, name: str) -> None:
    op = ops.OPS[name]
    pairs = itertools.product(dtypes.DTYPES, repeat=2)
    nodes = []
    for first, second in testing.some(backend, pairs, turn(op), 16):
        (x,), (y,) = (testing.sample(ops.OPS["add"], ((7,),), d, seed)[:1] for seed, d in enumerate((first, second)))
        a, b = tensors(backend, [x, y])
        nodes.append(apply(op, a > 0, a, b) if op.arity == 3 else apply(op, a, b))
    check(backend, *nodes)


NUMBERS = [True, 3, -2, 2.5, math.inf, math.nan, 1e300, np.float16(1.5), np.float64(0.1), np.int8(-3), np.uint64(7),
           np.bool_(True), np.array(2.0, np.float32)]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_elementwise_with_a_number(backend: Backend, number: Any) -> None:
    nodes = []
    for dtype in dtypes.DTYPES:
        if isinstance(number, int) and number < 0 and dtype.kind == "u":
            continue
        (x,) = tensors(backend, testing.sample(ops.OPS["add"], ((2, 5),), dtype)[:1])
        forms = [number - x, x * number, backend.maximum(x, number)]
        nodes += testing.some(backend, forms, dtype.num)
    check(backend, *nodes)


def test_numbers_of_subclasses_are_what_they_derive_from(backend: Backend) -> None:
    for kind, number in ((float, 0.5), (int, 3)):
        own = type("Own", (kind,), {})(number)
        for dtype in ("bool", "int8", "uint64", "float16"):
            x = backend.array([0, 1], dtype=dtype)
            for op in (ops.OPS["mul"], ops.OPS["maximum"], ops.OPS["lt"]):
                made, plain = apply(op, x, own), apply(op, x, number)
                assert made.dtype == plain.dtype
                assert backend.evaluate(made).tolist() == backend.evaluate(plain).tolist()


def test_number_beyond_an_integer_type_is_refused(backend: Backend) -> None:
    x = backend.array([1, 2], dtype="int8")
    with pytest.raises(OverflowError, match="300"):
        backend.evaluate(x + 300)


@pytest.mark.parametrize("number", [-1, -129, 300, 2**40, 2**63, -(2**70)])
def test_comparisons_with_numbers_beyond_an_integer_type_have_an_answer(backend: Backend, number: int) -> None:
    for dtype in filter(dtypes.is_integer, dtypes.DTYPES):
        limits = np.iinfo(dtype)
        values = np.array([limits.min, 0, 1, limits.max], dtype)
        x = backend.array(values, dtype=dtype, min_dims=0)
        names = ("less", "less_equal", "equal", "not_equal", "greater", "greater_equal")
        for compare, name in zip(("__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"), names):
            expected = [getattr(int(value), compare)(number) for value in values]
            mirrored = [getattr(number, compare)(int(value)) for value in values]
            for _ in range(2):
                assert backend.evaluate(getattr(x, compare)(number)).get().tolist() == expected, (dtype, name)
                assert backend.evaluate(getattr(backend, name)(x, number)).get().tolist() == expected, (dtype, name)
                assert backend.evaluate(getattr(backend, name)(number, x)).get().tolist() == mirrored, (dtype, name)


@pytest.mark.parametrize("signed", ["int8", "int64"])
def test_uint64_beside_signed_integers_compares_exactly(backend: Backend, signed: str) -> None:
    """float64, their common type, has no place for all of them."""
    near = [0, 3, 2**53, 2**53 + 1, 2**63 - 1]
    values = np.array([-128, -1, 0, 3, 127] if signed == "int8" else [*near, -1, -(2**63)], signed)
    others = np.array([*near, 2**63, 2**64 - 1], np.uint64)
    x = backend.array(values.reshape(-1, 1), dtype=signed)
    y = backend.array(others.reshape(1, -1), dtype="uint64")
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        op, compare = ops.OPS[name], getattr(operator, name)
        wanted = np.array([[compare(int(a), int(b)) for b in others] for a in values])
        mirrored = np.array([[compare(int(b), int(a)) for b in others] for a in values])
        assert (backend.evaluate(apply(op, x, y)).get() == wanted).all(), name
        assert (backend.evaluate(apply(op, y, x)).get() == mirrored).all(), name
        assert (backend.evaluate(apply(op, x, others[3])).get() == wanted[:, 3:4]).all(), name
        check(backend, apply(op, x, y))


@pytest.mark.parametrize("op", BITS, ids=attrgetter("name"))
def test_bits_of_floats_are_refused(backend: Backend, op: ops.Op) -> None:
    x = backend.ones((2, 2))
    with pytest.raises(DTypeError, match=op.name):
        apply(op, *[x] * op.arity)


def test_shapes_that_do_not_broadcast_are_refused(backend: Backend) -> None:
    with pytest.raises(ShapeError, match=r"\(3, 4\) and \(2, 4\)"):
        backend.ones((3, 4)) + backend.ones((2, 4))


# Known values: the oracle is judged too


CLOSED_FORMS = [
    ("exp", 1.0, math.e), ("exp2", 3.0, 8.0), ("expm1", 1e-5, math.expm1(1e-5)), ("log", math.e, 1.0),
    ("log2", 8.0, 3.0), ("log10", 1000.0, 3.0), ("log1p", 1e-5, math.log1p(1e-5)), ("sig", 0.0, 0.5),
    ("sig", -80.0, math.exp(-80.0)), ("sig2", 1.0, 2 / 3), ("sig2", -60.0, 2.0**-60), ("tanh", 0.5, math.tanh(0.5)),
    ("tanh2", 1.0, 0.6), ("tanh2", 500.0, 1.0), ("erf", 0.5, math.erf(0.5)), ("erf", -3.0, math.erf(-3.0)),
    ("erfc", 5.0, math.erfc(5.0)), ("sin", 1.0, math.sin(1.0)), ("cos", 1.0, math.cos(1.0)),
    ("tan", 1.0, math.tan(1)), ("arcsin", 0.5, math.pi / 6), ("arccos", 0.5, math.pi / 3),
    ("arctan", 1.0, math.pi / 4), ("sinh", 1.0, math.sinh(1)), ("cosh", 1.0, math.cosh(1)),
    ("arcsinh", 1.0, math.asinh(1)), ("arccosh", 2.0, math.acosh(2)), ("arctanh", 0.5, math.atanh(0.5)),
    ("safelog", 1e-30, -50.0), ("safelog", -1.0, -50.0), ("safelog", 2.0, math.log(2)), ("sqrt", 2.0, math.sqrt(2)),
    ("pow2near", 3.0, 4.0), ("pow2near", -0.3, -0.25), ("rint", 2.5, 2.0), ("rint", 3.5, 4.0), ("floor", -0.5, -1.0),
    ("ceil", -0.5, -0.0), ("trunc", -1.9, -1.0), ("sgn", -0.0, 0.0), ("abs", -2.0, 2.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "x", "expected"), CLOSED_FORMS, ids=lambda v: f"{v}")
def test_closed_forms(backend: Backend, name: str, x: float, expected: float) -> None:
    op = ops.OPS[name]
    for dtype, eps in (("float32", 2.0**-24), ("float64", 2.0**-53)):
        given = backend.array([x], dtype=dtype, min_dims=0)
        value = backend.evaluate(apply(op, given)).get()
        # A float32 operand is off by half an ULP already: allow for it with the derivative, which is at most |x| + 1.
        slack = 4 * testing.ulps(op, dtype, testing.compiles(backend)) + 2 * (abs(x) + 1) * (dtype == "float32")
        testing.assert_close(value, np.array([expected]), slack * eps)


NAN, INF = math.nan, math.inf
EDGES = [
    ("div", (1.0, 0.0), INF), ("div", (-1.0, 0.0), -INF), ("div", (0.0, 0.0), NAN), ("pow", (-8.0, 1 / 3), NAN),
    ("pow", (0.0, 0.0), 1.0), ("pow", (-INF, 0.5), INF), ("pow", (-0.0, 0.5), 0.0), ("pow", (-4.0, 0.5), NAN),
    ("mod", (-5.0, 3.0), 1.0), ("mod", (5.0, -3.0), -1.0), ("mod", (1.0, 0.0), NAN),
    ("floordiv", (-5.0, 3.0), -2.0), ("maximum", (NAN, 1.0), NAN), ("minimum", (1.0, NAN), NAN),
    ("ne", (NAN, NAN), 1.0), ("eq", (NAN, NAN), 0.0), ("lt", (NAN, 1.0), 0.0), ("sqrt", (-1.0,), NAN),
    ("log", (0.0,), -INF), ("log", (-1.0,), NAN), ("exp", (1e4,), INF), ("exp", (-1e4,), 0.0), ("sig", (-1e4,), 0.0),
    ("sig", (1e4,), 1.0), ("tanh2", (-1e4,), -1.0), ("safelog", (NAN,), NAN), ("safelog", (0.0,), -50.0),
    ("safelog", (INF,), INF), ("sin", (INF,), NAN), ("arcsin", (2.0,), NAN), ("arccosh", (0.5,), NAN),
    ("arctanh", (1.0,), INF), ("sgn", (NAN,), NAN), ("finite", (INF,), 0.0), ("finite", (1e4,), 1.0),
    ("isnan", (NAN,), 1.0), ("isinf", (-INF,), 1.0), ("erf", (INF,), 1.0), ("erfc", (-INF,), 2.0),
    ("erf", (NAN,), NAN), ("pow2near", (0.0,), 0.0), ("log1p", (-1.0,), -INF),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "expected"), EDGES, ids=lambda v: f"{v}")
def test_edges(backend: Backend, name: str, operands: tuple[float, ...], expected: float) -> None:
    for dtype in testing.some(backend, ("float32", "float16", "float64", "bfloat16"), part=2):
        given = [backend.array([x], dtype=dtype, min_dims=0) for x in operands]
        value = backend.evaluate(apply(ops.OPS[name], *given)).get()
        testing.assert_close(value, np.array([expected]))
        assert expected != 0 or np.signbit(value.astype(np.float64)) == np.signbit(expected)


EXPONENTS = [0, 1, 2, 3, 4, 5, -1, -2, -3, 0.5, -0.5, 1.5, -1.5, 1.7, 2.0, -1.0, 3.0, INF, NAN]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8", "bool"])
def test_powers_by_numbers(backend: Backend, dtype: str) -> None:
    (values,) = testing.sample(ops.OPS["sqr"], ((97,),), dtype, special=True)
    x = tensors(backend, [values])[0]
    exponents = testing.some(backend, EXPONENTS, len(dtype), part=3)
    allowed = [y for y in exponents if dtype in ("float32", "float64") or abs(y) < 9]
    if dtype == "uint8":
        allowed = [y for y in allowed if isinstance(y, float) or y >= 0]
    with np.errstate(all="ignore"):
        check(backend, *[x**y for y in allowed], *[backend.power(x, y) for y in allowed[::4]])


def test_a_power_is_of_its_own_exponent(backend: Backend) -> None:
    x = backend.array([0.5, 3.0], min_dims=0)
    for _ in range(3):
        for y in (1.7, 2, 2.0, 5, 3, 0.5, 2.5, -1):
            for power in (x**y, backend.power(x, y)):
                testing.assert_close(backend.evaluate(power).get(), np.power([0.5, 3.0], y), 4 * 2.0**-24)


POWER_EDGES = [
    (0.0, 0, 1.0), (NAN, 0, 1.0), (-INF, 0.5, INF), (-0.0, 0.5, 0.0), (-4.0, 0.5, NAN), (-0.0, -0.5, INF),
    (-INF, -0.5, 0.0), (INF, -0.5, 0.0), (-0.0, 1.5, 0.0), (-INF, 1.5, INF), (-1.0, 1.5, NAN), (-0.0, -1.5, INF),
    (-INF, -1.5, 0.0), (-2.0, -1.5, NAN), (-0.0, -1, -INF), (-INF, -1, -0.0), (-0.0, -2, INF), (-INF, -2, 0.0),
    (-0.0, 3, -0.0), (-INF, 3, -INF), (-INF, 4, INF), (-0.0, 2, 0.0), (NAN, -1.5, NAN), (-0.0, 1, -0.0),
]  # fmt: skip


def test_edges_of_powers_by_numbers(backend: Backend) -> None:
    for dtype in testing.some(backend, ("float32", "float16", "float64", "bfloat16"), part=2):
        for x, y, expected in testing.some(backend, POWER_EDGES, 0, part=8):
            value = backend.evaluate(backend.array([x], dtype=dtype, min_dims=0) ** y).get()
            testing.assert_close(value, np.array([expected]))
            assert expected != 0 or np.signbit(value.astype(np.float64)) == np.signbit(expected)


INTEGER_EDGES = [
    ("floordiv", "int32", (7, 0), 0), ("mod", "int32", (7, 0), 0), ("floordiv", "int8", (-7, 2), -4),
    ("mod", "int8", (-7, 2), 1), ("pow", "int32", (2, -1), 0), ("pow", "int32", (-1, -3), -1),
    ("pow", "int32", (1, -5), 1), ("pow", "uint8", (2, 9), 0), ("neg", "uint8", (1,), 255),
    ("abs", "int8", (-128,), -128), ("shl", "int8", (1, 8), 0), ("shr", "int8", (-1, 100), -1),
    ("shr", "uint8", (255, 8), 0), ("shl", "int32", (1, -1), 0), ("add", "int8", (127, 1), -128),
    ("invert", "uint16", (0,), 65535), ("floordiv", "int64", (-(2**63), -1), -(2**63)),
    ("mul", "int64", (2**62, 2), -(2**63)), ("maximum", "uint64", (2**64 - 1, 1), 2**64 - 1),
    ("rint", "int8", (5,), 5), ("invert", "bool", (True,), False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype", "operands", "expected"), INTEGER_EDGES, ids=lambda v: f"{v}")
def test_integer_edges(backend: Backend, name: str, dtype: str, operands: tuple[int, ...], expected: int) -> None:
    given = [backend.array(np.array([x], dtype), dtype=dtype, min_dims=0) for x in operands]
    value = backend.evaluate(apply(ops.OPS[name], *given))
    assert value.dtype == dtype
    assert value.tolist() == [expected]


# Reductions


def axes_of(rank: int) -> list[Any]:
    """Every choice of axes of an array: None, each axis from either end, and several."""
    several = [a for n in range(rank + 1) for a in itertools.combinations(range(rank), n)]
    return [None, *range(-rank, rank), *several]


@each_reduction
def test_reduction_values(backend: Backend, op: ops.Op) -> None:
    nodes = []
    for dtype, axis in testing.some(backend, itertools.product(dtypes.DTYPES, (None, 0, 1)), turn(op)):
        for special in (False, True):
            (x,) = tensors(backend, testing.sample(op, ((6, 37),), dtype, special=special))
            nodes.append(apply(op, x, params=(axis,)))
    check(backend, *nodes)


@each_reduction
def test_reduction_axes(backend: Backend, op: ops.Op) -> None:
    (array,) = testing.sample(op, ((3, 1, 4, 2),), "float32")
    (x,) = tensors(backend, [array])
    function = getattr(backend, op.methods[0])
    nodes = []
    for axis in testing.some(backend, axes_of(4), turn(op)):
        dropped = axis if axis is None or isinstance(axis, int) else tuple(axis)
        shape = np.sum(array, axis=dropped).shape
        flat = function(x, axis=axis, keepdims=False)
        assert flat.shape == shape
        nodes += [function(x, axis=axis), flat]
    check(backend, *nodes)


@each_reduction
def test_reduction_layouts(backend: Backend, op: ops.Op) -> None:
    (array,) = testing.sample(op, ((3, 4, 5),), "float32")
    axes = (0, 1, 2) if op.dtype == "index" else (0, 1, 2, (0, 2), None)
    cases = testing.some(backend, itertools.product(layouts(backend, array).values(), axes), turn(op))
    check(backend, *[apply(op, view, params=(axis,)) for view, axis in cases])


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_over_several_axes_count_in_c_order(backend: Backend, name: str) -> None:
    (array,) = testing.sample(ops.OPS[name], ((3, 4, 5),), "float32")
    cases = itertools.product(layouts(backend, array).values(), ((0, 2), (0, 1), None))
    check(backend, *[apply(ops.OPS[name], view, params=(axis,)) for view, axis in cases])


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)], ids=str)
@each_reduction
def test_reduction_of_nothing(backend: Backend, op: ops.Op, shape: tuple[int, ...]) -> None:
    x = backend.empty(shape, min_dims=0)
    for axis in [None, *range(len(shape))]:
        chosen = shape if axis is None else (shape[axis],)
        if op.name in ("max", "min", "argmax", "argmin") and 0 in chosen:
            with pytest.raises(ShapeError, match=op.name):
                apply(op, x, params=(axis,))
        else:
            check(backend, apply(op, x, params=(axis,)))


@pytest.mark.parametrize("length", [1, 100_003])
@each_reduction
def test_reduction_of_a_long_axis(backend: Backend, op: ops.Op, length: int) -> None:
    rng = np.random.default_rng(0)
    x = backend.array(1 + rng.normal(0, 1e-3, (2, length)))
    check(backend, apply(op, x, params=(1,)), apply(op, x, params=(None,)))


def test_sum_of_halves_adds_up_in_float32(backend: Backend) -> None:
    x = backend.ones((1, 5000), dtype="float16")
    assert backend.evaluate(backend.sum(x)).item() == 5000.0


def test_sum_of_bytes_adds_up_in_64_bits(backend: Backend) -> None:
    x = backend.full((1, 1000), 255, dtype="uint8")
    total = backend.evaluate(backend.sum(x))
    assert (total.dtype, total.item()) == (np.uint64, 255_000)


def test_first_of_equal_elements_wins(backend: Backend) -> None:
    x = backend.array([[1.0, 3.0, 3.0, 0.0, 0.0]])
    assert backend.evaluate(backend.argmax(x, axis=1)).item() == 1
    assert backend.evaluate(backend.argmin(x, axis=1)).item() == 3


def test_position_of_the_first_nan_wins(backend: Backend) -> None:
    x = backend.array([[1.0, NAN, 9.0, NAN]])
    assert backend.evaluate(backend.argmax(x, axis=1)).item() == 1
    assert backend.evaluate(backend.argmin(x, axis=1)).item() == 1


@pytest.mark.parametrize("axis", [2, -3, (0, 0), 1.5, "0"], ids=repr)
def test_axis_that_does_not_exist_is_refused(backend: Backend, axis: Any) -> None:
    with pytest.raises(ShapeError, match="sum"):
        backend.sum(backend.ones((2, 3)), axis=axis)


# Composites


def normal_function(x: np.ndarray) -> np.ndarray:
    """The distribution function of the standard normal."""
    return np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(x)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """The softmax, from its definition."""
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


COMPOSITES = {
    "mean": (lambda o, x: o.mean(x, axis=1), lambda x: x.mean(1, keepdims=True)),
    "var": (lambda o, x: o.var(x, axis=0), lambda x: x.var(0, keepdims=True)),
    "std": (lambda o, x: o.std(x, axis=1), lambda x: x.std(1, keepdims=True)),
    "norm": (lambda o, x: o.norm(x, axis=1), lambda x: np.sqrt((x * x).sum(1, keepdims=True))),
    "norm 1": (lambda o, x: o.norm(x, axis=1, ord=1), lambda x: np.abs(x).sum(1, keepdims=True)),
    "norm 3": (lambda o, x: o.norm(x, axis=1, ord=3), lambda x: np.cbrt((np.abs(x) ** 3).sum(1, keepdims=True))),
    "norm inf": (lambda o, x: o.norm(x, axis=1, ord=INF), lambda x: np.abs(x).max(1, keepdims=True)),
    "logsumexp": (lambda o, x: o.logsumexp(x, axis=1), lambda x: np.log(np.exp(x).sum(1, keepdims=True))),
    "softmax": (lambda o, x: o.softmax(x, axis=1), lambda x: softmax(x, 1)),
    "log_softmax": (lambda o, x: o.log_softmax(x, axis=0), lambda x: np.log(softmax(x, 0))),
    "reciprocal": (lambda o, x: o.reciprocal(x), lambda x: 1 / x),
    "clip": (lambda o, x: o.clip(x, -1, 0.5), lambda x: np.clip(x, -1, 0.5)),
    "rsqrt": (lambda o, x: o.rsqrt(x * x), lambda x: 1 / np.abs(x)),
    "relu": (lambda o, x: o.relu(x), lambda x: np.maximum(x, 0)),
    "leaky_relu": (lambda o, x: o.leaky_relu(x, 0.1), lambda x: np.where(x > 0, x, 0.1 * x)),
    "elu": (lambda o, x: o.elu(x, 0.5), lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    "gelu": (lambda o, x: o.gelu(x), lambda x: x * normal_function(x)),
    "gelu by tanh": (
        lambda o, x: o.gelu(x, approximate=True),
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "softplus": (lambda o, x: o.softplus(x), lambda x: np.log1p(np.exp(x))),
    "silu": (lambda o, x: o.silu(x), lambda x: x / (1 + np.exp(-x))),
    "hard_sigmoid": (lambda o, x: o.hard_sigmoid(x), lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "isclose": (lambda o, x: o.isclose(x, x + 1e-9), lambda x: np.ones_like(x)),
    "broadcast_to": (lambda o, x: o.broadcast_to(x[:, :1], (5, 9)), lambda x: np.broadcast_to(x[:, :1], (5, 9))),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_composite_values(backend: Backend, name: str) -> None:
    build, formula = COMPOSITES[name]
    host = np.random.default_rng(1).uniform(-4, 4, (5, 9))
    node = build(backend, backend.array(host, dtype="float64"))
    testing.assert_close(backend.evaluate(node, dtype="float64").get(), formula(host), 1e-13, 1e-14)
    single = build(backend, backend.array(host))
    testing.assert_close(backend.evaluate(single).get(), formula(host.astype(np.float32)), 1e-5, 2e-6)
    check(backend, single)


OF_INTEGERS = ["var", "norm", "norm 3", "logsumexp", "softmax", "log_softmax", "elu", "gelu", "softplus", "silu"]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint64", "int64"])
def test_composites_of_integers_do_not_wrap(backend: Backend, dtype: str) -> None:
    host = np.array([[100, 3, 28], [90, 27, 1], [0, 0, 2]])
    host[0, 0] = -100 if dtype[0] == "i" else 100
    x = backend.array(host, dtype=dtype)
    for name in OF_INTEGERS:
        build, formula = COMPOSITES[name]
        node = build(backend, x)
        assert node.dtype == np.float32
        testing.assert_close(backend.evaluate(node).get(), formula(host.astype(np.float64)), 1e-5, 2e-6)
    low = host.min(0, keepdims=True)
    for atol in (2, 100, 127):
        for other, values in ((backend.min(x, axis=0), low), (90, 90)):
            close = backend.evaluate(backend.isclose(x, other, rtol=0, atol=atol))
            assert (close.get() == (np.abs(host - values) <= atol)).all()


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_deviations_of_integers_whose_sum_is_beyond_their_type(backend: Backend, dtype: str) -> None:
    """As those of times in nanoseconds."""
    host = 17 * 10**17 + 10**15 * np.arange(48, dtype=np.int64).reshape(4, 12)
    x = backend.array(host, dtype=dtype)
    for axis in (1, None):
        for name in ("var", "std"):  # a float32 of a time is off by up to 7e10, as is that of the mean
            wanted = getattr(np, name)(host.astype(np.float64), axis, keepdims=True)
            testing.assert_close(backend.evaluate(getattr(backend, name)(x, axis)).get(), wanted, 1e-4)


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_means_of_integers_whose_sum_is_beyond_their_type(backend: Backend, dtype: str, keepdims: bool) -> None:
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    rows = [[most] * 4, [least] * 4, [most, most, most, least], [2**40, 3, 0, 1], [0, 1, 0, 0], [2**62] * 4]
    if least:
        rows += [[-1, 0, 0, 0], [2**40, -(2**40) + 3, 0, 0], [-(2**62), -(2**62) - 1, -(2**62), 0]]
    host = np.array(rows, dtype)
    x = backend.array(host, dtype=dtype)
    for axis in (1, 0, None):
        node = backend.mean(x, axis, keepdims=keepdims)
        assert node.dtype == np.float32
        wanted = host.mean(axis, dtype=np.longdouble, keepdims=keepdims)
        testing.assert_close(backend.evaluate(node).get(), wanted.astype(np.float64).reshape(node.shape), 3e-7)


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_norms_of_the_least_integer(backend: Backend, dtype: str) -> None:
    """Its type has no opposite of it."""
    host = np.array([[np.iinfo(dtype).min, 3, 28], [90, 27, 1]])
    x = backend.array(host, dtype=dtype)
    for name in ("norm 1", "norm inf"):
        build, formula = COMPOSITES[name]
        assert (backend.evaluate(build(backend, x)).get() == formula(host)).all()


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_of_integers_farther_apart_than_half_their_range(backend: Backend, dtype: str, axis: int) -> None:
    """The least integer hides an entry, as minus infinity does among floats."""
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    rows = [[least, 4, 3], [least, most, most - 1], [7, least, 7], [least, least, least]]
    below = np.array([[float(n - max(row)) for n in row] for row in rows])  # exact before it is a float
    logarithm = below - np.log(np.exp(below).sum(1, keepdims=True))
    x = backend.array(np.array(rows, dtype) if axis else np.array(rows, dtype).T, dtype=dtype)
    for name, wanted in (("softmax", np.exp(logarithm)), ("log_softmax", logarithm)):
        found = backend.evaluate(getattr(backend, name)(x, axis)).get()
        testing.assert_close(found if axis else found.T, wanted, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_isclose_of_numbers_that_are_not_finite(backend: Backend, dtype: str) -> None:
    host = np.array([[np.inf, -np.inf, np.nan, 0, 1, 6e4]], dtype)
    x = backend.array(host, dtype=dtype)
    with np.errstate(invalid="ignore"):
        assert (backend.evaluate(backend.isclose(x, backend.transpose(x))).get() == np.isclose(host, host.T)).all()
        for b in map(float, host[0]):
            assert (backend.evaluate(backend.isclose(x, b)).get() == np.isclose(host, b)).all()


def test_composites_are_all_tested() -> None:
    tested = {name.split()[0] for name in COMPOSITES}
    assert set(composite.COMPOSITES) <= tested


def test_statistics_of_halves(backend: Backend) -> None:
    host = np.random.default_rng(2).normal(100, 1, (4, 300)).astype(np.float16)
    x = backend.array(host, dtype="float16")
    wide = host.astype(np.float64)
    testing.assert_close(backend.evaluate(backend.mean(x, axis=1)).get(), wide.mean(1, keepdims=True), 2.0**-11)
    testing.assert_close(backend.evaluate(backend.var(x, axis=1)).get(), wide.var(1, keepdims=True), 2.0**-9)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_large_logits_do_not_overflow(backend: Backend, name: str) -> None:
    x = backend.array([[1e4, 0.0, -1e4], [88.0, 89.0, 90.0]])
    assert np.isfinite(backend.evaluate(getattr(backend, name)(x, axis=1)).get()).all()


@pytest.mark.parametrize("name", ["mean", "var", "std", "norm", "logsumexp", "softmax", "log_softmax", "max"])
def test_a_wrong_axis_is_told_in_the_name_of_the_function(backend: Backend, name: str) -> None:
    x = backend.ones((3, 4))
    for axis, what in ((5, "no such axis"), ((0, 0), "an axis is named twice"), (1.5, "axis is not an integer")):
        with pytest.raises(ShapeError, match=f"^{name}: {what}"):
            getattr(backend, name)(x, axis=axis)


@pytest.mark.parametrize("axes", [[0, 2], [-1], [np.int64(1), 0], []], ids=str)
def test_axes_of_logsumexp_may_be_a_list(backend: Backend, axes: list) -> None:
    host = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8
    x = backend.array(host)
    for keepdims in (True, False):
        expected = np.log(np.exp(host).sum(tuple(axes), keepdims=keepdims))
        found = backend.evaluate(backend.logsumexp(x, axis=axes, keepdims=keepdims))
        np.testing.assert_allclose(found.get(), expected, rtol=1e-5, atol=1e-6)


def test_logsumexp_of_minus_infinity(backend: Backend) -> None:
    x = backend.full((2, 3), -INF)
    assert backend.evaluate(backend.logsumexp(x, axis=1)).tolist() == [[-INF], [-INF]]


def test_expressions_of_numbers_and_host_arrays_are_nodes(backend: Backend) -> None:
    host = np.array([[2.0, 0.0, -0.0]])
    nodes = [backend.reciprocal(0), backend.reciprocal(a=0.0), backend.reciprocal(host), backend.clip(3.0, 0, 1),
             backend.mean(3), backend.var(host), backend.relu(host), backend.isclose(1, 2)]  # fmt: skip
    assert all(isinstance(node, OpTreeNode) for node in nodes)
    out = backend.empty((2, 3))
    assert backend.reciprocal(0, out).tolist() == [[INF] * 3] * 2
    assert backend.reciprocal(host, out).tolist() == [[0.5, INF, -INF]] * 2
    assert backend.clip(3.0, 0, 1, out).tolist() == [[1.0] * 3] * 2
    assert backend.mean(host * 3, 1, None, out).tolist() == [[2.0] * 3] * 2
    for name in ("reciprocal", "relu", "mean", "var", "std"):
        with pytest.raises(TypeError, match=rf"{name}: operand[\s\S]*NoneType"):
            getattr(backend, name)(None)


@pytest.mark.parametrize("axis", [0, 1])
def test_onehot_takes_its_classes_from_the_partner(backend: Backend, axis: int) -> None:
    places = backend.array(np.array([[0, 2, 5, 1]]), dtype="int32")
    shape = (3, 4) if axis == 0 else (4, 3)
    expected = np.zeros((4, 3))
    expected[[0, 1, 3], [0, 2, 1]] = 1
    expected = expected.T if axis == 0 else expected
    assert backend.evaluate(backend.onehot(places, axis) * backend.full(shape, 2.0)).tolist() == (2 * expected).tolist()
    assert backend.onehot(places, axis, out=backend.empty(shape)).tolist() == expected.tolist()


@pytest.mark.parametrize("axis", [0, 1])
def test_there_may_be_one_class(backend: Backend, axis: int) -> None:
    """The only position along an axis of length 1 is 0, whatever axes are beside it."""
    places = backend.array(np.array([[0, 2, 0]]), dtype="int32")
    shape = (1, 3) if axis == 0 else (3, 1)
    assert backend.onehot(places, axis, out=backend.empty(shape)).get().ravel().tolist() == [1, 0, 1]
    x = backend.array(np.arange(3.0).reshape(shape))
    first = composite.positions(x.structure.table, axis, shape)
    assert backend.evaluate(x + first).get().ravel().tolist() == [0, 1, 2]
    assert backend.evaluate(backend.sum(x + first, axis=1 - axis)).tolist() == [[3.0]]


def test_shift_by_powers_of_two(backend: Backend) -> None:
    x = backend.array([[3.0, -5.0, 7.0, 1.0]])
    by = backend.array([[4.0, -0.26, 0.0, 1000.0]])
    assert backend.shift(x, by).tolist() == [[12.0, 1.25, 0.0, 1024.0]]
    assert backend.shift(x, backend.array([[2.0, -1.0, 0.0, 3.0]]), value=False).tolist() == [[12.0, -2.5, 7.0, 8.0]]


# Spellings


@each_op
def test_spellings_make_one_structure(backend: Backend, op: ops.Op) -> None:
    dtype = "int32" if op in BITS else "float32"
    operands = [backend.ones((2, 3), dtype=dtype) for _ in range(op.arity)]
    wanted = apply(op, *operands)
    names = [op.name, *op.methods]
    made = [getattr(backend, name)(*operands) for name in op.methods]
    made += [getattr(composite, name)(*operands) for name in names]
    if op.dunder:
        made.append(getattr(operands[0], f"__{op.dunder}__")(*operands[1:]))
    for node in made:
        assert node.structure is wanted.structure
        assert all(x is y for x, y in zip(node.inputs, wanted.inputs))


@pytest.mark.parametrize("op", [op for op in ELEMENTWISE if op.dunder and op.arity == 2], ids=attrgetter("name"))
def test_reflected_operators_keep_the_order(backend: Backend, op: ops.Op) -> None:
    x = backend.array([[5, 3]], dtype="int32")
    symbol = {"and": "&"}.get(op.symbol, op.symbol)
    node = eval(f"12 {symbol} x", {"x": x})
    expected = eval(f"12 {symbol} x", {"x": x.get()})
    testing.assert_close(backend.evaluate(node).get(), expected, 1e-6)


def test_methods_write_into_out(backend: Backend) -> None:
    x, out = backend.full((2, 3), 4.0), backend.empty((2, 3))
    assert backend.sqrt(x, out=out) is out
    assert out.tolist() == [[2.0] * 3] * 2
    total = backend.empty((2, 1))
    assert backend.sum(x, axis=1, out=total) is total
    assert total.tolist() == [[12.0], [12.0]]


@pytest.mark.parametrize("symbol", ["+", "-", "*", "/", "**", "//", "%", "<", ">=", "=="])
def test_host_arrays_are_operands_on_either_side(backend: Backend, symbol: str) -> None:
    host = np.array([[1.5, 2.0], [3.0, 4.0]], np.float32)
    x = backend.full((2, 2), 2.0)
    for text in (f"x {symbol} a", f"a {symbol} x"):
        value = backend.evaluate(eval(text, {"x": x, "a": host}))
        expected = eval(text, {"x": x.get(), "a": host})
        testing.assert_close(value.get(), expected, 1e-6)


def test_host_arrays_alone_are_operands_too(backend: Backend) -> None:
    x, y = np.array([[1.5, 2.0], [3.0, 4.0]]), np.array([2.0, 3.0])
    testing.assert_close(backend.evaluate(backend.add(x, y)).get(), x + y)
    testing.assert_close(backend.evaluate(backend.exp(y)).get(), np.exp(y), 1e-14)
    testing.assert_close(backend.evaluate(backend.dot(x, x)).get(), x @ x)


# The table itself


def table_ops() -> list[ops.Op]:
    """All ops of the table."""
    return list(ops.OPS.values())


@pytest.mark.parametrize("op", table_ops(), ids=attrgetter("name"))
def test_table_has_no_gap(op: ops.Op) -> None:
    assert op.doc[0] and op.doc.endswith(".")
    assert callable(op.numpy)
    assert op.flops >= 1
    assert op.domain[0] < op.domain[1]
    assert (op.vjp is None) == (op.kind == ops.SOURCE), "only random numbers and positions have no derivative"
    assert bool(op.code) == (op.kind not in (ops.MOVEMENT, ops.PRIMITIVE)), "movements and primitives have no C text"
    if op.kind in (ops.ELEMENTWISE, ops.REDUCTION):
        assert op.methods or op.name == "sround", "sround is what a tensor's `rounding` runs"
        letters = "xyz"[: 2 if op.kind == ops.REDUCTION else op.arity]
        assert all("{" + letter + "}" in op.code for letter in letters)
        assert "{" + "xyz"[len(letters) : len(letters) + 1] + "}" not in op.code
    if op.kind == ops.REDUCTION:
        assert op.identity in ("zero", "one", "lowest", "highest")
        assert (op.combine is None) == (op.dtype == "index"), "positions do not combine without their values"
    if op.smooth:
        assert op.smooth[0] < op.smooth[1]


@pytest.mark.parametrize("op", table_ops(), ids=attrgetter("name"))
def test_ops_have_a_spelling_with_a_doc(op: ops.Op) -> None:
    inside = {"sround": "array", "index": "onehot", "randbits": "make_binary_mask", "broadcast": "broadcast_to",
              "histogram": "dump_hist_data", "conv_bprop": "bprop_conv", "conv_update": "update_conv"}  # fmt: skip
    for name in op.methods or (inside.get(op.name, op.name),):
        method = getattr(Backend, name, None) or composite.__dict__[name]
        assert method.__doc__
    if op.dunder:
        assert getattr(Operators, f"__{op.dunder}__").__doc__ == op.doc


def test_method_names_are_used_once() -> None:
    names = [name for op in table_ops() for name in op.methods]
    assert len(names) == len(set(names))
