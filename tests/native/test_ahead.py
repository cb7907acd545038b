# SPDX-License-Identifier: Apache-2.0
"""Compilers that are started ahead: which one compiles, and that none is left over, whatever ends or forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorbackend.backends import ahead, compiler, pipeline
from tensorbackend.backends.toolchain import Options
from tensorbackend.errors import CompileError
from tensorbackend.settings import config

ANSWER = "long answer(void) { return %d; }\n"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def begun(cache: Path, cc, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ahead.Waiting]]:
    """The compilers that are started to wait; none waits when the test begins, or after it."""
    if pipeline.pipeline(cc.arguments(Options()), cache, cache, dict(os.environ)) is None:
        pytest.skip("only gcc's steps are run without its driver")
    found: list[ahead.Waiting] = []

    class Waiting(ahead.Waiting):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            found.append(self)

    ahead.drop_all()
    monkeypatch.setattr(ahead, "PATIENCE", 60.0)  # on a machine however busy
    monkeypatch.setattr(ahead, "Waiting", Waiting)
    yield found
    ahead.drop_all()


def answer(number: int, **options) -> int:
    """What a newly compiled function returns."""
    return compiler.compile_source(ANSWER % number, **options).function("answer")()


def until(true: Callable[[], bool], seconds: float = 20) -> bool:
    """Wait until something is true. Returns whether it came true."""
    give_up = time.monotonic() + seconds
    while not true() and time.monotonic() < give_up:
        time.sleep(0.01)
    return true()


def test_none_waits_where_there_are_no_new_threads(begun, monkeypatch) -> None:
    """As at the end of the interpreter, since Python 3.12."""
    def refuse(self) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(ahead.threading.Timer, "start", refuse)
    assert answer(100) == 100
    assert [compiler.process.poll() is None for compiler in begun] == [False, False]
    assert not ahead._kept


def test_the_next_kernel_is_compiled_by_what_waited(begun) -> None:
    assert answer(1) == 1
    first, second = begun
    assert first.process.returncode == 0
    assert second.process.poll() is None
    assert answer(2) == 2
    assert len(begun) == 3
    assert second.process.returncode == 0
    assert begun[2].process.poll() is None


def test_other_flags_have_a_compiler_of_their_own(begun) -> None:
    assert answer(1) == 1
    assert answer(2, flags=("-DOTHER",)) == 2
    assert len(begun) == 4
    assert begun[1].process.poll() is None


def test_what_waits_in_vain_ends(begun, cache, monkeypatch) -> None:
    monkeypatch.setattr(ahead, "PATIENCE", 0.05)
    assert answer(1) == 1
    assert until(lambda: begun[1].process.returncode is not None)
    assert until(lambda: not list((cache / "tmp").iterdir()))
    assert answer(2) == 2


def test_a_timer_that_comes_late_ends_none_that_began_since(begun, monkeypatch) -> None:
    monkeypatch.setattr(ahead, "PATIENCE", 0.0)
    monkeypatch.setattr(ahead.threading.Timer, "run", lambda self: self.finished.wait() and self.function())
    assert answer(1) == 1
    late = ahead._timer
    assert answer(2) == 2
    assert late is not ahead._timer
    late.join(20)
    assert not late.is_alive() and begun[2].process.poll() is None
    ahead.drop_all()
    assert ahead._timer is None


def test_steps_that_cannot_be_started_are_the_compilers(begun, cache, monkeypatch) -> None:
    started = ahead.subprocess.Popen

    def refuse(command, **options):
        if command[0] == "/bin/sh":
            raise BlockingIOError("too many processes")
        return started(command, **options)

    monkeypatch.setattr(ahead.subprocess, "Popen", refuse)
    assert answer(1) == 1
    assert not begun and not list((cache / "tmp").iterdir())


def test_a_compiler_that_died_while_it_waited_is_made_up_for(begun) -> None:
    assert answer(1) == 1
    os.killpg(begun[1].process.pid, signal.SIGKILL)
    begun[1].process.wait()
    assert answer(2) == 2
    assert answer(3) == 3


def test_a_folder_that_vanished_is_made_up_for(begun, cache) -> None:
    assert answer(1) == 1
    subprocess.run(["rm", "-r", cache], check=True)
    assert answer(2) == 2


def test_a_refused_source_is_reported_as_by_the_compiler(begun, cache) -> None:
    assert answer(1) == 1
    with pytest.raises(CompileError, match="undeclared") as caught:
        compiler.compile_source("long bad(void) { return nothing; }\n")
    assert "stdin" not in str(caught.value)
    assert answer(2) == 2


@pytest.mark.slow
def test_a_compiler_that_hangs_is_stopped(begun, monkeypatch) -> None:
    assert answer(1) == 1
    os.killpg(begun[1].process.pid, signal.SIGSTOP)
    monkeypatch.setitem(config._values, "compile_timeout", 8.0)  # it holds for the compiler that takes over, too
    started = time.monotonic()
    assert answer(2) == 2
    assert time.monotonic() - started >= 8
    assert begun[1].process.returncode == -signal.SIGKILL


def test_a_folder_for_it_that_cannot_be_made_is_done_without(begun, monkeypatch) -> None:
    assert answer(1) == 1

    def full(*arguments):
        raise OSError("No space left on device")

    monkeypatch.setattr(ahead, "Waiting", full)
    assert answer(2) == 2


def test_a_forked_child_does_not_keep_its_input_open(begun) -> None:
    assert answer(1) == 1
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        started = time.monotonic()
        assert answer(2) == 2
        assert begun[1].process.returncode == 0
        assert time.monotonic() - started < 30
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_forked_child_leaves_it_to_its_parent(begun) -> None:
    assert answer(1) == 1
    child = os.fork()
    if child == 0:
        ahead.drop_all()
        os._exit(answer(3) if begun[1].process.stdout.closed else 1)
    assert os.waitpid(child, 0)[1] >> 8 == 3
    assert begun[1].process.poll() is None
    assert begun[1].folder.exists()
    assert answer(2) == 2


CODE = """
import sys
from tensorbackend.backends import ahead, compiler
compiler.compile_source("int x;")
(waiting,) = ahead._kept.values()
print(waiting.process.pid, flush=True)
"""


def test_the_end_of_the_process_ends_it(begun, run_python, tmp_path) -> None:
    folder = tmp_path / "another"
    pid = int(run_python(CODE, TB_CACHE=str(folder)).stdout)
    assert not list((folder / "tmp").iterdir())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.slow
def test_a_killed_process_ends_it(begun, tmp_path) -> None:
    environment = {**os.environ, "TB_CACHE": str(tmp_path / "another"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CODE + "sys.stdin.read()"]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pid = int(process.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    process.kill()
    process.communicate()
    assert until(lambda: not Path(f"/proc/{pid}").exists())
