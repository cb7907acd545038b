# SPDX-License-Identifier: Apache-2.0
"""Combinations of what tests are run with, of which some are left to the `ci` group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def thinned(share: int, *axes: Sequence[Any], ci: int | None = None) -> list[Any]:
    """Parameters for all combinations of values: one in `share` runs every day, `ci` more or all others in `ci`.

    They lie on the diagonals, as in a Latin square: each value comes every day where another axis has `share` values.
    What is left over is `long`.
    """
    marks = [[], *[[pytest.mark.ci]] * (share - 1 if ci is None else ci), *[[pytest.mark.long]] * share]
    every = ([*zip(*pairs, strict=True)] for pairs in itertools.product(*map(enumerate, axes)))
    return [pytest.param(*values, marks=marks[sum(places) % share]) for places, values in every]
