// SPDX-License-Identifier: Apache-2.0
// gemm_tile.h — what a tile of gemm.c is given, for those who make tiles (gemm_tiles.c) and those who run them
//
// Macros    TB_T, as in gemm.c
#ifndef TB_GEMM_TILE_H
#define TB_GEMM_TILE_H

#include <stdint.h>

#include "vector.h"

typedef TB_T vector __attribute__((vector_size(TB_VECTOR), aligned(sizeof(TB_T)), may_alias));
typedef TB_T half_vector __attribute__((vector_size(TB_VECTOR / 2), aligned(sizeof(TB_T)), may_alias));

enum {
    LANES = TB_VECTOR / (int)sizeof(TB_T),
    MOST_VECTORS = 4,
    MOST_ROWS = 14,
    LINE = 64 / (int)sizeof(TB_T),  // elements of a line of cache
};

static inline int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t ceiling(int64_t x, int64_t y) { return x <= y ? x > 0 : (x + y - 1) / y; }

// What a tile works on: `k` steps of rows `a` and columns `b`, whose sums go to `t`, or are added to what is there. Of b,
// what lies `ahead` elements further is fetched; 0 leaves that to the processor. Where `next` is not 0, of a what lies so
// much further is. What is needed `later` is, too, in a number of `times`: as many lines as the tile has rows, `later_row`
// bytes apart, then as many that lie `later_step` further. With `far` the lines of t are fetched before the sums are
// complete: else the tile that follows would wait for them. Where both operands are copies, or a lies along k and b is one, the
// line at `soon` is fetched in every other step, and each time the one `soon_step` bytes further.
typedef struct work {
    int64_t k;
    const TB_T *a, *b;
    TB_T *t;
    int64_t a_row, a_k, b_k, ahead, next, later_row, later_step, times, t_row, t_column, soon_step;
    const char *later, *soon;
    int columns, add, past, far;
} work;

typedef void (*tile)(const work *w);

// The tiles of 1, 2, … vectors of columns, or of half a vector, and of 1, 2, … rows (0: none here).
typedef struct tiles {
    tile of[MOST_VECTORS][MOST_ROWS];
} tiles;

// Sums that do not fill whole vectors of contiguous results: halves of vectors as far as they go, then one by one.
static __attribute__((noinline)) void put_scattered(const TB_T *sum, int rows, int width, const work *w) {
    enum { HALF_LANES = LANES / 2 };
    for (int i = 0; i < rows; ++i, sum += width) {
        TB_T *const t = w->t + i * w->t_row;
        int j = 0;
        for (; w->t_column == 1 && j + HALF_LANES <= w->columns; j += HALF_LANES) {
            half_vector x = *(const half_vector *)(sum + j), *const to = (half_vector *)(t + j);
            if (w->add) x += *to;
            *to = x;
        }
        for (; j < w->columns; ++j) {
            TB_T *const to = t + j * w->t_column;
            *to = w->add ? *to + sum[j] : sum[j];
        }
    }
}

#endif
