// SPDX-License-Identifier: Apache-2.0
// finite.h — whether sums are all finite
//
// Part of files that the host compiles for a type TB_T.
#ifndef TB_FINITE_H
#define TB_FINITE_H

#include <stdint.h>

#include "vector.h"

// Of numbers that lie side by side in rows: 0 times any that is not finite is no number.
static inline int all_finite(const TB_T *x, int64_t rows, int64_t row, int64_t columns) {
    typedef TB_T vector __attribute__((vector_size(TB_VECTOR), aligned(sizeof(TB_T)), may_alias));
    enum { SIDE_BY_SIDE = 4, EACH = TB_VECTOR / (int)sizeof(TB_T) };
    vector zeros[SIDE_BY_SIDE] = {{0}};
    TB_T rest = 0;
    for (int64_t i = 0; i < rows; ++i, x += row) {
        int64_t j = 0;
        for (; j + SIDE_BY_SIDE * EACH <= columns; j += SIDE_BY_SIDE * EACH)
            UNROLL for (int v = 0; v < SIDE_BY_SIDE; ++v) zeros[v] += *(const vector *)(x + j + v * EACH) * 0;
        for (; j + EACH <= columns; j += EACH) zeros[j / EACH % SIDE_BY_SIDE] += *(const vector *)(x + j) * 0;
        for (; j < columns; ++j) rest += x[j] * 0;
    }
    zeros[0] += zeros[1] + zeros[2] + zeros[3];
    for (int l = 0; l < EACH; ++l) rest += zeros[0][l];
    return rest == 0;
}

#endif
