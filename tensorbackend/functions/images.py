# SPDX-License-Identifier: Apache-2.0
"""Images seen otherwise: as columns of windows, resized, with space as channels."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from tensorbackend.errors import ShapeError, complain
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable
from tensorbackend.functions import shapes
from tensorbackend.functions.arguments import Array, Sizes
from tensorbackend.graph import composite as o
from tensorbackend.graph.parts import Parts
from tensorbackend.primitives.geometry import output_length

__all__ = ["depth2space", "im2col", "resize_images", "space2depth"]


def each(name: str, value: Any, axes: int, least: int = 1) -> tuple[int, ...]:
    """A number for each axis: the same for all, or as given. Raises `ShapeError` for another count, and for what is no
    int of at least `least`."""
    try:
        found = (index(value),) * axes if isinstance(value, (int, np.integer)) else tuple(index(v) for v in value)
    except TypeError:
        found = ()
    if len(found) != axes or min(found, default=least) < least:
        wanted = f"an int of at least {least}" + (f", or {axes} of them" if axes > 1 else "")
        raise ShapeError(complain(name, repr(value), wanted))
    return found


def expect_images(name: str, x: Any, axes: str = "(N, C, H, W)") -> None:
    """Raise `ShapeError` unless x has as many axes as `axes` names."""
    if len(x.shape) != axes.count(",") + 1:
        raise ShapeError(complain(f"{name}: images", f"shape {x.shape}", axes))


def image_axes(name: str, shape: tuple[int, ...]) -> tuple[int, str]:
    """How many axes images of a shape have beside (N, C), and the function's name with that. Raises `ShapeError` unless
    it is one to three."""
    axes = len(shape) - 2
    if not 1 <= axes <= 3:
        raise ShapeError(complain(f"{name}_nd: images", f"shape {shape}", "(N, C, …) of one to three axes"))
    return axes, f"{name}_{axes}d"


def output_size(size: int, k: int, stride: int, pad: int, cover_all: bool = False, dilate: int = 1) -> int:
    """How many places a window has along an axis; with `cover_all` no pixel is left out."""
    return output_length(size, dilate * (k - 1) + 1, (pad, pad + stride - 1 if cover_all else pad), stride)


def named(error: Exception, engine: str, name: str) -> Exception:
    """An error of a method of the engine as one of the function that was called."""
    return type(error)(str(error).replace(f"{engine}: ", f"{name}: ", 1))


def by_axis(image: Sequence[int], window: Sequence[int], **each_axis: Sequence[Any]) -> dict[str, Any]:
    """What `conv_layer` calls sizes of images of one to three axes: `D`, `H`, `W` of the image, `T`,
    `R`, `S` of the window, and what else there is for each axis, as `str_d`, `str_h`, `str_w`."""
    first = 3 - len(image)
    sizes = dict(zip("DHW"[first:], image)) | dict(zip("TRS"[first:], window))
    for name, values in each_axis.items():
        sizes |= {f"{name}_{axis}": value for axis, value in zip("dhw"[first:], values)}
    return sizes


def im2col(x: Array, ksize: Sizes, stride: Sizes = 1, pad: Sizes = 0, cover_all: bool = False,
           dilate: Sizes = 1) -> Variable:  # fmt: skip
    """The windows of images (N, C, H, W), by place: (N, C kH kW, outH, outW), with zeros outside.

    Raises `ShapeError` for other images, and where there is no place for a window.
    """
    expect_images("im2col", x)
    (kh, kw), (sy, sx) = each("windows", ksize, 2), each("stride", stride, 2)
    (ph, pw), (dy, dx) = each("pad", pad, 2, 0), each("dilate", dilate, 2)
    n, c, h, w = x.shape
    height, width = output_size(h, kh, sy, ph, cover_all, dy), output_size(w, kw, sx, pw, cover_all, dx)
    if min(height, width) < 1:
        raise ShapeError(complain("im2col: no output", f"images {(h, w)}, windows {(kh, kw)}", "at least one place"))
    axes = ((height, kh, sy, ph, dy), (width, kw, sx, pw, dx))
    return _IM2COL(x, axes=axes)


def _columns(x: Any, axes: tuple[tuple[int, int, int, int, int], ...]) -> Parts:
    """Each cell of the windows is a part; `axes`: (places, window, stride, padding, dilation) of both axes."""
    n, c, *image = x.shape
    (height, kh, *_), (width, kw, *_) = axes
    rows, columns = ([_cell(size, k, *of) for k in range(of[1])] for size, of in zip(image, axes))
    parts = [
        ((slice(None), slice(i * kw + j, None, kh * kw), at_y, at_x), o.slice(x, (slice(None), slice(None), y, x_)))
        for i, (at_y, y) in enumerate(rows) for j, (at_x, x_) in enumerate(columns)
    ]  # fmt: skip
    inside = all(at == slice(0, of[0]) for found, of in zip((rows, columns), axes) for at, _ in found)
    return Parts((n, c * kh * kw, height, width), x.dtype, parts, None if inside else 0)


def _cell(size: int, k: int, places: int, window: int, stride: int, pad: int, dilate: int) -> tuple[slice, slice]:
    """At which places along an axis cell k of the window lies in the image, and on which pixels."""
    off = k * dilate - pad
    first = min(max(-(off // stride), 0), places)
    end = max(min((size - 1 - off) // stride + 1, places), first)
    pixel = first * stride + off
    return slice(first, end), slice(pixel, pixel + (end - first - 1) * stride + 1, stride) if end > first else slice(0)


_IM2COL = Rule("im2col", _columns, names=("x",))


def resize_images(x: Array, output_shape: Sequence[int]) -> Variable:
    """Images (N, C, H, W) to another (height, width) by linear interpolation; corners stay corners.
    Each pixel is a sum of its four neighbours, so that beside a NaN or infinity even those of no weight make it NaN.

    Raises `ShapeError` for another rank, and for images without pixels to others.
    """
    expect_images("resize_images", x)
    sizes = each("resize_images: output_shape", output_shape, 2, 0)
    if any(n == 0 != m for n, m in zip(x.shape[2:], sizes)):
        raise ShapeError(complain("resize_images: no pixels", f"images of shape {x.shape} to {sizes}", "one or more"))
    return _RESIZE(x, sizes=sizes)


def _neighbours(size: int, length: int, dtype: np.dtype, behind: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each of `length` places along an axis of images: the entry before it and the one behind it, and how near it
    is to that, beside `behind` more axes."""
    places = np.linspace(0, size - 1, length)
    low = np.minimum(places.astype(np.int64), max(size - 2, 0))
    share = (places - low).reshape(-1, *(1,) * behind).astype(dtype)
    return low, np.minimum(low + 1, max(size - 1, 0)), share


