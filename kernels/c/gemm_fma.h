// SPDX-License-Identifier: Apache-2.0
// gemm_fma.h — the tiles and copies of gemm.c for any processor: multiply-adds on vectors
//
// A tile of MR rows by NV vectors of columns keeps its sums in registers while k runs; entries of `a` are spread over a
// vector as they are loaded. What is copied is panels of b as [k][columns] and tiles of a as [k][rows].
#include "amx.h"

// How many elements of TB_T hold the copy of n elements.
static inline int64_t packed(int64_t n) { return n; }

// Vectors of a tile that has so many columns: there are no tiles of three.
static inline int vectors_of(int64_t columns) {
    const int vectors = (int)ceiling(columns, LANES);
    return vectors == 3 ? 4 : vectors;
}

typedef void (*tile)(const work *w);

// PLUS_PRODUCT(x, V) is a function: sum + x y. Left to itself, the compiler moves sums from register to register, and some to
// memory.
#if defined(__FMA__)
#define PLUS_PRODUCT(NAME, V) \
    static inline __attribute__((always_inline)) V NAME(V sum, V x, V y) { \
        if ((TB_T)0.5 == 0) return sum + x * y; \
        if (sizeof(TB_T) == 4) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y)); \
        else __asm__("vfmadd231pd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y)); \
        return sum; \
    }
#else
#define PLUS_PRODUCT(NAME, V) \
    static inline __attribute__((always_inline)) V NAME(V sum, V x, V y) { return sum + x * y; }
#endif

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

// One step of k, `u` steps from here, of a tile.
#define STEP(V, PLUS, MR, NV, u) { \
        V y[NV]; \
        UNROLL for (int j = 0; j < NV; ++j) { \
            y[j] = *(const V *)(b + (u) * b_k + j * lanes); \
            KEEP_IN_REGISTER(y[j]); \
        } \
        UNROLL for (int i = 0; i < MR; ++i) { \
            const TB_T *const at = row[i / 3] + i % 3 * a_row + (u) * a_k; \
            if (NV == 1) { \
                sum[i][0] = PLUS##_spread(sum[i][0], at, y[0]); \
                continue; \
            } \
            const V x = *at - (V){0};  /* one load that fills a vector */ \
            UNROLL for (int j = 0; j < NV; ++j) sum[i][j] = PLUS(sum[i][j], x, y[j]); \
        } \
    }
#define EACH(MR, NV) UNROLL for (int i = 0; i < MR; ++i) UNROLL for (int j = 0; j < NV; ++j)
#define PLACE(V, i, j) ((V *)(t + (i) * t_row + (j) * lanes))
#define TILE_OF(NAME, V, PLUS, PUT_PAST, MR, NV) \
    static void NAME##_##MR##_##NV(const work *w) { \
        enum { lanes = sizeof(V) / sizeof(TB_T) }; \
        const int64_t a_row = w->a_row, a_k = w->a_k, b_k = w->b_k, t_row = w->t_row, ahead = w->ahead, next = w->next; \
        const TB_T *later = w->later; \
        const TB_T *b = w->b, *row[(MR + 2) / 3]; \
        TB_T *const t = w->t; \
        V sum[MR][NV]; \
        EACH(MR, NV) sum[i][j] = (V){0}; \
        UNROLL for (int i = 0; i < (MR + 2) / 3; ++i) row[i] = w->a + 3 * i * a_row; \
        for (int64_t p = w->k / 2; p; --p) { \
            STEP(V, PLUS, MR, NV, 0) \
            STEP(V, PLUS, MR, NV, 1) \
            if (ahead) \
                UNROLL for (int j = 0; j < 2 * NV; ++j) __builtin_prefetch(b + ahead + j / NV * b_k + j % NV * lanes); \
            if (next && !(p % (LINE / 2))) { \
                UNROLL for (int i = 0; i < MR; ++i) __builtin_prefetch(row[i / 3] + i % 3 * a_row + next, 0, 2); \
                if (later) { \
                    UNROLL for (int i = 0; i < MR; ++i) __builtin_prefetch(later + i * w->later_row, 0, 2); \
                    later += LINE; \
                } \
            } \
            UNROLL for (int i = 0; i < (MR + 2) / 3; ++i) row[i] += 2 * a_k; \
            b += 2 * b_k; \
        } \
        if (w->k % 2) STEP(V, PLUS, MR, NV, 0) \
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
#define LOWS(NV) tile_1_##NV, tile_2_##NV, tile_3_##NV, tile_4_##NV
#define HIGHS(NV) tile_5_##NV, tile_6_##NV, tile_7_##NV, tile_8_##NV
#define TOPS(NV) tile_9_##NV, tile_10_##NV, tile_11_##NV, tile_12_##NV

