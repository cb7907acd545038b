# SPDX-License-Identifier: Apache-2.0
"""Convolution and pooling from their definitions, in float64, written apart from the product: one cell of the window at
a time, what it meets found by coordinates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

EPSILON = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""Half the distance from 1 to the next number."""
TYPES = ("float32", "float64", "float16", "bfloat16")


def draw(shape: Sequence[int], dtype: str = "float64", seed: int = 0) -> np.ndarray:
    """Normal random numbers that the type holds."""
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return values if dtype == "float64" else _rounded(values.astype(np.float32), dtype)


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    import ml_dtypes

    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def wide(x: np.ndarray) -> np.ndarray:
    """The numbers in float64."""
    return np.asarray(x).astype(np.float64)


ALL = slice(None)


def meetings(layer: object) -> Iterator[tuple[tuple, tuple, tuple]]:
    """For every filter cell, which output pixels meet which input pixels inside the image, as indices of O and I."""
    pads = [p[0] if isinstance(p, tuple) else p for p in layer.padding]
    for cell in np.ndindex(*layer.TRS):
        pixels, places = [ALL], [ALL]
        for m, s, c, d, p, n in zip(layer.MPQ, layer.strides, cell, layer.dilation, pads, layer.DHW):
            inside = [o for o in range(m) if 0 <= o * s + c * d - p < n]
            first, last = (inside[0], inside[-1]) if inside else (0, -1)
            pixels.append(slice(first, last + 1))
            places.append(slice(first * s + c * d - p, last * s + c * d - p + 1, s) if inside else slice(0))
        yield cell, tuple(pixels), tuple(places)


def grouped(layer: object, x: np.ndarray) -> np.ndarray:
    """Images or errors by (group, map of the group, everything else)."""
    return x.reshape(layer.groups, len(x) // layer.groups, -1)


def cell_of(layer: object, F: np.ndarray, cell: tuple) -> np.ndarray:
    """One cell of the filters by (input map of a group, group, output map of the group)."""
    return F[(ALL, *cell)].reshape(len(F), layer.groups, -1)


def fprop(layer: object, I: np.ndarray, F: np.ndarray) -> np.ndarray:
    """O[k, pixel, n]: the sum of F[c, cell, k] I[c, place, n]."""
    O = np.zeros(layer.dimO)
    for cell, pixels, places in meetings(layer):
        sums = np.einsum("cgk,gcx->gkx", cell_of(layer, F, cell), grouped(layer, I[places]))
        O[pixels] += sums.reshape(O[pixels].shape)
    return O


def bprop(layer: object, F: np.ndarray, E: np.ndarray) -> np.ndarray:
    """grad_I[c, place, n]: the sum of F[c, cell, k] E[k, pixel, n]."""
    grad = np.zeros(layer.dimI)
    for cell, pixels, places in meetings(layer):
        sums = np.einsum("cgk,gkx->gcx", cell_of(layer, F, cell), grouped(layer, E[pixels]))
        grad[places] += sums.reshape(grad[places].shape)
    return grad


def update(layer: object, I: np.ndarray, E: np.ndarray) -> np.ndarray:
    """grad_F[c, cell, k]: the sum of I[c, place, n] E[k, pixel, n]."""
    grad = np.zeros(layer.dimF)
    for cell, pixels, places in meetings(layer):
        sums = np.einsum("gcx,gkx->cgk", grouped(layer, I[places]), grouped(layer, E[pixels]))
        grad[(ALL, *cell)] += sums.reshape(len(grad), layer.K)
    return grad


def assert_near(actual: np.ndarray, expected: np.ndarray, scale: np.ndarray, terms: int, dtype: str) -> None:
    """Within the error that adding `terms` products, whose magnitudes add up to `scale`, may have in a type.

    (terms + 5) roundings of the sums' type, and one of the result's (Higham 2002, section 3.1; halves add up in
    float32).
    """
    inner = EPSILON["float64" if dtype == "float64" else "float32"]
    bound = (terms + 5) * inner * scale + 2 * EPSILON[dtype] * (np.abs(expected) + inner * scale * terms) + 1e-30
    tiny = {"float16": 2.0**-24}.get(dtype, 0.0)
    excess = np.abs(wide(actual).reshape(expected.shape) - expected) - bound - tiny
    assert np.all(excess <= 0), f"beyond the bound by {excess.max()} at {np.argwhere(~(excess <= 0))[0]}"


def windows(layer: object) -> Iterator[tuple[tuple, list[tuple[int, tuple]]]]:
    """Every output (k, m, p, q) of a pooling with the cells of its window inside the image: (number, input place)."""
    pads = [p[0] if isinstance(p, tuple) else p for p in layer.padding]
    inside = layer.dimI[:4]
    for at in np.ndindex(*layer.dimO[:4]):
        cells = []
        for number, cell in enumerate(np.ndindex(*layer.JTRS)):
            place = tuple(o * s + c - p for o, s, c, p in zip(at, layer.strides, cell, pads))
            if all(0 <= x < n for x, n in zip(place, inside)):
                cells.append((number, place))
        yield at, cells


def pooled(layer: object, I: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pooled images, and for max the number of the winning cell."""
    O, argmax = np.zeros(layer.dimO), np.zeros(layer.dimO, np.int64)
    for at, cells in windows(layer):
        values = np.stack([I[place] for _, place in cells])
        if layer.op == "max":
            best = np.argmax(values, 0)  # the first, and the first NaN before all
            O[at] = np.take_along_axis(values, best[None], 0)[0]
            argmax[at] = np.array([number for number, _ in cells])[best]
        else:
            O[at] = values.mean(0) if layer.op == "avg" else np.sqrt((values**2).sum(0))
    return O, argmax


def pooled_back(layer: object, E: np.ndarray, I: np.ndarray, O: np.ndarray, argmax: np.ndarray) -> np.ndarray:
    """What the errors send to the images."""
    grad = np.zeros(layer.dimI)
    for at, cells in windows(layer):
        for number, place in cells:
            if layer.op == "max":
                grad[place] += np.where(argmax[at] == number, E[at], 0)
            elif layer.op == "avg":
                grad[place] += E[at] / len(cells)
            else:
                grad[place] += np.divide(E[at] * I[place], O[at], out=np.zeros_like(E[at]), where=O[at] != 0)
    return grad


def normalised(layer: object, I: np.ndarray, ascale: float, bpower: float) -> tuple[np.ndarray, np.ndarray]:
    """The images after response normalisation, and denom."""
    J, denom = layer.JTRS[0], np.ones_like(I)
    for c in range(layer.C):
        for near in range(max(0, c - J // 2), min(layer.C, c + J // 2 + 1)):
            denom[c] += ascale / J * I[near] ** 2
    return I * denom**-bpower, denom
