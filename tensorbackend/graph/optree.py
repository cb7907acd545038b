# SPDX-License-Identifier: Apache-2.0
"""Op-tree nodes: expressions that have not been computed yet.

A node is a structure (what is computed, see `structure.py`) and its operands: tensors, nodes and numbers. Building
one checks shapes and types and computes nothing; `t[:] = node`, `out=` or `be.evaluate(node)` runs it.
`Operators` gives tensors and nodes the same Python operators, made from the op table.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.errors import BackendError, ShapeError, complain
from tensorbackend.graph import indexing
from tensorbackend.graph.order import operands_first
from tensorbackend.graph.structure import UNKNOWN, Structure, StructureTable, as_axis, unknown_shape
from tensorbackend.graph.symbol import is_symbol, known

__all__ = [
    "OPERAND", "OpTreeNode", "Operators", "apply", "check_target", "expect_tree", "finished", "nodes_of", "operand",
    "source",
]  # fmt: skip

OPERAND = "a tensor or an op-tree"
"""What refusals of other operands expect."""
_NUMBERS = (bool, int, float, np.generic)
_POW = ops.OPS["pow"]
_new = object.__new__


def apply(op: ops.Op, *operands: Any, params: tuple = (), table: StructureTable | None = None) -> OpTreeNode:
    """The node of `op` on tensors, nodes, numbers or NumPy arrays; `params` are its static parameters.

    Raises `ShapeError`, `DTypeError`, `BackendError` as the op's rules say, and `TypeError` for other operands.
    """
    if op is _POW:
        op = _power_by(*operands)
    structures = [getattr(x, "structure", None) or x.__class__ for x in operands]
    if table is None:
        for structure in structures:  # no generator: that would be two more calls for each node
            if isinstance(structure, Structure):
                table = structure.table
                break
        else:
            given = ", ".join(type(x).__name__ for x in operands)
            raise TypeError(complain(f"{op.name}: no tensor among the operands", given, OPERAND))
    found = table.get((op, *params, *structures))
    if found is None:
        node = _build(op, operands, params, table)
        if node is NotImplemented:
            given = " and ".join(type(x).__name__ for x in operands)
            raise TypeError(complain(f"{op.name}: operands that are not understood", given, "tensors, nodes, numbers"))
    else:
        node = _new(OpTreeNode)
        node.structure = found
        node.inputs = operands
    return _within_range(node) if op.name in _MIRRORED and int in structures else node


def operand(name: str, x: Any, table: StructureTable) -> OpTreeNode:
    """A number or NumPy array as a node of the same value. Raises `TypeError` for anything else."""
    if not isinstance(x, (bool, int, float, np.generic, np.ndarray)):
        raise TypeError(complain(f"{name}: operand", type(x).__name__, "a tensor, an op-tree or a number"))
    return apply(ops.OPS["maximum"], x, x, table=table)


def finished(node: Any, out: Any) -> Any:
    """The node, or `out` with its value. Raises `TypeError` for an `out` that nothing can be assigned to."""
    if out is None:
        return node
    check_target("out", out)
    return out._assign(node)


def check_target(what: str, target: Any, hint: str = "") -> None:
    """Raise `TypeError` for something that nothing can be assigned to."""
    if not hasattr(target, "_assign"):
        raise TypeError(complain(what, type(target).__name__, "a tensor", hint))


_MIRRORED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
"""The comparisons, and what each is with its operands exchanged."""


def _within_range(node: OpTreeNode) -> OpTreeNode:
    """A comparison with an int; where the operands' type cannot hold that, one of the same answer with an int that it
    can: as in NumPy, no element of uint8 is below -1."""
    dtype = node.structure.operands
    if not dtypes.is_integer(dtype):
        return node
    limits, (a, b), name = np.iinfo(dtype), node.inputs, node.structure.op.name
    x, number, name = (a, b, name) if b.__class__ is int else (b, a, _MIRRORED[name])
    if is_symbol(number) and dtype.itemsize < 8:  # it may be anything in other calls of the program
        return apply(ops.OPS[name], apply(ops.OPS["add"], x, np.int64(0)), number)
    if limits.min <= known(number) <= limits.max:
        return node
    is_below = number < limits.min  # refused if the number may come within the range in another call of a program
    holds = name == "ne" or name in (("gt", "ge") if is_below else ("lt", "le"))
    return apply(ops.OPS["ge" if holds else "lt"], x, int(limits.min))


def _power_by(x: Any, y: Any) -> ops.Op:
    """The op that takes x to the power y: one of `ops.POWERS` where y is a number whose power needs no logarithm."""
    if type(y) not in (int, float):  # a symbol's class is a number's, its type is not
        return _POW
    whole = type(y) is int and y < 0 and not (isinstance(x, Operators) and dtypes.is_float(x.structure.dtype))
    return _POW if whole else ops.POWERS.get(y, _POW)


def _build(op: ops.Op, operands: tuple, params: tuple, table: StructureTable) -> OpTreeNode:
    """The slow path of `apply`: converts the operands, applies the rules, remembers the structure.

    Returns NotImplemented when an operand is of a foreign type.
    """
    table.check_open()
    operands = tuple(_leaf(op, x, operands, table) for x in operands)
    if any(x is NotImplemented for x in operands):
        return NotImplemented
    inputs = tuple(x.structure if isinstance(x, Operators) else table.number(x.__class__) for x in operands)
    key = (op, *params, *(x.structure if isinstance(x, Operators) else x.__class__ for x in operands))
    structure = table.get(key) or table.derive(key, op, inputs, params)
    node = _new(OpTreeNode)
    node.structure = structure
    node.inputs = operands
    return node


def _leaf(op: ops.Op, x: Any, operands: tuple, table: StructureTable) -> Any:
    if isinstance(x, Operators):
        if x.structure.table is not table:
            x.structure.table.check_open()
            names = [type(t.structure.table.backend).__name__ for t in operands if isinstance(t, Operators)]
            raise BackendError(
                complain(
                    f"{op.name}: tensors of different backends",
                    " and ".join(names),
                    "tensors of one backend",
                    "be.array(other.get()) copies a tensor to backend `be`",
                )
            )
        return x
    if isinstance(x, np.ndarray) and x.ndim == 0:
        x = x[()]
    if isinstance(x, _NUMBERS):
        if isinstance(x, np.generic):
            dtypes.as_dtype(x.dtype)
        return x
    return _array_leaf(op, x, operands, table) if isinstance(x, np.ndarray) else NotImplemented


def _array_leaf(op: ops.Op, x: np.ndarray, operands: tuple, table: StructureTable) -> Any:
    """A NumPy operand, copied to the backend with the rank it has."""
    indexing.refuse_mask(op.name, x)
    beside = [t.structure for t in operands if isinstance(t, Operators)]
    min_dims = min((s.min_dims for s in beside if s.ruled or s.shape != ()), default=0)  # no rule comes of numbers
    if x.ndim < min_dims:
        n = x.shape[0]
        raise ShapeError(
            complain(
                f"{op.name}: a 1-D array beside a tensor of at least {min_dims} axes can be read in two ways",
                f"array of shape {x.shape}",
                f"a row (1, {n}) or a column ({n}, 1)",
                f"array.reshape(1, {n}) or array.reshape({n}, 1)",
            )
        )
    return table.backend.array(x, dtype=x.dtype, min_dims=min_dims)


def source(op: ops.Op, table: StructureTable, shape: tuple | None, *params: Any) -> OpTreeNode:
    """A node without operands (random numbers, positions) of `shape`; None leaves it to the partner or target."""
    table.check_open()
    full = (*params, shape)
    key = (op, *full)
    node = _new(OpTreeNode)
    node.structure = table.get(key) or table.derive(key, op, (), full)
    node.inputs = ()
    return node


def expect_tree(name: str, x: Any) -> None:
    """Raise `TypeError` for what is no tensor and no op-tree."""
    if not isinstance(x, Operators):
        raise TypeError(complain(name, type(x).__name__, OPERAND, "be.array(...)"))


def _understood(op: ops.Op, other: Any, node: Any) -> Any:
    """The node, unless it is NotImplemented beside a sequence or text: Python would compare objects, or repeat them.
    Subclasses may know what to do."""
    refused = (list, tuple) if op.name in _MIRRORED else (list, tuple, str, bytes)
    if node is NotImplemented and type(other) in refused:
        given = f"a tensor and {type(other).__name__} {other!r}"[:200]
        raise TypeError(complain(f"{op.name}: operands", given, "tensors, nodes, numbers, arrays", "np.array(...)"))
    return node


def _binary(op: ops.Op) -> tuple[Callable, Callable]:
    """The methods `x op y` and the reflected one: a look-up and a node when the form is known."""

    def method(self: Any, other: Any, op: ops.Op = op) -> Any:
        structure = self.structure
        try:
            key = (op, structure, other.structure)
        except AttributeError:
            key = (op, structure, other.__class__)
        found = structure.table.get(key)
        if found is None:
            return _understood(op, other, _build(op, (self, other), (), structure.table))
        node = _new(OpTreeNode)
        node.structure = found
        node.inputs = (self, other)
        return node

    def reflected(self: Any, other: Any) -> Any:
        structure = self.structure
        found = structure.table.get((op, other.__class__, structure))
        if found is None:
            return _understood(op, other, _build(op, (other, self), (), structure.table))
        node = _new(OpTreeNode)
        node.structure = found
        node.inputs = (other, self)
        return node

    def compare(self: Any, other: Any) -> Any:
        node = method(self, other)
        return _within_range(node) if other.__class__ is int else node

    def power(self: Any, other: Any) -> Any:
        return method(self, other, _power_by(self, other))

    method.__doc__ = reflected.__doc__ = compare.__doc__ = power.__doc__ = op.doc
    return compare if op.name in _MIRRORED else power if op is _POW else method, reflected


def _unary(op: ops.Op) -> Callable:
    def method(self: Any) -> Any:
        structure = self.structure
        found = structure.table.get((op, structure))
        if found is None:
            return _build(op, (self,), (), structure.table)
        node = _new(OpTreeNode)
        node.structure = found
        node.inputs = (self,)
        return node

    method.__doc__ = op.doc
    return method


def _is_operand(x: Any) -> bool:
    return isinstance(x, (Operators, np.ndarray, *_NUMBERS))


class Operators:
    """What tensors and op-tree nodes have in common: a structure, Python operators, and movements.

    `==` and the other comparisons build nodes too: compare objects with `is`. A truth value is refused.
    """

    __slots__ = ()
    __array_ufunc__ = None
    structure: Structure
    get: Callable[[], np.ndarray]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape. None, or a length of -1, is decided by the partner or target (rand, onehot)."""
        return self.structure.shape

    @property
    def dtype(self) -> np.dtype:
        """The element type, by promotion of the operands'."""
        return self.structure.dtype

    @property
    def ndim(self) -> int:
        """The number of axes. Raises `ShapeError` where the partner or the target decides it, as of `rand()` alone."""
        shape = self.structure.shape
        if shape is None:
            raise unknown_shape("ndim: the number of axes")
        return len(shape)

    @property
    def size(self) -> int:
        """The number of elements. Raises `ShapeError` where the partner or the target decides it."""
        shape = self.structure.shape
        if shape is None or UNKNOWN in shape:
            raise unknown_shape("size: the number of elements")
        return math.prod(shape)

    @property
    def backend(self) -> Any:
        """The backend that owns the tensors."""
        return self.structure.table.backend

    @property
    def _min_dims(self) -> int:
        return self.structure.min_dims

    def __matmul__(self, other: Any) -> Any:
        return apply(ops.OPS["dot"], self, other) if _is_operand(other) else NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        return apply(ops.OPS["dot"], other, self) if _is_operand(other) else NotImplemented

    def __pos__(self) -> Any:
        return self

    def __hash__(self) -> int:
        return id(self) >> 4

    def __bool__(self) -> bool:
        raise TypeError(
            complain(
                "truth value: an expression has one for each element",
                f"shape {self.structure.shape}",
                "a comparison of objects or of numbers",
                "`a is b`, or be.any(...).get(), be.all(...).get()",
            )
        )

    def reshape(self, *shape: Any) -> Any:
        """The same numbers in C order under another shape; one length may be -1."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return self._move("reshape", indexing.whole("reshape", tuple(wanted)))

    def transpose(self, *axes: Any, out: Any = None) -> Any:
        """The axes in another order (default: as `.T`), as a view, or written into `out`."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        moved = self._move("transpose", indexing.whole("transpose", tuple(order)) or self._reversed_axes())
        return finished(moved, out)

    @property
    def T(self) -> Any:
        """The transpose: all axes reversed; from rank 3 on and with `_min_dims` not 0, axis 0 stays."""
        return self._move("transpose", self._reversed_axes())

    def _reversed_axes(self) -> tuple[int, ...]:
        rank = self.ndim
        if rank <= 2 or self.structure.min_dims == 0:
            return tuple(range(rank))[::-1]
        return (0, *range(rank - 1, 0, -1))

    def _move(self, name: str, *params: Any) -> Any:
        return apply(ops.OPS[name], self, params=params, table=self.structure.table)

    def item(self) -> Any:
        """The only element, as a Python number. Raises `ShapeError` when there is more than one."""
        shape = self.structure.shape
        if shape is None or math.prod(shape) != 1:
            raise ShapeError(complain("item: not one element", f"shape {shape}", "one element"))
        return self.get().reshape(()).item()

    def __float__(self) -> float:
        return float(self.item())

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if form else str(self)

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self.get().tolist()

    def __div__(self, other: Any) -> Any:
        """`/` under the name that the contract has from Python 2."""
        return self / other

    def __rdiv__(self, other: Any) -> Any:
        return other / self


