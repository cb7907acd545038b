// SPDX-License-Identifier: Apache-2.0
// conv_winograd.c — the same for small square filters at stride 1, by minimal filtering
//
// Computes  what conv.c does, from POINTS x POINTS products a tile instead of (OUT TAPS)^2, where
//           POINTS = OUT + TAPS - 1: polynomials of the tile and of the filter are multiplied at the points 0, 1, -1,
//           infinity (four points) and 2, -2 (six). (Winograd, 1980; Lavin and Gray, 2015)
//               forward, backward  tiles of OUT x OUT outputs, filters of TAPS x TAPS
//               dF                 tiles of TAPS x TAPS errors as filters, OUT x OUT entries of dF as outputs
// Macros    those of conv.h; POINTS, OUT, TAPS; STEP, the places from one tile to the next (OUT, or TAPS for dF);
//           LENGTH, how many neighbouring lanes are images of one tile: the largest power of 2 that divides N, at most
//           LANES.
// Lanes     The tiles of all images, flattened over (depth, row, column, image), are the lanes of a product of matrices
//           for each point.
// Stages    A block of panels of WIDTH lanes goes through
//               in        V[point][panel][channel][WIDTH]   B' d B for each tile of data d
//               multiply  M[point][panel][map][WIDTH]       sums over channels of U V, with U = G f G' of the filters
//               out       A' m A, the outputs of each tile
//           Either one task takes a block through all three in its own memory, or all tasks share each stage.
//           For dF: V[point][channel][lane], W[point][panel of maps][lane][WIDTH], their products added up over lanes.
// Order     Sums run over channels (dF: lanes, in blocks). That depends on shapes alone.
// Error     grows with the points: about 1e-6 of the largest result with four, 2e-5 with six
// Checked   tests/primitives/test_conv_kernels.py; timed by benchmarks/conv.py
#include "conv.h"

enum { SQUARE = POINTS * POINTS, COPIED_CHANNELS = 16 };

typedef TB_T maps __attribute__((vector_size(MR * sizeof(TB_T)), aligned(sizeof(TB_T)), may_alias));

// What the host passes in `size`.
enum {
    IMAGES = SIZES, MAPS_IN, MAPS_OUT,  // maps of a group
    GROUPS, BACKWARD, DEPTH, IN_HIGH, IN_WIDE, OUT_HIGH, OUT_WIDE, PAD_HIGH, PAD_WIDE,
    PANELS,             // of a block of lanes
    SLOTS, SLOT_BYTES,  // of scratch, as tb_winograd_needs says
    BLOCK,              // the number of the block, counted over all groups, in shared stages
};

typedef struct shape {
    int64_t images, maps_in, maps_out, groups, depth, in_high, in_wide, out_high, out_wide, pad_high, pad_wide, panels;
    int64_t rows, columns;                       // tiles of an image
    int64_t lanes, blocks;                       // of a group
    int64_t tiles, padded;                       // of MR maps; maps in whole panels
    int64_t in_map, out_map;                     // elements of a map
    int64_t u_point, v_point, m_point, w_point;  // from a point to the next; v_point of dF has other axes
    int64_t pitch, sums;                         // dF: from a channel of V to the next, from a point of the sums
} shape;

static shape read_shape(const int64_t *size) {
    shape s = {
        .images = size[IMAGES], .maps_in = size[MAPS_IN], .maps_out = size[MAPS_OUT], .groups = size[GROUPS],
        .depth = size[DEPTH], .in_high = size[IN_HIGH], .in_wide = size[IN_WIDE], .out_high = size[OUT_HIGH],
        .out_wide = size[OUT_WIDE], .pad_high = size[PAD_HIGH], .pad_wide = size[PAD_WIDE], .panels = size[PANELS],
    };
    s.rows = ceil_div(s.out_high, STEP);
    s.columns = ceil_div(s.out_wide, STEP);
    s.lanes = s.depth * s.rows * s.columns * s.images;
    s.blocks = ceil_div(s.lanes, s.panels * WIDTH);
    s.tiles = ceil_div(s.maps_out, MR);
    s.padded = ceil_div(s.maps_out, WIDTH) * WIDTH;
    s.in_map = s.depth * s.in_high * s.in_wide * s.images;
    s.out_map = s.depth * s.out_high * s.out_wide * s.images;
    s.u_point = apart(s.tiles * s.maps_in * MR);
    s.v_point = apart(s.panels * s.maps_in * WIDTH);
    s.m_point = apart(s.panels * s.tiles * MR * WIDTH);
    s.pitch = apart(s.panels * WIDTH);
    s.w_point = apart(s.padded * s.panels * WIDTH);
    s.sums = apart(s.maps_in * s.padded);
    return s;
}

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

