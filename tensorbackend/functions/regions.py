# SPDX-License-Identifier: Apache-2.0
"""Regions of images pooled to a fixed size. Regions are rows (image, x_min, y_min, x_max, y_max)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import ShapeError, complain
from tensorbackend.function import arrays
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions import picking, shapes
from tensorbackend.functions.arguments import Array
from tensorbackend.functions.arranging import einsum
from tensorbackend.functions.elementwise import where
from tensorbackend.functions.pooling import OnImages
from tensorbackend.graph import composite as o
from tensorbackend.graph import ranges

__all__ = ["roi_average_align_2d", "roi_average_pooling_2d", "roi_max_align_2d", "roi_pooling_2d"]


class _Regions(OnImages):
    """The largest of each bin of regions, or its gradient."""

    def __init__(self, shape: tuple[int, ...], rois: Any, size: tuple[int, int], scale: float,
                 argmax: Any = None) -> None:  # fmt: skip
        super().__init__(shape, argmax)
        self._rois = rois
        self._size = size
        self._scale = scale

    def _placed_rois(self, x: Any) -> Any:
        rois = arrays.fresh(x.backend, self._rois.shape, dtypes.compute(x.dtype))
        rois.set(self._rois)
        return rois

    def _sizes(self) -> tuple[Any, ...]:
        return (len(self._rois), *self._shape[1:], *self._size, self._scale)

    def _pooled(self) -> tuple[int, ...]:
        return (self._shape[1], *self._size, len(self._rois))

    def _again(self) -> tuple[Any, ...]:
        return (self._shape, self._rois, self._size, self._scale, self.argmax)


class _Largest(_Regions):
    label = "roi_pooling_2d"

    def _output(self) -> tuple[int, ...]:
        return self._pooled()

    def _compute(self, backend: Any, x: Any, out: Any) -> None:
        self.argmax = arrays.fresh(backend, self._pooled(), np.dtype(np.int32))
        backend.roipooling_fprop(x, self._placed_rois(x), out, self.argmax, *self._sizes())

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The errors at the places of the maxima."""
        return _LargestGradient(*self._again()).apply(grad_outputs)


class _LargestGradient(_Regions):
    label = "gradient of roi_pooling_2d"

    def _output(self) -> tuple[int, ...]:
        return self._images()

    def _compute(self, backend: Any, x: Any, out: Any) -> None:
        if x.size:
            backend.roipooling_bprop(x, self._placed_rois(x), out, self.argmax, *self._sizes())
        else:
            out[:] = 0

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The numbers at the places of the maxima, zero for empty bins."""
        (g,) = grad_outputs
        _, c, h, w = self._shape
        found = np.zeros(self._pooled()) if self.argmax is None else self.argmax.get()  # of no regions there are none
        places = found.transpose(3, 0, 1, 2).astype(np.int64)
        maps = self._rois[:, 0].astype(np.int64).reshape(-1, 1, 1, 1) * c + np.arange(c).reshape(1, -1, 1, 1)
        backend = arrays.backend_of(arrays.plain(g.array))
        flat = arrays.moved(np.where(places < 0, 0, maps * h * w + places), backend)
        picked = picking.get_item(shapes.flatten(g), flat)
        return (where(arrays.moved(places >= 0, backend), picked, 0.0),)


def _host_rois(name: str, x: Any, rois: Any, outh: int, outw: int, scale: float) -> np.ndarray:
    """The regions as a NumPy array (R, 5). Raises `ShapeError` for others, `IndexError` for an image there is not, and
    `ValueError` for corners that are not finite, bins below 1 and scales that are not above 0."""
    ranges.check(name, "an int of 1 or more", outh=outh, outw=outw)
    ranges.check(name, "above 0, and finite", spatial_scale=scale)
    data = arrays.plain(as_variable(rois).array)
    found = np.asarray(data if isinstance(data, np.ndarray) else data.get())
    if found.ndim != 2 or found.shape[1] != 5 or len(x.shape) != 4:
        raise ShapeError(complain(f"{name}: shapes", f"x {x.shape}, rois {found.shape}", "(N, C, H, W) and (R, 5)"))
    if not np.isin(found[:, 0].astype(np.float64), np.arange(x.shape[0])).all():
        raise IndexError(complain(f"{name}: image", f"{found[:, 0]}", f"whole numbers from 0 to {x.shape[0] - 1}"))
    if not np.isfinite(found[:, 1:].astype(np.float64)).all():
        (wrong, *_) = found[~np.isfinite(found.astype(np.float64)).all(1)]
        raise ValueError(complain(f"{name}: corners of a region", f"{wrong}", "finite numbers"))
    return found


def roi_pooling_2d(x: Array, rois: Array, outh: int, outw: int, spatial_scale: float) -> Variable:
    """The largest of outh x outw bins of each region of images x (N, C, H, W): (R, C, outh, outw) (Girshick 2015).

    Corners times `spatial_scale` are rounded, and both belong to the region. Raises `ShapeError` for shapes,
    `IndexError` for an image that there is not, `ValueError` for corners that are not finite, less than one bin and a
    scale that is not above 0.
    """
    found = _host_rois("roi_pooling_2d", x, rois, outh, outw, spatial_scale)
    return _Largest(x.shape, found, (outh, outw), float(spatial_scale)).apply((x,))[0]


def _weighed(x: Any, rois: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> Variable:
    """The sums over pixels of each region's image, weighed by rows (R, P, H) and columns (R, Q, W): (R, C, P, Q)."""
    data = arrays.plain(as_variable(x).array)
    backend = arrays.backend_of(data)
    images = picking.get_item(x, arrays.moved(rois[:, 0].astype(np.int64), backend))
    rows, columns = (arrays.moved(a.astype(data.dtype), backend) for a in (rows, columns))
    return einsum("rph,rchw,rqw->rcpq", rows, images, columns)


