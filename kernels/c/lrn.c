// SPDX-License-Identifier: Apache-2.0
// lrn.c — response normalisation across the maps of images (maps, pixels and images as one axis), and the way back
//
// A task is a strip of neighbouring pixels and images, taken through all maps: what the maps around contribute stays in
// the cache. Sums go up the maps in order. The host defines what block_vectors.h wants, TB_LOG2 and TB_EXP2 in TB_W,
// TB_OUTPUT, the number of the first result's pointer, TB_STRIP and TB_MAPS, the longest strip and window (strip times
// window is at most 8 TB_STRIP, or the strip is 16 or less), TB_WHOLE, this window if it is one of the usual, which get
// loops of their own, else 0, TB_PLAIN, whether alpha is 1 and beta 0, TB_QUARTERS, the quarters that the power is, up to 4,
// in float32, else 0, and TB_BACK, which of the two ways is compiled.
#include "block_vectors.h"

typedef struct {
    tb_i64 maps, length, window, strip, alpha, beta, scale, power, streams;
} sizes;

// Rows of the strip lie a little further apart than a power of two, which would have them compete for the cache.
#define PITCH(strip) ((strip) + 16)
#define ROWS (TB_STRIP * 9 + TB_MAPS * 32)

// m elements as numbers to compute with; behind them there is room for a whole vector.
TB_FN const TB_W *numbers(TB_W *buffer, const TB_X *x, int m) {
    const TB_W *const from = TB_READ(buffer, x, m);
    if (from == buffer || m % LANES == 0) return from;
    for (int i = 0; i < m; ++i) buffer[i] = from[i];
    return buffer;
}

#define ABREAST 4  // vectors whose powers are taken together, step by step: each step waits for the one before
#define EACH(v) _Pragma("GCC unroll 4") for (int v = 0; v < vectors; ++v)

#if TB_QUARTERS
TB_FN vec fused(vec x, vec y, vec z) {
    for (int k = 0; k < LANES; ++k) x[k] = TB_FMA_F32(x[k], y[k], z[k]);
    return x;
}

// Whether a number is one that the steps do not hold for: infinity, NaN, negative or denormal, which counts as 0.
TB_FN int has_ends(const vec *d, int vectors) {
#if defined(__AVX512DQ__) && !defined(__clang__)
    typedef float numbers __attribute__((vector_size(64)));
    unsigned short found = 0;
    EACH(v) found |= __builtin_ia32_fpclassps512_mask((numbers)d[v], 0xFF, 0xFFFF);
    return found != 0;
#else
    mask odd = {0};
    int bits = 0;
    EACH(v) odd |= ((mask)d[v] - 0x800000) | ((mask)d[v] + 0x800000);
    for (int k = 0; k < LANES; ++k) bits |= odd[k];
    return bits < 0;
#endif
}

TB_FN void lower_ends(vec *to, const vec *d, int vectors) {
    EACH(v) {
        const mask none = d[v] < 0x1p-126f, all = d[v] == TB_INF_F32;
        const mask ends = (mask)(TB_INF_F32 + (vec){0}) & none;
        to[v] = (vec)((((mask)to[v] & ~(none | all)) | ends) | (d[v] < 0));
    }
}

