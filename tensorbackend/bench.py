# SPDX-License-Identifier: Apache-2.0
"""The one benchmark harness: contenders in alternating blocks, checked results, roofline probes, tables and JSON.

A script describes `Case`s and hands them to a `Session`. Each contender writes into memory that exists (`call`);
its natural form, which allocates (`allocate`), is timed beside it. Before anything is timed the result is compared
with float64 NumPy. Then blocks of all contenders and of the roofline probes alternate: a pause until no other thread
computes, two warm calls, and calls timed one by one, or in batches where one call is too short for the clock. A block
counts by its median; a row reports the median of its blocks and the distance between their quartiles.

What runs in a case is the business of the scripts in `benchmarks/`. Nothing here imports another library's arrays.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from tensorbackend.arguments import output_file, whole
from tensorbackend.backends import probes, toolchain, tuning
from tensorbackend.backends.cores import allowed_cores
from tensorbackend.backends.registry import present_backend
from tensorbackend.bench_results import geometric_mean, history, json_text
from tensorbackend.dtypes import as_dtype, is_float
from tensorbackend.errors import CompileError, DTypeError, complain
from tensorbackend.serializers import whole_file

__all__ = [
    "FULL", "NOT_HERE", "QUICK", "Absent", "Case", "Contender", "Protocol", "Row", "Session", "WrongResult", "aligned",
    "arguments", "machine", "main", "measure", "pin_threads", "plot", "relative_error", "roofs", "summary", "table",
    "time_blocks",
]  # fmt: skip

log = logging.getLogger(__name__)
Call = Callable[[], object]
THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS",
    "NUMBA_NUM_THREADS", "PJRT_NPROC", "NPROC", "TB_THREADS",
)  # fmt: skip


BUSY = 0.5  # processes running on average from which other programs are said to disturb
VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "asimd": "NEON"}  # features that say how long vectors are
NOT_HERE = 77  # a script's exit status where this machine lacks what it measures
STREAM_FROM = 1 << 21  # bytes of all operands below which streaming stores cannot pay


class Absent(Exception):
    """A contender that cannot run a case here: a library that is not installed, or lacks the operation."""


class WrongResult(ArithmeticError):
    """A contender whose result differs from float64 NumPy's by more than the case allows."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Contender:
    """One way to compute a case.

    `call` writes into existing memory, `result` gives what it wrote, `allocate` is the form that makes its own
    output, `finish` waits until queued work is done. `kind` is "ours", "rival" or "probe"; a probe has no result
    and its own `work` (bytes, flops).
    """

    name: str
    call: Call
    result: Callable[[], Any] | None = None
    allocate: Call | None = None
    finish: Call = _nothing
    kind: str = "rival"
    work: tuple[float, float] | None = None


@dataclass(frozen=True)
class Case:
    """One thing to measure: makers of contenders by name, the float64 truth, and the least work it takes.

    `bytes` and `flops` count each operand once. Where `written` says how many of the bytes are results, the memory roof
    is a pass that reads and writes as many; else a triad, which writes a third. The error of a result is the largest
    |difference| / `scale()` (without a scale: |expected| plus its mean), and must not exceed `tolerance`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    expected: Callable[[], np.ndarray]
    makers: Mapping[str, Callable[[], Contender]]
    bytes: float = 0.0
    flops: float = 0.0
    tolerance: float = 1e-5
    scale: Callable[[], Any] | None = None
    written: float = 0.0


@dataclass(frozen=True)
class Protocol:
    """How long to measure: blocks of each contender, the pause before one, its floor, and a contender's budget (s)."""

    blocks: int
    pause: float = 0.04
    floor: float = 0.03
    sample: float = 100e-6
    budget: float = 4.0


QUICK = Protocol(blocks=3, floor=0.01, budget=0.7)
FULL = Protocol(blocks=5)


