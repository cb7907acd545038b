// SPDX-License-Identifier: Apache-2.0
// block_vectors.h — vectors of numbers to compute with, from elements and back
//
// Part of files that the host compiles for a type, with its macros: TB_X and TB_W, the types of elements and of what
// they are read as, TB_N, integers as wide as TB_W, TB_READ and TB_WRITE, which move blocks between TB_X and TB_W.
//
// Vectors are as wide as the processor's, or half of its widest with TB_NARROW: compilers take wider ones apart number by
// number. With TB_SIZE, the bytes of a TB_W, TB_TURN turns a square of vectors, and the host can ask for lanes.
#include "kernel.h"

#if defined(__AVX512F__) && !TB_NARROW
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define LANES (VECTOR_BYTES / (int)sizeof(TB_W))

typedef TB_W vec __attribute__((vector_size(VECTOR_BYTES)));
// A vector at any address.
typedef TB_W loose __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(TB_W) < 4 ? sizeof(TB_W) : 4), may_alias));
typedef TB_N mask __attribute__((vector_size(VECTOR_BYTES)));

#ifdef TB_SIZE
#if VECTOR_BYTES == 16 * TB_SIZE
#define TB_TURN(T, v) TB_TURN_16(T, v)
#elif VECTOR_BYTES == 8 * TB_SIZE
#define TB_TURN(T, v) TB_TURN_8(T, v)
#elif VECTOR_BYTES == 4 * TB_SIZE
#define TB_TURN(T, v) TB_TURN_4(T, v)
#else
#define TB_TURN(T, v) TB_TURN_2(T, v)
#endif
int tb_block_lanes(void) { return LANES; }
#endif

TB_FN tb_i64 lower(tb_i64 x, tb_i64 y) { return x < y ? x : y; }

TB_FN vec load_some(const TB_X *x, int m) {
    TB_W buffer[LANES], padded[LANES];
    const TB_W *const from = TB_READ(buffer, x, m);
    if (m == LANES) return *(const loose *)from;
    return *(const loose *)tb_pad(padded, from, m * (int)sizeof(TB_W), sizeof padded);
}

// Halves that are not a vector of them are read and written by one function each: compilers take long over its text.
#define BY_CALL(m) (sizeof(TB_X) != sizeof(TB_W) && !(__builtin_constant_p(m) && (m) == LANES))

static __attribute__((noinline, unused)) vec load_part(const TB_X *x, int m) { return load_some(x, m); }

// m elements as a vector, zeros behind them.
TB_FN vec load(const TB_X *x, int m) { return BY_CALL(m) ? load_part(x, m) : load_some(x, m); }

// A vector past the cache, to a multiple of its size.
TB_FN void past(TB_W *to, vec v) {
#if VECTOR_BYTES == 64
    tb_past1(to, &v);
#elif VECTOR_BYTES == 32 && defined(__AVX__)
    tb_past_half(to, &v);
#else
    *(loose *)to = v;
#endif
}

// The first m numbers of a vector to their place, as they are; all of them past the cache if so wanted.
TB_FN void store_wide(TB_W *to, vec v, int m, tb_i64 streams) {
    if (m == LANES) {
        if (streams && ((unsigned long)to & (sizeof v - 1)) == 0) past(to, v);
        else *(loose *)to = v;
        return;
    }
    TB_W from[LANES];
    *(loose *)from = v;
    tb_unpad(to, from, m * (int)sizeof(TB_W), sizeof from);
}

TB_FN void store_some(TB_X *to, vec v, int m) {
    TB_W from[LANES];
    *(loose *)from = v;
    TB_WRITE(to, from, m, 0);
}

static __attribute__((noinline, unused)) void store_part(TB_X *to, vec v, int m) { store_some(to, v, m); }

// The same as elements.
TB_FN void store(TB_X *to, vec v, int m, tb_i64 streams) {
    if (sizeof(TB_X) == sizeof(TB_W)) store_wide((TB_W *)to, v, m, streams);
    else if (BY_CALL(m)) store_part(to, v, m);
    else store_some(to, v, m);
}
