// SPDX-License-Identifier: Apache-2.0
// vmath_angles_f32.h — sine, cosine, tangent and their inverses in float32; vmath.h says what holds for all functions
//
// Results are correct to the bound in the comment, in units in the last place, for every one of the 2^32 inputs.
#ifndef TB_VMATH_ANGLES_F32_H
#define TB_VMATH_ANGLES_F32_H

#include "vmath_lanes.h"

// ---- sine, cosine, tangent ----------------------------------------------------------------------------------------

// Below TB_NEAR_F32: |x| = n pi/2 + (r + low) with |r| <= pi/4 to half an ulp, and n modulo 2^32. pi/2 has three parts,
// of 24, 12 and 24 bits: products of n <= 2^12 with the first two, and the differences, are exact.
#define TB_NEAR_F32 6433.0f
TB_FN float tb_near_angle_f32(float a, tb_u32 *n, float *low) {
    float k = TB_FMA_F32(a, 0.636619747f, TB_ROUND_F32);
    float m = k - TB_ROUND_F32;
    float y = TB_FMA_F32(-m, 1.57079637f, a);
    float r = TB_FMA_F32(-m, -4.37139533e-8f, y);
    *low = TB_FMA_F32(-m, 2.56334407e-12f, TB_FMA_F32(-m, -4.37139533e-8f, y - r));
    *n = tb_bits_f32(k);
    return r;
}

// The same for any finite |x|; Inf gives NaN. The product with 2/pi is exact in two doubles. A large x is a multiple of
// 2^g, so 2^g 2/pi may be taken modulo 4: g in steps of 26 keeps the product below 2^51. There its upper half is a
// multiple of 1/4: the second rounding.
TB_FN float tb_far_angle_f32(float a, tb_u32 *n, float *low) {
    double d = (double)a;
    double high = 0.63661977236758138;
    double rest = -3.9357353350364972e-17;
    high = d >= 0x1p50 ? 2.5682553266903661e-08 : high;
    rest = d >= 0x1p50 ? -5.4341841077437507e-25 : rest;
    high = d >= 0x1p76 ? 2.9370955403718198e-16 : high;
    rest = d >= 0x1p76 ? 1.0181664387499709e-32 : rest;
    high = d >= 0x1p102 ? 6.0740264896498461e-24 : high;
    rest = d >= 0x1p102 ? 3.1436547554916045e-40 : rest;
    double y = d * high;
    rest = TB_FMA_F64(d, rest, TB_FMA_F64(d, high, -y));
    double k = y + TB_ROUND_F64;
    double f = (y - (k - TB_ROUND_F64)) + rest;
    double j = f + TB_ROUND_F64;
    *n = (tb_u32)(tb_bits_f64(k) + tb_bits_f64(j));
    double turned = (f - (j - TB_ROUND_F64)) * 1.5707963267948966;
    float r = (float)turned;
    *low = (float)(turned - (double)r);
    return r;
}

// sin(r + low) and cos(r) for |r| <= pi/4
TB_FN float tb_sin_eighth_f32(float r, float low) {
    float s = r * r;
    float p = TB_P2(F32, s, -0.166666552f, 0.00833218824f, -0.000195180954f);
    return r + TB_FMA_F32(p * s, r, low);
}
TB_FN float tb_cos_eighth_f32(float r) {
    float s = r * r;
    return TB_P4(F32, s, 1.0f, -0.5f, 0.0416666456f, -0.00138873095f, 2.44323273e-5f);
}

// From the angle of |x|. Bound 1.3
TB_FN float tb_sin_of_f32(float x, float r, float low, tb_u32 n) {
    float odd = tb_cos_eighth_f32(r);
    float even = tb_sin_eighth_f32(r, low);
    float v = n & 1u ? odd : even;
    return tb_from_bits_f32(tb_bits_f32(v) ^ (tb_bits_f32(x) & TB_SIGN_F32) ^ ((n & 2u) << 30));
}
TB_FN float tb_cos_of_f32(float x, float r, float low, tb_u32 n) {
    (void)x;
    return tb_sin_of_f32(0.0f, r, low, n + 1u);  // a quarter of a turn on, and as of a positive angle
}

