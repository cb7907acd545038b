// SPDX-License-Identifier: Apache-2.0
// gemm_short.c — products of few steps of k, as gradients of weights are for few samples
//
// Computes  t[i, j] = sum over p of a[i, p] b[p, j]     any strides, but columns of t side by side
// Macros    those of gemm.c; operands are stored as TB_T
// Copies    of b a block of columns, of a the rows of a task, near the core: what lies far apart would compete for places in
//           the first-level cache, and lines on their way there would wait for those that are written
// Loops     some rows of a block, VECTORS vectors of sums at a time: the processor sees a few rows that are written in
//           order, and has their lines ready. Tiles of gemm.c go down a narrow panel instead, and wait for them.
//           Meanwhile the next block of b is asked for, a line at a time.
// Tasks     rows by columns; all rows, where b is in no cache and should be read once
// Order     An element adds up its k products one after the other, as in a tile.
// Limits    MOST steps of k; a vector of columns at least
// Bound by  the bandwidth of storing t and reading b, or multiply-adds
// Checked   tests/engine/test_gemm.py
#include "gemm_tile.h"
#include "plus_product.h"
#include "runtime.h"

PLUS_PRODUCT(plus_product, vector)

enum {
    ROWS = 6,
    VECTORS = MANY_REGISTERS ? 4 : 2,
    MOST = 63,
    MOST_TAKEN = 60,  // rows of a that are copied together
    COPIED = 24576 / (int)sizeof(TB_T),  // elements of a block of b, about
};

// What the host passes in `size`; in `stride` those of a row and a step of k of a, of a step of k and a column of b, and of
// a row of t. SWAP: whether the pointers of a and b come in the other order; PAST: whether t goes past the caches.
enum { M, N, K, TASK_ROWS, TASK_COLUMNS, SWAP, PAST };

// What comes into the second-level cache meanwhile: `rows` rows of the next block of b, `apart` elements from one another.
typedef struct coming {
    const TB_T *from;
    int64_t rows, apart;
} coming;

static inline void fetch(const coming *next, int64_t j, int columns) {
    const TB_T *from = next->from + j;
    for (int64_t p = 0; p < next->rows; ++p, from += next->apart)
        for (int l = 0; l < columns; l += LINE) __builtin_prefetch(from + l, 0, 2);
}

// The sums of `rows` rows and `vectors` vectors, of copies [k][rows] and [k][width]; rows of t are `t_row` apart.
static inline __attribute__((always_inline)) void sums(int rows, int vectors, int64_t k, const TB_T *a, const TB_T *b,
                                                       int64_t width, TB_T *t, int64_t t_row, int past) {
    vector sum[ROWS][VECTORS];
    UNROLL for (int i = 0; i < rows; ++i)
        UNROLL for (int j = 0; j < vectors; ++j) sum[i][j] = (vector){0};
    for (int64_t p = 0; p < k; ++p, a += rows, b += width) {
        vector y[VECTORS];
        UNROLL for (int j = 0; j < vectors; ++j) {
            y[j] = *(const vector *)(b + j * LANES);
            KEEP_IN_REGISTER(y[j]);
        }
        UNROLL for (int i = 0; i < rows; ++i) {
            const vector x = a[i] - (vector){0};
            UNROLL for (int j = 0; j < vectors; ++j) sum[i][j] = plus_product(sum[i][j], x, y[j]);
        }
    }
    UNROLL for (int i = 0; i < rows; ++i)
        UNROLL for (int j = 0; j < vectors; ++j) {
            vector *const to = (vector *)(t + i * t_row + j * LANES);
            if (past)
                store_past(to, (whole_vector)sum[i][j]);
            else
                *to = sum[i][j];
        }
}

