# SPDX-License-Identifier: Apache-2.0
"""The CUDA emulator: what kernels compute in it, in every order of threads, and the defects it finds.

The kernels lie in kernels.cu, compiled once; each planted defect there is marked.
"""

from __future__ import annotations

import re
import struct

import ml_dtypes
import numpy as np
import pytest

from tensorbackend import Backend
from tensorbackend.backends import emulator_check
from tensorbackend.backends.driver import open_driver
from tensorbackend.backends.emulator_source import kernels_of, translate
from tensorbackend.errors import BackendError, CompileError, KernelFault

LANES = np.arange(32)


def line_of(source: str, text: str) -> int:
    """The number of the first line of `source` that holds `text`."""
    return next(number for number, line in enumerate(source.splitlines(), 1) if text in line)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


# Correct kernels ------------------------------------------------------------------------------------------------------


def test_add(bench):
    a, b = floats(1000), floats(1000, seed=1)
    out = np.zeros_like(a)
    bench.run("add", out, a, b, 1000, grid=(4,), block=(256,))
    np.testing.assert_array_equal(out, a + b)


def test_tiled_matrix_product(bench):
    a, b = floats(128, 64), floats(64, 192, seed=1)
    c = np.zeros((128, 192), np.float32)
    bench.run("gemm", c, a, b, 128, 192, 64, grid=(3, 2), block=(256,))
    np.testing.assert_allclose(c, a.astype(float) @ b, atol=1e-4)


def test_shuffles(bench):
    values = np.arange(32, dtype=np.int32) * 3
    out = np.zeros((6, 32), np.int32)
    bench.run("shuffles", out, values, 9)
    down_in_segments = np.where(LANES % 8 + 3 < 8, LANES + 3, LANES)
    sources = [
        np.full(32, 9),
        np.where(LANES >= 3, LANES - 3, LANES),
        np.where(LANES < 29, LANES + 3, LANES),
        LANES ^ 5,
        down_in_segments,
    ]
    for row, source in zip(out, sources):
        np.testing.assert_array_equal(row, values[source])
    np.testing.assert_array_equal(out[5], values[LANES ^ 16] * 2 + 1)


def test_votes(bench):
    values = np.random.default_rng(3).integers(-9, 9, 32).astype(np.int32)
    out = np.zeros((6, 32), np.int32)
    bench.run("votes", out, values, 0)
    ballot = sum(1 << int(lane) for lane in np.flatnonzero(values > 0))
    remainders = np.fmod(values, 3)
    matches = [sum(1 << int(lane) for lane in np.flatnonzero(remainders == r)) for r in remainders]
    np.testing.assert_array_equal(out[0].astype(np.uint32), np.full(32, ballot))
    np.testing.assert_array_equal(out[1], 0)
    np.testing.assert_array_equal(out[2], 1)
    np.testing.assert_array_equal(out[3].astype(np.uint32), matches)
    np.testing.assert_array_equal(out[4], values.sum())
    np.testing.assert_array_equal(out[5], np.repeat([values[:16].sum(), values[16:].sum()], 16))


def test_lanes_that_left_are_not_waited_for(bench):
    values = np.ones(32, np.int32)
    out = np.zeros(32, np.int32)
    bench.run("leavers", out, values, 0)
    np.testing.assert_array_equal(out, [(1 << 20) - 1] * 20 + [0] * 12)


def test_votes_of_a_block(bench):
    values = np.where(np.arange(96) % 4 == 0, 1, -1).astype(np.int32)
    values[50] = 77
    out = np.zeros(96, np.int32)
    bench.run("block_votes", out, values, 0, block=(24, 4))
    np.testing.assert_array_equal(out, 25 + 1000 + 10000)


