# SPDX-License-Identifier: Apache-2.0
"""What benchmark scripts wrote, read again: one script's rows by case, its ratios, and the results before it."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["OURS", "Family", "geometric_mean", "history", "json_text", "result"]

OURS = "tensorbackend"
"""The contender that ratios are about."""


def geometric_mean(ratios: Collection[float]) -> float | None:
    """The geometric mean of ratios, None without any."""
    return statistics.geometric_mean(ratios) if ratios else None


@dataclass(frozen=True)
class Family:
    """One script's result: the `document` it wrote, and what that says of this project's rows."""

    document: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The script's name without `.py`."""
        return self.document["script"].removesuffix(".py")

    @property
    def groups(self) -> dict[tuple[str, str, str], dict[str, Mapping[str, Any]]]:
        """The rows of each (case, shape, dtype), by contender."""
        found: dict[tuple[str, str, str], dict[str, Mapping[str, Any]]] = {}
        for row in self.document["rows"]:
            key = (row["case"], "x".join(map(str, row["shape"])), row["dtype"])
            found.setdefault(key, {})[row["contender"]] = row
        return found

    @property
    def ratios(self) -> dict[tuple[str, str, str], float]:
        """How many times faster than the fastest other library each case is, the least first."""
        found = {key: rows[OURS]["ratio"] for key, rows in self.groups.items() if rows.get(OURS, {}).get("ratio")}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    @property
    def geomean(self) -> float | None:
        """The geometric mean of the ratios, None without any."""
        return geometric_mean(self.ratios.values())

    @property
    def record(self) -> dict[str, Any]:
        """What later results remember of this one: date, revision, geometric mean of the ratios, number of cases."""
        facts = {name: self.document["machine"][name] for name in ("date", "revision")}
        return facts | {"geomean": self.geomean, "cases": len(self.ratios)}


def json_text(document: Mapping[str, Any]) -> str:
    """A result as JSON: a line for each row, figures to six digits, of which fewer repeat."""
    parts = []
    for name, value in document.items():
        lines = map(_line, value) if isinstance(value, list) else [_line(value)]
        text = ",\n".join(lines)
        parts.append(f'"{name}": ' + (f"[\n{text}\n]" if isinstance(value, list) else text))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(_rounded(value))


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(x) for x in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def result(text: str) -> dict[str, Any]:
    """A result file, named by an argument. Raises `ArgumentTypeError` for a file that cannot be read, or is none."""
    try:
        document = json.loads(Path(text).read_text("utf-8"))
        if not {"rows", "machine"} <= document.keys():
            raise ValueError("no rows or no machine in it")
    except (OSError, ValueError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"no result of a benchmark: {text}: {error}") from None
    return document


def history(path: Path) -> list[dict[str, Any]]:
    """The records of a result file: of the results it had before, and of the one in it; none without a file."""
    if not path.exists():
        return []
    old = result(str(path))
    return [*old.get("history", []), Family(old).record]
