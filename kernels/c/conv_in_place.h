// SPDX-License-Identifier: Apache-2.0
// conv_in_place.h — convolutions of single maps that read their input where it lies: forward, back at stride 1, and the
// filters' gradient
//
// Where whole vectors are of images, the inputs of neighbouring outputs are vectors of their own, whatever the stride is.
// Outputs that meet the same taps are a piece: the middle of the image, and rows and columns of its edges. Nothing is read
// that does not exist, and nothing copied.
//
// Order     Sums run over taps in the order of their inputs; for the filters' gradient over places, lane by lane, piece by
//           piece.
// Bound by  memory; with small images, by loads
// Checked   tests/primitives/test_conv_kernels.py; timed by benchmarks/conv.py
#ifndef TB_CONV_IN_PLACE_H
#define TB_CONV_IN_PLACE_H

#include "conv_copies.h"

enum {
    MOST_HERE = 25,     // taps
    MOST_BESIDE = 9,    // of these at stride 1, where sweeps over a copy read each vector once: so many stay in registers
    MOST_SEGMENTS = 7,  // of rows, and of columns, that meet the same taps
};

typedef struct range {
    int64_t first, last;
} range;

INLINE range both(range x, range y) { return (range){-least(-x.first, -y.first), least(x.last, y.last)}; }
INLINE int is_in(int64_t place, range x) { return place >= x.first && place < x.last; }

// How far the inputs of a tap lie from those at `a` times the outputs' places; for which depths, rows and columns of outputs
// they exist; and the number of the filters' cell.
typedef struct reader {
    int64_t distance, cell;
    range depths, rows, columns;
} reader;

// Those of all taps, in the order of their inputs; and the rows and columns of outputs for which all inputs exist.
typedef struct readers {
    reader of[MOST_HERE];
    range rows, columns;
} readers;

INLINE int64_t away(const axis *x, int64_t tap) {
    int64_t shift, from;
    reach(x, tap, 0, &shift, &from);
    return shift * x->a + from;
}

// For which outputs of an axis there are inputs so far away.
INLINE range exist(const axis *x, int64_t far) {
    const int64_t first = -floor_div(far, x->a), last = floor_div(x->in - 1 - far, x->a) + 1;
    return (range){first > 0 ? first : 0, least(last, x->out)};
}

static void find_readers(const shape *s, readers *found) {
    const axis *const dx = &s->deep, *const hx = &s->high, *const wx = &s->wide;
    found->rows = (range){0, hx->out}, found->columns = (range){0, wx->out};
    for (int64_t n = 0; n < cells_of(s); ++n) {
        const int64_t cell = wx->backward ? cells_of(s) - 1 - n : n;
        const int64_t deep = away(dx, cell / wx->taps / hx->taps), high = away(hx, cell / wx->taps % hx->taps);
        const int64_t wide = away(wx, cell % wx->taps), distance = ((deep * hx->in + high) * wx->in + wide) * s->images;
        const reader r = {distance, cell, exist(dx, deep), exist(hx, high), exist(wx, wide)};
        found->of[n] = r, found->rows = both(found->rows, r.rows), found->columns = both(found->columns, r.columns);
    }
}

// How many segments an axis has: those that meet all taps are one, others are single.
INLINE int64_t segments(range all, int64_t out) { return all.last > all.first ? out - (all.last - all.first) + 1 : out; }

// Whether a pass takes this way: then its readers are found.
static int is_in_place(const shape *s, readers *found) {
    const int64_t most = s->deep.a * s->high.a * s->wide.a > 1 ? MOST_HERE : MOST_BESIDE;
    if (s->deep.b * s->high.b * s->wide.b > 1 || s->images % LANES || cells_of(s) > most) return 0;
    find_readers(s, found);
    return segments(found->rows, s->high.out) <= MOST_SEGMENTS && segments(found->columns, s->wide.out) <= MOST_SEGMENTS;
}

// Rows and columns of a map's outputs that meet the same taps: these, and where in the input they find those of the first.
typedef struct piece {
    int64_t to, rows, columns, from[MOST_HERE];
    int count, tap[MOST_HERE];
} piece;

// The pieces of a task's rows, which are the same in all maps.
typedef struct pieces {
    int64_t depth, row, count;
    piece of[MOST_SEGMENTS * MOST_SEGMENTS];
} pieces;

static void cut_piece(const job *j, const readers *x, int64_t row, int64_t end, int64_t column, piece *b) {
    const shape *const s = j->s;
    const axis *const dx = &s->deep, *const hx = &s->high, *const wx = &s->wide;
    const int64_t place = ((j->depth * dx->a * hx->in + row * hx->a) * wx->in + column * wx->a) * s->images;
    b->to = ((row - j->row) * wx->out + column) * s->images;
    b->rows = is_in(row, x->rows) ? least(x->rows.last, end) - row : 1;
    b->columns = is_in(column, x->columns) ? x->columns.last - column : 1;
    b->count = 0;
    for (int n = 0; n < cells_of(s); ++n) {
        const reader *const r = x->of + n;
        if (!is_in(j->depth, r->depths) || !is_in(row, r->rows) || !is_in(column, r->columns)) continue;
        b->tap[b->count] = n;
        b->from[b->count++] = place + r->distance;
    }
}

