// SPDX-License-Identifier: Apache-2.0
// vmath_f64.h — float64 functions of vmath.h, which says what holds for all of them, but those of angles
//
// The same methods as in vmath_f32.h, with longer polynomials. Bounds in the comments hold for stratified samples
// against 113-bit references.
#ifndef TB_VMATH_F64_H
#define TB_VMATH_F64_H

#include "vmath_lanes.h"

// ---- the simple ones ----------------------------------------------------------------------------------------------

// As NumPy's maximum and minimum: a NaN on either side comes through
TB_FN double tb_max_f64(double a, double b) {
    double m = a > b ? a : b;
    return a != a ? a : m;
}
TB_FN double tb_min_f64(double a, double b) {
    double m = a < b ? a : b;
    return a != a ? a : m;
}

// 1, 0 or -1; NaN stays
TB_FN double tb_sign_f64(double x) {
    double s = x > 0.0 ? 1.0 : 0.0;
    s = x < 0.0 ? -1.0 : s;
    return x != x ? x : s;
}

// Rounded correctly, as by the instruction, which takes twice the time of these multiply-adds with vectors of AVX-512.
// From y = 1/sqrt(x) to 2^-14: g and h, the root and half its inverse, to 2^-38 by a step of third order; g and 2h to an
// ulp; the root's last step by its exact rest. What that rounds is off by less than 1.3 * 2^-53 ulp: it could only go wrong
// where 4x, a whole number of 106 or 107 bits, is that close to the square of an odd one: 9 or 1 below it, or 7 above. The
// closest, 4 - 2^-51, is right because 2^-39 is added: g and h are then too large by that, so that the steps, which square
// what they are off by, leave a g on the near side of the middle and an h that does not go past it, for any such y.
#ifdef TB_CALLS_ROOTS
TB_FN double tb_root_near_f64(double x, double y) {
    double g = x * y;
    double h = 0.5 * y;
    double r = TB_FMA_F64(-g, h, 0.5 + 0x1p-39);
    r = TB_FMA_F64(1.5 * r, r, r);
    g = TB_FMA_F64(g, r, g);
    h = TB_FMA_F64(h, r, h);
    g = TB_FMA_F64(TB_FMA_F64(-g, g, x), h, g);
    h = TB_FMA_F64(TB_FMA_F64(-g, h, 0.5), h + h, h);
    return TB_FMA_F64(TB_FMA_F64(-g, g, x), h, g);
}
TB_CALL_ROOTS
#else
#define tb_sqrt_f64(x) tb_root_f64(x)
#endif

// Bound 1.5
TB_FN double tb_rsqrt_f64(double x) { return 1.0 / tb_sqrt_f64(x); }

// As tb_radicand_f32
TB_FN double tb_radicand_f64(double x) { return x == -TB_INF_F64 ? TB_INF_F64 : x + 0.0; }

// The rounding error of s = a + b
TB_FN double tb_sum_error_f64(double a, double b, double s) {
    double c = s - a;
    return (a - (s - c)) + (b - c);
}

// ---- exponentials -------------------------------------------------------------------------------------------------

// (2^f - 1) / f for |f| <= 1/2
TB_FN double tb_exp2m1_over_f64(double f) {
    return TB_P11(F64, f, 0.69314718055994529, 0.24022650695910069, 0.055504108664823373, 0.009618129107630248,
                          0.0013333558146035962, 0.00015403530388827119, 1.5252734163742441e-05,
                          1.3215491392953947e-06, 1.0177933839023858e-07, 7.0529252962116539e-09,
                          4.4730531848969038e-10, 2.8760614853714565e-11);
}

// (e^r - 1 - r) / r^2 for |r| <= ln(2)/2
TB_FN double tb_exp_tail_f64(double r) {
    return TB_P9(F64, r, 0.50000000000000111, 0.16666666666666438, 0.041666666666528032, 0.0083333333334865492,
                         0.0013888888944006267, 0.00019841269512088625, 2.4801492785467721e-05,
                         2.7557588746062148e-06, 2.7630350143315026e-07, 2.4997558797752178e-08);
}

