# SPDX-License-Identifier: Apache-2.0
"""The folder of compiled kernels: which one, who may use it, how entries are written, checked and dropped.

An entry is `<key>.so` with `<key>.c` beside it: a library, or a cubin of a CUDA device. The file ends in a trailer
that holds its own checksum, so an entry is one file: it appears by one rename, and a truncated or altered one is seen
before it is loaded. Any number of processes may share a folder, and any of them may be killed at any moment: what they
leave behind lies in `tmp/` and is removed later. The folder may be one of the user's, with other files in it: only
names that this module gives are counted and removed. What a key is made of, and what a library contains, is decided in
`compiler.py` (libraries) and `cubins.py`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorbackend.backends.temporary import temporary_folder
from tensorbackend.settings import config

with contextlib.suppress(ImportError):  # There is none on Windows, where nothing is compiled.
    import fcntl

__all__ = ["DiskCache", "Entry", "cache_for_reading", "cache_for_writing", "fall_back_to_private"]

log = logging.getLogger(__name__)

NAMES = re.compile(r"([0-9a-f]{64})\.(?:so|c)")
"""How files of entries are called: a key has 64 hexadecimal digits."""
TEMPORARY = "tb-compile-"
"""What names of folders in `tmp/` begin with."""
INDEX = "plans"
"""The file in which `warm.py` keeps how plans are launched."""
TRAILER_MAGIC = b"tb-entry"
TRAILER_SIZE = len(TRAILER_MAGIC) + hashlib.sha256().digest_size
# A compiler is stopped after a minute by default; nothing that old can still be in use.
TEMPORARY_LIFETIME = 3600.0
# The modification time of a library is when it was last used, to this precision: most loads then write nothing.
USE_PRECISION = 3600.0


class DiskCache:
    """One folder of entries, bounded to `limit` bytes (None: the setting `cache_limit`); the least recently used go
    first.

    Methods raise `OSError` when the folder cannot be written; reading a missing or damaged entry gives None.
    """

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        self.folder = folder
        self._where = os.fspath(folder)
        self._limit = limit
        self._swept = False

    @property
    def limit(self) -> int:
        """Bytes that it may hold."""
        return config.cache_limit << 20 if self._limit is None else self._limit

    def get(self, key: str) -> str | None:
        """The path of the checked library of `key`, or None. A damaged entry is removed, so that it gets rebuilt."""
        path = f"{self._where}/{key}.so"
        try:
            content, used = _read(path)
        except OSError:
            return None
        if not _is_intact(content):
            log.warning(
                "tensorbackend: %s is damaged (%d bytes, wrong checksum); it is built again", path, len(content)
            )
            self._remove(Path(path))
            return None
        self._mark_used(path, used)
        return path

    def read(self, key: str) -> bytes | None:
        """What `write` kept as `key`, or None."""
        path = self.get(key)
        return None if path is None else Path(path).read_bytes()[:-TRAILER_SIZE]

    def write(self, key: str, content: bytes, source: str) -> None:
        """Keep `content`, which a driver loads from memory (a cubin), and the source it was made from as `key`."""
        with self.workspace() as folder:
            (folder / "content").write_bytes(content)
            (folder / "source").write_text(source, encoding="utf-8")
            self.put_source(key, folder / "source")
            self.put([key], folder / "content")

    def drop(self, key: str) -> None:
        """Remove the library of `key`; its source stays to be looked at."""
        self._remove(self.folder / f"{key}.so")

    def source(self, key: str) -> Path:
        """Where the source of `key` is kept."""
        return self.folder / f"{key}.c"

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """A fresh folder on the same file system, for a compiler to write in; removed at the end."""
        path = self.new_folder()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def new_folder(self) -> Path:
        """A `workspace` that is the caller's to remove."""
        self._sweep_once()
        temporaries = self.folder / "tmp"
        os.makedirs(temporaries, mode=0o700, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{os.getpid()}-", dir=temporaries))

    def put(self, keys: list[str], library: Path) -> list[Path]:
        """Take `library`, a file of a `workspace`, in as the entry of each of `keys`; the paths of the entries.

        Several keys share one file (hard links), since their kernels were compiled together.
        """
        _append_trailer(library)
        size = library.stat().st_size
        paths = [self.folder / f"{key}.so" for key in keys]
        for path in paths[1:]:
            extra = library.with_name(path.name + ".link")
            _link_or_copy(library, extra)
            os.replace(extra, path)
        os.replace(library, paths[0])
        self._account(size)
        return paths

    def put_source(self, key: str, written: Path) -> Path:
        """Keep `written`, a file of a `workspace`, as the source of `key`; its new path."""
        path = self.source(key)
        size = written.stat().st_size
        os.replace(written, path)
        self._account(size)
        return path

    @contextlib.contextmanager
    def turn(self, key: str, patience: float) -> Iterator[None]:
        """Wait until no other process compiles under the same lock, at most `patience` seconds. In this one, a thread
        at a time compiles.

        Returns early when the entry of `key` appears. It only avoids double work: the block runs without the lock too.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)  # someone may have removed it
        path = self.folder / f"lock-{int(key[:2], 16) % 16:02d}"
        if path in _turns:  # this thread's, in whose middle a finalizer or a signal's handler compiles
            yield
            return
        with _open_lock(path) as lock:
            give_up = time.monotonic() + patience
            pause = 0.001
            while not _try_lock(lock) and time.monotonic() < give_up and not (self.folder / f"{key}.so").exists():
                time.sleep(pause)
                pause = min(2 * pause, 0.02)
            try:
                _turns.add(path)
                yield
            finally:
                _turns.discard(path)

    def sweep(self) -> None:
        """Remove what killed processes left behind."""
        oldest = time.time() - TEMPORARY_LIFETIME
        for entry in _scan(self.folder / "tmp"):
            if entry.name.startswith(TEMPORARY) and _modified(entry) < oldest:
                shutil.rmtree(entry.path, ignore_errors=True)

    def entries(self) -> list[Entry]:
        """What the folder holds, the most recently used first."""
        return sorted(_entries(self.folder), key=lambda entry: entry.used, reverse=True)

    def damaged(self) -> list[str]:
        """The keys whose library is truncated or altered: they would be built again when asked for."""
        found = [(entry.key, self.folder / f"{entry.key}.so") for entry in self.entries()]
        return [key for key, path in found if path.exists() and not _is_intact(path.read_bytes())]

    def clear(self) -> int:
        """Remove all entries and what killed processes left; the bytes that were freed.

        Processes that have loaded a library keep it.
        """
        entries = self.entries()
        for name in (INDEX, *(name for entry in entries for name in entry.names)):
            (self.folder / name).unlink(missing_ok=True)
        self.sweep()
        with contextlib.suppress(FileNotFoundError), _open_lock(self.folder / "lock-size") as lock:
            _wait_lock(lock)
            os.pwrite(lock, b"%20d\n" % 0, 0)
        return sum(entry.size for entry in entries)

    def _sweep_once(self) -> None:
        if not self._swept:
            self._swept = True
            self.sweep()

    def _mark_used(self, path: str, used: float) -> None:
        if time.time() - used < USE_PRECISION:
            return
        try:
            os.utime(path)
        except OSError as error:
            # A read-only folder serves its entries all the same; only their order of use is not recorded.
            log.debug("tensorbackend: cannot mark %s as used: %s", path, error)

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("tensorbackend: cannot remove the damaged %s: %s", path, error)

    def _account(self, added: int) -> None:
        """Count `added` bytes; when the total passes the limit, look at the folder and drop entries.

        The total is a hint: a process killed between its rename and its count leaves it too low, until the folder is
        looked at again.
        """
        with _open_lock(self.folder / "lock-size") as lock:
            _wait_lock(lock)
            total = _read_total(lock)
            if total is None or total + added > self.limit:
                total = self._evict()
            else:
                total += added
            os.pwrite(lock, b"%20d\n" % total, 0)

    def _evict(self) -> int:
        """Drop the least recently used entries until a fifth of the limit is free; the bytes that stay."""
        entries = _entries(self.folder)
        total = sum(entry.size for entry in entries)
        if total <= self.limit:
            return total
        for entry in sorted(entries, key=lambda entry: entry.used):
            if total <= self.limit * 4 // 5:
                break
            for name in entry.names:
                (self.folder / name).unlink(missing_ok=True)
            total -= entry.size
        return total


@dataclass
class Entry:
    """The files of one key: names, bytes (a shared library counts once), and when it was last used (seconds)."""

    key: str
    names: list[str]
    size: int = 0
    used: float = 0.0


def _entries(folder: Path) -> list[Entry]:
    by_key: dict[str, Entry] = {}
    for found in _scan(folder):
        name = NAMES.fullmatch(found.name)
        if name is None:
            continue
        try:
            facts = found.stat()
        except FileNotFoundError:
            continue
        entry = by_key.setdefault(name[1], Entry(name[1], []))
        entry.names.append(found.name)
        entry.size += facts.st_size // facts.st_nlink
        entry.used = max(entry.used, facts.st_mtime)
    return list(by_key.values())


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []


def _modified(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return time.time()


def _read(path: str) -> tuple[bytes, float]:
    """The content of a file, and its modification time. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        facts = os.fstat(descriptor)
        return os.read(descriptor, facts.st_size), facts.st_mtime
    finally:
        os.close(descriptor)


def _is_intact(content: bytes) -> bool:
    body, trailer = content[:-TRAILER_SIZE], content[-TRAILER_SIZE:]
    return trailer == TRAILER_MAGIC + hashlib.sha256(body).digest()


def _append_trailer(library: Path) -> None:
    # The loader reads an ELF or Mach-O file by its headers and never looks at bytes past the last section.
    with open(library, "r+b") as file:
        digest = hashlib.sha256(file.read()).digest()
        file.write(TRAILER_MAGIC + digest)


def _link_or_copy(library: Path, extra: Path) -> None:
    try:
        os.link(library, extra)
    except OSError:
        shutil.copyfile(library, extra)  # a file system without hard links


@contextlib.contextmanager
def _open_lock(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        # Closing is not enough: a child forked meanwhile has the descriptor too. The end of a process releases as well.
        _unlock(descriptor)
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        log.debug("tensorbackend: no file locks here (%s); processes may compile the same kernel twice", error)
    return True


def _unlock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        log.debug("tensorbackend: no file locks here (%s)", error)


def _wait_lock(descriptor: int) -> None:
    give_up = time.monotonic() + 1.0
    while not _try_lock(descriptor) and time.monotonic() < give_up:
        time.sleep(0.001)


def _read_total(descriptor: int) -> int | None:
    text = os.pread(descriptor, 64, 0)
    return int(text) if text.strip().isdigit() else None


# Which folder ---------------------------------------------------------------------------------------------------------

_shared: dict[str, DiskCache | None] = {}
_private: dict[int, DiskCache] = {}
_unusable: set[str] = set()
_turns: set[Path] = set()
"""The locks of folders that this process has, or waits no longer for."""


def cache_for_reading() -> list[DiskCache]:
    """The caches to look in, first to last: the shared one where there is one, then this process's own."""
    shared = _shared_cache()
    private = _private.get(os.getpid())
    return [cache for cache in (shared, private) if cache is not None]


def cache_for_writing() -> DiskCache:
    """The cache that takes new entries. Raises `OSError` when no folder at all can be written."""
    shared = _shared_cache()
    if shared is not None and _wanted_folder() not in _unusable:
        return shared
    return _private_cache()


def fall_back_to_private(reason: str) -> DiskCache:
    """From now on, write to a temporary folder of this process; warns once and says why."""
    wanted = _wanted_folder()
    if wanted not in _unusable:
        _unusable.add(wanted)
        log.warning(
            "tensorbackend: %s; compiled kernels are kept in a temporary folder and are lost when the process ends",
            reason,
        )
    return _private_cache()


def _shared_cache() -> DiskCache | None:
    wanted = _wanted_folder()
    if wanted not in _shared:
        _shared[wanted] = _open_shared(wanted)
    return _shared[wanted]


def _wanted_folder() -> str:
    """TB_CACHE, else a folder in XDG_CACHE_HOME, else in ~/.cache; empty without any of them."""
    if config.cache:
        return _absolute(config.cache)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return os.path.join(base, "tensorbackend")
    home = os.environ.get("HOME", "")
    if os.path.isabs(home):
        return os.path.join(home, ".cache", "tensorbackend")
    return ""


@functools.lru_cache(maxsize=8)
def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))


