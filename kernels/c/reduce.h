// SPDX-License-Identifier: Apache-2.0
// reduce.h — a block of at most 1024 contiguous values to one, in an order that depends on its length alone
//
// 64 running results, folded pairwise. A float sum has at most 16 additions in a lane and 6 in the fold; blocks then
// add up in double, so the error of a long sum stays near half a unit in the last place of the sum of magnitudes.
#ifndef TB_REDUCE_H
#define TB_REDUCE_H

#include "vmath.h"

// 16 lanes to one, by halves: lane l with lane l + 8, then 4, 2 and 1 further on. Four-byte lanes stay in a register.
#if defined(__clang__)
#define TB_LANES(M, v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define TB_LANES(M, v, ...) __builtin_shuffle(v, (M){__VA_ARGS__})
#endif
#define TB_FOLD_IN_REGISTER(V, T, a, VOP, OP) \
    a = VOP(a, TB_LANES(tb_v_i32, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)); \
    a = VOP(a, TB_LANES(tb_v_i32, a, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)); \
    a = VOP(a, TB_LANES(tb_v_i32, a, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)); \
    a = VOP(a, TB_LANES(tb_v_i32, a, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)); \
    return a[0];
#define TB_FOLD_IN_MEMORY(V, T, a, VOP, OP) \
    T s[16] __attribute__((aligned(64))); \
    *(V *)s = a; \
    for (int l = 0; l < 8; ++l) s[l] = OP(s[l], s[l + 8]); \
    for (int l = 0; l < 4; ++l) s[l] = OP(s[l], s[l + 4]); \
    for (int l = 0; l < 2; ++l) s[l] = OP(s[l], s[l + 2]); \
    return OP(s[0], s[1]);

