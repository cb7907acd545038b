# SPDX-License-Identifier: Apache-2.0
"""Training over processes: an allreduce beside mpi4py's own, the cost of a message, steps of one and of two processes.

    python benchmarks/distributed.py                  needs pip install 'tensorbackend[mpi,examples]'

Both allreduces work on the same memory, in alternating blocks. Time is fitted by t = alpha + beta bytes, the model of
`scaling.py`. Then the convolutional network of `examples/parallel_digits.py` trains with the same minibatches in one
process with two threads, and in two processes with one thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tensorbackend import bench, distributed

SIZES = [1 << k for k in range(8, 27, 2)]
"""Bytes of the buffers: 256 to 64 M."""
SMALL = 1 << 16
"""Bytes up to which a block takes less than a millisecond, and there are many."""
HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "parallel_digits.py"


def worker(blocks: int) -> None:
    """In each of several processes: seconds of both allreduces by size; process 0 prints them as JSON."""
    comm = distributed.init("cpu")
    from mpi4py import MPI

    found = []
    for nbytes in SIZES:
        x = comm.backend.ones((nbytes // 4, 1))
        memory = [MPI.buffer.fromaddress(x.address, x.nbytes), MPI.FLOAT]
        calls = {
            "tensorbackend": lambda x=x: comm.allreduce(x),
            "mpi4py": lambda memory=memory: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, memory, MPI.SUM),
        }
        repeats = max(3, min(200, (64 << 20) // nbytes))
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for block in range(blocks if nbytes > SMALL else 20 * blocks):
            for name in sorted(calls, reverse=bool(block % 2)):
                x[:] = 0
                comm.barrier()
                seconds[name].append(_mean_time(calls[name], repeats))
        found.append({name: statistics.median(values) for name, values in seconds.items()})
    if comm.rank == 0:
        print(json.dumps(found))
    comm.close()


def _mean_time(call: Callable[[], Any], repeats: int) -> float:
    call()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def launch(n: int, *arguments: str, threads: int = 1) -> str:
    """What n processes print."""
    line = [sys.executable, "-m", "tensorbackend", "launch", "-n", str(n), *arguments]
    env = {**os.environ, "TB_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    return subprocess.run(line, env=env, check=True, capture_output=True, text=True).stdout


def fit(seconds: list[float]) -> tuple[float, float]:
    """(alpha, beta) of t = alpha + beta bytes, by least squares of relative errors."""
    t = np.array(seconds)
    rows = np.stack([np.ones(len(t)), np.array(SIZES, float)], axis=1) / t[:, None]
    (alpha, beta), *_ = np.linalg.lstsq(rows, np.ones(len(t)), rcond=None)
    return float(alpha), float(beta)


def steps(epochs: int, rounds: int, scratch: Path) -> dict[str, float]:
    """Seconds of training in one process with two threads, and in two with one each: medians of alternating runs."""
    kinds = {"1 process, 2 threads": (1, 2), "2 processes, 1 thread": (2, 1)}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds + 1):
        for name, (n, threads) in kinds.items():
            launch(n, str(EXAMPLE), "--epochs", str(epochs), "--curve", str(scratch), threads=threads)
            seconds[name].append(json.loads(scratch.read_text())["seconds"])
    scratch.unlink()
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}  # the first compiles


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer blocks and epochs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.worker)
        return

    times = json.loads(launch(2, str(HERE / "distributed.py"), "--worker", "3" if options.quick else "9"))
    cells = [["bytes", "us", "mpi4py us", "ratio", "GB/s"]]
    for nbytes, t in zip(SIZES, times):
        own, plain = t["tensorbackend"], t["mpi4py"]
        row = [own * 1e6, plain * 1e6, own / plain, nbytes / own / 1e9]
        cells.append([str(nbytes), *(f"{x:.4g}" for x in row)])
    alpha, beta = fit([t["tensorbackend"] for t in times])
    print("allreduce of float32, 2 processes", *bench.aligned(cells), sep="\n  ")
    print(f"  t = alpha + beta bytes: alpha {alpha * 1e6:.3g} us, 1/beta {1e-9 / beta:.3g} GB/s\n")

    trained = steps(2 if options.quick else 6, 3 if options.quick else 5, Path.cwd() / ".parallel_digits.json")
    rate = trained["1 process, 2 threads"] / trained["2 processes, 1 thread"]
    print("training the convolutional network on digits", *(f"{t:.3f} s  {name}" for name, t in trained.items()),
          f"2 processes run at {rate:.2f} of the speed of one", sep="\n  ")  # fmt: skip
    if options.json is not None:
        facts = {"machine": bench.machine(2), "bytes": SIZES, "allreduce": times, "alpha": alpha, "beta": beta,
                 "training": trained}  # fmt: skip
        options.json.write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
