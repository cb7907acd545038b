# SPDX-License-Identifier: Apache-2.0
"""What the first call of an expression costs: cold, several at once, from the disk cache; beside JAX and PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import libraries
import numpy as np

from tensorbackend import bench
from tensorbackend.backends import compiler
from tensorbackend.testing.batches import compile_together

UNARY = ("sig", "tanh", "exp", "log", "sqrt", "square")
TEXTS = [f"{first}(x*w + b)*{second}(y)" for first, second in product(UNARY, UNARY) if first != second]
LENGTH, OTHER_LENGTH = 1000, 1500
MODES = ("cold", "another size", "warm", "warm, of a whole program", "warm, a process's first", "library from disk",
         "together", "together warm")  # fmt: skip


def inputs(length: int = LENGTH) -> dict[str, np.ndarray]:
    """Positive operands, so that every function has a value."""
    rng = np.random.default_rng(0)
    return {name: rng.random(length, dtype=np.float32) + 0.5 for name in "xwby"}


def first_calls(calls: list[Callable[[], Any]]) -> list[float]:
    """Seconds by which the first run of each call exceeds its third."""
    out = []
    for call in calls:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        out.append(times[0] - times[2])
    return out


def ours(options, mode: str) -> list[float]:
    """Seconds a kernel: whole statements, tree and launch included, or the kernels of all compiled together."""
    engine = libraries.engine(options, True)
    known = engine.known("; ".join(TEXTS))
    texts = TEXTS[: options.count]

    def stated(length: int) -> tuple[list, dict[str, Any], list[Callable[[], Any]]]:
        arrays = {name: engine.array(a) for name, a in inputs(length).items()}
        outs = [engine.be.empty(length, dtype=np.float32) for _ in texts]
        each = zip(texts, outs)
        return outs, arrays, [libraries.function(f"o[:] = {t}", known | arrays | {"o": o}) for t, o in each]

    outs, arrays, statements = stated(LENGTH)
    if mode == "warm, a process's first":
        return first_calls(statements[:1])
    engine.be.empty(8, dtype=np.float32)[:] = 0.0
    if "together" in mode:
        trees = [libraries.function(f"return {t}", known | arrays) for t in texts]
        total = first_calls([lambda: compile_together(engine.be, ((o, tree()) for o, tree in zip(outs, trees)))])[0]
        return [total / len(texts)]
    if mode == "another size":
        first_calls(statements)
        return first_calls(stated(OTHER_LENGTH)[2])
    if mode == "warm, of a whole program":
        return [sum(first_calls([lambda: [run() for run in statements]])) / len(texts)]
    return first_calls(statements)


def from_disk(options, count: int) -> list[float]:
    """Seconds from the key of a kernel to its loaded library: finding, checking and loading the entry."""
    engine = libraries.engine(options, True)
    arrays = {name: engine.array(a) for name, a in inputs().items()}
    trees = [libraries.function(f"return {t}", engine.known(t) | arrays) for t in TEXTS[:count]]
    seconds: list[float] = []
    load = compiler.load

    def timed(key: str) -> compiler.Library | None:
        start = time.perf_counter()
        found = load(key)
        seconds.append(time.perf_counter() - start)
        return found

    compiler.load = timed
    for tree in trees:
        engine.be.empty(LENGTH, dtype=np.float32)[:] = tree()
    return seconds


def jax(count: int, another: bool = False) -> list[float]:
    """Seconds of tracing and compiling with `jax.jit`; `another`: once more, for another size."""
    library = libraries.Jax()
    functions = [library.jax.jit(eval(f"lambda x, w, b, y: {t}", dict(library.functions))) for t in TEXTS[:count]]
    for length in (LENGTH, OTHER_LENGTH)[: 1 + another]:
        arrays = [library.array(a) for a in inputs(length).values()]
        seconds = first_calls([lambda f=f, a=arrays: library.jax.block_until_ready(f(*a)) for f in functions])
    return seconds


def torch_compile(count: int) -> list[float]:
    """Seconds of tracing and compiling with `torch.compile`; the first, which starts its machinery, is left out."""
    library = libraries.Torch()
    arrays = [library.array(a) for a in inputs().values()]
    functions = library.functions | {"log": library.torch.log}
    compiled = [library.torch.compile(eval(f"lambda x, w, b, y: {t}", functions)) for t in TEXTS[: count + 1]]
    return first_calls([lambda f=f: f(*arrays) for f in compiled])[1:]


def numba(count: int) -> list[float]:
    """Seconds of compiling with numba."""
    library, arrays = libraries.Numba(), inputs()
    makers = [library.contender(t, "", arrays, np.empty(LENGTH, np.float32)) for t in TEXTS[:count]]
    return first_calls([m.call for m in makers])


def in_child(options, mode: str, count: int, cache: str, **environment: str) -> list[float]:
    """The seconds that a fresh process finds for one mode, with its own folder of compiled kernels."""
    command = [sys.executable, __file__, "--child", mode, "--count", str(count)]
    command += ["--backend", options.backend, "--threads", str(options.threads)]
    env = {**os.environ, "TB_CACHE": cache, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if isinstance(answer, str):
        raise bench.Absent(answer)
    return answer


def child(options) -> int:
    """Measure one mode and print the seconds, or the reason for absence, as JSON."""
    modes = {
        "library from disk": partial(from_disk, options),
        "jax": jax,
        "jax, another size": partial(jax, another=True),
        "torch.compile": torch_compile,
        "numba": numba,
    }
    try:
        answer: Any = modes[options.child](options.count) if options.child in modes else ours(options, options.child)
    except bench.Absent as reason:
        answer = str(reason)
    sys.stdout.write(json.dumps(answer) + "\n")
    return 0


def row(case: str, contender: str, measure: Callable[[], list[float]]) -> bench.Row:
    """The row of one contender."""
    made = bench.Row(case, (LENGTH,), "float32", contender, "ours" if contender == "tensorbackend" else "rival")
    try:
        low, made.us, high = (float(q) * 1e6 for q in np.percentile(measure(), (25, 50, 75)))
        made.spread_us = high - low
    except bench.Absent as reason:
        made.note = f"absent: {reason}"
    except RuntimeError as reason:
        made.note, made.failed = f"FAILED: {reason}", True
    return made


def case_name(mode: str) -> str:
    """The name of a mode's rows; all figures are for one kernel."""
    return f"compile, {mode}, each"


