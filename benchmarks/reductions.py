# SPDX-License-Identifier: Apache-2.0
"""Reductions, normalisations and optimizer steps beside NumPy, numexpr, numba, PyTorch and JAX."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import libraries
import numpy as np
import optimizer_steps

from tensorbackend import bench

SHAPES = [(10, 128), (1000, 256), (32000, 64), (64, 100000), (4096, 4096), (1, 10**7), (10**7, 1)]
QUICK_SHAPES = [(10, 128), (1000, 256), (32000, 64)]
COMPILED_SHAPES = [(1000, 256), (4096, 4096)]


@dataclass(frozen=True)
class Reduction:
    """One reduction of `x`, written as each library likes it best.

    `text` is ours and `new` NumPy's natural form, which on float64 is also the truth; `numpy` and `torch` write `o`
    (a pair: `o0` and `o1`; scratch: `t`), `torch_new` and `jax` are natural forms, `numba` statements for one row `r`
    with index `i`.
    `out` is the output's shape: full, rows (r, 1), cols (1, c), one (1, 1), pair (2, c).
    """

    name: str
    text: str
    new: str
    numpy: str
    torch: str
    torch_new: str
    jax: str
    out: str = "full"
    numba: str | None = None
    numexpr: str | None = None
    flops: int = 1
    is_sum: bool = False


def _softmax(axis: int) -> Reduction:
    keep = f"{axis}, keepdims=True"
    return Reduction(
        f"softmax axis {axis}", f"softmax(x, axis={axis})",
        f"(e := exp(x - x.max({keep}))) / e.sum({keep})",
        f"subtract(x, x.max({keep}), out=o); exp(o, out=o); divide(o, o.sum({keep}), out=o)",
        f"softmax(x, {axis}, out=o)", f"softmax(x, {axis})", f"jax.nn.softmax(x, axis={axis})",
        numba="e = np.exp(r - r.max()); o[i] = e / e.sum()" if axis else None,
    )  # fmt: skip


REDUCTIONS = [
    _softmax(1),
    _softmax(0),
    Reduction(
        "log-softmax axis 1", "log_softmax(x, axis=1)",
        "(d := x - x.max(1, keepdims=True)) - log(exp(d).sum(1, keepdims=True))",
        "subtract(x, x.max(1, keepdims=True), out=o); exp(o, out=t); subtract(o, log(t.sum(1, keepdims=True)), out=o)",
        "log_softmax(x, 1, out=o)", "log_softmax(x, 1)", "jax.nn.log_softmax(x, axis=1)",
        numba="d = r - r.max(); o[i] = d - np.log(np.exp(d).sum())",
    ),
    Reduction(
        "layer norm", "(x - mean(x, axis=1)) / sqrt(var(x, axis=1) + 1e-5)",
        "(d := x - x.mean(1, keepdims=True)) / sqrt((d*d).mean(1, keepdims=True) + 1e-5)",
        "subtract(x, x.mean(1, keepdims=True), out=o); multiply(o, o, out=t);"
        "divide(o, sqrt(t.mean(1, keepdims=True) + 1e-5), out=o)",
        "torch.ops.aten.native_layer_norm.out(x, x.shape[1:], None, None, 1e-5, out0=o, out1=t1, out2=t2)",
        "torch.nn.functional.layer_norm(x, x.shape[1:])",
        "(d := x - x.mean(1, keepdims=True)) * jax.lax.rsqrt((d*d).mean(1, keepdims=True) + 1e-5)",
        numba="d = r - r.mean(); o[i] = d / np.sqrt((d*d).mean() + c)",
    ),
    Reduction(
        "variance", "var(x, axis=1)", "x.var(1, keepdims=True)", "var(x, axis=1, keepdims=True, out=o)",
        "var(x, 1, correction=0, keepdim=True, out=o)", "var(x, 1, correction=0, keepdim=True)",
        "x.var(1, keepdims=True)", "rows", "o[i, 0] = r.var()",
    ),
    Reduction(
        "batch-norm statistics", "mean(x, axis=0); var(x, axis=0)", "stack([x.mean(0), x.var(0)])",
        "mean(x, axis=0, out=o0); var(x, axis=0, out=o1)",
        "mean(x, 0, out=o0); var(x, 0, correction=0, out=o1)", "torch.var_mean(x, 0, correction=0)",
        "stack([x.mean(0), x.var(0)])", "pair",
    ),
    Reduction(
        "argmax", "argmax(x, axis=1)", "x.argmax(1)", "argmax(x, axis=1, out=o)", "argmax(x, 1, out=o)",
        "argmax(x, 1)", "x.argmax(1)", "index", "o[i] = r.argmax()",
    ),
    Reduction(
        "L2 norm", "sqrt(sum(square(x), axis=1))", "linalg.norm(x, axis=1, keepdims=True)",
        "einsum('ij,ij->i', x, x, out=o[:, 0]); sqrt(o, out=o)",
        "torch.linalg.vector_norm(x, dim=1, keepdim=True, out=o)",
        "torch.linalg.vector_norm(x, dim=1, keepdim=True)", "sqrt((x*x).sum(1, keepdims=True))", "rows",
        "o[i, 0] = np.sqrt((r*r).sum())",
    ),
    Reduction(
        "row sum", "sum(x, axis=1)", "x.sum(1, keepdims=True)", "sum(x, axis=1, keepdims=True, out=o)",
        "sum(x, 1, keepdim=True, out=o)", "sum(x, 1, keepdim=True)", "x.sum(1, keepdims=True)", "rows",
        "o[i, 0] = r.sum()", "sum(x, axis=1)", is_sum=True,
    ),
    Reduction(
        "column sum", "sum(x, axis=0)", "x.sum(0, keepdims=True)", "sum(x, axis=0, keepdims=True, out=o)",
        "sum(x, 0, keepdim=True, out=o)", "sum(x, 0, keepdim=True)", "x.sum(0, keepdims=True)", "cols",
        None, "sum(x, axis=0)", is_sum=True,
    ),
    Reduction(
        "full sum", "sum(x)", "x.sum(keepdims=True)", "sum(x, keepdims=True, out=o)",
        "sum(x, (0, 1), keepdim=True, out=o)", "sum(x)", "x.sum(keepdims=True)", "one",
        None, "sum(x)", is_sum=True,
    ),
]  # fmt: skip


def out_shape(reduction: Reduction, shape: tuple[int, int]) -> tuple[int, ...]:
    """The output's shape for operands of that shape."""
    rows, cols = shape
    shapes = {"full": shape, "rows": (rows, 1), "cols": (1, cols), "one": (1, 1), "pair": (2, cols), "index": (rows,)}
    return shapes[reduction.out]


