// SPDX-License-Identifier: Apache-2.0
// wide.h — TB_WIDE values at a time in two vector registers: kernels that read or write halves
//
// Compilers convert halves through memory, or one at a time. Here loads widen and stores narrow in registers, and the
// functions between are those of half.h on vectors, with the same bits. The two vectors hold the elements at even and
// at odd places of bfloat16, where each is half of a 32-bit word; of other types the first and the last half.
// TB_WIDE is defined where this exists: AVX-512, or AVX2 with FMA and F16C, with gcc, whose names for the instructions
// are used. Elsewhere the last part, tb_read_f16 and its like, is the loops of half.h.
#ifndef TB_WIDE_H
#define TB_WIDE_H

#include "half.h"

#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#if defined(__AVX512BW__) && defined(__AVX512DQ__)
#define TB_WIDE 32
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define TB_WIDE 16
#endif
#endif

#ifdef TB_WIDE

#define TB_WIDE_BYTES (2 * TB_WIDE)

typedef float tb_wide_f32 __attribute__((vector_size(TB_WIDE_BYTES)));
typedef tb_i32 tb_wide_i32 __attribute__((vector_size(TB_WIDE_BYTES)));
typedef tb_u32 tb_wide_u32 __attribute__((vector_size(TB_WIDE_BYTES)));
typedef short tb_wide_i16 __attribute__((vector_size(TB_WIDE_BYTES)));
typedef short tb_narrow_i16 __attribute__((vector_size(TB_WIDE)));
typedef float tb_wide_f32_there __attribute__((vector_size(TB_WIDE_BYTES), aligned(4), may_alias));
typedef tb_u32 tb_wide_u32_there __attribute__((vector_size(TB_WIDE_BYTES), aligned(2), may_alias));
typedef short tb_narrow_there __attribute__((vector_size(TB_WIDE), aligned(2), may_alias));
typedef long long tb_wide_i64 __attribute__((vector_size(TB_WIDE_BYTES)));
typedef long long tb_narrow_i64 __attribute__((vector_size(TB_WIDE)));

// A number in all places; a vector stays what it is
#define TB_ALL(x) ((x) - (tb_wide_f32){})

// ---- the instructions -----------------------------------------------------------------------------------------------

// min and max: the second operand where one is NaN. Of bfloat16, `high` is what results are before rounding, `low` what
// is cut off; sums saturate, so that a NaN stays one, if it is quiet as after operations.
#if TB_WIDE == 32

#define TB_FMA_WIDE(a, b, c) __builtin_ia32_vfmaddps512_mask(TB_ALL(a), TB_ALL(b), TB_ALL(c), -1, 4)
TB_FN tb_wide_f32 tb_wide_min(tb_wide_f32 a, tb_wide_f32 b) { return __builtin_ia32_minps512_mask(a, b, a, -1, 4); }
TB_FN tb_wide_f32 tb_wide_max(tb_wide_f32 a, tb_wide_f32 b) { return __builtin_ia32_maxps512_mask(a, b, a, -1, 4); }

// The instructions for t - rint(t), which is 0 for infinities, and for p 2^n need no limits of t.
TB_FN tb_wide_f32 tb_wide_exp2_plus(tb_wide_f32 t) {
    tb_wide_f32 f = __builtin_ia32_reduceps512_mask(t, 0, t, -1);
    return __builtin_ia32_scalefps512_mask(TB_EXP2_HALF(WIDE, f), t - f, t, -1, 4) + 0x1p-24f;
}

TB_FN tb_wide_f32 tb_wide_from_f16(tb_narrow_i16 x) {
    return __builtin_ia32_vcvtph2ps512_mask(x, (tb_wide_f32){}, -1, 4);
}
TB_FN tb_narrow_i16 tb_wide_to_f16(tb_wide_f32 x) {
    return __builtin_ia32_vcvtps2ph512_mask(x, 0, (tb_narrow_i16){}, -1);
}

TB_FN tb_wide_i16 tb_wide_high(tb_wide_u32 a, tb_wide_u32 b) { return (tb_wide_i16)(a >> 16 | (b & 0xFFFF0000u)); }
TB_FN tb_wide_i16 tb_wide_low(tb_wide_u32 a, tb_wide_u32 b) { return (tb_wide_i16)((a & 0xFFFFu) | b << 16); }
TB_FN tb_wide_i16 tb_wide_round(tb_wide_i16 high, tb_wide_i16 low) {
    tb_wide_i16 half = (tb_wide_i16){} - 0x7FFF - 1, one = (tb_wide_i16){} + 1;
    tb_u32 up = __builtin_ia32_ucmpw512_mask(low | (high & 1), half, 6, -1);
    tb_wide_i16 sum = __builtin_ia32_paddsw512_mask(high, one, high, up);
    return __builtin_ia32_pmaxuw512_mask(sum, high, sum, -1);
}

