// SPDX-License-Identifier: Apache-2.0
// columns.cu — images as a matrix and back, so that a convolution and its gradients are products of matrices
//
// A row is a map and a cell of the filter (C T R S), a column an output pixel and image (M P, Q, N). Columns come in
// parts of `lines` lines (M P) from `first` on. `images_to_columns` copies what a cell meets at a pixel, 0 in padding;
// `columns_to_images` adds up what meets an input pixel, `more` to what is there. TB_X is the type of images, TB_C that
// of sums. Threads take four neighbours in memory, of one pixel where `whole` says so and addresses are aligned.
#include "elements.cuh"
#include "kernel.cuh"

#define FOUR 4

struct columns_args {
    const TB_X *x;
    TB_X *columns;
    tb_i64 n, d, h, w, p, q, t, r, s;
    tb_i64 stride[3], pad[3], dilation[3];
    tb_i64 x_stride[5];
    tb_i64 rows, first, lines, whole;
};

struct images_args {
    const TB_C *columns;
    TB_C *out;
    tb_i64 n, d, h, w, p, q, t, r, s;
    tb_i64 stride[3], pad[3], dilation[3];
    tb_i64 maps, first, lines, whole, more;
};

template <class T> TB_FN bool aligned(const void *x, const void *y) {
    return (((tb_u64)x | (tb_u64)y) & (sizeof(T) * FOUR - 1)) == 0;
}

extern "C" __global__ void __launch_bounds__(256) images_to_columns(const columns_args a) {
    const int n = (int)a.n, q = (int)a.q, count = (int)(a.lines * a.q * a.n);
    const bool whole = a.whole && aligned<TB_X>(a.x, a.columns);
    for (int row = (int)blockIdx.y; row < (int)a.rows; row += (int)gridDim.y) {
        const int s = row % (int)a.s, r = row / (int)a.s % (int)a.r, t = row / (int)(a.s * a.r) % (int)a.t;
        const TB_X *const map = a.x + row / (int)(a.s * a.r * a.t) * a.x_stride[0];
        TB_X *const to = a.columns + (tb_i64)row * count;
        for (int at = ((int)blockIdx.x * (int)blockDim.x + (int)threadIdx.x) * FOUR; at < count;
             at += (int)(gridDim.x * blockDim.x) * FOUR) {
            tb_pack<TB_X, FOUR> four = {};
            for (int j = 0; j < FOUR && at + j < count; ++j) {
                const int image = (at + j) % n, pixel = (at + j) / n, line = pixel / q + (int)a.first;
                const int z = line / (int)a.p * (int)a.stride[0] + t * (int)a.dilation[0] - (int)a.pad[0];
                const int y = line % (int)a.p * (int)a.stride[1] + r * (int)a.dilation[1] - (int)a.pad[1];
                const int x = pixel % q * (int)a.stride[2] + s * (int)a.dilation[2] - (int)a.pad[2];
                const bool inside = z >= 0 && z < a.d && y >= 0 && y < a.h && x >= 0 && x < a.w;
                const TB_X *const from = map + z * a.x_stride[1] + y * a.x_stride[2] + x * a.x_stride[3];
                if (whole) {
                    if (inside) four = *(const tb_pack<TB_X, FOUR> *)(from + image);
                    break;
                }
                if (inside) to[at + j] = from[image * a.x_stride[4]];
                else to[at + j] = four.v[0];
            }
            if (whole) *(tb_pack<TB_X, FOUR> *)(to + at) = four;
        }
    }
}

// The first cell of a filter along an axis that meets an input cell, where each `stride`-th does.
TB_FN int first_tap(int at, int stride, int dilation) { return dilation == 1 ? at % stride : 0; }

extern "C" __global__ void __launch_bounds__(256, 4) columns_to_images(const images_args a) {
    const int n = (int)a.n, h = (int)a.h, w = (int)a.w, count = (int)(a.d * a.h * a.w * a.n), q = (int)a.q, p = (int)a.p;
    const int down = a.dilation[1] == 1 ? (int)a.stride[1] : 1, on = a.dilation[2] == 1 ? (int)a.stride[2] : 1;
    const bool whole = a.whole && aligned<TB_C>(a.columns, a.out);
    const int cells = (int)(a.t * a.r * a.s), width = whole ? FOUR : 1;
    const int lowest = (int)a.first / p, highest = (int)(a.first + a.lines - 1) / p;  // depths of the part's lines
    const tb_i64 pitch = a.lines * a.q * a.n;
    for (int map = (int)blockIdx.y; map < (int)a.maps; map += (int)gridDim.y) {
        TB_C *const to = a.out + (tb_i64)map * count;
        const TB_C *const from = a.columns + (tb_i64)map * cells * pitch;
        for (int at = ((int)blockIdx.x * (int)blockDim.x + (int)threadIdx.x) * width; at < count;
             at += (int)(gridDim.x * blockDim.x) * width) {
            const int image = at % n, pixel = at / n;
            const int x = pixel % w + (int)a.pad[2], y = pixel / w % h + (int)a.pad[1], z = pixel / (w * h) + (int)a.pad[0];
            tb_pack<TB_C, FOUR> sum = {};
            for (int t = 0; t < a.t; ++t) {
                const int m = z - t * (int)a.dilation[0], deep = m / (int)a.stride[0];
                if (m < 0 || m % (int)a.stride[0] || deep < lowest || deep > highest) continue;
                for (int r = first_tap(y, (int)a.stride[1], (int)a.dilation[1]); r < a.r; r += down) {
                    const int up = y - r * (int)a.dilation[1], high = up / (int)a.stride[1];
                    if (up < 0 || up % (int)a.stride[1] || high >= p) continue;
                    const int line = deep * p + high;
                    if (line < a.first || line >= a.first + a.lines) continue;
                    for (int s = first_tap(x, (int)a.stride[2], (int)a.dilation[2]); s < a.s; s += on) {
                        const int along = x - s * (int)a.dilation[2], column = along / (int)a.stride[2];
                        if (along < 0 || along % (int)a.stride[2] || column >= q) continue;
                        const tb_i64 place = ((tb_i64)(line - (int)a.first) * q + column) * n + image;
                        const TB_C *const met = from + (tb_i64)((t * (int)a.r + r) * (int)a.s + s) * pitch + place;
                        if (whole) {
                            const tb_pack<TB_C, FOUR> given = *(const tb_pack<TB_C, FOUR> *)met;
#pragma unroll
                            for (int j = 0; j < FOUR; ++j) sum.v[j] += given.v[j];
                        } else {
                            sum.v[0] += *met;
                        }
                    }
                }
            }
            if (whole) {
                tb_pack<TB_C, FOUR> *const place = (tb_pack<TB_C, FOUR> *)(to + at);
                if (a.more) {
                    const tb_pack<TB_C, FOUR> before = *place;
#pragma unroll
                    for (int j = 0; j < FOUR; ++j) sum.v[j] += before.v[j];
                }
                *place = sum;
            } else {
                to[at] = a.more ? to[at] + sum.v[0] : sum.v[0];
            }
        }
    }
}
