# SPDX-License-Identifier: Apache-2.0
"""Cases of `test_every_function.py` with images: convolutions, pooling, normalization; references are loops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend.function import arrays
from tests.functions.cases import Case, between, normal

IMAGES = normal(2, 4, 5, 6)


def pair(v: Any, axes: int = 2) -> tuple[int, ...]:
    return (v,) * axes if isinstance(v, int) else tuple(v)


def conv(x, w, b=None, stride=1, pad=0, cover_all=False, dilate=1, groups=1):
    axes = x.ndim - 2
    s, p, d, k = pair(stride, axes), pair(pad, axes), pair(dilate, axes), w.shape[2:]
    more = [v - 1 if cover_all else 0 for v in s]
    whole = np.pad(x, [(0, 0), (0, 0), *((a, a + e) for a, e in zip(p, more))])
    sizes = [(n - e * (c - 1) - 1) // t + 1 for n, c, t, e in zip(whole.shape[2:], k, s, d)]
    y = np.zeros((len(x), w.shape[0], *sizes))
    for cell in itertools.product(*map(range, k)):
        part = tuple(slice(c * e, c * e + t * (m - 1) + 1, t) for c, e, t, m in zip(cell, d, s, sizes))
        seen = whole[(slice(None), slice(None), *part)].reshape(len(x), groups, -1, *sizes)
        taps = w[(slice(None), slice(None), *cell)].reshape(groups, -1, w.shape[1])
        y += np.einsum("ngc...,goc->ngo...", seen, taps).reshape(y.shape)
    return y if b is None else y + b.reshape(-1, *(1,) * axes)


def deconv(x, w, b=None, stride=1, pad=0, outsize=None, dilate=1, groups=1):
    axes = x.ndim - 2
    s, p, d, k = pair(stride, axes), pair(pad, axes), pair(dilate, axes), w.shape[2:]
    full = [t * (n - 1) + e * (c - 1) + 1 for n, c, t, e in zip(x.shape[2:], k, s, d)]
    sizes = [f - 2 * a for f, a in zip(full, p)] if outsize is None else outsize
    room = [max(f, n + 2 * a) for f, n, a in zip(full, sizes, p)]
    y = np.zeros((len(x), groups, w.shape[1], *room))
    seen = x.reshape(len(x), groups, -1, *x.shape[2:])
    for cell in itertools.product(*map(range, k)):
        part = tuple(slice(c * e, c * e + t * (m - 1) + 1, t) for c, e, t, m in zip(cell, d, s, x.shape[2:]))
        taps = w[(slice(None), slice(None), *cell)].reshape(groups, -1, w.shape[1])
        y[(slice(None), slice(None), slice(None), *part)] += np.einsum("ngc...,gco->ngo...", seen, taps)
    y = y.reshape(len(x), -1, *room)[(slice(None), slice(None), *(slice(a, a + n) for a, n in zip(p, sizes)))]
    return y if b is None else y + b.reshape(-1, *(1,) * axes)


def pool(x, k, stride=None, pad=0, cover_all=True, kind=np.max):
    axes = x.ndim - 2
    k, p = pair(k, axes), pair(pad, axes)
    s = k if stride is None else pair(stride, axes)
    sizes = [(n + 2 * a - c + (t - 1 if cover_all else 0)) // t + 1 for n, c, t, a in zip(x.shape[2:], k, s, p)]
    fill = -np.inf if kind is np.max else 0.0
    whole = np.pad(x, [(0, 0), (0, 0), *((a, a + c + t) for a, c, t in zip(p, k, s))], constant_values=fill)
    y = np.zeros((*x.shape[:2], *sizes))
    for place in itertools.product(*map(range, sizes)):
        part = tuple(slice(i * t, i * t + c) for i, t, c in zip(place, s, k))
        window = whole[(slice(None), slice(None), *part)].reshape(*x.shape[:2], -1)
        y[(slice(None), slice(None), *place)] = kind(window, -1)
    return y


def im2col(x, k, s, p):
    c, (kh, kw) = x.shape[1], k
    eye = np.eye(c * kh * kw).reshape(c * kh * kw, c, kh, kw)
    return conv(x, eye, None, s, p)


def local(x, w, b, s):
    col = im2col(x, w.shape[-2:], s, 0)
    return np.einsum("nkpq,opqk->nopq", col, w.reshape(*w.shape[:3], -1)) + b


def rowconv(x, w, b):
    col = im2col(x, (3, 2), 2, 1)
    return col.reshape(*col.shape[:2], -1).swapaxes(1, 2) @ w + b


def standard(x, axes, eps):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def group_norm(x, g, b):
    y = standard(x.reshape(len(x), 2, -1), (2,), 1e-5).reshape(x.shape)
    return y * g[:, None, None] + b[:, None, None]


def response(x):
    square = np.pad(x**2, [(0, 0), (1, 1), (0, 0), (0, 0)])
    return x / (2 + 0.1 * sum(square[:, i : i + x.shape[1]] for i in range(3))) ** 0.75


def resized(x):
    rows, columns = np.linspace(0, 4, 3), np.linspace(0, 5, 8)
    part = np.stack([x[:, :, int(r)] * (1 - r % 1) + x[:, :, min(int(r) + 1, 4)] * (r % 1) for r in rows], 2)
    return np.stack([part[..., int(c)] * (1 - c % 1) + part[..., min(int(c) + 1, 5)] * (c % 1) for c in columns], 3)


def unpooled(x):
    y = np.zeros((*x.shape[:2], 2 * x.shape[2] + 1, 2 * x.shape[3] + 1))
    for i, j in np.ndindex(3, 3):
        y[:, :, i : i + 2 * x.shape[2] - 1 : 2, j : j + 2 * x.shape[3] - 1 : 2] += x
    return y[:, :, :-1, :-1]


def again(x: Any) -> Any:
    """The maxima, back at their places."""
    y, places = F.max_pooling_2d(x, 2, 2, 0, True, True)
    return F.upsampling_2d(y, places, 2, 2, outsize=x.shape[2:])


def only_maxima(x):
    y = np.repeat(np.repeat(pool(x, 2), 2, 2), 2, 3)[:, :, : x.shape[2], : x.shape[3]]
    return np.where(x == y, x, 0)


def embedded(w: Any) -> Any:
    ids = np.array([[2, 0], [3, -1], [2, 2]], np.int32)
    return F.embed_id(arrays.moved(ids, arrays.backend_of(tb.as_variable(w)._data)), w, -1)


def fixed(x, g, b, m, v):
    return (x - m) / np.sqrt(v + 2e-5) * g + b


ROIS = np.array([[0, 1, 1, 8, 7], [1, 0, 2, 5, 4], [0, 3, 3, 3, 3]], np.float64)


def regions(name: str, *args: Any) -> Any:
    """A function of images, with ROIS where they are."""
    def call(x: Any) -> Any:
        rois = arrays.moved(ROIS, arrays.backend_of(tb.as_variable(x)._data))
        return getattr(F, name)(x, rois, 2, 3, 0.5, *args)

    return call


def roi(x: np.ndarray, kind: Any) -> np.ndarray:
    y = np.zeros((3, x.shape[1], 2, 3))
    for r, (n, *corners) in enumerate(ROIS):
        x1, y1, x2, y2 = np.rint(np.array(corners) * 0.5).astype(int)
        for p, q in np.ndindex(2, 3):
            spans = []
            for low, high, at, parts, size in ((y1, y2, p, 2, x.shape[2]), (x1, x2, q, 3, x.shape[3])):
                step = max(high - low + 1, 1) / parts
                spans.append(slice(max(low + int(at * step), 0), min(low + int(np.ceil((at + 1) * step)), size)))
            window = x[int(n), :, spans[0], spans[1]].reshape(x.shape[1], -1)
            y[r, :, p, q] = kind(window, 1) if window.size else 0
    return y


def aligned(x: np.ndarray, kind: Any) -> np.ndarray:
    y = np.zeros((3, x.shape[1], 2, 3))
    for r, (n, x1, y1, x2, y2) in enumerate(ROIS * [1, 0.5, 0.5, 0.5, 0.5]):
        steps = max(y2 - y1, 1) / 4, max(x2 - x1, 1) / 6
        for p, q in np.ndindex(2, 3):
            points = []
            for i, j in np.ndindex(2, 2):
                v = min(max(y1 + (2 * p + i + 0.5) * steps[0], 0), x.shape[2] - 1)
                u = min(max(x1 + (2 * q + j + 0.5) * steps[1], 0), x.shape[3] - 1)
                a, b = int(v), int(u)
                c, d = min(a + 1, x.shape[2] - 1), min(b + 1, x.shape[3] - 1)
                m = x[int(n)]
                above = m[:, a, b] * (1 - u + b) + m[:, a, d] * (u - b)
                points.append(above * (1 - v + a) + (m[:, c, b] * (1 - u + b) + m[:, c, d] * (u - b)) * (v - a))
            y[r, :, p, q] = kind(points, 0)
    return y


CONVOLUTIONS = {
    "": ((2, 3, 5, 6), (4, 3, 3, 2), {}),
    "padded": ((2, 3, 5, 4), (2, 3, 3, 3), {"pad": 1}),
    "strided": ((2, 2, 7, 6), (3, 2, 3, 2), {"stride": (2, 3), "pad": (1, 0)}),
    "dilated": ((1, 2, 7, 7), (3, 2, 2, 3), {"dilate": (3, 2), "pad": 1}),
    "in groups": ((2, 4, 4, 4), (6, 2, 3, 3), {"groups": 2, "pad": 1}),
    "depthwise": ((2, 3, 4, 4), (3, 1, 2, 2), {"groups": 3}),
    "1x1": ((2, 3, 3, 4), (4, 3, 1, 1), {}),
    "1x1 strided": ((2, 3, 5, 4), (4, 3, 1, 1), {"stride": 2}),
    "covering all": ((2, 2, 5, 6), (3, 2, 2, 3), {"stride": 3, "cover_all": True}),
    "wider than the image": ((1, 2, 2, 3), (2, 2, 4, 3), {"pad": 2}),
    "of a line": ((3, 2, 1, 6), (2, 2, 1, 3), {}),
    "to one place of one image": ((1, 2, 3, 2), (4, 2, 3, 2), {}),
}


def random_convolution(seed: int) -> Case:
    """A convolution of a random geometry, of one to three axes."""
    r = np.random.RandomState(seed)
    axes, groups = r.randint(1, 4), r.randint(1, 3)
    window, dilate, stride, pad = (r.randint(low, high, axes) for low, high in ((1, 4), (1, 3), (1, 4), (0, 3)))
    image = dilate * (window - 1) + 1 + r.randint(0, 4, axes)
    channels, maps = r.randint(1, 3, 2)
    shape, filters = (r.randint(1, 4), groups * channels, *image), (groups * maps, channels, *window)
    options = {"stride": tuple(stride), "pad": tuple(pad), "dilate": tuple(dilate), "groups": groups,
               "cover_all": bool(r.randint(2))}  # fmt: skip
    return Case(lambda x, w, b: F.convolution_nd(x, w, b, **options), lambda x, w, b: conv(x, w, b, **options),
                (normal(*shape), normal(*filters), normal(filters[0])))  # fmt: skip


def random_deconvolution(seed: int) -> Case:
    """A deconvolution of a random geometry."""
    r = np.random.RandomState(seed)
    axes, groups = r.randint(1, 4), r.randint(1, 3)
    window, dilate, stride = (r.randint(1, high, axes) for high in (4, 3, 4))
    pad = [r.randint(0, d * (k - 1) // 2 + 1) for d, k in zip(dilate, window)]
    shape, filters = (r.randint(1, 4), groups * r.randint(1, 3), *r.randint(1, 5, axes)), (r.randint(1, 3), *window)
    options = {"stride": tuple(stride), "pad": tuple(pad), "dilate": tuple(dilate), "groups": groups}
    return Case(lambda x, w, b: F.deconvolution_nd(x, w, b, **options), lambda x, w, b: deconv(x, w, b, **options),
                (normal(*shape), normal(shape[1], *filters), normal(groups * filters[0])))  # fmt: skip


def random_pooling(seed: int) -> Case:
    """A pooling of a random geometry: of maxima for odd seeds, of means for even ones."""
    r = np.random.RandomState(seed)
    axes = r.randint(1, 4)
    window = r.randint(1, 4, axes)
    stride, pad = ([r.randint(low, k + low) for k in window] for low in (1, 0))
    shape = (r.randint(1, 4), r.randint(1, 4), *(window + r.randint(0, 4, axes)))
    geometry = tuple(window), tuple(stride), tuple(pad)
    if seed % 2:
        return Case(lambda x: F.max_pooling_nd(x, *geometry), lambda x: pool(x, *geometry), (normal(*shape),))
    return Case(lambda x: F.average_pooling_nd(x, *geometry), lambda x: pool(x, *geometry, False, np.mean),
                (normal(*shape),))  # fmt: skip


RANDOM = {"convolution": random_convolution, "deconvolution": random_deconvolution, "pooling": random_pooling}
IMAGE_CASES = {
    **{f"random {name} {seed}": make(seed) for name, make in RANDOM.items() for seed in range(6)},
    **{
        f"convolution_2d {name}".strip(): Case(
            lambda x, w, b, o=options: F.convolution_2d(x, w, b, **o),
            lambda x, w, b, o=options: conv(x, w, b, **o),
            (normal(*shape), normal(*filters), normal(filters[0])),
        )
        for name, (shape, filters, options) in CONVOLUTIONS.items()
    },
    "convolution_2d of patches": Case(
        lambda x, w: F.convolution_2d(x, w, None, (2, 3)), lambda x, w: conv(x, w, None, (2, 3)),
        (normal(2, 2, 5, 6), normal(256, 2, 2, 3)),
    ),
    "deconvolution_2d of patches": Case(
        lambda x, w: F.deconvolution_2d(x, w, None, (2, 3)), lambda x, w: deconv(x, w, None, (2, 3)),
        (normal(2, 256, 2, 3), normal(256, 2, 2, 1)),
    ),
    "convolution_1d": Case(
        lambda x, w: F.convolution_1d(x, w, None, 2, 1), lambda x, w: conv(x, w, None, 2, 1),
        (normal(2, 3, 7), normal(4, 3, 3)),
    ),
    "convolution_3d": Case(
        lambda x, w, b: F.convolution_3d(x, w, b, 1, 1), lambda x, w, b: conv(x, w, b, 1, 1),
        (normal(2, 2, 3, 3, 4), normal(3, 2, 2, 3, 2), normal(3)),
    ),
    "dilated_convolution_2d": Case(
        lambda x, w: F.dilated_convolution_2d(x, w, None, 1, 2, 2),
        lambda x, w: conv(x, w, None, 1, 2, dilate=2), (IMAGES, normal(3, 4, 3, 3)),
    ),
    "depthwise_convolution_2d": Case(
        F.depthwise_convolution_2d,
        lambda x, w, b: conv(x, w.swapaxes(0, 1).reshape(8, 1, 3, 2), b, groups=4),
        (IMAGES, normal(2, 4, 3, 2), normal(8)),
    ),
    "deconvolution_2d": Case(F.deconvolution_2d, deconv, (normal(2, 3, 4, 3), normal(3, 2, 3, 2), normal(2))),
    "deconvolution_2d strided": Case(
        lambda x, w: F.deconvolution_2d(x, w, None, (2, 3), 1), lambda x, w: deconv(x, w, None, (2, 3), 1),
        (normal(2, 3, 4, 3), normal(3, 2, 3, 4)),
    ),
    "deconvolution_2d to a size": Case(
        lambda x, w: F.deconvolution_2d(x, w, None, 2, 1, (6, 8)),
        lambda x, w: deconv(x, w, None, 2, 1, (6, 8)), (normal(2, 3, 3, 4), normal(3, 2, 3, 3)),
    ),
    "deconvolution_2d in groups": Case(
        lambda x, w, b: F.deconvolution_2d(x, w, b, dilate=2, groups=2),
        lambda x, w, b: deconv(x, w, b, dilate=2, groups=2), (normal(2, 4, 3, 3), normal(4, 3, 2, 2), normal(6)),
    ),
    "deconvolution_nd": Case(
        lambda x, w: F.deconvolution_nd(x, w, None, 2), lambda x, w: deconv(x, w, None, 2),
        (normal(2, 3, 4), normal(3, 2, 3)),
    ),
    "local_convolution_2d": Case(
        lambda x, w, b: F.local_convolution_2d(x, w, b, 2), lambda x, w, b: local(x, w, b, 2),
        (normal(2, 3, 5, 4), normal(2, 2, 2, 3, 3, 2), normal(2, 2, 2)),
    ),
    "rowconv": Case(
        lambda x, w, b: F.rowconv(x, w, b, (3, 2), 2, 1), rowconv, (normal(2, 3, 5, 4), normal(18, 4), normal(4))
    ),
    "im2col": Case(
        lambda x: F.im2col(x, (3, 2), (1, 2), (1, 0)), lambda x: im2col(x, (3, 2), (1, 2), (1, 0)), (IMAGES,)
    ),
    "max_pooling_2d": Case(lambda x: F.max_pooling_2d(x, 2), lambda x: pool(x, 2), (IMAGES,)),
    "max_pooling_2d overlapping": Case(
        lambda x: F.max_pooling_2d(x, 3, 2, 1), lambda x: pool(x, 3, 2, 1), (IMAGES,)
    ),
    "max_pooling_2d not covering": Case(
        lambda x: F.max_pooling_2d(x, (2, 3), 2, 0, False), lambda x: pool(x, (2, 3), 2, 0, False), (IMAGES,)
    ),
    "max_pooling_1d": Case(lambda x: F.max_pooling_1d(x, 3, 2), lambda x: pool(x, 3, 2), (normal(2, 3, 8),)),
    "max_pooling_3d": Case(lambda x: F.max_pooling_3d(x, 2), lambda x: pool(x, 2), (normal(2, 2, 3, 4, 2),)),
    "average_pooling_2d": Case(
        lambda x: F.average_pooling_2d(x, 3, 2, 1), lambda x: pool(x, 3, 2, 1, False, np.mean), (IMAGES,)
    ),
    "average_pooling_1d": Case(
        lambda x: F.average_pooling_1d(x, 2), lambda x: pool(x, 2, None, 0, False, np.mean), (normal(2, 3, 7),)
    ),
    "average_pooling_3d": Case(
        lambda x: F.average_pooling_3d(x, 2, 1), lambda x: pool(x, 2, 1, 0, False, np.mean), (normal(2, 2, 3, 4, 2),)
    ),
    "unpooling_2d": Case(lambda x: F.unpooling_2d(x, 3, 2), unpooled, (normal(2, 3, 2, 3),)),
    "upsampling_2d": Case(again, only_maxima, (normal(2, 3, 5, 4),)),
    "spatial_pyramid_pooling_2d": Case(
        lambda x: F.spatial_pyramid_pooling_2d(x, 2),
        lambda x: np.concatenate([x.max((2, 3))[..., None, None], pool(x, 2).reshape(2, -1, 1, 1)], 1),
        (normal(2, 3, 4, 4),),
    ),
    "roi_pooling_2d": Case(regions("roi_pooling_2d"), lambda x: roi(x, np.max), (IMAGES,)),
    "roi_average_pooling_2d": Case(regions("roi_average_pooling_2d"), lambda x: roi(x, np.mean), (IMAGES,)),
    "roi_average_align_2d": Case(regions("roi_average_align_2d"), lambda x: aligned(x, np.mean), (IMAGES,)),
    "roi_max_align_2d": Case(regions("roi_max_align_2d"), lambda x: aligned(x, np.max), (IMAGES,)),
    "resize_images": Case(lambda x: F.resize_images(x, (3, 8)), resized, (IMAGES,)),
    "space2depth": Case(
        lambda x: F.depth2space(F.space2depth(x, 2), 2) * F.sum(F.space2depth(x, 2)[:, 1]),
        lambda x: x * x[:, 1, ::2, ::2].sum(), (normal(2, 3, 4, 6),),
    ),
    "batch_normalization": Case(
        F.batch_normalization, lambda x, g, b: standard(x, (0,), 2e-5) * g + b, (normal(5, 3), normal(3), normal(3))
    ),
    "batch_normalization of images": Case(
        lambda x, g, b: F.batch_normalization(x, g, b, eps=1e-3),
        lambda x, g, b: standard(x, (0, 2, 3), 1e-3) * g[:, None, None] + b[:, None, None],
        (IMAGES, normal(4), normal(4)),
    ),
    "batch_normalization of axes": Case(
        lambda x, g, b: F.batch_normalization(x, g, b, axis=0), lambda x, g, b: standard(x, (0,), 2e-5) * g + b,
        (normal(5, 3, 2), normal(3, 2), normal(3, 2)),
    ),
    "fixed_batch_normalization": Case(
        F.fixed_batch_normalization, fixed, (normal(5, 3), normal(3), normal(3), normal(3), between(0.5, 2, 3))
    ),
    "layer_normalization": Case(
        F.layer_normalization, lambda x, g, b: standard(x, (1,), 1e-5) * g + b, (normal(3, 5), normal(5), normal(5))
    ),
    "group_normalization": Case(
        lambda x, g, b: F.group_normalization(x, 2, g, b), group_norm, (IMAGES, normal(4), normal(4))
    ),
    "normalize": Case(
        F.normalize, lambda x: x / (np.sqrt((x**2).sum(1, keepdims=True)) + 1e-5), (normal(3, 4),)
    ),
    "local_response_normalization": Case(
        lambda x: F.local_response_normalization(x, 3, 2, 0.1, 0.75), response, (IMAGES,)
    ),
    "sum_axis02": Case(F.sum_axis02, lambda x: (x.sum((0, 2))[None, :, None], (x**2).sum((0, 2))[None, :, None]),
                       (normal(2, 3, 4),)),
    "sum_axis02 of two": Case(
        lambda x, y: F.sum_axis02(x, y, "y[I]", "x[I]*y[I] - 2", True),
        lambda x, y: (y.mean((0, 2))[None, :, None], (x * y - 2).mean((0, 2))[None, :, None]),
        (normal(2, 3, 4), normal(2, 3, 4)),
    ),
    "mean_axis02": Case(F.mean_axis02, lambda x: x.mean((0, 2)), (normal(2, 3, 4),)),
    "embed_id": Case(
        embedded, lambda w: np.array([[w[2], w[0]], [w[3], 0 * w[0]], [w[2], w[2]]]), (normal(4, 3),)
    ),
}  # fmt: skip
