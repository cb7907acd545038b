// SPDX-License-Identifier: Apache-2.0
// slots.h — memory of a task: one of `slots` pieces of scratch, each behind a word that says whether it is taken
//
// The other words of that word's line are the task's; they are 0 when the first one takes the slot.
//
//     scratch:  word 0 .. word slots - 1, a cache line each | slot 0 | slot 1 | ...
#ifndef TB_SLOTS_H
#define TB_SLOTS_H

#include <stdint.h>

static inline int64_t *slot_word(void *scratch, int64_t slot) { return (int64_t *)scratch + 8 * slot; }

// Waits for a slot when more threads work than there were when the memory was laid out.
static inline int64_t take_slot(void *scratch, int64_t slots) {
    for (int64_t slot = 0;; slot = slot + 1 < slots ? slot + 1 : 0)
        if (!__atomic_exchange_n(slot_word(scratch, slot), 1, __ATOMIC_ACQUIRE)) return slot;
}

static inline void give_slot(void *scratch, int64_t slot) {
    __atomic_store_n(slot_word(scratch, slot), 0, __ATOMIC_RELEASE);
}

static inline void *slot_memory(void *scratch, int64_t slots, int64_t slot, int64_t bytes) {
    return (char *)scratch + 64 * slots + slot * bytes;
}

// Before the first task takes one.
static inline void free_slots(void *scratch, int64_t slots) {
    for (int64_t slot = 0; slot < slots; ++slot) __builtin_memset(slot_word(scratch, slot), 0, 64);
}

#endif
