# SPDX-License-Identifier: Apache-2.0
"""Running a plan's compiled kernels, whatever the target: where operands lie, what numbers they take, scratch."""

from __future__ import annotations

import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import complain
from tensorbackend.graph.plan import Kernel, Plan, Primitive, Ref

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend
    from tensorbackend.graph.tensor import Tensor

__all__ = [
    "ALIGNMENT", "Action", "CompiledPlan", "addresses_of", "arena", "letter", "number",
    "number_format", "placed", "quiet_number", "references", "word", "written",
]  # fmt: skip

ALIGNMENT = 64
"""Bytes to whose multiples tensors and temporaries are aligned."""
FLOATING = (float, np.floating, dtypes.BFLOAT16.type)
"""The types of numbers that are floats; NumPy does not know that of bfloat16's."""


class Action(NamedTuple):
    """One step of a plan, free of a run: `run(addresses, scalars, draws, key)` makes it on operands at addresses.

    The addresses are those of the `refs`, inputs before outputs, and of `scratch` bytes if there are any. `launches`
    are the native launches that the step consists of, where it is nothing but these: they take the same addresses,
    and the numbers as `number_format` says. `checked` are the launches of a step that may refuse what it reads: then
    the first word of its scratch is not 0, nothing is written, and `run` raises. `repeated` are launches alike that
    only calls which native code repeats may use.
    """

    step: Kernel | Primitive
    refs: list[Ref]
    scratch: int
    run: Callable[[Sequence[int], Sequence[Any], Sequence[int], int], None]
    launches: Sequence[Any] = ()
    source: str = ""
    checked: Sequence[Any] = ()
    repeated: Sequence[Any] = ()


def references(step: Kernel | Primitive) -> list[Ref]:
    """The places that a step reads, then those that it writes."""
    return step.operands


def written(step: Kernel | Primitive) -> int:
    """How many of the references of a step, the last ones, it writes."""
    return len(step.outputs) if isinstance(step, Kernel) else len(step.written)


