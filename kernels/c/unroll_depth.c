// SPDX-License-Identifier: Apache-2.0
// unroll_depth.c — planes of images for each cell of depth of a convolution's filters, and their sums
//
// Computes  unroll    map c T + t has, at depth m, plane m str + t dil - pad of map c, or zeros
//           fold      the transpose: each plane of a map becomes the sum of those that were copied from it
// Order     Sums run over cells of depth.
// Bound by  memory
// Checked   tests/primitives/test_conv_rearranged.py
#include "conv_axes.h"

// What the host passes after the places: numbers of a plane, and the members of `axis` up to `pad`.
enum { PLANE = SIZES, DEPTH };

// From images IN to RESULT. A task: a plane of the result.
void tb_unroll_depth(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                     int64_t end) {
    (void)stride, (void)scalar;
    const axis x = read_axis(size + DEPTH, 0);
    const int64_t plane = size[PLANE];
    for (int64_t task = begin; task < end; ++task) {
        const int64_t m = task % x.out, t = task / x.out % x.taps, map = task / x.out / x.taps;
        const int64_t z = m * x.stride + t * x.dilation - x.pad;
        TB_S *const to = (TB_S *)TB_PLACE(RESULT) + task * plane;
        const TB_S *const from = (const TB_S *)TB_PLACE(IN) + (map * x.in + z) * plane;
        if (z >= 0 && z < x.in) __builtin_memcpy(to, from, (unsigned long)plane * sizeof(TB_S));
        else __builtin_memset(to, 0, (unsigned long)plane * sizeof(TB_S));
    }
}

// From IN, in the type in which products add up, to images RESULT, and what follows them. A task: a plane of the result.
void tb_fold_depth(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                   int64_t end) {
    const axis x = read_axis(size + DEPTH, 0);
    const int64_t plane = size[PLANE];
    for (int64_t task = begin; task < end; ++task) {
        const int64_t z = task % x.in, map = task / x.in;
        const TB_T *from[x.taps];
        int64_t count = 0;
        for (int64_t t = 0; t < x.taps; ++t) {
            const int64_t away = z + x.pad - t * x.dilation, m = floor_div(away, x.stride);
            if (m * x.stride != away || m < 0 || m >= x.out) continue;
            from[count++] = (const TB_T *)TB_PLACE(IN) + ((map * x.taps + t) * x.out + m) * plane;
        }
        TB_R *const to = (TB_R *)TB_PLACE(RESULT) + task * plane;
        int64_t i = 0;
        for (; i + LANES <= plane; i += LANES) {
            vec sum = {0};
            for (int64_t n = 0; n < count; ++n) sum += *(const vec *)(from[n] + i);
            store(to + i, sum);
        }
        for (; i < plane; ++i) {
            TB_T sum = 0;
            for (int64_t n = 0; n < count; ++n) sum += from[n][i];
            to[i] = TB_NARROW(sum);
        }
        TB_FINISH(x.in * plane, map, 1, z * plane, plane);
    }
}
