# SPDX-License-Identifier: Apache-2.0
"""The folder of compiled kernels: damage, rights, absence, bounds, leftovers, and many processes at once."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tensorbackend.backends import ahead, compiler, disk_cache, temporary
from tensorbackend.settings import using
from tests.native.conftest import FORKS

SOURCE = "long answer(void) { return 42; }\n"
USE = """
import ctypes, logging
from tensorbackend.backends import compiler
library = compiler.compile_source("long answer(void) { return 42; }")
assert library.function("answer")() == 42
print(library.path)
"""
NOBODY = 65534


def answer(library: compiler.Library) -> int:
    """What its function returns."""
    function = library.function("answer")
    function.restype = ctypes.c_long
    return function()


def entries(folder: Path) -> list[Path]:
    """The libraries in a cache."""
    return sorted(folder.glob("*.so"))


# Entries --------------------------------------------------------------------------------------------------------------


def test_folder_is_private_and_keeps_source_beside_library(cache):
    library = compiler.compile_source(SOURCE)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert library.path == cache / f"{library.key}.so"
    assert library.source_path.read_text() == SOURCE
    ahead.drop_all()
    assert list((cache / "tmp").iterdir()) == []


def damage_end(content: bytes) -> bytes:
    return content[:-1]


def damage_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def damage_everything(content: bytes) -> bytes:
    return b""


def damage_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def damage_addition(content: bytes) -> bytes:
    return content + b"\0"


def damage_zeros(content: bytes) -> bytes:
    return bytes(len(content))


DAMAGES = [damage_end, damage_half, damage_everything, damage_bit, damage_addition, damage_zeros]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_is_noticed_and_built_again(cache, forget, caplog, damage):
    path = compiler.compile_source(SOURCE).path
    good = path.read_bytes()
    path.unlink()  # the loaded library keeps its file
    path.write_bytes(damage(good))
    forget()
    assert compiler.load(compiler.kernel_key(SOURCE)) is None
    assert not path.exists()
    assert "damaged" in caplog.text
    assert answer(compiler.compile_source(SOURCE)) == 42
    assert len(path.read_bytes()) == len(good)


def test_entry_removed_by_another_program_is_built_again(cache, forget):
    compiler.compile_source(SOURCE).path.unlink()
    forget()
    assert answer(compiler.compile_source(SOURCE)) == 42


def test_removed_folder_is_made_again(cache, forget, caplog):
    compiler.compile_source(SOURCE)
    subprocess.run(["rm", "-r", cache], check=True)
    other = SOURCE.replace("42", "43")
    assert compiler.compile_source(other).path.parent == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert not caplog.records


# Which folder ---------------------------------------------------------------------------------------------------------


def where(run_python, tmp_path, bound: bool = False, **environment: str | None) -> tuple[Path, str]:
    """The folder of the entry that a process with this environment makes, and what it warned of."""
    temporary = tmp_path / "temporary"
    temporary.mkdir(exist_ok=True)
    done = run_python(USE, bound=bound, TMPDIR=str(temporary), **environment)
    return Path(done.stdout.strip()).parent, done.stderr


@pytest.mark.slow
def test_folder_comes_from_the_environment(run_python, tmp_path, cc):
    home, xdg, own = (str(tmp_path / name) for name in ("home", "xdg", "own"))
    common = {"HOME": home, "XDG_CACHE_HOME": xdg}
    assert where(run_python, tmp_path, TB_CACHE=own, **common) == (Path(own), "")
    assert where(run_python, tmp_path, TB_CACHE=None, **common) == (Path(xdg, "tensorbackend"), "")
    found = where(run_python, tmp_path, TB_CACHE=None, HOME=home, XDG_CACHE_HOME="relative/is/ignored")
    assert found == (Path(home, ".cache", "tensorbackend"), "")


def check_private(found: tuple[Path, str], tmp_path: Path, reason: str) -> None:
    """The entry lies in the temporary folder, one warning says why, and the folder is gone with the process."""
    folder, warning = found
    assert folder.parent == tmp_path / "temporary"
    assert folder.name.startswith("tensorbackend-")
    assert warning.count("tensorbackend: ") == 1
    assert reason in warning
    assert not folder.exists()


def test_no_home_uses_a_temporary_folder(run_python, tmp_path, cc):
    found = where(run_python, tmp_path, TB_CACHE=None, XDG_CACHE_HOME=None, HOME=None)
    check_private(found, tmp_path, "there is no HOME for the kernel cache (set HOME or TB_CACHE)")


def test_folder_that_cannot_be_made_is_replaced(run_python, tmp_path, cc):
    (tmp_path / "file").write_text("")
    found = where(run_python, tmp_path, TB_CACHE=str(tmp_path / "file" / "cache"))
    check_private(found, tmp_path, "cannot be made (File exists); set TB_CACHE to a folder of yours")


def test_file_in_place_of_the_folder_is_refused(run_python, tmp_path, cc):
    (tmp_path / "file").write_text("")
    check_private(where(run_python, tmp_path, TB_CACHE=str(tmp_path / "file")), tmp_path, "is not a folder")


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777], ids=oct)
def test_folder_that_others_can_write_is_refused(run_python, tmp_path, cc, mode):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    found = where(run_python, tmp_path, TB_CACHE=str(folder))
    check_private(found, tmp_path, f"can be written by others (mode {mode:04o}); run: chmod 700 {folder}")
    assert entries(folder) == []


def test_planted_entry_of_an_open_folder_is_not_loaded(cache, forget, caplog):
    library = compiler.compile_source(SOURCE)
    cache.chmod(0o777)
    forget()
    assert compiler.load(library.key) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to someone else")
def test_folder_of_someone_else_is_refused(run_python, tmp_path, cc):
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    found = where(run_python, tmp_path, TB_CACHE=str(folder))
    check_private(found, tmp_path, f"belongs to user {NOBODY}, not to you (0)")


@pytest.mark.slow
def test_read_only_folder_serves_its_entries_and_takes_none(run_python, tmp_path, cc):
    folder = tmp_path / "mine"
    assert where(run_python, tmp_path, bound=True, TB_CACHE=str(folder)) == (folder, "")
    folder.chmod(0o500)
    assert where(run_python, tmp_path, bound=True, TB_CACHE=str(folder)) == (folder, "")
    found = where(run_python, tmp_path, bound=True, TB_CACHE=str(folder), TB_CFLAGS="-DNEW")
    check_private(found, tmp_path, "the kernel cache cannot be written ([Errno 13] Permission denied")


def test_home_that_cannot_be_written_uses_a_temporary_folder(run_python, tmp_path, cc):
    home = tmp_path / "home"
    home.mkdir(mode=0o555)
    found = where(run_python, tmp_path, bound=True, TB_CACHE=None, XDG_CACHE_HOME=None, HOME=str(home))
    check_private(found, tmp_path, "cannot be made (Permission denied)")


def test_nowhere_to_write_is_an_error_that_says_so(cache, monkeypatch):
    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_cache.tempfile, "mkdtemp", full)
    with pytest.raises(
        compiler.CompileError, match=r"cannot be written anywhere: .*No space left.*set TMPDIR or TB_CACHE"
    ):
        compiler.compile_source(SOURCE)


def test_memory_is_the_last_resort(cache, monkeypatch):
    make, tried = disk_cache.tempfile.mkdtemp, []

    def only_in_memory(prefix, dir=None):
        tried.append(dir)
        if dir != "/dev/shm" and "/dev/shm" not in str(dir):
            raise OSError(28, "No space left on device")
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr(disk_cache, "_private", {})
    monkeypatch.setattr(disk_cache.tempfile, "mkdtemp", only_in_memory)
    assert answer(compiler.compile_source(SOURCE)) == 42
    assert tried[:3] == [cache / "tmp", None, "/dev/shm"]


def test_temporary_folder_without_room_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(disk_cache.tempfile, "tempdir", str(tmp_path))
    write = Path.write_bytes

    def write_unless_full(path, content):
        if tmp_path in path.parents:
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", write_unless_full)
    folder = disk_cache._temporary_folder()
    assert tmp_path not in folder.parents
    assert list(tmp_path.iterdir()) == []
    shutil.rmtree(folder)


def test_forked_child_does_not_remove_the_parents_temporary_folder(run_python, cc):
    run_python(
        """
