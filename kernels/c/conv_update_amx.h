// SPDX-License-Identifier: Apache-2.0
// conv_update_amx.h — the products of conv_update.c on the matrix unit of amx.h
//
// Copy      of the input in planes: [channel][plane], each as conv_copies.h makes it. So a row of a lies side by side
//           from any place on.
// Errors    blocks of b, [tile of maps][run][EDGE places], zero past the last map and place. A run is a row of the
//           job's outputs or, if flat, all of them with zeros between, as the copy has them.

// Bytes of a plane of a channel, and of a channel: an odd number of cache lines, for the sake of the cache.
INLINE int64_t plane_bytes(const job *j) { return (ceil_div(j->channel, EDGE) | 1) * 2 * EDGE; }
INLINE int64_t line_bytes(const job *j) { return PLANES * plane_bytes(j); }

INLINE int64_t runs_of(const job *j) { return j->s->flat ? 1 : j->rows; }
INLINE int64_t run_places(const job *j) {
    return j->columns * j->s->images + (j->s->flat ? (j->rows - 1) * j->pitch : 0);
}
INLINE int64_t run_blocks(const job *j) { return ceil_div(run_places(j), EDGE); }

// Bytes of the copy, with places that tiles read past it, and of the errors.
static int64_t copy_bytes(const job *j) { return (ceil_div(j->s->channels, EDGE) * EDGE + 1) * line_bytes(j); }
static int64_t turned_bytes(const job *j) {
    return ceil_div(j->s->part_maps, EDGE) * runs_of(j) * run_blocks(j) * BLOCK_BYTES;
}

// Bytes of both and, between them, of a channel before it is cut into planes.
INLINE int64_t slot_bytes(const job *j) {
    const int64_t unit = copy_bytes(j) + 2 * plane_bytes(j) + turned_bytes(j), plain = job_bytes(j);
    return unit > plain ? unit : plain;
}

// Channels come in whole tiles.
INLINE int64_t summed_channels(const shape *s) { return ceil_div(s->maps_in, EDGE) * EDGE; }

// Places between rows and behind the copy: nothing is copied there, but tiles read them and multiply them by zero.
static void clear_places(const job *j, TB_T *memory) {
    char *const behind = (char *)memory + copy_bytes(j);
    __builtin_memset(behind - line_bytes(j), 0, (unsigned long)(line_bytes(j) + 2 * plane_bytes(j)));
}

static void copy_planes(const job *j, const TB_S *in, int64_t first, int64_t channels, char *copy, TB_T *channel) {
    const int64_t plane = plane_bytes(j);
    for (int64_t c = 0; c < ceil_div(channels, EDGE) * EDGE; ++c, copy += line_bytes(j)) {
        if (c < channels) copy_input(j, in, first + c, 1, channel);
        else clear(channel, plane / 2);
        for (int64_t i = 0; i < plane / 2; i += EDGE) {
            words line[PLANES];
            row_planes(*(const floats *)(channel + i), *(const floats *)(channel + i + HALF), line);
            UNROLL for (int p = 0; p < PLANES; ++p) *(words *)(copy + p * plane + 2 * i) = line[p];
        }
    }
}

// EDGE places of a run of a map's errors, from place `at` on.
static void fetch_errors(const job *j, const TB_S *map, int64_t at, TB_T *to) {
    const int64_t row = j->s->wide.out * j->s->images, places = j->columns * j->s->images;
    const int64_t pitch = j->s->flat ? j->pitch : run_blocks(j) * EDGE;
    if (at + EDGE <= places) {
        copy_run(map + at, EDGE, to);
        return;
    }
    for (int64_t i = 0, run; i < EDGE; i += run) {
        const int64_t r = (at + i) / pitch, place = (at + i) % pitch;
        run = least(EDGE - i, (place < places ? places : pitch) - place);
        if (place < places && r < j->rows) copy_run(map + r * row + place, run, to + i);
        else clear(to + i, run);
    }
}

