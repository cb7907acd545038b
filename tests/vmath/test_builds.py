# SPDX-License-Identifier: Apache-2.0
"""The headers in other hands: the same bits from other flags and compilers, vector code, C++, CUDA."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tensorbackend.backends import toolchain
from tensorbackend.kernel_files import kernel_dir
from tests.vmath import build
from tests.vmath.cases import FUNCTIONS, Function, sample

X86 = platform.machine() in ("x86_64", "AMD64")
PORTABLE = ["-march=x86-64-v3"] if X86 else []
BUILDS = {
    "scalar": ["-O1", "-fno-tree-vectorize", *PORTABLE, *toolchain.NUMERIC_FLAGS],
    "vectors of 32 bytes": ["-O3", *PORTABLE, *toolchain.NUMERIC_FLAGS],
    "C++": ["-O2", *PORTABLE, *toolchain.NUMERIC_FLAGS],
    "clang": ["-O3", *toolchain.NUMERIC_FLAGS],
}
ONE_AT_A_TIME = {"floordiv_i64", "mod_i64", "floordiv_u64", "mod_u64"}
ONE_AT_A_TIME |= {f"pow_{name}" for name in build.INTEGERS}
ONE_AT_A_TIME |= {f"abs_{name}" for name in build.INTEGERS if name.startswith("u")}  # copied as a whole
if "avx512dq" not in toolchain.cpu_features():  # no instruction makes eight bytes of several floats
    ONE_AT_A_TIME |= {f"{real}_to_{integer}" for real in ("f32", "f64") for integer in ("i64", "u64")}


def clang_command(absent: Callable[[str, str], None]) -> list[str]:
    """What starts clang; the test is skipped when there is none."""
    program = shutil.which("clang")
    if program is None and find_spec("ziglang") is None:
        absent("clang", "there is neither clang on PATH nor the ziglang package")
    if program is not None:
        return [program, *PORTABLE]
    return [sys.executable, "-m", "ziglang", "cc", "-fno-sanitize=undefined", *PORTABLE]


@pytest.fixture(scope="module", params=BUILDS)
def others(
    request: pytest.FixtureRequest,
    folder: Path,
    compiler: toolchain.Compiler,
    absent: Callable[[str, str], None],
) -> build.Kernels:
    """kernels.c in each of BUILDS."""
    target = folder / f"{request.param}.so"
    flags = BUILDS[request.param]
    if request.param == "clang":
        command = clang_command(absent)
    elif request.param == "C++":
        command = [shutil.which("c++") or absent("c++", "there is no c++ on PATH"), "-x", "c++"]
    else:
        return build.build_kernels(target, compiler, flags)
    return build.Kernels(build.compile_shared(target, build.HERE / "kernels.c", command, build.strict(flags)))


def assert_same_bits(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Every bit, but that one NaN is as good as another."""
    words = np.dtype(f"u{got.itemsize}")
    wrong = (got.view(words) != expected.view(words)) & ~((got != got) & (expected != expected))
    assert not wrong.any(), f"{what}: {wrong.sum()} results differ, first {got[wrong][0]!r} and {expected[wrong][0]!r}"


@pytest.mark.ci
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_functions_have_the_same_bits_in_every_build(kernels: build.Kernels, others: build.Kernels, dtype: str) -> None:
    extra = [Function(name, 0, 0, arity=2) for name in ("max", "min", "mod", "floordiv")]
    for function in [*FUNCTIONS, *extra]:
        a, b = sample(function, dtype, 1 << 14, seed=6)
        name = f"{function}_{dtype}"
        assert_same_bits(others(name, a, b), kernels(name, a, b), name)


@pytest.mark.ci
def test_conversions_and_random_numbers_have_the_same_bits_in_every_build(
    kernels: build.Kernels, others: build.Kernels
) -> None:
    x = np.random.default_rng(7).integers(0, 1 << 32, 1 << 16, np.uint32).view(np.float32)
    for name in ("f32_to_f16", "f32_to_bf16", *(f"f32_to_{integer}" for integer in build.INTEGERS)):
        assert_same_bits(others(name, x), kernels(name, x), name)
    for name in ("tanh_half", "sigmoid_half"):
        assert_same_bits(others(name, x, out="f32"), kernels(name, x, out="f32"), name)
    both = x, x[::-1]
    for name in ("gate_half", "gate_f32"):
        assert_same_bits(others(name, *both, out="f32"), kernels(name, *both, out="f32"), name)
    assert_same_bits(others.block("store_f16", x), kernels.block("store_f16", x), "store_f16")
    for name in ("randbits", "uniform_f32", "uniform_f64", "normal_f32", "normal_f64"):
        seeds = {"count": 1 << 14, "first": 1 << 40, "draw": 3, "key": 9}
        assert_same_bits(others.random(name, **seeds), kernels.random(name, **seeds), name)
    seeds = {"words": 4, "count": 1 << 10, "first": 1 << 40, "draw": 3, "key": 9}
    assert np.array_equal(others.philox_block(**seeds), kernels.philox_block(**seeds))
    for divisor in np.float32([3, -0.1, 1e-40]):
        assert_same_bits(others.over(x, divisor), kernels.over(x, divisor), f"x / {divisor}")


