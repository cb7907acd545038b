// SPDX-License-Identifier: Apache-2.0
// cumsum.c — running sums and products along an axis, of floats in float64 and of integers in 64 bits
//
//     x   a b c d e f g h i   ->   a  a+b  a+b+c  ...      segments  a b c | d e f | g h i
//                                                          sums      s     | t     |
//                                                          begin at  0     | s     | s+t
//
// A line is what is added up. Lines that lie side by side go together, a strip of columns at a time, a running sum
// for each; a line by itself goes by vectors, whose lanes add up those before them. Where lines are few and long, a
// first launch leaves the sums of segments, so that each segment begins with what lies before it. Products of floats
// may leave their range where sums do not, so that each waits for the one before it, and TEAM lines go side by side.
//
// The host defines what block_vectors.h wants for the elements; TB_Y, the type of results, TB_V, what they are
// written from, and TB_PUT, which moves them; TB_S, in which TB_JOIN adds up (or multiplies, with TB_PRODUCTS) from
// TB_NONE on: a sum from -0, as that of one -0 is -0; TB_SCANS, whether lines by themselves go by vectors, which
// integers do not gain by; and TB_STRIP, the columns of a strip at most.
#include "block_vectors.h"
#include "places.h"

#define FEW 4       // vectors of columns that go one after the other
#define PARTS 64    // sums of a segment that go on side by side; numbers of a line that are moved at a time
#define TEAM 4      // lines whose products go side by side
#define SUM_LANES (TB_VECTOR / 8)
#define LOOSE(T) (sizeof(T) < 4 ? sizeof(T) : 4)

// For each lane: the same number; what is 1, 2 or 4 lanes before it, or else none; the last one.
#if SUM_LANES == 8
#define MANY(x) x, x, x, x, x, x, x, x
#define SHIFTED_1(none, v) __builtin_shufflevector(none, v, 0, 8, 9, 10, 11, 12, 13, 14)
#define SHIFTED_2(none, v) __builtin_shufflevector(none, v, 0, 1, 8, 9, 10, 11, 12, 13)
#define SHIFTED_4(none, v) __builtin_shufflevector(none, v, 0, 1, 2, 3, 8, 9, 10, 11)
#elif SUM_LANES == 4
#define MANY(x) x, x, x, x
#define SHIFTED_1(none, v) __builtin_shufflevector(none, v, 0, 4, 5, 6)
#define SHIFTED_2(none, v) __builtin_shufflevector(none, v, 0, 1, 4, 5)
#define SHIFTED_4(none, v) none
#else
#define MANY(x) x, x
#define SHIFTED_1(none, v) __builtin_shufflevector(none, v, 0, 2)
#define SHIFTED_2(none, v) none
#define SHIFTED_4(none, v) none
#endif
#define LAST(v) __builtin_shufflevector(v, v, MANY(SUM_LANES - 1))

typedef TB_S wide __attribute__((vector_size(LANES * sizeof(TB_S)), aligned(8)));
typedef TB_V results __attribute__((vector_size(LANES * sizeof(TB_V)), aligned(LOOSE(TB_V)), may_alias));
typedef TB_S sums __attribute__((vector_size(TB_VECTOR), aligned(8)));
typedef TB_W few __attribute__((vector_size(SUM_LANES * sizeof(TB_W)), aligned(LOOSE(TB_W)), may_alias));
typedef TB_V few_results __attribute__((vector_size(SUM_LANES * sizeof(TB_V)), aligned(LOOSE(TB_V)), may_alias));

// Lines of `length` elements, which lie `step` apart in x and `out_step` in the result. A task has `lot` lines, or where
// `columns` of them lie side by side (`x_next`, `out_next` apart), a strip of these; and one of `segments` segments. The
// strides are (length, stride in x, stride in the result) of `outer` axes.
typedef struct {
    tb_i64 length, step, out_step, lines, lot, columns, x_next, out_next, parts, segment, segments, outer;
} sizes;

