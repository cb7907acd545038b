# SPDX-License-Identifier: Apache-2.0
"""Which samples each process takes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tensorbackend.distributed.communicator import Communicator
from tensorbackend.errors import ShapeError, complain
from tensorbackend.graph import ranges
from tensorbackend.iterators import epoch_order

__all__ = ["ShardedBatches"]


class ShardedBatches:
    """Minibatches of `batch` of `samples` samples in random order, of which each process takes an equal part.

    Together the processes take, step by step, the batches that one process would: the order comes from `seed` and the
    number of the epoch alone. The rest of the samples, fewer than a batch, sits out an epoch. Iterating gives one
    epoch's index arrays of `batch / size` samples, from `position` on, and moves `epoch` and `position`, which are
    all that resuming needs, on any number of processes.

    Raises `ShapeError` where the batch does not divide by the number of processes, or is larger than the samples,
    `ValueError` for what are no ints, and for a seed below 0; iterating raises it for an epoch or position below 0.
    """

    def __init__(self, comm: Communicator, samples: int, batch: int, seed: int = 0) -> None:
        ranges.check("ShardedBatches", "an int", samples=samples, batch=batch)
        ranges.check("ShardedBatches", "an int of 0 or more", seed=seed)
        if batch % comm.size or not 0 < batch <= samples:
            raise ShapeError(
                complain("minibatches", f"{batch} of {samples} samples, for {comm.size} processes",
                         "a batch that they can share, and no more than the samples"))  # fmt: skip
        self.comm = comm
        self.samples = samples
        self.batch = batch
        self.seed = seed
        self.epoch = 0
        self.position = 0

    def __len__(self) -> int:
        """Steps in an epoch."""
        return self.samples // self.batch

    def __iter__(self) -> Iterator[np.ndarray]:
        if self.position < 0:
            raise ValueError(complain("ShardedBatches: position", repr(self.position), "0 or more"))
        order = epoch_order(self.samples, self.seed, self.epoch)
        each = self.batch // self.comm.size
        while self.position < len(self):
            first = self.position * self.batch + self.comm.rank * each
            self.position += 1
            yield order[first : first + each]
        self.epoch += 1
        self.position = 0
