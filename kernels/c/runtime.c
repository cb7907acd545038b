// SPDX-License-Identifier: Apache-2.0
// runtime.c — the thread pool of the process, and launches on it
//
// A launch is shared among `width` threads. The tasks are cut into one range a thread, and each range into chunks:
//
//     tasks   0 . . . . . . . . . | . . . . . . . . . | . . . . . . . . . tasks
//             range 0 (caller)      range 1             range 2
//             |chunk|chunk|chunk|   ...
//
// A thread takes the chunks of its own range first, so that equal launches find their data in the same core's cache,
// then chunks of the others'. A worker that sleeps, comes late or is held up therefore costs nothing but its help: the
// caller does its share, and waits only for workers that have joined.
//
// Gate      one word says it all: number of the launch, its width, whether it is open, and how many workers are inside.
//           A worker joins by a compare-and-swap while the gate is open; the caller shuts it when no chunk is left and
//           waits until nobody is inside. No worker reads a launch that it has not joined.
// Sleep     a worker watches the gate for SPIN_NS, then sleeps on its own condition variable. Waking it costs tens of
//           microseconds, so short launches never do, unless many of them come in a row.
// Place     a worker that finds itself on the caller's CPU moves to another before it joins, or both might share it for
//           tens of milliseconds.
// Busy      one launch at a time uses the pool. Other callers, and kernels that launch, work alone: nobody waits.
// Fork      the child has no workers; it starts its own when it first needs them.
// Exit      workers are never joined and the library is never unloaded (-z nodelete): the end of the process ends them.
#define _GNU_SOURCE
#include "runtime.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_THREADS = 512,
    STACK_BYTES = 4 << 20,
    HOT_NS = 4000,          // below this a launch is not worth sharing
    COLD_NS = 60000,        // below this it is not worth waking a worker
    GRAIN_NS = 2000,        // the least work a thread should get
    CHUNK_NS = 1000,        // the least work of a chunk
    CHUNKS_A_THREAD = 8,    // enough to even out threads that are held up
    SPIN_NS = 80000,        // how long a worker stays awake without work
    FORGET_NS = 200000,     // launches further apart than this are not in a row
    CHECK_EVERY = 32,       // looks at the gate between looks at the clock
};

// The gate: bits 0-9 workers inside, 10-19 width, 20 open, 21-63 number of the launch.
#define INSIDE_MASK 1023u
#define WIDTH_SHIFT 10
#define OPEN_BIT ((uint64_t)1 << 20)
#define NUMBER_SHIFT 21

static int gate_width(uint64_t gate) { return (int)(gate >> WIDTH_SHIFT & 1023); }
static uint64_t gate_number(uint64_t gate) { return gate >> NUMBER_SHIFT; }

// Two lines, since processors fetch them in pairs.
#define OWN_LINES _Alignas(128)

// What one thread has left of its range. Thread 0 is the caller.
typedef struct range {
    OWN_LINES atomic_llong next;
    int64_t end;
} range;

typedef struct worker {
    OWN_LINES atomic_int asleep;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} worker;

static struct {
    OWN_LINES _Atomic uint64_t gate;
    // The launch that the gate speaks of.
    tb_launch job;
    int64_t chunk;
    int width;
    uint32_t float_mode;
    atomic_int cpu;          // the caller's

    OWN_LINES atomic_flag busy;
    int started;             // workers 1 .. started exist
    int64_t row_cost;        // estimated work of the last launches in a row that ran alone for want of awake workers
    int64_t row_end;         // and when the last of them ended

    OWN_LINES atomic_int threads;  // as set; 0 means not yet known
    atomic_int cpus;
    range range[MAX_THREADS];
    worker worker[MAX_THREADS];
} pool = {.busy = ATOMIC_FLAG_INIT};

// The machine ---------------------------------------------------------------------------------------------------------

static inline void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// Rounding and denormal modes: workers compute with the caller's, so that the bits do not depend on who does a task.
static inline uint32_t get_float_mode(void) {
#if defined(__SSE__)
    return __builtin_ia32_stmxcsr() & ~0x3Fu;  // without the flags of past exceptions
#elif defined(__aarch64__)
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (uint32_t)mode;
#else
    return 0;
#endif
}