def _bins(low: np.ndarray, high: np.ndarray, parts: int, length: int) -> np.ndarray:
    """The weights (R, parts, length) of means over bins of whole pixels, empty ones 0."""
    size, at = np.maximum(high - low + 1, 1)[:, None], np.arange(parts)
    first = np.clip(at * size // parts + low[:, None], 0, length)
    last = np.clip(-(-(at + 1) * size // parts) + low[:, None], 0, length)
    pixels = np.arange(length)
    inside = (pixels >= first[..., None]) & (pixels < last[..., None])
    return inside / np.maximum(inside.sum(2, keepdims=True), 1)


def roi_average_pooling_2d(x: Array, rois: Array, outh: int, outw: int, spatial_scale: float) -> Variable:
    """`roi_pooling_2d` with the means of the bins."""
    found = _host_rois("roi_average_pooling_2d", x, rois, outh, outw, spatial_scale)
    dtype = dtypes.compute(as_variable(x).dtype)  # in which the engine scales the corners of `roi_pooling_2d`, too
    with np.errstate(over="ignore"):
        corners = np.rint(found[:, 1:].astype(dtype) * dtype.type(spatial_scale))
    held = np.iinfo(np.int32)  # what is farther away is as far
    x1, y1, x2, y2 = np.clip(corners.astype(np.float64), held.min, held.max).astype(np.int64).T
    return _weighed(x, found, _bins(y1, y2, outh, x.shape[2]), _bins(x1, x2, outw, x.shape[3]))


def _samples(low: np.ndarray, high: np.ndarray, parts: int, ratio: int, length: int) -> np.ndarray:
    """The weights (R, parts ratio, length) of linear interpolation at the sample points of bins; 0 outside."""
    size = np.maximum(high - low, 1.0)[:, None] / (parts * ratio)
    at = low[:, None] + (np.arange(parts * ratio) + 0.5) * size
    inside = (at >= -1) & (at <= length)
    at = np.clip(at, 0, length - 1)
    return np.maximum(1 - np.abs(at[..., None] - np.arange(length)), 0) * inside[..., None]


def _aligned(name: str, x: Any, rois: Any, scale: float, outh: int, outw: int, ratio: int) -> tuple:
    """The regions and the weights of their sample points. Raises `ValueError` for a ratio below 1."""
    ranges.check(name, "an int of 1 or more", sampling_ratio=ratio)
    found = _host_rois(name, x, rois, outh, outw, scale)
    x1, y1, x2, y2 = (found[:, 1:].astype(np.float64) * scale).T
    return found, _samples(y1, y2, outh, ratio, x.shape[2]), _samples(x1, x2, outw, ratio, x.shape[3])


def roi_average_align_2d(x: Array, rois: Array, outh: int, outw: int, spatial_scale: float,
                         sampling_ratio: int = 2) -> Variable:  # fmt: skip
    """Regions without rounding: each bin is the mean of `sampling_ratio`² points of images x (N, C, H, W), by linear
    interpolation (He et al. 2017): (R, C, outh, outw). Raises as `roi_pooling_2d`, `ValueError` for a ratio below 1."""
    found, rows, columns = _aligned("roi_average_align_2d", x, rois, spatial_scale, outh, outw, sampling_ratio)
    rows = rows.reshape(len(found), outh, sampling_ratio, x.shape[2]).mean(2)
    columns = columns.reshape(len(found), outw, sampling_ratio, x.shape[3]).mean(2)
    return _weighed(x, found, rows, columns)


def _first_largest(x: Any) -> Any:
    """The tree of the largest along the last axis, of which the first has the gradient: points beyond a border are
    one and the same, and all of them would have it."""
    axis = len(x.shape) - 1
    places = o.positions(x.structure.table, axis, (*(1,) * axis, x.shape[axis]))
    return o.sum(o.where(places == o.argmax(x, axis, True), x, 0), axis, False)


_FIRST_LARGEST = Rule("roi_max_align_2d", _first_largest, None, None, ("points",))


def roi_max_align_2d(x: Array, rois: Array, outh: int, outw: int, spatial_scale: float,
                     sampling_ratio: int = 2) -> Variable:  # fmt: skip
    """`roi_average_align_2d` with the largest of each bin's points, the first of equal ones."""
    found, rows, columns = _aligned("roi_max_align_2d", x, rois, spatial_scale, outh, outw, sampling_ratio)
    points = _weighed(x, found, rows, columns)
    apart = shapes.reshape(points, (*points.shape[:2], outh, sampling_ratio, outw, sampling_ratio))
    beside = shapes.transpose(apart, (0, 1, 2, 4, 3, 5))
    return _FIRST_LARGEST(shapes.reshape(beside, (*beside.shape[:4], sampling_ratio**2)))
