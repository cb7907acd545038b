// SPDX-License-Identifier: Apache-2.0
// pool_blocks.h — the way back of square windows over one map, of at least a vector of images
//
// Part of pool.c, with its macros. A block is the pixels of a stride down and across. The same few windows hold them. A
// vector of images goes along a row of blocks: what a column of windows sends is looked up, and worked out for each row of
// pixels, once, and stays in registers until the row is past it. A pixel adds up its windows in their order
// (largest) or column by column. Where there are no windows, they send nothing. Vectors of images go side by side: those
// of a line of the cache, since half a line that goes past the cache costs more than a whole one; or of TB_LINES lines, if
// registers hold them, since what a row of blocks takes besides is then shared.
#define REACH ((TB_SIDE - 1) / TB_STEP)       // windows before that of a block's first pixel that may hold it
#define WINDOWS (REACH + 1)                   // down and across
#define LINES (TB_OP == 0 ? WINDOWS : TB_STEP)  // what is kept of a column: windows, or sums for rows of pixels
#define SIDE_BY_SIDE (VECTOR_BYTES == 64 && TB_LINES ? TB_LINES : 64 / VECTOR_BYTES)  // vectors along a row together
#define EACH(i, count) _Pragma("GCC unroll 4") for (int i = 0; i < (count); ++i)
#define CELL(pixel, window) ((pixel) + (REACH - (window)) * TB_STEP)  // the number of a window's cell along an axis
#define HELD(pixel, window) (CELL(pixel, window) < TB_SIDE)

#if TB_OP == 0
typedef TB_I other;  // what is read beside errors: places, or forward outputs
#else
typedef TB_X other;
#endif

typedef struct {
    tb_i64 row, column;
} gap;

// A row of blocks: its first pixel row, of which some are wanted; which of its windows exist; the columns of
// blocks whose pixels are all in the image, and whose new windows exist and are whole across; of windows that are whole
// across; the cells that windows have down the image, and what those of whole ones share; and the map's operands from the
// first window, or pixel, on: errors, places or forward outputs, forward inputs, gradient, and what is between rows and
// between columns.
typedef struct {
    tb_i64 h;
    range rows, windows, amid, whole;
    TB_W cells[WINDOWS], shares[WINDOWS];
    const TB_X *e, *x;
    const other *others;
    TB_X *out;
    gap e_by, other_by, x_by, out_by;
} strip;

// What is read for some vectors of images: of each row of windows, the next column, and what is between columns.
typedef struct {
    const TB_X *e[WINDOWS];
    const other *others[WINDOWS];
    tb_i64 e_by[WINDOWS], other_by[WINDOWS];
} senders;

// Columns of windows: what they send to a vector, and where to.
typedef struct {
    vec sent[LINES][WINDOWS];
    held where[LINES][WINDOWS];
} columns;

// Rows of windows that do not exist send zeros.
TB_FN senders senders_of(const strip *s, tb_i64 n) {
    static const TB_X zeros[SIDE_BY_SIDE * LANES];
    static const other nowhere[SIDE_BY_SIDE * LANES];
    senders from;
    EACH(a, WINDOWS) {
        const int there = a >= s->windows.from && a < s->windows.to;
        from.e[a] = there ? s->e + a * s->e_by.row + n : zeros;
        from.e_by[a] = there ? s->e_by.column : 0;
        from.others[a] = there && TB_OP != 1 ? s->others + a * s->other_by.row + n : nowhere;
        from.other_by[a] = there && TB_OP != 1 ? s->other_by.column : 0;
    }
    return from;
}

// Asks for column q of the row of windows that the next strip adds: columns of many images lie too far apart for
// processors to see what comes.
TB_FN void fetch_column(const strip *s, tb_i64 n, tb_i64 q, int vectors) {
    const TB_X *const e = s->e + WINDOWS * s->e_by.row + q * s->e_by.column + n;
    const other *const others = s->others + WINDOWS * s->other_by.row + q * s->other_by.column + n;
    EACH(v, vectors) {
        __builtin_prefetch(e + v * LANES, 0, 2);
        if (TB_OP == 2 || (TB_OP == 0 && v == 0)) __builtin_prefetch(others + v * LANES, 0, 2);
    }
}