// m 2^n for n in [-1080, 1024] given as the bits k of n + 1.5 * 2^52, `low` true for n < -1020 and false for n > 800
TB_FN double tb_scale_f64(double m, tb_u64 k, int low) {
    double a = tb_from_bits_f64((k << 52) + (low ? 1151ull << 52 : 1022ull << 52));
    double b = low ? 0x1p-128 : 2.0;
    return m * a * b;
}

// Bound 1.1
TB_FN double tb_exp_f64(double x) {
    double c = x < -746.0 ? -746.0 : x;
    c = c > 710.0 ? 710.0 : c;
    double t = TB_FMA_F64(c, 1.4426950408889634, TB_ROUND_F64);
    double n = t - TB_ROUND_F64;
    double r = TB_FMA_F64(n, -0.6931471805598903, c);
    r = TB_FMA_F64(n, -5.497923018708371e-14, r);
    double p = TB_FMA_F64(tb_exp_tail_f64(r), r * r, r);
    return tb_scale_f64(1.0 + p, tb_bits_f64(t), x < -690.0);
}

// Bound 1.1
TB_FN double tb_exp2_f64(double x) {
    double c = x < -1080.0 ? -1080.0 : x;
    c = c > 1024.0 ? 1024.0 : c;
    double t = c + TB_ROUND_F64;
    double f = c - (t - TB_ROUND_F64);
    return tb_scale_f64(TB_FMA_F64(tb_exp2m1_over_f64(f), f, 1.0), tb_bits_f64(t), x < -1000.0);
}

// Bound 1.1
TB_FN double tb_expm1_f64(double x) {
    double c = x < -40.0 ? -40.0 : x;
    double t = TB_FMA_F64(c, 1.4426950408889634, TB_ROUND_F64);
    double n = t - TB_ROUND_F64;
    double q = TB_FMA_F64(n, -0.6931471805598903, c);
    double r = TB_FMA_F64(n, -5.497923018708371e-14, q);
    double rest = TB_FMA_F64(n, -5.497923018708371e-14, q - r);
    double s = tb_from_bits_f64((tb_bits_f64(t) << 52) + (1022ull << 52));
    double m = TB_FMA_F64(s, r, s - 0.5);
    double e = TB_FMA_F64(s, r, (s - 0.5) - m);
    e = TB_FMA_F64(s, TB_FMA_F64(tb_exp_tail_f64(r), r * r, rest), e);
    double v = 2.0 * (m + e);
    v = x > 710.0 ? TB_INF_F64 : v;
    return tb_abs_f64(x) < 0x1p-55 ? x : v;
}

// ---- logarithms ---------------------------------------------------------------------------------------------------

// log(1 + f) + e ln 2 + rest for f in [-1/4, 1/2], an integer e and a small rest. The first coefficient comes last, so that
// the sum with it is rounded once.
TB_FN double tb_log_sum_f64(double f, double e, double rest) {
    double p = TB_FMA_F64(TB_Q19(F64, f, f * f, 0.33333333333332782, -0.24999999999999223, 0.20000000000196591,
                                 -0.16666666667122992, 0.14285714262050864, -0.12499999922935104, 0.11111112434965155,
                                 -0.10000005730909961, 0.0909087224201066, -0.083331142635433592, 0.076927315972412938,
                                 -0.071473433229678876, 0.066685227707828504, -0.062040415562389213,
                                 0.05787360653383615, -0.057086830253343539, 0.060346726253471414,
                                 -0.056965051918710263, 0.036145267223477058, -0.010612542094879508), f, -0.5);
    double r = TB_FMA_F64(p, f * f, f + TB_FMA_F64(e, 5.497923018708371e-14, rest));
    return TB_FMA_F64(e, 0.6931471805598903, r);
}

