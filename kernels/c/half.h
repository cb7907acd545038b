// SPDX-License-Identifier: Apache-2.0
// half.h — float16 and bfloat16 to float32 and back, in integer arithmetic that compilers vectorise
//
// Rounding is to nearest, halves to even; denormals are exact; NaN stays NaN. Storage is an unsigned 16-bit word.
#ifndef TB_HALF_H
#define TB_HALF_H

#include "vmath.h"

TB_FN float tb_bf16_to_f32(tb_u16 h) { return tb_from_bits_f32((tb_u32)h << 16); }
TB_FN tb_u16 tb_f32_to_bf16(float x) {
    tb_u32 b = tb_bits_f32(x);
    tb_u32 r = (b + 0x7FFFu + ((b >> 16) & 1u)) >> 16;
    r = (b & 0x7FFFFFFFu) > 0x7F800000u ? (b >> 16) | 0x40u : r;
    return (tb_u16)r;
}

// The exponent moves from bias 15 to bias 127 by an exact product, which also normalises denormals.
TB_FN float tb_f16_to_f32(tb_u16 h) {
    tb_u32 magnitude = h & 0x7FFFu, sign = (tb_u32)(h & 0x8000u) << 16;
    tb_u32 finite = tb_bits_f32(tb_from_bits_f32(magnitude << 13) * 0x1p112f);
    tb_u32 bits = magnitude >= 0x7C00u ? 0x7F800000u | (magnitude << 13) : finite;
    return tb_from_bits_f32(sign | bits);
}
TB_FN tb_u16 tb_f32_to_f16(float x) {
    tb_u32 b = tb_bits_f32(x), a = b & 0x7FFFFFFFu, sign = (b >> 16) & 0x8000u;
    tb_u32 small = tb_bits_f32(tb_from_bits_f32(a) + 0.5f) - 0x3F000000u;
    tb_u32 r = ((a + 0xFFFu + ((a >> 13) & 1u)) >> 13) - (112u << 10);
    r = a < 0x38800000u ? small : r;
    r = a >= 0x47800000u ? 0x7C00u : r;
    r = a > 0x7F800000u ? 0x7E00u : r;
    return (tb_u16)(sign | r);
}

#define TB_BLOCK_CONVERSIONS(S) \
    TB_FN void tb_load_##S(float *restrict to, const tb_u16 *restrict from, int m) { \
        for (int j = 0; j < m; ++j) to[j] = tb_##S##_to_f32(from[j]); \
    } \
    TB_FN void tb_store_##S(tb_u16 *restrict to, const float *restrict from, int m) { \
        for (int j = 0; j < m; ++j) to[j] = tb_f32_to_##S(from[j]); \
    }
TB_BLOCK_CONVERSIONS(f16)
TB_BLOCK_CONVERSIONS(bf16)

#endif
