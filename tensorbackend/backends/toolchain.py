# SPDX-License-Identifier: Apache-2.0
"""Which C compiler: where it is looked for, what it is, and the flags it gets.

Importing this module starts nothing; the first question about a compiler runs its `--version`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from tensorbackend.backends import programs
from tensorbackend.errors import CompileError, complain
from tensorbackend.kernel_files import kernel_dir
from tensorbackend.settings import config

__all__ = [
    "Compiler",
    "Options",
    "compiler_environment",
    "compiler_status",
    "cpu_features",
    "find_compiler",
    "require_compiler",
    "require_sanitizers",
    "sanitizer_libraries",
]

# Kernels keep IEEE results: no -ffast-math and no contraction. errno and trapping are given up because no kernel reads
# them, and log, sqrt and floor do not vectorise otherwise.
NUMERIC_FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
FAST_FLAGS = ("-O3",)
# Passes that take a third of the time of convolutions' files and give them nothing: they take loops apart that are as
# they should be, and search them for what is the same elsewhere.
_AS_WRITTEN_FLAGS = (
    "-fno-split-loops",
    "-fno-split-paths",
    "-fno-loop-interchange",
    "-fno-loop-unroll-and-jam",
    "-fno-tree-loop-distribution",
    "-fno-version-loops-for-strides",
    "-fno-ipa-cp-clone",
    "-fno-tree-pre",
    "-fno-tree-vrp",
    "-fno-thread-jumps",
    "-fno-tree-tail-merge",
    "-fno-gcse",
    "-fno-rerun-cse-after-loop",
    "-fno-cse-follow-jumps",
)
# Printed kernels, of which a program may need hundreds: the passes of -O2 and -O3 that make them faster, in a half to
# 3/4 of the time of -O3, to code of the same speed. -fexpensive-optimizations also brings vzeroupper, without which the
# code after a kernel is slow.
_QUICK_FLAGS = (
    "-O1",
    "-ftree-loop-vectorize",
    "-fvect-cost-model=dynamic",
    "-fexpensive-optimizations",
    "-fgcse",
    # Chains of operations side by side, as far as there are registers: 6 % where a kernel has two.
    "-fschedule-insns",
    "-fsched-pressure",
    "-fschedule-insns2",
    # Constants stay in vector registers although the loop around theirs has a call.
    "-fcaller-saves",
    # Short loops that begin anywhere take up to two fifths longer, by where a constant more or less has put them.
    "-falign-loops=64",
    # No gain from these in one loop of straight-line code.
    "-fno-thread-jumps",
    "-fno-tree-loop-im",
    # One region of registers; no analysis of pointers and calls, by which a kernel does not profit.
    "-fira-region=one",
    "-fno-tree-pta",
    "-fno-ipa-icf",
    "-fno-ipa-modref",
    "-fno-ipa-pure-const",
    "-fno-ipa-reference",
)
# A vectorised remainder loop costs more to compile than it saves to run, but where loops are all remainder.
_PLAIN_ENDS = ("--param", "vect-epilogues-nomask=0")
# What a source is compiled for. "lanes": partial results of a row stay in registers once the loops over them are
# unrolled. "narrow": loops over fewer elements than two vectors have. "products": -O3 would unroll tiles that are
# unrolled by hand. "convolutions": their loops are as they should be.
AIMS = {
    "gcc": {
        "speed": (*FAST_FLAGS, *_PLAIN_ENDS),
        "speed, narrow": FAST_FLAGS,
        "quick": (*_QUICK_FLAGS, *_PLAIN_ENDS),
        "narrow": _QUICK_FLAGS,
        "lanes": (*_QUICK_FLAGS, "-fpeel-loops", "-funroll-completely-grow-size", *_PLAIN_ENDS),
        "products": ("-O2", "-fvect-cost-model=dynamic", "-fno-tree-loop-distribute-patterns", *_PLAIN_ENDS),
        "convolutions": (*FAST_FLAGS, *_AS_WRITTEN_FLAGS, *_PLAIN_ENDS),
    },
}
# No C library, no start files: 5 ms off the link. memcpy and memset resolve from the process that loads the kernel.
KERNEL_LINK_FLAGS = ("-nostdlib",)
# One segment instead of three, and exported names only: a fourth of the size, which is checked and mapped sooner.
SMALL_LINK_FLAGS = ("-Wl,-z,noseparate-code,-z,norelro,-s",)
SANITIZE_FLAGS = (
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
)


@dataclass(frozen=True)
class Options:
    """How to compile: additional `flags`, with sanitizers, with the C library linked in; the `aim`, one of `AIMS`
    (compilers without aims: for speed)."""

    flags: tuple[str, ...] = ()
    sanitize: bool = False
    libc: bool = False
    aim: str = "speed"


@dataclass(frozen=True)
class Compiler:
    """A C compiler: the `command` that starts it, `family` ("gcc" or "clang"), `version` text and kernel `flags`."""

    command: tuple[str, ...]
    family: str
    version: str
    flags: tuple[str, ...]

    def arguments(self, options: Options) -> list[str]:
        """The command line up to the names of the input and the output."""
        return [*self.words(options), f"-I{kernel_dir() / 'c'}"]

    def words(self, options: Options) -> list[str]:
        """The command line but for the folder of headers, whose contents are what matters."""
        speed = AIMS.get(self.family, {}).get(options.aim, FAST_FLAGS)
        speed = SANITIZE_FLAGS if options.sanitize else speed
        link = () if options.libc or options.sanitize else KERNEL_LINK_FLAGS
        if link and self.family == "gcc" and sys.platform.startswith("linux"):
            link += SMALL_LINK_FLAGS
        return [*self.command, *speed, *self.flags, *link, *options.flags, *_added_flags(config.cflags)]


def _added_flags(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        wanted = f"flags, quoted as in a shell; {error}"
        raise CompileError(complain("TB_CFLAGS: cannot be read", repr(text), wanted)) from None


def find_compiler() -> Compiler | None:
    """The C compiler to use, or None when there is none (`compiler_status` says why). Remembered for the settings.

    Looks at the setting `cc` (TB_CC), then CC, then cc, gcc and clang on PATH, then the `ziglang` package. TB_CC is
    taken at its word: when what it names does not work, nothing else is tried.
    """
    return _search(*_search_settings())[0]


def require_compiler() -> Compiler:
    """The C compiler to use. Raises `CompileError` that says what was tried when there is none."""
    compiler = find_compiler()
    if compiler is None:
        raise CompileError(compiler_status())
    return compiler


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
        yield "TB_CC", _command(wanted)
        return
    if cc:
        yield "CC", _command(cc)
    for name in ("cc", "gcc", "clang"):
        yield name, [name]
    if importlib.util.find_spec("ziglang") is not None:
        yield "ziglang", [sys.executable, "-m", "ziglang", "cc"]


def _command(text: str) -> list[str]:
    """The words of a setting. One that lacks a quotation mark is a program's name, which there will not be."""
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


