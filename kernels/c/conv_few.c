// SPDX-License-Identifier: Apache-2.0
// conv_few.c — what conv.c computes, for few places: filters are read where they lie, or copied for each task
//
// Layout    images (C, D, H, W, N), filters (C, T, R, S, K). To copy filters takes longer than the products, where each
//           of them meets few places. Where it meets dozens or hundreds (`few_blocking.py`), tasks copy those of a block
//           of channels: rows of many maps lie in few sets of a cache, and no core sees which comes next. Backward they
//           are turned then: what lies side by side in them is what is added up.
// Copy      of the input, one for all tasks, with channels innermost and zeros around: [depth][row][column][image][channel].
//           So any places make a tile, each from its own address, and no lane is idle, however short rows are; and tiles
//           are of places that meet the same taps, of which they take no others. Where those are many, and zeros would
//           be most of the copy (filters are dilated), it has none, and no tile has others.
// Tiles     forward, and of copied filters: places x vectors of maps. Lanes are maps: they lie side by side in the filters.
//           backward   maps x places. Lanes are channels, which lie side by side in filters and copy; lanes are added up
//                      at the end.
//           While tiles multiply one block of channels, the filters of the next one are fetched a few at a time.
// Order     Sums run over blocks of channels, then channels and taps (backward, and of copied filters: taps, then channels;
//           backward lane by lane). That depends on shapes alone.
// Limits    What lies side by side in the filters are whole vectors in each group, and what does in tiles; TB_PLAIN.
// Bound by  multiply-adds, or by reading the filters once
// Checked   tests/primitives/test_conv_kernels.py; timed by benchmarks/conv.py
#include "conv_channels.h"

enum {
    PLACES_FORWARD = MANY_REGISTERS ? 8 : 4, VECTORS = 3,
    PLACES_COPIED = MANY_REGISTERS ? 8 : 6,  // of copied filters; of three vectors PLACES_FORWARD
    MAPS_BACKWARD = MANY_REGISTERS ? 8 : 4, PLACES_BACKWARD = 3,
    ABREAST = MANY_REGISTERS ? 3 : 2,  // vectors of these, where a panel has more than VECTORS
    AHEAD_LINES = 2,  // of the inputs of a place that are asked for at a time
    AHEAD = 12,  // rows of filters between the one in use and those on their way to the cache, where tiles are few
    FEWEST_BUSY = 4,   // places of a tile forward from which on a fetch at each tap holds up the multiply-adds
    FEWEST_TILES = 3,  // from which on they fetch the filters of the next block
};

// Whether there are inputs at a place of an axis of the copy.
INLINE int is_in_image(const shape *s, int a, int64_t place) {
    return place + s->low[a] >= 0 && place + s->low[a] < s->axes[a].in;
}

// Zeros where a row of the copy has no input.
static void clear_around(const shape *s, TB_T *copy, int64_t depth, int64_t row) {
    const int64_t *const extent = s->extent;
    int64_t first = extent[2], last = extent[2];
    if (is_in_image(s, 0, depth) && is_in_image(s, 1, row)) {
        first = least(extent[2], s->low[2] < 0 ? -s->low[2] : 0);
        last = least(extent[2], s->axes[2].in - s->low[2]);
        if (last < first) last = first;
    }
    const int64_t column = s->images * s->pitch * (int64_t)sizeof(TB_T);
    __builtin_memset(copy + copied_at(s, depth, row, 0, 0), 0, (unsigned long)(first * column));
    __builtin_memset(copy + copied_at(s, depth, row, last, 0), 0, (unsigned long)((extent[2] - last) * column));
}

// Where input `place` of a map goes, or -1.
static int64_t place_in_copy(const shape *s, int64_t place) {
    const int64_t high = s->axes[1].in, wide = s->axes[2].in, pixel = place / s->images;
    const int64_t at[] = {pixel / wide / high - s->low[0], pixel / wide % high - s->low[1], pixel % wide - s->low[2]};
    for (int a = 0; a < 3; ++a)
        if (at[a] < 0 || at[a] >= s->extent[a]) return -1;
    return copied_at(s, at[0], at[1], at[2], place % s->images);
}

