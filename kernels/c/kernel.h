// SPDX-License-Identifier: Apache-2.0
// kernel.h — what generated kernels share beside the vector maths: scalars, streaming stores, and the op table's
// few functions that are expressions of others
//
// Included by every generated kernel: no system header, little to parse.
#ifndef TB_KERNEL_H
#define TB_KERNEL_H

#include "vmath.h"
#include "half.h"
#include "philox.h"

// A scalar argument is 8 bytes: a double, or an integer.
TB_FN double tb_word_double(tb_i64 word) { return tb_from_bits_f64((tb_u64)word); }
TB_FN tb_i64 tb_word_tb_i64(tb_i64 word) { return word; }
TB_FN tb_i64 tb_double_word(double x) { return (tb_i64)tb_bits_f64(x); }

#define TB_LOWEST_f32 (-TB_INF_F32)
#define TB_HIGHEST_f32 TB_INF_F32
#define TB_LOWEST_f64 (-TB_INF_F64)
#define TB_HIGHEST_f64 TB_INF_F64
#define TB_LOWEST_i8 (-128)
#define TB_HIGHEST_i8 127
#define TB_LOWEST_i16 (-32768)
#define TB_HIGHEST_i16 32767
#define TB_LOWEST_i32 (-2147483647 - 1)
#define TB_HIGHEST_i32 2147483647
#define TB_LOWEST_i64 (-9223372036854775807LL - 1)
#define TB_HIGHEST_i64 9223372036854775807LL
#define TB_LOWEST_u8 0
#define TB_HIGHEST_u8 255
#define TB_LOWEST_u16 0
#define TB_HIGHEST_u16 65535
#define TB_LOWEST_u32 0
#define TB_HIGHEST_u32 4294967295u
#define TB_LOWEST_u64 0
#define TB_HIGHEST_u64 18446744073709551615ull

#ifndef TB_CUDA
// Asks for what is read some blocks later: processors by themselves stop at the end of a page, and look ahead too
// little where much is computed. An address beyond the end is no error.
TB_FN void tb_prefetch(const void *from, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)from + i + 4096);
}

// Stores past the cache. A destination that is not aligned to 64 bytes is copied plainly.
TB_FN void tb_stream(void *to, const void *from, int bytes) {
    char *o = (char *)to;
    const char *x = (const char *)from;
    int i = 0;
#if defined(__AVX512F__) || defined(__AVX__)
    if (((unsigned long)o & 63) == 0) {
        for (; i + 64 <= bytes; i += 64) {
#if defined(__AVX512F__)
            typedef float wide __attribute__((vector_size(64)));
            __builtin_ia32_movntps512((float *)(o + i), *(const wide *)(x + i));
#else
            typedef float wide __attribute__((vector_size(32)));
            __builtin_ia32_movntps256((float *)(o + i), *(const wide *)(x + i));
            __builtin_ia32_movntps256((float *)(o + i + 32), *(const wide *)(x + i + 32));
#endif
        }
    }
#endif
    __builtin_memcpy(o + i, x + i, (unsigned long)(bytes - i));
}
TB_FN void tb_stream_end(tb_i64 streams) {
#if defined(__SSE__)
    if (streams > 1) __builtin_ia32_sfence();
#else
    (void)streams;
#endif
}
#endif

#define TB_DERIVED(T, S, LN2, INF) \
    TB_FN int tb_isfinite_##S(T x) { return tb_abs_##S(x) < INF; } \
    TB_FN int tb_isinf_##S(T x) { return tb_abs_##S(x) == INF; } \
    TB_FN T tb_safelog_##S(T x) { T y = tb_log_##S(x); y = y < (T)-50 ? (T)-50 : y; return x <= 0 ? (T)-50 : y; } \
    TB_FN T tb_sigmoid2_##S(T x) { T e = tb_exp2_##S(-tb_abs_##S(x)); return (x < 0 ? e : (T)1) / (1 + e); } \
    TB_FN T tb_tanh2_##S(T x) { return tb_tanh_##S(x * (T)LN2); } \
    TB_FN T tb_pow2near_##S(T x) { \
        T y = tb_exp2_##S(tb_rint_##S(tb_log2_##S(tb_abs_##S(x)))); \
        y = x < 0 ? -y : y; \
        return x == 0 ? x : y; \
    }
TB_DERIVED(float, f32, 0.69314718055994531, TB_INF_F32)
TB_DERIVED(double, f64, 0.69314718055994531, TB_INF_F64)

// x with `kept` mantissa bits, rounded up where the random word exceeds what is lost.
TB_FN float tb_sround_f32(float x, tb_u32 word, tb_u32 kept) {
    tb_u32 bits = tb_bits_f32(x), mask = (1u << (23 - kept)) - 1u;
    float y = tb_from_bits_f32((bits + (word & mask)) & ~mask);
    return tb_isfinite_f32(x) ? y : x;
}

#define TB_BITS(T, S, WIDTH, NEGATIVE) \
    TB_FN T tb_invert_##S(T x) { return (T)~x; } \
    TB_FN T tb_shl_##S(T x, T y) { return (tb_u64)y < WIDTH ? (T)((tb_u64)x << ((tb_u64)y & (WIDTH - 1))) : (T)0; } \
    TB_FN T tb_shr_##S(T x, T y) { return (tb_u64)y < WIDTH ? (T)(x >> ((tb_u64)y & (WIDTH - 1))) : (T)(NEGATIVE ? -1 : 0); }
TB_BITS(tb_i8, i8, 8, x < 0)
TB_BITS(tb_i16, i16, 16, x < 0)
TB_BITS(tb_i32, i32, 32, x < 0)
TB_BITS(tb_i64, i64, 64, x < 0)
TB_BITS(tb_u8, u8, 8, 0)
TB_BITS(tb_u16, u16, 16, 0)
TB_BITS(tb_u32, u32, 32, 0)
TB_BITS(tb_u64, u64, 64, 0)

#ifndef TB_CUDA
#include "reduce.h"
#endif

#endif
