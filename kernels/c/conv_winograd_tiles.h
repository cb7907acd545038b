// SPDX-License-Identifier: Apache-2.0
// conv_winograd_tiles.h — tiles of conv_winograd.c: how they are transformed, and how they come from memory and go there
//
// A vector has the same place, or point, of LANES tiles; a tile is as many vectors as it has places, row by row.

// Transforms of one axis ----------------------------------------------------------------------------------------------

// B' d: POINTS values to POINTS, `step` apart in both.
INLINE void transform_data(const vec *d, vec *o, int step) {
#if POINTS == 4
    o[0] = d[0] - d[2 * step];
    o[step] = d[step] + d[2 * step];
    o[2 * step] = d[2 * step] - d[step];
    o[3 * step] = d[3 * step] - d[step];
#else
    const vec even = d[4 * step] - 4 * d[2 * step], odd = d[3 * step] - 4 * d[step];
    const vec even2 = d[4 * step] - d[2 * step], odd2 = 2 * (d[3 * step] - d[step]);
    o[0] = 4 * d[0] - 5 * d[2 * step] + d[4 * step];
    o[step] = even + odd;
    o[2 * step] = even - odd;
    o[3 * step] = even2 + odd2;
    o[4 * step] = even2 - odd2;
    o[5 * step] = 4 * d[step] - 5 * d[3 * step] + d[5 * step];
#endif
}

// Of `count` values, `from_step` apart, POINTS values: `scaled` G g, else the transpose of A' m, which scales no point.
INLINE void transform_taps_of(const vec *g, int count, int scaled, int from_step, vec *o, int step) {
    vec even = {0}, odd = {0};
#if POINTS == 4
    for (int i = 0; i < count; i += 2) even += g[i * from_step];
    for (int i = 1; i < count; i += 2) odd += g[i * from_step];
    const TB_T near = scaled ? 1. / 2 : 1;
    o[0] = g[0];
#else
    vec even2 = {0}, odd2 = {0};
    for (int i = 0; i < count; i += 2) even += g[i * from_step], even2 += (TB_T)(1 << i) * g[i * from_step];
    for (int i = 1; i < count; i += 2) odd += g[i * from_step], odd2 += (TB_T)(1 << i) * g[i * from_step];
    const TB_T first = scaled ? 1. / 4 : 1, near = scaled ? -1. / 6 : 1, far = scaled ? 1. / 24 : 1;
    o[0] = g[0] * first;
    o[3 * step] = (even2 + odd2) * far;
    o[4 * step] = (even2 - odd2) * far;
#endif
    o[step] = (even + odd) * near;
    o[2 * step] = (even - odd) * near;
    o[(POINTS - 1) * step] = g[(count - 1) * from_step];
}

INLINE void transform_filter(const vec *g, int from_step, vec *o, int step) {
    transform_taps_of(g, TAPS, 1, from_step, o, step);
}

// A' m: POINTS values, `from_step` apart, to OUT values.
INLINE void transform_back(const vec *m, int from_step, vec *o, int step) {
    const vec even = m[from_step] + m[2 * from_step], odd = m[from_step] - m[2 * from_step];
#if POINTS == 4
    for (int i = 0; i < OUT; ++i) o[i * step] = i % 2 ? odd : even;
#else
    const vec even2 = m[3 * from_step] + m[4 * from_step], odd2 = m[3 * from_step] - m[4 * from_step];
    for (int i = 0; i < OUT; ++i) o[i * step] = i % 2 ? odd + (TB_T)(1 << i) * odd2 : even + (TB_T)(1 << i) * even2;
#endif
    o[0] += m[0];
    o[(OUT - 1) * step] += m[(POINTS - 1) * from_step];
}

INLINE void transform_square(vec *d) {  // B' d B
    vec half[SQUARE];
    UNROLL for (int j = 0; j < POINTS; ++j) transform_data(d + j, half + j, POINTS);
    UNROLL for (int i = 0; i < POINTS; ++i) transform_data(half + i * POINTS, d + i * POINTS, 1);
}

INLINE void transform_square_back(const vec *m, vec *o) {  // A' m A
    vec half[OUT * POINTS];
    UNROLL for (int j = 0; j < POINTS; ++j) transform_back(m + j, POINTS, half + j, POINTS);
    UNROLL for (int i = 0; i < OUT; ++i) transform_back(half + i * POINTS, 1, o + i * OUT, 1);
}

// Tiles in memory -----------------------------------------------------------------------------------------------------

