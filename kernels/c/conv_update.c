// SPDX-License-Identifier: Apache-2.0
// conv_update.c — the gradient of a convolution by its filters, for any geometry
//
// Computes  dF[c, tap, k] = sum over o, n of I[c, i(o, tap), n] E[k, o, n], with i of conv_copies.h
// Layout    images (C, D, H, W, N), filters (C, T, R, S, K)
// Tiles     Errors are transposed to [place][map], and 8 inputs (4 where registers are few), each from its own address,
//           meet NV vectors of maps.
//           With TB_DOTS lanes are places, and errors are read where they lie: conv_update_dots.h.
// Order     Sums run over places, in segments that depend on shapes alone.
// Bound by  multiply-adds
//           With TB_PLANES on the matrix unit: conv_update_amx.h.
//           A task whose sums in one of these ways are not all finite begins anew with errors that are transposed.
// Checked   tests/primitives/test_conv_kernels.py; timed by benchmarks/conv.py
enum { PLACES_A_LINE = 32 };  // of numbers of two bytes
#include "conv_copies.h"

enum {
    UPDATE_ROWS = MANY_REGISTERS ? 8 : 4,
#if defined(TB_PLANES)
    SUMMED_MAPS = WIDTH,
#else
    SUMMED_MAPS = LANES,
#endif
};

// Errors of up to WIDTH maps, `map` apart, at `places` neighbouring places, as [place][WIDTH]; in whole squares.
static void turn_places(const TB_S *from, int64_t map, int64_t maps, int64_t places, TB_T *to) {
    for (int64_t p = 0; p < places; p += LANES)
        for (int64_t k = 0; k < maps; k += LANES) {
            vec r[LANES];
            for (int64_t i = 0; i < LANES; ++i) {
                const TB_S *const at = from + (k + i) * map + p;
                r[i] = (vec){0};
                if (k + i >= maps) continue;
                if (places - p >= LANES) r[i] = load(at);
                else
                    for (int64_t l = 0; l < places - p; ++l) r[i][l] = TB_WIDE(at[l]);
            }
            transpose(r);
            for (int l = 0; l < LANES; ++l) *(vec *)(to + (p + l) * WIDTH + k) = r[l];
        }
}

// M inputs, each from its own address, times V vectors of errors, over rows of `length` places; `gap` elements from the
// errors of a row to those of the next. `more`: on sums.
#define TB_UPDATE(M, V) \
    static __attribute__((noinline)) void update_##M##x##V(const TB_T *const *in, int64_t rows, int64_t pitch, \
            int64_t length, const TB_T *errors, int64_t gap, TB_T *const *sums, int more) { \
        vec sum[M][V]; \
        const TB_T *x[M]; \
        UNROLL for (int i = 0; i < M; ++i) { \
            x[i] = in[i]; \
            UNROLL for (int j = 0; j < V; ++j) sum[i][j] = (vec){0}; \
            UNROLL for (int j = 0; j < V * LANES; j += LINE) __builtin_prefetch(sums[i] + j, 1); \
        } \
        for (int64_t row = 0; row < rows; ++row, errors += gap) { \
            for (int64_t l = 0; l < length; ++l, errors += WIDTH) { \
                vec y[V]; \
                UNROLL for (int j = 0; j < V; ++j) y[j] = *(const vec *)(errors + j * LANES); \
                UNROLL for (int i = 0; i < M; ++i) ADD_ROW(sum[i], x[i] + l, y, V); \
            } \
            UNROLL for (int i = 0; i < M; ++i) x[i] += pitch; \
        } \
        UNROLL for (int i = 0; i < M; ++i) \
            UNROLL for (int j = 0; j < V; ++j) { \
                vec *const to = (vec *)(sums[i] + j * LANES); \
                if (more) sum[i][j] += *to; \
                *to = sum[i][j]; \
            } \
    }
#define TB_UPDATES(M) TB_UPDATE(M, 1) TB_UPDATE(M, 2) TB_UPDATE(M, 3)
TB_UPDATES(1)
TB_UPDATES(4)
#if MANY_REGISTERS
TB_UPDATES(8)
#define UPDATE_EIGHT {update_8x1, update_8x2, update_8x3}
#else
#define UPDATE_EIGHT {0}
#endif

typedef void (*update)(const TB_T *const *, int64_t, int64_t, int64_t, const TB_T *, int64_t, TB_T *const *, int);

