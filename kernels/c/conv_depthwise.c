// SPDX-License-Identifier: Apache-2.0
// conv_depthwise.c — convolutions whose groups have one map in and out, and both gradients, for any geometry
//
// Computes  what conv.c and conv_update.c do, where each map meets filters of its own
// Copy      of a map, as conv_copies.h makes it: then for any tap the inputs of a row of outputs lie side by side.
//           None is made where whole vectors are of images and taps are few: see conv_in_place.h.
// Sweeps    Rows of taps that read neighbouring rows of the copy pass over it together, up to SLIDE_ROWS of them and two
//           or three columns: a vector of the copy, read once, serves all rows of outputs that it meets. Forward, and back
//           at stride 1, the sums of these rows stay in registers, and move on by a row with each row of the copy; for the
//           filters' gradient the errors of these rows do, and the sums of the taps stay, whose lanes are added up at the
//           end. Rows of the copy that are padding are left out.
//           Back with strides, vectors of a row stay in registers while the taps of a phase pass over them.
// Order     Sums run over rows of the copy and sweeps; for the filters' gradient over places, lane by lane. That depends on
//           shapes alone.
// Bound by  multiply-adds, with large filters; by memory, with many images; with small images, by what each map takes
// Checked   tests/primitives/test_conv_kernels.py; timed by benchmarks/conv.py
#include "conv_in_place.h"

enum {
    MOST_TAPS = 9,                      // of a phase that are in work at a time
    SLIDE_ROWS = 7, SLIDE_COLUMNS = 3,  // of taps of a sweep
    PUT_ROWS = 32,                      // whose sums are put aside
};

// A task's memory: the copy of a map, then sums of a row, of each phase of the columns.
INLINE int64_t line_elements(const shape *s) { return apart(phase_length(&s->wide, 0) * s->images); }
INLINE int64_t held_elements(const shape *s, const job *j) { return apart(copied_elements(s, j)); }

