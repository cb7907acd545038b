// SPDX-License-Identifier: Apache-2.0
// conv_winograd.c — the same for filters at stride 1 and filters of strided layers, by minimal filtering
//
// Computes  what conv.c does, from POINTS x POINTS products a tile instead of (OUT TAPS)^2, where
//           POINTS = OUT + TAPS - 1: polynomials of the tile and of the filter are multiplied at the points 0, 1, -1,
//           infinity (four points) and 2, -2 (six). (Winograd, 1980; Lavin and Gray, 2015)
//               forward, backward  tiles of OUT x OUT outputs, filters of TAPS x TAPS
//               dF                 tiles of TAPS x TAPS errors as filters, OUT x OUT entries of dF as outputs
// Parts     A larger filter is cut into even parts of at most CUT x CUT taps, filled up with zeros, CUT = TAPS (dF: OUT);
//           with a stride, those of a part lie a stride apart. Each part is a filter of data that begin elsewhere, so a
//           channel becomes as many channels as there are parts, (part, map): all products add up before they are
//           transformed back. The data of a part are transformed anew, which is little beside products with many maps.
//           At infinity is the last tap alone: there products leave out parts that are shorter than CUT.
// Macros    those of conv.h; POINTS, OUT, TAPS; STEP, the places from one tile to the next (OUT, or TAPS for dF);
//           LENGTH, how many neighbouring lanes are images of one tile: the largest power of 2 that divides N, at most
//           LANES; COLUMNS, whether they are all images, and places that tiles read lie side by side.
// Lanes     The tiles of all images, flattened over (depth, row, column, image), are the lanes of a product of matrices
//           for each point.
// Stages    A block of panels of WIDTH lanes goes through
//               in        V, of each point and panel        B' d B for each tile of data d
//               multiply  M[point][panel][map][WIDTH]       sums over channels of U V, with U = G f G' of the filters
//               out       A' m A, the outputs of each tile
//           Either one task takes a block through all three in its own memory, or all tasks share each stage. The first
//           two run over a chunk of channels after the other, so that V stays in a cache; where the data of a chunk are
//           padding for all of a panel, they are left out.
//           Of few lanes, for which U would be much to write and to read again, tasks share V only: each makes U of some
//           maps in its own memory, OWN_CHANNELS channels at a time, and takes their products to the end.
//           For dF: V of the data and W of the errors, their products added up over lanes. Of few lanes, each task takes the
//           sums of some channels and maps to the end.
//           The gradient by the images, where its own convolution would need more tiles, and for any stride:
//           conv_winograd_adjoint.h, with TB_ADJOINT.
//           U, V and W lie as the products want them: conv_winograd_fma.h or, with TB_PLANES, conv_winograd_amx.h.
// Order     Sums run over channels (dF: lanes, in blocks). That depends on shapes alone.
// Error     grows with the points: about 1e-6 of the largest result with four, 2e-5 with six
// Checked   tests/primitives/test_conv_kernels.py; timed by benchmarks/conv.py
#include "conv.h"

#define UPDATES (STEP != OUT)  // whether the file is compiled for the gradient by the filters

enum {
    SQUARE = POINTS * POINTS, COPIED_MAPS = 32, OWN_CHANNELS = 64, CUT = POINTS + 1 - STEP,
    PAIR = LANES / MR,  // channels or tiles whose MR maps are a vector
};

typedef TB_T maps __attribute__((vector_size(MR * sizeof(TB_T)), aligned(sizeof(TB_T)), may_alias));

