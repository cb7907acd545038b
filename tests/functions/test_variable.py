# SPDX-License-Identifier: Apache-2.0
"""Variables: what they say of themselves, and the rules of backward."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections import Counter

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import testing
from tensorbackend.errors import ShapeError
from tensorbackend.function import arrays
from tensorbackend.function_hooks import FunctionHook, PrintHook, TimerHook


def test_facts(be, array) -> None:
    x = tb.Variable(array([[1.0, 2.0]]), name="x")
    assert (x.shape, x.ndim, x.size, x.dtype, len(x)) == ((1, 2), 2, 2, np.float32, 1)
    assert x.device is be and x.rank == 0 and x.creator is None and x.creator_node is None and x.requires_grad
    assert x.label == "x: (1, 2), float32" and "x" in repr(x) and "(1, 2)" in x.summary()
    assert "mean 1.5" in x.debug_print() and "leaf" in x.debug_print()
    y = F.tanh(x)
    assert y.rank == 1 and y.creator is y.creator_node and y.creator.label == "tanh" and y.creator.rank == 0
    assert tb.Variable().label == "uninitialized" and "tanh" in y.debug_print()
    assert tb.Variable().xp is np and y.xp is tb.get_array_module(y.array)
    assert tb.Variable().debug_print().count("none") == 2 and "(uninitialized)" in tb.Variable().summary()
    assert "array: empty" in tb.Variable(array(np.ones((0, 2)))).debug_print()


@pytest.mark.parametrize("kind", [">f4", "<f4", ">f8", ">f2"])
def test_data_of_any_byte_order_is_native(kind) -> None:
    data = np.array([0.5, 2.0], kind)
    near = np.dtype(kind).newbyteorder("=")
    x = tb.Variable(data)
    F.sum(F.exp(x)).backward()
    assert all(a.dtype == near and a.dtype.isnative for a in (x.data, x.grad))
    testing.assert_allclose(x.grad, np.exp(data.astype("f8")), rtol=1e-3)
    x.grad = data
    x.array = data
    assert x.grad.dtype.isnative and x.data.dtype.isnative and F.exp(data).dtype == near
    assert F.get_item(x, np.array([1, 0], ">i4")).data.tolist() == [2.0, 0.5]


def test_tensors_of_any_byte_order_are_native(be) -> None:
    be = be or arrays.host_backend()
    data = np.array([[0.5, 2.0]], ">f4")
    for made in (
        be.array(data, dtype=data.dtype),
        be.xp.array(data),
        be.xp.ones((1, 2)) * data,
        tb.to_device(be, data),
    ):
        assert made.dtype.isnative and made.get().tolist() == [[0.5, 2.0]]
    with pytest.raises((ShapeError, TypeError)):
        be.view(data)


def test_masks_are_not_dropped(be) -> None:
    be, masked = be or arrays.host_backend(), np.ma.array([[1.0, 2.0]], mask=[[False, True]])
    x, y = tb.Variable(np.ones((1, 2))), be.zeros((1, 2))
    xp, whole = be.xp, slice(None)
    taking = [tb.Variable, tb.Parameter, tb.to_cpu, F.exp, be.array, be.view, y.set, xp.array, xp.asarray, xp.exp]
    taking += [lambda m: y + m, lambda m: xp.ones((1, 2)) * m, lambda m: setattr(x, "grad", m)]
    taking += [lambda m: y.__setitem__(whole, m), lambda m: y.__setitem__([0], m), lambda m: setattr(x, "array", m)]
    taking += [lambda m: xp.ones((1, 2)).__setitem__(whole, m), lambda m: xp.full((1, 2), m), lambda m: y + m[0, 1]]
    taking += [y.copy_from, y[[0]].copy_from, be.evaluate, lambda m: be.consume(0, [m.T], [y])]
    taking += [lambda m: y[m.astype(int)], lambda m: y[0, m[0].astype(int)], lambda m: y.__setitem__(m.astype(int), 1)]
    for take in taking:
        with pytest.raises(TypeError, match=r"masked array[\s\S]*\.filled\(value\)"):
            take(masked)
    assert tb.Variable(masked.filled(0)).data.tolist() == [[1.0, 0.0]]


def test_what_is_written_in_place_keeps_its_byte_order() -> None:
    data = np.array([0.5, 2.0], ">f4")
    tb.initializers.Constant(3)(data)
    assert data.tolist() == [3.0, 3.0] and not data.dtype.isnative
    (grad,) = tb.gradient_check.numerical_grad(lambda: (data * data,), (data,), (np.ones(2),))
    testing.assert_allclose(grad, [6.0, 6.0], rtol=1e-2)
    assert grad.dtype.isnative and data.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("part", [np.s_[::-1], np.s_[1:3, ::-2], np.s_[:, 2]])
def test_tensors_on_arrays_know_which_memory_is_theirs(part) -> None:
    whole = np.ones((4, 5), np.float32)
    seen, x = arrays.tensor_of(whole[part]), whole.ctypes.data
    places = np.arange(x, x + whole.nbytes, 4).reshape(4, 5)[part]
    assert (seen.address, seen.start, seen.stop) == (places.flat[0], places.min(), places.max() + 4)


def test_data_is_the_users_memory(array, host) -> None:
    data = array([1.0, 2.0])
    x = tb.Variable(data)
    x.array[:] = 5
    assert host(data).tolist() == [5.0, 5.0]
    x.array += 1
    assert host(data).tolist() == [6.0, 6.0] and x.data is x.array


@pytest.mark.parametrize("min_dims", [0, 2])
def test_tensors_of_any_rank_rule_are_taken(min_dims) -> None:
    be = tb.Backend.allocate_backend("cpu", min_dims=min_dims)
    x = tb.Variable(be.array([1.0, 2.0, 3.0]))
    y = F.sum(x * x, axis=0)
    assert y.shape == ((1,) if min_dims else ())
    assert isinstance(x.array, tb.Tensor)


@pytest.mark.parametrize("part", [lambda x: x[...], lambda x: x[0:2], lambda x: x.share((2, 3))])
def test_views_of_all_of_a_tensor_have_its_own_axes_alone(part, be) -> None:
    """Whatever the rank that its backend gives tensors."""
    if be is None:
        pytest.skip("NumPy's arrays have no rank rule")
    x = part(be.array(np.arange(6.0).reshape(2, 3)))
    assert tb.Variable(x)[0].shape == F.get_item(x, 0).shape == F.separate(x)[0].shape == (3,)


@pytest.mark.parametrize("of", [copy.copy, copy.deepcopy])
def test_a_leaf_is_copied_with_its_gradient(of, be, array, host) -> None:
    x = tb.Variable(array([1.0, 2.0]), name="x", grad=array([3.0, 4.0]), requires_grad=False)
    F.sum(x).array  # noqa: B018  x has a node
    made = of(x)
    assert type(made) is tb.Variable and made.name == "x" and not made.requires_grad and made.node is not x.node
    assert made.device is be and host(made).tolist() == [1, 2] and host(made.grad).tolist() == [3, 4]
    x.array[:] = 0
    x.grad[:] = 0
    shared = [0, 0] if of is copy.copy else None
    assert (host(made).tolist(), host(made.grad).tolist()) == (shared or [1, 2], shared or [3, 4])
    empty = of(tb.Variable())
    assert empty.array is None and empty.grad is None


def test_variables_of_one_array_share_one_in_a_deep_copy(array) -> None:
    x = tb.Variable(array([1.0]))
    x.grad_var = tb.Variable(array([2.0])) * 2
    first, other, again = copy.deepcopy([x, tb.Variable(x.array), x])
    assert first is again and first.array is other.array is not x.array
    assert first.grad_var.creator is None and x.grad_var.creator is not None


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_a_parameter_of_an_array_has_the_type_that_is_asked_for(dtype, be, array, host) -> None:
    p = tb.Parameter(array([1.0, 2.0]), dtype=dtype)
    assert (p.dtype, p.array.dtype, p.device) == (np.dtype(dtype), np.dtype(dtype), be)
    assert host(p).tolist() == [1, 2]


@pytest.mark.parametrize("of", [copy.copy, copy.deepcopy])
def test_a_parameter_is_copied_with_what_it_is_made_by(of, array, host) -> None:
    class Mine(tb.Parameter):
        pass

    p = Mine(7.0, name="W", dtype=np.float64)
    p.kept = [1]
    made = of(p)
    p.kept.append(2)
    made.initialize((2,))
    assert (type(made), made.name, made.dtype, made.array.tolist()) == (Mine, "W", np.float64, [7, 7])
    assert p.array is None and made.kept == ([1, 2] if of is copy.copy else [1])
    p = tb.Parameter(array([1.0, 2.0]))
    link = tb.Link()
    with link.init_scope():
        link.p = p
    optimizer = tb.optimizers.MomentumSGD(0.5).setup(link)
    p.grad = array([1.0, 1.0])
    p.update()
    made = of(p)
    assert made.update_rule is not p.update_rule and made.update_rule.hyperparam.lr == 0.5
    optimizer.hyperparam.lr = 0.25
    assert made.update_rule.hyperparam.lr == 0.25
    before = host(p).copy()
    made.update()
    assert (host(p) == before).all() == (of is copy.deepcopy) and (host(made) != before).all()
    np.testing.assert_allclose(host(made), [-0.2, 0.8], rtol=1e-6)


@pytest.mark.parametrize("of", [copy.copy, copy.deepcopy])
def test_what_a_function_made_is_not_copied(of, array) -> None:
    y = F.tanh(tb.Variable(array([1.0])))
    with pytest.raises(TypeError, match="copy, pickle: a variable belongs to a graph\n.*its array"):
        of(y)
    with pytest.raises(TypeError, match="a variable belongs to a graph"):
        tb.fused(lambda x: of(x) * 2)(tb.Variable(array([1.0])))
    y.unchain()
    assert of(y).creator is None


def test_comparison_and_truth_are_refused(array) -> None:
    x = tb.Variable(array([1.0]))
    with pytest.raises(NotImplementedError, match="array"):
        x == x  # noqa: B015
    with pytest.raises(NotImplementedError):
        x < 1  # noqa: B015
    with pytest.raises(TypeError, match="array"):
        bool(x)
    with pytest.raises(TypeError, match="not an array"):
        tb.Variable([1.0])


def test_a_gradient_must_fit(array) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"shape[\s\S]*\(3,\)[\s\S]*\(2,\)"):
        x.grad = array([1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match=r"dtype[\s\S]*float64[\s\S]*float32"):
        x.grad = array([1.0, 2.0], "float64")
    with pytest.raises(TypeError, match="kind"):
        x.grad = tb.Backend.allocate_backend("cpu").ones((2,), min_dims=0)
    with pytest.raises(ValueError, match="shape"):
        tb.Variable(array([1.0]), grad=array([1.0, 2.0]))
    x.grad = array([1.0, 2.0])
    x.cleargrad()
    assert x.grad is None
    with pytest.warns(DeprecationWarning):
        x.zerograd()
    testing.assert_allclose(x.grad, [0.0, 0.0])


def test_copies_and_sums_between_places(be, array) -> None:
    here, there = tb.Variable(array([1.0, 2.0])), tb.Variable(np.array([3.0, 4.0], np.float32))
    here.copydata(there)
    testing.assert_allclose(here, [3.0, 4.0])
    there.grad = np.array([1.0, 1.0], np.float32)
    here.addgrad(there)
    here.addgrad(there)
    testing.assert_allclose(here.grad, [2.0, 2.0])
    assert isinstance(here.to_cpu().array, np.ndarray) and isinstance(here.grad, np.ndarray)
    assert here.to_device(be).device is be and tb.get_array_module(here.grad) is tb.get_array_module(here)


# Backward


def test_what_is_added_or_copied_must_fit(array, host) -> None:
    x, y = tb.Variable(array(np.ones((1, 3)))), tb.Variable(array(np.ones((2, 3))))
    y.grad = array(np.ones((2, 3)))
    for before in (None, array(np.ones((1, 3)))):
        x.grad = before
        with pytest.raises(ShapeError, match=r"\(2, 3\)[\s\S]*\(1, 3\)"):
            x.addgrad(y)
        assert (x.grad is None) == (before is None)
    with pytest.raises(ShapeError, match=r"copydata[\s\S]*\(1, 3\)[\s\S]*\(2, 3\)"):
        y.copydata(x)
    with pytest.raises(ShapeError, match=r"\(2, 3\)[\s\S]*\(1, 3\)"):
        tb.grad([F.sum(x)], [x], grad_inputs=[y.grad])
    with pytest.raises(TypeError, match="float64"):
        tb.grad([F.sum(x)], [x], grad_inputs=[array(np.ones((1, 3)), np.float64)])


def test_a_start_gradient_must_be_set_for_several_elements(array) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    y = x * 2
    with pytest.raises(RuntimeError, match="start gradient"):
        y.backward()
    assert x.grad is None
    y.grad = array([1.0, 10.0])
    y.backward()
    testing.assert_allclose(x.grad, [2.0, 20.0])


def test_one_element_with_axes_warns(array) -> None:
    x = tb.Variable(array([[3.0]]))
    with pytest.warns(DeprecationWarning, match="0-dimensional"):
        (x * x).backward(loss_scale=4.0)
    testing.assert_allclose(x.grad, [[24.0]])


def test_a_loss_scale_is_a_number(array) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    with pytest.raises(TypeError, match=r"backward: loss_scale\s+given +str"):
        F.sum(x).backward(loss_scale="4")
    with pytest.raises(TypeError, match=r"backward: loss_scale\s+given +list"):
        tb.grad([F.sum(x)], [x], loss_scale=[4.0, 4.0])
    assert x.grad is None


def test_gradients_add_up_until_cleared(array) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    y = F.sum(x * 3)
    y.backward()
    y.backward()
    testing.assert_allclose(x.grad, [6.0, 6.0])
    x.cleargrad()
    y.backward()
    testing.assert_allclose(x.grad, [3.0, 3.0])


def test_both_uses_of_a_variable_count(array) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    for y, expected in ((x + x, [2, 2]), (x * x, [2, 4]), (x.reshape(2, 1) + x.reshape(2, 1), [2, 2]), (x - x, [0, 0])):
        x.cleargrad()
        F.sum(y).backward()
        testing.assert_allclose(x.grad, expected)


def test_graphs_keep_the_array_they_saw(array, host) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    before = F.sum(x * x)
    x.array = array([3.0, 5.0])
    after = F.sum(x * x)
    before.backward()
    assert host(x.grad).tolist() == [2, 4]
    x.cleargrad()
    after.backward()
    assert host(x.grad).tolist() == [6, 10]
    x.array, x.grad = array([1.0, 2.0, 4.0]), None
    F.sum(x * x).backward()
    assert host(x.grad).tolist() == [2, 4, 8]


def test_graphs_that_kept_no_array_keep_its_shape_and_type(array, host) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    before = F.sum(x)
    x.array = array([1.0, 2.0, 4.0], np.float64)
    after = F.sum(x * 2)
    before.backward()
    assert host(x.grad).tolist() == [1, 1] and x.grad.dtype == np.float32
    x.cleargrad()
    after.backward()
    assert host(x.grad).tolist() == [2, 2, 2] and x.grad.dtype == np.float64
    assert tb.grad([before], [x]) == [None] and host(tb.grad([after], [x])[0].array).tolist() == [2, 2, 2]


def test_no_gradient_is_changed_in_place(array, host) -> None:
    x, z = tb.Variable(array([1.0, 2.0])), tb.Variable(array([1.0, 2.0]))
    start = array([1.0, 1.0])
    y = x + z
    y.grad = start
    y.backward()
    first = x.grad
    y.backward()
    assert host(start).tolist() == [1.0, 1.0] and host(first).tolist() == [1.0, 1.0]
    assert host(x.grad).tolist() == [2.0, 2.0] and host(y.grad).tolist() == [1.0, 1.0]


def test_functions_are_visited_once_the_deepest_first(array) -> None:
    visited = []

    class Named(tb.FunctionNode):
        def __init__(self, name):
            self.name = name

        def forward(self, inputs):
            return (inputs[0] * 2,)

        def backward(self, target_input_indexes, grad_outputs):
            visited.append(self.name)
            return (grad_outputs[0] * 2,)

    x = tb.Variable(array([1.0]))
    a = Named("a").apply((x,))[0]
    b = Named("b").apply((a,))[0]
    c = Named("c").apply((a,))[0]
    d = Named("d").apply((c,))[0]
    F.sum(a + b + d).backward()
    assert visited[0] == "d" and visited[-1] == "a" and sorted(visited) == ["a", "b", "c", "d"]
    testing.assert_allclose(x.grad, [2 + 4 + 8])


def test_an_output_without_gradient_gives_none(array) -> None:
    seen = []

    class Two(tb.FunctionNode):
        def forward(self, inputs):
            return inputs[0] * 2, inputs[0] * 3

        def backward(self, target_input_indexes, grad_outputs):
            seen.append([g is None for g in grad_outputs])
            return (grad_outputs[1] * 3,)

    x = tb.Variable(array([1.0, 2.0]))
    F.sum(Two().apply((x,))[1]).backward()
    assert seen == [[True, False]]
    testing.assert_allclose(x.grad, [3.0, 3.0])


def test_gradients_on_the_way_are_kept_if_asked_for(array) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    h = x * 2
    y = F.sum(h * h)
    y.backward()
    assert h.grad is None and y.grad is not None
    y.backward(retain_grad=True)
    testing.assert_allclose(h.grad, [4.0, 8.0])


def test_what_needs_no_gradient_gets_none(array) -> None:
    x, c = tb.Variable(array([1.0])), tb.Variable(array([2.0]), requires_grad=False)
    F.sum(x * c).backward()
    assert c.grad is None and x.grad is not None
    assert F.tanh(c).creator is None and not F.tanh(c).requires_grad


def test_unchain_cuts_the_graph(array) -> None:
    x = tb.Variable(array([1.0]))
    h = F.tanh(x)
    y = F.sum(F.tanh(h))
    h.unchain()
    y.backward()
    assert x.grad is None and h.grad is not None
    h, y = None, F.sum(F.tanh(F.tanh(x)))
    creators = [weakref.ref(y.creator_node), weakref.ref(y.creator_node.inputs[0].creator_node)]
    y.unchain_backward()
    assert y.creator is None and all(c() is None for c in creators)


def test_only_variables_with_axes_are_iterated(array, host) -> None:
    assert [host(row).tolist() for row in tb.Variable(array([[1.0, 2.0], [3.0, 4.0]]))] == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(TypeError, match="without axes"):
        list(tb.Variable(array(1.0)))


def test_a_gradient_as_variable_is_one(array) -> None:
    x = tb.Variable(array([1.0]))
    with pytest.raises(TypeError, match="grad_var"):
        x.grad_var = array([1.0])
    assert x.grad is None


def test_gradients_can_be_differentiated(array) -> None:
    x = tb.Variable(array([1.0, 2.0], "float64"))
    y = F.sum(x**3)
    y.backward(enable_double_backprop=True)
    gx = x.grad_var
    assert gx.creator is not None
    x.cleargrad()
    F.sum(gx).backward(enable_double_backprop=True)
    testing.assert_allclose(x.grad, [6.0, 12.0])
    ggx = x.grad_var
    x.cleargrad()
    F.sum(ggx).backward()
    testing.assert_allclose(x.grad, [6.0, 6.0])
    y.backward()
    assert x.grad_var.creator is None


def test_grad_touches_nobody(array) -> None:
    x, w = tb.Variable(array([1.0, 2.0])), tb.Variable(array([3.0, 4.0]))
    h = x * w
    y = F.sum(h * h)
    gx, gh, none = tb.grad([y], [x, h, tb.Variable(array([1.0]))])
    testing.assert_allclose(gx, [18.0, 64.0])
    testing.assert_allclose(gh, [6.0, 16.0])
    assert none is None and x.grad is None and w.grad is None and y.grad is None
    (gx,) = tb.grad([y], [x], [tb.Variable(array(2.0))], [tb.Variable(array([1.0, 1.0]))], set_grad=True)
    testing.assert_allclose(gx, [37.0, 129.0])
    assert x.grad is not None and w.grad is None
    (gx,) = tb.grad([y], [x], enable_double_backprop=True)
    (ggx,) = tb.grad([F.sum(gx)], [x])
    testing.assert_allclose(ggx, [18.0, 32.0])


def test_grad_visits_what_lies_between(array) -> None:
    visited = []

    class Spy(tb.FunctionNode):
        def forward(self, inputs):
            return (inputs[0] * 1,)

        def backward(self, target_input_indexes, grad_outputs):
            visited.append(1)
            return grad_outputs

    x = tb.Variable(array([1.0]))
    h = Spy().apply((x,))[0] * 2
    y = F.sum(h * h)
    tb.grad([y], [h])
    assert visited == []


def test_backward_from_several_outputs(array) -> None:
    x = tb.Variable(array([1.0, 2.0]))
    a, b = x * 2, F.sum(x * 3)
    tb.backward([a, b], [array([1.0, 1.0]), None])
    testing.assert_allclose(x.grad, [5.0, 5.0])
    with pytest.raises(ValueError, match="grad_outputs"):
        tb.backward([a, b], [None])


def test_memory_of_many_steps_is_flat(array) -> None:
    x = tb.Variable(array(np.ones((4, 4))))
    gc.collect()
    gc.disable()
    try:
        counts = []
        for _ in range(3):
            for _ in range(30):
                x.cleargrad()
                F.sum(F.tanh(F.matmul(x, x)) * x).backward()
            counts.append(len(gc.get_objects()))
        assert counts[2] - counts[1] < 20
    finally:
        gc.enable()


# Hooks


def test_hooks_see_functions(array) -> None:
    x = tb.Variable(array([[1.0, 2.0]]))
    text = io.StringIO()
    with TimerHook() as timer, PrintHook(file=text):
        y = F.sum(F.tanh(x))
        y.backward()
    F.tanh(x)
    labels = [label for label, _ in timer.call_history]
    # a gradient is a function, too, which runs inside the backward of the function
    assert labels == ["tanh", "sum", "gradient of sum", "sum", "gradient of tanh", "tanh"]
    outside = [seconds for label, seconds in timer.call_history if "gradient" not in label]
    assert 0 < timer.total_time() == pytest.approx(sum(outside))  # gradients run inside the others' backward
    assert timer.summary()["tanh"]["occurrence"] == 2
    report = io.StringIO()
    timer.print_report(report)
    rows = [line.split(maxsplit=4) for line in report.getvalue().splitlines()]
    assert {label: int(calls) for _, _, calls, _, label in rows} == Counter(labels)
    assert [float(ms) for ms, *_ in rows] == sorted((float(ms) for ms, *_ in rows), reverse=True)
    for ms, _, _, _, label in rows:
        assert float(ms) == pytest.approx(1e3 * timer.summary()[label]["elapsed_time"], abs=6e-4)
    assert "forward tanh\n  input 0: shape (1, 2) float32" in text.getvalue() and "backward sum" in text.getvalue()


def test_a_hook_that_refuses_to_begin_is_not_there(array) -> None:
    class Refusing(FunctionHook):
        name = "Refusing"

        def added(self, function):
            raise RuntimeError("not now")

        def forward_preprocess(self, function, in_data):
            raise AssertionError("called")

    x, y = tb.Variable(array([1.0])), tb.Variable(array([2.0]))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not now"), Refusing():
            pytest.fail("entered")
    node = (x + y).creator_node
    with pytest.raises(RuntimeError, match="not now"):
        node.add_hook(Refusing())
    assert not node.local_function_hooks


def test_hooks_see_arrays_that_behave_as_numpys(array) -> None:
    class Sizes(FunctionHook):
        name = "Sizes"

        def __init__(self):
            self.found = []

        def forward_preprocess(self, function, in_data):
            self.found.append(("forward", function.label, float(in_data[0].sum())))

        forward_postprocess = forward_preprocess

        def backward_preprocess(self, function, in_data, grad_outputs):
            self.found.append(("backward", function.label, float(grad_outputs[0].sum())))

        backward_postprocess = backward_preprocess

    class Double(tb.FunctionNode):
        def forward(self, inputs):
            return (inputs[0] * 2,)

        def backward(self, target_input_indexes, grad_outputs):
            return (grad_outputs[0] + grad_outputs[0],)

    x = tb.Variable(array([1.0, 2.0]))
    with Sizes() as sizes:
        F.tanh(x)
        y = Double().apply((x,))[0]
        y.grad = array([1.0, 4.0])
        y.backward()
    assert [found for found in sizes.found if found[1] != "add"] == [
        ("forward", "tanh", 3.0), ("forward", "tanh", 3.0), ("forward", "Double", 3.0), ("forward", "Double", 3.0),
        ("backward", "Double", 5.0), ("backward", "Double", 5.0),
    ]  # fmt: skip


def test_numpy_makes_no_array_of_a_variable(array) -> None:
    x = tb.Variable(array([1.0, 2.0]), name="x")
    for make in (np.asarray, lambda v: np.array([v, v]), lambda v: np.testing.assert_allclose(v, 1.0)):
        with pytest.raises(TypeError, match=r"a NumPy array of a variable\n.*x: \(2,\), float32\n.*\n.*v\.array"):
            make(x)


def test_numpys_functions_of_a_variable_say_what_to_call(array) -> None:
    x = tb.Variable(array([[1.0, 2.0]]), name="x")
    for call in (np.mean, np.sum, np.max, lambda v: np.stack([v, v]), lambda v: np.allclose(v, 1.0)):
        with pytest.raises(TypeError, match=r"np\.\w+ of a variable\n.*x: \(1, 2\), .*\n.*\n.*F\.\w+\(v\).*v\.array"):
            call(x)
    assert np.shape(x) == (1, 2)
    assert np.transpose(x).shape == (2, 1)


def test_a_hook_of_one_node(array) -> None:
    x, timer = tb.Variable(array([1.0])), TimerHook()
    y = F.tanh(x)
    y.creator.add_hook(timer)
    with pytest.raises(KeyError, match="TimerHook"):
        y.creator.add_hook(timer)
    F.sum(y).backward()
    assert [label for label, _ in timer.call_history] == ["tanh"]
    y.creator.delete_hook("TimerHook")
    F.sum(y).backward()
    assert len(timer.call_history) == 1


def test_moving_arrays(be, array) -> None:
    x = array([1.0, 2.0])
    assert isinstance(tb.to_cpu(x), np.ndarray) and tb.to_device(be, np.ones(2)).shape == (2,)
    assert arrays.backend_of(arrays.plain(tb.to_device(be, x))) is be
    assert tb.as_array(tb.Variable(x)) is not None and tb.as_variable(x).requires_grad is False
