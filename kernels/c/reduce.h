// SPDX-License-Identifier: Apache-2.0
// reduce.h — a block of at most 1024 contiguous values to one, in an order that depends on its length alone
//
// 64 running results, folded pairwise. A float sum has at most 16 additions in a lane and 6 in the fold; blocks then
// add up in double, so the error of a long sum stays near half a unit in the last place of the sum of magnitudes.
#ifndef TB_REDUCE_H
#define TB_REDUCE_H

#include "vmath.h"

// Sixteen lanes are as many vectors as they take, since compilers keep what is longer than the processor's in memory.
// TB_IN_N: how many, of a type of N bytes.
#if defined(__AVX512F__)
#define TB_LONGEST 64
#define TB_IN_2 TB_DO_1
#define TB_IN_4 TB_DO_1
#define TB_IN_8 TB_DO_2
#elif defined(__AVX__)
#define TB_LONGEST 32
#define TB_IN_2 TB_DO_1
#define TB_IN_4 TB_DO_2
#define TB_IN_8 TB_DO_4
#else
#define TB_LONGEST 16
#define TB_IN_2 TB_DO_2
#define TB_IN_4 TB_DO_4
#define TB_IN_8 TB_DO_8
#endif
#define TB_IN_1 TB_DO_1
#define TB_DO_1(DO, ...) DO(0, __VA_ARGS__)
#define TB_DO_2(DO, ...) DO(0, __VA_ARGS__) DO(1, __VA_ARGS__)
#define TB_DO_4(DO, ...) TB_DO_2(DO, __VA_ARGS__) DO(2, __VA_ARGS__) DO(3, __VA_ARGS__)
#define TB_DO_8(DO, ...) TB_DO_4(DO, __VA_ARGS__) DO(4, __VA_ARGS__) DO(5, __VA_ARGS__) DO(6, __VA_ARGS__) DO(7, __VA_ARGS__)
#define TB_PART_BYTES(SIZE) (16 * SIZE < TB_LONGEST ? 16 * SIZE : TB_LONGEST)
#define TB_PART_AT(k, S) (k * (int)(sizeof(tb_p_##S) / sizeof(((tb_p_##S *)0)[0][0])))
#define TB_PART_LOAD(k, S) r.p[k] = *(const tb_p_##S *)(v + TB_PART_AT(k, S));
#define TB_PART_FILL(k, S) r.p[k] = (tb_p_##S){0} + x;
#define TB_PART_STORE(k, S) *(tb_p_##S *)(s + TB_PART_AT(k, S)) = a.p[k];
#define TB_PART_APPLY(k, OP) a.p[k] = OP(a.p[k], b.p[k]);
#define TB_PLUS(a, b) ((a) + (b))
#define TB_TIMES(a, b) ((a) * (b))

// Of a type: a vector, tb_p, integers as wide, tb_m, and sixteen lanes, tb_v, from memory, of one value, and joined.
#define TB_SIXTEEN(T, S, I, SIZE) \
    typedef T tb_p_##S __attribute__((vector_size(TB_PART_BYTES(SIZE)), aligned(SIZE), may_alias)); \
    typedef I tb_m_##S __attribute__((vector_size(TB_PART_BYTES(SIZE)))); \
    typedef struct { tb_p_##S p[16 * SIZE / TB_PART_BYTES(SIZE)]; } tb_v_##S; \
    TB_FN tb_v_##S tb_load16_##S(const T *v) { tb_v_##S r; TB_IN_##SIZE(TB_PART_LOAD, S) return r; } \
    TB_FN tb_v_##S tb_fill16_##S(T x) { tb_v_##S r; TB_IN_##SIZE(TB_PART_FILL, S) return r; }
#define TB_JOIN(NAME, S, SIZE, OP) \
    TB_FN tb_v_##S NAME(tb_v_##S a, tb_v_##S b) { TB_IN_##SIZE(TB_PART_APPLY, OP) return a; }
// `count` of them, less than sixteen, and `other` in the lanes behind.
#define TB_SOME(T, S) \
    TB_FN tb_v_##S tb_load_some_##S(const T *v, int count, T other) { \
        T lanes[16] __attribute__((aligned(64))); \
        for (int l = 0; l < 16; ++l) lanes[l] = l < count ? v[l] : other; \
        return tb_load16_##S(lanes); \
    }
