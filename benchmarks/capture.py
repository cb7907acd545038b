# SPDX-License-Identifier: Apache-2.0
"""Captured programs: a training step of the digits network beside its eager run, the cost of replay, the arena."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tensorbackend import Backend, bench

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import layers  # noqa: E402

PIXELS, CLASSES, KEEP = 64, 10, 0.5
MINIBATCHES = 16
REPLAYED = 1000
"""Kernels of the program whose replay is timed."""


class Digits:
    """The network of examples/mlp_digits.py at its defaults, and images like its own with labels."""

    def __init__(self, be: Backend, samples: int, hidden: tuple[int, ...]) -> None:
        be.bsz = samples
        self.be = be
        self.chain: list[layers.Layer] = []
        width = PIXELS
        for size in hidden:
            self.chain += [layers.Affine(be, width, size), layers.Relu(be, size), layers.Dropout(be, size, KEEP)]
            width = size
        self.chain.append(layers.Affine(be, width, CLASSES))
        self.cost = layers.SoftmaxCrossEntropy(be, CLASSES)
        self.parameters = [p for layer in self.chain for p in layer.parameters]
        self.optimizer = layers.Adam(self.parameters)
        self.total = be.zeros((2, 1))
        numbers = np.random.default_rng(1)
        centres = numbers.random((PIXELS, CLASSES))
        labels = numbers.integers(0, CLASSES, (MINIBATCHES, 1, samples))
        self.batches = [
            (be.array(centres[:, row[0]] + numbers.normal(0, 0.3, (PIXELS, samples))), be.array(row, dtype=np.int32))
            for row in labels
        ]
        self.steps = 0
        self._saved = [(t, be.copy(t)) for t in self.state()]
        self._random = be.rng_get_state()

    def state(self) -> list[Any]:
        """All tensors that a step changes for good."""
        return [*(p.value for p in self.parameters), *self.optimizer.means, *self.optimizer.squares, self.total]

    def reset(self) -> None:
        """Return to the start: training that has long converged computes with other numbers, denormal ones too."""
        for t, saved in self._saved:
            t[:] = saved
        self.steps = 0
        self.be.rng_set_state(self._random)

    def step(self, images: Any, labels: Any, steps: int) -> None:
        """One step of training on a minibatch, the last of `steps`."""
        x = images
        for layer in self.chain:
            x = layer.fprop(x, True)
        self.cost.fprop(x)
        error = self.cost.bprop(labels)
        for layer in reversed(self.chain):
            error = layer.bprop(error)
        self.optimizer.update(steps)
        self.cost.add_to(self.total, labels)

    def next(self, call: Callable) -> None:
        """The next step by a function or program."""
        self.steps += 1
        call(*self.batches[self.steps % MINIBATCHES], self.steps)

    def after(self, call: Callable, steps: int) -> list[bytes]:
        """The bits of the state after so many steps from the start."""
        self.reset()
        for _ in range(steps):
            self.next(call)
        return [t.get().tobytes() for t in self.state()]


def training(session: bench.Session, be: Backend, samples: int) -> None:
    """The step, eager and captured: times, bits, memory, and what of the captured time is kernels."""
    digits = Digits(be, samples, (256, 256))
    program = be.capture(digits.step, *digits.batches[0], 1)
    same = digits.after(program, 100) == digits.after(digits.step, 100)

    def settle(seconds: float) -> None:
        digits.reset()
        time.sleep(seconds)

    calls = {"captured": program, "eager": digits.step}
    entries = {name: (lambda call=call: digits.next(call), lambda: None) for name, call in calls.items()}
    times = bench.time_blocks(entries, session.protocol, sleep=settle)
    rows = [_row(f"digits step, batch {samples}", name, blocks) for name, blocks in times.items()]
    captured, eager = rows
    captured.ratio = eager.us / captured.us
    captured.note = f"{captured.ratio:.2f}x eager, {'equal in bits' if same else 'OTHER BITS'} over 100 steps"
    captured.failed = not same
    eager.note = f"{program.kernels} kernels, {program.calls} other calls"
    session.add(rows)
    session.write(f"  {_memory(program)}\n")


def _row(case: str, name: str, seconds: list[float]) -> bench.Row:
    low, middle, high = np.percentile(seconds, (25, 50, 75)) * 1e6
    return bench.Row(case, (), "float32", name, "ours", float(middle), float(high - low))


def _memory(program: Any) -> str:
    share = program.peak_bytes / max(program.least_bytes, 1)
    return f"arena {program.peak_bytes} bytes, least {program.least_bytes}: {share:.3f}"


def chain(session: bench.Session, be: Backend) -> None:
    """The arena of twenty layers that make all their tensors."""
    weights = [be.array(np.random.default_rng(k).normal(0, 0.1, (256, 256))) for k in range(20)]

    def run(x: Any) -> Any:
        for w in weights:
            x = be.evaluate(be.tanh(be.dot(w, x)))
        return x

    session.write(f"chain of 20 layers: {_memory(be.capture(run, be.ones((256, 64))))}\n")


def replay(session: bench.Session, be: Backend) -> None:
    """What a kernel of one element takes in a program of many, and what a call of a program of one kernel takes."""
    x, y = be.ones((1, 1)), be.ones((1, 1))

    def many(x: Any) -> None:
        for _ in range(REPLAYED // 2):
            x[:] = x * 0.5 + y
            y[:] = x - y

    def one(x: Any) -> None:
        x[:] = x * 0.5 + y

    programs = {"a kernel": (be.capture(many, x), REPLAYED), "a call": (be.capture(one, x), 1)}
    entries = {name: (lambda program=program: program(x), lambda: None) for name, (program, _) in programs.items()}
    times = bench.time_blocks(entries, session.protocol)
    for name, blocks in times.items():
        nanoseconds = statistics.median(blocks) / programs[name][1] * 1e9
        session.write(f"replay: {nanoseconds:.4g} ns {name}, the kernel's own time included")


def main() -> int:
    parser = bench.arguments(__doc__)
    parser.add_argument("--batch", type=int, action="append", help="samples of a minibatch (default 32)")
    options: argparse.Namespace = parser.parse_args()
    bench.pin_threads(options.threads)
    session = bench.Session(options)
    be = Backend.allocate_backend(options.backend, rng_seed=1)
    replay(session, be)
    chain(session, be)
    for samples in options.batch or [32]:
        training(session, be, samples)
    return session.finish()


if __name__ == "__main__":
    sys.exit(main())
