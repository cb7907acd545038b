// SPDX-License-Identifier: Apache-2.0
// conv_update_amx.h — the products of conv_update.c on the matrix unit of amx.h
//
// Copy      of the input in planes: [channel][plane], each as conv_copies.h makes it.
// Inputs    rows of a. Many channels: those of EDGE channels at a cell (t, r, s), or of HALF at two cells, as they lie
//           in the copy. Few: those of EDGE cells, one after the other whatever their channels, gathered from the copy.
// Errors    blocks of b, [tile of maps][run][EDGE places], zero past the last map and place. A run is a row of the
//           job's outputs or, if flat, all of them with zeros between, as the copy has them.

enum {
    GATHERED = 16,  // blocks of inputs at a time
    MENDED = 1,
};

// Bytes of a plane of a channel, and of a channel: an odd number of cache lines, for the sake of the cache.
INLINE int64_t plane_bytes(const job *j) { return (ceil_div(j->channel, EDGE) | 1) * 2 * EDGE; }
INLINE int64_t line_bytes(const job *j) { return PLANES * plane_bytes(j); }

INLINE int64_t runs_of(const job *j) { return j->s->flat ? 1 : j->rows; }
INLINE int64_t run_places(const job *j) {
    return j->columns * j->s->images + (j->s->flat ? (j->rows - 1) * j->pitch : 0);
}
INLINE int64_t run_blocks(const job *j) { return ceil_div(run_places(j), EDGE); }

// Whether a tile's rows are cells of several channels.
INLINE int64_t few_channels(const shape *s) { return s->maps_in < HALF; }

// Channels of the copy of so many.
INLINE int64_t copied_channels(const shape *s, int64_t channels) {
    return few_channels(s) ? channels : ceil_div(channels, HALF) * HALF;
}

// Bytes of the copy and of the errors.
static int64_t copy_bytes(const job *j) { return copied_channels(j->s, j->s->channels) * line_bytes(j); }
static int64_t turned_bytes(const job *j) {
    return ceil_div(j->s->part_maps, EDGE) * runs_of(j) * run_blocks(j) * BLOCK_BYTES;
}

// Bytes of a phase's rows before they are cut into planes.
INLINE int64_t rows_bytes(const job *j) { return apart(j->plane) * (int64_t)sizeof(TB_T); }

// Bytes of the copy, of these rows, of the gathered inputs and of the errors, which are fewer in a last job.
INLINE int64_t slot_bytes(const job *j) {
    return copy_bytes(j) + rows_bytes(j) + GATHERED * BLOCK_BYTES + turned_bytes(j);
}

// Inputs come in whole tiles.
INLINE int64_t summed_inputs(const shape *s) {
    if (few_channels(s)) return ceil_div(s->maps_in * cells_of(s), EDGE) * EDGE;
    return ceil_div(s->maps_in, EDGE) * EDGE * cells_of(s);
}

// What nothing is written to: places behind a phase's rows, and rows of the last tile that are no inputs. Tiles read them.
static void clear_places(const job *j, TB_T *memory) {
    __builtin_memset((char *)memory + copy_bytes(j), 0, (unsigned long)(rows_bytes(j) + GATHERED * BLOCK_BYTES));
}

// A phase of a depth's image in planes; `rows` is for its numbers before.
static void copy_planes(const job *j, const TB_S *image, const TB_S *end, int64_t phase, TB_T *rows, char *to) {
    if (image) copy_phase(j, image, end, phase, rows);
    else clear(rows, j->plane);
    for (int64_t i = 0; i < j->plane; i += EDGE) {
        words line[PLANES];
        row_planes(*(const floats *)(rows + i), *(const floats *)(rows + i + HALF), line);
        UNROLL for (int p = 0; p < PLANES; ++p) *(words *)(to + p * plane_bytes(j) + 2 * i) = line[p];
    }
}

static void copy_channels(const job *j, const TB_S *in, int64_t first, int64_t channels, TB_T *rows, char *copy) {
    const shape *const s = j->s;
    const int64_t phases = s->high.phases * s->wide.phases;
    for (int64_t c = 0; c < copied_channels(s, channels); ++c)
        for (int64_t t = 0; t < s->deep.taps; ++t) {
            const TB_S *const image = c < channels ? find_image(j, in, first + c, t) : 0;
            char *const to = copy + c * line_bytes(j) + 2 * t * phases * j->plane;
            for (int64_t phase = 0; phase < phases; ++phase)
                copy_planes(j, image, input_end(s, in), phase, rows, to + 2 * phase * j->plane);
        }
}

