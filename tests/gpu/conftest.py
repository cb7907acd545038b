# SPDX-License-Identifier: Apache-2.0
"""What the tests of drivers share: a driver, and kernels run on arrays as on a device."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tensorbackend.backends import compiler
from tensorbackend.backends.driver import Driver, open_driver
from tensorbackend.backends.emulator import ORDERS

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def source(absent: Callable[[str, str], None]) -> str:
    """The text of kernels.cu, when there is a compiler for it."""
    if compiler.find_compiler() is None:
        absent("cc", compiler.compiler_status())
    return (HERE / "kernels.cu").read_text()


@pytest.fixture(params=ORDERS)
def emulator(request: pytest.FixtureRequest, source: str) -> Driver:
    """The emulator, in each order of threads."""
    return open_driver("emulator", order=request.param, seed=7)


class Bench:
    """Kernels of one module on arrays: `run("name", out, in, ..., numbers)` uploads, launches and downloads."""

    def __init__(self, driver: Driver, source: str, name: str = "kernels.cu", options: tuple[str, ...] = ()) -> None:
        self.driver = driver
        self.module = driver.compile(source, name, options)

    def run(self, name: str, *arguments: np.ndarray | int, grid=(1,), block=(32,), shared: int = 0) -> None:
        """Arrays go as pointers and come back as the kernel left them; integers go as 64 bits."""
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        addresses = {id(a): self.driver.allocate(a.nbytes) for a in arrays}
        words = [addresses[id(a)] if isinstance(a, np.ndarray) else a for a in arguments]
        try:
            for array in arrays:
                self.driver.upload(addresses[id(array)], array)
            self.driver.launch(self.module.function(name), grid, block, shared, struct.pack(f"{len(words)}q", *words))
            self.driver.synchronise()
            for array in arrays:
                self.driver.download(array, addresses[id(array)])
        finally:
            for address in addresses.values():
                self.driver.free(address)


@pytest.fixture
def bench(emulator: Driver, source: str) -> Bench:
    """kernels.cu on the emulator, in each order of threads."""
    return Bench(emulator, source)


@pytest.fixture
def forward(source: str) -> Bench:
    """kernels.cu on the emulator, threads in ascending order."""
    return Bench(open_driver("emulator"), source)


@pytest.fixture
def make_bench() -> type[Bench]:
    """`make_bench(driver, source)`: for tests with a source of their own."""
    return Bench
