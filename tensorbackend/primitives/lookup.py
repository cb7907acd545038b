# SPDX-License-Identifier: Apache-2.0
"""The gradient of a lookup table: its plain NumPy meaning, and the method of the contract.

The forward pass is `be.take(W, ids, axis=0)`. Words that occur several times get the sum of their errors, in the order
of the look-ups, so that results repeat bit for bit: float32 adds up in float64, halves in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensorbackend import ops
from tensorbackend.errors import DTypeError, ShapeError, complain
from tensorbackend.graph.tensor import Tensor
from tensorbackend.primitives import operands
from tensorbackend.primitives.geometry import positive

__all__ = ["BPROP", "LookupGeometry", "LookupTables", "bprop_reference", "out_of_range"]


MOST = 2**31 - 1
"""Look-ups of a call, and words of a table, at most: compiled code counts them in 32 bits."""


class LookupGeometry(NamedTuple):
    """`count` look-ups in a table (`words`, `length`); word `pad` (None: no such) gets no gradient."""

    count: int
    words: int
    length: int
    pad: int | None

    @property
    def pad_word(self) -> int:
        """`pad` as the signed number of 64 bits for which compiled code takes it, 0 for None."""
        pad = self.pad or 0
        return pad - (1 << 64) if pad >= 1 << 63 else pad


def out_of_range(g: LookupGeometry, place: int, word: int) -> IndexError:
    """The error for a word that the table does not have."""
    given = f"word {word} at place {place}"
    return IndexError(complain("compound_bprop_lut: inputs", given, f"words from 0 to {g.words - 1}, or pad_idx"))


def bprop_reference(errors: np.ndarray, ids: np.ndarray, *rest: Any) -> np.ndarray:
    """alpha times the gradient of the table + beta times the old one: operands errors (length, count), ids (count,)
    and, where beta is not 0, the old gradient; then geometry, alpha, beta."""
    *old, g, alpha, beta = rest
    kept = np.ones(ids.shape, bool) if g.pad is None else ids != g.pad
    wrong = kept & ((ids < 0) | (ids >= g.words))
    if wrong.any():
        place = int(np.argmax(wrong))
        raise out_of_range(g, place, int(ids[place]))
    wide = np.dtype(np.float64) if errors.dtype == np.float32 else errors.dtype
    total = np.zeros((g.words, g.length), wide)
    np.add.at(total, ids[kept], errors.T[kept].astype(wide))
    total *= wide.type(alpha)
    return total + wide.type(beta) * old[0] if old else total


def _operations(g: LookupGeometry, alpha: float, beta: float) -> int:
    return g.count * g.length


BPROP = ops.call("lut_bprop", 2, bprop_reference, "The gradient of look-ups by their table.", _operations)


class LookupTables:
    """The lookup table of the contract; `Backend` inherits it."""

    def compound_bprop_lut(self, nin: int, inputs: Any, error: Any, error_t: Any, dW: Any, pad_idx: int | None,
                           alpha: float = 1.0, beta: float = 0, repeat: int = 1) -> None:  # fmt: skip
        """dW = alpha times the gradient of a lookup table + beta dW, over the whole table.

        Row w of the gradient is the sum of error[:, j] over the look-ups j with inputs[j] = w, and 0 for the row
        `pad_idx` (None: no such row). `inputs`: n integers in any shape, `nin` to a sample; `error` (embed, n); `dW`
        (vocab, embed) of the same type. `error_t` (n, embed), scratch for the transposed error, is not used and
        may be None. `repeat` runs it as often, for timing. Raises `ShapeError` (also for 2^31 look-ups or words),
        `DTypeError`, `TypeError` for a factor that is no number, `ValueError` when outputs overlap inputs, and
        `IndexError` for words that the table has not, before dW is written.
        """
        name = "compound_bprop_lut"
        g = _geometry(name, nin, inputs, error, dW, pad_idx)
        operands.check(name, dW.dtype, error=(error, (g.length, g.count)))
        operands.check_output(name, dW, inputs, error)
        if error_t is not None:
            operands.check(name, dW.dtype, error_t=(error_t, (g.count, g.length)))
        scales = operands.numbers(name, alpha=alpha, beta=beta)
        table, sources = (dW, (g.words, g.length)), [(error, (g.length, g.count)), (inputs, (g.count,))]
        operands.call(self, BPROP, (g, *scales), [table], sources, repeat, whole=True)


def _geometry(name: str, nin: Any, inputs: Any, error: Any, dW: Any, pad_idx: Any) -> LookupGeometry:
    """The sizes of a call. Raises `TypeError`, `DTypeError` and `ShapeError` for what does not fit together."""
    (samples,) = positive(name, nin=nin)
    if not isinstance(dW, Tensor) or len(dW.shape) != 2 or dW.size == 0:
        given = f"{dW.shape}" if isinstance(dW, Tensor) else type(dW).__name__
        raise ShapeError(complain(f"{name}: dW", given, "a tensor (vocab, embed)"))
    words, length = dW.shape
    operands.check(name, None, dW=(dW, dW.shape))
    if not isinstance(inputs, Tensor):
        raise TypeError(complain(f"{name}: inputs", type(inputs).__name__, "a tensor of integers"))
    operands.check_integers(name, 1, inputs=(inputs, inputs.shape))
    if max(inputs.size, words) > MOST:
        given = f"{inputs.size} look-ups in {words} words"
        raise ShapeError(complain(f"{name}: inputs", given, f"at most {MOST} of both", "several calls with beta=1"))
    if inputs.size % samples:
        raise ShapeError(complain(f"{name}: inputs", f"{inputs.size} words", f"a multiple of nin, {samples}"))
    if pad_idx is not None and (isinstance(pad_idx, bool) or not isinstance(pad_idx, (int, np.integer))):
        raise DTypeError(complain(f"{name}: pad_idx", repr(pad_idx), "an int or None"))
    held = np.iinfo(inputs.dtype)
    pad = None if pad_idx is None or not held.min <= pad_idx <= held.max else int(pad_idx)  # no input is another
    return LookupGeometry(inputs.size, words, length, pad)
