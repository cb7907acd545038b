// SPDX-License-Identifier: Apache-2.0
// conv.c — convolution, its gradient by the images and its gradient by the filters, for any geometry
//
// Computes  out[k, o, n] = sum over c, taps of F[tap, c, k] in[c, i(o, tap), n], where along each axis
//               forward    i = o str + tap dil - pad
//               backward   i = (o + pad - tap dil) / str, where that is whole
//           and dF[c, tap, k] = sum over o, n of I[c, i(o, tap), n] E[k, o, n]
// Layout    images (C, D, H, W, N), filters (C, T, R, S, K)
// Copies    Places that are equal modulo the stride are a phase. A task copies the part of the input that its outputs
//           need, phase by phase and with zeros around it: then outputs of one phase, and for each tap their inputs,
//           lie side by side along (column, image), whatever stride, padding and dilation are.
//
//               in, a row of a map:    0 1 2 3 4 5 6     (stride 2, pad 1, three taps)
//               copy, phase 0:         0 2 4 6           tap 1 reads from its start
//               copy, phase 1:       . 1 3 5 .           tap 0 reads from its start, tap 2 from the 1
//
// Tiles     MR maps x NV vectors of places, over all channels and taps. For dF, errors are transposed to [place][map],
//           and 8 inputs, each from its own address, meet NV vectors of maps; few maps are multiplied place by place.
// Order     Sums run over channels, then taps (dF: over places), in blocks and segments that depend on shapes alone.
// Bound by  multiply-adds; with few maps, by the copies
// Checked   tests/primitives/test_conv_kernels.py; timed by benchmarks/conv.py
#include "conv.h"

enum { UPDATE_ROWS = 8, COPIED_CHANNELS = 16 };
enum { NARROW = 3 };  // maps of a group up to which the filters' gradient runs over lanes of places

// What the host passes in `size`, and then for each of three axes the members of `axis` up to `pad`.
enum {
    IMAGES = SIZES, MAPS_IN, MAPS_OUT,  // maps of a group
    GROUPS, BACKWARD,
    ROWS, COLUMNS,   // of outputs (of one phase) that a task takes
    CHANNELS,        // that are in work at a time
    FLAT,            // whether a tile goes on from a row to the next
    SPLITS,          // parts of the maps, or segments of the places
    PART_MAPS,       // maps of a part, a multiple of MR
    SLOTS, SLOT_BYTES,  // of scratch, as tb_conv_needs says
    AXES,
};
enum { AXIS_SIZES = 6 };

typedef struct axis {
    int64_t in, out, taps, stride, dilation, pad, backward;
    int64_t a, b;       // the strides of the input and of the output: one of them is 1
    int64_t low, high;  // the least and the greatest shift of a tap
} axis;

typedef struct shape {
    int64_t images, maps_in, maps_out, groups, rows, columns, channels, flat, splits, part_maps;
    axis deep, high, wide;
} shape;

static int64_t floor_div(int64_t x, int64_t y) { return x >= 0 ? x / y : -((-x + y - 1) / y); }

// Whether a tap serves outputs of a phase: output u b + phase then reads input (u + shift) a + from.
static int reach(const axis *x, int64_t tap, int64_t phase, int64_t *shift, int64_t *from) {
    const int64_t away = tap * x->dilation - x->pad, distance = x->backward ? phase - away : away;
    *shift = floor_div(distance, x->stride);
    *from = distance - *shift * x->stride;
    return !x->backward || *from == 0;
}

static axis read_axis(const int64_t *size, int64_t backward) {
    axis x = {size[0], size[1], size[2], size[3], size[4], size[5], backward, 1, 1, INT64_MAX, INT64_MIN};
    *(backward ? &x.b : &x.a) = x.stride;
    for (int64_t phase = 0; phase < x.b; ++phase)
        for (int64_t tap = 0; tap < x.taps; ++tap) {
            int64_t shift, from;
            if (!reach(&x, tap, phase, &shift, &from)) continue;
            if (shift < x.low) x.low = shift;
            if (shift > x.high) x.high = shift;
        }
    return x;
}

