# SPDX-License-Identifier: Apache-2.0
"""Hooks that ship with the package: what functions take, and what they see."""

from __future__ import annotations

import sys
import time
from typing import Any

from tensorbackend.function.hooks import FunctionHook

__all__ = ["FunctionHook", "PrintHook", "TimerHook"]


class TimerHook(FunctionHook):
    """The seconds that functions take, in `call_history`: (label, seconds) of each forward and backward, those that run
    inside others too."""

    name = "TimerHook"

    def __init__(self) -> None:
        self.call_history: list[tuple[str, float]] = []
        self._starts: list[tuple[Any, float]] = []
        self._spans: list[tuple[float, float]] = []

    def forward_preprocess(self, function: Any, in_data: tuple[Any, ...]) -> None:
        """Start the clock."""
        self._starts.append((function, time.perf_counter()))

    def forward_postprocess(self, function: Any, in_data: tuple[Any, ...]) -> None:
        """Note the time."""
        self._note(function, in_data)

    def backward_preprocess(self, function: Any, in_data: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
        """Start the clock."""
        self._starts.append((function, time.perf_counter()))

    def backward_postprocess(self, function: Any, in_data: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
        """Note the time."""
        self._note(function, in_data)

    def _note(self, function: Any, in_data: tuple[Any, ...]) -> None:
        for x in in_data:
            if hasattr(x, "backend"):
                x.backend._synchronise()
                break
        while (start := self._starts.pop())[0] is not function:
            pass  # one inside it that raised
        self._spans.append((start[1], time.perf_counter()))
        self.call_history.append((function.label, self._spans[-1][1] - start[1]))

    def total_time(self) -> float:
        """The seconds in which functions ran; calls inside others, as a gradient's inside backward, count once."""
        total, until = 0.0, float("-inf")
        for begin, end in sorted(self._spans):
            total += max(end - max(begin, until), 0.0)
            until = max(end, until)
        return total

    def summary(self) -> dict[str, dict[str, float]]:
        """For each function the seconds of all its calls (`elapsed_time`) and their number (`occurrence`)."""
        found: dict[str, dict[str, float]] = {}
        for label, seconds in self.call_history:
            entry = found.setdefault(label, {"elapsed_time": 0.0, "occurrence": 0})
            entry["elapsed_time"] += seconds
            entry["occurrence"] += 1
        return found

    def print_report(self, file: Any = None) -> None:
        """Write a line for each function, the longest first: milliseconds of all its calls, their number, its label.

        `file` is written to (None: standard output).
        """
        found = sorted(self.summary().items(), key=lambda item: -item[1]["elapsed_time"])
        lines = [f"{1e3 * x['elapsed_time']:12.3f} ms {x['occurrence']:6d} x  {label}" for label, x in found]
        (file or sys.stdout).write("".join(line + "\n" for line in lines))


class PrintHook(FunctionHook):
    """Writes each function's label, and shape, type and (with `values`) the numbers of what it takes.

    `file` is written to (None: standard output).
    """

    name = "PrintHook"

    def __init__(self, values: bool = False, file: Any = None) -> None:
        self._values = values
        self._file = file

    def forward_preprocess(self, function: Any, in_data: tuple[Any, ...]) -> None:
        """Write what goes in."""
        self._write(f"forward {function.label}", "input", in_data)

    def backward_preprocess(self, function: Any, in_data: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
        """Write what comes back."""
        self._write(f"backward {function.label}", "gradient", [getattr(g, "_data", g) for g in grad_outputs])

    def _write(self, head: str, what: str, arrays: Any) -> None:
        lines = [head]
        for i, x in enumerate(arrays):
            shown = "none" if x is None else repr(x) if self._values else f"shape {x.shape} {x.dtype}"
            lines.append(f"  {what} {i}: {shown}")
        (self._file or sys.stdout).write("\n".join(lines) + "\n")
