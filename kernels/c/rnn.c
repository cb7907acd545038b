// SPDX-License-Identifier: Apache-2.0
// rnn.c — the steps of a recurrent layer: a product with the state, and an elementwise kernel, again and again
//
// Computes  for each step t: sums = R state or, with NIN rows of an input, W input + R state; the cell, an ordinary
//           elementwise kernel, makes of the sums and of what it has at step t what it writes there, and the next state
// Macros    TB_T float or double; TB_PLANES where products run on the matrix unit
// Products  rnn_fma.h    any processor
//           rnn_amx.h    with TB_PLANES: a matrix unit, which multiplies sums of bfloat16 numbers
// Blocks    A task does `UNITS` units in all groups of rows that R has (gates), so that the cell follows at once. What the
//           cell reads is brought side by side into buffers of the task, one for each operand and group of rows.
//           A block keeps what is its own (the cell's state) or the same at all steps in these buffers' form.
// Input     W and R are one matrix, [W R], and the rows of a step's input stand before those of the state, where the
//           tasks of the step before put them.
// Weights   R is copied once, in the order in which it is used; a block is done by the same thread in most steps, whose
//           second-level cache then holds its part.
// Order     An element adds up its products one after the other. That depends on shapes alone, never on threads.
// Limits    ROOM elements in the buffers of a task, SLOTS operands of a cell
// Checked   tests/primitives/test_rnn_kernels.py; timed by benchmarks/rnn.py
#include "amx.h"
#include "runtime.h"
#include "vector.h"

typedef TB_T vector __attribute__((vector_size(TB_VECTOR), aligned(sizeof(TB_T)), may_alias));

enum {
    LANES = TB_VECTOR / (int)sizeof(TB_T),
    MOST_VECTORS = 4,   // of samples
#if TB_VECTOR == 64
    SUMS = 24,          // vectors of sums that registers hold
#else
    SUMS = 12,
#endif
    FEW = 8,            // samples at most where lanes are units
    ROOM = (1 << 18) / (int)sizeof(TB_T),
    SLOTS = 64,
};

// What the host passes in `size`. Counts are of elements; places are elements of scratch.
enum {
    NOUT, N, STEPS, REVERSE,
    PRODUCTS,      // groups of `NOUT` rows of R
    STATES,        // groups of `NOUT` rows of the state
    FIRST_IS_ZERO, // whether the first state is zero, and needs no product
    BY_UNITS,      // whether lanes are units
    UNITS,         // units of a block
    WIDTH,         // of a row of buffers and state: samples, and padding
    ROWS, PANEL,   // rows of a tile where lanes are samples; vectors of a tile
    CHUNK,         // steps of k for which a panel of the state stays in the first-level cache
    PLACE_R, PLACE_STATE, PLACE_OWN,
    BUFFERS,       // of a task
    OWNS,          // of these, the first ones that a block keeps
    R_POINTER, R_ROW, R_COLUMN,
    W_POINTER, W_ROW, W_COLUMN,
    X_POINTER, X_ROW, X_COLUMN,
    NIN,           // rows of an input that is multiplied, too, where lanes are samples and no matrix unit; 0: none
    SCRATCH,       // the pointer of the scratch
    RUN,           // tb_run
    CELL,          // the kernel
    CELL_SLOTS,    // its operands
    CELL_SCALARS,  // where its numbers are in `size`
    OPERANDS,      // how many there are
    TABLE,         // for each operand a `part`, then for each slot of the kernel the number of its buffer
};

// An operand: where it lies, how it is used, and its first buffer. Strides in elements; -1 for a pointer that is not.
enum { AT_STEP, BEFORE, OWN, FIXED };
typedef struct part {
    int64_t kind, groups, state, buffer;
    int64_t from, from_row, from_column;
    int64_t first, first_row, first_column;  // BEFORE: what comes before the first step
    int64_t to, to_row, to_column;
} part;

// Whether a block has it in buffers of its own, from step to step.
static inline int is_kept(const part *p) { return p->kind == OWN || p->kind == FIXED; }

