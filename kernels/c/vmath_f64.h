// SPDX-License-Identifier: Apache-2.0
// vmath_f64.h — float64 functions of vmath.h, which says what holds for all of them
//
// The same methods as in vmath_f32.h, with longer polynomials. Bounds in the comments hold for stratified samples
// against 113-bit references.
#ifndef TB_VMATH_F64_H
#define TB_VMATH_F64_H

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

// Bound 1.5
TB_FN double tb_rsqrt_f64(double x) { return 1.0 / tb_sqrt_f64(x); }

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

// log(1 + f) + e ln 2 + rest for f in [-1/4, 1/2], an integer e and a small rest
TB_FN double tb_log_sum_f64(double f, double e, double rest) {
    double p = TB_P20(F64, f, -0.5, 0.33333333333332782, -0.24999999999999223, 0.20000000000196591,
                              -0.16666666667122992, 0.14285714262050864, -0.12499999922935104, 0.11111112434965155,
                              -0.10000005730909961, 0.0909087224201066, -0.083331142635433592, 0.076927315972412938,
                              -0.071473433229678876, 0.066685227707828504, -0.062040415562389213, 0.05787360653383615,
                              -0.057086830253343539, 0.060346726253471414, -0.056965051918710263,
                              0.036145267223477058, -0.010612542094879508);
    double r = TB_FMA_F64(p, f * f, f + TB_FMA_F64(e, 5.497923018708371e-14, rest));
    return TB_FMA_F64(e, 0.6931471805598903, r);
}

// x = 2^e (1 + f) for x > 0 and finite, 1 + f in [m, 2m) with m given in bits. The exponent is written into the
// mantissa of 2^52: there is no vector conversion from 64-bit integers before AVX-512.
TB_FN double tb_log_split_f64(double x, tb_u64 m, double *e) {
    double d = x < 0x1p-1022 ? x * 0x1p54 : x;
    double bias = x < 0x1p-1022 ? 4503599627371573.0 : 4503599627371519.0;
    tb_u64 u = tb_bits_f64(d) - m;
    *e = tb_from_bits_f64(((u + 0x3FF0000000000000ull) >> 52) | 0x4330000000000000ull) - bias;
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
    double p = TB_P20(F64, f, -0.72134752044448169, 0.4808983469629925, -0.36067376022225306, 0.28853900817601513,
                              -0.24044917347746192, 0.20609929178648498, -0.18033688067474435, 0.16029943441118186,
                              -0.14426946381187991, 0.1311546051833419, -0.12022621764650851, 0.1109661784729182,
                              -0.10301024926489566, 0.096297203768903147, -0.090742000074519311, 0.084281314460860943,
                              -0.075309566924846791, 0.074762327642841062, -0.092708283678808526,
                              0.093093780345695307, -0.042839230609716408);
    double r = TB_FMA_F64(f, 1.4426950408889634, TB_FMA_F64(p, f * f, f * 2.0355273740931033e-17));
    return tb_log_ends_f64(e + r, x);
}

// Bound 1.5
TB_FN double tb_log10_f64(double x) {
    double e;
    double f = tb_log_split_f64(x, 0x3FE6A09E667F3BCDull, &e);
    double p = TB_P20(F64, f, -0.21714724095162594, 0.14476482730108464, -0.10857362047579697, 0.086858896380366757,
                              -0.072382413653478986, 0.062042068884237078, -0.054286810015204301,
                              0.048254939481451813, -0.043429456049873402, 0.039481437925353961, -0.03619110403132729,
                              0.033404277136521929, -0.031019683713646148, 0.028996904837040611,
                              -0.027209110356876679, 0.025192159217920122, -0.023211342746078611,
                              0.023948971091033618, -0.027302845180029588, 0.02369754568686163,
                              -0.009617188758355261);
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
    r = x == -1.0 ? -TB_INF_F64 : r;
    r = x < -1.0 ? TB_NAN_F64 : r;
    return x < TB_INF_F64 ? r : x;
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
    double p = TB_P12(F64, s, 0.12837916709551259, -0.37612638903184098, 0.11283791670971094, -0.026866170648029607,
                              0.0052239776526740184, -0.00085483285348233855, 0.00012055386173747343,
                              -1.4926881706838326e-05, 1.6481079765589408e-06, -1.6557590212688163e-07,
                              1.601831833370379e-08, -1.6493501825383144e-09, 1.4409704100797277e-10);
    return TB_FMA_F64(p, a, a);
}