// Those of so many rows from the job's on.
static void cut_rows_here(const job *j, const readers *x, int64_t rows, pieces *cut) {
    if (cut->depth == j->depth && cut->row == j->row) return;
    cut->depth = j->depth, cut->row = j->row, cut->count = 0;
    for (int64_t row = j->row, end = j->row + rows, taken; row < end; row += taken)
        for (int64_t column = 0; column < j->s->wide.out; ++cut->count) {
            piece *const b = cut->of + cut->count;
            cut_piece(j, x, row, end, column, b);
            column += b->columns, taken = b->rows;
        }
}

// For each vector of a piece's outputs: `body`, of where its inputs lie from the first's (`from`), and of it as to[from] in
// the outputs `first`. Neighbours whose inputs lie side by side are a run.
#define TB_EACH_VECTOR(type, first, s, b, body) \
    do { \
        const int64_t n = (s)->images, line = (s)->wide.out * n, beside = (s)->wide.a == 1, rows = (b)->rows; \
        const int64_t columns = beside ? 1 : (b)->columns, run = beside ? (b)->columns * n : n; \
        const int64_t across = (s)->wide.a * n, down = (s)->high.a * (s)->wide.in * n; \
        for (int64_t row = 0; row < rows; ++row) \
            for (int64_t column = 0; column < columns; ++column) { \
                const int64_t start = row * down + column * across; \
                type *const to = (first) + (row * line + column * run - start); \
                for (int64_t from = start; from < start + run; from += LANES) body; \
            } \
    } while (0)

// A piece's sums; `count` as the piece's.
INLINE void sum_here(const shape *s, const piece *b, int count, const TB_S *in, const vec *filters, TB_R *out) {
    const TB_S *x[MOST_HERE];
    vec f[MOST_HERE];
    UNROLL for (int k = 0; k < count; ++k) x[k] = in + b->from[k], f[k] = filters[b->tap[k]];
    TB_EACH_VECTOR(TB_R, out, s, b, {
        vec sum = {0};
        UNROLL for (int k = 0; k < count; ++k) sum += f[k] * load(x[k] + from);
        store(to + from, sum);
    });
}

// A piece's products by errors, to sums of taps.
INLINE void add_here(const shape *s, const piece *b, int count, const TB_S *in, const TB_S *errors, vec *sums) {
    const TB_S *x[MOST_HERE];
    vec sum[MOST_HERE];
    UNROLL for (int k = 0; k < count; ++k) x[k] = in + b->from[k], sum[k] = sums[b->tap[k]];
    TB_EACH_VECTOR(const TB_S, errors, s, b, {
        const vec e = load(to + from);
        UNROLL for (int k = 0; k < count; ++k) sum[k] += e * load(x[k] + from);
    });
    UNROLL for (int k = 0; k < count; ++k) sums[b->tap[k]] = sum[k];
}

// One of these by the piece's number of taps: those of 3 x 3, of its edges and corners, and of three in a row.
#define TB_BY_COUNT(name, s, b, ...) \
    do { \
        if ((b)->count == 9) name(s, b, 9, __VA_ARGS__); \
        else if ((b)->count == 6) name(s, b, 6, __VA_ARGS__); \
        else if ((b)->count == 4) name(s, b, 4, __VA_ARGS__); \
        else if ((b)->count == 3) name(s, b, 3, __VA_ARGS__); \
        else name(s, b, (b)->count, __VA_ARGS__); \
    } while (0)

static __attribute__((noinline)) void sum_piece(const shape *s, const piece *b, const TB_S *in, const vec *filters,
                                                TB_R *out) {
    TB_BY_COUNT(sum_here, s, b, in, filters, out);
}

static __attribute__((noinline)) void add_piece(const shape *s, const piece *b, const TB_S *in, const TB_S *errors,
                                                vec *sums) {
    TB_BY_COUNT(add_here, s, b, in, errors, sums);
}

INLINE const TB_S *map_of(const job *j, const TB_S *in) {
    return in + j->group * j->s->deep.in * j->s->high.in * j->s->wide.in * j->s->images;
}

// The pieces of a map's result, whose first row is at `out`.
static void run_rows_here(const job *j, const readers *x, const pieces *cut, const TB_S *in, const TB_S *filters,
                          TB_R *out) {
    const shape *const s = j->s;
    vec filter[MOST_HERE];
    for (int64_t n = 0; n < cells_of(s); ++n) filter[n] = spread(TB_WIDE(filters[x->of[n].cell * s->groups + j->group]));
    for (const piece *b = cut->of; b < cut->of + cut->count; ++b) sum_piece(s, b, map_of(j, in), filter, out + b->to);
}

// To sums of cells: what the pieces of errors, whose first row is at `errors`, and a map's input give.
static void add_rows_here(const job *j, const pieces *cut, const TB_S *in, const TB_S *errors, vec *sums) {
    for (const piece *b = cut->of; b < cut->of + cut->count; ++b)
        add_piece(j->s, b, map_of(j, in), errors + b->to, sums);
}

#endif
