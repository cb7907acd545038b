# SPDX-License-Identifier: Apache-2.0
"""The layers, the cost and the optimizers of `mlp_digits.py` and `cnn_digits.py`, each a few lines against a backend.

Activations are (features, N): a column is a sample, N the samples of the minibatch. A layer has

    y = layer.fprop(x, training)     the output for the input x
    dx = layer.bprop(dy)             the gradient of the cost with respect to x, from that with respect to y;
                                     it also writes the gradients of the layer's own parameters

A layer allocates its buffers once, for `be.bsz` columns; a smaller minibatch uses a view of the first columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorbackend import Backend, Tensor
from tensorbackend.primitives.conv import ConvLayer
from tensorbackend.primitives.pool import PoolLayer


class Parameter:
    """Numbers that training changes: a `value`, and the `gradient` of the cost with respect to it."""

    def __init__(self, value: Tensor) -> None:
        self.value = value
        self.gradient = value.backend.zeros_like(value)


class Layer:
    """A step of a network from `nin` to `nout` features, with the buffers of its output and its input's gradient."""

    def __init__(self, be: Backend, nin: int, nout: int) -> None:
        self.be = be
        self.nout = nout
        self.parameters: list[Parameter] = []
        self._y = be.iobuf(nout)
        self._dx = be.iobuf(nin)

    def output_for(self, x: Tensor) -> Tensor:
        """The part of the output buffer that a minibatch like `x` uses."""
        return self._y[:, : x.shape[1]]

    def gradient_for(self, dy: Tensor) -> Tensor:
        """The part of the gradient buffer that a minibatch like `dy` uses."""
        return self._dx[:, : dy.shape[1]]

    def fprop(self, x: Tensor, training: bool) -> Tensor:
        """The output (nout, N) for the input (nin, N)."""
        raise TypeError(f"{type(self).__name__} has no fprop")

    def bprop(self, dy: Tensor) -> Tensor:
        """The gradient (nin, N) from the output's (nout, N)."""
        raise TypeError(f"{type(self).__name__} has no bprop")


class Affine(Layer):
    """y = W x + b, with W (nout, nin) drawn for rectified units (He et al. 2015) and b (nout, 1) zero."""

    def __init__(self, be: Backend, nin: int, nout: int) -> None:
        super().__init__(be, nin, nout)
        self.W = Parameter(be.fill_normal(be.empty((nout, nin)), stdv=(2.0 / nin) ** 0.5))
        self.b = Parameter(be.zeros((nout, 1)))
        self.parameters = [self.W, self.b]

    def fprop(self, x: Tensor, training: bool) -> Tensor:
        self.x = x
        y = self.output_for(x)
        y[:] = self.be.dot(self.W.value, x) + self.b.value
        return y

    def bprop(self, dy: Tensor) -> Tensor:
        dx = self.gradient_for(dy)
        self.be.compound_dot(dy, self.x.T, self.W.gradient)
        self.be.update_fc_bias(dy, self.b.gradient)
        self.be.compound_dot(self.W.value.T, dy, dx)
        return dx


