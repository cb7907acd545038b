// SPDX-License-Identifier: Apache-2.0
// pool.c — largest, mean or root of squares of windows of images (C, D, H, W, N), and the way back
//
// A task is some rows (k, m, p) of the output, or (c, d, h) of the gradient. Along a row, a vector of images stays in
// a register while the cells of its window pass over it; the way back gathers: a pixel asks the windows that hold it.
// What a result reads is a list of taps. It is the same for all windows that are wholly inside the image, and for all
// pixels at the same place of a stride but the first and last: they are a span. With fewer images than a vector has
// lanes, vectors go along the width (pool_few.h); for the way back, rows of windows are first laid side by side, with
// zeros around. Each result is computed once, from its taps in C order, so that tasks decide nothing but time.
//
// The host defines TB_OP (0 largest, 1 mean, 2 root of squares), TB_X, TB_W and TB_I, the types of elements, of sums
// and of places, TB_N, integers as wide as TB_W, TB_READ and TB_WRITE, which move blocks between TB_X and TB_W,
// TB_SQRT, the root in TB_W, TB_OUTPUT, the number of the result's pointer (what the step reads comes before it),
// TB_PLAIN, whether alpha is 1 and beta 0, TB_BITS, whether numbers are of four bytes and places of one, TB_CELLS, the most
// cells of a window, TB_WHOLE and TB_ACROSS, the cells of this one and those along its width if they are among the usual,
// which get loops of their own (pool_whole.h), TB_STEP, the stride along the width if it is 1 or 2, else 0, TB_BACK, which
// of the two ways is compiled, TB_SIDE, the side of the windows if their way back goes by blocks of pixels
// (pool_blocks.h), else 0, TB_LINES, how many lines of the cache that of the images of a pixel these take together, if no
// line is partly taken, else 0, TB_SPREAD, whether their way back goes by vectors of windows (pool_spread.h) where processors
// have what it takes, and TB_NARROW, whether there are images for a vector of 32 bytes, but not of 64. TB_STEP matters to fewer
// images than a vector has lanes, and to blocks.
#include "kernel.h"

#if TB_BACK && TB_SPREAD && defined(__AVX2__) && !defined(__clang__)
#define SPREAD 1
#undef TB_SIDE
#undef TB_NARROW
#define TB_SIDE 0
#define TB_NARROW 0
#endif
#include "pool_spans.h"

#define ROOM 4096  // numbers of rows that are laid side by side, at most

typedef struct {
    tb_i64 from, to;
} range;

// What is the same for all rows: the windows along the width that are wholly inside; the strides by which windows may
// begin before those of a pixel, or after; and whether rows are laid side by side: each place of a stride then is a
// line of so many pixels, in so many numbers, or so many numbers are a row of windows.
typedef struct {
    range whole;
    tb_i64 guard, pixels, line, windows;
    int laid;
} plan;

TB_FN tb_i64 higher(tb_i64 x, tb_i64 y) { return x > y ? x : y; }
TB_FN tb_i64 length(range r) { return r.to - r.from; }

// The cells of window number `at` of an axis that are inside the image.
TB_FN range cells_of(const sizes *g, int axis, tb_i64 at) {
    const tb_i64 start = at * g->step[axis] - g->pad[axis];
    return (range){higher(-start, 0), lower(g->in[axis] - start, g->window[axis])};
}

TB_FN tb_i64 inner(const tb_i64 *stride, tb_i64 a, tb_i64 b, tb_i64 c) {
    return a * stride[0] + b * stride[1] + c * stride[2];
}

// Whether all pixels of a map lie side by side. An axis of one has any stride.
TB_FN int is_one_piece(const sizes *g, const tb_i64 *stride) {
    int beside = 1;
    tb_i64 apart = g->images;
    for (int axis = 3; axis > 0; apart *= g->in[axis--]) beside &= g->in[axis] == 1 || stride[axis] == apart;
    return beside;
}

#if TB_BACK && TB_SIDE
#include "pool_blocks.h"
#else

