# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers from their equations, in float64, one sample and one step at a time, written apart from the product.

Buffers are (features, N steps), as the product's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np


class Weights(NamedTuple):
    """Of an LSTM or a GRU; `bias_recur` is a GRU's."""

    W_in: np.ndarray
    W_recur: np.ndarray
    bias: np.ndarray
    bias_recur: np.ndarray


class State(NamedTuple):
    """Columns h and c of one sample."""

    h: np.ndarray
    c: np.ndarray


def logistic(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def lstm_step(w: Weights, x: np.ndarray, before: State) -> State:
    """The state after one step of one sample."""
    i, f, g, o = np.split(w.W_in @ x + w.W_recur @ before.h + w.bias[:, 0], 4)
    c = logistic(f) * before.c + logistic(i) * np.tanh(g)
    return State(logistic(o) * np.tanh(c), c)


def gru_step(w: Weights, x: np.ndarray, before: State) -> State:
    """The state after one step of one sample."""
    in_r, in_z, in_n = np.split(w.W_in @ x + w.bias[:, 0], 3)
    of_r, of_z, of_n = np.split(w.W_recur @ before.h, 3)
    z = logistic(in_z + of_z)
    n = np.tanh(in_n + logistic(in_r + of_r) * (of_n + w.bias_recur[:, 0]))
    return State((1 - z) * n + z * before.h, before.c)


STEPS: dict[str, Callable] = {"lstm": lstm_step, "gru": gru_step}


def order(steps: int, reverse: bool) -> Iterator[int]:
    """The steps as they run."""
    return reversed(range(steps)) if reverse else iter(range(steps))


def unrolled(kind: str, w: Weights, x: np.ndarray, first: State, steps: int, used: int, reverse: bool,
             lengths: np.ndarray) -> State:  # fmt: skip
    """h and c of all steps, for all samples; steps that are not used are NaN."""
    N, nout = first.h.shape[1], len(first.h)
    h, c = np.full((nout, N * steps), np.nan), np.full((nout, N * steps), np.nan)
    for n in range(N):
        state = State(first.h[:, n], first.c[:, n])
        for t in order(used, reverse):
            if t < lengths[n]:
                state = STEPS[kind](w, x[:, t * N + n], state)
            h[:, t * N + n], c[:, t * N + n] = state
    return State(h, c)
