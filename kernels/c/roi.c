// SPDX-License-Identifier: Apache-2.0
// roi.c — the largest of each bin of regions of images (C, H, W, images), and the way back
//
// Regions lie anywhere, so neighbouring results share nothing but the maps: a vector holds as many maps. The images are
// copied once so that maps are innermost; then a task takes some regions of a vector of maps. On the way back a task
// owns a map, and adds errors where they belong in the order in which they lie.
//
// The host defines TB_X, TB_W and TB_I, the types of elements, of what is compared and added, and of places, TB_N,
// integers as wide as TB_W, and TB_READ and TB_WRITE, which move blocks between TB_X and TB_W.
#include "kernel.h"

#define LANES (64 / (int)sizeof(TB_W))
#define GROUP 16  // regions of a task
#define BLOCK 256  // errors that are widened at a time

typedef TB_W vec __attribute__((vector_size(64)));
typedef TB_N mask __attribute__((vector_size(64)));

typedef struct {
    tb_i64 images, maps, height, width, regions, rows, columns;
} sizes;

// Scratch: a region of an image that there is not (0: none; else its number + 1) and that image; then the copy.
typedef struct {
    tb_i64 wrong, image, unused[6];
} status;

typedef struct {
    tb_i64 from, to;
} range;

TB_FN tb_i64 lower(tb_i64 a, tb_i64 b) { return a < b ? a : b; }
TB_FN tb_i64 inside(tb_i64 at, tb_i64 length) { return at < 0 ? 0 : lower(at, length); }

// The pixels of one of the parts of the range from `low` to `high`, inside an axis.
TB_FN range span(tb_i64 low, tb_i64 high, tb_i64 part, tb_i64 parts, tb_i64 length) {
    const tb_i64 size = high - low + 1 < 1 ? 1 : high - low + 1;
    return (range){inside(low + part * size / parts, length),
                   inside(low + ((part + 1) * size + parts - 1) / parts, length)};
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

// Pointers: images, boxes, output, places, scratch.
void roi_fprop_check(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
                     tb_i64 end) {
    (void)stride, (void)scalar, (void)begin, (void)end;
    check((const sizes *)size, (const tb_i32 *)ptr[1], (status *)ptr[4]);
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
    vec *const copy = (vec *)((status *)ptr[4] + 1);
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
            for (int i = 0; i < m; ++i) {
                vec v;
                for (int lane = 0; lane < LANES; ++lane) v[lane] = x[lane][i];
                to[i] = v;
            }
        }
    }
}

// The largest of a bin in a vector of maps and its places; of an empty bin 0 and -1. A NaN wins, and the first stays.
TB_FN vec largest(const sizes *g, const vec *copy, tb_i64 image, range h, range w, mask *where) {
    vec best = {0};
    mask at = (mask){0} - 1;
    for (tb_i64 y = h.from; y < h.to; ++y) {
        for (tb_i64 x = w.from; x < w.to; ++x) {
            const vec v = copy[(y * g->width + x) * g->images + image];
            const mask wins = (~(v <= best) & (best == best)) | (at < 0);
            best = (vec)(((mask)v & wins) | ((mask)best & ~wins));
            at = (((TB_N)(y * g->width + x) + (mask){0}) & wins) | (at & ~wins);
        }
    }
    *where = at;
    return best;
}

// Tasks are vectors of maps times groups of regions.
void roi_fprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
               tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 groups = (g->regions + GROUP - 1) / GROUP, map = g->height * g->width * g->images;
    const vec *const copy = (const vec *)((status *)ptr[4] + 1);
    (void)stride, (void)scalar;
    for (tb_i64 task = begin; task < end; ++task) {
        const tb_i64 c = task / groups * LANES, first = task % groups * GROUP;
        const int lanes = (int)lower(LANES, g->maps - c), count = (int)lower(GROUP, g->regions - first);
        const tb_i32 *const box = (const tb_i32 *)ptr[1] + first * 5;
        TB_W best[LANES][GROUP];
        TB_N where[LANES][GROUP];
        for (tb_i64 bin = 0; bin < g->rows * g->columns; ++bin) {
            for (int r = 0; r < count; ++r) {
                const tb_i32 *const b = box + r * 5;
                const range h = span(b[2], b[4], bin / g->columns, g->rows, g->height);
                const range w = span(b[1], b[3], bin % g->columns, g->columns, g->width);
                mask at;
                const vec v = largest(g, copy + c / LANES * map, b[0], h, w, &at);
                for (int lane = 0; lane < LANES; ++lane) {
                    best[lane][r] = v[lane];
                    where[lane][r] = at[lane];
                }
            }
            for (int lane = 0; lane < lanes; ++lane) {
                const tb_i64 to = ((c + lane) * g->rows * g->columns + bin) * g->regions + first;
                TB_WRITE((TB_X *)ptr[2] + to, best[lane], count, 0);
                for (int r = 0; r < count; ++r) ((TB_I *)ptr[3])[to + r] = (TB_I)where[lane][r];
            }
        }
    }
}

// Tasks are maps. Halves add up in scratch.
void roi_bprop(void *const *ptr, const tb_i64 *size, const tb_i64 *stride, const tb_i64 *scalar, tb_i64 begin,
               tb_i64 end) {
    const sizes *const g = (const sizes *)size;
    const tb_i64 map = g->height * g->width * g->images, bins = g->rows * g->columns;
    const tb_i32 *const boxes = (const tb_i32 *)ptr[2];
    (void)stride, (void)scalar;
    for (tb_i64 c = begin; c < end; ++c) {
        TB_X *const out = (TB_X *)ptr[3] + c * map;
#if TB_HALF
        TB_W *const sum = (TB_W *)((status *)ptr[4] + 1) + c * map;
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
                    if (at >= 0) sum[at * g->images + boxes[(from + r) * 5]] += e[r];
                }
            }
        }
#if TB_HALF
        for (tb_i64 i = 0; i < map; i += BLOCK) TB_WRITE(out + i, sum + i, (int)lower(BLOCK, map - i), 0);
#endif
    }
}