static void turn_errors(const job *j, const TB_S *errors, int64_t maps, char *to) {
    const int64_t row = j->s->wide.out * j->s->images, map = j->s->deep.out * j->s->high.out * row;
    for (int64_t k = 0; k < ceil_div(maps, EDGE) * EDGE; k += EDGE)
        for (int64_t run = 0; run < runs_of(j); ++run)
            for (int64_t at = 0; at < run_blocks(j) * EDGE; at += EDGE, to += BLOCK_BYTES)
                for (int half = 0; half < 2; ++half) {
                    TB_T x[HALF][EDGE];
                    for (int64_t i = 0; i < HALF; ++i)
                        if (k + half * HALF + i >= maps) clear(x[i], EDGE);
                        else fetch_errors(j, errors + (k + half * HALF + i) * map + run * row, at, x[i]);
                    half_of_rows(to + half * UNIT, (const float (*)[EDGE])x, 1);
                }
}

// The products of EDGE channels and maps at a tap over `runs` runs of a job: to sums, or `more` on them.
static void unit_tile(const job *j, const char *a, const char *b, int64_t runs, char *sums, int64_t step, int more) {
    const int64_t line = line_bytes(j), plane = plane_bytes(j), blocks = run_blocks(j);
    if (more) load_sums(sums, step);
    else clear_sums();
    for (; runs > 0; --runs, a += 2 * j->pitch)
        for (int64_t n = 0; n < blocks; ++n, b += BLOCK_BYTES)
            add_block(a + n * 2 * EDGE, line, HALF * line, plane, b, 64, UNIT, 2 * UNIT);
    store_sums(sums, step);
}

// The products of a job's inputs and errors for one cell of the filters.
static void unit_cell(const job *j, const part *p, int64_t t, int64_t r, int64_t tap, const char *copy,
                      const char *turned, int more) {
    const shape *const s = j->s;
    int64_t column_shift, phase, first, last;
    const int64_t at = find_rows(j, t, r, &first, &last), pitch = ceil_div(s->maps_out, WIDTH) * WIDTH;
    reach(&s->wide, tap, 0, &column_shift, &phase);
    if (s->flat) last = last > first, first = 0;
    const int64_t from = at + first * j->pitch + phase * j->plane + (column_shift - s->wide.low) * s->images;
    const char *const a = copy + 2 * from;
    const int64_t step = s->deep.taps * s->high.taps * s->wide.taps * pitch;
    for (int64_t c = 0; c < p->channels; c += EDGE)
        for (int64_t k = 0; k < p->maps; k += EDGE) {
            const char *const b = turned + (k / EDGE * runs_of(j) + first) * run_blocks(j) * BLOCK_BYTES;
            TB_T *const sums = p->sums + c * step + ((t * s->high.taps + r) * s->wide.taps + tap) * pitch + k;
            unit_tile(j, a + c * line_bytes(j), b, last - first, (char *)sums, step * (int64_t)sizeof(TB_T), more);
        }
}

// What update_job does.
static void unit_job(const job *j, const part *p, const TB_S *in, const TB_S *errors, TB_T *memory, int more) {
    const shape *const s = j->s;
    char *const copy = (char *)memory, *const channel = copy + copy_bytes(j);
    char *const turned = channel + 2 * plane_bytes(j);
    copy_planes(j, in, p->first, p->channels, copy, (TB_T *)channel);
    turn_errors(j, errors, p->maps, turned);
    for (int64_t t = 0; t < s->deep.taps; ++t)
        for (int64_t r = 0; r < s->high.taps; ++r)
            for (int64_t tap = 0; tap < s->wide.taps; ++tap) unit_cell(j, p, t, r, tap, copy, turned, more);
}

// Whether all sums of a part are finite: 0 times any other is no number.
static int sums_are_finite(const job *j, const part *p) {
    const int64_t pitch = ceil_div(j->s->maps_out, WIDTH) * WIDTH;
    vec zeros[NV] = {0};
    for (int64_t n = 0; n < p->channels * j->s->deep.taps * j->s->high.taps * j->s->wide.taps; ++n)
        for (int64_t k = 0; k < p->maps; k += WIDTH)
            for (int v = 0; v < NV; ++v) zeros[v] += *(const vec *)(p->sums + n * pitch + k + v * LANES) * 0;
    int finite = 1;
    for (int l = 0; l < NV * LANES; ++l) finite &= zeros[l / LANES][l % LANES] == 0;
    return finite;
}
