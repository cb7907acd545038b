// SPDX-License-Identifier: Apache-2.0
// wide.h — thirty-two values at a time in two vector registers: kernels that read or write halves
//
// Compilers convert halves through memory, or one at a time. Here loads widen and stores narrow in registers, and the
// functions between are those of half.h on vectors, with the same bits. The two vectors hold the elements at even and
// at odd places of bfloat16, where each is half of a 32-bit word; of other types the first and the last sixteen.
// TB_WIDE is defined where this exists: AVX-512 with gcc, whose names for the instructions are used.
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
    return y * TB_TANH_HALF_P(WIDE, q, 1.0f) / TB_TANH_HALF_Q(WIDE, q);
}

// The instructions for t - rint(t), which is 0 for infinities, and for p 2^n need no limits of t.
TB_FN tb_wide_f32 tb_wide_one_plus_exp_half(tb_wide_f32 x) {
    tb_wide_f32 t = TB_FMA_WIDE(x, -1.44269502f, -24.0f);
    tb_wide_f32 f = __builtin_ia32_reduceps512_mask(t, 0, t, -1);
    return __builtin_ia32_scalefps512_mask(TB_EXP2_HALF(WIDE, f), t - f, t, -1, 4) + 0x1p-24f;
}

TB_FN tb_wide_f32 tb_wide_sigmoid_half(tb_wide_f32 x) { return 0x1p-24f / tb_wide_one_plus_exp_half(x); }

// The exponential comes first: it takes longest, and processors look ahead only so far.
TB_FN tb_wide_f32 tb_wide_gate_half(tb_wide_f32 x, tb_wide_f32 z) {
    tb_wide_f32 d = tb_wide_one_plus_exp_half(x);
    tb_wide_f32 y = tb_wide_max(TB_ALL(-7.0f), tb_wide_min(TB_ALL(7.0f), z));
    tb_wide_f32 q = y * y;
    d *= TB_TANH_HALF_Q(WIDE, q);
    return y * (TB_TANH_HALF_P(WIDE, q, 0x1p-24f) / d);
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

// Both at a time in integers: `high` is what the results are before rounding, `low` what is cut off. (The processor's
// own conversion takes denormals for zero.) Sums saturate, so that a NaN stays one, if it is quiet as after operations.
TB_FN void tb_wide_store_bf16(tb_u16 *to, tb_wide_f32 a, tb_wide_f32 b, int past) {
    tb_wide_u32 first = (tb_wide_u32)a, second = (tb_wide_u32)b;
    tb_wide_i16 high = (tb_wide_i16)(first >> 16 | (second & 0xFFFF0000u));
    tb_wide_i16 low = (tb_wide_i16)((first & 0xFFFFu) | second << 16);
    tb_wide_i16 half = (tb_wide_i16){} - 0x7FFF - 1, one = (tb_wide_i16){} + 1;
    tb_u32 up = __builtin_ia32_ucmpw512_mask(low | (high & 1), half, 6, -1);
    tb_wide_i16 sum = __builtin_ia32_paddsw512_mask(high, one, high, up);
    tb_wide_u32 r = (tb_wide_u32)__builtin_ia32_pmaxuw512_mask(sum, high, sum, -1);
    if (past) {
        __builtin_ia32_movntdq512((tb_wide_i64 *)to, (tb_wide_i64)r);
    } else {
        *(tb_wide_u32_there *)to = r;
    }
}

#endif
#endif
