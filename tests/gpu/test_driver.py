# SPDX-License-Identifier: Apache-2.0
"""The driver interface: what is checked before a driver is asked, how one is opened, and the memory of the emulator.

No device is needed. What the drivers of a device do is in test_device_drivers.py.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from tensorbackend.backends import driver as interface
from tensorbackend.backends.driver import DeviceDriver, DeviceFacts, Function, check_launch, device_fault, open_driver
from tensorbackend.errors import BackendError, KernelFault

FACTS = DeviceFacts("a device", 100, 1024, 100_000, (9, 0), 1 << 30)
BACKENDS = Path(interface.__file__).parent


def pretend_installed(monkeypatch, *installed: str) -> None:
    """Of cupy and pycuda, only `installed` are found."""
    real = importlib.util.find_spec

    def find_spec(name, *arguments):
        if name in interface.DEVICE_DRIVERS:
            return object() if name in installed else None
        return real(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_without_a_package_the_error_says_what_to_install(monkeypatch):
    pretend_installed(monkeypatch)
    with pytest.raises(BackendError) as caught:
        open_driver()
    for words in ("neither cupy nor pycuda", "tensorbackend[cuda]", "tensorbackend[pycuda]", "gpu:emulator"):
        assert words in str(caught.value)
    with pytest.raises(BackendError, match=r"(?s)package pycuda is not installed.*tensorbackend\[pycuda\]"):
        open_driver("pycuda")
    with pytest.raises(BackendError, match=r"(?s)package cupy is not installed.*tensorbackend\[cuda\]"):
        open_driver("cupy")


def test_an_unknown_driver():
    with pytest.raises(ValueError, match=r"(?s)no such driver.*'emulater'.*emulator"):
        open_driver("emulater")


class FakeRuntimeError(Exception):
    """What CuPy raises for an error of CUDA."""


def fake_cupy(count) -> types.ModuleType:
    """A cupy that can only count devices."""
    cupy = types.ModuleType("cupy")
    runtime = types.SimpleNamespace(getDeviceCount=count, CUDARuntimeError=FakeRuntimeError)
    cupy.cuda = types.SimpleNamespace(runtime=runtime)
    return cupy


def raise_no_driver() -> int:
    """CuPy's way of saying that the NVIDIA driver is missing."""
    raise FakeRuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")


@pytest.mark.parametrize(
    "count, words",
    [
        (raise_no_driver, ("cupy is installed", "NVIDIA driver is missing", "InsufficientDriver", "nvidia-smi")),
        (lambda: 2, ("cupy is installed", "no device 5", "2 devices", "gpu:emulator")),
    ],
)
@pytest.mark.parametrize("name", ["cupy", None])
def test_without_driver_or_device_the_error_says_which(monkeypatch, count, words, name):
    pretend_installed(monkeypatch, "cupy")
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(count))
    monkeypatch.delitem(sys.modules, "tensorbackend.backends.driver_cupy", raising=False)
    with pytest.raises(BackendError) as caught:
        open_driver(name, 5)
    monkeypatch.delitem(sys.modules, "tensorbackend.backends.driver_cupy")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name, kind", [("driver_cupy", "CupyDriver"), ("driver_pycuda", "PycudaDriver")])
