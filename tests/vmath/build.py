# SPDX-License-Identifier: Apache-2.0
"""Compiles kernels.c and references.c, and calls what is in them on NumPy arrays."""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tensorbackend.backends import toolchain
from tensorbackend.kernel_files import kernel_dir

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.uint16, "bf16": np.uint16}
DTYPES |= {name: np.dtype(name.replace("i", "int").replace("u", "uint")).type for name in INTEGERS}


def function_names() -> list[str]:
    """The names in functions.h."""
    return re.findall(r"^(?:UNARY|BINARY)\((\w+),", (HERE / "functions.h").read_text(), re.MULTILINE)


def compile_shared(target: Path, source: Path, command: Sequence[str], flags: Sequence[str] = ()) -> Path:
    """Compile `source` into the shared object `target`; zig's compiler has names of its own for kinds of processors."""
    given = [*command, *flags]
    if "ziglang" in command:
        given = [f"-mcpu={flag[7:].replace('-', '_')}" if flag.startswith("-march=") else flag for flag in given]
    include = f"-I{kernel_dir() / 'c'}"
    _run([*given, "-fPIC", "-shared", include, str(source), "-o", str(target), "-lm", "-lpthread"])
    return target


def _run(arguments: Sequence[str]) -> None:
    done = subprocess.run(arguments, capture_output=True, text=True, env=toolchain.compiler_environment())
    assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stderr}"


