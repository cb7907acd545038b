// SPDX-License-Identifier: Apache-2.0
// kernels.cu — small kernels that tests run: correct ones first, then one for each planted defect
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tensor_core.cuh"

struct Buffers {
    float *o;
    const float *a, *b;
    long long n;
};

typedef Buffers add_args;
extern "C" __global__ void __launch_bounds__(256) add(const add_args a) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < a.n) a.o[i] = a.a[i] + a.b[i];
}

// The tile's sums by shared memory, 16-byte accesses and two barriers a step.
struct gemm_args {
    float *c;
    const float *a, *b;
    long long m, n, k;
};
extern "C" __global__ void __launch_bounds__(256) gemm(const gemm_args g) {
    __shared__ __align__(16) float as[16][64], bs[16][64];
    int t = threadIdx.x, ty = t / 16, tx = t % 16;
    long long row = blockIdx.y * 64, column = blockIdx.x * 64;
    float sum[4][4] = {};
    for (long long k0 = 0; k0 < g.k; k0 += 16) {
        float4 x = *(const float4 *)(g.a + (row + t / 4) * g.k + k0 + t % 4 * 4);
        as[t % 4 * 4 + 0][t / 4] = x.x;
        as[t % 4 * 4 + 1][t / 4] = x.y;
        as[t % 4 * 4 + 2][t / 4] = x.z;
        as[t % 4 * 4 + 3][t / 4] = x.w;
        *(float4 *)&bs[t / 16][t % 16 * 4] = *(const float4 *)(g.b + (k0 + t / 16) * g.n + column + t % 16 * 4);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; ++k)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(as[k][ty * 4 + i], bs[k][tx * 4 + j], sum[i][j]);
#ifndef MISSING_BARRIER
        __syncthreads();
#endif
    }
    for (int i = 0; i < 4; ++i) {
        float4 y = make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
        *(float4 *)(g.c + (row + ty * 4 + i) * g.n + column + tx * 4) = y;
    }
}

// ---- warps ----------------------------------------------------------------------------------------------------------

struct Integers {
    int *o;
    const int *a;
    long long n;
};
extern "C" __global__ void shuffles(const Integers a) {
    int lane = threadIdx.x, value = a.a[lane];
    a.o[0 * 32 + lane] = __shfl_sync(~0u, value, (int)a.n);
    a.o[1 * 32 + lane] = __shfl_up_sync(~0u, value, 3);
    a.o[2 * 32 + lane] = __shfl_down_sync(~0u, value, 3);
    a.o[3 * 32 + lane] = __shfl_xor_sync(~0u, value, 5);
    a.o[4 * 32 + lane] = __shfl_down_sync(~0u, value, 3, 8);
    double wide = __shfl_xor_sync(~0u, value + 0.5, 16);
    a.o[5 * 32 + lane] = (int)(wide * 2);
}
extern "C" __global__ void votes(const Integers a) {
    int lane = threadIdx.x, value = a.a[lane];
    a.o[0 * 32 + lane] = (int)__ballot_sync(~0u, value > 0);
    a.o[1 * 32 + lane] = __any_sync(~0u, value > 1000);
    a.o[2 * 32 + lane] = __all_sync(~0u, value > -1000);
    a.o[3 * 32 + lane] = (int)__match_any_sync(~0u, value % 3);
    a.o[4 * 32 + lane] = __reduce_add_sync(~0u, value);
    // Each half of the warp by itself: the halves need not meet.
    unsigned half = lane < 16 ? 0xFFFFu : 0xFFFF0000u;
    int sum = value;
    for (int step = 8; step; step /= 2) sum += __shfl_xor_sync(half, sum, step);
    a.o[5 * 32 + lane] = sum;
}
// Lanes 20 to 31 leave first; the others go on without them.
extern "C" __global__ void leavers(const Integers a) {
    if (threadIdx.x >= 20) return;
    a.o[threadIdx.x] = (int)__ballot_sync(~0u, a.a[threadIdx.x] > 0);
}
extern "C" __global__ void block_votes(const Integers a) {
    int i = threadIdx.x + blockDim.x * threadIdx.y;
    int count = __syncthreads_count(a.a[i] > 0), any = __syncthreads_or(a.a[i] == 77), all = __syncthreads_and(i >= 0);
    a.o[i] = count + 1000 * any + 10000 * all;
}

// ---- atomics, vectors, halves, templates ----------------------------------------------------------------------------

