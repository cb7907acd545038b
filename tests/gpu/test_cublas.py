# SPDX-License-Identifier: Apache-2.0
"""cuBLAS as a candidate for products: what it is asked for, on a stand-in of it in C, and when it is chosen."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorbackend import BackendError
from tensorbackend.backends import cuda_conv, cuda_primitives, cuda_products, toolchain
from tensorbackend.backends.cublas import Cublas, find_library
from tensorbackend.backends.gpu import GpuBackend
from tensorbackend.backends.null import NullDriver
from tensorbackend.primitives.conv import bprop_reference, fprop_reference, update_reference
from tensorbackend.settings import using
from tests.gpu import fakes


@contextlib.contextmanager
def nothing(what: str) -> Iterator[None]:
    """A device that is always current."""
    yield


@pytest.fixture(scope="module")
def library(absent: Callable[[str, str], None], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The stand-in, compiled."""
    if toolchain.find_compiler() is None:
        absent("cc", toolchain.compiler_status())
    return fakes.cublas(tmp_path_factory.mktemp("cublas"))


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


def test_batches_in_reverse(make: Callable, library: ctypes.CDLL, always: None) -> None:
    be, a, b = make(rng_seed=0), numbers(6, 3, 4), numbers(6, 4, 5, seed=1)
    before = calls(library)
    found = be.evaluate(be.matmul(be.array(a)[::-1], be.array(b))).get()
    np.testing.assert_allclose(found, a[::-1].astype(float) @ b, rtol=1e-6, atol=1e-6)
    assert calls(library) == before


# Convolutions by products

