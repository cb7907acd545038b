# SPDX-License-Identifier: Apache-2.0
"""Train a recurrent network to write the Zen of Python, a character at a time, with a backend's LSTM or GRU.

    python examples/char_rnn.py                        an LSTM of 128 units: some seconds, and it knows the text
    python examples/char_rnn.py --cell gru --text README.md --hidden 256 --iterations 2000
    python examples/char_rnn.py --help

Each iteration takes windows of the text from random places, read as a ring; the network predicts what follows each
character. While it learns, it writes samples. Activations are (features, N steps): step t is columns t N to (t + 1) N.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from layers import Adam, Affine, Layer, Parameter, SoftmaxCrossEntropy

import tensorbackend as tb
from tensorbackend.arguments import image_file, whole

CELLS = ("lstm", "gru")


def zen() -> str:
    """The Zen of Python, which its module keeps in ROT13, and prints when it is imported."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this

    return codecs.decode(this.s, "rot13") + "\n"


class Recurrent(Layer):
    """An LSTM or GRU of `nout` units over the steps of a minibatch, which begins at zero.

    Weights are drawn for a variance of 1 / units; an LSTM's forget gates start open (Jozefowicz et al. 2015).
    """

    def __init__(self, be: tb.Backend, cell: str, nin: int, nout: int) -> None:
        super().__init__(be, nin, nout)
        self.cell = cell
        rows = {"lstm": 4, "gru": 3}[cell] * nout
        self.W_in, self.W_recur = (Parameter(be.fill_normal(be.empty((rows, n)), stdv=nout**-0.5)) for n in (nin, nout))
        self.bias, self.bias_recur = Parameter(be.zeros((rows, 1))), Parameter(be.zeros((nout, 1)))
        self.parameters = [self.W_in, self.W_recur, self.bias]
        if cell == "lstm":
            self.bias.value[nout : 2 * nout] = 1.0
        else:
            self.parameters.append(self.bias_recur)

    def fprop_steps(self, x: tb.Tensor, steps: int, h_init: tb.Tensor | None = None,
                    c_init: tb.Tensor | None = None) -> tb.Tensor:  # fmt: skip
        """The states (nout, N steps) for the input (nin, N steps)."""
        be, shape = self.be, (self.nout, x.shape[1])
        self.x, self.h, self.steps = x, be.empty(shape), steps
        self.gates = be.empty((4 * self.nout, x.shape[1]))
        weights = [self.W_in.value, self.W_recur.value, self.bias.value]
        if self.cell == "lstm":
            self.c = be.empty(shape)
            be.compound_lstm_unroll_fprop(*weights, x, self.h, self.c, self.gates, steps, h_init, c_init)
        else:
            be.compound_gru_unroll_fprop(*weights, self.bias_recur.value, x, self.h, self.gates, steps, h_init)
        return self.h

    def bprop(self, dy: tb.Tensor) -> tb.Tensor:
        """The gradients of the parameters; nobody asks for that of the input, which is a text."""
        names = ("dW_in", "dW_recur", "dbias", "dbias_recur")
        gradients = {name: p.gradient for name, p in zip(names, self.parameters)}
        weights = [self.W_in.value, self.W_recur.value, self.x, self.h]
        if self.cell == "lstm":
            self.be.compound_lstm_unroll_bprop(*weights, self.c, self.gates, dy, self.steps, **gradients)
        else:
            self.be.compound_gru_unroll_bprop(*weights, self.gates, dy, self.steps, **gradients)
        return dy


class Writer:
    """A network that predicts the next character: a recurrent layer, scores of all characters, softmax."""

    def __init__(self, be: tb.Backend, text: str, cell: str, hidden: int, steps: int) -> None:
        self.be, self.steps = be, steps
        self.characters = sorted(set(text))
        self.codes = np.array([self.characters.index(c) for c in text], np.int32)
        self.recurrent = Recurrent(be, cell, len(self.characters), hidden)
        self.scores = Affine(be, hidden, len(self.characters))
        self.cost = SoftmaxCrossEntropy(be, len(self.characters))
        self.optimizer = Adam([*self.recurrent.parameters, *self.scores.parameters], rate=5e-3)
        self.total = be.zeros((2, 1))

    def windows(self, samples: int) -> tuple[tb.Tensor, tb.Tensor]:
        """Rows of characters (1, samples * `steps`) from random places of the text, and of those that follow them."""
        places = self.be.rng.randint(0, len(self.codes), (1, samples)) + np.arange(self.steps)[:, None]
        given, wanted = (np.take(self.codes, places + ahead, mode="wrap").reshape(1, -1) for ahead in (0, 1))
        return self.be.array(given, dtype=np.int32), self.be.array(wanted, dtype=np.int32)

    def one_hot(self, codes: tb.Tensor) -> tb.Tensor:
        """Characters as columns with a 1."""
        return self.be.onehot(codes, axis=0, out=self.be.empty((len(self.characters), codes.shape[1])))

    def learn(self, given: tb.Tensor, wanted: tb.Tensor, number: int) -> None:
        """One iteration on windows, the last of `number`; adds the cost to `total`."""
        h = self.recurrent.fprop_steps(self.one_hot(given), self.steps)
        self.cost.fprop(self.scores.fprop(h, training=True))
        self.cost.add_to(self.total, wanted)
        self.recurrent.bprop(self.scores.bprop(self.cost.bprop(wanted)))
        self.optimizer.update(number)

    def write(self, start: str, length: int, temperature: float) -> str:
        """`start` and what the network goes on with, drawn from its probabilities to the power 1 / temperature."""
        be, text, h, c = self.be, start, None, None
        for n in range(len(start) + length - 1):
            code = be.array([[self.characters.index(text[n])]], dtype=np.int32)
            h = self.recurrent.fprop_steps(self.one_hot(code), 1, h, c)
            c = getattr(self.recurrent, "c", None)
            if n >= len(start) - 1:
                p = self.cost.fprop(self.scores.fprop(h, training=False)).get()[:, 0].astype(np.float64)
                p = (p / p.max()) ** (1 / temperature)  # the largest stays 1: a temperature near 0 leaves that one
                text += self.characters[be.rng.choice(len(p), p=p / p.sum())]
        return text