TB_SIXTEEN(float, f32, tb_i32, 4)
TB_SIXTEEN(double, f64, tb_i64, 8)
TB_SIXTEEN(tb_i8, i8, tb_i8, 1)
TB_SIXTEEN(tb_i16, i16, tb_i16, 2)
TB_SIXTEEN(tb_i32, i32, tb_i32, 4)
TB_SIXTEEN(tb_i64, i64, tb_i64, 8)
TB_SIXTEEN(tb_u8, u8, tb_i8, 1)
TB_SIXTEEN(tb_u16, u16, tb_i16, 2)
TB_SIXTEEN(tb_u32, u32, tb_i32, 4)
TB_SIXTEEN(tb_u64, u64, tb_i64, 8)
#if TB_LONGEST == 64
TB_FN tb_v_f32 tb_load_some_f32(const float *v, int count, float other) {
    tb_v_f32 r = tb_fill16_f32(other);
    r.p[0] = __builtin_ia32_loadups512_mask(v, r.p[0], (tb_u16)((1u << count) - 1));
    return r;
}
#else
TB_SOME(float, f32)
#endif
TB_SOME(double, f64)
TB_SOME(tb_i64, i64)
TB_SOME(tb_u64, u64)

// Sixteen lanes to one, by halves: lane l with lane l + 8, then 4, 2 and 1 further on; lanes of four bytes in registers.
#if defined(__clang__)
#define TB_LANES(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define TB_LANES(v, ...) __builtin_shuffle(v, (tb_m_i32){__VA_ARGS__})
#endif
#if TB_LONGEST == 64
#define TB_FOLD_4(S, T, a, VOP, OP) \
    tb_p_##S x = a.p[0]; \
    x = VOP(x, TB_LANES(x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)); \
    x = VOP(x, TB_LANES(x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)); \
    x = VOP(x, TB_LANES(x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)); \
    x = VOP(x, TB_LANES(x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)); \
    return x[0];
#elif TB_LONGEST == 32
#define TB_FOLD_4(S, T, a, VOP, OP) \
    tb_p_##S x = VOP(a.p[0], a.p[1]); \
    x = VOP(x, TB_LANES(x, 4, 5, 6, 7, 0, 1, 2, 3)); \
    x = VOP(x, TB_LANES(x, 2, 3, 0, 1, 6, 7, 4, 5)); \
    x = VOP(x, TB_LANES(x, 1, 0, 3, 2, 5, 4, 7, 6)); \
    return x[0];
#else
#define TB_FOLD_4(S, T, a, VOP, OP) \
    tb_p_##S x = VOP(a.p[0], a.p[2]), y = VOP(a.p[1], a.p[3]); \
    x = VOP(x, y); \
    x = VOP(x, TB_LANES(x, 2, 3, 0, 1)); \
    x = VOP(x, TB_LANES(x, 1, 0, 3, 2)); \
    return x[0];
#endif
#define TB_FOLD_IN_MEMORY(S, T, a, OP, SIZE) \
    T s[16] __attribute__((aligned(64))); \
    TB_IN_##SIZE(TB_PART_STORE, S) \
    for (int l = 0; l < 8; ++l) s[l] = OP(s[l], s[l + 8]); \
    for (int l = 0; l < 4; ++l) s[l] = OP(s[l], s[l + 4]); \
    for (int l = 0; l < 2; ++l) s[l] = OP(s[l], s[l + 2]); \
    return OP(s[0], s[1]);
#define TB_FOLD_1(S, T, a, VOP, OP) TB_FOLD_IN_MEMORY(S, T, a, OP, 1)
#define TB_FOLD_2(S, T, a, VOP, OP) TB_FOLD_IN_MEMORY(S, T, a, OP, 2)
#define TB_FOLD_8(S, T, a, VOP, OP) TB_FOLD_IN_MEMORY(S, T, a, OP, 8)

