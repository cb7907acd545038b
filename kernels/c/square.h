// SPDX-License-Identifier: Apache-2.0
// square.h — squares of 2, 4, 8 or 16 vectors turned in registers: rows become columns
#ifndef TB_SQUARE_H
#define TB_SQUARE_H

// The n lanes of two vectors of which those whose number has the bit s come from the other vector, s lanes away.
#define TB_SQUARE_FIRST(n, l, s) ((l) & (s) ? (n) + (l) - (s) : (l))
#define TB_SQUARE_SECOND(n, l, s) ((l) & (s) ? (n) + (l) : (l) + (s))
#define TB_SQUARE_FOUR(F, n, l, s) F(n, l, s), F(n, l + 1, s), F(n, l + 2, s), F(n, l + 3, s)
#define TB_SQUARE_8(F, s) TB_SQUARE_FOUR(F, 8, 0, s), TB_SQUARE_FOUR(F, 8, 4, s)
#define TB_SQUARE_16(F, s) \
    TB_SQUARE_FOUR(F, 16, 0, s), TB_SQUARE_FOUR(F, 16, 4, s), TB_SQUARE_FOUR(F, 16, 8, s), \
        TB_SQUARE_FOUR(F, 16, 12, s)

// Blocks of s x s exchanged with those across the diagonal.
#define TB_SQUARE_EXCHANGE(T, v, n, LANES, s) \
    _Pragma("GCC unroll 16") for (int i = 0; i < n; ++i) { \
        if (i & s) continue; \
        const T a = v[i], b = v[i + s]; \
        v[i] = __builtin_shufflevector(a, b, LANES(TB_SQUARE_FIRST, s)); \
        v[i + s] = __builtin_shufflevector(a, b, LANES(TB_SQUARE_SECOND, s)); \
    }

#define TB_SQUARE_2(F, s) F(2, 0, s), F(2, 1, s)
#define TB_SQUARE_4(F, s) TB_SQUARE_FOUR(F, 4, 0, s)

// An array of as many vectors of type T as they have lanes.
#define TB_TURN_2(T, v) TB_SQUARE_EXCHANGE(T, v, 2, TB_SQUARE_2, 1)
#define TB_TURN_4(T, v) \
    TB_SQUARE_EXCHANGE(T, v, 4, TB_SQUARE_4, 1) \
    TB_SQUARE_EXCHANGE(T, v, 4, TB_SQUARE_4, 2)
#define TB_TURN_8(T, v) \
    TB_SQUARE_EXCHANGE(T, v, 8, TB_SQUARE_8, 1) \
    TB_SQUARE_EXCHANGE(T, v, 8, TB_SQUARE_8, 2) \
    TB_SQUARE_EXCHANGE(T, v, 8, TB_SQUARE_8, 4)
#define TB_TURN_16(T, v) \
    TB_SQUARE_EXCHANGE(T, v, 16, TB_SQUARE_16, 1) \
    TB_SQUARE_EXCHANGE(T, v, 16, TB_SQUARE_16, 2) \
    TB_SQUARE_EXCHANGE(T, v, 16, TB_SQUARE_16, 4) \
    TB_SQUARE_EXCHANGE(T, v, 16, TB_SQUARE_16, 8)

#endif
