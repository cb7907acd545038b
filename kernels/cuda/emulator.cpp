// SPDX-License-Identifier: Apache-2.0
// emulator.cpp — the threads of emulated kernels: one block at a time, one operating system thread, a fiber where needed
//
// Scheduling    A fiber runs one thread of the block after another. A thread that has to wait keeps the fiber, and the
//               next threads run on another one: a kernel that never waits is a plain loop.
// Order         Threads start, and go on after waiting, in the order asked for; so do blocks. A result that depends on
//               it shows a missing barrier. Threads are switched at barriers and warp operations alone, so atomics are
//               plain reads and writes.
// Faults        A signal, or a check, writes a report and switches back to the caller; the fibers are made anew.
// Memory        Buffers and shared arrays end at a page that cannot be touched; what the page cannot see (bytes up to
//               the alignment, bytes in front) holds 0xFF, and is looked at after the block or the launch.
// Checked       tests/gpu/test_emulator.py
#include "../cuda/emulator_runtime.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>

using namespace emulator;

// ---- switching stacks -----------------------------------------------------------------------------------------------

// Save this stack's registers on it, its top in *save, and go on with the stack whose top is `to`.
extern "C" void emulator_switch(void **save, void *to) __asm__("emulator_switch");
static void fiber_main();

#if defined(__x86_64__)
__asm__(R"(
.text
.globl emulator_switch
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
static void *fresh_stack(unsigned char *top) {
    void **slot = (void **)top;
    *--slot = nullptr;  // the return address of fiber_main, where a debugger stops unwinding
    *--slot = (void *)fiber_main;
    for (int i = 0; i < 6; ++i) *--slot = nullptr;
    return slot;
}
#elif defined(__aarch64__)
__asm__(R"(
.text
.globl emulator_switch
emulator_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");
static void *fresh_stack(unsigned char *top) {
    void **slot = (void **)(top - 160);
    memset(slot, 0, 160);
    slot[11] = (void *)fiber_main;
    return slot;
}
#else
extern "C" void emulator_switch(void **save, void *to) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, (ucontext_t *)to);
}
static const size_t CONTEXT_ROOM = (sizeof(ucontext_t) + 63) / 64 * 64;
static void *fresh_stack(unsigned char *top) {
    ucontext_t *context = (ucontext_t *)(top - CONTEXT_ROOM);
    getcontext(context);
    context->uc_stack.ss_sp = top - (48 << 10);
    context->uc_stack.ss_size = (48 << 10) - CONTEXT_ROOM;
    context->uc_link = nullptr;
    makecontext(context, fiber_main, 0);
    return context;
}
#endif

// ---- state ----------------------------------------------------------------------------------------------------------

static const unsigned WARP = 32;
static const unsigned MAX_THREADS = 1024;
static const size_t STACK = 64 << 10;
static const size_t FRONT = 64;  // bytes in front of an allocation that are looked at

enum State { RUNNING, READY, AT_BARRIER, AT_WARP, DONE };

struct Fiber {
    unsigned char *stack;
    void *top;
};

struct Thread {
    Index index;
    State state;
    Fiber *fiber;
    Place place;
    Operation operation;
    unsigned mask, size;
    int source;
    unsigned char value[16], result[16];
};

struct Warp {
    unsigned existing, waiting, done;
};

// A range with guard pages around `pages`; what is used of it ends `slack` bytes before the second guard.
struct Buffer {
    unsigned char *start, *end, *pages, *guard;
};

static Thread threads[MAX_THREADS];
static Warp warps[MAX_THREADS / WARP];
static Fiber fibers[MAX_THREADS + 1];
static Fiber *idle[MAX_THREADS + 1];
static unsigned fiber_count, idle_count;
static int order[MAX_THREADS];       // the order in which threads start
static int queue[MAX_THREADS + 1];   // threads that may go on, a ring
static unsigned queue_first, queue_length;

static const Setup *setup;
static const Binding *binding;
static Report *report;
static unsigned thread_count, started, finished, arrived, votes, vote_result;
static int current;                  // the thread that runs
static Fiber *current_fiber;         // the fiber that runs; null while the scheduler does
static void *scheduler_stack, *abandoned_stack;
static bool failed;
static uint64_t random_state;

static unsigned long long block_number;
static Site *used_sites;
static unsigned static_shared;
static Buffer dynamic_shared;
static Buffer *buffers;
static size_t buffer_count, buffer_room;