// |x| <= 1: odd polynomial; beyond: 1 - 2^P(|x|) with P fitted to log2(erfc), which is 1 from 5.93 on. Bound 1.5
TB_FN double tb_erf_f64(double x) {
    double a = tb_abs_f64(x);
    double small = tb_erf_unit_f64(a);
    double y = a > 6.0 ? 6.0 : a;
    double b = TB_P17(F64, y, 0.37209305257750086, -0.91844888198385033, -0.14826696035261652, 0.027591485772314638,
                              0.00030591482313165584, -0.0024419318334538459, 0.00082907240830940531,
                              1.3944484661729679e-06, -0.00013775065550376462, 8.0843008535403177e-05,
                              -2.9359504079803514e-05, 7.7688811123824908e-06, -1.5553225935371149e-06,
                              2.3517820008055887e-07, -2.615503729746061e-08, 2.0230685546887414e-09,
                              -9.7294530456687397e-11, 2.1909110550789182e-12);
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

// ---- sine, cosine, tangent ----------------------------------------------------------------------------------------

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

// |x| = (n + high + low) pi/2 with |high| <= 1/2; any finite x, Inf gives NaN. x is scaled to h 2^(32 i) with h an
// integer if i > 0, so whole fours of the partial products of h and row i go. What is left is added up without error as
// far as it matters: a double can come within 2^-62 of a multiple of pi/2.
TB_FN double tb_quarter_turns_f64(double x, tb_u32 *n, double *low) {
    double a = tb_abs_f64(x);
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
    *n = (tb_u32)tb_bits_f64(k);
    double high = f + rest;
    *low = tb_sum_error_f64(f, rest, high);
    return high;
}

// sin((f + l) pi/2) and cos(f pi/2) for |f| <= 1/2 and l below an ulp of it; pi/2 in two parts
TB_FN double tb_sin_quarter_f64(double f, double l) {
    double s = f * f;
    double p = TB_P7(F64, s, 6.123233995736766e-17, -0.64596409750624628, 0.079692626246169185,
                             -0.0046817541353724144, 0.00016044118540384125, -3.5988467530786951e-06,
                             5.6931132170335743e-08, -6.7639298748584746e-10);
    double slope = TB_FMA_F64(s, -1.9, 1.5707963267948966);
    return TB_FMA_F64(f, 1.5707963267948966, TB_FMA_F64(p, f, l * slope));
}
TB_FN double tb_cos_quarter_f64(double f) {
    double s = f * f;
    return TB_P7(F64, s, 1.0, -1.2337005501361697, 0.2536695079010417, -0.02086348076318097, 0.00091926027263237347,
                         -2.5202027446824121e-05, 4.7103340906152083e-07, -6.2893980072742466e-09);
}

// Every magnitude; tiny x are their own sines and tangents. Bound 1.5
TB_FN double tb_sin_f64(double x) {
    tb_u32 n;
    double l;
    double f = tb_quarter_turns_f64(x, &n, &l);
    double odd = tb_cos_quarter_f64(f);
    double even = tb_sin_quarter_f64(f, l);
    double v = n & 1u ? odd : even;
    v = tb_from_bits_f64(tb_bits_f64(v) ^ (tb_bits_f64(x) & TB_SIGN_F64) ^ ((tb_u64)(n & 2u) << 62));
    return tb_abs_f64(x) < 0x1p-27 ? x : v;
}
TB_FN double tb_cos_f64(double x) {
    tb_u32 n;
    double l;
    double f = tb_quarter_turns_f64(x, &n, &l);
    double odd = tb_sin_quarter_f64(f, l);
    double even = tb_cos_quarter_f64(f);
    double v = n & 1u ? odd : even;
    return tb_from_bits_f64(tb_bits_f64(v) ^ ((tb_u64)((n + 1u) & 2u) << 62));
}

// h + e = tan(f pi/2), odd quarters give -1/(h + e) with one Newton step. Bound 2.0
TB_FN double tb_tan_f64(double x) {
    tb_u32 n;
    double l;
    double f = tb_quarter_turns_f64(x, &n, &l);
    double s = f * f;
    double p = TB_P15(F64, s, 6.123233995736766e-17, 1.2919281950124943, 1.2750820199379207, 1.2734371249145764,
                              1.2732612346456811, 1.27324228312373, 1.2732303755919698, 1.273420489704912,
                              1.2707817716070802, 1.2973504911108631, 1.101187126875149, 2.1625090037286601,
                              -1.9951148008848012, 9.4778365173430306, -11.664871319022216, 11.684128976733479);
    double slope = TB_FMA_F64(s, 6.2, 1.5707963267948966);
    p = TB_FMA_F64(p, f, l * slope);
    double h = TB_FMA_F64(f, 1.5707963267948966, p);
    double e = TB_FMA_F64(f, 1.5707963267948966, -h) + p;
    double v = -1.0 / h;
    v = n & 1u ? TB_FMA_F64(v, TB_FMA_F64(e, v, TB_FMA_F64(h, v, 1.0)), v) : h;
    v = tb_from_bits_f64(tb_bits_f64(v) ^ (tb_bits_f64(x) & TB_SIGN_F64));
    return tb_abs_f64(x) < 0x1p-27 ? x : v;
}

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
    double z = a > 0.5 ? -2.0 * tb_sqrt_f64(s) : a;
    double t = tb_asin_tail_f64(s);
    double h = 1.5707963267948966 + z;
    double end = h + (((1.5707963267948966 - h) + z) + TB_FMA_F64(t, z, 6.123233995736766e-17));
    double r = a > 0.5 ? end : TB_FMA_F64(t, z, z);
    return tb_put_sign_f64(r, x);
}
TB_FN double tb_acos_f64(double x) {
    double a = tb_abs_f64(x);
    double s = a > 0.5 ? TB_FMA_F64(-0.5, a, 0.5) : a * a;
    double z = a > 0.5 ? -2.0 * tb_sqrt_f64(s) : -x;
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
    double p = TB_P19(F64, s, -0.33333333333333071, 0.19999999999951754, -0.14285714282586159, 0.11111111007218294,
                              -0.090909070045444879, 0.076922798399616146, -0.066664039437354106,
                              0.058805265267564598, -0.05253510422231427, 0.04722287285566576, -0.042190698123811224,
                              0.036639354984844476, -0.029899311143149795, 0.021978688939947928,
                              -0.013894232974643973, 0.0071916677535527416, -0.0028822519316035887,
                              0.00083031918568512108, -0.0001519307945941727, 1.3200770979373846e-05);
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
    double w = tb_sqrt_f64(q);
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
    double w = tb_sqrt_f64(q);
    double error = (TB_FMA_F64(b, b, 2.0 * b - q) + TB_FMA_F64(-w, w, q)) * 0.5 / w;
    double near = b + w;
    double rest = tb_sum_error_f64(b, w, near) + error;
    double small = tb_log1p_f64(near) + rest / (1.0 + near);
    double far = tb_log_f64(x) + 0.69314718055994531;
    double r = x > 0x1p500 ? far : small;
    r = x == 1.0 ? 0.0 : r;
    r = x < TB_INF_F64 ? r : x;
    return x < 1.0 ? TB_NAN_F64 : r;
}

