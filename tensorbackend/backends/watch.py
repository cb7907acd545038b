# SPDX-License-Identifier: Apache-2.0
"""Looking at kernels as they run: what TB_DEBUG shows, TB_CHECK compares and `be.explain` records.

`watching` says whether anybody looks; a backend then hands the calls of a plan to `run` instead of making them. Native
code that repeats statements by itself is told to forget them when someone begins to look.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensorbackend import dtypes, settings
from tensorbackend.backends import plans
from tensorbackend.backends.locks import Lock
from tensorbackend.errors import BackendError, complain
from tensorbackend.explain import Explanation, Roof, Statement, Step, describe, tree_lines
from tensorbackend.graph.plan import Kernel, Plan, Primitive
from tensorbackend.graph.tensor import Tensor
from tensorbackend.primitives.operands import runs

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = [
    "BenchRecord", "Call", "UserCall", "call_of", "explain", "explained", "join", "recording", "report", "run",
    "run_plan", "run_user", "stating", "wanted", "watching",
]  # fmt: skip

_log = logging.getLogger("tensorbackend")
MOST_TEXT = 400
LEAST_PROBE, MOST_PROBE = 1 << 14, 1 << 27

COMPILED_BY = ("cc", "cflags", "matrix_unit", "sanitize", "tune")
"""The settings on which it depends how plans are compiled."""

watching = False
_compiled_by = settings.everywhere(COMPILED_BY)
_lock = Lock()
_backends: weakref.WeakSet = weakref.WeakSet()


class _Here(threading.local):
    def __init__(self) -> None:
        self.stated: list[tuple[str, list[str]]] = []


_here = _Here()


@dataclass(frozen=True)
class BenchRecord:
    """One run of a kernel or primitive, or the mean of `runs` that were asked for by `repeat=`: its `name`, the `shape`
    of its space, `seconds`, the least `nbytes` it moves, the `flops` it computes, and the `share` of the time that the
    machine's limits allow (None where they are not known)."""

    name: str
    shape: tuple[int, ...]
    seconds: float
    nbytes: int
    flops: int
    share: float | None = None
    runs: int = 1

    @property
    def gflops(self) -> float:
        """Billions of operations a second."""
        return self.flops / self.seconds * 1e-9

    @property
    def gbs(self) -> float:
        """Gigabytes (10^9) a second."""
        return self.nbytes / self.seconds * 1e-9

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        moved = f"  {self.gbs:.4g} GB/s" if self.nbytes else ""
        share = "" if self.share is None else f"  {self.share:.0%} of the roof"
        many = f"  mean of {self.runs} runs" if self.runs > 1 else ""
        return f"{self.name}  {shape}  {self.seconds * 1e6:.4g} us  {self.gflops:.4g} GFLOP/s{moved}{share}{many}"


class Call(NamedTuple):
    """One step of a plan, ready: `run()` makes it, `arrays()` gives what it reads and writes as NumPy arrays,
    `written` are the addresses of its outputs, `numbers` its scalars as the interpreter takes them, `draws` and `key`
    those of its random numbers."""

    step: Kernel | Primitive
    run: Callable[[], None]
    arrays: Callable[[], tuple[list[np.ndarray], list[np.ndarray]]]
    written: list[int]
    source: str
    numbers: list[Any]
    draws: list[int]
    key: int


def join(backend: Backend) -> None:
    """Let a backend know when someone begins to look."""
    with _lock.now:
        _backends.add(backend)


def _decide() -> None:
    """A setting has changed. When someone began to look, set `watching`, and have native code forget what it repeats by
    itself; when things are compiled otherwise now, have backends forget what was compiled."""
    global watching, _compiled_by
    with _lock.now:
        wanted = bool(_recorders) or settings.anywhere("debug", lambda v: v >= 2) or settings.anywhere("check", bool)
        began, watching = wanted and not watching, wanted
        before, _compiled_by = _compiled_by, settings.everywhere(COMPILED_BY)
        changed = before != _compiled_by
        backends = list(_backends) if began or changed else []
    try:
        for backend in backends:
            if not backend.closed:
                with backend._lock:
                    if changed:
                        backend._forget_plans()
                    else:
                        backend.structures.clear()
    except BaseException:  # an interrupt: not all have forgotten, so the next change begins anew
        with _lock.now:
            watching, _compiled_by = False, []
        raise


