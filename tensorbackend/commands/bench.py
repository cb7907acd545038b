# SPDX-License-Identifier: Apache-2.0
"""`bench`: a first look at this machine in a minute, or a family of the checkout's `benchmarks/` folder."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tensorbackend import bench, bench_page
from tensorbackend.arguments import output_file, whole
from tensorbackend.backends.registry import backend_name, gen_backend
from tensorbackend.commands import Failure
from tensorbackend.errors import BackendError, nearest

__all__ = ["FIRST", "Expression", "add", "cases", "families", "run"]

T = TypeVar("T")
FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
NO_FAMILIES = "no families: they are in the project's checkout"
SCRIPT = re.compile(r"\bbench\.(arguments|main)\(")
"""What a script that measures a family calls: it takes the options that all have."""


@dataclass(frozen=True)
class Expression:
    """One expression for both: `ours(be, x, y)` is a tree, `numpy(x, y)` its meaning; `reads` and `writes` count full
    operands, `flops` those of an element."""

    name: str
    ours: Callable[[Any, Any, Any], Any]
    numpy: Callable[[np.ndarray, np.ndarray], np.ndarray]
    reads: int = 2
    writes: int = 1
    flops: int = 1


FIRST = [
    Expression("add", lambda be, x, y: x + y, lambda x, y: x + y),
    Expression("chain", lambda be, x, y: (x * y + 1) * x - y, lambda x, y: (x * y + 1) * x - y, flops=4),
    Expression("tanh", lambda be, x, y: be.tanh(x), lambda x, y: np.tanh(x), reads=1, flops=15),
    Expression("sum", lambda be, x, y: be.sum(x, axis=1), lambda x, y: x.sum(1, keepdims=True), 1, 0),
    Expression("softmax", lambda be, x, y: be.softmax(x, axis=1), lambda x, y: _softmax(x), 1, flops=20),
]
SHAPES = [(16, 16), (64, 256), (1024, 1024)]


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def add(commands: argparse._SubParsersAction) -> None:
    """Describe the command."""
    known = ", ".join(families()) or "none here: they are in the project's checkout"
    text = (
        "Measure this machine. Without a family: a few expressions beside NumPy and the machine's own limits, in a "
        f"minute. Families: {known}; what follows a family's name goes to its script ('bench elementwise --help')."
    )
    parser = commands.add_parser("bench", help="measure expressions, or a family of benchmarks", description=text)
    parser.add_argument("family", nargs="?", metavar="FAMILY", help=f"one of {known}")
    parser.add_argument("--backend", type=backend_name, default=None,
                        help="the backend to measure (default: TB_BACKEND, else cpu)")  # fmt: skip
    parser.add_argument("--threads", type=whole(1), default=None, help="CPU threads (default: the cores allowed)")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write rows and machine facts")
    parser.add_argument("--report", type=output_file, metavar="HTML",
                        help="measure all families into --results, and write a page that compares them")  # fmt: skip
    parser.add_argument("--results", type=Path, default=FOLDER / "results", metavar="FOLDER",
                        help="with --report: where results are kept (default: benchmarks/results)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="with --report or a family: fewer cases and blocks")
    parser.add_argument("--measured", action="store_true", help="with --report: only show what --results holds")
    parser.add_argument("--list", action="store_true", help="name the families, and stop")
    parser.set_defaults(rest=[])


def families() -> dict[str, Path]:
    """The benchmark scripts of the checkout by name; none where only the package is installed."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.py")) if SCRIPT.search(path.read_text("utf-8"))}


def run(options: argparse.Namespace) -> Iterator[str]:
    """Measure. Raises `Failure` for an unknown family, a wrong result, or a script that failed."""
    if options.list:
        yield from families() or [NO_FAMILIES]
    elif options.report:
        yield from _report(options)
    elif options.family:
        _run_family(options)
    else:
        yield from _first(options)


def _run_family(options: argparse.Namespace) -> None:
    known = _known()
    if options.family not in known:
        raise Failure(f"no family {options.family!r}: {nearest(options.family, known)}")
    command = _command(known[options.family], options, options.json)
    if subprocess.run([*command, *options.rest]).returncode:
        raise Failure()


def _known() -> dict[str, Path]:
    """The families. Raises `Failure` where there are none."""
    known = families()
    if not known:
        raise Failure(NO_FAMILIES)
    return known


def _command(script: Path, options: argparse.Namespace, json_file: Any) -> list[str]:
    given = {"backend": options.backend, "threads": options.threads, "json": json_file}
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [sys.executable, str(script), *words, *["--quick"] * options.quick]


