# SPDX-License-Identifier: Apache-2.0
"""The GPU backend on the emulator, beside the CPU: values, orders of threads, memory, what only a device has, faults.

The engine's own tests run on it too: `backend` fixture of the conformance plugin, kind "emulator".
"""

from __future__ import annotations

import gc
import importlib.util
import math
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, BackendError, Block, DTypeError, ShapeError, gen_backend, ops, testing
from tensorbackend.backends import compiler, gpu, registry
from tensorbackend.backends.driver import open_driver
from tensorbackend.backends.emulator import ORDERS
from tensorbackend.backends.gpu import GpuBackend
from tensorbackend.graph import composite
from tensorbackend.graph.optree import apply
from tensorbackend.primitives import lookup, lrn, pool, regions
from tensorbackend.settings import using
from tensorbackend.testing.trees import Choices, Forest
from tests.thinned import thinned

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LOSSES_WITHIN = 2e-6
"""Relative: products of float32 add up in another order, a hundred steps deep."""
STRUCTURES = 200
"""Random trees of a part."""
MODULE = 50
"""Trees that are compiled as one module."""


@pytest.fixture
def emulated(absent: Callable[[str, str], None]) -> Iterator[GpuBackend]:
    """A backend on the emulator."""
    if compiler.find_compiler() is None:
        absent("cc", compiler.compiler_status())
    made = GpuBackend(driver="emulator", rng_seed=0)
    yield made
    made.cleanup_backend()


@pytest.fixture(params=ORDERS[:2])
def be(request: pytest.FixtureRequest, emulated: GpuBackend) -> GpuBackend:
    """The emulator, in two orders of threads."""
    emulated.driver.order = request.param
    return emulated


@pytest.fixture
def cpu() -> Iterator[Backend]:
    """The CPU, seeded alike."""
    made = Backend.allocate_backend("cpu", rng_seed=0)
    yield made
    made.cleanup_backend()


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal random numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# Values

ELEMENTWISE = {
    "chain": lambda b, x: b.tanh(x * 0.5 + 1) / (b.exp(-x) + 2),
    "transposed": lambda b, x: b.log1p(abs(x.T)) * 3,
    "row": lambda b, x: x + b.sin(x[:1]),
    "column": lambda b, x: x * b.erf(x[:, :1]),
    "reversed": lambda b, x: x[::-1, ::-1] ** 2 - x,
    "shifted": lambda b, x: b.sqrt(abs(x[:, 1:])) - x[:, :-1],
    "random": lambda b, x: b.where(b.rand() < 0.3, x, 0),
    "positions": lambda b, x: x + b.argmax(x, axis=0),
}


