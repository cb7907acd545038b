# SPDX-License-Identifier: Apache-2.0
"""Steps of training against transcriptions in float64: the loss, every gradient, every parameter and all running
statistics of dense, convolutional and recurrent networks, of sizes at which other kernels run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
import tensorbackend.links as L
from tensorbackend import optimizers, testing

pytestmark = pytest.mark.rehearsed

STEPS, RATE, MOMENTUM = 3, 0.02, 0.9
Arrays = dict[str, np.ndarray]


def close(found: Any, expected: Any, what: str) -> None:
    """Raise unless the largest difference is a small share of the largest number."""
    expected = np.asarray(expected)
    try:
        testing.assert_allclose(found, expected, rtol=0, atol=5e-5 * max(np.abs(expected).max(), 1e-3), verbose=False)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None


def follow(model: tb.Chain, loss_of: Callable[[], tb.Variable], w: Arrays, step: Callable[[], tuple[float, Arrays]],
           others: Callable[[], Iterator[tuple[str, Any, Any]]] = lambda: iter(())) -> None:  # fmt: skip
    """Train a model and its transcription, which has the parameters `w` and gives loss and gradients, and compare them
    after each step; `others` gives what else is compared, by name."""
    optimizer = optimizers.MomentumSGD(RATE, MOMENTUM).setup(model)
    speeds = {path: np.zeros_like(p) for path, p in w.items()}
    for t in range(STEPS):
        loss = loss_of()
        model.cleargrads()
        loss.backward()
        expected, gradients = step()
        close(loss, expected, f"loss {t}")
        assert gradients.keys() == dict(model.namedparams()).keys() == w.keys()
        for path, p in model.namedparams():
            close(p.grad, gradients[path], f"gradient of {path}, {t}")
        optimizer.update()
        for path, p in model.namedparams():
            speeds[path] = MOMENTUM * speeds[path] - RATE * gradients[path]
            w[path] = w[path] + speeds[path]
            close(p, w[path], f"{path}, {t}")
        for name, found, number in others():
            close(found, number, f"{name}, {t}")


def filled(model: tb.Chain, be: Any, random: np.random.RandomState) -> Arrays:
    """The parameters in float64, once a model has them in float32, on a backend."""
    for _, p in sorted(model.namedparams()):
        many = max(int(np.prod(p.shape[1:])), 1)
        p.array = (random.normal(size=p.shape) / np.sqrt(many)).astype(np.float32)
    w = {path: p.array.astype(np.float64) for path, p in model.namedparams()}
    if be is not None:
        model.to_device(be)
    return w


def scored(y: np.ndarray, t: np.ndarray) -> tuple[float, np.ndarray]:
    """The softmax cross entropy of scores and labels, and its gradient."""
    p = np.exp(y - y.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return -np.log(p[np.arange(len(t)), t]).mean(), (p - np.eye(y.shape[1])[t]) / len(t)


# Dense layers

DENSE = [(8, 4096, 24), (16, 1024, 264), (33, 256, 1000), (64, 784, 100)]  # samples, inputs, units


@pytest.mark.parametrize("batch_last", [False, True])
@pytest.mark.parametrize("samples, inputs, units", DENSE)
def test_dense_networks(samples, inputs, units, batch_last, be, array) -> None:
    random = np.random.RandomState(samples)
    model = tb.Sequential(L.Linear(inputs, units), F.tanh, L.Linear(units, 10))
    w = filled(model, be, random)
    x = random.normal(size=(samples, inputs)).astype(np.float32)
    t = random.randint(0, 10, samples)
    data = array(x.T.copy()).T if batch_last else array(x)
    labels = array(t, np.int32)
    inner = {}

    def loss() -> tb.Variable:
        inner["x"] = tb.Variable(data)
        return F.softmax_cross_entropy(model(inner["x"]), labels)

    def step() -> tuple[float, Arrays]:
        h = np.tanh(x @ w["/0/W"].T + w["/0/b"])
        cost, gy = scored(h @ w["/2/W"].T + w["/2/b"], t)
        gh = gy @ w["/2/W"] * (1 - h * h)
        close(inner["x"].grad, gh @ w["/0/W"], "gradient of x")
        return cost, {"/0/W": gh.T @ x, "/0/b": gh.sum(0), "/2/W": gy.T @ h, "/2/b": gy.sum(0)}

    follow(model, loss, w, step)


@pytest.mark.parametrize("samples, inputs, units", DENSE)
def test_dense_layers_of_the_contract(samples, inputs, units, be) -> None:
    """A layer's three products with the batch last, as neon's layers call them; the update adds to the weights."""
    if be is None:
        pytest.skip("layers of the contract are of tensors")
    random = np.random.RandomState(samples)
    shapes = [(inputs, samples), (units, inputs), (units, 1), (units, samples)]
    x, w, b, target = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    w /= np.float32(np.sqrt(inputs))
    tx, tw, tb_, tt = map(be.array, (x, w, b, target))
    y, error, delta, sums = be.empty((units, samples)), be.empty((units, samples)), be.empty(x.shape), be.empty(b.shape)
    w, b = w.astype(np.float64), b.astype(np.float64)
    rate = 1 / (4 * inputs)
    for t in range(STEPS):
        be.compound_dot(tw, tx, y)
        y[:] = be.maximum(y + tb_, 0)
        error[:] = (y - tt) * (y > 0)
        be.compound_dot(tw.T, error, delta)
        be.compound_dot(error, tx.T, tw, alpha=-rate, beta=1.0)
        be.update_fc_bias(error, sums)
        tb_[:] = tb_ - rate * sums
        z = w @ x + b
        found = y.get() > 0
        assert np.abs(z[found != (z > 0)]).max(initial=0) < 1e-5  # next to 0 either is right
        expected = (np.maximum(z, 0) - target) * found
        close(y, np.maximum(z, 0), f"y, {t}")
        close(delta, w.T @ expected, f"delta, {t}")
        w -= rate * (expected @ x.T)
        b -= rate * expected.sum(1, keepdims=True)
        close(tw, w, f"weights, {t}")
        close(tb_, b, f"bias, {t}")


# Convolutions


def windows(x: np.ndarray) -> np.ndarray:
    """The 3 x 3 windows of images (N, C, H, W) with zeros around: (N, C, H, W, 3, 3)."""
    whole = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)])
    return np.lib.stride_tricks.sliding_window_view(whole, (3, 3), axis=(2, 3))


def convolved(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The convolution of images with filters (O, C, 3, 3)."""
    return np.einsum("nchwij,ocij->nohw", windows(x), w, optimize=True) + b.reshape(-1, 1, 1)