// out: bytes of a slot.
void tb_depthwise_needs(const int64_t *size, int64_t *out) {
    const shape s = read_shape(size);
    const job j = new_job(&s);
    out[0] = (held_elements(&s, &j) + (s.wide.b + PUT_ROWS) * line_elements(&s)) * (int64_t)sizeof(TB_T);
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

// Taps of neighbouring columns and of rows that read neighbouring rows of a plane of the copy. For row u of the outputs the
// first of them reads row (u + shift) a + from of the input. Their cells are `cell` and what follows it.
typedef struct sweep {
    int64_t rows, columns, shift, from;
    int64_t offset[SLIDE_COLUMNS];  // of the first row's inputs
    const int64_t *cell;
} sweep;

// What is the same for all tasks at a depth: the taps of each phase of the rows and columns, one behind the other; where
// outputs have one phase, the same as sweeps, and their cells.
typedef struct plan {
    int64_t depth, *offset, *cell;
    taps *phases;
    int64_t *order, count;
    sweep *sweeps;
} plan;

// The sweeps for which there are loops, as rows and columns.
#define OF_SWEEPS(M) M(1, 1) M(1, 3) M(2, 1) M(2, 3) M(3, 1) M(3, 3) M(5, 1) M(5, 2) M(7, 1) M(7, 2)

// How many of so many rows or columns of taps a sweep takes.
INLINE int64_t sweep_rows(int64_t left) { return left % 5 == 0 || left == 8 ? 5 : left >= 7 ? 7 : left == 4 ? 2 : least(left, 3); }
INLINE int64_t sweep_columns(int64_t left, int64_t rows) {
    const int64_t most = rows > 3 ? 2 : 3;
    return left >= most ? most : 1;
}

// So many rows of taps as sweeps, whose cells go to `cell`.
static void cut_rows(const job *j, plan *p, const int64_t *order, int64_t rows, int64_t **cell) {
    const axis *const hx = &j->s->high;
    const taps *const x = p->phases;
    const int64_t each = j->s->wide.taps;
    for (int64_t first = 0; first < each; first += p->sweeps[p->count - 1].columns) {
        sweep *const w = p->sweeps + p->count++;
        *w = (sweep){rows, sweep_columns(each - first, rows), .cell = *cell};
        reach(hx, x->cell[order[0] * each] / each % hx->taps, 0, &w->shift, &w->from);
        for (int64_t c = 0; c < w->columns; ++c) w->offset[c] = x->offset[order[0] * each + first + c];
        for (int64_t k = 0; k < rows; ++k)
            for (int64_t c = 0; c < w->columns; ++c) *(*cell)++ = x->cell[order[k] * each + first + c];
    }
}

// All taps as sweeps.
static void find_sweeps(const job *j, plan *p) {
    const taps *const x = p->phases;
    const int64_t each = j->s->wide.taps, rows = x->count / each;
    int64_t order[rows + 1], found = 0, *cell = p->order;
    p->count = 0;
    for (int64_t row = 0; row < rows; ++row) {
        int64_t taken = 0, next = row;
        for (int64_t n = 0; n < found; ++n) taken |= order[n] == row;
        if (taken) continue;
        const int64_t first = found;
        while (next < rows) {
            const int64_t below = x->offset[next * each] + j->pitch;
            order[found++] = next;
            while (++next < rows && x->offset[next * each] != below) {}
        }
        for (int64_t n = first, count; n < found; n += count) {
            count = sweep_rows(found - n);
            cut_rows(j, p, order + n, count, &cell);
        }
    }
}

// Rows of the copy with inputs that `outputs` rows, from `row` of a job on, meet at a sweep; counted from that of its first
// tap and row.
INLINE range met_rows(const job *j, const sweep *x, int64_t row, int64_t outputs) {
    const axis *const hx = &j->s->high;
    const int64_t start = j->row + row + x->shift, before = -floor_div(x->from, hx->a) - start;
    const int64_t after = floor_div(hx->in - 1 - x->from, hx->a) + 1 - start;
    return (range){before > 0 ? before : 0, least(after, outputs + x->rows - 1)};
}

INLINE void put_sum(TB_T *to, vec sum, int more) {
    if (more) sum += *(const vec *)to;
    *(vec *)to = sum;
}

// Sums of `rows` x `columns` taps, whose inputs in the copy begin at at[column], neighbouring rows `pitch` apart, over
// `places` places of `outputs` rows, `line` apart. Rows of the copy [first, last) have inputs: each is read once, and serves
// all rows of outputs that it meets, whose sums move on with it. `more`: on sums.
INLINE void slide(const TB_T *const *at, int64_t pitch, const TB_T *filter, int rows, int columns, int64_t first,
                  int64_t last, int64_t outputs, int64_t places, TB_T *to, int64_t line, int more) {
    vec f[SLIDE_ROWS * SLIDE_COLUMNS];
    UNROLL for (int n = 0; n < rows * columns; ++n) f[n] = spread(filter[n]);
    for (int64_t i = 0; i < places; i += LANES) {
        vec sum[SLIDE_ROWS + 1];
        UNROLL for (int k = 0; k <= rows; ++k) sum[k] = (vec){0};
        TB_T *out = to + (first - rows + 1) * line + i;
        for (int64_t row = first; row < last; ++row, out += line) {
            vec x[SLIDE_COLUMNS];
            UNROLL for (int c = 0; c < columns; ++c) x[c] = *(const vec *)(at[c] + row * pitch + i);
            UNROLL for (int k = 0; k < rows; ++k)
                UNROLL for (int c = 0; c < columns; ++c) sum[k] += f[(rows - 1 - k) * columns + c] * x[c];
            if (row >= rows - 1 && row < outputs + rows - 1) put_sum(out, sum[0], more);
            UNROLL for (int k = 0; k < rows; ++k) sum[k] = sum[k + 1];
        }
        for (int k = 0; k < rows - 1; ++k, out += line)
            if (last + k >= rows - 1 && last + k < outputs + rows - 1) put_sum(out, sum[k], more);
    }
}

#define TB_SLIDE(R, C) \
    static __attribute__((noinline)) void slide_##R##x##C(const TB_T *const *at, int64_t pitch, const TB_T *filter, \
            int64_t first, int64_t last, int64_t outputs, int64_t places, TB_T *to, int64_t line, int more) { \
        slide(at, pitch, filter, R, C, first, last, outputs, places, to, line, more); \
    }
