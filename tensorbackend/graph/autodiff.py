# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode differentiation of op-trees: gradients are op-trees again, made of the table's derivative rules.

A node's gradient is worked out once however often the node is used, so the cost is linear in the number of distinct
nodes; and it is built iteratively, so depth is no limit. Random nodes are pinned to one draw, so that the value and
the gradient of a tree see the same mask.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.errors import ShapeError, complain
from tensorbackend.graph import composite
from tensorbackend.graph.optree import Operators, OpTreeNode, apply, nodes_of
from tensorbackend.graph.structure import unknown_shape
from tensorbackend.graph.tensor import Tensor, check_writable, share_memory

__all__ = ["Autodiff", "fitted"]


class Autodiff:
    """Gradients of `op_tree` with respect to tensors of it.

    `op_tree` is a node, a tensor or a number; `be` the backend. `next_error`, of the tree's shape, is the gradient
    with respect to the tree's value (None: ones). Raises `ShapeError` when its shape is another, `TypeError` for an
    `op_tree` or a `next_error` of another kind, and `ValueError` where an op of the tree has no derivative.

    The gradient with respect to a tensor takes in every use of its memory: of the tensor itself, and of views of it
    (transposes, reshapes, slices). Two views that do not overlap have gradients of their own.
    """

    def __init__(self, op_tree: Any, be: Any, next_error: Any = None) -> None:
        if not isinstance(op_tree, (Operators, int, float, np.number)):
            raise TypeError(complain("Autodiff: op_tree", type(op_tree).__name__, "an op-tree, tensor or number"))
        if next_error is not None and not isinstance(next_error, Operators):
            given, expected = type(next_error).__name__, f"a tensor or op-tree of shape {getattr(op_tree, 'shape', ())}"
            raise TypeError(complain("Autodiff: next_error", given, expected, "be.array(next_error)"))
        if not hasattr(be, "empty_like"):
            raise TypeError(complain("Autodiff: be", type(be).__name__, "the backend of the tree"))
        self.op_tree = op_tree
        self.be = be
        shape = op_tree.shape if isinstance(op_tree, Operators) else ()
        if shape is None:
            raise unknown_shape("Autodiff: the tree's shape")
        if next_error is not None and tuple(next_error.shape) != tuple(shape):
            raise ShapeError(complain("Autodiff: next_error", f"shape {next_error.shape}", f"the tree's shape {shape}"))
        self.next_error = next_error
        self._gradients: dict[tuple, Any] = {}
        self._tensors: list[Any] = []
        if isinstance(op_tree, Operators):
            self._pin()
            self._differentiate()

    def __deepcopy__(self, memo: dict) -> Autodiff:
        """Gradients of a copy of the tree, with respect to the copies of its tensors."""
        made = copy.copy(self)
        made.op_tree, made.next_error = copy.deepcopy((self.op_tree, self.next_error), memo)
        made._gradients, made._tensors = {}, []
        if isinstance(made.op_tree, Operators):
            made._differentiate()
        return made

    def _pin(self) -> None:
        if not isinstance(self.op_tree, OpTreeNode):
            return
        sources = [n for n in nodes_of(self.op_tree) if n.structure.op.kind == ops.SOURCE and not hasattr(n, "draw")]
        drawn = [n for n in sources if n.structure.op.name != "index"]
        if drawn:
            self.be._flush()  # what waits in a fuse block was stated before, and draws before
        for node in drawn:
            node.draw = self.be._next_draw()

    def _differentiate(self) -> None:
        dtype = self.op_tree.dtype
        one = dtype.type(1) if dtypes.is_float(dtype) else 1.0  # a Python number would have the default type
        start = self.next_error if self.next_error is not None else _spread(one, self.op_tree)
        flowing: dict[int, Any] = {id(self.op_tree): start}
        if not isinstance(self.op_tree, OpTreeNode):
            self._leaf(self.op_tree, start)
            return
        for node in reversed(nodes_of(self.op_tree)):
            g = flowing.pop(id(node), None)
            if g is None or not node.inputs:
                continue
            for x, gx in zip(node.inputs, _rule(node, g)):
                if gx is None or not isinstance(x, Operators) or not dtypes.is_float(x.dtype):
                    continue
                gx = fitted(gx, x)
                if isinstance(x, OpTreeNode):
                    before = flowing.get(id(x))
                    flowing[id(x)] = gx if before is None else before + gx
                else:
                    self._leaf(x, gx)

    def _leaf(self, tensor: Any, gradient: Any) -> None:
        key = _identity(tensor)
        before = self._gradients.get(key)
        self._gradients[key] = gradient if before is None else before + gradient
        if before is None:
            self._tensors.append(tensor)

    def _gradient(self, tensor: Any) -> Any:
        if self.op_tree is None:
            given, hint = "an Autodiff after cleanup()", "Autodiff(op_tree, be) again"
            raise ValueError(complain("Autodiff: its tree was dropped", given, "", hint))
        if not isinstance(tensor, Tensor):
            given, hint = type(tensor).__name__, "the tensors of the tree that it is made of"
            raise TypeError(complain("Autodiff: no tensor to differentiate by", given, "a tensor", hint))
        key = _identity(tensor)
        total = self._gradients.get(key)
        for leaf in self._tensors:
            if _identity(leaf) != key and share_memory(leaf, tensor):
                part = _through_view(tensor, leaf, self._gradients[_identity(leaf)])
                total = part if total is None else total + part
        if total is None:
            return tensor * 0.0
        return total if isinstance(total, OpTreeNode) else _spread(total, tensor)

    def get_grad_op_tree(self, tensors: Sequence[Any]) -> list[OpTreeNode]:
        """The gradients as op-trees, in the order of `tensors`; a tensor that is not in the tree gets zeros."""
        return [self._gradient(t) for t in _several(tensors)]

    def get_grad_tensor(self, tensors: Sequence[Any]) -> list[Any]:
        """The gradients as new tensors of the tensors' shapes and types."""
        results = []
        for t in _several(tensors):
            gradient = self._gradient(t)
            results.append(self.be.empty_like(t)._assign(gradient))
        return results

    def get_grad_asnumpyarray(self, tensors: Sequence[Any]) -> list[np.ndarray]:
        """The gradients as host arrays of the default type."""
        return [g.get().astype(self.be.default_dtype, copy=False) for g in self.get_grad_tensor(tensors)]

    def back_prop_grad(self, tensors: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Evaluate the gradients into given tensors of the tensors' shapes.

        None of them may share memory with another, or with what the gradients read: tensors of the tree and of
        `next_error`. One may be `next_error` itself; it is written last. Raises `TypeError` for what is no tensor,
        `ShapeError`, and `ValueError` for the rest, before anything is written.
        """
        if len(_several(tensors)) != len(_several(gradients)):
            given = f"{len(tensors)} tensors, {len(gradients)} gradients"
            raise ValueError(complain("back_prop_grad: counts differ", given, "one gradient a tensor"))
        error = self.next_error
        read = [*_tensors_of(self.op_tree), *_tensors_of(error)]
        statements: list[tuple[bool, Tensor, OpTreeNode]] = []
        for i, (tensor, out) in enumerate(zip(tensors, gradients)):
            if not isinstance(out, Tensor):
                raise TypeError(complain("back_prop_grad: a gradient", type(out).__name__, "a tensor to write to"))
            last = isinstance(error, Tensor) and _identity(out) == _identity(error)
            statements.append((last, out, self._gradient(tensor)))
            check_writable(out)
            hint = "other memory for the gradient"
            for what, others in (("another one", gradients[:i]), ("a tensor of the tree", () if last else read)):
                if any(share_memory(out, t) for t in others):
                    raise ValueError(complain(f"back_prop_grad: a gradient overlaps {what}", repr(out.shape), "", hint))
            if out.shape != tensor.shape:
                given, expected = f"shape {out.shape}", f"the tensor's shape {tensor.shape}"
                raise ShapeError(complain(f"back_prop_grad: gradient {i}", given, expected))
        for _, out, gradient in sorted(statements, key=lambda statement: statement[0]):
            out._assign(gradient)

    def cleanup(self) -> None:
        """Drop every reference to trees and tensors."""
        self._gradients.clear()
        self._tensors.clear()
        self.op_tree = self.next_error = None


def _several(tensors: Sequence[Any]) -> Sequence[Any]:
    """Tensors as they were given. Raises `TypeError` for one by itself, whose rows would be taken for them."""
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(complain("Autodiff: tensors", type(tensors).__name__, "a list of tensors", "[tensor]"))
    return tensors


def _tensors_of(tree: Any) -> list[Tensor]:
    """The tensors that a tree reads; of a tensor itself."""
    found = [x for node in nodes_of(tree) for x in node.inputs] if isinstance(tree, OpTreeNode) else [tree]
    return [x for x in found if isinstance(x, Tensor)]


def _identity(tensor: Any) -> tuple:
    return tensor.address, tensor.structure


def _through_view(tensor: Any, leaf: Any, gradient: Any) -> Any:
    """The gradient of `tensor` that comes through `leaf`, a view of it. Raises `ValueError` where it reaches beyond."""
    gradient = gradient if isinstance(gradient, Operators) else _spread(gradient, leaf)
    order = _permutation(tensor, leaf)
    if order is not None:
        return composite.turned(gradient, order)
    inside = tensor.start <= leaf.start and leaf.stop <= tensor.stop and leaf.dtype == tensor.dtype
    if inside and tensor.is_contiguous and leaf.is_contiguous and leaf.size == tensor.size:
        return composite.reshape(gradient, tensor.shape)
    if not (inside and tensor.is_contiguous):
        raise ValueError(
            complain(
                "Autodiff: a tensor of the tree shares memory with the one asked for, and is no view of it",
                f"{leaf.shape} in the tree, {tensor.shape} asked for",
                "the tensor itself, or a contiguous tensor that holds it",
            )
        )
    places = np.array((leaf.address - tensor.address) // tensor.dtype.itemsize)
    for length, stride in zip(leaf.shape, leaf.strides):
        places = places[..., None] + np.arange(length) * stride
    indices = tensor.backend.array(places.reshape(-1), dtype=np.int64, min_dims=0)
    flat = composite.put(composite.reshape(gradient, (leaf.size,)), indices, (tensor.size,), 0)
    return composite.reshape(flat, tensor.shape)


def _permutation(tensor: Any, leaf: Any) -> tuple[int, ...] | None:
    """The order of `leaf`'s axes that makes it `tensor`, if there is one."""
    axes = list(zip(leaf.shape, leaf.strides))
    wanted = list(zip(tensor.shape, tensor.strides))
    if leaf.address != tensor.address or sorted(axes) != sorted(wanted):
        return None
    return tuple(axes.index(pair) for pair in wanted) if len(set(axes)) == len(axes) else None


def _rule(node: OpTreeNode, g: Any) -> tuple:
    op = node.structure.op
    if op.vjp is None:
        raise ValueError(
            complain(
                f"Autodiff: {op.name} has no derivative", "", "", "leave it out of the tree, or pin it as a tensor"
            )
        )
    return op.vjp(composite, g, node, *node.inputs)


def _spread(value: Any, like: Any) -> OpTreeNode:
    """`value` repeated to the shape of `like`."""
    return apply(ops.OPS["broadcast"], value, params=(like.shape,), table=like.structure.table)


def fitted(gradient: Any, x: Any) -> Any:
    """The gradient in the operand's shape: summed where the operand was broadcast, spread where it was reduced."""
    if gradient.shape is None or x.shape is None or gradient.shape == x.shape:
        return gradient
    summed = composite.unbroadcast(gradient, x.shape) if _broadcast(x.shape, gradient.shape) else gradient
    return summed if summed.shape == x.shape else _spread(summed, x)


def _broadcast(shape: tuple[int, ...], wider: tuple[int, ...]) -> bool:
    """Whether `wider` is longer than `shape` somewhere."""
    lead = len(wider) - len(shape)
    return lead > 0 or any(n == 1 and m != 1 for n, m in zip(shape[-lead if lead < 0 else 0 :], wider))