@dataclass
class Row:
    """One line of a table.

    Times in µs: `us` and `spread_us` of the form that writes into existing memory, `alloc_us` of the allocating one.
    `share` is the time at the nearest roof over `us`, `ratio` the fastest rival's time, in its faster form, over `us`.
    """

    case: str
    shape: tuple[int, ...]
    dtype: str
    contender: str
    kind: str = "rival"
    us: float | None = None
    spread_us: float | None = None
    alloc_us: float | None = None
    gbs: float | None = None
    gflops: float | None = None
    share: float | None = None
    ratio: float | None = None
    error: float | None = None
    note: str = ""
    failed: bool = False

    def best(self) -> float:
        """The faster of the two forms, in µs."""
        return min(t for t in (self.us, self.alloc_us, math.inf) if t is not None)


# ---------------------------------------------------------------------------------------------- measuring


def _block(call: Call, finish: Call, protocol: Protocol, clock: Callable[[], float]) -> float:
    """The median seconds of a call, over one block of calls after two warm ones."""
    call()
    call()
    finish()
    start = clock()
    call()
    finish()
    once = clock() - start
    if once >= protocol.floor:
        return once
    batch = range(max(1, int(protocol.sample / max(once, 1e-9))))
    samples = []
    end = clock() + protocol.floor
    while not samples or clock() < end:
        start = clock()
        for _ in batch:
            call()
        finish()
        samples.append((clock() - start) / len(batch))
    return statistics.median(samples)


def time_blocks(
    entries: Mapping[Any, tuple[Call, Call]],
    protocol: Protocol,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
    rest: Callable[[], None] = tuning.wait_for_threads,
) -> dict[Any, list[float]]:
    """Seconds a call for each `(call, finish)`, one figure a block, with the blocks of all entries alternating.

    Every other round runs backwards, so that no entry always follows the same neighbour; and a block begins when the
    neighbour's threads `rest`, which spin for a tenth of a second after a product of NumPy's. An entry that has used up
    its budget stops after three blocks.
    """
    blocks: dict[Any, list[float]] = {key: [] for key in entries}
    spent = dict.fromkeys(entries, 0.0)
    gc.collect()
    gc.disable()
    try:
        for turn in range(protocol.blocks):
            for key in list(entries)[:: -1 if turn % 2 else 1]:
                if turn >= 3 and spent[key] > protocol.budget:
                    continue
                sleep(protocol.pause)
                rest()
                start = clock()
                blocks[key].append(_block(*entries[key], protocol, clock))
                spent[key] += clock() - start
    finally:
        gc.enable()
    return blocks


def relative_error(result: Any, expected: np.ndarray, scale: Any = None) -> float:
    """The largest |result - expected| / scale; equal infinities and two NaNs agree, one NaN is an infinite error."""
    got = np.asarray(result, dtype=np.float64)
    if got.size != expected.size:
        raise WrongResult(f"result has shape {got.shape}, expected {expected.shape}")
    got = got.reshape(expected.shape)
    if scale is None:
        size = np.abs(expected)
        scale = size + size.mean() if expected.size else 1.0
    with np.errstate(all="ignore"):
        error = np.abs(got - expected) / np.maximum(scale, np.finfo(np.float64).tiny)
    error = np.where((got == expected) | (np.isnan(got) & np.isnan(expected)), 0.0, error)
    return float(np.nan_to_num(error.max(initial=0.0), nan=math.inf))


def _prepare(case: Case, rows: list[Row]) -> list[tuple[Contender, Row]]:
    """Build and check every contender; those that cannot take part leave a row that says why."""
    ready = []
    truth = np.asarray(case.expected(), dtype=np.float64)
    scale = case.scale() if case.scale else None
    for name, make in case.makers.items():
        row = Row(case.name, case.shape, case.dtype, name)
        rows.append(row)
        try:
            contender = make()
            row.kind = contender.kind
            contender.call()
            contender.finish()
            row.error = relative_error(contender.result(), truth, scale)
            if not row.error <= case.tolerance:
                raise WrongResult(f"error {row.error:.2g}, allowed {case.tolerance:.2g}")
        except Absent as reason:
            row.note = f"absent: {reason}"
        except WrongResult as reason:
            row.note, row.failed = f"WRONG: {reason}", True
        except Exception as reason:
            log.exception("%s %s %s: %s failed", case.name, case.shape, case.dtype, name)
            row.note, row.failed = f"FAILED: {type(reason).__name__}: {str(reason).partition(chr(10))[0]}", True
        else:
            ready.append((contender, row))
    return ready