// HALF places of a run of a map's errors, from place `at` on: zeros where there are none.
static floats fetch_errors(const job *j, const TB_S *map, int64_t at) {
    const int64_t row = j->s->wide.out * j->s->images, places = j->columns * j->s->images;
    const int64_t pitch = j->s->flat ? j->pitch : run_blocks(j) * EDGE;
    if (!j->s->flat && places >= HALF) {
        // The row's last places, moved to the front.
        const words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const uint32_t count = at < places ? (uint32_t)least(HALF, places - at) : 0;
        const words found = (words)load(map + least(at + HALF, places) - HALF), last = TB_CHOSEN(found, found, lane - count);
        return (floats)(last & (words)(lane < count));
    }
    TB_T x[HALF];
    for (int64_t i = 0, run; i < HALF; i += run) {
        const int64_t r = (at + i) / pitch, place = (at + i) % pitch;
        run = least(HALF - i, (place < places ? places : pitch) - place);
        if (place < places && r < j->rows) copy_run(map + r * row + place, run, x + i);
        else clear(x + i, run);
    }
    return *(const floats *)x;
}

// Half a block of b: errors of up to HALF maps, `map` apart, at EDGE places from `at` on.
static void turn_half(const job *j, const TB_S *errors, int64_t map, int64_t maps, int64_t at, char *to) {
    const int64_t places = j->columns * j->s->images;
    for (int64_t end = at + EDGE; at < end; at += HALF) {
        vec x[HALF];
        if (maps >= HALF && at + HALF <= places) UNROLL for (int i = 0; i < HALF; ++i) x[i] = load(errors + i * map + at);
        else
            for (int i = 0; i < HALF; ++i) x[i] = i < maps ? (vec)fetch_errors(j, errors + i * map, at) : (vec){0};
        transpose(x);
        UNROLL for (int i = 0; i < HALF; i += 2, to += 64) {
            words line[PLANES];
            pair_planes((floats)x[i], (floats)x[i + 1], line);
            UNROLL for (int p = 0; p < PLANES; ++p) *(words *)(to + 2 * p * UNIT) = line[p];
        }
    }
}

static void turn_errors(const job *j, const TB_S *errors, int64_t maps, char *to) {
    const int64_t row = j->s->wide.out * j->s->images, map = j->s->deep.out * j->s->high.out * row;
    for (int64_t k = 0; k < maps; k += EDGE)
        for (int64_t run = 0; run < runs_of(j); ++run)
            for (int64_t at = 0; at < run_blocks(j) * EDGE; at += EDGE, to += BLOCK_BYTES)
                for (int64_t half = 0; half < EDGE; half += HALF) {
                    const TB_S *const from = errors + (k + half) * map + run * row;
                    turn_half(j, from, map, maps - k - half, at, to + half / HALF * UNIT);
                }
}

// Where in the copy `count` inputs from `first` on begin, in bytes: a channel's inputs are its cells (t, r, s).
static void find_inputs(const job *j, int64_t first, int64_t count, int64_t *from) {
    const int64_t cells = cells_of(j->s);
    for (int64_t i = first; i < first + count; ++i) *from++ = i / cells * line_bytes(j) + 2 * input_place(j, i % cells);
}

typedef uint32_t halves __attribute__((vector_size(64), aligned(2), may_alias));  // numbers of two bytes, from any on

// Blocks of a: `count` inputs at places of `blocks` blocks from `start` on. Rows past the last keep what they have.
static void gather_inputs(const job *j, const int64_t *from, int64_t count, int64_t start, int64_t blocks,
                          const char *copy, char *to) {
    const int64_t plane = plane_bytes(j), each = run_blocks(j);
    for (int64_t n = start; n < start + blocks; ++n, to += BLOCK_BYTES) {
        const char *const place = copy + n / each * 2 * j->pitch + n % each * 2 * EDGE;
        for (int64_t i = 0; i < count; ++i)
            UNROLL for (int p = 0; p < PLANES; ++p)
                *(words *)(to + 2 * p * UNIT + i * 2 * EDGE) = (words)*(const halves *)(place + from[i] + p * plane);
    }
}

// The products of up to EDGE inputs, gathered, and EDGE maps over places: to sums, or `more` on them.
static void unit_tile(const char *a, const char *b, int64_t blocks, char *sums, int64_t step, int more) {
    if (more) load_sums(sums, step);
    else clear_sums();
    add_blocks(0, blocks, a, 64, UNIT, BLOCK_BYTES, b);
    store_sums(sums, step);
}

