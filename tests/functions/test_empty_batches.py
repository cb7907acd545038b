# SPDX-License-Identifier: Apache-2.0
"""Batches of nothing: outputs are empty, gradients of parameters are zero."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorbackend as tb
import tensorbackend.functions as F
import tensorbackend.links as L
from tensorbackend import optimizers
from tensorbackend.function import arrays

pytestmark = pytest.mark.rehearsed


def integers(like: Any, *shape: int) -> Any:
    """Zeros of integers where an array is."""
    return arrays.moved(np.zeros(shape, np.int32), arrays.backend_of(tb.as_variable(like)._data))


def no_regions(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of images with no regions of them."""
    return lambda x: function(x, integers(x, 0, 5), 2, 3, 1.0)


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "average_pooling_2d": (lambda x: F.average_pooling_2d(x, 2), ((0, 3, 4, 4),)),
    "batch_matmul": (F.batch_matmul, ((0, 2, 3), (0, 3, 2))),
    "batch_normalization": (F.batch_normalization, ((0, 3, 4), (3,), (3,))),
    "bilinear": (F.bilinear, ((0, 2), (0, 3), (2, 3, 4), (2, 4), (3, 4), (4,))),
    "convolution_2d": (lambda *xs: F.convolution_2d(*xs, 2, 1), ((0, 3, 5, 5), (4, 3, 3, 3), (4,))),
    "cumsum": (lambda x: F.cumsum(x, 0), ((0, 3),)),
    "deconvolution_2d": (lambda *xs: F.deconvolution_2d(*xs, 2, 1), ((0, 3, 5, 5), (3, 4, 3, 3), (4,))),
    "dense": (F.dense, ((0, 4), (4, 3), (3,))),
    "depthwise_convolution_2d": (F.depthwise_convolution_2d, ((0, 3, 3, 3), (2, 3, 2, 2), (6,))),
    "einsum": (lambda x, y: F.einsum("ij,ik->jk", x, y), ((0, 3), (0, 2))),
    "embed_id": (lambda w: F.embed_id(integers(w, 0), w), ((4, 3),)),
    "fixed_batch_normalization": (F.fixed_batch_normalization, ((0, 3, 4), (3,), (3,), (3,), (3,))),
    "gaussian_mixture_2d": (F.gaussian_mixture_2d, ((0, 2),) * 6 + ((0, 1),) * 2),
    "gaussian_mixture_2d_nll": (F.gaussian_mixture_2d_nll, ((0, 2),) * 6 + ((0, 1),) * 2),
    "group_normalization": (lambda x, g, b: F.group_normalization(x, 1, g, b), ((0, 3, 4), (3,), (3,))),
    "im2col": (lambda x: F.im2col(x, 2), ((0, 2, 3, 3),)),
    "layer_normalization": (F.layer_normalization, ((0, 3), (3,), (3,))),
    "linear": (F.linear, ((0, 4), (3, 4), (3,))),
    "local_convolution_2d": (F.local_convolution_2d, ((0, 3, 3, 3), (2, 2, 2, 3, 2, 2), (2, 2, 2))),
    "local_response_normalization": (F.local_response_normalization, ((0, 3, 4, 4),)),
    "logsumexp": (lambda x: F.logsumexp(x, 1), ((0, 3),)),
    "lstm": (F.lstm, ((0, 2), (0, 8))),
    "matmul of no columns": (F.matmul, ((3, 0), (0, 4))),
    "max_pooling_2d": (lambda x: F.max_pooling_2d(x, 2), ((0, 3, 4, 4),)),
    "maxout": (lambda x: F.maxout(x, 2), ((0, 4),)),
    "normalize": (F.normalize, ((0, 3),)),
    "pad": (lambda x: F.pad(x, ((0, 0), (1, 1)), "constant"), ((0, 3),)),
    "prelu": (F.prelu, ((0, 3, 4), (3,))),
    "resize_images": (lambda x: F.resize_images(x, (2, 2)), ((0, 2, 3, 3),)),
    "roi_average_align_2d of no regions": (no_regions(F.roi_average_align_2d), ((1, 3, 4, 4),)),
    "roi_max_align_2d of no regions": (no_regions(F.roi_max_align_2d), ((1, 3, 4, 4),)),
    "roi_pooling_2d of no regions": (no_regions(F.roi_pooling_2d), ((1, 3, 4, 4),)),
    "rowconv": (lambda *xs: F.rowconv(*xs, 2), ((0, 3, 3, 3), (12, 2), (2,))),
    "select_item": (lambda x: F.select_item(x, integers(x, 0)), ((0, 4),)),
    "softmax": (F.softmax, ((0, 3),)),
    "spatial_pyramid_pooling_2d": (lambda x: F.spatial_pyramid_pooling_2d(x, 2), ((0, 3, 4, 4),)),
    "squared_error": (F.squared_error, ((0, 3), (0, 3))),
    "sum_axis02": (F.sum_axis02, ((0, 3, 2),)),
    "unpooling_2d": (lambda x: F.unpooling_2d(x, 2), ((0, 3, 4, 4),)),
}


