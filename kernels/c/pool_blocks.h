// SPDX-License-Identifier: Apache-2.0
// pool_blocks.h — the way back of square windows over one map, of at least a vector of images
//
// Part of pool.c, with its macros. A block is the pixels of a stride down and across, or of two short ones. The same few
// windows hold them; a pixel adds up what they send in the order of the windows. A vector of images goes along a row of
// blocks: what a window sends is looked up and worked out once, and stays in registers until the row is past it. Where
// there are no windows, they send nothing.
#define BLOCK (TB_STEP == 1 && TB_OP != 0 ? 2 : TB_STEP)  // pixels down and across: more in flight, if registers are enough
#define MORE (BLOCK / TB_STEP)              // windows by which a block is past the one before
#define REACH ((TB_SIDE - 1) / TB_STEP)     // windows before that of a block's first pixel that may hold it
#define WINDOWS (REACH + MORE)              // down and across
#define EACH(i, count) _Pragma("GCC unroll 4") for (int i = 0; i < (count); ++i)

typedef struct {
    tb_i64 row, column;
} gap;

// A row of blocks: first window and first pixel row, of which some are wanted; which of its windows exist, and the cells
// that they have down the image; the columns of blocks whose pixels are all in the image, and of windows that are whole
// across, with what their cells share; and the map's operands from the first window, or pixel, on: errors, places or forward
// outputs, forward inputs, gradient, and what is between rows and between columns.
typedef struct {
    tb_i64 p, h;
    range rows, windows, amid, whole;
    TB_W cells[WINDOWS], shares[WINDOWS];
    const TB_X *e, *x;
    const void *others;
    TB_X *out;
    gap e_by, other_by, x_by, out_by;
} strip;

// What column q of a strip's windows sends to its cells; the largest sends to one of them, whose number is `where`.
TB_FN void send_column(const sizes *g, const strip *s, tb_i64 q, tb_i64 n, int m, vec *sent, small *where) {
    const TB_X *const e = s->e + q * s->e_by.column + n;
    const tb_i64 other = q * s->other_by.column + n;
    const int whole = q >= s->whole.from && q < s->whole.to;
    const TB_W across = TB_OP != 1 || whole ? 1 : (TB_W)length(cells_of(g, 3, q));
    EACH(a, WINDOWS) {
        sent[a * WINDOWS] = (vec){0};
        where[a * WINDOWS] = (small){0};
        if (a < s->windows.from || a >= s->windows.to) continue;
        vec v = load(e + a * s->e_by.row, m);
        if (TB_OP == 0) where[a * WINDOWS] = load_places((const TB_I *)s->others + other + a * s->other_by.row, m);
        if (TB_OP == 1) v *= whole ? s->shares[a] : 1 / (s->cells[a] * across);
#if TB_OP == 2
        const vec root = load((const TB_X *)s->others + other + a * s->other_by.row, m);
        v = (vec)((mask)(v / root) & (root != 0));
#endif
        sent[a * WINDOWS] = v;
    }
}

