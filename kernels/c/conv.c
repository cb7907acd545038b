// SPDX-License-Identifier: Apache-2.0
// conv.c — convolution and its gradient by the images, for any geometry
//
// Computes  out[k, o, n] = sum over c, taps of F[tap, c, k] in[c, i(o, tap), n], with i of conv_copies.h
// Layout    images (C, D, H, W, N), filters (C, T, R, S, K)
// Tiles     TILE maps x WIDTH places, over all channels and taps: conv_fma.h or, with TB_PLANES, conv_amx.h. Sums of the
//           matrix unit that are not finite are made anew.
// Order     Sums run over channels, then taps, in blocks that depend on shapes alone.
// Bound by  multiply-adds; with few maps, by the copies
// Checked   tests/primitives/test_conv_kernels.py; timed by benchmarks/conv.py
enum { PLACES_A_LINE = 16 };  // of pairs of numbers of two bytes
#include "conv_copies.h"

static int64_t count_column_taps(const shape *s, int64_t phase) {
    int64_t count = 0, shift, from;
    for (int64_t tap = 0; tap < s->wide.taps; ++tap) count += reach(&s->wide, tap, phase, &shift, &from);
    return count;
}

// Taps [first, last) of the columns, of those of a phase; or columns.
typedef struct range {
    int64_t first, last;
} range;

// Of each tile of a row of a job the taps that meet inputs; a tile that goes on to the next row meets all. There is
// memory for as many as the filters' taps at `columns`.
static void find_ranges(const job *j, int64_t places, range *columns, range *met) {
    const axis *const x = &j->s->wide;
    const int64_t taps = count_column_taps(j->s, j->column_phase), n = j->s->images;
    int64_t count = 0, shift, from;
    for (int64_t tap = 0; tap < x->taps; ++tap) {
        if (!reach(x, tap, j->column_phase, &shift, &from)) continue;
        columns[count++] = (range){-shift, floor_div(x->in - 1 - from, x->a) + 1 - shift};  // that the tap meets
    }
    for (int64_t lane = 0; lane < places; lane += WIDTH, ++met) {
        const int64_t begin = j->column + lane / n, end = j->column + (least(lane + WIDTH, places) - 1) / n;
        *met = (range){0, j->s->flat ? taps : 0};
        for (int64_t tap = 0; tap < taps && !j->s->flat; ++tap) {
            if (columns[tap].first > end || columns[tap].last <= begin) continue;
            if (met->last == 0) met->first = tap;
            met->last = tap + 1;
        }
    }
}

// The filters and the inputs of one (t, r).
typedef struct strip {
    const TB_T *filter, *in;
} strip;

#if defined(TB_PLANES)
#include "conv_amx.h"
#else
#include "conv_fma.h"
#endif

// Filters: copied to [group][phase of the columns][tile of maps][t][r], each with all channels and all s of the phase.

static int64_t filters_at(const shape *s, int64_t group, int64_t phase) {
    int64_t taps = 0;
    for (int64_t tap = 0; tap < s->wide.taps; ++tap) taps += served_phase(&s->wide, tap) < phase;
    const int64_t a_tap = s->deep.taps * s->high.taps * ceil_div(s->maps_out, TILE) * stored(s->maps_in);
    return a_tap * (group * s->wide.taps + taps);
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
        // In the order in which they lie in memory.
        for (int64_t cell = 0; cell < cells; ++cell)
            for (int64_t map = 0; map < s.maps_out; map += TILE) {
                TB_T *const tile = to + ((map / TILE * cells + cell) * stored(s.maps_in) + stored(first)) * taps;
                const TB_S *const cell_from = from + cell * s.wide.taps * row;
                copy_filters(&s, cell_from, map, phase, first, last, channel, row, backward, tile);
            }
    }
}

