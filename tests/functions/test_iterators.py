# SPDX-License-Identifier: Apache-2.0
"""Minibatches: every sample once, the same order for a seed, shares of processes, going on after a stop."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tensorbackend import serializers
from tensorbackend.iterators import BatchIterator, epoch_order

X = np.arange(10)


def test_every_sample_comes_once_an_epoch() -> None:
    batches = BatchIterator((X, X * 2), 4, seed=3)
    epochs = [[x.tolist() for x, y in batches if (y == 2 * x).all()] for _ in range(2)]
    assert len(batches) == 3 and [len(x) for x in epochs[0]] == [4, 4, 2] and batches.epoch == 2
    assert all(sorted(sum(epoch, [])) == X.tolist() for epoch in epochs) and epochs[0] != epochs[1]
    again = BatchIterator((X, X), 4, seed=3)
    assert [x.tolist() for x, _ in again] == epochs[0]
    assert [x.tolist() for (x,) in BatchIterator(X, 6, shuffle=False)] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9]]
    assert [x.tolist() for (x,) in BatchIterator(X, 1)] == epoch_order(10, 0, 0)[:, None].tolist()


def test_processes_share_the_samples() -> None:
    parts = [[x for (x,) in BatchIterator(X, 2, seed=1, rank=rank, size=3)] for rank in range(3)]
    assert {len(part) for part in parts} == {2} and {sum(map(len, part)) for part in parts} == {4}
    assert [len(BatchIterator(X, batch_size, size=4)) for batch_size in (1, 2, 3)] == [3, 2, 1]
    assert set(np.concatenate([x for part in parts for x in part]).tolist()) == set(range(10))


def test_a_resumed_iterator_goes_on() -> None:
    first = BatchIterator(X, 3, seed=5)
    list(first)
    running = iter(first)
    next(running)
    file = io.BytesIO()
    serializers.save_npz(file, first)
    second = BatchIterator(X, 3, seed=5)
    serializers.load_npz(io.BytesIO(file.getvalue()), second)
    assert [x.tolist() for (x,) in running] == [x.tolist() for (x,) in second] and second.epoch == 2


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"samples differ\n.*\(10,\), \(3,\)"):
        BatchIterator((X, X[:3]), 2)
    with pytest.raises(ValueError, match=r"samples differ\n.*none"):
        BatchIterator((), 2)
    for wrong in ({"rank": 2, "size": 2}, {"rank": -1}, {"batch_size": 0}):
        with pytest.raises(ValueError, match="rank"):
            BatchIterator(X, **{"batch_size": 2, **wrong})
    assert list(BatchIterator(X[:0], 2)) == []
    for none in ((X, [1, 2, 3]), "abc", np.array(3.0), 3):
        with pytest.raises(TypeError, match=r"BatchIterator\n.*\n.*arrays of one axis"):
            BatchIterator(none, 2)


@pytest.mark.parametrize("place", [{"epoch": -1, "position": 0}, {"epoch": 0, "position": -3}], ids=str)
def test_a_place_that_no_iterator_had_is_refused_and_changes_nothing(place) -> None:
    batches = BatchIterator((np.arange(10),), 3)
    with pytest.raises(ValueError, match="0 or more"):
        serializers.NpzDeserializer({name: np.asarray(n) for name, n in place.items()}).load(batches)
    assert (batches.epoch, batches.position) == (0, 0)
