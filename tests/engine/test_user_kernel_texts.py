# SPDX-License-Identifier: Apache-2.0
"""Kernel texts of real layers, word for word, on every backend that compiles, against NumPy.

The table names each text by what it stands for: the three styles of calling (5.1 elementwise, 5.2 pointers,
5.3 reductions) and the kernels of layers (12.2 to 12.9 of the function layer's contract).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import tensorbackend
from tensorbackend import BackendError
from tensorbackend.backends import toolchain

F4 = np.float32
_rng = np.random.default_rng(7)


@pytest.fixture(scope="module", params=["cpu", "emulator"])
def be(request, absent):
    """The CPU, and CUDA on the emulator."""
    if toolchain.find_compiler() is None:
        absent("cpu", "no C compiler works here")
    name, options = {"cpu": ("cpu", {}), "emulator": ("gpu", {"driver": "emulator"})}[request.param]
    made = tensorbackend.Backend.allocate_backend(name, min_dims=0, **options)
    yield made
    made.cleanup_backend()


def real(*shape: int) -> np.ndarray:
    """Random float32 numbers."""
    return _rng.standard_normal(shape).astype(F4)


def whole(*shape: int, dtype: Any = np.int32) -> np.ndarray:
    """Random small whole numbers."""
    return _rng.integers(1, 9, shape).astype(dtype)


@dataclass
class Text:
    """A text (`kind` of kernel, `texts`, `options`), `arguments` for a call, and what NumPy gives (`expected` of the
    arguments): one result, several, or {number of an argument: what it is afterwards}."""

    section: str
    texts: tuple[str, ...]
    arguments: tuple
    expected: Callable[..., Any]
    keywords: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    kind: str = "elementwise"


def elementwise_texts() -> list[Text]:
    """5.1: inputs, outputs, operation."""
    x, y, n = real(3, 4), real(4), whole(3, 4)
    muladd = ("T x, T y", "T z", "z = x * y + 1", "muladd")
    return [
        Text("5.1 one output", muladd, (x, y), lambda x, y: x * y + 1),
        Text("5.1 a number", muladd, (x, 2.5), lambda x, y: x * F4(2.5) + 1),
        Text("5.1 a number without axes", muladd, (x, np.array(2.5)), lambda x, y: x * F4(2.5) + 1),
        Text("5.1 a semicolon", ("T x", "T z", "z = -x;", "negative"), (x,), lambda x: -x),
        Text("5.1 concrete types", ("float32 x, int32 k", "float64 z", "z = x * k", "scaled"), (x, n),
             lambda x, n: (x * n.astype(F4)).astype("f8")),
        Text("5.1 aliases", ("float x, int k", "double z, bool big", "z = k; big = x > 0", "two"), (x, n),
             lambda x, n: (n.astype("f8"), x > 0)),
        Text("5.1 halves", ("float16 x", "float16 z", "z = x * x", "half_square"), (x.astype("f2"),),
             lambda x: (x.astype("f4") ** 2).astype("f2")),
        Text("5.1 placeholders in the body", ("T x", "T z", "T t = 0; t += (T)2 * x; z = t;", "typed_body"), (n,),
             lambda n: 2 * n),
        Text("5.1 two placeholders", ("T x, U y", "U z", "z = x > 0 ? y : (U)0", "chosen"), (x, n),
             lambda x, n: np.where(x > 0, n, 0)),
        Text("5.1 an output says its type", ("T x", "U z", "z = x * 2", "widened"), (x, np.zeros((3, 4))),
             lambda x, z: (x * 2).astype("f8")),
        Text("5.1 raw", ("int32 j, raw T t", "T y", "y = t[j]", "gather"), (n, real(20)), lambda n, t: t[n]),
        Text("5.1 raw and index", ("raw T t, int32 last", "T y", "y = t[last - i]", "backwards"), (real(8), 7),
             lambda t, last: t[::-1], {"size": 8}),
        Text("5.1 the index", ("T x", "int64 z", "z = i", "index"), (x,), lambda x: np.arange(12).reshape(3, 4)),
        Text("5.1 the size", ("T x", "T z", "z = x / _ind.size()", "divided"), (x,), lambda x: x / F4(12)),
        Text("5.1 all raw", ("raw T x", "raw T z", "z[_ind.size() - 1 - i] = x[i]", "turned"), (y, np.zeros(4, F4)),
             lambda x, z: {1: x[::-1]}, {"size": 4}),
        Text("5.1 locals and loops", ("T x", "T z", "T s = 0;\nfor (int k = 0; k < 3; ++k) { if (k == 1) continue; "
             "s += x * k; }\nwhile (s > 100) s -= 1;\nz = s;", "loops"), (x,), lambda x: x * 2),
        Text("5.1 in place", ("T x", "T z", "z = z * 2 + x", "in_out"), (x, x.copy()), lambda x, z: x * 2 + x),
        Text("5.1 a preamble", ("T x", "T z", "z = twice(x) + ONE", "with_preamble"), (x,), lambda x: x * 2 + 1,
             options={"preamble": "#define ONE 1\nstatic float twice(float v) { return v + v; }"}),
        Text("5.1 blocks in the preamble", ("T x", "T z", "if (x > 0) { z = rest(x); } else { z = x; }", "blocks"),
             (x,), lambda x: np.where(x > 0, x % 1, x),
             options={"preamble": "static float rest(float v) {\n  while (v >= 1) { v -= 1; }\n"
                      "  switch ((int)v) { case 0: break; }\n  if (v < 0) { return 0; }\n  return v;\n}"}),
        Text("5.1 a function by its address",
             ("T x", "T z", "float (*f)(float) = i % 2 ? twice : off; z = f(x)", "by_address"), (y,),
             lambda x: np.where(np.arange(4) % 2, x + x, x - 1),
             options={"preamble": "static float twice(float v) { return v + v; }\n"
                      "static float off(float v) { struct { float twice; } one = {1}; return v - one.twice; }"}),
        Text("5.1 a table in the preamble", ("int32 k", "float z", "z = table[k & 3]", "tabled"), (n,),
             lambda n: np.array([5, 6, 7, 8], F4)[n & 3],
             options={"preamble": "static const float table[4] = {5, 6, 7, 8};"}),
        Text("5.1 untyped", ("x, y", "z", "z = x * y + 1"), (x, y), lambda x, y: x * y + 1),
        Text("5.1 muladd's gradients", ("T x, T y, T gw", "T gx, T gy", "gx = y * gw; gy = x * gw", "muladd_bwd"),
             (x, y, x), lambda x, y, g: (y * g, x * g)),
        Text("12.3 column subtraction", ("T lhs, T rhs", "T z", "z = lhs - rhs", "broadcast_sub"), (real(3, 1), x),
             lambda a, b: a - b),
    ]  # fmt: skip


def linear_texts() -> list[Text]:
    """5.2, 12.2 and 12.5: pointers, in layers of products."""
    e1, e2, gy, w = real(5, 3), real(5, 2), real(5, 4), real(3, 2, 4)
    bias = "float* y,\n   const float *  b , int n_channel"
    outer = "int row = i / (J * K); int j = i / K % J; int k = i % K;\ny[i] = e1[row * J + j] * e2[row * K + k]"
    three = ("int j0 = i / (K * L), k0 = i / L % K, l0 = i % L; float y0 = 0;\n"
             "for (int I0 = 0; I0 < I; ++I0) y0 += e1[I0 * J + j0] * e2[I0 * K + k0] * gy[I0 * L + l0];\n"
             "y[i] = y0;")  # fmt: skip
    ge = ("int i0 = i / J, j1 = i % J; float y0 = 0;\nfor (int k = 0; k < K; ++k) for (int l = 0; l < L; ++l)\n"
          "y0 += e2[i0 * K + k] * W[(j1 * K + k) * L + l] * gy[i0 * L + l];\ny[i] = y0")  # fmt: skip
    ge2 = ("int i0 = i / K, k1 = i % K; float y0 = 0;\nfor (int j = 0; j < J; ++j) for (int l = 0; l < L; ++l)\n"
           "y0 += e1[i0 * J + j] * W[(j * K + k1) * L + l] * gy[i0 * L + l];\ny[i] = y0")  # fmt: skip
    f = "const float* "
    return [
        Text("5.2 spaces and lines", (bias, "y[i] += b[i % n_channel]", "spread"), (real(3, 4), real(4), 4),
             lambda y, b, n: {0: y + b}),
        Text("12.2 row_wise_outer_product", (f"float* y, {f}e1, {f}e2, int J, int K", outer, "row_wise_outer_product"),
             (np.zeros((5, 3, 2), F4), e1, e2, 3, 2), lambda y, a, b, J, K: {0: np.einsum("ij,ik->ijk", a, b)}),
        Text("12.2 linear_bias", ("float* y, float* b, int C", "y[i] += b[i % C]", "linear_bias"), (gy, real(4), 4),
             lambda y, b, C: {0: y + b}),
        Text("12.2 sum_of_three_ary_tensor_product",
             (f"float* y, {f}e1, {f}e2, {f}gy, int I, int J, int K, int L", three, "sum_of_three_ary_tensor_product"),
             (np.zeros((3, 2, 4), F4), e1, e2, gy, 5, 3, 2, 4),
             lambda y, a, b, g, *n: {0: np.einsum("ij,ik,il->jkl", a, b, g)}),
        Text("12.2 ge_kernel", (f"float* y, {f}e2, {f}W, {f}gy, int K, int L, int J", ge, "ge_kernel"),
             (np.zeros((5, 3), F4), e2, w, gy, 2, 4, 3),
             lambda y, b, w, g, *n: {0: np.einsum("ik,jkl,il->ij", b, w, g)}),
        Text("12.2 ge_kernel2", (f"float* y, {f}e1, {f}W, {f}gy, int J, int L, int K", ge2, "ge_kernel2"),
             (np.zeros((5, 2), F4), e1, w, gy, 3, 4, 2),
             lambda y, a, w, g, *n: {0: np.einsum("ij,jkl,il->ik", a, w, g)}),
        Text("12.5 linear_bias of one column", ("T* y, const T* b, int C", "y[i] += b[i % C];", "linear_bias"),
             (real(6, 1).astype("f8"), real(1).astype("f8"), 1), lambda y, b, C: {0: y + b}),
    ]  # fmt: skip


MIXTURE = """
int j = i / ngauss;
float z1 = (x1[j] - m1[i]) / s1[i], z2 = (x2[j] - m2[i]) / s2[i];
float C = 1 / (1 - c[i] * c[i]);
float gamma = r[i] / rsum[j];
gw[i] = w[i] - gamma;
gm1[i] = -gamma * (C / s1[i] * (z1 - c[i] * z2));
gm2[i] = -gamma * (C / s2[i] * (z2 - c[i] * z1));
gs1[i] = -gamma * ((x1[j] - m1[i]) * C / s1[i] * (z1 - c[i] * z2) - 1);
gs2[i] = -gamma * ((x2[j] - m2[i]) * C / s2[i] * (z2 - c[i] * z1) - 1);
gc[i] = -gamma * (z1 * z2 + c[i] * (1 - C * (%s)));
"""


def mixture(squared: bool) -> Text:
    """12.4: the gradients of a mixture of Gaussians in two dimensions; `squared`: another form of the last one."""
    n, k = 4, 3
    w, r = (np.abs(real(n, k)) + F4(0.1) for _ in range(2))
    m1, m2, x1, x2 = real(n, k), real(n, k), real(n, 1), real(n, 1)
    s1, s2, c = np.abs(real(n, k)) + 1, np.abs(real(n, k)) + 1, np.tanh(real(n, k)) * F4(0.9)
    names = ["gw", "gm1", "gm2", "gs1", "gs2", "gc"]
    given = ["w", "m1", "m2", "s1", "s2", "c", "x1", "x2"]
    text = "const float* r, const float* rsum, const int ngauss, " + ", ".join(
        [*(f"float* {name}" for name in names), *(f"const float* {name}" for name in given)]
    )
    form = "(z1 - c[i] * z2) * (z1 - c[i] * z2)" if squared else "z1 * z1 + z2 * z2 - 2 * c[i] * z1 * z2"

    def expected(r, rsum, ngauss, *others):
        w, m1, m2, s1, s2, c, x1, x2 = (x.astype("f8") for x in others[6:])
        z1, z2, C, gamma = (x1 - m1) / s1, (x2 - m2) / s2, 1 / (1 - c * c), r / rsum
        Z = (z1 - c * z2) ** 2 if squared else z1**2 + z2**2 - 2 * c * z1 * z2
        gradients = [w - gamma, -gamma * C / s1 * (z1 - c * z2), -gamma * C / s2 * (z2 - c * z1),
                     -gamma * ((x1 - m1) * C / s1 * (z1 - c * z2) - 1),
                     -gamma * ((x2 - m2) * C / s2 * (z2 - c * z1) - 1),
                     -gamma * (z1 * z2 + c * (1 - C * Z))]  # fmt: skip
        return {3 + k: g for k, g in enumerate(gradients)}

    outputs = [np.zeros((n, k), F4) for _ in names]
    arguments = (r, r.sum(1, keepdims=True), k, *outputs, w, m1, m2, s1, s2, c, x1, x2)
    label = "12.4 gaussian_mixture_2d_bwd" + ", squared" * squared
    return Text(label, (text, MIXTURE % form, "gaussian_mixture_2d_bwd"), arguments, expected)


def partial_sums() -> Text:
    """12.6: two sums over the first axis, unrolled, which a reduction over the last axis completes."""
    n, c, length = 3, 4, 5
    x, y = real(n, c, length), real(n, c, length)
    lines = ["T r1 = 0, r2 = 0;"]
    for row in range(n):
        lines.append(f"{{ const int64 I = {row} * CL + i; r1 += y[I]; r2 += x[I] * y[I]; }}")
    lines.append("ret1[i] = r1 * alpha; ret2[i] = r2 * alpha")
    text = "T* ret1, T* ret2, const T* x, const T* y, T alpha, int CL"
    arguments = (np.zeros((1, c, length), F4), np.zeros((1, c, length), F4), x, y, 0.5, c * length)

    def expected(r1, r2, x, y, alpha, cl):
        return {0: y.sum(0, keepdims=True) * F4(0.5), 1: (x * y).sum(0, keepdims=True) * F4(0.5)}

    return Text("12.6 sums over axis 0, unrolled", (text, "\n".join(lines), "sum_axis0"), arguments, expected)


def activation_texts() -> list[Text]:
    """12.9: a leaky activation with one slope a channel."""
    x, gy, w = real(2, 3, 4), real(2, 3, 4), real(3)
    x[0, 0, 0], x[0, 0, 1] = 0.0, -0.0
    prelu = "float* y, const float* x, const float* cond, const float* W, int cdim, int rdim"
    body = "y[i] = cond[i] >= 0 ? x[i] : x[i] * W[(i / rdim) % cdim]"
    masked = "float* masked, const float* x, const float* gy"
    return [
        Text("12.9 prelu_masked", (masked, "masked[i] = x[i] >= 0 ? 0 : x[i] * gy[i];", "prelu_masked"),
             (np.zeros_like(x), x, gy), lambda m, x, gy: {0: np.where(x >= 0, 0, x * gy)}),
        Text("12.9 prelu", (prelu, body, "prelu"), (np.zeros_like(x), x, x, w, 3, 4),
             lambda y, x, c, w, *n: {0: np.where(x >= 0, x, x * w[:, None])}),
        Text("12.9 prelu backward", (prelu, body, "prelu"), (np.zeros_like(x), gy, x, w, 3, 4),
             lambda y, g, x, w, *n: {0: np.where(x >= 0, g, g * w[:, None])}),
        Text("12.9 one slope", (prelu, body, "prelu"), (np.zeros_like(x), x, x, w[:1], 1, 24),
             lambda y, x, c, w, *n: {0: np.where(x >= 0, x, x * w)}),
    ]  # fmt: skip


def reduction_texts() -> list[Text]:
    """5.3, and the sums of layers."""
    x, half = real(6, 5), real(700).astype("f2")
    sqsum = ("T x", "T y", "x*x", "a+b", "y = a", "0", "sqsum")

    def reduction(section: str, texts: tuple, arguments: tuple, expected: Callable, **keywords: Any) -> Text:
        return Text(section, texts, arguments, expected, keywords, kind="reduction")

    mean = ("T x, bool m", "T y", "m ? x : 0", "a + b", "y = a / _ind.size()", "0", "masked_mean")
    return [
        reduction("5.3 sqsum", sqsum, (x,), lambda x: (x * x).sum()),
        reduction("5.3 sqsum of rows", sqsum, (x,), lambda x: (x * x).sum(1), axis=1),
        reduction("5.3 sqsum of columns", sqsum, (x.T,), lambda x: (x * x).sum(0, keepdims=True), axis=0,
                  keepdims=True),
        reduction("5.3 L2 norm", ("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm"), (x,),
                  lambda x: np.sqrt((x * x).sum(0)), axis=0),
        reduction("5.3 masked mean", mean, (x, x > 0), lambda x, m: np.where(m, x, 0).mean(1), axis=1),
        reduction("5.3 largest magnitude", ("T x", "T y", "fabs(x)", "max(a, b)", "y = a", "0", "absmax"), (x,),
                  lambda x: np.abs(x).max()),
        reduction("5.3 halves", sqsum, (half,), lambda x: (x.astype("f4") ** 2).sum().astype("f2")),
        reduction("5.3 nothing", ("T x", "T y", "x", "a * b", "y = a", "1", "product"), (np.empty((0, 3), F4),),
                  lambda x: np.ones(3, F4), axis=0),
        reduction("5.3 raw", ("int32 k, raw T t", "T y", "t[k] + i", "a + b", "y = a", "0", "looked_up"),
                  (whole(4, 3), real(9)), lambda k, t: (t[k] + np.arange(12).reshape(4, 3)).sum(0), axis=0),
        reduction("12.3 row sums", ("T x", "T y", "x", "a + b", "y = a", "0", "row_sum"), (x,),
                  lambda x: x.sum(1, keepdims=True), axis=1, keepdims=True),
        reduction("12.6 sums over the last axis", ("T x", "T y", "x", "a + b", "y = a", "0", "partial_reduce"),
                  (real(1, 4, 5),), lambda x: x.sum(2, keepdims=True), axis=2, keepdims=True),
        reduction("12.9 sums of a mask", ("T x", "T y", "x", "a + b", "y = a", "0", "gw"), (real(2, 3, 4),),
                  lambda x: x.sum((0, 2)), axis=(0, 2)),
    ]  # fmt: skip


TEXTS = [*elementwise_texts(), *linear_texts(), mixture(False), mixture(True), partial_sums(), *activation_texts(),
         *reduction_texts()]  # fmt: skip


def run(be: Any, text: Text) -> tuple[Any, list[Any]]:
    """The result of a call on copies of the arguments, and what these are afterwards."""
    arguments = [x.copy() if isinstance(x, np.ndarray) else x for x in text.arguments]
    kernel = getattr(be, text.kind)(*text.texts, **text.options)
    return kernel(*arguments, **text.keywords), arguments


def check(found: Any, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert isinstance(found, np.ndarray) and found.shape == wanted.shape
    exact = wanted.dtype.kind in "iub"
    tolerance = 0 if exact else 1e-3 if found.dtype == np.float16 else 2e-5
    np.testing.assert_allclose(found.astype("f8"), wanted.astype("f8"), rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.section.replace(" ", "-"))
def test_a_text_does_what_it_says(be, text) -> None:
    result, arguments = run(be, text)
    wanted = text.expected(*text.arguments)
    if isinstance(wanted, dict):
        for number, value in wanted.items():
            check(arguments[number], value)
        return
    pairs = zip(result, wanted, strict=True) if isinstance(wanted, tuple) else [(result, wanted)]
    for found, value in pairs:
        check(found, value)


@pytest.mark.parametrize("text", TEXTS[::7], ids=lambda text: text.section.replace(" ", "-"))
def test_without_a_compiler_a_text_says_what_it_needs(text) -> None:
    plain = tensorbackend.Backend.allocate_backend("cpu", jit=False, min_dims=0)
    with pytest.raises(BackendError, match=r"C compiler[\s\S]*jit"):
        run(plain, text)
    plain.cleanup_backend()


def test_the_sums_over_axes_0_and_2_in_two_steps(be) -> None:
    text = partial_sums()
    _, (first, second, x, y, *_) = run(be, text)
    total = be.reduction("T x", "T y", "x", "a + b", "y = a", "0", "partial_reduce")
    check(total(first, axis=2, keepdims=True), y.sum((0, 2), keepdims=True) / 2)
    check(total(second, axis=2, keepdims=True), (x * y).sum((0, 2), keepdims=True) / 2)


def test_elementwise_results_have_the_same_bits_on_every_backend(absent) -> None:
    if toolchain.find_compiler() is None:
        absent("cpu", "no C compiler works here")
    x, y = real(1000) * 3, np.abs(real(1000)) + F4(0.1)
    body = "z = tanh(x) * exp(-y) + pow(y, x) - sin(x) / log1p(y) + fma(x, y, erf(x)) + max(x, sqrt(y))"
    found = []
    for name, options in (("cpu", {}), ("gpu", {"driver": "emulator"})):
        made = tensorbackend.Backend.allocate_backend(name, min_dims=0, **options)
        found.append(made.elementwise("T x, T y", "T z", body, "many")(x, y))
        made.cleanup_backend()
    np.testing.assert_array_equal(found[0].view("i4"), found[1].view("i4"))
