# SPDX-License-Identifier: Apache-2.0
"""What native code must know of a call of a primitive to repeat it without Python (`kernels/c/launcher/calls.h`).

A call that has come again is run once more under a recorder, as captured programs are. Where it was nothing but native
launches on its operands and on memory that it gave back, these are its recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorbackend.backends import watch
from tensorbackend.backends.arena import Lifetime, plan_arena
from tensorbackend.backends.capture import Call, Memory, Recorder, stand_in
from tensorbackend.backends.plans import ALIGNMENT
from tensorbackend.backends.recipes import ARENA, Step, recipe
from tensorbackend.graph.tensor import Tensor

__all__ = ["learn"]


class _CallRecorder(Recorder):
    """A recorder that notes what cannot be repeated, and lets it happen."""

    repeatable = True

    def _refusal(self, what: str, hint: str = "") -> Callable:
        def note(original: Callable, *arguments: Any, **keywords: Any) -> Any:
            self.repeatable = False
            return original(*arguments, **keywords)

        return note


def learn(method: Any, arguments: tuple, named: dict[str, Any] | None) -> tuple[Any, Any]:
    """Run a backend's method, which returns none of its operands but as it is. Returns its result, and how native code
    can run its like: a recipe whose leaves are the tensors among the arguments and then its third part, and whose last
    part is the number of the argument that comes back (-1: nothing does); None if it cannot; NotImplemented: do not
    remember."""
    backend, named = method.__self__, named or {}
    taken = (*arguments, *named.values())
    given = [stand_in(x) if isinstance(x, Tensor) else x for x in taken]
    views = [x for x in given if isinstance(x, Tensor)]
    recorder = _CallRecorder(backend, views)
    with backend._lock:  # until the end: to a thread that captures meanwhile this is no capture, but a call to wait for
        recorded = not watch.wanted(backend) and backend._recorder is None
        if recorded:
            with recorder.recording():
                result = method(*given[: len(arguments)], **dict(zip(named, given[len(arguments) :])))
    if not recorded:
        return method(*arguments, **named), NotImplemented
    returned = next((k for k, x in enumerate(given) if x is result and isinstance(x, Tensor)), -1)
    if returned >= 0:
        result = taken[returned]
    elif result is not None:
        return result, None
    return result, None if backend.closed else _recipe(recorder, len(views), returned)


def _recipe(recorder: _CallRecorder, tensors: int, returned: int) -> tuple | None:
    """What was recorded, as native code runs it; None where it cannot."""
    calls = [call for stated in recorder.stated for call in stated.calls]
    used = [memory for memory in recorder.memories if memory.first >= 0]
    if not recorder.repeatable or any(memory.held for memory in used) or not _are_launches(calls):
        return None
    arena = plan_arena([Lifetime(m.nbytes, m.first, m.last) for m in used], ALIGNMENT)
    found = recorder.backend._arena_of_recipe(arena.peak)
    if found is None:
        return None
    start, nbytes, owner = found
    offsets = {id(memory): start + offset for memory, offset in zip(used, arena.offsets)}
    steps, numbers = [], []
    for call in calls:
        places = _places(call, offsets)
        if places is None:
            return None
        scalars = [(tensors + len(numbers) + k, dtype) for k, dtype in enumerate(call.types)]
        numbers += call.scalars
        steps += [Step(launch, places, scalars) for launch in (*_launches(call), *call.action.checked)]
    check = places[-1][1] if calls and calls[0].action.checked else -1  # the scratch's place
    keep = [owner, *(call.action for call in calls)]
    made = recipe(steps, nbytes, [None] * tensors + numbers, keep, check, len(steps))
    return made and (*made, tuple(numbers), returned)


def _launches(call: Call) -> Sequence[Any]:
    return call.action.launches or call.action.repeated


def _are_launches(calls: list[Call]) -> bool:
    """Whether calls are launches alone, of fixed numbers; those that may refuse operands only by themselves."""
    plain = [bool(_launches(call)) and not call.draws for call in calls]
    return all(plain) or (len(calls) == 1 and bool(calls[0].action.checked))


def _places(call: Call, offsets: dict[int, int]) -> Sequence[tuple[int, int]] | None:
    """Where the operands of a call lie, as (source, bytes); None where one is neither an argument nor temporary."""
    places = []
    for base, offset in call.places:
        if isinstance(base, Memory):
            places.append((ARENA, offsets[id(base)] + offset))
        elif base is not None:
            places.append((base, offset))
    return places if len(places) == len(call.places) else None
