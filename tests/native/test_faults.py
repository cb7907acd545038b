# SPDX-License-Identifier: Apache-2.0
"""What users of a backend meet when something around it fails: right numbers or a clear error, and no hang."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorbackend import Backend, Tensor, testing
from tensorbackend.backends import compiler, warm, watch
from tensorbackend.errors import BackendError, CompileError
from tensorbackend.graph.plan import Plan
from tensorbackend.settings import config, using
from tests.native.conftest import FORKS

USE = """
import numpy as np
import tensorbackend as tb
be = tb.gen_backend("cpu", rng_seed=0)
host = np.arange(12, dtype=np.float32).reshape(3, 4)
x = be.array(host)
def used(factor=2.0):
    assert np.array_equal(be.evaluate(x * factor + be.sum(x, 1)).get(), host * factor + host.sum(1, keepdims=True))
"""


# The compiler


@pytest.mark.slow
def test_what_atexit_has_registered_compiles(run_python, tmp_path, cc) -> None:
    """A plan of several kernels, side by side before: then there are no new threads."""
    code = """
import atexit
def last():
    y = be.empty((3, 3))
    y[:] = be.tanh(be.dot(be.exp(x) * 0.001 + 1, be.sqrt(x).T)) + 1
    expected = np.tanh((np.exp(host) * 0.001 + 1) @ np.sqrt(host).T) + 1
    print(np.allclose(y.get(), expected, rtol=1e-5))
be = tb.Backend.allocate_backend("cpu")
x = be.array(host)
atexit.register(last)
"""
    done = run_python(USE + code, TB_CACHE=str(tmp_path / "cache"))
    assert done.stdout.split() == ["True"], done.stderr


def test_without_a_compiler_numpy_computes(run_python) -> None:
    done = run_python(USE + "used(); used(); print(be.jit)", TB_CC="/no/such/compiler")
    assert done.stdout.split() == ["False"]
    assert done.stderr.count("trees run through NumPy, which is slower") == 1
    assert "/no/such/compiler" in done.stderr


@pytest.mark.slow
def test_without_a_compiler_numpy_runs_recurrent_layers(run_python) -> None:
    """Also one that a compiled kernel would run as a whole."""
    code = """
import numpy as np
import tensorbackend as tb
from tensorbackend.conformance.test_gated import Case
be = tb.gen_backend("cpu", rng_seed=0)
case = Case("lstm", 7, 40, 18, 40)
np.testing.assert_allclose(case.forward(be)["h"].get(), case.expected().h, rtol=1e-10)
print(be.jit)
"""
    assert run_python(code, TB_CC="/no/such/compiler").stdout.split() == ["False"]


FAILURES = {
    "fails": ("echo out of order >&2; exit 3", "out of order"),
    "is killed": ("kill -9 $$", "signal 9"),
    "hangs": ("sleep 1000", "TB_COMPILE_TIMEOUT"),
    "writes nonsense": ('for last; do :; done; echo nonsense > "$last"; exit', "cannot be loaded"),
}


@pytest.mark.slow
@pytest.mark.parametrize("native", [pytest.param("0", marks=pytest.mark.ci), "1"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_compiler_that_fails_is_an_error_of_the_statement(
    run_python, imitation, tmp_path, failure: str, native: str
) -> None:
    """Its target is as it was, other statements run, and so does this one when the compiler works again.

    Only a compiler that hangs has little time, and only while it hangs: a busy machine may take seconds to compile.
    """
    script, words = FAILURES[failure]
    marker = tmp_path / "broken"
    code = f"""
import os, pathlib
from tensorbackend.settings import using
{USE}
y = be.full((3, 4), 7.0)
y[:] = x * 3
pathlib.Path({str(marker)!r}).touch()
for _ in range(2):
    try:
        with using(compile_timeout={3 if failure == "hangs" else 300}):
            y[:] = be.exp(x * 0.0) * 3 + x
    except tb.errors.CompileError as error:
        assert {words!r} in str(error), error
    else:
        raise AssertionError("it did not fail")
    assert np.array_equal(y.get(), host * 3)
    y[:] = x * 3
