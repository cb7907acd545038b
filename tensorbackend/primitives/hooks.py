# SPDX-License-Identifier: Apache-2.0
"""The small hooks that layers call: containers of layers, transforms, skips, data loading.

And those for several processes, or other memory layouts, which alone and with one layout have nothing to do.

A backend that needs more (a library with layouts of its own, several devices) overrides them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorbackend.errors import ShapeError, complain
from tensorbackend.graph import composite, indexing
from tensorbackend.graph.optree import Operators, expect_tree, finished
from tensorbackend.primitives import operands

__all__ = ["LayerHooks"]


def _check_layers(name: str, layers: Any, method: str) -> None:
    """That all layers of a list have a method, before the first is called. Raises `TypeError`."""
    if not isinstance(layers, Sequence):
        raise TypeError(complain(f"{name}: layers", type(layers).__name__, "a list of layers"))
    for number, layer in enumerate(layers):
        operands.check_function(name, f"layers[{number}]", layer, method)


def _same_length(name: str, **lists: Sequence[Any]) -> None:
    """That lists have an entry for each layer. Raises `ShapeError`, and `TypeError` for what is no list."""
    for what, entries in lists.items():
        if not hasattr(entries, "__len__"):
            raise TypeError(complain(f"{name}: {what}", type(entries).__name__, "a list with an entry for each layer"))
    if len(set(map(len, lists.values()))) > 1:
        given = ", ".join(f"{len(entries)} {what}" for what, entries in lists.items())
        raise ShapeError(complain(f"{name}: lists of different lengths", given, "an entry for each layer"))


def _same_shape(name: str, **tensors: Any) -> None:
    """That all are tensors, op-trees or arrays of one shape. Raises `TypeError` and `ShapeError`."""
    for what, x in tensors.items():
        if not isinstance(x, (Operators, np.ndarray)):
            raise TypeError(complain(f"{name}: {what}", type(x).__name__, "a tensor"))
    if len({x.shape for x in tensors.values()}) > 1:
        given = ", ".join(f"{what} {x.shape}" for what, x in tensors.items())
        raise ShapeError(complain(f"{name}: shapes", given, "one shape"))


class LayerHooks:
    """The layer hooks of the contract; `Backend` inherits them."""

    structures: Any
    empty: Callable[..., Any]
    multiply: Callable[..., Any]
    communicator: Any = None  # of several processes (tensorbackend.distributed), or None

    # Transforms and skips

    def fprop_transform(self, ngLayer: Any, transform: Callable[[Any], Any], inputs: Any, outputs: Any,
                        relu: bool = False) -> None:  # fmt: skip
        """outputs[:] = transform(inputs). `ngLayer` and `relu` have no effect here."""
        operands.check_function("fprop_transform", "transform", transform)
        operands.check_output("fprop_transform", outputs)
        outputs._assign(transform(inputs))

    def bprop_transform(self, ngLayer: Any, transform: Any, outputs: Any, error: Any, deltas: Any,
                        relu: bool) -> None:  # fmt: skip
        """deltas[:] = transform.bprop(outputs) times error. `ngLayer` and `relu` have no effect here."""
        operands.check_function("bprop_transform", "transform", transform, "bprop")
        operands.check_output("bprop_transform", deltas)
        deltas._assign(self.multiply(transform.bprop(outputs), error))

    def fprop_skipnode(self, x: Any, y: Any, beta: float) -> None:
        """y = beta y + x. Without beta the old y is not read. Raises `ShapeError` for other shapes."""
        _same_shape("fprop_skipnode", x=x, y=y)
        operands.check_output("fprop_skipnode", y)
        operands.check_numbers("fprop_skipnode", beta=beta)
        y._assign(x if beta == 0 else y * beta + x)

    def bprop_skipnode(self, error: Any, deltas: Any, alpha: float, beta: float) -> None:
        """deltas = beta deltas + alpha error. Without beta the old deltas are not read. Raises as `fprop_skipnode`."""
        _same_shape("bprop_skipnode", error=error, deltas=deltas)
        operands.check_output("bprop_skipnode", deltas)
        operands.check_numbers("bprop_skipnode", alpha=alpha, beta=beta)
        scaled = error if alpha == 1 else error * alpha
        deltas._assign(scaled if beta == 0 else deltas * beta + scaled)

    # Layers that keep nothing of their own

    def batchnorm_layer(self, in_shape: Any) -> None:
        """What a batch normalisation keeps between calls beside its tensors: None."""

    def relu_layer(self) -> None:
        """What a ReLU keeps between calls: None."""

    def fprop_relu(self, layer: Any, x: Any, slope: float) -> Any:
        """max(x, 0) + slope min(x, 0), a node. `layer` has no effect here."""
        operands.check_numbers("fprop_relu", slope=slope)
        positive = composite.relu(x)
        return positive if slope == 0 else positive + composite.minimum(x, 0) * slope

    def bprop_relu(self, layer: Any, x: Any, error: Any, deltas: Any, slope: float) -> Any:
        """(x > 0) + slope (x < 0), a node: the derivative, not times `error`. Other arguments have no effect here."""
        expect_tree("bprop_relu: x", x)
        operands.check_numbers("bprop_relu", slope=slope)
        return (x > 0) * 1.0 if slope == 0 else (x > 0) + (x < 0) * slope

    def fprop_softmax(self, x: Any, axis: int) -> Any:
        """The softmax of `x` along `axis`, a node: exp(x - max) / sum exp(x - max)."""
        return composite.softmax(x, axis)

    # Containers of layers that share an output (merge by sum) or an input (broadcast)

    def mergesum_layer(self, layer_num: int) -> None:
        """What the sum of `layer_num` branches keeps between calls: None."""

    def fprop_mergesum(self, ngLayer: Any, inputs: Any, inference: bool, layers: Sequence[Any], outputs: Any,
                       out_shape: Any) -> None:  # fmt: skip
        """`l.fprop(inputs, inference, beta=...)` for each layer, beta 0 for the first, then 1: one output gets the sum.

        The layers know their output; `ngLayer`, `outputs` and `out_shape` have no effect here. Raises `TypeError` for
        layers without the method, before the first is called.
        """
        _check_layers("fprop_mergesum", layers, "fprop")
        for number, layer in enumerate(layers):
            layer.fprop(inputs, inference, beta=0.0 if number == 0 else 1.0)

    def bprop_mergesum(self, ngLayer: Any, alpha: float, beta: float, layers: Sequence[Any], error: Any,
                       deltas: Any) -> None:  # fmt: skip
        """`l.bprop(error, alpha=alpha, beta=...)` from the last layer to the first: `beta` for the last, then 1. Raises
        `TypeError` for layers without the method and factors that are no numbers."""
        _check_layers("bprop_mergesum", layers, "bprop")
        operands.check_numbers("bprop_mergesum", alpha=alpha, beta=beta)
        last = len(layers) - 1
        for number in range(last, -1, -1):
            layers[number].bprop(error, alpha=alpha, beta=beta if number == last else 1.0)

    def mergebroadcast_layer(self, layer_num: int) -> None:
        """What `layer_num` branches on one input keep between calls: None."""

    def fprop_mergebroadcast(self, ngLayer: Any, inputs: Any, inference: bool, outputs: Any, layers: Sequence[Any],
                             out_shape: Any) -> None:  # fmt: skip
        """`l.fprop(inputs, inference)` for each layer, into its own part of the output, which the layers know. Raises
        `TypeError` for layers without the method."""
        _check_layers("fprop_mergebroadcast", layers, "fprop")
        for layer in layers:
            layer.fprop(inputs, inference)

    def bprop_mergebroadcast(self, ngLayer: Any, layers: Sequence[Any], error_views: Sequence[Any], error: Any,
                             delta: Any, out_shape: Any, alpha: float, beta: float, alphas: Sequence[float],
                             betas: list[float]) -> None:  # fmt: skip
        """`l.bprop(e, alpha=a * alpha, beta=b)` from the last layer to the first: all add to one delta.

        e, a and b are the layer's entries of `error_views`, `alphas` and `betas`; the last of `betas` becomes `beta`,
        in the list itself. Raises `ShapeError` when the lists differ in length, `TypeError` for layers without the
        method and factors that are no numbers.
        """
        name = "bprop_mergebroadcast"
        _check_layers(name, layers, "bprop")
        _same_length(name, layers=layers, error_views=error_views, alphas=alphas, betas=betas)
        operands.check_numbers(name, alpha=alpha, beta=beta, **{f"alphas[{i}]": a for i, a in enumerate(alphas)},
                               **{f"betas[{i}]": b for i, b in enumerate(betas)})  # fmt: skip
        if isinstance(betas, tuple):
            raise TypeError(complain(f"{name}: betas", "tuple", "a list, whose last entry is written"))
        if betas:
            betas[-1] = beta
        for layer, e, a, b in reversed(list(zip(layers, error_views, alphas, betas))):
            layer.bprop(e, alpha=a * alpha, beta=b)

    # Data

    def consume(self, buf_index: int, hostlist: Sequence[np.ndarray], devlist: list[Any]) -> None:
        """devlist[i][:] = hostlist[i].T with i = `buf_index`, 0 or 1: one of a data loader's two buffers.

        A buffer of None is allocated first, of the host array's type. Numbers along one axis fill a buffer of as many.
        Raises `ValueError` for another index, `TypeError` for lists without an entry for it, and for a tuple where a
        buffer is to be allocated.
        """
        if not isinstance(buf_index, (int, np.integer)) or buf_index not in (0, 1):
            raise ValueError(complain("consume: buf_index", repr(buf_index), "0 or 1"))
        for name, given in (("hostlist", hostlist), ("devlist", devlist)):
            if not isinstance(given, (list, tuple)) or len(given) <= buf_index:
                raise TypeError(complain(f"consume: {name}", repr(given)[:200], f"a list with an entry {buf_index}"))
        host, buffer = indexing.as_array("consume: hostlist", hostlist[buf_index]).T, devlist[buf_index]
        if buffer is None:
            if isinstance(devlist, tuple):
                raise TypeError(complain("consume: devlist", "a tuple without a buffer", "a list, which gets one"))
            buffer = self.empty(host.shape, dtype=host.dtype)
        if host.ndim == 1 and host.size == math.prod(buffer.shape):
            host = host.reshape(buffer.shape)
        _same_shape("consume", buffer=buffer, data=host)
        buffer._assign(host)
        if devlist[buf_index] is None:
            devlist[buf_index] = buffer

    def Relu(self, ary: Any, out: Any = None) -> Any:
        """max(ary, 0) of a NumPy array, at once, or of a tensor or op-tree, as a node; or into `out`."""
        if isinstance(ary, (np.ndarray, np.generic, bool, int, float)) and (out is None or isinstance(out, np.ndarray)):
            return np.maximum(ary, 0, out=out)
        expect_tree("Relu: ary", ary)
        return finished(composite.relu(ary), out)

    # Several processes: their share of a minibatch

    def distribute_data(self, tensor: Any, layer_parallelism: str | None) -> Any:
        """The columns of activations or errors (features, N) that this process works on, as a view, for a layer that is
        parallel over 'Data'. None where all of them are: one process, or another kind of layer. Raises `ShapeError`
        for columns that the processes cannot share equally, `ValueError` for what is no kind ('Model', 'Disabled',
        'Unknown', None)."""
        operands.check_parallelism("distribute_data", layer_parallelism)
        shared = self.communicator is not None and layer_parallelism == "Data"
        return self.communicator.columns(tensor) if shared else None

    def revert_tensor(self, tensor: Any) -> None:
        """Undo `distribute_data`: each process's columns, as it wrote them, in every process. One has them."""
        if self.communicator is not None:
            self.communicator.join_columns(tensor)

    # Other layouts: nothing to do

    def is_mkl(self) -> bool:
        """Whether activations may be in a layout of a vendor's library: no."""
        return False

    def convert_data(self, tensor: Any, layer_mkl: Any) -> None:
        """Bring a tensor from a library's layout to the plain one: it is."""

    def clean_data(self, tensor: Any, layer_mkl: Any) -> None:
        """Forget that a tensor is in a library's layout: it never is."""

    def allocate_new_deltas(self, delta: Any, in_shape: Any, parallelism: str | None) -> Any:
        """The buffer for a layer's deltas: the one given. `parallelism` as in `iobuf`."""
        operands.check_parallelism("allocate_new_deltas", parallelism)
        return delta

    def allocate_new_outputs(self, layer: Any, share_output: Any) -> None:
        """Have a layer allocate its outputs: `layer.allocate(shared_outputs=share_output)`. Raises `TypeError` for one
        that cannot."""
        operands.check_function("allocate_new_outputs", "layer", layer, "allocate")
        layer.allocate(shared_outputs=share_output)
