# SPDX-License-Identifier: Apache-2.0
"""Time between marks in the stream of work; the hooks are those of a backend whose work is done when a call returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tensorbackend.errors import complain

__all__ = ["Marks"]


def _expect_marks(name: str, **marks: Any) -> None:
    """Raise `TypeError` for what `init_mark` has not made."""
    for what, mark in marks.items():
        if not isinstance(mark, dict) or "event" not in mark:
            raise TypeError(complain(f"{name}: {what}", type(mark).__name__, "a mark", "be.init_mark()"))


class Marks:
    """The timing methods of the contract; `Backend` inherits them."""

    _events: tuple[Any, Any] | None
    _flush: Callable[[], None]

    def get_events(self) -> tuple[Any, Any]:
        """A pair of marks for timing, always the same two."""
        if self._events is None:
            self._events = (self.init_mark(), self.init_mark())
        return self._events

    def init_mark(self) -> dict:
        """A new mark for `record_mark` and `get_time`."""
        return {"event": None}

    def record_mark(self, marker: dict) -> None:
        """Note the time in the stream of work. Raises `TypeError` for what is no mark."""
        _expect_marks("record_mark", marker=marker)
        self._flush()
        marker["event"] = self._record()

    def synchronize_mark(self, marker: dict) -> None:
        """Wait until the work before the mark is done. Raises `TypeError` for what is no mark."""
        _expect_marks("synchronize_mark", marker=marker)
        self._synchronise()

    def get_time(self, start: dict, end: dict) -> float:
        """The milliseconds from one recorded mark to another. Raises `ValueError` for marks not
        recorded, `TypeError` for what is none."""
        _expect_marks("get_time", start=start, end=end)
        if start["event"] is None or end["event"] is None:
            raise ValueError(complain("get_time: a mark was not recorded", "", "", "record_mark(mark) first"))
        return self._elapsed(start["event"], end["event"])

    def _timed(self, run: Callable[[], None]) -> float:
        """Do something, and return the seconds that it took."""
        start = self._record()
        run()
        end = self._record()
        self._synchronise()
        return self._elapsed(start, end) * 1e-3

    # Hooks

    def _record(self) -> Any:
        """An event: the time, in the order of what is asked for."""
        return time.perf_counter_ns()

    def _elapsed(self, start: Any, end: Any) -> float:
        """The milliseconds between two events."""
        return (end - start) * 1e-6

    def _synchronise(self) -> None:
        """Wait until everything is done."""
