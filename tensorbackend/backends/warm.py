# SPDX-License-Identifier: Apache-2.0
"""Warm start: how plans were launched, kept beside their libraries, so that a new process need not make them again.

The index is a text file in the folder of compiled kernels. A line holds one plan: its name, a checksum, and as JSON the
library and the packed arguments of each launch. The name is a digest of the plan's key (`graph/forms.py`) and of all
that turns keys into launches: the sources of this package that do it, the kernels' headers, compiler, flags and CPU.
So a line is read only by the code that would write it again. Lines are only added; a damaged one removes the file, and
costs the next process the work that it saved.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tensorbackend import dtypes, settings
from tensorbackend.backends import caches, compiler, disk_cache, jit, native, toolchain
from tensorbackend.backends.plans import CompiledPlan, number_format
from tensorbackend.backends.toolchain import Compiler
from tensorbackend.codegen.c import HEADER
from tensorbackend.graph import forms

__all__ = [
    "MOST_BYTES", "SOURCES", "Found", "Numbers", "add", "find", "forget", "name_of", "recall", "remember",
    "source_files",
]  # fmt: skip

PACKAGE = Path(__file__).resolve().parents[1]
SOURCES = (
    "graph", "codegen", "dtypes.py", "kernel_files.py", "ops.py", "backends/caches.py", "backends/compiler.py",
    "backends/cpu.py", "backends/jit.py", "backends/native.py", "backends/plans.py", "backends/toolchain.py",
    "backends/warm.py",
)  # fmt: skip
"""The sources, and folders of them, on which it depends how a plan is launched."""
MOST_BYTES = 4 << 20
"""Bytes of an index beyond which it begins anew."""
_TYPES = {dtypes.tag(d): d for d in dtypes.DTYPES}

_log = logging.getLogger(__name__)


class Numbers(NamedTuple):
    """The numbers that a kernel takes, as `Kernel` has them: scalars as (leaf, type), draws as leaves."""

    scalars: list[tuple[int, np.dtype]]
    draws: list[int]


class Found(NamedTuple):
    """A plan that is ready to run, as `CompiledPlan` has it: how many targets, which leaves are tensors, the bytes of
    temporaries and scratch, whether random numbers are drawn (also for kernels that write nothing, which are no steps),
    and (prepared kernel, places, numbers) of each step."""

    targets: int
    tensors: list[int]
    total: int
    draws: bool
    steps: list[tuple[jit.Prepared, list[tuple[int, int]], Numbers]]


def name_of(key: tuple) -> str | None:
    """The name under which the plan of a key is kept; None where it can't be. Raises `CompileError`."""
    digest = forms.digest(key)
    if digest is None:
        return None
    context = _context(toolchain.require_compiler(), settings.config.sanitize, settings.config.cflags)
    return hashlib.blake2b(digest.encode(), digest_size=16, key=context).hexdigest()


def find(name: str) -> Found | None:
    """The plan of a name; None if it must be made. Raises `CompileError` for a library that cannot be loaded."""
    record = recall(name)
    if record is None:
        return None
    targets, tensors, total, draws, steps = record
    made = [_step(*step) for step in steps]
    return None if None in made else Found(targets, tensors, total, draws, made)


def add(name: str, run: CompiledPlan) -> None:
    """Keep a plan for other processes, if it consists of printed kernels alone."""
    if not all(isinstance(prepared, jit.Prepared) and prepared.functions for prepared, _, _, _ in run.steps):
        return
    steps = [_record(prepared, places, step) for prepared, places, _, step in run.steps]
    remember(name, [run.plan.targets, run.plan.tensors, run.total, run.draws, steps])


def recall(name: str) -> list | None:
    """What `remember` kept under a name of 32 hexadecimal digits, in this process or another."""
    for cache in disk_cache.cache_for_reading():
        record = _index(cache.folder).get(name)
        if record is not None:
            return record
    return None


def remember(name: str, record: list) -> None:
    """Keep a record, of what JSON can hold, beside the plans."""
    try:
        _index(disk_cache.cache_for_writing().folder).add(name, record)
    except OSError as error:
        _log.debug("tensorbackend: the index of plans cannot be written: %s", error)


