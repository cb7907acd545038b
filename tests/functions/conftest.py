# SPDX-License-Identifier: Apache-2.0
"""Where the arrays of a test are: NumPy's, or tensors of a kind of backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, testing
from tensorbackend.function import arrays

KINDS = ["numpy", *(kind for kind in testing.backend_kinds() if kind != "jit-python")]


@cache
def shared(kind: str) -> Backend:
    """One backend of a kind for all tests."""
    return testing.make_backend(kind, rng_seed=0)


@pytest.fixture(params=KINDS)
def be(request: pytest.FixtureRequest, absent: Callable[[str, str], None]) -> Iterator[Backend | None]:
    """Each kind of backend in turn, as after seeding; None stands for NumPy."""
    made = None if request.param == "numpy" else shared(request.param)
    if request.param == "jit" and not testing.compiles(made):
        absent("cpu", "no C compiler works here")
    arrays.host_backend().rng.seed(0)  # links are made there
    if made is not None:
        made.rng_reset()
    yield made


@pytest.fixture
def array(be: Backend | None) -> Callable[..., Any]:
    """`array(values, dtype)` makes an array where the test has them."""
    return lambda values, dtype=np.float32: arrays.moved(np.array(values, dtype), be)


@pytest.fixture
def host() -> Callable[[Any], np.ndarray]:
    """`host(x)` gives the numbers of an array or variable."""
    return lambda x: np.asarray(arrays.moved(arrays.plain(getattr(x, "array", x)), None))
