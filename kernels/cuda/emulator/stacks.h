// SPDX-License-Identifier: Apache-2.0
// emulator/stacks.h — switching stacks: of x86-64 and aarch64 in assembly, of others by ucontext
#ifndef TB_EMULATOR_STACKS_H
#define TB_EMULATOR_STACKS_H

#include <stddef.h>
#include <string.h>
#include <ucontext.h>

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

#endif