// Four vectors of 16 lanes, then one, then the rest in lanes that start from the identity. GCC's vector types become
// whatever the processor has; the order of operations is the same everywhere.
#define TB_BLOCK(NAME, T, V, START, VOP, OP, FOLD) \
    static __attribute__((noinline)) T NAME(const T *v, int m) { \
        V a = (V){0} + (T)START; \
        int j = 0; \
        if (m >= 64) { \
            V b = *(const V *)(v + 16), c = *(const V *)(v + 32), d = *(const V *)(v + 48); \
            a = *(const V *)v; \
            for (j = 64; j + 64 <= m; j += 64) { \
                a = VOP(a, *(const V *)(v + j)); \
                b = VOP(b, *(const V *)(v + j + 16)); \
                c = VOP(c, *(const V *)(v + j + 32)); \
                d = VOP(d, *(const V *)(v + j + 48)); \
            } \
            a = VOP(VOP(a, b), VOP(c, d)); \
        } \
        for (; j + 16 <= m; j += 16) a = VOP(a, *(const V *)(v + j)); \
        if (j < m) { \
            T rest[16] __attribute__((aligned(64))); \
            for (int l = 0; l < 16; ++l) rest[l] = j + l < m ? v[j + l] : (T)START; \
            a = VOP(a, *(const V *)rest); \
        } \
        FOLD(V, T, a, VOP, OP) \
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
#define TB_EXTREMES(KIND, T, S, FOLD) \
    KIND(S, max, >) \
    KIND(S, min, <) \
    TB_BLOCK(tb_block_max_##S, T, tb_v_##S, TB_LOWEST_##S, tb_vmax_##S, tb_max_##S, FOLD) \
    TB_BLOCK(tb_block_min_##S, T, tb_v_##S, TB_HIGHEST_##S, tb_vmin_##S, tb_min_##S, FOLD)
#if defined(__AVX512F__)
// The same with one instruction an extreme: NaNs, which it drops, are noted beside it.
#if defined(__clang__)
#define TB_MAX_512(a, b) __builtin_ia32_maxps512(a, b, 4)
#define TB_MIN_512(a, b) __builtin_ia32_minps512(a, b, 4)
#else
#define TB_MAX_512(a, b) __builtin_ia32_maxps512_mask(a, b, a, (tb_u16)-1, 4)
#define TB_MIN_512(a, b) __builtin_ia32_minps512_mask(a, b, a, (tb_u16)-1, 4)
#endif
#define TB_NOT_512(x) (tb_u16)__builtin_ia32_cmpps512_mask(x, x, 3, (tb_u16)-1, 4)
#define TB_TAKE_512(VOP, a, from) \
    { \
        const tb_v_f32 x = *(const tb_v_f32 *)(from); \
        a = VOP(a, x); \
        nan |= TB_NOT_512(x); \
    }
#define TB_BLOCK_512(NAME, START, VOP) \
    static inline float NAME##_lanes(tb_v_f32 a) { TB_FOLD_IN_REGISTER(tb_v_f32, float, a, VOP, VOP) } \
    static __attribute__((noinline)) float NAME(const float *v, int m) { \
        tb_v_f32 a = (tb_v_f32){0} + START; \
        tb_u16 nan = 0; \
        int j = 0; \
        if (m >= 64) { \
            tb_v_f32 b = a, c = a, d = a; \
            for (; j + 64 <= m; j += 64) { \
                TB_TAKE_512(VOP, a, v + j) \
                TB_TAKE_512(VOP, b, v + j + 16) \
                TB_TAKE_512(VOP, c, v + j + 32) \
                TB_TAKE_512(VOP, d, v + j + 48) \
            } \
            a = VOP(VOP(a, b), VOP(c, d)); \
        } \
        for (; j + 16 <= m; j += 16) TB_TAKE_512(VOP, a, v + j) \
        if (j < m) { \
            float rest[16] __attribute__((aligned(64))); \
            for (int l = 0; l < 16; ++l) rest[l] = j + l < m ? v[j + l] : START; \
            TB_TAKE_512(VOP, a, rest) \
        } \
        return nan ? TB_NAN_F32 : NAME##_lanes(a); \
    }
TB_BLOCK_512(tb_block_max_f32, TB_LOWEST_f32, TB_MAX_512)
TB_BLOCK_512(tb_block_min_f32, TB_HIGHEST_f32, TB_MIN_512)
#else
TB_EXTREMES(TB_EXTREME_F, float, f32, TB_FOLD_IN_REGISTER)
#endif
TB_EXTREMES(TB_EXTREME_F, double, f64, TB_FOLD_IN_MEMORY)
TB_EXTREMES(TB_EXTREME_I, tb_i8, i8, TB_FOLD_IN_MEMORY)
TB_EXTREMES(TB_EXTREME_I, tb_i16, i16, TB_FOLD_IN_MEMORY)
TB_EXTREMES(TB_EXTREME_I, tb_i32, i32, TB_FOLD_IN_REGISTER)
TB_EXTREMES(TB_EXTREME_I, tb_i64, i64, TB_FOLD_IN_MEMORY)
TB_EXTREMES(TB_EXTREME_I, tb_u8, u8, TB_FOLD_IN_MEMORY)
TB_EXTREMES(TB_EXTREME_I, tb_u16, u16, TB_FOLD_IN_MEMORY)
TB_EXTREMES(TB_EXTREME_I, tb_u32, u32, TB_FOLD_IN_REGISTER)
TB_EXTREMES(TB_EXTREME_I, tb_u64, u64, TB_FOLD_IN_MEMORY)

#define TB_SUMS(T, S, FOLD) \
    TB_BLOCK(tb_block_sum_##S, T, tb_v_##S, 0, TB_PLUS, TB_PLUS, FOLD) \
    TB_BLOCK(tb_block_prod_##S, T, tb_v_##S, 1, TB_TIMES, TB_TIMES, FOLD)
TB_SUMS(float, f32, TB_FOLD_IN_REGISTER)
TB_SUMS(double, f64, TB_FOLD_IN_MEMORY)
TB_SUMS(tb_i64, i64, TB_FOLD_IN_MEMORY)
TB_SUMS(tb_u64, u64, TB_FOLD_IN_MEMORY)

// 64 running sums in vectors, which stay in registers: one more of each, and their sum, the same as of a block of 64.
#define TB_RUNNING(T, S, FOLD) \
    TB_FN void tb_add_##S(tb_v_##S *sums, const T *v) { \
        sums[0] += *(const tb_v_##S *)v; \
        sums[1] += *(const tb_v_##S *)(v + 16); \
        sums[2] += *(const tb_v_##S *)(v + 32); \
        sums[3] += *(const tb_v_##S *)(v + 48); \
    } \
    TB_FN T tb_fold_##S(tb_v_##S a) { FOLD(tb_v_##S, T, a, TB_PLUS, TB_PLUS) } \
    TB_FN T tb_total_##S(const tb_v_##S *sums) { return tb_fold_##S((sums[0] + sums[1]) + (sums[2] + sums[3])); }
TB_RUNNING(float, f32, TB_FOLD_IN_REGISTER)
TB_RUNNING(double, f64, TB_FOLD_IN_MEMORY)

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

// The first place of the extreme, a NaN being more extreme than anything: the extreme, then a search. Where lanes can
// count to a block's length, it walks back and notes in each lane the last block with the extreme, without a branch.
#define TB_SAME(x) (most == most ? (x) == most : (x) != (x))
#define TB_BLOCK_PLACE(NAME, T, S, EXTREME) \
    static __attribute__((noinline)) T NAME(const T *v, int m, int *place) { \
        const T most = EXTREME(v, m); \
        int at = 0, found = 0; \
        for (; at + 16 <= m && !found; at += 16) \
            for (int l = 0; l < 16; ++l) found |= TB_SAME(v[at + l]); \
        at -= found ? 16 : 0; \
        while (at < m - 1 && !TB_SAME(v[at])) ++at; \
        *place = at; \
        return most; \
    }
#define TB_BLOCK_PLACE_LANES(NAME, T, S, EXTREME) \
    static __attribute__((noinline)) T NAME(const T *v, int m, int *place) { \
        const T most = EXTREME(v, m); \
        tb_v_i32 before = (tb_v_i32){0} + m; \
        for (int j = (m & -16) - 16; j >= 0; j -= 16) { \
            tb_v_i32 same = (tb_v_i32)(*(const tb_v_##S *)(v + j) == most); \
            before = TB_PICK(tb_v_i32, tb_v_i32, same, (tb_v_i32){0} + j, before); \
        } \
        before = before + (tb_v_i32){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; \
        int at = tb_lanes_min_i32(before); \
        if (at >= m) at = most == most ? m & -16 : 0; \
        while (at < m - 1 && !TB_SAME(v[at])) ++at; \
        *place = at; \
        return most; \
    }
static inline int tb_lanes_min_i32(tb_v_i32 a) { TB_FOLD_IN_REGISTER(tb_v_i32, int, a, tb_vmin_i32, tb_min_i32) }
#define TB_BLOCK_PLACES(PLACE, T, S) \
    PLACE(tb_block_argmax_##S, T, S, tb_block_max_##S) \
    PLACE(tb_block_argmin_##S, T, S, tb_block_min_##S)
#if defined(__AVX512F__)
// 64 comparisons are one word, whose lowest set bit is the place: no lanes to fold, no branch.
#define TB_SAME_512(from) (tb_u64)(tb_u16)__builtin_ia32_cmpps512_mask(*(const tb_v_f32 *)(from), all, 0, (tb_u16)-1, 4)
#define TB_BLOCK_PLACE_512(NAME, T, S, EXTREME) \
    static __attribute__((noinline)) T NAME(const T *v, int m, int *place) { \
        const T most = EXTREME(v, m); \
        const tb_v_f32 all = (tb_v_f32){0} + most; \
        int at = m - 1, j = m - 1; \
        for (; j >= (m & -16); --j) at = TB_SAME(v[j]) ? j : at; \
        for (j = (m & -16) - 16; j >= (m & -64); j -= 16) { \
            const tb_u64 same = TB_SAME_512(v + j); \
            at = same ? j + __builtin_ctzll(same) : at; \
        } \
        for (j = (m & -64) - 64; j >= 0; j -= 64) { \
            const tb_u64 low = TB_SAME_512(v + j) | TB_SAME_512(v + j + 16) << 16; \
            const tb_u64 high = TB_SAME_512(v + j + 32) | TB_SAME_512(v + j + 48) << 16; \
            const tb_u64 same = low | high << 32; \
            at = same ? j + __builtin_ctzll(same) : at; \
        } \
        if (most != most) \
            for (at = 0; v[at] == v[at]; ++at) {} \
        *place = at; \
        return most; \
    }
TB_BLOCK_PLACES(TB_BLOCK_PLACE_512, float, f32)
#else
TB_BLOCK_PLACES(TB_BLOCK_PLACE_LANES, float, f32)
#endif
TB_BLOCK_PLACES(TB_BLOCK_PLACE, double, f64)
TB_BLOCK_PLACES(TB_BLOCK_PLACE, tb_i8, i8)
TB_BLOCK_PLACES(TB_BLOCK_PLACE, tb_i16, i16)
TB_BLOCK_PLACES(TB_BLOCK_PLACE_LANES, tb_i32, i32)
TB_BLOCK_PLACES(TB_BLOCK_PLACE, tb_i64, i64)
TB_BLOCK_PLACES(TB_BLOCK_PLACE, tb_u8, u8)
TB_BLOCK_PLACES(TB_BLOCK_PLACE, tb_u16, u16)
TB_BLOCK_PLACES(TB_BLOCK_PLACE_LANES, tb_u32, u32)
TB_BLOCK_PLACES(TB_BLOCK_PLACE, tb_u64, u64)

#endif