_recorders = settings.Held(_decide)
"""The lists of (plan, statement) that any thread records."""
settings.when_changed(_decide)


@contextlib.contextmanager
def stating(statements: Iterable[tuple[Any, Any] | str]) -> Iterator[None]:
    """Say what the plan runs that runs inside the block: (target, value) of each `target[:] = value`, or a text."""
    stated = [(x, []) if isinstance(x, str) else _statement(*x) for x in statements]
    before, _here.stated = _here.stated, stated
    try:
        yield
    finally:
        _here.stated = before


def _statement(target: Any, value: Any) -> tuple[str, list[str]]:
    text = value.name or "a tensor" if isinstance(value, Tensor) else str(value)
    shown = text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} ..."
    return f"{target.name or 'y'}[:] = {shown}", list(tree_lines(value))


def wanted(backend: Backend) -> bool:
    """Whether somebody looks at what a backend runs."""
    return watching or backend.bench


def run_plan(backend: Backend, planned: Any, targets: list[Any], leaves: list[Any], draws: dict[int, int]) -> None:
    """Run a plan (as the backend has prepared it) on its targets and leaves, and look at each step."""
    plan = planned.plan
    buffers = [*targets, *(leaves[n] for n in plan.tensors)]
    names = {n: t.name or (f"tensor {n - len(targets) + 1}" if n >= len(targets) else "the target")
             for n, t in enumerate(buffers)}  # fmt: skip
    temporaries = [backend._allocate(math.prod(shape) * dtype.itemsize) for shape, dtype in plan.temporaries]

    def address(ref: Any) -> int:
        base = buffers[ref.buffer] if ref.buffer >= 0 else temporaries[-ref.buffer - 1]
        return base.address + ref.offset * ref.dtype.itemsize

    def calls() -> Iterator[Call]:
        for action in planned.actions():
            addresses = [address(ref) for ref in action.refs]
            scratch = backend._allocate(action.scratch)
            scalars = [leaves[n] for n, _ in action.step.scalars]
            numbers = [draws[n] for n in action.step.draws]
            yield call_of(backend, action, [*addresses, scratch.address], scalars, numbers)
            del scratch

    run(backend, plan, names, calls())


def call_of(backend: Backend, action: Any, addresses: list[int], scalars: list[Any], draws: list[int]) -> Call:
    """An action as a call on operands at addresses (more of them than it has are left out)."""
    addresses = addresses[: len(action.refs) + bool(action.scratch)]
    step, key, reads = action.step, backend._key, len(action.refs) - plans.written(action.step)

    def arrays() -> tuple[list[np.ndarray], list[np.ndarray]]:
        found = [backend._array_at(ref, address) for ref, address in zip(action.refs, addresses)]
        return found[:reads], found[reads:]

    numbers = [plans.quiet_number(x, dtype) for x, (_, dtype) in zip(scalars, step.scalars)]
    make = functools.partial(action.run, addresses, scalars, draws, key)
    return Call(step, make, arrays, addresses[reads : len(action.refs)], action.source, numbers, draws, key)


def run(backend: Backend, plan: Plan, names: dict[int, str], calls: Iterable[Call]) -> None:
    """Make the calls of a plan, and show, compare and record as is wanted. `names` are those of its buffers."""
    stated, _here.stated = _here.stated, []
    level, check = settings.config.debug, settings.config.check
    steps = []
    if level >= 3:
        for text, lines in stated:
            _log.warning("%s", "\n".join([text, *(f"  {line}" for line in lines)]))
    for call in calls:
        expected = _expected(call) if check else None
        step = describe(call.step, names, call.source)
        step.times.append(max(backend._timed(call.run), 1e-9))
        steps.append(step)
        if (level >= 2 or backend.bench) and _has_roof(backend):
            step.roof = _remembered_roof(_bucket(step.nbytes))
        if level >= 2:
            _log.warning("%s%s", step.line(), f"  for {step.reason}" if level >= 3 else "")
        if backend.bench:
            report(backend, BenchRecord(step.name, step.space, step.times[0], step.nbytes, step.flops, step.share))
        if expected is not None:
            _compare(call, step, expected)
    texts, trees = [t for t, _ in stated], [lines for _, lines in stated]
    for recorder in list(_recorders.values()):
        recorder.append((plan, Statement(texts, trees, steps, has_roof=_has_roof(backend))))


