// SPDX-License-Identifier: Apache-2.0
// emulator/waiting.h — threads that wait, at barriers and for lanes of their warp, and the order in which they go on
#ifndef TB_EMULATOR_WAITING_H
#define TB_EMULATOR_WAITING_H

#include "state.h"

#include <algorithm>

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

#endif
