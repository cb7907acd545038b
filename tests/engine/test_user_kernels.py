# SPDX-License-Identifier: Apache-2.0
"""User kernels against NumPy: elementwise, pointer style and reductions, their types, layouts and refusals."""

from __future__ import annotations

import copy
import pickle
import re

import numpy as np
import pytest

import tensorbackend
from tensorbackend import BackendError, CompileError, DTypeError, ShapeError, dtypes, using
from tensorbackend.backends import toolchain
from tensorbackend.user_kernels import elementwise, merged, reduction

MULADD = ("T x, T y", "T z", "z = x * y + 1", "muladd")
SQSUM = ("T x", "T y", "x*x", "a+b", "y = a", "0", "sqsum")


@pytest.fixture(scope="module", params=["cpu", "emulator"])
def be(request, absent):
    """The CPU, and CUDA on the emulator."""
    name, options = {"cpu": ("cpu", {"threads": 2}), "emulator": ("gpu", {"driver": "emulator"})}[request.param]
    if toolchain.find_compiler() is None:
        absent("cpu", "no C compiler works here")
    made = tensorbackend.Backend.allocate_backend(name, min_dims=0, **options)
    yield made
    made.cleanup_backend()


def numbers(shape, dtype="float32", seed=0) -> np.ndarray:
    values = np.random.default_rng(seed).integers(1, 9, shape)
    return values.astype(dtypes.as_dtype(dtype))


# Elementwise


def test_inputs_may_be_of_another_byte_order(be) -> None:
    x = numbers((3,), ">f4").astype(">f4")
    found = be.elementwise(*MULADD)(x, x)
    assert found.dtype.isnative and found.tolist() == (x * x + 1).tolist()


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


@pytest.mark.parametrize("of", [copy.copy, copy.deepcopy])
def test_copies_of_what_holds_a_kernel_share_it(be, of) -> None:
    for kernel in (be.elementwise(*MULADD), be.reduction(*SQSUM), tensorbackend.elementwise(*MULADD)):
        (made,) = of([kernel])
        assert made is kernel


def test_kernels_of_all_backends_are_pickled_as_their_texts() -> None:
    x, macros = numbers((2, 3)), {"preamble": "#define TWICE(x) (2 * (x))", "options": ["-DONE=1"]}
    double = tensorbackend.elementwise("T x", "T z", "z = TWICE(x) + ONE", "double", **macros)
    total = tensorbackend.reduction(*SQSUM, **macros)
    double, total = pickle.loads(pickle.dumps([double, total]))
    np.testing.assert_array_equal(double(x), 2 * x + 1)
    np.testing.assert_allclose(total(x), np.square(x).sum(), 1e-6)
    assert (double.name, double.nargs, total.nargs) == ("double", 2, 2)


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


def test_what_a_call_copies_is_there_when_it_runs_in_a_block(be) -> None:
    """Copies are statements, which wait in a `fuse` block: of inputs in an output's way, whole arrays, numbers."""
    x, rows, turned = be.array(np.arange(10.0)), be.array(np.arange(8.0).reshape(4, 2)), be.array(numbers((2, 3))).T
    y, half, host = be.zeros((6,)), be.array(np.float32(2.5), dtype="float16"), np.zeros(4, "f2")
    shift = be.elementwise("T x", "T y", "y = x + 1", "shift_by_one")
    with be.fuse():
        shift(x[:-1], x[1:])
        be.reduction("T x", "T y", "x", "a + b", "y = a", "0", "rows_sum")(rows, axis=1, out=rows[:, 0])
        be.elementwise("T z, raw T x, T a", "T y", "y = z + x[i] * a", "take_flat")(y, turned, half, y)
        be.elementwise("T x", "raw T y", "y[i] = x", "put_flat")(numbers((4,), "float16"), host)
        np.testing.assert_array_equal(host, numbers((4,)))
    np.testing.assert_array_equal(x.get(), [0, *np.arange(1, 10)])
    np.testing.assert_array_equal(rows.get(), [[1, 1], [5, 3], [9, 5], [13, 7]])
    np.testing.assert_array_equal(y.get(), turned.get().ravel() * np.float32(2.5))