static shape read_shape(const int64_t *size) {
    return (shape){
        size[IMAGES], size[MAPS_IN], size[MAPS_OUT], size[GROUPS], size[ROWS], size[COLUMNS], size[CHANNELS],
        size[FLAT], size[SPLITS], size[PART_MAPS],
        read_axis(size + AXES, size[BACKWARD]),
        read_axis(size + AXES + AXIS_SIZES, size[BACKWARD]),
        read_axis(size + AXES + 2 * AXIS_SIZES, size[BACKWARD]),
    };
}

static int64_t phase_length(const axis *x, int64_t phase) { return ceil_div(x->out - phase, x->b); }

// How outputs of an axis are cut: each phase into blocks of `each`.
static int64_t count_blocks(const axis *x, int64_t each) {
    int64_t count = 0;
    for (int64_t phase = 0; phase < x->b; ++phase) count += ceil_div(phase_length(x, phase), each);
    return count;
}

static void find_block(const axis *x, int64_t each, int64_t n, int64_t *phase, int64_t *first, int64_t *length) {
    for (*phase = 0;; ++*phase) {
        const int64_t total = phase_length(x, *phase), blocks = ceil_div(total, each);
        if (n < blocks) {
            *first = n * each;
            *length = least(each, total - *first);
            return;
        }
        n -= blocks;
    }
}

// Filters: copied to [group][phase of the columns][tile of maps][t][r][channel][s of the phase][MR]

static int64_t count_column_taps(const shape *s, int64_t phase) {
    int64_t count = 0, shift, from;
    for (int64_t tap = 0; tap < s->wide.taps; ++tap) count += reach(&s->wide, tap, phase, &shift, &from);
    return count;
}

static int64_t filters_at(const shape *s, int64_t group, int64_t phase) {
    int64_t taps = 0;
    for (int64_t before = 0; before < phase; ++before) taps += count_column_taps(s, before);
    const int64_t a_tap = s->deep.taps * s->high.taps * s->maps_in * ceil_div(s->maps_out, MR) * MR;
    return a_tap * (group * s->wide.taps + taps);
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

// A task: COPIED_CHANNELS channels of a group and a phase.
void tb_conv_filters(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                     int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t blocks = ceil_div(s.maps_in, COPIED_CHANNELS), cells = s.deep.taps * s.high.taps;
    const int64_t backward = size[BACKWARD], row = (backward ? s.maps_in : s.maps_out) * s.groups;
    const int64_t channel = cells * s.wide.taps * row;
    if (begin == 0) free_slots(TB_PLACE(OWN), size[SLOTS]);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % blocks * COPIED_CHANNELS, last = least(first + COPIED_CHANNELS, s.maps_in);
        const int64_t phase = task / blocks % s.wide.b, group = task / blocks / s.wide.b;
        const int64_t taps = count_column_taps(&s, phase);
        const TB_S *const from = (const TB_S *)TB_PLACE(FILTERS) + group * (backward ? s.maps_in : s.maps_out);
        TB_T *const to = (TB_T *)TB_PLACE(PACKED) + filters_at(&s, group, phase);
        for (int64_t map = 0; map < s.maps_out; map += MR)
            for (int64_t cell = 0; cell < cells; ++cell) {
                TB_T *const tile = to + ((map * cells + cell * MR) * s.maps_in + first * MR) * taps;
                const TB_S *const cell_from = from + cell * s.wide.taps * row;
                copy_filters(&s, cell_from, map, phase, first, last, channel, row, backward, tile);
            }
    }
}

// What one task works on, and its copy of the input: [channel][t][row phase][column phase][row][column][image]
typedef struct job {
    const shape *s;
    int64_t group, depth, row_phase, column_phase, row, column;  // row and column: the first, of their phases
    int64_t rows, columns;                                       // of outputs
    int64_t tall, broad;                                         // rows and columns of a phase in the copy
    int64_t pitch, plane, channel;                               // from a row, a phase, a channel to the next
    int64_t map, maps;                                           // of outputs
} job;

static job new_job(const shape *s) {
    job j = {.s = s};
    j.tall = s->rows + s->high.high - s->high.low;
    j.broad = s->columns + s->wide.high - s->wide.low;
    j.pitch = j.broad * s->images;
    j.plane = j.tall * j.pitch + LANES;
    j.channel = apart(s->deep.taps * s->high.a * s->wide.a * j.plane);
    return j;
}

