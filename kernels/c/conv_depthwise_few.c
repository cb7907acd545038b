// SPDX-License-Identifier: Apache-2.0
// conv_depthwise_few.c — what conv_depthwise.c computes, for few images and short rows: lanes are maps
//
// Copy      of LANES maps, as conv_channels.h has it, transposed square by square. Any place is then a whole vector, and
//           strides and dilations cost nothing.
// Tiles     OUTPUTS places of a row; a tap's filters, one vector, serve all of them. For the filters' gradient the sums of
//           up to MOST_TAPS taps, to which places add one after the other.
// Order     Sums run over taps; for the filters' gradient over places. That depends on shapes alone.
// Bound by  the transposes, there and back, and multiply-adds
// Checked   tests/primitives/test_conv_kernels.py; timed by benchmarks/conv.py
#include "conv_channels.h"

enum { OUTPUTS = MANY_REGISTERS ? 8 : 4, MOST_TAPS = 9 };

// A tap of an axis: the phase of the outputs that it serves, and where in the copy the first of them has its input.
typedef struct tap {
    int64_t phase, at;
} tap;

// What a task works in. `place` is where in the copy each input of a map lies, `offset` and `cell` are the taps of each
// phase, `counts` how many there are, one phase behind the other; `filter` has the filters of a task in that order.
typedef struct work {
    shape s;
    vec *copy, *results, *filter;
    int64_t *place, *offset, *cell, *counts;
} work;

INLINE int64_t padded(int64_t places) { return ceil_div(places, LANES) * LANES; }

// out: bytes of a slot.
void tb_depthwise_few_needs(const int64_t *size, int64_t *out) {
    const shape s = read_shape(size);
    const int64_t vectors = copied_places(&s) + 1 + padded(s.out_map) + s.cells;
    out[0] = vectors * TB_VECTOR + (s.in_map + 2 * s.cells + s.phases) * (int64_t)sizeof(int64_t);
}

void tb_depthwise_few_start(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                            int64_t begin, int64_t end) {
    (void)stride, (void)scalar, (void)begin, (void)end;
    free_slots(TB_PLACE(OWN), size[SLOTS]);
}

// Inputs that no output meets go behind the copy.
static void find_places(const work *w) {
    const shape *const s = &w->s;
    const int64_t none = copied_places(s);
    int64_t *to = w->place;
    for (int64_t d = 0; d < s->axes[0].in; ++d)
        for (int64_t h = 0; h < s->axes[1].in; ++h) {
            const int64_t z = d - s->low[0], y = h - s->low[1];
            const int inside = z >= 0 && z < s->extent[0] && y >= 0 && y < s->extent[1];
            const int64_t first = copied_at(s, z, y, 0, 0), before = s->low[2] * s->images;
            for (int64_t i = 0; i < s->axes[2].in * s->images; ++i, ++to) {
                const int64_t at = i - before;
                *to = inside && at >= 0 && at < s->extent[2] * s->images ? first + at : none;
            }
        }
}

static void find_axis(const axis *x, int64_t low, tap *found) {
    for (int64_t n = 0; n < x->taps; ++n) {
        int64_t shift, from;
        found[n].phase = served_phase(x, n);
        reach(x, n, found[n].phase, &shift, &from);
        found[n].at = shift * x->a + from - low;
    }
}

static void find_taps(const work *w) {
    const shape *const s = &w->s;
    const axis *const x = s->axes;
    tap deep[x[0].taps], high[x[1].taps], wide[x[2].taps];
    find_axis(x, s->low[0], deep), find_axis(x + 1, s->low[1], high), find_axis(x + 2, s->low[2], wide);
    int64_t found = 0, first = 0;
    for (int64_t phase = 0; phase < s->phases; ++phase, first = found) {
        const int64_t row = phase / x[2].b % x[1].b, column = phase % x[2].b;
        for (int64_t n = 0; n < s->cells; ++n) {
            const tap *const t = deep + n / x[2].taps / x[1].taps, *const r = high + n / x[2].taps % x[1].taps;
            const tap *const c = wide + n % x[2].taps;
            if (t->phase != phase / x[2].b / x[1].b || r->phase != row || c->phase != column) continue;
            w->cell[found] = n;
            w->offset[found++] = copied_at(s, t->at, r->at, c->at, 0) * TB_VECTOR;
        }
        w->counts[phase] = found - first;
    }
}

static work new_work(const int64_t *size, void *memory) {
    work w = {.s = read_shape(size)};
    w.s.pitch = 1;  // places are vectors
    w.copy = memory;
    w.results = w.copy + copied_places(&w.s) + 1;
    w.filter = w.results + padded(w.s.out_map);
    w.place = (int64_t *)(w.filter + w.s.cells);
    w.offset = w.place + w.s.in_map;
    w.cell = w.offset + w.s.cells;
    w.counts = w.cell + w.s.cells;
    find_places(&w);
    find_taps(&w);
    __builtin_memset(w.copy, 0, (unsigned long)(copied_places(&w.s) + 1) * TB_VECTOR);
    return w;
}

