// SPDX-License-Identifier: Apache-2.0
// conv_depthwise.c — convolutions whose groups have one map in and out, and both gradients, for any geometry
//
// Computes  what conv.c and conv_update.c do, where each map meets filters of its own
// Copy      of a map, as conv_copies.h makes it: then for any tap the inputs of a row of outputs lie side by side.
// Sums      forward and back, vectors of a row stay in registers while the taps pass over them; for the filters'
//           gradient a vector for each tap passes over the places, and its lanes are added up at the end.
// Order     Sums run over taps; for the filters' gradient over places, lane by lane. That depends on shapes alone.
// Bound by  loads of the copy: one for a multiply-add; by memory, with many images
// Checked   tests/primitives/test_conv_kernels.py; timed by benchmarks/conv.py
#include "conv_copies.h"

enum {
    MOST_TAPS = 9,        // that are in work at a time
    SQUARE_ROWS = 16,     // whose sums are put aside
    SQUARE_PLACES = 256,  // of a row at most: neighbours then lie near each other
};

// A task's memory: the copy of a map, then sums of a row, of each phase of the columns.
INLINE int64_t line_elements(const shape *s) { return apart(phase_length(&s->wide, 0) * s->images); }
INLINE int64_t held_elements(const shape *s, const job *j) { return apart(copied_elements(s, j)); }

// out: bytes of a slot.
void tb_depthwise_needs(const int64_t *size, int64_t *out) {
    const shape s = read_shape(size);
    const job j = new_job(&s);
    out[0] = (held_elements(&s, &j) + (s.wide.b + SQUARE_ROWS) * line_elements(&s)) * (int64_t)sizeof(TB_T);
}

// Taps that serve a phase and meet the images at a depth, in the order of their inputs: where in the copy the first input
// of a row is, and the number of the filters' cell.
typedef struct taps {
    int64_t count, *offset, *cell;
} taps;

static void find_taps(const job *j, int64_t row_phase, int64_t column_phase, taps *found) {
    const shape *const s = j->s;
    const axis *const hx = &s->high, *const wx = &s->wide;
    found->count = 0;
    for (int64_t n = 0; n < cells_of(s); ++n) {
        const int64_t cell = wx->backward ? cells_of(s) - 1 - n : n, t = cell / wx->taps / hx->taps;
        int64_t shift[3], from[3];
        if (!reach(&s->deep, t, j->depth % s->deep.b, shift, from)) continue;
        if (!reach(hx, cell / wx->taps % hx->taps, row_phase, shift + 1, from + 1)) continue;
        if (!reach(wx, cell % wx->taps, column_phase, shift + 2, from + 2)) continue;
        const int64_t depth = (j->depth / s->deep.b + shift[0]) * s->deep.a + from[0];
        if (depth < 0 || depth >= s->deep.in) continue;
        const int64_t plane = ((t * hx->phases + from[1] - hx->first) * wx->phases + from[2] - wx->first) * j->plane;
        found->offset[found->count] = plane + (shift[1] - hx->low) * j->pitch + (shift[2] - wx->low) * s->images;
        found->cell[found->count++] = cell;
    }
}

// How many of so many taps: numbers for which there are loops.
INLINE int64_t taps_of(int64_t left) { return left >= MOST_TAPS ? MOST_TAPS : left >= 4 ? 4 : left >= 2 ? 2 : 1; }

// Sums over `count` taps at `places` places, and up to a vector beyond. `more`: on sums.
INLINE void sum_taps(const TB_T *from, const int64_t *offset, const vec *filter, int count, int64_t places, TB_T *to,
                     int more) {
    const TB_T *x[MOST_TAPS];
    vec f[MOST_TAPS];
    for (int n = 0; n < count; ++n) x[n] = from + offset[n], f[n] = filter[n];
    for (int64_t i = 0; i < places; i += LANES) {
        vec sum = more ? *(const vec *)(to + i) : (vec){0};
        UNROLL for (int n = 0; n < count; ++n) sum += f[n] * *(const vec *)(x[n] + i);
        *(vec *)(to + i) = sum;
    }
}

