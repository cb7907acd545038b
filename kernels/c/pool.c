// SPDX-License-Identifier: Apache-2.0
// pool.c — largest, mean or root of squares of windows of images (C, D, H, W, N), and the way back
//
// A task is some rows (k, m, p) of the output, or (c, d, h) of the gradient. Along a row, a vector of images stays in
// a register while the cells of its window pass over it; the way back gathers: a pixel asks the windows that hold it.
// What a result reads is a list of taps. It is the same for all windows that are wholly inside the image, and for all
// pixels at the same place of a stride but the first and last: they are a span. With fewer images than a vector has
// lanes, the rows that a result reads are first laid side by side, each place of a stride by itself, so that vectors go
// along the width. Each result is computed once, from its taps in C order, so that tasks decide nothing but time.
//
// The host defines TB_OP (0 largest, 1 mean, 2 root of squares), TB_X, TB_W and TB_I, the types of elements, of sums
// and of places, TB_N, integers as wide as TB_W, TB_READ and TB_WRITE, which move blocks between TB_X and TB_W,
// TB_SQRT, the root in TB_W, TB_OUTPUT, the number of the result's pointer (what the step reads comes before it),
// TB_PLAIN, whether alpha is 1 and beta 0, TB_CELLS, the most cells of a window, TB_WHOLE, the cells of this one if it
// is one of the usual, which get loops of their own, and TB_BACK, which of the two ways is compiled.
#include "kernel.h"
#include "pool_spans.h"

#define ROOM 4096  // elements of rows that are laid side by side, at most

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
    p.windows = (g->out[3] + 2 * guard) * g->images + LANES;
    const tb_i64 rows = g->window[0] * g->window[1] * g->window[2];
    p.laid = g->images < LANES && g->out[3] > 1 && rows * higher(step * p.line, p.windows) <= ROOM;
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

TB_FN tb_i64 inner(const tb_i64 *stride, tb_i64 a, tb_i64 b, tb_i64 c) {
    return a * stride[0] + b * stride[1] + c * stride[2];
}

// `count` pieces of m numbers, one behind the other, as results `step` apart.
TB_FN void finish_pieces(const sizes *g, TB_X *to, tb_i64 step, const TB_W *from, tb_i64 count, tb_i64 m) {
    if (step == m) m *= count, count = 1;
    for (tb_i64 i = 0; i < count; ++i, to += step, from += m) {
        tb_i64 n = 0;
        for (; n + LANES <= m; n += LANES) finish(g, to + n, *(const loose *)(from + n), LANES);
        if (n < m) finish(g, to + n, *(const loose *)(from + n), (int)(m - n));
    }
}

// `count` pieces of m elements, `step` apart, as numbers side by side: in `to`, or where they are if they lie so.
TB_FN const TB_W *read_pieces(TB_W *to, const TB_X *from, tb_i64 step, tb_i64 count, tb_i64 m) {
    TB_W buffer[LANES];
    if (step == m) return TB_READ(to, from, (int)(count * m));
    for (tb_i64 i = 0; i < count; ++i) {
        const TB_W *const x = TB_READ(buffer, from + i * step, (int)m);
        for (tb_i64 n = 0; n < m; ++n) to[i * m + n] = x[n];
    }
    return to;
}

TB_FN void copy_places(TB_I *to, tb_i64 to_step, const TB_I *from, tb_i64 from_step, tb_i64 count, tb_i64 m) {
    if (to_step == m && from_step == m) {
        __builtin_memcpy(to, from, sizeof(TB_I) * (unsigned long)(count * m));
        return;
    }
    for (tb_i64 i = 0; i < count; ++i) {
        for (tb_i64 n = 0; n < m; ++n) to[i * to_step + n] = from[i * from_step + n];
    }
}

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

// The taps of windows that have cells `s` along the width, in the image or in rows that were laid side by side.
TB_FN int list_cells(const sizes *g, const plan *p, const row *o, range s, tap *list) {
    int count = 0;
    tb_i64 laid = 0;
    for (tb_i64 a = o->j.from; a < o->j.to; ++a) {
        for (tb_i64 b = o->t.from; b < o->t.to; ++b) {
            for (tb_i64 c = o->r.from; c < o->r.to; ++c, laid += g->step[3] * p->line) {
                const tb_i64 there = inner(o->xs, a, b, c);
                const tb_i64 cell = ((a * g->window[1] + b) * g->window[2] + c) * g->window[3];
                tb_i64 f = s.from, i = 0;
                for (; f >= g->step[3]; f -= g->step[3]) ++i;
                for (tb_i64 d = s.from; d < s.to; ++d, ++count) {
                    list[count].at = p->laid ? laid + f * p->line + i * g->images : there + d * o->xs[3];
                    list[count].number = (TB_N)(cell + d);
                    if (++f == g->step[3]) f = 0, ++i;
                }
            }
        }
    }
    return count;
}

