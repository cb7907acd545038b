# SPDX-License-Identifier: Apache-2.0
"""Pooling of regions and suppression of boxes against their definitions: rounding, edges, ties, gradients, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import DTypeError, ShapeError
from tensorbackend.conformance import references as ref

pytestmark = pytest.mark.rehearsed

shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # a backend serves all examples


def bins(roi: list[float], scale: float, pooled: tuple[int, int], size: tuple[int, int]) -> dict:
    """The pixels of each bin of a region, row by row."""
    x_min, y_min, x_max, y_max = (round(v * scale) for v in roi)
    found = {}
    for p, q in np.ndindex(*pooled):
        pixels = []
        for low, high, part, parts, length in ((y_min, y_max, p, pooled[0], size[0]),
                                               (x_min, x_max, q, pooled[1], size[1])):  # fmt: skip
            extent = max(high - low + 1, 1)
            first, last = low + part * extent // parts, low + math.ceil((part + 1) * extent / parts)
            pixels.append([at for at in range(first, last) if 0 <= at < length])
        found[p, q] = [(y, x) for y in pixels[0] for x in pixels[1]]
    return found


def pooled_regions(I: np.ndarray, rois: np.ndarray, scale: float, pooled: tuple[int, int]) -> tuple:
    """The largest of each bin, and its place."""
    C, H, W, _ = I.shape
    values, places = np.zeros((C, *pooled, len(rois))), np.full((C, *pooled, len(rois)), -1)
    for r, (image, *roi) in enumerate(rois.tolist()):
        for (p, q), pixels in bins(roi, scale, pooled, (H, W)).items():
            for c in range(C) if pixels else ():
                y, x = max(pixels, key=lambda at: I[(c, *at, int(image))])  # noqa: B023
                values[c, p, q, r], places[c, p, q, r] = I[c, y, x, int(image)], y * W + x
    return values, places


@shared
@given(
    maps=st.sampled_from([1, 2, 16, 19]),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    images=st.integers(1, 3),
    count=st.sampled_from([1, 5, 16, 21]),
    pooled=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    scale=st.sampled_from([1.0, 0.5, 0.0625]),
    dtype=st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16"]),
    seed=st.integers(0, 99),
)
def test_both_passes_are_their_definitions(backend: Any, maps: int, size: tuple, images: int, count: int,
                                           pooled: tuple, scale: float, dtype: str, seed: int) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    corners = np.round(rng.uniform(-0.4, 1.4, (count, 4)) * max(size) / scale)  # halves too, and outside the map
    rois = np.concatenate([rng.integers(0, images, (count, 1)), corners], 1)
    i, e = ref.draw((maps, *size, images), dtype, seed), ref.draw((maps, *pooled, count), dtype, seed)
    I, E = (backend.array(x.reshape(-1, x.shape[-1]), dtype=x.dtype) for x in (i, e))
    R, O = backend.array(rois, dtype=dtype), backend.full((maps * math.prod(pooled), count), np.nan, dtype=dtype)
    argmax = backend.zeros(O.shape, dtype=["int32", "int64"][seed % 2])
    sizes = (count, maps, *size, *pooled, scale)
    backend.roipooling_fprop(I, R, O, argmax, *sizes)
    values, places = pooled_regions(ref.wide(i), ref.wide(R.get()), scale, pooled)
    np.testing.assert_array_equal(ref.wide(O.get()).reshape(values.shape), values)
    np.testing.assert_array_equal(argmax.get().reshape(places.shape), places)
    delta = backend.full(I.shape, np.nan, dtype=dtype)
    backend.roipooling_bprop(E, R, delta, argmax, *sizes)
    expected, rest = np.zeros((maps, math.prod(size), images)), np.zeros((maps, math.prod(size), images))
    for c, p, q, r in zip(*np.nonzero(places >= 0)):
        expected[c, places[c, p, q, r], int(rois[r, 0])] += ref.wide(e)[c, p, q, r]
        rest[c, places[c, p, q, r], int(rois[r, 0])] += abs(ref.wide(e)[c, p, q, r])
    precision = 4 * max(ref.EPSILON[dtype], ref.EPSILON["float32"] if dtype != "float64" else 0)
    found = ref.wide(delta.get()).reshape(expected.shape)
    assert (np.abs(found - expected) <= precision * (np.abs(expected) + count * rest)).all()


def test_operands_may_have_gaps(backend: Any) -> None:
    """Every second row, and some of the columns, of wider matrices."""

    def apart(values: np.ndarray) -> Any:
        room = backend.full((2 * values.shape[0], values.shape[1] + 3), 7, dtype=values.dtype)
        room[::2, 2:-1] = values
        return room[::2, 2:-1]

    i, e, sizes = ref.draw((2 * 5 * 6, 2)), ref.draw((2 * 2 * 2, 3), seed=1), (3, 2, 5, 6, 2, 2, 0.5)
    rois, found = np.array([[0, 0, 0, 9, 7], [1, 2, 2, 6, 12], [1, 0, 0, 1, 1]], np.float32), []
    for place in (apart, lambda values: backend.array(values, dtype=values.dtype)):
        I, E, R, O, delta = (place(x.astype(np.float32)) for x in (i, e, rois, e, i))
        argmax = place(np.zeros((8, 3), np.int32))
        backend.roipooling_fprop(I, R, O, argmax, *sizes)
        backend.roipooling_bprop(E, R, delta, argmax, *sizes)
        found.append([x.get() for x in (O, argmax, delta)])
    for x, y in zip(*found):
        np.testing.assert_array_equal(x, y)


def test_gradient_by_central_differences(backend: Any) -> None:
    rois = backend.array([[0, 0, 0, 9, 7], [1, 2, 2, 6, 12], [1, 0, 0, 1, 1]], dtype=np.float64)
    i, e, way = ref.draw((2 * 5 * 6, 2)), ref.draw((2 * 2 * 2, 3), seed=1), ref.draw((2 * 5 * 6, 2), seed=2)
    O, argmax = backend.empty((8, 3), dtype=np.float64), backend.empty((8, 3), dtype=np.int32)
    delta, sizes, step, ends = backend.empty((60, 2), dtype=np.float64), (3, 2, 5, 6, 2, 2, 0.5), 1e-7, []
    backend.roipooling_fprop(backend.array(i, dtype=np.float64), rois, O, argmax, *sizes)
    backend.roipooling_bprop(backend.array(e, dtype=np.float64), rois, delta, argmax, *sizes)
    for sign in (1, -1):
        backend.roipooling_fprop(backend.array(i + sign * step * way, dtype=np.float64), rois, O, argmax, *sizes)
        ends.append((O.get() * e).sum())
    assert (delta.get() * way).sum() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_the_first_largest_wins_and_a_nan_does(backend: Any) -> None:
    i = np.array([[1, 2, 2], [np.nan, 0, np.nan]], np.float32).reshape(1, 1, 6, 1)
    rois = backend.array([[0, 0, 0, 2, 0], [0, 3, 0, 5, 0], [0, -9, 0, -5, 0]])
    O, argmax = backend.empty((1, 3)), backend.empty((1, 3), dtype=np.int32)
    backend.roipooling_fprop(backend.array(i.reshape(6, 1)), rois, O, argmax, 3, 1, 1, 6, 1, 1, 1.0)
    np.testing.assert_array_equal(O.get(), [[2, np.nan, 0]])
    np.testing.assert_array_equal(argmax.get(), [[1, 3, -1]])


def test_places_outside_the_map_get_nothing(backend: Any) -> None:
    rois, error = backend.array([[0, 0, 0, 1, 2]] * 4), backend.array([[1, 2, 4, 8]])
    delta, argmax = backend.full((6, 1), np.nan), backend.array([[5, 6, -2, 1 << 30]], dtype=np.int32)
    backend.roipooling_bprop(error, rois, delta, argmax, 4, 1, 3, 2, 1, 1, 1.0)
    np.testing.assert_array_equal(delta.get().ravel(), [0, 0, 0, 0, 0, 1])


def test_bad_regions_are_refused(backend: Any) -> None:
    I, O, argmax = backend.ones((12, 2)), backend.full((4, 3), 5.0), backend.full((4, 3), 7, dtype=np.int32)
    rois = backend.array([[0, 0, 0, 1, 1], [1, 0, 0, 1, 1], [0, 0, 0, 1, 1]])
    good = {0: I, 1: rois, 2: O, 3: argmax, 4: 3, 5: 1, 6: 3, 7: 4, 8: 2, 9: 2, 10: 1.0}

    def refused(expected: type, message: str, changes: dict, call: Any = backend.roipooling_fprop) -> None:
        with pytest.raises(expected, match=message):
            call(*{**good, **changes}.values())

    for image in (2, -1):
        bad = backend.array([[0, 0, 0, 1, 1], [image, 0, 0, 1, 1], [9, 0, 0, 1, 1]])
        message = rf"region 1 is of image {image}[\s\S]*0 to 1"
        refused(IndexError, message, {1: bad})
        refused(IndexError, message, {0: O, 1: bad, 2: I}, backend.roipooling_bprop)
    for image in (math.nan, math.inf, -math.inf, 0.75, -0.25):
        bad = backend.array([[0, 0, 0, 1, 1], [image, 0, 0, 1, 1], [9, 0, 0, 1, 1]])
        message = r"region 1 is of image[\s\S]*0 to 1"
        refused(IndexError, message, {1: bad})
        refused(IndexError, message, {0: O, 1: bad, 2: I}, backend.roipooling_bprop)
    refused(ShapeError, r"\(12, 2\)[\s\S]*multiple of 15", {7: 5})
    four = {4: 4, 2: backend.ones((4, 4)), 3: backend.ones((4, 4), dtype=np.int32)}
    refused(ShapeError, r"rois[\s\S]*\(3, 5\)[\s\S]*20 elements", four)
    refused(ShapeError, r"size of O[\s\S]*\(1, 3, 2, 3\)", {8: 3})
    refused(TypeError, "spatial_scale[\\s\\S]*a number", {10: None})
    for scale in (math.nan, math.inf, 0.0, -1.0):  # their regions were of pixel 0, or empty
        refused(ValueError, r"spatial_scale[\s\S]*above 0", {10: scale})
        refused(ValueError, r"spatial_scale[\s\S]*above 0", {0: O, 2: I, 10: scale}, backend.roipooling_bprop)
    refused(ShapeError, r"pooled_width[\s\S]*0", {9: 0})
    refused(DTypeError, r"type of O[\s\S]*float64", {2: backend.ones((4, 3), dtype=np.float64)})
    refused(DTypeError, r"argmax[\s\S]*float32", {3: backend.ones((4, 3))})
    unsigned = {3: backend.full((4, 3), 7, dtype=np.uint32)}
    refused(DTypeError, r"argmax[\s\S]*uint32[\s\S]*-1", unsigned)
    refused(DTypeError, r"argmax[\s\S]*uint32[\s\S]*-1", {0: O, 2: I, **unsigned}, backend.roipooling_bprop)
    refused(DTypeError, r"rois[\s\S]*int32", {1: backend.ones((3, 5), dtype=np.int32)})
    refused(ValueError, "overlaps", {2: I[:6].reshape(12), 4: 3})
    refused(ValueError, "overlaps", {0: I[:6].reshape(12), 2: I}, backend.roipooling_bprop)
    refused(ShapeError, r"\(0, 2\)[\s\S]*multiple of 12", {0: I[:0]})
    refused(ShapeError, r"size of I", {0: I, 2: I}, backend.roipooling_bprop)
    np.testing.assert_array_equal(O.get(), 5)
    np.testing.assert_array_equal(argmax.get(), 7)
    np.testing.assert_array_equal(I.get(), 1)


# Boxes


def kept_boxes(boxes: np.ndarray, threshold: float, wider: float) -> list[int]:
    """The definition, a pair at a time."""

    def area(x1: float, y1: float, x2: float, y2: float) -> float:
        return max(x2 - x1 + wider, 0) * max(y2 - y1 + wider, 0)

    kept: list[int] = []
    for place, (*box, score) in enumerate(boxes.tolist()):
        overlaps = []
        for other in kept:
            corners = zip(box, boxes[other].tolist())
            both = area(*(max(a, b) if n < 2 else min(a, b) for n, (a, b) in enumerate(corners)))
            overlaps.append(both / (area(*box) + area(*boxes[other, :4].tolist()) - both) > threshold)
        if score != 0 and not any(overlaps):
            kept.append(place)
    return kept


@shared
@given(
    count=st.sampled_from([1, 2, 15, 64, 65, 130]),
    threshold=st.sampled_from([0.1, 0.3, 0.5, 0.7]),
    normalized=st.booleans(),
    dtype=st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16"]),
    seed=st.integers(0, 99),
)
def test_boxes_are_kept_as_defined(backend: Any, count: int, threshold: float, normalized: bool, dtype: str,
                                   seed: int) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 40, (count, 2))  # whole numbers that every type holds: overlaps are exact but for a quotient
    score = np.sort(rng.integers(0, 100, (count, 1)), axis=0)[::-1] / 128
    boxes = np.concatenate([low, low + rng.integers(1, 30, (count, 2)), score], 1)
    found = backend.nms(backend.array(boxes, dtype=dtype), threshold, normalized)
    assert found == kept_boxes(boxes, threshold, 0.0 if normalized else 1.0)
    assert all(type(place) is int for place in found)


def test_an_overlap_of_just_the_threshold_is_kept(backend: Any) -> None:
    boxes = backend.array([[0, 0, 1, 0, 0.9], [0, 0, 0, 0, 0.8], [5, 5, 6, 6, 0.7], [0, 0, 1, 0, 0]])
    assert backend.nms(boxes, 0.5) == [0, 1, 2]
    assert backend.nms(boxes, 0.49) == [0, 2]
    assert backend.nms(boxes[:0], 0.5) == []
    assert backend.nms(boxes[3:], 0.5) == []
    wide = backend.zeros((4, 10))
    wide[:, 5:] = boxes
    assert backend.nms(wide[:, 5:], 0.5) == [0, 1, 2]


def test_a_threshold_below_0_drops_what_has_an_overlap(backend: Any) -> None:
    """One of 0 too; that with a box of no numbers is none."""
    boxes = backend.array([[math.nan, 0, 1, 1, 0.9], [10, 10, 11, 11, 0.8], [20, 20, 21, 21, 0.7]])
    assert backend.nms(boxes, -0.5) == [0, 1]
    assert backend.nms(boxes, 0) == [0, 1, 2]


def test_bad_detections_are_refused(backend: Any) -> None:
    with pytest.raises(ShapeError, match=r"\(3, 4\)[\s\S]*\(n, 5\)"):
        backend.nms(backend.ones((3, 4)), 0.5)
    with pytest.raises(DTypeError, match="int32"):
        backend.nms(backend.ones((3, 5), dtype=np.int32), 0.5)
    with pytest.raises(TypeError, match="list"):
        backend.nms([[0, 0, 1, 1, 0.5]], 0.5)
    with pytest.raises(ValueError, match=r"nms: threshold[\s\S]*nan"):  # it kept all
        backend.nms(backend.ones((3, 5)), math.nan)
