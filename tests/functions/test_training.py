# SPDX-License-Identifier: Apache-2.0
"""Links, optimizers, serializers: formulas, training against a NumPy transcription, and stops that change nothing."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import re
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
import tensorbackend.links as L
from tensorbackend import initializers, optimizers, serializers, testing
from tensorbackend.errors import DTypeError, ShapeError
from tensorbackend.function import arrays

pytestmark = pytest.mark.rehearsed


class MLP(tb.Chain):
    """Two layers, whose input size is taken from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, 8)
            self.l2 = L.Linear(8, 3)

    def forward(self, x):
        return self.l2(F.tanh(self.l1(x)))


def network(be: Any, seed: int = 0) -> MLP:
    """A network with numbers that depend on the seed alone, on a backend."""
    model = MLP()
    model(np.zeros((1, 5), np.float32))
    random = np.random.RandomState(seed)
    for p in model.params():
        p.array = random.normal(size=p.shape).astype(np.float32) * 0.5
    return model.to_device(be)


RANDOM = np.random.RandomState(7)
X = RANDOM.normal(size=(16, 5)).astype(np.float32)
T = RANDOM.randint(0, 3, 16).astype(np.int32)


def loss_of(model: MLP, x: Any, t: Any) -> tb.Variable:
    """The loss of a batch."""
    return F.softmax_cross_entropy(model(x), t)


# Optimizers


def adam(p, g, s, t, decay=0.0):
    s["m"] += 0.1 * (g - s["m"])
    s["v"] += 0.001 * (g * g - s["v"])
    rate = 0.001 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    return p - (rate * s["m"] / (np.sqrt(s["v"]) + 1e-8) + decay * p)


def amsgrad(p, g, s, t):
    s["m"] += 0.1 * (g - s["m"])
    s["v"] += 0.001 * (g * g - s["v"])
    s["h"] = np.maximum(s["h"], s["v"])
    return p - 0.001 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * s["m"] / (np.sqrt(s["h"]) + 1e-8)


def momentum(p, g, s, t):
    s["v"] = 0.9 * s["v"] - 0.01 * g
    return p + s["v"]


def nesterov(p, g, s, t):
    s["v"] = 0.9 * s["v"] - 0.01 * g
    return p + 0.9 * s["v"] - 0.01 * g


def adagrad(p, g, s, t):
    s["h"] += g * g
    return p - 0.001 * g / (np.sqrt(s["h"]) + 1e-8)


def rmsprop(p, g, s, t):
    s["v"] = 0.99 * s["v"] + 0.01 * g * g
    return p - 0.01 * g / (np.sqrt(s["v"]) + 1e-8)


def adadelta(p, g, s, t):
    s["m"] = 0.95 * s["m"] + 0.05 * g * g
    dx = np.sqrt((s["v"] + 1e-6) / (s["m"] + 1e-6)) * g
    s["v"] = 0.95 * s["v"] + 0.05 * dx * dx
    return p - dx


