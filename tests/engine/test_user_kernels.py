# SPDX-License-Identifier: Apache-2.0
"""User kernels against NumPy: elementwise, pointer style and reductions, their types, layouts and refusals."""

from __future__ import annotations

import numpy as np
import pytest

import tensorbackend
from tensorbackend import BackendError, CompileError, DTypeError, ShapeError, dtypes
from tensorbackend.backends import toolchain
from tensorbackend.user_kernels import elementwise, merged, reduction

MULADD = ("T x, T y", "T z", "z = x * y + 1", "muladd")
SQSUM = ("T x", "T y", "x*x", "a+b", "y = a", "0", "sqsum")


@pytest.fixture(scope="module", params=["cpu", "gpu"])
def be(request, absent):
    """The CPU, and CUDA on the emulator."""
    options = {"cpu": {"threads": 2}, "gpu": {"driver": "emulator"}}[request.param]
    if toolchain.find_compiler() is None:
        absent("cpu", "no C compiler works here")
    made = tensorbackend.Backend.allocate_backend(request.param, min_dims=0, **options)
    yield made
    made.cleanup_backend()


def numbers(shape, dtype="float32", seed=0) -> np.ndarray:
    values = np.random.default_rng(seed).integers(1, 9, shape)
    return values.astype(dtypes.as_dtype(dtype))


# Elementwise


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int32", "int64", "uint64"])
def test_a_placeholder_takes_the_type_of_the_arguments(be, dtype) -> None:
    x, y = numbers((3, 5), dtype), numbers((5,), dtype, 1)
    z = be.elementwise(*MULADD)(be.array(x, dtype=dtype), be.array(y, dtype=dtype))
    assert z.dtype == dtypes.as_dtype(dtype)
    np.testing.assert_array_equal(z.get().astype("f8"), x.astype("f8") * y.astype("f8") + 1)


@pytest.mark.parametrize("shapes", [((3, 4), (4,)), ((2, 1, 3), (4, 1)), ((), (3,)), ((0, 3), (1, 3)), ((1,), (1,))])
def test_inputs_broadcast_as_in_numpy(be, shapes) -> None:
    x, y = (numbers(shape) for shape in shapes)
    z = be.elementwise(*MULADD)(x, y)
    assert isinstance(z, np.ndarray)
    np.testing.assert_array_equal(z, x * y + 1)


def test_strided_views_are_read_and_written_where_they_lie(be) -> None:
    x, out = be.array(numbers((6, 8))), be.zeros((8, 12))
    given, target = x[::2, ::-1], out.T[:6:2, :]
    assert be.elementwise(*MULADD)(given, 2, target) is target
    np.testing.assert_array_equal(target.get(), given.get() * 2 + 1)
    assert np.count_nonzero(out.get()) == 24


def test_long_arrays_are_shared_among_tasks(be) -> None:
    x = numbers((300, 1000))
    np.testing.assert_array_equal(be.elementwise(*MULADD)(x, x[:1]), x * x[:1] + 1)
    index = be.elementwise("T x", "int64 z", "z = i + _ind.size() * (n == _ind.size())", "places")(x)
    np.testing.assert_array_equal(index, np.arange(x.size).reshape(x.shape) + x.size)


def test_an_output_keeps_what_the_body_does_not_write(be) -> None:
    z = be.array(numbers((4, 5)))
    before = z.get()
    be.elementwise("T x", "T z", "if (x > 4) continue; z += x", "add_small")(z, z)
    np.testing.assert_array_equal(z.get(), np.where(before > 4, before, 2 * before))


def test_an_input_that_overlaps_the_output_is_read_first(be) -> None:
    x = be.array(np.arange(10.0))
    be.elementwise("T x", "T y", "y = x + 1", "shift_by_one")(x[:-1], x[1:])
    np.testing.assert_array_equal(x.get(), [0, *np.arange(1, 10)])


def test_several_outputs_come_as_a_tuple(be) -> None:
    x = numbers((4,))
    s, big = be.elementwise("T x", "U s, bool big", "s = x * 0.5; big = x > 4", "two")(x, np.empty(4, "f8")), None
    assert isinstance(s, tuple) and big is None
    np.testing.assert_array_equal(s[0], x * 0.5)
    np.testing.assert_array_equal(s[1], x > 4)
    assert s[1].dtype == np.bool_


