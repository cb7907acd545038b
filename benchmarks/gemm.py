# SPDX-License-Identifier: Apache-2.0
"""Products of matrices and what follows them, beside NumPy, PyTorch and JAX, and the multiply-adds of this machine.

Sizes: cubes in every transpose, those of DeepBench (gemm_problems.h of baidu-research/DeepBench), skinny ones, batches.
`nt` says how a and b lie: t is transposed. Operands beyond 2^27 elements are cut along k. `--quick` takes those of at
most 3 GFLOP, cubes without transposes. Shares are of the multiply-adds of vectors: a product on the matrix unit may
have more than all of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from functools import cache

import libraries
import numpy as np

from tensorbackend import bench

CUBES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
LAYOUTS = ("nn", "tn", "nt", "tt")
DEEPBENCH = [
    (1760, 16, 1760, "nn"), (1760, 128, 1760, "nn"), (1760, 7000, 1760, "nn"), (2048, 32, 2048, "nn"),
    (2048, 64, 2048, "nn"), (2048, 7000, 2048, "tn"), (2560, 128, 2560, "nn"), (4096, 16, 4096, "nn"),
    (4096, 128, 4096, "tn"), (1760, 7133, 1760, "nt"), (5124, 9124, 1760, "nn"), (35, 8457, 1760, "nn"),
    (35, 8457, 2048, "tn"), (7680, 64, 2560, "nn"), (3072, 128, 1024, "nn"), (3072, 7435, 1024, "nt"),
    (512, 8, 500000, "nn"), (1024, 16, 500000, "tn"), (1024, 700, 512, "nn"), (512, 24000, 1536, "nn"),
]  # fmt: skip
SKINNY = [(1760, 16, 1760, "nn"), (2560, 64, 2560, "nn"), (4096, 32, 4096, "nn"), (35, 700, 2048, "nn")]
VECTORS = [(4096, 1, 4096, "nn"), (4096, 1, 4096, "tn"), (1, 4096, 4096, "nn")]
BATCHES = [(64, 128, 128, 64), (256, 32, 32, 32), (1000, 8, 8, 8)]
TAILED = [(256, 256, 256), (1024, 1024, 1024), (2560, 64, 2560), (4096, 128, 4096)]
TAILS = {
    "bias": ("{} + c", "add(o, c, out=o)", "torch.addmm(c, x, y, out=o)"),
    "bias relu": (
        "maximum({} + c, 0)",
        "add(o, c, out=o); maximum(o, 0, out=o)",
        "torch.addmm(c, x, y, out=o).relu_()",
    ),
    "bias tanh": ("tanh({} + c)", "add(o, c, out=o); tanh(o, out=o)", "torch.addmm(c, x, y, out=o).tanh_()"),
}
"""What follows a product: in our words and NumPy's and JAX's, into memory with NumPy, and with PyTorch."""
MOST_ELEMENTS = 1 << 27
QUICK_FLOPS = 3e9


def heads(layout: str) -> str:
    """The views that are multiplied."""
    return f"x = a{'.T' if layout[0] == 't' else ''}; y = b{'.T' if layout[1] == 't' else ''}"


def case(
    name: str, lengths: tuple[int, ...], layout: str, dtype: str, options, tail: tuple[str, str, str] | None = None
) -> bench.Case:
    """The case of one product with all contenders; the data are made when first asked for."""
    kind = libraries.dtype_of(dtype)
    *batch, m, n, k = lengths
    shapes = {"a": (*batch, k, m) if layout[0] == "t" else (*batch, m, k),
              "b": (*batch, n, k) if layout[1] == "t" else (*batch, k, n)}  # fmt: skip
    if tail is not None:
        shapes["c"] = (m, 1)
    head = heads(layout)

    @cache
    def arrays() -> dict[str, np.ndarray]:
        draw = np.random.default_rng(0)
        return {key: draw.standard_normal(s, dtype=np.float32).astype(kind) for key, s in shapes.items()}

    def product(x: dict[str, np.ndarray]) -> np.ndarray:
        return np.matmul(*(v.T if t == "t" else v for v, t in zip((x["a"], x["b"]), layout)))

    @cache
    def truth() -> np.ndarray:
        wide = {key: v.astype(np.float64) for key, v in arrays().items()}
        value = product(wide) + wide.get("c", 0)
        return np.maximum(value, 0) if name.endswith("relu") else np.tanh(value) if name.endswith("tanh") else value

    def fresh() -> np.ndarray:
        return np.empty((*batch, m, n), kind)

    text, numpy_tail, torch_text = tail or ("{}", "", "torch.matmul(x, y, out=o)")
    ours, new = text.format("matmul(x, y)" if batch else "dot(x, y)"), text.format("x @ y")
    torch_new = torch_text.replace(", out=o", "")
    makers: dict[str, Callable[[], bench.Contender]] = {
        "tensorbackend": lambda: libraries.engine(options, True).contender(ours, head, arrays(), fresh()),
        "numpy": lambda: libraries.NumPy().contender(
            f"matmul(x, y, out=o); {numpy_tail}", new, head, arrays(), fresh()
        ),
        "torch": lambda: libraries.Torch().contender(torch_text, torch_new, head, arrays(), fresh()),
        "jax": lambda: libraries.Jax().contender(new, head, arrays(), fresh()),
        "cupy": lambda: libraries.CuPy().contender(
            f"matmul(x, y, out=o); {numpy_tail}", new, head, arrays(), fresh()
        ),
    }
    if not batch and m * n * k <= 1 << 24:
        makers["interpreter"] = lambda: libraries.engine(options, False).contender(ours, head, arrays(), fresh())

    def scale() -> np.ndarray:
        return product({key: np.abs(v.astype(np.float32)) for key, v in arrays().items()})

    moved = sum(math.prod(s) for s in (*shapes.values(), (*batch, m, n))) * kind.itemsize
    tolerance = libraries.tolerance(dtype)
    label = name if tail is not None or not set(layout) & {"t"} else f"{name} {layout}"
    shape = (*batch, m, n, k)
    return bench.Case(label, shape, dtype, truth, makers, moved, 2.0 * math.prod(shape), tolerance, scale)


def cut(m: int, n: int, k: int) -> tuple[int, int, int]:
    """The lengths with k such that no operand has too many elements."""
    return m, n, min(k, MOST_ELEMENTS // max(m, n))


def all_cases(quick: bool) -> Iterator[tuple]:
    """(name, lengths, layout, tail) of every case."""
    for size in CUBES:
        for layout in LAYOUTS[: 1 if quick else None]:
            yield "cube", (size,) * 3, layout, None
    for name, group in (("skinny", SKINNY), ("DeepBench", DEEPBENCH), ("vector", VECTORS)):
        for m, n, k, layout in group:
            yield name, cut(m, n, k), layout, None
    for lengths in BATCHES:
        yield "batched", lengths, "nn", None
    for tail, texts in TAILS.items():
        for lengths in TAILED:
            yield f"dot {tail}", lengths, "nn", texts


def cases(options, session: bench.Session) -> Iterator[bench.Case]:
    """The cases that are asked for."""
    for dtype in options.dtype or ("float32",):
        for name, lengths, layout, tail in all_cases(options.quick):
            if options.quick and 2 * math.prod(lengths) > QUICK_FLOPS:
                continue
            if session.wants(name, lengths, dtype):
                yield case(name, lengths, layout, dtype, options, tail)


if __name__ == "__main__":
    sys.exit(bench.main(__doc__, cases))