// The filters of a tile of maps and channels [first, last) of a job: [t][r], each with these channels and all s, where the
// job's rows meet it.
static void copy_own_filters(const job *j, const TB_S *filters, int64_t map, int64_t first, int64_t last, TB_T *to) {
    const shape *const s = j->s;
    const int64_t backward = s->wide.backward, row = (backward ? s->maps_in : s->maps_out) * s->groups;
    const int64_t cells = s->deep.taps * s->high.taps, channel = cells * s->wide.taps * row;
    const TB_S *const from = filters + j->group * (backward ? s->maps_in : s->maps_out);
    const int64_t each = stored(last - first) * count_column_taps(s, j->column_phase);
    for (int64_t cell = 0; cell < cells; ++cell) {
        int64_t shift, unused;
        if (!reach(&s->high, cell % s->high.taps, j->row_phase, &shift, &unused)) continue;
        copy_filters(s, from + cell * s->wide.taps * row, map, j->column_phase, first, last, channel, row, backward,
                     to + cell * each);
    }
}

// Where the filters of a (t, r) and the inputs of a job's first row are, and which of its rows meet inputs (flat: all).
typedef struct met_rows {
    int64_t filter, in, first, last;
} met_rows;

// Those that meet inputs at all. Filters of (t, r) lie `cell` apart.
static int64_t find_rows(const job *j, int64_t cell, met_rows *rows) {
    const shape *const s = j->s;
    int64_t count = 0;
    for (int64_t t = 0; t < s->deep.taps; ++t)
        for (int64_t r = 0; r < s->high.taps; ++r) {
            int64_t deep_shift, deep_from, shift, from;
            if (!reach(&s->deep, t, j->depth % s->deep.b, &deep_shift, &deep_from)) continue;
            if (!reach(&s->high, r, j->row_phase, &shift, &from)) continue;
            const int64_t d = (j->depth / s->deep.b + deep_shift) * s->deep.a + deep_from;
            if (d < 0 || d >= s->deep.in) continue;
            const int64_t end = floor_div(s->high.in - 1 - from, s->high.a) + 1 - shift - j->row;
            rows[count++] = (met_rows){
                (t * s->high.taps + r) * cell,
                (t * s->high.phases + from - s->high.first) * s->wide.phases * j->plane + (shift - s->high.low) * j->pitch,
                s->flat ? 0 : -shift - j->row, s->flat ? 1 : end,
            };
        }
    return count;
}

// The strips of a row of a job (if flat: of all its rows) whose input exists.
INLINE int64_t find_strips(const met_rows *rows, int64_t count, const TB_T *filters, const TB_T *in, int64_t row,
                           strip *strips) {
    int64_t found = 0;
    for (; count > 0; --count, ++rows) {
        if (row < rows->first || row >= rows->last) continue;
        strips[found].filter = filters + rows->filter;
        strips[found++].in = in + rows->in;
    }
    return found;
}

static int64_t find_offsets(const job *j, int64_t channels, int64_t *offset) {
    const axis *const x = &j->s->wide;
    const int64_t step_bytes = step_elements(j) * (int64_t)sizeof(TB_T);
    int64_t taps = 0, count = 0, shift, from;
    for (int64_t tap = 0; tap < x->taps; ++tap)  // those of the first step, from which all others are
        if (reach(x, tap, j->column_phase, &shift, &from)) {
            const int64_t place = (from - x->first) * j->plane + (shift - x->low) * j->s->images;
            offset[taps++] = place * (int64_t)sizeof(TB_T);
        }
    for (int64_t step = 0; step < steps_of(channels); ++step) {
        const int64_t each = taps_of_step(j->s, channels, step);
        for (int64_t tap = 0; tap < taps; tap += each) offset[count++] = offset[tap] + step * step_bytes;
    }
    return count;
}

