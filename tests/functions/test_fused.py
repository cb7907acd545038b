# SPDX-License-Identifier: Apache-2.0
"""Functions made of functions: one node, one kernel, the same gradients."""

from __future__ import annotations

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import gradient_check, testing

A = np.random.RandomState(0).normal(size=(3, 4))
B = np.random.RandomState(1).normal(size=(4,))


def chain(x, y, slope=0.5):
    return F.relu(F.tanh(x * y) + slope) * F.sigmoid(x) - 2 * y


def pair(x, y):
    h = F.exp(x * 0.1)
    return h * y, F.sum(F.maximum(h, x), 1)


@pytest.mark.parametrize("function", [chain, pair])
def test_values_and_gradients_are_those_of_the_parts(function, array) -> None:
    results = []
    for f in (function, tb.fused(function)):
        x, y = tb.Variable(array(A, "float64")), tb.Variable(array(B, "float64"))
        found = f(x, y)
        made = found if isinstance(found, tuple) else (found,)
        F.add(*(F.sum(F.square(z)) for z in made)).backward()
        results.append([*made, x.grad, y.grad])
    for a, b in zip(*results):
        testing.assert_allclose(a, b, atol=1e-12)
    random = np.random.RandomState(3)
    grads = [array(random.normal(size=z.shape), "float64") for z in made]
    second = [array(random.normal(size=v.shape), "float64") for v in (A, B)]
    gradient_check.check_double_backward(tb.fused(function), [array(A, "float64"), array(B, "float64")], grads, second)


_inner = tb.fused(lambda x: F.relu(x) * F.maximum(x, x))
AT_EDGES = {
    "maximum": lambda x: F.maximum(x, x) * x,
    "minimum": lambda x: F.square(F.minimum(x * x, x)),
    "relu": lambda x: F.relu(x) * x,
    "clipped_relu": lambda x: F.clipped_relu(x, 2.0) * x,
    "in another": lambda x: _inner(x) * F.relu(x) * x,
    "of several results": lambda x: F.sum(F.add(*F.broadcast(F.maximum(x, x), F.relu(x)))) * x,
}


@pytest.mark.parametrize("name", AT_EDGES)
def test_every_gradient_of_the_parts_holds_where_operands_are_equal(name, array, host) -> None:
    """In the first, second and third derivative a function's own rule counts, not those of the ops it is made of."""
    results = []
    for f in (AT_EDGES[name], tb.fused(AT_EDGES[name])):
        x = tb.Variable(array([-1.0, 0.0, 2.0, 1.0], "float64"))
        found = [f(x)]
        for _ in range(3):
            (g,) = tb.grad([F.sum(found[-1] * (found[-1] + 1.0))], [x], enable_double_backprop=True)
            found.append(g)
        results.append([host(y) for y in found])
    for a, b in zip(*results, strict=True):
        testing.assert_allclose(a, b, rtol=1e-12)


def without_a_graph(x):
    with tb.no_backprop_mode():
        a, b = F.broadcast(F.relu(x), _inner(x))
        with tb.force_backprop_mode():
            c = F.sin(a * x)
    return a * b * c * x * x


def test_nothing_flows_through_what_is_called_where_no_graph_is_recorded(array, host) -> None:
    results = []
    for f in (without_a_graph, tb.fused(without_a_graph), tb.fused(lambda x: tb.fused(without_a_graph)(x) * 1.0)):
        x = tb.Variable(array([0.5, 1.0], "float64"))
        found = [f(x)]
        for _ in range(2):
            found += tb.grad([F.sum(F.square(found[-1]))], [x], enable_double_backprop=True)
        results.append([host(y) for y in found])
    for a, b, c in zip(*results, strict=True):
        testing.assert_allclose(a, b, rtol=1e-12)
        testing.assert_allclose(a, c, rtol=1e-12)
    with tb.no_backprop_mode():
        y = tb.fused(chain)(x, x)
    assert y.creator is None


def shared(x, y):
    return x * x + y * y * y, F.identity(x)


def spread(x, y):
    row = F.reshape(y, (1, 4))
    return F.maximum(x, row) + F.minimum(row, x) * F.fmod(x, row)


@pytest.mark.slow
@pytest.mark.parametrize("function", [shared, spread])
def test_gradients_of_operands_that_are_the_same_or_spread(function, array) -> None:
    results = []
    for f in (function, tb.fused(function)):
        x, y = tb.Variable(array(A, "float64")), tb.Variable(array(B, "float64"))
        found = f(x, y)
        F.add(*(F.sum(z) for z in (found if isinstance(found, tuple) else (found, x)))).backward()
        results.append([x.grad, y.grad])
    for a, b in zip(*results):
        testing.assert_allclose(a, b, atol=1e-12)


def test_a_tuple_of_one_may_come_of_what_is_called_within(array) -> None:
    single = tb.fused(lambda x: (F.relu(x) * x,))
    results = []
    for f in (lambda x: F.relu(x) * x * F.tanh(x), tb.fused(lambda x: single(x)[0] * F.tanh(x))):
        x = tb.Variable(array(A, "float64"))
        (gx,) = tb.grad([F.sum(f(x))], [x], enable_double_backprop=True)
        results.append([gx, *tb.grad([F.sum(F.square(gx))], [x])])
    for a, b in zip(*results):
        testing.assert_allclose(a, b, atol=1e-12)