GEOMETRIES = {
    "plain": {"N": 4, "C": 3, "K": 5, "H": 6, "W": 7, "R": 3, "S": 2},
    "padded": {"N": 3, "C": 2, "K": 4, "H": 5, "W": 6, "R": 3, "S": 3, "pad_h": 1, "pad_w": 2},
    "strided": {"N": 8, "C": 3, "K": 4, "H": 9, "W": 11, "R": 4, "S": 3, "str_h": 3, "str_w": 2, "pad_h": 1},
    "dilated": {"N": 4, "C": 2, "K": 3, "H": 9, "W": 8, "R": 3, "S": 2, "dil_h": 2, "dil_w": 3, "pad_w": 1, "str_h": 2},
    "both": {"N": 4, "C": 2, "K": 3, "H": 9, "W": 9, "R": 2, "S": 3, "str_h": 3, "str_w": 3, "dil_h": 2, "dil_w": 2},
    "of volumes": {"N": 4, "C": 2, "K": 3, "D": 5, "H": 4, "W": 4, "T": 3, "R": 2, "S": 2, "str_d": 2, "pad_d": 1},
    "of volumes, dilated": {"N": 2, "C": 2, "K": 3, "D": 6, "H": 3, "T": 3, "R": 2, "str_d": 2, "pad_d": 1, "dil_d": 2},
    "one image": {"N": 1, "C": 4, "K": 6, "H": 7, "W": 5, "R": 3, "S": 3, "pad_h": 1, "pad_w": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("bytes_", [1, 1 << 12, 1 << 27])
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_convolutions_go_by_products(make: Callable, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, dtype: str,
                                     name: str, bytes_: int) -> None:  # fmt: skip
    monkeypatch.setattr(cuda_conv, "PRODUCTS_FROM", 0)
    monkeypatch.setattr(cuda_conv, "MOST_BYTES", bytes_)  # a line at a time, some, all
    be, sizes = make(rng_seed=0), GEOMETRIES[name]
    layer = be.conv_layer(dtype, **sizes)
    g = layer.geometry
    images, filters, errors = (np.round(numbers(*dim, seed=k) * 4) for k, dim in enumerate((g.dimI, g.dimF, g.dimO)))
    x, w, e = (be.array(v.reshape(-1, v.shape[-1]), dtype=dtype) for v in (images, filters, errors))
    y, dx, dw = (be.empty(dim, dtype=dtype) for dim in (layer.dimO2, layer.dimI2, layer.dimF2))
    for run, out, expected in (
        (lambda: be.fprop_conv(layer, x, w, y), y, fprop_reference(images, filters, g, np.float64)),
        (lambda: be.bprop_conv(layer, w, e, dx), dx, bprop_reference(filters, errors, g, np.float64)),
        (lambda: be.update_conv(layer, x, e, dw), dw, update_reference(images, errors, g, np.float64)),
    ):
        before = calls(library)
        run()
        rounded = expected.astype(dtype).astype(float).reshape(out.shape)  # sums of whole numbers are exact
        np.testing.assert_array_equal(out.get().astype(float), rounded)
        assert calls(library) > before + (bytes_ == 1)


@pytest.mark.parametrize("change", [{"groups": 2, "C": 4, "K": 6}, {"W": 2, "S": 1}])
def test_convolutions_of_groups_and_few_operations_do_not(make: Callable, library: ctypes.CDLL, change: dict) -> None:
    be = make(rng_seed=0)
    layer = be.conv_layer("float32", **{**GEOMETRIES["plain"], **change})
    before = calls(library)
    be.fprop_conv(layer, *(be.zeros(dim) for dim in (layer.dimI2, layer.dimF2, layer.dimO2)))
    assert calls(library) == before


@pytest.mark.parametrize("change", [{"str_w": 2**32}, {"dil_w": 2**32}])
def test_convolutions_of_longer_steps_than_32_bits_count_do_not(make: Callable, library: ctypes.CDLL, change: dict,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(cuda_conv, "PRODUCTS_FROM", 0)
    be, before = make(rng_seed=0), calls(library)
    layer = be.conv_layer("float32", 1, 1, 1, W=3, **{"S": 2, "str_w": 3, "pad_w": (2**32, 0)} | change)
    delta = be.empty(layer.dimI2)
    be.bprop_conv(layer, be.ones(layer.dimF2), be.ones(layer.dimO2), delta)
    np.testing.assert_array_equal(delta.get(), [[1], [float("str_w" in change)], [0]])
    assert calls(library) == before


IMAGES = {
    "rows": lambda be, x: be.array(x),
    "every other": lambda be, x: be.array(np.repeat(x, 2, 1))[:, ::2],
    "amid others": lambda be, x: be.array(np.pad(x, ((0, 0), (1, 3))))[:, 1:5],
    "before others": lambda be, x: be.array(np.pad(x, ((0, 0), (0, 2))))[:, :4],
    "columns": lambda be, x: be.array(x.T.copy()).T,
}


@pytest.mark.parametrize("layout", IMAGES)
def test_convolutions_of_views_on_small_grids(make: Callable, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch,
                                              layout: str) -> None:  # fmt: skip
    """Images lie as they like, filters and errors without gaps; results begin anywhere. Blocks take several turns."""
    monkeypatch.setattr(cuda_conv, "PRODUCTS_FROM", 0)
    monkeypatch.setattr(cuda_primitives, "BLOCKS", 1)
    monkeypatch.setattr(cuda_primitives, "MAX_GRID", (2**31 - 1, 2, 2))
    be, view = make(rng_seed=0), IMAGES[layout]
    layer = be.conv_layer("float32", 4, 3, 5, H=20, W=41, R=3, S=2, pad_h=1, str_w=2, dil_w=3)
    g = layer.geometry
    images, filters, errors = (np.round(numbers(*dim, seed=k) * 4) for k, dim in enumerate((g.dimI, g.dimF, g.dimO)))
    host = [v.reshape(-1, v.shape[-1]) for v in (images, filters, errors)]
    x, w, e = view(be, host[0]), *map(be.array, host[1:])
    room = be.zeros((1, 1 + max(layer.sizeI, layer.sizeF, layer.sizeO)))
    for call, pair, dim, expected in (
        (be.fprop_conv, (x, w), layer.dimO2, fprop_reference(images, filters, g)),
        (be.bprop_conv, (w, e), layer.dimI2, bprop_reference(filters, errors, g)),
        (be.update_conv, (x, e), layer.dimF2, update_reference(images, errors, g)),
    ):
        before, out = calls(library), be.reshape(room[:, 1 : 1 + dim[0] * dim[1]], dim)
        call(layer, *pair, out)
        np.testing.assert_array_equal(out.get(), expected.reshape(dim))
        assert calls(library) == before + 1


@pytest.mark.parametrize("layout", [name for name in IMAGES if name != "rows"])
def test_filters_and_errors_with_gaps_do_not(make: Callable, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch,
                                             layout: str) -> None:  # fmt: skip
    monkeypatch.setattr(cuda_conv, "PRODUCTS_FROM", 0)
    be, view, before = make(rng_seed=0), IMAGES[layout], calls(library)
    layer = be.conv_layer("float32", 4, 3, 4, H=5, W=5, R=3, S=2)
    g = layer.geometry
    images, filters, errors = (np.round(numbers(*dim, seed=k) * 4) for k, dim in enumerate((g.dimI, g.dimF, g.dimO)))
    x, w, e = (view(be, v.reshape(-1, v.shape[-1])) for v in (images, filters, errors))
    y, dx, dw = (be.empty(dim) for dim in (layer.dimO2, layer.dimI2, layer.dimF2))
    be.fprop_conv(layer, x, w, y)
    be.bprop_conv(layer, w, e, dx)
    be.update_conv(layer, x, e, dw)
    np.testing.assert_array_equal(y.get(), fprop_reference(images, filters, g).reshape(layer.dimO2))
    np.testing.assert_array_equal(dx.get(), bprop_reference(filters, errors, g).reshape(layer.dimI2))
    np.testing.assert_array_equal(dw.get(), update_reference(images, errors, g).reshape(layer.dimF2))
    assert calls(library) == before


@pytest.mark.parametrize("layout", [name for name in IMAGES if name != "rows"])
def test_images_with_gaps_that_are_filters_or_errors_too_do_not(make: Callable, library: ctypes.CDLL, layout: str,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(cuda_conv, "PRODUCTS_FROM", 0)
    be, before = make(rng_seed=0), calls(library)
    layer = be.conv_layer("float32", 4, 4, 4, H=3, W=3, R=3, S=3, pad_h=1, pad_w=1)
    g = layer.geometry
    images = np.round(numbers(*g.dimI) * 4)
    x = IMAGES[layout](be, images.reshape(-1, 4)).reshape(g.dimI)  # one tensor, without another for its shape
    y, dw = be.empty(layer.dimO2), be.empty(layer.dimF2)
    be.fprop_conv(layer, x, x, y)
    be.update_conv(layer, x, x, dw)
    np.testing.assert_array_equal(y.get(), fprop_reference(images, images, g).reshape(layer.dimO2))
    np.testing.assert_array_equal(dw.get(), update_reference(images, images, g).reshape(layer.dimF2))
    assert calls(library) == before


def test_places_beyond_the_output_are_none_of_the_part(make: Callable, library: ctypes.CDLL,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """A filter's first cell would meet depth 2^16 of one; in lines of 2^16 each, that is line 2^32."""
    monkeypatch.setattr(cuda_conv, "PRODUCTS_FROM", 0)
    be, before = make(rng_seed=0), calls(library)
    layer = be.conv_layer("float32", 1, 1, 1, T=2, dil_d=1 << 16, pad_d=(1 << 16, 0), pad_h=((1 << 16) - 1, 0))
    assert layer.MPQ == (1, 1 << 16, 1)
    be.bprop_conv(layer, be.array([[1], [2]]), be.ones(layer.dimO2), delta := be.empty(layer.dimI2))
    assert delta.get().tolist() == [[2]]
    assert calls(library) > before


@pytest.mark.parametrize("longest, asked", [(61, 0), (62, 3)])
def test_convolutions_of_more_maps_than_32_bits_count_do_not(
    make: Callable, library: ctypes.CDLL, longest: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_conv, "PRODUCTS_FROM", 0)
    monkeypatch.setattr(cuda_conv, "LONGEST", longest)
    be, before = make(rng_seed=0), calls(library)
    layer = be.conv_layer("float32", 4, 3, 62, W=3, S=2)
    x, w, e = (be.array(numbers(*dim)) for dim in (layer.dimI2, layer.dimF2, layer.dimO2))
    be.fprop_conv(layer, x, w, be.empty(layer.dimO2))
    be.bprop_conv(layer, w, e, be.empty(layer.dimI2))
    be.update_conv(layer, x, e, be.empty(layer.dimF2))
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