@pytest.mark.parametrize(("tree", "dtype"), thinned(2, list(ELEMENTWISE), ["float32", "float16", "bfloat16"]))
def test_elementwise_has_the_bits_of_the_cpu(be: GpuBackend, cpu: Backend, tree: str, dtype: str) -> None:
    for shape in ((37, 53), (8, 1024), (1, 3)):
        x = numbers(*shape)
        mine, other = (b.evaluate(ELEMENTWISE[tree](b, b.array(x, dtype=dtype))).get() for b in (be, cpu))
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("shape, axis", [
    ((300, 500), None), ((3, 50_000), 1), ((50_000, 3), 0), ((40, 7, 30), (0, 2)), ((40, 7, 30), 1), ((5, 1), 1),
])  # fmt: skip
def test_sums_stay_within_their_bound(be: GpuBackend, shape: tuple, axis: object) -> None:
    x = numbers(*shape)
    sums = be.evaluate(be.sum(be.array(x), axis=axis)).get()
    exact = x.astype(np.float64).sum(axis, keepdims=True)
    magnitudes = np.abs(x.astype(np.float64)).sum(axis, keepdims=True)
    assert np.all(np.abs(sums - exact) <= 1e-7 * magnitudes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("shape, axis", [((4, 30_000), 1), ((30_000, 4), 0), ((6, 40), 1), ((6, 40), None)])
def test_places_are_the_first_of_equals_and_nan_wins(be: GpuBackend, name: str, shape: tuple, axis: object) -> None:
    x = np.round(numbers(*shape) * 2)
    for _ in range(2):
        found = be.evaluate(getattr(be, name)(be.array(x), axis=axis)).get()
        expected = getattr(np, name)(x, axis=axis, keepdims=True)
        np.testing.assert_array_equal(found, expected.reshape(found.shape))
        x[shape[0] // 2, shape[1] // 2 :: 3] = np.nan


def check_random_trees(backend: GpuBackend, seed: int, count: int) -> None:
    """Random trees against the oracle: compiled many to a module, since most time goes by it, and each kernel run in
    two orders of threads, which leave the same bytes."""
    rng = np.random.default_rng([1, seed])
    forests = [Forest(backend, Choices(rng.bytes(160))) for _ in range(count)]
    statements = [(backend.empty(tree.shape, tree.dtype, min_dims=0), tree) for tree in (f.grow(12) for f in forests)]
    for first in range(0, count, MODULE):
        testing.compile_together(backend, statements[first : first + MODULE])
    for forest, (target, tree) in zip(forests, statements):
        draws = {} if forest.random is None else {id(forest.random): backend._draws}
        expected = testing.reference(tree, draws=draws)
        target[:] = tree
        testing.assert_bounded(target.get(), expected)


@pytest.fixture
def twice(emulated: GpuBackend) -> Iterator[GpuBackend]:
    """The emulator, each kernel in two orders of threads."""
    made = GpuBackend(driver=open_driver("emulator", twice=True), rng_seed=0)
    yield made
    made.cleanup_backend()


@pytest.mark.slow
@pytest.mark.parametrize("count", [MODULE, pytest.param(STRUCTURES, marks=pytest.mark.ci)])
def test_random_trees(twice: GpuBackend, count: int) -> None:
    check_random_trees(twice, 0, count)


@pytest.mark.long
@pytest.mark.parametrize("part", range(1, 11))
def test_two_thousand_random_trees(twice: GpuBackend, part: int) -> None:
    check_random_trees(twice, part, STRUCTURES)


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (5, 7, 0), (17, 33, 19), (130, 100, 40)])
def test_products_of_any_layout(be: GpuBackend, m: int, n: int, k: int) -> None:
    a, b = numbers(m, k), numbers(k, n, seed=1)
    bound = 1e-6 * (np.abs(a) @ np.abs(b)) + 1e-30
    for left in (be.array(a), be.array(a.T.copy()).T):
        for right in (be.array(b), be.array(b.T.copy()).T):
            assert np.all(np.abs(be.evaluate(be.dot(left, right)).get() - a.astype(float) @ b) <= bound)


def test_products_of_batches_and_integers(be: GpuBackend) -> None:
    a, b = np.arange(24).reshape(2, 1, 3, 4), np.arange(40).reshape(5, 4, 2) - 20
    product = be.matmul(be.array(a, dtype="int8"), be.array(b, dtype="int32"))
    np.testing.assert_array_equal(be.evaluate(product).get(), a @ b)


def test_places_are_taken_put_and_checked(be: GpuBackend) -> None:
    x = be.array(numbers(6, 5))
    picks = np.array([[1, -1], [3, 1]])
    np.testing.assert_array_equal(be.evaluate(be.take(x, picks, 1)).get(), x.get()[:, picks])
    x[:, [0, 2]] = 7
    assert (x.get()[:, [0, 2]] == 7).all()
    before = x.get()
    with pytest.raises(IndexError, match="-6 to 5"):
        x[:] = be.take(x, [0, 1, 2, 3, 4, 6], 0)
    with pytest.raises(IndexError, match="-6 to 5"):
        x[:] = composite.put(be.ones((2, 5), min_dims=0), np.array([-7, 0]), (6, 5), 0)
    np.testing.assert_array_equal(x.get(), before)


def test_truths_at_one_place_are_true_once(be: GpuBackend) -> None:
    truths = be.array(np.ones((3, 2)), dtype=bool)
    found = be.evaluate(composite.put(truths, be.array([1, 1, -1], dtype=np.int64, min_dims=0), (4, 2), 0) * 1).get()
    np.testing.assert_array_equal(found, [[0, 0], [1, 1], [0, 0], [1, 1]])


def test_places_are_checked_where_they_lie(be: GpuBackend) -> None:
    """Every other column of places, from the end: what lies between is not looked at, and what lies behind is."""
    x, places = be.array(numbers(6, 5)), np.array([[9, 1, 9, -6], [9, 5, 9, 0]])
    host = places[:, ::-2]
    given = be.array(places, dtype=np.int64)[:, ::-2]
    np.testing.assert_array_equal(be.evaluate(be.take(x, given, 0)).get(), x.get()[host])
    found = be.evaluate(composite.put(be.ones((2, 2, 5), min_dims=0), given, (6, 5), 0)).get()
    np.testing.assert_array_equal(found[:, 0], [2, 1, 0, 0, 0, 1])
    given[1, 1] = 6
    for tree in (be.take(x, given, 0), composite.put(be.ones((2, 2, 5), min_dims=0), given, (6, 5), 0)):
        with pytest.raises(IndexError, match="-6 to 5"):
            be.evaluate(tree)


