# SPDX-License-Identifier: Apache-2.0
"""Primitives against PyTorch's, where it is installed: larger layers than the definitions can be asked for."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorbackend.conformance import references as ref
from tensorbackend.conformance.test_gated import Case as GatedCase


@pytest.fixture(scope="module")
def torch(absent: Callable[[str, str], None]) -> Any:
    """PyTorch."""
    if importlib.util.find_spec("torch") is None:
        absent("torch", "PyTorch is not installed")
    return importlib.import_module("torch")


BIG = [
    {"N": 32, "C": 3, "K": 64, "H": 20, "W": 20, "R": 11, "S": 11, "str_h": 4, "str_w": 4, "pad_h": 2, "pad_w": 2},
    {"N": 16, "C": 67, "K": 71, "H": 7, "W": 5, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
    {"N": 5, "C": 70, "K": 130, "H": 6, "W": 6},
    {"N": 1, "C": 32, "K": 48, "H": 13, "W": 13, "R": 5, "S": 5, "pad_h": 2, "pad_w": 2},
    {"N": 8, "C": 24, "K": 24, "H": 9, "W": 9, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1, "groups": 24},
    {"N": 4, "C": 8, "K": 16, "D": 5, "H": 6, "W": 6, "T": 3, "R": 3, "S": 3, "pad_d": 1, "pad_h": 1, "pad_w": 1},
]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", BIG, ids=lambda s: f"{s['N']}-{s['C']}-{s['K']}")
def test_convolution(backend: Any, sizes: dict[str, int], torch: Any) -> None:
    if backend.backend_name == "gpu" and backend.driver.facts.emulated:
        sizes = {**sizes, "N": -(-sizes["N"] // 8)}
    layer = backend.conv_layer("float32", **sizes)
    i, f, e = (ref.draw(dim, "float32", n) for n, dim in enumerate((layer.dimI, layer.dimF, layer.dimO)))
    I, F, E = (backend.array(x) for x in (i, f, e))
    O, gI, gF = (backend.empty(d) for d in (layer.dimO, layer.dimI, layer.dimF))
    backend.fprop_conv(layer, I, F, O)
    backend.bprop_conv(layer, F, E, gI)
    backend.update_conv(layer, I, E, gF)
    x = torch.tensor(np.moveaxis(i, -1, 0).copy(), requires_grad=True)
    w = torch.tensor(np.moveaxis(f, -1, 0).copy(), requires_grad=True)
    y = torch.nn.functional.conv3d(x, w, None, layer.strides, layer.padding, layer.dilation, layer.groups)
    y.backward(torch.tensor(np.moveaxis(e, -1, 0).copy()))
    for ours, theirs in ((O, y.detach()), (gI, x.grad), (gF, w.grad)):
        theirs = np.moveaxis(theirs.numpy(), 0, -1)
        assert np.abs(ours.get() - theirs).max() <= 2e-5 * np.abs(theirs).max()


@pytest.mark.slow
def test_deconvolution(backend: Any, torch: Any) -> None:
    layer = backend.deconv_layer("float32", 3, 6, 4, 1, 5, 4, R=4, S=3, pad_h=1, str_h=2, str_w=2, groups=2)
    x, f = (ref.draw(dim, "float32", n) for n, dim in enumerate((layer.dimO, layer.dimF)))
    out = backend.empty(layer.dimI2)
    backend.bprop_conv(layer, backend.array(f), backend.array(x), out)
    images, filters = torch.tensor(np.moveaxis(x[:, 0], -1, 0).copy()), torch.tensor(np.moveaxis(f[:, 0], -1, 0).copy())
    theirs = torch.nn.functional.conv_transpose2d(images, filters, None, (2, 2), (1, 0), groups=2)
    np.testing.assert_allclose(out.get().reshape(layer.dimI)[:, 0], np.moveaxis(theirs.numpy(), 0, -1), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("sizes, kind", [
    ({"N": 16, "C": 8, "H": 13, "W": 13, "R": 3, "S": 3, "str_h": 2, "str_w": 2}, "max"),
    ({"N": 4, "C": 3, "D": 4, "H": 9, "W": 8, "T": 2, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1}, "max"),
    ({"N": 7, "C": 5, "H": 12, "W": 12, "R": 2, "S": 2}, "avg"),
])  # fmt: skip
def test_pooling(backend: Any, sizes: dict, kind: str, torch: Any) -> None:
    layer = backend.pool_layer("float32", kind, **sizes)
    i, e = ref.draw(layer.dimI, "float32"), ref.draw(layer.dimO, "float32", 1)
    O, argmax, grad = backend.empty(layer.dimO), backend.empty(layer.dimO, np.uint8), backend.empty(layer.dimI)
    backend.fprop_pool(layer, backend.array(i), O, argmax)
    backend.bprop_pool(layer, backend.array(e), grad, argmax)
    x = torch.tensor(np.moveaxis(i, -1, 0).copy(), requires_grad=True)
    function = torch.nn.functional.max_pool3d if kind == "max" else torch.nn.functional.avg_pool3d
    y = function(x, layer.JTRS[1:], layer.strides[1:], layer.padding[1:])
    y.backward(torch.tensor(np.moveaxis(e, -1, 0).copy()))
    np.testing.assert_allclose(O.get(), np.moveaxis(y.detach().numpy(), 0, -1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(grad.get(), np.moveaxis(x.grad.numpy(), 0, -1), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_two_directions_of_gated_layers_share_a_buffer(backend: Any, kind: str, torch: Any) -> None:
    nin, nout, N, steps = 3, 5, 4, 6
    layer = getattr(torch.nn, kind.upper())(nin, nout, bidirectional=True).double()
    x, dy = (torch.tensor(ref.draw((steps, N, rows), seed=seed)) for seed, rows in enumerate((nin, 2 * nout)))
    x.requires_grad_()
    y, _ = layer(x)
    y.backward(dy)

    def rows(z: Any) -> np.ndarray:
        return z.detach().numpy().transpose(2, 0, 1).reshape(z.shape[2], -1)

    h, delta = backend.empty((2 * nout, N * steps), "float64"), backend.array(rows(dy), "float64")
    dx = np.zeros((nin, N * steps))
    for part, (suffix, reverse) in enumerate([("_l0", False), ("_l0_reverse", True)]):
        case = GatedCase(kind, nin, nout, N, steps, reverse=reverse, initial=False)
        half = slice(part * nout, (part + 1) * nout)
        W_in, W_recur, b_in, b_recur = (
            getattr(layer, name + suffix).detach().numpy() for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        bias = b_in + b_recur if kind == "lstm" else b_in + np.where(np.arange(3 * nout) < 2 * nout, b_recur, 0)
        case.numbers |= {"W_in": W_in, "W_recur": W_recur, "bias": bias[:, None], "x": rows(x)}
        case.numbers |= {"bias_recur": b_recur[-nout:, None], "dc_last": np.zeros((nout, N))}
        t = case.forward(backend, h=h[half])
        t["delta"] = delta[half]
        gradients = case.back(backend, t)
        dx += gradients["dx"]
        for name, wanted in (("dW_in", "weight_ih"), ("dW_recur", "weight_hh"), ("dbias", "bias_ih")):
            expected = getattr(layer, wanted + suffix).grad.numpy().reshape(gradients[name].shape)
            np.testing.assert_allclose(gradients[name], expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(h.get(), rows(y), rtol=1e-10)
    np.testing.assert_allclose(dx, rows(x.grad), rtol=1e-9, atol=1e-12)
