# SPDX-License-Identifier: Apache-2.0
"""Links of vectors: linear maps, tables, slopes, and the classifier around a network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tensorbackend import functions as F
from tensorbackend import initializers
from tensorbackend.errors import ShapeError, complain
from tensorbackend.function import arrays
from tensorbackend.function.variable import Variable
from tensorbackend.functions.arguments import Array
from tensorbackend.graph import ranges
from tensorbackend.links.link import Chain, Link
from tensorbackend.links.parameter import Parameter as Weights

__all__ = ["Bias", "Classifier", "EmbedID", "Linear", "Maxout", "PReLU", "Parameter", "Scale"]


class Linear(Link):
    """x Wᵀ + b, with W (out_size, in_size) and b (out_size,).

    `Linear(out)` and an `in_size` of None take the input's size at the first call. `initialW` and `initial_bias` are
    initializers (None: LeCunNormal and 0); `nobias` leaves b out.
    """

    def __init__(self, in_size: int | None, out_size: int | None = None, nobias: bool = False, initialW: Any = None,
                 initial_bias: Any = None) -> None:  # fmt: skip
        super().__init__()
        in_size, out_size = (None, in_size) if out_size is None else (in_size, out_size)
        self.out_size = out_size
        with self.init_scope():
            self.W = Weights(initializers.as_initializer(initialW), None if in_size is None else (out_size, in_size))
            self.b = None if nobias else Weights(0 if initial_bias is None else initial_bias, out_size)

    @property
    def in_size(self) -> int | None:
        """The numbers of a sample; None until W has an array, by a call, a file or a copy."""
        return self.W.shape[1] if self.W.is_initialized else None

    def forward(self, x: Array, n_batch_axes: int = 1) -> Variable:
        """The map of x (N, …), seen as (N, in_size)."""
        if not self.W.is_initialized:
            self.W.initialize((self.out_size, _width("Linear", x, n_batch_axes)))
        return F.linear(x, self.W, self.b, n_batch_axes)


def _width(name: str, x: Any, n_batch_axes: int = 1) -> int:
    """The numbers of a sample. Raises `ShapeError` for arrays without axes behind the batch's."""
    if len(x.shape) <= n_batch_axes:
        raise ShapeError(complain(f"{name}: x", f"shape {tuple(x.shape)}", f"axes behind the batch's {n_batch_axes}"))
    return math.prod(x.shape[n_batch_axes:])


class Parameter(Link):
    """A parameter alone: a call gives it."""

    def __init__(self, array: Any) -> None:
        super().__init__()
        with self.init_scope():
            self.W = Weights(array)

    def forward(self, volatile: Any = None) -> Variable:
        """The parameter."""
        return self.W


class Scale(Link):
    """x times W, which is aligned to the axes from `axis` on; with `bias_term` a bias of its shape is added."""

    def __init__(self, axis: int = 1, W_shape: tuple[int, ...] | None = None, bias_term: bool = False) -> None:
        super().__init__()
        self.axis = axis
        with self.init_scope():
            if W_shape is not None:
                self.W = Weights(1, W_shape)
            self.b = Weights(0, W_shape) if bias_term else None

    def forward(self, x: Array, *others: Array) -> Variable:
        """The product with W, or with the argument where the link has no W. Raises `TypeError` without either."""
        y = F.scale(x, _second("Scale: W", others, getattr(self, "W", None)), self.axis)
        return y if self.b is None else F.bias(y, self.b, self.axis)