// Short runs, for which a call of memset or memcpy would take longer than the run.
INLINE void clear(TB_T *to, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) *(vec *)(to + i) = (vec){0};
    for (; i < count; ++i) to[i] = 0;
}

INLINE void copy_run(const TB_S *from, int64_t count, TB_T *to) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) *(vec *)(to + i) = load(from + i);
    for (; i < count; ++i) to[i] = TB_WIDE(from[i]);
}

// One row of a phase of the columns: what exists of `in`, zeros around it.
static void copy_row(const job *j, const TB_S *in, int64_t phase, TB_T *to) {
    const axis *const x = &j->s->wide;
    const int64_t n = j->s->images, start = j->column + x->low;
    const int64_t first = least(start < 0 ? -start : 0, j->broad);
    const int64_t after = floor_div(x->in - 1 - phase, x->a) + 1 - start;
    const int64_t last = after < first ? first : least(after, j->broad);
    clear(to, first * n);
    clear(to + last * n, (j->broad - last) * n);
    const TB_S *from = in + ((start + first) * x->a + phase) * n;
    to += first * n;
    if (x->a == 1) copy_run(from, (last - first) * n, to);
    else if (n == 1)
        for (int64_t i = 0; i < last - first; ++i) to[i] = TB_WIDE(from[i * x->a]);
    else
        for (int64_t u = first; u < last; ++u, from += x->a * n, to += n)
            copy_run(from, n, to);
}

static void copy_input(const job *j, const TB_S *in, int64_t first, int64_t channels, TB_T *copy) {
    const shape *const s = j->s;
    const int64_t row = s->wide.in * s->images;
    for (int64_t c = 0; c < channels; ++c) {
        const int64_t map = j->group * s->maps_in + first + c;
        for (int64_t t = 0; t < s->deep.taps; ++t) {
            int64_t shift, from;
            const int serves = reach(&s->deep, t, j->depth % s->deep.b, &shift, &from);
            const int64_t d = (j->depth / s->deep.b + shift) * s->deep.a + from;
            if (!serves || d < 0 || d >= s->deep.in) continue;
            const TB_S *const image = in + (map * s->deep.in + d) * s->high.in * row;
            for (int64_t phases = 0; phases < s->high.a * s->wide.a; ++phases) {
                const int64_t row_phase = phases / s->wide.a, column_phase = phases % s->wide.a;
                TB_T *to = copy + c * j->channel + (t * s->high.a * s->wide.a + phases) * j->plane;
                for (int64_t r = 0; r < j->tall; ++r, to += j->pitch) {
                    const int64_t h = (j->row + r + s->high.low) * s->high.a + row_phase;
                    if (h >= 0 && h < s->high.in) copy_row(j, image + h * row, column_phase, to);
                    else __builtin_memset(to, 0, sizeof(TB_T) * (unsigned long)j->pitch);
                }
            }
        }
    }
}

// Forward and backward ------------------------------------------------------------------------------------------------

// The filters and the inputs of one (t, r): [channel][s] of both.
typedef struct strip {
    const TB_T *filter, *in;
} strip;

// M maps x V vectors of places over strips of `steps`, whose inputs lie `offset` bytes from a strip's. `more`: on sums.
#define TB_TILE(M, V) \
    static __attribute__((noinline)) void tile_##M##x##V(const strip *strips, int64_t count, int64_t steps, \
            const int64_t *offset, TB_T *sums, int64_t pitch, int more) { \
        vec sum[M][V]; \
        for (int i = 0; i < M; ++i) \
            for (int j = 0; j < V; ++j) sum[i][j] = (vec){0}; \
        for (const strip *const last = strips + count; strips < last; ++strips) { \
            const TB_T *f = strips->filter; \
            const char *const in = (const char *)strips->in; \
            _Pragma("GCC unroll 2") \
            for (const int64_t *o = offset, *const end = offset + steps; o < end; ++o, f += MR) { \
                const TB_T *const at = (const TB_T *)(in + *o); \
                vec y[V]; \
                for (int j = 0; j < V; ++j) y[j] = *(const vec *)(at + j * LANES); \
                for (int i = 0; i < M; ++i) { \
                    const vec x = spread(f[i]); \
                    for (int j = 0; j < V; ++j) sum[i][j] += x * y[j]; \
                } \
            } \
        } \
        for (int i = 0; i < M; ++i) \
            for (int j = 0; j < V; ++j) { \
                vec *const to = (vec *)(sums + i * pitch + j * LANES); \
                if (more) sum[i][j] += *to; \
                *to = sum[i][j]; \
            } \
    }
