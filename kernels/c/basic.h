// SPDX-License-Identifier: Apache-2.0
// basic.h — the op table's functions that need no approximation: integers, rounding, extremes, conversions; and, through
// the C library, the functions that the vector maths header has no form of its own for
//
// Extremes let NaN pass from either side. Integer division by zero gives 0 and the one overflowing quotient wraps, as
// NumPy's do. Floats become integers by truncation, saturating, NaN giving 0. Built with -fwrapv.
#ifndef TB_BASIC_H
#define TB_BASIC_H

#include "vmath.h"

#define TB_FLOAT_BASICS(T, S, F) \
    TB_FN T tbb_max_##S(T a, T b) { T m = a > b ? a : b; return a != a ? a : m; } \
    TB_FN T tbb_min_##S(T a, T b) { T m = a < b ? a : b; return a != a ? a : m; } \
    TB_FN T tbb_sign_##S(T x) { T s = x > 0 ? (T)1 : (T)0; s = x < 0 ? (T)-1 : s; return x != x ? x : s; } \
    TB_FN T tbb_rint_##S(T x) { return __builtin_rint##F(x); } \
    TB_FN T tbb_ceil_##S(T x) { return __builtin_ceil##F(x); } \
    TB_FN T tbb_trunc_##S(T x) { return __builtin_trunc##F(x); } \
    TB_FN T tbb_mod_##S(T x, T y) { \
        T r = __builtin_fmod##F(x, y); \
        if (r != 0) return (r < 0) != (y < 0) ? r + y : r; \
        return r == 0 ? __builtin_copysign##F((T)0, y) : r; \
    } \
    TB_FN T tbb_floordiv_##S(T x, T y) { \
        if (y == 0) return x / y; \
        T r = __builtin_fmod##F(x, y), q = (x - r) / y; \
        if (r != 0 && (r < 0) != (y < 0)) q -= 1; \
        if (q == 0) return __builtin_copysign##F((T)0, x / y); \
        T whole = __builtin_floor##F(q); \
        return q - whole > (T)0.5 ? whole + 1 : whole; \
    }
TB_FLOAT_BASICS(float, f32, f)
TB_FLOAT_BASICS(double, f64, )

#define TB_INTEGER_BASICS(T, S, NEGATIVE) \
    TB_FN T tbb_max_##S(T a, T b) { return a > b ? a : b; } \
    TB_FN T tbb_min_##S(T a, T b) { return a < b ? a : b; } \
    TB_FN T tbb_sign_##S(T x) { return (T)((x > 0) - NEGATIVE(x)); } \
    TB_FN T tbb_abs_##S(T x) { return NEGATIVE(x) ? (T)-x : x; } \
    TB_FN T tbb_floordiv_##S(T x, T y) { \
        if (y == 0) return 0; \
        if (NEGATIVE(y) && y == (T)-1) return (T)-x; \
        T q = (T)(x / y); \
        return (x % y != 0) && (NEGATIVE(x) != NEGATIVE(y)) ? (T)(q - 1) : q; \
    } \
    TB_FN T tbb_mod_##S(T x, T y) { \
        if (y == 0 || (NEGATIVE(y) && y == (T)-1)) return 0; \
        T r = (T)(x % y); \
        return r != 0 && (NEGATIVE(x) != NEGATIVE(y)) ? (T)(r + y) : r; \
    } \
    TB_FN T tbb_pow_##S(T x, T y) { \
        if (NEGATIVE(y)) return x == 1 ? (T)1 : NEGATIVE(x) && x == (T)-1 ? ((y & 1) ? x : (T)1) : (T)0; \
        T power = 1; \
        for (; y; y = (T)(y >> 1), x = (T)(x * x)) power = (y & 1) ? (T)(power * x) : power; \
        return power; \
    }
#define TB_BELOW(x) ((x) < 0)
#define TB_NEVER(x) 0
TB_INTEGER_BASICS(tb_i8, i8, TB_BELOW)
TB_INTEGER_BASICS(tb_i16, i16, TB_BELOW)
TB_INTEGER_BASICS(tb_i32, i32, TB_BELOW)
TB_INTEGER_BASICS(tb_i64, i64, TB_BELOW)
TB_INTEGER_BASICS(tb_u8, u8, TB_NEVER)
TB_INTEGER_BASICS(tb_u16, u16, TB_NEVER)
TB_INTEGER_BASICS(tb_u32, u32, TB_NEVER)
TB_INTEGER_BASICS(tb_u64, u64, TB_NEVER)

#define TB_TO_INTEGER(F, FS, T, S, LOW, ABOVE, MOST) \
    TB_FN T tbb_##FS##_to_##S(F x) { \
        F c = x >= (F)LOW ? x : (F)0; \
        c = c < (F)ABOVE ? c : (F)0; \
        T r = (T)c; \
        r = x >= (F)ABOVE ? (T)MOST : r; \
        return x < (F)LOW ? (T)LOW : r; \
    }
