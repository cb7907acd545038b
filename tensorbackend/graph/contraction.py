# SPDX-License-Identifier: Apache-2.0
"""Contractions as trees of products: `einsum` and `tensordot` become transposes, reshapes and `dot`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from tensorbackend.errors import ShapeError, complain
from tensorbackend.graph import composite
from tensorbackend.graph.structure import one_axis

__all__ = ["diagonal", "einsum", "tensordot"]


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """NumPy's `tensordot`: products summed over so many last and first axes, or over two lists of axes."""
    if isinstance(axes, (int, np.integer)) and not isinstance(axes, bool):
        if not 0 <= axes <= min(len(a.shape), len(b.shape)):
            given = f"{axes} for {a.shape} and {b.shape}"
            raise ShapeError(complain("tensordot: axes", given, "0 to the number of axes of both"))
        left, right = list(range(len(a.shape) - axes, len(a.shape))), list(range(axes))
    else:
        if not isinstance(axes, (tuple, list)) or len(axes) != 2 or any(_no_axes(x) for x in axes):
            raise TypeError(complain("tensordot: axes", repr(axes), "an int, or a pair of axes or of lists of axes"))
        left, right = ([x] if isinstance(x, (int, np.integer)) else list(x) for x in axes)
    left = [one_axis("tensordot", x, len(a.shape)) for x in left]
    right = [one_axis("tensordot", x, len(b.shape)) for x in right]
    if [a.shape[x] for x in left] != [b.shape[x] for x in right]:
        given = f"{a.shape} and {b.shape} over {left} and {right}"
        raise ShapeError(complain("tensordot: lengths differ", given, "equal lengths"))
    free_a = [x for x in range(len(a.shape)) if x not in left]
    free_b = [x for x in range(len(b.shape)) if x not in right]
    shape = tuple(a.shape[x] for x in free_a) + tuple(b.shape[x] for x in free_b)
    return composite.reshape(composite.dot(_matrix(a, free_a, left), _matrix(b, right, free_b)), shape)


def _no_axes(x: Any) -> bool:
    return not isinstance(x, (int, np.integer)) and not (
        isinstance(x, (tuple, list)) and all(isinstance(a, (int, np.integer)) for a in x)
    )


def _matrix(x: Any, rows: list[int], columns: list[int]) -> Any:
    """The axes of an array as a matrix."""
    moved = composite.transpose(x, (*rows, *columns))
    return composite.reshape(moved, (math.prod(x.shape[a] for a in rows), math.prod(x.shape[a] for a in columns)))


def einsum(expression: str, operands: Sequence[Any]) -> Any:
    """NumPy's `einsum`: operands are multiplied pair by pair, from the left; `...` stands for further axes, the last of
    them where an operand has fewer. Axes of length 1 broadcast to the longer ones of their letter.

    Raises `ShapeError` for an expression that does not fit the operands.
    """
    inputs, output = _parsed(_spelled(expression, operands), operands)
    lengths = _lengths(inputs, operands)
    terms = [_without_repeats(*_without_ones(labels, x, lengths)) for labels, x in zip(inputs, operands)]
    labels, total = terms[0]
    for number, (others, x) in enumerate(terms[1:], start=1):
        later = set(output).union(*(more for more, _ in terms[number + 1 :]))
        labels, total = _multiplied(labels, total, others, x, later)
    return _arranged(labels, total, output)


def diagonal(x: Any, offset: int, axes: tuple[int, int]) -> Any:
    """The diagonal of two axes, as the last axis of the result: of a tensor a view, where the axes lie in order."""
    lead = [axis for axis in range(len(x.shape)) if axis not in axes]
    turned = composite.transpose(x, (*lead, *axes))
    *before, rows, columns = turned.shape
    offset = max(-rows, min(offset, columns))
    first = max(-offset, 0)
    length = max(min(rows - first, columns - max(offset, 0)), 0)
    begin = first * columns + max(offset, 0)
    part = slice(begin, begin + (length - 1) * (columns + 1) + 1, columns + 1) if length else slice(0)
    flat = composite.reshape(turned, (*before, rows * columns))
    return composite.slice(flat, (slice(None),) * len(before) + (part,))


