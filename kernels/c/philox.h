// SPDX-License-Identifier: Apache-2.0
// philox.h — random numbers from a counter: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011), and uniform and normal numbers made of its words
//
// The counter is (position in the array, number of the draw), so any element can be made anywhere in any order.
#ifndef TB_PHILOX_H
#define TB_PHILOX_H

#include "basic.h"

typedef struct { tb_u32 x, y, z, w; } tb_words;

TB_FN tb_words tb_philox(tb_u64 index, tb_u64 draw, tb_u64 key) {
    tb_u32 c0 = (tb_u32)index, c1 = (tb_u32)(index >> 32), c2 = (tb_u32)draw, c3 = (tb_u32)(draw >> 32);
    tb_u32 k0 = (tb_u32)key, k1 = (tb_u32)(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const tb_u64 p0 = (tb_u64)c0 * 0xD2511F53u, p1 = (tb_u64)c2 * 0xCD9E8D57u;
        c0 = (tb_u32)(p1 >> 32) ^ c1 ^ k0;
        c2 = (tb_u32)(p0 >> 32) ^ c3 ^ k1;
        c1 = (tb_u32)p1;
        c3 = (tb_u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    tb_words words = {c0, c1, c2, c3};
    return words;
}

TB_FN tb_u32 tb_randbits(tb_u64 index, tb_u64 draw, tb_u64 key) { return tb_philox(index, draw, key).x; }

TB_FN double tb_53_bits(tb_u32 high, tb_u32 low) { return (double)(high >> 5) * 67108864.0 + (double)(low >> 6); }

TB_FN float tb_uniform_f32(tb_u64 index, tb_u64 draw, tb_u64 key) {
    return (float)(tb_i32)(tb_philox(index, draw, key).x >> 8) * 0x1p-24f;
}
TB_FN double tb_uniform_f64(tb_u64 index, tb_u64 draw, tb_u64 key) {
    const tb_words r = tb_philox(index, draw, key);
    return tb_53_bits(r.x, r.y) * 0x1p-53;
}

// Box and Muller, "A note on the generation of random normal deviates", 1958
TB_FN float tb_normal_f32(tb_u64 index, tb_u64 draw, tb_u64 key) {
    const tb_words r = tb_philox(index, draw, key);
    const float u = ((float)(tb_i32)(r.x >> 8) + 1.0f) * 0x1p-24f, v = (float)(tb_i32)(r.y >> 8) * 0x1p-24f;
    return tb_sqrt_f32(-2.0f * tb_log_f32(u)) * tb_cos_f32(6.28318531f * v);
}
TB_FN double tb_normal_f64(tb_u64 index, tb_u64 draw, tb_u64 key) {
    const tb_words r = tb_philox(index, draw, key);
    const double u = (tb_53_bits(r.x, r.y) + 1.0) * 0x1p-53, v = tb_53_bits(r.z, r.w) * 0x1p-53;
    return tb_sqrt_f64(-2.0 * tb_log_f64(u)) * tb_cos_f64(6.283185307179586 * v);
}

#endif
