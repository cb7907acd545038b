# SPDX-License-Identifier: Apache-2.0
"""NVRTC from NVIDIA's wheel, through ctypes: CUDA source to a cubin, and what each kernel takes, without a device."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tensorbackend.kernel_files import kernel_dir

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
_KERNEL = re.compile(
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers([^\n]*)",
    re.DOTALL,
)
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class Use:
    """What a compiled kernel takes: `registers` a thread, `spilled` bytes of them (stores and loads), bytes of `stack`
    and bytes of static `shared` memory a block."""

    registers: int
    spilled: int
    stack: int
    shared: int


def folder_of(name: str) -> Path | None:
    """A folder of the installed wheels of CUDA."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations) if spec is not None else []
    return next((path for place in places for path in sorted(Path(place).glob(f"*/{name}"))), None)


@cache
def library() -> ctypes.CDLL | None:
    """The library of the package nvidia-cuda-nvrtc; None where it is not installed."""
    folder = folder_of("lib")
    found = sorted(folder.glob("libnvrtc.so.[0-9]*")) if folder is not None else []
    return ctypes.CDLL(str(found[-1])) if found else None


def version() -> str:
    """NVRTC's version, as "13.0"."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    assert library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
    return f"{major.value}.{minor.value}"


def compile_cubin(source: str, architecture: str, options: tuple[str, ...] = ()) -> dict[str, Use]:
    """Compile; what each kernel takes. Raises `AssertionError` with the log."""
    cubin, log = _compiled(source, architecture, ("--ptxas-options=-v", *options), "CUBIN")
    assert cubin.startswith(b"\x7fELF")
    return uses(log)


def compile_ptx(source: str, architecture: str) -> bytes:
    """Compile to the assembly of a virtual architecture ("compute_80"), which devices from that on can run."""
    return _compiled(source, architecture, (), "PTX")[0]


def uses(log: str) -> dict[str, Use]:
    """What each kernel takes, from the log of a compiler that was asked to say it."""
    return {name: _use(*facts) for name, *facts in _KERNEL.findall(log)}


def _compiled(source: str, architecture: str, options: tuple[str, ...], what: str) -> tuple[bytes, str]:
    nvrtc = library()
    program = ctypes.c_void_p()
    folders = [kernel_dir() / "c", kernel_dir() / "cuda", folder_of("include")]
    flags = [f"--gpu-architecture={architecture}", "--std=c++17", "--fmad=false"]
    flags = [*flags, *(f"--include-path={folder}" for folder in folders if folder is not None), *options]
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*map(str.encode, flags)))
        log = _text(nvrtc, program, "ProgramLog").decode()
        assert not failed, f"{architecture}:\n{log}"
        return _text(nvrtc, program, what), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _use(stack: str, stores: str, loads: str, registers: str, rest: str) -> Use:
    shared = _SHARED.search(rest)
    return Use(int(registers), int(stores) + int(loads), int(stack), int(shared[1]) if shared else 0)


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, text) == 0
    return text.raw
