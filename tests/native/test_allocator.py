# SPDX-License-Identifier: Apache-2.0
"""Memory for tensors: alignment, room, reuse, peak, bounds, threads, forks and failure."""

from __future__ import annotations

import ctypes
import functools
import gc
import random
import signal
import threading

import pytest

from tensorbackend import testing
from tensorbackend.backends import compiler, native

KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture
def memory(absent):
    """The runtime with nothing kept; what the process already uses stays in use."""
    if compiler.find_compiler() is None:
        absent("cc", compiler.compiler_status())
    runtime = native.runtime()
    gc.collect()
    gc.disable()  # tensors that other tests left in cycles would be freed between two counts
    try:
        runtime.trim()
        runtime.reset_peak()
        yield runtime
    finally:
        gc.enable()


def fill(address: int, nbytes: int, value: int) -> None:
    """Write every byte."""
    ctypes.memset(address, value, nbytes)


def first_and_last(address: int, nbytes: int) -> tuple[int, int]:
    """The first and the last byte."""
    block = (ctypes.c_ubyte * nbytes).from_address(address)
    return block[0], block[nbytes - 1]


SIZES = sorted(
    {n + d for n in [0, 64, 100, 1 * KIB, 4 * KIB, 100 * KIB, MIB, 2 * MIB, 3 * MIB, 33 * MIB] for d in (0, 1)}
)


def test_blocks_are_aligned_and_as_large_as_asked(memory):
    blocks = [(memory.alloc(size), size) for size in SIZES]
    for value, (address, size) in enumerate(blocks):
        assert address % 64 == 0
        assert address % 512 == 0 or not 4 * KIB <= size <= MIB  # no result a line behind an operand, modulo a page
        fill(address, size, value)
    for value, (address, size) in enumerate(blocks):
        assert size == 0 or first_and_last(address, size) == (value, value)
        memory.free(address, size)


class Ending:
    """Calls what is in its slot when it ends, without any Python."""

    __slots__ = ("__del__",)


@pytest.mark.parametrize("kind", ["jit", "jit-python"])
def test_an_interrupt_as_a_tensor_ends_is_not_lost(memory, kind):
    """As a finalizer in Python would lose it: ctrl-C while a kernel ran, of which temporaries end in native code."""

    class Interrupt(Exception):
        pass

    def interrupt(number, frame):
        raise Interrupt

    backend = testing.make_backend(kind, rng_seed=0)
    before = memory.stats().in_use
    before_handler = signal.signal(signal.SIGUSR1, interrupt)
    try:
        ending = Ending()
        ending.__del__ = functools.partial(getattr(ctypes.PyDLL(None), "raise"), signal.SIGUSR1)
        held = [backend.empty((1000, 1000)), ending]  # the last ends first
        del ending
        assert memory.stats().in_use > before
        with pytest.raises(Interrupt):
            held.clear()
    finally:
        signal.signal(signal.SIGUSR1, before_handler)
    assert memory.stats().in_use == before
    backend.cleanup_backend()


def test_blocks_do_not_overlap(memory):
    rng = random.Random(0)
    held: list[tuple[int, int]] = []
    for _ in range(3000):
        if held and rng.random() < 0.5:
            memory.free(*held.pop(rng.randrange(len(held))))
        else:
            size = int(2 ** rng.uniform(0, 22.5))
            held.append((memory.alloc(size), size))
            spans = sorted((address, address + size) for address, size in held)
            assert all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:]))
    for block in held:
        memory.free(*block)


@pytest.mark.parametrize("size", [1, 1000, 900 * KIB, 5 * MIB], ids=str)
def test_freed_block_is_used_again(memory, size):
    first = memory.alloc(size)
    memory.free(first, size)
    assert memory.stats().cached >= size
    assert memory.alloc(size) == first
    assert memory.stats().cached == 0
    memory.free(first, size)


def test_last_freed_block_comes_first(memory):
    blocks = [memory.alloc(4 * KIB) for _ in range(3)]
    for block in blocks:
        memory.free(block, 4 * KIB)
    assert [memory.alloc(4 * KIB) for _ in range(3)] == blocks[::-1]
    for block in blocks:
        memory.free(block, 4 * KIB)


def test_block_of_a_neighbouring_size_is_not_used(memory):
    block = memory.alloc(10 * MIB)
    memory.free(block, 10 * MIB)
    other = memory.alloc(30 * MIB)
    fill(other, 30 * MIB, 1)
    memory.free(other, 30 * MIB)