// The copy. A task: LANES channels, and what is around some rows.
void tb_few_copy(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                 int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t maps = s.maps_in * s.groups, rows = s.extent[0] * s.extent[1], tasks = ceil_div(maps, LANES);
    if (begin == 0) free_slots(TB_PLACE(OWN), size[SLOTS]);
    for (int64_t row = begin * rows / tasks; row < end * rows / tasks; ++row)
        clear_around(&s, TB_PLACE(DATA), row / s.extent[1], row % s.extent[1]);
    for (int64_t place = 0; place < s.in_map; place += LANES) {
        const int64_t count = least(LANES, s.in_map - place);
        int64_t at[LANES];
        for (int64_t l = 0; l < count; ++l) at[l] = place_in_copy(&s, place + l);
        for (int64_t c = begin * LANES; c < end * LANES; c += LANES) {
            const TB_S *const from = (const TB_S *)TB_PLACE(IN) + c * s.in_map + place;
            vec r[LANES];
            for (int64_t i = 0; i < LANES; ++i) {
                r[i] = (vec){0};
                if (c + i >= maps) continue;
                if (count == LANES) r[i] = load(from + i * s.in_map);
                else
                    for (int64_t l = 0; l < count; ++l) r[i][l] = TB_WIDE(from[i * s.in_map + l]);
            }
            transpose(r);
            for (int64_t l = 0; l < count; ++l)
                if (at[l] >= 0) *(vec *)((TB_T *)TB_PLACE(DATA) + at[l] + c) = r[l];
        }
    }
}

// A tap: bytes from a place in the copy to its input, and elements from the filters of a channel (backward: of a map) to
// its own.
typedef struct tap {
    int64_t in, filter;
} tap;

// An output. Those that meet the same taps have ranks side by side.
typedef struct place {
    const TB_T *at;  // its place in the copy,
    int64_t to;      // in a map of the result,
    uint64_t met;    // the sets of taps of which it meets one,
    int64_t rank;    // its rank,
    int64_t end;     // and that after the last one that meets the same
} place;

// What a task works on: maps of a group from `map` on, at outputs of a phase from `place` on.
typedef struct job {
    const shape *s;
    int64_t group, map, maps, place, places;
    int64_t phase[3], length[3];   // along each axis
    int64_t taps;                  // that serve the phase
    tap *tap, *taken;              // these; and those of a tile,
    int64_t count;                 // so many
    int64_t (*away)[3];            // how far the input of each lies from that of a place, along each axis,
    int64_t least[3], most[3];     // and these of all
    place *of_place, *of_rank;     // the places, in their order and by ranks
} job;

static void find_taps(job *j) {
    const shape *const s = j->s;
    const int64_t maps = (s->backward ? s->maps_in : s->maps_out) * s->groups;
    const int64_t row = s->copied ? s->channels * s->panel : maps;
    j->taps = 0;
    for (int64_t cell = 0; cell < s->cells; ++cell) {
        const int64_t wide = s->axes[2].taps, high = s->axes[1].taps;
        const int64_t at[] = {cell / wide / high, cell / wide % high, cell % wide};
        int64_t *const away = j->away[j->taps], shift, from;
        int serves = 1;
        for (int a = 0; a < 3; ++a) {
            serves &= reach(s->axes + a, at[a], j->phase[a], &shift, &from);
            away[a] = shift * s->axes[a].a + from;
        }
        if (!serves) continue;
        for (int a = 0; a < 3; ++a) {
            if (j->taps == 0 || away[a] < j->least[a]) j->least[a] = away[a];
            if (j->taps == 0 || away[a] > j->most[a]) j->most[a] = away[a];
        }
        const int64_t place = copied_at(s, away[0] - s->low[0], away[1] - s->low[1], away[2] - s->low[2], 0);
        j->tap[j->taps++] = (tap){place * (int64_t)sizeof(TB_T), cell * row};
    }
}