def report(backend: Backend, record: BenchRecord) -> None:
    """Show a record, and keep it with the others of the backend."""
    backend.bench_records.append(record)
    _log.warning("%s", record)


def _has_roof(backend: Backend) -> bool:
    """Whether the limits that are measured here, the host's, are the backend's."""
    return backend.device_type == 0


class UserCall(NamedTuple):
    """A call of a user kernel: its name, the user's texts as lines, its source, space, reduced axes, and (name, tensor,
    whether it is written) of each array among its arguments."""

    name: str
    texts: list[str]
    source: str
    space: tuple[int, ...]
    axes: tuple[int, ...]
    tensors: list[tuple[str, Any, bool]]

    def step(self) -> Step:
        """What is said of it. Its operations are not counted: the text is the user's."""
        form = "a user's reduction" if self.axes else "a user's loop"
        places = [(f"{name} {x.shape} {dtypes.tag(x.dtype)}", written) for name, x, written in self.tensors]
        reads, writes = ([text for text, w in places if w == wanted] for wanted in (False, True))
        nbytes = sum(x.nbytes for _, x, _ in self.tensors)
        facts = (form, self.space, self.axes, reads, writes, nbytes, 0)
        return Step(self.name, "a user kernel", *facts, self.texts, self.source)


def run_user(backend: Backend, plan: Any, call: UserCall, run: Callable[[], None]) -> None:
    """Run a user kernel, and show and record it as is wanted. `plan` stands for all calls of the same layouts."""
    step = call.step()
    step.times.append(max(backend._timed(run), 1e-9))
    level = settings.config.debug
    if (level >= 2 or backend.bench) and _has_roof(backend):
        step.roof = _remembered_roof(_bucket(step.nbytes))
    if level >= 2:
        _log.warning("%s%s", step.line(), f"  for {step.reason}" if level >= 3 else "")
    if level >= 4:
        _log.warning("%s", call.source)
    if backend.bench:
        report(backend, BenchRecord(step.name, step.space, step.times[0], step.nbytes, step.flops, step.share))
    text = f"{call.name}({', '.join(name for name, _, _ in call.tensors)})"
    for recorder in list(_recorders.values()):
        recorder.append((plan, Statement([text], [], [step], has_roof=_has_roof(backend))))


# Limits of the machine


def _bucket(nbytes: int) -> int:
    return min(max(1 << max(nbytes - 1, 0).bit_length(), LEAST_PROBE), MOST_PROBE)


@functools.cache
def _remembered_roof(nbytes: int) -> Roof | None:
    return _roof(nbytes)