// All columns of a block; of the last vector some are made twice.
#define COLUMNS_OF(COUNT) \
    static void rows_##COUNT(int64_t k, const TB_T *a, const TB_T *b, int64_t width, TB_T *t, int64_t row, int past, \
                             const coming *next) { \
        int64_t j = 0; \
        for (; j + VECTORS * LANES <= width; j += VECTORS * LANES) { \
            fetch(next, j, VECTORS * LANES); \
            sums(COUNT, VECTORS, k, a, b + j, width, t + j, row, past); \
        } \
        for (; j + LANES <= width; j += LANES) sums(COUNT, 1, k, a, b + j, width, t + j, row, past); \
        j = width - LANES; \
        if (width % LANES) sums(COUNT, 1, k, a, b + j, width, t + j, row, 0); \
    }
COLUMNS_OF(1)
COLUMNS_OF(4)
COLUMNS_OF(6)

// The copy of a block of b, [k][width].
static void copy_columns(int64_t k, int64_t width, const TB_T *b, const int64_t *stride, TB_T *copy) {
    for (int64_t p = 0; p < k; ++p, b += stride[2], copy += width)
        if (stride[3] == 1)
            for (int64_t j = 0; j < width; ++j) copy[j] = b[j];
        else
            for (int64_t j = 0; j < width; ++j) copy[j] = b[j * stride[3]];
}

// Rows that are taken at a time, where so many are left.
static inline int rows_of(int64_t left) { return left == 6 || left == 7 || left >= 10 ? 6 : left >= 4 ? 4 : 1; }

// The copy of some rows of a, [k][rows_of(...)] one after the other.
static void copy_rows(int64_t k, int64_t rows, const TB_T *a, const int64_t *stride, TB_T *copy) {
    for (int64_t i = 0; i < rows; i += rows_of(rows - i))
        for (int64_t p = 0; p < k; ++p)
            for (int r = 0; r < rows_of(rows - i); ++r) *copy++ = a[(i + r) * stride[0] + p * stride[1]];
}

// ptr {a, b, t}. A task: TASK_ROWS rows of TASK_COLUMNS columns; the last ones have what is left, too.
void tb_gemm_short(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                   int64_t end) {
    TB_T left[MOST_TAKEN * MOST], right[COPIED + MOST * LANES];
    const int64_t m = size[M], n = size[N], k = size[K], t_row = stride[4], across = n / size[TASK_COLUMNS];
    const int64_t block = COPIED / k / (VECTORS * LANES) * (VECTORS * LANES);
    const TB_T *const a = ptr[size[SWAP]], *const b = ptr[!size[SWAP]];
    const int past = size[PAST] && ((uintptr_t)ptr[2] | (uintptr_t)(t_row * (int64_t)sizeof(TB_T))) % TB_VECTOR == 0;
    (void)scalar;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t first = task / across * size[TASK_ROWS], rows = least(size[TASK_ROWS], m - first);
        const int64_t from = task % across * size[TASK_COLUMNS];
        const int64_t last = task % across == across - 1 ? n : from + size[TASK_COLUMNS];
        TB_T *const t = (TB_T *)ptr[2] + first * t_row;
        for (int64_t j = from, width; j < last; j += width) {
            width = last - j < block + LANES ? last - j : block;  // no block is narrower than a vector
            copy_columns(k, width, b + j * stride[3], stride, right);
            const int64_t asked = stride[3] == 1 && last - j - width >= width ? k : 0;
            for (int64_t i = 0, taken; i < rows; i += taken) {
                const int64_t copied = i % MOST_TAKEN, there = least(MOST_TAKEN, rows - i + copied);
                if (!copied && (j == from || rows > MOST_TAKEN))
                    copy_rows(k, there, a + (first + i) * stride[0], stride, left);
                taken = rows_of(there - copied);
                const int64_t p = i * asked / rows;
                const coming next = {b + (j + width) + p * stride[2], (i + taken) * asked / rows - p, stride[2]};
                (taken == 6 ? rows_6 : taken == 4 ? rows_4 : rows_1)(k, left + copied * k, right, width, t + i * t_row + j,
                                                                     t_row, past, &next);
            }
        }
    }
    if (past)
        finish_stores();
}