// The set of a tap: it alone, where there are no more than 64.
INLINE uint64_t set_of(const job *j, int64_t tap) { return (uint64_t)1 << tap * 64 / (j->taps > 64 ? j->taps : 64); }

// Whether taps whose inputs lie from `first` to `last` away from that of an output meet inputs along an axis.
INLINE int meet(const axis *x, int64_t output, int64_t first, int64_t last) {
    return output * x->a + first >= 0 && output * x->a + last < x->in;
}

// The sets of the taps that meet an input from output (d, h, w) of the phase.
static uint64_t find_met(const job *j, int64_t d, int64_t h, int64_t w) {
    const axis *const x = j->s->axes;
    const int64_t at[] = {d, h, w};
    uint64_t met = 0;
    int all = j->taps > 0;
    for (int a = 0; a < 3 && all; ++a) all = meet(x + a, at[a], j->least[a], j->most[a]);
    if (all) return ~met;
    for (int64_t t = 0; t < j->taps; ++t) {
        int inside = 1;
        for (int a = 2; a >= 0 && inside; --a) inside = meet(x + a, at[a], j->away[t][a], j->away[t][a]);
        if (inside) met |= set_of(j, t);
    }
    return met;
}

static void rank_places(job *j) {
    place *const of = j->of_place;
    int64_t rank = 0;
    for (int64_t first = 0; first < j->places; ++first) {
        if (of[first].rank >= 0) continue;
        const int64_t start = rank;
        for (int64_t i = first; i < j->places; ++i) {
            if (of[i].met != of[first].met) continue;
            of[i].rank = rank;
            j->of_rank[rank++] = of[i];
        }
        for (int64_t i = start; i < rank; ++i) j->of_rank[i].end = rank;
    }
}

// How many places a tile from a rank on may have: where the copy has no zeros around, they meet the same taps.
INLINE int64_t places_from(const job *j, int64_t rank) {
    return (j->s->within ? j->of_rank[rank].end : j->places) - rank;
}

static void find_places(job *j, const TB_T *copy) {
    const shape *const s = j->s;
    const axis *const x = s->axes;
    for (int64_t i = 0; i < j->places; ++i) {
        place *const p = j->of_place + i;
        const int64_t pixel = (j->place + i) / s->images, n = (j->place + i) % s->images;
        const int64_t w = pixel % j->length[2], row = pixel / j->length[2];
        const int64_t h = row % j->length[1], d = row / j->length[1];
        p->at = copy + copied_at(s, d * x[0].a, h * x[1].a, w * x[2].a, n) + j->group * s->maps_in;
        const int64_t deep = d * x[0].b + j->phase[0], high = h * x[1].b + j->phase[1], wide = w * x[2].b + j->phase[2];
        p->to = ((deep * x[1].out + high) * x[2].out + wide) * s->images + n;
        p->met = i > 0 && n > 0 ? p[-1].met : find_met(j, d, h, w);
        p->rank = -1;
    }
    rank_places(j);
}

// Which taps the places of `count` ranks from `rank` on meet.
static void take_taps(job *j, int64_t rank, int64_t count) {
    uint64_t met = 0;
    for (int64_t i = rank; i < rank + count; ++i) met |= j->of_rank[i].met;
    j->count = 0;
    for (int64_t t = 0; t < j->taps; ++t)
        if (met & set_of(j, t)) j->taken[j->count++] = j->tap[t];
}

// Sums of a map at up to LANES places of the job, to the result.
static void put(const job *j, TB_R *out, int64_t map, int64_t place, vec sums) {
    const int64_t count = least(LANES, j->places - place);
    TB_R *const to = out + (j->group * j->s->maps_out + map) * j->s->out_map;
    if (j->s->phases > 1)
        for (int64_t l = 0; l < count; ++l) to[j->of_place[place + l].to] = TB_NARROW(sums[l]);
    else if (count == LANES) store(to + j->place + place, sums);
    else
        for (int64_t l = 0; l < count; ++l) to[j->place + place + l] = TB_NARROW(sums[l]);
}

