# SPDX-License-Identifier: Apache-2.0
"""Histograms of magnitudes, and marks."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend
from tensorbackend.backends import histograms

# Histograms


def histogram(x: np.ndarray, bins: int, offset: int) -> np.ndarray:
    """Counts by the contract's formula, an element at a time."""
    counts = np.zeros((1, bins), np.int32)
    for value in x.ravel().tolist():
        size = abs(value)
        if size == 0 or math.isnan(size):
            place = 0
        else:
            place = bins if math.isinf(size) else round(math.log2(size)) - offset
        counts[0, min(max(place, 0), bins - 1)] += 1
    return counts


@pytest.fixture
def counting(backend: Backend) -> Any:
    """`backend` without histograms, with the default bins again afterwards."""
    backend.dump_hist_data()
    yield backend
    backend.set_hist_buffers(64, -48)
    backend.dump_hist_data()


@pytest.mark.parametrize(("bins", "offset"), [(64, -48), (8, -3), (1, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_histogram_counts_magnitudes(counting, bins, offset, dtype) -> None:
    edges = [0, 1, -1, 2, 3, 0.3, 1e-3, -1e4, 6e4, np.inf, -np.inf, np.nan, 1.5, 0.7]
    host = np.concatenate([edges, np.random.default_rng(0).standard_normal(200) * 8]).astype(dtype)
    counting.set_hist_buffers(bins, offset)
    assert (counting.hist_bins, counting.hist_offset) == (bins, offset)
    counts = counting.array(host, dtype=dtype).hist("x")
    assert counts.dtype == np.int32
    np.testing.assert_array_equal(counts.get(), histogram(host.astype(np.float64), bins, offset))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64])
def test_histogram_counts_integers(counting, dtype) -> None:
    limits = np.iinfo(dtype)
    host = np.array([limits.min, limits.max, 0, 1, 3, 90, 91, min(181, limits.max), limits.min + 1], dtype)
    counting.set_hist_buffers(70, 0)
    np.testing.assert_array_equal(counting.array(host, dtype=dtype).hist("x").get(), histogram(host, 70, 0))


def test_histogram_of_a_view(counting) -> None:
    host = np.random.default_rng(1).standard_normal((30, 20)).astype(np.float32)
    counts = counting.array(host)[::2].T.hist("x")
    np.testing.assert_array_equal(counts.get(), histogram(host[::2], 64, -48))


def test_dump_gives_all_histograms_and_resets(counting) -> None:
    hosts = [np.full((2, 3), v, np.float32) for v in (1, 2, 4)]
    for tag, host in zip(("a", "b", "a"), hosts):
        counting.array(host).hist(tag)
    data, tags = counting.dump_hist_data()
    assert data.dtype == np.int32
    assert tags == {"b": 1, "a": 2}
    np.testing.assert_array_equal(data.get(), np.concatenate([histogram(h, 64, -48) for h in hosts]))
    data, tags = counting.dump_hist_data()
    assert (data.shape, tags) == ((0, 64), {})


def test_new_bins_drop_what_was_counted(counting) -> None:
    counting.ones((2, 2)).hist("a")
    counting.set_hist_buffers(64, -48)
    assert counting.dump_hist_data()[1] == {"a": 0}
    counting.ones((2, 2)).hist("a")
    counting.set_hist_buffers(32, -16)
    data, tags = counting.dump_hist_data()
    assert (data.shape, tags) == ((0, 32), {})


def test_histograms_are_bounded_in_number(counting, monkeypatch) -> None:
    assert histograms.MAX_HISTOGRAMS == {0: 4096, 1: 16384}
    monkeypatch.setitem(histograms.MAX_HISTOGRAMS, counting.device_type, 3)
    t = counting.ones((2, 2))
    for number in range(3):
        t.hist(str(number))
    with pytest.raises(ValueError, match="dump_hist_data"):
        t.hist("one more")
    assert counting.dump_hist_data()[0].shape == (3, 64)
    t.hist("again")


def test_bad_histograms_are_refused(counting) -> None:
    t = counting.ones((2, 2))
    for tag in (["a"], ("a", [])):
        with pytest.raises(TypeError, match="hist: tag"):
            t.hist(tag)
    t.hist("b")
    with pytest.raises(ValueError, match="bins[\\s\\S]*0"):
        counting.set_hist_buffers(0, -48)
    for bad in ((8.5, -48), (8, 0.5), (None, -48)):
        with pytest.raises(TypeError, match=rf"{bad[0]} bins from {bad[1]}"):
            counting.set_hist_buffers(*bad)
        with pytest.raises(TypeError, match=rf"{bad[0]} bins from {bad[1]}"):
            Backend.allocate_backend("cpu", hist_bins=bad[0], hist_offset=bad[1])
    assert counting.dump_hist_data()[1] == {"b": 0}


# Marks


def test_marks_measure_milliseconds(backend) -> None:
    start, end = backend.init_mark(), backend.init_mark()
    before = time.perf_counter()
    backend.record_mark(start)
    time.sleep(0.02)
    backend.record_mark(end)
    backend.synchronize_mark(end)
    elapsed = (time.perf_counter() - before) * 1000
    assert 19 < backend.get_time(start, end) <= elapsed
    assert backend.get_time(end, start) == -backend.get_time(start, end)


def test_marks_must_be_recorded(backend) -> None:
    start, end = backend.init_mark(), backend.init_mark()
    backend.record_mark(start)
    with pytest.raises(ValueError, match="record_mark"):
        backend.get_time(start, end)


def test_events_are_a_pair_of_marks(backend) -> None:
    start, end = backend.get_events()
    assert start is not end
    assert backend.get_events()[0] is start
    for mark in (start, end):
        backend.record_mark(mark)
    assert backend.get_time(start, end) >= 0