#if TB_VECTOR == 64 && defined(TB_WHOLE)
LOW(1) LOW(2) LOW(4) TILE(5, 4) TILE(6, 4)
static const tile tiles[MOST_VECTORS][MOST_ROWS] = {{LOWS(1)}, {LOWS(2)}, {0}, {LOWS(4), tile_5_4, tile_6_4}};
static const int most_rows[MOST_VECTORS] = {4, 4, 0, 6};
#elif TB_VECTOR == 64
LOW(1) HIGH(1) TOP(1) LOW(2) HIGH(2) TOP(2) TILE(13, 2) TILE(14, 2) LOW(4) TILE(5, 4) TILE(6, 4)
static const tile tiles[MOST_VECTORS][MOST_ROWS] = {
    {LOWS(1), HIGHS(1), TOPS(1)}, {LOWS(2), HIGHS(2), TOPS(2), tile_13_2, tile_14_2}, {0}, {LOWS(4), tile_5_4, tile_6_4}};
static const int most_rows[MOST_VECTORS] = {12, 14, 0, 6};
#elif defined(__aarch64__)
LOW(1) HIGH(1) LOW(2) HIGH(2) LOW(4) TILE(5, 4) TILE(6, 4)
static const tile tiles[MOST_VECTORS][MOST_ROWS] = {
    {LOWS(1), HIGHS(1)}, {LOWS(2), HIGHS(2)}, {0}, {LOWS(4), tile_5_4, tile_6_4}};
static const int most_rows[MOST_VECTORS] = {8, 8, 0, 6};
#else
LOW(1) HIGH(1) LOW(2) TILE(5, 2) TILE(6, 2) TILE(1, 4) TILE(2, 4)
static const tile tiles[MOST_VECTORS][MOST_ROWS] = {
    {LOWS(1), HIGHS(1)}, {LOWS(2), tile_5_2, tile_6_2}, {0}, {tile_1_4, tile_2_4}};
static const int most_rows[MOST_VECTORS] = {8, 6, 0, 2};
#endif

// Tiles of half a vector of columns, which may stay where they lie.
#if TB_VECTOR > 16 && !defined(TB_WHOLE)
HALF_TILE(1) HALF_TILE(2) HALF_TILE(3) HALF_TILE(4) HALF_TILE(5) HALF_TILE(6)
HALF_TILE(7) HALF_TILE(8) HALF_TILE(9) HALF_TILE(10) HALF_TILE(11) HALF_TILE(12)
static const tile half_tiles[] = {
    half_tile_1_1, half_tile_2_1, half_tile_3_1, half_tile_4_1, half_tile_5_1, half_tile_6_1,
    half_tile_7_1, half_tile_8_1, half_tile_9_1, half_tile_10_1, half_tile_11_1, half_tile_12_1};
enum { HALF_ROWS = TB_VECTOR == 64 ? 12 : 8 };
#else
static const tile half_tiles[1];
enum { HALF_ROWS = 0 };
#endif

// Columns of a panel as copied: whole vectors, half of one, or one.
static inline int64_t width_of(const call *g, int64_t columns) {
    if (columns == LANES / 2 && g->size[TILE_ROWS] <= HALF_ROWS)
        return columns;
    return g->size[PANEL] == 1 ? 1 : vectors_of(columns) * LANES;
}

static inline void run_tile(int vectors, int rows, const work *w) {
    if (w->columns == LANES / 2 && rows <= HALF_ROWS) half_tiles[rows - 1](w);
    else tiles[vectors - 1][rows - 1](w);
}

// Lanes of a vector; the most rows of a tile of 1, 2, … vectors of columns (0: there is no such tile); whether there is a
// matrix unit for gemm_amx.h; the most rows of a tile of half a vector.
void tb_gemm_facts(int64_t *out) {
    out[0] = LANES;
    for (int v = 0; v < MOST_VECTORS; ++v)
        out[1 + v] = most_rows[v];
    out[1 + MOST_VECTORS] = may_use_unit();
    out[2 + MOST_VECTORS] = HALF_ROWS;
}

// Writes `to[p * width + j] = from[j * step + p]` for p < SQUARE, j < wanted. TURNS: by shuffles of registers, from wherever
// the numbers lie, and zeros from column `columns` on; else they should lie in the first-level cache, zeros included.
#if defined(__AVX512BW__) && !defined(__clang__)
enum { TURNS = 1, SQUARE = 64 / (int)sizeof(TB_T) };
typedef int32_t words __attribute__((vector_size(64), aligned(4), may_alias));
typedef int64_t long_words __attribute__((vector_size(64), aligned(4), may_alias));
typedef char bytes __attribute__((vector_size(64)));
#define TURN(NAME, V, N, IN_REGISTERS) \
    static void NAME(TB_T *to, int64_t width, int wanted, const TB_T *from, int64_t step, int columns) { \
        const uint64_t stored = ~(uint64_t)0 >> (64 - wanted * (int)sizeof(TB_T)); \
        V v[N]; \
        for (int j = 0; j < N; ++j) v[j] = j < columns ? *(const V *)(from + j * step) : (V){0}; \
        IN_REGISTERS(V, v) \
        for (int p = 0; p < N; ++p) __builtin_ia32_storedquqi512_mask((char *)(to + p * width), (bytes)v[p], stored); \
    }