// Maps in lanes -------------------------------------------------------------------------------------------------------

// Rows of filters, one a channel and tap, `row` elements apart; channels are `channel` apart. With each channel `each` rows
// from `next` on are fetched. `fresh`: copied ones are the first that meet their inputs.
typedef struct rows {
    const TB_S *from, *next;
    int64_t row, channel, each;
    int fresh;
} rows;

// The inputs of some places, from channel c on, on their way to the cache: those of other places may be far.
INLINE void expect_inputs(const char *const *x, int places, const tap *taps, int64_t count, int64_t c, int lines) {
    for (const tap *t = taps; t < taps + count; ++t)
        UNROLL for (int i = 0; i < places; ++i)
            UNROLL for (int line = 0; line < lines; ++line)
                __builtin_prefetch(x[i] + t->in + (c + line * LINE) * (int64_t)sizeof(TB_T));
}

// Sums of P places x V vectors of maps, and their end. `more`: on sums.
#define TB_NO_SUMS(P, V) \
    vec sum[P][V]; \
    UNROLL for (int i = 0; i < P; ++i) \
        UNROLL for (int j = 0; j < V; ++j) sum[i][j] = (vec){0};
#define TB_PUT_SUMS(P, V) \
    UNROLL for (int i = 0; i < P; ++i) \
        UNROLL for (int j = 0; j < V; ++j) { \
            vec *const to = (vec *)(sums + i * pitch + j * LANES); \
            if (more) sum[i][j] += *to; \
            *to = sum[i][j]; \
        }

// Such tiles over channels and taps.
#define TB_FORWARD(P, V) \
    static __attribute__((noinline)) void forward_##P##x##V(const TB_T *const *at, int64_t channels, const tap *taps, \
            int64_t count, const rows *filters, TB_T *sums, int64_t pitch, int more) { \
        const int64_t row = filters->row; \
        const TB_S *channel = filters->from, *next = filters->next; \
        const char *x[P]; \
        UNROLL for (int i = 0; i < P; ++i) x[i] = (const char *)at[i]; \
        TB_NO_SUMS(P, V) \
        expect_inputs(x, P, taps, count, 0, 1); \
        for (int64_t c = 0; c < channels; ++c, channel += filters->channel) { \
            if (c % (AHEAD_LINES * LINE) == 0) expect_inputs(x, P, taps, count, c + LINE, AHEAD_LINES); \
            for (int64_t n = 0; n < filters->each; ++n, next += row) \
                UNROLL for (int j = 0; j < V; ++j) __builtin_prefetch(next + j * LANES); \
            for (const tap *t = taps; t < taps + count; ++t) { \
                const TB_S *const f = channel + t->filter; \
                const int64_t o = t->in + c * (int64_t)sizeof(TB_T); \
                vec y[V]; \
                UNROLL for (int j = 0; j < V; ++j) { \
                    y[j] = load(f + j * LANES); \
                    if (P < FEWEST_BUSY) __builtin_prefetch(f + AHEAD * row + j * LANES); \
                } \
                UNROLL for (int i = 0; i < P; ++i) ADD_ROW(sum[i], (const TB_T *)(x[i] + o), y, V); \
            } \
        } \
        TB_PUT_SUMS(P, V) \
    }
#define TB_FORWARDS(P) TB_FORWARD(P, 1) TB_FORWARD(P, 2) TB_FORWARD(P, 3)
TB_FORWARDS(1)
TB_FORWARDS(2)
TB_FORWARDS(4)
#if MANY_REGISTERS
TB_FORWARDS(7)
TB_FORWARDS(8)
#endif

// The inputs of a tap on their way to the cache.
INLINE void expect_tap(const TB_T *const *at, int places, const tap *t, int64_t channels) {
    UNROLL for (int i = 0; i < places; ++i)
        for (int64_t c = 0; c < channels; c += LINE) __builtin_prefetch((const char *)(at[i] + c) + t->in);
}

