// SPDX-License-Identifier: Apache-2.0
// turn.c — tiles turned, of numbers of 1, 2, 4 and 8 bytes
//
// Squares go through registers: a store for each number to a place of its own would take several times as long as to
// read them, and a vector is one cache line of an operand of four bytes with AVX-512. What is left at the sides of a
// tile goes by squares that overlap others, or by smaller ones; a few numbers of each line, or a few lines, one by one.
#include "turn.h"

#include "square.h"
#include "vector.h"

#define SHORT 64  // numbers from a short line to the next, at most

// Number by number; loops over a few are unrolled.
#define TB_TURN_ONES(NAME, T) \
    TB_FN void NAME##_few_lines(const T *from, tb_i64 step, const int lines, int rows, T *to, tb_i64 pitch) { \
        for (int r = 0; r < rows; ++r) \
            UNROLL for (int a = 0; a < lines; ++a) to[r * pitch + a] = from[a * step + r]; \
    } \
    TB_FN void NAME##_few_rows(const T *from, tb_i64 step, int lines, const int rows, T *to, tb_i64 pitch) { \
        for (int a = 0; a < lines; ++a) \
            UNROLL for (int r = 0; r < rows; ++r) to[r * pitch + a] = from[a * step + r]; \
    } \
    static void NAME(const T *from, tb_i64 step, int lines, int rows, T *to, tb_i64 pitch) { \
        if (lines == 1) NAME##_few_lines(from, step, 1, rows, to, pitch); \
        else if (lines == 2) NAME##_few_lines(from, step, 2, rows, to, pitch); \
        else if (lines == 3) NAME##_few_lines(from, step, 3, rows, to, pitch); \
        else if (rows == 1) NAME##_few_rows(from, step, lines, 1, to, pitch); \
        else if (rows == 2) NAME##_few_rows(from, step, lines, 2, to, pitch); \
        else if (rows == 3) NAME##_few_rows(from, step, lines, 3, to, pitch); \
        else NAME##_few_rows(from, step, lines, rows, to, pitch); \
    }

// How many of a side's last numbers go by squares of H, where `left` are left.
#define TB_TURN_LEFT(left, H) ((left) > 2 && (left) < (H) ? (H) : (left))

// Squares of N where there are so many; REST turns the sides by squares of H. Squares that write to the same rows follow
// each other, so that lines of the cache are written as a whole. Of short lines, those after the tile are asked for: they
// are the next one's, and processors do not see them coming.
#define TB_TURN_TILE(NAME, T, N, REST, H) \
    static void NAME(const T *from, tb_i64 step, int lines, int rows, T *to, tb_i64 pitch) { \
        typedef T square __attribute__((vector_size(N * sizeof(T)), aligned(sizeof(T)), may_alias)); \
        if (lines < N || rows < N) { \
            REST(from, step, lines, rows, to, pitch); \
            return; \
        } \
        const int next = step > 0 && step < SHORT; \
        const int left_lines = lines % N <= N / 2 ? lines % N : 0, left_rows = rows % N <= N / 2 ? rows % N : 0; \
        for (int r = 0; r < rows - left_rows; r += N) { \
            const int y = r < rows - N ? r : rows - N; \
            for (int a = 0; a < lines - left_lines; a += N) { \
                const int x = a < lines - N ? a : lines - N; \
                square v[N]; \
                UNROLL for (int i = 0; i < N; ++i) { \
                    v[i] = *(const square *)(from + (x + i) * step + y); \
                    if (next) __builtin_prefetch(from + (x + i + lines) * step + y); \
                } \
                TB_TURN_##N(square, v) \
                UNROLL for (int i = 0; i < N; ++i) *(square *)(to + (y + i) * pitch + x) = v[i]; \
            } \
        } \
        const int last_lines = TB_TURN_LEFT(left_lines, H), last_rows = TB_TURN_LEFT(left_rows, H); \
        if (last_lines) \
            REST(from + (lines - last_lines) * step, step, last_lines, rows, to + (lines - last_lines), pitch); \
        if (last_rows) \
            REST(from + (rows - last_rows), step, lines, last_rows, to + (rows - last_rows) * pitch, pitch); \
    }

#define TB_TURN(SIZE, TILE) \
    void tb_turn##SIZE(const void *from, tb_i64 step, int lines, int rows, void *to, tb_i64 pitch) { \
        TILE((const tb_any##SIZE *)from, step, lines, rows, (tb_any##SIZE *)to, pitch); \
    }

TB_TURN_ONES(ones1, tb_any1)
TB_TURN_ONES(ones2, tb_any2)
TB_TURN_ONES(ones4, tb_any4)
TB_TURN_ONES(ones8, tb_any8)
TB_TURN_TILE(eights1, tb_any1, 8, ones1, 1)
TB_TURN_TILE(largest1, tb_any1, 16, eights1, 8)
#if TB_VECTOR > 16
TB_TURN_TILE(eights2, tb_any2, 8, ones2, 1)
TB_TURN_TILE(largest2, tb_any2, 16, eights2, 8)
TB_TURN_TILE(fours4, tb_any4, 4, ones4, 1)
#else
TB_TURN_TILE(largest2, tb_any2, 8, ones2, 1)
TB_TURN_TILE(largest4, tb_any4, 4, ones4, 1)
#endif
#if TB_VECTOR == 64
TB_TURN_TILE(eights4, tb_any4, 8, fours4, 4)
TB_TURN_TILE(largest4, tb_any4, 16, eights4, 8)
TB_TURN_TILE(fours8, tb_any8, 4, ones8, 1)
TB_TURN_TILE(largest8, tb_any8, 8, fours8, 4)
#else
#if TB_VECTOR == 32
TB_TURN_TILE(largest4, tb_any4, 8, fours4, 4)
#endif
TB_TURN_TILE(largest8, tb_any8, 4, ones8, 1)
#endif

TB_TURN(1, largest1)
TB_TURN(2, largest2)
TB_TURN(4, largest4)
TB_TURN(8, largest8)