// The taps of the windows that were last asked for; the next row often has the same.
typedef struct {
    range j, t, r, s;
    int count;
    tap list[TB_CELLS];
} taps;

TB_FN int same(range x, range y) { return x.from == y.from && x.to == y.to; }

TB_FN void find_cells(const sizes *g, const plan *p, const row *o, tb_i64 q, taps *found) {
    const range s = cells_of(g, 3, q);
    const int known = same(s, found->s) && same(o->j, found->j) && same(o->t, found->t) && same(o->r, found->r);
    if (found->count && known) return;
    found->j = o->j, found->t = o->t, found->r = o->r, found->s = s;
    found->count = list_cells(g, p, o, s, found->list);
}

// A row of the output, span by span.
TB_FN void fprop_windows(const sizes *g, const plan *p, const row *o, taps *found) {
    for (tb_i64 q = 0, to; q < g->out[3]; q = to) {
        find_cells(g, p, o, q, found);
        to = last_alike(p->whole, q);
        const span s = {to - q, g->images, o->x + (q * g->step[3] - g->pad[3]) * o->xs[3], 0, o->out + q * o->step,
                        o->places + q * o->places_step, g->step[3] * o->xs[3], 0, o->step, o->places_step, 0, 0};
        run_usual(g, s, found->list, found->count, 0, 0);
    }
}

// Every `step`-th pixel of m numbers.
TB_FN void take_pixels(TB_W *restrict to, const TB_W *restrict from, tb_i64 count, tb_i64 step, tb_i64 m) {
    for (tb_i64 i = 0; i < count; ++i) {
        for (tb_i64 n = 0; n < m; ++n) to[i * m + n] = from[i * step * m + n];
    }
}

// The same, in loops of their own for the usual numbers.
TB_FN void take_usual(TB_W *to, const TB_W *from, tb_i64 count, tb_i64 step, tb_i64 m) {
    if (step == 1) take_pixels(to, from, count * m, 1, 1);
    else if (m == 1 && step == 2) take_pixels(to, from, count, 2, 1);
    else if (m == 1) take_pixels(to, from, count, step, 1);
    else if (m == 4) take_pixels(to, from, count, step, 4);
    else if (m == 8) take_pixels(to, from, count, step, 8);
    else take_pixels(to, from, count, step, m);
}

// The rows that a row of the output reads, laid side by side: places of strides from the first padded pixel on.
TB_FN void lay_rows(const sizes *g, const plan *p, const row *o, TB_W *rows) {
    const tb_i64 images = g->images, step = g->step[3], pad = g->pad[3];
    TB_W buffer[ROOM];
    for (tb_i64 a = o->j.from; a < o->j.to; ++a) {
        for (tb_i64 b = o->t.from; b < o->t.to; ++b) {
            for (tb_i64 c = o->r.from; c < o->r.to; ++c) {
                const TB_W *const from = read_pieces(buffer, o->x + inner(o->xs, a, b, c), o->xs[3], g->in[3], images);
                for (tb_i64 f = 0; f < step; ++f, rows += p->line) {
                    const range at = strides_of(g, p, f);
                    const tb_i64 first = at.from * step + f - pad;
                    take_usual(rows + at.from * images, from + first * images, length(at), step, images);
                }
            }
        }
    }
}

// A row of the output of few images: vectors go along windows and images.
TB_FN void fprop_line(const sizes *g, const plan *p, const row *o, taps *found) {
    TB_W rows[ROOM], out[ROOM];
    TB_I places[ROOM];
    lay_rows(g, p, o, rows);
    for (tb_i64 q = 0, to; q < g->out[3]; q = to) {  // in order: vectors write beyond the windows that they are for
        find_cells(g, p, o, q, found);
        const tb_i64 n = q * g->images;
        to = last_alike(p->whole, q);
        const span s = {1, (to - q) * g->images, rows + n, 0, out + n, places + n, 0, 0, 0, 0, 0, 0};
        run_usual(g, s, found->list, found->count, 1, 0);
    }
    finish_pieces(g, o->out, o->step, out, g->out[3], g->images);
    if (TB_OP == 0) copy_places(o->places, o->places_step, places, g->images, g->out[3], g->images);
}

// Whether windows of means are whole images, a power of 2 of them, at most a vector: lanes then take several pixels.
TB_FN int is_whole_image(const sizes *g) {
    int whole = TB_OP == 1 && g->images <= LANES && !(g->images & (g->images - 1));
    whole &= g->window[0] == 1 && g->step[0] == 1 && g->pad[0] == 0;
    for (int axis = 1; axis < 4; ++axis)
        whole &= g->window[axis] == g->in[axis] && g->pad[axis] == 0 && g->out[axis] == 1;
    return whole;
}