def _spelled(expression: str, operands: Sequence[Any]) -> str:
    """The expression with letters for `...`; without an output, these come first in it."""
    text = expression.replace(" ", "")
    if "..." not in text:
        return text
    left, arrow, output = text.partition("->")
    terms = left.split(",")
    counts = [max(len(x.shape) - len(term) + 3, 0) * ("..." in term) for term, x in zip(terms, operands)]
    most = max(counts, default=0)
    free = "".join([c for c in ascii_letters if c not in text][:most])
    if not arrow:
        output = "..." + "".join(sorted(c for c in set(left) - set(",.") if left.count(c) == 1))
    spelled = [term.replace("...", free[most - n :]) for term, n in zip(terms, counts)]
    return ",".join(spelled + terms[len(counts) :]) + "->" + output.replace("...", free)


def _parsed(expression: str, operands: Sequence[Any]) -> tuple[list[str], str]:
    left, arrow, output = expression.partition("->")
    inputs = left.split(",")
    if not arrow:
        output = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    known = _lengths(inputs, operands)
    fits = len(inputs) == len(operands) and set(output) <= set(left) and len(set(output)) == len(output)
    for labels, x in zip(inputs, operands):
        fits = fits and len(labels) == len(x.shape) and (labels == "" or labels.isalpha())
        for label, length in zip(labels, x.shape):
            fits = fits and length in (1, known[label]) and length == x.shape[labels.index(label)]
    if not fits:
        given = f"{expression!r} for shapes {', '.join(str(x.shape) for x in operands)}"
        raise ShapeError(complain("einsum: the expression does not fit", given, "a letter for each axis"))
    return inputs, output


def _lengths(inputs: list[str], operands: Sequence[Any]) -> dict[str, int]:
    """The length of each label: the first that is not 1, else 1."""
    known: dict[str, int] = {}
    for labels, x in zip(inputs, operands):
        for label, length in zip(labels, x.shape):
            if known.get(label, 1) == 1:
                known[label] = length
    return known


def _without_ones(labels: str, x: Any, lengths: dict[str, int]) -> tuple[str, Any]:
    """An operand without the axes of length 1 that broadcast to those of others."""
    kept = [a for a, label in enumerate(labels) if x.shape[a] == lengths[label]]
    if len(kept) == len(labels):
        return labels, x
    return "".join(labels[a] for a in kept), composite.reshape(x, tuple(x.shape[a] for a in kept))


def _without_repeats(labels: str, x: Any) -> tuple[str, Any]:
    """An operand with the diagonal taken where a label occurs twice."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            first, second = labels.index(label), labels.rindex(label)
            x = diagonal(x, 0, (first, second))
            labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + label
    return labels, x


def _summed(labels: str, x: Any, kept: set[str]) -> tuple[str, Any]:
    axes = tuple(a for a, label in enumerate(labels) if label not in kept)
    return ("".join(c for c in labels if c in kept), composite.sum(x, axes, False)) if axes else (labels, x)


def _multiplied(left: str, a: Any, right: str, b: Any, later: set[str]) -> tuple[str, Any]:
    """The product of two operands, summed over the labels that nobody needs later."""
    left, a = _summed(left, a, later | set(right))
    right, b = _summed(right, b, later | set(left))
    batch = [c for c in left if c in right and c in later]
    inner = [c for c in left if c in right and c not in later]
    free_a, free_b = [c for c in left if c not in right], [c for c in right if c not in left]
    lengths = {**dict(zip(left, a.shape)), **dict(zip(right, b.shape))}
    shape = tuple(lengths[c] for c in (*batch, *free_a, *free_b))
    head = tuple(lengths[c] for c in batch)
    sizes = [math.prod(lengths[c] for c in group) for group in (free_a, inner, free_b)]
    a = composite.transpose(a, tuple(left.index(c) for c in (*batch, *free_a, *inner)))
    b = composite.transpose(b, tuple(right.index(c) for c in (*batch, *inner, *free_b)))
    if not inner:
        a = composite.reshape(a, (*head, sizes[0], 1))
        b = composite.reshape(b, (*head, 1, sizes[2]))
        product = a * b
    else:
        product = composite.dot(
            composite.reshape(a, (*head, sizes[0], sizes[1])), composite.reshape(b, (*head, sizes[1], sizes[2]))
        )
    return "".join((*batch, *free_a, *free_b)), composite.reshape(product, shape)


def _arranged(labels: str, x: Any, output: str) -> Any:
    labels, x = _summed(labels, x, set(output))
    return x if labels == output else composite.transpose(x, tuple(labels.index(c) for c in output))