// Sums over all taps of a phase.
static void sum_line(const TB_T *from, const taps *x, const vec *filter, int64_t places, TB_T *to) {
    if (!x->count) clear_over(to, places);
    for (int64_t n = 0, taken; n < x->count; n += taken) {
        taken = taps_of(x->count - n);
        if (taken == 9 && !n) sum_taps(from, x->offset, filter, 9, places, to, 0);
        else if (taken == 9) sum_taps(from, x->offset + n, filter + n, 9, places, to, 1);
        else if (taken == 4) sum_taps(from, x->offset + n, filter + n, 4, places, to, n > 0);
        else if (taken == 2) sum_taps(from, x->offset + n, filter + n, 2, places, to, n > 0);
        else sum_taps(from, x->offset + n, filter + n, 1, places, to, n > 0);
    }
}

// Whether taps are those of a 3 x 3 filter, whose rows read neighbouring rows of the copy: each row then serves three rows
// of outputs.
static int is_square(const job *j, const taps *x) {
    int square = x->count == 9;
    for (int n = 0; n < 9 && square; ++n)
        square = x->offset[n] == x->offset[0] + n / 3 * j->pitch + n % 3 * (x->offset[1] - x->offset[0]);
    return square;
}

// Sums of such taps over rows of a strip of vectors; `to` has rows `line` apart.
static void sum_square(const job *j, const TB_T *from, const taps *x, const vec *filter, int64_t rows, int64_t places,
                       TB_T *to, int64_t line) {
    const int64_t apart = x->offset[1] - x->offset[0];
    vec f[9];
    UNROLL for (int n = 0; n < 9; ++n) f[n] = filter[n];
    from += x->offset[0];
    for (int64_t i = 0; i < places; i += LANES) {
        vec above = {0}, here = {0};  // sums of the outputs that end with the next row, and with the one after it
        for (int64_t row = 0; row < rows + 2; ++row) {
            const TB_T *const at = from + row * j->pitch + i;
            vec sum = above, below = {0};
            above = here;
            UNROLL for (int n = 0; n < 3; ++n) {
                const vec y = *(const vec *)(at + n * apart);
                sum += f[6 + n] * y;
                above += f[3 + n] * y;
                below += f[n] * y;
            }
            here = below;
            if (row > 1) *(vec *)(to + (row - 2) * line + i) = sum;
        }
    }
}

// The numbers of two lines by turns, as vectors.
INLINE void mix(vec a, vec b, vec *first, vec *second) {
    typedef TB_INDEX mask __attribute__((vector_size(TB_VECTOR)));
    mask low;
    for (int l = 0; l < LANES; ++l) low[l] = l / 2 + l % 2 * LANES;
    *first = TB_CHOSEN(a, b, low);
    *second = TB_CHOSEN(a, b, low + LANES / 2);
}

// A row of the result from the sums of each phase of its columns, `line` apart. Whole vectors are written where they end
// before `end`: what follows a row in the task's part of a map is written later.
static void put_row(const shape *s, const TB_T *sums, int64_t line, TB_R *to, const TB_R *end) {
    const int64_t n = s->images, b = s->wide.b, count = s->wide.out * n;
    int64_t i = 0;
    if (b == 1)
        for (; i < count && end - to >= i + LANES; i += LANES) store(to + i, *(const vec *)(sums + i));
    if (b == 2 && n == 1)
        for (; i < count && end - to >= i + 2 * LANES; i += 2 * LANES) {
            vec x[2];
            mix(*(const vec *)(sums + i / 2), *(const vec *)(sums + line + i / 2), x, x + 1);
            store(to + i, x[0]);
            store(to + i + LANES, x[1]);
        }
    if (b == 1)
        for (; i < count; ++i) to[i] = TB_NARROW(sums[i]);
    for (sums += i / b; i < count; sums += n)
        for (int64_t phase = 0; phase < b && i < count; ++phase)
            for (int64_t image = 0; image < n; ++image, ++i) to[i] = TB_NARROW(sums[phase * line + image]);
}

// What is the same for all tasks at a depth: the taps of each phase of the rows and columns, one behind the other.
typedef struct plan {
    int64_t depth, *offset, *cell;
    taps *phases;
} plan;