#define TB_TILES(V) TB_TILE(1, V) TB_TILE(4, V) TB_TILE(8, V)
TB_TILES(1)
TB_TILES(2)
TB_TILES(3)

typedef void (*tile)(const strip *, int64_t, int64_t, const int64_t *, TB_T *, int64_t, int);

static tile tile_for(int64_t maps, int64_t vectors) {
    static const tile tiles[3][3] = {{tile_1x1, tile_1x2, tile_1x3}, {tile_4x1, tile_4x2, tile_4x3},
                                     {tile_8x1, tile_8x2, tile_8x3}};
    return tiles[maps > 4 ? 2 : maps > 1 ? 1 : 0][vectors - 1];
}

// The strips of a row of a job (if flat: of all its rows) whose input exists.
static int64_t find_strips(const job *j, const TB_T *filters, const TB_T *copy, int64_t row, int64_t channel,
                           int64_t taps, strip *strips) {
    const shape *const s = j->s;
    int64_t count = 0;
    for (int64_t t = 0; t < s->deep.taps; ++t)
        for (int64_t r = 0; r < s->high.taps; ++r) {
            int64_t deep_shift, deep_from, shift, from;
            if (!reach(&s->deep, t, j->depth % s->deep.b, &deep_shift, &deep_from)) continue;
            if (!reach(&s->high, r, j->row_phase, &shift, &from)) continue;
            const int64_t d = (j->depth / s->deep.b + deep_shift) * s->deep.a + deep_from;
            const int64_t h = (j->row + row + shift) * s->high.a + from;
            if (d < 0 || d >= s->deep.in || (!s->flat && (h < 0 || h >= s->high.in))) continue;
            strips[count].filter = filters + ((t * s->high.taps + r) * s->maps_in + channel) * taps * MR;
            strips[count++].in = copy + (t * s->high.a + from) * s->wide.a * j->plane +
                                 (row + shift - s->high.low) * j->pitch;
        }
    return count;
}

static int64_t find_offsets(const job *j, int64_t channels, int64_t *offset) {
    const axis *const x = &j->s->wide;
    int64_t count = 0, shift, from;
    for (int64_t c = 0; c < channels; ++c)
        for (int64_t tap = 0; tap < x->taps; ++tap)
            if (reach(x, tap, j->column_phase, &shift, &from)) {
                const int64_t place = c * j->channel + from * j->plane + (shift - x->low) * j->s->images;
                offset[count++] = place * (int64_t)sizeof(TB_T);
            }
    return count;
}

// Writes sums of `maps` maps: places [lane, lane + count) of a row of the job.
static void put(const job *j, TB_R *out, int64_t map, int64_t maps, int64_t row, int64_t lane, int64_t count,
                const TB_T *sums, int64_t pitch) {
    const shape *const s = j->s;
    const int64_t n = s->images, b = s->wide.b, h = (j->row + row) * s->high.b + j->row_phase;
    for (int64_t k = 0; k < maps; ++k, sums += pitch) {
        const int64_t deep = (j->group * s->maps_out + map + k) * s->deep.out + j->depth;
        TB_R *const line = out + (deep * s->high.out + h) * s->wide.out * n;
        if (b == 1) {
            TB_R *const to = line + j->column * n + lane;
            for (int64_t i = 0; i < count; ++i) to[i] = TB_NARROW(sums[i]);
        } else
            for (int64_t i = 0; i < count; ++i) {
                const int64_t u = (lane + i) / n;
                line[((j->column + u) * b + j->column_phase) * n + lane + i - u * n] = TB_NARROW(sums[i]);
            }
    }
}

// The same of a tile that may go over several rows, between which there are places that are no outputs.
static void put_flat(const job *j, TB_R *out, int64_t map, int64_t maps, int64_t lane, int64_t count,
                     const TB_T *sums, int64_t pitch) {
    const int64_t places = j->columns * j->s->images;
    for (int64_t at = lane; at < lane + count;) {
        const int64_t row = at / j->pitch, place = at - row * j->pitch;
        const int64_t run = least(lane + count - at, (place < places ? places : j->pitch) - place);
        if (place < places) put(j, out, map, maps, row, place, run, sums + at - lane, pitch);
        at += run;
    }
}

