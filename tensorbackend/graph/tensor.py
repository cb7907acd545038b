# SPDX-License-Identifier: Apache-2.0
"""Tensors: typed, strided views on a backend's memory.

A tensor keeps an address and an interned layout (`structure`), so that nothing on the way to a kernel asks NumPy
for a pointer. Slices, transposes and reshapes are views; operators build op-trees; assignment runs them.
What lies in memory is the backend's business: this module calls its hooks and never touches a number.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.errors import BackendError, DTypeError, ShapeError, complain
from tensorbackend.graph import indexing
from tensorbackend.graph.optree import Operators, OpTreeNode, apply
from tensorbackend.graph.structure import Structure, StructureTable, as_axis

__all__ = ["Storage", "TakeView", "Tensor", "as_shape", "overlap", "share_memory"]

_new = object.__new__
_WHOLE = slice(None)
_RANK_RULES = (0, 1, 2)


class Storage:
    """A piece of a backend's memory: its address, size in bytes, who keeps it alive, and whether it may be written."""

    __slots__ = ("__weakref__", "address", "nbytes", "owner", "writable")

    def __init__(self, address: int, nbytes: int, owner: Any, writable: bool = True) -> None:
        self.address = address
        self.nbytes = nbytes
        self.owner = owner
        self.writable = writable


def check_min_dims(min_dims: Any) -> None:
    """Raise `ValueError` for another least number of axes than 0, 1 or 2."""
    if not isinstance(min_dims, (int, np.integer)) or min_dims not in _RANK_RULES:
        raise ValueError(complain("min_dims", repr(min_dims), "0, 1 or 2"))


def as_shape(shape: Any, min_dims: int) -> tuple[int, ...]:
    """A shape from an int or a sequence of ints, under the column rule: with `min_dims` 2, n becomes (n, 1).

    Raises `TypeError` for lengths that are not integers, `ShapeError` for negative ones, `ValueError` for another
    `min_dims` than 0, 1 or 2.
    """
    check_min_dims(min_dims)
    parts = shape if isinstance(shape, (tuple, list)) or getattr(shape, "ndim", 0) == 1 else (shape,)
    try:
        result = tuple(map(operator.index, parts))
    except TypeError:
        raise TypeError(complain("shape: lengths must be integers", repr(shape), "an int or several")) from None
    if min(result, default=0) < 0:
        raise ShapeError(complain("shape: a negative length", repr(shape), "lengths of 0 or more"))
    indexing.check_rank("shape", len(result))
    return result + (1,) * (min_dims - len(result))


