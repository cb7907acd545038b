# SPDX-License-Identifier: Apache-2.0
"""Files of `kernels/c` that are compiled with macros: types of their elements, and the libraries made of them."""

from __future__ import annotations

import functools
import math
import re
import struct
from typing import Any

import numpy as np

from tensorbackend import dtypes, settings
from tensorbackend.backends import compiler, jit
from tensorbackend.backends.compiler import Library
from tensorbackend.backends.toolchain import Compiler, require_compiler
from tensorbackend.codegen.render import ctype
from tensorbackend.graph.plan import Kernel, Primitive, Ref
from tensorbackend.graph.tails import over_matrix
from tensorbackend.kernel_files import kernel_path

__all__ = ["block_library", "block_macros", "c_type", "libraries", "library", "nbytes", "tail", "widened", "words"]

FLAGS = ("-fwrapv", "-ffp-contract=fast")
"""Products add up by fused multiply-adds."""

_BLOCK_MOVES = {
    "float32": ("(from)", "tb_put_f32(to, from, m, past)"),
    "float64": ("(from)", "tb_put_f64(to, from, m, past)"),
    "float16": ("(tb_read_f16(buffer, from, m), (const float *)buffer)", "tb_write_f16(to, from, m)"),
    "bfloat16": ("(tb_read_bf16(buffer, from, m), (const float *)buffer)", "tb_write_bf16(to, from, m)"),
}
"""For each type, how `TB_READ(buffer, from, m)` and `TB_WRITE(to, from, m, past)` move a block."""
_PART = re.compile(r'^#include "((?!kernel\.h)[^"]+)"\n', re.MULTILINE)
"""A file's line for a header of its own; what it needs of `kernel.h` is found by name."""
_C_TYPES = {"f16": "tb_u16", "bf16": "tb_u16", "f32": "float", "f64": "double", "b8": "uint8_t"}


def c_type(dtype: np.dtype) -> str:
    """The C type of an element in memory; halves are words of `half.h`."""
    tag = dtypes.tag(dtype)
    return _C_TYPES.get(tag) or f"{'u' if tag[0] == 'u' else ''}int{tag[1:]}_t"


def widened(dtype: np.dtype) -> str:
    """The body of a macro that makes an element `x` a number to compute with; halves need `half.h`."""
    return f"tb_{dtypes.tag(dtype)}_to_f32(x)" if dtypes.is_half(dtype) else "(x)"


def library(source: str, aim: str = "speed") -> Library:
    """A text compiled, or found. Raises `CompileError`."""
    return libraries((source,), aim)[0]


def libraries(sources: tuple[str, ...], aim: str = "speed") -> list[Library]:
    """Texts compiled side by side for an aim of `toolchain.AIMS`, or found. Raises `CompileError`."""
    return _libraries(sources, aim, settings.config.sanitize, settings.config.cflags, require_compiler())


@functools.lru_cache(maxsize=256)
def _libraries(sources: tuple[str, ...], aim: str, sanitize: bool, cflags: str, found: Compiler) -> list[Library]:
    """`cflags` and `found` are here only to be part of what the answer is remembered for."""
    return compiler.compile_many(sources, flags=FLAGS, sanitize=sanitize, aim=aim)


# Files that work on blocks of elements, widened and narrowed by macros


def block_library(file: str, macros: dict[str, Any]) -> tuple[Library, str]:
    """A file of `kernels/c` compiled with macros, and its text. Raises `CompileError`."""
    config = settings.config
    return _block_library(file, tuple(macros.items()), config.sanitize, config.cflags, require_compiler())


@functools.lru_cache(maxsize=256)
def _block_library(file: str, macros: tuple, sanitize: bool, cflags: str, found: Compiler) -> tuple[Library, str]:
    """All but `file` and `macros` are here only to be part of what the answer is remembered for."""
    head = "".join(f"#define {macro} {value}\n" for macro, value in macros)
    source = head + _with_parts(f"{file}.c")
    return jit.compile_text(source), source


def _with_parts(file: str) -> str:
    """A file's text, with the headers of its own in place of their includes."""
    text = kernel_path(f"c/{file}").read_text(encoding="utf-8")
    return _PART.sub(lambda found: _with_parts(found[1]), text)


def block_macros(dtype: np.dtype) -> dict[str, Any]:
    """The macros by which a kernel works on blocks of a type."""
    wide = dtypes.compute(dtype)
    if not dtypes.is_float(dtype):
        number = ctype(dtype)
        return {
            "TB_X": number,
            "TB_W": number,
            "TB_N": number,
            "TB_READ(buffer, from, m)": "(from)",
            "TB_WRITE(to, from, m, past)": "__builtin_memcpy(to, from, (unsigned long)(m) * sizeof *(from))",
        }
    read, write = _BLOCK_MOVES[dtype.name]
    return {
        "TB_X": ctype(dtype),
        "TB_W": ctype(wide),
        "TB_N": f"tb_i{8 * wide.itemsize}",
        "TB_SQRT": f"tb_sqrt_{dtypes.tag(wide)}",
        "TB_LOG2": f"tb_log2_{dtypes.tag(wide)}",
        "TB_EXP2": f"tb_exp2_{dtypes.tag(wide)}",
        "TB_READ(buffer, from, m)": read,
        "TB_WRITE(to, from, m, past)": write,
    }


def tail(kernel: Kernel, product: int, line: int, others: list[Ref]) -> tuple[list[int], str]:
    """The words of tail.h for a kernel that reads a product whose rows begin `line` elements apart, and its text.

    `product` is its number among the kernel's operands, `others` are the places of the others, of the product's shape.
    Raises `CompileError`.
    """
    found = jit.compile_tail(over_matrix(kernel, product, (line, 1), False))
    places = [word for ref in others for word in (ref.dtype.itemsize, *ref.strides[-2:])]
    return [found.address, found.inner, found.tile, product, 1 + len(others), *places], found.source


def nbytes(step: Primitive) -> int:
    """The bytes of a step's operands."""
    return sum(math.prod(ref.shape) * ref.dtype.itemsize for ref in step.operands)


def words(*numbers: float) -> tuple[int, ...]:
    """Floats as the 8-byte words of a launch."""
    return struct.unpack(f"{len(numbers)}q", struct.pack(f"{len(numbers)}d", *numbers))
