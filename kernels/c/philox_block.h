// SPDX-License-Identifier: Apache-2.0
// philox_block.h — the random words of positions side by side: those of philox.h, several at a time
//
// A lane of 64 bits holds 32 of the counter in its lower half. The product of two lower halves fills it; what the upper
// half holds otherwise is of no account, so that a round is six instructions. Compilers that make vectors of the loop
// over tb_philox pack and unpack halves in every round, which takes three times as long.
#ifndef TB_PHILOX_BLOCK_H
#define TB_PHILOX_BLOCK_H

#include "philox.h"
#include "vector.h"

#if defined(__AVX2__) && !defined(__clang__)
#define TB_PHILOX_LANES (TB_VECTOR / 8)
typedef tb_u64 tb_lanes_u64 __attribute__((vector_size(TB_VECTOR)));
typedef tb_i64 tb_lanes_i64 __attribute__((vector_size(TB_VECTOR)));
typedef tb_i32 tb_lanes_i32 __attribute__((vector_size(TB_VECTOR)));
typedef tb_u32 tb_lanes_words __attribute__((vector_size(TB_VECTOR / 2), aligned(4), may_alias));

TB_FN tb_lanes_u64 tb_low_product(tb_lanes_u64 a, tb_lanes_u64 b) {
#if defined(__AVX512F__)
    return (tb_lanes_u64)__builtin_ia32_pmuludq512_mask((tb_lanes_i32)a, (tb_lanes_i32)b, (tb_lanes_i64){0}, -1);
#else
    return (tb_lanes_u64)__builtin_ia32_pmuludq256((tb_lanes_i32)a, (tb_lanes_i32)b);
#endif
}

// The first `count` words of the position in each lane: word k goes to words[k * apart].
TB_FN void tb_philox_lanes(tb_u32 *words, int apart, int count, tb_lanes_u64 index, tb_u64 draw, tb_u64 key) {
    const tb_lanes_u64 none = {0}, first = none + 0xD2511F53u, second = none + 0xCD9E8D57u;
    tb_lanes_u64 c[4] = {index, index >> 32, none + draw, none + (draw >> 32)};
    tb_u32 k0 = (tb_u32)key, k1 = (tb_u32)(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const tb_lanes_u64 p0 = tb_low_product(c[0], first), p1 = tb_low_product(c[2], second);
        c[0] = (p1 >> 32) ^ c[1] ^ (tb_u64)k0;
        c[2] = (p0 >> 32) ^ c[3] ^ (tb_u64)k1;
        c[1] = p1;
        c[3] = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int k = 0; k < count; ++k)
        *(tb_lanes_words *)(words + k * apart) = __builtin_convertvector(c[k], tb_lanes_words);
}
#endif

// The first `count` words of the n positions from `index` on: word k of position index + j is words[k * apart + j]. What
// lies between n and the next multiple of 8 is overwritten too.
TB_FN void tb_philox_block(tb_u32 *words, int apart, int count, tb_u64 index, int n, tb_u64 draw, tb_u64 key) {
#if defined(TB_PHILOX_LANES)
    tb_lanes_u64 lane;
    for (int l = 0; l < TB_PHILOX_LANES; ++l) lane[l] = (tb_u64)l;
    for (int j = 0; j < n; j += TB_PHILOX_LANES)
        tb_philox_lanes(words + j, apart, count, lane + (index + (tb_u64)j), draw, key);
#else
    for (int j = 0; j < n; ++j) {
        const tb_words r = tb_philox(index + (tb_u64)j, draw, key);
        const tb_u32 all[4] = {r.x, r.y, r.z, r.w};
        for (int k = 0; k < count; ++k) words[k * apart + j] = all[k];
    }
#endif
}

// What tb_philox_block has left of position j.
TB_FN tb_words tb_words_at(const tb_u32 *words, int apart, int count, int j) {
    tb_words r = {words[j], 0, 0, 0};
    if (count > 1) r.y = words[apart + j];
    if (count > 2) {
        r.z = words[2 * apart + j];
        r.w = words[3 * apart + j];
    }
    return r;
}

#endif