// The means of a map whose pixels lie side by side.
TB_FN void fprop_image(const sizes *g, const TB_X *x, TB_X *out) {
    const tb_i64 pixels = g->in[1] * g->in[2] * g->in[3], count = pixels * g->images;
    TB_W buffer[LANES], lanes[LANES], means[LANES] = {0};
    vec even = {0}, odd = {0};
    tb_i64 n = 0;
    for (; n + 2 * LANES <= count; n += 2 * LANES) even += load(x + n, LANES), odd += load(x + n + LANES, LANES);
    if (n + LANES <= count) even += load(x + n, LANES), n += LANES;
    *(loose *)lanes = even + odd;
    const TB_W *const rest = TB_READ(buffer, x + n, (int)(count - n));
    for (tb_i64 i = 0; i < count - n; ++i) lanes[i] += rest[i];
    for (tb_i64 i = 0; i < LANES; ++i) means[i & (g->images - 1)] += lanes[i];
    finish(g, out, *(loose *)means / (TB_W)pixels, (int)g->images);
}

// A row of the gradient of such means: all its pixels receive the same.
TB_FN void bprop_image(const sizes *g, const TB_X *e, TB_X *out) {
    const TB_W pixels = (TB_W)(g->in[1] * g->in[2] * g->in[3]);
    const tb_i64 count = g->in[3] * g->images;
    TB_W buffer[LANES], shares[LANES];
    const TB_W *const from = TB_READ(buffer, e, (int)g->images);
    for (tb_i64 i = 0; i < LANES; ++i) shares[i] = from[i & (g->images - 1)] / pixels;
    for (tb_i64 n = 0; n < count; n += LANES) finish(g, out + n, *(loose *)shares, (int)lower(LANES, count - n));
}

