# SPDX-License-Identifier: Apache-2.0
"""Random numbers: the generator's published vectors, states and seeds, what is one draw, and distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, numerics

pytestmark = pytest.mark.rehearsed

# Counter and key, and the words they give, of the Random123 distribution's known answers for philox4x32-10.
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
DRAWS: dict[str, Callable[[Any], np.ndarray]] = {
    "rand": lambda be: be.rand(out=be.empty((50, 7))).get(),
    "randn": lambda be: be.randn(out=be.empty((50, 7))).get(),
    "dropout": lambda be: be.dropout(0.3, out=be.empty((50, 7))).get(),
    "make_binary_mask": lambda be: be.make_binary_mask(be.empty((50, 7)), 0.3).get(),
    "fill_normal": lambda be: be.fill_normal(be.empty((50, 7)), 1.0, 2.0).get(),
    "binarize": lambda be: be.binarize(be.zeros((50, 7)), be.empty((50, 7))).get(),
    "tree": lambda be: be.evaluate(be.rand() * be.ones((50, 7)) + be.randn()).get(),
    "host": lambda be: be.rng.uniform(size=(50, 7)),
}


def joined(words: tuple[int, ...]) -> int:
    """Words of 32 bits as one integer, the first lowest."""
    return sum(word << 32 * place for place, word in enumerate(words))


@pytest.fixture(params=[np.float32, np.float64], ids=["f32", "f64"])
def typed(request: pytest.FixtureRequest, make_another: Callable[..., Backend]) -> Any:
    """A fresh backend of the kind of `backend`, with each of the types that random numbers are drawn in."""
    made = make_another(rng_seed=11, default_dtype=request.param)
    yield made
    made.cleanup_backend()


# The generator


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_philox_gives_the_published_words(counter, key, words) -> None:
    index = np.array([joined(counter[:2])], np.uint64)
    found = numerics.philox(index, joined(counter[2:]), joined(key))
    assert tuple(int(w[0]) for w in found) == words


def test_philox_of_an_array_is_that_of_each_index() -> None:
    index = np.array([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1], np.uint64)
    together = np.array(numerics.philox(index, 5, 7))
    single = np.array([numerics.philox(index[i : i + 1], 5, 7) for i in range(len(index))])[..., 0].T
    np.testing.assert_array_equal(together, single)
    assert len({tuple(column) for column in together.T.tolist()}) == len(index)


def test_uniform_numbers_are_made_of_the_top_bits() -> None:
    words = tuple(np.array([w, 0, 0xFFFFFFFF], np.uint64) for w in (0x80000000, 0, 0, 0))
    for dtype, bits in ((np.dtype(np.float32), 24), (np.dtype(np.float64), 53)):
        assert numerics.uniform(words, dtype).tolist() == [0.5, 0.0, 1 - 2.0**-bits]


def test_first_numbers_of_a_seed_come_from_the_generator(typed) -> None:
    out = typed.rand(out=typed.empty((3, 5))).get()
    words = numerics.philox(np.arange(15, dtype=np.uint64), 0, typed._key)
    np.testing.assert_array_equal(out, numerics.uniform(words, typed.default_dtype).reshape(3, 5))
    again = typed.rand(out=typed.empty((3, 5))).get()
    words = numerics.philox(np.arange(15, dtype=np.uint64), 1, typed._key)
    np.testing.assert_array_equal(again, numerics.uniform(words, typed.default_dtype).reshape(3, 5))


# Seeds and states


@pytest.mark.parametrize("draw", DRAWS)
def test_a_state_set_again_repeats_the_numbers(backend, draw) -> None:
    DRAWS[draw](backend)
    state = backend.rng_get_state()
    first, second = DRAWS[draw](backend), DRAWS[draw](backend)
    assert not np.array_equal(first, second)
    backend.rng_set_state(state)
    np.testing.assert_array_equal(DRAWS[draw](backend), first)
    np.testing.assert_array_equal(DRAWS[draw](backend), second)


def test_states_count_what_waits_in_a_block(backend) -> None:
    first, second, third = (backend.empty((3, 5)) for _ in range(3))
    with backend.fuse():
        state = backend.rng_get_state()
        first[:] = backend.rand()
        after = backend.rng_get_state()
        backend.rng_set_state(state)
        second[:] = backend.rand()
        backend.rng_reset()
    third[:] = backend.rand()
    assert after[2] == state[2] + 1
    np.testing.assert_array_equal(second.get(), first.get())
    np.testing.assert_array_equal(third.get(), first.get())


@pytest.mark.parametrize("draw", DRAWS)
def test_reset_repeats_from_the_start(backend, draw) -> None:
    backend.gen_rng(5)
    first = DRAWS[draw](backend)
    DRAWS[draw](backend)
    backend.rng_reset()
    np.testing.assert_array_equal(DRAWS[draw](backend), first)


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_decides_the_numbers(backend, draw) -> None:
    found = []
    for seed in (5, 5, 6, 0, 2**32 - 1):
        assert backend.gen_rng(seed) is backend.rng
        assert backend.rng_seed == seed
        found.append(DRAWS[draw](backend))
    np.testing.assert_array_equal(found[0], found[1])
    assert len({x.tobytes() for x in found}) == 4


def test_without_a_seed_each_backend_differs(make_another) -> None:
    made = [make_another() for _ in range(2)]
    values = [be.rand(out=be.empty((4, 4))).get() for be in made]
    assert not np.array_equal(*values)
    assert [be.deterministic for be in made] == [False, False]
    for be in made:
        be.cleanup_backend()


def test_draws_leave_numpy_s_global_generator_alone(backend) -> None:
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    for draw in DRAWS.values():
        draw(backend)
    np.testing.assert_array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("state", [None, (1, 2), "state", (1, 2, 3), np.random.RandomState(0).get_state()], ids=repr)
def test_a_foreign_state_is_refused_and_changes_nothing(backend, state) -> None:
    before = backend.rng_get_state()
    with pytest.raises(ValueError, match="rng_get_state"):
        backend.rng_set_state(state)
    after = backend.rng_get_state()
    assert after[1:] == before[1:]
    np.testing.assert_array_equal(after[0][1], before[0][1])


def test_a_state_that_points_nowhere_is_refused_and_changes_nothing(backend) -> None:
    (kind, words, *rest), *counts = before = backend.rng_get_state()
    for place in (625, -1, 1.5):
        with pytest.raises(ValueError, match="rng_set_state"):
            backend.rng_set_state(((kind, words, place, *rest[1:]), *counts))
    after = backend.rng_get_state()
    assert after[1:] == before[1:]
    np.testing.assert_array_equal(after[0][1], before[0][1])


@pytest.mark.parametrize("wrong", [[], ["x"], [2**32], [-1]], ids=repr)
def test_a_state_of_other_words_is_refused_and_changes_nothing(backend, wrong) -> None:
    (kind, _, *rest), *counts = before = backend.rng_get_state()
    with pytest.raises(ValueError, match="rng_set_state"):
        backend.rng_set_state(((kind, [7] * 623 + wrong, *rest), *counts))
    after = backend.rng_get_state()
    assert after[1:] == before[1:]
    np.testing.assert_array_equal(after[0][1], before[0][1])


# What is one draw


def test_a_node_used_twice_in_a_statement_is_one_draw(backend) -> None:
    u = backend.rand()
    ones = backend.ones((30, 30))
    assert not backend.evaluate(u * ones - u).get().any()
    assert not backend.evaluate((u + ones) - (ones + u)).get().any()


def test_a_node_is_drawn_anew_by_each_statement(backend) -> None:
    tree = backend.rand() * backend.ones((30, 30))
    assert not np.array_equal(backend.evaluate(tree).get(), backend.evaluate(tree).get())


def test_different_nodes_differ(backend) -> None:
    ones = backend.ones((30, 30))
    assert np.count_nonzero(backend.evaluate((backend.rand() - backend.rand()) * ones).get()) > 890
    assert np.count_nonzero(backend.evaluate(backend.randn() * ones - backend.randn()).get()) > 890


def test_numbers_depend_on_the_place_in_the_node_not_on_the_target(backend) -> None:
    state = backend.rng_get_state()
    plain = backend.rand(out=backend.empty((6, 8))).get()
    wide = backend.empty((6, 8), dtype=np.float64)
    for target in (backend.empty((8, 6)).T, backend.empty((12, 16))[::2, ::-2], wide):
        backend.rng_set_state(state)
        np.testing.assert_array_equal(backend.rand(out=target).get(), plain)


# Shapes


def test_a_shape_may_be_asked_for(backend) -> None:
    assert backend.evaluate(backend.rand(shape=(3, 4))).shape == (3, 4)
    assert backend.evaluate(backend.randn(shape=5)).shape == (5,)


@pytest.mark.parametrize("make", ["rand", "randn", "dropout"])
def test_a_shape_comes_from_the_partner_or_the_target(backend, make) -> None:
    node = getattr(backend, make)()
    assert (backend.zeros((3, 4)) + node).shape == (3, 4)
    assert backend.evaluate(backend.array([[1], [2]]) * node).shape == (2, 1)
    assert backend.empty((4, 2))._assign(node).shape == (4, 2)


def test_the_partner_decides_before_the_target(backend) -> None:
    out = backend.empty((5, 6))
    out[:] = backend.rand() + backend.ones((5, 1))
    values = out.get()
    assert len(np.unique(values)) == 5
    assert np.all(values == values[:, :1])


def test_a_shape_that_nobody_decides_is_refused(backend) -> None:
    for tree in (backend.rand(), backend.rand() + 1, backend.rand() * backend.randn()):
        with pytest.raises(ValueError, match="not known"):
            backend.evaluate(tree)


def test_shapes_that_conflict_are_refused(backend) -> None:
    out = backend.zeros((2, 3))
    for tree in (lambda: backend.rand(shape=(3, 4)), lambda: backend.rand(shape=(2, 3)) + backend.zeros((4, 3))):
        with pytest.raises(ValueError, match=r"\(3, 4\)|\(4, 3\)"):
            out[:] = tree()
    u = backend.rand()
    with pytest.raises(ValueError):
        out[:] = backend.sum(u * backend.ones((4, 1)), 0) + u * backend.ones((2, 3))
    assert not out.get().any()


# Distributions: bounds that a right generator misses with a probability below 1e-9


COUNT = 200_000
SIGMAS = 6.2


def assert_moments(x: np.ndarray, mean: float, variance: float, fourth: float) -> None:
    """Mean and variance within `SIGMAS` standard errors; `fourth` is the fourth central moment."""
    x = x.astype(np.float64)
    assert abs(x.mean() - mean) <= SIGMAS * math.sqrt(variance / x.size)
    assert abs(((x - mean) ** 2).mean() - variance) <= SIGMAS * math.sqrt((fourth - variance**2) / x.size)


def assert_distributed(x: np.ndarray, distribution: Callable[[np.ndarray], np.ndarray]) -> None:
    """The Kolmogorov-Smirnov distance within what 2 exp(-2 n d^2) = 1e-9 allows (Massart 1990)."""
    ordered = np.sort(x.astype(np.float64).ravel())
    expected = distribution(ordered)
    steps = np.arange(x.size + 1) / x.size
    distance = max(np.max(steps[1:] - expected), np.max(expected - steps[:-1]))
    assert distance <= math.sqrt(math.log(2e9) / (2 * x.size))


def normal_distribution(x: np.ndarray) -> np.ndarray:
    """The standard normal distribution function."""
    return 0.5 * np.array([math.erfc(-v / math.sqrt(2)) for v in x])


def test_rand_is_uniform(typed) -> None:
    x = typed.rand(out=typed.empty((COUNT // 100, 100))).get()
    assert x.dtype == typed.default_dtype
    assert 0 <= x.min() < 1e-4
    assert 1 - 1e-4 < x.max() < 1
    assert_moments(x, 0.5, 1 / 12, 1 / 80)
    assert_distributed(x, lambda v: v)
    flat = x.astype(np.float64).ravel() - 0.5
    for lag in (1, 2, 100):
        assert abs((flat[lag:] * flat[:-lag]).mean()) <= SIGMAS / 12 / math.sqrt(COUNT - lag)


def test_rand_keeps_all_the_bits_of_its_type(typed) -> None:
    x = typed.rand(out=typed.empty((1000, 10))).get().astype(np.float64)
    bits = 24 if typed.default_dtype == np.float32 else 53
    assert np.all(x * 2.0**bits == np.rint(x * 2.0**bits))
    assert np.any((x * 2.0**bits) % 2 == 1)


def test_randn_is_normal(typed) -> None:
    x = typed.randn(out=typed.empty((COUNT // 100, 100))).get()
    assert x.dtype == typed.default_dtype
    assert np.isfinite(x).all()
    assert_moments(x, 0.0, 1.0, 3.0)
    assert_distributed(x, normal_distribution)


def test_fill_normal_has_its_mean_and_deviation(typed) -> None:
    x = typed.empty((COUNT // 100, 100))
    assert typed.fill_normal(x, mean=3.0, stdv=0.5) is x
    assert_moments(x.get(), 3.0, 0.25, 3 * 0.25**2)


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("make", ["dropout", "make_binary_mask"])
def test_masks_keep_their_share(backend, keep, make) -> None:
    out = backend.full((COUNT // 100, 100), 9.0)
    made = backend.dropout(keep, out=out) if make == "dropout" else backend.make_binary_mask(out, keep)
    assert made is out
    values = out.get()
    assert set(np.unique(values)) <= {0.0, 1.0}
    assert abs(values.mean(dtype=np.float64) - keep) <= SIGMAS * math.sqrt(keep * (1 - keep) / COUNT) + 2.0**-23


def test_dropout_multiplies_inside_an_expression(backend) -> None:
    out = backend.empty((100, 100))
    out[:] = backend.full((100, 100), 3.0) * backend.dropout(0.5)
    assert set(np.unique(out.get())) == {0.0, 3.0}


@pytest.mark.parametrize("a", [-2.0, -1.0, -0.5, 0.0, 0.6, 1.0, 3.0])
def test_stochastic_binarize_has_its_probability(backend, a) -> None:
    out = backend.empty((COUNT // 100, 100))
    assert backend.binarize(backend.full((COUNT // 100, 100), a), out) is out
    values = out.get()
    p = min(max((a + 1) / 2, 0), 1)
    assert set(np.unique(values)) <= {-1.0, 1.0}
    assert abs((values > 0).mean() - p) <= SIGMAS * math.sqrt(p * (1 - p) / COUNT) + 2.0**-23


@pytest.mark.parametrize("shape", [(1, 100), (COUNT // 100, 1), (1, 1)], ids=str)
def test_stochastic_binarize_draws_each_element_of_what_is_broadcast(backend, shape) -> None:
    values = backend.binarize(backend.zeros(shape), backend.empty((COUNT // 100, 100))).get()
    assert abs(values.mean()) <= SIGMAS / math.sqrt(COUNT)
    assert np.abs(values.mean(0)).max() <= SIGMAS / math.sqrt(COUNT // 100)
    assert np.abs(values.mean(1)).max() <= SIGMAS / math.sqrt(100)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_stochastic_binarize_of_the_largest_integers_is_one(backend, dtype) -> None:
    largest = backend.array(np.full((1, 50), np.iinfo(dtype).max, dtype), dtype=dtype)
    np.testing.assert_array_equal(backend.binarize(largest, backend.empty((1, 50))).get(), np.ones((1, 50)))
