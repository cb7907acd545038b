// SPDX-License-Identifier: Apache-2.0
// conv_winograd_update.h — the gradient by the filters of conv_winograd.c
//
// Computes  for each point the products of V, the transformed data, and W, the transformed errors, added up over lanes, and
//           from these the taps. Either tasks share V, W and the sums, a chunk of channels and SHARES blocks of lanes after
//           the other, or each takes the sums of some channels and maps to the end. The blocks have sums of their own, so
//           that threads whose caches are far apart multiply what they have transformed.

// Elements of V at a point.
static int64_t update_point_elements(const shape *s) { return apart(stored_channels(s->chunk, s->panels * WIDTH)); }

// Channels [c, end) of a chunk that begins with channel `first`, at a panel of a block, which begins with `lane`.
static void update_data(const shape *s, int64_t lane, const TB_S *in, int64_t first, int64_t c, int64_t end,
                        int64_t panel, TB_T *v) {
    data tiles;
    tiles.part = -1;
    for (; c < end; ++c) {
        const int64_t map = c % s->maps;
        find_data(s, c / s->maps, lane, &tiles);
        for (int j = 0; j < filled_lanes(s, lane); j += BESIDE * LANES) {
            vec d[BESIDE][SQUARE];
            for (int i = 0; i < BESIDE; ++i) {
                const int at = j + i * LANES;
                expect_lanes(s, c - first, panel * WIDTH + at, v);
                if (BESIDE > 1 && lane + at >= s->lanes) {
                    __builtin_memset(d[i], 0, sizeof d[i]);
                    continue;
                }
                take_data(s, &tiles, in + map * s->in_map, at, c + 1 < end && map + 1 < s->maps, d[i]);
                transform_square(d[i]);
            }
            put_lanes(s, d, c - first, panel * WIDTH + j, v);
        }
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
        else find_pieces(s, 0, lane + at, LANES, pieces);
        if (few) clear_lines(&x, copy);
        for (int i = 0; i < LANES; ++i) {
            const TB_S *const map = errors + (k + i) * s->out_map;
            if (few && i < count) {
                copy_lines(s, &x, map, copy);
                turn_squares(&x, x.at, copy, TAPS, e);
            } else if (i < count) {
                if (i + 1 < count) prefetch_errors(s, pieces, map + s->out_map);
                fetch_errors(s, pieces, map, e);
            }
            for (int j = 0; j < CELLS; ++j) turned[j][i] = i < count ? e[j] : (vec){0};
        }
        for (int i = 0; i < CELLS; ++i) transpose(turned[i]);
        for (int l = 0; l < LANES; l += TOGETHER) {
            vec half[POINTS * TAPS], whole[TOGETHER][SQUARE];
            expect_errors(s, k, panel * WIDTH + at + least(l + 2, LANES - 1), w);
            for (int n = 0; n < TOGETHER; ++n) {
                for (int i = 0; i < CELLS; ++i) e[i] = turned[i][l + n];
                for (int j = 0; j < TAPS; ++j) transform_filter(e + j, TAPS, half + j, TAPS);
                for (int i = 0; i < POINTS; ++i) transform_filter(half + i * TAPS, 1, whole[n] + i * POINTS, 1);
            }
            put_errors(s, whole, k, panel * WIDTH + at + l, w);
        }
    }
}

// Where the sums of a group are that a share of the blocks has.
static int64_t share_sums(const shape *s, int64_t share, int64_t group) {
    return (share * s->groups + group) * SQUARE * s->sums;
}

// A block of lanes: its group, its first lane, and where V and W of it are.
typedef struct update_block {
    int64_t group, lane;
    TB_T *v, *w;
} update_block;

static update_block find_update_block(const shape *s, void *const *ptr, const int64_t *size, int64_t share) {
    return (update_block){
        size[BLOCK] / s->blocks, (size[BLOCK] % s->blocks + share) * s->panels * WIDTH,
        (TB_T *)TB_PLACE(DATA) + share * SQUARE * update_point_elements(s),
        (TB_T *)TB_PLACE(PRODUCTS) + share * SQUARE * s->w_point,
    };
}

#if UPDATES

// To V and, with the first channels, W of the blocks from size[BLOCK] on. A task: of one of them, a panel of lanes of LANES
// channels, or, after all of these, of LANES maps.
void tb_winograd_update_in(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                           int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    shape s = read_shape(size);
    s.v_point = update_point_elements(&s);
    const int64_t first = size[FIRST], last = chunk_end(&s, first), channels = ceil_div(last - first, LANES) * LANES;
    const int64_t each = (channels + (first ? 0 : ceil_div(s.maps_out, LANES) * LANES)) / LANES * s.panels;
    if (begin == 0 && size[PART]) free_slots(TB_PLACE(OWN), size[SLOTS]);
    for (int64_t task = begin; task < end; ++task) {
        const update_block b = find_update_block(&s, ptr, size, task / each);
        const int64_t panel = task % s.panels, lane = b.lane + panel * WIDTH, c = task % each / s.panels * LANES;
        const TB_S *const in = (const TB_S *)TB_PLACE(IN) + b.group * s.maps * s.in_map;
        const TB_S *const errors = (const TB_S *)TB_PLACE(FILTERS) + b.group * s.maps_out * s.out_map;
        if (c < channels) update_data(&s, lane, in, first, first + c, least(first + c + LANES, last), panel, b.v);
        else update_errors(&s, lane, errors, c - channels, panel, b.w);
    }
}