def _roof(nbytes: int) -> Roof | None:
    """What the machine reaches now on so many bytes; None without a compiler."""
    from tensorbackend.backends import probes, toolchain  # as below: importing this module costs little

    if toolchain.find_compiler() is None:
        return None
    kinds = [True] if nbytes < 1 << 21 else [True, False]
    rates = [p.bytes / p.seconds() for p in (probes.triad(max(nbytes // 12, 1), cached) for cached in kinds)]
    computing = probes.multiply_adds(iterations=2000)
    return Roof(max(rates), computing.flops / computing.seconds())


# TB_CHECK


Expected = tuple[list[list[np.ndarray]], list[Any]]


def _expected(call: Call) -> Expected | None:
    """What a kernel should write: of the interpreter in its own types, and in float64 where that is possible; and how
    far each output may be off for its sums (`_doubts`).

    The tail of a product is such a kernel, of the interpreter's product. None for other primitives.
    """
    from tensorbackend.backends.interpreter import Interpreter

    inputs, outputs = call.arrays()
    inputs, step = [x.copy() for x in inputs], call.step
    if isinstance(step, Primitive):
        if step.op.name != "dot":
            return None
        product = np.empty(step.output.shape, step.output.dtype)
        with np.errstate(all="ignore"):
            Interpreter().primitive(replace(step, tail=None), inputs[:2], [product])
        if step.tail is None:
            return [[product]], [0.0]
        inputs, step = [*inputs[2 : 2 + step.product], product, *inputs[2 + step.product :]], step.tail
    found = []
    for kernel, wide in ((step, False), (_widened(step), True)):
        if kernel is None:
            continue
        given = [x.astype(np.float64) if wide and dtypes.is_float(x.dtype) else x for x in inputs]
        made = [np.empty(x.shape, np.float64 if wide and dtypes.is_float(x.dtype) else x.dtype) for x in outputs]
        kernel = _rearranged(kernel, given, made)
        run = functools.partial(Interpreter().kernel, kernel)
        with np.errstate(all="ignore"):
            run(given, made, call.numbers, call.draws, call.key)
        found.append(made)
    return found, _doubts(step, run, given, made, call)


NUDGES = 2
"""So often the inputs of sums are nudged: once may leave a sum as it is."""


def _doubts(step: Kernel, run: Callable[..., None], given: list[np.ndarray], made: list[np.ndarray],
            call: Call) -> list[Any]:  # fmt: skip
    """How far outputs of sums may be off: terms that cancel leave what their own rounding is, however small the sum.
    Four times as far as outputs move when each input does by what a number of its type may be off."""
    if not any(i.kind == "reduce" and i.op.name == "sum" and dtypes.is_float(i.dtype) for i in step.body):
        return [0.0] * len(made)
    random, doubts = np.random.default_rng(0), [np.zeros(x.shape) for x in made]
    steps = [_TOLERANCE[dtypes.compute(ref.dtype).name] if dtypes.is_float(ref.dtype) else 0 for ref in step.inputs]
    with np.errstate(all="ignore"):
        for _ in range(NUDGES):
            near = [(x * (1 + off * random.choice((-1, 1), x.shape))).astype(x.dtype) if off else x
                    for x, off in zip(given, steps)]  # fmt: skip
            moved = [np.empty_like(x) for x in made]
            run(near, moved, call.numbers, call.draws, call.key)
            for doubt, x, y in zip(doubts, moved, made):
                away = 4 * np.abs(x.astype(np.float64) - y.astype(np.float64))
                np.maximum(doubt, away, out=doubt, where=np.isfinite(away) & dtypes.is_float(y.dtype))
    return doubts


def _rearranged(kernel: Kernel, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> Kernel:
    """The kernel on these arrays: places with their strides and types, and no remembered programs."""

    def placed(ref: Any, x: np.ndarray) -> Any:
        return ref._replace(strides=tuple(s // x.itemsize for s in x.strides), offset=0, dtype=x.dtype)

    return replace(
        kernel,
        inputs=[placed(ref, x) for ref, x in zip(kernel.inputs, inputs)],
        outputs=[(placed(ref, x), value) for (ref, value), x in zip(kernel.outputs, outputs)],
        cache={},
    )


def _widened(kernel: Kernel) -> Kernel | None:
    """The kernel with float64 for its floats; None where a narrower type is part of what it means."""
    if kernel.draws or any(i.kind == "cast" or (i.op and i.op.name == "sround") for i in kernel.body):
        return None
    wide = np.dtype(np.float64)
    body = [i._replace(dtype=wide) if dtypes.is_float(i.dtype) else i for i in kernel.body]
    return replace(kernel, body=body, scalars=[(n, wide if dtypes.is_float(d) else d) for n, d in kernel.scalars])


_TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5, "float64": 1e-12}


def _compare(call: Call, step: Step, wanted: Expected) -> None:
    """Raise `BackendError` for the first output that is near to none of what is expected."""
    expected, doubts = wanted
    for number, got in enumerate(call.arrays()[1]):
        if call.written[number] in call.written[number + 1 :]:
            continue  # a later statement of the kernel has stored in the very same view
        wrong = np.ones(got.shape, bool)
        for made in expected:
            wrong &= _differs(got, made[number], *_tolerance(call.step, got.dtype, number), doubts[number])
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            values = " or ".join(str(made[number][place]) for made in expected)
            source = "\n".join(f"  | {line}" for line in call.source.strip().splitlines())
            head = f"TB_CHECK: {step.name} {step.space} differs from the reference in {int(wrong.sum())} elements"
            text = complain(head, f"element {place} of {step.writes[number]} is {got[place]}", values, "TB_JIT=0")
            raise BackendError(f"{text}\n{source}")


def _tolerance(step: Kernel | Primitive, stored: np.dtype, number: int) -> tuple[float, int]:
    """How far an output may be off: by what it is stored in, or what was computed in if that is narrower; and by 1
    where a float has become an integer."""
    kernel = step.tail if isinstance(step, Primitive) else step
    computed = [i.dtype for i in kernel.body if i.kind not in ("load", "scalar")] if kernel is not None else []
    off = max((_TOLERANCE[dtype.name] for dtype in (stored, *computed) if dtypes.is_float(dtype)), default=0.0)
    whole = dtypes.is_integer(stored) and kernel is not None
    return off, int(whole and dtypes.is_float(kernel.body[kernel.outputs[number][1]].dtype))


def _differs(got: np.ndarray, wanted: np.ndarray, tolerance: float, whole: int, doubt: Any) -> np.ndarray:
    if not dtypes.is_float(got.dtype) and not whole:
        return got != wanted
    x, y = got.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.abs(y[np.isfinite(y)])
        scale = np.abs(y) + (np.mean(finite) if finite.size else 0)
        near = np.abs(x - y) <= tolerance * scale + whole + doubt
    return ~(near | (x == y) | (np.isnan(x) & np.isnan(y)))


# Explaining


@contextlib.contextmanager
def recording() -> Iterator[list[tuple[Any, Statement]]]:
    """What runs inside the block, on any backend, in order: (plan, statement)."""
    found: list[tuple[Any, Statement]] = []
    try:
        _recorders.begin(found)
        yield found
    finally:
        try:
            _recorders.end(found)
        except BaseException:  # an interrupt, perhaps before it began
            _recorders.end(found)
            raise


def go_on_alone() -> None:
    """In a forked child: threads that are not there look at nothing."""
    _recorders.go_on_alone()
    settings.go_on_alone()


def explain(backend: Backend, what: Any, arguments: tuple, repeat: int | None) -> Explanation:
    """What `Backend.explain` gives."""
    again = (1 if callable(what) else 10) if repeat is None else runs("explain", repeat)
    with recording() as found:
        if callable(what):
            for _ in range(again):
                what(*arguments)
        elif arguments:
            _repeat_statement(backend, what, arguments[0], again, found)
        else:
            _repeat_expression(backend, what, again)
    return explained(found, repr(backend))


def _repeat_statement(backend: Backend, target: Any, value: Any, times: int, found: list) -> None:
    """Run `target[:] = value` so often, each time on what was there before. Our own copies, which are kernels where a
    device packs a view, do not stay in what is `found`."""
    backend._flush()
    known = len(found)
    before, draws = target.get(), backend._draws
    del found[known:]
    for number in range(times):
        if number:
            known = len(found)
            backend._upload(target, before)
            del found[known:]
            backend._draws = draws
        backend._assign(target, value)
        backend._flush()


def _repeat_expression(backend: Backend, value: Any, times: int) -> None:
    draws = backend._draws
    out = backend.evaluate(value)
    for _ in range(times - 1):
        backend._assign(out, value)
    backend._draws = draws


def explained(found: list[tuple[Any, Statement]], where: str) -> Explanation:
    """What `recording` found as an explanation, with the runs of one plan put together and the limits measured now."""
    from tensorbackend.backends import toolchain

    merged: dict[int, Statement] = {}
    for plan, statement in found:
        first = merged.setdefault(id(plan), statement)
        if first is not statement:
            first.runs += 1
            for step, other in zip(first.steps, statement.steps):
                step.times += other.times
    roofs: dict[int, Roof | None] = {}
    for step in (step for statement in merged.values() for step in statement.steps if statement.has_roof):
        bucket = _bucket(step.nbytes)
        if bucket not in roofs:
            roofs[bucket] = _roof(bucket)
        step.roof = roofs[bucket]
    return Explanation(list(merged.values()), f"{where} {toolchain.compiler_status()}")
