// SPDX-License-Identifier: Apache-2.0
// pool_images.h — windows that are whole images: a number for each map and image, and the way back of means
//
// Part of pool.c, with its macros. The pixels of a map lie side by side, so that lanes take several pixels of few images;
// what they have met is put together at the end.
#define ABREAST 4  // vectors of images that are enough to add up side by side; twice as many go at a time

// Whether windows are whole images whose pixels lie side by side, of at most a vector of images, so that lanes take several
// pixels; or of means and some vectors of them, which forward are enough to add up side by side. Back: of means.
TB_FN int is_whole_image(const sizes *g, const tb_i64 *stride) {
    int whole = (!TB_BACK || TB_OP == 1) && g->images <= LANES;
    if (TB_OP == 1) whole |= g->images % (TB_BACK ? LANES : ABREAST * LANES) == 0;
    whole &= g->window[0] == 1 && g->step[0] == 1 && g->pad[0] == 0;
    for (int axis = 1; axis < 4; ++axis)
        whole &= g->window[axis] == g->in[axis] && g->pad[axis] == 0 && g->out[axis] == 1;
    return whole && is_one_piece(g, stride);
}

// How lanes are dealt to a map: how many pixels a vector holds, and the lanes' pixels and images.
typedef struct {
    tb_i64 held;
    mask pixel, image;
} dealt;

TB_FN dealt dealt_of(const sizes *g) {
    const tb_i64 images = higher(g->images, 1);
    dealt d = {lower(LANES / images, g->in[1] * g->in[2] * g->in[3]), {0}, {0}};
    for (int l = 0; l < LANES; ++l) d.pixel[l] = (TB_N)(l / images), d.image[l] = (TB_N)(l % images);
    return d;
}

#if !TB_BACK
#define SUMS (TB_OP == 0 ? 1 : 4)  // that do not wait for each other

// What `pixels` pixels in the lanes have met together, in those of the first. Of equals, or NaNs, the first place stays.
TB_FN state folded(state x, tb_i64 images, tb_i64 pixels) {
    mask lane;
    for (int l = 0; l < LANES; ++l) lane[l] = l;
    const vec others = TB_OP == 0 ? x.best : (vec){0};
    for (tb_i64 half; pixels > 1; pixels = half) {
        half = (pixels + 1) / 2;
        const mask from = lane + (TB_N)(half * images), there = from < (TB_N)(pixels * images);
        const mask chosen = (from & there) | ((lane + LANES) & ~there);
        const vec y = TB_CHOSEN(x.best, others, chosen);
#if TB_OP == 0
        const mask where = TB_CHOSEN(x.where, x.where, chosen);
        const mask more = ~(y <= x.best) & (x.best == x.best), less = ~(x.best <= y) & (y == y);
        const mask wins = more | (~less & (where < x.where));
        x.best = (vec)(((mask)y & wins) | ((mask)x.best & ~wins));
        x.where = (where & wins) | (x.where & ~wins);
#else
        x.best += y;
#endif
    }
    return x;
}

// The means of `vectors` vectors of images.
TB_FN void fprop_vectors(const sizes *g, const TB_X *x, TB_X *out, tb_i64 pixels, int vectors) {
    const tb_i64 images = g->images;
    vec sum[2 * ABREAST] = {{0}};
    for (tb_i64 i = 0; i < pixels; ++i) {
        for (int v = 0; v < vectors; ++v) sum[v] += load(x + i * images + v * LANES, LANES);
    }
    for (int v = 0; v < vectors; ++v) finish(g, out + v * LANES, sum[v] / (TB_W)pixels, LANES);
}

