// SPDX-License-Identifier: Apache-2.0
// reduce.h — a block of at most 1024 contiguous values to one, in an order that depends on its length alone
//
// Lanes are written out, so that compilers vectorise without reassociating: 64 running results, folded pairwise.
// A float sum has at most 16 additions in a lane and 6 in the fold; blocks then add up in double, so the error of a
// long sum stays near half a unit in the last place of the sum of magnitudes.
#ifndef TB_REDUCE_H
#define TB_REDUCE_H

#include "basic.h"

enum { TB_LANES = 64 };

#define TB_BLOCK(NAME, T, R, START, STEP, FOLD) \
    TB_FN R NAME(const T *v, int m) { \
        if (m < TB_LANES) { \
            R few[16]; \
            int j = 0; \
            for (int l = 0; l < 16; ++l) few[l] = START; \
            for (; j + 16 <= m; j += 16) \
                for (int l = 0; l < 16; ++l) { const R a = few[l]; const T x = v[j + l]; few[l] = STEP; } \
            for (int l = 0; j + l < m; ++l) { const R a = few[l]; const T x = v[j + l]; few[l] = STEP; } \
            for (int w = 8; w; w >>= 1) \
                for (int l = 0; l < w; ++l) { const R a = few[l], x = few[l + w]; few[l] = FOLD; } \
            return few[0]; \
        } \
        R lane[TB_LANES]; \
        int j = 0; \
        for (int l = 0; l < TB_LANES; ++l) lane[l] = START; \
        for (; j + TB_LANES <= m; j += TB_LANES) \
            for (int l = 0; l < TB_LANES; ++l) { const R a = lane[l]; const T x = v[j + l]; lane[l] = STEP; } \
        for (int l = 0; j + l < m; ++l) { const R a = lane[l]; const T x = v[j + l]; lane[l] = STEP; } \
        for (int l = 0; l < 32; ++l) { const R a = lane[l], x = lane[l + 32]; lane[l] = FOLD; } \
        for (int l = 0; l < 16; ++l) { const R a = lane[l], x = lane[l + 16]; lane[l] = FOLD; } \
        for (int w = 8; w; w >>= 1) \
            for (int l = 0; l < w; ++l) { const R a = lane[l], x = lane[l + w]; lane[l] = FOLD; } \
        return lane[0]; \
    }

#define TB_BLOCK_ANY_ALL(T, S) \
    TB_BLOCK(tb_block_any_##S, T, tb_u8, 0, (tb_u8)(a | (x != 0)), (tb_u8)(a | x)) \
    TB_BLOCK(tb_block_all_##S, T, tb_u8, 1, (tb_u8)(a & (x != 0)), (tb_u8)(a & x))

#define TB_BLOCK_EXTREMES(T, S, LOWEST, HIGHEST) \
    TB_BLOCK(tb_block_max_##S, T, T, LOWEST, tb_max_##S(a, x), tb_max_##S(a, x)) \
    TB_BLOCK(tb_block_min_##S, T, T, HIGHEST, tb_min_##S(a, x), tb_min_##S(a, x)) \
    TB_BLOCK_ANY_ALL(T, S)

#define TB_BLOCK_SUMS(T, S) \
    TB_BLOCK(tb_block_sum_##S, T, T, 0, a + x, a + x) \
    TB_BLOCK(tb_block_prod_##S, T, T, 1, a * x, a * x)

TB_BLOCK_EXTREMES(float, f32, TB_LOWEST_f32, TB_HIGHEST_f32)
TB_BLOCK_EXTREMES(double, f64, TB_LOWEST_f64, TB_HIGHEST_f64)
TB_BLOCK_EXTREMES(tb_i8, i8, TB_LOWEST_i8, TB_HIGHEST_i8)
TB_BLOCK_EXTREMES(tb_i16, i16, TB_LOWEST_i16, TB_HIGHEST_i16)
TB_BLOCK_EXTREMES(tb_i32, i32, TB_LOWEST_i32, TB_HIGHEST_i32)
TB_BLOCK_EXTREMES(tb_i64, i64, TB_LOWEST_i64, TB_HIGHEST_i64)
TB_BLOCK_EXTREMES(tb_u8, u8, TB_LOWEST_u8, TB_HIGHEST_u8)
TB_BLOCK_EXTREMES(tb_u16, u16, TB_LOWEST_u16, TB_HIGHEST_u16)
TB_BLOCK_EXTREMES(tb_u32, u32, TB_LOWEST_u32, TB_HIGHEST_u32)
TB_BLOCK_EXTREMES(tb_u64, u64, TB_LOWEST_u64, TB_HIGHEST_u64)
TB_BLOCK_SUMS(float, f32)
TB_BLOCK_SUMS(double, f64)
TB_BLOCK_SUMS(tb_i64, i64)
TB_BLOCK_SUMS(tb_u64, u64)

// The first place of the extreme, a NaN being more extreme than anything: the extreme, then a search that may stop.
#define TB_BLOCK_PLACE(NAME, T, EXTREME) \
    TB_FN T NAME(const T *v, int m, int *place) { \
        const T most = EXTREME(v, m); \
        int at = 0; \
        if (most == most) \
            while (at < m - 1 && !(v[at] == most)) ++at; \
        else \
            while (at < m - 1 && v[at] == v[at]) ++at; \
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
