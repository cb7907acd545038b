# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's matrix products, cuBLAS, through ctypes: a candidate for `dot` on a device, for any driver.

The library comes with CuPy's toolkit wheels or with the system's CUDA. It sees matrices by columns; ours lie by rows:
it is asked for C' = B' A', which is the same memory.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from ctypes import POINTER, byref, c_int, c_longlong, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorbackend.errors import BackendError, complain
from tensorbackend.graph.plan import Ref

__all__ = ["Cublas", "Matrix", "Product", "find_library", "product_of"]

LIMIT = 2**31 - 1
"""Lengths and steps are 32-bit numbers."""
KEEP, TURN = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType
COMPUTE = {"float32": (68, ctypes.c_float), "float64": (70, ctypes.c_double)}  # CUBLAS_COMPUTE_32F, _64F


@dataclass(frozen=True)
class Matrix:
    """How one operand lies: `operation` turns it or not, `step` elements from one of its lines to the next, `stride`
    from one matrix of the batch to the next."""

    operation: int
    step: int
    stride: int


@dataclass(frozen=True)
class Product:
    """`batches` products of m x k and k x n matrices, of type `given` in and `result` out, which is contiguous; of a
    single product, its rows may be `pitch` apart, and with `more` it is added to what is there."""

    m: int
    n: int
    k: int
    batches: int
    left: Matrix
    right: Matrix
    given: str
    result: str
    pitch: int = 0
    more: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k * self.batches


def product_of(x: Ref, y: Ref, out: Ref) -> Product | None:
    """`dot` of two operands as cuBLAS takes it; None where it cannot: other types, steps along both axes, overlapping
    rows, batches that are not one step apart, lengths of 2^31."""
    lengths = out.shape[:-2]
    left, right = _matrix(x, lengths), _matrix(y, lengths)
    known = x.dtype == y.dtype and x.dtype.name in TYPES and out.dtype.name in COMPUTE
    if left is None or right is None or not known or (x.dtype == np.float64) != (out.dtype == np.float64):
        return None
    m, n, k, batches = out.shape[-2], out.shape[-1], x.shape[-1], math.prod(lengths)
    if not 0 < min(m, n, k, batches) or max(m, n, k, batches, left.step, right.step) > LIMIT:
        return None
    return Product(m, n, k, batches, left, right, x.dtype.name, out.dtype.name)


def _matrix(x: Ref, lengths: tuple[int, ...]) -> Matrix | None:
    """How the last two axes lie, and the batches; None where cuBLAS has no words for it."""
    rows, columns = x.shape[-2:]
    down, along = x.strides[-2:]
    stride = _batch_stride(x.broadcast_to((*lengths, rows, columns)).strides[: len(lengths)], lengths)
    if stride is None:
        return None
    if (along == 1 or columns == 1) and (down >= columns or rows == 1):
        return Matrix(KEEP, max(down if rows > 1 else columns, columns), stride)
    if (down == 1 or rows == 1) and (along >= rows or columns == 1):
        return Matrix(TURN, max(along if columns > 1 else rows, rows), stride)
    return None


def _batch_stride(strides: tuple[int, ...], lengths: tuple[int, ...]) -> int | None:
    """The elements from one matrix of a batch to the next, over all axes of the batch; None where that varies or is
    negative, of which cuBLAS says nothing."""
    axes = [(n, s) for n, s in zip(lengths, strides) if n != 1]
    for (_, outer), (n, inner) in zip(axes, axes[1:]):
        if outer != inner * n:
            return None
    stride = axes[-1][1] if axes else 0
    return stride if stride >= 0 else None


class Cublas:
    """cuBLAS on a stream. `library` is the loaded one; `using_device` makes the device current and its errors ours."""

    def __init__(
        self, library: ctypes.CDLL, stream: int, using_device: Callable[[str], AbstractContextManager]
    ) -> None:
        self._library = library
        self._using_device = using_device
        self._handle = c_void_p()
        matrix = [c_void_p, c_int, c_int, c_longlong]
        numbers = [c_int] * 3
        library.cublasCreate_v2.argtypes = [POINTER(c_void_p)]
        library.cublasSetStream_v2.argtypes = [c_void_p, c_void_p]
        library.cublasGemmStridedBatchedEx.argtypes = [
            c_void_p, c_int, c_int, *numbers, c_void_p, *matrix, *matrix, c_void_p, *matrix, *numbers,
        ]  # fmt: skip
        with using_device("cublas"):
            self._check(library.cublasCreate_v2(byref(self._handle)))
            self._check(library.cublasSetStream_v2(self._handle, stream))

    @property
    def function(self) -> Any:
        """The library's function for products."""
        return self._library.cublasGemmStridedBatchedEx

    def arguments(self, p: Product) -> tuple[int, ...]:
        """What the function takes beside addresses, as kernels/c/cuda_launch.c has it."""
        compute, number = COMPUTE[p.result]
        return (self._handle.value, p.right.operation, p.left.operation, p.n, p.m, p.k, TYPES[p.given], p.right.step,
                p.right.stride, p.left.step, p.left.stride, TYPES[p.result], p.pitch or p.n, p.m * p.n, p.batches,
                compute, DEFAULT_ALGORITHM, number is ctypes.c_double, p.more)  # fmt: skip

    def multiply(self, p: Product, a: int, b: int, c: int) -> None:
        """C = A B on matrices at addresses. Raises `BackendError` when cuBLAS refuses."""
        compute, number = COMPUTE[p.result]
        given, one, keep = TYPES[p.given], number(1), number(p.more)
        with self._using_device("cublas"):
            status = self._library.cublasGemmStridedBatchedEx(
                self._handle, p.right.operation, p.left.operation, p.n, p.m, p.k, byref(one),
                b, given, p.right.step, p.right.stride, a, given, p.left.step, p.left.stride, byref(keep),
                c, TYPES[p.result], p.pitch or p.n, p.m * p.n, p.batches, compute, DEFAULT_ALGORITHM,
            )  # fmt: skip
            self._check(status)

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise BackendError(complain("cuBLAS refuses", f"status {status} of cublasStatus_t"))


def find_library() -> ctypes.CDLL | None:
    """The newest cuBLAS of NVIDIA's wheels, or the system's; None where there is none that can be loaded."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    wheels = [path for place in places for path in Path(place).glob("*/lib/libcublas.so.*")]
    newest = max(wheels, key=lambda path: int(path.name.split(".")[2]), default=None)
    name = str(newest) if newest is not None else ctypes.util.find_library("cublas")
    if name is None:
        return None
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None
