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

// For |x| = m 2^(i-24), m < 2^24 (i = 0 for |x| < 1, then one row a binade): 2^(i-24) 2/pi modulo 4, as a part of
// 29 bits, whose product with m is exact in double, and the rest.
TB_TABLE double tb_trig_table_f32[] = {
    3.7945495412472496e-08, -2.351277007637849e-17, 7.589099082494499e-08, -4.702554015275698e-17,
    1.5178198164988999e-07, -9.405108030551396e-17, 3.0356396329977997e-07, -1.8810216061102791e-16,
    6.071279265995599e-07, -3.7620432122205583e-16, 1.2142558531991199e-06, -7.524086424441117e-16,
    2.4285117063982398e-06, -1.5048172848882233e-15, 4.8570234127964795e-06, -3.0096345697764466e-15,
    9.714046825592959e-06, -6.019269139552893e-15, 1.9428093651185918e-05, -1.2038538279105786e-14,
    3.8856187302371836e-05, -2.4077076558211573e-14, 7.771237460474367e-05, -4.8154153116423146e-14,
    0.00015542474920948735, -9.630830623284629e-14, 0.0003108494984189747, -1.9261661246569258e-13,
    0.0006216989968379494, -3.8523322493138517e-13, 0.0012433979936758988, -7.704664498627703e-13,
    0.0024867959873517975, -1.5409328997255407e-12, 0.004973591974703595, -3.0818657994510813e-12,
    0.00994718394940719, -6.163731598902163e-12, 0.01989436789881438, -1.2327463197804325e-11,
    0.03978873579762876, -2.465492639560865e-11, 0.07957747159525752, -4.93098527912173e-11,
    0.15915494319051504, -9.86197055824346e-11, 0.3183098863810301, -1.972394111648692e-10,
    0.6366197727620602, -3.944788223297384e-10, 1.2732395455241203, -7.889576446594768e-10,
    -1.4535209089517593, -1.5779152893189536e-09, 1.092958178371191, 5.69459719824007e-10,
    -1.814083643257618, 1.138919439648014e-09, 0.37183271534740925, 4.1519373006507095e-10,
    0.7436654306948185, 8.303874601301419e-10, 1.487330861389637, 1.6607749202602838e-09,
    -1.0253382734954357, -4.037404579413466e-10, 1.9493234530091286, -8.074809158826933e-10,
    -0.10135309561155736, 1.4852673811700927e-11, -0.20270619122311473, 2.9705347623401853e-11,
    -0.40541238244622946, 5.941069524680371e-11, -0.8108247648924589, 1.1882139049360741e-10,
    -1.6216495297849178, 2.3764278098721483e-10, 0.7567009404301643, 4.752855619744297e-10,
    1.5134018808603287, 9.505711239488593e-10, -0.9731962364166975, 3.8497098666761516e-11,
    -1.946392472833395, 7.699419733352303e-11, 0.10721505456604064, -7.884224898682356e-11,
    0.21443010913208127, -1.5768449797364713e-10, 0.42886021826416254, -3.1536899594729426e-10,
    0.8577204365283251, -6.307379918945885e-10, 1.7154408730566502, -1.261475983789177e-09,
    -0.5691182557493448, -6.603068183473968e-10, -1.1382365114986897, -1.3206136366947936e-09,
    1.7235269732773304, 1.0840630250723266e-09, -0.552946051582694, 3.054809009136963e-10,
    -1.105892103165388, 6.109618018273926e-10, 1.7882157936692238, 1.2219236036547852e-09,
    -0.4235684098675847, -3.5012051653686497e-10, -0.8471368197351694, -7.002410330737299e-10,
    -1.6942736394703388, -1.4004820661474599e-09, 0.6114527173340321, 9.243261661669945e-10,
    1.2229054346680641, 1.848652332333989e-09, -1.5541891269385815, -2.7985633793936105e-11,
    0.8916217461228371, -5.597126758787221e-11, 1.7832434922456741, -1.1194253517574442e-10,
    -0.43351301550865173, -2.2388507035148884e-10, -0.8670260310173035, -4.477701407029777e-10,
    -1.734052062034607, -8.955402814059554e-10, 0.531895874068141, 7.156458641904629e-11,
    1.063791748136282, 1.4312917283809259e-10, -1.872416503727436, 2.8625834567618517e-10,
    0.25516699347645044, -3.588058832631081e-10, 0.5103339869529009, -7.176117665262162e-10,
    1.0206679739058018, -1.4352235330524325e-09, -1.9586640559136868, 8.54843232357049e-10,
    0.082671889802441, 7.987195913701072e-11, 0.165343779604882, 1.5974391827402145e-10,
    0.330687559209764, 3.194878365480429e-10, 0.661375118419528, 6.389756730960858e-10,
    1.322750236839056, 1.2779513461921716e-09, -1.3544995225965977, -1.1693876060775709e-09,
    1.2910009510815144, 1.386515086306772e-09, -1.417998094111681, -9.522601258483697e-10,
    1.1640038080513477, 1.8207700467651747e-09, -1.6719923801720142, -8.375020493156488e-11,
    0.6560152396559715, -1.6750040986312977e-10, 1.312030479311943, -3.3500081972625953e-10,
    -1.375939041376114, -6.700016394525191e-10, 1.2481219172477722, -1.3400032789050381e-09,
    -1.5037561692297459, 1.045283740651838e-09, 0.9924876634031534, 2.2792233207271882e-10,
    1.9849753268063068, 4.5584466414543764e-10, -0.030049345456063747, -1.9633246324603202e-11,
    -0.060098690912127495, -3.9266492649206404e-11, -0.12019738182425499, -7.853298529841281e-11,
    -0.24039476364850998, -1.5706597059682562e-10, -0.48078952729701996, -3.1413194119365123e-10,
    -0.9615790545940399, -6.282638823873025e-10, -1.9231581091880798, -1.256527764774605e-09,
    0.1536837792955339, -1.847490930105135e-10, 0.3073675585910678, -3.69498186021027e-10,
    0.6147351171821356, -7.38996372042054e-10, 1.2294702343642712, -1.477992744084108e-09,
    -1.541059534996748, 7.69304810293698e-10, 0.9178809318691492, -3.240355286435612e-10,
    1.8357618637382984, -6.480710572871224e-10, -0.32847627345472574, -3.648195399587662e-10,
    -0.6569525469094515, -7.296390799175324e-10, -1.313905093818903, -1.4592781598350648e-09,
    1.3721898086369038, 8.067339787917845e-10, -1.2556203827261925, 1.613467957583569e-09,
    1.4887592382729053, -4.983543832947761e-10, -1.0224815234541893, -9.967087665895522e-10,
    1.955036949366331, 1.7318727652828097e-09, -0.08992609777487814, -2.8714124242424943e-11,
    -0.1798521955497563, -5.7428248484849886e-11, -0.3597043910995126, -1.1485649696969977e-10,
    -0.7194087821990252, -2.2971299393939954e-10, -1.4388175643980503, -4.594259878787991e-10,
    1.1223648712038994, -9.188519757575982e-10, -1.7552702575922012, -1.8377039515151963e-09,
    0.48945948109030724, 4.9882395431521274e-11, 0.9789189621806145, 9.976479086304255e-11,
    1.957837924361229, 1.995295817260851e-10, -0.08432415081188083, -6.660212385556906e-11,
    -0.16864830162376165, -1.3320424771113812e-10, -0.3372966032475233, -2.6640849542227625e-10,
    -0.6745932064950466, -5.328169908445525e-10, -1.3491864129900932, -1.065633981689105e-09,
    1.3016271702945232, 1.594022335083704e-09, -1.3967456556856632, -5.372456282945058e-10,
    1.2065086886286736, -1.0744912565890117e-09, -1.5869826264679432, 1.5763077852838907e-09,
};

