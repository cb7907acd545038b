# SPDX-License-Identifier: Apache-2.0
"""The arrays of the function layer: NumPy arrays, and tensors that keep the rank they have.

Inside the layer an array is *plain*: a NumPy array, or a tensor of its backend's own class with `min_dims` 0. Functions
that are computed by the engine see NumPy arrays as tensors on the same memory, of a backend kept for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends import numpy_like, registry
from tensorbackend.backends.anywhere import host_backend
from tensorbackend.backends.base import Backend
from tensorbackend.errors import BackendError, complain
from tensorbackend.graph.indexing import refuse_mask
from tensorbackend.graph.optree import Operators, OpTreeNode
from tensorbackend.graph.structure import Structure
from tensorbackend.graph.tensor import Storage, Tensor, share_memory

__all__ = [
    "added", "as_type", "backend_of", "copy_into", "described", "device_backend", "different_kinds", "evaluated",
    "filled_like", "fresh", "get_array_module", "host_backend", "is_array", "is_writable", "keeper", "laid_out", "meet",
    "module_of", "moved", "on_host", "only_family", "placed", "plain", "presented", "target", "tensor_of", "together",
    "zeros",
]  # fmt: skip

_new = object.__new__


def is_array(x: Any) -> bool:
    """Whether `x` is an array of the layer: NumPy's, a tensor, an expression of tensors, or an array of a device."""
    return isinstance(x, (np.ndarray, Operators)) or hasattr(x, "__cuda_array_interface__")


def plain(x: Any, name: str = "array") -> Any:
    """`x` as a plain array on the same memory, or a copy in native byte order. Raises `TypeError` for what is no
    array."""
    if type(x) is np.ndarray:
        return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    if isinstance(x, Tensor):
        return _plain_tensor(x)
    if isinstance(x, OpTreeNode):
        return evaluated(x)
    if isinstance(x, (np.generic, np.ndarray)):
        refuse_mask(name, x)
        return plain(np.asarray(x), name)
    if hasattr(x, "__cuda_array_interface__"):
        return device_backend().view(x, min_dims=0)
    raise TypeError(complain(f"{name}: not an array", type(x).__name__, "a NumPy array or a tensor"))


def target(x: Any, name: str = "array") -> Any:
    """`x` as a plain array to be written in place: one of NumPy's as it is. Raises `TypeError` for what is no array."""
    return x if type(x) is np.ndarray else plain(x, name)


def is_writable(x: Any) -> bool:
    """Whether an array may be written in place."""
    return x.flags.writeable if isinstance(x, np.ndarray) else plain(x).storage.writable


def _plain_tensor(x: Tensor) -> Tensor:
    s = x.structure
    own = s.table.backend.tensor_cls
    if s.min_dims == 0:
        if type(x) is own:
            return x
        if type(x.base) is own and x.base.structure is s and x.base.address == x.address:
            return x.base
    return x._seen_as(own, s.table.tensor(s.dtype, s.shape, s.strides, 0), x.address)


