# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a call of a user kernel: the launch, and what it takes to do the same with like arguments."""

from __future__ import annotations

import ctypes
import math
import operator
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends import watch
from tensorbackend.backends.plans import word
from tensorbackend.backends.user_launch import Run
from tensorbackend.backends.user_texts import described
from tensorbackend.codegen.user import UserSource
from tensorbackend.graph import indexing
from tensorbackend.graph.structure import Structure
from tensorbackend.graph.tensor import Tensor

__all__ = ["NUMBERS", "Known", "Prepared", "remember", "tokens_of"]

NUMBERS = (bool, int, float)
_PLAIN = frozenset(NUMBERS)
MOST_REMEMBERED = 512
"""Layouts of calls that a kernel remembers."""


class Prepared:
    """A launch for values of certain layouts: it takes the addresses of the values number `pointers`, which it `writes`
    or not, the values number `numbers` (of these `types`), and `scratch` 8-byte words. `launches` are the native ones
    that it consists of, on the CPU. `facts` are the kernel, the generated text, the space and the reduced axes."""

    __slots__ = ("_facts", "launches", "numbers", "pointers", "run", "scratch", "types", "writes")

    def __init__(self, run: Run, facts: tuple[Any, UserSource, tuple[int, ...], tuple[int, ...]], pointers: list[int],
                 writes: list[bool], numbers: list[tuple[int, np.dtype]], scratch: int = 0) -> None:  # fmt: skip
        self.run = run
        self._facts = facts
        self.pointers = pointers
        self.writes = writes
        self.numbers = [k for k, _ in numbers]
        self.types = [dtype for _, dtype in numbers]
        self.launches: Sequence[Any] = getattr(run, "launches", ())
        self.scratch = scratch

    def __call__(self, backend: Any, addresses: list[int], numbers: Sequence[Any]) -> None:
        scratch = backend._allocate(8 * self.scratch) if self.scratch else None
        if scratch is not None:
            addresses = [*addresses, scratch.address]
        words = [word(x, dtype) for x, dtype in zip(numbers, self.types)] if numbers else ()
        with backend._lock:
            backend.structures.check_open()
            self.run(addresses, words)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self._facts[0].name

    def call(self, tensors: Sequence[Tensor]) -> watch.UserCall:
        """What is said of a call to those who look."""
        spec, made, space, axes = self._facts
        names = [spec.parameters[k].name for k in self.pointers]
        arrays = list(zip(names, tensors, self.writes))
        return watch.UserCall(spec.name, described(spec), made.source, space, axes, arrays)


class Known:
    """What a call decided, for calls with arguments of the same layouts.

    `prepared` is the launch; `made` the layouts of outputs to make (as NumPy arrays if `host`); `written` are the
    arguments that it writes; `apart` pairs of arguments that must not overlap (True: but may be one view); `shapes` the
    extents and combs of arrays; `units` of what the addresses of arrays are multiples. Addresses of the arrays among
    `values` and the numbers are all that a call adds.
    """

    __slots__ = ("apart", "host", "made", "prepared", "shapes", "units", "written")

    def __init__(self, prepared: Prepared, values: Sequence[Any], made: list[Structure], host: bool,
                 written: list[int], apart: list[tuple[int, int, bool]]) -> None:  # fmt: skip
        self.prepared = prepared
        self.made = made
        self.host = host
        self.written = written
        self.apart = apart
        layouts = [getattr(x, "structure", None) for x in values]
        self.shapes = [(*s.extent, s.combs) if isinstance(s, Structure) else (0, 0, b"") for s in layouts]
        self.units = [s.dtype.alignment if isinstance(s, Structure) else 1 for s in layouts]

    def __call__(self, backend: Any, arguments: Sequence[Any]) -> Sequence[Any] | None:
        """Make the call. Returns the arguments and the outputs made; None when something that it writes may not be
        written, or overlaps what it must not, or an array lies where no element of its type may."""
        for k in self.written:
            x = arguments[k]
            if not (x.flags.writeable if self.host else x.storage.writable):
                return None
        if self.host:
            places = [_host_address(x) if type(x) is np.ndarray else 0 for x in arguments]
            if any(map(operator.mod, places, self.units)):
                return None
        else:
            places = [getattr(x, "address", 0) for x in arguments]
        for j, k, may_be_one in self.apart:
            (x0, x1, ours), (y0, y1, theirs) = self.shapes[j], self.shapes[k]
            x, y = places[j], places[k]
            one = may_be_one and x + x0 == y + y0
            if not one and indexing.meet(x + x0, x + x1, ours, y + y0, y + y1, theirs):
                return None
        values = arguments
        if self.made:
            make, address = (_host_array, _host_address) if self.host else (_fresh, _device_address)
            made = [make(backend, layout) for layout in self.made]
            values = [*arguments, *made]
            places += map(address, made)
        prepared = self.prepared
        prepared(backend, [places[k] for k in prepared.pointers], [values[k] for k in prepared.numbers])
        return values


def remember(table: dict, key: Any, value: Any) -> None:
    """Put something into a table, which begins anew once it holds many."""
    if len(table) >= MOST_REMEMBERED:
        table.clear()
    table[key] = value


def tokens_of(arguments: Sequence[Any], tensor_cls: type) -> list[Any]:
    """The layouts of arguments, by which calls are remembered; none for a call that is not."""
    found: list[Any] = []
    for x in arguments:
        kind = type(x)
        if kind is tensor_cls:
            found.append(x.structure)
        elif kind in _PLAIN or issubclass(kind, np.generic):
            found.append(kind)
        elif kind is np.ndarray and x.ndim and x.dtype in dtypes.DTYPES:
            found.append((x.dtype, x.shape, x.strides))
        else:
            return []
    return found


# Addresses and new outputs


def _fresh(backend: Any, layout: Structure) -> Tensor:
    """A new tensor of a layout."""
    storage = backend._allocate(math.prod(layout.shape) * layout.dtype.itemsize)
    out = object.__new__(backend.tensor_cls)
    out._place(layout, storage, storage.address)
    out.base, out.name, out.persist_values, out.rounding = None, None, True, backend.round_mode
    return out


def _host_array(backend: Any, layout: Structure) -> np.ndarray:
    return np.empty(layout.shape, layout.dtype)


def _device_address(x: Tensor) -> int:
    return x.address


def _host_address(x: np.ndarray) -> int:
    """Where an array's first element is."""
    return _pointer_at(id(x) + _HEAD).value or 0 if _HEAD else x.ctypes.data


def _array_head() -> int:
    """Where NumPy's arrays keep the address of their first element: reading it there takes a quarter of the time that
    NumPy takes to say so. 0 where that is not so."""
    probe, head = np.empty(1), object.__basicsize__
    plain = sys.implementation.name == "cpython" and _pointer_at(id(probe) + head).value == probe.ctypes.data
    return head if plain else 0


_pointer_at = ctypes.c_void_p.from_address
_HEAD = _array_head()
