// SPDX-License-Identifier: Apache-2.0
// vmath.h — elementwise mathematics for generated kernels: types and macros here, the functions in the headers below
//
// Straight-line functions that a compiler turns into vector code by itself: no branches, no library calls (huge quotients
// of float64 alone have both), no system header; vector types only in vmath_lanes.h, which says what for. Included by
// generated C, by C++, and by CUDA C (nvcc and NVRTC).
//
// Same bits     fused multiply-adds are written out (TB_FMA_*) and everything else rounds once, so results are
//               equal on every compiler and processor with IEEE arithmetic, if compiled without contraction:
//               -ffp-contract=off (gcc, clang), -fmad=false (nvcc). The sign and payload of a NaN are not defined.
// Vectorises    with -O3 -fno-math-errno -fno-trapping-math. Never compile with -ffast-math or its parts
//               -ffinite-math-only and -funsafe-math-optimizations: NaN tests would be removed.
// Selects       c < x ? c : x   keeps a NaN in x;  a comparison with NaN is false: each function says which side
//               of its selects a NaN takes where it matters.
// Accuracy      bounds in the comments are units in the last place, measured over all 2^32 inputs (float32) or
//               stratified samples (float64): docs/accuracy.md. Denormal inputs and results count; nothing is flushed.
// Coefficients  minimax fits with coefficients rounded to the format (fpminimax of Sollya), not Taylor series.
// Checked       tests/vmath
#ifndef TB_VMATH_H
#define TB_VMATH_H

typedef signed char tb_i8;
typedef short tb_i16;
typedef int tb_i32;
typedef long long tb_i64;
typedef unsigned char tb_u8;
typedef unsigned short tb_u16;
typedef unsigned int tb_u32;
typedef unsigned long long tb_u64;

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define TB_FN static __device__ __forceinline__
#define TB_TABLE static __device__ const
#define TB_FMA_F32(a, b, c) fmaf(a, b, c)
#define TB_FMA_F64(a, b, c) fma(a, b, c)
#define TB_INF_F32 __int_as_float(0x7F800000)
#define TB_NAN_F32 __int_as_float(0x7FC00000)
#define TB_INF_F64 __longlong_as_double(0x7FF0000000000000LL)
#define TB_NAN_F64 __longlong_as_double(0x7FF8000000000000LL)
#define tb_abs_f32(x) fabsf(x)
#define tb_abs_f64(x) fabs(x)
#define tb_sqrt_f32(x) sqrtf(x)
#define tb_root_f64(x) sqrt(x)
#define tb_floor_f32(x) floorf(x)
#define tb_floor_f64(x) floor(x)
#define tb_ceil_f32(x) ceilf(x)
#define tb_ceil_f64(x) ceil(x)
#define tb_trunc_f32(x) truncf(x)
#define tb_trunc_f64(x) trunc(x)
#define tb_rint_f32(x) rintf(x)
#define tb_rint_f64(x) rint(x)
#define tb_libm_fmod_f64(x, y) fmod(x, y)
#define tb_unordered(x, y) ((x) != (x) || (y) != (y))  // whether one is a NaN
TB_FN tb_u32 tb_bits_f32(float x) { return (tb_u32)__float_as_int(x); }
TB_FN float tb_from_bits_f32(tb_u32 u) { return __int_as_float((tb_i32)u); }
TB_FN tb_u64 tb_bits_f64(double x) { return (tb_u64)__double_as_longlong(x); }
TB_FN double tb_from_bits_f64(tb_u64 u) { return __longlong_as_double((tb_i64)u); }
#else
#define TB_FN static inline __attribute__((always_inline))
#define TB_TABLE static const
#define TB_FMA_F32(a, b, c) __builtin_fmaf(a, b, c)
#define TB_FMA_F64(a, b, c) __builtin_fma(a, b, c)
#define TB_INF_F32 __builtin_inff()
#define TB_NAN_F32 __builtin_nanf("")
#define TB_INF_F64 __builtin_inf()
#define TB_NAN_F64 __builtin_nan("")
#define tb_abs_f32(x) __builtin_fabsf(x)
#define tb_abs_f64(x) __builtin_fabs(x)
#define tb_sqrt_f32(x) __builtin_sqrtf(x)
#define tb_root_f64(x) __builtin_sqrt(x)  // the instruction, as functions of more use it: tb_sqrt_f64 may be a call
#define tb_floor_f32(x) __builtin_floorf(x)
#define tb_floor_f64(x) __builtin_floor(x)
#define tb_ceil_f32(x) __builtin_ceilf(x)
#define tb_ceil_f64(x) __builtin_ceil(x)
#define tb_trunc_f32(x) __builtin_truncf(x)
#define tb_trunc_f64(x) __builtin_trunc(x)
#define tb_rint_f32(x) __builtin_rintf(x)
#define tb_rint_f64(x) __builtin_rint(x)
#define tb_libm_fmod_f64(x, y) __builtin_fmod(x, y)
#define tb_unordered(x, y) __builtin_isunordered(x, y)
TB_FN tb_u32 tb_bits_f32(float x) { tb_u32 u; __builtin_memcpy(&u, &x, 4); return u; }
TB_FN float tb_from_bits_f32(tb_u32 u) { float x; __builtin_memcpy(&x, &u, 4); return x; }
TB_FN tb_u64 tb_bits_f64(double x) { tb_u64 u; __builtin_memcpy(&u, &x, 8); return u; }
TB_FN double tb_from_bits_f64(tb_u64 u) { double x; __builtin_memcpy(&x, &u, 8); return x; }
#endif