def test_drivers_of_a_device_answer_every_call(name, kind):
    tree = ast.parse((BACKENDS / f"{name}.py").read_text())
    (definition,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
    assert [base.id for base in definition.bases] == ["DeviceDriver"]
    methods = {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}
    assert DeviceDriver.__abstractmethods__ - set(methods) == set()
    for method in set(methods) & {name for name in dir(DeviceDriver) if callable(getattr(DeviceDriver, name))}:
        if method == "__init__":
            continue
        expected = list(inspect.signature(getattr(DeviceDriver, method)).parameters)
        assert [argument.arg for argument in methods[method].args.args] == expected


@pytest.mark.parametrize("name", ["driver_cupy", "driver_pycuda", "emulator", "null"])
def test_drivers_are_short(name):
    assert len((BACKENDS / f"{name}.py").read_text().splitlines()) <= 170


def test_grid_and_block_are_filled_up_to_three():
    assert check_launch(FACTS, Function("f", None), (5,), (8, 4), 0) == ((5, 1, 1), (8, 4, 1))


@pytest.mark.parametrize(
    "grid, block, shared, message",
    [
        ((1,), (1025,), 0, "a block that no device takes"),
        ((1,), (1, 1, 65), 0, "a block that no device takes"),
        ((1,), (32, 32, 2), 0, "2048 threads"),
        ((1,), (300,), 0, "at most 256"),
        ((2**31,), (1,), 0, "a grid that no device takes"),
        ((1, 65536), (1,), 0, "a grid that no device takes"),
        ((1, 1, 65536), (1,), 0, "a grid that no device takes"),
        ((1, 1, 1, 1), (1,), 0, "a grid that no device takes"),
        ((1,), (1,), 99_000, "1024 static"),
        ((1,), (1,), -1, "too much shared memory"),
    ],
)
def test_what_no_device_takes_is_refused(grid, block, shared, message):
    with pytest.raises(BackendError, match=message):
        check_launch(FACTS, Function("f", None, threads=256, shared=1024), grid, block, shared)


def test_errors_of_cuda_tell_faults_from_refusals():
    fault = device_fault("launch", RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"))
    refusal = device_fault("launch", RuntimeError("cudaErrorInvalidValue: invalid argument"))
    assert isinstance(fault, KernelFault) and "gpu:emulator" in str(fault)
    assert type(refusal) is BackendError and "invalid argument" in str(refusal)


# The emulator as a driver ---------------------------------------------------------------------------------------------


def test_memory_goes_there_and_back(forward):
    driver = forward.driver
    data = np.arange(10, dtype=np.float32)
    a, b = driver.allocate(data.nbytes), driver.allocate(data.nbytes)
    assert a % 16 == b % 16 == 0
    driver.upload(a, data)
    driver.copy(b, a, data.nbytes)
    driver.fill(b, 0, 8)
    host = driver.pinned(data.nbytes)
    driver.download(host, b, wait=False)
    driver.synchronise()
    np.testing.assert_array_equal(host.view(np.float32), np.where(data < 2, 0, data))
    driver.free(a)
    driver.free(b)


def test_copies_out_of_bounds_and_freeing_twice(forward):
    driver = forward.driver
    address = driver.allocate(40)
    with pytest.raises(BackendError, match=r"(?s)a copy out of bounds.*44 bytes"):
        driver.upload(address, np.zeros(11, np.float32))
    with pytest.raises(BackendError, match="a copy out of bounds"):
        driver.fill(address + 8, 0, 40)
    driver.free(address)
    with pytest.raises(BackendError, match="freed twice"):
        driver.free(address)


def test_empty_allocations_have_addresses_of_their_own(forward):
    driver = forward.driver
    a, b = driver.allocate(0), driver.allocate(0)
    assert a != b
    driver.upload(a, np.zeros(0, np.float32))
    driver.free(a)
    driver.free(b)


def test_events_and_facts(forward):
    driver = forward.driver
    start = driver.record()
    assert driver.elapsed(start, driver.record()) >= 0
    free, total = driver.memory()
    assert 0 < free <= total == driver.facts.memory
    assert driver.facts.emulated and driver.stream == 0


def test_closing_frees_and_may_be_repeated(source):
    driver = open_driver("emulator")
    address = driver.allocate(16)
    driver.close()
    driver.close()
    with pytest.raises(BackendError):
        driver.free(address)


def test_an_unknown_order_of_threads(source):
    with pytest.raises(ValueError, match=r"(?s)no such order.*'sideways'.*forward, reverse, random"):
        open_driver("emulator", order="sideways")