OF_SWEEPS(TB_SLIDE)

// Sums of all taps of a job at `outputs` rows from `row` on, to rows `line` apart; `filter`: of the sweeps, in their order.
static void sum_sweeps(const job *j, const plan *p, const TB_T *copy, const TB_T *filter, int64_t row, int64_t outputs,
                       int64_t places, TB_T *to, int64_t line) {
    typedef void slider(const TB_T *const *, int64_t, const TB_T *, int64_t, int64_t, int64_t, int64_t, TB_T *, int64_t, int);
#define TB_SLIDER(R, C) [R - 1][C - 1] = slide_##R##x##C,
    static slider *const sliders[SLIDE_ROWS][SLIDE_COLUMNS] = {OF_SWEEPS(TB_SLIDER)};
    int more = 0;
    for (const sweep *x = p->sweeps; x < p->sweeps + p->count; filter += x->rows * x->columns, ++x) {
        const range met = met_rows(j, x, row, outputs);
        const int64_t first = met.first, last = met.last;
        if (first >= last) continue;
        const TB_T *at[SLIDE_COLUMNS];
        for (int c = 0; c < SLIDE_COLUMNS; ++c) at[c] = copy + row * j->pitch + x->offset[c];
        for (int64_t r = 0; r < outputs && !more; ++r)
            if (r <= first - x->rows || r >= last) clear_over(to + r * line, places);
        sliders[x->rows - 1][x->columns - 1](at, j->pitch, filter, first, last, outputs, places, to, line, more);
        more = 1;
    }
    for (int64_t r = 0; r < outputs && !more; ++r) clear_over(to + r * line, places);
}

// Sums of `count` places to a row of the result. Whole vectors are written where they end before `end`: what follows a row in
// the task's part of a map is written later.
INLINE void put_line(const TB_T *sums, int64_t count, TB_R *to, const TB_R *end) {
    int64_t i = 0;
    for (; i < count && end - to >= i + LANES; i += LANES) store(to + i, *(const vec *)(sums + i));
    for (; i < count; ++i) to[i] = TB_NARROW(sums[i]);
}

// A row of the result from the sums of each phase of its columns, `line` apart: runs of all images by turns.
static void put_row(const shape *s, const TB_T *sums, int64_t line, TB_R *to, const TB_R *end) {
    typedef TB_INDEX mask __attribute__((vector_size(TB_VECTOR)));
    const int64_t n = s->images, b = s->wide.b, count = s->wide.out * n;
    int64_t i = 0;
    if (b == 1) {
        put_line(sums, count, to, end);
        return;
    }
    if (b == 2 && n < LANES && (n & (n - 1)) == 0) {
        const TB_INDEX run = (TB_INDEX)n;
        mask lane;
        for (int l = 0; l < LANES; ++l) lane[l] = l;
        const mask low = ((lane & (-2 * run)) >> 1) + (lane & (run - 1)) + (((lane & run) != 0) & LANES);
        for (; i < count && end - to >= i + 2 * LANES; i += 2 * LANES) {
            const vec x = *(const vec *)(sums + i / 2), y = *(const vec *)(sums + line + i / 2);
            store(to + i, TB_CHOSEN(x, y, low));
            store(to + i + LANES, TB_CHOSEN(x, y, low + LANES / 2));
        }
    }
    for (int64_t run = i / n; run * n < count; ++run) put_line(sums + run % b * line + run / b * n, n, to + run * n, end);
}

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
    if (s->high.b * s->wide.b == 1) find_sweeps(j, p);
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
    if (a * b == 1) {
        const int64_t rows = (end - out) / row, blocks = ceil_div(rows, PUT_ROWS);
        TB_T filter[cells_of(s)];
        for (int64_t n = 0; n < p->phases->count; ++n) filter[n] = TB_WIDE(filters[p->order[n] * s->groups + j->group]);
        for (int64_t n = 0; n < blocks; ++n) {
            const int64_t h = rows * n / blocks, count = rows * (n + 1) / blocks - h;
            sum_sweeps(j, p, copy, filter, h, count, row, sums, line);
            for (int64_t r = 0; r < count; ++r, out += row) put_line(sums + r * line, row, out, end);
        }
        return;
    }
    vec filter[cells_of(s)];
    for (int64_t phase = 0; phase < a * b; ++phase)
        for (int64_t n = 0; n < p->phases[phase].count; ++n) {
            const int64_t *const cell = p->phases[phase].cell + n;
            filter[cell - p->cell] = spread(TB_WIDE(filters[*cell * s->groups + j->group]));
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
    int64_t order[cells_of(&s)];
    sweep sweeps[cells_of(&s)];
    plan p = {-1, offset, cell, phases, order, 0, sweeps};
    readers found;
    pieces in_place;
    const int here = is_in_place(&s, &found);
    in_place.depth = -1;
    for (int64_t task = begin; task < end; ++task) {
        j.group = task % s.groups;
        find_rows(&j, task / s.groups);
        const int64_t first = j.row * s.high.b, count = least(s.rows * s.high.b, s.high.out - first) * row;
        const int64_t map = s.deep.out * s.high.out * row, place = (j.depth * s.high.out + first) * row;
        TB_R *const out = (TB_R *)TB_PLACE(RESULT) + j.group * map + place;
        if (here) {
            cut_rows_here(&j, &found, count / row, &in_place);
            run_rows_here(&j, &found, &in_place, TB_PLACE(IN), TB_PLACE(FILTERS), out);
        } else {
            find_phases(&j, &p);
            copy_input(&j, TB_PLACE(IN), 0, 1, copy);
            run_rows(&j, &p, TB_PLACE(FILTERS), copy, copy + held_elements(&s, &j), out, out + count);
        }
        TB_FINISH(map, j.group, 1, place, count);
    }
    give_slot(TB_PLACE(OWN), slot);
}

