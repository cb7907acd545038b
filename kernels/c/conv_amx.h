// SPDX-License-Identifier: Apache-2.0
// conv_amx.h — the tiles and copies of conv.c on the matrix unit of amx.h
//
// Filters   of a tile: blocks of a, [block of channels][s of the phase]; their first half if no more maps are left
// Copy      that of conv_copies.h of a pair of channels, whose numbers of a plane are the halves of a word:
//           [block of channels][plane][pair][place]. So a row of b lies side by side from any place on.
// Pairs     If no more than HALF channels are left for the last block, at stride 1, they lie there twice, the second
//           time moved by a tap: a block of filters then has two taps of them.

enum {
    COPIED_CHANNELS = EDGE,
    WRITTEN = WIDTH,  // places that a tile writes at a time
    PAIRS = EDGE / 2,
    MENDED = 1,       // whether sums that are not finite are made anew
};

// Elements that so many channels of a tile's filters take, for each tap.
INLINE int64_t stored(int64_t channels) { return ceil_div(channels, EDGE) * (BLOCK_BYTES / (int64_t)sizeof(TB_T)); }

// Steps that so many channels are at each tap, and elements of the copy from a step to the next.
INLINE int64_t steps_of(int64_t channels) { return ceil_div(channels, EDGE); }
INLINE int64_t step_elements(const job *j) { return PLANES * PAIRS * j->channel; }

// Whether the last of so many channels go two taps at a time; of a step, how many do.
INLINE int has_pairs(const shape *s, int64_t channels) {
    return channels % EDGE > 0 && channels % EDGE <= HALF && s->wide.stride == 1 && s->wide.taps > 1;
}
INLINE int64_t taps_of_step(const shape *s, int64_t channels, int64_t step) {
    return has_pairs(s, channels) && step == channels / EDGE ? 2 : 1;
}

// The copy of a slot, and behind it two channels before they become words.
INLINE int64_t words_elements(const shape *s, const job *j) { return steps_of(s->channels) * step_elements(j) + 2 * WIDTH; }
INLINE int64_t held_elements(const shape *s, const job *j) { return words_elements(s, j) + 2 * j->channel; }

// Numbers as they meet the second of two taps, from those of the first.
static void move_by_a_tap(const job *j, const TB_T *from, TB_T *to) {
    const axis *const x = &j->s->wide;
    const int64_t away = x->dilation * j->s->images, size = (int64_t)sizeof(TB_T);
    const int64_t left = j->channel - away;
    __builtin_memcpy(to + (x->backward ? away : 0), from + (x->backward ? 0 : away), (unsigned long)(left * size));
    __builtin_memset(to + (x->backward ? 0 : left), 0, (unsigned long)(away * size));
}

static void copy_channels(const job *j, const TB_S *in, int64_t first, int64_t channels, TB_T *copy) {
    TB_T *const both = copy + words_elements(j->s, j), *const second = both + j->channel;
    const int64_t pairs = has_pairs(j->s, channels) ? HALF / 2 : 0;  // that come twice
    clear(both, 2 * j->channel);  // gaps behind rows too: filters of no tap, zeros, meet what is moved from there
    for (int64_t c = 0; c < steps_of(channels) * EDGE - 2 * pairs; c += 2) {
        if (c < channels) copy_input(j, in, first + c, least(2, channels - c), both);
        else clear(both, j->channel);
        if (c + 1 >= channels) clear(second, j->channel);
        TB_T *const to = copy + c / EDGE * step_elements(j) + c % EDGE / 2 * j->channel;
        for (int64_t i = 0; i < j->channel; i += HALF) {
            words line[PLANES];
            pair_planes(*(const floats *)(both + i), *(const floats *)(second + i), line);
            for (int p = 0; p < PLANES; ++p) *(words *)(to + p * PAIRS * j->channel + i) = line[p];
        }
    }
    TB_T *const last = copy + channels / EDGE * step_elements(j);
    for (int64_t p = 0; p < PLANES; ++p)
        for (int64_t n = p * PAIRS; n < p * PAIRS + pairs; ++n)
            move_by_a_tap(j, last + n * j->channel, last + (n + pairs) * j->channel);
}