// x = 2^e (1 + f) for x > 0 and finite, 1 + f in [m, 2m) with m given in bits. The exponent is written into the
// mantissa of 2^52: there is no vector conversion from 64-bit integers before AVX-512.
TB_FN double tb_log_split_f64(double x, tb_u64 m, double *e) {
    double d = x < 0x1p-1022 ? x * 0x1p54 : x;
    double bias = x < 0x1p-1022 ? 4503599627371573.0 : 4503599627371519.0;
    tb_u64 u = tb_bits_f64(d) + (0x3FF0000000000000ull - m);  // an exponent that is not negative, above the mantissa
    *e = tb_from_bits_f64((u >> 52) | 0x4330000000000000ull) - bias;
    return tb_from_bits_f64((u & 0x000FFFFFFFFFFFFFull) + m) - 1.0;
}

// What a logarithm gives outside the positive numbers: -Inf at 0, NaN below, x itself for +Inf and NaN
TB_FN double tb_log_ends_f64(double r, double x) {
    r = x == 0.0 ? -TB_INF_F64 : r;
    r = x < 0.0 ? TB_NAN_F64 : r;
    return x < TB_INF_F64 ? r : x;
}

// Bound 1.5
TB_FN double tb_log_f64(double x) {
    double e;
    double f = tb_log_split_f64(x, 0x3FE8000000000000ull, &e);
    return tb_log_ends_f64(tb_log_sum_f64(f, e, 0.0), x);
}

// Bound 1.1
TB_FN double tb_log2_f64(double x) {
    double e;
    double f = tb_log_split_f64(x, 0x3FE6A09E667F3BCDull, &e);
    double p = TB_FMA_F64(TB_Q19(F64, f, f * f, 0.4808983469629925, -0.36067376022225306, 0.28853900817601513,
                                 -0.24044917347746192, 0.20609929178648498, -0.18033688067474435, 0.16029943441118186,
                                 -0.14426946381187991, 0.1311546051833419, -0.12022621764650851, 0.1109661784729182,
                                 -0.10301024926489566, 0.096297203768903147, -0.090742000074519311,
                                 0.084281314460860943, -0.075309566924846791, 0.074762327642841062,
                                 -0.092708283678808526, 0.093093780345695307, -0.042839230609716408), f,
                                 -0.72134752044448169);
    double r = TB_FMA_F64(f, 1.4426950408889634, TB_FMA_F64(p, f * f, f * 2.0355273740931033e-17));
    return tb_log_ends_f64(e + r, x);
}

// Bound 1.5
TB_FN double tb_log10_f64(double x) {
    double e;
    double f = tb_log_split_f64(x, 0x3FE6A09E667F3BCDull, &e);
    double p = TB_FMA_F64(TB_Q19(F64, f, f * f, 0.14476482730108464, -0.10857362047579697, 0.086858896380366757,
                                 -0.072382413653478986, 0.062042068884237078, -0.054286810015204301,
                                 0.048254939481451813, -0.043429456049873402, 0.039481437925353961,
                                 -0.03619110403132729, 0.033404277136521929, -0.031019683713646148,
                                 0.028996904837040611, -0.027209110356876679, 0.025192159217920122,
                                 -0.023211342746078611, 0.023948971091033618, -0.027302845180029588,
                                 0.02369754568686163, -0.009617188758355261), f, -0.21714724095162594);
    double r = TB_FMA_F64(p, f * f, TB_FMA_F64(e, -2.8037281277851704e-18, f * 1.0983196502167651e-17));
    r = TB_FMA_F64(f, 0.43429448190325182, r);
    return tb_log_ends_f64(TB_FMA_F64(e, 0.3010299956639812, r), x);
}

// log(h + l) + k ln 2 for h > 0 and finite, |l| below an ulp of h
TB_FN double tb_log_pair_f64(double h, double l, double k) {
    double e;
    double f = tb_log_split_f64(h, 0x3FE8000000000000ull, &e);
    double scaled = l / h * (1.0 + f);
    return tb_log_sum_f64(f, e + k, scaled * TB_FMA_F64(f, f - 1.0, 1.0));
}