static inline void set_float_mode(uint32_t mode) {
#if defined(__SSE__)
    __builtin_ia32_ldmxcsr(mode);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
#endif
}

static int count_cpus(void) {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

static int clamp_threads(int64_t threads) { return threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : (int)threads; }

static int default_threads(void) {
    const char *wanted = getenv("OMP_NUM_THREADS");
    long number = wanted ? strtol(wanted, NULL, 10) : 0;
    return clamp_threads(number > 0 ? number : atomic_load_explicit(&pool.cpus, memory_order_relaxed));
}

// Work ----------------------------------------------------------------------------------------------------------------

static inline void run_alone(const tb_launch *l) { l->fn(l->ptr, l->size, l->stride, l->scalar, 0, l->tasks); }

static void drain(range *r) {
    const tb_launch *job = &pool.job;
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&r->next, pool.chunk, memory_order_relaxed);
        if (begin >= r->end)
            return;
        int64_t end = begin + pool.chunk < r->end ? begin + pool.chunk : r->end;
        job->fn(job->ptr, job->size, job->stride, job->scalar, begin, end);
    }
}

static void work(int self) {
    drain(&pool.range[self]);
    for (int i = 1; i < pool.width; i++) {
        range *other = &pool.range[(self + i) % pool.width];
        if (atomic_load_explicit(&other->next, memory_order_relaxed) < other->end)
            drain(other);
    }
}

// Workers -------------------------------------------------------------------------------------------------------------

static uint64_t look(void) { return atomic_load_explicit(&pool.gate, memory_order_acquire); }

// A worker beyond the set number, or one too many for the CPUs, would only take time from those that work.
static int may_spin(int self) {
    int threads = atomic_load_explicit(&pool.threads, memory_order_relaxed);
    return self < threads && threads <= atomic_load_explicit(&pool.cpus, memory_order_relaxed);
}

static int spin_for_launch(int self, uint64_t seen) {
    if (!may_spin(self))
        return gate_number(look()) != seen;
    int64_t until = now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < CHECK_EVERY; i++) {
            if (gate_number(look()) != seen)
                return 1;
            pause_cpu();
        }
    } while (now_ns() < until);
    return 0;
}

