# SPDX-License-Identifier: Apache-2.0
"""The way back through a graph: each function once, the deepest first, with the gradients of all its outputs.

Gradients travel as plain arrays, or as variables where the pass itself is to be differentiated. None is ever changed:
a sum is a new array.
"""

from __future__ import annotations

import heapq
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tensorbackend.errors import complain
from tensorbackend.function import arrays, hooks
from tensorbackend.function.config import held, lookup
from tensorbackend.function.node import FunctionNode, check_gradient, refuse_nan
from tensorbackend.function.ready import Countdown, listeners
from tensorbackend.function.variable import Variable, VariableNode, as_variable
from tensorbackend.graph import ranges

__all__ = ["backward", "grad"]


def backward(
    outputs: Sequence[Variable],
    grad_outputs: Sequence[Any] | None = None,
    retain_grad: bool = False,
    enable_double_backprop: bool = False,
    loss_scale: float | None = None,
) -> None:
    """Run back from several variables, and add to the gradient of each leaf; flags as `Variable.backward`.

    `grad_outputs` are the start gradients (None: the outputs' own). Raises `TypeError` inside a fused function.
    """
    _check_lists(outputs, (), grad_outputs, None)
    starting = [(y, _start(y, g, loss_scale)) for y, g in zip(outputs, grad_outputs or [None] * len(outputs))]
    run = _Pass(enable_double_backprop, retain_grad)
    for y, g in starting:
        y._grad = g
        if y.creator_node is not None:
            run.begin(y.node, g)
    with held("enable_backprop", enable_double_backprop):
        if listeners:
            _tell(run, [y.node for y in outputs])
        else:
            run.run(None)
        for node in tuple(run.grads):
            run.settle(node)
    run.store_passed()


def _tell(run: _Pass, outputs: list[VariableNode]) -> None:
    """Run back, and tell the listeners of each leaf's gradient as soon as it is whole."""
    countdown = Countdown(_reached(outputs))
    told = tuple(listeners)
    for listener in told:
        listener.begin(countdown.leaves)

    def visited(function: FunctionNode) -> None:
        for node in countdown.visited(function):
            leaf = run.settle(node)
            for listener in told if leaf is not None else ():
                listener.ready(leaf)

    run.run(None, visited)
    for listener in told:
        listener.end()


def grad(
    outputs: Sequence[Variable],
    inputs: Sequence[Variable],
    grad_outputs: Sequence[Any] | None = None,
    grad_inputs: Sequence[Any] | None = None,
    set_grad: bool = False,
    retain_grad: bool = False,
    enable_double_backprop: bool = False,
    loss_scale: float | None = None,
) -> list[Variable | None]:
    """The gradients of `outputs` with respect to `inputs`: a variable, or None where there is none, for each.

    Nobody's `grad` is touched unless `set_grad`; only what lies between inputs and outputs is visited. `grad_outputs`
    are start gradients (None: ones for a single element, or the output's own `grad`), `grad_inputs` are added. Raises
    as assignment to `grad` where one of either does not fit, and `TypeError` for a variable in place of a list, and
    inside a fused function.
    """
    _check_lists(outputs, inputs, grad_outputs, grad_inputs)
    for x, g in zip(inputs, grad_inputs or ()):
        if g is not None:
            x._fitting(as_variable(g)._known())
    wanted = {x.node for x in inputs}
    run = _Pass(enable_double_backprop, retain_grad, wanted)
    for y, g in zip(outputs, grad_outputs or [None] * len(outputs)):
        run.begin(y.node, _start(y, g, loss_scale))
    with held("enable_backprop", enable_double_backprop):
        run.run(_between([y.node for y in outputs], wanted))
        found = [run.grads.get(x.node) for x in inputs]
        for i, g in enumerate(grad_inputs or ()):
            if g is not None:
                own = _raw_or_variable(g, enable_double_backprop)
                found[i] = run.given(own) if found[i] is None else run.sum(found[i], own)
    run.store_passed()
    result = [g if g is None or isinstance(g, Variable) else Variable(run.own(g)) for g in found]
    if set_grad:
        for x, g in zip(inputs, result):
            x._grad = g
    return result


