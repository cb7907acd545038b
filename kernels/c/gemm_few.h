// SPDX-License-Identifier: Apache-2.0
// gemm_few.h — products with few columns, as gemm.c makes them: a is read once, in the order of memory
//
// Dots      Where k runs side by side in a: sums along k in vectors, of several rows at a time, since memory gives several
//           streams faster than one; and of all columns, so that a number of a comes from memory once: k goes by in
//           blocks for which the columns of b stay in cache.
// Sweeps    Where rows lie side by side in a: LINES steps of k are added to the sums of CHUNK rows (of all columns), which wait in cache.
//           So a comes as a few long streams; along k, each step would touch another page.

#if MANY_REGISTERS
#define DOT_ROWS 8  // two vectors of sums each
#else
#define DOT_ROWS 4
#endif
enum {
    DOT_CHUNK = 512,  // elements of a row that are widened at a time
    DOT_AHEAD = 256,  // elements by which rows of several columns are fetched: their streams are few
    MOST_COLUMNS = 8,
    LINES = 8,
#ifdef TB_PLAIN_A
    CHUNK = 4096,  // sums that wait in the first-level cache, of all columns
#else
    CHUNK = 1024,  // and as many numbers of LINES steps that are widened
#endif
};

// One column of b from step `k0` of the phase on: numbers `step` apart.
static const TB_T *column_of_b(const call *g, const block *at, int64_t column, int64_t k0, int64_t *step) {
    const int64_t *const b_step = pair_of(g, 1);
    if (column >= first_panel(g)) {
        *step = 1;
        return place_of_b(g, at->batch * g->size[SPLITS] + at->split, column) + k0;
    }
    *step = b_step[0];
    const int64_t from = k_begin(g, at->split) + k0;
    return (const TB_T *)g->ptr[!g->size[SWAP]] + batch_offset(g, 1, g->batch + at->batch) + from * b_step[0] + (g->column + column) * b_step[1];
}

// Row `i` of a block of a, from step `k0` of the phase on.
static const TB_A *row_of_a(const call *g, const block *at, int64_t i, int64_t k0) {
    const int64_t *const a_step = pair_of(g, 0);
    const int64_t from = k_begin(g, at->split) + k0;
    return (const TB_A *)g->ptr[g->size[SWAP]] + batch_offset(g, 0, g->batch + at->batch) + (g->row + at->i + i) * a_step[0] + from * a_step[1];
}

// Dots ----------------------------------------------------------------------------------------------------------------

// The sum of all lanes: those of one half added to those of the other, and so on.
static inline TB_T total(vector x) {
    TB_T all[LANES];
    __builtin_memcpy(all, &x, sizeof x);
    UNROLL for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; ++l) all[l] += all[l + half];
    return all[0];
}

// Up to DOT_ROWS rows, each k long and contiguous, times one column.
#define DOTS(ROWS) \
    static void dots_##ROWS(int64_t k, const TB_T *const *a, const TB_T *b, TB_T *out) { \
        vector sum[ROWS][2]; \
        UNROLL for (int i = 0; i < ROWS; ++i) sum[i][0] = sum[i][1] = (vector){0}; \
        int64_t p = 0; \
        for (; p + 2 * LANES <= k; p += 2 * LANES) \
            UNROLL for (int i = 0; i < ROWS; ++i) { \
                sum[i][0] += *(const vector *)(a[i] + p) * *(const vector *)(b + p); \
                sum[i][1] += *(const vector *)(a[i] + p + LANES) * *(const vector *)(b + p + LANES); \
            } \
        TB_T rest[ROWS] = {0}; \
        for (; p < k; ++p) \
            UNROLL for (int i = 0; i < ROWS; ++i) rest[i] += a[i][p] * b[p]; \
        UNROLL for (int i = 0; i < ROWS; ++i) out[i] = total(sum[i][0] + sum[i][1]) + rest[i]; \
    }
