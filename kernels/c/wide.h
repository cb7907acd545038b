// SPDX-License-Identifier: Apache-2.0
// wide.h — thirty-two values at a time in two vector registers: kernels that read or write halves
//
// Compilers convert halves through memory, or one at a time. Here loads widen and stores narrow in registers, and the
// functions between are those of half.h on vectors, operation by operation: the same bits. The two vectors hold the
// elements at even and at odd places of bfloat16, where each is half of a 32-bit word; of other types the first and the
// last sixteen. TB_WIDE is defined where this exists: AVX-512 with gcc, whose names for the instructions are used.
#ifndef TB_WIDE_H
#define TB_WIDE_H

#include "half.h"

#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)

#define TB_WIDE 32

typedef float tb_wide_f32 __attribute__((vector_size(64)));
typedef tb_i32 tb_wide_i32 __attribute__((vector_size(64)));
typedef tb_u32 tb_wide_u32 __attribute__((vector_size(64)));
typedef short tb_wide_i16 __attribute__((vector_size(64)));
typedef short tb_sixteen_i16 __attribute__((vector_size(32)));
typedef float tb_wide_f32_there __attribute__((vector_size(64), aligned(4), may_alias));
typedef tb_u32 tb_wide_u32_there __attribute__((vector_size(64), aligned(2), may_alias));
typedef short tb_sixteen_there __attribute__((vector_size(32), aligned(2), may_alias));
typedef long long tb_wide_i64 __attribute__((vector_size(64)));
typedef long long tb_four_i64 __attribute__((vector_size(32)));

// A number in all places; a vector stays what it is
#define TB_ALL(x) ((x) - (tb_wide_f32){})
#define TB_FMA_WIDE(a, b, c) __builtin_ia32_vfmaddps512_mask(TB_ALL(a), TB_ALL(b), TB_ALL(c), -1, 4)

// The second operand where one is NaN
TB_FN tb_wide_f32 tb_wide_min(tb_wide_f32 a, tb_wide_f32 b) { return __builtin_ia32_minps512_mask(a, b, a, -1, 4); }
TB_FN tb_wide_f32 tb_wide_max(tb_wide_f32 a, tb_wide_f32 b) { return __builtin_ia32_maxps512_mask(a, b, a, -1, 4); }

TB_FN tb_wide_f32 tb_wide_tanh_half(tb_wide_f32 x) {
    tb_wide_f32 y = tb_wide_max(TB_ALL(-7.0f), tb_wide_min(TB_ALL(7.0f), x));
    tb_wide_f32 q = y * y;
    return y * TB_TANH_HALF_P(WIDE, q) / TB_TANH_HALF_Q(WIDE, q);
}

TB_FN tb_wide_f32 tb_wide_sigmoid_half(tb_wide_f32 x) {
    tb_wide_f32 c = tb_wide_min(TB_ALL(70.0f), x);
    tb_wide_i32 k = (tb_wide_i32)TB_FMA_WIDE(c, -1.44269502f, TB_ROUND_F32 + 103.0f);
    k = __builtin_ia32_pminsd512_mask(k, TB_SIGMOID_HALF_LAST - (tb_wide_i32){}, k, -1);
    tb_wide_f32 n = (tb_wide_f32)k - (TB_ROUND_F32 + 103.0f);
    tb_wide_f32 f = TB_FMA_WIDE(c, -1.44269502f, -n);
    return 0x1p-24f / TB_FMA_WIDE(TB_EXP2_HALF(WIDE, f), (tb_wide_f32)(k << 23), 0x1p-24f);
}

