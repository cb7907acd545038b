// SPDX-License-Identifier: Apache-2.0
// turn.h — tiles of an operand that lies across, turned so that they lie along: to[r][a] = from[a][r]
//
// Squares go through registers: a store for each number to a place of its own would take several times as long as to
// read them, and a vector is one cache line of an operand of four bytes with AVX-512. What large squares leave at the
// sides of a tile goes by smaller ones.
#ifndef TB_TURN_H
#define TB_TURN_H

#include "square.h"
#include "vector.h"

// What is moved and not looked at, of whatever type.
typedef tb_u8 tb_any1 __attribute__((may_alias));
typedef tb_u16 tb_any2 __attribute__((may_alias));
typedef tb_u32 tb_any4 __attribute__((may_alias));
typedef tb_u64 tb_any8 __attribute__((may_alias));

// Numbers of T, in squares of N where there are so many; REST turns the sides, to the right of them and below. Squares
// that write to the same rows follow each other, so that lines of the cache are written as a whole.
#define TB_TURN_TILE(NAME, T, N, REST) \
    TB_FN void NAME(const T *from, tb_i64 step, int lines, int rows, T *to, tb_i64 pitch) { \
        typedef T square __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)), may_alias)); \
        const int whole_lines = lines / N * N, whole_rows = rows / N * N; \
        for (int r = 0; r < whole_rows; r += N) \
            for (int a = 0; a < whole_lines; a += N) { \
                square v[N]; \
                UNROLL for (int i = 0; i < N; ++i) v[i] = *(const square *)(from + (a + i) * step + r); \
                TB_TURN_##N(square, v) \
                UNROLL for (int i = 0; i < N; ++i) *(square *)(to + (r + i) * pitch + a) = v[i]; \
            } \
        if (whole_lines < lines) \
            REST(from + whole_lines * step, step, lines - whole_lines, rows, to + whole_lines, pitch); \
        from += whole_rows, to += whole_rows * pitch; \
        if (whole_rows < rows) REST(from, step, whole_lines, rows - whole_rows, to, pitch); \
    }
#define TB_TURN_ONES(NAME, T) \
    TB_FN void NAME(const T *from, tb_i64 step, int lines, int rows, T *to, tb_i64 pitch) { \
        for (int a = 0; a < lines; ++a) \
            for (int r = 0; r < rows; ++r) to[r * pitch + a] = from[a * step + r]; \
    }

TB_TURN_ONES(tb_turn1_ones, tb_any1)
TB_TURN_ONES(tb_turn2_ones, tb_any2)
TB_TURN_ONES(tb_turn4_ones, tb_any4)
TB_TURN_ONES(tb_turn8_ones, tb_any8)
TB_TURN_TILE(tb_turn1_8, tb_any1, 8, tb_turn1_ones)
TB_TURN_TILE(tb_turn1, tb_any1, 16, tb_turn1_8)
#if TB_VECTOR == 64
TB_TURN_TILE(tb_turn2_8, tb_any2, 8, tb_turn2_ones)
TB_TURN_TILE(tb_turn2, tb_any2, 16, tb_turn2_8)
TB_TURN_TILE(tb_turn4_8, tb_any4, 8, tb_turn4_ones)
TB_TURN_TILE(tb_turn4, tb_any4, 16, tb_turn4_8)
TB_TURN_TILE(tb_turn8_4, tb_any8, 4, tb_turn8_ones)
TB_TURN_TILE(tb_turn8, tb_any8, 8, tb_turn8_4)
#elif TB_VECTOR == 32
TB_TURN_TILE(tb_turn2_8, tb_any2, 8, tb_turn2_ones)
TB_TURN_TILE(tb_turn2, tb_any2, 16, tb_turn2_8)
TB_TURN_TILE(tb_turn4_4, tb_any4, 4, tb_turn4_ones)
TB_TURN_TILE(tb_turn4, tb_any4, 8, tb_turn4_4)
TB_TURN_TILE(tb_turn8, tb_any8, 4, tb_turn8_ones)
#else
TB_TURN_TILE(tb_turn2, tb_any2, 8, tb_turn2_ones)
TB_TURN_TILE(tb_turn4, tb_any4, 4, tb_turn4_ones)
TB_TURN_TILE(tb_turn8, tb_any8, 4, tb_turn8_ones)
#endif

#endif