DOTS(1) DOTS(2) DOTS(3) DOTS(4)
#if DOT_ROWS == 8
DOTS(5) DOTS(6) DOTS(7) DOTS(8)
#endif
static void (*const dots[DOT_ROWS])(int64_t, const TB_T *const *, const TB_T *, TB_T *) = {
    dots_1, dots_2, dots_3, dots_4,
#if DOT_ROWS == 8
    dots_5, dots_6, dots_7, dots_8,
#endif
};

typedef __typeof__((vector){0} < (vector){0}) places;

static inline places lanes(void) {
    static const int32_t narrow[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const int64_t wide[] = {0, 1, 2, 3, 4, 5, 6, 7};
    places x;
    __builtin_memcpy(&x, sizeof(TB_T) == 4 ? (const void *)narrow : (const void *)wide, sizeof x);
    return x;
}

// The last numbers of a line of k, which do not fill a vector: in its last lanes, zeros before. `left` has the bits of these lanes.
static inline vector last_of(const TB_T *line, int64_t k, places left) {
    TB_T all[LANES] = {0};
    if (k >= LANES)
        return (vector)((places)*(const vector *)(line + k - LANES) & left);
    for (int64_t p = 0; p < k; ++p) all[LANES - k + p] = line[p];
    return *(const vector *)all;
}

// The sums of all lanes of n vectors, as `total` makes them: of two vectors each half of the lanes becomes those of one.
static inline __attribute__((always_inline)) void totals(vector *x, int n, TB_T *out) {
    const int columns = n;
    const places lane = lanes();
    UNROLL for (int half = LANES / 2; half; half /= 2) {
        const places second = (lane & half) != 0, low = lane + (second & (LANES - half)), high = low + half;
        if (n == 1)
            x[0] += TB_CHOSEN(x[0], x[0], lane ^ half);
        else
            UNROLL for (int i = 0; i < n / 2; ++i) x[i] = TB_CHOSEN(x[2 * i], x[2 * i + 1], low) + TB_CHOSEN(x[2 * i], x[2 * i + 1], high);
        n = n > 1 ? n / 2 : 1;
    }
    UNROLL for (int j = 0; j < columns; ++j)
        out[j] = x[j / LANES][j % 2 * (LANES / 2) + j / 2 % 2 * (LANES / 4) + j / 4 % 2 * (LANES / 8)];
}

// COLUMNS columns and ROWS rows, each pair with a vector of sums.
#define STEP(ROWS, COLUMNS, A, B) \
    do { \
        vector x[ROWS]; \
        UNROLL for (int i = 0; i < ROWS; ++i) x[i] = A; \
        UNROLL for (int j = 0; j < COLUMNS; ++j) { \
            vector y = B; \
            KEEP_IN_REGISTER(y); \
            UNROLL for (int i = 0; i < ROWS; ++i) sum[i][j] += x[i] * y; \
        } \
    } while (0)
#define PAIRS(COLUMNS, ROWS) \
    static void pairs_##COLUMNS(int64_t k, const TB_T *const *a, const TB_T *const *b, TB_T *out) { \
        vector sum[ROWS][COLUMNS]; \
        UNROLL for (int i = 0; i < ROWS; ++i) \
            UNROLL for (int j = 0; j < COLUMNS; ++j) sum[i][j] = (vector){0}; \
        int64_t p = 0; \
        for (; p + LANES <= k; p += LANES) { \
            UNROLL for (int i = 0; i < ROWS; ++i) __builtin_prefetch(a[i] + p + DOT_AHEAD); \
            STEP(ROWS, COLUMNS, *(const vector *)(a[i] + p), *(const vector *)(b[j] + p)); \
        } \
        if (p < k) { \
            const places left = lanes() >= (int)(LANES - (k - p)); \
            STEP(ROWS, COLUMNS, last_of(a[i], k, left), last_of(b[j], k, left)); \
        } \
        UNROLL for (int i = 0; i < ROWS; ++i) totals(sum[i], COLUMNS, out + i * COLUMNS); \
    }
