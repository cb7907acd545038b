# SPDX-License-Identifier: Apache-2.0
"""The digits example: its accuracy, that a seed repeats it, its options, and its layers' gradients."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tensorbackend as tb
from tests.examples.conftest import accuracy_of, same_numbers

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
def test_defaults_reach_98_per_cent(train: Callable) -> None:
    output, curves = train()
    assert accuracy_of(output) >= 98.0
    assert curves.startswith(PNG)


@pytest.mark.parametrize("options", [
    pytest.param("--epochs 5 --hidden 32", marks=pytest.mark.ci), pytest.param("", marks=pytest.mark.long),
])  # fmt: skip
def test_the_emulated_gpu_learns_as_the_cpu(train: Callable, options: str) -> None:
    options = f"{options} --seed 1 --dtype float64"
    same_numbers(*(train(*options.split(), "--backend", name)[0] for name in ("cpu", "gpu:emulator")))


@pytest.mark.slow
def test_a_seed_repeats_a_run_to_the_last_digit_captured_or_not(train: Callable) -> None:
    options = ("--epochs", "5", "--hidden", "32", "--seed", "7")
    runs = [train(*options)[0], train(*options, "--capture")[0]]
    numbers = [re.findall(r"^(?:training|validation|test) +\d\.\d+ .*$", output, re.MULTILINE) for output in runs]
    assert len(numbers[0]) == 3
    assert numbers[0] == numbers[1]
    other = train("--epochs", "5", "--hidden", "32", "--seed", "8")[0]
    assert numbers[0][2] not in other


@pytest.mark.slow
def test_options_choose_optimizer_activation_type_and_backend(train: Callable) -> None:
    training = "--epochs 12 --hidden 64 48 --keep 0.9 --optimizer momentum --rate 0.05 --activation tanh"
    output, _ = train(*training.split(), "--dtype", "float64", "--backend", "cpu")
    assert "64-64-48-10, tanh, momentum, backend cpu, float64" in output
    assert accuracy_of(output) >= 92.0


@pytest.mark.slow
def test_a_rate_at_which_training_runs_away_ends_with_its_costs(train: Callable) -> None:
    output, _ = train("--epochs", "1", "--hidden", "4", "--rate", "1e300")
    assert re.search(r"^test +nan ", output, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_learn(train: Callable, dtype: str) -> None:
    output, _ = train("--epochs", "12", "--hidden", "64", "--dtype", dtype)
    assert accuracy_of(output) >= 85.0  # six seeds of float16 gave 89.2 to 93.1


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [
    "mlp_digits.py --epochs 0", "mlp_digits.py --keep 0", "mlp_digits.py --hidden 8 0", "mlp_digits.py --batch-size 0",
    "cnn_digits.py --maps 0", "char_rnn.py --iterations 0", "char_rnn.py --temperature 0",
    "char_rnn.py --temperature nan", "parallel_digits.py --maps 0", "parallel_digits.py --batch-size 0",
    "parallel_digits.py --seed -1", "parallel_digits.py --backend nosuch", "parallel_digits.py --curve /nowhere/x.json",
    "char_rnn.py --length 0", "mlp_digits.py --dtype int32", "mlp_digits.py --plot x.xyz", "char_rnn.py --plot x",
    "parallel_digits.py --maps 1 1 1 1", "mlp_digits.py --rate nan", "cnn_digits.py --rate -1",
])  # fmt: skip
def test_numbers_that_make_no_sense_are_refused_by_their_option(
    script: Callable, wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In this process: most of the time of each would go into its imports."""
    name, *options = wrong.split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *options])
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert ended.value.code == 2
    assert re.search(f"error: .*{options[0]}", capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["mlp_digits.py --plot", "char_rnn.py --plot", "char_rnn.py --text"])
def test_files_that_cannot_be_are_told_in_a_line_before_training(script: Callable, wrong: str) -> None:
    with pytest.raises(AssertionError, match=Path(__file__).name) as told:
        script(*wrong.split(), f"{__file__}/x.file")
    assert "Traceback" not in str(told.value) and "training" not in str(told.value)


