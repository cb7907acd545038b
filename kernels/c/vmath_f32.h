// SPDX-License-Identifier: Apache-2.0
// vmath_f32.h — float32 functions of vmath.h, which says what holds for all of them, but those of angles
//
// Results are correct to the bound in the comment, in units in the last place, for every one of the 2^32 inputs.
// Hard cases (powers, inverse hyperbolics, erfc) go through double, which costs half the lanes.
#ifndef TB_VMATH_F32_H
#define TB_VMATH_F32_H

#include "vmath_lanes.h"

// ---- the simple ones ----------------------------------------------------------------------------------------------

// As NumPy's maximum and minimum: a NaN on either side comes through
TB_FN float tb_max_f32(float a, float b) {
    float m = a > b ? a : b;
    return a != a ? a : m;
}
TB_FN float tb_min_f32(float a, float b) {
    float m = a < b ? a : b;
    return a != a ? a : m;
}

// 1, 0 or -1; NaN stays
TB_FN float tb_sign_f32(float x) {
    float s = x > 0.0f ? 1.0f : 0.0f;
    s = x < 0.0f ? -1.0f : s;
    return x != x ? x : s;
}

// Bound 1.5
TB_FN float tb_rsqrt_f32(float x) { return 1.0f / tb_sqrt_f32(x); }

// What a power of 1/2 takes the square root of: as IEEE 754 has powers, -0 counts as 0 and -Inf as Inf
TB_FN float tb_radicand_f32(float x) { return x == -TB_INF_F32 ? TB_INF_F32 : x + 0.0f; }

// ---- exponentials -------------------------------------------------------------------------------------------------

// (2^f - 1) / f for |f| <= 1/2
TB_FN float tb_exp2m1_over_f32(float f) {
    return TB_P5(F32, f, 0.693147182f, 0.240226448f, 0.055503577f, 0.00961882435f, 0.00133918982f, 0.000152462104f);
}

// (e^r - 1 - r) / r^2 for |r| <= ln(2)/2
TB_FN float tb_exp_tail_f32(float r) {
    return TB_P4(F32, r, 0.499999911f, 0.166665196f, 0.0416689552f, 0.0083688572f, 0.00137836358f);
}

// (1 + p) 2^n for n in [-151, 128] given as the bits k of n + 1.5 * 2^23, `low` true for n < -125 and false for n > 64.
// The factor 2^n is taken in two parts, so that results round once at both ends of the range.
TB_FN float tb_scale_f32(float p, tb_u32 k, int low) {
    float a = tb_from_bits_f32((k << 23) + (low ? 191u << 23 : 126u << 23));
    float b = low ? 0x1p-64f : 2.0f;
    return TB_FMA_F32(p, a, a) * b;
}

// e^x = 2^n e^r, n = rint(x / ln 2), r in two steps. Bound 1.1
TB_FN float tb_exp_f32(float x) {
    float c = x < -104.0f ? -104.0f : x;
    float t = TB_FMA_F32(c, 1.44269502f, TB_ROUND_F32);
    tb_i32 k = (tb_i32)tb_bits_f32(t);
    k = k < 0x4B400080 ? k : 0x4B400080;                   // n <= 128: beyond, r grows and the result is +Inf
    float n = tb_from_bits_f32((tb_u32)k) - TB_ROUND_F32;
    float r = TB_FMA_F32(n, -0.693145752f, c);
    r = TB_FMA_F32(n, -1.42860677e-6f, r);
    float p = TB_FMA_F32(tb_exp_tail_f32(r), r * r, r);
    return tb_scale_f32(p, (tb_u32)k, x < -86.0f);
}

// 2^x = 2^n 2^f with an exact f. Bound 1.1
TB_FN float tb_exp2_f32(float x) {
    float c = x < -151.0f ? -151.0f : x;
    tb_i32 k = (tb_i32)tb_bits_f32(c + TB_ROUND_F32);
    k = k < 0x4B400080 ? k : 0x4B400080;
    float f = c - (tb_from_bits_f32((tb_u32)k) - TB_ROUND_F32);
    return tb_scale_f32(tb_exp2m1_over_f32(f) * f, (tb_u32)k, x < -124.0f);
}