// G g: TAPS values, `from_step` apart, to POINTS values.
#if POINTS == 4
#define TB_TRANSFORM_FILTER(NAME, TYPE) \
    INLINE void NAME(const TYPE *g, int from_step, TYPE *o, int step) { \
        TYPE even = {0}, odd = {0}; \
        for (int i = 0; i < TAPS; i += 2) even += g[i * from_step]; \
        for (int i = 1; i < TAPS; i += 2) odd += g[i * from_step]; \
        o[0] = g[0]; \
        o[step] = (even + odd) / 2; \
        o[2 * step] = (even - odd) / 2; \
        o[3 * step] = g[(TAPS - 1) * from_step]; \
    }
#else
#define TB_TRANSFORM_FILTER(NAME, TYPE) \
    INLINE void NAME(const TYPE *g, int from_step, TYPE *o, int step) { \
        TYPE even = {0}, odd = {0}, even2 = {0}, odd2 = {0}; \
        for (int i = 0; i < TAPS; i += 2) even += g[i * from_step], even2 += (TB_T)(1 << i) * g[i * from_step]; \
        for (int i = 1; i < TAPS; i += 2) odd += g[i * from_step], odd2 += (TB_T)(1 << i) * g[i * from_step]; \
        o[0] = g[0] / 4; \
        o[step] = (even + odd) * (TB_T)(-1. / 6); \
        o[2 * step] = (even - odd) * (TB_T)(-1. / 6); \
        o[3 * step] = (even2 + odd2) * (TB_T)(1. / 24); \
        o[4 * step] = (even2 - odd2) * (TB_T)(1. / 24); \
        o[5 * step] = g[(TAPS - 1) * from_step]; \
    }
#endif
TB_TRANSFORM_FILTER(transform_filter, maps)
TB_TRANSFORM_FILTER(transform_errors, vec)

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
    for (int j = 0; j < POINTS; ++j) transform_data(d + j, half + j, POINTS);
    for (int i = 0; i < POINTS; ++i) transform_data(half + i * POINTS, d + i * POINTS, 1);
}

INLINE void transform_square_back(const vec *m, vec *o) {  // A' m A
    vec half[OUT * POINTS];
    for (int j = 0; j < POINTS; ++j) transform_back(m + j, POINTS, half + j, POINTS);
    for (int i = 0; i < OUT; ++i) transform_back(half + i * POINTS, 1, o + i * OUT, 1);
}

// Tiles in memory -----------------------------------------------------------------------------------------------------

// LENGTH neighbouring lanes: images of one tile. Those past the last lane have no data and no places.
typedef struct piece {
    int64_t in, out;                       // where the tile's first datum and first place are in a map
    int rows0, rows1, columns0, columns1;  // its data that exist
    int high, wide;                        // its places that exist
} piece;

static int limit(int64_t x, int most) { return x < 0 ? 0 : x > most ? most : (int)x; }

