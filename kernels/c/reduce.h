// SPDX-License-Identifier: Apache-2.0
// reduce.h — a block of at most 1024 contiguous values to one, in an order that depends on its length alone
//
// 64 running results, folded pairwise. A float sum has at most 16 additions in a lane and 6 in the fold; blocks then
// add up in double, so the error of a long sum stays near half a unit in the last place of the sum of magnitudes.
#ifndef TB_REDUCE_H
#define TB_REDUCE_H

#include "vmath.h"

#define TB_FOLD(OP, s) \
    OP(OP(OP(OP(s[0], s[8]), OP(s[4], s[12])), OP(OP(s[2], s[10]), OP(s[6], s[14]))), \
       OP(OP(OP(s[1], s[9]), OP(s[5], s[13])), OP(OP(s[3], s[11]), OP(s[7], s[15]))))

// Four vectors of 16 lanes, then one, then the rest in lanes that start from the identity. GCC's vector types become
// whatever the processor has; the order of operations is the same everywhere.
#define TB_BLOCK(NAME, T, V, START, VOP, OP) \
    static __attribute__((noinline)) T NAME(const T *v, int m) { \
        T rest[16] __attribute__((aligned(64))); \
        V a = (V){0} + (T)START; \
        int j = 0; \
        if (m >= 64) { \
            V b = a, c = a, d = a; \
            for (; j + 64 <= m; j += 64) { \
                a = VOP(a, *(const V *)(v + j)); \
                b = VOP(b, *(const V *)(v + j + 16)); \
                c = VOP(c, *(const V *)(v + j + 32)); \
                d = VOP(d, *(const V *)(v + j + 48)); \
            } \
            a = VOP(VOP(a, b), VOP(c, d)); \
        } \
        for (; j + 16 <= m; j += 16) a = VOP(a, *(const V *)(v + j)); \
        if (j < m) { \
            for (int l = 0; l < 16; ++l) rest[l] = j + l < m ? v[j + l] : (T)START; \
            a = VOP(a, *(const V *)rest); \
        } \
        *(V *)rest = a; \
        return TB_FOLD(OP, rest); \
    }

typedef float tb_v_f32 __attribute__((vector_size(64), aligned(4), may_alias));
typedef double tb_v_f64 __attribute__((vector_size(128), aligned(8), may_alias));
typedef tb_i32 tb_m_f32 __attribute__((vector_size(64)));
typedef tb_i64 tb_m_f64 __attribute__((vector_size(128)));
typedef tb_i8 tb_v_i8 __attribute__((vector_size(16), aligned(1), may_alias));
typedef tb_i16 tb_v_i16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef tb_i32 tb_v_i32 __attribute__((vector_size(64), aligned(4), may_alias));
typedef tb_i64 tb_v_i64 __attribute__((vector_size(128), aligned(8), may_alias));
typedef tb_u8 tb_v_u8 __attribute__((vector_size(16), aligned(1), may_alias));
typedef tb_u16 tb_v_u16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef tb_u32 tb_v_u32 __attribute__((vector_size(64), aligned(4), may_alias));
typedef tb_u64 tb_v_u64 __attribute__((vector_size(128), aligned(8), may_alias));

// a where the mask is set, else b
#define TB_PICK(V, M, mask, a, b) ((V)(((M)(mask) & (M)(a)) | (~(M)(mask) & (M)(b))))
#define TB_PLUS(a, b) ((a) + (b))
#define TB_TIMES(a, b) ((a) * (b))
#define TB_EXTREME_F(S, NAME, MORE) \
    TB_FN tb_v_##S tb_v##NAME##_##S(tb_v_##S a, tb_v_##S b) { \
        tb_v_##S m = TB_PICK(tb_v_##S, tb_m_##S, a MORE b, a, b); \
        return TB_PICK(tb_v_##S, tb_m_##S, a != a, a, m); \
    }
#define TB_EXTREME_I(S, NAME, MORE) \
    TB_FN tb_v_##S tb_v##NAME##_##S(tb_v_##S a, tb_v_##S b) { return TB_PICK(tb_v_##S, tb_v_##S, a MORE b, a, b); }