import os, sys, subprocess
from tensorbackend.backends import compiler
path = compiler.compile_source("long answer(void) { return 42; }").path
pid = os.fork()
if pid == 0:
    assert compiler.compile_source("int other;").path.parent != path.parent
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert path.exists()
""",
        TB_CACHE=None,
        XDG_CACHE_HOME=None,
        HOME=None,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "left"), [("pass", 0, 0), ("os.kill(os.getpid(), signal.SIGKILL)", -9, 1)], ids=["ends", "killed"]
)
def test_children_leave_no_temporary_folder(run_python, tmp_path, cc, end, status, left):
    files = tmp_path / "files"
    files.mkdir()
    run_python(
        f"""
import multiprocessing, os, signal
from tensorbackend.backends import compiler
def work():
    compiler.compile_source("int other;")
    {end}
folder = compiler.compile_source("int one;").path.parent
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
assert child.exitcode == {status}, child.exitcode
assert len(list(folder.glob("tensorbackend-*"))) == {left}
""",
        TB_CACHE=None,
        XDG_CACHE_HOME=None,
        HOME=None,
        TMPDIR=str(files),
    )
    assert not list(files.iterdir())


def test_child_that_outlives_its_parent_makes_another_temporary_folder(run_python, tmp_path, cc):
    run_python(
        """
