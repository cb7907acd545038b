// SPDX-License-Identifier: Apache-2.0
// pool_largest.h — the way back of the largest by windows: errors go to where their windows say
//
// Part of pool.c, with its macros. Rows of the gradient are cleared, then each window that may reach them adds its error to
// one pixel, without vectors. Windows go in C order, so that a pixel's sum is what it is when the pixel asks its windows.
enum { CLEARED = 1 << 14 };  // bytes of rows that are cleared together, at least: fewer would be a call each

// A cell of windows: where its pixel lies from that of the first, in memory and in the image.
typedef struct {
    tb_i64 at, down[2], across;
} cell;

// Whether to go by windows: they have many cells, so that a pixel would ask many for few errors; or they share no pixel
// and are few in a row, or too long a row of hardly any images to be laid.
TB_FN int go_by_windows(const sizes *g, const plan *p) {
    int apart = 1;
    tb_i64 cells = 1;
    for (int axis = 0; axis < 4; ++axis) apart &= g->step[axis] >= g->window[axis], cells *= g->window[axis];
    if (!apart && sizeof(TB_X) != sizeof(TB_W)) return 0;  // sums are kept where the gradient is
    const tb_i64 few = g->out[3] == 1 ? 2 * LANES : LANES;
    if (cells >= (apart || FEW ? LANES : 2 * LANES)) return 1;
    return apart && (g->out[3] * g->images <= few || (g->images <= 2 && !p->laid));
}

// Clears rows of the gradient that follow each other in memory, or are one.
TB_FN void clear_rows(const sizes *g, TB_X *out, tb_i64 rows, tb_i64 step) {
    const int joined = step == g->images || g->in[3] == 1;
    for (tb_i64 w = 0; w < (joined ? 1 : g->in[3]); ++w)
        __builtin_memset(out + w * step, 0, (tb_u64)((joined ? rows * g->in[3] : 1) * g->images) * sizeof(TB_X));
}

// A row of windows: their errors and places, the number of their first cell over the map, and where its pixel lies.
typedef struct {
    const TB_X *e;
    const TB_I *places;
    TB_X *out;
    tb_i64 e_step, places_step, out_step, base, start[2];
} sender;

TB_FN void give(TB_X *to, TB_X e) {
    if (sizeof(TB_X) == sizeof(TB_W)) *to += e;
    else *to = e;
}

// Windows whose cells are all in the image and wanted, of `images` images.
TB_FN void send_inside(const cell *cells, tb_u64 all, sender s, tb_i64 count, tb_i64 images) {
    for (tb_i64 q = 0; q < count; ++q, s.e += s.e_step, s.places += s.places_step, s.out += s.out_step) {
        for (tb_i64 n = 0; n < images; ++n) {
            const tb_u64 number = (tb_u64)((tb_i64)s.places[n] - s.base);
            if (number < all) give(s.out + cells[number].at + n, s.e[n]);
        }
    }
}

// Window q where some may be neither; `wanted` are rows of the map.
TB_FN void send_aside(const sizes *g, const cell *cells, tb_u64 all, const sender *s, tb_i64 q, range wanted) {
    for (tb_i64 n = 0; n < g->images; ++n) {
        const tb_u64 number = (tb_u64)((tb_i64)s->places[q * s->places_step + n] - s->base);
        if (number >= all) continue;
        const cell c = cells[number];
        const tb_i64 h = s->start[1] + c.down[1], row = (s->start[0] + c.down[0]) * g->in[2] + h;
        int here = row >= wanted.from && row < wanted.to && (tb_u64)h < (tb_u64)g->in[2];
        here &= (tb_u64)(q * g->step[3] - g->pad[3] + c.across) < (tb_u64)g->in[3];
        if (here) give(s->out + q * s->out_step + c.at + n, s->e[q * s->e_step + n]);
    }
}

