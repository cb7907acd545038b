# SPDX-License-Identifier: Apache-2.0
"""Native nodes, operators and assignment: optional, built at first use, and the same in all they mean.

`native_types()` builds or loads `kernels/c/launcher.c` and gives types that stand beside the Python classes: a tensor
class whose operators and `t[:] = value` are native, and a table that carries their memo. A backend that uses them
repeats statements without running Python; whatever the memo does not hold goes through the Python classes, whose
rules it then remembers. What is remembered of a statement is its recipe (`recipes.py`), of a call of a primitive
likewise (`calls.py`); the rest is in C.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import struct
import sys
import sysconfig
from operator import attrgetter
from typing import Any

import numpy as np

from tensorbackend import ops
from tensorbackend.backends import calls, native, watch
from tensorbackend.backends.base import Backend
from tensorbackend.backends.compiler import compile_source
from tensorbackend.backends.locks import Lock
from tensorbackend.backends.statements import FuseBlock, Method, StatementGroup
from tensorbackend.errors import CompileError
from tensorbackend.graph.composite import COMPOSITES, OF_OPERANDS
from tensorbackend.graph.optree import Operators, OpTreeNode
from tensorbackend.graph.plan import Plan
from tensorbackend.graph.structure import Structure, StructureTable
from tensorbackend.graph.tensor import Storage, Tensor
from tensorbackend.primitives.conv import ConvLayer, DeconvLayer
from tensorbackend.primitives.pool import PoolLayer
from tensorbackend.settings import config

__all__ = ["NativeFuseBlock", "NativeStatements", "NativeTypes", "RememberingTable", "native_types"]

SOURCE = '#include "launcher.c"\n'
FLAGS = ("-O2", "-Wl,-z,nodelete")
MOST_PARTS, MOST_OPERANDS = 32, 3
STATIC_ARGUMENTS, RUNS_AT_ONCE, OPERANDS_ONLY = 0, -1, -2  # in place of the arity of methods of no op
RUNS = ("compound_", "fprop_", "bprop_", "update_", "batched_")
"""How the names begin of the methods that run: primitives, whose calls are remembered unless they return a tree."""

_starting = Lock()  # there is one set of types a process
_log = logging.getLogger("tensorbackend")


class RememberingTable(StructureTable):
    """A table of structures whose `memo` holds what native code remembers of it; cleared together.

    The memo is also the backend's lock, for the backend to hold while a statement runs.
    """

    __slots__ = ("memo",)

    def __init__(self, backend: Any, default_dtype: np.dtype, memo: Any) -> None:
        super().__init__(backend, default_dtype)
        self.memo = memo
        self.most_operands, self.grow, self.look = MOST_OPERANDS, memo.grow, memo.look

    def linker(self, variable: type, node: type) -> Any:
        """As of the base class; None where objects of these classes are not laid out as expected."""
        facts = _graph_facts(variable, node)
        if facts is None:
            return None
        self.memo.tell_graph(facts)
        return self.memo.link

    def clear(self) -> None:
        """Forget all structures, and what native code remembers of them."""
        super().clear()
        self.memo.clear()


class NativeFuseBlock(FuseBlock):
    """A fuse block whose statements wait in the memo of a backend's table; what that does not know waits here.

    `depth` counts what is on its way into a thread's group: a statement or several, and those of finalizers and
    handlers of signals that run meanwhile.
    """

    __slots__ = ("_backend", "_begin", "_end", "flush")

    def __init__(self, backend: Any) -> None:
        super().__init__(backend._schedule, backend._run_group, backend._fit, backend.structures.plans)
        self._backend = backend
        memo = backend.structures.memo
        self._begin, self._end, self.flush = memo.begin, memo.end, memo.flush
        memo.set_group((self._join, self._adopt, self._run_here))

    __enter__ = Method(attrgetter("_begin"))  # native functions: no interrupt comes before these, as before Python's
    __exit__ = Method(attrgetter("_end"))

    def _group(self) -> StatementGroup:
        here = self._here
        if here.group is None:
            made = StatementGroup(self._schedule, self._run, self._plans)
            if here.group is None:  # still: a finalizer may have made one
                here.group = made
        return here.group

    def _join(self, target: Tensor, value: Any) -> int:
        """Run `target[:] = value` in this thread's block. Returns how many statements wait here then."""
        group, here = self._group(), self._here
        here.depth += 1
        try:
            self._backend._assign(target, value)
        finally:
            here.depth -= 1
        waiting = len(group.targets)
        if not waiting and not here.depth:  # it ran at once: nobody flushes a group in which nothing waits
            here.group = None
        return waiting

    def _adopt(self, statements: tuple) -> None:
        """Take a group of statements that waited in the memo: targets and values in turn."""
        here = self._here
        here.depth += 1
        try:
            self._group()
            for target, value in zip(statements[::2], statements[1::2]):
                self.add(target, value)
        except BaseException:  # an interrupt: no block may be left to flush them
            here.group = None
            raise
        finally:
            here.depth -= 1

    def _run_here(self) -> Any:
        """Run what waits here. Returns how native code repeats it: as `_run_first`."""
        here = self._here
        group = here.group
        if not here.depth:  # else a finalizer flushes while a statement is on its way into the group
            here.group = None
        ran = None if group is None else group.flush()
        return NotImplemented if ran is None or self._backend.closed else self._backend._plan_recipe(*ran)


