# SPDX-License-Identifier: Apache-2.0
"""The drivers of a device, run without one: on stand-ins for their packages, and names looked up in real ones."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorbackend import BackendError
from tensorbackend.backends import compiler, cuda_conv, cuda_products, devices, driver, gpu
from tensorbackend.backends.cubins import cubin_of
from tensorbackend.backends.cublas import Cublas
from tensorbackend.backends.driver import Driver, open_driver
from tensorbackend.backends.gpu import GpuBackend
from tensorbackend.errors import CompileError, KernelFault
from tensorbackend.primitives.conv import bprop_reference, fprop_reference, update_reference
from tests.gpu import fakes

NOTHING = 'struct f_args { float *o; };\nextern "C" __global__ void f(const f_args a) {}'
BACKENDS = Path(driver.__file__).parent


@pytest.fixture(params=["cupy", "pycuda"])
def device(request: pytest.FixtureRequest, absent: Callable[[str, str], None],
           monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:  # fmt: skip
    """A driver of a device on its stand-in."""
    if compiler.find_compiler() is None:
        absent("cc", compiler.compiler_status())
    modules = {"cupy": fakes.cupy()} if request.param == "cupy" else fakes.pycuda()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a, **k: object())
    name = f"tensorbackend.backends.driver_{request.param}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    library = modules["cupy"].library if request.param == "cupy" else "PyCUDA has no handles"
    monkeypatch.setattr(devices, "nvidia_driver", lambda: library)
    opened = open_driver(request.param)
    assert (opened.native is not None) == (request.param == "cupy")
    monkeypatch.undo()
    opened.blas = None
    yield opened
    opened.close()
    sys.modules.pop(name, None)


@pytest.fixture
def be(device: Driver) -> Iterator[GpuBackend]:
    """A backend on the driver."""
    made = GpuBackend(driver=device, rng_seed=0)
    yield made
    made.cleanup_backend()


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal random numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.slow
def test_a_backend_computes_through_the_driver(be: GpuBackend) -> None:
    x, w = numbers(40, 50), numbers(50, 30, seed=1)
    hidden = be.evaluate(be.maximum(be.dot(be.array(x), be.array(w)), 0))
    np.testing.assert_allclose(hidden.get(), np.maximum(x.astype(float) @ w, 0), rtol=1e-4, atol=1e-4)
    sums = be.evaluate(be.sum(be.softmax(hidden, 1), axis=1)).get()
    np.testing.assert_allclose(sums, 1, rtol=1e-6)
    part = be.array(x)[::2, 1:-1]
    part[:] = part.T.T * 2
    np.testing.assert_array_equal(part.get(), x[::2, 1:-1] * 2)


def test_memory_copies_and_events(device: Driver) -> None:
    host = device.pinned(64)
    host[:] = np.arange(64)
    a, b = device.allocate(64), device.allocate(0)
    assert a % 16 == 0
    device.upload(a, host, wait=False)
    c = device.allocate(64)
    device.copy(c, a, 64)
    device.fill(c, 7, 8)
    start = device.record()
    back = np.empty(64, np.uint8)
    device.download(back, c)
    assert device.elapsed(start, device.record()) >= 0
    np.testing.assert_array_equal(back, [7] * 8 + list(range(8, 64)))
    free, total = device.memory()
    assert 0 < free < total == device.facts.memory
    assert device.stream == 1234
    for address in (a, b, c):
        device.free(address)


def test_transfers_go_by_pinned_memory(be: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    pinned = be.driver.pinned

    def count(nbytes: int) -> np.ndarray:
        asked.append(nbytes)
        return pinned(nbytes)

    monkeypatch.setattr(be.driver, "pinned", count)
    x = be.array(numbers(6, 8))
    np.testing.assert_array_equal(x.get(), numbers(6, 8))
    assert asked == [192, 192]
    assert be.array(np.zeros((0, 3))).get().shape == (0, 3)
    monkeypatch.setattr(gpu, "MOST_PINNED", 100)
    np.testing.assert_array_equal(be.array(numbers(6, 8)).get(), numbers(6, 8))
    assert asked == [192, 192]


def test_memory_is_given_back(be: GpuBackend) -> None:
    before = len(be.driver._live)
    be.evaluate(be.exp(be.array(numbers(20, 30)))).get()
    gc.collect()
    assert len(be.driver._live) == before


def test_freed_memory_serves_the_next_tensor_of_its_size(device: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    first = device.allocate(1000)
    free = device.memory()[0]
    device.free(first)
    assert device.memory()[0] == free + 1024
    assert device.allocate(900) == first
    assert device.memory()[0] == free
    device.free(first)
    monkeypatch.setattr(fakes, "MEMORY", 1000)  # the pool refuses once, and has what was kept then
    asked = []
    pool = device._pool_allocate
    monkeypatch.setattr(device, "_pool_allocate", lambda size: (asked.append(size), pool(size))[1])
    with pytest.raises(BackendError, match="memory is exhausted"):
        device.allocate(5000)
    assert asked == [5120, 5120]
    assert device._kept_bytes == 0
    monkeypatch.setattr(driver, "MOST_KEPT", 0)
    monkeypatch.setattr(fakes, "MEMORY", 1 << 30)
    device.free(device.allocate(100))
    assert device._kept_bytes == 0


def test_a_closed_backend_keeps_no_memory_of_the_device(be: GpuBackend) -> None:
    package = sys.modules[type(be.driver).__module__]
    world = (package.cupy if be.driver.name == "cupy" else package.cuda).world
    x = be.array(numbers(20, 30))
    be.evaluate(x * 2)  # freed at once: kept for the next of its size
    assert be.driver._kept_bytes > 0
    be.cleanup_backend()
    assert be.driver._kept_bytes == 0 and world.trimmed == 1
    np.testing.assert_array_equal(x.get(), numbers(20, 30))


def test_errors_become_ours(device: Driver) -> None:
    with pytest.raises(BackendError, match="the device's memory is exhausted"):
        device.allocate(fakes.MEMORY + 1)
    with pytest.raises(CompileError, match=r"(?s)bad\.cu does not compile for the device.*nonsense"):
        device.compile("int x = nonsense;", "bad.cu")
    source = 'struct f_args { float *o; };\nextern "C" __global__ void f(const f_args a) { a.o[threadIdx.x] = 1; }'
    address = device.allocate(64)
    arguments = address.to_bytes(8, "little")
    function = device.compile(source).function("f")
    device.launch(function, (1,), (16,), 0, arguments)
    with pytest.raises(KernelFault, match=r"(?s)a kernel failed.*illegal memory access"):
        device.launch(function, (1,), (256,), 0, arguments)


@pytest.mark.parametrize("said", [
    "cudaErrorMisalignedAddress: misaligned address", "CUDA_ERROR_LAUNCH_TIMEOUT", "CUDA_ERROR_INVALID_PC",
    "cudaErrorLaunchTimeout: the launch timed out and was terminated",
    "cuEventSynchronize failed: hardware stack error",
    "cudaErrorInvalidAddressSpace: operation not supported on global/shared address space",
    "cuStreamSynchronize failed: invalid program counter",
])  # fmt: skip
def test_errors_after_which_a_context_is_lost_are_faults_of_kernels(said: str) -> None:
    assert isinstance(driver.device_fault("copy", RuntimeError(said)), KernelFault)
    assert not isinstance(driver.device_fault("copy", RuntimeError("cudaErrorInvalidValue: no")), KernelFault)


def test_sizes_of_which_nothing_is_kept_are_forgotten(device: Driver) -> None:
    for nbytes in range(512, 5120, 512):
        first, second = device.allocate(nbytes), device.allocate(nbytes)
        device.free(first)
        device.free(second)
        assert [len(blocks) for blocks in device._kept.values()] == [2]
        assert {device.allocate(nbytes), device.allocate(nbytes)} == {first, second}
        assert not device._kept and not device._kept_bytes


@pytest.mark.parametrize("freed", [0, 1, 2])
def test_what_a_finalizer_takes_while_memory_is_freed_is_not_kept(device: Driver, freed: int) -> None:
    """The last of its size, after which it frees others."""
    first, *others = (device.allocate(100) for _ in range(2 + freed))
    taken = []

    class Disturbed(list):
        def append(self, block: Any) -> None:
            if not taken:
                taken.append(device.allocate(100))
                for other in others[1:]:
                    device.free(other)
            super().append(block)

    device.free(first)
    device._kept[512] = Disturbed(device._kept[512])
    device.free(others[0])
    assert taken == [first]
    found = [device.allocate(100) for _ in others]
    assert sorted(found) == sorted(others)
    assert not device._kept and not device._kept_bytes


def test_a_cublas_that_does_not_start_is_none(device: Driver, monkeypatch: pytest.MonkeyPatch,
                                              caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    class Refused:
        argtypes: list = []

        def __call__(self, *arguments: Any) -> int:
            return 1

    calls = ("cublasCreate_v2", "cublasSetStream_v2", "cublasGemmStridedBatchedEx")
    monkeypatch.setattr(driver, "find_library", lambda: SimpleNamespace(**{name: Refused() for name in calls}))
    del device.blas
    assert device.blas is None
    assert "products go by the tiled kernel" in caplog.text and "status 1" in caplog.text


def test_a_device_older_than_the_compiler_is_named() -> None:
    nvrtc = fakes.cupy().cuda.nvrtc
    with pytest.raises(CompileError, match=r"(?s)NVRTC 13\.0 is too new.*compute capability 6\.1.*7\.5 or more"):
        cubin_of("", "old.cu", (), (6, 1), nvrtc)


def test_captured_programs_become_graphs_where_the_package_has_them(be: GpuBackend) -> None:
    x, w = be.array(numbers(8, 8)), be.ones((8, 8))
    program = be.capture(lambda x: w.__setitem__(slice(None), be.dot(w, x) * 0.5 + w), x)
    expected = np.ones((8, 8))
    for _ in range(5):
        program(x)
    for _ in range(6):
        expected = expected @ numbers(8, 8) * 0.5 + expected
    np.testing.assert_allclose(w.get(), expected, rtol=1e-4, atol=1e-4)
    assert be.driver.has_graphs == (be.driver.name == "cupy")
    assert (program._replay is not None) == be.driver.has_graphs


@pytest.mark.parametrize("foreign", [0, 99])
def test_a_thread_that_has_no_context_or_anothers_launches(be: GpuBackend, foreign: int) -> None:
    x, found = be.array(numbers(8, 8)), []

    def launch() -> None:
        if be.driver.name == "cupy":
            cuda = sys.modules[type(be.driver).__module__].cupy.cuda.driver
            cuda.ctxSetCurrent(foreign)
        x[:] = x * 2 + 1
        function = be.driver.compile(NOTHING).function("f")
        be.driver.launch(function, (1,), (1,), 64 << 10, bytes(8))
        if be.driver.name == "cupy":
            found.append(cuda.ctxGetCurrent())

    other = threading.Thread(target=launch)
    other.start()
    other.join()
    np.testing.assert_array_equal(x.get(), numbers(8, 8) * 2 + 1)
    assert found == [foreign] * (be.driver.name == "cupy")


def test_what_is_forgotten_between_calls_is_not_timed_in_a_graph(device: Driver, tmp_path: Path) -> None:
    if not device.has_graphs:
        pytest.skip("the package has no graphs")
    device.blas = Cublas(fakes.cublas(tmp_path), 0, device.using_device)
    be = GpuBackend(driver=device)  # without a seed: products are timed
    x, w = be.array(numbers(8, 8)), be.ones((8, 8))
    program = be.capture(lambda x: w.__setitem__(slice(None), be.dot(w, x)), x)
    program(x)
    be._forget_plans()  # as changed settings have it
    program(x)
    be.cleanup_backend()


def test_what_is_freed_while_memory_goes_back_is_counted(device: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = device.allocate(1000), device.allocate(5000)
    device.free(first)
    current = device.using_device

    @contextlib.contextmanager
    def disturbed(what: str) -> Iterator[None]:
        with current(what):
            yield
        if what == "free" and second in device._live:
            device.free(second)

    monkeypatch.setattr(device, "using_device", disturbed)
    device.trim()
    assert second not in device._live
    assert device._kept_bytes == sum(size * len(blocks) for size, blocks in device._kept.items())


def test_others_wait_while_a_graph_is_made(be: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    x, found = be.array(numbers(8, 8)), []

    def upload() -> None:
        y = be.array(numbers(8, 8, seed=1))
        y[:] = numbers(8, 8, seed=2)
        be._synchronise()
        found.append(be._elapsed(be._record(), be._record()))

    other = threading.Thread(target=upload)
    monkeypatch.setattr(be.driver, "graph", fakes.disturbed(be.driver.graph, other))
    program = be.capture(lambda x: x.__setitem__(slice(None), x * 2), x)
    for _ in range(3):
        program(x)
    np.testing.assert_array_equal(x.get(), numbers(8, 8) * 16)
    if be.driver.has_graphs:
        other.join()
        assert len(found) == 1


def test_repeated_statements_are_launched_by_native_code(be: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    if be._native is None or be.driver.native is None:
        pytest.skip("the package has no handles of kernels, or there are no native types")
    asked: list[str] = []
    launch = be.driver.launch
    monkeypatch.setattr(be.driver, "launch", lambda function, *a: (asked.append(function.name), launch(function, *a)))
    x, y, o, s = be.array(numbers(40, 50)), be.array(numbers(40, 50, seed=1)), be.empty((40, 50)), be.empty((1, 1))
    long, parts = be.array(numbers(3, 40000)), be.empty((3, 1))
    for k in range(4):
        o[:] = x * k - y  # one launch; a number that changes
        s[:] = be.sum(o)
        parts[:] = be.sum(long, axis=1)  # segments and their sum, through scratch
        o[:, 1:] = o[:, 1:] + x[:, :-1]  # addresses that are no multiples of 16
        with be.fuse():
            y[:] = y * 0.5 + o
            x[:] = x - 0.1 * y
        if k == 1:
            launched = len(asked)
    assert len(asked) == launched  # Python launches each once, or twice
    wanted = replayed(numbers(40, 50), numbers(40, 50, seed=1), 4)
    for found, expected in zip((o, x, y), wanted):
        np.testing.assert_allclose(found.get(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(parts.get(), numbers(3, 40000).sum(1, keepdims=True, dtype=float), rtol=1e-4, atol=1e-3)


def replayed(x: np.ndarray, y: np.ndarray, times: int) -> tuple[np.ndarray, ...]:
    """What the statements of the test above leave, in float64."""
    x, y = x.astype(float), y.astype(float)
    for k in range(times):
        o = x * k - y
        o[:, 1:] += x[:, :-1]
        y = y * 0.5 + o
        x = x - 0.1 * y
    return o, x, y


@pytest.mark.slow
@pytest.mark.parametrize("vendor", [False, True])
def test_repeated_products_and_calls_are_launched_by_native_code(
    be: GpuBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vendor: bool
) -> None:
    if be._native is None or be.driver.native is None:
        pytest.skip("the package has no handles of kernels, or there are no native types")
    if vendor:
        be.driver.blas = Cublas(fakes.cublas(tmp_path), 0, be.driver.using_device)
        monkeypatch.setattr(cuda_products, "VENDOR_FROM", 0)
    asked: list[str] = []
    launch = be.driver.launch
    monkeypatch.setattr(be.driver, "launch", lambda function, *a: (asked.append(function.name), launch(function, *a)))
    w, x, y, b = be.array(numbers(6, 5)), be.array(numbers(5, 8, seed=1)), be.empty((6, 8)), be.array(numbers(6, 1))
    layer = be.pool_layer("float32", "max", 4, 3, H=4, W=4, R=2, S=2, str_h=2, str_w=2)
    images, pooled = be.array(numbers(48, 4)), be.empty(layer.dimO2)
    places, sums, var = be.zeros(layer.dimO2, dtype=np.uint8), be.empty((6, 1)), be.empty((6, 1))
    mean, variance, out = be.zeros((6, 1)), be.ones((6, 1)), be.empty((6, 8))
    expected = numbers(5, 8, seed=1).astype(float)
    for k in range(6):
        y[:] = be.tanh(be.dot(w, x) + b) * k
        x[:] = be.dot(w.T, y[:, ::-1])[:, :] * 0.5  # through a temporary, and a part of the operand
        be.fprop_pool(layer, images, pooled, places)
        be.compound_fprop_bn(y, sums, var, mean, variance, b, b, out, 1e-3, 0.9, True)
        hidden = np.tanh(numbers(6, 5) @ expected + numbers(6, 1)) * k
        expected = numbers(6, 5).T @ hidden[:, ::-1] * 0.5
        if k == 3:
            launched = len(asked)
    assert [name for name in asked[launched:] if name != "gemm"] == []
    assert asked[launched:] == []
    np.testing.assert_allclose(x.get(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(y.get(), hidden, rtol=1e-4, atol=1e-4)
    windows = numbers(48, 4).reshape(3, 2, 2, 2, 2, 4).max(axis=(2, 4))
    np.testing.assert_array_equal(pooled.get(), windows.reshape(pooled.shape))
    away = hidden - hidden.mean(1, keepdims=True)
    wanted = away / np.sqrt(hidden.var(1, keepdims=True) + 1e-3) * numbers(6, 1) + numbers(6, 1)
    np.testing.assert_allclose(out.get(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("skip", [0, 1])
def test_repeated_convolutions_are_launched_by_native_code(
    be: GpuBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, skip: int
) -> None:
    if be._native is None or be.driver.native is None:
        pytest.skip("the package has no handles of kernels, or there are no native types")
    be.driver.blas = Cublas(fakes.cublas(tmp_path), 0, be.driver.using_device)
    monkeypatch.setattr(cuda_conv, "PRODUCTS_FROM", 0)
    asked: list[str] = []
    launch = be.driver.launch
    monkeypatch.setattr(be.driver, "launch", lambda function, *a: (asked.append(function.name), launch(function, *a)))
    layer = be.conv_layer("float32", 4, 3, 5, H=6, W=7, R=3, S=2, pad_h=1)
    g = layer.geometry
    images, filters, errors = (np.round(numbers(*dim, seed=k) * 4) for k, dim in enumerate((g.dimI, g.dimF, g.dimO)))
    # alignment is no part of what a call is known by: of the calls, some have operands off by an element
    x, w, e = ([shifted(be, v, k) for k in (0, 0, 0, 0, skip, 0)] for v in (images, filters, errors))
    y, dx, dw = (be.empty(dim) for dim in (layer.dimO2, layer.dimI2, layer.dimF2))
    launched = -1
    for k in range(6):
        be.fprop_conv(layer, x[k], w[k], y)
        be.bprop_conv(layer, w[k], e[k], dx)
        be.update_conv(layer, x[k], e[k], dw)
        for found, reference, operands in ((y, fprop_reference, (images, filters)),
                                           (dx, bprop_reference, (filters, errors)),
                                           (dw, update_reference, (images, errors))):  # fmt: skip
            expected = reference(*operands, g, np.float64)
            np.testing.assert_array_equal(found.get(), expected.reshape(found.shape))
            found[:] = np.nan
        launched = len(asked) if k == 3 else launched
    assert asked[launched:] == []
    monkeypatch.setattr(driver, "MOST_NOTED", 100)
    assert be.driver.noted(lambda: be._allocate(1000)) is None  # too much of it


def shifted(be: GpuBackend, values: np.ndarray, by: int) -> Any:
    """A matrix whose address is `by` elements beyond a multiple of 16."""
    flat = be.empty((1, values.size + by))
    flat[:, by:] = values.reshape(1, -1)
    return flat[:, by:].reshape(-1, values.shape[-1])


def test_what_native_launches_meet_is_an_error_at_the_next_wait(be: GpuBackend) -> None:
    if be._native is None or be.driver.native is None:
        pytest.skip("the package has no handles of kernels, or there are no native types")
    x = be.array(numbers(40, 50))
    for _ in range(3):
        x[:] = x * 2
    be.driver.native._status.value = 700
    with pytest.raises(KernelFault, match=r"(?s)a kernel failed.*CUDA_ERROR_ILLEGAL_ADDRESS"):
        x.get()
    np.testing.assert_array_equal(x.get(), numbers(40, 50) * 8)


def test_shared_memory_beyond_the_plain_limit_is_asked_for(device: Driver) -> None:
    source = """struct f_args { float *o; };
