// SPDX-License-Identifier: Apache-2.0
// conv_fma.h — the tiles and copies of conv.c on any processor: multiply-adds on vectors
//
// A tile's filters are [channel][s of the phase][MR]; the copy of the input is as conv_copies.h makes it.

enum {
    COPIED_CHANNELS = 16,
    WRITTEN = LANES,  // places that a tile writes at a time
    MENDED = 0,       // whether sums that are not finite are made anew
};

// Elements that so many channels of a tile's filters take, for each tap.
INLINE int64_t stored(int64_t channels) { return channels * MR; }

// Steps that so many channels are at each tap, and elements of the copy from a step to the next.
INLINE int64_t steps_of(int64_t channels) { return channels; }
INLINE int64_t step_elements(const job *j) { return j->channel; }

// Taps that a step has.
INLINE int64_t taps_of_step(const shape *s, int64_t channels, int64_t step) {
    (void)s, (void)channels, (void)step;
    return 1;
}

INLINE int64_t held_elements(const shape *s, const job *j) { return copied_elements(s, j); }

INLINE void copy_channels(const job *j, const TB_S *in, int64_t first, int64_t channels, TB_T *copy) {
    copy_input(j, in, first, channels, copy);
}

// MR maps, `map` apart, of LANES neighbouring channels: [channel][MR], `step` apart.
static void copy_square(const TB_S *from, int64_t map, TB_T *to, int64_t step) {
    vec r[LANES];
    for (int k = 0; k < LANES; ++k) r[k] = k < MR ? load(from + k * map) : (vec){0};
    transpose(r);
    for (int c = 0; c < LANES; ++c)
        for (int k = 0; k < MR && k < LANES; ++k) to[c * step + k] = r[c][k];
}

// The filters of a tile of maps, for channels [c0, c1) of a cell (t, r).
static void copy_filters(const shape *s, const TB_S *from, int64_t map, int64_t phase, int64_t c0, int64_t c1,
                         int64_t channel, int64_t row, int64_t backward, TB_T *to) {
    const int64_t maps = least(MR, s->maps_out - map), taps = count_column_taps(s, phase) * MR;
    for (int64_t tap = 0; tap < s->wide.taps; ++tap) {
        int64_t shift, unused, c = c0;
        if (!reach(&s->wide, tap, phase, &shift, &unused)) continue;
        const TB_S *const at = from + tap * row + map * (backward ? channel : 1);
        const int64_t next = backward ? 1 : channel, step = backward ? channel : 1;
        TB_T *place = to;
        if (backward && maps == MR && MR <= LANES)
            for (; c + LANES <= c1; c += LANES, place += LANES * taps) copy_square(at + c, channel, place, taps);
        for (; c < c1; ++c, place += taps)
            if (maps == MR && !backward)
                for (int k = 0; k < MR; ++k) place[k] = TB_WIDE(at[c * next + k]);
            else
                for (int k = 0; k < MR; ++k) place[k] = k < maps ? TB_WIDE(at[c * next + k * step]) : 0;
        to += MR;
    }
}

// Which of a strip's steps a tile takes: `runs` of `length` from the `first` on, each `apart` from the one before.
typedef struct steps {
    int64_t first, runs, length, apart;
} steps;

// Rows of sums, on their way to the cache before they are written.
INLINE void expect_rows(const TB_T *sums, int rows, int64_t pitch, int count) {
    UNROLL for (int i = 0; i < rows; ++i)
        UNROLL for (int j = 0; j < count; j += LINE) __builtin_prefetch(sums + i * pitch + j, 1);
}

// Where a step takes all registers, gcc keeps the sums of several steps in memory.
#if MANY_REGISTERS
#define UNROLL_STEPS _Pragma("GCC unroll 2")
#else
#define UNROLL_STEPS
#endif

// M maps x V vectors of places over strips, whose inputs lie `offset` bytes from a strip's. `more`: on sums.
#define TB_TILE(M, V) \
    static __attribute__((noinline)) void tile_##M##x##V(const strip *strips, int64_t count, const steps *taken, \
            const int64_t *offset, TB_T *sums, int64_t pitch, int more) { \
        vec sum[M][V]; \
        UNROLL for (int i = 0; i < M; ++i) \
            UNROLL for (int j = 0; j < V; ++j) sum[i][j] = (vec){0}; \
        if (pitch > WIDTH) expect_rows(sums, M, pitch, V * LANES); \
        const int64_t gap = taken->apart - taken->length; \
        for (const strip *const last = strips + count; strips < last; ++strips) { \
            const TB_T *f = strips->filter + taken->first * MR; \
            const char *const in = (const char *)strips->in; \
            const int64_t *o = offset + taken->first; \
            for (int64_t run = taken->runs; run > 0; --run, o += gap, f += gap * MR) { \
                UNROLL_STEPS \
                for (const int64_t *const end = o + taken->length; o < end; ++o, f += MR) { \
                    const TB_T *const at = (const TB_T *)(in + *o); \
                    vec y[V]; \
                    UNROLL for (int j = 0; j < V; ++j) y[j] = *(const vec *)(at + j * LANES); \
                    UNROLL for (int i = 0; i < M; ++i) ADD_ROW(sum[i], f + i, y, V); \
                } \
            } \
        } \
        UNROLL for (int i = 0; i < M; ++i) \
            UNROLL for (int j = 0; j < V; ++j) { \
                vec *const to = (vec *)(sums + i * pitch + j * LANES); \
                if (more) sum[i][j] += *to; \
                *to = sum[i][j]; \
            } \
    }
#define TB_TILES(M) TB_TILE(M, 1) TB_TILE(M, 2) TB_TILE(M, 3)
TB_TILES(1)
TB_TILES(4)
#if TB_VECTOR == 64
TB_TILES(8)
#define EIGHT_MAPS {tile_8x1, tile_8x2, tile_8x3}
#else
#define EIGHT_MAPS {0}
#endif

typedef void (*tile)(const strip *, int64_t, const steps *, const int64_t *, TB_T *, int64_t, int);

static tile tile_for(int64_t maps, int64_t vectors) {
    static const tile tiles[3][3] = {{tile_1x1, tile_1x2, tile_1x3}, {tile_4x1, tile_4x2, tile_4x3},
                                     EIGHT_MAPS};
    return tiles[maps > 4 ? 2 : maps > 1 ? 1 : 0][vectors - 1];
}

// Sums of `maps` maps at `width` places, over the taps that they meet of `count` strips. `all`: steps of a strip, so many
// `taps` at each. `more`: on sums.
static void run_tile(const job *j, int64_t maps, int64_t width, range met, const strip *strips, int64_t count,
                     int64_t all, int64_t taps, const int64_t *offset, TB_T *sums, int64_t pitch, int more) {
    (void)j;
    const int64_t length = met.last - met.first;
    const steps taken = length < taps ? (steps){met.first, all / taps, length, taps} : (steps){0, 1, all, all};
    tile_for(maps, ceil_div(width, LANES))(strips, count, &taken, offset, sums, pitch, more);
}
