// SPDX-License-Identifier: Apache-2.0
// conv_copies.h — what the tasks of a convolution's passes work on, and their copies of the input
//
// Copies    Places that are equal modulo the stride are a phase. A task copies the part of the input that its outputs
//           need, phase by phase and with zeros around it: then outputs of one phase, and for each tap their inputs,
//           lie side by side along (column, image), whatever stride, padding and dilation are.
//
//               in, a row of a map:    0 1 2 3 4 5 6     (stride 2, pad 1, three taps)
//               copy, phase 0:         0 2 4 6           tap 1 reads from its start
//               copy, phase 1:       . 1 3 5 .           tap 0 reads from its start, tap 2 from the 1
#ifndef TB_CONV_COPIES_H
#define TB_CONV_COPIES_H

#include "conv_axes.h"

// What the host passes in `size`, and then for each of three axes the members of `axis` up to `pad`.
enum {
    IMAGES = SIZES, MAPS_IN, MAPS_OUT,  // maps of a group
    GROUPS, BACKWARD,
    ROWS, COLUMNS,   // of outputs (of one phase) that a task takes
    CHANNELS,        // that are in work at a time
    FLAT,            // whether a tile goes on from a row to the next
    SPLITS,          // parts of the maps, or segments of the places
    PART_MAPS,       // maps of a part, a multiple of MR
    SHARED,          // whether tasks share copies of the input and copy filters themselves
    SLOTS, SLOT_BYTES,  // of scratch, as tb_conv_needs says
    AXES,
};

typedef struct shape {
    int64_t images, maps_in, maps_out, groups, rows, columns, channels, flat, splits, part_maps, shared;
    axis deep, high, wide;
} shape;

static shape read_shape(const int64_t *size) {
    return (shape){
        size[IMAGES], size[MAPS_IN], size[MAPS_OUT], size[GROUPS], size[ROWS], size[COLUMNS], size[CHANNELS],
        size[FLAT], size[SPLITS], size[PART_MAPS], size[SHARED],
        read_axis(size + AXES, size[BACKWARD]),
        read_axis(size + AXES + AXIS_SIZES, size[BACKWARD]),
        read_axis(size + AXES + 2 * AXIS_SIZES, size[BACKWARD]),
    };
}

// Cells of a channel: its filters' (t, r, s).
INLINE int64_t cells_of(const shape *s) { return s->deep.taps * s->high.taps * s->wide.taps; }

// How outputs of an axis are cut: each phase into blocks of `each`. The first out % b phases have one output more. Blocks
// that begin at the same output of each phase follow each other: their inputs are the same.
static int64_t count_blocks(const axis *x, int64_t each) {
    const int64_t longer = x->out % x->b;
    return longer * ceil_div(x->out / x->b + 1, each) + (x->b - longer) * ceil_div(x->out / x->b, each);
}

static void find_block(const axis *x, int64_t each, int64_t n, int64_t *phase, int64_t *first, int64_t *length) {
    const int64_t all = ceil_div(x->out / x->b, each) * x->b;  // past these only the longer phases have one more
    *phase = n < all ? n % x->b : n - all;
    *first = (n < all ? n : all) / x->b * each;
    *length = least(each, phase_length(x, *phase) - *first);
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
#if defined(TB_PLANES)
    // Rows of the matrix unit's tiles are read fast where they are whole cache lines.
    const int64_t filled = ceil_div(j.pitch, PLACES_A_LINE) * PLACES_A_LINE;
    if (4 * filled <= 5 * j.pitch) j.pitch = filled;
#endif
#if defined(TB_PLANES)
    j.plane = (ceil_div(j.tall * j.pitch, PLACES_A_LINE) + 1) * PLACES_A_LINE;
#else
    j.plane = j.tall * j.pitch + LANES;
#endif
    j.channel = apart(s->deep.taps * s->high.phases * s->wide.phases * j.plane);
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
#ifdef TB_PLAIN
    if (i + LANES / 2 <= count) {
        __builtin_memcpy(to + i, from + i, LANES / 2 * sizeof(TB_T));
        i += LANES / 2;
    }
#endif
    for (; i < count; ++i) to[i] = TB_WIDE(from[i]);
}

// The same in whole vectors, past the end of the run too: for runs behind which there is a gap, or what is written later.
// `end`: where the operand ends that the run is of.
INLINE void clear_over(TB_T *to, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) *(vec *)(to + i) = (vec){0};
}

INLINE void copy_over(const TB_S *from, int64_t count, const TB_S *end, TB_T *to) {
    int64_t i = 0;
    for (; i < count && end - from >= i + LANES; i += LANES) *(vec *)(to + i) = load(from + i);
    for (; i < count; ++i) to[i] = TB_WIDE(from[i]);
}

// The same of every second run of n elements, a power of 2 below LANES.
INLINE void copy_seconds(const TB_S *from, int64_t n, int64_t count, const TB_S *end, TB_T *to) {
    typedef TB_INDEX mask __attribute__((vector_size(TB_VECTOR)));
    mask lane;
    for (int l = 0; l < LANES; ++l) lane[l] = l;
    const mask second = lane + (lane & (TB_INDEX)-n);
    int64_t i = 0;
    for (; i < count && end - from >= 2 * (i + LANES); i += LANES)
        *(vec *)(to + i) = TB_CHOSEN(load(from + 2 * i), load(from + 2 * i + LANES), second);
    for (; i < count; ++i) to[i] = TB_WIDE(from[i + (i & -n)]);
}

