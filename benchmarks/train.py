# SPDX-License-Identifier: Apache-2.0
"""Whole training steps of convolutional networks: forward, backward, momentum update; times and peak memory.

AlexNet ("one weird trick") on 224 x 224 pixels and VGG-A on 112 x 112 (`--side` sets both; `--quick`: 64 x 64), batches
of 16 and 32, without dropout. This project runs eagerly and as a captured program, beside PyTorch eager in two memory
formats, torch.compile and JAX under jit. What is compared before the timing is the first convolution's velocity after
one step, with this project's in float64. The note of a row is the peak memory of a process of its own that makes three
steps, beyond what it took to import the library: parameters and velocities included.
"""

from __future__ import annotations

import json
import math
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import libraries
import numpy as np

from tensorbackend import bench

RATE, MOMENTUM, CLASSES = 1e-3, 0.9, 1000
TOLERANCE = 0.05
"""Of the velocity's largest number. Rounding decides here and there which numbers are rectified and which of a window
is the largest; each time one image's gradient takes another way, which moves the sum of 16 by up to a per cent."""

CHILD_STEPS = 3
"""Steps of the process whose memory is measured."""


@dataclass(frozen=True)
class Conv:
    """K filters of R x R, a bias, and max(x, 0)."""

    K: int
    R: int = 3
    stride: int = 1
    pad: int = 1


@dataclass(frozen=True)
class Pool:
    """The largest of R x R."""

    R: int = 2
    stride: int = 2


@dataclass(frozen=True)
class Dense:
    """`features` sums over all inputs, a bias, and max(x, 0) unless it is the last."""

    features: int


HEAD = (Dense(4096), Dense(4096), Dense(CLASSES))
STACKS = {
    "alexnet": (Conv(64, 11, 4, 2), Pool(3), Conv(192, 5, 1, 2), Pool(3), Conv(384), Conv(256), Conv(256), Pool(3),
                *HEAD),
    "vgg-a": (Conv(64), Pool(), Conv(128), Pool(), Conv(256), Conv(256), Pool(), Conv(512), Conv(512), Pool(),
              Conv(512), Conv(512), Pool(), *HEAD),
}  # fmt: skip
SIDES = {"alexnet": 224, "vgg-a": 112}