class NativeTypes:
    """The native types of this process. Get them with `native_types()`."""

    def __init__(self) -> None:
        library = compile_source(SOURCE, flags=FLAGS, sanitize=config.sanitize, libc=True)
        entry = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
        self._add_tensor_class = entry(library.address("tb_launcher_add_tensor_class"))
        self._method = entry(library.address("tb_launcher_method"))
        self.node, self._operands, self._memo = entry(library.address("tb_launcher_start"))(_facts())
        self._tensor_classes: dict[type, type] = {}

    def table(self, backend: Any) -> RememberingTable:
        """A new, empty table of structures for a backend."""
        return RememberingTable(backend, backend.default_dtype, self._memo())

    def install_methods(self, backend: Any) -> None:
        """Give a backend that has a table of ours native methods for what it has from `Backend`.

        These are the elementwise ops, products, the methods that make a tree of one operand and static arguments, and
        those that run (`RUNS`).
        """
        found = [(name, op, op.arity) for op in ops.elementwise() for name in op.methods]
        found += [(name, getattr(Backend, name), 2) for name in ("dot", "matmul")]
        found += [(name, getattr(Backend, name), kind) for name, kind in _tree_methods()]
        found += [(name, getattr(Backend, name), RUNS_AT_ONCE) for name in _methods_that_run()]
        for name, what, arity in found:
            if getattr(type(backend), name) is getattr(Backend, name):
                setattr(backend, name, self._method((what, getattr(backend, name), backend.structures.memo, arity)))

    def tensor_class(self, cls: type[Tensor]) -> type[Tensor]:
        """A subclass of a tensor class, of the same name, with native operators and assignment."""
        made = self._tensor_classes.get(cls)
        if made is None:
            facts = {
                "__slots__": (),
                "__module__": cls.__module__,
                "__qualname__": cls.__qualname__,
                "__doc__": cls.__doc__,
            }
            made = self._tensor_classes[cls] = type(cls.__name__, (self._operands, cls), facts)
            self._add_tensor_class(made)
        return made