def test_places_are_checked_where_nothing_is_written(be: GpuBackend) -> None:
    taken = be.take(be.empty((3, 0)), [7], 0)
    no_columns = composite.put(be.empty((1, 0), min_dims=0), np.array([7]), (3, 0), 0)
    no_rows = composite.put(be.ones((2, 1), min_dims=0), np.array([0, 5]), (0, 1), 0)
    no_entry = be.take(be.empty((0, 3)), [0], 0)
    for tree in (taken, no_columns, no_rows, no_entry):
        with pytest.raises(IndexError, match="a place out of range"):
            be.evaluate(tree)
    assert be.evaluate(be.take(be.empty((3, 0)), [2, -3], 0)).get().shape == (2, 0)


def test_histograms_count_as_on_the_cpu(be: GpuBackend, cpu: Backend) -> None:
    x = numbers(30, 40) * 2.0 ** np.arange(-20, 20)
    x[0, :4] = 0, np.nan, np.inf, -np.inf
    for b in (be, cpu):
        b.array(x).hist("x")
    np.testing.assert_array_equal(be.dump_hist_data()[0].get(), cpu.dump_hist_data()[0].get())


# Memory, time, and what only a device has


def test_memory_is_given_back(be: GpuBackend) -> None:
    before = len(be.driver._live)
    for _ in range(3):
        be.evaluate(be.softmax(be.array(numbers(20, 30)) + be.rand(), 1)).get()
    gc.collect()
    assert len(be.driver._live) == before


def test_a_closed_backend_can_be_read_alone(be: GpuBackend) -> None:
    x = be.array(numbers(4, 5))
    be.cleanup_backend()
    np.testing.assert_array_equal(x.get(), numbers(4, 5))
    np.testing.assert_array_equal(x[:, ::2].get(), numbers(4, 5)[:, ::2])
    with pytest.raises(BackendError, match="closed"):
        x[:] = 1


def test_too_much_memory_is_named(be: GpuBackend) -> None:
    with pytest.raises(MemoryError, match=str(2**52)):
        be.empty((2**50,))


def test_marks_measure_the_stream(be: GpuBackend) -> None:
    start, end = be.get_events()
    with pytest.raises(ValueError, match="record_mark"):
        be.get_time(start, end)
    be.record_mark(start)
    be.begin(Block.fprop, 0)
    be.evaluate(be.exp(be.ones((64, 64))))
    be.end(Block.fprop, 0)
    be.record_mark(end)
    be.synchronize_mark(end)
    assert 0 < be.get_time(start, end) < 60_000


def test_arguments_are_in_the_contracts_order() -> None:
    made = GpuBackend(1, np.float16, 7, None, 0, False, 1024, 32, -20, "caffe", 2, None, driver="emulator")
    found = (made.rng_seed, made.default_dtype, made.round_mode, made.device_id, made.scratch_size, made.hist_bins)
    assert found == (1, np.float16, 7, 0, 1024, 32)
    assert (made.hist_offset, made.compat_mode, made.enable_winograd, made.min_dims) == (-20, "caffe", 2, 2)


def test_a_tensor_of_the_devices_memory(be: GpuBackend) -> None:
    x = be.array(numbers(3, 4))
    y = gpu.GPUTensor(be, (2, 4), np.float32, "rows", False, base=x, gpudata=x.gpudata, rounding=5)
    assert (y.ptr, y.base, y.name, y.persist_values, y.rounding) == (x.ptr, x, "rows", False, 5)
    np.testing.assert_array_equal(y.get(), numbers(3, 4)[:2])
    z = gpu.GPUTensor(be, (2, 4), np.float32, None, True, lambda nbytes: be.empty(nbytes, np.uint8))
    z[:] = y
    np.testing.assert_array_equal(z.get(), y.get())
    with pytest.raises(TypeError, match="address"):
        gpu.GPUTensor(be, (2, 4), gpudata="0x7f00")


