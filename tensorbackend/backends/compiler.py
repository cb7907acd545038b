# SPDX-License-Identifier: Apache-2.0
"""From C source to a loaded library: the key, the compiler run, the cache, and what a failure looks like.

Decides what makes two libraries the same, what is compiled together and how many compilers run at once. Which compiler
that is belongs to `toolchain.py`, the folder of results to `disk_cache.py`; what the source says is others' business.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import hashlib
import logging
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tensorbackend.backends import ahead, disk_cache, toolchain
from tensorbackend.backends.cores import allowed_cores
from tensorbackend.backends.locks import Lock
from tensorbackend.backends.pipeline import pipeline
from tensorbackend.backends.toolchain import (
    Compiler,
    Options,
    compiler_environment,
    compiler_status,
    cpu_features,
    find_compiler,
    require_compiler,
    require_sanitizers,
    sanitizer_libraries,
)
from tensorbackend.errors import CompileError
from tensorbackend.kernel_files import kernel_dir
from tensorbackend.settings import config, using

__all__ = [
    "Compiler",
    "Library",
    "compile_many",
    "compile_source",
    "compiler_status",
    "find_compiler",
    "kernel_key",
    "load",
    "sanitizer_libraries",
]

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_R = TypeVar("_R")

MOST_COMPILERS = 8  # at a time
# How many seconds to wait for another process that compiles the same kernel before doing it here as well. As long as a
# compiler may take by default: on a crowded machine all who wait would start one at once, and crowd it the more.
PATIENCE = 60.0
FULL = ("No space left on device", "Disk quota exceeded", "File size limit exceeded", "File too large")


# What makes two libraries the same ------------------------------------------------------------------------------------


def kernel_key(source: str, *, flags: Sequence[str] = (), sanitize: bool = False, libc: bool = False) -> str:
    """The name of the library of `source` in the cache: 64 hexadecimal digits.

    Two keys are equal when the source, the contents of the headers it includes by quotes, compiler, flags and CPU are.
    Raises `CompileError` without a compiler.
    """
    return _key(source, Options(tuple(flags), sanitize, libc))


def _key(source: str, options: Options) -> str:
    digest = _common_digest(require_compiler(), options, config.cflags).copy()
    for header in _headers(source):
        digest.update(header)
    digest.update(source.encode())
    return digest.hexdigest()


@functools.lru_cache(maxsize=64)
def _common_digest(compiler: Compiler, options: Options, cflags: str) -> hashlib._Hash:
    """What all keys of one compiler, one set of options and one setting of TB_CFLAGS begin with."""
    facts = ["1", *compiler.command, compiler.version, cpu_features(), *compiler.words(options)]
    return hashlib.sha256("\0".join(facts).encode(errors="surrogateescape"))


_INCLUDE = re.compile(rb'#[ \t]*include[ \t]*"([^"\n]+)"')  # in a comment, too: searched ten times as fast


def _headers(source: str) -> list[bytes]:
    return [_header_digest(name) for name in _included(source)]


@functools.lru_cache(maxsize=1024)
def _included(source: str) -> list[str]:
    return sorted({name.decode() for name in _INCLUDE.findall(source.encode())})


def _header_digest(name: str) -> bytes:
    """A digest of a header and all it includes; of its name alone when it is missing (the compiler will complain)."""
    path = os.path.join(kernel_dir(), "c", name)
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return name.encode()
    return _read_header(path, facts.st_mtime_ns, facts.st_size)


@functools.lru_cache(maxsize=256)
def _read_header(path: str, modified: int, size: int) -> bytes:
    """`modified` and `size` are here to be part of what the answer is remembered for."""
    digest = hashlib.sha256()
    waiting, seen = [Path(path)], {Path(path).resolve()}
    while waiting:
        including = waiting.pop()
        text = including.read_bytes()
        digest.update(text)
        for name in _INCLUDE.findall(text):
            inner = (including.parent / name.decode()).resolve()
            if inner not in seen and inner.is_file():
                seen.add(inner)
                waiting.append(inner)
    return digest.digest()


# Libraries ------------------------------------------------------------------------------------------------------------


class Library:
    """A loaded shared library: its `key` and `path`.

    It stays loaded until the process ends: kernels may be running in other threads at any time.
    """

    __slots__ = ("_functions", "_handle", "_path", "key")

    def __init__(self, key: str, path: str) -> None:
        self.key = key
        self._path = path
        self._functions: ctypes.CDLL | None = None
        try:
            # What `ctypes.CDLL` does, without the class that it makes for each library, in half the time.
            self._handle = _ctypes.dlopen(path, ctypes.DEFAULT_MODE)
        except OSError as error:
            text = f"the compiled library cannot be loaded: {error}\n  kept      {self.source_path}"
            raise CompileError(text) from error

    @property
    def path(self) -> Path:
        """The file that was loaded."""
        return Path(self._path)

    @property
    def source_path(self) -> Path:
        """Where the text is kept that it was made from."""
        return self.path.with_suffix(".c")

    def function(self, name: str) -> ctypes._CFuncPtr:
        """The function `name` as a ctypes function, to which the caller gives `argtypes` and `restype`."""
        self.address(name)
        if self._functions is None:
            self._functions = ctypes.CDLL(self._path, handle=self._handle)
        return self._functions[name]

    def address(self, name: str) -> int:
        """The address of the function `name`. Raises `CompileError` when there is none."""
        try:
            return _ctypes.dlsym(self._handle, name)
        except OSError:
            raise CompileError(f"the library of {self.source_path} has no function {name!r}") from None

    def share(self) -> None:
        """Let libraries that are loaded later find this one's functions by name."""
        _ctypes.dlopen(self._path, ctypes.RTLD_GLOBAL)

    def __repr__(self) -> str:
        return f"Library({self.key[:12]}, {self.path})"


