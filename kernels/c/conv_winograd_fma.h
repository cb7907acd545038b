// SPDX-License-Identifier: Apache-2.0
// conv_winograd_fma.h — what conv_winograd.c multiplies, and how, on any processor: multiply-adds on vectors
//
// Layout    U[group][point][tile][channel][MR], V[point][panel][channel][WIDTH]; for dF V[point][channel][lane],
//           W[point][panel of maps][lane][WIDTH].

enum {
    COPIED_CHANNELS = 16,
    FILLED = 1,    // channels come in multiples of it
    TOGETHER = 1,  // channels, or lanes of errors, that are put at a time
    BESIDE = 1,    // vectors of lanes of a channel that are put at a time
};

// Elements that `steps` channels (dF: lanes) of `width` columns take.
INLINE int64_t stored(int64_t steps, int64_t width) { return steps * width; }
INLINE int64_t stored_channels(int64_t channels, int64_t lanes) { return channels * apart(lanes); }

// The filters of COPIED_MAPS maps from `map` on and of channels [first, last) of a group; u: where the first is.
INLINE void put_filters(const shape *s, const taps *given, int64_t map, int64_t first, int64_t last, TB_T *u) {
    for (const int64_t end = least(map + COPIED_MAPS, s->maps_out); map < end; map += LANES)
        transform_maps(s, given, map, first, last, u + map * s->maps_in, s->u_point, s->maps_in * MR);
}

// Channel c of a panel at lanes [at, at + LANES).
INLINE void put_data(const shape *s, vec (*d)[SQUARE], int64_t c, int at, TB_T *v) {
    put_points(d[0], v + c * WIDTH + at, s->v_point);
}

// MR maps and V vectors of lanes of a panel at one point; `more`: added to the products.
#define TB_MULTIPLY(V) \
    static __attribute__((noinline)) void multiply_##V(int64_t channels, const TB_T *u, const TB_T *v, TB_T *m, \
                                                       int more) { \
        vec sum[MR][V]; \
        UNROLL for (int i = 0; i < MR; ++i) \
            UNROLL for (int j = 0; j < V; ++j) sum[i][j] = more ? *(const vec *)(m + i * WIDTH + j * LANES) : (vec){0}; \
        const TB_T *const end = u + channels * MR; \
        for (; u < end; u += MR, v += WIDTH) { \
            vec y[V]; \
            UNROLL for (int j = 0; j < V; ++j) y[j] = *(const vec *)(v + j * LANES); \
            UNROLL for (int i = 0; i < MR; ++i) ADD_ROW(sum[i], u + i, y, V); \
        } \
        UNROLL for (int i = 0; i < MR; ++i) \
            UNROLL for (int j = 0; j < V; ++j) *(vec *)(m + i * WIDTH + j * LANES) = sum[i][j]; \
    }
TB_MULTIPLY(1)
TB_MULTIPLY(2)
TB_MULTIPLY(3)

// Lanes of the panel from `lane` on that are computed: vectors with a tile.
INLINE int64_t filled_lanes(const shape *s, int64_t lane) {
    return ceil_div(least(s->lanes - lane, WIDTH), LANES) * LANES;
}

// The products of `channels` channels with the panels of a block that are `filled`, at a point; `more`: to what m has.
static void multiply_point(const shape *s, const block *b, const TB_T *u, int64_t channels, uint64_t filled,
                           const TB_T *v, TB_T *m, int more) {
    static void (*const multiply[])(int64_t, const TB_T *, const TB_T *, TB_T *, int) = {multiply_1, multiply_2, multiply_3};
    for (int64_t p = 0; p < b->panels; ++p)
        for (int64_t t = 0; t < s->tiles && filled >> p & 1; ++t)
            multiply[filled_lanes(s, b->lane + p * WIDTH) / LANES - 1](
                channels, u + t * s->maps_in * MR, v + p * s->chunk * WIDTH, m + (p * s->tiles + t) * MR * WIDTH, more);
}

INLINE void expect_lanes(const shape *s, int64_t c, int64_t lane, TB_T *v) { expect(v + c * s->pitch + lane, s->v_point); }

