// SPDX-License-Identifier: Apache-2.0
// lrn.c — response normalisation across the maps of images (maps, pixels and images as one axis), and the way back
//
// A task is a strip of neighbouring pixels and images, taken through all maps: what the maps around contribute stays in
// the cache. Sums go up the maps in order. The host defines what block_vectors.h wants, TB_LOG2 and TB_EXP2 in TB_W,
// TB_OUTPUT, the number of the first result's pointer, TB_STRIP and TB_MAPS, the longest strip and window (strip times
// window is at most 8 TB_STRIP, or the strip is 16 or less), TB_WHOLE, this window if it is one of the usual, which get
// loops of their own, TB_QUARTERS, the quarters that the power is, up to 4, in float32, else 0, and TB_BACK, which of
// the two ways is compiled.
#include "block_vectors.h"

typedef struct {
    tb_i64 maps, length, window, strip, alpha, beta, scale, power, streams;
} sizes;

// Rows of the strip lie a little further apart than a power of two, which would have them compete for the cache.
#define PITCH(strip) ((strip) + 16)
#define ROWS (TB_STRIP * 8 + TB_MAPS * 32)

// m elements as numbers to compute with; behind them there is room for a whole vector.
TB_FN const TB_W *numbers(TB_W *buffer, const TB_X *x, int m) {
    const TB_W *const from = TB_READ(buffer, x, m);
    if (from == buffer || m % LANES == 0) return from;
    for (int i = 0; i < m; ++i) buffer[i] = from[i];
    return buffer;
}

#if TB_QUARTERS
// A guess of d^(-1/4), whose error becomes its third power.
TB_FN vec closer(vec guess, vec d) {
    const vec square = guess * guess;
    vec rest;
    for (int k = 0; k < LANES; ++k) rest[k] = TB_FMA_F32(-d[k], square[k] * square[k], 1.0f);
    return guess + guess * rest * (0.25f + 0.15625f * rest);
}

// d^-power for a power of some quarters, by roots from a guess in integers that is good to 1/32: some units in the last
// place. Denormal numbers count as 0.
TB_FN vec lowered(vec d, TB_W power) {
    const vec root = closer(closer((vec)(0x4F586000 - ((mask)d >> 2)), d), d);
    vec product = root;
    (void)power;
    for (int k = 1; k < TB_QUARTERS; ++k) product *= root;
    const mask none = d < 0x1p-126f, all = d == TB_INF_F32;
    const mask ends = (mask)(TB_INF_F32 + (vec){0}) & none;
    return (vec)((((mask)product & ~(none | all)) | ends) | (d < 0));
}
#else
// d^-power. denom is seldom below 1 and seldom large: a few roundings more than the general power, in half the time.
TB_FN vec lowered(vec d, TB_W power) {
    TB_W x[LANES];
    *(loose *)x = d;
    for (int i = 0; i < LANES; ++i) x[i] = TB_EXP2(-power * TB_LOG2(x[i]));
    return *(const loose *)x;
}
#endif

typedef struct {
    const sizes *g;
    TB_W alpha, beta, scale, power;
} norm;

TB_FN norm norm_of(const sizes *g) {
    return (norm){g, (TB_W)tb_word_double(g->alpha), (TB_W)tb_word_double(g->beta), (TB_W)tb_word_double(g->scale),
                  (TB_W)tb_word_double(g->power)};
}

// to = alpha v + beta to, for the first m numbers. Without beta the old contents are not read.
TB_FN void finish(const norm *p, TB_X *to, vec v, int m) {
    if (p->alpha != 1) v *= p->alpha;
    if (p->beta != 0) v += p->beta * load(to, m);
    store(to, v, m, p->g->streams);
}

// The rows of maps c - J / 2 to c + J / 2, in order; row `map` lies at map % J.
typedef struct {
    const TB_W *rows[TB_MAPS];
    int count;
} around;

TB_FN void find_around(around *found, const TB_W *rows, const sizes *g, tb_i64 c) {
    const tb_i64 half = g->window / 2, to = lower(c + half + 1, g->maps);
    found->count = 0;
    for (tb_i64 map = c < half ? 0 : c - half; map < to; ++map) {
        found->rows[found->count++] = rows + map % g->window * PITCH(g->strip);
    }
}

