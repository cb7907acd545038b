# SPDX-License-Identifier: Apache-2.0
"""Train a multilayer perceptron on handwritten digits, with layers written against a backend.

    python examples/mlp_digits.py                       the defaults: 98 % of the test digits in a few seconds
    python examples/mlp_digits.py --optimizer momentum --activation tanh --hidden 200
    python examples/mlp_digits.py --help

The data are scikit-learn's 1797 images of 8 x 8 pixels: 60 % to train on, 20 % to choose the epoch by, 20 % to test
on once, at the end. The layers are in `layers.py`. A seed makes a run repeatable to the last digit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from layers import Adam, Affine, Dropout, Layer, Momentum, Parameter, Relu, SoftmaxCrossEntropy, Tanh

import tensorbackend as tb
from tensorbackend.arguments import image_file, whole

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from tqdm import tqdm
except ImportError as error:
    sys.exit(f"the examples with digits need scikit-learn and tqdm ({error}): pip install 'tensorbackend[examples]'")

CLASSES = 10
PIXELS = 64
ACTIVATIONS = {"relu": Relu, "tanh": Tanh}
OPTIMIZERS = {"adam": Adam, "momentum": Momentum}


class Samples(NamedTuple):
    """Images (PIXELS, n) and their labels (1, n), both on the backend."""

    images: tb.Tensor
    labels: tb.Tensor

    def minibatches(self, be: tb.Backend, order: np.ndarray | None = None) -> Iterator[Samples]:
        """The samples in minibatches of at most `be.bsz`, in an order (None: as they lie)."""
        n = self.labels.shape[1]
        order = np.arange(n) if order is None else order
        for first in range(0, n, be.bsz):
            chosen = order[first : first + be.bsz]
            images, labels = be.take(self.images, chosen, axis=1), be.take(self.labels, chosen, axis=1)
            yield Samples(be.evaluate(images), be.evaluate(labels))


class Network:
    """Layers one after the other, and the cost at the end."""

    def __init__(self, be: tb.Backend, layers: list[Layer]) -> None:
        self.layers = layers
        self.cost = SoftmaxCrossEntropy(be, CLASSES)

    @property
    def parameters(self) -> list[Parameter]:
        """All that training changes."""
        return [p for layer in self.layers for p in layer.parameters]

    def fprop(self, images: tb.Tensor, training: bool) -> None:
        """Images (PIXELS, N) through all layers to the probabilities, which the cost keeps."""
        x = images
        for layer in self.layers:
            x = layer.fprop(x, training)
        self.cost.fprop(x)

    def bprop(self, labels: tb.Tensor) -> None:
        """The gradient of the cost back through all layers, to every parameter."""
        error = self.cost.bprop(labels)
        for layer in reversed(self.layers):
            error = layer.bprop(error)


@dataclass
class History:
    """What the loss curve shows, an entry an epoch: (cost, accuracy) of training and validation."""

    train: list[tuple[float, float]] = field(default_factory=list)
    validation: list[tuple[float, float]] = field(default_factory=list)

    @property
    def best_epoch(self) -> int:
        """The epoch, from 0, of the lowest validation cost."""
        return min(range(len(self.validation)), key=lambda epoch: self.validation[epoch][0])


def load(be: tb.Backend, seed: int) -> tuple[Samples, Samples, Samples]:
    """The digits for training, validation and test, every class in equal parts in each."""
    images, labels = load_digits(return_X_y=True)
    rest, test = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=seed)
    train, validation = train_test_split(rest, test_size=0.25, stratify=labels[rest], random_state=seed)
    return tuple(
        Samples(be.array(images[part].T / 16.0), be.array(labels[part].reshape(1, -1), dtype=np.int32))
        for part in (train, validation, test)
    )


class Training:
    """A network that learns minibatch by minibatch. `capture`: a step is recorded once for each size of minibatch, and
    repeated by one call from then on, to the same numbers."""

    def __init__(self, be: tb.Backend, network: Network, optimizer: Adam | Momentum, capture: bool) -> None:
        self.be = be
        self.network = network
        self.optimizer = optimizer
        self.capture = capture
        self.steps = 0
        self.total = be.zeros((2, 1))
        self._programs: dict[tuple[int, ...], Callable] = {}

    def _step(self, images: tb.Tensor, labels: tb.Tensor, steps: int) -> None:
        self.network.fprop(images, training=True)
        self.network.bprop(labels)
        self.optimizer.update(steps)
        self.network.cost.add_to(self.total, labels)

    def learn(self, batch: Samples) -> None:
        """One step on a minibatch."""
        self.steps += 1
        arguments = (batch.images, batch.labels, self.steps)
        program = self._programs.get(batch.images.shape)
        if program is not None:
            program(*arguments)
        elif self.capture:
            self._programs[batch.images.shape] = self.be.capture(self._step, *arguments)
        else:
            self._step(*arguments)

    def epoch(self, samples: Samples) -> tuple[float, float]:
        """Go through the samples once, in random order; (cost, accuracy) as they were met, with dropout."""
        n = samples.labels.shape[1]
        self.total[:] = 0
        for batch in samples.minibatches(self.be, self.be.rng.permutation(n)):
            self.learn(batch)
        cost, right = self.total.get().ravel() / n
        return float(cost), float(right)


def evaluate(be: tb.Backend, network: Network, samples: Samples) -> tuple[float, float]:
    """(cost, accuracy) over samples, without dropout."""
    total = be.zeros((2, 1))
    for batch in samples.minibatches(be):
        network.fprop(batch.images, training=False)
        network.cost.add_to(total, batch.labels)
    cost, right = total.get().ravel() / samples.labels.shape[1]
    return float(cost), float(right)


def train(training: Training, epochs: int, train_set: Samples, validation_set: Samples) -> History:
    """Train for some epochs. Validated, and left in the network, are means of the parameters over about the last ten
    epochs (Polyak and Juditsky 1992), which do better than those of any one; the best of them."""
    be, network = training.be, training.network
    history = History()
    values = [p.value for p in network.parameters]
    mean, own, best = ([be.copy(value) for value in values] for _ in range(3))
    with tqdm(range(epochs), desc="training", unit="epoch") as bar:
        for epoch in bar:
            history.train.append(training.epoch(train_set))
            for value, average, kept in zip(values, mean, own):
                kept[:] = value
                average[:] = average + (value - average) * max(1 / (epoch + 1), 0.1)
                value[:] = average
            history.validation.append(evaluate(be, network, validation_set))
            for value, average, kept, saved in zip(values, mean, own, best):
                value[:] = kept
                if history.best_epoch == epoch:
                    saved[:] = average
            cost, accuracy = history.validation[-1]
            bar.set_postfix(validation_cost=f"{cost:.4f}", validation_accuracy=f"{accuracy:.2%}")
    for value, saved in zip(values, best):
        value[:] = saved
    return history


def draw(history: History, test_accuracy: float, description: str, path: Path) -> None:
    """Write the curves of cost and accuracy as an image."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    epochs = range(1, len(history.train) + 1)
    best = history.best_epoch + 1
    dots = "." if len(epochs) < 10 else None  # one epoch is no line
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for column, (ax, label) in enumerate(zip(axes, ["cost: cross-entropy (nats)", "accuracy (%)"])):
        scale = 100 if column else 1
        for found, name, color in [(history.train, "training (with dropout)", "C0"),
                                   (history.validation, "validation", "C1")]:  # fmt: skip
            ax.plot(epochs, [scale * e[column] for e in found], label=name, color=color, marker=dots)
        ax.axvline(best, color="0.5", linestyle=":", label=f"lowest validation cost: epoch {best}")
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_xlabel("epoch")
        ax.set_ylabel(label)
        ax.grid(alpha=0.3)
    if any(np.isfinite(e[0]) for e in history.train + history.validation):  # else training has run away at once
        axes[0].set_yscale("log")
    axes[1].axhline(100 * test_accuracy, color="C2", linestyle="--", label=f"test: {test_accuracy:.2%}")
    lowest = history.validation[0][1] if len(epochs) >= 10 else min(e[1] for e in history.train + history.validation)
    axes[1].set_ylim(top=100.5, bottom=min(95, 100 * lowest - 1))
    for ax in axes:
        ax.legend()
    figure.suptitle(f"Handwritten digits: {test_accuracy:.2%} of the test images right\n{description}")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def share(text: str) -> float:
    """A share on the command line: above 0, at most 1."""
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{number} given, expected above 0 and at most 1")
    return number