def test_several_outputs_come_as_a_tuple(be) -> None:
    x = numbers((4,))
    s, big = be.elementwise("T x", "U s, bool big", "s = x * 0.5; big = x > 4", "two")(x, np.empty(4, "f8")), None
    assert isinstance(s, tuple) and big is None
    np.testing.assert_array_equal(s[0], x * 0.5)
    np.testing.assert_array_equal(s[1], x > 4)
    assert s[1].dtype == np.bool_


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64"])
def test_raw_arrays_are_indexed_by_an_array_of_places(be, dtype) -> None:
    j, body = np.arange(7, dtype=np.int32), "ptrdiff_t at[] = {1, j % 3, j % 4}; z = x[at] + (T)x[ at ];"
    pick = be.elementwise("int32 j, raw T x", "T z", body, "pick")
    for lengths in ((2, 3, 4), (3, 5, 6)):
        x = be.array(numbers(lengths[::-1]), dtype=dtype).transpose((2, 1, 0))  # of any strides
        for each in (x, x, be.copy(x)):  # what follows the first call is remembered
            np.testing.assert_array_equal(pick(j, each), 2 * x.get()[1, j % 3, j % 4])
    out = be.zeros((7, 7), dtype=dtype)
    be.elementwise("int32 j", "raw T y", "int at[2] = {j, 6 - j}; y[at] = j;", "put")(j, out)
    np.testing.assert_array_equal(out.get(), np.diag(j.astype(dtype))[:, ::-1])
    after = be.reduction("int32 j, raw T x", "T y", "x[j]", "a + b", "int at[2] = {1, 2}; y = a + x[at]", "0", "after")
    table = numbers((2, 4), dtype)
    for rows in (1, 20):  # a block each, and a thread each
        found = after(np.broadcast_to(np.arange(3, dtype=np.int32)[:, None], (3, rows)).copy(), table, axis=0)
        np.testing.assert_array_equal(found, np.full(rows, table[0, :3].sum() + table[1, 2]))
    with pytest.raises(CompileError, match="x has 2 axes, and at another number of places"):
        pick(j, table)
    with pytest.raises(ShapeError, match=r"pick: x is indexed by an array of places\n.*without axes\n.*\n.*x\[0\]"):
        pick(j, be.array(np.asarray(1, dtype), min_dims=0))
    with pytest.raises(ShapeError, match=r"after: x is indexed by an array of places"):
        after(np.zeros((3, 2), np.int32), np.asarray(1, dtype), axis=0)


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


def test_what_is_indexed_in_a_comment_alone_is_no_array_of_places(be) -> None:
    body = "int at = (int)i; /* not at[0] */ y = t[at]"
    np.testing.assert_array_equal(be.elementwise("raw T t", "T y", body, "k")(numbers((3,)), size=3), numbers((3,)))


@pytest.mark.parametrize("number", [2.0, 3, True, np.float32(4)], ids=repr)
def test_raw_arrays_are_no_numbers(be, number) -> None:
    with pytest.raises(TypeError, match=r"picked: argument t\n.*\n.*an array: it is raw"):
        be.elementwise("T x, raw T t", "T y", "y = x + t[0]", "picked")(numbers((3,)), number)
    with pytest.raises(TypeError, match=r"picked: argument t\n.*\n.*an array: it is raw"):
        be.reduction("T x, raw T t", "T y", "x + t[0]", "a + b", "y = a", "0", "picked")(numbers((3,)), number)


@pytest.mark.parametrize("size", [-1, True, 2.0, np.float32(2), float("nan"), "2", [2]], ids=repr)
def test_a_size_is_an_int_of_0_or_more(be, size) -> None:
    y = be.zeros((3,), dtype="float32")
    fill = be.elementwise("", "raw T y", "y[i] = 1", "fill_sized")
    by_pointer = be.elementwise("float *y", "y[i] = 1", "fill_pointer")
    for kernel in (fill, by_pointer):
        for known in (1, 2):
            kernel(y, size=known)
        y[:] = 0
        with pytest.raises((TypeError, ValueError), match=f"{kernel.name}: size"):
            kernel(y, size=size)
        assert not y.get().any()
        kernel(y, size=np.int64(2))
        assert y.get().tolist() == [1, 1, 0]


