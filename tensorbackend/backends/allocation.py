# SPDX-License-Identifier: Apache-2.0
"""New tensors: the allocating methods of the contract."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import BackendError, DTypeError, complain
from tensorbackend.graph import indexing
from tensorbackend.graph.optree import Operators, check_target
from tensorbackend.graph.ranges import RANGES, check
from tensorbackend.graph.structure import StructureTable, sized
from tensorbackend.graph.symbol import is_symbol, refuse_array
from tensorbackend.graph.tensor import Storage, Tensor, as_shape
from tensorbackend.primitives.operands import check_parallelism

__all__ = ["Allocation", "check_batch_size", "check_room", "host_array", "host_range", "rank_rule"]


def host_range(start: Any, stop: Any, step: Any) -> np.ndarray:
    """NumPy's `arange`, up to `start` where `stop` is None. Raises `ValueError` for ends that are not finite, and for a
    step of 0."""
    check("arange", "a finite number", start=start, **({} if stop is None else {"stop": stop}))
    check("arange", "a finite number, not 0", step=step)
    try:
        return np.arange(start, step=step) if stop is None else np.arange(start, stop, step)
    except ValueError:
        ends = f"0 to {start}" if stop is None else f"{start} to {stop}"
        raise ValueError(complain("arange: too many numbers", f"{ends} by {step}", "as many as memory holds")) from None


def check_batch_size(name: str, size: Any) -> None:
    """Raise `ValueError` for what is no batch size, nor None."""
    if size is not None and not RANGES["an int of 0 or more"](size):
        raise ValueError(complain(name, repr(size), "an int of 0 or more, or None"))


class Allocation:
    """The allocating methods of the contract; `Backend` inherits them."""

    structures: StructureTable
    default_dtype: np.dtype
    tensor_cls: type[Tensor]
    num_devices: int
    evaluate: Callable[..., Tensor]
    _upload: Callable[[Tensor, np.ndarray], None]
    _given_memory: Callable[[Any, int], Storage]

    @property
    def bsz(self) -> int | None:
        """The batch size of `iobuf`, an int of 0 or more; None: not set yet."""
        return self._bsz

    @bsz.setter
    def bsz(self, size: int | None) -> None:
        check_batch_size("bsz", size)
        self._bsz = size

    def empty(
        self,
        shape: Any,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
        allocator: Callable[[int], Any] | None = None,
        min_dims: int | None = None,
    ) -> Tensor:
        """An uninitialised tensor. `dtype` None is `default_dtype`; `parallel`, `distributed`: no effect here.

        `allocator(nbytes)` gives the memory in the backend's place, and the tensor keeps it until it ends: on the host
        an array or a writable buffer (`bytearray`, `mmap`, shared memory), on a device what `int()` makes the address
        of (a tensor, an allocation of CuPy's or PyCUDA's, an address).

        Raises `TypeError` for lengths that are not integers, and for another element type than tensors have; of an
        allocator's memory `ValueError` if it is too small or not aligned, `TypeError` if it is none.
        """
        self.structures.check_open()
        if shape is None:
            raise TypeError(complain("shape: lengths must be integers", "None", "an int or several"))
        kind = self.default_dtype if dtype is None else dtype
        return self.tensor_cls(
            self, shape, kind, name=name, persist_values=persist_values, min_dims=min_dims, allocator=allocator
        )

    def _memory_of(self, allocator: Callable[[int], Any], nbytes: int, dtype: np.dtype) -> Storage:
        """Memory that a caller's allocator gives for `nbytes` of elements of a type."""
        if not callable(allocator):
            raise TypeError(complain("allocator", repr(allocator), "a function of the number of bytes, or None"))
        storage = self._given_memory(allocator(max(nbytes, 1)), nbytes)
        if storage.address % dtype.alignment or not storage.address:
            given, expected = f"{dtype} at address {storage.address}", f"a multiple of {dtype.alignment}"
            raise ValueError(complain("allocator: memory that is not aligned", given, expected))
        return storage

    def array(
        self,
        ary: Any,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        parallel: bool = False,
        distributed: bool = False,
        allocator: Callable[[int], Any] | None = None,
        min_dims: int | None = None,
    ) -> Tensor:
        """A tensor with a copy of host data (anything `np.asarray` takes), converted to `dtype` (None: the default)."""
        self.structures.check_open()
        values = host_array(ary, "array")
        out = self.empty(values.shape, dtype, name, persist_values, False, False, allocator, min_dims)
        self._upload(out, values.reshape(out.shape))
        return out

    def zeros(self, shape: Any, dtype: Any = None, name: str | None = None, persist_values: bool = True,
              parallel: bool = False, distributed: bool = False, allocator: Callable[[int], Any] | None = None,
              min_dims: int | None = None) -> Tensor:  # fmt: skip
        """A tensor of zeros; arguments as `empty`."""
        return self.empty(shape, dtype, name, persist_values, False, False, allocator, min_dims)._assign(0)

    def ones(self, shape: Any, dtype: Any = None, name: str | None = None, persist_values: bool = True,
             parallel: bool = False, distributed: bool = False, allocator: Callable[[int], Any] | None = None,
             min_dims: int | None = None) -> Tensor:  # fmt: skip
        """A tensor of ones; arguments as `empty`."""
        return self.empty(shape, dtype, name, persist_values, False, False, allocator, min_dims)._assign(1)

    def full(self, shape: Any, value: Any, dtype: Any = None, name: str | None = None,
             min_dims: int | None = None) -> Tensor:  # fmt: skip
        """A tensor with every element `value`."""
        return self.empty(shape, dtype, name, min_dims=min_dims)._assign(value)

    def arange(
        self, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, min_dims: int | None = None
    ) -> Tensor:
        """The numbers from `start` (0 if only one is given) up to `stop`, as NumPy's `arange`. Raises `ValueError` for
        ends that are not finite, and for a step of 0."""
        return self.array(host_range(start, stop, step), dtype=dtype, min_dims=min_dims)

    def empty_like(self, other_ary: Any, name: str | None = None, dtype: Any = None,
                   persist_values: bool | None = None) -> Tensor:  # fmt: skip
        """An uninitialised tensor of the argument's shape and, unless they are given, type and `persist_values`.

        Raises `TypeError` for what is no tensor, op-tree or array, `ShapeError` for a tree without a shape of its own.
        """
        if not (hasattr(other_ary, "shape") and hasattr(other_ary, "dtype")):
            expected = "a tensor, op-tree or array"
            raise TypeError(complain("empty_like: shape and type of what", type(other_ary).__name__, expected))
        known = isinstance(other_ary, Operators) and other_ary.structure.op is not None
        shape = sized(other_ary.structure.op, other_ary.structure) if known else other_ary.shape
        persist = getattr(other_ary, "persist_values", True) if persist_values is None else persist_values
        kind = other_ary.dtype if dtype is None else dtype
        return self.empty(shape, kind, name, persist, min_dims=rank_rule(other_ary))

    def zeros_like(self, other_ary: Any, name: str | None = None, dtype: Any = None,
                   persist_values: bool | None = None) -> Tensor:  # fmt: skip
        """Zeros of the argument's shape and (unless `dtype` is given) type; as `empty_like`."""
        return self.empty_like(other_ary, name, dtype, persist_values)._assign(0)

    def ones_like(self, other_ary: Any, name: str | None = None, dtype: Any = None,
                  persist_values: bool | None = None) -> Tensor:  # fmt: skip
        """Ones of the argument's shape and (unless `dtype` is given) type; as `empty_like`."""
        return self.empty_like(other_ary, name, dtype, persist_values)._assign(1)

    def copy(self, a: Any, name: str | None = None) -> Tensor:
        """A new contiguous tensor with the value of a tensor or op-tree."""
        out = self.evaluate(a)
        out.name = name
        return out

    def iobuf(
        self,
        dim0: Any,
        x: Tensor | None = None,
        dtype: Any = None,
        name: str | None = None,
        persist_values: bool = True,
        shared: Tensor | None = None,
        parallelism: str | None = None,
    ) -> Tensor:
        """A zeroed buffer for activations of the current batch size `bsz`.

        `x` is returned unchanged if given. `dim0` an int gives (dim0, bsz), two ints (features, steps · bsz), more
        (their product, bsz). `shared` lends its memory. `parallelism` ('Data', 'Model', 'Disabled', 'Unknown') has no
        effect on one device. Raises `ValueError` for another, or when no batch size is set, `TypeError` for a `shared`
        that is no tensor and `BackendError` for one of another backend.
        """
        check_parallelism("iobuf", parallelism)
        if x is not None:
            return x
        if not self.bsz:
            given, todo = f"be.bsz is {self.bsz}", "be.bsz = 128, or gen_backend(batch_size=128)"
            raise ValueError(complain("iobuf: no batch size", given, "an int above 0", todo))
        dims = as_shape(dim0, 0)
        shape = (dims[0], dims[1] * self.bsz) if len(dims) == 2 else (math.prod(dims), self.bsz)
        if shared is None:
            return self.zeros(shape, dtype, name, persist_values)
        check_target("iobuf: shared", shared)
        if shared.structure.table is not self.structures:
            given, hint = f"a tensor of {shared.backend!r}", "a buffer made by this backend"
            raise BackendError(complain("iobuf: shared memory of another backend", given, repr(self), hint))
        fits = shared.shape == shape and (dtype is None or dtype == shared.dtype)
        out = shared if fits else shared.share(shape, dtype, name)
        return out._assign(0)

    def shared_iobuf_size(self, shape: Any, parallelism: str | None) -> int:
        """The elements of a shared buffer: the shape's, times the devices unless `parallelism` is 'Data' or 'Model'.
        Raises `ValueError` for another than these, 'Disabled', 'Unknown' and None."""
        check_parallelism("shared_iobuf_size", parallelism)
        size = math.prod(as_shape(shape, 0))
        return size if parallelism in ("Data", "Model") else size * self.num_devices