// What a task adds up: channels and maps of a group, from the first on, over a segment of the blocks of places.
typedef struct part {
    int64_t first, channels, map, maps, item, end;
    TB_T *sums;  // of the first channel and map: sums[channel][t][r][s][padded maps]
    const TB_S *last_error;  // where all errors end
} part;

// Maps of the sums: in whole vectors or, on the matrix unit, tiles.
INLINE int64_t padded_maps(const shape *s) { return ceil_div(s->maps_out, SUMMED_MAPS) * SUMMED_MAPS; }

// Whether a job's errors meet inputs at the filters' depth t.
static int meets_depth(const job *j, int64_t t) {
    const axis *const x = &j->s->deep;
    int64_t shift, from;
    reach(x, t, 0, &shift, &from);
    const int64_t d = (j->depth + shift) * x->a + from;
    return d >= 0 && d < x->in;
}

// The rows of a job that meet inputs at (t, r), and where in the copy the input of its first row would be.
static int64_t find_rows(const job *j, int64_t t, int64_t r, int64_t *first, int64_t *last) {
    const shape *const s = j->s;
    const axis *const hx = &s->high;
    int64_t shift, from;
    reach(hx, r, 0, &shift, &from);
    *first = 0, *last = meets_depth(j, t) ? j->rows : 0;
    while (*first < *last && (j->row + *first + shift) * hx->a + from < 0) ++*first;
    while (*last > *first && (j->row + *last - 1 + shift) * hx->a + from >= hx->in) --*last;
    return (t * hx->phases + from - hx->first) * s->wide.phases * j->plane + (shift - hx->low) * j->pitch;
}

// The columns [first, last) of a job that meet inputs at a tap, and where in the copy of a row the input of its first
// column would be.
typedef struct column_tap {
    int64_t first, last, place;
} column_tap;

static column_tap find_columns(const job *j, int64_t tap) {
    const axis *const x = &j->s->wide;
    int64_t shift, from;
    reach(x, tap, 0, &shift, &from);
    const int64_t begin = -shift - j->column, end = floor_div(x->in - 1 - from, x->a) + 1 - shift - j->column;
    const int64_t first = begin > 0 ? least(begin, j->columns) : 0, last = end < first ? first : least(end, j->columns);
    return (column_tap){first, last, (from - x->first) * j->plane + (shift - x->low) * j->s->images};
}

// What the tiles of a row of the filters have in common: rows of a job that meet inputs, the errors of the first, and
// vectors of maps.
typedef struct strip {
    int64_t rows, vectors;
    const TB_T *errors;
} strip;

// The products of `count` inputs and the errors of columns [first, last).
static void update_inputs(const job *j, const strip *x, const TB_T *const *in, int64_t count, int64_t first,
                          int64_t last, TB_T *const *sums, int more) {
    static const update updates[3][3] = {{update_1x1, update_1x2, update_1x3}, {update_4x1, update_4x2, update_4x3},
                                         UPDATE_EIGHT};
    const int64_t n = j->s->images, length = (last - first) * n, gap = (j->columns * n - length) * WIDTH;
    for (int64_t i = 0, taken; i < count; i += taken) {
        taken = count - i == UPDATE_ROWS ? UPDATE_ROWS : count - i >= 4 ? 4 : 1;
        updates[taken / 4][x->vectors - 1](in + i, x->rows, j->pitch, length, x->errors + first * n * WIDTH, gap,
                                           sums + i, more);
    }
}

// The products of a job's inputs and WIDTH maps of errors for the filters' row (t, r): sums[channel][t][r][s][maps].
// Tiles have inputs of one of the row's taps, and no columns that it does not meet; of few channels those of all taps.
static void update_row(const job *j, int64_t t, int64_t r, const column_tap *tap, int64_t channels, const TB_T *copy,
                       const TB_T *turned, int64_t vectors, int64_t pitch, TB_T *sums, int more) {
    const shape *const s = j->s;
    const int64_t taps = s->wide.taps, few = channels < UPDATE_ROWS, n = s->images;
    int64_t top, bottom;
    const TB_T *rows = copy + find_rows(j, t, r, &top, &bottom);
    const strip x = {bottom - top, vectors, turned + top * j->columns * n * WIDTH};
    const TB_T *in[UPDATE_ROWS];
    TB_T *to[UPDATE_ROWS];
    rows += top * j->pitch;
    sums += (t * s->high.taps + r) * taps * pitch;
    const int64_t inputs = few ? channels * taps : channels, next = s->deep.taps * s->high.taps * taps * pitch;
    for (int64_t only = 0; only < (few ? 1 : taps); ++only)
        for (int64_t at = 0; at < inputs; at += UPDATE_ROWS) {
            const int64_t count = least(UPDATE_ROWS, inputs - at), begin = few ? 0 : tap[only].first;
            for (int64_t i = 0; i < count; ++i) {
                const int64_t c = few ? (at + i) / taps : at + i, one = few ? (at + i) % taps : only;
                in[i] = rows + c * j->channel + tap[one].place + begin * n;
                to[i] = sums + c * next + one * pitch;
            }
            update_inputs(j, &x, in, count, begin, few ? j->columns : tap[only].last, to, more);
        }
}

