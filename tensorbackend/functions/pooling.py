# SPDX-License-Identifier: Apache-2.0
"""Pooling of images, batch first, by the engine's primitives.

A pooling is linear once the places of maxima are known, so its gradient is a node whose gradient is the pooling again.
"""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import DTypeError, ShapeError, complain
from tensorbackend.function import arrays, type_check
from tensorbackend.function.node import FunctionNode
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions import shapes
from tensorbackend.functions.arguments import Array, Sizes
from tensorbackend.functions.arranging import pad as padded
from tensorbackend.functions.convolution import deconvolution_nd, ones_like_filters
from tensorbackend.functions.images import each, expect_images, image_axes, named, output_size
from tensorbackend.functions.losses import check_labels
from tensorbackend.graph import composite as o
from tensorbackend.primitives.pool import PoolLayer, pool_geometry

__all__ = [
    "average_pooling_1d", "average_pooling_2d", "average_pooling_3d", "average_pooling_nd", "max_pooling_1d",
    "max_pooling_2d", "max_pooling_3d", "max_pooling_nd", "spatial_pyramid_pooling_2d", "unpooling_2d",
    "upsampling_2d",
]  # fmt: skip


SMALL = 9
"""The most cells of windows that are pooled about as fast along rows of pixels as along images."""


