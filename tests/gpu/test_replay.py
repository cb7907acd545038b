# SPDX-License-Identifier: Apache-2.0
"""Captured programs as graphs: on the emulator, which notes launches, and on a stand-in for CuPy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tensorbackend import BackendError, Tensor
from tensorbackend.backends.gpu import GpuBackend
from tensorbackend.backends.null import NullDriver
from tests.gpu import fakes


@pytest.fixture
def be(source: str) -> Iterator[GpuBackend]:
    """A backend on the emulator; `source` is there when there is a compiler."""
    made = GpuBackend(driver="emulator", rng_seed=0)
    yield made
    made.cleanup_backend()


@pytest.fixture
def graphs(be: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each graph that is made."""
    made: list[int] = []
    graph = be.driver.graph

    def count(run: Callable[[], None]) -> Callable[[], None]:
        made.append(1)
        return graph(run)

    monkeypatch.setattr(be.driver, "graph", count)
    return made


def step_of(be: GpuBackend) -> Callable[[Tensor, float], Tensor]:
    """A step of kernels and products, on weights of its own."""
    w = be.array(np.random.default_rng(0).standard_normal((4, 3)))

    def step(x: Tensor, rate: float) -> Tensor:
        y = be.evaluate(be.tanh(be.dot(w, x)))
        w[:] = w - rate * be.dot(y, x.T)
        return be.evaluate(be.sum(y * y) + be.sum(w))

    return step


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal random numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_program_that_is_called_again_becomes_a_graph(be: GpuBackend, graphs: list[int]) -> None:
    x, other = be.array(numbers(3, 8)), be.array(numbers(3, 8, seed=1))
    calls = [(x, 0.1)] * 4 + [(other, 0.1)] * 3 + [(other, 0.25), (other, 0.25), (x, -0.0), (x, 0.0), (x, 0.0)]
    eager, captured = step_of(be), step_of(be)
    wanted = [eager(*calls[0]).get()]  # capturing is a call too
    program = be.capture(captured, *calls[0])
    found = [program.result.get()]
    for arguments in calls:
        wanted.append(eager(*arguments).get())
        found.append(program(*arguments).get())
    assert [x.tobytes() for x in found] == [x.tobytes() for x in wanted]
    assert len(graphs) == 4


def test_programs_that_draw_or_take_places_make_single_launches(be: GpuBackend, graphs: list[int]) -> None:
    x = be.array(numbers(6, 4))

    def dropout(x: Any) -> Any:
        return be.evaluate(be.where(be.rand() < 0.5, x, 0))

    def rows(x: Any) -> Any:
        return be.evaluate(be.take(x, np.array([0, 2]), 0))

    for function in (dropout, rows):
        program = be.capture(function, x)
        masks = [program(x).get() for _ in range(4)]
    assert graphs == []
    np.testing.assert_array_equal(masks[3], x.get()[[0, 2]])


def test_seeding_anew_is_a_change(be: GpuBackend, graphs: list[int]) -> None:
    x = be.array(numbers(6, 4))
    program = be.capture(lambda x: be.evaluate(be.where(be.rand() < 0.5, x, 0)), x)
    be.rng_reset()
    first = program(x).get()
    be.rng_reset()
    np.testing.assert_array_equal(program(x).get(), first)  # the same draw: a graph
    assert len(graphs) == 1
    assert not np.array_equal(program(x).get(), first)


def test_noted_launches_do_not_run(be: GpuBackend) -> None:
    x = be.ones((4, 4))
    graph = be.driver.graph(lambda: x.__setitem__(slice(None), x * 2))
    assert (x.get() == 1).all()
    graph()
    graph()
    assert (x.get() == 4).all()


def test_user_kernels_of_other_threads_stay_out_of_a_graph(be: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    double = be.elementwise("T x", "T z", "z = x * 2", "doubled")
    x, y, out = be.ones((4, 4)), be.ones((4, 4)), be.zeros((4, 4))
    double(x, out)  # its like is launched at once from now on
    out[:] = 0
    other = threading.Thread(target=lambda: double(x, out))
    monkeypatch.setattr(be.driver, "graph", fakes.disturbed(be.driver.graph, other))
    program = be.capture(lambda y: y.__setitem__(slice(None), y * 2), y)
    program(y)
    program(y)
    other.join()
    assert (out.get() == 2).all()
    out[:] = 0
    program(y)
    assert (out.get() == 0).all()


def test_another_backend_of_the_driver_waits_while_a_graph_is_made(
    be: GpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = GpuBackend(driver=be.driver, rng_seed=0)
    x, y = be.ones((4, 4)), beside.ones((4, 4))

    def statement() -> None:
        y[:] = y * 3

    other = threading.Thread(target=statement)
    monkeypatch.setattr(be.driver, "graph", fakes.disturbed(be.driver.graph, other))
    program = be.capture(lambda x: x.__setitem__(slice(None), x * 2), x)
    for _ in range(3):
        program(x)
    other.join()
    assert (y.get() == 3).all()
    assert (x.get() == 16).all()
    beside.cleanup_backend()


def test_a_driver_without_graphs_says_so() -> None:
    driver = NullDriver()
    driver.has_graphs = False
    with pytest.raises(BackendError, match="has no graphs"):
        super(type(driver).__mro__[1], driver).graph(lambda: None)
