// SPDX-License-Identifier: Apache-2.0
// block_vectors.h — vectors of numbers to compute with, from elements and back
//
// Part of files that the host compiles for a type, with its macros: TB_X and TB_W, the types of elements and of what
// they are read as, TB_N, integers as wide as TB_W, TB_READ and TB_WRITE, which move blocks between TB_X and TB_W.
#include "kernel.h"

#define LANES (64 / (int)sizeof(TB_W))

typedef TB_W vec __attribute__((vector_size(64)));
typedef TB_W loose __attribute__((vector_size(64), aligned(4), may_alias));  // a vector at any address
typedef TB_N mask __attribute__((vector_size(64)));

TB_FN tb_i64 lower(tb_i64 x, tb_i64 y) { return x < y ? x : y; }

// m elements as a vector; what is in the lanes beyond does not matter.
TB_FN vec load(const TB_X *x, int m) {
    TB_W buffer[LANES], padded[LANES];
    const TB_W *const from = TB_READ(buffer, x, m);
    if (m == LANES) return *(const loose *)from;
    return *(const loose *)tb_pad(padded, from, m * (int)sizeof(TB_W), sizeof padded);
}

// The first m numbers of a vector to their place; all of them past the cache if so wanted.
TB_FN void store(TB_X *to, vec v, int m, tb_i64 streams) {
    if (sizeof(TB_X) == sizeof(TB_W) && m == LANES) {
        if (streams && ((unsigned long)to & 63) == 0) tb_past1(to, &v);
        else *(loose *)to = v;
        return;
    }
    TB_W from[LANES];
    *(loose *)from = v;
    TB_WRITE(to, from, m, 0);
}
