# SPDX-License-Identifier: Apache-2.0
"""Captured programs: what a recorder noted, made ready to be repeated.

Memory that the function allocated and that nobody holds afterwards goes into one arena. Arguments and numbers become
places to fill in. Runs of native launches become one array of calls, which C makes; steps that are no native launches
(primitives through NumPy, all steps without a compiler, launches on a device) are called one by one between them.
"""

from __future__ import annotations

import gc
import logging
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend.backends import native, watch
from tensorbackend.backends.arena import Lifetime, plan_arena
from tensorbackend.backends.arguments import TENSOR, flatten, holds_objects, names, rebuild
from tensorbackend.backends.capture import Call, Memory, Recorder, stand_in
from tensorbackend.backends.plans import ALIGNMENT, letter, word
from tensorbackend.backends.replay import Replay
from tensorbackend.backends.waves import Node, waves
from tensorbackend.errors import BackendError, CaptureError, DTypeError, ShapeError, complain
from tensorbackend.graph.indexing import extent
from tensorbackend.graph.plan import Kernel, Primitive
from tensorbackend.graph.symbol import Arithmetic, Symbol, is_symbol, known
from tensorbackend.graph.tensor import Tensor

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = ["Program", "capture"]

HEAD = native.HEAD
MOST_CHECKED = 1024
"""Sets of arguments' addresses that a program knows to share memory as they should."""
_log = logging.getLogger("tensorbackend")


def capture(backend: Backend, function: Callable, arguments: tuple) -> Program:
    """What `Backend.capture` gives."""
    leaves: list[Any] = []
    form = flatten(arguments, leaves)
    for x in leaves:
        _check_owner(backend, x)
    stand_ins = [stand_in(x) if isinstance(x, Tensor) else Symbol(x) for x in leaves]
    recorder = Recorder(backend, [x for x in stand_ins if isinstance(x, Tensor)])
    given = iter(stand_ins)
    with recorder.recording():
        passed = rebuild(form, lambda: next(given))
        before = _contents(passed)
        result = function(*passed)
        if _contents(passed) != before:
            what, hint = "capture: the function changes a list or dictionary that it is given", "return what it makes"
            raise CaptureError(complain(what, "", "arguments that stay as they are", hint))
        out: list[Any] = []
        out_form = flatten(result, out)
    del result
    return Program(backend, function, form, leaves, stand_ins, recorder, out_form, out)


def _contents(arguments: Any) -> tuple[Any, list[int]]:
    """The form of arguments, and which leaves they have."""
    leaves: list[Any] = []
    return flatten(arguments, leaves), list(map(id, leaves))


def _plain_types(form: tuple, leaves: Sequence[Any]) -> tuple[type, ...] | None:
    """The types of arguments, if all are tensors and numbers side by side: others of these types have the same form."""
    return tuple(map(type, leaves)) if all(isinstance(part, (type, str)) for part in form[1:]) else None


def _check_owner(backend: Backend, x: Any) -> None:
    """Raise `BackendError` for a tensor of another backend or a closed one."""
    if isinstance(x, Tensor):
        x.structure.table.check_open()
        if x.structure.table is not backend.structures:
            raise BackendError(complain("program: another backend's tensor", repr(x.backend), repr(backend)))