static void find_phases(const job *j, plan *p) {
    const shape *const s = j->s;
    if (p->depth == j->depth) return;
    p->depth = j->depth;
    taps next = {.offset = p->offset, .cell = p->cell};
    for (int64_t phase = 0; phase < s->high.b * s->wide.b; ++phase) {
        find_taps(j, phase / s->wide.b, phase % s->wide.b, &next);
        p->phases[phase] = next;
        next.offset += next.count, next.cell += next.count;
    }
}

// Where a task's rows of outputs begin.
INLINE void find_rows(job *j, int64_t block) {
    const shape *const s = j->s;
    const int64_t blocks = ceil_div(phase_length(&s->high, 0), s->rows);
    j->depth = block / blocks;
    j->row = block % blocks * s->rows;
}

// Rows of a map's result, up to `end`, from the copy of its input.
static void run_rows(const job *j, const plan *p, const TB_S *filters, const TB_T *copy, TB_T *sums, TB_R *out,
                     const TB_R *end) {
    const shape *const s = j->s;
    const int64_t a = s->high.b, b = s->wide.b, line = line_elements(s), row = s->wide.out * s->images;
    vec filter[cells_of(s)];
    for (int64_t phase = 0; phase < a * b; ++phase)
        for (int64_t n = 0; n < p->phases[phase].count; ++n) {
            const int64_t *const cell = p->phases[phase].cell + n;
            filter[cell - p->cell] = spread(TB_WIDE(filters[*cell * s->groups + j->group]));
        }
    if (a * b == 1 && row <= SQUARE_PLACES && is_square(j, p->phases)) {
        const int64_t rows = (end - out) / row;
        for (int64_t h = 0; h < rows; h += SQUARE_ROWS) {
            const int64_t count = least(SQUARE_ROWS, rows - h);
            sum_square(j, copy + h * j->pitch, p->phases, filter, count, row, sums, line);
            for (int64_t r = 0; r < count; ++r, out += row) put_row(s, sums + r * line, line, out, end);
        }
        return;
    }
    for (int64_t h = 0; out < end; ++h, out += row) {
        const TB_T *const from = copy + h / a * j->pitch;
        for (int64_t phase = 0; phase < b; ++phase) {
            const taps *const x = p->phases + h % a * b + phase;
            const int64_t places = phase_length(&s->wide, phase) * s->images;
            sum_line(from, x, filter + (x->cell - p->cell), places, sums + phase * line);
        }
        put_row(s, sums, line, out, end);
    }
}

// A task: rows of a map's result at a depth. A tail needs a stride of 1 of the results.
void tb_depthwise(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                  int64_t end) {
    const shape s = read_shape(size);
    job j = new_job(&s);
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots), row = s.wide.out * s.images;
    TB_T *const copy = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]);
    int64_t offset[cells_of(&s)], cell[cells_of(&s)];
    taps phases[s.high.b * s.wide.b];
    plan p = {-1, offset, cell, phases};
    for (int64_t task = begin; task < end; ++task) {
        j.group = task % s.groups;
        find_rows(&j, task / s.groups);
        find_phases(&j, &p);
        copy_input(&j, TB_PLACE(IN), 0, 1, copy);
        const int64_t first = j.row * s.high.b, count = least(s.rows * s.high.b, s.high.out - first) * row;
        const int64_t map = s.deep.out * s.high.out * row, place = (j.depth * s.high.out + first) * row;
        TB_R *const out = (TB_R *)TB_PLACE(RESULT) + j.group * map + place;
        run_rows(&j, &p, TB_PLACE(FILTERS), copy, copy + held_elements(&s, &j), out, out + count);
        TB_FINISH(map, j.group, 1, place, count);
    }
    give_slot(TB_PLACE(OWN), slot);
}

// The filters' gradient -----------------------------------------------------------------------------------------------