// 1 + x = 2^e (1 + f + rest). Bound 1.5
TB_FN double tb_log1p_f64(double x) {
    double y = 1.0 + x;
    tb_u64 u = tb_bits_f64(y) - 0x3FE8000000000000ull;
    double s = tb_from_bits_f64(0x4010000000000000ull - (u & 0xFFF0000000000000ull)) * 0.25;
    double e = tb_from_bits_f64(((u + 0x3FF0000000000000ull) >> 52) | 0x4330000000000000ull) - 4503599627371519.0;
    double f = TB_FMA_F64(x, s, s - 1.0);
    double rest = TB_FMA_F64(x, s, (s - 1.0) - f);
    double r = tb_log_sum_f64(f, e, rest * TB_FMA_F64(f, f - 1.0, 1.0));
    r = tb_abs_f64(x) < 0x1p-55 ? x : r;
    return tb_log_ends_f64(r, y);
}

// ---- hyperbolic tangent, logistic, error function -----------------------------------------------------------------

// |x| <= 0.625: odd polynomial; beyond: 1 - 2 / (e^2|x| + 1), which is 1 from 19.1 on. Bound 1.5
TB_FN double tb_tanh_f64(double x) {
    double a = tb_abs_f64(x);
    double y = a > 19.125 ? 19.125 : a;
    double t = TB_FMA_F64(y, 2.8853900817779268, TB_ROUND_F64);
    double f = TB_FMA_F64(y, 2.8853900817779268, -(t - TB_ROUND_F64));
    double q = TB_FMA_F64(tb_exp2m1_over_f64(f), f, 1.0);
    double large = 1.0 - 2.0 / TB_FMA_F64(q, tb_from_bits_f64((tb_bits_f64(t) << 52) + (1023ull << 52)), 1.0);
    double s = a * a;
    double p = TB_P10(F64, s, -0.33333333333332854, 0.13333333333261926, -0.053968253931200791, 0.021869487574790569,
                              -0.0088632209880208229, 0.0035919890717779545, -0.0014549584185931668,
                              0.00058631520631716638, -0.00022856179782437908, 7.7141893736612169e-05,
                              -1.607147377815525e-05);
    double small = TB_FMA_F64(p * s, a, a);
    double r = a > 0.625 ? large : small;
    return tb_put_sign_f64(r, x);
}

// With |x| log2(e) = n + f: z = 2^-n / (2^-n + 2^f) for x < 0, otherwise 1 - z. Bound 2.0
TB_FN double tb_sigmoid_f64(double x) {
    double a = tb_abs_f64(x);
    a = a > 745.5 ? 745.5 : a;
    double t = TB_FMA_F64(a, 1.4426950408889634, TB_ROUND_F64);
    double f = TB_FMA_F64(a, 1.4426950408889634, -(t - TB_ROUND_F64));
    f = TB_FMA_F64(a, 2.0355273740931033e-17, f);
    double s = tb_from_bits_f64((1076ull << 52) - (tb_bits_f64(t) << 52)) * 0x1p-53;
    double d = 1.0 + s;
    double z = s / (d + TB_FMA_F64(tb_exp2m1_over_f64(f), f, (1.0 - d) + s));
    return x < 0.0 ? z : 1.0 - z;
}

// erf for 0 <= a <= 1
TB_FN double tb_erf_unit_f64(double a) {
    double s = a * a;
    double p = TB_Q12(F64, s, s * s, 0.12837916709551259, -0.37612638903184098, 0.11283791670971094,
                      -0.026866170648029607, 0.0052239776526740184, -0.00085483285348233855, 0.00012055386173747343,
                      -1.4926881706838326e-05, 1.6481079765589408e-06, -1.6557590212688163e-07, 1.601831833370379e-08,
                      -1.6493501825383144e-09, 1.4409704100797277e-10);
    return TB_FMA_F64(p, a, a);
}