// |x| <= 1/2: odd polynomial; beyond: log((1 + a) / (1 - a)) / 2, NaN above 1. Bound 1.5
TB_FN double tb_atanh_f64(double x) {
    double a = tb_abs_f64(x);
    double s = a * a;
    double p = TB_P12(F64, s, 0.33333333333333992, 0.19999999999794482, 0.14285714308099795, 0.11111109885294379,
                              0.090909485840676402, 0.07691492901498985, 0.066779674721090782, 0.057741998558034184,
                              0.059835431290329727, 0.014520409168644629, 0.14503895763998312, -0.15305593009192739,
                              0.22487966738855039);
    double small = TB_FMA_F64(p * s, a, a);
    double large = 0.5 * tb_log_f64((1.0 + a) / (1.0 - a));
    double r = a > 0.5 ? large : small;
    return tb_put_sign_f64(a <= 1.0 ? r : TB_NAN_F64, x);
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

// The C library's: quotients of doubles have up to 2098 bits, too many for straight-line code. Bound 0
TB_FN double tb_fmod_f64(double x, double y) { return tb_libm_fmod_f64(x, y); }

// As NumPy's remainder: the sign of y
TB_FN double tb_mod_f64(double x, double y) {
    double m = tb_fmod_f64(x, y);
    double shifted = (tb_bits_f64(m) ^ tb_bits_f64(y)) >> 63 ? m + y : m;
    double zero = tb_from_bits_f64(tb_bits_f64(y) & TB_SIGN_F64);
    return m == 0.0 ? zero : shifted;
}

// As NumPy's floor_divide: floor of the quotient left by the remainder, x / y for y = 0
TB_FN double tb_floordiv_f64(double x, double y) {
    double m = tb_fmod_f64(x, y);
    double q = (x - m) / y;
    double below = (tb_bits_f64(m) ^ tb_bits_f64(y)) >> 63 ? q - 1.0 : q;
    q = m == 0.0 ? q : below;
    double whole = tb_floor_f64(q);
    whole = q - whole > 0.5 ? whole + 1.0 : whole;
    double ratio = x / y;
    double zero = tb_from_bits_f64(tb_bits_f64(ratio) & TB_SIGN_F64);
    double r = q == 0.0 ? zero : whole;
    return y == 0.0 ? ratio : r;
}

#endif
