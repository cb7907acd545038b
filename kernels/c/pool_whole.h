// SPDX-License-Identifier: Apache-2.0
// pool_whole.h — windows of usual numbers of cells that are wholly inside the image
//
// Part of pool_spans.h. Rows of a window do not wait for each other. The largest of lanes of four bytes with places of
// one (TB_BITS) are chosen by bits, where the processor can: compilers make vectors of them, and places of four bytes.
// Comparisons are dear, hence NaNs are found by sums; their span is done again with care.
#if TB_BITS && TB_PLAIN && (MASKS_ARE_BITS || defined(__AVX2__)) && !defined(__clang__)
typedef float numbers __attribute__((vector_size(VECTOR_BYTES)));
#if !MASKS_ARE_BITS
typedef mask candidates;
typedef mask verdict;
#define COMPARED(x, y, how) (mask)__builtin_ia32_cmpps256(x, y, how)
#define CHOICE(x, y, of_y) __builtin_ia32_blendvps256(x, y, (numbers)(of_y))
#define PLACE(x, y, of_y) (mask)__builtin_ia32_blendvps256((numbers)(x), (numbers)(y), (numbers)(of_y))
#elif TB_NARROW
typedef int candidates __attribute__((vector_size(32)));  // a mask of 8 bits would go through other registers for bytes
typedef unsigned short verdict;
#define COMPARED(x, y, how) __builtin_ia32_cmpps256_mask(x, y, how, -1)
#define CHOICE(x, y, of_y) __builtin_ia32_blendmps_256_mask(x, y, of_y)
#define PLACE(x, y, of_y) __builtin_ia32_blendmd_256_mask(x, y, of_y)
#else
typedef char candidates __attribute__((vector_size(16)));
typedef unsigned short verdict;
#define COMPARED(x, y, how) __builtin_ia32_cmpps512_mask(x, y, how, -1, 4)
#define CHOICE(x, y, of_y) __builtin_ia32_blendmps_512_mask(x, y, of_y)
#define PLACE(x, y, of_y) __builtin_ia32_blendmb_128_mask(x, y, of_y)
#endif
typedef struct {
    vec best;
    candidates where;
} leader;

TB_FN void compete(leader *found, leader next, int careful) {
    const numbers x = (numbers)next.best, best = (numbers)found->best;
    // Greater; or with care not at most, and the first NaN stays.
    const verdict wins = careful ? COMPARED(x, best, 6) & COMPARED(best, best, 7) : COMPARED(x, best, 14);
    found->best = (vec)CHOICE(best, x, wins);
    found->where = PLACE(found->where, next.where, wins);
}

TB_FN leader candidate(vec x, TB_N number) {
    __asm__("" : "+v"(x));  // stays in a register, else compilers read it again for each use
    return (leader){x, (char)number + (candidates){0}};
}

TB_FN leader renumbered(leader found, char first) { return (leader){found.best, found.where + first}; }

TB_FN int is_sound(vec sum) {
    int sound = 1;
    for (int l = 0; l < LANES; ++l) sound &= sum[l] == sum[l];
    return sound;
}

TB_FN void publish(const sizes *g, const leader *found, TB_X *out, TB_I *places, int count, int m) {
    (void)count;
    finish(g, out, found->best, m);
#if MASKS_ARE_BITS
    store_small(places, __builtin_convertvector(found->where, small), m);
#else
    store_places(places, found->where, m);
#endif
}
#else
typedef state leader;
TB_FN void compete(leader *found, leader next, int careful) {
    (void)careful;
    join(found, next);
}

TB_FN leader candidate(vec x, TB_N number) {
    leader found;
    meet(&found, x, number, 1);
    return found;
}

TB_FN leader renumbered(leader found, char first) { return (leader){found.best, found.where + first}; }

TB_FN int is_sound(vec sum) {
    (void)sum;
    return 1;
}

TB_FN void publish(const sizes *g, const leader *found, TB_X *out, TB_I *places, int count, int m) {
    finish(g, out, outcome(found, count), m);
    if (TB_OP == 0) store_places(places, found->where, m);
}
#endif

