// SPDX-License-Identifier: Apache-2.0
// pool_few.h — rows of windows of fewer images than a vector has lanes: vectors go along the width and images
//
// Part of pool.c, with its macros. All windows of a row that are wholly inside have the same cells. Of windows two
// pixels apart, two neighbouring vectors hold the cells by turns. Vectors may read what follows a row, but not what
// follows the tensor.

// Whether lanes of two vectors are chosen, which takes AVX2; else pixels that lie apart are taken one by one.
#if defined(__AVX2__)
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

// One vector of results: the windows from pixel x on, of so many rows and cells along each. The sum of what they read.
TB_FN vec pool_few(const sizes *g, const deal *by, const TB_X *x, TB_X *out, TB_I *places, const tap *list, int count,
                   int cells, int m, const TB_X *end, int careful) {
    leader found = {{0}};
    vec sum = {0};
    UNROLL for (int r = 0; r < count; ++r) {
        UNROLL for (int d = 0; d < cells; d += BY_TURNS ? 2 : 1) {
            const TB_X *const at = x + list[r].at + d * g->images;
            const TB_N number = list[r].number + (TB_N)d;
            const vec a = APART ? take(at, STEP(g), g->images, m) : load_before(at, end);
            const vec b = BY_TURNS ? load_before(at + by->useful, end) : a;
            const leader cell = candidate(BY_TURNS ? TB_CHOSEN(a, b, by->even) : a, number);
            if (r + d == 0) found = cell;
            else compete(&found, cell, careful);
            sum += cell.best;
            if (!BY_TURNS || d + 1 == cells) continue;
            const leader next = candidate(TB_CHOSEN(a, b, by->odd), number + 1);
            compete(&found, next, careful);
            sum += next.best;
        }
    }
    publish(g, &found, out, places, count * cells, m);
    return sum;
}

// Asks for what is new to the row of windows after the next.
TB_FN void fetch_rows(const sizes *g, const TB_X *x, const tap *list, int count, tb_i64 line) {
    for (tb_i64 r = higher(0, count - g->step[2]); r < count; ++r) {
        for (tb_i64 v = 0; v < g->step[3]; ++v) __builtin_prefetch(x + list[r].at + 2 * line + v * LANES);
    }
}

// Lines of windows that are wholly inside: where the first lies, the numbers of results of each, and what is between.
typedef struct {
    const TB_X *x;
    TB_X *out;
    TB_I *places;
    tb_i64 total, lines, x_line, out_line, places_line;
    const TB_X *end;  // nothing is read from here on
} few;

// All of that; the sum of what was read. Vectors that go past the cache begin where lines of it do.
TB_FN vec run_few(const sizes *sizes_at, const deal *deal_at, const few *few_at, const tap *list, int count, int cells,
                  int careful) {
    const sizes known = *sizes_at, *const g = &known;  // the copies stay in registers, since nobody has their addresses
    const deal dealt = *deal_at, *const by = &dealt;
    const few own = *few_at, *const o = &own;
    const tb_i64 images = g->images;
    vec sum = {0};
    for (tb_i64 l = 0; l < o->lines; ++l) {
        const TB_X *const x = o->x + l * o->x_line;
        TB_X *const out = o->out + l * o->out_line;
        TB_I *const places = TB_OP == 0 ? o->places + l * o->places_line : 0;
        const tb_i64 before = (tb_i64)(-(tb_u64)out / sizeof(TB_X) % LANES);
        for (tb_i64 n = 0, m; n < o->total; n += m) {
            m = lower(n == 0 && g->streams && before && before % images == 0 ? before : by->useful, o->total - n);
            const TB_X *const from = x + n * STEP(g);
            TB_I *const where = TB_OP == 0 ? places + n : places;
            if (g->far) fetch_rows(g, from, list, count, o->x_line);
            if (m == LANES) sum += pool_few(g, by, from, out + n, where, list, count, cells, LANES, o->end, careful);
            else sum += pool_few(g, by, from, out + n, where, list, count, cells, (int)m, o->end, careful);
        }
    }
    return sum;
}

// Lines of the usual windows, away from the end. Returns whether that is valid.
static __attribute__((noinline)) int run_usual_few(const sizes *g, const deal *by, const few *at, const tap *list) {
    few lines = *at;
    lines.end = 0;
    return is_sound(run_few(g, by, &lines, list, USUAL_ROWS, TB_ACROSS, 0));
}

static __attribute__((noinline)) void run_few_with_care(const sizes *g, const deal *by, const few *at, const tap *list,
                                                        int count) {
    run_few(g, by, at, list, count, TB_ACROSS ? TB_ACROSS : (int)g->window[3], 1);
}

// The results of windows q of some rows, which are wholly inside; `rows`: the first cell of each row of a window.
TB_FN void fprop_few(const sizes *g, const deal *by, const row *o, range q, tb_i64 lines, const taps *rows) {
    const tb_i64 images = g->images, step = g->step[3], total = length(q) * images, line = g->step[2] * o->xs[2];
    few all = {o->x + (q.from * step - g->pad[3]) * images, o->out + q.from * images, o->places + q.from * o->places_step,
               total, lines, line, o->line, o->places_line, by->end};
    tb_i64 most = rows->list[0].at;
    for (int r = 1; r < rows->count; ++r) most = higher(most, rows->list[r].at);
    most += total * step + g->window[3] * images + 2 * LANES;
    if (USUAL_ROWS && rows->count == USUAL_ROWS && line >= 0) {
        while (all.lines && by->end - all.x < most + (all.lines - 1) * line) --all.lines;
        if (run_usual_few(g, by, &all, rows->list)) {
            all.x += all.lines * line, all.out += all.lines * o->line, all.places += all.lines * o->places_line;
            lines -= all.lines;
        }
        all.lines = lines;
    }
    run_few_with_care(g, by, &all, rows->list, rows->count);
}
