// SPDX-License-Identifier: Apache-2.0
// pool.c — largest, mean or root of squares of windows of images (C, D, H, W, N), and the way back
//
// A task is some rows (k, m, p) of the output, or (c, d, h) of the gradient. Along a row, a vector of images stays in a
// register while the cells of its window pass over it. Rows of few images are taken as a whole instead, one number
// after the other. Each result is computed once, from its cells in C order, so that tasks decide nothing but time. The
// way back gathers: a pixel asks the windows that hold it.
//
// The host defines TB_OP (0 largest, 1 mean, 2 root of squares), TB_X, TB_W and TB_I, the types of elements, of sums
// and of places, TB_N, integers as wide as TB_W, TB_READ and TB_WRITE, which move blocks between TB_X and TB_W,
// TB_SQRT, the root in TB_W, TB_OUTPUT, the number of the result's pointer (what the step reads comes before it),
// TB_PLAIN, whether alpha is 1 and beta 0, and TB_CELLS, the most cells of a window.
#include "kernel.h"

#define LANES (64 / (int)sizeof(TB_W))
#define FEW 4  // images of which rows are taken as a whole
#define LINE 2048  // pixels times images of a row that is taken as a whole, at most

// What is left of the images, in pieces whose lengths are constants.
#define ONE_PIECE(size, call) \
    if (g->images - n >= size) { \
        enum { PIECE = size }; \
        call; \
        n += size; \
    }
#define IN_PIECES(call) ONE_PIECE(8, call) ONE_PIECE(4, call) ONE_PIECE(2, call) ONE_PIECE(1, call)

typedef TB_W vec __attribute__((vector_size(64)));
typedef TB_W loose __attribute__((vector_size(64), aligned(4), may_alias));  // a vector at any address
typedef TB_N mask __attribute__((vector_size(64)));
typedef TB_I small __attribute__((vector_size(64 / sizeof(TB_W) * sizeof(TB_I))));

