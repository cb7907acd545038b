# SPDX-License-Identifier: Apache-2.0
"""The page that compares results: what it counts and shows, and that it stands alone."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tensorbackend import __main__ as command_line
from tensorbackend import bench, bench_page, bench_results
from tensorbackend.commands import bench as bench_command

MACHINE = {"cpu": "A <fast> CPU", "threads": 2, "compiler": "cc 1", "revision": "abc", "date": "2026-01-02T03:04:05",
           "load": 0.1, "versions": {"numpy": "2.0"}}  # fmt: skip


def row(case: str, contender: str, us: float, ratio: float | None = None, kind: str = "ours", **more: object) -> dict:
    """A row as a script writes it."""
    return {"case": case, "shape": [4, 8], "dtype": "float32", "contender": contender, "kind": kind, "us": us,
            "spread_us": 0.1, "gbs": 10.0, "gflops": 2.0, "share": 0.5, "ratio": ratio, **more}  # fmt: skip


@pytest.fixture
def document() -> dict:
    rows = [
        row("won", "tensorbackend", 10.0, 4.0), row("won", "numpy", 40.0, kind="rival"),
        row("lost", "tensorbackend", 20.0, 0.5), row("lost", "numpy", 10.0, kind="rival"),
        row("even & more", "tensorbackend", 10.0, 1.0), row("even & more", "numpy", 10.0, kind="rival"),
        row("won", "triad", 5.0, kind="probe", gbs=40.0), row("won", "fma", 5.0, kind="probe", gflops=300.0),
    ]  # fmt: skip
    return {"script": "mine.py", "backend": "cpu", "quick": True, "machine": MACHINE, "rows": rows,
            "history": [{"date": "2025-12-31", "revision": "old", "geomean": 1.1, "cases": 3}]}  # fmt: skip


def test_ratios_come_least_first(document: dict) -> None:
    family = bench_results.Family(document)
    assert list(family.ratios.values()) == [0.5, 1.0, 4.0]
    assert family.geomean == pytest.approx(2 ** (1 / 3))


def test_the_page_says_who_wins_and_hides_no_loss(document: dict) -> None:
    text = bench_page.page([document])
    assert "Of 3 cases we are faster in 1, slower in 1, even in the rest." in text
    assert "Where another library is faster (1 of 3 cases)" in text
    shown = ("lost 4x8 float32", "0.50x", "4.00x", "A &lt;fast&gt; CPU", "even &amp; more", "--quick", "old", "1.10x")
    for part in shown:
        assert part in text, part
    places = [text.index(words) for words in ("another library is faster (", "we are faster or even (2)", "<details>")]
    assert places == sorted(places)
    assert text.count("<circle") == 3
    ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def test_the_page_says_whether_a_gpu_was_measured(document: dict) -> None:
    words = "no GPU was measured"
    assert words in bench_page.page([document])
    assert words not in bench_page.page([document, {**document, "backend": "gpu:cupy"}])


def test_many_bars_are_folded_away_but_for_the_lost_cases(document: dict) -> None:
    document["rows"] += [row(f"case {k}", "tensorbackend", 1.0, 2.0) for k in range(bench_page.FEW)]
    text = bench_page.page([document])
    places = [text.index(words) for words in ("another library is faster (", "<details>", "we are faster or even (18)")]
    assert places == sorted(places)


def test_the_page_fetches_nothing(document: dict) -> None:
    assert re.findall(r"(?:src|href)=\"(?!#)[^\"]*\"|url\(|@import|<script", bench_page.page([document])) == []


def test_the_command_writes_what_was_measured(document: dict, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(document))
    (tmp_path / "other.json").write_text("{}")
    page = tmp_path / "out.html"
    asked = ["bench", "--report", str(page), "--measured", "--results", str(tmp_path)]
    assert command_line.main(asked) == 0
    assert "mine" in page.read_text(encoding="utf-8")


def test_a_family_that_fails_is_named_and_the_others_are_shown(
    document: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "poor.py").write_text("raise SystemExit(1)")
    (tmp_path / "well.py").write_text("import sys\nassert '--quick' in sys.argv")
    (tmp_path / "mine.json").write_text(json.dumps(document))
    monkeypatch.setattr(bench_command, "families", lambda: {n: tmp_path / f"{n}.py" for n in ("poor", "well")})
    page = tmp_path / "out.html"
    assert command_line.main(["bench", "--report", str(page), "--quick", "--results", str(tmp_path)]) == 1
    assert page.exists()
    assert "not whole: poor (" in capsys.readouterr().err


def test_a_family_that_this_machine_cannot_run_is_no_failure(
    document: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "absent.py").write_text(f"raise SystemExit({bench.NOT_HERE})")
    (tmp_path / "mine.json").write_text(json.dumps(document))
    monkeypatch.setattr(bench_command, "families", lambda: {"absent": tmp_path / "absent.py"})
    assert command_line.main(["bench", "--report", str(tmp_path / "out.html"), "--results", str(tmp_path)]) == 0


def test_results_that_are_not_whole_are_named(
    document: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(document))
    (tmp_path / "others.json").write_text("[1]")
    asked = ["bench", "--report", str(tmp_path / "out.html"), "--measured", "--results", str(tmp_path)]
    assert command_line.main(asked) == 0
    (tmp_path / "half.json").write_text(json.dumps(document)[:40])
    assert command_line.main(asked) == 1
    assert re.search(r"half\.json is no whole JSON file", capsys.readouterr().err)


def test_no_results_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["bench", "--report", str(tmp_path / "out.html"), "--measured", "--results", str(tmp_path)]
    assert command_line.main(asked) == 1
    assert "no results" in capsys.readouterr().err
    assert not (tmp_path / "out.html").exists()


def test_no_results_of_families_that_failed_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "poor.py").write_text("raise SystemExit(1)")
    monkeypatch.setattr(bench_command, "families", lambda: {"poor": tmp_path / "poor.py"})
    assert command_line.main(["bench", "--report", str(tmp_path / "out.html"), "--results", str(tmp_path)]) == 1
    assert "poor failed" in capsys.readouterr().err


def test_a_result_remembers_those_before_it(document: dict, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    assert bench_results.history(path) == []
    path.write_text(json.dumps(document))
    first, last = bench_results.history(path)
    assert first["revision"] == "old"
    assert last == {"date": MACHINE["date"], "revision": "abc", "geomean": pytest.approx(2 ** (1 / 3)), "cases": 3}
