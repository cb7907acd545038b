# SPDX-License-Identifier: Apache-2.0
"""Launches on a CUDA device that native code makes by itself, without Python: `kernels/c/cuda_launch.c`.

What a primitive launches is found by running it once on `stand_ins`, addresses that are none: where these come up among
the arguments of launches, the addresses of later calls go.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorbackend.backends import devices, native
from tensorbackend.backends.compiler import compile_source
from tensorbackend.errors import CompileError

if TYPE_CHECKING:
    from tensorbackend.backends.cublas import Cublas, Product

__all__ = ["NativeLaunches", "NotedLaunch", "NotedProduct", "Place", "native_launches", "stand_ins"]

MOST_WORDS = 512
"""8-byte words of arguments at most."""
COST = 1
"""Nanoseconds that a launch is said to take: it is not worth the help of another thread."""
MARK, MARK_AT, NUMBER_AT = 0x1BAD, 48, 40
"""How a stand-in begins, and where its number is: an operand has less than 2^40 bytes."""
CUBLAS_STATUS = 1000
"""What the numbers of cuBLAS's errors are more than, beside those of the NVIDIA driver."""


class Place(NamedTuple):
    """Where an address goes: word `word` is address `pointer` of the launch and `offset` bytes, which is a multiple of
    `grain` (a power of two) where packs are whole."""

    word: int
    pointer: int
    offset: int = 0
    grain: int = 1


class NotedLaunch(NamedTuple):
    """A launch of a kernel that was noted and not made."""

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: bytes


class NotedProduct(NamedTuple):
    """A product by cuBLAS that was noted and not made."""

    product: Product
    operands: tuple[int, int, int]


def stand_ins(count: int) -> list[int]:
    """Addresses of `count` operands that are none."""
    return [MARK << MARK_AT | number << NUMBER_AT for number in range(count)]


def _places(words: Sequence[int]) -> list[Place]:
    """Of each word, which address it stands for; other words are themselves, and of no pointer (-1)."""
    return [Place(n, word >> NUMBER_AT & 0xFF, word & (1 << NUMBER_AT) - 1) if word >> MARK_AT == MARK else
            Place(n, -1, word) for n, word in enumerate(words)]  # fmt: skip


class NativeLaunches:
    """Launches in one stream of the context that is current, by the NVIDIA driver's `library`."""

    def __init__(self, library: Any, stream: int) -> None:
        self._source = compile_source('#include "cuda_launch.c"\n', flags=("-O2",))
        self._library = library
        self._stream = stream
        self._status = ctypes.c_int64(0)
        context = ctypes.c_void_p()
        library.cuCtxGetCurrent(ctypes.byref(context))
        functions = (library.cuCtxGetCurrent, library.cuCtxSetCurrent, library.cuLaunchKernel)
        get, put, self._launch = map(_address, functions)
        self._common = (get, put, context.value or 0, ctypes.addressof(self._status))

    def prepare(self, launch: NotedLaunch, pointers: int, places: Sequence[Place], scalars: tuple[int, int] = (0, 0),
                whole: int = -1) -> native.Launch | None:  # fmt: skip
        """A launch of `pointers` addresses, packed; None when its arguments are too many.

        `scalars` are the number of scalars and their first word; `whole` is the word that says whether all places are
        aligned.
        """
        words = struct.unpack(f"{len(launch.arguments) // 8}q", launch.arguments)
        if len(words) > MOST_WORDS:
            return None
        head = (*self._common, self._launch, self._stream, launch.function, *launch.grid, *launch.block)
        sizes = (*head, len(places), *scalars, whole, len(words), *words)
        return self._packed("tb_cuda_launch", pointers, sizes, places, scalars[0])

    def noted(self, calls: Sequence[NotedLaunch | NotedProduct], pointers: int,
              blas: Cublas | None) -> list[Any] | None:  # fmt: skip
        """What was noted on stand-ins as launches of `pointers` addresses; None where one has too many arguments."""
        found = []
        for call in calls:
            if isinstance(call, NotedProduct):
                sizes = (*self._common, _address(blas.function), *blas.arguments(call.product))
                found.append(self._packed("tb_cuda_product", pointers, sizes, _places(call.operands), 0))
            else:
                words = struct.unpack(f"{len(call.arguments) // 8}q", call.arguments)
                found.append(self.prepare(call, pointers, [p for p in _places(words) if p.pointer >= 0]))
        return found if all(found) else None

    def _packed(self, name: str, pointers: int, sizes: Sequence[int], places: Sequence[Place], scalars: int) -> Any:
        strides = [word for place in places for word in place]
        fn = self._source.address(name)
        return native.runtime().prepare(fn, 1, COST, pointers, sizes, strides, scalars)

    def error(self) -> str:
        """The name of the first error of a launch since the last call; empty without one."""
        status, name = self._status.value, ctypes.c_char_p()
        if not status:
            return ""
        self._status.value = 0
        if status > CUBLAS_STATUS:
            return f"cuBLAS: status {status - CUBLAS_STATUS} of cublasStatus_t"
        self._library.cuGetErrorName(int(status), ctypes.byref(name))
        return (name.value or b"an unknown error").decode()


def _address(function: Callable) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value


def native_launches(stream: int) -> NativeLaunches | None:
    """Native launches in a stream of the current context; None without a C compiler or the NVIDIA driver's library."""
    library = devices.nvidia_driver()
    if isinstance(library, str):
        return None
    try:
        return NativeLaunches(library, stream)
    except CompileError:
        return None