#define TB_EXTREMES(KIND, T, S) \
    KIND(S, max, >) \
    KIND(S, min, <) \
    TB_BLOCK(tb_block_max_##S, T, tb_v_##S, TB_LOWEST_##S, tb_vmax_##S, tb_max_##S) \
    TB_BLOCK(tb_block_min_##S, T, tb_v_##S, TB_HIGHEST_##S, tb_vmin_##S, tb_min_##S)
TB_EXTREMES(TB_EXTREME_F, float, f32)
TB_EXTREMES(TB_EXTREME_F, double, f64)
TB_EXTREMES(TB_EXTREME_I, tb_i8, i8)
TB_EXTREMES(TB_EXTREME_I, tb_i16, i16)
TB_EXTREMES(TB_EXTREME_I, tb_i32, i32)
TB_EXTREMES(TB_EXTREME_I, tb_i64, i64)
TB_EXTREMES(TB_EXTREME_I, tb_u8, u8)
TB_EXTREMES(TB_EXTREME_I, tb_u16, u16)
TB_EXTREMES(TB_EXTREME_I, tb_u32, u32)
TB_EXTREMES(TB_EXTREME_I, tb_u64, u64)

#define TB_SUMS(T, S) \
    TB_BLOCK(tb_block_sum_##S, T, tb_v_##S, 0, TB_PLUS, TB_PLUS) \
    TB_BLOCK(tb_block_prod_##S, T, tb_v_##S, 1, TB_TIMES, TB_TIMES)
TB_SUMS(float, f32)
TB_SUMS(double, f64)
TB_SUMS(tb_i64, i64)
TB_SUMS(tb_u64, u64)

#define TB_TRUTHS(T, S) \
    static __attribute__((noinline)) tb_u8 tb_block_any_##S(const T *v, int m) { \
        int found = 0; \
        for (int j = 0; j < m; ++j) found |= v[j] != 0; \
        return (tb_u8)found; \
    } \
    static __attribute__((noinline)) tb_u8 tb_block_all_##S(const T *v, int m) { \
        int missing = 0; \
        for (int j = 0; j < m; ++j) missing |= v[j] == 0; \
        return (tb_u8)!missing; \
    }
TB_TRUTHS(float, f32)
TB_TRUTHS(double, f64)
TB_TRUTHS(tb_i8, i8)
TB_TRUTHS(tb_i16, i16)
TB_TRUTHS(tb_i32, i32)
TB_TRUTHS(tb_i64, i64)
TB_TRUTHS(tb_u8, u8)
TB_TRUTHS(tb_u16, u16)
TB_TRUTHS(tb_u32, u32)
TB_TRUTHS(tb_u64, u64)

// The first place of the extreme, a NaN being more extreme than anything: the extreme, then a search that may stop.
#define TB_BLOCK_PLACE(NAME, T, EXTREME) \
    static __attribute__((noinline)) T NAME(const T *v, int m, int *place) { \
        const T most = EXTREME(v, m); \
        int at = 0, found = 0; \
        for (; at + 16 <= m && !found; at += 16) \
            for (int l = 0; l < 16; ++l) found |= most == most ? v[at + l] == most : v[at + l] != v[at + l]; \
        at -= found ? 16 : 0; \
        while (at < m - 1 && !(most == most ? v[at] == most : v[at] != v[at])) ++at; \
        *place = at; \
        return most; \
    }
#define TB_BLOCK_PLACES(T, S) \
    TB_BLOCK_PLACE(tb_block_argmax_##S, T, tb_block_max_##S) \
    TB_BLOCK_PLACE(tb_block_argmin_##S, T, tb_block_min_##S)
TB_BLOCK_PLACES(float, f32)
TB_BLOCK_PLACES(double, f64)
TB_BLOCK_PLACES(tb_i8, i8)
TB_BLOCK_PLACES(tb_i16, i16)
TB_BLOCK_PLACES(tb_i32, i32)
TB_BLOCK_PLACES(tb_i64, i64)
TB_BLOCK_PLACES(tb_u8, u8)
TB_BLOCK_PLACES(tb_u16, u16)
TB_BLOCK_PLACES(tb_u32, u32)
TB_BLOCK_PLACES(tb_u64, u64)

#endif
