// SPDX-License-Identifier: Apache-2.0
// amx.h — products of float32 numbers on a matrix unit that multiplies bfloat16 (AMX)
//
// Numbers   A number is the sum of PLANES bfloat16 numbers, each the nearest to what the ones before leave: one for
//           bfloat16, two for float16, three for float32. They hold it exactly: 8 bits each, the last one fewer.
// Products  Of bfloat16 and float16 all pairs of planes; of float32 the six of nine that reach the last bits of a float32:
//           what is left out is about 2^-23 of a product at most. Sums add up in float32, small products first.
// Layout    Blocks of EDGE steps of k by EDGE rows (columns), plane by plane; of each, two halves of HALF rows (columns)
//           as the unit wants them: rows of a as they are, of b pairs of steps of each column side by side.
//
//               a block of a:   plane 0: rows 0-15, rows 16-31 | plane 1: ... | plane 2: ...     64 bytes a row
//               a block of b:   plane 0: columns 0-15, columns 16-31 | ...                       64 bytes a pair of steps
//
// Limits    Products and numbers below 2^-126 become zero. The parts of an infinite number are not its sum.
// Macros    TB_PLANES; without it there are only `may_use_unit`, and no tiles to begin or end.
//           TB_SOFT_TILES: the unit is this file's own, which is slow, to check kernels on a processor that has none
#ifndef TB_AMX_H
#define TB_AMX_H

#include <stdint.h>

#include "vector.h"

// Whether Linux lets the process use the unit; asks for it.
static inline int may_use_unit(void) {
    int64_t refused = 1;
#if defined(TB_SOFT_TILES) && TB_VECTOR == 64
    refused = 0;
#elif defined(__AMX_BF16__) && defined(__linux__) && TB_VECTOR == 64
    __asm__ volatile("syscall" : "=a"(refused) : "a"(158), "D"(0x1023), "S"(18) : "rcx", "r11", "memory");  // arch_prctl
#endif
    return !refused;
}

#if defined(TB_PLANES)
typedef float floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(64), aligned(4), may_alias));

enum {
    EDGE = 32,               // rows, columns and steps of k of a block
    HALF = 16,
    UNIT = HALF * EDGE * 2,  // bytes of half a block of one plane
    PLANES = TB_PLANES,
    BLOCK_BYTES = 2 * PLANES * UNIT,  // bytes of a block
};

#if defined(TB_SOFT_TILES)
static __thread words soft_tiles[8][HALF];

static inline void soft_load(words *tile, const char *from, int64_t step) {
    for (int i = 0; i < HALF; ++i) tile[i] = *(const words *)(from + i * step);
}

static inline void soft_store(const words *tile, char *to, int64_t step) {
    for (int i = 0; i < HALF; ++i) *(words *)(to + i * step) = tile[i];
}

// The first steps of pairs, in the lower halves of words, and the second add up by themselves.
static inline void soft_add(words *sums, const words *a, const words *b) {
    for (int i = 0; i < HALF; ++i) {
        floats first = {0}, second = {0};
        for (int k = 0; k < HALF; ++k) {
            const words low = (words){0} + (a[i][k] << 16), high = (words){0} + (a[i][k] & 0xFFFF0000);
            first += (floats)low * (floats)(b[k] << 16);
            second += (floats)high * (floats)(b[k] & 0xFFFF0000);
        }
        sums[i] = (words)((floats)sums[i] + (first + second));
    }
}

#define LOAD(R, FROM, STEP) soft_load(soft_tiles[R], FROM, STEP)
#define STORE(R, TO, STEP) soft_store(soft_tiles[R], TO, STEP)
#define ZERO(R) __builtin_memset(soft_tiles[R], 0, sizeof soft_tiles[R])
#define ADD(T, A, B) soft_add(soft_tiles[T], soft_tiles[A], soft_tiles[B])
#else
#define LOAD(R, FROM, STEP) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #R : : "r"(FROM), "r"((int64_t)(STEP)) : "memory")
#define STORE(R, TO, STEP) \
    __asm__ volatile("tilestored %%tmm" #R ", (%0,%1,1)" : : "r"(TO), "r"((int64_t)(STEP)) : "memory")
#define ZERO(R) __asm__ volatile("tilezero %%tmm" #R :)
#define ADD(T, A, B) __asm__ volatile("tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #T :)

// Eight registers of 16 rows of 64 bytes: 0 to 3 are sums (by rows, then columns), 4 and 5 the halves of a, 6 and 7 of b.
static inline void begin_tiles(void) {
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int r = 0; r < 8; ++r) shape.bytes[r] = 64, shape.rows[r] = HALF;
    __asm__ volatile("ldtilecfg %0" : : "m"(shape));
}

