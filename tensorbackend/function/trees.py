# SPDX-License-Identifier: Apache-2.0
"""Differentiable functions that are op-trees: written once, run as fused kernels, differentiated any number of times.

A `Rule` is such a function: `compute` makes trees of operands, and everything else follows. It runs when operands of a
new layout come (on placeholders, see `graph/templates.py`); a repeated call makes the same trees and launches them. The
gradient is a `Rule` too, made of the derivatives in the op table or of the rule's own `gradient`, so that its gradient
is one again. What backward has to keep is found out from what the gradient's trees read.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.errors import complain
from tensorbackend.function import arrays, hooks, type_check
from tensorbackend.function.config import lookup
from tensorbackend.function.node import FunctionNode, refuse_nan
from tensorbackend.function.variable import Variable, VariableNode, as_variable
from tensorbackend.graph import indexing
from tensorbackend.graph.autodiff import fitted
from tensorbackend.graph.keys import exact
from tensorbackend.graph.optree import Operators, OpTreeNode, nodes_of, source
from tensorbackend.graph.parts import Parts, gathered, roots_and_starts
from tensorbackend.graph.symbol import is_symbol
from tensorbackend.graph.templates import Template, differentiate, opaque, placeholder

__all__ = ["Rule", "Traced", "TreeFunction", "differentiated", "normal", "noting", "uniform"]

_NUMBERS = (bool, int, float)


class _Trace(threading.local):
    """How many random nodes this thread's trace has; the calls of rules on traced variables, if they are noted; and, if
    a gradient is to be differentiated, the rules' own gradients for results of such calls, by these nodes' ids."""

    draws = 0
    calls: list[tuple] | None = None
    rules: dict[int, Callable[[Any], list[tuple]]] | None = None


_trace = _Trace()


def _drawn(op: str, like: Any, shape: tuple[int, ...], halves: bool) -> OpTreeNode:
    chosen = ops.HALF_SOURCES.get((op, like.dtype.name)) if halves else None
    node = source(chosen or ops.OPS[op], like.structure.table, shape)
    node = node.__copy__()
    node.draw = _trace.draws
    _trace.draws += 1
    return node


def uniform(like: Any, shape: tuple[int, ...] | None = None, halves: bool = False) -> OpTreeNode:
    """Random numbers of [0, 1) in `compute`, drawn once a call: forward and backward see the same. With `halves` they
    are halves of the type of `like` where that is one: what is made of both stays so."""
    return _drawn("rand", like, like.shape if shape is None else shape, halves)


def normal(like: Any, shape: tuple[int, ...] | None = None) -> OpTreeNode:
    """Standard normal random numbers in `compute`, drawn once a call: forward and backward see the same. They are
    halves of the type of `like` where that is one."""
    return _drawn("randn", like, like.shape if shape is None else shape, True)


class Traced(Variable):
    """A variable that stands for a tree, which is its `_data`: what functions that are fused work on. `_calls` are the
    calls of the function that it is in."""

    __slots__ = ("_calls",)

    @classmethod
    def of(cls, tree: Any) -> Traced:
        """The variable of a tree."""
        made = object.__new__(cls)
        made._data, made._node, made._grad, made._requires_grad, made._name = tree, None, None, True, None
        made._calls = _trace.calls
        return made

    @property
    def is_here(self) -> bool:
        """Whether it is of the function that is traced now: not of one that calls this one."""
        return self._calls is _trace.calls

    def _known(self) -> Any:
        """The tree. Raises `TypeError` once the function is over: there never are numbers."""
        if _trace.calls is None:
            given, expected = "used outside of the function", "what the function returns"
            raise TypeError(complain("fused: a variable from inside", given, expected))
        return self._data

    @property
    def array(self) -> Any:
        """Refused: there are no numbers yet."""
        raise TypeError(complain("fused: a variable's array", "inside the function", "functions of variables"))

    data = array

    def unchain(self) -> None:
        """Refused: there is no graph yet."""
        hint = "with tb.no_backprop_mode(): ..."
        raise TypeError(complain("fused: unchain", "inside the function", "functions of variables", hint))

    unchain_backward = unchain

    def item(self, *arguments: Any, **keywords: Any) -> Any:
        """Refused: there are no numbers yet."""
        return self.array

    copydata = debug_print = to_device = item

    def backward(self, *arguments: Any, **keywords: Any) -> None:
        """Refused: there is no graph yet."""
        self._expect_graph()

    def _expect_graph(self) -> None:
        hint = "backward() of the result, or tb.grad, outside of it"
        raise TypeError(complain("fused: backward", "inside the function", "functions of variables", hint))

    def _expect_leaf(self) -> None:
        self.__reduce__()  # a copy's gradient would be another's


@contextlib.contextmanager
def _drawing_from(first: int) -> Iterator[None]:
    """A block whose first random node has this number; afterwards numbers go on as before it."""
    before, _trace.draws = _trace.draws, first
    try:
        yield
    finally:
        _trace.draws = before


@contextlib.contextmanager
def noting() -> Iterator[list[tuple]]:
    """A block in which calls of rules on traced variables are noted: (rule, params, operands, results, draws before),
    operands and results as trees."""
    before, _trace.calls = _trace.calls, []
    try:
        yield _trace.calls
    finally:
        _trace.calls = before


@contextlib.contextmanager
def _ruled() -> Iterator[dict[int, Callable[[Any], list[tuple]]]]:
    """A block in which the gradients of rules that are called on traced variables are kept beside their results."""
    before = _trace.rules
    _trace.rules = {} if before is None else before
    try:
        yield _trace.rules
    finally:
        _trace.rules = before


def _keep_rule(rules: dict[int, Callable[[Any], list[tuple]]], call: tuple) -> None:
    """Have a call's own gradient hold for its results, which trees of gradients read: the ops' may differ, as where
    operands are equal. A result that is part of an operand is that operand's maker's."""
    rule, _, taken, given, _ = call
    if rule.gradient is None:
        return
    below = {id(node) for x in taken if isinstance(x, OpTreeNode) for node in nodes_of(x)}

    def gradients(i: int, g: Any) -> list[tuple]:
        return list(zip(taken, differentiated(*call, [g if k == i else None for k in range(len(given))])))

    rules.update((id(y), functools.partial(gradients, i)) for i, y in enumerate(given) if id(y) not in below)


def differentiated(rule: Any, params: dict[str, Any], taken: Sequence[Any], given: Sequence[Any], draws: int,
                   grads: Sequence[Any]) -> list[Any]:  # fmt: skip
    """The gradients at the operands of a noted call, of those at its results: trees, None for numbers. What the call
    drew, its gradient draws again: that of a fused function calls the function."""
    trees = [x for x in taken if isinstance(x, OpTreeNode)]
    if rule.gradient is None:
        by_tree = dict(zip(map(id, trees), differentiate(given, [None] * len(given), grads, trees)))
        return [by_tree.pop(id(x), None) for x in taken]
    single = len(given) == 1
    g, y = (grads[0], given[0]) if single else (tuple(grads), tuple(given))
    with _drawing_from(draws):
        found = rule.gradient(g, y, *taken, **params)
    return [gx if gx is None or not isinstance(x, OpTreeNode) else fitted(gx, x) for x, gx in zip(taken, found)]


class Rule:
    """A differentiable function of arrays and numbers: `rule(x, y, axis=1)` gives a variable, or a tuple of them.

    `compute(*operands, **params)` gives a tree, or a tuple of trees, of operands that are nodes and numbers; a `Parts`
    in place of a tree is written part by part.
    `gradient(g, y, *operands, **params)`, if given, makes the operands' gradients (None: none) of those of the outputs
    and the outputs, in place of the op table's rules; `g` and `y` are tuples if `compute` gives one. `check(in_types,
    **params)` checks types with `type_check`, `names` are the operands' names there. NumPy's numbers are as
    Python's: they change no type. `batch_last` puts the first axis of outputs last in memory, as the engine's
    convolutions make them; other outputs lie as operands of their shape do.
    """

    def __init__(self, name: str, compute: Callable[..., Any], gradient: Callable[..., Any] | None = None,
                 check: Callable[..., None] | None = None, names: Sequence[str] = (),
                 batch_last: bool = False) -> None:  # fmt: skip
        self.name = name
        self.batch_last = batch_last
        self.compute = compute
        self.gradient = gradient
        self.check = check
        self.names = tuple(names)

    def __call__(self, *operands: Any, **params: Any) -> Any:
        if params:
            params = {name: x.item() if isinstance(x, np.generic) else x for name, x in params.items()}
        if _trace.calls is not None and any(isinstance(x, Traced) for x in operands):
            return self._traced(operands, params)
        node = TreeFunction(self, params)
        made = node.run(operands)
        return made[0] if node.form.single else made

    def expect(self, operands: Sequence[Any], params: dict[str, Any]) -> None:
        """Run the check, which sees operands but for numbers. What it refuses it looks at once more with numbers as
        arrays without axes: then the names in its words are those of the operands."""
        if self.check is None or not lookup("type_check"):
            return
        types = [None if isinstance(x, _NUMBERS) else (x.shape, x.dtype) for x in operands]
        arrays_only = [t for t in types if t is not None]
        try:
            return self._expect(arrays_only, params)
        except type_check.InvalidType as error:
            refused = error
        if len(arrays_only) < len(types):
            self._expect([t or ((), arrays_only[0][1]) for t in types], params)
        raise refused

    def _expect(self, types: Sequence[tuple[tuple[int, ...], np.dtype]], params: dict[str, Any]) -> None:
        type_check.checked(self.name, lambda t: self.check(t, **params), types, self.names)

    def _traced(self, operands: Sequence[Any], params: dict[str, Any]) -> Any:
        """The result for trees, and a note of the call."""
        taken = [_tree_of(self.name, x) for x in operands]
        _only_family(self.name, [x for x in taken if isinstance(x, OpTreeNode)])
        self.expect(taken, params)
        draws = _trace.draws
        found = self.compute(*taken, **params)
        given = found if isinstance(found, tuple) else (found,)
        if any(isinstance(y, Parts) for y in given):
            raise TypeError(complain(f"fused: {self.name} is no tree", "", "functions that are trees, as most of F"))
        given = tuple(opaque(y) if any(y is x for x in taken) else y for y in given)
        _trace.calls.append((self if lookup("enable_backprop") else _cut, params, taken, given, draws))
        if _trace.rules is not None:
            _keep_rule(_trace.rules, _trace.calls[-1])
        made = tuple(map(Traced.of, given))
        return made if isinstance(found, tuple) else made[0]

    def __repr__(self) -> str:
        return f"<rule {self.name}>"


_cut = Rule("without a graph", lambda *operands: operands, lambda g, y, *operands, **params: (None,) * len(operands))
"""What is noted in place of a rule that is called where no graph is recorded: nothing flows through its results."""


def _tree_of(name: str, x: Any) -> Any:
    """An operand of a function that is fused, as a tree or a number."""
    if isinstance(x, Traced) and x.is_here:
        return x._data
    if isinstance(x, np.generic):
        return x.item()
    if isinstance(x, _NUMBERS):
        return x
    if isinstance(x, Variable) and x._requires_grad:
        head = f"fused: {name} of a variable that is no argument, and needs a gradient"
        raise TypeError(complain(head, repr(x.label), "an argument of the fused function, by position"))
    return opaque(arrays.tensor_of(as_variable(x)._known()))


def _only_family(name: str, trees: Sequence[OpTreeNode]) -> None:
    """Raise `TypeError` when NumPy arrays and tensors, or tensors of several backends, are mixed as operands."""
    backends = [x.backend for x in trees]
    if any(backend is not backends[0] for backend in backends):
        host = arrays.host_backend()
        given = " and ".join("numpy.ndarray" if b is host else f"tensor of {b!r}" for b in backends)
        raise arrays.different_kinds(f"fused: {name} of", given)


class _GradientRule:
    """The gradients of a rule at the inputs `targets`, as a rule: a function of what backward kept, and of the outputs'
    gradients that are `there`. `kept` are the numbers of the inputs and of the outputs that it reads."""

    check = None
    gradient = None
    names = ()

    def __init__(self, rule: Any, form: _Form, targets: tuple[int, ...], there: tuple[bool, ...], kept: tuple) -> None:
        self.name = rule.name if isinstance(rule, _GradientRule) else f"gradient of {rule.name}"
        self._rule = rule
        self._form = form
        self._targets = targets
        self._there = there
        self._kept = kept

    def output_types(self) -> list[np.dtype]:
        """The types of the gradients: those of the inputs."""
        return [self._form.layouts[i].dtype for i in self._targets]

    def output_orders(self) -> list[tuple[int, ...]]:
        """How axes of the gradients lie in memory: as those of the inputs."""
        return [_order(self._form.layouts[i]) for i in self._targets]

    def compute(self, *operands: Any) -> tuple[Any, ...]:
        """The gradients' trees."""
        rule, form = self._rule, self._form
        rest = iter(operands)
        inputs = self._stand_ins(form.layouts, self._kept[0], rest)
        outputs = self._stand_ins(form.results, self._kept[1], rest)
        starts = [next(rest) if there else None for there in self._there]
        if rule.gradient is not None:
            return self._by_rule(inputs, outputs, starts)
        with _ruled() as rules:
            found = rule.compute(*_filled(form.pattern, inputs), **form.params)
        values = [y if i in self._kept[1] else None for i, y in enumerate(outputs)]
        traced = roots_and_starts(found if isinstance(found, tuple) else (found,), values, starts)
        return tuple(differentiate(*traced, [inputs[i] for i in self._targets], rules))

    def _by_rule(self, inputs: list[Any], outputs: list[Any], starts: list[Any]) -> tuple[Any, ...]:
        form = self._form
        g, y = (starts[0], outputs[0]) if form.single else (tuple(starts), tuple(outputs))
        operands = _filled(form.pattern, inputs)
        found = self._rule.gradient(g, y, *operands, **form.params)
        by_operand = dict(zip((id(x) for x in operands), found))
        targets = [inputs[i] for i in self._targets]
        gradients = [by_operand[id(x)] if dtypes.is_float(x.dtype) else None for x in targets]
        return tuple(None if gx is None else fitted(gx, x) for x, gx in zip(targets, gradients))

    @staticmethod
    def _stand_ins(layouts: Sequence[Any], kept: tuple[int, ...], rest: Any) -> list[Any]:
        """The operands that were kept, and nodes of which only the layout is known for the others."""
        return [next(rest) if i in kept else s and opaque(placeholder(s, 1000 + i)) for i, s in enumerate(layouts)]


class _Form:
    """What is known of a rule for operands of certain layouts: the template of its trees, how outputs are made
    (`layouts` of the inputs, `results` of the outputs), and the rules of its gradients. The first `optional` inputs are
    left out where no tree reads them. `checked`: types were looked at when it was made."""

    checked = True

    def __init__(self, rule: Any, layouts: tuple[Any, ...], pattern: tuple[Any, ...], params: dict[str, Any],
                 optional: int = 0) -> None:  # fmt: skip
        self.rule, self.params = rule, params
        self.backend = layouts[0].table.backend
        self.link = layouts[0].table.linker(Variable, VariableNode)
        tensors = [placeholder(s, i) for i, s in enumerate(layouts)]
        with _drawing_from(0):  # a function that is traced may call others, on arrays that are no arguments
            found = rule.compute(*_filled(pattern, [opaque(t) for t in tensors]), **params)
            self.draws = _trace.draws
        self.single = not isinstance(found, tuple)
        made = [gathered(y) for y in ((found,) if self.single else found)]
        flat = [tree for y in made for tree in ([t for _, t in y.parts] if isinstance(y, Parts) else [_kept_axes(y)])]
        self.template = Template(flat, tensors, optional)
        self.layouts = tuple(layouts[i] for i in self.template.taken)
        self.pattern = (None,) * len(self.layouts) if optional else pattern
        self._place_outputs(made)
        self._gradients: dict[tuple, _GradientRule] = {}
        self._kept: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def _place_outputs(self, made: list[Any]) -> None:
        """Find the outputs' layouts, and which of the template's trees are written where."""
        rule, traced = self.rule, iter(zip(self.template.roots, self.template.structures))
        types = rule.output_types() if isinstance(rule, _GradientRule) else [None] * len(made)
        self.results, self._outputs = [], []
        for i, (y, dtype) in enumerate(zip(made, types)):
            if isinstance(y, Parts):
                layout = _dense(self.layouts[0].table, dtype or y.dtype, y.shape, self._order_of(i, y.shape, True))
                writes = _writes(y, [next(traced) for _ in y.parts])
                self._outputs.append((None, layout, layout.extent[1], writes, None))
                self.results.append(layout)
                continue
            number, structure = next(traced)
            layout = view = None
            if structure is not None and (structure.op or (dtype is not None and dtype != structure.dtype)):
                kind, shape = dtype or structure.dtype, y.shape
                layout = _dense(structure.table, kind, shape, self._order_of(i, shape))
                view = None if shape == structure.shape else _dense(structure.table, kind, structure.shape, None)
            self._outputs.append((number, layout, layout.extent[1] if layout else 0, None, view))
            self.results.append(layout or structure)
        self._several = sum(layout is not None for _, layout, *_ in self._outputs) > 1
        number, layout, nbytes, *others = self._outputs[0] if len(self._outputs) == 1 else (None,) * 5
        self._one = (number, layout, nbytes) if layout is not None and others == [None, None] else None

    def _order_of(self, i: int, shape: tuple[int, ...], parts: bool = False) -> tuple[int, ...] | None:
        """In which order axes of output i lie in memory: a gradient's as its input's; else as the rule says, or as
        those of the first operand of the output's shape, or (of `parts`) of all operands that have its rank; None is C
        order."""
        if isinstance(self.rule, _GradientRule):
            return self.rule.output_orders()[i]
        if self.rule.batch_last:
            return (*range(1, len(shape)), 0)
        for s in self.layouts:
            if s.shape == shape:
                return _order(s)
        orders = {_order(s) for s in self.layouts if len(s.shape) == len(shape)} if parts else ()
        return orders.pop() if len(orders) == 1 else None

    @property
    def kept(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which inputs and outputs backward needs, by number: those that the trees of all gradients read."""
        if self._kept is None:
            count = len(self.layouts)
            floats = tuple(i for i, s in enumerate(self.layouts) if dtypes.is_float(s.dtype))
            results = tuple(i for i, s in enumerate(self.results) if s is not None)
            there = tuple(s is not None for s in self.results)
            outputs = [self.results[i] for i in results]
            every = (tuple(range(count)), results)
            form = _Form(_GradientRule(self.rule, self, floats, there, every), (*self.layouts, *outputs, *outputs),
                         (None,) * (count + 2 * len(results)), {}, count + len(results))  # fmt: skip
            taken = [i for i in form.template.taken if i < count + len(results)]
            self._kept = (tuple(i for i in taken if i < count), tuple(results[i - count] for i in taken if i >= count))
            # Where all gradients are asked for, of outputs' gradients that lie as the outputs do, it is this form.
            form.rule = self.gradient(floats, there)
            form.backend.structures.remember(_key(form.rule, (), (), form.layouts), form)
        return self._kept

    def gradient(self, targets: tuple[int, ...], there: tuple[bool, ...]) -> _GradientRule:
        """The rule of the gradients at inputs, where some outputs have gradients."""
        found = self._gradients.get((targets, there))
        if found is None:
            found = self._gradients[targets, there] = _GradientRule(self.rule, self, targets, there, self.kept)
        return found

    def run(self, tensors: Sequence[Any], draws: Sequence[int]) -> list[Any]:
        """The outputs for tensors of these layouts."""
        values = self.template.make(tensors, draws)
        if self._one is not None:  # one tree, written as it is
            number, layout, nbytes = self._one
            made = arrays.laid_out(self.backend, layout, nbytes)
            made[:] = values[number]
            return [made]
        if not self._several:
            return [self._output(values, *output) for output in self._outputs]
        with self.backend.fuse():
            return [self._output(values, *output) for output in self._outputs]

    def _output(self, values: list[Any], number: int | None, layout: Any, nbytes: int, writes: Any, view: Any) -> Any:
        if layout is None:
            return None if number is None else values[number]
        made = arrays.laid_out(self.backend, layout, nbytes)
        if writes is None:
            target = made if view is None else arrays.placed(self.backend, view, made.storage)
            target[:] = values[number]
            return made
        fill, added, places = writes
        if fill is not None:
            made[:] = fill
        for key, number in places:
            if added:
                view = made[key]
                view[:] = view + values[number]
            else:
                made[key] = values[number]
        return made


def _kept_axes(y: Any) -> Any:
    """A tree; where it is what was made of a reduction, without its axes, and then has one axis at most, what has them:
    it may share a kernel with others of its space."""
    if isinstance(y, OpTreeNode) and y.structure.op.name == "reshape" and len(y.shape) <= 1:
        (x,) = y.inputs
        if isinstance(x, OpTreeNode) and x.structure.op.kind in (ops.REDUCTION, ops.ELEMENTWISE) and x.size == y.size:
            return x
    return y


def _key(rule: Any, params: tuple, numbers: tuple, layouts: tuple[Any, ...]) -> tuple:
    """What a form is remembered by."""
    return ("tree", rule, params, numbers, layouts)


def _has_hash(x: Any) -> bool:
    try:
        hash(exact(x))
    except TypeError:
        return False
    return True


def _order(layout: Any) -> tuple[int, ...]:
    return indexing.memory_order(layout.shape, layout.strides)


def _dense(table: Any, dtype: np.dtype, shape: tuple[int, ...], order: tuple[int, ...] | None) -> Any:
    """The layout of fresh memory; axes in C order where `order` is None."""
    return table.tensor(dtype, shape, indexing.dense_strides(shape, order or tuple(range(len(shape)))), 0)


def _writes(y: Parts, traced: Sequence[tuple[int, Any]]) -> tuple[Any, bool, list[tuple[tuple, int]]]:
    """How `y` is written: the number for all of it, whether parts are added, and for each that has elements its index
    and the number of its tree."""
    places = [(key, number, structure) for (key, _), (number, structure) in zip(y.parts, traced)]
    return y.fill, y.added, [(key, number) for key, number, structure in places if 0 not in structure.shape]


def _filled(pattern: tuple[Any, ...], tensors: Sequence[Any]) -> list[Any]:
    """The operands: numbers as the pattern has them, tensors where it has None."""
    rest = iter(tensors)
    return [next(rest) if x is None else x for x in pattern]


class TreeFunction(FunctionNode):
    """The node of a `Rule`."""

    form: Any = None

    def __init__(self, rule: Any, params: dict[str, Any], draws: Sequence[int] | None = None) -> None:
        self.rule = rule
        self.params = params
        self.pattern: tuple[Any, ...] = ()
        self._draws = draws

    @property
    def label(self) -> str:
        """The rule's name."""
        return self.rule.name

    def run(self, operands: Sequence[Any]) -> tuple[Variable, ...]:
        """Apply the function to variables, arrays and numbers."""
        pattern, inputs = [], []
        for x in operands:
            if isinstance(x, Variable):
                pattern.append(None)
                inputs.append(x)
            elif isinstance(x, np.generic):  # first: NumPy's float64 is a float too, and its type would count
                pattern.append(x.item())
            elif isinstance(x, _NUMBERS):
                pattern.append(x)
            else:
                pattern.append(None)
                inputs.append(as_variable(x))
        self.pattern = tuple(pattern)
        if not inputs:
            self._refuse_numbers()
            return self.apply(inputs)
        self._applied = True
        return self._linked(inputs, self._outputs(tuple([v._known() for v in inputs])))

    def _outputs(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        pattern = self.pattern = self.pattern or (None,) * len(data)
        host = type(data[0]) is np.ndarray
        for x in data:
            if (type(x) is np.ndarray) is not host:
                arrays.only_family(self.label, data)
        tensors = [arrays.tensor_of(x) for x in data] if host else data
        table = tensors[0].structure.table
        watching = hooks.watching(self)
        seen = tuple(map(arrays.presented, data)) if watching else ()
        for hook in watching:
            hook.forward_preprocess(self, seen)
        form = self._form(table, tensors, pattern)
        if self._draws is None:
            self._draws = self._next_draws(form) if form.draws else ()
        outputs = form.run(tensors, self._draws)
        if host:
            outputs = [None if y is None else y._tensor for y in outputs]
        for hook in watching:
            hook.forward_postprocess(self, seen)
        if lookup("debug"):
            for i, y in enumerate(outputs):
                if y is not None:
                    refuse_nan(self.label, "output", i, y)
        return outputs

    def _next_draws(self, form: _Form) -> list[int]:
        """The numbers of this call's draws."""
        if _trace.calls is not None:  # they would be drawn once for good, and others in the gradient
            head = f"fused: {self.label} draws random numbers for what does not come of the arguments"
            raise TypeError(complain(head, "", "an argument of the fused function"))
        form.backend._flush()  # what waits in a `fuse` block was stated before, and draws before
        return [form.backend._next_draw() for _ in range(form.draws)]

    def _form(self, table: Any, tensors: Sequence[Any], pattern: tuple[Any, ...]) -> _Form:
        """What is known of the rule for operands like these."""
        layouts = tuple([t.structure for t in tensors])
        numbers: tuple[Any, ...] = ()
        if len(pattern) > len(tensors):
            if any(map(is_symbol, pattern)):  # a number of a capture, of which only the program knows the value
                self.form = self._new_form(tensors, layouts, pattern)
                return self.form
            numbers = tuple([None if x is None else exact(x) for x in pattern])
        params = tuple([(name, exact(x)) for name, x in self.params.items()]) if self.params else ()
        key = _key(self.rule, params, numbers, layouts)
        try:
            found = table.get(key)
        except TypeError:  # a parameter without a hash
            self._refuse_params()
            raise
        if found is None:
            found = table.remember(key, self._new_form(tensors, layouts, pattern))
        elif not found.checked and lookup("type_check"):
            self._check(tensors, pattern)
            found.checked = True
        self.form = found
        return found

    def _new_form(self, tensors: Sequence[Any], layouts: tuple[Any, ...], pattern: tuple[Any, ...]) -> _Form:
        self._refuse_params()
        self._check(tensors, pattern)
        made = _Form(self.rule, layouts, pattern, self.params)
        made.checked = bool(lookup("type_check"))
        return made

    def _refuse_numbers(self) -> None:
        """Refuse numbers without an array."""
        if self.pattern:
            given = ", ".join(f"{type(x).__name__} {x!r}" for x in self.pattern)
            raise TypeError(complain(f"{self.label}: no array among the operands", given, "an array or a variable"))

    def _refuse_params(self) -> None:
        """Refuse arrays, and else what has no hash, as parameters: what is remembered is remembered by numbers."""
        for name, x in self.params.items():
            if isinstance(x, (Variable, np.ndarray, Operators)) or not (is_symbol(x) or _has_hash(x)):
                given = f"{type(x).__name__} {x.shape}" if hasattr(x, "shape") else repr(x)
                hint = "float(x) of an array with one element; tuples in place of lists"
                raise TypeError(complain(f"{self.label}: {name}", given, "a number, a name or a tuple of them", hint))

    def _check(self, tensors: Sequence[Any], pattern: tuple[Any, ...]) -> None:
        arrays.only_family(self.label, tensors)
        if self.rule.check is not None:
            self.rule.expect(_filled(pattern, tensors), self.params)

    def _linked_natively(self, variables: Sequence[Variable], outputs: Sequence[Any]) -> tuple[Variable, ...] | None:
        if self.form.link is None:
            return None
        inputs, kept = self._retained_inputs, self._retained_outputs = self.form.kept
        return self.form.link(self, variables, outputs, inputs, kept)

    def _record(self, variables: Sequence[Variable], made: list[Variable]) -> None:
        inputs, outputs = self._retained_inputs, self._retained_outputs = self.form.kept
        self._tie(variables, made, inputs, outputs)

    def _input_gradients(self, targets: tuple[int, ...], grads: tuple[Any, ...], present: Any, double: bool) -> Any:
        rule = self.form.gradient(targets, tuple([g is not None for g in grads]))
        node = TreeFunction(rule, {}, self._draws)
        if double:
            there = [as_variable(g) for g in grads if g is not None]
            made = node.apply([*self.get_retained_inputs(), *self.get_retained_outputs(), *there])
            return tuple([None if v._data is None else v for v in made]), False
        inputs = self.inputs
        data = [inputs[i].data for i in self._retained_inputs]
        data += self._output_data or ()
        data += [g for g in grads if g is not None]
        return node._outputs(tuple(data)), False
