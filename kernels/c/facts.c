// SPDX-License-Identifier: Apache-2.0
// facts.c — what the kernels of products and convolutions have, for who chooses among them before any is compiled
#include "amx.h"
#include "tile_sizes.h"

// Whether the processor begins two multiply-adds of 64 bytes a cycle, of four or five instructions: Intel's before those with
// a matrix unit. Elsewhere such multiply-adds are one a cycle, or there is room for all else.
static int has_little_room(void) {
#if defined(__x86_64__) && TB_VECTOR == 64 && !defined(__AMX_TILE__)
    uint32_t leaf = 0, name, others[2] = {0};
    __asm__("cpuid" : "+a"(leaf), "=b"(name), "+c"(others[0]), "=d"(others[1]));
    return name == 0x756e6547;  // "Genu"
#else
    return 0;
#endif
}

// Of gemm_tiles.c, for sums of so many bytes, `whole` if they are integers: lanes of a vector; the most rows of a tile of 1 to
// 4 vectors of columns (0: there is no such tile); whether there is a matrix unit for gemm_amx.h; the most rows of a tile of
// half a vector; QUICK_SUMS, if they count (or 0).
void tb_gemm_facts(int64_t bytes, int64_t whole, int64_t *out) {
    out[0] = TB_VECTOR / bytes;
    out[1] = whole ? WHOLE_ROWS_1 : ROWS_1;
    out[2] = whole ? WHOLE_ROWS_2 : ROWS_2;
    out[3] = 0;
    out[4] = ROWS_4;
    out[5] = may_use_unit();
    out[6] = whole ? 0 : ROWS_HALF;
    out[7] = has_little_room() ? QUICK_SUMS : 0;
}

// Of conv.h, for sums of so many bytes: lanes of a vector, maps and places of a tile, whether there is a matrix unit for
// TB_PLANES.
void tb_conv_facts(int64_t bytes, int64_t *out) {
    out[0] = TB_VECTOR / bytes;
    out[1] = CONV_MAPS;
    out[2] = CONV_VECTORS * out[0];
    out[3] = may_use_unit();
}
