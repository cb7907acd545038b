# SPDX-License-Identifier: Apache-2.0
"""The way back: what is visited, what functions see of the graph, what is kept and refused."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import DTypeError, ShapeError
from tensorbackend.function.config import lookup
from tensorbackend.function.type_check import InvalidType


class Square(tb.FunctionNode):
    """x x, which notes what backward is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def forward(self, inputs: Any) -> Any:
        self.retain_inputs((0,))
        return (inputs[0] * inputs[0],)

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        self.seen.append(lookup("enable_backprop"))
        (x,) = self.get_retained_inputs()
        return (x * grad_outputs[0] * 2,)


class Both(tb.FunctionNode):
    """x + y and x - y; backward notes which gradients are asked for, and which are there."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def forward(self, inputs: Any) -> Any:
        x, y = inputs
        return x + y, x - y

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        self.asked.append((target_input_indexes, tuple(g is not None for g in grad_outputs)))
        one, other = (g if g is not None else 0 for g in grad_outputs)
        return one + other, one - other


class Accumulating(tb.FunctionNode):
    """3 x, whose gradient is added to what is there by itself."""

    def forward(self, inputs: Any) -> Any:
        return (inputs[0] * 3,)

    def backward_accumulate(self, target_input_indexes: Any, grad_outputs: Any, grad_inputs: Any) -> Any:
        g = grad_outputs[0] * 3
        return (g if grad_inputs[0] is None else grad_inputs[0] + g,)


@pytest.mark.parametrize("double", [False, True])
def test_backward_records_a_graph_where_it_is_to_be_differentiated(array, double) -> None:
    x, function = tb.Variable(array(3.0)), Square()
    (y,) = function.apply((x,))
    tb.grad([y], [x], enable_double_backprop=double)
    y.backward(enable_double_backprop=double)
    assert function.seen == [double, double]


def test_a_function_of_several_outputs_is_visited_once_with_all_gradients(array) -> None:
    x, y = tb.Variable(array([1.0])), tb.Variable(array([2.0]))
    function = Both()
    one, other = function.apply((x, y))
    F.sum(one * other).backward()
    assert function.asked == [((0, 1), (True, True))]
    assert (x.grad[0], y.grad[0]) == (2.0, -4.0)


def test_grad_asks_for_what_is_wanted(array) -> None:
    x, y = tb.Variable(array([1.0])), tb.Variable(array([2.0]))
    function = Both()
    _, other = function.apply((x * 1, y * 1))
    (found,) = tb.grad([F.sum(other)], [x])
    assert found.array[0] == 1.0
    assert function.asked == [((0,), (False, True))]


def test_what_adds_up_by_itself_hands_on_gradients(array) -> None:
    x = tb.Variable(array([2.0]))
    F.sum(Accumulating().apply((x * x,))[0]).backward()
    assert x.grad[0] == 12.0


def test_grad_keeps_gradients_on_the_way_if_asked_for(array) -> None:
    x = tb.Variable(array([3.0]))
    y = x * x
    for scale in (1.0, 5.0):
        tb.grad([F.sum(y * scale)], [x], retain_grad=True)
        assert y.grad[0] == scale
        y.cleargrad()
    for scale in (1.0, 5.0):  # those of the last pass stay
        F.sum(y * scale).backward(retain_grad=True)
        assert y.grad[0] == scale


def test_gradients_are_not_the_arrays_that_they_were_given(array, host) -> None:
    x, apart = tb.Variable(array([1.0, 2.0])), tb.Variable(array([3.0, 4.0]))
    given = array([5.0, 6.0])
    for found in tb.grad([F.sum(x)], [apart, x, apart], grad_inputs=[given] * 3):
        found.array[:] = 9
    assert host(given).tolist() == [5, 6]


def test_a_gradient_that_is_added_brings_no_history_unless_wanted(array) -> None:
    x, apart = tb.Variable(array([3.0])), tb.Variable(array([3.0]))
    given = tb.Variable(array([1.0])) * 2
    for double in (False, True):
        (found,) = tb.grad([F.sum(x)], [apart], grad_inputs=[given], enable_double_backprop=double)
        assert found.array[0] == 2.0
        assert (found.creator_node is not None) == double


@pytest.mark.parametrize(("wrong", "error"), [
    (lambda array: array([1.0, 2.0, 3.0]), ShapeError), (lambda array: array([1.0, 2.0], np.float64), DTypeError),
])  # fmt: skip
@pytest.mark.parametrize("wrapped", [False, True])
def test_start_gradients_fit(array, wrong, error, wrapped) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    y = x * 2
    start = tb.Variable(wrong(array)) if wrapped else wrong(array)
    with pytest.raises(error):
        tb.backward([y], [start])
    with pytest.raises(error):
        tb.grad([y], [x], [start])
    with pytest.raises(error):
        y.grad_var = tb.Variable(wrong(array))
    assert x.grad is None and y.grad is None


def test_a_variable_without_elements_has_no_start_gradient(array) -> None:
    with pytest.raises(RuntimeError, match="a start gradient must be set"):
        (tb.Variable(array(np.zeros(0))) * 2).backward()


# Arrays and graphs


def test_functions_see_the_array_that_they_retained(array, host) -> None:
    x = tb.Variable(array([3.0]))
    (y,) = Square().apply((x,))
    x.array = array([100.0])
    F.sum(y).backward()
    assert host(x.grad).tolist() == [6.0]  # of the array that was seen, given to the variable that there is


def test_a_variable_keeps_its_history_with_another_array(array, host) -> None:
    x = tb.Variable(array([3.0]))
    for retained in (False, True):
        y = x * 2
        z = Square().apply((y,))[0] if retained else y + 1
        y.array = array([1.0, 2.0])
        assert y.creator_node is not None
        x.cleargrad()
        F.sum(z).backward()
        assert host(x.grad).tolist() == [24.0 if retained else 2.0]


def test_the_same_array_again_leaves_the_graph_alone(array) -> None:
    x = tb.Variable(array([3.0]))
    (y,) = Square().apply((x,))
    x.array = x._data
    (found,) = tb.grad([F.sum(y)], [x])
    assert found.array[0] == 6.0


def test_an_array_may_be_taken_away(array) -> None:
    x = tb.Variable(array([3.0]))
    assert x.node.shape == (1,)
    x.array = None
    assert x.array is None


def test_a_variable_that_is_gone_is_made_once(array) -> None:
    function = Square()
    x = tb.Variable(array([3.0]), requires_grad=False)
    (y,) = function.apply((x * tb.Variable(array([2.0])),))
    gc.collect()
    (made,) = function.get_retained_inputs()
    assert made is function.get_retained_inputs()[0]
    assert made.creator_node is not None and made.requires_grad
    (y,) = UnusedInput().apply((tb.Variable(array([1.0])), tb.Variable(array([3.0]), requires_grad=False)))
    assert not y.creator_node.get_retained_inputs()[0].requires_grad


class UnusedInput(tb.FunctionNode):
    """x y, whose y is retained, counted from the end."""

    def forward(self, inputs: Any) -> Any:
        self.retain_inputs((-1,))
        self.retain_outputs((-1,))
        return (inputs[0] * inputs[1],)

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        raise ValueError("of its own")


class FirstFromTheEnd(UnusedInput):
    """The same, with x retained."""

    def forward(self, inputs: Any) -> Any:
        self.retain_inputs((-2,))
        return (inputs[0] * inputs[1],)


def test_the_first_may_be_counted_from_the_end(array, host) -> None:
    (y,) = FirstFromTheEnd().apply((tb.Variable(array([5.0])), tb.Variable(array([3.0]))))
    assert host(y.creator_node.get_retained_inputs()[0]).tolist() == [5.0]


def test_errors_of_a_backward_that_retained_what_it_asks_for_are_its_own(array) -> None:
    (y,) = UnusedInput().apply((tb.Variable(array(1.0)), tb.Variable(array(3.0))))
    with pytest.raises(ValueError, match="^of its own$"):
        y.backward()


@pytest.mark.parametrize("has_node", [False, True])
def test_an_output_that_is_gone_is_made_once_at_its_place(array, has_node) -> None:
    x = tb.Variable(array(1.0)) * 2
    (y,) = UnusedInput().apply((x, tb.Variable(array(3.0))))
    function, node = y.creator_node, y.node if has_node else None
    assert (x.rank, function.rank, y.rank) == (1, 1, 2)
    del y
    (made,) = function.get_retained_outputs()
    assert made is function.get_retained_outputs()[0]
    assert made.creator_node is function and made.rank == 2
    assert node is None or made.node is node


def test_unchained_variables_are_leaves(array) -> None:
    x, y = tb.Variable(array([1.0])), tb.Variable(array([2.0]))
    function = Both()
    one, other = function.apply((x * 1, y * 1))
    z = one * 2
    z.unchain_backward()
    assert function.inputs is None and other.creator_node is None
    assert (z.rank, one.rank, other.rank) == (0, 0, 0)
    w = F.sum(x * 2)
    w.unchain()
    assert (w.rank, w.creator_node) == (0, None)


def test_a_gradient_as_a_variable_is_the_same_each_time(array) -> None:
    x = tb.Variable(array([1.0]), grad=array([2.0]))
    assert x.grad_var is x.grad_var


def test_a_variable_that_is_moved_keeps_its_history(array, be) -> None:
    y = tb.Variable(array([1.0])) * 2
    function = y.creator_node
    assert y.to_device(tb.gen_backend("cpu", jit=False)).creator_node is function
    x = tb.Variable(array([1.0]))
    node = x.node
    assert x.to_cpu().node is not node


class Scaled(Square):
    """2 x by the default of `backward_accumulate`, with no gradient where x is below 0."""

    def forward(self, inputs: Any) -> Any:
        self.retain_inputs((0,))
        return (inputs[0] * 2,)

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        (x,) = self.get_retained_inputs()
        return (grad_outputs[0] * 2 if (np.asarray(tb.as_array(x)) >= 0).all() else None,)

    def backward_accumulate(self, target_input_indexes: Any, grad_outputs: Any, grad_inputs: Any) -> Any:
        return super().backward_accumulate(target_input_indexes, grad_outputs, grad_inputs)


@pytest.mark.parametrize(("at", "slope"), [(1.0, 3.0), (-1.0, 1.0)])
def test_no_gradient_leaves_what_is_there(array, host, at, slope) -> None:
    x = tb.Variable(array([at]))
    y = x * 1
    F.sum(y + Scaled().apply((y,))[0]).backward()
    assert host(x.grad).tolist() == [slope]


class Root(tb.FunctionNode):
    """A square root, whose gradient is that of its output."""

    def forward(self, inputs: Any) -> Any:
        self.retain_outputs((0,))
        return (inputs[0] ** 0.5,)

    def backward(self, target_input_indexes: Any, grad_outputs: Any) -> Any:
        (y,) = self.get_retained_outputs()
        return (grad_outputs[0] / (y * 2),)


def test_functions_see_the_output_that_they_retained(array, host) -> None:
    x = tb.Variable(array([4.0]))
    (y,) = Root().apply((x,))
    y.array = array([100.0])
    F.sum(y).backward()
    assert host(x.grad).tolist() == [0.25]


# Functions that are trees


def test_which_gradients_are_wanted_may_change(array, host) -> None:
    """One function on arrays of one layout, of which first one needs a gradient, then the other, then both."""
    for wanted in [(True, False), (False, True), (True, True), (True, False)]:
        x, y = (tb.Variable(array([v]), requires_grad=w) for v, w in zip((2.0, 5.0), wanted))
        F.sum(F.squared_difference(x, y)).backward()
        assert [v.grad is not None for v in (x, y)] == list(wanted)
        assert [float(host(v.grad)[0]) for v in (x, y) if v.grad is not None] == [-6.0] * wanted[0] + [6.0] * wanted[1]


@pytest.mark.parametrize("turned", [0, 1])
def test_outputs_lie_as_the_first_operand_of_their_shape(array, turned) -> None:
    operands = [array(np.ones((3, 4))), array(np.ones((3, 4)))]
    operands[turned] = array(np.ones((4, 3))).T
    row = array(np.ones((1, 4)))
    strides = [x.strides for x in operands]
    assert strides[0] != strides[1]
    made = F.add(tb.Variable(row), *map(tb.Variable, operands)).array
    assert made.strides == strides[0]


def test_outputs_that_are_views_share_memory(array, host) -> None:
    x = tb.Variable(array(np.arange(6.0).reshape(2, 3)))
    views = [F.reshape(x, (3, 2)), F.transpose(x), x[1:], F.identity(x)]
    x.array[1, 2] = 7.0
    assert [float(host(v).reshape(-1)[-1]) for v in views] == [7.0] * 4


@pytest.mark.parametrize("first", [0, 1])
def test_trees_take_arrays_of_one_kind(be, array, first) -> None:
    if be is None:
        pytest.skip("NumPy's arrays are one kind")
    kinds = [array([1.0]), np.ones(1, np.float32)]
    with pytest.raises(TypeError, match="maximum"):
        F.maximum(tb.Variable(kinds[first]), tb.Variable(kinds[1 - first]))


def test_types_that_were_not_checked_once_are_checked_later(array) -> None:
    x = tb.Variable(array(np.ones((7, 1)), np.int32))
    with tb.using_config("type_check", False):
        assert F.tanh(x).shape == (7, 1)
    for _ in range(2):
        with pytest.raises(InvalidType):
            F.tanh(x)
    with tb.using_config("type_check", False):
        assert F.tanh(x).shape == (7, 1)


def test_a_variable_is_no_list_of_variables(array) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    y = F.sum(x)
    for given, name in (((y, [x]), "outputs"), (([y], x), "inputs")):
        with pytest.raises(TypeError, match=rf"grad: {name}\n  given     Variable\n  expected  a list"):
            tb.grad(*given)


# Who may write to gradients


def test_gradients_may_be_written_to_one_by_one(array, host) -> None:
    """Where a gradient is one number spread out, or goes to several variables, each has memory of its own."""
    for between in (lambda x: x, lambda x: x + 1, lambda x: F.reshape(x, (3, 1)), F.identity):
        x = tb.Variable(array(np.ones(3)))
        F.sum(between(x)).backward()
        x.grad[0] = 0
        assert host(x.grad).tolist() == [0, 1, 1]
    a, b = (tb.Variable(array(np.ones(3))) for _ in range(2))
    F.sum(F.square(a + b)).backward()
    a.grad[:] = 0
    assert host(b.grad).tolist() == [4, 4, 4]
    a.cleargrad()
    a.addgrad(b)
    a.grad[:] = 7
    assert host(b.grad).tolist() == [4, 4, 4]


def test_the_gradient_to_start_from_stays_the_callers(array, host) -> None:
    x, g = tb.Variable(array(np.ones(3))), array(np.full(3, 2.0))
    for retain in (False, True):
        middle = F.identity(x)
        y = F.identity(middle)
        y.grad = g
        x.cleargrad()
        y.backward(retain_grad=retain)
        x.grad[:] = 9
        assert host(g).tolist() == host(y.grad).tolist() == [2, 2, 2]
    first, second = tb.grad([y], [x, middle], [tb.Variable(g)])
    first.array[:] = 5
    assert host(second).tolist() == host(g).tolist() == [2, 2, 2]


def test_numbers_spread_out_cannot_be_written_to() -> None:
    y = F.broadcast_to(tb.Variable(np.ones((1, 3), np.float32)), (2, 3))
    with pytest.raises(ValueError, match="read-only"):
        y.array[0, 0] = 7


def test_gradients_of_parts_are_apart(host) -> None:
    a, b = tb.Variable(np.ones((4, 2), np.float32)), tb.Variable(np.ones((4, 3), np.float32))
    y = F.concat((a, b)) * 2
    y.grad = np.arange(20, dtype=np.float32).reshape(4, 5)
    y.backward()
    a.grad[:] = 0
    assert (b.grad == 2 * y.grad[:, 2:]).all()
