# SPDX-License-Identifier: Apache-2.0
"""Links for the functions with parameters: what they compute, what they learn, what they keep."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
import tensorbackend.links as L
from tensorbackend import gradient_check, optimizers, serializers, testing
from tensorbackend.errors import DTypeError, ShapeError
from tensorbackend.function import arrays

IMAGES = np.random.RandomState(0).normal(size=(2, 4, 6, 5)).astype(np.float32)
ROWS = np.random.RandomState(1).normal(size=(8, 6)).astype(np.float32)


def learns(link: Any, *inputs: Any) -> None:
    """Every parameter of a link gets a gradient, and a step changes it."""
    optimizer = optimizers.SGD(0.5).setup(link)
    y = link(*inputs)
    link.cleargrads()
    F.sum(F.square(y)).backward()
    before = [arrays.to_cpu(p.array).copy() for p in link.params()]
    optimizer.update()
    assert before and all((arrays.to_cpu(p.array) != b).any() for p, b in zip(link.params(), before))


@pytest.mark.parametrize(("make", "wrong", "right"), [
    (lambda: L.Linear(2), (6,), (8, 6)), (lambda: L.Linear(None, 2), (), (8, 6)),
    (lambda: L.Maxout(None, 2, 3), (6,), (8, 6)), (lambda: L.LayerNormalization(), (6,), (8, 6)),
    (lambda: L.LayerNormalization(), (8, 2, 3), (8, 6)), (lambda: L.LSTM(2), (6,), (8, 6)),
    (lambda: L.Convolution2D(None, 4, 3), (3, 8, 8), (1, 3, 8, 8)),
    (lambda: L.Convolution2D(None, 4, 3), (8,), (1, 3, 8, 8)),
    (lambda: L.Deconvolution2D(None, 4, 3), (3, 8, 8), (1, 3, 8, 8)),
])  # fmt: skip
def test_a_first_call_that_is_refused_leaves_sizes_open(make, wrong, right) -> None:
    link = make()
    with pytest.raises(ShapeError, match=f": x\n.*shape {re.escape(str(wrong))}|: images\n.*"):
        link(np.ones(wrong, np.float32))
    assert link(np.ones(right, np.float32)).shape[0] == right[0]


def test_convolution(be, array) -> None:
    x = array(IMAGES)
    link = L.Convolution2D(None, 6, 3, stride=2, pad=1, groups=2).to_device(be)
    y = link(x)
    assert link.W.shape == (6, 2, 3, 3) and link.b.shape == (6,) and y.shape == (2, 6, 3, 3)
    testing.assert_allclose(y, F.convolution_2d(x, link.W, link.b, 2, 1, groups=2))
    learns(link, x)
    assert [name for name, _ in L.Convolution2D(4, 2, (3, 1), nobias=True).namedparams()] == ["/W"]


def test_deconvolution(be, array) -> None:
    x = array(IMAGES)
    link = L.Deconvolution2D(4, 3, 3, stride=2).to_device(be)
    assert link.W.shape == (4, 3, 3, 3)
    testing.assert_allclose(link(x), F.deconvolution_2d(x, link.W, link.b, 2))
    learns(link, x)


def test_batch_normalization_keeps_running_statistics(be, array) -> None:
    x = array(IMAGES)
    link = L.BatchNormalization(4).to_device(be)
    y = link(x)
    mean, var = IMAGES.mean((0, 2, 3)), IMAGES.var((0, 2, 3))
    testing.assert_allclose(y, (IMAGES - mean[:, None, None]) / np.sqrt(var[:, None, None] + 2e-5), atol=1e-4)
    testing.assert_allclose(link.avg_mean, 0.1 * mean)
    testing.assert_allclose(link.avg_var, 0.9 + 0.1 * var * 60 / 59)
    learned, unbiased = arrays.to_cpu(link.avg_mean).copy(), arrays.to_cpu(link.avg_var).copy()
    with tb.using_config("train", False):
        y = link(x)
    expected = (IMAGES - learned[:, None, None]) / np.sqrt(unbiased[:, None, None] + 2e-5)
    testing.assert_allclose(y, expected, atol=1e-4)
    testing.assert_allclose(link.avg_mean, learned)
    link.start_finetuning()
    with pytest.raises(TypeError, match="invalid inputs"):
        link(x[:, :3], finetune=True)
    assert link.N == 0
    link(x, finetune=True)
    testing.assert_allclose(link.avg_mean, mean)
    assert link.N == 1
    file = io.BytesIO()
    serializers.save_npz(file, link)
    other = L.BatchNormalization(4).to_device(be)
    serializers.load_npz(io.BytesIO(file.getvalue()), other)
    testing.assert_allclose(other.avg_mean, mean)
    assert other.N == 1
    learns(link, x)
    plain = L.BatchNormalization(4, use_gamma=False, use_beta=False).to_device(be)
    testing.assert_allclose(plain(x), L.BatchNormalization(4).to_device(be)(x), atol=1e-5)


def test_batch_normalization_of_several_axes(be, array) -> None:
    link = L.BatchNormalization((4, 6)).to_device(be)
    y = link(array(IMAGES))
    mean, var = IMAGES.mean((0, 3)), IMAGES.var((0, 3))
    testing.assert_allclose(y, (IMAGES - mean[..., None]) / np.sqrt(var[..., None] + 2e-5), atol=1e-4)
    testing.assert_allclose(link.avg_mean, 0.1 * mean)
    with tb.using_config("train", False):
        y = link(array(IMAGES))
    running = [arrays.to_cpu(x)[..., None] for x in (link.avg_mean, link.avg_var)]
    testing.assert_allclose(y, (IMAGES - running[0]) / np.sqrt(running[1] + 2e-5), atol=1e-4)


@pytest.mark.parametrize("dtype", ["int32", "text"])
def test_batch_normalization_is_of_floats(dtype) -> None:
    with pytest.raises(TypeError, match="^dtype: not a"):
        L.BatchNormalization(3, dtype=dtype)


def test_layer_normalization(be, array) -> None:
    link = L.LayerNormalization().to_device(be)
    y = link(array(ROWS))
    away = ROWS - ROWS.mean(1, keepdims=True)
    testing.assert_allclose(y, away / np.sqrt((away**2).mean(1, keepdims=True) + 1e-6), atol=1e-4)
    learns(link, array(ROWS))


@pytest.mark.parametrize("shape", [(), (4,)])
def test_prelu(shape, be, array) -> None:
    link = L.PReLU(shape).to_device(be)
    testing.assert_allclose(link(array(IMAGES)), np.where(IMAGES >= 0, IMAGES, 0.25 * IMAGES))
    learns(link, array(IMAGES))


def test_embedding(be, array) -> None:
    link = L.EmbedID(5, 3, ignore_label=-1).to_device(be)
    places = np.array([[0, 4], [-1, 4]], np.int32)
    table = arrays.to_cpu(link.W.array)
    testing.assert_allclose(link(array(places, np.int32)), np.where(places[..., None] < 0, 0, table[places]))
    learns(link, array(places, np.int32))


def test_an_embedding_that_ignores_is_captured(be, array) -> None:
    """Which places are ignored follows from each call's words, which the host does not see."""
    if be is None:
        pytest.skip("programs are of tensors")
    link = L.EmbedID(5, 3, ignore_label=-1).to_device(be)
    program = be.capture(lambda x: link(x).array, array(np.array([[0, -1, 4]]), np.int32))
    places = np.array([[-1, 3, 3]])
    expected = np.where(places[..., None] < 0, 0, arrays.to_cpu(link.W.array)[places])
    testing.assert_allclose(program(array(places, np.int32)), expected)


