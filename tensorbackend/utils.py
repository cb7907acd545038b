# SPDX-License-Identifier: Apache-2.0
"""Images as columns or rows of windows, and back, on arrays: NumPy's, or tensors of any backend.

With windows at outH x outW places, *columns* are (N, C, kh, kw, outH, outW), *rows* (N, outH outW, C kh kw), the places
in row-major order. What lies outside an image is 0; going back, windows that overlap add up and padding is cut off.
"""

from __future__ import annotations

from typing import Any

from tensorbackend import functions as F
from tensorbackend.function import arrays
from tensorbackend.function.backprop import grad
from tensorbackend.function.config import using_config
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions.images import each, output_size

__all__ = ["col2im", "im2col", "im2row", "row2im"]


def im2col(img: Any, kh: int, kw: int, sy: int, sx: int, ph: int, pw: int, cover_all: bool = False, dy: int = 1,
           dx: int = 1) -> Any:  # fmt: skip
    """The columns of images (N, C, H, W): windows of kh x kw cells that lie (dy, dx) apart, (sy, sx) from one to the
    next, over images with (ph, pw) zeros around; with `cover_all` no pixel is left out.

    Raises `ShapeError` where there is no place for a window.
    """
    with using_config("enable_backprop", False):
        found = F.im2col(img, (kh, kw), (sy, sx), (ph, pw), cover_all, (dy, dx))
        return F.reshape(found, (*img.shape[:2], kh, kw, *found.shape[2:])).array


def col2im(col: Any, sy: int, sx: int, ph: int, pw: int, h: int, w: int, cover_all: bool = False, dy: int = 1,
           dx: int = 1) -> Any:  # fmt: skip
    """Images (N, C, h, w) of columns, the adjoint of `im2col`. Raises `ValueError` for columns of other images."""
    col, size = as_variable(col), each("col2im: size", (h, w), 2, 0)
    n, c, kh, kw, *places = col.shape
    data = col._known()
    images = Variable(arrays.zeros(arrays.backend_of(data), (n, c, *size), data.dtype))
    with using_config("enable_backprop", True):
        found = F.im2col(images, (kh, kw), (sy, sx), (ph, pw), cover_all, (dy, dx))
    (back,) = grad([found], [images], [F.reshape(col, (n, c * kh * kw, *places))])
    return back.array


def im2row(img: Any, kh: int, kw: int, sy: int, sx: int, ph: int, pw: int) -> Any:
    """The rows of images (N, C, H, W), windows as in `im2col`."""
    with using_config("enable_backprop", False):
        found = F.im2col(img, (kh, kw), (sy, sx), (ph, pw))
        n, inputs, height, width = found.shape
        return F.swapaxes(F.reshape(found, (n, inputs, height * width)), 1, 2).array


def row2im(rows: Any, kh: int, kw: int, sy: int, sx: int, ph: int, pw: int, h: int, w: int) -> Any:
    """Images (N, C, h, w) of rows, the adjoint of `im2row`. Raises `ShapeError` for rows of other images."""
    n, _, inputs = rows.shape
    (kh, kw), (sy, sx) = each("windows", (kh, kw), 2), each("stride", (sy, sx), 2)
    ph, pw = each("pad", (ph, pw), 2, 0)
    height, width = output_size(h, kh, sy, ph), output_size(w, kw, sx, pw)
    with using_config("enable_backprop", False):
        col = F.reshape(F.swapaxes(rows, 1, 2), (n, inputs // (kh * kw), kh, kw, height, width)).array
    return col2im(col, sy, sx, ph, pw, h, w)
