# SPDX-License-Identifier: Apache-2.0
"""Arrays that are written part by part: joined, padded, windows as columns, and gradients of several parts."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend.function import arrays, type_check
from tensorbackend.function.trees import Rule
from tensorbackend.graph import indexing, parts

X = np.arange(2 * 3 * 5 * 4, dtype=np.float32).reshape(2, 3, 5, 4)


JOINED = {
    "concat": lambda x, y: F.concat([x, y], 1),
    "stack": lambda x, y: F.stack([x, y], -1),
    "vstack": lambda x, y: F.vstack([x, y]),
    "split_axis": lambda x, y: F.split_axis(x, [1, 3], 2),
}


@pytest.mark.parametrize("name", JOINED)
def test_known_layouts_are_not_checked_again(name, array, monkeypatch) -> None:
    """Joining looked at every length in each call, which took longer than all else."""
    x, y = tb.Variable(array(X)), tb.Variable(array(X + 1))
    first = JOINED[name](x, y)
    monkeypatch.setattr(type_check, "checked", lambda *args: pytest.fail("checked again"))
    for a, b in zip(first, JOINED[name](x, y)) if isinstance(first, tuple) else [(first, JOINED[name](x, y))]:
        assert (arrays.to_cpu(a.array) == arrays.to_cpu(b.array)).all()


def test_gradients_of_a_layout_are_made_once(array) -> None:
    """What backward keeps was found by making the gradients' trees, which were made again to be run."""
    made = []

    def gradient(g, y, x, z, w):
        made.append(x.shape)
        return g * z, g * x, g * 2

    rule = Rule("product", lambda x, z, w: x * z + w * 2, gradient)
    for at, shape in enumerate([(3, 4), (2, 5), (3, 4)]):
        operands = [tb.Variable(array(np.full(shape, at + k, np.float32))) for k in (1, 2, 3)]
        found = tb.grad([rule(*operands)], operands, [tb.Variable(array(np.full(shape, 3)))])
        for g, wanted in zip(found, (at + 2, at + 1, 2)):
            assert (arrays.to_cpu(g.array) == np.full(shape, 3 * wanted)).all()
    assert made == [(3, 4), (2, 5)]


def test_layouts_of_numpy_arrays_are_forgotten_with_the_structures() -> None:
    """A full table of structures forgets all; arrays went on with layouts of before, which no result had any more."""
    host = arrays.host_backend()
    before = arrays.tensor_of(X).structure
    assert arrays.tensor_of(X + 1).structure is before is arrays.fresh(host, X.shape, X.dtype).structure
    host.structures.clear()
    after = arrays.tensor_of(X).structure
    assert before is not after is arrays.fresh(host, X.shape, X.dtype).structure


def test_gradients_of_parts_are_added_up_in_place(be, array) -> None:
    """Each was zeros with the part in them, and then came the sum of these."""
    x = tb.Variable(array(X))
    z = F.im2col(x, 2)
    g = tb.Variable(array(np.ones(z.shape)))
    times = np.outer([1, 2, 2, 2, 1], [1, 2, 2, 1])
    assert (arrays.to_cpu(tb.grad([z], [x], [g])[0].array) == np.broadcast_to(times, X.shape)).all()
    if be is not None:
        assert len(be.explain(lambda: tb.grad([z], [x], [g])).steps) <= 5


@pytest.mark.parametrize("shape", [(8, 5, 4, 3), (70, 5)])
def test_gradients_of_a_batch_norm_share_their_sums(be, array, shape) -> None:
    """The sums that are gamma's and beta's gradients were found a second time for those of the images."""
    x, gamma, beta = (tb.Variable(array(np.random.default_rng(0).standard_normal(s))) for s in (shape, (5,), (5,)))
    y = F.batch_normalization(x, gamma, beta)
    y.grad = array(np.random.default_rng(1).standard_normal(shape))
    if be is not None:
        assert len(be.explain(y.backward).steps) == 1
    else:
        y.backward()
    axes = (0, *range(2, len(shape)))
    assert np.allclose(arrays.to_cpu(beta.grad), arrays.to_cpu(y.grad).sum(axes), atol=1e-4)


def test_a_part_without_a_gradient_has_zeros(array) -> None:
    x = tb.Variable(array(X))
    _, second, _ = F.split_axis(x, [1, 3], 2)
    (g,) = tb.grad([second], [x], [tb.Variable(array(np.ones(second.shape)))])
    wanted = np.zeros_like(X)
    wanted[:, :, 1:3] = 1
    assert (arrays.to_cpu(g.array) == wanted).all()


def test_gradients_of_parts_have_the_types_of_what_they_are_of(array, host) -> None:
    x, y = tb.Variable(array(np.arange(6), np.float16)), tb.Variable(array(np.ones(4)))
    F.sum(tb.fused(lambda x, y: x[2:] * y + x[:4])(x, y)).backward()
    assert (x.grad.dtype, y.grad.dtype) == (np.float16, np.float32)
    np.testing.assert_array_equal(host(x.grad), [1, 1, 2, 2, 1, 1])
    np.testing.assert_array_equal(host(y.grad), [2, 3, 4, 5])


def test_joined_arrays_lie_in_memory_as_what_is_joined(be, array) -> None:
    """Images with the batch last, as convolutions make them, came out with the batch first."""
    x = F.transpose(array(X), (3, 0, 1, 2))
    y = F.concat([x, x], 1)
    assert (arrays.to_cpu(y.array) == np.concatenate([X.transpose(3, 0, 1, 2)] * 2, 1)).all()
    if be is not None:
        assert y._data.strides == (1, 60, 20, 4)
        mixed = F.concat([x, array(arrays.to_cpu(x.array))], 1)
        assert mixed._data.strides == (60, 15, 5, 1)


