# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers (tanh, LSTM, GRU), forward, and forward with backward, beside PyTorch (oneDNN).

Sizes of DeepBench, and small ones; the shape says hidden units (and inputs), samples, steps. The product with the input
counts. Backward gives the gradients by the input and by all parameters. `--quick` runs a fifth of the steps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import libraries
import numpy as np

from tensorbackend import bench

SIZES = {
    "rnn": [(1760, 16, 50), (2048, 32, 50), (2560, 16, 50), (32, 1, 672), (64, 1, 96)],
    "lstm": [(512, 16, 25), (512, 64, 25), (1024, 32, 25), (256, 16, 150), (256, 64, 150), (1536, 8, 50), (32, 1, 672),
             (64, 1, 96)],
    "gru": [(512, 32, 1), (1024, 32, 100), (32, 1, 672), (64, 1, 96)],
}  # fmt: skip
GATES = {"rnn": 1, "lstm": 4, "gru": 3}


@dataclass(frozen=True)
class Layer:
    """A recurrent layer with as many inputs as units."""

    kind: str
    hidden: int
    N: int
    steps: int

    @property
    def shape(self) -> tuple[int, ...]:
        """What the table shows."""
        return self.hidden, self.N, self.steps

    @property
    def flops(self) -> int:
        """Of the products of a forward pass."""
        return 2 * 2 * GATES[self.kind] * self.hidden**2 * self.N * self.steps


@cache
def data(layer: Layer) -> dict[str, np.ndarray]:
    """Weights, input and errors in float32, in the engine's layout."""
    draw, rows, hidden = np.random.default_rng(0), GATES[layer.kind] * layer.hidden, layer.hidden
    shapes = {"W_in": (rows, hidden), "W_recur": (rows, hidden), "bias": (rows, 1), "bias_recur": (hidden, 1)}
    found = {name: draw.uniform(-1, 1, shape) / hidden**0.5 for name, shape in shapes.items()}
    found |= {name: draw.standard_normal((hidden, layer.N * layer.steps)) for name in ("x", "delta")}
    return {name: x.astype(np.float32) for name, x in found.items()}


class Tanh:
    """The plain layer's activation."""

    def __init__(self, be: Any) -> None:
        self.be = be

    def __call__(self, x: Any) -> Any:
        return self.be.tanh(x)

    def bprop(self, h: Any) -> Any:
        """The derivative, from the value h."""
        return 1 - h * h


def plain(be: Any, layer: Layer, t: dict[str, Any], out: dict[str, Any], alone: bool) -> tuple[Callable, Callable]:
    """Both passes of a layer with tanh."""
    N, h, activation = layer.N, t["h"], Tanh(be)
    zero, errors = be.zeros((layer.hidden, N), dtype=h.dtype), be.empty_like(h)
    steps, of_errors = ([x[:, n * N : (n + 1) * N] for n in range(layer.steps)] for x in (h, errors))
    sizes = (layer.hidden, layer.steps, None, activation)

    def forward() -> None:
        h[:] = be.dot(t["W_in"], t["x"])
        be.compound_rnn_unroll_fprop(t["W_recur"], [zero, *steps[:-1]], steps, steps, t["bias"], *sizes)

    def back() -> None:
        errors[:] = t["delta"]
        be.compound_rnn_unroll_bprop(t["W_recur"].T, [zero, *of_errors[:-1]], of_errors, steps, *sizes)
        out["dx"][:] = be.dot(t["W_in"].T, errors)
        out["dW_in"][:] = be.dot(errors, t["x"].T)
        out["dW_recur"][:] = be.dot(errors[:, N:], h[:, :-N].T)
        out["dbias"][:] = be.sum(errors, 1)

    return forward, back


def gated(be: Any, layer: Layer, t: dict[str, Any], out: dict[str, Any], alone: bool) -> tuple[Callable, Callable]:
    """Both passes of an LSTM or a GRU; the forward pass keeps nothing for the other, if it is measured `alone`."""
    gates, c = be.empty((4 * layer.hidden, t["h"].shape[1]), dtype=t["h"].dtype), be.empty_like(t["h"])
    weights, extra = (t["W_in"], t["W_recur"]), (c,) if layer.kind == "lstm" else ()
    biases = (t["bias"],) if layer.kind == "lstm" else (t["bias"], t["bias_recur"])
    if layer.kind == "gru":
        out["dbias_recur"] = be.empty_like(t["bias_recur"])
    fprop, bprop = (getattr(be, f"compound_{layer.kind}_unroll_{way}") for way in ("fprop", "bprop"))
    kept = (None,) * (len(extra) + 1) if alone else (*extra, gates)
    forward = partial(fprop, *weights, *biases, t["x"], t["h"], *kept, layer.steps)
    return forward, partial(bprop, *weights, t["x"], t["h"], *extra, gates, t["delta"], layer.steps, **out)


