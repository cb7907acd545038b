// SPDX-License-Identifier: Apache-2.0
// philox.h — random numbers from a counter: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011), and uniform and normal numbers made of its words
//
// The counter is (position in the array, number of the draw), so any element can be made anywhere in any order.
// Words and uniform numbers are equal on every machine; normal numbers too, being made of vmath.h's functions.
#ifndef TB_PHILOX_H
#define TB_PHILOX_H

#include "vmath.h"

typedef struct {
    tb_u32 x, y, z, w;
} tb_words;

// Counter (low and high word of index, low and high word of draw), key (low, high)
TB_FN tb_words tb_philox(tb_u64 index, tb_u64 draw, tb_u64 key) {
    tb_u32 c0 = (tb_u32)index;
    tb_u32 c1 = (tb_u32)(index >> 32);
    tb_u32 c2 = (tb_u32)draw;
    tb_u32 c3 = (tb_u32)(draw >> 32);
    tb_u32 k0 = (tb_u32)key;
    tb_u32 k1 = (tb_u32)(key >> 32);
    for (int round = 0; round < 10; ++round) {
        tb_u64 p0 = (tb_u64)c0 * 0xD2511F53u;
        tb_u64 p1 = (tb_u64)c2 * 0xCD9E8D57u;
        c0 = (tb_u32)(p1 >> 32) ^ c1 ^ k0;
        c2 = (tb_u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (tb_u32)p1;
        c3 = (tb_u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    tb_words words = {c0, c1, c2, c3};
    return words;
}

TB_FN tb_u32 tb_randbits(tb_words r) { return r.x; }

// 24 and 53 random bits as an integer
TB_FN float tb_bits24_f32(tb_u32 word) { return (float)(tb_i32)(word >> 8); }
TB_FN double tb_bits53_f64(tb_u32 high, tb_u32 low) {
    return (double)(tb_i32)(high >> 5) * 67108864.0 + (double)(tb_i32)(low >> 6);
}

// [0, 1) in steps of 2^-24 and 2^-53
TB_FN float tb_uniform_f32(tb_words r) { return tb_bits24_f32(r.x) * 0x1p-24f; }
TB_FN double tb_uniform_f64(tb_words r) { return tb_bits53_f64(r.x, r.y) * 0x1p-53; }

// sin(f pi/2) and cos(f pi/2) for |f| <= 1/2; pi/2 in two parts
TB_FN float tb_sin_quarter_f32(float f) {
    float s = f * f;
    float p = TB_P3(F32, s, -4.37113883e-8f, -0.645963609f, 0.079681173f, -0.00460419478f);
    return TB_FMA_F32(f, 1.57079637f, p * f);
}
TB_FN float tb_cos_quarter_f32(float f) {
    float s = f * f;
    return TB_P4(F32, s, 1.0f, -1.23370051f, 0.253668666f, -0.0208568107f, 0.000897442282f);
}
TB_FN double tb_sin_quarter_f64(double f) {
    double s = f * f;
    double p = TB_P7(F64, s, 6.123233995736766e-17, -0.64596409750624628, 0.079692626246169185,
                             -0.0046817541353724144, 0.00016044118540384125, -3.5988467530786951e-06,
                             5.6931132170335743e-08, -6.7639298748584746e-10);
    return TB_FMA_F64(f, 1.5707963267948966, p * f);
}
TB_FN double tb_cos_quarter_f64(double f) {
    double s = f * f;
    return TB_P7(F64, s, 1.0, -1.2337005501361697, 0.2536695079010417, -0.02086348076318097, 0.00091926027263237347,
                         -2.5202027446824121e-05, 4.7103340906152083e-07, -6.2893980072742466e-09);
}

// sqrt(-2 log u) cos(2 pi v), u in (0, 1], v in [0, 1): Box and Muller, "A note on the generation of random normal
// deviates", 1958. 4 v is split into whole and broken quarter turns without error.
TB_FN float tb_normal_f32(tb_words r) {
    float e;
    float f = tb_log_split_f32((tb_bits24_f32(r.x) + 1.0f) * 0x1p-24f, 0x3F400000u, &e);
    float radius = tb_sqrt_f32(-2.0f * tb_log_sum_f32(f, e));
    float turns = tb_bits24_f32(r.y) * 0x1p-22f;
    float k = turns + TB_ROUND_F32;
    float part = turns - (k - TB_ROUND_F32);
    tb_u32 n = tb_bits_f32(k);
    float odd = tb_sin_quarter_f32(part);
    float even = tb_cos_quarter_f32(part);
    float v = n & 1u ? odd : even;
    return radius * tb_from_bits_f32(tb_bits_f32(v) ^ (((n + 1u) & 2u) << 30));
}
TB_FN double tb_normal_f64(tb_words r) {
    double e;
    double f = tb_log_split_f64((tb_bits53_f64(r.x, r.y) + 1.0) * 0x1p-53, 0x3FE8000000000000ull, &e);
    double radius = tb_root_f64(-2.0 * tb_log_sum_f64(f, e, 0.0));
    double turns = tb_bits53_f64(r.z, r.w) * 0x1p-51;
    double k = turns + TB_ROUND_F64;
    double part = turns - (k - TB_ROUND_F64);
    tb_u64 n = tb_bits_f64(k);
    double odd = tb_sin_quarter_f64(part);
    double even = tb_cos_quarter_f64(part);
    double v = n & 1u ? odd : even;
    return radius * tb_from_bits_f64(tb_bits_f64(v) ^ (((n + 1u) & 2u) << 62));
}

#endif
