# SPDX-License-Identifier: Apache-2.0
"""Training steps of the function layer: a perceptron and a convolutional network, beside PyTorch's eager mode."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tensorbackend as tb
import tensorbackend.functions as F
import tensorbackend.links as L
from tensorbackend import bench, optimizers
from tensorbackend.backends.registry import gen_backend

BATCH = 32
WIDTH = 128
MAPS = (32, 64)
SIDE, CLASSES = 28, 10


def perceptron() -> tb.Sequential:
    """Three affine maps of 128 features."""
    return tb.Sequential(L.Linear(WIDTH, WIDTH), F.relu, L.Linear(WIDTH, WIDTH), F.relu, L.Linear(WIDTH, WIDTH))


def convnet() -> tb.Sequential:
    """Two convolutions of 3 x 3 with pooling, and an affine map."""
    layers: list[Any] = []
    before = 1
    for maps in MAPS:
        layers += [L.Convolution2D(before, maps, 3, pad=1), F.relu, lambda x: F.max_pooling_2d(x, 2)]
        before = maps
    return tb.Sequential(*layers, lambda x: F.reshape(x, (x.shape[0], -1)), L.Linear(MAPS[1] * 49, CLASSES))


def torch_net(torch: Any, name: str) -> Any:
    """The same network as PyTorch has it."""
    nn = torch.nn
    if name == "perceptron":
        maps = [nn.Linear(WIDTH, WIDTH) for _ in range(3)]
        return nn.Sequential(maps[0], nn.ReLU(), maps[1], nn.ReLU(), maps[2])
    first, second = nn.Conv2d(1, MAPS[0], 3, padding=1), nn.Conv2d(*MAPS, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Linear(MAPS[1] * 49, CLASSES))  # fmt: skip


class Problem:
    """A network's weights, a minibatch, and the contenders that learn it."""

    def __init__(self, name: str, make: Callable[[], tb.Sequential], shape: tuple[int, ...], classes: int) -> None:
        rng = np.random.default_rng(0)
        self.name, self.make = name, make
        self.x = rng.standard_normal((BATCH, *shape)).astype(np.float32)
        self.t = rng.integers(0, classes, BATCH).astype(np.int32)
        shapes = [p.shape for _, p in self._sorted(make())]
        self.weights = [(rng.standard_normal(s) / max(np.prod(s[1:]), 1) ** 0.5).astype(np.float32) for s in shapes]

    @staticmethod
    def _sorted(net: tb.Sequential) -> list[tuple[str, Any]]:
        """Parameters in order of layers, weights before biases."""
        return sorted(net.namedparams(), key=lambda item: (item[0].split("/")[1], item[0].split("/")[-1] == "b"))

    def expected(self) -> np.ndarray:
        """The first loss, in float64."""
        net = self.make()
        for (_, p), w in zip(self._sorted(net), self.weights):
            p.array = w.astype(np.float64)
        with tb.no_backprop_mode():
            return np.asarray(F.softmax_cross_entropy(net(self.x.astype(np.float64)), self.t).array)

    def ours(self, be: tb.Backend, captured: bool) -> bench.Contender:
        """A step by Adam on a backend; the first loss is what is checked."""
        net = self.make()
        net.to_device(be)
        for (_, p), w in zip(self._sorted(net), self.weights):
            p.array[...] = be.array(w, min_dims=0)
        optimizer = optimizers.Adam().setup(net)
        x, t = be.array(self.x, min_dims=0), be.array(self.t, dtype=np.int32, min_dims=0)
        losses: list[float] = []

        def step(x: Any, t: Any) -> Any:
            loss = F.softmax_cross_entropy(net(x), t)
            net.cleargrads()
            loss.backward()
            optimizer.update()
            return loss.array

        losses.append(float(step(x, t)))
        step(x, t)
        call = be.capture(step, x, t) if captured else step
        return bench.Contender("captured" if captured else "tensorbackend", lambda: call(x, t),
                               lambda: np.array(losses[0]), kind="ours")  # fmt: skip

    def torch(self) -> bench.Contender:
        """The same step in PyTorch's eager mode."""
        try:
            import torch
        except ImportError as error:
            raise bench.Absent(f"torch is not installed ({error})") from error
        net = torch_net(torch, self.name)
        with torch.no_grad():
            for p, w in zip(net.parameters(), self.weights):
                p.copy_(torch.from_numpy(w))
        optimizer = torch.optim.Adam(net.parameters())
        entropy = torch.nn.CrossEntropyLoss()
        x, t = torch.from_numpy(self.x), torch.from_numpy(self.t.astype(np.int64))

        def step() -> float:
            loss = entropy(net(x), t)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        first = float(step().detach())
        return bench.Contender("torch", step, lambda: np.array(first))

    def case(self, be: tb.Backend) -> bench.Case:
        """The case for the harness."""
        makers = {
            "tensorbackend": lambda: self.ours(be, False), "captured": lambda: self.ours(be, True), "torch": self.torch,
        }  # fmt: skip
        return bench.Case(f"{self.name} step", (BATCH,), "float32", self.expected, makers, tolerance=1e-4)


def cases(options: Any, session: bench.Session) -> Iterator[bench.Case]:
    """Both networks."""
    be = gen_backend(options.backend, rng_seed=1)
    yield Problem("perceptron", perceptron, (WIDTH,), WIDTH).case(be)
    yield Problem("convnet", convnet, (1, SIDE, SIDE), CLASSES).case(be)


if __name__ == "__main__":
    sys.exit(bench.main(__doc__, cases))