TB_FN vec sum_of(const around *near, int count, int i) {
    vec total = *(const loose *)(near->rows[0] + i);
    for (int k = 1; k < count; ++k) total += *(const loose *)(near->rows[k] + i);
    return total;
}

TB_FN void fprop_map(const norm *p, const around *near, int count, const TB_W *x, const TB_X *ahead, TB_X *o,
                     TB_X *denom, int m) {
    for (int i = 0; i < m; i += LANES) {
        __builtin_prefetch(ahead + i);
        const vec d = 1 + p->scale * sum_of(near, count, i);
        const int n = (int)lower(LANES, m - i);
        store(denom + i, d, n, p->g->streams);
        finish(p, o + i, *(const loose *)(x + i) * lowered(d, p->power), n);
    }
}

TB_FN void fprop_strip(const norm *p, const TB_X *x, TB_X *o, TB_X *denom, int m) {
    const sizes *const g = p->g;
    TB_W squares[ROWS], buffer[TB_STRIP + LANES];
    around near;
    tb_i64 next = 0;
    for (tb_i64 c = 0; c < g->maps; ++c) {
        for (const tb_i64 to = lower(c + g->window / 2 + 1, g->maps); next < to; ++next) {
            const TB_W *const in = numbers(buffer, x + next * g->length, m);
            TB_W *const row = squares + next % g->window * PITCH(g->strip);
            for (int i = 0; i < m; ++i) row[i] = in[i] * in[i];
        }
        find_around(&near, squares, g, c);
        const tb_i64 at = c * g->length;
        const TB_W *const in = numbers(buffer, x + at, m);
        const TB_X *const ahead = x + next * g->length;  // beyond the last map an address that nobody reads
        if (near.count == TB_WHOLE) fprop_map(p, &near, TB_WHOLE, in, ahead, o + at, denom + at, m);
        else fprop_map(p, &near, near.count, in, ahead, o + at, denom + at, m);
    }
}

TB_FN void bprop_map(const norm *p, const around *near, int count, const TB_W *x, const TB_W *e, const TB_W *denom,
                     TB_X *delta, const TB_X *const *ahead, int m) {
    for (int i = 0; i < m; i += LANES) {
        for (int k = 0; k < 4; ++k) __builtin_prefetch(ahead[k] + i);
        const vec direct = *(const loose *)(e + i) * lowered(*(const loose *)(denom + i), p->power);
        const vec shared = *(const loose *)(x + i) * sum_of(near, count, i);
        finish(p, delta + i, direct - 2 * p->power * p->scale * shared, (int)lower(LANES, m - i));
    }
}

TB_FN void bprop_strip(const norm *p, void *const *ptr, tb_i64 from, int m) {
    const sizes *const g = p->g;
    const TB_X *const x = (const TB_X *)ptr[0] + from, *const o = (const TB_X *)ptr[1] + from;
    const TB_X *const e = (const TB_X *)ptr[2] + from, *const d = (const TB_X *)ptr[3] + from;
    TB_X *const delta = (TB_X *)ptr[TB_OUTPUT] + from;
    TB_W ratios[ROWS], first[TB_STRIP + LANES], second[TB_STRIP + LANES], third[TB_STRIP + LANES];
    around near;
    tb_i64 next = 0;
    for (tb_i64 c = 0; c < g->maps; ++c) {
        for (const tb_i64 to = lower(c + g->window / 2 + 1, g->maps); next < to; ++next) {
            const tb_i64 at = next * g->length;
            const TB_W *const out = numbers(first, o + at, m), *const error = numbers(second, e + at, m);
            const TB_W *const denom = numbers(third, d + at, m);
            TB_W *const row = ratios + next % g->window * PITCH(g->strip);
            for (int i = 0; i < m; ++i) row[i] = out[i] * error[i] / denom[i];
        }
        find_around(&near, ratios, g, c);
        const tb_i64 at = c * g->length;
        const TB_W *const in = numbers(first, x + at, m), *const error = numbers(second, e + at, m);
        const TB_W *const denom = numbers(third, d + at, m);
        const tb_i64 there = next * g->length;  // beyond the last map addresses that nobody reads
        const TB_X *const ahead[4] = {x + at + g->length, o + there, e + there, d + there};
        if (near.count == TB_WHOLE) bprop_map(p, &near, TB_WHOLE, in, error, denom, delta + at, ahead, m);
        else bprop_map(p, &near, near.count, in, error, denom, delta + at, ahead, m);
    }
}

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