// |x| <= 1: odd polynomial; beyond: 1 - 2^P(|x|) with P fitted to log2(erfc), which is 1 from 5.93 on. Bound 1.5
TB_FN double tb_erf_f64(double x) {
    double a = tb_abs_f64(x);
    double small = tb_erf_unit_f64(a);
    double y = a > 6.0 ? 6.0 : a;
    double b = TB_Q17(F64, y, y * y, 0.37209305257750086, -0.91844888198385033, -0.14826696035261652,
                      0.027591485772314638, 0.00030591482313165584, -0.0024419318334538459, 0.00082907240830940531,
                      1.3944484661729679e-06, -0.00013775065550376462, 8.0843008535403177e-05, -2.9359504079803514e-05,
                      7.7688811123824908e-06, -1.5553225935371149e-06, 2.3517820008055887e-07, -2.615503729746061e-08,
                      2.0230685546887414e-09, -9.7294530456687397e-11, 2.1909110550789182e-12);
    b = TB_FMA_F64(b, y, -2.0 * y);
    double t = b + TB_ROUND_F64;
    double f = b - (t - TB_ROUND_F64);
    double q = TB_FMA_F64(tb_exp2m1_over_f64(f), f, 1.0);
    double large = TB_FMA_F64(q, -tb_from_bits_f64((tb_bits_f64(t) << 52) + (1023ull << 52)), 1.0);
    double r = a > 1.0 ? large : small;
    return tb_put_sign_f64(r, x);
}

// |x| >= 0.45: e^-x^2 R / (1.75 + 3.5|x|), R a polynomial in (|x| - 4) / (|x| + 4) between 1.75 and 2, where rounding
// hurts least; the errors of x^2, divisor, quotient and exponent go into one small correction. Below: 1 - erf.
// Negative x: 2 minus that. Bound 2.0
TB_FN double tb_erfc_f64(double x) {
    double a = tb_abs_f64(x);
    double c = a > 28.0 ? 28.0 : a;
    double t = (c - 4.0) / (c + 4.0);
    double p = TB_P22(F64, t, 2.1577414575947169, -0.24433695447098414, 0.026914391179575298, 0.11916984494567871,
                              -0.17681836556294891, 0.16403246124838022, -0.11607814018569547, 0.065043152168280868,
                              -0.02834603442179463, 0.0088059476801880289, -0.0013261045602661844,
                              -0.00034870052435419133, 0.00026359382624417839, -4.269361750687525e-05,
                              -1.9655552589681641e-05, 9.9795794968226751e-06, 5.4547237342935206e-07,
                              -1.4246043094704871e-06, 9.5106469488716119e-08, 1.7315243595072347e-07,
                              -8.8566859339168605e-09, -1.4317810917114554e-08, -2.8475387499289145e-09);
    double d = TB_FMA_F64(3.5, c, 1.75);
    double v = p / d;
    double lost = TB_FMA_F64(3.5, c, 1.75 - d);
    double correction = 0.54 * (TB_FMA_F64(-v, d, p) - v * lost);
    double s = c * c;
    correction -= TB_FMA_F64(c, c, -s);
    double k = TB_FMA_F64(s, -1.4426950408889634, TB_ROUND_F64);
    double n = k - TB_ROUND_F64;
    double q = TB_FMA_F64(n, -0.6931471805598903, -s);
    double r = TB_FMA_F64(n, -5.497923018708371e-14, q);
    double h = tb_exp_tail_f64(r) * (r * r);
    double e = r + h;
    correction += TB_FMA_F64(n, -5.497923018708371e-14, q - r) + ((r - e) + h);
    double m = TB_FMA_F64(v, e, v);
    m += TB_FMA_F64(m, correction, TB_FMA_F64(v, e, v - m));
    double tail = tb_scale_f64(m, tb_bits_f64(k), s > 690.0);
    double near = tb_erf_unit_f64(a);
    double low = a < 0.45 ? near : tail;
    double right = a < 0.45 ? 1.0 - near : tail;
    double left = a < 0.45 ? 1.0 + near : 2.0 - tail;
    right = x < 0.0 ? left : right;
    return low != low ? low : right;
}

