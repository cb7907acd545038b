// SPDX-License-Identifier: Apache-2.0
// take.c — the entries of an array at places along an axis: looking up rows
//
//     places  4 1 4 0     x  entry 0  a a a      result  line 0  e e e | b b b | e e e | a a a
//                            entry 1  b b b
//                            entry 4  e e e      of a task: some lines, and a part of the places
//
// One task checks the places; where one is out of range, nothing is written. Then rows are copied, the next ones asked
// for meanwhile: what limits it is memory, which reads a row from anywhere. Where a row is one element, places go along
// the result's axis. Tasks decide nothing but time.
//
// The host defines TB_X and TB_I, the types of elements, which are moved and not looked at, and of places; the result
// has no gaps.
#include "kernel.h"
#include "places.h"

#define AHEAD 8  // rows from the one that is copied to the one that is asked for
#define LINE 64

// `length` elements of a row lie `step` apart in x, entries `apart`; rows of the result are `along` apart. A task has
// `lot` lines, and one of `parts` of the places. The strides are (length, stride of the places, 0) of `picks` axes, and
// (length, stride in x, stride in the result) of `outer` axes. `asked` bytes of a row are asked for ahead.
typedef struct {
    tb_i64 count, entries, length, step, apart, along, lines, lot, parts, picks, outer, asked, streams;
} sizes;

void take_check(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    status *const found = (status *)ptr[3];
    const tb_i64 *const last = stride + 3 * (g->picks - 1);
    (void)scalar, (void)begin, (void)end;
    found->wrong = 0;
    for (tb_i64 k = 0; k < g->count; k += last[0]) {
        const TB_I *const from = (const TB_I *)ptr[1] + locate(stride, g->picks - 1, k / last[0]).first;
        tb_i64 wrong = 0;
        for (tb_i64 j = 0; j < last[0]; ++j) {
            const tb_i64 entry = entry_of(from[j * last[1]], g->entries);
            wrong |= (entry < 0) | (entry >= g->entries);
        }
        for (tb_i64 j = 0; wrong; ++j) {
            const tb_i64 entry = entry_of(from[j * last[1]], g->entries);
            if (entry >= 0 && entry < g->entries) continue;
            found->wrong = k + j + 1;
            found->entry = (tb_i64)from[j * last[1]];
            return;
        }
    }
}

// A row of bytes, a line of the cache at a time. The last line begins where it ends with the row. Past the cache go whole
// lines alone: where rows share lines, memory takes twice as long.
TB_FN void move(char *to, const char *from, tb_i64 bytes, tb_i64 streams) {
    const int past = streams && ((unsigned long)to & (LINE - 1)) == 0;
    char line[LINE] __attribute__((aligned(LINE)));
    if (bytes < LINE) {
        __builtin_memcpy(to, from, (unsigned long)bytes);
        return;
    }
    for (tb_i64 at = 0; at < bytes; at += LINE) {
        const tb_i64 here = at + LINE > bytes ? bytes - LINE : at;
        __builtin_memcpy(line, from + here, LINE);
        if (past) tb_past1(to + here, line);
        else __builtin_memcpy(to + here, line, LINE);
    }
}

TB_FN void copy_row(const sizes *g, TB_X *to, const TB_X *from) {
    if (g->step != 1) {
        for (tb_i64 j = 0; j < g->length; ++j) to[j] = from[j * g->step];
    } else {
        move((char *)to, (const char *)from, g->length * (tb_i64)sizeof(TB_X), g->streams);
    }
}

// `n` places, which lie `gap` apart, of a line.
TB_FN void copy_places(const sizes *g, const TB_X *x, TB_X *to, const TB_I *places, tb_i64 gap, tb_i64 n) {
    if (g->length == 1 && g->along == 1) {
        for (tb_i64 j = 0; j < n; ++j) to[j] = x[entry_of(places[j * gap], g->entries) * g->apart];
        return;
    }
    for (tb_i64 j = 0; j < n; ++j) {
        const TB_I later = places[(j + AHEAD < n ? j + AHEAD : n - 1) * gap];
        const char *const next = (const char *)(x + entry_of(later, g->entries) * g->apart);
        for (tb_i64 byte = 0; byte < g->asked; byte += LINE) __builtin_prefetch(next + byte);
        copy_row(g, to + j * g->along, x + entry_of(places[j * gap], g->entries) * g->apart);
    }
}

void take_copy(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
               tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 *const last = stride + 3 * (g->picks - 1), share = (g->count + g->parts - 1) / g->parts;
    (void)scalar;
    if (((const status *)ptr[3])->wrong) return;
    for (tb_i64 task = begin; task < end; ++task) {
        const tb_i64 first = task % g->parts * share, stop = first + share < g->count ? first + share : g->count;
        const tb_i64 line = task / g->parts * g->lot, behind = line + g->lot < g->lines ? line + g->lot : g->lines;
        for (tb_i64 l = line; l < behind; ++l) {
            const offsets o = locate(stride + 3 * g->picks, g->outer, l);
            for (tb_i64 k = first, n; k < stop; k += n) {
                n = last[0] - k % last[0] < stop - k ? last[0] - k % last[0] : stop - k;
                const tb_i64 from = locate(stride, g->picks - 1, k / last[0]).first + k % last[0] * last[1];
                TB_X *const to = (TB_X *)ptr[2] + o.second + k * g->along;
                copy_places(g, (const TB_X *)ptr[0] + o.first, to, (const TB_I *)ptr[1] + from, last[1], n);
            }
        }
    }
    tb_stream_end(g->streams);
}
