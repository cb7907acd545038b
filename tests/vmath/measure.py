# SPDX-License-Identifier: Apache-2.0
"""Writes the table of docs/accuracy.md: the error and the speed of every function on this machine.

python -m tests.vmath.measure            all float32 inputs: minutes to an hour
python -m tests.vmath.measure --sample   samples only
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import tempfile
from pathlib import Path

import numpy as np

from tensorbackend.backends import toolchain
from tests.vmath.build import DTYPES, ROOT, Kernels, References, build_kernels, build_references
from tests.vmath.cases import FUNCTIONS, Function, sample

PAGE = ROOT / "docs" / "accuracy.md"
SAMPLES = 8
SAMPLE_SIZE = 1 << 20
SPEED_SIZE = 1 << 15
SPEED_ROUNDS = 3000


def main() -> None:
    """Measure, and replace what stands between the marks of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", action="store_true", help="samples instead of all float32 inputs")
    everything = not parser.parse_args().sample
    compiler = toolchain.require_compiler()
    with tempfile.TemporaryDirectory() as folder:
        kernels = build_kernels(Path(folder) / "kernels.so", compiler)
        references = build_references(Path(folder) / "references.so", compiler)
        rows = [row(function, kernels, references, everything) for function in FUNCTIONS]
    table = "\n".join(["| function | bound | error | inputs | ns | bound | error | ns |", "|---" * 8 + "|", *rows])
    PAGE.write_text(replace(replace(PAGE.read_text(), "machine", machine(compiler)), "functions", table))


def machine(compiler: toolchain.Compiler) -> str:
    """The processor, compiler and C library, in a sentence."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    features = toolchain.cpu_features().split()
    sets = [name for name in ("avx512f", "avx2", "asimd") if name in features][:1]
    library = " ".join(platform.libc_ver())
    return ", ".join([names[0] if names else platform.machine(), *sets, compiler.version, library])


def row(function: Function, kernels: Kernels, references: References, everything: bool) -> str:
    """The table's line for a function: float32, then float64."""
    narrow, inputs = sampled(function, "f32", kernels, references), f"{SAMPLES * SAMPLE_SIZE >> 20} M"
    if everything and function.arity == 1:
        narrow, inputs = references.search(function.name, kernels, len(os.sched_getaffinity(0))).error, "all"
    wide = sampled(function, "f64", kernels, references)
    speeds = [f"{speed(function, dtype, kernels, references):.2f}" for dtype in ("f32", "f64")]
    cells = [f"`{function}`", f"{function.f32:g}", f"{narrow:.3f}", inputs, speeds[0]]
    line = f"| {' | '.join([*cells, f'{function.f64:g}', f'{wide:.3f}', speeds[1]])} |"
    sys.stderr.write(line + "\n")
    return line


def sampled(function: Function, dtype: str, kernels: Kernels, references: References) -> float:
    """The largest error in some samples."""
    largest = 0.0
    for seed in range(SAMPLES):
        a, b = sample(function, dtype, SAMPLE_SIZE, seed)
        errors = references.errors(function.name, kernels(f"{function}_{dtype}", a, b), a, b)
        largest = max(largest, float(errors.max()))
    return largest


def speed(function: Function, dtype: str, kernels: Kernels, references: References) -> float:
    """Nanoseconds an element, the arrays in the second-level cache and the arguments ordinary numbers."""
    rng = np.random.default_rng(0)
    a = rng.uniform(max(function.low, -20), min(function.high, 20), SPEED_SIZE).astype(DTYPES[dtype])
    b = rng.uniform(-4, 4, SPEED_SIZE).astype(DTYPES[dtype])
    return references.nanoseconds(f"{function}_{dtype}", kernels, a, b, SPEED_ROUNDS)


def replace(text: str, mark: str, content: str) -> str:
    """`text` with what stands between the two comments of `mark` replaced."""
    pattern = rf"(<!-- {mark} -->\n).*?(<!-- end {mark} -->)"
    return re.sub(pattern, lambda match: f"{match[1]}{content}\n{match[2]}", text, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    main()