// One job. `partial` holds sums between blocks of channels: [map][row][place].
static void run_job(const job *j, const TB_S *in, const TB_T *filters, TB_R *out, TB_T *copy, TB_T *partial,
                    int64_t *offset) {
    const shape *const s = j->s;
    const int64_t taps = count_column_taps(s, j->column_phase), cells = s->deep.taps * s->high.taps;
    const int64_t segments = s->flat ? 1 : j->rows;
    const int64_t places = (s->flat ? (j->rows - 1) * j->pitch : 0) + j->columns * s->images;
    const int64_t padded = ceil_div(places, LANES) * LANES, several = s->channels < s->maps_in;
    const int64_t pitch = several ? segments * padded : WIDTH;
    strip strips[cells];
    TB_T local[MR * WIDTH];
    for (int64_t first = 0; first < s->maps_in; first += s->channels) {
        const int64_t channels = least(s->channels, s->maps_in - first), last = first + channels == s->maps_in;
        copy_input(j, in, first, channels, copy);
        const int64_t steps = find_offsets(j, channels, offset);
        for (int64_t map = j->map; map < j->map + j->maps; map += MR)
            for (int64_t segment = 0; segment < segments; ++segment) {
                const int64_t maps = least(MR, s->maps_out - map);
                const TB_T *const filter = filters + map * cells * s->maps_in * taps;
                const int64_t count = find_strips(j, filter, copy, segment, first, taps, strips);
                for (int64_t lane = 0; lane < places; lane += WIDTH) {
                    const int64_t width = least(WIDTH, places - lane);
                    TB_T *const sums = several ? partial + (map - j->map) * pitch + segment * padded + lane : local;
                    tile_for(maps, ceil_div(width, LANES))(strips, count, steps, offset, sums, pitch, first > 0);
                    for (int64_t n = 0; n < count; ++n) strips[n].in += WIDTH;
                    if (last && s->flat) put_flat(j, out, map, maps, lane, width, sums, pitch);
                    else if (last) put(j, out, map, maps, segment, lane, width, sums, pitch);
                }
            }
    }
}

// Elements of a slot: the copy, the sums; then bytes with the offsets.
static int64_t copied_elements(const shape *s, const job *j) { return s->channels * j->channel + 2 * WIDTH; }

static int64_t partial_elements(const shape *s, const job *j) {
    if (s->channels == s->maps_in) return 0;
    return s->part_maps * (s->flat ? s->rows * j->pitch + LANES : s->rows * (s->columns * s->images + LANES));
}

static int64_t turned_elements(const shape *s) { return (s->rows * s->columns * s->images + LANES) * WIDTH; }

// out: bytes of the copied filters; of a slot of tb_conv; of the sums and of a slot of tb_conv_update.
void tb_conv_needs(const int64_t *size, int64_t *out) {
    const shape s = read_shape(size);
    const job j = new_job(&s);
    const int64_t item = sizeof(TB_T), cells = s.deep.taps * s.high.taps * s.wide.taps;
    const int64_t copied = copied_elements(&s, &j), partial = partial_elements(&s, &j);
    out[0] = filters_at(&s, s.groups, 0) * item;
    out[1] = (apart(copied) + apart(partial)) * item + ceil_div(s.channels * s.wide.taps, 8) * 64;
    out[2] = s.splits * s.groups * s.maps_in * cells * ceil_div(s.maps_out, WIDTH) * WIDTH * item;
    out[3] = (apart(copied) + apart(turned_elements(&s))) * item;
}

// Runs the tail on the results of a job, whose columns all lie side by side.
static void finish_job(const job *j, void *const *ptr, const int64_t *size, const int64_t *stride,
                       const int64_t *scalar) {
    const shape *const s = j->s;
    const int64_t n = s->images, row = s->wide.out * n, map = s->deep.out * s->high.out * row;
    const int64_t first = j->group * s->maps_out + j->map, maps = least(j->maps, s->maps_out - j->map);
    const int64_t whole = j->columns == s->wide.out, rows = whole ? 1 : j->rows;
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t place = (j->depth * s->high.out + j->row + r) * row + j->column * n;
        TB_FINISH(map, first, maps, place, whole ? j->rows * row : j->columns * n);
    }
}