// The next column of windows, number q, to place `at` of the columns of each vector.
TB_FN void send_column(const sizes *g, const strip *s, senders *from, tb_i64 q, int vectors, int m, int whole,
                       columns *kept, int at) {
    const TB_W across = TB_OP != 1 || whole ? 1 : (TB_W)length(cells_of(g, 3, q));
    vec sent[SIDE_BY_SIDE][WINDOWS];
    EACH(a, WINDOWS) {
        const TB_W share = TB_OP != 1 ? 1 : whole ? s->shares[a] : 1 / (s->cells[a] * across);
        EACH(v, vectors) {
            sent[v][a] = load(from->e[a] + v * LANES, m);
#if TB_OP == 0
            kept[v].sent[a][at] = sent[v][a];
            kept[v].where[a][at] = load_places(from->others[a] + v * LANES, m);
#elif TB_OP == 1
            sent[v][a] *= share;
#else
            const vec root = load(from->others[a] + v * LANES, m);
            sent[v][a] = (vec)((mask)(sent[v][a] / root) & (root != 0));
#endif
        }
        from->e[a] += from->e_by[a];
        if (TB_OP != 1) from->others[a] += from->other_by[a];
        (void)share;
    }
    if (TB_OP == 0) return;
    EACH(v, vectors) EACH(r, TB_STEP) {
        kept[v].sent[r][at] = sent[v][REACH];
        EACH(a, REACH) if (HELD(r, a)) kept[v].sent[r][at] += sent[v][a];
    }
}

// What pixel (r, c) of a block gets; the first of its columns of windows is at place `first`.
TB_FN vec gathered(const columns *kept, int r, int c, int first) {
    vec sum = {0};
#if TB_OP == 0
    EACH(a, WINDOWS) EACH(b, WINDOWS) {
        if (!HELD(r, a) || !HELD(c, b)) continue;
        const int at = (first + b) % WINDOWS, cell = CELL(r, a) * TB_SIDE + CELL(c, b);
        sum = added_there(sum, kept->sent[a][at], kept->where[a][at], (TB_N)cell);
    }
#else
    EACH(b, WINDOWS) if (HELD(c, b)) sum += kept->sent[r][(first + b) % WINDOWS];
#endif
    return sum;
}

// Block j of a strip: its new column of windows, whose place is `at`, then its pixels. `sure`: they are amid the strip.
TB_FN void run_block(const sizes *g, const strip *s, senders *from, tb_i64 n, tb_i64 j, columns *kept, int at,
                     int vectors, int m, int sure) {
    if (sure || j < g->out[3]) {
        if (g->far) fetch_column(s, n, j, vectors);
        send_column(g, s, from, j, vectors, m, sure || (j >= s->whole.from && j < s->whole.to), kept, at);
    } else {
        EACH(v, vectors) EACH(a, LINES) kept[v].sent[a][at] = (vec){0}, kept[v].where[a][at] = (held){0};
    }
    const tb_i64 w = j * TB_STEP - g->pad[3];
    EACH(r, TB_STEP) EACH(c, TB_STEP) {
        vec sum[SIDE_BY_SIDE];
        EACH(v, vectors) sum[v] = gathered(kept + v, r, c, at + 1);
        const tb_i64 h = s->h + r;
        if (!sure && !(h >= s->rows.from && h < s->rows.to && (tb_u64)(w + c) < (tb_u64)g->in[3])) continue;
        TB_X *const to = s->out + r * s->out_by.row + (w + c) * s->out_by.column + n;
        EACH(v, vectors) {
            if (TB_OP == 2) sum[v] *= load(s->x + r * s->x_by.row + (w + c) * s->x_by.column + n + v * LANES, m);
            finish(g, to + v * LANES, sum[v], m);
        }
    }
}

