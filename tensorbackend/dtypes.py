# SPDX-License-Identifier: Apache-2.0
"""Element types: which there are, how they are spelled, how they combine, and how values move between them.

Halves (float16, bfloat16) are stored as halves and computed in float32. Promotion is NumPy 2's, except that
an integer beside a float takes the float's type, and that true division of integers gives the backend's
default type. A Python number never widens a tensor's type.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np

from tensorbackend.errors import DTypeError, complain

__all__ = [
    "BFLOAT16", "BOOL", "DTYPES", "FLOATS", "INTEGERS", "as_dtype", "cast", "compute", "is_float", "is_half",
    "is_integer", "promote", "tag",
]  # fmt: skip

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BOOL = np.dtype(np.bool_)
INT64 = np.dtype(np.int64)
FLOAT32 = np.dtype(np.float32)

FLOATS = (np.dtype(np.float16), BFLOAT16, FLOAT32, np.dtype(np.float64))
INTEGERS = tuple(np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64))
DTYPES = (*FLOATS, *INTEGERS, BOOL)

_TAGS = {
    **{d: f"f{d.itemsize * 8}" for d in FLOATS},
    **{d: f"{d.kind}{d.itemsize * 8}" for d in INTEGERS},
    BFLOAT16: "bf16",
    BOOL: "b8",
}
_NAMED = {"bfloat16": BFLOAT16, "half": FLOATS[0], "float": FLOAT32, "int": INT64, "bool": BOOL}
_SUPPORTED = frozenset(DTYPES)


@cache
def _as_dtype(spec: object) -> np.dtype:
    if isinstance(spec, str) and spec in _NAMED:
        return _NAMED[spec]
    try:  # NumPy takes whatever has an attribute `dtype`: a tensor, which would live as long as this memo, and numbers
        dtype = np.dtype(spec) if spec is None or isinstance(spec, (str, type, np.dtype)) else None
    except TypeError:
        dtype = None
    if dtype is not None and not dtype.isnative:
        dtype = dtype.newbyteorder("=")
    if dtype not in _SUPPORTED:
        names = ", ".join(d.name for d in DTYPES)
        raise DTypeError(complain("dtype: not an element type of tensors", repr(spec), names))
    return dtype


def as_dtype(spec: object) -> np.dtype:
    """The NumPy dtype that `spec` (a dtype, a scalar type, a name) stands for, in native byte order.

    Raises `DTypeError` for anything else than float16, bfloat16, float32, float64, the signed and unsigned
    integers of 8 to 64 bits and bool.
    """
    try:
        return _as_dtype(spec)
    except TypeError as error:
        if isinstance(error, DTypeError):
            raise
        raise DTypeError(complain("dtype: not an element type", repr(spec), "a dtype or its name")) from None


def as_float(spec: object) -> np.dtype:
    """The floating type that is meant, as `as_dtype`. Raises `DTypeError` for others, and for None."""
    found = None if spec is None else as_dtype(spec)
    if found is None or not is_float(found):
        names = ", ".join(d.name for d in FLOATS)
        raise DTypeError(complain("dtype: not a floating type", repr(spec), names))
    return found


def tag(dtype: np.dtype) -> str:
    """The short name used in kernel names and C: f16 bf16 f32 f64 i8 … u64 b8."""
    return _TAGS[dtype]


def is_float(dtype: np.dtype) -> bool:
    """Whether `dtype` is a floating type (bfloat16 too, whose NumPy kind is not 'f')."""
    return dtype in FLOATS


def is_half(dtype: np.dtype) -> bool:
    """Whether `dtype` is stored in 16 bits and computed in float32."""
    return dtype.itemsize == 2 and is_float(dtype)


def is_integer(dtype: np.dtype) -> bool:
    """Whether `dtype` is a signed or unsigned integer (bool is not)."""
    return dtype.kind in "iu"


def compute(dtype: np.dtype) -> np.dtype:
    """The type in which values of `dtype` are computed and passed between kernels."""
    return FLOAT32 if is_half(dtype) else dtype


@cache
def _promote_pair(a: np.dtype, b: np.dtype) -> np.dtype:
    if a == b:
        return a
    if is_float(a) != is_float(b):
        return a if is_float(a) else b
    if is_half(a) and is_half(b):
        return FLOAT32
    if is_float(a):
        return a if a.itemsize > b.itemsize else b
    return np.promote_types(a, b)


def promote(dtypes: list[np.dtype], weak: list[type], default: np.dtype) -> np.dtype:
    """The common type of operands of `dtypes` and of Python numbers of the types `weak`.

    `default` is what a Python float makes of integers, and what Python floats alone have.
    """
    if not dtypes:
        return default if float in weak else BOOL if set(weak) == {bool} else INT64
    common = dtypes[0]
    for dtype in dtypes[1:]:
        common = _promote_pair(common, dtype)
    if float in weak and not is_float(common):
        return default
    if int in weak and common == BOOL:
        return INT64
    return common


def cast(values: np.ndarray, dtype: np.dtype, out: np.ndarray | None = None) -> np.ndarray:
    """`values` as `dtype`, into `out` if given: what storing into a tensor of that type does.

    Floats to integers truncate towards zero and saturate, NaN gives 0; integers wrap; float64 goes to a half
    through float32; anything but zero is true.
    """
    if out is None:
        out = np.empty(values.shape, dtype)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if dtype == BOOL:  # bytes of bools, too, may be others than 0 and 1, as in a view of an image
        np.not_equal(values.view(np.uint8) if values.dtype == BOOL else values, 0, out=out)
    elif values.dtype == dtype:
        out[...] = values
    elif is_integer(dtype) and (values.dtype.kind == "f" or is_float(values.dtype)):
        _saturate(values, dtype, out)
    elif is_half(dtype) and values.dtype.itemsize == 8:
        out[...] = values.astype(np.float32)
    else:
        np.copyto(out, values, casting="unsafe")
    return out


def _saturate(values: np.ndarray, dtype: np.dtype, out: np.ndarray) -> None:
    if is_half(values.dtype):
        values = values.astype(np.float32)
    info = np.iinfo(dtype)
    low, above = values.dtype.type(info.min), values.dtype.type(2.0) ** (8 * dtype.itemsize - (dtype.kind == "i"))
    inside = (values >= low) & (values < above)
    np.copyto(out, np.where(inside, values, 0), casting="unsafe")
    out[values >= above] = info.max
    out[values < low] = info.min