typedef struct unroll {
    void *const *ptr;
    const int64_t *size;
    TB_T *scratch;
    const part *parts;
    const int64_t *slots;
    int64_t step;    // in the order of the run; -1 before the first
} unroll;

static inline int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
static inline int64_t ceiling(int64_t x, int64_t y) { return (x + y - 1) / y; }
static inline int64_t buffer_length(const unroll *u) { return u->size[UNITS] * u->size[WIDTH]; }

static inline int64_t time_of(const unroll *u, int64_t step) {
    return u->size[REVERSE] ? u->size[STEPS] - 1 - step : step;
}

static inline TB_T *own_of(const unroll *u, int64_t block) {
    return u->scratch + u->size[PLACE_OWN] + block * u->size[OWNS] * buffer_length(u);
}

static inline int64_t state_length(const unroll *u);
static inline TB_T *state_of(const unroll *u, int64_t step) {
    return u->scratch + u->size[PLACE_STATE] + (step & 1) * state_length(u);
}

static inline void copy(TB_T *restrict to, const TB_T *restrict from, int64_t n) {
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) *(vector *)(to + j) = *(const vector *)(from + j);
    for (; j < n; ++j) to[j] = from[j];
}

#if defined(TB_PLANES)
#include "rnn_amx.h"
#else
#include "rnn_fma.h"
#endif

// Facts ---------------------------------------------------------------------------------------------------------------

// Lanes of a vector; most rows of a tile of 1, 2, … vectors of samples (0: there is no such tile); FEW; ROOM; whether
// the process may use the matrix unit.
static const int most_rows[MOST_VECTORS] = {12, SUMS / 2, SUMS == 24 ? 8 : 0, SUMS == 24 ? 6 : 0};
void tb_rnn_facts(int64_t *out) {
    out[0] = LANES;
    for (int v = 0; v < MOST_VECTORS; ++v) out[1 + v] = most_rows[v];
    out[1 + MOST_VECTORS] = FEW;
    out[2 + MOST_VECTORS] = ROOM;
    out[3 + MOST_VECTORS] = may_use_unit();
}

// Operands ------------------------------------------------------------------------------------------------------------

// Lines of a row of the next step, which lies `ahead` elements further: a row is too short for the processor to see them.
#define FETCH(row, ahead, n, write) \
    for (int64_t line = 0; line < (n); line += 64 / (int64_t)sizeof(TB_T)) __builtin_prefetch((row) + (ahead) + line, write, 2)

// Rows of samples, from memory to rows of a buffer or of the state, whose padding becomes zero.
static void gather_rows(const unroll *u, TB_T *to, const TB_T *from, int64_t row, int64_t column, int64_t rows, int64_t ahead) {
    const int64_t n = u->size[N], width = u->size[WIDTH];
    for (int64_t i = 0; i < rows; ++i, to += width, from += row) {
        if (column == 1) {
            copy(to, from, n);
            FETCH(from, ahead, n, 0);
        } else
            for (int64_t j = 0; j < n; ++j) to[j] = from[j * column];
        for (int64_t j = n; j < width; ++j) to[j] = 0;
    }
}

// The rows of one group of a block, from memory into a buffer; what is beyond them is zero.
static void gather(const unroll *u, TB_T *to, const TB_T *from, int64_t row, int64_t column, int64_t units, int64_t ahead) {
    const int64_t n = u->size[N], width = u->size[WIDTH], all = u->size[UNITS];
    if (u->size[BY_UNITS]) {
        for (int64_t j = 0; j < n; ++j, to += all) {
            for (int64_t i = 0; i < units; ++i) to[i] = from[i * row + j * column];
            for (int64_t i = units; i < all; ++i) to[i] = 0;
        }
        return;
    }
    gather_rows(u, to, from, row, column, units, ahead);
    for (int64_t i = units * width; i < all * width; ++i) to[i] = 0;
}