for _op in ops.elementwise():
    if _op.dunder is None:
        continue
    if _op.arity == 1:
        setattr(Operators, f"__{_op.dunder}__", _unary(_op))
        continue
    _method, _reflected = _binary(_op)
    setattr(Operators, f"__{_op.dunder}__", _method)
    if _op.name not in _MIRRORED:
        setattr(Operators, f"__r{_op.dunder}__", _reflected)
del _op, _method, _reflected


class OpTreeNode(Operators):
    """An expression: `structure` says what is computed, `inputs` are tensors, nodes and numbers.

    `draw` is the number of a random node's draw, once it is pinned (by autodiff); before, every statement that
    runs the node draws anew.
    """

    __slots__ = ("__weakref__", "draw", "inputs", "structure")

    structure: Structure
    inputs: tuple

    def __getitem__(self, key: Any) -> OpTreeNode:
        if indexing.is_fancy(key):
            raise TypeError(
                complain("index: arrays index tensors only", "an op-tree", "a basic index", "be.evaluate(tree)[...]")
            )
        return self._move("slice", indexing.hashable(key))

    def __copy__(self) -> OpTreeNode:
        node = _new(OpTreeNode)
        node.structure, node.inputs = self.structure, self.inputs
        if hasattr(self, "draw"):
            node.draw = self.draw
        return node

    def __deepcopy__(self, memo: dict) -> OpTreeNode:
        results: dict[int, Any] = {}
        for node in nodes_of(self):
            known = [results[id(x)] if isinstance(x, OpTreeNode) else copy.deepcopy(x, memo) for x in node.inputs]
            made = results[id(node)] = node.__copy__()
            if any(isinstance(x, Operators) for x in known):  # else numbers, as the ones of gradients
                made.structure = apply(node.structure.op, *known, params=_params(node.structure)).structure
                made.inputs = tuple(known)
        return results[id(self)]

    def __reduce__(self) -> Any:
        hint = "pickle tree.get() and use be.array"
        raise TypeError(complain("pickle: an op-tree belongs to a backend", "", "", hint))

    def __int__(self) -> int:
        raise TypeError(complain("int: a tensor's is its address, and an op-tree has none", "", "", "int(tree.item())"))

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of an expression without axes")
        if self.structure.shape[0] == UNKNOWN:
            raise unknown_shape("len: the length of the first axis")
        return self.structure.shape[0]

    def __iter__(self) -> Iterator[OpTreeNode]:
        return (self[i] for i in range(len(self)))

    @staticmethod
    def build(op: str, a: Any, b: Any, out: Any = None, **params: Any) -> Any:
        """A node by the name of its op, as the contract has it; 'assign' runs at once, `out` too and returns `out`.

        `axis` (reductions, onehot), `idx` (onehot), `value` (shift) and `stochastic` (binarize) are taken as keywords.
        Random numbers have no operand that says which backend draws: they need `out`. Raises `TypeError` for an unknown
        op or keyword; returns NotImplemented for an operand of a foreign type.
        """
        unknown = next((name for name in params if name not in _KEYWORDS), None)
        if unknown is not None:
            expected = ", ".join(_KEYWORDS)
            raise TypeError(complain(f"OpTreeNode.build: keyword {unknown}", repr(params[unknown]), expected))
        operands = tuple(x for x in (a, b) if x is not None)
        if any(not isinstance(x, (Operators, np.ndarray, *_NUMBERS)) for x in operands):
            return NotImplemented
        if op == "assign":
            check_target("OpTreeNode.build: assign to", a)
            return a._assign(b)
        entry = ops.OPS.get(op) if isinstance(op, str) else None
        arity = entry.arity if entry else _BUILT.get(op) if isinstance(op, str) else None
        if arity is None:
            raise TypeError(complain("OpTreeNode.build: op", repr(op), "the name of an op of docs/ops.md"))
        if len(operands) != arity:
            given, expected = f"{len(operands)} operands", f"{arity} beside None"
            raise TypeError(complain(f"OpTreeNode.build: {op}", given, expected))
        if entry is None:
            node = _built(op, operands, params)
        elif entry.kind == ops.SOURCE:
            if op == "index" or not isinstance(out, Operators):
                raise TypeError(complain(f"OpTreeNode.build: {op!r} says no backend", "", "out=", f"be.{op}()"))
            node = source(entry, out.structure.table, None)
        elif entry.kind == ops.REDUCTION:
            node = apply(entry, *operands, params=(as_axis(op, params.get("axis")),))
        elif entry.name == "transpose":
            node = operands[0].T
        else:
            node = apply(entry, *operands)
        return finished(node, out)

    def execute(self) -> Any:
        """Compute the value into a new tensor of the tree's type, and return it."""
        return self.backend.evaluate(self)

    def astensor(self) -> Any:
        """A new tensor of the default type holding the value. Raises `ShapeError` when an op's shape follows from a
        partner or target, and there is none."""
        return self.backend.evaluate(self, dtype=self.backend.default_dtype)

    def asnumpyarray(self) -> np.ndarray:
        """The value as a host array of the default type."""
        return self.astensor().get()

    def get(self) -> np.ndarray:
        """The value as a host array of the tree's type."""
        return self.backend.evaluate(self).get()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(complain("asarray: an op-tree has no memory", "copy=False", "copy=None"))
        values = self.get()
        return values if dtype is None else values.astype(dtype, copy=False)

    def traverse(self, stack: list) -> list:
        """Append the postfix order to `stack`: operands, then the op's name, a node at a time."""
        order: list[Any] = []
        pending: list[Any] = [self]
        while pending:
            x = pending.pop()
            if isinstance(x, OpTreeNode):
                order.append(_label(x))
                pending.extend(x.inputs)
            else:
                order.append(x)
        stack.extend(reversed(order))
        return stack

    def key(self) -> tuple:
        """A hashable postfix key: equal for equal expressions of the same tensors and numbers."""
        return tuple(id(x) if isinstance(x, Operators) else x for x in self.traverse([]))

    def intrinsic_key_maps(self) -> tuple[tuple, dict, dict]:
        """The key with tensors replaced by (order of appearance, shape), and the maps index → tensor and back."""
        by_index: dict[int, Any] = {}
        by_tensor: dict[int, int] = {}
        parts: list[Any] = []
        for x in self.traverse([]):
            if isinstance(x, Operators):
                index = by_tensor.setdefault(id(x), len(by_tensor))
                by_index[index] = x
                parts.append((index, x.shape))
            else:
                parts.append(x)
        return tuple(parts), by_index, by_tensor

    @staticmethod
    def optree_to_list(tree: Any) -> Any:
        """The nested-list form of a tree: [op, operand, …], with (op, params…) where the op has parameters."""
        if not isinstance(tree, OpTreeNode):
            return tree
        results: dict[int, Any] = {}
        for node in nodes_of(tree):
            parts = [results[id(x)] if isinstance(x, OpTreeNode) else x for x in node.inputs]
            results[id(node)] = [_label(node), *parts]
        return results[id(tree)]

    @staticmethod
    def list_to_optree(form: Any) -> Any:
        """The tree of a nested list as `optree_to_list` gives it.

        Raises `TypeError` for a list that is none, and where no tensor says which backend draws random numbers.
        """
        if not isinstance(form, list):
            return form
        order = operands_first([form], lambda part: [x for x in part[1:] if isinstance(x, list)])
        leaves = (x for part in order for x in part[1:] if isinstance(x, Operators))
        table = next((x.structure.table for x in leaves), None)
        results: dict[int, Any] = {}
        for part in order:
            label = part[0] if part else None
            name, *params = label if isinstance(label, tuple) and label else (label,)
            entry = ops.OPS.get(name) if isinstance(name, str) else None
            if entry is None or table is None or len(part) - 1 != entry.arity:
                given = f"{len(part) - 1} operands of {name!r}" if table else "no tensor"
                raise TypeError(complain("list_to_optree: a part", given, "[op of docs/ops.md, its operands …]"))
            if entry.kind == ops.SOURCE:
                *own, shape = params or [None]
                results[id(part)] = source(entry, table, shape, *own)
            else:
                operands = [results[id(x)] if isinstance(x, list) else x for x in part[1:]]
                results[id(part)] = apply(entry, *operands, params=tuple(params))
        return results[id(form)]

    def pp(self) -> str:
        """The tree as a readable expression."""
        return str(self)

    _pretty_print = pp

    def to_dot(self) -> str:
        """A picture of the tree in Graphviz's language: shared parts once, tensors as boxes, shapes and types."""
        return to_dot(self)

    def __str__(self) -> str:
        return _expression(self)

    def __repr__(self) -> str:
        return f"<op-tree {self.structure.shape} {self.structure.dtype}: {self}>"


