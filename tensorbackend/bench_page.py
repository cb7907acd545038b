# SPDX-License-Identifier: Apache-2.0
"""Benchmark results as one page that stands alone: who is faster, where, by how much, how near the machine's limits.

What a page says comes from the JSON that benchmark scripts write. Cases in which another library is faster come first.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from tensorbackend.bench_results import OURS, Family
from tensorbackend.explain_page import STYLE, roofline

__all__ = ["Family", "page"]

MORE_STYLE = """
table.cases td, table.cases th { padding: .15rem .9rem .15rem 0; white-space: nowrap; }
svg.bars text { font: 12px system-ui, sans-serif; fill: var(--ink); } svg.bars text.f { fill: var(--faint); }
td.lost { color: var(--poor); font-weight: 600; } td.won { color: var(--good); }
p.lead { font-size: 1.05rem; max-width: 46rem; }
"""
NAMES, PER_OCTAVE, ROW = 400, 90, 22  # pixels: of a bar's name, of a factor of two, of a row
SLOWEST, FASTEST = 0.25, 16.0
FEW = 16
"""Bars of cases that are not lost, up to which they need not be asked for."""


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """The whole page, from what benchmark scripts wrote."""
    families = [Family(d) for d in documents]
    parts = ["<h1>How it compares</h1>", _lead(families), _overview(families)]
    parts += [_family(family) for family in families]
    body = "\n".join(parts)
    head = f'<meta charset="utf-8"/><title>tensorbackend: how it compares</title><style>{STYLE}{MORE_STYLE}</style>'
    viewport = '<meta name="viewport" content="width=device-width"/>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}{viewport}</head><body>\n{body}\n</body></html>\n'


def _lead(families: Sequence[Family]) -> str:
    ratios = [r for family in families for r in family.ratios.values()]
    won, lost = sum(r >= 1.03 for r in ratios), sum(r < 0.97 for r in ratios)
    cpus = sorted({f"{f.document['machine']['cpu']}, {f.document['machine']['threads']} threads" for f in families})
    text = (
        f"Each case is timed beside NumPy, PyTorch, JAX and others that are installed, in alternating blocks of one "
        f"run, all writing into memory that exists. The ratio is the time of the fastest other library over ours: "
        f"above 1 we are faster. Of {len(ratios)} cases we are faster in {won}, slower in {lost}, even in the rest."
    )
    if all(f.document["backend"].partition(":")[0] == "cpu" for f in families):
        text += " All of them ran on the CPU: no GPU was measured."
    where = html.escape("; ".join(cpus))
    return f'<p class="lead">{html.escape(text)}</p><p class="machine">{where}</p>'


def _overview(families: Sequence[Family]) -> str:
    """A bar a family, from 1 to the geometric mean, over a thin line from the worst case to the best."""
    shown = [f for f in families if f.geomean is not None]
    bars = [(f.name, f.geomean, min(f.ratios.values()), max(f.ratios.values()), f"#{f.name}") for f in shown]
    return _bars(bars) if bars else ""


def _bars(bars: Sequence[tuple[str, float, float, float, str]]) -> str:
    """Bars of ratios on a logarithmic scale: (name, ratio, least, most, link)."""
    width = NAMES + PER_OCTAVE * math.log2(FASTEST / SLOWEST) + 70
    height = ROW * len(bars) + 30
    parts = []
    for power in range(round(math.log2(SLOWEST)), round(math.log2(FASTEST)) + 1):
        at = _x(2.0**power)
        stroke = "var(--faint)" if power == 0 else "var(--line)"
        parts.append(f'<path d="M{at:.0f} 0V{height - 22}" stroke="{stroke}"/>')
        parts.append(f'<text class="f" x="{at:.0f}" y="{height - 6}" text-anchor="middle">{2.0**power:g}x</text>')
    for k, (name, ratio, least, most, link) in enumerate(bars):
        middle = k * ROW + ROW / 2
        left, right = sorted((_x(1.0), _x(ratio)))
        colour = "good" if ratio >= 0.97 else "poor"
        parts.append(f'<path d="M{_x(least):.1f} {middle:.0f}H{_x(most):.1f}" stroke="var(--faint)"/>')
        box = f'x="{left:.1f}" y="{middle - 7:.0f}" width="{max(right - left, 1.5):.1f}" height="14" rx="2"'
        parts.append(f'<rect {box} fill="var(--{colour})"/>')
        place = f'x="{NAMES - 8}" y="{middle + 4:.0f}"'
        label = f'<text {place} text-anchor="end">{html.escape(name)}</text>'
        parts.append(f'<a href="{html.escape(link)}">{label}</a>' if link else label)
        parts.append(f'<text x="{max(right, _x(most)) + 6:.1f}" y="{middle + 4:.0f}">{ratio:.2f}x</text>')
    size = f'viewBox="0 0 {width:.0f} {height}" width="{width:.0f}"'
    return f'<svg class="bars" {size} role="img">{"".join(parts)}</svg>'


def _x(ratio: float) -> float:
    return NAMES + PER_OCTAVE * math.log2(min(max(ratio, SLOWEST), FASTEST) / SLOWEST)


def _family(family: Family) -> str:
    document = family.document
    machine = document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    quick = " --quick" if document["quick"] else ""
    notes = (
        f"{machine['cpu']}, {machine['threads']} threads; {machine['compiler']}; {versions}; revision "
        f"{machine['revision']}, {machine['date'][:10]}, load {machine['load']:.2f}; "
        f"python benchmarks/{document['script']}{quick}"
    )
    mean = "" if family.geomean is None else f" <small>geometric mean {family.geomean:.2f}x</small>"
    parts = [f'<h2 id="{html.escape(family.name)}">{html.escape(family.name)}{mean}</h2>',
             f'<p class="machine">{html.escape(notes)}</p>']  # fmt: skip
    every = [(" ".join(key), r, r, r, "") for key, r in family.ratios.items()]
    lost, others = [bar for bar in every if bar[1] < 0.97], [bar for bar in every if bar[1] >= 0.97]
    if lost:
        parts.append(f"<p>Where another library is faster ({len(lost)} of {len(every)} cases):</p>{_bars(lost)}")
    shown = f"<p>Where we are faster or even ({len(others)}):</p>{_bars(others)}" if others else ""
    few = len(others) <= FEW
    parts += [shown if few else "", roofline(_points(family), numbered=False)]
    parts.append(f"<details><summary>all cases</summary>{'' if few else shown}{_table(family)}</details>")
    return "\n".join([*parts, _history(document.get("history", []), family)])


def _points(family: Family) -> list[Any]:
    """Our rows as points of a roofline: those of which bytes and operations are known, under the run's best probes."""
    rows = family.document["rows"]
    bandwidth = max((r["gbs"] for r in rows if r["kind"] == "probe" and r["gbs"]), default=None)
    compute = max((r["gflops"] for r in rows if r["kind"] == "probe" and r["gflops"]), default=None)
    if bandwidth is None or compute is None:
        return []
    roof = SimpleNamespace(bandwidth=bandwidth * 1e9, compute=compute * 1e9)
    points = []
    for (case, shape, dtype), group in family.groups.items():
        row = group.get(OURS)
        if row is None or not (row["us"] and row["gbs"] and row["gflops"]):
            continue
        seconds = row["us"] * 1e-6
        line = f"{case} {shape} {dtype}: {row['us']:.4g} us, {row['gflops']:.4g} GFLOP/s, {row['gbs']:.4g} GB/s"
        work = {"flops": row["gflops"] * 1e9 * seconds, "nbytes": row["gbs"] * 1e9 * seconds}
        points.append(SimpleNamespace(seconds=seconds, roof=roof, share=row["share"], line=line.format, **work))
    return points