@pytest.mark.parametrize("size", [64 * KIB, 4 * MIB, 16 * MIB], ids=str)
def test_waste_is_bounded(memory, size):
    for extra in range(0, size, size // 23):
        before = memory.stats().in_use
        address = memory.alloc(size + extra)
        rounded = memory.stats().in_use - before
        assert size + extra <= rounded <= max((size + extra) * 9 // 8, size + extra + 2 * MIB * (size > MIB))
        memory.free(address, size + extra)


def test_large_blocks_start_at_different_offsets_in_their_page(memory):
    blocks = [memory.alloc(4 * MIB) for _ in range(6)]
    assert len({block % 4096 for block in blocks}) == 6
    assert all(block % (2 * MIB) < 4096 for block in blocks)  # the rest of the block may lie in huge pages
    for block in blocks:
        memory.free(block, 4 * MIB)


def test_use_peak_and_calls_are_counted(memory):
    before = memory.stats()
    a, b = memory.alloc(8 * MIB), memory.alloc(4 * MIB)
    memory.free(a, 8 * MIB)
    during = memory.stats()
    assert during.in_use - before.in_use == 4 * MIB
    assert during.cached == 8 * MIB
    assert during.peak - before.in_use == 12 * MIB
    assert during.calls - before.calls == 2
    memory.reset_peak()
    assert memory.stats().peak == during.in_use
    memory.free(b, 4 * MIB)
    assert memory.stats().in_use == before.in_use


def test_trim_gives_memory_back_to_the_system(memory):
    block = memory.alloc(64 * MIB)
    fill(block, 64 * MIB, 1)
    memory.free(block, 64 * MIB)
    held = resident()
    memory.trim()
    assert memory.stats().cached == 0
    assert held - resident() > 60 * MIB


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_kept_memory_is_bounded_and_the_oldest_goes_first(memory):
    limit = 3 * 4 * MIB
    memory.set_memory_limit(limit)
    try:
        blocks = [memory.alloc(4 * MIB) for _ in range(5)]
        for block in blocks:
            memory.free(block, 4 * MIB)
        assert memory.stats().cached == limit
        assert [memory.alloc(4 * MIB) for _ in range(3)] == blocks[:1:-1]
        for block in blocks[2:]:
            memory.free(block, 4 * MIB)
        memory.set_memory_limit(0)
        assert memory.stats().cached == 0
        memory.free(memory.alloc(100), 100)
        assert memory.stats().cached == 0
    finally:
        memory.set_memory_limit(1 << 30)


def test_a_bound_below_zero_is_refused(memory):
    with pytest.raises(ValueError, match="expected 0 bytes or more, given -1"):
        memory.set_memory_limit(-1)


@pytest.mark.parametrize("size", [-1, 1 << 46, 1 << 60], ids=str)
def test_impossible_sizes_raise_memory_error(memory, size):
    with pytest.raises(MemoryError, match=rf"cannot allocate {size} bytes"):
        memory.alloc(size)


def test_freeing_nothing_is_no_work(memory):
    before = memory.stats()
    memory.free(0, 100)
    assert memory.stats() == before


def test_many_threads_share_it(memory):
    before = memory.stats().in_use
    failures = []

    def hammer(value: int) -> None:
        rng = random.Random(value)
        for _ in range(500):
            size = int(2 ** rng.uniform(3, 21.5))
            address = memory.alloc(size)
            fill(address, size, value)
            if first_and_last(address, size) != (value, value):
                failures.append(size)
            memory.free(address, size)

    threads = [threading.Thread(target=hammer, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert memory.stats().in_use == before


def test_exhausted_memory_frees_what_is_kept_before_it_fails(run_python, cc):
    run_python(
        """
import resource
from tensorbackend.backends import native
memory = native.runtime()
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
block = memory.alloc(200 << 20)
memory.free(block, 200 << 20)
block = memory.alloc(150 << 20)      # fits only where the 200 MiB were
assert memory.stats().cached == 0
try:
    memory.alloc(250 << 20)
except MemoryError as error:
    assert f"cannot allocate {250 << 20} bytes (0.24 GiB)" in str(error), error
    assert "in use: " in str(error)
else:
    raise SystemExit("no MemoryError")
memory.free(block, 150 << 20)
memory.alloc(100 << 20)
"""
    )


def test_forked_child_can_allocate_whatever_the_parent_does(run_python, cc):
    run_python(
        """
import os, threading
from tensorbackend.backends import native
memory = native.runtime()
stop = False
def hammer():
    while not stop:
        for size in (100, 10000, 3 << 20):
            memory.free(memory.alloc(size), size)
threads = [threading.Thread(target=hammer) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(30):
    pid = os.fork()
    if pid == 0:
        for size in (100, 10000, 3 << 20): memory.free(memory.alloc(size), size)
        memory.trim()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop = True
for thread in threads: thread.join()
"""
    )