// d^-power for a power of some quarters, by a root that is guessed in integers, good to 1/32: some units in the last place.
// With r for 1 - d root^4, at most 1/8, what is left is (1 - r)^-power: a polynomial of least error.
#define TERMS (TB_QUARTERS == 4 ? 6 : 5)
TB_FN void lower_all(vec *to, const vec *d, TB_W power, int vectors) {
    static const TB_W terms[4][6] = {
        {0.25000002f, 0.15624277f, 0.11717379f, 0.096739736f, 0.082696321f},
        {0.50000005f, 0.37497694f, 0.3124629f, 0.2782997f, 0.25148388f},
        {0.75000006f, 0.65619748f, 0.60149298f, 0.57504117f, 0.54751527f},
        {1.0000004f, 1.0000004f, 0.99979138f, 0.9997862f, 1.0272049f, 1.027494f},
    };
    const TB_W *const term = terms[TB_QUARTERS - 1];
    const vec one = 1 + (vec){0};
    vec root[ABREAST], square[ABREAST], rest[ABREAST], sum[ABREAST];
    (void)power;
    EACH(v) root[v] = (vec)(0x4F581800 - ((mask)d[v] >> 2));
    EACH(v) square[v] = root[v] * root[v];
    EACH(v) to[v] = square[v] * square[v];
    EACH(v) rest[v] = fused(-d[v], to[v], one);
    if (TB_QUARTERS == 1) EACH(v) to[v] = root[v];
    if (TB_QUARTERS == 2) EACH(v) to[v] = square[v];
    if (TB_QUARTERS == 3) EACH(v) to[v] = square[v] * root[v];
    EACH(v) sum[v] = term[TERMS - 1] + (vec){0};
    _Pragma("GCC unroll 5") for (int t = TERMS - 2; t >= 0; --t) EACH(v) sum[v] = fused(sum[v], rest[v], term[t] + (vec){0});
    EACH(v) rest[v] *= to[v];
    EACH(v) to[v] = fused(rest[v], sum[v], to[v]);
    if (has_ends(d, vectors)) lower_ends(to, d, vectors);
}
#else
// d^-power. denom is seldom below 1 and seldom large: a few roundings more than the general power, in half the time.
TB_FN void lower_all(vec *to, const vec *d, TB_W power, int vectors) {
    for (int v = 0; v < vectors; ++v) {
        TB_W x[LANES];
        *(loose *)x = d[v];
        for (int i = 0; i < LANES; ++i) x[i] = TB_EXP2(-power * TB_LOG2(x[i]));
        to[v] = *(const loose *)x;
    }
}
#endif

typedef struct {
    const sizes *g;
    TB_W alpha, beta, scale, power;
    tb_i64 streams;
} norm;

TB_FN norm norm_of(const sizes *g) {
    return (norm){g, (TB_W)tb_word_double(g->alpha), (TB_W)tb_word_double(g->beta), (TB_W)tb_word_double(g->scale),
                  (TB_W)tb_word_double(g->power), g->streams};
}

// The same with stores of one kind: a loop for each has no branch at every store.
TB_FN norm streaming(const norm *p, tb_i64 streams) {
    norm own = *p;
    own.streams = streams;
    return own;
}

// to = alpha v + beta to, for the first m numbers. Without beta the old contents are not read.
TB_FN void finish(const norm *p, TB_X *to, vec v, int m) {
#if !TB_PLAIN
    v *= p->alpha;
    if (p->beta != 0) v += p->beta * load(to, m);
#endif
    store(to, v, m, p->streams);
}

// The rows of maps c - J / 2 to c + J / 2, in order; row `map` lies at map % J. In loops of the usual windows, a row of
// zeros behind all stands for maps beyond the edges.
typedef struct {
    const TB_W *rows[TB_WHOLE ? TB_WHOLE : TB_MAPS];
    int count;
} around;

TB_FN void find_around(around *found, const TB_W *rows, const sizes *g, tb_i64 c) {
    const tb_i64 half = g->window / 2;
    found->count = 0;
    for (tb_i64 map = c - half; map <= c + half; ++map) {
        const int inside = map >= 0 && map < g->maps;
        if (TB_WHOLE || inside) found->rows[found->count++] = rows + (inside ? map % g->window : TB_WHOLE) * PITCH(g->strip);
    }
}

TB_FN void clear_beyond(TB_W *rows, const sizes *g) {
    for (tb_i64 i = 0; TB_WHOLE && i < PITCH(g->strip); ++i) rows[TB_WHOLE * PITCH(g->strip) + i] = 0;
}

TB_FN vec sum_of(const around *near, int i) {
    vec total = *(const loose *)(near->rows[0] + i);
    _Pragma("GCC unroll 5") for (int k = 1; k < (TB_WHOLE ? TB_WHOLE : near->count); ++k)
        total += *(const loose *)(near->rows[k] + i);
    return total;
}

// What a map adds to those around it: from its inputs or, on the way back, outputs, errors and sums, to its row.
typedef struct {
    const TB_W *x, *error, *denom;
    TB_W *row;
} part;

// Some vectors of a row, of m numbers each, from i on.
TB_FN void add_vectors(const part *next, int i, int vectors) {
    EACH(v) {
        const int at = i + v * LANES;
        const vec x = *(const loose *)(next->x + at);
#if TB_BACK
        *(loose *)(next->row + at) = x * *(const loose *)(next->error + at) / *(const loose *)(next->denom + at);
#else
        *(loose *)(next->row + at) = x * x;
#endif
    }
}

