# SPDX-License-Identifier: Apache-2.0
"""Convolutions as others of rearranged images, for which there are faster ways.

*Space to batch.* Places of an axis that are equal modulo a dilation meet each other alone: taken apart they are as many
images, to be convolved by the same filters side by side, without dilation. (TensorFlow calls it so, and uses it for
what has no kernel of its own; here it gives dilated filters Winograd's algorithm, and few images full vectors.)

*Unrolled depth.* With the planes that a filter's cells of depth meet as maps of their own, a convolution of volumes is
one of planes with T times as many maps, and the same filters as they lie in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorbackend.primitives.geometry import ConvGeometry

__all__ = ["Apart", "taken_apart", "unrolled"]

MOST_DEPTH = 64
"""Planes that are copied for one at most."""


@dataclass(frozen=True)
class Apart:
    """A convolution without the dilations that are equal to `steps`: `geometry` has its images.

    Place i of depth, height and width of an image is place (i + front) // step of the part that (i + front) % step
    counts. Parts are filled up with zeros to one length; outputs beyond the last are left out.
    """

    geometry: ConvGeometry
    steps: tuple[int, int, int]
    front: tuple[int, int, int]


def taken_apart(g: ConvGeometry) -> Apart | None:
    """A convolution's images taken apart; None where no axis at stride 1 is dilated, or no output meets an image."""
    steps = tuple(d if stride == 1 else 1 for d, stride in zip(g.dilations, g.strides))
    if steps == (1, 1, 1):
        return None
    images, results, pads, front = [], [], [], []
    axes = zip(steps, g.image, g.result, g.window, g.pads)
    for step, length, out, taps, (before, after) in axes:
        pad, first = divmod(before, step)
        images.append(length)
        results.append(out)
        pads.append((before, after))
        front.append(first)
        if step > 1:
            results[-1] = -(-out // step)
            reached = results[-1] + taps - 1 - pad  # places of a part up to the last that an output reads
            images[-1] = min(-(-(length + first) // step), reached)
            pads[-1] = (pad, reached - images[-1])
    if min(images) < 1:
        return None
    (D, H, W), (M, P, Q) = images, results
    count = steps[0] * steps[1] * steps[2]
    rest = tuple(d // step for d, step in zip(g.dilations, steps))
    found = replace(g, N=g.N * count, D=D, H=H, W=W, M=M, P=P, Q=Q, pads=tuple(pads), dilations=rest)
    return Apart(found, steps, tuple(front))


def unrolled(g: ConvGeometry) -> ConvGeometry | None:
    """A convolution of volumes as one of planes; None where filters have one cell of depth, or more than `MOST_DEPTH`.

    Map c T + t has, at depth m, plane m stride + t dilation - pad of map c.
    """
    if not 1 < g.T <= MOST_DEPTH:
        return None
    strides, dilations, pads = (1, *g.strides[1:]), (1, *g.dilations[1:]), ((0, 0), *g.pads[1:])
    return replace(g, C=g.C * g.T, D=g.M, T=1, strides=strides, dilations=dilations, pads=pads)
