// SPDX-License-Identifier: Apache-2.0
// half.h — float16 and bfloat16 to float32 and back
//
// Rounding is to nearest, halves to even; denormals are exact both ways; a NaN stays a NaN, made quiet, with the bits
// of its payload that fit. One element at a time in integer arithmetic that compilers vectorise; blocks of float16
// through the processor's conversions where it has them (F16C), with the same bits. At the end, shorter forms of costly
// functions for values that are stored as halves.
#ifndef TB_HALF_H
#define TB_HALF_H

#include "vmath.h"

typedef tb_u16 tb_f16;
typedef tb_u16 tb_bf16;

TB_FN float tb_bf16_to_f32(tb_u16 h) { return tb_from_bits_f32((tb_u32)h << 16); }

TB_FN tb_u16 tb_f32_to_bf16(float x) {
    tb_u32 u = tb_bits_f32(x);
    tb_u32 rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    return (tb_u16)(x != x ? (u >> 16) | 0x40u : rounded);
}

#ifdef __CUDA_ARCH__

// A device converts by itself, but for the bits of a NaN.
TB_FN float tb_f16_to_f32(tb_u16 h) {
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(h));
    const tb_u32 a = h & 0x7FFFu, nan = (tb_u32)(h & 0x8000u) << 16 | a << 13 | 0x7FC00000u;
    return a > 0x7C00u ? tb_from_bits_f32(nan) : number;
}
TB_FN tb_u16 tb_f32_to_f16(float x) {
    tb_u16 number;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(number) : "f"(x));
    const tb_u32 u = tb_bits_f32(x), nan = (u >> 16 & 0x8000u) | 0x7E00u | (u >> 13 & 0x1FFu);
    return x != x ? (tb_u16)nan : number;
}

#else

// The exponent moves from bias 15 to bias 127 by an exact product, which also normalises denormals.
TB_FN float tb_f16_to_f32(tb_u16 h) {
    tb_u32 a = (h & 0x7FFFu) << 13;
    tb_u32 finite = tb_bits_f32(tb_from_bits_f32(a) * 0x1p112f);
    tb_u32 quiet = a > 0x0F800000u ? 0x00400000u : 0u;
    tb_u32 r = a >= 0x0F800000u ? a | 0x7F800000u | quiet : finite;
    return tb_from_bits_f32(r | (tb_u32)(h & 0x8000u) << 16);
}

// Below 2^-14 a sum with 1/2 shifts the denormal's bits into place and rounds them.
TB_FN tb_u16 tb_f32_to_f16(float x) {
    tb_u32 u = tb_bits_f32(x);
    tb_u32 a = u & 0x7FFFFFFFu;
    tb_u32 denormal = tb_bits_f32(tb_from_bits_f32(a) + 0.5f) - 0x3F000000u;
    tb_u32 r = ((a + 0xFFFu + ((a >> 13) & 1u)) >> 13) - (112u << 10);
    r = a < 0x38800000u ? denormal : r;
    r = a >= 0x47800000u ? 0x7C00u : r;
    r = a > 0x7F800000u ? 0x7E00u | ((a >> 13) & 0x1FFu) : r;
    return (tb_u16)(r | ((u >> 16) & 0x8000u));
}

#endif

// ---- blocks of m elements -------------------------------------------------------------------------------------------

TB_FN void tb_load_bf16(float *__restrict to, const tb_u16 *__restrict from, int m) {
    for (int j = 0; j < m; ++j) to[j] = tb_bf16_to_f32(from[j]);
}

#if defined(__AVX2__) && !defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)

// Two thirds of the time of what gcc makes of the loop where no instruction narrows words: here two vectors are packed.
typedef tb_u32 tb_eight_u32 __attribute__((vector_size(32)));
typedef float tb_eight_read __attribute__((vector_size(32), aligned(4), may_alias));
typedef tb_i32 tb_eight_i32 __attribute__((vector_size(32)));
typedef long long tb_four_i64 __attribute__((vector_size(32)));
typedef long long tb_four_write __attribute__((vector_size(32), aligned(2), may_alias));

TB_FN tb_eight_i32 tb_eight_to_bf16(const float *from) {
    tb_eight_read x = *(const tb_eight_read *)from;
    tb_eight_u32 u = (tb_eight_u32)x, high = u >> 16, rounded = (u + 0x7FFFu + (high & 1u)) >> 16;
    return (tb_eight_i32)__builtin_ia32_blendvps256((tb_eight_read)rounded, (tb_eight_read)(high | 0x40u),
                                                    (tb_eight_read)(x != x));
}
TB_FN void tb_store_bf16(tb_u16 *__restrict to, const float *__restrict from, int m) {
    int j = 0;
    for (; j + 16 <= m; j += 16) {
        tb_eight_i32 first = tb_eight_to_bf16(from + j), second = tb_eight_to_bf16(from + j + 8);
        tb_four_i64 mixed = (tb_four_i64)__builtin_ia32_packusdw256(first, second);
        *(tb_four_write *)(to + j) = __builtin_ia32_permdi256(mixed, 0xD8);
    }
    for (; j < m; ++j) to[j] = tb_f32_to_bf16(from[j]);
}