TB_FN void add_row(const part *next, int m) {
    for (int i = 0; i < m; i += LANES) add_vectors(next, i, 1);
}

#if !TB_BACK
TB_FN void fprop_vectors(const norm *p, const around *near, const TB_W *x, TB_X *o, TB_X *denom, int i, int vectors,
                         int m) {
    vec d[ABREAST], factor[ABREAST];
    EACH(v) d[v] = 1 + p->scale * sum_of(near, i + v * LANES);
    EACH(v) store(denom + i + v * LANES, d[v], m, p->streams);
    lower_all(factor, d, p->power, vectors);
    EACH(v) finish(p, o + i + v * LANES, *(const loose *)(x + i + v * LANES) * factor[v], m);
}

// m numbers of a map, and of the row of the `next` that those after it need, if there is one. The copies stay in
// registers, since nobody has their addresses.
TB_FN void fprop_map(const norm *norm_at, tb_i64 streams, const around *near_at, const part *next_at, const TB_W *x,
                     const TB_X *ahead, TB_X *o, TB_X *denom, int m) {
    const norm own = streaming(norm_at, streams), *const p = &own;
    const around these = *near_at, *const near = &these;
    const part one = *next_at, *const next = &one;
    int i = 0;
    for (; i + ABREAST * LANES <= m; i += ABREAST * LANES) {
        for (int v = 0; v < ABREAST; ++v) {
            __builtin_prefetch(ahead + i + v * LANES);
            if (p->streams) continue;
            __builtin_prefetch(o + p->g->length + i + v * LANES, 1);
            __builtin_prefetch(denom + p->g->length + i + v * LANES, 1);
        }
        if (next->row) add_vectors(next, i, ABREAST);
        fprop_vectors(p, near, x, o, denom, i, ABREAST, LANES);
    }
    for (; i < m; i += LANES) {
        if (next->row) add_vectors(next, i, 1);
        fprop_vectors(p, near, x, o, denom, i, 1, (int)lower(LANES, m - i));
    }
}

TB_FN void fprop_strip(const norm *p, const TB_X *x, TB_X *o, TB_X *denom, int m) {
    const sizes *const g = p->g;
    TB_W squares[ROWS], buffer[TB_STRIP + LANES], other[TB_STRIP + LANES];
    around near;
    tb_i64 next = 0;
    clear_beyond(squares, g);
    for (tb_i64 c = 0; c < g->maps; ++c) {
        part last = {0, 0, 0, 0};
        for (const tb_i64 to = lower(c + g->window / 2 + 1, g->maps); next < to; ++next) {
            if (last.row) add_row(&last, m);
            last.x = numbers(other, x + next * g->length, m);
            last.row = squares + next % g->window * PITCH(g->strip);
        }
        find_around(&near, squares, g, c);
        const tb_i64 at = c * g->length;
        const TB_W *const in = numbers(buffer, x + at, m);
        const TB_X *const ahead = x + next * g->length;  // beyond the last map an address that nobody reads
        if (p->streams) fprop_map(p, 1, &near, &last, in, ahead, o + at, denom + at, m);
        else fprop_map(p, 0, &near, &last, in, ahead, o + at, denom + at, m);
    }
}
#else
TB_FN void bprop_vectors(const norm *p, const around *near, const TB_W *x, const TB_W *e, const TB_W *denom,
                         TB_X *delta, int i, int vectors, int m) {
    const TB_W factor = 2 * p->power * p->scale;
    vec d[ABREAST], direct[ABREAST];
    EACH(v) d[v] = *(const loose *)(denom + i + v * LANES);
    lower_all(direct, d, p->power, vectors);
    EACH(v) {
        const int at = i + v * LANES;
        const vec shared = *(const loose *)(x + at) * sum_of(near, at);
        finish(p, delta + at, *(const loose *)(e + at) * direct[v] - factor * shared, m);
    }
}

