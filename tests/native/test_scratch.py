# SPDX-License-Identifier: Apache-2.0
"""What kernels have in scratch stays in the words that they ask for, which have anything in them before."""

from __future__ import annotations

import numpy as np
import pytest

from tensorbackend import Backend, testing
from tensorbackend.backends import cpu_regions, jit
from tensorbackend.graph import composite

AROUND, ANYTHING = 4096, 0xA5


def guard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give every kernel its scratch between bytes that are looked at afterwards; returns the names of those that ran,
    as they come."""
    ran = []

    def guarded(run):
        def run_guarded(prepared, addresses, numbers) -> None:
            if not prepared.scratch_words:
                return run(prepared, addresses, numbers)
            size = prepared.scratch_words * 8
            memory = np.full(size + 3 * AROUND, ANYTHING, np.uint8)
            begin = AROUND + -memory.ctypes.data % AROUND
            run(prepared, (*addresses[:-1], memory.ctypes.data + begin), numbers)
            memory[begin : begin + size] = ANYTHING
            assert (memory == ANYTHING).all(), prepared.name
            ran.append(prepared.name)

        return run_guarded

    for made in (jit.Prepared, cpu_regions._Checked):
        monkeypatch.setattr(made, "run", guarded(made.run))
    return ran


def regions(be: Backend, dtype: str, count: int, bins: int) -> None:
    images, maps, height, width = 2, 3, 8, 9
    rois = be.array([[n % 2, 0, 0, 8, 7] for n in range(count)], dtype=dtype)
    image = be.ones((maps * height * width, images), dtype=dtype)
    pooled = be.empty((maps * bins * bins, count), dtype=dtype)
    argmax = be.empty(pooled.shape, dtype=np.int32)
    be.roipooling_fprop(image, rois, pooled, argmax, count, maps, height, width, bins, bins, 1.0)
    delta = be.empty(image.shape, dtype=dtype)
    be.roipooling_bprop(pooled, rois, delta, argmax, count, maps, height, width, bins, bins, 1.0)


def places(be: Backend, dtype: str, count: int, entries: int, columns: int) -> None:
    """Every entry, or as many as there are places."""
    ids = np.arange(count) % entries
    x, at = be.ones((count, columns), dtype=dtype), be.array(ids, dtype=np.int32, min_dims=0)
    table = be.evaluate(composite.put(x, at, (entries, columns), 0))
    be.evaluate(be.take(table, at, 0))
    words = be.empty((entries, columns), dtype=dtype)
    be.compound_bprop_lut(1, be.array(ids[None], dtype=np.int32), be.ones((columns, count), dtype=dtype), None, words,
                          None)  # fmt: skip


def boxes(be: Backend, dtype: str, count: int) -> None:
    corners = np.arange(count)[:, None] * [1, 1, 1, 1, 0] + [0, 0, 2, 2, 1]
    be.nms(be.array(corners, dtype=dtype), 0.5)


def sums(be: Backend, dtype: str, rows: int, columns: int, axis: int) -> None:
    x = be.ones((rows, columns), dtype=dtype)
    be.evaluate(be.sum(x * 2, axis=axis))
    be.evaluate(be.argmax(x, axis=axis))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    ("made", "sizes", "names"),
    [
        (regions, (300, 2), {"roi_fprop", "roi_bprop"}),
        (regions, (1, 9), {"roi_fprop", "roi_bprop"}),
        (places, (1, 1, 5), {"put", "take", "lut_bprop"}),
        (places, (700, 40, 13), {"put", "take", "lut_bprop"}),
        (places, (40, 3000, 150), {"put", "take", "lut_bprop"}),
        (boxes, (1,), {"nms"}),
        (boxes, (100,), {"nms"}),
        (boxes, (129,), {"nms"}),
        (sums, (3, 100_001, 1), set()),
        (sums, (100_001, 3, 0), set()),
        (sums, (2000, 130, 0), set()),
    ],
)
def test_it_stays_in_its_words(cc, monkeypatch, dtype: str, made, sizes: tuple, names: set[str]) -> None:
    ran = guard(monkeypatch)
    for threads in (1, 2):
        be = testing.make_backend("cpu", threads=threads)
        made(be, dtype, *sizes)
        be.cleanup_backend()
    assert ran and names <= set(ran)