TB_FN void tb_wide_past_f32(float *to, tb_wide_f32 x) { __builtin_ia32_movntps512(to, x); }
TB_FN void tb_wide_past(tb_u16 *to, tb_wide_i16 x) { __builtin_ia32_movntdq512((tb_wide_i64 *)to, (tb_wide_i64)x); }
TB_FN void tb_narrow_past(tb_u16 *to, tb_narrow_i16 x) {
    __builtin_ia32_movntdq256((tb_narrow_i64 *)to, (tb_narrow_i64)x);
}

#else

#define TB_FMA_WIDE(a, b, c) __builtin_ia32_vfmaddps256(TB_ALL(a), TB_ALL(b), TB_ALL(c))
TB_FN tb_wide_f32 tb_wide_min(tb_wide_f32 a, tb_wide_f32 b) { return __builtin_ia32_minps256(a, b); }
TB_FN tb_wide_f32 tb_wide_max(tb_wide_f32 a, tb_wide_f32 b) { return __builtin_ia32_maxps256(a, b); }

TB_FN tb_wide_f32 tb_wide_exp2_plus(tb_wide_f32 t) {
    t = tb_wide_min(TB_ALL(128.0f), tb_wide_max(TB_ALL(-100.0f), t));
    tb_wide_f32 n = __builtin_ia32_roundps256(t, 0), f = t - n;
    tb_wide_f32 s = (tb_wide_f32)((tb_wide_u32)(n + (TB_ROUND_F32 + 127.0f)) << 23);
    return TB_FMA_WIDE(TB_EXP2_HALF(WIDE, f), s, 0x1p-24f);
}

TB_FN tb_wide_f32 tb_wide_from_f16(tb_narrow_i16 x) { return __builtin_ia32_vcvtph2ps256(x); }
TB_FN tb_narrow_i16 tb_wide_to_f16(tb_wide_f32 x) { return __builtin_ia32_vcvtps2ph256(x, 0); }

TB_FN tb_wide_i16 tb_wide_high(tb_wide_u32 a, tb_wide_u32 b) {
    return __builtin_ia32_pblendw256((tb_wide_i16)(a >> 16), (tb_wide_i16)b, 0xAA);
}
TB_FN tb_wide_i16 tb_wide_low(tb_wide_u32 a, tb_wide_u32 b) {
    return __builtin_ia32_pblendw256((tb_wide_i16)a, (tb_wide_i16)(b << 16), 0xAA);
}
TB_FN tb_wide_i16 tb_wide_round(tb_wide_i16 high, tb_wide_i16 low) {
    tb_wide_i16 half = (tb_wide_i16){} - 0x7FFF - 1;
    tb_wide_i16 up = ((low | (high & 1)) ^ half) > 0;  // without signs; -1 where so
    tb_wide_i16 sum = __builtin_ia32_psubsw256(high, up);
    return __builtin_ia32_pmaxuw256(sum, high);
}

TB_FN void tb_wide_past_f32(float *to, tb_wide_f32 x) { __builtin_ia32_movntps256(to, x); }
TB_FN void tb_wide_past(tb_u16 *to, tb_wide_i16 x) { __builtin_ia32_movntdq256((tb_wide_i64 *)to, (tb_wide_i64)x); }
TB_FN void tb_narrow_past(tb_u16 *to, tb_narrow_i16 x) {
    __builtin_ia32_movntdq((tb_narrow_i64 *)to, (tb_narrow_i64)x);
}

#endif

// ---- functions ------------------------------------------------------------------------------------------------------