// The largest, mean or root of squares of a map.
TB_FN void fprop_image(const sizes *g, const dealt *d, const TB_X *x, TB_X *out, TB_I *places) {
    const tb_i64 images = g->images, pixels = g->in[1] * g->in[2] * g->in[3], count = pixels * images;
    tb_i64 n = 0;
    if (TB_OP == 1 && !FEW && images > LANES) {
        for (; n + 2 * ABREAST * LANES <= images; n += 2 * ABREAST * LANES)
            fprop_vectors(g, x + n, out + n, pixels, 2 * ABREAST);
        if (n < images) fprop_vectors(g, x + n, out + n, pixels, ABREAST);
        return;
    }
    const tb_i64 held = d->held, useful = held * images;
    state found[4] = {{{0}, {0}}, {{0}, {0}}, {{0}, {0}}, {{0}, {0}}};
    if (TB_OP == 0) found[0] = (state){load(x, (int)lower(count, LANES)), d->pixel};
    tb_i64 p = 0;
    for (; TB_OP != 0 && n + (SUMS - 1) * useful + LANES <= count; n += SUMS * useful, p += SUMS * held) {
        for (int v = 0; v < SUMS; ++v) meet(&found[v], load(x + n + v * useful, LANES), 0, 0);
    }
    for (; p < pixels; p += held) {
        const tb_i64 first = TB_OP == 0 ? lower(p, pixels - held) : p;  // again is as good as once
        const vec cell = load(x + first * images, (int)lower(count - first * images, LANES));
        join(&found[0], (state){TB_OP == 2 ? cell * cell : cell, d->pixel + (TB_N)first});
    }
    for (int v = 2; v < SUMS; ++v) found[v - 2].best += found[v].best;
    if (TB_OP != 0) found[0].best += found[1].best;
    const state all = folded(found[0], images, held);
    finish(g, out, TB_OP == 1 ? all.best / (TB_W)pixels : outcome(&all, 1), (int)images);
    if (TB_OP == 0) store_places(places, all.where, (int)images);
}
#endif

// Some pixels of the gradient of the means of `vectors` vectors of images: all of a map receive the same.
TB_FN void bprop_vectors(const sizes *g, const TB_X *e, TB_X *out, tb_i64 count, TB_W pixels, int vectors) {
    const sizes known = *g;
    vec share[2 * ABREAST];
    for (int v = 0; v < vectors; ++v) share[v] = load(e + v * LANES, LANES) / pixels;
    for (tb_i64 i = 0; i < count; ++i) {
        for (int v = 0; v < vectors; ++v) finish(&known, out + i * known.images + v * LANES, share[v], LANES);
    }
}

// Some rows of that. Vectors begin at multiples of their size.
TB_FN void bprop_image(const sizes *g, const dealt *d, const TB_X *e, TB_X *out, tb_i64 rows) {
    const TB_W all = (TB_W)(g->in[1] * g->in[2] * g->in[3]);
    if (!FEW && g->images > LANES) {
        tb_i64 n = 0;
        for (; n + 2 * ABREAST * LANES <= g->images; n += 2 * ABREAST * LANES)
            bprop_vectors(g, e + n, out + n, rows * g->in[3], all, 2 * ABREAST);
        for (; n < g->images; n += LANES) bprop_vectors(g, e + n, out + n, rows * g->in[3], all, 1);
        return;
    }
    const tb_i64 count = rows * g->in[3] * g->images, useful = d->held * g->images;
    const vec share = load(e, (int)g->images) / all, side = TB_CHOSEN(share, share, d->image);
    TB_W shares[2 * LANES];
    *(loose *)shares = side, *(loose *)(shares + useful) = side;
    tb_i64 n = useful < LANES ? 0 : lower((tb_i64)(-(tb_u64)out / sizeof(TB_X) % LANES), count);
    if (n) finish(g, out, side, (int)n);
    const vec each = *(const loose *)(shares + (n & (g->images - 1)));
    // Lanes that are not useful are written again, unless the old contents count.
    for (; n + LANES <= count; n += useful) finish(g, out + n, each, TB_PLAIN ? LANES : (int)useful);
    if (n < count) finish(g, out + n, each, (int)(count - n));
}
