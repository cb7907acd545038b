// SPDX-License-Identifier: Apache-2.0
// pool.c — largest, mean or root of squares of windows of images (C, D, H, W, N), and the way back
//
// A task is some rows (k, m, p) of the output, or (c, d, h) of the gradient; along a row, blocks of up to BLOCK images
// are kept in the first-level cache while the cells of a window pass over them. Each result is computed once, from its
// cells in C order, so that tasks decide nothing but time. The way back gathers: a pixel asks the windows that hold it.
//
// The host defines TB_OP (0 largest, 1 mean, 2 root of squares), TB_X, TB_W and TB_I, the types of elements, of sums
// and of places, TB_READ and TB_WRITE, which move blocks between TB_X and TB_W, TB_SQRT, the root in TB_W, and
// TB_OUTPUT, the number of the result's pointer; what the step reads comes before it.
#include "kernel.h"

#define BLOCK 256

typedef struct {
    tb_i64 images, in[4], out[4], window[4], step[4], pad[4], group, alpha, beta, streams;
} sizes;

typedef struct {
    tb_i64 from, to;
} range;

// The cells of window number `at` of an axis that are inside the image.
TB_FN range cells_of(const sizes *g, int axis, tb_i64 at) {
    const tb_i64 start = at * g->step[axis] - g->pad[axis], left = g->in[axis] - start;
    return (range){start < 0 ? -start : 0, left < g->window[axis] ? left : g->window[axis]};
}

// The windows of an axis that hold pixel `at`.
TB_FN range windows_of(const sizes *g, int axis, tb_i64 at) {
    const tb_i64 past = at + g->pad[axis], first = past - g->window[axis] + 1;
    const tb_i64 from = first > 0 ? (first + g->step[axis] - 1) / g->step[axis] : 0, to = past / g->step[axis] + 1;
    return (range){from, to < g->out[axis] ? to : g->out[axis]};
}

// to = alpha from + beta to. Without beta the old contents are not read.
TB_FN void finish(TB_X *to, TB_W *from, int m, TB_W alpha, TB_W beta, tb_i64 streams) {
    TB_W buffer[BLOCK];
    if (alpha != 1) {
        for (int i = 0; i < m; ++i) from[i] *= alpha;
    }
    if (beta != 0) {
        const TB_W *const old = TB_READ(buffer, to, m);
        for (int i = 0; i < m; ++i) from[i] += beta * old[i];
    }
    TB_WRITE(to, from, m, streams);
}

TB_FN tb_i64 inner(const tb_i64 *stride, tb_i64 a, tb_i64 b, tb_i64 c) {
    return a * stride[0] + b * stride[1] + c * stride[2];
}

// One cell of a window, taken into the block: the first one starts it.
TB_FN void take(TB_W *best, int *where, const TB_W *x, int m, int index, int first) {
#if TB_OP == 0
    if (first) {
        for (int i = 0; i < m; ++i) best[i] = x[i], where[i] = index;
    } else {
        for (int i = 0; i < m; ++i) {  // a NaN wins, and the first of them stays
            const int wins = !(x[i] <= best[i]) & (best[i] == best[i]);
            best[i] = wins ? x[i] : best[i];
            where[i] = wins ? index : where[i];
        }
    }
#elif TB_OP == 1
    for (int i = 0; i < m; ++i) best[i] = first ? x[i] : best[i] + x[i];
#else
    for (int i = 0; i < m; ++i) best[i] = first ? x[i] * x[i] : best[i] + x[i] * x[i];
#endif
}

TB_FN void complete(TB_W *best, int m, tb_i64 count) {
#if TB_OP == 1
    for (int i = 0; i < m; ++i) best[i] /= (TB_W)count;
#elif TB_OP == 2
    for (int i = 0; i < m; ++i) best[i] = TB_SQRT(best[i]);
#endif
}

TB_FN void fprop_row(const sizes *g, void *const *ptr, const tb_i64 *stride, tb_i64 row, TB_W alpha, TB_W beta) {
    const TB_X *const x = (const TB_X *)ptr[0];
    TB_X *const o = (TB_X *)ptr[TB_OUTPUT];
    const tb_i64 *const xs = stride, *const os = stride + TB_OUTPUT * 4;
    const tb_i64 p = row % g->out[2], m = row / g->out[2] % g->out[1], k = row / (g->out[2] * g->out[1]);
    const range j = cells_of(g, 0, k), t = cells_of(g, 1, m), r = cells_of(g, 2, p);
    const tb_i64 c0 = k * g->step[0] - g->pad[0], z0 = m * g->step[1] - g->pad[1], y0 = p * g->step[2] - g->pad[2];
    for (tb_i64 q = 0; q < g->out[3]; ++q) {
        const range s = cells_of(g, 3, q);
        const tb_i64 x0 = q * g->step[3] - g->pad[3];
        for (tb_i64 n = 0; n < g->images; n += BLOCK) {
            const int count = g->images - n < BLOCK ? (int)(g->images - n) : BLOCK;
            TB_W best[BLOCK], buffer[BLOCK];
            int where[BLOCK], first = 1;
            for (tb_i64 a = j.from; a < j.to; ++a) {
                for (tb_i64 b = t.from; b < t.to; ++b) {
                    for (tb_i64 c = r.from; c < r.to; ++c) {
                        const TB_X *const line = x + inner(xs, c0 + a, z0 + b, y0 + c) + n;
                        const tb_i64 cell = ((a * g->window[1] + b) * g->window[2] + c) * g->window[3];
                        for (tb_i64 d = s.from; d < s.to; ++d) {
                            const TB_X *const at = line + (x0 + d) * xs[3];
                            take(best, where, TB_READ(buffer, at, count), count, (int)(cell + d), first);
                            first = 0;
                        }
                    }
                }
            }
            complete(best, count, (j.to - j.from) * (t.to - t.from) * (r.to - r.from) * (s.to - s.from));
            finish(o + inner(os, k, m, p) + q * os[3] + n, best, count, alpha, beta, g->streams);
#if TB_OP == 0
            const tb_i64 *const ps = os + 4;
            TB_I *const to = (TB_I *)ptr[TB_OUTPUT + 1] + inner(ps, k, m, p) + q * ps[3] + n;
            for (int i = 0; i < count; ++i) to[i] = (TB_I)where[i];
#endif
        }
    }
}

