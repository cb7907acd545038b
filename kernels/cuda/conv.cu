// SPDX-License-Identifier: Apache-2.0
// conv.cu — convolution of images (C, D, H, W, N) with filters (C / groups, T, R, S, K), and its two gradients
//
// Each pass is a matrix product whose operands are gathered while they are copied into shared memory, tile by tile:
//
//   fprop    O (K, pixels x N)   = F^T (K, C T R S)     times  I gathered (C T R S, pixels x N)
//   bprop    dI (C, pixels x N)  = F (C, T R S K)       times  E gathered (T R S K, pixels x N)
//   update   dF (C T R S, K)     = I gathered (C T R S, pixels x N)  times  E^T (pixels x N, K)
//
// N is innermost in memory and in the columns of the tiles, so that neighbouring threads read neighbouring numbers. A
// block of 256 threads computes TB_ROWS x TB_COLUMNS results, TB_DEPTH terms at a time. Sums go up the middle axis in
// order; update cuts it into segments of a length that depends on sizes alone, which `conv_join` adds up in order.
// TB_X and TB_Y are the types of the operands, TB_C that of the result; TB_INT, int or tb_i64, counts cells of a filter
// and terms but those of update: divisions of int are cheaper. blockIdx.y counts groups (times segments), and
// blockIdx.z goes on where they are more than a grid takes along y.
#include "elements.cuh"

#define SIDE 16
#define THREADS (SIDE * SIDE)
#define ROWS_EACH (TB_ROWS / SIDE)
#define COLUMNS_EACH (TB_COLUMNS / SIDE)

struct conv_sizes {
    tb_i64 n, c, d, h, w, k, m, p, q, t, r, s;  // c and k of one group
    tb_i64 stride[3], pad[3], dilation[3];
    tb_i64 groups;
    tb_i64 x_stride[5], y_stride[5];  // of the operands, in elements
};

struct conv_args {
    const TB_X *x;
    const TB_Y *y;
    TB_C *out;
    conv_sizes g;
    tb_i64 segment;  // terms of a segment of update
};

// A pixel and image of a column (m, p, q, n) or (d, h, w, n).
struct place {
    tb_i64 z, y, x, n;
};

TB_FN place place_of(tb_i64 at, tb_i64 height, tb_i64 width, tb_i64 images) {
    place found;
    found.n = at % images;
    at /= images;
    found.x = at % width;
    at /= width;
    found.y = at % height;
    found.z = at / height;
    return found;
}

// A cell of a filter.
struct cell {
    TB_INT t, r, s;
};

TB_FN cell cell_of(const conv_sizes &g, TB_INT tap) {
    const TB_INT width = (TB_INT)g.s, height = (TB_INT)g.r;
    return {tap / (width * height), tap / width % height, tap % width};
}

TB_FN bool inside(tb_i64 at, tb_i64 length) { return at >= 0 && at < length; }

// The number that filter cell `tap` (t, r, s) of input map c meets at output pixel o, or 0 in the padding.
template <class T>
TB_FN TB_C image_at(const conv_sizes &g, const T *x, const tb_i64 *stride, tb_i64 c, TB_INT tap, const place &o) {
    const cell f = cell_of(g, tap);
    const tb_i64 z = o.z * g.stride[0] + f.t * g.dilation[0] - g.pad[0];
    const tb_i64 y = o.y * g.stride[1] + f.r * g.dilation[1] - g.pad[1];
    const tb_i64 w = o.x * g.stride[2] + f.s * g.dilation[2] - g.pad[2];
    if (!inside(z, g.d) || !inside(y, g.h) || !inside(w, g.w)) return 0;
    return tb_as<TB_C>(x[c * stride[0] + z * stride[1] + y * stride[2] + w * stride[3] + o.n * stride[4]]);
}

// Along one axis: which output used cell `at` through filter cell `tap`; -1 if none did.
TB_FN tb_i64 used_by(tb_i64 at, tb_i64 tap, tb_i64 stride, tb_i64 pad, tb_i64 dilation, tb_i64 outputs) {
    const tb_i64 from = at + pad - tap * dilation;
    if (from < 0 || from % stride != 0) return -1;
    return from / stride < outputs ? from / stride : -1;
}

// The error that output map k sends through filter cell `tap` to input pixel i, or 0.
template <class T>
TB_FN TB_C error_at(const conv_sizes &g, const T *e, const tb_i64 *stride, tb_i64 k, TB_INT tap, const place &i) {
    const cell f = cell_of(g, tap);
    const tb_i64 z = used_by(i.z, f.t, g.stride[0], g.pad[0], g.dilation[0], g.m);
    const tb_i64 y = used_by(i.y, f.r, g.stride[1], g.pad[1], g.dilation[1], g.p);
    const tb_i64 x = used_by(i.x, f.s, g.stride[2], g.pad[2], g.dilation[2], g.q);
    if (z < 0 || y < 0 || x < 0) return 0;
    return tb_as<TB_C>(e[k * stride[0] + z * stride[1] + y * stride[2] + x * stride[3] + i.n * stride[4]]);
}