@dataclass(frozen=True)
class Problem:
    """A network on `batch` images of `side` x `side` pixels."""

    stack: str
    batch: int
    side: int

    def shapes(self) -> list[tuple[Any, tuple[int, int, int], tuple[int, int, int]]]:
        """Each layer with its input and output, in maps and pixels."""
        found, inputs = [], (3, self.side, self.side)
        for layer in STACKS[self.stack]:
            if isinstance(layer, Dense):
                outputs = (layer.features, 1, 1)
            else:
                maps, pad = (layer.K, layer.pad) if isinstance(layer, Conv) else (inputs[0], 0)
                outputs = (maps, *[(inputs[1] + 2 * pad - layer.R) // layer.stride + 1] * 2)
            found.append((layer, inputs, outputs))
            inputs = outputs
        return found

    def weights(self) -> Iterator[np.ndarray]:
        """Filters (C, R, S, K) and matrices (features, inputs), drawn for rectified units, one after the other."""
        draw = np.random.default_rng(0)
        for layer, inputs, outputs in self.shapes():
            if isinstance(layer, Pool):
                continue
            convolves = isinstance(layer, Conv)
            shape = (inputs[0], layer.R, layer.R, layer.K) if convolves else (outputs[0], math.prod(inputs))
            incoming = math.prod(shape[:3]) if convolves else shape[1]
            drawn = draw.standard_normal(shape, dtype=np.float32)
            drawn *= (2 / incoming) ** 0.5
            yield drawn

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Images (maps, pixels, pixels, batch) and their classes."""
        draw = np.random.default_rng(1)
        images = draw.standard_normal((3, self.side, self.side, self.batch), dtype=np.float32)
        return images, draw.integers(0, CLASSES, self.batch, dtype=np.int32)

    def flops(self) -> float:
        """Multiplications and additions of a step; the first layer has no gradient by its images."""
        total = 0.0
        for n, (layer, inputs, outputs) in enumerate(self.shapes()):
            if isinstance(layer, Pool):
                continue
            terms = inputs[0] * layer.R**2 if isinstance(layer, Conv) else math.prod(inputs)
            total += 2.0 * (3 if n else 2) * self.batch * math.prod(outputs) * terms
        return total


# ------------------------------------------------------------------------------------------------- this project
#
# A layer gives back the gradient by its input before the rectification that made the input: where that is 0, so is
# the gradient, which costs nothing as the last operation of a convolution or product. Through a pooling the largest
# stays the same. Activations are made by each step and dropped when the way back has used them.


class Parameter:
    """A tensor that training changes, its velocity, and its gradient: a tensor or a tree, which the update computes."""

    def __init__(self, be: Any, value: np.ndarray, dtype: str) -> None:
        self.value = be.array(value, dtype=dtype)
        self.velocity = be.zeros_like(self.value)
        self.gradient: Any = None

    def update(self) -> None:
        """One step with momentum."""
        with self.value.backend.fuse():
            self.velocity[:] = MOMENTUM * self.velocity + self.gradient
            self.value[:] = self.value - RATE * self.velocity
        self.gradient = None


class OurConv:
    """A convolution with bias and rectification."""

    def __init__(self, be: Any, layer: Conv, inputs: tuple, N: int, weights: np.ndarray, first: bool,
                 dtype: str) -> None:  # fmt: skip
        C, H, W = inputs
        self.be, self.first = be, first
        self.geometry = be.conv_layer(dtype, N, C, layer.K, H=H, W=W, R=layer.R, S=layer.R, pad_h=layer.pad,
                                      pad_w=layer.pad, str_h=layer.stride, str_w=layer.stride)  # fmt: skip
        self.F = Parameter(be, weights.reshape(-1, layer.K), dtype)
        self.b = Parameter(be, np.zeros((layer.K, 1), np.float32), dtype)
        self.parameters = [self.F, self.b]

    def fprop(self, x: Any) -> Any:
        self.x, y = x, self.be.empty(self.geometry.dimO2, x.dtype)
        self.be.fprop_conv(self.geometry, x, self.F.value, y, bias=self.b.value, relu=True)
        return y

    def bprop(self, dy: Any) -> Any:
        self.F.gradient, self.b.gradient = self.be.empty_like(self.F.value), self.be.empty_like(self.b.value)
        self.be.update_conv(self.geometry, self.x, dy, self.F.gradient, grad_bias=self.b.gradient)
        dx = None if self.first else self.be.empty_like(self.x)
        if dx is not None:
            self.be.bprop_conv(self.geometry, self.F.value, dy, dx, X=self.x, brelu=True)
        self.x = None
        return dx


class OurPool:
    """A pooling."""

    def __init__(self, be: Any, layer: Pool, inputs: tuple, N: int, dtype: str) -> None:
        C, H, W = inputs
        self.be, self.parameters = be, []
        self.geometry = be.pool_layer(dtype, "max", N, C, H=H, W=W, R=layer.R, S=layer.R, str_h=layer.stride,
                                      str_w=layer.stride)  # fmt: skip

    def fprop(self, x: Any) -> Any:
        y, self.places = self.be.empty(self.geometry.dimO2, x.dtype), self.be.empty(self.geometry.dimO2, "uint8")
        self.be.fprop_pool(self.geometry, x, y, self.places)
        return y

    def bprop(self, dy: Any) -> Any:
        dx = self.be.empty(self.geometry.dimI2, dy.dtype)
        self.be.bprop_pool(self.geometry, dy, dx, self.places)
        self.places = None
        return dx


class OurDense:
    """A matrix product with bias, and rectification but in the last layer."""

    def __init__(self, be: Any, weights: np.ndarray, last: bool, dtype: str) -> None:
        self.be, self.last = be, last
        self.W = Parameter(be, weights, dtype)
        self.b = Parameter(be, np.zeros((len(weights), 1), np.float32), dtype)
        self.parameters = [self.W, self.b]

    def fprop(self, x: Any) -> Any:
        self.x = x
        sums = self.be.dot(self.W.value, x) + self.b.value
        return self.be.evaluate(sums if self.last else self.be.maximum(sums, 0))

    def bprop(self, dy: Any) -> Any:
        dx = self.be.evaluate(self.be.dot(self.W.value.T, dy) * (self.x > 0))
        self.W.gradient, self.b.gradient = self.be.dot(dy, self.x.T), self.be.sum(dy, axis=1)
        self.x = None
        return dx


class Network:
    """The layers of a problem, and one step of training."""

    def __init__(self, be: Any, problem: Problem, dtype: str = "float32") -> None:
        self.be, self.layers, weights = be, [], problem.weights()
        for n, (layer, inputs, _) in enumerate(problem.shapes()):
            if isinstance(layer, Conv):
                self.layers.append(OurConv(be, layer, inputs, problem.batch, next(weights), n == 0, dtype))
            elif isinstance(layer, Pool):
                self.layers.append(OurPool(be, layer, inputs, problem.batch, dtype))
            else:
                self.layers.append(OurDense(be, next(weights), layer.features == CLASSES, dtype))
        images, labels = problem.data()
        self.images = be.array(images.reshape(-1, problem.batch), dtype=dtype)
        self.labels = be.array(labels.reshape(1, -1), dtype="int32")

    def step(self, images: Any, labels: Any) -> None:
        """Forward, backward and update."""
        be, x = self.be, images
        for layer in self.layers:
            x = layer.fprop(x)
        error = be.evaluate((be.softmax(x, axis=0) - be.onehot(labels, axis=0)) / labels.shape[1])
        for layer in reversed(self.layers):
            error = layer.bprop(error)
        for layer in self.layers:
            for parameter in layer.parameters:
                parameter.update()

    def result(self) -> np.ndarray:
        """The velocity of the first filters (C, R, S, K)."""
        return self.layers[0].F.velocity.get()


def eager(problem: Problem, options: Any, dtype: str = "float32") -> bench.Contender:
    """This project, statement by statement; its first filters' velocity after a step in float64 is what is expected."""
    network = Network(libraries.backend(options), problem, dtype)
    call = partial(network.step, network.images, network.labels)
    return bench.Contender("tensorbackend eager", call, network.result, kind="ours")


def captured(problem: Problem, options: Any) -> bench.Contender:
    """This project, as a captured program; the first call captures, which is a step."""
    be = libraries.backend(options)
    network, program = Network(be, problem), []

    def call() -> None:
        if program:
            program[0](network.images, network.labels)
        else:
            program.append(be.capture(network.step, network.images, network.labels))

    return bench.Contender("tensorbackend", call, network.result, kind="ours")


# ------------------------------------------------------------------------------------------------- others


def torch(problem: Problem, options: Any, form: str = "torch") -> bench.Contender:
    """PyTorch: eager, in the memory format channels_last ("torch nhwc"), or the better one through torch.compile."""
    t = libraries.Torch().torch
    nn, modules, weights = t.nn, [], problem.weights()
    for layer, inputs, _ in problem.shapes():
        if isinstance(layer, Conv):
            modules += [nn.Conv2d(inputs[0], layer.K, layer.R, layer.stride, layer.pad), nn.ReLU()]
            value = next(weights).transpose(3, 0, 1, 2)
        elif isinstance(layer, Dense):
            modules += [nn.Flatten(), nn.Linear(math.prod(inputs), layer.features), nn.ReLU()]
            value = next(weights)
        else:
            modules.append(nn.MaxPool2d(layer.R, layer.stride))
            continue
        modules[-2].weight.data = t.from_numpy(np.ascontiguousarray(value))
        modules[-2].bias.data.zero_()
    layout = t.contiguous_format if form == "torch" else t.channels_last
    model = nn.Sequential(*modules[:-1]).to(memory_format=layout)
    forward = t.compile(model) if form == "torch.compile" else model
    images, labels = problem.data()
    x = t.from_numpy(libraries.images_first(images)).contiguous(memory_format=layout)
    wanted = t.from_numpy(labels.astype(np.int64))
    optimizer = t.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)

    def call() -> None:
        with t.enable_grad():
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(forward(x), wanted).backward()
        optimizer.step()

    def result() -> np.ndarray:
        return optimizer.state[model[0].weight]["momentum_buffer"].numpy().transpose(1, 2, 3, 0)

    return bench.Contender(form, call, result)


def jax(problem: Problem, options: Any) -> bench.Contender:
    """JAX: pixels before maps, which XLA runs fastest on CPUs; parameters and velocities are donated."""
    library = libraries.Jax()
    j, lax, jnp = library.jax, library.jax.lax, library.jax.numpy
    shapes = problem.shapes()
    images, labels = problem.data()

    def scores(params: Sequence[Any], x: Any) -> Any:
        own = iter(params)
        for layer, _, _ in shapes:
            if isinstance(layer, Pool):
                window, strides = (1, layer.R, layer.R, 1), (1, layer.stride, layer.stride, 1)
                x = lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "VALID")
                continue
            w, b = next(own)
            if isinstance(layer, Conv):
                pads, strides = [(layer.pad,) * 2] * 2, (layer.stride,) * 2
                x = lax.conv_general_dilated(x, w, strides, pads, dimension_numbers=("NHWC", "HWIO", "NHWC")) + b
            else:
                x = (x.transpose(0, 3, 1, 2) if x.ndim == 4 else x).reshape(len(x), -1) @ w.T + b
            x = x if layer == STACKS[problem.stack][-1] else jnp.maximum(x, 0)
        return x

    def cost(params: Sequence[Any], x: Any, wanted: Any) -> Any:
        return -jnp.take_along_axis(j.nn.log_softmax(scores(params, x)), wanted[:, None], 1).mean()

    def step(state: tuple[Any, Any], x: Any, wanted: Any) -> tuple[Any, Any]:
        params, velocities = state
        gradients = j.grad(cost)(params, x, wanted)
        velocities = j.tree_util.tree_map(lambda v, g: MOMENTUM * v + g, velocities, gradients)
        return j.tree_util.tree_map(lambda p, v: p - np.float32(RATE) * v, params, velocities), velocities

    def parameters(w: np.ndarray) -> tuple[Any, Any]:
        """Filters with maps last, and a bias."""
        value = library.array(w.transpose(1, 2, 0, 3) if w.ndim == 4 else w)
        return value, jnp.zeros(w.shape[-1] if w.ndim == 4 else len(w), jnp.float32)

    params = [parameters(w) for w in problem.weights()]
    state = [(params, j.tree_util.tree_map(jnp.zeros_like, params))]
    jitted = j.jit(step, donate_argnums=0)
    x, wanted = library.array(images.transpose(3, 1, 2, 0)), library.array(labels)

    def call() -> None:
        state[0] = jitted(state[0], x, wanted)

    def result() -> np.ndarray:
        return np.asarray(state[0][1][0][0]).transpose(2, 0, 1, 3)

    return bench.Contender("jax", call, result, finish=lambda: j.block_until_ready(state[0]))