def test_facts_of_the_device(be: GpuBackend) -> None:
    assert be.device_type == 1
    assert be.sm_count == be.driver.facts.multiprocessors
    assert be.gpu_memory_size > 0
    assert be.use_cudac_kernels
    assert Path(be.cache_dir).is_dir()
    assert be.compute_capability == (9, 0)
    assert be.stream == 0


def test_emulated_memory_is_not_offered_to_devices(be: GpuBackend) -> None:
    x = be.array(numbers(3, 4))
    assert not hasattr(x, "__cuda_array_interface__")
    np.testing.assert_array_equal(np.from_dlpack(x), x.get())
    with pytest.raises(BufferError, match="copy=False"):
        x.__dlpack__(copy=False)
    copied = x.asnumpyarray()
    copied[:] = 0
    assert (x.get() == numbers(3, 4)).all()


def test_the_interface_of_device_memory(be: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    x = be.array(numbers(3, 4))
    real = type("Facts", (), {"emulated": False})
    monkeypatch.setattr(be.driver, "facts", real)
    found = x.T.__cuda_array_interface__
    assert (found["shape"], found["strides"], found["typestr"]) == ((4, 3), (4, 16), "<f4")
    assert (found["data"], found["version"], found["stream"]) == ((x.ptr, False), 3, 1)
    assert x.__cuda_array_interface__["strides"] is None


class OtherLibrarys:
    """An array of a device as other libraries show theirs."""

    def __init__(self, tensor: Any, device: tuple[int, int] = (2, 0), **facts: Any) -> None:
        self.keep, self.device = tensor, device
        self.__cuda_array_interface__ = {
            "shape": tensor.shape, "typestr": tensor.dtype.str, "data": (tensor.address, False), "version": 3,
            "strides": tuple(s * tensor.dtype.itemsize for s in tensor.strides), **facts,
        }  # fmt: skip

    def __dlpack__(self, **keywords: Any) -> Any:
        raise AssertionError("its memory is told by the other protocol")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_another_librarys_array_is_a_tensor_on_its_memory(be: GpuBackend) -> None:
    memory = be.array(numbers(3, 4))
    for take in (be.view, be.from_dlpack):
        x = take(OtherLibrarys(memory.T))
        assert (x.shape, x.strides, x.ptr) == ((4, 3), (1, 4), memory.ptr)
        np.testing.assert_array_equal(x.get(), numbers(3, 4).T)
        x[:] = x + 1
        np.testing.assert_array_equal(memory.get(), numbers(3, 4) + 1)
        memory[:] = numbers(3, 4)
    row = OtherLibrarys(be.array(numbers(5), min_dims=0), strides=None)
    assert [be.view(row, min_dims=n).shape for n in (0, 1, 2)] == [(5,), (5,), (5, 1)]
    assert be.view(row, name="row").name == "row"
    alive = weakref.ref(row)
    x = be.view(row)[1:]
    del row
    gc.collect()
    assert alive() is not None
    np.testing.assert_array_equal(x.get().ravel(), numbers(5)[1:])
    fixed = be.view(OtherLibrarys(memory, data=(memory.ptr, True)))
    with pytest.raises(ValueError, match="read-only"):
        fixed[:] = 0


def test_arrays_of_other_memory_are_refused(be: GpuBackend) -> None:
    x = be.array(numbers(3, 4))
    for wrong in (numbers(3), [1.0], None):
        with pytest.raises(TypeError, match="__cuda_array_interface__"):
            be.view(wrong)
    with pytest.raises(TypeError, match="__dlpack__"):
        be.from_dlpack([1.0])
    with pytest.raises(BufferError, match="be.array"):
        be.from_dlpack(numbers(3))
    with pytest.raises(BackendError, match="device 1"):
        be.view(OtherLibrarys(x, (2, 1)))
    for facts in ({"data": (x.ptr + 2, False)}, {"strides": (18, 4)}):
        with pytest.raises(ShapeError, match="whole elements"):
            be.view(OtherLibrarys(x, **facts))
    with pytest.raises(ShapeError, match="native byte order"):
        be.view(OtherLibrarys(x, typestr=">f4"))
    with pytest.raises(DTypeError):
        be.view(OtherLibrarys(x, typestr="<c8"))
    with pytest.raises(TypeError, match="a masked array"):
        be.view(OtherLibrarys(x, mask=OtherLibrarys(x)))
    with pytest.raises(ShapeError, match="too many axes"):
        be.view(OtherLibrarys(x, shape=(1,) * 17, strides=None))
    assert be.view(OtherLibrarys(x, mask=None)).shape == (3, 4)


def test_arrays_that_only_speak_dlpack_come_through_cupy(be: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    x = be.array(numbers(3, 4))
    foreign = SimpleNamespace(__dlpack__=None, __dlpack_device__=lambda: (2, 0))
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BufferError, match="pip install"):
        be.from_dlpack(foreign)
    cupy = SimpleNamespace(from_dlpack=lambda given: {id(foreign): OtherLibrarys(x)}[id(given)])
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert be.from_dlpack(foreign, min_dims=0).ptr == x.ptr


def test_a_forked_process_needs_its_own_backend(be: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    x, values = be.ones((2, 2)), np.zeros((2, 2))
    monkeypatch.setattr(gpu.os, "getpid", lambda: be._process + 1)
    monkeypatch.setattr(be.driver, "facts", type("Facts", (), {"emulated": False}))
    for call in (lambda: be.ones((2, 2)), x.get, lambda: x.__setitem__(slice(None), values),
                 lambda: x.__setitem__(slice(None), x + 1), be._record, be._synchronise):  # fmt: skip
        with pytest.raises(BackendError, match="forked"):
            call()
    monkeypatch.undo()
    np.testing.assert_array_equal(x.get(), 1)


def test_kernels_are_explained_checked_and_timed(be: GpuBackend) -> None:
    x, w = be.array(numbers(20, 30), name="x"), be.array(numbers(30, 10))
    found = be.explain(be.softmax(be.dot(x, w), 1), repeat=2)
    assert "'gpu:emulator'" in found.machine
    product, softmax = found.steps
    assert (product.name, softmax.space) == ("dot", (20, 10))
    assert "__global__" in softmax.source
    assert len(softmax.times) == 2 and min(softmax.times) > 0
    assert softmax.share is None  # the emulator has no limits worth comparing with
    with using(check=True, debug=2):
        be.evaluate(be.softmax(be.dot(x, w), 1) + be.rand())


def test_explaining_a_view_does_not_explain_its_copies(be: GpuBackend) -> None:
    y = be.array(numbers(20, 30))[:, ::3]  # packed by a kernel on its way to the host, and back
    found = be.explain(y, y * 2, repeat=3)
    (statement,) = found.statements
    assert statement.runs == 3
    np.testing.assert_array_equal(y.get(), numbers(20, 30)[:, ::3] * 2)


def test_a_wrong_kernel_is_found_by_the_check(be: GpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    run = gpu.Prepared.run
    x, y = be.array(numbers(20, 30)), be.zeros((20, 30))

    def wrong(self: gpu.Prepared, addresses: list[int], values: list) -> None:
        run(self, [addresses[0] + 4, *addresses[1:]], values)

    monkeypatch.setattr(gpu.Prepared, "run", wrong)
    with using(check=True), pytest.raises(BackendError, match=r"(?s)TB_CHECK.*differs from the reference"):
        y[:1] = be.exp(x[:1])


def test_names_with_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_global", None)
    assert gen_backend("gpu:emulator").driver.name == "emulator"
    assert gen_backend("gpu", driver="emulator").driver.name == "emulator"
    with pytest.raises(ValueError, match="emulator"):
        gen_backend("gpu:emulater")


# A network


def module(name: str) -> ModuleType:
    """A script of examples/."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def first_losses(digits: ModuleType, be: Backend, count: int) -> np.ndarray:
    """The losses of the first minibatches of the digits example, with dropout."""
    be.bsz = 64
    samples, _, _ = digits.load(be, 1)
    network = digits.perceptron(be, [64], "relu", 0.5)
    optimizer = digits.OPTIMIZERS["adam"](network.parameters)
    losses: list[float] = []
    while len(losses) < count:
        for batch in samples.minibatches(be, be.rng.permutation(samples.labels.shape[1])):
            network.fprop(batch.images, training=True)
            network.bprop(batch.labels)
            optimizer.update(len(losses) + 1)
            total = be.zeros((2, 1))
            network.cost.add_to(total, batch.labels)
            losses.append(float(total.get()[0, 0]))
    return np.array(losses[:count])


@pytest.mark.slow
def test_digits_train_as_on_the_cpu(cpu: Backend, absent: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("sklearn") is None:
        absent("examples", "scikit-learn is not installed (pip install tensorbackend[examples])")
    monkeypatch.syspath_prepend(EXAMPLES)
    digits = module("mlp_digits")
    emulated = first_losses(digits, GpuBackend(driver="emulator", rng_seed=0), 100)
    expected = first_losses(digits, cpu, 100)
    assert math.isfinite(expected[-1])
    assert expected[-10:].mean() < 0.5 * expected[0]
    np.testing.assert_allclose(emulated, expected, rtol=LOSSES_WITHIN)


def _sorted_rows(x: np.ndarray, falling: bool) -> np.ndarray:
    return np.sort(x, axis=-1)[..., ::-1] if falling else np.sort(x, axis=-1)


def _sorted_and_places(x: np.ndarray, *unused: float) -> tuple[np.ndarray, np.ndarray]:
    return np.sort(x, axis=-1), np.argsort(x, axis=-1, kind="stable")


SORTED = ops.Op("sorted_rows", 1, ops.PRIMITIVE, _sorted_rows, "", "same", "Rows in order.", params=("falling",),
                shape=lambda op, inputs, params: (inputs[0].shape, params))  # fmt: skip
PLACED = ops.call("sorted_places", 1, _sorted_and_places, "Rows in order, and where they were.", lambda *unused: 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_a_primitive_without_a_kernel_runs_through_numpy(be: GpuBackend, dtype: str) -> None:
    values = np.float32([[3, -1, 2], [5, 9, -7]])
    x = be.array(values, dtype=dtype)
    tree = apply(SORTED, x.T[::-1] * 2, params=(True,)) + 1
    expected = np.sort(values.T[::-1] * 2, axis=-1)[:, ::-1] + 1
    np.testing.assert_array_equal(be.evaluate(tree).get().astype(np.float32), expected)
    program = be.capture(lambda t: be.evaluate(apply(SORTED, t, params=(False,))), x)
    np.testing.assert_array_equal(program(x).get().astype(np.float32), np.sort(values, axis=-1))
    assert be.evaluate(apply(SORTED, be.empty((0, 3)), params=(True,))).shape == (0, 3)


def test_a_call_without_a_kernel_has_several_results(be: GpuBackend) -> None:
    values = np.float32([[3, -1, 2], [5, 9, -7]])
    x, wide, places = be.array(values), be.ones((2, 6)), be.empty((2, 3), dtype="int32")
    y = wide[:, ::2]
    be._call(PLACED, (None, 1.0, 0.0), [y, places], [x])
    np.testing.assert_array_equal(y.get(), np.sort(values))
    np.testing.assert_array_equal(wide.get()[:, 1::2], np.ones((2, 3)))
    np.testing.assert_array_equal(places.get(), np.argsort(values))


def test_it_is_told_once_that_a_primitive_has_no_kernel(be: GpuBackend, caplog: pytest.LogCaptureFixture) -> None:
    gpu._tell_of_host.cache_clear()
    for n in (3, 4):
        be.evaluate(apply(SORTED, be.ones((2, n)), params=(False,)))
    assert [record.getMessage() for record in caplog.records] == [
        "tensorbackend: sorted_rows has no CUDA kernel; its operands go to the host, and its results back"
    ]


def test_all_primitives_of_the_engine_have_kernels() -> None:
    """`unslice` becomes assignments; the recurrent layers' steps are products and statements."""
    calls = {x.name for m in (lookup, lrn, pool, regions) for x in vars(m).values() if isinstance(x, ops.Op)}
    primitives = {x.name for x in ops.OPS.values() if x.kind == ops.PRIMITIVE} - {"unslice"}
    assert len(calls) == 8
    assert calls | primitives == set(gpu.PRIMITIVES)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "uint64"])
def test_places_out_of_range_are_named_as_on_the_host(be: GpuBackend, dtype: str) -> None:
    x = be.array(numbers(3, 4))
    places = be.array(np.array([[0, 9, 1], [2, 9, 0]]), dtype=dtype).T[::-1]
    rows = be.zeros((3, 2, 4), min_dims=0)
    for wrong in (lambda: be.take(x, places, 0), lambda: composite.put(rows, places, (3, 4), 0)):
        with pytest.raises(IndexError, match=r"a place out of range\n  given     9 at place 2\n  expected  -3 to 2"):
            be.evaluate(wrong())
    with pytest.raises(IndexError, match="no place: it is an axis of length 0"):
        be.evaluate(be.take(be.zeros((0, 4)), places, 0))