_loaded: dict[str, Library] = {}
_compiling = Lock()


def load(key: str) -> Library | None:
    """The library of `key` from this process or from disk; None when it must be compiled."""
    library = _loaded.get(key)
    if library is not None:
        return library
    for cache in disk_cache.cache_for_reading():
        path = cache.get(key)
        if path is not None:
            return _loaded.setdefault(key, _open(cache, key, path))
    return None


def _open(cache: disk_cache.DiskCache, key: str, path: str) -> Library:
    """The library of an entry. One that cannot be loaded leaves the cache: what made it may be mended next time."""
    try:
        return Library(key, path)
    except CompileError:
        cache.drop(key)
        raise


def compile_source(source: str, *, flags: Sequence[str] = (), sanitize: bool = False, libc: bool = False) -> Library:
    """The library of one source. As `compile_many`."""
    return compile_many([source], flags=flags, sanitize=sanitize, libc=libc)[0]


def compile_many(
    sources: Sequence[str],
    *,
    flags: Sequence[str] = (),
    sanitize: bool = False,
    libc: bool = False,
    aim: str = "speed",
    merge: bool = False,
    expander: Callable[[], Callable[[str], str]] | None = None,
) -> list[Library]:
    """The libraries of `sources`, from this process, from disk, or compiled now, as many at a time as there are cores.

    `flags` are added to the compiler's own. `sanitize` builds with the address and undefined-behaviour sanitizers,
    whose run-time libraries must be loaded first (`sanitizer_libraries`). `libc` links the C library and start files.
    An `aim` other than speed (`toolchain.AIMS`) saves compile time, for sources of which there may be hundreds.
    `merge` puts several sources in one translation unit, which halves the time of each; it is for sources of which all
    names at file scope, macros included, are distinct or come from guarded headers. A merged unit that does not compile
    is taken apart. `expander()`, asked for once when something must be compiled, turns a source into the text to
    compile; what it does may depend on the source and the headers it includes alone. Raises `CompileError` when there
    is no compiler, or it fails, or hangs longer than the setting `compile_timeout`, or `sanitize` asks for sanitizers
    that are not loaded.
    """
    if sanitize:
        require_sanitizers()
    options = Options(tuple(flags), sanitize, libc, aim)
    keys = [_key(source, options) for source in sources]
    missing = {key: source for key, source in zip(keys, sources) if load(key) is None}
    if missing:
        with _compiling.now:
            expand = str if expander is None else expander()
            arguments = require_compiler().arguments(options)
            call = _CompilerCall(arguments, config.compile_timeout, expand, config.debug, config.cache_limit)
            _compile_missing(missing, call, merge)
    return [_require_loaded(key) for key in keys]


def _require_loaded(key: str) -> Library:
    library = load(key)
    if library is None:
        raise CompileError(f"the kernel cache lost the entry {key} just written: does something delete files there?")
    return library


