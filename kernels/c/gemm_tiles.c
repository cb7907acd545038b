// SPDX-License-Identifier: Apache-2.0
// gemm_tiles.c — the tiles of gemm.c for any processor: multiply-adds on vectors
//
// A tile of MR rows by NV vectors of columns keeps its sums in registers while k runs; entries of `a` are spread over a
// vector as they are loaded. All types that add up in TB_T share these. Tiles of half a vector of columns, of one and of more
// are compiled when a product needs them, beside gemm.c.
//
// Macros    TB_T; TB_WHOLE where it is of integers; TB_HALF_TILES or TB_WIDE_TILES for the others than those of one vector
#include "plus_product.h"
#include "tile_sizes.h"
#include "gemm_tile.h"

// SPREAD_PRODUCT(x, V) is a function: sum + *x y, where *x fills a vector, as one instruction where there is one: tiles of
// one vector would take longer to spread numbers than to multiply them.
#if defined(__AVX512VL__) && defined(__FMA__) && !defined(__clang__)
#define SPREAD_PRODUCT(NAME, V, PLUS) \
    static inline __attribute__((always_inline)) V NAME(V sum, const TB_T *x, V y) { \
        enum { LENGTH = sizeof(V) / sizeof(TB_T) }; \
        if ((TB_T)0.5 == 0) return sum + *x * y; \
        if (sizeof(TB_T) == 4) __asm__("vfmadd231ps %2%{1to%c3%}, %1, %0" : "+v"(sum) : "v"(y), "m"(*x), "i"(LENGTH)); \
        else __asm__("vfmadd231pd %2%{1to%c3%}, %1, %0" : "+v"(sum) : "v"(y), "m"(*x), "i"(LENGTH)); \
        return sum; \
    }
#else
#define SPREAD_PRODUCT(NAME, V, PLUS) \
    static inline __attribute__((always_inline)) V NAME(V sum, const TB_T *x, V y) { return PLUS(sum, *x - (V){0}, y); }
#endif
static inline void vector_past(vector *to, vector x) { store_past(to, (whole_vector)x); }
static inline void half_vector_past(half_vector *to, half_vector x) { *to = x; }
PLUS_PRODUCT(plus_product, vector)
PLUS_PRODUCT(half_plus_product, half_vector)
SPREAD_PRODUCT(plus_product_spread, vector, plus_product)
SPREAD_PRODUCT(half_plus_product_spread, half_vector, half_plus_product)

enum {
    ROUND = MANY_REGISTERS ? 2 : 4,  // steps of k between questions: a tile of few registers is done with a step sooner
    LATE = 64 / ROUND,  // rounds before the end at which tiles of four vectors fetch the lines of sums that are far away
};

// One step of k, `u` steps from here, of a tile: with its row i at A(i), if columns of b are `b_k` apart.
#define STEP_OF(V, PLUS, MR, NV, u, A, b_k) { \
        V y[NV]; \
        UNROLL for (int j = 0; j < NV; ++j) { \
            y[j] = *(const V *)(b + (u) * (b_k) + j * lanes); \
            KEEP_IN_REGISTER(y[j]); \
        } \
        UNROLL for (int i = 0; i < MR; ++i) { \
            const TB_T *const at = A(i); \
            if (NV == 1) { \
                sum[i][0] = PLUS##_spread(sum[i][0], at, y[0]); \
                continue; \
            } \
            const V x = *at - (V){0};  /* one load that fills a vector */ \
            UNROLL for (int j = 0; j < NV; ++j) sum[i][j] = PLUS(sum[i][j], x, y[j]); \
        } \
    }
