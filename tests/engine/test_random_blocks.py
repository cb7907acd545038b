# SPDX-License-Identifier: Apache-2.0
"""Random numbers through NumPy do not depend on how arrays are cut into blocks."""

from __future__ import annotations

import numpy as np
import pytest

from tensorbackend import Backend
from tensorbackend.backends import interpreter


@pytest.mark.parametrize("block", [64, 1000, 1 << 20])
@pytest.mark.parametrize("statement", ["rand", "reduction", "tree"])
def test_block_size_changes_no_number(monkeypatch, block, statement) -> None:
    def run() -> np.ndarray:
        be = Backend.allocate_backend("cpu", rng_seed=3, jit=False)
        out = be.empty((300, 70))
        if statement == "rand":
            out[:] = be.rand() + be.randn()
        elif statement == "reduction":
            out[:] = be.max(be.rand() * be.ones((300, 70)), axis=1) + be.zeros((300, 70))
        else:
            out.T[:] = (be.rand() * be.ones((300, 70))).T
        return out.get()

    expected = run()
    monkeypatch.setattr(interpreter, "BLOCK", block)
    np.testing.assert_array_equal(run(), expected)