// ---- hyperbolic functions and their inverses ----------------------------------------------------------------------

// e^a / 2 for 0 <= a; the result overflows where it must, not before
TB_FN double tb_half_exp_f64(double a) {
    double c = a > 711.0 ? 711.0 : a;
    double t = TB_FMA_F64(c, 1.4426950408889634, TB_ROUND_F64);
    double n = t - TB_ROUND_F64;
    double r = TB_FMA_F64(n, -0.6931471805598903, c);
    r = TB_FMA_F64(n, -5.497923018708371e-14, r);
    double p = TB_FMA_F64(tb_exp_tail_f64(r), r * r, r);
    double s = tb_from_bits_f64((tb_bits_f64(t) << 52) + (1019ull << 52));
    return TB_FMA_F64(p, s, s) * 8.0;
}

// |x| <= 1: odd polynomial. Bound 2.0
TB_FN double tb_sinh_f64(double x) {
    double a = tb_abs_f64(x);
    double e = tb_half_exp_f64(a);
    double s = a * a;
    double p = TB_P6(F64, s, 0.16666666666666669, 0.0083333333333329099, 0.00019841269841595443,
                             2.7557319105894681e-06, 2.5052131167346083e-08, 1.6056643725656004e-10,
                             7.7771356279362242e-13);
    double small = TB_FMA_F64(p * s, a, a);
    double r = a > 1.0 ? e - 0.25 / e : small;
    return tb_put_sign_f64(r, x);
}
TB_FN double tb_cosh_f64(double x) {
    double e = tb_half_exp_f64(tb_abs_f64(x));
    return e + 0.25 / e;
}

// |x| <= 1/2: odd polynomial; beyond: log(a + w), w = sqrt(a^2 + 1), halved so that it cannot overflow; the errors of
// root and sum go along. Bound 1.5
TB_FN double tb_asinh_f64(double x) {
    double a = tb_abs_f64(x);
    double s = a * a;
    double p = TB_P11(F64, s, -0.1666666666666661, 0.07499999999984415, -0.044642857127829928, 0.030381943716338743,
                              -0.022372138357166137, 0.017352386941772744, -0.013960232149065638,
                              0.011512983475056396, -0.009534140044770328, 0.0074655924755030571,
                              -0.0047474994331680133, 0.0017180737572976067);
    double small = TB_FMA_F64(p * s, a, a);
    double b = a > 0x1p500 ? 0x1p500 : a;
    double q = TB_FMA_F64(b, b, 1.0);
    double w = tb_root_f64(q);
    double error = (TB_FMA_F64(b, b, 1.0 - q) + TB_FMA_F64(-w, w, q)) / w;
    w = a > 0x1p500 ? a : w;
    double u = 0.5 * a + 0.5 * w;
    double v = 0.25 * error + tb_sum_error_f64(0.5 * a, 0.5 * w, u);
    double large = tb_log_pair_f64(u, v, 1.0);
    double r = a > 0.5 ? large : small;
    r = a < TB_INF_F64 ? r : a;
    return tb_put_sign_f64(r, x);
}

// log(x + sqrt(x^2 - 1)) = log1p(d + w) with d = x - 1, w = sqrt(d^2 + 2d); NaN below 1. Bound 2.0
TB_FN double tb_acosh_f64(double x) {
    double d = x - 1.0;
    double b = x > 0x1p500 ? 0x1p500 : d;
    double q = TB_FMA_F64(b, b, 2.0 * b);
    double w = tb_root_f64(q);
    double error = (TB_FMA_F64(b, b, 2.0 * b - q) + TB_FMA_F64(-w, w, q)) * 0.5 / w;
    double near = b + w;
    double rest = (tb_sum_error_f64(b, w, near) + error) / (1.0 + near);
    double r = tb_log1p_f64(x > 0x1p500 ? x : near) + (x > 0x1p500 ? 0.69314718055994531 : rest);
    r = x == 1.0 ? 0.0 : r;
    return x < 1.0 ? TB_NAN_F64 : r;
}

