# SPDX-License-Identifier: Apache-2.0
"""Histograms of tensors by powers of two: what `tensor.hist` counts, and how it is read."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from tensorbackend import ops
from tensorbackend.errors import complain
from tensorbackend.graph.optree import apply
from tensorbackend.graph.tensor import Tensor

__all__ = ["Histograms"]

MAX_HISTOGRAMS = {0: 4096, 1: 16384}
"""Histograms that are kept until they are read, by `device_type`."""


class Histograms:
    """The histograms of the contract; `Backend` inherits them."""

    evaluate: Callable[..., Tensor]
    zeros: Callable[..., Tensor]
    hist_bins: int
    hist_offset: int
    _hist_rows: list[tuple[str, Tensor]]

    def set_hist_buffers(self, hist_bins: int, hist_offset: int) -> None:
        """Choose the number of bins and the exponent of the first; drops what was counted if they change.

        Raises `ValueError` for fewer bins than one, `TypeError` for what is no integer.
        """
        try:
            chosen = operator.index(hist_bins), operator.index(hist_offset)
        except TypeError:
            given = f"{hist_bins!r} bins from {hist_offset!r}"
            expected = "ints: of bins, and the exponent of the first"
            raise TypeError(complain("set_hist_buffers", given, expected)) from None
        if chosen[0] < 1:
            raise ValueError(complain("set_hist_buffers: bins", repr(hist_bins), "1 or more"))
        if chosen != (self.hist_bins, self.hist_offset):
            self.hist_bins, self.hist_offset = chosen
            self._hist_rows.clear()

    def _histogram(self, tensor: Tensor, tag: str) -> Tensor:
        most = MAX_HISTOGRAMS.get(self.device_type, MAX_HISTOGRAMS[0])
        try:
            hash(tag)  # a name of a row, where they are read
        except TypeError:
            raise TypeError(complain("hist: tag", repr(tag)[:200], "a name")) from None
        if len(self._hist_rows) >= most:
            raise ValueError(complain("hist: full", f"{most} histograms", "fewer", "dump_hist_data() resets"))
        counts = apply(ops.OPS["histogram"], tensor, params=(self.hist_offset, self.hist_bins))
        row = self.evaluate(counts)
        self._hist_rows.append((tag, row))
        return row

    def dump_hist_data(self) -> tuple[Tensor, dict[str, int]]:
        """All histograms since the last call: int32 (histograms, bins) in order, and each tag's (last) row. Resets."""
        rows = self._hist_rows
        data = self.zeros((max(len(rows), 1), self.hist_bins), dtype=np.int32)[: len(rows)]
        for number, (_, row) in enumerate(rows):
            data[number] = row
        tags = {tag: number for number, (tag, _) in enumerate(rows)}
        self._hist_rows = []
        return data, tags
