# SPDX-License-Identifier: Apache-2.0
"""Overheads: a statement of four operations on 16 elements, statements on views, captured steps, import, memory."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import libraries
import numpy as np

from tensorbackend import bench

TEXT = "(x*w + b)*y - w"
OUT = "multiply(x, w, out=o); add(o, b, out=o); multiply(o, y, out=o); subtract(o, w, out=o)"
TORCH_OUT = "mul(x, w, out=o); add(o, b, out=o); mul(o, y, out=o); sub(o, w, out=o)"
STEPS = 50
COLUMNS = 16
IMPORT = "import time, numpy, ml_dtypes; t = time.perf_counter(); import tensorbackend; print(time.perf_counter() - t)"
MEMORY = """
import numpy as np, tensorbackend
be = tensorbackend.Backend.allocate_backend({backend!r}, min_dims=0)
x, o = (be.array(np.ones(16, np.float32)) for _ in range(2))
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4
def steps(count):
    for _ in range(count):
        o[:] = x * 2 + be.tanh(x) * o
steps(1000)
before = resident()
steps(10_000)
print(resident() - before)
"""


def statement(options) -> bench.Case:
    """The statement beside every library, each in all its forms."""
    arrays = {name: np.linspace(-1, 1, 16, dtype=np.float32) + k for k, name in enumerate("xwby")}
    o = np.empty(16, np.float32)
    truth = libraries.function(f"return {TEXT}", {k: v.astype(np.float64) for k, v in arrays.items()})
    makers: dict[str, Callable[[], bench.Contender]] = {
        "tensorbackend": lambda: libraries.engine(options, True).contender(TEXT, "", arrays, o),
        "interpreter": lambda: libraries.engine(options, False).contender(TEXT, "", arrays, o),
        "numpy": lambda: libraries.NumPy().contender(OUT, TEXT, "", arrays, o.copy()),
        "numexpr": lambda: libraries.NumExpr().contender(TEXT, "", arrays, o.copy()),
        "numba": lambda: libraries.Numba().contender(TEXT, "", arrays, o.copy()),
        "torch": lambda: libraries.Torch().contender(TORCH_OUT, TEXT, "", arrays, o),
        "jax": lambda: libraries.Jax().contender(TEXT, "", arrays, o),
        "cupy": lambda: libraries.CuPy().contender(OUT, TEXT, "", arrays, o),
        "cupy.fuse": lambda: libraries.CuPy().fused(TEXT, "", arrays),
    }
    if not options.quick:
        makers["torch.compile"] = lambda: libraries.Torch().compiled(TEXT, "", arrays, o)
    return bench.Case("statement of 4 ops", (16,), "float32", truth, makers)


def stated(engine: libraries.Engine, call: Callable, result: Callable, program: bool) -> bench.Contender:
    """This project's contender of statements: run one by one, or captured as a `program` and replayed."""
    if program:
        call = engine.known("capture(f)")["capture"](call)
    return bench.Contender("captured" if program else engine.name, call, result, kind="ours")


def captured(options) -> bench.Case:
    """Fifty statements recorded once and replayed, beside the same statements one by one and under JAX's jit."""
    x = np.linspace(-1, 1, 16, dtype=np.float32)

    def steps(values: list, one: object) -> list:
        for k in range(STEPS):
            values[k % 4] = (values[k % 4] * 0.5 + values[(k + 1) % 4]) * 0.5 - one
        return values

    def run(program: bool) -> bench.Contender:
        engine = libraries.engine(options, True)
        start, one = engine.array(x), engine.array(np.ones_like(x))
        tensors = [engine.array(x) for _ in range(4)]
        names = {"ts": tensors, "one": one, "start": start}
        body = "for t in ts: t[:] = start\n" + "\n".join(
            f"ts[{k % 4}][:] = (ts[{k % 4}] * 0.5 + ts[{(k + 1) % 4}]) * 0.5 - one" for k in range(STEPS)
        )
        call = libraries.function(body, names)
        return stated(engine, call, lambda: np.concatenate([t.get() for t in tensors]), program)

    def jax() -> bench.Contender:
        library = libraries.Jax()
        program = library.jax.jit(lambda out, v, one: tuple(steps([v] * 4, one)), donate_argnums=0)
        operands = [library.array(x), library.array(np.ones_like(x))]
        return library.donating(program, None, tuple(library.array(x) for _ in range(4)), operands)

    def truth() -> np.ndarray:
        return np.concatenate(steps([x.astype(np.float64)] * 4, 1.0))

    makers = {"captured": lambda: run(True), "tensorbackend": lambda: run(False), "jax": jax}
    return bench.Case("step of 50 statements", (16,), "float32", truth, makers)


