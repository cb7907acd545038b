// SPDX-License-Identifier: Apache-2.0
// conv.h — vectors, tiles and element types of the convolution kernels
//
// Macros    TB_T the type in which products add up; TB_S that of operands, TB_R that of results in memory; TB_WIDE(x)
//           from TB_S, TB_NARROW(x) to TB_R; TB_INDEX integers of the size of TB_T; TB_PLAIN defined where all three are
//           the same.
//           TB_PLANES: products run on the matrix unit of amx.h.
// Tiles     TILE maps by WIDTH places: as many sums as stay in registers, MR maps by NV vectors, or a block of the unit.
#ifndef TB_CONV_H
#define TB_CONV_H

#include "amx.h"
#include "finite.h"
#include "runtime.h"
#include "slots.h"
#include "tail.h"
#include "tile_sizes.h"
#include "vector.h"
enum {
    LANES = TB_VECTOR / (int)sizeof(TB_T),
#if defined(TB_PLANES)
    MR = HALF,
    NV = EDGE / LANES,
    TILE = EDGE,
#else
    MR = CONV_MAPS,
    NV = CONV_VECTORS,
    TILE = MR,
#endif
    WIDTH = NV * LANES,
    LINE = 64 / (int)sizeof(TB_T),  // elements of a cache line
};

typedef TB_T vec __attribute__((vector_size(TB_VECTOR), aligned(sizeof(TB_T)), may_alias));
#define INLINE static inline __attribute__((always_inline))

// A value in all lanes; gcc makes it one load that fills a vector.
INLINE vec spread(TB_T x) { return x - (vec){0}; }

// sum[j] += *x * y[j] for V vectors: a row of a tile. Where all registers are taken, gcc would load the numbers of other rows
// first and keep sums in memory; there the instructions of a row are one.
#if defined(__FMA__) && !MANY_REGISTERS && !defined(TB_PLANES)
#define ROW_OF_3(SPREAD, PLUS) \
    __asm__(SPREAD " %7, %3\n\t" PLUS " %4, %3, %0\n\t" PLUS " %5, %3, %1\n\t" PLUS " %6, %3, %2" \
            : "+x"(sum[0]), "+x"(sum[1]), "+x"(sum[2]), "=&x"(all) : "x"(y[0]), "x"(y[1]), "x"(y[2]), "m"(*x))
INLINE void add_row(vec *sum, const TB_T *x, const vec *y, int vectors) {
    vec all;
    if (vectors == 3) {
        if (sizeof(TB_T) == 4) ROW_OF_3("vbroadcastss", "vfmadd231ps");
        else ROW_OF_3("vbroadcastsd", "vfmadd231pd");
        return;
    }
    all = spread(*x);
    UNROLL for (int j = 0; j < vectors; ++j) sum[j] += all * y[j];
}
#define ADD_ROW(SUM, X, Y, V) add_row(SUM, X, Y, V)
#else
#define ADD_ROW(SUM, X, Y, V) { \
        const vec all = spread(*(X)); \
        UNROLL for (int j = 0; j < V; ++j) SUM[j] += all * Y[j]; \
    }
#endif

INLINE vec load(const TB_S *from) {
#ifdef TB_PLAIN
    return *(const vec *)from;
#else
    vec v;
    for (int l = 0; l < LANES; ++l) v[l] = TB_WIDE(from[l]);
    return v;
#endif
}

INLINE void store(TB_R *to, vec v) {
#ifdef TB_PLAIN
    *(vec *)to = v;
#else
    for (int l = 0; l < LANES; ++l) to[l] = TB_NARROW(v[l]);
#endif
}

// Squares of `rows` vectors and as many lanes, beside each other, each transposed.
INLINE void transpose_rows(vec *r, int rows) {
    typedef TB_INDEX mask __attribute__((vector_size(TB_VECTOR)));
    mask lane;
    UNROLL for (int l = 0; l < LANES; ++l) lane[l] = l;
    UNROLL for (int h = rows / 2; h >= 1; h /= 2) {
        const mask low = lane + ((mask)((lane & h) != 0) & (LANES - h)), high = low + h;
        UNROLL for (int i = 0; i < rows; ++i) {
            if (i & h) continue;
            const vec a = r[i], b = r[i + h];
            r[i] = TB_CHOSEN(a, b, low);
            r[i + h] = TB_CHOSEN(a, b, high);
        }
    }
}

// A square of LANES vectors, transposed.
INLINE void transpose(vec *r) { transpose_rows(r, LANES); }

INLINE int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
INLINE int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
// Rounded up to an odd number of cache lines, so that neighbours do not fall into the same sets of a cache.
INLINE int64_t apart(int64_t elements) { return (ceil_div(elements, LINE) | 1) * LINE; }

// Operands: the first words of `size` say of each its number among the pointers, and bytes to add.
enum {
    IN,       // images, or errors when backward
    FILTERS,  // or the errors of dF
    RESULT,     // results
    PACKED,   // the filters as tiles need them; for dF the sums
    OWN,      // what tasks take for themselves
    DATA, PRODUCTS,  // stages that are shared
    PLACES,
    SIZES = 2 * PLACES,
};
#define TB_PLACE(NAME) ((void *)((char *)ptr[size[2 * (NAME)]] + size[2 * (NAME) + 1]))

// Operands of a tail, if there is one, come after the two inputs.
#define TB_FINISH(PLACES_OF_A_MAP, MAP, MAPS, PLACE, COUNT) \
    tb_run_tail(stride, ptr + 2, scalar, TB_PLACE(RESULT), sizeof(TB_R), PLACES_OF_A_MAP, MAP, MAPS, PLACE, COUNT)

#include "conv_strided.h"

#endif
