# SPDX-License-Identifier: Apache-2.0
"""Every function against NumPy, and its gradients, once and twice, against differences, in all types.

A case is a function, its reference in NumPy, and the inputs. Add a line to `basic_cases.py` or one of its neighbours
for a new function. The interpreter is what is checked by differences, every day in one type and in one on strided
arrays; compiled kernels, on the CPU and the emulator, give the same values and gradients, element by element, which
takes fewer kernels (one case in a few: gradients of gradients too). What a group of cases needs is compiled together:
it runs through NumPy first, which shows the kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
from tensorbackend import Backend, gradient_check, testing
from tensorbackend.function import arrays
from tensorbackend.testing.rehearsal import Rehearsal
from tests.functions.basic_cases import BASIC_CASES
from tests.functions.cases import Case
from tests.functions.conftest import shared
from tests.functions.image_cases import IMAGE_CASES
from tests.functions.more_cases import MORE_CASES
from tests.thinned import thinned

CASES = BASIC_CASES | MORE_CASES | IMAGE_CASES
NAMES = list(CASES)
DTYPES = ("float64", "float32", "float16")
GROUP = 24
"""So many cases are compiled together."""
PART = 6
"""One of so many cases is compiled in all types, with second gradients, and for the emulator, every day."""

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


def contiguous(x: np.ndarray, be: Backend | None) -> Any:
    return arrays.moved(x, be)


def strided(x: np.ndarray, be: Backend | None) -> Any:
    """An array whose axes lie in memory the other way round."""
    return arrays.plain(arrays.moved(x.T.copy(), be).T)


class Operands:
    """The inputs of a case, gradients for its outputs, and directions for its inputs, such as all types have."""

    def __init__(self, case: Case) -> None:
        made = [make(np.random.RandomState(i)) for i, make in enumerate(case.inputs)]
        self.inputs = [x if x.dtype.kind == "i" else x.astype(np.float16).astype(np.float64) for x in made]
        self.expected = listed(case.reference(*self.inputs))
        random = np.random.RandomState(9)
        shapes = [list(map(np.shape, xs)) for xs in (self.expected, self.inputs)]
        self.grads, self.second = ([random.normal(size=s).astype(np.float16) for s in every] for every in shapes)

    def placed(self, dtype: str, place: Callable[[np.ndarray], Any]) -> list[list[Any]]:
        """Inputs, gradients and directions in a type, where a test has them."""
        every = (self.inputs, self.grads, self.second)
        return [[place(x if x.dtype.kind == "i" else x.astype(dtype)) for x in xs] for xs in every]


def results(case: Case, data: list[Any], grads: list[Any], second: list[Any], twice: bool) -> list[list[np.ndarray]]:
    """The values, the gradients, and if wanted, and if the case has them, the gradients of those along directions."""
    x, starts = [[tb.Variable(v) for v in vs] for vs in (data, grads)]
    values = listed(case.function(*x))
    floats = [i for i, v in enumerate(x) if v.dtype.kind == "f"]
    found = tb.grad(values, [x[i] for i in floats], starts, enable_double_backprop=twice)
    first = [(g, tb.Variable(second[i])) for i, g in zip(floats, found) if g is not None]
    every = [values, [g for g, _ in first]]
    if case.double and twice:
        every.append(tb.grad([g for g, _ in first], [*(x[i] for i in floats), *starts], [w for _, w in first]))
    return [[host(y) for y in ys if y is not None] for ys in every]


def size(values: Iterable[np.ndarray]) -> float:
    """The Euclidean length of all numbers, at least 1."""
    return max(1.0, math.sqrt(sum(float(np.sum(np.square(v.astype(np.float64)))) for v in values)))


@cache
def wide_results(name: str) -> list[list[np.ndarray]]:
    """What a case gives in float64 through NumPy."""
    place = partial(contiguous, be=shared("interpreter"))
    return results(CASES[name], *Operands(CASES[name]).placed("float64", place), True)


def check(name: str, dtype: str, be: Backend, place: Callable[..., Any] = contiguous) -> None:
    """Values are the reference's; gradients, once and twice, are those of differences."""
    case, operands = CASES[name], Operands(CASES[name])
    x, grads, second = operands.placed(dtype, partial(place, be=be))
    for y, expected in zip(listed(case.function(*x)), operands.expected, strict=True):
        assert y.shape == np.shape(expected) and y.dtype == dtype
        atol = tolerance(dtype) * max(1.0, float(np.max(np.abs(expected), initial=0)))
        testing.assert_allclose(y, expected, atol=atol, rtol=0)
    np.random.seed(0)
    _, *lengths = map(size, wide_results(name))
    options = {"eps": STEP, "rtol": 0, "dtype": np.float64}
    gradient_check.check_backward(case.function, x, grads, atol=tolerance(dtype) * lengths[0], **options)
    if case.double:
        atol = tolerance(dtype) * lengths[1]
        gradient_check.check_double_backward(case.function, x, grads, second, atol=atol, **options)


