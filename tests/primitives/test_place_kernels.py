# SPDX-License-Identifier: Apache-2.0
"""Sums at places in C, to the bit what NumPy's `add.at` gives in float64, and entries at places, what its `take` gives:
layouts, types, threads, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend import ShapeError, dtypes, testing
from tensorbackend.backends import caches, cpu_regions
from tensorbackend.graph import composite

ENTRIES, WIDTH = 6, 40
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # a backend serves all examples


@pytest.fixture
def be(absent) -> Iterator[tb.Backend]:
    """A backend of two threads."""
    made = testing.make_backend("jit", threads=2)
    if not made.jit:
        absent("cpu", "no C compiler works here")
    yield made
    made.cleanup_backend()


def placed(be: tb.Backend, values: np.ndarray, order: tuple[int, ...] = ()) -> Any:
    """Values on a backend, whose axes lie in memory in an order."""
    if not order:
        return be.array(values, dtype=values.dtype, min_dims=0)
    turned = be.array(np.ascontiguousarray(values.transpose(order)), dtype=values.dtype, min_dims=0)
    return be.transpose(turned, tuple(np.argsort(order).tolist()))


def put(be: tb.Backend, x: np.ndarray, places: np.ndarray, shape: tuple[int, ...], axis: int,
        order: tuple[int, ...] = ()) -> np.ndarray:  # fmt: skip
    """Zeros with x added at places, by a backend."""
    return be.evaluate(composite.put(placed(be, x, order), placed(be, places), shape, axis)).get()


def expected(x: np.ndarray, places: np.ndarray, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """The same by NumPy in float64."""
    sums = np.zeros(shape)
    wide = dtypes.cast(x, np.dtype(np.float64))
    rows = np.moveaxis(wide, range(axis, axis + places.ndim), range(places.ndim))
    np.add.at(np.moveaxis(sums, axis, 0), places.astype(np.int64), rows)
    return dtypes.cast(dtypes.cast(sums, dtypes.compute(x.dtype)), x.dtype)


@st.composite
def cases(draw: Any) -> tuple:
    """x, places, the result's shape, the axis, and the order of x's axes in memory."""
    around = st.lists(st.sampled_from([1, 2, 3, 0]), max_size=2)
    width = draw(st.sampled_from([[], [3], [16], [33], [130], [300], [2, 64]]))
    before, count = draw(around), draw(st.sampled_from([1, 2, 7, 50]))
    shape = (*before, count, *width)
    kind = np.dtype(draw(st.sampled_from(["int64", "int32", "int8", "uint8", "uint64"])))
    sizes = draw(st.sampled_from([(), (1,), (9,), (200,), (4, 5), (0,), (3, 1, 2)]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    lowest = 0 if kind.kind == "u" else -count
    places = np.asarray(rng.integers(lowest, count, sizes)).astype(kind)
    if draw(st.booleans()):
        places[...] = count - 1
    x = np.asarray(rng.normal(size=(*before, *sizes, *width)) * 10 ** rng.uniform(-2, 2))
    x = dtypes.cast(x, dtypes.as_dtype(draw(st.sampled_from(["float32", "float64", "float16", "bfloat16"]))))
    order = tuple(rng.permutation(x.ndim).tolist()) if draw(st.booleans()) and x.ndim else ()
    return x, places, shape, len(before), order


@SHARED
@given(case=cases(), far=st.booleans())
def test_sums_are_numpys_for_any_number_of_threads(be: tb.Backend, case: tuple, far: bool) -> None:
    x, places, shape, axis, order = case
    wanted = expected(x, places, shape, axis).tobytes()
    with pytest.MonkeyPatch.context() as patch:
        if far:
            patch.setattr(caches, "near_bytes", lambda: -1)
        for threads in (1, 2):
            backend = testing.make_backend("cpu", threads=threads)
            assert put(backend, x, places, shape, axis, order).tobytes() == wanted
            backend.cleanup_backend()


def take(be: tb.Backend, x: np.ndarray, places: np.ndarray, axis: int, order: tuple[int, ...] = ()) -> np.ndarray:
    """Entries at places, by a backend."""
    return be.evaluate(be.take(placed(be, x, order), placed(be, places), axis)).get()


@st.composite
def looked_up(draw: Any) -> tuple:
    """x, places, the axis, and the order of x's axes in memory."""
    before = draw(st.lists(st.sampled_from([1, 2, 3, 30, 0]), max_size=2))
    width = draw(st.sampled_from([[], [1], [3], [16], [33], [130], [2, 64], [3, 1], [0]]))
    count = draw(st.sampled_from([1, 2, 7, 50]))
    kind = np.dtype(draw(st.sampled_from(["int64", "int32", "int8", "uint8", "uint64"])))
    sizes = draw(st.sampled_from([(), (1,), (9,), (200,), (4, 5), (0,), (3, 1, 2)]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    places = np.asarray(rng.integers(0 if kind.kind == "u" else -count, count, sizes)).astype(kind)
    x = np.asarray(rng.integers(0, 100, (*before, count, *width)))
    types = ["float32", "float64", "float16", "bfloat16", "int8", "uint16", "int32", "uint64", "bool"]
    x = dtypes.cast(x, dtypes.as_dtype(draw(st.sampled_from(types))))
    order = tuple(rng.permutation(x.ndim).tolist()) if draw(st.booleans()) and x.ndim else ()
    return x, places, len(before), order


@SHARED
@given(case=looked_up(), far=st.booleans(), turned=st.booleans())
def test_entries_are_numpys_for_any_number_of_threads(be: tb.Backend, case: tuple, far: bool, turned: bool) -> None:
    x, places, axis, order = case
    places = places[..., ::-1] if turned and places.ndim else places
    wanted = np.take(x, places.astype(np.int64), axis)
    with pytest.MonkeyPatch.context() as patch:
        if far:
            patch.setattr(caches, "near_bytes", lambda: -1)
        for threads in (1, 2):
            backend = testing.make_backend("cpu", threads=threads)
            assert take(backend, x, places, axis, order).tobytes() == wanted.tobytes()
            backend.cleanup_backend()


def test_tasks_may_begin_amid_a_row_of_places(be: tb.Backend) -> None:
    """Rows of places that lie apart: a task has a part of all places, wherever these begin."""
    x, places = np.arange(50.0).reshape(10, 5), np.arange(63).reshape(7, 9) % 10
    turned = be.array(places, dtype=np.int64)[:, ::-1]
    np.testing.assert_array_equal(be.take(be.array(x), turned, 0).get(), x[places[:, ::-1]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_entries_of_halves_are_moved_as_they_are(be: tb.Backend, dtype: str) -> None:
    """To the bit, by one primitive into the target; into another type they are widened behind it."""
    x = be.array([[np.inf, -np.nan, -0.0], [6e-8, 65504, 1]], dtype=dtype)
    places, out, wide = be.array([1, 0, 1], min_dims=0, dtype=np.int64), be.empty((3, 3), dtype=dtype), be.empty((3, 3))
    out[:] = be.take(x, places, 0)
    wide[:] = be.take(x, places, 0)
    assert out.get().tobytes() == x.get()[[1, 0, 1]].tobytes()
    assert wide.get().tobytes() == x.get()[[1, 0, 1]].astype(np.float32).tobytes()
    (step,) = be.explain(out, be.take(x, places, 0)).steps
    assert step.name == "take"


def test_places_and_results_with_gaps(be: tb.Backend) -> None:
    """Every second place of two axes, into every second column."""
    rng = np.random.default_rng(0)
    x, places = rng.normal(size=(9, 5)).astype(np.float32), rng.integers(-9, 9, (6, 8))
    table, given = placed(be, x), placed(be, places)[::2, 1::2]
    wide = be.full((3, 4, 10), 7)
    wide[:, :, ::2] = be.take(table, given, 0)
    assert (wide.get()[..., ::2] == x[places[::2, 1::2]]).all()
    assert (wide.get()[..., 1::2] == 7).all()


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("wrong", [[6, 0, 1], [0, 1, -7], [0, 6, 9]])
def test_entries_out_of_range_are_refused_before_anything_is_written(be, dtype, axis, wrong) -> None:
    values = np.arange(36).reshape(6, 6)
    x, out = be.array(values, dtype=dtype), be.full((3, 6) if axis == 0 else (6, 3), 7, dtype=dtype)
    places = be.array([0, 5, -6], dtype=np.int32, min_dims=0)
    for _ in range(5):
        out[:] = be.take(x, places, axis)
    before = out.get()
    assert before.tobytes() == np.take(x.get(), [0, 5, 0], axis).tobytes()
    place = next(k for k, entry in enumerate(wrong) if not -6 <= entry < 6)
    places[:] = np.array(wrong)
    with pytest.raises(IndexError, match=f"take: .*\n.*{wrong[place]} at place {place}"):
        out[:] = be.take(x, places, axis)
    assert out.get().tobytes() == before.tobytes()
    places[:] = np.array([2, 2, -1])
    out[:] = be.take(x, places, axis)
    assert out.get().tobytes() == np.take(x.get(), [2, 2, 5], axis).tobytes()


def test_an_entry_of_most_places_has_its_sum(be: tb.Backend) -> None:
    rng = np.random.default_rng(0)
    places = np.where(rng.random(3000) < 0.9, 1, rng.integers(0, 500, 3000))
    x = rng.normal(size=(3000, 300)).astype(np.float32)
    assert put(be, x, places, (500, 300), 0).tobytes() == expected(x, places, (500, 300), 0).tobytes()


def table_and_places(be: tb.Backend, places: list[int], dtype: str = "float32") -> tuple:
    """Rows to add, their places, and a table of other numbers."""
    x = be.array(np.arange(len(places) * WIDTH).reshape(-1, WIDTH), dtype=dtype)
    return x, be.array(places, dtype=np.int32, min_dims=0), be.full((ENTRIES, WIDTH), 7, dtype=dtype)


@pytest.mark.parametrize("runs", [1, 9])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("wrong", [[ENTRIES, 0, 1], [0, 1, -ENTRIES - 1]])
def test_places_out_of_range_are_refused_before_anything_is_written(be, runs, dtype, wrong) -> None:
    x, places, table = table_and_places(be, [0, 5, -6], dtype)
    for _ in range(runs):
        table[:] = composite.put(x, places, table.shape, 0)
    before = table.get()
    places[:] = np.array(wrong)
    with pytest.raises(IndexError, match=f"{max(wrong, key=abs)} at place {wrong.index(max(wrong, key=abs))}"):
        table[:] = composite.put(x, places, table.shape, 0)
    assert table.get().tobytes() == before.tobytes()
    places[:] = np.array([2, 2, -1])
    table[:] = composite.put(x, places, table.shape, 0)
    assert table.get().tobytes() == expected(x.get(), places.get(), table.shape, 0).tobytes()


@pytest.mark.parametrize("shape", [(4, 3), (4,)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_unsigned_places_beyond_all_integers_are_refused(be: tb.Backend, dtype: str, shape: tuple[int, ...]) -> None:
    """Numbers along one axis and integers are added by NumPy, which would count such places from the end."""
    places = np.array([0, 2**64 - 1], np.uint64)
    with pytest.raises(IndexError, match="given     18446744073709551615 at place 1"):
        put(be, np.ones((2, *shape[1:]), dtype), places, shape, 0)
    with pytest.raises(IndexError, match="given     18446744073709551615 at place 1"):
        take(testing.make_backend("interpreted"), np.ones(shape, dtype), places, 0)


def test_rows_of_another_shape_than_places_have_are_refused(be: tb.Backend) -> None:
    x, places, _ = table_and_places(be, [0, 1])
    with pytest.raises(ShapeError, match="put: another shape"):
        composite.put(x, places, (4, WIDTH + 1), 0)


def test_statements_and_programs_repeat_with_other_numbers(be: tb.Backend) -> None:
    x, places, table = table_and_places(be, [0, 5, -6])

    def added(x: Any, places: Any) -> Any:
        table[:] = composite.put(x, places, table.shape, 0)
        return be.evaluate(composite.put(x * 2, places, table.shape, 0) + table)

    program = be.capture(added, x, places)
    for number in range(5):
        x[:] = x * -1.5 + number
        places[:] = np.array([number, -number - 1, 3])
        wanted = expected(x.get(), places.get(), table.shape, 0)
        assert program(x, places).get().tobytes() == (wanted * np.float32(3)).tobytes()
        assert table.get().tobytes() == wanted.tobytes()
        table[:] = 0
        table[:] = composite.put(x, places, table.shape, 0)
        assert table.get().tobytes() == wanted.tobytes()
    places[:] = np.array([0, 0, ENTRIES])
    with pytest.raises(IndexError, match=f"{ENTRIES} at place 2"):
        program(x, places)
    assert table.get().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_of_embeddings_are_those_of_numpy(be: tb.Backend, dtype: str) -> None:
    rng = np.random.default_rng(1)
    table, g = rng.normal(size=(50, 64)).astype(dtype), rng.normal(size=(3, 70, 64)).astype(dtype)
    ids = rng.integers(-50, 50, (3, 70))
    W = tb.Variable(be.array(table, dtype=dtype))
    y = F.embed_id(be.array(ids, dtype=np.int64, min_dims=0), W)
    y.grad = be.array(g, dtype=dtype, min_dims=0)
    y.backward()
    assert W.grad.get().tobytes() == expected(g, ids, table.shape, 0).tobytes()


def test_what_follows_a_look_up_waits_for_its_check(be: tb.Backend) -> None:
    """A statement of several kernels repeats natively; where places are refused, none behind the check runs."""
    x, out = be.array(np.arange(12).reshape(4, 3)), be.full((2, 3), 7)
    places = be.array([3, -4], dtype=np.int32, min_dims=0)
    bias = be.array([[1, 2, 3]])
    for number in range(6):
        out[:] = be.take(x * 2, places, 0) * number + bias
        assert (out.get() == x.get()[[3, 0]] * 2 * number + [1, 2, 3]).all()
    if be._native is not None:
        hits = be.structures.memo.counts()[2]
        out[:] = be.take(x * 2, places, 0) * 5 + bias
        assert be.structures.memo.counts()[2] == hits + 1
    before = out.get()
    places[:] = np.array([0, 4])
    for _ in range(2):
        with pytest.raises(IndexError, match="4 at place 1"):
            out[:] = be.take(x * 2, places, 0) * 3 + bias
        assert out.get().tobytes() == before.tobytes()
    places[:] = np.array([1, 2])
    out[:] = be.take(x * 2, places, 0) * 3 + bias
    assert (out.get() == x.get()[[1, 2]] * 6 + [1, 2, 3]).all()


def test_places_are_checked_by_one_task(be: tb.Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which numbers words and sorts places too: two of them would write the same memory."""
    checked: dict[str, int] = {}

    class Recorded(cpu_regions._Checked):
        def __init__(self, step: Any, source: str, launches: Any, *rest: Any) -> None:
            checked[step.op.name] = launches[0].tasks
            super().__init__(step, source, launches, *rest)

    monkeypatch.setattr(cpu_regions, "_Checked", Recorded)
    x, places = be.ones((977, 64)), be.array(np.arange(53), dtype=np.int32, min_dims=0)
    errors, words, table = be.ones((64, 53)), be.array([np.arange(53)], dtype=np.int32), be.empty((977, 64))
    be.evaluate(be.take(x, places, 0))
    be.evaluate(composite.put(be.ones((53, 64)), places, x.shape, 0))
    be.compound_bprop_lut(53, words, errors, None, table, None)
    images, rois = be.ones((7 * 9 * 11, 2)), be.ones((13, 5))
    pooled, argmax = be.empty((7 * 6, 13)), be.empty((7 * 6, 13), dtype=np.int32)
    be.roipooling_fprop(images, rois, pooled, argmax, 13, 7, 9, 11, 2, 3, 1.0)
    be.roipooling_bprop(pooled, rois, images, argmax, 13, 7, 9, 11, 2, 3, 1.0)
    assert checked == dict.fromkeys(("take", "put", "lut_bprop", "roi_fprop", "roi_bprop"), 1)


def test_places_of_pooled_regions_have_memory_of_their_own(be: tb.Backend) -> None:
    """Tensors of integers over memory of floats, which a user's array is, and memory that may not be written."""
    memory = np.ones(24, np.float32)
    floats, integers = be.view(memory.reshape(6, 4)), be.view(memory.view(np.int32).reshape(6, 4))
    rois, images, O = be.ones((4, 5)), be.ones((6, 4)), be.full((6, 4), 7)
    frozen = np.zeros((6, 4), np.int32)
    frozen.flags.writeable = False
    for places, maps, pooled, message in (
        (integers, floats, O, "argmax: the output overlaps"), (integers, images, floats, "argmax: the output overlaps"),
        (be.view(frozen), images, O, "read-only"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            be.roipooling_fprop(maps, rois, pooled, places, 4, 1, 2, 3, 2, 3, 1.0)
    assert (memory == 1).all() and (O.get() == 7).all() and not frozen.any()


def test_an_image_that_is_no_whole_number_is_said_to_be_none(be: tb.Backend) -> None:
    images, O, places = be.ones((6, 4)), be.full((6, 1), 7), be.empty((6, 1), dtype=np.int32)
    for image, said in ((0.5, "-1, or of no whole number\n"), (-1, "-1, or of no whole number\n"), (4, "4\n")):
        with pytest.raises(IndexError, match=f"region 0 is of image {said}"):
            be.roipooling_fprop(images, be.array([[image, 0, 0, 1, 1]]), O, places, 1, 1, 2, 3, 2, 3, 1.0)
    assert (O.get() == 7).all()
