# SPDX-License-Identifier: Apache-2.0
"""NumPy's BLAS: where its functions are, and how many threads it takes for a product.

OpenBLAS shares even small products among all cores, and its threads wait for each other by spinning: on cores that
others use too, a product of 100 µs then takes milliseconds. Small products run on one thread here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Blas", "library", "threads_for"]

MAPS = Path("/proc/self/maps")
"""What files the process has in memory."""

SHARED_FROM = 1 << 25
"""Multiply-adds from which on a product is worth sharing: about a millisecond of one core."""

_NAMES = [("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")]
"""What names of OpenBLAS begin and end with in NumPy's wheels and elsewhere; 64: where lengths are such integers."""


class Blas(NamedTuple):
    """An OpenBLAS that the process has loaded: the file's `name`, whether lengths are `wide` (64 bits), what sets and
    tells its threads, and the products of matrices (cblas_?gemm) by type of their elements."""

    name: str
    wide: bool
    set_threads: Callable[[int], None]
    get_threads: Callable[[], int]
    products: dict[str, Callable]


@functools.cache
def library() -> Blas | None:
    """The OpenBLAS that NumPy has loaded; None without one."""
    for path, (begin, end) in itertools.product(_mapped(), _NAMES):
        try:
            functions = ctypes.CDLL(path, os.RTLD_NOLOAD)
        except OSError:  # another file is there now, as after an update of NumPy
            continue
        names = [f"{begin}openblas_{name}_num_threads{end}" for name in ("set", "get")]
        names += [f"{begin}cblas_{letter}gemm{end}" for letter in "sd"]
        if all(hasattr(functions, name) for name in names):
            set_threads, get_threads, single, double = (functions[name] for name in names)
            products = {"float32": single, "float64": double}
            return Blas(Path(path).name, bool(end), set_threads, get_threads, products)
    return None


def _mapped() -> list[str]:
    """The files of this process's OpenBLAS. Folders may have any name, with spaces too."""
    try:
        lines = MAPS.read_bytes().split(b"\n")
    except OSError:
        return []
    # A line is a range of addresses, rights, offset, device, inode, and the file's name, which may lack.
    names = (line.split(maxsplit=5)[-1] for line in lines if b"openblas" in line and b".so" in line)
    return sorted({os.fsdecode(name) for name in names})


@contextlib.contextmanager
def threads_for(multiply_adds: int) -> Iterator[None]:
    """One BLAS thread inside the `with` block when a product of so many multiply-adds is small."""
    found = library() if multiply_adds < SHARED_FROM else None
    if found is None:
        yield
        return
    before = found.get_threads()
    found.set_threads(1)
    try:
        yield
    finally:
        found.set_threads(before)