class NativeStatements:
    """What a backend has whose statements native code repeats; it stands before `Backend` among its bases.

    `_ready` is where `plan.cache` keeps a plan as the backend runs it, which has `recipe(leaves)`.
    """

    _native: NativeTypes | None = None
    _ready: Any

    def _use_native_types(self) -> None:
        """Take the native types, where they can be used and the setting `native` is on."""
        self._native = native_types() if config.native else None
        if self._native is not None:
            self.structures = self._native.table(self)
            self._take_lock(self._turn)
            self._block = NativeFuseBlock(self)
            self._native.install_methods(self)
            self.tensor_cls = self._native.tensor_class(self.tensor_cls)

    def _take_lock(self, turn: Lock) -> None:
        super()._take_lock(turn)  # type: ignore[misc]
        if self._native is not None:
            self._lock = self.structures.memo
            self._lock.set_lock((turn.now.acquire, turn.now.release, turn.held, ctypes.addressof(turn.held)))

    def _recipe(self, target: Tensor, value: Any) -> Any:
        """How native code repeats a statement that has run; NotImplemented if its plan is gone."""
        key, leaves = self._statement_key(target, value)
        plan = self.structures.plans.get(key)
        return NotImplemented if plan is None else self._plan_recipe(plan, leaves)

    def _plan_recipe(self, plan: Plan, leaves: list[Any]) -> Any:
        """How native code repeats a plan that has run; NotImplemented if it was not compiled."""
        run = plan.cache.get(self._ready)
        repeatable = run is not None and not watch.wanted(self) and self._recorder is None
        return run.recipe(leaves) if repeatable else NotImplemented

    def _forget_recipes(self) -> None:
        if self._native is not None:
            self.structures.memo.clear()

    def _stand_aside(self, aside: bool) -> None:
        if self._native is not None:
            self.structures.memo.stand_aside(aside)


def _tree_methods() -> list[tuple[str, int]]:
    """The methods of `Backend` whose trees follow from their arguments, and whether all of these are operands."""
    names = [*(name for op in ops.reductions() for name in op.methods), *COMPOSITES, "mean", "var", "std"]
    return [(name, OPERANDS_ONLY if name in OF_OPERANDS else STATIC_ARGUMENTS) for name in names]


def _methods_that_run() -> list[str]:
    """The methods of `Backend` that run, and return nothing, times or one of their operands: a tree that a recorded
    call returns is of stand-ins for its arguments."""
    names = [name for name in dir(Backend) if name.startswith(RUNS)]
    returned = {name: getattr(Backend, name).__annotations__["return"] for name in names}
    return [name for name, what in returned.items() if what == "Tensor" or what.endswith("None")]


def native_types() -> NativeTypes | None:
    """The native types, built or loaded on the first call; None where they cannot be used, which the log says once."""
    with _starting.now:
        return _started_types()


@functools.cache
def _started_types() -> NativeTypes | None:
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    try:
        return NativeTypes()
    except (CompileError, LookupError) as error:
        _log.warning("the native node and tensor types cannot be used, statements start more slowly: %s", error)
        return None


# What native code must know


def _facts() -> tuple:
    """What `tb_launcher_start` takes, in the order of its structures."""
    objects = (
        OpTreeNode, Tensor, Storage, RememberingTable,
        None, True, False, 0, NotImplemented, slice, float, int, bytes, np.generic,
        tuple, Ellipsis, Tensor.__setitem__, Tensor.__getitem__, Tensor.T.fget, Tensor.reshape,  # type: ignore[attr-defined]
        _run_first, _view_recipe, _template, calls.learn, PoolLayer, ConvLayer, DeconvLayer,
    )  # fmt: skip
    node = _slots(OpTreeNode, "structure", "inputs", "draw")
    tensor = _slots(Tensor, "structure", "storage", "rounding", "span", "address", "start", "stop", "_array", "base",
                    "name", "persist_values")  # fmt: skip
    offsets = (OpTreeNode.__basicsize__, *node, *tensor, *_slots(Structure, "table", "combs"),
               *_slots(RememberingTable, "memo"), _slice_offset(), bytes.__basicsize__ - 1,
               *_slots(Storage, "address", "nbytes", "owner", "writable"))  # fmt: skip
    runtime = native.runtime()
    addresses = tuple(runtime.address(name) for name in ("tb_run_list", "tb_alloc", "tb_free"))
    return objects, offsets, _operators(), addresses, slice(None)


@functools.cache
def _graph_facts(variable: type, node: type) -> tuple | None:
    """What `Memo.tell_graph` takes, in the order of its structures; None where it is not found, which the log says."""
    names = "inputs", "rank", "outputs", "_output_data", "node", "shape", "dtype"
    try:
        offsets = (
            *_slots(variable, "_data", "_node", "_grad", "_requires_grad", "_name"),
            *_slots(node, "creator_node", "rank", "data", "shape", "dtype", "requires_grad", "name", "variable"),
            *_slots(Structure, "shape", "dtype"),
        )
    except LookupError as error:
        _log.warning("variables cannot be made natively, functions start more slowly: %s", error)
        return None
    return (variable, node, *map(sys.intern, names)), offsets


