# SPDX-License-Identifier: Apache-2.0
"""The engine's tests again, with every kernel compiled under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorbackend.backends import compiler

ROOT = Path(__file__).resolve().parents[2]
HOURS = 2


def environment(cache: Path) -> dict[str, str]:
    """In which kernels are sanitized, and statements launched by Python, whose native types are not."""
    libraries = compiler.sanitizer_libraries()
    if not all(Path(path).is_absolute() for path in libraries):
        pytest.skip(f"the compiler has no sanitizer libraries ({' '.join(libraries)})")
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:handle_segv=0",  # Python's own leaks; faulthandler reports crashes
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TB_SANITIZE": "1",
        "TB_NATIVE": "0",
        "TB_CACHE": str(cache),
        "TB_COMPILE_TIMEOUT": "600",
        "TB_TEST_PROFILE": "everyday",
        "PYTHONPATH": str(ROOT),
    }


@pytest.mark.long
def test_the_engine_s_tests_pass_under_the_sanitizers(cc, tmp_path) -> None:
    """A finding ends the process of a test, which then counts as failed."""
    cache = tmp_path / "kernels"
    options = ["-n", "2", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "tests/engine", "tensorbackend/conformance", *options]
    with open(tmp_path / "log", "w+b") as log:
        done = subprocess.run(
            [*command, "-k", "not interpreter and not emulator"],
            cwd=ROOT,
            env=environment(cache),
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=HOURS * 3600,
        )
        log.seek(0)
        said = log.read().decode(errors="replace")
    assert done.returncode == 0, said[-20_000:]
    for finding in ("ERROR: AddressSanitizer", "runtime error:"):
        assert finding not in said
    libraries = list(cache.glob("*.so"))
    assert len(libraries) > 1000
    assert b"__asan_report" in libraries[0].read_bytes()
