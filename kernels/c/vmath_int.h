// SPDX-License-Identifier: Apache-2.0
// vmath_int.h — integer functions of vmath.h, and floats to integers
//
// As NumPy: results wrap, a division by zero gives 0, floor division and remainder go by the floor of the quotient.
// Nothing traps and no signed overflow is left to the compiler: arithmetic that can wrap is done unsigned.
#ifndef TB_VMATH_INT_H
#define TB_VMATH_INT_H

// ---- extremes, sign, magnitude, power: type T, called S, its unsigned form U, and whether x is negative -------------

// A negative exponent gives 0 except to a base of 1 or -1.
#define TB_INTEGER(T, S, U, NEGATIVE) \
    TB_FN T tb_max_##S(T a, T b) { return a > b ? a : b; } \
    TB_FN T tb_min_##S(T a, T b) { return a < b ? a : b; } \
    TB_FN T tb_sign_##S(T x) { return (T)((x > 0) - NEGATIVE(x)); } \
    TB_FN T tb_abs_##S(T x) { return NEGATIVE(x) ? (T)(0u - (U)x) : x; } \
    TB_FN T tb_pow_##S(T x, T y) { \
        U base = (U)x; \
        U power = 1; \
        for (U left = (U)y; left; left = (U)(left >> 1)) { \
            power = left & 1 ? (U)((tb_u64)power * base) : power; \
            base = (U)((tb_u64)base * base); \
        } \
        T unit = x == 1 || ((T)-1 == x && !(y & 1)) ? (T)1 : (T)-1 == x ? x : (T)0; \
        return NEGATIVE(y) ? unit : (T)power; \
    }
#define TB_IS_NEGATIVE(x) ((x) < 0)
#define TB_NOT_NEGATIVE(x) 0
TB_INTEGER(tb_i8, i8, tb_u8, TB_IS_NEGATIVE)
TB_INTEGER(tb_i16, i16, tb_u16, TB_IS_NEGATIVE)
TB_INTEGER(tb_i32, i32, tb_u32, TB_IS_NEGATIVE)
TB_INTEGER(tb_i64, i64, tb_u64, TB_IS_NEGATIVE)
TB_INTEGER(tb_u8, u8, tb_u8, TB_NOT_NEGATIVE)
TB_INTEGER(tb_u16, u16, tb_u16, TB_NOT_NEGATIVE)
TB_INTEGER(tb_u32, u32, tb_u32, TB_NOT_NEGATIVE)
TB_INTEGER(tb_u64, u64, tb_u64, TB_NOT_NEGATIVE)

// ---- floor division and remainder ---------------------------------------------------------------------------------

// Up to 32 bits through the quotient in a float type F wide enough that it rounds to an integer only
// if it is one: vectors have no integer division. Results wrap on the way back. The divisor is
// compared as the float it is divided by: a choice by an integer that is one for all kept loops from being vectors.
TB_FN tb_i32 tb_wrap_f32(float x) { return (tb_i32)x; }
TB_FN tb_i32 tb_wrap_f64(double x) { return (tb_i32)(x >= 0x1p31 ? x - 0x1p32 : x); }
#define TB_DIVISION(T, S, F, FS) \
    TB_FN T tb_floordiv_##S(T x, T y) { \
        F d = (F)y; \
        F q = tb_floor_##FS((F)x / (d == 0 ? (F)1 : d)); \
        return (T)tb_wrap_##FS(d == 0 ? (F)0 : q); \
    } \
    TB_FN T tb_mod_##S(T x, T y) { \
        F d = (F)y; \
        F q = tb_floor_##FS((F)x / (d == 0 ? (F)1 : d)); \
        return (T)tb_wrap_##FS(d == 0 ? (F)0 : (F)x - q * d); \
    }
TB_DIVISION(tb_i8, i8, float, f32)
TB_DIVISION(tb_i16, i16, float, f32)
TB_DIVISION(tb_i32, i32, double, f64)
TB_DIVISION(tb_u8, u8, float, f32)
TB_DIVISION(tb_u16, u16, float, f32)
TB_DIVISION(tb_u32, u32, double, f64)

