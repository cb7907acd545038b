// SPDX-License-Identifier: Apache-2.0
// gemm_small.c — many products of matrices of a few elements each
//
// Computes  t[i, j] = sum over p of a[i, p] b[p, j]     for each batch, any strides
// Macros    those of gemm.c
// Loops     for each length of k and of rows of t a function, whose columns of b stay in registers: what gemm.c begins a
//           product with would take longer than the product
// Order     An element adds up its k products one after the other.
// Limits    MOST steps of k, and columns
// Bound by  multiply-adds of single numbers
// Checked   tests/engine/test_gemm.py
#include "runtime.h"

enum { MOST = 4, EACH = 64 };  // EACH: batches of a task

// What the host passes in `size`; in `stride` those of a batch, a row and a column of a, b and t.
enum { M, N, K, BATCHES, SWAP };  // SWAP: whether the pointers of a and b come in the other order

static inline __attribute__((always_inline)) void multiply(const TB_A *a, const TB_B *b, TB_T *t, int64_t m, int n, int k,
                                                           const int64_t *stride, int64_t batches) {
    const int64_t ai = stride[1], ap = stride[2], bp = stride[4], bj = stride[5], ti = stride[7], tj = stride[8];
    for (int64_t batch = 0; batch < batches; ++batch, a += stride[0], b += stride[3], t += stride[6]) {
        TB_T right[MOST][MOST];
        for (int p = 0; p < k; ++p)
            for (int j = 0; j < n; ++j) right[p][j] = TB_WIDE_B(b[p * bp + j * bj]);
        for (int64_t i = 0; i < m; ++i) {
            TB_T sum[MOST], left = TB_WIDE_A(a[i * ai]);
            for (int j = 0; j < n; ++j) sum[j] = left * right[0][j];
            for (int p = 1; p < k; ++p) {
                left = TB_WIDE_A(a[i * ai + p * ap]);
                for (int j = 0; j < n; ++j) sum[j] += left * right[p][j];
            }
            for (int j = 0; j < n; ++j) t[i * ti + j * tj] = sum[j];
        }
    }
}

#define EACH_K(M_) M_(1) M_(2) M_(3) M_(4)
#define MULTIPLY(N_, K_) \
    static void multiply_##N_##_##K_(const TB_A *a, const TB_B *b, TB_T *t, int64_t m, const int64_t *stride, \
                                     int64_t batches) { \
        multiply(a, b, t, m, N_, K_, stride, batches); \
    }
#define MULTIPLY_1(K_) MULTIPLY(1, K_)
#define MULTIPLY_2(K_) MULTIPLY(2, K_)
#define MULTIPLY_3(K_) MULTIPLY(3, K_)
#define MULTIPLY_4(K_) MULTIPLY(4, K_)
EACH_K(MULTIPLY_1)
EACH_K(MULTIPLY_2)
EACH_K(MULTIPLY_3)
EACH_K(MULTIPLY_4)

// ptr {a, b, t}. A task: EACH batches.
void tb_gemm_small(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                   int64_t end) {
    typedef void multiplier(const TB_A *, const TB_B *, TB_T *, int64_t, const int64_t *, int64_t);
#define OF_N(N_) {multiply_##N_##_1, multiply_##N_##_2, multiply_##N_##_3, multiply_##N_##_4},
    static multiplier *const multipliers[MOST][MOST] = {OF_N(1) OF_N(2) OF_N(3) OF_N(4)};
    (void)scalar;
    const int64_t first = begin * EACH, last = end * EACH < size[BATCHES] ? end * EACH : size[BATCHES];
    const TB_A *const a = (const TB_A *)ptr[size[SWAP]] + first * stride[0];
    const TB_B *const b = (const TB_B *)ptr[!size[SWAP]] + first * stride[3];
    TB_T *const t = (TB_T *)ptr[2] + first * stride[6];
    multipliers[size[N] - 1][size[K] - 1](a, b, t, size[M], stride, last - first);
}
