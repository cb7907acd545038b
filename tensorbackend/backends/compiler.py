# SPDX-License-Identifier: Apache-2.0
"""From C source to a loaded library: find the compiler, run it, keep and load what it made.

Decides which compiler and which flags, what makes two libraries the same (the key), how many compilers run at once and
what a failure looks like. The folder that keeps the results is `disk_cache.py`; what the source says is others' business.
Importing this module starts nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensorbackend.backends import disk_cache
from tensorbackend.errors import CompileError
from tensorbackend.kernel_files import kernel_dir
from tensorbackend.settings import config

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

# Kernels keep IEEE results: no -ffast-math and no contraction. errno and trapping are given up because no kernel reads
# them, and log, sqrt and floor do not vectorise otherwise.
NUMERIC_FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
# No C library, no start files: 5 ms off the link. memcpy and memset resolve from the process that loads the kernel.
KERNEL_LINK_FLAGS = ("-nostdlib",)
SANITIZE_FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
PARALLEL_COMPILERS = 2
# How long to wait for another process that compiles the same kernel before doing it here as well.
PATIENCE = 10.0


# Which compiler -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiler:
    """A C compiler: the `command` that starts it, `family` ("gcc" or "clang"), `version` text and kernel `flags`."""

    command: tuple[str, ...]
    family: str
    version: str
    flags: tuple[str, ...] = field(default=())

    def arguments(self, options: Options) -> list[str]:
        """The command line up to the names of the input and the output."""
        speed = SANITIZE_FLAGS if options.sanitize else ("-O3",)
        link = () if options.libc or options.sanitize else KERNEL_LINK_FLAGS
        include = f"-I{kernel_dir() / 'c'}"
        return [*self.command, *speed, *self.flags, *link, *options.flags, *shlex.split(config.cflags), include]


@dataclass(frozen=True)
class Options:
    """How to compile: additional flags, with sanitizers, with the C library linked in."""

    flags: tuple[str, ...] = ()
    sanitize: bool = False
    libc: bool = False


def find_compiler() -> Compiler | None:
    """The C compiler to use, or None when there is none (`compiler_status` says why). Remembered for the settings.

    Looks at the setting `cc` (TB_CC), then CC, then cc, gcc and clang on PATH, then the `ziglang` package. TB_CC is
    taken at its word: when what it names does not work, nothing else is tried.
    """
    return _search(*_search_settings())[0]


def compiler_status() -> str:
    """One line: which compiler is used, or why there is none."""
    compiler, reason = _search(*_search_settings())
    if compiler is None:
        return reason
    return f"{shlex.join(compiler.command)}: {compiler.version} ({compiler.family})"


def _search_settings() -> tuple[str | None, str | None, str | None]:
    return config.cc, os.environ.get("CC"), os.environ.get("PATH")


@functools.lru_cache(maxsize=16)
def _search(wanted: str | None, cc: str | None, path: str | None) -> tuple[Compiler | None, str]:
    """The compiler and the reason for None. `path` is here only to be part of what the answer is remembered for."""
    if sys.platform == "win32":
        return None, "no C compiler: kernels are not compiled on Windows"
    tried = []
    for origin, command in _candidates(wanted, cc):
        compiler, complaint = _examine(command)
        if compiler is not None:
            return compiler, ""
        tried.append(f"{origin}: {complaint}")
    return None, f"no C compiler ({'; '.join(tried)}); install gcc or clang, set TB_CC, or: pip install ziglang"


def _candidates(wanted: str | None, cc: str | None) -> Iterable[tuple[str, list[str]]]:
    if wanted:
        yield "TB_CC", shlex.split(wanted)
        return
    if cc:
        yield "CC", shlex.split(cc)
    for name in ("cc", "gcc", "clang"):
        yield name, [name]
    if importlib.util.find_spec("ziglang") is not None:
        yield "ziglang", [sys.executable, "-m", "ziglang", "cc"]


def _examine(command: list[str]) -> tuple[Compiler | None, str]:
    """The compiler behind `command`, or the reason why it is not one we can use."""
    program = shutil.which(command[0]) if command else None
    if program is None:
        return None, f"{command[0] if command else 'an empty command'} is not on PATH"
    command = [program, *command[1:]]
    try:
        answer = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL, env=_environment()
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{program} --version: {error}"
    family = _family(answer.stdout)
    if answer.returncode != 0 or not family:
        said = (answer.stdout + answer.stderr).strip().partition("\n")[0]
        return None, f"{program} is neither gcc nor clang (its --version: {said!r})"
    version = answer.stdout.strip().partition("\n")[0]
    return Compiler(tuple(command), family, version, _kernel_flags(family, "ziglang" in command)), ""


def _family(version_text: str) -> str:
    if "clang" in version_text:
        return "clang"
    if "Free Software Foundation" in version_text or re.search(r"\bgcc\b", version_text):
        return "gcc"
    return ""


def _kernel_flags(family: str, zig: bool) -> tuple[str, ...]:
    x86 = platform.machine() in ("x86_64", "AMD64", "i686")
    flags = ["-march=native", "-mprefer-vector-width=512"] if x86 else ["-mcpu=native"]
    flags += [*NUMERIC_FLAGS, "-fPIC", "-shared", "-w"]
    if family == "gcc":
        # -pipe lets the assembler work beside the compiler (2 ms); a vectorised remainder loop costs more to compile
        # than it saves to run.
        flags += ["-pipe", "--param", "vect-epilogues-nomask=0"]
    if zig:
        flags += ["-fno-sanitize=undefined"]
    if sys.platform.startswith("linux"):
        # A kernel calls its own functions, whatever else in the process has the same name.
        flags += ["-Wl,-Bsymbolic"]
    return tuple(flags)


def _environment() -> dict[str, str]:
    """The environment of a compiler: messages in English, since they are read here."""
    return {**os.environ, "LC_ALL": "C", "LANGUAGE": ""}


# What makes two libraries the same ------------------------------------------------------------------------------------


def kernel_key(source: str, *, flags: Sequence[str] = (), sanitize: bool = False, libc: bool = False) -> str:
    """The name of the library of `source` in the cache: 64 hexadecimal digits.

    Two keys are equal when the source, the contents of the headers it includes by quotes, compiler, flags and CPU are.
    Raises `CompileError` without a compiler.
    """
    return _key(source, Options(tuple(flags), sanitize, libc))


def _key(source: str, options: Options) -> str:
    digest = _common_digest(_require_compiler(), options, config.cflags).copy()
    for header in _headers(source):
        digest.update(header)
    digest.update(source.encode())
    return digest.hexdigest()


@functools.lru_cache(maxsize=64)
def _common_digest(compiler: Compiler, options: Options, cflags: str) -> hashlib._Hash:
    """What all keys of one compiler, one set of options and one setting of TB_CFLAGS begin with."""
    facts = ["1", *compiler.command, compiler.version, cpu_features(), *compiler.arguments(options)]
    return hashlib.sha256("\0".join(facts).encode())


_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def _headers(source: str) -> list[bytes]:
    if '"' not in source:
        return []
    names = sorted(set(_INCLUDE.findall(source.encode())))
    return [_header_digest(name.decode()) for name in names]


def _header_digest(name: str) -> bytes:
    """A digest of a header and all it includes; of its name alone when it is missing (the compiler will complain)."""
    path = kernel_dir() / "c" / name
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return name.encode()
    return _read_header(path, facts.st_mtime_ns, facts.st_size)


@functools.lru_cache(maxsize=256)
def _read_header(path: Path, modified: int, size: int) -> bytes:
    """`modified` and `size` are here to be part of what the answer is remembered for."""
    digest = hashlib.sha256()
    waiting, seen = [path], {path}
    while waiting:
        text = waiting.pop().read_bytes()
        digest.update(text)
        for name in _INCLUDE.findall(text):
            inner = path.parent / name.decode()
            if inner not in seen and inner.is_file():
                seen.add(inner)
                waiting.append(inner)
    return digest.digest()


@functools.cache
def cpu_features() -> str:
    """What -march=native depends on, as text: the kind of CPU and its instruction sets."""
    telling = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    lines = [line for line in first.splitlines() if line.partition(":")[0].strip().startswith(telling)]
    return "\n".join([platform.machine(), *lines])


# Libraries ------------------------------------------------------------------------------------------------------------


class Library:
    """A loaded shared library: its `key`, `path`, and the `source_path` of the text it was made from.

    It stays loaded until the process ends: kernels may be running in other threads at any time.
    """

    __slots__ = ("_handle", "key", "path", "source_path")

    def __init__(self, key: str, path: Path, source_path: Path) -> None:
        self.key = key
        self.path = path
        self.source_path = source_path
        try:
            self._handle = ctypes.CDLL(os.fspath(path))
        except OSError as error:
            raise CompileError(f"the compiled library cannot be loaded: {error}\n  kept      {source_path}") from error

    def function(self, name: str) -> ctypes._CFuncPtr:
        """The function `name` as a ctypes function, to which the caller gives `argtypes` and `restype`."""
        try:
            return self._handle[name]
        except AttributeError:
            raise CompileError(f"the compiled library has no function {name!r}\n  kept      {self.source_path}") from None

    def address(self, name: str) -> int:
        """The address of the function `name`. Raises `CompileError` when there is none."""
        return ctypes.cast(self.function(name), ctypes.c_void_p).value or 0

    def __repr__(self) -> str:
        return f"Library({self.key[:12]}, {self.path})"


_loaded: dict[str, Library] = {}
_compiling = threading.RLock()


def _after_fork() -> None:
    global _compiling
    _compiling = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def load(key: str) -> Library | None:
    """The library of `key` from this process or from disk; None when it must be compiled."""
    library = _loaded.get(key)
    if library is not None:
        return library
    for cache in disk_cache.cache_for_reading():
        path = cache.get(key)
        if path is not None:
            return _loaded.setdefault(key, Library(key, path, cache.source(key)))
    return None


def compile_source(source: str, *, flags: Sequence[str] = (), sanitize: bool = False, libc: bool = False) -> Library:
    """The library of one source. As `compile_many`."""
    return compile_many([source], flags=flags, sanitize=sanitize, libc=libc)[0]


def compile_many(
    sources: Sequence[str],
    *,
    flags: Sequence[str] = (),
    sanitize: bool = False,
    libc: bool = False,
    merge: bool = False,
) -> list[Library]:
    """The libraries of `sources`, from this process, from disk, or compiled now, at most two compilers at a time.

    `flags` are added to the compiler's own. `sanitize` builds with the address and undefined-behaviour sanitizers, whose
    run-time libraries must be loaded first (`sanitizer_libraries`). `libc` links the C library and its start files.
    `merge` puts several sources in one translation unit, which halves the time of each; it is for sources of which all
    names at file scope, macros included, are distinct or come from guarded headers. A merged unit that does not compile
    is taken apart. Raises `CompileError` when there is no compiler, or it fails, or hangs longer than the setting
    `compile_timeout`.
    """
    options = Options(tuple(flags), sanitize, libc)
    keyed = {_key(source, options): source for source in sources}
    missing = {key: source for key, source in keyed.items() if load(key) is None}
    if missing:
        with _compiling:
            _compile_missing(missing, options, merge)
    return [_require_loaded(_key(source, options)) for source in sources]


def _require_loaded(key: str) -> Library:
    library = load(key)
    if library is None:
        raise CompileError(f"the kernel cache lost the entry {key} just written; is another program deleting files there?")
    return library


def _require_compiler() -> Compiler:
    compiler = find_compiler()
    if compiler is None:
        raise CompileError(compiler_status())
    return compiler


def sanitizer_libraries() -> list[str]:
    """Paths for LD_PRELOAD of a process that is to load libraries built with `sanitize=True`."""
    compiler = _require_compiler()
    names = {"gcc": ["libasan.so", "libubsan.so"], "clang": [f"libclang_rt.asan-{platform.machine()}.so"]}
    found = []
    for name in names[compiler.family]:
        answer = subprocess.run([*compiler.command, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        found.append(answer.stdout.strip())
    return found


# Compiling ------------------------------------------------------------------------------------------------------------


def _compile_missing(missing: dict[str, str], options: Options, merge: bool) -> None:
    """Compile all of `missing` (key: source) into the cache; a folder that cannot be written is replaced by another."""
    try:
        _compile_into(disk_cache.cache_for_writing(), missing, options, merge)
        return
    except OSError as error:
        cache = disk_cache.fall_back_to_private(f"the kernel cache cannot be written ({error})")
    try:
        _compile_into(cache, missing, options, merge)
    except OSError as error:
        raise CompileError(f"compiled kernels cannot be written anywhere: {error}; set TMPDIR or TB_CACHE") from error


def _compile_into(cache: disk_cache.DiskCache, missing: dict[str, str], options: Options, merge: bool) -> None:
    with cache.turn(next(iter(missing)), PATIENCE):
        left = {key: source for key, source in missing.items() if load(key) is None}
        groups = _groups(left, merge)
        outcomes = _run_all([functools.partial(_compile_group, cache, group, options) for group in groups])
        apart = [{key: left[key]} for group, outcome in zip(groups, outcomes) if outcome and len(group) > 1 for key in group]
        failures = [outcome for group, outcome in zip(groups, outcomes) if outcome and len(group) == 1]
        failures += filter(None, _run_all([functools.partial(_compile_group, cache, group, options) for group in apart]))
    if failures:
        raise failures[0]


def _groups(sources: dict[str, str], merge: bool) -> list[dict[str, str]]:
    """Which sources are compiled together: each alone, or all in as many groups as compilers may run."""
    if not merge:
        return [{key: source} for key, source in sources.items()]
    groups: list[dict[str, str]] = [{} for _ in range(PARALLEL_COMPILERS)]
    for key in sorted(sources, key=lambda key: len(sources[key]), reverse=True):
        shortest = min(groups, key=lambda group: sum(map(len, group.values())))
        shortest[key] = sources[key]
    return [group for group in groups if group]


def _run_all(jobs: list[Callable[[], CompileError | None]]) -> list[CompileError | None]:
    """Run jobs on as many threads as compilers may run; what each returned. The first exception raised is raised."""
    results: list[CompileError | None] = [None] * len(jobs)
    waiting = deque(enumerate(jobs))
    raised: list[BaseException] = []

    def work() -> None:
        while waiting and not raised:
            with contextlib.suppress(IndexError):  # another thread took the last one
                index, job = waiting.popleft()
                try:
                    results[index] = job()
                except BaseException as error:
                    raised.append(error)

    helpers = [threading.Thread(target=work, daemon=True) for _ in range(min(len(jobs), PARALLEL_COMPILERS) - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    if raised:
        raise raised[0]
    return results


def _compile_group(cache: disk_cache.DiskCache, group: dict[str, str], options: Options) -> CompileError | None:
    """Compile one translation unit and take the result into the cache; the error when the compiler rejects it."""
    with cache.workspace() as folder:
        written = [folder / f"kernel{index or ''}.c" for index in range(len(group))]
        for path, source in zip(written, group.values()):
            path.write_text(source)
        unit = written[0] if len(group) == 1 else _write_unit(folder, written)
        library = folder / "library.so"
        failure = _run_compiler(unit, library, options)
        if failure is not None and _looks_full(failure.message):
            raise OSError(failure.message.strip().splitlines()[-1])
        kept = [cache.put_source(key, path) for key, path in zip(group, written)]
        if failure is None:
            cache.put(list(group), library)
            return None
    return _error(failure, unit, kept[0])


def _write_unit(folder: Path, written: list[Path]) -> Path:
    unit = folder / "unit.c"
    unit.write_text("".join(f'#include "{path}"\n' for path in written))
    return unit


@dataclass
class _Failure:
    command: list[str]
    ending: str
    message: str


def _run_compiler(unit: Path, library: Path, options: Options) -> _Failure | None:
    command = [*_require_compiler().arguments(options), os.fspath(unit), "-o", os.fspath(library)]
    started = time.perf_counter()
    environment = {**_environment(), "TMPDIR": os.fspath(unit.parent)}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    ending = ""
    try:
        output = process.communicate(timeout=config.compile_timeout)[0]
    except subprocess.TimeoutExpired:
        ending = f"did not finish in {config.compile_timeout:g} s and was stopped (setting TB_COMPILE_TIMEOUT)"
        output = b""
    finally:
        _stop(process)
    message = output.decode(errors="replace")
    if not ending and process.returncode == 0 and library.exists():
        elapsed = time.perf_counter() - started
        log.debug("tensorbackend: compiled %s in %.1f ms", unit.name, elapsed * 1e3)
        return None
    return _Failure(command, ending or f"failed (exit status {process.returncode})", message)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the compiler and the programs it started, when it is still running (time-out or an interrupt)."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _looks_full(message: str) -> bool:
    return any(text in message for text in ("No space left on device", "Disk quota exceeded", "File size limit exceeded", "File too large"))


# Failures -------------------------------------------------------------------------------------------------------------


def _error(failure: _Failure, unit: Path, kept: Path) -> CompileError:
    """The error of a compiler that failed: command, message, the source lines it names, and where the source is."""
    folder = os.fspath(unit.parent) + os.sep
    message = failure.message.replace(folder, "")
    command = [os.fspath(kept) if word == os.fspath(unit) else word.replace(folder, "") for word in failure.command]
    rows = [
        f"the C compiler {failure.ending}",
        f"  command   {shlex.join(command)}",
        _block("message", _shorten(message.strip().splitlines(), 30)),
        _block("source", _marked_lines(message, unit.name, kept)),
        f"  kept      {kept}",
        "  try       the command by hand on the kept source; TB_JIT=0 computes without a compiler",
    ]
    return CompileError("\n".join(row for row in rows if row))


def _block(label: str, lines: list[str]) -> str:
    return "\n".join(f"  {label if i == 0 else '':<9} {line}" for i, line in enumerate(lines))


def _shorten(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"... {len(lines) - most} more lines"]


def _marked_lines(message: str, name: str, kept: Path) -> list[str]:
    """The lines of the kept source that `message`, which calls it `name`, complains of: marked, with their neighbours."""
    at = {int(number) for number in re.findall(rf"{re.escape(name)}:(\d+):\d+: (?:fatal )?error", message)}
    shown = []
    for number, text in enumerate(kept.read_text().splitlines(), start=1):
        if any(abs(number - line) <= 2 for line in at):
            shown.append(f"{'>' if number in at else ' '}{number:5d}  {text}")
    return _shorten(shown, 40)
