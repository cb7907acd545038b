# SPDX-License-Identifier: Apache-2.0
"""Train a convolutional network on handwritten digits, with layers written against a backend.

    python examples/cnn_digits.py                       the defaults: 98.5 % of the test digits in under a minute
    python examples/cnn_digits.py --maps 16 32 --epochs 20
    python examples/cnn_digits.py --help

Two convolutions of 3 x 3 and a pooling of 2 x 2, as often as there are pairs of numbers of maps; then dropout and an
affine layer. Data, training and summary are those of `mlp_digits.py`, the layers those of `layers.py`.
"""

from __future__ import annotations

import argparse

from layers import Affine, Convolution, Dropout, Layer, MaxPooling
from mlp_digits import CLASSES, Network, add_arguments, run

import tensorbackend as tb
from tensorbackend.arguments import whole

SIZE = 8
"""Pixels along a side of an image."""


def convolutional(be: tb.Backend, maps: list[int], keep: float | None) -> Network:
    """Blocks of two convolutions and a pooling, the n-th with `maps[n]` maps; no dropout with `keep` None."""
    layers: list[Layer] = []
    before, size = 1, SIZE
    for count in maps:
        layers += [Convolution(be, before, size, count), Convolution(be, count, size, count)]
        layers.append(MaxPooling(be, count, size))
        before, size = count, size // 2
    features = before * size * size
    if keep is not None:
        layers.append(Dropout(be, features, keep))
    return Network(be, [*layers, Affine(be, features, CLASSES)])


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a convolutional network on handwritten digits.")
    parser.add_argument("--maps", type=whole(1), nargs="+", default=[32, 64],
                        help="maps of each block, at most three (default: 32 64)")  # fmt: skip
    add_arguments(parser, epochs=40, plot="out/cnn_digits.png")
    found = parser.parse_args(arguments)
    if len(found.maps) > 3:
        parser.error("images of 8 x 8 pixels can be halved three times: --maps takes at most three numbers")
    return found


def main() -> None:
    """Train a convolutional network as the command line says."""
    arguments = parse_arguments()
    be = tb.backend_from_arguments(arguments)
    network = convolutional(be, arguments.maps, arguments.keep)
    run(arguments, be, network, f"convolutions of {'-'.join(map(str, arguments.maps))} maps")


if __name__ == "__main__":
    main()
