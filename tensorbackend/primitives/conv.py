# SPDX-License-Identifier: Apache-2.0
"""Convolution and its two gradients: layers, the plain NumPy meaning, and the methods of the contract.

`conv`, `conv_bprop` and `conv_update` are ops of the table whose parameter is the geometry: trees may hold them, and
each is the derivative of the others. `fprop_conv` and its sisters build such trees, so that what follows the sums
(bias, ReLU, alpha, beta) is an ordinary elementwise tail. Deconvolution is the same with the passes exchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.errors import ShapeError, complain
from tensorbackend.graph import composite
from tensorbackend.graph.optree import OpTreeNode, apply
from tensorbackend.graph.structure import Structure, sized
from tensorbackend.graph.tensor import Tensor
from tensorbackend.primitives import operands
from tensorbackend.primitives.geometry import ConvGeometry, Pad, each_tap, output_length, pad_pair, positive

__all__ = ["ConvLayer", "Convolution", "DeconvLayer", "bprop_reference", "fprop_reference", "images_gradient",
           "update_reference"]  # fmt: skip

MANY_MAPS, MAPS, CHANNELS, FEW_IMAGES = 256, 128, 96, range(2, 8)
"""Maps of results from which on images whose windows lie side by side are taken apart for a product of matrices: what
each input meets takes longer then than to move it. With so many channels, and not so few images, whose runs are short,
fewer maps do."""


# Meaning: one matrix product a filter cell and group


def _parts(g: ConvGeometry) -> Iterator[tuple[tuple, tuple, tuple]]:
    """For each cell of the filter: its index, the outputs that use it, and the inputs they use it with."""
    return each_tap(g.image, g.result, g.window, g.strides, g.pads, g.dilations)


def _by_group(x: np.ndarray, g: ConvGeometry) -> np.ndarray:
    """Maps first, any axes: as (group, maps of the group, all else)."""
    return np.ascontiguousarray(x).reshape(g.groups, x.shape[0] // g.groups, -1)


def _filter(F: np.ndarray, cell: tuple, g: ConvGeometry) -> np.ndarray:
    """The weights of a filter cell: (group, input map, output map)."""
    weights = F[(slice(None), *cell)]
    return weights.reshape(weights.shape[0], g.groups, -1).transpose(1, 0, 2)


def fprop_reference(I: np.ndarray, F: np.ndarray, g: ConvGeometry, dtype: Any = None) -> np.ndarray:
    """The convolution of I (C, D, H, W, N) with F (C / groups, T, R, S, K), added up in `dtype` (None: that of I)."""
    I, F = I.astype(dtype or I.dtype, copy=False), F.astype(dtype or I.dtype, copy=False)
    O = np.zeros(g.dimO, I.dtype)
    for cell, outputs, inputs in _parts(g):
        part = O[(slice(None), *outputs)]
        part += (_filter(F, cell, g).swapaxes(1, 2) @ _by_group(I[(slice(None), *inputs)], g)).reshape(part.shape)
    return O


def bprop_reference(F: np.ndarray, E: np.ndarray, g: ConvGeometry, dtype: Any = None) -> np.ndarray:
    """The gradient by the input, of E (K, M, P, Q, N) and F, added up in `dtype` (None: that of E)."""
    E, F = E.astype(dtype or E.dtype, copy=False), F.astype(dtype or E.dtype, copy=False)
    grad = np.zeros(g.dimI, E.dtype)
    for cell, outputs, inputs in _parts(g):
        part = grad[(slice(None), *inputs)]
        part += (_filter(F, cell, g) @ _by_group(E[(slice(None), *outputs)], g)).reshape(part.shape)
    return grad


def update_reference(I: np.ndarray, E: np.ndarray, g: ConvGeometry, dtype: Any = None) -> np.ndarray:
    """The gradient by the filters, of I and E, added up in `dtype` (None: that of I)."""
    I, E = I.astype(dtype or I.dtype, copy=False), E.astype(dtype or I.dtype, copy=False)
    grad = np.zeros(g.dimF, I.dtype)
    for cell, outputs, inputs in _parts(g):
        x, e = _by_group(I[(slice(None), *inputs)], g), _by_group(E[(slice(None), *outputs)], g)
        grad[(slice(None), *cell)] = (x @ e.swapaxes(1, 2)).transpose(1, 0, 2).reshape(-1, g.K)
    return grad


# Nodes


def _rule(wanted: tuple[str, str], gives: str) -> Any:
    """A rule of shapes: the operands have the geometry's dims of these names, and so has the result."""

    def shape(op: ops.Op, inputs: tuple[Structure, ...], params: tuple) -> tuple[tuple[int, ...], tuple]:
        (g,) = params
        given = [sized(op, s) for s in inputs]
        expected = [getattr(g, name) for name in wanted]
        if given != expected:
            text = " and ".join(map(str, expected))
            raise ShapeError(complain(f"{op.name}: shapes", " and ".join(map(str, given)), text))
        return getattr(g, gives), params

    return shape