// e^x - 1 = 2 (s e^r - 1/2) with s = 2^(n-1). The leading sum s r + (s - 1/2) keeps its rounding error. Bound 1.1
TB_FN float tb_expm1_f32(float x) {
    float c = x < -18.0f ? -18.0f : x;
    float t = TB_FMA_F32(c, 1.44269502f, TB_ROUND_F32);
    float n = t - TB_ROUND_F32;
    float q = TB_FMA_F32(n, -0.693145752f, c);
    float r = TB_FMA_F32(n, -1.42860677e-6f, q);
    float rest = TB_FMA_F32(n, -1.42860677e-6f, q - r);
    float s = tb_from_bits_f32((tb_bits_f32(t) << 23) + (126u << 23));
    float m = TB_FMA_F32(s, r, s - 0.5f);
    float e = TB_FMA_F32(s, r, (s - 0.5f) - m);
    e = TB_FMA_F32(s, TB_FMA_F32(tb_exp_tail_f32(r), r * r, rest), e);
    float v = 2.0f * (m + e);
    v = x > 89.0f ? TB_INF_F32 : v;
    return tb_abs_f32(x) < 0x1p-26f ? x : v;
}

// ---- logarithms ---------------------------------------------------------------------------------------------------

// log(1 + f) + e ln 2 for f in [-1/4, 1/2] and an integer e
TB_FN float tb_log_sum_f32(float f, float e) {
    float p = TB_P8(F32, f, -0.5f, 0.333334625f, -0.250001937f, 0.199903712f, -0.166425601f, 0.144756109f,
                    -0.132097319f, 0.105912805f, -0.0460337996f);
    float r = TB_FMA_F32(p, f * f, TB_FMA_F32(e, 1.42860677e-6f, f));
    return TB_FMA_F32(e, 0.693145752f, r);
}

// x = 2^e (1 + f) for x > 0 and finite, 1 + f in [m, 2m) with m given in bits; e comes as a float
TB_FN float tb_log_split_f32(float x, tb_u32 m, float *e) {
    float d = x < 0x1p-126f ? x * 0x1p23f : x;
    tb_u32 u = tb_bits_f32(d) - (x < 0x1p-126f ? m + (23u << 23) : m);
    *e = (float)((tb_i32)u >> 23);
    return tb_from_bits_f32((u & 0x007FFFFFu) + m) - 1.0f;
}

// What a logarithm gives outside the positive numbers: -Inf at 0, NaN below, x itself for +Inf and NaN
TB_FN float tb_log_ends_f32(float r, float x) {
    r = x == 0.0f ? -TB_INF_F32 : r;
    r = x < 0.0f ? TB_NAN_F32 : r;
    return x < TB_INF_F32 ? r : x;
}

// Bound 1.0
TB_FN float tb_log_f32(float x) {
    float e;
    float f = tb_log_split_f32(x, 0x3F400000u, &e);
    return tb_log_ends_f32(tb_log_sum_f32(f, e), x);
}

// 1 + f in [sqrt(1/2), sqrt(2)), so that the sum with e cancels least; 1/ln 2 in two parts. Bound 1.1
TB_FN float tb_log2_f32(float x) {
    float e;
    float f = tb_log_split_f32(x, 0x3F3504F3u, &e);
    float p = TB_P8(F32, f, -0.721347332f, 0.48089841f, -0.360699147f, 0.2885575f, -0.239539668f, 0.204752237f,
                    -0.191925868f, 0.185548291f, -0.10695f);
    float r = TB_FMA_F32(f, 1.44269502f, TB_FMA_F32(p, f * f, f * 1.92596303e-8f));
    return tb_log_ends_f32(e + r, x);
}

// 1/ln 10 and log10(2) in two parts. Bound 1.1
TB_FN float tb_log10_f32(float x) {
    float e;
    float f = tb_log_split_f32(x, 0x3F3504F3u, &e);
    float p = TB_P8(F32, f, -0.217147186f, 0.144764945f, -0.108581215f, 0.086857684f, -0.0721029565f, 0.0617701933f,
                    -0.0579656102f, 0.0550516397f, -0.0307147894f);
    float r = TB_FMA_F32(p, f * f, TB_FMA_F32(e, -1.43209888e-8f, f * -1.010305e-8f));
    r = TB_FMA_F32(f, 0.434294492f, r);
    return tb_log_ends_f32(TB_FMA_F32(e, 0.30103001f, r), x);
}

