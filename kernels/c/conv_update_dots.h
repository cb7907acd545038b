// SPDX-License-Identifier: Apache-2.0
// conv_update_dots.h — the products of conv_update.c over lanes of places
//
// Tiles     DOT_INPUTS inputs, each from its own address in the copy, meet up to DOT_MAPS maps of errors where they lie.
//           Each pair has a vector of sums, which rests in the slot between jobs; at the end of a part its lanes are added
//           up.
// Pays      for few inputs of an output, where to turn errors takes as long as to multiply them, and for few maps

enum {
    DOT_INPUTS = TB_VECTOR == 64 ? 9 : 4,
    DOT_MAPS = 3,
    MENDED = 1,
};

// Inputs of a map in the sums: whole tiles.
INLINE int64_t dot_inputs(int64_t inputs) { return ceil_div(inputs, DOT_INPUTS) * DOT_INPUTS; }

INLINE int64_t summed_inputs(const shape *s) { return s->maps_in * cells_of(s); }

// Bytes of the copy, of the sums behind it, and of where inputs begin.
INLINE int64_t slot_bytes(const job *j) {
    const int64_t inputs = dot_inputs(j->s->channels * cells_of(j->s)), sums = j->s->part_maps * (int64_t)sizeof(vec);
    return apart(copied_elements(j->s, j)) * (int64_t)sizeof(TB_T) + inputs * (sums + (int64_t)sizeof(TB_T *));
}

// To sums[map][input]: DOT_INPUTS inputs times K maps of errors over rows of `length` places; `next` and `row` elements
// from a map and a row of errors to the next, which end at `end`; `each` sums from a map to the next. Errors `ahead` are
// on their way to the cache meanwhile.
#define TB_DOTS_OF(K) \
    static __attribute__((noinline)) void dots_##K(const TB_T *const *in, int64_t rows, int64_t pitch, int64_t length, \
            const TB_S *errors, int64_t next, int64_t row, const TB_S *end, vec *sums, int64_t each, int64_t ahead) { \
        vec sum[DOT_INPUTS][K]; \
        const TB_T *x[DOT_INPUTS]; \
        UNROLL for (int i = 0; i < DOT_INPUTS; ++i) { \
            x[i] = in[i]; \
            for (int k = 0; k < K; ++k) sum[i][k] = sums[k * each + i]; \
        } \
        for (int64_t at = 0; rows > 0; --rows, errors += row, at += pitch - length) { \
            const int64_t whole = at + length / LANES * LANES, last = length % LANES; \
            const TB_S *e = errors; \
            for (; at < whole; at += LANES, e += LANES) { \
                vec y[K]; \
                for (int k = 0; k < K; ++k) y[k] = load(e + k * next); \
                __builtin_prefetch(e + ahead); \
                UNROLL for (int i = 0; i < DOT_INPUTS; ++i) { \
                    vec value = *(const vec *)(x[i] + at); \
                    if (K > 1) KEEP_IN_REGISTER(value); \
                    for (int k = 0; k < K; ++k) sum[i][k] += value * y[k]; \
                } \
            } \
            if (!last) continue; \
            vec y[K]; \
            for (int k = 0; k < K; ++k) y[k] = load_first(e + k * next, last, end); \
            UNROLL for (int i = 0; i < DOT_INPUTS; ++i) { \
                const vec value = first_lanes(*(const vec *)(x[i] + at), last); \
                for (int k = 0; k < K; ++k) sum[i][k] += value * y[k]; \
            } \
            at += last; \
        } \
        UNROLL for (int i = 0; i < DOT_INPUTS; ++i) \
            for (int k = 0; k < K; ++k) sums[k * each + i] = sum[i][k]; \
    }
TB_DOTS_OF(1)
TB_DOTS_OF(2)
TB_DOTS_OF(3)

// Where in the copy inputs begin, [channel][t][r][s], in whole tiles: past the last it is the last one again.
static void find_dots(const job *j, int64_t channels, const TB_T *copy, const TB_T **in) {
    const int64_t cells = cells_of(j->s), inputs = channels * cells;
    for (int64_t i = 0; i < dot_inputs(inputs); ++i) {
        const int64_t n = least(i, inputs - 1);
        in[i] = copy + n / cells * j->channel + input_place(j, n % cells);
    }
}

// The copy of the input, with zeros for depths of the filters that meet none.
static void copy_depths(const job *j, const part *p, const TB_S *in, TB_T *copy) {
    const int64_t depth = j->s->high.phases * j->s->wide.phases * j->plane;
    copy_input(j, in, p->first, p->channels, copy);
    for (int64_t t = 0; t < j->s->deep.taps; ++t)
        for (int64_t c = 0; c < p->channels && !meets_depth(j, t); ++c) clear(copy + c * j->channel + t * depth, depth);
}

// What update_job does, to the sums in the slot.
static void dots_job(const job *j, const part *p, const TB_S *in, const TB_S *errors, TB_T *memory, int more) {
    static void (*const dots[])(const TB_T *const *, int64_t, int64_t, int64_t, const TB_S *, int64_t, int64_t,
                                const TB_S *, vec *, int64_t, int64_t) = {dots_1, dots_2, dots_3};
    const shape *const s = j->s;
    const int64_t length = j->columns * s->images, row = s->wide.out * s->images, map = s->deep.out * s->high.out * row;
    const int64_t inputs = dot_inputs(p->channels * cells_of(s));
    vec *const sums = (vec *)(memory + apart(copied_elements(s, j)));
    const TB_T **const from = (const TB_T **)(sums + p->maps * inputs);
    if (!more) __builtin_memset(sums, 0, (unsigned long)(p->maps * inputs) * sizeof(vec));
    copy_depths(j, p, in, memory);
    find_dots(j, p->channels, memory, from);
    for (int64_t k = 0, taken; k < p->maps; k += taken) {
        taken = least(DOT_MAPS, p->maps - k);
        for (int64_t i = 0; i < inputs; i += DOT_INPUTS) {
            const int64_t ahead = (DOT_MAPS + least(i / DOT_INPUTS, DOT_MAPS - 1)) * map;
            dots[taken - 1](from + i, j->rows, j->pitch, length, errors + k * map, map, row, p->last_error,
                            sums + k * inputs + i, inputs, ahead);
        }
    }
}

// Lanes of the sums of a part, added up.
static void put_dots(const job *j, const part *p, const TB_T *memory) {
    const int64_t total = p->channels * cells_of(j->s), inputs = dot_inputs(total), pitch = padded_maps(j->s);
    const vec *const sums = (const vec *)(memory + apart(copied_elements(j->s, j)));
    for (int64_t n = 0; n < total; ++n)
        for (int64_t k = 0; k < p->maps; k += LANES) {
            vec r[LANES], sum = {0};
            for (int64_t l = 0; l < LANES; ++l) r[l] = k + l < p->maps ? sums[(k + l) * inputs + n] : (vec){0};
            transpose(r);
            for (int l = 0; l < LANES; ++l) sum += r[l];
            *(vec *)(p->sums + n * pitch + k) = sum;
        }
}