// |x| <= 1/2: odd polynomial; beyond: log((1 + a) / (1 - a)) / 2, which is NaN above 1. Bound 1.5
TB_FN double tb_atanh_f64(double x) {
    double a = tb_abs_f64(x);
    double s = a * a;
    double p = TB_P12(F64, s, 0.33333333333333992, 0.19999999999794482, 0.14285714308099795, 0.11111109885294379,
                              0.090909485840676402, 0.07691492901498985, 0.066779674721090782, 0.057741998558034184,
                              0.059835431290329727, 0.014520409168644629, 0.14503895763998312, -0.15305593009192739,
                              0.22487966738855039);
    double small = TB_FMA_F64(p * s, a, a);
    double large = 0.5 * tb_log_f64((1.0 + a) / (1.0 - a));
    return tb_put_sign_f64(a > 0.5 ? large : small, x);
}

// ---- power --------------------------------------------------------------------------------------------------------

// log2 of a > 0 and finite as high + low, relative error 2^-64: 2 atanh(z), z = (m - 1) / (m + 1), in pairs of doubles
TB_FN double tb_log2_pair_f64(double a, double *low) {
    double e;
    double f = tb_log_split_f64(a, 0x3FE6A09E667F3BCDull, &e);
    double d = f + 2.0;
    double inverse = 1.0 / d;
    double z = f * inverse;
    double zl = (TB_FMA_F64(-z, d, f) - z * (f - (d - 2.0))) * inverse;
    double w = z * z;
    double wl = TB_FMA_F64(z, z, -w) + 2.0 * z * zl;
    double tail = w * w * TB_P8(F64, w, 0.20000000000000001, 0.14285714285709444, 0.11111111114571749,
                                        0.090909081489686835, 0.076924335639812047, 0.066575336307969676,
                                        0.062495042892802707, -0.024272159337390225, 0.70402013235660665);
    double third = w * 0.33333333333333331;
    double q = third + tail;
    double ql = TB_FMA_F64(w, 1.8503717077085941e-17, wl * 0.33333333333333331);
    ql += TB_FMA_F64(w, 0.33333333333333331, -third);
    ql += (third - q) + tail;
    double p = z * q;
    double pl = TB_FMA_F64(z, q, -p) + TB_FMA_F64(z, ql, zl * q);
    double s = z + p;
    double sl = ((z - s) + p) + (pl + zl);
    double g = s * 2.8853900817779268;
    double gl = TB_FMA_F64(s, 4.0710547481862066e-17, sl * 2.8853900817779268);
    gl += TB_FMA_F64(s, 2.8853900817779268, -g);
    double high = e + g;
    *low = ((e - high) + g) + gl;
    return high;
}