// The products of a tile of inputs, which are `count` from `first` on, and all errors of a job.
static void unit_inputs(const job *j, const part *p, int64_t first, int64_t count, const char *copy,
                        const char *turned, char *gathered, int more) {
    const int64_t blocks = runs_of(j) * run_blocks(j), pitch = padded_maps(j->s);
    TB_T *const sums = p->sums + first * pitch;
    int64_t from[EDGE];
    find_inputs(j, first, count, from);
    for (int64_t n = 0; n < blocks; n += GATHERED) {
        const int64_t some = least(GATHERED, blocks - n);
        gather_inputs(j, from, count, n, some, copy, gathered);
        for (int64_t k = 0; k < p->maps; k += EDGE)
            unit_tile(gathered, turned + (k / EDGE * blocks + n) * BLOCK_BYTES, some, (char *)(sums + k),
                      pitch * (int64_t)sizeof(TB_T), more || n);
    }
}

// The inputs of a tile: where they begin for HALF channels, and how much further for as many more, or 0; how far it is
// from the sums of those to the sums of these.
typedef struct inputs {
    const char *from;
    int64_t half, sums;
} inputs;

// The products of a tile's inputs and EDGE maps over `runs` runs of a job: to sums, or `more` on them.
static void inputs_tile(const job *j, inputs a, const char *b, int64_t runs, char *sums, int64_t step, int more) {
    const int64_t line = line_bytes(j), plane = plane_bytes(j), blocks = run_blocks(j);
    if (!more) clear_sums();
    else if (a.half) load_halves(sums, step, a.sums);
    else load_rows(sums, step);
    for (; runs > 0; --runs, a.from += 2 * j->pitch)
        for (int64_t n = 0; n < blocks; ++n, b += BLOCK_BYTES)
            add_block(a.half != 0, a.from + n * 2 * EDGE, line, a.half, plane, b, 64, UNIT, 2 * UNIT);
    if (a.half) store_halves(sums, step, a.sums);
    else store_rows(sums, step);
}

// Where in the copy of a channel the inputs of a tap of the columns are, in bytes, from those of a row.
static int64_t tap_bytes(const job *j, int64_t tap) {
    const axis *const x = &j->s->wide;
    int64_t shift, phase;
    reach(x, tap, 0, &shift, &phase);
    return 2 * ((phase - x->first) * j->plane + (shift - x->low) * j->s->images);
}

// The products of a job's inputs and errors for one cell of the filters. Up to HALF channels that are left over go
// together with those of the next cell of its row.
static void unit_cell(const job *j, const part *p, int64_t cell, const char *copy, const char *turned, int more) {
    const shape *const s = j->s;
    const int64_t tap = cell % s->wide.taps, row = cell / s->wide.taps, r = row % s->high.taps, t = row / s->high.taps;
    int64_t first, last;
    const int64_t at = find_rows(j, t, r, &first, &last), pitch = padded_maps(s), step = cells_of(s) * pitch;
    if (s->flat) last = last > first, first = 0;
    const char *const from = copy + 2 * (at + first * j->pitch) + tap_bytes(j, tap);
    for (int64_t c = 0; c < p->channels; c += EDGE) {
        inputs a = {from + c * line_bytes(j), HALF * line_bytes(j), HALF * step * (int64_t)sizeof(TB_T)};
        if (p->channels - c <= HALF) {
            if (tap % 2) continue;
            a.half = tap + 1 < s->wide.taps ? tap_bytes(j, tap + 1) - tap_bytes(j, tap) : 0;
            a.sums = pitch * (int64_t)sizeof(TB_T);
        }
        for (int64_t k = 0; k < p->maps; k += EDGE) {
            const char *const b = turned + (k / EDGE * runs_of(j) + first) * run_blocks(j) * BLOCK_BYTES;
            TB_T *const sums = p->sums + c * step + cell * pitch + k;
            inputs_tile(j, a, b, last - first, (char *)sums, step * (int64_t)sizeof(TB_T), more);
        }
    }
}

// What update_job does.
static void unit_job(const job *j, const part *p, const TB_S *in, const TB_S *errors, TB_T *memory, int more) {
    const int64_t inputs = p->channels * cells_of(j->s);
    char *const copy = (char *)memory, *const rows = copy + copy_bytes(j);
    char *const gathered = rows + rows_bytes(j), *const turned = gathered + GATHERED * BLOCK_BYTES;
    copy_channels(j, in, p->first, p->channels, (TB_T *)rows, copy);
    turn_errors(j, errors, p->maps, turned);
    if (few_channels(j->s))
        for (int64_t first = 0; first < inputs; first += EDGE)
            unit_inputs(j, p, first, least(EDGE, inputs - first), copy, turned, gathered, more);
    else
        for (int64_t cell = 0; cell < cells_of(j->s); ++cell) unit_cell(j, p, cell, copy, turned, more);
}
