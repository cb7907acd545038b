// SPDX-License-Identifier: Apache-2.0
// conv_winograd_adjoint.h — the gradient by the images as the transpose of what conv_winograd.c does forward
//
// Computes  from as many products as forward, however wide the padding of the gradient's own convolution would be, and for
//           any stride.
//           Sizes are those of the forward pass; IN has errors. A map and a part of the filter make a row of the products.
// Stages    in        V, of each point and panel        A e A' for each tile of OUT x OUT errors e
//           rows      X[point][row][lane]               sums over maps of errors of U V, with U = G f G' of the filters
//                     B x B', the POINTS x POINTS places that a tile reads, are added up
//           join      to the result
//           A task of `rows` has PART channels, with all their parts, and a block of PANELS rows of tiles. It makes U
//           itself and, where it has all channels, V too; else tasks share V.
// Sums      Places a tile's step apart lie side by side: [channel][place high, wide within a step][step high][step
//           wide][image]. So neighbouring lanes add to neighbouring places. Blocks have sums of their own, since tiles
//           overlap; those of a place are added in order by `join`.
// Order     Sums of a block run over parts, and over tiles. That depends on shapes alone.

enum { SHARE = 4, JOINED = 8 };  // tiles of rows before their products are transformed back; rows of a map of a task

// Transposes of one axis ----------------------------------------------------------------------------------------------

// A e: OUT values to POINTS.
INLINE void spread_error(const vec *e, int from_step, vec *o, int step) {
    transform_taps_of(e, OUT, 0, from_step, o, step);
}

// B x: POINTS values to POINTS, `step` apart in both.
INLINE void spread_data(const vec *x, vec *o, int step) {
    const vec even = x[step] + x[2 * step], odd = x[step] - x[2 * step];
#if POINTS == 4
    o[0] = x[0];
    o[step] = odd - x[3 * step];
    o[2 * step] = even - x[0];
    o[3 * step] = x[3 * step];
#else
    const vec even2 = x[3 * step] + x[4 * step], odd2 = 2 * (x[3 * step] - x[4 * step]);
    o[0] = 4 * x[0];
    o[step] = 4 * (x[5 * step] - odd) - odd2;
    o[2 * step] = -5 * x[0] - 4 * even - even2;
    o[3 * step] = odd + odd2 - 5 * x[5 * step];
    o[4 * step] = x[0] + even + even2;
    o[5 * step] = x[5 * step];
#endif
}

// Geometry ------------------------------------------------------------------------------------------------------------

// Along an axis: places from one tile to the next, and how many tiles further the last place of a tile, or of a map, lies.
typedef struct steps {
    int64_t period, shift;
} steps;

typedef struct adjoint {
    shape s;
    steps high, wide;
    int64_t channels, shares;          // of a task; tasks of a block
    int64_t rows, blocks, panels;      // of tiles of a block; of a group; of a block
    int64_t line;                      // lanes of a row of tiles
    int64_t pitch, plane, map, block;  // of sums
    int64_t filled;                    // maps of errors, whole vectors
    int64_t own;                       // whether tasks make V themselves
    int64_t u_point, v_point, v_block, m_point;
} adjoint;

static steps read_steps(const cut *x, int64_t pad, int64_t length, int64_t tiles) {
    const int64_t period = OUT * x->stride, last = first_tap(x, x->parts - 1) + (POINTS - 1) * x->stride;
    const int64_t shift = last / period, rest = (length - 1 + pad) / period - (tiles - 1);
    return (steps){period, shift > rest ? shift : rest};
}

static adjoint read_adjoint(const int64_t *size) {
    adjoint a = {.s = read_shape(size), .channels = size[PART], .rows = size[PANELS]};
    const shape *const s = &a.s;
    a.high = read_steps(&s->high, s->pad_high, s->in_high, s->rows);
    a.wide = read_steps(&s->wide, s->pad_wide, s->in_wide, s->columns);
    a.shares = ceil_div(s->maps, a.channels);
    a.blocks = ceil_div(s->depth * s->rows, a.rows);
    a.line = s->columns * s->images;
    a.panels = ceil_div(a.rows * a.line, WIDTH);
    a.pitch = (s->columns + a.wide.shift) * s->images;
    const int64_t depths = least(s->depth, ceil_div(a.rows - 1, s->rows) + 1);
    a.plane = apart((a.rows + depths * a.high.shift) * a.pitch);
    a.map = a.high.period * a.wide.period * a.plane + LANES;  // the last vector may end behind the last place
    a.block = s->maps * a.map;
    a.filled = ceil_div(s->maps_out, LANES) * LANES;
    a.own = a.shares == 1;
    const int64_t tiles = ceil_div(s->parts * a.channels, MR);
    a.u_point = apart(tiles * a.filled * MR);
    a.v_point = apart((a.own ? 1 : a.panels) * s->maps_out * WIDTH);
    a.v_block = SQUARE * a.v_point;
    a.m_point = apart(least(tiles, SHARE) * MR * WIDTH);
    return a;
}