def test_raw_arrays_are_indexed_by_the_body(be) -> None:
    x, table = numbers((3, 4), "int32"), numbers((20,), "float16")
    gather = be.elementwise("int32 x, raw T t", "T y", "y = t[x] + t[i]", "gather")
    np.testing.assert_array_equal(gather(x, table), table[x] + table[:12].reshape(3, 4))
    fill = be.elementwise("", "raw T y", "y[n - 1 - i] = i", "fill")
    y = be.zeros((5,), dtype="float32")
    fill(y, size=5)
    np.testing.assert_array_equal(y.get(), np.arange(5)[::-1])
    with pytest.raises(ShapeError, match="size="):
        fill(y)


FUNCTIONS = {
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "sqrt": np.sqrt, "tanh": np.tanh, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "floor": np.floor, "ceil": np.ceil, "fabs": np.abs, "abs": np.abs, "round": np.round,
    "rsqrt": lambda x: 1 / np.sqrt(x), "isnan": np.isnan, "isinf": np.isinf,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_functions_are_those_of_the_type(be, dtype) -> None:
    x = np.array([0.1, 0.3, 0.7, 0.9], dtype)
    for name, meaning in FUNCTIONS.items():
        found = be.elementwise("T x", "T y", f"y = {name}(x)", f"f_{name}")(x)
        np.testing.assert_allclose(found, meaning(x), rtol=20 * np.finfo(dtype).eps, err_msg=name)
    both = be.elementwise("T x, T y", "T z", "z = max(x, y) + 10 * min(x, y) + pow(x, y) + fma(x, y, y)", "pairs")
    y = x[::-1].copy()
    np.testing.assert_allclose(both(x, y), np.maximum(x, y) + 10 * np.minimum(x, y) + x**y + (x * y + y), rtol=1e-6)


def test_a_preamble_brings_functions_of_the_users_own(be) -> None:
    text = "static float max(float a, float b) { return a * 100 + b; }\n#define TWICE(x) (2 * (x))"
    found = be.elementwise("float x", "float y", "y = max(x, TWICE(x))", "own", preamble=text)(numbers((3,)))
    np.testing.assert_array_equal(found, numbers((3,)) * 102)


@pytest.mark.parametrize("name", ["I", "J", "y0", "j1", "main", "tb", "task", "size", "at", "v0", "stride"])
def test_names_of_generated_code_are_free_for_users(be, name) -> None:
    found = be.elementwise(f"T {name}", "T z", f"T n = {name}; {{ int i = 3; z = n * i; }} // done", "names")
    np.testing.assert_array_equal(found(numbers((5,))), numbers((5,)) * 3)


def test_numbers_do_not_widen(be) -> None:
    assert be.elementwise(*MULADD)(np.float16([1, 2]), 0.5).dtype == np.float16
    assert be.elementwise("x, y", "z", "z = x * y + 1")(np.float32([1]), np.float64(3)).dtype == np.float32
    large = be.elementwise("uint64 x, T y", "T z", "z = y + x", "large")(2**63, np.uint64([1]))
    assert large.tolist() == [2**63 + 1]


# The pointer style


def test_the_bias_of_a_linear_layer(be) -> None:
    y, b = numbers((3, 4)), numbers((4,), seed=1)
    out = be.array(y)
    assert be.elementwise("float* y, const float* b, int C", "y[i] += b[i % C]", "linear_bias")(out, b, 4) is None
    np.testing.assert_array_equal(out.get(), y + b)


def test_a_row_wise_outer_product(be) -> None:
    e1, e2 = numbers((5, 3)), numbers((5, 2), seed=1)
    y = be.empty((5, 3, 2), dtype="float32")
    body = "int row = i / (J * K), j = i / K % J, k = i % K;\n y[i] = e1[row*J + j] * e2[row*K + k];"
    kernel = be.elementwise(
        "float* y, const float* e1,\n const float* e2, int J, int K", body, "row_wise_outer_product"
    )
    kernel(y, be.array(e1.T.copy()).T, e2, 3, 2)
    np.testing.assert_array_equal(y.get(), np.einsum("ij,ik->ijk", e1, e2))


def test_prelu_with_its_condition_in_halves(be) -> None:
    x, w = (numbers((2, 3, 4), "float16") - np.float16(4)), np.float16([0.5, 0.25, 2])
    y = be.empty(x.shape, dtype="float16")
    text = "T* y, const T* x, const T* cond, const T* W, int cdim, int rdim"
    be.elementwise(text, "y[i] = cond[i] >= 0 ? x[i] : x[i] * W[(i / rdim) % cdim]", "prelu")(y, x, x, w, 3, 4)
    np.testing.assert_array_equal(y.get(), np.where(x >= 0, x, x * w[:, None]))


def test_pointers_take_arrays_of_their_own_type_only(be) -> None:
    kernel = be.elementwise("float* y, const float* x", "y[i] = x[i]", "copy_it")
    with pytest.raises(TypeError, match="copy_it.*x"):
        kernel(be.zeros((3,)), np.zeros(3))
    with pytest.raises(TypeError, match="pointer"):
        kernel(be.zeros((3,)), 1.0)
    with pytest.raises(ShapeError, match="not contiguous"):
        kernel(be.zeros((3, 4)).T, np.zeros((3, 4), "f4"))


# Reductions


@pytest.mark.parametrize("axis", [None, 0, 1, 2, (0, 2), -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sums_of_squares_over_axes(be, axis, keepdims) -> None:
    x = numbers((3, 4, 5))
    wanted = (x * x).sum(axis=axis, keepdims=keepdims)
    for given in (x, be.array(x), be.array(x.transpose(2, 1, 0).copy()).T):
        found = be.reduction(*SQSUM)(given, axis=axis, keepdims=keepdims)
        np.testing.assert_array_equal(found if isinstance(given, np.ndarray) else found.get(), wanted)


def test_other_reductions(be) -> None:
    x = np.random.default_rng(0).standard_normal((70, 3000)).astype("f4")
    norm = be.reduction("T x", "T y", "x*x", "a+b", "y = sqrt(a)", "0", "l2norm")
    np.testing.assert_allclose(norm(x), np.sqrt((x.astype("f8") ** 2).sum()), rtol=1e-6)
    most = be.reduction("T x", "T y", "fabs(x)", "max(a, b)", "y = a", "-INFINITY", "absmax")
    np.testing.assert_array_equal(most(x, axis=0), np.abs(x).max(0))
    mean = be.reduction("T x, bool m", "T y", "m ? x : 0", "a + b", "y = a / _ind.size()", "0", "masked_mean")
    np.testing.assert_allclose(mean(x, x > 0, axis=1), np.where(x > 0, x, 0).mean(1), rtol=1e-5)
    last = be.reduction("T x", "T y", "x", "b", "y = a", "0", "last")
    np.testing.assert_array_equal(last(x, axis=1), x[:, -1])


def test_halves_add_up_in_float32(be) -> None:
    x = np.full(40_000, 0.25, "f2")
    assert be.reduction("T x", "T y", "x", "a + b", "y = a", "0", "total")(x) == np.float16(10_000)


def test_nothing_gives_the_identity(be) -> None:
    kernel = be.reduction("T x", "T y", "x", "a * b", "y = a", "7", "product")
    assert kernel(np.empty((0, 3), "f4")) == 7
    np.testing.assert_array_equal(kernel(np.empty((0, 3), "f4"), axis=0), [7, 7, 7])
    assert kernel(np.empty((0, 3), "f4"), axis=1).shape == (0,)


def test_a_reduction_writes_where_it_is_told(be) -> None:
    x, out = be.array(numbers((3, 4))), be.zeros((6, 2))
    assert be.reduction(*SQSUM)(x, axis=1, out=out[::2, 1]) is not None
    np.testing.assert_array_equal(out.get()[::2, 1], (x.get() ** 2).sum(1))
    with pytest.raises(ShapeError, match="out"):
        be.reduction(*SQSUM)(x, axis=0, out=out[::2, 1])


# Refusals and memory


def test_the_same_texts_are_the_same_kernel(be) -> None:
    kernel = be.elementwise(*MULADD)
    assert be.elementwise(*MULADD) is kernel
    assert kernel.name == "muladd" and kernel.nargs == 3
    kernel(numbers((3,)), 1)
    assert "x * y + 1" in kernel.source and "tb_" in kernel.explain()


@pytest.mark.parametrize(
    "texts",
    [
        ("T i", "T z", "z = i", "k"), ("T n", "T z", "z = n", "k"), ("T _x", "T z", "z = 1", "k"),
        ("T x, T x", "T z", "z = x", "k"), ("T for", "T z", "z = 1", "k"), ("T x", "", "z = x", "k"),
        ("T x", "T z", "z = x; } {", "k"), ("T x", "T z", "z = (x", "k"), ("T x", "T z", "return", "k"),
        ("text x", "T z", "z = x", "k"), ("T x", "T z", "", "k"), ("T x", "T z", "z = x", "a b"), ("T x", "T z"),
        ("T T", "T z", "z = 1", "k"), ("float** y", "y[i] = 0", "k"), ("T x,", "T z", "z = x", "k"),
    ],
)  # fmt: skip
def test_texts_that_are_no_kernel_are_refused_at_once(texts) -> None:
    with pytest.raises(ValueError):
        elementwise(texts)


@pytest.mark.parametrize(
    "texts",
    [
        ("T x", "T y, T z", "x", "a+b", "y = a", "0", "k"), ("T x", "raw T y", "x", "a+b", "y = a", "0", "k"),
        ("T a", "T y", "a", "a+b", "y = a", "0", "k"), ("T x", "T y", "x; x", "a+b", "y = a", "0", "k"),
        ("T x", "T y", "", "a+b", "y = a", "0", "k"), ("T x", "T y", "x", "a+(b", "y = a", "0", "k"),
    ],
)  # fmt: skip
def test_texts_that_are_no_reduction_are_refused_at_once(texts) -> None:
    with pytest.raises(ValueError):
        reduction(*texts)


def test_compile_errors_name_the_kernel_and_the_users_line(be) -> None:
    with pytest.raises(CompileError, match=r"broken: .*\n  line 2 of the operation: z = x \*;"):
        be.elementwise("T x", "T z", "T t = 1;\nz = x *;", "broken")(numbers((2,)))
    with pytest.raises(CompileError, match=r"writes_input: .*read-only"):
        be.elementwise("T x", "T z", "x = 1; z = x", "writes_input")(numbers((2,)))
    with pytest.raises(CompileError, match="no_semicolon"):
        be.elementwise("T x", "T z", "T t = x z = t", "no_semicolon")(numbers((2,)))


def test_types_that_contradict_are_refused_before_anything_is_written(be) -> None:
    out = be.zeros((2,), dtype="float32")
    with pytest.raises(DTypeError, match="muladd: type of y"):
        be.elementwise(*MULADD)(numbers((2,)), numbers((2,), "float64"), out)
    with pytest.raises(DTypeError, match="nothing says"):
        be.elementwise("T x", "U z", "z = x", "unbound")(numbers((2,)))
    with pytest.raises(ShapeError, match="broadcast"):
        be.elementwise(*MULADD)(numbers((2,)), numbers((3,)))
    with pytest.raises(ShapeError, match="output z"):
        be.elementwise(*MULADD)(numbers((3,)), 1, out)
    with pytest.raises(ShapeError, match="share memory"):
        be.elementwise("T x", "T y, T z", "y = x; z = x", "both")(numbers((2,)), out, out)
    with pytest.raises(TypeError, match="arguments"):
        be.elementwise(*MULADD)(numbers((2,)))
    np.testing.assert_array_equal(out.get(), 0)


def test_without_a_compiler_it_says_so(be) -> None:
    plain = tensorbackend.Backend.allocate_backend("cpu", jit=False)
    with pytest.raises(BackendError, match="compiler"):
        plain.elementwise(*MULADD)(numbers((2,)), 1)
    kernel = plain.elementwise(*MULADD)
    plain.cleanup_backend()
    with pytest.raises(BackendError, match="clos"):
        kernel(numbers((2,)), 1)


def test_spaces_are_merged_where_every_array_is_even() -> None:
    assert merged((2, 3, 4), [(12, 4, 1), (0, 0, 0)]).lengths == (24,)
    assert merged((2, 3, 4), [(12, 4, 1), (0, 4, 1)]).lengths == (2, 12)
    assert merged((2, 1, 4), [(4, 9, 1)]) == merged((8,), [(1,)])
    assert merged((), [()]).lengths == (1,)
