# SPDX-License-Identifier: Apache-2.0
"""Functions of the old style: `backward` works on arrays, so one backward pass goes through them, and no second."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

from tensorbackend.errors import complain
from tensorbackend.function import arrays
from tensorbackend.function.node import FunctionNode, indexes_of
from tensorbackend.function.variable import Variable

__all__ = ["Function", "FunctionAdapter"]


class Function:
    """A differentiable function of the old style, called once: `y = MyFunction(...)(x)`.

    Subclasses define `forward(self, inputs)` and `backward(self, inputs, grad_outputs)`, or their `_cpu` and `_gpu`
    forms, on tuples of arrays; `backward` gives an array or None for each input. All inputs are kept unless
    `retain_inputs` is called in `forward`; those that are not arrive in `backward` as None.
    """

    _node: FunctionAdapter | None = None
    _called: weakref.ref[FunctionAdapter] | None = None  # the node refers to the function, so that both are freed
    _kept: tuple[int, ...] | None = None
    _kept_outputs: tuple[int, ...] = ()
    output_data: tuple[Any, ...] = ()
    """In `backward`: the arrays of the outputs that `retain_outputs` names, None in place of the others."""

    @property
    def label(self) -> str:
        """The function's name in errors and hooks."""
        return type(self).__name__

    @property
    def node(self) -> FunctionAdapter:
        """The node of the graph that stands for the function, with all members of a `FunctionNode`.

        Raises `RuntimeError` when the function was called and no graph holds it.
        """
        if self._called is not None:
            found = self._called()
            if found is None:
                raise RuntimeError(complain(f"{self.label}: no node", "no graph", "an output that requires gradients"))
            return found
        if self._node is None:
            self._node = FunctionAdapter(self)
        return self._node

    # What it has of its node: a graph is walked by `variable.creator.inputs`, whatever the style of its functions

    @property
    def inputs(self) -> tuple[Any, ...] | None:
        """The nodes of the input variables; None before the call."""
        return self.node.inputs

    @property
    def outputs(self) -> tuple[Any, ...] | None:
        """Weak references to the nodes of the output variables; None before the call."""
        return self.node.outputs

    @property
    def rank(self) -> int:
        """The depth in the graph."""
        return self.node.rank

    @property
    def local_function_hooks(self) -> dict[str, Any] | None:
        """The hooks of this function alone, by name."""
        return self.node.local_function_hooks

    def add_hook(self, hook: Any, name: str | None = None) -> None:
        """Call a hook for this function alone. Raises `KeyError` for a name that is taken."""
        self.node.add_hook(hook, name)

    def delete_hook(self, name: str) -> None:
        """Take a hook of this function away. Raises `KeyError` for an unknown name."""
        self.node.delete_hook(name)

    def unchain(self) -> None:
        """Cut the graph at this function: outputs forget it, and it forgets its inputs."""
        self.node.unchain()

    def __call__(self, *inputs: Any) -> Any:
        """The output's variable, or a tuple of them. Raises `RuntimeError` the second time."""
        if self._called is not None:
            head = f"{self.label}: called a second time"
            raise RuntimeError(complain(head, "one object", "an object for each call"))
        node, self._node = self.node, None
        self._called = weakref.ref(node)
        made = node.apply(inputs)
        return made[0] if len(made) == 1 else made

    def check_type_forward(self, in_types: Any) -> None:
        """Check the inputs' types with `type_check.expect`; by default everything is taken."""

    def retain_inputs(self, indexes: Iterable[int]) -> None:
        """Have these inputs alone kept for `backward`; called in `forward`. Raises `TypeError` for what is no
        sequence."""
        self._kept = indexes_of(f"{self.label}: retain_inputs", indexes)

    def retain_outputs(self, indexes: Iterable[int]) -> None:
        """Have these outputs kept for `backward`, as `output_data`; called in `forward`. Raises `TypeError` for what is
        no sequence."""
        self._kept_outputs = indexes_of(f"{self.label}: retain_outputs", indexes)

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The outputs' arrays: `forward_gpu` for tensors of a CUDA backend, `forward_cpu` for all else."""
        return self._by_device("forward", inputs, inputs)

    def backward(self, inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs' gradients: `backward_gpu` for tensors of a CUDA backend, `backward_cpu` for all else."""
        return self._by_device("backward", (*inputs, *grad_outputs, *self.output_data), inputs, grad_outputs)

    def _by_device(self, name: str, every: tuple[Any, ...], *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        backend = next((arrays.backend_of(arrays.plain(x)) for x in every if x is not None), None)
        if backend is not None and backend.device_type == 1:
            return getattr(self, f"{name}_gpu")(*groups)
        sizes = [len(group) for group in groups]

        def on_arrays(seen: tuple[Any, ...]) -> tuple[Any, ...]:
            ends = [0, *itertools.accumulate(sizes), None]
            *parts, self.output_data = (seen[start:end] for start, end in zip(ends, ends[1:]))
            return getattr(self, f"{name}_cpu")(*parts)

        return arrays.on_host(self.label, on_arrays, every, backend)

    def forward_cpu(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The outputs' arrays where all arrays are NumPy's."""
        raise NotImplementedError(complain(f"{self.label}: no forward for the CPU", "", "forward or forward_cpu"))

    def forward_gpu(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The outputs' arrays where all arrays are tensors of a CUDA backend."""
        raise NotImplementedError(complain(f"{self.label}: no forward for the GPU", "", "forward or forward_gpu"))

    def backward_cpu(self, inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs' gradients where all arrays are NumPy's; by default there are none."""
        return (None,) * len(inputs)

    def backward_gpu(self, inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs' gradients where all arrays are tensors of a CUDA backend; by default there are none."""
        return (None,) * len(inputs)

    def __repr__(self) -> str:
        return f"<function {self.label}>"


class FunctionAdapter(FunctionNode):
    """The node of an old-style `function`."""

    def __init__(self, function: Function) -> None:
        self.function = function

    @property
    def label(self) -> str:
        """The function's name."""
        return self.function.label

    def check_type_forward(self, in_types: Any) -> None:
        """The function's own check."""
        self.function.check_type_forward(in_types)

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The function's own."""
        found = self.function.forward(inputs)
        kept = self.function._kept
        self.retain_inputs(range(len(inputs)) if kept is None else kept)
        self.retain_outputs(self.function._kept_outputs)
        return found

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The function's gradients, as variables that cannot be differentiated again."""
        kept = dict(zip(self._retained_inputs, self.get_retained_inputs()))
        given = [x for x in (*kept.values(), *grad_outputs) if x is not None]
        gradient = _OldStyleGradient(self, kept, grad_outputs, target_input_indexes)
        found = iter(gradient.apply(given)) if given else iter(())
        return tuple(next(found) if there else None for there in gradient.there)


class _OldStyleGradient(FunctionNode):
    """The gradients of an old-style function: a node that says so when it is to be differentiated."""

    def __init__(self, adapter: FunctionAdapter, kept: dict[int, Variable], grads: tuple, targets: tuple) -> None:
        count = len(adapter.inputs)
        self._function = adapter.function
        self._inputs = tuple(arrays.presented(kept[i]._data) if i in kept else None for i in range(count))
        self._grads = tuple(None if g is None else arrays.presented(g._data) for g in grads)
        outputs = dict(zip(adapter._retained_outputs, adapter.get_retained_outputs()))
        places = range(len(adapter.outputs) if outputs else 0)
        self._output_arrays = tuple(arrays.presented(outputs[i]._data) if i in outputs else None for i in places)
        self._targets = targets
        self.there: tuple[bool, ...] = ()

    @property
    def label(self) -> str:
        """The function's name."""
        return self._function.label

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradients that are wanted and exist."""
        self._function.output_data = self._output_arrays
        found = self._function.backward(self._inputs, self._grads)
        self._function.output_data = ()
        if not isinstance(found, tuple) or len(found) != len(self._inputs):
            given = f"{len(found)}" if isinstance(found, tuple) else type(found).__name__
            head = f"{self.label}: backward must return a tuple of a gradient for each input"
            raise (ValueError if isinstance(found, tuple) else TypeError)(complain(head, given, f"{len(self._inputs)}"))
        self._inputs = self._grads = self._output_arrays = ()
        wanted = tuple(found[i] for i in self._targets)
        self.there = tuple(g is not None for g in wanted)
        return tuple(g for g in wanted if g is not None)

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Refused."""
        head = f"{self.label}: an old-style function cannot be differentiated twice"
        raise RuntimeError(complain(head, "a second backward pass", "a FunctionNode, whose backward uses variables"))
