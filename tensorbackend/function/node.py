# SPDX-License-Identifier: Apache-2.0
"""Function nodes: what users derive differentiable functions from, and what a graph consists of.

A node object is one application of a function. `apply` runs `forward` on the arrays of its inputs, and ties inputs and
outputs together where a gradient may be asked for; `backward` is written with variables and differentiable functions.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import DTypeError, KeyRefused, ShapeError, complain, nearest
from tensorbackend.function import arrays, hooks, type_check
from tensorbackend.function.config import lookup
from tensorbackend.function.variable import Variable, VariableNode, as_variable
from tensorbackend.graph.optree import OpTreeNode

__all__ = ["FunctionNode"]

_new = object.__new__
_ref = weakref.ref


class FunctionNode:
    """A differentiable function, applied once: `y, = MyFunction(...).apply((x,))`.

    Subclasses define `forward(self, inputs)`, or both `forward_cpu` and `forward_gpu`: a tuple of arrays in, a tuple of
    arrays out. `backward(self, target_input_indexes, grad_outputs)` gets variables (None for an output without a
    gradient) and gives one variable or None for each target index, or for each input. `check_type_forward` may check
    the inputs' types and shapes. What `forward` marks by `retain_inputs` and `retain_outputs`, `backward` finds with
    `get_retained_inputs` and `get_retained_outputs`.
    """

    inputs: tuple[VariableNode, ...] | None = None
    outputs: tuple[Any, ...] | None = None
    rank = 0
    local_function_hooks: dict[str, Any] | None = None
    _applied = False
    _retained_inputs: tuple[int, ...] | None = None
    _retained_outputs: tuple[int, ...] | None = None
    _output_data: tuple[Any, ...] | None = None
    _missed: str | None = None  # what backward asked for, and forward did not retain

    @property
    def label(self) -> str:
        """The function's name in errors and hooks."""
        return type(self).__name__

    def __call__(self, *inputs: Any) -> Any:
        raise TypeError(complain(f"{self.label}: a function node is not called", "", "", "use .apply((x, ...))"))

    # What subclasses define

    def check_type_forward(self, in_types: Any) -> None:
        """Check the inputs' types with `type_check.expect`; by default everything is taken."""

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The outputs' arrays. By default `forward_gpu` for tensors of a CUDA backend, `forward_cpu` for all else."""
        backend = arrays.backend_of(arrays.plain(inputs[0]))
        if backend is not None and backend.device_type == 1:
            return self.forward_gpu(inputs)
        return arrays.on_host(self.label, self.forward_cpu, inputs, backend)

    def forward_cpu(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The outputs' arrays where all arrays are NumPy's."""
        raise NotImplementedError(complain(f"{self.label}: no forward for the CPU", "", "forward or forward_cpu"))

    def forward_gpu(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The outputs' arrays where all arrays are tensors of a CUDA backend."""
        raise NotImplementedError(complain(f"{self.label}: no forward for the GPU", "", "forward or forward_gpu"))

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> Sequence[Any]:
        """The gradients of the inputs at `target_input_indexes`; inputs of integers have none. Raises
        `NotImplementedError` where a subclass does not define it, and one is of floats."""
        if any(dtypes.is_float(self.inputs[i].dtype) for i in target_input_indexes):
            hint = "return None for inputs without a gradient"
            raise NotImplementedError(complain(f"{self.label}: no backward", "", "backward", hint))
        return (None,) * len(target_input_indexes)

    def backward_accumulate(
        self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...], grad_inputs: tuple[Any, ...]
    ) -> Sequence[Any]:
        """The gradients as `backward` gives them, added to those that are there already (None: none)."""
        found = _for_targets(self, target_input_indexes, self.backward(target_input_indexes, grad_outputs))
        return tuple(b if a is None else a if b is None else a + b for a, b in zip(grad_inputs, found))

    # Retention

    def retain_inputs(self, indexes: Iterable[int]) -> None:
        """Have these inputs kept for `backward`; called in `forward`. Raises `TypeError` for what is no sequence."""
        self._retained_inputs = indexes_of(f"{self.label}: retain_inputs", indexes)

    def retain_outputs(self, indexes: Iterable[int]) -> None:
        """Have these outputs kept for `backward`; called in `forward`. Raises `TypeError` for what is no sequence."""
        self._retained_outputs = indexes_of(f"{self.label}: retain_outputs", indexes)

    def get_retained_inputs(self) -> tuple[Variable, ...]:
        """The variables of the retained inputs, in the order of the marks; the graph's own, so gradients go through."""
        kept = self._retained_inputs
        if kept is None:
            self._missed, kept = "inputs", ()
        return tuple(self.inputs[i].get_variable() for i in kept) if self.inputs is not None else ()

    def get_retained_outputs(self) -> tuple[Variable, ...]:
        """The variables of the retained outputs, in the order of the marks, linked to this node."""
        kept, data = self._retained_outputs, self._output_data
        if kept is None:
            self._missed, kept = "outputs", ()
        return () if data is None else tuple(self._retained_output(i, x) for i, x in zip(kept, data))

    def _retained_output(self, index: int, data: Any) -> Variable:
        node = self.outputs[index]()
        found = None if node is None else node.variable()
        if found is not None and found._data is data:
            return found
        made = Variable(data)
        if node is None:
            made._node = node = VariableNode(made, self, self.rank + 1)
            self.outputs = (*self.outputs[:index], _ref(node), *self.outputs[index + 1 :])
        else:
            made._node = node
            node.variable = _ref(made)
        return made

    # Running

    def apply(self, inputs: Sequence[Any]) -> tuple[Variable, ...]:
        """Run the function on variables and arrays: a tuple of variables.

        Raises `TypeError` without any and for what is no tuple or list, `RuntimeError` the second time.
        """
        if self._applied:
            raise RuntimeError(
                complain(f"{self.label}: applied a second time", "one object", "an object for each application")
            )
        self._applied = True
        if not isinstance(inputs, (tuple, list)):
            given = type(inputs).__name__
            raise TypeError(complain(f"{self.label}: inputs of apply", given, "a tuple", "use .apply((x, ...))"))
        variables = [x if isinstance(x, Variable) else as_variable(x) for x in inputs]
        data = tuple([v._known() for v in variables])
        if not data:
            raise TypeError(complain(f"{self.label}: no inputs", "()", "one array or more"))
        outputs = self._outputs(data)
        return self._linked(variables, outputs)

    def _outputs(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        """The outputs as plain arrays, with all that goes on around `forward`."""
        arrays.only_family(self.label, data)
        if isinstance(data[0], OpTreeNode):
            raise TypeError(complain(f"fused: {self.label} is no tree", "", "functions that are trees, as most of F"))
        if lookup("type_check"):
            type_check.check(self, data)
        watching = hooks.watching(self)
        seen = tuple(map(arrays.presented, data)) if watching else ()
        for hook in watching:
            hook.forward_preprocess(self, seen)
        outputs = self._run_forward(data)
        for hook in watching:
            hook.forward_postprocess(self, seen)
        if lookup("debug"):
            for i, y in enumerate(outputs):
                refuse_nan(self.label, "output", i, y)
        return outputs

    def _run_forward(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        """What `forward` gives, checked and plain."""
        with arrays.together(data[0]):
            outputs = self.forward(tuple(map(arrays.presented, data)))
            if not isinstance(outputs, tuple):
                given = type(outputs).__name__
                raise TypeError(complain(f"{self.label}: forward must return a tuple", given, "a tuple of arrays"))
            found = tuple([arrays.plain(y, f"{self.label}: an output of forward") for y in outputs])
        arrays.only_family(f"{self.label}: outputs of forward", found or data)
        return found

    def _linked(self, variables: Sequence[Variable], outputs: tuple[Any, ...]) -> tuple[Variable, ...]:
        """The outputs as variables, which know this node if a graph is recorded."""
        wanted = False
        for v in variables:
            wanted = wanted or v._requires_grad
        recorded = wanted and lookup("enable_backprop")
        linked = self._linked_natively(variables, outputs) if recorded else None
        if linked is not None:
            return linked
        made = []
        for y in outputs:
            v = _new(Variable)
            v._data, v._node, v._grad, v._requires_grad, v._name = y, None, None, wanted, None
            made.append(v)
        if recorded:
            self._record(variables, made)
        return tuple(made)

    def _linked_natively(self, variables: Sequence[Variable], outputs: Sequence[Any]) -> tuple[Variable, ...] | None:
        """The same where a graph is recorded, made by native code; None where Python makes them."""
        return None

    def _record(self, variables: Sequence[Variable], made: list[Variable]) -> None:
        inputs = self._retained_inputs = self._places("inputs", self._retained_inputs, len(variables))
        outputs = self._retained_outputs = self._places("outputs", self._retained_outputs, len(made))
        self._tie(variables, made, inputs or (), outputs or ())

    def _tie(self, variables: Sequence[Variable], made: list[Variable], inputs: tuple[int, ...],
             outputs: tuple[int, ...]) -> None:  # fmt: skip
        """Make this node the creator of the variables made, and keep the arrays of these inputs and outputs."""
        self.inputs = nodes = tuple([v._node or v.node for v in variables])
        self.rank = rank = nodes[0].rank if len(nodes) == 1 else max([node.rank for node in nodes])
        references = []
        for v in made:
            v._node = node = VariableNode(v, self, rank + 1)
            references.append(_ref(node))
        self.outputs = tuple(references)
        for i in inputs:
            nodes[i].data = variables[i]._data
        if outputs:
            self._output_data = tuple([made[i]._data for i in outputs])

    def _places(self, what: str, marks: tuple[int, ...] | None, count: int) -> tuple[int, ...] | None:
        """The retained inputs or outputs, counted from 0. Raises `IndexError` for one that is not there."""
        if not marks or 0 <= min(marks) <= max(marks) < count:
            return marks
        if not -count <= min(marks) <= max(marks) < count:
            raise IndexError(complain(f"{self.label}: retain_{what}", f"{marks} of {count}", f"0 to {count - 1}"))
        return tuple([i % count for i in marks])

    # Going back

    def _input_gradients(self, targets: tuple[int, ...], grads: tuple[Any, ...], present: Any, double: bool) -> Any:
        """The gradients at `targets`: variables if `double`, else plain arrays. `present(i)` is that of input i so far.

        Returns (gradients, whether they have been added to those present).
        """
        wrapped = tuple([g if g is None or isinstance(g, Variable) else Variable(g) for g in grads])
        accumulates = type(self).backward_accumulate is not FunctionNode.backward_accumulate
        if accumulates:
            before = tuple(_wrapped(present(i)) for i in targets)
            found = self._told(self.backward_accumulate, targets, wrapped, before)
        else:
            found = self._told(self.backward, targets, wrapped)
        chosen = _for_targets(self, targets, found)
        return (chosen if double else tuple([None if g is None else g._data for g in chosen])), accumulates

    def _told(self, method: Any, *arguments: Any) -> Any:
        """What a user's backward gives. Raises `RuntimeError` where it fails for want of what was not retained."""
        try:
            return method(*arguments)
        except (IndexError, ValueError) as error:
            if self._missed is None:
                raise
            head = f"{self.label}: {method.__name__} asked for retained {self._missed}"
            hint = f"self.retain_{self._missed}(indexes) in forward"
            raise RuntimeError(complain(head, "none: forward retained none", "", hint)) from error

    def unchain(self) -> None:
        """Cut the graph at this node: outputs forget it, and it forgets its inputs."""
        for reference in self.outputs or ():
            node = reference()
            if node is not None:
                node.creator_node, node.rank = None, 0
        self.inputs = None

    # Hooks

    def add_hook(self, hook: Any, name: str | None = None) -> None:
        """Call a hook for this node alone. Raises `KeyError` for a name that is taken, `TypeError` for no hook."""
        own = self.local_function_hooks or {}
        key = name or hooks.name_of(hook)
        if key in own:
            raise KeyRefused(complain(f"{self.label}: a hook of this name", repr(key), "another name"))
        hook.added(self)
        self.local_function_hooks = {**own, key: hook}

    def delete_hook(self, name: str) -> None:
        """Take a hook of this node away. Raises `KeyError` for an unknown name."""
        own = dict(self.local_function_hooks or {})
        if name not in own:
            raise KeyRefused(complain(f"{self.label}: no such hook", repr(name), nearest(name, own)))
        own.pop(name).deleted(self)
        self.local_function_hooks = own

    def __repr__(self) -> str:
        return f"<function {self.label}>"


def indexes_of(head: str, indexes: Any) -> tuple[int, ...]:
    """A sequence of indexes as a tuple. Raises `TypeError` for what is none."""
    if not isinstance(indexes, Iterable):
        raise TypeError(complain(head, f"{type(indexes).__name__} {indexes!r}", "a sequence of indexes", "(0,)"))
    return tuple(indexes)


def _wrapped(g: Any) -> Any:
    return g if g is None or isinstance(g, Variable) else Variable(g)


def _for_targets(function: FunctionNode, targets: tuple[int, ...], found: Any) -> tuple[Any, ...]:
    """The entries of what `backward` returned for the target indexes."""
    label, count = function.label, len(function.inputs)
    if not isinstance(found, (tuple, list)):
        given = type(found).__name__
        raise TypeError(complain(f"{label}: backward must return a tuple", given, "a tuple of variables and None"))
    if len(found) == count and count != len(targets):
        found = [found[i] for i in targets]
    if len(found) != len(targets):
        expected = f"{len(targets)}, for the inputs {targets}" + (f", or {count}" if count != len(targets) else "")
        raise ValueError(complain(f"{label}: backward returned a wrong number of gradients", str(len(found)), expected))
    for i, g in zip(targets, found):
        if g is not None and not isinstance(g, Variable):
            given = f"{type(g).__name__} for input {i}"
            raise TypeError(complain(f"{label}: backward returned no variable", given, "a Variable or None"))
    return tuple(found)


def check_gradient(function: FunctionNode, index: int, raw: Any) -> None:
    """Raise `ShapeError` or `DTypeError` when a gradient is not as the input that it belongs to."""
    node = function.inputs[index]
    if raw.shape != node.shape:
        head = f"{function.label}: the gradient of input {index} has another shape than the input"
        raise ShapeError(complain(head, f"shape {raw.shape}", f"shape {node.shape}"))
    if raw.dtype != node.dtype:
        head = f"{function.label}: the gradient of input {index} has another dtype than the input"
        raise DTypeError(complain(head, str(raw.dtype), str(node.dtype)))


def refuse_nan(label: str, what: str, index: int, x: Any) -> None:
    """Raise `RuntimeError` when a plain array holds NaN."""
    values = x if type(x) is np.ndarray else x.get()
    if dtypes.is_float(values.dtype) and np.isnan(values).any():
        raise RuntimeError(complain(f"{label}: NaN in {what} {index}", f"shape {values.shape}", "numbers"))


type_check.leave_out(FunctionNode.check_type_forward)
