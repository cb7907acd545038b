# SPDX-License-Identifier: Apache-2.0
"""Train the convolutional network of `cnn_digits.py` in several processes, each on its share of every minibatch.

    python -m tensorbackend launch -n 2 examples/parallel_digits.py
    python examples/parallel_digits.py                  one process, the same costs
    python examples/parallel_digits.py --help

All processes begin with the same weights. In each step they average their gradients, those of large networks while the
rest of the backward pass goes on, and take the same step; so the costs are those of one process with the whole
minibatch, apart from the order of additions. `--checkpoint FILE` keeps what going on later needs, and goes on from it
if it is there, on any number of processes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from cnn_digits import convolutional
from layers import Adam
from mlp_digits import Network, Samples, evaluate, load

import tensorbackend as tb
from tensorbackend import distributed
from tensorbackend.arguments import output_file, whole


class ParallelTraining:
    """A network, its optimizer, and the exchange of gradients between processes."""

    def __init__(self, comm: distributed.Communicator, network: Network, batches: distributed.ShardedBatches,
                 compress: str | None) -> None:  # fmt: skip
        self.comm = comm
        self.network = network
        self.optimizer = Adam(network.parameters)
        self.batches = batches
        self.steps = 0
        self.total = comm.backend.zeros((2, 1))
        self.exchange = distributed.GradientBuckets(
            comm, [p.gradient for p in network.parameters], compress=compress
        )
        for p, gradient in zip(network.parameters, self.exchange.in_place()):
            p.gradient = gradient
        self._numbers = {id(p): k for k, p in enumerate(network.parameters)}

    def step(self, batch: Samples) -> None:
        """One step of all processes on a minibatch, of which `batch` is this process's share."""
        self.steps += 1
        self.network.fprop(batch.images, training=True)
        error = self.network.cost.bprop(batch.labels)
        for layer in reversed(self.network.layers):
            error = layer.bprop(error)
            self.exchange.ready(*(self._numbers[id(p)] for p in layer.parameters))
        self.exchange.wait()
        self.optimizer.update(self.steps)
        self.network.cost.add_to(self.total, batch.labels)

    def epoch(self, samples: Samples) -> tuple[float, float]:
        """Go through the samples once; the mean (cost, accuracy) as they were met, over all processes."""
        be = self.comm.backend
        steps = len(self.batches) - self.batches.position
        self.total[:] = 0
        for chosen in self.batches:
            images, labels = be.take(samples.images, chosen, axis=1), be.take(samples.labels, chosen, axis=1)
            self.step(Samples(be.evaluate(images), be.evaluate(labels)))
        total = self.comm.allreduce(self.total).get().ravel() / (steps * self.batches.batch)
        return float(total[0]), float(total[1])

    def save(self, path: Path) -> None:
        """Write a checkpoint."""
        distributed.save_checkpoint(
            self.comm, path, {**self._tensors(), "steps": self.steps, "epoch": self.batches.epoch}
        )

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint. Raises `ValueError` for one of another network."""
        stored, tensors = distributed.load_checkpoint(path), self._tensors()
        if stored.keys() != {*tensors, "steps", "epoch"}:
            raise ValueError("a checkpoint of another network")
        for name, tensor in tensors.items():
            tensor[:] = stored[name]
        self.steps, self.batches.epoch = int(stored["steps"]), int(stored["epoch"])

    def _tensors(self) -> dict:
        kinds = {"value": [p.value for p in self.network.parameters], "mean": self.optimizer.means,
                 "square": self.optimizer.squares}  # fmt: skip
        return {f"{kind}{k}": tensor for kind, tensors in kinds.items() for k, tensor in enumerate(tensors)}


def evaluate_together(comm: distributed.Communicator, network: Network, samples: Samples) -> tuple[float, float]:
    """(cost, accuracy) over samples, of which each process takes its share."""
    be, n = comm.backend, samples.labels.shape[1]
    chosen = np.arange(comm.rank, n, comm.size)
    share = Samples(*(be.evaluate(be.take(x, chosen, axis=1)) for x in samples))
    total = be.array(np.multiply(evaluate(be, network, share), chosen.size))
    cost, accuracy = comm.allreduce(total).get().ravel() / n
    return float(cost), float(accuracy)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a convolutional network in several processes.")
    parser.add_argument("--epochs", type=whole(1), default=12, help="passes over the data (default: %(default)s)")
    parser.add_argument("--maps", type=whole(1), nargs="+", default=[32, 64],
                        help="maps of each block, at most three (default: 32 64)")  # fmt: skip
    parser.add_argument("--compress", choices=["float16", "bfloat16"], help="exchange gradients as halves")
    parser.add_argument("--checkpoint", type=output_file, help="file to keep the state in, and to go on from")
    parser.add_argument("--curve", type=output_file, help="write the costs of the epochs as JSON")
    tb.add_backend_arguments(parser)
    parser.set_defaults(seed=1, batch_size=64)
    found = parser.parse_args()
    if len(found.maps) > 3:
        parser.error("images of 8 x 8 pixels can be halved three times: --maps takes at most three numbers")
    return found


def main() -> None:
    """Train as the command line says; process 0 speaks."""
    arguments = parse_arguments()
    threads = {} if arguments.threads is None else {"threads": arguments.threads}
    try:
        comm = distributed.init(arguments.backend, rng_seed=arguments.seed, datatype=arguments.dtype,
                                batch_size=arguments.batch_size, **threads)  # fmt: skip
    except (tb.BackendError, ValueError) as error:
        sys.exit(f"parallel_digits.py: --backend: {error}")
    train_set, _, test_set = load(comm.backend, arguments.seed)
    try:
        batches = distributed.ShardedBatches(comm, train_set.labels.shape[1], arguments.batch_size, arguments.seed)
    except tb.ShapeError as error:
        sys.exit(f"parallel_digits.py: --batch-size: {error}")
    network = convolutional(comm.backend, arguments.maps, keep=None)
    training = ParallelTraining(comm, network, batches, arguments.compress)
    if arguments.checkpoint is not None and arguments.checkpoint.exists():
        try:
            training.resume(arguments.checkpoint)
        except (OSError, ValueError) as error:
            sys.exit(f"parallel_digits.py: --checkpoint {arguments.checkpoint}: {error}")

    costs, start = [], time.perf_counter()
    while batches.epoch < arguments.epochs:
        cost, accuracy = training.epoch(train_set)
        costs.append(cost)
        if arguments.checkpoint is not None:
            training.save(arguments.checkpoint)
        if comm.rank == 0:
            print(f"epoch {batches.epoch:<3} cost {cost:.6f}  accuracy {accuracy:7.2%}", flush=True)
    seconds = time.perf_counter() - start
    cost, accuracy = evaluate_together(comm, network, test_set)
    if comm.rank == 0:
        print(f"{comm.size} processes, {len(costs)} epochs in {seconds:.1f} s; test: {cost:.4f} {accuracy:.2%}")
        if arguments.curve is not None:
            arguments.curve.write_text(json.dumps({"costs": costs, "seconds": seconds, "test": cost}))
    comm.close()


if __name__ == "__main__":
    main()
