# SPDX-License-Identifier: Apache-2.0
"""CUDA modules that a driver compiles itself, kept on disk beside the CPU's kernels (`disk_cache.py`)."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from tensorbackend.backends import disk_cache
from tensorbackend.errors import CompileError, complain
from tensorbackend.kernel_files import kernel_dir

__all__ = ["cubin_of"]

_log = logging.getLogger("tensorbackend")


def cubin_of(text: str, name: str, options: Sequence[str], capability: tuple[int, int], nvrtc: Any) -> bytes:
    """The module of a source for a device: from disk if it was compiled before with these options and headers, else
    compiled by NVRTC (CuPy's module) and kept. Where NVRTC is older than the device, it is PTX, which the NVIDIA driver
    compiles. Raises `CompileError`; a folder that cannot be written only costs the time of another compilation.
    """
    number = capability[0] * 10 + capability[1]
    newest = max((known for known in nvrtc.getSupportedArchs() if known <= number), default=None)
    if newest is None:
        version, least = ".".join(map(str, nvrtc.getVersion())), min(nvrtc.getSupportedArchs()) / 10
        given, expected = f"compute capability {number / 10}", f"{least} or more"
        raise CompileError(complain(f"NVRTC {version} is too new for the device", given, expected, "an older CUDA"))
    flags = (f"-arch={'sm' if newest == number else 'compute'}_{newest}", *options)
    parts = ("cubin", str(nvrtc.getVersion()), *flags, _headers(), text)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    for cache in disk_cache.cache_for_reading():
        found = cache.read(key)
        if found is not None:
            return found
    made = _compiled(text, name, flags, nvrtc)
    try:
        disk_cache.cache_for_writing().write(key, made, text)
    except OSError as error:
        _log.warning("tensorbackend: the kernel cache cannot be written (%s)", error)
    return made


def _compiled(text: str, name: str, flags: Sequence[str], nvrtc: Any) -> bytes:
    program = nvrtc.createProgram(text, name, (), ())
    try:
        nvrtc.compileProgram(program, flags)
        return nvrtc.getCUBIN(program) if "-arch=sm_" in flags[0] else nvrtc.getPTX(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise CompileError(complain(f"{name} does not compile for the device", log or str(error))) from error
    finally:
        nvrtc.destroyProgram(program)


@functools.cache
def _headers() -> str:
    """A digest of all headers that a source may include."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in ("c/*.h", "cuda/*.cuh") for path in kernel_dir().glob(pattern)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
