# SPDX-License-Identifier: Apache-2.0
"""Two results of one script side by side: what changed by more than the spread of both.

    python benchmarks/compare.py OLD.json NEW.json

A case that takes less time is `faster`, one that takes more `slower`, each only when the medians lie further apart than
the two quartile distances together. Where both files hold probes of the case, the change is also given against the
machine's own change, since the bandwidth of a shared machine wanders.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from tensorbackend import bench
from tensorbackend.bench_results import result

Key = tuple[str, tuple[int, ...], str, str]


def rows(document: dict[str, Any]) -> dict[Key, dict[str, Any]]:
    """The timed rows of a result by case, shape, dtype and contender."""
    timed = [r for r in document["rows"] if r["us"] is not None]
    return {(r["case"], tuple(r["shape"]), r["dtype"], r["contender"]): r for r in timed}


def verdict(old: dict[str, Any], new: dict[str, Any]) -> str:
    """`faster`, `slower` or nothing: whether the medians differ by more than both spreads together."""
    if abs(new["us"] - old["us"]) <= old["spread_us"] + new["spread_us"]:
        return ""
    return "slower" if new["us"] > old["us"] else "faster"


def compare(old: dict[Key, dict[str, Any]], new: dict[Key, dict[str, Any]], everything: bool) -> list[list[str]]:
    """Table cells of the rows in both results: those beyond the spread, or all of them."""
    cells = [["case", "dtype", "contender", "shape", "old us", "new us", "change", "of peak", "note"]]
    for key in [key for key in old if key in new]:
        a, b = old[key], new[key]
        note = verdict(a, b)
        if a["kind"] == "probe" or not (note or everything):
            continue
        case, shape, dtype, contender = key
        peak = f"{b['share'] / a['share'] - 1:+.0%}" if a["share"] and b["share"] else ""
        times = [f"{a['us']:.4g}", f"{b['us']:.4g}", f"{b['us'] / a['us'] - 1:+.0%}", peak]
        cells.append([case, dtype, contender, "x".join(map(str, shape)), *times, note])
    return cells


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between the machines of two results, besides date, load and revision."""
    names = [name for name in old if name not in ("date", "load", "revision") and old[name] != new.get(name)]
    return [f"{name}: {old[name]} -> {new.get(name)}" for name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=result, metavar="OLD.json")
    parser.add_argument("new", type=result, metavar="NEW.json")
    parser.add_argument("--all", action="store_true", help="also rows within the spread")
    parser.add_argument("--only", type=re.compile, metavar="REGEX", help="contenders whose name matches")
    parser.add_argument("--fail", action="store_true", help="exit with 1 when one of this project's rows is slower")
    options = parser.parse_args()
    old, new = rows(options.old), rows(options.new)
    if options.only:
        old = {key: row for key, row in old.items() if options.only.search(key[3])}
        if not old:
            parser.error(f"argument --only: no contender of the old result matches {options.only.pattern!r}")
    changes = differences(options.old["machine"], options.new["machine"])
    lines = [f"machines differ: {line}" for line in changes]
    lines += bench.aligned(compare(old, new, options.all))
    both = old.keys() & new.keys()
    alone = [len(side) - len(both) for side in (old, new)]
    lines.append(f"{len(both)} rows in both; {alone[0]} only in the old result, {alone[1]} only in the new")
    sys.stdout.write("\n".join(lines) + "\n")
    worse = [k for k in both if old[k]["kind"] == "ours" and verdict(old[k], new[k]) == "slower"]
    return 1 if options.fail and worse else 0


if __name__ == "__main__":
    sys.exit(main())