def ours(layer: Layer, kind: str, dtype: str, options: Any, jit: bool = True) -> bench.Contender:
    """The engine."""
    be = libraries.backend(options, jit)
    t = {name: be.array(x, dtype=dtype) for name, x in data(layer).items()}
    t["h"] = be.empty_like(t["x"])
    out = {f"d{name}": be.empty_like(t[name]) for name in ("x", "W_in", "W_recur", "bias")}
    forward, back = (plain if layer.kind == "rnn" else gated)(be, layer, t, out, kind == "fprop")

    def both() -> None:
        forward()
        back()

    run, result = (forward, t["h"]) if kind == "fprop" else (both, out["dx"])
    return libraries.own(run, result.get, jit)


def by_steps(x: np.ndarray, layer: Layer) -> np.ndarray:
    """From (units, samples of steps) to (steps, samples, units)."""
    return np.ascontiguousarray(x.reshape(-1, layer.steps, layer.N).transpose(1, 2, 0))


def as_rows(x: Any) -> np.ndarray:
    """And back."""
    return np.ascontiguousarray(x.transpose(2, 0, 1)).reshape(x.shape[2], -1)


def torch(layer: Layer, kind: str, dtype: str) -> bench.Contender:
    """PyTorch's layer with the same weights."""
    library = libraries.Torch()
    t = library.torch
    made = getattr(t.nn, layer.kind.upper())(layer.hidden, layer.hidden)
    numbers = {name: library.array(x) for name, x in data(layer).items()}
    second = t.zeros_like(numbers["bias"])
    if layer.kind == "gru":
        second[-layer.hidden :] = numbers["bias_recur"]
    made.load_state_dict({"weight_ih_l0": numbers["W_in"], "weight_hh_l0": numbers["W_recur"],
                          "bias_ih_l0": numbers["bias"][:, 0], "bias_hh_l0": second[:, 0]})  # fmt: skip
    made = made.to(getattr(t, dtype)).requires_grad_(kind == "both")
    x, delta = (library.array(by_steps(data(layer)[name], layer)).to(getattr(t, dtype)) for name in ("x", "delta"))
    x.requires_grad_(kind == "both")
    kept = [None]

    def forward() -> None:
        kept[0] = made(x)[0]

    def both() -> None:
        made.zero_grad(set_to_none=False)
        x.grad = None
        with t.enable_grad():
            made(x)[0].backward(delta)
        kept[0] = x.grad

    run = forward if kind == "fprop" else both
    return bench.Contender("torch", run, lambda: as_rows(library.numpy(kept[0])))


def case(layer: Layer, kind: str, dtype: str, options: Any) -> bench.Case:
    """One layer with all contenders."""
    makers: dict[str, Callable[[], bench.Contender]] = {
        "tensorbackend": partial(ours, layer, kind, dtype, options),
        "interpreter": partial(ours, layer, kind, dtype, options, False),
        "torch": partial(torch, layer, kind, dtype),
    }

    truth = libraries.computed(partial(ours, layer, kind, "float64", options, False))
    flops = layer.flops * (1 if kind == "fprop" else 3)
    moved = sum(x.nbytes for x in data(layer).values())
    tolerance = libraries.tolerance(dtype, 1e-3, 8)
    name = f"{layer.kind} {kind}"
    return bench.Case(name, layer.shape, dtype, truth, makers, moved, flops, tolerance, libraries.largest(truth))


def cases(options: Any, session: bench.Session) -> Iterator[bench.Case]:
    """The cases that are asked for."""
    for dtype in options.dtype or ("float32",):
        for kind, sizes in SIZES.items():
            for hidden, N, steps in sizes:
                layer = Layer(kind, hidden, N, max(steps // 5, 1) if options.quick else steps)
                for way in ("fprop", "both"):
                    if session.wants(f"{kind} {way}", layer.shape, dtype):
                        yield case(layer, way, dtype, options)


if __name__ == "__main__":
    sys.exit(bench.main(__doc__, cases))