// What the host passes in `size`.
enum {
    IMAGES = SIZES, MAPS_IN, MAPS_OUT,  // maps of a group
    GROUPS, BACKWARD, DEPTH, IN_HIGH, IN_WIDE, OUT_HIGH, OUT_WIDE, PAD_HIGH, PAD_WIDE,
    TAPS_HIGH, TAPS_WIDE, STRIDE_HIGH, STRIDE_WIDE,  // of the whole filter
    PAST,               // whether results go past the caches
    PANELS,             // of a block of lanes
    CHUNK,              // channels that are transformed and multiplied at a time
    PART,               // maps of a task that transforms their filters itself (dF: channels, whose sums), or 0
    SHARES,             // dF: blocks of lanes with sums of their own
    SLOTS, SLOT_BYTES,  // of scratch, as tb_winograd_needs says
    BLOCK,              // the number of the block (dF: of the first), counted over all groups, in shared stages
    FIRST,              // and the first channel of the chunk
};

// How the taps of an axis are cut into parts, whose taps lie `stride` apart: of each phase, a tap below the stride, `longer`
// with one tap more than `each` come first. The first `whole` of all parts have CUT taps.
typedef struct cut {
    int64_t taps, stride, phases, parts, each, longer, whole;
} cut;

typedef struct shape {
    int64_t images, maps, maps_out, groups, depth, in_high, in_wide, out_high, out_wide, pad_high, pad_wide, panels;
    int64_t chunk, past;
    cut high, wide;                              // of the filter
    int64_t parts, maps_in;                      // of the filter; channels: parts of maps
    int64_t rows, columns;                       // tiles of an image
    int64_t lanes, blocks;                       // of a group
    int64_t tiles, padded;                       // of TILE maps; maps in whole panels
    int64_t in_map, out_map;                     // elements of a map
    int64_t u_point, v_point, m_point, w_point;  // from a point to the next; v_point of dF has other axes
    int64_t pitch, sums;                         // dF: from a channel of V to the next, from a point of the sums
} shape;

#include "conv_winograd_tiles.h"

// Forward and backward ------------------------------------------------------------------------------------------------

// The filters of a group, and how they lie: taps `row` apart, channels `channel`; backward channels lie side by side, and
// maps `channel` apart.
typedef struct taps {
    const TB_S *from;
    int64_t row, channel, backward;
} taps;

// U of MR maps and PAIR channels, which lie side by side, or of `channels` of them, from their taps. Lines are on their way
// to the cache before they are written.
static __attribute__((noinline)) void transform_taps(const vec *g, int64_t channels, TB_T *to, int64_t point) {
    vec half[POINTS * TAPS], whole[SQUARE];
    expect(to + LANES, point);
    for (int j = 0; j < TAPS; ++j) transform_filter(g + j, TAPS, half + j, TAPS);
    for (int i = 0; i < POINTS; ++i) transform_filter(half + i * TAPS, 1, whole + i * POINTS, 1);
    if (channels == PAIR) put_points(whole, to, point);
    else
        for (int p = 0; p < SQUARE; ++p) *(maps *)(to + p * point) = *(const maps *)(whole + p);
}

// Where the taps of a part are among those of the whole filter: -1 for those that fill it up.
static void find_taps(const shape *s, int64_t part, int backward, int64_t *at) {
    const cut *const y = &s->high, *const x = &s->wide;
    const part_of_axes p = find_part(s, part);
    for (int i = 0; i < TAPS * TAPS; ++i) {
        const int64_t h = first_tap(y, p.high) + i / TAPS * y->stride;
        const int64_t w = first_tap(x, p.wide) + i % TAPS * x->stride, tap = h * x->taps + w;
        const int there = i / TAPS < part_taps(y, p.high) && i % TAPS < part_taps(x, p.wide);
        at[i] = there ? backward ? x->taps * y->taps - 1 - tap : tap : -1;
    }
}

// Forward, from memory: taps at at[i] rows, of the maps of PAIR tiles, which lie side by side.
INLINE void transform_pair(const TB_S *from, int64_t row, int64_t channel, const int64_t *at, TB_T *to, int64_t point,
                           int64_t tile) {
    vec g[PAIR][TAPS * TAPS];
    for (int i = 0; i < TAPS * TAPS; ++i) {
        const TB_S *const one = from + at[i] * row;
        for (int t = 0; t < PAIR; ++t)
            g[t][i] = at[i] < 0 ? (vec){0} : PAIR == 1 ? load(one) : beside(load(one), load(one + channel), t);
    }
    for (int t = 0; t < PAIR; ++t) transform_taps(g[t], PAIR, to + t * tile, point);
}

