# SPDX-License-Identifier: Apache-2.0
"""Every function against NumPy, and its gradients, once and twice, against differences: in all types, on all backends.

A case is a function, its reference in NumPy, and the inputs. Add a line to `basic_cases.py` or one of its neighbours
for a new function. What a group of cases needs of a compiler is compiled together: before their tests, they run
through NumPy, which shows the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
from tensorbackend import Backend, gradient_check, testing
from tensorbackend.function import arrays
from tests.functions.basic_cases import BASIC_CASES
from tests.functions.cases import Case
from tests.functions.conftest import shared
from tests.functions.image_cases import IMAGE_CASES
from tests.functions.more_cases import MORE_CASES

CASES = BASIC_CASES | MORE_CASES | IMAGE_CASES
NAMES = list(CASES)
GROUP = 24
"""So many cases are compiled together."""
EVERY_DAY, IN_CI = NAMES[::4], [name for k, name in enumerate(NAMES) if k % 4]
"""The cases that run on the emulator every day, and those in ci beside."""
DTYPES = ("float64", "float32", "float16")

STEP = float(np.finfo(np.float64).eps) ** (1 / 3)
"""Of differences in float64: where what they leave out, STEP², and what rounding does to them, eps / STEP, meet."""
ROUNDINGS = 16
"""How many times a type's eps a result may be off, relative to the largest: a few dozen roundings, up and down."""


def tolerance(dtype: str) -> float:
    """How far a result of a type may be from a difference in float64, relative to its size."""
    return ROUNDINGS * (float(np.finfo(dtype).eps) + STEP**2)


def listed(y: Any) -> list[Any]:
    return list(y) if isinstance(y, tuple) else [y]


def host(x: Any) -> np.ndarray:
    """The numbers of an array or variable."""
    return np.asarray(arrays.moved(arrays.plain(getattr(x, "array", x)), None))


def size(values: Iterable[Any]) -> float:
    """The Euclidean length of all numbers, at least 1."""
    return max(1.0, math.sqrt(sum(float(np.sum(np.square(host(v).astype(np.float64)))) for v in values)))


def contiguous(x: np.ndarray, be: Backend | None) -> Any:
    return arrays.moved(x, be)


def strided(x: np.ndarray, be: Backend | None) -> Any:
    """An array whose axes lie in memory the other way round."""
    return arrays.plain(arrays.moved(x.T.copy(), be).T)


def inputs_of(case: Case) -> list[np.ndarray]:
    """The inputs of a case, such as all types have."""
    made = [make(np.random.RandomState(i)) for i, make in enumerate(case.inputs)]
    return [x if x.dtype.kind == "i" else x.astype(np.float16).astype(np.float64) for x in made]


def check(case: Case, dtypes: Sequence[str], be: Backend | None, place: Callable[..., Any] = contiguous) -> None:
    """The case in each type on a backend (None: NumPy arrays): values, gradients, gradients of gradients."""
    values = inputs_of(case)
    expected = listed(case.reference(*values))
    random = np.random.RandomState(9)
    grads, second = ([random.normal(size=np.shape(x)).astype(np.float16) for x in xs] for xs in (expected, values))
    lengths = _sizes(case, [place(x, be) for x in values], *([place(g.astype(np.float64), be) for g in gs]
                                                            for gs in (grads, second)))  # fmt: skip
    for dtype in dtypes:
        x, g, gg = ([place(v if v.dtype.kind == "i" else v.astype(dtype), be) for v in vs]
                    for vs in (values, grads, second))  # fmt: skip
        for y, e in zip(listed(case.function(*x)), expected, strict=True):
            assert y.shape == np.shape(e) and y.dtype == dtype
            atol = tolerance(dtype) * max(1.0, float(np.max(np.abs(e), initial=0)))
            testing.assert_allclose(y, e, atol=atol, rtol=0)
        np.random.seed(0)
        options = {"eps": STEP, "rtol": 0, "dtype": np.float64}
        gradient_check.check_backward(case.function, x, g, atol=tolerance(dtype) * lengths[0], **options)
        if case.double:
            atol = tolerance(dtype) * lengths[1]
            gradient_check.check_double_backward(case.function, x, g, gg, atol=atol, **options)


def _sizes(case: Case, data: list[Any], grads: list[Any], second: list[Any]) -> list[float]:
    """How long the first and the second gradient are."""
    x = [tb.Variable(v) for v in data]
    starts = [tb.Variable(g) for g in grads]
    floats = [v for v in x if v.dtype.kind == "f"]
    first = tb.grad(listed(case.function(*x)), floats, starts, enable_double_backprop=True)
    there = [(g, w) for g, w in zip(first, [s for v, s in zip(x, second) if v.dtype.kind == "f"]) if g is not None]
    lengths = [size(g for g, _ in there)]
    if case.double:
        again = tb.grad([g for g, _ in there], [*floats, *starts], [tb.Variable(w) for _, w in there])
        lengths.append(size(g for g in again if g is not None))
    return lengths


def grouped(kind: str, names: Sequence[str], *marks: Any) -> list[Any]:
    """The names of cases: those that are compiled together are for one worker."""
    return [
        pytest.param(name, marks=[pytest.mark.xdist_group(f"functions, {kind}, {names[k // GROUP * GROUP]}"), *marks])
        for k, name in enumerate(names)
    ]


@pytest.fixture
def check_compiled(request, absent) -> Callable[..., None]:
    """`check_compiled(kind, name, dtypes)` checks a case after compiling what its group needs."""
    if not testing.compiles(shared("jit")):
        absent("cpu", "no C compiler works here")
    group = request.node.get_closest_marker("xdist_group")
    beside = [item for item in request.session.items if item.get_closest_marker("xdist_group") == group]

    def run(kind: str, name: str, dtypes: tuple[str, ...]) -> None:
        compile_together(kind, tuple(item.callspec.params["name"] for item in beside), dtypes)
        check(CASES[name], dtypes, shared(kind))

    return run


@cache
def compile_together(kind: str, names: tuple[str, ...], dtypes: tuple[str, ...]) -> None:
    """Compile what cases need."""
    with testing.noted_plans(shared("interpreter")) as plans:
        for name in names:
            check(CASES[name], dtypes, shared("interpreter"))
    testing.compile_plans(shared(kind), plans)


@pytest.mark.parametrize("name", NAMES)
def test_interpreted(name) -> None:
    check(CASES[name], DTYPES, shared("interpreter"))
    check(CASES[name], ("float32",), shared("interpreter"), strided)


@pytest.mark.parametrize("name", grouped("compiled", NAMES))
def test_compiled(name, check_compiled) -> None:
    check_compiled("jit", name, DTYPES)
    check(CASES[name], ("float32",), None)  # NumPy's arrays, on the same kernels


@pytest.mark.parametrize("name", grouped("emulated", EVERY_DAY) + grouped("emulated in ci", IN_CI, pytest.mark.ci))
def test_emulated(name, check_compiled) -> None:
    check_compiled("emulator", name, ("float32",))


@pytest.mark.long
@pytest.mark.parametrize("name", grouped("emulated in all types", NAMES))
def test_emulated_in_all_types(name, check_compiled) -> None:
    check_compiled("emulator", name, DTYPES)
