# SPDX-License-Identifier: Apache-2.0
# ruff: noqa
"""Written by `./dev docs` from the source beside it and the op table: edit those."""

import copy
from collections.abc import Iterator
from typing import Any
import numpy as np
from tensorbackend import ops
from tensorbackend.graph.structure import Structure, StructureTable

__all__ = ['OpTreeNode', 'Operators', 'apply', 'check_target', 'finished', 'nodes_of', 'operand', 'source']

def apply(op: ops.Op, *operands: Any, params: tuple=(), table: StructureTable | None=None) -> OpTreeNode: ...

def operand(name: str, x: Any, table: StructureTable) -> OpTreeNode: ...

def finished(node: Any, out: Any) -> Any: ...

def check_target(what: str, target: Any) -> None: ...

def source(op: ops.Op, table: StructureTable, shape: tuple | None, *params: Any) -> OpTreeNode: ...

class Operators():
    structure: Structure
    __slots__ = ()
    __array_ufunc__ = None
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def backend(self) -> Any: ...
    @property
    def _min_dims(self) -> int: ...
    def __matmul__(self, other: Any) -> Any: ...
    def __rmatmul__(self, other: Any) -> Any: ...
    def __pos__(self) -> Any: ...
    def __hash__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def reshape(self, *shape: Any) -> Any: ...
    def transpose(self, *axes: Any, out: Any=None) -> Any: ...
    @property
    def T(self) -> Any: ...
    def _reversed_axes(self) -> tuple[int, ...]: ...
    def _move(self, name: str, *params: Any) -> Any: ...
    def __div__(self, other: Any) -> Any: ...
    def __rdiv__(self, other: Any) -> Any: ...
    def __add__(self, other: Any) -> OpTreeNode:
        """x + y."""
    def __radd__(self, other: Any) -> OpTreeNode:
        """x + y."""
    def __sub__(self, other: Any) -> OpTreeNode:
        """x - y."""
    def __rsub__(self, other: Any) -> OpTreeNode:
        """x - y."""
    def __mul__(self, other: Any) -> OpTreeNode:
        """x y."""
    def __rmul__(self, other: Any) -> OpTreeNode:
        """x y."""
    def __truediv__(self, other: Any) -> OpTreeNode:
        """x / y; true division of integers too."""
    def __rtruediv__(self, other: Any) -> OpTreeNode:
        """x / y; true division of integers too."""
    def __pow__(self, other: Any) -> OpTreeNode:
        """x to the power y."""
    def __rpow__(self, other: Any) -> OpTreeNode:
        """x to the power y."""
    def __floordiv__(self, other: Any) -> OpTreeNode:
        """The largest integer not above x / y."""
    def __rfloordiv__(self, other: Any) -> OpTreeNode:
        """The largest integer not above x / y."""
    def __mod__(self, other: Any) -> OpTreeNode:
        """x - y floor(x / y), with the sign of y."""
    def __rmod__(self, other: Any) -> OpTreeNode:
        """x - y floor(x / y), with the sign of y."""
    def __eq__(self, other: Any) -> OpTreeNode:  # type: ignore[override]
        """1 where x == y, else 0."""
    def __ne__(self, other: Any) -> OpTreeNode:  # type: ignore[override]
        """1 where x != y, else 0."""
    def __lt__(self, other: Any) -> OpTreeNode:
        """1 where x < y, else 0."""
    def __le__(self, other: Any) -> OpTreeNode:
        """1 where x <= y, else 0."""
    def __gt__(self, other: Any) -> OpTreeNode:
        """1 where x > y, else 0."""
    def __ge__(self, other: Any) -> OpTreeNode:
        """1 where x >= y, else 0."""
    def __and__(self, other: Any) -> OpTreeNode:
        """x & y, bit by bit."""
    def __rand__(self, other: Any) -> OpTreeNode:
        """x & y, bit by bit."""
    def __or__(self, other: Any) -> OpTreeNode:
        """x | y, bit by bit."""
    def __ror__(self, other: Any) -> OpTreeNode:
        """x | y, bit by bit."""
    def __xor__(self, other: Any) -> OpTreeNode:
        """x ^ y, bit by bit."""
    def __rxor__(self, other: Any) -> OpTreeNode:
        """x ^ y, bit by bit."""
    def __lshift__(self, other: Any) -> OpTreeNode:
        """x shifted left by y bits."""
    def __rlshift__(self, other: Any) -> OpTreeNode:
        """x shifted left by y bits."""
    def __rshift__(self, other: Any) -> OpTreeNode:
        """x shifted right by y bits, keeping the sign."""
    def __rrshift__(self, other: Any) -> OpTreeNode:
        """x shifted right by y bits, keeping the sign."""
    def __invert__(self) -> OpTreeNode:
        """Every bit of x flipped; of a truth value, its opposite."""
    def __neg__(self) -> OpTreeNode:
        """-x; unsigned integers wrap."""
    def __abs__(self) -> OpTreeNode:
        """|x|."""

class OpTreeNode(Operators):
    structure: Structure
    inputs: tuple
    __slots__ = ('__weakref__', 'draw', 'inputs', 'structure')
    _pretty_print = pp
    def __getitem__(self, key: Any) -> OpTreeNode: ...
    def __copy__(self) -> OpTreeNode: ...
    def __deepcopy__(self, memo: dict) -> OpTreeNode: ...
    def __reduce__(self) -> Any: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[OpTreeNode]: ...
    @staticmethod
    def build(op: str, a: Any, b: Any, out: Any=None, **params: Any) -> Any: ...
    def execute(self) -> Any: ...
    def astensor(self) -> Any: ...
    def asnumpyarray(self) -> np.ndarray: ...
    def get(self) -> np.ndarray: ...
    def __array__(self, dtype: Any=None, copy: bool | None=None) -> np.ndarray: ...
    def traverse(self, stack: list) -> list: ...
    def key(self) -> tuple: ...
    def intrinsic_key_maps(self) -> tuple[tuple, dict, dict]: ...
    @staticmethod
    def optree_to_list(tree: Any) -> Any: ...
    @staticmethod
    def list_to_optree(form: Any) -> Any: ...
    def pp(self) -> str: ...
    def to_dot(self) -> str: ...
    def __str__(self) -> str: ...
    def __repr__(self) -> str: ...

def nodes_of(root: OpTreeNode) -> list[OpTreeNode]: ...
