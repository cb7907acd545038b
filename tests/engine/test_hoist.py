# SPDX-License-Identifier: Apache-2.0
"""What C kernels compute in another way gives the bits of what it stands for: random words, reciprocals, additions,
halves on vectors.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

import numpy as np
import pytest

from tensorbackend import Backend, Tensor
from tensorbackend.backends.cpu import CPUBackend
from tensorbackend.settings import using


def drawn(jit: bool, make: Callable[[Backend], Tensor]) -> np.ndarray:
    be = Backend.allocate_backend("cpu", rng_seed=3, jit=jit)
    return make(be).get()


def assigned(be: Backend, shape: tuple[int, ...], dtype: str, tree: Callable[[Backend], object]) -> Tensor:
    out = be.empty(shape, dtype)
    out[:] = tree(be)
    return out


CASES = {
    "vectors": lambda be: assigned(be, (70, 300), "float32", lambda be: be.rand()),
    "fewer than a vector": lambda be: assigned(be, (5,), "float32", lambda be: be.rand()),
    "more than a block": lambda be: assigned(be, (2100,), "float32", lambda be: be.rand()),
    "two words": lambda be: assigned(be, (33, 65), "float64", lambda be: be.rand()),
    "halves": lambda be: assigned(be, (33, 65), "float16", lambda be: be.rand()),
    "rows": lambda be: assigned(be, (33, 1), "float32", lambda be: be.max(be.rand() * be.ones((33, 65)), axis=1)),
    "columns": lambda be: assigned(be, (1, 65), "float32", lambda be: be.max(be.rand() * be.ones((33, 65)), axis=0)),
    "across": lambda be: assigned(be, (65, 33), "float32", lambda be: (be.rand() * be.ones((33, 65))).T),
}


@pytest.mark.parametrize("case", CASES)
def test_random_words_ahead_of_a_loop_are_those_of_each_element(case: str) -> None:
    np.testing.assert_array_equal(drawn(True, CASES[case]), drawn(False, CASES[case]))


@pytest.mark.parametrize("divisor", [3.0, -0.1, 0.0, float("inf"), 2.0**-140])
def test_division_by_a_number_is_a_division(divisor: float) -> None:
    be = Backend.allocate_backend("cpu")
    numbers = np.random.default_rng(1).integers(0, 1 << 32, 5000, np.uint32).view(np.float32)
    x, y = be.array(numbers), be.empty(5000)
    y[:] = x / divisor + 0.0
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y.get().ravel(), numbers / np.float32(divisor) + np.float32(0))
    assert "tb_over_f32" in str(be.explain(x / divisor))


def test_additions_of_integers_stay_additions(backend: Backend) -> None:
    numbers = np.random.default_rng(2).integers(-9, 9, (40, 300), "int32")
    x, row = backend.array(numbers, "int32"), backend.array(numbers[:, 1:2], "int32")
    away = (x - row) + (backend.max(x + row + 1, axis=1) - x)
    expected = (numbers + numbers[:, 1:2] + 1).max(1, keepdims=True) - numbers[:, 1:2]
    np.testing.assert_array_equal(away.asnumpyarray(), np.broadcast_to(expected, numbers.shape))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cflags", ["", "-mno-fma"] if platform.machine() in ("x86_64", "AMD64") else [""])
def test_additions_by_multiply_adds_are_additions(dtype: str, cflags: str, absent) -> None:
    with using(cflags=cflags):
        be = Backend.allocate_backend("cpu")
        if not be.jit:
            absent("cpu", "no C compiler works here")
        word = {"float32": np.uint32, "float64": np.uint64}[dtype]
        numbers = np.random.default_rng(2).integers(0, 1 << 8 * word().itemsize, (40, 300), word, False).view(dtype)
        numbers[:, 0], numbers[::2, 7:40], numbers[1, :] = 0.0, -0.0, -0.0
        numbers[2, :9] = np.inf
        rows = np.random.default_rng(3).permutation(numbers[:, 1:2])
        rows[1:4] = [[0.0], [np.inf], [-0.0]]
        x, row = be.array(numbers, dtype), be.array(rows, dtype)
        most, out = be.empty((40, 1), dtype), be.empty((40, 300), dtype)
        with be.fuse():
            most[:] = be.max(x + row, axis=1)
            out[:] = (x - row) + (most - x)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(most.get(), np.max(numbers + rows, axis=1, keepdims=True))
            found, wanted = out.get(), (numbers - rows) + (np.max(numbers + rows, axis=1, keepdims=True) - numbers)
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(np.signbit(found)[found == 0], np.signbit(wanted)[wanted == 0])
        tree = (x - row) + (be.max(x + row, axis=1) - x)
        assert "TB_LESS" in str(be.explain(tree)) and "TB_ONE" in str(be.explain(tree))


HALVES = {
    "arithmetic": lambda be, x, y: -(x + y) * 2 - y / 4,
    "a function": lambda be, x, y: be.tanh(x * 0) + y,
    "truth as a number": lambda be, x, y: be.greater(x, y) + x,
    "truth added to truth": lambda be, x, y: be.greater(x, y) + be.less(x, 3) - x,
    "a choice": lambda be, x, y: be.where(be.greater(x, y), x, y) + 1,
    "a number for each row": lambda be, x, y: be.broadcast_to(y[:, 2:3], y.shape) + x,
    "random numbers": lambda be, x, y: be.floor(be.rand()) + x,
    "another type": lambda be, x, y: x + be.array([[0.5]], "float64"),
}


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 97])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", HALVES)
def test_halves_on_vectors_are_those_of_each_element(backend: Backend, name: str, dtype: str, width: int) -> None:
    """Small whole numbers and quarters, which are exact."""
    numbers = np.random.default_rng(4).integers(-4, 5, (2, 3, width))
    x, y = (backend.array(values, dtype=dtype) for values in numbers)
    row = backend.array(numbers[0, :, :1], dtype=dtype)
    plain = CPUBackend(jit=False)
    expected = HALVES[name](plain, *(plain.array(values, dtype="float32") for values in numbers)).asnumpyarray()
    first, second = backend.empty((3, width), dtype), backend.empty((3, width), dtype)
    with backend.fuse():
        first[:] = HALVES[name](backend, x, y) + row
        second[:] = row * 2
    np.testing.assert_array_equal(first.get().astype("f"), expected + numbers[0, :, :1])
    np.testing.assert_array_equal(second.get().astype("f"), np.repeat(numbers[0, :, :1] * 2, width, 1))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "more"), [(64, set()), (97, {"a number for each row"})])
def test_which_halves_go_on_vectors(jit: Backend, width: int, more: set) -> None:
    """Rows of 97 are joined, and then all inputs lie side by side."""
    x, y, out = (jit.ones((3, width), "float16") for _ in range(3))
    wide = {name for name, tree in HALVES.items() if "TB_WIDE" in str(jit.explain(out, tree(jit, x, y)))}
    assert wide == {"arithmetic", "a function"} | more
