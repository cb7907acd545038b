# SPDX-License-Identifier: Apache-2.0
"""Pooling of regions and suppression of boxes beside torchvision's.

Regions are those of a Faster R-CNN: boxes of 32 to 512 pixels on a map of a sixteenth of an 800 x 600 image; the shape
says maps, height, width, images, regions and bins. Boxes to suppress come in clusters, as a detector proposes them; the
shape says boxes and clusters.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import cache, partial
from typing import Any

import libraries
import numpy as np

from tensorbackend import bench

SCALE, THRESHOLD = 1 / 16, 0.7


@dataclass(frozen=True)
class Pooling:
    """Regions of images, each pooled to P x P bins."""

    C: int
    H: int
    W: int
    images: int
    regions: int
    P: int

    @property
    def sizes(self) -> tuple:
        """The last arguments of the backend's calls."""
        return self.regions, self.C, self.H, self.W, self.P, self.P, SCALE


POOLINGS = [Pooling(512, 38, 50, 1, 300, 7), Pooling(512, 38, 50, 2, 128, 7), Pooling(1024, 38, 50, 1, 128, 8),
            Pooling(256, 50, 64, 8, 64, 7)]  # fmt: skip
BOXES = [(2000, 200), (6000, 1000), (12000, 4000)]


def _torchvision() -> Any:
    libraries.Torch()
    return libraries.library("torchvision").ops


@cache
def data(g: Pooling) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images (C, H, W, images), regions and errors."""
    draw = np.random.default_rng(0)
    low = draw.uniform(0, [g.W / SCALE - 64, g.H / SCALE - 64], (g.regions, 2))
    extent = 2 ** draw.uniform(5, 9, (g.regions, 2))
    image = draw.integers(0, g.images, (g.regions, 1))
    rois = np.concatenate([image, low, np.minimum(low + extent, [g.W / SCALE - 1, g.H / SCALE - 1])], 1)
    images = draw.standard_normal((g.C, g.H, g.W, g.images), dtype=np.float32)
    errors = draw.standard_normal((g.C, g.P, g.P, g.regions), dtype=np.float32)
    rois[:, 1:] = rois[:, 1:] // 2 * 2 + 1  # no corner halfway between two pixels, which libraries round differently
    return images, rois.astype(np.float32), errors


def ours(g: Pooling, kind: str, dtype: str, options: Any, jit: bool = True) -> bench.Contender:
    """The engine."""
    be = libraries.backend(options, jit)
    images, rois, errors = data(g)
    maps, E = (be.array(x.reshape(-1, x.shape[-1]), dtype=dtype) for x in (images, errors))
    R, argmax = be.array(rois, dtype="float32"), be.zeros(E.shape, dtype=np.int32)
    out, delta = be.empty(E.shape, dtype=dtype), be.empty(maps.shape, dtype=dtype)
    forward = partial(be.roipooling_fprop, maps, R, out, argmax, *g.sizes)
    back = partial(be.roipooling_bprop, E, R, delta, argmax, *g.sizes)
    forward()
    run, result = (forward, out) if kind == "fprop" else (back, delta)
    return libraries.own(run, result.get, jit)


def torchvision(g: Pooling, kind: str, dtype: str) -> bench.Contender:
    """torchvision's roi_pool on its own layout."""
    ops, library = _torchvision(), libraries.Torch()
    t = library.torch
    images, rois, errors = data(g)
    x, e = (library.array(libraries.images_first(a)).to(getattr(t, dtype)) for a in (images, errors))
    boxes, kept = library.array(rois).to(x.dtype), [None]
    with t.enable_grad():
        x.requires_grad_(kind == "bprop")
        y = ops.roi_pool(x, boxes, (g.P, g.P), SCALE)

    def call() -> None:
        if kind == "fprop":
            kept[0] = ops.roi_pool(x, boxes, (g.P, g.P), SCALE)
        else:
            (kept[0],) = t.autograd.grad(y, x, e, retain_graph=True)

    return bench.Contender("torchvision", call, lambda: libraries.images_last(library.numpy(kept[0])))


def pooling_case(g: Pooling, kind: str, dtype: str, options: Any) -> bench.Case:
    """One pass with all contenders."""
    makers: dict[str, Callable[[], bench.Contender]] = {
        "tensorbackend": partial(ours, g, kind, dtype, options),
        "torchvision": partial(torchvision, g, kind, dtype),
    }
    images, _, errors = (x.size for x in data(g))
    item = libraries.dtype_of(dtype).itemsize

    truth = libraries.computed(partial(ours, g, kind, "float64", options, False))
    tolerance = libraries.tolerance(dtype)
    moved = (images + errors) * item + errors * 4
    return bench.Case(f"roi {kind}", astuple(g), dtype, truth, makers, moved, 0, tolerance,
                      libraries.largest(truth))  # fmt: skip


@cache
def detections(count: int, clusters: int) -> np.ndarray:
    """Boxes by falling score, in clusters."""
    draw = np.random.default_rng(1)
    centre = draw.uniform(0, 800, (clusters, 2))[draw.integers(0, clusters, count)] + draw.normal(0, 4, (count, 2))
    extent = (2 ** draw.uniform(5, 8, (clusters, 2)))[draw.integers(0, clusters, count)] / 2
    score = np.sort(draw.uniform(0.01, 1, count))[::-1, None]
    return np.concatenate([centre - extent, centre + extent, score], 1).astype(np.float32)


def suppression_case(count: int, clusters: int, options: Any) -> bench.Case:
    """Suppression of boxes, which are sorted; what is kept comes as a list or a tensor."""
    boxes = detections(count, clusters)

    def engine(jit: bool) -> bench.Contender:
        be, kept = libraries.backend(options, jit), [[]]
        tensor = be.array(boxes)

        def call() -> None:
            kept[0] = be.nms(tensor, THRESHOLD, normalized=True)

        return libraries.own(call, lambda: np.array(kept[0], np.float64), jit)

    def rival() -> bench.Contender:
        ops, library = _torchvision(), libraries.Torch()
        corners, score, kept = library.array(boxes[:, :4].copy()), library.array(boxes[:, 4].copy()), [None]

        def call() -> None:
            kept[0] = ops.nms(corners, score, THRESHOLD)

        return bench.Contender("torchvision", call, lambda: library.numpy(kept[0]).astype(np.float64))

    truth = libraries.computed(partial(engine, False))
    makers = {"tensorbackend": partial(engine, True), "interpreter": partial(engine, False), "torchvision": rival}
    return bench.Case("nms", (count, clusters), "float32", truth, makers, boxes.nbytes, 0, 1e-6, lambda: float(count))


def cases(options: Any, session: bench.Session) -> Iterator[bench.Case]:
    """The cases that are asked for."""
    for dtype in options.dtype or ("float32",):
        for g in POOLINGS[:1] if options.quick else POOLINGS:
            for kind in ("fprop", "bprop"):
                found = pooling_case(g, kind, dtype, options)
                if session.wants(found.name, found.shape, dtype):
                    yield found
    for count, clusters in BOXES[:1] if options.quick else BOXES:
        found = suppression_case(count, clusters, options)
        if session.wants(found.name, found.shape, found.dtype):
            yield found


if __name__ == "__main__":
    sys.exit(bench.main(__doc__, cases))