// 1 + x = 2^e (1 + f), e taken from the rounded sum, f = x 2^-e + (2^-e - 1) with one rounding. Bound 1.1
TB_FN float tb_log1p_f32(float x) {
    float y = 1.0f + x;
    tb_u32 k = (tb_bits_f32(y) - 0x3F400000u) & 0xFF800000u;
    float s = tb_from_bits_f32(0x40800000u - k) * 0.25f;   // through 4 * 2^-e, which is never denormal
    float f = TB_FMA_F32(x, s, s - 1.0f);
    float r = tb_log_sum_f32(f, (float)((tb_i32)k >> 23));
    r = tb_abs_f32(x) < 0x1p-26f ? x : r;
    return tb_log_ends_f32(r, y);
}

// ---- hyperbolic tangent, logistic, error function -----------------------------------------------------------------

// One odd polynomial v = tanh(h): beyond 0.64, |x| = h + n ln(2)/2 and tanh |x| = 1 - (1 - v) / (s + 1/2 + (s - 1/2) v)
// with s = 2^(n-1). The second select is on bits: alike conditions make gcc evaluate all twice, once for either side.
// A NaN goes through the first to the polynomial, and on. Bound 1.5
TB_FN float tb_tanh_f32(float x) {
    tb_u32 u = tb_bits_f32(x) & ~TB_SIGN_F32;
    float a = tb_from_bits_f32(u);
    float y = tb_from_bits_f32(u < 0x41120000u ? u : 0x41120000u);      // min(|x|, 9.125), beyond which tanh is 1
    float t = TB_FMA_F32(y, 2.88539004f, TB_ROUND_F32 + 126.0f);
    float h = TB_FMA_F32(t - (TB_ROUND_F32 + 126.0f), -0.34657359f, y);
    h = a > 0.640625f ? h : a;
    float q = h * h;
    float p = TB_P4(F32, q, -0.333332807f, 0.133314162f, -0.0537379384f, 0.0206341203f, -0.00570009183f);
    float v = TB_FMA_F32(p, q * h, h);
    float s = tb_from_bits_f32(tb_bits_f32(t) << 23);
    float z = (1.0f - v) / TB_FMA_F32(s - 0.5f, v, s + 0.5f);
    float r = a > 0.640625f ? 1.0f - z : v;
    return tb_put_sign_f32(r, x);
}

// With |x| log2(e) = g - n, z = 2^n / (2^n + 2^g) for x < 0, otherwise 1 - z. All terms are taken times 2^24, so that
// 2^n is never denormal and the quotient rounds once. A NaN, lost in y, comes in again with the second part of log2(e),
// which makes of huge |x| a huge g and z = 0. Bound 2.0
TB_FN float tb_sigmoid_f32(float x) {
    float a = tb_abs_f32(x);
    tb_u32 u = tb_bits_f32(a);
    float y = tb_from_bits_f32(u < 0x42D10000u ? u : 0x42D10000u);      // min(|x|, 104.5)
    float t = TB_FMA_F32(y, -1.44269502f, TB_ROUND_F32 + 151.0f);
    float g = TB_FMA_F32(y, 1.44269502f, t - (TB_ROUND_F32 + 151.0f));
    g = TB_FMA_F32(a, 1.92596303e-8f, g);
    float p = TB_P5(F32, g, 0.693147182f * 0x1p24f, 0.240226448f * 0x1p24f, 0.055503577f * 0x1p24f,
                    0.00961882435f * 0x1p24f, 0.00133918982f * 0x1p24f, 0.000152462104f * 0x1p24f);
    float s = tb_from_bits_f32(tb_bits_f32(t) << 23);
    float z = s / (TB_FMA_F32(p, g, s) + 0x1p24f);
    return x < 0.0f ? z : 1.0f - z;
}

// x within limits that are given in bits, of a number below 0 and of one above. Two minima, the one of unsigned and the other of
// signed bits: fewer instructions than comparisons need. A NaN becomes a limit.
TB_FN float tb_within_f32(float x, tb_u32 least, tb_i32 most) {
    tb_u32 u = tb_bits_f32(x);
    u = u < least ? u : least;
    tb_i32 i = (tb_i32)u;
    i = i < most ? i : most;
    return tb_from_bits_f32((tb_u32)i);
}