def test_atomics(bench):
    ints = np.array([0, 0, 0, 0, 0], np.int32)
    words = np.array([0, 255, 0, 0], np.uint32)
    longs = np.zeros(2, np.uint64)
    single, double = np.zeros(1, np.float32), np.zeros(1)
    bench.run("atomics", ints, words, longs, single, double, grid=(3,), block=(64,))
    np.testing.assert_array_equal(ints, [191 * 96, 191, -191, 5, -192])
    np.testing.assert_array_equal(words, [0xFFFFFFFF, 0, 0, 192 % 10])
    np.testing.assert_array_equal(longs, [192 << 40, 191])
    assert (single[0], double[0]) == (192, 96)


def test_vector_types_and_bits(bench):
    a = floats(32, 4)
    out = np.zeros_like(a)
    bench.run("vectors", out, a, a, 0)
    expected = np.stack([a[:, 0] + a[:, 1], a[:, 2] + a[:, 3], a[:, 0], np.full(32, 8 + 31 + 4 + 4)], axis=1)
    np.testing.assert_array_equal(out, expected.astype(np.float32))


def test_halves_round_as_numpy_does(bench):
    edges = [
        0.0,
        -0.0,
        65504.0,
        65519.0,
        65520.0,
        1e9,
        -1e9,
        2.0**-14,
        2.0**-24,
        2.0**-25,
        3 * 2.0**-26,
        np.inf,
        -np.inf,
    ]
    a = np.concatenate([edges, floats(243).astype(float) * 10.0 ** np.linspace(-8, 5, 243)]).astype(np.float32)
    h, b = np.zeros((256, 2), np.float16), np.zeros((256, 2), ml_dtypes.bfloat16)
    bench.run("halves", h, b, a, grid=(8,))
    with np.errstate(over="ignore", invalid="ignore"):
        halves = a.astype(np.float16)
        np.testing.assert_array_equal(h[:, 0], halves)
        np.testing.assert_array_equal(h[:, 1], halves * halves + np.float16(1))
        brains = a.astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(b[:, 0], brains)
        np.testing.assert_array_equal(b[:, 1], (brains.astype(np.float32) * 3).astype(ml_dtypes.bfloat16))


def test_float64_and_integers_become_halves_with_one_rounding(bench):
    """Next to the middle of two halves, where float32 would be the middle itself."""
    near = [1 + 2**-11 + sign * 2**-40 for sign in (-1, 0, 1)] + [2**-25 * (1 + 2**-30), 65520 - 2**-30, 2**-60, np.nan]
    brains = [1 + 2**-8 - 2**-40, 1 + 2**-8, 1 + 2**-8 + 2**-40, 2**30 + 2**22 - 1, 2**30 + 2**22 + 1, 3.4e38, 1e300]
    a = np.array([*near, *(-x for x in near), *brains, *(-x for x in brains), 0, -0.0, np.inf, -np.inf])
    h, b = np.zeros((32, 2), np.float16), np.zeros((32, 2), ml_dtypes.bfloat16)
    bench.run("doubles", h, b, a, block=(32,))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(h[:, 0], a.astype(np.float16))
    below, above = 1.0, 1 + 2**-7
    wanted = [below, below, above, 2.0**30, 2.0**30 + 2**23, float(ml_dtypes.bfloat16(3.4e38)), np.inf]
    np.testing.assert_array_equal(b[14:28, 0].astype(float), [*wanted, *(-x for x in wanted)])
    np.testing.assert_array_equal(b[17:19, 1].astype(float), wanted[3:5])
    np.testing.assert_array_equal(h[17:19, 1], np.inf)


def test_templates_have_shared_memory_of_their_own(bench):
    a, b = floats(32), np.arange(32, dtype=np.int32)
    out = np.zeros((32, 2))
    bench.run("templates", out, a, b)
    np.testing.assert_allclose(out[:, 0], a.sum(), rtol=1e-5)
    np.testing.assert_array_equal(out[:, 1], 496)


def test_dynamic_shared_memory(bench):
    a = floats(4 * 100)
    out = np.zeros_like(a)
    bench.run("reverse", out, a, a, 0, grid=(4,), block=(100,), shared=400)
    np.testing.assert_array_equal(out.reshape(4, 100), a.reshape(4, 100)[:, ::-1])