def _open_shared(wanted: str) -> DiskCache | None:
    if not wanted:
        fall_back_to_private("there is no HOME for the kernel cache (set HOME or TB_CACHE)")
        return None
    try:
        os.makedirs(os.path.dirname(wanted), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(wanted, 0o700)
        complaint = _objection(wanted)
    except OSError as error:
        complaint = f"the kernel cache {wanted} cannot be made ({error.strerror}); set TB_CACHE to a folder of yours"
    if complaint:
        fall_back_to_private(complaint)
        return None
    return DiskCache(Path(wanted))


def _objection(folder: str) -> str:
    """Why `folder` is not safe to load code from, with the remedy; empty when it is."""
    facts = os.stat(folder)
    if not stat.S_ISDIR(facts.st_mode):
        return f"the kernel cache {folder} is not a folder; remove it or set TB_CACHE"
    if facts.st_uid != os.geteuid():
        return (
            f"the kernel cache {folder} belongs to user {facts.st_uid}, not to you ({os.geteuid()}), "
            f"who could put code there; set TB_CACHE to a folder of yours"
        )
    mode = stat.S_IMODE(facts.st_mode)
    if mode & 0o022:
        return f"the kernel cache {folder} can be written by others (mode {mode:04o}); run: chmod 700 {folder}"
    return ""


def _private_cache() -> DiskCache:
    """A temporary folder of this process, made on first use; a forked child makes its own in that of its parent.

    So it goes with the parent's where the child is killed, and is made anew where the parent has ended before.
    """
    pid = os.getpid()
    if pid not in _private or not _private[pid].folder.is_dir():
        from multiprocessing import util  # 10 ms. What atexit has registered isn't called in a child of its making

        inherited = [cache.folder for maker, cache in _private.items() if maker != pid]
        folder = _temporary_folder(inherited[-1:])
        util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-1)
        _private[pid] = DiskCache(folder)
    return _private[pid]


def _temporary_folder(first: Iterable[Path] = ()) -> Path:
    """A new folder with room for a library, in one of the `first`, on disk or, failing that, in memory."""
    failures = []
    for parent in (*first, None, "/dev/shm"):
        try:
            folder = temporary_folder(parent)
        except OSError as error:
            failures.append(str(error))
            continue
        try:
            (folder / "room").write_bytes(bytes(1 << 20))
            (folder / "room").unlink()
        except OSError as error:
            failures.append(str(error))
            shutil.rmtree(folder, ignore_errors=True)
            continue
        return folder
    raise OSError(f"no folder can be written for compiled kernels ({'; '.join(failures)}); set TMPDIR or TB_CACHE")
