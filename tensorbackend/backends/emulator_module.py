# SPDX-License-Identifier: Apache-2.0
"""A CUDA source as a library of the host, for the emulator: compiled, its kernels found, faults traced to lines."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tensorbackend.backends import compiler, toolchain
from tensorbackend.backends.driver import Function, Module, Triple
from tensorbackend.backends.emulator_source import kernels_of, translate
from tensorbackend.errors import BackendError, CompileError, complain, nearest
from tensorbackend.kernel_files import kernel_path

__all__ = ["BOUNDS_FLAGS", "EmulatorModule", "Report", "Setup", "runtime"]

# Pointers to vectors alias arrays, as they do in CUDA.
FLAGS = (
    *("-x", "c++", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fwrapv"),
    *("-fno-strict-aliasing", "-fno-omit-frame-pointer"),
)
if sys.platform == "darwin":
    FLAGS += ("-undefined", "dynamic_lookup")
BOUNDS_FLAGS = {
    "gcc": (
        "-fsanitize=bounds-strict",
        "-fsanitize-undefined-trap-on-error",
        "-fno-crossjumping",
        "-fno-tree-tail-merge",
    ),
    "clang": ("-fsanitize=array-bounds", "-fsanitize-trap=array-bounds"),
}
# A device faults where an address is no multiple of what is read or written there; a host does not. Overruns are to
# reach a guard page, not to be reasoned away.
FAULT_FLAGS = {
    "gcc": (
        "-fsanitize=alignment",
        "-fsanitize-undefined-trap-on-error",
        "-fno-aggressive-loop-optimizations",
    ),
    "clang": ("-fsanitize=alignment", "-fsanitize-trap=alignment"),
}
# Kernels run briefly and are many: optimising one takes longer than it saves. addr2line misreads version 5 of DWARF in
# binutils 2.40.
MODULE_FLAGS = (*FLAGS, "-O0", "-g1", "-gdwarf-4")
RUNTIME_FLAGS = (*FLAGS, "-O2")


class Index(ctypes.Structure):
    """A place in a grid or block."""

    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]

    def triple(self) -> Triple:
        """x, y and z."""
        return self.x, self.y, self.z


class Setup(ctypes.Structure):
    """A launch, as the scheduler takes it."""

    _fields_ = [
        ("grid", Index),
        ("block", Index),
        ("shared", ctypes.c_uint),
        ("shared_limit", ctypes.c_uint),
        ("order", ctypes.c_int),
        ("seed", ctypes.c_ulonglong),
        ("arguments", ctypes.c_char_p),
        ("argument_size", ctypes.c_size_t),
        ("fill", ctypes.c_ubyte),
    ]


class Report(ctypes.Structure):
    """What went wrong, as the scheduler says it."""

    _fields_ = [
        ("message", ctypes.c_char * 512),
        ("file", ctypes.c_char * 256),
        ("line", ctypes.c_int),
        ("has_thread", ctypes.c_int),
        ("block", Index),
        ("thread", Index),
        ("program_counter", ctypes.c_void_p),
    ]


@functools.cache
def runtime() -> ctypes.CDLL:
    """The scheduler, compiled once, its functions visible to the modules loaded after it. Raises `CompileError`."""
    source = kernel_path("cuda/emulator.cpp").read_text(encoding="utf-8")
    try:
        library = compiler.compile_source(source, flags=RUNTIME_FLAGS, libc=True)
    except CompileError as error:
        hint = "the emulator is C++: install g++, or clang++, with its standard library; TB_CC chooses a compiler"
        raise CompileError(f"{error}\n  try       {hint}") from error
    loaded = ctypes.CDLL(os.fspath(library.path), mode=ctypes.RTLD_GLOBAL)
    loaded.emulator_allocate.argtypes = [ctypes.c_size_t]
    loaded.emulator_allocate.restype = ctypes.c_void_p
    loaded.emulator_free.argtypes = [ctypes.c_void_p]
    loaded.emulator_free.restype = ctypes.c_bool
    loaded.emulator_contains.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    loaded.emulator_contains.restype = ctypes.c_bool
    return loaded


class EmulatorModule(Module):
    """Kernels compiled for the host: `name` and `source` as they were given, `path` of the library."""

    def __init__(self, source: str, name: str, options: Sequence[str]) -> None:
        runtime()
        self.name = name
        self.source = source
        self._kernels = [kernel for _, kernel in kernels_of(source)]
        flags = (*MODULE_FLAGS, *FAULT_FLAGS[toolchain.require_compiler().family], *options)
        self._library = compiler.compile_source(translate(source, name), flags=flags, libc=True)
        self.path = os.fspath(self._library.path)

    def function(self, name: str) -> Function:
        """As `Module.function`. The handle is (module, entry point, size of the arguments)."""
        if name not in self._kernels:
            expected = f'extern "C" __global__ void {name}(const {name}_args a)'
            raise BackendError(
                complain(f"{self.name}: no such kernel", repr(name), expected, nearest(name, self._kernels))
            )
        threads = ctypes.c_uint.from_address(self._library.address(f"emulator_threads_{name}")).value
        size = ctypes.c_size_t.from_address(self._library.address(f"emulator_arguments_{name}")).value
        return Function(name, (self, self._library.function(f"emulator_launch_{name}"), size), threads=threads)

    def locate(self, address: int) -> str:
        """The "file:line" of an instruction, or "" where that is not known (no debugger's tools, another library)."""
        base = _base_of(address, self.path)
        tool = shutil.which("addr2line")
        if base is None or tool is None:
            return ""
        command = [tool, "-i", "-e", self.path, hex(address - base)]
        lines = os.fsdecode(subprocess.run(command, capture_output=True, timeout=30).stdout).split("\n")
        places = [line.partition(" (discriminator")[0] for line in lines if ":" in line and "??" not in line]
        ours = [place for place in places if not place.rpartition(":")[0].endswith("/emulator.h")]
        return self._shorten(ours[0]) if ours else ""

    def _shorten(self, place: str) -> str:
        """`place` without the folder that the compiler ran in."""
        return next((known for known in self._lines if place.endswith("/" + known)), place)

    @functools.cached_property
    def _lines(self) -> dict[str, str]:
        """The source by "file:line", as its `#line`s count; "" where several have one place."""
        found: dict[str, str] = {}
        file, number = self.name, 1
        for text in self.source.splitlines():
            if counted := re.fullmatch(r'#line (\d+) "(.*)"', text):
                number, file = int(counted[1]), counted[2]
                continue
            place = f"{file}:{number}"
            found[place] = "" if place in found else text.strip()
            number += 1
        return found

    def line(self, place: str) -> str:
        """The source line at a "file:line"; "" when it is not at hand."""
        if place in self._lines:
            return self._lines[place]
        file, _, number = place.rpartition(":")
        try:
            return Path(file).read_text(encoding="utf-8").splitlines()[int(number) - 1].strip()
        except (OSError, ValueError, IndexError):
            return ""


class _Symbol(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_char_p if "name" in name else ctypes.c_void_p) for name in ("name", "base", "sname", "at")
    ]


def _base_of(address: int, path: str) -> int | None:
    """Where the library at `path` begins in memory, when `address` lies in it."""
    symbol = _Symbol()
    found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(symbol))
    return symbol.base if found and os.fsdecode(symbol.name) == path else None
