# SPDX-License-Identifier: Apache-2.0
"""Deconvolution: sizes, and its three passes as the convolution's exchanged, against the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tensorbackend import ShapeError
from tensorbackend.conformance import references as ref

# A backend serves all examples.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])


@shared
@given(
    maps=st.tuples(st.sampled_from([1, 2, 5]), st.sampled_from([1, 3, 4]), st.sampled_from([1, 7, 16])),
    small=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
    window=st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 5)),
    pads=st.tuples(st.just(0), st.integers(0, 2), st.tuples(st.integers(0, 1), st.integers(0, 3))),
    dilation=st.integers(1, 2),
)
def test_passes_are_the_convolutions_exchanged(backend: Any, maps: tuple, small: tuple, window: tuple, strides: tuple,
                                               pads: tuple, dilation: int) -> None:  # fmt: skip
    sizes = dict(zip(("C", "K", "N", "M", "P", "Q", "T", "R", "S"), (*maps, *small, *window)))
    sizes |= dict(zip(("pad_d", "pad_h", "pad_w", "str_d", "str_h", "str_w"), (*pads, *strides)), dil_h=dilation)
    try:
        layer = backend.deconv_layer("float32", **sizes)
    except ShapeError as error:
        assert "no output" in str(error)
        assume(False)
    assert layer.MPQ == small
    assert layer.nOut == layer.C * int(np.prod(layer.DHW))
    x, f, e = (ref.draw(dim, "float32", n) for n, dim in enumerate((layer.dimO, layer.dimF, layer.dimI)))
    inputs, F, error = (backend.array(a.reshape(-1, a.shape[-1])) for a in (x, f, e))
    outputs, deltas, grad = (backend.empty(dim) for dim in (layer.dimI2, layer.dimO2, layer.dimF2))
    sums = backend.empty((layer.C, 1))
    backend.bprop_conv(layer, F=F, E=inputs, grad_I=outputs, bsum=sums)
    backend.fprop_conv(layer, error, F, deltas)
    backend.update_conv(layer, error, inputs, grad)
    x, f, e = ref.wide(x), ref.wide(f), ref.wide(e)
    for found, expected in (
        (outputs, ref.bprop(layer, f, x)),
        (deltas, ref.fprop(layer, e, f)),
        (grad, ref.update(layer, e, x)),
    ):
        np.testing.assert_allclose(found.get().reshape(expected.shape), expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(sums.get()[:, 0], ref.bprop(layer, f, x).sum((1, 2, 3, 4)), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("sizes, length", [({"H": 7, "R": 3, "str": 2}, 7), ({"H": 8, "R": 3, "str": 2}, 7)])
def test_the_size_is_the_smallest_that_fits(backend: Any, sizes: dict, length: int) -> None:
    conv = backend.conv_layer("float32", 1, 1, 1, H=sizes["H"], R=sizes["R"], str_h=sizes["str"])
    layer = backend.deconv_layer("float32", 1, 1, 1, 1, conv.P, 1, R=sizes["R"], str_h=sizes["str"])
    assert layer.DHW == (1, length, 1)


def test_padding_that_leaves_nothing_is_refused(backend: Any) -> None:
    with pytest.raises(ShapeError, match=r"images \(1, 1, 2\)[\s\S]*H = -1"):
        backend.deconv_layer("float32", 1, 1, 1, 1, 1, 2, R=1, pad_h=1)
