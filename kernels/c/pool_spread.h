// SPDX-License-Identifier: Apache-2.0
// pool_spread.h — the way back of square windows over one map, of so few images that a vector holds a pixel's
//
// Part of pool.c, with its macros. What a row of windows sends is laid down once, with zeros around, and kept for the
// rows of pixels that follow. Neighbouring windows are a vector; the rows of pixels of a stride are worked out together,
// one vector for each place in it, across and down, and those across are then joined by turns.
#define SENDERS ((TB_ACROSS - 1) / TB_STEP + 1)  // windows along an axis that may hold a pixel
#define LAID 16384                                // numbers of rows of windows that are kept, at most
#define BEFORE ((SENDERS - 1) * LANES)            // zeros before a row of windows, at least those that pixel 0 asks
#define EACH(i, count) _Pragma("GCC unroll 4") for (int i = 0; i < (count); ++i)

// Rows of windows that were laid: what they send, places of the largest, and their numbers. The last sends nothing.
typedef struct {
    TB_W sent[LAID];
    TB_I places[LAID];
    tb_i64 numbers[SENDERS];
} laid_rows;

// How many numbers of a vector are used, and how far apart rows are laid; and which numbers of vectors for each place of
// a stride make vectors of pixels.
typedef struct {
    tb_i64 useful, pitch;
    mask joined[TB_STEP];
} fan;

TB_FN fan fan_of(const sizes *g, const plan *p) {
    const tb_i64 images = g->images, pixels = LANES / images;
    fan d = {pixels * images, (higher(p->pixels, g->out[3]) + 1) * images + BEFORE + 2 * LANES, {{0}}};
    for (tb_i64 l = 0; l < TB_STEP * d.useful; ++l) {
        const tb_i64 pixel = l / images;
        d.joined[l / d.useful][l % d.useful] = (TB_N)(pixel % TB_STEP * LANES + pixel / TB_STEP * images + l % images);
    }
    return d;
}

// The rows of pixels of a stride, of which some are wanted: where their pixels lie, and how far apart; and where the
// windows are laid that may hold them, from pixel 0 of the padding on.
typedef struct {
    TB_X *out;
    const TB_X *x;  // the forward input (root of squares)
    tb_i64 out_line, x_line;
    range wanted;
    const TB_W *sent[SENDERS];
    const TB_I *places[SENDERS];
} strip;

// What e adds to a sum: all of it, or where the place is the number of the cell.
TB_FN vec added_from(vec sum, vec e, const TB_I *places, int cell) {
#if TB_OP == 0
    return added_there(sum, e, load_places(places, LANES), (TB_N)cell);
#else
    (void)places, (void)cell;
    return sum + e;
#endif
}

// Numbers n to `last` of the rows; `at`: of what is laid, that of n, which is at place `odd` of a stride. `whole`: of all
// rows, by whole vectors that stay in the cache. Returns the number after them.
TB_FN tb_i64 spread(const sizes *sizes_at, const fan *by, const strip *o, tb_i64 n, tb_i64 last, tb_i64 at, int odd,
                    int whole) {
    sizes known = *sizes_at, *const g = &known;
    const tb_i64 images = g->images, useful = whole ? LANES : by->useful, step = TB_STEP * useful;
    if (whole) known.streams = 0;
    for (; whole ? n + step <= last : n < last; n += step, at += useful) {
        vec sum[TB_STEP][TB_STEP] = {{{0}}};
        EACH(a, SENDERS) EACH(k, SENDERS) EACH(r, TB_STEP) EACH(c, TB_STEP) {
            const int place = (odd + c) % TB_STEP, beyond = (odd + c) / TB_STEP;
            const int down = r + (SENDERS - 1 - a) * TB_STEP, across = place + (SENDERS - 1 - k) * TB_STEP;
            if (down >= TB_ACROSS || across >= TB_ACROSS) continue;
            const tb_i64 from = at + (beyond + k - (SENDERS - 1)) * images;
            const vec e = *(const loose *)(o->sent[a] + from);
            sum[r][c] = added_from(sum[r][c], e, o->places[a] + from, down * TB_ACROSS + across);
        }
        EACH(r, TB_STEP) EACH(v, TB_STEP) {
            const tb_i64 there = n + v * useful, m = whole ? LANES : lower(useful, last - there);
            if (!whole && (m <= 0 || r < o->wanted.from || r >= o->wanted.to)) continue;
            vec pixels = TB_STEP == 1 ? sum[r][0] : TB_CHOSEN(sum[r][0], sum[r][TB_STEP - 1], by->joined[v]);
            if (TB_OP == 2) pixels *= load(o->x + r * o->x_line + there, (int)m);
            finish(g, o->out + r * o->out_line + there, pixels, (int)m);
        }
    }
    return n;
}