def on_views(options) -> bench.Case:
    """Each column of a matrix from the one before it: three views and one statement a column."""
    x = np.linspace(-1, 1, COLUMNS * COLUMNS, dtype=np.float32).reshape(COLUMNS, COLUMNS)

    def text(step: str) -> str:
        return "\n".join(step.format(now=f"[:, {t}]", before=f"[:, {t - 1}]") for t in range(1, COLUMNS))

    def own(program: bool) -> bench.Contender:
        engine = libraries.engine(options, True)
        names = {"h": engine.array(np.zeros_like(x)), "x": engine.array(x)}
        call = libraries.function(text("h{now} = h{before} * 0.5 + x{now}"), names)
        return stated(engine, call, names["h"].get, program)

    def numpy() -> bench.Contender:
        names = {"h": np.zeros_like(x), "x": x, "multiply": np.multiply, "add": np.add}
        step = "multiply(h{before}, 0.5, out=h{now}); add(h{now}, x{now}, out=h{now})"
        return bench.Contender("numpy", libraries.function(text(step), names), lambda: names["h"])

    def torch() -> bench.Contender:
        library = libraries.Torch()
        names = {"h": library.array(np.zeros_like(x)), "x": library.array(x), "add": library.torch.add}
        call = libraries.function(text("add(x{now}, h{before}, alpha=0.5, out=h{now})"), names)
        return bench.Contender("torch", call, lambda: library.numpy(names["h"]))

    def jax() -> bench.Contender:
        library = libraries.Jax()

        def steps(h: object, x: object) -> object:
            for t in range(1, COLUMNS):
                h = h.at[:, t].set(h[:, t - 1] * 0.5 + x[:, t])
            return h

        program = library.jax.jit(steps, donate_argnums=0)
        return library.donating(program, None, library.array(np.zeros_like(x)), [library.array(x)])

    def truth() -> np.ndarray:
        h = np.zeros((COLUMNS, COLUMNS))
        for t in range(1, COLUMNS):
            h[:, t] = h[:, t - 1] * 0.5 + x[:, t]
        return h

    makers = {"captured": lambda: own(True), "tensorbackend": lambda: own(False), "numpy": numpy, "torch": torch,
              "jax": jax}  # fmt: skip
    return bench.Case(f"{COLUMNS - 1} statements on views", x.shape, "float32", truth, makers)


def child(code: str, count: int, **environment: str) -> list[float]:
    """The number that a fresh Python prints, `count` times over."""
    command = [sys.executable, "-c", code]
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": paths, **environment}
    done = [subprocess.run(command, env=env, capture_output=True, text=True, check=True) for _ in range(count)]
    return [float(d.stdout.split()[-1]) for d in done]


def without_native(options) -> list[bench.Row]:
    """The statement's row of this project without its native types, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, __file__, "--only", "^statement of", "--json", str(file), "--quick", "--alone"]
        command += ["--backend", options.backend, "--threads", str(options.threads)]
        subprocess.run(command, env={**os.environ, "TB_NATIVE": "0"}, capture_output=True, check=True)
        rows = [bench.Row(**row) for row in json.loads(file.read_text())["rows"]]
    for row in rows:
        row.case, row.shape = "statement of 4 ops, TB_NATIVE=0", tuple(row.shape)
    return rows


def spread(case: str, values: list[float], to_us: float) -> bench.Row:
    """One row for figures of fresh processes."""
    low, middle, high = np.percentile(values, (25, 50, 75)) * to_us
    return bench.Row(case, (), "", "tensorbackend", "ours", float(middle), float(high - low))


def main() -> int:
    parser = bench.arguments(__doc__)
    parser.add_argument("--alone", action="store_true", help="this project's contenders only, in this process only")
    options = parser.parse_args()
    bench.pin_threads(options.threads)
    if options.alone:
        options.without = (*options.without, "numpy", "numexpr", "numba", "torch", "jax", "torch.compile")
    session = bench.Session(options)
    session.run([statement(options), on_views(options), captured(options)])
    if not options.alone:
        others(options, session)
    return session.finish()


def others(options, session: bench.Session) -> None:
    """What needs fresh processes: no native types, import time, memory."""
    present = any(row.kind == "ours" and row.us for row in session.rows)
    if present and session.wants("statement of 4 ops, TB_NATIVE=0", (16,), "float32"):
        session.add(without_native(options))
    if session.wants("import", (), ""):
        session.add([spread("import beyond NumPy's", child(IMPORT, 3 if options.quick else 9), 1e6)])
    if present and session.wants("memory", (), ""):
        grown = statistics.median(child(MEMORY.format(backend=options.backend), 1))
        session.write(f"resident memory grew by {grown:.0f} KiB over 10,000 statements")


if __name__ == "__main__":
    sys.exit(main())
