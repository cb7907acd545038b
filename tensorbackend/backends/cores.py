# SPDX-License-Identifier: Apache-2.0
"""What the machine, and a container around this process, let it have."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["allowed_cores", "control_group_limit"]

CONTROL_GROUP = Path("/sys/fs/cgroup")  # where a container's limits are


def allowed_cores() -> int:
    """The cores this process may use, no more than a container allows CPU time for."""
    cores = len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
    return min(control_group_limit("cpu.max") or cores, cores)


def control_group_limit(name: str) -> int:
    """The limit that a container sets: whole CPUs for `cpu.max`, bytes for `memory.max`; 0 when there is none."""
    try:
        words = (CONTROL_GROUP / name).read_text().split()
    except OSError:
        return 0
    if not words or words[0] == "max":
        return 0
    period = int(words[1]) if len(words) > 1 else 1
    return max(1, -(-int(words[0]) // period))