// Of MR maps, from their taps at at[map][i] rows, and of channels [c, c + LANES), which lie side by side: zeros behind the
// first `count`.
INLINE void transform_turned(const TB_S *const *from, int64_t row, const int64_t *const *at, int64_t c,
                             int64_t count, TB_T *to, int64_t point) {
    vec g[MR][TAPS * TAPS];
    for (int i = 0; i < TAPS * TAPS; ++i) {
        vec r[MR];
        UNROLL for (int k = 0; k < MR; ++k) {
            const TB_S *const one = from[k] + at[k][i] * row + c;
            r[k] = (vec){0};
            if (at[k][i] >= 0 && count == LANES) r[k] = load(one);
            else
                for (int l = 0; l < count && at[k][i] >= 0; ++l) r[k][l] = TB_WIDE(one[l]);
        }
        transpose_rows(r, MR);
        UNROLL for (int l = 0; l < MR; l += PAIR) {
            g[l / PAIR][i] = PAIR == 1 ? r[l] : beside(r[l], r[l + PAIR - 1], 0);
            if (PAIR > 1) g[(MR + l) / PAIR][i] = beside(r[l], r[l + PAIR - 1], 1);
        }
    }
    for (int l = 0; l < MR; ++l) transform_taps(g[l], PAIR, to + l * LANES, point);
}

// Of `channels` of PAIR channels, `channel` apart, and `count` of MR maps, `map` apart.
static void transform_rest(const TB_S *from, int64_t row, int64_t channel, int64_t channels, int64_t map, int64_t count,
                           const int64_t *at, TB_T *to, int64_t point) {
    vec g[TAPS * TAPS];
    for (int i = 0; i < TAPS * TAPS; ++i) {
        g[i] = (vec){0};
        for (int64_t k = 0; k < channels * MR && at[i] >= 0; ++k)
            if (k % MR < count) g[i][k] = TB_WIDE(from[at[i] * row + k % MR * map + k / MR * channel]);
    }
    transform_taps(g, channels, to, point);
}

// U of the maps of PAIR tiles and of channels [first, last): from a point to the next `point` elements, from a channel MR,
// from a tile `tile`.
static void transform_maps(const shape *s, const taps *given, int64_t map, int64_t first, int64_t last, TB_T *to,
                           int64_t point, int64_t tile) {
    const int64_t count = least(s->maps_out - map, LANES), row = given->row, backward = given->backward;
    const int64_t next = backward ? 1 : given->channel, apart = backward ? given->channel : 1;
    for (int64_t from = first; from < last;) {
        const int64_t part = from / s->maps, start = part * s->maps, end = least(last - start, s->maps);
        const TB_S *const f = given->from + map * apart;
        TB_T *const u = to + (start - first) * MR;
        int64_t at[TAPS * TAPS], c = from - start;
        find_taps(s, part, backward != 0, at);
        for (; !backward && count == LANES && c + PAIR <= end; c += PAIR)
            transform_pair(f + c * next, row, next, at, u + c * MR, point, tile);
        for (int64_t k = 0, d; k < count; k += MR) {
            TB_T *const t = u + k / MR * tile;
            const TB_S *maps[MR];
            const int64_t *places[MR];
            for (int i = 0; i < MR; ++i) maps[i] = f + (k + i) * apart, places[i] = at;
            for (d = c; backward && count - k >= MR && d + LANES <= end; d += LANES)
                transform_turned(maps, row, places, d, LANES, t + d * MR, point);
            for (; d < end; d += PAIR)
                transform_rest(f + k * apart + d * next, row, next, least(PAIR, end - d), apart, least(MR, count - k), at,
                               t + d * MR, point);
        }
        from = start + end;
    }
}

