# SPDX-License-Identifier: Apache-2.0
"""Waves of launches: none runs before or beside what it needs, and all run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorbackend.backends.waves import Node, levels, waves

extent = st.builds(lambda start, length: (start, start + length), st.integers(0, 30), st.integers(0, 6))
node = st.builds(
    Node,
    st.lists(extent, max_size=3),
    st.lists(extent, max_size=2),
    st.integers(1, 9),
    st.integers(0, 50_000),
    st.just(-1),
    st.booleans(),
)


@st.composite
def programs(draw) -> list[Node]:
    """Launches, some of which must follow the one before them."""
    nodes = draw(st.lists(node, max_size=20))
    return [n._replace(after=k - 1) if k and draw(st.booleans()) else n for k, n in enumerate(nodes)]


def meet(xs: list[tuple[int, int]], ys: list[tuple[int, int]]) -> bool:
    """Whether any two extents share a byte."""
    return any(a < d and c < b for a, b in xs for c, d in ys)


def needs(later: Node, earlier: Node) -> bool:
    """Whether two launches must keep their order."""
    return (
        meet(later.writes, earlier.writes) or meet(later.writes, earlier.reads) or meet(later.reads, earlier.writes)
    )


@given(nodes=programs(), threads=st.integers(1, 4))
def test_what_needs_another_runs_after_it(nodes: list[Node], threads: int) -> None:
    order = waves(nodes, threads)
    assert sorted(n for wave in order for n in wave) == list(range(len(nodes)))
    place = {n: k for k, wave in enumerate(order) for n in wave}
    for n, later in enumerate(nodes):
        assert later.after < 0 or place[later.after] < place[n]
        for m, earlier in enumerate(nodes[:n]):
            assert not needs(later, earlier) or place[m] < place[n]


@given(nodes=programs())
def test_levels_are_as_low_as_can_be(nodes: list[Node]) -> None:
    expected: list[int] = []
    for n, later in enumerate(nodes):
        before = [expected[m] for m, earlier in enumerate(nodes[:n]) if needs(later, earlier) or later.after == m]
        expected.append(max(before, default=-1) + 1)
    assert levels(nodes) == expected


def test_independent_small_launches_run_together() -> None:
    nodes = [Node([], [(k, k + 1)], 1, 3000) for k in range(5)]
    assert [sorted(wave) for wave in waves(nodes, 2)] == [[0, 1, 2, 3, 4]]
    assert waves(nodes, 1) == [[0], [1], [2], [3], [4]]
    assert waves([n._replace(cost=100) for n in nodes], 2) == [[0], [1], [2], [3], [4]]


def test_a_wave_begins_with_the_longest_tasks() -> None:
    nodes = [Node([], [(k, k + 1)], tasks, cost) for k, (tasks, cost) in enumerate([(9, 9000), (1, 2000), (2, 6000)])]
    assert waves(nodes, 2) == [[2, 1, 0]]


def test_a_launch_that_shares_its_work_runs_alone_when_it_is_most_of_it() -> None:
    large = Node([], [(0, 1)], 1, 10**6, shares=True)
    small = [Node([], [(k, k + 1)], 1, 3000) for k in (1, 2)]
    assert waves([large, *small], 2) == [[0], [1, 2]]
    assert waves([large._replace(shares=False), *small], 2) == [[0, 1, 2]]
    assert waves([large, large._replace(writes=[(5, 6)])], 2) == [[0, 1]]
