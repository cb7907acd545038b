// SPDX-License-Identifier: Apache-2.0
// vmath.h — elementwise mathematics for generated kernels, float32
//
// Straight-line functions that a compiler turns into vector code by itself: no branches, no library calls, no
// system header, no vector types. Included by generated C, by C++, and by CUDA C (nvcc and NVRTC).
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
#define tb_sqrt_f64(x) sqrt(x)
#define tb_floor_f32(x) floorf(x)
#define tb_floor_f64(x) floor(x)
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
#define tb_sqrt_f64(x) __builtin_sqrt(x)
#define tb_floor_f32(x) __builtin_floorf(x)
#define tb_floor_f64(x) __builtin_floor(x)
TB_FN tb_u32 tb_bits_f32(float x) { tb_u32 u; __builtin_memcpy(&u, &x, 4); return u; }
TB_FN float tb_from_bits_f32(tb_u32 u) { float x; __builtin_memcpy(&x, &u, 4); return x; }
TB_FN tb_u64 tb_bits_f64(double x) { tb_u64 u; __builtin_memcpy(&u, &x, 8); return u; }
TB_FN double tb_from_bits_f64(tb_u64 u) { double x; __builtin_memcpy(&x, &u, 8); return x; }
#endif

#define TB_SIGN_F32 0x80000000u
#define TB_ROUND_F32 12582912.0f          // 1.5 * 2^23: adding it rounds to an integer kept in the low bits
#define TB_ROUND_F64 6755399441055744.0   // 1.5 * 2^52

// ---- exponential ----------------------------------------------------------------------------------------------

// e^r - 1 for |r| <= ln(2)/2, relative error 2^-28 before rounding
TB_FN float tb_expm1_poly_f32(float r) {
    float p = 0.00137836358f;
    p = TB_FMA_F32(p, r, 0.0083688572f);
    p = TB_FMA_F32(p, r, 0.0416689552f);
    p = TB_FMA_F32(p, r, 0.166665196f);
    p = TB_FMA_F32(p, r, 0.499999911f);
    return TB_FMA_F32(r * r, p, r);
}

// e^x = 2^n e^r, n = rint(x / ln 2), r in two steps. 2^n in two factors (2^(n-1) * 2, or 2^(n+64) * 2^-64) so that
// results round once at both ends of the range. Bound 1.1
TB_FN float tb_exp_f32(float x) {
    float c = x < -104.0f ? -104.0f : x;
    float t = TB_FMA_F32(c, 1.44269502f, TB_ROUND_F32);
    tb_i32 k = (tb_i32)tb_bits_f32(t);
    k = k < 0x4B400080 ? k : 0x4B400080;                   // n <= 128: beyond, r grows and the result is +Inf
    float n = tb_from_bits_f32((tb_u32)k) - TB_ROUND_F32;
    float r = TB_FMA_F32(n, -0.693145752f, c);
    r = TB_FMA_F32(n, -1.42860677e-6f, r);
    float p = tb_expm1_poly_f32(r);
    tb_u32 bias = x < -86.0f ? 191u << 23 : 126u << 23;
    float a = tb_from_bits_f32(((tb_u32)k << 23) + bias);
    float b = x < -86.0f ? 0x1p-64f : 2.0f;
    return TB_FMA_F32(p, a, a) * b;
}

// (2^f - 1) / f for |f| <= 1/2
TB_FN float tb_exp2m1_poly_f32(float f) {
    float p = 0.000152462104f;
    p = TB_FMA_F32(p, f, 0.00133918982f);
    p = TB_FMA_F32(p, f, 0.00961882435f);
    p = TB_FMA_F32(p, f, 0.055503577f);
    p = TB_FMA_F32(p, f, 0.240226448f);
    return TB_FMA_F32(p, f, 0.693147182f);
}

// 2^f for |f| <= 1/2
TB_FN float tb_exp2_poly_f32(float f) { return TB_FMA_F32(tb_exp2m1_poly_f32(f), f, 1.0f); }

// ---- logarithm ------------------------------------------------------------------------------------------------

