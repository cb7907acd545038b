# SPDX-License-Identifier: Apache-2.0
"""Where the arrays of a test are: NumPy's, or tensors of a kind of backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, testing
from tensorbackend.conformance.plugin import PROFILE
from tensorbackend.function import arrays

KINDS = ["numpy", *(kind for kind in testing.backend_kinds() if kind != "jit-python")]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """NumPy arrays run on the same kernels as tensors: one type and first gradients will do, but in long runs."""
    if PROFILE == "long":
        return
    left = {item for item in items if _says_little(item)}
    config.hook.pytest_deselected(items=list(left))
    items[:] = [item for item in items if item not in left]


def _says_little(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if item.path.name != "test_functions.py" or parameters.get("be") != "numpy" or "name" not in parameters:
        return False
    return parameters.get("dtype", "float32") != "float32" or item.originalname.startswith("test_second_gradient")


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
