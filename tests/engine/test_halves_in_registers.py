# SPDX-License-Identifier: Apache-2.0
"""Functions that kernels of halves compute in registers (`kernels/c/wide.h`): bits as through memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, dtypes
from tensorbackend.backends import warm
from tensorbackend.codegen import c
from tensorbackend.codegen.wide import WideRenderer

EVERY = np.arange(1 << 16, dtype=np.uint16)
WORDS = (0, 0x8000, 1, 0x8001, 0x3C00, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7F80, 0x7F81, 0x7FC3, 0xFF80)
"""Of both types zeros, the least, infinities and NaNs, quiet and signalling."""
NUMBERS = (0.0, -0.0, 1.5, -3.3, float("nan"), float("inf"))


def results(backend: Backend, dtype: np.dtype, compute: Callable[[Any, Any, Any], list[Any]]) -> list[np.ndarray]:
    """The bits of every number computed with each other one."""
    x = backend.array(EVERY.view(dtype), dtype=dtype, min_dims=0)
    words = [np.full(EVERY.size, word, np.uint16).view(dtype) for word in WORDS]
    others = [backend.array(word, dtype=dtype, min_dims=0) for word in words]
    return [tree.get().view(np.uint16) for other in (*others, *NUMBERS) for tree in compute(backend, x, other)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), dtypes.BFLOAT16], ids=str)
@pytest.mark.parametrize("compute", [
    lambda be, x, y: [be.absolute(x)],
    lambda be, x, y: [be.maximum(x, y), be.maximum(y, x)],
    lambda be, x, y: [be.minimum(x, y), be.minimum(y, x)],
], ids=["abs", "maximum", "minimum"])  # fmt: skip
def test_bits_are_those_of_the_way_through_memory(jit, monkeypatch, dtype, compute) -> None:
    found = results(jit, dtype, compute)
    monkeypatch.setattr(WideRenderer, "_fits_wide", lambda self, loop: False)
    monkeypatch.setattr(c, "_print", c._print.__wrapped__)  # nor are texts or plans that were made before taken
    monkeypatch.setattr(warm, "name_of", lambda key: None)
    other = Backend.allocate_backend("cpu")
    x = other.ones(99, dtype=dtype)
    assert not any("tb_wide" in step.source for tree in compute(other, x, x) for step in other.explain(tree).steps)
    for got, wanted in zip(found, results(other, dtype, compute), strict=True):
        np.testing.assert_array_equal(got, wanted)
