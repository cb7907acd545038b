// SPDX-License-Identifier: Apache-2.0
// rnn_amx.h — the products of rnn.c on the matrix unit of amx.h
//
// Weights   R is copied as blocks of a: [tile][steps of k][one block, or two where the samples are half a block]
// State     beside its rows the same numbers as blocks of b: [32 samples][steps of k]. k has whole blocks for each group.
// Limits    TB_T is float. Where a sum is not finite, multiply-adds make it anew (`mend`).
// Macros    TB_PLANES

// Elements of a block's copy, for each number of one plane that it holds.
static inline int64_t packed(int64_t n) { return n * PLANES * 2 / (int64_t)sizeof(TB_T); }

// Rows of the state that a group has: whole blocks of units.
static inline int64_t group_rows(const unroll *u) { return ceiling(u->size[NOUT], u->size[UNITS]) * u->size[UNITS]; }
static inline int64_t depth(const unroll *u) { return u->size[STATES] * group_rows(u); }
static inline int64_t steps_of_k(const unroll *u) { return depth(u) / EDGE; }
static inline int64_t state_length(const unroll *u) {
    return depth(u) * (u->size[WIDTH] + packed(ceiling(u->size[WIDTH], EDGE) * EDGE));
}

// Blocks of the state of samples from `first` on, a multiple of EDGE.
static inline char *state_blocks(const unroll *u, int64_t step, int64_t first) {
    return (char *)(state_of(u, step) + depth(u) * u->size[WIDTH] + depth(u) * packed(first));
}

static inline int64_t block_of_R(const unroll *u) { return packed(u->size[PRODUCTS] * u->size[UNITS] * depth(u)); }

// Weights -------------------------------------------------------------------------------------------------------------

// Half a block of a: n rows and k columns of R, and zeros.
static void pack_half(char *to, const TB_T *from, int64_t row, int64_t column, int64_t n, int64_t k) {
    TB_T x[HALF * EDGE] = {0};
    if (row == 1) {
        for (int64_t p = 0; p < k; ++p) copy(x + p * HALF, from + p * column, n);
        half_of_columns(to, x, HALF, 0);
        return;
    }
    for (int64_t i = 0; i < n; ++i)
        if (column == 1) copy(x + i * EDGE, from + i * row, k);
        else
            for (int64_t p = 0; p < k; ++p) x[i * EDGE + p] = from[i * row + p * column];
    half_of_rows(to, x, EDGE, 0);
}

static void pack_block(const unroll *u, int64_t block) {
    const int64_t *const size = u->size, row = size[R_ROW], column = size[R_COLUMN], rows = group_rows(u);
    const int64_t side = size[ROWS] / EDGE, steps = steps_of_k(u), first = block * size[UNITS];
    char *const to = (char *)(u->scratch + size[PLACE_R] + block * block_of_R(u));
    for (int64_t at = 0; at < size[PRODUCTS] * size[UNITS]; at += HALF) {
        const int64_t group = at / size[UNITS], unit = first + at % size[UNITS], n = least(HALF, size[NOUT] - unit);
        const int64_t tile = at / size[ROWS] * side * steps + at % size[ROWS] / EDGE;
        const TB_T *const from = (const TB_T *)u->ptr[size[R_POINTER]] + (group * size[NOUT] + unit) * row;
        for (int64_t p = 0; p < steps; ++p) {
            const int64_t state = p * EDGE / rows, k = p * EDGE % rows;
            pack_half(to + (tile + p * side) * BLOCK_BYTES + at % EDGE / HALF * UNIT, from + (state * size[NOUT] + k) * column,
                      row, column, n < 0 ? 0 : n, least(EDGE, size[NOUT] - k));
        }
    }
}

// State ---------------------------------------------------------------------------------------------------------------

// Rows of the next step's state, from a buffer. What is beyond the units is zero.
static void keep(const unroll *u, const TB_T *from, int64_t row, int64_t units) {
    const int64_t width = u->size[WIDTH];
    copy(state_of(u, u->step + 1) + row * width, from, units * width);
    for (int64_t i = 0; i < u->size[UNITS]; i += EDGE)
        for (int64_t j = 0; j < width; j += HALF) {
            TB_T x[EDGE * HALF] = {0};
            for (int64_t p = 0; p < least(EDGE, units - i); ++p) copy(x + p * HALF, from + (i + p) * width + j, HALF);
            char *const to = state_blocks(u, u->step + 1, j / EDGE * EDGE) + (row + i) / EDGE * BLOCK_BYTES;
            half_of_columns(to + j % EDGE / HALF * UNIT, x, HALF, 1);
        }
}