class _Windows:
    """How windows lie on images of a shape: `pads` are pairs, `sizes` the numbers of places, `whole` says that one is
    the image. `by_maps`: up to how many images are pooled faster map by map than after a copy that brings them side by
    side."""

    def __init__(self, name: str, shape: tuple[int, ...], ksize: Any, stride: Any, pad: Any, cover_all: bool) -> None:
        axes, self.name = image_axes(name, shape)
        name = self.name
        self.ksize = each(f"{name}: windows", ksize, axes)
        self.stride = self.ksize if stride is None else each(f"{name}: stride", stride, axes)
        before = each(f"{name}: pad", pad, axes, 0)
        rows = list(zip(shape[2:], self.ksize, self.stride, before))
        self.sizes = tuple(output_size(n, k, s, p, cover_all) for n, k, s, p in rows)
        if cover_all:  # no window begins behind the image
            self.sizes = tuple(min(m, (n + p - 1) // s + 1) for m, (n, _, s, p) in zip(self.sizes, rows))
        if min(self.sizes, default=0) < 1:
            given = f"images {shape[2:]}, windows {self.ksize}, pad {before}"
            raise ShapeError(complain(f"{name}: no output", given, "at least one place for a window"))
        after = [max((m - 1) * s + k - n - p, 0) if cover_all else p for m, (n, k, s, p) in zip(self.sizes, rows)]
        self.pads = tuple(zip(before, after))
        self.padded = any(map(any, self.pads))
        self.whole = self.ksize == tuple(shape[2:]) and not self.padded
        small = math.prod(self.ksize) <= SMALL or self.whole
        if all(m == 1 or k <= s for m, (_, k, s, _) in zip(self.sizes, rows)):  # they share no pixel
            self.by_maps = sys.maxsize if small else 15
        else:
            self.by_maps = 4 if small and min(self.stride) > 1 else 1
        self._layers: dict[tuple, Any] = {}

    def layer(self, op: str, shape: tuple[int, ...], dtype: Any) -> Any:
        """The engine's parameters for images of a shape; the sizes are the function's, not those of a backend."""
        key = (op, shape, dtype)
        layer = self._layers.get(key)
        if layer is None:
            n, c, *image = shape
            ones, nones = [1] * (4 - len(image)), [0] * (4 - len(image))
            sizes, window = [n, c, *ones[1:], *image], [*ones, *self.ksize]
            try:
                geometry = pool_geometry("pool_layer", op, sizes, window, [*nones, *self.pads], [*ones, *self.stride])
                layer = self._layers[key] = PoolLayer(dtype, op, geometry)
            except (ShapeError, DTypeError) as error:
                raise named(error, "pool_layer", self.name) from None
        return layer


_known_windows = functools.lru_cache(256)(_Windows)


def _windows(name: str, shape: tuple[int, ...], ksize: Any, stride: Any, pad: Any, cover_all: bool) -> _Windows:
    """`_Windows`, made once where the numbers are ints or tuples of ints: what equals an int may be none."""
    for value in (ksize, stride, pad):
        for number in value if type(value) is tuple else (value,):
            if type(number) is not int and number is not None:
                return _Windows(name, shape, ksize, stride, pad, cover_all)
    return _known_windows(name, shape, ksize, stride, pad, bool(cover_all))


def engine_first(x: Any) -> Any:
    """A plain tensor (N, C, …) as one (C, …, N) without gaps: a view where it lies so, else a copy."""
    turned = x.transpose(*range(1, len(x.shape)), 0)
    return arrays.plain(turned) if turned.is_contiguous else arrays.copied(turned)


def batch_first(y: Any, host: bool) -> Any:
    """A plain tensor (C, …, N) as a view (N, C, …), NumPy's if `host`."""
    turned = arrays.plain(y.transpose(len(y.shape) - 1, *range(len(y.shape) - 1)))
    return turned._tensor if host else turned


class OnImages(FunctionNode):
    """A function of images (N, C, …) that primitives compute on (C, …, N), or its gradient at them.

    `_shape` is that of the images, `argmax` what the gradient of maxima needs. `_output()` gives the shape of what
    `_compute(backend, x, out)` writes, the batch last; what has no elements is not computed.
    """

    def __init__(self, shape: tuple[int, ...], argmax: Any = None) -> None:
        self._shape = tuple(shape)
        self.argmax = argmax

    def check_type_forward(self, in_types: Any) -> None:
        """Images of floats."""
        type_check.expect_float(*in_types)
        type_check.expect(in_types[0].ndim == len(self._shape))

    def _run_forward(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        (x,) = data
        tensor = arrays.tensor_of(x)
        first = self._first(tensor)
        out = arrays.fresh(tensor.backend, self._output(), tensor.dtype)
        if out.size:
            self._compute(tensor.backend, first, out)
        return (self._back(out, type(x) is np.ndarray),)

    def _first(self, x: Any) -> Any:
        """Images as primitives take them."""
        return engine_first(x)

    def _back(self, y: Any, host: bool) -> Any:
        """What primitives made as images, NumPy's if `host`."""
        return batch_first(y, host)

    def _images(self) -> tuple[int, ...]:
        n, *rest = self._shape
        return (*rest, n)


class _Pooling(OnImages):
    """What poolings and their gradients have in common.

    A map is pooled by itself. So on a CPU, images that lie batch first (`apart`) are one image of N C maps, and are not
    copied; what is made of them lies batch first as well. A gradient lies as its pooling's images did.
    """

    def __init__(self, windows: _Windows, shape: tuple[int, ...], argmax: Any = None,
                 apart: bool | None = None) -> None:  # fmt: skip
        super().__init__(shape, argmax)
        self._windows = windows
        self._apart = apart

    def _first(self, x: Any) -> Any:
        if self._apart is None:
            fits = 1 < x.shape[0] <= self._windows.by_maps
            self._apart = fits and x.is_contiguous and x.backend.device_type == 0
        if self._apart:
            x = x if x.is_contiguous else arrays.copied(x)
            x = arrays.plain(x.reshape(1, x.shape[0] * x.shape[1], *x.shape[2:]))
        return engine_first(x)

    def _back(self, y: Any, host: bool) -> Any:
        if self._apart:
            n, c, *_ = self._shape
            y = arrays.plain(y.reshape(n, c, *y.shape[1:-1]))
            return y._tensor if host else y
        return batch_first(y, host)

    def _seen(self) -> tuple[int, ...]:
        """The shape of the images as they are pooled."""
        n, c, *image = self._shape
        return (1, n * c, *image) if self._apart else self._shape

    def _images(self) -> tuple[int, ...]:
        n, *rest = self._seen()
        return (*rest, n)

    def _pooled(self) -> tuple[int, ...]:
        n, c, *_ = self._seen()
        return (c, *self._windows.sizes, n)

    def _layer(self, op: str, dtype: Any) -> Any:
        return self._windows.layer(op, self._seen(), dtype)


class _Max(_Pooling):
    label = "max_pooling"

    def _output(self) -> tuple[int, ...]:
        return self._pooled()

    def _compute(self, backend: Any, x: Any, out: Any) -> None:
        self.argmax = arrays.fresh(backend, self._pooled(), np.dtype(np.int32))
        backend.fprop_pool(self._layer("max", x.dtype), x, out, self.argmax)

    def places(self, host: bool) -> Any:
        """The maxima's places in their windows, NumPy's if `host`."""
        return self._back(self.argmax, host)

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The errors at the places of the maxima."""
        return _MaxGradient(self._windows, self._shape, self.argmax, self._apart).apply(grad_outputs)


class _MaxGradient(_Pooling):
    label = "gradient of max_pooling"

    def _output(self) -> tuple[int, ...]:
        return self._images()

    def _compute(self, backend: Any, x: Any, out: Any) -> None:
        backend.bprop_pool(self._layer("max", x.dtype), x, out, self.argmax)

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The numbers at the places of the maxima."""
        (g,) = grad_outputs
        if self.argmax is None:
            return (shapes.reshape(g, (0, self._shape[1], *self._windows.sizes)),)
        w = self._windows
        places = self._back(self.argmax, type(arrays.plain(g.array)) is np.ndarray)
        return (_PICK(g, places, ksize=w.ksize, stride=w.stride, pads=w.pads, sizes=w.sizes),)


def _pick(x: Any, places: Any, ksize: tuple, stride: tuple, pads: tuple, sizes: tuple) -> Any:
    """The element of each window that `places` names."""
    key = (slice(None), slice(None), *(slice(p, p + n) for (p, _), n in zip(pads, x.shape[2:])))
    room = [max(p + n + q, (m - 1) * s + k) for (p, q), n, m, s, k in zip(pads, x.shape[2:], sizes, stride, ksize)]
    whole = o.unslice(x, (*x.shape[:2], *room), key)
    total = None
    for number in range(math.prod(ksize)):
        cell = np.unravel_index(number, ksize)
        part = tuple(slice(int(c), int(c) + s * (m - 1) + 1, s) for c, s, m in zip(cell, stride, sizes))
        picked = o.where(places == number, o.slice(whole, (slice(None), slice(None), *part)), 0)
        total = picked if total is None else total + picked
    return total


_PICK = Rule("values at maxima", _pick, None, None, ("x", "places"))


class _Average(_Pooling):
    """Zeros outside the images count."""

    label = "average_pooling"

    def _output(self) -> tuple[int, ...]:
        return self._pooled()

    def _compute(self, backend: Any, x: Any, out: Any) -> None:
        backend.fprop_pool(self._layer("avg", x.dtype), x, out)
        if self._windows.padded:
            out[:] = self._weighed(out)

    def _weighed(self, y: Any) -> Any:
        """The tree of pooled images times the share of each window that lies inside."""
        w = self._windows
        shares = np.ones((1,) * (len(w.ksize) + 2))
        for axis, (n, k, s, (p, _), m) in enumerate(zip(self._shape[2:], w.ksize, w.stride, w.pads, w.sizes)):
            first = np.arange(m) * s - p
            inside = np.minimum(first + k, n) - np.maximum(first, 0)
            shares = shares * (inside / k).reshape((1,) * (axis + 1) + (m,) + (1,) * (len(w.ksize) - axis))
        return y * y.backend.array(shares, dtype=dtypes.compute(y.dtype), min_dims=0)

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The errors spread over their windows."""
        return _AverageGradient(self._windows, self._shape, None, self._apart).apply(grad_outputs)


class _AverageGradient(_Average):
    label = "gradient of average_pooling"

    def _output(self) -> tuple[int, ...]:
        return self._images()

    def _compute(self, backend: Any, x: Any, out: Any) -> None:
        if self._windows.padded:
            x = arrays.evaluated(self._weighed(x), x.dtype)
        backend.bprop_pool(self._layer("avg", x.dtype), x, out)

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The pooling itself."""
        return _Average(self._windows, self._shape, None, self._apart).apply(grad_outputs)


def _check_images(in_types: Any, **params: Any) -> None:
    type_check.expect_float(*in_types)


_GLOBAL = Rule("average_pooling", lambda x: o.mean(x, tuple(range(2, len(x.shape)))), None, _check_images, ("x",))


def max_pooling_nd(x: Array, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0, cover_all: bool = True,
                   return_indices: bool = False) -> Any:  # fmt: skip
    """The largest of each window of images (N, C, …) of one to three axes; the first of equal ones gets the gradient.

    `stride` None is the window's length; with `cover_all` there is one more where pixels would be left out behind the
    last, but none that begins behind the image. With `return_indices` the result is (variable, array of places in the
    windows, in row-major order). Raises `ShapeError` for no output.
    """
    node = _Max(_windows("max_pooling", x.shape, ksize, stride, pad, cover_all), x.shape)
    (y,) = node.apply((x,))
    if not return_indices:
        return y
    data = arrays.plain(y.array)
    if not data.size:
        return y, arrays.zeros(arrays.backend_of(data), y.shape, np.dtype(np.int32))
    return y, node.places(type(data) is np.ndarray)


def max_pooling_1d(x: Array, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0, cover_all: bool = True,
                   return_indices: bool = False) -> Any:  # fmt: skip
    """`max_pooling_nd` of sequences (N, C, L). Raises `ShapeError` for another rank."""
    expect_images("max_pooling_1d", x, "(N, C, L)")
    return max_pooling_nd(x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_2d(x: Array, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0, cover_all: bool = True,
                   return_indices: bool = False) -> Any:  # fmt: skip
    """`max_pooling_nd` of images (N, C, H, W). Raises `ShapeError` for another rank."""
    expect_images("max_pooling_2d", x)
    return max_pooling_nd(x, ksize, stride, pad, cover_all, return_indices)


def max_pooling_3d(x: Array, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0, cover_all: bool = True,
                   return_indices: bool = False) -> Any:  # fmt: skip
    """`max_pooling_nd` of volumes (N, C, D, H, W). Raises `ShapeError` for another rank."""
    expect_images("max_pooling_3d", x, "(N, C, D, H, W)")
    return max_pooling_nd(x, ksize, stride, pad, cover_all, return_indices)


def average_pooling_nd(x: Array, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0) -> Variable:
    """The mean of each window of images (N, C, …) of one to three axes, in which padding counts as zeros.

    `stride` None is the window's length. Raises `ShapeError` for no output.
    """
    windows = _windows("average_pooling", x.shape, ksize, stride, pad, False)
    return _GLOBAL(x) if windows.whole else _Average(windows, x.shape).apply((x,))[0]


def average_pooling_1d(x: Array, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0) -> Variable:
    """`average_pooling_nd` of sequences (N, C, L). Raises `ShapeError` for another rank."""
    expect_images("average_pooling_1d", x, "(N, C, L)")
    return average_pooling_nd(x, ksize, stride, pad)


def average_pooling_2d(x: Array, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0) -> Variable:
    """`average_pooling_nd` of images (N, C, H, W). Raises `ShapeError` for another rank."""
    expect_images("average_pooling_2d", x)
    return average_pooling_nd(x, ksize, stride, pad)


def average_pooling_3d(x: Array, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0) -> Variable:
    """`average_pooling_nd` of volumes (N, C, D, H, W). Raises `ShapeError` for another rank."""
    expect_images("average_pooling_3d", x, "(N, C, D, H, W)")
    return average_pooling_nd(x, ksize, stride, pad)


# Back to images


def _outsize(x: Any, ksize: tuple, stride: tuple, pad: tuple, cover_all: bool) -> tuple[int, ...]:
    """The smallest images that have so many windows: of the last, the first pixel at least is in the image."""
    rows = [(s * (n - 1), k, s, p) for n, k, s, p in zip(x.shape[2:], ksize, stride, pad)]
    return tuple(max(a + k - 2 * p - s, a - p) + 1 if cover_all else a + k - 2 * p for a, k, s, p in rows)


def _spread(name: str, x: Any, ksize: Any, stride: Any, pad: Any, outsize: Any,
            cover_all: bool) -> tuple[tuple[int, ...], ...]:  # fmt: skip
    """Windows, strides, pads and the images' size of windows that elements of x are put into."""
    expect_images(name, x)
    window, sides = each(f"{name}: windows", ksize, 2), each(f"{name}: pad", pad, 2, 0)
    strides = window if stride is None else each(f"{name}: stride", stride, 2)
    if outsize is None:
        return window, strides, sides, _outsize(x, window, strides, sides, cover_all)
    return window, strides, sides, each(f"{name}: outsize", outsize, 2, 0)


def unpooling_2d(x: Array, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0, outsize: Sizes | None = None,
                 cover_all: bool = True) -> Variable:  # fmt: skip
    """Images in which each element of x (N, C, H, W) fills its window; where windows overlap, they add up.

    `outsize` None is the smallest size whose windows these are. Raises `ShapeError` for another rank and for images
    without pixels.
    """
    window, strides, sides, sizes = _spread("unpooling_2d", x, ksize, stride, pad, outsize, cover_all)
    if min(sizes) < 1:
        given = f"{x.shape[2:]} to {sizes}, windows {window}, pad {sides}"
        raise ShapeError(complain("unpooling_2d: outsize", given, "lengths of 1 or more"))
    if window == strides:
        (n, channels, height, width), (kh, kw) = x.shape, window
        apart = shapes.reshape(x, (n, channels, height, 1, width, 1))
        filled = shapes.broadcast_to(apart, (n, channels, height, kh, width, kw))
        whole = shapes.reshape(filled, (n, channels, height * kh, width * kw))
    else:
        ones = ones_like_filters(x, (x.shape[1], 1, *window))
        whole = deconvolution_nd(x, ones, None, strides, groups=x.shape[1])
    more = [max(p + n - m, 0) for p, n, m in zip(sides, sizes, whole.shape[2:])]
    if any(more):
        whole = padded(whole, ((0, 0), (0, 0), *((0, m) for m in more)))
    part = tuple(slice(p, p + n) for p, n in zip(sides, sizes))
    return whole if whole.shape[2:] == sizes else whole[:, :, part[0], part[1]]


def upsampling_2d(x: Array, indexes: Array, ksize: Sizes, stride: Sizes | None = None, pad: Sizes = 0,
                  outsize: Sizes | None = None, cover_all: bool = True) -> Variable:  # fmt: skip
    """Images of zeros with the elements of x (N, C, H, W) at the places that `max_pooling_2d` returned; the inverse of
    it on maxima (Badrinarayanan et al. 2017). A place outside its window leaves zeros. Raises `ShapeError` where
    `outsize` does not pool to x's size and for `indexes` of another shape than x, `InvalidType` where these are no
    integers and x no floats."""
    window, strides, sides, sizes = _spread("upsampling_2d", x, ksize, stride, pad, outsize, cover_all)
    shape = (*x.shape[:2], *sizes)
    windows = _windows("upsampling", (0, 0, *sizes), window, strides, sides, cover_all)
    if windows.sizes != tuple(x.shape[2:]):
        given = f"{x.shape[2:]} to {sizes}, whose windows are {windows.sizes}"
        raise ShapeError(complain("upsampling_2d: outsize", given, "a size that pools to x's"))
    x, places = as_variable(x), as_variable(indexes)._known()
    if tuple(places.shape) != tuple(x.shape):
        raise ShapeError(complain("upsampling_2d: indexes", f"shape {tuple(places.shape)}", f"{tuple(x.shape)}, as x"))
    type_check.checked("upsampling_2d", _check_images, [(x.shape, x.dtype)], ("x",))
    check_labels("upsampling_2d", "indexes", places)
    arrays.only_family("upsampling_2d", [x._known(), places])
    argmax = engine_first(arrays.tensor_of(places))
    return _MaxGradient(windows, shape, argmax, False).apply((x,))[0]


def spatial_pyramid_pooling_2d(x: Array, pyramid_height: int) -> Variable:
    """The maxima of 1, 4, 16 … parts of images (N, C, H, W), `pyramid_height` levels, side by side: (N, D, 1, 1) (He et
    al. 2014). Parts are windows of one size; raises `ShapeError` where one of them would lie outside the images."""
    expect_images("spatial_pyramid_pooling_2d", x)
    (n, channels, height, width), (pyramid_height,) = x.shape, each("pyramid_height", pyramid_height, 1)
    levels = []
    for level in range(pyramid_height):
        parts = 2**level
        window = [-(-size // parts) for size in (height, width)]
        sides = [(k * parts - size + 1) // 2 for k, size in zip(window, (height, width))]
        if any(p >= k for p, k in zip(sides, window)):
            given = f"images {(height, width)}, {pyramid_height} levels"
            raise ShapeError(complain("spatial_pyramid_pooling_2d", given, "a pixel for each part"))
        pooled = max_pooling_2d(x, window, window, sides, False)
        levels.append(shapes.reshape(pooled, (n, channels * parts * parts, 1, 1)))
    return shapes.concat(levels, 1)