static void scatter(const unroll *u, const TB_T *from, TB_T *to, int64_t row, int64_t column, int64_t units, int64_t ahead) {
    const int64_t n = u->size[N], width = u->size[WIDTH], all = u->size[UNITS];
    if (u->size[BY_UNITS])
        for (int64_t j = 0; j < n; ++j)
            for (int64_t i = 0; i < units; ++i) to[i * row + j * column] = from[j * all + i];
    else if (column == 1)
        for (int64_t i = 0; i < units; ++i, to += row) {
            copy(to, from + i * width, n);
            FETCH(to, ahead, n, 1);
        }
    else
        for (int64_t i = 0; i < units; ++i)
            for (int64_t j = 0; j < n; ++j) to[i * row + j * column] = from[i * width + j];
}

static inline TB_T *buffer_of(const unroll *u, int64_t number, TB_T *own, TB_T *room) {
    return number < u->size[OWNS] ? own + number * buffer_length(u) : room + (number - u->size[OWNS]) * buffer_length(u);
}

// How much further along a row the next step lies, where there is one that can be fetched.
static inline int64_t ahead(const unroll *u) {
    const int64_t left = u->size[STEPS] - 2 - u->step;
    return left <= 0 ? 0 : u->size[REVERSE] ? -u->size[N] : u->size[N];
}

static void read_part(const unroll *u, const part *p, int64_t first, int64_t units, TB_T *to) {
    const int64_t *const size = u->size, last = u->step == size[STEPS] - 1;
    int64_t row = p->from_row, column = p->from_column, at = 0;
    const TB_T *from = p->from < 0 ? 0 : u->ptr[p->from];
    if (p->kind == BEFORE && last)
        from = u->ptr[p->first], row = p->first_row, column = p->first_column;
    else if (p->kind == AT_STEP)
        at = time_of(u, u->step);
    else if (p->kind == BEFORE)
        at = time_of(u, u->step + 1);
    const int64_t further = p->kind == AT_STEP || p->kind == BEFORE ? ahead(u) : 0;
    for (int64_t g = 0; g < p->groups; ++g, to += buffer_length(u))
        gather(u, to, from + at * size[N] * column + (g * size[NOUT] + first) * row, row, column, units, further);
}

static void write_part(const unroll *u, const part *p, int64_t first, int64_t units, const TB_T *from) {
    const int64_t *const size = u->size, at = p->kind == OWN ? 0 : time_of(u, u->step);
    TB_T *const to = (TB_T *)u->ptr[p->to] + at * size[N] * p->to_column;
    for (int64_t g = 0; g < p->groups; ++g, from += buffer_length(u))
        scatter(u, from, to + (g * size[NOUT] + first) * p->to_row, p->to_row, p->to_column, units,
                p->kind == OWN ? 0 : ahead(u));
}

static void keep_state(const unroll *u, const part *p, int64_t first, int64_t units, const TB_T *from) {
    for (int64_t g = 0; g < p->state; ++g, from += buffer_length(u)) keep(u, from, g * group_rows(u) + first, units);
}

// Steps ---------------------------------------------------------------------------------------------------------------

static void run_cell(const unroll *u, TB_T *own, TB_T *room) {
    const int64_t *const size = u->size, n = buffer_length(u), slots = size[CELL_SLOTS];
    void *ptr[SLOTS];
    int64_t stride[SLOTS];
    for (int64_t s = 0; s < slots; ++s) ptr[s] = buffer_of(u, u->slots[s], own, room), stride[s] = 1;
    const int64_t sizes[] = {n, n, 1, 1, 0, 1, 0};
    ((tb_kernel)size[CELL])(ptr, sizes, stride, size + size[CELL_SCALARS], 0, 1);
}

// A block's share of the rows of the next step's input, from memory to where the state is.
static void bring_input(const unroll *u, int64_t block) {
    const int64_t *const size = u->size, blocks = ceiling(size[NOUT], size[UNITS]), next = u->step + 1;
    if (!size[NIN] || next == size[STEPS]) return;
    const int64_t row = size[X_ROW], column = size[X_COLUMN];
    const int64_t first = size[NIN] * block / blocks, last = size[NIN] * (block + 1) / blocks;
    const TB_T *const from = (const TB_T *)u->ptr[size[X_POINTER]] + time_of(u, next) * size[N] * column + first * row;
    gather_rows(u, state_of(u, next) + first * size[WIDTH], from, row, column, last - first, ahead(u));
}

