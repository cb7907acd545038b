# SPDX-License-Identifier: Apache-2.0
"""cuBLAS as a candidate for products: what it is asked for, on a stand-in of it in C, and when it is chosen."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorbackend import BackendError
from tensorbackend.backends import cuda_products, toolchain
from tensorbackend.backends.cublas import Cublas, find_library
from tensorbackend.backends.gpu import GpuBackend
from tensorbackend.backends.null import NullDriver
from tensorbackend.settings import using


@contextlib.contextmanager
def nothing(what: str) -> Iterator[None]:
    """A device that is always current."""
    yield


@pytest.fixture(scope="module")
def library(absent: Callable[[str, str], None], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The stand-in, compiled."""
    compiler = toolchain.find_compiler()
    if compiler is None:
        absent("cc", toolchain.compiler_status())
    path = tmp_path_factory.mktemp("cublas") / "libcublas.so"
    source = Path(__file__).parent / "cublas.c"
    subprocess.run([*compiler.command, "-O2", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


@pytest.fixture
def make(library: ctypes.CDLL) -> Iterator[Callable[..., GpuBackend]]:
    """A backend on the emulator, which has the stand-in."""
    made: list[GpuBackend] = []

    def new(**keywords: Any) -> GpuBackend:
        backend = GpuBackend(driver="emulator", **keywords)
        backend.driver.blas = Cublas(library, backend.driver.stream, nothing)
        made.append(backend)
        return backend

    yield new
    for backend in made:
        backend.cleanup_backend()


def calls(library: ctypes.CDLL) -> int:
    """How often the stand-in has been asked for products."""
    return ctypes.c_int.in_dll(library, "calls").value


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal random numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS for products of any size."""
    monkeypatch.setattr(cuda_products, "VENDOR_FROM", 0)


LAYOUTS = {
    "rows": lambda be, a: be.array(a),
    "columns": lambda be, a: be.array(a.T.copy()).T,
    "part of rows": lambda be, a: be.array(np.pad(a, 2))[2:-2, 2:-2],
    "part of columns": lambda be, a: be.array(np.pad(a.T, 2))[2:-2, 2:-2].T,
}
STEPPED = {
    "every other": lambda be, a: be.array(np.repeat(a, 2, 1))[:, ::2],
    "backwards": lambda be, a: be.array(a[::-1].copy())[::-1],
}


@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_products_of_any_layout(make: Callable, library: ctypes.CDLL, always: None, left: str, right: str) -> None:
    be = make(rng_seed=0)
    for m, n, k in ((5, 7, 3), (1, 6, 4), (6, 1, 4), (5, 4, 1), (1, 1, 1), (1, 1, 5)):
        a, b = numbers(m, k), numbers(k, n, seed=1)
        before = calls(library)
        found = be.evaluate(be.dot(LAYOUTS[left](be, a), LAYOUTS[right](be, b))).get()
        np.testing.assert_allclose(found, a.astype(float) @ b, rtol=1e-6, atol=1e-6)
        assert calls(library) == before + 1


@pytest.mark.parametrize("layout", STEPPED)
def test_layouts_that_cublas_has_no_words_for(make: Callable, library: ctypes.CDLL, always: None, layout: str) -> None:
    be, a, b = make(rng_seed=0), numbers(5, 4), numbers(4, 6, seed=1)
    before = calls(library)
    found = be.evaluate(be.dot(STEPPED[layout](be, a), be.array(b))).get()
    np.testing.assert_allclose(found, a.astype(float) @ b, rtol=1e-6, atol=1e-6)
    assert calls(library) == before


@pytest.mark.parametrize("dtypes, asked", [
    (("float32", "float32"), 1), (("float64", "float64"), 1), (("float16", "float16"), 1),
    (("bfloat16", "bfloat16"), 1), (("float16", "bfloat16"), 0), (("float16", "float32"), 0), (("int32", "int32"), 0),
])  # fmt: skip
def test_types(make: Callable, library: ctypes.CDLL, always: None, dtypes: tuple[str, str], asked: int) -> None:
    be = make(rng_seed=0)
    a, b = np.round(numbers(9, 8) * 4), np.round(numbers(8, 11, seed=1) * 4)
    before = calls(library)
    product = be.dot(be.array(a, dtype=dtypes[0]), be.array(b, dtype=dtypes[1]))
    np.testing.assert_array_equal(be.evaluate(product).get().astype(float), (a @ b).astype(product.dtype).astype(float))
    assert calls(library) == before + asked


@pytest.mark.parametrize("left, right, asked", [
    ((6, 3, 4), (6, 4, 5), 1), ((2, 3, 3, 4), (2, 3, 4, 5), 1), ((3, 4), (6, 4, 5), 1), ((6, 3, 4), (4, 5), 1),
    ((2, 1, 3, 4), (2, 3, 4, 5), 0), ((2, 0, 4), (2, 4, 5), 0),
])  # fmt: skip
def test_batches(make: Callable, library: ctypes.CDLL, always: None, left: tuple, right: tuple, asked: int) -> None:
    be, a, b = make(rng_seed=0), numbers(*left), numbers(*right, seed=1)
    before = calls(library)
    found = be.evaluate(be.matmul(be.array(a), be.array(b))).get()
    np.testing.assert_allclose(found, a.astype(float) @ b, rtol=1e-6, atol=1e-6)
    assert calls(library) == before + asked


# The choice


@pytest.mark.parametrize("side, asked", [(16, 0), (64, 1)])
def test_with_a_seed_the_shape_decides(make: Callable, library: ctypes.CDLL, side: int, asked: int) -> None:
    be = make(rng_seed=0)
    x, before = be.array(numbers(side, side)), calls(library)
    for _ in range(3):
        be.evaluate(be.dot(x, x))
    assert calls(library) == before + 3 * asked
    assert be.choices == {}


def test_the_shape_decides_where_tuning_is_off(make: Callable, library: ctypes.CDLL) -> None:
    be = make()
    with using(tune=False):
        x, before = be.array(numbers(64, 64)), calls(library)
        be.evaluate(be.dot(x, x))
    assert calls(library) == before + 1
    assert be.choices == {}


@pytest.mark.parametrize("slow", [0, 1])
def test_without_a_seed_the_faster_stays(make: Callable, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch,
                                         slow: int) -> None:  # fmt: skip
    be = make()
    timed: list[float] = []

    def time_of(run: Callable[[], None]) -> float:
        run()
        timed.append(len(timed) // 4 == slow)
        return timed[-1]

    monkeypatch.setattr(be, "_timed", time_of)
    x = be.array(numbers(40, 40))
    first = be.evaluate(be.dot(x, x)).get()
    assert len(timed) == 8
    assert list(be.choices.values()) == [1 - slow]
    before = calls(library)
    second = be.evaluate(be.dot(x, x) + 0).get()  # another plan, the same product
    assert len(timed) == 8
    assert calls(library) == before + (1 - slow)
    for found in (first, second):
        np.testing.assert_allclose(found, numbers(40, 40).astype(float) @ numbers(40, 40), rtol=1e-4, atol=1e-4)


def test_what_cublas_refuses_is_an_error(make: Callable, library: ctypes.CDLL, always: None) -> None:
    be = make(rng_seed=0)
    be.driver.blas._handle = ctypes.c_void_p(1)
    with pytest.raises(BackendError, match=r"(?s)cuBLAS refuses.*status 7"):
        be.evaluate(be.dot(be.ones((4, 4)), be.ones((4, 4))))


def test_drivers_without_a_device_have_none() -> None:
    assert NullDriver().blas is None


def test_the_library_is_found_among_nvidias_wheels(library: ctypes.CDLL, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcublas.so.9").write_text("an old one, and none at that")
    (folder / "libcublas.so.13").symlink_to(library._name)
    (tmp_path / "nvidia" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    found = find_library()
    assert found is not None
    assert found._name == str(folder / "libcublas.so.13")