// |x| = n pi/2 + r with |r| <= 0.835; any finite x. Returns r, correct to half an ulp, and n modulo 2^32. Inf gives NaN.
TB_FN float tb_trig_reduce_f32(float x, tb_u32 *n) {
    tb_u32 u = tb_bits_f32(x) & ~TB_SIGN_F32;
    tb_i32 e = (tb_i32)(u >> 23);
    e = e < 126 ? 126 : e;
    tb_i32 row = 2 * (e - 126);
    double m = (double)(tb_from_bits_f32(u) * tb_from_bits_f32((tb_u32)(277 - e) << 23));
    double y = m * tb_trig_table_f32[row];
    double k = y + TB_ROUND_F64;
    double f = y - (k - TB_ROUND_F64);
    f = TB_FMA_F64(m, tb_trig_table_f32[row + 1], f);
    *n = (tb_u32)tb_bits_f64(k);
    return (float)(f * 1.57079632679489656);
}

// sin r and cos r for |r| <= 0.835
TB_FN float tb_sin_poly_f32(float r) {
    float s = r * r;
    float p = -0.000194731518f;
    p = TB_FMA_F32(p, s, 0.00833183713f);
    p = TB_FMA_F32(p, s, -0.166666493f);
    return TB_FMA_F32(p * s, r, r);
}
TB_FN float tb_cos_poly_f32(float r) {
    float s = r * r;
    float p = 2.43791073e-5f;
    p = TB_FMA_F32(p, s, -0.00138868089f);
    p = TB_FMA_F32(p, s, 0.0416666344f);
    p = TB_FMA_F32(p, s, -0.5f);
    return TB_FMA_F32(p, s, 1.0f);
}

// Every magnitude. Bound 1.5
TB_FN float tb_sin_f32(float x) {
    tb_u32 n;
    float r = tb_trig_reduce_f32(x, &n);
    float odd = tb_cos_poly_f32(r);
    float even = tb_sin_poly_f32(r);
    float v = n & 1u ? odd : even;
    return tb_from_bits_f32(tb_bits_f32(v) ^ (tb_bits_f32(x) & TB_SIGN_F32) ^ ((n & 2u) << 30));
}
TB_FN float tb_cos_f32(float x) {
    tb_u32 n;
    float r = tb_trig_reduce_f32(x, &n);
    float odd = tb_sin_poly_f32(r);
    float even = tb_cos_poly_f32(r);
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