// What a window sends to one of its cells, added to the block.
TB_FN void give(TB_W *sum, const TB_X *error, const TB_I *places, const TB_X *y, int m, int index, tb_i64 count) {
    TB_W buffer[BLOCK];
    const TB_W *const e = TB_READ(buffer, error, m);
#if TB_OP == 0
    for (int i = 0; i < m; ++i) sum[i] += (int)places[i] == index ? e[i] : 0;
#elif TB_OP == 1
    for (int i = 0; i < m; ++i) sum[i] += e[i] / (TB_W)count;
#else
    TB_W other[BLOCK];
    const TB_W *const root = TB_READ(other, y, m);
    for (int i = 0; i < m; ++i) sum[i] += root[i] != 0 ? e[i] / root[i] : 0;
#endif
}

TB_FN tb_i64 length(range r) { return r.to - r.from; }

TB_FN void bprop_row(const sizes *g, void *const *ptr, const tb_i64 *stride, tb_i64 row, TB_W alpha, TB_W beta) {
    const TB_X *const e = (const TB_X *)ptr[0];
    TB_X *const out = (TB_X *)ptr[TB_OUTPUT];
    const tb_i64 *const es = stride, *const os = stride + TB_OUTPUT * 4;
    const tb_i64 h = row % g->in[2], d = row / g->in[2] % g->in[1], c = row / (g->in[2] * g->in[1]);
    const range ks = windows_of(g, 0, c), ms = windows_of(g, 1, d), ps = windows_of(g, 2, h);
    for (tb_i64 w = 0; w < g->in[3]; ++w) {
        const range qs = windows_of(g, 3, w);
        for (tb_i64 n = 0; n < g->images; n += BLOCK) {
            const int count = g->images - n < BLOCK ? (int)(g->images - n) : BLOCK;
            TB_W sum[BLOCK];
            for (int i = 0; i < count; ++i) sum[i] = 0;
            for (tb_i64 k = ks.from; k < ks.to; ++k) {
                const tb_i64 a = c + g->pad[0] - k * g->step[0];
                for (tb_i64 m = ms.from; m < ms.to; ++m) {
                    const tb_i64 b = a * g->window[1] + d + g->pad[1] - m * g->step[1];
                    for (tb_i64 p = ps.from; p < ps.to; ++p) {
                        const tb_i64 cell = (b * g->window[2] + h + g->pad[2] - p * g->step[2]) * g->window[3];
                        for (tb_i64 q = qs.from; q < qs.to; ++q) {
                            const int index = (int)(cell + w + g->pad[3] - q * g->step[3]);
                            const TB_X *const error = e + inner(es, k, m, p) + q * es[3] + n;
                            const TB_I *places = 0;
                            const TB_X *root = 0;
                            tb_i64 cells = 1;
#if TB_OP == 0
                            places = (const TB_I *)ptr[1] + inner(stride + 4, k, m, p) + q * stride[7] + n;
#elif TB_OP == 1
                            cells = length(cells_of(g, 0, k)) * length(cells_of(g, 1, m)) * length(cells_of(g, 2, p)) *
                                    length(cells_of(g, 3, q));
#else
                            root = (const TB_X *)ptr[2] + inner(stride + 8, k, m, p) + q * stride[11] + n;
#endif
                            give(sum, error, places, root, count, index, cells);
                        }
                    }
                }
            }
#if TB_OP == 2
            TB_W buffer[BLOCK];
            const TB_X *const at = (const TB_X *)ptr[1] + inner(stride + 4, c, d, h) + w * stride[7] + n;
            const TB_W *const x = TB_READ(buffer, at, count);
            for (int i = 0; i < count; ++i) sum[i] *= x[i];
#endif
            finish(out + inner(os, c, d, h) + w * os[3] + n, sum, count, alpha, beta, g->streams);
        }
    }
}

// Pointers: input, output, after which come places (largest only). Tasks are groups of rows of the output.
void pool_fprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const TB_W alpha = (TB_W)tb_word_double(g->alpha), beta = (TB_W)tb_word_double(g->beta);
    (void)scalar;
    const tb_i64 rows = g->out[0] * g->out[1] * g->out[2], last = end * g->group < rows ? end * g->group : rows;
    for (tb_i64 row = begin * g->group; row < last; ++row) {
        fprop_row(g, ptr, stride, row, alpha, beta);
    }
    tb_stream_end(g->streams);
}

// Pointers: error, then places (largest) or forward input and output (root of squares), then the gradient. Tasks are
// groups of rows of the gradient.
void pool_bprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const TB_W alpha = (TB_W)tb_word_double(g->alpha), beta = (TB_W)tb_word_double(g->beta);
    (void)scalar;
    const tb_i64 rows = g->in[0] * g->in[1] * g->in[2], last = end * g->group < rows ? end * g->group : rows;
    for (tb_i64 row = begin * g->group; row < last; ++row) bprop_row(g, ptr, stride, row, alpha, beta);
    tb_stream_end(g->streams);
}