def rate(text: str) -> float:
    """A learning rate on the command line: above 0, and finite."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{number} given, expected above 0 and finite")
    return number


def add_arguments(parser: argparse.ArgumentParser, epochs: int, plot: str) -> None:
    """What the digits examples have in common: epochs, optimizer, capture, the plot, and the backend's arguments."""
    parser.add_argument("--epochs", type=whole(1), default=epochs, help="passes over the data (default: %(default)s)")
    parser.add_argument("--keep", type=share, default=0.5, help="share that dropout keeps (default: %(default)s)")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam", help="(default: %(default)s)")
    parser.add_argument("--rate", type=rate, default=None, help="learning rate (default: the optimizer's)")
    parser.add_argument("--capture", action="store_true", help="record a step once and repeat it by one call")
    parser.add_argument("--plot", type=image_file, default=Path(plot), help="image (default: %(default)s)")
    tb.add_backend_arguments(parser)
    parser.set_defaults(seed=1, batch_size=64)


def run(arguments: argparse.Namespace, be: tb.Backend, network: Network, name: str) -> None:
    """Train a network, test it once, draw, and print a summary."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        sys.exit(f"matplotlib draws the curves, and is not installed ({error}): pip install 'tensorbackend[examples]'")
    try:
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        sys.exit(f"{arguments.plot}: {error.strerror}")
    train_set, validation_set, test_set = load(be, arguments.seed)
    rate = {} if arguments.rate is None else {"rate": arguments.rate}
    optimizer = OPTIMIZERS[arguments.optimizer](network.parameters, **rate)

    start = time.perf_counter()
    training = Training(be, network, optimizer, arguments.capture)
    history = train(training, arguments.epochs, train_set, validation_set)
    seconds = time.perf_counter() - start
    test_cost, test_accuracy = evaluate(be, network, test_set)

    description = f"{name}, {arguments.optimizer}, backend {be.backend_name}, {be.default_dtype}"
    draw(history, test_accuracy, description, arguments.plot)
    best = history.best_epoch
    print(f"network   {description}")
    print(f"training  {arguments.epochs} epochs in {seconds:.1f} s; kept epoch {best + 1}")
    print(f"curves    {arguments.plot}")
    print("               cost   accuracy")
    for name, (cost, accuracy) in [
        ("training", history.train[best]),
        ("validation", history.validation[best]),
        ("test", (test_cost, test_accuracy)),
    ]:
        print(f"{name:<12} {cost:.4f}   {accuracy:7.2%}")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a multilayer perceptron on handwritten digits.")
    parser.add_argument("--hidden", type=whole(1), nargs="+", default=[256, 256], metavar="UNITS",
                        help="units of each hidden layer (default: 256 256)")  # fmt: skip
    parser.add_argument("--activation", choices=ACTIVATIONS, default="relu", help="(default: %(default)s)")
    add_arguments(parser, epochs=60, plot="out/mlp_digits.png")
    return parser.parse_args(arguments)


def perceptron(be: tb.Backend, hidden: list[int], activation: str, keep: float) -> Network:
    """Affine layers with an activation and dropout between them."""
    layers: list[Layer] = []
    width = PIXELS
    for size in hidden:
        layers += [Affine(be, width, size), ACTIVATIONS[activation](be, size), Dropout(be, size, keep)]
        width = size
    return Network(be, [*layers, Affine(be, width, CLASSES)])


def main() -> None:
    """Train a perceptron as the command line says."""
    arguments = parse_arguments()
    be = tb.backend_from_arguments(arguments)
    network = perceptron(be, arguments.hidden, arguments.activation, arguments.keep)
    widths = "-".join(map(str, [PIXELS, *arguments.hidden, CLASSES]))
    run(arguments, be, network, f"{widths}, {arguments.activation}")


if __name__ == "__main__":
    main()