def _conv_vjp(o: Any, e: Any, z: Any, I: Any, F: Any) -> tuple:
    params = z.structure.params
    return apply(BPROP, F, e, params=params), apply(UPDATE, I, e, params=params)


def _bprop_vjp(o: Any, i: Any, z: Any, F: Any, E: Any) -> tuple:
    params = z.structure.params
    return apply(UPDATE, i, E, params=params), apply(FPROP, i, F, params=params)


def _update_vjp(o: Any, f: Any, z: Any, I: Any, E: Any) -> tuple:
    params = z.structure.params
    return apply(BPROP, f, E, params=params), apply(FPROP, I, f, params=params)


def _operations(g: ConvGeometry) -> int:
    return g.flops


_node = functools.partial(ops.primitive, arity=2, dtype="product", params=("geometry",), work=_operations,
                          alike=True)  # fmt: skip
FPROP = _node("conv", numpy=fprop_reference, shape=_rule(("dimI", "dimF"), "dimO"), vjp=_conv_vjp,
              doc="The convolution of images x with filters y; halves add up in float32.")  # fmt: skip
BPROP = _node("conv_bprop", numpy=bprop_reference, shape=_rule(("dimF", "dimO"), "dimI"), vjp=_bprop_vjp,
              doc="The gradient of conv by its images, from filters x and the error y.")  # fmt: skip
UPDATE = _node("conv_update", numpy=update_reference, shape=_rule(("dimI", "dimO"), "dimF"), vjp=_update_vjp,
               doc="The gradient of conv by its filters, from images x and the error y.")  # fmt: skip


# Layers


def _one_or_pair(pad: Pad) -> int | Pad:
    return pad[0] if pad[0] == pad[1] else pad


class ConvLayer:
    """A convolution's parameters, worked out once: element type, sizes and shapes by their names in the contract.

    `N`, `C`, `K`, `M`, `P`, `Q`; `NCK`, `TRS`, `DHW`, `MPQ`; `padding` (a pair where ends differ), `strides`,
    `dilation` for depth, height and width; `groups`; `dimI`, `dimF`, `dimO` and as matrices `dimI2`, `dimF2`, `dimO2`;
    `dimS`, the shape of bias and sums; `sizeI`, `sizeF`, `sizeO`; `nOut`, the results of one image; `flops`; `dot`,
    whether it is computed as a matrix product. `geometry` is what kernels are made from.
    """

    def __init__(self, dtype: Any, geometry: ConvGeometry, scratch: int = 0) -> None:
        """`scratch`: bytes of it at most, 0 for no bound. Raises `DTypeError` for a type that is no float, `ShapeError`
        for sizes that leave nothing to compute."""
        g, self.geometry = geometry, geometry.without_idle()
        self.dtype = operands.float_type("conv_layer", dtype)
        self.N, self.C, self.K, self.M, self.P, self.Q = g.N, g.C, g.K, g.M, g.P, g.Q
        self.NCK, self.TRS, self.DHW, self.MPQ = (g.N, g.C, g.K), g.window, g.image, g.result
        self.padding, self.strides = tuple(map(_one_or_pair, g.pads)), g.strides
        self.dilation, self.groups = g.dilations, g.groups
        self.dimI, self.dimF, self.dimO = g.dimI, g.dimF, g.dimO
        self.dimI2, self.dimF2, self.dimO2 = (operands.matrix(d) for d in (g.dimI, g.dimF, g.dimO))
        self.dimFb, self.dimF2t = (g.K, *g.window, g.C // g.groups), self.dimF2[::-1]
        self.dimS = (g.K, 1)
        self.sizeI, self.sizeF, self.sizeO = (operands.size(d) for d in (g.dimI, g.dimF, g.dimO))
        self.nOut = self.dimO2[0]
        self.flops = g.flops
        many = g.K >= MANY_MAPS or (g.K >= MAPS and g.C >= CHANNELS and g.N not in FEW_IMAGES)
        apart = self.geometry.is_tiled and many
        fits = not scratch or operands.size((*g.dimF[:-1], *g.dimO[1:])) * self.dtype.itemsize <= scratch
        self.dot = self.geometry.is_product or (apart and fits)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.dimI} * {self.dimF} -> {self.dimO} {self.dtype}>"