os.remove({str(marker)!r})
y[:] = be.exp(x * 0.0) * 3 + x
assert np.array_equal(y.get(), host + 3)
"""
    compiler = imitation(f'case "$*" in *-E*) ;; *) if [ -e {marker} ]; then {script}; fi ;; esac\nexec $real "$@"')
    run_python(code, TB_CC=compiler, TB_CACHE=str(tmp_path / "cache"), TB_NATIVE=native)


# The cache


def damage(folder: Path) -> int:
    """Truncate every other library of a cache, and write over the middle of the others; how many there were."""
    libraries = sorted(folder.glob("*.so"))
    for number, path in enumerate(libraries):
        content = path.read_bytes()
        path.unlink()
        middle = len(content) // 2
        path.write_bytes(content[:middle] + (b"tampered" + content[middle + 8 :] if number % 2 else b""))
    return len(libraries)


@pytest.mark.slow
def test_damaged_kernels_are_built_again(run_python, tmp_path, cc) -> None:
    cache = tmp_path / "cache"
    run_python(USE + "used()", TB_CACHE=str(cache))
    count = damage(cache)
    assert count >= 2
    done = run_python(USE + "used()", TB_CACHE=str(cache))
    assert done.stderr.count("is damaged") == count
    assert run_python(USE + "used()", TB_CACHE=str(cache)).stderr == ""


@pytest.mark.parametrize("variables", [{"HOME": None}, {"HOME": "/proc/nothing"}, {"TB_CACHE": "/dev/null"}], ids=str)
def test_a_cache_that_cannot_be_used_is_said_once(run_python, cc, variables: dict) -> None:
    environment = {"TB_CACHE": None, "XDG_CACHE_HOME": None, **variables}
    done = run_python(USE + "used(); used(3.0)", **environment)
    assert done.stderr.count("are lost when the process ends") == 1


@pytest.mark.slow
def test_a_read_only_cache_serves_what_it_holds(run_python, tmp_path, cc) -> None:
    cache = tmp_path / "cache"
    run_python(USE + "used()", TB_CACHE=str(cache))
    before = sorted(os.listdir(cache))
    cache.chmod(0o500)
    try:
        assert run_python(USE + "used()", TB_CACHE=str(cache), bound=True).stderr == ""
        done = run_python(USE + "used(); be.evaluate(be.tanh(x))", TB_CACHE=str(cache), bound=True)
    finally:
        cache.chmod(0o700)
    assert "Permission denied" in done.stderr
    assert sorted(os.listdir(cache)) == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cpu", "gpu:emulator"])
@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}], ids=["", "C"])
def test_folders_and_texts_hold_characters_that_the_locale_lacks(
    run_python, tmp_path, cc, kind: str, locale: dict[str, str]
) -> None:
    folder = tmp_path / "caché, 日本 \udcff"
    folder.mkdir()
    done = run_python(
        f"""
import tensorbackend as tb
be = tb.gen_backend({kind!r})
x = be.ones((2, 3))
scaled = be.elementwise("T x", "T z", "/* gr\\xf6\\xdfer */ z = x * 3", "scaled")
x[:] = be.square(scaled(x)) + be.dot(x, x.T)[:, :1]
print(x.get()[0, 0])
""",
        TB_CACHE=os.fspath(folder / "cache"),
        TMPDIR=os.fspath(folder),
        **locale,
    )
    assert done.stdout == "12.0\n"
    assert len(list((folder / "cache").glob("*.so"))) >= 3


# Processes and threads


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_backend_works_on_both_sides_of_a_fork(run_python, cc, native: str) -> None:
    """What ran before, what is new, large statements on all threads, random numbers, a grandchild."""
    code = """
big = be.ones((1000, 1000))
total = be.empty((1, 1))
def work():
    for n in range(20):
        used()
        total[:] = be.sum(big * float(n))
        assert total.get() == n * 10**6
def new():
    work()
    assert np.array_equal(be.evaluate(be.exp(x * 0) - x * os.getpid() % 1).get(), np.ones((3, 4)))
    assert be.evaluate(be.rand(shape=(3, 4))).get().min() >= 0