// Sums of places in columns `b` apart, all n images of each: of few, a loop over them would take longer than they.
INLINE void put_apart(TB_R *to, const TB_T *sums, int64_t count, int n, int64_t b) {
    for (int64_t i = 0; i + n <= count; i += n, to += b * n)
#ifdef TB_PLAIN
        __builtin_memcpy(to, sums + i, (unsigned long)n * sizeof(TB_T));
#else
        UNROLL for (int image = 0; image < n; ++image) to[image] = TB_NARROW(sums[i + image]);
#endif
    for (int64_t i = count / n * n; i < count; ++i) to[i % n] = TB_NARROW(sums[i]);
}

// The same of any number of images, from `image` of the first column on.
static void put_images(TB_R *to, const TB_T *sums, int64_t image, int64_t count, int64_t n, int64_t b) {
    for (int64_t i = 0; i < count; to += b * n, image = 0) {
#ifdef TB_PLAIN
        for (; image + LANES <= n && i + LANES <= count; image += LANES, i += LANES) store(to + image, *(const vec *)(sums + i));
        for (; image + 4 <= n && i + 4 <= count; image += 4, i += 4) __builtin_memcpy(to + image, sums + i, 4 * sizeof(TB_T));
#endif
        for (; image < n && i < count; ++image, ++i) to[image] = TB_NARROW(sums[i]);
    }
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
            continue;
        }
        TB_R *const to = line + ((j->column + lane / n) * b + j->column_phase) * n;
        if (n == 1) put_apart(to, sums, count, 1, b);
        else if (n == 2 && lane % 2 == 0) put_apart(to, sums, count, 2, b);
        else if (n == 4 && lane % 4 == 0) put_apart(to, sums, count, 4, b);
        else if (n == 8 && lane % 8 == 0) put_apart(to, sums, count, 8, b);
        else if (n == 16 && lane % 16 == 0) put_apart(to, sums, count, 16, b);
        else put_images(to, sums, lane % n, count, n, b);
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

// Where sums of a row of the job may go at once: whole vectors of TILE maps whose places lie side by side; else 0.
static TB_T *straight_place(const job *j, TB_R *out, int64_t map, int64_t maps, int64_t row) {
#ifdef TB_PLAIN
    const shape *const s = j->s;
    if (!MENDED && !s->flat && s->wide.b == 1 && s->channels >= s->maps_in && maps == TILE) {
        const int64_t deep = (j->group * s->maps_out + map) * s->deep.out + j->depth;
        const int64_t high = deep * s->high.out + (j->row + row) * s->high.b + j->row_phase;
        return out + (high * s->wide.out + j->column) * s->images;
    }
#endif
    (void)j, (void)out, (void)map, (void)maps, (void)row;
    return 0;
}

// Whether any tap serves a job's phase.
static int is_served(const job *j) {
    const axis *const x = &j->s->high;
    int64_t shift, from;
    int rows = 0;
    for (int64_t tap = 0; tap < x->taps; ++tap) rows |= reach(x, tap, j->row_phase, &shift, &from);
    return rows && count_column_taps(j->s, j->column_phase) > 0;
}

// Elements of a copy of the input.
INLINE int64_t unit_elements(const job *j) { return apart(held_elements(j->s, j)); }

// The task's memory: a copy of the input or, where those are shared, of filters; sums between blocks of channels,
// [map][row][place]; offsets; the taps that tiles meet; the columns that taps meet; of each (t, r) the rows that it
// meets, and the strip of a row; the first place of the copy, counted from 1, if it has all channels, or 0: jobs of other
// phases and maps find it there.
typedef struct memory {
    TB_T *copy, *partial;
    int64_t *offset;
    range *met, *columns;
    met_rows *rows;
    strip *strips;
    int64_t *copied;
} memory;