// Vectors of `maps` maps, at most LANES, of `places` places: place n to to[at[n]], or to[n]. The last square begins where it
// ends with the map.
static void take_maps(const TB_S *from, int64_t places, int64_t maps, const int64_t *at, vec *to) {
    for (int64_t first = 0; first < places; first += LANES) {
        const int64_t n = places < LANES ? 0 : least(first, places - LANES), count = least(LANES, places);
        vec r[LANES];
        for (int64_t i = 0; i < LANES; ++i) {
            r[i] = (vec){0};
            if (i >= maps) continue;
            if (count == LANES) r[i] = load(from + i * places + n);
            else
                for (int64_t l = 0; l < count; ++l) r[i][l] = TB_WIDE(from[i * places + l]);
        }
        transpose(r);
        if (!at)
            for (int64_t l = 0; l < count; ++l) to[n + l] = r[l];
        else if (count == LANES)
            UNROLL for (int l = 0; l < LANES; ++l) to[at[n + l]] = r[l];
        else
            for (int64_t l = 0; l < count; ++l) to[at[l]] = r[l];
    }
}

static void put_maps(const vec *from, int64_t places, int64_t maps, TB_R *to) {
    for (int64_t first = 0; first < places; first += LANES) {
        const int64_t n = places < LANES ? 0 : least(first, places - LANES);
        vec r[LANES];
        UNROLL for (int l = 0; l < LANES; ++l) r[l] = from[n + l];
        transpose(r);
        for (int64_t i = 0; i < maps; ++i) {
            if (places >= LANES) store(to + i * places + n, r[i]);
            else
                for (int64_t l = 0; l < places; ++l) to[i * places + l] = TB_NARROW(r[i][l]);
        }
    }
}

// What a cell's filters of some maps are: a vector, or its first lanes.
INLINE vec take_filters(const TB_S *from, int64_t maps) {
    if (maps == LANES) return load(from);
    vec x = {0};
    for (int64_t l = 0; l < maps; ++l) x[l] = TB_WIDE(from[l]);
    return x;
}

// Sums of the taps of a phase, whose inputs lie `offset` bytes from those of each output, at `outputs` outputs.
INLINE void sum_tile(const char *x, int64_t step, const int64_t *offset, const vec *filter, int64_t taps, int outputs,
                     vec *to, int64_t to_step) {
    vec sum[OUTPUTS];
    UNROLL for (int i = 0; i < outputs; ++i) sum[i] = (vec){0};
    for (int64_t n = 0; n < taps; ++n) {
        const char *const from = x + offset[n];
        const vec f = filter[n];
        UNROLL for (int i = 0; i < outputs; ++i) sum[i] += f * *(const vec *)(from + i * step);
    }
    UNROLL for (int i = 0; i < outputs; ++i) to[i * to_step] = sum[i];
}

// The same at `count` outputs, whose inputs are `step` bytes apart and who lie `to_step` vectors apart.
INLINE void sum_run(const char *x, int64_t step, const int64_t *offset, const vec *filter, int64_t taps, int64_t count,
                    vec *to, int64_t to_step) {
    int64_t i = 0;
    for (; i + OUTPUTS <= count; i += OUTPUTS, x += OUTPUTS * step, to += OUTPUTS * to_step)
        sum_tile(x, step, offset, filter, taps, OUTPUTS, to, to_step);
    for (; i + 3 <= count; i += 3, x += 3 * step, to += 3 * to_step)
        sum_tile(x, step, offset, filter, taps, 3, to, to_step);
    for (; i < count; ++i, x += step, to += to_step) sum_tile(x, step, offset, filter, taps, 1, to, to_step);
}

#define RUN_OF(NAME, STEP) \
    static __attribute__((noinline)) void NAME(const char *x, int64_t step, const int64_t *offset, const vec *filter, \
                                               int64_t taps, int64_t count, vec *to, int64_t to_step) { \
        (void)step; \
        sum_run(x, STEP, offset, filter, taps, count, to, to_step); \
    }
RUN_OF(sum_neighbours, TB_VECTOR)
RUN_OF(sum_seconds, 2 * TB_VECTOR)
RUN_OF(sum_apart, step)

// A row of the outputs of a phase: where in the copy their inputs begin, and where they do. Images lie side by side in both
// where neighbours in a row do; else each image is a run.
typedef struct row {
    int64_t from, to, count, runs, step, to_step;
} row;

static row find_row(const shape *s, int64_t phase, int64_t u, int64_t v) {
    const axis *const d = s->axes, *const h = d + 1, *const w = d + 2;
    const int64_t z = u * d->b + phase / w->b / h->b, y = v * h->b + phase / w->b % h->b, x = phase % w->b;
    const int together = w->a * w->b == 1;
    const int64_t columns = phase_length(w, x), images = s->images;
    return (row){
        copied_at(s, u * d->a, v * h->a, 0, 0), ((z * h->out + y) * w->out + x) * images,
        together ? columns * images : columns, together ? 1 : images, together ? 1 : w->a * images,
        together ? 1 : w->b * images,
    };
}

