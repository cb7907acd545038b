# SPDX-License-Identifier: Apache-2.0
"""Which CUDA devices there are, asked of the NVIDIA driver itself: no package is needed, no device is started."""

from __future__ import annotations

import ctypes
import logging

from tensorbackend.errors import BackendError, complain

__all__ = ["ensure_gpu_capability", "get_compute_capability", "get_device_count", "nvidia_driver"]

LEAST_CAPABILITY = 3.0
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76
"""The driver's numbers of these attributes of a device."""

_log = logging.getLogger("tensorbackend")


def nvidia_driver() -> ctypes.CDLL | str:
    """The NVIDIA driver's library, ready; or why there is none."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return str(error)
    status = library.cuInit(0)
    return f"cuInit gives {status}" if status else library


def get_device_count(verbose: bool = False) -> int:
    """The number of CUDA devices, 0 without an NVIDIA driver. `verbose` logs what was found."""
    library, count = nvidia_driver(), ctypes.c_int(0)
    if not isinstance(library, str):
        library.cuDeviceGetCount(ctypes.byref(count))
    if verbose:
        _log.warning("%d CUDA devices%s", count.value, f": {library}" if isinstance(library, str) else "")
    return count.value


def get_compute_capability(device_id: int | None = None, verbose: bool = False) -> float:
    """A device's compute capability, such as 9.0 (None: the highest of all devices); 0 where there is no such device.

    `verbose` logs it.
    """
    devices = range(get_device_count())
    chosen = devices if device_id is None else [d for d in devices if d == device_id]
    found = max((_capability(d) for d in chosen), default=0.0)
    if verbose:
        _log.warning("compute capability of device %s: %s", "any" if device_id is None else device_id, found)
    return found


def _capability(device: int) -> float:
    library, handle = nvidia_driver(), ctypes.c_int()
    library.cuDeviceGet(ctypes.byref(handle), device)
    parts = []
    for attribute in (CAPABILITY_MAJOR, CAPABILITY_MINOR):
        value = ctypes.c_int()
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        parts.append(value.value)
    return parts[0] + parts[1] / 10


def ensure_gpu_capability(device_id: int) -> None:
    """Raise `BackendError`, a `RuntimeError`, when there is no such device or its compute capability is below 3.0."""
    found = get_compute_capability(device_id)
    if found < LEAST_CAPABILITY:
        given = f"device {device_id}: {found or 'none'}"
        hint = "another device_id; without a device: gen_backend('gpu:emulator')"
        raise BackendError(complain("compute capability too low", given, f"{LEAST_CAPABILITY} or more", hint))
