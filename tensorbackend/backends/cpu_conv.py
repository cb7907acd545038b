# SPDX-License-Identifier: Apache-2.0
"""Convolutions of the compiled CPU backend: which way is taken, and its launches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensorbackend import dtypes, settings
from tensorbackend.backends import jit, native, tuning, written
from tensorbackend.backends.cpu_conv_around import pass_of
from tensorbackend.backends.cpu_conv_passes import Pass
from tensorbackend.graph.plan import Primitive, Ref
from tensorbackend.primitives import conv_blocking
from tensorbackend.primitives.conv_ways import TASKS, Facts, Way

__all__ = ["facts", "prepare_conv"]


def facts(dtype: np.dtype) -> Facts:
    """What the kernels for an element type have. Raises `CompileError`."""
    computed = dtypes.compute(dtype)
    lanes, rows, width, unit, *_ = native.runtime().facts("conv", computed.itemsize)
    return Facts(lanes, rows, width, bool(unit) and settings.config.matrix_unit, computed == dtype)


def prepare_conv(step: Primitive, winograd: int, scratch_size: int, tune: bool) -> jit.Prepared:
    """The launches of a convolution or of one of its gradients, by the fastest way that `scratch_size` bytes allow, or
    where they allow none by the last one.

    `winograd`: 0, 2 or 4, as `conv_blocking.choices`. `scratch_size` 0 is no bound. The cost model says what is fastest
    or, with `tune`, the clock. Raises `CompileError`.
    """
    step = _idle_first(step)
    (g,) = step.params
    kernels = facts(step.inputs[0].dtype)
    itemsize = dtypes.compute(step.output.dtype).itemsize
    ways, timed = conv_blocking.choices(g, step.op.name, kernels, itemsize, winograd), False
    if tune:
        ways = list(ways)
        first, last = (conv_blocking.nanoseconds(g, step.op.name, kernels, way) for way in (ways[0], ways[-1]))
        timed = tuning.ENOUGH_NS <= first and last <= tuning.MOST_NS
    if timed:
        written.libraries(tuple({pass_of(way).text(step, way): None for way in ways}), "convolutions")  # side by side
    passes: list[Pass] = []
    for way in ways:
        made, fits = _made(step, kernels, way, scratch_size)
        passes += [made] if fits else []
        if passes and not timed:
            break
    passes = passes or [made]  # the last way needs least memory
    if len(passes) == 1:
        return passes[0].prepared()
    prepared = [made.prepared() for made in passes]
    return prepared[tuning.choose(step, [made.way for made in passes], prepared)]


def _idle_first(step: Primitive) -> Primitive:
    """The same step, of the geometry that has axes on which nothing happens first."""
    g, order = step.params[0].idle_first()
    axes = (0, *(1 + axis for axis in order), 4)
    inputs = [_ordered(ref, axes) for ref in step.inputs]
    return replace(step, params=(g,), inputs=inputs, output=_ordered(step.output, axes), cache={})


def _ordered(ref: Ref, axes: tuple[int, ...]) -> Ref:
    return ref._replace(shape=tuple(ref.shape[n] for n in axes), strides=tuple(ref.strides[n] for n in axes))


def _made(step: Primitive, kernels: Facts, way: Way, scratch_size: int) -> tuple[Pass, bool]:
    """A pass, and whether `scratch_size` bytes allow it: with the memory of `TASKS` threads, since their number must
    change no bit. More threads share what else there is room for."""
    made = pass_of(way)(step, kernels, way)
    fits = not scratch_size or made.room(TASKS) <= scratch_size
    if fits and scratch_size and made.room(made.slots) > scratch_size:
        slots = TASKS + (scratch_size - made.room(TASKS)) // made.of_slot
        made = pass_of(way)(step, kernels, way, slots)
    return made, fits