// LENGTH neighbouring lanes: images of one tile. Those past the last lane have no data and no places.
typedef struct piece {
    int64_t in, out;                       // where the tile's first datum and first place are in a map
    int rows0, rows1, columns0, columns1;  // its data that exist
    int high, wide;                        // its places that exist
} piece;

static int limit(int64_t x, int most) { return x < 0 ? 0 : x > most ? most : (int)x; }

// Of POINTS data, `stride` apart from place `at` on, the first that exists; and one past the last, where `rest` places
// are left.
static int first_datum(int64_t at, int64_t stride) { return at < 0 ? limit((stride - 1 - at) / stride, POINTS) : 0; }
static int last_datum(int64_t rest, int64_t stride) { return rest > 0 ? limit((rest + stride - 1) / stride, POINTS) : 0; }

// The first tap of a part along an axis, and how many it has.
static int64_t first_tap(const cut *x, int64_t part) {
    const int64_t before = part / x->phases;
    return part % x->phases + (before * x->each + least(before, x->longer)) * x->stride;
}

static int64_t part_taps(const cut *x, int64_t part) {
    return least(x->each + (part / x->phases < x->longer), ceil_div(x->taps - first_tap(x, part), x->stride));
}

// A part of the filter: those along its axes. Whole along the width alone come first, then wholly whole, whole along the
// height alone, and the rest, so that parts that have a point lie side by side.
typedef struct part_of_axes {
    int64_t high, wide;
} part_of_axes;

static part_of_axes find_part(const shape *s, int64_t part) {
    const cut *const y = &s->high, *const x = &s->wide;
    const int64_t left = y->parts * x->whole, short_wide = x->parts - x->whole;
    if (part < left) {
        const int64_t high = (part / x->whole + y->whole) % y->parts;  // the short ones first
        return (part_of_axes){high, part % x->whole};
    }
    return (part_of_axes){(part - left) / short_wide, x->whole + (part - left) % short_wide};
}

// The tile of a part of the filter.
static piece find_tile(const shape *s, int64_t part, int64_t tile) {
    const cut *const y = &s->high, *const x = &s->wide;
    const int64_t column = tile % s->columns * STEP, down = tile / s->columns;
    const int64_t row = down % s->rows * STEP, depth = down / s->rows;
    const part_of_axes p = find_part(s, part);
    const int64_t h = row * y->stride + first_tap(y, p.high) - s->pad_high;
    const int64_t w = column * x->stride + first_tap(x, p.wide) - s->pad_wide;
    return (piece){
        ((depth * s->in_high + h) * s->in_wide + w) * s->images,
        ((depth * s->out_high + row) * s->out_wide + column) * s->images,
        first_datum(h, y->stride), last_datum(s->in_high - h, y->stride),
        first_datum(w, x->stride), last_datum(s->in_wide - w, x->stride),
        limit(s->out_high - row, STEP), limit(s->out_wide - column, STEP),
    };
}

static void find_pieces(const shape *s, int64_t part, int64_t lane, int64_t count, piece *pieces) {
    for (int64_t at = lane; at < lane + count; at += LENGTH, ++pieces) {
        *pieces = (piece){0};
        if (at >= s->lanes) continue;
        const int64_t tile = at / s->images, image = at - tile * s->images;
        *pieces = find_tile(s, part, tile);
        pieces->in += image, pieces->out += image;
    }
}

// Whether any tile of the panel that begins with `lane` has data of channels [c0, c1), which the first always have.
static int has_data(const shape *s, int64_t lane, int64_t c0, int64_t c1) {
    if (c0 == 0) return 1;
    for (int64_t part = c0 / s->maps; part * s->maps < c1; ++part)
        for (int64_t tile = lane / s->images; tile * s->images < least(lane + WIDTH, s->lanes); ++tile) {
            const piece p = find_tile(s, part, tile);
            if (p.rows1 > p.rows0 && p.columns1 > p.columns0) return 1;
        }
    return 0;
}

// The same of a block's panels, as bits.
static uint64_t find_filled(const shape *s, int64_t lane, int64_t panels, int64_t c0, int64_t c1) {
    uint64_t filled = 0;
    for (int64_t p = 0; p < panels; ++p) filled |= (uint64_t)has_data(s, lane + p * WIDTH, c0, c1) << p;
    return filled;
}

// The part of LANES lanes that one piece holds: values of the square `d` from and to memory, lanes [at, at + LENGTH).
INLINE void fetch_one(const TB_S *from, vec *d, int at) {
    if (LENGTH == LANES) *d = load(from);
    else
        for (int l = 0; l < LENGTH; ++l) ((TB_T *)d)[at + l] = TB_WIDE(from[l]);
}

