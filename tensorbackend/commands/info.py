# SPDX-License-Identifier: Apache-2.0
"""`info`: the machine, the compiler, devices, the cache, settings, and what is missing. It fits a bug report."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tensorbackend import bench
from tensorbackend.backends import disk_cache, toolchain
from tensorbackend.backends.base import Backend
from tensorbackend.commands.cache import size
from tensorbackend.settings import SETTINGS, config

__all__ = ["add", "run"]

FEATURES = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "amx_tile",
            "amx_bf16", "neon", "asimd", "asimdhp", "bf16", "sve", "sve2")  # fmt: skip
"""CPU features that make a difference to kernels."""
DRIVERS = {"cupy": "pip install 'cupy-cuda13x[ctk]'", "pycuda": "pip install pycuda"}
LIBRARIES = {
    "tqdm": "progress bars", "matplotlib": "plots of benchmarks", "sklearn": "data of the examples",
    "numexpr": "a rival in benchmarks", "numba": "a rival in benchmarks", "torch": "a rival in benchmarks",
    "jax": "a rival in benchmarks", "mpi4py": "training in several processes", "safetensors": "files of that format",
}  # fmt: skip
PACKAGES = {"sklearn": "scikit-learn", "mpi4py": "mpi4py mpich"}
NVIDIA = Path("/proc/driver/nvidia/version")


def add(commands: argparse._SubParsersAction) -> None:
    """Describe the command."""
    text = "Show the machine, compiler, devices, cache and settings, and what is missing. Paste it into bug reports."
    commands.add_parser("info", help="machine, compiler, devices, cache, settings, what is missing", description=text)


def run(options: argparse.Namespace) -> Iterator[str]:
    """The report, section by section."""
    sections = {
        "tensorbackend": _versions(), "machine": _machine(), "compiler": _compilers(), "backends": _backends(),
        "cache": _cache(), "settings": _settings(), "missing": _missing(),
    }  # fmt: skip
    for name, rows in sections.items():
        yield name
        width = max((len(label) for label, _ in rows), default=0)
        yield from (f"  {label:<{width}}  {text}".rstrip() for label, text in rows)
        yield ""


Rows = list[tuple[str, str]]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed as a package"


def _versions() -> Rows:
    own = importlib.import_module("tensorbackend")
    return [
        ("version", f"{own.__version__} in {Path(own.__file__).parent}"),
        ("python", f"{platform.python_version()} ({platform.python_implementation()})"),
        ("numpy", _version("numpy")),
        ("ml_dtypes", _version("ml_dtypes")),
    ]


def _machine() -> Rows:
    facts = bench.machine(threads=0)
    found = set(re.findall(r"\w+", toolchain.cpu_features()))
    return [
        ("cpu", facts["cpu"]),
        ("features", " ".join(name for name in FEATURES if name in found) or "unknown"),
        ("cores", f"{facts['allowed_cores']} of {facts['cores']} may be used"),
        ("memory", _memory()),
        ("system", f"{facts['system']} {facts['machine']}"),
        ("load", f"{facts['load']} processes on average in the last minute"),
    ]


def _memory() -> str:
    if not hasattr(os, "sysconf"):
        return "unknown"
    return size(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _compilers() -> Rows:
    c_plus_plus = next(filter(None, map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))), None)
    return [
        ("C", toolchain.compiler_status()),
        ("C++", c_plus_plus or "none: GPU kernels cannot run in the emulator"),
    ]


def _backends() -> Rows:
    rows = [("names", ", ".join(Backend.backend_choices()))]
    device = NVIDIA.read_text().partition("\n")[0] if NVIDIA.is_file() else "none"
    rows.append(("NVIDIA driver", device))
    return rows + [(name, _driver(name)) for name in DRIVERS]


def _driver(name: str) -> str:
    """Whether a Python package for CUDA can be imported here; importing it starts no device."""
    if importlib.util.find_spec(name) is None:
        return "not installed"
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  whatever another package raises, the report goes on
        return f"installed, but cannot be imported: {error}"
    return str(getattr(module, "__version__", None) or getattr(module, "VERSION_TEXT", "installed"))


def _cache() -> Rows:
    caches = disk_cache.cache_for_reading()
    if not caches:
        return [("folder", "none can be used: see the warning above; set TB_CACHE")]
    rows = []
    for cache in caches:
        entries = cache.entries()
        held = f"{len(entries)} kernels, {size(sum(e.size for e in entries))} of at most {size(cache.limit)}"
        rows += [("folder", str(cache.folder)), ("holds", held)]
    return rows


def _settings() -> Rows:
    changed = [s for s in SETTINGS.values() if getattr(config, s.name) != s.default]
    rows = [(s.variable, f"{getattr(config, s.name)!r} (default {s.default!r})") for s in changed]
    return rows or [("all", "as by default; docs/settings.md lists them")]


def _missing() -> Rows:
    rows = []
    if toolchain.find_compiler() is None:
        rows.append(("C compiler", "trees run through NumPy, slower; on Debian: apt-get install gcc libc6-dev"))
    if NVIDIA.is_file() and not any(importlib.util.find_spec(name) for name in DRIVERS):
        rows += [(name, f"the GPU; {command}") for name, command in DRIVERS.items()]
    for name, use in LIBRARIES.items():
        if importlib.util.find_spec(name) is None:
            rows.append((name, f"{use}; pip install {PACKAGES.get(name, name)}"))
    return rows or [("nothing", "")]