def agree(name: str, dtypes: Iterable[str], twice: bool, be: Backend | None) -> None:
    """A backend (None: NumPy arrays) gives what the interpreter gives in float64."""
    for dtype in dtypes:
        found = results(CASES[name], *Operands(CASES[name]).placed(dtype, partial(contiguous, be=be)), twice)
        for order, (ys, expected) in enumerate(zip(found, wide_results(name))):
            atol = tolerance(dtype) * size(expected)
            for y, e in zip(ys, expected, strict=True):
                assert y.shape == e.shape and y.dtype == dtype, f"{dtype}, derivative {order}"
                testing.assert_allclose(y, e, atol=atol, rtol=0)


def grouped(kind: str, names: Sequence[str], *marks: Any) -> list[Any]:
    """The names of cases: those that are compiled together are for one worker."""
    return [
        pytest.param(name, marks=[pytest.mark.xdist_group(f"functions, {kind}, {names[k // GROUP * GROUP]}"), *marks])
        for k, name in enumerate(names)
    ]


def in_parts(kind: str, some: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """The names of all cases: one in `PART` with the marks `some`, the others with theirs."""
    rest = [name for k, name in enumerate(NAMES) if k % PART]
    return grouped(kind, NAMES[::PART], *some) + grouped(f"{kind}, the rest", rest, *others)


@pytest.fixture
def agree_compiled(request, absent) -> Callable[..., None]:
    """`agree_compiled(kind, name, dtypes, twice)` checks a case after compiling what its group needs."""
    if not testing.compiles(shared("jit")):
        absent("cpu", "no C compiler works here")
    group = request.node.get_closest_marker("xdist_group")
    beside = [item for item in request.session.items if item.get_closest_marker("xdist_group") == group]

    def run(kind: str, name: str, dtypes: tuple[str, ...], twice: bool = False) -> None:
        compile_together(kind, tuple(item.callspec.params["name"] for item in beside), dtypes, twice)
        agree(name, dtypes, twice, shared(kind))

    return run


@cache
def compile_together(kind: str, names: tuple[str, ...], dtypes: tuple[str, ...], twice: bool) -> None:
    """Compile what cases need."""
    rehearsal = Rehearsal()
    with rehearsal.noting():
        for name in names:
            agree(name, dtypes, twice, shared(kind))
    rehearsal.compile()


@pytest.mark.parametrize(("name", "dtype"), thinned(len(DTYPES), NAMES, DTYPES))
def test_interpreted(name, dtype) -> None:
    check(name, dtype, shared("interpreter"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_interpreted_on_strided_arrays(name) -> None:
    check(name, "float32", shared("interpreter"), strided)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("name", in_parts("compiled", [], [pytest.mark.ci]))
def test_compiled(name, agree_compiled) -> None:
    agree_compiled("jit", name, ("float32",))
    agree(name, ("float32",), False, None)  # NumPy's arrays, on the same kernels


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("name", in_parts("compiled in all types", [pytest.mark.ci], [pytest.mark.long]))
def test_compiled_in_all_types(name, agree_compiled) -> None:
    agree_compiled("jit", name, DTYPES, twice=True)


@pytest.mark.ci
@pytest.mark.parametrize("name", grouped("emulated", NAMES))
def test_emulated(name, agree_compiled) -> None:
    agree_compiled("emulator", name, ("float32",))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["jit", "emulator"])
def test_compiled_by_differences(kind, name) -> None:
    for dtype in DTYPES:
        check(name, dtype, shared(kind))