# Compiling ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CompilerCall:
    """How to call the compiler: `arguments` up to the names of files, seconds to wait, how much to log, MiB that the
    cache may take. The settings of the thread that asked go in here, since others do the work."""

    arguments: list[str]
    timeout: float
    expand: Callable[[str], str]
    debug: int
    cache_limit: int


def _compile_missing(missing: dict[str, str], call: _CompilerCall, merge: bool) -> None:
    """Compile all of `missing` (key: source) into the cache; a folder that cannot be written is replaced by another."""
    try:
        _compile_into(disk_cache.cache_for_writing(), missing, call, merge)
        return
    except OSError as error:
        full = error
    try:
        cache = disk_cache.fall_back_to_private(f"the kernel cache cannot be written ({full})")
        _compile_into(cache, missing, call, merge)
    except OSError as error:
        raise CompileError(f"compiled kernels cannot be written anywhere: {error}; set TMPDIR or TB_CACHE") from error


def _compile_into(cache: disk_cache.DiskCache, missing: dict[str, str], call: _CompilerCall, merge: bool) -> None:
    with cache.turn(next(iter(missing)), PATIENCE):
        left = {key: source for key, source in missing.items() if load(key) is None}
        rejected = _compile_groups(cache, _groups(left, merge), call)
        alone = [error for group, error in rejected if len(group) == 1]
        apart = {key: left[key] for group, _ in rejected if len(group) > 1 for key in group}
        alone += [error for _, error in _compile_groups(cache, _groups(apart, False), call)]
    if alone:
        raise alone[0]


def _groups(sources: dict[str, str], merge: bool) -> list[dict[str, str]]:
    """Which sources are compiled together: each alone, or all in as many groups as compilers may run."""
    if not merge:
        return [{key: source} for key, source in sources.items()]
    groups: list[dict[str, str]] = [{} for _ in range(_lanes())]
    for key in sorted(sources, key=lambda key: len(sources[key]), reverse=True):
        shortest = min(groups, key=lambda group: sum(map(len, group.values())))
        shortest[key] = sources[key]
    return [group for group in groups if group]


def _lanes() -> int:
    """How many compilers may run at a time. On one core, too, one may wait for the disk while another computes."""
    return min(max(allowed_cores(), 2), MOST_COMPILERS)


def _compile_groups(
    cache: disk_cache.DiskCache, groups: list[dict[str, str]], call: _CompilerCall
) -> list[tuple[dict[str, str], CompileError]]:
    """Compile the groups side by side; those that the compiler rejected, with the error of each."""
    compile_one = functools.partial(_compile_group, cache, call)
    errors = _map_in_lanes(compile_one, groups) if len(groups) > 1 else map(compile_one, groups)
    return [(group, error) for group, error in zip(groups, errors) if error is not None]


def _map_in_lanes(function: Callable[[_T], _R], values: Sequence[_T]) -> list[_R]:
    """`map` on as many threads as compilers may run. An exception stops what has not begun."""
    lanes = ThreadPoolExecutor(_lanes())
    try:
        try:
            begun = [lanes.submit(function, value) for value in values]
        except RuntimeError:  # In what atexit has registered there are no new threads.
            return [function(value) for value in values]
        return [one.result() for one in begun]
    finally:
        lanes.shutdown(cancel_futures=True)


def _compile_group(cache: disk_cache.DiskCache, call: _CompilerCall, group: dict[str, str]) -> CompileError | None:
    """Compile one translation unit and take the result into the cache; the error when the compiler rejects it."""
    with cache.workspace() as folder:
        written = [folder / f"kernel{index or ''}.c" for index in range(len(group))]
        for path, source in zip(written, group.values()):
            path.write_text(call.expand(source), encoding="utf-8")
        unit = written[0] if len(group) == 1 else _write_unit(folder, written)
        library = folder / "library.so"
        failure = _run_compiler(cache, call, unit, library)
        if failure is not None:
            _raise_if_full(failure.message)
        kept = [cache.put_source(key, path) for key, path in zip(group, written)]
        if failure is None:
            with using(cache_limit=call.cache_limit):
                cache.put(list(group), library)
            for key in group:
                load(key)  # at once: what is put next may take its place, where `cache_limit` is low
            return None
    return _error(failure, unit, kept[0])


def _raise_if_full(message: str) -> None:
    """Raise `OSError` when the compiler complains of the disk, not of the source."""
    for line in message.splitlines():
        if any(text in line for text in FULL):
            raise OSError(line)


