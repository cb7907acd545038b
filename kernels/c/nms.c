// SPDX-License-Identifier: Apache-2.0
// nms.c — boxes, best first, that no better box which is kept overlaps by more than a threshold
//
// A box is compared with a vector of the kept ones at a time, until one overlaps it. The host defines TB_X and TB_W, the
// types of elements and of what is computed, TB_N, integers as wide as TB_W, and TB_READ, which widens a block.
#include "block_vectors.h"

// A vector of boxes: corners, areas.
typedef struct {
    vec x1, y1, x2, y2, area;
} boxes;

TB_FN vec larger(vec a, vec b) {
    const mask more = a > b;
    return (vec)(((mask)a & more) | ((mask)b & ~more));
}
TB_FN vec smaller(vec a, vec b) { return -larger(-a, -b); }

TB_FN int any(mask x) {
    TB_N all = 0;
    for (int lane = 0; lane < LANES; ++lane) all |= x[lane];
    return all != 0;
}

// Pointers: boxes (x1, y1, x2, y2, score), how many are kept and their places, scratch. One task.
void nms(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin, tb_i64 end) {
    const tb_i64 count = size[0];
    const TB_W threshold = (TB_W)tb_word_double(size[1]), wider = (TB_W)tb_word_double(size[2]);
    tb_i32 *const kept = (tb_i32 *)ptr[1];
    boxes *const better = (boxes *)ptr[2];
    tb_i32 found = 0;
    (void)stride, (void)scalar, (void)begin, (void)end;
    for (tb_i64 i = 0; i < count; ++i) {
        TB_W buffer[5];
        const TB_W *const b = TB_READ(buffer, (const TB_X *)ptr[0] + i * 5, 5);
        if (b[4] == 0) continue;
        const TB_W area = (b[2] - b[0] + wider) * (b[3] - b[1] + wider);
        const vec zero = {0}, x1 = zero + b[0], y1 = zero + b[1], x2 = zero + b[2], y2 = zero + b[3];
        int overlapped = 0;
        for (tb_i64 k = 0; k * LANES < found && !overlapped; ++k) {
            const boxes *const o = better + k;
            const vec width = larger(smaller(x2, o->x2) - larger(x1, o->x1) + wider, zero);
            const vec height = larger(smaller(y2, o->y2) - larger(y1, o->y1) + wider, zero);
            const vec both = width * height;
            overlapped = any(both / (o->area + area - both) > threshold);
        }
        if (overlapped) continue;
        boxes *const o = better + found / LANES;
        const int lane = found % LANES;
        if (lane == 0) {  // places that no box has yet: a union that is no number is larger than no threshold
            o->x1 = o->y1 = o->x2 = o->y2 = zero;
            o->area = zero + (TB_W)__builtin_nan("");
        }
        o->x1[lane] = b[0], o->y1[lane] = b[1], o->x2[lane] = b[2], o->y2[lane] = b[3], o->area[lane] = area;
        kept[++found] = (tb_i32)i;
    }
    kept[0] = found;
    for (tb_i64 i = found + 1; i <= count; ++i) kept[i] = -1;
}