// Runs of whole vectors, `apart` from one to the next.
INLINE void copy_vectors(const TB_S *from, int64_t vectors, int64_t apart, int64_t runs, TB_T *to) {
    for (; runs > 0; --runs, from += apart, to += vectors * LANES)
        for (int64_t v = 0; v < vectors; ++v) *(vec *)(to + v * LANES) = load(from + v * LANES);
}

// A vector, without what lies past `count` lanes.
INLINE vec first_lanes(vec x, int64_t count) {
    typedef TB_INDEX mask __attribute__((vector_size(TB_VECTOR)));
    mask lane;
    for (int l = 0; l < LANES; ++l) lane[l] = l;
    return (vec)((mask)x & (mask)(lane < (TB_INDEX)count));
}

// The same of operands that end at `end`.
INLINE vec load_first(const TB_S *from, int64_t count, const TB_S *end) {
    if (end - from >= LANES) return first_lanes(load(from), count);
    vec x = {0};
    for (int64_t l = 0; l < count; ++l) x[l] = TB_WIDE(from[l]);
    return x;
}

// Which columns of a phase exist, of those that a job's copy has, and where the first of them is in a row of the input.
typedef struct span {
    int64_t first, last, from;
} span;

static span find_span(const job *j, int64_t phase) {
    const axis *const x = &j->s->wide;
    const int64_t start = j->column + x->low, after = floor_div(x->in - 1 - phase, x->a) + 1 - start;
    const int64_t first = least(start < 0 ? -start : 0, j->broad);
    return (span){first, after < first ? first : least(after, j->broad), ((start + first) * x->a + phase) * j->s->images};
}

// One row of a phase of the columns: what exists of `in`, zeros around it.
static void copy_row(const job *j, const TB_S *in, const TB_S *end, const span *exists, TB_T *to) {
    const int64_t n = j->s->images, a = j->s->wide.a, first = exists->first, count = exists->last - first;
    const TB_S *from = in + exists->from;
    clear_over(to, first * n);
    to += first * n;
    if (a == 1) copy_over(from, count * n, end, to);
    else if (a == 2 && n < LANES && (n & (n - 1)) == 0) copy_seconds(from, n, count * n, end, to);
    else if (n == 1)
        for (int64_t i = 0; i < count; ++i) to[i] = TB_WIDE(from[i * a]);
    else if (n == LANES) copy_vectors(from, 1, a * n, count, to);
    else if (n % LANES == 0) copy_vectors(from, n / LANES, a * n, count, to);
    else
        for (int64_t u = 0; u < count; ++u) copy_over(from + u * a * n, n, end, to + u * n);
    clear_over(to + count * n, j->pitch - exists->last * n);
}

// The rows of one of the phases that taps read, of a depth's image; `end`: of all images.
static void copy_phase(const job *j, const TB_S *image, const TB_S *end, int64_t phase, TB_T *to) {
    const shape *const s = j->s;
    const int64_t row_phase = s->high.first + phase / s->wide.phases;
    const span exists = find_span(j, s->wide.first + phase % s->wide.phases);
    for (int64_t r = 0; r < j->tall; ++r, to += j->pitch) {
        const int64_t h = (j->row + r + s->high.low) * s->high.a + row_phase;
        if (h >= 0 && h < s->high.in) copy_row(j, image + h * s->wide.in * s->images, end, &exists, to);
        else __builtin_memset(to, 0, sizeof(TB_T) * (unsigned long)j->pitch);
    }
}

INLINE const TB_S *input_end(const shape *s, const TB_S *in) {
    return in + s->groups * s->maps_in * s->deep.in * s->high.in * s->wide.in * s->images;
}

// The image of a channel of the group that outputs meet at the filters' depth t, or none.
static const TB_S *find_image(const job *j, const TB_S *in, int64_t channel, int64_t t) {
    const shape *const s = j->s;
    int64_t shift, from;
    const int serves = reach(&s->deep, t, j->depth % s->deep.b, &shift, &from);
    const int64_t d = (j->depth / s->deep.b + shift) * s->deep.a + from;
    if (!serves || d < 0 || d >= s->deep.in) return 0;
    return in + ((j->group * s->maps_in + channel) * s->deep.in + d) * s->high.in * s->wide.in * s->images;
}

static void copy_input(const job *j, const TB_S *in, int64_t first, int64_t channels, TB_T *copy) {
    const shape *const s = j->s;
    const TB_S *const end = input_end(s, in);
    const int64_t phases = s->high.phases * s->wide.phases;
    for (int64_t c = 0; c < channels; ++c)
        for (int64_t t = 0; t < s->deep.taps; ++t) {
            const TB_S *const image = find_image(j, in, first + c, t);
            TB_T *const to = copy + c * j->channel + t * phases * j->plane;
            for (int64_t phase = 0; image && phase < phases; ++phase)
                copy_phase(j, image, end, phase, to + phase * j->plane);
        }
}

// Elements of the copy in a slot.
INLINE int64_t copied_elements(const shape *s, const job *j) { return s->channels * j->channel + 2 * WIDTH; }

// Before tasks that take slots.
void tb_conv_start(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                   int64_t end) {
    (void)stride, (void)scalar, (void)begin, (void)end;
    free_slots(TB_PLACE(OWN), size[SLOTS]);
}

#endif