def test_every_function_but_a_few_becomes_vector_code(kernels: build.Kernels) -> None:
    if kernels.scalar is None or not X86:
        pytest.skip("asks gcc for its notes on vectorised loops, on x86")
    assert kernels.scalar <= ONE_AT_A_TIME, kernels.scalar - ONE_AT_A_TIME


@pytest.mark.ci
def test_without_avx512_only_wide_conversions_are_scalar_beside(others: build.Kernels) -> None:
    if others.scalar is None or "normal_f32" in others.scalar or not X86:
        pytest.skip("for the build by gcc in vectors of 32 bytes, on x86")
    wide = {f"{real}_to_{integer}" for real in ("f32", "f64") for integer in ("i64", "u64")}
    assert others.scalar <= ONE_AT_A_TIME | wide, others.scalar - ONE_AT_A_TIME - wide


UNDEFINED = """
import sys
from pathlib import Path
import numpy as np
from tests.vmath import build, test_floats, test_integers
kernels = build.Kernels(Path(sys.argv[1]))
for dtype in ("f32", "f64"):
    a, b = test_floats.pairs(dtype)
    for function in build.function_names():
        kernels(f"{function}_{dtype}", a, b)
    for integer in build.INTEGERS:
        kernels(f"{dtype}_to_{integer}", a)
for integer in build.INTEGERS:
    a, b = test_integers.pairs(integer)
    for function in ("max", "min", "sign", "abs", "pow", "floordiv", "mod"):
        kernels(f"{function}_{integer}", a, b)
kernels.random("normal_f32", 1000)
kernels.random("normal_f64", 1000)
"""


@pytest.mark.slow
def test_no_function_does_what_c_leaves_undefined(folder: Path, compiler: toolchain.Compiler) -> None:
    checks = ["-fsanitize=undefined,float-cast-overflow", "-fsanitize-undefined-trap-on-error"]
    if compiler.family == "clang":
        checks = ["-fsanitize=undefined,float-cast-overflow", "-fsanitize-trap=all"]
    flags = ["-O1", *PORTABLE, *toolchain.NUMERIC_FLAGS, *checks]
    path = build.compile_shared(folder / "checked.so", build.HERE / "kernels.c", compiler.command, flags)
    done = subprocess.run([sys.executable, "-c", UNDEFINED, str(path)], capture_output=True, text=True, cwd=build.ROOT)
    assert done.returncode == 0, f"ended with {done.returncode} (a negative number is a trap)\n{done.stderr}"


CUDA = """
#include "vmath.h"
#include "half.h"
#include "philox.h"
#define UNARY(name, exact) \
    extern "C" __global__ void name##_kernel(float *x, double *y) { \
        x[threadIdx.x] = tb_##name##_f32(x[threadIdx.x]); \
        y[threadIdx.x] = tb_##name##_f64(y[threadIdx.x]); \
    }
#define BINARY(name, exact) \
    extern "C" __global__ void name##_kernel(float *x, double *y) { \
        x[threadIdx.x] = tb_##name##_f32(x[threadIdx.x], x[0]); \
        y[threadIdx.x] = tb_##name##_f64(y[threadIdx.x], y[0]); \
    }
#include "functions.h"
extern "C" __global__ void others(float *x, double *y, tb_u16 *h, tb_i32 *i) {
    x[0] = tb_normal_f32(tb_philox(i[0], 1, 2)) + tb_f16_to_f32(h[0]) + tb_bf16_to_f32(h[1]);
    y[0] = tb_normal_f64(tb_philox(i[0], 1, 2));
    h[2] = tb_f32_to_f16(x[1]) + tb_f32_to_bf16(x[1]);
    x[3] = tb_tanh_half(x[4]) + tb_sigmoid_half(x[5]) + tb_gate_half(x[6], x[7]) + tb_gate_f32(x[8], x[9]);
    i[1] = tb_floordiv_i32(i[2], i[3]) + tb_f32_to_i32(x[2]) + tb_mod_u8(i[4], i[5]);
}
"""


def test_the_headers_compile_as_cuda(folder: Path, absent: Callable[[str, str], None]) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        absent("nvcc", "there is no nvcc on PATH")
    source = folder / "functions.cu"
    source.write_text(CUDA)
    includes = [f"-I{kernel_dir() / 'c'}", f"-I{build.HERE}"]
    arguments = [nvcc, "-fmad=false", "-cubin", *includes, str(source), "-o", str(folder / "functions.cubin")]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