def fresh(backend: Any, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    """A plain tensor in uninitialised memory."""
    layout = backend.structures.contiguous(dtype, shape, 0)
    return laid_out(backend, layout, layout.extent[1])


def laid_out(backend: Any, layout: Structure, nbytes: int) -> Tensor:
    """A plain tensor of a layout without gaps, of `nbytes`, in uninitialised memory."""
    table = layout.table
    made = None if table.fresh is None else table.fresh(backend.tensor_cls, layout, nbytes, backend.round_mode)
    return placed(backend, layout, backend._allocate(nbytes)) if made is None else made


def placed(backend: Any, layout: Structure, storage: Storage) -> Tensor:
    """A plain tensor at the beginning of a piece of memory."""
    made = _new(backend.tensor_cls)
    made._place(layout, storage, storage.address)
    made.base = made.name = None
    made.persist_values = True
    made.rounding = backend.round_mode
    return made


def evaluated(tree: Any, dtype: np.dtype | None = None) -> Tensor:
    """The value of an op-tree (or a tensor, as it is) as a plain tensor."""
    if isinstance(tree, Tensor):
        return _plain_tensor(tree)
    s = tree.structure
    out = fresh(s.table.backend, s.shape, dtype or s.dtype)
    out[:] = tree
    return out


def backend_of(x: Any) -> Any:
    """The backend of a plain array; None for NumPy's."""
    return None if type(x) is np.ndarray else x.structure.table.backend


def only_family(name: str, arrays: Sequence[Any]) -> Any:
    """The backend that plain arrays share, None if they are NumPy's. Raises `TypeError` when they are mixed."""
    first = arrays[0]
    found = backend_of(first)
    for x in arrays:
        if backend_of(x) is not found:
            raise different_kinds(f"{name}:", f"{described(first)} and {described(x)}")
    return found


def different_kinds(head: str, given: str) -> TypeError:
    """The refusal of NumPy arrays beside tensors, or of tensors of several backends."""
    hint = "to_cpu, to_gpu or to_device moves an array"
    expected = "all NumPy arrays, or all tensors of one backend"
    return TypeError(complain(f"{head} arrays of different kinds", given, expected, hint))


def described(x: Any) -> str:
    """What kind of array a plain array is."""
    return "numpy.ndarray" if type(x) is np.ndarray else f"{type(x).__name__} of {x.backend!r}"


def tensor_of(x: Any) -> Tensor:
    """A plain array as a plain tensor on the same memory (a copy of a NumPy array with a layout or at an address that
    tensors cannot have, or of truths of other bytes than 0 and 1)."""
    if type(x) is not np.ndarray:
        return x
    host = host_backend()
    key = ("array", x.dtype, x.shape, x.strides)  # beside the structures: they are forgotten together
    try:
        layout = host.structures[key]
    except KeyError:
        layout = _host_layout(host, key, x)
    address = x.ctypes.data if x.size else x.__array_interface__["data"][0]
    odd = layout is None or address % layout.dtype.alignment
    if odd or (layout.dtype == dtypes.BOOL and x.view(np.uint8).max(initial=0) > 1):
        return tensor_of(dtypes.cast(x, dtypes.as_dtype(x.dtype)))
    low, high = layout.extent
    made = placed(host, layout, Storage(address + low, high - low, x, x.flags.writeable))
    made.start, made.stop, made.address = address + low, address + high, address
    made._array = x
    return made


def _host_layout(host: Any, key: tuple, x: np.ndarray) -> Structure | None:
    """The layout of a NumPy array as a tensor, None if no tensor has it; remembered by the key. Raises `DTypeError` for
    other elements."""
    kind = dtypes.as_dtype(x.dtype)
    layout = None
    if x.dtype.isnative and not any(s % kind.itemsize for s in x.strides):
        layout = host.structures.tensor(kind, x.shape, tuple(s // kind.itemsize for s in x.strides), 0)
    return host.structures.remember(key, layout)


def filled_like(x: Any, value: float) -> Any:
    """A plain array of the same kind, shape and type with every element `value`."""
    if type(x) is np.ndarray:
        with np.errstate(all="ignore"):
            return np.full(x.shape, value, x.dtype)
    out = fresh(x.structure.table.backend, x.structure.shape, x.structure.dtype)
    out[:] = value
    return out


def presented(x: Any) -> Any:
    """A plain array as users see it: a tensor behaves as NumPy's arrays do."""
    return x if x is None or type(x) is np.ndarray else numpy_like.presented(x)


def get_array_module(*args: Any) -> Any:
    """The module whose functions work on the arguments (arrays, variables, numbers, None): NumPy, or a backend's."""
    for x in args:
        data = getattr(x, "_data", x)
        if isinstance(data, Operators):
            return data.backend.xp
        if hasattr(data, "__cuda_array_interface__"):
            return registry.current_backend().xp
    return np


def module_of(x: Any) -> Any:
    """The array module of a plain array."""
    return np if type(x) is np.ndarray else x.structure.table.backend.xp


def added(a: Any, b: Any) -> Any:
    """The sum of two plain arrays of one kind, shape and type, in new memory."""
    if type(a) is not np.ndarray:
        return evaluated(a + b)
    with np.errstate(all="ignore"):
        return np.asarray(a + b)


def keeper(x: Any) -> Any:
    """What keeps the memory of a plain array alive: of arrays that share some it is one object."""
    if type(x) is not np.ndarray:
        return x.storage
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x if x.base is None else x.base


def meet(x: Any, y: Any) -> bool:
    """Whether two plain arrays of one kind share memory, or may, where that takes long to tell."""
    if type(x) is not np.ndarray:
        return share_memory(x, y)
    try:
        return np.shares_memory(x, y, max_work=1000)
    except RuntimeError:  # too hard
        return True


def moved(x: Any, backend: Any) -> Any:
    """A plain array on a backend (None: as a NumPy array): itself if it is there, else a copy."""
    if backend_of(x) is backend:
        return x
    values = x if type(x) is np.ndarray else x.get()
    return values if backend is None else _plain_tensor(backend.array(values, dtype=values.dtype, min_dims=0))


def copy_into(target: Any, source: Any) -> None:
    """Overwrite a plain array with the numbers of another, which may be of another kind."""
    if type(target) is np.ndarray:
        values = np.broadcast_to(source if type(source) is np.ndarray else source.get(), target.shape)
        with np.errstate(all="ignore"):
            dtypes.cast(values, target.dtype, target)
    elif backend_of(source) is backend_of(target):
        target[:] = source
    else:
        target.set(source if type(source) is np.ndarray else source.get())


def device_backend() -> Any:
    """The global backend, which must be a CUDA one."""
    found = registry.current_backend()
    if found.device_type != 1:
        hint = "gen_backend('gpu'), or to_device(be)"
        raise BackendError(complain("arrays of a CUDA device: no CUDA backend", f"{found!r}", "", hint))
    return found


class _Nothing:
    """A block without effect."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


_nothing = _Nothing()


def together(x: Any) -> Any:
    """A block whose statements on the backend of a plain array run as one group."""
    return _nothing if type(x) is np.ndarray else x.structure.table.backend.fuse()


def on_host(label: str, method: Any, inputs: tuple[Any, ...], backend: Any) -> Any:
    """What a method gives that works on NumPy arrays: tensors are seen as arrays, on their memory where the host has
    it, and results of theirs become tensors of the backend (None: all are NumPy's)."""
    if backend is None:
        return method(inputs)
    seen = tuple(None if x is None else x.asnumpyarray() for x in inputs)
    found = method(seen)
    if not isinstance(found, tuple):
        return found
    return tuple(_seen_again(label, y, seen, inputs, backend) for y in found)


def _seen_again(label: str, y: Any, seen: tuple[Any, ...], inputs: tuple[Any, ...], backend: Any) -> Any:
    if y is None:
        return None
    for array, x in zip(seen, inputs):
        if y is array:
            return x
    if isinstance(y, np.generic):
        y = np.asarray(y)
    if not isinstance(y, np.ndarray):
        given = f"{type(y).__name__} where the inputs were NumPy arrays"
        raise TypeError(complain(f"{label}: a result for the CPU", given, "NumPy arrays"))
    return backend.view(y, min_dims=0) if backend._views_host else moved(y, backend)


def zeros(backend: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Zeros as a plain array of a backend (None: of NumPy)."""
    if backend is None:
        return np.zeros(shape, dtype)
    out = fresh(backend, shape, dtype)
    out[:] = 0
    return out


def copied(x: Any) -> Any:
    """A plain array in new memory."""
    return x.copy() if type(x) is np.ndarray else as_type(x, x.dtype)


def as_type(x: Any, dtype: np.dtype) -> Any:
    """A plain array as another type, in new memory: NumPy's as what storing into a tensor gives."""
    if type(x) is np.ndarray:
        with np.errstate(all="ignore"):
            return dtypes.cast(x, dtype, np.empty_like(x, dtype))
    out = fresh(backend_of(x), x.shape, dtype)
    out[:] = x
    return out


def to_cpu(array: Any) -> np.ndarray:
    """An array as a NumPy array: itself, or a copy of a tensor."""
    return moved(plain(array, "to_cpu"), None)


def check_device(device: Any) -> None:
    """Refuse what is no place for arrays. Raises `TypeError`."""
    if device is not None and not isinstance(device, Backend):
        hint = "tb.gen_backend('cpu'); to_device(backend, array), link.to_device(backend)"
        raise TypeError(complain("to_device: device", repr(device), "a backend, or None for NumPy", hint))


def to_device(device: Any, array: Any) -> Any:
    """An array on a backend (None: as a NumPy array): itself if it is there, else a copy. Raises `TypeError` for
    another device."""
    check_device(device)
    return presented(moved(plain(array, "to_device"), device))


def to_gpu(array: Any, device: Any = None) -> Any:
    """An array on a CUDA backend (None: the global one). Raises `BackendError` when there is none."""
    return to_device(device_backend() if device is None else device, array)
