// SPDX-License-Identifier: Apache-2.0
// cuda_launch.c — launches on a CUDA device, and products by cuBLAS, as kernels of the runtime: native code starts them
// as any other
//
// `size` is a head and what the call takes as it is without addresses and numbers; `stride` says where addresses go. The
// functions of NVIDIA's libraries are called by address. The first error stays in a word until the host asks for it.
#include "runtime.h"

enum { MOST_WORDS = 512 };
enum { GET_CONTEXT, SET_CONTEXT, CONTEXT, STATUS, CALL, COMMON };
enum {
    STREAM = COMMON, FUNCTION, GRID, BLOCK = GRID + 3, PLACES = BLOCK + 3, SCALARS, SCALARS_AT, WHOLE_AT, WORDS, HEAD
};
enum {
    HANDLE = COMMON, TURN_B, TURN_A, N, M, K, GIVEN, B_STEP, B_STRIDE, A_STEP, A_STRIDE, RESULT, C_STEP, C_STRIDE, BATCHES,
    COMPUTE, ALGORITHM, WIDE, MORE
};

// An address: the word it goes to, which of the launch's, how many bytes further, and how far aligned for whole packs.
typedef struct place {
    int64_t word, pointer, offset, grain;
} place;

typedef int (*get_context)(void **context);
typedef int (*set_context)(void *context);
typedef int (*launch_kernel)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                             void *stream, void **parameters, void **extra);
typedef int (*gemm)(void *handle, int, int, int n, int m, int k, const void *alpha, const void *b, int, int, long long,
                    const void *a, int, int, long long, const void *beta, void *c, int, int, long long, int batches,
                    int compute, int algorithm);

#define AT(WORD) ((void *)(uintptr_t)size[WORD])

// Makes the context current; *before is what was, if that was another.
static int enter(const int64_t *size, void **before) {
    const int status = ((get_context)AT(GET_CONTEXT))(before);
    return status || *before == AT(CONTEXT) ? status : ((set_context)AT(SET_CONTEXT))(AT(CONTEXT));
}

static void leave(const int64_t *size, void *before, int status) {
    int64_t *const first = AT(STATUS);
    if (before != AT(CONTEXT)) ((set_context)AT(SET_CONTEXT))(before);
    if (status && !*first) *first = status;
}

void tb_cuda_launch(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                    int64_t end) {
    int64_t words[MOST_WORDS], misplaced = 0;
    const int64_t *const blank = size + HEAD, *const g = size + GRID, *const b = size + BLOCK;
    const place *const to = (const place *)stride;
    if (begin >= end || size[WORDS] > MOST_WORDS) return;
    for (int64_t i = 0; i < size[WORDS]; i++) words[i] = blank[i];
    for (int64_t i = 0; i < size[PLACES]; i++) {
        const int64_t address = (int64_t)(uintptr_t)ptr[to[i].pointer] + to[i].offset;
        words[to[i].word] = address;
        misplaced |= address & (to[i].grain - 1);
    }
    if (size[WHOLE_AT] >= 0) words[size[WHOLE_AT]] = !misplaced;
    for (int64_t i = 0; i < size[SCALARS]; i++) words[size[SCALARS_AT] + i] = scalar[i];
    uintptr_t nbytes = 8 * (uintptr_t)size[WORDS];
    void *extra[] = {(void *)1, words, (void *)2, &nbytes, (void *)0};  // pointer, size, end
    void *before = 0;
    int status = enter(size, &before);
    if (!status) {
        status = ((launch_kernel)AT(CALL))(AT(FUNCTION), (unsigned)g[0], (unsigned)g[1], (unsigned)g[2], (unsigned)b[0],
                                           (unsigned)b[1], (unsigned)b[2], 0, AT(STREAM), 0, extra);
    }
    leave(size, before, status);
}

// C = A B, or C += A B: `stride` holds which addresses A, B and C are; without a pointer (-1), the offset is the address.
void tb_cuda_product(void *const *ptr, const int64_t *size, const int64_t *stride, const int64_t *scalar, int64_t begin,
                     int64_t end) {
    const double wide[] = {1, (double)size[MORE]};
    const float narrow[] = {1, (float)size[MORE]};
    const void *const one = size[WIDE] ? (const void *)wide : (const void *)narrow;
    const void *const keep = size[WIDE] ? (const void *)(wide + 1) : (const void *)(narrow + 1);
    const place *const of = (const place *)stride;
    char *operand[3];
    void *before = 0;
    (void)scalar;
    if (begin >= end) return;
    for (int i = 0; i < 3; i++) operand[i] = (of[i].pointer < 0 ? (char *)0 : (char *)ptr[of[i].pointer]) + of[i].offset;
    int status = enter(size, &before);
    if (!status) {
        status = ((gemm)AT(CALL))(AT(HANDLE), (int)size[TURN_B], (int)size[TURN_A], (int)size[N], (int)size[M],
                                  (int)size[K], one, operand[1], (int)size[GIVEN], (int)size[B_STEP], size[B_STRIDE],
                                  operand[0], (int)size[GIVEN], (int)size[A_STEP], size[A_STRIDE], keep, operand[2],
                                  (int)size[RESULT], (int)size[C_STEP], size[C_STRIDE], (int)size[BATCHES],
                                  (int)size[COMPUTE], (int)size[ALGORITHM]);
        status = status ? 1000 + status : 0;  // not one of CUresult
    }
    leave(size, before, status);
}
