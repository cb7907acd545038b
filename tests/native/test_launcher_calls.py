# SPDX-License-Identifier: Apache-2.0
"""Calls of primitives that come again: native code launches them, and nobody can tell but by the time."""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, BackendError, ShapeError, Tensor
from tests.native.statements import counts

EPS, RHO = 1e-3, 0.9
TIMES = 6
"""Calls of one form, of which the last are native."""


def _draw(be: Backend, *shape: int) -> Tensor:
    return be.array(np.random.RandomState(sum(shape)).standard_normal(shape).astype(np.float32))


def _norm(be: Backend, rows: int = 3, n: int = 50) -> dict[str, Tensor]:
    columns = {k: _draw(be, rows, 1) for k in ("xsum", "xvar", "gmean", "gvar", "gamma", "beta")}
    return {"x": _draw(be, rows, n), **columns, "y": be.zeros((rows, n))}


def _pool(be: Backend) -> tuple[Any, ...]:
    layer = be.pool_layer(np.float32, "max", 4, 2, H=6, W=6, R=2, S=2)
    return layer, _draw(be, *layer.dimI2), be.empty(layer.dimO2), be.empty(layer.dimO2, dtype=np.uint8)


def _conv(be: Backend) -> tuple[Any, ...]:
    layer = be.conv_layer(np.float32, 4, 2, 3, H=6, W=6, R=3, S=3)
    return layer, _draw(be, *layer.dimI2), _draw(be, *layer.dimF2), be.empty(layer.dimO2)


CALLS = {
    "compound_fprop_bn": lambda be: (*_norm(be).values(), EPS, RHO, True),
    "compound_fprop_bn of long rows": lambda be: (*_norm(be, 2, 20_000).values(), EPS, RHO, True, 0.5, True),
    "compound_fprop_ln": lambda be: (_draw(be, 8, 5), be.empty((1, 5)), be.empty((1, 5)), _draw(be, 8, 1),
                                     _draw(be, 8, 1), be.empty((8, 5)), EPS),
    "fprop_pool": _pool,
    "fprop_conv": _conv,
    "compound_dot": lambda be: (_draw(be, 3, 4), _draw(be, 4, 5), _draw(be, 3, 5), 0.5, 2.0, True),
    "compound_bprop_lut": lambda be: (1, be.array(np.array([3, 0, 3]), dtype=np.int32), _draw(be, 4, 3), None,
                                      _draw(be, 5, 4), None, 1.0, 0.5),
    "batched_dot": lambda be: (_draw(be, 2, 3, 4), _draw(be, 2, 4, 5), be.empty((2, 3, 5))),
}  # fmt: skip


def _runs(be: Backend, run: Callable[[], Any]) -> int:
    """How many statements and calls native code launches in a call."""
    before = counts(be)[2]
    run()
    return counts(be)[2] - before


def _bytes(arguments: tuple) -> list[bytes]:
    return [x.get().tobytes() for x in arguments if isinstance(x, Tensor)]


@pytest.mark.parametrize("what", CALLS)
def test_a_repeated_call_does_what_the_method_does(be, what: str) -> None:
    name = what.split()[0]
    ours, checked = CALLS[what](be), CALLS[what](be)
    for n in range(TIMES):
        native = _runs(be, lambda: getattr(be, name)(*ours))
        getattr(Backend, name)(be, *checked)
        assert _bytes(ours) == _bytes(checked), n
    assert native == 1


def test_other_tensors_of_the_same_layout_take_part(be) -> None:
    for n in range(TIMES):
        at = {k: be.array(v.get() * n) for k, v in _norm(be).items()}
        expected = {k: be.copy(v) for k, v in at.items()}
        be.compound_fprop_bn(**at, eps=EPS, rho=RHO, compute_batch_sum=True)
        Backend.compound_fprop_bn(be, **expected, eps=EPS, rho=RHO, compute_batch_sum=True)
        assert _bytes(tuple(at.values())) == _bytes(tuple(expected.values()))


def test_numbers_and_layers_are_part_of_the_form(be) -> None:
    a, b, c = (_draw(be, 4, 4) for _ in range(3))
    layers = [be.pool_layer(np.float32, kind, 4, 2, H=6, W=6, R=2, S=2) for kind in ("avg", "l2")]
    images, pooled = _draw(be, *layers[0].dimI2), be.empty(layers[0].dimO2)
    product, before = a.get() @ b.get(), None
    for _ in range(TIMES):
        for alpha in (1, 1.0, True, -2.0, 0.0, -0.0):
            be.compound_dot(a, b, c, alpha)
            np.testing.assert_allclose(c.get(), alpha * product, rtol=1e-5)
        found = []
        for layer in layers:
            be.fprop_pool(layer, images, pooled)
            found.append(pooled.get())
        assert before is None or np.array_equal(found, before)
        before = found
    assert not np.array_equal(*before)


