# SPDX-License-Identifier: Apache-2.0
"""Regions of images: pooling of regions of interest, and non-maximum suppression of boxes.

A region's corners are rounded once, to whole pixels; from there on everything is integers, the same in every form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tensorbackend import ops
from tensorbackend.errors import DTypeError, ShapeError, complain
from tensorbackend.graph import composite
from tensorbackend.graph.optree import Operators
from tensorbackend.primitives import operands
from tensorbackend.primitives.geometry import positive

__all__ = ["NMS", "ROI_BPROP", "ROI_FPROP", "RegionGeometry", "Regions", "no_such_image"]


class RegionGeometry(NamedTuple):
    """`regions` of `images` of C maps of H x W, each pooled to P x Q."""

    images: int
    C: int
    H: int
    W: int
    regions: int
    P: int
    Q: int

    @property
    def dimI(self) -> tuple[int, ...]:
        """The shape of the images."""
        return self.C, self.H, self.W, self.images

    @property
    def dimO(self) -> tuple[int, ...]:
        """The shape of the pooled regions."""
        return self.C, self.P, self.Q, self.regions


# Meaning


def no_such_image(g: RegionGeometry, place: int, image: int) -> IndexError:
    """The error for a region of an image that there is not."""
    given = f"region {place} is of image {image}" + (", or of no whole number" if image == -1 else "")
    return IndexError(complain("roipooling: rois", given, f"images from 0 to {g.images - 1}"))


def _check_images(g: RegionGeometry, boxes: np.ndarray) -> None:
    wrong = (boxes[:, 0] < 0) | (boxes[:, 0] >= g.images)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise no_such_image(g, place, int(boxes[place, 0]))


def _span(low: int, high: int, part: int, parts: int, length: int) -> slice:
    """The pixels of one of the parts of the range from `low` to `high`, inside an axis of `length`."""
    size = max(high - low + 1, 1)
    start, stop = low + part * size // parts, low - (-(part + 1) * size // parts)
    return slice(min(max(start, 0), length), min(max(stop, 0), length))


def _bins(g: RegionGeometry, boxes: np.ndarray) -> Iterator[tuple[tuple, int, slice, slice]]:
    """For each bin of each region: where its result is, its image, rows and columns."""
    for r, (image, x_min, y_min, x_max, y_max) in enumerate(boxes.tolist()):
        for p in range(g.P):
            rows = _span(y_min, y_max, p, g.P, g.H)
            for q in range(g.Q):
                yield (slice(None), p, q, r), image, rows, _span(x_min, x_max, q, g.Q, g.W)


def fprop_reference(I: np.ndarray, boxes: np.ndarray, g: RegionGeometry, *unused: float) -> tuple:
    """The largest of each bin and its place h W + w in the map: operands I (C, H, W, images) and boxes (regions, 5),
    rows of image, x_min, y_min, x_max, y_max in pixels of the map. Empty bins give 0 and -1; the first NaN wins."""
    _check_images(g, boxes)
    best, places = np.zeros(g.dimO, I.dtype), np.full(g.dimO, -1, np.int32)
    for at, image, rows, columns in _bins(g, boxes):
        window = I[:, rows, columns, image]
        if window.size:
            flat = window.reshape(g.C, -1)
            found = np.argmax(flat, axis=1)
            best[at] = flat[np.arange(g.C), found]
            y, x = np.divmod(found, columns.stop - columns.start)
            places[at] = (rows.start + y) * g.W + columns.start + x
    return best, places


def bprop_reference(E: np.ndarray, argmax: np.ndarray, boxes: np.ndarray, g: RegionGeometry, *unused: float) -> Any:
    """The gradient by the images: each error added where its place says, regions innermost; outside the map nowhere."""
    _check_images(g, boxes)
    delta = np.zeros((g.C, g.H * g.W, g.images), E.dtype)
    c, p, q, r = np.nonzero((argmax >= 0) & (argmax < g.H * g.W))
    np.add.at(delta, (c, argmax[c, p, q, r], boxes[r, 0]), E[c, p, q, r])
    return delta.reshape(g.dimI)


def nms_reference(boxes: np.ndarray, threshold: float, alpha: float, beta: float, wider: float) -> np.ndarray:
    """How many boxes are kept, then their places, then -1: boxes (n, 5) by falling score; `wider` is added to widths
    and heights."""
    x1, y1, x2, y2, score = boxes.T
    area = (x2 - x1 + x1.dtype.type(wider)) * (y2 - y1 + x1.dtype.type(wider))
    left = np.flatnonzero(score != 0)
    kept = []
    while left.size:
        first, left = left[0], left[1:]
        kept.append(first)
        width = np.minimum(x2[first], x2[left]) - np.maximum(x1[first], x1[left]) + x1.dtype.type(wider)
        height = np.minimum(y2[first], y2[left]) - np.maximum(y1[first], y1[left]) + x1.dtype.type(wider)
        both = np.maximum(width, 0) * np.maximum(height, 0)
        overlap = both / (area[first] + area[left] - both)
        left = left[~(overlap > x1.dtype.type(threshold))]
    return np.array([len(kept), *kept, *[-1] * (len(boxes) - len(kept))], np.int32)


def _operations(g: RegionGeometry, *unused: float) -> int:
    return g.C * g.P * g.Q * g.regions


ROI_FPROP = ops.call("roi_fprop", 2, fprop_reference, "The largest of each bin of regions.", _operations)
ROI_BPROP = ops.call("roi_bprop", 3, bprop_reference, "The gradient of that by its images.", _operations)
NMS = ops.call("nms", 1, nms_reference, "Boxes that overlap no better one.", lambda *unused: 0)


# Methods of the contract


class Regions:
    """Region pooling and non-maximum suppression of the contract; `Backend` inherits them."""

    def roipooling_fprop(self, I: Any, rois: Any, O: Any, argmax: Any, roi_count: int, fm_channel: int, fm_height: int,
                         fm_width: int, pooled_height: int, pooled_width: int, spatial_scale: float,
                         repeat: int = 1) -> None:  # fmt: skip
        """O = the largest of each of pooled_height x pooled_width bins of regions; argmax = its place h W + w, or -1.

        `I` (C, H, W, images) and `rois` (roi_count, 5), rows (image, x_min, y_min, x_max, y_max) in pixels of the
        images that the maps come from: corners times `spatial_scale`, rounded (halves to even), are pixels of the maps
        and both belong to the region. Bin b of B spans floor(b size / B) to ceil((b + 1) size / B), cut to the map; an
        empty one gives 0. `O` and `argmax` (C, pooled_height, pooled_width, roi_count), the latter signed integers
        that hold the places. All in any shape of that size, floats of one type. `repeat` runs it as often, for timing.
        Raises `ShapeError`, `DTypeError`, `ValueError` for overlapping outputs and a `spatial_scale` that is no finite
        number above 0, `IndexError` for an image that there is not.
        """
        name = "roipooling_fprop"
        sizes = (fm_channel, fm_height, fm_width, roi_count, pooled_height, pooled_width)
        g = _geometry(name, I, *sizes)
        operands.check(name, I.dtype, O=(O, g.dimO))
        _check_places(name, g, argmax)
        operands.check_output(name, O, I, rois)
        operands.check_output(f"{name}: argmax", argmax, I, rois, O)
        boxes = _boxes(self, name, rois, g, spatial_scale)
        outputs = [(O, g.dimO), (argmax, g.dimO)]
        operands.call(self, ROI_FPROP, (g, 1.0, 0.0), outputs, [(I, g.dimI), boxes], repeat, whole=True)

    def roipooling_bprop(self, I: Any, rois: Any, O: Any, argmax: Any, roi_count: int, fm_channel: int, fm_height: int,
                         fm_width: int, pooled_height: int, pooled_width: int, spatial_scale: float,
                         repeat: int = 1) -> None:  # fmt: skip
        """O = the gradient by the images: `I` is the error, of the pooled size, and each goes where `argmax` says.

        `rois` and `argmax` are those of `roipooling_fprop`; what meets at a pixel adds up, in an order that sizes
        decide, and a place outside the map adds nothing. `O` (C, H, W, images) is overwritten. `repeat` and errors as
        there.
        """
        name = "roipooling_bprop"
        sizes = (fm_channel, fm_height, fm_width, roi_count, pooled_height, pooled_width)
        g = _geometry(name, O, *sizes)
        operands.check(name, O.dtype, I=(I, g.dimO))
        _check_places(name, g, argmax)
        operands.check_output(name, O, I, rois, argmax)
        inputs = [(I, g.dimO), (argmax, g.dimO), _boxes(self, name, rois, g, spatial_scale)]
        operands.call(self, ROI_BPROP, (g, 1.0, 0.0), [(O, g.dimI)], inputs, repeat, whole=True)

    def nms(self, detections: Any, threshold: float, normalized: bool = False, repeat: int = 1) -> list[int]:
        """The places of the boxes that no better box overlaps by more than `threshold`, best first.

        `detections` (n, 5): rows x1, y1, x2, y2, score by falling score; rows of score 0 are ignored. The first is
        kept, those are dropped whose intersection with it over their union is larger than `threshold`, and so on.
        Widths and heights are x2 - x1 + 1, without the 1 when `normalized`. `repeat` runs it as often, for timing.
        Raises `ShapeError` for another shape, `DTypeError` for boxes that are no floats, `ValueError` for a threshold
        that is NaN.
        """
        shape = getattr(detections, "shape", None)
        if shape is not None and (len(shape) != 2 or shape[1] != 5):
            raise ShapeError(complain("nms: detections", f"{shape}", "(n, 5): x1, y1, x2, y2, score"))
        operands.check("nms", None, detections=(detections, shape or ()))
        (limit,) = operands.numbers("nms", threshold=threshold)
        if math.isnan(limit):
            raise ValueError(complain("nms: threshold", "nan", "the overlap up to which a box is kept"))
        if shape[0] == 0:
            return []
        kept = self.empty((shape[0] + 1,), np.int32, min_dims=0)
        params = (limit, 1.0, 0.0, 0.0 if normalized else 1.0)
        operands.call(self, NMS, params, [(kept, kept.shape)], [(detections, shape)], repeat, whole=True)
        found = kept.get().tolist()
        return found[1 : 1 + found[0]]


def _geometry(name: str, images: Any, C: Any, H: Any, W: Any, regions: Any, P: Any, Q: Any) -> RegionGeometry:
    """The sizes of a call; the number of images follows from their tensor. Raises `ShapeError`, `TypeError`."""
    C, H, W, P, Q = positive(name, fm_channel=C, fm_height=H, fm_width=W, pooled_height=P, pooled_width=Q)
    (regions,) = positive(name, roi_count=regions)
    if not isinstance(images, Operators):
        raise TypeError(complain(f"{name}: images", type(images).__name__, "a tensor"))
    count, left = divmod(operands.size(images.shape or ()), C * H * W)
    if left or not count:
        expected = f"a multiple of {C * H * W}, for maps ({C}, {H}, {W})"
        raise ShapeError(complain(f"{name}: size of images", f"{images.shape}", expected))
    g = RegionGeometry(count, C, H, W, regions, P, Q)
    operands.check(name, None, images=(images, g.dimI))
    return g


def _check_places(name: str, g: RegionGeometry, argmax: Any) -> None:
    """That places have a tensor of the pooled size whose integers can hold them, and -1. Raises as `check_integers`."""
    operands.check_integers(name, g.H * g.W, argmax=(argmax, g.dimO))
    if argmax.dtype.kind == "u":
        raise DTypeError(complain(f"{name}: type of argmax", str(argmax.dtype), "signed integers: -1 is an empty bin"))


def _boxes(backend: Any, name: str, rois: Any, g: RegionGeometry, scale: float) -> tuple[Any, tuple[int, int]]:
    """Image, x_min, y_min, x_max and y_max of each region in whole pixels of the maps; -1 for an image that is no whole
    number."""
    shape = (g.regions, 5)
    (scale,) = operands.numbers(name, spatial_scale=scale)
    if not 0 < scale < math.inf:
        raise ValueError(complain(f"{name}: spatial_scale", repr(scale), "a finite number above 0"))
    operands.check(name, None, rois=(rois, shape))
    rois = composite.reshape(rois, shape)
    boxes = backend.empty(shape, np.int32, min_dims=0)
    with backend.fuse():
        images = rois[:, :1]
        boxes[:, :1] = backend.where(backend.rint(images) == images, images, -1)
        boxes[:, 1:] = backend.rint(rois[:, 1:] * scale)
    return boxes, shape
