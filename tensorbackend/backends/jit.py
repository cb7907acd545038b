# SPDX-License-Identifier: Apache-2.0
"""From a kernel of the schedule to a launch: print, compile, pack; then only addresses and numbers change.

A prepared kernel belongs to a plan, whose shapes are fixed; the compiled function it launches serves all sizes of the
same structure. How work is cut into tasks depends on sizes alone, so results do not depend on the number of threads.
"""

from __future__ import annotations

import functools
import logging
import math
import shlex
import struct
import subprocess
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tensorbackend import settings
from tensorbackend.backends import caches, compiler, native, programs, toolchain
from tensorbackend.backends.compiler import Library
from tensorbackend.backends.plans import number_format
from tensorbackend.backends.toolchain import Options
from tensorbackend.codegen.c import HEADER, STRIP, TILE, fits_pieces, print_kernel
from tensorbackend.codegen.joined import join_rows
from tensorbackend.codegen.library import Definitions
from tensorbackend.codegen.nest import COLUMNS, MAP, ROWS, Nest, nest
from tensorbackend.codegen.render import Printed
from tensorbackend.codegen.segments import LOT
from tensorbackend.errors import CompileError
from tensorbackend.graph.loops import in_memory_order
from tensorbackend.graph.plan import Instruction, Kernel, Primitive, Ref
from tensorbackend.kernel_files import kernel_path

__all__ = ["Prepared", "Tail", "compile_all", "compile_tail", "compile_text", "prepare", "user_library"]

FLAGS = ("-fwrapv",)
TURNS = '#include "turn.c"\n'
TASK_ELEMENTS = 1 << 14
"""Elements of a task at most: some microseconds of work."""
TASK_NS = 8000
"""Estimated nanoseconds of a map's task at most."""
OPERATION_NS, BYTE_NS = 0.02, 0.03
"""About how long one thread takes for an operation and for a byte."""
DRAW_FACTOR = 2
"""By how much the operations of random numbers, multiplications to twice the width, take longer than others."""
SEGMENT = 1 << 15
"""Elements along a reduced axis that one segment of a split reduction takes."""
SPLIT_BELOW = 16
"""A long reduction with fewer rows than this is split into segments."""
SPLIT_PASSES_BELOW = 4
"""The same for reductions of several passes, which lose the cache from one to the next."""
NARROW = 256
"""Strips of fewer columns are read too slowly to be worth it that they stay in cache."""
NARROW_LOOP = 32
"""Elements of a row below which most of a loop is remainder."""
SEGMENTS = 64
"""About how many segments there are at most, so that joining them is little work."""
ROW_FROM, ROW_BYTES = 32, 16 << 20
"""Elements from which on short rows go by themselves where they are read once, and bytes of them."""
SHORT_ROW, LONG_ROW = 1 << 9, 1 << 11
"""Elements of a row up to which bands have several, and from which on a row takes most of the first-level cache."""
STRIP_BYTES = 1 << 19
"""Bytes of a strip of columns that several passes walk: it should stay in a core's cache."""

_log = logging.getLogger("tensorbackend")


class Prepared:
    """A kernel with its launches packed: `run(addresses, numbers)` adds what changes, and runs.

    `pack` makes the words of a launch of the addresses and numbers that `run` takes. `functions` are those of the
    launches of a printed kernel, in the library whose key is `library`. `checked` are the launches of what may refuse
    its operands, and then no others.
    """

    checked: Sequence[Any] = ()

    __slots__ = ("functions", "launches", "library", "name", "pack", "scratch_words", "source")

    def __init__(
        self, kernel: Kernel | Primitive, source: str, name: str, launches: Sequence[Any], scratch_words: int
    ) -> None:
        self.source = source
        self.name = name
        self.launches = launches
        self.scratch_words = scratch_words
        self.library = ""
        self.functions: tuple[str, ...] = ()
        pointers = len(launches[0].ptr) if launches else 0
        self.pack = struct.Struct(f"{pointers}Q{number_format(kernel)}").pack

    def run(self, addresses: Sequence[int], numbers: Sequence[Any]) -> None:
        """Run on operands at `addresses`: inputs, outputs, then `scratch_words` words if there are any.

        `numbers` are the scalars, then the numbers of the draws and the generator's key if there are draws.
        """
        if self.launches:
            words = self.pack(*addresses, *numbers)
            for launch in self.launches:
                launch.run_on(words)