// A task: of one of the blocks from size[BLOCK] on, a point.
void tb_winograd_update_multiply(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                                 int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t first = size[FIRST], last = chunk_end(&s, first), more = size[BLOCK] % s.blocks > 0;
    begin_tiles();
    for (int64_t task = begin; task < end; ++task) {
        const int64_t share = task / SQUARE, point = task % SQUARE;
        const update_block b = find_update_block(&s, ptr, size, share);
        const range has = point_channels(&s, s.maps, point, first, last);
        update_point(&s, b.lane, has.end - has.from,
                     b.v + point * update_point_elements(&s) + stored_channels(has.from - first, s.panels * WIDTH),
                     b.w + point * s.w_point,
                     (TB_T *)TB_PLACE(PACKED) + share_sums(&s, share, b.group) + point * s.sums + has.from * s.padded, more);
    }
    end_tiles();
}

// From sums of channel c, `point` elements apart, and those of other shares, to the gradients of the filters of its part and
// map: maps [k, end). What short parts lack at infinity, where sums are whatever memory has, makes their last taps alone.
INLINE void put_gradients(const shape *s, const TB_T *sums, int64_t point, int64_t shares, int64_t c, int64_t k, int64_t end,
                          TB_R *out) {
    const int64_t row = s->maps_out * s->groups;
    const part_of_axes part = find_part(s, c / s->maps);
    const int64_t h = first_tap(&s->high, part.high), high = part_taps(&s->high, part.high);
    const int64_t w = first_tap(&s->wide, part.wide), wide = part_taps(&s->wide, part.wide);
    TB_R *const to = out + c % s->maps * s->high.taps * s->wide.taps * row;
    for (; k < end; k += LANES, sums += LANES) {
        vec d[SQUARE], o[OUT * OUT];
        take_points(sums, point, d);
        for (int64_t share = 1; share < shares; ++share) {
            vec more[SQUARE];
            take_points(sums + share_sums(s, share, 0), point, more);
            for (int p = 0; p < SQUARE; ++p) d[p] += more[p];
        }
        transform_square_back(d, o);
        for (int p = 0; p < OUT * OUT; ++p) {
            const int64_t i = h + p / OUT * s->high.stride, j = w + p % OUT * s->wide.stride;
            if (p / OUT >= high || p % OUT >= wide) continue;
            TB_R *const at = to + (i * s->wide.taps + j) * row + k;
            if (end - k >= LANES) store(at, o[p]);
            else
                for (int64_t l = 0; l < end - k; ++l) at[l] = TB_NARROW(o[p][l]);
        }
    }
}

// A task: the filters of a channel of a group.
void tb_winograd_update_out(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                            int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t group = task / s.maps;
        const TB_T *const sums = (const TB_T *)TB_PLACE(PACKED) + share_sums(&s, 0, group);
        for (int64_t c = task % s.maps; c < s.maps_in; c += s.maps)
            put_gradients(&s, sums + c * s.padded, s.sums, size[SHARES], c, 0, s.maps_out,
                          (TB_R *)TB_PLACE(RESULT) + group * s.maps_out);
    }
}

#if !defined(TB_PLANES)
// From V and W of all lanes of group size[BLOCK] to its results. A task: PART channels and WIDTH maps.
void tb_winograd_update_parts(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                              int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots), panels = s.padded / WIDTH;
    const int64_t each = apart(size[PART] * WIDTH);
    TB_T *const sums = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]);
    TB_R *const out = (TB_R *)TB_PLACE(RESULT) + size[BLOCK] * s.maps_out;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task / panels * size[PART], last = least(first + size[PART], s.maps_in);
        const int64_t k = task % panels * WIDTH, k_end = least(k + WIDTH, s.maps_out);
        const TB_T *const v = (const TB_T *)TB_PLACE(DATA) + first * s.pitch;
        const TB_T *const w = (const TB_T *)TB_PLACE(PRODUCTS) + k * s.panels * WIDTH;
        for (int64_t point = 0; point < SQUARE; ++point) {
            const range has = point_channels(&s, s.maps, point, first, last);
            const TB_T *const data = v + point * update_point_elements(&s) + (has.from - first) * s.pitch;
            update_panel(&s, s.lanes, has.end - has.from, data, ceil_div(k_end - k, LANES), w + point * s.w_point,
                         sums + point * each + (has.from - first) * WIDTH, WIDTH, 0);
        }
        for (int64_t c = first; c < last; ++c) put_gradients(&s, sums + (c - first) * WIDTH, each, 1, c, k, k_end, out);
    }
    give_slot(TB_PLACE(OWN), slot);
}
#endif
#endif