#define STEP(V, PLUS, MR, NV, u) STEP_OF(V, PLUS, MR, NV, u, ROW_##u, b_k)
#define ROW_0(i) (row[(i) / 3] + (i) % 3 * a_row)
#define ROW_1(i) (ROW_0(i) + a_k)
// A round of steps of k where strides are known: of copies of both operands, or of rows along k and a copy; and of rows along k
// and any b, which is fetched ahead with many registers. The processor should start little else than loads and multiply-adds:
// a core whose other thread is busy starts half as much.
#define QUICK(V, PLUS, MR, NV, A, ADVANCE_A, b_k, FETCH) \
    for (; quick; --quick) { \
        FETCH(NV) \
        STEP_OF(V, PLUS, MR, NV, 0, A##_0, b_k) \
        STEP_OF(V, PLUS, MR, NV, 1, A##_1, b_k) \
        if (ROUND == 4) { \
            STEP_OF(V, PLUS, MR, NV, 2, A##_2, b_k) \
            STEP_OF(V, PLUS, MR, NV, 3, A##_3, b_k) \
        } \
        ADVANCE_A \
        b += ROUND * (b_k); \
    }
#define FETCH_SOON(NV) { \
        __builtin_prefetch(soon, 0, 2); \
        soon += ROUND / 2 * w->soon_step; \
    }
#define FETCH_AHEAD(NV) \
    UNROLL for (int u = 0; u < ROUND; ++u) \
        UNROLL for (int j = 0; j < NV; ++j) __builtin_prefetch(b + ahead + u * b_k + j * lanes);
#define COPIED_0(i) (row[0] + (i))
#define COPIED_1(i) (row[0] + (i) + mr)
#define COPIED_2(i) (row[0] + (i) + 2 * mr)
#define COPIED_3(i) (row[0] + (i) + 3 * mr)
#define ALONG_0(i) ROW_0(i)
#define ALONG_1(i) (ROW_0(i) + 1)
#define ALONG_2(i) (ROW_0(i) + 2)
#define ALONG_3(i) (ROW_0(i) + 3)
#define ADVANCE(MR, STEPS) { \
        UNROLL for (int i = 0; i < (MR + 2) / 3; ++i) row[i] += (STEPS) * a_k; \
        b += (STEPS) * b_k; \
    }
#define EACH(MR, NV) UNROLL for (int i = 0; i < MR; ++i) UNROLL for (int j = 0; j < NV; ++j)
#define PLACE(V, i, j) ((V *)(t + (i) * t_row + (j) * lanes))
#define TILE_OF(NAME, V, PLUS, PUT_PAST, MR, NV) \
    static void NAME##_##MR##_##NV(const work *w) { \
        enum { lanes = sizeof(V) / sizeof(TB_T), mr = MR }; \
        const int64_t a_row = w->a_row, a_k = w->a_k, b_k = w->b_k, t_row = w->t_row, ahead = w->ahead, next = w->next; \
        const char *later = w->later; \
        int64_t times = w->times; \
        const TB_T *b = w->b, *row[(MR + 2) / 3]; \
        TB_T *const t = w->t; \
        V sum[MR][NV]; \
        EACH(MR, NV) sum[i][j] = (V){0}; \
        UNROLL for (int i = 0; i < (MR + 2) / 3; ++i) row[i] = w->a + 3 * i * a_row; \
        int64_t p = w->k / ROUND, rest = NV < 4 || !w->far ? 0 : p < LATE ? p : LATE; \
        p -= rest; \
        if (MR * NV >= QUICK_SUMS && !next && p > (times + 1) * (8 / ROUND)) { \
            const char *soon = w->soon; \
            const int64_t all = p - times * (8 / ROUND); \
            int64_t quick = all; \
            const int packed = b_k == NV * lanes && !ahead; \
            if (a_row == 1 && a_k == mr && packed) { \
                QUICK(V, PLUS, MR, NV, COPIED, row[0] += ROUND * MR;, NV * lanes, FETCH_SOON) \
                p -= all; \
                UNROLL for (int i = 1; i < (MR + 2) / 3; ++i) row[i] = row[0] + 3 * i; \
            } else if (a_k == 1 && (packed || (!MANY_REGISTERS && !ahead))) { \
                QUICK(V, PLUS, MR, NV, ALONG, UNROLL for (int i = 0; i < (MR + 2) / 3; ++i) row[i] += ROUND;, \
                      MANY_REGISTERS ? NV * lanes : b_k, FETCH_SOON) \
                p -= all; \
            } else if (MANY_REGISTERS && a_k == 1) { \
                QUICK(V, PLUS, MR, NV, ALONG, UNROLL for (int i = 0; i < (MR + 2) / 3; ++i) row[i] += ROUND;, b_k, FETCH_AHEAD) \
                p -= all; \
            } \
        } \
        for (;; p = rest, rest = 0) { \
            for (; p; --p) { \
                STEP(V, PLUS, MR, NV, 0) \
                STEP(V, PLUS, MR, NV, 1) \
                if (ROUND == 4) { \
                    ADVANCE(MR, 2) \
                    STEP(V, PLUS, MR, NV, 0) \
                    STEP(V, PLUS, MR, NV, 1) \
                } \
                if (ahead) \
                    UNROLL for (int j = 0; j < ROUND * NV; ++j) \
                        __builtin_prefetch(b + ahead + (j / NV - (ROUND - 2)) * b_k + j % NV * lanes); \
                if (next && !(p % (LINE / ROUND))) \
                    UNROLL for (int i = 0; i < MR; ++i) __builtin_prefetch(row[i / 3] + i % 3 * a_row + next, 0, 2); \
                if (times && !(p % (8 / ROUND))) { \
                    UNROLL for (int i = 0; i < MR; ++i) __builtin_prefetch(later + i * w->later_row, 0, 2); \
                    later += w->later_step; \
                    --times; \
                } \
                ADVANCE(MR, 2) \
            } \
            if (!rest) break; \
            EACH(MR, NV) __builtin_prefetch(PLACE(V, i, j), 1); \
        } \
        for (int64_t last = w->k % ROUND; ROUND == 4 && last; --last) { \
            STEP(V, PLUS, MR, NV, 0) \
            ADVANCE(MR, 1) \
        } \
        if (ROUND == 2 && w->k % 2) STEP(V, PLUS, MR, NV, 0) \
        if (w->t_column != 1 || w->columns != NV * lanes) { \
            V kept[MR][NV];  /* the sums themselves must have no address, or they would live in memory */ \
            EACH(MR, NV) kept[i][j] = sum[i][j]; \
            put_scattered((const TB_T *)kept, MR, NV * lanes, w); \
            return; \
        } \
        if (w->add) EACH(MR, NV) sum[i][j] += *PLACE(V, i, j); \
        if (w->past) EACH(MR, NV) PUT_PAST(PLACE(V, i, j), sum[i][j]); \
        else EACH(MR, NV) *PLACE(V, i, j) = sum[i][j]; \
    }
#define TILE(MR, NV) TILE_OF(tile, vector, plus_product, vector_past, MR, NV)
#define HALF_TILE(MR) TILE_OF(half_tile, half_vector, half_plus_product, half_vector_past, MR, 1)
#define LOW(NV) TILE(1, NV) TILE(2, NV) TILE(3, NV) TILE(4, NV)
#define HIGH(NV) TILE(5, NV) TILE(6, NV) TILE(7, NV) TILE(8, NV)
#define TOP(NV) TILE(9, NV) TILE(10, NV) TILE(11, NV) TILE(12, NV)
#define HALF_LOW HALF_TILE(1) HALF_TILE(2) HALF_TILE(3) HALF_TILE(4)
#define HALF_HIGH HALF_TILE(5) HALF_TILE(6) HALF_TILE(7) HALF_TILE(8)
#define HALF_TOP HALF_TILE(9) HALF_TILE(10) HALF_TILE(11) HALF_TILE(12)
#define LOWS(NV) tile_1_##NV, tile_2_##NV, tile_3_##NV, tile_4_##NV
#define HIGHS(NV) tile_5_##NV, tile_6_##NV, tile_7_##NV, tile_8_##NV
#define TOPS(NV) tile_9_##NV, tile_10_##NV, tile_11_##NV, tile_12_##NV
#define HALF_LOWS half_tile_1_1, half_tile_2_1, half_tile_3_1, half_tile_4_1
#define HALF_HIGHS half_tile_5_1, half_tile_6_1, half_tile_7_1, half_tile_8_1
#define HALF_TOPS half_tile_9_1, half_tile_10_1, half_tile_11_1, half_tile_12_1

// The tiles of 1, 2 and 4 vectors of columns, and of half a vector, which may stay where they lie.
#if TB_VECTOR == 64 && defined(TB_WHOLE)
#define MAKE_1 LOW(1)
#define MAKE_2 LOW(2)
#define MAKE_4 LOW(4) TILE(5, 4) TILE(6, 4)
#define TILES_1 LOWS(1)
#define TILES_2 LOWS(2)
#define TILES_4 LOWS(4), tile_5_4, tile_6_4
#elif TB_VECTOR == 64
#define MAKE_1 LOW(1) HIGH(1) TOP(1)
#define MAKE_2 LOW(2) HIGH(2) TOP(2) TILE(13, 2) TILE(14, 2)
#define MAKE_4 LOW(4) TILE(5, 4) TILE(6, 4)
#define TILES_1 LOWS(1), HIGHS(1), TOPS(1)
#define TILES_2 LOWS(2), HIGHS(2), TOPS(2), tile_13_2, tile_14_2
#define TILES_4 LOWS(4), tile_5_4, tile_6_4
#elif defined(__aarch64__)
#define MAKE_1 LOW(1) HIGH(1)
#define MAKE_2 LOW(2) HIGH(2)
#define MAKE_4 LOW(4) TILE(5, 4) TILE(6, 4)
#define TILES_1 LOWS(1), HIGHS(1)
#define TILES_2 LOWS(2), HIGHS(2)
#define TILES_4 LOWS(4), tile_5_4, tile_6_4
#else
#define MAKE_1 LOW(1) HIGH(1)
#define MAKE_2 LOW(2) TILE(5, 2) TILE(6, 2)
#define MAKE_4 TILE(1, 4) TILE(2, 4)
#define TILES_1 LOWS(1), HIGHS(1)
#define TILES_2 LOWS(2), tile_5_2, tile_6_2
#define TILES_4 tile_1_4, tile_2_4
#endif
#if TB_VECTOR == 64
#define MAKE_HALF HALF_LOW HALF_HIGH HALF_TOP
#define TILES_HALF HALF_LOWS, HALF_HIGHS, HALF_TOPS
#else
#define MAKE_HALF HALF_LOW HALF_HIGH
#define TILES_HALF HALF_LOWS, HALF_HIGHS
#endif

#define ARE(MOST, ...) _Static_assert(sizeof((tile[]){__VA_ARGS__}) == (MOST) * sizeof(tile), "tile_sizes.h says otherwise");
#if defined(TB_WHOLE)
enum { MOST_OF_1 = WHOLE_ROWS_1, MOST_OF_2 = WHOLE_ROWS_2 };
#else
enum { MOST_OF_1 = ROWS_1, MOST_OF_2 = ROWS_2 };
#endif
#if defined(TB_HALF_TILES)
MAKE_HALF
ARE(ROWS_HALF, TILES_HALF)
const tiles tb_gemm_tiles = {{{TILES_HALF}}};
#elif defined(TB_WIDE_TILES)
MAKE_2 MAKE_4
ARE(MOST_OF_2, TILES_2)
ARE(ROWS_4, TILES_4)
const tiles tb_gemm_tiles = {{{0}, {TILES_2}, {0}, {TILES_4}}};
#else
MAKE_1
ARE(MOST_OF_1, TILES_1)
const tiles tb_gemm_tiles = {{{TILES_1}}};
#endif