// 64 bits: the processor's division, one element at a time; x / -1 is a negation
TB_FN tb_i64 tb_floordiv_i64(tb_i64 x, tb_i64 y) {
    tb_i64 d = y == 0 || y == -1 ? 1 : y;
    tb_i64 q = x / d - ((x % d != 0) & ((x < 0) != (d < 0)));
    tb_i64 negated = (tb_i64)(0u - (tb_u64)x);
    return y == 0 ? 0 : y == -1 ? negated : q;
}
TB_FN tb_i64 tb_mod_i64(tb_i64 x, tb_i64 y) {
    tb_i64 d = y == 0 || y == -1 ? 1 : y;
    tb_i64 r = x % d;
    return ((r != 0) & ((r < 0) != (d < 0))) ? r + d : r;
}
TB_FN tb_u64 tb_floordiv_u64(tb_u64 x, tb_u64 y) { return y == 0 ? 0 : x / (y == 0 ? 1 : y); }
TB_FN tb_u64 tb_mod_u64(tb_u64 x, tb_u64 y) { return y == 0 ? 0 : x % (y == 0 ? 1 : y); }

// ---- floats to integers: truncated, saturated, NaN to 0 ------------------------------------------------------------

// Narrow types through 32 bits; the limits LOW and MOST are floats of type F.
#define TB_TO_NARROW(F, FS, T, S, LOW, MOST) \
    TB_FN T tb_##FS##_to_##S(F x) { \
        F c = x > (F)LOW ? x : (F)LOW; \
        c = c < (F)MOST ? c : (F)MOST; \
        c = x == x ? c : (F)0; \
        return (T)(tb_i32)c; \
    }
// Wide types: LOW and ABOVE bound what converts, MOST is the largest integer. An unsigned number in the upper half of
// its range converts as a signed one less HALF.
#define TB_TO_SIGNED(F, FS, T, S, U, LOW, ABOVE) \
    TB_FN T tb_##FS##_to_##S(F x) { \
        T r = (T)(((x >= (F)LOW) & (x < (F)ABOVE)) ? x : (F)0); \
        r = x < (F)LOW ? (T)((U)1 << (8 * sizeof(T) - 1)) : r; \
        return x >= (F)ABOVE ? (T)((U)-1 >> 1) : r; \
    }
#define TB_TO_UNSIGNED(F, FS, T, S, I, HALF, ABOVE) \
    TB_FN T tb_##FS##_to_##S(F x) { \
        F c = ((x > (F)0) & (x < (F)ABOVE)) ? x : (F)0; \
        T upper = (T)(I)(c - (F)HALF) ^ (T)((T)1 << (8 * sizeof(T) - 1)); \
        T r = c >= (F)HALF ? upper : (T)(I)(c < (F)HALF ? c : (F)0); \
        return x >= (F)ABOVE ? (T)-1 : r; \
    }
#define TB_TO_INTEGERS(F, FS) \
    TB_TO_NARROW(F, FS, tb_i8, i8, -128, 127) \
    TB_TO_NARROW(F, FS, tb_i16, i16, -32768, 32767) \
    TB_TO_NARROW(F, FS, tb_u8, u8, 0, 255) \
    TB_TO_NARROW(F, FS, tb_u16, u16, 0, 65535) \
    TB_TO_SIGNED(F, FS, tb_i32, i32, tb_u32, -0x1p31, 0x1p31) \
    TB_TO_SIGNED(F, FS, tb_i64, i64, tb_u64, -0x1p63, 0x1p63) \
    TB_TO_UNSIGNED(F, FS, tb_u32, u32, tb_i32, 0x1p31, 0x1p32) \
    TB_TO_UNSIGNED(F, FS, tb_u64, u64, tb_i64, 0x1p63, 0x1p64)
TB_TO_INTEGERS(float, f32)
TB_TO_INTEGERS(double, f64)

#endif