// One job; whether all its sums are finite. `packed`: the filters of its phase or, where copies of the input are
// shared, those copies.
static int run_job(const job *j, const TB_S *in, const TB_S *filters, const TB_T *packed, TB_R *out, memory own) {
    const shape *const s = j->s;
    const int64_t taps = count_column_taps(s, j->column_phase), cells = s->deep.taps * s->high.taps;
    const int64_t segments = s->flat ? 1 : j->rows;
    const int64_t places = (s->flat ? (j->rows - 1) * j->pitch : 0) + j->columns * s->images;
    const int64_t padded = ceil_div(places, WRITTEN) * WRITTEN, several = s->channels < s->maps_in;
    const int64_t pitch = several ? segments * padded : WIDTH;
    const int64_t out_map = s->deep.out * s->high.out * s->wide.out * s->images;
    const int64_t image = j->group * s->deep.out + j->depth;
    const int64_t place = (image * s->high.out + j->row) * s->wide.out + j->column + 1;
    TB_T local[TILE * WIDTH];
    int finite = 1;
    find_ranges(j, places, own.columns, own.met);
    for (int64_t first = 0; first < s->maps_in; first += s->channels) {
        const int64_t channels = least(s->channels, s->maps_in - first), last = first + channels == s->maps_in;
        const TB_T *const copy = s->shared ? packed + first / s->channels * unit_elements(j) : own.copy;
        if (!s->shared && *own.copied != place) copy_channels(j, in, first, channels, own.copy);
        *own.copied = several ? 0 : place;
        const int64_t steps = find_offsets(j, channels, own.offset), held = s->shared ? channels : s->maps_in;
        const int64_t found = find_rows(j, stored(held) * taps, own.rows);
        for (int64_t map = j->map; map < j->map + j->maps; map += TILE) {
            const TB_T *const tile = packed + (map / TILE * cells * stored(s->maps_in) + stored(first)) * taps;
            const TB_T *const filter = s->shared ? own.copy : tile;
            if (s->shared) copy_own_filters(j, filters, map, first, first + channels, own.copy);
            const int64_t maps = least(TILE, s->maps_out - map);
            for (int64_t segment = 0; segment < segments; ++segment) {
                const TB_T *const inputs = copy + segment * j->pitch;
                const int64_t count = find_strips(own.rows, found, filter, inputs, segment, own.strips);
                TB_T *const row = own.partial + (map - j->map) * pitch + segment * padded;
                TB_T *const straight = straight_place(j, out, map, maps, segment);
                const range *met = own.met;
                for (int64_t lane = 0; lane < places; lane += WIDTH, ++met) {
                    const int64_t width = least(WIDTH, places - lane), goes = straight && width % LANES == 0;
                    TB_T *const sums = goes ? straight + lane : several ? row + lane : local;
                    const int64_t apart = goes ? out_map : pitch;
                    run_tile(j, maps, width, *met, own.strips, count, steps, taps, own.offset, sums, apart, first > 0);
                    for (int64_t n = 0; n < count; ++n) own.strips[n].in += WIDTH;
                    if (goes) continue;
                    if (last && MENDED) finite &= all_finite(sums, maps, pitch, width);
                    if (last && s->flat) put_flat(j, out, map, maps, lane, width, sums, pitch);
                    else if (last) put(j, out, map, maps, segment, lane, width, sums, pitch);
                }
            }
        }
    }
    return finite;
}

// Which input an output meets at a tap of an axis, if there is one.
static int meets(const axis *x, int64_t output, int64_t tap, int64_t *input) {
    const int64_t away = tap * x->dilation - x->pad;
    *input = x->backward ? floor_div(output - away, x->stride) : output * x->stride + away;
    return *input >= 0 && *input < x->in && (!x->backward || *input * x->stride == output - away);
}

