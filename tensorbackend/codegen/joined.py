# SPDX-License-Identifier: Apache-2.0
"""Short rows joined: maps whose results lie side by side from row to row, while some inputs do not.

    result  o o o o o o o o o      x  x x x x x x x x x      bias  b c d  ->  b c d b c d b c d
            row 0 row 1 row 2                                scale s t u  ->  s s s t t t u u u

Rows of a few elements would leave most of a vector empty, and all that a row begins with takes as long as the row. Such
a map runs over its rows as over one long row, and inputs that do not run on with the result are spread into buffers
first, a stretch at a time (`tb_period`, `tb_repeat`, `tb_rows` of `kernels/c/spread.h`). Short rows that are copied as
they are need no vectors of numbers: overlapping moves of 64 or 16 bytes copy any length.
"""

from __future__ import annotations

from dataclasses import replace

from tensorbackend.codegen.nest import MAP, Nest, Spread
from tensorbackend.graph.plan import Kernel, Ref

__all__ = ["WIDEST", "join_rows"]

WIDEST = 256
"""Elements from which on rows are long enough by themselves."""
WHOLE = 64
"""Elements from which on rows of whole vectors are."""
LEAST_BYTES = 16
"""Bytes of a row from which on `tb_copy_row` moves it."""
CHEAP = 12
"""Floating-point operations of an element that take less time than to spread a number."""
MOST = 4
"""Inputs that are spread at most: their buffers should stay in the first-level cache beside all that is read."""


def join_rows(found: Nest, far: bool = False, near: bool = False) -> Nest:
    """The nest with its rows joined or copied, where that takes less time; else the nest itself, or as `near` rows.

    `far` says that results go past the caches, `near` that all stays in them.
    """
    kernel = found.kernel
    if found.form != MAP or found.tiled is not None:
        return found
    width = kernel.shape[found.inner]
    if _copies(found, width) and not (far and _has_whole_lines(kernel.outputs[0][0], found.inner)):
        return replace(found, copies=True)
    by_itself = replace(found, near=True) if near and found.fits_near else found
    itemsize = min((ref.dtype.itemsize for ref in kernel.operands), default=1)
    if not 1 < width < WIDEST or (width >= WHOLE and width * itemsize % 64 == 0):
        return by_itself
    outer = next((a for a in found.kept if _run_on(kernel, a, found.inner)), None)
    if outer is None:
        return by_itself
    spread = _spread(kernel, outer, found.inner)
    if len(spread) > MOST or _quick(by_itself, width * itemsize, spread):
        return by_itself
    return _joined(found, outer, spread)


def _quick(found: Nest, nbytes: int, spread: tuple[Spread, ...]) -> bool:
    """Whether near rows, of so many bytes, take less time than to spread what differs from row to row: of a vector at
    least, where a vector more takes no time to compute."""
    flops = sum(i.op.flops for i in found.kernel.body if i.kind == "op" and found.varies(i))
    return found.near and nbytes >= 64 and flops <= CHEAP and any(one.form != "period" for one in spread)


def _copies(found: Nest, width: int) -> bool:
    """Whether rows are moved as they are, from one place where elements lie side by side to another."""
    kernel = found.kernel
    if not found.kept or len(kernel.body) != 1 or kernel.body[0].kind != "load" or len(kernel.outputs) != 1:
        return False
    (source,), ((target, _),) = kernel.inputs, kernel.outputs
    if source.dtype != target.dtype or width >= WIDEST or width * source.dtype.itemsize < LEAST_BYTES:
        return False
    return all(ref.shape[found.inner] == width and ref.strides[found.inner] == 1 for ref in (source, target))


def _has_whole_lines(ref: Ref, inner: int) -> bool:
    """Whether rows are lines of the cache, from their beginnings to their ends, if the first one begins there."""
    steps = [s for a, s in enumerate(ref.strides) if a != inner]
    return all(elements * ref.dtype.itemsize % 64 == 0 for elements in (ref.shape[inner], *steps))


def _run_on(kernel: Kernel, outer: int, inner: int) -> bool:
    """Whether the results of a row follow those of the row before, and the numbers of random draws do, too."""
    if not all(_continues(ref, outer, inner) for ref, _ in kernel.outputs):
        return False
    sources = [i for i in kernel.body if i.kind == "source"]
    return all(i.op.name != "index" and outer + 1 == inner and 1 not in i.shape[outer : inner + 1] for i in sources)


def _continues(ref: Ref, outer: int, inner: int) -> bool:
    along, across = ref.strides[outer], ref.strides[inner]
    return ref.shape[outer] != 1 and across == 1 and along == ref.shape[inner] != 1


def _spread(kernel: Kernel, outer: int, inner: int) -> tuple[Spread, ...]:
    found = []
    for slot, ref in enumerate(kernel.inputs):
        along, across = (0 if ref.shape[a] == 1 else ref.strides[a] for a in (outer, inner))
        if (along or across) and not _continues(ref, outer, inner):
            form = "period" if not along else "rows" if across else "repeat"
            found.append(Spread(slot, form, along, across))
    return tuple(found)


def _joined(found: Nest, outer: int, spread: tuple[Spread, ...]) -> Nest:
    """The nest with axis `outer` in the inner one, as whose elements the inputs to be spread are told to lie."""
    kernel, inner = found.kernel, found.inner
    slots = {one.slot for one in spread}
    length = kernel.shape[outer] * kernel.shape[inner]

    def shape_of(shape: tuple[int, ...]) -> tuple[int, ...]:
        lengths = [n if a != inner else 1 if shape[outer] == n == 1 else length for a, n in enumerate(shape)]
        return (*lengths[:outer], *lengths[outer + 1 :])

    def place_of(slot: int | None, ref: Ref) -> Ref:
        strides = [1 if a == inner and slot in slots else s for a, s in enumerate(ref.strides)]
        return ref._replace(shape=shape_of(ref.shape), strides=(*strides[:outer], *strides[outer + 1 :]))

    body = [i._replace(shape=shape_of(i.shape)) for i in kernel.body]
    inputs = [place_of(slot, ref) for slot, ref in enumerate(kernel.inputs)]
    outputs = [(place_of(None, ref), value) for ref, value in kernel.outputs]
    joined = replace(kernel, shape=shape_of(kernel.shape), body=body, inputs=inputs, outputs=outputs, cache={})
    kept = [a - (a > outer) for a in found.kept if a != outer]
    return replace(found, kernel=joined, kept=kept, inner=inner - (inner > outer), width=kernel.shape[inner],
                   spread=spread)  # fmt: skip
