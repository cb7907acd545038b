# SPDX-License-Identifier: Apache-2.0
"""Variables that native code makes of a function's outputs: those that Python makes."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import tensorbackend.functions as F
from tensorbackend import Parameter, Variable
from tensorbackend.backends import launcher
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import VariableNode
from tests.native.statements import assert_no_references_left, tensors

TWO = Rule("two", lambda x, y: (x * y, x + y))


class Named(Variable):
    """A variable with a slot more."""

    __slots__ = ("more",)


def facts_of(node: VariableNode, made: tuple[Variable, ...]) -> list[Any]:
    """What the graph knows of outputs and of their function, objects by what they are."""
    function = node.creator_node
    found: list[Any] = [function.rank, function._retained_inputs, function._retained_outputs]
    for n in function.inputs:
        found += [n.rank, n.shape, n.dtype, n.requires_grad, n.name, n.creator_node is None, n.data is None]
    for reference, v in zip(function.outputs, made):
        n = reference()
        assert type(v) is Variable and type(n) is VariableNode and type(n.rank) is int
        assert v._node is n and n.variable() is v and n.creator_node is function
        found += [v._grad, v._requires_grad, v._name, n.rank, n.data, n.shape, n.dtype, n.requires_grad, n.name]
    kept = function._output_data
    found.append(kept and [any(x is v._data for v in made) for x in kept])
    return found


def assert_same(call: Any, *arguments: Any) -> None:
    """That the variables a call makes natively are those that Python makes, backward and its gradients too."""
    natively = call(*arguments)
    outputs = natively if isinstance(natively, tuple) else (natively,)
    form = outputs[0].creator.form
    assert form.link is not None
    link, form.link = form.link, None
    try:
        by_python = call(*arguments)
    finally:
        form.link = link
    others = by_python if isinstance(by_python, tuple) else (by_python,)
    assert facts_of(outputs[0].node, outputs) == facts_of(others[0].node, others)
    found = []
    for made in (outputs, others):
        for x in arguments:
            x.cleargrad()
        F.sum(made[0] * 2 + made[-1]).backward()
        found.append([np.array(x.grad.get() if hasattr(x.grad, "get") else x.grad) for x in arguments])
    assert all(np.array_equal(a, b) for a, b in zip(*found))


def test_variables_are_those_of_python(be) -> None:
    x, y = (Variable(be.array(np.linspace(-1, 1, 6, dtype="f").reshape(2, 3) + n)) for n in range(2))
    named = Named(be.array(np.ones((2, 3), "f")), name="weights")
    parameter = Parameter(be.array(np.full((2, 3), 0.5, "f")))
    for call in (F.relu, F.exp, lambda v: F.reshape(v, (3, 2)), lambda v: v[1:], lambda v: v * 2.0):
        assert_same(call, x)
    assert_same(TWO, x, y)
    assert_same(TWO, named, parameter)
    assert_same(lambda v: F.split_axis(v, 3, 1), x)
    assert_same(lambda a, b: F.concat((a, b, F.tanh(a)), 1), x, y)  # of several ranks
    assert_same(lambda a, b: TWO(a, a + b), x, y)


def test_of_arrays_on_the_host_too() -> None:
    x, y = (Variable(np.linspace(-1, 1, 6, dtype="f").reshape(2, 3) + n) for n in range(2))
    if F.exp(x).creator.form.link is None:
        pytest.skip("the host's backend has no native types here")
    assert_same(TWO, x, y)
    assert_same(F.sigmoid, x)


def test_no_graph_is_made_where_none_is_asked_for(be) -> None:
    data = be.array(np.ones(3, "f"))
    plain = Variable(data, requires_grad=False)
    assert F.exp(plain).creator is None and not F.exp(plain).requires_grad
    mixed = F.add(plain, Variable(data))
    assert mixed.requires_grad and [n.requires_grad for n in mixed.creator.inputs] == [False, True]


def test_graphs_leave_no_references(be) -> None:
    def statements(x, w, o, number) -> None:
        v, p = Variable(x), Variable(w)
        F.sum(TWO(v, p)[0] + F.exp(v) * p).backward()

    assert_no_references_left(be, statements, 3_000)
    x, y = (Variable(t) for t in tensors(be, 2))
    made = F.exp(x) * y
    gone = [weakref.ref(x) for x in (made, made.creator, made.node)]
    assert made.creator.inputs[0].creator.outputs[0]() is made.creator.inputs[0]
    del made
    assert [reference() for reference in gone] == [None] * 3  # by their references alone


def test_unknown_layouts_are_left_to_python_and_said_once(be, monkeypatch, caplog) -> None:
    def unknown(*_: Any) -> int:
        raise LookupError("unknown")

    class Other(Variable):
        pass

    monkeypatch.setattr(launcher, "_offset", unknown)
    assert [be.structures.linker(Other, VariableNode) for _ in range(2)] == [None] * 2
    assert [record.getMessage().count("natively") for record in caplog.records] == [1]


def test_what_is_wrong_is_refused_and_leaves_no_references(be) -> None:
    class Function:
        pass

    x = Variable(be.array(np.ones(3, "f")))
    data, link = x._data, be.structures.linker(Variable, VariableNode)
    before = [sys.getrefcount(thing) for thing in (x, data, x.node, Variable, VariableNode)]
    for _ in range(100):
        assert link(Function(), [data], [data], (), ()) is None  # no variable
        assert link(Function(), [x], [data], ()) is None
        with pytest.raises(AttributeError):
            link(object(), [x], [data], (), ())
        with pytest.raises(IndexError):
            link(Function(), [x], [data], (1,), ())
        with pytest.raises(IndexError):
            link(Function(), [x], [data], (), (1,))
        with pytest.raises(SystemError):
            link(Function(), [x], (data,), (), ())
        (made,) = link(function := Function(), [x], [data], (0,), (0,))
        assert made._data is data and function._output_data == (data,) and x.node.data is data
        del made, function
    x.node.data = None
    gc.collect()
    assert [sys.getrefcount(thing) for thing in (x, data, x.node, Variable, VariableNode)] == before
