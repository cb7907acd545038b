# SPDX-License-Identifier: Apache-2.0
"""The primitives of a CUDA backend: which kernel of `kernels/cuda` each is, its types, its arguments, its grid.

Each `prepare_…` gives a function of the addresses of a step's inputs and output. Outputs are contiguous.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.backends.cuda_conv import Columns, columns_of, whole
from tensorbackend.backends.cuda_products import choose
from tensorbackend.backends.driver import MAX_GRID
from tensorbackend.codegen.geometry import BLOCKS, THREADS
from tensorbackend.codegen.render import ctype
from tensorbackend.graph import indexing
from tensorbackend.graph.plan import Instruction, Kernel, Primitive, Ref
from tensorbackend.graph.tensor import Storage
from tensorbackend.kernel_files import kernel_path
from tensorbackend.primitives.geometry import ConvGeometry
from tensorbackend.user_kernels import merged

if TYPE_CHECKING:
    from tensorbackend.backends.gpu import GpuBackend

__all__ = [
    "CHECKED", "MACROS", "PRIMITIVES", "Runner", "block_of", "copied", "element", "grid_of", "integers",
    "written_function",
]  # fmt: skip

Runner = Callable[[list[int]], None]
Axis = tuple[int, int, int]

MAX_AXES = 17
SMALL_TILE, LARGE_TILE = 16, 64
LARGE_FROM = 96
"""Rows and columns of a product from which on it goes by large tiles."""
PUT_THREADS = 1 << 14
"""Threads that an addition at places is shared among, about."""
CUMSUM_STRETCH = 4
"""Entries along an axis that a thread of a running sum takes at least."""
CONV_TILE, CONV_DEPTH = 64, 16
"""Columns of a tile of a convolution, and terms that are multiplied at a time."""
CONV_NARROW = 16
"""Rows of a tile for few maps."""
CONV_BLOCKS = 256
"""Blocks that the filters' gradient is shared among, about."""
MOST = 2**31 - 1 - CONV_TILE - CONV_DEPTH
"""Cells, places along an axis and terms up to which 32 bits count them: on a device, in less time than 64."""
MACROS = {
    "conv": ("TB_X", "TB_Y", "TB_C", "TB_ROWS", "TB_COLUMNS", "TB_DEPTH", "TB_INT"),
    "columns": ("TB_X", "TB_C"),
    "gemm": ("TB_A", "TB_B", "TB_C", "TB_TILE"),
    "pool": ("TB_OP", "TB_X", "TB_C", "TB_I", "TB_SQRT", "TB_INT"),
    "lrn": ("TB_X", "TB_C", "TB_LOG2", "TB_EXP2"),
    "lookup": ("TB_X", "TB_I", "TB_W"),
    "roi": ("TB_X", "TB_C", "TB_I"),
    "nms": ("TB_X", "TB_C"),
    "take": ("TB_X", "TB_I", "TB_W"),
    "cumsum": ("TB_X", "TB_C", "TB_W", "TB_V"),
    "histogram": ("TB_X", "TB_W", "TB_S"),
}
"""The macros that each file of `kernels/cuda` is compiled for."""
CHECKED = {"take", "put"}
"""Primitives whose places are checked even where there is nothing to write."""


def element(dtype: np.dtype) -> str:
    """The type of an element in hand-written kernels, which tell halves from integers."""
    return {"float16": "tb_half", "bfloat16": "tb_bfloat"}.get(dtype.name) or ctype(dtype)


def wide(dtype: np.dtype) -> str:
    """The type in which numbers of a type add up; of truths one is as true as two."""
    return {"float32": "double", "bool": "bool"}.get(dtype.name) or element(dtype)


def written_function(backend: GpuBackend, file: str, name: str, *values: Any) -> Any:
    """The kernel `name` of a file of `kernels/cuda`, compiled for the types in `values`."""
    macros = [f"-D{macro}={value}" for macro, value in zip(MACROS[file], values)]
    return backend._compiled_file(kernel_path(f"cuda/{file}.cu"), name, macros)