import os, shutil, sys
from tensorbackend.backends import compiler
path = compiler.compile_source("int one;").path
pid = os.fork()
if pid == 0:
    assert compiler.compile_source("int two;").path.parent.parent == path.parent
    shutil.rmtree(path.parent)
    assert compiler.compile_source("int three;").path.is_file()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
""",
        TB_CACHE=None,
        XDG_CACHE_HOME=None,
        HOME=None,
        TMPDIR=str(tmp_path),
    )
    assert not list(tmp_path.glob("tensorbackend-*"))


@pytest.mark.slow
def test_temporary_folders_of_killed_processes_are_removed(run_python, tmp_path, cc):
    make = """
import os, signal
from tensorbackend.backends.temporary import temporary_folder
folder = temporary_folder()
(folder / "content").mkdir()
print(folder, flush=True)
"""
    ways = {"ended": "", "fresh": "", "killed": "os.kill(os.getpid(), signal.SIGKILL)"}
    folders = {
        name: Path(run_python(make + way, check=False, TMPDIR=str(tmp_path)).stdout.strip())
        for name, way in ways.items()
    }
    (other := tmp_path / "tensorbackend-other").mkdir()  # whose maker locks nothing
    own = temporary.temporary_folder(tmp_path)
    for folder in (folders["ended"], folders["killed"], own):
        os.utime(folder / temporary.LOCK, (0, 0))
    new = temporary.temporary_folder(tmp_path)
    assert set(tmp_path.iterdir()) == {folders["fresh"], other, own, new}


# Bounds and leftovers -------------------------------------------------------------------------------------------------


def store(cache: disk_cache.DiskCache, key: str, size: int, used: float) -> None:
    """An entry of about `size` bytes, last used at `used`."""
    with cache.workspace() as folder:
        (folder / "library").write_bytes(bytes(size))
        (folder / "source").write_text(key)
        cache.put_source(key, folder / "source")
        os.utime(cache.folder / f"{key}.c", (used, used))
        path = cache.put([key], folder / "library")[0]
    os.utime(path, (used, used))


def test_least_recently_used_entries_go_first(tmp_path):
    cache = disk_cache.DiskCache(tmp_path / "small", limit=100_000)
    now = time.time()
    keys = [f"{n:064x}" for n in range(20)]
    for number, key in enumerate(keys):
        store(cache, key, 9_000, now - 10_000 * (100 - number))
        if number > 2:
            cache.get(keys[0])  # in constant use
    left = {path.stem for path in entries(cache.folder)}
    assert sum(path.stat().st_size for path in cache.folder.glob("*.*")) <= 100_000
    assert len(left) >= 8
    assert left == {keys[0], *keys[-(len(left) - 1) :]}
    assert {path.stem for path in cache.folder.glob("*.c")} == left
    kept = cache.entries()
    assert [entry.key for entry in kept] == [keys[0], *sorted(left - {keys[0]}, reverse=True)]
    assert sum(entry.size for entry in kept) == sum(path.stat().st_size for path in cache.folder.glob("*.*"))


def test_the_setting_bounds_a_cache(tmp_path):
    cache = disk_cache.DiskCache(tmp_path / "small")
    with using(cache_limit=1):
        for number in range(12):
            store(cache, f"{number:064x}", 150_000, time.time() - 10_000 * (100 - number))
        assert 4 <= len(entries(cache.folder)) <= 6
    store(cache, "f" * 64, 600_000, time.time())
    assert len(entries(cache.folder)) >= 5


def test_libraries_that_are_compiled_together_may_be_more_than_the_folder_holds(cache):
    sources = [f"char big[{200_000 + n}] = {{1}}; long answer(void) {{ return sizeof big; }}\n" for n in range(8)]
    with using(cache_limit=1):  # for those that compile for this thread, too
        assert [answer(library) for library in compiler.compile_many(sources)] == [200_000 + n for n in range(8)]
    assert len(entries(cache)) < 6


def test_shared_files_count_once(tmp_path):
    cache = disk_cache.DiskCache(tmp_path / "small", limit=100_000)
    keys = [f"{n:064x}" for n in range(20)]
    with cache.workspace() as folder:
        (folder / "library").write_bytes(bytes(50_000))
        cache.put(keys, folder / "library")
    store(cache, "f" * 64, 45_000, time.time())
    assert len(entries(cache.folder)) == 21


def test_file_system_without_links_gets_copies(tmp_path, monkeypatch):
    def no_links(*arguments):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(disk_cache.os, "link", no_links)
    cache = disk_cache.DiskCache(tmp_path / "small")
    with cache.workspace() as folder:
        (folder / "library").write_bytes(b"x" * 100)
        cache.put(["a" * 64, "b" * 64], folder / "library")
    assert cache.get("a" * 64) is not None and cache.get("b" * 64) is not None


def test_wrong_total_is_found_out(tmp_path):
    cache = disk_cache.DiskCache(tmp_path / "small", limit=100_000)
    store(cache, "a" * 64, 10_000, time.time())
    for wrong in (b"nonsense", b"", b"%20d\n" % 10**12):
        (cache.folder / "lock-size").write_bytes(wrong)
        store(cache, "b" * 64, 10_000, time.time())
        assert 20_000 < int((cache.folder / "lock-size").read_text()) < 35_000
        assert cache.get("a" * 64) is not None


def test_use_is_noted_but_not_at_every_load(cache, forget):
    path = compiler.compile_source(SOURCE).path
    for age, noted in ((60, False), (7200, True)):
        long_ago = time.time() - age
        os.utime(path, (long_ago, long_ago))
        forget()
        compiler.load(compiler.kernel_key(SOURCE))
        assert (time.time() - path.stat().st_mtime < 30) == noted


def test_leftovers_of_killed_processes_are_removed_later(cache):
    old, new = cache / "tmp" / "tb-compile-1-old", cache / "tmp" / "tb-compile-1-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "library.so").write_bytes(b"half of a librar")
    cache.chmod(0o700)
    long_ago = time.time() - 2 * disk_cache.TEMPORARY_LIFETIME
    os.utime(old, (long_ago, long_ago))
    compiler.compile_source(SOURCE)
    assert not old.exists()
    assert new.exists()


def test_files_of_others_in_the_folder_are_left_alone(tmp_path):
    """Whoever names a folder of his own as TB_CACHE keeps what he has there: sources, libraries, a `tmp`."""
    cache = disk_cache.DiskCache(tmp_path / "project", limit=100_000)
    (cache.folder / "tmp" / "2024-notes").mkdir(parents=True, mode=0o700)
    others = [cache.folder / name for name in ("main.c", "libmine.so", "abc.def.c", "tmp/2024-notes/a.txt")]
    long_ago = time.time() - 2 * disk_cache.TEMPORARY_LIFETIME
    for path in others:
        path.write_bytes(bytes(50_000))
        os.utime(path, (long_ago, long_ago))
    os.utime(cache.folder / "tmp" / "2024-notes", (long_ago, long_ago))
    for n in range(4):
        store(cache, f"{n:064x}", 40_000, time.time() - 100 + n)
    assert 1 <= len(cache.entries()) <= 2
    cache.clear()
    assert not cache.entries()
    assert all(path.exists() for path in others)


def test_file_locks_are_a_help_not_a_need(cache, monkeypatch):
    import fcntl

    def no_locks(*arguments):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert answer(compiler.compile_source(SOURCE)) == 42


def test_waiting_for_another_process_ends(cache, monkeypatch):
    import fcntl

    compiler.compile_source("int other;")
    monkeypatch.setattr(compiler, "PATIENCE", 0.2)
    key = compiler.kernel_key(SOURCE)
    lock = os.open(cache / f"lock-{int(key[:2], 16) % 16:02d}", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    started = time.monotonic()
    assert answer(compiler.compile_source(SOURCE)) == 42
    assert 0.2 <= time.monotonic() - started < 30
    os.close(lock)


def test_lock_is_free_after_the_block_though_a_child_has_inherited_it(tmp_path):
    cache = disk_cache.DiskCache(tmp_path)
    key = "0" * 64
    reader, writer = os.pipe()
    with cache.turn(key, patience=1):
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    started = time.monotonic()
    with cache.turn(key, patience=60):
        waited = time.monotonic() - started
    os.close(writer)
    os.close(reader)
    os.waitpid(pid, 0)
    assert waited < 30


# Processes ------------------------------------------------------------------------------------------------------------

COMPILING_FORKS = f"""{FORKS}
import numpy
from tensorbackend.backends import compiler
from tensorbackend.backends.disk_cache import DiskCache
def at_once(count, work):
    reader, writer = os.pipe()
    def wait_and_work(number):
        os.close(writer)
        os.read(reader, 1)
        work(number)
    pids = [spawn(wait_and_work, number) for number in range(count)]
    os.close(reader)
    os.close(writer)
    return ended_well(pids)