#if TB_WHOLE && !TB_BACK
#define ROWS (TB_WHOLE / TB_ACROSS)
#define UNROLLED _Pragma("GCC unroll 3")

// Pairs of vectors that lie apart, by how much the next pair lies further on, and how many follow each one side by side.
typedef struct {
    tb_i64 count, more, x_apart, out_apart, places_apart, x_step, out_step, places_step;
} pairs;

// Lines that go down together: their rows stay in the first-level cache; rows from memory are not too many to be followed.
#define AT_ONCE(g) ((g)->streams ? 4 : 16)

// The best of a row of cells of each vector, numbered from `first` on; they are added to the sums.
TB_FN void meet_row(leader *row, vec *sums, const TB_X *x, tb_i64 apart, tb_i64 across, TB_N first) {
    vec sum[TOGETHER];
    UNROLLED for (int d = 0; d < TB_ACROSS; ++d) {
        for (int v = 0; v < TOGETHER; ++v) {
            const leader cell = candidate(load(x + v * apart + d * across, LANES), first + d);
            sum[v] = d == 0 ? cell.best : sum[v] + cell.best;
            if (d == 0) row[v] = cell;
            else compete(&row[v], cell, 0);
        }
    }
    for (int v = 0; v < TOGETHER; ++v) sums[v] += sum[v];
}

// Windows of some lines that lie `step` rows apart and share rows: column by column, so that a row's best is found once.
TB_FN vec whole_columns(const sizes *sizes_at, const span *s, const pairs *by, const TB_X *x, TB_X *out, TB_I *places,
                        tb_i64 lines, int vectors, int step) {
    const sizes known = *sizes_at, *const g = &known;
    const tb_i64 apart = by->x_apart, across = s->column_step, down = s->row_step;
    vec sums[TOGETHER] = {{0}};
    for (tb_i64 i = 0; i < by->count; ++i) {
        const TB_X *at = x + i * by->x_step;
        TB_X *to = out + i * by->out_step;
        TB_I *where = TB_OP == 0 ? places + i * by->places_step : 0;
        leader rows[ROWS][TOGETHER];
        UNROLLED for (int r = step; r < ROWS; ++r, at += down) meet_row(rows[r], sums, at, apart, across, 0);
        for (tb_i64 l = 0; l < lines; ++l) {
            leader found[TOGETHER];
            UNROLLED for (int r = 0; r < ROWS; ++r) {
                if (r + step < ROWS) {
                    for (int v = 0; v < TOGETHER; ++v) rows[r][v] = rows[r + step][v];
                    continue;
                }
                const TB_X *const new = at + by->x_step + (TB_ACROSS - 1) * across;
                for (int v = 0; v < TOGETHER; ++v) __builtin_prefetch(new + v * apart);
                meet_row(rows[r], sums, at, apart, across, 0);
                at += down;
            }
            for (int v = 0; v < TOGETHER; ++v) {
                found[v] = rows[0][v];
                UNROLLED for (int r = 1; r < ROWS; ++r)
                    compete(&found[v], renumbered(rows[r][v], r * TB_ACROSS), 0);
            }
            for (int v = 0; v < vectors; ++v)
                publish(g, &found[v], to + v * by->out_apart, where + v * by->places_apart, TB_WHOLE, LANES);
            to += s->out_line;
            if (TB_OP == 0) where += s->places_line;
        }
    }
    return sums[0] + sums[1];
}

// The same for all lines of a span, some at a time.
static __attribute__((noinline)) vec all_columns(const sizes *g, const span *s, const pairs *by, tb_i64 at,
                                                 const tap *list, TB_X *out, TB_I *places, int vectors) {
    vec sum = {0};
    for (tb_i64 l = 0; l < s->lines; l += AT_ONCE(g)) {
        const tb_i64 lines = lower(AT_ONCE(g), s->lines - l);
        const TB_X *const x = (const TB_X *)s->x + at + l * s->x_line + list[0].at;
        TB_X *const to = out + l * s->out_line;
        TB_I *const where = TB_OP == 0 ? places + l * s->places_line : 0;
        if (g->step[2] == 1) sum += whole_columns(g, s, by, x, to, where, lines, vectors, 1);
        else if (ROWS > 2) sum += whole_columns(g, s, by, x, to, where, lines, vectors, 2);
    }
    return sum;
}