class DeconvLayer(ConvLayer):
    """A deconvolution's parameters: those of the convolution that it turns round.

    `dimO` is what goes in and `dimI` what comes out, so `nOut` counts the latter.
    """

    def __init__(self, dtype: Any, geometry: ConvGeometry, scratch: int = 0) -> None:
        super().__init__(dtype, geometry, scratch)
        self.nOut = self.dimI2[0]


_Taps = tuple[tuple[int, ...], tuple[Pad, ...], tuple[int, ...], tuple[int, ...]]
"""Windows, pads, strides and dilations, each for depth, height and width."""


def _read_taps(name: str, window: Any, pads: Any, strides: Any, dilations: Any) -> _Taps:
    """The arguments, checked."""

    def read(text: str, values: Any) -> tuple[int, ...]:
        return tuple(positive(name, **dict(zip(text.split(), values))))

    return (
        read("T R S", window),
        tuple(pad_pair(name, pad) for pad in pads),
        read("str_d str_h str_w", strides),
        read("dil_d dil_h dil_w", dilations),
    )


def _check_outputs(name: str, letters: str, outputs: Any, images: Any, taps: _Taps) -> None:
    if min(outputs) < 1:
        found = ", ".join(f"{letter} = {n}" for letter, n in zip(letters, outputs))
        window, pads, strides, dilations = taps
        given = f"images {tuple(images)}, filters {window}, pads {pads}, strides {strides}, dilations {dilations}"
        raise ShapeError(complain(f"{name}: no output", f"{given}, which gives {found}", "at least 1 each"))


def _geometry(name: str, N: int, C: int, image: Any, K: int, result: Any, taps: _Taps, groups: Any) -> ConvGeometry:
    (count,) = positive(name, groups=groups)
    if C % count or K % count:
        raise ShapeError(complain(f"{name}: groups", f"{count} groups of {C} and {K} maps", "a divisor of both"))
    window, pads, strides, dilations = taps
    found = ConvGeometry(N, C, *image, K, *result, *window, strides, pads, dilations, count)
    found.check_padded(name)
    return found


# Methods of the contract


