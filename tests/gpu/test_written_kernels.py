# SPDX-License-Identifier: Apache-2.0
"""Written kernels of the primitives on the emulator, in two orders of threads: values of the CPU, in bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend
from tensorbackend.backends import compiler
from tensorbackend.backends.driver import open_driver
from tensorbackend.backends.emulator import ORDERS
from tensorbackend.backends.gpu import GpuBackend

CLOSE = {"rtol": 2e-5, "atol": 2e-5}  # float32 sums in another order


@pytest.fixture(params=ORDERS[:2])
def be(request: pytest.FixtureRequest, absent: Callable[[str, str], None]) -> Iterator[GpuBackend]:
    """The emulator, in two orders of threads."""
    if compiler.find_compiler() is None:
        absent("cc", compiler.compiler_status())
    made = GpuBackend(driver=open_driver("emulator", order=request.param), rng_seed=0)
    yield made
    made.cleanup_backend()


@pytest.fixture
def cpu() -> Iterator[Backend]:
    """The plain NumPy meaning."""
    made = Backend.allocate_backend("cpu", rng_seed=0, jit=False)
    yield made
    made.cleanup_backend()


def drawn(be: Any, *shapes: tuple[int, int]) -> list[Any]:
    """The same random tensors on any backend."""
    return [be.array(np.random.default_rng(n).standard_normal(shape)) for n, shape in enumerate(shapes)]


def convolved(be: Any, sizes: dict) -> list[np.ndarray]:
    """What the three passes give."""
    layer = be.conv_layer("float32", **sizes)
    I, F, E = drawn(be, layer.dimI2, layer.dimF2, layer.dimO2)
    O, gI, gF = (be.empty(dim) for dim in (layer.dimO2, layer.dimI2, layer.dimF2))
    be.fprop_conv(layer, I, F, O, relu=True)
    be.bprop_conv(layer, F, E, gI)
    be.update_conv(layer, I, E, gF)
    return [O.get(), gI.get(), gF.get()]


def pooled(be: Any, op: str) -> list[np.ndarray]:
    """What both passes of pooling give."""
    layer = be.pool_layer("float32", op, 37, 3, H=7, W=6, R=3, S=2, pad_h=1, str_h=2, str_w=1)
    I, E = drawn(be, layer.dimI2, layer.dimO2)
    O, delta, argmax = be.empty(layer.dimO2), be.empty(layer.dimI2), be.zeros(layer.dimO2, np.uint8)
    be.fprop_pool(layer, I, O, argmax)
    be.bprop_pool(layer, E, delta, argmax, X=I, Y=O)
    return [O.get(), argmax.get(), delta.get()]


def normalised(be: Any) -> list[np.ndarray]:
    """What both passes of response normalisation give."""
    layer = be.lrn_layer("float32", 37, 7, H=3, W=5, J=5)
    I, E = drawn(be, layer.dimI2, layer.dimI2)
    O, denom, delta = (be.empty(layer.dimI2) for _ in range(3))
    be.fprop_lrn(layer, I, O, denom, ascale=0.5, bpower=0.75)
    be.bprop_lrn(layer, I, O, E, delta, denom, ascale=0.5, bpower=0.75)
    return [O.get(), denom.get(), delta.get()]


CONVOLUTIONS = [
    {"N": 3, "C": 6, "K": 34, "H": 9, "W": 7, "R": 3, "S": 2, "pad_h": 2, "str_w": 2, "dil_h": 2, "groups": 2},
    {"N": 17, "C": 20, "K": 5, "D": 3, "H": 4, "W": 4, "T": 2, "R": 2, "S": 2, "pad_w": (0, 1)},
]


@pytest.mark.parametrize("sizes", CONVOLUTIONS, ids=["groups", "3d"])
def test_convolution(be: GpuBackend, cpu: Backend, sizes: dict) -> None:
    for ours, theirs in zip(convolved(be, sizes), convolved(cpu, sizes)):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


@pytest.mark.parametrize("op", ["max", "avg", "l2"])
def test_pooling(be: GpuBackend, cpu: Backend, op: str) -> None:
    for ours, theirs in zip(pooled(be, op), pooled(cpu, op)):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_normalisation(be: GpuBackend, cpu: Backend) -> None:
    for ours, theirs in zip(normalised(be), normalised(cpu)):
        np.testing.assert_allclose(ours, theirs, **CLOSE)
