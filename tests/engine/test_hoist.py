# SPDX-License-Identifier: Apache-2.0
"""What C kernels compute ahead of their loops gives the bits of what it stands for: random words, reciprocals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensorbackend import Backend, Tensor


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
