# SPDX-License-Identifier: Apache-2.0
"""The engine's tests again, with kernels and native types compiled under the address and undefined-behaviour
sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorbackend.backends import compiler

ROOT = Path(__file__).resolve().parents[2]
HOURS = 2


def environment(cache: Path, native: str) -> dict[str, str]:
    """In which kernels and native types are sanitized; with these, Python's memory is watched too."""
    libraries = compiler.sanitizer_libraries()
    if not all(Path(path).is_absolute() for path in libraries):
        pytest.skip(f"the compiler has no sanitizer libraries ({' '.join(libraries)})")
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0",  # Python's own leaks; faulthandler reports crashes
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TB_SANITIZE": "1",
        "TB_NATIVE": native,
        **({"PYTHONMALLOC": "malloc"} if native == "1" else {}),
        "TB_CACHE": str(cache),
        "TB_COMPILE_TIMEOUT": "600",
        "TB_TEST_PROFILE": "everyday",
        "PYTHONPATH": str(ROOT),
    }


def pass_sanitized(tests: list[str], unless: str, native: str, folder: Path) -> list[Path]:
    """Run tests; a finding ends the process of one, which then counts as failed. Returns the libraries made."""
    cache = folder / "kernels"
    command = [sys.executable, "-m", "pytest", *tests, "-n", "2", "-q", "-p", "no:cacheprovider"]
    with open(folder / "log", "w+b") as log:
        done = subprocess.run(
            [*command, "-k", unless],
            cwd=ROOT,
            env=environment(cache, native),
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=HOURS * 3600,
        )
        log.seek(0)
        said = log.read().decode(errors="replace")
    assert done.returncode == 0, said[-20_000:]
    for finding in ("ERROR: AddressSanitizer", "runtime error:"):
        assert finding not in said
    return list(cache.glob("*.so"))


@pytest.mark.long
def test_the_engine_s_tests_pass_under_the_sanitizers(cc, tmp_path) -> None:
    libraries = pass_sanitized(
        ["tests/engine", "tensorbackend/conformance"], "not interpreter and not emulator", "0", tmp_path
    )
    assert len(libraries) > 1000
    assert b"__asan_report" in libraries[0].read_bytes()


@pytest.mark.long
def test_the_native_types_tests_pass_under_the_sanitizers(cc, tmp_path) -> None:
    """But for one that measures memory, and one whose kernels take minutes to compile so."""
    tests = [str(path.relative_to(ROOT)) for path in (ROOT / "tests/native").glob("test_launcher*.py")]
    libraries = pass_sanitized(tests, "not million and not more_nodes", "1", tmp_path)
    assert any(b"tb_launcher_start" in x and b"__asan_report" in x for x in map(Path.read_bytes, libraries))
