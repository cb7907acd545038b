# SPDX-License-Identifier: Apache-2.0
"""Matrices of many short rows, as few channels or classes make them, and running sums, beside the other libraries."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import elementwise
import reductions

from tensorbackend import bench

SHAPES = [(100_000, 3), (25_000, 8), (100_000, 17), (10_000, 100)]
QUICK_SHAPES = SHAPES[:2]
MAPS = {"column bias", "row bias"}
REDUCED = {"softmax axis 1", "variance", "argmax", "row sum"}
RUNNING = [
    reductions.Reduction(
        f"running sum axis {axis}", f"cumsum(x, axis={axis})", f"x.cumsum({axis})", f"cumsum(x, {axis}, out=o)",
        f"cumsum(x, {axis}, out=o)", f"cumsum(x, {axis})", f"x.cumsum({axis})",
    ) for axis in (0, 1)
]  # fmt: skip
RUNNING_SHAPES = [*SHAPES, (1000, 1000), (1, 1_000_000)]


def cases(options, session: bench.Session) -> Iterator[bench.Case]:
    """Maps, then reductions, then running sums."""
    for dtype in options.dtype or ("float32",):
        for e in elementwise.EXPRESSIONS:
            for shape in QUICK_SHAPES if options.quick else SHAPES:
                if e.name in MAPS and session.wants(e.name, shape, dtype):
                    yield elementwise.case(e, shape, dtype, options)
        for r in [*reductions.REDUCTIONS, *RUNNING]:
            shapes = RUNNING_SHAPES if r in RUNNING else SHAPES
            for shape in QUICK_SHAPES if options.quick else shapes:
                if (r in RUNNING or r.name in REDUCED) and session.wants(r.name, shape, dtype):
                    yield reductions.case(r, shape, dtype, options)


if __name__ == "__main__":
    sys.exit(bench.main(__doc__, cases))
