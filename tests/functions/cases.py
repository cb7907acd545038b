# SPDX-License-Identifier: Apache-2.0
"""What a case of `test_every_function.py` is, and makers of inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """A function of arrays, what it should give, and makers of inputs from a random state."""

    function: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: tuple[Callable[[np.random.RandomState], np.ndarray], ...]
    double: bool = True


def normal(*shape: int) -> Callable[[np.random.RandomState], np.ndarray]:
    """Normal numbers away from 0."""
    return lambda r: (lambda v: np.where(v < 0, v - 0.2, v + 0.2))(r.normal(size=shape))


def between(low: float, high: float, *shape: int) -> Callable[[np.random.RandomState], np.ndarray]:
    """Uniform numbers."""
    return lambda r: r.uniform(low, high, size=shape)


def labels(classes: int, *shape: int) -> Callable[[np.random.RandomState], np.ndarray]:
    """Labels from -1, which is ignored."""
    return lambda r: r.randint(-1, classes, size=shape).astype(np.int32)
