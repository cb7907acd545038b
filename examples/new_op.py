# SPDX-License-Identifier: Apache-2.0
"""Make an op at run time: what it computes, as NumPy and as C, and its derivative. Then use it like any other.

    python examples/new_op.py [--backend cpu]

The op is the smooth step 3 t^2 - 2 t^3 with t = x held between 0 and 1. docs/adding-an-op.md adds one for everybody,
with a method `be.NAME`, by an entry of the table.
"""

from __future__ import annotations

import argparse

import numpy as np

import tensorbackend as tb
from tensorbackend.graph.optree import apply
from tensorbackend.ops import ELEMENTWISE, Op


def smoothstep(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The NumPy form: the definition, and what runs without a compiler."""
    t = np.clip(x, 0, 1)
    return np.multiply(t * t, 3 - 2 * t, out=out)


SMOOTHSTEP = Op(
    name="smoothstep",
    arity=1,
    kind=ELEMENTWISE,
    numpy=smoothstep,
    code="({x} <= 0 ? 0 : {x} >= 1 ? 1 : {x} * {x} * (3 - 2 * {x}))",
    dtype="float",  # integers become floats
    doc="0 up to 0, 1 from 1, and 3 x^2 - 2 x^3 between.",
    vjp=lambda o, g, z, x: (o.where((x > 0) * (x < 1), g * 6 * x * (1 - x), 0),),
)


def main() -> None:
    """Compute values and a gradient."""
    parser = tb.add_backend_arguments(argparse.ArgumentParser(description="Make an op at run time."))
    be = tb.backend_from_arguments(parser.parse_args())
    x = be.array([[-0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5]], name="x")
    tree = apply(SMOOTHSTEP, x) * 2  # one kernel, together with what is around it
    (gradient,) = tb.Autodiff(tree, be).get_grad_tensor([x])
    print("x         ", x.get()[0])
    print(tree, be.evaluate(tree).get()[0])
    print("gradient  ", gradient.get()[0])


if __name__ == "__main__":
    main()