def prepare(kernel: Kernel) -> Prepared:
    """Print and compile a kernel (or find it), and pack its launches. Raises `CompileError`."""
    printed, library = _compiled([kernel])[0]
    split = len(printed.functions) > 1
    if settings.config.debug >= 4:
        _log.warning("%s", printed.source)
    runtime = native.runtime()
    work = _Work(printed.nest, split)
    kernel = printed.nest.kernel
    pointers = len(kernel.inputs) + len(kernel.outputs) + split
    strides = [s for ref in [*kernel.inputs, *(r for r, _ in kernel.outputs)] for s in ref.strides]
    scalars = len(kernel.scalars) + (len(kernel.draws) + 1 if kernel.draws else 0)
    launches = [
        runtime.prepare(library.address(name), *work.share(joins, printed), pointers, work.sizes, strides, scalars)
        for name, joins in printed.functions
    ]
    scratch_words = work.segments * work.results * printed.partials
    prepared = Prepared(kernel, printed.source, printed.name, launches, scratch_words)
    prepared.library, prepared.functions = library.key, tuple(name for name, _ in printed.functions)
    return prepared


def user_library(source: str, sanitize: bool) -> Library:
    """The library of a user kernel, compiled or found. Raises `CompileError`."""
    return compiler.compile_many([source], flags=FLAGS, sanitize=sanitize, libc=True, expander=_expander)[0]


class Tail(NamedTuple):
    """A kernel that others call: its text, the address of its function, its inner axis, and the side of its square
    tiles (0: none)."""

    source: str
    address: int
    inner: int
    tile: int


def compile_tail(kernel: Kernel) -> Tail:
    """A kernel for others to call, compiled or found. Raises `CompileError`."""
    printed, library = _compiled([kernel], nest)[0]
    tile = TILE if printed.nest.tiled is not None else 0
    return Tail(printed.source, library.address(printed.name), printed.nest.inner, tile)


def calls_turns(source: str) -> bool:
    """Whether a printed kernel calls what turns tiles."""
    return "tb_turn" in source


@functools.cache
def share_turns() -> None:
    """Load what turns tiles, whose functions kernels call by name, once a process. Raises `CompileError`."""
    compiler.compile_many([TURNS], flags=FLAGS, sanitize=settings.config.sanitize, aim="lanes")[0].share()


def compile_text(source: str) -> Library:
    """The library of a hand-written kernel's text; it includes `kernel.h`. Raises `CompileError`."""
    if calls_turns(source):
        share_turns()
    return compiler.compile_many([source], flags=FLAGS, sanitize=settings.config.sanitize, expander=_expander)[0]


def compile_all(kernels: Sequence[Kernel]) -> None:
    """Compile several kernels side by side, so that `prepare` finds them. Raises `CompileError`."""
    if len(kernels) > 1:
        _compiled(kernels)


def _nest(kernel: Kernel) -> Nest:
    """The loop nest of a kernel that is launched by itself."""
    kernel = in_memory_order(kernel)
    found = nest(kernel, side_by_side=True)
    if found.short is not None and _reads_once(found) and _bytes(found.kernel) > ROW_BYTES:
        found = nest(kernel)
    if found.form != MAP:
        return found
    streams = _streams(found, False)
    return join_rows(found, bool(streams & caches.PAST), not streams)


def _reads_once(found: Nest) -> bool:
    """Whether short rows of several vectors are reduced once, and no more: from afar, turning them takes longer than
    reading them one by one."""
    single = found.passes == 1 and all(ref.shape[found.short] == 1 for ref, _ in found.kernel.outputs)
    return single and found.kernel.shape[found.short] >= ROW_FROM


def _compiled(kernels: Sequence[Kernel], nest_of: Callable[[Kernel], Nest] = _nest) -> list[tuple[Printed, Library]]:
    for kernel in kernels:
        if "printed" not in kernel.cache:
            found = nest_of(kernel)
            split = _wants_split(found)
            kernel.cache["printed"] = print_kernel(found, split, _goes_by_pieces(found, split))
    printed = [kernel.cache["printed"] for kernel in kernels]
    kinds = {p.source: (_aim(p.nest), calls_turns(p.source)) for p in printed}  # what may be one library
    libraries = {}
    for kind in sorted(set(kinds.values())):
        sources = [source for source, its in kinds.items() if its == kind]
        libraries |= zip(sources, _libraries(sources, *kind))
    return [(p, libraries[p.source]) for p in printed]