def test_a_state_of_ones_own_goes_on_in_a_program(be, array) -> None:
    """As docs/capture.md has it: that of the link is replaced in each call."""
    if be is None:
        pytest.skip("programs are of tensors")
    link = L.GRU(3, 2).to_device(be)
    plain, h = link.copy("copy"), array(np.zeros((4, 2)))

    def step(x: Any) -> None:
        link.set_state(h)
        h[:] = link(x).array

    inputs = [array(np.full((4, 3), k)) for k in range(3)]
    program = be.capture(step, inputs[0])
    for x in inputs[1:]:
        program(x)
    for x in inputs:
        plain(x)
    np.testing.assert_array_equal(h.get(), plain.h.array.get())


def test_bilinear(be, array) -> None:
    for nobias in (False, True):
        link = L.Bilinear(6, 6, 2, nobias=nobias).to_device(be)
        w = {name: arrays.to_cpu(p.array) for name, p in link.namedparams()}
        expected = np.einsum("ij,ik,jkl->il", ROWS, ROWS, w["/W"])
        if not nobias:
            expected = expected + ROWS @ w["/V1"] + ROWS @ w["/V2"] + w["/b"]
        testing.assert_allclose(link(array(ROWS), array(ROWS)), expected, atol=1e-4)
        learns(link, array(ROWS), array(ROWS))


