# SPDX-License-Identifier: Apache-2.0
"""Running trees: `execute`, `evaluate`, and the ranks of results."""

from __future__ import annotations

import numpy as np

from tensorbackend import OpTreeNode


def test_execute_runs_a_tree(backend) -> None:
    t = backend.ones((2, 3))
    out = backend.empty((2, 3))
    assert backend.execute(t * 2, out) is out
    assert out.tolist() == [[2.0] * 3] * 2
    assert backend.execute(t + 1).tolist() == [[2.0] * 3] * 2
    assert OpTreeNode.build("assign", out, t * 5) is out
    assert out.tolist() == [[5.0] * 3] * 2


def test_evaluate_takes_anything(backend) -> None:
    t = backend.ones((2, 3), dtype=np.float64)
    assert backend.evaluate(t + 1).dtype == np.float64
    assert backend.evaluate(t + 1, dtype=np.int8).get().dtype == np.int8
    assert backend.evaluate(5).item() == 5
    np.testing.assert_array_equal(backend.evaluate(np.eye(2)).get(), np.eye(2))
    made = backend.evaluate(t)
    assert made is not t
    assert made.ptr != t.ptr


def test_ranks_of_results_follow_the_operands(backend) -> None:
    matrix, vector = backend.ones((2, 3)), backend.ones((3,), min_dims=0)
    assert backend.evaluate(backend.sum(matrix, 0, keepdims=False)).shape == (3,)
    assert backend.evaluate(backend.sum(vector, keepdims=False)).shape == ()
    assert backend.evaluate(matrix + vector).shape == (2, 3)
    assert backend.evaluate(vector * 2)._min_dims == 0
    assert backend.evaluate(matrix * 2)._min_dims == 2
