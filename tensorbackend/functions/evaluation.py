# SPDX-License-Identifier: Apache-2.0
"""Measures of results. They have no gradient, and are computed with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import ShapeError, complain
from tensorbackend.function import arrays
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions.arguments import Array
from tensorbackend.functions.losses import check_labels
from tensorbackend.graph import ranges

__all__ = ["accuracy", "binary_accuracy", "classification_summary", "f1_score", "precision", "r2_score", "recall"]


def _host(name: str, *args: Any) -> tuple[Any, list[np.ndarray]]:
    """The backend of the arrays, and their numbers."""
    data = [arrays.plain(as_variable(x).array) for x in args]
    backend = arrays.only_family(name, data)
    return backend, [x if backend is None else x.get() for x in data]


def _variable(value: Any, dtype: Any, backend: Any) -> Variable:
    return Variable(arrays.moved(np.asarray(value, dtype), backend), requires_grad=False)


def _measure(value: Any, scores: np.ndarray, backend: Any) -> Variable:
    """Measures in the type of the scores; those of integers and truth values in float32, as means of them."""
    return _variable(value, dtypes.promote([scores.dtype], [float], dtypes.FLOAT32), backend)


def _classes(name: str, y: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class of largest score of each sample, and the right one. Raises `ShapeError` where they do not fit,
    `InvalidType` for labels of no integers."""
    check_labels(name, "t", t)
    if y.ndim < 2 or y.size // y.shape[1] != t.size:
        raise ShapeError(complain(f"{name}: shapes", f"{y.shape} and {t.shape}", "scores (N, C, …) and labels (N, …)"))
    return y.argmax(1).reshape(-1), t.reshape(-1)


def accuracy(y: Array, t: Array, ignore_label: int | None = None) -> Variable:
    """The share of samples whose largest score, of y (N, C, …), is that of the right class t (N, …); samples of
    `ignore_label` do not count."""
    if ignore_label is not None:
        ranges.check("accuracy", "an int", ignore_label=ignore_label)
    backend, (scores, labels) = _host("accuracy", y, t)
    found, right = _classes("accuracy", scores, labels)
    counts = np.ones(right.shape, bool) if ignore_label is None else right != ignore_label
    return _measure((found == right)[counts].sum() / max(counts.sum(), 1), scores, backend)


def binary_accuracy(y: Array, t: Array) -> Variable:
    """The share of elements of which y >= 0 says whether t is 1; those with t = -1 do not count.

    Raises `ShapeError` unless both have one shape.
    """
    backend, (scores, labels) = _host("binary_accuracy", y, t)
    if scores.shape != labels.shape:
        raise ShapeError(complain("binary_accuracy: shapes", f"{scores.shape} and {labels.shape}", "one shape"))
    counts = labels != -1
    return _measure(((scores >= 0) == labels)[counts].sum() / max(counts.sum(), 1), scores, backend)


def r2_score(pred: Array, true: Array, sample_weight: Array | None = None,
             multioutput: str = "uniform_average") -> Variable:  # fmt: skip
    """1 - the squared errors over the squared deviations from the mean, along the first axis: the mean over outputs, or
    one for each ('raw_values'). An output that does not vary gives 0. Raises `ValueError` for weights, `ShapeError` for
    two shapes."""
    if sample_weight is not None or multioutput not in ("uniform_average", "raw_values"):
        given = f"sample_weight={sample_weight!r}, multioutput={multioutput!r}"
        raise ValueError(complain("r2_score", given, "no weights, and 'uniform_average' or 'raw_values'"))
    backend, (found, right) = _host("r2_score", pred, true)
    if found.shape != right.shape:
        raise ShapeError(complain("r2_score: shapes", f"{found.shape} and {right.shape}", "one shape"))
    wide = right.astype(np.float64)
    with np.errstate(all="ignore"):
        error, spread = ((found - wide) ** 2).sum(0), ((wide - wide.mean(0)) ** 2).sum(0)
        score = np.where(spread != 0, 1 - error / np.where(spread != 0, spread, 1), 0.0)
        return _measure(score if multioutput == "raw_values" else score.mean(), found, backend)


def classification_summary(y: Array, t: Array, label_num: int | None = None, beta: float = 1.0,
                           ignore_label: int = -1) -> tuple[Variable, Variable, Variable, Variable]:  # fmt: skip
    """(precision, recall, F-beta score, support) of each class, of scores y (N, C, …) and labels t (N, …).

    `label_num` is the number of classes (None: C); samples of `ignore_label` do not count; a class that is never found,
    or never there, has 0. Raises `ValueError` for another negative label.
    """
    ranges.check("classification_summary", "an int", ignore_label=ignore_label)
    ranges.check("classification_summary", "0 or more, and finite", beta=beta)
    if label_num is not None:
        ranges.check("classification_summary", "an int of 1 or more", label_num=label_num)
    backend, (scores, labels) = _host("classification_summary", y, t)
    found, right = _classes("classification_summary", scores, labels)
    keep = right != ignore_label
    if (right[keep] < 0).any():
        given = f"{right[keep].min()}, ignore_label={ignore_label}"
        raise ValueError(complain("classification_summary: a negative label", given, "classes from 0 on"))
    classes = scores.shape[1] if label_num is None else label_num
    support, relevant, hits = (
        np.bincount(x, minlength=classes)[:classes].astype(np.float64)
        for x in (right[keep], found[keep], right[keep & (found == right)])
    )
    precise, recalled = hits / np.maximum(relevant, 1), hits / np.maximum(support, 1)
    below = beta**2 * precise + recalled
    score = (1 + beta**2) * precise * recalled / np.where(below == 0, 1, below)
    real = (_measure(x, scores, backend) for x in (precise, recalled, score))
    return (*real, _variable(support, np.int32, backend))


def precision(y: Array, t: Array, label_num: int | None = None, ignore_label: int = -1) -> tuple[Variable, Variable]:
    """(right ones among those found, support) of each class; see `classification_summary`."""
    summary = classification_summary(y, t, label_num, ignore_label=ignore_label)
    return summary[0], summary[3]


def recall(y: Array, t: Array, label_num: int | None = None, ignore_label: int = -1) -> tuple[Variable, Variable]:
    """(found ones among those there, support) of each class; see `classification_summary`."""
    summary = classification_summary(y, t, label_num, ignore_label=ignore_label)
    return summary[1], summary[3]


def f1_score(y: Array, t: Array, label_num: int | None = None, ignore_label: int = -1) -> tuple[Variable, Variable]:
    """(harmonic mean of precision and recall, support) of each class; see `classification_summary`."""
    summary = classification_summary(y, t, label_num, ignore_label=ignore_label)
    return summary[2], summary[3]