// To sums of `count` taps: their inputs times errors, over rows of `length` places.
INLINE void add_taps(const TB_T *from, const int64_t *offset, int count, int64_t rows, int64_t pitch, int64_t length,
                     const TB_S *errors, const TB_S *end, vec *sums) {
    vec sum[MOST_TAPS];
    for (int n = 0; n < count; ++n) sum[n] = sums[n];
    for (int64_t row = 0; row < rows; ++row, from += pitch, errors += length) {
        int64_t i = 0;
        for (; i + LANES <= length; i += LANES) {
            const vec y = load(errors + i);
            UNROLL for (int n = 0; n < count; ++n) sum[n] += *(const vec *)(from + offset[n] + i) * y;
        }
        if (i == length) continue;
        const vec y = load_first(errors + i, length - i, end);
        UNROLL for (int n = 0; n < count; ++n)
            sum[n] += first_lanes(*(const vec *)(from + offset[n] + i), length - i) * y;
    }
    for (int n = 0; n < count; ++n) sums[n] = sum[n];
}

// The same of all taps of a job.
static void add_job(const job *j, const taps *x, const TB_T *copy, const TB_S *errors, const TB_S *end, vec *sums) {
    const int64_t rows = least(j->s->rows, j->s->high.out - j->row), length = j->s->wide.out * j->s->images;
    for (int64_t n = 0, taken; n < x->count; n += taken) {
        taken = taps_of(x->count - n);
        const int64_t *const offset = x->offset + n;
        vec to[MOST_TAPS];
        for (int64_t i = 0; i < taken; ++i) to[i] = sums[x->cell[n + i]];
        if (taken == 9) add_taps(copy, offset, 9, rows, j->pitch, length, errors, end, to);
        else if (taken == 4) add_taps(copy, offset, 4, rows, j->pitch, length, errors, end, to);
        else if (taken == 2) add_taps(copy, offset, 2, rows, j->pitch, length, errors, end, to);
        else add_taps(copy, offset, 1, rows, j->pitch, length, errors, end, to);
        for (int64_t i = 0; i < taken; ++i) sums[x->cell[n + i]] = to[i];
    }
}

// Lanes of the sums of a map's cells, added up.
static void put_sums(const shape *s, const vec *sums, int64_t map, TB_R *out) {
    for (int64_t cell = 0; cell < cells_of(s); cell += LANES) {
        const int64_t count = least(LANES, cells_of(s) - cell);
        vec r[LANES], total = {0};
        for (int64_t i = 0; i < LANES; ++i) r[i] = i < count ? sums[cell + i] : (vec){0};
        transpose(r);
        for (int l = 0; l < LANES; ++l) total += r[l];
        for (int64_t i = 0; i < count; ++i) out[(cell + i) * s->groups + map] = TB_NARROW(total[i]);
    }
}

// A task: a map.
void tb_depthwise_update(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,
                         int64_t begin, int64_t end) {
    (void)stride, (void)scalar;
    const shape s = read_shape(size);
    job j = new_job(&s);
    const int64_t slots = size[SLOTS], slot = take_slot(TB_PLACE(OWN), slots), row = s.wide.out * s.images;
    TB_T *const copy = slot_memory(TB_PLACE(OWN), slots, slot, size[SLOT_BYTES]);
    const int64_t blocks = s.deep.out * ceil_div(s.high.out, s.rows), map = s.deep.out * s.high.out * row;
    int64_t offset[cells_of(&s)], cell[cells_of(&s)];
    taps phase;
    plan p = {-1, offset, cell, &phase};
    vec sums[cells_of(&s)];
    const TB_S *const errors = TB_PLACE(FILTERS), *const last = errors + s.groups * map;
    for (j.group = begin; j.group < end; ++j.group) {
        for (int64_t n = 0; n < cells_of(&s); ++n) sums[n] = (vec){0};
        for (int64_t block = 0; block < blocks; ++block) {
            find_rows(&j, block);
            find_phases(&j, &p);
            copy_input(&j, TB_PLACE(IN), 0, 1, copy);
            const TB_S *const from = errors + j.group * map + (j.depth * s.high.out + j.row) * row;
            add_job(&j, &phase, copy, from, last, sums);
        }
        put_sums(&s, sums, j.group, TB_PLACE(RESULT));
    }
    give_slot(TB_PLACE(OWN), slot);
}