_BUILT = {"onehot": 0, "binarize": 1, "shift": 2}
"""The operations of the contract that are expressions of ops, and how many operands `build` takes of each."""


_KEYWORDS = ("axis", "idx", "value", "stochastic")


class OpCollection:
    """The names of the contract's operations, as sets by how many operands they take; docs/ops.md has all there are."""

    zero_operand_ops = frozenset(("rand", "onehot"))
    unary_ops = frozenset(
        "finite neg abs sgn sqrt sqr exp log exp2 log2 sig sig2 tanh tanh2 transpose safelog rint binarize".split()
    )
    binary_ops = frozenset("assign add sub mul div eq ne lt le gt ge pow minimum maximum dot shift".split())
    reduction_ops = frozenset(("sum", "max", "min", "argmax", "argmin"))
    float_ops = zero_operand_ops | unary_ops | binary_ops
    ew_ops = float_ops - {"dot", "transpose"}


def _built(op: str, operands: tuple, params: dict[str, Any]) -> OpTreeNode:
    from tensorbackend.graph import composite  # which is made of nodes

    if op == "onehot":
        return composite.onehot(params.get("idx"), params.get("axis"))
    if op == "binarize":
        (x,) = operands
        if not params.get("stochastic", True):
            return 2 * apply(ops.OPS["ge"], x, 0) - 1
        chance = composite.clip(apply(ops.OPS["add"], apply(ops.OPS["mul"], x, 0.5), 0.5), 0, 1)
        return 2 * apply(ops.OPS["le"], source(ops.OPS["rand"], x.structure.table, x.shape), chance) - 1
    power = apply(ops.OPS["pow2near" if params.get("value", True) else "exp2"], operands[1])
    return apply(ops.OPS["mul"], operands[0], power)


