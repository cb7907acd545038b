# SPDX-License-Identifier: Apache-2.0
"""Random statements that repeat natively draw what they draw through Python, one number after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
from tests.native.statements import counts

SHAPE = (5, 37)


def one(be: tb.Backend, x: Any, y: Any, z: Any) -> None:
    y[:] = x * (be.rand() < 0.5)


def several(be: tb.Backend, x: Any, y: Any, z: Any) -> None:
    y[:] = be.randn() * 2 + be.rand() * x - be.randn()


def one_twice(be: tb.Backend, x: Any, y: Any, z: Any) -> None:
    noise = be.rand()
    y[:] = noise - noise * x


def over_two_kernels(be: tb.Backend, x: Any, y: Any, z: Any) -> None:
    noise = be.rand(shape=SHAPE)
    y[:] = be.dot(noise, be.transpose(noise * be.randn())) @ x


def grouped(be: tb.Backend, x: Any, y: Any, z: Any) -> None:
    noise = be.rand()
    with be.fuse():
        y[:] = x + noise
        z[:] = y * be.randn() + noise


def by_methods(be: tb.Backend, x: Any, y: Any, z: Any) -> None:
    be.make_binary_mask(y, 0.3)
    be.fill_normal(z, 1, 2)


def some_with_numbers(be: tb.Backend, x: Any, y: Any, z: Any) -> None:
    noise = be.rand()
    noise.draw = 99
    y[:] = noise - be.rand() * x
    z[:] = noise * x


def into_nothing(be: tb.Backend, x: Any, y: Any, z: Any) -> None:
    y[:0] = be.rand() + 1
    z[:] = be.dot(be.rand(shape=(SHAPE[0], 0)), be.randn(shape=(0, SHAPE[1])))
    with be.fuse():
        y[2:2] = be.randn() * x[2:2]
        z[2:2] = y[2:2] + be.rand()
    y[:] = x * be.rand()


@pytest.mark.parametrize(
    "statements", [one, several, one_twice, over_two_kernels, grouped, by_methods, some_with_numbers, into_nothing]
)
def test_draws_are_those_of_python(be: tb.Backend, plain: tb.Backend, statements: Callable) -> None:
    results, hits = [], counts(be)[2]
    for backend in (be, plain):
        values = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE) / 9
        x, y, z = backend.array(values), backend.zeros(SHAPE), backend.zeros(SHAPE)
        found = []
        for _ in range(6):
            statements(backend, x, y, z)
            found += [y.get().tobytes(), z.get().tobytes(), backend.rng_get_state()[1:]]
        backend.rng_reset()
        statements(backend, x, y, z)
        results.append([*found, y.get().tobytes()])
    assert results[0] == results[1]
    assert len(set(results[0][::3])) > 5  # drawn anew each time
    assert counts(be)[2] > hits


def test_a_node_with_a_number_of_its_own_keeps_it(be: tb.Backend) -> None:
    y = be.zeros(SHAPE)
    for _ in range(3):
        y[:] = be.rand() + 1
    node = be.rand()
    node.draw = 12345
    found = []
    for _ in range(3):
        draws, hits = be.rng_get_state()[2], counts(be)[2]
        y[:] = node + 1
        found.append(y.get().tobytes())
        assert be.rng_get_state()[2] == draws
        y[:] = be.rand() + 1
        assert be.rng_get_state()[2] == draws + 1
        assert counts(be)[2] == hits + 2
    assert len(set(found)) == 1
    assert found[0] != y.get().tobytes()


def test_threads_share_no_draw(be: tb.Backend) -> None:
    targets = [be.zeros((300, 8)) for _ in range(4)]

    def fill(target: Any) -> None:
        for row in range(300):
            target[row : row + 1, :] = be.rand() + 0
            if row % 7 == 0:
                be._next_draw()

    threads = [threading.Thread(target=fill, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = {row.tobytes() for target in targets for row in target.get()}
    assert len(rows) == 4 * 300
    assert be.rng_get_state()[2] == 4 * (300 + 43)
