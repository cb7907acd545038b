# SPDX-License-Identifier: Apache-2.0
"""Launches and the thread pool: every task once, the same bits for any partition, forks, threads, nesting, exit."""

from __future__ import annotations

import ctypes
import os
import platform
import random
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tensorbackend.backends import compiler, cores, native
from tensorbackend.backends.cpu import CPUBackend
from tensorbackend.kernel_files import kernel_dir
from tensorbackend.settings import config

KERNELS = """
#include "runtime.h"

// Block sums of x in a fixed order, and an elementwise result: what fused kernels do.
enum { BLOCK = 1000 };
void sums(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
          int64_t end) {
    const float *x = ptr[0];
    float *elements = ptr[1], *total = ptr[2];
    float factor = (float)*(const double *)scalar;
    for (int64_t task = begin; task < end; task++) {
        float sum = 0;
        int64_t stop = (task + 1) * BLOCK < size[0] ? (task + 1) * BLOCK : size[0];
        for (int64_t i = task * BLOCK; i < stop; i++) {
            elements[i] = x[i] * factor + 1.0f / (x[i] * x[i] + 1.0f);
            sum += elements[i];
        }
        total[task] = sum;
    }
}

// Adds one to the counter of each task, after size[0] rounds of nothing.
void count(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
           int64_t end) {
    int64_t *counter = ptr[0];
    for (int64_t task = begin; task < end; task++) {
        for (int64_t round = 0; round < size[0]; round++)
            __asm__ volatile("");
        counter[task]++;
    }
}

// Notes the thread of each task: an address that differs from thread to thread.
static _Thread_local char here;
void where(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
           int64_t end) {
    count(ptr + 1, size, stride, scalar, begin, end);
    for (int64_t task = begin; task < end; task++)
        ((int64_t *)ptr[0])[task] = (int64_t)&here;
}

// Counts, but threads other than the one at scalar[0] take their time.
void linger(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
            int64_t end) {
    int64_t rounds[] = {(int64_t)&here == scalar[0] ? 0 : size[0]};
    count(ptr, rounds, stride, scalar, begin, end);
}
void whoami(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
            int64_t end) {
    *(int64_t *)ptr[0] = (int64_t)&here;
}

// Each task launches a whole counting of its own: ptr {tb_run, counters of size[1] tasks each}.
void nested(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
            int64_t end) {
    void (*run)(const tb_launch *) = (void (*)(const tb_launch *))ptr[0];
    for (int64_t task = begin; task < end; task++) {
        void *counters[] = {(int64_t *)ptr[1] + task * size[1]};
        tb_launch inner = {count, size[1], 100000, counters, size, stride, scalar};
        run(&inner);
    }
}

// o = x * 1 per task, which is 0 for a denormal x where denormals are flushed.
void keep_denormals(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                    int64_t end) {
    float *o = ptr[0];
    volatile float one = 1.0f, tiny = 1e-40f;
    for (int64_t task = begin; task < end; task++) {
        for (int64_t round = 0; round < size[0]; round++)
            __asm__ volatile("");
        o[task] = tiny * one;
    }
}

#if defined(__x86_64__)
void flush_denormals(int on) {
    unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(on ? mode | 0x8040 : mode & ~0x8040u);
}
#endif
"""
LONG = 1_000_000  # a cost at which workers are woken


@pytest.fixture(scope="module")
def runtime(absent):
    if compiler.find_compiler() is None:
        absent("cc", compiler.compiler_status())
    made = native.runtime()
    yield made
    made.set_threads()


@pytest.fixture(scope="module")
def kernels(runtime):
    # Linked to the C library, which knows how thread-local variables work.
    return compiler.compile_source(KERNELS, libc=True)


def counting(runtime, kernels, tasks, rounds=0, cost=LONG):
    """A launch that counts, and its counters."""
    counters = np.zeros(tasks, np.int64)
    launch = runtime.prepare(kernels.address("count"), tasks, cost, 1, [rounds], [], 0)
    launch.ptr[0] = counters.ctypes.data
    return launch, counters