#define TB_TO_INTEGERS(F, FS) \
    TB_TO_INTEGER(F, FS, tb_i8, i8, -128, 128, 127) \
    TB_TO_INTEGER(F, FS, tb_i16, i16, -32768, 32768, 32767) \
    TB_TO_INTEGER(F, FS, tb_i32, i32, (-2147483647 - 1), 2147483648u, 2147483647) \
    TB_TO_INTEGER(F, FS, tb_i64, i64, (-9223372036854775807LL - 1), 9223372036854775808ull, 9223372036854775807LL) \
    TB_TO_INTEGER(F, FS, tb_u8, u8, 0, 256, 255) \
    TB_TO_INTEGER(F, FS, tb_u16, u16, 0, 65536, 65535) \
    TB_TO_INTEGER(F, FS, tb_u32, u32, 0, 4294967296ull, 4294967295u) \
    TB_TO_INTEGER(F, FS, tb_u64, u64, 0, 18446744073709551616.0, 18446744073709551615ull)
TB_TO_INTEGERS(float, f32)
TB_TO_INTEGERS(double, f64)

// float32 through the double function, which is right to half a unit in nearly all cases
#define TB_LIBRARY_F32(NAME, FUNCTION) \
    TB_FN float tbb_##NAME##_f32(float x) { return (float)__builtin_##FUNCTION((double)x); }
#define TB_LIBRARY_F64(NAME, FUNCTION) \
    TB_FN double tbb_##NAME##_f64(double x) { return __builtin_##FUNCTION(x); }
#define TB_LIBRARY(NAME, FUNCTION) TB_LIBRARY_F32(NAME, FUNCTION) TB_LIBRARY_F64(NAME, FUNCTION)
TB_LIBRARY(exp2, exp2)
TB_LIBRARY(expm1, expm1)
TB_LIBRARY(log2, log2)
TB_LIBRARY(log10, log10)
TB_LIBRARY(log1p, log1p)
TB_LIBRARY(erfc, erfc)
TB_LIBRARY(tan, tan)
TB_LIBRARY(asin, asin)
TB_LIBRARY(acos, acos)
TB_LIBRARY(atan, atan)
TB_LIBRARY(sinh, sinh)
TB_LIBRARY(cosh, cosh)
TB_LIBRARY(asinh, asinh)
TB_LIBRARY(acosh, acosh)
TB_LIBRARY(atanh, atanh)
TB_LIBRARY_F64(exp, exp)
TB_LIBRARY_F64(log, log)
TB_LIBRARY_F64(tanh, tanh)
TB_LIBRARY_F64(erf, erf)
TB_LIBRARY_F64(sin, sin)
TB_LIBRARY_F64(cos, cos)
TB_FN float tbb_atan2_f32(float x, float y) { return (float)__builtin_atan2((double)x, (double)y); }
TB_FN double tbb_atan2_f64(double x, double y) { return __builtin_atan2(x, y); }
TB_FN double tbb_pow_f64(double x, double y) { return __builtin_pow(x, y); }
TB_FN double tbb_sigmoid_f64(double x) {
    double e = __builtin_exp(-__builtin_fabs(x));
    return (x >= 0 ? 1.0 : e) / (1.0 + e);
}