TB_FN void tb_wide_load_f32(const float *from, tb_wide_f32 *a, tb_wide_f32 *b) {
    *a = *(const tb_wide_f32_there *)from;
    *b = *(const tb_wide_f32_there *)(from + 16);
}
TB_FN void tb_wide_load_f16(const tb_u16 *from, tb_wide_f32 *a, tb_wide_f32 *b) {
    *a = __builtin_ia32_vcvtph2ps512_mask(*(const tb_sixteen_there *)from, (tb_wide_f32){}, -1, 4);
    *b = __builtin_ia32_vcvtph2ps512_mask(*(const tb_sixteen_there *)(from + 16), (tb_wide_f32){}, -1, 4);
}
TB_FN void tb_wide_load_bf16(const tb_u16 *from, tb_wide_f32 *a, tb_wide_f32 *b) {
    tb_wide_u32 u = *(const tb_wide_u32_there *)from;
    *a = (tb_wide_f32)(u << 16);
    *b = (tb_wide_f32)(u & 0xFFFF0000u);
}

// `past` the cache: to addresses that are multiples of 64
TB_FN void tb_wide_store_f32(float *to, tb_wide_f32 a, tb_wide_f32 b, int past) {
    if (past) {
        __builtin_ia32_movntps512(to, a);
        __builtin_ia32_movntps512(to + 16, b);
    } else {
        *(tb_wide_f32_there *)to = a;
        *(tb_wide_f32_there *)(to + 16) = b;
    }
}
TB_FN void tb_wide_store_f16(tb_u16 *to, tb_wide_f32 a, tb_wide_f32 b, int past) {
    tb_sixteen_i16 c = __builtin_ia32_vcvtps2ph512_mask(a, 0, (tb_sixteen_i16){}, -1);
    tb_sixteen_i16 d = __builtin_ia32_vcvtps2ph512_mask(b, 0, (tb_sixteen_i16){}, -1);
    if (past) {
        __builtin_ia32_movntdq256((tb_four_i64 *)to, (tb_four_i64)c);
        __builtin_ia32_movntdq256((tb_four_i64 *)(to + 16), (tb_four_i64)d);
    } else {
        *(tb_sixteen_there *)to = c;
        *(tb_sixteen_there *)(to + 16) = d;
    }
}

// tb_f32_to_bf16, the result in the upper half of each word
TB_FN tb_wide_u32 tb_wide_round_bf16(tb_wide_f32 x) {
    tb_wide_u32 u = (tb_wide_u32)x;
    tb_wide_u32 r = u + 0x7FFFu + ((u >> 16) & 1u);
    unsigned short nan = __builtin_ia32_cmpps512_mask(x, x, 3, -1, 4);
    return (tb_wide_u32)__builtin_ia32_blendmd_512_mask((tb_wide_i32)r, (tb_wide_i32)(u | 0x400000u), nan);
}
TB_FN tb_wide_u32 tb_wide_pair_bf16(tb_wide_f32 a, tb_wide_f32 b) {
    return (tb_wide_round_bf16(a) >> 16) | (tb_wide_round_bf16(b) & 0xFFFF0000u);
}
TB_FN void tb_wide_store_bf16(tb_u16 *to, tb_wide_f32 a, tb_wide_f32 b, int past) {
#if defined(__AVX512BF16__)
    // The processor's conversion differs only in taking denormals for zero.
    const tb_wide_i16 pairs = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                               8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    tb_wide_i16 both;
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(a), "v"(b));
    tb_wide_u32 r = (tb_wide_u32)__builtin_ia32_permvarhi512_mask(both, pairs, both, -1);
    int denormal = __builtin_ia32_fpclassps512_mask(a, 0x20, -1) | __builtin_ia32_fpclassps512_mask(b, 0x20, -1);
    if (__builtin_expect(denormal & 0xFFFF, 0)) r = tb_wide_pair_bf16(a, b);
#else
    tb_wide_u32 r = tb_wide_pair_bf16(a, b);
#endif
    if (past) {
        __builtin_ia32_movntdq512((tb_wide_i64 *)to, (tb_wide_i64)r);
    } else {
        *(tb_wide_u32_there *)to = r;
    }
}

#endif
#endif
