# SPDX-License-Identifier: Apache-2.0
"""Capture and replay: what a function launches, recorded once, and repeated by one call.

A `Recorder` stands in front of a backend's hooks while the function runs: it lets every plan run as ever and notes its
steps, where their operands lie, and which numbers and draws they take. `program.py` makes a program of the notes.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend.backends.plans import Action, written
from tensorbackend.errors import CaptureError, complain, user_line
from tensorbackend.graph.optree import Operators
from tensorbackend.graph.plan import Plan
from tensorbackend.graph.symbol import is_symbol, known
from tensorbackend.graph.tensor import Storage, Tensor

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = ["Call", "Memory", "Recorder", "Stated", "stand_in"]


class Memory:
    """Memory that the function allocated, or (without a `storage`) a temporary of a plan.

    It is used in the steps `first` to `last`; `written` counts the steps that write it, `upload` is the one that set
    all of it to numbers of the host.
    """

    def __init__(self, nbytes: int, storage: Storage | None = None, line: str = "") -> None:
        self.nbytes = nbytes
        self.owner: Any = None
        self.address = 0 if storage is None else storage.address
        self._held = None if storage is None else weakref.ref(storage)
        self.line = line
        self.first, self.last = -1, -1
        self.written = 0
        self.upload: Call | None = None

    @property
    def held(self) -> bool:
        """Whether somebody still has a tensor there."""
        return self._held is not None and self._held() is not None

    @property
    def is_constant(self) -> bool:
        """Whether it only ever holds what was copied there from the host."""
        return self.upload is not None and self.written == 1

    def is_of(self, storage: Storage) -> bool:
        """Whether it is a tensor's. Other memory may have its address once it is free."""
        return self._held is not None and self._held() is storage

    def keep(self) -> None:
        """Do not let it go when its tensors do."""
        storage = None if self._held is None else self._held()
        self.owner = self.owner if storage is None else storage.owner

    def use(self, step: int) -> None:
        """Note that a step reads or writes it."""
        self.first = step if self.first < 0 else self.first
        self.last = step


Place = tuple  # (argument's number, `Memory`, or None for an absolute address; offset in bytes)


@dataclass(eq=False)
class Call:
    """A recorded step: `places` of its operands and whether each is `written`, `scalars` as they were given and their
    `types`, `draws` as (whether the number counts from the first draw of a run, number)."""

    action: Action
    places: list[Place]
    written: Sequence[bool]
    scalars: list[Any]
    types: Sequence[np.dtype]
    draws: list[tuple[bool, int]] = field(default_factory=list)


@dataclass(eq=False)
class Stated:
    """What one plan did (None: something else than a plan): its calls, the line that stated it, its buffers' names."""

    plan: Plan | None
    line: str
    names: dict[int, str]
    calls: list[Call]


class _CountedBlock:
    """A fuse block, and an account of whether it is left."""

    def __init__(self, recorder: Recorder, block: Any) -> None:
        self._recorder, self._block = recorder, block

    def __enter__(self) -> None:
        self._recorder.open_blocks += 1
        self._block.__enter__()

    def __exit__(self, *error: object) -> None:
        self._recorder.open_blocks -= 1
        self._block.__exit__(*error)


_REFUSED = {
    "_download": "a host read", "_host_access": "a host read", "_gather": "indexing by an array (a host read)",
    "_histogram": "a histogram", "gen_rng": "seeding", "rng_set_state": "setting the random state",
    "cleanup_backend": "closing the backend", "_memory_of": "memory of an allocator of one's own",
}  # fmt: skip