def _fill(row: Row, contender: Contender, case: Case, times: Mapping[Any, list[float]]) -> None:
    blocks = np.array(times[row.contender, "call"]) * 1e6
    low, row.us, high = (float(q) for q in np.percentile(blocks, (25, 50, 75)))
    row.spread_us = high - low
    if contender.allocate is not None:
        row.alloc_us = statistics.median(times[row.contender, "allocate"]) * 1e6
    moved, flops = contender.work or (case.bytes, case.flops)
    row.gbs = moved / row.us * 1e-3 if moved else None
    row.gflops = flops / row.us * 1e-3 if flops else None


def _record(row: Row) -> dict[str, Any]:
    """A row for JSON, without what is rarely there and makes no table."""
    return {name: value for name, value in asdict(row).items() if value or name not in ("alloc_us", "note", "failed")}


def _rank(rows: Sequence[Row], case: Case) -> None:
    """Shares of the roofs that the probes of this case found, and ratios to its fastest rival."""
    timed = [r for r in rows if r.us is not None]
    roof = [r for r in timed if r.kind == "probe"]
    passes = case.written and any(r.contender.startswith("pass") for r in roof)
    names = ("pass",) if passes else ("triad", "device copy")
    memory = max((r.gbs for r in roof if r.gbs and r.contender.startswith(names)), default=None)
    compute = max((r.gflops for r in roof if r.gflops), default=None)
    rival = min((r.best() for r in timed if r.kind == "rival"), default=None)
    for row in timed:
        if row.kind == "probe":
            continue
        floors = [case.bytes / memory * 1e-3] if memory and case.bytes else []
        floors += [case.flops / compute * 1e-3] if compute and case.flops else []
        row.share = max(floors) / row.us if floors else None
        row.ratio = rival and rival / (row.us if row.kind == "ours" else row.best())


def roofs(case: Case) -> list[Contender]:
    """The probes of a case: copy and triad over as many bytes as it moves, a pass that reads and writes as many where
    the case tells them apart, multiply-adds where it counts FLOPs.

    A triad with ordinary stores is there too, since streaming stores are slower where the data stay in cache. Without a
    compiler there are none, and shares of the peak stay empty.
    """
    found = {}
    try:
        if case.bytes:
            found["triad cached"] = probes.triad(_elements(case.bytes, 3), cached=True)
        if case.bytes >= STREAM_FROM:
            found["triad"] = probes.triad(_elements(case.bytes, 3))
            found["copy"] = probes.copy(_elements(case.bytes, 2))
        if case.written:
            sizes = _elements(case.bytes - case.written, 1), _elements(case.written, 1)
            found["pass cached"] = probes.one_pass(*sizes, cached=True)
            if case.bytes >= STREAM_FROM:
                found["pass"] = probes.one_pass(*sizes)
        if case.flops:
            found["fma"] = probes.multiply_adds()
    except CompileError as error:
        log.warning("no roofline probes: %s", error)
        return []
    works = {name: (p.bytes, 0.0 if p.bytes else p.flops) for name, p in found.items()}
    return [Contender(name, p.run, kind="probe", work=works[name]) for name, p in found.items()]