def _check_lists(outputs: Any, inputs: Any, grad_outputs: Any, grad_inputs: Any) -> None:
    for name, of, given in (("grad_outputs", outputs, grad_outputs), ("grad_inputs", inputs, grad_inputs)):
        if given is not None and not isinstance(given, (list, tuple)):
            raise TypeError(complain(f"grad: {name}", type(given).__name__, "a list, or None"))
        if not isinstance(of, (list, tuple)):
            of_name = name[len("grad_") :]
            hint = f"[{of_name[:-1]}]"
            raise TypeError(complain(f"grad: {of_name}", type(of).__name__, "a list of variables", hint))
        if given is not None and len(given) != len(of):
            raise ValueError(complain(f"backward: {name}", f"{len(given)}", f"{len(of)}, one for each"))
    for x in (*outputs, *inputs):
        if not isinstance(x, Variable):
            raise TypeError(complain("backward: outputs and inputs", type(x).__name__, "lists of variables"))
        x._expect_graph()


def _raw_or_variable(g: Any, double: bool) -> Any:
    variable = as_variable(g)
    return variable if double else variable._data


def _start(y: Variable, given: Any, loss_scale: float | None) -> Any:
    """The gradient to start from. Raises `RuntimeError` when a variable of several elements has none."""
    if given is not None:
        start = given if isinstance(given, Variable) else arrays.plain(given, "grad_outputs")
        y._fitting(start._known() if isinstance(start, Variable) else start)
        return start
    if y._grad is not None:
        return y._grad
    data = y._known()
    if loss_scale is not None:
        ranges.check("backward", "a number", loss_scale=loss_scale)
    if data.size != 1:
        head = "backward: a start gradient must be set for a variable of more than one element"
        raise RuntimeError(complain(head, f"shape {y.shape}", "one element", "y.grad = ... first, or F.sum(y)"))
    if data.shape != ():
        text = f"backward from one element of shape {data.shape}: set grad, or make it 0-dimensional"
        warnings.warn(text, DeprecationWarning, stacklevel=4)
    return arrays.filled_like(data, 1 if loss_scale is None else loss_scale)


def _reached(outputs: list[VariableNode]) -> dict[FunctionNode, None]:
    """The functions on ways back from the outputs."""
    functions: dict[FunctionNode, None] = {}
    waiting = [node.creator_node for node in outputs if node.creator_node is not None]
    while waiting:
        function = waiting.pop()
        if function not in functions and function.inputs is not None:
            functions[function] = None
            waiting += [x.creator_node for x in function.inputs if x.creator_node is not None]
    return functions


def _between(outputs: list[VariableNode], wanted: set[VariableNode]) -> set[FunctionNode]:
    """The functions on ways from the wanted nodes to the outputs."""
    found: set[FunctionNode] = set()
    for function in sorted(_reached(outputs), key=lambda f: f.rank):
        if any(x in wanted or x.creator_node in found for x in function.inputs):
            found.add(function)
    return found