def test_printf(bench, capfd):
    bench.run("prints", np.zeros(32, np.int32), np.full(32, 42, np.int32), 0, grid=(2,))
    assert sorted(capfd.readouterr().out.splitlines()) == ["thread 3 of block 0 has 42", "thread 3 of block 1 has 42"]


def test_kernels_compile_from_several_sources_with_macros(emulator, make_bench):
    text = 'struct f_args { float *o; };\nextern "C" __global__ void f(const f_args a) { a.o[threadIdx.x] = VALUE; }\n'
    for value in (1, 2):
        out = np.zeros(32, np.float32)
        make_bench(emulator, text, options=(f"-DVALUE={value}",)).run("f", out)
        np.testing.assert_array_equal(out, value)


# Tensor cores ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel, dtype, k", [("mma_f16", np.float16, 16), ("mma_bf16", ml_dtypes.bfloat16, 16)])
def test_matrix_instruction_of_halves(bench, kernel, dtype, k):
    a, b, c = floats(16, k).astype(dtype), floats(8, k, seed=1).astype(dtype), floats(16, 8, seed=2)
    d = np.zeros((16, 8), np.float32)
    bench.run(kernel, d, a, b, c)
    np.testing.assert_allclose(d, a.astype(float) @ b.astype(float).T + c, rtol=1e-5, atol=1e-5)


def test_matrix_instruction_of_tf32(bench):
    a, b, c = floats(16, 8), floats(8, 8, seed=1), floats(16, 8, seed=2)
    d = np.zeros((16, 8), np.float32)
    bench.run("mma_tf32", d, a, b, c)
    cut = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(float) for x in (a, b)]
    np.testing.assert_allclose(d, cut[0] @ cut[1].T + c, rtol=1e-5, atol=1e-5)


def test_asynchronous_copies(bench):
    a = floats(2, 128)
    out = np.zeros((2, 32), np.float32)
    bench.run("copies", out, a, a, 0)
    np.testing.assert_array_equal(out, a[:, 127:95:-1])


def test_a_copy_that_is_not_waited_for_has_not_landed(bench):
    out = np.zeros(32, np.float32)
    bench.run("early_read", out, floats(128), floats(1), 0)
    assert np.isnan(out).all()


# Planted defects ------------------------------------------------------------------------------------------------------


def fault(bench, name: str, *arguments, **launch) -> KernelFault:
    """The fault of a kernel; the driver and the process go on."""
    with pytest.raises(KernelFault) as caught:
        bench.run(name, *arguments, **launch)
    out = np.zeros(1, np.float32)
    bench.run("add", out, np.ones(1, np.float32), np.ones(1, np.float32), 1)
    assert out[0] == 2
    assert caught.value.kernel == name
    return caught.value


def test_a_user_kernel_out_of_bounds_names_the_line_of_its_text() -> None:
    be = Backend.allocate_backend("gpu:emulator")
    x, places = be.ones(3, min_dims=0), be.array([0, 9, 1], dtype=np.int32, min_dims=0)
    look_up = be.elementwise("raw T x, int32 j", "T y", "int m = j;\ny = x[m]", "look_up")
    with pytest.raises(KernelFault, match=re.escape("at        look_up:2: y = x[m]")) as caught:
        look_up(x, places)
    assert caught.value.location == "look_up:2"


def test_write_one_past_the_end(forward, source):
    error = fault(forward, "off_by_one", np.zeros(64, np.float32), floats(1), floats(1), 64, grid=(3,))
    assert error.location == f"kernels.cu:{line_of(source, 'defect: <=')}"
    assert (error.block, error.thread) == ((2, 0, 0), (0, 0, 0))
    assert "byte 256 of a buffer of 256 bytes" in str(error)
    assert "if (i <= a.n) a.o[i] = 1.0f;" in str(error)


def test_write_one_past_an_end_that_no_page_guards(bench):
    error = fault(bench, "off_by_one", np.zeros(63, np.float32), floats(1), floats(1), 63, grid=(2,))
    assert "wrote past the end of a buffer of 252 bytes" in str(error)