"""
COMPILE_THREE = """
def work(number):
    for n in range(3):
        library = compiler.compile_source(f"long answer(void) {{ return {n}; }}")
        assert library.function("answer")() == n
"""


def counting_compiler(imitation, tmp_path: Path) -> str:
    """A compiler that adds a line to `tmp_path/runs` for each run."""
    return imitation(f'echo run >> {tmp_path}/runs; exec $real "$@"')


def test_processes_compile_the_same_kernels_once(run_python, cache, imitation, tmp_path):
    run_python(
        COMPILING_FORKS + COMPILE_THREE + "assert at_once(10, work)",
        TB_CACHE=str(cache),
        TB_CC=counting_compiler(imitation, tmp_path),
    )
    assert (tmp_path / "runs").read_text() == 3 * "run\n"
    assert len(entries(cache)) == 3


@pytest.mark.ci
def test_two_hundred_processes_compile_the_same_kernels(run_python, cache):
    for _ in range(3):
        done = run_python(
            COMPILING_FORKS + COMPILE_THREE + "assert at_once(200, work)", timeout=120, TB_CACHE=str(cache)
        )
        assert done.stderr == ""
        assert len(entries(cache)) == 3
        subprocess.run(["rm", "-r", cache], check=True)


@pytest.mark.ci
def test_killed_processes_leave_a_cache_that_works(run_python, cache, monkeypatch, forget):
    run_python(
        COMPILING_FORKS
        + """