template <class T>
TB_FN TB_C filter_at(const conv_sizes &g, const T *x, const tb_i64 *stride, tb_i64 c, TB_INT tap, tb_i64 k) {
    const cell f = cell_of(g, tap);
    return tb_as<TB_C>(x[c * stride[0] + f.t * stride[1] + f.r * stride[2] + f.s * stride[3] + k * stride[4]]);
}

// One step of the product: `depth` terms of the tiles, each thread its ROWS_EACH x COLUMNS_EACH results.
TB_FN void multiply(const TB_C left[TB_DEPTH][TB_ROWS + 1], const TB_C right[TB_DEPTH][TB_COLUMNS + 1], int depth,
                    TB_C sum[ROWS_EACH][COLUMNS_EACH]) {
    const int row = (int)threadIdx.x / SIDE, column = (int)threadIdx.x % SIDE;
    for (int p = 0; p < depth; ++p) {
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i) {
#pragma unroll
            for (int j = 0; j < COLUMNS_EACH; ++j) {
                sum[i][j] = tb_fma(left[p][row + i * SIDE], right[p][column + j * SIDE], sum[i][j]);
            }
        }
    }
}

// The tile whose first result is (row, column) of a matrix of rows x columns, whose rows are `pitch` apart.
TB_FN void put_tile(TB_C *out, tb_i64 pitch, tb_i64 rows, tb_i64 columns, tb_i64 row, tb_i64 column,
                    const TB_C sum[ROWS_EACH][COLUMNS_EACH]) {
#pragma unroll
    for (int i = 0; i < ROWS_EACH; ++i) {
#pragma unroll
        for (int j = 0; j < COLUMNS_EACH; ++j) {
            const tb_i64 k = row + (int)threadIdx.x / SIDE + i * SIDE;
            const tb_i64 at = column + (int)threadIdx.x % SIDE + j * SIDE;
            if (k < rows && at < columns) out[k * pitch + at] = sum[i][j];
        }
    }
}

// Which group (of which segment) a block is for: the last blocks may be beyond them all. Counted in 32 bits.
TB_FN tb_i64 group_of_block() { return blockIdx.y + blockIdx.z * gridDim.y; }

TB_FN int smaller(tb_i64 x, int y) { return x < y ? (int)x : y; }

extern "C" __global__ void __launch_bounds__(256) conv_fprop(const conv_args a) {
    __shared__ TB_C left[TB_DEPTH][TB_ROWS + 1];
    __shared__ TB_C right[TB_DEPTH][TB_COLUMNS + 1];
    const conv_sizes &g = a.g;
    const tb_i64 columns = g.m * g.p * g.q * g.n;
    const TB_INT taps = (TB_INT)(g.t * g.r * g.s), terms = (TB_INT)g.c * taps;
    const tb_i64 across = (columns + TB_COLUMNS - 1) / TB_COLUMNS, group = group_of_block();
    if (group >= g.groups) return;
    const tb_i64 row = blockIdx.x / across * TB_ROWS, column = blockIdx.x % across * TB_COLUMNS;
    const int thread = (int)threadIdx.x, own = thread % TB_COLUMNS;  // a thread gathers for one column only
    const bool used = column + own < columns;
    const place pixel = place_of(used ? column + own : 0, g.p, g.q, g.n);
    TB_C sum[ROWS_EACH][COLUMNS_EACH] = {};
    for (TB_INT deep = 0; deep < terms; deep += TB_DEPTH) {
        for (int e = thread; e < TB_ROWS * TB_DEPTH; e += THREADS) {
            const int i = e % TB_ROWS, p = e / TB_ROWS;
            const tb_i64 k = row + i;
            const TB_INT term = deep + p;
            const bool there = k < g.k && term < terms;
            left[p][i] = there ? filter_at(g, a.y, g.y_stride, term / taps, term % taps, group * g.k + k) : (TB_C)0;
        }
        for (int p = thread / TB_COLUMNS; p < TB_DEPTH; p += THREADS / TB_COLUMNS) {
            const TB_INT term = deep + p;
            const bool there = used && term < terms;
            const tb_i64 c = group * g.c + term / taps;
            right[p][own] = there ? image_at(g, a.x, g.x_stride, c, term % taps, pixel) : (TB_C)0;
        }
        __syncthreads();
        multiply(left, right, smaller(terms - deep, TB_DEPTH), sum);
        __syncthreads();
    }
    put_tile(a.out + group * g.k * columns, columns, g.k, columns, row, column, sum);
}