// What a task has: lines or strips from `first` to `last`, elements from `from` to `to` of each, of segment `number`.
typedef struct {
    tb_i64 number, first, last, from, to;
} share;

TB_FN share share_of(const sizes *g, tb_i64 task, tb_i64 of) {
    const tb_i64 number = task / g->parts, first = task % g->parts * g->lot;
    return (share){number, first, lower(first + g->lot, of), number * g->segment,
                   lower((number + 1) * g->segment, g->length)};
}

// m elements that lie `step` apart, as numbers, in `buffer` unless they lie side by side as such.
TB_FN const TB_W *numbers(TB_W *buffer, const TB_X *x, tb_i64 step, int m) {
    if (step == 1) return TB_READ(buffer, x, m);
    for (int i = 0; i < m; ++i) {
        TB_W one;
        buffer[i] = *TB_READ(&one, x + i * step, 1);
    }
    return buffer;
}

// m numbers to elements that lie `step` apart.
TB_FN void put(TB_Y *out, tb_i64 step, const TB_V *from, int m) {
    if (step == 1) {
        TB_PUT(out, from, m, 0);
        return;
    }
    for (int i = 0; i < m; ++i) TB_PUT(out + i * step, from + i, 1, 0);
}

// The first m of a vector of results.
TB_FN void put_vector(TB_Y *out, results v, int m) {
    TB_V from[LANES];
    if (m == LANES && sizeof(TB_Y) == sizeof(TB_V)) {
        *(results *)out = v;
        return;
    }
    *(results *)from = v;
    if (sizeof(TB_Y) == sizeof(TB_V)) tb_unpad(out, from, m * (int)sizeof(TB_V), sizeof from);
    else TB_PUT(out, from, m, 0);
}

// A line by itself ----------------------------------------------------------------------------------------------------

TB_FN TB_S sum_of(const TB_X *x, tb_i64 step, tb_i64 n) {
    TB_S part[PARTS], sum = TB_NONE;
    for (int i = 0; i < PARTS; ++i) part[i] = TB_NONE;
    for (tb_i64 k = 0; k < n; k += PARTS) {
        TB_W buffer[PARTS];
        const int m = (int)lower(PARTS, n - k);
        const TB_W *const from = numbers(buffer, x + k * step, step, m);
        if (m == PARTS) for (int i = 0; i < PARTS; ++i) part[i] = TB_JOIN(part[i], (TB_S)from[i]);
        else for (int i = 0; i < m; ++i) part[i] = TB_JOIN(part[i], (TB_S)from[i]);
    }
    for (int i = 0; i < PARTS; ++i) sum = TB_JOIN(sum, part[i]);
    return sum;
}

// A vector's running sums: each lane adds those before it, from 1, 2 and 4 lanes away.
TB_FN sums run_vector(sums v) {
    const sums none = {MANY(TB_NONE)};
    v = TB_JOIN(SHIFTED_1(none, v), v);
    v = TB_JOIN(SHIFTED_2(none, v), v);
    v = TB_JOIN(SHIFTED_4(none, v), v);
    return v;
}

// Running sums of n numbers from `sum` on; the last one. A vector waits for the sum of those before it alone.
TB_FN TB_S run(const TB_W *from, TB_V *to, tb_i64 n, TB_S sum) {
    tb_i64 k = 0;
    if (n >= SUM_LANES && TB_SCANS) {
        sums before = {MANY(sum)};
        for (; k + SUM_LANES <= n; k += SUM_LANES) {
            const sums v = run_vector(__builtin_convertvector(*(const few *)(from + k), sums));
            *(few_results *)(to + k) = __builtin_convertvector(TB_JOIN(before, v), few_results);
            before = TB_JOIN(before, LAST(v));
        }
        sum = before[0];
    }
    for (; k < n; ++k) to[k] = (TB_V)(sum = TB_JOIN(sum, (TB_S)from[k]));
    return sum;
}

