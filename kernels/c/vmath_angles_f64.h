// SPDX-License-Identifier: Apache-2.0
// vmath_angles_f64.h — sine, cosine, tangent and their inverses in float64; vmath.h says what holds for all functions
//
// Bounds in the comments hold for stratified samples against 113-bit references.
#ifndef TB_VMATH_ANGLES_F64_H
#define TB_VMATH_ANGLES_F64_H

#include "vmath_lanes.h"

// ---- sine, cosine, tangent ----------------------------------------------------------------------------------------

// Below TB_NEAR_F64: |x| = n pi/2 + (r + low) with |r| <= pi/4 to half an ulp, and n modulo 2^51. pi/2 has three parts,
// of 53, 33 and 53 bits: products of n <= 2^20 with the first two, and the differences, are exact.
#define TB_NEAR_F64 1647099.0
TB_FN double tb_near_angle_f64(double a, tb_u64 *n, double *low) {
    double k = TB_FMA_F64(a, 0.63661977236758138, TB_ROUND_F64);
    double m = k - TB_ROUND_F64;
    double y = TB_FMA_F64(-m, 1.5707963267948966, a);
    double r = TB_FMA_F64(-m, 6.1232339953846099e-17, y);
    *low = TB_FMA_F64(-m, 3.5215598651832002e-27, TB_FMA_F64(-m, 6.1232339953846099e-17, y - r));
    *n = tb_bits_f64(k);
    return r;
}

// Row i: 2^(32 i) 2/pi modulo 4 as a sum of four doubles
TB_TABLE double tb_turns_f64[] = {
    0.63661977236758138, -3.9357353350364972e-17, -2.1442872565786008e-33, 1.6107127853188224e-49,
    -1.694273640870821, 1.0852635185510961e-16, -5.6652443734822311e-33, -4.4957850485131429e-51,
    1.9849753272621515, -3.1178565966641257e-17, 6.863064799465887e-34, -3.385108475271734e-51,
    1.9578379245607584, 7.7695847040018294e-17, 3.34906530821634e-33, -1.9473147087135764e-49,
    0.85697302809809472, 3.5775109764137119e-18, -4.4099506936397011e-35, 8.1251766174218354e-52,
    1.2354059373013278, 5.0950457647316266e-17, 8.5329798786623268e-34, 1.6800657131910823e-50,
    1.9934294027905102, 7.4686101467630415e-17, 2.6623537174486554e-33, 2.6242903164050182e-50,
    -0.12994734157915236, 3.1582267181190092e-18, -1.5729866384287356e-34, -5.0331666810259117e-51,
    1.7153996364816557, 3.9899971032660159e-17, -2.778971522716871e-33, 1.3140035157601709e-49,
    -1.7410000041070035, -1.5068331020551784e-17, -4.0090031461978995e-34, 2.2741581577019198e-50,
    0.024554187906522779, 1.5716943815562158e-18, -6.6771287530218482e-35, -3.3903638947705708e-51,
    -1.9616459540574243, -6.7833540334871344e-17, 4.2577928399869269e-34, 2.5688172265165462e-50,
    0.99264401865472129, -1.0467525454342137e-17, 6.2932709232348029e-34, -3.1076181173778906e-50,
    0.6920418289742053, -2.8341991027430526e-17, -6.8599880014389867e-34, -1.7186745576996058e-50,
    -1.0917631412896922, 6.271635464139531e-17, 6.0653663707502085e-33, -3.3322666471961407e-49,
    1.1825449776166452, 2.098179600458306e-18, -3.1428272666860984e-35, 1.3820409653673834e-51,
    0.91254330582557763, -2.4219727702166621e-17, 6.2137986551616523e-34, -5.4169720849710542e-51,
    -1.2954178896674697, 8.6384512210748211e-17, 8.4225269935798992e-34, 8.5451145843859824e-50,
    1.2248815431988307, -8.3884104368868919e-17, -1.3178845532633915e-33, 8.024134531623681e-50,
    1.5129886839099682, -6.302354304316678e-18, 1.1435170039797679e-34, -2.1813463004889347e-51,
    0.61139485513374281, 3.2051665461021856e-18, -7.8194077256501898e-35, -5.236674178479329e-51,
    -0.25791691357156099, -7.1951528089907919e-21, -3.4279848075403856e-37, -1.5709295263168491e-53,
    -0.87511301043739709, 8.6380078214019133e-19, -1.4201656791519197e-35, -5.5294956759539297e-52,
    -0.13272714243868552, -6.3235158433261986e-18, -2.8978534929800689e-34, -1.9393449229477956e-51,
    -0.065688041189750287, 1.7036400926609164e-18, 7.3095461517761331e-36, -3.3498557630641806e-52,
    -0.64827840788601598, -1.6525656610109604e-17, 1.2032554679689714e-33, -2.8985615296438144e-50,
    -0.57338721697324846, 2.3815024694267182e-17, -1.6417372469441525e-35, -2.7204478015414685e-52,
    -0.84455813669840207, -8.314819587895112e-18, -5.2074630498591168e-35, 2.7482121952990456e-51,
    -0.69033435578023761, 3.0219839080994153e-17, 1.1446353859470281e-33, 2.758975873299845e-50,
    -1.381348956968254, -7.2428961840376022e-17, 1.391760450615745e-33, -5.3503594020698217e-50,
    1.457637475785212, 2.0558554398611556e-17, 4.9571308478526475e-34, -1.196861860890493e-51,
};