def draw(costs: list[float], characters: int, description: str, path: Path) -> None:
    """Write the curve of the cost as an image."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7, 4.4), layout="constrained")
    ax.plot(range(1, len(costs) + 1), costs, color="C0", label="cost of the windows")
    ax.axhline(math.log(characters), color="0.5", linestyle=":", label=f"guessing among {characters} characters")
    ax.set(xlabel="iteration", ylabel="cost: cross-entropy (nats a character)", yscale="log", title=description)
    ax.grid(alpha=0.3)
    ax.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def train(writer: Writer, arguments: argparse.Namespace) -> list[float]:
    """Learn, and write a sample now and then; the costs a character of the iterations."""
    costs: list[float] = []
    step: Callable = writer.learn
    for number in range(1, arguments.iterations + 1):
        windows = (*writer.windows(arguments.batch_size), number)
        writer.total[:] = 0
        if arguments.capture and number == 1:
            step = writer.be.capture(writer.learn, *windows)
        else:
            step(*windows)
        costs.append(float(writer.total.get()[0, 0]) / (arguments.batch_size * arguments.steps))
        if number % max(arguments.iterations // 4, 1) == 0:
            sample = writer.write(arguments.start, min(60, arguments.length), arguments.temperature)
            print(f"iteration {number:5}   cost {costs[-1]:.4f}   {sample!r}", flush=True)
    return costs


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a recurrent network to write a text.")
    parser.add_argument("--text", type=Path, default=None, help="file to learn (default: the Zen of Python)")
    parser.add_argument("--cell", choices=CELLS, default="lstm", help="(default: %(default)s)")
    parser.add_argument("--hidden", type=whole(1), default=128, help="units (default: %(default)s)")
    parser.add_argument("--steps", type=whole(1), default=48, help="characters of a window (default: %(default)s)")
    parser.add_argument("--iterations", type=whole(1), default=400, help="(default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.3, help="of samples (default: %(default)s)")
    parser.add_argument("--length", type=whole(1), default=300,
                        help="characters of the last sample (default: %(default)s)")  # fmt: skip
    parser.add_argument("--start", default="Beautiful", help="what samples begin with (default: %(default)s)")
    parser.add_argument("--capture", action="store_true", help="record an iteration once and repeat it by one call")
    parser.add_argument("--plot", type=image_file, default=Path("out/char_rnn.png"),
                        help="image (default: %(default)s)")  # fmt: skip
    tb.add_backend_arguments(parser)
    parser.set_defaults(seed=1, batch_size=16)
    found = parser.parse_args(arguments)
    if not found.temperature > 0:
        parser.error("--temperature is above 0")
    return found


def main() -> None:
    """Train a network as the command line says, and let it write."""
    arguments = parse_arguments()
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        sys.exit("char_rnn.py: matplotlib draws the curve, and is not installed: pip install 'tensorbackend[examples]'")
    try:
        text = zen() if arguments.text is None else arguments.text.read_text(encoding="utf-8")
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"char_rnn.py: {error}")
    be = tb.backend_from_arguments(arguments)
    be.bsz = arguments.batch_size * arguments.steps
    writer = Writer(be, text, arguments.cell, arguments.hidden, arguments.steps)
    unknown = sorted(set(arguments.start) - set(writer.characters))
    if unknown or not arguments.start:
        sys.exit(f"char_rnn.py: --start {arguments.start!r} has to be characters of the text; not in it: {unknown}")
    if len(writer.characters) == 1:
        sys.exit("char_rnn.py: --text needs two different characters or more")
    start = time.perf_counter()
    costs = train(writer, arguments)
    seconds = time.perf_counter() - start
    name = f"{arguments.cell} of {arguments.hidden} units, backend {be.backend_name}, {be.default_dtype}"
    draw(costs, len(writer.characters), f"{len(text)} characters: {name}", arguments.plot)
    print(f"network   {name}")
    print(f"training  {arguments.iterations} iterations in {seconds:.1f} s; last cost {costs[-1]:.4f} nats a character")
    print(f"curve     {arguments.plot}")
    print(writer.write(arguments.start, arguments.length, arguments.temperature))


if __name__ == "__main__":
    main()