#if MANY_REGISTERS
PAIRS(2, 8) PAIRS(4, 6)
#else
PAIRS(2, 4) PAIRS(4, 3)
#endif
#if TB_VECTOR == 64  // elsewhere more columns fill vectors
PAIRS(8, 3)
#endif

// So many rows and columns at a time, by `pairs`, or column by column (0).
typedef struct together {
    int columns, rows;
    void (*pairs)(int64_t k, const TB_T *const *a, const TB_T *const *b, TB_T *out);
} together;

// What is right for as many columns as there are; for so few rows that half of the pairs would be for nothing, one by one:
// gemm.py knows that, too.
static together dots_together(const call *g) {
    static const together of[] = {
        {1, DOT_ROWS, 0}, {2, MANY_REGISTERS ? 8 : 4, pairs_2}, {4, MANY_REGISTERS ? 6 : 3, pairs_4},
#if TB_VECTOR == 64
        {8, 3, pairs_8},
#endif
    };
    const together *found = of;
    while (found->columns < g->size[N]) ++found;
    return g->size[M] > (found->columns <= 4 ? 3 : 1) ? *found : (together){(int)g->size[N], DOT_ROWS, 0};
}

// Rows that are taken together, or what is left of them, for `k` steps from `k0` of the phase, times all columns.
static void rows_by_columns(const call *g, const block *at, int64_t i, int64_t k0, int64_t k, const TB_T *const *column,
                            const together *by, sums to, int add) {
    const int rows = (int)least(by->rows, at->rows - i);
    const int64_t a_row = pair_of(g, 0)[0];
    const TB_A *const a = row_of_a(g, at, i, k0);
    const TB_T *line[DOT_ROWS];
    TB_T sum[DOT_ROWS * MOST_COLUMNS];
#ifdef TB_PLAIN_A
    for (int r = 0; r < rows; ++r) line[r] = a + r * a_row;
#else
    TB_T wide[DOT_ROWS][DOT_CHUNK];
    for (int r = 0; r < rows; ++r) {
        for (int64_t p = 0; p < k; ++p) wide[r][p] = TB_WIDE_A(a[r * a_row + p]);
        line[r] = wide[r];
    }
#endif
    for (int r = rows; r < by->rows; ++r) line[r] = line[r - 1];
    if (by->pairs)
        by->pairs(k, line, column, sum);
    for (int j = 0; j < by->columns && !by->pairs; ++j) {
        TB_T of_rows[DOT_ROWS];
        dots[rows - 1](k, line, column[j], of_rows);
        for (int r = 0; r < rows; ++r) sum[r * by->columns + j] = of_rows[r];
    }
    TB_T *const t = to.at + (g->row + at->i + i) * to.row + (g->column + at->j) * to.column;
    for (int r = 0; r < rows; ++r)
        for (int64_t j = 0; j < at->columns; ++j) {
            TB_T *const place = t + r * to.row + j * to.column;
            *place = (add ? *place : 0) + sum[r * by->columns + j];
        }
}

// All rows for a block of k, then those of the next; of a narrow type a part of some rows at a time, which is widened once.
static void dots_of_block(const call *g, const block *at, int64_t k, sums to) {
    const together by = dots_together(g);
#ifdef TB_PLAIN_A
    const int64_t rows = at->rows;
#else
    const int64_t rows = by.rows;
#endif
    for (int64_t first = 0; first < at->rows; first += rows) {
        int64_t k0 = 0;
        do {
            const int64_t here = least(g->size[BLOCK_K], k - k0), last = least(first + rows, at->rows);
            const TB_T *column[MOST_COLUMNS];  // past the last it is the last one again, as with rows
            for (int j = 0; j < by.columns; ++j) {
                int64_t side_by_side;
                column[j] = j < at->columns ? column_of_b(g, at, at->j + j, k0, &side_by_side) : column[j - 1];
            }
            for (int64_t i = first; i < last; i += by.rows)
                rows_by_columns(g, at, i, k0, here, column, &by, to, k0 > 0 || g->phase > 0);
            k0 += here;
        } while (k0 < k);
    }
}

