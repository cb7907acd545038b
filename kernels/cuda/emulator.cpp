// SPDX-License-Identifier: Apache-2.0
// emulator.cpp — the threads of emulated kernels: one block at a time, one operating system thread, a fiber where needed
//
// Scheduling    A fiber runs one thread of the block after another. A thread that has to wait keeps the fiber, and the
//               next threads run on another one: a kernel that never waits is a plain loop.
// Order         Threads start, and go on after waiting, in the order asked for; so do blocks. A result that depends on
//               it shows a missing barrier. Threads are switched at barriers and warp operations alone, so atomics are
//               plain reads and writes.
// Faults        A signal, or a check, writes a report and switches back to the caller; the fibers are made anew.
// Parts         emulator/stacks.h switches stacks, state.h is what all share, memory.h guards buffers, waiting.h is
//               barriers and warps, faults.h signals; here threads, blocks and grids run.
// Checked       tests/gpu/test_emulator.py
#include "../cuda/emulator/faults.h"
#include "../cuda/emulator/memory.h"
#include "../cuda/emulator/waiting.h"

#include <string.h>

#include <algorithm>

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
    Buffer buffer = map_guarded(STACK, BELOW);
    if (!buffer.pages) return false;
    Fiber &fiber = fibers[fiber_count];
    fiber.stack = buffer.pages;
    fiber.top = fresh_stack(buffer.guard);
    idle[idle_count++] = &fiber;
    ++fiber_count;
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
    check_buffers();
    if (failed) renew_fibers();
    fflush(stdout);
    return !failed;
}

// ---- fork -----------------------------------------------------------------------------------------------------------

// Only the forking thread exists in the child: a kernel that another one ran is not there, nor are its fibers in use.
static void forget_kernel() {
    leave_buffers();
    renew_fibers();
    current_fiber = nullptr;
}

__attribute__((constructor)) static void watch_forks() { pthread_atfork(enter_buffers, leave_buffers, forget_kernel); }