FUNCTIONS = {
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "sqrt": np.sqrt, "tanh": np.tanh, "sin": np.sin,
    "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "floor": np.floor, "ceil": np.ceil, "fabs": np.abs, "abs": np.abs, "round": np.round,
    "rsqrt": lambda x: 1 / np.sqrt(x), "isnan": np.isnan, "isinf": np.isinf,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_functions_are_those_of_the_type(be, dtype) -> None:
    x = np.array([0.1, 0.3, 0.7, 0.9], dtype)
    for name, meaning in FUNCTIONS.items():
        found = be.elementwise("T x", "T y", f"y = {name}(x)", f"f_{name}")(x)
        np.testing.assert_allclose(found, meaning(x), rtol=20 * np.finfo(dtype).eps, err_msg=name)
    both = be.elementwise("T x, T y", "T z", "z = max(x, y) + 10 * min(x, y) + pow(x, y) + fma(x, y, y)", "pairs")
    y = x[::-1].copy()
    np.testing.assert_allclose(both(x, y), np.maximum(x, y) + 10 * np.minimum(x, y) + x**y + (x * y + y), rtol=1e-6)


def test_the_magnitude_of_a_short_integer_is_an_int(be) -> None:
    for dtype in ("int8", "int16"):
        lowest = np.iinfo(dtype).min
        magnitude = be.elementwise(f"{dtype} x", "int32 y, float32 z", "y = abs(x); z = abs(x) + x", "magnitude")
        found, none = magnitude(np.array([lowest, -5, 0], dtype))
        np.testing.assert_array_equal(found, [-lowest, 5, 0])
        np.testing.assert_array_equal(none, 0)


def test_a_preamble_brings_functions_of_the_users_own(be) -> None:
    text = "static float max(float a, float b) { return a * 100 + b; }\n#define TWICE(x) (2 * (x))"
    found = be.elementwise("float x", "float y", "y = max(x, TWICE(x))", "own", preamble=text)(numbers((3,)))
    np.testing.assert_array_equal(found, numbers((3,)) * 102)


@pytest.mark.parametrize("said", ["", "inline", "__device__", "__host__ __device__", "static __forceinline__", "HD"])
def test_a_preamble_may_say_for_which_side_its_functions_are(be, said) -> None:
    define = "#define HD __host__ __device__ __noinline__\n"
    text = f"{define}__constant__ float by[2] = {{1, 2}};\n{said} float sq(float x) {{ return x * x * by[1]; }}"
    x = numbers((3,))
    np.testing.assert_array_equal(
        be.elementwise("float x", "float y", "y = sq(x)", "sides", preamble=text)(x), 2 * x * x
    )


def test_an_inline_function_that_calls_itself(be) -> None:
    text = "inline float fac(float x) { return x < 2 ? 1 : x * fac(x - 1); }"
    found = be.elementwise("float x", "float y", "y = fac(x)", "factorial", preamble=text)(np.float32([1, 2, 5]))
    np.testing.assert_array_equal(found, [1, 2, 120])


def test_two_preambles_may_define_one_name(be) -> None:
    kernels = [
        be.elementwise("float x", "float y", "y = f(x)", "same", preamble=f"float f(float x) {{ return {text}; }}")
        for text in ("x", "x + 1")
    ]
    x = numbers((3,))
    assert [kernel(x).tolist() for kernel in (*kernels, *kernels)] == [x.tolist(), (x + 1).tolist()] * 2


def test_a_template_is_for_devices(be) -> None:
    template, x = "template <class T> T sq(T x) { return x * x; }", numbers((3,))
    either = f"#ifdef __CUDACC__\n{template}\n#else\nfloat sq(float x) {{ return x * x; }}\n#endif"
    for text in (
        either,
        f"{template}\n__device__ float more(float x) {{ return x; }}\nfloat last(float x) {{ return x; }}",
    ):
        kernel = be.elementwise("float x", "float y", "y = sq(x)", "shaped", preamble=text)
        if be.device_type == 1 or text is either:
            np.testing.assert_array_equal(kernel(x), x * x)
        else:
            with pytest.raises(ValueError, match=r"^shaped: a template in the preamble, for the CPU\n.*<class T>"):
                kernel(x)


def test_characters_of_a_preamble_are_no_declarations(be) -> None:
    text = "static int is_brace(int c) { return c == '}' || c == '{'; }\nstatic int any(int c) { return is_brace(c); }"
    found = be.elementwise("int32 x", "int32 y", "y = any(x)", "braces", preamble=text)(np.int32([123, 124, 125]))
    np.testing.assert_array_equal(found, [1, 0, 1])


def test_a_preamble_may_include_a_file_of_the_users_own(be, tmp_path) -> None:
    (tmp_path / "own.h").write_text("#define TWICE(x) (2 * (x))\nstatic float more(float x) { return x + 1; }\n")
    before = f'#include "{tmp_path}/own.h"\n'
    found = be.elementwise("float x", "float z", "z = TWICE(more(x))", "included", preamble=before)(numbers((3,)))
    np.testing.assert_array_equal(found, 2 * (numbers((3,)) + 1))
    with pytest.raises(CompileError, match='^k: .*\n  line 3 of the preamble: #include ".*missing[.]h"'):
        wrong = f"{before}\n{before.replace('own', 'missing')}"
        be.elementwise("float x", "float z", "z = x", "k", preamble=wrong)(numbers((3,)))


def test_options_are_macros(be) -> None:
    text = "static float more(float x) { return x + SIZE; }"
    options = ["-DSIZE=3", "-DON"]
    found = be.elementwise("float x", "float y", "y = ON ? more(x) : 0", "sized", preamble=text, options=options)
    np.testing.assert_array_equal(found(numbers((3,))), numbers((3,)) + 3)
    assert be.elementwise("float x", "float y", "y = SIZE", "k", options=["-DSIZE=4"])(numbers((2,))).tolist() == [4, 4]
    assert be.elementwise("float x", "float y", "y = SIZE", "k", options=["-DSIZE=5"])(numbers((2,))).tolist() == [5, 5]
    for wrong in ("-O3", "-Dx=2", "-Dfor", "-DA=(", "-Dtb_j=1"):
        with pytest.raises(ValueError):
            be.elementwise("float x", "float y", "y = x", "k", options=[wrong])


@pytest.mark.parametrize("how", [{"preamble": "#define AT(k) \\\n (k * i)"}, {"preamble": "", "options": ["-DAT_I=i"]}])
def test_macros_may_ask_for_the_number_of_the_element(be, how) -> None:
    text = "AT(2)" if how["preamble"] else "2 * AT_I"
    found = be.elementwise("T x", "T z", f"z = {text}", "at", **how)(numbers((2, 3)))
    np.testing.assert_array_equal(found, [[0, 2, 4], [6, 8, 10]])
    assert be.reduction("T x", "T z", text, "a + b", "z = a", "0", "at", **how)(numbers((2, 3))) == 30


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


@pytest.mark.parametrize("body", ["(y[i]) = x[i]", "((y[i])) += 1", "y[i] \\\n= x[i]", "T z = exp (y[i]); z = x[i]"])
def test_an_assignment_is_one_in_parentheses_and_on_two_lines_too(body) -> None:
    y, x = elementwise(("float* y, const float* x", body, "copy_it")).inputs
    assert (y.written, x.written) == ("exp" not in body, False)


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


@pytest.mark.parametrize("identity", [-np.inf, np.float32(np.inf), np.nan, True, np.False_, 1e30, -3], ids=repr)
@pytest.mark.parametrize("make", ["be", "tb"])
def test_the_identity_may_be_a_number(be, make, identity) -> None:
    maker = be if make == "be" else tensorbackend
    kernel = maker.reduction("T x", "T y", "x", "b", "y = a", identity, "given")
    np.testing.assert_array_equal(kernel(np.empty((0, 3), "f4")), np.float32(identity))
    assert kernel(numbers((2,))) == numbers((2,))[1]


def test_a_reduction_writes_where_it_is_told(be) -> None:
    x, out = be.array(numbers((3, 4))), be.zeros((6, 2))
    assert be.reduction(*SQSUM)(x, axis=1, out=out[::2, 1]) is not None
    np.testing.assert_array_equal(out.get()[::2, 1], (x.get() ** 2).sum(1))
    with pytest.raises(ShapeError, match="out"):
        be.reduction(*SQSUM)(x, axis=0, out=out[::2, 1])


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(70_000,), (3, 40_000), (40_000, 3), (5, 7, 900), (2000, 40)])
def test_long_reductions_keep_the_order_of_elements(be, shape) -> None:
    x = np.random.default_rng(1).integers(0, 1000, shape).astype("i8")
    last = be.reduction("T x", "T y", "x", "b", "y = a", "0", "last")
    total = be.reduction("T x", "T y", "x", "a + b", "y = a", "0", "total")
    for axis in [None, *range(len(shape))]:
        moved = x.reshape(-1) if axis is None else np.moveaxis(x, axis, -1)
        np.testing.assert_array_equal(last(x, axis=axis), moved[..., -1])
        np.testing.assert_array_equal(total(x, axis=axis), x.sum(axis=axis))