// Tiles of copied filters, over taps, then channels.
#define TB_COPIED(P, V) \
    static __attribute__((noinline)) void copied_##P##x##V(const TB_T *const *at, int64_t channels, const tap *taps, \
            int64_t count, const rows *filters, TB_T *sums, int64_t pitch, int more) { \
        const int64_t step = filters->channel; \
        const TB_S *next = filters->next; \
        TB_NO_SUMS(P, V) \
        for (int64_t n = 0; n < filters->each * channels; ++n, next += filters->row) \
            UNROLL for (int j = 0; j < V; ++j) __builtin_prefetch(next + j * LANES); \
        for (const tap *t = taps; t < taps + count; ++t) { \
            const TB_S *f = filters->from + t->filter; \
            const TB_T *x[P]; \
            UNROLL for (int i = 0; i < P; ++i) x[i] = (const TB_T *)((const char *)at[i] + t->in); \
            if (filters->fresh && t + 1 < taps + count) expect_tap(at, P, t + 1, channels); \
            for (int64_t c = 0; c < channels; ++c, f += step) { \
                vec y[V]; \
                UNROLL for (int j = 0; j < V; ++j) y[j] = load(f + j * LANES); \
                UNROLL for (int i = 0; i < P; ++i) ADD_ROW(sum[i], x[i] + c, y, V); \
            } \
        } \
        TB_PUT_SUMS(P, V) \
    }
#define TB_COPIEDS(P) TB_COPIED(P, 1) TB_COPIED(P, 2) TB_COPIED(P, 3)
TB_COPIEDS(1)
TB_COPIEDS(4)
#if MANY_REGISTERS
TB_COPIEDS(8)
#else
TB_COPIED(6, 1)
TB_COPIED(6, 2)
#endif

typedef void (*forward)(const TB_T *const *, int64_t, const tap *, int64_t, const rows *, TB_T *, int64_t, int);

static const forward forwards[PLACES_FORWARD + 1][VECTORS] = {
    [1] = {forward_1x1, forward_1x2, forward_1x3}, [2] = {forward_2x1, forward_2x2, forward_2x3},
    [4] = {forward_4x1, forward_4x2, forward_4x3},
#if MANY_REGISTERS
    [7] = {forward_7x1, forward_7x2, forward_7x3}, [8] = {forward_8x1, forward_8x2, forward_8x3},
#endif
};

static const forward copieds[PLACES_COPIED + 1][VECTORS] = {
    [1] = {copied_1x1, copied_1x2, copied_1x3}, [4] = {copied_4x1, copied_4x2, copied_4x3},
#if MANY_REGISTERS
    [8] = {copied_8x1, copied_8x2, copied_8x3},
#else
    [6] = {copied_6x1, copied_6x2},
#endif
};

// How many of so many places a tile takes: sevens, where they leave less over.
INLINE int64_t tile_places(const shape *s, int64_t vectors, int64_t places) {
    if (s->copied) {
        const int64_t most = vectors < VECTORS ? PLACES_COPIED : PLACES_FORWARD;
        return places >= most ? most : places >= 4 ? 4 : 1;
    }
    if (PLACES_FORWARD == 8 && places >= 7) return places == 7 || (places % 8 && places % 7 == 0) ? 7 : 8;
    return places >= 4 ? 4 : places >= 2 ? 2 : 1;
}

// The filters of some channels, by taps, then channels.
static void copy_filters(const shape *s, const TB_S *from, int64_t channels, int64_t row, int64_t maps, TB_S *to) {
    for (int64_t c = 0; c < channels; ++c)
        for (int64_t cell = 0; cell < s->cells; ++cell, from += row) {
            TB_S *const at = to + (cell * s->channels + c) * s->panel;
            for (int64_t m = 0; m < maps; m += LANES) store(at + m, load(from + m));
        }
}

