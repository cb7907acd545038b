# SPDX-License-Identifier: Apache-2.0
"""Which of two ways a product goes on a device: the tiled kernel of `kernels/cuda/gemm.cu`, or cuBLAS.

The two add up in different orders. So with a seed the choice comes from the shape alone, and results are the same on
each run; without one both are timed when a shape comes first, and the faster stays (`TB_TUNE=0`: the shape decides).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorbackend import settings
from tensorbackend.backends.cublas import Product, product_of
from tensorbackend.graph.plan import Primitive

if TYPE_CHECKING:
    from tensorbackend.backends.gpu import GpuBackend

__all__ = ["VENDOR_FROM", "choose"]

Runner = Callable[[list[int]], None]

VENDOR_FROM = 2 * 64**3
"""Operations from which on the shape alone decides for cuBLAS: below, a product is over before its launch is."""
RUNS = 3
"""Runs of a candidate that are timed, after one that is not: the fastest counts."""

_log = logging.getLogger("tensorbackend")


def choose(backend: GpuBackend, step: Primitive, own: Runner) -> Runner:
    """How `dot` is run: by `own`, by cuBLAS, or by what is faster when it runs first."""
    blas = backend.driver.blas
    product = product_of(*step.inputs, step.output) if blas is not None else None
    if product is None:
        return own

    def vendor(addresses: list[int]) -> None:
        backend.driver.multiply(product, *addresses)

    if backend.deterministic or not settings.config.tune:
        return vendor if product.flops >= VENDOR_FROM else own

    chosen: int | None = None  # kept here too: in a program's graph, made later, nothing can be timed

    def run(addresses: list[int]) -> None:
        nonlocal chosen
        if chosen is None:
            chosen = backend.choices.get(product)
        if chosen is None:
            chosen = backend.choices[product] = _faster(backend, product, own, vendor, addresses)
        (own, vendor)[chosen](addresses)

    return run


def _faster(backend: GpuBackend, product: Product, own: Runner, vendor: Runner, addresses: list[int]) -> int:
    """The number of the faster one; both leave the product in its place."""
    seconds = []
    for candidate in (own, vendor):
        times = [backend._timed(lambda: candidate(addresses)) for _ in range(1 + RUNS)]  # noqa: B023
        seconds.append(min(times[1:]))
    if settings.config.debug >= 1:
        _log.warning("%s: tiled kernel %.4g us, cuBLAS %.4g us", product, *(s * 1e6 for s in seconds))
    return int(seconds[1] < seconds[0])
