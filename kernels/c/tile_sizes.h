// SPDX-License-Identifier: Apache-2.0
// tile_sizes.h — how large the tiles of gemm_tiles.c and conv.h are
#ifndef TB_TILE_SIZES_H
#define TB_TILE_SIZES_H

#include "vector.h"

// gemm_tiles.c: the most rows with 1, 2 and 4 vectors of columns and with half a vector (0: none). Sums of integers (WHOLE) have
// fewer tiles where multiplying them takes longer than loading them.
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

// conv.h: maps, and vectors of places.
enum {
    CONV_MAPS = TB_VECTOR == 64 ? 8 : 4,
    CONV_VECTORS = TB_VECTOR == 16 ? 2 : 3,
};

#endif
