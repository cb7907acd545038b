# SPDX-License-Identifier: Apache-2.0
"""Numbers that make no sense are refused by functions, links, initializers and backends, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
import tensorbackend.links as L
from tensorbackend import Backend, serializers, testing
from tensorbackend import initializers as I
from tensorbackend.function.type_check import InvalidType
from tensorbackend.graph import ranges
from tensorbackend.iterators import BatchIterator

NAN, INF = float("nan"), float("inf")
X, IMAGES, T = np.ones((4, 6), np.float32), np.ones((2, 6, 4, 4), np.float32), np.zeros(4, np.int32)
G, ROIS = np.ones(6, np.float32), np.array([[0, 0, 0, 3, 3]], np.float32)

REFUSED: list[tuple[str, Callable[..., Any], tuple, dict[str, tuple]]] = [
    # what, the call, its arguments, and by keyword what it refuses
    ("dropout", F.dropout, (X,), {"ratio": (1.0, -0.1, NAN)}),
    ("simplified_dropconnect", F.simplified_dropconnect, (X, X), {"ratio": (1.0, NAN)}),
    ("zoneout", F.zoneout, (X, X), {"ratio": (2, -1, NAN)}),
    ("gumbel_softmax", F.gumbel_softmax, (X,), {"tau": (0, -1, NAN, INF)}),
    ("clipped_relu", F.clipped_relu, (X,), {"z": (-1, NAN)}),
    ("leaky_relu", F.leaky_relu, (X,), {"slope": (NAN, INF)}),
    ("elu", F.elu, (X,), {"alpha": (NAN,)}),
    ("selu", F.selu, (X,), {"alpha": (NAN,), "scale": (INF,)}),
    ("softplus", F.softplus, (X,), {"beta": (0, NAN)}),
    ("maxout", F.maxout, (X,), {"pool_size": (2.0,)}),
    ("huber_loss", F.huber_loss, (X, X), {"delta": (0, -1, NAN)}),
    ("cross_entropy", F.cross_entropy, (X, X), {"eps": (-1, NAN)}),
    ("contrastive", F.contrastive, (X, X, T), {"margin": (0, NAN)}),
    ("triplet", F.triplet, (X, X, X), {"margin": (0, NAN)}),
    ("negative_sampling", F.negative_sampling, (X, T, X, np.zeros), {"sample_size": (-2, 1.5)}),
    ("batch_normalization", F.batch_normalization, (X, G, G), {"eps": (-1, NAN), "decay": (2, -0.5, NAN)}),
    ("fixed_batch_normalization", F.fixed_batch_normalization, (X, G, G, G, G), {"eps": (-1,)}),
    ("layer_normalization", F.layer_normalization, (X, G, G), {"eps": (-1, INF)}),
    ("group_normalization", F.group_normalization, (IMAGES, 2, G, G), {"eps": (-1,)}),
    ("normalize", F.normalize, (X,), {"eps": (-1, NAN)}),
    ("local_response_normalization", F.local_response_normalization, (IMAGES,), {"n": (0, 3.0), "alpha": (NAN,)}),
    ("local_response_normalization", F.local_response_normalization, (IMAGES,), {"k": (-1,)}),
    ("softmax", F.softmax, (X,), {"axis": (1.0,)}), ("log_softmax", F.log_softmax, (X,), {"axis": (NAN,)}),
    ("concat", F.concat, ([X, X],), {"axis": (0.5,)}), ("rollaxis", F.rollaxis, (X, 0), {"start": (1.5,)}),
    ("linear", F.linear, (X, X), {"n_batch_axes": (1.5,)}), ("diagonal", F.diagonal, (X,), {"offset": (NAN, 0.5)}),
    ("softmax_cross_entropy", F.softmax_cross_entropy, (X, T), {"ignore_label": (0.5, NAN)}),
    ("embed_id", F.embed_id, (T, X), {"ignore_label": (2.5, NAN)}),
    ("repeat", F.repeat, (X,), {"repeats": (-1, 2.5, [1, 2], [1.5])}), ("pad_sequence", F.pad_sequence, ([X],),
                                                                       {"length": (2.5, -1)}),
    ("roi_pooling_2d", F.roi_pooling_2d, (IMAGES, ROIS), {"outh": (0, 2.5), "outw": (INF,),
                                                          "spatial_scale": (0, NAN)}),
    ("roi_average_align_2d", F.roi_average_align_2d, (IMAGES, ROIS), {"outh": (-1,), "spatial_scale": (INF,),
                                                                      "sampling_ratio": (0, 1.5)}),
    *((name, getattr(I, name), (), {"scale": (NAN, -1, INF)}) for name in ("Normal", "HeUniform", "GlorotNormal")),
    *((name, getattr(I, name), (), {"scale": (NAN, INF)}) for name in ("Identity", "Orthogonal")),
    ("BatchNormalization", L.BatchNormalization, (6,), {"eps": (-1, NAN), "decay": (2, -1)}),
    ("LayerNormalization", L.LayerNormalization, (6,), {"eps": (-1, NAN)}),
    ("Convolution2D", L.Convolution2D, (4, 4, 3), {"groups": (0, 1.5, -2)}),
    ("Maxout", L.Maxout, (6,), {"out_size": (0,), "pool_size": (0, 1.5)}),
    ("Bilinear", L.Bilinear, (), {"left_size": (0,), "right_size": (-1,), "out_size": (2.5,)}),
    ("NegativeSampling", L.NegativeSampling, (3,), {"counts": ([1, -1], [0, 0], [], [NAN]), "power": (NAN,),
                                                    "sample_size": (-1,)}),
    ("GaussianMixture2D", L.GaussianMixture2D, (3,), {"n_mixtures": (0,)}),
    ("LSTM", L.LSTM, (3,), {"out_size": (-1, 2.5)}),
    ("NStepGRU", L.NStepGRU, (), {"n_layers": (0, 1.5), "dropout": (1.0, NAN)}),
    ("BatchIterator", BatchIterator, ((X,),), {"batch_size": (2.5,), "seed": (-1,), "rank": (0.5,)}),
]  # fmt: skip
NEEDED = {
    "Maxout": {"out_size": 3, "pool_size": 2}, "Bilinear": {"left_size": 2, "right_size": 2, "out_size": 2},
    "NegativeSampling": {"counts": [1, 2], "sample_size": 2}, "NStepGRU": dict(n_layers=1, in_size=3, out_size=3,
    dropout=0.0), "BatchIterator": {"batch_size": 2},
    **dict.fromkeys(("roi_pooling_2d", "roi_average_align_2d"), {"outh": 2, "outw": 2, "spatial_scale": 1.0}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "call", "given", "wrong"), REFUSED, ids=[row[0] for row in REFUSED])
def test_numbers_that_make_no_sense_are_refused_by_name(name: str, call: Any, given: tuple, wrong: dict) -> None:
    needed = NEEDED.get(name, {})
    for label, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=rf"^{name}: {label}\n  given .*\n  expected  "):
                call(*given, **{**needed, label: value})


@pytest.mark.parametrize(("holder", "name"), [
    (I.Normal(), "scale"), (I.LeCunUniform(), "scale"), (L.BatchNormalization(6), "decay"),
    (L.BatchNormalization(6), "eps"), (L.LayerNormalization(6), "eps"),
])  # fmt: skip
def test_numbers_are_checked_when_they_are_set_later(holder: Any, name: str) -> None:
    before = getattr(holder, name)
    with pytest.raises(ValueError, match=f"{type(holder).__name__}: {name}"):
        setattr(holder, name, NAN)
    with pytest.raises(TypeError, match=f"{name}\n  given     str\n  expected  a number"):
        setattr(holder, name, "1")
    assert getattr(holder, name) == before


@pytest.mark.parametrize("bounds", [(2, 1), (NAN, 1), (0, NAN), (INF, -INF)])
def test_bounds_in_the_wrong_order_are_refused(bounds: tuple) -> None:
    for call in (F.clip, F.rrelu):
        with pytest.raises(ValueError, match=rf"{call.__name__}: (bounds|x_m|l|u)"):
            call(X, *bounds)
    with pytest.raises(TypeError, match="x_max\n  given     NoneType"):
        F.clip(X, 0, None)
    np.testing.assert_array_equal(F.clip(X, tb.Variable(X * 2), INF).array, X * 2)


def test_a_batch_normalization_that_is_refused_leaves_the_running_statistics() -> None:
    mean, var = np.zeros(6, np.float32), np.ones(6, np.float32)
    with pytest.raises(ValueError, match="decay"):
        F.batch_normalization(X, G, G, running_mean=mean, running_var=var, decay=1.5)
    assert not mean.any() and var.all()


def test_what_is_no_array_is_refused_as_that() -> None:
    W = np.ones((4, 6, 3, 3), np.float32)
    for call in (lambda x: F.convolution_2d(IMAGES, W, x), lambda x: F.deconvolution_2d(IMAGES, W[:, :4], x),
                 lambda x: F.average(X, weights=x),
                 lambda x: F.batch_normalization(X, G, G, running_mean=x)):  # fmt: skip
        with pytest.raises(TypeError, match="given     int.*\n  expected  an? .*array"):
            call(-1)
    for wrong in (np.array([1.5]), [0.5, 2]):
        with pytest.raises(ValueError, match="split_axis: places"):
            F.split_axis(X, wrong, 1)
    with pytest.raises(InvalidType, match=r"size of \(36893488147419103232,\)"):
        F.reshape(X, 2**65)
    assert F.diagonal(X, 2**70).shape == F.diagonal(X, -(2**70)).shape == (0,)


@pytest.mark.parametrize("link", [L.Convolution2D, L.Deconvolution2D])
def test_filters_are_checked_when_the_link_is_made(link: Any) -> None:
    for channels in ((3, 4), (4, 3)):
        with pytest.raises(tb.ShapeError, match=rf"groups\n  given     2 groups of {channels[0]} and {channels[1]}"):
            link(*channels, 3, groups=2)
    with pytest.raises(tb.ShapeError, match="2 groups of 3 and 4"):
        link(None, 4, 3, groups=2)(np.ones((1, 3, 5, 5), np.float32))
    for wrong in ({"ksize": 0}, {"ksize": (3, 3, 3)}, {"stride": 0}, {"pad": -1}, {"dilate": 1.5}):
        with pytest.raises(tb.ShapeError, match=rf"{link.__name__}: {next(iter(wrong))}"):
            link(4, 4, **{"ksize": 3, **wrong})


@pytest.fixture
def engine() -> Iterator[Backend]:
    """A backend of its own."""
    made = testing.make_backend("interpreter")
    yield made
    made.cleanup_backend()


def test_batch_sizes_that_are_none_are_refused(engine: Backend) -> None:
    engine.bsz = 4
    for wrong in (-3, 2.5, "8", NAN):
        with pytest.raises(ValueError, match="bsz\n.*\n  expected  an int of 0 or more, or None"):
            engine.bsz = wrong
    assert engine.bsz == 4 and engine.iobuf(5).shape == (5, 4)
    engine.bsz = None


def test_numbers_of_the_engines_normalizations_are_checked(engine: Backend) -> None:
    x, y = engine.ones((3, 4)), engine.zeros((3, 4))
    columns = [engine.ones((3, 1)) for _ in range(6)]
    for eps, rho, label in ((-1, 0.9, "eps"), (NAN, 0.9, "eps"), (1e-5, 2, "rho"), (1e-5, NAN, "rho")):
        with pytest.raises(ValueError, match=f"compound_fprop_bn: {label}"):
            engine.compound_fprop_bn(x, *columns, y, eps, rho, True)
    assert not y.get().any() and all(column.get().all() for column in columns)


def test_numbers_in_steps_and_at_random_are_checked(engine: Backend) -> None:
    random = engine.xp.random
    for call, text in (
        (lambda: engine.arange(0, 5, 0), "arange: step"), (lambda: engine.xp.arange(NAN), "arange: start"),
        (lambda: engine.arange(0, INF), "arange: stop"), (lambda: random.normal(0, -1, (2,)), "normal: scale"),
        (lambda: random.uniform(1, 0, (2,)), "uniform: bounds"), (lambda: random.permutation(-3), "permutation: x"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            call()


@pytest.mark.parametrize("thing", [None, np.ones(2), "link"])
def test_what_cannot_be_saved_leaves_the_file(thing: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    serializers.save_npz(file, L.Linear(3, 2))
    before = file.read_bytes()
    for call in (serializers.save_npz, serializers.load_npz):
        with pytest.raises(TypeError, match=f"given     {type(thing).__name__}\n  expected  a link, an optimizer"):
            call(file, thing)
    assert file.read_bytes() == before and list(tmp_path.iterdir()) == [file]


def test_arrays_and_numbers_of_programs_are_not_read(engine: Backend) -> None:
    ranges.check("f", "above 0", x=engine.zeros((1,)), y=np.zeros(2), z=engine.zeros(1) + 1)
    seen = []

    def step(n: float) -> None:
        with pytest.raises(ValueError, match="n\n  given     -1.0"):
            ranges.check("f", "above 0", n=n - 3)
        ranges.check("f", "above 0", n=n)
        seen.append(n)

    engine.capture(step, 2.0)
    assert len(seen) == 1