def test_prepared_launch_holds_what_it_was_given(runtime, kernels):
    launch = runtime.prepare(kernels.address("count"), 5, 7, 3, [11, 12], [13], 2)
    assert (launch.tasks, launch.cost) == (5, 7)
    assert [list(view) for view in (launch.ptr, launch.size, launch.stride, launch.scalar)] == [
        [0, 0, 0],
        [11, 12],
        [13],
        [0, 0],
    ]
    launch.doubles[1] = 1.0
    assert launch.scalar[1] == 0x3FF0000000000000
    assert launch.ptr[2] == 0 and launch.stride[0] == 13


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_task_runs_once(runtime, kernels, threads):
    runtime.set_threads(threads)
    for tasks in (1, 2, 3, 7, 8, 100, 1001):
        launch, counters = counting(runtime, kernels, tasks)
        for repeat in range(1, 201):
            launch.run()
            assert counters.min() == counters.max() == repeat
    assert runtime.threads == threads


def test_no_tasks_is_no_work(runtime, kernels):
    launch, counters = counting(runtime, kernels, 1)
    launch.tasks = 0
    launch.run()
    assert counters[0] == 0


def test_same_bits_for_any_number_of_threads_and_any_partition(runtime, kernels):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(123_456).astype(np.float32)
    tasks = -(-x.size // 1000)
    launch = runtime.prepare(kernels.address("sums"), tasks, LONG, 3, [x.size], [], 1)
    launch.doubles[0] = 0.1

    def outputs(run):
        elements, total = np.zeros_like(x), np.zeros(tasks, np.float32)
        launch.ptr[:] = [array.ctypes.data for array in (x, elements, total)]
        run()
        return elements.tobytes() + total.tobytes()

    function = kernels.function("sums")
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2

    def in_parts():
        cuts = [0, *sorted(random.Random(1).sample(range(1, tasks), 20)), tasks]
        for begin, end in reversed(list(zip(cuts, cuts[1:]))):
            function(launch.ptr, launch.size, launch.stride, launch.scalar, begin, end)

    expected = outputs(lambda: function(launch.ptr, launch.size, launch.stride, launch.scalar, 0, tasks))
    assert outputs(in_parts) == expected
    for threads in (1, 2, 3, 8):
        runtime.set_threads(threads)
        for _ in range(20):
            assert outputs(launch.run) == expected


def test_long_launches_are_shared_and_short_ones_are_not(runtime, kernels):
    runtime.set_threads(2)
    places, counters = np.zeros(64, np.int64), np.zeros(64, np.int64)

    def threads_of(cost):
        launch = runtime.prepare(kernels.address("where"), 64, cost, 2, [100_000], [], 0)
        launch.ptr[:] = [places.ctypes.data, counters.ctypes.data]
        launch.run()
        return len(np.unique(places))

    deadline = time.monotonic() + 30  # the machine may be too busy to run the worker at once
    while threads_of(LONG) != 2:
        assert time.monotonic() < deadline, "no worker ever took part"
    assert threads_of(100) == 1
    runtime.set_threads(1)
    assert threads_of(LONG) == 1


def _name(thread: Path) -> str:
    """The name of a thread; nothing if it has ended meanwhile, as timers do."""
    try:
        return (thread / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.skipif(platform.system() != "Linux", reason="threads move by Linux's calls")
def test_a_worker_leaves_the_callers_cpu_and_may_still_use_all(runtime, kernels):
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one CPU")
    runtime.set_threads(2)
    places, counters = np.zeros(64, np.int64), np.zeros(64, np.int64)
    launch = runtime.prepare(kernels.address("where"), 64, LONG, 2, [100_000], [], 0)
    launch.ptr[:] = [places.ctypes.data, counters.ctypes.data]
    launch.run()
    workers = [t for t in Path("/proc/self/task").iterdir() if _name(t) == "tb-worker"]
    cpu, deadline = min(allowed), time.monotonic() + 30
    os.sched_setaffinity(0, {cpu})
    try:
        for worker in workers:
            os.sched_setaffinity(int(worker.name), {cpu})
            os.sched_setaffinity(int(worker.name), allowed)
        while len(np.unique(places)) != 2 or any(_cpu(worker) == cpu for worker in workers[:1]):
            assert time.monotonic() < deadline, "the worker stayed, or never took part"
            launch.run()
    finally:
        os.sched_setaffinity(0, allowed)
    assert all(os.sched_getaffinity(int(worker.name)) == allowed for worker in workers)


def _cpu(thread: Path) -> int:
    """The CPU that a thread was on last, by its folder in /proc."""
    return int((thread / "stat").read_text().rpartition(")")[2].split()[36])


def test_launches_in_a_row_wake_a_worker_that_one_of_them_does_not(runtime, kernels):
    runtime.set_threads(2)
    places, counters = np.zeros(64, np.int64), np.zeros(64, np.int64)
    launch = runtime.prepare(kernels.address("where"), 64, 20_000, 2, [1000], [], 0)
    launch.ptr[:] = [places.ctypes.data, counters.ctypes.data]
    time.sleep(0.1)  # every worker sleeps now
    launch.run()
    assert len(np.unique(places)) == 1
    deadline = time.monotonic() + 30
    while len(np.unique(places)) != 2:
        assert time.monotonic() < deadline, "no worker ever took part"
        launch.run()


def test_launch_is_complete_though_a_worker_is_slow(runtime, kernels):
    runtime.set_threads(2)
    own = np.zeros(1, np.int64)
    whoami = runtime.prepare(kernels.address("whoami"), 1, 0, 1, [], [], 0)
    whoami.ptr[0] = own.ctypes.data
    whoami.run()
    counters = np.zeros(64, np.int64)
    launch = runtime.prepare(kernels.address("linger"), 64, LONG, 1, [200_000], [], 1)
    launch.ptr[0], launch.scalar[0] = counters.ctypes.data, own[0]
    for repeat in range(1, 201):
        launch.run()
        assert counters.min() == counters.max() == repeat


def test_list_runs_in_order(runtime, kernels):
    runtime.set_threads(2)
    x = np.ones(50_000, np.float32)
    y = np.zeros_like(x)
    total = np.zeros(50, np.float32)
    launches = []
    for source, target in ((x, y), (y, x), (x, y)):
        launch = runtime.prepare(kernels.address("sums"), 50, 10_000, 3, [x.size], [], 1)
        launch.ptr[:] = [array.ctypes.data for array in (source, target, total)]
        launch.doubles[0] = 2.0
        launches.append(launch)
    program = runtime.prepare_list(launches)
    program.run()
    value = np.float32(1)
    for _ in range(3):
        value = value * np.float32(2) + np.float32(1) / (value * value + np.float32(1))
    assert (y == value).all()
    runtime.run_list(launches[:1])
    launches[0].doubles[0] = 0.0
    program.run()
    assert y[0] != value


def test_empty_list_is_no_work(runtime):
    runtime.prepare_list([]).run()


def test_four_threads_launch_at_once(runtime, kernels):
    runtime.set_threads(3)
    failures = []

    def hammer(seed):
        rng = random.Random(seed)
        for _ in range(300):
            tasks = rng.randrange(1, 200)
            launch, counters = counting(
                runtime, kernels, tasks, rounds=rng.choice([0, 100]), cost=rng.choice([0, LONG])
            )
            launch.run()
            if not (counters == 1).all():
                failures.append((seed, tasks))

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_kernel_may_launch(runtime, kernels):
    runtime.set_threads(3)
    counters = np.zeros((16, 50), np.int64)
    launch = runtime.prepare(kernels.address("nested"), 16, LONG, 2, [100, 50], [], 0)
    launch.ptr[:] = [runtime.address("tb_run"), counters.ctypes.data]
    for _ in range(50):
        launch.run()
    assert (counters == 50).all()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the mode is set by x86-64 instructions")
def test_workers_compute_in_the_callers_float_mode(runtime, kernels):
    runtime.set_threads(2)
    o = np.zeros(256, np.float32)
    launch = runtime.prepare(kernels.address("keep_denormals"), 256, LONG, 1, [2000], [], 0)
    launch.ptr[0] = o.ctypes.data
    flush = kernels.function("flush_denormals")
    for on in (1, 0, 1, 0):
        flush(on)
        try:
            for _ in range(50):
                launch.run()
                values = set(o.view(np.int32).tolist())
                assert len(values) == 1
        finally:
            flush(0)
        assert (values == {0}) == bool(on)


@pytest.mark.slow
def test_number_of_threads_follows_settings(run_python, cc):
    code = "from tensorbackend.backends import native; print(native.runtime().threads)"

    def threads(**environment):
        return int(run_python(code, **environment).stdout)

    assert threads(TB_THREADS="5", OMP_NUM_THREADS="3") == 5
    assert threads(TB_THREADS=None, OMP_NUM_THREADS="3") == 3
    assert threads(TB_THREADS=None, OMP_NUM_THREADS="4,2") == 4
    of_backend = "from tensorbackend import gen_backend; print(gen_backend('cpu').threads)"
    for text, number in (("4,2", 4), (" 3", 3)):  # lists are of nested regions
        assert int(run_python(of_backend, TB_THREADS=None, OMP_NUM_THREADS=text).stdout) == number
    one_cpu = f"import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); {code}"
    assert int(run_python(one_cpu, TB_THREADS=None, OMP_NUM_THREADS=None).stdout) == 1


def test_a_backend_has_the_threads_that_it_asks_for_whatever_one_before_had(run_python, cc):
    code = """
import tensorbackend
from tensorbackend.backends import anywhere, native
def make(**options):
    be = tensorbackend.gen_backend("cpu", **options)
    print(be.threads, native.runtime().threads)
make(threads=1)
make()
make(threads=1)
anywhere.host_backend()
print(native.runtime().threads)
with tensorbackend.using(threads=2):
    make()
make(threads=10**6)
"""
    told = run_python(code, TB_THREADS="3", OMP_NUM_THREADS=None).stdout.split()
    assert told == ["1", "1", "3", "3", "1", "1", "1", "2", "2", "512", "512"]


def test_number_of_threads_is_checked_and_bounded(runtime):
    with pytest.raises(ValueError, match="expected at least 1 thread, given 0"):
        runtime.set_threads(0)
    assert runtime.set_threads(10**6) == runtime.set_threads(2**70) == 512
    assert runtime.set_threads(2) == runtime.threads == 2


def test_containers_share_of_cpus_bounds_the_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setitem(config._values, "threads", None)
    monkeypatch.setattr(cores, "control_group_limit", lambda name: {"cpu.max": 1}[name])
    assert native._default_threads() == 1
    assert CPUBackend(jit=False).threads == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert native._default_threads() == 0


@pytest.mark.parametrize("text, limit", [("max 100000", 0), ("250000 100000", 3), ("1000 100000", 1), ("4096", 4096)])
def test_control_group_limits_are_read(monkeypatch, tmp_path, text, limit):
    (tmp_path / "file").write_text(text + "\n")
    monkeypatch.setattr(cores, "CONTROL_GROUP", tmp_path)
    assert cores.control_group_limit("file") == limit
    assert cores.control_group_limit("absent") == 0


# Fork and exit --------------------------------------------------------------------------------------------------------

PREPARE = f"""
import os, sys, threading, time
import numpy as np
from tensorbackend.backends import compiler, native
runtime = native.runtime()
runtime.set_threads(int(os.environ.get("THREADS", "3")))
library = compiler.compile_source({KERNELS!r}, libc=True)
def counted(rounds=1000):
    counters = np.zeros(64, np.int64)
    launch = runtime.prepare(library.address("count"), 64, 1000000, 1, [rounds], [], 0)
    launch.ptr[0] = counters.ctypes.data
    launch.run()
    return bool((counters == 1).all())
def is_shared(seconds=20):
    places, counters = np.zeros(64, np.int64), np.zeros(64, np.int64)
    launch = runtime.prepare(library.address("where"), 64, 1000000, 2, [100000], [], 0)
    launch.ptr[:] = [places.ctypes.data, counters.ctypes.data]
    end = time.monotonic() + seconds
    while time.monotonic() < end and len(np.unique(places)) < 2:
        launch.run()
    return len(np.unique(places)) > 1
def child_counts(times):
    pid = os.fork()
    if pid == 0:
        good = all(counted() for _ in range(times))
        os._exit(0 if good and threading.active_count() == 1 else 1)
    return pid
assert counted()
"""


def test_forked_child_has_a_pool_of_its_own(run_python, kernels):
    run_python(
        PREPARE
        + """
for pause in (0, 0.01):
    time.sleep(pause)
    pid = child_counts(20)
    assert all(counted() for _ in range(20))
    assert os.waitpid(pid, 0)[1] == 0
"""
    )


@pytest.mark.slow
def test_forked_child_shares_its_work_whatever_the_parent_was_doing(run_python, kernels):
    run_python(
        PREPARE
        + """
def check_child():
    pid = os.fork()
    if pid == 0:
        os._exit(0 if is_shared() else 1)
    assert os.waitpid(pid, 0)[1] == 0
check_child()
busy = threading.Thread(target=counted, args=(30_000_000,))
busy.start()
time.sleep(0.1)
check_child()
assert busy.is_alive(), "the parent's launch ended too soon to test anything"
busy.join()
"""
    )


def test_fork_while_other_threads_launch(run_python, kernels):
    run_python(
        PREPARE
        + """
stop = False
def hammer():
    while not stop:
        assert counted()
threads = [threading.Thread(target=hammer) for _ in range(2)]
for thread in threads: thread.start()
statuses = [os.waitpid(child_counts(5), 0)[1] for _ in range(20)]
stop = True
for thread in threads: thread.join()
assert statuses == [0] * 20, statuses
"""
    )


def test_grandchildren_and_pools_of_processes_work(run_python, kernels):
    run_python(
        PREPARE
        + """
import multiprocessing
def work(n): return counted() and n
with multiprocessing.get_context("fork").Pool(3) as pool:
    assert pool.map(work, range(1, 30)) == list(range(1, 30))
pid = os.fork()
if pid == 0:
    assert counted()
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child_counts(3), 0)[1]))
assert os.waitpid(pid, 0)[1] == 0
"""
    )


EXITS = {
    "asleep": "time.sleep(0.05)",
    "awake": "counted()",
    "never shared": "runtime.set_threads(1)",
    "closed": "import _ctypes; counted(); _ctypes.dlclose(runtime.library._handle); time.sleep(0.05)",
    "in a thread": "threading.Thread(target=lambda: [counted() for _ in range(100)], daemon=True).start()",
    "in a long kernel": "threading.Thread(target=lambda: counted(10**8), daemon=True).start(); time.sleep(0.05)",
    "by an exception": "counted(); sys.exit(0)",
}


@pytest.mark.slow
@pytest.mark.parametrize("ending", EXITS.values(), ids=EXITS)
def test_process_ends_at_once(run_python, kernels, ending):
    run_python(PREPARE + ending)


def test_workers_leave_signals_to_others_but_not_their_own_faults(run_python, kernels):
    run_python(
        PREPARE
        + """
import signal
from pathlib import Path
assert is_shared()  # a thread that has not begun yet blocks everything
tasks = [task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "tb-worker\\n"]
assert tasks
for task in tasks:
    status = (task / "status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    def is_blocked(number): return blocked >> number - 1 & 1
    assert is_blocked(signal.SIGALRM) and is_blocked(signal.SIGINT) and is_blocked(signal.SIGCHLD)
    assert not is_blocked(signal.SIGSEGV) and not is_blocked(signal.SIGFPE)
""",
        THREADS="2",
    )


def test_without_more_threads_the_caller_works_alone(run_python, kernels, tmp_path):
    source = tmp_path / "none.c"
    source.write_text("int pthread_create(void *t, void *a, void *f, void *x) { return 11; }\n")
    preload = tmp_path / "none.so"
    subprocess.run([*compiler.find_compiler().command, "-shared", "-fPIC", "-w", source, "-o", preload], check=True)
    done = run_python(PREPARE + "assert all(counted() for _ in range(10)); print('done')", LD_PRELOAD=str(preload))
    assert done.stdout == "done\n"


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_sanitizers_find_nothing_in_the_runtime(kernels, tmp_path, sanitizer):
    program = tmp_path / "stress"
    source = tmp_path / "stress.c"
    source.write_text(STRESS)
    folder = kernel_dir() / "c"
    command = [*compiler.find_compiler().command, "-O1", "-g", f"-fsanitize={sanitizer}", "-pthread", f"-I{folder}"]
    built = subprocess.run([*command, source, "-o", program], capture_output=True, text=True)
    if built.returncode != 0:
        pytest.skip(f"no such sanitizer: {built.stderr[-200:]}")
    done = subprocess.run([program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


STRESS = """
#include "runtime.c"
#include "allocator.c"
#include <stdio.h>

static void add(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                int64_t end) {
    for (int64_t i = begin; i < end; i++)
        ((int64_t *)ptr[0])[i] += size[0];
}

static void *hammer(void *argument) {
    unsigned seed = (unsigned)(intptr_t)argument;
    for (int repeat = 1; repeat <= 400; repeat++) {
        seed = seed * 1664525 + 1013904223;
        int64_t tasks = 1 + (seed >> 16) % 100, size[] = {repeat};
        int64_t *counters = tb_alloc(tasks * 8);
        for (int64_t i = 0; i < tasks; i++)
            counters[i] = 0;
        void *ptr[] = {counters};
        tb_launch launch[2] = {{add, tasks, 1000000, ptr, size, 0, 0}, {add, tasks, 30000, ptr, size, 0, 0}};
        tb_run_list(launch, 2);
        for (int64_t i = 0; i < tasks; i++)
            if (counters[i] != 2 * repeat)
                exit(1);
        tb_free(counters, tasks * 8);
        if (repeat % 100 == 0)
            tb_set_threads(2 + repeat / 100), tb_alloc_trim();
    }
    return NULL;
}

int main(void) {
    tb_set_threads(4);
    pthread_t thread[3];
    for (intptr_t i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, hammer, (void *)i);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    return 0;
}
"""