def _examine(command: list[str]) -> tuple[Compiler | None, str]:
    """The compiler behind `command`, or the reason why it is not one we can use."""
    program = shutil.which(command[0]) if command else None
    if program is None:
        return None, f"{command[0] if command else 'an empty command'} is not on PATH"
    command = [program, *command[1:]]
    try:
        answer = _ask([*command, "--version"])
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"{program} --version: {error}"
    family = _family(answer.stdout)
    if answer.returncode != 0 or not family:
        said = (answer.stdout + answer.stderr).strip().partition("\n")[0]
        return None, f"{program} is neither gcc nor clang (its --version: {said!r})"
    version = answer.stdout.strip().partition("\n")[0]
    return Compiler(tuple(command), family, version, _kernel_flags(family, "ziglang" in command)), ""


def _ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    return programs.ask(command, 10, compiler_environment())


def _family(version_text: str) -> str:
    if "clang" in version_text:
        return "clang"
    # gcc's first line is the distributor's; other GNU programs give another notice.
    if "Free Software Foundation" in version_text and "see the source for copying conditions" in version_text:
        return "gcc"
    return ""


_X86_FLAGS = ("-march=native", "-mprefer-vector-width=512")
# On ARM, atomics are instructions of the first version too, not calls of libgcc, to which kernels are not linked.
_ARM_FLAGS = ("-mcpu=native", "-mno-outline-atomics")
_MACHINE_FLAGS = {"x86_64": _X86_FLAGS, "AMD64": _X86_FLAGS, "aarch64": _ARM_FLAGS, "arm64": _ARM_FLAGS}
"""By `platform.machine()`; of others, kernels are compiled for what the compiler takes as given."""


def _kernel_flags(family: str, zig: bool) -> tuple[str, ...]:
    flags = [*_MACHINE_FLAGS.get(platform.machine(), ()), *NUMERIC_FLAGS, "-fPIC", "-shared", "-w"]
    if family == "gcc":
        flags += ["-pipe"]  # the assembler works beside the compiler: 2 ms
    if zig:
        flags += ["-fno-sanitize=undefined"]
    if sys.platform.startswith("linux"):
        # A kernel calls its own functions, whatever else in the process has the same name.
        flags += ["-Wl,-Bsymbolic"]
    return tuple(flags)


def compiler_environment() -> dict[str, str]:
    """The environment to run a compiler in: messages in English, since they are read here."""
    return {**os.environ, "LC_ALL": "C", "LANGUAGE": ""}


def sanitizer_libraries() -> list[str]:
    """Paths for LD_PRELOAD of a process that is to load libraries built with `sanitize=True`."""
    compiler = require_compiler()
    names = {"gcc": ["libasan.so", "libubsan.so"], "clang": [f"libclang_rt.asan-{platform.machine()}.so"]}
    answers = [_ask([*compiler.command, f"-print-file-name={name}"]) for name in names[compiler.family]]
    return [answer.stdout.strip() for answer in answers]


def require_sanitizers() -> None:
    """Raise `CompileError` where the process was started without them: they end one that loads them later."""
    if not hasattr(ctypes.CDLL(None), "__asan_init"):
        line = f"LD_PRELOAD='{' '.join(sanitizer_libraries())}' ASAN_OPTIONS=detect_leaks=0 TB_SANITIZE=1 python ..."
        raise CompileError(complain("TB_SANITIZE: the sanitizers have to be loaded before Python", "", "", line))


@functools.cache
def cpu_features() -> str:
    """What -march=native depends on, as text: the kind of CPU and its instruction sets."""
    telling = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
    try:
        with open("/proc/cpuinfo", errors="replace") as file:
            first_cpu = list(itertools.takewhile(str.strip, file))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return platform.machine() + "\n" + "".join(line for line in first_cpu if line.startswith(telling))
