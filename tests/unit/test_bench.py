# SPDX-License-Identifier: Apache-2.0
"""The benchmark harness, on contenders that cost nothing."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from tensorbackend import bench

ROOT = Path(__file__).resolve().parents[2]
FAST = bench.Protocol(blocks=3, pause=0.0, floor=1e-4, sample=1e-5)


class Fake:
    """A contender on a clock of its own: every call takes `seconds` of it."""

    def __init__(self, clock: list[float], seconds: float, journal: list[str], name: str) -> None:
        self.clock, self.seconds, self.journal, self.name = clock, seconds, journal, name

    def __call__(self) -> None:
        self.journal.append(self.name)
        self.clock[0] += self.seconds


def fakes(seconds: dict[str, float]) -> tuple[dict, list[str], list[float]]:
    journal: list[str] = []
    clock = [0.0]
    entries = {name: (Fake(clock, s, journal, name), lambda: None) for name, s in seconds.items()}
    return entries, journal, clock


def case(makers: dict, tolerance: float = 1e-6, moved: float = 0.0, flops: float = 0.0) -> bench.Case:
    return bench.Case("double", (4,), "float32", lambda: np.full(4, 2.0), makers, moved, flops, tolerance)


def contender(name: str, value: float = 2.0, **more: object) -> bench.Contender:
    """A contender that writes `value` into existing memory."""
    out = np.zeros(4, np.float32)
    return bench.Contender(name, lambda: out.fill(value), lambda: out, **more)


def options(*arguments: str):
    return bench.arguments("a script").parse_args(arguments)


def quiet_session(*arguments: str, probes=lambda case: ()) -> tuple[bench.Session, list[str]]:
    written: list[str] = []
    session = bench.Session(options(*arguments), probes, written.append)
    session.protocol = FAST
    return session, written


# Blocks


def test_blocks_of_the_contenders_alternate() -> None:
    entries, journal, clock = fakes({"a": 1.0, "b": 1.0})
    bench.time_blocks(
        entries, FAST, lambda: clock[0], lambda seconds: journal.append("pause"), lambda: journal.append("rest")
    )
    blocks = " ".join(journal).split("pause rest")[1:]
    assert [set(block.split()) for block in blocks] == [{"a"}, {"b"}, {"b"}, {"a"}, {"a"}, {"b"}]


def test_a_block_begins_with_two_warm_calls_that_do_not_count() -> None:
    clock = [0.0]
    costs = iter([50.0, 20.0, *[1.0] * 100])
    calls = []

    def call() -> None:
        calls.append(next(costs))
        clock[0] += calls[-1]

    protocol = bench.Protocol(blocks=1, pause=0.0, floor=10.0, sample=1.0)
    times = bench.time_blocks({"a": (call, lambda: None)}, protocol, lambda: clock[0], lambda s: None)
    assert times == {"a": [1.0]}
    assert calls[:2] == [50.0, 20.0]


def test_short_calls_are_timed_in_batches_up_to_the_floor() -> None:
    entries, journal, clock = fakes({"a": 1e-3})
    protocol = bench.Protocol(blocks=1, pause=0.0, floor=1.0, sample=0.1)
    times = bench.time_blocks(entries, protocol, lambda: clock[0], lambda s: None)
    assert times["a"] == pytest.approx([1e-3])
    assert 1000 <= len(journal) <= 1103


def test_queued_work_is_waited_for() -> None:
    clock, queued = [0.0], [0]

    def call() -> None:
        queued[0] += 1

    def finish() -> None:
        clock[0] += queued[0]
        queued[0] = 0

    protocol = bench.Protocol(blocks=1, pause=0.0, floor=10.0, sample=1.0)
    assert bench.time_blocks({"a": (call, finish)}, protocol, lambda: clock[0], lambda s: None) == {"a": [1.0]}


def test_a_slow_contender_stops_after_three_blocks() -> None:
    entries, _, clock = fakes({"slow": 2.0, "fast": 1e-3})
    protocol = bench.Protocol(blocks=5, pause=0.0, floor=0.1, sample=0.01, budget=4.0)
    times = bench.time_blocks(entries, protocol, lambda: clock[0], lambda s: None)
    assert {name: len(blocks) for name, blocks in times.items()} == {"slow": 3, "fast": 5}


def test_median_and_spread_are_of_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [1e-6, 2e-6, 3e-6, 4e-6, 50e-6]
    monkeypatch.setattr(bench, "time_blocks", lambda entries, protocol: {key: blocks for key in entries})
    (row,) = bench.measure(case({"a": lambda: contender("a")}), FAST)
    assert row.us == pytest.approx(3.0)
    assert row.spread_us == pytest.approx(2.0)


# Results


def test_a_wrong_result_is_refused_and_not_timed() -> None:
    session, written = quiet_session()
    session.run([case({"right": lambda: contender("right"), "wrong": lambda: contender("wrong", 2.1)})])
    right, wrong = session.rows
    assert right.us is not None and not right.failed
    assert wrong.us is None and wrong.failed and wrong.note.startswith("WRONG")
    assert session.finish() == 1
    assert any("wrong: WRONG" in text for text in written)


def test_a_contender_that_raises_is_reported_and_the_others_go_on() -> None:
    session, _ = quiet_session()
    session.run([case({"broken": lambda: 1 / 0, "right": lambda: contender("right")})])
    assert session.rows[0].note == "FAILED: ZeroDivisionError: division by zero"
    assert session.rows[1].us is not None
    assert session.finish() == 1


def test_an_absent_contender_is_named_and_no_failure() -> None:
    def absent() -> bench.Contender:
        raise bench.Absent("torch is not installed")

    session, written = quiet_session()
    session.run([case({"torch": absent, "right": lambda: contender("right")})])
    assert "  torch absent: torch is not installed" in written[0].splitlines()
    assert session.finish() == 0


@pytest.mark.parametrize(
    ("result", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.5 / 3.5),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.nan, 1.0], [0.0, 1.0], math.inf),
        ([0.0, 1.0], [np.nan, 1.0], math.inf),
        ([np.inf, 1.0], [-np.inf, 1.0], math.inf),
    ],
    ids=str,
)
def test_relative_error(result: list[float], expected: list[float], error: float) -> None:
    assert bench.relative_error(np.array(result), np.array(expected)) == pytest.approx(error)


def test_relative_error_takes_a_scale_and_refuses_another_size() -> None:
    assert bench.relative_error(np.array([[3.0]]), np.array([2.0]), 100.0) == pytest.approx(0.01)
    with pytest.raises(bench.WrongResult, match="shape"):
        bench.relative_error(np.zeros(3), np.zeros(4))


# Ratios and roofs


def test_ratio_and_share_follow_from_rivals_and_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"ours": 2e-6, "a": 4e-6, "b": 9e-6, "triad": 1e-6, "triad cached": 3e-6, "fma": 1e-6}
    times = {(name, "call"): [s] for name, s in seconds.items()} | {("b", "allocate"): [3e-6]}
    monkeypatch.setattr(bench, "time_blocks", lambda entries, protocol: {key: times[key] for key in entries})
    makers = {
        "ours": lambda: contender("ours", kind="ours"),
        "a": lambda: contender("a"),
        "b": lambda: contender("b", allocate=lambda: None),
    }
    probes = [
        bench.Contender("triad", lambda: None, kind="probe", work=(1000.0, 0.0)),
        bench.Contender("triad cached", lambda: None, kind="probe", work=(1000.0, 0.0)),
        bench.Contender("fma", lambda: None, kind="probe", work=(0.0, 500.0)),
    ]
    rows = {r.contender: r for r in bench.measure(case(makers, moved=1000.0, flops=100.0), FAST, probes)}
    assert {n: rows[n].ratio for n in ("ours", "a", "b")} == pytest.approx({"ours": 1.5, "a": 0.75, "b": 1.0})
    assert rows["ours"].share == pytest.approx(0.5)
    assert rows["ours"].gbs == pytest.approx(0.5)
    assert rows["triad"].gbs == pytest.approx(1.0)
    assert rows["fma"].gflops == pytest.approx(0.5)


def test_no_compiler_no_roofs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def missing(elements: int, cached: bool) -> None:
        raise bench.CompileError("no C compiler")

    monkeypatch.setattr(bench.probes, "triad", missing)
    assert bench.roofs(case({}, moved=1000.0)) == []
    assert "no C compiler" in caplog.text


def test_roofs_measure_this_machine() -> None:
    probes = {p.name: p for p in bench.roofs(case({}, moved=float(1 << 22), flops=1.0))}
    if not probes:
        pytest.skip("no C compiler")
    assert set(probes) == {"copy", "triad", "triad cached", "fma"}
    times = bench.time_blocks({n: (p.call, p.finish) for n, p in probes.items()}, FAST)
    assert all(1e-6 < seconds < 1.0 for blocks in times.values() for seconds in blocks)


@pytest.mark.parametrize("cached", [False, True])
def test_a_pass_reads_and_writes_what_it_says(cached: bool) -> None:
    try:
        probe = bench.probes.one_pass(40_000, 100_000, cached)
    except bench.CompileError:
        pytest.skip("no C compiler")
    written, read = probe.arrays
    written[:] = -1
    read[:] = 1
    probe.run()
    assert probe.bytes == 4 * 140_000
    assert (written > 0).all()
    assert written.max() <= read.sum()
    names = {p.name for p in bench.roofs(replace(case({}, moved=float(1 << 22)), written=float(1 << 20)))}
    assert names == {"copy", "triad", "triad cached", "pass", "pass cached"}


def test_summary_is_the_geometric_mean_over_the_sizes() -> None:
    rows = [
        bench.Row("gate", (n,), "float32", "ours", "ours", us=1.0, ratio=ratio, share=share, error=error)
        for n, ratio, share, error in [(1, 2.0, 0.9, 1e-8), (2, 8.0, 0.5, 1e-7)]
    ]
    (line,) = bench.summary([*rows, bench.Row("gate", (1,), "float32", "numpy", us=1.0, ratio=1.0)])
    assert line["geomean"] == pytest.approx(4.0)
    assert (line["least"], line["least_share"], line["worst_error"]) == (2.0, 0.5, 1e-7)


# Output


def test_the_table_is_aligned_and_leaves_empty_columns_out() -> None:
    rows = [
        bench.Row("gate", (4, 8), "float32", "ours", "ours", us=1234.5678, spread_us=1.0, gbs=20.0, ratio=2.0),
        bench.Row("gate", (4, 8), "float32", "numpy", us=9.0, spread_us=0.5, gbs=3.0, ratio=1.0),
    ]
    lines = bench.table(rows).splitlines()
    assert lines[0] == "gate  4x8  float32"
    assert lines[1].split() == ["contender", "us", "+-", "GB/s", "ratio"]
    assert lines[2].split() == ["ours", "1235", "1", "20", "2.00x"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_json_holds_rows_machine_protocol_and_summary(tmp_path) -> None:
    file = tmp_path / "result.json"
    session, _ = quiet_session("--json", str(file), "--quick", "--threads", "2")
    session.run([case({"ours": lambda: contender("ours", kind="ours"), "numpy": lambda: contender("numpy")})])
    assert session.finish() == 0
    document = json.loads(file.read_text())
    assert [row["contender"] for row in document["rows"]] == ["ours", "numpy"]
    assert document["rows"][0]["us"] > 0 and document["rows"][0]["us"] == float(f"{session.rows[0].us:.6g}")
    assert document["summary"][0]["case"] == "double"
    assert sum(line.startswith('{"case": "double"') for line in file.read_text().splitlines()) == 3
    assert document["protocol"]["blocks"] == FAST.blocks
    facts = document["machine"]
    assert "load" in facts and facts["threads"] == 2 and facts["versions"]["numpy"] == np.__version__
    assert {"cpu", "cores", "compiler", "revision", "date", "python"} <= set(facts)
    assert os.sep not in document["script"]


def test_a_result_stays_where_the_next_is_not_written(tmp_path, monkeypatch) -> None:
    file = tmp_path / "result.json"
    session, _ = quiet_session("--json", str(file), "--quick")
    session.run([case({"ours": lambda: contender("ours", kind="ours")})])
    assert session.finish() == 0
    before = file.read_text()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        session.finish()
    assert file.read_text() == before and os.listdir(tmp_path) == ["result.json"]


def test_only_and_without_choose_cases_and_contenders() -> None:
    session, written = quiet_session("--only", "double 4 float", "--without", "a,b")
    makers = {name: (lambda name=name: contender(name)) for name in "abc"}
    session.run([case(makers), bench.Case("other", (4,), "float32", lambda: 1 / 0, {})])
    assert [row.contender for row in session.rows] == ["c"]
    assert len(written) == 1


def test_what_without_names_in_vain_is_said() -> None:
    session, written = quiet_session("--without", "b,numpi")
    session.run([case({name: (lambda name=name: contender(name)) for name in "ab"})])
    assert session.finish() == 0
    assert written[-1] == "no contender --without numpi: there are a, b"


def test_plot_writes_a_png(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "bars.png"
    session, _ = quiet_session("--plot", str(file))
    session.run([case({"a": lambda: contender("a")})])
    assert session.finish() == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        bench.Session(options("--plot", "bars.png"))


# Options


def test_every_script_has_the_common_options() -> None:
    given = options("--backend", "cpu", "--threads", "3", "--dtype", "float32,bfloat16", "--quick")
    assert (given.backend, given.threads, given.dtype, given.quick) == ("cpu", 3, ("float32", "bfloat16"), True)
    assert options().threads == bench.allowed_cores()


def test_no_threads_is_refused(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        options("--threads", "0")
    assert "0 given, expected 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize("given, message", [
    (("--only", "("), "no regular expression"), (("--dtype", "float32,float8"), "not an element type[^\\n]*'float8'"),
    (("--backend", "gpu:nosuch"), "no such driver"), (("--dtype", "int32"), "int32 given, expected float types"),
    (("--backend", "nosuch"), "'nosuch' given, expected one of cpu, gpu"),
    (("--json", "/nowhere/x.json"), "no folder /nowhere"), (("--plot", "/nowhere/x.png"), "no folder /nowhere"),
])  # fmt: skip
def test_options_that_cannot_be_are_refused_before_anything_is_measured(capsys, given, message) -> None:
    with pytest.raises(SystemExit):
        options(*given)
    assert re.search(message, capsys.readouterr().err)


def test_files_that_may_not_be_written_are_refused_before_anything_is_measured(capsys, monkeypatch, tmp_path) -> None:
    there = tmp_path / "there.json"
    there.touch()
    monkeypatch.setattr(os, "access", lambda *asked: False)  # as in a folder of somebody else's
    for file, named in ((there, there), (tmp_path / "x.json", tmp_path)):
        with pytest.raises(SystemExit):
            options("--json", str(file))
        assert f"argument --json: {named} may not be written" in capsys.readouterr().err


def test_a_pattern_that_no_case_matches_is_named() -> None:
    session, written = quiet_session("--only", "nothing")
    session.run([case({"a": lambda: contender("a")})])
    assert session.finish() == 1
    assert written == ["no case matches --only 'nothing'"]


def test_threads_are_set_before_libraries_start_by_starting_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: started.append(arguments))
    for name in bench.THREAD_VARIABLES:
        monkeypatch.setenv(name, "7")
    bench.pin_threads(7)
    assert started == []
    bench.pin_threads(3)
    assert started == [[sys.executable, *sys.orig_argv[1:]]]
    assert all(os.environ[name] == "3" for name in bench.THREAD_VARIABLES)


def test_the_harness_imports_no_rival() -> None:
    code = "import sys, tensorbackend.bench; print(sorted({'torch', 'jax', 'numba', 'numexpr'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


# Comparing results


def result(path: Path, us: float, spread: float, share: float) -> str:
    row = bench.Row("gate", (4,), "float32", "ours", "ours", us=us, spread_us=spread, share=share)
    path.write_text(json.dumps({"rows": [asdict(row)], "machine": {"cpu": "one", "date": str(us)}}))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("us", "word", "status"),
    [(10.5, "", 0), (14.0, "slower", 1), (6.0, "faster", 0)],
    ids=["within", "slower", "faster"],
)
def test_compare_marks_changes_beyond_the_spread(tmp_path: Path, us: float, word: str, status: int) -> None:
    old = result(tmp_path / "old.json", 10.0, 0.5, 0.5)
    new = result(tmp_path / "new.json", us, 1.0, 0.6)
    command = [sys.executable, "benchmarks/compare.py", old, new, "--fail"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."})
    assert (done.returncode, done.stderr) == (status, "")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("gate")]
    assert [row[-1] for row in rows] == ([word] if word else [])
    assert "1 rows in both" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("text", [None, "{", "[]", '{"rows": []}'])
@pytest.mark.parametrize("script", ["compare", "report"])
def test_what_is_no_result_is_said_in_a_line(tmp_path: Path, script: str, text: str | None) -> None:
    path = tmp_path / "old.json"
    if text is not None:
        path.write_text(text)
    command = [sys.executable, f"benchmarks/{script}.py", str(path), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."})
    assert done.returncode == 2 and f"no result of a benchmark: {path}" in done.stderr.splitlines()[-1]


def test_a_result_that_cannot_go_on_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{")
    with pytest.raises(SystemExit, match="2"):
        options("--json", str(tmp_path / "old.json"))


def test_a_network_that_is_none_is_said_in_a_line() -> None:
    command = [sys.executable, "benchmarks/scaling.py", "--links", "mine 20"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."})
    assert done.returncode == 2 and "'mine 20' given, expected 'NAME: US GB/S'" in done.stderr


def test_compare_says_when_no_contender_matches(tmp_path: Path) -> None:
    path = result(tmp_path / "old.json", 10.0, 0.5, 0.5)
    command = [sys.executable, "benchmarks/compare.py", path, path, "--only", "theirs"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."})
    assert done.returncode == 2 and "no contender of the old result matches 'theirs'" in done.stderr
