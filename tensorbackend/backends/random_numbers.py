# SPDX-License-Identifier: Apache-2.0
"""Random numbers: the state of the generators, and the methods of the contract that draw."""

from __future__ import annotations

import ctypes
import operator
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend import ops
from tensorbackend.errors import complain
from tensorbackend.graph.fuse import is_drawn
from tensorbackend.graph.optree import check_target, finished, source
from tensorbackend.graph.ranges import check
from tensorbackend.graph.structure import StructureTable
from tensorbackend.graph.tensor import Tensor, as_shape

__all__ = ["RandomNumbers", "drawn", "when_seeded"]

_listeners: list[Callable[[Any], None]] = []


def when_seeded(listener: Callable[[Any], None]) -> None:
    """Call `listener` with each backend whose generators are seeded anew."""
    _listeners.append(listener)


class RandomNumbers:
    """The random methods of the contract; `Backend` inherits them.

    Tensors are filled by a counter-based generator: a draw is named by a key and a number, and says all its values.
    `generator` are two words of memory, the key and the number of the next draw, where native code counts on.
    """

    structures: StructureTable
    generator: Any
    _lock: Any
    _flush: Callable[[], None]

    def gen_rng(self, seed: int | None = None) -> np.random.RandomState:
        """Seed the host generator `rng` and the counter-based generator of tensors; returns `rng`. From a seed of the
        global backend that of NumPy arrays follows, so that links that are made before `to_device` get their weights
        again.

        Raises `ValueError` for a seed outside 0 to 2^32 - 1.
        """
        if seed is not None and not (isinstance(seed, (int, np.integer)) and 0 <= seed < 2**32):
            raise ValueError(complain("rng_seed", repr(seed), "an int from 0 to 2^32 - 1"))
        self._flush()
        if not hasattr(self, "generator"):  # recipes know where it is
            self.generator = (ctypes.c_uint64 * 2)()
        self.rng_seed = seed
        self.rng = np.random.RandomState(seed)
        self._key = int.from_bytes(os.urandom(8), "little") if seed is None else _spread_seed(int(seed))
        self._draws = 0
        self.init_rng_state = self.rng_get_state()
        for listener in _listeners:
            listener(self)
        return self.rng

    def rng_get_state(self) -> tuple:
        """The state of all generators: the host's, the key and the number of draws made."""
        self._flush()  # what waits in a fuse block draws when it runs
        return self.rng.get_state(), self._key, self._draws

    def rng_set_state(self, rng_states: tuple) -> None:
        """Return to a state that `rng_get_state` gave. Raises `ValueError` for anything else."""
        self._flush()
        before = self.rng.get_state()
        try:
            host, key, draws = rng_states
            place, key, draws = map(operator.index, (host[2], key, draws))
            # NumPy reads its 624 words wherever the place in them points.
            if not (0 <= place <= 624 and 0 <= key < 1 << 64 and 0 <= draws < 1 << 63):
                raise ValueError
            self.rng.set_state(host)
        except (TypeError, ValueError, LookupError, OverflowError):
            self.rng.set_state(before)  # NumPy takes words up to the first that is none
            given = type(rng_states).__name__
            raise ValueError(complain("rng_set_state", given, "what rng_get_state returned")) from None
        self._key, self._draws = key, draws

    def rng_reset(self) -> None:
        """Return to the state right after seeding."""
        self.rng_set_state(self.init_rng_state)

    @property
    def _key(self) -> int:
        return self.generator[0]

    @_key.setter
    def _key(self, key: int) -> None:
        self.generator[0] = key

    @property
    def _draws(self) -> int:
        """The draws made so far."""
        return self.generator[1]

    @_draws.setter
    def _draws(self, draws: int) -> None:
        self.generator[1] = draws

    def _next_draw(self) -> int:
        return self._take_draws(1)

    def _take_draws(self, count: int) -> int:
        """The first of the next `count` numbers, which no other draw has."""
        with self._lock:
            generator = self.generator
            first = generator[1]
            generator[1] = first + count  # with no call since it was read: no finalizer or handler came in between
            return first

    def _draw_numbers(self, leaves: list[Any]) -> dict[int, int]:
        """The draw of each random leaf: its pinned number, or the next."""
        draws = {}
        for number in drawn(leaves):
            pinned = getattr(leaves[number], "draw", None)
            draws[number] = self._next_draw() if pinned is None else pinned
        return draws

    def rand(self, out: Tensor | None = None, shape: Any = None) -> Any:
        """Uniform random numbers of [0, 1), in halves of [0, 1], by rounding: a node that takes its partner's or
        target's shape (or `shape`).

        A node is drawn anew by each statement that runs it.
        """
        return self._source("rand", out, shape)

    def randn(self, out: Tensor | None = None, shape: Any = None) -> Any:
        """Standard normal random numbers; as `rand`."""
        return self._source("randn", out, shape)

    def _source(self, op: str, out: Tensor | None, shape: Any) -> Any:
        if out is not None:
            check_target(f"{op}: out", out, "shape=(2, 3)")  # NumPy's functions take lengths here
        return finished(source(ops.OPS[op], self.structures, None if shape is None else as_shape(shape, 0)), out)

    def fill_normal(self, ary: Tensor, mean: float = 0, stdv: float = 1) -> Tensor:
        """Fill with normal random numbers of a mean and standard deviation; returns the tensor.

        Raises `ValueError` for a deviation below 0, `TypeError` for what is no number.
        """
        check_target("fill_normal: ary", ary)
        check("fill_normal", "a number", mean=mean)
        check("fill_normal", "0 or more", stdv=stdv)
        return ary._assign(self.randn(shape=ary.shape) * stdv + mean)

    def make_binary_mask(self, out: Tensor, keepthresh: float = 0.5) -> Tensor:
        """Fill with 1 at probability `keepthresh`, else 0; returns the tensor. Raises `ValueError` beyond 0 to 1."""
        check_target("make_binary_mask: out", out)
        check("make_binary_mask", "0 to 1", keepthresh=keepthresh)
        return out._assign(self.rand(shape=out.shape) < keepthresh)

    def dropout(self, keep: float = 0.5, out: Tensor | None = None) -> Any:
        """1 at probability `keep`, else 0; not rescaled. A node, or `out`. Raises `ValueError` beyond 0 to 1."""
        check("dropout", "0 to 1", keep=keep)
        return finished(self.rand() <= keep, out)


def drawn(leaves: list[Any]) -> list[int]:
    """The leaves that are drawn, by their numbers."""
    return [n for n, x in enumerate(leaves) if is_drawn(x)]


def _spread_seed(seed: int) -> int:
    """A 64-bit key from a seed, by SplitMix64 (Steele et al. 2014), so that neighbouring seeds share no bits."""
    z = (seed + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return z ^ (z >> 31)