static void find_pieces(const shape *s, int64_t lane, int64_t count, piece *pieces) {
    for (int64_t at = lane; at < lane + count; at += LENGTH, ++pieces) {
        *pieces = (piece){0};
        if (at >= s->lanes) continue;
        const int64_t image = at % s->images, tile = at / s->images, column = tile % s->columns * STEP;
        const int64_t row = tile / s->columns % s->rows * STEP, depth = tile / s->columns / s->rows;
        const int64_t h = row - s->pad_high, w = column - s->pad_wide;
        pieces->in = ((depth * s->in_high + h) * s->in_wide + w) * s->images + image;
        pieces->out = ((depth * s->out_high + row) * s->out_wide + column) * s->images + image;
        pieces->rows0 = limit(-h, POINTS), pieces->rows1 = limit(s->in_high - h, POINTS);
        pieces->columns0 = limit(-w, POINTS), pieces->columns1 = limit(s->in_wide - w, POINTS);
        pieces->high = limit(s->out_high - row, STEP), pieces->wide = limit(s->out_wide - column, STEP);
    }
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

// The data of LANES lanes, zero where there are none.
INLINE void fetch_data(const shape *s, const piece *p, const TB_S *image, vec *d) {
    const int64_t row = s->in_wide * s->images, column = s->images;
    for (int at = 0; at < LANES; at += LENGTH, ++p) {
        const TB_S *const from = image + p->in;
        if (p->rows1 - p->rows0 == POINTS && p->columns1 - p->columns0 == POINTS) {
            for (int i = 0; i < SQUARE; ++i) fetch_one(from + i / POINTS * row + i % POINTS * column, d + i, at);
            continue;
        }
        for (int i = 0; i < SQUARE; ++i)
            for (int l = 0; l < LENGTH; ++l) ((TB_T *)(d + i))[at + l] = 0;
        for (int i = p->rows0; i < p->rows1; ++i)
            for (int j = p->columns0; j < p->columns1; ++j)
                fetch_one(from + i * row + j * column, d + i * POINTS + j, at);
    }
}

// The errors of LANES lanes, zero where there are none.
INLINE void fetch_errors(const shape *s, const piece *p, const TB_S *image, vec *d) {
    for (int i = 0; i < TAPS * TAPS; ++i) d[i] = (vec){0};
    for (int at = 0; at < LANES; at += LENGTH, ++p)
        for (int i = 0; i < p->high; ++i)
            for (int j = 0; j < p->wide; ++j)
                fetch_one(image + p->out + (i * s->out_wide + j) * s->images, d + i * TAPS + j, at);
}

// The data's lines on their way to the cache: rows of a map lie too far apart for the processor to guess them.
INLINE void prefetch_data(const shape *s, const piece *p, const TB_S *image) {
    const int64_t row = s->in_wide * s->images, column = s->images;
    for (int at = 0; at < LANES; at += LENGTH, ++p)
        for (int i = p->rows0; i < p->rows1; ++i)
            for (int j = p->columns0; j < p->columns1; j += LENGTH < LINE ? LINE / LENGTH : 1)
                __builtin_prefetch(image + p->in + i * row + j * column);
}

INLINE void put_places(const shape *s, const piece *p, const vec *o, TB_R *image) {
    for (int at = 0; at < LANES; at += LENGTH, ++p)
        for (int i = 0; i < p->high; ++i)
            for (int j = 0; j < p->wide; ++j)
                put_one(o + i * OUT + j, at, image + p->out + (i * s->out_wide + j) * s->images);
}

// Forward and backward ------------------------------------------------------------------------------------------------

// U of a tile of maps and a channel, from its taps.
INLINE void transform_taps(const shape *s, const maps *g, TB_T *to) {
    maps half[POINTS * TAPS], whole[SQUARE];
    for (int j = 0; j < TAPS; ++j) transform_filter(g + j, TAPS, half + j, TAPS);
    for (int i = 0; i < POINTS; ++i) transform_filter(half + i * TAPS, 1, whole + i * POINTS, 1);
    for (int p = 0; p < SQUARE; ++p) *(maps *)(to + p * s->u_point) = whole[p];
}

// The same from memory: taps lie `row` apart, maps `step`.
INLINE void transform_tile(const shape *s, const TB_S *from, int64_t row, int64_t step, int64_t count, int flip,
                           TB_T *to) {
    maps g[TAPS * TAPS];
    for (int i = 0; i < TAPS * TAPS; ++i) {
        maps *const at = &g[flip ? TAPS * TAPS - 1 - i : i];
        *at = (maps){0};
        for (int64_t k = 0; k < count; ++k) (*at)[k] = TB_WIDE(from[i * row + k * step]);
    }
    transform_taps(s, g, to);
}

// The same of MR maps and LANES channels, which lie side by side, with taps in reverse order.
static void transform_turned(const shape *s, const TB_S *from, int64_t row, int64_t step, TB_T *to) {
    maps g[LANES][TAPS * TAPS];
    for (int i = 0; i < TAPS * TAPS; ++i) {
        vec r[LANES];
        for (int k = 0; k < LANES; ++k) r[k] = k < MR ? load(from + i * row + k * step) : (vec){0};
        transpose(r);
        for (int l = 0; l < LANES; ++l)
            for (int k = 0; k < MR && k < LANES; ++k) g[l][TAPS * TAPS - 1 - i][k] = r[l][k];
    }
    for (int l = 0; l < LANES; ++l) transform_taps(s, g[l], to + l * MR);
}

// To U[group][point][tile][channel][MR]. A task: COPIED_CHANNELS channels of a group.
void tb_winograd_filters(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                         int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t backward = size[BACKWARD], row = (backward ? s.maps_in : s.maps_out) * s.groups;
    const int64_t channel = TAPS * TAPS * row, blocks = ceil_div(s.maps_in, COPIED_CHANNELS);
    if (begin == 0) free_slots(TB_PLACE(OWN), size[SLOTS]);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t group = task / blocks, first = task % blocks * COPIED_CHANNELS;
        const int64_t last = least(first + COPIED_CHANNELS, s.maps_in);
        const TB_S *const from = (const TB_S *)TB_PLACE(FILTERS) + group * (backward ? s.maps_in : s.maps_out);
        TB_T *const to = (TB_T *)TB_PLACE(PACKED) + group * SQUARE * s.u_point;
        for (int64_t map = 0; map < s.maps_out; map += MR) {
            const int64_t count = least(MR, s.maps_out - map);
            int64_t c = first;
            if (backward && count == MR && MR <= LANES)
                for (; c + LANES <= last; c += LANES)
                    transform_turned(&s, from + map * channel + c, row, channel, to + map * s.maps_in + c * MR);
            for (; c < last; ++c) {
                TB_T *const tile = to + map * s.maps_in + c * MR;
                if (backward) transform_tile(&s, from + map * channel + c, row, channel, count, 1, tile);
                else if (count == MR) transform_tile(&s, from + c * channel + map, row, 1, MR, 0, tile);
                else transform_tile(&s, from + c * channel + map, row, 1, count, 0, tile);
            }
        }
    }
}

