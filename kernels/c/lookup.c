// SPDX-License-Identifier: Apache-2.0
// lookup.c — the gradient of look-ups in a table: errors added up by word
//
// Words that occur are numbered once; where one is not in the table, nothing is written. Then a task takes a vector of
// columns through all look-ups, in order: squares of errors, whose neighbours belong to neighbouring look-ups, are turned
// in registers, and each look-up's vector is added to its word's sum. The sums of the words that occur stay in cache
// however large the table is; other tasks write the rows of the other words, whole. Tasks decide nothing but time.
//
// The host defines what block_vectors.h wants, TB_S and TB_I, the types of sums and of words, and TB_OUTPUT, the number
// of the result's pointer.
#include "block_vectors.h"
#include "zeros.h"

#define AHEAD 16  // words whose rows are asked for before they are written

typedef TB_S wide __attribute__((vector_size(LANES * sizeof(TB_S))));

typedef struct {
    tb_i64 count, words, length, stride, pad, padded, group, parts, vectors, alpha, beta, streams;
} sizes;

// Scratch: a look-up of a word that is not in the table (0: none; else its place + 1) and that word, how many words
// occur; then the number of each word (-1: does not occur), the words that occur, the number of each look-up (of one
// that is skipped: as many as occur), and the sums of each vector of columns.
typedef struct {
    tb_i64 wrong, word, occur, unused[5];
} status;

typedef struct {
    status *found;
    tb_i32 *number, *word, *place;
    wide *sums;
} scratch;

TB_FN scratch parts(const sizes *g, void *memory) {
    scratch s = {(status *)memory, (tb_i32 *)((status *)memory + 1), 0, 0, 0};
    s.word = s.number + g->words;
    s.place = s.word + lower(g->words, g->count);
    s.sums = (wide *)(((unsigned long)(s.place + g->count) + 127) & ~127ul);
    return s;
}

// One task.
void lut_number(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const TB_I *const id = (const TB_I *)ptr[1];
    const scratch s = parts(g, ptr[TB_OUTPUT + 1]);
    (void)stride, (void)scalar, (void)begin, (void)end;
    s.found->wrong = 0;
    for (tb_i64 w = 0; w < g->words; ++w) s.number[w] = -1;
    for (tb_i64 j = 0; j < g->count; ++j) {
        const tb_i64 w = (tb_i64)id[j];
        if (g->padded && w == g->pad) continue;
        if (w < 0 || w >= g->words) {
            s.found->wrong = j + 1;
            s.found->word = w;
            return;
        }
        s.number[w] = 0;
    }
    tb_i32 occur = 0;
    for (tb_i64 w = 0; w < g->words; ++w) {
        if (s.number[w] < 0) continue;
        s.word[occur] = (tb_i32)w;
        s.number[w] = occur++;
    }
    s.found->occur = occur;
    for (tb_i64 j = 0; j < g->count; ++j) {
        s.place[j] = g->padded && (tb_i64)id[j] == g->pad ? occur : s.number[(tb_i64)id[j]];
    }
}

// to = alpha sum + beta to, for m columns. Without beta the old contents are not read.
TB_FN void finish(const sizes *g, TB_X *to, wide sum, int m) {
    const TB_S alpha = (TB_S)tb_word_double(g->alpha), beta = (TB_S)tb_word_double(g->beta);
    sum *= alpha;
    if (beta != 0) sum += beta * __builtin_convertvector(load(to, m), wide);
    store(to, __builtin_convertvector(sum, vec), m, g->streams);
}

// Asks for the lines of a vector before it is written, where it does not go past the cache: rows of words lie anywhere.
TB_FN void fetch(const sizes *g, const TB_X *to) {
    if (g->streams && ((unsigned long)to & 63) == 0) return;
    __builtin_prefetch(to, 1);
    __builtin_prefetch((const char *)to + 63, 1);
}

// The look-ups from `first` on, `count` of them, added to the sums of columns from `column` on.
TB_FN void add(const sizes *g, const TB_X *errors, const tb_i32 *place, wide *sums, tb_i64 column, tb_i64 first,
               int count) {
    vec v[LANES];
    for (int i = 0; i < LANES; ++i) {
        const TB_X *const x = errors + lower(column + i, g->length - 1) * g->stride + first;
        __builtin_prefetch((const char *)x + 1024);  // many rows at once are more than processors follow
        v[i] = load(x, count);
    }
    TB_TURN(vec, v)
    for (int j = 0; j < count; ++j) sums[place[first + j]] += __builtin_convertvector(v[j], wide);
}

// The columns from `column` on: all look-ups, then the words that occur.
TB_FN void sum_columns(const sizes *g, const TB_X *errors, TB_X *out, const scratch *s, wide *sums, tb_i64 column) {
    const int m = (int)lower(LANES, g->length - column), cut = !g->streams || g->length * (tb_i64)sizeof(TB_X) % 64;
    tb_i64 j = 0;
    for (tb_i64 k = 0; k <= s->found->occur; ++k) sums[k] = (wide){0};
    for (; j + LANES <= g->count; j += LANES) add(g, errors, s->place, sums, column, j, LANES);
    if (j < g->count) add(g, errors, s->place, sums, column, j, (int)(g->count - j));
    for (tb_i64 k = 0; k < s->found->occur; ++k) {
        if (cut) fetch(g, out + s->word[lower(k + AHEAD, s->found->occur - 1)] * g->length + column);
        finish(g, out + s->word[k] * g->length + column, sums[k], m);
    }
}

// `vectors` vectors of columns, one after the other: part number `part`.
TB_FN void add_part(const sizes *g, const TB_X *errors, TB_X *out, const scratch *s, tb_i64 part) {
    wide *const sums = s->sums + part * (lower(g->words, g->count) + 1);
    const tb_i64 last = lower((part + 1) * g->vectors * LANES, g->length);
    for (tb_i64 column = part * g->vectors * LANES; column < last; column += LANES) {
        sum_columns(g, errors, out, s, sums, column);
    }
}

// beta to, for a row.
TB_FN void scale_row(const sizes *g, TB_X *to) {
    for (tb_i64 column = 0; column < g->length; column += LANES) {
        finish(g, to + column, (wide){0}, (int)lower(LANES, g->length - column));
    }
}

// The rows of words that do not occur, of a group of words; those that follow each other are written as one.
TB_FN void write_rest(const sizes *g, TB_X *out, const scratch *s, tb_i64 group) {
    const tb_i64 last = lower((group + 1) * g->group, g->words);
    for (tb_i64 w = group * g->group, to; w < last; w = to + 1) {
        for (to = w; to < last && s->number[to] < 0; ++to) {
            if (tb_word_double(g->beta) != 0) scale_row(g, out + to * g->length);
        }
        if (tb_word_double(g->beta) == 0) {
            write_zeros(out + w * g->length, (to - w) * g->length * (tb_i64)sizeof(TB_X), g->streams);
        }
    }
}

// Tasks are the parts of columns, then the groups of words: whoever is done with one takes of the other.
void lut_sum(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
             tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const scratch s = parts(g, ptr[TB_OUTPUT + 1]);
    TB_X *const out = (TB_X *)ptr[TB_OUTPUT];
    (void)stride, (void)scalar;
    if (s.found->wrong) return;
    for (tb_i64 task = begin; task < end; ++task) {
        if (task < g->parts) add_part(g, (const TB_X *)ptr[0], out, &s, task);
        else write_rest(g, out, &s, task - g->parts);
    }
    tb_stream_end(g->streams);
}
