# SPDX-License-Identifier: Apache-2.0
"""The gradient of a lookup table against its definition: duplicates, padding, accumulation, views, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import DTypeError, ShapeError
from tensorbackend.conformance import references as ref
from tensorbackend.primitives import lookup

pytestmark = pytest.mark.rehearsed

shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # a backend serves all examples
WORDS = np.array([[4, 0, 4, 2, 4, 2]], np.int32)


def gradient(ids: np.ndarray, error: np.ndarray, words: int, pad: int | None) -> np.ndarray:
    """Row w: the sum of the errors of look-ups of w."""
    table = np.zeros((words, error.shape[0]))
    for j, word in enumerate(ids.ravel()):
        if word != pad:
            table[word] += error[:, j]
    return table


@shared
@given(
    sizes=st.tuples(st.integers(0, 40), st.sampled_from([1, 2, 7, 40]), st.sampled_from([1, 3, 16, 33, 300])),
    dtype=st.sampled_from(["float32", *ref.TYPES]),
    kind=st.sampled_from(["int32", "int32", "int64", "uint8", "uint64"]),
    pad=st.sampled_from([None, None, 0, 3]),
    numbers=st.sampled_from([(1.0, 0.0), (0.5, -1.0), (-2.0, 1.0)]),
    seed=st.integers(0, 9),
)
def test_gradient_is_its_definition(backend: Any, sizes: tuple, dtype: str, kind: str, pad: int | None,
                                    numbers: tuple[float, float], seed: int) -> None:  # fmt: skip
    (count, words, length), (alpha, beta) = sizes, numbers
    ids = np.random.default_rng(seed).integers(0, words, (1, count)).astype(kind)
    e, old = ref.draw((length, count), dtype, seed), ref.draw((words, length), dtype, seed + 1)
    error, dW = backend.array(e, dtype=e.dtype), backend.array(old, dtype=old.dtype)
    scratch = backend.empty((count, length), dtype=dtype) if seed % 2 else None
    backend.compound_bprop_lut(1, backend.array(ids, dtype=kind), error, scratch, dW, pad, alpha, beta)
    expected = alpha * gradient(ids, ref.wide(e), words, pad) + beta * ref.wide(old)
    precision = 4 * max(ref.EPSILON[dtype], ref.EPSILON["float32"] if dtype != "float64" else 0)
    np.testing.assert_allclose(ref.wide(dW.get()), expected, rtol=precision, atol=precision * (4 + count))


def test_it_is_the_adjoint_of_looking_up(backend: Any) -> None:
    ids = backend.array(WORDS, dtype=np.int32)
    table, e = ref.draw((5, 3)), ref.draw((3, 6), seed=1)
    W, dW = backend.array(table, dtype=np.float64), backend.empty((5, 3), dtype=np.float64)
    backend.compound_bprop_lut(3, ids, backend.array(e, dtype=np.float64), None, dW, None)
    found = backend.evaluate(backend.take(W, ids, axis=0)).get()
    assert (found.T * e).sum() == pytest.approx((dW.get() * table).sum(), rel=1e-12)


def test_many_of_one_word_lose_nothing(backend: Any) -> None:
    count = 1 << 17
    ids, dW = backend.zeros((1, count), dtype=np.int32), backend.empty((2, 1))
    backend.compound_bprop_lut(1, ids, backend.full((1, count), 0.1), None, dW, None)
    np.testing.assert_allclose(dW.get()[:, 0], [np.float64(np.float32(0.1)) * count, 0], rtol=1e-7)


def test_results_repeat(backend: Any) -> None:
    rng = np.random.default_rng(0)
    ids = backend.array(rng.integers(0, 9, (1, 5000)), dtype=np.int32)
    error = backend.array(rng.standard_normal((20, 5000)) * 10 ** rng.uniform(-4, 4, 5000))
    found = [backend.empty((9, 20)) for _ in range(3)]
    for dW in found:
        backend.compound_bprop_lut(1, ids, error, None, dW, None)
    assert len({dW.get().tobytes() for dW in found}) == 1


def test_old_gradients_are_not_read_without_beta(backend: Any) -> None:
    dW = backend.full((6, 3), np.nan)
    backend.compound_bprop_lut(6, backend.array(WORDS, dtype=np.int32), backend.ones((3, 6)), None, dW, 0)
    np.testing.assert_array_equal(dW.get()[:, 0], [0, 0, 2, 0, 3, 0])


def test_operands_may_be_views_and_trees(backend: Any) -> None:
    e = ref.draw((3, 6), "float32")
    ids = backend.array(np.concatenate([WORDS, WORDS + 1]).T, dtype=np.int32)[:, :1]
    room = backend.zeros((10, 6))
    expected = gradient(WORDS, ref.wide(e), 5, None)
    for error in (backend.array(e.T).T, backend.array(e) * 1.0, backend.array(np.tile(e, 2))[:, :6]):
        room.fill(7.0)
        backend.compound_bprop_lut(2, ids, error, None, room[::2, 3:], None)
        np.testing.assert_allclose(room.get()[::2, 3:], expected, rtol=1e-6, atol=1e-6)
        assert (room.get()[1::2] == 7).all()
        assert (room.get()[:, :3] == 7).all()


@pytest.mark.parametrize("word", [5, -1, 2**31 - 1, -(2**31)])
def test_words_that_the_table_has_not_are_refused(backend: Any, word: int) -> None:
    ids, dW = backend.array(WORDS, dtype=np.int32), backend.ones((5, 3))
    ids[0, 4] = word
    with pytest.raises(IndexError, match=rf"word {word} at place 4[\s\S]*0 to 4"):
        backend.compound_bprop_lut(6, ids, backend.ones((3, 6)), None, dW, None)
    padded = backend.array(np.where(WORDS == 2, 70, ids.get()), dtype=np.int32)
    with pytest.raises(IndexError, match=rf"word {word} at place 4[\s\S]*0 to 4"):
        backend.compound_bprop_lut(6, padded, backend.ones((3, 6)), None, dW, 70)
    np.testing.assert_array_equal(dW.get(), 1)
    backend.compound_bprop_lut(6, ids, backend.ones((3, 6)), None, dW, word)
    np.testing.assert_array_equal(dW.get()[:, 0], [1, 0, 2, 0, 2])


@pytest.mark.parametrize("pad", [-1, 2**64 - 1, 2**70, -(2**70)])
def test_unsigned_words_are_told_from_signed_ones(backend: Any, pad: int) -> None:
    """Code that counts in 64 bits, signed, sees -1 in the largest word, and 0 in what has more bits."""
    words, dW = np.array([[1, 2**64 - 1, 0]], np.uint64), backend.ones((2, 3))
    ids = backend.array(words, dtype=np.uint64)
    if pad == 2**64 - 1:
        backend.compound_bprop_lut(1, ids, backend.ones((3, 3)), None, dW, pad)
    else:
        with pytest.raises(IndexError, match=f"word {2**64 - 1} at place 1"):
            backend.compound_bprop_lut(1, ids, backend.full((3, 3), 2.0), None, dW, pad)
    np.testing.assert_array_equal(dW.get(), 1)
    for kind in (np.uint8, np.int64, np.uint64):
        ids, dW = backend.array([[1, 0]], dtype=kind), backend.zeros((2, 3))
        backend.compound_bprop_lut(1, ids, backend.ones((3, 2)), None, dW, pad)
        np.testing.assert_array_equal(dW.get(), 1)


def test_bad_operands_are_refused(backend: Any) -> None:
    ids, error, dW = backend.array(WORDS, dtype=np.int32), backend.ones((3, 6)), backend.full((5, 3), 4.0)

    def refused(expected: type, message: str, *changes: tuple[int, Any]) -> None:
        arguments = [6, ids, error, None, dW, None]
        for number, value in changes:
            arguments[number] = value
        with pytest.raises(expected, match=message):
            backend.compound_bprop_lut(*arguments)

    refused(ShapeError, r"nin[\s\S]*0", (0, 0))
    refused(ShapeError, r"6 words[\s\S]*multiple of nin, 4", (0, 4))
    refused(DTypeError, r"inputs[\s\S]*float32", (1, backend.ones((1, 6))))
    refused(TypeError, "inputs[\\s\\S]*ndarray", (1, WORDS))
    refused(ShapeError, r"error[\s\S]*\(4, 6\)[\s\S]*\(3, 6\)", (2, backend.ones((4, 6))))
    refused(DTypeError, r"error[\s\S]*float64", (2, backend.ones((3, 6), dtype=np.float64)))
    refused(ShapeError, r"error_t[\s\S]*\(5, 3\)", (3, backend.ones((5, 3))))
    refused(ShapeError, r"dW[\s\S]*\(0, 3\)", (4, backend.ones((0, 3))))
    refused(ShapeError, r"dW[\s\S]*\(5, 3, 1\)", (4, backend.ones((5, 3, 1))))
    refused(ShapeError, r"dW[\s\S]*ndarray", (4, np.ones((5, 3))))
    refused(DTypeError, r"dW[\s\S]*int32", (4, backend.ones((5, 3), dtype=np.int32)))
    refused(DTypeError, r"pad_idx[\s\S]*0\.5", (5, 0.5))
    whole = backend.full((8, 6), 4.0)
    refused(ValueError, "overlaps", (2, whole[:6]), (4, whole[3:]))
    np.testing.assert_array_equal(whole.get(), 4)
    np.testing.assert_array_equal(dW.get(), 4)


def test_more_than_compiled_code_counts_is_refused(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MOST", 5)
    dW, ids = backend.full((5, 3), 4.0), backend.array(WORDS, dtype=np.int32)
    backend.compound_bprop_lut(1, ids[:, :5], backend.ones((3, 5)), None, dW, None)
    np.testing.assert_array_equal(dW.get(), gradient(WORDS[:, :5], np.ones((3, 5)), 5, None))
    with pytest.raises(ShapeError, match=r"6 look-ups in 5 words[\s\S]*at most 5"):
        backend.compound_bprop_lut(1, ids, backend.ones((3, 6)), None, dW, None)
    with pytest.raises(ShapeError, match=r"1 look-ups in 6 words[\s\S]*at most 5"):
        backend.compound_bprop_lut(1, ids[:, :1], backend.ones((3, 1)), None, backend.empty((6, 3)), None)


def test_repeats_are_timed(backend: Any) -> None:
    backend.bench_records.clear()
    dW = backend.empty((5, 3))
    backend.compound_bprop_lut(6, backend.array(WORDS, dtype=np.int32), backend.ones((3, 6)), None, dW, None, repeat=3)
    assert [(record.name, record.runs) for record in backend.bench_records] == [("lut_bprop", 3)]
    np.testing.assert_array_equal(dW.get()[:, 0], [1, 0, 2, 0, 3])