METHODS = {
    "SGD": (optimizers.SGD, lambda p, g, s, t: p - 0.01 * g),
    "MomentumSGD": (optimizers.MomentumSGD, momentum),
    "NesterovAG": (optimizers.NesterovAG, nesterov),
    "AdaGrad": (optimizers.AdaGrad, adagrad),
    "RMSprop": (optimizers.RMSprop, rmsprop),
    "AdaDelta": (optimizers.AdaDelta, adadelta),
    "Adam": (optimizers.Adam, adam),
    "AMSGrad": (lambda: optimizers.Adam(amsgrad=True), amsgrad),
    "AdamW": (optimizers.AdamW, lambda p, g, s, t: adam(p, g, s, t, 0.01)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", METHODS)
def test_methods_follow_their_formulas(name, dtype, be) -> None:
    make, formula = METHODS[name]
    model = network(be)
    for p in model.params():
        p.array = arrays.moved(arrays.to_cpu(p.array).astype(dtype), be)
    optimizer = make().setup(model)
    random = np.random.RandomState(3)
    expected = {path: arrays.to_cpu(p.array).astype(np.float64) for path, p in model.namedparams()}
    states = {path: {k: np.zeros(p.shape) for k in "mvh"} for path, p in expected.items()}
    for t in range(1, 5):
        for path, p in model.namedparams():
            g = random.normal(size=p.shape).astype(dtype)
            p.grad = arrays.moved(g, be)
            expected[path] = formula(expected[path], g.astype(np.float64), states[path], t)
        optimizer.update()
    assert optimizer.t == 4
    for path, p in model.namedparams():
        close = {"atol": 1e-6, "rtol": 1e-5} if dtype == "float32" else {"atol": 1e-14, "rtol": 1e-13}
        testing.assert_allclose(p, expected[path], **close)


def transcription(steps: int) -> list[float]:
    """The losses of an MLP trained with Adam, in NumPy."""
    model = network(None)
    w = {path: p.array.astype(np.float64) for path, p in model.namedparams()}
    states = {path: {k: np.zeros(p.shape) for k in "mvh"} for path, p in w.items()}
    losses = []
    for t in range(1, steps + 1):
        h = np.tanh(X @ w["/l1/W"].T + w["/l1/b"])
        y = h @ w["/l2/W"].T + w["/l2/b"]
        p = np.exp(y - y.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        losses.append(-np.log(p[np.arange(16), T]).mean())
        gy = (p - np.eye(3)[T]) / 16
        gh = gy @ w["/l2/W"] * (1 - h * h)
        grads = {"/l2/W": gy.T @ h, "/l2/b": gy.sum(0), "/l1/W": gh.T @ X, "/l1/b": gh.sum(0)}
        for path in w:
            w[path] = adam(w[path], grads[path], states[path], t)
    return losses


def test_training_follows_a_numpy_transcription(be, array) -> None:
    model = network(be)
    optimizer = optimizers.Adam().setup(model)
    x, t, losses = array(X), array(T, np.int32), []
    for _ in range(50):
        optimizer.update(lambda: losses.append(loss_of(model, x, t)) or losses[-1])
    testing.assert_allclose(np.array([y.item() for y in losses]), transcription(50), atol=1e-4)


IMAGES = np.random.RandomState(3).normal(size=(4, 2, 6, 6)).astype(np.float32)
LABELS = np.array([0, 2, 1, 2], np.int32)


def convnet() -> tb.Sequential:
    """A convolution, maxima of squares, and an affine map."""
    made = tb.Sequential(L.Convolution2D(2, 3, 3, pad=1), F.relu, lambda x: F.max_pooling_2d(x, 2), L.Linear(27, 3))
    random = np.random.RandomState(4)
    for _, p in sorted(made.namedparams()):
        p.array = (random.normal(size=p.shape) * 0.3).astype(np.float32)
    return made


def convnet_transcription(steps: int) -> list[float]:
    """The losses of the convnet trained by momentum, in NumPy."""
    w = {path: p.array.astype(np.float64) for path, p in convnet().namedparams()}
    speeds, losses = {path: np.zeros(p.shape) for path, p in w.items()}, []
    whole = np.pad(IMAGES.astype(np.float64), [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(whole, (3, 3), axis=(2, 3))
    for _ in range(steps):
        c = np.einsum("nchwij,ocij->nohw", windows, w["/0/W"]) + w["/0/b"].reshape(3, 1, 1)
        squares = np.maximum(c, 0).reshape(4, 3, 3, 2, 3, 2)
        largest = squares.max((3, 5), keepdims=True)
        flat = largest.reshape(4, 27)
        y = flat @ w["/3/W"].T + w["/3/b"]
        p = np.exp(y - y.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        losses.append(-np.log(p[np.arange(4), LABELS]).mean())
        gy = (p - np.eye(3)[LABELS]) / 4
        gc = ((squares == largest) * (gy @ w["/3/W"]).reshape(largest.shape)).reshape(c.shape) * (c > 0)
        grads = {"/0/W": np.einsum("nohw,nchwij->ocij", gc, windows), "/0/b": gc.sum((0, 2, 3)),
                 "/3/W": gy.T @ flat, "/3/b": gy.sum(0)}  # fmt: skip
        for path, g in grads.items():
            speeds[path] = 0.9 * speeds[path] - 0.02 * g
            w[path] = w[path] + speeds[path]
    return losses


@pytest.mark.slow
def test_a_convnet_follows_a_numpy_transcription(be, array) -> None:
    model = convnet().to_device(be)
    optimizer = optimizers.MomentumSGD(0.02, 0.9).setup(model)
    x, t, losses = array(IMAGES), array(LABELS, np.int32), []
    for _ in range(50):
        optimizer.update(lambda: losses.append(F.softmax_cross_entropy(model(x), t)) or losses[-1])
    expected = convnet_transcription(50)
    assert expected[-1] < 0.1 * expected[0]
    testing.assert_allclose(np.array([y.item() for y in losses]), expected, atol=1e-4)


def resident() -> float:
    """MiB of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux says how much memory a process has")
def test_memory_of_ten_thousand_steps_is_flat(be, array) -> None:
    model = network(be)
    optimizer = optimizers.Adam().setup(model)
    x, t = array(X), array(T, np.int32)
    gc.collect()
    gc.disable()
    try:
        for step in range(10_000):
            optimizer.update(loss_of, model, x, t)
            if step == 500:
                before = resident()
        assert resident() - before < 1
    finally:
        gc.enable()


def test_a_captured_step_trains_as_a_plain_one(be, array) -> None:
    if be is None:
        pytest.skip("programs are of tensors")

    def trained(capture: bool) -> list[np.ndarray]:
        model = network(be)
        optimizer = optimizers.Adam().setup(model)
        x, t = array(X), array(T, np.int32)

        def step(x, t):
            loss = loss_of(model, x, t)
            model.cleargrads()
            loss.backward()
            optimizer.update()
            return loss._data

        step(x, t)
        run = be.capture(step, x, t) if capture else step
        for _ in range(4 if capture else 5):
            run(x, t)
        target = serializers.DictionarySerializer().save(optimizer)
        return [target["t"], *(arrays.to_cpu(p.array) for p in model.params())]

    for plain, captured in zip(trained(False), trained(True)):
        assert (plain == captured).all()


def test_a_step_captured_after_loading_counts(be, array) -> None:
    if be is None:
        pytest.skip("programs are of tensors")
    x, t = array(X), array(T, np.int32)

    def trained(loaded: bool, capture: bool) -> list[np.ndarray]:
        model = network(be)
        optimizer = optimizers.Adam().setup(model)

        def step(x, t):
            optimizer.update(loss_of, model, x, t)

        step(x, t)
        if loaded:
            saved = serializers.DictionarySerializer().save(optimizer)
            if not capture:
                optimizer = optimizers.Adam().setup(model)
            serializers.NpzDeserializer(saved).load(optimizer)
        run = be.capture(step, x, t) if capture else step
        for _ in range(4 if capture else 5):
            run(x, t)
        target = serializers.DictionarySerializer().save(optimizer)
        return [target["t"], *(arrays.to_cpu(p.array) for p in model.params())]

    for plain, *others in zip(trained(False, False), trained(True, False), trained(True, True)):
        assert all((plain == other).all() for other in others)


def test_stop_and_resume_is_bitwise_the_same(be, array) -> None:
    x, t = array(X), array(T, np.int32)

    def train(model: MLP, optimizer: Any, steps: int) -> None:
        for _ in range(steps):
            optimizer.update(loss_of, model, x, t)

    whole, half, resumed = network(be), network(be), MLP().to_device(be)
    straight = optimizers.Adam().setup(whole)
    train(whole, straight, 6)
    first = optimizers.Adam().setup(half)
    train(half, first, 3)
    files = io.BytesIO(), io.BytesIO()
    serializers.save_npz(files[0], half)
    serializers.save_npz(files[1], first)
    with np.load(io.BytesIO(files[0].getvalue()), allow_pickle=False) as npz:
        assert set(npz) == {"l1/W", "l1/b", "l2/W", "l2/b"}
    serializers.load_npz(io.BytesIO(files[0].getvalue()), resumed)
    second = optimizers.Adam().setup(resumed)
    serializers.load_npz(io.BytesIO(files[1].getvalue()), second)
    assert second.t == 3
    train(resumed, second, 3)
    for a, b in zip(whole.params(), resumed.params()):
        assert (arrays.to_cpu(a.array) == arrays.to_cpu(b.array)).all()


# Hooks


def gradients(be: Any, hook: Any) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Parameters, gradients before a hook, and those after it."""
    model = network(be)
    optimizer = optimizers.SGD(0.0).setup(model)
    optimizer.add_hook(hook)
    random = np.random.RandomState(5)
    before = []
    for p in model.params():
        before.append(random.normal(size=p.shape).astype(np.float32))
        p.grad = arrays.moved(before[-1].copy(), be)
    optimizer.update()
    return [arrays.to_cpu(p.array) for p in model.params()], before, [arrays.to_cpu(p.grad) for p in model.params()]


@pytest.mark.parametrize(
    ("hook", "formula"),
    [
        (optimizers.WeightDecay(0.1), lambda p, g, n: g + 0.1 * p),
        (optimizers.Lasso(0.1), lambda p, g, n: g + 0.1 * np.sign(p)),
        (optimizers.GradientClipping(1.5), lambda p, g, n: g * 1.5 / n),
        (optimizers.GradientClipping(1e6), lambda p, g, n: g),
        (optimizers.GradientHardClipping(-0.5, 0.2), lambda p, g, n: np.clip(g, -0.5, 0.2)),
        (optimizers.GradientLARS(0.1, 0.2), lambda p, g, n: (g + 0.2 * p) * 0.1 * np.linalg.norm(p)
            / (1e-9 + np.linalg.norm(g) + 0.2 * np.linalg.norm(p))),
    ],
)  # fmt: skip
def test_hooks_change_gradients(hook, formula, be) -> None:
    params, before, after = gradients(be, hook)
    norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in before))
    for p, g, found in zip(params, before, after):
        testing.assert_allclose(found, formula(p, g, norm), atol=1e-6)


def test_clipping_halves_whose_squares_are_too_large_for_them(be) -> None:
    link = tb.Link()
    with link.init_scope():
        link.p, link.q = (tb.Parameter(arrays.moved(np.ones(4, np.float16), be)) for _ in range(2))
    optimizer = optimizers.SGD(0.0).setup(link)
    optimizer.add_hook(optimizers.GradientClipping(5.0))
    link.p.grad, link.q.grad = (arrays.moved(np.full(4, value, np.float16), be) for value in (150, 200))
    optimizer.update()
    for p, expected in ((link.p, 1.5), (link.q, 2.0)):
        testing.assert_allclose(p.grad, np.full(4, expected), atol=0, rtol=1e-3)


@pytest.mark.parametrize("hook, wanted", [
    (optimizers.GradientClipping(5.0), [3.0, 4.0]), (optimizers.GradientLARS(5.0, eps=0.0), [3.0, 4.0]),
], ids=["clipping", "rates"])  # fmt: skip
def test_gradients_whose_squares_overflow_have_a_length(be, hook, wanted) -> None:
    link = tb.Link()
    with link.init_scope():
        link.p = tb.Parameter(arrays.moved(np.array([0.6, 0.8], np.float32), be))
    optimizer = optimizers.SGD(0.0).setup(link)
    optimizer.add_hook(hook)
    link.p.grad = arrays.moved(np.array([3e25, 4e25], np.float32), be)
    optimizer.update()
    testing.assert_allclose(link.p.grad, wanted, atol=0, rtol=1e-6)


def test_noise_is_added(be) -> None:
    _, before, after = gradients(be, optimizers.GradientNoise(1.0))
    away = np.concatenate([(a - b).ravel() for a, b in zip(after, before)])
    assert 0.5 < away.std() < 1.5


def test_noise_falls_with_the_steps(be, array) -> None:
    p = tb.Parameter(array(np.zeros(4000, np.float32)))
    link = tb.Link()
    with link.init_scope():
        link.p = p
    optimizer = optimizers.SGD(0.0).setup(link)
    for optimizer.t, deviation in ((0, 2.0), (99, 2.0 * 100**-0.275)):
        p.grad = array(np.zeros(4000, np.float32))
        optimizers.GradientNoise(4.0)(optimizer)
        # The spread of 4000 normal numbers is right to 1.1 % (one deviation), so a factor of 2^0.275 = 1.21 is seen.
        assert abs(arrays.to_cpu(p.grad).std() / deviation - 1) < 0.08


@pytest.mark.parametrize("hook", [
    optimizers.WeightDecay(0.5), optimizers.Lasso(0.5), optimizers.GradientClipping(0.5), optimizers.GradientNoise(0.5),
    optimizers.GradientHardClipping(-0.5, 0.5), optimizers.GradientLARS(),
], ids=lambda hook: hook.name)  # fmt: skip
def test_hooks_pass_over_what_has_no_gradient(hook, array) -> None:
    link = tb.Link()
    with link.init_scope():
        link.p, link.q, link.empty = tb.Parameter(array([3.0, 4.0])), tb.Parameter(array([5.0])), tb.Parameter()
    optimizer = optimizers.SGD(0.0).setup(link)
    hook(optimizer)
    assert link.p.grad is None
    link.p.grad = array([6.0, 8.0])
    hook(optimizer)
    assert arrays.to_cpu(link.p.grad).tolist() != [6.0, 8.0]
    assert link.q.grad is None and link.empty._grad is None


def test_an_optimizer_that_gets_another_target_begins_anew(be, array) -> None:
    optimizer = optimizers.Adam(alpha=0.5)
    for steps in (3, 1):
        link = tb.Link()
        with link.init_scope():
            link.w = tb.Parameter(array(np.ones(2)))
        optimizer.setup(link)
        for _ in range(steps):
            link.w.grad = array(np.full(2, 4.0))
            optimizer.update()
        testing.assert_allclose(link.w.array, 1 - 0.5 * steps)
    assert optimizer.t == 1


def test_parameters_that_are_left_out(be, array) -> None:
    model = network(be)
    with pytest.raises(RuntimeError, match="no optimizer has these parameters"):
        model.l1.disable_update()
    optimizer = optimizers.SGD(1.0).setup(model)
    model.l1.disable_update()
    before = [arrays.to_cpu(p.array).copy() for p in model.params()]
    loss_of(model, array(X), array(T, np.int32)).backward()
    model.l2.b.cleargrad()
    optimizer.update()
    moved = [(arrays.to_cpu(p.array) != b).any() for p, b in zip(model.params(), before)]
    assert moved == [False, False, True, False]
    model.l2.W.update_rule.hyperparam.lr = 0.0
    assert optimizer.lr == 1.0 and model.l2.W.update_rule.hyperparam.lr == 0.0


def test_halves_with_a_wide_copy(be) -> None:
    p = tb.Parameter(arrays.moved(np.ones(3, np.float16), be))
    link = tb.Link()
    with link.init_scope():
        link.p = p
    optimizer = optimizers.SGD(1e-4)
    optimizer.use_fp32_update()
    optimizer.setup(link)
    for _ in range(20):
        p.grad = arrays.moved(np.ones(3, np.float16), be)
        optimizer.update()
    testing.assert_allclose(p, np.full(3, 0.998), atol=5e-4)
    testing.assert_allclose(p.update_rule.state["master"], np.full(3, 0.998), atol=1e-6)
    p.copydata(tb.Variable(arrays.moved(np.array([3, 3, p.array[2].item()], np.float16), be)))  # two numbers are new
    p.grad = arrays.moved(np.zeros(3, np.float16), be)
    optimizer.update()
    testing.assert_allclose(p, [3, 3, 0.998], atol=5e-4)
    testing.assert_allclose(p.update_rule.state["master"], [3, 3, 0.998], atol=1e-6)
    optimizer.use_fp32_update(False)
    before = arrays.to_cpu(p.array)
    p.grad = arrays.moved(np.ones(3, np.float16), be)
    optimizer.update()
    np.testing.assert_array_equal(arrays.to_cpu(p.array), before - np.float16(1e-4))
    assert "master" not in p.update_rule.state


def test_parameters_that_came_after_setup_are_passed_over() -> None:
    model = network(None)
    optimizer = optimizers.SGD(1.0).setup(model)
    with model.init_scope():
        model.late = L.Linear(2, 2)
    optimizer.use_fp32_update()
    model.late.W.grad = np.ones((2, 2), np.float32)
    before = model.late.W.array.copy()
    optimizer.update()
    assert (model.late.W.array == before).all()


def test_a_hook_can_be_called() -> None:
    with pytest.raises(TypeError, match="add_hook"):
        optimizers.SGD().add_hook(3)


def test_loss_scaling_leaves_the_step_as_it_is(be, array) -> None:
    models = [network(be), network(be)]
    for model, scaled in zip(models, (False, True)):
        optimizer = optimizers.SGD(0.1).setup(model)
        if scaled:
            optimizer.loss_scaling(scale=1024.0)
        optimizer.update(loss_of, model, array(X), array(T, np.int32))
    for a, b in zip(models[0].params(), models[1].params()):
        testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("fp32", [False, True])
def test_loss_scaling_saves_gradients_that_halves_cannot_hold(fp32, be) -> None:
    """Divided by the scale they are float32, through the hooks, to the step, and of the parameter's type behind it."""
    seen = []

    def doubled(optimizer: optimizers.Optimizer) -> None:
        seen.append(p.grad.dtype)
        p.grad = p.grad * 2

    p = tb.Parameter(arrays.moved(np.full(3, 0.5, np.float16), be))
    link = tb.Link()
    with link.init_scope():
        link.p = p
    optimizer = optimizers.SGD(1e6)
    optimizer.use_fp32_update(fp32)
    optimizer.setup(link).loss_scaling(scale=2.0**14)
    optimizer.add_hook(doubled)
    optimizer.add_hook(optimizers.WeightDecay(1e-9))
    p.grad = arrays.moved(np.full(3, 2.0**-12, np.float16), be)  # 2^-26 when divided, half of the least float16
    optimizer.update()
    testing.assert_allclose(p, np.full(3, 0.5 - 1e6 * (2.0**-25 + 5e-10)), atol=5e-4)
    assert seen == [np.float32] and p.grad.dtype == np.float16
    with pytest.raises(DTypeError):
        p.grad = arrays.moved(np.ones(3, np.float32), be)


# Links


def test_an_optimizer_without_a_target_says_so() -> None:
    for arguments in ((), (lambda: tb.Variable(np.float32(1)),)):
        with pytest.raises(RuntimeError, match="setup"):
            optimizers.Adam().update(*arguments)
    with pytest.raises(RuntimeError, match="serialize: no target"):
        serializers.save_npz(io.BytesIO(), optimizers.SGD())
    with pytest.raises(RuntimeError, match="serialize: no target"):
        serializers.NpzDeserializer({"t": np.array(1), "epoch": np.array(0)}).load(optimizer := optimizers.Adam())
    assert optimizer.t == 0


def test_links_have_paths_and_copies() -> None:
    model = network(None)
    assert [path for path, _ in model.namedparams()] == ["/l1/W", "/l1/b", "/l2/W", "/l2/b"]
    assert [path for path, _ in model.namedlinks()] == ["/", "/l1", "/l2"] and model["l1"] is model.l1
    assert model.count_params() == 5 * 8 + 8 + 8 * 3 + 3
    shared, copied, fresh = (model.copy(mode) for mode in ("share", "copy", "init"))
    assert shared.l1.W is not model.l1.W and shared.l1.W.array is model.l1.W.array
    assert (copied.l1.W.array == model.l1.W.array).all() and copied.l1.W.array is not model.l1.W.array
    assert (fresh.l1.W.array != model.l1.W.array).any()
    fresh.copyparams(model)
    assert (fresh.l1.W.array == model.l1.W.array).all()
    with pytest.raises(ValueError, match="mode"):
        model.copy("deep")


def test_a_copied_optimizer_has_numbers_and_a_target_of_its_own() -> None:
    model = network(None)
    optimizer = optimizers.MomentumSGD(lr=0.5).setup(model)
    model.l1.W.update_rule.hyperparam.momentum = 0.25
    copied = copy.deepcopy(optimizer)
    copied.lr = 2.0
    mine, theirs = (x.target.l1.W.update_rule.hyperparam for x in (optimizer, copied))
    assert copied.target is not model and (mine.lr, theirs.lr, theirs.momentum) == (0.5, 2.0, 0.25)
    theirs.momentum = 0.75
    assert mine.momentum == 0.25
    assert copy.deepcopy(optimizers.SGD()).target is None


class Counted(tb.Link):
    def __init__(self, **extra: Any) -> None:
        super().__init__(W=(2, 2), **extra)
        self.add_persistent("seen", [1])


@pytest.mark.parametrize("taken", [
    lambda link: link.copy("copy"),
    lambda link: link.copy("init"),
    copy.deepcopy,
    lambda link: (made := Counted()).copyparams(link) or made,
], ids=["copy", "init", "deepcopy", "copyparams"])  # fmt: skip
def test_persistent_lists_are_copied(taken) -> None:
    link = Counted()
    made = taken(link)
    link.seen.append(2)
    assert made.seen == [1] and link.copy().seen is link.seen


@pytest.mark.parametrize("method", ["copyparams", "addgrads"])
def test_a_link_that_lacks_a_parameter_is_refused_before_anything_is_written(method) -> None:
    link, other = Counted(V=(3, 2)), Counted()
    other.W.grad = np.ones((2, 2), np.float32)
    with pytest.raises(KeyError, match=rf"{method}: a parameter that the other link lacks\n.*/W\n.*/V"):
        getattr(link, method)(other)
    assert link.W.grad is None


@pytest.mark.parametrize("method", ["copyparams", "addgrads"])
def test_a_link_of_another_shape_is_refused_before_anything_is_written(method) -> None:
    link, other = (tb.Chain(l1=L.Linear(2, 2), l2=L.Linear(2, n)) for n in (3, 4))
    for p in other.params():
        p.grad = np.ones(p.shape, np.float32)
    before = link.l1.W.array.copy()
    with pytest.raises(ShapeError, match=rf"{method}: another shape\n.*/l2/W \(4, 2\)\n.*\(3, 2\)"):
        getattr(link, method)(other)
    assert (link.l1.W.array == before).all() and link.l1.W.grad is None


@pytest.mark.parametrize(("wrong", "error"), [
    ({"avg_var": np.ones(4, np.float32)}, ShapeError), ({"avg_var": 1.0}, ShapeError), ({}, KeyError),
], ids=["shape", "number", "none"])  # fmt: skip
def test_persistent_values_that_do_not_fit_are_refused_before_anything_is_written(wrong, error) -> None:
    link, other = tb.Chain(bn=L.BatchNormalization(3)), tb.Chain(bn=L.BatchNormalization(3))
    other.bn.gamma.array[:] = 2
    del other.bn.avg_var
    for name, value in wrong.items():
        other.bn.add_persistent(name, value)
    with pytest.raises(error, match="copyparams: .*(\n.*)?/bn/avg_var"):
        link.copyparams(other)
    assert (link.bn.gamma.array == 1).all()


@pytest.mark.parametrize("model", [
    tb.Chain(l1=L.Linear(2, 3)), tb.ChainList(L.Linear(2, 3)), tb.Sequential(L.Linear(2, 3), F.relu), L.Linear(2, 3),
], ids=lambda model: type(model).__name__)  # fmt: skip
def test_a_shallow_copy_has_entries_of_its_own(model) -> None:
    names = [name for name, _ in model.namedparams()]
    made = copy.copy(model)
    assert all(p.array is q.array for p, q in zip(made.params(), model.params()))
    made.add_persistent("count", 1)
    with made.init_scope():
        made.extra = tb.Parameter(1.0, (2,))
    if isinstance(made, tb.ChainList):
        made.append(L.Linear(3, 3))
    assert [name for name, _ in model.namedparams()] == names and "count" not in model._persistent
    assert len(list(made.params())) > len(names)


@pytest.mark.parametrize("mode", ["share", "copy", "init"])
def test_what_is_shared_inside_a_link_has_one_copy(mode) -> None:
    model = tb.Chain(embed=L.EmbedID(5, 3), out=L.Linear(3, 5), layers=tb.ChainList())
    model.out.W = model.embed.W
    model.layers.extend([model.embed, model.out])
    made = model.copy(mode)
    assert made.out.W is made.embed.W and made.out.W is not model.out.W
    assert made.layers[0] is made.embed and len(list(made.params())) == len(list(model.params())) == 2


def test_a_link_that_is_copied_deeply_is_one_of_its_own(be) -> None:
    e, chain = L.EmbedID(5, 3), tb.Chain(out=L.Linear(3, 5, nobias=True))
    with chain.init_scope():
        chain.e = e
    with chain.out.init_scope():
        chain.out.W = e.W
    chain.to_device(be)
    layer = types.SimpleNamespace(be=be, links=[chain, chain])
    copied = copy.deepcopy(layer)
    made = copied.links[0]
    assert copied.be is be and made is copied.links[1] is not chain and made.out.W is made.e.W is not e.W
    assert made.device is be
    made.e.W.array[...] = 7
    assert not (np.asarray(tb.to_cpu(e.W.array)) == 7).any()
    if be is not None:
        with pytest.raises(TypeError, match="a backend belongs to its process"):
            pickle.dumps(be)
    with pytest.raises(TypeError, match="a variable belongs to a graph"):
        pickle.dumps(e.W)
    for whole in (chain, optimizers.SGD().setup(chain)):
        with pytest.raises(TypeError, match=r"a link's parameters.*\n.*<Chain>\n.*save_npz"):
            pickle.dumps(whole)


class Noted(tb.Chain):
    """A chain whose attributes refer to itself, to links and parameters of its own, and to others."""

    def __init__(self) -> None:
        super().__init__(inner=L.Linear(2, 2), list=tb.Sequential(L.Linear(2, 2), self.note))
        self.history, self.cfg = [], {"k": 1, "owner": self, "W": self.inner.W, "links": [self.list[0]]}
        self.alias, self.module, self.call = self.history, types, self.note
        self.inner.owner = self
        self.other, self.loose = L.Linear(2, 2), tb.Parameter(np.ones(2, np.float32))

    def note(self, x):
        self.history.append(x)
        return x


@pytest.mark.parametrize("mode", ["deepcopy", "copy", "init"])
def test_attributes_are_copied_with_what_they_refer_to(mode, be) -> None:
    """They were those of the original: a copy's history was its history."""
    m = Noted().to_device(be)
    m.other.to_device(be)
    d = copy.deepcopy(m) if mode == "deepcopy" else m.copy(mode)
    d.history.append(1)
    d.cfg["k"] = 2
    assert m.history == [] and m.cfg["k"] == 1 and d.history is d.alias and d.module is types
    assert d.cfg["owner"] is d.inner.owner is d and d.cfg["W"] is d.inner.W and d.cfg["links"] == [d.list[0]]
    d.call(2)
    d.list[1](3)
    assert d.history == [1, 2, 3] and m.history == []
    assert d.other is not m.other and d.other.name is None and "other" not in d._children
    for name, kept in (("inner", mode != "init"), ("other", True)):
        mine, made = (np.asarray(tb.to_cpu(getattr(x, name).W.array)) for x in (m, d))
        assert (mine == made).all() == kept and getattr(d, name).W is not getattr(m, name).W
    assert d.loose is not m.loose and d.loose.array is not m.loose.array
    shared = m.copy()
    assert shared.history is m.history and shared.cfg is m.cfg and shared.other is m.other


def test_what_contains_a_link_is_copied_as_one() -> None:
    m = Noted()
    things, made, again = copy.deepcopy([m.history, m, m.other])
    assert made.history is things and made.other is again and made.cfg["owner"] is made


@pytest.mark.parametrize("of", [copy.deepcopy, lambda m: m.copy("copy"), lambda m: m.repeat(1)[0]],
                         ids=["deepcopy", "copy", "repeat"])  # fmt: skip
def test_states_are_copied_without_their_graph(of, be) -> None:
    x = tb.to_device(be, X)
    link = L.LSTM(5, 3).to_device(be)
    link(x)
    link.states = {"h": [link.h]}
    made = of(link)
    assert made.h.creator is None is made.c.creator and link.h.creator is not None
    assert made.states["h"][0] is made.h is not link.h and made.h.array is not link.h.array
    assert (np.asarray(tb.to_cpu(made.h.array)) == np.asarray(tb.to_cpu(link.h.array))).all()
    F.sum(made(x)).backward()
    assert all(p.grad is None for p in link.params()) and made.upward.W.grad is not None
    with pytest.raises(TypeError, match="a variable belongs to a graph"):
        copy.deepcopy([link, link.h * 2])


def test_a_copy_of_its_own_may_set_attributes() -> None:
    class Fresh(tb.Link):
        def copy(self, mode="share"):
            made = super().copy(mode)
            made.seen = "new"
            del made.lock
            return made

    link = Fresh()
    link.seen, link.lock = [1], threading.Lock()
    made = copy.deepcopy(tb.ChainList(link))
    assert made[0].seen == "new" and link.seen == [1]


def test_what_cannot_be_copied_is_named() -> None:
    link = tb.Link()
    link.lock = threading.Lock()
    with pytest.raises(TypeError, match=r"copy: Link holds what cannot be copied\n.*lock, a lock: [\s\S]*'share'"):
        copy.deepcopy(tb.Chain(inner=link))
    assert link.copy().lock is link.lock


def test_copied_parameters_have_update_rules_of_their_own() -> None:
    model = network(None)
    optimizers.MomentumSGD(0.1).setup(model).update(loss_of, model, X, T)
    before = model.l1.W.update_rule.state["v"].copy()
    for mode in ("copy", "init"):
        for p in model.copy(mode).params():
            p.grad = np.ones(p.shape, p.dtype)
            p.update()
    assert (model.l1.W.update_rule.state["v"] == before).all()


def test_copies_have_running_statistics_of_their_own(be, array) -> None:
    link = L.BatchNormalization(5).to_device(be)
    shared, copied, fresh = (tb.Sequential(link).copy(mode)[0] for mode in ("share", "copy", "init"))
    assert arrays.plain(shared.avg_mean) is arrays.plain(link.avg_mean)
    link(array(X))
    assert np.abs(arrays.to_cpu(link.avg_mean)).min() > 0
    for other in (copied, fresh):
        assert not arrays.to_cpu(other.avg_mean).any() and (arrays.to_cpu(other.avg_var) == 1).all()
        assert arrays.backend_of(arrays.plain(other.avg_mean)) is be
    first, second = tb.Sequential(link).repeat(2)
    testing.assert_allclose(first.avg_mean, link.avg_mean)
    assert arrays.plain(first.avg_mean) is not arrays.plain(second.avg_mean)


def test_forgotten_constructors_are_named() -> None:
    class Forgets(tb.Chain):
        def __init__(self) -> None:
            with self.init_scope():
                self.l = L.Linear(1, 1)

    with pytest.raises(RuntimeError, match=r"super\(\).__init__\(\)"):
        Forgets()


def test_attributes_are_parameters_in_the_scope_alone() -> None:
    link = tb.Link(w=(2, 3))
    link.plain = tb.Parameter(1.0, (2,))
    with link.init_scope():
        link.b = tb.Parameter(1.0, (2,))
        link.number = 3
    assert [path for path, _ in link.namedparams()] == ["/b", "/w"] and link.number == 3
    with pytest.raises(AttributeError, match="taken"):
        link.add_param("b", (1,))


@pytest.mark.parametrize(("kind", "hint"), [(tb.Link, "Chain$"), (tb.ChainList, "append"), (tb.Sequential, "append")])
def test_links_that_would_not_be_registered_are_refused(kind, hint) -> None:
    link = kind()
    with pytest.raises(TypeError, match=rf"{kind.__name__}: a link as the attribute 'inner'[\s\S]*Linear[\s\S]*{hint}"):
        with link.init_scope():
            link.inner = L.Linear(2, 2)
    assert not hasattr(link, "inner") and not link.within_init_scope
    link.inner = L.Linear(2, 2)
    assert not list(link.params())


def test_what_is_set_in_the_place_of_a_parameter_or_link_is_what_is_trained_and_saved() -> None:
    model = network(None)
    model.l1.W = tb.Parameter(1.0, (8, 5))
    model.l1.b = None
    model.l2 = L.Linear(8, 4)
    trained = dict(model.namedparams())
    assert list(trained) == ["/l1/W", "/l2/W", "/l2/b"] and model.l2.name == "l2"
    assert trained["/l1/W"] is model.l1.W and trained["/l2/W"] is model.l2.W
    with model.init_scope():
        model.l1, model.l2 = tb.Parameter(1.0, (2,)), L.Linear(2, 2).forward
    assert [path for path, _ in model.namedparams()] == ["/l1"] and not list(model.children())
    with model.init_scope():
        model.l1 = L.Linear(1, 1, nobias=True)
    assert [path for path, _ in model.namedparams()] == ["/l1/W"]


def test_a_parameter_at_two_places_is_changed_once_a_step(be, array) -> None:
    model = tb.Chain(first=L.Linear(3, 3, nobias=True), second=L.Linear(3, 3, nobias=True)).to_device(be)
    model.second.W = model.first.W
    optimizer = optimizers.SGD(lr=1.0).setup(model)
    optimizer.set_loss_scale(4.0)
    optimizer.add_hook(optimizers.GradientClipping(1.5))
    before = arrays.to_cpu(model.first.W.array).copy()
    model.first.W.grad = array(np.full((3, 3), 4.0))  # of length 3 without the scale
    optimizer.update()
    testing.assert_allclose(before - arrays.to_cpu(model.first.W.array), np.full((3, 3), 0.5))
    assert model.count_params() == 9 and [path for path, _ in model.namedparams()] == ["/first/W", "/second/W"]
    model.addgrads(model)
    testing.assert_allclose(model.first.W.grad, np.full((3, 3), 1.0))
    apart = tb.Chain(first=L.Linear(3, 3, nobias=True), second=L.Linear(3, 3, nobias=True)).to_device(be)
    apart.first.W.grad, apart.second.W.grad = array(np.full((3, 3), 2.0)), array(np.full((3, 3), 4.0))
    model.addgrads(apart)
    testing.assert_allclose(model.first.W.grad, np.full((3, 3), 7.0))


def test_uninitialized_parameters(be) -> None:
    p = tb.Parameter()
    p.cleargrad()
    p.to_device(be)
    assert not p.is_initialized and p.dtype == np.float32
    with pytest.raises(RuntimeError, match="initialize"):
        p.shape  # noqa: B018
    p.initialize((30, 40))
    assert p.device is be and p.grad is None
    assert 0.8 < arrays.to_cpu(p.array).std() * np.sqrt(40) < 1.2


@pytest.mark.parametrize("device", ["cpu", np, np.ones(2)], ids=["name", "module", "array"])
def test_what_is_no_backend_is_no_device(device) -> None:
    link = L.Linear(2, 3)
    for move in (link.to_device, link.W.to_device, tb.Variable(np.ones(2)).to_device,
                 lambda device: tb.to_device(device, np.ones(2))):  # fmt: skip
        with pytest.raises(TypeError, match="to_device: device\n.*\n  expected  a backend, or None for NumPy"):
            move(device)
    assert link.device is None and link.W.device is None


@pytest.mark.parametrize("target", [None, [L.Linear(2, 3)]], ids=["none", "list"])
def test_what_has_no_parameters_is_no_target(target) -> None:
    with pytest.raises(TypeError, match=r"setup\n.*\n  expected  a link"):
        optimizers.SGD().setup(target)


@pytest.mark.parametrize(("hook", "given"), [
    (optimizers.GradientClipping, (-1.0,)), (optimizers.GradientClipping, (float("nan"),)),
    (optimizers.GradientHardClipping, (1.0, -1.0)), (optimizers.GradientNoise, (-0.5,)),
])  # fmt: skip
def test_bounds_of_hooks_that_make_no_sense_are_refused(hook, given) -> None:
    with pytest.raises(ValueError, match=rf"{hook.__name__}: [\s\S]*{given[-1]}"):
        hook(*given)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("method", "name", "wrong"), [
    (optimizers.SGD, "lr", NAN), (optimizers.SGD, "lr", -0.1), (optimizers.SGD, "lr", np.float32(np.inf)),
    (optimizers.MomentumSGD, "momentum", 1.5), (optimizers.NesterovAG, "momentum", -0.5),
    (optimizers.AdaGrad, "eps", -1), (optimizers.RMSprop, "alpha", NAN), (optimizers.AdaDelta, "rho", 2),
    (optimizers.AdaDelta, "eps", INF),
    *((method, name, wrong) for method in (optimizers.Adam, optimizers.AdamW) for name, wrong in {
        "alpha": -1, "beta1": 1, "beta2": 2, "eps": -1e-8, "eta": NAN, "weight_decay_rate": INF}.items()),
])  # fmt: skip
def test_numbers_of_methods_that_make_no_sense_are_refused_whenever_they_are_set(method, name, wrong) -> None:
    optimizer = method().setup(L.Linear(2, 3))
    before = optimizer.hyperparam.get_dict()
    rule = optimizer.target.W.update_rule.hyperparam
    text = rf"{method.__name__}: {name}\n  given .*\n  expected  0 "
    with pytest.raises(ValueError, match=text):
        method(**{name: wrong})
    for holder in (optimizer, optimizer.hyperparam, rule):
        with pytest.raises(ValueError, match=text):
            setattr(holder, name, wrong)
    with pytest.raises(TypeError, match=rf"{name}\n  given     str\n  expected  a number"):
        setattr(optimizer, name, "0.1")
    assert optimizer.hyperparam.get_dict() == rule.get_dict() == before
    setattr(copy.deepcopy(optimizer), name, np.float32(0.5))


@pytest.mark.parametrize("scale", [0, -2.0, NAN, INF])
def test_scales_of_losses_that_make_no_sense_are_refused(scale) -> None:
    optimizer = optimizers.SGD()
    by_name, by_attribute = lambda x: optimizer.loss_scaling(scale=x), lambda x: setattr(optimizer, "loss_scale", x)
    for refused in (optimizer.set_loss_scale, by_name, by_attribute):
        with pytest.raises(ValueError, match="loss_scale"):
            refused(scale)
    with pytest.raises(ValueError, match="loss_scaling: interval"):
        optimizer.loss_scaling(1024.0)
    assert optimizer.loss_scale is None


def test_bounds_of_hooks_are_checked_when_they_are_set() -> None:
    for hook, name in ((optimizers.WeightDecay(0.1), "rate"), (optimizers.Lasso(0.1), "rate"),
                       (optimizers.GradientClipping(1), "threshold"), (optimizers.GradientNoise(0.1), "eta"),
                       (optimizers.GradientLARS(), "weight_decay")):  # fmt: skip
        for wrong in (-1, NAN):
            with pytest.raises(ValueError, match=name):
                setattr(hook, name, wrong)
    hook, optimizer = optimizers.GradientHardClipping(-1, 1), optimizers.SGD().setup(L.Linear(2, 3))
    hook.upper_bound = -2
    with pytest.raises(ValueError, match="bounds"):
        hook(optimizer)


@pytest.mark.parametrize("make", [
    lambda n: tb.Parameter(1.0, (3, n)), lambda n: tb.Parameter(1.0, n), lambda n: tb.Parameter().initialize((3, n)),
    lambda n: L.Linear(3, n), lambda n: L.Linear(None, n), lambda n: L.Convolution2D(1, n, 3), L.BatchNormalization,
])  # fmt: skip
def test_lengths_that_are_none_are_refused(make) -> None:
    for length in (2.5, "2"):
        with pytest.raises(TypeError, match=rf"shape: lengths must be integers[\s\S]*{length!r}"):
            make(length)
    with pytest.raises(tb.ShapeError, match=r"shape: a negative length[\s\S]*-2"):
        make(-2)


def test_a_file_that_cannot_be_written_stays_what_it_was(tmp_path, monkeypatch) -> None:
    path = tmp_path / "link.npz"
    serializers.save_npz(path, L.Linear(2, 2))
    before = path.read_bytes()

    def full(file, array, allow_pickle) -> None:
        file.write(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(OSError, match="no space left"):
        serializers.save_npz(path, L.Linear(2, 2))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_saving_what_is_not_initialized() -> None:
    file = io.BytesIO()
    serializers.save_npz(file, MLP())
    loaded = MLP()
    serializers.load_npz(io.BytesIO(file.getvalue()), loaded)
    assert not loaded.l1.W.is_initialized
    file = io.BytesIO()
    serializers.save_npz(file, network(None))
    serializers.load_npz(io.BytesIO(file.getvalue()), loaded)
    assert (loaded.l1.W.array == network(None).l1.W.array).all()
    with pytest.raises(KeyError, match="conv/W"):
        serializers.load_npz(io.BytesIO(file.getvalue()), tb.Chain(conv=L.Linear(2, 2)))
    serializers.load_npz(io.BytesIO(file.getvalue()), tb.Chain(conv=L.Linear(2, 2)), strict=False)


def test_sequences(be, array) -> None:
    layers = tb.Sequential(L.Linear(5, 4), F.tanh, lambda y: (y, y), lambda a, b: a + b, L.Linear(4, 2)).to_device(be)
    assert layers(array(X)).shape == (16, 2) and len(layers) == 5
    assert layers.count_by_layer_type("Linear") == 2
    assert len(layers[1:3]) == 2 and isinstance(layers[:2], tb.Sequential)
    assert [path for path, _ in layers.namedparams()] == ["/0/W", "/0/b", "/4/W", "/4/b"]
    nested = tb.Sequential(layers, F.relu)
    assert len(nested.flatten()) == 6 and len(layers + nested) == 7
    layers.remove_by_layer_type("tanh")
    assert len(layers) == 4 and len(layers.repeat(2)) == 8
    layers.insert(0, F.identity)
    assert layers.pop(0) is F.identity
    links = tb.ChainList(L.Linear(1, 1), L.Linear(1, 2))
    links.append(L.Linear(2, 2))
    del links[0]
    assert len(links) == 2 and [path for path, _ in links.namedparams()] == ["/0/W", "/0/b", "/1/W", "/1/b"]
    with pytest.raises(TypeError, match="Link"):
        links.append(3)


def test_link_of_an_elementwise_product(be, array) -> None:
    class Product(tb.Link):
        def __init__(self, size: int) -> None:
            super().__init__()
            with self.init_scope():
                self.W = tb.Parameter(initializers.Normal(1.0), (size,))

        def forward(self, x):
            return self.W * x

    link = Product(5).to_device(be)
    y = F.sum(link(array(X)))
    y.backward()
    testing.assert_allclose(link.W.grad, X.sum(0))


def test_gru_and_maxout_and_scale(be, array) -> None:
    gru = L.GRU(5, 4).to_device(be)
    maxout = L.Maxout(None, 3, 2).to_device(be)
    scale, bias = L.Scale(1, (5,), True).to_device(be), L.Bias(1, (5,)).to_device(be)
    x = array(X)
    assert gru(x).shape == (16, 4) and gru(x).shape == (16, 4)
    assert maxout(x).shape == (16, 3)
    testing.assert_allclose(bias(scale(x)), X)
    gru.reset_state()
    assert gru.h is None


@pytest.mark.parametrize("link", [L.Scale, L.Bias])
def test_what_is_aligned_to_axes_may_count_them_from_the_end(link) -> None:
    x, w = np.ones((2, 3, 4), np.float32), np.arange(12, dtype=np.float32).reshape(3, 4)
    made = link(-2, w.shape)
    next(made.params()).array[:] = w
    testing.assert_allclose(made(x), x * w if link is L.Scale else x + w)
    for axis, shape in ((3, (4,)), (2, (3, 4))):
        with pytest.raises(ShapeError if axis == 3 else ValueError, match=f"{link.__name__.lower()}: "):
            link(axis, shape)(x)


def test_classifier(be, array) -> None:
    model = L.Classifier(network(be), compute_accuracy=False)
    loss = model(array(X), array(T, np.int32))
    assert loss is model.loss and model.y.shape == (16, 3) and model.accuracy is None
    testing.assert_allclose(loss, transcription(1)[0])


def test_a_classifier_computes_no_accuracy_without_a_function_of_it(be, array) -> None:
    without, by_default = L.Classifier(network(be), accfun=None), L.Classifier(network(be))
    for model in (without, by_default):
        model(array(X), array(T, np.int32))
    assert without.accuracy is None and by_default.accfun is F.accuracy and by_default.accuracy.shape == ()


# Initializers


@pytest.mark.parametrize(
    ("initializer", "deviation"),
    [
        (initializers.Normal(0.5), 0.5),
        (initializers.Uniform(0.5), 0.5 / np.sqrt(3)),
        (initializers.LeCunNormal(2.0), 2 / np.sqrt(120)),
        (initializers.LeCunUniform(), 1 / np.sqrt(120)),
        (initializers.GlorotNormal(), np.sqrt(2 / 220)),
        (initializers.GlorotUniform(), np.sqrt(2 / 220)),
        (initializers.HeNormal(), np.sqrt(2 / 120)),
        (initializers.HeUniform(fan_option="fan_out"), np.sqrt(2 / 100)),
    ],
)
def test_initializers_have_their_deviation(initializer, deviation, array, host) -> None:
    x = array(np.zeros((50, 60, 2)))
    initializer(x)
    values = host(x)
    assert abs(values.std() / deviation - 1) < 0.06 and abs(values.mean()) < 4 * deviation / np.sqrt(values.size)
    if isinstance(initializer, initializers.Uniform):
        assert np.abs(values).max() <= deviation * np.sqrt(3) * 1.0001


@pytest.mark.parametrize(
    "values", [[1.0, 2.0, 3.0], [[1.0], [2.0]], 4.0, np.ones((2, 3)), [[[5.0]]], np.arange(6.0).reshape(3, 2)]
)
def test_an_array_is_broadcast_to_what_it_fills(values, be, array, host) -> None:
    values = np.array(values)
    for given in (values, array(values)):
        link = tb.Link().to_device(be)
        if values.ndim > 2 or values.shape[:1] == (3,) and values.ndim == 2:
            wrong = re.escape(str(values.shape))
            with pytest.raises(ShapeError, match=rf"Constant: fill_value\n.*{wrong}\n.*\(2, 3\)"):
                link.add_param("W", (2, 3), initializer=initializers.Constant(given))
            continue
        link.add_param("W", (2, 3), initializer=initializers.Constant(given))
        np.testing.assert_array_equal(host(link.W), np.broadcast_to(values, (2, 3)))


def test_arrays_of_outputs_and_maps_fill_a_maxout() -> None:
    weights, bias = np.arange(24.0).reshape(2, 3, 4), np.arange(6.0).reshape(2, 3)
    link = L.Maxout(4, 2, 3, weights, bias)
    x = np.array([[1.0, -2.0, 0.5, 3.0]], np.float32)
    np.testing.assert_array_equal(link(x).array, (weights @ x[0] + bias).max(1)[None])
    same = L.Maxout(4, 2, 3, weights.reshape(6, 4), bias.reshape(6))
    np.testing.assert_array_equal(link.W.array, same.W.array)
    np.testing.assert_array_equal(link.b.array, same.b.array)


def test_an_array_that_a_link_takes_over_is_its_own(be, array, host) -> None:
    def holding(value: Any) -> tb.Link:
        link = tb.Link()
        link.add_persistent("held", value)
        return link

    other = holding(np.arange(3.0)).to_device(be)
    for before in (None, 5.0):
        for device in (be, None):
            link = holding(before).to_device(device)
            link.copyparams(other)
            assert host(link.held).tolist() == [0, 1, 2] and arrays.backend_of(arrays.plain(link.held)) is device
            link.held[:] = 7
            assert host(other.held).tolist() == [0, 1, 2]


def test_a_dictionary_keeps_what_was_saved(be, array, host) -> None:
    link = tb.Chain(a=L.BatchNormalization(3), b=L.Linear(3, 2)).to_device(be)
    wanted = {path: host(p).copy() for path, p in link.namedparams()}
    stored = serializers.DictionarySerializer().save(link)
    for x in (*(p.array for p in link.params()), link.a.avg_mean):
        x[...] = 7
    serializers.NpzDeserializer(stored).load(link)
    for path, p in link.namedparams():
        np.testing.assert_array_equal(host(p), wanted[path])
    assert not host(link.a.avg_mean).any()


def test_links_loaded_from_one_dictionary_share_nothing() -> None:
    stored = {"held": np.arange(3.0)}
    links = [tb.Link(), tb.Link()]
    for link in links:
        link.add_persistent("held", None)
        serializers.NpzDeserializer(stored).load(link)
    links[0].held[:] = 7
    assert links[1].held.tolist() == stored["held"].tolist() == [0, 1, 2]


def test_a_column_fills_a_vector() -> None:
    column = testing.make_backend("interpreter").array([1.0, 2.0])
    assert column.shape == (2, 1)
    np.testing.assert_array_equal(L.Linear(3, 2, initial_bias=column).b.array, [1, 2])


def test_initializers_of_fixed_values(array, host) -> None:
    x = array(np.zeros((3, 3)))
    for initializer, expected in (
        (initializers.Constant(2), np.full((3, 3), 2)), (initializers.Zero(), np.zeros((3, 3))),
        (initializers.One(), np.ones((3, 3))), (initializers.Identity(3), 3 * np.eye(3)),
        (initializers.NaN(), np.full((3, 3), np.nan)), (initializers.Constant(np.arange(9.0).reshape(3, 3)),
                                                        np.arange(9.0).reshape(3, 3)),
    ):  # fmt: skip
        initializer(x)
        np.testing.assert_array_equal(host(x), expected)
    for shape in ((5, 3), (3, 5)):
        q = array(np.zeros(shape))
        initializers.Orthogonal(1.0)(q)
        m = host(q) if shape[0] > shape[1] else host(q).T
        testing.assert_allclose(m.T @ m, np.eye(3))


def test_numbers_of_a_captured_function_may_change(be, array) -> None:
    if be is None:
        pytest.skip("programs are of tensors")

    def step(x, scale):
        v = tb.Variable(x)
        F.sum(F.tanh(v * scale) * (2 * scale)).backward()
        return v._grad

    x = array(X)
    program = be.capture(step, x, 0.5)
    for scale in (0.25, 3.0):
        expected = 2 * scale * scale * (1 - np.tanh(X * scale) ** 2)
        testing.assert_allclose(program(x, scale), expected)


def test_parameters_follow_from_the_seed_of_the_global_backend() -> None:
    made = []
    for seed in (3, 4, 3):
        tb.gen_backend("cpu", rng_seed=seed)
        made.append(L.Linear(4, 4).W.array)
    tb.cleanup_backend()
    assert (made[0] == made[2]).all() and (made[0] != made[1]).any()


def test_parameters_follow_from_a_new_seed_of_the_global_backend() -> None:
    """As two runs in one process, each begun by a seed, are compared."""
    be, other = tb.gen_backend("cpu", rng_seed=3), tb.Backend.allocate_backend("cpu")
    made = []
    for seed, again in ((3, be.gen_rng), (4, be.gen_rng), (3, be.xp.random.seed), (4, other.gen_rng)):
        again(seed)
        made.append(L.Linear(4, 4).W.array)
    tb.cleanup_backend()
    other.cleanup_backend()
    assert (made[0] == made[2]).all() and (made[0] != made[1]).any()
    assert (made[3] != made[1]).any()  # another backend's seed is its own