struct atomics_args {
    int *i;
    unsigned *u;
    unsigned long long *l;
    float *f;
    double *d;
};
extern "C" __global__ void atomics(const atomics_args a) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&a.i[0], t);
    atomicMax(&a.i[1], t);
    atomicMin(&a.i[2], -t);
    atomicExch(&a.i[3], 5);
    atomicSub(&a.i[4], 1);
    atomicOr(&a.u[0], 1u << t % 32);
    atomicAnd(&a.u[1], ~(1u << t % 8));
    atomicXor(&a.u[2], 3u);
    atomicInc(&a.u[3], 9u);
    atomicAdd(&a.l[0], 1ull << 40);
    atomicAdd(&a.f[0], 1.0f);
    atomicAdd(&a.d[0], 0.5);
    unsigned long long seen = a.l[1], old;  // a maximum by compare and swap
    do {
        old = seen;
        seen = atomicCAS(&a.l[1], old, old > (unsigned long long)t ? old : (unsigned long long)t);
    } while (seen != old);
}

extern "C" __global__ void vectors(const Buffers a) {
    float4 x = ((const float4 *)a.a)[threadIdx.x];
    float2 y = make_float2(x.x + x.y, x.z + x.w);
    uint4 bits = make_uint4(__float_as_uint(x.x), __popc(255u), __clz(1), __ffs(8));
    double2 d = make_double2(y.x, y.y);
    int4 i = make_int4(1, 2, 3, 4);
    ((float4 *)a.o)[threadIdx.x] =
        make_float4((float)d.x, (float)d.y, __uint_as_float(bits.x), (float)(bits.y + bits.z + bits.w + i.w));
}

struct halves_args {
    __half *h;
    __nv_bfloat16 *b;
    const float *a;
};
extern "C" __global__ void halves(const halves_args a) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __half h = __float2half(a.a[i]);
    __nv_bfloat16 b = __float2bfloat16(a.a[i]);
    a.h[2 * i] = h;
    a.b[2 * i] = b;
    a.h[2 * i + 1] = h * h + __float2half(1.0f);
    a.b[2 * i + 1] = __float2bfloat16(__bfloat162float(b) * 3.0f);
}

struct doubles_args {
    __half *h;
    __nv_bfloat16 *b;
    const double *a;
};
extern "C" __global__ void doubles(const doubles_args a) {
    int i = threadIdx.x, whole = a.a[i] > -0x1p31 && a.a[i] < 0x1p31 ? (int)a.a[i] : 0;
    a.h[2 * i] = __half(a.a[i]);
    a.b[2 * i] = __nv_bfloat16(a.a[i]);
    a.h[2 * i + 1] = __half(whole);
    a.b[2 * i + 1] = __nv_bfloat16(whole);
}