class Program:
    """A captured function, to be called with arguments of the same layouts. Make it with `Backend.capture`.

    Tensors that the function made and returned are the program's: the same objects each time, which the next call
    writes anew. `result` is what the function returned when it was captured. `peak_bytes` is the size of the arena of
    temporaries, `least_bytes` what their lifetimes need at least; `kept_bytes` is other memory that the function made:
    what it returned or stored elsewhere, and constants. `kernels` and `calls` are the numbers of launches of kernels
    and of primitives and other steps.
    """

    def __init__(self, backend: Backend, function: Callable, form: Any, leaves: list[Any], stand_ins: list[Any],
                 recorder: Recorder, out_form: Any, out: list[Any]) -> None:  # fmt: skip
        self.backend = backend
        self.function = function
        self._form = form
        self._plain = _plain_types(form, leaves)
        self._is_tensor = [isinstance(x, Tensor) for x in leaves]
        called = [n for k, part in enumerate(form[1:]) for n in names(part, f"argument {k}")]
        self._names = [n for n, is_tensor in zip(called, self._is_tensor) if is_tensor]
        self._structures = [x.structure for x in leaves if isinstance(x, Tensor)]
        self._rounding = [x.rounding for x in leaves if isinstance(x, Tensor)]
        self._types = [type(x) for x in leaves if not isinstance(x, Tensor)]
        self._stated = recorder.stated
        self._keep: list[Any] = list(recorder.keep.values())
        outside = list(recorder.outside.items())
        self._written = recorder.written
        self._writes = [k for k, written in enumerate(self._written) if written]
        self._draws = recorder.draws
        self._set_result(recorder, out_form, out, stand_ins)
        self._place_memory(recorder, [x for x in out if isinstance(x, Tensor)])
        outside += [((m.address, m.address + m.nbytes), True) for m in recorder.memories if m.owner is not None]
        self._extents = np.array([extent for extent, _ in outside], np.int64).reshape(-1, 2).T
        self._changes = np.array([changes for _, changes in outside], bool)
        calls = [c for s in self._stated for c in s.calls]
        self.kernels = sum(isinstance(c.action.step, Kernel) for c in calls)
        self.calls = len(calls) - self.kernels
        symbols = [x for x in stand_ins if is_symbol(x)]
        used = [x for c in calls for x in c.scalars if is_symbol(x)] + [x for x in out if is_symbol(x)]
        wanted = list({id(x): x for x in used}.values())
        self._arithmetic = Arithmetic(symbols, wanted) if wanted else None
        self._values: list[Any] = []
        self._numbers = {id(x): n for n, x in enumerate(wanted)}
        self._tensors_only = all(part is TENSOR for part in form[1:])
        self._last: tuple | None = None
        self._changing = _holds_containers(out_form) or any(kind != "tensor" for kind, _ in self._out)
        self._bound: list[Any] = [None] * len(self._structures)
        self._runs_now = False
        self._addresses = [0] * len(self._structures)
        self._checked: set[tuple[int, ...]] = set()
        self._build(calls, [v.address for v in recorder.views])
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        self._overlaps = self._shared([(t.start, t.stop) for t in tensors])
        self._keep += wanted
        self._keep += symbols
        self.result = self._results(leaves)

    # Making

    def _set_result(self, recorder: Recorder, form: Any, out: list[Any], stand_ins: list[Any]) -> None:
        """How the result of a call is made: of arguments, numbers, and the program's own tensors."""
        self._out_form = form
        self._out: list[tuple[str, Any]] = []
        arguments = {id(x): n for n, x in enumerate(stand_ins)}
        tensors = [n for n, x in enumerate(stand_ins) if isinstance(x, Tensor)]
        for x in out:
            if not isinstance(x, Tensor):
                self._out.append(("number", x))
            elif id(x) in arguments:
                self._out.append(("argument", arguments[id(x)]))
            elif (k := recorder.argument_of(x)) is not None:
                self._out.append(("view", (tensors[k], type(x), x.structure, x.address - recorder.views[k].address)))
            else:
                self._out.append(("tensor", x))

    def _place_memory(self, recorder: Recorder, returned: list[Tensor]) -> None:
        """Give each memory its place: where it is, if it is held or constant, else in the arena."""
        results = {t.storage.address for t in returned}
        used = [m for m in recorder.memories if m.first >= 0]
        if any(m.held and m.address not in results and not m.is_constant for m in used):
            gc.collect()  # what only a cycle of garbage holds is free
        constants = {id(m.upload) for m in used if m.is_constant and m.address not in results}
        for stated in self._stated:
            stated.calls = [c for c in stated.calls if id(c) not in constants]
        kept = [m for m in used if m.held or m.is_constant]
        moving = [m for m in used if not (m.held or m.is_constant)]
        lines = {m.line for m in kept if m.held and not m.is_constant and m.address not in results}
        if lines:
            _log.warning("capture: tensors made in %s outlive the function and are made anew by each call of the "
                         "program; make what should last before the capture", ", ".join(sorted(lines)))  # fmt: skip
        found = plan_arena([Lifetime(m.nbytes, m.first, m.last) for m in moving], ALIGNMENT)
        self.peak_bytes, self.least_bytes = found.peak, found.least
        self.kept_bytes = sum(m.nbytes for m in kept)
        for m in kept:
            m.keep()
        self._keep += [m.owner for m in kept]
        for m in moving:
            m.owner = None
        self.backend._trim()  # of what the function had and let go the arena takes the place
        self._arena = self.backend._allocate(found.peak) if found.peak else None
        for m, offset in zip(moving, found.offsets):
            m.address = self._arena.address + offset if self._arena is not None else 0

    def _build(self, calls: Sequence[Call], arguments: Sequence[int]) -> None:
        """Make the array of native calls, and the list of what is run in turn. `arguments` are addresses that share
        memory as those of later calls will."""

        def extents(call: Call) -> tuple[list, list]:
            return _extents(call, arguments)

        self._native = _NativeCalls([c for c in calls if c.action.launches], len(arguments), self._numbers)
        self._others: list[_OtherCall] = []
        self._runs: list[Callable[[], None]] = []
        pending: list[Call] = []
        for call in calls:
            if call.action.launches:
                pending.append(call)
                continue
            if pending:
                self._runs.append(self._native.run(pending, extents))
                pending = []
            other = _OtherCall(call, self)
            self._others.append(other)
            self._runs.append(other.run)
        if pending:
            self._runs.append(self._native.run(pending, extents))
        has_graph = self.backend._has_graphs and Replay.suits([c.action.step for c in calls])
        self._replay = Replay(self.backend, self._runs) if has_graph else None

    # Calling

    def __call__(self, *arguments: Any) -> Any:
        """Run the program on tensors of the same layouts and other numbers; returns what the function would.

        Raises `ShapeError` or `DTypeError` for arguments of other layouts or types, `BackendError` for a closed or
        another backend's tensor, `ValueError` where memory is shared otherwise than when it was captured.
        """
        be = self.backend
        if be._recorder is not None and be._recorder.notes():
            return self.function(*arguments)
        be._flush()
        last, leaves = self._last, arguments
        again = last is not None and len(arguments) == len(last) and all(map(operator.is_, arguments, last))
        again = again and (not self._writes or not any(self._refuses(k, last[k]) for k in self._writes))
        if not again and tuple(map(type, arguments)) != self._plain:
            leaves = []
            form = flatten(arguments, leaves)
            if form != self._form:
                own = "the very objects of the capture, or tensors, such as a variable's array"
                text = "program: arguments of another form"
                raise TypeError(complain(text, f"{form[1:]}", f"{self._form[1:]}", own * holds_objects(form)))
        with be._lock:
            be.structures.check_open()
            if self._runs_now:  # what a finalizer or a handler calls: the memory is another's
                return self.function(*arguments)
            try:
                self._runs_now = True
                return self._run(arguments, leaves, again and self._last is last)
            finally:
                self._runs_now = False

    def _run(self, arguments: tuple, leaves: Sequence[Any], again: bool) -> Any:
        """One call, with the backend's lock; `again`: on the tensors of the call before. Interrupted, it has none."""
        be = self.backend
        if not again:
            self._last = None
            self._bind(leaves)
        first, key = be._take_draws(self._draws) if self._draws else 0, be._key
        if self._draws or not again or key != self._key:
            self._native.give(self._addresses, first, key, self._values)
        self._first, self._key = first, key
        self._last = arguments if self._tensors_only else None
        if watch.wanted(be):
            self._run_watched()
        elif self._replay is not None:
            self._replay((tuple(self._addresses), tuple(map(repr, self._values)), self._first, self._key))
        else:
            for run in self._runs:
                run()
        return self._results(leaves) if self._changing else self.result

    def _bind(self, leaves: Sequence[Any]) -> None:
        """Fill in the addresses and numbers of this call."""
        tensors = [x for x, is_tensor in zip(leaves, self._is_tensor) if is_tensor]
        changed = [k for k, x in enumerate(tensors) if x is not self._bound[k]]
        if changed:
            for k in changed:
                if tensors[k].structure is not self._structures[k]:
                    self._check(k, tensors[k])
        for k in self._writes:  # of the same tensors, too: they may have been made read-only since
            if self._refuses(k, tensors[k]):
                given = "read-only, or rounded otherwise"
                raise ValueError(complain(f"program: {self._names[k]} is written", given, "as captured"))
        if changed:
            self._check_sharing(tensors)
            self._bound = [None] * len(tensors)  # until all is filled in
            self._addresses[:] = [t.address for t in tensors]
            for other in self._others:
                other.bind(self._addresses)
            self._bound = tensors
        if self._arithmetic is not None:
            self._values = self._arithmetic([x for x, is_tensor in zip(leaves, self._is_tensor) if not is_tensor])

    def _check(self, k: int, tensor: Tensor) -> None:
        """That a tensor has the layout of argument tensor `k`."""
        found, wanted = tensor.structure, self._structures[k]
        name = self._names[k]
        _check_owner(self.backend, tensor)
        if found is not wanted:
            if found.dtype != wanted.dtype:
                raise DTypeError(complain(f"program: the type of {name}", str(found.dtype), str(wanted.dtype)))
            if (found.shape, found.strides, found.min_dims) != (wanted.shape, wanted.strides, wanted.min_dims):
                given, expected = (f"{s.shape} with strides {s.strides}" for s in (found, wanted))
                if given == expected:  # what an index makes of them differs
                    given, expected = (f"{s.shape} of min_dims {s.min_dims}" for s in (found, wanted))
                raise ShapeError(complain(f"program: the layout of {name}", given, expected, "capture again"))

    def _refuses(self, k: int, tensor: Tensor) -> bool:
        """Whether a tensor cannot be argument tensor `k`, which is written."""
        return not tensor.storage.writable or tensor.rounding != self._rounding[k]

    def _check_sharing(self, tensors: Sequence[Tensor]) -> None:
        """That these tensors share memory as the captured ones did, which depends on their addresses alone."""
        addresses = tuple([t.address for t in tensors])
        if addresses in self._checked:
            return
        if self._shared([(t.start, t.stop) for t in tensors]) != self._overlaps:
            hint = "be.copy(t) of an argument that shares memory"
            raise ValueError(complain("program: memory is shared otherwise than when captured", "", "", hint))
        if len(self._checked) >= MOST_CHECKED:
            self._checked.clear()
        self._checked.add(addresses)

    def _shared(self, spans: Sequence[tuple[int, int]]) -> list[tuple]:
        """Which arguments share memory that is written, with each other and with what the function used besides."""
        found: list[tuple] = []
        for k, (start, stop) in enumerate(spans):
            for j, (other, end) in enumerate(spans[:k]):
                if (self._written[k] or self._written[j]) and start < end and other < stop:
                    found.append((k, -1 - j, start - other))
        if spans:
            first, last = np.array(spans, np.int64).T[:, :, None]
            meet = (first < self._extents[1]) & (self._extents[0] < last)
            meet &= self._changes | np.array(self._written)[:, None]
            if meet.any():
                found += [(k, n, spans[k][0] - self._extents[0, n]) for k, n in np.argwhere(meet).tolist()]
        return found

    def _results(self, leaves: Sequence[Any]) -> Any:
        made = iter([self._result(kind, what, leaves) for kind, what in self._out])
        return rebuild(self._out_form, lambda: next(made))

    def _result(self, kind: str, what: Any, leaves: Sequence[Any]) -> Any:
        if kind == "number":
            return self._values[self._numbers[id(what)]] if is_symbol(what) and self._values else known(what)
        if kind == "argument":
            return leaves[what]
        if kind == "tensor":
            return what
        number, cls, structure, offset = what
        base = leaves[number]
        return base._seen_as(cls, structure, base.address + offset)  # an array may be a view of a tensor

    # Looking

    def _run_watched(self) -> None:
        for stated in self._stated:
            if stated.plan is None:
                for call in stated.calls:
                    self._other(call).run()
                continue
            with watch.stating([f"captured at {stated.line}"]):
                watch.run(self.backend, stated.plan, stated.names, [self._watched(call) for call in stated.calls])

    def _watched(self, call: Call) -> watch.Call:
        other = self._other(call)
        return watch.call_of(self.backend, call.action, other.addresses, other.scalars(), other.draws())

    def _other(self, call: Call) -> _OtherCall:
        return _OtherCall(call, self)

    def steps(self) -> Iterator[str]:
        """What the program does, a line a step."""
        for stated in self._stated:
            for call in stated.calls:
                step = call.action.step
                name = call.action.source if step is None else step.name
                yield f"{name}  {stated.line}"

    def __deepcopy__(self, memo: dict) -> Program:
        hint = "leave the program out, and capture the copy's function"
        raise TypeError(complain("deepcopy: a program belongs to its tensors", repr(self), "", hint))

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", repr(self.function))
        least = f"{self.peak_bytes / self.least_bytes:.2f} x the least" if self.least_bytes else "no temporaries"
        memory = f"arena of {self.peak_bytes} bytes ({least}), {self.kept_bytes} bytes kept"
        return f"<program {name}: {self.kernels} kernels, {self.calls} other calls, {memory}>"