// The filters' gradient -----------------------------------------------------------------------------------------------

// A vector of the errors of row `row`, if it is one of `outputs`: `whole`, or the first `count` lanes.
INLINE vec take_errors(const TB_S *errors, int64_t row, int64_t outputs, int64_t length, int64_t count, const TB_S *end,
                       int whole) {
    if (row < 0 || row >= outputs) return (vec){0};
    const TB_S *const from = errors + row * length;
    __builtin_prefetch(from + LANES);  // rows are too many streams for the processor to guess them
    return whole ? load(from) : load_first(from, count, end);
}

// To sums of `rows` x `columns` taps: inputs of a row times the errors of rows row - k. Where only `some` of these are of
// the `outputs`, inputs are not multiplied by zeros in place of the others: they may be infinite.
INLINE void add_products(int64_t row, int rows, int columns, int some, int64_t outputs, const vec *e, const vec *x,
                         vec *sum) {
    UNROLL for (int k = 0; k < rows; ++k)
        if (!some || (row >= k && row - k < outputs))
            UNROLL for (int c = 0; c < columns; ++c) sum[k * columns + c] += e[k] * x[c];
}

// To sums of `rows` x `columns` taps, whose inputs lie as those of `slide`: these times the errors of `outputs` rows, at
// `count` places that are a vector, or the `whole` of one. Errors are read once, and move on with the rows of the copy.
INLINE void add_vector(const TB_T *const *at, int64_t pitch, int rows, int columns, int64_t first, int64_t last,
                       const TB_S *errors, int64_t outputs, int64_t length, int64_t count, const TB_S *end, vec *sum,
                       int whole) {
    vec e[SLIDE_ROWS];
    UNROLL for (int k = 0; k < rows; ++k) e[k] = (vec){0};
    for (int64_t row = first - rows + 1; row < last; ++row) {
        vec x[SLIDE_COLUMNS];
        UNROLL for (int k = rows - 1; k > 0; --k) e[k] = e[k - 1];
        e[0] = take_errors(errors, row, outputs, length, count, end, whole);
        if (row < first) continue;
        UNROLL for (int c = 0; c < columns; ++c) {
            x[c] = *(const vec *)(at[c] + row * pitch);
            if (!whole) x[c] = first_lanes(x[c], count);
        }
        if (row >= rows - 1 && row < outputs) add_products(row, rows, columns, 0, outputs, e, x, sum);
        else add_products(row, rows, columns, 1, outputs, e, x, sum);
    }
}

