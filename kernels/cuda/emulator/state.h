// SPDX-License-Identifier: Apache-2.0
// emulator/state.h — the state of a launch, and its report
#ifndef TB_EMULATOR_STATE_H
#define TB_EMULATOR_STATE_H

#include "../emulator_runtime.h"
#include "stacks.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

using namespace emulator;

static const unsigned WARP = 32;
static const unsigned MAX_THREADS = 1024;
static const size_t STACK = 64 << 10;
static const size_t FRONT = 4096;  // bytes in front of an allocation that are looked at
static const size_t WIDE = 16 << 20;  // bytes before and after an allocation that cannot be touched, if there is room
static const size_t BELOW = 1 << 20;  // the same of a stack

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

// A range from `pages` to `guard`, with `around` bytes before and after it that cannot be touched; `start` to `end` of it
// is used.
struct Buffer {
    unsigned char *start, *end, *pages, *guard;
    size_t around;
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

#endif
