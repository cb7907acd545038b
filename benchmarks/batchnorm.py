# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation beside PyTorch (two memory formats), JAX and memory: inference, training, gradients.

ResNet-50's maps at a batch of 32 (`--quick`: two of them), and 256 rows of 100000 elements. The shape says N, C, H, W.
Bytes count each operand once, which is what a row that fits into a core's cache takes: two passes forward, three
backward. Training keeps running averages; "forward and backward" is one after the other, as in a step.
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

EPS, RHO = 1e-3, 0.9
PASSES = {"inference": (1, 1), "training": (1, 1), "backward": (2, 1), "forward and backward": (3, 2)}
"""Tensors of x's size that a kind of pass reads, and those that it writes."""


@dataclass(frozen=True)
class Layer:
    """Images whose maps are normalised."""

    N: int
    C: int
    H: int
    W: int

    @property
    def shape(self) -> tuple[int, ...]:
        """What the table shows."""
        return (self.N, self.C, self.H, self.W)


SIZES = [(32, 64, 56, 56), (1, 256, 100, 1000), (32, 2048, 7, 7), (32, 256, 56, 56), (32, 128, 28, 28),
         (32, 512, 28, 28), (32, 1024, 14, 14)]  # fmt: skip


@cache
def data(layer: Layer) -> tuple[np.ndarray, ...]:
    """x and an error as (maps, pixels, images), gamma and beta: float32."""
    draw = np.random.default_rng(0)
    shape = (layer.C, layer.H * layer.W, layer.N)
    x, e = (draw.standard_normal(shape, dtype=np.float32) for _ in range(2))
    gamma, beta = (draw.standard_normal((layer.C, 1), dtype=np.float32) for _ in range(2))
    return 2 * x + 1, e, gamma, beta


@cache
def truth(layer: Layer, kind: str) -> np.ndarray:
    """The result by the definition, in float64; gradients are by x."""
    x, e, gamma, beta = (v.reshape(layer.C, -1).astype(np.float64) for v in data(layer))
    mean, var = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    if kind == "inference":
        mean, var = 0.0, 1.0
    hat = (x - mean) / np.sqrt(var + EPS)
    if kind in ("inference", "training"):
        return hat * gamma + beta
    away = e - hat * (hat * e).mean(1, keepdims=True) - e.mean(1, keepdims=True)
    return away * gamma / np.sqrt(var + EPS)


def ours(layer: Layer, kind: str, dtype: str, options: Any, jit: bool = True) -> bench.Contender:
    """The engine."""
    be = libraries.backend(options, jit)
    x, e, gamma, beta = (be.array(v.reshape(layer.C, -1), dtype=np.float32) for v in data(layer))
    x, e = (be.copy(v) if dtype == "float32" else be.evaluate(v, dtype=dtype) for v in (x, e))
    y, delta = be.empty(x.shape, dtype), be.empty(x.shape, dtype)
    xsum, xvar, gmean, gvar, by_gamma, by_beta = (be.empty((layer.C, 1)) for _ in range(6))
    gmean[:], gvar[:] = 0, 1
    forward = partial(be.compound_fprop_bn, x, xsum, xvar, gmean, gvar, gamma, beta, y, EPS, RHO, True)
    back = partial(be.compound_bprop_bn, delta, by_gamma, by_beta, e, x, xsum, xvar, gamma, EPS)

    def both() -> None:
        forward()
        back()

    if kind != "inference":
        forward()
    passes = {"inference": partial(forward, inference=True), "training": forward, "backward": back}
    result = y if kind in ("inference", "training") else delta
    return libraries.own(passes.get(kind, both), result.get, jit)


def as_images(x: np.ndarray, layer: Layer) -> np.ndarray:
    """From (maps, pixels, images) to (images, maps, height, width)."""
    return np.ascontiguousarray(x.transpose(2, 0, 1)).reshape(layer.shape)


def as_rows(x: Any) -> np.ndarray:
    """And back, as a matrix."""
    x = np.asarray(x, dtype=np.float32)
    return np.ascontiguousarray(x.transpose(1, 2, 3, 0)).reshape(x.shape[1], -1)