def _record(prepared: jit.Prepared, places: list[tuple[int, int]], step: Any) -> list:
    """What `_step` takes."""
    launches = [[f, x.tasks, x.cost, x.size[:]] for f, x in zip(prepared.functions, prepared.launches)]
    scalars = [(leaf, dtypes.tag(dtype)) for leaf, dtype in step.scalars]
    strides = prepared.launches[0].stride[:]
    turns = jit.calls_turns(prepared.source)
    return [prepared.library, launches, strides, prepared.scratch_words, places, scalars, step.draws, turns]


def _step(library_key: str, launches: list, strides: list[int], scratch_words: int, places: list, scalars: list,
          draws: list[int], turns: bool) -> tuple | None:  # fmt: skip
    """A step of `Found`; None when its library is gone."""
    if turns:
        jit.share_turns()
    library = compiler.load(library_key)
    if library is None:
        return None
    numbers = Numbers([(leaf, _TYPES[tag]) for leaf, tag in scalars], draws)
    words = len(number_format(numbers))
    prepare = native.runtime().prepare
    made = [
        prepare(library.address(function), tasks, cost, len(places), sizes, strides, words)
        for function, tasks, cost, sizes in launches
    ]
    return jit.Prepared(numbers, "", "", made, scratch_words), places, numbers


# The index


class _Index:
    """The index of one folder, read once. Any number of processes may add lines to it at the same time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / disk_cache.INDEX
        try:
            lines = self.path.read_bytes().splitlines(keepends=True)
        except OSError:
            lines = []
        self._lines = {line[:32]: line for line in lines}

    def get(self, name: str) -> list | None:
        """The record of a name. A damaged line removes the file."""
        line = self._lines.get(name.encode())
        if line is None:
            return None
        text = line[50:-1]
        if line != _line(name, text):
            _log.warning("tensorbackend: %s is damaged; its plans are made again", self.path)
            self._lines.clear()
            with contextlib.suppress(OSError):
                self.path.unlink()
            return None
        return json.loads(text)

    def add(self, name: str, record: list) -> None:
        """Add a line, unless it is there. Raises `OSError`."""
        line = _line(name, json.dumps(record, separators=(",", ":")).encode())
        if self._lines.get(name.encode()) == line:
            return
        self._lines[name.encode()] = line
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_size > MOST_BYTES:
                os.ftruncate(descriptor, 0)
            os.write(descriptor, line)  # as one piece, wherever the file ends then
        finally:
            os.close(descriptor)


def _line(name: str, text: bytes) -> bytes:
    checksum = hashlib.blake2b(text, digest_size=8, key=name.encode()).hexdigest()
    return b"%s %s %s\n" % (name.encode(), checksum.encode(), text)


def forget() -> None:
    """Read sources and indexes again when they are asked for."""
    _index.cache_clear()
    _context.cache_clear()


@functools.lru_cache(maxsize=8)
def _index(folder: Path) -> _Index:
    return _Index(folder)


@functools.lru_cache(maxsize=8)
def _context(found: Compiler, sanitize: bool, cflags: str) -> bytes:
    """A digest of what turns keys into launches. `found` and `cflags` are here to be part of the question."""
    library = compiler.kernel_key(f'#include "{HEADER}"\n', flags=jit.FLAGS, sanitize=sanitize)
    digest = hashlib.sha256(f"{np.__version__} {library} {caches.near_bytes()} {caches.has_complexes()}".encode())
    for path in source_files():
        with open(path, "rb", buffering=0) as file:
            digest.update(file.read())
    return digest.digest()


def source_files() -> Iterator[str]:
    """The paths of the files that `SOURCES` stands for."""
    for name in SOURCES:
        path = os.path.join(PACKAGE, name)
        if name.endswith(".py"):
            yield path
        else:
            yield from (os.path.join(path, inner) for inner in sorted(os.listdir(path)) if inner.endswith(".py"))