// The row of sums that a tile's first place belongs to, of the rows of tiles of the block that begins with `first`.
static int64_t sums_row(const adjoint *a, int64_t first, int64_t down) {
    return down - first + (down / a->s.rows - first / a->s.rows) * a->high.shift;
}

// Stages --------------------------------------------------------------------------------------------------------------

// V of maps [k, end) of the errors, at a panel that begins with `lane`; lanes end with s->lanes.
static void transform_errors(const shape *s, const TB_S *errors, int64_t k, int64_t end, int64_t lane, int64_t point,
                             TB_T *v) {
    const int few = few_images(s, OUT);
    piece pieces[LANES];
    lines x;
    TB_T copy[COPIED];
    for (int at = 0; at < filled_lanes(s, lane); at += LANES) {
        if (few) find_lines(s, lane + at, LANES, OUT, s->out_high, s->out_wide, 0, 0, &x);
        else find_pieces(s, 0, lane + at, LANES, pieces);
        if (few) clear_lines(&x, copy);
        for (int64_t i = k; i < end; ++i) {
            const TB_S *const map = errors + i * s->out_map;
            vec e[OUT * OUT], half[POINTS * OUT], whole[SQUARE];
            if (few) {
                copy_lines(s, &x, map, copy);
                turn_squares(&x, x.at, copy, OUT, e);
            } else {
                if (i + 1 < end) prefetch_errors(s, pieces, map + s->out_map);
                fetch_errors(s, pieces, map, e);
            }
            UNROLL for (int j = 0; j < OUT; ++j) spread_error(e + j, OUT, half + j, OUT);
            UNROLL for (int j = 0; j < POINTS; ++j) spread_error(half + j * OUT, 1, whole + j * POINTS, 1);
            put_points(whole, v + i * WIDTH + at, point);
        }
    }
}

// U of `count` channels, whose filters begin at given->from, with all their parts.
static void transform_rows(const adjoint *a, const taps *given, int64_t count, TB_T *u) {
    const shape *const s = &a->s;
    for (int64_t row = 0; row < count * s->parts; row += MR, u += a->filled * MR) {
        const TB_S *from[MR];
        int64_t at[MR][TAPS * TAPS];
        const int64_t *places[MR];
        for (int i = 0; i < MR; ++i) {
            places[i] = at[i];
            from[i] = given->from + (row + i) % count * given->channel;
            if (row + i < count * s->parts) find_taps(s, (row + i) / count, 0, at[i]);
            else
                for (int j = 0; j < TAPS * TAPS; ++j) at[i][j] = -1;
        }
        for (int64_t k = 0; k < s->maps_out; k += LANES)
            transform_turned(from, given->row, places, k, least(LANES, s->maps_out - k), u + k * MR, a->u_point);
    }
}

// Lanes of a panel, from `at` on, that are neighbours in a row of tiles; to: where in the sums of a channel they begin.
typedef struct span {
    int at, count;
    int64_t to;
} span;

static int find_spans(const adjoint *a, int64_t first, int64_t lane, span *spans) {
    const shape *const s = &a->s;
    const int64_t end = least(lane + WIDTH, s->lanes);
    int found = 0;
    for (int64_t l = lane, count; l < end; l += count) {
        const int64_t down = l / a->line, next = least((down + 1) * a->line, end);
        count = least(LANES, next - l);
        spans[found++] = (span){(int)(l - lane), (int)count, sums_row(a, first, down) * a->pitch + l % a->line};
    }
    return found;
}

// Of rows [row, end) of the products of `count` channels, those whose parts have a point, from a whole tile on.
static range point_rows(const shape *s, int64_t point, int64_t row, int64_t end, int64_t count) {
    const range has = point_channels(s, count, point, row, end);
    return (range){row + (has.from - row) / MR * MR, has.end};
}

// Where the places of a tile for a part lie, along an axis.
static void find_places(const cut *x, const steps *y, int64_t part, int64_t place, int64_t step, int64_t *to) {
    for (int i = 0; i < POINTS; ++i) {
        const int64_t at = first_tap(x, part) + i * x->stride;
        to[i] = at % y->period * place + at / y->period * step;
    }
}

