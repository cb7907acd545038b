# SPDX-License-Identifier: Apache-2.0
"""Finding a compiler, keys, compiling alone and together, and what failures look like."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tensorbackend.backends import ahead, compiler, jit, pipeline, programs, toolchain
from tensorbackend.errors import CompileError
from tensorbackend.settings import config, using

ANSWER = "long answer(void) { return %d; }\n"


def call(library: compiler.Library, name: str = "answer") -> int:
    """What the function `name` returns."""
    function = library.function(name)
    function.restype = ctypes.c_long
    return function()


def process_is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds: float = 30) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


# Finding --------------------------------------------------------------------------------------------------------------


def test_importing_starts_no_process(run_python):
    run_python(
        """
import sys
def hook(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"):
        raise SystemExit(f"{event} {arguments}")
sys.addaudithook(hook)
import tensorbackend.backends.compiler, tensorbackend.backends.native, tensorbackend.backends.probes
"""
    )


def test_compiler_knows_its_family_version_and_flags(cc):
    assert cc.family in ("gcc", "clang")
    assert any(character.isdigit() for character in cc.version)
    assert "-ffp-contract=off" in cc.flags
    assert not any("fast-math" in flag or "finite-math" in flag for flag in cc.flags)
    assert cc.version in compiler.compiler_status()


def test_tb_cc_is_taken_at_its_word(monkeypatch, cc):
    monkeypatch.setitem(config._values, "cc", "no-such-compiler")
    assert compiler.find_compiler() is None
    assert "TB_CC: no-such-compiler is not on PATH" in compiler.compiler_status()


def test_tb_cc_may_have_arguments(monkeypatch, cc, cache):
    monkeypatch.setitem(config._values, "cc", f"{cc.command[0]} -DANSWER=42")
    assert call(compiler.compile_source("long answer(void) { return ANSWER; }\n")) == 42


def test_cc_comes_before_the_path(monkeypatch, imitation):
    monkeypatch.setitem(config._values, "cc", None)
    monkeypatch.setenv("CC", imitation("exit 1"))
    assert compiler.find_compiler().command[0].endswith("imitation-cc")


def test_cc_that_does_not_work_is_passed_over(monkeypatch, cc):
    monkeypatch.setitem(config._values, "cc", None)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert compiler.find_compiler() is not None


def test_settings_that_lack_a_quotation_mark_are_named(monkeypatch, cc, cache):
    with monkeypatch.context() as one:
        one.setitem(config._values, "cc", '"gcc')
        assert compiler.find_compiler() is None
        assert 'TB_CC: "gcc is not on PATH' in compiler.compiler_status()
    with monkeypatch.context() as one:
        one.setitem(config._values, "cc", None)
        one.setenv("CC", '"gcc')
        assert compiler.find_compiler() is not None
    monkeypatch.setitem(config._values, "cflags", '-DNAME="x')
    with pytest.raises(CompileError, match="TB_CFLAGS: cannot be read[\\s\\S]*No closing quotation"):
        compiler.compile_source(ANSWER % 1)


def test_program_that_is_no_c_compiler_is_refused(monkeypatch):
    monkeypatch.setitem(config._values, "cc", "true")
    assert compiler.find_compiler() is None
    assert "neither gcc nor clang" in compiler.compiler_status()


def test_program_that_answers_in_no_text_is_refused(monkeypatch, tmp_path):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nprintf '\\377\\376'\n")
    program.chmod(0o755)
    monkeypatch.setitem(config._values, "cc", str(program))
    assert compiler.find_compiler() is None
    assert "neither gcc nor clang" in compiler.compiler_status()


def test_no_compiler_at_all_is_explained(monkeypatch, tmp_path):
    monkeypatch.setitem(config._values, "cc", None)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    assert compiler.find_compiler() is None
    for part in ("cc: cc is not on PATH", "gcc", "clang", "TB_CC", "pip install ziglang"):
        assert part in compiler.compiler_status()
    with pytest.raises(CompileError, match="no C compiler"):
        compiler.compile_source(ANSWER % 1)


def test_ziglang_is_the_last_candidate(monkeypatch, cc):
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: object() if name == "ziglang" else None)
    candidates = list(toolchain._candidates(None, "mycc"))
    assert [origin for origin, _ in candidates] == ["CC", "cc", "gcc", "clang", "ziglang"]
    assert candidates[-1][1] == [sys.executable, "-m", "ziglang", "cc"]


@pytest.mark.parametrize(
    "machine, wanted",
    [
        ("x86_64", {"-march=native", "-mprefer-vector-width=512"}),
        ("aarch64", {"-mcpu=native", "-mno-outline-atomics"}),  # kernels have no libgcc to call
        ("riscv64", set()),  # whose compilers know neither
    ],
)
def test_flags_follow_the_machine(monkeypatch, machine, wanted):
    monkeypatch.setattr(toolchain.platform, "machine", lambda: machine)
    for family in ("gcc", "clang"):
        assert {f for f in toolchain._kernel_flags(family, zig=False) if f.startswith("-m")} == wanted


# Keys -----------------------------------------------------------------------------------------------------------------


def test_key_depends_on_source_flags_and_switches(monkeypatch, cc):
    key = compiler.kernel_key
    keys = [key("a"), key("b"), key("a", flags=["-O1"]), key("a", sanitize=True), key("a", libc=True)]
    monkeypatch.setitem(config._values, "cflags", "-DX")
    keys.append(key("a"))
    monkeypatch.setattr(toolchain, "cpu_features", lambda: "another CPU")
    monkeypatch.setattr(compiler, "cpu_features", lambda: "another CPU")
    compiler._common_digest.cache_clear()
    keys.append(key("a"))
    compiler._common_digest.cache_clear()
    assert len(set(keys)) == len(keys)
    assert all(len(k) == 64 for k in keys)


def test_key_follows_the_contents_of_headers(monkeypatch, tmp_path, cc):
    folder = tmp_path / "c"
    folder.mkdir()
    monkeypatch.setattr(compiler, "kernel_dir", lambda: tmp_path)
    source = '  #  include "outer.h"\nint x;\n'
    (folder / "outer.h").write_text('#include "inner.h"\n#include "outer.h"\n')
    (folder / "inner.h").write_text("#define A 1\n")
    before = compiler.kernel_key(source)
    assert compiler.kernel_key(source) == before
    (folder / "outer.h").write_text('#include "inner.h"\n#include "outer.h"\n#define B\n')
    changed_outer = compiler.kernel_key(source)
    assert changed_outer != before


@pytest.mark.slow
def test_key_follows_headers_that_headers_include(run_python, tmp_path, cc):
    code = """
from pathlib import Path
from tensorbackend.backends import compiler
compiler.kernel_dir = lambda: Path({!r})
print(compiler.kernel_key('#include "outer.h"'))
"""
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "outer.h").write_text('#include "inner.h"\n')
    keys = []
    for text in ("#define A 1\n", "#define A 2\n"):
        (tmp_path / "c" / "inner.h").write_text(text)
        keys.append(run_python(code.format(str(tmp_path))).stdout)
    assert keys[0] != keys[1]


def test_key_follows_headers_in_a_folder_of_their_own(monkeypatch, tmp_path, cc):
    folder = tmp_path / "kernels" / "c"
    (folder / "parts").mkdir(parents=True)
    (folder / "outer.h").write_text('#include "parts/middle.h"\n')
    (folder / "parts" / "middle.h").write_text('#include "inner.h"\n#include "../outer.h"\n')
    monkeypatch.setattr(compiler, "kernel_dir", lambda: tmp_path / "kernels")
    found = set()
    for text in ("int a;\n", "int b;\n"):
        (folder / "parts" / "inner.h").write_text(text)
        compiler._read_header.cache_clear()
        found.add(compiler._header_digest("outer.h"))
    assert len(found) == 2


def test_missing_header_is_left_to_the_compiler(cache):
    with pytest.raises(CompileError, match=r"no-such-header\.h"):
        compiler.compile_source('#include "no-such-header.h"\n')


# Compiling ------------------------------------------------------------------------------------------------------------


def test_compiled_once_then_loaded(cache, monkeypatch, forget):
    first = compiler.compile_source(ANSWER % 7)
    assert call(first) == 7
    assert compiler.compile_source(ANSWER % 7) is first
    forget()
    monkeypatch.setattr(compiler, "_run_compiler", None)  # from here on a compiler would be an error
    assert call(compiler.load(first.key)) == 7
    assert first.source_path.read_text() == ANSWER % 7


def test_load_of_an_unknown_key_gives_none(cache):
    assert compiler.load("0" * 64) is None


@pytest.mark.parametrize("cores", [1, 3, 100])
@pytest.mark.parametrize("merge", [False, True], ids=["apart", "merged"])
def test_several_are_compiled_in_order(cache, merge, cores, monkeypatch):
    monkeypatch.setattr(compiler, "allowed_cores", lambda: cores)
    sources = [f"long answer{n}(void) {{ return {n}; }}\n" for n in range(7)]
    libraries = compiler.compile_many([*sources, sources[3]], merge=merge)
    assert [call(library, f"answer{n}") for n, library in enumerate(libraries[:-1])] == list(range(7))
    assert libraries[-1] is libraries[3]


def test_merged_kernels_share_a_file_and_load_each_by_its_key(cache, forget, monkeypatch):
    monkeypatch.setattr(compiler, "allowed_cores", lambda: 1)
    sources = [f"long answer{n}(void) {{ return {n}; }}\n" for n in range(4)]
    libraries = compiler.compile_many(sources, merge=True)
    assert len({os.stat(library.path).st_ino for library in libraries}) == 2
    forget()
    assert call(compiler.load(libraries[2].key), "answer2") == 2


def test_merged_unit_with_clashing_names_is_taken_apart(cache):
    sources = [f"static long help(void) {{ return {n}; }}\nlong answer(void) {{ return help(); }}\n" for n in range(4)]
    assert [call(library) for library in compiler.compile_many(sources, merge=True)] == list(range(4))


def test_bad_source_among_good_ones_leaves_the_good_in_the_cache(cache, forget):
    sources = [ANSWER % 1, "long answer(void) { return nothing; }\n", ANSWER % 3]
    with pytest.raises(CompileError, match="nothing"):
        compiler.compile_many(sources)
    forget()
    assert call(compiler.load(compiler.kernel_key(sources[2]))) == 3


def test_at_most_two_compilers_run_at_once(cache, monkeypatch):
    running, most, lock = 0, 0, threading.Lock()
    run = compiler._run_compiler

    def counted(*arguments):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        try:
            return run(*arguments)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(compiler, "_run_compiler", counted)
    threads = [
        threading.Thread(target=compiler.compile_many, args=([ANSWER % (10 * t + n) for n in range(4)],))
        for t in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2


def test_kernel_calls_its_own_function_not_a_namesake(cache):
    compiler.compile_source("long shared_name(void) { return 1; }\n", flags=["-DA"])
    other = compiler.compile_source(
        "long shared_name(void) { return 2; }\nlong answer(void) { return shared_name(); }\n"
    )
    assert call(other) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo out of order >&2; exit 3", r"(?s)exit status 3\) on the kernel headers\n  command .*\n  message   out"),
        ("sleep 1000", r"kernel headers: .*timed out after 1\.0 seconds \(setting TB_COMPILE_TIMEOUT\)"),
        ("exec kill -9 $$", "exit status -9"),
    ],
)
def test_a_preprocessor_that_fails_is_an_error(imitation, script: str, words: str) -> None:
    with using(cc=imitation(script), compile_timeout=1), pytest.raises(CompileError, match=words):
        jit._expander()("")


def test_a_preprocessor_that_cannot_be_started_is_an_error(imitation) -> None:
    path = imitation("exit 0")
    with using(cc=path):
        expand = jit._expander()
        Path(path).unlink()
        with pytest.raises(CompileError, match="kernel headers: .*No such file"):
            expand("")


def test_source_is_expanded_only_when_it_is_compiled(cache, forget):
    calls = []

    def expand(source: str) -> str:
        calls.append(source)
        return source.replace("ANSWER", "42")

    source = "long answer(void) { return ANSWER; }\n"
    for _ in range(2):
        library = compiler.compile_many([source], expander=lambda: expand)[0]
        assert call(library) == 42
        forget()
    assert calls == [source]
    assert library.key == compiler.kernel_key(source)
    assert "return 42" in library.source_path.read_text()


def test_cflags_are_added(cache, monkeypatch):
    monkeypatch.setitem(config._values, "cflags", "-DANSWER='40 + 2'")
    assert call(compiler.compile_source("long answer(void) { return ANSWER; }\n")) == 42


def test_optimization_at_link_time_keeps_functions(cache, monkeypatch):
    """Then it is the linker that compiles."""
    monkeypatch.setitem(config._values, "cflags", "-flto")
    try:
        library = compiler.compile_source(ANSWER % 42)
    except CompileError as error:
        pytest.skip(f"the compiler has no -flto: {error}")
    assert call(library) == 42


def test_kernels_round_each_operation(cache):
    # Contracted to a fused multiply-add, the result would be the rounding error of the product, not 0.
    source = "float probe(float a, float b, float c) { return a * b + c; }\n"
    function = compiler.compile_source(source).function("probe")
    function.restype = ctypes.c_float
    function.argtypes = [ctypes.c_float] * 3
    a = 1 + 2**-12
    rounded = 1 + 2**-11
    assert function(a, a, -rounded) == 0


@pytest.mark.slow
def test_forked_child_compiles_while_the_parent_does(run_python, cc):
    run_python(
        """
import os, threading
from tensorbackend.backends import compiler
sources = [f"int f{n}(void) {{ return {n}; }}" for n in range(8)]
t = threading.Thread(target=compiler.compile_many, args=(sources,))
t.start()
children = []
while t.is_alive() and len(children) < 20:
    pid = os.fork()
    if pid == 0:
        compiler.compile_source(f"int g(void) {{ return {len(children)}; }}")
        os._exit(0)
    children.append(pid)
    t.join(0.02)
assert children
assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * len(children)
t.join()
"""
    )


def test_forked_child_does_not_wait_for_the_timer_of_its_parent(cache):
    compiler.compile_source(ANSWER % 1)
    with ahead._timer.finished._cond:  # as the timer's own thread does for a moment
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            compiler.compile_source(ANSWER % 2)
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_program_that_says_nothing_is_stopped(monkeypatch):
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)
            started.append(self)

    monkeypatch.setattr(programs.subprocess, "Popen", Popen)
    with pytest.raises(subprocess.TimeoutExpired):
        programs.ask(["sleep", "600"], 0.1)
    (process,) = started
    assert process.returncode == -signal.SIGKILL


def test_no_child_is_forked_while_a_compiler_is_started(cache, monkeypatch):
    # It would hold on to the pipe of the compiler's messages, which then never end.
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *arguments, **keywords):
            started.append(programs.starting.now._is_owned())
            super().__init__(*arguments, **keywords)

    monkeypatch.setattr(programs.subprocess, "Popen", Popen)
    toolchain._search.cache_clear()
    pipeline._steps.cache_clear()
    compiler.compile_source(ANSWER % 1)
    compiler.compile_source(ANSWER % 2, libc=True)
    assert set(started) == {True}
    held = threading.Event()

    def hold():
        with programs.starting.now:
            held.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    before = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os._exit(programs.starting.now._is_owned())
    assert time.monotonic() - before >= 0.25
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("module, name", [(programs.subprocess, "Popen"), (ahead.threading, "Timer")])
def test_a_finalizer_compiles_while_a_compiler_is_started(cache, monkeypatch, module, name):
    # In the thread that holds the locks, that of the folder too, which sources share.
    made, begun = getattr(module, name), []

    def lock_of(number):
        return int(compiler._key(ANSWER % number, toolchain.Options(()))[:2], 16) % 16

    other = next(number for number in range(2, 1000) if lock_of(number) == lock_of(1))

    def make(*arguments, **keywords):
        begun.append(name)
        if len(begun) == 1:
            assert call(compiler.compile_source(ANSWER % other)) == other
        return made(*arguments, **keywords)

    def hang(*ignored):
        raise AssertionError("it waits for itself")

    compiler.compile_source(ANSWER % 0)  # so that the compiler is known
    monkeypatch.setattr(module, name, make)
    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(20)
    try:
        assert call(compiler.compile_source(ANSWER % 1)) == 1
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert len(begun) > 1


# Failures -------------------------------------------------------------------------------------------------------------


def test_rejected_source_is_shown_and_kept(cache):
    source = "int good;\n\nint bad(void)\n{\n    return undefined_name;\n}\n\nint after;\n\nint far_away;\n"
    with pytest.raises(CompileError) as caught:
        compiler.compile_source(source)
    text = str(caught.value)
    assert text.startswith("the C compiler failed (exit status 1)\n  command   ")
    assert ">    5      return undefined_name;" in text
    assert "     3  int bad(void)" in text
    assert "far_away" not in text
    assert "'undefined_name' undeclared" in text
    kept = Path(text.partition("kept      ")[2].partition("\n")[0])
    assert kept.read_text() == source
    assert "TB_JIT=0" in text


def test_command_of_the_error_repeats_the_failure(cache, tmp_path):
    with pytest.raises(CompileError) as caught:
        compiler.compile_source("int bad(void) { return undefined_name; }\n")
    command = str(caught.value).partition("command   ")[2].partition("\n")[0]
    again = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 1
    assert "undefined_name" in again.stderr


def test_endless_message_is_shortened(cache):
    with pytest.raises(CompileError) as caught:
        compiler.compile_source("".join(f"int f{n}(void) {{ return nothing{n}; }}\n" for n in range(200)))
    assert len(str(caught.value).splitlines()) < 90
    assert "more lines" in str(caught.value)


def test_failing_compiler_names_its_status_and_words(cache, monkeypatch, imitation):
    monkeypatch.setitem(config._values, "cc", imitation("echo out of order >&2; exit 3"))
    with pytest.raises(CompileError, match=r"(?s)failed \(exit status 3\).*message   out of order"):
        compiler.compile_source(ANSWER % 1)


def test_killed_compiler_names_the_signal(cache, monkeypatch, imitation):
    monkeypatch.setitem(config._values, "cc", imitation("kill -9 $$"))
    with pytest.raises(CompileError, match="stopped by signal 9"):
        compiler.compile_source(ANSWER % 1)


def test_compiler_that_succeeds_without_output_is_a_failure(cache, monkeypatch, imitation):
    monkeypatch.setitem(config._values, "cc", imitation("exit 0"))
    with pytest.raises(CompileError, match="wrote no library"):
        compiler.compile_source(ANSWER % 1)


def test_output_that_is_no_library_is_reported(cache, monkeypatch, imitation):
    monkeypatch.setitem(config._values, "cc", imitation('for last; do :; done; echo nonsense > "$last"'))
    with pytest.raises(CompileError, match="cannot be loaded"):
        compiler.compile_source(ANSWER % 1)


@pytest.mark.slow
def test_hanging_compiler_is_stopped_with_its_children(cache, monkeypatch, imitation, tmp_path):
    pid_file = tmp_path / "pid"
    monkeypatch.setitem(config._values, "cc", imitation(f"sleep 1000 & echo $! > {pid_file}; wait"))
    monkeypatch.setitem(config._values, "compile_timeout", 3.0)  # for the shell to begin on a busy machine
    started = time.monotonic()
    with pytest.raises(CompileError, match=r"did not finish in 3 s and was stopped \(setting TB_COMPILE_TIMEOUT\)"):
        compiler.compile_source(ANSWER % 1)
    assert time.monotonic() - started < 60
    child = int(pid_file.read_text())
    assert wait_until(lambda: not process_is_alive(child))


@pytest.mark.slow
def test_interrupt_stops_the_compiler(cache, imitation, tmp_path):
    pid_file = tmp_path / "pid"
    code = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from tensorbackend.backends import compiler
compiler.compile_source("int x;")
"""
    script = f"sleep 1000 & echo $! > {pid_file}.new; mv {pid_file}.new {pid_file}; wait"
    environment = {**os.environ, "TB_CC": imitation(script), "TB_CACHE": str(cache), "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE)
    assert wait_until(pid_file.exists)
    time.sleep(0.3)  # until Python, too, knows that the compiler runs
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in process.communicate(timeout=20)[1]
    child = int(pid_file.read_text())
    assert wait_until(lambda: not process_is_alive(child))


def test_missing_function_names_the_source(cache):
    library = compiler.compile_source(ANSWER % 1)
    with pytest.raises(CompileError, match=rf"{library.key}\.c has no function 'question'"):
        library.address("question")


def test_a_compiler_that_cannot_be_started_is_no_matter_of_the_disk(cache, monkeypatch, imitation, caplog):
    path = Path(imitation('exec $real "$@"'))
    monkeypatch.setitem(config._values, "cc", str(path))
    assert call(compiler.compile_source(ANSWER % 1)) == 1
    path.unlink()
    with pytest.raises(CompileError, match=rf"cannot be started: .*{path.name}.*\n  command   {path}"):
        compiler.compile_source(ANSWER % 2)
    assert not caplog.records
    assert not list((cache / "tmp").iterdir())
    path = Path(imitation('exec $real "$@"'))
    assert cache in compiler.compile_source(ANSWER % 2).path.parents


def test_full_disk_moves_to_the_temporary_folder(cache, monkeypatch, imitation, caplog):
    marker = cache.parent / "full"
    marker.touch()
    fail_once = f'if [ -e {marker} ]; then rm {marker}; echo "ld: final link: No space left on device"; exit 1; fi'
    monkeypatch.setitem(config._values, "cc", imitation(f'{fail_once}\nexec $real "$@"'))
    with caplog.at_level(logging.WARNING):
        library = compiler.compile_source(ANSWER % 5)
        compiler.compile_source(ANSWER % 6)
    assert call(library) == 5
    assert cache not in library.path.parents
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "No space left on device" in caplog.text


@pytest.mark.slow
def test_sanitizers_find_what_a_kernel_does_wrong(run_python, cc):
    code = """
import ctypes
from tensorbackend.backends import compiler
source = "int read(int *p, long i) { return p[i]; }"
function = compiler.compile_source(source, sanitize=True).function("read")
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
block = libc.malloc(ctypes.c_size_t(64))
function(ctypes.c_void_p(block), ctypes.c_long(15))
print("inside", flush=True)
function(ctypes.c_void_p(block), ctypes.c_long(16))
"""
    libraries = compiler.sanitizer_libraries()
    if not all(Path(path).is_absolute() for path in libraries):
        pytest.skip(f"the compiler has no sanitizer libraries ({' '.join(libraries)})")
    done = run_python(code, check=False, LD_PRELOAD=" ".join(libraries), ASAN_OPTIONS="detect_leaks=0")
    assert "inside" in done.stdout
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


@pytest.mark.slow
def test_sanitizers_that_are_not_loaded_are_an_error_not_the_end(run_python, cc):
    code = """
import tensorbackend as tb
be = tb.gen_backend("cpu")
x = be.ones((2, 3))
with tb.using(sanitize=True):
    try:
        x[:] = be.exp(x)
    except tb.CompileError as error:
        print(error)
x[:] = be.exp(x)
"""
    said = run_python(code).stdout
    assert "TB_SANITIZE" in said
    assert f"LD_PRELOAD='{' '.join(compiler.sanitizer_libraries())}'" in said
    assert "TB_SANITIZE" in run_python("import tensorbackend as tb; tb.gen_backend('cpu').ones((2, 3))", check=False,
                                       TB_SANITIZE="1").stderr  # fmt: skip


def test_other_compilers_of_this_machine_compile_kernels(cache, monkeypatch):
    for name in ("gcc", "clang"):
        if shutil.which(name):
            monkeypatch.setitem(config._values, "cc", name)
            assert compiler.find_compiler().family == name
            assert call(compiler.compile_source(ANSWER % 9)) == 9
