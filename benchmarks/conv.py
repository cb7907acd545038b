# SPDX-License-Identifier: Apache-2.0
"""Convolutions and both gradients beside PyTorch (two memory formats) and JAX, and the multiply-adds of this machine.

Layers of convnet-benchmarks, AlexNet, OverFeat, VGG-A, GoogLeNet, DeepBench, of ResNet-50 for one image, 1 x 1 ones
between few maps and depthwise ones as MobileNet has them, ones of stride 2, patches as of vision transformers and
ConvNeXt, and dilated ones as DRN and DeepLab have them. GFLOP/s are effective: operations of the definition over
time. Batches are halved until a pass has at most 20 GFLOP (`--quick`: 3, and a third of the layers unless `--only`
names them); the shape says N, C, H, W, K, filter height and width, stride, pad and, where there is one, dilation.
Beside the engine with a seed, where a cost model chooses the algorithm: without one, where they are timed once a
shape (`timed`), with tiles of 2 x 2 (`F(2x2)`), and without Winograd's algorithm (`direct`). An error is the largest
difference over the largest value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import libraries
import numpy as np

from tensorbackend import bench
from tensorbackend.primitives.conv import bprop_reference, fprop_reference, update_reference
from tensorbackend.primitives.geometry import ConvGeometry

MOST_FLOPS, QUICK_FLOPS = 20e9, 3e9
PASSES = ("fprop", "bprop", "update")
WAYS: dict[str, dict[str, Any]] = {
    "tensorbackend": {},
    "timed": {"rng_seed": None},
    "F(2x2)": {"enable_winograd": 2},
    "direct": {"enable_winograd": False},
}
"""The backend's settings; only the first is the project's figure."""


@dataclass(frozen=True)
class Layer:
    """A 2-D convolution: sizes by their letters in the contract."""

    set_: str
    N: int
    C: int
    H: int
    W: int
    K: int
    R: int
    S: int
    stride: int = 1
    pad: int = 0
    groups: int = 1
    dilation: int = 1

    @property
    def geometry(self) -> ConvGeometry:
        """What the engine makes of it."""
        reach = ((n + 2 * self.pad - self.dilation * (f - 1) - 1) for n, f in ((self.H, self.R), (self.W, self.S)))
        P, Q = (n // self.stride + 1 for n in reach)
        pads, strides = ((0, 0), *((self.pad,) * 2,) * 2), (1, self.stride, self.stride)
        return ConvGeometry(self.N, self.C, 1, self.H, self.W, self.K, 1, P, Q, 1, self.R, self.S, strides, pads,
                            (1, self.dilation, self.dilation), self.groups)  # fmt: skip

    def cut(self, flops: float) -> Layer:
        """The same with fewer images, so that a pass has at most `flops` operations, or one image."""
        found = self
        while found.N > 1 and found.geometry.flops > flops:
            found = replace(found, N=found.N // 2)
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """What the table shows."""
        dilation = (self.dilation,) if self.dilation > 1 else ()
        return self.N, self.C, self.H, self.W, self.K, self.R, self.S, self.stride, self.pad, *dilation


def _squares(name: str, N: int, text: str) -> list[Layer]:
    """Layers from words C@size-K-filter/stride/pad."""
    layers = []
    for word in text.split():
        maps, size, out, window = word.replace("@", "-").split("-")
        R, stride, pad = (int(n) for n in window.split("/"))
        layers.append(Layer(name, N, int(maps), int(size), int(size), int(out), R, R, stride, pad))
    return layers


LAYERS = [
    *_squares("convnet", 128, "3@128-96-11/1/0 64@64-128-9/1/0 128@32-128-9/1/0 128@16-128-7/1/0 384@13-384-3/1/0"),
    *_squares("AlexNet", 128, "3@224-64-11/4/2 64@27-192-5/1/2 192@13-384-3/1/1 384@13-256-3/1/1 256@13-256-3/1/1"),
    *_squares("OverFeat", 128, "3@231-96-11/4/0 96@28-256-5/1/0 256@12-512-3/1/1 512@12-1024-3/1/1 1024@12-1024-3/1/1"),
    *_squares("VGG-A", 64, "3@224-64-3/1/1 64@112-128-3/1/1 128@56-256-3/1/1 256@56-256-3/1/1 256@28-512-3/1/1 "
                           "512@28-512-3/1/1 512@14-512-3/1/1"),
    *_squares("GoogLeNet", 128, "3@224-64-7/2/3 64@56-64-1/1/0 64@56-192-3/1/1 192@28-96-1/1/0 96@28-128-3/1/1 "
                                "16@28-32-5/1/2 528@14-256-1/1/0 160@14-320-3/1/1 32@14-128-5/1/2 832@7-384-1/1/0 "
                                "192@7-384-3/1/1 48@7-128-5/1/2"),
    Layer("DeepBench", 4, 1, 161, 700, 32, 5, 20, 2),
    Layer("DeepBench", 4, 32, 79, 341, 32, 5, 10, 2),
    Layer("DeepBench", 16, 1, 48, 480, 16, 3, 3, 1, 1),
    Layer("DeepBench", 16, 16, 24, 240, 32, 3, 3, 1, 1),
    Layer("DeepBench", 16, 32, 12, 120, 64, 3, 3, 1, 1),
    Layer("DeepBench", 16, 64, 6, 60, 128, 3, 3, 1, 1),
    *_squares("DeepBench", 8, "3@108-64-3/2/1 64@54-64-3/1/1 128@27-128-3/1/1 128@14-256-3/1/1 256@7-512-3/1/1 "
                              "3@224-64-3/1/1 128@56-256-3/1/1"),
    *_squares("one image", 1, "64@56-64-3/1/1 128@28-128-3/1/1 256@14-256-3/1/1 512@7-512-3/1/1 64@56-256-1/1/0 "
                              "256@56-64-1/1/0 1024@14-256-1/1/0 512@7-2048-1/1/0"),
    *_squares("few maps", 16, "32@112-16-1/1/0 16@112-96-1/1/0 144@56-24-1/1/0 24@56-144-1/1/0"),
    *_squares("stride 2", 8, "3@224-32-3/2/1 128@56-128-3/2/1 256@28-256-3/2/1 256@56-512-1/2/0"),
    *_squares("patches", 8, "3@224-768-16/16/0 3@224-96-4/4/0 96@56-192-2/2/0"),
    Layer("depthwise", 16, 128, 56, 56, 128, 3, 3, 1, 1, 128),
    Layer("depthwise", 16, 96, 56, 56, 96, 3, 3, 2, 1, 96),
    Layer("dilated", 16, 256, 32, 32, 256, 3, 3, 1, 2, dilation=2),
    Layer("dilated", 1, 512, 28, 28, 512, 3, 3, 1, 4, dilation=4),
    Layer("dilated", 8, 512, 33, 33, 512, 3, 3, 1, 2, dilation=2),
    Layer("dilated", 1, 2048, 33, 33, 256, 3, 3, 1, 12, dilation=12),
]  # fmt: skip


@cache
def operands(layer: Layer) -> dict[str, np.ndarray]:
    """Images, filters and errors in float32, in the engine's layout."""
    g = layer.geometry
    draw = np.random.default_rng(0)
    shapes = {"I": g.dimI, "F": g.dimF, "E": g.dimO}
    return {name: draw.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


@cache
def truth(layer: Layer, kind: str) -> np.ndarray:
    """The result of a pass in float64, in the engine's layout."""
    g, x = layer.geometry, operands(layer)
    if kind == "fprop":
        return fprop_reference(x["I"], x["F"], g, np.float64)
    if kind == "bprop":
        return bprop_reference(x["F"], x["E"], g, np.float64)
    return update_reference(x["I"], x["E"], g, np.float64)


def ours(layer: Layer, kind: str, dtype: str, options: Any, name: str) -> bench.Contender:
    """The engine, in one of `WAYS`."""
    be = libraries.backend(options, **WAYS[name])
    g = layer.geometry
    made = be.conv_layer(dtype, g.N, g.C, g.K, H=g.H, W=g.W, R=g.R, S=g.S, pad_h=layer.pad, pad_w=layer.pad,
                         str_h=layer.stride, str_w=layer.stride, dil_h=layer.dilation, dil_w=layer.dilation,
                         groups=layer.groups)  # fmt: skip
    images, filters, errors = (be.array(x.reshape(-1, x.shape[-1]), dtype=dtype) for x in operands(layer).values())
    dims = {"fprop": made.dimO2, "bprop": made.dimI2, "update": made.dimF2}
    out = be.empty(dims[kind], dtype=dtype)
    calls: dict[str, Callable[[], Any]] = {
        "fprop": lambda: be.fprop_conv(made, images, filters, out),
        "bprop": lambda: be.bprop_conv(made, filters, errors, out),
        "update": lambda: be.update_conv(made, images, errors, out),
    }
    return bench.Contender(name, calls[kind], out.get, kind="ours")


def torch(layer: Layer, kind: str, dtype: str, form: str) -> bench.Contender:
    """PyTorch in one memory format, on its own layout."""
    library = libraries.Torch()
    t = library.torch
    layout = t.channels_last if form == "torch nhwc" else t.contiguous_format
    x, w, e = (
        library.array(libraries.images_first(x[:, 0])).to(getattr(t, dtype)).contiguous(memory_format=layout)
        for x in operands(layer).values()
    )
    stride, pad, dilation = [layer.stride] * 2, [layer.pad] * 2, [layer.dilation] * 2
    mask = [kind == "bprop", kind == "update", False]
    kept: list[Any] = [None]

    def call() -> None:
        if kind == "fprop":
            kept[0] = t.nn.functional.conv2d(x, w, None, stride, pad, dilation, layer.groups)
        else:
            both = t.ops.aten.convolution_backward(e, x, w, None, stride, pad, dilation, 0, [0, 0], layer.groups, mask)
            kept[0] = both[0 if kind == "bprop" else 1]

    return bench.Contender(form, call, lambda: libraries.images_last(library.numpy(kept[0])))


def jax(layer: Layer, kind: str, dtype: str) -> bench.Contender:
    """JAX: XLA's convolution, and what differentiation makes of it; results go into a donated array."""
    library = libraries.Jax()
    j = library.jax
    element = libraries.dtype_of(dtype)
    images, filters, errors = (libraries.images_first(x[:, 0]).astype(element) for x in operands(layer).values())

    def conv(x: Any, w: Any) -> Any:
        pads = [(layer.pad, layer.pad)] * 2
        return j.lax.conv_general_dilated(x, w, (layer.stride,) * 2, pads, rhs_dilation=(layer.dilation,) * 2,
                                          feature_group_count=layer.groups)  # fmt: skip

    functions = {
        "fprop": (lambda o, x, w, e: conv(x, w), errors),
        "bprop": (lambda o, x, w, e: j.vjp(lambda v: conv(v, w), x)[1](e)[0], images),
        "update": (lambda o, x, w, e: j.vjp(lambda v: conv(x, v), w)[1](e)[0], filters),
    }
    function, like = functions[kind]
    into = j.jit(function, donate_argnums=0, keep_unused=True)
    arrays = [library.array(x) for x in (images, filters, errors)]
    found = library.donating(into, None, library.array(np.zeros_like(like)), arrays)
    return replace(found, result=lambda: libraries.images_last(found.result().reshape(like.shape)))


def case(layer: Layer, kind: str, dtype: str, options: Any) -> bench.Case:
    """One pass of one layer with all contenders."""
    makers: dict[str, Callable[[], bench.Contender]] = {
        name: partial(ours, layer, kind, dtype, options, name) for name in WAYS
    }
    for form in ("torch", "torch nhwc"):
        makers[form] = partial(torch, layer, kind, dtype, form)
    makers["jax"] = partial(jax, layer, kind, dtype)
    size = sum(x.size for x in operands(layer).values()) * libraries.dtype_of(dtype).itemsize
    tolerance = libraries.tolerance(dtype)
    expected = partial(truth, layer, kind)
    return bench.Case(
        f"conv {kind}", layer.shape, dtype, expected, makers, size, layer.geometry.flops, tolerance,
        libraries.largest(expected),
    )  # fmt: skip


def cases(options: Any, session: bench.Session) -> Iterator[bench.Case]:
    """The cases that are asked for."""
    layers = LAYERS[::3] if options.quick and not options.only else LAYERS
    for dtype in options.dtype or ("float32",):
        for layer in (found.cut(QUICK_FLOPS if options.quick else MOST_FLOPS) for found in layers):
            for kind in PASSES:
                if session.wants(f"conv {kind}", layer.shape, dtype):
                    yield case(layer, kind, dtype, options)
            operands.cache_clear()
            truth.cache_clear()


if __name__ == "__main__":
    sys.exit(bench.main(__doc__, cases))
