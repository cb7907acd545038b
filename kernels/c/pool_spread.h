// SPDX-License-Identifier: Apache-2.0
// pool_spread.h — the way back of square windows over one map, of images of which a vector holds two or more
//
// Part of pool.c, with its macros. What a row of windows sends is laid down once, with zeros around, and kept for the
// rows of pixels that follow. A vector of pixels takes its windows' numbers by one permutation for each window that may hold
// them; the largest sends to the pixels whose cell is its place.
#define SENDERS ((TB_ACROSS - 1) / TB_STEP + 1)  // windows along an axis that may hold a pixel
#define NOBODY 127                               // the number of no cell
#define LAID 16384                               // numbers of rows of windows that are kept, at most
#define EACH_SENDER(k) _Pragma("GCC unroll 3") for (int k = SENDERS - 1; k >= 0; --k)
typedef char bytes __attribute__((vector_size(16)));
#if TB_BITS
typedef bytes cells_type;
#else
typedef mask cells_type;
#endif

// Rows of windows that were laid: what they send, places of the largest, and their numbers.
typedef struct {
    TB_W sent[LAID];
    TB_I places[LAID];
    tb_i64 numbers[SENDERS];
} laid_rows;

// By the place of a vector's first pixel in its stride: the lanes of their last windows, as numbers and as bytes, and
// which cells the pixels are of those windows and of the ones before.
typedef struct {
    tb_i64 pixels;
    mask window[TB_STEP];
    bytes lanes[TB_STEP];
    mask cells[TB_STEP][SENDERS];
} fan;

TB_FN fan fan_of(const sizes *g) {
    fan d;
    d.pixels = LANES / g->images / TB_STEP * TB_STEP;
    for (int f = 0; f < TB_STEP; ++f) {
        d.window[f] = (mask){0}, d.lanes[f] = (bytes){0};
        for (int k = 0; k < SENDERS; ++k) d.cells[f][k] = NOBODY + (mask){0};
        for (tb_i64 l = 0; l < d.pixels * g->images; ++l) {
            const tb_i64 i = l / g->images + f;
            d.window[f][l] = (TB_N)(i / TB_STEP * g->images + l % g->images);
            d.lanes[f][l] = (char)d.window[f][l];
            for (int k = 0; k < SENDERS; ++k) {
                const tb_i64 cell = i % TB_STEP + k * TB_STEP;
                if (cell < TB_ACROSS) d.cells[f][k][l] = (TB_N)cell;
            }
        }
    }
    return d;
}

// A row of pixels, and the rows of windows that hold it: where they are laid, and their first cells.
typedef struct {
    TB_X *out;
    const TB_X *x;  // the forward input (root of squares)
    tb_i64 at[SENDERS], cell[SENDERS];
} line;