typedef struct {
    tb_i64 images, in[4], out[4], window[4], step[4], pad[4], group, alpha, beta;
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

// A piece of a vector, read at once and repeated: parts put together in memory would have to be waited for.
TB_FN vec repeated(const TB_W *from, int m) {
    typedef tb_i64 four __attribute__((vector_size(32), aligned(4), may_alias));
    typedef tb_i64 two __attribute__((vector_size(16), aligned(4), may_alias));
    const int bytes = m * (int)sizeof(TB_W);
    if (bytes == 32) {
        const four x = *(const four *)from;
        return (vec)__builtin_shufflevector(x, x, 0, 1, 2, 3, 0, 1, 2, 3);
    }
    if (bytes == 16) {
        const two x = *(const two *)from;
        return (vec)__builtin_shufflevector(x, x, 0, 1, 0, 1, 0, 1, 0, 1);
    }
    vec v = {0};
    if (m == 1) return v + from[0];
    __builtin_memcpy(&v, from, sizeof(TB_W) * (unsigned long)m);
    return v;
}

// m elements as a vector; what is in the lanes beyond does not matter.
TB_FN vec load(const TB_X *x, int m) {
    TB_W buffer[LANES];
    const TB_W *const from = TB_READ(buffer, x, m);
    if (m == LANES) return *(const loose *)from;
    return repeated(from, m);
}

// to = alpha v + beta to, for m elements. Without beta the old contents are not read.
TB_FN void finish(const sizes *g, TB_X *to, vec v, int m) {
#if !TB_PLAIN
    const TB_W alpha = (TB_W)tb_word_double(g->alpha), beta = (TB_W)tb_word_double(g->beta);
    v *= alpha;
    if (beta != 0) v += beta * load(to, m);
#endif
    TB_W from[LANES];
    *(loose *)from = v;
    TB_WRITE(to, from, m, 0);
}

// The same for any number of elements.
TB_FN void finish_line(const sizes *g, TB_X *to, const TB_W *from, tb_i64 count) {
    for (tb_i64 at = 0; at < count; at += LANES) {
        const int m = count - at < LANES ? (int)(count - at) : LANES;
        vec v = {0};
        __builtin_memcpy(&v, from + at, sizeof(TB_W) * (unsigned long)m);
        finish(g, to + at, v, m);
    }
}

TB_FN tb_i64 inner(const tb_i64 *stride, tb_i64 a, tb_i64 b, tb_i64 c) {
    return a * stride[0] + b * stride[1] + c * stride[2];
}

TB_FN vec roots(vec x) {
    for (int i = 0; i < LANES; ++i) x[i] = TB_SQRT(x[i]);
    return x;
}

TB_FN tb_i64 length(range r) { return r.to - r.from; }

// A row (k, m, p) of the output: the cells of its windows over maps, depth and height, and where things lie.
typedef struct {
    range j, t, r;
    const TB_X *x;  // the first cell of a window at pixel 0, perhaps in the padding
    const tb_i64 *xs;
    TB_X *out;
    tb_i64 step;
    TB_I *places;
    tb_i64 places_step;
} row;

// The cells of a window that are inside the image: their numbers, and where they lie from the window's first cell on.
typedef struct {
    range s;
    int count, index[TB_CELLS];
    tb_i64 at[TB_CELLS];
} cells;

// The cells of window q, unless those of another are the same.
TB_FN void find_cells(const sizes *g, const row *o, tb_i64 q, cells *found) {
    const range s = cells_of(g, 3, q);
    if (found->count && found->s.from == s.from && found->s.to == s.to) return;
    found->s = s;
    found->count = 0;
    for (tb_i64 a = o->j.from; a < o->j.to; ++a) {
        for (tb_i64 b = o->t.from; b < o->t.to; ++b) {
            for (tb_i64 c = o->r.from; c < o->r.to; ++c) {
                for (tb_i64 d = s.from; d < s.to; ++d) {
                    found->at[found->count] = inner(o->xs, a, b, c) + d * o->xs[3];
                    const tb_i64 number = ((a * g->window[1] + b) * g->window[2] + c) * g->window[3] + d;
                    found->index[found->count++] = (int)number;
                }
            }
        }
    }
}

// Window q of a row for m images from n on.
TB_FN void window(const sizes *g, const row *o, const cells *list, tb_i64 q, tb_i64 n, int m) {
    const TB_X *const x = o->x + (q * g->step[3] - g->pad[3]) * o->xs[3] + n;
    TB_X *const out = o->out + q * o->step + n;
    vec best = load(x + list->at[0], m);
#if TB_OP == 0
    mask where = list->index[0] + (mask){0};
    for (int c = 1; c < list->count; ++c) {
        const vec v = load(x + list->at[c], m);
        const mask wins = ~(v <= best) & (best == best);  // a NaN wins, and the first of them stays
        best = (vec)(((mask)v & wins) | ((mask)best & ~wins));
        where = ((list->index[c] + (mask){0}) & wins) | (where & ~wins);
    }
    const small places = __builtin_convertvector(where, small);
    __builtin_memcpy(o->places + q * o->places_step + n, &places, sizeof(TB_I) * (unsigned long)m);
    finish(g, out, best, m);
#elif TB_OP == 1
    for (int c = 1; c < list->count; ++c) best += load(x + list->at[c], m);
    finish(g, out, best / (TB_W)list->count, m);
#else
    best *= best;
    for (int c = 1; c < list->count; ++c) {
        const vec v = load(x + list->at[c], m);
        best += v * v;
    }
    finish(g, out, roots(best), m);
#endif
}

// All windows of a row of few images: cell by cell, over all windows that have the cell inside.
TB_FN void line(const sizes *g, const row *o, tb_i64 images) {
    TB_W best[LINE], buffer[LANES];
    int where[LINE], counts[LINE];
    const tb_i64 width = g->out[3];
    for (int i = 0; i < width * images; ++i) best[i] = 0, where[i] = -1, counts[i] = 0;
    for (tb_i64 a = o->j.from; a < o->j.to; ++a) {
        for (tb_i64 b = o->t.from; b < o->t.to; ++b) {
            for (tb_i64 c = o->r.from; c < o->r.to; ++c) {
                const TB_X *const from = o->x + inner(o->xs, a, b, c);
                const tb_i64 cell = ((a * g->window[1] + b) * g->window[2] + c) * g->window[3];
                for (tb_i64 d = 0; d < g->window[3]; ++d) {
                    const tb_i64 shift = d - g->pad[3], room = g->in[3] - 1 - shift;
                    const tb_i64 start = shift < 0 ? (-shift + g->step[3] - 1) / g->step[3] : 0;
                    const tb_i64 past = room < 0 ? 0 : room / g->step[3] + 1, end = past < width ? past : width;
                    for (tb_i64 q = start; q < end; ++q) {
                        const TB_W *const x = TB_READ(buffer, from + (q * g->step[3] + shift) * o->xs[3], (int)images);
                        for (tb_i64 n = 0; n < images; ++n) {
                            const tb_i64 i = q * images + n;
#if TB_OP == 0
                            const int wins = (where[i] < 0) | (!(x[n] <= best[i]) & (best[i] == best[i]));
                            best[i] = wins ? x[n] : best[i];
                            where[i] = wins ? (int)(cell + d) : where[i];
#elif TB_OP == 1
                            best[i] += x[n];
                            counts[i] += 1;
#else
                            best[i] += x[n] * x[n];
#endif
                        }
                    }
                }
            }
        }
    }
    for (tb_i64 q = 0; q < width; ++q) {
        TB_W *const done = best + q * images;
        for (tb_i64 n = 0; n < images; ++n) {
#if TB_OP == 1
            done[n] /= (TB_W)counts[q * images + n];
#elif TB_OP == 2
            done[n] = TB_SQRT(done[n]);
#endif
        }
        finish_line(g, o->out + q * o->step, done, images);
#if TB_OP == 0
        for (tb_i64 n = 0; n < images; ++n) o->places[q * o->places_step + n] = (TB_I)where[q * images + n];
#endif
    }
}

TB_FN void fprop_row(const sizes *g, void *const *ptr, const tb_i64 *stride, tb_i64 number) {
    const tb_i64 p = number % g->out[2], m = number / g->out[2] % g->out[1], k = number / (g->out[2] * g->out[1]);
    const tb_i64 *const os = stride + TB_OUTPUT * 4;
    const tb_i64 origin = inner(stride, k * g->step[0] - g->pad[0], m * g->step[1] - g->pad[1],
                                p * g->step[2] - g->pad[2]);
    row o = {cells_of(g, 0, k), cells_of(g, 1, m), cells_of(g, 2, p), (const TB_X *)ptr[0] + origin, stride,
             (TB_X *)ptr[TB_OUTPUT] + inner(os, k, m, p), os[3], 0, 0};
#if TB_OP == 0
    o.places = (TB_I *)ptr[TB_OUTPUT + 1] + inner(os + 4, k, m, p);
    o.places_step = os[7];
#endif
    if (g->images < FEW && g->images * g->out[3] <= LINE) {
        if (g->images == 1) line(g, &o, 1);
        else line(g, &o, g->images);
        return;
    }
    cells list;
    list.count = 0;
    for (tb_i64 q = 0; q < g->out[3]; ++q) {
        tb_i64 n = 0;
        find_cells(g, &o, q, &list);
        for (; n + LANES <= g->images; n += LANES) window(g, &o, &list, q, n, LANES);
        IN_PIECES(window(g, &o, &list, q, n, PIECE))
    }
}

// A row (c, d, h) of the gradient, and the rows (k, m, p) of windows that hold it: where their errors and their places
// (or forward outputs) begin, the number of their first cell there, and how many cells they have but for the width.
typedef struct {
    int count, cell[TB_CELLS];
    tb_i64 error[TB_CELLS], other[TB_CELLS], size[TB_CELLS];
    const TB_X *e;
    const void *others;
    tb_i64 e_step, other_step;
    const TB_X *x;  // the forward input (root of squares)
    tb_i64 x_step;
    TB_X *out;
    tb_i64 step;
} gradient;

TB_FN void find_windows(const sizes *g, void *const *ptr, const tb_i64 *stride, tb_i64 c, tb_i64 d, tb_i64 h,
                        gradient *o) {
    const range ks = windows_of(g, 0, c), ms = windows_of(g, 1, d), ps = windows_of(g, 2, h);
    const tb_i64 *const other = stride + (TB_OP == 2 ? 8 : 4), *const os = stride + TB_OUTPUT * 4;
    o->count = 0;
    for (tb_i64 k = ks.from; k < ks.to; ++k) {
        const tb_i64 a = c + g->pad[0] - k * g->step[0];
        for (tb_i64 m = ms.from; m < ms.to; ++m) {
            const tb_i64 b = a * g->window[1] + d + g->pad[1] - m * g->step[1];
            for (tb_i64 p = ps.from; p < ps.to; ++p) {
                const tb_i64 size = length(cells_of(g, 0, k)) * length(cells_of(g, 1, m)) * length(cells_of(g, 2, p));
                o->cell[o->count] = (int)((b * g->window[2] + h + g->pad[2] - p * g->step[2]) * g->window[3]);
                o->error[o->count] = inner(stride, k, m, p);
                o->other[o->count] = TB_OP == 1 ? 0 : inner(other, k, m, p);
                o->size[o->count++] = size;
            }
        }
    }
    o->e = (const TB_X *)ptr[0];
    o->e_step = stride[3];
    o->others = ptr[TB_OP == 2 ? 2 : 1];
    o->other_step = TB_OP == 1 ? 0 : other[3];
    o->x = (const TB_X *)ptr[1] + (TB_OP == 2 ? inner(stride + 4, c, d, h) : 0);
    o->x_step = TB_OP == 2 ? stride[7] : 0;
    o->out = (TB_X *)ptr[TB_OUTPUT] + inner(os, c, d, h);
    o->step = os[3];
}

// m places as a vector. gcc converts bytes to 32 bits piece by piece unless it is told the instruction.
TB_FN mask widened(const TB_I *places, int m) {
    small here = {0};
    __builtin_memcpy(&here, places, sizeof(TB_I) * (unsigned long)m);
#if defined(__AVX512F__) && !defined(__clang__)
    typedef char bytes __attribute__((vector_size(16)));
    typedef int wide __attribute__((vector_size(64)));
    if (sizeof here == 16 && sizeof(TB_N) == 4 && sizeof(TB_I) == 1) {
        bytes packed;
        __builtin_memcpy(&packed, &here, 16);
        return (mask)__builtin_ia32_pmovzxbd512_mask(packed, (wide){0}, -1);
    }
#endif
    return __builtin_convertvector(here, mask);
}

// What pixel w of a row gets from windows `qs` along it, for m images from n on.
TB_FN void pixel(const sizes *g, const gradient *o, range qs, tb_i64 w, tb_i64 n, int m) {
    vec sum = {0};
    for (int r = 0; r < o->count; ++r) {
        for (tb_i64 q = qs.from; q < qs.to; ++q) {
            const vec e = load(o->e + o->error[r] + q * o->e_step + n, m);
            const tb_i64 other = o->other[r] + q * o->other_step + n;
#if TB_OP == 0
            const TB_N index = o->cell[r] + (TB_N)(w + g->pad[3] - q * g->step[3]);
            sum += (vec)((mask)e & (widened((const TB_I *)o->others + other, m) == index));
#elif TB_OP == 1
            (void)other;
            sum += e * (1 / (TB_W)(o->size[r] * length(cells_of(g, 3, q))));
#else
            const vec root = load((const TB_X *)o->others + other, m);
            sum += (vec)((mask)(e / root) & (root != 0));
#endif
        }
    }
#if TB_OP == 2
    sum *= load(o->x + w * o->x_step + n, m);
#endif
    finish(g, o->out + w * o->step + n, sum, m);
}

// A whole row of few images: window by window, each to its cells.
TB_FN void scattered(const sizes *g, const gradient *o, tb_i64 images) {
    TB_W sum[LINE], buffer[LANES], other_buffer[LANES];
    for (int i = 0; i < g->in[3] * images; ++i) sum[i] = 0;
    for (int r = 0; r < o->count; ++r) {
        for (tb_i64 q = 0; q < g->out[3]; ++q) {
            const range s = cells_of(g, 3, q);
            const TB_W *const e = TB_READ(buffer, o->e + o->error[r] + q * o->e_step, (int)images);
            const tb_i64 other = o->other[r] + q * o->other_step;
#if TB_OP == 0
            const TB_I *const places = (const TB_I *)o->others + other;
#elif TB_OP == 1
            const TB_W share = 1 / (TB_W)(o->size[r] * length(s));
#else
            const TB_W *const root = TB_READ(other_buffer, (const TB_X *)o->others + other, (int)images);
#endif
            TB_W *const to = sum + (q * g->step[3] - g->pad[3]) * images;
            for (tb_i64 d = s.from; d < s.to; ++d) {
                for (tb_i64 n = 0; n < images; ++n) {
#if TB_OP == 0
                    to[d * images + n] += (int)places[n] == o->cell[r] + (int)d ? e[n] : 0;
#elif TB_OP == 1
                    to[d * images + n] += e[n] * share;
#else
                    to[d * images + n] += root[n] != 0 ? e[n] / root[n] : 0;
#endif
                }
            }
        }
    }
    for (tb_i64 w = 0; w < g->in[3]; ++w) {
#if TB_OP == 2
        const TB_W *const x = TB_READ(other_buffer, o->x + w * o->x_step, (int)images);
        for (tb_i64 n = 0; n < images; ++n) sum[w * images + n] *= x[n];
#endif
        finish_line(g, o->out + w * o->step, sum + w * images, images);
    }
}

TB_FN void bprop_row(const sizes *g, void *const *ptr, const tb_i64 *stride, tb_i64 number) {
    gradient o;
    const tb_i64 h = number % g->in[2], d = number / g->in[2] % g->in[1], c = number / (g->in[2] * g->in[1]);
    find_windows(g, ptr, stride, c, d, h, &o);
    if (g->images < FEW && g->images * g->in[3] <= LINE) {
        if (g->images == 1) scattered(g, &o, 1);
        else scattered(g, &o, g->images);
        return;
    }
    for (tb_i64 w = 0; w < g->in[3]; ++w) {
        const range qs = windows_of(g, 3, w);
        tb_i64 n = 0;
        for (; n + LANES <= g->images; n += LANES) pixel(g, &o, qs, w, n, LANES);
        IN_PIECES(pixel(g, &o, qs, w, n, PIECE))
    }
}

// Pointers: input, output, after which come places (largest only). Tasks are groups of rows of the output.
void pool_fprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 rows = g->out[0] * g->out[1] * g->out[2], last = end * g->group < rows ? end * g->group : rows;
    (void)scalar;
    for (tb_i64 number = begin * g->group; number < last; ++number) fprop_row(g, ptr, stride, number);
}

// Pointers: error, then places (largest) or forward input and output (root of squares), then the gradient. Tasks are
// groups of rows of the gradient.
void pool_bprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 rows = g->in[0] * g->in[1] * g->in[2], last = end * g->group < rows ? end * g->group : rows;
    (void)scalar;
    for (tb_i64 number = begin * g->group; number < last; ++number) bprop_row(g, ptr, stride, number);
}