// sigmoid(x) tanh(z) in one division: 1 / (1 + 2^n 2^g) with -x log2(e) = n + g, times z P(z^2) / Q(z^2), a minimax fit up
// to 9, beyond which tanh is 1. The first divisor is taken times 2^-36, so that no quotient on the way is denormal and none
// overflows. A NaN, which limits lose, comes in again at the end. Bound 7.5
TB_FN float tb_gate_f32(float x, float z) {
    float y = tb_within_f32(x, 0xC2D10000u, 0x41F00000);                // -104.5, where sigmoid is 0, to 30, where it is 1
    float h = tb_within_f32(z, 0xC1100000u, 0x41100000);                // -9 to 9
    float t = TB_FMA_F32(y, -1.44269502f, TB_ROUND_F32 + 91.0f);
    float g = TB_FMA_F32(y, -1.44269502f, (TB_ROUND_F32 + 91.0f) - t);
    g = TB_FMA_F32(y, -1.92596303e-8f, g);
    float p = TB_P6(F32, g, 1.0f, 0.693147182f, 0.240226477f, 0.0555033199f, 0.0096184453f, 0.00133990543f, 0.00015351946f);
    float d = TB_FMA_F32(p, tb_from_bits_f32(tb_bits_f32(t) << 23), 0x1p-36f);
    float q = h * h;
    float n = TB_FMA_F32(TB_P3(F32, q, 0.133839786f, 0.00349899265f, 2.06612003e-5f, 1.34196929e-8f), h * q, h);
    d *= TB_P4(F32, q, 1.0f, 0.46717301f, 0.0258901939f, 0.000329103292f, 7.80468611e-7f);
    float r = tb_within_f32(n / d * 0x1p-36f, 0xBF800000u, 0x3F800000); // rounded, it may be beyond 1 or -1
    return tb_unordered(x, z) ? TB_NAN_F32 : r;
}

// |x| <= 0.92: odd polynomial; beyond: 1 - 2^P(|x|), P fitted to log2(erfc). A NaN takes the first. Bound 1.1
TB_FN float tb_erf_f32(float x) {
    tb_u32 u = tb_bits_f32(x) & ~TB_SIGN_F32;
    float a = tb_from_bits_f32(u);
    float s = x * x;
    float p = TB_P6(F32, s, 0.128379166f, -0.376126289f, 0.112836093f, -0.02685377f, 0.00518522644f, -0.000794698368f,
                    7.49060782e-5f);
    float small = TB_FMA_F32(p, a, a);
    float y = tb_from_bits_f32(u < 0x40800000u ? u : 0x40800000u);      // min(|x|, 4), beyond which erf is 1
    float b = TB_P5(F32, y, 0.37190327f, -0.917166412f, -0.151835158f, 0.0330062993f, -0.0046327599f, 0.000308037037f);
    b = TB_FMA_F32(b, y, -2.0f * y);
    float t = b + TB_ROUND_F32;
    float f = b - (t - TB_ROUND_F32);
    float q = TB_FMA_F32(tb_exp2m1_over_f32(f), f, 1.0f);
    float large = TB_FMA_F32(q, -tb_from_bits_f32((tb_bits_f32(t) << 23) + 0x3F800000u), 1.0f);
    float r = a > 0.92f ? large : small;
    return tb_put_sign_f32(r, x);
}

// ---- hyperbolic functions -----------------------------------------------------------------------------------------

// e^a / 2 for 0 <= a; the result overflows where it must, not before
TB_FN float tb_half_exp_f32(float a) {
    float c = a > 91.0f ? 91.0f : a;
    float t = TB_FMA_F32(c, 1.44269502f, TB_ROUND_F32);
    float n = t - TB_ROUND_F32;
    float r = TB_FMA_F32(n, -0.693145752f, c);
    r = TB_FMA_F32(n, -1.42860677e-6f, r);
    float p = TB_FMA_F32(tb_exp_tail_f32(r), r * r, r);
    float s = tb_from_bits_f32((tb_bits_f32(t) << 23) + (123u << 23));
    return TB_FMA_F32(p, s, s) * 8.0f;
}

// |x| <= 1: odd polynomial. Bound 2.0
TB_FN float tb_sinh_f32(float x) {
    float a = tb_abs_f32(x);
    float e = tb_half_exp_f32(a);
    float s = a * a;
    float p = TB_P3(F32, s, 0.166666672f, 0.00833331514f, 0.000198416659f, 2.78998391e-6f);
    float small = TB_FMA_F32(p * s, a, a);
    float r = a > 1.0f ? e - 0.25f / e : small;
    return tb_put_sign_f32(r, x);
}
TB_FN float tb_cosh_f32(float x) {
    float e = tb_half_exp_f32(tb_abs_f32(x));
    return e + 0.25f / e;
}

