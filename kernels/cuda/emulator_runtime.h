// SPDX-License-Identifier: Apache-2.0
// emulator_runtime.h — what emulated kernels (emulator.h) and the scheduler of their threads (emulator.cpp) share
#ifndef TB_EMULATOR_RUNTIME_H
#define TB_EMULATOR_RUNTIME_H

namespace emulator {

typedef decltype(sizeof 0) Size;

struct Index {
    unsigned x, y, z;
};

// Where a kernel waits: file and line of its source, through default arguments.
struct Place {
    const char *file;
    int line;
};

enum Order { FORWARD, REVERSE, RANDOM };

// A launch as the driver asks for it.
struct Setup {
    Index grid, block;
    unsigned shared;        // bytes of dynamic shared memory
    unsigned shared_limit;  // most bytes of shared memory, static and dynamic
    int order;
    unsigned long long seed;
    const void *arguments;
    Size argument_size;
    unsigned char fill;  // what shared memory holds, and a lane that is not there answers
};

// What went wrong; `message` is empty when nothing did. `program_counter` stands in for an unknown place.
struct Report {
    char message[512];
    char file[256];
    int line;
    int has_thread;
    Index block, thread;
    void *program_counter;
};

// A module's own variables, which the runtime sets, and its loop over threads.
struct Binding {
    void (*run_threads)(const void *arguments);
    Index *thread_index, *block_index, *block_shape, *grid_shape;
};

// One declaration of static shared memory.
struct Site {
    const char *name;
    unsigned char *memory, *guard;
    Size size, around;
    unsigned long long block_number;  // of the block that filled it last
    Site *next;                       // used by the same block
};

enum Operation { SYNC, SHUFFLE, BALLOT, MATCH };

}  // namespace emulator

extern "C" {
// Start the next thread of the block here; false when all have been started.
bool emulator_next(void);
// Wait for the block; how many threads came with a vote.
unsigned emulator_barrier(bool vote, emulator::Place place);
// Wait for the lanes of `mask`, then: SHUFFLE `result` = the value of lane `source`; BALLOT, MATCH the lanes for which
// `value` is true, or the same as here.
void emulator_exchange(emulator::Operation operation, unsigned mask, int source, const void *value, void *result,
                       unsigned size, emulator::Place place);
unsigned emulator_lane(void);
// A number that no other block, of this launch or another, has.
unsigned long long emulator_block(void);
void *emulator_shared(emulator::Site *site, emulator::Size size, emulator::Size alignment, const char *name);
void *emulator_dynamic_shared(void);
[[noreturn]] void emulator_fail(emulator::Place place, const char *format, ...);
int emulator_launch(const emulator::Setup *setup, const emulator::Binding *binding, emulator::Report *report);

// Memory that ends, and begins where it fills its pages, at pages that cannot be touched; filled with 0xFF.
void *emulator_allocate(emulator::Size size);
bool emulator_free(void *address);
// Whether the bytes lie in one allocation.
bool emulator_contains(const void *address, emulator::Size size);
}

#endif