// x = 2^e m with m in [2/3, 4/3), log x = e ln 2 + log(1 + f), f = m - 1. Bound 1.0
TB_FN float tb_log_f32(float x) {
    float d = x < 0x1p-126f ? x * 0x1p23f : x;
    tb_u32 base = x < 0x1p-126f ? 0x3F2AAAABu + (23u << 23) : 0x3F2AAAABu;
    tb_u32 u = tb_bits_f32(d) - base;
    float e = (float)((tb_i32)u >> 23);
    float f = tb_from_bits_f32((u & 0x007FFFFFu) + 0x3F2AAAABu) - 1.0f;
    float p = -0.128930315f;
    p = TB_FMA_F32(p, f, 0.139868975f);
    p = TB_FMA_F32(p, f, -0.121839724f);
    p = TB_FMA_F32(p, f, 0.140053063f);
    p = TB_FMA_F32(p, f, -0.166805059f);
    p = TB_FMA_F32(p, f, 0.20010446f);
    p = TB_FMA_F32(p, f, -0.249997973f);
    p = TB_FMA_F32(p, f, 0.333332151f);
    p = TB_FMA_F32(p, f, -0.5f);
    float r = TB_FMA_F32(p, f * f, TB_FMA_F32(e, 1.42860677e-6f, f));
    r = TB_FMA_F32(e, 0.693145752f, r);
    r = x == 0.0f ? -TB_INF_F32 : r;
    r = x < 0.0f ? TB_NAN_F32 : r;
    return x < TB_INF_F32 ? r : x;                         // +Inf and NaN
}

// ---- hyperbolic tangent, logistic, error function ----------------------------------------------------------------

// |x| <= 0.625: odd polynomial; beyond: 1 - 2 / (e^2|x| + 1). A NaN takes the polynomial. Bound 1.5
TB_FN float tb_tanh_f32(float x) {
    tb_u32 u = tb_bits_f32(x) & ~TB_SIGN_F32;
    float a = tb_from_bits_f32(u);
    float y = tb_from_bits_f32(u < 0x41120000u ? u : 0x41120000u);      // min(|x|, 9.125), beyond which tanh is 1
    float t = TB_FMA_F32(y, 2.88539004f, TB_ROUND_F32);
    float n = t - TB_ROUND_F32;
    float q = tb_exp2_poly_f32(TB_FMA_F32(y, 2.88539004f, -n));
    float large = 1.0f - 2.0f / TB_FMA_F32(q, tb_from_bits_f32((tb_bits_f32(t) << 23) + 0x3F800000u), 1.0f);
    float s = a * a;
    float p = -0.00570009183f;
    p = TB_FMA_F32(p, s, 0.0206341203f);
    p = TB_FMA_F32(p, s, -0.0537379384f);
    p = TB_FMA_F32(p, s, 0.133314162f);
    p = TB_FMA_F32(p, s, -0.333332807f);
    float small = TB_FMA_F32(p * s, a, a);
    float r = a > 0.625f ? large : small;
    return tb_from_bits_f32(tb_bits_f32(r) | (tb_bits_f32(x) & TB_SIGN_F32));
}

// With |x| log2(e) = n + f: z = 2^-n / (2^-n + 2^f) for x < 0, otherwise 1 - z. 2^-n is exact, so denormal results
// round once. Bound 2.0
TB_FN float tb_sigmoid_f32(float x) {
    float a = tb_abs_f32(x);
    a = a > 104.5f ? 104.5f : a;
    float t = TB_FMA_F32(a, 1.44269502f, TB_ROUND_F32);
    float n = t - TB_ROUND_F32;
    float f = TB_FMA_F32(a, 1.44269502f, -n);
    f = TB_FMA_F32(a, 1.92596303e-8f, f);
    float q = tb_exp2m1_poly_f32(f);
    float s = tb_from_bits_f32(0x4B800000u - (tb_bits_f32(t) << 23)) * 0x1p-24f;
    float z = s / (1.0f + TB_FMA_F32(q, f, s));
    return x < 0.0f ? z : 1.0f - z;
}

