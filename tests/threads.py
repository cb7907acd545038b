# SPDX-License-Identifier: Apache-2.0
"""The same work on several numbers of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

from tensorbackend.backends import native, warm
from tensorbackend.settings import using

WORTH_SHARING_NS = 10**6


def same_bits(run: Callable[[], Sequence[np.ndarray]]) -> None:
    """What `run` computes is the same on 1, 2 and 5 threads."""
    runtime = native.runtime()
    before, found = runtime.threads, []
    for threads in (1, 2, 5):
        try:
            with using(threads=threads):  # which new backends go by, too
                runtime.set_threads()
                found.append(run())
                assert runtime.threads == threads
        finally:
            runtime.set_threads(before)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


def same_bits_shared(run: Callable[[], Sequence[np.ndarray]]) -> None:
    """The same of what `run` computes by new backends, where threads share each launch, however short."""
    prepare = native.Runtime.prepare

    def shared(runtime: native.Runtime, fn: int, tasks: int, cost: int, *rest: Any) -> native.Launch:
        return prepare(runtime, fn, tasks, max(cost, WORTH_SHARING_NS), *rest)

    with mock.patch.object(native.Runtime, "prepare", shared), mock.patch.object(warm, "name_of", lambda key: None):
        same_bits(run)