def _table(family: Family) -> str:
    rivals = list(dict.fromkeys(r["contender"] for r in family.document["rows"] if r["kind"] == "rival"))
    heads = ["case", "shape", "type", "ours, µs", "+-", "of the roof", *rivals, "ratio"]
    lines = ["<tr>" + "".join(f"<th>{html.escape(head)}</th>" for head in heads) + "</tr>"]
    for key, group in family.groups.items():
        row = group.get(OURS)
        if row is None or row["us"] is None:
            continue
        share = "" if row["share"] is None else f"{row['share']:.0%}"
        cells = [f"<td>{html.escape(text)}</td>" for text in key]
        cells += [_number(row["us"]), _number(row["spread_us"]), f'<td class="n">{share}</td>']
        cells += [_number(group[name]["us"] if name in group else None) for name in rivals]
        lines.append("<tr>" + "".join([*cells, _ratio(row["ratio"])]) + "</tr>")
    return f'<table class="cases">{"".join(lines)}</table>'


def _number(value: float | None) -> str:
    return f'<td class="n">{"" if value is None else f"{value:.4g}"}</td>'


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return "<td></td>"
    kind = "won" if ratio >= 1.03 else "lost" if ratio < 0.97 else "even"
    return f'<td class="n {kind}">{ratio:.2f}x</td>'


def _history(history: Sequence[Mapping[str, Any]], family: Family) -> str:
    """Earlier results of the script, as a line each."""
    if not history:
        return ""
    rows = "".join(
        f"<tr><td>{html.escape(entry['date'][:10])}</td><td><code>{html.escape(str(entry['revision']))}</code></td>"
        f'{_ratio(entry["geomean"])}<td class="n">{entry["cases"]}</td></tr>'
        for entry in [*history, family.record]
    )
    heads = '<tr><th>date</th><th>revision</th><th class="n">geometric mean</th><th class="n">cases</th></tr>'
    return f"<details><summary>earlier results</summary><table>{heads}{rows}</table></details>"