class Convolution:
    """Convolution and deconvolution of the contract; `Backend` inherits them."""

    structures: Any

    def conv_layer(self, dtype: Any, N: int, C: int, K: int, D: int = 1, H: int = 1, W: int = 1, T: int = 1, R: int = 1,
                   S: int = 1, pad_d: int | Pad = 0, pad_h: int | Pad = 0, pad_w: int | Pad = 0, str_d: int = 1,
                   str_h: int = 1, str_w: int = 1, dil_d: int = 1, dil_h: int = 1, dil_w: int = 1,
                   groups: int = 1) -> ConvLayer:  # fmt: skip
        """The parameters of a convolution of N images (C, D, H, W) with K filters (C / groups, T, R, S).

        A pad is one number or a pair (before, after). Output lengths are floor((D + pads - dil_d (T - 1) - 1) / str_d)
        + 1 and alike. `groups` divides C and K: each group of output maps sees its group of input maps. Raises
        `ShapeError` for sizes below 1, groups that do not divide, or no output; `DTypeError` for other types than
        floats.
        """
        sizes = {"N": N, "C": C, "K": K, "D": D, "H": H, "W": W}
        taps = _read_taps("conv_layer", (T, R, S), (pad_d, pad_h, pad_w), (str_d, str_h, str_w), (dil_d, dil_h, dil_w))
        N, C, K, *lengths = positive("conv_layer", **sizes)
        outputs = [output_length(n, d * (c - 1) + 1, pad, s) for n, (c, pad, s, d) in zip(lengths, zip(*taps))]
        _check_outputs("conv_layer", "MPQ", outputs, lengths, taps)
        geometry = _geometry("conv_layer", N, C, lengths, K, outputs, taps, groups)
        return ConvLayer(dtype, geometry, self._most_scratch)

    def deconv_layer(self, dtype: Any, N: int, C: int, K: int, M: int, P: int, Q: int, T: int = 1, R: int = 1,
                     S: int = 1, pad_d: int | Pad = 0, pad_h: int | Pad = 0, pad_w: int | Pad = 0, str_d: int = 1,
                     str_h: int = 1, str_w: int = 1, dil_d: int = 1, dil_h: int = 1, dil_w: int = 1,
                     groups: int = 1) -> DeconvLayer:  # fmt: skip
        """The parameters of a deconvolution of N images (K, M, P, Q) into maps (C, D, H, W).

        D = (M - 1) str_d - pads + dil_d (T - 1) + 1 and alike, the smallest that a convolution takes back to M. Run it
        forward by `bprop_conv`, backward by `fprop_conv`, and get the filters' gradient by `update_conv(layer, error,
        inputs, grad_F)`. Arguments and errors as those of `conv_layer`.
        """
        sizes = {"N": N, "C": C, "K": K, "M": M, "P": P, "Q": Q}
        taps = _read_taps(
            "deconv_layer", (T, R, S), (pad_d, pad_h, pad_w), (str_d, str_h, str_w), (dil_d, dil_h, dil_w)
        )
        N, C, K, *lengths = positive("deconv_layer", **sizes)
        outputs = [(n - 1) * s - sum(pad) + d * (c - 1) + 1 for n, (c, pad, s, d) in zip(lengths, zip(*taps))]
        _check_outputs("deconv_layer", "DHW", outputs, lengths, taps)
        geometry = _geometry("deconv_layer", N, C, outputs, K, lengths, taps, groups)
        return DeconvLayer(dtype, geometry, self._most_scratch)

    def conv(self, layer: ConvLayer, I: Any, F: Any, out: Tensor | None = None) -> Any:
        """The convolution of images I with filters F, tensors or op-trees of the layer's sizes: a node, or `out`.

        Its gradients are the sums of `bprop_conv` and `update_conv`.
        """
        operands.check_layer("conv", layer, ConvLayer, "conv_layer")
        operands.check("conv", layer.dtype, I=(I, layer.dimI), F=(F, layer.dimF))
        operands.check_home(self, I)
        operands.check_home(self, F)
        node = _apply(FPROP, layer, (I, layer.dimI), (F, layer.dimF))
        node = node if node.shape == layer.dimO else composite.reshape(node, layer.dimO)
        if out is None:
            return node
        operands.check_output("conv", out, I, F)
        operands.assign(out, node)
        return out

    def fprop_conv(self, layer: ConvLayer, I: Any, F: Any, O: Any, X: Any = None, bias: Any = None, bsum: Any = None,
                   alpha: float = 1.0, beta: float = 0.0, relu: bool = False, brelu: bool = False, slope: float = 0.0,
                   repeat: int = 1, layer_op: Any = None) -> tuple[float, float] | None:  # fmt: skip
        """O = the convolution of I with F, and what the arguments add to it.

        With v the sums and X the old O unless given, in this order: `bias` (K, 1) is added; `relu`: max(v, 0) +
        slope min(v, 0); v = alpha v + beta X; `brelu`: v times (X > 0) + slope (X < 0); O = v; `bsum` (K, 1) becomes
        the sums of O over all but K. Tensors may have any shape of the right size. `repeat` > 1 runs it as often for
        timing and returns (milliseconds, GFLOP/s). `layer_op` has no effect. Raises `ShapeError`, `DTypeError`,
        `TypeError` for another layer or a factor that is no number, and `ValueError` when O overlaps I or F.
        """
        operands.check_layer("fprop_conv", layer, ConvLayer, "conv_layer")
        dims = {"I": (I, layer.dimI), "F": (F, layer.dimF)}
        tail = _Tail(self, "fprop_conv", layer, dims, (O, layer.dimO), X, bias, bsum, alpha, beta, relu, brelu, slope)
        return operands.repeated(self, repeat, lambda: tail.run(FPROP), layer.flops, "fprop_conv")

    def bprop_conv(self, layer: ConvLayer, F: Any, E: Any, grad_I: Any, X: Any = None, bias: Any = None,
                   bsum: Any = None, alpha: float = 1.0, beta: float = 0.0, relu: bool = False, brelu: bool = False,
                   slope: float = 0.0, repeat: int = 1,
                   layer_op: Any = None) -> tuple[float, float] | None:  # fmt: skip
        """grad_I = the gradient of the convolution by its images, from filters F and the error E.

        The rest is as in `fprop_conv`; `bias` and `bsum` are (C, 1).
        """
        operands.check_layer("bprop_conv", layer, ConvLayer, "conv_layer")
        dims = {"F": (F, layer.dimF), "E": (E, layer.dimO)}
        output = (grad_I, layer.dimI)
        tail = _Tail(self, "bprop_conv", layer, dims, output, X, bias, bsum, alpha, beta, relu, brelu, slope)
        return operands.repeated(self, repeat, lambda: tail.run(BPROP), layer.flops, "bprop_conv")

    def update_conv(self, layer: ConvLayer, I: Any, E: Any, grad_F: Any, alpha: float = 1.0, beta: float = 0.0,
                    repeat: int = 1, grad_bias: Any = None,
                    layer_op: Any = None) -> tuple[float, float] | None:  # fmt: skip
        """grad_F = alpha times the gradient of the convolution by its filters, from I and the error E, + beta grad_F.

        `grad_bias` (K, 1) becomes the sums of E over all but K. `repeat`, `layer_op` and errors as `fprop_conv`.
        """
        operands.check_layer("update_conv", layer, ConvLayer, "conv_layer")
        dims = {"I": (I, layer.dimI), "E": (E, layer.dimO)}
        output = (grad_F, layer.dimF)
        tail = _Tail(self, "update_conv", layer, dims, output, None, None, None, alpha, beta, False, False, 0.0)
        if grad_bias is not None:
            operands.check_column("update_conv", "grad_bias", grad_bias, layer.K, I, E, grad_F)
            if not isinstance(E, Tensor):  # once: it may be random, or read grad_F
                E = self.evaluate(E)
                dims["E"] = (E, layer.dimO)
        timed = operands.repeated(self, repeat, lambda: tail.run(UPDATE), layer.flops, "update_conv")
        if grad_bias is not None:
            operands.sums_of_maps(grad_bias, E, layer.dimO)
        return timed