// V of channels [c0, c1) and of the panel that begins with `lane`.
static void transform_in(const shape *s, const TB_S *in, int64_t c0, int64_t c1, int64_t lane, TB_T *v) {
    piece pieces[WIDTH];
    find_pieces(s, lane, WIDTH, pieces);
    for (int64_t c = c0; c < c1; ++c)
        for (int at = 0; at < WIDTH; at += LANES) {
            vec d[SQUARE];
            if (c + 1 < c1) prefetch_data(s, pieces + at / LENGTH, in + (c + 1) * s->in_map);
            fetch_data(s, pieces + at / LENGTH, in + c * s->in_map, d);
            transform_square(d);
            for (int p = 0; p < SQUARE; ++p) *(vec *)(v + p * s->v_point + c * WIDTH + at) = d[p];
        }
}

// MR maps and a panel of lanes at one point.
static __attribute__((noinline)) void multiply(int64_t channels, const TB_T *u, const TB_T *v, TB_T *m) {
    vec sum[MR][NV];
    for (int i = 0; i < MR; ++i)
        for (int j = 0; j < NV; ++j) sum[i][j] = (vec){0};
    const TB_T *const end = u + channels * MR;
    _Pragma("GCC unroll 2")
    for (; u < end; u += MR, v += WIDTH) {
        vec y[NV];
        for (int j = 0; j < NV; ++j) y[j] = *(const vec *)(v + j * LANES);
        for (int i = 0; i < MR; ++i) {
            const vec x = spread(u[i]);
            for (int j = 0; j < NV; ++j) sum[i][j] += x * y[j];
        }
    }
    for (int i = 0; i < MR; ++i)
        for (int j = 0; j < NV; ++j) *(vec *)(m + i * WIDTH + j * LANES) = sum[i][j];
}

// The products of `panels` panels at a point; u: the filters of the group.
static void multiply_point(const shape *s, const TB_T *u, int64_t point, int64_t panels, const TB_T *v, TB_T *m) {
    for (int64_t p = 0; p < panels; ++p)
        for (int64_t t = 0; t < s->tiles; ++t)
            multiply(s->maps_in, u + point * s->u_point + t * s->maps_in * MR,
                     v + point * s->v_point + p * s->maps_in * WIDTH,
                     m + point * s->m_point + (p * s->tiles + t) * MR * WIDTH);
}

