# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the native runtime's tests: an empty cache, a compiler to imitate, Python in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorbackend import Backend, testing
from tensorbackend.backends import compiler, disk_cache, toolchain, warm
from tensorbackend.settings import config

ROOT = Path(__file__).resolve().parents[2]
FORKS = """
import os, signal, sys, time, traceback
def spawn(work, *arguments):
    pid = os.fork()
    if pid == 0:
        try:
            work(*arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid
def ended_well(pids):
    return all([os.waitpid(pid, 0)[1] == 0 for pid in pids])
def kill_later_and_later(work, count, step):
    for attempt in range(count):
        reader, writer = os.pipe()
        pid = spawn(work, lambda: os.write(writer, b"."))
        if attempt % 2:
            os.read(reader, 1)
        time.sleep(step * attempt)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)
"""
"""What programs that fork begin with.

`kill_later_and_later` counts the time of every other process from when its work calls what it is given: on a busy
machine all would be killed before they begin.
"""


@pytest.fixture(scope="session")
def cc(absent: Callable[[str, str], None]) -> toolchain.Compiler:
    """The C compiler; the test is skipped when there is none."""
    found = compiler.find_compiler()
    if found is None:
        absent("cc", compiler.compiler_status())
    return found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cc: toolchain.Compiler) -> Path:
    """An empty cache folder, of a process that has loaded nothing."""
    folder = tmp_path / "cache"
    monkeypatch.setitem(config._values, "cache", str(folder))
    forget_loaded(monkeypatch)
    return folder


def forget_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process look at its caches anew."""
    monkeypatch.setattr(compiler, "_loaded", {})
    monkeypatch.setattr(disk_cache, "_shared", {})
    monkeypatch.setattr(disk_cache, "_unusable", set())
    warm.forget()


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """`forget()`: as in a new process, nothing is loaded and no folder has been looked at."""
    return lambda: forget_loaded(monkeypatch)


def as_plain_user() -> list[str]:
    """A prefix for a command that takes root's power over files away; the test is skipped when that cannot be done."""
    if os.geteuid() != 0:
        return []
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    if shutil.which("setpriv") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("root is bound by no rights, and setpriv cannot change that here")
    return prefix


@pytest.fixture
def be(cc) -> Iterator[Backend]:
    """A backend of its own with native types."""
    made = testing.make_backend("jit", rng_seed=0)
    assert made._native is not None, "the native types are switched off or could not be built"
    yield made
    made.cleanup_backend()


@pytest.fixture
def plain(cc) -> Iterator[Backend]:
    """A backend that compiles, without native types."""
    made = testing.make_backend("jit-python", rng_seed=0)
    assert made._native is None
    yield made
    made.cleanup_backend()


RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """`run_python(code, timeout=180, check=True, bound=False, **environment)`: Python in a process of its own.

    Its kernel cache is that of the tests unless the environment says otherwise; a variable of None is unset. If
    `bound`, the rights of files bind it even where the tests run as root.
    """

    def run(code: str, *, timeout: float = 180, check: bool = True, bound: bool = False, **environment: str | None):
        defaults = {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
        merged = {**os.environ, **defaults, **environment}
        kept = {name: value for name, value in merged.items() if value is not None}
        command = [*(as_plain_user() if bound else []), sys.executable, "-c", code]
        done = subprocess.run(command, env=kept, timeout=timeout, capture_output=True, text=True, cwd=tmp_path)
        if check and done.returncode != 0:
            pytest.fail(f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run


@pytest.fixture
def imitation(tmp_path: Path, cc: toolchain.Compiler) -> Callable[[str], str]:
    """`imitation(script)`: a program that answers `--version` as the compiler does and otherwise runs a script."""

    def make(script: str) -> str:
        path = tmp_path / "imitation-cc"
        real = " ".join(cc.command)
        path.write_text(f'#!/bin/sh\nreal="{real}"\ncase "$*" in --version) exec $real --version ;; esac\n{script}\n')
        path.chmod(0o755)
        return str(path)

    return make
