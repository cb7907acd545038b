# SPDX-License-Identifier: Apache-2.0
"""Pooling and response normalisation, both passes, beside PyTorch (two memory formats), JAX and this machine's copy.

Pools of AlexNet, OverFeat, VGG-A (but the first, of 800 MB) and GoogLeNet by their published batches (`--quick`: 8
images of some of them), one image, and AlexNet's normalisation of 32. The shape says N, C, H, W, window, stride and pad
(of normalisation: N, C, H, W and maps). Forward max pooling stores the winners' places, as training needs them;
PyTorch's does so too.
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

ASCALE, BPOWER = 1e-2, 0.75


@dataclass(frozen=True)
class Layer:
    """A pooling (max, avg) by R x R windows, or a normalisation (lrn) over R maps."""

    op: str
    N: int
    C: int
    H: int
    R: int
    stride: int = 1
    pad: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """What the table shows."""
        sizes = (self.N, self.C, self.H, self.H, self.R)
        return sizes if self.op == "lrn" else (*sizes, self.stride, self.pad)

    def made(self, be: Any, dtype: str = "float32") -> Any:
        """The backend's layer."""
        if self.op == "lrn":
            return be.lrn_layer(dtype, self.N, self.C, H=self.H, W=self.H, J=self.R)
        return be.pool_layer(dtype, self.op, self.N, self.C, H=self.H, W=self.H, R=self.R, S=self.R, pad_h=self.pad,
                             pad_w=self.pad, str_h=self.stride, str_w=self.stride)  # fmt: skip


POOLS = [(128, 64, 55, 3, 2), (128, 192, 27, 3, 2), (128, 256, 13, 3, 2), (128, 96, 56, 2, 2), (128, 256, 24, 2, 2),
         (64, 128, 112, 2, 2), (64, 256, 56, 2, 2), (64, 512, 28, 2, 2), (64, 512, 14, 2, 2),
         (128, 192, 28, 3, 1, 1)]  # fmt: skip
"""N, C, H = W, window, stride and pad."""
QUICK = [(8, 64, 55, 3, 2), (8, 96, 56, 2, 2), (8, 256, 28, 2, 2)]


def layers(quick: bool) -> list[Layer]:
    """The layers that are measured."""
    pools = [Layer(op, *sizes) for op in ("max", "avg") for sizes in (QUICK if quick else POOLS)]
    return [*pools, Layer("max", 1, 64, 112, 2, 2), Layer("avg", 8 if quick else 128, 1024, 7, 7, 7),
            Layer("lrn", 8 if quick else 32, 64, 55, 5)]  # fmt: skip


