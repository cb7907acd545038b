# SPDX-License-Identifier: Apache-2.0
"""Convolutions of images, batch first, as trees over the engine's: `graph` nodes with gradients of any order.

Images (N, C, H, W) are seen as the engine has them, (C, H, W, N), and filters (O, C, kH, kW) as (C, kH, kW, O). What a
convolution makes stays in memory as the engine has it, and so does what is made of it element by element; images that
lie otherwise, as users' do, are copied on their way in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorbackend.errors import DTypeError, ShapeError, complain
from tensorbackend.function import arrays, type_check
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions import images, shapes
from tensorbackend.functions.arguments import Array, Sizes
from tensorbackend.functions.arranging import einsum
from tensorbackend.graph import composite as o
from tensorbackend.primitives.conv import images_gradient
from tensorbackend.primitives.geometry import output_length

__all__ = [
    "convolution_1d", "convolution_2d", "convolution_3d", "convolution_nd", "deconvolution_2d", "deconvolution_nd",
    "depthwise_convolution_2d", "dilated_convolution_2d", "local_convolution_2d", "rowconv",
]  # fmt: skip

Pads = tuple[tuple[int, int], ...]


def to_engine(x: Any) -> Any:
    """The tree (C, D, H, W, N) of images (N, C, …) of one to three axes, or (C, T, R, S, K) of filters (K, C, …)."""
    rank = len(x.shape)
    turned = o.transpose(x, (*range(1, rank), 0))
    return o.reshape(turned, (x.shape[1], *(1,) * (5 - rank), *x.shape[2:], x.shape[0]))


def from_engine(y: Any, rank: int) -> Any:
    """The tree (N, K, …) of `rank` axes of what the engine has as (K, M, P, Q, N)."""
    flat = o.reshape(y, (y.shape[0], *y.shape[6 - rank : 4], y.shape[4]))
    return o.transpose(flat, (rank - 1, *range(rank - 1)))


def _layer(name: str, backend: Any, dtype: Any, n: int, c: int, k: int, image: Sequence[int], window: Sequence[int],
           stride: Sequence[int], pads: Pads, dilate: Sequence[int], groups: int) -> Any:  # fmt: skip
    sizes = images.by_axis(image, window, str=stride, pad=pads, dil=dilate)
    try:
        return backend.conv_layer(dtype, N=n, C=c, K=k, groups=groups, **sizes)
    except (ShapeError, DTypeError) as error:
        raise images.named(error, "conv_layer", name) from None


def _nothing(x: Any, w: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of an empty shape, which depend on x and w."""
    return o.broadcast_to(o.reshape(0 * (o.sum(x, None, False) + o.sum(w, None, False)), (1,) * len(shape)), shape)


def _with_bias(y: Any, bias: tuple[Any, ...]) -> Any:
    return y + o.reshape(bias[0], (1, y.shape[1], *(1,) * (len(y.shape) - 2))) if bias else y


def _convolution(x: Any, w: Any, *bias: Any, stride: tuple, pads: Pads, dilate: tuple, groups: int) -> Any:
    backend, rank = x.structure.table.backend, len(x.shape)
    k, window, name = w.shape[0], w.shape[2:], f"convolution_{rank - 2}d"
    rows = zip(x.shape[2:], window, stride, pads, dilate)
    if any(output_length(n, d * (m - 1) + 1, p, s) < 1 for n, m, s, p, d in rows):
        given = f"images {x.shape[2:]}, filters {window}, pads {pads}, stride {stride}, dilate {dilate}"
        raise ShapeError(complain(f"{name}: no output", given, "at least one place for a filter"))
    layer = _layer(name, backend, x.dtype, max(x.shape[0], 1), x.shape[1], k, x.shape[2:], window, stride, pads, dilate,
                   groups)  # fmt: skip
    if x.shape[0] == 0:
        return _with_bias(_nothing(x, w, (0, k, *layer.MPQ[5 - rank :])), bias)
    y = backend.conv(layer, to_engine(x), to_engine(w))
    return _with_bias(from_engine(y, rank), bias)


def _deconvolution(x: Any, w: Any, *bias: Any, stride: tuple, pads: Pads, dilate: tuple, groups: int,
                   outsize: tuple) -> Any:  # fmt: skip
    backend, rank = x.structure.table.backend, len(x.shape)
    maps, name = w.shape[1] * groups, f"deconvolution_{rank - 2}d"
    layer = _layer(name, backend, x.dtype, max(x.shape[0], 1), maps, x.shape[1], outsize, w.shape[2:], stride, pads,
                   dilate, groups)  # fmt: skip
    if x.shape[0] == 0:
        return _with_bias(_nothing(x, w, (0, maps, *outsize)), bias)
    y = images_gradient(layer, to_engine(w), to_engine(x))
    return _with_bias(from_engine(y, rank), bias)


def _check(in_types: Any, groups: int = 1, **params: Any) -> None:
    x, w, *bias = in_types
    type_check.expect_float(*in_types)
    type_check.expect(x.dtype == w.dtype, x.ndim >= 3, x.ndim <= 5, w.ndim == x.ndim)
    type_check.expect(x.shape[1] == w.shape[1] * groups)
    for b in bias:
        type_check.expect(b.ndim == 1, b.shape[0] == w.shape[0], b.dtype == x.dtype)