def _params(s: Structure) -> tuple:
    """The parameters of a structure as `apply` and `source` take them."""
    params = tuple(indexing.hashable(p) if isinstance(p, tuple) else p for p in s.params)
    return (*params, s.shape) if s.op.kind == ops.SOURCE and (params or s.shape is not None) else params


def _label(node: OpTreeNode) -> Any:
    s = node.structure
    params = _params(s)
    return (s.op.name, *params) if params else s.op.name


def nodes_of(root: OpTreeNode) -> list[OpTreeNode]:
    """The distinct nodes of a tree, operands before users."""
    return operands_first([root], lambda node: [x for x in node.inputs if isinstance(x, OpTreeNode)])


_LONGEST = 2000


def _leaf_text(x: Any) -> str:
    if isinstance(x, Operators):
        return str(getattr(x, "name", None) or f"t{list(x.shape)}")
    return f"{x:g}" if isinstance(x, float) else str(x)


def _quoted(x: Any) -> str:
    """A leaf's text for a place between quotation marks."""
    return _leaf_text(x).replace("\\", "\\\\").replace('"', '\\"')


def _expression(root: OpTreeNode) -> str:
    texts: dict[int, str] = {}
    for node in nodes_of(root):
        op = node.structure.op
        parts = [texts[id(x)] if isinstance(x, OpTreeNode) else _leaf_text(x) for x in node.inputs]
        if op.symbol and op.arity == 2:
            text = f"({parts[0]} {op.symbol} {parts[1]})"
        elif op.symbol and op.arity == 1:
            text = f"{op.symbol}{parts[0]}"
        else:
            text = f"{op.name}({', '.join(parts + [_param_text(p) for p in node.structure.params])})"
        texts[id(node)] = text if len(text) <= _LONGEST else f"{op.name}(…)"
    text = texts[id(root)]
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def _param_text(param: Any) -> str:
    if isinstance(param, tuple) and len(param) == 1:
        return str(param[0])
    return str(param)


def to_dot(root: OpTreeNode) -> str:
    """Graphviz text of a tree: `dot -Tsvg` draws it."""
    lines = ["digraph tree {", "  rankdir=BT; node [fontname=monospace];"]
    numbers = 0
    drawn: set[int] = set()
    for node in nodes_of(root):
        s = node.structure
        params = "".join(f"\\n{_param_text(p)}" for p in s.params)
        lines.append(f'  n{id(node)} [label="{s.op.name}{params}\\n{s.shape} {s.dtype}"];')
        for x in node.inputs:
            name = f"n{id(x)}"
            if not isinstance(x, Operators):
                name, numbers = f"c{numbers}", numbers + 1
                lines.append(f'  {name} [label="{_quoted(x)}" shape=plaintext];')
            elif not isinstance(x, OpTreeNode) and id(x) not in drawn:
                drawn.add(id(x))
                lines.append(f'  {name} [label="{_quoted(x)}\\n{x.shape} {x.dtype}" shape=box];')
            lines.append(f"  {name} -> n{id(node)};")
    return "\n".join([*lines, "}"])