def test_a_sum_is_the_same_for_any_number_of_threads() -> None:
    x = np.random.default_rng(0).standard_normal((300, 4000)).astype("f4")
    found = []
    for threads in (1, 2, 3):
        made = tensorbackend.Backend.allocate_backend("cpu", min_dims=0, threads=threads)
        if not made.jit:
            pytest.skip("no C compiler works here")
        total = made.reduction("T x", "T y", "x * x", "a + b", "y = a", "0", "total")
        found.append([total(x, axis=axis) for axis in (None, 0, 1)])
        made.cleanup_backend()
    for others in found[1:]:
        for a, b in zip(found[0], others):
            np.testing.assert_array_equal(a, b)


# Calls again


def test_calls_of_known_layouts_do_the_same(be) -> None:
    muladd = be.elementwise(*MULADD)
    for seed in range(4):
        x, y = numbers((3, 4), seed=seed), numbers((4,), seed=seed + 9)
        a, b, out = be.array(x), be.array(y), be.empty((3, 4))
        np.testing.assert_array_equal(muladd(a, b).get(), x * y + 1)
        assert muladd(a, b, out) is out
        np.testing.assert_array_equal(out.get(), x * y + 1)
        np.testing.assert_array_equal(muladd(x, y), x * y + 1)
        np.testing.assert_array_equal(muladd(a, seed).get(), x * seed + 1)
        host = np.zeros_like(x)
        assert muladd(x, y, host) is host
        np.testing.assert_array_equal(host, x * y + 1)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_])