def _elements(nbytes: float, arrays: int) -> int:
    return max(1, int(nbytes) // (4 * arrays))


def measure(case: Case, protocol: Protocol, beside: Iterable[Contender] = ()) -> list[Row]:
    """Check and time the contenders of a case and the probes `beside` them; one row each, absent ones included."""
    rows: list[Row] = []
    ready = _prepare(case, rows)
    for probe in beside:
        rows.append(Row(case.name, case.shape, case.dtype, probe.name, kind="probe"))
        ready.append((probe, rows[-1]))
    entries = {}
    for contender, row in ready:
        entries[row.contender, "call"] = contender.call, contender.finish
        if contender.allocate is not None:
            entries[row.contender, "allocate"] = contender.allocate, contender.finish
    times = time_blocks(entries, protocol)
    for contender, row in ready:
        _fill(row, contender, case, times)
    _rank(rows, case)
    return rows


# ---------------------------------------------------------------------------------------------- reporting

COLUMNS = {
    "contender": lambda r: r.contender,
    "us": lambda r: _number(r.us),
    "+-": lambda r: _number(r.spread_us),
    "new us": lambda r: _number(r.alloc_us),
    "GB/s": lambda r: _number(r.gbs),
    "GFLOP/s": lambda r: _number(r.gflops),
    "peak": lambda r: "" if r.share is None else f"{r.share:.0%}",
    "ratio": lambda r: "" if r.ratio is None else f"{r.ratio:.2f}x",
    "error": lambda r: "" if r.error is None else f"{r.error:.1e}",
    "note": lambda r: r.note,
}


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def table(rows: Sequence[Row]) -> str:
    """Rows of one case as aligned text under a line that names the case; who is absent, and why, comes last."""
    present = [r for r in rows if r.us is not None or r.failed]
    columns = {name: cell for name, cell in COLUMNS.items() if any(cell(r) for r in present)}
    cells = [list(columns), *([cell(r) for cell in columns.values()] for r in present)]
    head = f"{rows[0].case}  {'x'.join(map(str, rows[0].shape)) or 'scalar'}  {rows[0].dtype}"
    absent = [f"  {r.contender} {r.note}" for r in rows if r not in present]
    return "\n".join([head, *("  " + line for line in aligned(cells) if present), *absent])


def aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: names and notes to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*cells)]
    sides = [str.ljust if title in ("case", "dtype", "contender", "note") else str.rjust for title in cells[0]]
    return ["  ".join(side(c, w) for side, c, w in zip(sides, line, widths)).rstrip() for line in cells]


def summary(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Of each case, dtype and own contender: geometric mean and least of the ratios, least share, worst error."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.kind == "ours" and row.us is not None:
            groups.setdefault((row.case, row.dtype, row.contender), []).append(row)
    out = []
    for (case, dtype, contender), group in groups.items():
        ratios = [r.ratio for r in group if r.ratio]
        shares = [r.share for r in group if r.share]
        out.append({
            "case": case, "dtype": dtype, "contender": contender, "sizes": len(group),
            "geomean": geometric_mean(ratios),
            "least": min(ratios, default=None), "least_share": min(shares, default=None),
            "worst_error": max(r.error or 0.0 for r in group),
        })  # fmt: skip
    return out


def summary_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """The summary as aligned text; empty when none of our contenders was timed."""
    cells = [["case", "dtype", "contender", "sizes", "geomean ratio", "least ratio", "least peak", "worst error"]]
    for s in lines:
        ratios = [f"{s[k]:.2f}x" if s[k] else "" for k in ("geomean", "least")]
        share = f"{s['least_share']:.0%}" if s["least_share"] else ""
        names = [s["case"], s["dtype"], s["contender"], str(s["sizes"])]
        cells.append([*names, *ratios, share, f"{s['worst_error']:.1e}"])
    return "\n".join(aligned(cells)) if lines else ""


def _first_line(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=Path(__file__).parent)
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else None


def _load() -> float | None:
    """Processes that ran on average in the last minute: near zero before a run on a machine that is not shared."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _cpu_model() -> str:
    """The processor, and the longest vectors that it has or a virtual machine leaves it."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.*)", info.read_text()) if info.is_file() else None
    features = toolchain.cpu_features().split()
    vectors = [name for feature, name in VECTORS.items() if feature in features][:1]
    return ", ".join([found[1] if found else platform.processor(), *vectors])