// The same of the taps of a phase backward, where channels lie side by side and `row` elements are those of a tap.
static void turn_filters(const job *j, const TB_S *from, int64_t channels, int64_t row, TB_S *to) {
    const shape *const s = j->s;
    for (int64_t m = 0; m < j->maps; m += LANES)
        for (const tap *t = j->tap; t < j->tap + j->taps; ++t) {
            const int64_t cell = t->filter / (s->channels * s->panel);
            for (int64_t c = 0; c < channels; c += LANES) {
                vec r[LANES];
                for (int64_t i = 0; i < LANES; ++i) r[i] = load(from + ((m + i) * s->cells + cell) * row + c);
                transpose(r);
                for (int64_t i = 0; i < LANES; ++i) store(to + t->filter + (c + i) * s->panel + m, r[i]);
            }
        }
}

// sums[rank][maps of the panel]: forward, and backward where filters are copied.
static void run_maps(job *j, const TB_S *filters, TB_S *copy, TB_T *sums, TB_R *out) {
    const shape *const s = j->s;
    const int64_t row = (s->backward ? s->maps_in : s->maps_out) * s->groups, pitch = s->panel, vectors = j->maps / LANES;
    const int64_t abreast = vectors <= VECTORS ? vectors : ABREAST;
    const int64_t tiles = ceil_div(j->places, PLACES_FORWARD), many = tiles >= FEWEST_TILES;
    const int64_t each = s->backward ? 0 : many ? ceil_div(s->cells, tiles) : j->places < FEWEST_BUSY ? 0 : s->cells;
    const TB_S *const from = s->backward ? filters + j->map * s->cells * row + j->group * s->maps_in
                                         : filters + j->group * s->maps_out + j->map;
    for (int64_t c = 0; c < s->maps_in; c += s->channels) {
        const int64_t channels = least(s->channels, s->maps_in - c), last = c + channels == s->maps_in;
        const TB_S *const f = from + c * (s->backward ? 1 : s->cells * row);
        const TB_S *next = !many ? f + AHEAD * row : last ? from + s->panel : f + channels * s->cells * row;
        const TB_T *at[PLACES_COPIED];
        if (s->backward) turn_filters(j, f, channels, row, copy);
        else if (s->copied) copy_filters(s, f, channels, row, j->maps, copy);
        for (int64_t rank = 0, fetched = 0, count; rank < j->places; rank += count, fetched += each) {
            count = tile_places(s, abreast, places_from(j, rank));
            for (int64_t i = 0; i < count; ++i) at[i] = j->of_rank[rank + i].at + c;
            take_taps(j, rank, count);
            rows given = {f, next, row, s->cells * row, fetched < s->cells ? each : 0, 1};
            if (s->copied) given.from = copy, given.channel = s->panel;
            for (int64_t v = 0; v < vectors; v += abreast, given.fresh = 0) {
                const forward tile = (s->copied ? copieds : forwards)[count][least(abreast, vectors - v) - 1];
                tile(at, channels, j->taken, j->count, &given, sums + rank * pitch + v * LANES, pitch, c > 0);
                given.from += abreast * LANES, given.next += abreast * LANES;
            }
            next += channels * each * row;
        }
    }
    for (int64_t place = 0; place < j->places; place += LANES)
        for (int64_t v = 0; v < vectors; ++v) {
            vec r[LANES];
            for (int64_t i = 0; i < LANES; ++i)
                r[i] = place + i < j->places ? *(const vec *)(sums + j->of_place[place + i].rank * pitch + v * LANES) : (vec){0};
            transpose(r);
            for (int l = 0; l < LANES; ++l) put(j, out, j->map + v * LANES + l, place, r[l]);
        }
}

// Backward ------------------------------------------------------------------------------------------------------------