// Those of vmath_f32.h, of vectors or numbers. A NaN comes out quiet, as operations leave it.
#define tb_wide_max_f32(x, y) tb_wide_first_nan(TB_ALL(x), tb_wide_max(TB_ALL(x), TB_ALL(y)))
#define tb_wide_min_f32(x, y) tb_wide_first_nan(TB_ALL(x), tb_wide_min(TB_ALL(x), TB_ALL(y)))
TB_FN tb_wide_f32 tb_wide_quiet(tb_wide_f32 x) {
    return (tb_wide_f32)((tb_wide_i32)x | ((tb_wide_i32)(x != x) & 0x400000));
}
TB_FN tb_wide_f32 tb_wide_first_nan(tb_wide_f32 x, tb_wide_f32 other) {
    const tb_wide_i32 nan = x != x;
    return tb_wide_quiet((tb_wide_f32)(((tb_wide_i32)x & nan) | ((tb_wide_i32)other & ~nan)));
}
TB_FN tb_wide_f32 tb_wide_abs_f32(tb_wide_f32 x) { return tb_wide_quiet((tb_wide_f32)((tb_wide_u32)x & 0x7FFFFFFFu)); }

TB_FN tb_wide_f32 tb_wide_tanh_half(tb_wide_f32 x) {
    tb_wide_f32 y = tb_wide_max(TB_ALL(-7.0f), tb_wide_min(TB_ALL(7.0f), x));
    tb_wide_f32 q = y * y;
    return y * TB_TANH_HALF_P(WIDE, q, 1.0f) / TB_TANH_HALF_Q(WIDE, q);
}

