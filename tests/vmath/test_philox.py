# SPDX-License-Identifier: Apache-2.0
"""Random numbers: the published known answers, and what is made of the words."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vmath.build import Kernels

# Known-answer tests of Random123: counter, key, words; each counter and key from its lowest word up
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
SEEDS = {"first": 3_000_000_000, "draw": 5, "key": 0x1234_5678_9ABC_DEF0}
COUNT = 1 << 15


def words(kernels: Kernels) -> np.ndarray:
    """The words of the positions that SEEDS and COUNT name, as (position, 4)."""
    rows = (kernels.philox(SEEDS["first"] + i, SEEDS["draw"], SEEDS["key"]) for i in range(COUNT))
    return np.array(list(rows), np.uint64)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_words_are_the_published_ones(kernels: Kernels, counter: str, key: str, answer: str) -> None:
    c = [int(word, 16) for word in counter.split()]
    k = [int(word, 16) for word in key.split()]
    got = kernels.philox(c[0] | c[1] << 32, c[2] | c[3] << 32, k[0] | k[1] << 32)
    assert got == [int(word, 16) for word in answer.split()]


def test_uniform_numbers_are_the_upper_bits(kernels: Kernels) -> None:
    w = words(kernels)
    assert np.array_equal(kernels.random("randbits", COUNT, **SEEDS), w[:, 0].astype(np.uint32))
    assert np.array_equal(kernels.random("uniform_f32", COUNT, **SEEDS), (w[:, 0] >> 8).astype(np.float32) * 2.0**-24)
    bits = (w[:, 0] >> 5) * 2**26 + (w[:, 1] >> 6)
    assert np.array_equal(kernels.random("uniform_f64", COUNT, **SEEDS), bits.astype(np.float64) * 2.0**-53)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_words_of_a_block_are_those_of_its_positions(kernels: Kernels, count: int) -> None:
    block = {**SEEDS, "first": (1 << 32) - 20}  # the lower word of the counter overflows
    expected = [kernels.philox(block["first"] + i, block["draw"], block["key"])[:count] for i in range(64)]
    assert np.array_equal(kernels.philox_block(count, 64, **block), expected)


def test_normal_numbers_are_box_and_mullers(kernels: Kernels) -> None:
    w = words(kernels)
    for dtype, bits, epsilon in [("f32", 24, 2.0**-24), ("f64", 53, 2.0**-53)]:
        narrow = bits == 24
        first = w[:, 0] >> 8 if narrow else (w[:, 0] >> 5) * 2**26 + (w[:, 1] >> 6)
        second = w[:, 1] >> 8 if narrow else (w[:, 2] >> 5) * 2**26 + (w[:, 3] >> 6)
        radius = np.sqrt(-2 * np.log((first + 1).astype(np.longdouble) * np.longdouble(2) ** -bits))
        turn = 2 * np.arccos(np.longdouble(-1)) * second.astype(np.longdouble) * np.longdouble(2) ** -bits
        error = np.abs(kernels.random(f"normal_{dtype}", COUNT, **SEEDS) - radius * np.cos(turn))
        assert np.all(error <= 4 * epsilon * radius), dtype


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_moments_are_those_of_the_distributions(kernels: Kernels, dtype: str) -> None:
    count = 1 << 20
    uniform = kernels.random(f"uniform_{dtype}", count, key=7).astype(np.float64)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 5 * np.sqrt(1 / 12 / count)
    normal = kernels.random(f"normal_{dtype}", count, key=8).astype(np.float64)
    for power, moment, deviation in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(np.mean(normal**power) - moment) < 5 * np.sqrt(deviation / count), power


def test_draws_and_keys_differ(kernels: Kernels) -> None:
    drawn = {kernels.random("randbits", 4, draw=draw, key=key).tobytes() for draw in range(3) for key in range(3)}
    assert len(drawn) == 9