// The same, as much as possible by whole vectors. Copies stay in registers, since nobody has their addresses.
static __attribute__((noinline)) void spread_from(const sizes *sizes_at, const fan *fan_at, const strip *strip_at, tb_i64 n,
                                                  tb_i64 last) {
    const sizes known = *sizes_at, *const g = &known;
    const fan own = *fan_at, *const by = &own;
    const strip all = *strip_at, *const o = &all;
    const tb_u64 pixel = (tb_u64)(g->pad[3] + n / g->images);
    const tb_i64 at = (tb_i64)(pixel / TB_STEP) * g->images - n / TB_STEP;
    const int whole = by->useful == LANES && length(o->wanted) == TB_STEP && !g->streams;
    if (TB_STEP > 1 && pixel % TB_STEP) {
        if (whole) n = spread(g, by, o, n, last, at + n / TB_STEP, 1, 1);
        spread(g, by, o, n, last, at + n / TB_STEP, 1, 0);
    } else {
        if (whole) n = spread(g, by, o, n, last, at + n / TB_STEP, 0, 1);
        spread(g, by, o, n, last, at + n / TB_STEP, 0, 0);
    }
}

// Rows of pixels. Vectors that go past the cache begin where lines of it do.
TB_FN void spread_strip(const sizes *g, const fan *by, const strip *o) {
    const tb_i64 images = g->images, total = g->in[3] * images;
    if (!g->streams) {
        spread_from(g, by, o, 0, total);
        return;
    }
    const tb_i64 rows = o->out_line % LANES ? 1 : TB_STEP;  // that begin at the same place of a line
    for (tb_i64 r = o->wanted.from; r < o->wanted.to; r += rows) {
        strip some = *o;
        some.wanted = (range){r, lower(r + rows, o->wanted.to)};
        const tb_i64 before = (tb_i64)(-(tb_u64)(o->out + r * o->out_line) / sizeof(TB_X) % LANES);
        const tb_i64 first = before < total && before % images == 0 ? before : 0;
        if (first) spread_from(g, by, &some, 0, first);
        spread_from(g, by, &some, first, total);
    }
}

// m numbers of what a row of windows sends, each with that share of the error.
TB_FN void lay_some(const TB_X *e, const void *other, TB_W share, TB_W *to, TB_I *places, tb_i64 n, int m) {
    vec v = load(e + n, m);
    if (TB_OP == 1) v *= share;
#if TB_OP == 2
    const vec y = load((const TB_X *)other + n, m);
    v = (vec)((mask)(v / y) & (y != 0));
#elif TB_OP == 0
    const small here = load_small((const TB_I *)other + n, m);
    __builtin_memcpy(places + n, &here, sizeof here);
#endif
    *(loose *)(to + n) = v;
    (void)other, (void)places, (void)share;
}