extern "C" __global__ void __launch_bounds__(256) conv_bprop(const conv_args a) {
    __shared__ TB_C left[TB_DEPTH][TB_ROWS + 1];
    __shared__ TB_C right[TB_DEPTH][TB_COLUMNS + 1];
    const conv_sizes &g = a.g;
    const tb_i64 columns = g.d * g.h * g.w * g.n;
    const TB_INT maps = (TB_INT)g.k, terms = (TB_INT)(g.t * g.r * g.s) * maps;
    const tb_i64 across = (columns + TB_COLUMNS - 1) / TB_COLUMNS, group = group_of_block();
    if (group >= g.groups) return;
    const tb_i64 row = blockIdx.x / across * TB_ROWS, column = blockIdx.x % across * TB_COLUMNS;
    const int thread = (int)threadIdx.x, own = thread % TB_COLUMNS;
    const bool used = column + own < columns;
    const place pixel = place_of(used ? column + own : 0, g.h, g.w, g.n);
    TB_C sum[ROWS_EACH][COLUMNS_EACH] = {};
    for (TB_INT deep = 0; deep < terms; deep += TB_DEPTH) {
        for (int e = thread; e < TB_ROWS * TB_DEPTH; e += THREADS) {
            const int i = e / TB_DEPTH, p = e % TB_DEPTH;
            const tb_i64 c = row + i;
            const TB_INT term = deep + p;
            const bool there = c < g.c && term < terms;
            left[p][i] = there ? filter_at(g, a.x, g.x_stride, c, term / maps, group * g.k + term % maps) : (TB_C)0;
        }
        for (int p = thread / TB_COLUMNS; p < TB_DEPTH; p += THREADS / TB_COLUMNS) {
            const TB_INT term = deep + p;
            const bool there = used && term < terms;
            const tb_i64 k = group * g.k + term % maps;
            right[p][own] = there ? error_at(g, a.y, g.y_stride, k, term / maps, pixel) : (TB_C)0;
        }
        __syncthreads();
        multiply(left, right, smaller(terms - deep, TB_DEPTH), sum);
        __syncthreads();
    }
    put_tile(a.out + group * g.c * columns, columns, g.c, columns, row, column, sum);
}

// A segment of the sums over pixels and images; `out` holds (segment, C T R S, K).
extern "C" __global__ void __launch_bounds__(256) conv_update(const conv_args a) {
    __shared__ TB_C left[TB_DEPTH][TB_ROWS + 1];
    __shared__ TB_C right[TB_DEPTH][TB_COLUMNS + 1];
    const conv_sizes &g = a.g;
    const TB_INT taps = (TB_INT)(g.t * g.r * g.s), rows = (TB_INT)g.c * taps;
    const tb_i64 terms = g.m * g.p * g.q * g.n;
    const tb_i64 across = (g.k + TB_COLUMNS - 1) / TB_COLUMNS, group = group_of_block() % g.groups;
    const tb_i64 part = group_of_block() / g.groups, from = part * a.segment;
    if (from >= terms) return;
    const tb_i64 to = from + a.segment < terms ? from + a.segment : terms;
    const tb_i64 column = blockIdx.x % across * TB_COLUMNS;
    const TB_INT row = (TB_INT)(blockIdx.x / across) * TB_ROWS;
    const int thread = (int)threadIdx.x, own = thread % TB_DEPTH;  // a thread gathers one pixel a step
    TB_C sum[ROWS_EACH][COLUMNS_EACH] = {};
    for (tb_i64 deep = from; deep < to; deep += TB_DEPTH) {
        const bool used = deep + own < to;
        const place pixel = place_of(used ? deep + own : 0, g.p, g.q, g.n);
        for (int i = thread / TB_DEPTH; i < TB_ROWS; i += THREADS / TB_DEPTH) {
            const TB_INT at = row + i;
            const bool there = used && at < rows;
            left[own][i] = there ? image_at(g, a.x, g.x_stride, group * g.c + at / taps, at % taps, pixel) : (TB_C)0;
        }
        for (int j = thread / TB_DEPTH; j < TB_COLUMNS; j += THREADS / TB_DEPTH) {
            const tb_i64 k = column + j, *const stride = g.y_stride;
            const tb_i64 where = pixel.z * stride[1] + pixel.y * stride[2] + pixel.x * stride[3] + pixel.n * stride[4];
            const bool there = used && k < g.k;
            right[own][j] = there ? tb_as<TB_C>(a.y[(group * g.k + k) * stride[0] + where]) : (TB_C)0;
        }
        __syncthreads();
        multiply(left, right, smaller(to - deep, TB_DEPTH), sum);
        __syncthreads();
    }
    const tb_i64 maps = g.k * g.groups;
    put_tile(a.out + part * rows * maps + group * g.k, maps, rows, g.k, row, column, sum);
}

struct conv_join_args {
    const TB_C *parts;
    TB_C *out;
    tb_i64 count, segments;
};

// The sums of the segments, in order.
extern "C" __global__ void __launch_bounds__(256) conv_join(const conv_join_args a) {
    TB_EACH(n, a.count) {
        TB_C sum = a.parts[n];
        for (tb_i64 part = 1; part < a.segments; ++part) sum += a.parts[part * a.count + n];
        a.out[n] = sum;
    }
}
