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
//               in        V, of each point and panel        B' d B for each tile of data d
//               multiply  M[point][panel][map][WIDTH]       sums over channels of U V, with U = G f G' of the filters
//               out       A' m A, the outputs of each tile
//           Either one task takes a block through all three in its own memory, or all tasks share each stage.
//           For dF: V of the data and W of the errors, their products added up over lanes.
//           U, V and W lie as the products want them: conv_winograd_fma.h or, with TB_PLANES, conv_winograd_amx.h.
// Order     Sums run over channels (dF: lanes, in blocks). That depends on shapes alone.
// Error     grows with the points: about 1e-6 of the largest result with four, 2e-5 with six
// Checked   tests/primitives/test_conv_kernels.py; timed by benchmarks/conv.py
#include "conv.h"

enum { SQUARE = POINTS * POINTS, COPIED_MAPS = 32 };

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
    int64_t channels, tiles, padded;             // maps_in that are filled; of TILE maps; maps in whole panels
    int64_t in_map, out_map;                     // elements of a map
    int64_t u_point, v_point, m_point, w_point;  // from a point to the next; v_point of dF has other axes
    int64_t pitch, sums;                         // dF: from a channel of V to the next, from a point of the sums
} shape;

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

#include "conv_winograd_few.h"

INLINE void put_places(const shape *s, const piece *p, const vec *o, TB_R *image) {
    for (int at = 0; at < LANES; at += LENGTH, ++p)
        for (int i = 0; i < p->high; ++i)
            for (int j = 0; j < p->wide; ++j)
                put_one(o + i * OUT + j, at, image + p->out + (i * s->out_wide + j) * s->images);
}

// Forward and backward ------------------------------------------------------------------------------------------------

// The filters of a group, and how they lie: taps `row` apart, channels `channel`; backward channels lie side by side, and
// maps `channel` apart.
typedef struct taps {
    const TB_S *from;
    int64_t row, channel, backward;
} taps;

// U of MR maps and a channel, from its taps.
INLINE void transform_taps(const maps *g, TB_T *to, int64_t point) {
    maps half[POINTS * TAPS], whole[SQUARE];
    for (int j = 0; j < TAPS; ++j) transform_filter(g + j, TAPS, half + j, TAPS);
    for (int i = 0; i < POINTS; ++i) transform_filter(half + i * TAPS, 1, whole + i * POINTS, 1);
    for (int p = 0; p < SQUARE; ++p) *(maps *)(to + p * point) = whole[p];
}

// The same from memory: maps lie `step` apart.
INLINE void transform_tile(const TB_S *from, int64_t row, int64_t step, int64_t count, int flip, TB_T *to, int64_t point) {
    maps g[TAPS * TAPS];
    for (int i = 0; i < TAPS * TAPS; ++i) {
        maps *const at = &g[flip ? TAPS * TAPS - 1 - i : i];
        *at = (maps){0};
        for (int64_t k = 0; k < count; ++k) (*at)[k] = TB_WIDE(from[i * row + k * step]);
    }
    transform_taps(g, to, point);
}

// The same of MR maps and LANES channels, which lie side by side, with taps in reverse order.
static void transform_turned(const TB_S *from, int64_t row, int64_t step, TB_T *to, int64_t point, int64_t next) {
    maps g[LANES][TAPS * TAPS];
    for (int i = 0; i < TAPS * TAPS; ++i) {
        vec r[LANES];
        for (int k = 0; k < LANES; ++k) r[k] = k < MR ? load(from + i * row + k * step) : (vec){0};
        transpose(r);
        UNROLL for (int l = 0; l < LANES; ++l) __builtin_memcpy(&g[l][TAPS * TAPS - 1 - i], r + l, sizeof(maps));
    }
    for (int l = 0; l < LANES; ++l) transform_taps(g[l], to + l * next, point);
}

