// SPDX-License-Identifier: Apache-2.0
// pool_whole.h — windows of usual numbers of cells that are wholly inside the image
//
// Part of pool_spans.h. Rows of a window do not wait for each other. The largest of lanes of four bytes with places of
// one (TB_BITS) are chosen by bits, where the processor can: compilers make vectors of them, and places of four bytes.
// Comparisons are dear, hence NaNs are found by sums; their span is done again with care.
#if TB_BITS && TB_PLAIN && defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(__clang__)
typedef float numbers __attribute__((vector_size(VECTOR_BYTES)));
#if TB_NARROW
typedef int candidates __attribute__((vector_size(32)));  // a mask of 8 bits would go through other registers for bytes
#define COMPARED(x, y, how) __builtin_ia32_cmpps256_mask(x, y, how, -1)
#define CHOICE(x, y, of_y) __builtin_ia32_blendmps_256_mask(x, y, of_y)
#define PLACE(x, y, of_y) __builtin_ia32_blendmd_256_mask(x, y, of_y)
#else
typedef char candidates __attribute__((vector_size(16)));
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
    const unsigned short wins = careful ? COMPARED(x, best, 6) & COMPARED(best, best, 7) : COMPARED(x, best, 14);
    found->best = (vec)CHOICE(best, x, wins);
    found->where = PLACE(found->where, next.where, wins);
}

TB_FN leader candidate(vec x, TB_N number) {
    __asm__("" : "+v"(x));  // stays in a register, else compilers read it again for each use
    return (leader){x, (char)number + (candidates){0}};
}

TB_FN int is_sound(vec sum) {
    int sound = 1;
    for (int l = 0; l < LANES; ++l) sound &= sum[l] == sum[l];
    return sound;
}

TB_FN void publish(const sizes *g, const leader *found, TB_X *out, TB_I *places, int count, int m) {
    (void)count;
    finish(g, out, found->best, m);
    store_small(places, __builtin_convertvector(found->where, small), m);
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

// Pairs of vectors that lie apart, and by how much the next pair lies further on.
typedef struct {
    tb_i64 count, x_apart, out_apart, places_apart, x_step, out_step, places_step;
} pairs;

// Such windows of all lines from `at` on, `vectors` of each pair; the sum of their cells.
static __attribute__((noinline)) vec whole_pairs(const sizes *sizes_at, const span *s, const pairs *by, tb_i64 at,
                                                 const tap *list, TB_X *out, TB_I *places, int vectors) {
    const sizes known = *sizes_at, *const g = &known;  // stays in registers, since nobody has its address
    const tb_i64 apart = by->x_apart, across = s->column_step;
    vec sums[TOGETHER] = {{0}};
    for (tb_i64 l = 0; l < s->lines; ++l) {
        const TB_X *rows[ROWS];
        TB_X *to = out + l * s->out_line;
        TB_I *where = TB_OP == 0 ? places + l * s->places_line : 0;
        UNROLLED for (int r = 0; r < ROWS; ++r)
            rows[r] = (const TB_X *)s->x + at + l * s->x_line + list[r * TB_ACROSS].at;
        for (tb_i64 i = 0; i < by->count; ++i) {
            leader found[TOGETHER], row[TOGETHER];
            vec sum[TOGETHER];
            if (g->streams) fetch_ahead(s, rows[ROWS - 1] + (TB_ACROSS - 1) * across, apart);
            UNROLLED for (int r = 0; r < ROWS; ++r) {
                UNROLLED for (int d = 0; d < TB_ACROSS; ++d) {
                    for (int v = 0; v < TOGETHER; ++v) {
                        const leader cell = candidate(load(rows[r] + v * apart + d * across, LANES), r * TB_ACROSS + d);
                        sum[v] = d == 0 ? cell.best : sum[v] + cell.best;
                        if (d == 0) row[v] = cell;
                        else compete(&row[v], cell, 0);
                    }
                }
                for (int v = 0; v < TOGETHER; ++v) {
                    sums[v] += sum[v];
                    if (r == 0) found[v] = row[v];
                    else compete(&found[v], row[v], 0);
                }
                rows[r] += by->x_step;
            }
            for (int v = 0; v < vectors; ++v)
                publish(g, &found[v], to + v * by->out_apart, where + v * by->places_apart, TB_WHOLE, LANES);
            to += by->out_step;
            if (TB_OP == 0) where += by->places_step;
        }
    }
    return sums[0] + sums[1];
}

// All windows of a span of whole vectors. Returns whether that is valid.
TB_FN int run_whole(const sizes *g, const span *s, const tap *list) {
    vec sum = {0};
    for (tb_i64 n = 0; n < s->numbers; n += 2 * LANES) {
        TB_X *const out = (TB_X *)s->out + n;
        TB_I *const places = (TB_I *)s->places + (TB_OP == 0 ? n : 0);
        if (n + LANES < s->numbers) {
            const pairs by = {s->count, LANES, LANES, LANES, s->x_step, s->out_step, s->places_step};
            sum += whole_pairs(g, s, &by, n, list, out, places, 2);
            continue;
        }
        const pairs by = {s->count / 2, s->x_step, s->out_step, s->places_step, 2 * s->x_step, 2 * s->out_step,
                          2 * s->places_step};
        sum += whole_pairs(g, s, &by, n, list, out, places, 2);
        if (s->count % 2) {
            const pairs last = {1, 0, 0, 0, 0, 0, 0};
            const tb_i64 i = s->count - 1;
            sum += whole_pairs(g, s, &last, n + i * s->x_step, list, out + i * s->out_step, places + i * s->places_step, 1);
        }
    }
    return is_sound(sum);
}
#else
TB_FN int run_whole(const sizes *g, const span *s, const tap *list) {
    (void)g, (void)s, (void)list;
    return 0;
}
#endif
