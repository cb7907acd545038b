# SPDX-License-Identifier: Apache-2.0
"""How reductions are walked: axes of length 1, passes that are cut into segments, lengths around the blocks."""

from __future__ import annotations

import numpy as np
import pytest

from tensorbackend import Backend
from tensorbackend.codegen.nest import nest
from tensorbackend.graph import fuse

SINGLE = [((7, 1), 1), ((1, 7), 0), ((7, 1, 3), 1), ((1, 1), None), ((1, 7, 1, 3), (0, 2))]


def kernels_of(tree: object) -> list[fuse.Kernel]:
    """The kernels that assigning a tree becomes."""
    target = tree.backend.empty(tree.shape, tree.dtype, min_dims=0)
    leaves, _ = fuse.walk(tree)
    return fuse.schedule([fuse.Statement(target.structure, tree, 0)], [leaves]).steps


@pytest.mark.parametrize(("shape", "axis"), SINGLE)
def test_a_reduction_of_one_element_each_is_a_map(backend: Backend, shape: tuple[int, ...], axis: object) -> None:
    values = np.resize(np.array([-0.0, 1.5, np.nan, -np.inf, -2.0], np.float32), shape)
    x = backend.array(values, min_dims=0)
    names = ["sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin"]
    for name in names if not isinstance(axis, tuple) else names[:-2]:
        tree = getattr(backend, name)(x, axis)
        assert nest(kernels_of(tree)[0]).form == "map"
        expected = getattr(np, name)(values, axis=axis, keepdims=True)
        got = tree.asnumpyarray().reshape(expected.shape)
        assert np.array_equal(got, expected, equal_nan=name not in ("any", "all"))
        numbers = ~np.isnan(expected)
        assert np.array_equal(np.signbit(got[numbers].astype("f")), np.signbit(expected[numbers].astype("f")))


def test_an_axis_of_one_among_reduced_axes_is_dropped(backend: Backend) -> None:
    x = backend.ones((1, 5, 1, 4))
    assert nest(kernels_of(backend.sum(x))[0]).kernel.shape == (20,)
    assert backend.sum(x).asnumpyarray().item() == 20
