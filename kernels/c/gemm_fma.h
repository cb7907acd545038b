// SPDX-License-Identifier: Apache-2.0
// gemm_fma.h — the copies of gemm.c for the tiles of gemm_tiles.c: panels of b as [k][columns], tiles of a as [k][rows]
#include "amx.h"
#include "tile_sizes.h"

// How many elements of TB_T hold the copy of n elements.
static inline int64_t packed(int64_t n) { return n; }

// Vectors of a tile that has so many columns: there are no tiles of three.
static inline int vectors_of(int64_t columns) {
    const int vectors = (int)ceiling(columns, LANES);
    return vectors == 3 ? 4 : vectors;
}

// Whether so many columns go by tiles of half a vector, of so many rows.
static inline int halves(int64_t columns, int64_t rows) {
    return columns == LANES / 2 && rows <= ((TB_T)0.5 == 0 ? 0 : ROWS_HALF);
}

// Columns of a panel as copied: whole vectors, half of one, or one.
static inline int64_t width_of(const call *g, int64_t columns) {
    if (halves(columns, g->size[TILE_ROWS]))
        return columns;
    return g->size[PANEL] == 1 ? 1 : vectors_of(columns) * LANES;
}

static inline void run_tile(const call *g, int vectors, int rows, const work *w) {
    const int kind = halves(w->columns, rows) ? HALF_TILES : vectors > 1 ? WIDE_TILES : TILES;
    ((const tiles *)g->size[kind])->of[vectors - 1][rows - 1](w);
}

#if defined(TB_FEW)
// COPY(x, S, WIDE) copies k steps of a run of columns, each by itself.
#define COPY(NAME, S, WIDE) \
    static void NAME(TB_T *to, const S *from, int64_t step_p, int64_t step_j, int64_t k, const run *r) { \
        for (int64_t q = 0; q < r->panels; ++q) { \
            TB_T *restrict const column = to + q * r->apart; \
            const S *restrict const given = from + q * step_j; \
            if (step_p == 1) \
                for (int64_t p = 0; p < k; ++p) column[p] = WIDE(given[p]); \
            else \
                for (int64_t p = 0; p < k; ++p) column[p] = WIDE(given[p * step_p]); \
        } \
    }
#else
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
#elif defined(__AVX2__) && !defined(__clang__)
enum { TURNS = 1, SQUARE = 32 / (int)sizeof(TB_T) };
typedef int32_t words __attribute__((vector_size(32), aligned(4), may_alias));
typedef int64_t long_words __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t whole_words __attribute__((vector_size(32)));
typedef long long whole_long_words __attribute__((vector_size(32)));
#define TURN(NAME, V, WHOLE, N, IN_REGISTERS, STORE) \
    static void NAME(TB_T *to, int64_t width, int wanted, const TB_T *from, int64_t step, int columns) { \
        V v[N]; \
        for (int j = 0; j < N; ++j) v[j] = j < columns ? *(const V *)(from + j * step) : (V){0}; \
        IN_REGISTERS(V, v) \
        if (wanted == N) { \
            for (int p = 0; p < N; ++p) *(V *)(to + p * width) = v[p]; \
            return; \
        } \
        WHOLE stored; \
        for (int j = 0; j < N; ++j) stored[j] = -(j < wanted); \
        for (int p = 0; p < N; ++p) STORE((WHOLE *)(to + p * width), stored, (WHOLE)v[p]); \
    }
TURN(turn_words, words, whole_words, 8, TB_TURN_8, __builtin_ia32_maskstored256)
TURN(turn_long_words, long_words, whole_long_words, 4, TB_TURN_4, __builtin_ia32_maskstoreq256)
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
        const int64_t width = r->width, full = r->columns < r->panels * r->step || width > r->step ? r->panels - 1 : r->panels; \
        const int64_t last = r->columns - (r->panels - 1) * r->step; \
        const int64_t band = r->panels > BAND ? BAND : 1;  /* lines of so many panels would push each other out of cache */ \
        for (int64_t p0 = 0; p0 < k; p0 += band) { \
            const int64_t end = least(p0 + band, k); \
            for (int64_t q = 0; q < full; ++q) { \
                TB_T *line = to + q * r->apart + p0 * width; \
                const S *given = from + q * r->step + p0 * step_p; \
                for (int64_t p = p0; p < end; ++p, line += width, given += step_p) { \
                    if (band == 1) \
                        for (int64_t j = 0; j < width; j += LANES) __builtin_prefetch(given + LINES_AHEAD * step_p + j); \
                    switch (width) { \
                        case 4 * LANES: NAME##_line(line, given, 4 * LANES, 4 * LANES); break; \
                        case 2 * LANES: NAME##_line(line, given, 2 * LANES, 2 * LANES); break; \
                        case 14: NAME##_line(line, given, 14, 14); break; \
                        case 6: NAME##_line(line, given, 6, 6); break; \
                        default: NAME##_line(line, given, width, width); \
                    } \
                } \
            } \
            if (full < r->panels) \
                for (int64_t p = p0; p < end; ++p) \
                    NAME##_line(to + full * r->apart + p * width, from + full * r->step + p * step_p, last, width); \
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
                    for (int j = 0; j < columns; ++j) __builtin_prefetch(first + j * step_j + COPY_AHEAD * LINE); \
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
#endif