def test_it_is_one_node_and_one_kernel(be, array) -> None:
    x, y = tb.Variable(array(A)), array(A + 1)
    z = tb.fused(chain)(x, y, slope=0.25)
    assert z.creator.inputs[0] is x.node and "chain" in z.creator.label
    z.grad = array(A)
    if be is not None:
        forward, back = be.explain(lambda: tb.fused(chain)(x, y, slope=0.25)), be.explain(z.backward)
        assert len(forward.steps) == len(back.steps) == 1


def test_random_numbers_are_the_same_both_ways(array, host) -> None:
    x = tb.Variable(array(np.ones((30, 30))))
    y = tb.fused(lambda x: F.dropout(x * 2, 0.5))(x)
    F.sum(y).backward()
    assert (host(x.grad) == host(y)).all() and 0 < (host(y) == 0).mean() < 1
    with tb.using_config("train", False):
        assert (host(tb.fused(lambda x: F.dropout(x * 2, 0.5))(x)) == 2).all()


def test_what_was_not_checked_is_checked_later(array) -> None:
    function, operands = tb.fused(lambda x, y: F.squared_error(x, y)), (array(A), array(A[:1]))
    with tb.using_config("type_check", False):
        assert function(*operands).shape == A.shape
    with pytest.raises(TypeError, match="squared_error: invalid inputs"):
        function(*operands)


def test_numbers_beside_integers_are_of_the_type_that_holds_in_the_call() -> None:
    def product(x: tb.Variable) -> tb.Variable:
        x, number = F.broadcast(x, 0.1)
        return x * number

    function, x = tb.fused(product), np.arange(3)
    for dtype in (np.float32, np.float64):
        with tb.using_config("dtype", dtype):
            assert function(x).dtype == product(x).dtype == dtype


@pytest.mark.parametrize("train", [True, False])
def test_the_way_back_is_that_of_the_mode_in_which_it_was_called(train, array, host) -> None:
    x = tb.Variable(array(np.ones((30, 30))))
    with tb.using_config("train", train):
        y = tb.fused(lambda x: F.dropout(x, 0.5))(x)
    with tb.using_config("train", not train):
        F.sum(y).backward()
    assert (host(x.grad) == host(y)).all() and (0 in host(y)) == train


_dropped = tb.fused(lambda x: F.dropout(x, 0.5))
NESTED = {
    "once": lambda x, c: _dropped(x),
    "before": lambda x, c: _dropped(x) + 16 * F.dropout(x, 0.5),
    "behind": lambda x, c: 16 * F.dropout(x, 0.5) + _dropped(x),
    "twice": lambda x, c: _dropped(_dropped(x)),
    "around a constant": lambda x, c: F.dropout(x, 0.5) + 16 * F.dropout(F.exp(c) * x, 0.5),
}


@pytest.mark.parametrize("function", NESTED.values(), ids=NESTED)
def test_random_numbers_of_what_is_called_within_are_the_same_both_ways(function, array, host) -> None:
    x, c = tb.Variable(array(np.ones((30, 30)))), array(np.zeros((30, 30)))
    y = tb.fused(lambda x: function(x, c) * x)(x)  # masks times the square of x
    (gx,) = tb.grad([F.sum(y)], [x], enable_double_backprop=True)
    (ggx,) = tb.grad([F.sum(gx)], [x])
    assert (host(gx) == 2 * host(y)).all() and (host(ggx) == 2 * host(y)).all()
    assert len(np.unique(host(y))) == (2 if function in (NESTED["once"], NESTED["twice"]) else 4)


def test_ties_are_those_of_the_parts(array, host) -> None:
    x = tb.Variable(array([0.0, 1.0]))
    F.sum(tb.fused(lambda x: F.relu(x) + F.relu(x))(x)).backward()
    assert host(x.grad).tolist() == [0.0, 2.0]


def test_what_cannot_be_fused_is_refused(array) -> None:
    x, w = tb.Variable(array([1.0, 2.0])), tb.Variable(array([1.0, 2.0]))
    with pytest.raises(TypeError, match="concat is no tree"):
        tb.fused(lambda x: F.concat([x, x], 0))(x)
    with pytest.raises(TypeError, match="no argument"):
        tb.fused(lambda x: x * w)(x)
    with pytest.raises(TypeError, match="array"):
        tb.fused(lambda x: x * x.array)(x)
    with pytest.raises(TypeError, match="unchain"):
        tb.fused(lambda x: F.exp(x).unchain() or x)(x)
    with pytest.raises(TypeError, match="does not come of the arguments"):
        tb.fused(lambda x: 3)(x)
    with pytest.raises(TypeError, match="dropout draws random numbers for what does not come of the arguments"):
        tb.fused(lambda x: x * F.dropout(array([1.0, 2.0])))(x)
    testing.assert_allclose(tb.fused(lambda x: x * array([2.0, 3.0]))(x), [2.0, 6.0])