// U of MR maps and of channels [first, last): from a point to the next `point` elements, from a channel `next`.
static void transform_maps(const shape *s, const taps *given, int64_t map, int64_t first, int64_t last, TB_T *to,
                           int64_t point, int64_t next) {
    const int64_t count = least(MR, s->maps_out - map), row = given->row, channel = given->channel;
    int64_t c = first;
    if (given->backward && count == MR && MR <= LANES)
        for (; c + LANES <= last; c += LANES)
            transform_turned(given->from + map * channel + c, row, channel, to + (c - first) * next, point, next);
    for (; c < last; ++c) {
        TB_T *const tile = to + (c - first) * next;
        if (given->backward) transform_tile(given->from + map * channel + c, row, channel, count, 1, tile, point);
        else if (count == MR) transform_tile(given->from + c * channel + map, row, 1, MR, 0, tile, point);
        else transform_tile(given->from + c * channel + map, row, 1, count, 0, tile, point);
    }
}

#if defined(TB_PLANES)
#include "conv_winograd_amx.h"
#else
#include "conv_winograd_fma.h"
#endif

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
    s.channels = ceil_div(s.maps_in, FILLED) * FILLED;
    s.tiles = ceil_div(s.maps_out, TILE);
    s.padded = ceil_div(s.maps_out, WIDTH) * WIDTH;
    s.in_map = s.depth * s.in_high * s.in_wide * s.images;
    s.out_map = s.depth * s.out_high * s.out_wide * s.images;
    s.u_point = apart(s.tiles * stored(s.maps_in, TILE));
    s.v_point = apart(s.panels * stored(s.maps_in, WIDTH));
    s.m_point = apart(s.panels * s.tiles * TILE * WIDTH);
    s.pitch = apart(s.panels * WIDTH);
    s.w_point = apart(s.padded / WIDTH * stored(s.panels * WIDTH, WIDTH));
    s.sums = apart(ceil_div(s.maps_in, TILE) * TILE * s.padded);
    return s;
}

// To U. A task: COPIED_CHANNELS channels and COPIED_MAPS maps of a group.
void tb_winograd_filters(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                         int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t backward = size[BACKWARD], row = (backward ? s.maps_in : s.maps_out) * s.groups;
    const int64_t blocks = ceil_div(s.maps_in, COPIED_CHANNELS), parts = ceil_div(s.maps_out, COPIED_MAPS);
    if (begin == 0) free_slots(TB_PLACE(OWN), size[SLOTS]);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t group = task / parts / blocks, first = task / parts % blocks * COPIED_CHANNELS;
        const int64_t map = task % parts * COPIED_MAPS;
        const TB_S *const from = (const TB_S *)TB_PLACE(FILTERS) + group * (backward ? s.maps_in : s.maps_out);
        const taps given = {from, row, TAPS * TAPS * row, backward};
        TB_T *const u = (TB_T *)TB_PLACE(PACKED) + group * SQUARE * s.u_point;
        put_filters(&s, &given, map, first, least(first + COPIED_CHANNELS, s.maps_in), u);
    }
}

// V of channels [c0, c1) and of the panel that begins with `lane`.
static void transform_in(const shape *s, const TB_S *in, int64_t c0, int64_t c1, int64_t lane, TB_T *v) {
    const int few = are_few(s, POINTS);
    piece pieces[WIDTH];
    lines x;
    TB_T copy[TOGETHER][COPIED];
    if (few) find_lines(s, lane, WIDTH, POINTS, s->in_high, s->in_wide, s->pad_high, s->pad_wide, &x);
    else find_pieces(s, lane, WIDTH, pieces);
    for (int i = 0; i < TOGETHER && few; ++i) clear_lines(&x, copy[i]);
    for (int64_t c = c0; c < c1; c += TOGETHER)
        for (int at = 0; at < filled_lanes(s, lane); at += LANES) {
            vec d[TOGETHER][SQUARE];
            for (int i = 0; i < TOGETHER; ++i) {
                const TB_S *const map = in + (c + i) * s->in_map;
                if (c + i >= s->maps_in) __builtin_memset(d[i], 0, sizeof d[i]);
                else if (few) {
                    if (at == 0) copy_lines(s, &x, map, copy[i]);
                    turn_squares(&x, x.at + at, copy[i], POINTS, d[i]);
                } else {
                    if (c + i + TOGETHER < s->maps_in) prefetch_data(s, pieces + at / LENGTH, map + TOGETHER * s->in_map);
                    fetch_data(s, pieces + at / LENGTH, map, d[i]);
                }
                transform_square(d[i]);
            }
            put_data(s, d, c, at, v);
        }
}

