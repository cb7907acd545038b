# SPDX-License-Identifier: Apache-2.0
"""The CUDA text of user kernels through NVIDIA's own compiler: every form, every function, preambles, spills."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tensorbackend import dtypes
from tensorbackend.codegen.user import FUNCTIONS, POSITION, Form, UserSource
from tensorbackend.codegen.user_cuda import CudaPrinter
from tensorbackend.user_kernels import elementwise, reduction
from tests.gpu.nvrtc import ARCHITECTURES, compile_cubin, library

PREAMBLE = """
// a comment { "
typedef struct { float a; } pair;
static const float table[2] = {1, 2};
#define TWICE(x) \\
    ((x) * 2)
struct both { float a; int c; };
struct both second = {1, '{'};
struct both made(float x) { struct both b = {x, '}'}; return b; }
float own(float x) { pair p = {x}; return p.a + table[1] + made(x).a + second.a; }
static float max(float a) { return a; }
__device__ float squared(float x) { return x * x; }
static __host__ __device__ __forceinline__ float third(float x) { return squared(x) * x; }
template <class T, int k = 2> T scaled(T x) { return x * k; }
template <typename T> struct held { T a; };
__constant__ float places[2] = {1, 2};
float last(float x) { held<float> h = {scaled(x)}; return third(h.a) + places[1]; }
"""


TYPES = [
    "struct pair { float a; };", "struct __align__(8) pair { float a; };", "union alignas(16) number { int a; };",
    "struct __attribute__((aligned(8))) pair { float a; };", "struct [[maybe_unused]] pair { float a; };",
    "class last final : public pair { };", "enum struct kind : int { A };", "enum { A };", "struct pair;",
]  # fmt: skip
SAID = [
    "__device__ float f(float x) { return x; }", "static __device__ float f(float x) { return x; }",
    "__host__ __device__ float f(float x) { return x; }", "__constant__ float f[2] = {1, 2};",
    "template <class T> __device__ T f(T x) { return x; }", "template <class T> struct f { T a; };",
]  # fmt: skip
MARKED = ["struct pair made(struct pair x) { return x; }", "union number two = {1};", "static int brace = '}';"]


@pytest.fixture
def with_compiler(absent) -> None:
    """NVRTC, or no test."""
    if library() is None:
        absent("nvrtc", "NVRTC is not installed (pip install tensorbackend[cuda-check])")


def compiled(made: UserSource, architectures: tuple[str, ...] = ARCHITECTURES[1:2]) -> None:
    for architecture in architectures:
        used = compile_cubin(made.source, architecture)
        assert set(used) == {made.name, *filter(None, [made.join])}
        assert not any(use.spilled for use in used.values())


def printed_map(body: str, dtype: str, preamble: str = "") -> UserSource:
    kind = dtypes.as_dtype(dtype)
    spec = elementwise(("T x, T y", "T z", body, "mapped"), preamble)
    units = (("z", (-1, 1)), ("x", (-1, 1)), ("y", (0, 1)), (POSITION, (-1, 1)))
    return CudaPrinter(spec, Form((("T", kind),), (kind,) * 3, (False,) * 3, units, 2)).result()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
@pytest.mark.usefixtures("with_compiler")
def test_every_function_compiles_for_a_device(dtype) -> None:
    calls = [f"{name}({', '.join(['x', 'y', 'z'][:count])})" for name, (count, _) in FUNCTIONS.items()]
    for some in (calls[:9], calls[9:18], calls[18:]):
        compiled(printed_map(f"z = {' + '.join(some)} + i / n", dtype))


@pytest.mark.parametrize("before", TYPES)
def test_types_of_a_preamble_are_for_no_side(before) -> None:
    for after in MARKED:
        source = printed_map("z = x", "float32", f"{before}\n{after}\n{after}").source
        assert f"{before}\n__device__ {after}\n__device__ {after}\n" in source
        assert f"__device__ {before}" not in source


@pytest.mark.parametrize("before", SAID)
def test_what_says_its_side_is_left_as_it_is(before) -> None:
    source = printed_map("z = x", "float32", f"{before}\n{MARKED[0]}").source
    assert f"\n{before}\n__device__ {MARKED[0]}\n" in source


def test_a_template_of_a_function_is_for_the_device() -> None:
    source = printed_map(
        "z = x", "float32", "template <class T> T a(T x) { return x; }\nint b(int x) { return x; }"
    ).source
    assert "template <class T> __device__ T a(T x) { return x; }\n__device__ int b(int x)" in source


@pytest.mark.usefixtures("with_compiler")
def test_a_preamble_is_for_the_device() -> None:
    body = 'z = own(x) + last(y) + max(y) + table[i & 1] + TWICE(x); if (z < 0) printf("%f", z)'
    compiled(printed_map(body, "float32", PREAMBLE), ARCHITECTURES)


@pytest.mark.usefixtures("with_compiler")
def test_places_of_a_raw_array_compile_for_a_device() -> None:
    kind = np.dtype(np.float32)
    body = "ptrdiff_t at[] = {i, 1}; int to[1] = {i}; z[to] = x[at] + y[at]"
    spec = elementwise(("raw T x, raw T y", "raw T z", body, "placed"))
    form = Form((("T", kind),), (kind,) * 3, (False,) * 3, ((POSITION, (1,)),), 1, ranks=(("x", 2), ("y", 2), ("z", 1)))
    made = CudaPrinter(spec, form).result()
    compiled(made)
    assert "tb_i64 size[4]" in made.source  # two of the space, one each of x and y


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "int64", "bool"])
@pytest.mark.usefixtures("with_compiler")
@pytest.mark.parametrize("columns, split", list(itertools.product((False, True), repeat=2)))
def test_every_form_of_a_reduction_compiles_for_a_device(dtype, columns, split) -> None:
    kind = np.dtype(dtypes.as_dtype(dtype))
    spec = reduction("T x, raw T t", "T y", "x + t[i]", "max(a, b)", "y = a / n", "0", "reduced")
    units = (("x", (-1, 1, -1)), (POSITION, (-1, -1, 1)))
    form = Form((("T", kind),), (kind,) * 3, (False,) * 3, units, 3, 1, columns, split)
    compiled(CudaPrinter(spec, form).result())
