// SPDX-License-Identifier: Apache-2.0
// inverse.h — quotients of many numbers by the same one, without divisions
//
// x / c is computed in double from 1 / c = high + low. The quotient of two float32 numbers is either half way between two
// float32 numbers (denormal ones), or at least 2^-48 of itself away from there: the product with `high`, some 2^-53 off,
// rounds as the quotient does but for the first case, which `low` makes exact. It has the sign of `high`, so that zeros
// and infinities come out by themselves.
//
// Divisions take 10 cycles a vector of 16 (AVX-512), and there is one divider; this takes 6. Elsewhere nothing is gained.
#ifndef TB_INVERSE_H
#define TB_INVERSE_H

#include "vmath.h"

typedef struct {
    double high, low;
} tb_inverse;

TB_FN double tb_inverse_rest(double high, float c) { return TB_FMA_F64(-high, (double)c, 1.0) * high; }

TB_FN tb_inverse tb_inverse_f32(float c) {
    double high = 1.0 / (double)c;
    if (c == 0 || high == 0 || c != c) {  // of zero, infinity, NaN
        tb_inverse all = {high, high};
        return all;
    }
    if (tb_inverse_rest(high, c) * high < 0) high = tb_from_bits_f64(tb_bits_f64(high) - 1);
    const double rest = tb_inverse_rest(high, c);
    tb_inverse both = {high, rest == 0 ? high * 0x1p-80 : rest};
    return both;
}

TB_FN float tb_over_f32(float x, float c, tb_inverse inverse) {
#if defined(__AVX512F__)
    (void)c;
    return (float)TB_FMA_F64((double)x, inverse.high, (double)x * inverse.low);
#else
    (void)inverse;
    return x / c;
#endif
}

#endif