MAKERS: dict[str, Callable[[Problem, Any], bench.Contender]] = {
    "tensorbackend": captured,
    "tensorbackend eager": eager,
    "torch": torch,
    "torch nhwc": partial(torch, form="torch nhwc"),
    "torch.compile": partial(torch, form="torch.compile"),
    "jax": jax,
}


# ------------------------------------------------------------------------------------------------- memory and cases


def _peak() -> float:
    """The most memory that this process had, in MB. Linux counts what its parent had in `ru_maxrss`, too."""
    status = Path("/proc/self/status")
    if status.is_file():
        return int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(name: str, problem: Problem, options: Any) -> None:
    """Print the MB that some steps take beyond what the library does: the rest of `peak_memory`."""
    if name.startswith("torch"):
        libraries.Torch()
    elif name == "jax":
        libraries.Jax()
    before = _peak()
    contender = MAKERS[name](problem, options)
    for _ in range(CHILD_STEPS):
        contender.call()
    contender.finish()
    print(_peak() - before)


def peak_memory(name: str, problem: Problem, options: Any) -> str:
    """The peak memory of a contender, measured in a process of its own, as a note."""
    what = json.dumps([name, problem.stack, problem.batch, problem.side])
    command = [sys.executable, __file__, "--child", what, "--backend", options.backend]
    done = subprocess.run([*command, "--threads", str(options.threads)], capture_output=True, text=True, check=True)
    return f"{float(done.stdout.split()[-1]):.0f} MB"


