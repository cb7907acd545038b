# SPDX-License-Identifier: Apache-2.0
"""The drivers of a device, run without one: on stand-ins for their packages, and names looked up in real ones."""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorbackend import BackendError
from tensorbackend.backends import compiler, driver, gpu
from tensorbackend.backends.driver import Driver, open_driver
from tensorbackend.backends.gpu import GpuBackend
from tensorbackend.errors import CompileError, KernelFault
from tests.gpu import fakes

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
    opened = open_driver(request.param)
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
    assert {"RawModule", "cuda.Stream", "cuda.runtime.memcpyAsync"} <= names
    for name in names:
        found: Any = cupy
        for part in name.split("."):
            found = getattr(found, part)
