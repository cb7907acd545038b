// SPDX-License-Identifier: Apache-2.0
// rnn_fma.h — the products of rnn.c by multiply-adds, on any processor
//
// Lanes     Along the samples where there are many: `rows` of R by `panel` columns of the state at a time, the state as
//           [row][width]. Along the units where there are few: a few samples by vectors of R's rows.
//
//               samples: sum[rows][vectors] += spread(R[k][rows]) * state[k][vectors]     buffers [unit][width]
//               units:   sum[samples][panel] += spread(state[k][samples]) * R[k][panel]     buffers [sample][unit]
//
// Macros    those of rnn.c

enum {
    AHEAD = 48,         // steps of k by which R is fetched ahead, where lanes are samples
    NEXT = 64,          // vectors by which it is where lanes are units
    SQUARE = 16,
};

// Rows of the state that a group has; all rows that are multiplied.
static inline int64_t group_rows(const unroll *u) { return u->size[NOUT]; }
static inline int64_t depth(const unroll *u) { return u->size[NIN] + u->size[STATES] * group_rows(u); }
static inline int64_t state_length(const unroll *u) { return depth(u) * u->size[WIDTH]; }

// Elements of R that a block of units has.
static inline int64_t block_of_R(const unroll *u) {
    const int64_t *const size = u->size, units = size[BY_UNITS] ? size[UNITS] : ceiling(size[UNITS], size[ROWS]) * size[ROWS];
    return size[PRODUCTS] * units * depth(u);
}

// Weights -------------------------------------------------------------------------------------------------------------

// to[k * width + j] = from[j * row + k * column] for k of `depth`; zero from row `n` to row `fill`.
static void pack(TB_T *to, const TB_T *from, int64_t row, int64_t column, int64_t depth, int64_t n, int64_t fill, int64_t width) {
    for (int64_t k0 = 0; k0 < depth; k0 += SQUARE) {
        const int64_t k1 = least(k0 + SQUARE, depth);
        if (column == 1)
            for (int64_t j = 0; j < n; ++j)
                for (int64_t k = k0; k < k1; ++k) to[k * width + j] = from[j * row + k];
        else
            for (int64_t k = k0; k < k1; ++k)
                for (int64_t j = 0; j < n; ++j) to[k * width + j] = from[j * row + k * column];
        for (int64_t k = k0; k < k1; ++k)
            for (int64_t j = n; j < fill; ++j) to[k * width + j] = 0;
    }
}

// Rows of [W R] of a block from unit `i` of group `g` on, `fill` at most, for k from `k0` on.
static void pack_rows(const unroll *u, int64_t block, int64_t g, int64_t i, int64_t k0, int64_t k, int64_t fill, TB_T *to, int64_t width) {
    const int64_t *const size = u->size, unit = block * size[UNITS] + i, first = g * size[NOUT] + unit;
    const int64_t left = least(fill, least(size[UNITS] - i, size[NOUT] - unit)), n = left < 0 ? 0 : left;
    const int64_t of_W = k0 < size[NIN] ? least(k, size[NIN] - k0) : 0, from = k0 + of_W - size[NIN];
    const TB_T *const R = u->ptr[size[R_POINTER]];
    if (of_W) {
        const TB_T *const W = u->ptr[size[W_POINTER]];
        pack(to, W + first * size[W_ROW] + k0 * size[W_COLUMN], size[W_ROW], size[W_COLUMN], of_W, n, fill, width);
    }
    pack(to + of_W * width, R + first * size[R_ROW] + from * size[R_COLUMN], size[R_ROW], size[R_COLUMN], k - of_W, n, fill, width);
}

static void pack_block(const unroll *u, int64_t block) {
    const int64_t *const size = u->size, k = depth(u), units = size[UNITS], panel = size[PANEL] * LANES;
    TB_T *to = u->scratch + size[PLACE_R] + block * block_of_R(u);
    if (size[BY_UNITS]) {
        for (int64_t at = 0; at < size[PRODUCTS] * units; at += LANES)
            pack_rows(u, block, at / units, at % units, 0, k, LANES, to + at / panel * panel * k + at % panel, panel);
        return;
    }
    for (int64_t k0 = 0; k0 < k; k0 += size[CHUNK])
        for (int64_t g = 0; g < size[PRODUCTS]; ++g)
            for (int64_t i = 0; i < units; i += size[ROWS]) {
                const int64_t here = least(size[CHUNK], k - k0);
                pack_rows(u, block, g, i, k0, here, size[ROWS], to, size[ROWS]);
                to += size[ROWS] * here;
            }
}

// Products ------------------------------------------------------------------------------------------------------------

// ROWS rows of R (as [k][ROWS]) by NV vectors of samples.
#define BY_SAMPLES(MR, NV) \
    static void samples_##MR##_##NV(int64_t k, const TB_T *a, const TB_T *b, int64_t width, TB_T *to, int add) { \
        vector sum[MR][NV]; \
        UNROLL for (int i = 0; i < MR; ++i) UNROLL for (int j = 0; j < NV; ++j) sum[i][j] = (vector){0}; \
        for (int64_t p = 0; p < k; ++p, a += MR, b += width) { \
            vector y[NV]; \
            UNROLL for (int j = 0; j < NV; ++j) y[j] = *(const vector *)(b + j * LANES); \
            __builtin_prefetch(a + AHEAD * MR); \
            UNROLL for (int i = 0; i < MR; ++i) { \
                const vector x = a[i] - (vector){0};  /* one load that fills a vector */ \
                UNROLL for (int j = 0; j < NV; ++j) sum[i][j] += x * y[j]; \
            } \
        } \
        UNROLL for (int i = 0; i < MR; ++i) UNROLL for (int j = 0; j < NV; ++j) { \
            vector *const place = (vector *)(to + i * width + j * LANES); \
            if (add) sum[i][j] += *place; \
            *place = sum[i][j]; \
        } \
    }