// Adds the places of a span's tiles, `high` and `wide` apart, from their products at points.
INLINE void add_places(const TB_T *m, int64_t point, int count, const int64_t *high, const int64_t *wide, TB_T *to) {
    typedef TB_INDEX mask __attribute__((vector_size(TB_VECTOR)));
    vec x[SQUARE], half[SQUARE];
    mask there;
    UNROLL for (int l = 0; l < LANES; ++l) there[l] = l;
    there = there < count;
    take_points(m, point, x);
    UNROLL for (int i = 0; i < SQUARE; ++i) x[i] = (vec)((mask)x[i] & there);
    UNROLL for (int i = 0; i < POINTS; ++i) spread_data(x + i * POINTS, half + i * POINTS, 1);
    UNROLL for (int j = 0; j < POINTS; ++j) {
        TB_T *const at = to + wide[j];
        spread_data(half + j, x + j, POINTS);
        UNROLL for (int i = 0; i < POINTS; ++i) *(vec *)(at + high[i]) += x[i * POINTS + j];
    }
}

// To the sums of `count` channels from rows [row, end) of the products at a panel.
static void transform_rows_back(const adjoint *a, const TB_T *m, int64_t row, int64_t end, int64_t count,
                                const span *spans, int found, TB_T *sums) {
    const shape *const s = &a->s;
    int64_t high[POINTS], wide[POINTS], part = -1;
    for (; row < end; ++row, m += WIDTH) {
        if (part != row / count) {
            part = row / count;
            const part_of_axes of = find_part(s, part);
            find_places(&s->high, &a->high, of.high, a->wide.period * a->plane, a->pitch, high);
            find_places(&s->wide, &a->wide, of.wide, a->plane, s->images, wide);
        }
        TB_T *const to = sums + row % count * a->map;
        for (int i = 0; i < found; ++i) add_places(m + spans[i].at, a->m_point, spans[i].count, high, wide, to + spans[i].to);
    }
}

// To V that tasks share. A task: TILE maps of a panel of a block of a group.
void tb_winograd_adjoint_in(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                            int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    adjoint a = read_adjoint(size);
    shape *const s = &a.s;
    const int64_t lanes = s->lanes, parts = ceil_div(s->maps_out, TILE);
    if (begin == 0) free_slots(TB_PLACE(OWN), size[SLOTS]);
    for (int64_t task = begin; task < end && !a.own; ++task) {
        const int64_t k = task % parts * TILE, panel = task / parts % a.panels, block = task / parts / a.panels;
        const int64_t first = block % a.blocks * a.rows * a.line, lane = first + panel * WIDTH;
        s->lanes = least(first + a.rows * a.line, lanes);
        const TB_S *const errors = (const TB_S *)TB_PLACE(IN) + block / a.blocks * s->maps_out * s->out_map;
        TB_T *const v = (TB_T *)TB_PLACE(DATA) + block * a.v_block + panel * s->maps_out * WIDTH;
        if (lane < s->lanes) transform_errors(s, errors, k, least(k + TILE, s->maps_out), lane, a.v_point, v);
    }
}

// To the sums. A task: PART channels and a block of a group.
void tb_winograd_adjoint_rows(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                              int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    adjoint a = read_adjoint(size);
    shape *const s = &a.s;
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots), lanes = s->lanes;
    TB_T *const u = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]);
    TB_T *const m = u + SQUARE * a.u_point, *const near = m + SQUARE * a.m_point;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t c = task % a.shares * a.channels, count = least(a.channels, s->maps - c), block = task / a.shares;
        const int64_t group = block / a.blocks, first = block % a.blocks * a.rows, begins = first * a.line;
        const int64_t rows = count * s->parts;
        const TB_S *const errors = (const TB_S *)TB_PLACE(IN) + group * s->maps_out * s->out_map;
        TB_T *const sums = (TB_T *)TB_PLACE(PRODUCTS) + block * a.block + c * a.map;
        taps given = group_filters(s, TB_PLACE(FILTERS), group, 0);
        given.from += c * given.channel;
        s->lanes = least(begins + a.rows * a.line, lanes);
        __builtin_memset(sums, 0, (unsigned long)(count * a.map) * sizeof(TB_T));
        transform_rows(&a, &given, count, u);
        for (int64_t lane = begins; lane < s->lanes; lane += WIDTH) {
            span spans[WIDTH];
            const int found = find_spans(&a, first, lane, spans);
            const TB_T *v = near;
            if (a.own) transform_errors(s, errors, 0, s->maps_out, lane, a.v_point, near);
            else v = (const TB_T *)TB_PLACE(DATA) + block * a.v_block + (lane - begins) * s->maps_out;
            for (int64_t row = 0; row < rows; row += SHARE * MR) {
                const int64_t last = least(row + SHARE * MR, rows);
                shape t = *s;
                t.maps_in = a.filled, t.chunk = s->maps_out;
                const struct block b = {.lane = lane, .panels = 1};
                for (int64_t point = 0; point < SQUARE; ++point) {
                    TB_T *const to = m + point * a.m_point;
                    const range has = point_rows(s, point, row, last, count);
                    t.tiles = ceil_div(has.end - has.from, MR);
                    if (has.end - has.from < last - row) __builtin_memset(to, 0, a.m_point * sizeof(TB_T));
                    multiply_point(&t, &b, u + point * a.u_point + has.from * a.filled, s->maps_out, 1,
                                   v + point * a.v_point, to + (has.from - row) * WIDTH, 0);
                }
                transform_rows_back(&a, m, row, last, count, spans, found, sums);
            }
        }
    }
    give_slot(TB_PLACE(OWN), slot);
}