// |x| <= 0.92: odd polynomial; beyond: 1 - 2^P(|x|) with P fitted to log2(erfc). A NaN takes the first. Bound 1.1
TB_FN float tb_erf_f32(float x) {
    tb_u32 u = tb_bits_f32(x) & ~TB_SIGN_F32;
    float a = tb_from_bits_f32(u);
    float s = x * x;
    float p = 7.49060782e-5f;
    p = TB_FMA_F32(p, s, -0.000794698368f);
    p = TB_FMA_F32(p, s, 0.00518522644f);
    p = TB_FMA_F32(p, s, -0.02685377f);
    p = TB_FMA_F32(p, s, 0.112836093f);
    p = TB_FMA_F32(p, s, -0.376126289f);
    p = TB_FMA_F32(p, s, 0.128379166f);
    float small = TB_FMA_F32(p, a, a);
    float y = tb_from_bits_f32(u < 0x40800000u ? u : 0x40800000u);      // min(|x|, 4), beyond which erf is 1
    float b = 0.000308037037f;
    b = TB_FMA_F32(b, y, -0.0046327599f);
    b = TB_FMA_F32(b, y, 0.0330062993f);
    b = TB_FMA_F32(b, y, -0.151835158f);
    b = TB_FMA_F32(b, y, -0.917166412f);
    b = TB_FMA_F32(b, y, 0.371903270f);
    b = TB_FMA_F32(b, y, -2.0f * y);
    float t = b + TB_ROUND_F32;
    float q = tb_exp2_poly_f32(b - (t - TB_ROUND_F32));
    float large = TB_FMA_F32(q, -tb_from_bits_f32((tb_bits_f32(t) << 23) + 0x3F800000u), 1.0f);
    float r = a > 0.92f ? large : small;
    return tb_from_bits_f32(tb_bits_f32(r) | (tb_bits_f32(x) & TB_SIGN_F32));
}

// ---- sine, cosine -----------------------------------------------------------------------------------------------

// |x| = (n + f) pi/2 with |f| <= 1/2; any finite x. Returns f, correct to half an ulp, and n modulo 2^32. Inf gives NaN.
// The product with 2/pi is exact in two doubles. A large x is a multiple of 2^g, so 2^g 2/pi may be taken modulo 4: g in
// steps of 26 keeps the product below 2^51. There its upper half is a multiple of 1/4, hence the second rounding.
TB_FN float tb_quarter_turns_f32(float x, tb_u32 *n) {
    double d = (double)tb_abs_f32(x);
    double high = 0.63661977236758138;
    double low = -3.9357353350364972e-17;
    high = d >= 0x1p50 ? 2.5682553266903661e-08 : high;
    low = d >= 0x1p50 ? -5.4341841077437507e-25 : low;
    high = d >= 0x1p76 ? 2.9370955403718198e-16 : high;
    low = d >= 0x1p76 ? 1.0181664387499709e-32 : low;
    high = d >= 0x1p102 ? 6.0740264896498461e-24 : high;
    low = d >= 0x1p102 ? 3.1436547554916045e-40 : low;
    double y = d * high;
    double rest = TB_FMA_F64(d, low, TB_FMA_F64(d, high, -y));
    double k = y + TB_ROUND_F64;
    double f = (y - (k - TB_ROUND_F64)) + rest;
    double j = f + TB_ROUND_F64;
    *n = (tb_u32)(tb_bits_f64(k) + tb_bits_f64(j));
    return (float)(f - (j - TB_ROUND_F64));
}

// sin(f pi/2) and cos(f pi/2) for |f| <= 1/2; pi/2 in two parts
TB_FN float tb_sin_quarter_f32(float f) {
    float s = f * f;
    float p = -0.00460419478f;
    p = TB_FMA_F32(p, s, 0.0796811730f);
    p = TB_FMA_F32(p, s, -0.645963609f);
    p = TB_FMA_F32(p, s, -4.37113883e-8f);
    return TB_FMA_F32(f, 1.57079637f, p * f);
}
TB_FN float tb_cos_quarter_f32(float f) {
    float s = f * f;
    float p = 0.000897442282f;
    p = TB_FMA_F32(p, s, -0.0208568107f);
    p = TB_FMA_F32(p, s, 0.253668666f);
    p = TB_FMA_F32(p, s, -1.23370051f);
    return TB_FMA_F32(p, s, 1.0f);
}

