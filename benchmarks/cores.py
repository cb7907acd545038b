# SPDX-License-Identifier: Apache-2.0
"""How far apart the CPUs of this machine are, and how fast its memory is, again and again.

A virtual machine's CPUs move: two that share a cache at one moment may be on different chips at the next, where memory
is faster, since there are two ways to it, and what threads hand to each other several times slower.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time

from tensorbackend.backends import probes

TRIAD = 7 << 20
"""Elements of each of the triad's three arrays."""


def main() -> None:
    """Print a line a second: nanoseconds there and back for each pair of CPUs, and the triad's bandwidth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="how long to go on (default 10)")
    parser.add_argument("--cpus", type=int, default=4, help="how many CPUs to pair (default 4)")
    options = parser.parse_args()
    pairs = list(itertools.combinations(sorted(os.sched_getaffinity(0))[: options.cpus], 2))
    triad = probes.triad(TRIAD)
    print("a cache line there and back, ns:", *(f"{a}-{b}".rjust(7) for a, b in pairs), "  triad, GB/s", flush=True)
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        rounds = [probes.handover(a, b) * 1e9 for a, b in pairs]
        print(" " * 31, *(f"{ns:7.0f}" for ns in rounds), f"{triad.bytes / triad.seconds() / 1e9:14.1f}", flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()