def case(r: Reduction, shape: tuple[int, int], dtype: str, options) -> bench.Case:
    """The case of one reduction, shape and dtype with all contenders; the data are made when first asked for."""
    kind = libraries.dtype_of(dtype)

    @cache
    def x() -> np.ndarray:
        return np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(kind)

    @cache
    def wide() -> np.ndarray:
        return x().astype(np.float64)

    def truth() -> np.ndarray:
        return libraries.function(f"return {r.new}", libraries.NumPy().functions | {"x": wide()})()

    def magnitude() -> np.ndarray:
        axis = {"rows": 1, "cols": 0, "one": None}[r.out]
        return np.abs(wide()).sum(axis, keepdims=True)

    fresh = partial(np.empty, out_shape(r, shape), np.int64 if r.out == "index" else kind)
    makers: dict[str, Callable[[], bench.Contender]] = {
        "tensorbackend": lambda: ours(r, libraries.engine(options, True), x(), out_shape(r, shape)),
        "interpreter": lambda: ours(r, libraries.engine(options, False), x(), out_shape(r, shape)),
        "numpy": lambda: libraries.NumPy().contender(r.numpy, r.new, parts(r), {"x": x()}, fresh()),
        "numexpr": lambda: numexpr(r, x(), fresh()),
        "numba": lambda: libraries.Numba().rows(r.numba, x(), fresh()),
        "torch": lambda: torch(r, x(), fresh()),
        "jax": lambda: libraries.Jax().contender(r.jax, "", {"x": x()}, fresh()),
        "cupy": lambda: libraries.CuPy().natural(r.new, "", {"x": x()}),
    }
    if not options.quick and shape in COMPILED_SHAPES and r.out != "pair":
        makers["torch.compile"] = lambda: libraries.Torch().compiled(r.torch_new, "", {"x": x()}, fresh())
    moved = (math.prod(shape) + math.prod(fresh().shape)) * kind.itemsize
    scale = magnitude if r.is_sum else None
    tolerance = libraries.tolerance(dtype, 1e-3, 32)
    return bench.Case(r.name, shape, dtype, truth, makers, moved, 0, tolerance, scale)


def parts(r: Reduction) -> str:
    """The views of a pair's output, which are made before the timing starts."""
    return "o0 = o[0]; o1 = o[1]" if r.out == "pair" else ""


def ours(r: Reduction, engine: libraries.Engine, x: np.ndarray, shape: tuple[int, ...]) -> bench.Contender:
    """This project's contender; two results are two statements that fuse."""
    if r.out == "index":
        shape = (*shape, 1)
    if r.out == "pair":
        first, second = r.text.split("; ")
        body = f"with fuse():\n    o0[:] = {first}\n    o1[:] = {second}"
        head = "o0 = o[:1]; o1 = o[1:]"
        return engine.statements(body, {"x": engine.array(x)}, np.empty(shape, x.dtype), head)
    return engine.contender(r.text, "", {"x": x}, np.empty(shape, x.dtype))


def numexpr(r: Reduction, x: np.ndarray, o: np.ndarray) -> bench.Contender:
    """numexpr drops reduced axes and multiplies its temporaries' types up, so only sums are written with it."""
    return libraries.NumExpr().contender(r.numexpr, "", {"x": x}, o.reshape(()) if r.out == "one" else o.reshape(-1))


def torch(r: Reduction, x: np.ndarray, o: np.ndarray) -> bench.Contender:
    """PyTorch eager; its layer norm also writes the mean and the reciprocal deviation of each row."""
    library = libraries.Torch()
    library.functions |= {name: library.torch.empty(len(x), 1) for name in ("t1", "t2")}
    return library.contender(r.torch, r.torch_new, parts(r), {"x": x}, o)


def cases(options, session: bench.Session) -> Iterator[bench.Case]:
    """All reductions over all shapes."""
    for dtype in options.dtype or ("float32",):
        for reduction in REDUCTIONS:
            for shape in QUICK_SHAPES if options.quick else SHAPES:
                if session.wants(reduction.name, shape, dtype):
                    yield case(reduction, shape, dtype, options)


if __name__ == "__main__":
    sys.exit(bench.main(__doc__, cases, optimizer_steps.cases))