def _resized(x: Any, sizes: tuple[int, int]) -> Any:
    shape = x.shape
    for axis in (3, 2):
        low, high, near = _neighbours(shape[axis], sizes[axis - 2], x.dtype, 3 - axis)
        share = x.structure.table.backend.array(near, dtype=near.dtype, min_dims=0)
        x = o.take(x, low, axis) * (1 - share) + o.take(x, high, axis) * share
    return x


_RESIZE = Rule("resize_images", _resized, names=("x",))


def space2depth(X: Array, r: int) -> Variable:
    """Squares of r x r pixels as channels: (N, C, H, W) to (N, r² C, H / r, W / r), the place in the square first.

    Raises `ShapeError` where squares do not fit."""
    expect_images("space2depth", X)
    (n, c, h, w), (r,) = X.shape, each("space2depth: r", r, 1)
    if h % r or w % r:
        raise ShapeError(complain("space2depth", f"images {(h, w)}, r {r}", "a divisor of both"))
    apart = shapes.transpose(shapes.reshape(X, (n, c, h // r, r, w // r, r)), (0, 3, 5, 1, 2, 4))
    return shapes.reshape(apart, (n, r * r * c, h // r, w // r))


def depth2space(X: Array, r: int) -> Variable:
    """The inverse of `space2depth`: (N, r² C, H, W) to (N, C, r H, r W) (Shi et al. 2016). Raises `ShapeError` where
    the channels do not divide."""
    expect_images("depth2space", X)
    (n, c, h, w), (r,) = X.shape, each("depth2space: r", r, 1)
    if c % (r * r):
        raise ShapeError(complain("depth2space", f"{c} channels, r {r}", f"a multiple of {r * r}"))
    apart = shapes.transpose(shapes.reshape(X, (n, r, r, c // (r * r), h, w)), (0, 3, 4, 1, 5, 2))
    return shapes.reshape(apart, (n, c // (r * r), h * r, w * r))