def strict(flags: Sequence[str]) -> list[str]:
    """Warnings on, and fatal: headers must be clean for whoever includes them."""
    kept = [flag for flag in flags if flag != "-w"]
    return [*kept, "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]


class Kernels:
    """The loops of kernels.c in the shared object `path`; `scalar` names those that gcc made no vector code of."""

    def __init__(self, path: Path, scalar: set[str] | None = None) -> None:
        self.library = ctypes.CDLL(str(path))
        self.scalar = scalar

    def __call__(self, name: str, *arrays: np.ndarray, out: str | None = None) -> np.ndarray:
        """`name`, say "exp_f32" or "f32_to_i8", on one or two arrays; its last part is the type of the result."""
        arrays = tuple(np.ascontiguousarray(a) for a in arrays)
        result = np.empty(arrays[0].shape, DTYPES[out or name.rpartition("_")[2]])
        second = arrays[-1]
        getattr(self.library, name)(_address(result), _address(arrays[0]), _address(second), ctypes.c_long(result.size))
        return result

    def block(self, name: str, array: np.ndarray) -> np.ndarray:
        """`load_f16` and its like: halves to float32 (load, read) or back (store, write)."""
        result = np.empty(array.shape, np.float32 if array.dtype == np.uint16 else np.uint16)
        getattr(self.library, name)(_address(result), _address(array), ctypes.c_int(array.size))
        return result

    def random(self, name: str, count: int, first: int = 0, draw: int = 0, key: int = 0) -> np.ndarray:
        """`count` numbers of `randbits`, `uniform_f32`, … from position `first` on."""
        kind = {"f32": np.float32, "f64": np.float64}.get(name.rpartition("_")[2], np.uint32)
        result = np.empty(count, kind)
        words = [ctypes.c_uint64(word) for word in (first, draw, key)]
        getattr(self.library, name)(_address(result), *words, ctypes.c_long(count))
        return result

    def over(self, array: np.ndarray, divisor: np.float32) -> np.ndarray:
        """The quotients of float32 numbers and one divisor, by `inverse.h`."""
        result = np.empty_like(array)
        self.library.over_f32(_address(result), _address(array), ctypes.c_float(divisor), ctypes.c_int(array.size))
        return result

    def philox_block(self, words: int, count: int, first: int = 0, draw: int = 0, key: int = 0) -> np.ndarray:
        """The first `words` words of `count` positions, a multiple of 8, from `first` on, as (position, word)."""
        result = np.empty((words, count), np.uint32)
        given = [ctypes.c_uint64(word) for word in (draw, key)]
        self.library.philox_block(_address(result), words, ctypes.c_uint64(first), count, *given)
        return result.T

    def philox(self, index: int, draw: int, key: int) -> list[int]:
        """The four words of one counter."""
        result = np.empty(4, np.uint32)
        self.library.philox(_address(result), *[ctypes.c_uint64(word) for word in (index, draw, key)])
        return result.tolist()


class Found(ctypes.Structure):
    """What a search of all inputs found: see references.c."""

    _fields_ = [
        ("error", ctypes.c_double),
        ("mismatches", ctypes.c_int64),
        ("worst", ctypes.c_uint32),
        ("mismatch", ctypes.c_uint32),
    ]


class References:
    """The exact values, errors and searches of references.c."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))

    def exact(self, name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """The values of a function at float32 or float64 arguments, computed in a wider type, as doubles."""
        exact = np.empty(a.shape, np.float64)
        dtype = "f32" if a.dtype == np.float32 else "f64"
        function = getattr(self.library, f"exact_{name}_{dtype}")
        function(_address(exact), _address(a), _address(b), ctypes.c_long(a.size))
        return exact

    def errors(self, name: str, got: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Errors of `got` in ulp; infinity where one side only is NaN."""
        errors = np.empty(got.shape, np.float64)
        count = ctypes.c_long(got.size)
        if got.dtype == np.float32:
            exact = self.exact(name, a, b)
            self.library.errors_f32(_address(errors), _address(got), _address(exact), count)
        else:
            function = getattr(self.library, f"errors_{name}_f64")
            function(_address(errors), _address(got), _address(a), _address(b), count)
        return errors

    def search(self, name: str, kernels: Kernels, threads: int, form: str = "f32") -> Found:
        """The largest error of a float32 function of one argument over all 2^32 inputs; `form` may be "half"."""
        found = Found()
        kernel = getattr(kernels.library, f"{name}_{form}")
        reference = getattr(self.library, f"exact_{name}_f32")
        failed = self.library.search_f32(kernel, reference, threads, ctypes.byref(found))
        assert not failed, f"pthread_create failed with {failed}"
        return found

    def nanoseconds(self, name: str, kernels: Kernels, a: np.ndarray, b: np.ndarray, rounds: int) -> float:
        """Time of one element of a loop of kernels.c over arrays, the fastest of some rounds."""
        self.library.fastest.restype = ctypes.c_double
        kernel = getattr(kernels.library, name)
        out = np.empty(a.size, np.float64)
        operands = [_address(array) for array in (out, a, b)]
        return self.library.fastest(kernel, *operands, ctypes.c_long(a.size), rounds) / a.size


def build_kernels(target: Path, compiler: toolchain.Compiler, flags: Sequence[str] | None = None) -> Kernels:
    """kernels.c as generated kernels are compiled, or with other flags than those of the engine's compiler."""
    chosen = ["-O3", *compiler.flags] if flags is None else list(flags)
    if compiler.family != "gcc":
        return Kernels(compile_shared(target, HERE / "kernels.c", compiler.command, strict(chosen)))
    source = target.with_suffix(".c")
    notes = target.with_suffix(".txt")
    _run(
        [*compiler.command, *chosen, f"-I{kernel_dir() / 'c'}", "-E", "-P", str(HERE / "kernels.c"), "-o", str(source)]
    )
    source.write_text(re.sub(r" +void (\w+)\(", r"\nvoid \1(", source.read_text()))
    compile_shared(target, source, compiler.command, [*chosen, f"-fopt-info-vec-optimized={notes}"])
    return Kernels(target, _without_notes(source.read_text(), notes.read_text()))


def _without_notes(source: str, notes: str) -> set[str]:
    """The loops over n elements, one function a line, that the notes on vectorised loops leave out."""
    vectorised = {int(line) for line in re.findall(r":(\d+):\d+: optimized: loop vectorized", notes)}
    functions = (
        (number, re.match(r"void (\w+)\([^)]*long n\)", line)) for number, line in enumerate(source.splitlines(), 1)
    )
    return {match[1] for number, match in functions if match and number not in vectorised}


def build_references(target: Path, compiler: toolchain.Compiler) -> References:
    """references.c, through the vector functions of the C library where it has them."""
    flags = ["-O3", *compiler.flags]
    if _has_vector_libm(compiler):
        flags += ["-DTB_VECTOR_LIBM", "-lmvec"]
    return References(compile_shared(target, HERE / "references.c", compiler.command, flags))


def _has_vector_libm(compiler: toolchain.Compiler) -> bool:
    name, version = platform.libc_ver()
    recent = name == "glibc" and tuple(int(part) for part in version.split(".")[:2]) >= (2, 35)
    return recent and compiler.family == "gcc" and platform.machine() == "x86_64"


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