def _aim(found: Nest) -> str:
    """What the compiler has to do for a kernel: the ten rounds of random numbers gain by all it knows, and loops that
    are all remainder by vectors of half the length."""
    narrow = found.by_row and found.kernel.shape[found.inner] < NARROW_LOOP
    if found.kernel.draws:
        return "speed, narrow" if narrow else "speed"
    return "lanes" if found.form == ROWS else "narrow" if narrow else "quick"


def _libraries(sources: list[str], aim: str, turns: bool) -> list[Library]:
    if turns:
        share_turns()
    merge = len(sources) > 1
    sanitize = settings.config.sanitize
    return compiler.compile_many(sources, flags=FLAGS, sanitize=sanitize, aim=aim, merge=merge, expander=_expander)


def _expander() -> Callable[[str], str]:
    """What turns a source into the text to compile, in whichever thread: with the compiler and flags of this one."""
    return functools.partial(_expand, tuple(toolchain.require_compiler().arguments(Options(FLAGS))))


def _expand(call: tuple[str, ...], source: str) -> str:
    return _definitions(call).expand(source)


@functools.lru_cache(maxsize=8)
def _definitions(call: tuple[str, ...]) -> Definitions:
    """The definitions of the kernel headers, as a compiler's preprocessor sees them. Raises `CompileError`."""
    arguments = [*call, "-E", "-dD", "-P", str(kernel_path(f"c/{HEADER}"))]
    try:
        done = programs.ask(arguments, settings.config.compile_timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        slow = " (setting TB_COMPILE_TIMEOUT)" if isinstance(error, subprocess.TimeoutExpired) else ""
        raise CompileError(f"the preprocessor of the kernel headers: {error}{slow}") from error
    if done.returncode:
        head = f"the C compiler failed (exit status {done.returncode}) on the kernel headers"
        raise CompileError(compiler.failed(head, shlex.join(arguments), done.stderr))
    return Definitions(done.stdout)


def _wants_split(found: Nest) -> bool:
    """Whether a reduction is cut into segments: much to reduce, and too few tasks or strips too narrow without."""
    kernel = found.kernel
    elements = math.prod(kernel.shape)
    across = math.prod(kernel.shape[a] for a in kernel.axes)
    if across <= 64 or elements <= 2 * SEGMENT:
        return False
    inner = kernel.shape[found.inner]
    strip = _strip(found, across) if found.form == COLUMNS else inner
    tasks = math.prod(kernel.shape[a] for a in found.kept) * -(-inner // strip)
    if found.passes == 1:
        return tasks < SPLIT_BELOW
    return tasks < SPLIT_PASSES_BELOW or strip < min(inner, NARROW)


class _Work:
    """How a kernel's space is cut into tasks, and about how long it takes."""

    def __init__(self, found: Nest, split: bool) -> None:
        kernel = found.kernel
        shape = kernel.shape
        inner = shape[found.inner]
        rows = math.prod(shape[a] for a in found.kept)
        elements = math.prod(shape)
        across = math.prod(shape[a] for a in kernel.axes)
        if found.form == MAP:
            chunk = min(inner, _chunk(kernel, elements) if found.tiled is None else TILE)
            per_row = inner
        elif found.form == COLUMNS:
            chunk = min(inner, STRIP if split else _strip(found, across))
            per_row = inner * across
        else:
            chunk = max(inner, 1)
            per_row = across
        pieces = -(-inner // chunk) if found.form != ROWS and chunk else 1
        group = max(1, TASK_ELEMENTS // max(per_row, 1)) if pieces == 1 else 1
        self.results = rows * (inner if found.form == COLUMNS else 1)
        segments, segment = 1, 0
        if split:
            axis = found.reduced[0] if found.reduced else found.inner
            each = max(1, across // max(shape[axis], 1)) * (chunk if found.form == COLUMNS else 1)
            segment = max(1, max(SEGMENT, elements // SEGMENTS) // each)
            segments = -(-shape[axis] // segment)
        self.segments = segments
        self.tasks = -(-rows // group) * max(pieces, 1) * segments
        if found.tiled is not None:
            length = shape[found.tiled]
            self.tasks = rows // max(length, 1) * -(-length // TILE) * max(pieces, 1)
        self.cost = int(_nanoseconds(kernel, _bytes(kernel), found.passes))
        self.sizes = [*shape, max(chunk, 1), max(pieces, 1), group, _streams(found, split), segments, segment]
        if found.width:
            self.sizes += [found.width, *(stride for s in found.spread for stride in (s.along, s.across))]

    def share(self, joins: bool, printed: Printed) -> tuple[int, int]:
        """The tasks and the cost of one of the functions of a printed kernel."""
        if joins:
            return -(-self.results // LOT), int(self.results * self.segments * 0.3) + 20
        return self.tasks, self.cost // sum(not other for _, other in printed.functions)


def _streams(found: Nest, split: bool) -> int:
    """How a kernel goes about memory beyond the caches; 0 for one that stays in them."""
    kernel = found.kernel
    results = _distinct_bytes(ref for ref, _ in kernel.outputs) if caches.has_complexes() else 0
    if not caches.go_past(_bytes(kernel), results):
        return 0
    past = 0 if kernel.in_place else caches.PAST  # what was just read is in the cache: write it there
    if not caches.has_complexes():
        return caches.AHEAD | past
    if found.form != ROWS or split:
        computes = found.form == MAP and _operations(kernel) * OPERATION_NS > _bytes(kernel) * BYTE_NS
        return past | caches.NEXT if past and computes else past
    # While later passes read what the first has left, the processor does not look ahead: where they compute much, they
    # ask, and what they store is out of the way anyway.
    stores = any(ref.shape == kernel.shape for ref, _ in kernel.outputs)
    if stores and all(i.op.dtype == "sum" for i in kernel.body if i.kind == "reduce"):
        return past | caches.NEXT if past and _asks_for_rows(kernel) else past
    return caches.AHEAD if found.passes + stores > 1 else 0


def _asks_for_rows(kernel: Kernel) -> bool:
    """Whether the pass that stores asks for the next band of rows: of short ones, and of one long row at a time.

    Measured on Zen 4, share of a pass that copies, with and without: rows of 256 elements 85 and 70 %, of 1568 82 and
    94; and by pieces, of 6272 82 and 64, of 25088 88 and 71, of 100000 89 and 79. Where two rows are read: rows of 256
    82 and 74, of 1568 85 and 100; by pieces, of 100000 73 to 80 and 73 to 88.
    """
    across = math.prod(kernel.shape[a] for a in kernel.axes)
    rows = sum(ref.shape == kernel.shape and 0 not in ref.strides for ref in kernel.inputs)
    return across <= SHORT_ROW or rows == 1 and across > LONG_ROW


def _goes_by_pieces(found: Nest, split: bool) -> bool:
    """Whether what stores a long row goes beside the sums of the next one: where it asks for that one anyway."""
    long = found.form == ROWS and math.prod(found.kernel.shape[a] for a in found.kernel.axes) > LONG_ROW
    return long and bool(_streams(found, split) & caches.NEXT) and fits_pieces(found)


def _chunk(kernel: Kernel, elements: int) -> int:
    """How many elements of a map a task takes: some microseconds of work, fewer where each takes long."""
    each = _nanoseconds(kernel, _bytes(kernel), 1) / max(elements, 1)
    return max(2048, min(TASK_ELEMENTS, int(TASK_NS / each) // 1024 * 1024))


def _strip(found: Nest, across: int) -> int:
    """How many columns a task takes: what several passes walk should stay in cache."""
    if found.short is not None:
        return found.pitch
    if found.passes < 2:
        return STRIP
    width = STRIP_BYTES // max(across * 4, 1)
    return max(64, min(STRIP // 2, width // 16 * 16))


def _bytes(kernel: Kernel) -> int:
    """The bytes that a kernel reads and writes at least."""
    found = kernel.cache.get("bytes")
    if found is None:
        found = kernel.cache["bytes"] = _distinct_bytes(kernel.operands)
    return found


def _distinct_bytes(references: Iterable[Ref]) -> int:
    return sum([math.prod([n for n, s in zip(r.shape, r.strides) if s]) * r.dtype.itemsize for r in references])


def _nanoseconds(kernel: Kernel, nbytes: int, passes: int) -> float:
    """A rough estimate of one thread's time."""
    return _operations(kernel) * OPERATION_NS + nbytes * BYTE_NS * max(passes, 1) + 20


def _operations(kernel: Kernel) -> float:
    """The operations that a kernel computes, those of random numbers by their time."""
    each = sum(_weight(i) * i.op.flops * _share(i, kernel) for i in kernel.body if i.op is not None)
    return each * math.prod(kernel.shape)


def _weight(i: Instruction) -> int:
    return DRAW_FACTOR if i.kind == "source" and i.op.name != "index" else 1


def _share(i: Instruction, kernel: Kernel) -> float:
    return math.prod(i.shape) / max(math.prod(kernel.shape), 1)