TB_FN void run_line(const TB_X *x, tb_i64 step, TB_Y *out, tb_i64 out_step, tb_i64 n, TB_S sum) {
    if (sizeof(TB_X) == sizeof(TB_W) && sizeof(TB_Y) == sizeof(TB_V) && step == 1 && out_step == 1) {
        run((const TB_W *)x, (TB_V *)out, n, sum);
        return;
    }
    for (tb_i64 k = 0; k < n; k += PARTS) {
        TB_W buffer[PARTS];
        TB_V to[PARTS];
        const int m = (int)lower(PARTS, n - k);
        sum = run(numbers(buffer, x + k * step, step, m), to, m, sum);
        put(out + k * out_step, out_step, to, m);
    }
}

// TEAM lines from `first` and `out` on, none of which waits for the others.
TB_FN void run_team(const TB_X *first, tb_i64 next, tb_i64 step, TB_Y *out, tb_i64 out_next, tb_i64 out_step,
                    tb_i64 n) {
    TB_S sum[TEAM];
    for (int l = 0; l < TEAM; ++l) sum[l] = TB_NONE;
    for (tb_i64 k = 0; k < n; k += PARTS) {
        TB_W buffer[TEAM][PARTS];
        TB_V to[TEAM][PARTS];
        const TB_W *from[TEAM];
        const int m = (int)lower(PARTS, n - k);
        for (int l = 0; l < TEAM; ++l) from[l] = numbers(buffer[l], first + l * next + k * step, step, m);
        for (int i = 0; i < m; ++i)
            for (int l = 0; l < TEAM; ++l) to[l][i] = (TB_V)(sum[l] = TB_JOIN(sum[l], (TB_S)from[l][i]));
        for (int l = 0; l < TEAM; ++l) put(out + l * out_next + k * out_step, out_step, to[l], m);
    }
}

void cumsum_line_sums(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                      tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    TB_S *const found = (TB_S *)ptr[2];
    (void)scalar;
    for (tb_i64 task = begin; task < end; ++task) {
        const share s = share_of(g, task, g->lines);
        for (tb_i64 line = s.first; line < s.last; ++line) {
            const TB_X *const x = (const TB_X *)ptr[0] + locate(stride, g->outer, line).first + s.from * g->step;
            found[s.number * g->lines + line] = sum_of(x, g->step, s.to - s.from);
        }
    }
}

void cumsum_lines(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                  tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 *const last = stride + 3 * (g->outer - 1);
    const tb_i64 length = last[0], next = last[1], out_next = last[2], step = g->step, out_step = g->out_step;
    const TB_S *const found = g->segments > 1 ? (const TB_S *)ptr[2] : 0;
    (void)scalar;
    for (tb_i64 task = begin; task < end; ++task) {
        const share s = share_of(g, task, g->lines);
        for (tb_i64 line = s.first, n; line < s.last; line += n) {
            const offsets o = locate(stride, g->outer, line);
            const TB_X *x = (const TB_X *)ptr[0] + o.first + s.from * step;
            TB_Y *out = (TB_Y *)ptr[1] + o.second + s.from * out_step;
            n = lower(length - line % length, s.last - line);  // lines that lie evenly
            tb_i64 l = 0;
            for (; TB_PRODUCTS && l + TEAM <= n; l += TEAM, x += TEAM * next, out += TEAM * out_next)
                run_team(x, next, step, out, out_next, out_step, g->length);
            for (; l < n; ++l, x += next, out += out_next) {
                TB_S sum = TB_NONE;
                for (tb_i64 k = 0; k < s.number; ++k) sum = TB_JOIN(sum, found[k * g->lines + line + l]);
                run_line(x, step, out, out_step, s.to - s.from, sum);
            }
        }
    }
}

// Lines side by side --------------------------------------------------------------------------------------------------