// Half a block of the filters before it is cut into planes: HALF maps of as many channels as there are.
static void read_half(const TB_S *at, int64_t channel, int64_t maps, int64_t channels, int64_t backward, float *x) {
    const int64_t lines = backward ? maps : channels, length = backward ? channels : maps, all = backward ? EDGE : HALF;
    for (int64_t i = 0; i < lines; ++i) copy_run(at + i * channel, length, x + i * all);
}

// Half a block of the filters, with HALF channels of another tap if there is a `second`.
static void copy_half(const TB_S *at, const TB_S *second, int64_t channel, int64_t maps, int64_t channels,
                      int64_t backward, char *to) {
    float x[HALF * EDGE];
    if (maps < HALF || channels < (second ? HALF : EDGE)) __builtin_memset(x, 0, sizeof x);
    read_half(at, channel, maps, channels, backward, x);
    if (second) read_half(second, channel, maps, channels, backward, x + (backward ? HALF : HALF * HALF));
    if (backward) half_of_rows(to, x, EDGE, 0);
    else half_of_columns(to, x, HALF, 0);
}

// The filters of a tile of maps, for channels [c0, c1) of a cell (t, r).
static void copy_filters(const shape *s, const TB_S *from, int64_t map, int64_t phase, int64_t c0, int64_t c1,
                         int64_t channel, int64_t row, int64_t backward, TB_T *to) {
    const int64_t maps = least(EDGE, s->maps_out - map), first = least(HALF, maps);
    const int64_t next = HALF * (backward ? channel : 1), together = taps_of_step(s, c1 - c0, 0);
    const TB_S *at[2] = {0, 0};
    int64_t left = count_column_taps(s, phase), waiting = 0, shift, unused;
    char *place = (char *)to;
    for (int64_t tap = 0; tap < s->wide.taps; ++tap) {
        if (!reach(&s->wide, tap, phase, &shift, &unused)) continue;
        at[waiting++] = from + tap * row + (backward ? map * channel + c0 : map + c0 * channel);
        if (--left && waiting < together) continue;
        const TB_S *const second = waiting > 1 ? at[1] : 0;
        copy_half(at[0], second, channel, first, c1 - c0, backward, place);
        if (maps > HALF)
            copy_half(at[0] + next, second ? second + next : 0, channel, maps - first, c1 - c0, backward, place + UNIT);
        place += BLOCK_BYTES, waiting = 0;
    }
}

// Sums of TILE maps at WIDTH places, over the taps that they meet of `count` strips. `all`: steps of a strip, so many
// `taps` of each block of channels. `more`: on sums.
static void run_tile(const job *j, int64_t maps, int64_t width, range met, const strip *strips, int64_t count,
                     int64_t all, int64_t taps, const int64_t *offset, TB_T *sums, int64_t pitch, int more) {
    (void)width;
    const int64_t line = j->channel * (int64_t)sizeof(TB_T), sum_line = pitch * (int64_t)sizeof(TB_T);
    if (more) load_sums((const char *)sums, sum_line);
    else clear_sums();
    for (; count > 0; --count, ++strips)
        for (int64_t step = 0; step < all; step += taps) {
            const int64_t together = all - step < taps ? 2 : 1, end = step + ceil_div(met.last, together);
            for (int64_t n = step + met.first / together; n < end; ++n) {
                const char *const a = (const char *)strips->filter + n * BLOCK_BYTES;
                const char *const b = (const char *)strips->in + offset[n];
                add_block(maps > HALF, a, 64, UNIT, 2 * UNIT, b, line, 64, PAIRS * line);
            }
        }
    store_sums((char *)sums, sum_line);
}
