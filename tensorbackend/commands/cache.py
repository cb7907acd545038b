# SPDX-License-Identifier: Apache-2.0
"""`cache`: what the folder of compiled kernels holds, whether it is sound, and how to empty it."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterator

from tensorbackend.arguments import whole
from tensorbackend.backends import disk_cache
from tensorbackend.backends.disk_cache import DiskCache, Entry
from tensorbackend.commands import Failure

__all__ = ["add", "run", "size"]

_FUNCTION = re.compile(r"^void (\w+)\(", re.MULTILINE)
_COMMENT = re.compile(r"^// kernel: (.+)$", re.MULTILINE)


def add(commands: argparse._SubParsersAction) -> None:
    """Describe the command."""
    text = "Look after the folder of compiled kernels (TB_CACHE). Without an action: its place and size."
    parser = commands.add_parser("cache", help="list, size, verify or clear compiled kernels", description=text)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions")
    actions.add_parser("size", help="the folder, its number of kernels and bytes (the default)")
    listing = actions.add_parser("list", help="one line a kernel: key, bytes, last use, functions")
    listing.add_argument("-n", type=whole(0), default=None, metavar="COUNT", help="the COUNT most recently used only")
    actions.add_parser("verify", help="read every library and check it; exit status 1 when one is damaged")
    actions.add_parser("clear", help="remove all compiled kernels; they are compiled again when needed")


def run(options: argparse.Namespace) -> Iterator[str]:
    """Do the action on each cache that this process reads. Raises `Failure` when there is none, or one is damaged, or
    its rights are in the way."""
    caches = disk_cache.cache_for_reading()
    if not caches:
        raise Failure("no cache folder can be used here; set TB_CACHE to a folder of yours")
    for cache in caches:
        try:
            yield from ACTIONS[options.action or "size"](cache, options)
        except OSError as error:
            raise Failure(f"{error.filename or cache.folder}: {error.strerror}") from error


def size(nbytes: float) -> str:
    """Bytes as text: `3.2 MiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.1f} {unit}" if unit != "bytes" else f"{nbytes} bytes"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def _size(cache: DiskCache, options: argparse.Namespace) -> Iterator[str]:
    entries = cache.entries()
    total = sum(entry.size for entry in entries)
    yield f"{cache.folder}: {len(entries)} kernels, {size(total)} of at most {size(cache.limit)}"


def _list(cache: DiskCache, options: argparse.Namespace) -> Iterator[str]:
    for entry in cache.entries()[: options.n]:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        yield f"{entry.key[:16]}  {size(entry.size):>11}  {used}  {_contents(cache, entry)}"


def _contents(cache: DiskCache, entry: Entry) -> str:
    """What a kept source is: the kernel's name where it says one, else its functions or the file that it includes."""
    path = cache.source(entry.key)
    if not path.is_file():
        return "(no source kept)"
    text = path.read_text(encoding="utf-8", errors="replace")
    found = _COMMENT.findall(text) or _FUNCTION.findall(text)
    return " ".join(found) or " ".join(text.split()[:4])


def _verify(cache: DiskCache, options: argparse.Namespace) -> Iterator[str]:
    damaged = cache.damaged()
    yield from (f"damaged: {cache.folder / key}.so" for key in damaged)
    if damaged:
        raise Failure(f"{len(damaged)} damaged; they are compiled again when needed, or now: cache clear")
    yield f"{cache.folder}: {len(cache.entries())} kernels, all sound"


def _clear(cache: DiskCache, options: argparse.Namespace) -> Iterator[str]:
    count = len(cache.entries())
    yield f"{cache.folder}: removed {count} kernels, {size(cache.clear())}"


ACTIONS: dict[str, Callable[[DiskCache, argparse.Namespace], Iterator[str]]] = {
    "size": _size, "list": _list, "verify": _verify, "clear": _clear,
}  # fmt: skip