def work(begun):
    for n in range(1000):
        compiler.compile_many([f"long answer(void) {{ return {n}; }}\\nint variant_{n}_{k};" for k in range(2)])
        begun()
kill_later_and_later(work, 40, 0.01)
""",
        TB_CACHE=str(cache),
    )
    # What is there loads and is right; what is not is built.
    assert len(entries(cache)) > 1
    for n in range(20):
        forget()
        sources = [f"long answer(void) {{ return {n}; }}\nint variant_{n}_{k};" for k in range(2)]
        assert [answer(library) for library in compiler.compile_many(sources)] == [n, n]
    assert list((cache / "tmp").iterdir()) != []
    monkeypatch.setattr(disk_cache, "TEMPORARY_LIFETIME", -10.0)
    forget()
    compiler.compile_source(SOURCE)
    ahead.drop_all()  # the compiler that waits for the next source has a folder of its own
    assert list((cache / "tmp").iterdir()) == []
    assert all(disk_cache._is_intact(path.read_bytes()) for path in entries(cache))


@pytest.mark.ci
def test_caches_of_many_processes_stay_bounded(run_python, tmp_path):
    run_python(
        COMPILING_FORKS
        + """
from pathlib import Path
def work(number):
    cache = DiskCache(Path(os.environ["TB_CACHE"]), limit=200_000)
    for n in range(100):
        with cache.turn(f"{number:064x}", 1), cache.workspace() as folder:
            (folder / "library").write_bytes(bytes(5_000))
            cache.put([f"{number:032x}{n:032x}"], folder / "library")
assert at_once(10, work)
""",
        TB_CACHE=str(tmp_path / "cache"),
    )
    total = sum(path.stat().st_size for path in entries(tmp_path / "cache"))
    assert 100_000 < total <= 200_000


@pytest.mark.ci
def test_full_file_system_uses_the_temporary_folder(run_python, tmp_path, cc):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", small], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        (small / "filling").write_bytes(bytes(60 << 10))
        check_private(where(run_python, tmp_path, TB_CACHE=str(small / "cache")), tmp_path, "No space left on device")
    finally:
        subprocess.run(["umount", small], check=True)