static inline void end_tiles(void) { __asm__ volatile("tilerelease" :); }
#endif

// Sums of EDGE columns: HALF rows, `step` bytes apart.
static inline void load_rows(const char *from, int64_t step) {
    LOAD(0, from, step); LOAD(1, from + UNIT / HALF, step);
}

static inline void store_rows(char *to, int64_t step) {
    STORE(0, to, step); STORE(1, to + UNIT / HALF, step);
}

// And HALF more, `half` bytes behind those.
static inline void load_halves(const char *from, int64_t step, int64_t half) {
    load_rows(from, step);
    LOAD(2, from + half, step); LOAD(3, from + half + UNIT / HALF, step);
}

static inline void store_halves(char *to, int64_t step, int64_t half) {
    store_rows(to, step);
    STORE(2, to + half, step); STORE(3, to + half + UNIT / HALF, step);
}

// EDGE rows of EDGE columns, `step` bytes apart.
static inline void clear_sums(void) { ZERO(0); ZERO(1); ZERO(2); ZERO(3); }
static inline void load_sums(const char *from, int64_t step) { load_halves(from, step, HALF * step); }
static inline void store_sums(char *to, int64_t step) { store_halves(to, step, HALF * step); }

#define LOAD_A(PLANE) \
    LOAD(4, a + (PLANE) * a_plane, a_line); \
    if (whole) LOAD(5, a + (PLANE) * a_plane + a_half, a_line)
#define LOAD_B(PLANE) LOAD(6, b + (PLANE) * b_plane, b_line); LOAD(7, b + (PLANE) * b_plane + b_half, b_line)
#define ADD_ALL() \
    ADD(0, 4, 6); ADD(1, 4, 7); \
    if (whole) { ADD(2, 5, 6); ADD(3, 5, 7); }

// The products of pairs of planes, small ones first: those of X's last plane come before those of Y's.
#if TB_PLANES == 3
#define ADD_PAIRS(X, Y) \
    LOAD_##X(2); LOAD_##Y(0); ADD_ALL(); \
    LOAD_##X(1); ADD_ALL(); \
    LOAD_##Y(1); ADD_ALL(); \
    LOAD_##X(0); ADD_ALL(); \
    LOAD_##Y(2); ADD_ALL(); \
    LOAD_##Y(0); ADD_ALL()
#elif TB_PLANES == 2
#define ADD_PAIRS(X, Y) \
    LOAD_##X(1); LOAD_##Y(1); ADD_ALL(); \
    LOAD_##Y(0); ADD_ALL(); \
    LOAD_##X(0); ADD_ALL(); \
    LOAD_##Y(1); ADD_ALL()
#else
#define ADD_PAIRS(X, Y) LOAD_##X(0); LOAD_##Y(0); ADD_ALL()
#endif

// Adds the products of a block, or of the first half of its rows if not `whole`, to the sums; if `turned` in the order in
// which they come where a and b have changed places. Rows of a lie `a_line` bytes apart, its halves `a_half` and its planes
// `a_plane`; pairs of b `b_line`, its halves `b_half` and its planes `b_plane`; in a block as above 64, UNIT and 2 * UNIT.
static inline __attribute__((always_inline)) void add_part(int whole, int turned, const char *a, int64_t a_line,
                                                           int64_t a_half, int64_t a_plane, const char *b, int64_t b_line,
                                                           int64_t b_half, int64_t b_plane) {
    if (turned) { ADD_PAIRS(B, A); }
    else { ADD_PAIRS(A, B); }
}

// The same where `whole` is known at run time only.
static inline __attribute__((always_inline)) void add_block(int whole, const char *a, int64_t a_line, int64_t a_half,
                                                            int64_t a_plane, const char *b, int64_t b_line,
                                                            int64_t b_half, int64_t b_plane) {
    if (whole) add_part(1, 0, a, a_line, a_half, a_plane, b, b_line, b_half, b_plane);
    else add_part(0, 0, a, a_line, a_half, a_plane, b, b_line, b_half, b_plane);
}