// What a row of windows sends, of `down` cells down the image.
TB_FN void lay_line(const sizes *g, const plan *p, const TB_X *e, const void *other, tb_i64 down, TB_W *to,
                    TB_I *places) {
    const tb_i64 images = g->images, count = g->out[3] * images;
    const TB_W share = 1 / (TB_W)(down * g->window[3]);
    tb_i64 at = 0;
    for (; at + LANES <= count; at += LANES) lay_some(e, other, share, to, places, at, LANES);
    if (at < count) lay_some(e, other, share, to, places, at, (int)(count - at));
    for (tb_i64 q = 0; TB_OP == 1 && q < g->out[3]; ++q) {
        if (q == p->whole.from) q = p->whole.to;
        if (q >= g->out[3]) break;
        const TB_W part = 1 / (TB_W)(down * length(cells_of(g, 3, q)));
        for (tb_i64 n = q * images; n < (q + 1) * images; ++n) to[n] = load(e + n, 1)[0] * part;
    }
}

// Whether rows are laid in the room there is: their numbers side by side, in memory too.
TB_FN int is_spread(const sizes *g, const plan *p, const tb_i64 *stride) {
    int beside = (SENDERS + 1) * fan_of(g, p).pitch <= LAID;
    for (int tensor = 0; tensor <= TB_OUTPUT; ++tensor) beside &= stride[4 * tensor + 3] == g->images;
    return beside;
}

// Rows of the gradient from a number on, up to `last`.
TB_FN void spread_rows(const sizes *g, const plan *p, void *const *ptr, const tb_i64 *stride, tb_i64 number,
                       tb_i64 last) {
    const tb_i64 *const other = stride + (TB_OP == 2 ? 8 : TB_OP == 0 ? 4 : 0), *const os = stride + TB_OUTPUT * 4;
    const fan by = fan_of(g, p);
    laid_rows kept;
    for (tb_i64 n = 0; n < (SENDERS + 1) * by.pitch; n += LANES) {
        const tb_i64 at = lower(n, (SENDERS + 1) * by.pitch - LANES);
        *(loose *)(kept.sent + at) = (vec){0};
        __builtin_memset(kept.places + at, 0, LANES * sizeof(TB_I));
    }
    tb_i64 h = number % g->in[2], d = number / g->in[2] % g->in[1], c = number / (g->in[2] * g->in[1]);
    for (int slot = 0; slot < SENDERS; ++slot) kept.numbers[slot] = -1;
    while (number < last) {
        const tb_i64 i = (tb_i64)((tb_u64)(h + g->pad[2]) / TB_STEP), from = i * TB_STEP - g->pad[2];
        const range wanted = {h - from, lower(lower(TB_STEP, g->in[2] - from), h - from + last - number)};
        strip o = {(TB_X *)ptr[TB_OUTPUT] + inner(os, c, d, from), 0, os[2], 0, wanted, {0}, {0}};
        if (TB_OP == 2) o.x = (const TB_X *)ptr[1] + inner(stride + 4, c, d, from), o.x_line = stride[6];
        for (int a = 0; a < SENDERS; ++a) {
            const tb_i64 q = i - (SENDERS - 1) + a, there = inner(other, c, d, q);
            const int none = q < 0 || q >= g->out[2];
            const tb_i64 slot = none ? SENDERS : (tb_i64)((tb_u64)q % SENDERS), at = slot * by.pitch + BEFORE;
            const tb_i64 row = (c * g->in[1] + d) * g->out[2] + q;
            o.sent[a] = kept.sent + at, o.places[a] = kept.places + at;
            if (none || kept.numbers[slot] == row) continue;
            kept.numbers[slot] = row;
            const TB_X *const e = (const TB_X *)ptr[0] + inner(stride, c, d, q);
            const void *const others = TB_OP == 0 ? (const void *)((const TB_I *)ptr[1] + there)
                                                  : (const void *)((const TB_X *)ptr[TB_OP == 2 ? 2 : 0] + there);
            lay_line(g, p, e, others, length(cells_of(g, 2, q)), kept.sent + at, kept.places + at);
        }
        spread_strip(g, &by, &o);
        number += length(wanted), h += length(wanted);
        if (h == g->in[2]) h = 0, ++d;
        if (d == g->in[1]) d = 0, ++c;
    }
}