#define TB_SIGN_F32 0x80000000u
#define TB_SIGN_F64 0x8000000000000000ull
#define TB_ROUND_F32 12582912.0f          // 1.5 * 2^23: adding it rounds to an integer kept in the low bits
#define TB_ROUND_F64 6755399441055744.0   // 1.5 * 2^52

// TB_P<n>(F32 or F64, x, c0, c1, ..., cn): the polynomial of degree n by Horner's rule, n fused multiply-adds
#define TB_P1(T, x, a, b) TB_FMA_##T(b, x, a)
#define TB_P2(T, x, a, ...) TB_FMA_##T(TB_P1(T, x, __VA_ARGS__), x, a)
#define TB_P3(T, x, a, ...) TB_FMA_##T(TB_P2(T, x, __VA_ARGS__), x, a)
#define TB_P4(T, x, a, ...) TB_FMA_##T(TB_P3(T, x, __VA_ARGS__), x, a)
#define TB_P5(T, x, a, ...) TB_FMA_##T(TB_P4(T, x, __VA_ARGS__), x, a)
#define TB_P6(T, x, a, ...) TB_FMA_##T(TB_P5(T, x, __VA_ARGS__), x, a)
#define TB_P7(T, x, a, ...) TB_FMA_##T(TB_P6(T, x, __VA_ARGS__), x, a)
#define TB_P8(T, x, a, ...) TB_FMA_##T(TB_P7(T, x, __VA_ARGS__), x, a)
#define TB_P9(T, x, a, ...) TB_FMA_##T(TB_P8(T, x, __VA_ARGS__), x, a)
#define TB_P10(T, x, a, ...) TB_FMA_##T(TB_P9(T, x, __VA_ARGS__), x, a)
#define TB_P11(T, x, a, ...) TB_FMA_##T(TB_P10(T, x, __VA_ARGS__), x, a)
#define TB_P12(T, x, a, ...) TB_FMA_##T(TB_P11(T, x, __VA_ARGS__), x, a)
#define TB_P13(T, x, a, ...) TB_FMA_##T(TB_P12(T, x, __VA_ARGS__), x, a)
#define TB_P14(T, x, a, ...) TB_FMA_##T(TB_P13(T, x, __VA_ARGS__), x, a)
#define TB_P15(T, x, a, ...) TB_FMA_##T(TB_P14(T, x, __VA_ARGS__), x, a)
#define TB_P16(T, x, a, ...) TB_FMA_##T(TB_P15(T, x, __VA_ARGS__), x, a)
#define TB_P17(T, x, a, ...) TB_FMA_##T(TB_P16(T, x, __VA_ARGS__), x, a)
#define TB_P18(T, x, a, ...) TB_FMA_##T(TB_P17(T, x, __VA_ARGS__), x, a)
#define TB_P19(T, x, a, ...) TB_FMA_##T(TB_P18(T, x, __VA_ARGS__), x, a)
#define TB_P20(T, x, a, ...) TB_FMA_##T(TB_P19(T, x, __VA_ARGS__), x, a)
#define TB_P21(T, x, a, ...) TB_FMA_##T(TB_P20(T, x, __VA_ARGS__), x, a)
#define TB_P22(T, x, a, ...) TB_FMA_##T(TB_P21(T, x, __VA_ARGS__), x, a)

// TB_Q<n>(F32 or F64, x, x * x, c0, c1, ..., cn): the same by four coefficients at a time, in hardly more operations and a
// chain of a third the length: of long polynomials a processor sees too few numbers at once to fill the whole chain.
#define TB_Q0(T, x, s, a) a
#define TB_Q1(T, x, s, a, b) TB_FMA_##T(b, x, a)
#define TB_Q2(T, x, s, a, b, c) TB_FMA_##T(c, s, TB_FMA_##T(b, x, a))
#define TB_Q3(T, x, s, a, b, c, d) TB_FMA_##T(TB_FMA_##T(d, x, c), s, TB_FMA_##T(b, x, a))
#define TB_Q4(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q0(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q5(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q1(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q6(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q2(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q7(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q3(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q8(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q4(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q9(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q5(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q10(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q6(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q11(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q7(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q12(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q8(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q13(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q9(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q14(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q10(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q15(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q11(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q17(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q13(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))
#define TB_Q19(T, x, s, a, b, c, d, ...) TB_FMA_##T(TB_Q15(T, x, s, __VA_ARGS__), (s) * (s), TB_Q3(T, x, s, a, b, c, d))

// a with the sign bit of b put on it; a must not be negative
#define tb_put_sign_f32(a, b) tb_from_bits_f32(tb_bits_f32(a) | (tb_bits_f32(b) & TB_SIGN_F32))
#define tb_put_sign_f64(a, b) tb_from_bits_f64(tb_bits_f64(a) | (tb_bits_f64(b) & TB_SIGN_F64))

#include "vmath_f32.h"
#include "vmath_f64.h"
#include "vmath_angles_f32.h"
#include "vmath_angles_f64.h"
#include "vmath_int.h"

#endif
