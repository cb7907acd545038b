# SPDX-License-Identifier: Apache-2.0
"""Files of `kernels/c` that are compiled with macros: types of their elements, and the libraries made of them."""

from __future__ import annotations

import functools

import numpy as np

from tensorbackend import dtypes, settings
from tensorbackend.backends import compiler
from tensorbackend.backends.compiler import Library

__all__ = ["c_type", "library", "widened"]

_C_TYPES = {"f16": "tb_u16", "bf16": "tb_u16", "f32": "float", "f64": "double", "b8": "uint8_t"}


def c_type(dtype: np.dtype) -> str:
    """The C type of an element in memory; halves are words of `half.h`."""
    tag = dtypes.tag(dtype)
    return _C_TYPES.get(tag) or f"{'u' if tag[0] == 'u' else ''}int{tag[1:]}_t"


def widened(dtype: np.dtype) -> str:
    """The body of a macro that makes an element `x` a number to compute with; halves need `half.h`."""
    return f"tb_{dtypes.tag(dtype)}_to_f32(x)" if dtypes.is_half(dtype) else "(x)"


def library(source: str, flags: tuple[str, ...]) -> Library:
    """A text compiled, or found. Raises `CompileError`."""
    return _library(source, flags, settings.config.sanitize, settings.config.cflags)


@functools.lru_cache(maxsize=256)
def _library(source: str, flags: tuple[str, ...], sanitize: bool, cflags: str) -> Library:
    """`cflags` is here only to be part of what the answer is remembered for."""
    return compiler.compile_many([source], flags=flags, sanitize=sanitize)[0]
