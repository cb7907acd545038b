// SPDX-License-Identifier: Apache-2.0
// nms.cu — boxes, best first, that no better box which is kept overlaps by more than a threshold
//
// First each pair is compared: a bit says whether the later box is overlapped. Then one block goes through the boxes, 64
// at a time, and drops what a kept one overlaps. TB_X and TB_C are the types of elements and of what is computed.
#include "elements.cuh"

#define WORD 64

struct nms_args {
    const TB_X *boxes;  // x1, y1, x2, y2, score
    tb_u64 *overlapped;  // for each box, a bit for each later one
    tb_u64 *dropped;  // a bit for each box, zero at first
    tb_i32 *kept;  // how many, then their places, then -1
    tb_i64 count;
    double threshold, wider;
};

struct box {
    TB_C x1, y1, x2, y2, area;
};

TB_FN box box_of(const nms_args &g, tb_i64 place) {
    const TB_X *const b = g.boxes + place * 5;
    box found = {tb_as<TB_C>(b[0]), tb_as<TB_C>(b[1]), tb_as<TB_C>(b[2]), tb_as<TB_C>(b[3]), 0};
    found.area = (found.x2 - found.x1 + (TB_C)g.wider) * (found.y2 - found.y1 + (TB_C)g.wider);
    return found;
}

TB_FN TB_C larger(TB_C a, TB_C b) { return a > b ? a : b; }
TB_FN TB_C smaller(TB_C a, TB_C b) { return a < b ? a : b; }

TB_FN bool overlaps(const nms_args &g, const box &a, const box &b) {
    const TB_C width = larger(smaller(a.x2, b.x2) - larger(a.x1, b.x1) + (TB_C)g.wider, 0);
    const TB_C height = larger(smaller(a.y2, b.y2) - larger(a.y1, b.y1) + (TB_C)g.wider, 0);
    const TB_C both = width * height;
    return both / (a.area + b.area - both) > (TB_C)g.threshold;
}

extern "C" __global__ void __launch_bounds__(256) nms_compare(const nms_args g) {
    const tb_i64 words = (g.count + WORD - 1) / WORD;
    TB_EACH(at, g.count * words) {
        const tb_i64 place = at / words, first = at % words * WORD;
        const box mine = box_of(g, place);
        tb_u64 bits = 0;
        for (tb_i64 other = first > place ? first : place + 1; other < first + WORD && other < g.count; ++other) {
            if (overlaps(g, mine, box_of(g, other))) bits |= (tb_u64)1 << (other - first);
        }
        g.overlapped[at] = bits;
    }
}

extern "C" __global__ void __launch_bounds__(256) nms_keep(const nms_args g) {
    __shared__ tb_i32 chosen[WORD], count;
    const tb_i64 words = (g.count + WORD - 1) / WORD;
    tb_i32 found = 0;
    for (tb_i64 word = 0; word < words; ++word) {
        if (threadIdx.x == 0) {
            tb_u64 dropped = g.dropped[word];
            count = 0;
            for (tb_i64 place = word * WORD; place < word * WORD + WORD && place < g.count; ++place) {
                if (dropped >> (place - word * WORD) & 1 || tb_as<TB_C>(g.boxes[place * 5 + 4]) == 0) continue;
                dropped |= g.overlapped[place * words + word];
                chosen[count++] = (tb_i32)place;
                g.kept[++found] = (tb_i32)place;
            }
        }
        __syncthreads();
        for (tb_i64 later = word + 1 + threadIdx.x; later < words; later += blockDim.x) {
            tb_u64 dropped = g.dropped[later];
            for (int k = 0; k < count; ++k) dropped |= g.overlapped[chosen[k] * words + later];
            g.dropped[later] = dropped;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        g.kept[0] = found;
        for (tb_i64 place = found + 1; place <= g.count; ++place) g.kept[place] = -1;
    }
}