def test_negative_sampling(be, array) -> None:
    link = L.NegativeSampling(6, [1, 0, 3, 8], 2).to_device(be)
    drawn = link.sampler((2000,))
    assert set(drawn.tolist()) == {0, 2, 3}
    shares = np.array([1, 0, 3, 8]) ** 0.75
    assert np.abs(np.bincount(drawn, minlength=4) / 2000 - shares / shares.sum()).max() < 0.05
    loss = link(array(ROWS), array(np.arange(8) % 4, np.int32))
    testing.assert_allclose(loss, 8 * 3 * np.log(2.0))
    loss.backward()
    assert np.abs(arrays.to_cpu(link.W.grad)).max() > 0


def lstm(c: np.ndarray, gates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A step of long short-term memory in NumPy."""
    a, i, f, o = np.moveaxis(gates.reshape(len(gates), -1, 4), 2, 0)
    i, f, o = (1 / (1 + np.exp(-x)) for x in (i, f, o))
    c = np.tanh(a) * i + f * c
    return c, o * np.tanh(c)


def test_lstm(be, array) -> None:
    link = L.LSTM(None, 3).to_device(be)
    link(array(ROWS))
    link.reset_state()
    w = {name: arrays.to_cpu(p.array) for name, p in link.namedparams()}
    c = h = np.zeros((8, 3))
    for _ in range(3):
        c, h = lstm(c, ROWS @ w["/upward/W"].T + w["/upward/b"] + h @ w["/lateral/W"].T)
        testing.assert_allclose(link(array(ROWS)), h, atol=1e-5)
    for made in (link, link.copy("init"), *link.repeat(2)):
        assert arrays.to_cpu(made.upward.b.array).reshape(3, 4).tolist() == [[0.0, 0.0, 1.0, 0.0]] * 3
    learns(link, array(ROWS))
    stateless = L.StatelessLSTM(6, 3).to_device(be)
    assert [y.shape for y in stateless(None, None, array(ROWS))] == [(8, 3)] * 2


def test_states_of_sequences_that_have_ended_stay(be, array) -> None:
    link, alone = (L.LSTM(6, 3).to_device(be) for _ in range(2))
    alone.copyparams(link)
    first = link(array(ROWS))
    for n in (5, 2, 0):
        assert link(array(ROWS[:n])).shape == (n, 3) and link.c.shape == link.h.shape == (8, 3)
    testing.assert_allclose(arrays.to_cpu(link.h.array)[5:], arrays.to_cpu(first.array)[5:])
    for _ in range(3):
        last = alone(array(ROWS[:2]))
    testing.assert_allclose(arrays.to_cpu(link.h.array)[:2], last, atol=1e-6)
    F.sum(link.h).backward()
    link.reset_state()
    assert link.c is link.h is None and np.isfinite(arrays.to_cpu(link.lateral.W.grad)).all()


@pytest.mark.parametrize("kind", [L.LSTM, L.GRU])
def test_states_move_with_the_link(kind, be, array) -> None:
    stays, moves = tb.ChainList(kind(6, 3)), tb.ChainList(kind(6, 3))
    moves.copyparams(stays)
    for link in (stays, moves):
        link[0](ROWS)
        link[0](ROWS)
    before = moves[0].h
    moves.to_device(be)
    assert moves[0].h.device is be and (moves[0].h is before) == (be is None)
    testing.assert_allclose(moves[0](array(ROWS)), stays[0](ROWS).array, atol=1e-5)
    moves.to_cpu()
    y = moves[0](ROWS)
    assert y.device is None
    testing.assert_allclose(y, stays[0](ROWS).array, atol=1e-5)
    moves[0].reset_state()
    assert moves.to_device(be)[0].h is None


@pytest.mark.slow
def test_gaussian_mixture_head(be, array) -> None:
    link = L.GaussianMixture2D(6, 4).to_device(be)
    targets = array(ROWS[:, :1]), array(ROWS[:, 1:2])
    losses = []
    optimizer = optimizers.Adam(0.05).setup(link)
    for _ in range(15):
        optimizer.update(lambda: losses.append(link(array(ROWS), *targets, reduce="mean")) or losses[-1])
    assert losses[-1].item() < losses[0].item()


def test_a_convnet_trains(be, array) -> None:
    class Net(tb.Chain):
        def __init__(self) -> None:
            super().__init__()
            with self.init_scope():
                self.conv = L.Convolution2D(None, 4, 3, pad=1)
                self.bn = L.BatchNormalization(4)
                self.out = L.Linear(None, 3)

        def forward(self, x):
            return self.out(F.max_pooling_2d(F.relu(self.bn(self.conv(x))), 2))

    model = L.Classifier(Net()).to_device(be)
    optimizer = optimizers.MomentumSGD(0.05).setup(model)
    optimizer.add_hook(optimizers.WeightDecay(1e-4))
    x, t = array(IMAGES), array([0, 2], np.int32)
    model(x, t)
    optimizer.setup(model)
    losses = []
    for _ in range(10):
        optimizer.update(model, x, t)
        losses.append(model.loss.item())
    assert losses[-1] < 0.5 * losses[0] and float(arrays.to_cpu(model.accuracy.array)) == 1.0
    assert [path for path, _ in model.namedparams()][0] == "/predictor/bn/beta"


def n_step(kind: str, x: np.ndarray, h: np.ndarray, c: np.ndarray, w: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    """A step of one sequence in NumPy: the next h and c."""
    half = len(w) // 2
    u, v = [x @ p.T + q for p, q in zip(w[:half], b)], [h @ p.T + q for p, q in zip(w[half:], b[half:])]
    if "LSTM" in kind:
        i, f, a, o = (p + q for p, q in zip(u, v))
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(a)
        return sigmoid(o) * np.tanh(c), c
    if "GRU" in kind:
        z = sigmoid(u[1] + v[1])
        return (1 - z) * np.tanh(u[2] + sigmoid(u[0] + v[0]) * v[2]) + z * h, c
    return (np.tanh(u[0] + v[0]) if "Tanh" in kind else np.maximum(u[0] + v[0], 0)), c


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def n_steps(kind: str, x: np.ndarray, h: np.ndarray, c: np.ndarray, ws: Any, bs: Any) -> tuple[Any, Any, np.ndarray]:
    """All layers over one sequence in NumPy: the last states of each, and the outputs."""
    directions, last = 1 + ("Bi" in kind), []
    for layer in range(len(ws) // directions):
        found = []
        for way in range(directions):
            k, outputs = layer * directions + way, []
            state = h[k], c[k]
            for row in x[::-1] if way else x:
                state = n_step(kind, row, *state, ws[k], bs[k])
                outputs.append(state[0])
            last.append(state)
            found.append(np.reshape(outputs[::-1] if way else outputs, (len(x), h.shape[1])))
        x = np.concatenate(found, 1)
    return *(np.array(part) for part in zip(*last)), x


N_STEPS = [f"NStep{way}{unit}" for unit in ("LSTM", "GRU", "RNNTanh", "RNNReLU") for way in ("", "Bi")]
LENGTHS = 2, 4, 0, 3


def sequences(lengths: Any = LENGTHS, width: int = 3) -> list[np.ndarray]:
    random = np.random.RandomState(7)
    return [random.normal(size=(n, width)) for n in lengths]


def made_n_step(kind: str, in_size: int | None = 3, **others: Any) -> Any:
    """Two layers with numbers in the biases too."""
    return getattr(L, kind)(2, in_size, 2, 0.0, initial_bias=tb.initializers.Normal(0.5), **others)


@pytest.mark.parametrize("kind", N_STEPS)
def test_layers_over_sequences_agree_with_loops_in_numpy(kind, be, array, host) -> None:
    with tb.using_config("dtype", np.float64):
        link = made_n_step(kind).to_device(be)
    xs, states, layers = sequences(), 1 + ("LSTM" in kind), len(link)
    assert layers == 2 * (1 + ("Bi" in kind)) and [p.shape for p in link.ws[0]][0] == (2, 3)
    ws, bs = [[[host(p) for p in row] for row in rows] for rows in (link.ws, link.bs)]
    before = np.random.RandomState(8).normal(size=(2, layers, len(xs), 2))
    for given in (before, 0 * before):
        passed = [array(s, np.float64) if s.any() else None for s in given[:states]]
        *last, ys = link(*passed, [array(x, np.float64) for x in xs])
        expected = [n_steps(kind, x, given[0][:, i], given[1][:, i], ws, bs) for i, x in enumerate(xs)]
        for y, (*_, out) in zip(ys, expected, strict=True):
            assert y.shape == out.shape and y.dtype == np.float64
            np.testing.assert_allclose(host(y), out, 1e-12, 1e-14)
        for place, y in enumerate(last):
            np.testing.assert_allclose(host(y), np.stack([e[place] for e in expected], 1), 1e-12, 1e-14)


FUNCTIONS = {"RNNTanh": "rnn", "RNNReLU": "rnn"}


@pytest.mark.parametrize("kind", N_STEPS)
def test_layers_over_sequences_are_the_functions(kind) -> None:
    link, xs = made_n_step(kind), [x.astype(np.float32) for x in sequences((4, 3, 1))]
    unit = kind.removeprefix("NStep").removeprefix("Bi")
    function = getattr(F, f"n_step_{'bi' if 'Bi' in kind else ''}{FUNCTIONS.get(unit, unit.lower())}")
    states = [np.full((len(link), 3, 2), 0.5, np.float32)] * (1 + (unit == "LSTM"))
    keywords = {"activation": "relu"} if unit == "RNNReLU" else {}
    found, expected = link(*states, xs), function(2, 0.0, *states, link.ws, link.bs, xs, **keywords)
    assert len(found) == len(expected) == len(states) + 1
    for a, b in zip([*found[:-1], *found[-1]], [*expected[:-1], *expected[-1]], strict=True):
        assert np.array_equal(a.array, b.array)


def the_n_step(kind: str) -> Any:
    """Always with the same weights: one draw in a thousand has a rectifier turn on between two differences."""
    arrays.host_backend().rng.seed(0)
    np.random.seed(0)
    with tb.using_config("dtype", np.float64):
        return made_n_step(kind)


@pytest.mark.parametrize("kind", N_STEPS)
def test_gradients_of_layers_over_sequences(kind) -> None:
    link = the_n_step(kind)
    xs, states = sequences((1, 2)), 1 + ("LSTM" in kind)
    before = [np.random.RandomState(k).normal(size=(len(link), 2, 2)) for k in range(states)]

    def run(*inputs: Any) -> tuple:
        *last, ys = link(*inputs[:states], inputs[states:])
        return *last, *ys

    starts = [np.random.RandomState(9).normal(size=y.shape) for y in run(*before, *xs)]
    gradient_check.check_backward(run, (*before, *xs), starts, list(link.params()))


@pytest.mark.parametrize("kind", N_STEPS)
@pytest.mark.parametrize("lengths", [pytest.param((2, 2), marks=pytest.mark.slow), (1, 2)])
def test_gradients_of_gradients_of_layers_over_sequences(kind, lengths) -> None:
    link = the_n_step(kind)
    random, states = np.random.RandomState(3), 1 + ("LSTM" in kind)
    inputs = [*(random.normal(size=(len(link), 2, 2)) for _ in range(states)), *sequences(lengths)]

    def run(*inputs: Any) -> tuple:
        *last, ys = link(*inputs[:states], inputs[states:])
        return tuple(y * y for y in (*last, *ys))

    starts = [random.normal(size=y.shape) for y in run(*inputs)]
    directions = [random.normal(size=x.shape) for x in inputs]
    gradient_check.check_double_backward(run, tuple(inputs), starts, directions)


@pytest.mark.parametrize("kind", ["NStepLSTM", "NStepBiGRU"])
@pytest.mark.parametrize("wanted", [0, -1])
def test_layers_over_sequences_go_back_from_one_output(kind, wanted, be, array, host) -> None:
    """From the last states alone, or from the outputs alone; with no gradient where nothing asks for one."""
    with tb.using_config("dtype", np.float64):
        link = made_n_step(kind).to_device(be)
    xs = [array(x, np.float64) for x in sequences((3, 1))]
    states = [None] * (1 + ("LSTM" in kind))
    with tb.using_config("dtype", np.float64):
        found = link(*states, xs)[wanted]
        link.cleargrads()
        loss = sum(F.sum(y) for y in found) if wanted else F.sum(found)
        loss.backward()
    weight, place, step = link[0].w0, (0, 1), 1e-6
    values = []
    for sign in (1, -1):
        moved = host(weight).copy()
        moved[place] += sign * step
        before, weight.array = weight.array, array(moved, np.float64)
        found = link(*states, xs)[wanted]
        values.append(float(host(sum(F.sum(y) for y in found) if wanted else F.sum(found))))
        weight.array = before
    assert abs((values[0] - values[1]) / (2 * step) - host(weight.grad)[place]) < 1e-7


@pytest.mark.parametrize("kind", N_STEPS)
def test_layers_over_sequences_are_copied_and_saved(kind, be, array, host) -> None:
    link, xs = made_n_step(kind, None).to_device(be), [array(x) for x in sequences()]
    assert link.in_size is None
    none = [None] * (1 + ("LSTM" in kind))
    *_, ys = link(*none, xs)
    assert link.in_size == 3 and all(p.is_initialized for p in link.params())
    file = io.BytesIO()
    serializers.save_npz(file, link)
    loaded = made_n_step(kind, None).to_device(be)
    serializers.load_npz(io.BytesIO(file.getvalue()), loaded)
    for other in (loaded, link.copy("copy"), link.copy()):
        assert other.in_size == 3
        assert [name for name, _ in other.namedparams()] == [name for name, _ in link.namedparams()]
        assert all((host(a) == host(b)).all() for a, b in zip(other(*none, xs)[-1], ys, strict=True))
    link.copy("copy")[0].w0.array.fill(0)
    assert all((host(a) == host(b)).all() for a, b in zip(link(*none, xs)[-1], ys, strict=True))


def test_layers_over_sequences_refuse_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="NStepGRU: dropout\n.*1.5"):
        L.NStepGRU(1, 3, 2, 1.5)
    with pytest.raises(ValueError, match=r"NStepGRU: sequences\n.*\(3,\)"):
        L.NStepGRU(1, None, 2, 0.0)(None, [np.ones(3, np.float32)])
    with pytest.raises(ValueError, match="NStepBiGRU: n_layers\n.*0\n.*1 or more"):
        L.NStepBiGRU(0, 3, 2, 0.0)
    with pytest.raises(ValueError, match="n_step_gru: 1 layers\n.*0, 2"):
        L.NStepGRU(1, 3, 2, 0.0)(np.ones((1, 0, 2), np.float32), [np.ones((1, 3), np.float32)])


def test_links_say_what_they_lack() -> None:
    chain, x = tb.Chain(a=L.Linear(2, 3)), np.ones((2, 3), np.float32)
    for call, error, said in (
        (lambda: chain["b"], KeyError, "'b'\n.*one of a"), (lambda: tb.Chain()["b"], KeyError, "there are no names"),
        (lambda: chain.delete_hook("h"), KeyError, "no such hook"), (lambda: chain.add_hook(3), TypeError, "int"),
        (lambda: L.Scale()(x), TypeError, "Scale: W"), (lambda: L.Bias()(x), TypeError, "Bias: b"),
        (lambda: L.LSTM(None), TypeError, "LSTM: out_size"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            call()


def test_addgrads_refuses_another_type_before_anything_is_changed() -> None:
    mine, other = (tb.Chain(a=L.Linear(2, 3), b=L.Linear(3, 1)) for _ in range(2))
    other.b.W.array = other.b.W.array.astype(np.float64)
    for link in (mine, other):
        for p in link.params():
            p.grad = np.ones_like(p.array)
    with pytest.raises(DTypeError, match="addgrads: W"):
        mine.addgrads(other)
    assert all((p.grad == 1).all() for p in mine.params())


def test_a_link_shows_what_is_inside() -> None:
    layers = tb.Sequential(L.Linear(3, 4), F.relu, tb.ChainList(L.Linear(None, 2, nobias=True)))
    assert repr(L.Classifier(layers)).splitlines() == [
        "<Classifier",
        "  predictor: <Sequential",
        "    0: <Linear W: (4, 3), float32, b: (4,), float32>",
        "    1: relu",
        "    2: <ChainList",
        "      0: <Linear W: uninitialized>>>>",
    ]
    assert repr(tb.Sequential()) == "<Sequential>"