static size_t page_size() {
    static const size_t size = (size_t)sysconf(_SC_PAGESIZE);
    return size;
}

// ---- reports --------------------------------------------------------------------------------------------------------

static void write_report(Place place, const char *format, va_list arguments) {
    vsnprintf(report->message, sizeof report->message, format, arguments);
    snprintf(report->file, sizeof report->file, "%s", place.file ? place.file : "");
    report->line = place.line;
}

static void complain(Place place, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_report(place, format, arguments);
    va_end(arguments);
    failed = true;
}

static void name_thread(int thread) {
    report->has_thread = 1;
    report->block = *binding->block_index;
    report->thread = threads[thread].index;
}

[[noreturn]] static void leave_kernel() {
    name_thread(current);
    failed = true;
    current_fiber = nullptr;
    emulator_switch(&abandoned_stack, scheduler_stack);
    abort();
}

void emulator_fail(Place place, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_report(place, format, arguments);
    va_end(arguments);
    leave_kernel();
}

// ---- memory ---------------------------------------------------------------------------------------------------------

static size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

static Buffer map_guarded(size_t size) {
    size_t page = page_size(), body = round_up(size ? size : 1, page);
    void *map = mmap(nullptr, body + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return {};
    unsigned char *pages = (unsigned char *)map + page, *guard = pages + body;
    if (mprotect(pages, body, PROT_READ | PROT_WRITE) != 0) {
        munmap(map, body + 2 * page);
        return {};
    }
    return {guard - size, guard, pages, guard};
}

static void unmap_guarded(const Buffer &buffer) {
    munmap(buffer.pages - page_size(), (size_t)(buffer.guard - buffer.pages) + 2 * page_size());
}

static bool untouched(const unsigned char *from, const unsigned char *to) {
    while (from < to) {
        if (*from++ != 0xFF) return false;
    }
    return true;
}

static const unsigned char *front_of(const Buffer &buffer) {
    return std::max(buffer.pages, buffer.start - std::min<size_t>(FRONT, (size_t)(buffer.start - buffer.pages)));
}

// What was written around the buffer: "" when nothing was.
static const char *trespass(const Buffer &buffer) {
    if (!untouched(buffer.end, buffer.guard)) return "past the end";
    if (!untouched(front_of(buffer), buffer.start)) return "in front";
    return "";
}

// Other host threads allocate and free while a kernel runs and its buffers are looked up.
static volatile char buffers_in_use;

struct UsingBuffers {
    UsingBuffers() {
        while (__atomic_test_and_set(&buffers_in_use, __ATOMIC_ACQUIRE)) sched_yield();
    }
    ~UsingBuffers() { __atomic_clear(&buffers_in_use, __ATOMIC_RELEASE); }
};

void *emulator_allocate(Size size) {
    const UsingBuffers alone;
    Buffer buffer = map_guarded(round_up(size, 16));
    if (!buffer.pages) return nullptr;
    buffer.end = buffer.start + size;
    if (buffer_count == buffer_room) {
        buffer_room = buffer_room ? 2 * buffer_room : 64;
        buffers = (Buffer *)realloc(buffers, buffer_room * sizeof(Buffer));
    }
    memset(buffer.pages, 0xFF, (size_t)(buffer.guard - buffer.pages));
    buffers[buffer_count++] = buffer;
    return buffer.start;
}

bool emulator_free(void *address) {
    const UsingBuffers alone;
    for (size_t i = buffer_count; i-- > 0;) {
        if (buffers[i].start != address) continue;
        unmap_guarded(buffers[i]);
        buffers[i] = buffers[--buffer_count];
        return true;
    }
    return false;
}

bool emulator_contains(const void *address, Size size) {
    const UsingBuffers alone;
    const unsigned char *from = (const unsigned char *)address;
    for (size_t i = 0; i < buffer_count; ++i) {
        if (from >= buffers[i].start && from <= buffers[i].end) return size <= (Size)(buffers[i].end - from);
    }
    return false;
}

static Buffer site_buffer(const Site *site) {
    unsigned char *pages = (unsigned char *)((uintptr_t)site->memory / page_size() * page_size());
    return {site->memory, site->memory + site->size, pages, site->guard};
}

void *emulator_shared(Site *site, Size size, Size alignment, const char *name) {
    if (site->block_number == block_number) return site->memory;
    if (!site->memory) {
        Buffer buffer = map_guarded(round_up(size, alignment));
        if (!buffer.pages) emulator_fail({}, "the host has no memory for shared array %s", name);
        *site = {name, buffer.start, buffer.guard, size, 0, nullptr};
    }
    static_shared += (unsigned)size;
    if (static_shared > 48u << 10) emulator_fail({}, "more than 48 KiB of static shared memory, with array %s", name);
    if (static_shared + setup->shared > setup->shared_limit) {
        emulator_fail({}, "%u bytes of static and %u of dynamic shared memory; a block may have %u", static_shared,
                      setup->shared, setup->shared_limit);
    }
    Buffer buffer = site_buffer(site);
    memset(buffer.pages, 0xFF, (size_t)(buffer.guard - buffer.pages));
    memset(site->memory, setup->fill, size);
    site->block_number = block_number;
    site->next = used_sites;
    used_sites = site;
    return site->memory;
}

void *emulator_dynamic_shared(void) { return dynamic_shared.start; }

static void prepare_dynamic_shared() {
    if (!dynamic_shared.pages) dynamic_shared = map_guarded(256 << 10);
    dynamic_shared.start = dynamic_shared.guard - round_up(setup->shared, 16);
    dynamic_shared.end = dynamic_shared.start + setup->shared;
    unsigned char *front = (unsigned char *)front_of(dynamic_shared);
    memset(front, 0xFF, (size_t)(dynamic_shared.guard - front));
    memset(dynamic_shared.start, setup->fill, setup->shared);
}

static void check_shared() {
    const char *where = setup->shared ? trespass(dynamic_shared) : "";
    if (*where) complain({}, "the block wrote %s of its %u bytes of dynamic shared memory", where, setup->shared);
    for (const Site *site = used_sites; site; site = site->next) {
        where = trespass(site_buffer(site));
        if (*where) complain({}, "the block wrote %s of the shared array %s (%zu bytes)", where, site->name, site->size);
    }
}

// Looks around the buffers that the arguments point into.
static void check_buffers() {
    const UsingBuffers alone;
    for (size_t at = 0; at + sizeof(uintptr_t) <= setup->argument_size; at += sizeof(uintptr_t)) {
        unsigned char *pointer;
        memcpy(&pointer, (const char *)setup->arguments + at, sizeof pointer);
        for (size_t i = 0; i < buffer_count; ++i) {
            const Buffer &buffer = buffers[i];
            if (pointer < buffer.pages || pointer > buffer.guard) continue;
            const char *where = trespass(buffer);
            if (*where) complain({}, "the kernel wrote %s of a buffer of %zu bytes", where, buffer.end - buffer.start);
        }
    }
}

// ---- order ----------------------------------------------------------------------------------------------------------

static uint64_t next_random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void shuffle(int *values, unsigned count) {
    for (unsigned i = count; i > 1; --i) std::swap(values[i - 1], values[next_random() % i]);
}

static void arrange(int *values, unsigned count) {
    if (setup->order == RANDOM) shuffle(values, count);
    if (setup->order == REVERSE) std::reverse(values, values + count);
}

static void enqueue(int *list, unsigned count) {
    arrange(list, count);
    for (unsigned i = 0; i < count; ++i) {
        threads[list[i]].state = READY;
        queue[(queue_first + queue_length++) % (MAX_THREADS + 1)] = list[i];
    }
}

static int dequeue() {
    int thread = queue[queue_first];
    queue_first = (queue_first + 1) % (MAX_THREADS + 1);
    --queue_length;
    return thread;
}

// ---- threads that wait ----------------------------------------------------------------------------------------------

static void wait(State state, Place place) {
    Thread &thread = threads[current];
    thread.state = state;
    thread.place = place;
    thread.fiber = current_fiber;
    current_fiber = nullptr;
    emulator_switch(&thread.fiber->top, scheduler_stack);
}

unsigned emulator_barrier(bool vote, Place place) {
    ++arrived;
    votes += vote;
    wait(AT_BARRIER, place);
    return vote_result;
}

unsigned long long emulator_block(void) { return block_number; }

unsigned emulator_lane(void) { return (unsigned)current % WARP; }

void emulator_exchange(Operation operation, unsigned mask, int source, const void *value, void *result, unsigned size,
                       Place place) {
    Thread &thread = threads[current];
    unsigned lane = emulator_lane();
    if (!(mask >> lane & 1)) emulator_fail(place, "lane %u is not in the mask 0x%08x it gives", lane, mask);
    thread.operation = operation;
    thread.mask = mask;
    thread.source = source;
    thread.size = size;
    memcpy(thread.value, value, size);
    warps[current / WARP].waiting |= 1u << lane;
    wait(AT_WARP, place);
    memcpy(result, threads[current].result, operation == SHUFFLE ? size : sizeof(unsigned));
}

static unsigned lanes_where(const Thread *warp, unsigned group, const Thread &me) {
    unsigned found = 0;
    for (unsigned lane = 0; lane < WARP; ++lane) {
        if (!(group >> lane & 1)) continue;
        bool yes = me.operation == MATCH ? memcmp(warp[lane].value, me.value, me.size) == 0 : warp[lane].value[0] != 0;
        found |= (unsigned)yes << lane;
    }
    return found;
}

static void answer(const Thread *warp, unsigned group, Thread &me) {
    memset(me.result, setup->fill, sizeof me.result);  // what a lane that is not there answers
    if (me.operation == SHUFFLE) {
        if (group >> me.source & 1) memcpy(me.result, warp[me.source].value, me.size);
        return;
    }
    unsigned found = lanes_where(warp, group, me);
    memcpy(me.result, &found, sizeof found);
}

static bool same_place(const Place &a, const Place &b) { return a.line == b.line && strcmp(a.file, b.file) == 0; }

// Let the lanes that wait with the lane of `thread` go on, when all of them have come.
static void release_lanes(int thread) {
    Warp &state = warps[thread / WARP];
    int first = thread / (int)WARP * (int)WARP;
    Thread *warp = threads + first;
    const Thread &me = threads[thread];
    unsigned group = me.mask & state.existing & ~state.done;
    if (group & ~state.waiting) return;
    int list[WARP];
    unsigned count = 0;
    for (unsigned lane = 0; lane < WARP; ++lane) {
        if (!(group >> lane & 1)) continue;
        if (warp[lane].mask != me.mask) return;
        bool together = warp[lane].operation == me.operation && (me.operation == SYNC || same_place(warp[lane].place, me.place));
        if (!together) {
            name_thread(thread);
            complain(me.place, "lanes of a warp meet at different operations: one is at line %d, another at line %d",
                     me.place.line, warp[lane].place.line);
            return;
        }
        list[count++] = first + (int)lane;
    }
    for (unsigned i = 0; i < count; ++i) answer(warp, group, threads[list[i]]);
    state.waiting &= ~group;
    enqueue(list, count);
}

// Lanes that wait for others which have left the kernel since; whether there were any.
static bool release_left_lanes() {
    for (unsigned i = 0; i < thread_count && !failed; ++i) {
        if (threads[i].state == AT_WARP) release_lanes((int)i);
    }
    return queue_length > 0 || failed;
}

static void release_block() {
    const Thread &first = threads[order[0]];
    for (unsigned i = 0; i < thread_count; ++i) {
        const Thread &thread = threads[i];
        if (same_place(thread.place, first.place)) continue;
        name_thread((int)i);
        complain(thread.place, "threads of a block meet at different barriers: at line %d and at line %d",
                 first.place.line, thread.place.line);
        return;
    }
    vote_result = votes;
    arrived = votes = 0;
    int list[MAX_THREADS];
    for (unsigned i = 0; i < thread_count; ++i) list[i] = (int)i;
    enqueue(list, thread_count);
}

// ---- threads that run -----------------------------------------------------------------------------------------------

static void finish(int thread) {
    threads[thread].state = DONE;
    ++finished;
    warps[thread / WARP].done |= 1u << thread % WARP;
}

bool emulator_next(void) {
    if (current >= 0) finish(current);
    current = -1;
    if (started == thread_count) return false;
    current = order[started++];
    threads[current].state = RUNNING;
    *binding->thread_index = threads[current].index;
    return true;
}

static void fiber_main() {
    for (;;) {
        binding->run_threads(setup->arguments);
        Fiber *self = current_fiber;
        idle[idle_count++] = self;
        current_fiber = nullptr;
        emulator_switch(&self->top, scheduler_stack);
    }
}

static bool new_fiber() {
    Buffer buffer = map_guarded(STACK);
    if (!buffer.pages) return false;
    Fiber &fiber = fibers[fiber_count++];
    fiber.stack = buffer.pages;
    fiber.top = fresh_stack(buffer.guard);
    idle[idle_count++] = &fiber;
    return true;
}

static void renew_fibers() {
    idle_count = 0;
    for (unsigned i = 0; i < fiber_count; ++i) {
        fibers[i].top = fresh_stack(fibers[i].stack + STACK);
        idle[idle_count++] = &fibers[i];
    }
}

static void switch_to(Fiber *fiber) {
    current_fiber = fiber;
    emulator_switch(&scheduler_stack, fiber->top);
}

static void start_threads() {
    if (idle_count == 0 && !new_fiber()) {
        complain({}, "the host has no memory for the stacks of %u threads", thread_count);
        return;
    }
    current = -1;
    switch_to(idle[--idle_count]);
}

static void resume(int thread) {
    current = thread;
    threads[thread].state = RUNNING;
    *binding->thread_index = threads[thread].index;
    switch_to(threads[thread].fiber);
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

static const char *const WAITS[] = {"__syncwarp", "a shuffle", "a vote", "a match"};

static void describe_deadlock() {
    const Thread *barrier = nullptr, *lane = nullptr;
    for (unsigned i = thread_count; i-- > 0;) {
        if (threads[i].state == AT_BARRIER) barrier = &threads[i];
        if (threads[i].state == AT_WARP) lane = &threads[i];
    }
    const Thread *shown = lane ? lane : barrier;
    name_thread((int)(shown - threads));
    if (!lane) {
        complain(barrier->place, "divergent barrier: %u threads wait at __syncthreads, %u have left the kernel", arrived,
                 finished);
    } else if (!barrier) {
        complain(lane->place, "divergent warp: it waits in %s for lanes 0x%08x, which are not all coming",
                 WAITS[lane->operation], lane->mask);
    } else {
        complain(lane->place, "deadlock: it waits in %s for lanes 0x%08x, of which some wait at the barrier of line %d",
                 WAITS[lane->operation], lane->mask, barrier->place.line);
    }
}

static void begin_block() {
    ++block_number;
    started = finished = arrived = votes = 0;
    queue_first = queue_length = 0;
    used_sites = nullptr;
    static_shared = 0;
    for (unsigned w = 0; w * WARP < thread_count; ++w) {
        unsigned lanes = std::min(WARP, thread_count - w * WARP);
        warps[w] = {lanes == WARP ? ~0u : (1u << lanes) - 1, 0, 0};
    }
    if (setup->order == RANDOM) shuffle(order, thread_count);
    if (setup->shared) prepare_dynamic_shared();
}

static void run_block() {
    begin_block();
    while (!failed && finished < thread_count) {
        if (started < thread_count) start_threads();
        else if (queue_length) resume(dequeue());
        else if (!release_left_lanes()) describe_deadlock();
        if (failed) return;
        if (current >= 0 && threads[current].state == AT_WARP) release_lanes(current);
        if (!failed && arrived == thread_count) release_block();
    }
    if (!failed) check_shared();
}

static void run_grid() {
    Index grid = setup->grid;
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    // Any odd stride that shares no factor with the count visits every block once.
    uint64_t stride = setup->order == RANDOM ? next_random() % blocks | 1 : 1;
    while (std::__gcd(stride, blocks) != 1) stride += 2;
    for (uint64_t i = 0; i < blocks && !failed; ++i) {
        uint64_t block = setup->order == REVERSE ? blocks - 1 - i : (uint64_t)((unsigned __int128)i * stride % blocks);
        *binding->block_index = {(unsigned)(block % grid.x), (unsigned)(block / grid.x % grid.y),
                                 (unsigned)(block / grid.x / grid.y)};
        run_block();
    }
}

// ---- signals --------------------------------------------------------------------------------------------------------

static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
static const int SIGNAL_COUNT = sizeof SIGNALS / sizeof *SIGNALS;
static struct sigaction previous[SIGNAL_COUNT];
static pthread_t kernel_thread;

static void *program_counter(void *context) {
#if defined(__linux__) && defined(__x86_64__)
    return (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__linux__) && defined(__aarch64__)
    return (void *)((ucontext_t *)context)->uc_mcontext.pc;
#else
    return nullptr;
#endif
}

static bool is_misaligned(int number, const siginfo_t *facts) {
#ifdef SI_KERNEL
    if (facts->si_code == SI_KERNEL) return true;
#endif
    return number == SIGBUS;
}

static bool describe_buffer(unsigned char *at) {
    const UsingBuffers alone;
    for (size_t i = 0; i < buffer_count; ++i) {
        const Buffer &buffer = buffers[i];
        if (at < buffer.pages - page_size() || at >= buffer.guard + page_size()) continue;
        size_t size = (size_t)(buffer.end - buffer.start);
        if (at >= buffer.end) complain({}, "out of bounds: byte %zu of a buffer of %zu bytes", at - buffer.start, size);
        else complain({}, "out of bounds: %zu bytes in front of a buffer of %zu bytes", buffer.start - at, size);
        return true;
    }
    return false;
}

static void describe_address(unsigned char *at) {
    if (describe_buffer(at)) return;
    for (const Site *site = used_sites; site; site = site->next) {
        Buffer buffer = site_buffer(site);
        if (at < buffer.pages - page_size() || at >= buffer.guard + page_size()) continue;
        complain({}, "out of bounds: byte %td of the shared array %s of %zu bytes", at - site->memory, site->name, site->size);
        return;
    }
    if (dynamic_shared.pages && at >= dynamic_shared.pages - page_size() && at < dynamic_shared.guard + page_size()) {
        complain({}, "out of bounds: byte %td of %u bytes of dynamic shared memory", at - dynamic_shared.start, setup->shared);
        return;
    }
    if (at >= current_fiber->stack - page_size() && at < current_fiber->stack) {
        complain({}, "stack overflow: a thread has %zu KiB", STACK >> 10);
        return;
    }
    complain({}, "access to address %p, which is in no buffer", (void *)at);
}

static void describe_signal(int number, const siginfo_t *facts) {
    if (number == SIGFPE) complain({}, "integer division by zero (a device goes on with an undefined value)");
    else if (number == SIGILL || number == SIGTRAP) complain({}, "an array's index is out of its bounds");
    else if (is_misaligned(number, facts)) complain({}, "a misaligned or impossible address");
    else describe_address((unsigned char *)facts->si_addr);
}

static void on_signal(int number, siginfo_t *facts, void *context) {
    if (!current_fiber || !pthread_equal(pthread_self(), kernel_thread)) {
        for (int i = 0; i < SIGNAL_COUNT; ++i) {
            if (SIGNALS[i] == number) sigaction(number, &previous[i], nullptr);
        }
        return;  // the same instruction again, with the handler that was there before
    }
    describe_signal(number, facts);
    report->program_counter = program_counter(context);
    leave_kernel();
}

static stack_t catch_signals() {
    static unsigned char room[64 << 10];
    stack_t stack = {}, before;
    stack.ss_sp = room;
    stack.ss_size = sizeof room;
    sigaltstack(&stack, &before);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    // The handler does not return: no signal may stay blocked.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < SIGNAL_COUNT; ++i) sigaction(SIGNALS[i], &action, &previous[i]);
    return before;
}

static void release_signals(const stack_t &before) {
    for (int i = 0; i < SIGNAL_COUNT; ++i) sigaction(SIGNALS[i], &previous[i], nullptr);
    sigaltstack(&before, nullptr);
}

// ---- launches -------------------------------------------------------------------------------------------------------

static void prepare_threads() {
    Index block = setup->block;
    thread_count = block.x * block.y * block.z;
    for (unsigned i = 0; i < thread_count; ++i) {
        threads[i].index = {i % block.x, i / block.x % block.y, i / block.x / block.y};
        order[i] = (int)i;
    }
    arrange(order, thread_count);
}

// One launch at a time: the driver holds a lock. Returns whether the kernel ended well.
int emulator_launch(const Setup *wanted, const Binding *module, Report *answer) {
    setup = wanted;
    binding = module;
    report = answer;
    memset(report, 0, sizeof *report);
    failed = false;
    random_state = setup->seed * 0x9E3779B97F4A7C15ull | 1;
    *binding->block_shape = setup->block;
    *binding->grid_shape = setup->grid;
    prepare_threads();
    kernel_thread = pthread_self();
    stack_t before = catch_signals();
    run_grid();
    release_signals(before);
    if (!failed) check_buffers();
    if (failed) renew_fibers();
    fflush(stdout);
    return !failed;
}