def versions() -> dict[str, str | None]:
    """The versions of the libraries that were imported."""
    libraries = ("numpy", "ml_dtypes", "scipy", "numexpr", "numba", "torch", "jax", "tensorbackend")
    return {n: getattr(sys.modules[n], "__version__", None) for n in libraries if n in sys.modules}


def machine(threads: int) -> dict[str, Any]:
    """What a result depends on: CPU, cores, threads, load, compiler, revision and date."""
    compiler = os.environ.get("TB_CC") or os.environ.get("CC") or "cc"
    revision = _first_line("git", "describe", "--always", "--dirty", "--abbrev=12")
    return {
        "cpu": _cpu_model(), "machine": platform.machine(), "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(), "allowed_cores": allowed_cores(), "threads": threads,
        "python": platform.python_version(), "compiler": _first_line(compiler, "--version"),
        "load": _load(), "revision": revision, "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }  # fmt: skip


def plot(rows: Sequence[Row], path: str | Path) -> None:
    """Write a PNG of bars: of each case, every contender's time as a multiple of the fastest one's.

    Raises `ImportError` with the command to run when matplotlib is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("a plot needs matplotlib; install it with: pip install matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    timed = [r for r in rows if r.us is not None]
    cases = list(dict.fromkeys((r.case, r.shape, r.dtype) for r in timed))
    names = list(dict.fromkeys(r.contender for r in timed))
    figure = Figure(figsize=(10, 1.5 + 0.16 * len(timed) + 0.1 * len(cases)), layout="constrained")
    axes = figure.subplots()
    position, ticks = 0.0, []
    for case in cases:
        group = [r for r in timed if (r.case, r.shape, r.dtype) == case]
        fastest = min(r.us for r in group if r.us)
        for row in group:
            color = f"C{names.index(row.contender) % 10}"
            axes.barh(position, row.us / fastest, 0.9, color=color, alpha=0.25 if row.kind == "probe" else 0.7)
            axes.annotate(f"{row.contender} {_number(row.us)} us", (1.0, position), fontsize=6, va="center")
            position += 1
        ticks.append((position - len(group) / 2 - 0.5, f"{case[0]} {'x'.join(map(str, case[1]))} {case[2]}"))
        position += 0.7
    axes.set(xscale="log", xlabel="time as a multiple of the fastest (probes pale)")
    axes.set_yticks([t for t, _ in ticks], [label for _, label in ticks], fontsize=7)
    axes.margins(y=0.01)
    axes.invert_yaxis()
    FigureCanvasAgg(figure).print_png(path)


# ---------------------------------------------------------------------------------------------- scripts


def pin_threads(threads: int) -> None:
    """Tell every library its thread count before it is imported, by starting the process again if need be."""
    wanted = dict.fromkeys(THREAD_VARIABLES, str(threads))
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def arguments(description: str, dtypes: Sequence[str] = ("float32",)) -> argparse.ArgumentParser:
    """The parser with the options that every script has."""
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--backend", type=present_backend, default=os.environ.get("TB_BACKEND", "cpu"),
        help="backend to measure (default %(default)s)")  # fmt: skip
    add("--threads", type=whole(1), default=allowed_cores(), help="threads of every contender (default %(default)s)")
    add("--dtype", type=_dtypes, default=None, help=f"element types, with commas (default {','.join(dtypes)})")
    add("--quick", action="store_true", help="fewer cases and blocks: ends in two minutes")
    add("--only", type=_regex, default=None, metavar="REGEX", help="cases whose 'name shape dtype' matches")
    add("--without", type=_names, default=(), help="contenders to leave out, with commas")
    add("--json", type=_new_json, metavar="FILE", help="write rows and machine facts")
    add("--plot", type=output_file, metavar="FILE", help="write a PNG of bars")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _dtypes(text: str) -> tuple[str, ...]:
    try:
        found = [as_dtype(name) for name in _names(text)]
    except DTypeError as error:
        raise argparse.ArgumentTypeError(" ".join(str(error).split())) from None
    others = [kind.name for kind in found if not is_float(kind)]
    if others:
        raise argparse.ArgumentTypeError(f"{', '.join(others)} given, expected float types")
    return tuple(kind.name for kind in found)


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"no regular expression: {error}") from None


def _new_json(text: str) -> str:
    """A file to write at the end, or a result file whose history goes on."""
    history(output_file(text))
    return text


@dataclass
class Session:
    """A run of one script: measures cases as they come, prints their tables, and writes the files asked for.

    `probes` gives the contenders of kind "probe" for a case; `write` takes the text that is printed. `names` are those
    of all contenders so far.
    """

    options: argparse.Namespace
    probes: Callable[[Case], Iterable[Contender]] = roofs
    write: Callable[[str], object] = print
    rows: list[Row] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.options.plot and importlib.util.find_spec("matplotlib") is None:
            raise ImportError(complain("--plot: needs matplotlib", hint="pip install matplotlib"))
        self.protocol = QUICK if self.options.quick else FULL
        self.machine = machine(self.options.threads)
        if (self.machine["load"] or 0.0) > BUSY:
            log.warning("other programs use this machine (load %s): parallel rivals suffer most", self.machine["load"])

    def wants(self, name: str, shape: tuple[int, ...], dtype: str) -> bool:
        """Whether `--only` lets a case through; asked before a script builds its data."""
        only = self.options.only
        return only is None or only.search(f"{name} {'x'.join(map(str, shape))} {dtype}") is not None

    def run(self, cases: Iterable[Case]) -> None:
        """Measure the cases that `--only` lets through and print each table when it is done."""
        for case in cases:
            if self.wants(case.name, case.shape, case.dtype):
                self.names |= case.makers.keys()
                makers = {n: m for n, m in case.makers.items() if n not in self.options.without}
                beside = [p for p in self.probes(case) if p.name != "copy" or not self.options.quick]
                self.add(measure(replace(case, makers=makers), self.protocol, beside))

    def add(self, rows: Sequence[Row]) -> None:
        """Take up the rows of one case, measured here or by the script itself, and print their table."""
        self.rows.extend(rows)
        self.write(table(rows) + "\n")

    def finish(self) -> int:
        """Print the summary, write JSON and plot; the exit status: 1 when a result was wrong, a contender failed, or
        `--only` let nothing through."""
        if self.options.only and not self.rows:
            self.write(f"no case matches --only {self.options.only.pattern!r}")
            return 1
        lines = summary(self.rows)
        self.write(summary_text(lines))
        unknown = [name for name in self.options.without if self.names and name not in self.names]
        if unknown:
            self.write(f"no contender --without {','.join(unknown)}: there are {', '.join(sorted(self.names))}")
        if self.options.json:
            path = Path(self.options.json)
            document = self.document(lines) | {"history": history(path)}
            with whole_file(path) as out:  # it holds the history
                out.write(json_text(document).encode())
        if self.options.plot:
            plot(self.rows, self.options.plot)
        bad = [r for r in self.rows if r.failed]
        for row in bad:
            self.write(f"{row.case} {row.shape} {row.dtype} {row.contender}: {row.note}")
        return 1 if bad else 0

    def document(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """All that was measured and on what, ready for JSON."""
        options = self.options
        return {
            "script": Path(sys.argv[0]).name, "backend": options.backend, "quick": options.quick,
            "machine": self.machine | {"versions": versions()}, "protocol": asdict(self.protocol),
            "rows": [_record(r) for r in self.rows], "summary": list(lines),
        }  # fmt: skip


def main(description: str, *cases: Callable[[argparse.Namespace, Session], Iterable[Case]]) -> int:
    """A script with no options of its own: measure what each of `cases` yields. Returns the exit status."""
    options = arguments(description).parse_args()
    pin_threads(options.threads)
    session = Session(options)
    for some in cases:
        session.run(some(options, session))
    return session.finish()