// A task: a part of the maps, for a block of columns and rows of a depth and a group. A tail needs a stride of 1 of the
// results.
void tb_conv(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
             int64_t end) {
    const shape s = read_shape(size);
    job j = new_job(&s);
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots);
    TB_T *const copy = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]);
    TB_T *const sums = copy + apart(copied_elements(&s, &j));
    int64_t *const offset = (int64_t *)(sums + apart(partial_elements(&s, &j)));
    const int64_t row_blocks = count_blocks(&s.high, s.rows), column_blocks = count_blocks(&s.wide, s.columns);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t part = task % s.splits, block = task / s.splits, image = block / column_blocks / row_blocks;
        find_block(&s.wide, s.columns, block % column_blocks, &j.column_phase, &j.column, &j.columns);
        find_block(&s.high, s.rows, block / column_blocks % row_blocks, &j.row_phase, &j.row, &j.rows);
        j.depth = image % s.deep.out;
        j.group = image / s.deep.out;
        j.map = part * s.part_maps;
        j.maps = least(s.part_maps, s.maps_out - j.map);
        const TB_T *const filters = (const TB_T *)TB_PLACE(PACKED) + filters_at(&s, j.group, j.column_phase);
        run_job(&j, TB_PLACE(IN), filters, TB_PLACE(RESULT), copy, sums, offset);
        finish_job(&j, ptr, size, stride, scalar);
    }
    give_slot(TB_PLACE(OWN), slot);
}

// The gradient by the filters -----------------------------------------------------------------------------------------

// Errors of up to WIDTH maps, `map` apart, at `places` neighbouring places, as [place][WIDTH]; in whole squares.
static void turn(const TB_S *from, int64_t map, int64_t maps, int64_t places, TB_T *to) {
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

// M inputs, each from its own address, times V vectors of errors, over rows of `length` places. `more`: on sums.
#define TB_UPDATE(M, V) \
    static __attribute__((noinline)) void update_##M##x##V(const TB_T *const *in, int64_t rows, int64_t pitch, \
            int64_t length, const TB_T *errors, TB_T *const *sums, int more) { \
        vec sum[M][V]; \
        const TB_T *x[M]; \
        for (int i = 0; i < M; ++i) { \
            x[i] = in[i]; \
            for (int j = 0; j < V; ++j) sum[i][j] = (vec){0}; \
        } \
        for (int64_t row = 0; row < rows; ++row) { \
            _Pragma("GCC unroll 2") \
            for (int64_t l = 0; l < length; ++l, errors += WIDTH) { \
                vec y[V]; \
                for (int j = 0; j < V; ++j) y[j] = *(const vec *)(errors + j * LANES); \
                for (int i = 0; i < M; ++i) { \
                    const vec value = spread(x[i][l]); \
                    for (int j = 0; j < V; ++j) sum[i][j] += value * y[j]; \
                } \
            } \
            for (int i = 0; i < M; ++i) x[i] += pitch; \
        } \
        for (int i = 0; i < M; ++i) \
            for (int j = 0; j < V; ++j) { \
                vec *const to = (vec *)(sums[i] + j * LANES); \
                if (more) sum[i][j] += *to; \
                *to = sum[i][j]; \
            } \
    }
TB_UPDATE(1, 1)
TB_UPDATE(1, 2)
TB_UPDATE(1, 3)
TB_UPDATE(4, 1)
TB_UPDATE(4, 2)
TB_UPDATE(4, 3)
TB_UPDATE(8, 1)
TB_UPDATE(8, 2)
TB_UPDATE(8, 3)

typedef void (*update)(const TB_T *const *, int64_t, int64_t, int64_t, const TB_T *, TB_T *const *, int);