def _check_transposed(in_types: Any, groups: int = 1, **params: Any) -> None:
    x, w, *bias = in_types
    type_check.expect_float(*in_types)
    type_check.expect(x.dtype == w.dtype, x.ndim >= 3, x.ndim <= 5, w.ndim == x.ndim, x.shape[1] == w.shape[0])
    for b in bias:
        type_check.expect(b.ndim == 1, b.shape[0] == w.shape[1] * groups, b.dtype == x.dtype)


_RULES = {
    f"{name}_{axes}d": Rule(f"{name}_{axes}d", compute, None, check, ("x", "W", "b"), True)
    for name, compute, check in (
        ("convolution", _convolution, _check), ("deconvolution", _deconvolution, _check_transposed),
    ) for axes in (1, 2, 3)
}  # fmt: skip


def _options(name: str, x: Any, stride: Any, pad: Any, dilate: Any, groups: Any) -> tuple[Any, ...]:
    """The function's name for x's axes, strides, pads and dilations for each of them, and the groups."""
    axes, name = images.image_axes(name, x.shape)
    strides, dilates = images.each(f"{name}: stride", stride, axes), images.each(f"{name}: dilate", dilate, axes)
    (groups,) = images.each(f"{name}: groups", groups, 1)
    return name, strides, images.each(f"{name}: pad", pad, axes, 0), dilates, groups


def convolution_nd(x: Array, W: Array, b: Array | None = None, stride: Sizes = 1, pad: Sizes = 0,
                   cover_all: bool = False, *, dilate: Sizes = 1, groups: int = 1) -> Variable:  # fmt: skip
    """Images x (N, C, …) of one to three axes with filters W (O, C / groups, …) and bias b (O,): (N, O, …).

    y_nopq = b_o + the sum over c, i, j of x_nc(p stride + i dilate - pad)(…) W_ocij, with zeros outside; lengths are
    (size + 2 pad - dilate (k - 1) - 1) // stride + 1, and one more where pixels would be left out, with `cover_all`.
    `stride`, `pad` and `dilate` are a number or one for each axis. Raises `InvalidType` for types and channels that
    do not fit, `ShapeError` for no output.
    """
    name, strides, sides, dilates, groups = _options("convolution", x, stride, pad, dilate, groups)
    pads = tuple((p, p + s - 1 if cover_all else p) for p, s in zip(sides, strides))
    operands = (x, W) if b is None else (x, W, as_variable(b))
    return _RULES[name](*operands, stride=strides, pads=pads, dilate=dilates, groups=groups)


def convolution_1d(x: Array, W: Array, b: Array | None = None, stride: Sizes = 1, pad: Sizes = 0,
                   cover_all: bool = False, *, dilate: Sizes = 1, groups: int = 1) -> Variable:  # fmt: skip
    """`convolution_nd` of sequences (N, C, L). Raises `ShapeError` for another rank."""
    images.expect_images("convolution_1d", x, "(N, C, L)")
    return convolution_nd(x, W, b, stride, pad, cover_all, dilate=dilate, groups=groups)


def convolution_2d(x: Array, W: Array, b: Array | None = None, stride: Sizes = 1, pad: Sizes = 0,
                   cover_all: bool = False, *, dilate: Sizes = 1, groups: int = 1) -> Variable:  # fmt: skip
    """`convolution_nd` of images (N, C, H, W). Raises `ShapeError` for another rank."""
    images.expect_images("convolution_2d", x)
    return convolution_nd(x, W, b, stride, pad, cover_all, dilate=dilate, groups=groups)


def convolution_3d(x: Array, W: Array, b: Array | None = None, stride: Sizes = 1, pad: Sizes = 0,
                   cover_all: bool = False, *, dilate: Sizes = 1, groups: int = 1) -> Variable:  # fmt: skip
    """`convolution_nd` of volumes (N, C, D, H, W). Raises `ShapeError` for another rank."""
    images.expect_images("convolution_3d", x, "(N, C, D, H, W)")
    return convolution_nd(x, W, b, stride, pad, cover_all, dilate=dilate, groups=groups)


def dilated_convolution_2d(x: Array, W: Array, b: Array | None = None, stride: Sizes = 1, pad: Sizes = 0,
                           dilate: Sizes = 1, cover_all: bool = False) -> Variable:  # fmt: skip
    """`convolution_2d` with filters whose cells lie `dilate` apart. Raises `ShapeError` for another rank."""
    images.expect_images("dilated_convolution_2d", x)
    return convolution_nd(x, W, b, stride, pad, cover_all, dilate=dilate)


def _expect_filters(name: str, W: Any, axes: str) -> None:
    """Raise `ShapeError` unless filters have as many axes as `axes` names."""
    if len(W.shape) != axes.count(",") + 1:
        raise ShapeError(complain(f"{name}: filters W", f"shape {W.shape}", axes))