TB_FN void fprop_row(const sizes *g, const plan *known, void *const *ptr, const tb_i64 *stride, tb_i64 number,
                     taps *found) {
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
    const int beside = stride[3] == g->images && stride[2] == g->in[3] * stride[3] && stride[1] == g->in[2] * stride[2];
    if (beside && is_whole_image(g)) fprop_image(g, o.x, o.out);
    else if (known->laid) fprop_line(g, known, &o, found);
    else fprop_windows(g, known, &o, found);
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
    int count;  // of rows of windows; of each: where it lies, its first cell, and its cells but for the width
    tap rows[TB_CELLS];
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

// The taps of pixels at place f of stride i; of those amid the row if i is -1.
TB_FN int list_windows(const sizes *g, const plan *p, const gradient *o, tb_i64 i, tb_i64 f, tap *list) {
    int count = 0;
    if (f >= g->window[3]) return 0;
    for (int r = 0; r < o->count; ++r) {
        const tap row = o->rows[r];
        for (tb_i64 j = reach(g, f); j >= 0; --j) {
            const tb_i64 q = i - j;
            if (i >= 0 && (q < 0 || q >= g->out[3])) continue;
            const tb_i64 laid = r * p->windows + (p->guard - j) * g->images;
            tap *const t = &list[count++];
            t->at = p->laid ? laid : row.at - j * o->e_step;
            t->other = p->laid ? laid : row.other - j * o->other_step;
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
        run_usual(g, s, list, count, 0, 1);
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
            run_usual(g, s, list, count, 0, 1);
        }
    }
}

// What windows send to each of their cells (largest: to one), in a row with strides of zeros before and behind.
TB_FN void messages(const sizes *g, const plan *p, const gradient *o, const tap *from, TB_W *to) {
    const tb_i64 images = g->images, margin = p->guard * images, count = g->out[3] * images;
    for (tb_i64 n = 0; n < margin; ++n) to[n] = 0;
    for (tb_i64 n = margin + count; n < p->windows; ++n) to[n] = 0;
    to += margin;
    const TB_W *const e = read_pieces(to, o->e + from->at, o->e_step, g->out[3], images);
#if TB_OP == 0
    if (e != to) __builtin_memcpy(to, e, sizeof(TB_W) * (unsigned long)count);
#elif TB_OP == 1
    for (tb_i64 q = 0, next; q < g->out[3]; q = next) {
        const TB_W share = 1 / (from->share * (TB_W)length(cells_of(g, 3, q)));
        next = last_alike(p->whole, q);
        for (tb_i64 n = q * images; n < next * images; ++n) to[n] = e[n] * share;
    }
#else
    TB_W buffer[ROOM];
    const TB_W *const y = read_pieces(buffer, (const TB_X *)o->others + from->other, o->other_step, g->out[3], images);
    for (tb_i64 n = 0; n < count; ++n) to[n] = y[n] != 0 ? e[n] / y[n] : 0;
#endif
}

// Lines of pixels at the places of a stride as one row of pixels.
TB_FN void join_lines(TB_W *restrict to, const TB_W *restrict lines, tb_i64 line, tb_i64 count, tb_i64 step, tb_i64 m) {
    for (tb_i64 i = 0; i < count; ++i) {
        for (tb_i64 f = 0; f < step; ++f) {
            for (tb_i64 n = 0; n < m; ++n) to[(i * step + f) * m + n] = lines[f * line + i * m + n];
        }
    }
}

// The same, in loops of their own for the usual numbers.
TB_FN void join_usual(TB_W *to, const TB_W *lines, tb_i64 line, tb_i64 count, tb_i64 step, tb_i64 m) {
    if (m == 1 && step == 2) join_lines(to, lines, line, count, 2, 1);
    else if (m == 1) join_lines(to, lines, line, count, step, 1);
    else if (m == 4) join_lines(to, lines, line, count, step, 4);
    else if (m == 8) join_lines(to, lines, line, count, step, 8);
    else join_lines(to, lines, line, count, step, m);
}

// A row of the gradient of few images: vectors go along pixels of the same place in a stride, and images.
TB_FN void bprop_line(const sizes *g, const plan *p, const gradient *o) {
    const tb_i64 images = g->images, step = g->step[3];
    TB_W sent[ROOM], lines[ROOM], pixels[ROOM];
    TB_I places[ROOM];
    tap list[TB_CELLS];
    for (int r = 0; r < o->count; ++r) {
        messages(g, p, o, &o->rows[r], sent + r * p->windows);
        const TB_I *const from = (const TB_I *)o->others + o->rows[r].other;
        TB_I *const to = places + r * p->windows + p->guard * images;
        if (TB_OP == 0) copy_places(to, images, from, o->other_step, g->out[3], images);
    }
    for (tb_i64 f = 0; f < step; ++f) {
        const span s = {1, p->pixels * images, sent, places, lines + f * p->line, 0, 0, 0, 0, 0, 0, 0};
        run_usual(g, s, list, list_windows(g, p, o, -1, f, list), 1, 1);
    }
    if (step > 1) join_usual(pixels, lines, p->line, p->pixels, step, images);
    TB_W *const found = (step > 1 ? pixels : lines) + g->pad[3] * images;
#if TB_OP == 2
    TB_W buffer[ROOM];
    const TB_W *const x = read_pieces(buffer, o->x, o->x_step, g->in[3], images);
    for (tb_i64 n = 0; n < g->in[3] * images; ++n) found[n] *= x[n];
#endif
    finish_pieces(g, o->out, o->step, found, g->in[3], images);
}

TB_FN void bprop_row(const sizes *g, const plan *known, void *const *ptr, const tb_i64 *stride, tb_i64 number) {
    gradient o;
    const tb_i64 h = number % g->in[2], d = number / g->in[2] % g->in[1], c = number / (g->in[2] * g->in[1]);
    const tb_i64 *const os = stride + TB_OUTPUT * 4;
    if (os[3] == g->images && is_whole_image(g)) {
        bprop_image(g, (const TB_X *)ptr[0] + c * stride[0], (TB_X *)ptr[TB_OUTPUT] + inner(os, c, d, h));
        return;
    }
    find_windows(g, ptr, stride, c, d, h, &o);
    if (known->laid) bprop_line(g, known, &o);
    else if (TB_OP != 0 && g->step[3] >= g->window[3] && known->pixels < g->step[3]) bprop_apart(g, known, &o);
    else bprop_pixels(g, known, &o);
}

#if !TB_BACK
// Pointers: input, output, after which come places (largest only). Tasks are groups of rows of the output.
void pool_fprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const plan known = plan_of(g);
    const tb_i64 rows = g->out[0] * g->out[1] * g->out[2], last = lower(end * g->group, rows);
    taps found;
    found.count = 0, found.s = found.j = found.t = found.r = (range){0, 0};
    (void)scalar;
    for (tb_i64 number = begin * g->group; number < last; ++number) fprop_row(g, &known, ptr, stride, number, &found);
    tb_stream_end(g->streams);
}
#else
// Pointers: error, then places (largest) or forward input and output (root of squares), then the gradient. Tasks are
// groups of rows of the gradient.
void pool_bprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const plan known = plan_of(g);
    const tb_i64 rows = g->in[0] * g->in[1] * g->in[2], last = lower(end * g->group, rows);
    (void)scalar;
    for (tb_i64 number = begin * g->group; number < last; ++number) bprop_row(g, &known, ptr, stride, number);
    tb_stream_end(g->streams);
}
#endif
