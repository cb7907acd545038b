// SPDX-License-Identifier: Apache-2.0
// lut.c — the gradient of look-ups in a table: rows of errors added up by word
//
// Look-ups are sorted by word once (counting, which keeps their order); then each row of the table is written once, by
// one task, as the sum of its errors in the order of the look-ups. Tasks decide nothing but time.
//
// The host defines TB_X, TB_W and TB_S, the types of elements, of what they are read as and of sums, TB_I, that of
// words, TB_READ and TB_WRITE, which move blocks between TB_X and TB_W, TB_OUTPUT, the number of the result's pointer,
// and TB_BLOCK, the columns that are added up at a time.
#include "kernel.h"

#define AHEAD 4  // errors that are asked for before they are needed

typedef struct {
    tb_i64 count, words, length, pad, padded, group, alpha, beta, streams;
} sizes;

// Scratch: a word that is not in the table (0: none; else its place + 1) and its number, where the errors of each word
// end among the sorted ones, and their places.
typedef struct {
    tb_i64 wrong, word;
} status;

TB_FN tb_i64 lower(tb_i64 a, tb_i64 b) { return a < b ? a : b; }

// Pointers: errors, words, …, table, scratch. One task.
void lut_order(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
               tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const TB_I *const id = (const TB_I *)ptr[1];
    status *const found = (status *)ptr[TB_OUTPUT + 1];
    tb_i32 *const ends = (tb_i32 *)(found + 1), *const places = ends + g->words;
    (void)stride, (void)scalar, (void)begin, (void)end;
    found->wrong = 0;
    for (tb_i64 w = 0; w < g->words; ++w) ends[w] = 0;
    for (tb_i64 j = 0; j < g->count; ++j) {
        const tb_i64 w = (tb_i64)id[j];
        if (g->padded && w == g->pad) continue;
        if (w < 0 || w >= g->words) {
            found->wrong = j + 1;
            found->word = w;
            return;
        }
        ++ends[w];
    }
    tb_i32 total = 0;
    for (tb_i64 w = 0; w < g->words; ++w) {
        const tb_i32 count = ends[w];
        ends[w] = total;
        total += count;
    }
    for (tb_i64 j = 0; j < g->count; ++j) {
        const tb_i64 w = (tb_i64)id[j];
        if (!g->padded || w != g->pad) places[ends[w]++] = (tb_i32)j;
    }
}

// to = alpha sum + beta to, for m columns.
TB_FN void finish(const sizes *g, TB_X *to, const TB_S *sum, int m) {
    const TB_S alpha = (TB_S)tb_word_double(g->alpha), beta = (TB_S)tb_word_double(g->beta);
    TB_W out[TB_BLOCK] __attribute__((aligned(64))), buffer[TB_BLOCK];
    if (beta != 0) {
        const TB_W *const old = TB_READ(buffer, to, m);
        for (int i = 0; i < m; ++i) out[i] = (TB_W)(alpha * sum[i] + beta * old[i]);
    } else {
        for (int i = 0; i < m; ++i) out[i] = (TB_W)(alpha * sum[i]);
    }
    TB_WRITE(to, out, m, g->streams);
}

// The columns from `from` on of a word with `count` errors.
TB_FN void row(const sizes *g, const TB_X *errors, TB_X *to, const tb_i32 *place, int count, tb_i64 from, int m) {
    TB_S sum[TB_BLOCK] = {0};
    TB_W buffer[TB_BLOCK];
    for (int k = 0; k < count; ++k) {
        const TB_W *const e = TB_READ(buffer, errors + place[k] * g->length + from, m);
        if (k + AHEAD < count) {
            const char *const next = (const char *)(errors + place[k + AHEAD] * g->length + from);
            for (int b = 0; b < m * (int)sizeof(TB_X); b += 64) __builtin_prefetch(next + b);
        }
        for (int i = 0; i < m; ++i) sum[i] += (TB_S)e[i];
    }
    finish(g, to + from, sum, m);
}

// Tasks are groups of words.
void lut_bprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
               tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i32 *const ends = (const tb_i32 *)((status *)ptr[TB_OUTPUT + 1] + 1), *const places = ends + g->words;
    const tb_i64 last = lower(end * g->group, g->words);
    (void)stride, (void)scalar;
    for (tb_i64 w = begin * g->group; w < last; ++w) {
        const tb_i32 first = w ? ends[w - 1] : 0;
        TB_X *const to = (TB_X *)ptr[TB_OUTPUT] + w * g->length;
        for (tb_i64 from = 0; from < g->length; from += TB_BLOCK) {
            const int m = (int)lower(TB_BLOCK, g->length - from);
            row(g, (const TB_X *)ptr[0], to, places + first, ends[w] - first, from, m);
        }
    }
    tb_stream_end(g->streams);
}