template <class T, int N> __device__ T sum_of(const T *values) {
    __shared__ T part[N];
    part[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    T sum = 0;
    for (int i = 0; i < N; ++i) sum += part[i];
    return sum;
}
struct templates_args {
    double *o;
    const float *a;
    const int *b;
};
extern "C" __global__ void templates(const templates_args a) {
    a.o[2 * threadIdx.x] = sum_of<float, 32>(a.a);
    a.o[2 * threadIdx.x + 1] = sum_of<int, 32>(a.b);
}

extern "C" __global__ void reverse(const Buffers a) {
    extern __shared__ float line[];
    line[threadIdx.x] = a.a[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    a.o[blockIdx.x * blockDim.x + threadIdx.x] = line[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void prints(const Integers a) {
    if (threadIdx.x == 3) printf("thread %d of block %d has %d\n", threadIdx.x, blockIdx.x, a.a[3]);
}

// ---- tensor cores ---------------------------------------------------------------------------------------------------

struct mma_args {
    float *d;
    const void *a, *b;
    const float *c;
};
// D = A B + C by one warp: A 16 x K by rows, B K x 8 by columns (each column contiguous), C and D 16 x 8 by rows.
template <class T, int K, class Fragment> __device__ void mma_tile(const mma_args &a, Fragment multiply) {
    int group = threadIdx.x / 4, pair = threadIdx.x % 4;
    const unsigned *rows = (const unsigned *)a.a, *columns = (const unsigned *)a.b;
    const int words = K * sizeof(T) / 4;
    unsigned x[4] = {rows[group * words + pair], rows[(group + 8) * words + pair], rows[group * words + pair + 4],
                     rows[(group + 8) * words + pair + 4]};
    unsigned y[2] = {columns[group * words + pair], columns[group * words + pair + 4]};
    float d[4] = {a.c[group * 8 + pair * 2], a.c[group * 8 + pair * 2 + 1], a.c[(group + 8) * 8 + pair * 2],
                  a.c[(group + 8) * 8 + pair * 2 + 1]};
    multiply(d, x, y);
    a.d[group * 8 + pair * 2] = d[0];
    a.d[group * 8 + pair * 2 + 1] = d[1];
    a.d[(group + 8) * 8 + pair * 2] = d[2];
    a.d[(group + 8) * 8 + pair * 2 + 1] = d[3];
}
struct by_f16 {
    __device__ void operator()(float *d, const unsigned *x, const unsigned *y) const { mma_m16n8k16_f16(d, x, y); }
};
struct by_bf16 {
    __device__ void operator()(float *d, const unsigned *x, const unsigned *y) const { mma_m16n8k16_bf16(d, x, y); }
};
struct by_tf32 {
    __device__ void operator()(float *d, const unsigned *x, const unsigned *y) const { mma_m16n8k8_tf32(d, x, y); }
};
extern "C" __global__ void mma_f16(const mma_args a) { mma_tile<unsigned short, 16>(a, by_f16()); }
extern "C" __global__ void mma_bf16(const mma_args a) { mma_tile<unsigned short, 16>(a, by_bf16()); }
extern "C" __global__ void mma_tf32(const mma_args a) { mma_tile<float, 8>(a, by_tf32()); }
extern "C" __global__ void copies(const Buffers a) {
    __shared__ __align__(16) float stage[2][128];
    for (int s = 0; s < 2; ++s) {
        cp_async_16(&stage[s][threadIdx.x * 4], a.a + s * 128 + threadIdx.x * 4);
        cp_async_commit();
    }
    cp_async_wait<1>();
    __syncthreads();
    a.o[threadIdx.x] = stage[0][127 - threadIdx.x];
    cp_async_wait<0>();
    __syncthreads();
    a.o[32 + threadIdx.x] = stage[1][127 - threadIdx.x];
}
extern "C" __global__ void early_read(const Buffers a) {
    __shared__ __align__(16) float stage[128];
    cp_async_16(&stage[threadIdx.x * 4], a.a + threadIdx.x * 4);
    cp_async_commit();
    a.o[threadIdx.x] = stage[threadIdx.x * 4];  // defect: not waited for
    cp_async_wait<0>();
}

// ---- defects --------------------------------------------------------------------------------------------------------

extern "C" __global__ void off_by_one(const Buffers a) {
    long long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= a.n) a.o[i] = 1.0f;  // defect: <=
}
extern "C" __global__ void reads_before(const Buffers a) { a.o[threadIdx.x] = a.a[(long long)threadIdx.x - a.n]; }
extern "C" __global__ void missing_barrier(const Buffers a) {
    __shared__ float line[64];
    line[threadIdx.x] = a.a[threadIdx.x];
    a.o[threadIdx.x] = line[63 - threadIdx.x];  // defect: no barrier before
}
extern "C" __global__ void static_overrun(const Buffers a) {
    __shared__ float line[64];
    line[threadIdx.x + a.n] = a.a[threadIdx.x];  // defect: +n
    __syncthreads();
    a.o[threadIdx.x] = line[threadIdx.x];
}
extern "C" __global__ void dynamic_overrun(const Buffers a) {
    extern __shared__ float line[];
    line[threadIdx.x + a.n] = a.a[threadIdx.x];  // defect: +n
    __syncthreads();
    a.o[threadIdx.x] = line[threadIdx.x];
}
extern "C" __global__ void divergent_exit(const Buffers a) {
    if (threadIdx.x >= a.n) return;
    __syncthreads();  // defect: not all come here
    a.o[threadIdx.x] = 1.0f;
}
extern "C" __global__ void divergent_branches(const Buffers a) {
    if (threadIdx.x < a.n)
        __syncthreads();
    else
        __syncthreads();  // defect: not the same barrier
    a.o[threadIdx.x] = 1.0f;
}
extern "C" __global__ void divergent_shuffle(const Buffers a) {
    float value = a.a[threadIdx.x];
    if (threadIdx.x < a.n) value = __shfl_down_sync(~0u, value, 1);  // defect: the mask says all lanes
    __syncthreads();
    a.o[threadIdx.x] = value;
}
extern "C" __global__ void not_in_mask(const Buffers a) {
    a.o[threadIdx.x] = __shfl_sync(0xFFu, a.a[threadIdx.x], 0);  // defect: lane 8 names lanes 0 to 7
}
extern "C" __global__ void uninitialised(const Buffers a) {
    __shared__ float line[32];
    if (threadIdx.x != 5) line[threadIdx.x] = 1.0f;  // defect: 5 is left out
    __syncthreads();
    a.o[threadIdx.x] = line[threadIdx.x];
}
extern "C" __global__ void asserts(const Buffers a) { assert(threadIdx.x < a.n); }
extern "C" __global__ void divides(const Integers a) { a.o[threadIdx.x] = 100 / a.a[threadIdx.x]; }
__device__ int deeper(int n) {
    volatile int room[256];
    room[n % 256] = n;
    return n == 0 ? 0 : deeper(n - 1) + room[n % 256];
}
extern "C" __global__ void recurses(const Integers a) { a.o[threadIdx.x] = deeper((int)a.n); }
