# SPDX-License-Identifier: Apache-2.0
"""Backends by kind, operands of an op, and tolerances."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from tensorbackend import ops
from tensorbackend.backends.base import Backend
from tensorbackend.settings import config, using

NUMPY_ULPS = 4.0
"""What NumPy promises of its vectorised functions, which an engine without a compiler uses."""

# Backends


def backend_kinds() -> list[str]:
    """The kinds of backend that `make_backend` makes here.

    'interpreter'; where trees are compiled, 'jit' and 'jit-python': launched by native types, or by Python alone.
    """
    takes_jit = "jit" in inspect.signature(Backend.backends["cpu"].__init__).parameters
    return ["interpreter", "jit", "jit-python"] if takes_jit else ["interpreter"]


def make_backend(kind: str, **keywords: Any) -> Backend:
    """A backend of a kind of `backend_kinds`, or 'emulator'; `keywords` are the constructor's. The global one stays."""
    if kind == "emulator":
        return Backend.allocate_backend("gpu", driver="emulator", **keywords)
    if "jit" in backend_kinds():
        keywords["jit"] = kind != "interpreter"
    with using(native=config.native and kind == "jit"):
        return Backend.allocate_backend("cpu", **keywords)


def compiles(backend: Backend) -> bool:
    """Whether a backend compiles its trees; if not, they run through NumPy."""
    return bool(getattr(backend, "jit", False))


def some(backend: Backend, cases: Iterable, turn: int = 0, part: int = 6) -> list:
    """All cases where a test of one is cheap; every `part`-th from `turn` on where each may compile a kernel."""
    return list(cases)[turn % part :: part] if compiles(backend) else list(cases)


# Inputs

BROADCASTS: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((), (), ()),
    ((3,), (), (3,)),
    ((0, 4), (1, 4), (4,)),
    ((1,), (1, 1), ()),
    ((5, 4), (5, 1), (4,)),
    ((2, 1, 5), (3, 1), (2, 3, 5)),
    ((2, 3, 1, 4), (1, 5, 4), (2, 1, 5, 1)),
)
"""Shapes for up to three operands that broadcast together: ranks 0 to 4, empty, and with axes of length 1."""

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, 5e-324, 1e-45, -1e-40, 6e-8, 1e30, -1e30)


def sample(op: ops.Op, shapes: tuple, dtype: Any, seed: int = 0, special: bool = False) -> list[np.ndarray]:
    """Host arrays of `dtype`, one for each operand of `op`, in the op's domain; `special` mixes in NaN, ±∞, ±0, …"""
    rng = np.random.default_rng([seed, *op.name.encode()])
    return [_sample(rng, op.domain, shape, np.dtype(dtype), special) for shape in shapes[: op.arity]]


def _sample(rng: np.random.Generator, domain: tuple, shape: tuple, dtype: np.dtype, special: bool) -> np.ndarray:
    low, high = domain
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        if special:
            info = np.iinfo(dtype)
            return rng.choice(np.array([info.min, info.max, 0, 1, 2, 7], dtype), shape)
        return rng.integers(0 if dtype.kind == "u" else math.ceil(low), math.floor(high) + 1, shape).astype(dtype)
    values = np.asarray(rng.uniform(low, high, shape))
    if special:
        far = rng.choice([-1.0, 1.0], shape) * 10 ** rng.uniform(-45, 5, shape)
        values = np.choose(rng.integers(0, 3, shape), [values, far, rng.choice(SPECIAL, shape)])
    with np.errstate(all="ignore"):
        return values.astype(np.float32).astype(dtype) if dtype.itemsize == 2 else values.astype(dtype)


# Tolerances


def ulps(op: ops.Op, dtype: Any, compiled: bool) -> float:
    """How many units in the last place of the compute type an op may be off: the table's for compiled float32 and
    halves, else also NumPy's.

    A function that NumPy lacks is made of two or three that it has, and may be off by twice as much.
    """
    if op.ulps <= 0.5:
        return 0.5
    if compiled and op.half_ulps and np.dtype(dtype).itemsize == 2:
        return op.half_ulps
    own = NUMPY_ULPS if isinstance(op.numpy, np.ufunc) else 2 * NUMPY_ULPS
    return op.ulps if compiled and np.dtype(dtype) != np.float64 else max(op.ulps, own)


def tolerance(dtype: Any, length: int = 1, steps: float = 1.0) -> float:
    """A relative tolerance, of the sum of magnitudes, for `length` numbers added in any order after `steps` roundings.

    Halves are computed in float32 and rounded once.
    """
    dtype = np.dtype(dtype)
    eps = float(ml_dtypes.finfo(dtype).eps)
    inner = float(np.finfo(np.float32).eps) if dtype.itemsize == 2 else eps
    return (eps if dtype.itemsize == 2 else 0.0) + (length + steps) * inner