class CompiledPlan(ABC):
    """A plan whose kernels are compiled: each reference becomes an address. `draws`: random numbers are drawn.

    A target adds how it compiles kernels and how it runs primitives. A call runs the plan on its targets and leaves.
    """

    def __init__(self, plan: Plan, backend: Backend) -> None:
        self.plan = plan
        self.backend = backend
        self.draws = plan.draws
        first = plan.targets + len(plan.tensors)
        offsets, total = arena(plan.temporaries)
        self._compile([s for s in plan.steps if isinstance(s, Kernel) and _writes(s)])
        self.steps = []
        for step in plan.steps:
            if isinstance(step, Kernel) and not _writes(step):
                continue
            prepared = self._prepare(step)
            if prepared is None:
                self.steps.append((None, self._prepare_primitive(step, first, offsets), None, step))
            else:
                places = [placed(ref, first, offsets) for ref in references(step)]
                if prepared.scratch_words:
                    places.append((first, total))
                    total += -(-prepared.scratch_words * 8 // ALIGNMENT) * ALIGNMENT
                self.steps.append((prepared, places, addresses_of(places), step))
        self.offsets = offsets
        self.total = total

    def __call__(self, targets: list[Tensor], leaves: list[Any], draws: dict[int, int]) -> None:
        backend, tensors = self.backend, self.plan.tensors
        bases = [t.address for t in (*targets, *map(leaves.__getitem__, tensors))]
        storage = None
        if self.total:
            storage = backend._allocate(self.total)
            bases.append(storage.address)
        for prepared, places, addresses, step in self.steps:
            if prepared is None:
                self._primitive(step, places, [*targets, *(leaves[n] for n in tensors)], bases, storage)
                continue
            numbers = [word(leaves[n], dtype) for n, dtype in step.scalars] if step.scalars else []
            if step.draws:
                numbers += [*(draws[n] for n in step.draws), backend._key]
            prepared.run(addresses(bases), numbers)

    def actions(self) -> Iterator[Action]:
        """The steps, to be made one by one on any operands of the plan's layouts."""
        for prepared, places, _, step in self.steps:
            if prepared is None:
                yield self._primitive_action(step, places)
                continue
            run = functools.partial(_run_prepared, prepared, step)
            launches, checked = getattr(prepared, "launches", ()), getattr(prepared, "checked", ())
            repeated = getattr(prepared, "repeated", ())
            yield Action(step, references(step), prepared.scratch_words * 8, run, launches, prepared.source, checked,
                         repeated)  # fmt: skip

    @abstractmethod
    def _primitive_action(self, step: Primitive, places: Any) -> Action:
        """A primitive as an action; `places` are what `_prepare_primitive` gave."""

    @abstractmethod
    def _compile(self, kernels: list[Kernel]) -> None:
        """Compile kernels together, so that `_prepare` finds them. Raises `CompileError`."""

    @abstractmethod
    def _prepare(self, step: Kernel | Primitive) -> Any:
        """A step's launches: an object with `run(addresses, numbers)` and `scratch_words`; None for a primitive that
        `_primitive` runs."""

    @abstractmethod
    def _prepare_primitive(self, step: Primitive, arena: int, offsets: list[int]) -> Any:
        """What `_primitive` takes as `places`; `arena` is the number of the temporaries' base address."""

    @abstractmethod
    def _primitive(self, step: Primitive, places: Any, buffers: list, bases: list[int], storage: Any) -> None:
        """Run a primitive on tensors (`buffers`), their addresses (`bases`) and the temporaries in `storage`."""


def _run_prepared(prepared: Any, step: Kernel | Primitive, addresses: Sequence[int], scalars: Sequence[Any],
                  draws: Sequence[int], key: int) -> None:  # fmt: skip
    numbers = [word(x, dtype) for x, (_, dtype) in zip(scalars, step.scalars)]
    prepared.run(addresses, [*numbers, *draws, key] if draws else numbers)


def addresses_of(places: list[tuple[int, int]]) -> Callable[[list[int]], Sequence[int]]:
    """From the addresses of a run's buffers to those of a kernel's places: (number of the buffer, offset in bytes)."""
    if len(places) > 1 and not any(offset for _, offset in places):
        return operator.itemgetter(*(number for number, _ in places))
    return lambda bases: [bases[number] + offset for number, offset in places]


def _writes(kernel: Kernel) -> bool:
    """Whether a kernel has anything to write."""
    return all(0 not in ref.shape for ref, _ in kernel.outputs)


def arena(temporaries: list[tuple[tuple[int, ...], np.dtype]]) -> tuple[list[int], int]:
    """Where each temporary lies in one piece of memory, in bytes, and the size of the piece."""
    offsets, total = [], 0
    for shape, dtype in temporaries:
        offsets.append(total)
        total += max(-(-math.prod(shape) * dtype.itemsize // ALIGNMENT), 1) * ALIGNMENT
    return offsets, total


def placed(ref: Ref, arena: int, offsets: list[int]) -> tuple[int, int]:
    """The number of a reference's buffer among a run's addresses, and its offset in bytes."""
    within = ref.offset * ref.dtype.itemsize
    return (ref.buffer, within) if ref.buffer >= 0 else (arena, offsets[-ref.buffer - 1] + within)


def letter(dtype: np.dtype) -> str:
    """The letter of `struct` for the 8 bytes of a scalar of a type."""
    return "d" if dtypes.is_float(dtype) else "Q" if dtype.kind == "u" else "q"


def number_format(kernel: Kernel | Primitive) -> str:
    """The 8-byte numbers that a kernel takes, as `struct` says them: its scalars, then its draws and their key."""
    scalars = "".join(letter(dtype) for _, dtype in kernel.scalars)
    return scalars + "Q" * (len(kernel.draws) + 1 if kernel.draws else 0)


def number(value: Any, dtype: np.dtype) -> Any:
    """A number as a scalar of a compute type: floats to integers truncate and saturate, integers must fit."""
    if dtypes.is_integer(dtype) and not isinstance(value, FLOATING):
        info = np.iinfo(dtype)
        if not info.min <= int(value) <= info.max:
            raise _out_of_range(value, f"{info.min} to {info.max} for {dtype}")
        return dtype.type(int(value))
    if dtypes.is_integer(dtype):
        return dtypes.cast(np.float64(value), dtype)[()]
    try:
        return dtype.type(value)
    except OverflowError:
        raise _out_of_range(value, f"a number that fits {dtype}") from None


def quiet_number(value: Any, dtype: np.dtype) -> Any:
    """The same where NumPy's warnings are on: beyond a type lie its infinities."""
    with np.errstate(over="ignore"):
        return number(value, dtype)


def word(value: Any, dtype: np.dtype) -> float | int:
    """A number as `Prepared.run` takes it: kernels round floats to the scalar's type themselves."""
    if not dtypes.is_float(dtype):
        return int(number(value, dtype))
    try:
        return float(value)
    except OverflowError:
        raise _out_of_range(value, f"a number that fits {dtype}") from None


def _out_of_range(value: Any, expected: str) -> OverflowError:
    bits = int(value).bit_length()
    return OverflowError(complain("number out of range", str(value) if bits <= 128 else f"{bits} bits", expected))