// |x|^y = 2^(y log2 |x|) with the logarithm in a pair; then IEEE 754's special cases. Bound 1.5
TB_FN double tb_pow_f64(double x, double y) {
    double a = tb_abs_f64(x);
    double l;
    double h = tb_log2_pair_f64(a, &l);
    h = a == 0.0 ? -TB_INF_F64 : h;
    h = a < TB_INF_F64 ? h : a;
    double p = y * h;
    double rest = TB_FMA_F64(y, h, -p) + y * l;
    rest = tb_abs_f64(p) < 1080.0 ? rest : 0.0;
    double c = p > 1080.0 ? 1080.0 : p;
    c = c < -1080.0 ? -1080.0 : c;
    double k = c + TB_ROUND_F64;
    double f = (c - (k - TB_ROUND_F64)) + rest;
    double r = tb_scale_f64(TB_FMA_F64(tb_exp2m1_over_f64(f), f, 1.0), tb_bits_f64(k), c < -1000.0);
    r = c > 1025.0 ? TB_INF_F64 : r;
    double half = 0.5 * y;
    tb_u64 integer = tb_floor_f64(y) == y;
    tb_u64 odd = integer & (tb_floor_f64(half) != half);
    tb_u64 negative = tb_bits_f64(x) >> 63;
    r = ((x < 0.0) & (a < TB_INF_F64) & (integer ^ 1u)) ? TB_NAN_F64 : r;
    r = tb_from_bits_f64(tb_bits_f64(r) ^ ((odd & negative) << 63));
    tb_u64 one = (x == 1.0) | (y == 0.0) | ((a == 1.0) & (tb_abs_f64(y) == TB_INF_F64));
    return one ? 1.0 : r;
}

// ---- remainders ---------------------------------------------------------------------------------------------------

// trunc(a / b) for a, b >= 0, and the rest a - trunc(a / b) b, which is exact, if that is below 2^53: the rounded quotient
// may be one too many. NaN and what is beyond have no rest.
TB_FN double tb_taken_off_f64(double a, double b, double *rest) {
    double q = tb_trunc_f64(a / b);
    double r = TB_FMA_F64(-q, b < TB_INF_F64 ? b : 0.0, a);
    tb_u64 over = 0u - (tb_bits_f64(r) >> 63);
    *rest = r + tb_from_bits_f64(tb_bits_f64(b) & over);
    return q - tb_from_bits_f64(0x3FF0000000000000ull & over);
}

// x - trunc(x/y) y, exact. Quotients beyond 2^53 have up to 2098 bits, and are the C library's. Bound 0
TB_FN double tb_fmod_near_f64(double x, double y, double *q) {
    double rest;
    *q = tb_taken_off_f64(tb_abs_f64(x), tb_abs_f64(y), &rest);
    return tb_put_sign_f64(rest, x);
}
TB_FN double tb_fmod_far_f64(double x, double y) { return tb_libm_fmod_f64(x, y); }
TB_PAIR_CALLS_f64(fmod, double, 0x1p53)

// As NumPy's remainder: the sign of y
TB_FN double tb_mod_f64(double x, double y) {
    double m = tb_fmod_f64(x, y);
    double shifted = m + tb_from_bits_f64(tb_bits_f64(y) & (0u - ((tb_bits_f64(m) ^ tb_bits_f64(y)) >> 63)));
    double zero = tb_from_bits_f64(tb_bits_f64(y) & TB_SIGN_F64);
    return m == 0.0 ? zero : shifted;
}

// As NumPy's floor_divide: floor of the quotient left by the remainder, x / y for y = 0
TB_FN double tb_floordiv_near_f64(double x, double y, double *q) {
    double rest;
    double whole = tb_taken_off_f64(tb_abs_f64(x), tb_abs_f64(y), &rest);
    tb_u64 sign = (tb_bits_f64(x) ^ tb_bits_f64(y)) & TB_SIGN_F64;
    tb_u64 below = rest != 0.0 ? 0u - (sign >> 63) : 0u;
    *q = whole;
    return tb_from_bits_f64(tb_bits_f64(whole + tb_from_bits_f64(0x3FF0000000000000ull & below)) | sign);
}
TB_FN double tb_floordiv_far_f64(double x, double y) {
    double ratio = x / y;
    if (y == 0.0) return ratio;
    double m = tb_libm_fmod_f64(x, y);
    double q = (x - m) / y;
    q = (tb_bits_f64(x) ^ tb_bits_f64(y)) >> 63 && m != 0.0 ? q - 1.0 : q;
    double whole = tb_floor_f64(q);
    return q - whole > 0.5 ? whole + 1.0 : whole;
}
TB_PAIR_CALLS_f64(floordiv, double, 0x1p51)

#endif