class _Pass:
    """One run back. `grads` are the gradients that nodes have so far: in the end those of leaves and `wanted` nodes.

    Gradients are variables if `double`. With `retain` those of nodes on the way are noted too.
    """

    def __init__(self, double: bool, retain: bool, wanted: set[VariableNode] | None = None) -> None:
        self.double = double
        self.grads: dict[VariableNode, Any] = {}
        self._retain = retain
        self._passed: list[tuple[VariableNode, Any]] = []
        self._wanted = wanted or ()
        self._heap: list[tuple[int, int, FunctionNode]] = []
        self._seen: set[int] = set()
        self._numbers = itertools.count()
        self._given: dict[int, tuple[Any, list[Any]]] = {}  # by what keeps it: arrays that others have

    def begin(self, node: VariableNode, start: Any) -> None:
        """Start at a node from a gradient."""
        raw = start._data if isinstance(start, Variable) and not self.double else start
        raw = Variable(raw) if self.double and not isinstance(raw, Variable) else raw
        self._add(node, self.given(raw))

    def given(self, g: Any) -> Any:
        """A gradient that is a caller's, and stays it."""
        if not self.double:
            self._beside(g).append(g)
        return g

    def _add(self, node: VariableNode, g: Any) -> None:
        before = self.grads.get(node)
        self.grads[node] = g if before is None else self.sum(before, g)
        function = node.creator_node
        if before is None and function is not None and id(function) not in self._seen:
            self._seen.add(id(function))
            heapq.heappush(self._heap, (-function.rank, next(self._numbers), function))

    def sum(self, a: Any, b: Any) -> Any:
        """The sum of two gradients, which stay as they are."""
        if self.double:
            return as_variable(a) + as_variable(b)
        a = a._data if isinstance(a, Variable) else a
        return arrays.added(a, b._data if isinstance(b, Variable) else b)

    def store_passed(self) -> None:
        """Give the variables on the way the gradients that were noted."""
        for node, g in self._passed:
            variable = node.variable()
            if variable is not None:
                variable._grad = self.own(g)

    def own(self, g: Any) -> Any:
        """A gradient in memory of its own, so that who has it may write there: copied where its elements share memory,
        or it shares some with another that was given away, or with one to start from. Those of `double` stay."""
        if g is None or isinstance(g, Variable):
            return g
        beside = self._beside(g)
        strides = g.strides
        repeats = 0 in strides and any(s == 0 and n > 1 for s, n in zip(strides, g.shape))
        if repeats or (beside and any(arrays.meet(g, other) for other in beside)):
            g = arrays.copied(g)
            beside = self._beside(g)
        beside.append(g)
        return g

    def _beside(self, g: Any) -> list[Any]:
        """The arrays that others have of the memory of a gradient."""
        keeper = arrays.keeper(g)
        return self._given.setdefault(id(keeper), (keeper, []))[1]

    def settle(self, node: VariableNode) -> Variable | None:
        """Give a leaf the gradient that was collected for it, if there is one. Returns the leaf, if so."""
        variable = node.variable()
        if node not in self.grads or node.creator_node is not None or variable is None:
            return None
        g = self.grads.pop(node)
        variable._grad = self.own(g) if variable._grad is None else self.sum(variable._grad, g)
        return variable

    def run(self, allowed: set[FunctionNode] | None, visited: Callable[[FunctionNode], None] | None = None) -> None:
        """Visit functions until none is left; of `allowed` only, if that is given. `visited` is told of each."""
        debug = lookup("debug")
        while self._heap:
            _, _, function = heapq.heappop(self._heap)
            if allowed is None or function in allowed:
                self._visit(function, allowed, debug)
                if visited is not None:
                    visited(function)

    def _visit(self, function: FunctionNode, allowed: set[FunctionNode] | None, debug: bool) -> None:
        grads = self.grads
        nodes = [reference() for reference in function.outputs]
        arrived = tuple([None if node is None else grads.get(node) for node in nodes])
        for node, g in zip(nodes, arrived):
            if g is not None and node not in self._wanted:
                del grads[node]
                if self._retain:
                    self._passed.append((node, g))
        inputs = function.inputs
        if inputs is None:
            return
        targets = tuple([i for i, x in enumerate(inputs) if x.requires_grad])
        if allowed is not None:
            targets = tuple([i for i in targets if self._goes(inputs[i], allowed)])
        if not targets:
            return
        found, added = self._gradients(function, targets, arrived)
        replaced: set[VariableNode] = set()
        for i, g in zip(targets, found):
            if g is None:
                continue
            raw, node = (g._data if self.double else g), inputs[i]
            check_gradient(function, i, raw)
            if debug:
                refuse_nan(function.label, "the gradient of input", i, raw)
            if added and node in grads and node not in replaced:
                grads[node] = g
            else:
                self._add(node, g)
            replaced.add(node)

    def _goes(self, node: VariableNode, allowed: set[FunctionNode]) -> bool:
        return node in self._wanted or node.creator_node in allowed

    def _gradients(self, function: FunctionNode, targets: tuple[int, ...], arrived: tuple) -> tuple[Any, bool]:
        watching = hooks.watching(function)
        if watching:
            data = tuple(arrays.presented(x.data) for x in function.inputs)
            seen = tuple(g if isinstance(g, Variable) else arrays.presented(g) for g in arrived)
        for hook in watching:
            hook.backward_preprocess(function, data, seen)
        given: set[VariableNode] = set()

        def present(i: int) -> Any:
            node = function.inputs[i]
            first = node not in given
            given.add(node)
            return self.grads.get(node) if first else None

        result = function._input_gradients(targets, arrived, present, self.double)
        for hook in watching:
            hook.backward_postprocess(function, data, seen)
        return result
