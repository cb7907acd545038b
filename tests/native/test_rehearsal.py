# SPDX-License-Identifier: Apache-2.0
"""Rehearsals: values are NumPy's, nothing is compiled before it is asked for, and nothing after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, testing
from tensorbackend.backends import compiler
from tensorbackend.testing.rehearsal import Rehearsal


@pytest.fixture(params=["jit", "emulator"])
def be(request: pytest.FixtureRequest, cache: Path) -> Iterator[Backend]:
    """A backend of its own, for which nothing has been compiled."""
    made = testing.make_backend(request.param, rng_seed=0)
    yield made
    made.cleanup_backend()


@pytest.fixture
def runs(be: Backend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sources each run of the compiler took, from now on."""
    sizes: list[int] = []
    run = compiler._compile_group

    def count(cache: Any, call: Any, group: dict[str, str]) -> Any:
        sizes.append(len(group))
        return run(cache, call, group)

    monkeypatch.setattr(compiler, "_compile_group", count)
    return sizes


@pytest.mark.xdist_group("kept together")
def test_tests_of_a_group_are_for_one_worker(request: pytest.FixtureRequest) -> None:
    """Rehearsed by every worker, a group takes twice the time: pytest and pytest-xdist must understand each other."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("for workers of pytest-xdist with --dist loadgroup")
    assert request.node.nodeid.endswith("@kept together")


def program(be: Backend) -> list[np.ndarray]:
    """Maps with numbers and a view as the target, reductions with temporaries, random numbers."""
    x = be.array(np.arange(12.0).reshape(3, 4))
    out = be.zeros((3, 8))
    out[:, ::2] = be.exp(-x) * 0.3 + 1
    total = be.evaluate(be.sum(x - be.mean(x, axis=1), axis=0) / 7)
    draws = be.evaluate(be.rand() + 0 * x)
    return [t.get() for t in (out, total, draws)]


def test_values_are_numpys_and_nothing_is_compiled(be: Backend, runs: list[int]) -> None:
    expected = program(testing.make_backend("interpreter", rng_seed=0))
    with Rehearsal().noting():
        for value, wanted in zip(program(be), expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
    assert runs == []


def test_what_was_noted_is_compiled_together(be: Backend, runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_lanes", lambda: 1)
    rehearsal = Rehearsal()
    with rehearsal.noting():
        rehearsed = program(be)
    rehearsal.compile()
    sources = sum(runs)  # of the emulator one for all kernels
    assert 0 < len(runs) <= (4 if sources > 4 else 1)  # one compiler, with four sets of options
    runs.clear()
    be.rng_reset()
    for value, wanted in zip(program(be), rehearsed, strict=True):
        testing.assert_allclose(value, wanted, atol=1e-6, rtol=1e-6)
    assert runs == []


def test_what_was_noted_goes_on_through_numpy_when_it_is_compiled_meanwhile(be: Backend, runs: list[int]) -> None:
    """Who compares the bits of two runs compares runs of one kind."""
    x, rehearsal = be.array(np.arange(12.0).reshape(3, 4)), Rehearsal()
    again = be.empty((3, 4))
    with rehearsal.noting():
        first = be.evaluate(be.log_softmax(x, axis=0))
        (plan,) = rehearsal._plans[be].values()
        plan.cache[True] = plan.cache["gpu"] = None, "compiled meanwhile"
        be._run_plan(plan, [again], [x])
    assert again.get().tobytes() == first.get().tobytes()
    assert runs == []