// The tiles of maps [k0, k1) and of the panel that begins with `lane`.
static void transform_out(const shape *s, const TB_T *m, int64_t k0, int64_t k1, int64_t lane, TB_R *out) {
    piece pieces[WIDTH];
    find_pieces(s, lane, WIDTH, pieces);
    for (int64_t k = k0; k < k1; ++k)
        for (int at = 0; at < filled_lanes(s, lane); at += LANES) {
            vec d[SQUARE], o[OUT * OUT];
            for (int p = 0; p < SQUARE; ++p) d[p] = *(const vec *)(m + p * s->m_point + k * WIDTH + at);
            transform_square_back(d, o);
            if (LENGTH == 1 && s->images == 1) put_squares(s, pieces + at, o, out + k * s->out_map);
            else put_places(s, pieces + at / LENGTH, o, out + k * s->out_map);
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
            transform_in(&s, b.in, 0, s.channels, b.lane + p * WIDTH, v + p * stored(s.maps_in, WIDTH));
        begin_tiles();
        for (int64_t point = 0; point < SQUARE; ++point) multiply_point(&s, b.u, point, b.lane, b.panels, v, m);
        end_tiles();
        for (int64_t p = 0; p < b.panels; ++p) {
            transform_out(&s, m + p * s.tiles * TILE * WIDTH, 0, s.maps_out, b.lane + p * WIDTH, b.out);
            finish(&s, task / s.blocks, 0, s.maps_out, b.lane + p * WIDTH, ptr, size, stride, scalar);
        }
    }
    give_slot(TB_PLACE(OWN), slot);
}

// The stages of block size[BLOCK], shared by all tasks: TILE channels of a panel; a point; TILE maps of a panel.
void tb_winograd_in(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                    int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const block b = find_block(&s, ptr, size, size[BLOCK]);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t p = task % s.panels, c = task / s.panels * TILE;
        if (p >= b.panels) continue;
        TB_T *const v = (TB_T *)TB_PLACE(DATA) + p * stored(s.maps_in, WIDTH);
        transform_in(&s, b.in, c, least(c + TILE, s.channels), b.lane + p * WIDTH, v);
    }
}

void tb_winograd_multiply(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                          int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const block b = find_block(&s, ptr, size, size[BLOCK]);
    begin_tiles();
    for (int64_t point = begin; point < end; ++point)
        multiply_point(&s, b.u, point, b.lane, b.panels, TB_PLACE(DATA), TB_PLACE(PRODUCTS));
    end_tiles();
}

void tb_winograd_out(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                     int64_t begin, int64_t end) {
    const shape s = read_shape(size);
    const block b = find_block(&s, ptr, size, size[BLOCK]);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t p = task % s.panels, k = task / s.panels * TILE;
        if (p >= b.panels) continue;
        const TB_T *const m = (const TB_T *)TB_PLACE(PRODUCTS) + p * s.tiles * TILE * WIDTH;
        const int64_t last = least(k + TILE, s.maps_out), group = size[BLOCK] / s.blocks;
        transform_out(&s, m, k, last, b.lane + p * WIDTH, b.out);
        finish(&s, group, k, last, b.lane + p * WIDTH, ptr, size, stride, scalar);
    }
}

// The gradient by the filters -----------------------------------------------------------------------------------------

// Elements of V at a point.
static int64_t update_point_elements(const shape *s) { return apart(stored_channels(s->maps_in, s->panels * WIDTH)); }

// Up to LANES channels from channel c on, at a panel of a block, which begins with `lane`.
static void update_data(const shape *s, int64_t lane, const TB_S *in, int64_t c, int64_t panel, TB_T *v) {
    const int few = are_few(s, POINTS);
    piece pieces[WIDTH];
    lines x;
    TB_T copy[COPIED];
    if (few) find_lines(s, lane, WIDTH, POINTS, s->in_high, s->in_wide, s->pad_high, s->pad_wide, &x);
    else find_pieces(s, lane, WIDTH, pieces);
    if (few) clear_lines(&x, copy);
    for (const int64_t end = least(c + LANES, s->maps_in); c < end; ++c) {
        vec d[NV][SQUARE];
        if (few) copy_lines(s, &x, in + c * s->in_map, copy);
        for (int j = 0; j < NV; ++j) {
            const piece *const p = pieces + j * LANES / LENGTH;
            if (lane + j * LANES >= s->lanes) {
                __builtin_memset(d[j], 0, sizeof d[j]);
                continue;
            }
            if (few) turn_squares(&x, x.at + j * LANES, copy, POINTS, d[j]);
            else {
                if (c + 1 < end) prefetch_data(s, p, in + (c + 1) * s->in_map);
                fetch_data(s, p, in + c * s->in_map, d[j]);
            }
            transform_square(d[j]);
        }
        put_lanes(s, d, c, panel, v);
    }
}