def torch(layer: Layer, kind: str, dtype: str, form: str) -> bench.Contender:
    """PyTorch in one memory format: the functions behind its layer and behind the gradient of that."""
    library = libraries.Torch()
    t = library.torch
    layout = t.channels_last if form == "torch nhwc" else t.contiguous_format
    images, errors, *factors = data(layer)
    x, e = (library.array(as_images(v, layer)).to(getattr(t, dtype)) for v in (images, errors))
    x, e = (v.contiguous(memory_format=layout) for v in (x, e))
    gamma, beta = (library.array(v.ravel()) for v in factors)
    running, kept = (t.zeros(layer.C), t.ones(layer.C)), [None] * 3
    forward_of, backward_of = t.ops.aten.native_batch_norm, t.ops.aten.native_batch_norm_backward

    def forward() -> None:
        kept[:] = forward_of(x, gamma, beta, *running, kind != "inference", 1 - RHO, EPS)

    def back() -> None:
        kept[0] = backward_of(e, x, gamma, *running, *kept[1:], True, EPS, [True] * 3)[0]

    def both() -> None:
        forward()
        back()

    forward()
    run = {"inference": forward, "training": forward, "backward": back}.get(kind, both)
    return bench.Contender(form, run, lambda: as_rows(library.numpy(kept[0])))


def jax(layer: Layer, kind: str, dtype: str) -> bench.Contender:
    """JAX on rows, by sums and sums of squares, which is its fastest way; results go into donated arrays."""
    library = libraries.Jax()
    j, jnp = library.jax, library.jax.numpy

    def forward(x: Any, gamma: Any, beta: Any, mean: Any, var: Any) -> Any:
        wide = x.astype(jnp.float32)
        return ((wide - mean) * (gamma * j.lax.rsqrt(var + np.float32(EPS))) + beta).astype(x.dtype)

    def trained(x: Any, gamma: Any, beta: Any) -> Any:
        wide = x.astype(jnp.float32)
        mean = wide.mean(1, keepdims=True)
        var = jnp.maximum((wide * wide).mean(1, keepdims=True) - mean * mean, 0)
        return forward(x, gamma, beta, mean, var), mean, var

    def step(x: Any, e: Any, gamma: Any, beta: Any, running: Any) -> tuple:
        y, mean, var = trained(x, gamma, beta)
        return y, [RHO * a + (1 - RHO) * b for a, b in zip(running, (mean, var))]

    def gradients(x: Any, e: Any, gamma: Any, beta: Any) -> tuple:
        y, pull = j.vjp(lambda *operands: trained(*operands)[0], x, gamma, beta)
        return y, pull(e)

    passes: dict[str, Callable] = {
        "inference": lambda o, x, e, g, b, r: forward(x, g, b, *r),
        "training": lambda o, x, e, g, b, r: step(x, e, g, b, r),
        "backward": lambda o, x, e, g, b, r: gradients(x, e, g, b)[1],
        "forward and backward": lambda o, x, e, g, b, r: (gradients(x, e, g, b)[1], step(x, e, g, b, r)),
    }
    x, e, gamma, beta = (v.reshape(layer.C, -1) for v in data(layer))
    x, e = (v.astype(libraries.dtype_of(dtype)) for v in (x, e))
    into = j.jit(passes[kind], donate_argnums=0, keep_unused=True)
    running = [library.array(np.full((layer.C, 1), v, np.float32)) for v in (0, 1)]
    arrays = [*map(library.array, (x, e, gamma, beta)), running]
    like = j.tree_util.tree_map(lambda a: jnp.zeros(a.shape, a.dtype), j.eval_shape(passes[kind], x, *arrays))
    found = library.donating(into, None, like, arrays)
    return replace(found, result=lambda: found.result()[: x.size])


def case(layer: Layer, kind: str, dtype: str, options: Any) -> bench.Case:
    """One kind of pass over one layer with all contenders."""
    makers: dict[str, Callable[[], bench.Contender]] = {
        "tensorbackend": partial(ours, layer, kind, dtype, options),
        "interpreter": partial(ours, layer, kind, dtype, options, False),
        "torch": partial(torch, layer, kind, dtype, "torch"),
        "torch nhwc": partial(torch, layer, kind, dtype, "torch nhwc"),
        "jax": partial(jax, layer, kind, dtype),
    }
    read, written = (n * data(layer)[0].size * libraries.dtype_of(dtype).itemsize for n in PASSES[kind])
    tolerance = libraries.tolerance(dtype)
    expected = partial(truth, layer, kind)
    return bench.Case(f"batch norm {kind}", layer.shape, dtype, expected, makers, read + written, 0, tolerance,
                      libraries.largest(expected), written)  # fmt: skip


def cases(options: Any, session: bench.Session) -> Iterator[bench.Case]:
    """The cases that are asked for."""
    for dtype in options.dtype or ("float32",):
        for size in SIZES[:3] if options.quick else SIZES:
            for kind in PASSES:
                found = case(Layer(*size), kind, dtype, options)
                if session.wants(found.name, found.shape, dtype):
                    yield found


if __name__ == "__main__":
    sys.exit(bench.main(__doc__, cases))