def test_views_that_are_the_same_are_part_of_the_form(be) -> None:
    for n in range(TIMES):
        at = _norm(be)
        expected = {k: be.copy(v) for k, v in at.items()}
        Backend.compound_fprop_bn(be, **expected, eps=EPS, rho=RHO, compute_batch_sum=True)
        if n % 2:
            at["y"] = at["x"]
        be.compound_fprop_bn(**at, eps=EPS, rho=RHO, compute_batch_sum=True)
        np.testing.assert_array_equal(at["y"].get(), expected["y"].get())


def test_what_the_checks_refuse_is_refused_for_ever(be) -> None:
    at = _norm(be)
    frozen = be.array(np.zeros((3, 50), np.float32))
    frozen.storage.writable = False
    wide = be.zeros((3, 60))
    for _ in range(TIMES):
        be.compound_fprop_bn(**at, eps=EPS, rho=RHO, compute_batch_sum=True)
        with pytest.raises(ValueError, match="read-only"):
            be.compound_fprop_bn(**at | {"y": frozen}, eps=EPS, rho=RHO, compute_batch_sum=True)
        with pytest.raises(ShapeError):
            be.compound_fprop_bn(**at | {"gamma": at["x"]}, eps=EPS, rho=RHO, compute_batch_sum=True)
        with pytest.raises(ValueError, match="overlap"):
            parts = {"x": wide[:, :50], "y": wide[:, 10:]}
            be.compound_fprop_bn(**at | parts, eps=EPS, rho=RHO, compute_batch_sum=True)
        with pytest.raises(TypeError):
            be.compound_fprop_bn(**at, eps=EPS, rho=RHO)


def test_words_that_the_table_has_not_are_refused_before_it_is_written(be) -> None:
    ids, error, table = be.array(np.array([3, 0, 3]), dtype=np.int32), _draw(be, 4, 3), _draw(be, 5, 4)
    for _ in range(TIMES):
        ids[:] = np.array([3, 0, 3])
        native = _runs(be, lambda: be.compound_bprop_lut(1, ids, error, None, table, None, 1.0, 0.5))
        before = table.get()
        ids[:] = np.array([3, 9, 3])
        with pytest.raises(IndexError, match="word 9 at place 1"):
            be.compound_bprop_lut(1, ids, error, None, table, None, 1.0, 0.5)
        np.testing.assert_array_equal(table.get(), before)
    assert native == 1


def test_outputs_that_round_go_through_python(be) -> None:
    at = _norm(be)
    at["y"].rounding = 3
    for _ in range(TIMES):
        be.compound_fprop_bn(**at, eps=EPS, rho=RHO, compute_batch_sum=True)
        assert not np.any(at["y"].get().view(np.uint32) & ((1 << 20) - 1))


def test_results_and_times_are_given(be) -> None:
    inputs, at = _draw(be, 3, 4), _norm(be)
    for _ in range(TIMES):
        assert be.update_fc_bias(inputs, be.empty((3, 1))) is not None
        milliseconds, rate = be.compound_fprop_bn(**at, eps=EPS, rho=RHO, compute_batch_sum=True, repeat=3)
        assert milliseconds > 0 and rate > 0


@pytest.mark.parametrize("what", ["fprop_pool", "compound_dot", "batched_dot"])
def test_every_call_that_is_timed_is_recorded(be, what: str) -> None:
    """Also of methods that return no time, which the recorder of launches would take for more launches."""
    operands = CALLS[what](be)
    for count in range(1, TIMES + 1):
        getattr(be, what)(*operands, repeat=2)
        assert len(be.bench_records) == count


def test_what_comes_back_is_the_callers_own(be) -> None:
    a, b, c = _draw(be, 3, 4), _draw(be, 4, 5), be.empty((3, 5))
    batch, sums = be.empty((2, 3, 5)), be.empty((3, 1))
    for _ in range(TIMES):
        assert be.compound_dot(a, b, c) is c
        assert be.batched_dot(_draw(be, 2, 3, 4), b, batch) is batch
        assert be.update_fc_bias(a, sums) is sums
        for tree in (be.fprop_relu(None, a, 0), be.bprop_relu(None, a, None, None, 0), be.fprop_softmax(a, 0)):
            assert any(x is a for x in tree.traverse([]) if isinstance(x, Tensor))