// Elements of the turned errors of a job.
INLINE int64_t turned_elements(const shape *s) { return apart((s->rows * s->columns * s->images + LANES) * WIDTH); }

// The products of a job's inputs and errors, which begin at its first place of the part's first map.
static void update_job(const job *j, const part *p, const TB_S *in, const TB_S *errors, TB_T *copy, int more) {
    const shape *const s = j->s;
    const int64_t length = j->columns * s->images, row = s->wide.out * s->images;
    const int64_t map = s->deep.out * s->high.out * row, pitch = padded_maps(s);
    TB_T *const turned = copy + apart(copied_elements(s, j));
    // Maps in as few passes as there must be, with about as many vectors each.
    const int64_t vectors = ceil_div(p->maps, LANES), each = ceil_div(vectors, ceil_div(vectors, NV)) * LANES;
    column_tap *const tap = (column_tap *)(turned + turned_elements(s));
    for (int64_t i = 0; i < s->wide.taps; ++i) tap[i] = find_columns(j, i);
    copy_input(j, in, p->first, p->channels, copy);
    for (int64_t k = 0; k < p->maps; k += each) {
        const int64_t maps = least(each, p->maps - k);
        const TB_S *const from = errors + k * map;
        for (int64_t r = 0; r < j->rows; ++r)
            turn_places(from + r * row, map, maps, length, turned + r * length * WIDTH);
        for (int64_t t = 0; t < s->deep.taps; ++t)
            for (int64_t r = 0; r < s->high.taps; ++r)
                update_row(j, t, r, tap, p->channels, copy, turned, ceil_div(maps, LANES), pitch, p->sums + k, more);
    }
}

typedef void (*add_job)(const job *, const part *, const TB_S *, const TB_S *, TB_T *, int);

// Bytes of the copy, of the turned errors, and of what is found of the taps.
static int64_t job_bytes(const job *j) {
    const shape *const s = j->s;
    const int64_t taps = s->wide.taps * (int64_t)sizeof(column_tap);
    return (apart(copied_elements(s, j)) + turned_elements(s)) * (int64_t)sizeof(TB_T) + taps;
}

// Where in the copy of a channel the inputs of a cell (t, r, s) begin.
static int64_t input_place(const job *j, int64_t cell) {
    const axis *const hx = &j->s->high, *const wx = &j->s->wide;
    const int64_t r = cell / wx->taps % hx->taps, t = cell / wx->taps / hx->taps;
    int64_t shift, phase, column_shift, column_phase;
    reach(hx, r, 0, &shift, &phase);
    reach(wx, cell % wx->taps, 0, &column_shift, &column_phase);
    const int64_t plane = ((t * hx->phases + phase - hx->first) * wx->phases + column_phase - wx->first) * j->plane;
    return plane + (shift - hx->low) * j->pitch + (column_shift - wx->low) * j->s->images;
}

#if defined(TB_PLANES)
#include "conv_update_amx.h"
#elif defined(TB_DOTS)
#include "conv_update_dots.h"
#else
enum { MENDED = 0 };  // whether sums that are not finite are made anew, by update_job
INLINE int64_t summed_inputs(const shape *s) { return s->maps_in * cells_of(s); }
INLINE int64_t slot_bytes(const job *j) { return job_bytes(j); }
#endif

// Elements of the sums: of a group, and of a segment.
static int64_t group_sums(const shape *s) { return summed_inputs(s) * padded_maps(s); }
static int64_t segment_sums(const shape *s) { return s->groups * group_sums(s); }

