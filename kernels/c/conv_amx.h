// SPDX-License-Identifier: Apache-2.0
// conv_amx.h — the tiles and copies of conv.c on the matrix unit of amx.h
//
// Filters   of a tile: blocks of a, [block of channels][s of the phase]
// Copy      that of conv_copies.h of a pair of channels, whose numbers of a plane are the halves of a word:
//           [block of channels][plane][pair][place]. So a row of b lies side by side from any place on.

enum {
    COPIED_CHANNELS = EDGE,
    WRITTEN = WIDTH,  // places that a tile writes at a time
    PAIRS = EDGE / 2,
};

// Elements that so many channels of a tile's filters take, for each tap.
INLINE int64_t stored(int64_t channels) { return ceil_div(channels, EDGE) * (BLOCK_BYTES / (int64_t)sizeof(TB_T)); }

// Steps that so many channels are at each tap, and elements of the copy from a step to the next.
INLINE int64_t steps_of(int64_t channels) { return ceil_div(channels, EDGE); }
INLINE int64_t step_elements(const job *j) { return PLANES * PAIRS * j->channel; }

// The copy of a slot, and behind it two channels before they become words.
INLINE int64_t words_elements(const shape *s, const job *j) { return steps_of(s->channels) * step_elements(j) + 2 * WIDTH; }
INLINE int64_t held_elements(const shape *s, const job *j) { return words_elements(s, j) + 2 * j->channel; }

static void copy_channels(const job *j, const TB_S *in, int64_t first, int64_t channels, TB_T *copy) {
    TB_T *const both = copy + words_elements(j->s, j), *const second = both + j->channel;
    for (int64_t c = 0; c < steps_of(channels) * EDGE; c += 2) {
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
}

// Half a block of the filters: HALF maps of EDGE channels, as many of them as there are.
static void copy_half(const TB_S *at, int64_t channel, int64_t maps, int64_t channels, int64_t backward, char *to) {
    float x[HALF * EDGE];
    const int64_t lines = backward ? maps : channels, length = backward ? channels : maps, all = backward ? EDGE : HALF;
    if (lines < EDGE * HALF / all || length < all) __builtin_memset(x, 0, sizeof x);
    for (int64_t i = 0; i < lines; ++i) copy_run(at + i * channel, length, x + i * all);
    if (backward) half_of_rows(to, x, EDGE, 0);
    else half_of_columns(to, x, HALF, 0);
}

// The filters of a tile of maps, for channels [c0, c1) of a cell (t, r).
static void copy_filters(const shape *s, const TB_S *from, int64_t map, int64_t phase, int64_t c0, int64_t c1,
                         int64_t channel, int64_t row, int64_t backward, TB_T *to) {
    char *place = (char *)to;
    for (int64_t tap = 0; tap < s->wide.taps; ++tap) {
        int64_t shift, unused;
        if (!reach(&s->wide, tap, phase, &shift, &unused)) continue;
        const TB_S *const at = from + tap * row + (backward ? map * channel + c0 : map + c0 * channel);
        const int64_t maps = least(EDGE, s->maps_out - map), first = least(HALF, maps);
        copy_half(at, channel, first, c1 - c0, backward, place);
        copy_half(at + HALF * (backward ? channel : 1), channel, maps - first, c1 - c0, backward, place + UNIT);
        place += BLOCK_BYTES;
    }
}

// The taps of the job's columns [*first, *last), of those that it has, that meet inputs at places of a tile.
static void meeting_taps(const job *j, int64_t lane, int64_t width, int64_t *first, int64_t *last) {
    const axis *const x = &j->s->wide;
    const int64_t start = j->column + lane / j->s->images, end = j->column + (lane + width - 1) / j->s->images;
    int64_t count = 0, shift, from;
    *first = *last = 0;
    for (int64_t tap = 0; tap < x->taps; ++tap) {
        if (!reach(x, tap, j->column_phase, &shift, &from)) continue;
        ++count;
        if (!j->s->flat && ((end + shift) * x->a + from < 0 || (start + shift) * x->a + from >= x->in)) continue;
        if (*last == 0) *first = count - 1;
        *last = count;
    }
}

// Sums of TILE maps at WIDTH places from `lane` on, over `count` strips of `steps`. `more`: on sums.
static void run_tile(const job *j, int64_t maps, int64_t lane, int64_t width, const strip *strips, int64_t count,
                     int64_t steps, const int64_t *offset, TB_T *sums, int64_t pitch, int more) {
    const int64_t line = j->channel * (int64_t)sizeof(TB_T), sum_line = pitch * (int64_t)sizeof(TB_T);
    const int64_t taps = count_column_taps(j->s, j->column_phase);
    int64_t first, last;
    (void)maps;
    meeting_taps(j, lane, width, &first, &last);
    if (more) load_sums((const char *)sums, sum_line);
    else clear_sums();
    for (const strip *const end = strips + count; strips < end; ++strips)
        for (int64_t step = 0; step < steps; step += taps)
            for (int64_t n = step + first; n < step + last; ++n) {
                const char *const a = (const char *)strips->filter + n * BLOCK_BYTES;
                add_block(a, 64, UNIT, 2 * UNIT, (const char *)strips->in + offset[n], line, 64, PAIRS * line);
            }
    store_sums((char *)sums, sum_line);
}

// Whether all sums are finite: 0 times any other is no number.
static int all_finite(const TB_T *sums, int64_t maps, int64_t width, int64_t pitch) {
    vec zeros = {0};
    TB_T rest = 0;
    for (int64_t k = 0; k < maps; ++k, sums += pitch) {
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) zeros += *(const vec *)(sums + i) * 0;
        for (; i < width; ++i) rest += sums[i] * 0;
    }
    for (int l = 0; l < LANES; ++l) rest += zeros[l];
    return rest == 0;
}
