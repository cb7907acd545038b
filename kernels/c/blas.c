// SPDX-License-Identifier: Apache-2.0
// blas.c — a product of two matrices by a BLAS library that the process has loaded
//
// Macro: TB_INT, the library's type of lengths.
//
// A task is a stripe of rows or columns, for which the library uses one thread: its own threads would wait by spinning
// beside those of the pool, and results are the same for any number of threads, since stripes are cut by the shape.
#include "tail.h"

enum {
    MULTIPLY, SET_THREADS, GET_THREADS,  // functions of the library
    M, N, K,
    TURN_A, TURN_B,          // whether an operand's columns lie side by side in memory, not its rows
    LINE_A, LINE_B, LINE_C,  // elements from a row, or column, to the next
    DOWN, STRIPE,            // whether stripes are rows; their length
    RESULT,                  // which pointer the product goes to
    RUN,                     // tb_run
};
enum { BY_ROWS = 101, AS_IT_IS = 111, TURNED = 112 };  // of cblas.h

// How many products are running, of all threads, and how many threads the library had before the first.
static struct { char busy; int running, threads; } all;

static void take_turn(void) {
    while (__atomic_exchange_n(&all.busy, 1, __ATOMIC_ACQUIRE)) {
    }
}

static void enter(const int64_t *size) {
    take_turn();
    if (!all.running++) {
        all.threads = ((int (*)(void))size[GET_THREADS])();
        if (all.threads != 1) ((void (*)(int))size[SET_THREADS])(1);
    }
    __atomic_store_n(&all.busy, 0, __ATOMIC_RELEASE);
}

static void leave(const int64_t *size) {
    take_turn();
    if (!--all.running && all.threads != 1) ((void (*)(int))size[SET_THREADS])(all.threads);
    __atomic_store_n(&all.busy, 0, __ATOMIC_RELEASE);
}

// In a forked child no other thread has a product running. Returns the threads that the library should have again, 0: as
// many as it has.
int tb_blas_forget(void) {
    const int threads = all.running ? all.threads : 0;
    all.busy = 0, all.running = 0;
    return threads;
}

#define TB_PRODUCT(T, NAME)                                                                                            \
    static void NAME##_stripes(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar,    \
                               int64_t begin, int64_t end) {                                                           \
        typedef void multiply(int, int, int, TB_INT, TB_INT, TB_INT, T, const T *, TB_INT, const T *, TB_INT, T, T *,  \
                              TB_INT);                                                                                 \
        for (int64_t at = begin * size[STRIPE]; begin < end; ++begin, at += size[STRIPE]) {                            \
            const int64_t i = size[DOWN] ? at : 0, j = size[DOWN] ? 0 : at, whole = size[DOWN] ? size[M] : size[N];    \
            const int64_t length = at + size[STRIPE] < whole ? size[STRIPE] : whole - at;                              \
            const int64_t rows = size[DOWN] ? length : size[M], columns = size[DOWN] ? size[N] : length;               \
            const T *const a = (const T *)ptr[0] + i * (size[TURN_A] ? 1 : size[LINE_A]);                              \
            const T *const b = (const T *)ptr[1] + j * (size[TURN_B] ? size[LINE_B] : 1);                              \
            T *const c = (T *)ptr[size[RESULT]];                                                                       \
            ((multiply *)size[MULTIPLY])(BY_ROWS, size[TURN_A] ? TURNED : AS_IT_IS, size[TURN_B] ? TURNED : AS_IT_IS,  \
                                         (TB_INT)rows, (TB_INT)columns, (TB_INT)size[K], 1, a, (TB_INT)size[LINE_A],   \
                                         b, (TB_INT)size[LINE_B], 0, c + i * size[LINE_C] + j, (TB_INT)size[LINE_C]);  \
            tb_run_tail(stride, ptr + 2, scalar, (char *)c, sizeof(T), size[LINE_C], i, rows, j, columns);             \
        }                                                                                                              \
    }                                                                                                                  \
    void NAME(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,      \
              int64_t end) {                                                                                           \
        const int64_t whole = size[DOWN] ? size[M] : size[N], stripes = (whole + size[STRIPE] - 1) / size[STRIPE];     \
        const double flops = 2.0 * (double)size[M] * (double)size[N] * (double)size[K];                                \
        const tb_launch stripe = {NAME##_stripes, stripes, (int64_t)(flops / 100), ptr, size, stride, scalar};         \
        (void)begin, (void)end;                                                                                        \
        enter(size);                                                                                                   \
        ((void (*)(const tb_launch *))size[RUN])(&stripe);                                                             \
        leave(size);                                                                                                   \
    }

// One task: the whole product. ptr {a, b, the tail's operands but the product, or the target; scratch}; size as above;
// stride the words of tail.h; scalar the tail's.
TB_PRODUCT(float, tb_blas_f32)
TB_PRODUCT(double, tb_blas_f64)