// A row of windows, of which those `inside` need not be looked after.
static __attribute__((noinline)) void send_row(const sizes *g, const cell *cells, tb_u64 all, const sender *s, range inside,
                                               range wanted) {
    for (tb_i64 q = 0; q < lower(inside.from, g->out[3]); ++q) send_aside(g, cells, all, s, q, wanted);
    sender amid = *s;
    amid.e += inside.from * s->e_step, amid.places += inside.from * s->places_step, amid.out += inside.from * s->out_step;
    if (g->images == 1) send_inside(cells, all, amid, length(inside), 1);
    else send_inside(cells, all, amid, length(inside), g->images);
    for (tb_i64 q = inside.to; q < g->out[3]; ++q) send_aside(g, cells, all, s, q, wanted);
}

// Rows of the gradient from a number on, up to `last`, map by map.
TB_FN void largest_rows(const sizes *sizes_at, const plan *p, void *const *ptr, const tb_i64 *stride, tb_i64 number,
                        tb_i64 last) {
    const sizes known = *sizes_at, *const g = &known;
    const tb_i64 *const other = stride + 4, *const os = stride + TB_OUTPUT * 4;
    const tb_i64 map = g->in[1] * g->in[2], row = g->in[3] * g->images;
    const int beside = is_one_piece(g, os) && (g->in[0] == 1 || os[0] == map * row);
    cell cells[TB_CELLS], *next = cells;
    for (tb_i64 b = 0; b < g->window[1]; ++b) {
        for (tb_i64 r = 0; r < g->window[2]; ++r) {
            for (tb_i64 s = 0; s < g->window[3]; ++s)
                *next++ = (cell){b * os[1] + r * os[2] + s * os[3], {b, r}, s};
        }
    }
    const tb_i64 together = beside && row ? higher(1, CLEARED / (row * (tb_i64)sizeof(TB_X))) : 1;
    for (tb_i64 c = number / map, from = number % map, cleared = number, to; number < last; ++c, from = 0) {
        to = lower(map, from + last - number);
        TB_X *const out = (TB_X *)ptr[TB_OUTPUT] + c * os[0];
        for (; cleared < number + to - from; cleared += together) {
            const tb_i64 at = from + cleared - number, rows = lower(together, last - cleared);
            clear_rows(g, out + (beside ? at * row : at / g->in[2] * os[1] + at % g->in[2] * os[2]), rows, os[3]);
        }
        number += to - from;
        const int whole = to - from == map, plane = from / g->in[2] == (to - 1) / g->in[2];
        const range ks = windows_of(g, 0, c), all = {0, g->out[1]};
        const range ms = whole ? all : (range){windows_of(g, 1, from / g->in[2]).from,
                                               windows_of(g, 1, (to - 1) / g->in[2]).to};
        const range ps = whole || !plane ? (range){0, g->out[2]}
                                         : (range){windows_of(g, 2, from % g->in[2]).from,
                                                   windows_of(g, 2, (to - 1) % g->in[2]).to};
        for (tb_i64 k = ks.from; k < ks.to; ++k) {
            const tb_i64 base = (c + g->pad[0] - k * g->step[0]) * (next - cells);
            for (tb_i64 m = ms.from; m < ms.to; ++m) {
                for (tb_i64 i = ps.from; i < ps.to; ++i) {
                    const tb_i64 d = m * g->step[1] - g->pad[1], h = i * g->step[2] - g->pad[2];
                    const int in = whole && d >= 0 && d + g->window[1] <= g->in[1] && h >= 0 &&
                                   h + g->window[2] <= g->in[2];
                    const sender s = {(const TB_X *)ptr[0] + inner(stride, k, m, i),
                                      (const TB_I *)ptr[1] + inner(other, k, m, i),
                                      out + d * os[1] + h * os[2] - g->pad[3] * os[3], stride[3], other[3],
                                      g->step[3] * os[3], base, {d, h}};
                    send_row(g, cells, (tb_u64)(next - cells), &s, in ? p->whole : (range){0, 0}, (range){from, to});
                }
            }
        }
    }
}