// The windows of an axis that hold pixel `at`.
TB_FN range windows_of(const sizes *g, int axis, tb_i64 at) {
    if (g->window[axis] == 1 && g->step[axis] == 1) return (range){at, at + 1};
    const tb_i64 past = at + g->pad[axis], first = past - g->window[axis] + 1;
    return (range){first > 0 ? (first + g->step[axis] - 1) / g->step[axis] : 0,
                   lower(past / g->step[axis] + 1, g->out[axis])};
}

TB_FN plan plan_of(const sizes *g) {
    const tb_i64 step = g->step[3], last = g->in[3] + g->pad[3] - g->window[3];
    const tb_i64 from = lower((g->pad[3] + step - 1) / step, g->out[3]);
    const tb_i64 guard = (g->window[3] + step - 2) / step, pixels = (g->in[3] + g->pad[3] + step - 1) / step;
    plan p = {{from, higher(from, lower(g->out[3], last < 0 ? 0 : last / step + 1))}, guard, pixels, 0, 0, 0};
    p.line = pixels * g->images + LANES;
    p.windows = (g->out[3] + 2 * guard) * g->images + 2 * LANES;
    const tb_i64 rows = g->window[0] * g->window[1] * g->window[2];
    p.laid = FEW && g->out[3] > 1 && rows * higher(step * p.line, p.windows) <= ROOM;
    return p;
}

// The strides whose pixels at place f are in the image.
TB_FN range strides_of(const sizes *g, const plan *p, tb_i64 f) {
    const tb_i64 step = g->step[3], pad = g->pad[3], last = (p->pixels - 1) * step + f - pad;
    return (range){f < pad ? (pad - f + step - 1) / step : 0, p->pixels - (last >= g->in[3])};
}

// By how many strides the first window that may hold a pixel begins before the pixel, at place f of its stride.
TB_FN tb_i64 reach(const sizes *g, tb_i64 f) { return (g->window[3] - 1 - f) / g->step[3]; }

// Where the windows end that have the same cells along the width as window q.
TB_FN tb_i64 last_alike(range whole, tb_i64 q) { return q >= whole.from && q < whole.to ? whole.to : q + 1; }

// A row (k, m, p) of the output: the cells of its windows over maps, depth and height, and where things lie.
typedef struct {
    range j, t, r;
    const TB_X *x;  // the first cell of a window at pixel 0, perhaps in the padding
    const tb_i64 *xs;
    TB_X *out;
    tb_i64 step;
    TB_I *places;
    tb_i64 places_step, line, places_line;
} row;

// The taps of windows that have cells `s` along the width.
TB_FN int list_cells(const sizes *g, const row *o, range s, tap *list) {
    int count = 0;
    for (tb_i64 a = o->j.from; a < o->j.to; ++a) {
        for (tb_i64 b = o->t.from; b < o->t.to; ++b) {
            for (tb_i64 c = o->r.from; c < o->r.to; ++c) {
                const tb_i64 there = inner(o->xs, a, b, c);
                const tb_i64 cell = ((a * g->window[1] + b) * g->window[2] + c) * g->window[3];
                for (tb_i64 d = s.from; d < s.to; ++d, ++count) {
                    list[count].at = there + d * o->xs[3];
                    list[count].number = (TB_N)(cell + d);
                }
            }
        }
    }
    return count;
}

// The taps that were last asked for, of windows with cells `s` along the width; the next row often has the same.
typedef struct {
    range j, t, r, s;
    int count;
    tap list[TB_CELLS];
} taps;

TB_FN int same(range x, range y) { return x.from == y.from && x.to == y.to; }

static __attribute__((noinline)) void find_cells(const sizes *g, const row *o, range s, taps *found) {
    const int known = same(s, found->s) && same(o->j, found->j) && same(o->t, found->t) && same(o->r, found->r);
    if (found->count && known) return;
    found->j = o->j, found->t = o->t, found->r = o->r, found->s = s;
    found->count = list_cells(g, o, s, found->list);
}