// Pixels from number n of a row on, up to `last`, by `step` numbers at a time, the first being pixel `at` from the
// padding on; `whole`: by vectors, as long as there are any.
TB_FN void spread(const sizes *g, const fan *by, const laid_rows *kept, const line *o, int count, tb_i64 n, tb_i64 last,
                  tb_i64 step, tb_i64 at, int whole) {
    const int f = (int)(at % TB_STEP);
    const tb_i64 images = g->images, first = at / TB_STEP * images - n / TB_STEP;
    const mask window = by->window[f];
    const bytes lanes = by->lanes[f];
    const TB_W *sent[SENDERS];
    const TB_I *places[SENDERS];
    TB_X *const out = o->out;
    const TB_X *const x = o->x;
    cells_type cells[SENDERS][SENDERS];
    _Pragma("GCC unroll 3") for (int r = 0; r < count; ++r) {
        sent[r] = kept->sent + o->at[r] + first;
        places[r] = kept->places + o->at[r] + first;
        EACH_SENDER(k) cells[r][k] = __builtin_convertvector(by->cells[f][k] + (TB_N)o->cell[r], cells_type);
    }
    for (; n + (whole ? LANES : 1) <= last; n += whole ? LANES : step) {
        const tb_i64 there = n / TB_STEP;
        const int m = whole ? LANES : (int)lower(step, last - n);
        vec sum = {0};
        _Pragma("GCC unroll 3") for (int r = 0; r < count; ++r) EACH_SENDER(k) {
            const tb_i64 from = there - k * images;
            const int all = (k + 1) * TB_STEP <= TB_ACROSS;  // whether each pixel has such a window
            vec e = *(const loose *)(sent[r] + from);
            if (TB_STEP > 1) e = chosen(e, e, window);
#if TB_OP == 0 && TB_BITS
            typedef float numbers __attribute__((vector_size(VECTOR_BYTES)));
            bytes here;
            __builtin_memcpy(&here, places[r] + from, sizeof here);
            if (TB_STEP > 1) here = __builtin_shuffle(here, lanes);
            const unsigned short met = __builtin_ia32_pcmpeqb128_mask(here, cells[r][k], -1);
            sum = (vec)__builtin_ia32_addps512_mask((numbers)sum, (numbers)e, (numbers)sum, met, 4);
#elif TB_OP == 0
            mask here = __builtin_convertvector(load_places(places[r] + from, LANES), mask);
            if (TB_STEP > 1) here = __builtin_shuffle(here, window);
            sum += (vec)((mask)e & (here == cells[r][k]));
#else
            sum += all ? e : (vec)((mask)e & (by->cells[f][k] != NOBODY));
#endif
            (void)all;
        }
        if (TB_OP == 2) sum *= load(x + n, m);
        finish(g, out + n, sum, m);
    }
    (void)places, (void)cells, (void)lanes;
}

// A row, by whole vectors as far as there are any. Those that go past the cache begin where lines of it do.
TB_FN void spread_line(const sizes *g, const fan *by, const laid_rows *kept, const line *o, int count) {
    const tb_i64 images = g->images, total = g->in[3] * images, step = by->pixels * images;
    const tb_i64 before = (tb_i64)(-(tb_u64)o->out / sizeof(TB_X) % LANES);
    tb_i64 n = 0;
    if (g->streams && before && before < total && before % images == 0) {
        spread(g, by, kept, o, count, 0, before, LANES, g->pad[3], 0);
        n = before;
    }
    const tb_i64 whole = step == LANES ? n + (total - n) / LANES * LANES : n;
    if (n < whole) spread(g, by, kept, o, count, n, whole, LANES, g->pad[3] + n / images, 1);
    if (whole < total) spread(g, by, kept, o, count, whole, total, step, g->pad[3] + whole / images, 0);
}

// Loops for each number of rows of windows. Copies stay in registers, since nobody has their addresses.
static __attribute__((noinline)) void spread_usual(const sizes *sizes_at, const fan *by, const laid_rows *kept,
                                                   const line *o, int count) {
    const sizes known = *sizes_at, *const g = &known;
    if (count == 0) spread_line(g, by, kept, o, 0);
    if (count == 1) spread_line(g, by, kept, o, 1);
    if (count == 2 && SENDERS > 1) spread_line(g, by, kept, o, 2);
    if (count == 3 && SENDERS > 2) spread_line(g, by, kept, o, 3);
}

// m numbers of what a row of windows sends, each with that share of the error.
TB_FN void lay_some(const TB_X *e, const void *other, TB_W share, TB_W *to, TB_I *places, tb_i64 n, int m) {
    vec v = load(e + n, m);
    if (TB_OP == 1) v *= share;
#if TB_OP == 2
    const vec y = load((const TB_X *)other + n, m);
    v = (vec)((mask)(v / y) & (y != 0));
#elif TB_OP == 0
    if (m == LANES) __builtin_memcpy(places + n, (const TB_I *)other + n, sizeof(small));
    else for (int i = 0; i < m; ++i) places[n + i] = ((const TB_I *)other)[n + i];
#endif
    *(loose *)(to + n) = v;
    (void)other, (void)places, (void)share;
}

