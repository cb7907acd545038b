# SPDX-License-Identifier: Apache-2.0
"""The plan of an arena: no two temporaries that are needed at once share a byte, and few bytes are taken."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorbackend.backends import arena
from tensorbackend.backends.arena import MOST_TRIED, Lifetime, plan_arena

lifetime = st.builds(
    lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
    st.integers(0, 500),
    st.integers(0, 6),
    st.integers(0, 4),
)


def at_once(x: Lifetime, y: Lifetime) -> bool:
    return x.first <= y.last and y.first <= x.last


def size(t: Lifetime, alignment: int) -> int:
    return -(-t.nbytes // alignment) * alignment


def least_of_all_orders(lifetimes: list[Lifetime], alignment: int) -> int:
    """The least peak there is: some order of placing each at the lowest free place reaches it."""
    best = None
    for order in itertools.permutations(range(len(lifetimes))):
        offsets: dict[int, int] = {}
        for n in order:
            taken = [(offsets[m], m) for m in offsets if at_once(lifetimes[n], lifetimes[m])]
            candidates = [0, *(at + size(lifetimes[m], alignment) for at, m in taken)]
            offsets[n] = min(
                c for c in candidates
                if all(c + size(lifetimes[n], alignment) <= at or at + size(lifetimes[m], alignment) <= c
                       for at, m in taken)
            )  # fmt: skip
        peak = max((offsets[n] + size(lifetimes[n], alignment) for n in offsets), default=0)
        best = peak if best is None else min(best, peak)
    return best


@given(lifetimes=st.lists(lifetime, max_size=40), alignment=st.sampled_from([1, 64]))
def test_what_is_needed_at_once_shares_no_byte(lifetimes: list[Lifetime], alignment: int) -> None:
    found = plan_arena(lifetimes, alignment)
    assert len(found.offsets) == len(lifetimes)
    for (a, x), (b, y) in itertools.combinations(zip(found.offsets, lifetimes), 2):
        assert not at_once(x, y) or a + x.nbytes <= b or b + y.nbytes <= a
    assert all(offset % alignment == 0 for offset in found.offsets)
    assert all(offset + t.nbytes <= found.peak for offset, t in zip(found.offsets, lifetimes))


@given(lifetimes=st.lists(lifetime, max_size=40))
def test_the_lower_bound_is_the_most_that_is_needed_in_a_step(lifetimes: list[Lifetime]) -> None:
    needed = [sum(t.nbytes for t in lifetimes if t.first <= step <= t.last) for step in range(12)]
    found = plan_arena(lifetimes, 1)
    assert found.least == max(needed)
    assert found.least <= found.peak


@given(lifetimes=st.lists(lifetime, max_size=6), alignment=st.sampled_from([1, 64]))
def test_a_few_temporaries_take_hardly_more_than_the_least(lifetimes: list[Lifetime], alignment: int) -> None:
    least = least_of_all_orders(lifetimes, alignment)
    assert least <= plan_arena(lifetimes, alignment).peak <= 1.5 * least


@pytest.mark.parametrize("layers", [1, 2, 20, MOST_TRIED + 1])
def test_a_chain_takes_two_layers(layers: int) -> None:
    chain = [Lifetime(4096, n, n + 1) for n in range(layers)]
    assert plan_arena(chain, 64).peak == 4096 * min(layers, 2)


@pytest.mark.parametrize(
    "lifetimes, least",
    [
        ([(4, 1, 3), (4, 0, 1), (2, 2, 3), (3, 3, 6)], 9),  # the most bytes by steps first
        ([(3, 3, 5), (2, 1, 4), (2, 2, 3), (4, 1, 1)], 7),  # the longest needed first
        ([(4, 0, 1), (1, 0, 3), (1, 3, 5), (4, 4, 5)], 5),  # the earliest first
        ([(3, 2, 4), (3, 2, 3), (4, 4, 7), (2, 0, 3)], 8),  # the first to end first
    ],
)
def test_where_one_order_alone_reaches_the_least_it_is_found(lifetimes: list[tuple[int, ...]], least: int) -> None:
    found = plan_arena([Lifetime(64 * size, first, last) for size, first, last in lifetimes])
    assert found.peak == found.least == 64 * least


def test_of_many_temporaries_one_order_must_do(monkeypatch: pytest.MonkeyPatch) -> None:
    lifetimes = [Lifetime(3, 3, 5), Lifetime(2, 1, 4), Lifetime(2, 2, 3), Lifetime(4, 1, 1)]
    for most, peak in ((4, 7), (3, 8)):
        monkeypatch.setattr(arena, "MOST_TRIED", most)
        assert plan_arena(lifetimes, 1).peak == peak


def test_nothing_takes_nothing() -> None:
    assert plan_arena([]) == ([], 0, 0)
