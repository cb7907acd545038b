// SPDX-License-Identifier: Apache-2.0
// references.c — errors in units in the last place, the search of all 2^32 float32 inputs, and a stop-watch
//
// A float32 result is held against the C library's double function, a float64 result against its long double function
// (64 bits of mantissa or more). TB_VECTOR_LIBM asks for the vector versions of the double functions (libmvec of
// glibc >= 2.35, at most 4 ulp of a double), without which the search takes hours.
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#ifdef TB_VECTOR_LIBM
#define VECTORISED(f) __attribute__((simd("notinbranch"), const, nothrow)) double f(double);
VECTORISED(exp)
VECTORISED(exp2)
VECTORISED(expm1)
VECTORISED(log)
VECTORISED(log2)
VECTORISED(log10)
VECTORISED(log1p)
VECTORISED(tanh)
VECTORISED(erf)
VECTORISED(erfc)
VECTORISED(sin)
VECTORISED(cos)
VECTORISED(tan)
VECTORISED(asin)
VECTORISED(acos)
VECTORISED(atan)
VECTORISED(sinh)
VECTORISED(cosh)
VECTORISED(asinh)
VECTORISED(acosh)
VECTORISED(atanh)
#endif

// ---- exact values -----------------------------------------------------------------------------------------------

typedef void reference_f32(double *restrict out, const float *restrict a, const float *restrict b, long n);

#define M(f) f
#define UNARY(name, exact)                                                                                          \
    void exact_##name##_f32(double *restrict out, const float *restrict a, const float *restrict b, long n) {      \
        (void)b;                                                                                                    \
        for (long i = 0; i < n; i++) {                                                                              \
            double x = a[i];                                                                                        \
            out[i] = exact;                                                                                         \
        }                                                                                                           \
    }
#define BINARY(name, exact)                                                                                         \
    void exact_##name##_f32(double *restrict out, const float *restrict a, const float *restrict b, long n) {      \
        for (long i = 0; i < n; i++) {                                                                              \
            double x = a[i];                                                                                        \
            double y = b[i];                                                                                        \
            out[i] = exact;                                                                                         \
        }                                                                                                           \
    }
#include "functions.h"
#undef M
#undef UNARY
#undef BINARY

// ---- errors -----------------------------------------------------------------------------------------------------

// Both sides saturate at 2^128: a result that overflows is wrong only as far as the largest number was off. Results
// that are NaN on one side only are counted elsewhere.
static double saturate_f32(double x) { return x > 0x1p128 ? 0x1p128 : x < -0x1p128 ? -0x1p128 : x; }

static double error_f32(float got, double expected) {
    double e = saturate_f32(expected);
    uint64_t bits;
    memcpy(&bits, &e, 8);
    int64_t exponent = (int64_t)(bits >> 52 & 2047);
    exponent = exponent < 897 ? 897 : exponent > 1150 ? 1150 : exponent;
    bits = (uint64_t)(exponent - 23) << 52;
    double ulp;
    memcpy(&ulp, &bits, 8);
    double error = fabs(saturate_f32(got) - e) / ulp;
    return error == error ? error : 0.0;
}

void errors_f32(double *restrict out, const float *restrict got, const double *restrict expected, long n) {
    for (long i = 0; i < n; i++) {
        int one_is_nan = (got[i] != got[i]) != (expected[i] != expected[i]);
        out[i] = one_is_nan ? INFINITY : error_f32(got[i], expected[i]);
    }
}

static double error_f64(double got, long double expected) {
    const long double limit = 0x1p1023L * 2;
    long double g = got > 0x1p1023 * 1.9999999999999998 ? limit : got < -0x1p1023 * 1.9999999999999998 ? -limit : got;
    long double e = expected > limit ? limit : expected < -limit ? -limit : expected;
    int exponent;
    frexpl(e, &exponent);
    exponent = e == 0 || exponent < -1021 ? -1021 : exponent > 1024 ? 1024 : exponent;
    return (double)(fabsl(g - e) / ldexpl(1, exponent - 53));
}

// The exact value rounded to double, and the errors of the results `got`; infinity where one side only is NaN
static double compare_f64(double got, long double expected) {
    int nans = (got != got) + 2 * (expected != expected);
    return nans == 3 ? 0.0 : nans ? INFINITY : error_f64(got, expected);
}