// The same for any finite |x|; Inf gives NaN. x is scaled to h 2^(32 i) with h an integer if i > 0, so whole fours of the
// partial products of h and row i go. What is left is added up without error as far as it matters: a double can come
// within 2^-62 of a multiple of pi/2.
TB_FN double tb_far_angle_f64(double a, tb_u64 *n, double *low) {
    tb_u64 above = (tb_bits_f64(a) >> 52) - 1075u;
    tb_i64 row = (tb_i64)((above & ((above >> 63) - 1u)) >> 5);       // 0 if that is negative, without a branch
    double h = a * tb_from_bits_f64((tb_u64)(1023 - 32 * row) << 52);
    double t1 = tb_turns_f64[4 * row];
    double t2 = tb_turns_f64[4 * row + 1];
    double t3 = tb_turns_f64[4 * row + 2];
    double t4 = tb_turns_f64[4 * row + 3];
    double y1 = h * t1;
    double e1 = TB_FMA_F64(h, t1, -y1);
    double y2 = h * t2;
    double e2 = TB_FMA_F64(h, t2, -y2);
    double y3 = h * t3;
    double rest = TB_FMA_F64(h, t4, TB_FMA_F64(h, t3, -y3));
    y1 = TB_FMA_F64(-4.0, tb_rint_f64(0.25 * y1), y1);
    e1 = TB_FMA_F64(-4.0, tb_rint_f64(0.25 * e1), e1);
    y2 = TB_FMA_F64(-4.0, tb_rint_f64(0.25 * y2), y2);
    double s1 = y1 + e1;
    double s2 = s1 + y2;
    double k = s2 + TB_ROUND_F64;
    double s3 = s2 - (k - TB_ROUND_F64);
    double s4 = s3 + e2;
    double s5 = s4 + y3;
    double d1 = tb_sum_error_f64(y1, e1, s1);
    double d2 = tb_sum_error_f64(s1, y2, s2);
    double d = d1 + d2;
    rest += tb_sum_error_f64(d1, d2, d) + tb_sum_error_f64(s3, e2, s4) + tb_sum_error_f64(s4, y3, s5);
    double f = s5 + d;
    rest += tb_sum_error_f64(s5, d, f);
    *n = tb_bits_f64(k);
    double high = f + rest;
    double p = high * 1.5707963267948966;
    double e = TB_FMA_F64(high, 6.123233995736766e-17, TB_FMA_F64(high, 1.5707963267948966, -p));
    e = TB_FMA_F64(tb_sum_error_f64(f, rest, high), 1.5707963267948966, e);
    double r = p + e;
    *low = (p - r) + e;
    return r;
}

// sin(r + low) and cos(r) for |r| <= pi/4
TB_FN double tb_sin_eighth_f64(double r, double low) {
    double s = r * r;
    double p = TB_P5(F64, s, -0.1666666666666663, 0.00833333333332184, -0.00019841269829358512, 2.7557313538503625e-06,
                             -2.5050734386966074e-08, 1.5895433126559803e-10);
    return r + TB_FMA_F64(p * s, r, low);
}
TB_FN double tb_cos_eighth_f64(double r) {
    double s = r * r;
    return TB_P7(F64, s, 1.0, -0.5, 0.041666666666666595, -0.0013888888888873325, 2.480158728898368e-05,
                         -2.755731421007305e-07, 2.0875704270462043e-09, -1.1358683289868546e-11);
}

// From the angle of |x|. Bound 1.25
TB_FN double tb_sin_of_f64(double x, double r, double low, tb_u64 n) {
    double odd = tb_cos_eighth_f64(r);
    double even = tb_sin_eighth_f64(r, low);
    double v = n & 1u ? odd : even;
    return tb_from_bits_f64(tb_bits_f64(v) ^ (tb_bits_f64(x) & TB_SIGN_F64) ^ ((n & 2u) << 62));
}
TB_FN double tb_cos_of_f64(double x, double r, double low, tb_u64 n) {
    (void)x;
    return tb_sin_of_f64(0.0, r, low, n + 1u);  // a quarter of a turn on, and as of a positive angle
}