extern "C" __global__ void f(const f_args a) {
    extern __shared__ float many[];
    many[threadIdx.x * 500] = threadIdx.x;
    __syncthreads();
    a.o[threadIdx.x] = many[(31 - threadIdx.x) * 500];
}"""
    address, out = device.allocate(128), np.zeros(32, np.float32)
    device.launch(device.compile(source).function("f"), (1,), (32,), 64 << 10, address.to_bytes(8, "little"))
    device.download(out, address)
    np.testing.assert_array_equal(out, np.arange(32)[::-1])


def test_a_backend_is_of_one_process_and_offers_its_memory(be: GpuBackend) -> None:
    x = be.ones((3, 4))
    assert x.__dlpack_device__() == (2, 0)
    assert x.__cuda_array_interface__["stream"] == 1234
    assert be.compute_capability == (9, 0)


@pytest.mark.parametrize("said, waited", [({"stream": 77}, [77]), ({}, [1]), ({"stream": None}, [])])
def test_another_librarys_stream_comes_first_and_finds_what_was_written(
    be: GpuBackend, said: dict, waited: list[int]
) -> None:
    def foreign(x: Any) -> Any:
        facts = {"shape": x.shape, "typestr": "<f4", "data": (x.address, False), "version": 3, **said}
        return SimpleNamespace(__cuda_array_interface__=facts)

    x, out, total = be.array(numbers(3, 4)), be.zeros((3, 4)), be.zeros((1, 1))
    double = be.elementwise("T x", "T z", "z = x * 2", "double_it")
    add = be.reduction("T x", "T y", "x", "a + b", "y = a", "0", "add_up")
    asked = getattr(sys.modules[type(be.driver).__module__], "cupy", SimpleNamespace(waited=[])).waited
    for call, written in ((lambda: double(foreign(x)), False), (lambda: double(x, foreign(out)), True),
                          (lambda: add(x, out=foreign(total)), True)):  # fmt: skip
        asked.clear()
        call()
        assert asked == (waited + [1234] * written if be.driver.name == "cupy" else [])
    np.testing.assert_array_equal(out.get(), numbers(3, 4) * 2)
    np.testing.assert_allclose(total.get(), [[numbers(3, 4).sum()]], rtol=1e-5)


# The real packages, where they are installed


def names_used(path: Path, root: str) -> set[str]:
    """The chains of attributes of the module `root` in a source: "cuda.Event" of `cupy.cuda.Event`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        chain: list[str] = []
        while isinstance(node, ast.Attribute):
            chain.insert(0, node.attr)
            node = node.value
        if chain and isinstance(node, ast.Name) and node.id == root:
            found.add(".".join(chain))
    return found


def test_every_name_that_the_driver_takes_from_cupy_is_there(absent: Callable[[str, str], None]) -> None:
    if importlib.util.find_spec("cupy") is None:
        absent("cupy", "CuPy is not installed (pip install tensorbackend[cuda])")
    cupy = importlib.import_module("cupy")
    names = names_used(BACKENDS / "driver_cupy.py", "cupy")
    assert {"cuda.function.Module", "cuda.Stream", "cuda.runtime.memcpyAsync"} <= names
    for name in names:
        found: Any = cupy
        for part in name.split("."):
            found = getattr(found, part)
