// SPDX-License-Identifier: Apache-2.0
// gemm_rows.h — the most rows of the tiles of gemm_tiles.c: of 1, 2 and 4 vectors of columns and of half a vector (0: none)
//
// Sums of integers (WHOLE) have fewer tiles where multiplying them takes longer than loading them.
#ifndef TB_GEMM_ROWS_H
#define TB_GEMM_ROWS_H

#include "vector.h"

enum {
#if TB_VECTOR == 64
    ROWS_1 = 12, ROWS_2 = 14, ROWS_4 = 6, ROWS_HALF = 12, WHOLE_ROWS_1 = 4, WHOLE_ROWS_2 = 4,
#elif defined(__aarch64__)
    ROWS_1 = 8, ROWS_2 = 8, ROWS_4 = 6, ROWS_HALF = 0, WHOLE_ROWS_1 = 8, WHOLE_ROWS_2 = 8,
#else
    ROWS_1 = 8, ROWS_2 = 6, ROWS_4 = 2, ROWS_HALF = TB_VECTOR == 32 ? 8 : 0, WHOLE_ROWS_1 = 8, WHOLE_ROWS_2 = 6,
#endif
    QUICK_SUMS = MANY_REGISTERS ? 20 : 10,  // vectors of sums from which on a tile has loops for known strides
};

#endif
