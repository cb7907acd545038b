# SPDX-License-Identifier: Apache-2.0
"""What the estimates of a convolution's ways come to on processors with a matrix unit.

`conv_blocking.py` and `winograd_blocking.py` count operations and moved numbers, at rates of a Zen 4. A Xeon with a
matrix unit makes twice as many multiply-adds a nanosecond and moves numbers no faster. The table has, for each way, the
geometric mean of measured over estimated time: 47 layers of `benchmarks/conv.py` with filters of more than a cell, all
three passes, two threads, whose ways spread by 5 to 20 % around it.
"""

from __future__ import annotations

from tensorbackend.primitives.conv_ways import UPDATE, Direct, Facts, Way, Winograd

__all__ = ["measured"]

MULTIPLY_ADDS, UNIT = "by multiply-adds", "on the unit"
FACTORS = {
    "Depthwise": 0.77, "Few": 0.92,
    f"Direct {MULTIPLY_ADDS}": 0.76, f"Direct {UNIT}": 0.66,
    f"Winograd 4 {MULTIPLY_ADDS}": 0.76, f"Winograd 4 {MULTIPLY_ADDS} shared": 0.72, "Winograd 4 own": 0.84,
    f"Winograd 4 {UNIT}": 0.56, f"Winograd 4 {UNIT} shared": 0.70, "Winograd 4 adjoint": 0.73,
    f"Winograd 6 {MULTIPLY_ADDS}": 0.81, f"Winograd 6 {MULTIPLY_ADDS} shared": 0.68, "Winograd 6 own": 0.98,
    f"Winograd 6 {UNIT}": 0.70, f"Winograd 6 {UNIT} shared": 0.62, "Winograd 6 adjoint": 0.88,
}  # fmt: skip
"""Of the forward pass and the images' gradient, which differ little."""
UPDATE_FACTORS = {
    "Depthwise": 0.70,
    f"Direct {MULTIPLY_ADDS}": 0.61, "Direct dots": 0.85, f"Direct {UNIT}": 0.69,
    f"Winograd 4 {MULTIPLY_ADDS} shared": 0.72, "Winograd 4 own": 0.86, f"Winograd 4 {UNIT} shared": 0.65,
    f"Winograd 6 {MULTIPLY_ADDS} shared": 0.77, "Winograd 6 own": 0.80, f"Winograd 6 {UNIT} shared": 0.74,
}  # fmt: skip
"""Of the filters' gradient."""


def measured(op: str, facts: Facts, way: Way) -> float:
    """How much longer a way takes than its estimate says."""
    if not facts.matrix_unit:
        return 1.0
    return (UPDATE_FACTORS if op == UPDATE else FACTORS).get(_kind(way), 1.0)


def _kind(way: Way) -> str:
    """What a way is called in the tables."""
    if isinstance(way, Direct):
        return "Direct dots" if way.dots else f"Direct {_products(way.planes)}"
    if not isinstance(way, Winograd):
        return type(way).__name__
    if way.adjoint or way.part:
        return f"Winograd {way.points} {'adjoint' if way.adjoint else 'own'}"
    return f"Winograd {way.points} {_products(way.planes)}{' shared' if way.shared else ''}"


def _products(planes: int) -> str:
    return UNIT if planes else MULTIPLY_ADDS
