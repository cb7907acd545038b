# SPDX-License-Identifier: Apache-2.0
"""Statements on small tensors, and how many of them native code ran."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import numpy as np

from tensorbackend import Backend, Tensor

SIXTEEN = np.linspace(-1, 1, 16, dtype=np.float32)


def counts(be: Backend) -> tuple[int, int, int]:
    """Structures and statements that the backend's memo holds, and statements that native code ran."""
    return be.structures.memo.counts()


def native_runs(be: Backend, statement: Callable[[], object]) -> int:
    """How many statements native code runs in a call that has been made before."""
    statement()
    statement()
    before = counts(be)[2]
    statement()
    return counts(be)[2] - before


def tensors(be: Backend, count: int, dtype: object = np.float32) -> list[Tensor]:
    """Different tensors of 16 elements."""
    return [be.array((SIXTEEN * 3 + k).astype(dtype), dtype=dtype) for k in range(count)]


def assert_no_references_left(be: Backend, statements: Callable[[Tensor, Tensor, Tensor, float], None],
                              times: int) -> None:  # fmt: skip
    """Run statements on three tensors and a number many times: no more refers to these, and to types, than before."""
    x, w, o = tensors(be, 3)
    number = 12345.678
    watched = (x, w, o, number, x.structure, type(o), be._native.node)
    found = []
    for repetitions in (1000, times):
        for _ in range(repetitions):
            statements(x, w, o, number)
        gc.collect()
        found.append([sys.getrefcount(thing) for thing in watched])
    assert found[0] == found[1]