TURN(turn_words, words, 16, TB_TURN_16)
TURN(turn_long_words, long_words, 8, TB_TURN_8)
static void turn_square(TB_T *to, int64_t width, int wanted, const TB_T *from, int64_t step, int columns) {
    (sizeof(TB_T) == 4 ? turn_words : turn_long_words)(to, width, wanted, from, step, columns);
}
#else
enum { TURNS = 0, SQUARE = 16 };
static void turn_square(TB_T *restrict to, int64_t width, int wanted, const TB_T *restrict from, int64_t step, int columns) {
    for (int p = 0; p < SQUARE; ++p)
        if (wanted == SQUARE)
            for (int j = 0; j < SQUARE; ++j) to[p * width + j] = from[j * step + p];
        else
            for (int j = 0; j < wanted; ++j) to[p * width + j] = from[j * step + p];
    (void)columns;
}
#endif

// COPY(x, S, WIDE) copies k steps of a run, `to[p * width + j] = from[p * step_p + j * step_j]`: in the order of memory where
// columns lie side by side, else through squares that are turned in cache.
#define COPY(NAME, S, WIDE) \
    static inline __attribute__((always_inline)) void NAME##_line(TB_T *restrict to, const S *restrict from, int64_t n, \
                                                                  int64_t width) { \
        for (int64_t j = 0; j < n; ++j) to[j] = WIDE(from[j]); \
        for (int64_t j = n; j < width; ++j) to[j] = 0; \
    } \
    static void NAME##_lines(TB_T *to, const S *from, int64_t step_p, int64_t k, const run *r) { \
        const int64_t last = r->columns - (r->panels - 1) * r->step, width = r->width; \
        for (int64_t p = 0; p < k; ++p, to += width, from += step_p) { \
            for (int64_t q = 0; q < r->panels - 1; ++q) { \
                TB_T *const line = to + q * r->apart; \
                const S *const given = from + q * r->step; \
                for (int64_t j = 0; j < width; j += LANES) __builtin_prefetch(given + LINES_AHEAD * step_p + j); \
                switch (width) { \
                    case 4 * LANES: NAME##_line(line, given, 4 * LANES, 4 * LANES); break; \
                    case 2 * LANES: NAME##_line(line, given, 2 * LANES, 2 * LANES); break; \
                    case 14: NAME##_line(line, given, 14, 14); break; \
                    case 6: NAME##_line(line, given, 6, 6); break; \
                    default: NAME##_line(line, given, width, width); \
                } \
            } \
            NAME##_line(to + (r->panels - 1) * r->apart, from + (r->panels - 1) * r->step, last, width); \
        } \
    } \
    static void NAME##_turned(TB_T *restrict to, const S *restrict from, int64_t step_p, int64_t step_j, int64_t k, int64_t n, \
                              int64_t width) { \
        const int in_place = TURNS && __builtin_types_compatible_p(S, TB_T) && step_p == 1; \
        for (int64_t j0 = 0; j0 < width; j0 += SQUARE)  /* as few lines at a time as there can be */ \
            for (int64_t p0 = 0; p0 < k; p0 += SQUARE) { \
                TB_T square[SQUARE][SQUARE]; \
                const int rows = (int)least(SQUARE, k - p0), all = (int)least(SQUARE, width - j0); \
                const int columns = (int)(n - j0 < 0 ? 0 : least(all, n - j0)); \
                const S *const first = from + j0 * step_j + p0 * step_p; \
                TB_T *const place = to + p0 * width + j0; \
                if (in_place && rows == SQUARE) { \
                    for (int j = 0; j < columns; ++j) __builtin_prefetch(first + j * step_j + COPY_AHEAD * SQUARE); \
                    turn_square(place, width, all, (const TB_T *)first, step_j, columns); \
                    continue; \
                } \
                for (int j = 0; j < columns; ++j) { \
                    const S *const line = first + j * step_j; \
                    if (step_p == 1 && rows == SQUARE) \
                        for (int p = 0; p < SQUARE; ++p) square[j][p] = WIDE(line[p]); \
                    else \
                        for (int p = 0; p < rows; ++p) square[j][p] = WIDE(line[p * step_p]); \
                } \
                for (int j = columns; j < all; ++j) \
                    for (int p = 0; p < rows; ++p) square[j][p] = 0; \
                if (rows == SQUARE) { \
                    turn_square(place, width, all, square[0], SQUARE, all); \
                    continue; \
                } \
                for (int p = 0; p < rows; ++p) \
                    for (int j = 0; j < all; ++j) place[p * width + j] = square[j][p]; \
            } \
    } \
    static void NAME(TB_T *to, const S *from, int64_t step_p, int64_t step_j, int64_t k, const run *r) { \
        if (step_j == 1) { \
            NAME##_lines(to, from, step_p, k, r); \
            return; \
        } \
        for (int64_t q = 0; q < r->panels; ++q) \
            NAME##_turned(to + q * r->apart, from + q * r->step * step_j, step_p, step_j, k, \
                          least(r->step, r->columns - q * r->step), r->width); \
    }
