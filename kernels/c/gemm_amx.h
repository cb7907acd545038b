// SPDX-License-Identifier: Apache-2.0
// gemm_amx.h — the tiles and copies of gemm.c for a processor whose matrix unit multiplies bfloat16 (AMX)
//
// Layout    Blocks of amx.h: of a tile of rows, and of a panel of columns, as many as k has. Rows of bfloat16 in whole blocks
//           stay where they lie.
// Limits    Where a sum is not finite, multiply-adds make it anew (`mend`).
// Macros    those of gemm.c, and TB_PLANES
#include "amx.h"

// How many elements of TB_T hold the copy of n elements.
static inline int64_t packed(int64_t n) { return n * PLANES * 2 / (int64_t)sizeof(TB_T); }

static inline int vectors_of(int64_t columns) { return columns > HALF ? 2 : 1; }
static inline int64_t width_of(const call *g, int64_t columns) { return (void)g, (void)columns, EDGE; }

// The sums of a tile, zeros elsewhere.
static void get_scattered(TB_T sum[EDGE][EDGE], int rows, const work *w) {
    for (int i = 0; i < EDGE; ++i)
        for (int j = 0; j < EDGE; ++j)
            sum[i][j] = i < rows && j < w->columns ? w->t[i * w->t_row + j * w->t_column] : 0;
}

static void run_tile(const call *g, int vectors, int rows, const work *w) {
    const char *a = (const char *)w->a, *b = (const char *)w->b;
    const int64_t step = w->t_row * (int64_t)sizeof(TB_T);
    const int in_place = w->a_k == 1;  // whole blocks of one plane, rows a_row apart
    const int64_t a_line = in_place ? w->a_row * 2 : 64, a_half = in_place ? HALF * a_line : UNIT;
    const int whole = w->t_column == 1 && w->columns == EDGE && rows == EDGE;
    TB_T sum[EDGE][EDGE];
    (void)vectors;
    if (!w->add) clear_sums();
    else if (whole) load_sums((const char *)w->t, step);
    else {  // into the unit as well: sums add up in the same order wherever they lie
        get_scattered(sum, rows, w);
        load_sums((const char *)sum, sizeof sum[0]);
    }
    const int64_t blocks = (w->k + EDGE - 1) / EDGE, a_next = in_place ? 64 : BLOCK_BYTES;
    if (g->size[SWAP]) add_blocks(1, blocks, a, a_line, a_half, a_next, b);
    else add_blocks(0, blocks, a, a_line, a_half, a_next, b);
    if (whole) {
        store_sums((char *)w->t, step);
        return;
    }
    store_sums((char *)sum, sizeof sum[0]);
    work put = *w;
    put.add = 0;
    put_scattered(&sum[0][0], rows, EDGE, &put);
}

// COPY(NAME, S, WIDE, PAIRED): as in gemm.c; `k` steps of a run of panels, whose last steps and columns are filled with zeros.
// float32 in whole half blocks is read where it lies, the rest widened or filled first.
#define COPY(NAME, S, WIDE, PAIRED) \
    static inline __attribute__((always_inline)) void NAME##_numbers(float *x, const S *from, int64_t inner, int64_t outer, \
                                                                     int n, int count, int width) { \
        for (int i = 0; i < count; ++i) \
            for (int j = 0; j < n; ++j) x[i * width + j] = WIDE(from[i * outer + j * inner]); \
    } \
    static void NAME##_half(char *to, const S *from, int64_t step_p, int64_t step_j, int k, int n) { \
        const int whole = k == EDGE && n == HALF, by_columns = step_j == 1; \
        float x[HALF * EDGE]; \
        const float *given = x; \
        int64_t step = by_columns ? HALF : EDGE; \
        if (!whole) \
            for (int l = 0; l < HALF * EDGE; ++l) x[l] = 0; \
        if (__builtin_types_compatible_p(S, float) && whole && (by_columns || step_p == 1)) \
            given = (const float *)from, step = by_columns ? step_p : step_j; \
        else if (by_columns && whole) \
            NAME##_numbers(x, from, 1, step_p, HALF, EDGE, HALF); \
        else if (by_columns) \
            NAME##_numbers(x, from, 1, step_p, n, k, HALF); \
        else if (step_p == 1 && whole) \
            NAME##_numbers(x, from, 1, step_j, EDGE, HALF, EDGE); \
        else \
            NAME##_numbers(x, from, step_p, step_j, k, n, EDGE); \
        if (by_columns) \
            half_of_columns(to, given, step, PAIRED); \
        else \
            half_of_rows(to, given, step, PAIRED); \
    } \
    static void NAME(TB_T *to, const S *from, int64_t step_p, int64_t step_j, int64_t k, const run *r) { \
        for (int64_t q = 0; q < r->panels; ++q) \
            for (int64_t p = 0; p < k; p += EDGE) \
                for (int h = 0; h < 2; ++h) { \
                    const int64_t j = q * r->step + h * HALF, n = least(least(HALF, r->columns - j), r->step - h * HALF); \
                    NAME##_half((char *)(to + q * r->apart + packed(p * EDGE)) + h * UNIT, from + p * step_p + j * step_j, \
                                step_p, step_j, (int)least(EDGE, k - p), (int)(n < 0 ? 0 : n)); \
                } \
    }