// What a row of windows sends, of `down` cells down the image.
TB_FN void lay_line(const sizes *g, const plan *p, const TB_X *e, const void *other, tb_i64 down, TB_W *to,
                    TB_I *places) {
    const tb_i64 images = g->images, count = g->out[3] * images, margin = p->guard * images;
    const TB_W share = 1 / (TB_W)(down * g->window[3]);
    tb_i64 at = 0;
    for (tb_i64 n = 0; n < margin; n += LANES) *(loose *)(to + n) = (vec){0};
    for (; at + LANES <= count; at += LANES) lay_some(e, other, share, to + margin, places + margin, at, LANES);
    if (at < count) lay_some(e, other, share, to + margin, places + margin, at, (int)(count - at));
    for (tb_i64 n = 0; n < margin + LANES; n += LANES) *(loose *)(to + margin + count + n) = (vec){0};
    for (tb_i64 q = 0; TB_OP == 1 && q < g->out[3]; ++q) {
        if (q == p->whole.from) q = p->whole.to;
        if (q >= g->out[3]) break;
        const TB_W part = 1 / (TB_W)(down * length(cells_of(g, 3, q)));
        for (tb_i64 n = q * images; n < (q + 1) * images; ++n) to[margin + n] = load(e + n, 1)[0] * part;
    }
    (void)other, (void)places;
}

// Whether rows are laid in the room there is: their numbers side by side, in memory too.
TB_FN int is_spread(const sizes *g, const plan *p, const tb_i64 *stride) {
    int beside = SENDERS * p->windows <= LAID;
    for (int tensor = 0; tensor <= TB_OUTPUT; ++tensor) beside &= stride[4 * tensor + 3] == g->images;
    return beside;
}

// Rows of the gradient from a number on, up to `last`.
TB_FN void spread_rows(const sizes *g, const plan *p, void *const *ptr, const tb_i64 *stride, tb_i64 number,
                       tb_i64 last) {
    const tb_i64 *const other = stride + (TB_OP == 2 ? 8 : TB_OP == 0 ? 4 : 0), *const os = stride + TB_OUTPUT * 4;
    const fan by = fan_of(g);
    laid_rows kept;
    tb_i64 h = number % g->in[2], d = number / g->in[2] % g->in[1], c = number / (g->in[2] * g->in[1]);
    for (int slot = 0; slot < SENDERS; ++slot) kept.numbers[slot] = -1;
    for (; number < last; ++number) {
        const tb_u64 past = (tb_u64)(h + g->pad[2]), first = past < TB_ACROSS ? 0 : (past - TB_ACROSS) / TB_STEP + 1;
        const tb_i64 end = lower((tb_i64)(past / TB_STEP) + 1, g->out[2]);
        line o = {(TB_X *)ptr[TB_OUTPUT] + inner(os, c, d, h), 0, {0}, {0}};
        if (TB_OP == 2) o.x = (const TB_X *)ptr[1] + inner(stride + 4, c, d, h);
        int count = 0;
        for (tb_i64 q = (tb_i64)first; q < end; ++q, ++count) {
            const tb_i64 slot = (tb_i64)((tb_u64)q % SENDERS), at = slot * p->windows;
            const tb_i64 row = (c * g->in[1] + d) * g->out[2] + q, there = inner(other, c, d, q);
            o.at[count] = at + p->guard * g->images;
            o.cell[count] = ((tb_i64)past - q * TB_STEP) * TB_ACROSS;
            if (kept.numbers[slot] == row) continue;
            kept.numbers[slot] = row;
            const TB_X *const e = (const TB_X *)ptr[0] + inner(stride, c, d, q);
            const void *const others = TB_OP == 0 ? (const void *)((const TB_I *)ptr[1] + there)
                                                  : (const void *)((const TB_X *)ptr[TB_OP == 2 ? 2 : 0] + there);
            lay_line(g, p, e, others, length(cells_of(g, 2, q)), kept.sent + at, kept.places + at);
        }
        spread_usual(g, &by, &kept, &o, count);
        if (++h == g->in[2]) h = 0, ++d;
        if (d == g->in[1]) d = 0, ++c;
    }
}
