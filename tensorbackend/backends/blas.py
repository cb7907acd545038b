# SPDX-License-Identifier: Apache-2.0
"""How many threads NumPy's BLAS takes for a product.

OpenBLAS shares even small products among all cores, and its threads wait for each other by spinning: on cores that
others use too, a product of 100 µs then takes milliseconds. Small products run on one thread here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["threads_for"]

SHARED_FROM = 1 << 25
"""Multiply-adds from which on a product is worth sharing: about a millisecond of one core."""

_SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads64_",
            "openblas_set_num_threads")  # fmt: skip


@functools.cache
def _controls() -> tuple[Callable[[int], None], Callable[[], int]] | None:
    """The functions that set and tell OpenBLAS's threads, of the library that NumPy has loaded; None without one."""
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = {line.split()[-1] for line in mapped if "openblas" in line and ".so" in line}
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        for name in _SETTERS:
            if hasattr(library, name):
                return library[name], library[name.replace("_set_", "_get_")]
    return None


@contextlib.contextmanager
def threads_for(multiply_adds: int) -> Iterator[None]:
    """One BLAS thread inside the `with` block when a product of so many multiply-adds is small."""
    controls = _controls() if multiply_adds < SHARED_FROM else None
    if controls is None:
        yield
        return
    set_threads, get_threads = controls
    before = get_threads()
    set_threads(1)
    try:
        yield
    finally:
        set_threads(before)