def _axes(axes: list[Axis]) -> list[int]:
    """A `tb_axes`: lengths and the strides in two arrays, of as few axes as both allow: all but one take a division."""
    lengths, *strides = ([axis[part] for axis in axes] for part in range(3))
    found = merged(tuple(lengths), [tuple(steps) for steps in strides])
    padding = [0] * (MAX_AXES - len(found.lengths))
    return [len(found.lengths)] + [word for part in (found.lengths, *found.strides) for word in (*part, *padding)]


def grid_of(count: int) -> tuple[int]:
    """The grid for as many results, a thread each."""
    return (min(max(-(-count // THREADS), 1), BLOCKS),)


def block_of(count: int) -> tuple[int]:
    """Threads of a block: a warp or more, as far as there is work."""
    return (min(THREADS, max(32, 1 << max(count - 1, 0).bit_length())),)


def integers(*words: int) -> bytes:
    """Integers as the 8-byte words of a launch."""
    return struct.pack(f"{len(words)}q", *words)


# Products -------------------------------------------------------------------------------------------------------------


def prepare_dot(backend: GpuBackend, step: Primitive) -> Runner:
    """The product over the last two axes, batches broadcast."""
    (x, y), out = step.inputs, step.output
    m, n, k = x.shape[-2], y.shape[-1], x.shape[-1]
    tile = LARGE_TILE if min(m, n) >= LARGE_FROM else SMALL_TILE
    gemm = written_function(backend, "gemm", "gemm", element(x.dtype), element(y.dtype), element(out.dtype), tile)
    lengths = out.shape[:-2]
    left, right = _batch_strides(x, lengths), _batch_strides(y, lengths)
    batches = math.prod(lengths)
    sizes = integers(m, n, k, batches, *x.strides[-2:], *y.strides[-2:], *_axes(list(zip(lengths, left, right))))
    grid = (-(-m // tile) * -(-n // tile), min(batches, MAX_GRID[1]))

    def run(addresses: list[int]) -> None:
        backend.driver.launch(gemm, grid, (THREADS,), 0, struct.pack("3Q", *addresses) + sizes)

    return choose(backend, step, run)


def _batch_strides(x: Ref, lengths: tuple[int, ...]) -> tuple[int, ...]:
    return x.broadcast_to((*lengths, *x.shape[-2:])).strides[: len(lengths)]


# Convolutions ---------------------------------------------------------------------------------------------------------


def _conv(backend: GpuBackend, step: Primitive, name: str, rows: int) -> tuple[Any, int, list[int]]:
    """A kernel of a pass whose product has so many rows a group; the rows of its tile; the `conv_sizes`."""
    (x, y), (g,) = step.inputs, step.params
    tile = CONV_TILE if rows > CONV_NARROW else CONV_NARROW
    kernel = written_function(backend, "conv", name, *_conv_types(step), *_conv_tile(tile, g))
    maps = [g.K // g.groups, g.M, g.P, g.Q, g.T, g.R, g.S]
    shifts = [*g.strides, *(before for before, _ in g.pads), *g.dilations, g.groups]
    return kernel, tile, [g.N, g.C // g.groups, g.D, g.H, g.W, *maps, *shifts, *x.strides, *y.strides]


def _conv_types(step: Primitive) -> list[str]:
    return [element(ref.dtype) for ref in (*step.inputs, step.output)]


def _conv_tile(rows: int, g: ConvGeometry) -> tuple[int, int, int, str]:
    """A tile's rows, columns and terms, and the type that counts what filters have for a map."""
    return rows, CONV_TILE, CONV_DEPTH, _counter(math.prod(g.window) * max(g.C, g.K) // g.groups)


def _counter(most: int) -> str:
    """The type of numbers up to `most`."""
    return "int" if most <= MOST else "tb_i64"


def _column_words(g: ConvGeometry) -> list[int]:
    """What the kernels of columns.cu take of a geometry."""
    sizes = [g.N, g.D, g.H, g.W, g.P, g.Q, g.T, g.R, g.S]
    return [*sizes, *g.strides, *(before for before, _ in g.pads), *g.dilations]


def _to_columns(backend: GpuBackend, by: Columns, images: Ref) -> Callable[[int, int, int, int], None]:
    """A function of the addresses of images and columns, and of a part's first line and number of lines."""
    kernel = written_function(backend, "columns", "images_to_columns", element(by.given), element(by.sums))
    words, packs = [*_column_words(by.g), *images.strides, by.rows], whole(by.g.N, images.strides)

    def run(image: int, columns: int, first: int, lines: int) -> None:
        arguments = struct.pack("2Q", image, columns) + integers(*words, first, lines, packs)
        across = min(-(-lines * by.line // (4 * THREADS)), BLOCKS)
        backend.driver.launch(kernel, (across, min(by.rows, MAX_GRID[1])), (THREADS,), 0, arguments)

    return run


def _with_columns(backend: GpuBackend, by: Columns, dtype: np.dtype) -> Storage:
    return backend._allocate(by.rows * by.lines * by.line * dtype.itemsize)


def prepare_conv(backend: GpuBackend, step: Primitive) -> Runner:
    """The convolution of images with filters."""
    (g,) = step.params
    by = columns_of(backend, step)
    if by is not None:
        turn, item = _to_columns(backend, by, step.inputs[0]), by.sums.itemsize

        def run(addresses: list[int]) -> None:
            columns = _with_columns(backend, by, by.given)
            for first, lines in by.parts():
                turn(addresses[0], columns.address, first, lines)
                out = addresses[2] + first * by.line * item
                backend.driver.multiply(by.fprop(lines), addresses[1], columns.address, out)

        return run
    return _gathered(backend, step, "conv_fprop", g.K // g.groups, math.prod(g.result) * g.N)


def prepare_conv_bprop(backend: GpuBackend, step: Primitive) -> Runner:
    """The gradient of a convolution by its images."""
    (g,) = step.params
    by = columns_of(backend, step)
    if by is not None:
        kernel = written_function(backend, "columns", "columns_to_images", element(by.given), element(by.sums))
        words, packs = [*_column_words(g), g.C], whole(g.N)

        def run(addresses: list[int]) -> None:
            columns = _with_columns(backend, by, by.sums)
            for first, lines in by.parts():
                errors = addresses[1] + first * by.line * by.given.itemsize
                backend.driver.multiply(by.bprop(lines), addresses[0], errors, columns.address)
                arguments = struct.pack("2Q", columns.address, addresses[2])
                arguments += integers(*words, first, lines, packs, first > 0)
                across = min(-(-math.prod(g.image) * g.N // THREADS), BLOCKS)
                backend.driver.launch(kernel, (across, min(g.C, MAX_GRID[1])), (THREADS,), 0, arguments)

        return run
    return _gathered(backend, step, "conv_bprop", g.C // g.groups, math.prod(g.image) * g.N)


def _plane(groups: int) -> tuple[int, int]:
    """Blocks along y and z for so many groups: along each, a grid takes `MAX_GRID[1]` at most."""
    deep = -(-groups // MAX_GRID[1])
    return -(-groups // deep), deep


def _gathered(backend: GpuBackend, step: Primitive, name: str, rows: int, columns: int) -> Runner:
    """A pass with a result for each map and each pixel of each image."""
    kernel, tile, words = _conv(backend, step, name, rows)
    grid = (-(-rows // tile) * -(-columns // CONV_TILE), *_plane(step.params[0].groups))
    sizes = integers(*words, 0)

    def run(addresses: list[int]) -> None:
        backend.driver.launch(kernel, grid, (THREADS,), 0, struct.pack("3Q", *addresses) + sizes)

    return run


def prepare_conv_update(backend: GpuBackend, step: Primitive) -> Runner:
    """The gradient of a convolution by its filters: in segments of the sum, which are then added up in order."""
    (g,) = step.params
    by = columns_of(backend, step)
    if by is not None:
        turn = _to_columns(backend, by, step.inputs[0])

        def by_products(addresses: list[int]) -> None:
            columns = _with_columns(backend, by, by.given)
            for first, lines in by.parts():
                turn(addresses[0], columns.address, first, lines)
                errors = addresses[1] + first * by.line * by.given.itemsize
                backend.driver.multiply(by.update(lines, first > 0), columns.address, errors, addresses[2])

        return by_products
    count, terms = math.prod(g.dimF), math.prod(g.result) * g.N
    rows = count // g.K
    kernel, tile, words = _conv(backend, step, "conv_update", rows)
    join = written_function(backend, "conv", "conv_join", *_conv_types(step), *_conv_tile(tile, g))
    blocks = -(-rows // tile) * -(-(g.K // g.groups) // CONV_TILE)
    wanted = max(1, CONV_BLOCKS // (blocks * g.groups))
    segment = -(-max(-(-terms // wanted), CONV_TILE) // CONV_DEPTH) * CONV_DEPTH
    segments = -(-terms // segment)
    sizes, nbytes = integers(*words, segment), segments * count * step.output.dtype.itemsize

    def run(addresses: list[int]) -> None:
        storage = backend._allocate(nbytes) if segments > 1 else None
        home = addresses[2] if storage is None else storage.address
        arguments = struct.pack("3Q", *addresses[:2], home) + sizes
        backend.driver.launch(kernel, (blocks, *_plane(g.groups * segments)), (THREADS,), 0, arguments)
        if storage is not None:
            arguments = struct.pack("2Q2q", home, addresses[2], count, segments)
            backend.driver.launch(join, grid_of(count), (THREADS,), 0, arguments)

    return run


# Pooling and normalisation --------------------------------------------------------------------------------------------


def _read_only(step: Primitive) -> int:
    """How many operands are only read: where beta is not 0, the output is an operand once more."""
    return len(step.inputs) - (step.params[2] != 0)


def _prepare_pool(backend: GpuBackend, step: Primitive, name: str, pointers: tuple[int, ...]) -> Runner:
    """Pooling or its gradient, a thread for a result; `pointers` says which pointer each operand read is."""
    g, alpha, beta = step.params
    read, given = _read_only(step), len(step.inputs)
    sums = dtypes.compute(step.output.dtype)
    places = [ref.dtype for ref in (*step.inputs, *step.others) if dtypes.is_integer(ref.dtype)]
    types = element(step.output.dtype), element(sums), element(places[0]) if places else "char"
    kind = ("max", "avg", "l2").index(g.op)
    axes = zip(g.dimI, g.window, g.steps, map(sum, g.pads))
    counter = _counter(max(g.cells, *map(sum, axes)))  # no number along an axis is more than all of its lengths
    kernel = written_function(backend, "pool", name, kind, *types, f"tb_sqrt_{dtypes.tag(sums)}", counter)
    refs = [*step.inputs[:read], *step.others]
    strides = [list(ref.strides[:4]) for ref in refs] + [[0] * 4] * (3 - len(refs))
    sizes = [g.N, *g.dimI[:4], *g.dimO[:4], *g.window, *g.steps, *(before for before, _ in g.pads)]
    words = integers(*sizes, *sum(strides, []), *step.output.strides[:4]) + struct.pack("2d", alpha, beta)
    count = math.prod(step.output.shape)

    def run(addresses: list[int]) -> None:
        slots = [0] * (max(pointers) + 1)
        for slot, address in zip(pointers, [*addresses[:read], *addresses[given:]]):
            slots[slot] = address
        arguments = struct.pack(f"{len(slots)}Q", *slots) + words
        backend.driver.launch(kernel, grid_of(count), block_of(count), 0, arguments)

    return run


def prepare_pool_fprop(backend: GpuBackend, step: Primitive) -> Runner:
    """Pooling: input, output, places."""
    return _prepare_pool(backend, step, "pool_fprop", (0, 1, 2))


def prepare_pool_bprop(backend: GpuBackend, step: Primitive) -> Runner:
    """Pooling's gradient: error, places, forward input and output, gradient."""
    pointers = {"max": (0, 1, 4), "avg": (0, 4), "l2": (0, 2, 3, 4)}[step.params[0].op]
    return _prepare_pool(backend, step, "pool_bprop", pointers)


def _prepare_lrn(backend: GpuBackend, step: Primitive, name: str) -> Runner:
    """Normalisation across maps or its gradient, a thread for a result."""
    g, alpha, beta, ascale, bpower = step.params
    sums, read, given = dtypes.compute(step.output.dtype), _read_only(step), len(step.inputs)
    functions = [f"tb_{function}_{dtypes.tag(sums)}" for function in ("log2", "exp2")]
    kernel = written_function(backend, "lrn", name, element(step.output.dtype), element(sums), *functions)
    count = math.prod(g.dimI)
    words = integers(g.C, count // g.C, g.J) + struct.pack("4d", alpha, beta, ascale / g.J, bpower)

    def run(addresses: list[int]) -> None:
        pointers = [*addresses[:read], *addresses[given:]]
        arguments = struct.pack(f"{len(pointers)}Q", *pointers) + words
        backend.driver.launch(kernel, grid_of(count), block_of(count), 0, arguments)

    return run


def prepare_lrn_fprop(backend: GpuBackend, step: Primitive) -> Runner:
    """Normalisation across maps."""
    return _prepare_lrn(backend, step, "lrn_fprop")


def prepare_lrn_bprop(backend: GpuBackend, step: Primitive) -> Runner:
    """The gradient of normalisation across maps."""
    return _prepare_lrn(backend, step, "lrn_bprop")


# Places ---------------------------------------------------------------------------------------------------------------


def _check(backend: GpuBackend, name: str, places: Ref, length: int, types: tuple) -> Callable[[int], None]:
    """A function of the address of places that raises `IndexError` when one is outside an axis of `length`."""
    check = written_function(backend, "take", "check_places", *types)
    count = math.prod(places.shape)
    sizes = integers(count, length, *_axes([(n, s, 0) for n, s in zip(places.shape, places.strides)]))
    found = np.zeros(1, np.int64)

    def run(address: int) -> None:
        storage = backend._allocate(8)
        backend.driver.fill(storage.address, 0, 8)
        arguments = struct.pack("2Q", address, storage.address) + sizes
        backend.driver.launch(check, grid_of(count), block_of(count), 0, arguments)
        backend.driver.download(found, storage.address)
        if found[0]:
            ops.check_places(name, backend._array_at(places, address), length)

    return run


def prepare_take(backend: GpuBackend, step: Primitive) -> Runner:
    """The entries of an array along an axis at places."""
    (x, places), out, (axis,) = step.inputs, step.output, step.params
    types = (ctype(x.dtype), element(places.dtype), ctype(x.dtype))
    take = written_function(backend, "take", "take", *types)
    check = _check(backend, "take", places, x.shape[axis], types)
    axes = [(n, s, 0) for n, s in zip(x.shape, x.strides)]
    axes[axis : axis + 1] = [(n, 0, s) for n, s in zip(places.shape, places.strides)]
    count = math.prod(out.shape)
    if not count:
        return lambda addresses: check(addresses[1])
    sizes = integers(count, x.shape[axis], x.strides[axis], *_axes(axes))

    def run(addresses: list[int]) -> None:
        check(addresses[1])
        backend.driver.launch(take, grid_of(count), block_of(count), 0, struct.pack("3Q", *addresses) + sizes)

    return run


def prepare_put(backend: GpuBackend, step: Primitive) -> Runner:
    """Zeros with an array added at places along an axis; float32 adds up in float64."""
    (x, places), out, (shape, axis) = step.inputs, step.output, step.params
    types = (element(x.dtype), element(places.dtype), wide(out.dtype))
    put, check = written_function(backend, "take", "put", *types), _check(backend, "put", places, shape[axis], types)
    if 0 in shape:
        return lambda addresses: check(addresses[1])
    sums = np.dtype(np.float64) if out.dtype == np.float32 else out.dtype
    rank = len(places.shape)
    along = indexing.contiguous_strides(shape)
    outer = list(zip(shape, x.strides, along))[:axis]
    inner = list(zip(shape[axis + 1 :], x.strides[axis + rank :], along[axis + 1 :]))
    picks = list(zip(places.shape, x.strides[axis : axis + rank], places.strides))
    lines, count = math.prod(n for n, _, _ in outer + inner), math.prod(places.shape)
    ranges = max(1, min(shape[axis], PUT_THREADS // max(lines, 1)))
    sizes = integers(lines, count, shape[axis], along[axis], ranges, *_axes(outer + inner), *_axes(picks))
    nbytes = math.prod(shape) * sums.itemsize
    home, target = (Ref(n, shape, along, 0, dtype) for n, dtype in enumerate((sums, out.dtype)))
    narrow = None if sums == out.dtype else copied(backend, home, target)

    def run(addresses: list[int]) -> None:
        check(addresses[1])
        storage = None if narrow is None else backend._allocate(nbytes)
        home = addresses[2] if storage is None else storage.address
        backend.driver.fill(home, 0, nbytes)
        arguments = struct.pack("3Q", addresses[0], addresses[1], home) + sizes
        backend.driver.launch(put, grid_of(lines * ranges), block_of(lines * ranges), 0, arguments)
        if narrow is not None:
            narrow([home, addresses[2]])

    return run


def copied(backend: GpuBackend, source: Ref, target: Ref) -> Runner:
    """A printed kernel that copies one place to another, converting."""
    load = Instruction("load", dtypes.compute(source.dtype), target.shape)
    kernel = Kernel(target.shape, (), [load], [source], [], [], [(target, 0)], "a copy")
    prepared = backend._prepare(kernel)
    return lambda addresses: prepared.run(addresses, [])


# The others -----------------------------------------------------------------------------------------------------------


def prepare_cumsum(backend: GpuBackend, step: Primitive) -> Runner:
    """The running sum or product along an axis; floats in float64, integers in 64 bits."""
    (x,), out, (axis,) = step.inputs, step.output, step.params
    name, floats = step.op.name, dtypes.is_float(out.dtype)
    types = ("double", ctype(dtypes.compute(out.dtype))) if floats else ("tb_u64", "tb_u64")
    cumsum = written_function(backend, "cumsum", name, element(x.dtype), element(out.dtype), *types)
    axes = [axes for a, axes in enumerate(zip(x.shape, x.strides, out.strides)) if a != axis]
    lines = math.prod(n for n, _, _ in axes)
    sizes = integers(lines, x.shape[axis], x.strides[axis], out.strides[axis], *_axes(axes))
    if name == "cumprod":
        grid, block = grid_of(lines), (THREADS,)
    else:
        grid, block = (min(lines, BLOCKS),), block_of(-(-x.shape[axis] // CUMSUM_STRETCH))

    def run(addresses: list[int]) -> None:
        backend.driver.launch(cumsum, grid, block, 0, struct.pack("2Q", *addresses) + sizes)

    return run


def prepare_histogram(backend: GpuBackend, step: Primitive) -> Runner:
    """Counts by magnitude."""
    (x,), out, (offset, bins) = step.inputs, step.output, step.params
    single = dtypes.compute(x.dtype) == np.float32
    types = ("float", "f32") if single else ("double", "f64")
    histogram = written_function(backend, "histogram", "histogram", element(x.dtype), *types)
    count = math.prod(x.shape)
    axes = _axes([(n, s, 0) for n, s in zip(x.shape, x.strides)])
    sizes = integers(count, bins) + struct.pack("d", offset) + integers(*axes)

    def run(addresses: list[int]) -> None:
        backend.driver.fill(addresses[1], 0, bins * out.dtype.itemsize)
        arguments = struct.pack("2Q", *addresses) + sizes
        backend.driver.launch(histogram, grid_of(count), (THREADS,), 0, arguments)

    return run


PRIMITIVES = {
    "dot": prepare_dot,
    "conv": prepare_conv,
    "conv_bprop": prepare_conv_bprop,
    "conv_update": prepare_conv_update,
    "pool_fprop": prepare_pool_fprop,
    "pool_bprop": prepare_pool_bprop,
    "lrn_fprop": prepare_lrn_fprop,
    "lrn_bprop": prepare_lrn_bprop,
    "take": prepare_take,
    "put": prepare_put,
    "cumsum": prepare_cumsum,
    "cumprod": prepare_cumsum,
    "histogram": prepare_histogram,
}