#define tb_max_f32 tbb_max_f32
#define tb_min_f32 tbb_min_f32
#define tb_sign_f32 tbb_sign_f32
#define tb_rint_f32 tbb_rint_f32
#define tb_ceil_f32 tbb_ceil_f32
#define tb_trunc_f32 tbb_trunc_f32
#define tb_mod_f32 tbb_mod_f32
#define tb_floordiv_f32 tbb_floordiv_f32
#define tb_f32_to_i8 tbb_f32_to_i8
#define tb_f32_to_i16 tbb_f32_to_i16
#define tb_f32_to_i32 tbb_f32_to_i32
#define tb_f32_to_i64 tbb_f32_to_i64
#define tb_f32_to_u8 tbb_f32_to_u8
#define tb_f32_to_u16 tbb_f32_to_u16
#define tb_f32_to_u32 tbb_f32_to_u32
#define tb_f32_to_u64 tbb_f32_to_u64
#define tb_exp2_f32 tbb_exp2_f32
#define tb_expm1_f32 tbb_expm1_f32
#define tb_log2_f32 tbb_log2_f32
#define tb_log10_f32 tbb_log10_f32
#define tb_log1p_f32 tbb_log1p_f32
#define tb_erfc_f32 tbb_erfc_f32
#define tb_tan_f32 tbb_tan_f32
#define tb_asin_f32 tbb_asin_f32
#define tb_acos_f32 tbb_acos_f32
#define tb_atan_f32 tbb_atan_f32
#define tb_sinh_f32 tbb_sinh_f32
#define tb_cosh_f32 tbb_cosh_f32
#define tb_asinh_f32 tbb_asinh_f32
#define tb_acosh_f32 tbb_acosh_f32
#define tb_atanh_f32 tbb_atanh_f32
#define tb_atan2_f32 tbb_atan2_f32
#define tb_max_f64 tbb_max_f64
#define tb_min_f64 tbb_min_f64
#define tb_sign_f64 tbb_sign_f64
#define tb_rint_f64 tbb_rint_f64
#define tb_ceil_f64 tbb_ceil_f64
#define tb_trunc_f64 tbb_trunc_f64
#define tb_mod_f64 tbb_mod_f64
#define tb_floordiv_f64 tbb_floordiv_f64
#define tb_f64_to_i8 tbb_f64_to_i8
#define tb_f64_to_i16 tbb_f64_to_i16
#define tb_f64_to_i32 tbb_f64_to_i32
#define tb_f64_to_i64 tbb_f64_to_i64
#define tb_f64_to_u8 tbb_f64_to_u8
#define tb_f64_to_u16 tbb_f64_to_u16
#define tb_f64_to_u32 tbb_f64_to_u32
#define tb_f64_to_u64 tbb_f64_to_u64
#define tb_exp2_f64 tbb_exp2_f64
#define tb_expm1_f64 tbb_expm1_f64
#define tb_log2_f64 tbb_log2_f64
#define tb_log10_f64 tbb_log10_f64
#define tb_log1p_f64 tbb_log1p_f64
#define tb_erfc_f64 tbb_erfc_f64
#define tb_tan_f64 tbb_tan_f64
#define tb_asin_f64 tbb_asin_f64
#define tb_acos_f64 tbb_acos_f64
#define tb_atan_f64 tbb_atan_f64
#define tb_sinh_f64 tbb_sinh_f64
#define tb_cosh_f64 tbb_cosh_f64
#define tb_asinh_f64 tbb_asinh_f64
#define tb_acosh_f64 tbb_acosh_f64
#define tb_atanh_f64 tbb_atanh_f64
#define tb_atan2_f64 tbb_atan2_f64
#define tb_exp_f64 tbb_exp_f64
#define tb_log_f64 tbb_log_f64
#define tb_tanh_f64 tbb_tanh_f64
#define tb_erf_f64 tbb_erf_f64
#define tb_sin_f64 tbb_sin_f64
#define tb_cos_f64 tbb_cos_f64
#define tb_pow_f64 tbb_pow_f64
#define tb_sigmoid_f64 tbb_sigmoid_f64
#define tb_max_i8 tbb_max_i8
#define tb_min_i8 tbb_min_i8
#define tb_sign_i8 tbb_sign_i8
#define tb_abs_i8 tbb_abs_i8
#define tb_floordiv_i8 tbb_floordiv_i8
#define tb_mod_i8 tbb_mod_i8
#define tb_pow_i8 tbb_pow_i8
#define tb_max_i16 tbb_max_i16
#define tb_min_i16 tbb_min_i16
#define tb_sign_i16 tbb_sign_i16
#define tb_abs_i16 tbb_abs_i16
#define tb_floordiv_i16 tbb_floordiv_i16
#define tb_mod_i16 tbb_mod_i16
#define tb_pow_i16 tbb_pow_i16
#define tb_max_i32 tbb_max_i32
#define tb_min_i32 tbb_min_i32
#define tb_sign_i32 tbb_sign_i32
#define tb_abs_i32 tbb_abs_i32
#define tb_floordiv_i32 tbb_floordiv_i32
#define tb_mod_i32 tbb_mod_i32
#define tb_pow_i32 tbb_pow_i32
#define tb_max_i64 tbb_max_i64
#define tb_min_i64 tbb_min_i64
#define tb_sign_i64 tbb_sign_i64
#define tb_abs_i64 tbb_abs_i64
#define tb_floordiv_i64 tbb_floordiv_i64
#define tb_mod_i64 tbb_mod_i64
#define tb_pow_i64 tbb_pow_i64
#define tb_max_u8 tbb_max_u8
#define tb_min_u8 tbb_min_u8
#define tb_sign_u8 tbb_sign_u8
#define tb_abs_u8 tbb_abs_u8
#define tb_floordiv_u8 tbb_floordiv_u8
#define tb_mod_u8 tbb_mod_u8
#define tb_pow_u8 tbb_pow_u8
#define tb_max_u16 tbb_max_u16
#define tb_min_u16 tbb_min_u16
#define tb_sign_u16 tbb_sign_u16
#define tb_abs_u16 tbb_abs_u16
#define tb_floordiv_u16 tbb_floordiv_u16
#define tb_mod_u16 tbb_mod_u16
#define tb_pow_u16 tbb_pow_u16
#define tb_max_u32 tbb_max_u32
#define tb_min_u32 tbb_min_u32
#define tb_sign_u32 tbb_sign_u32
#define tb_abs_u32 tbb_abs_u32
#define tb_floordiv_u32 tbb_floordiv_u32
#define tb_mod_u32 tbb_mod_u32
#define tb_pow_u32 tbb_pow_u32
#define tb_max_u64 tbb_max_u64
#define tb_min_u64 tbb_min_u64
#define tb_sign_u64 tbb_sign_u64
#define tb_abs_u64 tbb_abs_u64
#define tb_floordiv_u64 tbb_floordiv_u64
#define tb_mod_u64 tbb_mod_u64
#define tb_pow_u64 tbb_pow_u64

#endif
