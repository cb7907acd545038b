# SPDX-License-Identifier: Apache-2.0
"""NVRTC from NVIDIA's wheel, through ctypes: CUDA source to a cubin, without a device."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from functools import cache
from pathlib import Path

from tensorbackend.kernel_files import kernel_dir

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
_USED = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores.*?Used (\d+) registers", re.DOTALL)


@cache
def library() -> ctypes.CDLL | None:
    """The library of the package nvidia-cuda-nvrtc; None where it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations) if spec is not None else []
    found = [path for folder in folders for path in Path(folder).glob("*/lib/libnvrtc.so.*") if "alt" not in path.name]
    return ctypes.CDLL(str(sorted(found)[-1])) if found else None


def compile_cubin(source: str, architecture: str, options: tuple[str, ...] = ()) -> dict[str, tuple[int, int]]:
    """Compile; the registers and the spilled bytes of each kernel. Raises `AssertionError` with the log."""
    nvrtc = library()
    program = ctypes.c_void_p()
    folders = [f"--include-path={kernel_dir() / name}" for name in ("c", "cuda")]
    flags = [f"--gpu-architecture={architecture}", "--std=c++17", "--fmad=false"]
    flags = [*flags, "--ptxas-options=-v", *folders, *options]
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*map(str.encode, flags)))
        log = _text(nvrtc, program, "ProgramLog").decode()
        assert not failed, f"{architecture}:\n{log}"
        assert _text(nvrtc, program, "CUBIN").startswith(b"\x7fELF")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return {name: (int(registers), int(spilled)) for name, spilled, registers in _USED.findall(log)}


def _text(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, text) == 0
    return text.raw