def test_calls_with_numbers_of_numpy_are_known(be, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = be.elementwise("T x, T y", "T z", "z = x * y", "scale")
    total = be.reduction("T x, T y", "T z", "x * y", "a + b", "z = a", "0", "scaled_sum")
    a = be.array(numbers((3, 4)))
    first = scale(a, kind(1)).get(), total(a, kind(1)).get()
    for kernel in (scale, total):
        monkeypatch.setattr(kernel, "_first", None)
    for again in range(2):
        np.testing.assert_array_equal(scale(a, kind(again)).get(), first[0] * again)
        np.testing.assert_allclose(total(a, kind(again)).get(), first[1] * again)


def test_known_layouts_do_not_hide_what_overlaps(be) -> None:
    shift = be.elementwise("T x", "T y", "y = x + 1", "shift_by_one")
    apart, buffer = be.array(np.arange(20.0)), be.array(np.arange(10.0))
    for _ in range(2):
        shift(apart[:9], apart[10:19])
    shift(buffer[:-1], buffer[1:])
    np.testing.assert_array_equal(buffer.get(), [0, *np.arange(1, 10)])
    same = be.array(np.arange(5.0))
    for k in range(3):
        shift(same, same)
        np.testing.assert_array_equal(same.get(), np.arange(5.0) + k + 1)
    total = be.reduction("T x", "T y", "x", "a + b", "y = a", "0", "total")
    rows = be.array(np.ones((4, 4)))
    for _ in range(3):
        before = rows.get()
        total(rows, axis=0, out=rows[0])
        np.testing.assert_array_equal(rows[0].get(), before.sum(0))


def test_calls_on_columns_of_one_matrix_are_known(be, monkeypatch: pytest.MonkeyPatch) -> None:
    shift = be.elementwise("T x", "T y", "y = x + 1", "shift_columns")
    steps = be.zeros((5, 4))
    shift(steps[:, 0:1], steps[:, 1:2])
    monkeypatch.setattr(shift, "_first", None)
    for t in (1, 2):
        shift(steps[:, t : t + 1], steps[:, t + 1 : t + 2])
    np.testing.assert_array_equal(steps.get(), np.tile([0, 1, 2, 3], (5, 1)))


def test_known_layouts_do_not_hide_what_may_not_be_written() -> None:
    made = tensorbackend.Backend.allocate_backend("cpu", min_dims=0)
    if not made.jit:
        pytest.skip("no C compiler works here")
    bias = made.elementwise("float* y, const float* b", "y[i] += b[i]", "bias")
    y, b = np.zeros(3, "f4"), np.ones(3, "f4")
    for _ in range(2):
        bias(y, b)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        bias(y, b)
    np.testing.assert_array_equal(y, 2)
    made.cleanup_backend()


def test_read_only_outputs_are_refused_before_anything_is_written(be) -> None:
    x, first, second = numbers((3,)), np.zeros(3, np.float32), np.zeros(3, np.float32)
    second.flags.writeable = False
    with pytest.raises(ValueError, match="two: output q\n.*a read-only array"):
        be.elementwise("T x", "T p, T q", "p = x; q = x", "two")(x, first, second)
    assert not first.any()
    with pytest.raises(ValueError, match="sqsum: output y\n.*a read-only array"):
        be.reduction(*SQSUM)(x, axis=(), out=second)
    with pytest.raises(ValueError, match="into: output y\n.*a read-only array"):
        be.elementwise("float* y, const float* x", "y[i] = x[i]", "into")(second, x)


def test_known_layouts_do_not_hide_where_no_element_may_lie() -> None:
    made = tensorbackend.Backend.allocate_backend("cpu", min_dims=0)
    if not made.jit:
        pytest.skip("no C compiler works here")
    shift = made.elementwise("T x", "T y", "y = x + 1", "shift_elsewhere")
    total = made.reduction("T x", "T y", "x", "a + b", "y = a", "0", "total_elsewhere")
    odd = np.ndarray((3,), np.float32, bytearray(16), 1)
    for _ in range(2):
        for call in (lambda x: shift(x), lambda x: shift(np.zeros(3, "f4"), x), lambda x: total(x)):
            call(np.zeros(3, "f4"))
            with pytest.raises(ValueError, match="alignment"):
                call(odd)
    assert not odd.any()
    made.cleanup_backend()


def test_looking_shows_user_kernels(be, caplog) -> None:
    muladd = be.elementwise(*MULADD)
    x = be.array(numbers((3, 4)))
    found = be.explain(lambda: muladd(x, 2))
    (step,) = found.steps
    assert (step.name, step.reason, step.nbytes) == ("muladd", "a user kernel", 2 * 48)
    assert "z = x * y + 1" in step.source and step.seconds > 0
    with using(debug=2):
        muladd(x, 2)
    assert "muladd" in caplog.text


def test_a_captured_program_repeats_user_kernels(be) -> None:
    muladd, total = be.elementwise(*MULADD), be.reduction("T x", "T y", "x", "a + b", "y = a", "0", "total")

    def work(x, scale):
        return total(muladd(x, scale), axis=0)

    x, y = be.array(numbers((3, 4))), be.array(numbers((3, 4), seed=5))
    program = be.capture(work, x, 2.0)
    np.testing.assert_array_equal(program(y, 3.0).get(), (y.get() * 3 + 1).sum(0))


def test_user_kernels_of_a_program_are_native_calls_among_the_others() -> None:
    be = tensorbackend.gen_backend("cpu", rng_seed=1)
    scale = be.elementwise("T x, float64 f", "T y, T z", "y = y * f + x; z = x - y", "scale")
    total = be.reduction("T x, int32 m", "T y", "x * m", "a + b", "y = a", "0", "total")
    x, y, w = be.array(numbers((200, 300))), be.ones((200, 300)), be.zeros((1, 1))

    def work(x, rate, count):
        made = be.evaluate(x * 2)
        scale(made, rate, y, x)  # y is read too, x written
        w[:] = total(x, count) + w
        return total(be.evaluate(y - x), 3, axis=1)

    calls, results = [(2.0, 3), (0.5, 7), (-1.5, 2)], []
    program = be.capture(work, x, 1.0, 1)
    assert program.calls == 3 and len(program._runs) == 1 and not program._others
    start = [be.copy(t) for t in (x, y, w)]
    for call in (program, work):
        for t, saved in zip((x, y, w), start):
            t[:] = saved
        results.append([[call(x, *n).get().tobytes(), *(t.get().tobytes() for t in (x, y, w))] for n in calls])
    assert results[0] == results[1]
    assert program.peak_bytes > 0 and "total" in "".join(program.steps())


# On whichever backend


def test_kernels_of_all_backends_run_where_their_arguments_are(be) -> None:
    muladd = tensorbackend.elementwise(*MULADD)
    total = tensorbackend.reduction("T x", "T y", "x", "a + b", "y = a", "0", "total")
    x = numbers((3, 4))
    made = muladd(be.array(x), 2)
    assert made.backend is be
    np.testing.assert_array_equal(made.get(), x * 2 + 1)
    assert isinstance(muladd(x, 2), np.ndarray)
    np.testing.assert_array_equal(total(x, axis=1), x.sum(1))
    assert (muladd.name, muladd.nargs) == ("muladd", 3)
    assert "x * y + 1" in muladd.source and "muladd" in muladd.explain()
    with pytest.raises(ValueError):
        tensorbackend.elementwise("T x", "T z", "z = (x", "k")


def test_results_are_remembered_by_arguments_and_by_backend() -> None:
    calls = []

    @tensorbackend.memoize()
    def plain(x, y=1):
        calls.append((x, y))
        return x + y

    assert [plain(1), plain(1), plain(1, y=2), plain(1.0)] == [2, 2, 3, 2.0]
    assert calls == [(1, 1), (1, 2), (1.0, 1)]
    tensorbackend.clear_memo()
    assert plain(1) == 2 and len(calls) == 4

    @tensorbackend.memoize(for_each_device=True)
    def device():
        return tensorbackend.current_backend()

    first = tensorbackend.gen_backend("cpu", jit=False)
    assert device() is first is device()
    second = tensorbackend.gen_backend("cpu", jit=False)
    assert device() is second
    tensorbackend.cleanup_backend()


def test_arrays_of_a_device_are_used_where_they_lie(be) -> None:
    if be.device_type != 1:
        pytest.skip("the host's arrays are NumPy's")

    class Foreign:
        """An array of another package."""

        def __init__(self, tensor, strides=None):
            self.tensor = tensor
            facts = {"shape": tensor.shape, "typestr": "<f4", "data": (tensor.address, False), "version": 3}
            self.__cuda_array_interface__ = {**facts, "strides": strides}

    x, out = be.array(numbers((3, 4))), be.zeros((4, 3))
    muladd = be.elementwise(*MULADD)
    np.testing.assert_array_equal(muladd(Foreign(x), 2).get(), x.get() * 2 + 1)
    muladd(Foreign(x.T, (4, 16)), 2, Foreign(out))
    np.testing.assert_array_equal(out.get(), x.get().T * 2 + 1)


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


HARMLESS = {
    "a comment at the end": ("z = x // done", 1), "a semicolon in a comment": ("z = x // a;", 1),
    "a brace in a comment": ("z = x; /* } */", 1), "a string": ('const char *s = "/* } //"; z = x + s[0] * 0', 1),
    "a quote": ("char c = '\"'; z = x * (c == 34)", 1), "names of ours": ("T I = x, v0 = I, task = v0; z = task", 1),
    "i and n of its own": ("int n = 3, i = 1; z = x * n * i", 3),
    "a macro": ("\n#define I 5\nz = x * I\n#undef I\n", 5),
    "continue": ("z = x; if (x > 0) continue; z = 9", 1), "goto": ("z = x; goto end; z = 9; end: ;", 1),
    "nested calls": ("z = x * max(min(min(min(min(min(min(x, 1), 2), 3), 4), 5), 6), 1)", 1),
    "printf": ('if (x < 0) printf("%f\\n", (double)x); z = x', 1), "other letters": ("z = x; // \u00e9", 1),
}  # fmt: skip
REFUSED = {
    "return": "if (x > 1) return; z = x", "an open comment": "z = x /* a", "an open string": 'z = "abc; z = x',
    "an open brace": "{ z = x", "braces that leave": "z = x; } while (0); do {", "a last backslash": "z = x \\",
    "our names": "tb_j = 0; z = x", "a macro for a parameter": "\n#define x 3\nz = x",
    "#line": '\n#line 5 "a"\nz = x',
}  # fmt: skip
BROKEN = {
    "a missing semicolon": ("T t = x\nz = t", 2), "an input that is written": ("x = 1; z = x", 1),
    "an unknown name": ("z = 1;\nz = x + foo", 2), "an unknown function": ("T t = 1;\nz = foo(x) + t", 2),
    "an open #if": ("z = x\n#if 0\n", 2), "#error": ("\n#error no\nz = x", 2),
}  # fmt: skip
PREAMBLES = {
    "a macro of itself": ("#define LOOP(x) LOOP(x) + LOOP(x)", "z = LOOP(x)", CompileError),
    "a macro without an end": ("#define M 1 \\", "z = x + M", ValueError),
    "a macro for a type": ("#define float double", "z = x", ValueError),
    "an open brace": ("static int f(void) {", "z = x", ValueError),
    "an open #if": ("#if 0\n", "z = x", CompileError),
    "a macro that does not fit": ("#define F(x) x +* 2\n", "z = F(x)", CompileError),
}  # fmt: skip


@pytest.mark.parametrize("case", HARMLESS)
def test_a_body_may_hold(be, case) -> None:
    body, factor = HARMLESS[case]
    x = numbers((7,))
    np.testing.assert_array_equal(be.elementwise("T x", "T z", body, "harmless")(x), x * factor)


@pytest.mark.parametrize("case", REFUSED)
def test_a_body_that_would_reach_beyond_itself_is_refused(case) -> None:
    with pytest.raises(ValueError, match="refused: "):
        elementwise(("T x", "T z", REFUSED[case], "refused"))


@pytest.mark.parametrize("case", BROKEN)
def test_a_compile_error_names_the_line(be, case) -> None:
    body, line = BROKEN[case]
    with pytest.raises(CompileError, match=rf"^broken: .*\n  line {line} of the operation: "):
        be.elementwise("T x", "T z", body, "broken")(numbers((2,)))


@pytest.mark.parametrize("case", PREAMBLES)
def test_a_preamble_cannot_break_what_follows(be, case) -> None:
    preamble, body, kind = PREAMBLES[case]
    with pytest.raises(kind, match=r"^broken: .*\n  (line \d+ of|given)"):
        be.elementwise("T x", "T z", body, "broken", preamble=preamble)(numbers((2,)))


@pytest.mark.slow
def test_a_compiler_that_does_not_end_is_stopped(be) -> None:
    twice = "\n".join(f"#define A{k + 1}(x) A{k}(A{k}(x))" for k in range(1, 5))
    with using(compile_timeout=1.0), pytest.raises(CompileError, match="endless: [\\s\\S]*did not finish"):
        be.elementwise("T x", "T z", "z = x; A5(z += 1;)", "endless", preamble=f"#define A1(x) x x x x\n{twice}")(
            numbers((2,))
        )


NO_NAMES = ["class", "new", "blockIdx", "tb_x", "for", "i", "n", "NAN", "linux", "compl", "static_cast", "wchar_t",
            "static_assert", "thread_local", "typeof", "ptrdiff_t", "co_await"]  # fmt: skip


@pytest.mark.parametrize("name", NO_NAMES)
def test_words_of_both_languages_are_no_parameters(name) -> None:
    with pytest.raises(ValueError, match="name of a parameter"):
        elementwise((f"T {name}", "T z", "z = 1", "named"))


@pytest.mark.parametrize("letter", ["i", "n", "a"])
def test_letters_that_mean_something_else_are_no_types(letter: str) -> None:
    refused = rf"typed: type of a parameter\n.*'{letter}'\n.*another letter; not "
    with pytest.raises(ValueError, match=f"{refused}a, b, i, n"):
        reduction(f"{letter} x", f"{letter} y", "x", "a + b", "y = a", "0", "typed")
    if letter != "a":
        with pytest.raises(ValueError, match=f"{refused}i, n"):
            elementwise((f"{letter} x", f"{letter} z", f"z = ({letter})(x + 1)", "typed"))


def test_two_parameters_of_one_name_are_refused() -> None:
    for texts in (("T x, T x", "T z"), ("T x", "T x")):
        with pytest.raises(ValueError, match=r"twice: two parameters of one name\n.*'x'"):
            elementwise((*texts, "z = x", "twice"))


@pytest.mark.parametrize(("inputs", "outputs"), [("T x, U y", "T U"), ("float32 x, T float32", "T z"), ("T T", "T z")])
def test_a_parameter_that_is_called_as_a_type_is_told_why(inputs: str, outputs: str) -> None:
    with pytest.raises(ValueError, match=r"name of a parameter\n.*'(U|T|float32)'\n.*not i, n, their types, words"):
        elementwise((inputs, outputs, "z = x", "typed"))


def test_compile_errors_name_the_kernel_and_the_users_line(be) -> None:
    with pytest.raises(CompileError, match=r"broken: .*\n  line 2 of the operation: z = x \*;"):
        be.elementwise("T x", "T z", "T t = 1;\nz = x *;", "broken")(numbers((2,)))
    with pytest.raises(CompileError, match=r"open: .*\n  line 1 of the operation: z = x \+\n"):
        be.elementwise("T x", "T z", "z = x +", "open")(numbers((2,)))
    with pytest.raises(CompileError, match=r"writes_input: .*read-only"):
        be.elementwise("T x", "T z", "x = 1; z = x", "writes_input")(numbers((2,)))
    with pytest.raises(CompileError, match="no_semicolon"):
        be.elementwise("T x", "T z", "T t = x z = t", "no_semicolon")(numbers((2,)))


@pytest.mark.parametrize("label, place, text", [("map", 2, "x +"), ("reduce", 3, "a +"), ("identity", 5, "(int)")])
def test_expressions_of_a_reduction_that_are_not_whole_are_named(label, place, text, be) -> None:
    texts = ["T x", "T y", "x", "a + b", "y = a", "0", "unfinished"]
    texts[place] = text
    with pytest.raises(CompileError, match=rf"unfinished: .*\n  line 1 of the {label}: {re.escape(text)}\n"):
        be.reduction(*texts)(numbers((2,)))


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


def test_none_stands_for_an_output_to_be_made_and_for_nothing_else(be) -> None:
    both = be.elementwise("T x", "T y, T z", "y = x; z = x + 1", "both")
    x, out = be.ones((2, 3)), be.empty((2, 3))
    for host in (x, x.get()):
        made, given = both(host, None, out)
        assert given is out and type(made) is type(both(x)[0])
        np.testing.assert_array_equal(made.get(), 1)
        np.testing.assert_array_equal(out.get(), 2)
        assert [np.asarray(y).tolist() for y in both(host, None, None)] == [[[1] * 3] * 2, [[2] * 3] * 2]
    for texts in (("float32 x, T y", "T z", "z = x + y"), ("const float* x, float* y", "y[i] = x[i]")):
        with pytest.raises(TypeError, match="argument x"):
            be.elementwise(*texts, "none")(None, out)
    with pytest.raises(TypeError, match="argument x"):
        be.reduction("float32 x, T y", "T z", "x + y", "a + b", "z = a", "0", "none")(None, out)
    np.testing.assert_array_equal(out.get(), 2)


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