def main() -> int:
    parser = bench.arguments(__doc__)
    modes = [*MODES, "jax", "jax, another size", "torch.compile", "numba"]
    parser.add_argument("--child", choices=modes, metavar="MODE", help="measure one mode only: " + "; ".join(modes))
    parser.add_argument("--count", type=int, default=None, help="how many expressions (default 24; 8 with --quick)")
    options = parser.parse_args()
    bench.pin_threads(options.threads)
    options.count = options.count or (8 if options.quick else 24)
    if options.child:
        return child(options)
    session = bench.Session(options)
    for mode, rows in cases(options):
        if session.wants(case_name(mode), (LENGTH,), "float32"):
            session.add(rows())
    return session.finish()


def cases(options) -> list[tuple[str, Callable[[], list[bench.Row]]]]:
    """Each mode with what measures its rows; warm modes use the folder that their cold ones filled."""
    one, other, many = (tempfile.TemporaryDirectory() for _ in range(3))
    count = options.count
    few = min(count, 3)

    def rivals(name: str, number: int, mode: str = "cold", child: str = "") -> bench.Row:
        with tempfile.TemporaryDirectory() as folder:
            cold = {"TORCHINDUCTOR_CACHE_DIR": folder, "JAX_COMPILATION_CACHE_DIR": ""}
            return row(case_name(mode), name, lambda: in_child(options, child or name, number, one.name, **cold))

    def mine(mode: str, folder: tempfile.TemporaryDirectory, processes: int = 1) -> bench.Row:
        def measure() -> list[float]:
            return sum((in_child(options, mode, count, folder.name) for _ in range(processes)), [])

        return row(case_name(mode), "tensorbackend", measure)

    def resized() -> list[bench.Row]:
        return [] if "jax" in options.without else [rivals("jax", count, "another size", "jax, another size")]

    beside = [("jax", count), ("numba", few), *([] if options.quick else [("torch.compile", few)])]
    return [
        ("cold", lambda: [mine("cold", one), *(rivals(*b) for b in beside if b[0] not in options.without)]),
        ("another size", lambda: [mine("another size", other), *resized()]),
        ("warm", lambda: [mine("warm", one)]),
        ("warm, of a whole program", lambda: [mine("warm, of a whole program", one, 5)]),
        ("warm, a process's first", lambda: [mine("warm, a process's first", one, 5)]),
        ("library from disk", lambda: [mine("library from disk", one)]),
        ("together", lambda: [mine("together", many)]),
        ("together warm", lambda: [mine("together warm", many)]),
    ]


if __name__ == "__main__":
    sys.exit(main())