#define M(f) f##l
#define LOOPS(name, y_value, exact)                                                                            \
    void exact_##name##_f64(double *out, const double *a, const double *b, long n) {                           \
        for (long i = 0; i < n; i++) {                                                                         \
            long double x = a[i];                                                                              \
            long double y = y_value;                                                                           \
            (void)y;                                                                                           \
            out[i] = (double)(exact);                                                                          \
        }                                                                                                      \
    }                                                                                                          \
    void errors_##name##_f64(double *out, const double *got, const double *a, const double *b, long n) {       \
        for (long i = 0; i < n; i++) {                                                                         \
            long double x = a[i];                                                                              \
            long double y = y_value;                                                                           \
            (void)y;                                                                                           \
            out[i] = compare_f64(got[i], exact);                                                               \
        }                                                                                                      \
    }
#define UNARY(name, exact) LOOPS(name, 0, exact)
#define BINARY(name, exact) LOOPS(name, b[i], exact)
#include "functions.h"

// ---- all 2^32 inputs --------------------------------------------------------------------------------------------

typedef void kernel_f32(float *restrict out, const float *restrict a, const float *restrict b, long n);

typedef struct {
    double error;            // the largest, in ulp
    int64_t mismatches;      // results that are NaN on one side only
    uint32_t worst;          // bits of the input with the largest error
    uint32_t mismatch;       // bits of the input of one mismatch
} found;

enum { BLOCK = 1 << 14, CHUNK = 1 << 20, MOST_THREADS = 64 };

static void search_block(found *f, const float *in, const float *got, const double *expected) {
    double largest = 0.0;
    int64_t mismatches = 0;
    for (long i = 0; i < BLOCK; i++) {
        double error = error_f32(got[i], expected[i]);
        largest = error > largest ? error : largest;
        mismatches += (got[i] != got[i]) != (expected[i] != expected[i]);
    }
    if (largest <= f->error && !mismatches) return;
    for (long i = 0; i < BLOCK; i++) {
        double error = error_f32(got[i], expected[i]);
        if (error > f->error) {
            f->error = error;
            memcpy(&f->worst, in + i, 4);
        }
        if ((got[i] != got[i]) != (expected[i] != expected[i])) memcpy(&f->mismatch, in + i, 4);
    }
    f->mismatches += mismatches;
}

typedef struct {
    kernel_f32 *kernel;
    reference_f32 *reference;
    uint64_t *next;          // the first input that nobody has taken
    found result;
} task;

static void *worker(void *argument) {
    static _Thread_local float in[BLOCK];
    static _Thread_local float got[BLOCK];
    static _Thread_local double expected[BLOCK];
    task *t = argument;
    for (;;) {
        uint64_t start = __atomic_fetch_add(t->next, CHUNK, __ATOMIC_RELAXED);
        if (start >> 32) return 0;
        for (uint64_t first = start; first < start + CHUNK; first += BLOCK) {
            for (uint32_t i = 0; i < BLOCK; i++) {
                uint32_t bits = (uint32_t)first + i;
                memcpy(in + i, &bits, 4);
            }
            t->kernel(got, in, in, BLOCK);
            t->reference(expected, in, in, BLOCK);
            search_block(&t->result, in, got, expected);
        }
    }
}

// The largest error of a float32 function of one argument over all its inputs. Returns 0 or pthread_create's error.
int search_f32(kernel_f32 *kernel, reference_f32 *reference, int threads, found *result) {
    task tasks[MOST_THREADS];
    pthread_t ids[MOST_THREADS];
    uint64_t next = 0;
    int started = 0;
    int failed = 0;
    memset(result, 0, sizeof *result);
    for (; started < threads && started < MOST_THREADS; started++) {
        tasks[started] = (task){kernel, reference, &next, {0}};
        failed = pthread_create(ids + started, 0, worker, tasks + started);
        if (failed) break;
    }
    for (int t = 0; t < started; t++) {
        pthread_join(ids[t], 0);
        found part = tasks[t].result;
        if (part.mismatches) result->mismatch = part.mismatch;
        result->mismatches += part.mismatches;
        if (part.error > result->error) {
            result->error = part.error;
            result->worst = part.worst;
        }
    }
    return failed;
}

// ---- speed ------------------------------------------------------------------------------------------------------

typedef void any_kernel(void *out, const void *a, const void *b, long n);

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

// Nanoseconds of the fastest of `rounds` calls
double fastest(any_kernel *kernel, void *out, const void *a, const void *b, long n, int rounds) {
    double best = INFINITY;
    for (int round = 0; round < rounds; round++) {
        double start = now();
        kernel(out, a, b, n);
        double taken = now() - start;
        best = taken < best ? taken : best;
    }
    return best;
}