class _OtherCall:
    """A call that Python makes."""

    def __init__(self, call: Call, program: Program) -> None:
        self._call = call
        self._program = program
        self.addresses: list[int] = []
        self.bind(program._addresses)

    def bind(self, arguments: Sequence[int]) -> None:
        """Fill in where the arguments lie."""
        self.addresses = [_address(place, arguments) for place in self._call.places]

    def scalars(self) -> list[Any]:
        """The numbers of this call of the program."""
        program = self._program
        return [program._values[program._numbers[id(x)]] if is_symbol(x) else x for x in self._call.scalars]

    def draws(self) -> list[int]:
        """The numbers of the draws of this call of the program."""
        return [number + self._program._first if own else number for own, number in self._call.draws]

    def run(self) -> None:
        """Make the call."""
        self._call.action.run(self.addresses, self.scalars(), self.draws(), self._program._key)


def _holds_containers(form: Any) -> bool:
    """Whether a value of this form holds lists or dictionaries, which each call makes anew."""
    return isinstance(form, tuple) and (form[0] is not tuple or any(map(_holds_containers, form[1:])))


def _extents(call: Call, arguments: Sequence[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The bytes that a step of a plan reads and writes, scratch included."""
    action, reads, writes = call.action, [], []
    for place, ref, written in zip(call.places, action.refs, call.written):
        low, high = extent(ref.shape, ref.strides, ref.dtype.itemsize)
        start = _address(place, arguments)
        (writes if written else reads).append((start + low, start + high))
    if action.scratch:
        start = _address(call.places[-1], arguments)
        writes.append((start, start + action.scratch))
    return reads, writes


def _address(place: tuple, arguments: Sequence[int]) -> int:
    base, offset = place
    if isinstance(base, Memory):
        return base.address + offset
    return offset if base is None else arguments[base] + offset


class _NativeCalls:
    """The native launches of a program: one array of their addresses and numbers, and their heads in the order in which
    they run.

    What a call of the program gives (addresses of arguments, the first draw and the key, numbers) is packed side by
    side, and one launch brings it to all places that need it: Python, whose code and data the kernels have driven from
    the caches, does little.
    """

    def __init__(self, calls: Sequence[Call], arguments: int, numbers: dict[int, int]) -> None:
        blocks = [len(c.places) + len(c.scalars) + len(c.draws) + bool(c.draws) for c in calls]
        self._words = np.zeros(sum(blocks) + 1, np.int64)
        self._at: dict[int, int] = {}
        self._keep: list[Any] = []
        self._draw = arguments
        self._given_numbers: dict[tuple[int, np.dtype], int] = {}
        self._moves: list[tuple[int, int, int]] = []
        at = 0
        for call, block in zip(calls, blocks):
            self._at[id(call)] = at
            self._pack_places(call, at)
            self._pack_numbers(call, at + len(call.places), numbers)
            at += block
        form = "".join(letter(dtype) for _, dtype in self._given_numbers)
        self._wanted = [(*given, kind == "d") for given, kind in zip(self._given_numbers, form)]
        packed = struct.Struct(f"{arguments}qQQ{form}")
        self._given = np.zeros(packed.size, np.uint8)
        self._pack = packed.pack_into
        self._fill = self._prepare_fill() if self._moves else lambda: None

    def _pack_places(self, call: Call, at: int) -> None:
        for n, (base, offset) in enumerate(call.places, start=at):
            if isinstance(base, Memory):
                self._words[n] = base.address + offset
            elif base is None:
                self._words[n] = offset
            else:
                self._moves.append((n, base, offset))

    def _pack_numbers(self, call: Call, at: int, numbers: dict[int, int]) -> None:
        for n, (x, dtype) in enumerate(zip(call.scalars, call.types), start=at):
            if is_symbol(x):
                known = self._given_numbers
                source = known.setdefault((numbers[id(x)], dtype), self._draw + 2 + len(known))
                self._moves.append((n, source, 0))
            else:
                struct.pack_into(letter(dtype), self._words, 8 * n, word(x, dtype))
        at += len(call.scalars)
        for n, (own, number) in enumerate(call.draws, start=at):
            if own:
                self._moves.append((n, self._draw, number))
            else:
                struct.pack_into("Q", self._words, 8 * n, number)
        if call.draws:
            self._moves.append((at + len(call.draws), self._draw + 1, 0))

    def _prepare_fill(self) -> Callable[[], None]:
        runtime = native.runtime()
        to, source, offset = zip(*self._moves)
        fill = runtime.prepare(runtime.address("tb_fill"), 1, 0, 2, [len(to), *to, *source], offset, 0)
        fill.ptr[:] = self._words.ctypes.data, self._given.ctypes.data
        return fill.run

    def give(self, addresses: Sequence[int], first: int, key: int, values: Sequence[Any]) -> None:
        """Take where arguments lie, the number of the first draw, the generator's key, and numbers."""
        words = [values[n] if is_plain and type(values[n]) is float else word(values[n], dtype)
                 for n, dtype, is_plain in self._wanted]  # fmt: skip
        self._pack(self._given, 0, *addresses, first, key, *words)
        self._fill()

    def run(self, calls: Sequence[Call], extents: Callable[[Call], tuple[list, list]]) -> Callable[[], None]:
        """What makes these calls, which follow each other, those side by side that may be."""
        runtime = native.runtime()
        nodes: list[Node] = []
        heads: list[list[int]] = []
        for call in calls:
            reads, writes = extents(call)
            shares = isinstance(call.action.step, Primitive)
            for n, launch in enumerate(call.action.launches):
                nodes.append(Node(reads, writes, launch.tasks, launch.cost, len(nodes) - 1 if n else -1, shares))
                heads.append(self._head(call, launch))
        order = waves(nodes, runtime.threads)
        listed = [heads[w[0]] if len(w) == 1 else self._together([heads[n] for n in w]) for w in order]
        array = self._kept([word for head in listed for word in head])
        return runtime.prepare_words(array.ctypes.data, len(listed), sum(node.cost for node in nodes))

    def _kept(self, words: Sequence[int]) -> np.ndarray:
        array = np.array(words, np.int64)
        self._keep.append(array)
        return array

    def _head(self, call: Call, launch: native.Launch) -> list[int]:
        """The words of a launch on this program's addresses and numbers."""
        self._keep.append(launch)
        at = self._words.ctypes.data + 8 * self._at[id(call)]
        fn, tasks, cost, _, size, stride, _ = launch._words[:HEAD]
        return [fn, tasks, cost, at, size, stride, at + 8 * len(call.places)]

    def _together(self, heads: Sequence[list[int]]) -> list[int]:
        """The words of a launch of launches."""
        inner = self._kept([word for head in heads for word in head])
        first = np.cumsum([0, *(head[1] for head in heads)])
        pointer, size = self._kept([inner.ctypes.data]), self._kept([len(heads), *first])
        cost = sum(head[2] for head in heads)
        return [native.runtime().address("tb_run_together"), int(first[-1]), cost, pointer.ctypes.data,
                size.ctypes.data, 0, 0]  # fmt: skip