// Windows of some rows of the output that have the same cells down, span by span.
TB_FN void fprop_windows(const sizes *g, const plan *p, const row *o, range windows, tb_i64 lines, taps *found) {
    for (tb_i64 q = windows.from, to; q < windows.to; q = to) {
        find_cells(g, o, cells_of(g, 3, q), found);
        to = last_alike(p->whole, q);
        const span s = {to - q, g->images, o->x + (q * g->step[3] - g->pad[3]) * o->xs[3], 0, o->out + q * o->step,
                        o->places + q * o->places_step, g->step[3] * o->xs[3], 0, o->step, o->places_step, 0, 0,
                        g->step[2] * o->xs[2], lower(g->step[2], g->window[2]), lower(g->step[3], g->window[3]),
                        o->xs[2], o->xs[3], lines, g->step[2] * o->xs[2], o->line, o->places_line};
        run_windows(g, &s, found->list, found->count);
    }
}

#include "pool_few.h"

#include "pool_images.h"

// What rows of the output have in common: of few images, how lanes are dealt; and what the last of them has read, the
// cells of windows and the first cell of each of their rows.
typedef struct {
    plan plan;
    deal deal;
    taps taps, rows;
} common;

// Rows of the output from a number on, at most to `last`; the number after them. Those whose windows have the same cells
// are taken together, if they are all that a row has and hardly more than some vectors.
TB_FN tb_i64 fprop_rows(const sizes *g, common *known, void *const *ptr, const tb_i64 *stride, tb_i64 number,
                        tb_i64 last) {
    const tb_i64 p = number % g->out[2], m = number / g->out[2] % g->out[1], k = number / (g->out[2] * g->out[1]);
    const tb_i64 *const os = stride + TB_OUTPUT * 4;
    const tb_i64 origin = inner(stride, k * g->step[0] - g->pad[0], m * g->step[1] - g->pad[1],
                                p * g->step[2] - g->pad[2]);
    row o = {cells_of(g, 0, k), cells_of(g, 1, m), cells_of(g, 2, p), (const TB_X *)ptr[0] + origin, stride,
             (TB_X *)ptr[TB_OUTPUT] + inner(os, k, m, p), os[3], 0, 0, os[2], 0};
#if TB_OP == 0
    o.places = (TB_I *)ptr[TB_OUTPUT + 1] + inner(os + 4, k, m, p);
    o.places_step = os[7], o.places_line = os[6];
#endif
    const tb_i64 images = g->images;
    const int beside = stride[3] == images && o.step == images && (TB_OP != 0 || o.places_step == images);
    const range all = {0, g->out[3]};
    const range whole = FEW && beside ? known->plan.whole : (range){all.to, all.to};
    tb_i64 lines = 1;
    const int alike = length(o.r) == g->window[2];
    if (alike && (FEW || g->step[3] == 1 ? beside : images <= 2 * LANES)) {
        const tb_i64 beyond = (g->in[2] + g->pad[2] - g->window[2]) / g->step[2] + 1;
        lines = higher(1, lower(last - number, lower(beyond, g->out[2]) - p));
    }
    fprop_windows(g, &known->plan, &o, (range){0, lower(whole.from, all.to)}, lines, &known->taps);
    if (FEW && length(whole) > 0) {
        find_cells(g, &o, (range){0, 1}, &known->rows);
        fprop_few(g, &known->deal, &o, whole, lines, &known->rows);
    }
    fprop_windows(g, &known->plan, &o, (range){whole.to, all.to}, lines, &known->taps);
    return number + lines;
}

// A row (c, d, h) of the gradient: where its pixels lie, and what is read for it.
typedef struct {
    const TB_X *e;
    const void *others;  // places, or forward outputs
    tb_i64 e_step, other_step;
    const TB_X *x;  // the forward input (root of squares)
    tb_i64 x_step;
    TB_X *out;
    tb_i64 step;
    int few;  // whether rows of windows are laid side by side
    tb_i64 number, slot;  // of the first row of windows, and where it is laid
    int count;  // of rows of windows; of each: where it lies, its first cell, and its cells but for the width
    tap rows[TB_CELLS];
} gradient;

// Whether rows of windows are kept for rows of the gradient that follow: of windows over one map and depth.
TB_FN int is_flat(const sizes *g) { return g->window[0] * g->window[1] == 1; }

