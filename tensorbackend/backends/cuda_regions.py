# SPDX-License-Identifier: Apache-2.0
"""Look-ups, regions and boxes on a CUDA backend: files of `kernels/cuda`, their types, arguments and grids.

Words and regions are checked by a kernel of its own, whose verdict the host reads before anything is written.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends.cuda_primitives import (
    Runner,
    block_of,
    copied,
    element,
    grid_of,
    integers,
    written_function,
)
from tensorbackend.codegen.geometry import THREADS
from tensorbackend.graph.plan import Primitive, Ref
from tensorbackend.primitives import lookup, regions

if TYPE_CHECKING:
    from tensorbackend.backends.gpu import GpuBackend

__all__ = ["PRIMITIVES"]

NMS_WORD = 64
"""Boxes to a word of bits: `WORD` of nms.cu."""


def prepare_lut(backend: GpuBackend, step: Primitive) -> Runner:
    """The gradient of look-ups: words counted and checked, places sorted, errors turned, then an element a thread."""
    g, alpha, beta = step.params
    (errors, ids), given = step.inputs[:2], len(step.inputs)
    turned = Ref(1, (g.count, g.length), (g.length, 1), 0, errors.dtype)
    turn = copied(backend, Ref(0, turned.shape, errors.strides[::-1], 0, errors.dtype), turned)
    dtype = step.output.dtype
    types = element(dtype), element(ids.dtype), "float" if dtypes.is_half(dtype) else "double"
    names = ("lut_count", "lut_begin", "lut_sort", "lut_sum")
    count, begin, sort, add = (written_function(backend, "lookup", name, *types) for name in names)
    sizes = integers(g.count, g.words, g.length, g.pad_word, g.pad is not None) + struct.pack("2d", alpha, beta)
    elements, small = g.words * g.length, 4 * (1 + g.words)

    def run(addresses: list[int]) -> None:
        storage = backend._allocate(small + 4 * g.count)
        wrong, ends, places = storage.address, storage.address + 4, storage.address + small
        backend.driver.fill(wrong, 0, small)
        rows = backend._allocate(g.count * g.length * errors.dtype.itemsize)
        pointers = (rows.address, addresses[1], ends, places, wrong, addresses[given])
        arguments = struct.pack("6Q", *pointers) + sizes
        backend.driver.launch(count, grid_of(g.count), (THREADS,), 0, arguments)
        if _is_set(backend, wrong):
            _raise_word(g, backend._array_at(ids, addresses[1]))
        if g.count:
            turn([addresses[0], rows.address])
        backend.driver.launch(begin, (1,), (THREADS,), 0, arguments)
        backend.driver.launch(sort, (1,), (THREADS,), 0, arguments)
        backend.driver.launch(add, grid_of(elements), block_of(elements), 0, arguments)

    return run


def _is_set(backend: GpuBackend, address: int) -> bool:
    found = np.zeros(1, np.int32)
    backend.driver.download(found, address)
    return bool(found[0])


def _raise_word(g: lookup.LookupGeometry, ids: np.ndarray) -> None:
    wrong = (ids < 0) | (ids >= g.words)
    place = int(np.argmax(wrong if g.pad is None else wrong & (ids != g.pad)))
    raise lookup.out_of_range(g, place, int(ids[place]))


def _prepare_roi(backend: GpuBackend, step: Primitive, name: str, boxes: int, places: Ref, count: int) -> Runner:
    """A pass of region pooling, a result a thread, after a check of the regions; `boxes` is their operand's number."""
    g = step.params[0]
    sums = element(dtypes.compute(step.output.dtype))
    types = element(step.output.dtype), sums, element(places.dtype)
    kernel, check = (written_function(backend, "roi", function, *types) for function in (name, "roi_check"))
    sizes = integers(g.images, g.C, g.H, g.W, g.regions, g.P, g.Q)

    def run(addresses: list[int]) -> None:
        storage = backend._allocate(4)
        backend.driver.fill(storage.address, 0, 4)
        arguments = struct.pack("2Q", addresses[boxes], storage.address) + sizes
        backend.driver.launch(check, grid_of(g.regions), block_of(g.regions), 0, arguments)
        if _is_set(backend, storage.address):
            images = backend._array_at(step.inputs[boxes], addresses[boxes])[:, 0]
            place = int(np.argmax((images < 0) | (images >= g.images)))
            raise regions.no_such_image(g, place, int(images[place]))
        arguments = struct.pack("4Q", *addresses) + sizes
        backend.driver.launch(kernel, grid_of(count), block_of(count), 0, arguments)

    return run


def prepare_roi_fprop(backend: GpuBackend, step: Primitive) -> Runner:
    """Pooling of regions: images, boxes, output, places."""
    return _prepare_roi(backend, step, "roi_fprop", 1, step.others[0], math.prod(step.params[0].dimO))


def prepare_roi_bprop(backend: GpuBackend, step: Primitive) -> Runner:
    """The gradient of that: errors, places, boxes, gradient."""
    return _prepare_roi(backend, step, "roi_bprop", 2, step.inputs[1], math.prod(step.params[0].dimI))


def prepare_nms(backend: GpuBackend, step: Primitive) -> Runner:
    """Suppression of boxes: each pair compared, then one block that keeps and drops."""
    threshold, _, _, wider = step.params
    (boxes,) = step.inputs
    types = element(boxes.dtype), element(dtypes.compute(boxes.dtype))
    compare, keep = (written_function(backend, "nms", name, *types) for name in ("nms_compare", "nms_keep"))
    count, bits = boxes.shape[0], -(-boxes.shape[0] // NMS_WORD)
    sizes = integers(count) + struct.pack("2d", threshold, wider)

    def run(addresses: list[int]) -> None:
        storage = backend._allocate(8 * bits * (count + 1))
        dropped = storage.address + 8 * bits * count
        backend.driver.fill(dropped, 0, 8 * bits)
        arguments = struct.pack("4Q", addresses[0], storage.address, dropped, addresses[1]) + sizes
        backend.driver.launch(compare, grid_of(count * bits), block_of(count * bits), 0, arguments)
        backend.driver.launch(keep, (1,), (THREADS,), 0, arguments)

    return run


PRIMITIVES = {
    "lut_bprop": prepare_lut,
    "roi_fprop": prepare_roi_fprop,
    "roi_bprop": prepare_roi_bprop,
    "nms": prepare_nms,
}