// out: bytes of the sums, and of a slot.
void tb_update_needs(const int64_t *size, int64_t *out) {
    const shape s = read_shape(size);
    job j = new_job(&s);
    j.rows = s.rows, j.columns = s.columns;
    out[0] = s.splits * segment_sums(&s) * (int64_t)sizeof(TB_T);
    out[1] = slot_bytes(&j) > job_bytes(&j) ? slot_bytes(&j) : job_bytes(&j);
}

// All jobs of a part, one after the other.
static void run_part(job *j, const part *p, void *const *ptr, const int64_t *size, TB_T *memory, add_job add) {
    const shape *const s = j->s;
    const int64_t row_blocks = count_blocks(&s->high, s->rows), column_blocks = count_blocks(&s->wide, s->columns);
    const int64_t row = s->wide.out * s->images, map = j->group * s->maps_out + p->map;
    for (int64_t item = p->item; item < p->end; ++item) {
        find_block(&s->wide, s->columns, item % column_blocks, &j->column_phase, &j->column, &j->columns);
        find_block(&s->high, s->rows, item / column_blocks % row_blocks, &j->row_phase, &j->row, &j->rows);
        j->depth = item / column_blocks / row_blocks;
        const int64_t line = (map * s->deep.out + j->depth) * s->high.out + j->row;
        const TB_S *const errors = (const TB_S *)TB_PLACE(FILTERS) + line * row + j->column * s->images;
        add(j, p, TB_PLACE(IN), errors, memory, item > p->item);
    }
}

// To sums[segment][group][channel][t][r][s][padded maps]. A task: a part of the maps and a block of channels of a group,
// for a segment of the blocks of places.
void tb_conv_update(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                    int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    job j = new_job(&s);
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots);
    TB_T *const memory = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]);
    const int64_t items = s.deep.out * count_blocks(&s.high, s.rows) * count_blocks(&s.wide, s.columns);
    const int64_t blocks = ceil_div(s.maps_in, s.channels), parts = ceil_div(s.maps_out, s.part_maps);
    const int64_t errors = s.groups * s.maps_out * s.deep.out * s.high.out * s.wide.out * s.images;
    const TB_S *const last_error = (const TB_S *)TB_PLACE(FILTERS) + errors;
    begin_tiles();
    for (int64_t task = begin; task < end; ++task) {
        const int64_t segment = task / parts / blocks / s.groups;
        part p = {.first = task / parts % blocks * s.channels, .map = task % parts * s.part_maps,
                  .last_error = last_error};
        j.group = task / parts / blocks % s.groups;
        p.channels = least(s.channels, s.maps_in - p.first);
        p.maps = least(s.part_maps, s.maps_out - p.map);
        p.item = items * segment / s.splits, p.end = items * (segment + 1) / s.splits;
        p.sums = (TB_T *)TB_PLACE(PACKED) + segment * segment_sums(&s) + p.map +
                 j.group * group_sums(&s) + p.first * cells_of(&s) * padded_maps(&s);
#if defined(TB_DOTS)
        run_part(&j, &p, ptr, size, memory, dots_job);
        put_dots(&j, &p, memory);
#elif defined(TB_PLANES)
        clear_places(&j, memory);
        run_part(&j, &p, ptr, size, memory, unit_job);
#endif
        if (!MENDED || !all_finite(p.sums, p.channels * cells_of(&s), padded_maps(&s), p.maps))
            run_part(&j, &p, ptr, size, memory, update_job);
    }
    end_tiles();
    give_slot(TB_PLACE(OWN), slot);
}

// A task: the filters of a channel of a group.
void tb_conv_join(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                  int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t cells = cells_of(&s);
    for (int64_t task = begin; task < end; ++task)
        for (int64_t cell = 0; cell < cells; ++cell) {
            const int64_t group = task / s.maps_in, channel = task % s.maps_in;
            const int64_t at = group * group_sums(&s) + (channel * cells + cell) * padded_maps(&s);
            const TB_T *const from = (const TB_T *)TB_PLACE(PACKED) + at;
            TB_R *const to = (TB_R *)TB_PLACE(RESULT) + ((channel * cells + cell) * s.groups + group) * s.maps_out;
            for (int64_t k = 0; k < s.maps_out; ++k) {
                TB_T sum = from[k];
                for (int64_t n = 1; n < s.splits; ++n) sum += from[n * segment_sums(&s) + k];
                to[k] = TB_NARROW(sum);
            }
        }
}