// Up to LANES maps from map k on, at a panel of a block, which begins with `lane`: turned so that maps lie side by side,
// then transformed, lane by lane.
static void update_errors(const shape *s, int64_t lane, const TB_S *errors, int64_t k, int64_t panel, TB_T *w) {
    enum { CELLS = TAPS * TAPS };
    const int64_t count = s->maps_out - k;
    const int few = are_few(s, TAPS);
    piece pieces[LANES];
    lines x;
    TB_T copy[COPIED];
    for (int at = 0; at < WIDTH; at += LANES) {
        vec e[CELLS], turned[CELLS][LANES];
        if (few) find_lines(s, lane + at, LANES, TAPS, s->out_high, s->out_wide, 0, 0, &x);
        else find_pieces(s, lane + at, LANES, pieces);
        if (few) clear_lines(&x, copy);
        for (int i = 0; i < LANES; ++i) {
            const TB_S *const map = errors + (k + i) * s->out_map;
            if (few && i < count) {
                copy_lines(s, &x, map, copy);
                turn_squares(&x, x.at, copy, TAPS, e);
            } else if (i < count) fetch_errors(s, pieces, map, e);
            for (int j = 0; j < CELLS; ++j) turned[j][i] = i < count ? e[j] : (vec){0};
        }
        for (int i = 0; i < CELLS; ++i) transpose(turned[i]);
        for (int l = 0; l < LANES; l += TOGETHER) {
            vec half[POINTS * TAPS], whole[TOGETHER][SQUARE];
            for (int n = 0; n < TOGETHER; ++n) {
                for (int i = 0; i < CELLS; ++i) e[i] = turned[i][l + n];
                for (int j = 0; j < TAPS; ++j) transform_errors(e + j, TAPS, half + j, TAPS);
                for (int i = 0; i < POINTS; ++i) transform_errors(half + i * TAPS, 1, whole[n] + i * POINTS, 1);
            }
            put_errors(s, whole, k, panel * WIDTH + at + l, w);
        }
    }
}

// To V and W. A task: a panel of lanes of LANES channels, or, after all of them, of LANES maps.
void tb_winograd_update_in(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                           int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    shape s = read_shape(size);
    s.v_point = update_point_elements(&s);
    const int64_t group = size[BLOCK] / s.blocks, first = size[BLOCK] % s.blocks * s.panels * WIDTH;
    const int64_t channels = ceil_div(s.maps_in, LANES) * LANES;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t panel = task % s.panels, lane = first + panel * WIDTH, c = task / s.panels * LANES;
        if (c < channels)
            update_data(&s, lane, (const TB_S *)TB_PLACE(IN) + group * s.maps_in * s.in_map, c, panel, TB_PLACE(DATA));
        else
            update_errors(&s, lane, (const TB_S *)TB_PLACE(FILTERS) + group * s.maps_out * s.out_map, c - channels,
                          panel, TB_PLACE(PRODUCTS));
    }
}

// A task: a point.
void tb_winograd_update_multiply(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                                 int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t group = size[BLOCK] / s.blocks, lane = size[BLOCK] % s.blocks * s.panels * WIDTH;
    begin_tiles();
    for (int64_t point = begin; point < end; ++point)
        update_point(&s, lane, (const TB_T *)TB_PLACE(DATA) + point * update_point_elements(&s),
                     (const TB_T *)TB_PLACE(PRODUCTS) + point * s.w_point,
                     (TB_T *)TB_PLACE(PACKED) + (group * SQUARE + point) * s.sums, lane > 0);
    end_tiles();
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
    out[3] = update_point_elements(&s) * item;
    out[4] = s.w_point * item;
    out[5] = s.groups * s.sums * item;
}
