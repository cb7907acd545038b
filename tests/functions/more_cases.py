# SPDX-License-Identifier: Apache-2.0
"""More cases of `test_every_function.py`: mixtures, arrangements, further losses, recurrent steps, matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend.function import arrays
from tests.functions.cases import Case, between, normal

X, Y, CUBE = normal(2, 3), normal(2, 3), normal(2, 3, 4)
POSITIVE = between(0.3, 3.0, 2, 3)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def classes(n: int, *shape: int) -> Any:
    """Labels from 0."""
    return lambda r: r.randint(0, n, size=shape).astype(np.int32)


def matrix(*shape: int) -> Any:
    """Matrices that have an inverse."""
    return lambda r: r.normal(size=shape) + 4 * np.eye(shape[-1])


def mixture(w, m1, m2, s1, s2, c, x1, x2):
    z1, z2, q = (x1 - m1) / s1, (x2 - m2) / s2, 1 - c**2
    exponent = -(z1**2 + z2**2 - 2 * c * z1 * z2) / (2 * q)
    return w * np.exp(exponent) / (2 * np.pi * s1 * s2 * np.sqrt(q))


def mixture_nll(w, m1, m2, s1, s2, c, x1, x2):
    e = np.exp(w - w.max(1, keepdims=True))
    terms = mixture(e / e.sum(1, keepdims=True), m1, m2, np.exp(s1), np.exp(s2), np.tanh(c), x1, x2)
    return -np.log(terms.sum(1)).sum()


def hinge(x, t, power):
    sign = np.ones(x.shape)
    sign[np.arange(len(t)), t] = -1
    return (np.maximum(1 + sign * x, 0) ** power).sum() / len(x)


def contrastive(a, b, y):
    d = np.sqrt(((a - b) ** 2).sum(1))
    return np.where(y == 1, d**2, np.maximum(2.5 - d, 0) ** 2).mean() / 2


def decov(h):
    c = (h - h.mean(0)).T @ (h - h.mean(0)) / len(h)
    return ((c - np.diag(np.diag(c))) ** 2).sum() / 2


def cross_covariance(y, z):
    return (((y - y.mean(0)).T @ (z - z.mean(0)) / len(y)) ** 2).sum() / 2


def sampled(x, w):
    drawn = np.array([[1, 0, 2], [0, 3, 3], [2, 1, 1]])
    scores = np.einsum("nd,nsd->ns", x, w[drawn]) * np.array([-1, 1, 1])
    return np.log1p(np.exp(scores))[[0, 2]].sum()


def negative(x: Any, w: Any) -> Any:
    t = arrays.moved(np.array([1, -1, 2], np.int32), arrays.backend_of(tb.as_variable(x)._data))
    return F.negative_sampling(x, t, w, lambda shape: np.array([[9, 0, 2], [9, 3, 3], [9, 1, 1]]), 2)


def gates(x: np.ndarray, n: int = 4) -> list[np.ndarray]:
    return list(np.moveaxis(x.reshape(len(x), -1, n), 2, 0))


def cell(c, a, i, f):
    return np.tanh(a) * sigmoid(i) + sigmoid(f) * c


def lstm(c, x):
    a, i, f, o = gates(x)
    c = cell(c, a, i, f)
    return c, sigmoid(o) * np.tanh(c)


def slstm(c1, c2, x1, x2):
    (a1, i1, f1, o1), (a2, i2, f2, o2) = gates(x1), gates(x2)
    c = cell(c1, a1, i1, f1) + cell(c2, a2, i2, f2)
    return c, sigmoid(o1 + o2) * np.tanh(c)


def tree_lstm(c1, c2, x):
    a, i, o, f1, f2 = np.split(x, 5, 1)
    c = np.tanh(a) * sigmoid(i) + sigmoid(f1) * c1 + sigmoid(f2) * c2
    return c, sigmoid(o) * np.tanh(c)


def padded(x: np.ndarray, mode: str) -> np.ndarray:
    return np.pad(x, [(1, 2), (0, 1)], mode)


BILINEAR = (normal(3, 2), normal(3, 4), normal(2, 4, 5))
MIXTURE = (between(0.2, 1, 3, 2), normal(3, 2), normal(3, 2), between(0.5, 2, 3, 2), between(0.5, 2, 3, 2),
           between(-0.7, 0.7, 3, 2), normal(3, 1), normal(3, 1))  # fmt: skip
MIXTURE_HAT = (normal(3, 2), normal(3, 2), normal(3, 2), between(-0.5, 0.5, 3, 2), between(-0.5, 0.5, 3, 2),
               between(-0.7, 0.7, 3, 2), normal(3, 1), normal(3, 1))  # fmt: skip
MORE_CASES = {
    # mixtures
    "bilinear": Case(F.bilinear, lambda a, b, w: np.einsum("ij,ik,jkl->il", a, b, w), BILINEAR),
    "bilinear with all": Case(
        F.bilinear,
        lambda a, b, w, v1, v2, c: np.einsum("ij,ik,jkl->il", a, b, w) + a @ v1 + b @ v2 + c,
        (*BILINEAR, normal(2, 5), normal(4, 5), normal(5)),
    ),
    "bilinear of itself": Case(
        lambda a, w: F.bilinear(a, a, w), lambda a, w: np.einsum("ij,ik,jkl->il", a, a, w),
        (normal(3, 2), normal(2, 2, 4)),
    ),
    "bilinear of images": Case(
        F.bilinear, lambda a, b, w: np.einsum("ij,ik,jkl->il", a.reshape(3, 4), b, w),
        (normal(3, 2, 2), normal(3, 1), normal(4, 1, 2)),
    ),
    "broadcast_sub": Case(F.broadcast_sub, np.subtract, (normal(4, 1), normal(4, 3))),
    "broadcast_sub whole": Case(F.broadcast_sub, np.subtract, (X, Y)),
    "row_sum": Case(F.row_sum, lambda x: x.sum(1, keepdims=True), (X,)),
    "dense": Case(F.dense, lambda x, w, b: x.reshape(2, 12) @ w + b, (CUBE, normal(12, 5), normal(5))),
    "prelu": Case(F.prelu, lambda x, w: np.where(x >= 0, x, x * w[None, :, None]), (CUBE, normal(3))),
    "prelu shared": Case(F.prelu, lambda x, w: np.where(x >= 0, x, x * w), (CUBE, normal())),
    "prelu whole": Case(F.prelu, lambda x, w: np.where(x >= 0, x, x * w), (CUBE, normal(3, 4))),
    "gaussian_mixture_2d": Case(F.gaussian_mixture_2d, mixture, MIXTURE),
    "gaussian_mixture_2d_nll": Case(F.gaussian_mixture_2d_nll, mixture_nll, MIXTURE_HAT),
    # arrangements
    "tile": Case(lambda x: F.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3)), (X,)),
    "tile of more axes": Case(lambda x: F.tile(x, 2), lambda x: np.tile(x, 2), (X,)),
    "repeat": Case(lambda x: F.repeat(x, 3, 1), lambda x: x.repeat(3, 1), (X,)),
    "repeat all": Case(lambda x: F.repeat(x, 2), lambda x: x.repeat(2), (X,)),
    "repeat each": Case(lambda x: F.repeat(x, [2, 0, 1], 1), lambda x: x.repeat([2, 0, 1], 1), (X,)),
    "hstack": Case(lambda a, b: F.hstack([a, b]), lambda a, b: np.hstack([a, b]), (X, Y)),
    "vstack": Case(lambda a, b: F.vstack([a, b]), lambda a, b: np.vstack([a, b]), (normal(3), normal(3))),
    "dstack": Case(lambda a, b: F.dstack([a, b]), lambda a, b: np.dstack([a, b]), (X, Y)),
    "flip": Case(lambda x: F.flip(x, 2), lambda x: np.flip(x, 2), (CUBE,)),
    "flip, axes": Case(lambda x: F.flip(x, (0, -1)), lambda x: np.flip(x, (0, -1)), (CUBE,)),
    "flip, all": Case(lambda x: F.flip(x, None), np.flip, (CUBE,)),
    "fliplr": Case(F.fliplr, np.fliplr, (X,)),
    "flipud": Case(F.flipud, np.flipud, (X,)),
    "permutate": Case(lambda x: F.permutate(x, [2, 0, 1], 1), lambda x: x[:, [2, 0, 1]], (X,)),
    "permutate inverse": Case(lambda x: F.permutate(x, [2, 0, 1], 1, True), lambda x: x[:, [1, 2, 0]], (X,)),
    "diagonal": Case(F.diagonal, np.diagonal, (CUBE,)),
    "diagonal above": Case(lambda x: F.diagonal(x, 1, 1, 2), lambda x: np.diagonal(x, 1, 1, 2), (CUBE,)),
    "diagonal below": Case(lambda x: F.diagonal(x, -2, 2, 0), lambda x: np.diagonal(x, -2, 2, 0), (CUBE,)),
    "select_item": Case(F.select_item, lambda x, t: x[np.arange(4), t], (normal(4, 3), classes(3, 4))),
    "pad": Case(lambda x: F.pad(x, ((1, 2), (0, 1)), "constant"), lambda x: padded(x, "constant"), (X,)),
    "pad by a value": Case(
        lambda x: F.pad(x, 1, "constant", 2.5), lambda x: np.pad(x, 1, "constant", constant_values=2.5), (X,)
    ),
    "pad edge": Case(lambda x: F.pad(x, ((1, 2), (0, 1)), "edge"), lambda x: padded(x, "edge"), (X,)),
    "pad reflect": Case(lambda x: F.pad(x, ((1, 1), (2, 1)), "reflect"),
                        lambda x: np.pad(x, ((1, 1), (2, 1)), "reflect"), (X,)),
    "pad wrap": Case(lambda x: F.pad(x, ((1, 2), (0, 1)), "wrap"), lambda x: padded(x, "wrap"), (X,)),
    "pad_sequence": Case(
        lambda a, b: F.pad_sequence([a, b], 4, -1),
        lambda a, b: np.stack([np.pad(v, (0, 4 - len(v)), constant_values=-1) for v in (a, b)]),
        (normal(3), normal(2)),
    ),
    "transpose_sequence": Case(
        lambda a, b: F.transpose_sequence([a, b]), lambda a, b: (np.stack([a[0], b[0]]), np.stack([a[1]])),
        (normal(2, 3), normal(1, 3)),
    ),
    "cumsum": Case(lambda x: F.cumsum(x, 1), lambda x: x.cumsum(1), (CUBE,)),
    "cumsum of all": Case(F.cumsum, np.cumsum, (X,)),
    "cumprod": Case(lambda x: F.cumprod(x, -1), lambda x: x.cumprod(-1), (CUBE,)),
    "linear_interpolate": Case(F.linear_interpolate, lambda p, x, y: p * x + (1 - p) * y, (X, Y, POSITIVE)),
    "scale": Case(F.scale, lambda x, y: x * y[None, :, None], (CUBE, normal(3))),
    "scale from 0": Case(lambda x, y: F.scale(x, y, 0), lambda x, y: x * y[:, :, None], (CUBE, X)),
    "bias": Case(F.bias, lambda x, y: x + y[None, :, None], (CUBE, normal(3))),
    "tensordot over NumPy's count": Case(
        lambda a, b: F.tensordot(a, b, np.int64(1)), lambda a, b: np.tensordot(a, b, 1), (CUBE, normal(4, 2))
    ),
    "tensordot": Case(lambda a, b: F.tensordot(a, b, 1), lambda a, b: np.tensordot(a, b, 1), (CUBE, normal(4, 2))),
    "tensordot of axes": Case(
        lambda a, b: F.tensordot(a, b, ((2, 0), (0, 1))), lambda a, b: np.tensordot(a, b, ((2, 0), (0, 1))),
        (CUBE, normal(4, 2, 5)),
    ),
    **{
        f"einsum {text}": Case(
            lambda *xs, text=text: F.einsum(text, *xs), lambda *xs, text=text: np.einsum(text, *xs),
            tuple(normal(*shape) for shape in shapes),
        )
        for text, shapes in {
            "ij,jk->ik": ((2, 3), (3, 4)), "ij,jk": ((2, 3), (3, 4)), "ij,ik->ijk": ((2, 3), (2, 4)),
            "ik,ikj->ij": ((2, 3), (2, 3, 4)), "ijk,ijl->kl": ((2, 3, 4), (2, 3, 2)), "ik,jk->ij": ((2, 3), (4, 3)),
            "ijl,kl->ijk": ((2, 3, 4), (5, 4)), "ij,ij->": ((2, 3), (2, 3)), "ii->i": ((3, 3),), "ii": ((3, 3),),
            "ij->ji": ((2, 3),), "ijk->ik": ((2, 3, 4),), "i,j->ij": ((2,), (3,)), "iij,j->i": ((3, 3, 2), (2,)),
            "...ij,jk->...ik": ((2, 2, 3), (3, 4)), "bij,bjk->bik": ((2, 3, 4), (2, 4, 2)),
            "ij,jk,kl->il": ((2, 3), (3, 4), (4, 2)),
        }.items()
    },
    # losses
    "hinge": Case(F.hinge, lambda x, t: hinge(x, t, 1), (normal(4, 3), classes(3, 4))),
    "hinge L2": Case(lambda x, t: F.hinge(x, t, "L2"), lambda x, t: hinge(x, t, 2), (normal(4, 3), classes(3, 4))),
    "contrastive": Case(
        lambda a, b, y: F.contrastive(a, b, y, 2.5), contrastive, (normal(4, 2), normal(4, 2), classes(2, 4))
    ),
    "triplet": Case(
        lambda a, p, n: F.triplet(a, p, n, 0.7),
        lambda a, p, n: np.maximum(((a - p) ** 2 - (a - n) ** 2).sum(1) + 0.7, 0).mean(),
        (normal(4, 3), normal(4, 3), normal(4, 3)),
    ),
    "gaussian_kl_divergence": Case(
        F.gaussian_kl_divergence, lambda m, v: (np.exp(v) + m**2 - 1 - v).sum() / 2, (X, Y)
    ),
    "bernoulli_nll": Case(
        F.bernoulli_nll, lambda x, y: (np.log1p(np.exp(y)) - x * y).sum(), (between(0, 1, 2, 3), Y)
    ),
    "gaussian_nll": Case(
        lambda x, m, v: F.gaussian_nll(x, m, v, "mean"),
        lambda x, m, v: ((v + (x - m) ** 2 / np.exp(v) + math.log(2 * math.pi)) / 2).mean(),
        (X, Y, X),
    ),
    "cross_covariance": Case(F.cross_covariance, cross_covariance, (normal(5, 2), normal(5, 3))),
    "decov": Case(F.decov, decov, (normal(5, 3),)),
    "negative_sampling": Case(negative, sampled, (normal(3, 2), normal(4, 2))),
    # the rest
    "batch_l2_norm_squared": Case(F.batch_l2_norm_squared, lambda x: (x**2).sum((1, 2)), (CUBE,)),
    "crelu": Case(F.crelu, lambda x: np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], 1), (CUBE,)),
    "maxout": Case(lambda x: F.maxout(x, 2), lambda x: x.reshape(3, 2, 2).max(2), (normal(3, 4),)),
    "lstm": Case(F.lstm, lstm, (normal(2, 3), normal(2, 12))),
    "lstm of fewer rows": Case(
        F.lstm, lambda c, x: (np.concatenate([lstm(c[:2], x)[0], c[2:]]), lstm(c[:2], x)[1]),
        (normal(3, 2), normal(2, 8)),
    ),
    "slstm": Case(F.slstm, slstm, (X, Y, normal(2, 12), normal(2, 12))),
    "tree_lstm": Case(F.tree_lstm, tree_lstm, (X, Y, normal(2, 15))),
    "inv": Case(F.inv, np.linalg.inv, (matrix(3, 3),)),
    "batch_inv": Case(F.batch_inv, np.linalg.inv, (matrix(2, 3, 3),)),
}
