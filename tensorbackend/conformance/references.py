# SPDX-License-Identifier: Apache-2.0
"""Convolution and pooling from their definitions, in float64, written apart from the product: one output pixel and one
cell of its window at a time, each found by its coordinates."""

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


def meetings(layer: object) -> Iterator[tuple[tuple, tuple, tuple]]:
    """Every (output pixel, filter cell, input pixel) of a layer that meet inside the image."""
    pads = [p[0] if isinstance(p, tuple) else p for p in layer.padding]
    for pixel in np.ndindex(*layer.MPQ):
        for cell in np.ndindex(*layer.TRS):
            place = tuple(
                o * s + c * d - p for o, s, c, d, p in zip(pixel, layer.strides, cell, layer.dilation, pads)
            )
            if all(0 <= at < n for at, n in zip(place, layer.DHW)):
                yield pixel, cell, place


def groups(layer: object) -> Iterator[tuple[slice, slice]]:
    """The input maps and the output maps of each group."""
    c, k = layer.C // layer.groups, layer.K // layer.groups
    for g in range(layer.groups):
        yield slice(g * c, g * c + c), slice(g * k, g * k + k)


def fprop(layer: object, I: np.ndarray, F: np.ndarray) -> np.ndarray:
    """O[k, pixel, n]: the sum of F[c, cell, k] I[c, place, n]."""
    O = np.zeros(layer.dimO)
    for pixel, cell, place in meetings(layer):
        for cs, ks in groups(layer):
            O[(ks, *pixel)] += np.einsum("ck,cn->kn", F[(slice(None), *cell, ks)], I[(cs, *place)])
    return O


def bprop(layer: object, F: np.ndarray, E: np.ndarray) -> np.ndarray:
    """grad_I[c, place, n]: the sum of F[c, cell, k] E[k, pixel, n]."""
    grad = np.zeros(layer.dimI)
    for pixel, cell, place in meetings(layer):
        for cs, ks in groups(layer):
            grad[(cs, *place)] += np.einsum("ck,kn->cn", F[(slice(None), *cell, ks)], E[(ks, *pixel)])
    return grad


def update(layer: object, I: np.ndarray, E: np.ndarray) -> np.ndarray:
    """grad_F[c, cell, k]: the sum of I[c, place, n] E[k, pixel, n]."""
    grad = np.zeros(layer.dimF)
    for pixel, cell, place in meetings(layer):
        for cs, ks in groups(layer):
            grad[(slice(None), *cell, ks)] += np.einsum("cn,kn->ck", I[(cs, *place)], E[(ks, *pixel)])
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
