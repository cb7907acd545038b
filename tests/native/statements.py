# SPDX-License-Identifier: Apache-2.0
"""Statements on small tensors, and how many of them native code ran."""

from __future__ import annotations

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