// h + l = tan(r + low), odd n give -1/(h + l) with one Newton step for the rounding errors. Bound 1.3
TB_FN float tb_tan_of_f32(float x, float r, float low, tb_u32 n) {
    float s = r * r;
    float p = TB_P6(F32, s, 0.333333492f, 0.133326739f, 0.0540591776f, 0.0212845095f, 0.0108324923f, 9.11931565e-5f,
                    0.00437644403f);
    float slope = TB_FMA_F32(s, 1.6f, 1.0f);
    float tail = TB_FMA_F32(p * s, r, low * slope);
    float h = r + tail;
    float l = (r - h) + tail;
    float v = -1.0f / h;
    float e = TB_FMA_F32(l, v, TB_FMA_F32(h, v, 1.0f));
    v = n & 1u ? TB_FMA_F32(v, e, v) : h;
    return tb_from_bits_f32(tb_bits_f32(v) ^ (tb_bits_f32(x) & TB_SIGN_F32));
}

// Every magnitude
TB_NEAR_AND_FAR(sin, f32, F32, float, tb_u32)
TB_NEAR_AND_FAR(cos, f32, F32, float, tb_u32)
TB_NEAR_AND_FAR(tan, f32, F32, float, tb_u32)

// ---- inverse trigonometric functions ------------------------------------------------------------------------------

// asin(z) - z over z, from s = z^2, |z| <= 1/2
TB_FN float tb_asin_tail_f32(float s) {
    return s * TB_P4(F32, s, 0.166667521f, 0.0749531016f, 0.0454690196f, 0.0241855029f, 0.0421570130f);
}

// |x| > 1/2: pi/2 - 2 asin(sqrt((1 - |x|) / 2)). Bound 1.5
TB_FN float tb_asin_f32(float x) {
    float a = tb_abs_f32(x);
    float s = a > 0.5f ? TB_FMA_F32(-0.5f, a, 0.5f) : a * a;
    float z = a > 0.5f ? -2.0f * tb_sqrt_f32(s) : a;
    float t = tb_asin_tail_f32(s);
    float h = 1.57079637f + z;
    float end = h + (((1.57079637f - h) + z) + TB_FMA_F32(t, z, -4.37113883e-8f));
    float r = a > 0.5f ? end : TB_FMA_F32(t, z, z);
    return tb_put_sign_f32(r, x);
}
TB_FN float tb_acos_f32(float x) {
    float a = tb_abs_f32(x);
    float s = a > 0.5f ? TB_FMA_F32(-0.5f, a, 0.5f) : a * a;
    float z = a > 0.5f ? -2.0f * tb_sqrt_f32(s) : -x;
    float t = tb_asin_tail_f32(s);
    float right = TB_FMA_F32(t, -z, -z);
    float left = (3.14159274f + z) + TB_FMA_F32(t, z, -8.74227766e-8f);
    float end = x > 0.0f ? right : left;
    float middle = 1.57079637f + (z + TB_FMA_F32(t, z, -4.37113883e-8f));
    return a > 0.5f ? end : middle;
}

// atan(z) for 0 <= z <= 1
TB_FN float tb_atan_unit_f32(float z) {
    float s = z * z;
    float p = TB_P8(F32, s, -0.333332986f, 0.199985355f, -0.142641261f, 0.109516546f, -0.0840205625f, 0.0579358003f,
                    -0.0311577766f, 0.0109045366f, -0.0017915020f);
    return TB_FMA_F32(p * s, z, z);
}

// |x| > 1: pi/2 - atan(1/|x|). Bound 2.0
TB_FN float tb_atan_f32(float x) {
    float a = tb_abs_f32(x);
    float r = tb_atan_unit_f32(a > 1.0f ? 1.0f / a : a);
    r = a > 1.0f ? 1.57079637f - (r + 4.37113883e-8f) : r;
    return tb_put_sign_f32(r, x);
}

// The angle of the point (x, y), as IEEE 754 has it for zeros and infinities. Bound 2.0
TB_FN float tb_atan2_f32(float y, float x) {
    float a = tb_abs_f32(x);
    float b = tb_abs_f32(y);
    float low = a < b ? a : b;
    float high = a < b ? b : a;
    float q = low / high;
    q = low == high ? 1.0f : q;                            // Inf / Inf
    q = low == 0.0f ? 0.0f : q;                            // 0 / 0
    float r = tb_atan_unit_f32(q);
    r = a < b ? 1.57079637f - (r + 4.37113883e-8f) : r;
    r = tb_bits_f32(x) >> 31 ? 3.14159274f - (r + 8.74227766e-8f) : r;
    r = tb_put_sign_f32(r, y);
    return ((x != x) | (y != y)) ? TB_NAN_F32 : r;
}

#endif