def _read(path: Path) -> Any:
    """What is in a file of results. Raises `Failure` for one that is not whole."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Failure(f"{path} is no whole JSON file ({error}): remove it, or measure it again") from None


def _report(options: argparse.Namespace) -> Iterator[str]:
    """Measure every family, unless all is measured, and write the page. Raises `Failure` with nothing to show, for
    results that are not whole, and at the end for families that failed."""
    failed: list[str] = []
    if not options.measured:
        yield from _with_progress(_known().items(), lambda family: _measured(*family, options, failed), "family")
    found = [_read(path) for path in sorted(options.results.glob("*.json"))]
    documents = [document for document in found if isinstance(document, dict) and "rows" in document]
    if not documents:
        why = f"{', '.join(failed)} failed" if failed else "nothing can be measured here"
        why = "measure first, without --measured" if options.measured else why
        raise Failure(f"no results in {options.results}: {why}")
    options.report.write_text(bench_page.page(documents), encoding="utf-8")
    yield f"{options.report}: {', '.join(bench_page.Family(d).name for d in documents)}"
    if failed:
        raise Failure(f"not whole: {', '.join(failed)} (what they printed says why)")


def _measured(name: str, script: Path, options: argparse.Namespace, failed: list[str]) -> Iterator[str]:
    """Measure a family for the report, and give what its script says; note it where it has failed."""
    yield f"== {name}"
    command = _command(script, options, options.results / f"{name}.json")
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as running:
        for line in running.stdout:
            yield line.rstrip("\n")
    if running.returncode not in (0, bench.NOT_HERE):
        failed.append(name)


def _first(options: argparse.Namespace) -> Iterator[str]:
    be = _backend(options)
    threads = getattr(be, "threads", 0)
    arguments = ["--quick", "--backend", options.backend or be.backend_name]
    arguments += ["--threads", str(threads)] if threads else []
    arguments += ["--json", str(options.json)] if options.json else []
    pending: list[str] = []
    session = bench.Session(bench.arguments("").parse_args(arguments), write=pending.append)
    facts = session.machine
    where = f"{threads} threads" if threads else repr(be)
    yield f"{facts['cpu']}, {where}, {facts['compiler']}; us a call, ratio over the fastest rival\n"

    def measured(case: bench.Case) -> Iterator[str]:
        session.run([case])
        yield pending.pop().rstrip() + "\n"

    yield from _with_progress(list(cases(be)), measured, "case")
    status = session.finish()
    yield from pending
    if status:
        raise Failure()


def _backend(options: argparse.Namespace) -> Any:
    """The backend to measure. Raises `Failure` when there is none such here."""
    given = {} if options.threads is None else {"threads": options.threads}
    try:
        return gen_backend(options.backend, **given)
    except (BackendError, TypeError, ValueError) as error:
        raise Failure(str(error)) from error


def cases(be: Any) -> Iterator[bench.Case]:
    """The built-in set: each expression in each shape, beside NumPy."""
    draw = np.random.default_rng(0)
    for expression in FIRST:
        for shape in SHAPES:
            yield _case(be, expression, *(draw.standard_normal(shape).astype(np.float32) for _ in "xy"))


def _case(be: Any, expression: Expression, x: np.ndarray, y: np.ndarray) -> bench.Case:
    tensors = be.array(x), be.array(y)
    out = be.empty(expression.numpy(x, y).shape)

    def ours() -> bench.Contender:
        def call() -> None:
            out[:] = expression.ours(be, *tensors)

        return bench.Contender("tensorbackend", call, out.get, kind="ours")

    def numpy() -> bench.Contender:
        return bench.Contender(
            "numpy", lambda: expression.numpy(x, y), lambda: expression.numpy(x, y), lambda: expression.numpy(x, y)
        )

    moved = 4 * (expression.reads * x.size + expression.writes * x.size)
    makers = {"tensorbackend": ours, "numpy": numpy}
    wide = x.astype(np.float64), y.astype(np.float64)
    scale = (lambda: np.abs(wide[0]).sum(1, keepdims=True)) if expression.name == "sum" else None
    return bench.Case(
        expression.name, x.shape, "float32", lambda: expression.numpy(*wide), makers, moved,
        expression.flops * x.size, 1e-5, scale,
    )  # fmt: skip


def _with_progress(steps: Collection[T], said: Callable[[T], Iterator[str]], unit: str) -> Iterator[str]:
    """What is said in each step, above a progress bar where there is a terminal and tqdm is installed."""
    if not sys.stderr.isatty() or importlib.util.find_spec("tqdm") is None:
        yield from (line for step in steps for line in said(step))
        return
    from tqdm import tqdm

    with tqdm(total=len(steps), unit=unit, leave=False) as bar:
        for step in steps:
            for line in said(step):
                bar.clear()
                yield line
                bar.refresh()
            bar.update()