// A block of lanes of a group.
typedef struct block {
    const TB_S *in;
    const TB_T *u;
    TB_R *out;
    int64_t lane, panels;
} block;

#if defined(TB_PLANES)
#include "conv_winograd_amx.h"
#else
#include "conv_winograd_fma.h"
#endif

// One past the last channel of the chunk from c on; and of those that are filled up with zeros.
static int64_t chunk_end(const shape *s, int64_t c) { return least(c + s->chunk, s->maps_in); }
static int64_t filled_channels(int64_t end) { return ceil_div(end, FILLED) * FILLED; }

// Of channels [c, end), `maps` of each part, those whose parts have a point.
typedef struct range {
    int64_t from, end;
} range;

static range point_channels(const shape *s, int64_t maps, int64_t point, int64_t c, int64_t end) {
    const cut *const y = &s->high, *const x = &s->wide;
    const int below = point / POINTS == POINTS - 1, beside = point % POINTS == POINTS - 1;
    const int64_t first = below ? (y->parts - y->whole) * x->whole : 0;
    const int64_t past = beside ? y->parts * x->whole : below ? first + y->whole * x->parts : s->parts;
    const int64_t from = first * maps / FILLED * FILLED, start = from > c ? least(from, end) : c;
    const int64_t stop = least(past * maps, end);
    return (range){start, stop > start ? stop : start};
}

static cut read_cut(int64_t taps, int64_t stride) {
    const int64_t phases = least(taps, stride), most = ceil_div(taps, stride), count = ceil_div(most, CUT);
    cut x = {taps, stride, phases, phases * count, most / count, most % count};
    while (x.whole < x.parts && part_taps(&x, x.whole) == CUT) ++x.whole;
    return x;
}

static shape read_shape(const int64_t *size) {
    shape s = {
        .images = size[IMAGES], .maps = size[MAPS_IN], .maps_out = size[MAPS_OUT], .groups = size[GROUPS],
        .depth = size[DEPTH], .in_high = size[IN_HIGH], .in_wide = size[IN_WIDE], .out_high = size[OUT_HIGH],
        .out_wide = size[OUT_WIDE], .pad_high = size[PAD_HIGH], .pad_wide = size[PAD_WIDE], .panels = size[PANELS],
        .chunk = size[CHUNK], .past = size[PAST], .high = read_cut(size[TAPS_HIGH], size[STRIDE_HIGH]),
        .wide = read_cut(size[TAPS_WIDE], size[STRIDE_WIDE]),
    };
    s.parts = s.high.parts * s.wide.parts;
    s.maps_in = s.maps * s.parts;
    s.rows = ceil_div(s.out_high, STEP);
    s.columns = ceil_div(s.out_wide, STEP);
    s.lanes = s.depth * s.rows * s.columns * s.images;
    s.blocks = ceil_div(s.lanes, s.panels * WIDTH);
    s.tiles = ceil_div(s.maps_out, TILE);
    s.padded = ceil_div(s.maps_out, WIDTH) * WIDTH;
    s.in_map = s.depth * s.in_high * s.in_wide * s.images;
    s.out_map = s.depth * s.out_high * s.out_wide * s.images;
    s.u_point = apart(s.tiles * stored(s.maps_in, TILE));
    s.v_point = apart(s.panels * stored(s.chunk, WIDTH));
    s.m_point = apart(s.panels * s.tiles * TILE * WIDTH);
    s.pitch = apart(s.panels * WIDTH);
    s.w_point = apart(s.padded / WIDTH * stored(s.panels * WIDTH, WIDTH));
    s.sums = apart(ceil_div(s.maps_in, TILE) * TILE * s.padded);
    return s;
}

// The filters of a group.
static taps group_filters(const shape *s, const TB_S *filters, int64_t group, int64_t backward) {
    const int64_t maps = backward ? s->maps : s->maps_out, row = maps * s->groups;
    return (taps){filters + group * maps, row, s->high.taps * s->wide.taps * row, backward};
}

#if defined(TB_ADJOINT)
#include "conv_winograd_adjoint.h"
#else

