# SPDX-License-Identifier: Apache-2.0
"""Minibatches of arrays: shuffled, divided among processes, resumable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tensorbackend.errors import ShapeError, complain
from tensorbackend.graph import ranges

__all__ = ["BatchIterator", "epoch_order"]


def epoch_order(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The numbers 0 to `samples` - 1 in the random order of an epoch, which follows from `seed` and its number. Raises
    `ValueError` for numbers below 0."""
    ranges.check("epoch_order", "an int of 0 or more", samples=samples, seed=seed, epoch=epoch)
    return np.random.default_rng([seed, epoch]).permutation(samples)


class BatchIterator:
    """Batches of arrays along their first axis: a tuple of arrays each, for one epoch an iteration.

    With `shuffle` the order of each epoch is random, and follows from `seed` and the epoch's number. Of `size`
    processes, that of `rank` gets every `size`-th sample of the order, as many as the others: up to `size` - 1 samples
    come twice. The last batch of an epoch may be smaller. Arrays are NumPy's, or anything that NumPy's index arrays
    pick from. `serialize` saves where it is, so that a resumed iterator goes on with the same batches.
    """

    def __init__(self, arrays: Sequence[Any], batch_size: int, shuffle: bool = True, seed: int = 0, rank: int = 0,
                 size: int = 1) -> None:  # fmt: skip
        self.arrays = tuple(arrays) if isinstance(arrays, (tuple, list)) else (arrays,)
        listed = any(isinstance(x, (list, tuple, str)) for x in self.arrays)
        if listed or not all(getattr(x, "shape", hasattr(x, "__len__")) for x in self.arrays):
            given = ", ".join(type(x).__name__ for x in self.arrays)
            raise TypeError(complain("BatchIterator", given, "arrays of one axis or more", "np.asarray(samples)"))
        lengths = {len(x) for x in self.arrays}
        if len(lengths) != 1:
            given = ", ".join(str(np.shape(x)) for x in self.arrays) or "none"
            raise ShapeError(complain("BatchIterator: numbers of samples differ", given, "one length of axis 0"))
        ranges.check("BatchIterator", "an int", batch_size=batch_size, rank=rank, size=size)
        ranges.check("BatchIterator", "an int of 0 or more", seed=seed)
        if batch_size < 1 or not 0 <= rank < size:
            given = f"batch_size {batch_size}, rank {rank} of {size}"
            raise ValueError(complain("BatchIterator", given, "a batch_size of 1 or more, 0 <= rank < size"))
        self.batch_size, self.shuffle, self.seed = batch_size, shuffle, seed
        self.rank, self.size = rank, size
        self.epoch = 0
        self.position = 0
        self._samples = lengths.pop()

    def __len__(self) -> int:
        """The batches of an epoch."""
        mine = -(-self._samples // self.size)
        return -(-mine // self.batch_size)

    def _order(self) -> np.ndarray:
        """The places of this process's samples in this epoch."""
        order = np.arange(self._samples)
        if self.shuffle:
            order = epoch_order(self._samples, self.seed, self.epoch)
        mine = -(-self._samples // self.size)
        whole = np.resize(order, mine * self.size) if self._samples else order
        return whole[self.rank :: self.size]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """The batches that are left of the epoch; the next iteration is the next epoch."""
        order = self._order()
        while self.position < len(order):
            places = order[self.position : self.position + self.batch_size]
            self.position += len(places)
            yield tuple(x[places] for x in self.arrays)
        self.epoch += 1
        self.position = 0

    def serialize(self, serializer: Any) -> None:
        """Save or load the epoch and the place in it. Raises `ValueError` for negative ones, which no iterator had."""
        epoch, position = int(serializer("epoch", self.epoch)), int(serializer("position", self.position))
        if min(epoch, position) < 0:  # from there batches would be empty, without end
            given = f"epoch {epoch}, position {position}"
            raise ValueError(complain("load: where a BatchIterator is", given, "numbers of 0 or more"))
        self.epoch, self.position = epoch, position
