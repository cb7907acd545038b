# SPDX-License-Identifier: Apache-2.0
"""Cases of `test_every_function.py`: elementwise functions, sums, products, arrangements, common losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tensorbackend as tb
import tensorbackend.functions as F
from tensorbackend.function import arrays
from tests.functions.cases import Case, between, labels, normal

MASK = np.array([[True, False, True], [False, False, True]])


def np_mask(like: Any) -> Any:
    """MASK where an array is."""
    return arrays.moved(MASK, arrays.backend_of(tb.as_variable(like)._data))


def softmax(x: np.ndarray, axis: int = 1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def entropy(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    p = np.moveaxis(softmax(x), 1, -1).reshape(-1, x.shape[1])
    valid = t.reshape(-1) >= 0
    picked = p[np.arange(len(p)), np.maximum(t.reshape(-1), 0)]
    return -np.log(picked[valid]).sum() / max(valid.sum(), 1)


def sigmoid_entropy(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    each = np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0) - x * t
    return each[t >= 0].sum() / max((t >= 0).sum(), 1)


X, Y = normal(2, 3), normal(2, 3)
UNIT, POSITIVE = between(-0.8, 0.8, 2, 3), between(0.3, 3.0, 2, 3)
erf = np.vectorize(math.erf)
BASIC_CASES = {
    "absolute": Case(F.absolute, np.abs, (X,)),
    "add": Case(F.add, np.add, (X, Y)),
    "add broadcast": Case(F.add, np.add, (normal(3), normal(2, 1))),
    "add of three": Case(F.add, lambda a, b, c: a + b + c, (X, Y, X)),
    "arccos": Case(F.arccos, np.arccos, (UNIT,)),
    "arcsin": Case(F.arcsin, np.arcsin, (UNIT,)),
    "arctan": Case(F.arctan, np.arctan, (X,)),
    "arctan2": Case(F.arctan2, np.arctan2, (X, Y)),
    "average": Case(lambda x, w: F.average(x, 1, w), lambda x, w: np.average(x, 1, w), (X, POSITIVE)),
    "average along NumPy's axis": Case(
        lambda x, w: F.average(x, np.int64(1), w), lambda x, w: np.average(x, 1, w), (X, between(0.3, 3.0, 3))
    ),
    "batch_matmul": Case(F.batch_matmul, np.matmul, (normal(2, 3, 4), normal(2, 4, 2))),
    "broadcast_to": Case(lambda x: F.broadcast_to(x, (4, 2, 3)), lambda x: np.broadcast_to(x, (4, 2, 3)), (X,)),
    "clip": Case(lambda x: F.clip(x, -0.5, 0.6), lambda x: np.clip(x, -0.5, 0.6), (X,)),
    "clipped_relu": Case(lambda x: F.clipped_relu(x, 0.7), lambda x: np.clip(x, 0, 0.7), (X,)),
    "concat": Case(lambda a, b: F.concat([a, b]), lambda a, b: np.concatenate([a, b], 1), (X, normal(2, 1))),
    "cos": Case(F.cos, np.cos, (X,)),
    "cosh": Case(F.cosh, np.cosh, (X,)),
    "cross_entropy": Case(F.cross_entropy, lambda p, y: -(y * np.log(p + 1e-6)).sum(), (POSITIVE, POSITIVE)),
    "divide": Case(F.divide, np.divide, (X, POSITIVE)),
    "elu": Case(F.elu, lambda x: np.where(x > 0, x, np.expm1(x)), (X,)),
    "erf": Case(F.erf, erf, (X,)),
    "erfc": Case(F.erfc, lambda x: 1 - erf(x), (X,)),
    "exp": Case(F.exp, np.exp, (X,)),
    "expand_dims": Case(lambda x: F.expand_dims(x, 1), lambda x: x[:, None], (X,)),
    "expm1": Case(F.expm1, np.expm1, (X,)),
    "flatten": Case(F.flatten, np.ravel, (X,)),
    "get_item": Case(lambda x: x[1, ::-1, None, 1:], lambda x: x[1, ::-1, None, 1:], (normal(2, 3, 4),)),
    "get_item by places": Case(lambda x: x[:, [2, 0, 2]], lambda x: x[:, [2, 0, 2]], (X,)),
    "get_item by two": Case(lambda x: x[[1, 0, 1], [2, 0, 2]], lambda x: x[[1, 0, 1], [2, 0, 2]], (X,)),
    "get_item by mask": Case(lambda x: x[np.eye(2, 3) > 0], lambda x: x[np.eye(2, 3) > 0], (X,)),
    "gelu": Case(F.gelu, lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, (X,)),
    "gelu by tanh": Case(
        lambda x: F.gelu(x, approximate=True),
        lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        (X,),
    ),
    "hard_sigmoid": Case(F.hard_sigmoid, lambda x: np.clip(0.2 * x + 0.5, 0, 1), (X,)),
    "huber_loss": Case(
        lambda x, t: F.huber_loss(x, t, 0.7),
        lambda x, t: np.where(abs(x - t) < 0.7, (x - t) ** 2 / 2, 0.7 * (abs(x - t) - 0.35)).sum(1),
        (X, Y),
    ),
    "leaky_relu": Case(F.leaky_relu, lambda x: np.where(x > 0, x, 0.2 * x), (X,)),
    "linear": Case(F.linear, lambda x, w, b: x.reshape(4, 6) @ w.T + b, (normal(4, 2, 3), normal(5, 6), normal(5))),
    "linear no bias": Case(F.linear, lambda x, w: x @ w.T, (X, normal(4, 3))),
    "linear of axes": Case(
        lambda x, w: F.linear(x, w, n_batch_axes=2), lambda x, w: x @ w.T, (normal(2, 3, 4), normal(5, 4))
    ),
    "log": Case(F.log, np.log, (POSITIVE,)),
    "log10": Case(F.log10, np.log10, (POSITIVE,)),
    "log1p": Case(F.log1p, np.log1p, (POSITIVE,)),
    "log2": Case(F.log2, np.log2, (POSITIVE,)),
    "log_softmax": Case(F.log_softmax, lambda x: np.log(softmax(x)), (X,)),
    "logsumexp": Case(lambda x: F.logsumexp(x, 1), lambda x: np.log(np.exp(x).sum(1)), (X,)),
    "matmul": Case(F.matmul, np.matmul, (X, normal(3, 4))),
    "matmul transa": Case(lambda a, b: F.matmul(a, b, True), lambda a, b: a.T @ b, (normal(3, 2), normal(3, 4))),
    "matmul all": Case(lambda a, b: F.matmul(a, b, True, True, True), lambda a, b: b @ a, (normal(3, 2), normal(4, 3))),
    "matmul batches": Case(F.matmul, np.matmul, (normal(2, 1, 3, 4), normal(3, 4, 2))),
    "matmul vectors": Case(F.matmul, np.matmul, (normal(3), normal(3))),
    "matmul vector": Case(F.matmul, np.matmul, (X, normal(3))),
    "max": Case(lambda x: F.max(x, 1), lambda x: x.max(1), (X,)),
    "maximum": Case(F.maximum, np.maximum, (X, Y)),
    "mean": Case(lambda x: F.mean(x, (0, 2)), lambda x: x.mean((0, 2)), (normal(2, 3, 4),)),
    "mean_absolute_error": Case(F.mean_absolute_error, lambda a, b: abs(a - b).mean(), (X, Y)),
    "mean_squared_error": Case(F.mean_squared_error, lambda a, b: ((a - b) ** 2).mean(), (X, Y)),
    "min": Case(lambda x: F.min(x, 0, True), lambda x: x.min(0, keepdims=True), (X,)),
    "minimum": Case(F.minimum, np.minimum, (X, Y)),
    "moveaxis": Case(lambda x: F.moveaxis(x, 0, 2), lambda x: np.moveaxis(x, 0, 2), (normal(2, 3, 4),)),
    "multiply": Case(F.multiply, np.multiply, (X, normal(3))),
    "negative": Case(F.negative, np.negative, (X,)),
    "power": Case(F.power, np.power, (POSITIVE, Y)),
    "power of number": Case(lambda x: 2**x**3, lambda x: 2**x**3, (UNIT,)),
    "prod": Case(lambda x: F.prod(x, 1), lambda x: x.prod(1), (X,)),
    "relu": Case(F.relu, lambda x: np.maximum(x, 0), (X,)),
    "reshape": Case(lambda x: F.reshape(x, (3, -1)), lambda x: x.reshape(3, -1), (X,)),
    "rollaxis": Case(lambda x: F.rollaxis(x, 2), lambda x: np.rollaxis(x, 2), (normal(2, 3, 4),)),
    "rsqrt": Case(F.rsqrt, lambda x: 1 / np.sqrt(x), (POSITIVE,)),
    "scatter_add": Case(
        lambda a, b: F.scatter_add(a, ([0, 0], [1, 1]), b),
        lambda a, b: a + np.array([[0, b.sum(), 0], [0] * 3]),
        (X, normal(2)),
    ),
    "selu": Case(F.selu, lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)), (X,)),
    "sigmoid": Case(F.sigmoid, lambda x: 1 / (1 + np.exp(-x)), (X,)),
    "sigmoid_cross_entropy": Case(F.sigmoid_cross_entropy, sigmoid_entropy, (normal(4, 3), labels(2, 4, 3))),
    "sin": Case(F.sin, np.sin, (X,)),
    "sinh": Case(F.sinh, np.sinh, (X,)),
    "softmax": Case(F.softmax, softmax, (X,)),
    "softmax axis 0": Case(lambda x: F.softmax(x, 0), lambda x: softmax(x, 0), (X,)),
    "softmax_cross_entropy": Case(F.softmax_cross_entropy, entropy, (normal(4, 3), labels(3, 4))),
    "softmax_cross_entropy of weighed classes": Case(
        lambda x, t, w: F.softmax_cross_entropy(x, t, class_weight=w, reduce="sum"),
        lambda x, t, w: -(np.log(softmax(x)) * w * (t[:, None] == np.arange(3))).sum(),
        (normal(4, 3), labels(3, 4), between(0.3, 3.0, 3)),
    ),
    "softmax_cross_entropy of images": Case(F.softmax_cross_entropy, entropy, (normal(2, 3, 4), labels(3, 2, 4))),
    "softplus": Case(lambda x: F.softplus(x, 2.0), lambda x: np.log1p(np.exp(2 * x)) / 2, (X,)),
    "split_axis": Case(lambda x: F.split_axis(x, [1], 1), lambda x: (x[:, :1], x[:, 1:]), (X,)),
    "sqrt": Case(F.sqrt, np.sqrt, (POSITIVE,)),
    "square": Case(F.square, np.square, (X,)),
    "squared_difference": Case(F.squared_difference, lambda a, b: (a - b) ** 2, (X, Y)),
    "squeeze": Case(F.squeeze, np.squeeze, (normal(2, 1, 3, 1),)),
    "stack": Case(lambda a, b: F.stack([a, b], 1), lambda a, b: np.stack([a, b], 1), (X, Y)),
    "subtract": Case(F.subtract, np.subtract, (X, Y)),
    "sum": Case(F.sum, np.sum, (X,)),
    "sum of axes": Case(lambda x: F.sum(x, (0, 2), True), lambda x: x.sum((0, 2), keepdims=True), (normal(2, 3, 4),)),
    "sum_to": Case(lambda x: F.sum_to(x, (1, 3)), lambda x: x.sum(0, keepdims=True), (X,)),
    "swapaxes": Case(lambda x: F.swapaxes(x, 0, 2), lambda x: np.swapaxes(x, 0, 2), (normal(2, 3, 4),)),
    "swish": Case(F.swish, lambda x: x / (1 + np.exp(-x)), (X,)),
    "swish of beta": Case(F.swish, lambda x, b: x / (1 + np.exp(-b * x)), (X, normal(3))),
    "swish of channels": Case(
        F.swish, lambda x, b: x / (1 + np.exp(-b[None, :, None] * x)), (normal(2, 3, 3), normal(3))
    ),
    "tan": Case(F.tan, np.tan, (UNIT,)),
    "tanh": Case(F.tanh, np.tanh, (X,)),
    "transpose": Case(lambda x: F.transpose(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1), (normal(2, 3, 4),)),
    "where": Case(lambda a, b: F.where(np_mask(a), a, b), lambda a, b: np.where(MASK, a, b), (X, Y)),
}