// The tiles of a panel's data for a part of the filter, by themselves or, of few images, as lines with their copy.
typedef struct data {
    int64_t part;
    int few;
    piece pieces[WIDTH];
    lines x;
    TB_T copy[COPIED];
} data;

// Those of `part`, for the panel that begins with `lane`; kept where they are found already.
static void find_data(const shape *s, int64_t part, int64_t lane, data *t) {
    if (t->part == part) return;
    t->part = part, t->few = are_few(s, POINTS);
    if (!t->few) {
        find_pieces(s, part, lane, WIDTH, t->pieces);
        return;
    }
    const part_of_axes p = find_part(s, part);
    const int64_t up = s->pad_high - first_tap(&s->high, p.high), left = s->pad_wide - first_tap(&s->wide, p.wide);
    find_lines(s, lane, WIDTH, POINTS, s->in_high, s->in_wide, up, left, &t->x);
    clear_lines(&t->x, t->copy);
}

// The squares of LANES lanes, from `at` on, of a map; where `next`, that of the next map is fetched as well.
INLINE void take_data(const shape *s, data *t, const TB_S *map, int at, int next, vec *d) {
    if (4 * LENGTH < LANES && t->few) {
        if (at == 0) copy_lines(s, &t->x, map, t->copy);
        turn_squares(&t->x, t->x.at + at, t->copy, POINTS, d);
        return;
    }
    if (next) prefetch_data(s, t->pieces + at / LENGTH, map + next * s->in_map);
    fetch_data(s, t->pieces + at / LENGTH, map, d);
}

// V of channels [c0, c1), a part of a chunk that begins with channel `first`, and of the panel that begins with `lane`.
static void transform_in(const shape *s, const TB_S *in, int64_t first, int64_t c0, int64_t c1, int64_t lane, TB_T *v) {
    data tiles[TOGETHER];
    for (int i = 0; i < TOGETHER; ++i) tiles[i].part = -1;
    for (int64_t c = c0; c < c1; c += TOGETHER) {
        for (int i = 0; i < TOGETHER && c + i < s->maps_in; ++i) find_data(s, (c + i) / s->maps, lane, tiles + i);
        for (int at = 0; at < filled_lanes(s, lane); at += LANES) {
            vec d[TOGETHER][SQUARE];
            for (int i = 0; i < TOGETHER; ++i) {
                const int64_t map = (c + i) % s->maps;
                if (FILLED > 1 && c + i >= s->maps_in) __builtin_memset(d[i], 0, sizeof d[i]);
                else take_data(s, tiles + i, in + map * s->in_map, at, map + TOGETHER < s->maps ? TOGETHER : 0, d[i]);
                transform_square(d[i]);
            }
            put_data(s, d, c - first, at, v);
        }
    }
}