@pytest.mark.parametrize("shape, regions", [((1, 3, 4, 4), 0), ((1, 0, 4, 4), 2)], ids=str)
def test_largest_of_no_regions_can_be_differentiated_twice(array, host, shape, regions) -> None:
    x = tb.Variable(array(np.ones(shape)))
    y = F.roi_pooling_2d(x, array(np.zeros((regions, 5))), 2, 3, 1.0)
    (g,) = tb.grad([F.sum(y * y)], [x], enable_double_backprop=True)
    (second,) = tb.grad([F.sum(g * g)], [x])
    assert g.shape == second.shape == shape and not host(g).any() and not host(second).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_nothing_are_zero(name, array, host) -> None:
    function, shapes = CASES[name]
    inputs = [tb.Variable(array(np.ones(shape))) for shape in shapes]
    found = function(*inputs)
    outputs = list(found) if isinstance(found, tuple) else [found]
    starts = [tb.Variable(array(np.ones(y.shape))) for y in outputs]
    for x, g in zip(inputs, tb.grad(outputs, inputs, starts), strict=True):
        assert g.shape == x.shape and g.dtype == x.dtype and not host(g).any()


MEANS: dict[str, tuple[Callable[..., Any], int]] = {
    "bernoulli_nll": (lambda *xs: F.bernoulli_nll(*xs, reduce="mean"), 2),
    "contrastive": (lambda a, b: F.contrastive(a, b, integers(a, 0)), 2),
    "cross_entropy": (lambda *xs: F.cross_entropy(*xs, reduce="mean"), 2),
    "gaussian_kl_divergence": (lambda *xs: F.gaussian_kl_divergence(*xs, reduce="mean"), 2),
    "gaussian_mixture_2d_nll": (lambda *xs: F.gaussian_mixture_2d_nll(*xs, xs[0][:, :1], xs[0][:, :1], "mean"), 6),
    "gaussian_nll": (lambda *xs: F.gaussian_nll(*xs, reduce="mean"), 3),
    "hinge": (lambda x: F.hinge(x, integers(x, 0)), 1),
    "mean_absolute_error": (F.mean_absolute_error, 2),
    "mean_squared_error": (F.mean_squared_error, 2),
    "softmax_cross_entropy": (lambda x: F.softmax_cross_entropy(x, integers(x, 0)), 1),
    "triplet": (F.triplet, 3),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", MEANS)
def test_losses_of_nothing_are_zero(name, dtype, array, host) -> None:
    function, count = MEANS[name]
    inputs = [tb.Variable(array(np.ones((0, 3)), dtype)) for _ in range(count)]
    loss = function(*inputs)
    assert loss.shape == () and loss.dtype == dtype and host(loss) == 0
    loss.backward(enable_double_backprop=True)
    assert all(x.grad.shape == (0, 3) for x in inputs)


@pytest.mark.parametrize("lengths", [(2, 0), (0, 0)], ids=str)
def test_sequences_without_steps_have_outputs_without_rows(lengths, array, host) -> None:
    weights = [[tb.Variable(array(np.ones((3, n)))) for n in (2, 3)] for _ in range(2)]
    biases, h = [[array(np.zeros(3))] * 2] * 2, array(np.ones((2, 2, 3)))
    xs = [array(np.ones((n, 2))) for n in lengths]
    last, ys = F.n_step_birnn(1, 0.0, h, weights, biases, xs)
    assert [y.shape for y in ys] == [(n, 6) for n in lengths]
    assert (host(last)[:, 1] == 1).all()
    F.sum(F.concat(ys, 0)).backward()


def test_parameters_without_elements_are_made_and_trained(be, array) -> None:
    link = tb.Chain(into=L.Linear(3, 0), out=L.Linear(0, 2)).to_device(be)
    optimizer = optimizers.Adam().setup(link)
    optimizer.update(lambda: F.sum(link.out(link.into(array(np.ones((4, 3)))))))
    assert [p.grad.shape for p in link.params()] == [p.shape for p in link.params()]


@pytest.mark.parametrize("sizes", list(itertools.product((0, 1, 2), repeat=4)), ids=str)
def test_bilinear_forms_of_any_size(sizes, array, host) -> None:
    i, j, k, m = sizes
    rng = np.random.default_rng(0)
    numbers = [rng.normal(size=s).astype("f") for s in ((i, j), (i, k), (j, k, m))]
    a, b, w = (tb.Variable(array(x)) for x in numbers)
    for function in (lambda: F.bilinear(a, b, w), lambda: F.einsum("ij,ik,jkl->il", a, b, w)):
        y = function()
        np.testing.assert_allclose(host(y), np.einsum("ij,ik,jkl->il", *numbers), rtol=1e-5, atol=1e-5)
        for x in (a, b, w):
            x.cleargrad()
        F.sum(y).backward()
        expected = np.einsum("ij,ik,l->jkl", *numbers[:2], np.ones(m)), np.einsum("ik,jkl->ij", *numbers[1:])
        for x, g in zip((w, a), expected):
            np.testing.assert_allclose(host(x.grad), g, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("empty", [[], (), np.zeros(0, np.int32)], ids=repr)
def test_lists_of_none_are_of_integers(empty, array) -> None:
    x = tb.Variable(array(np.ones((2, 0))))
    for y in (F.repeat(x, empty, 1), F.permutate(x, empty, 1), F.permutate(x, empty, 1, inv=True)):
        assert y.shape == (2, 0)
    with pytest.raises(ValueError, match="repeat: repeats"):
        F.repeat(x, empty, 0)
