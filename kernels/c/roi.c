// SPDX-License-Identifier: Apache-2.0
// roi.c — the largest of each bin of regions of images (C, H, W, images), and the way back
//
// Regions lie anywhere, so neighbouring results share nothing but the maps: a vector holds as many maps. The images are
// copied once so that maps are innermost; then a task takes some regions of a vector of maps. On the way back a task
// owns a map, and adds errors where they belong in the order in which they lie. Where a region is of an image that there
// is not, nothing is written.
//
// The host defines what block_vectors.h wants, TB_I, the type of places, and TB_HALF, whether sums are wider than
// elements.
#include "block_vectors.h"

#define BLOCK 256  // errors that are widened at a time

typedef struct {
    tb_i64 images, maps, height, width, regions, rows, columns;
} sizes;

typedef struct {
    tb_i32 from, to;
} range;

// Scratch: a region of an image that there is not (0: none; else its number + 1) and that image; then the rows and the
// columns of each region's bins, and the copy.
typedef struct {
    tb_i64 wrong, image, unused[6];
    range bins[];
} status;

TB_FN tb_i64 inside(tb_i64 at, tb_i64 length) { return at < 0 ? 0 : lower(at, length); }

// The pixels of one of the parts of the range from `low` to `high`, inside an axis.
TB_FN range span(tb_i64 low, tb_i64 high, tb_i64 part, tb_i64 parts, tb_i64 length) {
    const tb_i64 size = high - low + 1 < 1 ? 1 : high - low + 1;
    return (range){(tb_i32)inside(low + part * size / parts, length),
                   (tb_i32)inside(low + ((part + 1) * size + parts - 1) / parts, length)};
}

TB_FN void check(const sizes *g, const tb_i32 *boxes, status *found) {
    found->wrong = 0;
    for (tb_i64 r = g->regions; r-- > 0;) {
        if (boxes[r * 5] < 0 || boxes[r * 5] >= g->images) {
            found->wrong = r + 1;
            found->image = boxes[r * 5];
        }
    }
}

TB_FN vec *copy_of(const sizes *g, status *s) {
    return (vec *)(((unsigned long)(s->bins + g->regions * (g->rows + g->columns)) + 63) & ~63ul);
}

// Pointers: images, boxes, output, places, scratch.
void roi_fprop_check(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                     tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i32 *box = (const tb_i32 *)ptr[1];
    status *const s = (status *)ptr[4];
    range *bin = s->bins;
    (void)stride, (void)scalar, (void)begin, (void)end;
    check(g, box, s);
    for (tb_i64 r = 0; r < g->regions; ++r, box += 5) {
        for (tb_i64 p = 0; p < g->rows; ++p) *bin++ = span(box[2], box[4], p, g->rows, g->height);
        for (tb_i64 q = 0; q < g->columns; ++q) *bin++ = span(box[1], box[3], q, g->columns, g->width);
    }
}

// Pointers: errors, places, boxes, gradient, scratch.
void roi_bprop_check(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                     tb_i64 end) {
    (void)stride, (void)scalar, (void)begin, (void)end;
    check((const sizes *)size, (const tb_i32 *)ptr[2], (status *)ptr[4]);
}

// The images with a vector of maps innermost: (maps / LANES, height, width, images, LANES). Tasks are rows of them.
void roi_turn(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
              tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 row = g->width * g->images, map = g->height * row;
    vec *const copy = copy_of(g, (status *)ptr[4]);
    TB_W buffer[LANES][BLOCK];
    (void)stride, (void)scalar;
    for (tb_i64 task = begin; task < end; ++task) {
        const tb_i64 c = task / g->height * LANES, lanes = lower(LANES, g->maps - c);
        for (tb_i64 at = 0; at < row; at += BLOCK) {
            const int m = (int)lower(BLOCK, row - at);
            const TB_W *x[LANES];
            for (int lane = 0; lane < LANES; ++lane) {
                const tb_i64 from = (lower(c + lane, c + lanes - 1) * g->height + task % g->height) * row + at;
                x[lane] = TB_READ(buffer[lane], (const TB_X *)ptr[0] + from, m);
            }
            vec *const to = copy + c / LANES * map + task % g->height * row + at;
            int i = 0;
            for (; i + LANES <= m; i += LANES) {
                vec v[LANES];
                for (int lane = 0; lane < LANES; ++lane) v[lane] = *(const loose *)(x[lane] + i);
                TB_TURN(vec, v)
                for (int j = 0; j < LANES; ++j) to[i + j] = v[j];
            }
            for (; i < m; ++i) {
                for (int lane = 0; lane < LANES; ++lane) to[i][lane] = x[lane][i];
            }
        }
    }
}