def test_overlapping_windows_of_halves_are_added_up_before_they_are_rounded(array) -> None:
    x = tb.Variable(array(np.zeros((1, 1, 8, 8)), np.float16))
    y = F.im2col(x, 3)
    g = np.random.default_rng(0).integers(1000, 2048, y.shape)
    (gx,) = tb.grad([y], [x], [tb.Variable(array(g, np.float16))])
    wanted = np.zeros((8, 8))
    for k, (i, j) in enumerate(product(range(3), range(3))):
        wanted[i : i + 6, j : j + 6] += g[0, k]
    assert (arrays.to_cpu(gx.array)[0, 0] == wanted.astype(np.float16)).all()


@pytest.mark.parametrize(("window", "stride", "pad", "dilate"), [(3, 1, 1, 1), (2, 3, 4, 2), (4, 2, 6, 1)])
def test_windows_beyond_the_image_hold_zeros(window, stride, pad, dilate, array) -> None:
    whole = np.pad(X, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    found = F.im2col(array(X), window, stride, pad, False, dilate)
    height, width = found.shape[2:]
    cells = [whole[:, :, i * dilate :: stride, j * dilate :: stride][:, :, :height, :width]
             for i, j in product(range(window), range(window))]  # fmt: skip
    assert (arrays.to_cpu(found.array) == np.stack(cells, 2).reshape(found.shape)).all()


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
def test_padding_by_parts_by_look_ups_and_in_a_fused_function_agree(mode, array) -> None:
    for x, widths in ((X[0], ((0, 1), (2, 0), (1, 1))), (X[0], 30), (X[0, 0, 0, 0], 2), (X[0, 0], 0)):
        wanted = np.pad(x, widths if x.ndim else 0, mode)
        padded = lambda x: F.pad(x, widths, mode)  # noqa: B023, E731
        for pad in (padded, tb.fused(padded)) if x.size < 20 else (padded,):
            assert (arrays.to_cpu(pad(tb.Variable(array(x))).array) == wanted).all()


def test_captured_programs_keep_what_templates_hold(be, array) -> None:
    """Places made while a function is recorded serve the program, and calls outside it afterwards."""
    if be is None:
        return
    x = array(X[:1])
    out = [array(np.zeros(shape)) for shape in ((1, 3, 6, 7), (1, 3, 7, 6), (1, 12, 4, 3), (1, 3, 5, 4))]

    def run() -> None:
        v = tb.Variable(x)
        z = F.im2col(v, 2)
        made = F.resize_images(v, (6, 7)), F.pad(v, ((0, 0), (0, 0), (1, 1), (1, 1)), "wrap"), z
        for target, y in zip(out, (*made, *tb.grad([z], [v], [z]))):
            target[:] = y.array

    program = be.capture(run)
    for factor in (1, 3):
        x[:] = array(X[:1] * factor)
        be.empty((100, 100))[:] = 7
        program()
        found = [arrays.to_cpu(y) for y in out]
        run()
        assert all((a == arrays.to_cpu(y)).all() for a, y in zip(found, out))
        assert (found[1] == np.pad(X[:1] * factor, ((0, 0), (0, 0), (1, 1), (1, 1)), "wrap")).all()


def test_places_of_resized_images_are_on_the_backend_already_the_second_time(be, array, monkeypatch) -> None:
    x = array(X)
    first = arrays.to_cpu(F.resize_images(x, (7, 3)).array)
    owner = arrays.host_backend() if be is None else be
    monkeypatch.setattr(type(owner), "_upload", lambda *args: pytest.fail("moved again"))
    assert (arrays.to_cpu(F.resize_images(x, (7, 3)).array) == first).all()


def test_array_modules_pad_without_moving_places(be, array, monkeypatch) -> None:
    """The places of entries went to the backend in each call."""
    if be is None:
        return
    x = be.xp.asarray(array(X))
    monkeypatch.setattr(type(be), "_upload", lambda *args: pytest.fail("moved"))
    found = [be.xp.pad(x, ((0, 0), (0, 1), (2, 0), (1, 1)), mode) for mode in ("edge", "wrap")]
    found += [be.xp.repeat(x, 2, 1), be.xp.repeat(x, 2)]
    monkeypatch.undo()
    wanted = [np.pad(X, ((0, 0), (0, 1), (2, 0), (1, 1)), mode) for mode in ("edge", "wrap")]
    wanted += [np.repeat(X, 2, 1), np.repeat(X, 2)]
    assert all((y.get() == z).all() for y, z in zip(found, wanted))


def test_runs_are_the_places() -> None:
    for places in ([], [3], [0, 0, 0, 1, 2, 2], [2, 1, 0, 1, 2, 1, 0], [0, 4, 1, 2, 9], [3, 2, 1, 0]):
        found = np.full(len(places), -1)
        for there, here, _ in indexing.runs(places):
            found[there] = np.arange(10)[here]
        assert found.tolist() == places
    assert len(indexing.runs([2, 1, 0, 1, 2, 1, 0])) == 3


def test_parts_apart_are_told_from_parts_that_overlap() -> None:
    """Every pair of parts of a small array, against the places that they have."""
    slices = [slice(0, 2), slice(2, 4), slice(1, 4, 2), slice(0, 4, 2), slice(None, None, -1), slice(3, 3), 1]
    keys = [(a, b) for a in slices for b in slices]
    for one, other in product(keys, keys):
        counts = np.zeros((4, 4), int)
        for key in (one, other):
            counts[key] += 1
        apart = parts._apart([parts._box(key, (4, 4)) for key in (one, other)])
        assert not apart or counts.max() <= 1
        simple = [all(isinstance(k, int) or k.step is None for k in key) for key in (one, other)]
        assert not all(simple) or apart == (counts.max() <= 1)