// The tiles of maps [k0, k1) and of the panel that begins with `lane`.
static void transform_out(const shape *s, const TB_T *m, int64_t k0, int64_t k1, int64_t lane, TB_R *out) {
    piece pieces[WIDTH];
    find_pieces(s, 0, lane, WIDTH, pieces);
    for (int64_t k = k0; k < k1; ++k)
        for (int at = 0; at < filled_lanes(s, lane); at += LANES) {
            vec d[SQUARE], o[OUT * OUT];
            if (k + 1 < k1 && !s->past) expect_places(s, pieces + at / LENGTH, out + (k + 1) * s->out_map);
            take_points(m + k * WIDTH + at, s->m_point, d);
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
    find_pieces(s, 0, lane, WIDTH, pieces);
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

static block find_block(const shape *s, void *const *ptr, const int64_t *size, int64_t number) {
    const int64_t group = number / s->blocks, lane = number % s->blocks * s->panels * WIDTH;
    return (block){
        (const TB_S *)TB_PLACE(IN) + group * s->maps * s->in_map,
        (const TB_T *)TB_PLACE(PACKED) + group * SQUARE * s->u_point,
        (TB_R *)TB_PLACE(RESULT) + group * s->maps_out * s->out_map,
        lane,
        least(s->panels, ceil_div(s->lanes - lane, WIDTH)),
    };
}

// The products of channels [c, end) at a point, as far as their parts have it; u, v: where those of channel c are.
static void multiply_chunk(const shape *s, const block *b, int64_t point, int64_t c, int64_t end, uint64_t filled,
                           const TB_T *u, const TB_T *v, TB_T *m) {
    const range has = point_channels(s, s->maps, point, c, end);
    if (c > 0 && has.from == has.end) return;
    multiply_point(s, b, u + stored(has.from - c, TILE), has.end - has.from, filled, v + stored(has.from - c, WIDTH), m, c > 0);
}

// The shape with OWN_CHANNELS channels of `maps` maps: what a task makes itself.
static shape part_of(const shape *s, int64_t maps) {
    shape t = *s;
    t.maps_in = OWN_CHANNELS, t.maps_out = maps, t.tiles = ceil_div(maps, TILE);
    t.u_point = apart(t.tiles * stored(OWN_CHANNELS, TILE));
    t.m_point = apart(s->panels * t.tiles * TILE * WIDTH);
    return t;
}

#if !UPDATES

// To U. A task: COPIED_CHANNELS channels and COPIED_MAPS maps of a group.
void tb_winograd_filters(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                         int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t blocks = ceil_div(s.maps_in, COPIED_CHANNELS), parts = ceil_div(s.maps_out, COPIED_MAPS);
    if (begin == 0) free_slots(TB_PLACE(OWN), size[SLOTS]);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t group = task / parts / blocks, first = task / parts % blocks * COPIED_CHANNELS;
        const int64_t map = task % parts * COPIED_MAPS;
        const taps given = group_filters(&s, TB_PLACE(FILTERS), group, size[BACKWARD]);
        TB_T *const u = (TB_T *)TB_PLACE(PACKED) + group * SQUARE * s.u_point;
        put_filters(&s, &given, map, first, least(first + COPIED_CHANNELS, s.maps_in), u + stored(first, TILE));
    }
}

// A task: a block of lanes of a group, through all stages.
void tb_winograd(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                 int64_t end) {
    const shape s = read_shape(size);
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots);
    TB_T *const v = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]), *const m = v + SQUARE * s.v_point;
    for (int64_t task = begin; task < end; ++task) {
        const block b = find_block(&s, ptr, size, task);
        for (int64_t c = 0; c < s.maps_in; c += s.chunk) {
            const int64_t end = chunk_end(&s, c);
            const uint64_t filled = find_filled(&s, b.lane, b.panels, c, end);
            for (int64_t p = 0; p < b.panels; ++p)
                if (filled >> p & 1)
                    transform_in(&s, b.in, c, c, filled_channels(end), b.lane + p * WIDTH, v + p * stored(s.chunk, WIDTH));
            begin_tiles();
            for (int64_t point = 0; point < SQUARE; ++point)
                multiply_chunk(&s, &b, point, c, end, filled, b.u + point * s.u_point + stored(c, TILE), v + point * s.v_point,
                               m + point * s.m_point);
            end_tiles();
        }
        for (int64_t p = 0; p < b.panels; ++p) {
            transform_out(&s, m + p * s.tiles * TILE * WIDTH, 0, s.maps_out, b.lane + p * WIDTH, b.out);
            finish(&s, task / s.blocks, 0, s.maps_out, b.lane + p * WIDTH, ptr, size, stride, scalar);
        }
    }
    if (s.past) finish_stores();
    give_slot(TB_PLACE(OWN), slot);
}