class Recorder:
    """Notes what one thread launches on a backend. `views` stand for the arguments that are tensors.

    `stated` is what was launched; `memories` what was allocated; `outside` the extents of other memory, and whether it
    is written, which `keep` keeps alive; `written` says the same of arguments; `draws` counts the numbers drawn.

    What handlers of signals and the finalizers of a collection of garbage do in between is no part of the function: it
    runs, and is not noted.
    """

    def __init__(self, backend: Backend, views: Sequence[Tensor]) -> None:
        self.backend = backend
        self.thread = threading.get_ident()
        self.views = views
        self.stated: list[Stated] = []
        self.memories: list[Memory] = []
        self.outside: dict[tuple[int, int], bool] = {}
        self.keep: dict[int, Storage] = {}
        self.written = [False] * len(views)
        self.draws = 0
        self.open_blocks = 0
        self._made: dict[int, Memory] = {}
        self._arguments = {id(v): k for k, v in enumerate(views)}
        self._drawn: dict[int, int] = {}
        self._plan_draws: dict[int, int] = {}
        self._aside = False
        self._between = 0
        self._steps = 0

    def is_here(self) -> bool:
        """Whether this thread is the one that captures."""
        return threading.get_ident() == self.thread

    def is_between(self) -> bool:
        """Whether it is, in a handler of a signal or a collection of garbage."""
        return self._between > 0 and self.is_here()

    def notes(self) -> bool:
        """Whether what is done now is noted: by the function, in the thread that captures."""
        return self._between == 0 and self.is_here()

    # Standing in front of the hooks

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record inside the `with` block. Raises `CaptureError` where a capture is under way."""
        be = self.backend
        stand_ins = self._made_stand_ins = self._stand_ins()
        be._flush()
        try:
            with be._lock:
                if be._recorder is not None:
                    what = "inside another capture" if be._recorder.is_here() else "while another thread captures"
                    raise CaptureError(complain(f"capture: {what}", user_line(), "one capture of a backend at a time"))
                be._recorder = self
                be._stand_aside(True)
                vars(be).update(stand_ins)
            with self._told_of_interruptions():
                yield
                be._flush()
            if self.open_blocks:
                given = "an __enter__ without its __exit__"
                raise CaptureError(complain("capture: a fuse block was left open", given, "with be.fuse(): ..."))
        finally:
            try:
                self.leave()
            except BaseException:  # an interrupt, perhaps before it began
                self.leave()
                raise

    @contextlib.contextmanager
    def _told_of_interruptions(self) -> Iterator[None]:
        """Inside the `with` block, know of handlers of signals and collections of garbage. Python runs handlers in its
        main thread; that of Ctrl-C as Python has it does nothing but raise."""
        handlers: dict[int, tuple[Any, Any]] = {}
        try:
            gc.callbacks.append(self._collects)
            if threading.current_thread() is threading.main_thread():
                for number in signal.valid_signals():
                    handler = signal.getsignal(number)
                    if callable(handler) and handler is not signal.default_int_handler:
                        handlers[number] = handler, self._handling(handler)
                        signal.signal(number, handlers[number][1])
            yield
        finally:
            gc.callbacks.remove(self._collects)
            for number, (handler, ours) in handlers.items():
                if signal.getsignal(number) is ours:
                    signal.signal(number, handler)

    def _handling(self, handler: Callable[[int, Any], Any]) -> Callable[[int, Any], Any]:
        def handle(number: int, frame: Any) -> Any:
            self._between += 1
            try:
                return handler(number, frame)
            finally:
                self._between -= 1

        return handle

    def _collects(self, phase: str, facts: dict) -> None:
        if self.is_here():
            self._between = max(self._between + (1 if phase == "start" else -1), 0)

    def _flush(self, original: Callable) -> None:
        """Run what waits in a fuse block: if it was the function that stated it, that is noted, whoever has it run."""
        between, aside = self._between, self._aside
        try:
            self._between, self._aside = 0, False
            original()
        finally:
            self._between, self._aside = between, aside

    def leave(self) -> None:
        """Record no more."""
        be = self.backend
        with be._lock:
            if be._recorder is self:
                deque(map(vars(be).pop, self._made_stand_ins, repeat(None)), 0)
                be._stand_aside(False)
                be._recorder = None

    def _stand_ins(self) -> dict[str, Callable]:
        """What a name of the backend is meanwhile."""
        own = {"_allocate": self._allocate, "_run_user": self._run_user, "_upload": self._upload,
               "_scatter": self._scatter, "fuse": self._fuse}  # fmt: skip
        made = {name: self._standing_in(name, stand_in) for name, stand_in in own.items()}
        made |= {name: self._standing_in(name, self._refusal(what)) for name, what in _REFUSED.items()}
        made["_run_plan"] = self._standing_in("_run_plan", self._run_plan, self._check_foreign)
        flush = self.backend._flush
        made["_flush"] = lambda: self._flush(flush) if self.is_here() else flush()
        for name, stand_in in (("_next_draw", self._next_draw), ("_draw_numbers", self._draw_numbers)):
            made[name] = self._standing_in(name, stand_in, within_steps=True)
        timed = self._refusal("the time of repeat=", "call the method without it, and time the program")
        made["_record_repeats"] = self._standing_in("_record_repeats", timed, within_steps=True)
        return made

    def _standing_in(self, name: str, stand_in: Callable, elsewhere: Callable | None = None,
                     within_steps: bool = False) -> Callable:  # fmt: skip
        """`stand_in(original, ...)` for the function, the original for others and (mostly) within steps."""
        original = getattr(self.backend, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            notes = self.notes()
            if notes and (within_steps or not self._aside):
                return stand_in(original, *arguments, **keywords)
            if not notes and elsewhere is not None:
                elsewhere(*arguments)
            return original(*arguments, **keywords)

        return call

    def _as_step(self, original: Callable, *arguments: Any) -> None:
        """Run something that is a step: what it calls is no step of its own."""
        self._aside = True
        try:
            original(*arguments)
        finally:
            self._aside = False

    def _check_foreign(self, plan: Plan, targets: list[Tensor], leaves: list[Any]) -> None:
        """Raise `CaptureError` when another works on what the captured function made."""
        for x in [*targets, *leaves]:
            if isinstance(x, Tensor) and self._memory_of(x) is not None:
                who = "a handler or a finalizer" if self.is_here() else "another thread"
                text = f"capture: {who} works on the function's tensors"
                raise CaptureError(complain(text, user_line(), "statements of the function, in its thread"))

    def _refusal(self, what: str, hint: str = "return the tensor, and read it after the call") -> Callable:
        """What stands in for something that cannot be repeated."""

        def refuse(original: Callable, *arguments: Any, **keywords: Any) -> Any:
            raise CaptureError(complain(f"capture: {what} cannot be repeated", user_line(), "work on tensors", hint))

        return refuse

    def _fuse(self, original: Callable) -> _CountedBlock:
        return _CountedBlock(self, original())

    def _allocate(self, original: Callable, nbytes: int) -> Storage:
        storage = original(nbytes)
        memory = self._made[storage.address] = Memory(nbytes, storage, user_line())
        self.memories.append(memory)
        return storage

    def _next_draw(self, original: Callable) -> int:
        number = original()
        self._drawn[number] = self.draws
        self.draws += 1
        return number

    def _draw_numbers(self, original: Callable, leaves: list[Any]) -> dict[int, int]:
        self._plan_draws = original(leaves)
        return self._plan_draws

    def _run_plan(self, original: Callable, plan: Plan, targets: list[Tensor], leaves: list[Any]) -> None:
        self._plan_draws = {}
        self._as_step(original, plan, targets, [known(x) for x in leaves])
        planned = self.backend._planned(plan)
        plan = planned.plan
        tensors = [leaves[n] for n in plan.tensors]
        buffers = [*targets, *tensors]
        temporaries = [Memory(_nbytes(shape, dtype)) for shape, dtype in plan.temporaries]
        self.memories += temporaries
        self._touch(targets, tensors)
        calls = []
        for action in planned.actions():
            step, places = action.step, [self._place(ref, buffers, temporaries) for ref in action.refs]
            writes = [n >= len(places) - written(step) for n in range(len(places))]
            scalars, types = [leaves[n] for n, _ in step.scalars], [dtype for _, dtype in step.scalars]
            call = Call(action, places, writes, scalars, types, [self._draw(self._plan_draws[n]) for n in step.draws])
            self._note(call)
            calls.append(call)
        self.stated.append(Stated(plan, user_line(), {n: t.name or "" for n, t in enumerate(buffers)}, calls))

    def _run_user(self, original: Callable, launch: Any, tensors: list[Tensor], numbers: list[Any]) -> None:
        self._as_step(original, launch, tensors, [known(x) for x in numbers])
        count = len(tensors)

        def again(*operands: Any) -> None:
            original(launch, list(operands[:count]), list(operands[count:]))

        self._note_other(again, tensors, launch.writes, launch.name, launch, numbers)

    def _upload(self, original: Callable, tensor: Tensor, values: np.ndarray) -> None:
        self._as_step(original, tensor, values)
        values = np.array(values)
        call = self._note_other(lambda place: original(place, values), [tensor], [True])
        memory = call.places[0][0]
        if isinstance(memory, Memory) and tensor.nbytes == memory.nbytes:
            memory.upload = call
            memory.keep()

    def _scatter(self, original: Callable, tensor: Tensor, key: Any, value: Any) -> None:
        be = self.backend
        if is_symbol(value):
            value = be.empty((), tensor.dtype, min_dims=0)._assign(value)
        value = be.evaluate(value) if isinstance(value, Operators) else value
        several = isinstance(key, tuple)
        parts = (value, *key) if several else (value, key)
        reads = [x for x in parts if isinstance(x, Tensor)]
        # Tensors that were kept would seem to be held; arrays and lists stay as they are now.
        others = [Tensor if isinstance(x, Tensor) else copy.deepcopy(x) for x in parts]
        be._flush()  # what waits in a fuse block would run within the step, unnoticed
        self._as_step(original, tensor, key, value)

        def again(*operands: Tensor) -> None:
            now = iter(operands)
            worth, *keys = [next(now) if x is Tensor else x for x in others]
            original(next(now), tuple(keys) if several else keys[0], worth)

        self._note_other(again, [*reads, tensor], [*(False for _ in reads), True])

    # Notes

    def _note_other(self, run: Callable, tensors: list[Tensor], writes: Sequence[bool], name: str = "copy",
                    user: Any = None, numbers: Sequence[Any] = ()) -> Call:  # fmt: skip
        """Note what is no step of a plan: `run` takes tensors like these, some of which it writes, then numbers. `user`
        is a user kernel's launch."""
        be = self.backend
        layouts = [t.structure for t in tensors]

        def make(addresses: Sequence[int], scalars: Sequence[Any], *others: Any) -> None:
            run(*(be._tensor_at(layout, address) for layout, address in zip(layouts, addresses)), *scalars)

        self._touch([t for t, w in zip(tensors, writes) if w], [t for t, w in zip(tensors, writes) if not w])
        native = user is not None and bool(user.launches)
        action = Action(None, layouts, 8 * user.scratch if native else 0, make, user.launches if native else (), name)
        types = user.types if native else ()
        call = Call(action, [self._place_of(t) for t in tensors], writes, list(numbers), types)
        self._note(call)
        self.stated.append(Stated(None, user_line(), {}, [call]))
        return call

    def _note(self, call: Call) -> None:
        """Note when memory is used and written, and give a call its scratch: its last place."""
        if call.action.scratch:
            scratch = Memory(call.action.scratch)
            self.memories.append(scratch)
            call.places.append((scratch, 0))
            call.written = [*call.written, True]
        for (base, _), writes in zip(call.places, call.written):
            if isinstance(base, Memory):
                base.use(self._steps)
                base.written += writes
        self._steps += 1

    def _touch(self, written: list[Tensor], read: list[Tensor]) -> None:
        """Note which arguments and which memory outside are read and written."""
        for tensors, writes in ((written, True), (read, False)):
            for t in tensors:
                argument = self.argument_of(t)
                if argument is not None:
                    self.written[argument] |= writes
                elif self._memory_of(t) is None:
                    extent = (t.start, t.stop)
                    self.outside[extent] = self.outside.get(extent, False) or writes
                    self.keep[id(t.storage)] = t.storage

    def _draw(self, number: int) -> tuple[bool, int]:
        own = self._drawn.get(number)
        return (False, number) if own is None else (True, own)

    def _place(self, ref: Any, buffers: list[Tensor], temporaries: list[Memory]) -> Place:
        within = ref.offset * ref.dtype.itemsize
        if ref.buffer < 0:
            return temporaries[-ref.buffer - 1], within
        base, offset = self._place_of(buffers[ref.buffer])
        return base, offset + within

    def _place_of(self, tensor: Tensor) -> Place:
        """Where a tensor lies: in an argument, in memory made here, or at its address outside."""
        argument = self.argument_of(tensor)
        if argument is not None:
            return argument, tensor.address - self.views[argument].address
        memory = self._memory_of(tensor)
        return (None, tensor.address) if memory is None else (memory, tensor.address - memory.address)

    def _memory_of(self, tensor: Tensor) -> Memory | None:
        """What was allocated here for a tensor."""
        memory = self._made.get(tensor.storage.address)
        return memory if memory is not None and memory.is_of(tensor.storage) else None

    def argument_of(self, tensor: Tensor) -> int | None:
        """The number of the argument that a tensor is a view of; None for others."""
        root: Tensor | None = tensor
        while root is not None:
            found = self._arguments.get(id(root))
            if found is not None:
                return found
            root = root.base
        return None


def stand_in(x: Tensor) -> Tensor:
    """The same tensor as an object of its own, so that a function's use of its argument can be told: what it is a view
    of it is told by, too, but for a tensor that is the same view, in whose place a function would take it."""
    view = x._view(x.structure.shape, x.structure.strides, 0)
    same = x.base is not None and x.base.address == x.address and x.base.shape == x.shape
    view.base = None if same else x.base
    view.__dict__.update(x._own_attributes())
    return view


def _nbytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    size = dtype.itemsize
    for length in shape:
        size *= length
    return size