def _apply(op: ops.Op, layer: ConvLayer, *pairs: tuple[Any, tuple[int, ...]]) -> OpTreeNode:
    if layer.dot:
        return _product(op, layer.geometry, *(x for x, _ in pairs))
    return apply(op, *(composite.reshape(x, dim) for x, dim in pairs), params=(layer.geometry,))


def _product(op: ops.Op, g: ConvGeometry, *given: Any) -> OpTreeNode:
    """A pass that is a product of matrices: with I (inputs of an output, places), F (inputs of an output, K) and E
    (K, places), F' I, F E or I E'. The images' gradient is (C, all else) again, or as the images."""
    inputs, places = operands.size(g.dimF[:-1]), operands.size(g.dimO[1:])
    I, F, E = (inputs, places), (inputs, g.K), (g.K, places)
    shapes = {FPROP: (I, F), BPROP: (F, E), UPDATE: (I, E)}[op]
    tiled = not g.is_product
    if tiled and op is not BPROP:
        given = _windows(g, given[0]), given[1]
    x, y = (composite.reshape(a, shape) for a, shape in zip(given, shapes))
    if op is FPROP:
        x, y = composite.transpose(y), x
    found = apply(ops.OPS["dot"], x, composite.transpose(y) if op is UPDATE else y)
    if op is not BPROP:
        return found
    if tiled:
        return _together(g, found)
    return found if inputs == g.C else composite.reshape(found, (g.C, operands.size(g.dimI[1:])))


