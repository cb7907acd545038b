# SPDX-License-Identifier: Apache-2.0
"""Combinations of what tests are run with, of which some are left to the `ci` group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def thinned(share: int, *axes: Sequence[Any]) -> list[Any]:
    """Parameters for all combinations of values: one in `share` runs every day, the others in `ci`.

    They lie on the diagonals, as in a Latin square: each value comes every day where another axis has `share` values.
    """
    every = itertools.product(*map(enumerate, axes))
    left = [[], [pytest.mark.ci]]
    return [pytest.param(*(value for _, value in pairs), marks=left[sum(k for k, _ in pairs) % share > 0])
            for pairs in every]  # fmt: skip
