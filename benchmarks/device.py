# SPDX-License-Identifier: Apache-2.0
"""The cases of the other scripts on a CUDA device, beside CuPy, PyTorch and JAX there.

Sizes fill a large device: 2^25 elements, and a few that show what a launch costs. All contenders keep their data on the
device; a block of calls ends with a wait for the whole device. The roofs are a copy of as many bytes on the device, and
the library's product of float32 matrices of 4096 x 4096 (no TF32, as for PyTorch). `--quick` runs about half the cases.
`--family` names families; `--without jax` saves much of the time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import batchnorm
import conv
import dispatch
import elementwise
import gemm
import libraries
import lookup
import optimizer_steps
import pool
import reductions
import rnn
import roi

from tensorbackend import bench

PROTOCOL = bench.Protocol(blocks=5, pause=0.005, floor=0.02, sample=2e-3, budget=1.0)
ELSEWHERE = ("interpreter", "numpy", "numexpr", "numba", "torch.compile", "F(2x2)", "direct", "timed")
"""Contenders of the other scripts that are of the host, or ways that there are on the host alone."""
LONG = 1 << 25
LENGTHS = (1 << 12, 1 << 16, 1 << 20, 1 << 23, LONG)
SHAPES = [(32000, 64), (8192, 4096), (64, 400000), (1, 1 << 25), (1 << 25, 1)]
GEMMS = [
    *(("cube", (n,) * 3, "nn") for n in (64, 256, 512, 1024, 2048, 4096)), ("cube", (2048,) * 3, "tn"),
    ("DeepBench", (1760, 16, 1760), "nn"), ("DeepBench", (1760, 7000, 1760), "nn"),
    ("DeepBench", (35, 8457, 1760), "nn"), ("batched", (64, 128, 128, 64), "nn"), ("batched", (1000, 8, 8, 8), "nn"),
]  # fmt: skip
PRODUCT = 4096
"""Rows and columns of the product that is the roof."""
QUICK_EXPRESSIONS = ("copy", "axpb", "gate", "transposed", "column bias")

Cases = Iterator[bench.Case]


def of_elementwise(options: Any) -> Cases:
    """Expressions at one long length, two of them at all, and halves."""
    for e in elementwise.EXPRESSIONS:
        if options.quick and e.name not in QUICK_EXPRESSIONS:
            continue
        for length in LENGTHS if e.name == "axpb" else (LONG,):
            yield elementwise.case(e, elementwise.full_shape(e, length), "float32", options)
    for dtype in ("bfloat16", "float16", "float64"):
        for e in elementwise.EXPRESSIONS:
            if e.name in ("axpb", "gate")[: 1 + (not options.quick)]:
                yield elementwise.case(e, (LONG,), dtype, options)


def of_reductions(options: Any) -> Cases:
    """Reductions and normalisations of rows and columns, and optimizer steps."""
    for r in reductions.REDUCTIONS:
        for shape in SHAPES[1:3] if options.quick else SHAPES:
            if min(shape) > 1 or r.is_sum:
                yield reductions.case(r, shape, "float32", options)
    for rule in optimizer_steps.RULES[2 * options.quick :]:
        for name, shapes in (("one", [(LONG,)]), ("fifty", optimizer_steps.FIFTY)):
            size = sum(a * b for a, b in ((*s, 1)[:2] for s in shapes))
            yield optimizer_steps.case(rule, f"{rule.name}, {name}", shapes, size, options)


def of_gemm(options: Any) -> Cases:
    """Products in float32, and a large one in the halves."""
    for name, lengths, layout in GEMMS[:: 2 if options.quick else 1]:
        yield gemm.case(name, lengths, layout, "float32", options)
    for dtype in ("bfloat16", "float16"):
        yield gemm.case("cube", (4096,) * 3, "nn", dtype, options)
    for tail in ("bias", "bias relu"):
        yield gemm.case(f"dot {tail}", (4096, 1024, 1024), "nn", "float32", options, gemm.TAILS[tail])


def of_conv(options: Any) -> Cases:
    """All passes of some layers, batches cut to 20 GFLOP."""
    chosen = [layer for layer in conv.LAYERS if layer.set_ in ("AlexNet", "VGG-A", "one image", "depthwise")]
    for layer in chosen[:: 6 if options.quick else 2]:
        for kind in conv.PASSES:
            yield conv.case(layer.cut(conv.MOST_FLOPS), kind, "float32", options)
        conv.operands.cache_clear()
        conv.truth.cache_clear()


def of_layers(options: Any) -> Cases:
    """Pooling, batch normalisation, recurrent layers, look-ups and regions."""
    for layer in pool.layers(False)[:: 9 if options.quick else 4]:
        for kind in ("fprop", "bprop"):
            yield pool.case(layer, kind, "float32", options)
    for size in batchnorm.SIZES[: 1 if options.quick else 3]:
        for kind in batchnorm.PASSES:
            yield batchnorm.case(batchnorm.Layer(*size), kind, "float32", options)
    for kind, sizes in rnn.SIZES.items():
        for way in ("fprop", "both"):
            yield rnn.case(rnn.Layer(kind, *sizes[0][:2], min(sizes[0][2], 10)), way, "float32", options)
    yield lookup.case(lookup.TABLES[3], "float32", options)
    for kind in ("fprop", "bprop"):
        yield roi.pooling_case(roi.POOLINGS[0], kind, "float32", options)
    yield roi.suppression_case(*roi.BOXES[0], options)


def of_dispatch(options: Any) -> Cases:
    """What a small statement and a captured step cost."""
    yield dispatch.statement(options)
    yield dispatch.captured(options)


FAMILIES: dict[str, Callable[[Any], Cases]] = {
    "dispatch": of_dispatch, "elementwise": of_elementwise, "reductions": of_reductions, "gemm": of_gemm,
    "conv": of_conv, "layers": of_layers,
}  # fmt: skip


class Device:
    """The device that all contenders share: how to wait for it, its roofs, and what it is."""

    def __init__(self) -> None:
        if not libraries.library("torch").cuda.is_available():
            raise bench.Absent("PyTorch, which waits for the device, finds none")
        self.torch = libraries.Torch().torch

    def waiting(self, case: bench.Case) -> bench.Case:
        """The case with its contenders on the device, each of which waits for the device in the end."""
        makers = {name: self._waiting(make) for name, make in case.makers.items() if name not in ELSEWHERE}
        return replace(case, makers=makers)

    def _waiting(self, make: Callable[[], bench.Contender]) -> Callable[[], bench.Contender]:
        def made() -> bench.Contender:
            contender = make()
            return replace(contender, finish=lambda: (contender.finish(), self.torch.cuda.synchronize()))

        return made

    def roofs(self, case: bench.Case) -> list[bench.Contender]:
        """A copy of as many bytes; where the case counts operations, also the library's product."""
        wait, found = self.torch.cuda.synchronize, []
        if case.bytes:
            one, other = (self.torch.ones(max(int(case.bytes) // 8, 1)) for _ in range(2))
            work = (8 * one.numel(), 0.0)
            found.append(bench.Contender("device copy", lambda: other.copy_(one), finish=wait, kind="probe", work=work))
        if case.flops:
            a, b = self._matrices(case.dtype)
            o = a.clone()
            work = (0.0, 2.0 * PRODUCT**3)
            found.append(bench.Contender("library gemm", lambda: self.torch.mm(a, b, out=o), finish=wait,
                                         kind="probe", work=work))  # fmt: skip
        return found

    @cache  # noqa: B019  there is one device
    def _matrices(self, dtype: str) -> tuple[Any, Any]:
        kind = getattr(self.torch, dtype)
        return self.torch.randn(PRODUCT, PRODUCT).to(kind), self.torch.randn(PRODUCT, PRODUCT).to(kind)

    def facts(self) -> dict[str, Any]:
        """The device, its driver, and the libraries that were measured."""
        asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        name, driver = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().split(", ")
        cupy = sys.modules.get("cupy")
        versions = {"cuda of torch": self.torch.version.cuda, "cudnn": self.torch.backends.cudnn.version()}
        versions |= {"cupy": cupy.__version__, "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion()))}
        return {"device": name, "driver": driver, "device libraries": versions}


def main() -> int:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    parser = bench.arguments(__doc__)
    parser.set_defaults(backend="gpu")
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=list(FAMILIES), help="default: all")
    options = parser.parse_args()
    bench.pin_threads(options.threads)
    libraries.use_device()
    try:
        device = Device()
    except bench.Absent as absent:
        print(f"device: not measured: {absent}")
        return bench.NOT_HERE
    session = bench.Session(options, device.roofs)
    session.protocol = PROTOCOL
    for family in options.family:
        session.run(map(device.waiting, FAMILIES[family](options)))
    session.machine |= device.facts()
    return session.finish()


if __name__ == "__main__":
    sys.exit(main())
