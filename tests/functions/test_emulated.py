# SPDX-License-Identifier: Apache-2.0
"""Functions and their gradients on the emulated GPU, beside the CPU: a part in ci, all in the long group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
from tensorbackend import Backend, testing
from tensorbackend.function import arrays
from tests.functions.conftest import shared
from tests.functions.test_functions import CASES, inputs_of, listed

PART = 6
"""One case of so many runs in ci."""


def run(name: str, be: Backend | None) -> list[np.ndarray]:
    """The outputs and the gradients of a case, as NumPy arrays."""
    case = CASES[name]
    data = inputs_of(case, "float32", lambda v, dtype: arrays.moved(np.array(v, dtype), be))
    inputs = [tb.Variable(x) for x in data]
    found = listed(case.function(*inputs))
    random = np.random.RandomState(5)
    for y in found:
        y.grad = arrays.moved(random.normal(size=y.shape).astype(np.float32), be)
    tb.backward(found)
    results: list[Any] = [y.array for y in found] + [x.grad for x in inputs if x.grad is not None]
    return [np.asarray(arrays.moved(arrays.plain(r), None)) for r in results]


def _marked() -> list[Any]:
    marks = pytest.mark.ci, pytest.mark.long
    return [pytest.param(name, marks=marks[k % PART > 0]) for k, name in enumerate(CASES)]


@pytest.mark.parametrize("name", _marked())
def test_the_emulated_gpu_agrees(name: str) -> None:
    for found, expected in zip(run(name, shared("emulator")), run(name, None), strict=True):
        testing.assert_allclose(found, expected, atol=3e-5, rtol=3e-5)
