// SPDX-License-Identifier: Apache-2.0
// probes.c — what this machine can do at most: memory bandwidth and multiply-add rate, for rooflines
//
// Computes  tb_copy          o[i] = x[i]               streaming stores
//           tb_triad         o[i] = x[i] + a * y[i]    streaming stores
//           tb_triad_cached  the same                  ordinary stores, for operands that stay in cache
//           tb_fma_peak      o[task] = the sum of chains of multiply-adds that depend on nothing but themselves
// Arguments ptr {o, x, y}, float32 and 64-byte aligned; size {elements}; scalar {a as double}. A task is BLOCK elements.
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

int64_t tb_fma_flops(void) { return 2 * LANES * CHAINS; }

MAY_CONTRACT void tb_fma_peak(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                              int64_t begin, int64_t end) {
    CONTRACT
    float *o = ptr[0];
    vector factor = (vector){} + 0.5f, term = (vector){} + 1.0f;
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
