# SPDX-License-Identifier: Apache-2.0
"""The compiled steps of recurrent layers against the cells' NumPy meaning, and against products and fused kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

import tensorbackend as tb
from tensorbackend.backends import cpu_recurrent, native
from tensorbackend.backends.cpu_recurrent import Facts
from tensorbackend.conformance.test_gated import Case
from tensorbackend.primitives import cells
from tensorbackend.primitives.cells import Cell, Run
from tensorbackend.primitives.matrix_unit import EDGE
from tensorbackend.settings import using
from tests.thinned import thinned

SIZES = [(1, 1), (5, 3), (64, 1), (150, 1), (200, 2), (16, 8), (600, 5), (37, 8), (13, 9), (33, 17), (300, 16), (7, 31),
         (24, 48), (19, 64), (20, 65), (70, 80), (9, 100), (17, 128), (600, 128), (700, 20), (260, 12), (130, 33),
         (128, 17)]  # fmt: skip


@pytest.fixture(scope="module")
def be(absent) -> Iterator[tb.Backend]:
    made = tb.Backend.allocate_backend("cpu", rng_seed=0)
    if not made.jit:
        absent("cpu", "no C compiler works here")
    yield made
    made.cleanup_backend()


def operands(cell: Cell, run: Run, dtype: str) -> dict[str, np.ndarray]:
    """Random matrices for all parts, wider than what is used, and the weights."""
    draw = np.random.default_rng([run.nout, run.N])
    found = {"weights": draw.standard_normal((cell.products * run.nout, cell.state.state * run.nout)) / run.nout**0.5}
    for p in cell.parts:
        columns = {"step": run.N * run.steps, "before": run.N * run.steps, "own": run.N, "fixed": 1}[p.kind]
        found[p.name] = draw.uniform(-0.9, 0.9, (p.groups * run.nout, columns))
        if p.name == "state" and run.from_zero:
            found[p.name][:] = 0
    found["last"] = draw.uniform(-0.9, 0.9, (run.nout, run.N))
    if cell.has_input:
        found["W_in"] = draw.standard_normal((cell.products * run.nout, run.nin)) / max(run.nin, 1) ** 0.5
        found["x"] = draw.uniform(-0.9, 0.9, (run.nin, run.N * run.steps))
    return {name: x.astype(dtype) for name, x in found.items()}


def ran(be: tb.Backend, cell: Cell, run: Run, given: dict[str, np.ndarray], apart: bool = False) -> list[np.ndarray]:
    """What the compiled steps write; `apart`: to and from matrices that lie transposed in memory."""
    tensors = {name: be.array(x.T, dtype=x.dtype).T if apart else be.array(x, dtype=x.dtype)
               for name, x in given.items()}  # fmt: skip
    pairs = {p.name: (tensors[p.name], tensors["last"]) for p in cell.parts if p.kind == "before"}
    outputs, inputs = cell.operands(tensors | pairs)
    be._call(cell.op, (run,), outputs, inputs)
    return [x.get() for x in outputs]


@pytest.mark.parametrize(("cell", "size"), thinned(3, cells.CELLS, SIZES), ids=lambda x: getattr(x, "name", str(x)))
def test_steps_are_their_meaning(be: tb.Backend, cell: Cell, size: tuple[int, int]) -> None:
    for dtype, reverse, from_zero in (("float32", False, False), ("float64", True, True)):
        nin = (size[0] * 3 // 2 if reverse else 5) if cell.has_input else 0
        run = Run(*size, 4, reverse, from_zero or cell.state.kind != "own", nin)
        given = operands(cell, run, dtype)
        pairs = {p.name: (given[p.name], given["last"]) for p in cell.parts if p.kind == "before"}
        expected = cell.op.numpy(*cell.operands(given | pairs)[1], run)
        tolerance = {"float32": 2e-5, "float64": 1e-12}[dtype]
        for found, wanted in zip(ran(be, cell, run, given), expected):
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", [(20, 3), (20, 18)], ids=str)
@pytest.mark.parametrize("cell", cells.CELLS, ids=lambda cell: cell.name)
def test_samples_may_lie_apart(be: tb.Backend, cell: Cell, size: tuple[int, int]) -> None:
    run = Run(*size, 4, True, cell.state.kind != "own", 7 if cell.has_input else 0)
    given = operands(cell, run, "float32")
    for beside, apart in zip(ran(be, cell, run, given), ran(be, cell, run, given, apart=True)):
        np.testing.assert_array_equal(beside, apart)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(("reverse", "used", "initial"), [(False, None, True), (True, 4, False)])
def test_one_launch_gives_what_single_steps_give(be: tb.Backend, kind: str, reverse: bool, used: int | None,
                                                 initial: bool, monkeypatch) -> None:  # fmt: skip
    monkeypatch.setattr(cpu_recurrent, "FEWEST_COLUMNS", 0)
    case = Case(kind, 7, 40, 18, 5, used, reverse, initial=initial)
    t = case.forward(be)
    found = [t["h"].get(), *case.back(be, t).values()]
    monkeypatch.setattr(be, "_runs_steps", lambda *_: False)
    t = case.forward(be)
    for one, single in zip(found, [t["h"].get(), *case.back(be, t).values()]):
        np.testing.assert_allclose(one, single, rtol=1e-10, atol=1e-12)


def test_an_input_is_multiplied_step_by_step_where_weights_come_in_time(monkeypatch) -> None:
    def takes(nout: int, N: int, nin: int, steps: int = 50, compiled: bool = True, **unit: bool) -> bool:
        monkeypatch.setattr(cpu_recurrent, "facts", lambda dtype: Facts(16, (12, 12, 8, 6), 8, 1 << 15, **unit))
        cell, run = cells.with_input(cells.LSTM), Run(nout, N, steps, False, False, nin)
        return cpu_recurrent.runs_steps(cell, run, np.dtype("float32"), compiled)

    assert takes(512, 64, 512) and takes(1024, 32, 1024) and takes(256, 16, 256)
    assert not (takes(1536, 16, 1536) or takes(512, 8, 512) or takes(512, 64, 0) or takes(256, 64, 256, 7))
    assert not takes(512, 64, 512, matrix_unit=True) and not takes(512, 64, 512, compiled=False)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_layers_without_units_run(be: tb.Backend, kind: str) -> None:
    case = Case(kind, 7, 0, 18, 5)
    t = case.forward(be)
    assert t["h"].shape == (0, 18 * 5)
    assert not case.back(be, t)["dx"].any()


def test_no_bias_is_a_bias_of_zeros(be: tb.Backend, monkeypatch) -> None:
    monkeypatch.setattr(cpu_recurrent, "FEWEST_COLUMNS", 0)
    draw = np.random.default_rng(4)
    W_in, W_recur, x = (be.array(draw.uniform(-1, 1, shape)) for shape in ((80, 6), (80, 20), (6, 18 * 5)))
    found = []
    for bias in (None, be.zeros((80, 1))):
        h = be.empty((20, 18 * 5))
        be.compound_lstm_unroll_fprop(W_in, W_recur, bias, x, h, None, None, 5)
        found.append(h.get().tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("size", [(160, 16), (260, 12), (150, 40)], ids=str)
@pytest.mark.parametrize("cell", cells.CELLS, ids=lambda cell: cell.name)
def test_bits_do_not_depend_on_threads(be: tb.Backend, cell: Cell, size: tuple[int, int]) -> None:
    run = Run(*size, 6, False, cell.state.kind != "own", 70 if cell.has_input else 0)
    given, runtime = operands(cell, run, "float32"), native.runtime()
    before, found = runtime.threads, []
    try:
        for threads in (1, 2, 3):
            runtime.set_threads(threads)
            found.append([x.tobytes() for x in ran(be, cell, run, given)])
    finally:
        runtime.set_threads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("N", [13, 40])
@pytest.mark.parametrize("cell", cells.CELLS, ids=lambda cell: cell.name)
def test_infinities_and_numbers_near_them_are_those_of_multiply_adds(be: tb.Backend, cell: Cell, N: int) -> None:
    run = Run(256, N, 4, False, cell.state.kind != "own", 30 if cell.has_input else 0)
    given = operands(cell, run, "float32")
    weights = given["weights"]
    weights[3, 5], weights[-1, 0], weights[40, 200], weights[41] = np.inf, -np.inf, 3.4e38, np.nan
    found = []
    for on in (True, False):
        be.structures.clear()
        with using(matrix_unit=on):
            found_facts = cpu_recurrent.facts(np.dtype("float32"))
            unit = found_facts.matrix_unit and not cell.has_input
            assert bool(cpu_recurrent.blocks(cell, run, found_facts).planes) == unit <= on
            found.append(ran(be, cell, run, given))
    be.structures.clear()
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("facts", [Facts(16, (12, 12, 8, 6), 8, 1 << 15), Facts(16, (12, 12, 8, 6), 8, 1 << 16, True),
                                   Facts(8, (12, 6, 0, 0), 8, 1 << 15),
                                   Facts(2, (12, 6, 0, 0), 8, 1 << 15)])  # fmt: skip
def test_blocks_fit_tiles_and_room(facts: Facts) -> None:
    for cell, nout, N in itertools.product(cells.CELLS, (1, 8, 100, 1024, 3000), (1, 3, 8, 9, 16, 33, 64, 100, 128)):
        buffers = cell.products + sum(p.groups for p in cell.parts if p.kind not in cpu_recurrent.KEPT)
        by = cpu_recurrent.blocks(cell, Run(nout, N, 4, False, False), facts)
        assert buffers * by.units * by.width <= facts.room
        if by.by_units:
            assert by.units % facts.lanes == 0 and by.width == N <= facts.few
            assert cell.products * by.units % (by.panel * facts.lanes) == 0 and by.panel * N <= 2 * facts.rows[1]
        else:
            assert by.rows == (by.panel % 2 + 1) * EDGE if by.planes else by.rows == facts.rows[by.panel - 1]
            assert by.units % by.rows == 0 and bool(by.planes) <= facts.matrix_unit
            assert by.width >= N and by.width % (by.panel * facts.lanes) == 0