// Every magnitude. Bound 1.5
TB_FN float tb_sin_f32(float x) {
    tb_u32 n;
    float f = tb_quarter_turns_f32(x, &n);
    float odd = tb_cos_quarter_f32(f);
    float even = tb_sin_quarter_f32(f);
    float v = n & 1u ? odd : even;
    return tb_from_bits_f32(tb_bits_f32(v) ^ (tb_bits_f32(x) & TB_SIGN_F32) ^ ((n & 2u) << 30));
}
TB_FN float tb_cos_f32(float x) {
    tb_u32 n;
    float f = tb_quarter_turns_f32(x, &n);
    float odd = tb_sin_quarter_f32(f);
    float even = tb_cos_quarter_f32(f);
    float v = n & 1u ? odd : even;
    return tb_from_bits_f32(tb_bits_f32(v) ^ (((n + 1u) & 2u) << 30));
}

// ---- power ------------------------------------------------------------------------------------------------------

// log2 of a positive double that came from a float
TB_FN double tb_log2_wide_f32(double d) {
    tb_u64 u = tb_bits_f64(d) + 0x000AAAAAAAAAAAABull;     // m in [2/3, 4/3)
    double e = tb_from_bits_f64((u >> 52) | 0x4330000000000000ull) - 4503599627371519.0;
    double f = tb_from_bits_f64((u & 0x000FFFFFFFFFFFFFull) + 0x3FE5555555555555ull) - 1.0;
    double p = 0.15754173097399369;
    p = TB_FMA_F64(p, f, -0.166105305993006);
    p = TB_FMA_F64(p, f, 0.12356283039285704);
    p = TB_FMA_F64(p, f, -0.13746109367615257);
    p = TB_FMA_F64(p, f, 0.16089122466122674);
    p = TB_FMA_F64(p, f, -0.18080606488809653);
    p = TB_FMA_F64(p, f, 0.20607597372702663);
    p = TB_FMA_F64(p, f, -0.2404336603594035);
    p = TB_FMA_F64(p, f, 0.28853944167472205);
    p = TB_FMA_F64(p, f, -0.36067397861627532);
    p = TB_FMA_F64(p, f, 0.48089834396171816);
    p = TB_FMA_F64(p, f, -0.72134751956930443);
    p = TB_FMA_F64(p, f, 1.4426950408923305);
    return TB_FMA_F64(p, f, e);
}

// 2^l in double, l clamped to what a float can show; a NaN stays
TB_FN double tb_exp2_wide_f32(double l) {
    l = l > 160.0 ? 160.0 : l;
    l = l < -160.0 ? -160.0 : l;
    double k = l + TB_ROUND_F64;
    double r = l - (k - TB_ROUND_F64);
    double p = 0.00015353340933767508;
    p = TB_FMA_F64(p, r, 0.0013398900195643595);
    p = TB_FMA_F64(p, r, 0.0096184376068489431);
    p = TB_FMA_F64(p, r, 0.055503324096216423);
    p = TB_FMA_F64(p, r, 0.24022647910278486);
    p = TB_FMA_F64(p, r, 0.69314720288094877);
    p = TB_FMA_F64(p, r, 1.0);
    return p * tb_from_bits_f64((tb_bits_f64(k) << 52) + 0x3FF0000000000000ull);
}

// |x|^y = 2^(y log2 |x|) in double, rounded once; then IEEE 754's special cases. Bound 0.6
TB_FN float tb_pow_f32(float x, float y) {
    float a = tb_abs_f32(x);
    double l = tb_log2_wide_f32((double)a);
    l = a == 0.0f ? -TB_INF_F64 : l;
    l = a < TB_INF_F32 ? l : (double)a;
    float r = (float)tb_exp2_wide_f32((double)y * l);
    float h = 0.5f * y;
    tb_u32 integer = tb_floor_f32(y) == y;
    tb_u32 odd = integer & (tb_floor_f32(h) != h);
    tb_u32 negative = tb_bits_f32(x) >> 31;
    r = (x < 0.0f) & (a < TB_INF_F32) & (integer ^ 1u) ? TB_NAN_F32 : r;
    r = tb_from_bits_f32(tb_bits_f32(r) ^ ((odd & negative) << 31));
    tb_u32 one = (x == 1.0f) | (y == 0.0f) | ((a == 1.0f) & (tb_abs_f32(y) == TB_INF_F32));
    return one ? 1.0f : r;
}

#endif