// Tasks: blocks of units.
static void step(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin, int64_t end) {
    const unroll *const u = ptr[0];
    _Alignas(64) TB_T room[ROOM];
    size = u->size, (void)stride, (void)scalar;
    TB_T *const sums = room;  // the first buffers after the own ones
    begin_products();
    for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * size[UNITS], units = least(size[UNITS], size[NOUT] - first);
        TB_T *const own = own_of(u, block);
        for (int64_t i = 0; i < size[OPERANDS]; ++i)
            if (!is_kept(&u->parts[i]) && u->parts[i].from >= 0)
                read_part(u, &u->parts[i], first, units, buffer_of(u, u->parts[i].buffer, own, room));
        if (u->step == 0 && size[FIRST_IS_ZERO] && !size[NIN])
            for (int64_t i = 0; i < size[PRODUCTS] * buffer_length(u); ++i) sums[i] = 0;
        else
            product(u, block, first, units, sums);
        run_cell(u, own, room);
        for (int64_t i = 0; i < size[OPERANDS]; ++i) {
            const part *const p = &u->parts[i];
            const TB_T *const from = buffer_of(u, p->buffer, own, room);
            if (p->kind != OWN && p->to >= 0) write_part(u, p, first, units, from);
            keep_state(u, p, first, units, from);
        }
        bring_input(u, block);
    }
    end_products();
}

// Tasks: blocks of units, whose weights and own operands are copied.
static void start(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin, int64_t end) {
    const unroll *const u = ptr[0];
    size = u->size, (void)stride, (void)scalar;
    for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * size[UNITS], units = least(size[UNITS], size[NOUT] - first);
        pack_block(u, block);
        bring_input(u, block);
        for (int64_t i = 0; i < size[OPERANDS]; ++i) {
            const part *const p = &u->parts[i];
            if (!is_kept(p)) continue;
            TB_T *const to = buffer_of(u, p->buffer, own_of(u, block), 0);
            read_part(u, p, first, units, to);
            keep_state(u, p, first, units, to);
        }
    }
}

// Tasks: blocks of units, whose own operands are given back.
static void finish(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin, int64_t end) {
    const unroll *const u = ptr[0];
    size = u->size, (void)stride, (void)scalar;
    for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * size[UNITS], units = least(size[UNITS], size[NOUT] - first);
        for (int64_t i = 0; i < size[OPERANDS]; ++i)
            if (u->parts[i].kind == OWN)
                write_part(u, &u->parts[i], first, units, buffer_of(u, u->parts[i].buffer, own_of(u, block), 0));
    }
}

static void launch(unroll *u, tb_kernel fn, int64_t cost) {
    void *self[1] = {u};
    const int64_t none = 0;
    const tb_launch l = {fn, ceiling(u->size[NOUT], u->size[UNITS]), cost, self, &none, &none, &none};
    ((void (*)(const tb_launch *))u->size[RUN])(&l);
}

// One task: all steps. ptr: operands, then scratch; size as above.
void tb_rnn(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin, int64_t end) {
    unroll whole = {ptr, size, ptr[size[SCRATCH]], (const part *)(size + TABLE), 0, -1}, *const u = &whole;
    (void)stride, (void)scalar, (void)begin, (void)end;
    u->slots = size + TABLE + size[OPERANDS] * (int64_t)(sizeof(part) / sizeof(int64_t));
    const int64_t rows = size[NOUT] * size[PRODUCTS], samples = ceiling(size[N], LANES) * LANES;
    launch(u, start, rows * depth(u) / 2);
    const int64_t flops = 2 * rows * depth(u) * (size[BY_UNITS] ? size[N] : samples);
    const int64_t cost = flops / 100 + size[NOUT] * size[N] * size[BUFFERS] / 4;
    for (u->step = 0; u->step < size[STEPS]; ++u->step) launch(u, step, cost);
    launch(u, finish, size[NOUT] * size[N]);
}
