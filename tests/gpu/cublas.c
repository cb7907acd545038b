// SPDX-License-Identifier: Apache-2.0
// cublas.c — the part of cuBLAS that the engine calls, on the host's memory: for tests without a device
//
// Matrices lie by columns. Types and operations have cuBLAS's numbers. `calls` counts; status 7 is an invalid value.
#include <stddef.h>
#include <string.h>

static int handles;
int calls;

int cublasCreate_v2(void **handle) {
    *handle = &handles;
    ++handles;
    return 0;
}
int cublasSetStream_v2(void *handle, void *stream) { return handle == &handles && stream == NULL ? 0 : 7; }

static double element(const void *from, int type, long long at) {
    unsigned bits;
    float single;
    switch (type) {
        case 0: return ((const float *)from)[at];
        case 1: return ((const double *)from)[at];
        case 2: return (double)((const _Float16 *)from)[at];
        default:
            bits = (unsigned)((const unsigned short *)from)[at] << 16;
            memcpy(&single, &bits, 4);
            return single;
    }
}

int cublasGemmStridedBatchedEx(void *handle, int turn_a, int turn_b, int m, int n, int k, const void *alpha,
                               const void *a, int a_type, int a_step, long long a_stride, const void *b, int b_type,
                               int b_step, long long b_stride, const void *beta, void *c, int c_type, int c_step,
                               long long c_stride, int batches, int compute, int algorithm) {
    const int wide = compute == 70;
    const double times = element(alpha, wide, 0), keep = element(beta, wide, 0);
    ++calls;
    if (handle != &handles || algorithm != -1 || (compute != 68 && !wide) || c_type != wide) return 7;
    if (a_step < (turn_a ? k : m) || b_step < (turn_b ? n : k) || c_step < m || times != 1 || (keep != 0 && keep != 1)) return 7;
    for (long long batch = 0; batch < batches; ++batch) {
        for (long long j = 0; j < n; ++j) {
            for (long long i = 0; i < m; ++i) {
                const long long at = batch * c_stride + i + j * c_step;
                double sum = keep ? element(c, wide, at) : 0;
                for (long long p = 0; p < k; ++p) {
                    const long long in_a = turn_a ? p + i * a_step : i + p * a_step;
                    const long long in_b = turn_b ? j + p * b_step : p + j * b_step;
                    sum += element(a, a_type, batch * a_stride + in_a) * element(b, b_type, batch * b_stride + in_b);
                }
                if (wide) ((double *)c)[at] = sum;
                else ((float *)c)[at] = (float)sum;
            }
        }
    }
    return 0;
}