class Convolution(Layer):
    """y = relu(F * x + b): K filters of `window` x `window` on C maps of `size` x `size`, with zeros around them.

    Activations are (C size size, N), maps outermost. A minibatch of another N is another geometry, worked out once.
    """

    def __init__(self, be: Backend, C: int, size: int, K: int, window: int = 3) -> None:
        super().__init__(be, C * size * size, K * size * size)
        self._sizes = {"C": C, "H": size, "W": size, "K": K, "R": window, "S": window}
        self._sizes |= {"pad_h": window // 2, "pad_w": window // 2}
        self._geometries: dict[int, ConvLayer] = {}
        nin = C * window * window
        self.F = Parameter(be.fill_normal(be.empty((nin, K)), stdv=(2.0 / nin) ** 0.5))
        self.b = Parameter(be.zeros((K, 1)))
        self.parameters = [self.F, self.b]

    def _geometry(self, N: int) -> ConvLayer:
        if N not in self._geometries:
            self._geometries[N] = self.be.conv_layer(self.be.default_dtype, N=N, **self._sizes)
        return self._geometries[N]

    def fprop(self, x: Tensor, training: bool) -> Tensor:
        self.x, self.y = x, self.output_for(x)
        self.be.fprop_conv(self._geometry(x.shape[1]), x, self.F.value, self.y, bias=self.b.value, relu=True)
        return self.y

    def bprop(self, dy: Tensor) -> Tensor:
        geometry, dx = self._geometry(dy.shape[1]), self.gradient_for(dy)
        dy[:] = dy * (self.y > 0)
        self.be.update_conv(geometry, self.x, dy, self.F.gradient, grad_bias=self.b.gradient)
        self.be.bprop_conv(geometry, self.F.value, dy, dx)
        return dx


class MaxPooling(Layer):
    """The largest of each square of 2 x 2, of C maps of `size` x `size`."""

    def __init__(self, be: Backend, C: int, size: int) -> None:
        super().__init__(be, C * size * size, C * size * size // 4)
        self._sizes = {"C": C, "H": size, "W": size, "R": 2, "S": 2}
        self._geometries: dict[int, PoolLayer] = {}
        self._argmax = be.iobuf(self.nout, dtype="uint8")

    def _geometry(self, N: int) -> PoolLayer:
        if N not in self._geometries:
            self._geometries[N] = self.be.pool_layer(self.be.default_dtype, "max", N=N, **self._sizes)
        return self._geometries[N]

    def fprop(self, x: Tensor, training: bool) -> Tensor:
        y = self.output_for(x)
        self.argmax = self._argmax[:, : x.shape[1]]
        self.be.fprop_pool(self._geometry(x.shape[1]), x, y, self.argmax)
        return y

    def bprop(self, dy: Tensor) -> Tensor:
        dx = self.gradient_for(dy)
        self.be.bprop_pool(self._geometry(dy.shape[1]), dy, dx, self.argmax)
        return dx


class Relu(Layer):
    """y = max(x, 0)."""

    def __init__(self, be: Backend, nin: int) -> None:
        super().__init__(be, nin, nin)

    def fprop(self, x: Tensor, training: bool) -> Tensor:
        self.y = self.output_for(x)
        self.y[:] = self.be.maximum(x, 0)
        return self.y

    def bprop(self, dy: Tensor) -> Tensor:
        dx = self.gradient_for(dy)
        dx[:] = dy * (self.y > 0)
        return dx


class Tanh(Layer):
    """y = tanh(x)."""

    def __init__(self, be: Backend, nin: int) -> None:
        super().__init__(be, nin, nin)

    def fprop(self, x: Tensor, training: bool) -> Tensor:
        self.y = self.output_for(x)
        self.y[:] = self.be.tanh(x)
        return self.y

    def bprop(self, dy: Tensor) -> Tensor:
        dx = self.gradient_for(dy)
        dx[:] = dy * (1 - self.y * self.y)
        return dx


class Dropout(Layer):
    """In training a feature is kept with probability `keep` and divided by it, else zero; otherwise y = x."""

    def __init__(self, be: Backend, nin: int, keep: float) -> None:
        super().__init__(be, nin, nin)
        self.keep = keep
        self._mask = be.iobuf(nin)

    def fprop(self, x: Tensor, training: bool) -> Tensor:
        if not training:
            return x
        self.mask = self._mask[:, : x.shape[1]]
        self.mask[:] = self.be.dropout(self.keep) / self.keep
        y = self.output_for(x)
        y[:] = x * self.mask
        return y

    def bprop(self, dy: Tensor) -> Tensor:
        dx = self.gradient_for(dy)
        dx[:] = dy * self.mask
        return dx


class SoftmaxCrossEntropy:
    """The cost of a classifier: -ln of the probability that softmax gives the right class, averaged over samples.

    Softmax and cross-entropy stay together, since the gradient of the pair is simply p - t.
    """

    def __init__(self, be: Backend, classes: int) -> None:
        self.be = be
        self._p = be.iobuf(classes)
        self._dz = be.iobuf(classes)

    def fprop(self, z: Tensor) -> Tensor:
        """The probabilities (classes, N) of the scores `z` (classes, N)."""
        self.p = self._p[:, : z.shape[1]]
        self.p[:] = self.be.softmax(z, axis=0)
        return self.p

    def bprop(self, labels: Tensor) -> Tensor:
        """The gradient (classes, N) of the mean cost with respect to the scores; `labels` is an integer row (1, N)."""
        samples = labels.shape[1]
        dz = self._dz[:, :samples]
        dz[:] = (self.p - self.be.onehot(labels, axis=0)) / samples
        return dz

    def add_to(self, total: Tensor, labels: Tensor) -> None:
        """Add this minibatch's (cost, right answers), summed over samples, to `total` (2, 1).

        Nothing is read back: sums stay in the backend's memory until somebody asks for them.
        """
        be = self.be
        total[0] = total[0] - be.sum(be.onehot(labels, axis=0) * be.safelog(self.p))
        total[1] = total[1] + be.sum(be.equal(be.argmax(self.p, axis=0), labels))


class Momentum:
    """v = momentum v - rate g, then w = w + v (Polyak 1964). `fuse` makes the two statements one pass over memory."""

    def __init__(self, parameters: Sequence[Parameter], rate: float = 0.1, momentum: float = 0.9) -> None:
        self.parameters = parameters
        self.rate = rate
        self.momentum = momentum
        self.velocities = [w.value.backend.zeros_like(w.value) for w in parameters]

    def update(self, steps: int) -> None:
        """One step down the gradients, the last of `steps`."""
        for w, v in zip(self.parameters, self.velocities):
            with v.backend.fuse():
                v[:] = self.momentum * v - self.rate * w.gradient
                w.value[:] = w.value + v


class Adam:
    """Steps scaled by running means of the gradient and of its square (Kingma and Ba 2015).

    The means are in float32 at least: in a half small squares are 0, and the step infinite.
    """

    def __init__(
        self, parameters: Sequence[Parameter], rate: float = 2e-3, beta1: float = 0.9, beta2: float = 0.999
    ) -> None:
        self.parameters = parameters
        self.rate = rate
        self.beta1 = beta1
        self.beta2 = beta2
        self.means, self.squares = (
            [w.value.backend.zeros(w.value.shape, np.result_type(w.value.dtype, np.float32)) for w in parameters]
            for _ in range(2)
        )

    def update(self, steps: int) -> None:
        """One step down the gradients: the last of `steps`, which correct the means for having started at zero."""
        correct1 = 1 - self.beta1**steps
        correct2 = 1 - self.beta2**steps
        for w, m, s in zip(self.parameters, self.means, self.squares):
            be = w.value.backend
            g = w.gradient
            with be.fuse():
                m[:] = self.beta1 * m + (1 - self.beta1) * g
                s[:] = self.beta2 * s + (1 - self.beta2) * g * g
                w.value[:] = w.value - self.rate * (m / correct1) / (be.sqrt(s / correct2) + 1e-8)