INLINE void put_one(const vec *d, int at, TB_R *to) {
    if (LENGTH == LANES) store(to, *d);
    else
        for (int l = 0; l < LENGTH; ++l) to[l] = TB_NARROW(((const TB_T *)d)[at + l]);
}

// Tiles whose images fill vectors, or tiles of all their images, fewer than lanes: a vector from memory has PIECES columns
// of one tile, and PIECES tiles of one column are wanted.
enum { PIECES = LANES / LENGTH, BY_COLUMNS = PIECES == 1 || (COLUMNS && PIECES <= POINTS) };

INLINE void exchange(vec *r) {
    typedef TB_INDEX mask __attribute__((vector_size(TB_VECTOR)));
    mask lane;
    UNROLL for (int l = 0; l < LANES; ++l) lane[l] = l;
    UNROLL for (int h = PIECES / 2; h >= 1; h /= 2) {
        const mask low = lane + ((mask)((lane & h * LENGTH) != 0) & (LANES - h * LENGTH)), high = low + h * LENGTH;
        UNROLL for (int i = 0; i < PIECES; ++i) {
            if (i & h) continue;
            const vec a = r[i], b = r[i + h];
            r[i] = TB_CHOSEN(a, b, low);
            r[i + h] = TB_CHOSEN(a, b, high);
        }
    }
}

// Loops over what is loaded: to widen numbers takes so many instructions that compiling them unrolled takes too long.
#ifdef TB_PLAIN
#define UNROLL_LOADS UNROLL
#else
#define UNROLL_LOADS _Pragma("GCC unroll 1")
#endif

// The data of LANES lanes by columns; tiles that are not whole are copied with zeros first.
INLINE void fetch_columns(const shape *s, const piece *p, const TB_S *image, vec *d) {
    const int64_t row = s->high.stride * s->in_wide * s->images, column = s->wide.stride * s->images;
    TB_S copy[BY_COLUMNS ? PIECES : 1][SQUARE * LENGTH];
    const TB_S *from[PIECES];
    int64_t down[PIECES], across[PIECES];
    UNROLL for (int n = 0; n < PIECES; ++n) {
        from[n] = image + p[n].in, down[n] = row, across[n] = PIECES == 1 ? column : LENGTH;
        if (p[n].rows1 - p[n].rows0 == POINTS && p[n].columns1 - p[n].columns0 == POINTS) continue;
        __builtin_memset(copy[n], 0, sizeof copy[n]);
        for (int i = p[n].rows0; i < p[n].rows1; ++i)
            for (int j = p[n].columns0; j < p[n].columns1; ++j)
                __builtin_memcpy(copy[n] + (i * POINTS + j) * LENGTH, from[n] + i * row + j * column, LENGTH * sizeof(TB_S));
        from[n] = copy[n], down[n] = POINTS * LENGTH, across[n] = LENGTH;
    }
    UNROLL_LOADS for (int i = 0; i < POINTS; ++i)
        UNROLL_LOADS for (int j = 0; j < POINTS; j += PIECES) {
            const int first = j + PIECES < POINTS ? j : POINTS - PIECES;
            vec r[PIECES];
            UNROLL for (int n = 0; n < PIECES; ++n) r[n] = load(from[n] + i * down[n] + first * across[n]);
            exchange(r);
            UNROLL for (int k = 0; k < PIECES; ++k) d[i * POINTS + first + k] = r[k];
        }
}

// The data of LANES lanes, zero where there are none.
INLINE void fetch_data(const shape *s, const piece *p, const TB_S *image, vec *d) {
    const int64_t row = s->high.stride * s->in_wide * s->images, column = s->wide.stride * s->images;
    if (BY_COLUMNS) {
        fetch_columns(s, p, image, d);
        return;
    }
    for (int at = 0; at < LANES; at += LENGTH, ++p) {
        if (p->rows1 - p->rows0 == POINTS && p->columns1 - p->columns0 == POINTS) {
            for (int i = 0; i < POINTS; ++i)
                UNROLL_LOADS for (int j = 0; j < POINTS; ++j) fetch_one(image + p->in + i * row + j * column, d + i * POINTS + j, at);
            continue;
        }
        for (int i = 0; i < SQUARE; ++i)
            for (int l = 0; l < LENGTH; ++l) ((TB_T *)(d + i))[at + l] = 0;
        for (int i = p->rows0; i < p->rows1; ++i)
            for (int j = p->columns0; j < p->columns1; ++j)
                fetch_one(image + p->in + i * row + j * column, d + i * POINTS + j, at);
    }
}

