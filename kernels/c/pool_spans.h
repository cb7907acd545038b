// SPDX-License-Identifier: Apache-2.0
// pool_spans.h — results of pooling that have the same taps, forward and back: from what they read to where they go
//
// Part of pool.c, with its macros. Several vectors go through the taps together, and share what is looked up of a tap.
#include "block_vectors.h"

#define TOGETHER 2  // vectors that go through the taps together
#define FEW (TB_LEAST < VECTOR_BYTES)  // images than a vector has lanes

#include "pool_places.h"

// `far`: whether lines are asked for ahead; `streams`: whether results go past the caches.
typedef struct {
    tb_i64 images, in[4], out[4], window[4], step[4], pad[4], group, far, streams, alpha, beta;
} sizes;

// What a result reads through one cell of its window, or a pixel from one window: where it lies, where the place or
// forward output lies, the number of the cell, and the part of the error that a cell gets (mean).
typedef struct {
    tb_i64 at, other;
    TB_N number;
    TB_W share;
} tap;

// `count` results along a row that have the same taps, each of `numbers` neighbours: what they read, and how far apart;
// and of windows how many such rows, and how far apart.
typedef struct {
    tb_i64 count, numbers;
    const void *x, *other;
    void *out, *places;
    tb_i64 x_step, other_step, out_step, places_step;
    const TB_X *factor;  // of a gradient: the forward input (root of squares)
    tb_i64 factor_step;
    tb_i64 down, rows, columns, row_step, column_step;  // how far ahead to ask for how much
    tb_i64 lines, x_line, out_line, places_line;
} span;

// Number n of what is read at x: elements or, `laid`, numbers to compute with, where vectors are whole.
TB_FN vec met(const void *x, tb_i64 n, int m, int laid) {
    if (laid) return *(const loose *)((const TB_W *)x + n);
    return load((const TB_X *)x + n, m);
}

// to = alpha v + beta to, for m elements. Without beta the old contents are not read.
TB_FN void finish(const sizes *g, TB_X *to, vec v, int m) {
#if !TB_PLAIN
    const TB_W alpha = (TB_W)tb_word_double(g->alpha), beta = (TB_W)tb_word_double(g->beta);
    v *= alpha;
    if (beta != 0) v += beta * load(to, m);
#endif
    store(to, v, m, g->streams);
}

TB_FN vec roots(vec x) {
    for (int i = 0; i < LANES; ++i) x[i] = TB_SQRT(x[i]);
    return x;
}

// A vector of a span's results goes to its place, or among rows that are laid side by side.
TB_FN void deliver(const sizes *g, const span *s, tb_i64 n, vec v, int m, int laid) {
    if (laid) *(loose *)((TB_W *)s->out + n) = v;
    else finish(g, (TB_X *)s->out + n, v, m);
}

// What windows have met: the largest and its place, or a sum.
typedef struct {
    vec best;
    mask where;
} state;

// What was met, and then something else.
TB_FN void join(state *found, state next) {
#if TB_OP == 0
    const vec x = next.best, best = found->best;
    const mask wins = ~(x <= best) & (best == best);  // a NaN wins, and the first of them stays
    found->best = (vec)(((mask)x & wins) | ((mask)best & ~wins));
    found->where = (next.where & wins) | (found->where & ~wins);
#else
    found->best += next.best;
#endif
}

// One more cell, of that number; `first` of all or not.
TB_FN void meet(state *found, vec x, TB_N number, int first) {
    const state next = {TB_OP == 2 ? x * x : x, number + (mask){0}};
    if (first) *found = next;
    else join(found, next);
}

// The largest, mean or root of squares of so many cells.
TB_FN vec outcome(const state *found, int count) {
    return TB_OP == 1 ? found->best * (1 / (TB_W)count) : TB_OP == 2 ? roots(found->best) : found->best;
}

// Windows of some taps: `vectors` vectors of m numbers from n on.
TB_FN void pool_vectors(const sizes *g, const span *s, tb_i64 n, const tap *list, int count, int vectors, int m) {
    const TB_X *const x = (const TB_X *)s->x + n;
    state found[TOGETHER];
    for (int c = 0; c < count; ++c) {
        for (int v = 0; v < vectors; ++v)
            meet(&found[v], load(x + list[c].at + v * LANES, m), list[c].number, c == 0);
    }
    for (int v = 0; v < vectors; ++v) {
        finish(g, (TB_X *)s->out + n + v * LANES, outcome(&found[v], count), m);
        if (TB_OP == 0) store_places((TB_I *)s->places + n + v * LANES, found[v].where, m);
    }
}