@cache
def data(layer: Layer, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and errors in the engine's layout: float32, rounded as `dtype` has them. Other numbers may be the largest
    of a window after that, where two are close."""
    made = layer.made(libraries.interpreter())
    draw = np.random.default_rng(0)
    images, errors = (draw.standard_normal(dims, dtype=np.float32) for dims in (made.dimI, made.dimO))
    rounded = libraries.dtype_of(dtype)
    return images.astype(rounded).astype(np.float32), errors.astype(rounded).astype(np.float32)


def ours(layer: Layer, kind: str, dtype: str, options: Any, jit: bool = True, of: str = "") -> bench.Contender:
    """The engine; in `dtype`, on the numbers of the type `of`, which is the same if none is named."""
    be = libraries.backend(options, jit)
    made = layer.made(be, dtype)
    images, errors = (be.array(x.reshape(-1, layer.N), dtype=dtype) for x in data(layer, of or dtype))
    out, delta = be.empty(made.dimO2, dtype=dtype), be.empty(made.dimI2, dtype=dtype)
    if layer.op == "lrn":
        denom, keys = be.empty(made.dimI2, dtype=dtype), {"ascale": ASCALE, "bpower": BPOWER}
        forward = partial(be.fprop_lrn, made, images, out, denom, **keys)
        back = partial(be.bprop_lrn, made, images, out, errors, delta, denom, **keys)
    else:
        places = be.zeros(made.dimO2, dtype=np.uint8)
        forward = partial(be.fprop_pool, made, images, out, places)
        back = partial(be.bprop_pool, made, errors, delta, places)
    forward()
    run, result = (forward, out) if kind == "fprop" else (back, delta)
    return libraries.own(run, result.get, jit)


def torch(layer: Layer, kind: str, dtype: str, form: str) -> bench.Contender:
    """PyTorch in one memory format, on its own layout."""
    library = libraries.Torch()
    t = library.torch
    layout = t.channels_last if form == "torch nhwc" else t.contiguous_format
    x, e = (
        library.array(libraries.images_first(a[:, 0])).to(getattr(t, dtype)).contiguous(memory_format=layout)
        for a in data(layer, dtype)
    )
    sizes = (layer.R, layer.stride, layer.pad)
    functions: dict[str, Callable] = {
        "max": lambda v: t.nn.functional.max_pool2d(v, *sizes),
        "avg": lambda v: t.nn.functional.avg_pool2d(v, *sizes, count_include_pad=False),
        "lrn": lambda v: t.nn.functional.local_response_norm(v, layer.R, ASCALE, BPOWER, 1.0),
    }
    function, kept = functions[layer.op], [None]
    with t.enable_grad():
        x.requires_grad_(kind == "bprop")
        y = function(x)

    def call() -> None:
        if kind == "fprop":
            kept[0] = function(x)
        else:
            (kept[0],) = t.autograd.grad(y, x, e, retain_graph=True)

    return bench.Contender(form, call, lambda: libraries.images_last(library.numpy(kept[0])))


def jax(layer: Layer, kind: str, dtype: str) -> bench.Contender:
    """JAX: XLA's windows, and what differentiation makes of them; results go into a donated array."""
    library = libraries.Jax()
    j, lax = library.jax, library.jax.lax
    pads = [(0, 0)] * 2 + [(layer.pad, layer.pad)] * 2
    window, strides = (1, 1, layer.R, layer.R), (1, 1, layer.stride, layer.stride)

    def function(x: Any) -> Any:
        if layer.op == "max":
            return lax.reduce_window(x, -np.inf, lax.max, window, strides, pads)
        if layer.op == "avg":
            ones = lax.reduce_window(x * 0 + 1, 0.0, lax.add, window, strides, pads)
            return lax.reduce_window(x, 0.0, lax.add, window, strides, pads) / ones
        around = [(0, 0), (layer.R // 2,) * 2, (0, 0), (0, 0)]
        sums = lax.reduce_window(x * x, 0.0, lax.add, (1, layer.R, 1, 1), (1,) * 4, around)
        return x * (1 + ASCALE / layer.R * sums) ** -BPOWER

    images, errors = (libraries.images_first(x[:, 0]).astype(libraries.dtype_of(dtype)) for x in data(layer, dtype))
    passes = {
        "fprop": (lambda o, x, e: function(x), errors),
        "bprop": (lambda o, x, e: j.vjp(function, x)[1](e)[0], images),
    }
    chosen, like = passes[kind]
    into = j.jit(chosen, donate_argnums=0, keep_unused=True)
    arrays = [library.array(x) for x in (images, errors)]
    found = library.donating(into, None, library.array(np.zeros_like(like)), arrays)
    return replace(found, result=lambda: libraries.images_last(found.result().reshape(like.shape)))


def case(layer: Layer, kind: str, dtype: str, options: Any) -> bench.Case:
    """One pass of one layer with all contenders."""
    makers: dict[str, Callable[[], bench.Contender]] = {
        "tensorbackend": partial(ours, layer, kind, dtype, options),
        "interpreter": partial(ours, layer, kind, dtype, options, False),
        "torch": partial(torch, layer, kind, dtype, "torch"),
        "torch nhwc": partial(torch, layer, kind, dtype, "torch nhwc"),
        "jax": partial(jax, layer, kind, dtype),
    }
    if layer.op == "lrn" and dtype in libraries.HALVES:  # which PyTorch has not
        del makers["torch"], makers["torch nhwc"]
    images, errors = (x.size for x in data(layer, dtype))
    item = libraries.dtype_of(dtype).itemsize
    moved = (images + errors) * item + (errors if layer.op == "max" else 0)
    results = images * item if kind == "bprop" else moved - images * item
    if layer.op == "lrn":
        moved, results = ((3, 2) if kind == "fprop" else (5, 1))
        moved, results = moved * images * item, results * images * item

    truth = libraries.computed(partial(ours, layer, kind, "float64", options, False, dtype))
    tolerance = libraries.tolerance(dtype)
    name = f"{layer.op if layer.op == 'lrn' else layer.op + ' pool'} {kind}"
    return bench.Case(name, layer.shape, dtype, truth, makers, moved, 0, tolerance, libraries.largest(truth),
                      results)  # fmt: skip


def cases(options: Any, session: bench.Session) -> Iterator[bench.Case]:
    """The cases that are asked for."""
    for dtype in options.dtype or ("float32",):
        for layer in layers(options.quick):
            for kind in ("fprop", "bprop"):
                found = case(layer, kind, dtype, options)
                if session.wants(found.name, found.shape, dtype):
                    yield found


if __name__ == "__main__":
    sys.exit(bench.main(__doc__, cases))