// The stages of block size[BLOCK], shared by all tasks: TILE channels of a panel; a point; TILE maps of a panel.
void tb_winograd_in(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                    int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const block b = find_block(&s, ptr, size, size[BLOCK]);
    const int64_t first = size[FIRST], end_channel = chunk_end(&s, first);
    if (begin == 0 && size[PART]) free_slots(TB_PLACE(OWN), size[SLOTS]);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t p = task % s.panels, c = first + task / s.panels * TILE, lane = b.lane + p * WIDTH;
        if (p >= b.panels || !has_data(&s, lane, first, end_channel)) continue;
        TB_T *const v = (TB_T *)TB_PLACE(DATA) + p * stored(s.chunk, WIDTH);
        transform_in(&s, b.in, first, c, least(c + TILE, filled_channels(end_channel)), lane, v);
    }
}

void tb_winograd_multiply(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                          int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const block b = find_block(&s, ptr, size, size[BLOCK]);
    const int64_t first = size[FIRST], last = chunk_end(&s, first);
    const uint64_t filled = find_filled(&s, b.lane, b.panels, first, last);
    begin_tiles();
    for (int64_t point = begin; point < end; ++point)
        multiply_chunk(&s, &b, point, first, last, filled, b.u + point * s.u_point + stored(first, TILE),
                       (const TB_T *)TB_PLACE(DATA) + point * s.v_point, (TB_T *)TB_PLACE(PRODUCTS) + point * s.m_point);
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
    if (s.past) finish_stores();
}

// From V of block size[BLOCK] to its results. A task: PART maps.
void tb_winograd_maps(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                      int64_t end) {
    const shape s = read_shape(size);
    const block b = find_block(&s, ptr, size, size[BLOCK]);
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots), group = size[BLOCK] / s.blocks;
    const TB_T *const v = TB_PLACE(DATA);
    TB_T *const u = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t k = task * size[PART];
        const shape t = part_of(&s, least(size[PART], s.maps_out - k));
        taps given = group_filters(&s, TB_PLACE(FILTERS), group, size[BACKWARD]);
        TB_T *const m = u + SQUARE * t.u_point;
        given.from += k * (given.backward ? given.channel : 1);
        for (int64_t c = 0; c < s.maps_in; c += OWN_CHANNELS) {
            const int64_t last = least(c + OWN_CHANNELS, s.maps_in);
            const uint64_t filled = find_filled(&s, b.lane, b.panels, c, last);
            for (int64_t first = c; first < last; first += COPIED_CHANNELS)
                put_filters(&t, &given, 0, first, least(first + COPIED_CHANNELS, last), u + stored(first - c, TILE));
            begin_tiles();
            for (int64_t point = 0; point < SQUARE; ++point)
                multiply_chunk(&t, &b, point, c, last, filled, u + point * t.u_point,
                               v + point * s.v_point + stored(c, WIDTH), m + point * t.m_point);
            end_tiles();
        }
        for (int64_t p = 0; p < b.panels; ++p) {
            const int64_t lane = b.lane + p * WIDTH;
            transform_out(&t, m + p * t.tiles * TILE * WIDTH, 0, t.maps_out, lane, b.out + k * s.out_map);
            finish(&s, group, k, k + t.maps_out, lane, ptr, size, stride, scalar);
        }
    }
    if (s.past) finish_stores();
    give_slot(TB_PLACE(OWN), slot);
}

#endif
#include "conv_winograd_update.h"

// out: bytes of U; of a block's V and of its M; of V, W and the sums of dF; with PART of a task's U and M, of its sums.
void tb_winograd_needs(const int64_t *size, int64_t *out) {
    const shape s = read_shape(size);
    const int64_t item = SQUARE * sizeof(TB_T);
    out[0] = s.groups * s.u_point * item;
    out[1] = s.v_point * item;
    out[2] = s.m_point * item;
    out[3] = size[SHARES] * update_point_elements(&s) * item;
    out[4] = size[SHARES] * s.w_point * item;
    out[5] = share_sums(&s, size[SHARES], 0) * (int64_t)sizeof(TB_T);
    if (size[PART]) {
        const shape t = part_of(&s, size[PART]);
        out[6] = (t.u_point + t.m_point) * item;
        out[7] = apart(size[PART] * WIDTH) * item;
    }
}
#endif
