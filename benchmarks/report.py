# SPDX-License-Identifier: Apache-2.0
"""Results as a page: the tables of docs/performance.md, written from JSON that the benchmark scripts made.

    python benchmarks/elementwise.py --json benchmarks/results/elementwise.json
    python benchmarks/report.py benchmarks/results/*.json

Each result fills the part of the page between `<!-- NAME -->` and `<!-- end NAME -->`, NAME being the script's without
`.py`; what has no such part on the page is named and left out.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tensorbackend.bench_results import OURS, Family, result

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def machine(document: dict[str, Any]) -> str:
    """One paragraph: where, when and with what the figures were measured, and the command."""
    m = document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items() if name != OURS)
    quick = " --quick" if document["quick"] else ""
    if "device" in m:
        versions += "".join(f", {name} {version}" for name, version in m["device libraries"].items())
        return (
            f"{m['device']}, driver {m['driver']}, Python {m['python']}, {versions}; revision {m['revision']},"
            f" {m['date'][:10]}.\n`python benchmarks/{document['script']}{quick}`"
        )
    return (
        f"{m['cpu']}, {m['threads']} threads, {m['compiler']}, Python {m['python']}, {versions}; revision"
        f" {m['revision']}, {m['date'][:10]}; load at the start {m['load']:.2f}.\n"
        f"`python benchmarks/{document['script']}{quick}`"
    )


def number(value: float | None, form: str = "{:.4g}") -> str:
    """A figure as text; nothing for what was not measured."""
    return "" if value is None else form.format(value)


def table(family: Family) -> list[str]:
    """One line a case: this project's time, spread, share of the peak and error, its other ways with theirs, its
    rivals' times, and the ratio."""
    kinds = {r["contender"]: r["kind"] for r in family.document["rows"]}
    ways = [c for c, kind in kinds.items() if c != OURS and kind == "ours"]
    rivals = [c for c, kind in kinds.items() if kind == "rival"]
    head = ["case", "shape", "dtype", "us", "+-", "GB/s", "peak", "error", *ways, *rivals, "ratio"]
    lines = ["| " + " | ".join(head) + " |", "|---|---|---|" + "---:|" * (len(head) - 3)]
    for (case, shape, dtype), group in family.groups.items():
        ours = group.get(OURS)
        if ours is None:
            continue
        cells = [case, shape, dtype, number(ours["us"]), number(ours["spread_us"], "{:.2g}")]
        cells += [number(ours["gbs"], "{:.1f}"), number(ours["share"], "{:.0%}"), number(ours["error"], "{:.0e}")]
        cells += [f"{number(w['us'])} ({number(w['error'], '{:.0e}')})" if w else "" for w in map(group.get, ways)]
        cells += [number(group[name]["us"]) if name in group else "" for name in rivals]
        lines.append("| " + " | ".join([*cells, number(ours["ratio"], "{:.2f}")]) + " |")
    return lines


def summary(document: dict[str, Any]) -> list[str]:
    """Geometric mean and least ratio of each case over its sizes."""
    lines = ["", "| case | dtype | sizes | geometric mean | least |", "|---|---|---:|---:|---:|"]
    for row in document["summary"]:
        if row["contender"] == OURS and row["geomean"] is not None:
            figures = f"{row['geomean']:.2f}x | {row['least']:.2f}x"
            lines.append(f"| {row['case']} | {row['dtype']} | {row['sizes']} | {figures} |")
    return lines


def filled(page: str, name: str, text: str) -> str | None:
    """The page with the part called `name` replaced; None when it has none."""
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    if start not in page or end not in page:
        return None
    before, _, rest = page.partition(start)
    return f"{before}{start}\n{text}\n{end}{rest.partition(end)[2]}"


def main() -> int:
    """Fill the page; the exit status is 1 when a result has no part on it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=result, metavar="RESULT.json")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    if not options.page.is_file():
        parser.error(f"--page: there is no file {options.page}")
    page, missing = options.page.read_text(), []
    for document in options.results:
        family = Family(document)
        parts = [machine(family.document), "", *table(family), *summary(family.document)]
        new = filled(page, family.name, "\n".join(parts))
        missing += [family.name] if new is None else []
        page = new or page
    options.page.write_text(page)
    for name in missing:
        sys.stderr.write(f"{options.page.name} has no part <!-- {name} -->\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
