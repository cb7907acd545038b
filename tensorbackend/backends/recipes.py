# SPDX-License-Identifier: Apache-2.0
"""Recipes: what native code (`kernels/c/launcher`) launches for a statement or a call, as words."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorbackend.backends import native

__all__ = ["ARENA", "DRAW", "KEY", "TARGET", "Step", "recipe"]

ARENA, TARGET = -1, -2
MOST_LAUNCHES, MOST_POINTERS, MOST_SCALARS = 256, 1024, 64
DRAW, KEY = "draw", "key"
"""What stands for the type of a scalar that is the number of a random leaf, and the generator's key."""
_FLOAT, _DOUBLE, _INTEGER, _DRAW, _KEY = range(5)
_INTEGERS = (int, bool, *(np.dtype(letter).type for letter in np.typecodes["AllInteger"]))
_NUMBERS = (float, np.float16, np.float32, np.float64, np.bool_, *_INTEGERS)


class Step(NamedTuple):
    """One launch: its packed form, (source, bytes) of each pointer, (leaf, type) of each scalar.

    A source is the number of a leaf, ARENA, or TARGET - k for target k. Types may be DRAW and KEY.
    """

    launch: native.Launch
    pointers: Sequence[tuple[int, int]]
    scalars: Sequence[tuple[int, Any]]


def recipe(
    steps: Sequence[Step],
    arena_bytes: int,
    leaves: list[Any],
    keep: Any,
    check: int = -1,
    checked: int = 0,
    generator: int = 0,
    drawn: Sequence[int] = (),
) -> tuple | None:
    """How native code runs a statement with leaves like these; None when it cannot. `keep` lives as long.

    `check` is the place in the arena, in bytes, of a word that is not 0 where the first `checked` launches refused
    their operands and no target is written (-1: they never do): Python then runs all again, and raises. `drawn` are the
    leaves that take the next numbers of the generator, whose words (`RandomNumbers.generator`) are at an address.
    """
    pointers = sum(len(step.pointers) for step in steps)
    scalars = sum(len(step.scalars) for step in steps)
    if len(steps) > MOST_LAUNCHES or pointers > MOST_POINTERS or scalars > MOST_SCALARS:
        return None
    words = [len(steps), arena_bytes, sum(step.launch.cost for step in steps), check, checked, generator, len(drawn)]
    for step in steps:
        words += (step.launch.address, len(step.pointers), len(step.scalars))
        for place in step.pointers:
            words += place
        for leaf, dtype in step.scalars:
            if dtype is DRAW or dtype is KEY:
                words += (leaf, _DRAW, drawn.index(leaf), 0) if dtype is DRAW else (-1, _KEY, 0, 0)
                continue
            scalar = _scalar(type(leaves[leaf]), dtype)
            if scalar is None:
                return None
            words += (leaf, *scalar)
    return struct.pack(f"{len(words)}q", *words), keep


def _scalar(kind: type, dtype: np.dtype) -> tuple[int, int, int] | None:
    """Format and bounds of a scalar of a type that numbers of a kind become; None where only Python knows how."""
    if dtype in (np.float32, np.float64) and kind in _NUMBERS:
        return (_FLOAT if dtype == np.float32 else _DOUBLE), 0, 0
    if dtype.kind in "iu" and kind in _INTEGERS:
        info = np.iinfo(dtype)
        return _INTEGER, int(info.min), min(int(info.max), 2**63 - 1)
    return None
