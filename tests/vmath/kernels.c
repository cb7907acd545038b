// SPDX-License-Identifier: Apache-2.0
// kernels.c — every function of vmath.h, half.h, inverse.h and philox_block.h as a loop over arrays: what the tests call
//
// Compiled by build.py with the flags of generated kernels, and again with others to compare the bits. C or C++.
#include "vmath.h"

#include "half.h"
#include "inverse.h"
#include "philox_block.h"
#include "wide.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LOOP1(name, OUT, IN, function)                                                    \
    void name(OUT *__restrict out, const IN *__restrict a, const IN *__restrict b, long n) { \
        (void)b;                                                                          \
        for (long i = 0; i < n; i++) out[i] = function(a[i]);                             \
    }
#define LOOP2(name, OUT, IN, function)                                                    \
    void name(OUT *__restrict out, const IN *__restrict a, const IN *__restrict b, long n) { \
        for (long i = 0; i < n; i++) out[i] = function(a[i], b[i]);                       \
    }

#define UNARY(name, exact)                            \
    LOOP1(name##_f32, float, float, tb_##name##_f32)  \
    LOOP1(name##_f64, double, double, tb_##name##_f64)
#define BINARY(name, exact)                           \
    LOOP2(name##_f32, float, float, tb_##name##_f32)  \
    LOOP2(name##_f64, double, double, tb_##name##_f64)
#include "functions.h"

#ifdef TB_CALLS_ROOTS
LOOP2(root_near_f64, double, double, tb_root_near_f64)
#endif
UNARY(sign, )
BINARY(max, )
BINARY(min, )
BINARY(mod, )
BINARY(floordiv, )

#define INTEGER(T, S)                                       \
    LOOP2(max_##S, T, T, tb_max_##S)                        \
    LOOP2(min_##S, T, T, tb_min_##S)                        \
    LOOP1(sign_##S, T, T, tb_sign_##S)                      \
    LOOP1(abs_##S, T, T, tb_abs_##S)                        \
    LOOP2(pow_##S, T, T, tb_pow_##S)                        \
    LOOP2(floordiv_##S, T, T, tb_floordiv_##S)              \
    LOOP2(mod_##S, T, T, tb_mod_##S)                        \
    LOOP1(f32_to_##S, T, float, tb_f32_to_##S)              \
    LOOP1(f64_to_##S, T, double, tb_f64_to_##S)
INTEGER(tb_i8, i8)
INTEGER(tb_i16, i16)
INTEGER(tb_i32, i32)
INTEGER(tb_i64, i64)
INTEGER(tb_u8, u8)
INTEGER(tb_u16, u16)
INTEGER(tb_u32, u32)
INTEGER(tb_u64, u64)

LOOP1(tanh_half, float, float, tb_tanh_half)
LOOP1(sigmoid_half, float, float, tb_sigmoid_half)
LOOP2(gate_half, float, float, tb_gate_half)
LOOP2(gate_f32, float, float, tb_gate_f32)

#ifdef TB_WIDE
// The count is a multiple of 32. What is stored of a load at `from` has the order of the type.
#define WIDE(name, TO, FROM, load, f, store)                                                     \
    void wide_##name(TO *out, const FROM *x, const FROM *y, long count) {                        \
        (void)y;                                                                                 \
        for (long i = 0; i < count; i += TB_WIDE) {                                              \
            tb_wide_f32 a, b;                                                                        \
            load(x + i, &a, &b);                                                                 \
            store(out + i, f(a), f(b), ((tb_u64)(out + i) & 63) == 0);                           \
        }                                                                                        \
    }
TB_FN void load_pairs(const float *from, tb_wide_f32 *a, tb_wide_f32 *b) {
    for (int i = 0; i < TB_WIDE / 2; i++) {
        (*a)[i] = from[2 * i];
        (*b)[i] = from[2 * i + 1];
    }
}
TB_FN void store_pairs(float *to, tb_wide_f32 a, tb_wide_f32 b, int past) {
    (void)past;
    for (int i = 0; i < TB_WIDE / 2; i++) {
        to[2 * i] = a[i];
        to[2 * i + 1] = b[i];
    }
}
WIDE(tanh_half, float, float, tb_wide_load_f32, tb_wide_tanh_half, tb_wide_store_f32)
WIDE(sigmoid_half, float, float, tb_wide_load_f32, tb_wide_sigmoid_half, tb_wide_store_f32)
void wide_gate_half(float *out, const float *x, const float *y, long count) {
    for (long i = 0; i < count; i += TB_WIDE) {
        tb_wide_f32 a, b, c, d;
        tb_wide_load_f32(x + i, &a, &b);
        tb_wide_load_f32(y + i, &c, &d);
        tb_wide_store_f32(out + i, tb_wide_gate_half(a, c), tb_wide_gate_half(b, d), 0);
    }
}
WIDE(f16_to_f32, float, tb_u16, tb_wide_load_f16, , tb_wide_store_f32)
WIDE(f32_to_f16, tb_u16, float, tb_wide_load_f32, , tb_wide_store_f16)
WIDE(bf16_to_f32, float, tb_u16, tb_wide_load_bf16, , store_pairs)
WIDE(f32_to_bf16, tb_u16, float, load_pairs, , tb_wide_store_bf16)
void wide_has(void) {}
#endif

LOOP1(f16_to_f32, float, tb_f16, tb_f16_to_f32)
LOOP1(f32_to_f16, tb_f16, float, tb_f32_to_f16)
LOOP1(bf16_to_f32, float, tb_bf16, tb_bf16_to_f32)
LOOP1(f32_to_bf16, tb_bf16, float, tb_f32_to_bf16)
void load_f16(float *__restrict to, const tb_f16 *__restrict from, int m) { tb_load_f16(to, from, m); }
void store_f16(tb_f16 *__restrict to, const float *__restrict from, int m) { tb_store_f16(to, from, m); }
void load_bf16(float *__restrict to, const tb_bf16 *__restrict from, int m) { tb_load_bf16(to, from, m); }
void store_bf16(tb_bf16 *__restrict to, const float *__restrict from, int m) { tb_store_bf16(to, from, m); }
void read_f16(float *__restrict to, const tb_f16 *__restrict from, int m) { tb_read_f16(to, from, m); }
void write_f16(tb_f16 *__restrict to, const float *__restrict from, int m) { tb_write_f16(to, from, m); }
void read_bf16(float *__restrict to, const tb_bf16 *__restrict from, int m) { tb_read_bf16(to, from, m); }
void write_bf16(tb_bf16 *__restrict to, const float *__restrict from, int m) { tb_write_bf16(to, from, m); }

#define RANDOM(name, T)                                                                          \
    void name(T *__restrict out, tb_u64 first, tb_u64 draw, tb_u64 key, long n) {                \
        for (long i = 0; i < n; i++) out[i] = tb_##name(tb_philox(first + (tb_u64)i, draw, key)); \
    }
RANDOM(randbits, tb_u32)
RANDOM(uniform_f32, float)
RANDOM(uniform_f64, double)
RANDOM(normal_f32, float)
RANDOM(normal_f64, double)
void philox(tb_u32 *out, tb_u64 index, tb_u64 draw, tb_u64 key) {
    tb_words words = tb_philox(index, draw, key);
    out[0] = words.x;
    out[1] = words.y;
    out[2] = words.z;
    out[3] = words.w;
}
void philox_block(tb_u32 *out, int count, tb_u64 index, int n, tb_u64 draw, tb_u64 key) {
    tb_philox_block(out, n, count, index, n, draw, key);
}
void over_f32(float *__restrict out, const float *__restrict a, float c, int n) {
    const tb_inverse inverse = tb_inverse_f32(c);
    for (int i = 0; i < n; i++) out[i] = tb_over_f32(a[i], c, inverse);
}

#ifdef __cplusplus
}
#endif
