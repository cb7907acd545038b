// SPDX-License-Identifier: Apache-2.0
// put.c — zeros with the elements of an array added at places along an axis: the gradient of looking up rows
//
//     x       o o o o o o      places  4 1 4 0 1 4        begin  0 1 3 3 3
//             a b c d e f                                 at     3 | 1 4 | | | 0 2 5
//
//     result  line by line, entry by entry: entry 1 = x[1] + x[4] in the order of the places, entry 2 = 0, …
//
// One task sorts the places by entry (stable, by counting); where one is out of range, nothing is written. Then each
// task makes the entries of a group, whole: sums stay in registers, zeros of entries that follow each other are written
// as one. Groups are cut where as many entries and places lie in each, so that an entry with most of the places has a
// task of its own, of which long rows give several. What limits it is memory: each element of x is read once, each of
// the result written once. Tasks decide nothing but time.
//
// The host defines what block_vectors.h wants for the elements of x, and TB_S and TB_I, the types of sums and of
// places; the result has elements of type TB_W, without gaps.
#include "block_vectors.h"
#include "places.h"
#include "zeros.h"

#define BLOCK 4  // vectors of a row whose sums are in registers at the same time

typedef TB_S wide __attribute__((vector_size(LANES * sizeof(TB_S))));

// `length` elements of a row lie `step` apart in x; entries of the result `along`. A task has `lot` lines, `columns`
// columns (of which there are `parts`) and one of `groups` groups of entries. The strides are (length, stride in x,
// stride of the places) of `picks` axes, then (length, stride in x, stride in the result) of `outer` axes.
typedef struct {
    tb_i64 count, entries, length, step, along, lines, lot, groups, parts, columns, picks, outer, streams;
} sizes;

// Scratch: what is found of the places; then where those of each entry begin, and where in x their rows do, by entry.
typedef struct {
    status *found;
    tb_i64 *begin, *at;
} scratch;

TB_FN scratch parts(const sizes *g, void *memory) {
    scratch s = {(status *)memory, (tb_i64 *)((status *)memory + 1), 0};
    s.at = s.begin + g->entries + 2;
    return s;
}

// One task. `begin` counts two entries further on first, and ends where it belongs.
void put_sort(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
              tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const TB_I *const places = (const TB_I *)ptr[1];
    const scratch s = parts(g, ptr[3]);
    const tb_i64 *const last = stride + 3 * (g->picks - 1);
    (void)scalar, (void)begin, (void)end;
    s.found->wrong = 0;
    __builtin_memset(s.begin, 0, (unsigned long)(g->entries + 2) * sizeof *s.begin);
    for (tb_i64 k = 0; k < g->count; k += last[0]) {
        const TB_I *const from = places + locate(stride, g->picks - 1, k / last[0]).second;
        for (tb_i64 j = 0; j < last[0]; ++j) {
            const tb_i64 entry = entry_of(from[j * last[2]], g->entries);
            if (entry < 0 || entry >= g->entries) {
                s.found->wrong = k + j + 1;
                s.found->entry = (tb_i64)from[j * last[2]];
                return;
            }
            ++s.begin[entry + 2];
        }
    }
    for (tb_i64 w = 0; w < g->entries; ++w) s.begin[w + 2] += s.begin[w + 1];
    for (tb_i64 k = 0; k < g->count; k += last[0]) {
        const offsets o = locate(stride, g->picks - 1, k / last[0]);
        for (tb_i64 j = 0; j < last[0]; ++j) {
            const tb_i64 entry = entry_of(places[o.second + j * last[2]], g->entries);
            s.at[s.begin[entry + 1]++] = o.first + j * last[1];
        }
    }
}

// `n` vectors of columns of a row, the last one of m.
#define ADD(n, m) \
    wide sums[n] = {{0}}; \
    for (tb_i64 k = 0; k < count; ++k) { \
        for (int i = 0; i < n; ++i) sums[i] += __builtin_convertvector(load(x + at[k] + column + i * LANES, m), wide); \
    } \
    for (int i = 0; i < n; ++i) store_wide(to + column + i * LANES, __builtin_convertvector(sums[i], vec), m, streams);

// The columns from `column` to `last` of a row: rows of x from `at` on, `count` of them, added up.
TB_FN void sum_row(const sizes *g, const TB_X *x, TB_W *to, const tb_i64 *at, tb_i64 count, tb_i64 column, tb_i64 last) {
    const tb_i64 streams = g->streams;
    if (g->step != 1 || g->length < LANES) {
        for (; column < last; ++column) {
            TB_S sum = 0;
            for (tb_i64 k = 0; k < count; ++k) {
                TB_W buffer[LANES];
                sum += *TB_READ(buffer, x + at[k] + column * g->step, 1);
            }
            to[column] = (TB_W)sum;
        }
        return;
    }
    for (; column + BLOCK * LANES <= last; column += BLOCK * LANES) {
        ADD(BLOCK, LANES)
    }
    for (; column < last; column += LANES) {
        const int m = (int)lower(LANES, last - column);
        ADD(1, m)
    }
}

// The first entry of a group.
TB_FN tb_i64 first_of(const sizes *g, const tb_i64 *begin, tb_i64 group) {
    const tb_i64 share = (tb_i64)((double)(g->entries + g->count) / (double)g->groups * (double)group);
    tb_i64 low = 0, high = g->entries;
    if (group >= g->groups) return g->entries;
    while (low < high) {
        const tb_i64 middle = low + (high - low) / 2;
        if (begin[middle] + middle < share) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Part `part` of the columns of the entries from w to `last`, and in the first part the entries without places.
TB_FN void put_entries(const sizes *g, const TB_X *x, TB_W *out, const scratch *s, tb_i64 w, tb_i64 last, tb_i64 part) {
    const tb_i64 column = part * g->columns, end = lower(g->length, column + g->columns);
    for (tb_i64 to; w < last; w = to) {
        const tb_i64 from = s->begin[w];
        to = w + 1;
        if (s->begin[to] > from) {
            sum_row(g, x, out + w * g->along, s->at + from, s->begin[to] - from, column, end);
            continue;
        }
        while (g->along == g->length && to < last && s->begin[to + 1] == from) ++to;
        if (part == 0) write_zeros(out + w * g->along, (to - w) * g->length * (tb_i64)sizeof(TB_W), g->streams);
    }
}

void put_sum(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
             tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const scratch s = parts(g, ptr[3]);
    (void)scalar;
    if (s.found->wrong) return;
    for (tb_i64 task = begin; task < end; ++task) {
        const tb_i64 group = task / g->parts % g->groups, line = task / g->parts / g->groups * g->lot;
        const tb_i64 w = first_of(g, s.begin, group), last = first_of(g, s.begin, group + 1);
        for (tb_i64 l = line; l < lower(line + g->lot, g->lines); ++l) {
            const offsets o = locate(stride + 3 * g->picks, g->outer, l);
            put_entries(g, (const TB_X *)ptr[0] + o.first, (TB_W *)ptr[2] + o.second, &s, w, last, task % g->parts);
        }
    }
    tb_stream_end(g->streams);
}