// `vectors` vectors of m numbers, from n on, of all pixels of a strip. The copies stay in registers, since nobody has
// their addresses.
TB_FN void run_strip(const sizes *sizes_at, const strip *strip_at, tb_i64 n, int vectors, int m) {
    const sizes known = *sizes_at, *const g = &known;
    const strip own = *strip_at, *const s = &own;
    senders from = senders_of(s, n);
    const tb_i64 all = (g->in[3] + g->pad[3] + TB_STEP - 1) / TB_STEP;
    columns kept[SIDE_BY_SIDE] = {{{{{0}}}, {{{0}}}}};
    for (tb_i64 j = 0; j < all;) {
        for (; j >= s->amid.from && j + WINDOWS <= s->amid.to; j += WINDOWS)
            EACH(k, WINDOWS) run_block(g, s, &from, n, j + k, kept, k, vectors, m, 1);
        if (j >= all) break;
        EACH(v, vectors) EACH(a, LINES) EACH(b, REACH) {
            kept[v].sent[a][b] = kept[v].sent[a][b + 1];
            kept[v].where[a][b] = kept[v].where[a][b + 1];
        }
        run_block(g, s, &from, n, j++, kept, REACH, vectors, m, 0);
    }
}

// The blocks whose pixels are all in the image, and whose new windows exist and are `whole`.
TB_FN range amid_of(const sizes *g, range whole) {
    const tb_i64 pad = g->pad[3], from = higher((pad + TB_STEP - 1) / TB_STEP, whole.from);
    return (range){from, lower((g->in[3] + pad) / TB_STEP, lower(whole.to, g->out[3]))};
}

TB_FN gap gap_of(const tb_i64 *stride) { return (gap){stride[2], stride[3]}; }

// Pointers: error, then places (largest) or forward input and output (root of squares), then the gradient. Tasks are
// groups of rows of the gradient.
void pool_bprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 all = g->in[0] * g->in[1] * g->in[2], last = lower(end * g->group, all), pad = g->pad[3];
    const tb_i64 *const others = stride + 4 * TB_OP + 4 * (TB_OP == 0), *const os = stride + TB_OUTPUT * 4;
    const tb_i64 beyond = higher(g->in[3] + pad - TB_SIDE + TB_STEP, 0) / TB_STEP;
    const range whole = TB_OP == 1 ? (range){(pad + TB_STEP - 1) / TB_STEP, beyond} : (range){0, g->out[3]};
    const range amid = amid_of(g, whole);
    (void)scalar;
    tb_i64 number = begin * g->group;
    tb_i64 h = number % g->in[2], d = number / g->in[2] % g->in[1], c = number / (g->in[2] * g->in[1]);
    while (number < last) {
        const tb_i64 i = (h + g->pad[2]) / TB_STEP, p = i - REACH, from = i * TB_STEP - g->pad[2];
        strip s = {from, {h, lower(lower(from + TB_STEP, g->in[2]), h + last - number)},
                   {higher(-p, 0), lower(g->out[2] - p, WINDOWS)}, {0, 0}, whole, {0}, {0}, 0, 0, 0, 0,
                   gap_of(stride), gap_of(others), gap_of(TB_OP == 2 ? stride + 4 : stride), gap_of(os)};
        if (length(s.rows) == TB_STEP) s.amid = amid;
        for (int a = 0; TB_OP == 1 && a < WINDOWS; ++a) {
            s.cells[a] = (TB_W)higher(length(cells_of(g, 2, p + a)), 1);
            s.shares[a] = 1 / (s.cells[a] * TB_SIDE);
        }
        s.e = (const TB_X *)ptr[0] + inner(stride, c, d, p);
        s.out = (TB_X *)ptr[TB_OUTPUT] + inner(os, c, d, from);
        if (TB_OP != 1) s.others = (const other *)ptr[TB_OP == 0 ? 1 : 2] + inner(others, c, d, p);
        if (TB_OP == 2) s.x = (const TB_X *)ptr[1] + inner(stride + 4, c, d, from);
        tb_i64 n = 0;
        for (; n + SIDE_BY_SIDE * LANES <= g->images; n += SIDE_BY_SIDE * LANES)
            run_strip(g, &s, n, SIDE_BY_SIDE, LANES);
        for (; !TB_LINES && SIDE_BY_SIDE > 1 && n + LANES <= g->images; n += LANES) run_strip(g, &s, n, 1, LANES);
        if (!TB_LINES && n < g->images) run_strip(g, &s, n, 1, (int)(g->images - n));
        number += length(s.rows), h += length(s.rows);
        if (h < g->in[2]) continue;
        h = 0;
        if (++d == g->in[1]) d = 0, ++c;
    }
    tb_stream_end(g->streams);
}
