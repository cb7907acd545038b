# SPDX-License-Identifier: Apache-2.0
"""One backend in several threads, and a backend for each."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    """Run `work(0)` … at once; the first error is raised here."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001  (handed to the test below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_four_threads_use_one_backend(backend) -> None:
    def work(number: int) -> None:
        host = np.random.default_rng(number).standard_normal((37, 20 + number)).astype(np.float32)
        for step in range(25):
            x = backend.array(host)
            out = backend.empty(x.shape)
            out[:] = (x * (number + 1) + step) * 0.5 - backend.max(x, axis=1)
            expected = (host * np.float32(number + 1) + np.float32(step)) * np.float32(0.5) - host.max(1, keepdims=True)
            np.testing.assert_allclose(out.get(), expected, rtol=1e-6, atol=1e-6)
            product = backend.evaluate(backend.dot(x.T, x)).get()
            np.testing.assert_allclose(product, host.T @ host, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(backend.evaluate(x[::2] + step).get(), host[::2] + np.float32(step))

    in_threads(work)


def test_threads_that_write_one_tensor_do_whole_statements(backend) -> None:
    t = backend.zeros((300, 300))

    def work(number: int) -> None:
        for _ in range(20):
            t[:] = t * 0 + number
            values = t.get()
            assert values.min() == values.max()

    in_threads(work)


def test_threads_draw_distinct_numbers(backend) -> None:
    found: list[bytes] = []

    def work(number: int) -> None:
        for _ in range(20):
            found.append(backend.rand(out=backend.empty((10, 10))).get().tobytes())

    in_threads(work)
    assert len(set(found)) == 80


def test_threads_use_backends_of_their_own(make_another) -> None:
    def work(number: int) -> None:
        be = make_another(rng_seed=number)
        t = be.array(np.arange(1000.0).reshape(10, 100))
        for _ in range(20):
            t[:] = be.tanh(t * 0.5) + number
        host = np.arange(1000.0).reshape(10, 100)
        for _ in range(20):
            host = np.tanh(host * 0.5) + number
        np.testing.assert_allclose(t.get(), host, rtol=1e-4, atol=1e-5)
        be.cleanup_backend()

    in_threads(work)
