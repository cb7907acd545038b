# SPDX-License-Identifier: Apache-2.0
"""Train a convolutional network on handwritten digits with links, functions and an optimizer.

    python examples/links_digits.py                     the defaults: 98 % of the test digits
    python examples/links_digits.py --save digits.npz
    python examples/links_digits.py --resume digits.npz --epochs 5
    python examples/links_digits.py --help

The data are scikit-learn's 1797 images of 8 x 8 pixels, a fifth of them to test on. With `--save` the network, the
optimizer and the place in the data are written, and `--resume` goes on from there as if nothing had stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import tensorbackend as tb
import tensorbackend.functions as F
import tensorbackend.links as L
from tensorbackend import initializers, optimizers, serializers
from tensorbackend.arguments import output_file, whole
from tensorbackend.iterators import BatchIterator

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ImportError as error:
    sys.exit(f"links_digits.py needs scikit-learn ({error}): pip install 'tensorbackend[examples]'")

CLASSES = 10


class Digits(tb.Chain):
    """Two convolutions, each with normalisation and pooling, then an affine map of what dropout leaves."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(1, maps, 3, pad=1, nobias=True, initialW=initializers.HeNormal())
            self.bn1 = L.BatchNormalization(maps)
            self.conv2 = L.Convolution2D(maps, 2 * maps, 3, pad=1, nobias=True, initialW=initializers.HeNormal())
            self.bn2 = L.BatchNormalization(2 * maps)
            self.out = L.Linear(8 * maps, CLASSES)

    def forward(self, x: tb.Variable) -> tb.Variable:
        """Images (N, 1, 8, 8) to logits (N, 10)."""
        h = F.max_pooling_2d(F.relu(self.bn1(self.conv1(x))), 2)
        h = F.max_pooling_2d(F.relu(self.bn2(self.conv2(h))), 2)
        return self.out(F.dropout(F.reshape(h, (h.shape[0], -1)), 0.3))


class Training(tb.Chain):
    """All that a stopped run needs to go on: network, optimizer, place in the data, random numbers."""

    def __init__(self, be: tb.Backend, model: L.Classifier, optimizer: optimizers.Optimizer,
                 batches: BatchIterator) -> None:  # fmt: skip
        super().__init__(model=model)
        self.parts = {"optimizer": optimizer, "batches": batches, "random": serializers.RandomState(be)}

    def serialize(self, serializer: serializers.DictionarySerializer | serializers.NpzDeserializer) -> None:
        """Save or load all of them."""
        super().serialize(serializer)
        for name, part in self.parts.items():
            part.serialize(serializer[name])


def load(seed: int) -> list[np.ndarray]:
    """Images and labels to train on, images and labels to test on."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    parts = train_test_split(images, labels.astype(np.int32), test_size=0.2, stratify=labels, random_state=seed)
    return [parts[0], parts[2], parts[1], parts[3]]


def accuracy(be: tb.Backend, model: L.Classifier, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of right answers, without dropout and with the running statistics."""
    with tb.using_config("train", False), tb.no_backprop_mode():
        y = model.predictor(tb.to_device(be, images))
    return float((tb.to_cpu(y.array).argmax(1) == labels).mean())


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a convolutional network on handwritten digits, with links.")
    parser.add_argument("--maps", type=whole(1), default=16,
                        help="maps of the first convolution (default: %(default)s)")  # fmt: skip
    parser.add_argument("--epochs", type=whole(1), default=15, help="passes over the data (default: %(default)s)")
    parser.add_argument("--save", type=output_file, default=None, help="file to write the run to at the end")
    parser.add_argument("--resume", type=Path, default=None, help="file of a run to go on with")
    tb.add_backend_arguments(parser)
    parser.set_defaults(seed=1, batch_size=64)
    return parser.parse_args(arguments)


def main() -> None:
    """Train as the command line says."""
    arguments = parse_arguments()
    be = tb.backend_from_arguments(arguments)
    images, labels, test_images, test_labels = load(arguments.seed)
    model = L.Classifier(Digits(arguments.maps).to_device(be), compute_accuracy=False)
    optimizer = optimizers.Adam(alpha=0.003).setup(model)
    batches = BatchIterator((images, labels), arguments.batch_size, seed=arguments.seed)
    training = Training(be, model, optimizer, batches)
    if arguments.resume is not None:
        try:
            serializers.load_npz(arguments.resume, training)
        except (OSError, KeyError, ValueError) as error:
            sys.exit(f"links_digits.py: --resume {arguments.resume}: {error}")

    start = time.perf_counter()
    for _ in range(arguments.epochs):
        losses = []
        for x, t in batches:
            optimizer.update(model, tb.to_device(be, x), tb.to_device(be, t))
            losses.append(model.loss.item())
        print(f"epoch {batches.epoch:<4} cost {np.mean(losses):.4f}")
    print(f"training {time.perf_counter() - start:.1f} s, {optimizer.t} steps")
    if arguments.save is not None:
        serializers.save_npz(arguments.save, training)
    print(f"test     {accuracy(be, model, test_images, test_labels):.2%}")


if __name__ == "__main__":
    main()
