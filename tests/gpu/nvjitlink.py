# SPDX-License-Identifier: Apache-2.0
"""nvJitLink from NVIDIA's wheel, through ctypes: PTX to a cubin for an architecture, without a device.

Most of a compilation is done once, on the way to PTX: this is the rest of it, for each architecture.
"""

from __future__ import annotations

import ctypes
from functools import cache

from tests.gpu.nvrtc import Use, folder_of, uses

PTX = 2
"""What is added, as nvJitLink numbers it."""


@cache
def library() -> ctypes.CDLL:
    """The library of the package nvidia-nvjitlink. Raises `AssertionError` where it is not installed."""
    folder = folder_of("lib")
    found = sorted(folder.glob("libnvJitLink.so.[0-9]*")) if folder is not None else []
    assert found, "nvJitLink is missing: pip install 'tensorbackend[cuda-check]'"
    return ctypes.CDLL(str(found[-1]))


def link_cubin(ptx: bytes, architecture: str) -> dict[str, Use]:
    """The kernels of a PTX text for an architecture, and what each takes. Raises `AssertionError` with the log."""
    linker = library()
    handle = ctypes.c_void_p()
    options = (f"-arch={architecture}".encode(), b"-Xptxas=-v", b"-verbose")
    array = (ctypes.c_char_p * len(options))(*options)
    assert linker.nvJitLinkCreate(ctypes.byref(handle), len(options), array) == 0
    try:
        failed = linker.nvJitLinkAddData(handle, PTX, ptx, len(ptx), b"kernels.ptx") or linker.nvJitLinkComplete(handle)
        assert not failed, f"{architecture}:\n{_log(linker, handle, 'Error')}"
        return uses(_log(linker, handle, "Info"))
    finally:
        linker.nvJitLinkDestroy(ctypes.byref(handle))


def _log(linker: ctypes.CDLL, handle: ctypes.c_void_p, kind: str) -> str:
    size = ctypes.c_size_t()
    assert getattr(linker, f"nvJitLinkGet{kind}LogSize")(handle, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value + 1)
    assert getattr(linker, f"nvJitLinkGet{kind}Log")(handle, text) == 0
    return text.value.decode()