INLINE int64_t deep_rows(const shape *s, int64_t phase) {
    return phase_length(s->axes, phase / s->axes[2].b / s->axes[1].b);
}
INLINE int64_t high_rows(const shape *s, int64_t phase) {
    return phase_length(s->axes + 1, phase / s->axes[2].b % s->axes[1].b);
}

typedef void runner(const char *, int64_t, const int64_t *, const vec *, int64_t, int64_t, vec *, int64_t);

static void sum_maps(const work *w) {
    const shape *const s = &w->s;
    int64_t done = 0;
    for (int64_t phase = 0; phase < s->phases; done += w->counts[phase++])
        for (int64_t u = 0; u < deep_rows(s, phase); ++u)
            for (int64_t v = 0; v < high_rows(s, phase); ++v) {
                const row r = find_row(s, phase, u, v);
                runner *const run = r.step == 1 ? sum_neighbours : r.step == 2 ? sum_seconds : sum_apart;
                for (int64_t n = 0; n < r.runs; ++n)
                    run((const char *)(w->copy + r.from + n), r.step * TB_VECTOR, w->offset + done, w->filter + done,
                        w->counts[phase], r.count, w->results + r.to + n, r.to_step);
            }
}

// A task: LANES maps.
void tb_depthwise_few(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                      int64_t end) {
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots);
    const work w = new_work(size, slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]));
    const shape *const s = &w.s;
    for (int64_t map = begin * LANES; map < least(end * LANES, s->groups); map += LANES) {
        const int64_t maps = least(LANES, s->groups - map);
        take_maps((const TB_S *)TB_PLACE(IN) + map * s->in_map, s->in_map, maps, w.place, w.copy);
        for (int64_t n = 0; n < s->cells; ++n)
            w.filter[n] = take_filters((const TB_S *)TB_PLACE(FILTERS) + w.cell[n] * s->groups + map, maps);
        sum_maps(&w);
        put_maps(w.results, s->out_map, maps, (TB_R *)TB_PLACE(RESULT) + map * s->out_map);
        TB_FINISH(s->out_map, map, maps, 0, s->out_map);
    }
    give_slot(TB_PLACE(OWN), slot);
}

// To the sums of so many taps: inputs times errors at all outputs.
INLINE void add_taps(const work *w, const int64_t *offset, int taps, vec *sums) {
    const shape *const s = &w->s;
    vec sum[MOST_TAPS];
    int64_t away[MOST_TAPS];
    UNROLL for (int k = 0; k < taps; ++k) sum[k] = (vec){0}, away[k] = offset[k];
    for (int64_t u = 0; u < s->axes[0].out; ++u)
        for (int64_t v = 0; v < s->axes[1].out; ++v) {
            const row r = find_row(s, 0, u, v);
            for (int64_t n = 0; n < r.runs; ++n) {
                const char *x = (const char *)(w->copy + r.from + n);
                const vec *e = w->results + r.to + n;
                for (int64_t i = 0; i < r.count; ++i, x += r.step * TB_VECTOR, e += r.to_step) {
                    const vec error = *e;
                    UNROLL for (int k = 0; k < taps; ++k) sum[k] += error * *(const vec *)(x + away[k]);
                }
            }
        }
    UNROLL for (int k = 0; k < taps; ++k) sums[k] = sum[k];
}

#define TB_ADD(TAPS) \
    static __attribute__((noinline)) void add_##TAPS(const work *w, const int64_t *offset, vec *sums) { \
        add_taps(w, offset, TAPS, sums); \
    }
TB_ADD(1)
TB_ADD(4)
TB_ADD(9)

// The filters' gradient. A task: LANES maps.
void tb_depthwise_few_update(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                             int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots);
    const work w = new_work(size, slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]));
    const shape *const s = &w.s;
    for (int64_t map = begin * LANES; map < least(end * LANES, s->groups); map += LANES) {
        const int64_t maps = least(LANES, s->groups - map);
        take_maps((const TB_S *)TB_PLACE(IN) + map * s->in_map, s->in_map, maps, w.place, w.copy);
        take_maps((const TB_S *)TB_PLACE(FILTERS) + map * s->out_map, s->out_map, maps, 0, w.results);
        for (int64_t n = 0, taken; n < s->cells; n += taken) {
            taken = s->cells - n >= MOST_TAPS ? MOST_TAPS : s->cells - n >= 4 ? 4 : 1;
            (taken == MOST_TAPS ? add_9 : taken == 4 ? add_4 : add_1)(&w, w.offset + n, w.filter + n);
        }
        for (int64_t n = 0; n < s->cells; ++n) {
            TB_R *const to = (TB_R *)TB_PLACE(RESULT) + w.cell[n] * s->groups + map;
            if (maps == LANES) store(to, w.filter[n]);
            else
                for (int64_t l = 0; l < maps; ++l) to[l] = TB_NARROW(w.filter[n][l]);
        }
    }
    give_slot(TB_PLACE(OWN), slot);
}