class Bias(Link):
    """x + b, with b aligned to the axes from `axis` on."""

    def __init__(self, axis: int = 1, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        self.axis = axis
        with self.init_scope():
            if shape is not None:
                self.b = Weights(0, shape)

    def forward(self, x: Array, *others: Array) -> Variable:
        """The sum with b, or with the argument where the link has no b. Raises `TypeError` without either."""
        return F.bias(x, _second("Bias: b", others, getattr(self, "b", None)), self.axis)


def _second(head: str, given: Sequence[Any], own: Any) -> Any:
    if not given and own is None:
        raise TypeError(complain(head, "neither a shape nor an argument", "one of them", "link(x, y)"))
    return given[0] if given else own


class Maxout(Link):
    """The largest of `pool_size` linear maps, for each of `out_size` outputs.

    W is (out_size pool_size, in_size); arrays among the initializers may have an axis each for outputs and maps.
    """

    def __init__(self, in_size: int | None, out_size: int, pool_size: int, initialW: Any = None,
                 initial_bias: Any = None) -> None:  # fmt: skip
        super().__init__()
        ranges.check("Maxout", "an int of 1 or more", out_size=out_size, pool_size=pool_size)
        self.out_size, self.pool_size = out_size, pool_size
        shape = None if in_size is None else (out_size * pool_size, in_size)
        with self.init_scope():
            self.W = Weights(initializers.as_initializer(self._by_rows(initialW, 3)), shape)
            self.b = Weights(0 if initial_bias is None else self._by_rows(initial_bias, 2), out_size * pool_size)

    def _by_rows(self, x: Any, axes: int) -> Any:
        """An initial value; an array of so many axes with the first two as one."""
        apart = arrays.is_array(x) and x.shape[:2] == (self.out_size, self.pool_size) and len(x.shape) == axes
        return x.reshape(self.out_size * self.pool_size, *x.shape[2:]) if apart else x

    def forward(self, x: Array) -> Variable:
        """The largest values, (N, out_size)."""
        if not self.W.is_initialized:
            self.W.initialize((self.out_size * self.pool_size, _width("Maxout", x)))
        y = F.linear(x, self.W, self.b)
        return F.max(F.reshape(y, (y.shape[0], self.out_size, self.pool_size)), 2)


class PReLU(Link):
    """x where x >= 0, else x W, with a learnt slope W of `shape` (aligned behind the batch)."""

    def __init__(self, shape: tuple[int, ...] = (), init: float = 0.25) -> None:
        super().__init__()
        with self.init_scope():
            self.W = Weights(init, shape)

    def forward(self, x: Array) -> Variable:
        """`F.prelu` with W."""
        return F.prelu(x, self.W)


class EmbedID(Link):
    """Rows of a table W (in_size, out_size) at integer places; `ignore_label` gives zeros."""

    def __init__(self, in_size: int, out_size: int, initialW: Any = None, ignore_label: int | None = None) -> None:
        super().__init__()
        self.ignore_label = ignore_label
        with self.init_scope():
            self.W = Weights(initializers.as_initializer(initialW, initializers.Normal(1.0)), (in_size, out_size))

    def forward(self, x: Array) -> Variable:
        """`F.embed_id` with W."""
        return F.embed_id(x, self.W, ignore_label=self.ignore_label)


class Classifier(Chain):
    """A network with its loss: a call gives the loss, and leaves prediction `y`, `loss` and `accuracy` behind.

    The last argument of a call is the labels; the others go to the `predictor`. `accfun` None computes no accuracy.
    """

    def __init__(self, predictor: Any, lossfun: Callable[..., Any] = F.softmax_cross_entropy,
                 accfun: Callable[..., Any] | None = F.accuracy, compute_accuracy: bool = True) -> None:  # fmt: skip
        super().__init__()
        self.lossfun = lossfun
        self.accfun = accfun
        self.compute_accuracy = compute_accuracy
        self.y = self.loss = self.accuracy = None
        with self.init_scope():
            self.predictor = predictor

    def forward(self, *arguments: Any) -> Variable:
        """The loss of inputs and labels."""
        *inputs, t = arguments
        self.y = self.predictor(*inputs)
        self.loss = self.lossfun(self.y, t)
        wanted = self.compute_accuracy and self.accfun is not None
        self.accuracy = self.accfun(self.y, t) if wanted else None
        return self.loss