def test_read_in_front_of_a_buffer(forward, source):
    a = floats(1024)
    error = fault(forward, "reads_before", np.zeros(32, np.float32), a, a, 1)
    assert error.location == f"kernels.cu:{line_of(source, 'void reads_before')}"
    assert error.thread == (0, 0, 0)
    assert "4 bytes in front of a buffer of 4096 bytes" in str(error)


FAR = """
struct far_args { float *o; long long at; };
extern "C" __global__ void far(const far_args a) { a.o[a.at] = 1.0f; }
"""


@pytest.mark.parametrize("at, message", [
    (1 << 10, "byte 4096 of a buffer of 256 bytes"), (1 << 20, "byte 4194304 of a buffer of 256 bytes"),
    (-(1 << 20), "4194304 bytes in front of a buffer of 256 bytes"), (-500, "wrote in front of a buffer of 256 bytes"),
])  # fmt: skip
def test_an_access_far_away_meets_no_other_buffer(at, message):
    driver = open_driver("emulator")
    function = driver.compile(FAR, "far.cu").function("far")
    addresses = [driver.allocate(1 << 20), driver.allocate(256), driver.allocate(1 << 20)]  # neighbours on both sides
    with pytest.raises(KernelFault, match=message):
        driver.launch(function, (1,), (1,), 0, struct.pack("qq", addresses[1], at))
    for address in addresses:
        driver.free(address)


def test_a_large_frame_is_an_overflow_of_the_stack():
    driver = open_driver("emulator")
    text = "{ volatile float all[50000]; all[a.at] = 1.0f; a.o[0] = all[a.at]; }"
    function = driver.compile(FAR.replace("{ a.o[a.at] = 1.0f; }", text), "frame.cu").function("far")
    with pytest.raises(KernelFault, match="stack overflow"):
        driver.launch(function, (1,), (1,), 0, struct.pack("qq", driver.allocate(256), 0))
    driver.close()


def test_missing_barrier_shows_in_the_order_of_threads(source, make_bench):
    a = floats(64)
    results = {}
    for order in ("forward", "reverse", "random"):
        out = np.zeros_like(a)
        make_bench(open_driver("emulator", order=order), source).run("missing_barrier", out, a, a, 0, block=(64,))
        results[order] = out
    for out in results.values():
        assert np.isnan(out).any()
    assert not np.array_equal(np.isnan(results["forward"]), np.isnan(results["reverse"]))


def test_missing_second_barrier_of_a_tile_gives_wrong_values(emulator, source, make_bench):
    a, b = floats(64, 64), floats(64, 64, seed=1)
    c = np.zeros((64, 64), np.float32)
    make_bench(emulator, source, options=("-DMISSING_BARRIER",)).run("gemm", c, a, b, 64, 64, 64, block=(256,))
    assert np.abs(c - a @ b).max() > 1


def test_overrun_of_static_shared_memory(forward, source):
    a = floats(64)
    error = fault(forward, "static_overrun", np.zeros(64, np.float32), a, a, 1, block=(64,))
    assert error.location == f"kernels.cu:{line_of(source, 'line[threadIdx.x + a.n]')}"
    assert error.thread == (63, 0, 0)
    assert "byte 256 of the shared array line of 256 bytes" in str(error)
    assert "in front of the shared array line" in str(
        fault(forward, "static_overrun", np.zeros(64, np.float32), a, a, -1, block=(64,))
    )


@pytest.mark.parametrize(
    "threads, message", [(64, "byte 256 of 256 bytes of dynamic"), (63, "past the end of its 252")]
)
def test_overrun_of_dynamic_shared_memory(bench, threads, message):
    a = floats(64)
    arguments = (np.zeros(64, np.float32), a, a, 1)
    assert message in str(fault(bench, "dynamic_overrun", *arguments, block=(threads,), shared=4 * threads))


ROW_OVERRUN = """
struct f_args { float *o; const float *a; long long n; };
extern "C" __global__ void f(const f_args a) {
    __shared__ float rows[4][8];
    rows[0][8 + a.n] = a.a[0];
    a.o[0] = rows[1][a.n];
}
"""