// What a pixel gets through the taps: `vectors` vectors of m numbers from n on. Laid rows of errors are shared out.
TB_FN void gather_vectors(const sizes *g, const span *s, tb_i64 n, const tap *list, int count, int vectors, int m,
                          int laid) {
    vec sum[TOGETHER];
    for (int v = 0; v < vectors; ++v) sum[v] = (vec){0};
    for (int c = 0; c < count; ++c) {
        for (int v = 0; v < vectors; ++v) {
            const tb_i64 at = n + v * LANES;
            const vec e = met(s->x, list[c].at + at, m, laid);
            if (TB_OP == 0) {
                const held here = load_places((const TB_I *)s->other + list[c].other + at, m);
                sum[v] = added_there(sum[v], e, here, list[c].number);
            } else if (laid) {
                sum[v] += e;
            } else if (TB_OP == 1) {
                sum[v] += e * list[c].share;
            } else {
                const vec root = load((const TB_X *)s->other + list[c].other + at, m);
                sum[v] += (vec)((mask)(e / root) & (root != 0));
            }
        }
    }
    for (int v = 0; v < vectors; ++v) {
        if (TB_OP == 2 && !laid) sum[v] *= load(s->factor + n + v * LANES, m);
        deliver(g, s, n + v * LANES, sum[v], m, laid);
    }
}

// Asks for what is new to the row of windows after the next.
TB_FN void fetch_ahead(const span *s, const TB_X *last, tb_i64 apart) {
    for (tb_i64 r = 0; r < s->rows; ++r) {
        for (tb_i64 d = 0; d < s->columns; ++d) {
            for (int v = 0; v < TOGETHER; ++v)
                __builtin_prefetch(last + s->down - r * s->row_step - d * s->column_step + v * apart, 0, 2);
        }
    }
}

// A span whose results follow each other in memory, with all that they read, as one result of as many numbers.
TB_FN span joined(span s, int back) {
    const tb_i64 m = s.numbers;
    int beside = s.x_step == m && s.out_step == m;
    if (TB_OP == 0 && !back) beside &= s.places_step == m;
    if (TB_OP != 1 && back) beside &= s.other_step == m;
    if (TB_OP == 2 && back) beside &= s.factor_step == m;
    if (beside) s.numbers *= s.count, s.count = 1;
    return s;
}

// The span one result on.
TB_FN void step_on(span *s, int back) {
    s->x = (const TB_X *)s->x + s->x_step;
    s->out = (TB_X *)s->out + s->out_step;
    if (TB_OP == 0 && !back) s->places = (TB_I *)s->places + s->places_step;
    if (TB_OP == 0 && back) s->other = (const TB_I *)s->other + s->other_step;
    if (TB_OP == 2 && back) s->other = (const TB_X *)s->other + s->other_step, s->factor += s->factor_step;
}

// Some vectors of a span's results, `back`: of a gradient. They share what is looked up of a tap.
TB_FN void run_vectors(const sizes *g, const span *s, tb_i64 n, const tap *list, int count, int vectors, int m, int laid,
                       int back) {
    if (back) gather_vectors(g, s, n, list, count, vectors, m, laid);
    else pool_vectors(g, s, n, list, count, vectors, m);
}

TB_FN void run_span(const sizes *sizes_at, span s, const tap *restrict list, int count, int laid, int back) {
    const sizes known = *sizes_at, *const g = &known;  // stays in registers, since nobody has its address
    s = joined(s, back);
    for (tb_i64 i = 0; i < s.count; ++i) {
        tb_i64 n = 0;
        for (; n + TOGETHER * LANES <= s.numbers; n += TOGETHER * LANES) {
            if (g->far && !laid && count) fetch_ahead(&s, (const TB_X *)s.x + list[count - 1].at + n, LANES);
            run_vectors(g, &s, n, list, count, TOGETHER, LANES, laid, back);
        }
        for (; n + LANES <= s.numbers; n += LANES) run_vectors(g, &s, n, list, count, 1, LANES, laid, back);
        if (n < s.numbers) run_vectors(g, &s, n, list, count, 1, laid ? LANES : (int)(s.numbers - n), laid, back);
        step_on(&s, back);
    }
}

#include "pool_whole.h"

// Spans of windows, and of pixels: each compiled once, for all that run them. The usual numbers of taps have loops of
// their own.
static __attribute__((noinline)) void run_windows(const sizes *g, const span *s, const tap *list, int count) {
    if (TB_WHOLE && !FEW && count == TB_WHOLE && s->numbers % LANES == 0 && run_whole(g, s, list)) return;
    span line = *s;
    for (tb_i64 l = 0; l < s->lines; ++l) {
        run_span(g, line, list, count, 0, 0);
        line.x = (const TB_X *)line.x + s->x_line;
        line.out = (TB_X *)line.out + s->out_line;
        if (TB_OP == 0) line.places = (TB_I *)line.places + s->places_line;
    }
}
TB_FN void run_usual(const sizes *g, const span *s, const tap *list, int count, int laid) {
    if (count == TB_WHOLE) run_span(g, *s, list, TB_WHOLE, laid, 1);
    else if (count == 1) run_span(g, *s, list, 1, laid, 1);
    else if (count == 2) run_span(g, *s, list, 2, laid, 1);
    else if (count == 4) run_span(g, *s, list, 4, laid, 1);
    else run_span(g, *s, list, count, laid, 1);
}
static __attribute__((noinline)) void run_pixels(const sizes *g, const span *s, const tap *list, int count) {
    if (FEW) run_span(g, *s, list, count, 0, 1);
    else run_usual(g, s, list, count, 0);
}
