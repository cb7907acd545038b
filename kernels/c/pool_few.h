// SPDX-License-Identifier: Apache-2.0
// pool_few.h — rows of windows of fewer images than a vector has lanes: vectors go along the width and images
//
// Part of pool.c, with its macros. All windows of a row that are wholly inside have the same cells. Of windows two
// pixels apart, two neighbouring vectors hold the cells by turns. Vectors may read what follows a row, but not what
// follows the tensor.

// Whether lanes of two vectors are chosen, which takes AVX-512; else pixels that lie apart are taken one by one.
#if defined(__AVX512F__)
#define BY_TURNS (TB_STEP == 2)
#else
#define BY_TURNS 0
#endif
#define APART (TB_STEP != 1 && !BY_TURNS)
#define STEP(g) (TB_STEP ? TB_STEP : (g)->step[3])

#define UNROLL _Pragma("GCC unroll 3")
#define USUAL_ROWS (TB_ACROSS ? TB_WHOLE / (TB_ACROSS + !TB_ACROSS) : 0)  // of windows with loops of their own

// How lanes are dealt: how many pixels a vector holds, and their lanes; which lanes of two vectors belong to even
// pixels and odd ones, and which make pixels of one and the other by turns; and where the tensor that is read ends.
typedef struct {
    tb_i64 pixels, useful;
    mask even, odd, mixed;
    const TB_X *end;
} deal;

// The number of pixel i among the lanes of two vectors, as lane n of a pixel counts.
TB_FN TB_N lane_of(const sizes *g, tb_i64 i, tb_i64 n) {
    const tb_i64 pixels = LANES / g->images;
    return (TB_N)(i < pixels ? i * g->images + n : LANES + (i - pixels) * g->images + n);
}

TB_FN deal deal_of(const sizes *g, const tb_i64 *stride, const TB_X *x) {
    deal d = {LANES / g->images, LANES / g->images * g->images, {0}, {0}, {0}, x + g->images};
    for (int axis = 0; axis < 4; ++axis) d.end += higher((g->in[axis] - 1) * stride[axis], 0);
    for (tb_i64 i = 0; i < d.pixels; ++i) {
        for (tb_i64 n = 0; n < g->images; ++n) {
            d.even[i * g->images + n] = lane_of(g, 2 * i, n);
            d.odd[i * g->images + n] = lane_of(g, 2 * i + 1, n);
            d.mixed[i * g->images + n] = (TB_N)(i % 2 * LANES + i / 2 * g->images + n);
        }
    }
    return d;
}

// A vector of elements, of which those from `end` on (if there is an end) are not read.
TB_FN vec load_before(const TB_X *x, const TB_X *end) {
    if (!end || end - x >= LANES) return load(x, LANES);
    return load(x, end > x ? (int)(end - x) : 0);
}

// Every `step`-th of some pixels.
TB_FN void take_pixels(TB_X *restrict to, const TB_X *restrict from, tb_i64 count, tb_i64 step, tb_i64 m) {
    for (tb_i64 i = 0; i < count; ++i) {
        for (tb_i64 n = 0; n < m; ++n) to[i * m + n] = from[i * step * m + n];
    }
}

// m numbers of pixels that lie `step` apart, in loops of their own for the usual images.
TB_FN vec take(const TB_X *x, tb_i64 step, tb_i64 images, int m) {
    TB_X taken[LANES];
    if (images == 1) take_pixels(taken, x, m, step, 1);
    else if (images == 4) take_pixels(taken, x, m / 4, step, 4);
    else if (images == 8) take_pixels(taken, x, m / 8, step, 8);
    else take_pixels(taken, x, m / images, step, images);
    return load(taken, m);
}

// One vector of results: the windows from pixel x on, of so many rows and cells along each.
TB_FN void pool_few(const sizes *g, const deal *by, const TB_X *x, TB_X *out, TB_I *places, const tap *list, int count,
                    int cells, int m, const TB_X *end) {
    state found;
    UNROLL for (int r = 0; r < count; ++r) {
        const TB_N number = list[r].number;
        UNROLL for (int d = 0; d < cells; d += BY_TURNS ? 2 : 1) {
            const TB_X *const at = x + list[r].at + d * g->images;
            if (APART) {
                meet(&found, take(at, STEP(g), g->images, m), number + (TB_N)d, r + d == 0);
                continue;
            }
            const vec a = load_before(at, end), b = BY_TURNS ? load_before(at + by->useful, end) : a;
            meet(&found, BY_TURNS ? chosen(a, b, by->even) : a, number + (TB_N)d, r + d == 0);
            if (BY_TURNS && d + 1 < cells) meet(&found, chosen(a, b, by->odd), number + (TB_N)(d + 1), 0);
        }
    }
    finish(g, out, outcome(&found, count * cells), m);
    if (TB_OP == 0) store_places(places, found.where, m);
}

// Asks for what is new to the row of windows after the next.
TB_FN void fetch_rows(const sizes *g, const row *o, const TB_X *x, const taps *rows) {
    const tb_i64 down = 2 * g->step[2] * o->xs[2];
    for (tb_i64 r = higher(0, rows->count - g->step[2]); r < rows->count; ++r) {
        for (tb_i64 v = 0; v < g->step[3]; ++v) __builtin_prefetch(x + rows->list[r].at + down + v * LANES);
    }
}

// The results of windows q of a row, which are wholly inside; `rows`: the first cell of each row of a window. Vectors
// that go past the cache begin where lines do.
TB_FN void fprop_few(const sizes *g, const deal *by, const row *o, range q, const taps *rows) {
    const tb_i64 images = g->images, step = g->step[3], total = length(q) * images;
    const tb_i64 cells = TB_ACROSS ? TB_ACROSS : g->window[3];
    const TB_X *const x = o->x + (q.from * step - g->pad[3]) * images;
    TB_X *const out = o->out + q.from * images;
    TB_I *const places = o->places + q.from * o->places_step;
    tb_i64 most = rows->list[0].at;
    for (int r = 1; r < rows->count; ++r) most = higher(most, rows->list[r].at);
    const int near = by->end - x < most + total * step + cells * images + 2 * LANES;
    const int usual = USUAL_ROWS && rows->count == USUAL_ROWS;
    const tb_i64 before = (tb_i64)(-(tb_u64)out / sizeof(TB_X) % LANES);
    for (tb_i64 n = 0, m; n < total; n += m) {
        m = lower(n == 0 && g->streams && before && before % images == 0 ? before : by->useful, total - n);
        const TB_X *const from = x + n * step;
        TB_I *const where = TB_OP == 0 ? places + n : places;
        fetch_rows(g, o, from, rows);
        if (!usual || near)
            pool_few(g, by, from, out + n, where, rows->list, rows->count, (int)cells, (int)m, near ? by->end : 0);
        else if (m < LANES)
            pool_few(g, by, from, out + n, where, rows->list, USUAL_ROWS, (int)cells, (int)m, 0);
        else
            pool_few(g, by, from, out + n, where, rows->list, USUAL_ROWS, (int)cells, LANES, 0);
    }
}
