# SPDX-License-Identifier: Apache-2.0
"""Training steps of networks in the function layer, eagerly and captured, beside PyTorch's eager mode.

`networks.py` says which; each learns a minibatch by Adam. What is compared before the timing is the first loss, with
this project's in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from networks import NETWORKS, Network, torch_weights

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import bench, optimizers
from tensorbackend.backends.registry import gen_backend


class Problem:
    """A network's weights, a minibatch, and the contenders that learn it."""

    def __init__(self, name: str, network: Network) -> None:
        rng = np.random.default_rng(0)
        self.name, self.network = name, network
        self.x, self.t = network.batch()
        self.weights: dict[str, np.ndarray] = {}
        for path, p in network.ours().namedparams():
            drawn = rng.standard_normal(p.shape) / max(np.prod(p.shape[1:]), 1) ** 0.5
            self.weights[path] = (1 + 0.1 * drawn if path.endswith("gamma") else drawn).astype(np.float32)

    def expected(self) -> np.ndarray:
        """The first loss, in float64."""
        with tb.using_config("dtype", np.float64):
            net = self.network.ours()
        for path, p in net.namedparams():
            p.array = self.weights[path].astype(np.float64)
        x = self.x if self.network.vocabulary else self.x.astype(np.float64)
        with tb.no_backprop_mode():
            return np.asarray(F.softmax_cross_entropy(net(x), self.t).array)

    def ours(self, be: tb.Backend, captured: bool) -> bench.Contender:
        """A step by Adam on a backend; the first loss is what is checked."""
        net = self.network.ours()
        net.to_device(be)
        for path, p in net.namedparams():
            p.array[...] = be.array(self.weights[path], min_dims=0)
        optimizer = optimizers.Adam().setup(net)
        x, t = (be.array(v, dtype=v.dtype, min_dims=0) for v in (self.x, self.t))
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
        net = self.network.torch(torch)
        with torch.no_grad():
            for name, p in net.named_parameters():
                p.copy_(torch.from_numpy(torch_weights(name, self.weights)))
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
        return bench.Case(f"{self.name} step", self.x.shape, "float32", self.expected, makers, tolerance=1e-4)


def cases(options: Any, session: bench.Session) -> Iterator[bench.Case]:
    """All networks."""
    be = gen_backend(options.backend, rng_seed=1)
    for name, network in NETWORKS.items():
        yield Problem(name, network).case(be)


if __name__ == "__main__":
    sys.exit(bench.main(__doc__, cases))