// M inputs times the errors of one map, place by place, over rows; sums of the lanes at the end.
#define TB_DOT(M) \
    static __attribute__((noinline)) void dot_##M(const TB_T *const *in, int64_t count, int64_t rows, int64_t pitch, \
            int64_t length, const TB_S *errors, int64_t row, TB_T *const *sums, int more) { \
        vec sum[M]; \
        const TB_T *x[M]; \
        for (int i = 0; i < M; ++i) sum[i] = (vec){0}, x[i] = in[i < count ? i : 0]; \
        for (int64_t n = 0; n < rows; ++n, errors += row) { \
            int64_t l = 0; \
            for (; l + LANES <= length; l += LANES) { \
                const vec y = load(errors + l); \
                for (int i = 0; i < M; ++i) sum[i] += *(const vec *)(x[i] + n * pitch + l) * y; \
            } \
            for (int64_t at = l; at < length; ++at) \
                for (int i = 0; i < M; ++i) sum[i][at - l] += x[i][n * pitch + at] * TB_WIDE(errors[at]); \
        } \
        for (int i = 0; i < M && i < count; ++i) { \
            TB_T total = more ? *sums[i] : 0; \
            for (int l = 0; l < LANES; ++l) total += sum[i][l]; \
            *sums[i] = total; \
        } \
    }
TB_DOT(1)
TB_DOT(4)
TB_DOT(8)

// Up to UPDATE_ROWS inputs and all maps of errors, the first of which begin at `errors`, `map` apart.
static void update_narrow(const shape *s, const TB_T *const *in, int64_t count, int64_t rows, int64_t pitch,
                          int64_t length, const TB_S *errors, TB_T *const *to, int more) {
    const int64_t row = s->wide.out * s->images, map = s->deep.out * s->high.out * row;
    for (int64_t k = 0; k < s->maps_out; ++k) {
        TB_T *at[UPDATE_ROWS];
        for (int64_t i = 0; i < count; ++i) at[i] = to[i] + k;
        (count > 4 ? dot_8 : count > 1 ? dot_4 : dot_1)(in, count, rows, pitch, length, errors + k * map, row, at, more);
    }
}

// The products of a job's inputs and WIDTH maps of errors for the filters' row (t, r): sums[channel][t][r][s][maps].
// Errors are `turned`, or, if maps are few, as they are from `plain`.
static void update_row(const job *j, int64_t t, int64_t r, int64_t channels, const TB_T *copy, const TB_T *turned,
                       const TB_S *plain, int64_t vectors, int64_t pitch, TB_T *sums, int more) {
    static const update updates[3][3] = {{update_1x1, update_1x2, update_1x3}, {update_4x1, update_4x2, update_4x3},
                                         {update_8x1, update_8x2, update_8x3}};
    const shape *const s = j->s;
    const axis *const hx = &s->high, *const wx = &s->wide;
    int64_t deep_shift, deep_from, shift, from, first = 0, last = j->rows;
    reach(&s->deep, t, 0, &deep_shift, &deep_from);
    reach(hx, r, 0, &shift, &from);
    const int64_t d = (j->depth + deep_shift) * s->deep.a + deep_from, length = j->columns * s->images;
    while (first < last && (j->row + first + shift) * hx->a + from < 0) ++first;
    while (last > first && (j->row + last - 1 + shift) * hx->a + from >= hx->in) --last;
    if (d < 0 || d >= s->deep.in) last = first;
    const TB_T *const rows = copy + (t * hx->a + from) * wx->a * j->plane + (first + shift - hx->low) * j->pitch;
    const TB_T *in[UPDATE_ROWS];
    TB_T *to[UPDATE_ROWS];
    const int64_t total = channels * wx->taps;
    for (int64_t at = 0; at < total; at += UPDATE_ROWS) {
        const int64_t count = least(UPDATE_ROWS, total - at);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t c = (at + i) / wx->taps, tap = (at + i) % wx->taps;
            int64_t column_shift, phase;
            reach(wx, tap, 0, &column_shift, &phase);
            in[i] = rows + c * j->channel + phase * j->plane + (column_shift - wx->low) * s->images;
            to[i] = sums + (((c * s->deep.taps + t) * hx->taps + r) * wx->taps + tap) * pitch;
        }
        const TB_T *const errors = turned + first * length * WIDTH;
        if (s->maps_out <= NARROW) {
            const TB_S *const from = plain + first * s->wide.out * s->images;
            update_narrow(s, in, count, last - first, j->pitch, length, from, to, more);
            continue;
        }
        for (int64_t i = 0, taken; i < count; i += taken) {
            taken = count - i == UPDATE_ROWS ? UPDATE_ROWS : count - i >= 4 ? 4 : 1;
            updates[taken / 4][vectors - 1](in + i, last - first, j->pitch, length, errors, to + i, more);
        }
    }
}

