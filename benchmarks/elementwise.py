# SPDX-License-Identifier: Apache-2.0
"""Elementwise expressions beside NumPy, numexpr, numba, PyTorch and JAX, from 2^8 to 2^24 elements."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

import libraries
import numpy as np

from tensorbackend import bench

DTYPES = ("float32", "bfloat16", "float16", "float64")
COMPARED = ("axpb", "gate")  # expressions whose halves are compared with float32
POLYNOMIAL = [round(math.cos(k), 3) for k in range(11)]


@dataclass(frozen=True)
class Expression:
    """One expression, written as each library likes it best.

    `text` is what it means (and the natural form), with `sig` and `erf` where a library has them; `numpy` and
    `torch` are statements that write `o`, with `t` and the boolean `k` as scratch; `head` names views.
    `arrays` lists the operands and their shapes by letter: f full, c a column, r a row, T transposed, 2 twice as wide.
    """

    name: str
    text: str
    numpy: str
    torch: str
    arrays: str = "x:f"
    numexpr: str | None = ""
    head: str = ""
    new: Mapping[str, str] | None = None
    flops: int = 0

    def operands(self) -> list[tuple[str, str]]:
        """The (name, shape letter) of each operand."""
        return [(name, kind) for name, _, kind in (item.partition(":") for item in self.arrays.split())]

    @property
    def flat(self) -> bool:
        """Whether operands are one-dimensional."""
        return all(kind == "f" for _, kind in self.operands())


def _horner() -> Expression:
    text, numpy, torch = str(POLYNOMIAL[0]), "", ""
    for k, c in enumerate(POLYNOMIAL[1:]):
        text = f"({text})*x + {c}"
        first = f"multiply(x, {POLYNOMIAL[0]}, out=o)" if k == 0 else "multiply(o, x, out=o)"
        numpy += f"{first}; add(o, {c}, out=o); "
        torch += f"{first.replace('multiply', 'mul')}; o.add_({c}); "
    return Expression("poly20", text, numpy.strip("; "), torch.strip("; "), flops=20)


FULL4 = "x:f w:f b:f y:f"
EXPRESSIONS = [
    Expression(
        "copy", "x", "copyto(o, x)", "o.copy_(x)", new={"numpy": "x.copy()", "torch": "x.clone()", "jax": "copy(x)"}
    ),
    Expression("axpb", "x*w + b", "multiply(x, w, out=o); add(o, b, out=o)", "addcmul(b, x, w, out=o)", "x:f w:f b:f"),
    Expression(
        "gate", "sig(x*w + b)*tanh(y)",
        "multiply(x, w, out=o); add(o, b, out=o); negative(o, out=o); exp(o, out=o); add(o, 1, out=o);"
        "tanh(y, out=t); divide(t, o, out=o)",
        "addcmul(b, x, w, out=o); sigmoid(o, out=o); tanh(y, out=t); mul(o, t, out=o)",
        FULL4, "tanh(y)/(1 + exp(-(x*w + b)))",
    ),
    Expression(
        "chain4", "(x*w + b)*y - w",
        "multiply(x, w, out=o); add(o, b, out=o); multiply(o, y, out=o); subtract(o, w, out=o)",
        "addcmul(b, x, w, out=o); mul(o, y, out=o); sub(o, w, out=o)", FULL4,
    ),
    Expression(
        "gelu", "0.5*x*(1 + erf(x*0.7071067811865476))",
        "multiply(x, 0.7071067811865476, out=o); erf(o, out=o); add(o, 1, out=o); multiply(o, x, out=o);"
        "multiply(o, 0.5, out=o)",
        "gelu(x, out=o)", numexpr=None, new={"torch": "gelu(x)"},
    ),
    _horner(),
    Expression("column bias", "x + c", "add(x, c, out=o)", "add(x, c, out=o)", "x:f c:c"),
    Expression("row bias", "x + r", "add(x, r, out=o)", "add(x, r, out=o)", "x:f r:r"),
    Expression("transposed", "xt + y", "add(xt, y, out=o)", "add(xt, y, out=o)", "x:T y:f", head="xt = x.T"),
    Expression("strided", "xs + y", "add(xs, y, out=o)", "add(xs, y, out=o)", "x:2 y:f", head="xs = x[:, ::2]"),
    Expression(
        "where clip", "where(x > 0, clip(x*w, -1, 1), clip(y, -0.5, 0.5)*b)",
        "greater(x, 0, out=k); multiply(x, w, out=t); clip(t, -1, 1, out=t); clip(y, -0.5, 0.5, out=o);"
        "multiply(o, b, out=o); copyto(o, t, where=k)",
        "gt(x, 0, out=k); mul(x, w, out=t); clamp(t, -1, 1, out=t); clamp(y, -0.5, 0.5, out=o); mul(o, b, out=o);"
        "where(k, t, o, out=o)",
        FULL4, "where(x > 0, minimum(maximum(x*w, -1), 1), minimum(maximum(y, -0.5), 0.5)*b)",
    ),
]  # fmt: skip


def full_shape(expression: Expression, length: int) -> tuple[int, ...]:
    """The output's shape for that many elements: flat, or a matrix as square as powers of two allow."""
    if expression.flat:
        return (length,)
    rows = 1 << (length.bit_length() - 1) // 2
    return (rows, length // rows)


def inputs(expression: Expression, shape: tuple[int, ...], dtype: np.dtype) -> dict[str, np.ndarray]:
    """Uniform numbers in [-2, 2), the same for every contender."""
    rng = np.random.default_rng(0)
    rows, cols = shape if len(shape) == 2 else (1, shape[0])
    shapes = {"f": shape, "c": (rows, 1), "r": (1, cols), "T": (cols, rows), "2": (rows, 2 * cols)}
    draw = partial(rng.random, dtype=np.float64 if dtype == np.float64 else np.float32)
    return {name: (draw(shapes[kind]) * 4 - 2).astype(dtype) for name, kind in expression.operands()}


def truth(expression: Expression, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The expression over whole float64 arrays."""
    wide = {name: a.astype(np.float64) for name, a in arrays.items()}
    functions = libraries.NumPy().functions
    if "erf" in expression.text and "erf" not in functions:
        functions["erf"] = np.vectorize(math.erf, otypes=[float])
    return libraries.function(f"return {expression.text}", functions | wide, expression.head)()


def case(expression: Expression, shape: tuple[int, ...], dtype: str, options) -> bench.Case:
    """The case of one expression, shape and dtype with all contenders; arrays are made when first asked for."""
    e = expression
    kind = libraries.dtype_of(dtype)
    arrays = cache(partial(inputs, e, shape, kind))
    fresh = partial(np.empty, shape, kind)
    new = dict.fromkeys(("numpy", "torch", "jax"), e.text) | dict(e.new or {})
    numexpr = e.text if e.numexpr == "" else e.numexpr
    makers: dict[str, Callable[[], bench.Contender]] = {
        "tensorbackend": lambda: libraries.engine(options, True).contender(e.text, e.head, arrays(), fresh()),
        "interpreter": lambda: libraries.engine(options, False).contender(e.text, e.head, arrays(), fresh()),
        "numpy": lambda: libraries.NumPy().contender(e.numpy, new["numpy"], e.head, arrays(), fresh()),
        "numexpr": lambda: libraries.NumExpr().contender(numexpr, e.head, arrays(), fresh()),
        "numba": lambda: libraries.Numba().contender(e.text, e.head, arrays(), fresh()),
        "torch": lambda: libraries.Torch().contender(e.torch, new["torch"], e.head, arrays(), fresh()),
        "jax": lambda: libraries.Jax().contender(new["jax"], e.head, arrays(), fresh()),
        "cupy": lambda: libraries.CuPy().contender(e.numpy, new["numpy"], e.head, arrays(), fresh()),
    }
    if e.name != "copy":
        makers["cupy.fuse"] = lambda: libraries.CuPy().fused(e.text, e.head, arrays())
    if not options.quick and dtype == "float32":
        makers["torch.compile"] = lambda: libraries.Torch().compiled(e.text, e.head, arrays(), fresh())
    size = math.prod(shape)
    read = {"f": size, "c": shape[0], "r": shape[-1], "T": size, "2": 2 * size}
    moved = (size + sum(read[k] for _, k in e.operands())) * kind.itemsize
    tolerance = libraries.tolerance(dtype, 0, 32)
    return bench.Case(e.name, shape, dtype, lambda: truth(e, arrays()), makers, moved, e.flops * size, tolerance)


def cases(options, session: bench.Session) -> Iterator[bench.Case]:
    """All cases, smallest first; `--quick` keeps one or three lengths, and few halves."""
    dtypes = options.dtype or (DTYPES[:3] if options.quick else DTYPES)
    for dtype in dtypes:
        for e in EXPRESSIONS:
            if dtype != "float32" and e.name not in ("copy", "axpb", "gate"):
                continue
            for length in lengths(e.name, dtype, options.quick):
                shape = full_shape(e, length)
                if session.wants(e.name, shape, dtype):
                    yield case(e, shape, dtype, options)


def lengths(name: str, dtype: str, quick: bool) -> list[int]:
    """The lengths of an expression: 2^8 to 2^24, and 2^22 where halves are compared with float32."""
    compared = name in COMPARED and dtype != "float64"
    if not quick:
        return [1 << k for k in (8, 12, 16, 20, *([22] if compared else []), 24)]
    if dtype != "float32":
        return [1 << 22] if compared else []
    return [1 << k for k in {"axpb": (12, 20, 22), "gate": (12, 20, 22), "chain4": (24,)}.get(name, (20,))]


def beside(options, case: bench.Case) -> list[bench.Contender]:
    """The probes of a case; where halves are compared, our own kernel on float32 among them."""
    found = bench.roofs(case)
    if case.dtype in libraries.HALVES and case.name in COMPARED and "tensorbackend" in case.makers:
        e = next(e for e in EXPRESSIONS if e.name == case.name)
        arrays = inputs(e, case.shape, np.dtype(np.float32))
        own = libraries.engine(options, True).contender(e.text, e.head, arrays, np.empty(case.shape, np.float32))
        found.append(bench.Contender("float32", own.call, finish=own.finish, kind="probe", work=(2 * case.bytes, 0.0)))
    return found


def half_gains(rows: list[bench.Row]) -> str:
    """Our halves' elements a second over our float32's, measured in alternating blocks of the same case."""
    cases = {(r.case, r.shape, r.dtype): r.us for r in rows if r.contender == "float32" and r.us}
    lines = [
        f"{r.case} {r.shape[0]} elements: {r.dtype} makes {cases[key] / r.us:.2f}x float32's elements a second"
        for r in rows
        if r.contender == "tensorbackend" and r.us and (key := (r.case, r.shape, r.dtype)) in cases
    ]
    return "\n".join(lines)


def main() -> int:
    options = bench.arguments(__doc__, DTYPES).parse_args()
    bench.pin_threads(options.threads)
    session = bench.Session(options, partial(beside, options))
    session.run(cases(options, session))
    session.write(half_gains(session.rows))
    return session.finish()


if __name__ == "__main__":
    sys.exit(main())