// At most a vector of columns: their sums stay in registers. Where rows follow each other without gaps, whole vectors are
// read and stored; what that spoils of a row's beginning belongs to columns that are stored later.
TB_FN void run_few(const sizes *g, const TB_X *x, TB_Y *out, tb_i64 rows, TB_S *sum, int m) {
    const int even = g->columns <= TB_STRIP && g->step == g->columns && (!out || g->out_step == g->columns);
    const tb_i64 whole = m == LANES ? rows : even ? rows - LANES : 0;
    TB_S all[LANES] = {0};
    for (int j = 0; j < m; ++j) all[j] = sum[j];
    wide v = *(const wide *)all;
    for (tb_i64 row = 0; row < rows; ++row) {
        const int n = row < whole ? LANES : m;
        v = TB_JOIN(v, __builtin_convertvector(load(x + row * g->step, n), wide));
        if (out) put_vector(out + row * g->out_step, __builtin_convertvector(v, results), n);
    }
    *(wide *)all = v;
    for (int j = 0; j < m; ++j) sum[j] = all[j];
}

// One strip: rows added to the running sums of m columns, which are stored where there is a result.
TB_FN void run_strip(const sizes *g, const TB_X *x, TB_Y *out, tb_i64 rows, TB_S *sum, int m) {
    if (m <= FEW * LANES && g->x_next == 1) {
        for (int j = (m - 1) / LANES * LANES; j >= 0; j -= LANES)
            run_few(g, x + j, out ? out + j : 0, rows, sum + j, m - j < LANES ? m - j : LANES);
        return;
    }
    for (tb_i64 row = 0; row < rows; ++row, x += g->step) {
        TB_W buffer[TB_STRIP];
        TB_V to[TB_STRIP];
        const TB_W *const from = numbers(buffer, x, g->x_next, m);
        if (!out) {
            for (int j = 0; j < m; ++j) sum[j] = TB_JOIN(sum[j], (TB_S)from[j]);
            continue;
        }
        for (int j = 0; j < m; ++j) to[j] = (TB_V)(sum[j] = TB_JOIN(sum[j], (TB_S)from[j]));
        put(out + row * g->out_step, g->out_next, to, m);
    }
}

TB_FN void run_strips(void *const *ptr, const sizes *g, const tb_i64 *stride, tb_i64 begin, tb_i64 end, int stores) {
    TB_S *const found = g->segments > 1 ? (TB_S *)ptr[2] : 0;
    const tb_i64 strips = (g->columns + TB_STRIP - 1) / TB_STRIP, lines = g->lines * g->columns;
    for (tb_i64 task = begin; task < end; ++task) {
        const share s = share_of(g, task, g->lines * strips);
        for (tb_i64 k = s.first; k < s.last; ++k) {
            const tb_i64 column = k % strips * TB_STRIP, line = k / strips * g->columns + column;
            const offsets o = locate(stride, g->outer, k / strips);
            const int m = (int)lower(TB_STRIP, g->columns - column);
            const TB_X *const x = (const TB_X *)ptr[0] + o.first + s.from * g->step + column * g->x_next;
            TB_Y *const out = (TB_Y *)ptr[1] + o.second + s.from * g->out_step + column * g->out_next;
            TB_S sum[TB_STRIP];
            for (int j = 0; j < m; ++j) sum[j] = TB_NONE;
            for (tb_i64 before = 0; stores && before < s.number; ++before)
                for (int j = 0; j < m; ++j) sum[j] = TB_JOIN(sum[j], found[before * lines + line + j]);
            run_strip(g, x, stores ? out : 0, s.to - s.from, sum, m);
            if (!stores) __builtin_memcpy(found + s.number * lines + line, sum, (unsigned long)m * sizeof *sum);
        }
    }
}

void cumsum_column_sums(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                        tb_i64 end) {
    (void)scalar;
    run_strips(ptr, (const sizes *)size, stride, begin, end, 0);
}

void cumsum_columns(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                    tb_i64 end) {
    (void)scalar;
    run_strips(ptr, (const sizes *)size, stride, begin, end, 1);
}
