# SPDX-License-Identifier: Apache-2.0
"""How far apart two CPUs are."""

from __future__ import annotations

import os

import pytest

from tensorbackend.backends import probes
from tensorbackend.backends.toolchain import find_compiler

CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@pytest.mark.skipif(len(CPUS) < 2 or find_compiler() is None, reason="needs two CPUs and a C compiler")
def test_a_line_goes_there_and_back() -> None:
    seconds = probes.handover(*CPUS[:2], times=1000)
    assert 1e-9 < seconds < 1e-2
    assert sorted(os.sched_getaffinity(0)) == CPUS  # of the caller's thread


@pytest.mark.parametrize("pair", [(0, 0), (0, 1 << 20)])
def test_two_cpus_of_the_process_are_needed(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="two of the CPUs"):
        probes.handover(*pair)