// Numbers n to n + m of all pixels of a strip. Both copies stay in registers, since nobody has their addresses.
TB_FN void run_strip(const sizes *sizes_at, const strip *strip_at, tb_i64 n, int m) {
    const sizes known = *sizes_at, *const g = &known;
    const strip own = *strip_at, *const s = &own;
    const tb_i64 all = (g->in[3] + g->pad[3] + BLOCK - 1) / BLOCK;
    vec sent[WINDOWS][WINDOWS] = {0};
    small where[WINDOWS][WINDOWS] = {0};
    for (tb_i64 j = 0; j < all; ++j) {
        EACH(a, WINDOWS) EACH(b, REACH) sent[a][b] = sent[a][b + MORE], where[a][b] = where[a][b + MORE];
        EACH(b, MORE) {
            const tb_i64 q = j * MORE + b;
            if (q < g->out[3]) {
                send_column(g, s, q, n, m, &sent[0][REACH + b], &where[0][REACH + b]);
                continue;
            }
            EACH(a, WINDOWS) sent[a][REACH + b] = (vec){0}, where[a][REACH + b] = (small){0};
        }
        const tb_i64 w = j * BLOCK - g->pad[3];
        const int amid = j >= s->amid.from && j < s->amid.to;
        EACH(r, BLOCK) EACH(c, BLOCK) {
            vec sum = {0};
            EACH(a, WINDOWS) EACH(b, WINDOWS) {
                const int down = r + (REACH - a) * TB_STEP, across = c + (REACH - b) * TB_STEP;
                if (down < 0 || down >= TB_SIDE || across < 0 || across >= TB_SIDE) continue;
                if (TB_OP == 0) sum = added_there(sum, sent[a][b], where[a][b], (TB_N)(down * TB_SIDE + across));
                else sum += sent[a][b];
            }
            const tb_i64 h = s->h + r;
            if (!amid && !(h >= s->rows.from && h < s->rows.to && (tb_u64)(w + c) < (tb_u64)g->in[3])) continue;
            if (TB_OP == 2) sum *= load(s->x + r * s->x_by.row + (w + c) * s->x_by.column + n, m);
            finish(g, s->out + r * s->out_by.row + (w + c) * s->out_by.column + n, sum, m);
        }
    }
}

TB_FN gap gap_of(const tb_i64 *stride) { return (gap){stride[2], stride[3]}; }

// Pointers: error, then places (largest) or forward input and output (root of squares), then the gradient. Tasks are
// groups of rows of the gradient.
void pool_bprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 all = g->in[0] * g->in[1] * g->in[2], last = lower(end * g->group, all), pad = g->pad[3];
    const tb_i64 *const other = stride + 4 * TB_OP + 4 * (TB_OP == 0), *const os = stride + TB_OUTPUT * 4;
    (void)scalar;
    for (tb_i64 number = begin * g->group, next; number < last; number = next) {
        const tb_i64 h = number % g->in[2], d = number / g->in[2] % g->in[1], c = number / (g->in[2] * g->in[1]);
        const tb_i64 i = (h + g->pad[2]) / BLOCK, p = i * MORE - REACH, from = i * BLOCK - g->pad[2];
        strip s = {p, from, {h, lower(lower(from + BLOCK, g->in[2]), h + last - number)},
                   {higher(-p, 0), lower(g->out[2] - p, WINDOWS)}, {0, 0}, {0, 0}, {0}, {0}, 0, 0, 0, 0,
                   gap_of(stride), gap_of(other), gap_of(TB_OP == 2 ? stride + 4 : stride), gap_of(os)};
        if (length(s.rows) == BLOCK) s.amid = (range){(pad + BLOCK - 1) / BLOCK, (g->in[3] + pad) / BLOCK};
        const tb_i64 beyond = higher(g->in[3] + pad - TB_SIDE + TB_STEP, 0) / TB_STEP;
        if (TB_OP == 1) s.whole = (range){(pad + TB_STEP - 1) / TB_STEP, beyond};
        for (int a = 0; TB_OP == 1 && a < WINDOWS; ++a) {
            s.cells[a] = (TB_W)length(cells_of(g, 2, p + a));
            s.shares[a] = 1 / (s.cells[a] * TB_SIDE);
        }
        s.e = (const TB_X *)ptr[0] + inner(stride, c, d, p);
        s.out = (TB_X *)ptr[TB_OUTPUT] + inner(os, c, d, from);
        if (TB_OP == 0) s.others = (const TB_I *)ptr[1] + inner(other, c, d, p);
        if (TB_OP == 2) s.others = (const TB_X *)ptr[2] + inner(other, c, d, p);
        if (TB_OP == 2) s.x = (const TB_X *)ptr[1] + inner(stride + 4, c, d, from);
        tb_i64 n = 0;
        for (; n + LANES <= g->images; n += LANES) run_strip(g, &s, n, LANES);
        if (n < g->images) run_strip(g, &s, n, (int)(g->images - n));
        next = number + length(s.rows);
    }
    tb_stream_end(g->streams);
}