# The layers


@pytest.fixture(scope="module")
def layers() -> ModuleType:
    """examples/layers.py as a module."""
    spec = importlib.util.spec_from_file_location("example_layers", ROOT / "examples" / "layers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def be() -> tb.Backend:
    """A float64 backend with minibatches of 6."""
    made = tb.gen_backend("cpu", rng_seed=3, datatype="float64", batch_size=6)
    yield made
    tb.cleanup_backend()


def numerical_gradient(f: Callable[[np.ndarray], float], x: np.ndarray) -> np.ndarray:
    """Central differences of a function of an array."""
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = 1e-6
        gradient[place] = (f(x + step) - f(x - step)) / 2e-6
    return gradient


@pytest.mark.parametrize("samples", [6, 4])
@pytest.mark.parametrize("name", ["Affine", "Relu", "Tanh", "Dropout", "Convolution", "MaxPooling"])
def test_bprop_is_the_gradient_of_fprop(be: tb.Backend, layers: ModuleType, name: str, samples: int) -> None:
    arguments = {"Dropout": (5, 0.6), "Convolution": (2, 4, 3), "MaxPooling": (2, 4), "Affine": (5, 3)}.get(name, (5,))
    layer = getattr(layers, name)(be, *arguments)
    nin = 32 if name in ("Convolution", "MaxPooling") else 5
    x = np.random.default_rng(1).normal(size=(nin, samples))
    weight = np.random.default_rng(2).normal(size=(layer.nout, samples))
    state = be.rng_get_state()

    def value(z: np.ndarray) -> float:
        be.rng_set_state(state)
        return float((layer.fprop(be.array(z), training=True).get() * weight).sum())

    expected = numerical_gradient(value, x)
    value(x)
    np.testing.assert_allclose(layer.bprop(be.array(weight)).get(), expected, atol=1e-7)


def test_affine_parameter_gradients(be: tb.Backend, layers: ModuleType) -> None:
    layer = layers.Affine(be, 5, 3)
    x = be.array(np.random.default_rng(1).normal(size=(5, 6)))
    dy = be.array(np.random.default_rng(2).normal(size=(3, 6)))
    layer.fprop(x, training=True)
    layer.bprop(dy)
    tree = be.dot(layer.W.value, x) + layer.b.value
    expected = tb.Autodiff(tree, be, next_error=dy).get_grad_asnumpyarray([layer.W.value, layer.b.value])
    for parameter, gradient in zip(layer.parameters, expected):
        np.testing.assert_allclose(parameter.gradient.get(), gradient, atol=1e-12)


def test_convolution_parameter_gradients(be: tb.Backend, layers: ModuleType) -> None:
    layer = layers.Convolution(be, 2, 4, 3)
    x, dy = (np.random.default_rng(seed).normal(size=(n, 6)) for seed, n in ((1, 32), (2, 48)))

    def value(parameter: tb.Tensor, numbers: np.ndarray) -> float:
        parameter[:] = numbers
        return float((layer.fprop(be.array(x), training=True).get() * dy).sum())

    for parameter in layer.parameters:
        start = parameter.value.get()
        expected = numerical_gradient(lambda numbers, p=parameter: value(p.value, numbers), start)
        value(parameter.value, start)
        layer.bprop(be.array(dy))
        np.testing.assert_allclose(parameter.gradient.get(), expected, atol=1e-6)


def test_cost_and_its_gradient(be: tb.Backend, layers: ModuleType) -> None:
    cost = layers.SoftmaxCrossEntropy(be, 4)
    z = np.random.default_rng(1).normal(size=(4, 6))
    labels = np.array([[0, 3, 2, 2, 1, 0]])
    device_labels = be.array(labels, dtype=np.int32)

    def mean_cost(scores: np.ndarray) -> float:
        total = be.zeros((2, 1))
        cost.fprop(be.array(scores))
        cost.add_to(total, device_labels)
        return float(total.get()[0, 0]) / labels.size

    p = np.exp(z) / np.exp(z).sum(axis=0)
    assert mean_cost(z) == pytest.approx(-np.log(p[labels[0], np.arange(6)]).mean())
    np.testing.assert_allclose(cost.bprop(device_labels).get(), numerical_gradient(mean_cost, z), atol=1e-8)
    total = be.zeros((2, 1))
    cost.fprop(be.array(z))
    cost.add_to(total, device_labels)
    assert total.get()[1, 0] == (z.argmax(axis=0) == labels[0]).sum()


def test_dropout_scales_in_training_and_passes_in_use(be: tb.Backend, layers: ModuleType) -> None:
    layer = layers.Dropout(be, 400, 0.8)
    x = be.ones((400, 6))
    y = layer.fprop(x, training=True).get()
    assert set(np.unique(y)) == {0.0, 1.25}
    assert abs(y.mean() - 1.0) < 0.05
    assert layer.fprop(x, training=False) is x


@pytest.mark.parametrize("name", ["Momentum", "Adam"])
def test_optimizers_follow_their_papers(be: tb.Backend, layers: ModuleType, name: str) -> None:
    parameter = layers.Parameter(be.array([[1.0, -2.0]]))
    optimizer = getattr(layers, name)([parameter], rate=0.1)
    w, first, second = np.array([[1.0, -2.0]]), np.zeros((1, 2)), np.zeros((1, 2))
    for step in (1, 2, 3):
        g = np.array([[0.5, 0.25]]) * step
        parameter.gradient[:] = g
        optimizer.update(step)
        if name == "Momentum":
            first = 0.9 * first - 0.1 * g
            w = w + first
        else:
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
            w = w - 0.1 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(parameter.value.get(), w, rtol=1e-12)


class Learning:
    """A small network with dropout, and an optimizer."""

    def __init__(self, be: tb.Backend, layers: ModuleType, optimizer: str) -> None:
        self.be = be
        self.chain = [layers.Affine(be, 64, 48), layers.Relu(be, 48), layers.Dropout(be, 48, 0.5),
                      layers.Affine(be, 48, 10)]  # fmt: skip
        self.cost = layers.SoftmaxCrossEntropy(be, 10)
        self.parameters = [p for layer in self.chain for p in layer.parameters]
        self.optimizer = getattr(layers, optimizer)(self.parameters)

    def step(self, x: tb.Tensor, labels: tb.Tensor, steps: int) -> None:
        """One step, the last of `steps`."""
        for layer in self.chain:
            x = layer.fprop(x, True)
        self.cost.fprop(x)
        error = self.cost.bprop(labels)
        for layer in reversed(self.chain):
            error = layer.bprop(error)
        self.optimizer.update(steps)

    def bits(self) -> list[bytes]:
        """The weights, and random numbers that come next."""
        rand = self.be.evaluate(self.be.rand(shape=(3, 3)))
        return [t.get().tobytes() for t in (*(p.value for p in self.parameters), rand)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Momentum", "Adam"])
@pytest.mark.parametrize("kind", ["jit", "interpreter"])
def test_a_hundred_captured_steps_have_the_bits_of_the_steps(layers: ModuleType, name: str, kind: str) -> None:
    found = []
    for capture in (False, True):
        be = tb.gen_backend("cpu", rng_seed=5, batch_size=32, jit=None if kind == "jit" else False)
        learning = Learning(be, layers, name)
        numbers = np.random.RandomState(1)
        call = learning.step
        for steps in range(1, 101):
            images = be.array(numbers.rand(64, 32))
            labels = be.array(numbers.randint(0, 10, (1, 32)), dtype=np.int32)
            if capture and steps == 1:
                call = be.capture(learning.step, images, labels, steps)
                assert call.peak_bytes <= 1.1 * call.least_bytes
            else:
                call(images, labels, steps)
        found.append(learning.bits())
    tb.cleanup_backend()
    assert found[0] == found[1]