def convolved_back(g: np.ndarray, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients by images, filters and bias."""
    gx = np.einsum("nohwij,ocij->nchw", windows(g), w[:, :, ::-1, ::-1], optimize=True)
    return gx, np.einsum("nohw,nchwij->ocij", g, windows(x), optimize=True), g.sum((0, 2, 3))


class Convnet(tb.Chain):
    """A normalized convolution, the largest of squares, another convolution, an affine map."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        with self.init_scope():
            self.c1 = L.Convolution2D(2, maps, 3, pad=1, nobias=True)  # behind it a bias has gradients of noise
            self.bn = L.BatchNormalization(maps, decay=0.5, eps=1e-3)
            self.c2, self.out = L.Convolution2D(maps, 5, 3, pad=1), L.Linear(5 * 9, 4)

    def forward(self, x):
        h = F.max_pooling_2d(F.tanh(self.bn(self.c1(x))), 2)
        return self.out(F.tanh(self.c2(h)))


@pytest.mark.parametrize("samples, maps, seed", [(1, 3, 4), (7, 17, 1), (16, 8, 15), (33, 8, 9)])
def test_convolutional_networks(samples, maps, seed, be, array) -> None:
    random = np.random.RandomState(seed)
    model = Convnet(maps)
    w = filled(model, be, random)
    x, t = random.normal(size=(samples, 2, 6, 6)).astype(np.float32), random.randint(0, 4, samples)
    data, labels = array(x), array(t, np.int32)
    mean, variance, inner = np.zeros(maps), np.ones(maps), {}

    def loss() -> tb.Variable:
        inner["x"] = tb.Variable(data)
        return F.softmax_cross_entropy(model(inner["x"]), labels)

    def step() -> tuple[float, Arrays]:
        along, axes, count = (1, maps, 1, 1), (0, 2, 3), samples * 36
        c1 = convolved(x, w["/c1/W"], np.zeros(maps))
        mu, v = c1.mean(axes), c1.var(axes)
        mean[:], variance[:] = 0.5 * (mean + mu), 0.5 * (variance + v * count / (count - 1))
        scale = 1 / np.sqrt(v + 1e-3).reshape(along)
        standard = (c1 - mu.reshape(along)) * scale
        a1 = np.tanh(standard * w["/bn/gamma"].reshape(along) + w["/bn/beta"].reshape(along))
        squares = a1.reshape(samples, maps, 3, 2, 3, 2)
        p1 = squares.max((3, 5))
        second = np.sort(squares.swapaxes(3, 4).reshape(*p1.shape, 4), 4)[..., 2]
        assert (p1 - second).min() > 2e-5  # so that errors choose no other; seeds are such
        a2 = np.tanh(convolved(p1, w["/c2/W"], w["/c2/b"]))
        flat = a2.reshape(samples, -1)
        cost, gy = scored(flat @ w["/out/W"].T + w["/out/b"], t)
        g2 = (gy @ w["/out/W"]).reshape(a2.shape) * (1 - a2 * a2)
        gp, *by_c2 = convolved_back(g2, p1, w["/c2/W"])
        largest = squares == p1[:, :, :, None, :, None]
        ga = (largest * gp[:, :, :, None, :, None]).reshape(a1.shape) * (1 - a1 * a1)
        gamma, beta = (ga * standard).sum(axes), ga.sum(axes)
        shared = (standard * gamma.reshape(along) + beta.reshape(along)) / count
        gx, filters, _ = convolved_back((ga - shared) * scale * w["/bn/gamma"].reshape(along), x, w["/c1/W"])
        close(inner["x"].grad, gx, "gradient of x")
        found = {"/bn/gamma": gamma, "/bn/beta": beta, "/out/W": gy.T @ flat, "/out/b": gy.sum(0), "/c1/W": filters}
        return cost, found | dict(zip(["/c2/W", "/c2/b"], by_c2))

    def statistics() -> Iterator[tuple[str, Any, Any]]:
        yield "mean", model.bn.avg_mean, mean
        yield "variance", model.bn.avg_var, variance

    follow(model, loss, w, step, statistics)


# Sequences


class Sequences(tb.Chain):
    """Words in a table, an LSTM over them, an affine map of all its outputs."""

    def __init__(self, words: int, units: int) -> None:
        super().__init__()
        with self.init_scope():
            self.words, self.lstm = L.EmbedID(words, 7), L.NStepLSTM(1, 7, units, 0.0)
            self.out = L.Linear(units, words)

    def forward(self, xs):
        _, _, ys = self.lstm(None, None, [self.words(x) for x in xs])
        return self.out(F.concat(ys, 0))


def sig(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def lstm_gradients(xs: np.ndarray, w: list[np.ndarray], b: list[np.ndarray]) -> tuple[np.ndarray, Callable]:
    """The outputs of one sequence, and a function of their gradients that gives those of the inputs, of the weights and
    of the biases (of inputs and of states alike)."""
    h, c, kept = np.zeros(w[4].shape[0]), np.zeros(w[4].shape[0]), []
    for x in xs:
        i, f, a, o = (w[k] @ x + w[k + 4] @ h + b[k] + b[k + 4] for k in range(4))
        gates, before = (sig(i), sig(f), np.tanh(a), sig(o)), (h, c)
        c = gates[1] * c + gates[0] * gates[2]
        h = gates[3] * np.tanh(c)
        kept.append((x, before, gates, c, h))

    def back(gys: np.ndarray) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
        gx, gw, gb = np.zeros_like(xs), [np.zeros_like(p) for p in w], [np.zeros_like(p) for p in b]
        gh, gc = np.zeros_like(h), np.zeros_like(c)
        for t in reversed(range(len(xs))):
            x, before, (i, f, a, o), cell, _ = kept[t]
            gh, tangent = gh + gys[t], np.tanh(cell)
            gc = gc + gh * o * (1 - tangent * tangent)
            sums = (gc * a * i * (1 - i), gc * before[1] * f * (1 - f), gc * i * (1 - a * a),
                    gh * tangent * o * (1 - o))  # fmt: skip
            for k, g in enumerate(sums):
                gx[t] += w[k].T @ g
                for place, read in ((k, x), (k + 4, before[0])):
                    gw[place] += np.outer(g, read)
                    gb[place] += g
            gh, gc = sum(w[k + 4].T @ g for k, g in enumerate(sums)), gc * f
        return gx, gw, gb

    return np.array([step[-1] for step in kept]), back


@pytest.mark.parametrize("sequences, units, ragged", [(1, 5, False), (8, 33, True), (16, 32, False), (33, 17, True)])
def test_recurrent_networks(sequences, units, ragged, be, array) -> None:
    random, words = np.random.RandomState(units), 11
    model = Sequences(words, units)
    w = filled(model, be, random)
    lengths = random.randint(1, 5, sequences) if ragged else np.full(sequences, 4)
    ids = [random.randint(0, words, n) for n in lengths]
    t = random.randint(0, words, lengths.sum())
    xs, labels = [array(x, np.int32) for x in ids], array(t, np.int32)

    def step() -> tuple[float, Arrays]:
        weights, biases = ([w[f"/lstm/0/{kind}{k}"] for k in range(8)] for kind in "wb")
        outputs, backs = zip(*(lstm_gradients(w["/words/W"][x], weights, biases) for x in ids))
        h = np.concatenate(outputs)
        cost, gy = scored(h @ w["/out/W"].T + w["/out/b"], t)
        found = {path: np.zeros_like(p) for path, p in w.items()}
        found["/out/W"], found["/out/b"] = gy.T @ h, gy.sum(0)
        for x, back, gh in zip(ids, backs, np.split(gy @ w["/out/W"], np.cumsum(lengths)[:-1])):
            gx, *by = back(gh)
            np.add.at(found["/words/W"], x, gx)
            for kind, gradients in zip("wb", by):
                for k, g in enumerate(gradients):
                    found[f"/lstm/0/{kind}{k}"] += g
        return cost, found

    follow(model, lambda: F.softmax_cross_entropy(model(xs), labels), w, step)
