# SPDX-License-Identifier: Apache-2.0
"""Numbers that fill in: at the places of a mask, by a kernel and not over the host, and as halves."""

from __future__ import annotations

import numpy as np
import pytest

from tensorbackend import Backend, BackendError
from tensorbackend.graph import composite


def test_a_number_at_a_mask_is_one_kernel(jit: Backend) -> None:
    x = jit.array(np.arange(12.0).reshape(3, 4))

    def cut() -> None:
        x[x > 5] = 0

    assert [step.name for step in jit.explain(cut).steps] == ["ew_gt_b8", "ew_where_f32"]
    np.testing.assert_array_equal(x.get(), np.where(np.arange(12.0) > 5, 0, np.arange(12.0)).reshape(3, 4))


def test_a_mask_of_another_backend_is_refused(jit: Backend) -> None:
    """Before anything is written."""
    x = jit.array(np.arange(12.0).reshape(3, 4))
    mask = Backend.allocate_backend("cpu").array(np.arange(12).reshape(3, 4) > 5, dtype=bool)
    with pytest.raises(BackendError, match="another backend's tensor"):
        x[mask] = 0
    np.testing.assert_array_equal(x.get(), np.arange(12.0).reshape(3, 4))


def test_a_mask_of_rows_takes_a_number_in_whole_rows(jit: Backend) -> None:
    """It does not broadcast along columns."""
    x, rows = jit.ones((3, 3)), np.array([True, False, True])
    x[jit.array(rows, dtype=bool, min_dims=0)] = 0
    np.testing.assert_array_equal(x.get(), np.where(rows[:, None], 0, np.ones((3, 3))))


def test_a_half_that_is_filled_in_is_rounded_once(jit: Backend) -> None:
    """Of any number of elements, wherever they begin."""
    for dtype in ("float16", "bfloat16"):
        for n in (1, 31, 32, 33, 500):
            whole = jit.zeros((1, 600), dtype=dtype)
            whole[:, 3 : 3 + n] = 1 / 3
            expected = np.zeros((1, 600), whole.get().dtype)
            expected[:, 3 : 3 + n] = 1 / 3
            np.testing.assert_array_equal(whole.get(), expected)


def test_halves_among_zeros_and_in_another_shape_stay_halves(jit: Backend) -> None:
    """They are written where they belong, and copied for a reshape, without a temporary of float32."""
    x, whole, flat = jit.ones((6, 8), dtype="bfloat16"), jit.empty((8, 10), dtype="bfloat16"), jit.empty((48, 1))
    found = jit.explain(whole, composite.unslice(x * 3, (8, 10), (slice(1, 7), slice(1, 9))))
    assert [step.writes for step in found.steps] == [["the target (8, 10) bf16"], ["the target (6, 8) bf16"]]
    np.testing.assert_array_equal(whole.get().astype("f4"), np.pad(np.full((6, 8), 3.0), 1))
    found = jit.explain(flat, composite.reshape(x.T, (48, 1)) + 1)
    assert found.steps[0].writes == ["temporary 1 (8, 6) bf16"]
    assert (flat.get() == 2).all()