// h + l = tan(r + low), odd n give -1/(h + l) with one Newton step. Bound 1.25
TB_FN double tb_tan_of_f64(double x, double r, double low, tb_u64 n) {
    double s = r * r;
    double p = TB_Q14(F64, s, s * s, 0.3333333333333338, 0.13333333333325342, 0.053968253972902926,
                      0.021869488399332965, 0.00886323792174247, 0.0035921008984947486, 0.0014560452868444902,
                      0.0005888668456130081, 0.00024373873508152282, 8.36035266512939e-05, 6.711352028530115e-05,
                      -2.545895103601621e-05, 4.845644989552395e-05, -2.4167791711206957e-05, 9.771520902928906e-06);
    double slope = TB_FMA_F64(s, 1.6, 1.0);
    double tail = TB_FMA_F64(p * s, r, low * slope);
    double h = r + tail;
    double l = (r - h) + tail;
    double v = -1.0 / h;
    double e = TB_FMA_F64(l, v, TB_FMA_F64(h, v, 1.0));
    v = n & 1u ? TB_FMA_F64(v, e, v) : h;
    return tb_from_bits_f64(tb_bits_f64(v) ^ (tb_bits_f64(x) & TB_SIGN_F64));
}

// Every magnitude
TB_NEAR_AND_FAR(sin, f64, F64, double, tb_u64)
TB_NEAR_AND_FAR(cos, f64, F64, double, tb_u64)
TB_NEAR_AND_FAR(tan, f64, F64, double, tb_u64)

// ---- inverse trigonometric functions ------------------------------------------------------------------------------

// asin(z) - z over z, from s = z^2, |z| <= 1/2
TB_FN double tb_asin_tail_f64(double s) {
    return s * TB_P12(F64, s, 0.1666666666666676, 0.074999999999708675, 0.044642857174572254, 0.03038194270866924,
                              0.022372214986474171, 0.01735161167458691, 0.013980828321310814, 0.011398822061291895,
                              0.01078089048745608, 0.0037035497302595199, 0.021715401070988866, -0.021011617121018279,
                              0.03263722821493846);
}

// |x| > 1/2: pi/2 - 2 asin(sqrt((1 - |x|) / 2)). Bound 1.5
TB_FN double tb_asin_f64(double x) {
    double a = tb_abs_f64(x);
    double s = a > 0.5 ? TB_FMA_F64(-0.5, a, 0.5) : a * a;
    double z = a > 0.5 ? -2.0 * tb_root_f64(s) : a;
    double t = tb_asin_tail_f64(s);
    double h = 1.5707963267948966 + z;
    double end = h + (((1.5707963267948966 - h) + z) + TB_FMA_F64(t, z, 6.123233995736766e-17));
    double r = a > 0.5 ? end : TB_FMA_F64(t, z, z);
    return tb_put_sign_f64(r, x);
}
TB_FN double tb_acos_f64(double x) {
    double a = tb_abs_f64(x);
    double s = a > 0.5 ? TB_FMA_F64(-0.5, a, 0.5) : a * a;
    double z = a > 0.5 ? -2.0 * tb_root_f64(s) : -x;
    double t = tb_asin_tail_f64(s);
    double right = TB_FMA_F64(t, -z, -z);
    double left = (3.1415926535897931 + z) + TB_FMA_F64(t, z, 1.2246467991473532e-16);
    double end = x > 0.0 ? right : left;
    double middle = 1.5707963267948966 + (z + TB_FMA_F64(t, z, 6.123233995736766e-17));
    return a > 0.5 ? end : middle;
}

// atan(z) for 0 <= z <= 1
TB_FN double tb_atan_unit_f64(double z) {
    double s = z * z;
    double p = TB_Q19(F64, s, s * s, -0.33333333333333071, 0.19999999999951754, -0.14285714282586159,
                      0.11111111007218294, -0.090909070045444879, 0.076922798399616146, -0.066664039437354106,
                      0.058805265267564598, -0.05253510422231427, 0.04722287285566576, -0.042190698123811224,
                      0.036639354984844476, -0.029899311143149795, 0.021978688939947928, -0.013894232974643973,
                      0.0071916677535527416, -0.0028822519316035887, 0.00083031918568512108, -0.0001519307945941727,
                      1.3200770979373846e-05);
    return TB_FMA_F64(p * s, z, z);
}

// |x| > 1: pi/2 - atan(1/|x|). Bound 1.5
TB_FN double tb_atan_f64(double x) {
    double a = tb_abs_f64(x);
    double r = tb_atan_unit_f64(a > 1.0 ? 1.0 / a : a);
    r = a > 1.0 ? 1.5707963267948966 - (r - 6.123233995736766e-17) : r;
    return tb_put_sign_f64(r, x);
}

// The angle of the point (x, y), as IEEE 754 has it for zeros and infinities. Bound 2.0
TB_FN double tb_atan2_f64(double y, double x) {
    double a = tb_abs_f64(x);
    double b = tb_abs_f64(y);
    double low = a < b ? a : b;
    double high = a < b ? b : a;
    double q = low / high;
    q = low == high ? 1.0 : q;                             // Inf / Inf
    q = low == 0.0 ? 0.0 : q;                              // 0 / 0
    double r = tb_atan_unit_f64(q);
    r = a < b ? 1.5707963267948966 - (r - 6.123233995736766e-17) : r;
    r = tb_bits_f64(x) >> 63 ? 3.1415926535897931 - (r - 1.2246467991473532e-16) : r;
    r = tb_put_sign_f64(r, y);
    return ((x != x) | (y != y)) ? TB_NAN_F64 : r;
}

#endif