// Four times sixteen lanes, then sixteen, then the rest in lanes that start from the identity. JOIN is VOP for sixteen
// lanes, OP for one; the order of operations is the same everywhere.
#define TB_BLOCK(NAME, T, S, SIZE, START, JOIN, VOP, OP) \
    static __attribute__((noinline)) T NAME(const T *v, int m) { \
        tb_v_##S a = tb_fill16_##S((T)START); \
        int j = 0; \
        if (m >= 64) { \
            tb_v_##S b = tb_load16_##S(v + 16), c = tb_load16_##S(v + 32), d = tb_load16_##S(v + 48); \
            a = tb_load16_##S(v); \
            for (j = 64; j + 64 <= m; j += 64) { \
                a = JOIN(a, tb_load16_##S(v + j)); \
                b = JOIN(b, tb_load16_##S(v + j + 16)); \
                c = JOIN(c, tb_load16_##S(v + j + 32)); \
                d = JOIN(d, tb_load16_##S(v + j + 48)); \
            } \
            a = JOIN(JOIN(a, b), JOIN(c, d)); \
        } \
        for (; j + 16 <= m; j += 16) a = JOIN(a, tb_load16_##S(v + j)); \
        if (j < m) a = JOIN(a, tb_load_some_##S(v + j, m - j, (T)START)); \
        TB_FOLD_##SIZE(S, T, a, VOP, OP) \
    }

// a where the mask is set, else b
#define TB_PICK(V, M, mask, a, b) ((V)(((M)(mask) & (M)(a)) | (~(M)(mask) & (M)(b))))
#define TB_EXTREME_F(S, NAME, MORE) \
    TB_FN tb_p_##S tb_p##NAME##_##S(tb_p_##S a, tb_p_##S b) { \
        tb_p_##S m = TB_PICK(tb_p_##S, tb_m_##S, a MORE b, a, b); \
        return TB_PICK(tb_p_##S, tb_m_##S, a != a, a, m); \
    }
#define TB_EXTREME_I(S, NAME, MORE) \
    TB_FN tb_p_##S tb_p##NAME##_##S(tb_p_##S a, tb_p_##S b) { return TB_PICK(tb_p_##S, tb_p_##S, a MORE b, a, b); }
#define TB_EXTREMES(KIND, T, S, SIZE) \
    KIND(S, max, >) \
    KIND(S, min, <) \
    TB_JOIN(tb_vmax_##S, S, SIZE, tb_pmax_##S) \
    TB_JOIN(tb_vmin_##S, S, SIZE, tb_pmin_##S) \
    TB_BLOCK(tb_block_max_##S, T, S, SIZE, TB_LOWEST_##S, tb_vmax_##S, tb_pmax_##S, tb_max_##S) \
    TB_BLOCK(tb_block_min_##S, T, S, SIZE, TB_HIGHEST_##S, tb_vmin_##S, tb_pmin_##S, tb_min_##S)
#if defined(__AVX__)
// The same with one instruction an extreme: NaNs, which it drops, are noted beside it.
#if !defined(__AVX512F__)
#define TB_MAX_P(a, b) __builtin_ia32_maxps256(a, b)
#define TB_MIN_P(a, b) __builtin_ia32_minps256(a, b)
#elif defined(__clang__)
#define TB_MAX_P(a, b) __builtin_ia32_maxps512(a, b, 4)
#define TB_MIN_P(a, b) __builtin_ia32_minps512(a, b, 4)
#else
#define TB_MAX_P(a, b) __builtin_ia32_maxps512_mask(a, b, a, (tb_u16)-1, 4)
#define TB_MIN_P(a, b) __builtin_ia32_minps512_mask(a, b, a, (tb_u16)-1, 4)
#endif
#if defined(__AVX512F__)
typedef tb_u16 tb_noted;
#define TB_NOT(x) (tb_u16)__builtin_ia32_cmpps512_mask(x, x, 3, (tb_u16)-1, 4)
#define TB_ANY(noted) (noted)
#else
typedef tb_m_f32 tb_noted;
#define TB_NOT(x) (tb_m_f32)((x) != (x))
#define TB_ANY(noted) __builtin_ia32_movmskps256((tb_p_f32)(noted))
#endif
#define TB_TAKE_PART(k, VOP, a, from) \
    { \
        const tb_p_f32 x = *(const tb_p_f32 *)((from) + TB_PART_AT(k, f32)); \
        a.p[k] = VOP(a.p[k], x); \
        nan |= TB_NOT(x); \
    }
#define TB_TAKE(VOP, a, from) TB_IN_4(TB_TAKE_PART, VOP, a, from)
#define TB_BLOCK_NOTED(NAME, START, VOP) \
    TB_JOIN(NAME##_join, f32, 4, VOP) \
    static inline float NAME##_lanes(tb_v_f32 a) { TB_FOLD_4(f32, float, a, VOP, VOP) } \
    static __attribute__((noinline)) float NAME(const float *v, int m) { \
        tb_v_f32 a = tb_fill16_f32(START); \
        tb_noted nan = {0}; \
        int j = 0; \
        if (m >= 64) { \
            tb_v_f32 b = a, c = a, d = a; \
            for (; j + 64 <= m; j += 64) { \
                TB_TAKE(VOP, a, v + j) \
                TB_TAKE(VOP, b, v + j + 16) \
                TB_TAKE(VOP, c, v + j + 32) \
                TB_TAKE(VOP, d, v + j + 48) \
            } \
            a = NAME##_join(NAME##_join(a, b), NAME##_join(c, d)); \
        } \
        for (; j + 16 <= m; j += 16) { TB_TAKE(VOP, a, v + j) } \
        if (j < m) { \
            const tb_v_f32 rest = tb_load_some_f32(v + j, m - j, START); \
            TB_TAKE(VOP, a, (const float *)&rest) \
        } \
        return TB_ANY(nan) ? TB_NAN_F32 : NAME##_lanes(a); \
    }
TB_BLOCK_NOTED(tb_block_max_f32, TB_LOWEST_f32, TB_MAX_P)
TB_BLOCK_NOTED(tb_block_min_f32, TB_HIGHEST_f32, TB_MIN_P)
#else
TB_EXTREMES(TB_EXTREME_F, float, f32, 4)
#endif
TB_EXTREMES(TB_EXTREME_F, double, f64, 8)

// Of integers in any order: vectors are as long as the processor's, of however many lanes.
#define TB_INTEGER_EXTREME(NAME, T, START, MORE) \
    static __attribute__((noinline)) T NAME(const T *v, int m) { \
        T most = (T)START; \
        for (int j = 0; j < m; ++j) most = v[j] MORE most ? v[j] : most; \
        return most; \
    }
#define TB_INTEGER_EXTREMES(T, S) \
    TB_EXTREME_I(S, max, >) \
    TB_EXTREME_I(S, min, <) \
    TB_INTEGER_EXTREME(tb_block_max_##S, T, TB_LOWEST_##S, >) \
    TB_INTEGER_EXTREME(tb_block_min_##S, T, TB_HIGHEST_##S, <)
TB_INTEGER_EXTREMES(tb_i8, i8)
TB_INTEGER_EXTREMES(tb_i16, i16)
TB_INTEGER_EXTREMES(tb_i32, i32)
TB_INTEGER_EXTREMES(tb_i64, i64)
TB_INTEGER_EXTREMES(tb_u8, u8)
TB_INTEGER_EXTREMES(tb_u16, u16)
TB_INTEGER_EXTREMES(tb_u32, u32)
TB_INTEGER_EXTREMES(tb_u64, u64)

#define TB_SUMS(T, S, SIZE) \
    TB_JOIN(tb_vplus_##S, S, SIZE, TB_PLUS) \
    TB_JOIN(tb_vtimes_##S, S, SIZE, TB_TIMES) \
    TB_BLOCK(tb_block_sum_##S, T, S, SIZE, 0, tb_vplus_##S, TB_PLUS, TB_PLUS) \
    TB_BLOCK(tb_block_prod_##S, T, S, SIZE, 1, tb_vtimes_##S, TB_TIMES, TB_TIMES)
TB_SUMS(float, f32, 4)
TB_SUMS(double, f64, 8)
TB_SUMS(tb_i64, i64, 8)
TB_SUMS(tb_u64, u64, 8)

// 64 running sums in vectors, which stay in registers: one more of each, and their sum, the same as of a block of 64.
#define TB_RUNNING(T, S, SIZE) \
    TB_FN void tb_add_##S(tb_v_##S *sums, const T *v) { \
        sums[0] = tb_vplus_##S(sums[0], tb_load16_##S(v)); \
        sums[1] = tb_vplus_##S(sums[1], tb_load16_##S(v + 16)); \
        sums[2] = tb_vplus_##S(sums[2], tb_load16_##S(v + 32)); \
        sums[3] = tb_vplus_##S(sums[3], tb_load16_##S(v + 48)); \
    } \
    TB_FN T tb_fold_##S(tb_v_##S a) { TB_FOLD_##SIZE(S, T, a, TB_PLUS, TB_PLUS) } \
    TB_FN T tb_total_##S(const tb_v_##S *sums) { \
        return tb_fold_##S(tb_vplus_##S(tb_vplus_##S(sums[0], sums[1]), tb_vplus_##S(sums[2], sums[3]))); \
    }
TB_RUNNING(float, f32, 4)
TB_RUNNING(double, f64, 8)

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
#define TB_NOTE_PLACE(k, S) \
    { \
        const tb_m_i32 same = (tb_m_i32)(*(const tb_p_##S *)(v + j + TB_PART_AT(k, S)) == most); \
        before.p[k] = TB_PICK(tb_p_i32, tb_m_i32, same, (tb_p_i32){0} + j, before.p[k]); \
    }
#define TB_BLOCK_PLACE_LANES(NAME, T, S, EXTREME) \
    static __attribute__((noinline)) T NAME(const T *v, int m, int *place) { \
        const T most = EXTREME(v, m); \
        const tb_i32 lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; \
        tb_v_i32 before = tb_fill16_i32(m); \
        for (int j = (m & -16) - 16; j >= 0; j -= 16) { TB_IN_4(TB_NOTE_PLACE, S) } \
        int at = tb_lanes_min_i32(tb_join_places(before, tb_load16_i32(lanes))); \
        if (at >= m) at = most == most ? m & -16 : 0; \
        while (at < m - 1 && !TB_SAME(v[at])) ++at; \
        *place = at; \
        return most; \
    }
TB_JOIN(tb_join_places, i32, 4, TB_PLUS)
static inline int tb_lanes_min_i32(tb_v_i32 a) { TB_FOLD_4(i32, int, a, tb_pmin_i32, tb_min_i32) }
#define TB_BLOCK_PLACES(PLACE, T, S) \
    PLACE(tb_block_argmax_##S, T, S, tb_block_max_##S) \
    PLACE(tb_block_argmin_##S, T, S, tb_block_min_##S)
#if defined(__AVX__)
// 64 comparisons are one word, whose lowest set bit is the place: no lanes to fold, no branch.
#if defined(__AVX512F__)
#define TB_SAME_16(from) (tb_u64)(tb_u16)__builtin_ia32_cmpps512_mask(*(const tb_p_f32 *)(from), all, 0, (tb_u16)-1, 4)
#else
#define TB_SAME_8(from) (tb_u64)__builtin_ia32_movmskps256((tb_p_f32)(*(const tb_p_f32 *)(from) == all))
#define TB_SAME_16(from) (TB_SAME_8(from) | TB_SAME_8(from + 8) << 8)
#endif
#define TB_BLOCK_PLACE_BITS(NAME, T, S, EXTREME) \
    static __attribute__((noinline)) T NAME(const T *v, int m, int *place) { \
        const T most = EXTREME(v, m); \
        const tb_p_f32 all = (tb_p_f32){0} + most; \
        int at = m - 1, j = m - 1; \
        for (; j >= (m & -16); --j) at = TB_SAME(v[j]) ? j : at; \
        for (j = (m & -16) - 16; j >= (m & -64); j -= 16) { \
            const tb_u64 same = TB_SAME_16(v + j); \
            at = same ? j + __builtin_ctzll(same) : at; \
        } \
        for (j = (m & -64) - 64; j >= 0; j -= 64) { \
            const tb_u64 low = TB_SAME_16(v + j) | TB_SAME_16(v + j + 16) << 16; \
            const tb_u64 high = TB_SAME_16(v + j + 32) | TB_SAME_16(v + j + 48) << 16; \
            const tb_u64 same = low | high << 32; \
            at = same ? j + __builtin_ctzll(same) : at; \
        } \
        if (most != most) \
            for (at = 0; v[at] == v[at]; ++at) {} \
        *place = at; \
        return most; \
    }
TB_BLOCK_PLACES(TB_BLOCK_PLACE_BITS, float, f32)
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