def depthwise_convolution_2d(x: Array, W: Array, b: Array | None = None, stride: Sizes = 1, pad: Sizes = 0) -> Variable:
    """Each of C channels by itself with filters W (M, C, kH, kW): (N, C M, …), a channel's M side by side.

    Raises `ShapeError` for another rank.
    """
    images.expect_images("depthwise_convolution_2d", x)
    _expect_filters("depthwise_convolution_2d", W, "(M, C, kH, kW)")
    many, channels, *window = W.shape
    own = shapes.reshape(shapes.swapaxes(W, 0, 1), (channels * many, 1, *window))
    return convolution_nd(x, own, b, stride, pad, groups=channels)


def deconvolution_nd(x: Array, W: Array, b: Array | None = None, stride: Sizes = 1, pad: Sizes = 0,
                     outsize: Sizes | None = None, *, dilate: Sizes = 1, groups: int = 1) -> Variable:  # fmt: skip
    """The adjoint of `convolution_nd` with the same filters W (C, O / groups, …): x (N, C, …) to (N, O, …), and b (O,).

    Lengths are stride (size - 1) + dilate (k - 1) + 1 - 2 pad, or `outsize`, of which a convolution must give x's size
    again. Raises `InvalidType` for types and channels, `ShapeError` for sizes that do not fit.
    """
    name, strides, sides, dilates, groups = _options("deconvolution", x, stride, pad, dilate, groups)
    window = [d * (k - 1) + 1 for d, k in zip(dilates, W.shape[2:])]
    if outsize is None:
        sizes = tuple(s * (n - 1) + k - 2 * p for s, n, k, p in zip(strides, x.shape[2:], window, sides))
    else:
        sizes = images.each(f"{name}: outsize", outsize, len(strides))
    back = tuple((n + 2 * p - k) // s + 1 for n, p, k, s in zip(sizes, sides, window, strides))
    if back != tuple(x.shape[2:]) or min(sizes) < 1:
        given = f"images {x.shape[2:]} to {sizes}, filters {W.shape[2:]}, stride {strides}, pad {sides}"
        raise ShapeError(complain(f"{name}: sizes", given, "sizes whose convolution gives the images' again"))
    operands = (x, W) if b is None else (x, W, as_variable(b))
    pads = tuple((p, p) for p in sides)
    return _RULES[name](*operands, stride=strides, pads=pads, dilate=dilates, groups=groups, outsize=sizes)


def deconvolution_2d(x: Array, W: Array, b: Array | None = None, stride: Sizes = 1, pad: Sizes = 0,
                     outsize: Sizes | None = None, *, dilate: Sizes = 1, groups: int = 1) -> Variable:  # fmt: skip
    """`deconvolution_nd` of images (N, C, H, W). Raises `ShapeError` for another rank."""
    images.expect_images("deconvolution_2d", x)
    return deconvolution_nd(x, W, b, stride, pad, outsize, dilate=dilate, groups=groups)


def local_convolution_2d(x: Array, W: Array, b: Array | None = None, stride: Sizes = 1) -> Variable:
    """A convolution with filters of their own at each place: W (O, outH, outW, C, kH, kW), b (O, outH, outW).

    Raises `ShapeError` where W is not for the places and channels that x (N, C, H, W) has.
    """
    images.expect_images("local_convolution_2d", x)
    _expect_filters("local_convolution_2d", W, "(O, outH, outW, C, kH, kW)")
    out, height, width, channels, *window = W.shape
    columns = images.im2col(x, tuple(window), stride)
    if tuple(columns.shape[2:]) != (height, width) or x.shape[1] != channels:
        given = f"x {x.shape}, W {W.shape}, stride {stride}"
        raise ShapeError(complain("local_convolution_2d: shapes", given, f"W for {columns.shape[2:]} places"))
    filters = shapes.reshape(W, (out, height, width, columns.shape[1]))
    y = einsum("nkpq,opqk->nopq", columns, filters)
    return y if b is None else y + b


def rowconv(x: Array, W: Array, b: Array, filter_size: Sizes, stride: Sizes = 1, pad: Sizes = 0) -> Variable:
    """A convolution whose filters are columns: rows W + b, with a row (C kH kW) of x (N, C, H, W) for each place, in
    row-major order, W (C kH kW, F) and b (F,): (N, places, F). Raises `ShapeError` for other shapes."""
    images.expect_images("rowconv", x)
    columns = images.im2col(x, filter_size, stride, pad)
    n, inputs, height, width = columns.shape
    if len(W.shape) != 2 or W.shape[0] != inputs or tuple(b.shape) != tuple(W.shape[1:]):
        raise ShapeError(complain("rowconv: shapes", f"W {W.shape}, b {b.shape}", f"W ({inputs}, F), b (F,)"))
    rows = shapes.swapaxes(shapes.reshape(columns, (n, inputs, height * width)), 1, 2)
    return rows @ as_variable(W) + b


def ones_like_filters(x: Any, shape: tuple[int, ...]) -> Any:
    """Filters of ones where x is, of its type."""
    data = arrays.plain(as_variable(x).array)
    return arrays.moved(np.ones(shape, data.dtype), arrays.backend_of(data))