// dF: channel c of a block at lanes [lane, lane + LANES).
INLINE void put_lanes(const shape *s, vec (*whole)[SQUARE], int64_t c, int64_t lane, TB_T *v) {
    put_points(whole[0], v + c * s->pitch + lane, s->v_point);
}

INLINE void expect_errors(const shape *s, int64_t k, int64_t lane, TB_T *w) {
    expect(w + k / WIDTH * WIDTH * s->panels * WIDTH + lane * WIDTH + k % WIDTH, s->w_point);
}

// dF: LANES maps from map k on, at a lane.
INLINE void put_errors(const shape *s, vec (*whole)[SQUARE], int64_t k, int64_t lane, TB_T *w) {
    put_points(whole[0], w + k / WIDTH * WIDTH * s->panels * WIDTH + lane * WIDTH + k % WIDTH, s->w_point);
}

// M channels and V vectors of maps of a panel at one point; `more`: added to the sums.
#define TB_UPDATE(M, V) \
    static __attribute__((noinline)) void update_##M##_##V(int64_t lanes, const TB_T *v, int64_t pitch, const TB_T *w, \
            TB_T *to, int64_t step, int more) { \
        vec sum[M][V]; \
        const TB_T *x[M]; \
        UNROLL for (int i = 0; i < M; ++i) { \
            x[i] = v + i * pitch; \
            UNROLL for (int j = 0; j < V; ++j) sum[i][j] = (vec){0}; \
            UNROLL for (int j = 0; j < V * LANES; j += LINE) __builtin_prefetch(to + i * step + j, 1); \
        } \
        for (int64_t l = 0; l < lanes; ++l, w += WIDTH) { \
            vec y[V]; \
            UNROLL for (int j = 0; j < V; ++j) y[j] = *(const vec *)(w + j * LANES); \
            UNROLL for (int i = 0; i < M; ++i) ADD_ROW(sum[i], x[i] + l, y, V); \
        } \
        UNROLL for (int i = 0; i < M; ++i) \
            UNROLL for (int j = 0; j < V; ++j) { \
                vec *const at = (vec *)(to + i * step + j * LANES); \
                if (more) sum[i][j] += *at; \
                *at = sum[i][j]; \
            } \
    }
#define TB_UPDATES(M) TB_UPDATE(M, 1) TB_UPDATE(M, 2) TB_UPDATE(M, 3)
TB_UPDATES(1)
#if MANY_REGISTERS
enum { UPDATED = 8 };
TB_UPDATES(8)
#define UPDATE_MANY {update_8_1, update_8_2, update_8_3}
#else
enum { UPDATED = 4 };
TB_UPDATES(4)
#define UPDATE_MANY {update_4_1, update_4_2, update_4_3}
#endif

// dF: the products of `lanes` lanes with `channels` channels and a panel's `vectors` vectors of maps at a point, to sums of
// channels `pitch` apart.
static void update_panel(const shape *s, int64_t lanes, int64_t channels, const TB_T *v, int64_t vectors, const TB_T *w,
                         TB_T *to, int64_t pitch, int more) {
    typedef void update(int64_t, const TB_T *, int64_t, const TB_T *, TB_T *, int64_t, int);
    static update *const many[] = UPDATE_MANY, *const one[] = {update_1_1, update_1_2, update_1_3};
    int64_t c = 0;
    for (; c + UPDATED <= channels; c += UPDATED)
        many[vectors - 1](lanes, v + c * s->pitch, s->pitch, w, to + c * pitch, pitch, more);
    for (; c < channels; ++c) one[vectors - 1](lanes, v + c * s->pitch, s->pitch, w, to + c * pitch, pitch, more);
}

// dF: the products of a block of lanes from `lane` on with `channels` channels at a point, to the point's sums.
static void update_point(const shape *s, int64_t lane, int64_t channels, const TB_T *v, const TB_T *w, TB_T *to,
                         int more) {
    const int64_t lanes = least(s->panels * WIDTH, s->lanes - lane);
    for (int64_t k = 0; k < s->padded; k += WIDTH, w += WIDTH * s->panels * WIDTH)
        update_panel(s, lanes, channels, v, ceil_div(least(s->maps_out - k, WIDTH), LANES), w, to + k, s->padded, more);
}
