// SPDX-License-Identifier: Apache-2.0
// elements.cuh — what hand-written kernels share: elements of any type, and addresses in strided arrays
//
// The host compiles each kernel for its types, given as macros. Strides count elements.
#ifndef TB_ELEMENTS_CUH
#define TB_ELEMENTS_CUH

#define TB_CUDA
#include "kernel.h"

#define TB_RANK 17

struct tb_half {
    tb_u16 bits;
};
struct tb_bfloat {
    tb_u16 bits;
};

// What a thread does of `count` pieces of work, where threads beside each other do pieces beside each other.
#define TB_EACH(at, count) \
    for (tb_i64 at = blockIdx.x * (tb_i64)blockDim.x + threadIdx.x; at < (count); at += gridDim.x * (tb_i64)blockDim.x)

// An element as a number of type C.
template <class C, class T> TB_FN C tb_as(T x) { return (C)x; }
template <class C> TB_FN C tb_as(tb_half x) { return (C)tb_f16_to_f32(x.bits); }
template <class C> TB_FN C tb_as(tb_bfloat x) { return (C)tb_bf16_to_f32(x.bits); }

// A number to its place, converted.
template <class T, class C> TB_FN void tb_put(T *to, C x) { *to = (T)x; }
template <class C> TB_FN void tb_put(tb_half *to, C x) { to->bits = tb_f32_to_f16((float)x); }
template <class C> TB_FN void tb_put(tb_bfloat *to, C x) { to->bits = tb_f32_to_bf16((float)x); }

TB_FN float tb_fma(float x, float y, float z) { return TB_FMA_F32(x, y, z); }
TB_FN double tb_fma(double x, double y, double z) { return TB_FMA_F64(x, y, z); }
template <class T> TB_FN T tb_fma(T x, T y, T z) { return (T)((tb_u64)x * (tb_u64)y + (tb_u64)z); }

// Axes in C order, and where neighbours along each lie in two arrays.
struct tb_axes {
    tb_i64 rank, length[TB_RANK], first[TB_RANK], second[TB_RANK];
};
struct tb_offsets {
    tb_i64 first, second;
};

// Where element number `place` of the space lies. The first axis takes no division, each other one.
TB_FN tb_offsets tb_locate(const tb_axes &axes, tb_i64 place) {
    tb_offsets found = {0, 0};
    for (int axis = (int)axes.rank - 1; axis >= 0; --axis) {
        const tb_i64 before = axis ? place / axes.length[axis] : 0, x = place - before * axes.length[axis];
        place = before;
        found.first += x * axes.first[axis];
        found.second += x * axes.second[axis];
    }
    return found;
}

#endif