def test_inside_fuse_and_capture_calls_are_statements(be) -> None:
    a, b, c, sums = _draw(be, 3, 4), _draw(be, 4, 5), be.empty((3, 5)), be.empty((3, 1))

    def step(a: Tensor, b: Tensor, c: Tensor) -> None:
        be.compound_dot(a, b, c)
        sums[:] = be.sum(c, 1)

    for _ in range(TIMES):
        step(a, b, c)
    program = be.capture(step, a, b, c)
    for scale in (2, 3):
        a[:] = a * scale
        for run in (step, program):
            c[:] = 0
            with be.fuse():
                run(a, b, c)
            np.testing.assert_allclose(c.get(), a.get() @ b.get(), rtol=1e-5)
            np.testing.assert_allclose(sums.get()[:, 0], c.get().sum(1), rtol=1e-4, atol=1e-5)


def test_what_watches_sees_all_calls(be) -> None:
    arguments = CALLS["compound_dot"](be)
    for _ in range(TIMES):
        be.compound_dot(*arguments)
    be.bench = True
    for _ in range(TIMES):
        be.compound_dot(*arguments)
    be.bench = False
    assert len(be.bench_records) >= TIMES
    for _ in range(TIMES):
        native = _runs(be, lambda: be.compound_dot(*arguments))
    assert native == 1


def test_learning_one_call_keeps_the_others(be) -> None:
    names = ("compound_dot", "fprop_pool", "batched_dot")
    each = [functools.partial(getattr(be, name), *CALLS[name](be)) for name in names]
    for _ in range(TIMES):
        native = [_runs(be, call) for call in each]
    assert native == [1, 1, 1]


def test_more_forms_than_there_is_room_for(be) -> None:
    a, b, c = _draw(be, 1, 1), _draw(be, 1, 1), be.empty((1, 1))
    product = a.get() * b.get()
    for n in range((1 << 13) + 100):
        be.compound_dot(a, b, c, float(n))
    np.testing.assert_allclose(c.get(), n * product, rtol=1e-6)


def test_threads_call_at_once(be) -> None:
    errors = []

    def work(seed: int) -> None:
        at = _norm(be, 2, 9000 + seed)
        expected = None
        for _ in range(10):
            be.compound_fprop_bn(**at, eps=EPS, rho=RHO, compute_batch_sum=True)
            expected = at["y"].get() if expected is None else expected
            if not np.array_equal(at["y"].get(), expected):
                errors.append(seed)

    threads = [threading.Thread(target=work, args=(n % 2,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_another_thread_may_capture_while_a_call_is_learnt(be, monkeypatch: pytest.MonkeyPatch) -> None:
    """What notes the launches of a call is a recorder, as that of a capture is, but nobody is to know."""
    learning, dot = threading.Event(), be.dot

    def slow(*arguments: Any) -> Any:
        if be._recorder is not None:
            learning.set()
            time.sleep(0.05)
        return dot(*arguments)

    monkeypatch.setattr(be, "dot", slow)
    thread = threading.Thread(target=lambda: [be.compound_dot(*arguments) for _ in range(TIMES)])
    arguments, x = CALLS["compound_dot"](be), _draw(be, 2, 3)
    thread.start()
    assert learning.wait(10)
    program = be.capture(lambda x: be.evaluate(x + 1), x)
    thread.join()
    np.testing.assert_array_equal(program(x).get(), x.get() + 1)


def test_what_a_handler_does_while_a_call_is_learnt_is_no_part_of_it(be, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, other, dot, python = CALLS["compound_dot"](be), be.ones((2, 3)), be.dot, []

    def handler(number: int, frame: Any) -> None:
        other[:] = other * 2

    def signalled(*arguments: Any) -> Any:
        python.append(arguments)
        if be._recorder is not None:
            signal.raise_signal(signal.SIGUSR1)
        return dot(*arguments)

    monkeypatch.setattr(be, "dot", signalled)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(TIMES):
            be.compound_dot(*arguments)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(python) < TIMES, "it was not learnt"
    assert (other.get() == 2).all()


def test_a_closed_backend_refuses(be) -> None:
    arguments = CALLS["compound_dot"](be)
    for _ in range(TIMES):
        be.compound_dot(*arguments)
    be.cleanup_backend()
    with pytest.raises(BackendError, match="closed"):
        be.compound_dot(*arguments)