// ---- through double -----------------------------------------------------------------------------------------------

// log2 of a positive finite double; relative error 2^-35
TB_FN double tb_log2_wide_f32(double d) {
    tb_u64 u = tb_bits_f64(d) + 0x000AAAAAAAAAAAABull;     // m in [2/3, 4/3)
    double e = tb_from_bits_f64((u >> 52) | 0x4330000000000000ull) - 4503599627371519.0;
    double f = tb_from_bits_f64((u & 0x000FFFFFFFFFFFFFull) + 0x3FE5555555555555ull) - 1.0;
    double p = TB_P12(F64, f, 1.4426950408923305, -0.72134751956930443, 0.48089834396171816, -0.36067397861627532,
                      0.28853944167472205, -0.2404336603594035, 0.20607597372702663, -0.18080606488809653,
                      0.16089122466122674, -0.13746109367615257, 0.12356283039285704, -0.166105305993006,
                      0.15754173097399369);
    return TB_FMA_F64(p, f, e);
}

// 2^l in double, l clamped to what a float can show; a NaN stays
TB_FN double tb_exp2_wide_f32(double l) {
    l = l > 160.0 ? 160.0 : l;
    l = l < -160.0 ? -160.0 : l;
    double k = l + TB_ROUND_F64;
    double r = l - (k - TB_ROUND_F64);
    double p = TB_P6(F64, r, 1.0, 0.69314720288094877, 0.24022647910278486, 0.055503324096216423, 0.0096184376068489431,
                     0.0013398900195643595, 0.00015353340933767508);
    return p * tb_from_bits_f64((tb_bits_f64(k) << 52) + 0x3FF0000000000000ull);
}

// |x|^y = 2^(y log2 |x|), rounded once; then IEEE 754's special cases. Bound 0.6
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
    r = ((x < 0.0f) & (a < TB_INF_F32) & (integer ^ 1u)) ? TB_NAN_F32 : r;
    r = tb_from_bits_f32(tb_bits_f32(r) ^ ((odd & negative) << 31));
    tb_u32 one = (x == 1.0f) | (y == 0.0f) | ((a == 1.0f) & (tb_abs_f32(y) == TB_INF_F32));
    return one ? 1.0f : r;
}

// e^-x^2 times a polynomial in (|x| - 3) / (|x| + 3); 2 minus that for x < 0. Bound 0.6
TB_FN float tb_erfc_f32(float x) {
    double a = (double)tb_abs_f32(x);
    a = a > 11.0 ? 11.0 : a;
    double t = (a - 3.0) / (a + 3.0);
    double p = TB_P12(F64, t, 0.17900115118079005, -0.32623356014517172, 0.24560380197589252, -0.1501159310437446,
                      0.071665828230307899, -0.024392583972470471, 0.004269220128968014, 0.00070832956428152803,
                      -0.00059730826745333396, 4.3249622811646086e-05, 6.3968278389578054e-05, -9.5397981191018068e-06,
                      -6.6973160171012664e-06);
    double r = p * tb_exp2_wide_f32(a * a * -1.4426950408889634);
    return (float)(x < 0.0f ? 2.0 - r : r);
}

// log(a + sqrt(a^2 + 1)); tiny x are their own results. Bound 0.6
TB_FN float tb_asinh_f32(float x) {
    float a = tb_abs_f32(x);
    double d = (double)a;
    float r = (float)(tb_log2_wide_f32(d + tb_root_f64(TB_FMA_F64(d, d, 1.0))) * 0.69314718055994531);
    r = a < 0x1p-13f ? a : r;
    r = a < TB_INF_F32 ? r : a;
    return tb_put_sign_f32(r, x);
}

// log(x + sqrt(x^2 - 1)), NaN below 1. Bound 0.6
TB_FN float tb_acosh_f32(float x) {
    double d = (double)x;
    float r = (float)(tb_log2_wide_f32(d + tb_root_f64(TB_FMA_F64(d, d, -1.0))) * 0.69314718055994531);
    r = x < TB_INF_F32 ? r : x;
    return x < 1.0f ? TB_NAN_F32 : r;
}

