# SPDX-License-Identifier: Apache-2.0
"""Numbers that fill in: at the places of a mask, by a kernel and not over the host, and as halves."""

from __future__ import annotations

import numpy as np

from tensorbackend import Backend


def test_a_number_at_a_mask_is_one_kernel(jit: Backend) -> None:
    x = jit.array(np.arange(12.0).reshape(3, 4))

    def cut() -> None:
        x[x > 5] = 0

    assert [step.name for step in jit.explain(cut).steps] == ["ew_gt_b8", "ew_where_f32"]
    np.testing.assert_array_equal(x.get(), np.where(np.arange(12.0) > 5, 0, np.arange(12.0)).reshape(3, 4))


def test_a_half_that_is_filled_in_is_rounded_once(jit: Backend) -> None:
    """Of any number of elements, wherever they begin."""
    for dtype in ("float16", "bfloat16"):
        for n in (1, 31, 32, 33, 500):
            whole = jit.zeros((1, 600), dtype=dtype)
            whole[:, 3 : 3 + n] = 1 / 3
            expected = np.zeros((1, 600), whole.get().dtype)
            expected[:, 3 : 3 + n] = 1 / 3
            np.testing.assert_array_equal(whole.get(), expected)