TB_FN tb_wide_f32 tb_wide_one_plus_exp_half(tb_wide_f32 x) {
    return tb_wide_exp2_plus(TB_FMA_WIDE(x, -1.44269502f, -24.0f));
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

// ---- loads and stores -----------------------------------------------------------------------------------------------

TB_FN void tb_wide_load_f32(const float *from, tb_wide_f32 *a, tb_wide_f32 *b) {
    *a = *(const tb_wide_f32_there *)from;
    *b = *(const tb_wide_f32_there *)(from + TB_WIDE / 2);
}
TB_FN void tb_wide_load_f16(const tb_u16 *from, tb_wide_f32 *a, tb_wide_f32 *b) {
    *a = tb_wide_from_f16(*(const tb_narrow_there *)from);
    *b = tb_wide_from_f16(*(const tb_narrow_there *)(from + TB_WIDE / 2));
}
TB_FN void tb_wide_load_bf16(const tb_u16 *from, tb_wide_f32 *a, tb_wide_f32 *b) {
    tb_wide_u32 u = *(const tb_wide_u32_there *)from;
    *a = (tb_wide_f32)(u << 16);
    *b = (tb_wide_f32)(u & 0xFFFF0000u);
}

// `past` the cache: to addresses that are multiples of a vector, of which the next ones follow to the end of the line
TB_FN void tb_wide_store_f32(float *to, tb_wide_f32 a, tb_wide_f32 b, int past) {
    if (past) {
        tb_wide_past_f32(to, a);
        tb_wide_past_f32(to + TB_WIDE / 2, b);
    } else {
        *(tb_wide_f32_there *)to = a;
        *(tb_wide_f32_there *)(to + TB_WIDE / 2) = b;
    }
}
TB_FN void tb_wide_store_f16(tb_u16 *to, tb_wide_f32 a, tb_wide_f32 b, int past) {
    tb_narrow_i16 c = tb_wide_to_f16(a);
    tb_narrow_i16 d = tb_wide_to_f16(b);
    if (past) {
        tb_narrow_past(to, c);
        tb_narrow_past(to + TB_WIDE / 2, d);
    } else {
        *(tb_narrow_there *)to = c;
        *(tb_narrow_there *)(to + TB_WIDE / 2) = d;
    }
}

// Both at a time in integers, which takes no longer than the processor's own conversions and to mix what these give.
TB_FN void tb_wide_store_bf16(tb_u16 *to, tb_wide_f32 a, tb_wide_f32 b, int past) {
    tb_wide_u32 first = (tb_wide_u32)a, second = (tb_wide_u32)b;
    tb_wide_i16 r = tb_wide_round(tb_wide_high(first, second), tb_wide_low(first, second));
    if (past) {
        tb_wide_past(to, r);
    } else {
        *(tb_wide_u32_there *)to = (tb_wide_u32)r;
    }
}

// ---- blocks of hardly more elements than a vector has ---------------------------------------------------------------

// A vector, or half of one of AVX-512. Of the loops of half.h over so few elements gcc makes words one by one, which takes
// it seconds where a kernel does so in many places, and the kernel long.
typedef float tb_eight_f32_there __attribute__((vector_size(32), aligned(4), may_alias));
typedef tb_u32 tb_eight_u32_there __attribute__((vector_size(32), aligned(4), may_alias));
typedef tb_u16 tb_eight_u16_there __attribute__((vector_size(16), aligned(2), may_alias));

// Words of bfloat16 from those of numbers; `nan`: which are. The processor's own conversion has the same bits but for
// denormals, which it takes for zero: with 0x20, fpclass finds these.
#define TB_ROUND_BF16(u, nan) (((nan) & ((u) >> 16 | 0x40u)) | (~(nan) & (((u) + 0x7FFFu + ((u) >> 16 & 1u)) >> 16)))

TB_FN void tb_read_bf16(float *__restrict to, const tb_u16 *__restrict from, int m) {
    int j = 0;
#if TB_WIDE == 32
    for (; j + 16 <= m; j += 16) {
        const tb_narrow_i16 words = *(const tb_narrow_there *)(from + j);
        const tb_wide_i32 wide = __builtin_ia32_pmovzxwd512_mask(words, (tb_wide_i32){}, -1);
        *(tb_wide_f32_there *)(to + j) = (tb_wide_f32)(wide << 16);
    }
#endif
    for (; j + 8 <= m; j += 8) {
        const tb_eight_u16_there words = *(const tb_eight_u16_there *)(from + j);
        *(tb_eight_u32_there *)(to + j) = __builtin_convertvector(words, tb_eight_u32_there) << 16;
    }
    for (; j < m; ++j) to[j] = tb_bf16_to_f32(from[j]);
}
TB_FN void tb_write_bf16(tb_u16 *__restrict to, const float *__restrict from, int m) {
    int j = 0;
#if TB_WIDE == 32
    for (; j + 16 <= m; j += 16) {
        const tb_wide_f32 x = *(const tb_wide_f32_there *)(from + j);
#ifdef __AVX512BF16__
        if (!__builtin_ia32_fpclassps512_mask(x, 0x20, -1)) {
            *(tb_narrow_there *)(to + j) = (tb_narrow_i16)__builtin_ia32_cvtneps2bf16_v16sf(x);
            continue;
        }
#endif
        const tb_wide_u32 u = (tb_wide_u32)x, nan = (tb_wide_u32)(x != x), words = TB_ROUND_BF16(u, nan);
        *(tb_narrow_there *)(to + j) = __builtin_ia32_pmovdw512_mask((tb_wide_i32)words, (tb_narrow_i16){}, -1);
    }
#endif
    for (; j + 8 <= m; j += 8) {
        const tb_eight_f32_there x = *(const tb_eight_f32_there *)(from + j);
        const tb_eight_u32_there u = (tb_eight_u32_there)x, nan = (tb_eight_u32_there)(x != x);
        const tb_eight_u32_there words = TB_ROUND_BF16(u, nan);
        *(tb_eight_u16_there *)(to + j) = __builtin_convertvector(words, tb_eight_u16_there);
    }
    for (; j < m; ++j) to[j] = tb_f32_to_bf16(from[j]);
}
TB_FN void tb_read_f16(float *__restrict to, const tb_u16 *__restrict from, int m) {
    int j = 0;
    for (; j + TB_WIDE / 2 <= m; j += TB_WIDE / 2)
        *(tb_wide_f32_there *)(to + j) = tb_wide_from_f16(*(const tb_narrow_there *)(from + j));
    tb_load_f16(to + j, from + j, m - j);
}
TB_FN void tb_write_f16(tb_u16 *__restrict to, const float *__restrict from, int m) {
    int j = 0;
    for (; j + TB_WIDE / 2 <= m; j += TB_WIDE / 2)
        *(tb_narrow_there *)(to + j) = tb_wide_to_f16(*(const tb_wide_f32_there *)(from + j));
    tb_store_f16(to + j, from + j, m - j);
}

#else

TB_FN void tb_read_bf16(float *__restrict to, const tb_u16 *__restrict from, int m) { tb_load_bf16(to, from, m); }
TB_FN void tb_write_bf16(tb_u16 *__restrict to, const float *__restrict from, int m) { tb_store_bf16(to, from, m); }
TB_FN void tb_read_f16(float *__restrict to, const tb_u16 *__restrict from, int m) { tb_load_f16(to, from, m); }
TB_FN void tb_write_f16(tb_u16 *__restrict to, const float *__restrict from, int m) { tb_store_f16(to, from, m); }

#endif
#endif