def _write_unit(folder: Path, written: list[Path]) -> Path:
    unit = folder / "unit.c"
    unit.write_bytes(os.fsencode("".join(f'#include "{path}"\n' for path in written)))
    return unit


@dataclass
class _Failure:
    command: list[str]
    ending: str
    message: str


def _run_compiler(cache: disk_cache.DiskCache, call: _CompilerCall, unit: Path, library: Path) -> _Failure | None:
    """Make `library` from `unit`: by the compiler's steps where they are known, and by itself if they fail."""
    if toolchain.KERNEL_LINK_FLAGS[0] in call.arguments and _run_steps(cache, call, unit, library):
        return None
    command = [*call.arguments, os.fspath(unit), "-o", os.fspath(library)]
    return _finish(call, command, ahead.start(command, unit.parent), unit, library)


def _run_steps(cache: disk_cache.DiskCache, call: _CompilerCall, unit: Path, library: Path) -> bool:
    """Whether the compiler's steps made `library` from `unit`. They are started ahead for the next unit, too."""
    environment = compiler_environment()
    command = functools.partial(pipeline, call.arguments, environment=environment)
    if command(unit, library) is None:
        return False
    key = (cache.folder, *call.arguments, *environment.items())
    begin = lambda: ahead.Waiting(cache.new_folder(), command)  # noqa: E731
    try:
        steps = ahead.take(key) or begin()
    except CompileError:  # the compiler may still do it by itself
        return False
    try:
        steps.feed(unit)
        ahead.keep(key, begin)
        if _finish(call, steps.command, steps.process, unit, steps.library) is not None:
            return False
        os.replace(steps.library, library)
    finally:
        steps.close()
    return True


def _finish(call: _CompilerCall, command: list[str], process: subprocess.Popen[bytes], unit: Path,
            library: Path) -> _Failure | None:  # fmt: skip
    """Wait for a compiler of `unit`."""
    started = time.perf_counter()
    try:
        message = process.communicate(timeout=call.timeout)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        ending = f"did not finish in {call.timeout:g} s and was stopped (setting TB_COMPILE_TIMEOUT)"
        return _Failure(command, ending, "")
    finally:
        ahead.stop(process)
    if process.returncode == 0 and library.exists():
        level = logging.WARNING if call.debug >= 1 else logging.DEBUG
        log.log(level, "tensorbackend: compiled %s in %.1f ms", unit.name, (time.perf_counter() - started) * 1e3)
        if call.debug >= 5:
            log.warning("%s\n%s", shlex.join(command), message)
        return None
    return _Failure(command, _ending(process.returncode), message)


def _ending(status: int) -> str:
    if status < 0:
        return f"was stopped by signal {-status}"
    return f"failed (exit status {status})" if status else "reported success, but wrote no library"


# Failures -------------------------------------------------------------------------------------------------------------


def _error(failure: _Failure, unit: Path, kept: Path) -> CompileError:
    """The error of a compiler that failed: command, message, the source lines it names, and where the source is."""
    folder = os.fspath(unit.parent) + os.sep
    message = failure.message.replace(folder, "")
    command = [os.fspath(kept) if word == os.fspath(unit) else word.replace(folder, "") for word in failure.command]
    rows = [
        failed(f"the C compiler {failure.ending}", shlex.join(command), message),
        _block("source", _marked_lines(message, unit.name, kept)),
        f"  kept      {kept}",
        "  try       the command by hand on the kept source; TB_JIT=0 computes without a compiler",
    ]
    return CompileError("\n".join(row for row in rows if row))


def failed(head: str, command: str, message: str) -> str:
    """The rows of an error that say what was run, and what it said."""
    rows = [head, f"  command   {command}", _block("message", _shorten(message.strip().splitlines(), 30))]
    return "\n".join(row for row in rows if row)


def _block(label: str, lines: list[str]) -> str:
    return "\n".join(f"  {label if i == 0 else '':<9} {line}" for i, line in enumerate(lines))


def _shorten(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"... {len(lines) - most} more lines"]


def _marked_lines(message: str, name: str, kept: Path) -> list[str]:
    """The lines of the kept source that `message`, which calls it `name`, complains of, with their neighbours."""
    at = {int(number) for number in re.findall(rf"{re.escape(name)}:(\d+):\d+: (?:fatal )?error", message)}
    shown = []
    for number, text in enumerate(kept.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if any(abs(number - line) <= 2 for line in at):
            shown.append(f"{'>' if number in at else ' '}{number:5d}  {text}")
    return _shorten(shown, 40)
