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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Blas", "library", "threads_for"]

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
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = sorted({line.split()[-1] for line in mapped if "openblas" in line and ".so" in line})
    for path, (begin, end) in itertools.product(paths, _NAMES):
        functions = ctypes.CDLL(path)
        names = [f"{begin}openblas_{name}_num_threads{end}" for name in ("set", "get")]
        names += [f"{begin}cblas_{letter}gemm{end}" for letter in "sd"]
        if all(hasattr(functions, name) for name in names):
            set_threads, get_threads, single, double = (functions[name] for name in names)
            products = {"float32": single, "float64": double}
            return Blas(Path(path).name, bool(end), set_threads, get_threads, products)
    return None


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