#else

TB_FN void tb_store_bf16(tb_u16 *__restrict to, const float *__restrict from, int m) {
    for (int j = 0; j < m; ++j) to[j] = tb_f32_to_bf16(from[j]);
}

#endif

#if defined(__F16C__) && defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)

typedef short tb_eight_f16 __attribute__((vector_size(16), aligned(2), may_alias));
typedef float tb_eight_f32 __attribute__((vector_size(32), aligned(4), may_alias));

TB_FN void tb_load_f16(float *__restrict to, const tb_u16 *__restrict from, int m) {
    int j = 0;
    for (; j + 8 <= m; j += 8) {
        *(tb_eight_f32 *)(to + j) = __builtin_ia32_vcvtph2ps256(*(const tb_eight_f16 *)(from + j));
    }
    for (; j < m; ++j) to[j] = tb_f16_to_f32(from[j]);
}
TB_FN void tb_store_f16(tb_u16 *__restrict to, const float *__restrict from, int m) {
    int j = 0;
    for (; j + 8 <= m; j += 8) {
        *(tb_eight_f16 *)(to + j) = __builtin_ia32_vcvtps2ph256(*(const tb_eight_f32 *)(from + j), 0);
    }
    for (; j < m; ++j) to[j] = tb_f32_to_f16(from[j]);
}

#else

TB_FN void tb_load_f16(float *__restrict to, const tb_u16 *__restrict from, int m) {
    for (int j = 0; j < m; ++j) to[j] = tb_f16_to_f32(from[j]);
}
TB_FN void tb_store_f16(tb_u16 *__restrict to, const float *__restrict from, int m) {
    for (int j = 0; j < m; ++j) to[j] = tb_f32_to_f16(from[j]);
}

#endif

// ---- functions of values that are stored as halves ------------------------------------------------------------------

// In float32, good to 2^-17: rounding to float16 then gives 0.51 ulp at most, to bfloat16 0.502. The same bits from
// every compiler and processor, as vmath.h has it, and from the vector forms in wide.h.

// x P(x^2) / Q(x^2) for |x| <= 7, where it is 1 - 2^-21. Relative error 2^-19.5
#define TB_TANH_HALF_P(T, q, scale) \
    TB_P3(T, q, scale * 0.999998987f, scale * 0.123220615f, scale * 0.00229309406f, scale * 3.99589180e-6f)
#define TB_TANH_HALF_Q(T, q) TB_P3(T, q, 1.0f, 0.456546217f, 0.0211516395f, 0.000143984988f)
TB_FN float tb_tanh_half(float x) {
    float a = tb_abs_f32(x);
    float y = 7.0f < a ? 7.0f : a;
    float q = y * y;
    float r = y * TB_TANH_HALF_P(F32, q, 1.0f) / TB_TANH_HALF_Q(F32, q);
    return tb_put_sign_f32(r, x);
}

// (1 + e^-x) 2^-24 = 2^-24 + 2^n 2^f with n + f = -x log2(e) - 24, so that 2^n is in range. Relative error 2^-18.3, and
// 2^-17.2 where t has fewer bits behind the point
#define TB_EXP2_HALF(T, f) TB_P4(T, f, 1.0f, 0.693124175f, 0.240240991f, 0.0559063703f, 0.00958281849f)
TB_FN float tb_one_plus_exp_half(float x) {
    float t = TB_FMA_F32(x, -1.44269502f, -24.0f);
    t = t < -100.0f ? -100.0f : t;
    t = 128.0f < t ? 128.0f : t;
    float n = tb_rint_f32(t);
    float s = tb_from_bits_f32(tb_bits_f32(n + (TB_ROUND_F32 + 127.0f)) << 23);
    return TB_FMA_F32(TB_EXP2_HALF(F32, t - n), s, 0x1p-24f);
}

TB_FN float tb_sigmoid_half(float x) { return 0x1p-24f / tb_one_plus_exp_half(x); }

// sigmoid(x) tanh(z) in one division
TB_FN float tb_gate_half(float x, float z) {
    float a = tb_abs_f32(z);
    float y = 7.0f < a ? 7.0f : a;
    float q = y * y;
    float d = tb_one_plus_exp_half(x) * TB_TANH_HALF_Q(F32, q);
    return tb_put_sign_f32(y * (TB_TANH_HALF_P(F32, q, 0x1p-24f) / d), z);
}

#endif
