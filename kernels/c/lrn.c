// SPDX-License-Identifier: Apache-2.0
// lrn.c — response normalisation across the maps of images (maps, pixels and images as one axis), and the way back
//
// A task is a strip of neighbouring pixels and images, taken through all maps: what the maps around contribute stays in
// the cache. Sums go up the maps in order. The host defines TB_X and TB_W, the types of elements and of sums, TB_READ
// and TB_WRITE, which move blocks between them, TB_LOG2 and TB_EXP2 in TB_W, TB_OUTPUT, the number of the first
// result's pointer, and TB_STRIP and TB_MAPS, the longest strip and window; strip times window is at most 8 TB_STRIP,
// or the strip is 16 or less.
#include "kernel.h"

typedef struct {
    tb_i64 maps, length, window, strip, alpha, beta, scale, power, streams;
} sizes;

// Rows of the strip lie a little further apart than a power of two, which would have them compete for the cache.
#define LANES (64 / (int)sizeof(TB_W))
#define PITCH(strip) ((strip) + 16)
#define ROWS (TB_STRIP * 8 + TB_MAPS * 32)

typedef TB_W vec __attribute__((vector_size(64)));
typedef TB_W loose __attribute__((vector_size(64), aligned(4), may_alias));  // a vector at any address

TB_FN tb_i64 lower(tb_i64 x, tb_i64 y) { return x < y ? x : y; }

// to = alpha from + beta to. Without beta the old contents are not read.
TB_FN void finish(TB_X *to, TB_W *from, int m, TB_W alpha, TB_W beta, tb_i64 streams) {
    TB_W buffer[TB_STRIP];
    if (alpha != 1) {
        for (int i = 0; i < m; ++i) from[i] *= alpha;
    }
    if (beta != 0) {
        const TB_W *const old = TB_READ(buffer, to, m);
        for (int i = 0; i < m; ++i) from[i] += beta * old[i];
    }
    TB_WRITE(to, from, m, streams);
}

// d^power. denom is seldom below 1 and seldom large: a few roundings more than the general power, in half the time.
TB_FN TB_W raised(TB_W d, TB_W power) { return TB_EXP2(power * TB_LOG2(d)); }

// Sums of the rows of maps c - J / 2 to c + J / 2; row `map` lies at map % J. Whole vectors: rows and sums have room.
TB_FN void around(TB_W *sum, const TB_W *rows, const sizes *g, tb_i64 c, int m) {
    const tb_i64 half = g->window / 2, from = c < half ? 0 : c - half, to = lower(c + half + 1, g->maps);
    const tb_i64 start = from % g->window * PITCH(g->strip), size = g->window * PITCH(g->strip);
    for (int i = 0; i < m; i += LANES) {
        vec total = {0};
        tb_i64 at = start;
        for (tb_i64 map = from; map < to; ++map) {
            total += *(const loose *)(rows + at + i);
            at = at + PITCH(g->strip) == size ? 0 : at + PITCH(g->strip);
        }
        *(loose *)(sum + i) = total;
    }
}

TB_FN void fprop_strip(const sizes *g, const TB_X *x, TB_X *o, TB_X *denom, int m, TB_W alpha, TB_W beta, TB_W scale,
                       TB_W power) {
    TB_W squares[ROWS], sum[TB_STRIP + 16], out[TB_STRIP + 48], buffer[TB_STRIP];
    tb_i64 next = 0;
    for (tb_i64 c = 0; c < g->maps; ++c) {
        for (const tb_i64 to = lower(c + g->window / 2 + 1, g->maps); next < to; ++next) {
            const TB_W *const in = TB_READ(buffer, x + next * g->length, m);
            TB_W *const row = squares + next % g->window * PITCH(g->strip);
            for (int i = 0; i < m; ++i) row[i] = in[i] * in[i];
        }
        around(sum, squares, g, c, m);
        const TB_W *const in = TB_READ(buffer, x + c * g->length, m);
        for (int i = 0; i < m; ++i) {
            sum[i] = 1 + scale * sum[i];
            out[i] = in[i] * raised(sum[i], -power);
        }
        TB_WRITE(denom + c * g->length, sum, m, g->streams);
        finish(o + c * g->length, out, m, alpha, beta, g->streams);
    }
}

TB_FN void bprop_strip(const sizes *g, void *const *ptr, tb_i64 from, int m, TB_W alpha, TB_W beta, TB_W scale,
                       TB_W power) {
    const TB_X *const x = (const TB_X *)ptr[0] + from, *const o = (const TB_X *)ptr[1] + from;
    const TB_X *const e = (const TB_X *)ptr[2] + from, *const d = (const TB_X *)ptr[3] + from;
    TB_X *const delta = (TB_X *)ptr[TB_OUTPUT] + from;
    TB_W ratios[ROWS], sum[TB_STRIP + 16], a[TB_STRIP], b[TB_STRIP], f[TB_STRIP];
    tb_i64 next = 0;
    for (tb_i64 c = 0; c < g->maps; ++c) {
        for (const tb_i64 to = lower(c + g->window / 2 + 1, g->maps); next < to; ++next) {
            const tb_i64 at = next * g->length;
            const TB_W *const out = TB_READ(a, o + at, m), *const error = TB_READ(b, e + at, m);
            const TB_W *const denom = TB_READ(f, d + at, m);
            TB_W *const row = ratios + next % g->window * PITCH(g->strip);
            for (int i = 0; i < m; ++i) row[i] = out[i] * error[i] / denom[i];
        }
        around(sum, ratios, g, c, m);
        const tb_i64 at = c * g->length;
        const TB_W *const in = TB_READ(a, x + at, m), *const error = TB_READ(b, e + at, m);
        const TB_W *const denom = TB_READ(f, d + at, m);
        for (int i = 0; i < m; ++i) {
            sum[i] = error[i] * raised(denom[i], -power) - 2 * power * scale * (in[i] * sum[i]);
        }
        finish(delta + at, sum, m, alpha, beta, g->streams);
    }
}

// Pointers: input, output, denom.
void lrn_fprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
               tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const TB_W alpha = (TB_W)tb_word_double(g->alpha), beta = (TB_W)tb_word_double(g->beta);
    const TB_W scale = (TB_W)tb_word_double(g->scale), power = (TB_W)tb_word_double(g->power);
    (void)stride, (void)scalar;
    for (tb_i64 task = begin; task < end; ++task) {
        const tb_i64 from = task * g->strip;
        const int m = (int)lower(g->strip, g->length - from);
        TB_X *const out = (TB_X *)ptr[TB_OUTPUT] + from, *const denom = (TB_X *)ptr[TB_OUTPUT + 1] + from;
        fprop_strip(g, (const TB_X *)ptr[0] + from, out, denom, m, alpha, beta, scale, power);
    }
    tb_stream_end(g->streams);
}

// Pointers: input, output, error, denom, gradient.
void lrn_bprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
               tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const TB_W alpha = (TB_W)tb_word_double(g->alpha), beta = (TB_W)tb_word_double(g->beta);
    const TB_W scale = (TB_W)tb_word_double(g->scale), power = (TB_W)tb_word_double(g->power);
    (void)stride, (void)scalar;
    for (tb_i64 task = begin; task < end; ++task) {
        const tb_i64 from = task * g->strip;
        bprop_strip(g, ptr, from, (int)lower(g->strip, g->length - from), alpha, beta, scale, power);
    }
    tb_stream_end(g->streams);
}