// Sweeps --------------------------------------------------------------------------------------------------------------

// Adds so many steps of k, `a_k` apart, times x to the sums of n rows.
#define SWEEP(STEPS) \
    static void sweep_##STEPS(int64_t n, const TB_T *a, int64_t a_k, const TB_T *x, TB_T *sum) { \
        vector all[STEPS]; \
        UNROLL for (int u = 0; u < STEPS; ++u) all[u] = x[u] - (vector){0}; \
        int64_t i = 0; \
        for (; i + LANES <= n; i += LANES) { \
            vector v = *(const vector *)(sum + i); \
            UNROLL for (int u = 0; u < STEPS; ++u) v += *(const vector *)(a + u * a_k + i) * all[u]; \
            *(vector *)(sum + i) = v; \
        } \
        for (; i < n; ++i) \
            UNROLL for (int u = 0; u < STEPS; ++u) sum[i] += a[u * a_k + i] * x[u]; \
    }
SWEEP(1)
SWEEP(8)

// LINES steps of k from `k0` of the phase, or one, of `rows` rows from `i` of a block: added to the sums of all columns.
static void sweep_lines(const call *g, const block *at, int64_t i, int64_t rows, int64_t k0, int steps, TB_T *sum) {
    const TB_A *const a = row_of_a(g, at, i, k0);
    int64_t a_k = pair_of(g, 0)[1];
#ifdef TB_PLAIN_A
    const TB_T *const lines = a;
#else
    TB_T lines[LINES * CHUNK];
    for (int u = 0; u < steps; ++u)
        for (int64_t r = 0; r < rows; ++r) lines[u * CHUNK + r] = TB_WIDE_A(a[u * a_k + r]);
    a_k = CHUNK;
#endif
    for (int64_t j = 0; j < at->columns; ++j) {
        int64_t step;
        const TB_T *const b = column_of_b(g, at, at->j + j, k0, &step);
        TB_T x[LINES];
        for (int u = 0; u < steps; ++u) x[u] = b[u * step];
        (steps == LINES ? sweep_8 : sweep_1)(rows, lines, a_k, x, sum + j * rows);
    }
}

static void sweeps_of_block(const call *g, const block *at, int64_t k, sums to) {
    TB_T sum[CHUNK];
    const int64_t each = CHUNK / at->columns;
    for (int64_t i = 0; i < at->rows; i += each) {
        const int64_t rows = least(each, at->rows - i);
        for (int64_t r = 0; r < at->columns * rows; ++r) sum[r] = 0;
        int64_t k0 = 0;
        for (; k0 + LINES <= k; k0 += LINES) sweep_lines(g, at, i, rows, k0, LINES, sum);
        for (; k0 < k; ++k0) sweep_lines(g, at, i, rows, k0, 1, sum);
        for (int64_t j = 0; j < at->columns; ++j) {
            TB_T *const t = to.at + (g->row + at->i + i) * to.row + (g->column + at->j + j) * to.column;
            const TB_T *const made = sum + j * rows;
            for (int64_t r = 0; r < rows; ++r) t[r * to.row] = g->phase ? t[r * to.row] + made[r] : made[r];
        }
    }
}

// Tasks: blocks of rows by segments of k by batches.
static void multiply(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                         int64_t end) {
    const call *const g = ptr[0];
    (void)size, (void)stride, (void)scalar;
    for (int64_t task = begin; task < end; ++task) {
        const block at = block_of(g, task);
        const int64_t batch = g->batch + at.batch, k = k_end(g, at.split) - k_begin(g, at.split);
        const sums to = sums_of(g, batch, at.split);
        (pair_of(g, 0)[1] == 1 ? dots_of_block : sweeps_of_block)(g, &at, k, to);
        if (g->phase == g->phases - 1 && g->size[SPLITS] == 1)
            finish(g, batch, g->row + at.i, g->column + at.j, at.rows, at.columns, &to);
    }
}