def test_overrun_of_a_row_is_found_when_indices_are_checked(make_bench, source):
    out, a = np.zeros(1, np.float32), np.full(1, 3, np.float32)
    make_bench(open_driver("emulator"), ROW_OVERRUN).run("f", out, a, 2)
    assert out[0] == 3  # as on a device
    checked = make_bench(open_driver("emulator", bounds=True), ROW_OVERRUN, "rows.cu")
    with pytest.raises(KernelFault, match="an array's index is out of its bounds") as caught:
        checked.run("f", out, a, 2)
    assert caught.value.location == "rows.cu:5"


MISALIGNED = """
struct f_args { float *o; const float *a; long long n; };
extern "C" __global__ void f(const f_args a) {
    float4 v = {1, 2, 3, 4};
    if (a.n < 8) v = *(const float4 *)(a.a + a.n);
    *(float4 *)(a.o + a.n % 8) = v;
}
"""


@pytest.mark.parametrize("at, line", [(0, 0), (4, 0), (1, 5), (10, 6)])
def test_an_access_that_is_misaligned_for_a_device(make_bench, forward, at, line):
    out, a = np.zeros(16, np.float32), floats(16)
    bench = make_bench(forward.driver, MISALIGNED, "misaligned.cu")
    if not line:
        bench.run("f", out, a, at, block=(1,))
        np.testing.assert_array_equal(out[at : at + 4], a[at : at + 4])
        return
    with pytest.raises(KernelFault, match="an address is misaligned for its type") as caught:
        bench.run("f", out, a, at, block=(1,))
    assert caught.value.location == f"misaligned.cu:{line}"


def test_barrier_that_some_threads_never_reach(bench, source):
    error = fault(bench, "divergent_exit", np.zeros(64, np.float32), floats(1), floats(1), 40, block=(64,))
    assert "divergent barrier: 40 threads wait at __syncthreads, 24 have left the kernel" in str(error)
    assert error.location == f"kernels.cu:{line_of(source, 'defect: not all come here')}"
    assert error.block == (0, 0, 0)


def test_barriers_in_two_branches(bench, source):
    error = fault(bench, "divergent_branches", np.zeros(64, np.float32), floats(1), floats(1), 40, block=(64,))
    line = line_of(source, "defect: not the same barrier")
    assert "threads of a block meet at different barriers" in str(error)
    assert str(line) in str(error) and str(line - 2) in str(error)


def test_shuffle_that_some_lanes_never_reach(bench):
    a = floats(32)
    error = fault(bench, "divergent_shuffle", np.zeros(32, np.float32), a, a, 7)
    assert "deadlock: it waits in a shuffle for lanes 0xffffffff, of which some wait at the barrier" in str(error)


def test_lane_that_is_not_in_its_mask(forward):
    a = floats(32)
    error = fault(forward, "not_in_mask", np.zeros(32, np.float32), a, a, 0)
    assert "lane 8 is not in the mask 0x000000ff" in str(error)
    assert error.thread == (8, 0, 0)


def test_uninitialised_shared_memory_is_nan(bench):
    out = np.zeros(32, np.float32)
    bench.run("uninitialised", out, floats(1), floats(1), 0)
    assert np.isnan(out[5])
    np.testing.assert_array_equal(np.delete(out, 5), 1)


def test_uninitialised_buffer_is_nan(emulator):
    address = emulator.allocate(64)
    out = np.zeros(16, np.float32)
    emulator.download(out, address)
    assert np.isnan(out).all()


# The same as exceptions: each kernel runs a second time, in another order, with other bytes in what nobody wrote


@pytest.fixture(params=["forward", "reverse", "random"])
def twice(request, source, make_bench):
    """kernels.cu on the emulator, each kernel twice."""
    return make_bench(open_driver("emulator", order=request.param, twice=True), source)