// To a row of the result from a row of its sums: places that are equal modulo the period.
INLINE void join_places(const adjoint *a, const TB_T *sums, int64_t phase, TB_R *row) {
    const int64_t n = a->s.images, skipped = phase < a->s.pad_wide ? ceil_div(a->s.pad_wide - phase, a->wide.period) : 0;
    sums += skipped * n;
    for (int64_t w = skipped * a->wide.period + phase - a->s.pad_wide; w < a->s.in_wide; w += a->wide.period, sums += n)
        for (int64_t i = 0; i < n; i += LENGTH)
            if (LENGTH == LANES) store(row + w * n + i, *(const vec *)(sums + i));
            else
                for (int l = 0; l < LENGTH; ++l) row[w * n + i + l] = TB_NARROW(sums[i + l]);
}

// To the result. A task: JOINED rows of a map.
void tb_winograd_adjoint_join(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                              int64_t begin, int64_t end) {
    const adjoint a = read_adjoint(size);
    const shape *const s = &a.s;
    const int64_t pieces = ceil_div(s->in_high, JOINED), row = s->in_wide * s->images;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t map = task / pieces / s->depth, depth = task / pieces % s->depth, group = map / s->maps;
        const int64_t h0 = task % pieces * JOINED, h1 = least(h0 + JOINED, s->in_high), start = depth * s->in_high + h0;
        TB_T *const sums = (TB_T *)TB_PLACE(PRODUCTS) + group * a.blocks * a.block + map % s->maps * a.map;
        TB_R *to = (TB_R *)TB_PLACE(RESULT) + map * s->in_map + start * row;
        for (int64_t h = h0; h < h1; ++h, to += row) {
            const int64_t step = (h + s->pad_high) / a.high.period, phase = (h + s->pad_high) % a.high.period;
            const int64_t low = depth * s->rows + (step > a.high.shift ? step - a.high.shift : 0);
            const int64_t last = depth * s->rows + least(step, s->rows - 1), down = depth * s->rows + step;
            for (int64_t p = 0; p < a.wide.period; ++p) {
                TB_T *whole = 0;
                for (int64_t b = low / a.rows; b <= last / a.rows; ++b) {
                    const int64_t at = down - b * a.rows + (depth - b * a.rows / s->rows) * a.high.shift;
                    TB_T *const part = sums + b * a.block + (phase * a.wide.period + p) * a.plane + at * a.pitch;
                    if (!whole) whole = part;
                    else
                        for (int64_t i = 0; i < a.pitch; ++i) whole[i] += part[i];
                }
                join_places(&a, whole, p, to);
            }
        }
        TB_FINISH(s->in_map, map, 1, start * row, (h1 - h0) * row);
    }
}

// out: bytes of V that tasks share, of the sums of all blocks, of a task.
void tb_winograd_adjoint_needs(const int64_t *size, int64_t *out) {
    const adjoint a = read_adjoint(size);
    const int64_t item = sizeof(TB_T);
    out[0] = a.own ? 0 : a.s.groups * a.blocks * a.v_block * item;
    out[1] = a.s.groups * a.blocks * a.block * item;
    out[2] = (a.u_point + a.m_point + (a.own ? a.v_point : 0)) * SQUARE * item;
}