// M maps x P places over taps and channels, lane by lane; filters of maps lie `map` apart. Sums of a map lie `pitch` vectors
// apart. `more`: on sums.
#define TB_BACKWARD(M, P) \
    static __attribute__((noinline)) void backward_##M##x##P(const TB_T *const *at, int64_t channels, const tap *taps, \
            int64_t count, const TB_S *f, int64_t map, vec *sums, int64_t pitch, int more) { \
        vec sum[M][P]; \
        UNROLL for (int i = 0; i < M; ++i) \
            UNROLL for (int j = 0; j < P; ++j) sum[i][j] = (vec){0}; \
        for (const tap *t = taps; t < taps + count; ++t) { \
            const TB_S *from = f + t->filter; \
            const TB_T *x[P]; \
            UNROLL for (int j = 0; j < P; ++j) x[j] = (const TB_T *)((const char *)at[j] + t->in); \
            for (int64_t c = 0; c < channels; c += LANES, from += LANES) { \
                vec y[P]; \
                UNROLL for (int j = 0; j < P; ++j) y[j] = *(const vec *)(x[j] + c); \
                UNROLL for (int i = 0; i < M; ++i) { \
                    vec z = load(from + i * map); \
                    if (P > 1) KEEP_IN_REGISTER(z); \
                    UNROLL for (int j = 0; j < P; ++j) sum[i][j] += z * y[j]; \
                } \
            } \
        } \
        UNROLL for (int i = 0; i < M; ++i) \
            UNROLL for (int j = 0; j < P; ++j) { \
                if (more) sum[i][j] += sums[i * pitch + j]; \
                sums[i * pitch + j] = sum[i][j]; \
            } \
    }
#define TB_BACKWARDS(M) TB_BACKWARD(M, 1) TB_BACKWARD(M, 2) TB_BACKWARD(M, 3)
TB_BACKWARDS(1)
TB_BACKWARDS(4)
#if MANY_REGISTERS
TB_BACKWARDS(8)
#endif

typedef void (*backward)(const TB_T *const *, int64_t, const tap *, int64_t, const TB_S *, int64_t, vec *, int64_t, int);

static const backward backwards[MAPS_BACKWARD + 1][PLACES_BACKWARD] = {
    [1] = {backward_1x1, backward_1x2, backward_1x3}, [4] = {backward_4x1, backward_4x2, backward_4x3},
#if MANY_REGISTERS
    [8] = {backward_8x1, backward_8x2, backward_8x3},
#endif
};

// The filters of a job at taps (map, tap) from `first` on, `count` of them, on their way to the cache: `channels` of each.
static void expect_filters(const job *j, const TB_S *from, int64_t map, int64_t channels, int64_t first, int64_t count) {
    for (int64_t n = first; n < least(first + count, j->maps * j->taps); ++n) {
        const TB_S *const at = from + n / j->taps * map + j->tap[n % j->taps].filter;
        for (int64_t c = 0; c < channels; c += LINE) __builtin_prefetch(at + c);
    }
}

// sums[map][rank], lanes to be added up.
static void run_backward(job *j, const TB_S *filters, vec *sums, TB_R *out) {
    const shape *const s = j->s;
    const int64_t next = s->cells * s->maps_in * s->groups, tiles = ceil_div(j->places, PLACES_BACKWARD);
    const int64_t each = tiles < FEWEST_TILES ? 0 : ceil_div(j->maps * j->taps, tiles);
    for (int64_t c = 0; c < s->maps_in; c += s->channels) {
        const int64_t channels = least(s->channels, s->maps_in - c), last = c + channels == s->maps_in;
        const TB_S *const from = filters + j->map * next + j->group * s->maps_in + c;
        const TB_S *const later = last ? from - c + j->maps * next : from + channels;
        const TB_T *at[PLACES_BACKWARD];
        for (int64_t rank = 0, first = 0, count; rank < j->places; rank += count, first += each) {
            count = least(PLACES_BACKWARD, places_from(j, rank));
            for (int64_t i = 0; i < count; ++i) at[i] = j->of_rank[rank + i].at + c;
            take_taps(j, rank, count);
            expect_filters(j, later, next, s->channels, first, each);
            for (int64_t map = 0, taken; map < j->maps; map += taken) {
                taken = j->maps - map >= MAPS_BACKWARD ? MAPS_BACKWARD : j->maps - map >= 4 ? 4 : 1;
                backwards[taken][count - 1](at, channels, j->taken, j->count, from + map * next, next,
                                            sums + map * s->part + rank, s->part, c > 0);
            }
        }
    }
    for (int64_t map = 0; map < j->maps; ++map)
        for (int64_t place = 0; place < j->places; place += LANES) {
            vec r[LANES], total = {0};
            for (int64_t i = 0; i < LANES; ++i)
                r[i] = place + i < j->places ? sums[map * s->part + j->of_place[place + i].rank] : (vec){0};
            transpose(r);
            for (int l = 0; l < LANES; ++l) total += r[l];
            put(j, out, j->map + map, place, total);
        }
}