// The products of a job's inputs and errors; sums begin at the job's first channel.
static void update_job(const job *j, const TB_S *in, const TB_S *errors, int64_t first, int64_t channels, TB_T *copy,
                       TB_T *turned, TB_T *sums, int more) {
    const shape *const s = j->s;
    const int64_t length = j->columns * s->images, row = s->wide.out * s->images;
    const int64_t map = s->deep.out * s->high.out * row, pitch = ceil_div(s->maps_out, WIDTH) * WIDTH;
    copy_input(j, in, first, channels, copy);
    for (int64_t k = 0; k < s->maps_out; k += WIDTH) {
        const int64_t maps = least(WIDTH, s->maps_out - k);
        const TB_S *const from = errors + (j->group * s->maps_out + k) * map +
                                 (j->depth * s->high.out + j->row) * row + j->column * s->images;
        for (int64_t r = 0; r < j->rows && s->maps_out > NARROW; ++r)
            turn(from + r * row, map, maps, length, turned + r * length * WIDTH);
        for (int64_t t = 0; t < s->deep.taps; ++t)
            for (int64_t r = 0; r < s->high.taps; ++r)
                update_row(j, t, r, channels, copy, turned, from, ceil_div(maps, LANES), pitch, sums + k, more);
    }
}

// Before tb_conv_update.
void tb_conv_start(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                   int64_t end) {
    (void)stride, (void)scalar, (void)begin, (void)end;
    free_slots(TB_PLACE(OWN), size[SLOTS]);
}

// To sums[segment][group][channel][t][r][s][padded maps]. A task: a block of channels of a group, for a segment of the
// blocks of places.
void tb_conv_update(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                    int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    job j = new_job(&s);
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots);
    TB_T *const copy = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]);
    TB_T *const turned = copy + apart(copied_elements(&s, &j));
    const int64_t row_blocks = count_blocks(&s.high, s.rows), column_blocks = count_blocks(&s.wide, s.columns);
    const int64_t items = s.deep.out * row_blocks * column_blocks, blocks = ceil_div(s.maps_in, s.channels);
    const int64_t channel = s.deep.taps * s.high.taps * s.wide.taps * ceil_div(s.maps_out, WIDTH) * WIDTH;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % blocks * s.channels, segment = task / blocks / s.groups;
        j.group = task / blocks % s.groups;
        TB_T *const sums = (TB_T *)TB_PLACE(PACKED) + ((segment * s.groups + j.group) * s.maps_in + first) * channel;
        const int64_t item0 = items * segment / s.splits, item1 = items * (segment + 1) / s.splits;
        for (int64_t item = item0; item < item1; ++item) {
            find_block(&s.wide, s.columns, item % column_blocks, &j.column_phase, &j.column, &j.columns);
            find_block(&s.high, s.rows, item / column_blocks % row_blocks, &j.row_phase, &j.row, &j.rows);
            j.depth = item / column_blocks / row_blocks;
            const int64_t channels = least(s.channels, s.maps_in - first);
            update_job(&j, TB_PLACE(IN), TB_PLACE(FILTERS), first, channels, copy, turned, sums, item > item0);
        }
    }
    give_slot(TB_PLACE(OWN), slot);
}

// A task: the filters of a channel of a group.
void tb_conv_join(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                  int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t padded = ceil_div(s.maps_out, WIDTH) * WIDTH, cells = s.deep.taps * s.high.taps * s.wide.taps;
    const int64_t segment = s.groups * s.maps_in * cells * padded;
    for (int64_t task = begin; task < end; ++task)
        for (int64_t cell = 0; cell < cells; ++cell) {
            const int64_t group = task / s.maps_in, channel = task % s.maps_in;
            const TB_T *const from = (const TB_T *)TB_PLACE(PACKED) + (task * cells + cell) * padded;
            TB_R *const to = (TB_R *)TB_PLACE(RESULT) + ((channel * cells + cell) * s.groups + group) * s.maps_out;
            for (int64_t k = 0; k < s.maps_out; ++k) {
                TB_T sum = from[k];
                for (int64_t n = 1; n < s.splits; ++n) sum += from[n * segment + k];
                to[k] = TB_NARROW(sum);
            }
        }
}