// The same of whole blocks one after the other; those of a are `a_next` bytes apart.
static inline __attribute__((always_inline)) void add_blocks(int turned, int64_t blocks, const char *a, int64_t a_line,
                                                             int64_t a_half, int64_t a_next, const char *b) {
    for (; blocks; --blocks, a += a_next, b += BLOCK_BYTES)
        add_part(1, turned, a, a_line, a_half, 2 * UNIT, b, 64, UNIT, 2 * UNIT);
}

// Copies --------------------------------------------------------------------------------------------------------------

// The planes of 16 numbers, each in the upper half of a word.
static inline __attribute__((always_inline)) void planes_of(floats rest, words *out) {
    UNROLL for (int p = 0; p < PLANES; ++p) {
        const words bits = (words)rest + (p < PLANES - 1 ? 0x8000 : 0);
        out[p] = bits & 0xFFFF0000;
        rest -= (floats)out[p];
    }
}

// A row of b: two steps of 16 columns, side by side, plane by plane.
static inline __attribute__((always_inline)) void pair_planes(floats even, floats odd, words *out) {
    words low[PLANES], high[PLANES];
    planes_of(even, low);
    planes_of(odd, high);
    UNROLL for (int p = 0; p < PLANES; ++p) out[p] = low[p] >> 16 | high[p];
}

// A row of a: 32 numbers side by side, plane by plane.
static inline __attribute__((always_inline)) void row_planes(floats first, floats second, words *out) {
    const words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    pair_planes(TB_CHOSEN(first, second, 2 * lane), TB_CHOSEN(first, second, 2 * lane + 1), out);
}

// x[i][j] becomes x[j][i]: squares of 2, 4, 8 and 16.
static inline __attribute__((always_inline)) void turn(floats x[HALF]) {
    const words lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    UNROLL for (int step = 1; step < HALF; step *= 2) {
        const words low = lane + ((words)((lane & step) != 0) & (HALF - step)), high = low + step;
        UNROLL for (int i = 0; i < HALF; ++i)
            if (!(i & step)) {
                const floats y = x[i], z = x[i | step];
                x[i] = TB_CHOSEN(y, z, low);
                x[i | step] = TB_CHOSEN(y, z, high);
            }
    }
}

static inline __attribute__((always_inline)) void load_square(floats x[HALF], const float *from, int64_t step) {
    UNROLL for (int i = 0; i < HALF; ++i) x[i] = *(const floats *)(from + i * step);
}

// A row of half a block, plane by plane.
static inline __attribute__((always_inline)) void put_row(char *to, const words *row) {
    UNROLL for (int p = 0; p < PLANES; ++p) *(words *)(to + 2 * p * UNIT) = row[p];
}

// Half a block, of a or (`paired`) of b, from its rows of 32 steps, which begin `step` numbers apart.
static inline void half_of_rows(char *to, const float *x, int64_t step, int paired) {
    words row[PLANES];
    if (!paired) {
        for (int j = 0; j < HALF; ++j, x += step, to += 64) {
            row_planes(*(const floats *)x, *(const floats *)(x + HALF), row);
            put_row(to, row);
        }
        return;
    }
    for (int h = 0; h < 2; ++h, x += HALF) {
        floats square[HALF];
        load_square(square, x, step);
        turn(square);
        UNROLL for (int i = 0; i < HALF; i += 2, to += 64) {
            pair_planes(square[i], square[i + 1], row);
            put_row(to, row);
        }
    }
}

// The same from 32 steps of its columns.
static inline void half_of_columns(char *to, const float *x, int64_t step, int paired) {
    words row[PLANES];
    if (paired) {
        for (int i = 0; i < HALF; ++i, x += 2 * step, to += 64) {
            pair_planes(*(const floats *)x, *(const floats *)(x + step), row);
            put_row(to, row);
        }
        return;
    }
    floats first[HALF], second[HALF];
    load_square(first, x, step);
    turn(first);
    load_square(second, x + HALF * step, step);
    turn(second);
    UNROLL for (int j = 0; j < HALF; ++j, to += 64) {
        row_planes(first[j], second[j], row);
        put_row(to, row);
    }
}
#endif

#if !defined(TB_PLANES) || defined(TB_SOFT_TILES)
static inline void begin_tiles(void) {}
static inline void end_tiles(void) {}
#endif
#endif