// One sum by its definition; it stops at what can be no number any more.
static TB_T sum_at(const job *j, const TB_S *in, const TB_S *filters, int64_t map, int64_t h, int64_t w, int64_t n) {
    const shape *const s = j->s;
    const int64_t backward = s->wide.backward, cells = s->deep.taps * s->high.taps * s->wide.taps;
    const int64_t row = (backward ? s->maps_in : s->maps_out) * s->groups, area = s->high.in * s->wide.in;
    TB_T sum = 0;
    for (int64_t c = 0; c < s->maps_in && sum == sum; ++c)
        for (int64_t cell = 0; cell < cells; ++cell) {
            int64_t d, y, x;
            if (!meets(&s->deep, j->depth, cell / s->wide.taps / s->high.taps, &d)) continue;
            if (!meets(&s->high, h, cell / s->wide.taps % s->high.taps, &y)) continue;
            if (!meets(&s->wide, w, cell % s->wide.taps, &x)) continue;
            const int64_t channel = j->group * s->maps_in + c, place = (channel * s->deep.in + d) * area + y * s->wide.in + x;
            const TB_S filter = backward ? filters[(map * cells + cell) * row + channel]
                                         : filters[(c * cells + cell) * row + j->group * s->maps_out + map];
            sum += TB_WIDE(in[place * s->images + n]) * TB_WIDE(filter);
        }
    return sum;
}

// Makes the sums of a job that are not finite anew, by multiply-adds.
static void mend_job(const job *j, const TB_S *in, const TB_S *filters, TB_R *out) {
    const shape *const s = j->s;
    const int64_t last = least(j->map + j->maps, s->maps_out);
    for (int64_t map = j->map; map < last; ++map)
        for (int64_t row = 0; row < j->rows; ++row)
            for (int64_t place = 0; place < j->columns * s->images; ++place) {
                const int64_t h = (j->row + row) * s->high.b + j->row_phase, n = place % s->images;
                const int64_t w = (j->column + place / s->images) * s->wide.b + j->column_phase;
                const int64_t deep = (j->group * s->maps_out + map) * s->deep.out + j->depth;
                TB_R *const to = out + ((deep * s->high.out + h) * s->wide.out + w) * s->images + n;
                const TB_T sum = sizeof *to == sizeof(TB_T) ? (TB_T)*to : (TB_T)TB_WIDE((TB_S)*to);
                if (!(sum * 0 == 0)) *to = TB_NARROW(sum_at(j, in, filters, map, h, w, n));
            }
}

// Elements of the sums in a slot, which come after the copy, and before the offsets.
static int64_t partial_elements(const shape *s, const job *j) {
    if (s->channels == s->maps_in) return 0;
    return s->part_maps * (s->flat ? s->rows * j->pitch + WRITTEN : s->rows * (s->columns * s->images + WRITTEN));
}

// Elements of the copy in a slot.
static int64_t own_elements(const shape *s, const job *j) {
    if (!s->shared) return unit_elements(j);
    return apart(s->deep.taps * s->high.taps * s->wide.taps * stored(s->channels));
}

// Bytes of the offsets, and of the taps that tiles meet.
INLINE int64_t offset_bytes(const shape *s) { return ceil_div(s->channels * s->wide.taps, 8) * 64; }
INLINE int64_t range_bytes(const shape *s, const job *j) {
    const int64_t places = s->flat ? s->rows * j->pitch : s->columns * s->images;
    return ceil_div(places, WIDTH) * (int64_t)sizeof(range);
}

// Bytes of what is found of the taps.
INLINE int64_t tap_bytes(const shape *s) {
    const int64_t each = sizeof(met_rows) + sizeof(strip);
    return s->wide.taps * (int64_t)sizeof(range) + s->deep.taps * s->high.taps * each;
}

// Blocks of outputs: of all groups, depths, rows and columns.
static int64_t count_items(const shape *s) {
    return s->groups * s->deep.out * count_blocks(&s->high, s->rows) * count_blocks(&s->wide, s->columns);
}