def check_room(room: int, nbytes: int) -> None:
    """Raise `ValueError` when an allocator gave less memory than asked."""
    if room < nbytes:
        raise ValueError(complain("allocator: too little memory", f"{room} bytes", f"{nbytes} bytes or more"))


def rank_rule(like: Any) -> int:
    """The least rank that a tensor made in the likeness of another, or of a tree, has."""
    return min(like.structure.min_dims, len(like.shape)) if isinstance(like, Operators) else 0


def host_array(value: Any, name: str) -> np.ndarray:
    """Host data as an array of numbers. Raises `DTypeError` for objects, strings and complex numbers, and
    `CaptureError` for what holds a symbol."""
    if isinstance(value, Tensor):
        return value.get()
    values = indexing.as_array(name, value)
    if values.dtype.kind not in "biuf" and not dtypes.is_float(values.dtype):
        for symbol in filter(is_symbol, values.flat):
            refuse_array(symbol)
        beyond = [v for v in values.flat if isinstance(v, int) and not -(2**63) <= v < 2**64]
        if beyond:
            expected = "-2**63 to 2**64 - 1"
            raise DTypeError(complain(f"{name}: an integer beyond 64 bits", str(beyond[0]), expected, "float(...)"))
        raise DTypeError(complain(f"{name}: not numbers", f"{type(value).__name__} of {values.dtype}", "numbers"))
    return values