// The tiles of maps [k0, k1) and of the panel that begins with `lane`.
static void transform_out(const shape *s, const TB_T *m, int64_t k0, int64_t k1, int64_t lane, TB_R *out) {
    piece pieces[WIDTH];
    find_pieces(s, lane, WIDTH, pieces);
    for (int64_t k = k0; k < k1; ++k)
        for (int at = 0; at < WIDTH; at += LANES) {
            vec d[SQUARE], o[OUT * OUT];
            for (int p = 0; p < SQUARE; ++p) d[p] = *(const vec *)(m + p * s->m_point + k * WIDTH + at);
            transform_square_back(d, o);
            put_places(s, pieces + at / LENGTH, o, out + k * s->out_map);
        }
}

// Runs the tail on maps [k0, k1) of a group at the places of the panel that begins with `lane`. Tiles, or images of a
// tile, whose places lie side by side go together.
static void finish(const shape *s, int64_t group, int64_t k0, int64_t k1, int64_t lane, void *const *ptr,
                   const int64_t *size, const int64_t *stride, const int64_t *scalar) {
    if (!stride[TAIL]) return;
    piece pieces[WIDTH];
    find_pieces(s, lane, WIDTH, pieces);
    const int together = s->images == LENGTH;
    for (int i = 0; i < OUT; ++i)
        for (int j = 0; j < (together ? 1 : OUT); ++j) {
            int64_t start = 0, end = 0;
            for (const piece *p = pieces; p < pieces + WIDTH / LENGTH; ++p) {
                if (i >= p->high || j >= p->wide) continue;
                const int64_t from = p->out + (i * s->out_wide + j) * s->images;
                if (from != end) {
                    TB_FINISH(s->out_map, group * s->maps_out + k0, k1 - k0, start, end - start);
                    start = from;
                }
                end = from + (together ? p->wide : 1) * LENGTH;
            }
            TB_FINISH(s->out_map, group * s->maps_out + k0, k1 - k0, start, end - start);
        }
}

// A block of lanes of a group.
typedef struct block {
    const TB_S *in;
    const TB_T *u;
    TB_R *out;
    int64_t lane, panels;
} block;

static block find_block(const shape *s, void *const *ptr, const int64_t *size, int64_t number) {
    const int64_t group = number / s->blocks, lane = number % s->blocks * s->panels * WIDTH;
    return (block){
        (const TB_S *)TB_PLACE(IN) + group * s->maps_in * s->in_map,
        (const TB_T *)TB_PLACE(PACKED) + group * SQUARE * s->u_point,
        (TB_R *)TB_PLACE(RESULT) + group * s->maps_out * s->out_map,
        lane,
        least(s->panels, ceil_div(s->lanes - lane, WIDTH)),
    };
}

// A task: a block of lanes of a group, through all stages.
void tb_winograd(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                 int64_t end) {
    const shape s = read_shape(size);
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots);
    TB_T *const v = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]), *const m = v + SQUARE * s.v_point;
    for (int64_t task = begin; task < end; ++task) {
        const block b = find_block(&s, ptr, size, task);
        for (int64_t p = 0; p < b.panels; ++p)
            transform_in(&s, b.in, 0, s.maps_in, b.lane + p * WIDTH, v + p * s.maps_in * WIDTH);
        for (int64_t point = 0; point < SQUARE; ++point) multiply_point(&s, b.u, point, b.panels, v, m);
        for (int64_t p = 0; p < b.panels; ++p) {
            transform_out(&s, m + p * s.tiles * MR * WIDTH, 0, s.maps_out, b.lane + p * WIDTH, b.out);
            finish(&s, task / s.blocks, 0, s.maps_out, b.lane + p * WIDTH, ptr, size, stride, scalar);
        }
    }
    give_slot(TB_PLACE(OWN), slot);
}

// The stages of block size[BLOCK], shared by all tasks: MR channels of a panel; a point; MR maps of a panel.
void tb_winograd_in(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                    int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const block b = find_block(&s, ptr, size, size[BLOCK]);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t p = task % s.panels, c = task / s.panels * MR;
        if (p >= b.panels) continue;
        TB_T *const v = (TB_T *)TB_PLACE(DATA) + p * s.maps_in * WIDTH;
        transform_in(&s, b.in, c, least(c + MR, s.maps_in), b.lane + p * WIDTH, v);
    }
}