// The largest of a bin in a vector of maps and its places; of an empty bin 0 and -1. A NaN wins, and the first stays.
TB_FN vec largest(const sizes *g, const vec *copy, range h, range w, mask *where) {
    *where = (mask){0} - 1;
    if (h.from >= h.to || w.from >= w.to) return (vec){0};
    vec best = copy[(h.from * g->width + w.from) * g->images];
    mask at = (TB_N)(h.from * g->width + w.from) + (mask){0};
    for (tb_i64 y = h.from; y < h.to; ++y) {
        for (tb_i64 x = w.from; x < w.to; ++x) {
            const vec v = copy[(y * g->width + x) * g->images];
            const mask wins = ~(v <= best) & (best == best);
            best = (vec)(((mask)v & wins) | ((mask)best & ~wins));
            at = (((TB_N)(y * g->width + x) + (mask){0}) & wins) | (at & ~wins);
        }
    }
    *where = at;
    return best;
}

// One bin of some regions, `count` of them from `first` on, in the `lanes` maps from `map` on.
TB_FN void pool(const sizes *g, void *const *ptr, const vec *copy, tb_i64 map, int lanes, tb_i64 first, int count,
                tb_i64 bin) {
    const range *const bins = ((const status *)ptr[4])->bins;
    vec best[LANES];
    mask where[LANES];
    for (int r = 0; r < LANES; ++r) {
        const tb_i64 region = first + (r < count ? r : 0);
        const range *const own = bins + region * (g->rows + g->columns);
        const range h = own[bin / g->columns], w = own[g->rows + bin % g->columns];
        best[r] = largest(g, copy + ((const tb_i32 *)ptr[1])[region * 5], h, w, where + r);
    }
    TB_TURN(vec, best)
    TB_TURN(mask, where)
    for (int lane = 0; lane < lanes; ++lane) {
        const tb_i64 to = ((map + lane) * g->rows * g->columns + bin) * g->regions + first;
        TB_I places[LANES];
        for (int r = 0; r < LANES; ++r) places[r] = (TB_I)where[lane][r];
        TB_WRITE((TB_X *)ptr[2] + to, (const TB_W *)(best + lane), count, 0);
        __builtin_memcpy((TB_I *)ptr[3] + to, places, sizeof(TB_I) * (unsigned long)count);
    }
}

// Tasks are vectors of maps times groups of as many regions.
void roi_fprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
               tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 groups = (g->regions + LANES - 1) / LANES, map = g->height * g->width * g->images;
    (void)stride, (void)scalar;
    if (((const status *)ptr[4])->wrong) return;
    for (tb_i64 task = begin; task < end; ++task) {
        const tb_i64 c = task / groups * LANES, first = task % groups * LANES;
        const int lanes = (int)lower(LANES, g->maps - c), count = (int)lower(LANES, g->regions - first);
        const vec *const copy = copy_of(g, (status *)ptr[4]) + c / LANES * map;
        for (tb_i64 bin = 0; bin < g->rows * g->columns; ++bin) pool(g, ptr, copy, c, lanes, first, count, bin);
    }
}

// Tasks are maps. Halves add up in scratch.
void roi_bprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
               tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 pixels = g->height * g->width, map = pixels * g->images, bins = g->rows * g->columns;
    const tb_i32 *const boxes = (const tb_i32 *)ptr[2];
    (void)stride, (void)scalar;
    if (((const status *)ptr[4])->wrong) return;
    for (tb_i64 c = begin; c < end; ++c) {
        TB_X *const out = (TB_X *)ptr[3] + c * map;
#if TB_HALF
        TB_W *const sum = (TB_W *)((status *)ptr[4])->bins + c * map;
#else
        TB_W *const sum = out;
#endif
        for (tb_i64 i = 0; i < map; ++i) sum[i] = 0;
        for (tb_i64 bin = c * bins; bin < (c + 1) * bins; ++bin) {
            const TB_I *const place = (const TB_I *)ptr[1] + bin * g->regions;
            for (tb_i64 from = 0; from < g->regions; from += BLOCK) {
                const int m = (int)lower(BLOCK, g->regions - from);
                TB_W buffer[BLOCK];
                const TB_W *const e = TB_READ(buffer, (const TB_X *)ptr[0] + bin * g->regions + from, m);
                for (int r = 0; r < m; ++r) {
                    const tb_i64 at = (tb_i64)place[from + r];
                    if (at >= 0 && at < pixels) sum[at * g->images + boxes[(from + r) * 5]] += e[r];
                }
            }
        }
#if TB_HALF
        for (tb_i64 i = 0; i < map; i += BLOCK) TB_WRITE(out + i, sum + i, (int)lower(BLOCK, map - i), 0);
#endif
    }
}