def test_arrays_of_other_kinds_are_refused_as_what_they_are(be, array) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    other = np.ones(2, np.float32) if be is not None else testing.make_backend("interpreter").ones((2,))
    with pytest.raises(TypeError, match=r"multiply of arrays of different kinds[\s\S]*numpy.ndarray"):
        tb.fused(lambda x: x * other)(x)


@pytest.mark.parametrize("use", [lambda x: x.item(), lambda x: x.debug_print(), lambda x: x.to_cpu(),
                                 lambda x: x.copydata(x), lambda x: x.backward(), lambda x: tb.backward([F.sum(x)]),
                                 lambda x: tb.grad([F.sum(x)], [x])])  # fmt: skip
def test_numbers_that_are_not_there_yet_are_refused(use, array) -> None:
    """Memory that there is not was read."""
    with pytest.raises(TypeError, match=r"fused: (a variable's array|backward)\s+given     inside the function"):
        tb.fused(lambda x: (use(x), x)[1])(tb.Variable(array([2.0])))


@pytest.mark.parametrize("use", [lambda x: x + 1, F.sum, lambda x: F.concat([x, x], 0), tb.fused(F.exp)])
def test_variables_from_inside_are_of_no_use_outside(use, array) -> None:
    """Memory that there is not was read."""
    kept = []
    tb.fused(lambda x: kept.append(F.tanh(x)) or x * 2)(tb.Variable(array([0.5])))
    with pytest.raises(TypeError, match="fused: a variable from inside|no argument"):
        use(kept[0])


def test_variables_of_a_fused_function_around_are_arguments_too(array) -> None:
    """The way back through them would be lost."""
    x = tb.Variable(array([1.0, 2.0]))
    with pytest.raises(TypeError, match="multiply of a variable that is no argument"):
        tb.fused(lambda x: tb.fused(lambda y: y * x)(F.tanh(x)))(x)
    with pytest.raises(TypeError, match="does not come of the arguments"):
        tb.fused(lambda x: tb.fused(lambda y: x)(F.tanh(x)))(x)
    product, held = tb.fused(lambda x, y: x * y), tb.fused(lambda x, y: x * y[0][0])
    constant = tb.Variable(x.array, requires_grad=False)
    for call in (lambda x: product(x, y=x), tb.fused(lambda x: product(x, y=F.tanh(x))),
                 lambda x: held(x, y=((constant,),))):  # fmt: skip
        with pytest.raises(TypeError, match="a variable by keyword\\s+given     y: "):
            call(x)
    results = []
    for f in (lambda x: x * F.tanh(x), tb.fused(lambda x: product(x, F.tanh(x)))):
        x.cleargrad()
        F.sum(f(x)).backward()
        results.append(x.grad)
    testing.assert_allclose(*results)


ALIKE = [0, 1, False, True, 0.0, 1.0, -0.0, -1, -1.0, np.float32(0.0), np.float32(-0.0)]


@pytest.mark.parametrize("order", [ALIKE, ALIKE[::-1]], ids=["up", "down"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_numbers_that_python_takes_for_the_same_are_told_apart(order, dtype, array, host) -> None:
    """As operands and as parameters, in any order; the length of the array is this test's own."""
    data = np.arange(1, 24, dtype=dtype)
    x = tb.Variable(array(data, dtype))
    by_keyword = tb.fused(lambda x, factor: x * factor)
    by_tuple = tb.fused(lambda x, factors: x * factors[0][0])
    for number in order:
        y = x * number
        for made in (y, by_keyword(x, factor=number), by_tuple(x, factors=((number,),))):
            expected = tb.Variable(array(data, dtype)) * array(np.array(number, made.dtype), made.dtype)
            assert made.dtype == (np.float32 if isinstance(number, (float, np.floating)) else dtype), number
            assert host(made).tolist() == host(expected).tolist(), number
            assert (np.signbit(host(made)) == np.signbit(host(expected))).all(), number
        if dtype == "float32":
            x.grad = None
            F.sum(y).backward()
            assert host(x.grad).tolist() == [float(number)] * 23, number


def test_gradients_that_are_sums_of_the_same_rows_share_a_kernel() -> None:
    be = tb.Backend.allocate_backend("cpu", rng_seed=1, min_dims=0)
    x, gamma, beta = (tb.Variable(be.array(a)) for a in (A, B, B + 1))
    y = F.layer_normalization(x, gamma, beta)
    y.grad = be.array(A * A)
    be.bench = True
    y.backward()
    be.bench = False
    assert sum("axis0" in record.name for record in be.bench_records) == 1
    normal = (A - A.mean(1, keepdims=True)) / np.sqrt(A.var(1, keepdims=True) + 1e-5)
    assert gamma.grad.shape == beta.grad.shape == (4,)
    testing.assert_allclose(gamma.grad, (A * A * normal).sum(0), atol=1e-5)
    testing.assert_allclose(beta.grad, (A * A).sum(0), atol=1e-5)