void tb_winograd_multiply(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                          int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const block b = find_block(&s, ptr, size, size[BLOCK]);
    for (int64_t point = begin; point < end; ++point)
        multiply_point(&s, b.u, point, b.panels, TB_PLACE(DATA), TB_PLACE(PRODUCTS));
}

void tb_winograd_out(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                     int64_t begin, int64_t end) {
    const shape s = read_shape(size);
    const block b = find_block(&s, ptr, size, size[BLOCK]);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t p = task % s.panels, k = task / s.panels * MR;
        if (p >= b.panels) continue;
        const TB_T *const m = (const TB_T *)TB_PLACE(PRODUCTS) + p * s.tiles * MR * WIDTH;
        const int64_t last = least(k + MR, s.maps_out), group = size[BLOCK] / s.blocks;
        transform_out(&s, m, k, last, b.lane + p * WIDTH, b.out);
        finish(&s, group, k, last, b.lane + p * WIDTH, ptr, size, stride, scalar);
    }
}

// The gradient by the filters -----------------------------------------------------------------------------------------

// Up to LANES channels at a panel of lanes.
static void update_data(const shape *s, const piece *pieces, const TB_S *in, int64_t count, TB_T *v) {
    for (int64_t c = 0; c < count; ++c)
        for (int at = 0; at < WIDTH; at += LANES) {
            vec d[SQUARE];
            if (c + 1 < count) prefetch_data(s, pieces + at / LENGTH, in + (c + 1) * s->in_map);
            fetch_data(s, pieces + at / LENGTH, in + c * s->in_map, d);
            transform_square(d);
            for (int p = 0; p < SQUARE; ++p) *(vec *)(v + p * s->v_point + c * s->pitch + at) = d[p];
        }
}

// Up to LANES maps at a panel of lanes: turned so that maps lie side by side, then transformed, lane by lane.
static void update_errors(const shape *s, const piece *pieces, const TB_S *errors, int64_t count, TB_T *w) {
    enum { CELLS = TAPS * TAPS };
    for (int at = 0; at < WIDTH; at += LANES) {
        vec e[CELLS], turned[CELLS][LANES];
        for (int k = 0; k < LANES; ++k) {
            if (k < count) fetch_errors(s, pieces + at / LENGTH, errors + k * s->out_map, e);
            for (int i = 0; i < CELLS; ++i) turned[i][k] = k < count ? e[i] : (vec){0};
        }
        for (int i = 0; i < CELLS; ++i) transpose(turned[i]);
        for (int l = 0; l < LANES; ++l) {
            vec half[POINTS * TAPS], whole[SQUARE];
            for (int i = 0; i < CELLS; ++i) e[i] = turned[i][l];
            for (int j = 0; j < TAPS; ++j) transform_errors(e + j, TAPS, half + j, TAPS);
            for (int i = 0; i < POINTS; ++i) transform_errors(half + i * TAPS, 1, whole + i * POINTS, 1);
            for (int p = 0; p < SQUARE; ++p) *(vec *)(w + p * s->w_point + (at + l) * WIDTH) = whole[p];
        }
    }
}

// To V[point][channel][lane] and W[point][panel of maps][lane][WIDTH]. A task: a panel of lanes of LANES channels, or,
// after all of them, of LANES maps.
void tb_winograd_update_in(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                           int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    shape s = read_shape(size);
    s.v_point = apart(s.maps_in * s.pitch);
    const int64_t group = size[BLOCK] / s.blocks, lanes = s.panels * WIDTH, first = size[BLOCK] % s.blocks * lanes;
    const int64_t channels = ceil_div(s.maps_in, LANES) * LANES;
    piece pieces[WIDTH];
    for (int64_t task = begin; task < end; ++task) {
        const int64_t at = task % s.panels * WIDTH, c = task / s.panels * LANES, k = c - channels;
        find_pieces(&s, first + at, WIDTH, pieces);
        if (c < channels) {
            const TB_S *const in = (const TB_S *)TB_PLACE(IN) + (group * s.maps_in + c) * s.in_map;
            TB_T *const v = (TB_T *)TB_PLACE(DATA) + c * s.pitch + at;
            update_data(&s, pieces, in, least(LANES, s.maps_in - c), v);
        } else {
            const TB_S *const errors = (const TB_S *)TB_PLACE(FILTERS) + (group * s.maps_out + k) * s.out_map;
            TB_T *const w = (TB_T *)TB_PLACE(PRODUCTS) + k / WIDTH * WIDTH * lanes + at * WIDTH + k % WIDTH;
            update_errors(&s, pieces, errors, s.maps_out - k, w);
        }
    }
}