TB_FN void find_windows(const sizes *g, void *const *ptr, const tb_i64 *stride, tb_i64 c, tb_i64 d, tb_i64 h,
                        gradient *o) {
    const range ks = windows_of(g, 0, c), ms = windows_of(g, 1, d), ps = windows_of(g, 2, h);
    const tb_i64 *const other = stride + (TB_OP == 2 ? 8 : 4), *const os = stride + TB_OUTPUT * 4;
    o->count = 0, o->few = 0;
    o->number = (ks.from * g->out[1] + ms.from) * g->out[2] + ps.from;
    o->slot = is_flat(g) ? o->number % g->window[2] : 0;
    for (tb_i64 k = ks.from; k < ks.to; ++k) {
        const tb_i64 a = c + g->pad[0] - k * g->step[0];
        for (tb_i64 m = ms.from; m < ms.to; ++m) {
            const tb_i64 b = a * g->window[1] + d + g->pad[1] - m * g->step[1];
            for (tb_i64 p = ps.from; p < ps.to; ++p) {
                const tb_i64 cell = (b * g->window[2] + h + g->pad[2] - p * g->step[2]) * g->window[3];
                const tb_i64 size = length(cells_of(g, 0, k)) * length(cells_of(g, 1, m)) * length(cells_of(g, 2, p));
                const tb_i64 there = TB_OP == 1 ? 0 : inner(other, k, m, p);
                o->rows[o->count++] = (tap){inner(stride, k, m, p), there, (TB_N)cell, (TB_W)size};
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

// Where row r of windows is laid.
TB_FN tb_i64 slot_of(const sizes *g, const gradient *o, tb_i64 r) {
    const tb_i64 slot = o->slot + r;
    return slot < g->window[2] || !is_flat(g) ? slot : slot - g->window[2];
}

// The taps of pixels at place f of stride i; of those amid the row if i is -1.
TB_FN int list_windows(const sizes *g, const plan *p, const gradient *o, tb_i64 i, tb_i64 f, tap *list) {
    int count = 0;
    if (f >= g->window[3]) return 0;
    for (int r = 0; r < o->count; ++r) {
        const tap row = o->rows[r];
        for (tb_i64 j = reach(g, f); j >= 0; --j) {
            const tb_i64 q = i - j;
            if (i >= 0 && (q < 0 || q >= g->out[3])) continue;
            const tb_i64 laid = slot_of(g, o, r) * p->windows + (p->guard - j) * g->images;
            tap *const t = &list[count++];
            t->at = o->few ? laid : row.at - j * o->e_step;
            t->other = o->few ? laid : row.other - j * o->other_step;
            t->number = row.number + (TB_N)(f + j * g->step[3]);
            if (TB_OP == 1) t->share = 1 / (row.share * (TB_W)(i >= 0 ? length(cells_of(g, 3, q)) : g->window[3]));
        }
    }
    return count;
}

// Those of some strides whose pixels at place f are amid the row: all windows that can hold them are there (mean: and
// whole).
TB_FN range amid(const sizes *g, const plan *p, tb_i64 f, range all) {
    const range windows = TB_OP == 1 ? p->whole : (range){0, g->out[3]};
    const tb_i64 first = windows.from + (f < g->window[3] ? reach(g, f) : 0);
    const tb_i64 from = lower(higher(all.from, first), all.to);
    return (range){from, higher(from, lower(all.to, windows.to))};
}

// A row of the gradient, window by window, which do not overlap: all pixels of one receive the same.
TB_FN void bprop_apart(const sizes *g, const plan *p, const gradient *o) {
    tap list[TB_CELLS];
    for (tb_i64 w = 0, to; w < g->in[3]; w = to) {
        const tb_i64 i = (w + g->pad[3]) / g->step[3], f = w + g->pad[3] - i * g->step[3];
        const tb_i64 length = f < g->window[3] ? g->window[3] : g->step[3];
        to = lower(w - f + length, g->in[3]);
        const int count = list_windows(g, p, o, i, f, list);
        span s = {to - w, g->images, o->e + i * o->e_step, 0, o->out + w * o->step, 0, 0, 0, o->step, 0,
                  o->x + w * o->x_step, o->x_step};
        if (TB_OP == 2) s.other = (const TB_X *)o->others + i * o->other_step;
        run_pixels(g, &s, list, count);
    }
}

// A row of the gradient, span by span: pixels at the same place of their strides.
TB_FN void bprop_pixels(const sizes *g, const plan *p, const gradient *o) {
    tap list[TB_CELLS];
    for (tb_i64 f = 0; f < g->step[3]; ++f) {
        const range all = strides_of(g, p, f), whole = amid(g, p, f, all);
        for (tb_i64 i = all.from, to; i < all.to; i = to) {
            to = last_alike(whole, i);
            const int count = list_windows(g, p, o, i == whole.from && length(whole) ? -1 : i, f, list);
            const tb_i64 w = i * g->step[3] + f - g->pad[3], by = g->step[3];
            span s = {to - i, g->images, o->e + i * o->e_step, 0, o->out + w * o->step, 0, o->e_step, o->other_step,
                      by * o->step, 0, o->x + w * o->x_step, by * o->x_step};
            if (TB_OP == 0) s.other = (const TB_I *)o->others + i * o->other_step;
            if (TB_OP == 2) s.other = (const TB_X *)o->others + i * o->other_step;
            run_pixels(g, &s, list, count);
        }
    }
}

// Rows of windows laid side by side: what each window sends to its cells (largest: to one), with strides of zeros
// before and behind, the places of the largest, and the numbers of the rows.
typedef struct {
    TB_W sent[ROOM];
    TB_I places[ROOM];
    tb_i64 numbers[TB_CELLS];
} letters;

// What windows of `count` numbers from n on send, of which `cells` share a mean. Numbers beyond are 0.
TB_FN void send(const gradient *o, const tap *from, tb_i64 n, tb_i64 count, TB_W cells, TB_W *to) {
    const TB_W share = 1 / cells;
    for (tb_i64 i = n, m; i < n + count; i += m) {
        m = lower(n + count - i, LANES);
        vec e = load(o->e + from->at + i, (int)m);
        if (TB_OP == 1) e *= share;
#if TB_OP == 2
        const vec y = load((const TB_X *)o->others + from->other + i, (int)m);
        e = (vec)((mask)(e / y) & (y != 0));
#endif
        *(loose *)(to + i) = e;
    }
}

TB_FN void clear(TB_W *to, tb_i64 count) {
    for (tb_i64 n = 0; n < count; n += LANES) *(loose *)(to + n) = (vec){0};
}

TB_FN void lay_row(const sizes *g, const plan *p, const gradient *o, const tap *from, TB_W *to, TB_I *places) {
    const tb_i64 images = g->images, margin = p->guard * images, count = g->out[3] * images;
    clear(to, margin);
    for (tb_i64 q = 0, next; q < g->out[3]; q = next) {
        next = TB_OP == 1 ? last_alike(p->whole, q) : g->out[3];
        const TB_W cells = TB_OP == 1 ? from->share * (TB_W)length(cells_of(g, 3, q)) : 1;
        send(o, from, q * images, (next - q) * images, cells, to + margin);
    }
    clear(to + margin + count, margin + LANES);
    if (TB_OP != 0) return;
    const TB_I *const found = (const TB_I *)o->others + from->other;
    const tb_i64 most = count - LANES;
    for (tb_i64 n = 0; most < 0 && n < count; ++n) places[margin + n] = found[n];
    for (tb_i64 n = 0; n < count && most >= 0; n += LANES)  // the last vector ends where the row does
        __builtin_memcpy(places + margin + lower(n, most), found + lower(n, most), LANES * sizeof(TB_I));
}

// Lines of pixels at the places of a stride as one row of pixels, in loops of their own for the usual images.
TB_FN void join_lines(TB_W *restrict to, const TB_W *restrict lines, tb_i64 line, tb_i64 count, tb_i64 step, tb_i64 m) {
    for (tb_i64 i = 0; i < count; ++i) {
        for (tb_i64 f = 0; f < step; ++f) {
            for (tb_i64 n = 0; n < m; ++n) to[(i * step + f) * m + n] = lines[f * line + i * m + n];
        }
    }
}

TB_FN void join_usual(TB_W *to, const TB_W *lines, tb_i64 line, tb_i64 count, tb_i64 step, tb_i64 m) {
    if (m == 1 && step == 2) join_lines(to, lines, line, count, 2, 1);
    else if (m == 1) join_lines(to, lines, line, count, step, 1);
    else if (m == 4) join_lines(to, lines, line, count, step, 4);
    else if (m == 8) join_lines(to, lines, line, count, step, 8);
    else join_lines(to, lines, line, count, step, m);
}

// m numbers to place n of a row of the gradient.
TB_FN void join_vector(const sizes *g, const gradient *o, tb_i64 n, vec v, int m) {
    if (TB_OP == 2) v *= load(o->x + n, m);
    finish(g, o->out + n, v, m);
}

// The pixels of lines from `at` on, the first of the padding being pixel 0: those of two vectors by turns.
typedef struct {
    vec even, odd;
} both;

TB_FN both join_from(const sizes *g, const plan *p, const TB_W *lines, tb_u64 at) {
    if (!BY_TURNS) return (both){*(const loose *)(lines + (tb_i64)at * g->images), {0}};
    const tb_i64 odd = (tb_i64)(at & 1), line = p->line, from = (tb_i64)(at >> 1) * g->images;
    return (both){*(const loose *)(lines + from + (odd ? line : 0)),
                  *(const loose *)(lines + from + (odd ? g->images : line))};
}

// m numbers of pixels from `at` on to place n of a row of the gradient.
TB_FN void join_some(const sizes *g, const plan *p, const deal *by, const gradient *o, const TB_W *lines, tb_i64 n,
                     tb_i64 at, int m) {
    const both x = join_from(g, p, lines, (tb_u64)at);
    join_vector(g, o, n, BY_TURNS ? TB_CHOSEN(x.even, x.odd, by->mixed) : x.even, m);
}

// The pixels of lines to their places. Vectors that go past the cache begin where lines of it do.
TB_FN void join_few(const sizes *g, const plan *p, const deal *by, const gradient *o, const TB_W *lines) {
    const tb_i64 images = g->images, total = g->in[3] * images;
    const tb_i64 before = (tb_i64)(-(tb_u64)o->out / sizeof(TB_X) % LANES), first = before / images;
    tb_i64 n = 0, at = g->pad[3];
    if (g->streams && before && before < total && first * images == before) {
        join_some(g, p, by, o, lines, 0, at, (int)before);
        n = before, at += first;
    }
    for (; BY_TURNS && n + 2 * LANES <= total && by->pixels * images == LANES; n += 2 * LANES, at += 2 * by->pixels) {
        const both x = join_from(g, p, lines, (tb_u64)at);
        join_vector(g, o, n, TB_CHOSEN(x.even, x.odd, by->mixed), LANES);
        join_vector(g, o, n + LANES, TB_CHOSEN(x.even, x.odd, by->mixed + LANES / 2), LANES);
    }
    for (tb_i64 m; n < total; n += m, at += by->pixels) {
        m = lower(by->useful, total - n);
        join_some(g, p, by, o, lines, n, at, (int)m);
    }
}

// A row of the gradient of few images: vectors go along pixels of the same place in a stride, and images.
TB_FN void bprop_few(const sizes *g, const plan *p, const deal *by, const gradient *o, letters *kept) {
    const tb_i64 images = g->images;
    TB_W lines[ROOM + LANES], pixels[ROOM + LANES];
    tap list[TB_CELLS];
    for (int r = 0; r < o->count; ++r) {
        const tb_i64 slot = slot_of(g, o, r), at = slot * p->windows;
        if (is_flat(g) && kept->numbers[slot] == o->number + r) continue;
        kept->numbers[slot] = o->number + r;
        lay_row(g, p, o, &o->rows[r], kept->sent + at, kept->places + at);
    }
    for (tb_i64 f = 0; f < STEP(g); ++f) {
        const span s = {1, p->pixels * images, kept->sent, kept->places, lines + f * p->line, 0, 0, 0, 0, 0, 0, 0};
        run_usual(g, &s, list, list_windows(g, p, o, -1, f, list), 1);
    }
    if (APART) join_usual(pixels, lines, p->line, p->pixels, STEP(g), images);
    join_few(g, p, by, o, APART ? pixels : lines);
}

#define BY_WINDOWS (TB_BACK && TB_OP == 0 && TB_PLAIN)
#if BY_WINDOWS
#include "pool_largest.h"
#endif

TB_FN void bprop_row(const sizes *g, const plan *p, const deal *by, void *const *ptr, const tb_i64 *stride,
                     tb_i64 number, letters *kept) {
    gradient o;
    const tb_i64 h = number % g->in[2], d = number / g->in[2] % g->in[1], c = number / (g->in[2] * g->in[1]);
    find_windows(g, ptr, stride, c, d, h, &o);
    int beside = o.e_step == g->images && o.step == g->images;
    if (TB_OP != 1) beside &= o.other_step == g->images;
    if (TB_OP == 2) beside &= o.x_step == g->images;
    o.few = FEW && p->laid && beside;
    if (o.few) bprop_few(g, p, by, &o, kept);
    else if (TB_OP != 0 && g->step[3] >= g->window[3] && p->pixels < g->step[3]) bprop_apart(g, p, &o);
    else bprop_pixels(g, p, &o);
}

#ifdef SPREAD
#include "pool_spread.h"
#endif

#if !TB_BACK
// Pointers: input, output, after which come places (largest only). Tasks are groups of rows of the output.
void pool_fprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 rows = g->out[0] * g->out[1] * g->out[2], last = lower(end * g->group, rows);
    const tb_i64 *const os = stride + TB_OUTPUT * 4;
    common known;
    known.plan = plan_of(g);
    known.taps.count = known.rows.count = 0;
    if (FEW) known.deal = deal_of(g, stride, (const TB_X *)ptr[0]);
    const int image = is_whole_image(g, stride);
    dealt whole;
    if (image) whole = dealt_of(g);
    (void)scalar;
    for (tb_i64 number = begin * g->group; number < last;) {
        if (!image) {
            number = fprop_rows(g, &known, ptr, stride, number, last);
            continue;
        }
        TB_I *const places = TB_OP == 0 ? (TB_I *)ptr[TB_OUTPUT + 1] + number * os[4] : 0;
        const TB_X *const x = (const TB_X *)ptr[0] + number * stride[0];
        fprop_image(g, &whole, x, (TB_X *)ptr[TB_OUTPUT] + number * os[0], places);
        ++number;
    }
    tb_stream_end(g->streams);
}
#else
// Pointers: error, then places (largest) or forward input and output (root of squares), then the gradient. Tasks are
// groups of rows of the gradient.
void pool_bprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const plan known = plan_of(g);
    const tb_i64 all = g->in[0] * g->in[1] * g->in[2], last = lower(end * g->group, all);
    const tb_i64 *const os = stride + TB_OUTPUT * 4;
    const int image = is_whole_image(g, os);
    dealt whole;
    if (image) whole = dealt_of(g);
#ifdef SPREAD
    if (!image && is_spread(g, &known, stride)) {
        spread_rows(g, &known, ptr, stride, begin * g->group, last);
        tb_stream_end(g->streams);
        return;
    }
#endif
#if BY_WINDOWS
    if (go_by_windows(g, &known)) {
        largest_rows(g, &known, ptr, stride, begin * g->group, last);
        return;
    }
#endif
    letters kept;
    deal by;
    for (tb_i64 slot = 0; slot < g->window[2]; ++slot) kept.numbers[slot] = -1;
    if (FEW && known.laid) by = deal_of(g, stride, (const TB_X *)ptr[0]);
    (void)scalar;
    for (tb_i64 number = begin * g->group, rows; number < last; number += rows) {
        const tb_i64 c = number / (g->in[1] * g->in[2]), row = number % (g->in[1] * g->in[2]);
        rows = image ? lower(last - number, g->in[1] * g->in[2] - row) : 1;
        TB_X *const out = (TB_X *)ptr[TB_OUTPUT] + c * os[0] + row * os[2];
        if (image) bprop_image(g, &whole, (const TB_X *)ptr[0] + c * stride[0], out, rows);
        else bprop_row(g, &known, &by, ptr, stride, number, &kept);
    }
    tb_stream_end(g->streams);
}
#endif
#endif