// Products ------------------------------------------------------------------------------------------------------------

static inline void begin_products(void) { begin_tiles(); }
static inline void end_products(void) { end_tiles(); }

// 64 rows, the halves of two blocks of a, by half a block of b. Small products first, as add_block.
#define ROW_HALF(PLANE, H) LOAD(4, a + ((H) / 2) * BLOCK_BYTES + (PLANE) * 2 * UNIT + (H) % 2 * UNIT, 64)
#define EACH_HALF(PLANE, ADDED) \
    ROW_HALF(PLANE, 0); ADDED(0); ROW_HALF(PLANE, 1); ADDED(1); ROW_HALF(PLANE, 2); ADDED(2); ROW_HALF(PLANE, 3); ADDED(3)
#define ADD_LAST(SUM) ADD(SUM, 4, 5)
#define ADD_SECOND(SUM) ADD(SUM, 4, 5); ADD(SUM, 4, 6)
#define ADD_FIRST(SUM) ADD(SUM, 4, 6); ADD(SUM, 4, 7); ADD(SUM, 4, 5)
static void add_narrow(int64_t blocks, const char *a, const char *b) {
    for (; blocks; --blocks, a += 2 * BLOCK_BYTES, b += BLOCK_BYTES) {
        LOAD(5, b, 64); LOAD(6, b + 2 * UNIT, 64); LOAD(7, b + 4 * UNIT, 64);
        EACH_HALF(2, ADD_LAST);
        EACH_HALF(1, ADD_SECOND);
        EACH_HALF(0, ADD_FIRST);
    }
}

static void narrow_tile(int64_t blocks, const char *a, const char *b, char *to) {
    clear_sums();
    add_narrow(blocks, a, b);
    STORE(0, to, 64); STORE(1, to + UNIT, 64); STORE(2, to + 2 * UNIT, 64); STORE(3, to + 3 * UNIT, 64);
}

// Whether numbers side by side are all finite: 0 times any other is no number.
static int row_is_finite(const TB_T *x, int64_t vectors) {
    vector zeros = {0};
    TB_T rest = 0;
    for (int64_t v = 0; v < vectors; ++v) zeros += *(const vector *)(x + v * LANES) * 0;
    for (int l = 0; l < LANES; ++l) rest += zeros[l];
    return rest == 0;
}

static TB_T sum_of(const unroll *u, int64_t row, int64_t sample) {
    const int64_t *const size = u->size;
    const TB_T *const R = (const TB_T *)u->ptr[size[R_POINTER]] + row * size[R_ROW], *const state = state_of(u, u->step);
    TB_T sum = 0;
    for (int64_t s = 0; s < size[STATES]; ++s)
        for (int64_t k = 0; k < size[NOUT]; ++k)
            sum += R[(s * size[NOUT] + k) * size[R_COLUMN]] * state[(s * group_rows(u) + k) * size[WIDTH] + sample];
    return sum;
}

// Makes the rows of sums that are not finite anew.
static void mend(const unroll *u, int64_t first, int64_t units, TB_T *to) {
    const int64_t *const size = u->size;
    for (int64_t g = 0; g < size[PRODUCTS]; ++g)
        for (int64_t i = 0; i < units; ++i) {
            TB_T *const row = to + (g * size[UNITS] + i) * size[WIDTH];
            if (!row_is_finite(row, size[WIDTH] / LANES))
                for (int64_t j = 0; j < size[N]; ++j) row[j] = sum_of(u, g * size[NOUT] + first + i, j);
        }
}

// The sums of a block, one buffer a group.
static void product(const unroll *u, int64_t block, int64_t first, int64_t units, TB_T *to) {
    const int64_t *const size = u->size, width = size[WIDTH], steps = steps_of_k(u);
    const char *R = (const char *)(u->scratch + size[PLACE_R] + block * block_of_R(u));
    for (int64_t i = 0; i < size[PRODUCTS] * size[UNITS]; i += size[ROWS], R += steps * size[ROWS] / EDGE * BLOCK_BYTES)
        for (int64_t j = 0; j < width; j += EDGE) {
            const char *const state = state_blocks(u, u->step, j);
            char *const sums = (char *)(to + i * width + j);
            if (width == HALF) {
                narrow_tile(steps, R, state, sums);
                continue;
            }
            clear_sums();
            add_blocks(0, steps, R, 64, UNIT, BLOCK_BYTES, state);
            store_sums(sums, width * (int64_t)sizeof(TB_T));
        }
    mend(u, first, units, to);
}