def test_missing_barrier_is_an_exception(twice):
    a = floats(64)
    error = fault(twice, "missing_barrier", np.zeros(64, np.float32), a, a, 0, block=(64,))
    assert "depends on the order of threads" in str(error)
    assert "of a buffer of 256 bytes" in str(error)


def test_uninitialised_read_of_shared_memory_is_an_exception(twice):
    error = fault(twice, "uninitialised", np.zeros(32, np.float32), floats(1), floats(1), 0)
    assert "or on memory that nobody wrote" in str(error)
    assert "byte 20 of a buffer of 128 bytes (4 bytes in all)" in str(error)


@pytest.mark.parametrize("fresh", [True, False])
def test_uninitialised_read_of_a_buffer_is_an_exception(twice, fresh):
    driver = twice.driver
    o, a = driver.allocate(128), driver.allocate(128)
    if not fresh:
        driver.fill(a + 64, 0, 64)
    arguments = struct.pack("4q", o, a, a, 32)
    if fresh:
        with pytest.raises(KernelFault, match=r"(?s)memory that nobody wrote.*of a buffer of 128 bytes"):
            driver.launch(twice.module.function("add"), (1,), (32,), 0, arguments)
    else:
        driver.launch(twice.module.function("add"), (1,), (32,), 0, arguments)
    driver.free(o)
    driver.free(a)


def test_correct_kernels_run_twice_and_leave_what_they_wrote(twice):
    a, b = floats(128, 64), floats(64, 192, seed=1)
    c = np.zeros((128, 192), np.float32)
    twice.run("gemm", c, a, b, 128, 192, 64, grid=(3, 2), block=(256,))
    np.testing.assert_allclose(c, a.astype(float) @ b, atol=1e-4)
    counts = np.zeros(5, np.int32)
    words, longs = np.array([0, 255, 0, 0], np.uint32), np.zeros(2, np.uint64)
    twice.run("atomics", counts, words, longs, np.zeros(1, np.float32), np.zeros(1), grid=(3,), block=(64,))
    np.testing.assert_array_equal(counts, [191 * 96, 191, -191, 5, -192])
    driver = twice.driver
    o, part = driver.allocate(128), np.zeros(32, np.float32)
    driver.launch(twice.module.function("add"), (1,), (32,), 0, struct.pack("4q", o, o, o, 0))  # writes nothing
    driver.download(part, o)
    assert np.isnan(part).all()
    driver.free(o)


def test_bytes_like_those_of_fresh_memory_are_written_all_the_same(twice):
    driver = twice.driver
    text = """struct ones_args { int *o; const int *a; };
extern "C" __global__ void ones(const ones_args a) { a.o[threadIdx.x] = a.a ? a.a[threadIdx.x] : -1; }"""
    function = driver.compile(text).function("ones")
    o, a = driver.allocate(128), driver.allocate(128)
    for target, source in ((a, 0), (o, a)):
        driver.launch(function, (1,), (32,), 0, struct.pack("2q", target, source))
    driver.free(o)
    driver.free(a)


PARTLY = """
struct partly_args { float *o; long long at; };
extern "C" __global__ void partly(const partly_args a) {
    a.o[threadIdx.x] = 1.0f;
    if (a.at) a.o[a.at] = 1.0f;
}
"""


@pytest.mark.parametrize("at", [1 << 10, -2, 63])
@pytest.mark.parametrize("both", [False, True])
def test_a_kernel_that_failed_is_not_held_against_the_next(both, at):
    """It wrote a part of a buffer, and perhaps around it."""
    driver = open_driver("emulator", twice=both)
    function = driver.compile(PARTLY).function("partly")
    first, second = driver.allocate(250), driver.allocate(250)
    with pytest.raises(KernelFault):
        driver.launch(function, (1,), (32,), 0, struct.pack("qq", first, at))
    for address in (second, first):
        driver.launch(function, (1,), (32,), 0, struct.pack("qq", address, 0))
    driver.close()