// A launch that opens after the second look finds `asleep` set; at worst this worker misses it.
static void sleep_until_woken(worker *w, uint64_t seen) {
    atomic_store(&w->asleep, 1);
    if (gate_number(atomic_load(&pool.gate)) != seen) {
        atomic_store(&w->asleep, 0);
        return;
    }
    pthread_mutex_lock(&w->lock);
    while (atomic_load(&w->asleep))
        pthread_cond_wait(&w->wake, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void wake(worker *w) {
    if (!atomic_exchange(&w->asleep, 0))
        return;
    // The worker has either seen the 0 or waits: holding the lock for a moment rules out anything in between.
    pthread_mutex_lock(&w->lock);
    pthread_mutex_unlock(&w->lock);
    pthread_cond_signal(&w->wake);
}

#if defined(__linux__)
static int current_cpu(void) { return sched_getcpu(); }

// Moves the calling thread to another CPU of those it may use, if it is on this one: schedulers look rarely.
static void leave(int cpu) {
    cpu_set_t all, others;
    if (current_cpu() != cpu || sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    others = all;
    CPU_CLR(cpu, &others);
    if (sched_setaffinity(0, sizeof others, &others) == 0)
        sched_setaffinity(0, sizeof all, &all);
}
#else
static int current_cpu(void) { return -1; }
static void leave(int cpu) { (void)cpu; }
#endif

static void join_launch(int self, uint64_t gate) {
    uint64_t number = gate_number(gate);
    while ((gate & OPEN_BIT) && gate_number(gate) == number) {
        if (!atomic_compare_exchange_weak_explicit(&pool.gate, &gate, gate + 1, memory_order_acquire, memory_order_acquire))
            continue;
        set_float_mode(pool.float_mode);
        work(self);
        atomic_fetch_sub_explicit(&pool.gate, 1, memory_order_release);
        return;
    }
}

static void *worker_main(void *argument) {
    int self = (int)(intptr_t)argument;
    uint64_t seen = 0;
    for (;;) {
        while (!spin_for_launch(self, seen))
            sleep_until_woken(&pool.worker[self], seen);
        uint64_t gate = look();
        seen = gate_number(gate);
        if (self >= gate_width(gate))
            continue;
        if (may_spin(self))
            leave(atomic_load_explicit(&pool.cpu, memory_order_relaxed));
        join_launch(self, gate);
    }
    return NULL;
}

// Signals for the process go to its own threads; faults stay with the thread that made them.
static void block_signals(sigset_t *old) {
    sigset_t all;
    sigfillset(&all);
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, old);
}

static int start_worker(int self) {
    worker *w = &pool.worker[self];
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    atomic_store(&w->asleep, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_t thread;
    int failed = pthread_create(&thread, &attributes, worker_main, (void *)(intptr_t)self);
    pthread_attr_destroy(&attributes);
#if defined(__linux__)
    if (!failed)
        pthread_setname_np(thread, "tb-worker");
#endif
    return !failed;
}

// Fewer threads than wanted (a limit of the system) are simply fewer: the launch runs on those there are.
static void start_workers(int wanted) {
    sigset_t old;
    block_signals(&old);
    while (pool.started < wanted && start_worker(pool.started + 1))
        pool.started++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

// Launches ------------------------------------------------------------------------------------------------------------

static inline int worth_sharing(const tb_launch *l) {
    return l->cost >= HOT_NS && l->tasks > 1 && atomic_load_explicit(&pool.threads, memory_order_relaxed) != 1;
}

static int choose_width(const tb_launch *l) {
    int64_t width = tb_get_threads();
    if (width > l->tasks)
        width = l->tasks;
    if (width > l->cost / GRAIN_NS)
        width = l->cost / GRAIN_NS;
    return (int)width;
}

static int any_awake(int width) {
    for (int i = 1; i < width && i <= pool.started; i++)
        if (!atomic_load_explicit(&pool.worker[i].asleep, memory_order_relaxed))
            return 1;
    return 0;
}

// Launches that are each too short to wake a worker for, but together are not, when they come in a row.
static int64_t cost_in_a_row(const tb_launch *l) {
    int64_t now = now_ns();
    if (now - pool.row_end > FORGET_NS)
        pool.row_cost = 0;
    pool.row_cost += l->cost;
    pool.row_end = now + l->cost;
    return pool.row_cost;
}

enum { ALONE, SHARE, WAKE };

// `ahead` is the work known to come, this launch included.
static int decide(const tb_launch *l, int width, int64_t ahead) {
    if (width < 2)
        return ALONE;
    if (ahead >= COLD_NS)
        return WAKE;
    if (any_awake(width))
        return SHARE;
    return cost_in_a_row(l) >= COLD_NS ? WAKE : ALONE;
}

static void wake_workers(int width) {
    pool.row_cost = 0;
    start_workers(width - 1);
    for (int i = 1; i < width && i <= pool.started; i++)
        if (atomic_load_explicit(&pool.worker[i].asleep, memory_order_relaxed))
            wake(&pool.worker[i]);
}

static int64_t choose_chunk(const tb_launch *l, int width) {
    int64_t even = (l->tasks + (int64_t)width * CHUNKS_A_THREAD - 1) / ((int64_t)width * CHUNKS_A_THREAD);
    int64_t chunks = l->cost / CHUNK_NS;
    int64_t least = (l->tasks + chunks - 1) / chunks;
    return even > least ? even : least;
}

static void open_gate(const tb_launch *l, int width) {
    pool.job = *l;
    pool.width = width;
    pool.chunk = choose_chunk(l, width);
    pool.float_mode = get_float_mode();
    atomic_store_explicit(&pool.cpu, current_cpu(), memory_order_relaxed);
    int64_t begin = 0;
    for (int i = 0; i < width; i++) {
        atomic_store_explicit(&pool.range[i].next, begin, memory_order_relaxed);
        begin += l->tasks / width + (i < l->tasks % width);
        pool.range[i].end = begin;
    }
    uint64_t number = gate_number(look()) + 1;
    uint64_t gate = number << NUMBER_SHIFT | OPEN_BIT | (uint64_t)width << WIDTH_SHIFT;
    atomic_store(&pool.gate, gate);
}

static void close_gate(void) {
    uint64_t gate = atomic_fetch_and_explicit(&pool.gate, ~OPEN_BIT, memory_order_acquire);
    for (int looks = 1; gate & INSIDE_MASK; looks++) {
        // A worker that has lost its CPU must get one back, perhaps ours.
        if (looks % 1024 == 0)
            sched_yield();
        pause_cpu();
        gate = look();
    }
}

static void run_shared(const tb_launch *l, int64_t ahead) {
    if (atomic_flag_test_and_set_explicit(&pool.busy, memory_order_acquire)) {
        run_alone(l);
        return;
    }
    int width = choose_width(l);
    int decision = decide(l, width, ahead);
    if (decision == ALONE) {
        atomic_flag_clear_explicit(&pool.busy, memory_order_release);
        run_alone(l);
        return;
    }
    open_gate(l, width);
    if (decision == WAKE)
        wake_workers(width);
    work(0);
    close_gate();
    atomic_flag_clear_explicit(&pool.busy, memory_order_release);
}

void tb_run(const tb_launch *l) {
    if (worth_sharing(l))
        run_shared(l, l->cost);
    else
        run_alone(l);
}

void tb_run_on(const tb_launch *l, int64_t pointers, const int64_t *words) {
    tb_launch own = *l;
    own.ptr = (void *const *)words;
    own.scalar = words + pointers;
    tb_run(&own);
}

void tb_run_list(const tb_launch *l, int64_t count) {
    int64_t ahead = 0;
    for (int64_t i = 0; i < count; i++)
        ahead += worth_sharing(&l[i]) ? l[i].cost : 0;
    for (int64_t i = 0; i < count; i++) {
        if (worth_sharing(&l[i])) {
            run_shared(&l[i], ahead);
            ahead -= l[i].cost;
        } else {
            run_alone(&l[i]);
        }
    }
}

void tb_run_together(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                     int64_t begin, int64_t end) {
    (void)stride;
    (void)scalar;
    const tb_launch *l = ptr[0];
    const int64_t *first = size + 1;
    for (int64_t k = 0; k < size[0] && first[k] < end; k++) {
        int64_t from = begin > first[k] ? begin : first[k];
        int64_t to = end < first[k + 1] ? end : first[k + 1];
        if (from < to)
            l[k].fn(l[k].ptr, l[k].size, l[k].stride, l[k].scalar, from - first[k], to - first[k]);
    }
}

void tb_fill(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
             int64_t end) {
    (void)scalar;
    uint64_t *const words = ptr[0];
    const uint64_t *const given = ptr[1];
    const int64_t count = begin < end ? size[0] : 0, *const to = size + 1, *const from = to + count;
    for (int64_t i = 0; i < count; i++)
        words[to[i]] = given[from[i]] + (uint64_t)stride[i];
}

int64_t tb_get_threads(void) { return atomic_load_explicit(&pool.threads, memory_order_relaxed); }

int64_t tb_set_threads(int64_t threads) {
    atomic_store(&pool.cpus, count_cpus());
    atomic_store(&pool.threads, threads > 0 ? clamp_threads(threads) : default_threads());
    return tb_get_threads();
}

// Load and fork -------------------------------------------------------------------------------------------------------

// Only the forking thread exists in the child. A launch that another thread had on the pool is not ours to finish, and
// the next one writes the whole gate anew.
static void forget_workers(void) {
    pool.started = 0;
    pool.row_cost = 0;
    atomic_flag_clear(&pool.busy);
}

__attribute__((constructor)) static void load_pool(void) {
    tb_set_threads(0);
    pthread_atfork(NULL, NULL, forget_workers);
}