// Elements of a task's sums, and of its filters, copied, which lie behind them, before what is found of the taps.
INLINE int64_t sum_elements(const shape *s) { return apart(s->part * s->panel * (s->backward && !s->copied ? LANES : 1)); }
INLINE int64_t copied_elements(const shape *s) { return s->copied ? apart(s->channels * s->cells * s->panel) : 0; }

// A task: a part of the places of a phase for a panel of maps of a group. A tail needs a stride of 1 of the results.
void tb_few(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
            int64_t end) {
    const shape s = read_shape(size);
    int64_t longest = s.images;
    for (int a = 0; a < 3; ++a) longest *= phase_length(s.axes + a, 0);
    const int64_t parts = ceil_div(longest, s.part), panels = ceil_div(s.maps_out, s.panel);
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots);
    TB_T *const sums = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]);
    TB_S *const copy = (TB_S *)(sums + sum_elements(&s));
    tap *const taps = (tap *)(copy + copied_elements(&s));
    place *const places = (place *)(taps + 2 * s.cells);
    job j = {.s = &s, .tap = taps, .taken = taps + s.cells, .of_place = places, .of_rank = places + s.part,
             .away = (int64_t (*)[3])(places + 2 * s.part)};
    for (int64_t task = begin; task < end; ++task) {
        const int64_t phase = task / parts / panels % s.phases;
        j.group = task / parts / panels / s.phases;
        j.map = task / parts % panels * s.panel;
        j.maps = least(s.panel, s.maps_out - j.map);
        j.phase[0] = phase / s.axes[2].b / s.axes[1].b;
        j.phase[1] = phase / s.axes[2].b % s.axes[1].b;
        j.phase[2] = phase % s.axes[2].b;
        for (int a = 0; a < 3; ++a) j.length[a] = phase_length(s.axes + a, j.phase[a]);
        j.place = task % parts * s.part;
        j.places = least(s.part, j.length[0] * j.length[1] * j.length[2] * s.images - j.place);
        if (j.places < 1) continue;
        find_taps(&j);
        find_places(&j, TB_PLACE(DATA));
        if (s.backward && !s.copied) run_backward(&j, TB_PLACE(FILTERS), (vec *)sums, TB_PLACE(RESULT));
        else run_maps(&j, TB_PLACE(FILTERS), copy, sums, TB_PLACE(RESULT));
        TB_FINISH(s.out_map, j.group * s.maps_out + j.map, j.maps, j.place, j.places);
    }
    give_slot(TB_PLACE(OWN), slot);
}

// out: bytes of the copy, and of a slot.
void tb_few_needs(const int64_t *size, int64_t *out) {
    const shape s = read_shape(size);
    out[0] = copied_places(&s) * s.pitch * (int64_t)sizeof(TB_T);
    out[1] = (sum_elements(&s) + copied_elements(&s)) * (int64_t)sizeof(TB_T);
    out[1] += s.cells * (int64_t)(2 * sizeof(tap) + 3 * sizeof(int64_t)) + 2 * s.part * (int64_t)sizeof(place);
}