class Tensor(Operators):
    """A typed, strided view on memory of a backend.

    Made by a backend's `empty`, `zeros`, `ones`, `array`, … or as a view of another tensor. `base` is the tensor it
    is a view of (None if none), `name` and `persist_values` are the caller's, `rounding` the mantissa bits kept by
    stochastic rounding on assignment (0: off). Any further attribute may be set.
    """

    __slots__ = ("__dict__", "__weakref__", "_array", "address", "base", "name", "persist_values", "rounding", "span",
                 "start", "stop", "storage", "structure")  # fmt: skip

    structure: Structure

    take_array = None
    """No picked entries: a `TakeView` says (indices, axis) here."""
    kahan_count = 0
    """The sums that `compensated_sum` has compensated by this tensor since it was last dropped."""
    kahan_reset = 0
    """The count after which `compensated_sum` drops the compensation once; 0: never."""

    def __init__(
        self,
        backend: Any,
        shape: Any = None,
        dtype: Any = np.float32,
        name: str | None = None,
        persist_values: bool = True,
        min_dims: int | None = None,
        allocator: Callable[[int], Any] | None = None,
    ) -> None:
        """A tensor in fresh, uninitialised memory of `backend` or `allocator` (see `empty`); a `shape` of None is one
        element."""
        minimum = backend.min_dims if min_dims is None else min_dims
        wanted = as_shape(() if shape is None else shape, minimum)
        dtype = dtypes.as_dtype(dtype)
        nbytes = math.prod(wanted) * dtype.itemsize
        storage = backend._allocate(nbytes) if allocator is None else backend._memory_of(allocator, nbytes, dtype)
        layout = backend.structures.contiguous(dtype, wanted, minimum)
        self._place(layout, storage, storage.address)
        self.base = None
        self.name = name
        self.persist_values = persist_values
        self.rounding = backend.round_mode

    def _place(self, layout: Structure, storage: Storage, address: int) -> None:
        self.structure = layout
        self.storage = storage
        self.address = address
        low, high = layout.extent
        self.start = address + low
        self.stop = address + high
        self.span = None  # address, start and stop as native code keeps them
        self._array = None

    def _view(
        self, shape: tuple, strides: tuple, offset: int, dtype: Any = None, min_dims: int | None = None
    ) -> Tensor:
        """A tensor on the same memory: `offset` from the first element and `strides` count elements."""
        s = self.structure
        layout = s.table.tensor(dtype or s.dtype, shape, strides, s.min_dims if min_dims is None else min_dims)
        return self._seen_as(type(self), layout, self.address + offset * s.dtype.itemsize)

    def _seen_as(self, cls: type[Tensor], layout: Structure, address: int) -> Tensor:
        """An object of a class on the same memory, of a layout whose first element is at an address."""
        view = _new(cls)
        view._place(layout, self.storage, address)
        view.base = self
        view.name = self.name
        view.persist_values = self.persist_values
        view.rounding = self.rounding
        return view

    # Facts

    @property
    def strides(self) -> tuple[int, ...]:
        """The distance between neighbours along each axis, in elements."""
        return self.structure.strides

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return self.size * self.structure.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""
        expected = 1
        for length, stride in zip(reversed(self.structure.shape), reversed(self.structure.strides)):
            if length != 1 and stride != expected and self.size:
                return False
            expected *= length
        return True

    @property
    def is_trans(self) -> bool:
        """Whether the tensor is the transpose of a contiguous matrix (an odd number of `.T`)."""
        return self.ndim >= 2 and not self.is_contiguous and self.T.is_contiguous

    @property
    def _original_base(self) -> Tensor:
        root = self
        while root.base is not None:
            root = root.base
        return root

    @property
    def ptr(self) -> int:
        """The address of the first element, whose value is there: what waits in a `be.fuse()` block runs."""
        self.backend._flush()
        return self.address

    gpudata = ptr

    def __int__(self) -> int:
        return self.ptr

    def raw(self) -> int:
        """The address of the first element, as `ptr`."""
        return self.ptr

    def __len__(self) -> int:
        if not self.structure.shape:
            raise TypeError("len() of a tensor without axes")
        return self.structure.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        raise TypeError(complain("`in`: elements compare lazily", "", "", "be.any(t == value).get()"))

    # Movements: views

    def _move(self, name: str, *params: Any) -> Any:
        s = self.structure
        if name == "transpose":
            axes = apply(ops.OPS[name], self, params=params, table=s.table).structure.params[0]
            return self._view(tuple(map(s.shape.__getitem__, axes)), tuple(map(s.strides.__getitem__, axes)), 0)
        if name == "reshape":
            return self._reshape(params[0])
        if name == "broadcast":
            shape = apply(ops.OPS[name], self, params=params).structure.shape
            lead = len(shape) - len(s.shape)
            kept = tuple(0 if n == 1 and m != 1 else t for n, m, t in zip(s.shape, shape[lead:], s.strides))
            return self._view(shape, (0,) * lead + kept, 0)
        return apply(ops.OPS[name], self, params=params)

    def _reshape(self, wanted: tuple) -> Any:
        s = self.structure
        shape = indexing.reshaped(s.shape, wanted)
        if shape == s.shape:
            return self
        strides = indexing.view_strides(s.shape, s.strides, shape)
        if strides is None:
            raise ShapeError(
                complain(
                    "reshape: no view has this shape",
                    f"shape {s.shape}, strides {s.strides}, to {shape}",
                    "elements in C order without gaps",
                    "be.copy(t).reshape(...) to copy first",
                )
            )
        return self._view(shape, strides, 0)

    def dimension_reorder(self, new_order: Sequence[int]) -> Tensor:
        """A reshape to the lengths in another order; the data are not permuted (`transpose` does that).

        Raises `ShapeError` unless `new_order` names each axis once.
        """
        order = indexing.whole("dimension_reorder", new_order)
        if sorted(order) != list(range(self.ndim)):
            raise ShapeError(complain("dimension_reorder: not an order of the axes", str(new_order), "each axis once"))
        return self.reshape([self.structure.shape[a] for a in order])

    def share(self, shape: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """A view on the first elements under another shape (and `dtype`, counted in bytes).

        Raises `ShapeError` when it would be larger than this tensor, this tensor is not contiguous, or it begins where
        no element of `dtype` may lie.
        """
        s = self.structure
        kind = s.dtype if dtype is None else dtypes.as_dtype(dtype)
        wanted = as_shape(shape, s.min_dims)
        needed = math.prod(wanted) * kind.itemsize
        if needed > self.nbytes or not self.is_contiguous:
            given = f"{self.nbytes} {'contiguous ' * self.is_contiguous}bytes of {s.shape} {s.dtype}"
            raise ShapeError(complain("share: does not fit", given, f"{needed} contiguous bytes for {wanted} {kind}"))
        if self.address % kind.alignment:
            given, expected = f"{s.dtype} at address {self.address}, as {kind}", f"a multiple of {kind.alignment}"
            raise ShapeError(complain("share: alignment", given, expected, "a view that begins at one"))
        view = self._view(wanted, indexing.contiguous_strides(wanted), 0, kind)
        view.name = name or self.name
        return view

    def __getitem__(self, key: Any) -> Any:
        if type(key) is slice and key == slice(None):
            return self
        if indexing.is_fancy(key):
            return self._pick(key)
        s = self.structure
        return self._view(*indexing.basic(key, s.shape, s.strides, s.min_dims))

    def _pick(self, key: Any) -> Any:
        """Reading by arrays: a writable view of the entries for one index array, a copy otherwise."""
        self.structure.table.check_open()
        key = _computed(key, self.structure.table)
        parts = indexing.expand(key, self.ndim)
        arrays = [(i, k) for i, k in enumerate(parts) if not (k is None or isinstance(k, slice))]
        if len(arrays) == 1 and None not in [k if k is None else 0 for k in parts]:
            axis, picked = arrays[0]
            indices = self.backend._as_indices(picked)
            if indices is not None:
                rest = tuple(slice(None) if i == axis else k for i, k in enumerate(parts))
                return TakeView.of(self if all(k == _WHOLE for k in rest) else self[rest], indices, axis)
        return self.backend._gather(self, key)

    def take(self, indices: Any, axis: int, out: Any = None) -> Any:
        """The entries along `axis` at `indices` (integers: a tensor, array or list), written into `out` if given."""
        return self.backend.take(self, indices, axis, out)

    # Assignment

    def __delitem__(self, key: Any) -> None:
        raise TypeError(complain("del: the elements of a tensor stay", hint="be.copy(t[kept])"))

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(key) is slice and key == _WHOLE:
            self.structure.table.backend._assign(self, value)
        elif indexing.is_fancy(key):
            self.structure.table.check_open()
            self.backend._scatter_rounded(self, _computed(key, self.structure.table), value)
        else:
            view = self[key]
            view._assign(value)

    def _assign(self, value: Any) -> Tensor:
        self.backend._assign(self, value)
        return self

    def fill(self, value: Any) -> Tensor:
        """Set every element to a number; returns self."""
        return self._assign(value)

    def copy(self, a: Any) -> Tensor:
        """Copy `a` into this tensor (unlike NumPy's `copy`); returns self."""
        return self._assign(a)

    def copy_from(self, a: Any) -> Tensor:
        """Copy host data into this tensor; returns self."""
        return self._assign(indexing.as_array("copy_from", a))

    def set(self, ary: Any) -> Tensor:
        """Copy host data of the same size in, cast to the tensor's type; returns self."""
        return self._assign(indexing.as_array("set", ary))

    # Reading

    def get(self) -> np.ndarray:
        """The elements as a new host array."""
        return self.backend._download(self)

    def asnumpyarray(self) -> np.ndarray:
        """The elements as a host array."""
        return self.get()

    def asbuffer(self) -> memoryview:
        """The bytes of a contiguous tensor: its memory where the host has it, else a copy. Raises `ShapeError`."""
        if not self.is_contiguous:
            raise ShapeError(complain("asbuffer: not contiguous", f"strides {self.strides}", "C order", "be.copy(t)"))
        return memoryview(self.get().reshape(-1).view(np.uint8))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(complain("asarray: a copy is needed", "copy=False", "copy=None"))
        values = self.get()
        return values if dtype is None else values.astype(dtype, copy=False)

    def hist(self, tag: str) -> Tensor:
        """Count the elements by magnitude (powers of two) under `tag`; see `Backend.dump_hist_data`."""
        return self.backend._histogram(self, tag)

    def __repr__(self) -> str:
        s = self.structure
        name = f" {self.name!r}" if self.name else ""
        head = f"{type(self).__name__}{name} shape {s.shape} {s.dtype} on {self.backend.backend_name}"
        if self.size == 0 or (s.table.closed and not self._readable()):
            return head
        whole = self.size <= 1000
        shown = self.get() if whole else self._edges()
        return f"{head}\n{np.array2string(shown, threshold=1000 if whole else 0, edgeitems=3, precision=5)}"

    def _readable(self) -> bool:
        return self.storage.owner is not None

    def _edges(self) -> np.ndarray:
        """The first four and last three entries of each axis that has more, of which NumPy prints three and three."""
        shape, strides = self.shape, self.structure.strides
        long = next((axis for axis, n in enumerate(shape) if n > 7), None)
        if long is None:
            return np.asarray(self.get())
        parts = ((4, 0), (3, (shape[long] - 3) * strides[long]))
        views = [self._view((*shape[:long], n, *shape[long + 1 :]), strides, offset) for n, offset in parts]
        return np.concatenate([view._edges() for view in views], long)

    __str__ = __repr__

    def __reduce__(self) -> Any:
        raise TypeError(complain("pickle: a tensor belongs to a backend", "", "", "pickle t.get() and use be.array"))

    def __deepcopy__(self, memo: dict) -> Tensor:
        made = memo[id(self)] = self._copied()
        made.__dict__.update(copy.deepcopy(self._own_attributes(), memo))
        return made

    def __copy__(self) -> Tensor:
        made = self._copied()
        made.__dict__.update(self._own_attributes())
        return made

    def _copied(self) -> Any:
        """A tensor of the same kind, name and value in memory of its own."""
        made = self.backend.copy(self, self.name)
        made.persist_values = self.persist_values
        return made

    def _own_attributes(self) -> dict[str, Any]:
        """The attributes that users have set."""
        return {name: value for name, value in self.__dict__.items() if name != "_presented"}


class TakeView(OpTreeNode):
    """The entries of a tensor along one axis at given places: an expression that can also be assigned to.

    Reading gathers when the value is needed; assigning scatters into the tensor (for a place named twice, the last
    value stays).
    """

    __slots__ = ("__dict__",)

    @classmethod
    def of(cls, tensor: Any, indices: Tensor, axis: int) -> TakeView:
        """The view of `tensor` at integer `indices` along `axis`."""
        node = apply(ops.OPS["take"], tensor, indices, params=(as_axis("take", axis),))
        view = _new(cls)
        view.structure, view.inputs = node.structure, node.inputs
        return view

    @property
    def take_array(self) -> tuple[Tensor, int]:
        """What is picked: the integer indices, and the axis along which they count."""
        return self.inputs[1], self.structure.params[0]

    is_contiguous = False

    @property
    def base(self) -> Tensor:
        """The tensor whose entries are picked."""
        return self.inputs[0]

    @property
    def _original_base(self) -> Tensor:
        return self.base._original_base

    @property
    def nbytes(self) -> int:
        """The size of the picked entries in bytes."""
        return self.size * self.structure.dtype.itemsize

    def __getattr__(self, name: str) -> Any:
        if name in ("name", "persist_values", "rounding"):  # until the caller says otherwise, the tensor's
            return getattr(self.inputs[0], name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getitem__(self, key: Any) -> Any:
        return self if type(key) is slice and key == _WHOLE else super().__getitem__(key)

    def __copy__(self) -> TakeView:
        view = _new(TakeView)
        view.structure, view.inputs = self.structure, self.inputs
        view.__dict__.update(self.__dict__)
        return view

    def __setitem__(self, key: Any, value: Any) -> None:
        if not (isinstance(key, slice) and key == slice(None)):
            raise IndexError(complain("assignment into picked entries: whole only", str(key), "[:]"))
        self._assign(value)

    def _assign(self, value: Any) -> TakeView:
        tensor, indices = self.inputs
        tensor.structure.table.check_open()
        (axis,) = self.structure.params
        tensor.backend._scatter_rounded(tensor, (slice(None),) * axis + (indices,), value)
        return self

    def fill(self, value: Any) -> TakeView:
        """Set the picked entries to a number; returns self."""
        return self._assign(value)

    def copy(self, a: Any) -> TakeView:
        """Write the value of a tensor, op-tree or number into the picked entries; returns self."""
        return self._assign(a)

    def copy_from(self, a: Any) -> TakeView:
        """Copy from host memory into the picked entries; returns self."""
        return self._assign(indexing.as_array("copy_from", a))

    def take(self, indices: Any, axis: int, out: Any = None) -> Any:
        """Entries of the picked ones, as `Tensor.take`."""
        return self.backend.take(self, indices, axis, out)

    def hist(self, tag: str) -> Tensor:
        """Count the picked entries by magnitude, as `Tensor.hist`."""
        return self.backend.evaluate(self).hist(tag)

    def set(self, ary: Any) -> TakeView:
        """Copy host data into the picked entries; returns self."""
        return self._assign(indexing.as_array("set", ary))

    def reshape(self, *shape: Any) -> Any:
        """Refused, as the entries are no view of memory: raises `ShapeError`."""
        raise ShapeError(
            complain("reshape: picked entries are no view", f"{self.shape}", "a tensor", "be.evaluate(v) first")
        )


def _computed(key: Any, table: StructureTable) -> Any:
    """An index with its op-trees (`t[t > 0]`) replaced by their values. Raises `BackendError` for tensors and trees of
    another backend than that of `table`."""
    parts = key if isinstance(key, tuple) else (key,)
    for k in parts:
        if isinstance(k, Operators) and k.structure.table is not table:
            k.structure.table.check_open()
            given = f"{k.backend!r} for {table.backend!r}"
            raise BackendError(complain("index: another backend's tensor", given, "tensors of one backend", "k.get()"))
    values = tuple(k.backend.evaluate(k) if isinstance(k, OpTreeNode) else k for k in parts)
    return values if isinstance(key, tuple) else values[0]


def share_memory(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors have memory in common, as `indexing.meet` says."""
    return indexing.meet(x.start, x.stop, x.structure.combs, y.start, y.stop, y.structure.combs)


def overlap(target: Tensor, leaves: Iterable[Any]) -> int:
    """Which memory of its leaves a statement overwrites, as `Statement.overlap` says: 0 none, 1 that of the very same
    view, 2 other memory too."""
    found = 0
    for x in leaves:
        if isinstance(x, Tensor) and share_memory(x, target):
            same = x.address == target.address and x.structure is target.structure
            found = max(found, 1 if same else 2)
    return found


def check_writable(tensor: Tensor) -> None:
    """Raise `ValueError` when a tensor is read-only or several of its elements share memory."""
    s = tensor.structure
    if not tensor.storage.writable:
        raise ValueError(
            complain("assignment: read-only tensor", f"{s.shape} {s.dtype}", "writable memory", "be.copy(t)")
        )
    if not s.nested and indexing.overlaps_itself(s.shape, s.strides):
        raise ValueError(
            complain("assignment: elements share memory", f"strides {s.strides}", "distinct elements", "be.copy(t)")
        )


def check_cast(dtype: np.dtype, value: Any) -> None:
    """Raise `DTypeError` when a host value cannot become numbers of a tensor (objects, strings, complex)."""
    if value.dtype.kind not in "biuf" and not dtypes.is_float(value.dtype):
        raise DTypeError(complain("assignment: not numbers", f"array of {value.dtype}", f"numbers that become {dtype}"))
