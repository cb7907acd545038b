// SPDX-License-Identifier: Apache-2.0
// kernel.cuh — what generated CUDA kernels share beside the maths of kernels/c: packs of neighbouring elements, and
// reductions over the threads of a row or a column
//
// Every reduction joins in an order that the block's size decides: results are the same each time.
#ifndef TB_KERNEL_CUH
#define TB_KERNEL_CUH

#define TB_CUDA
#include "kernel.h"

// ---- packs: W neighbours, read and written with one access of up to 16 bytes where they are `whole` ------------------

template <class T, int W> struct alignas(sizeof(T) * W) tb_pack {
    T v[W];
};

// The first m elements; the others are left as they are. `whole`: all W, at an aligned address.
template <class T, int W> TB_FN void tb_pack_load(tb_pack<T, W> &to, const T *from, int m, bool whole) {
    if (whole) {
        to = *(const tb_pack<T, W> *)from;
        return;
    }
#pragma unroll
    for (int j = 0; j < W; ++j) {
        if (j < m) to.v[j] = from[j];
    }
}
template <class T, int W> TB_FN void tb_pack_store(T *to, const tb_pack<T, W> &from, int m, bool whole) {
    if (whole) {
        *(tb_pack<T, W> *)to = from;
        return;
    }
#pragma unroll
    for (int j = 0; j < W; ++j) {
        if (j < m) to[j] = from.v[j];
    }
}

// ---- the first place of an extreme: a NaN is more extreme than anything ---------------------------------------------

template <class T> struct tb_place {
    T value;
    tb_i64 at;
};

#define TB_FIRST(NAME, MORE) \
    template <class T> TB_FN tb_place<T> NAME(tb_place<T> x, tb_place<T> y) { \
        const bool more = y.value MORE x.value || (y.value != y.value && x.value == x.value); \
        const bool same = y.value == x.value || (y.value != y.value && x.value != x.value); \
        return more || (same && y.at < x.at) ? y : x; \
    }
TB_FIRST(tb_first_argmax, >)
TB_FIRST(tb_first_argmin, <)

// ---- reductions over threads ------------------------------------------------------------------------------------------

#define TB_WARP 32
#define TB_THREADS 256

template <class T> TB_FN T tb_shuffle_down(unsigned mask, T x, int step, int width) {
    return (T)__shfl_down_sync(mask, x, step, width);
}
template <class T> TB_FN tb_place<T> tb_shuffle_down(unsigned mask, tb_place<T> x, int step, int width) {
    return {tb_shuffle_down(mask, x.value, step, width), tb_shuffle_down(mask, x.at, step, width)};
}
template <class T> TB_FN T tb_shuffle(unsigned mask, T x, int lane, int width) {
    return (T)__shfl_sync(mask, x, lane, width);
}
template <class T> TB_FN tb_place<T> tb_shuffle(unsigned mask, tb_place<T> x, int lane, int width) {
    return {tb_shuffle(mask, x.value, lane, width), tb_shuffle(mask, x.at, lane, width)};
}

// Shared memory for one value of up to 16 bytes a thread. All reductions of a kernel take turns.
TB_FN void *tb_shared() {
    __shared__ double places[TB_THREADS * 2];
    return places;
}

// The values of the blockDim.x threads of a row, a power of two, as one; all of them get it. A row of more threads than
// a warp has its block to itself.
template <class T, class F> TB_FN T tb_join_row(T value, F join) {
    const int team = (int)blockDim.x, width = team < TB_WARP ? team : TB_WARP;
    const int thread = (int)(threadIdx.y * blockDim.x + threadIdx.x), lane = thread % TB_WARP;
    const unsigned mask = width == TB_WARP ? 0xFFFFFFFFu : ((1u << width) - 1u) << (lane / width * width);
    for (int step = width / 2; step > 0; step /= 2) {
        value = join(value, tb_shuffle_down(mask, value, step, width));
    }
    if (team <= TB_WARP) return tb_shuffle(mask, value, 0, width);
    T *const warps = (T *)tb_shared();
    if (lane == 0) warps[thread / TB_WARP] = value;
    __syncthreads();
    value = warps[0];
    for (int warp = 1; warp < team / TB_WARP; ++warp) value = join(value, warps[warp]);
    __syncthreads();
    return value;
}

// The values of the blockDim.y threads of a column as one; all of them get it.
template <class T, class F> TB_FN T tb_join_column(T value, F join) {
    T *const column = (T *)tb_shared() + threadIdx.x;
    column[threadIdx.y * blockDim.x] = value;
    __syncthreads();
    value = column[0];
    for (unsigned y = 1; y < blockDim.y; ++y) value = join(value, column[y * blockDim.x]);
    __syncthreads();
    return value;
}

#endif