#define TB_ADD(R, C) \
    static __attribute__((noinline)) void add_##R##x##C(const TB_T *const *at, int64_t pitch, int64_t first, int64_t last, \
            const TB_S *errors, int64_t outputs, int64_t length, const TB_S *end, vec *sums) { \
        const TB_T *x[C]; \
        vec sum[R * C]; \
        UNROLL for (int n = 0; n < R * C; ++n) sum[n] = sums[n]; \
        UNROLL for (int c = 0; c < C; ++c) x[c] = at[c]; \
        for (int64_t i = 0; i < length; i += LANES, errors += LANES) { \
            const int64_t count = length - i; \
            if (count >= LANES) add_vector(x, pitch, R, C, first, last, errors, outputs, length, count, end, sum, 1); \
            else add_vector(x, pitch, R, C, first, last, errors, outputs, length, count, end, sum, 0); \
            UNROLL for (int c = 0; c < C; ++c) x[c] += LANES; \
        } \
        UNROLL for (int n = 0; n < R * C; ++n) sums[n] = sum[n]; \
    }
OF_SWEEPS(TB_ADD)

// The same of all taps of a job; sums of cells.
static void add_sweeps(const job *j, const plan *p, const TB_T *copy, const TB_S *errors, const TB_S *end, vec *sums) {
    typedef void adder(const TB_T *const *, int64_t, int64_t, int64_t, const TB_S *, int64_t, int64_t, const TB_S *, vec *);
#define TB_ADDER(R, C) [R - 1][C - 1] = add_##R##x##C,
    static adder *const adders[SLIDE_ROWS][SLIDE_COLUMNS] = {OF_SWEEPS(TB_ADDER)};
    const int64_t rows = least(j->s->rows, j->s->high.out - j->row), length = j->s->wide.out * j->s->images;
    for (const sweep *x = p->sweeps; x < p->sweeps + p->count; ++x) {
        const range met = met_rows(j, x, 0, rows);
        if (met.first >= met.last) continue;
        const TB_T *at[SLIDE_COLUMNS];
        vec to[SLIDE_ROWS * SLIDE_COLUMNS];
        for (int c = 0; c < SLIDE_COLUMNS; ++c) at[c] = copy + x->offset[c];
        for (int64_t n = 0; n < x->rows * x->columns; ++n) to[n] = sums[x->cell[n]];
        adders[x->rows - 1][x->columns - 1](at, j->pitch, met.first, met.last, errors, rows, length, end, to);
        for (int64_t n = 0; n < x->rows * x->columns; ++n) sums[x->cell[n]] = to[n];
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
    int64_t order[cells_of(&s)];
    sweep sweeps[cells_of(&s)];
    plan p = {-1, offset, cell, &phase, order, 0, sweeps};
    vec sums[cells_of(&s)];
    const TB_S *const errors = TB_PLACE(FILTERS), *const last = errors + s.groups * map;
    readers found;
    pieces in_place;
    const int here = is_in_place(&s, &found);
    in_place.depth = -1;
    for (j.group = begin; j.group < end; ++j.group) {
        for (int64_t n = 0; n < cells_of(&s); ++n) sums[n] = (vec){0};
        for (int64_t block = 0; block < blocks; ++block) {
            find_rows(&j, block);
            const TB_S *const from = errors + j.group * map + (j.depth * s.high.out + j.row) * row;
            if (here) {
                cut_rows_here(&j, &found, least(s.rows, s.high.out - j.row), &in_place);
                add_rows_here(&j, &in_place, TB_PLACE(IN), from, sums);
                continue;
            }
            find_phases(&j, &p);
            copy_input(&j, TB_PLACE(IN), 0, 1, copy);
            add_sweeps(&j, &p, copy, from, last, sums);
        }
        put_sums(&s, sums, j.group, TB_PLACE(RESULT));
    }
    give_slot(TB_PLACE(OWN), slot);
}