def child():
    new()
    assert ended_well([spawn(new)])
work()
for _ in range(5):
    pids = [spawn(child) for _ in range(2)]
    work()
    assert ended_well(pids)
"""
    run_python(FORKS + USE + code, TB_NATIVE=native, TB_THREADS="4", timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("native", ["0", "1"])
def test_a_child_forked_during_a_statement_of_another_thread_works(run_python, cc, native: str) -> None:
    """That thread holds the backend's lock, and is not there in the child."""
    code = """
import threading
big, out, y = be.ones((2000, 2000)), be.empty((2000, 2000)), be.empty((3, 4))
over = False
def statement():
    out[:] = be.tanh(be.exp(be.tanh(big)))
def keep_on():
    while not over:
        statement()
def work():
    signal.alarm(20)
    y[:] = x * 2
    assert np.array_equal(y.get(), host * 2)
    used()
    with be._lock:
        pass
for _ in range(4):
    statement()
    work()
signal.alarm(0)
thread = threading.Thread(target=keep_on)
thread.start()
good = True
for _ in range(8):
    time.sleep(0.01)
    good &= ended_well([spawn(work)])
    if not good:
        break
over = True
thread.join()
assert good
"""
    run_python(FORKS + USE + code, TB_NATIVE=native, TB_THREADS="2", PYTHONWARNINGS="ignore", timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("kind", ["cpu", "gpu:emulator"])
def test_a_child_finds_no_lock_held(run_python, cc, kind: str, native: str) -> None:
    """Whatever threads of its parent were doing that it has not."""
    code = f"""
import threading
be = tb.Backend.allocate_backend({kind!r}, rng_seed=0)
side = 2000 if be.device_type == 0 else 150
big, out, x, y = be.ones((side, side)), be.empty((side, side)), be.ones((3, 4)), be.empty((3, 4))
double = be.elementwise("T x", "T z", "z = x * 2 + 1", "doubled")
def statement():
    out[:] = be.tanh(be.exp(be.tanh(big)))
def user_kernel():
    double(big, out)
def allocations():
    [be.empty((4, 4)) for _ in range(100)]
def block():
    with tb.using(check=False):
        pass
def work():
    signal.alarm(20)
    y[:] = x * 2
    double(x, y)
    double(big, out)
    assert (y.get() == 3).all()
    with tb.using(check=True):
        y[:] = x * 3
    assert (y.get() == 3).all()
def keep_on(other):
    while not over:
        other()
sys.setswitchinterval(1e-5)
work()
for other in (statement, user_kernel, allocations, block):
    over = False
    signal.alarm(0)
    thread = threading.Thread(target=keep_on, args=(other,))
    thread.start()
    good = True
    for n in range(8):
        time.sleep(0.003 * (n % 4))
        good = good and ended_well([spawn(work)])
    over = True
    thread.join()
    assert good, other
"""
    run_python(FORKS + USE + code, TB_NATIVE=native, TB_THREADS="2", PYTHONWARNINGS="ignore", timeout=150)


@pytest.mark.slow
@pytest.mark.parametrize("native", ["0", "1"])
def test_a_child_knows_of_its_own_thread_alone(run_python, cc, native: str) -> None:
    """Blocks, records and captures of the parent's other threads have ended there; a thread of its own that has the
    place of one of those is in no fuse block."""
    code = """
import threading
from tensorbackend.backends import watch
y = be.empty((3, 4))
inside, over = threading.Barrier(4), threading.Event()
def wait():
    y[:] = x * 7
    inside.wait(20)
    over.wait(60)
def block():
    with be.fuse(), tb.using(check=True):
        wait()
threads = [threading.Thread(target=block), threading.Thread(target=be.explain, args=(wait,)),
           threading.Thread(target=be.capture, args=(wait,))]
for thread in threads:
    thread.start()
inside.wait(20)
def state():
    y[:] = x * 2
def work():
    signal.alarm(20)
    assert not watch.watching
    for _ in range(5):
        y[:] = 0
        own = threading.Thread(target=state)
        own.start()
        own.join()
        assert np.array_equal(y.get(), host * 2)
    program = be.capture(state)
    y[:] = 0
    program()
    assert np.array_equal(y.get(), host * 2)
    be.cleanup_backend()
pid = spawn(work)
good = ended_well([pid])
over.set()
for thread in threads:
    thread.join()
assert good
"""
    run_python(FORKS + USE + code, TB_NATIVE=native, TB_THREADS="2", PYTHONWARNINGS="ignore", timeout=100)


@pytest.mark.ci
def test_two_hundred_processes_start_the_engine_at_once(run_python, tmp_path, cc) -> None:
    """From an empty cache: native types, runtime and kernels are compiled by whoever comes first."""
    code = f"""
import numpy, tensorbackend
USE = {USE + "used()"!r}
reader, writer = os.pipe()
def work():
    os.close(writer)
    os.read(reader, 1)
    exec(USE, {{}})
pids = [spawn(work) for _ in range(200)]
os.close(reader)
os.close(writer)
assert ended_well(pids)
"""
    done = run_python(
        FORKS + code, TB_CACHE=str(tmp_path / "cache"), TB_THREADS="2", timeout=240, TB_COMPILE_TIMEOUT="200"
    )
    assert done.stderr == ""


@pytest.mark.ci
def test_killed_while_it_compiles_the_engine_starts_again(run_python, tmp_path, cc) -> None:
    """Forty processes that are killed a little later each, then one that is not."""
    cache = tmp_path / "cache"
    run_python(USE + "used()", TB_CACHE=str(cache))  # the native types take a second, in which all would be killed
    code = f"""
import numpy, tensorbackend
USE = {USE!r}
def work(begun):
    names = {{}}
    exec(USE, names)
    be, x = names["be"], names["x"]
    begun()
    for n in range(1000):
        y = x
        for bit in range(10):
            y = y + 1 if n >> bit & 1 else y * 2
        be.evaluate(y)
kill_later_and_later(work, 40, 0.0125)
"""
    run_python(FORKS + code, TB_CACHE=str(cache), timeout=300)
    assert any((cache / "tmp").iterdir()), "none was killed while it compiled"
    check = """
for n in range(20):
    y, expected = x, host
    for bit in range(10):
        y, expected = (y + 1, expected + 1) if n >> bit & 1 else (y * 2, expected * 2)
    assert np.array_equal(be.evaluate(y).get(), expected)
"""
    assert run_python(USE + check, TB_CACHE=str(cache)).stderr == ""


@pytest.mark.parametrize("kind", testing.backend_kinds())
def test_four_threads_compile_and_run_on_one_backend(kind: str, cache: Path) -> None:
    """The same statements at the same time, from an empty cache: all read one tensor, each writes its own."""
    backend = testing.make_backend(kind, rng_seed=0)
    host = np.random.default_rng(0).uniform(-1, 1, (64, 80)).astype(np.float32)
    shared = backend.array(host)
    failures: list[BaseException] = []
    together = threading.Barrier(4)

    def work(number: int) -> None:
        try:
            together.wait(20)
            repeat(backend, shared, host, number)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    backend.cleanup_backend()


def repeat(backend: Backend, shared: object, host: np.ndarray, number: int) -> None:
    """The statements of one thread."""
    own, rows = backend.empty(host.shape), backend.empty((64, 1))
    for step in range(50):
        scale = np.float32(number + step)
        own[:] = shared * scale + number
        rows[:] = backend.max(own - number, 1)
        assert np.array_equal(own.get(), host * scale + np.float32(number))
        np.testing.assert_allclose(rows.get(), (host * scale).max(1, keepdims=True), rtol=1e-3, atol=1e-4)
        backend.dot(own, own.T, backend.empty((64, 64)))


INTERRUPTED = tuple(
    sys.modules[name].__file__ for name in ("contextlib", *(f"tensorbackend.{part}" for part in (
        "settings", "backends.capture", "backends.launcher", "backends.statements", "backends.watch")))
)  # fmt: skip


def came_between(call: Callable[[], object], after: int, comes: Callable[[], object],
                 places: Callable[[str], bool]) -> bool:  # fmt: skip
    """Whether `comes()` was called while `call` ran: where Python looks for what to do in between the `after`th time,
    in files that are such `places`."""
    left = after

    def look(frame: Any, event: str, argument: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and places(frame.f_code.co_filename):
            left -= 1
            if not left:
                comes()

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return left <= 0


def interrupted(call: Callable[[], object], after: int) -> bool:
    """Whether an interrupt came while `call` ran, at the `after`th place in `INTERRUPTED`."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    try:
        return came_between(call, after, interrupt, INTERRUPTED.__contains__)  # True: a finalizer had it
    except KeyboardInterrupt:
        return True


def runs_from_memory(backend: Backend, statement: Callable[[], object]) -> bool:
    """Whether native code, where there is some, repeats a statement by itself."""
    memo = getattr(backend.structures, "memo", None)
    before = memo and memo.counts()[2]
    for _ in range(3):
        statement()
    return memo is None or memo.counts()[2] > before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["jit", "jit-python", "emulator"])
@pytest.mark.parametrize("what", ["block", "capture", "explanation", "using"])
def test_an_interrupt_leaves_no_block_open_and_no_statement_waiting(
    kind: str, what: str, cache: Path, cc: object
) -> None:
    backend = testing.make_backend(kind, rng_seed=0)
    x, y, z = backend.ones((3, 4)), backend.empty((3, 4)), backend.empty((3, 4))

    def block() -> None:
        with backend.fuse():
            y[:] = x * 2
            z[:] = y + 1

    def statement() -> None:
        y[:] = x * 2

    def capture() -> None:
        backend.capture(statement)

    def changed() -> None:
        with using(check=True, debug=0):
            pass

    def explanation() -> None:
        backend.explain(statement)

    call = {"block": block, "capture": capture, "explanation": explanation, "using": changed}[what]
    call()
    points = 1
    while interrupted(call, points):
        with pytest.raises(RuntimeError, match="a block ends"):
            backend.fuse().__exit__(None, None, None)
        assert not config.check and not watch.watching and not watch._recorders
        y[:] = x * 3
        z[:] = y + points
        assert (z.get() == 3 + points).all(), points
        assert kind != "jit" or runs_from_memory(backend, statement)
        points += 1
    assert points > 5 or (kind, what) == ("jit", "block")
    backend.cleanup_backend()


def test_a_failed_statement_leaves_the_backend_usable(cache, monkeypatch, imitation) -> None:
    """In one process: as above, with the compiler named by a setting."""
    backend = testing.make_backend("jit-python", rng_seed=0)
    x = backend.ones((2, 2))
    monkeypatch.setitem(config._values, "cc", imitation("exit 1"))
    with pytest.raises(CompileError, match=r"exit status 1"):
        backend.evaluate(x * 5 + 1)
    monkeypatch.undo()
    assert (backend.evaluate(x * 5 + 1).get() == 6).all()


# Finalizers


class Last:
    """In a cycle with itself and its tensors: what it does at its end is noted in `found`."""

    def __init__(self, x: Tensor, y: Tensor, found: list[float]) -> None:
        self.itself, self.x, self.y, self.found = self, x, y, found

    def __del__(self) -> None:
        others = [self.x.backend.full(self.x.shape, 9.0) for _ in range(2)]
        self.y[:] = self.x * 2
        self.found += [float(self.y.get().max()), *(float(t.get().min()) for t in others)]


@pytest.mark.parametrize("kind", [*testing.backend_kinds(), "emulator"])
def test_a_finalizer_of_a_cycle_finds_the_memory_of_its_tensors(kind: str, cc) -> None:
    """The garbage collector calls finalizers in the order of age: tensors older and younger than the object."""
    backend = testing.make_backend(kind, rng_seed=0)
    x, y = backend.full((3, 40), 3.0), backend.full((3, 40), 3.0)
    y[:] = x * 2
    found: list[float] = []
    Last(x, y, found)
    del x, y
    gc.collect()
    Last(backend.full((3, 40), 3.0), backend.full((3, 40), 3.0), found)
    gc.collect()
    assert found == [6, 9, 9] * 2
    backend.cleanup_backend()


# Statements in the middle of others, as finalizers and handlers of signals make them


class Work:
    """Tensors of one caller, and what is done with them."""

    def __init__(self, backend: Backend, factor: float) -> None:
        self.host = np.full((12, 20), factor, np.float32)
        self.x, self.y, self.z = backend.array(self.host), backend.zeros((12, 20)), backend.zeros((12, 20))
        self.places = backend.array([[int(factor)]], dtype=np.int32)
        self.factor = factor

    def results(self) -> list[float]:
        """The least and the most of what was written."""
        return [float(f(t.get())) for t in (self.y, self.z) for f in (np.min, np.max)]


def statements_in_between(backend: Backend) -> dict[str, tuple[Callable[[Work], object], Callable[[float], float]]]:
    """What is done by name, and what `y` is then."""

    def statement(work: Work) -> None:
        work.y[:] = work.x * work.x + work.factor

    def parts(work: Work) -> None:
        work.y[:] = backend.dot(backend.exp(work.x * 0), backend.ones((20, 20)) * work.x[0, 0]) + work.factor

    def picked(work: Work) -> None:
        work.y[:] = backend.take(work.x, work.places, axis=1) * work.factor

    def block(work: Work) -> None:
        with backend.fuse():
            work.y[:] = work.x * work.x
            work.z[:] = work.y + work.factor
            work.y[:] = work.z - work.x

    def called(x: Tensor, y: Tensor, factor: float) -> None:
        y[:] = x * factor + 1
        y[:] = y * factor

    found = {"statement": (statement, lambda f: f * f + f), "parts": (parts, lambda f: 21 * f),
             "picked": (picked, lambda f: f * f), "block": (block, lambda f: f * f)}  # fmt: skip
    if testing.compiles(backend):
        kernel = backend.elementwise("T x, T f", "T y", "y = x * x + f", "in_between")
        found["kernel"] = (lambda work: kernel(work.x, work.factor, work.y), lambda f: f * f + f)
    some = Work(backend, 3.0)
    program = backend.capture(called, some.x, some.y, some.factor)
    found["program"] = (lambda work: program(work.x, work.y, work.factor), lambda f: (f * f + 1) * f)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("what", ["statement", "parts", "picked", "block", "kernel", "program"])
@pytest.mark.parametrize("kind", testing.backend_kinds())
def test_a_statement_in_the_middle_of_its_like_changes_no_number(kind: str, what: str, cc) -> None:
    backend = testing.make_backend(kind, rng_seed=0)
    found = statements_in_between(backend)
    if what not in found:
        pytest.skip("user kernels are compiled")
    run, expected = found[what]
    works = [Work(backend, 2.0), Work(backend, 5.0)]
    for _ in range(4):  # until native code, or a function written for it, repeats it
        run(works[0])
        run(works[1])
    points, going_on = 0, True
    while going_on:
        points += 1
        for work in works:
            work.y.fill(0)
        going_on = came_between(lambda: run(works[0]), points, lambda: run(works[1]), is_ours)
        run(works[1])
        assert [work.results()[:2] for work in works] == [[expected(work.factor)] * 2 for work in works], points
    assert points > 5 or kind == "jit"
    backend.cleanup_backend()


@pytest.mark.parametrize("forgotten", ["before", "inside"])
@pytest.mark.parametrize("kind", ["jit", "jit-python"])
def test_what_reads_in_the_middle_of_a_block_reads_what_it_stated(kind: str, forgotten: str, cc) -> None:
    """Also where native code hands the block's statements to Python, since it forgot them."""
    backend = testing.make_backend(kind, rng_seed=0)
    x, y, z, other = backend.full((3, 4), 2.0), *(backend.zeros((3, 4)) for _ in range(3))
    read: list[float] = []

    def forget() -> None:
        if kind == "jit":
            backend.structures.memo.clear()

    def block() -> None:
        with backend.fuse():
            y[:] = x * 3
            z[:] = y + x
            if forgotten == "inside":
                forget()

    def between() -> None:
        other[:] = x * 7 + 1
        read.append(float(other.get().min()))

    for _ in range(3):
        block()
        between()
    points, going_on = 0, True
    while going_on:
        points += 1
        for t in (y, z, other):
            t.fill(0)
        if forgotten == "before":
            forget()
        read.clear()
        going_on = came_between(block, points, between, is_ours)
        assert read == [15] * going_on, points
        assert (y.get() == 6).all() and (z.get() == 8).all(), points
        block()
    assert points > 5
    backend.cleanup_backend()


@pytest.mark.parametrize("kind", testing.backend_kinds())
def test_an_interrupted_program_forgets_the_arguments_of_that_call(kind: str, cc) -> None:
    backend = testing.make_backend(kind, rng_seed=0)
    pairs = [(backend.full((3, 4), factor), backend.empty((3, 4))) for factor in (2.0, 5.0)]

    def step(x: Tensor, y: Tensor) -> None:
        y[:] = x * x + 1

    def interrupt() -> None:
        raise KeyboardInterrupt

    program = backend.capture(step, *pairs[0])
    points, going_on = 0, True
    while going_on:
        points += 1
        program(*pairs[0])
        with contextlib.suppress(KeyboardInterrupt):
            going_on = came_between(partial(program, *pairs[1]), points, interrupt, is_ours)
        for _, y in pairs:
            y.fill(0)
        for x, y in pairs:
            program(x, y)
            assert (y.get() == x.get() ** 2 + 1).all(), points
    assert points > 5
    backend.cleanup_backend()


def is_ours(file: str) -> bool:
    """Whether a file is of the package, or made while it runs."""
    return "/tensorbackend/" in file or file == "<string>"


@pytest.mark.parametrize("kind", testing.backend_kinds())
def test_draws_in_the_middle_of_others_are_others(kind: str, cc) -> None:
    backend = testing.make_backend(kind, rng_seed=0)
    y, z = backend.empty((3, 4)), backend.empty((3, 4))

    def draw(t: Tensor) -> None:
        t[:] = backend.rand()

    program = backend.capture(draw, y)
    for call in (draw, program):
        points = 1
        while came_between(partial(call, y), points, partial(draw, z), is_ours):
            assert not np.array_equal(y.get(), z.get()), points
            points += 1
    backend.cleanup_backend()


# Settings that change meanwhile


@pytest.fixture
def flags_of_compilers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The setting `cflags` as each compilation finds it. Where the list is empty, another thread changes it first. At
    the end it is as it was."""
    found = ["not yet"]
    compiled, before = compiler.compile_many, config.cflags

    def compile_many(*arguments: Any, **keywords: Any) -> Any:
        if not found:
            threading.Thread(target=setattr, args=(config, "cflags", "-DOTHER")).start()
            while config._values["cflags"] != "-DOTHER":
                time.sleep(0.001)
        found.append(config.cflags)
        return compiled(*arguments, **keywords)

    monkeypatch.setattr(compiler, "compile_many", compile_many)
    yield found
    config.cflags = before


@pytest.mark.parametrize("what", ["statement", "block", "kernel"])
def test_what_is_being_compiled_keeps_to_the_settings_of_its_caller(cache, flags_of_compilers, what: str) -> None:
    """And what comes next, to those of then: nothing that was begun before is remembered."""
    backend = testing.make_backend("jit-python", rng_seed=0)
    x, y = backend.full((3, 4), 2.0), backend.empty((3, 4))
    flags_of_compilers.clear()
    kernel = backend.elementwise("T x", "T y", "y = x * 3 + 1", "compiled_meanwhile")

    def block() -> None:
        with backend.fuse():
            y[:] = x * 3 + 1

    runs = {"statement": lambda: y._assign(x * 3 + 1), "block": block, "kernel": lambda: kernel(x, y)}
    before = config.cflags
    for flags in (before, "-DOTHER"):
        runs[what]()
        assert (y.get() == 7).all()
        assert set(flags_of_compilers) == {flags}
        flags_of_compilers.clear()
        flags_of_compilers.append("-DOTHER")  # so that nothing is changed again
    backend.cleanup_backend()


def test_a_plan_found_while_settings_change_is_not_remembered(cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a handler of a signal may change them, in the thread that holds the backend's lock."""
    backend = testing.make_backend("jit-python", rng_seed=0)
    x, y = backend.ones((3, 4)), backend.empty((3, 4))
    find, before = warm.find, config.tune
    y[:] = x * 5
    backend._forget_plans()

    def found(name: str) -> Any:
        result = find(name)
        config.tune = not before
        return result

    try:
        monkeypatch.setattr(warm, "find", found)
        y[:] = x * 5
        assert config.tune != before
        assert not any(isinstance(plan, Plan) for plan in backend.structures.plans.values())
    finally:
        config.tune = before
    backend.cleanup_backend()


# A backend that is closed meanwhile


@pytest.mark.parametrize("what", ["statement", "block", "program"])
@pytest.mark.parametrize("kind", [*testing.backend_kinds(), "emulator"])
def test_a_backend_is_closed_when_what_other_threads_have_begun_has_ended(kind: str, what: str, cc) -> None:
    backend = testing.make_backend(kind, rng_seed=0)
    x, y = backend.full((3, 4), 2.0), backend.empty((3, 4))
    begun, goes_on, run_planned = threading.Event(), threading.Event(), backend._run_planned

    def statement() -> None:
        y[:] = x * 3 + 1

    def block() -> None:
        with backend.fuse():
            statement()

    program = backend.capture(statement) if what == "program" else None
    call = {"statement": statement, "block": block, "program": program}[what]

    def waits(*arguments: Any) -> None:
        begun.set()
        goes_on.wait(20)
        if program is None:
            run_planned(*arguments)

    if program is None:
        backend._run_planned = waits
    else:
        program._runs.insert(0, waits)
        program._replay = None
    threads = [threading.Thread(target=call), threading.Thread(target=backend.cleanup_backend)]
    threads[0].start()
    assert begun.wait(20)
    threads[1].start()
    threads[1].join(0.05)
    assert not backend.closed and threads[1].is_alive()
    goes_on.set()
    for thread in threads:
        thread.join(20)
    assert backend.closed
    assert (y.get() == 7).all()


@pytest.mark.parametrize("what", ["statement", "block", "program", "kernel"])
@pytest.mark.parametrize("kind", ["jit", "jit-python"])
def test_what_waits_while_a_backend_is_closed_is_refused(kind: str, what: str, cc) -> None:
    """A thread waits for its turn, and another one closes the backend in its own."""
    backend = testing.make_backend(kind, rng_seed=0)
    x, y = backend.full((300, 400), 2.0), backend.zeros((300, 400))

    def statement() -> None:
        y[:] = x * 3 + 1

    def block() -> None:
        with backend.fuse():
            statement()

    kernel = backend.elementwise("T x", "T y", "y = x * 3 + 1", "closed_meanwhile")
    call = {"statement": statement, "block": block, "program": backend.capture(statement),
            "kernel": lambda: kernel(x, y)}[what]  # fmt: skip
    for _ in range(4):
        call()
    y.fill(0)
    refused: list[BaseException] = []

    def refuses() -> None:
        try:
            call()
        except BackendError as error:
            refused.append(error)

    thread = threading.Thread(target=refuses)
    with backend._lock:
        thread.start()
        thread.join(0.05)
        backend.cleanup_backend()
    thread.join(20)
    assert len(refused) == 1 and "closed" in str(refused[0])
    assert (y.get() == 0).all()


def test_without_a_compiler_of_cpp_the_emulator_says_so(run_python, imitation, tmp_path) -> None:
    """As where Debian's gcc is installed and g++ is not."""
    script = 'case "$*" in *"-x c++"*) echo "cannot execute cc1plus" >&2; exit 1 ;; esac\nexec $real "$@"'
    code = """
import tensorbackend as tb
try:
    tb.gen_backend("gpu:emulator")
except tb.CompileError as error:
    print(error)
"""
    said = run_python(code, TB_CC=imitation(script), TB_CACHE=str(tmp_path / "cache")).stdout
    assert "cannot execute cc1plus" in said and "install g++" in said.splitlines()[-1]
