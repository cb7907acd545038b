# SPDX-License-Identifier: Apache-2.0
"""Other ways of computing the same: stored past the caches, and without the widest vectors. The bits are equal."""

from __future__ import annotations

import platform

import numpy as np
import pytest

from tensorbackend import testing
from tensorbackend.backends import caches, jit, warm
from tensorbackend.settings import config

LENGTHS = (1, 15, 63, 64, 65, 1000, 16384 + 77)


def results(dtype: str, length: int, shift: int) -> list[np.ndarray]:
    """Statements into a view that starts `shift` elements into its memory: alone, in place, two outputs, broadcast."""
    backend = testing.make_backend("cpu", rng_seed=0)
    rng = np.random.default_rng(length)
    x, w = (backend.array(rng.normal(size=(1, length + shift)), dtype=dtype)[:, shift:] for _ in range(2))
    rows = backend.array(rng.normal(size=(5, length)), dtype=dtype)
    out, other = backend.zeros((1, length + shift + 1), dtype), backend.zeros((1, length), dtype)
    wide = backend.zeros((5, length), dtype)
    out[:, shift:-1] = backend.sigmoid(x * w) * backend.tanh(w)
    with backend.fuse():
        other[:] = x * 2 + w
        x[:] = backend.exp(w) - x
    wide[:] = rows * x + w
    found = [tensor.get() for tensor in (out, other, x, wide)]
    backend.cleanup_backend()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("shift", [0, 1, 16])
@pytest.mark.parametrize("complexes", [False, True])
def test_results_stored_past_the_cache_are_the_same(cc, monkeypatch, dtype, shift, complexes) -> None:
    for length in LENGTHS:
        near = results(dtype, length, shift)
        monkeypatch.setattr(caches, "near_bytes", lambda: -1)
        monkeypatch.setattr(caches, "has_complexes", lambda: complexes)
        monkeypatch.setattr(warm, "name_of", lambda key: None)  # what is remembered was launched as before
        far = results(dtype, length, shift)
        monkeypatch.undo()
        for a, b in zip(near, far):
            assert a.tobytes() == b.tobytes(), length


def lookup_gradients(dtype: str, words: int, length: int, beta: float = 0) -> np.ndarray:
    """A gradient of few words of a table, the first and the last among them, and `beta` times sevens."""
    backend = testing.make_backend("cpu", rng_seed=0)
    ids = backend.array([[0, words // 2, words - 1, 0]], dtype=np.int32)
    error = backend.array(np.random.default_rng(length).normal(size=(length, 4)), dtype=dtype)
    dW = backend.full((words, length), 7, dtype=dtype)
    backend.compound_bprop_lut(1, ids, error, None, dW, None, 1.0, beta)
    found = dW.get()
    backend.cleanup_backend()
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("words, length", [(1, 1), (4, 3), (61, 13), (40, 650), (5, 64)])
def test_rows_of_words_that_do_not_occur_are_zeros_past_the_cache_too(cc, monkeypatch, dtype, words, length) -> None:
    near = lookup_gradients(dtype, words, length)
    monkeypatch.setattr(caches, "near_bytes", lambda: -1)
    far = lookup_gradients(dtype, words, length)
    occur = [0, words // 2, words - 1]
    assert near.tobytes() == far.tobytes()
    assert not np.delete(far, occur, axis=0).any()
    assert far[occur].any(axis=1).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_that_add_to_a_table_read_it_past_the_cache_too(cc, monkeypatch, dtype) -> None:
    alone, near = (lookup_gradients(dtype, 40, 65, beta).astype(np.float64) for beta in (0, 0.5))
    monkeypatch.setattr(caches, "near_bytes", lambda: -1)
    far = lookup_gradients(dtype, 40, 65, 0.5)
    assert near.tobytes() == far.astype(np.float64).tobytes()
    rounding = 2**-11 if dtype == "float16" else 2**-24
    assert (abs(near - alone - 3.5) <= rounding * (abs(alone) + abs(near))).all()  # both are rounded


@pytest.mark.slow
@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="asks a compiler for x86 to do without AVX-512"
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_without_avx512_results_are_the_same(cc, monkeypatch, dtype) -> None:
    expected = [results(dtype, length, 1) for length in (33, 1000)]
    monkeypatch.setitem(config._values, "cflags", "-mno-avx512f")
    jit._definitions.cache_clear()
    found = [results(dtype, length, 1) for length in (33, 1000)]
    monkeypatch.undo()
    jit._definitions.cache_clear()
    for a, b in zip(sum(expected, []), sum(found, [])):
        assert a.tobytes() == b.tobytes()