TB_FN void bprop_map(const norm *norm_at, tb_i64 streams, const around *near_at, const part *next_at, const TB_W *x,
                     const TB_W *e, const TB_W *denom, TB_X *delta, const TB_X *const *ahead, int m) {
    const norm own = streaming(norm_at, streams), *const p = &own;
    const around these = *near_at, *const near = &these;
    const part one = *next_at, *const next = &one;
    const TB_X *const first = ahead[0], *const second = ahead[1], *const third = ahead[2], *const fourth = ahead[3];
    int i = 0;
    for (; i + ABREAST * LANES <= m; i += ABREAST * LANES) {
        for (int at = i; at < i + ABREAST * LANES; at += LANES) {  // into the second-level cache: that is early enough
            __builtin_prefetch(first + at, 0, 2);
            __builtin_prefetch(second + at, 0, 2);
            __builtin_prefetch(third + at, 0, 2);
            __builtin_prefetch(fourth + at, 0, 2);
        }
        if (next->row) add_vectors(next, i, ABREAST);
        bprop_vectors(p, near, x, e, denom, delta, i, ABREAST, LANES);
    }
    for (; i < m; i += LANES) {
        if (next->row) add_vectors(next, i, 1);
        bprop_vectors(p, near, x, e, denom, delta, i, 1, (int)lower(LANES, m - i));
    }
}

TB_FN void bprop_strip(const norm *p, void *const *ptr, tb_i64 from, int m) {
    const sizes *const g = p->g;
    const TB_X *const x = (const TB_X *)ptr[0] + from, *const o = (const TB_X *)ptr[1] + from;
    const TB_X *const e = (const TB_X *)ptr[2] + from, *const d = (const TB_X *)ptr[3] + from;
    TB_X *const delta = (TB_X *)ptr[TB_OUTPUT] + from;
    TB_W ratios[ROWS], first[TB_STRIP + LANES], second[TB_STRIP + LANES], third[TB_STRIP + LANES];
    TB_W outputs[TB_STRIP + LANES], errors[TB_STRIP + LANES], sums[TB_STRIP + LANES];
    around near;
    tb_i64 next = 0;
    clear_beyond(ratios, g);
    for (tb_i64 c = 0; c < g->maps; ++c) {
        part last = {0, 0, 0, 0};
        for (const tb_i64 to = lower(c + g->window / 2 + 1, g->maps); next < to; ++next) {
            const tb_i64 at = next * g->length;
            if (last.row) add_row(&last, m);
            last.x = numbers(outputs, o + at, m), last.error = numbers(errors, e + at, m);
            last.denom = numbers(sums, d + at, m);
            last.row = ratios + next % g->window * PITCH(g->strip);
        }
        find_around(&near, ratios, g, c);
        const tb_i64 at = c * g->length;
        const TB_W *const in = numbers(first, x + at, m), *const error = numbers(second, e + at, m);
        const TB_W *const denom = numbers(third, d + at, m);
        // What is read first two maps from here; beyond the last map addresses that nobody reads.
        const tb_i64 there = (next + 1) * g->length;
        const TB_X *const ahead[4] = {x + at + 2 * g->length, o + there, e + there, d + there};
        if (p->streams) bprop_map(p, 1, &near, &last, in, error, denom, delta + at, ahead, m);
        else bprop_map(p, 0, &near, &last, in, error, denom, delta + at, ahead, m);
    }
}
#endif

#if !TB_BACK
// Pointers: input, output, denom.
void lrn_fprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
               tb_i64 end) {
    const norm p = norm_of((const sizes *)size);
    (void)stride, (void)scalar;
    for (tb_i64 task = begin; task < end; ++task) {
        const tb_i64 from = task * p.g->strip;
        const int m = (int)lower(p.g->strip, p.g->length - from);
        TB_X *const out = (TB_X *)ptr[TB_OUTPUT] + from, *const denom = (TB_X *)ptr[TB_OUTPUT + 1] + from;
        fprop_strip(&p, (const TB_X *)ptr[0] + from, out, denom, m);
    }
    tb_stream_end(p.g->streams);
}
#else
// Pointers: input, output, error, denom, gradient.
void lrn_bprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
               tb_i64 end) {
    const norm p = norm_of((const sizes *)size);
    (void)stride, (void)scalar;
    for (tb_i64 task = begin; task < end; ++task) {
        const tb_i64 from = task * p.g->strip;
        bprop_strip(&p, ptr, from, (int)lower(p.g->strip, p.g->length - from));
    }
    tb_stream_end(p.g->streams);
}
#endif