def _operators() -> dict[str, tuple]:
    """The op, method and reflected method of each Python operator."""
    found = {}
    for op in ops.elementwise():
        if op.dunder is not None:
            methods = vars(Operators)
            found[op.dunder] = (op, methods[f"__{op.dunder}__"], methods.get(f"__r{op.dunder}__"))
    found["matmul"] = (ops.OPS["dot"], Operators.__matmul__, Operators.__rmatmul__)
    return found


def _words(x: object, size: int) -> tuple[int, ...]:
    """The memory of an object as words: in CPython, `id` is an object's address."""
    return struct.unpack(f"{size // 8}N", ctypes.string_at(id(x), size // 8 * 8))


def _offset(x: object, size: int, part: object) -> int:
    """Where an object keeps its only reference to another, in bytes."""
    places = [8 * i for i, word in enumerate(_words(x, size)) if word == id(part)]
    if len(places) != 1:
        raise LookupError(f"the memory of {type(x).__name__} objects is not laid out as expected")
    return places[0]


def _slots(cls: type, *names: str) -> list[int]:
    """Where instances of a class keep their slots, in bytes: found by looking for what was put there."""
    x = cls.__new__(cls)
    offsets = []
    for name in names:
        mark = object()
        setattr(x, name, mark)
        offsets.append(_offset(x, cls.__basicsize__, mark))
    return offsets


def _slice_offset() -> int:
    """Where a slice keeps its start, which stop and step follow."""
    parts = object(), object(), object()
    x = slice(*parts)
    places = [_offset(x, slice.__basicsize__, part) for part in parts]
    if places != [places[0], places[0] + 8, places[0] + 16]:
        raise LookupError("the memory of slices is not laid out as expected")
    return places[0]


# What Python does for native code


def _run_first(target: Tensor, value: Any) -> Any:
    """Run a statement in Python. Returns how native code can run its like: a recipe, or None if it cannot.

    NotImplemented stands for: do not remember.
    """
    backend = target.backend
    backend._assign(target, value)
    return NotImplemented if backend.closed else backend._recipe(target, value)


def _view_recipe(tensor: Tensor, made: Any) -> Any:
    """How native code makes the like of a view of `tensor`; True for the tensor itself, None where only Python can."""
    if made is tensor:
        return True
    if type(made) is not type(tensor) or made.base is not tensor or tensor.backend.closed:
        return None
    low, high = made.structure.extent
    return made.structure, struct.pack("3q", made.address - tensor.address, low, high)


def _template(arguments: tuple, made: Any) -> Any:
    """The tree `made` of arguments as words from which native code makes its like; None if it cannot.

    NotImplemented if it can, but not from this tree: an operand there may be one argument, another, or a constant.
    """
    numbers = {id(x): -1 - i for i, x in enumerate(arguments)}
    words: list[int] = []
    found: list[int] = []
    keep: list[Any] = []
    nodes = 0
    stack = [made]
    while stack:
        x = stack[-1]
        if id(x) in numbers:
            stack.pop()
        elif type(x) in (int, float):
            numbers[id(x)] = id(x)
            keep.append(x)
        elif not isinstance(x, OpTreeNode) or hasattr(x, "draw") or not 0 < len(x.inputs) <= MOST_OPERANDS:
            return None
        elif waiting := [y for y in x.inputs if id(y) not in numbers]:
            stack += waiting
        else:
            operands = [numbers[id(y)] for y in x.inputs]
            found += operands
            words += (id(x.structure), len(operands), *operands)
            numbers[id(x)] = nodes
            nodes += 1
            keep.append(x.structure)
    if not 0 < nodes <= MOST_PARTS:
        return None
    numbered = [-1 - i for i, x in enumerate(arguments) if type(x) in (int, float)]
    if len({id(x) for x in arguments}) < len(arguments) or any(found.count(i) != 1 for i in numbered):
        return NotImplemented
    return struct.pack(f"{len(words) + 1}q", nodes, *words), keep
