// SPDX-License-Identifier: Apache-2.0
// probes.c — what this machine can do at most: memory bandwidth and multiply-add rate, for rooflines
//
// Computes  tb_copy          o[i] = x[i]               streaming stores
//           tb_triad         o[i] = x[i] + a * y[i]    streaming stores
//           tb_triad_cached  the same                  ordinary stores, for operands that stay in cache
//           tb_pass          reads all of x and writes all of o, which differ in length    streaming stores
//           tb_pass_cached   the same                  ordinary stores
//           tb_fma_peak      o[task] = the sum of chains of multiply-adds that depend on nothing but themselves
// Arguments ptr {o, x, y}, float32 and 64-byte aligned; size {elements}; scalar {a as double}. A task is BLOCK elements.
//           tb_pass: size {elements of x, elements of o, tasks}.
//           tb_fma_peak: ptr {o}, one float a task; size {iterations a task}, each of tb_fma_flops() operations.
// Launch    like every kernel, on the pool of the process: probe and kernel are measured under the same conditions
#include <stdint.h>

#include "vector.h"

enum { BLOCK = 16384, CHAINS = 12 };

enum { LANES = TB_VECTOR / 4 };

typedef float vector __attribute__((vector_size(TB_VECTOR)));

#if defined(__clang__)
#define CONTRACT _Pragma("clang fp contract(fast)")
#define MAY_CONTRACT
#else
#define CONTRACT
#define MAY_CONTRACT __attribute__((optimize("fp-contract=fast")))
#endif

static inline int64_t limit(int64_t task, const int64_t *size) { return task * BLOCK < size[0] ? task * BLOCK : size[0]; }

static inline vector load(const float *x) { return *(const vector *)x; }

void tb_copy(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
             int64_t end) {
    float *o = ptr[0];
    const float *x = ptr[1];
    int64_t i = begin * BLOCK, stop = limit(end, size);
    for (; i + LANES <= stop; i += LANES)
        store_past(o + i, load(x + i));
    for (; i < stop; i++)
        o[i] = x[i];
    finish_stores();
}

void tb_triad(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
              int64_t end) {
    float *o = ptr[0];
    const float *x = ptr[1], *y = ptr[2];
    float a = (float)*(const double *)scalar;
    int64_t i = begin * BLOCK, stop = limit(end, size);
    for (; i + LANES <= stop; i += LANES)
        store_past(o + i, load(x + i) + a * load(y + i));
    for (; i < stop; i++)
        o[i] = x[i] + a * y[i];
    finish_stores();
}

void tb_triad_cached(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                     int64_t end) {
    float *restrict o = ptr[0];
    const float *x = ptr[1], *y = ptr[2];
    float a = (float)*(const double *)scalar;
    int64_t stop = limit(end, size);
    for (int64_t i = begin * BLOCK; i < stop; i++)
        o[i] = x[i] + a * y[i];
}

// Where piece number `piece` of `count` begins, at whole vectors.
static inline int64_t cut(int64_t elements, int64_t piece, int64_t count) {
    return elements / LANES * piece / count * LANES;
}

static inline void pass(void *const *ptr, const int64_t *size, int64_t begin, int64_t end, int past) {
    enum { PIECES = 16, SUMS = 4 };
    float *o = ptr[0];
    const float *x = ptr[1];
    const int64_t count = size[2] * PIECES;
    vector sum[SUMS] = {};
    for (int64_t piece = begin * PIECES; piece < end * PIECES; piece++) {
        int64_t i = cut(size[0], piece, count), stop = cut(size[0], piece + 1, count);
        for (; i + SUMS * LANES <= stop; i += SUMS * LANES)
            for (int s = 0; s < SUMS; s++)
                sum[s] += load(x + i + s * LANES);
        for (; i < stop; i += LANES)
            sum[0] += load(x + i);
        const vector found = sum[0] + sum[1] + sum[2] + sum[3];
        for (i = cut(size[1], piece, count), stop = cut(size[1], piece + 1, count); i < stop; i += LANES)
            if (past) store_past(o + i, found);
            else *(vector *)(o + i) = found;
    }
    finish_stores();
}

void tb_pass(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
             int64_t end) {
    pass(ptr, size, begin, end, 1);
}

void tb_pass_cached(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                    int64_t end) {
    pass(ptr, size, begin, end, 0);
}

int64_t tb_fma_flops(void) { return 2 * LANES * CHAINS; }

MAY_CONTRACT void tb_fma_peak(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                              int64_t begin, int64_t end) {
    CONTRACT
    float *o = ptr[0];
    // The compiler must not know these: a chain that begins with 2 it would leave out, since 2 * 0.5 + 1 is 2.
    const volatile float half = 0.5f, one = 1.0f;
    const vector factor = (vector){} + half, term = (vector){} + one;
    for (int64_t task = begin; task < end; task++) {
        vector chain[CHAINS];
        for (int c = 0; c < CHAINS; c++)
            chain[c] = (vector){} + (float)c;
        for (int64_t n = 0; n < size[0]; n++) {
#pragma GCC unroll 12
            for (int c = 0; c < CHAINS; c++)
                chain[c] = chain[c] * factor + term;
        }
        vector sum = (vector){};
        for (int c = 0; c < CHAINS; c++)
            sum += chain[c];
        float total = 0;
        for (int lane = 0; lane < LANES; lane++)
            total += sum[lane];
        o[task] = total;
    }
}

// A line of the cache there and back, `times` times, between a caller whose `turn` is 0 and another whose `turn` is 1.
void tb_bounce(int64_t *line, int64_t turn, int64_t times) {
    for (int64_t i = 0; i < times; i++) {
        while (__atomic_load_n(line, __ATOMIC_ACQUIRE) != 2 * i + turn) {
        }
        __atomic_store_n(line, 2 * i + turn + 1, __ATOMIC_RELEASE);
    }
}