typedef void (*samples)(int64_t k, const TB_T *a, const TB_T *b, int64_t width, TB_T *to, int add);
#if TB_VECTOR == 64
BY_SAMPLES(12, 1) BY_SAMPLES(12, 2) BY_SAMPLES(8, 3) BY_SAMPLES(6, 4)
static const samples by_samples[MOST_VECTORS] = {samples_12_1, samples_12_2, samples_8_3, samples_6_4};
#else
BY_SAMPLES(12, 1) BY_SAMPLES(6, 2)
static const samples by_samples[MOST_VECTORS] = {samples_12_1, samples_6_2};
#endif

static void product_by_samples(const unroll *u, int64_t block, const TB_T *state, TB_T *to) {
    const int64_t *const size = u->size, rows = size[ROWS], width = size[WIDTH];
    const int64_t all = depth(u), k = u->step == 0 && size[FIRST_IS_ZERO] ? size[NIN] : all;
    const TB_T *R = u->scratch + size[PLACE_R] + block * block_of_R(u);
    for (int64_t k0 = 0; k0 < k; k0 += size[CHUNK]) {
        const int64_t here = least(size[CHUNK], k - k0), next = rows * least(size[CHUNK], all - k0);
        for (int64_t i = 0; i < size[PRODUCTS] * size[UNITS]; i += rows, R += next)  // buffers of sums follow each other
            for (int64_t v = 0; v < width; v += size[PANEL] * LANES)
                by_samples[size[PANEL] - 1](here, R, state + k0 * width + v, width, to + i * width + v, k0 > 0);
    }
}

// MR samples by NV vectors of R's rows (as [k][NV vectors]), one after the other in the groups of a block; a sample's sums
// of a group lie `units` from the next one's.
#define BY_ROWS(MR, NV) \
    static void units_##MR##_##NV(int64_t k, const TB_T *state, const TB_T *R, int64_t units, int64_t at, TB_T *to) { \
        vector sum[MR][NV]; \
        UNROLL for (int i = 0; i < MR; ++i) UNROLL for (int j = 0; j < NV; ++j) sum[i][j] = (vector){0}; \
        for (int64_t p = 0; p < k; ++p, state += MR, R += NV * LANES) { \
            vector y[NV]; \
            UNROLL for (int j = 0; j < NV; ++j) y[j] = *(const vector *)(R + j * LANES); \
            UNROLL for (int j = 0; j < NV; ++j) __builtin_prefetch(R + (NEXT + j) * LANES); \
            UNROLL for (int i = 0; i < MR; ++i) { \
                const vector x = state[i] - (vector){0}; \
                UNROLL for (int j = 0; j < NV; ++j) sum[i][j] += x * y[j]; \
            } \
        } \
        UNROLL for (int j = 0; j < NV; ++j, at += LANES) { \
            TB_T *const place = to + at / units * units * MR + at % units; \
            UNROLL for (int i = 0; i < MR; ++i) *(vector *)(place + i * units) = sum[i][j]; \
        } \
    }
typedef void (*rows)(int64_t k, const TB_T *state, const TB_T *R, int64_t units, int64_t at, TB_T *to);
#define UP_TO_3(NV) BY_ROWS(1, NV) BY_ROWS(2, NV) BY_ROWS(3, NV)
#define UP_TO_8(NV) UP_TO_3(NV) BY_ROWS(4, NV) BY_ROWS(5, NV) BY_ROWS(6, NV) BY_ROWS(7, NV) BY_ROWS(8, NV)
#define NAMES_3(NV) units_1_##NV, units_2_##NV, units_3_##NV
#define NAMES_8(NV) {NAMES_3(NV), units_4_##NV, units_5_##NV, units_6_##NV, units_7_##NV, units_8_##NV}
UP_TO_8(1) UP_TO_8(2) UP_TO_8(4) UP_TO_3(6) UP_TO_3(8)
static const rows by_units[8][FEW] = {NAMES_8(1), NAMES_8(2), {0}, NAMES_8(4), {0}, {NAMES_3(6)}, {0}, {NAMES_3(8)}};

static void product_by_units(const unroll *u, int64_t block, const TB_T *state, TB_T *to) {
    const int64_t *const size = u->size, k = depth(u), panel = size[PANEL] * LANES;
    const TB_T *R = u->scratch + size[PLACE_R] + block * block_of_R(u);
    for (int64_t at = 0; at < size[PRODUCTS] * size[UNITS]; at += panel, R += panel * k)
        by_units[size[PANEL] - 1][size[N] - 1](k, state, R, size[UNITS], at, to);
}

static inline void begin_products(void) {}
static inline void end_products(void) {}

// The sums of a block, one buffer a group.
static void product(const unroll *u, int64_t block, int64_t first, int64_t units, TB_T *to) {
    (void)first, (void)units;
    (u->size[BY_UNITS] ? product_by_units : product_by_samples)(u, block, state_of(u, u->step), to);
}

// State ---------------------------------------------------------------------------------------------------------------

// Rows of the next step's state, from a buffer; padding goes along.
static void keep(const unroll *u, const TB_T *from, int64_t row, int64_t units) {
    const int64_t n = u->size[N], width = u->size[WIDTH];
    TB_T *const state = state_of(u, u->step + 1) + (u->size[NIN] + row) * width;
    if (u->size[BY_UNITS])
        for (int64_t j = 0; j < n; ++j)
            for (int64_t i = 0; i < units; ++i) state[i * n + j] = from[j * u->size[UNITS] + i];
    else
        copy(state, from, units * width);
}
