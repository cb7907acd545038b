# SPDX-License-Identifier: Apache-2.0
"""Linear algebra of the contract, written as op-trees over `dot`: one path for every backend.

The products here run at once and into memory that exists. Each says what may be a view; an output that overlaps an
operand is refused, since a product reads its operands many times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.errors import DTypeError, ShapeError, complain
from tensorbackend.graph import composite
from tensorbackend.graph.optree import Operators, OpTreeNode, apply, check_target, finished, operand
from tensorbackend.graph.structure import as_axis
from tensorbackend.graph.symbol import is_symbol
from tensorbackend.graph.tensor import Tensor, check_writable, share_memory
from tensorbackend.primitives import operands

__all__ = ["LinearAlgebra"]


def _scaled(product: Any, C: Any, alpha: float, beta: float, relu: bool) -> Any:
    """r(alpha product) + beta C, with r the ReLU if asked. Of integers it is exact where the scales are whole."""
    if C.dtype.kind in "iu":
        kind = np.uint64 if C.dtype.kind == "u" else np.int64
        alpha, beta = _whole(alpha, kind), _whole(beta, kind)
    value = product if alpha == 1 else product * alpha
    value = composite.relu(value) if relu else value
    return value if beta == 0 else value + C * beta


def _whole(scale: Any, kind: type[np.int64] | type[np.uint64]) -> Any:
    """A scale as an integer of 64 bits, if its value is one."""
    if is_symbol(scale):
        return scale
    value = int(scale) if isinstance(scale, (int, np.integer)) else float(scale)
    least = 0 if kind is np.uint64 else -(2**63)
    return kind(value) if least <= value < 2**63 and value == int(value) else scale


def _check_tensors(name: str, *tensors: Any) -> None:
    for t in tensors:
        if not isinstance(t, Tensor):
            raise TypeError(complain(f"{name}: tensors only", type(t).__name__, "tensors", "be.evaluate(x) first"))


def _check_distinct(name: str, out: Any, *inputs: Any) -> None:
    for x in inputs:
        if share_memory(x, out):
            raise ValueError(
                complain(f"{name}: the output overlaps an operand", f"{out.shape} and {x.shape}", "distinct memory")
            )


def _check_one_type(name: str, *tensors: Any) -> None:
    _check_tensors(name, *tensors)
    if len({t.dtype for t in tensors}) > 1:
        given = ", ".join(str(t.dtype) for t in tensors)
        raise DTypeError(complain(f"{name}: tensors of different types", given, "one dtype"))


def _check_product(name: str, a: tuple, b: tuple, c: tuple) -> None:
    if a[-1:] != b[-2:-1] or c[-2:] != (*a[-2:-1], *b[-1:]):
        raise ShapeError(complain(f"{name}: shapes", f"A {a}, B {b}, C {c}", "A (m, k), B (k, n), C (m, n)"))


def _check_matrices(name: str, A: Tensor, B: Tensor, C: Tensor) -> None:
    _check_product(name, A.shape, B.shape, C.shape)
    if not len(A.shape) == len(B.shape) == len(C.shape) == 2:
        given = f"A {A.shape}, B {B.shape}, C {C.shape}"
        raise ShapeError(complain(f"{name}: matrices only", given, "2 axes each", "be.batched_dot for batches"))


def _check_sums(name: str, bsum: Any, C: Any, *inputs: Any) -> None:
    """That the row sums of C have a place of their own, on its backend, that can be written."""
    _check_tensors(f"{name}: bsum", bsum)
    operands.check_home(C.backend, bsum)
    rows = C.shape[0]
    if bsum.shape != (rows, 1):
        raise ShapeError(complain(f"{name}: bsum", f"{bsum.shape}", f"({rows}, 1)"))
    _check_distinct(name, bsum, C, *inputs)
    check_writable(bsum)


class LinearAlgebra:
    """The products of the contract; `Backend` inherits them."""

    structures: Any

    def dot(self, a: Any, b: Any, out: Any = None) -> Any:
        """The product of an (m, k) and a (k, n) matrix (tensors, views or op-trees): a node, or `out` (m, n).

        Halves add up in float32, integers in 64 bits. Raises `ShapeError` for other ranks or inner lengths.
        """
        node = apply(ops.OPS["dot"], a, b, table=self.structures)
        if node.ndim != 2:
            raise ShapeError(
                complain("dot: matrices only", f"{a.shape} and {b.shape}", "2 axes each", "be.matmul for batches")
            )
        return finished(node, out)

    def matmul(self, a: Any, b: Any, out: Any = None) -> Any:
        """The product over the last two axes, others broadcast, as NumPy's `matmul`; a vector is a row or a column."""
        a = a if isinstance(a, Operators) else operand("matmul", a, self.structures)
        b = b if isinstance(b, Operators) else operand("matmul", b, self.structures)
        left, right = (x.shape is not None and len(x.shape) == 1 for x in (a, b))
        a = composite.reshape(a, (1, *a.shape)) if left else a
        b = composite.reshape(b, (*b.shape, 1)) if right else b
        node = apply(ops.OPS["dot"], a, b, table=self.structures)
        if left or right:
            shape = node.shape[:-2] + (() if left else node.shape[-2:-1]) + (() if right else node.shape[-1:])
            node = composite.reshape(node, shape)
        return finished(node, out)

    def compound_dot(self, A: Any, B: Any, C: Any, alpha: float = 1.0, beta: float = 0.0, relu: bool = False,
                     bsum: Any = None, repeat: int = 1, size: str | None = None) -> Tensor:  # fmt: skip
        """C = r(alpha A B) + beta C, with r = max(·, 0) if `relu`; returns C.

        A (m, k), B (k, n), C (m, n) of one dtype; each may be any strided view, A and B transposed. `bsum` (m, 1) is
        overwritten with the row sums of the new C. `repeat` > 1 runs it as often for timing, to the same result; the
        mean is logged and in `bench_records`. `size` is a tile hint that has no effect. Raises `ShapeError`,
        `DTypeError`, and `ValueError` when C overlaps A or B.
        """
        operands.check_numbers("compound_dot", alpha=alpha, beta=beta)
        _check_one_type("compound_dot", A, B, C)
        _check_matrices("compound_dot", A, B, C)
        _check_distinct("compound_dot", C, A, B)
        if bsum is not None:
            _check_sums("compound_dot", bsum, C, A, B)
        value = _scaled(self.dot(A, B), C, alpha, beta, relu)
        self._repeat("compound_dot", repeat, C, value, 2 * A.shape[1] * C.size, beta != 0)
        if bsum is not None:
            bsum._assign(composite.sum(C, 1))
        return C

    def batched_dot(self, A: Any, B: Any, C: Any, alpha: float = 1.0, beta: float = 0.0, relu: bool = False,
                    repeat: int = 1, size: str | None = None) -> Tensor:  # fmt: skip
        """The products of batches of matrices, batch axis first; returns C.

        A (X, m, k) or (m, k), B (X, k, n) or (k, n). C (X, m, n): C[i] = r(alpha A[i] B[i]) + beta C[i], a 2-D operand
        shared by all i. C (m, n): the products are summed over i. Raises as `compound_dot`.
        """
        operands.check_numbers("batched_dot", alpha=alpha, beta=beta)
        _check_one_type("batched_dot", A, B, C)
        if max(len(A.shape), len(B.shape)) != 3 or min(len(A.shape), len(B.shape)) < 2 or len(C.shape) not in (2, 3):
            raise ShapeError(
                complain("batched_dot: ranks", f"A {A.shape}, B {B.shape}, C {C.shape}", "(X, m, k) and (X, k, n)")
            )
        _check_product("batched_dot", A.shape, B.shape, C.shape)
        batches = {x.shape[0] for x in (A, B, C) if len(x.shape) == 3}
        if len(batches) > 1:
            raise ShapeError(
                complain("batched_dot: batches", f"A {A.shape}, B {B.shape}, C {C.shape}", "one length of axis 0")
            )
        _check_distinct("batched_dot", C, A, B)
        product = apply(ops.OPS["dot"], A, B, table=self.structures)
        if len(C.shape) == 2:
            product = composite.sum(product, 0, False)
        flops = 2 * batches.pop() * math.prod(A.shape[-2:]) * B.shape[-1]
        self._repeat("batched_dot", repeat, C, _scaled(product, C, alpha, beta, relu), flops, beta != 0)
        return C

    def _repeat(self, name: str, repeat: int, out: Any, value: Any, flops: int, reads_out: bool) -> None:
        """`out` = `value`; or, for timing, `repeat` times, after which `out` is what one time makes of it."""
        before = self.copy(out) if reads_out and operands.runs(name, repeat) > 1 else None
        operands.repeated(self, repeat, lambda: out._assign(value), flops, name)
        if before is not None:
            out._assign(before)
            out._assign(value)

    def xnor_compound_dot(self, A: Any, B: Any, C: Any, beta: float = 0.0, bsum: Any = None) -> Tensor:
        """The product of matrices of -1 and 1 (numbers count by their sign, 0 as 1): k - 2 popcount(a xor b).

        A (m, k), B (k, n), C (m, n); `beta` has no effect; `bsum` as in `compound_dot`.
        """
        _check_tensors("xnor_compound_dot", A, B, C)
        _check_matrices("xnor_compound_dot", A, B, C)
        _check_distinct("xnor_compound_dot", C, A, B)
        if bsum is not None:
            _check_sums("xnor_compound_dot", bsum, C, A, B)
        C._assign(self.dot(_signs(A), _signs(B)))
        if bsum is not None:
            bsum._assign(composite.sum(C, 1))
        return C

    def cublas_dot(self, A: Any, B: Any, C: Any, alpha: float = 1.0, beta: float = 0.0) -> Any:
        """C = alpha A B + beta C by the backend's best library product; returns C."""
        return self.compound_dot(A, B, C, alpha, beta)

    def copy_transpose(self, a: Any, out: Any, axes: Sequence[int] | None = None, repeat: int = 1) -> Any:
        """out = a with its axes in another order (None: reversed); returns `out`.

        Raises `ShapeError` unless `out`'s shape is the permuted one, `DTypeError` for two dtypes, `ValueError`
        for memory that overlaps.
        """
        _check_one_type("copy_transpose", a, out)
        given = range(len(a.shape))[::-1] if axes is None else axes if isinstance(axes, Iterable) else (axes,)
        order = as_axis("copy_transpose", tuple(given))
        moved = a._move("transpose", order)
        if moved.shape != out.shape:
            raise ShapeError(
                complain("copy_transpose: shapes", f"{moved.shape} into {out.shape}", "the permuted shape")
            )
        _check_distinct("copy_transpose", out, a)
        self._repeat("copy_transpose", repeat, out, moved, 0, False)
        return out

    def compensated_sum(self, sum_tensor: Any, cmp_tensor: Any, add_tensor: Any, cmp_scale: float = 1.0,
                        add_scale: float = 1.0) -> None:  # fmt: skip
        """sum += add_scale add, with the lost low part kept in `cmp_tensor` (Kahan 1965).

        With y = add_scale add + cmp_scale cmp and t = round(sum + y): cmp = y - (t - sum), sum = t. All three of one
        dtype and shape. If `cmp_tensor.kahan_reset` is set and `kahan_count` exceeds it, the compensation is dropped
        once and the count starts again. Raises `ShapeError` for several shapes, `DTypeError` for several dtypes,
        `ValueError` for memory that overlaps.
        """
        operands.check_numbers("compensated_sum", cmp_scale=cmp_scale, add_scale=add_scale)
        _check_one_type("compensated_sum", sum_tensor, cmp_tensor, add_tensor)
        if not sum_tensor.shape == cmp_tensor.shape == add_tensor.shape:
            given = f"{sum_tensor.shape}, {cmp_tensor.shape}, {add_tensor.shape}"
            raise ShapeError(complain("compensated_sum: shapes differ", given, "one shape"))
        _check_distinct("compensated_sum", sum_tensor, cmp_tensor, add_tensor)
        _check_distinct("compensated_sum", cmp_tensor, add_tensor)
        for x in (sum_tensor, cmp_tensor, add_tensor):
            operands.check_home(self, x)
        check_writable(sum_tensor)
        check_writable(cmp_tensor)
        count = cmp_tensor.kahan_count
        if cmp_tensor.kahan_reset and count > cmp_tensor.kahan_reset:
            cmp_scale, count = 0.0, 0
        cmp_tensor.kahan_count = count + 1
        y = self.evaluate(add_tensor * add_scale + cmp_tensor * cmp_scale, dtype=dtypes.compute(sum_tensor.dtype))
        before = self.copy(sum_tensor)
        sum_tensor._assign(before + y)
        cmp_tensor._assign(y - (sum_tensor - before))

    def update_fc_bias(self, err: Any, out: Any) -> Tensor:
        """out = the sums of `err` (nout, N) over its rows' entries: the bias gradient (nout, 1) of a dense layer.

        Raises `ShapeError` for another size of `out`.
        """
        check_target("update_fc_bias: out", out)
        sums = self.sum(err, 1)
        if math.prod(out.shape) != math.prod(sums.shape):
            raise ShapeError(complain("update_fc_bias: shape of out", f"{out.shape}", f"{sums.shape}"))
        return out._assign(sums)

    def add_fc_bias(self, inputs: Any, bias: Any) -> Any:
        """inputs += bias, a column (nout, 1) beside (nout, N); returns `inputs`.

        Raises `ShapeError` for a bias of another shape that is no number.
        """
        check_target("add_fc_bias: inputs", inputs)
        shape, column = getattr(bias, "shape", None), (*inputs.shape[:1], 1)
        if shape and shape != column:
            raise ShapeError(complain("add_fc_bias: shape of bias", f"{shape}", f"{column}"))
        return inputs._assign(self.add(inputs, bias))


def _signs(x: Operators) -> OpTreeNode:
    return composite.where(x >= 0, 1.0, -1.0)