// Such windows of all lines from `at` on, `vectors` of each pair; the sum of their cells.
static __attribute__((noinline)) vec whole_pairs(const sizes *sizes_at, const span *s, const pairs *by, tb_i64 at,
                                                 const tap *list, TB_X *out, TB_I *places, int vectors) {
    const sizes known = *sizes_at, *const g = &known;  // stays in registers, since nobody has its address
    const tb_i64 apart = by->x_apart, across = s->column_step;
    vec sums[TOGETHER] = {{0}};
    const int share = g->step[2] < ROWS && g->window[2] == ROWS;  // rows of the image
    if (s->lines > 1 && share && by->more == 0) return all_columns(g, s, by, at, list, out, places, vectors);
    for (tb_i64 l = 0; l < s->lines; ++l) {
        const TB_X *rows[ROWS];
        TB_X *to = out + l * s->out_line;
        TB_I *where = TB_OP == 0 ? places + l * s->places_line : 0;
        UNROLLED for (int r = 0; r < ROWS; ++r)
            rows[r] = (const TB_X *)s->x + at + l * s->x_line + list[r * TB_ACROSS].at;
        for (tb_i64 i = 0; i < by->count; ++i) {
            for (tb_i64 n = 0; n <= by->more * 2 * LANES; n += 2 * LANES) {
                leader found[TOGETHER], row[TOGETHER];
                if (g->far) fetch_ahead(s, rows[ROWS - 1] + n + (TB_ACROSS - 1) * across, apart);
                UNROLLED for (int r = 0; r < ROWS; ++r) {
                    meet_row(r == 0 ? found : row, sums, rows[r] + n, apart, across, r * TB_ACROSS);
                    for (int v = 0; v < TOGETHER && r > 0; ++v) compete(&found[v], row[v], 0);
                }
                TB_I *const beside = where + (TB_OP == 0 ? n : 0);
                for (int v = 0; v < vectors; ++v)
                    publish(g, &found[v], to + n + v * by->out_apart, beside + v * by->places_apart, TB_WHOLE, LANES);
            }
            UNROLLED for (int r = 0; r < ROWS; ++r) rows[r] += by->x_step;
            to += by->out_step;
            if (TB_OP == 0) where += by->places_step;
        }
    }
    return sums[0] + sums[1];
}

// All windows of a span of whole vectors, of which two at a time go along the images or, where these follow each other in
// memory with all that they read, along both. Returns whether that is valid.
TB_FN int run_whole(const sizes *g, const span *separate, const tap *list) {
    const span beside = joined(*separate, 0), *const s = &beside;
    vec sum = {0};
    TB_X *const out = s->out;
    TB_I *const places = s->places;
    const tb_i64 two = 2 * LANES, all = s->numbers / two;  // pairs along the images
    if (s->count == 1) {
        const pairs by = {all, 0, LANES, LANES, LANES, two, two, two};
        sum += whole_pairs(g, s, &by, 0, list, out, places, 2);
    } else if (all > 0) {
        const pairs by = {s->count, all - 1, LANES, LANES, LANES, s->x_step, s->out_step, s->places_step};
        sum += whole_pairs(g, s, &by, 0, list, out, places, 2);
    }
    if (s->numbers % two) {
        const tb_i64 n = all * two, i = s->count - 1, x_step = s->x_step, out_step = s->out_step, step = s->places_step;
        TB_I *const where = places + (TB_OP == 0 ? n : 0);
        const pairs by = {s->count / 2, 0, x_step, out_step, step, 2 * x_step, 2 * out_step, 2 * step};
        sum += whole_pairs(g, s, &by, n, list, out + n, where, 2);
        const pairs last = {s->count % 2, 0, 0, 0, 0, 0, 0, 0};
        sum += whole_pairs(g, s, &last, n + i * x_step, list, out + n + i * out_step, where + i * step, 1);
    }
    return is_sound(sum);
}
#else
TB_FN int run_whole(const sizes *g, const span *s, const tap *list) {
    (void)g, (void)s, (void)list;
    return 0;
}
#endif