// The errors of LANES lanes, zero where there are none.
INLINE void fetch_errors(const shape *s, const piece *p, const TB_S *image, vec *d) {
    for (int i = 0; i < STEP * STEP; ++i) d[i] = (vec){0};
    for (int at = 0; at < LANES; at += LENGTH, ++p)
        for (int i = 0; i < p->high; ++i)
            for (int j = 0; j < p->wide; ++j)
                fetch_one(image + p->out + (i * s->out_wide + j) * s->images, d + i * STEP + j, at);
}

// The data's lines on their way to the cache: rows of a map lie too far apart for the processor to guess them.
INLINE void prefetch_data(const shape *s, const piece *p, const TB_S *image) {
    const int64_t row = s->high.stride * s->in_wide * s->images, column = s->wide.stride * s->images;
    for (int at = 0; at < LANES; at += LENGTH, ++p)
        for (int i = p->rows0; i < p->rows1; ++i)
            for (int j = p->columns0; j < p->columns1; j += LENGTH < LINE ? LINE / LENGTH : 1)
                __builtin_prefetch(image + p->in + i * row + j * column);
}

// The same of errors.
INLINE void prefetch_errors(const shape *s, const piece *p, const TB_S *image) {
    for (int at = 0; at < LANES; at += LENGTH, ++p)
        for (int i = 0; i < p->high; ++i)
            for (int j = 0; j < p->wide; j += LENGTH < LINE ? LINE / LENGTH : 1)
                __builtin_prefetch(image + p->out + (i * s->out_wide + j) * s->images);
}

#include "conv_winograd_few.h"

// The places of LANES tiles to memory; vectors that are cache lines go past the caches where that is wanted.
INLINE void put_places(const shape *s, const piece *p, const vec *o, TB_R *image) {
#ifdef TB_PLAIN
    if (LENGTH == LANES && TB_VECTOR == 64 && s->past && ((uintptr_t)image | s->images * sizeof(TB_T)) % 64 == 0) {
        TB_R *to = image + p->out;
        for (int i = 0; i < p->high; ++i, to += s->out_wide * s->images)
            for (int j = 0; j < p->wide; ++j) store_past(to + j * s->images, (whole_vector)o[i * OUT + j]);
        return;
    }
#endif
    for (int at = 0; at < LANES; at += LENGTH, ++p)
        for (int i = 0; i < p->high; ++i)
            for (int j = 0; j < p->wide; ++j)
                put_one(o + i * OUT + j, at, image + p->out + (i * s->out_wide + j) * s->images);
}

// The places' lines on their way to the cache before they are written.
INLINE void expect_places(const shape *s, const piece *p, const TB_R *image) {
    for (int at = 0; at < LANES; at += LENGTH, ++p)
        for (int i = 0; i < p->high; ++i)
            for (int j = 0; j < p->wide; j += LENGTH < LINE ? LINE / LENGTH : 1)
                __builtin_prefetch(image + p->out + (i * s->out_wide + j) * s->images, 1);
}

// A vector of each point, `point` elements apart. Loops are unrolled so that squares need not go through memory.
INLINE void take_points(const TB_T *from, int64_t point, vec *d) {
    UNROLL for (int i = 0; i < POINTS; ++i)
        UNROLL for (int j = 0; j < POINTS; ++j) d[i * POINTS + j] = *(const vec *)(from + (i * POINTS + j) * point);
}

INLINE void put_points(const vec *d, TB_T *to, int64_t point) {
    UNROLL for (int i = 0; i < POINTS; ++i)
        UNROLL for (int j = 0; j < POINTS; ++j) *(vec *)(to + (i * POINTS + j) * point) = d[i * POINTS + j];
}

// A line of each point, on its way to the cache before it is written: stores wait for their lines one after the other.
INLINE void expect(TB_T *to, int64_t point) {
    for (int p = 0; p < SQUARE; ++p) __builtin_prefetch(to + p * point, 1);
}

// The first halves of two vectors, or the last.
INLINE vec beside(vec a, vec b, int last) {
    typedef TB_INDEX mask __attribute__((vector_size(TB_VECTOR)));
    mask low, high;
    UNROLL for (int l = 0; l < LANES; ++l) low[l] = l % (LANES / 2) + l / (LANES / 2) * LANES;
    high = low + LANES / 2;
    return last ? TB_CHOSEN(a, b, high) : TB_CHOSEN(a, b, low);
}