// M channels and a panel of maps at one point; `more`: added to the sums.
#define TB_UPDATE(M) \
    static __attribute__((noinline)) void update_##M(int64_t lanes, const TB_T *v, int64_t pitch, const TB_T *w, \
            TB_T *to, int64_t step, int more) { \
        vec sum[M][NV]; \
        const TB_T *x[M]; \
        for (int i = 0; i < M; ++i) { \
            x[i] = v + i * pitch; \
            for (int j = 0; j < NV; ++j) sum[i][j] = (vec){0}; \
            for (int j = 0; j < WIDTH; j += LINE) __builtin_prefetch(to + i * step + j, 1); \
        } \
        _Pragma("GCC unroll 2") \
        for (int64_t l = 0; l < lanes; ++l, w += WIDTH) { \
            vec y[NV]; \
            for (int j = 0; j < NV; ++j) y[j] = *(const vec *)(w + j * LANES); \
            for (int i = 0; i < M; ++i) { \
                const vec value = spread(x[i][l]); \
                for (int j = 0; j < NV; ++j) sum[i][j] += value * y[j]; \
            } \
        } \
        for (int i = 0; i < M; ++i) \
            for (int j = 0; j < NV; ++j) { \
                vec *const at = (vec *)(to + i * step + j * LANES); \
                if (more) sum[i][j] += *at; \
                *at = sum[i][j]; \
            } \
    }
TB_UPDATE(8)
TB_UPDATE(1)

// A task: a point.
void tb_winograd_update_multiply(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                                 int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t group = size[BLOCK] / s.blocks, more = size[BLOCK] % s.blocks > 0, lanes = s.panels * WIDTH;
    for (int64_t point = begin; point < end; ++point)
        for (int64_t k = 0; k < s.padded; k += WIDTH) {
            const TB_T *const v = (const TB_T *)TB_PLACE(DATA) + point * apart(s.maps_in * s.pitch);
            const TB_T *const w = (const TB_T *)TB_PLACE(PRODUCTS) + point * s.w_point + k * lanes;
            TB_T *const to = (TB_T *)TB_PLACE(PACKED) + (group * SQUARE + point) * s.sums + k;
            int64_t c = 0;
            for (; c + 8 <= s.maps_in; c += 8)
                update_8(lanes, v + c * s.pitch, s.pitch, w, to + c * s.padded, s.padded, more);
            for (; c < s.maps_in; ++c) update_1(lanes, v + c * s.pitch, s.pitch, w, to + c * s.padded, s.padded, more);
        }
}

// A task: the filters of a channel of a group.
void tb_winograd_update_out(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                            int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t row = s.maps_out * s.groups;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t group = task / s.maps_in, c = task % s.maps_in;
        const TB_T *const from = (const TB_T *)TB_PLACE(PACKED) + group * SQUARE * s.sums + c * s.padded;
        TB_R *const to = (TB_R *)TB_PLACE(RESULT) + c * OUT * OUT * row + group * s.maps_out;
        for (int64_t k = 0; k < s.maps_out; k += LANES) {
            vec d[SQUARE], o[OUT * OUT];
            for (int p = 0; p < SQUARE; ++p) d[p] = *(const vec *)(from + p * s.sums + k);
            transform_square_back(d, o);
            for (int p = 0; p < OUT * OUT; ++p) {
                if (s.maps_out - k >= LANES) store(to + p * row + k, o[p]);
                else
                    for (int64_t l = 0; l < s.maps_out - k; ++l) to[p * row + k + l] = TB_NARROW(o[p][l]);
            }
        }
    }
}

// out: bytes of U; of a block's V and of its M; of V, W and the sums of dF.
void tb_winograd_needs(const int64_t *size, int64_t *out) {
    const shape s = read_shape(size);
    const int64_t item = SQUARE * sizeof(TB_T);
    out[0] = s.groups * s.u_point * item;
    out[1] = s.v_point * item;
    out[2] = s.m_point * item;
    out[3] = apart(s.maps_in * s.pitch) * item;
    out[4] = s.w_point * item;
    out[5] = s.groups * s.sums * item;
}