def test_memory_may_be_given_back_while_a_kernel_runs_twice(twice, monkeypatch):
    driver = twice.driver
    o, garbage = driver.allocate(128), [driver.allocate(4096)]
    bytes_of = emulator_check.Buffers.bytes

    def collected(buffers, address):
        found = bytes_of(buffers, address)
        if garbage:  # as the garbage collector may do anywhere
            driver.free(garbage.pop())
        return found

    monkeypatch.setattr(emulator_check.Buffers, "bytes", collected)
    driver.launch(twice.module.function("add"), (1,), (32,), 0, struct.pack("4q", o, o, o, 0))
    assert len(driver._live) == 1
    driver.free(o)


def test_use_after_free(forward):
    driver = forward.driver
    o, a = driver.allocate(128), driver.allocate(128)
    driver.free(a)
    with pytest.raises(KernelFault, match="which is in no buffer"):
        driver.launch(forward.module.function("add"), (1,), (32,), 0, struct.pack("4q", o, a, o, 32))
    driver.free(o)


def test_assertion_division_by_zero_and_stack(forward, source):
    assert "assertion failed: threadIdx.x < a.n" in str(
        fault(forward, "asserts", np.zeros(1, np.float32), floats(1), floats(1), 9)
    )
    divisors = np.array([5, 4, 0, 2] * 8, np.int32)
    error = fault(forward, "divides", np.zeros(32, np.int32), divisors, 0)
    assert error.thread == (2, 0, 0)
    assert "division by zero" in str(error)
    error = fault(forward, "recurses", np.zeros(32, np.int32), divisors, 1000)
    assert "stack overflow: a thread has 64 KiB" in str(error)


@pytest.mark.parametrize(
    "launch, message",
    [
        ({"block": (2048,)}, r"a block that no device takes"),
        ({"block": (32, 64)}, r"block \(32, 64, 1\) = 2048 threads"),
        ({"block": (512,)}, r"at most 256 \(its launch bounds or registers\)"),
        ({"grid": (1, 70000)}, r"a grid that no device takes"),
        ({"grid": (0,)}, r"a grid that no device takes"),
        ({"shared": 300 << 10}, r"at most 232448 bytes"),
    ],
)
def test_launch_of_a_wrong_size_runs_nothing(forward, launch, message):
    out = np.zeros(32, np.float32)
    with pytest.raises(BackendError, match=message):
        forward.run("add", out, floats(32), floats(32), 32, **launch)


def test_arguments_of_a_wrong_size(forward):
    with pytest.raises(BackendError, match=r"(?s)arguments of another size.*40 bytes.*32 bytes"):
        forward.driver.launch(forward.module.function("add"), (1,), (1,), 0, bytes(40))


# Source ---------------------------------------------------------------------------------------------------------------


def test_a_kernel_in_a_comment_is_none():
    text = (
        '// extern "C" __global__ void a(int)\nextern "C" __global__ void __launch_bounds__((4 * 2), 1) b(const A a) {}'
    )
    assert kernels_of(text) == [("((4 * 2), 1)", "b")]


def test_lines_stay_where_they_were():
    text = "__global__ void f() {\n  __shared__ float\n    a[4],\n    b[2];\n  mark;\n}"
    assert translate(text, "x.cu").splitlines()[2:][4].strip() == "mark;"


@pytest.mark.parametrize("declared", ["float a = 1;", "struct { float x; int n; } a;"])
def test_shared_memory_that_cannot_be_read(declared):
    text = rf"(?s)x\.cu:2: shared memory the emulator cannot read.*__shared__ {re.escape(declared)}"
    with pytest.raises(CompileError, match=text):
        translate(f"__global__ void f() {{\n__shared__ {declared}\n}}", "x.cu")


def test_source_that_does_not_compile_shows_its_line(emulator):
    with pytest.raises(CompileError, match=r"bad\.cu:2:.*nonsense"):
        emulator.compile("struct A {};\nint x = nonsense;\n", "bad.cu")


def test_a_kernel_that_is_not_there(forward):
    with pytest.raises(BackendError, match=r"(?s)no such kernel.*'ad'.*add"):
        forward.module.function("ad")
