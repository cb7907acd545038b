// SPDX-License-Identifier: Apache-2.0
// emulator/faults.h — signals that a kernel raises, as reports
#ifndef TB_EMULATOR_FAULTS_H
#define TB_EMULATOR_FAULTS_H

#include "memory.h"

#include <pthread.h>
#include <signal.h>

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
        if (!is_near(at, buffer)) continue;
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
        if (!is_near(at, buffer)) continue;
        complain({}, "out of bounds: byte %td of the shared array %s of %zu bytes", at - site->memory, site->name, site->size);
        return;
    }
    if (dynamic_shared.pages && is_near(at, dynamic_shared)) {
        complain({}, "out of bounds: byte %td of %u bytes of dynamic shared memory", at - dynamic_shared.start, setup->shared);
        return;
    }
    if (at >= current_fiber->stack - BELOW && at < current_fiber->stack) {
        complain({}, "stack overflow: a thread has %zu KiB", STACK >> 10);
        return;
    }
    complain({}, "access to address %p, which is in no buffer", (void *)at);
}

static void describe_signal(int number, const siginfo_t *facts) {
    if (number == SIGFPE) complain({}, "integer division by zero (a device goes on with an undefined value)");
    else if (number == SIGILL || number == SIGTRAP) {
        complain({}, "an address is misaligned for its type, or, where indices are checked, an array's index is out of its bounds");
    }
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
    for (int i = 0; i < SIGNAL_COUNT; ++i) {
        struct sigaction was;
        sigaction(SIGNALS[i], &action, &was);
        if (was.sa_sigaction != on_signal) previous[i] = was;  // else of a launch that a fork has cut off
    }
    return before;
}

static void release_signals(const stack_t &before) {
    for (int i = 0; i < SIGNAL_COUNT; ++i) sigaction(SIGNALS[i], &previous[i], nullptr);
    sigaltstack(&before, nullptr);
}

#endif
