# SPDX-License-Identifier: Apache-2.0
"""Normalisation beside its values: any number of threads, remembered calls, captured programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorbackend import testing
from tensorbackend.backends import caches, native, warm
from tensorbackend.conformance import references as ref
from tensorbackend.conformance.plugin import session_backend
from tensorbackend.conformance.test_norm import EPS, RHO, Batch, near


def test_the_bits_do_not_depend_on_threads(absent: Callable[[str, str], None]) -> None:
    backend, found = session_backend("jit"), set()
    if not testing.compiles(backend):
        absent("cpu", "no C compiler works here")
    runtime = native.runtime()
    before = runtime.threads
    try:
        for threads in (1, 2, 5):
            runtime.set_threads(threads)
            batch = Batch(backend, ref.draw((3, 70000), "float32"), "float32")
            batch.fprop()
            batch.bprop()
            found.add(b"".join(tensor.get().tobytes() for tensor in batch.tensors.values()))
    finally:
        runtime.set_threads(before)
    assert len(found) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_long_rows_beyond_the_caches_have_the_same_bits(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Rows stored by pieces, and beside them their moments, which stay."""
    backend, found = session_backend("jit"), []
    monkeypatch.setattr(caches, "has_complexes", lambda: True)
    monkeypatch.setattr(warm, "name_of", lambda key: None)  # what is remembered was launched as before
    for size in (1 << 40, -1):
        monkeypatch.setattr(caches, "near_bytes", lambda size=size: size)
        backend.structures.clear()
        backend.structures.plans.clear()
        batch = Batch(backend, ref.draw((5, 3001), dtype), dtype)
        batch.fprop()
        batch.bprop()
        found.append([tensor.get().tobytes() for tensor in batch.tensors.values()])
    assert found[0] == found[1]


def test_a_remembered_call_rounds_as_its_output_does(backend: Any) -> None:
    """What is remembered of a call says nothing of rounding, which is the tensor's."""
    batch = Batch(backend, ref.draw((3, 50), "float32"), "float32")
    for bits in (0, 0, 3, 0):
        batch["y"].rounding = bits
        batch.fprop()
        rounded = not (batch["y"].get().view(np.uint32) & 0xFFFFF).any()
        assert rounded == (bits == 3)


def test_a_captured_step_repeats(backend: Any) -> None:
    batch = Batch(backend, ref.draw((3, 50), "float32"), "float32")

    def step(rate: float) -> None:
        names = ("x", "xsum", "xvar", "gmean", "gvar", "gamma", "beta", "y")
        backend.compound_fprop_bn(*(batch[k] for k in names), EPS, rate, True)

    program = backend.capture(step, 0.5)
    for _ in range(2):
        program(RHO)
    rows = batch.now["x"].mean(1, keepdims=True)
    near(batch["gmean"], RHO * (RHO * (0.5 * batch.now["gmean"] + 0.5 * rows) + 0.1 * rows) + 0.1 * rows, "float32")
