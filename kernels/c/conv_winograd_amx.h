// SPDX-License-Identifier: Apache-2.0
// conv_winograd_amx.h — what conv_winograd.c multiplies, and how, on the matrix unit of amx.h
//
// Layout    Blocks of amx.h, one after the other along channels (dF: lanes), with zeros for channels that are missing:
//           U[group][point][tile] of a, V[point][panel] of b; for dF V[point][tile of channels] of a,
//           W[point][panel of maps] of b.

enum {
    COPIED_CHANNELS = EDGE,
    FILLED = EDGE,  // channels come in multiples of it, with zeros
    TOGETHER = 2,   // channels, or lanes of errors, that are put at a time
    BESIDE = NV,    // vectors of lanes of a channel that are put at a time
};

// Elements that `steps` channels (dF: lanes) of `width` columns take.
INLINE int64_t stored(int64_t steps, int64_t width) {
    return ceil_div(steps, EDGE) * (width / EDGE) * (BLOCK_BYTES / (int64_t)sizeof(TB_T));
}
INLINE int64_t stored_channels(int64_t channels, int64_t lanes) { return stored(lanes, ceil_div(channels, EDGE) * EDGE); }

// Where half a block lies: of the blocks of `steps` steps of k, the one with step k of row or column j.
INLINE char *half_at(TB_T *blocks, int64_t steps, int64_t k, int64_t j) {
    return (char *)blocks + (j / EDGE * ceil_div(steps, EDGE) + k / EDGE) * BLOCK_BYTES + j % EDGE / HALF * UNIT;
}

INLINE void put_line(const words *line, char *to) {
    UNROLL for (int p = 0; p < PLANES; ++p) *(words *)(to + 2 * p * UNIT) = line[p];
}

// The filters of COPIED_MAPS maps from `map` on and of channels [first, last) of a group, HALF maps at a time; u: where
// the first is.
INLINE void put_filters(const shape *s, const taps *given, int64_t map, int64_t first, int64_t last, TB_T *u) {
    float squares[SQUARE][EDGE][HALF];
    for (const int64_t end = least(map + COPIED_MAPS, s->tiles * TILE); map < end; map += HALF) {
        if (last - first < EDGE || s->maps_out - map < HALF) __builtin_memset(squares, 0, sizeof squares);
        if (map < s->maps_out) transform_maps(s, given, map, first, last, &squares[0][0][0], EDGE * HALF, 0);
        for (int p = 0; p < SQUARE; ++p)
            half_of_columns(half_at(u + p * s->u_point, s->maps_in, 0, map), &squares[p][0][0], HALF, 0);
    }
}

// dF: lines that are written are not asked for in advance here.
INLINE void expect_lanes(const shape *s, int64_t c, int64_t lane, TB_T *v) { (void)s, (void)c, (void)lane, (void)v; }
INLINE void expect_errors(const shape *s, int64_t k, int64_t lane, TB_T *w) { (void)s, (void)k, (void)lane, (void)w; }

// Channels c and c + 1 of a panel at lanes [at, at + LANES).
INLINE void put_data(const shape *s, vec (*d)[SQUARE], int64_t c, int at, TB_T *v) {
    for (int p = 0; p < SQUARE; ++p) {
        words line[PLANES];
        pair_planes(d[0][p], d[1][p], line);
        put_line(line, half_at(v + p * s->v_point, s->chunk, c, at) + c % EDGE / 2 * 64);
    }
}

// Lanes of a panel that are computed: all, since they are columns of a tile.
INLINE int64_t filled_lanes(const shape *s, int64_t lane) { return (void)s, (void)lane, WIDTH; }

// The products of `channels` channels with the panels of a block that are `filled`, at a point; `more`: to what m has.
static void multiply_point(const shape *s, const block *b, const TB_T *u, int64_t channels, uint64_t filled,
                           const TB_T *v, TB_T *m, int more) {
    const int64_t blocks = ceil_div(channels, EDGE), each = stored(s->maps_in, EDGE), step = WIDTH * sizeof(TB_T);
    for (int64_t t = 0; t < s->tiles; ++t)
        for (int64_t p = 0; p < b->panels; ++p) {
            if (!(filled >> p & 1)) continue;
            const TB_T *const x = u + t * each, *const y = v + p * stored(s->chunk, EDGE);
            char *const sums = (char *)(m + (p * s->tiles + t) * TILE * WIDTH);
            if (more) load_sums(sums, step);
            else clear_sums();
            add_blocks(0, blocks, (const char *)x, 64, UNIT, BLOCK_BYTES, (const char *)y);
            store_sums(sums, step);
        }
}

// dF: channel c of a block at lanes [lane, lane + WIDTH).
INLINE void put_lanes(const shape *s, vec (*whole)[SQUARE], int64_t c, int64_t lane, TB_T *v) {
    for (int p = 0; p < SQUARE; ++p) {
        words line[PLANES];
        row_planes(whole[0][p], whole[1][p], line);
        put_line(line, half_at(v + p * s->v_point, s->panels * WIDTH, lane, c) + c % HALF * 64);
    }
}

// dF: LANES maps from map k on, at a lane and the next.
INLINE void put_errors(const shape *s, vec (*whole)[SQUARE], int64_t k, int64_t lane, TB_T *w) {
    for (int p = 0; p < SQUARE; ++p) {
        words line[PLANES];
        pair_planes(whole[0][p], whole[1][p], line);
        put_line(line, half_at(w + p * s->w_point, s->panels * WIDTH, lane, k) + lane % EDGE / 2 * 64);
    }
}

// dF: the products of a block of lanes with `channels` channels at a point, to the point's sums.
static void update_point(const shape *s, int64_t lane, int64_t channels, const TB_T *v, const TB_T *w, TB_T *to,
                         int more) {
    (void)lane;
    const int64_t each = stored(s->panels * WIDTH, EDGE), step = s->padded * (int64_t)sizeof(TB_T);
    for (int64_t c = 0; c < channels; c += EDGE, v += each)
        for (int64_t k = 0; k < s->padded; k += EDGE) {
            char *const sums = (char *)(to + c * s->padded + k);
            if (more) load_sums(sums, step);
            else clear_sums();
            add_blocks(0, s->panels, (const char *)v, 64, UNIT, BLOCK_BYTES, (const char *)(w + k / EDGE * each));
            store_sums(sums, step);
        }
}
