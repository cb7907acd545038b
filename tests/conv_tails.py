# SPDX-License-Identifier: Apache-2.0
"""What follows a convolution, beside what is computed in statements of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorbackend import Backend
from tensorbackend.conformance import references as ref


def tails_change_no_bit(backend: Backend, layer: Any) -> None:
    """Elementwise work on the results of a layer's images: as a tail, on the target's old values, across the target."""
    dtype = layer.dtype.name
    draw = (ref.draw(dim, dtype, seed) for seed, dim in enumerate((layer.dimI, layer.dimF)))
    images, filters = (backend.array(x, dtype=dtype) for x in draw)
    bias = backend.array(ref.draw((layer.K, 1, 1, 1, 1), dtype, 3), dtype=dtype)
    X = backend.array(ref.draw(layer.dimO, dtype, 4), dtype=dtype)
    sums, old = (backend.empty(layer.dimO, dtype=dtype) for _ in range(2))
    backend.conv(layer, images, filters, out=sums)
    if dtype == "float32":
        together = backend.maximum(backend.conv(layer, images, filters) + bias, 0) * 0.5 + X
        assert len(backend.explain(together).steps) == 1
        old[:] = X
        old[:] = backend.maximum(backend.conv(layer, images, filters) + bias, 0) * 0.5 + old
        apart = (backend.maximum(sums + bias, 0) * 0.5 + X).get()
        np.testing.assert_array_equal(together.get(), apart)
        np.testing.assert_array_equal(old.get(), apart)
        turned = backend.empty(layer.dimO[::-1]).transpose(4, 3, 2, 1, 0)
        turned[:] = backend.maximum(backend.conv(layer, images, filters) + bias, 0) * 0.5 + X
        np.testing.assert_array_equal(turned.get(), apart)
    old[:] = backend.maximum(backend.conv(layer, images, filters), 0)
    np.testing.assert_array_equal(old.get(), np.maximum(sums.get(), 0))