// out: bytes of the copied filters or of all copies of the input, and of a slot.
void tb_conv_needs(const int64_t *size, int64_t *out) {
    const shape s = read_shape(size);
    const job j = new_job(&s);
    const int64_t item = sizeof(TB_T), blocks = ceil_div(s.maps_in, s.channels);
    out[0] = (s.shared ? count_items(&s) * blocks * unit_elements(&j) : filters_at(&s, s.groups, 0)) * item;
    out[1] = (own_elements(&s, &j) + apart(partial_elements(&s, &j))) * item;
    out[1] += offset_bytes(&s) + range_bytes(&s, &j) + tap_bytes(&s);
}

// The part of the outputs that a job takes.
static void find_item(job *j, int64_t item) {
    const shape *const s = j->s;
    const int64_t row_blocks = count_blocks(&s->high, s->rows), column_blocks = count_blocks(&s->wide, s->columns);
    const int64_t image = item / column_blocks / row_blocks;
    find_block(&s->wide, s->columns, item % column_blocks, &j->column_phase, &j->column, &j->columns);
    find_block(&s->high, s->rows, item / column_blocks % row_blocks, &j->row_phase, &j->row, &j->rows);
    j->depth = image % s->deep.out;
    j->group = image / s->deep.out;
}

// Copies of the input that tasks share. A task: a block of channels for a block of outputs.
void tb_conv_copies(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                    int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    job j = new_job(&s);
    const int64_t blocks = ceil_div(s.maps_in, s.channels);
    if (begin == 0) free_slots(TB_PLACE(OWN), size[SLOTS]);
    for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task % blocks * s.channels;
        find_item(&j, task / blocks);
        copy_channels(&j, TB_PLACE(IN), first, least(s.channels, s.maps_in - first),
                      (TB_T *)TB_PLACE(PACKED) + task * unit_elements(&j));
    }
}

// Zeros, where there are phases of the results that no tap serves. A task: a map.
void tb_conv_clear(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                   int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    const int64_t map = s.deep.out * s.high.out * s.wide.out * s.images;
    TB_R *const to = (TB_R *)TB_PLACE(RESULT) + begin * map;
    __builtin_memset(to, 0, sizeof(TB_R) * (unsigned long)((end - begin) * map));
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

// A task: a part of the maps, for a block of columns and rows of a depth and a group, if taps serve them. A tail needs a
// stride of 1 of the results.
void tb_conv(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
             int64_t end) {
    const shape s = read_shape(size);
    job j = new_job(&s);
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots);
    const int64_t copies = ceil_div(s.maps_in, s.channels) * unit_elements(&j);
    begin_tiles();
    memory own = {.copy = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES])};
    own.copied = slot_word(TB_PLACE(OWN), slot) + 1;
    own.partial = own.copy + own_elements(&s, &j);
    own.offset = (int64_t *)(own.partial + apart(partial_elements(&s, &j)));
    own.met = (range *)((char *)own.offset + offset_bytes(&s));
    own.columns = (range *)((char *)own.met + range_bytes(&s, &j));
    own.rows = (met_rows *)(own.columns + s.wide.taps);
    own.strips = (strip *)(own.rows + s.deep.taps * s.high.taps);
    for (int64_t task = begin; task < end; ++task) {
        find_item(&j, task / s.splits);
        if (!is_served(&j)) continue;
        j.map = task % s.splits * s.part_maps;
        j.maps = least(s.part_maps, s.maps_out - j.map);
        const int64_t at = s.shared ? task / s.splits * copies : filters_at(&s, j.group, j.column_phase);
        const TB_T *const packed = (const TB_T *)TB_PLACE(PACKED) + at;
        if (!run_job(&j, TB_PLACE(IN), TB_PLACE(FILTERS), packed, TB_PLACE(RESULT), own))
            mend_job(&j, TB_PLACE(IN), TB_PLACE(FILTERS), TB_PLACE(RESULT));
        finish_job(&j, ptr, size, stride, scalar);
    }
    end_tiles();
    give_slot(TB_PLACE(OWN), slot);
}
