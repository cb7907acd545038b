# SPDX-License-Identifier: Apache-2.0
"""Links that normalise."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from tensorbackend import dtypes, initializers
from tensorbackend import functions as F
from tensorbackend.errors import ShapeError, complain
from tensorbackend.function import arrays
from tensorbackend.function.config import lookup
from tensorbackend.function.variable import Variable
from tensorbackend.functions.arguments import Array
from tensorbackend.graph.ranges import Ranged
from tensorbackend.graph.tensor import as_shape
from tensorbackend.links.link import Link
from tensorbackend.links.parameter import Parameter

__all__ = ["BatchNormalization", "LayerNormalization"]


class BatchNormalization(Ranged, Link):
    """Batch normalization over all axes but the channels, of which there are `size`; several lengths are axes behind
    the batch's.

    In training the batch's statistics are used, and the running ones, `avg_mean` and `avg_var`, follow with `decay`;
    else these are used. With `finetune` in a call they become the mean over the calls since `start_finetuning`. Raises
    `DTypeError` for a `dtype` that is no floating one.
    """

    ranges: ClassVar[dict[str, str]] = {"decay": "0 to 1", "eps": "0 or more, and finite"}

    def __init__(self, size: Any, decay: float = 0.9, eps: float = 2e-5, dtype: Any = None, use_gamma: bool = True,
                 use_beta: bool = True, initial_gamma: Any = None, initial_beta: Any = None) -> None:  # fmt: skip
        super().__init__()
        shape = as_shape(size, 0)
        kind = np.dtype(dtypes.as_float(lookup("dtype") if dtype is None else dtype))
        self.decay, self.eps, self._shape = decay, eps, shape
        self.avg_mean, self.avg_var = np.zeros(shape, kind), np.ones(shape, kind)
        self.N = 0
        for name in ("avg_mean", "avg_var", "N"):
            self.register_persistent(name)
        with self.init_scope():
            if use_gamma:
                self.gamma = Parameter(1 if initial_gamma is None else initial_gamma, shape, dtype=kind)
            if use_beta:
                self.beta = Parameter(0 if initial_beta is None else initial_beta, shape, dtype=kind)

    def _factor(self, name: str, value: float, x: Any) -> Any:
        found = self.__dict__.get(name)
        if found is not None:
            return found
        device = arrays.backend_of(arrays.plain(getattr(x, "array", x)))
        return arrays.moved(np.full(self._shape, value, self.avg_mean.dtype), device)

    def forward(self, x: Array, finetune: bool = False) -> Variable:
        """The normalized x (N, C, …)."""
        axis = (0, *range(1 + len(self._shape), len(x.shape)))
        gamma, beta = self._factor("gamma", 1.0, x), self._factor("beta", 0.0, x)
        if not lookup("train"):
            return F.fixed_batch_normalization(x, gamma, beta, self.avg_mean, self.avg_var, self.eps, axis)
        decay = 1.0 - 1.0 / (self.N + 1) if finetune else self.decay
        y = F.batch_normalization(x, gamma, beta, eps=self.eps, running_mean=self.avg_mean,
                                  running_var=self.avg_var, decay=decay, axis=axis)  # fmt: skip
        if finetune:  # a call that was refused does not count
            self.N += 1
        return y

    def start_finetuning(self) -> None:
        """Have the next calls with `finetune` average from anew."""
        self.N = 0


class LayerNormalization(Ranged, Link):
    """Layer normalization of (N, size), with a learnt scale and shift; a `size` of None is the first input's."""

    ranges: ClassVar[dict[str, str]] = {"eps": "0 or more, and finite"}

    def __init__(self, size: int | None = None, eps: float = 1e-6, initial_gamma: Any = None,
                 initial_beta: Any = None) -> None:  # fmt: skip
        super().__init__()
        self.eps = eps
        with self.init_scope():
            self.gamma = Parameter(initializers.as_initializer(1 if initial_gamma is None else initial_gamma), size)
            self.beta = Parameter(initializers.as_initializer(0 if initial_beta is None else initial_beta), size)

    def forward(self, x: Array) -> Variable:
        """The normalized x (N, size). Raises `ShapeError` for another rank."""
        for p in (self.gamma, self.beta):
            if not p.is_initialized:
                if len(x.shape) != 2:
                    raise ShapeError(complain("LayerNormalization: x", f"shape {tuple(x.shape)}", "(N, size)"))
                p.initialize((x.shape[1],))
        return F.layer_normalization(x, self.gamma, self.beta, self.eps)
