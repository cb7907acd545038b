# SPDX-License-Identifier: Apache-2.0
"""Batch, layer and group normalisation: both passes against the definition in float64 and central differences; numbers
far from 0, accumulation, memory that is shared, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import BackendError, DTypeError, ShapeError, testing
from tensorbackend.conformance import references as ref

pytestmark = pytest.mark.rehearsed

# A backend serves all examples; most of them compile kernels.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture],
                  max_examples=settings.default.max_examples // 2)  # fmt: skip
EPS, RHO = 1e-3, 0.9


def near(actual: Any, expected: np.ndarray, dtype: str, terms: float = 0.0) -> None:
    """Within some roundings of the type, and of float32 sums, at the size of the numbers or of the `terms` they are
    differences of."""
    precision = 24 * max(ref.EPSILON[dtype], ref.EPSILON["float32"] if dtype != "float64" else 0)
    actual = ref.wide(actual.get()).reshape(expected.shape)
    scale = max(np.abs(expected).max(initial=0), terms)
    np.testing.assert_allclose(actual, expected, rtol=precision, atol=precision * (1 + scale))


def wide_type(dtype: str) -> str:
    """The type of statistics and parameters."""
    return "float64" if dtype == "float64" else "float32"


def power_of_two(x: np.ndarray) -> np.ndarray:
    """The nearest power of two, by exponents, with the sign; of 0, 0."""
    return np.where(x == 0, 0, np.sign(x) * 2.0 ** np.rint(np.log2(np.abs(np.where(x == 0, 1, x)))))


class Batch:
    """The tensors of a batch normalisation of x, and their numbers in float64."""

    def __init__(self, be: Any, x: np.ndarray, dtype: str, seed: int = 0) -> None:
        K, n = x.shape
        self.be, self.dtype, self.shape = be, dtype, x.shape
        self.hosts = {"x": x, "y": ref.draw((K, n), dtype, seed + 1), "delta": ref.draw((K, n), dtype, seed + 2)}
        names = ("xsum", "xvar", "gmean", "gvar", "gamma", "beta", "grad_gamma", "grad_beta")
        columns = {name: ref.draw((K, 1), wide_type(dtype), seed + 3 + k) for k, name in enumerate(names)}
        columns["gvar"] = np.abs(columns["gvar"])
        self.hosts |= columns
        self.tensors = {k: be.array(v, dtype=v.dtype) for k, v in self.hosts.items()}
        self.now = {k: ref.wide(v) for k, v in self.hosts.items()}

    def __getitem__(self, name: str) -> Any:
        return self.tensors[name]

    def fprop(self, compute_batch_sum: bool = True, **keywords: Any) -> Any:
        """Run the forward pass; `now` becomes what should be there."""
        names = ("x", "xsum", "xvar", "gmean", "gvar", "gamma", "beta", "y")
        done = self.be.compound_fprop_bn(*map(self.__getitem__, names), EPS, RHO, compute_batch_sum, **keywords)
        self._expect(compute_batch_sum, **keywords)
        return done

    def _expect(self, compute_batch_sum: bool, accumbeta: float = 0.0, relu: bool = False, binary: bool = False,
                inference: bool = False, repeat: int = 1) -> None:  # fmt: skip
        by, n = self.now, self.shape[1]
        mean, var = by["gmean"], by["gvar"]
        if not inference:
            by["xsum"] = by["x"].sum(1, keepdims=True) if compute_batch_sum else by["xsum"]
            mean = by["xsum"] / n
            away = by["x"] - mean
            var = by["xvar"] = (away * (power_of_two(away) if binary else away)).mean(1, keepdims=True)
            by["gmean"], by["gvar"] = RHO * by["gmean"] + (1 - RHO) * mean, RHO * by["gvar"] + (1 - RHO) * var
        scale, gamma = 1 / np.sqrt(var + EPS), by["gamma"]
        if binary:
            scale, gamma = power_of_two(scale), power_of_two(gamma)
        value = (by["x"] - mean) * scale * gamma + by["beta"]
        by["y"] = (np.maximum(value, 0) if relu else value) + accumbeta * by["y"]

    def bprop(self, out: str = "y", **keywords: Any) -> None:
        """Run the backward pass into the memory of `out`."""
        given = (self["delta"], self["x"], self["xsum"], self["xvar"], self["gamma"])
        outputs = (self[out], self["grad_gamma"], self["grad_beta"])
        self.be.compound_bprop_bn(*outputs, *given, EPS, **keywords)
        self._expect_gradients(out, **keywords)

    def _expect_gradients(self, out: str, binary: bool = False) -> None:
        by, n = self.now, self.shape[1]
        xsum, xvar = (ref.wide(self[k].get()) for k in ("xsum", "xvar"))
        other = power_of_two if binary else np.asarray
        scale = other(1 / np.sqrt(xvar + EPS))
        hat = (by["x"] - xsum / n) * scale
        by["grad_gamma"] = (hat * other(by["delta"])).sum(1, keepdims=True)
        by["grad_beta"] = by["delta"].sum(1, keepdims=True)
        away = by["delta"] - (hat * other(by["grad_gamma"]) + by["grad_beta"]) / n
        by[out] = away * other(by["gamma"]) * scale

    def check(self) -> None:
        """That each tensor holds what it should."""
        size = np.abs(self.now["x"]).max(initial=0)
        for name, tensor in self.tensors.items():
            dtype = self.dtype if name in ("x", "y", "delta") else wide_type(self.dtype)
            near(tensor, self.now[name], dtype, {"xsum": size * self.shape[1], "gmean": size}.get(name, 0))


lengths = st.one_of(st.integers(1, 40), st.sampled_from([255, 1000, 9001]))
FORMS = [{}, {"inference": True}, {"compute_batch_sum": False, "relu": True}, {"accumbeta": 0.5},
         {"inference": True, "relu": True, "accumbeta": 1.0}]  # fmt: skip


@shared
@given(K=st.integers(0, 5), n=lengths, dtype=st.sampled_from(ref.TYPES), form=st.sampled_from(FORMS))
def test_forward_is_the_contracts_formula(backend: Any, K: int, n: int, dtype: str, form: dict) -> None:
    batch = Batch(backend, ref.draw((K, n), dtype), dtype)
    batch.fprop(**form)
    batch.check()


@shared
@given(K=st.integers(0, 5), n=lengths, dtype=st.sampled_from(ref.TYPES), out=st.sampled_from(["y", "delta"]))
def test_backward_is_the_contracts_formula(backend: Any, K: int, n: int, dtype: str, out: str) -> None:
    batch = Batch(backend, ref.draw((K, n), dtype), dtype)
    batch.fprop()
    batch.bprop(out)
    batch.check()


@pytest.mark.parametrize("shape", [(1, 70000), (3, 40000), (2, 100003), (160, 9000), (70, 1001)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_long_rows(backend: Any, shape: tuple[int, int], dtype: str) -> None:
    batch = Batch(backend, ref.draw(shape, dtype), dtype)
    batch.fprop(relu=True)
    batch.bprop("delta")
    batch.check()


@pytest.mark.parametrize("K, n", [(2, 100), (2, 20000), (2, 100003), (70, 1001)])
def test_a_small_spread_far_from_zero(backend: Any, K: int, n: int) -> None:
    x = (ref.draw((K, n)) * 1e-2 + 1e4).astype(np.float32)
    batch = Batch(backend, x, "float32")
    backend.compound_fprop_bn(*(batch[k] for k in ("x", "xsum", "xvar", "gmean", "gvar")), backend.ones((K, 1)),
                              backend.zeros((K, 1)), batch["y"], 0.0, 0.0, True)  # fmt: skip
    exact = ref.wide(x)
    np.testing.assert_allclose(batch["xvar"].get(), exact.var(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(batch["gvar"].get(), exact.var(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(batch["xsum"].get(), exact.sum(1, keepdims=True), rtol=1e-6)
    hat = (exact - exact.mean(1, keepdims=True)) / exact.std(1, keepdims=True)
    np.testing.assert_allclose(batch["y"].get(), hat, atol=1e-4)


@pytest.mark.parametrize("K, n", [(2, 50000), (70, 1001)])
def test_a_row_that_begins_unlike_the_rest(backend: Any, K: int, n: int) -> None:
    """What is looked at of it is as far from its mean as can be: 8 standard deviations, so that the variance, and with
    it what is normalised, is the difference of sums that are 64 times as large."""
    x = (ref.draw((K, n)) * 1e-2 + 1e4).astype(np.float32)
    x[::2, : n // 64], x[1::2, : n // 64] = 0.0, 2e4
    batch = Batch(backend, x, "float32")
    batch.fprop()
    precision = 64 * 8 * ref.EPSILON["float32"]  # of a sum, in roundings: as many as its tree is high, about half each
    np.testing.assert_allclose(batch["y"].get(), batch.now["y"], rtol=0, atol=precision * np.abs(batch.now["y"]).max())
    np.testing.assert_allclose(batch["xvar"].get(), ref.wide(x).var(1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize("n", [7, 300])
def test_binary_products_take_powers_of_two(backend: Any, n: int) -> None:
    batch = Batch(backend, ref.draw((3, n), "float64"), "float64")
    batch.fprop(binary=True)
    batch.bprop(binary=True)
    batch.check()


@pytest.mark.parametrize("n", [12, 30000])
def test_in_place(backend: Any, n: int) -> None:
    batch = Batch(backend, ref.draw((3, n), "float32"), "float32")
    batch.tensors["y"] = batch["x"]
    batch.now["y"] = batch.now["x"]
    batch.fprop(accumbeta=0.5)
    near(batch["x"], batch.now["y"], "float32")


@pytest.mark.parametrize("n", [12, 9001])
def test_calls_of_one_form_take_their_own_operands(backend: Any, n: int) -> None:
    """What is remembered of a call serves the next one, but not one with fewer distinct tensors."""
    for seed, shares in enumerate([True, False, False, True]):
        batch = Batch(backend, ref.draw((3, n), "float32", 10 * seed), "float32", 10 * seed)
        if shares:
            batch.tensors["beta"], batch.now["beta"] = batch["gamma"], batch.now["gamma"]
        batch.fprop(accumbeta=0.5)
        batch.bprop("delta" if shares else "y")
        batch.check()


def test_outputs_of_other_shapes_and_strides(backend: Any) -> None:
    batch = Batch(backend, ref.draw((4, 6), "float32"), "float32")
    room, columns = backend.zeros((4, 12)), backend.zeros((4, 5))
    batch.tensors["y"] = backend.array(batch.hosts["y"]).reshape(2, 12)
    batch.tensors["x"] = backend.array(np.repeat(batch.hosts["x"], 2, 1))[:, ::2]
    batch.tensors["xvar"] = columns[:, 2]
    batch.fprop(accumbeta=2.0)
    batch.tensors["y"] = room[:, ::2].reshape(4, 6)
    batch.bprop()
    batch.check()
    assert np.count_nonzero(columns.get()) == 4 and not room.get()[:, 1::2].any()


def test_an_output_without_a_view_of_the_shape(backend: Any) -> None:
    batch = Batch(backend, ref.draw((4, 6), "float32"), "float32")
    batch.tensors["y"] = backend.array(batch.hosts["y"].reshape(6, 4).T.copy()).T
    batch.fprop(accumbeta=1.0)
    batch.check()


def test_columns_lie_along_memory(backend: Any) -> None:
    batch = Batch(backend, ref.draw((40, 30), "float32"), "float32")
    for name in ("x", "y", "delta"):
        batch.tensors[name] = backend.array(np.ascontiguousarray(batch.hosts[name].T)).T
    batch.fprop()
    batch.bprop()
    batch.check()


# Layer and group normalisation


def group_reference(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, groups: int) -> tuple[np.ndarray, ...]:
    """y, mean and variance of x (maps, pixels, images)."""
    parts = x.reshape(groups, -1, x.shape[-1])
    mean, var = parts.mean(1, keepdims=True), parts.var(1, keepdims=True)
    hat = ((parts - mean) / np.sqrt(var + EPS)).reshape(x.shape)
    return hat * gamma[:, None] + beta[:, None], mean[:, 0], var[:, 0]


def group_gradients(x: np.ndarray, gamma: np.ndarray, groups: int, e: np.ndarray) -> tuple[np.ndarray, ...]:
    """The gradients by x, gamma and beta, for an error e (maps, pixels, images)."""
    unit, _, var = group_reference(x, np.ones_like(gamma), np.zeros_like(gamma), groups)
    slope, hat = ((e * gamma[:, None]).reshape(groups, -1, x.shape[-1]), unit.reshape(groups, -1, x.shape[-1]))
    away = slope - slope.mean(1, keepdims=True) - hat * (slope * hat).mean(1, keepdims=True)
    delta = (away / np.sqrt(var + EPS)[:, None]).reshape(x.shape)
    return delta, (unit * e).sum((1, 2))[:, None], e.sum((1, 2))[:, None]


@shared
@given(groups=st.integers(1, 3), each=st.integers(1, 4), pixels=st.sampled_from([1, 1, 6, 35]), N=st.integers(1, 9),
       dtype=st.sampled_from(ref.TYPES), relu=st.booleans(), accumbeta=st.sampled_from([0.0, 0.5]))  # fmt: skip
def test_groups_are_normalised(backend: Any, groups: int, each: int, pixels: int, N: int, dtype: str, relu: bool,
                               accumbeta: float) -> None:  # fmt: skip
    maps, kind = groups * each, wide_type(dtype)
    x, old, e = (ref.draw((maps, pixels, N), dtype, seed) for seed in range(3))
    gamma, beta = (ref.draw((maps, 1), kind, seed) for seed in (3, 4))
    X, Y, E = (backend.array(a.reshape(-1, N), dtype=a.dtype) for a in (x, old, e))
    G, B, grad_gamma, grad_beta = (backend.array(a, dtype=kind) for a in (gamma, beta, gamma, beta))
    mean, var = backend.empty((groups, N), kind), backend.empty((groups, N), kind)
    backend.compound_fprop_gn(X, mean, var, G, B, Y, groups, EPS, accumbeta, relu)
    value, *moments = group_reference(ref.wide(x), ref.wide(gamma), ref.wide(beta), groups)
    near(Y, (np.maximum(value, 0) if relu else value) + accumbeta * ref.wide(old), dtype)
    near(mean, moments[0], kind)
    near(var, moments[1], kind)
    backend.compound_bprop_gn(E, grad_gamma, grad_beta, E, X, mean, var, G, groups, EPS)
    delta, *sums = group_gradients(ref.wide(x), ref.wide(gamma), groups, ref.wide(e))
    terms = np.abs(gamma).max() * np.abs(ref.wide(e)).max() / np.sqrt(moments[1].min() + EPS)
    near(E, delta, dtype, terms)  # it is what remains of them: of two elements next to nothing
    near(grad_gamma, sums[0], kind)
    near(grad_beta, sums[1], kind)


@pytest.mark.parametrize("K, N, turned", [(20000, 5, False), (20000, 1, False), (20000, 33, True), (1001, 70, False)])
def test_layers_are_normalised(backend: Any, K: int, N: int, turned: bool) -> None:
    x, e = (ref.draw((K, N), "float32", seed) for seed in range(2))
    gamma, beta = (ref.draw((K, 1), "float32", seed) for seed in (3, 4))
    X, E = (backend.array(a.T.copy()).T if turned else backend.array(a) for a in (x, e))
    Y, mean, var = backend.empty(x.shape), backend.empty((1, N)), backend.empty((1, N))
    G, B, grad_gamma, grad_beta = (backend.array(a) for a in (gamma, beta, gamma, beta))
    backend.compound_fprop_ln(X, mean, var, G, B, Y, EPS)
    value, *moments = group_reference(*(ref.wide(a) for a in (x[:, None], gamma, beta)), 1)
    near(Y, value[:, 0], "float32")
    near(mean, moments[0], "float32")
    near(var, moments[1], "float32")
    backend.compound_bprop_ln(Y, grad_gamma, grad_beta, E, X, mean, var, G, EPS)
    delta, *sums = group_gradients(*(ref.wide(a) for a in (x[:, None], gamma)), 1, ref.wide(e)[:, None])
    near(Y, delta[:, 0], "float32")
    near(grad_gamma, sums[0], "float32")
    near(grad_beta, sums[1], "float32")


# Gradients, repetition, threads


def kinds_of_gradients(be: Any, x: np.ndarray, gamma: np.ndarray, e: np.ndarray) -> Iterator[tuple]:
    """For each normalisation: the loss at (x, gamma), and its gradients by x, gamma and beta, from the backend."""
    K, n = x.shape
    X, E, G = (be.array(a, dtype="float64") for a in (x, e, gamma))
    B, y = be.array(gamma / 2, dtype="float64"), be.empty((K, n), "float64")
    xsum, xvar, gmean, gvar, by_gamma, by_beta = (be.zeros((K, 1), "float64") for _ in range(6))

    def batch(X: Any, G: Any, B: Any) -> float:
        be.compound_fprop_bn(X, xsum, xvar, gmean, gvar, G, B, y, EPS, RHO, True)
        return float((y.get() * e).sum())

    batch(X, G, B)
    delta = be.empty((K, n), "float64")
    be.compound_bprop_bn(delta, by_gamma, by_beta, E, X, xsum, xvar, G, EPS)
    yield batch, (X, G, B), (delta, by_gamma, by_beta)
    for groups in (1, 2, K):
        mean, var = be.empty((groups, n), "float64"), be.empty((groups, n), "float64")

        def group(X: Any, G: Any, B: Any, groups: int = groups, mean: Any = mean, var: Any = var) -> float:
            be.compound_fprop_gn(X, mean, var, G, B, y, groups, EPS)
            return float((y.get() * e).sum())

        group(X, G, B)
        be.compound_bprop_gn(delta, by_gamma, by_beta, E, X, mean, var, G, groups, EPS)
        yield group, (X, G, B), (delta, by_gamma, by_beta)


def test_gradients_by_central_differences(backend: Any) -> None:
    x, e, gamma = ref.draw((4, 11)), ref.draw((4, 11), seed=1), ref.draw((4, 1), seed=2)
    for loss, operands, gradients in kinds_of_gradients(backend, x, gamma, e):
        found = [g.get() for g in gradients]
        for k, (operand, gradient) in enumerate(zip(operands, found)):
            direction = ref.draw(operand.shape, seed=5 + k)
            ends = []
            for sign in (1, -1):
                moved = list(operands)
                moved[k] = backend.array(operand.get() + sign * 1e-6 * direction, dtype="float64")
                ends.append(loss(*moved))
            assert (gradient * direction).sum() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6, abs=1e-7)


def test_repeat_times_the_call_and_gives_the_same(backend: Any) -> None:
    batch = Batch(backend, ref.draw((3, 50), "float32"), "float32")
    milliseconds, gflops = batch.fprop(compute_batch_sum=False, inference=True, repeat=3)
    assert milliseconds > 0 and gflops > 0
    assert (backend.bench_records[-1].name, backend.bench_records[-1].runs) == ("compound_fprop_bn", 3)
    batch.check()
    backend.bench_records.clear()


# Refusals


def test_bad_operands_are_refused(backend: Any) -> None:
    batch = Batch(backend, ref.draw((3, 5), "float32"), "float32")
    other = testing.make_backend("interpreter", rng_seed=0)
    bad = [
        ("gamma", backend.ones((4, 1)), ShapeError, r"size of gamma[\s\S]*\(4, 1\)[\s\S]*3 elements"),
        ("y", backend.ones((3, 4)), ShapeError, r"size of y[\s\S]*15 elements"),
        ("x", backend.ones((3, 5), dtype="int32"), DTypeError, r"type of x[\s\S]*int32"),
        ("x", backend.ones((3, 5, 1), min_dims=0), ShapeError, r"shape of x[\s\S]*\(3, 5, 1\)"),
        ("xvar", backend.ones((3, 1), dtype="float16"), DTypeError, r"type of xvar[\s\S]*float16[\s\S]*float32"),
        ("y", backend.ones((3, 5), dtype="float64"), DTypeError, r"type of y[\s\S]*float64"),
        ("y", batch["x"] + 0, TypeError, "y: the output"),
        ("gvar", batch["gmean"], ValueError, "overlaps"),
        ("xvar", batch["x"][:, 0], ValueError, "overlaps"),
        ("gmean", other.ones((3, 1)), BackendError, "different backends"),
        ("beta", 1.0, TypeError, "beta"),
    ]
    for name, value, error, message in bad:
        kept, batch.tensors[name] = batch[name], value
        with pytest.raises(error, match=message):
            batch.fprop()
        batch.tensors[name] = kept
    with pytest.raises(ValueError, match="overlaps"):
        backend.compound_bprop_bn(batch["x"], batch["grad_gamma"], batch["grad_beta"], batch["delta"],
                                  *(batch[k] for k in ("x", "xsum", "xvar", "gamma")), EPS)  # fmt: skip
    ones, row = backend.ones((3, 1)), backend.ones((1, 5))
    for eps, rho in ((None, 0.9), (EPS, "x")):
        with pytest.raises(TypeError, match="compound_fprop_bn: (eps|rho)[\\s\\S]*a number"):
            backend.compound_fprop_bn(batch["x"], *[ones] * 6, batch["y"], eps, rho, True)
    with pytest.raises(TypeError, match="compound_fprop_gn: eps[\\s\\S]*a number"):
        backend.compound_fprop_gn(batch["x"], row, row, ones, ones, batch["y"], 1, None)
    batch.check()
    with pytest.raises(ShapeError, match=r"nothing to take moments of[\s\S]*\(2, 0\)"):
        Batch(backend, np.empty((2, 0), np.float32), "float32").fprop()


@pytest.mark.parametrize("binary", [False, True])
def test_gradients_of_no_images(backend: Any, binary: bool) -> None:
    x, y = backend.empty((4, 0)), backend.empty((4, 0))
    read, (by_gamma, by_beta) = [backend.ones((4, 1)) for _ in range(3)], [backend.full((4, 1), 7.0) for _ in range(2)]
    backend.compound_bprop_bn(y, by_gamma, by_beta, x, x, *read, EPS, binary=binary)
    np.testing.assert_array_equal([by_gamma.get(), by_beta.get()], 0)
    by_gamma.fill(7), by_beta.fill(7)
    moments = backend.empty((2, 0))
    backend.compound_bprop_gn(y, by_gamma, by_beta, x, x, moments, moments, read[0], 2, EPS)
    np.testing.assert_array_equal([by_gamma.get(), by_beta.get()], 0)


def test_bad_groups_are_refused(backend: Any) -> None:
    x, y, column, rows = backend.ones((12, 5)), backend.zeros((12, 5)), backend.ones((6, 1)), backend.zeros((2, 5))
    for groups in (0, 4, 2.0):
        with pytest.raises(ShapeError, match=rf"groups[\s\S]*{groups} of 6 maps"):
            backend.compound_fprop_gn(x, rows, rows, column, column, y, groups, EPS)
    with pytest.raises(TypeError, match="gamma[\\s\\S]*float"):
        backend.compound_fprop_ln(x, rows[:1], rows[1:], 1.0, column, y, EPS)
    with pytest.raises(ShapeError, match=r"gamma[\s\S]*\(6, 1, 1\)"):
        backend.compound_fprop_ln(x, rows[:1], rows[1:], backend.ones((6, 1, 1)), column, y, EPS)
    with pytest.raises(ShapeError, match=r"\(12, 5\), gamma of 5 elements"):
        backend.compound_fprop_ln(x, rows[:1], rows[1:], column[:5], column[:5], y, EPS)
    with pytest.raises(ShapeError, match=r"size of mean[\s\S]*\(2, 5\)[\s\S]*15 elements"):
        backend.compound_fprop_gn(x, rows, rows, column, column, y, 3, EPS)
    with pytest.raises(ValueError, match="overlaps"):
        backend.compound_fprop_gn(x, rows, rows, column, column, y, 2, EPS)
    np.testing.assert_array_equal(y.get(), 0)
    backend.compound_fprop_gn(x, rows, backend.zeros((2, 5)), column, backend.ones((6, 1)), y, np.int64(2), EPS)
    np.testing.assert_array_equal(y.get(), 1)
