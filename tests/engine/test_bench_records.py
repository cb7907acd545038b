# SPDX-License-Identifier: Apache-2.0
"""`bench=True`: each kernel and primitive is timed, logged and recorded; `repeat=` times without changing results."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, Tensor, testing
from tensorbackend.backends.watch import BenchRecord


@pytest.fixture
def bench(backend: Backend) -> Iterator[Backend]:
    """The backend while it times its kernels."""
    backend.bench_records.clear()
    backend.bench = True
    yield backend
    backend.bench = False
    backend.bench_records.clear()


@pytest.fixture
def x(backend: Backend) -> Tensor:
    return backend.array(np.random.RandomState(1).randn(64, 128))


def test_each_kernel_and_primitive_is_recorded(bench: Backend, x: Tensor, caplog: Any) -> None:
    y = bench.empty((64, 64))
    with caplog.at_level(logging.WARNING, "tensorbackend"):
        for _ in range(3):  # at first Python decides, then its answers would be remembered
            y[:] = bench.dot(bench.exp(x), x.T)
    names = [r.name for r in bench.bench_records]
    assert len(names) == 6
    assert names[0].startswith("ew_exp")
    assert names[1].startswith("dot")
    kernel, product = list(bench.bench_records)[:2]
    assert kernel.shape == (64, 128)
    assert kernel.nbytes == 2 * x.nbytes
    assert product.flops >= 2 * 64 * 64 * 128
    for record in bench.bench_records:
        assert record.seconds > 0
        assert record.gflops == pytest.approx(record.flops / record.seconds / 1e9)
        assert record.gbs == pytest.approx(record.nbytes / record.seconds / 1e9)
    assert len(caplog.records) == 6
    assert re.search(r"ew_exp\S*  64x128  \S+ us  \S+ GFLOP/s  \S+ GB/s", caplog.text)


def test_the_share_of_the_roof_is_told_where_it_is_known(bench: Backend, x: Tensor) -> None:
    x[:] = x + 1
    (record,) = bench.bench_records
    if bench.backend_name == "cpu" and testing.compiles(bench):
        assert 0 < record.share < 2
        assert "of the roof" in str(record)
    if bench.backend_name == "gpu":
        assert record.share is None
        assert "roof" not in str(record)


def test_values_and_draws_are_those_without(backend: Backend, x: Tensor) -> None:
    def step() -> list:
        y = backend.evaluate(backend.softmax(x, axis=1) * backend.dropout(0.5))
        with backend.fuse():
            y[:] = y * 2
            y[:] = y + x
        return [y.get(), backend.sum(y).get(), backend._draws]

    backend.rng_reset()
    plain = step()
    backend.rng_reset()
    backend.bench = True
    timed = step()
    backend.bench = False
    for a, b in zip(plain, timed):
        np.testing.assert_array_equal(a, b)


def test_it_can_be_turned_on_and_off(backend: Backend, x: Tensor) -> None:
    backend.bench_records.clear()
    for wanted in (False, True, False):
        backend.bench = wanted
        assert backend.bench is wanted
        for _ in range(3):
            x[:] = x * 0.5
        assert len(backend.bench_records) == (3 if wanted else 0)
        backend.bench_records.clear()
    made = testing.make_backend("interpreter", bench=True)
    assert made.bench
    made.zeros((2, 2))
    assert len(made.bench_records) == 1
    made.cleanup_backend()


def test_a_programs_kernels_are_recorded(bench: Backend, x: Tensor) -> None:
    program = bench.capture(lambda x: bench.evaluate(bench.tanh(bench.evaluate(x + 1)) * 2), x)
    first = [r.name for r in bench.bench_records]
    bench.bench_records.clear()
    expected = program(x).get()
    assert [r.name for r in bench.bench_records] == first
    bench.bench = False
    np.testing.assert_array_equal(program(x).get(), expected)


def test_repeat_times_a_product_and_gives_its_result(backend: Backend, caplog: Any) -> None:
    a, b = (backend.array(np.random.RandomState(n).randn(16, 16)) for n in range(2))
    once, often = backend.ones((16, 16)), backend.ones((16, 16))
    sums = backend.empty((16, 1))
    backend.bench_records.clear()
    backend.compound_dot(a, b, once, alpha=0.5, beta=0.25, relu=True)
    assert not backend.bench_records
    with caplog.at_level(logging.WARNING, "tensorbackend"):
        assert backend.compound_dot(a, b, often, alpha=0.5, beta=0.25, relu=True, bsum=sums, repeat=20) is often
    np.testing.assert_array_equal(often.get(), once.get())
    np.testing.assert_allclose(sums.get(), once.get().sum(axis=1, keepdims=True), rtol=1e-5)
    (record,) = backend.bench_records
    assert (record.name, record.runs, record.flops) == ("compound_dot", 20, 2 * 16**3)
    assert "mean of 20 runs" in caplog.text
    backend.bench_records.clear()


def test_repeat_of_batches_and_transposes(backend: Backend) -> None:
    a, b = backend.ones((3, 4, 5)), backend.ones((3, 5, 6))
    summed = backend.ones((4, 6))
    backend.bench_records.clear()
    backend.batched_dot(a, b, summed, beta=1.0, repeat=5)
    assert (summed.get() == 16).all()
    turned = backend.copy_transpose(summed, backend.empty((6, 4)), repeat=5)
    assert (turned.get() == 16).all()
    assert [(r.name, r.flops) for r in backend.bench_records] == [
        ("batched_dot", 2 * 3 * 4 * 5 * 6),
        ("copy_transpose", 0),
    ]
    backend.bench_records.clear()


def test_records_are_bounded(backend: Backend) -> None:
    backend.bench_records.extend([BenchRecord("x", (), 1.0, 1, 1)] * (1 << 17))
    assert len(backend.bench_records) == 1 << 16
    backend.bench_records.clear()