// log((1 + a) / (1 - a)) / 2, NaN beyond 1. Bound 0.6
TB_FN float tb_atanh_f32(float x) {
    float a = tb_abs_f32(x);
    double d = (double)a;
    float r = (float)(tb_log2_wide_f32((1.0 + d) / (1.0 - d)) * 0.34657359027997264);
    r = a < 0x1p-13f ? a : r;
    r = a == 1.0f ? TB_INF_F32 : r;
    r = a <= 1.0f ? r : TB_NAN_F32;
    return tb_put_sign_f32(r, x);
}

// ---- remainders ---------------------------------------------------------------------------------------------------

// trunc(a / b) for a, b >= 0, and the rest a - trunc(a / b) b, which is exact, if that is below 2^24: as tb_taken_off_f64
TB_FN float tb_taken_off_f32(float a, float b, float *rest) {
    float q = tb_trunc_f32(a / b);
    float r = TB_FMA_F32(-q, b < TB_INF_F32 ? b : 0.0f, a);
    tb_u32 over = 0u - (tb_bits_f32(r) >> 31);
    *rest = r + tb_from_bits_f32(tb_bits_f32(b) & over);
    return q - tb_from_bits_f32(0x3F800000u & over);
}

// x - trunc(x/y) y, exact. Beyond, each step takes the quotient, an integer of at most 53 bits, off exactly and leaves at
// most 2^-51 of what there was; quotients of floats are below 2^277. Bound 0
TB_FN float tb_fmod_near_f32(float x, float y, float *q) {
    float rest;
    *q = tb_taken_off_f32(tb_abs_f32(x), tb_abs_f32(y), &rest);
    return tb_put_sign_f32(rest, x);
}
TB_FN float tb_fmod_far_f32(float x, float y) {
    double r = (double)tb_abs_f32(x);
    double d = (double)tb_abs_f32(y);
    double inverse = 1.0 / d;
    r = TB_FMA_F64(-tb_rint_f64(r * inverse), d, r);
    r = TB_FMA_F64(-tb_rint_f64(r * inverse), d, r);
    r = TB_FMA_F64(-tb_rint_f64(r * inverse), d, r);
    r = TB_FMA_F64(-tb_rint_f64(r * inverse), d, r);
    r = TB_FMA_F64(-tb_rint_f64(r * inverse), d, r);
    r = TB_FMA_F64(-tb_rint_f64(r * inverse), d, r);
    r = r < 0.0 ? r + d : r;
    float v = tb_put_sign_f32(tb_abs_f32((float)r), x);
    const float whole = tb_abs_f32(x) < TB_INF_F32 ? x : TB_NAN_F32;  // within the next choice it would be a branch
    return tb_abs_f32(y) == TB_INF_F32 ? whole : v;
}
TB_PAIR_CALLS_f32(fmod, float, 0x1p24f)

// As NumPy's remainder: the sign of y
TB_FN float tb_mod_f32(float x, float y) {
    float m = tb_fmod_f32(x, y);
    float shifted = (tb_bits_f32(m) ^ tb_bits_f32(y)) >> 31 ? m + y : m;
    float zero = tb_from_bits_f32(tb_bits_f32(y) & TB_SIGN_F32);
    return m == 0.0f ? zero : shifted;
}

// As NumPy's floor_divide: floor of the quotient left by the remainder, x / y for y = 0
TB_FN float tb_floordiv_near_f32(float x, float y, float *q) {
    float rest;
    float whole = tb_taken_off_f32(tb_abs_f32(x), tb_abs_f32(y), &rest);
    tb_u32 sign = (tb_bits_f32(x) ^ tb_bits_f32(y)) & TB_SIGN_F32;
    tb_u32 below = rest != 0.0f ? 0u - (sign >> 31) : 0u;
    *q = whole;
    return tb_from_bits_f32(tb_bits_f32(whole + tb_from_bits_f32(0x3F800000u & below)) | sign);
}
TB_FN float tb_floordiv_far_f32(float x, float y) {
    float m = tb_fmod_far_f32(x, y);
    float q = (x - m) / y;
    float below = (tb_bits_f32(m) ^ tb_bits_f32(y)) >> 31 ? q - 1.0f : q;
    q = m == 0.0f ? q : below;
    float whole = tb_floor_f32(q);
    whole = q - whole > 0.5f ? whole + 1.0f : whole;
    float ratio = x / y;
    float zero = tb_from_bits_f32(tb_bits_f32(ratio) & TB_SIGN_F32);
    float r = q == 0.0f ? zero : whole;
    return y == 0.0f ? ratio : r;
}
TB_PAIR_CALLS_f32(floordiv, float, 0x1p21f)

#endif
