// SPDX-License-Identifier: Apache-2.0
// runtime.h — what every kernel looks like, how it is launched, and where its memory comes from
//
// The runtime is one library a process: runtime.c (thread pool, launches) and allocator.c. It knows nothing of Python.
#ifndef TB_RUNTIME_H
#define TB_RUNTIME_H

#include <stdint.h>

// A kernel does the tasks [begin, end) of a launch. The bits it writes are the same for any partition of [0, tasks):
// work is cut by size, never by thread count. A scalar is 8 bytes whose meaning the kernel knows (int64, double, or a
// float in the low half).
typedef void (*tb_kernel)(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                          int64_t begin, int64_t end);

typedef struct tb_launch {
    tb_kernel fn;
    int64_t tasks;
    int64_t cost;  // estimated nanoseconds of all tasks on one thread: decides whether other threads help
    void *const *ptr;
    const int64_t *size, *stride, *scalar;
} tb_launch;

// Runs one launch, or `count` launches in order; each is complete when the call returns. Any thread may call them at
// any time, also from inside a kernel: while the pool is taken, the caller works alone.
void tb_run(const tb_launch *launch);
void tb_run_list(const tb_launch *launch, int64_t count);

// Runs a launch on other operands than its own: `words` are its addresses, `pointers` of them, and then its scalars. Who
// packs them so shares nothing with those who come in between: finalizers and handlers of signals that launch the same.
void tb_run_on(const tb_launch *launch, int64_t pointers, const int64_t *words);

// A kernel that is several launches, none of which needs another: `ptr[0]` holds their heads, `size` their number and the
// number of tasks before each and of all.
void tb_run_together(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                     int64_t begin, int64_t end);

// A kernel that fills in what other launches of a list take: word `to` of ptr[0] becomes word `from` of ptr[1] plus an
// offset. `size` holds their number, all `to`, all `from`; `stride` the offsets. Its one task does it all.
void tb_fill(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
             int64_t end);

// Threads that work on a launch, the caller's included. 0 and below stands for the default: OMP_NUM_THREADS, else the
// CPUs that the process may use. Returns what is in force.
int64_t tb_set_threads(int64_t threads);
int64_t tb_get_threads(void);

// Memory for tensors: 64-byte aligned, contents undefined, NULL when there is none. `bytes` must be the same in both
// calls. Freed blocks are kept for reuse.
void *tb_alloc(int64_t bytes);
void tb_free(void *block, int64_t bytes);
// Gives all kept blocks back to the system.
void tb_alloc_trim(void);
// Bytes of freed blocks to keep at most (default: a quarter of the machine's memory).
void tb_alloc_set_limit(int64_t bytes);
// Bytes in use, bytes kept, most bytes ever in use, and calls of tb_alloc.
void tb_alloc_stats(int64_t out[4]);
// Makes the bytes now in use the most ever in use.
void tb_alloc_reset_peak(void);

#endif