def _met(g: ConvGeometry) -> tuple:
    """The index of the inputs that tiled windows meet."""
    axes = zip(g.window, g.strides, g.result)
    spans = [slice(0, m * cells) if cells > 1 else slice(0, (m - 1) * stride + 1, stride) for cells, stride, m in axes]
    return (slice(None), *spans, slice(None))


def _split(g: ConvGeometry) -> tuple[list[int], tuple[int, ...]]:
    """The lengths of these with the cells of a window as axes of their own, and the order in which they come first."""
    lengths, outer, inner = [g.C], [], []
    for cells, m in zip(g.window, g.result):
        outer.append(len(lengths))
        lengths.append(m)
        if cells > 1:
            inner.append(len(lengths))
            lengths.append(cells)
    lengths.append(g.N)
    return lengths, (0, *inner, *outer, len(lengths) - 1)


def _windows(g: ConvGeometry, I: Any) -> Any:
    """Images whose tiled windows are taken apart: C, cells of a window, windows, N."""
    lengths, order = _split(g)
    x = composite.slice(composite.reshape(I, g.dimI), _met(g))
    return composite.transpose(composite.reshape(x, tuple(lengths)), order)


def _together(g: ConvGeometry, x: Any) -> Any:
    """What `_windows` takes apart as images again, with zeros where no window is."""
    lengths, order = _split(g)
    x = composite.reshape(x, tuple(lengths[axis] for axis in order))
    x = composite.transpose(x, tuple(np.argsort(order).tolist()))
    met = tuple(m * cells for m, cells in zip(g.result, g.window))
    x = composite.reshape(x, (g.C, *met, g.N))
    return x if met == g.image else composite.unslice(x, g.dimI, _met(g))


def images_gradient(layer: ConvLayer, F: Any, E: Any) -> Any:
    """The node of a layer's `bprop_conv`, of checked filters F and errors E: a deconvolution of E."""
    node = _apply(BPROP, layer, (F, layer.dimF), (E, layer.dimO))
    return node if node.shape == layer.dimI else composite.reshape(node, layer.dimI)


class _Tail:
    """A pass and what follows its sums, checked: `run(op)` computes it into the output."""

    def __init__(self, backend: Any, name: str, layer: ConvLayer, dims: dict[str, tuple], output: tuple, X: Any,
                 bias: Any, bsum: Any, alpha: float, beta: float, relu: bool, brelu: bool,
                 slope: float) -> None:  # fmt: skip
        self.layer, self.dims, (self.out, self.dim) = layer, dims, output
        self.relu, self.brelu = relu, brelu
        self.alpha, self.beta, slope = operands.numbers(name, alpha=alpha, beta=beta, slope=slope)
        self.slope = dtypes.compute(layer.dtype).type(slope)
        self.X, self.bias, self.bsum = self.out if X is None else X, bias, bsum
        named = {**dims, "output": output, "X": (self.X, self.dim)}
        operands.check(name, layer.dtype, **named)
        for x, _ in named.values():
            operands.check_home(backend, x)
        operands.check_output(name, self.out, *(x for x, _ in dims.values()))
        maps = self.dim[0]
        if bias is not None:
            operands.check(name, None, bias=(bias, (maps, 1)))
            operands.check_home(backend, bias)
        if bsum is not None:
            operands.check_column(name, "bsum", bsum, maps, self.out, *(x for x, _ in dims.values()))

    def run(self, op: ops.Op) -> None:
        """Compute the output, then the sums of its maps."""
        value = self._value(_apply(op, self.layer, *self.dims.values()))
        operands.assign(self.out, value)
        if self.bsum is not None:
            operands.sums_of_maps(self.bsum, self.out, self.dim)

    def _value(self, v: Any) -> Any:
        if self.bias is not None:
            v = v + composite.reshape(self.bias, (self.dim[0], *(1,) * (len(v.shape) - 1)))
        if self.relu:
            low = composite.minimum(v, 0) * self.slope if self.slope else None
            v = composite.maximum(v, 0)
            v = v if low is None else v + low
        v = v if self.alpha == 1 else v * self.alpha
        X = composite.reshape(self.X, v.shape) if self.beta or self.brelu else None
        v = v + X * self.beta if self.beta else v
        return v * ((X > 0) + (X < 0) * self.slope) if self.brelu else v
