# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training on many machines, on paper: step time and efficiency by the alpha-beta model of an allreduce.

    python benchmarks/scaling.py --plot docs/scaling.png
    python benchmarks/scaling.py --links "mine: 20 1.2"     microseconds a message, GB/s

A ring allreduce of n bytes between p processes takes 2 (p - 1) (alpha + n beta / p), a tree 2 log2(p) (alpha + n beta);
MPI takes the faster for its size, and so does the model. Gradients are ready evenly over the backward pass, two thirds
of a step, in buckets of 4 MB, and an exchange runs beside it; what is left after the pass lengthens the step.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from tensorbackend import bench
from tensorbackend.arguments import image_file
from tensorbackend.distributed.buckets import BUCKET_BYTES

NODES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


@dataclass(frozen=True)
class Network:
    """`parameters` in float32, and seconds of computing a step takes one node."""

    name: str
    parameters: float
    seconds: float


@dataclass(frozen=True)
class Link:
    """`alpha` seconds a message and `beta` seconds a byte, between two nodes."""

    name: str
    alpha: float
    beta: float


NETWORKS = [
    Network("AlexNet, batch 32 a node", 61.1e6, 32 * 3 * 1.43e9 / 400e9),
    Network("VGG-A, batch 16 a node", 132.9e6, 16 * 3 * 15.2e9 / 400e9),
    Network("MLP 784-1024-1024-10, batch 128 a node", 1.86e6, 128 * 6 * 1.86e6 / 300e9),
]
"""Floating point operations of a forward pass, three times for a step, at the rate of a node like this project's."""
LINKS = [Link("10 Gb/s Ethernet", 30e-6, 1 / 1.1e9), Link("100 Gb/s InfiniBand", 2e-6, 1 / 11e9)]
"""Typical figures of MPI on such networks, not measured here."""


def allreduce(p: int, nbytes: float, link: Link) -> float:
    """Seconds of an allreduce of `nbytes` between p processes."""
    if p == 1:
        return 0.0
    ring = 2 * (p - 1) * (link.alpha + nbytes / p * link.beta)
    tree = 2 * math.ceil(math.log2(p)) * (link.alpha + nbytes * link.beta)
    return min(ring, tree)


def step(p: int, network: Network, link: Link) -> float:
    """Seconds of a step on p nodes, each with its own minibatch."""
    nbytes = 4 * network.parameters
    buckets = math.ceil(nbytes / BUCKET_BYTES)
    exchange = allreduce(p, nbytes / buckets, link)
    free = network.seconds / 3  # when the backward pass begins
    for k in range(buckets):
        ready = network.seconds * (1 / 3 + 2 / 3 * (k + 1) / buckets)
        free = max(free, ready) + exchange
    return max(free, network.seconds)


def draw(networks: list[Network], links: list[Link], path: Path) -> None:
    """Efficiency against nodes as an image, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(networks), figsize=(4.4 * len(networks), 3.8), layout="constrained", sharey=True)
    for ax, network in zip(axes, networks):
        for link in links:
            share = [100 * network.seconds / step(p, network, link) for p in NODES]
            ax.plot(NODES, share, marker="o", markersize=3, label=link.name)
        ax.set_xscale("log", base=2)
        ax.set_xlabel("nodes")
        ax.set_title(network.name, fontsize=10)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("speed of a node, % of one alone")
    axes[0].set_ylim(0, 103)
    axes[0].legend(fontsize=9)
    figure.savefig(path, dpi=120)


def _link(text: str) -> Link:
    name, _, figures = text.rpartition(":")
    try:
        alpha, rate = map(float, figures.split())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} given, expected 'NAME: US GB/S'") from None
    return Link(name, alpha * 1e-6, 1e-9 / rate)


def main() -> None:
    """Print a table a network, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--links", type=_link, action="append", metavar="'NAME: US GB/S'", help="another network")
    parser.add_argument("--plot", type=image_file, metavar="FILE", help="write a PNG")
    options = parser.parse_args()
    links = LINKS + (options.links or [])
    for network in NETWORKS:
        cells = [["nodes", *(f"{link.name}: ms" for link in links), *(f"{link.name}: %" for link in links)]]
        for p in NODES:
            seconds = [step(p, network, link) for link in links]
            shares = [100 * network.seconds / s for s in seconds]
            cells.append([str(p), *(f"{1e3 * s:.4g}" for s in seconds), *(f"{share:.1f}" for share in shares)])
        print(f"{network.name}: {4e-6 * network.parameters:.4g} MB of gradients", *bench.aligned(cells), sep="\n  ")
    if options.plot is not None:
        draw(NETWORKS, links, options.plot)


if __name__ == "__main__":
    main()
