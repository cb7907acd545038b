# SPDX-License-Identifier: Apache-2.0
"""Function nodes of both styles: what users write, and what is said of mistakes."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import gradient_check, testing
from tensorbackend.function.type_check import InvalidType
from tensorbackend.function_hooks import TimerHook

pytestmark = pytest.mark.rehearsed


class SplitMulAdd(tb.FunctionNode):
    """x y + z with separate forwards."""

    def forward_cpu(self, inputs):
        assert all(type(x) is np.ndarray for x in inputs)
        self.retain_inputs((0, 1))
        x, y, z = inputs
        return (x * y + z,)

    def forward_gpu(self, inputs):
        self.retain_inputs((0, 1))
        x, y, z = inputs
        return (x * y + z,)

    def backward(self, target_input_indexes, grad_outputs):
        x, y = self.get_retained_inputs()
        (gw,) = grad_outputs
        return y * gw, x * gw, gw


class UnifiedMulAdd(tb.FunctionNode):
    """x y + z written once."""

    def forward(self, inputs):
        self.retain_inputs((0, 1))
        x, y, z = inputs
        return (x * y + z,)

    backward = SplitMulAdd.backward


class KernelMulAdd(tb.FunctionNode):
    """x y + z by an elementwise kernel, its gradient a node."""

    def forward(self, inputs):
        self.retain_inputs((0, 1))
        kernel = tb.elementwise("T x, T y, T z", "T w", "w = x * y + z", "muladd_forward")
        return (kernel(*inputs),)

    def backward(self, target_input_indexes, grad_outputs):
        return MulAddGrad().apply((*self.get_retained_inputs(), grad_outputs[0]))


class MulAddGrad(tb.FunctionNode):
    """The gradients of x y + z by an elementwise kernel of three outputs."""

    def forward(self, inputs):
        kernel = tb.elementwise(
            "T x, T y, T gw", "T gx, T gy, T gz", "gx = y * gw; gy = x * gw; gz = gw;", "muladd_backward"
        )
        return tuple(kernel(*inputs))

    def backward(self, target_input_indexes, grad_outputs):
        raise NotImplementedError("not needed")


class OldSplitMulAdd(tb.Function):
    """x y + z in the old style."""

    def forward_cpu(self, inputs):
        assert all(type(x) is np.ndarray for x in inputs)
        x, y, z = inputs
        return (x * y + z,)

    def backward_cpu(self, inputs, grad_outputs):
        assert all(type(x) is np.ndarray for x in (*inputs, *grad_outputs))
        x, y, z = inputs
        (gw,) = grad_outputs
        return y * gw, x * gw, gw

    def forward_gpu(self, inputs):
        x, y, z = inputs
        return (x * y + z,)

    def backward_gpu(self, inputs, grad_outputs):
        x, y, z = inputs
        (gw,) = grad_outputs
        return y * gw, x * gw, gw


class OldUnifiedMulAdd(tb.Function):
    """x y + z in the old style, written once."""

    forward = OldSplitMulAdd.forward_gpu
    backward = OldSplitMulAdd.backward_gpu


class OldKernelMulAdd(tb.Function):
    """x y + z in the old style by kernels of any type."""

    def forward(self, inputs):
        return (tb.elementwise("T x, T y, T z", "T w", "w = x * y + z", "muladd_forward")(*inputs),)

    def backward(self, inputs, grad_outputs):
        x, y, z = inputs
        (gw,) = grad_outputs
        kernel = tb.elementwise("T x, T y, T gw", "T gx, T gy", "gx = y * gw; gy = x * gw", "muladd_old_backward")
        return (*kernel(x, y, gw), gw)


def new(cls: type) -> Any:
    """A node class as a function."""
    return lambda *xs: cls().apply(xs)[0]


FORMS = {
    "new split": new(SplitMulAdd),
    "new unified": new(UnifiedMulAdd),
    "new kernels": new(KernelMulAdd),
    "old split": lambda *xs: OldSplitMulAdd()(*xs),
    "old unified": lambda *xs: OldUnifiedMulAdd()(*xs),
    "old kernels": lambda *xs: OldKernelMulAdd()(*xs),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", FORMS)
def test_muladd_in_six_forms(form, dtype, be, array, host) -> None:
    if "kernels" in form and be is not None and not testing.compiles(be):
        pytest.skip("user kernels need a compiler")
    values = [np.random.RandomState(i).normal(size=(3, 2)) for i in range(4)]
    data = [array(v, dtype) for v in values]
    x, y, z = map(tb.Variable, data[:3])
    w = FORMS[form](x, y, z)
    testing.assert_allclose(w, values[0] * values[1] + values[2])
    w.grad = data[3]
    w.backward()
    for v, expected in zip((x, y, z), (values[1] * values[3], values[0] * values[3], values[3])):
        testing.assert_allclose(v.grad, expected)
        assert v.grad.dtype == dtype
    assert w.grad_var is not None
    gradient_check.check_backward(FORMS[form], tuple(data[:3]), data[3], eps=1e-2, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("form", ["new split", "new unified"])
def test_muladd_of_the_new_style_twice(form, array) -> None:
    data = [array(np.random.RandomState(i).normal(size=(3, 2)), "float64") for i in range(7)]
    gradient_check.check_double_backward(FORMS[form], data[:3], data[3], data[4:], dtype="float64")


@pytest.mark.parametrize("form", ["old split", "old unified"])
def test_an_old_function_is_differentiated_once(form, array) -> None:
    x, y, z = (tb.Variable(array([1.0, 2.0])) for _ in range(3))
    w = F.sum(FORMS[form](x, y, z))
    w.backward(enable_double_backprop=True)
    assert x.grad_var.creator is not None
    with pytest.raises(RuntimeError, match="MulAdd.*old-style"):
        F.sum(x.grad_var).backward()
    w.backward()
    testing.assert_allclose(x.grad, [2.0, 4.0])


# The rules of a node


def test_a_node_is_applied_once(array) -> None:
    node = UnifiedMulAdd()
    node.apply((array([1.0]),) * 3)
    with pytest.raises(RuntimeError, match="UnifiedMulAdd.*second"):
        node.apply((array([1.0]),) * 3)
    function = OldUnifiedMulAdd()
    function(*(array([1.0]),) * 3)
    with pytest.raises(RuntimeError, match="OldUnifiedMulAdd.*second"):
        function(*(array([1.0]),) * 3)


def test_inputs_of_apply_are_a_tuple(array) -> None:
    """A variable would be taken for its rows."""
    x = array(np.ones((3, 2)))
    for wrong in (x, tb.Variable(x)):
        with pytest.raises(TypeError, match=r"UnifiedMulAdd: inputs of apply"):
            UnifiedMulAdd().apply(wrong)
    assert UnifiedMulAdd().apply([x, x, x])[0].shape == (3, 2)


def test_a_node_is_not_called(array) -> None:
    with pytest.raises(TypeError, match="apply"):
        UnifiedMulAdd()(array([1.0]))


class Returns(tb.FunctionNode):
    """Returns what it is told to."""

    def __init__(self, forward: Any, backward: Any = None) -> None:
        self._forward, self._backward = forward, backward

    def forward(self, inputs):
        return self._forward(*inputs)

    def backward(self, target_input_indexes, grad_outputs):
        return self._backward(*grad_outputs)


def test_forward_must_return_a_tuple(array) -> None:
    with pytest.raises(TypeError, match="Returns: forward must return a tuple"):
        Returns(lambda x: x * 2).apply((array([1.0]),))


def test_forward_must_return_arrays_of_one_kind(array) -> None:
    with pytest.raises(TypeError, match="Returns"):
        Returns(lambda x: ("two",)).apply((array([1.0]),))
    other = tb.Backend.allocate_backend("cpu").ones((1,), min_dims=0)
    with pytest.raises(TypeError, match="different kinds"):
        Returns(lambda x: (x * 1, other)).apply((array([1.0]),))


def test_inputs_must_be_of_one_kind(array, be) -> None:
    other = tb.Backend.allocate_backend("cpu").ones((2,), min_dims=0)
    with pytest.raises(TypeError, match=r"add.*different kinds[\s\S]*CPUTensor"):
        F.add(array([1.0, 2.0]), other)
    with pytest.raises(TypeError, match="exp: x"):
        F.exp("text")


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (lambda g: g, TypeError, "must return a tuple"),
        (lambda g: (g, g, g), ValueError, "wrong number of gradients"),
        (lambda g: (g.array,), TypeError, "no variable"),
        (lambda g: (F.sum(g),), ValueError, r"input 0 has another shape[\s\S]*\(\)[\s\S]*\(2,\)"),
        (lambda g: (F.cast(g, "float64"),), TypeError, "input 0 has another dtype"),
    ],
)
def test_wrong_gradients_name_function_and_index(result, error, text, array) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    (y,) = Returns(lambda x: (x * 2,), result).apply((x,))
    with pytest.raises(error, match=f"Returns.*{text}"):
        F.sum(y).backward()
    assert x.grad is None


class Forgotten(tb.FunctionNode):
    def forward(self, inputs):
        return (inputs[0] * 2,)


def test_a_forgotten_backward_is_named(array) -> None:
    """It gave no gradient, silently."""
    x = tb.Variable(array([1.0, 2.0]))
    (y,) = Forgotten().apply((x,))
    with pytest.raises(NotImplementedError, match=r"^Forgotten: no backward\n.*backward"):
        F.sum(y).backward()
    with pytest.raises(NotImplementedError, match="Forgotten: no backward"):
        tb.grad([F.sum(Forgotten().apply((x,))[0])], [x])
    F.sum(Forgotten().apply((x.array,))[0] * x).backward()
    (whole,) = Forgotten().apply((tb.Variable(array([1, 2], np.int32)),))
    whole.grad = array([1, 1], np.int32)
    whole.backward()


def test_an_output_may_be_an_input(array, host) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    (y,) = Returns(lambda x: (x,), lambda g: (g,)).apply((x,))
    F.sum(y * y).backward()
    assert host(x.grad).tolist() == [2.0, 4.0]


def test_nothing_is_retained_unasked(array) -> None:
    x = tb.Variable(array([1.0]))
    (y,) = Returns(lambda x: (x * 2,), lambda g: (g * 2,)).apply((x,))
    assert y.creator.get_retained_inputs() == () and y.creator.get_retained_outputs() == ()
    assert y.creator.inputs[0].data is None


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_a_forgotten_retain_is_named(what, array) -> None:
    class Forgetful(Returns):
        def backward(self, target_input_indexes, grad_outputs):
            (x,) = getattr(self, f"get_retained_{what}")()
            return (grad_outputs[0] * x,)

    (y,) = Forgetful(lambda x: (x * 2,)).apply((tb.Variable(array([1.0, 2.0])),))
    with pytest.raises(RuntimeError, match=rf"Forgetful: backward asked for retained {what}[\s\S]*retain_{what}"):
        F.sum(y).backward()


class OldExp(tb.Function):
    """exp(x), which its gradient is made of, beside an output that it is not."""

    def forward_cpu(self, inputs):
        self.retain_inputs(())
        self.retain_outputs((-1,))
        return inputs[0] * 2, np.exp(inputs[0])

    def backward_cpu(self, inputs, grad_outputs):
        assert inputs == (None,)
        unused, y = self.output_data
        assert unused is None and type(y) is np.ndarray
        return (y * grad_outputs[1],)

    def forward_gpu(self, inputs):
        self.retain_outputs((1,))
        return inputs[0] * 2, tb.get_array_module(inputs[0]).exp(inputs[0])

    def backward_gpu(self, inputs, grad_outputs):
        return (self.output_data[1] * grad_outputs[1],)


def test_an_old_function_knows_its_node_while_there_is_a_graph(array) -> None:
    x, timer = tb.Variable(array([1.0, 2.0])), TimerHook()
    function = OldUnifiedMulAdd()
    y = function(x, x, x)
    assert function.node is y.creator_node and function.node.inputs[0] is x.node
    function.node.add_hook(timer)
    y.grad = array([1.0, 1.0])
    y.backward()
    assert "OldUnifiedMulAdd" in {label for label, _ in timer.call_history}
    del y
    with pytest.raises(RuntimeError, match="OldUnifiedMulAdd: no node"):
        _ = function.node


def test_a_graph_is_walked_through_old_functions(array) -> None:
    x, timer = tb.Variable(array([1.0, 2.0])), TimerHook()
    function = OldUnifiedMulAdd()
    function.add_hook(timer, "mine")
    y = function(F.exp(x), x, x)
    z = y * 2.0
    assert timer.call_history and function.local_function_hooks == {"mine": timer}
    function.delete_hook("mine")
    assert function.local_function_hooks == {}
    found, waiting = [], [z.creator]
    while waiting:
        f = waiting.pop()
        found.append((f.label, f.rank))
        waiting += [node.creator for node in f.inputs if node.creator is not None]
    assert found == [("multiply", 2), ("OldUnifiedMulAdd", 1), ("exp", 0)]
    assert z.creator.inputs[0].creator is function and [output() for output in function.outputs] == [y.node]
    node = function.node
    function.unchain()
    assert y.creator is None and function.inputs is node.inputs is None


class Failing(tb.FunctionNode):
    def forward(self, inputs):
        raise ZeroDivisionError


class Trying(tb.FunctionNode):
    def forward(self, inputs):
        time.sleep(0.02)
        with pytest.raises(ZeroDivisionError):
            Failing().apply(inputs)
        return inputs


def test_a_timer_times_a_function_around_one_that_raised(array) -> None:
    with TimerHook() as timer:
        Trying().apply((tb.Variable(array([1.0])),))
        Trying().apply((tb.Variable(array([1.0])),))
    assert [label for label, _ in timer.call_history] == ["Trying", "Trying"]
    assert min(seconds for _, seconds in timer.call_history) >= 0.02


def test_an_old_function_without_a_graph_is_freed_without_the_collector(array) -> None:
    gc.collect()
    gc.disable()
    try:
        function = OldUnifiedMulAdd()
        with tb.no_backprop_mode():
            function(*(tb.Variable(array([1.0])),) * 3)
        known = weakref.ref(function)
        del function
        assert known() is None
    finally:
        gc.enable()


def test_an_old_function_may_have_no_outputs(array) -> None:
    class Nothing(tb.Function):
        def forward(self, inputs):
            return ()

    assert Nothing()(array([1.0])) == ()


def test_an_old_function_finds_the_outputs_that_it_retained(array, host) -> None:
    x = tb.Variable(array([0.5, 2.0]))
    function = OldExp()
    F.sum(function(x)[1]).backward()
    np.testing.assert_allclose(host(x.grad), np.exp([0.5, 2.0]), rtol=1e-6)
    assert function.output_data == ()


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_what_is_not_there_cannot_be_retained(what, array) -> None:
    class Wrong(Returns):
        def forward(self, inputs):
            getattr(self, f"retain_{what}")((0, 1))
            return (inputs[0] * 2,)

    with pytest.raises(IndexError, match=rf"Wrong: retain_{what}[\s\S]*\(0, 1\) of 1"):
        Wrong(None).apply((tb.Variable(array([1.0])),))


def test_what_is_retained_may_be_counted_from_the_end(array, host) -> None:
    class New(tb.FunctionNode):
        def forward(self, inputs):
            self.retain_inputs((-1,))
            self.retain_outputs((-1,))
            return inputs[0] * inputs[1], inputs[0] * 3.0

        def backward(self, target_input_indexes, grad_outputs):
            (y,), (z,) = self.get_retained_inputs(), self.get_retained_outputs()
            assert len(grad_outputs) == 2
            return grad_outputs[0] * y, grad_outputs[0] * z / 3.0

    class Old(tb.Function):
        def forward(self, inputs):
            self.retain_inputs((-1,))
            return (inputs[0] * inputs[1],)

        def backward(self, inputs, grad_outputs):
            return grad_outputs[0] * inputs[1], None

    x, y = tb.Variable(array([2.0, 3.0])), tb.Variable(array([5.0, 7.0]))
    product = New().apply((x, y))[0]
    F.sum(product).backward()
    F.sum(product).backward()
    F.sum(Old()(x, y)).backward()
    assert host(x.grad).tolist() == [15, 21] and host(y.grad).tolist() == [4, 6]


def test_only_needed_target_indexes_are_asked_for(array) -> None:
    asked = []

    class Spy(UnifiedMulAdd):
        def backward(self, target_input_indexes, grad_outputs):
            asked.append(target_input_indexes)
            (g,) = grad_outputs
            return tuple(g for _ in target_input_indexes)

    x, y, z = tb.Variable(array([1.0])), array([1.0]), tb.Variable(array([1.0]))
    Spy().apply((x, y, z))[0].backward()
    assert asked == [(0, 2)]
    assert x.grad is not None and z.grad is not None


def test_one_entry_for_each_input_is_taken_too(array, host) -> None:
    x, z = tb.Variable(array([3.0])), tb.Variable(array([1.0]))
    (w,) = UnifiedMulAdd().apply((x, array([5.0]), z))
    w.backward()
    assert host(x.grad).tolist() == [5.0]


def test_backward_accumulate_gets_what_is_there(array, host) -> None:
    seen = []

    class Adds(tb.FunctionNode):
        def forward(self, inputs):
            return (inputs[0] + inputs[1],)

        def backward_accumulate(self, target_input_indexes, grad_outputs, grad_inputs):
            (g,) = grad_outputs
            seen.append((host(g).tolist(), [None if b is None else host(b).tolist() for b in grad_inputs]))
            return tuple(g if before is None else g + before for before in grad_inputs)

    x = tb.Variable(array([3.0]))
    h = x * 2
    y = h * 1 + Adds().apply((h, h))[0]
    y.backward()
    assert host(x.grad).tolist() == [6.0]
    assert seen in ([([1.0], [None, None])], [([1.0], [[1.0], None])])


# Memory


def test_a_graph_is_freed_without_the_collector(array) -> None:
    gc.collect()
    gc.disable()
    try:
        x = tb.Variable(array(np.ones((3, 3))))
        y = F.sum(F.tanh(F.matmul(x, x)) * x)
        y.backward()
        nodes = [weakref.ref(y.creator_node)]
        waiting = [y.creator_node]
        while waiting:
            inputs = waiting.pop().inputs
            nodes += [weakref.ref(n.creator_node) for n in inputs if n.creator_node is not None]
            waiting += [n.creator_node for n in inputs if n.creator_node is not None]
        del y, waiting, inputs
        assert len(nodes) == 4 and all(node() is None for node in nodes)
    finally:
        gc.enable()


def test_arrays_that_nobody_retains_are_freed(array) -> None:
    x = tb.Variable(array(np.ones((3, 3))))
    h = x + 1
    held = weakref.ref(h.array)
    y = F.sum(h + 2)
    del h
    assert held() is None
    y.backward()


def test_double_backward_through_retained_outputs(array) -> None:
    x = tb.Variable(array([0.5, -1.0], "float64"))
    y = F.sum(F.exp(F.tanh(x)))
    y.backward(enable_double_backprop=True)
    gx = x.grad_var
    x.cleargrad()
    F.sum(gx * gx).backward()
    t = np.tanh(np.array([0.5, -1.0]))
    g, d = np.exp(t) * (1 - t * t), np.exp(t) * ((1 - t * t) ** 2 - 2 * t * (1 - t * t))
    testing.assert_allclose(x.grad, 2 * g * d, atol=1e-9)


def test_numerical_gradients_leave_the_inputs_as_they_are(array, host) -> None:
    x, y, g = (array(values, "float64") for values in ([1.0, 2.0, 3.0], [2.0, 0.5, 1.0], [1.0, 1.0, 1.0]))
    for detects in (False, True):
        found = gradient_check.numerical_grad(
            lambda: (x * x * x * y,), (x, y), (g,), eps=1e-4, detect_nondifferentiable=detects
        )
        testing.assert_allclose(found[0], [6.0, 6.0, 27.0], atol=1e-6)
        testing.assert_allclose(found[1], [1.0, 8.0, 27.0], atol=1e-6)
        assert host(x).tolist() == [1.0, 2.0, 3.0] and host(y).tolist() == [2.0, 0.5, 1.0]


def test_numerical_gradients_are_of_one_kind(be, array) -> None:
    x, y = array([1.0, 2.0], "float64"), np.ones(2)
    if be is None:
        y = testing.make_backend("interpreter").array(y, min_dims=0)
    for start in (y, tb.Variable(y)):
        with pytest.raises(TypeError, match="numerical_grad: arrays of different kinds"):
            gradient_check.numerical_grad(lambda: (x * x,), (x,), (None, start))


def test_numerical_gradients_want_what_fits_each_output(array) -> None:
    x, row = array(np.ones((2, 3)), "float64"), array(np.ones(3), "float64")
    wrong = (((x,), "1 for 2 outputs"), ((x, x, x), "3 for 2"), ((x, row), r"\(3,\) for output 1, of shape"))
    for starts, given in wrong:
        with pytest.raises(ValueError, match=f"numerical_grad: grad_outputs\n  given     .*{given}"):
            gradient_check.numerical_grad(lambda: (x * x, x), (x,), starts)
    with pytest.raises(TypeError, match="numerical_grad: an input\n  given     array of int64"):
        gradient_check.numerical_grad(lambda: (x,), (array([1, 2], np.int64),), (x,))
    (found,) = gradient_check.numerical_grad(lambda: (x * x, x), (x,), (2.0, None))
    testing.assert_allclose(found, np.full((2, 3), 4.0), atol=1e-6)


@pytest.mark.parametrize("eps", [0, -1e-3, np.nan])
def test_a_step_of_differences_is_above_0(eps, array) -> None:
    x = array([1.0, 2.0], "float64")
    with pytest.raises(ValueError, match="numerical_grad: eps"):
        gradient_check.numerical_grad(lambda: (x,), (x,), (x,), eps=eps)
    with pytest.raises(ValueError, match="check_backward: eps"):
        gradient_check.check_backward(lambda v: v * v, x, x, eps=eps)


def test_kinks_are_told_from_outputs_that_stay(array) -> None:
    x, gy = array([-1.0, 0.3, 7.0], "float64"), array(np.ones(3), "float64")
    gradient_check.check_backward(lambda v: F.clip(v, -0.1, 5.3), x, gy, detect_nondifferentiable=True)
    with pytest.raises(gradient_check.NondifferentiableError, match="output 0: not differentiable"):
        gradient_check.check_backward(lambda v: F.clip(v, 0.3, 5.3), x, gy, detect_nondifferentiable=True)


def test_differences_without_a_number_agree_with_nothing(array) -> None:
    class Wrong(tb.FunctionNode):
        def forward(self, inputs):
            return (tb.get_array_module(*inputs).exp(inputs[0]),)

        def backward(self, target_input_indexes, grad_outputs):
            return (grad_outputs[0] * 2.0,)

    x, gy = array([709.7827], "float64"), array([1.0], "float64")  # exp of a little more is infinite
    with np.errstate(over="ignore"), pytest.raises(AssertionError, match="disagrees"):
        gradient_check.check_backward(lambda v: Wrong().apply((v,))[0], x, gy)


def test_outputs_without_a_gradient_are_left_out_of_a_check(array) -> None:
    x = array([[0.5, -1.0]])
    for given in ((x, None), (None, x), (x, x)):
        gradient_check.check_backward(lambda v: (v**2, v**3), x, given, dtype="float64")
        gradient_check.check_double_backward(lambda v: (v**2, v**3), x, given, x, dtype="float64")


def test_a_check_wants_an_entry_for_each_input(array) -> None:
    x = array([[0.5, -1.0]])
    for no_grads in ([False], [False] * 3):
        with pytest.raises(ValueError, match="no_grads"):
            gradient_check.check_backward(lambda v, w: v * w, (x, x), x, no_grads=no_grads)
        with pytest.raises(ValueError, match="no_grads"):
            gradient_check.check_double_backward(lambda v, w: v * w, (x, x), x, (x, x), no_grads=no_grads)
    with pytest.raises(ValueError, match="x_grad_grad"):
        gradient_check.check_double_backward(lambda v, w: v * w, (x, x), x, (x,))
    w = tb.Variable(array([[2.0, 3.0]]))
    with pytest.raises(ValueError, match="params_grad_grad\n  given     0 for 1 parameters"):
        gradient_check.check_double_backward(lambda v: v * v * w, x, x, x, params=(w,))


# Type checks


def test_values_of_a_check_slice_count_and_negate(array) -> None:
    seen = []

    class Checked(UnifiedMulAdd):
        def check_type_forward(self, in_types):
            x, ndim = in_types[0], in_types[0].ndim
            seen.extend([x.shape[: ndim - 1].value, list(range(ndim)), bool(ndim)])
            if ndim:
                tb.type_check.expect(self.claim(x))

    x = array(np.ones((2, 3)))
    for claim, text in (
        (lambda x: x.shape[1:] == (4,), "in_types[0].shape[1:] == (4,)"),
        (lambda x: x.shape[:: x.ndim] == (4,), "in_types[0].shape[::in_types[0].ndim] == (4,)"),
        (lambda x: -x.ndim == 2, "(-in_types[0].ndim) == 2"),
        (lambda x: x.dtype == np.float64, "in_types[0].dtype == float64"),
    ):
        Checked.claim = staticmethod(claim)
        with pytest.raises(InvalidType) as caught:
            Checked().apply((x, x, x))
        assert text in str(caught.value)
    assert seen[:3] == [(2,), [0, 1], True]


def test_a_check_says_function_expression_and_values(array) -> None:
    class Checked(UnifiedMulAdd):
        def check_type_forward(self, in_types):
            tb.type_check.expect(in_types.size() == 3, in_types[0].shape[1] == in_types[1].shape[1])

    with pytest.raises(InvalidType) as caught:
        Checked().apply((array(np.ones((2, 3))), array(np.ones((2, 4))), array(np.ones((2, 3)))))
    text = str(caught.value)
    assert "Checked" in text and "in_types[0].shape[1] == in_types[1].shape[1]" in text and "3 != 4" in text
    with tb.using_config("type_check", False), pytest.raises(ValueError):
        Checked().apply((array(np.ones((2, 3))), array(np.ones((2, 4))), array(np.ones((2, 3)))))


@pytest.mark.parametrize("names, text", [(("x", "y", "z"), "y.shape == z.shape"), (("x", "y"), "in_types.size() == 2")])
def test_a_check_may_name_its_inputs(names, text, array) -> None:
    class Checked(UnifiedMulAdd):
        def check_type_forward(self, in_types):
            tb.type_check._argname(in_types, names)
            tb.type_check.expect(in_types[1].shape == in_types[2].shape)

    x = array(np.ones((2, 3)))
    with pytest.raises(InvalidType) as caught:
        Checked().apply((x, x, x[:1]))
    assert text in str(caught.value)