def rows(problem: Problem, session: bench.Session) -> list[bench.Row]:
    """One network with all contenders."""
    options = session.options
    left_out = {*options.without, *(["torch.compile"] if options.quick else [])}
    makers = {n: partial(make, problem, options) for n, make in MAKERS.items() if n not in left_out}
    expected = libraries.computed(partial(eager, problem, options, "float64"))
    shape = (problem.batch, problem.side)
    case = bench.Case(f"train {problem.stack}", shape, "float32", expected, makers, 0.0, problem.flops(), TOLERANCE,
                      libraries.largest(expected))  # fmt: skip
    found = bench.measure(case, session.protocol, session.probes(case))
    measured = [r for r in found if r.us is not None and r.kind != "probe"]
    notes = {r.contender: peak_memory(r.contender, problem, options) for r in measured}
    return [replace(r, note=notes.get(r.contender, r.note)) for r in found]


def problems(options: Any) -> Iterator[Problem]:
    """The networks and batches that are asked for."""
    for stack in STACKS:
        for batch in (16, 32):
            yield Problem(stack, batch, options.side or (64 if options.quick else SIDES[stack]))


def main() -> int:
    """Measure as the command line says. Returns the exit status."""
    parser = bench.arguments(__doc__)
    parser.add_argument("--side", type=int, default=0, help="pixels along a side of the images")
    parser.add_argument("--child", type=json.loads, default=None, help="measure one contender's memory, nothing else")
    options = parser.parse_args()
    bench.pin_threads(options.threads)
    if options.child:
        name, *sizes = options.child
        child(name, Problem(*sizes), options)
        return 0
    session = bench.Session(options)
    for problem in problems(options):
        if session.wants(f"train {problem.stack}", (problem.batch, problem.side), "float32"):
            session.add(rows(problem, session))
    return session.finish()


if __name__ == "__main__":
    sys.exit(main())
