// SPDX-License-Identifier: Apache-2.0
// vmath_lanes.h — functions with a form for most arguments and one for all: the second only where a vector needs it
//
// A loop cannot branch for one of its lanes: it would compute both forms for each. gcc can call a function for a vector
// of numbers instead (`simd`, the vector function ABI), and that one looks whether any of them is far. Such functions
// are compiled once a library, for the widest vectors; narrower ones and single numbers go through the same operations,
// so results do not depend on the company that a number is in. Where there is no such call, a loop computes both. Pairs of
// numbers, and square roots, are called for likewise.
#ifndef TB_VMATH_LANES_H
#define TB_VMATH_LANES_H

// tb_name_S for S in f32, f64 from tb_near_angle_S, tb_far_angle_S, which take |x|, and tb_name_of_S, which ends it.
#define TB_NEAR_AND_FAR(name, S, F, T, U)                                  \
    TB_NEAR_OR_FAR(name, near, S, T, U)                                    \
    TB_NEAR_OR_FAR(name, far, S, T, U)                                     \
    TB_CALLS_##S(name, F, T, U)
#define TB_NEAR_OR_FAR(name, form, S, T, U)                                \
    TB_FN T tb_##name##_##form##_##S(T x) {                                \
        U n;                                                               \
        T low;                                                             \
        T r = tb_##form##_angle_##S(tb_abs_##S(x), &n, &low);              \
        return tb_##name##_of_##S(x, r, low, n);                           \
    }

// tb_name_S of two numbers from tb_name_near_S(x, y, &size), which holds where the size is below the limit (not where it is
// a NaN), and tb_name_far_S, which may branch and call: TB_PAIR_CALLS_S(name, T, limit).

#if __GNUC__ >= 8 && !defined(__clang__) && !defined(__cplusplus) && defined(__x86_64__) && defined(__ELF__)
#if defined(__AVX2__) && defined(__FMA__)
#define TB_CALLS_VECTORS
#endif
#endif

#ifdef TB_CALLS_VECTORS

#define TB_HIDDEN __attribute__((visibility("hidden")))
typedef float tb_lanes4_f32 __attribute__((vector_size(16)));
typedef float tb_lanes8_f32 __attribute__((vector_size(32)));
typedef double tb_lanes2_f64 __attribute__((vector_size(16)));
typedef double tb_lanes4_f64 __attribute__((vector_size(32)));
#ifdef __AVX512F__
typedef float tb_lanes16_f32 __attribute__((vector_size(64)));
typedef double tb_lanes8_f64 __attribute__((vector_size(64)));
#define TB_IS_FAR(I, a, near) __builtin_ia32_cmpp##I##512_mask(a, near, 5, -1, 4)
#define TB_CALLS_f32(name, F, T, U) \
    TB_CALL_WIDE(name, f32, F, T, 16, e, s) TB_CALL_PART(name, f32, T, 8, d, 16) TB_CALL_PART(name, f32, T, 4, b, 16)
#define TB_CALLS_f64(name, F, T, U) \
    TB_CALL_WIDE(name, f64, F, T, 8, e, d) TB_CALL_PART(name, f64, T, 4, d, 8) TB_CALL_PART(name, f64, T, 2, b, 8)
#define TB_PAIR_CALLS_f32(name, T, limit) \
    TB_PAIR_WIDE(name, f32, T, limit, 16, e, s) TB_PAIR_PART(name, f32, T, 8, d, 16) TB_PAIR_PART(name, f32, T, 4, b, 16)
#define TB_PAIR_CALLS_f64(name, T, limit) \
    TB_PAIR_WIDE(name, f64, T, limit, 8, e, d) TB_PAIR_PART(name, f64, T, 4, d, 8) TB_PAIR_PART(name, f64, T, 2, b, 8)
#else
#define TB_IS_FAR(I, a, near) __builtin_ia32_movmskp##I##256(__builtin_ia32_cmpp##I##256(a, near, 5))
#define TB_CALLS_f32(name, F, T, U) TB_CALL_WIDE(name, f32, F, T, 8, d, s) TB_CALL_PART(name, f32, T, 4, b, 8)
#define TB_CALLS_f64(name, F, T, U) TB_CALL_WIDE(name, f64, F, T, 4, d, d) TB_CALL_PART(name, f64, T, 2, b, 4)
#define TB_PAIR_CALLS_f32(name, T, limit) TB_PAIR_WIDE(name, f32, T, limit, 8, d, s) TB_PAIR_PART(name, f32, T, 4, b, 8)
#define TB_PAIR_CALLS_f64(name, T, limit) TB_PAIR_WIDE(name, f64, T, limit, 4, d, d) TB_PAIR_PART(name, f64, T, 2, b, 4)
#endif

// The function for N numbers, the widest vector, and for one as the first of them; gcc calls by the names of the ABI.
#define TB_CALL_WIDE(name, S, F, T, N, abi, I)                                                           \
    TB_HIDDEN T tb_##name##_call_##S(T x) __attribute__((simd("notinbranch"), const));                   \
    TB_FN T tb_##name##_##S(T x) { return tb_##name##_call_##S(x); }                                     \
    static __attribute__((noinline)) tb_lanes##N##_##S tb_##name##_rest_##S(tb_lanes##N##_##S x,         \
                                                                            tb_lanes##N##_##S near) {    \
        tb_lanes##N##_##S y;                                                                             \
        for (int i = 0; i < N; i++) {                                                                    \
            const T at = ((T *)&x)[i];                                                                   \
            const T far = tb_##name##_far_##S(at);                                                       \
            ((T *)&y)[i] = tb_abs_##S(at) < TB_NEAR_##F ? ((T *)&near)[i] : far;                         \
        }                                                                                                \
        return y;                                                                                        \
    }                                                                                                    \
    TB_HIDDEN tb_lanes##N##_##S tb_##name##_##N##_##S(tb_lanes##N##_##S x)                               \
        __asm__("_ZGV" #abi "N" #N "v_tb_" #name "_call_" #S);                                           \
    TB_HIDDEN tb_lanes##N##_##S tb_##name##_##N##_##S(tb_lanes##N##_##S x) {                             \
        tb_lanes##N##_##S a, y;                                                                          \
        for (int i = 0; i < N; i++) ((T *)&a)[i] = tb_abs_##S(((T *)&x)[i]);                             \
        for (int i = 0; i < N; i++) ((T *)&y)[i] = tb_##name##_near_##S(((T *)&x)[i]);                   \
        if (__builtin_expect(TB_IS_FAR(I, a, (tb_lanes##N##_##S){} + TB_NEAR_##F), 0))                   \
            return tb_##name##_rest_##S(x, y);                                                           \
        return y;                                                                                        \
    }                                                                                                    \
    TB_HIDDEN T tb_##name##_one_##S(T x) __asm__("tb_" #name "_call_" #S);                               \
    TB_HIDDEN T tb_##name##_one_##S(T x) { return tb_##name##_##N##_##S((tb_lanes##N##_##S){x})[0]; }

// The function for N numbers as a part of M.
#define TB_CALL_PART(name, S, T, N, abi, M)                                                              \
    TB_HIDDEN tb_lanes##N##_##S tb_##name##_##N##_##S(tb_lanes##N##_##S x)                               \
        __asm__("_ZGV" #abi "N" #N "v_tb_" #name "_call_" #S);                                           \
    TB_HIDDEN tb_lanes##N##_##S tb_##name##_##N##_##S(tb_lanes##N##_##S x) {                             \
        tb_lanes##M##_##S wide = {};                                                                     \
        __builtin_memcpy(&wide, &x, sizeof x);                                                           \
        wide = tb_##name##_##M##_##S(wide);                                                              \
        __builtin_memcpy(&x, &wide, sizeof x);                                                           \
        return x;                                                                                        \
    }

// The same of pairs; numbers that are only there to fill a vector are 0 and 1.
#define TB_PAIR_WIDE(name, S, T, limit, N, abi, I)                                                       \
    TB_HIDDEN T tb_##name##_call_##S(T x, T y) __attribute__((simd("notinbranch"), const));              \
    TB_FN T tb_##name##_##S(T x, T y) { return tb_##name##_call_##S(x, y); }                             \
    static __attribute__((noinline)) tb_lanes##N##_##S tb_##name##_rest_##S(                             \
        tb_lanes##N##_##S x, tb_lanes##N##_##S y, tb_lanes##N##_##S near, tb_lanes##N##_##S size) {      \
        for (int i = 0; i < N; i++)                                                                      \
            if (!(((T *)&size)[i] < limit)) ((T *)&near)[i] = tb_##name##_far_##S(((T *)&x)[i], ((T *)&y)[i]);\
        return near;                                                                                     \
    }                                                                                                    \
    TB_HIDDEN tb_lanes##N##_##S tb_##name##_##N##_##S(tb_lanes##N##_##S x, tb_lanes##N##_##S y)          \
        __asm__("_ZGV" #abi "N" #N "vv_tb_" #name "_call_" #S);                                          \
    TB_HIDDEN tb_lanes##N##_##S tb_##name##_##N##_##S(tb_lanes##N##_##S x, tb_lanes##N##_##S y) {        \
        tb_lanes##N##_##S size, z;                                                                       \
        for (int i = 0; i < N; i++)                                                                      \
            ((T *)&z)[i] = tb_##name##_near_##S(((T *)&x)[i], ((T *)&y)[i], (T *)&size + i);             \
        if (__builtin_expect(TB_IS_FAR(I, size, (tb_lanes##N##_##S){} + limit), 0))                      \
            return tb_##name##_rest_##S(x, y, z, size);                                                  \
        return z;                                                                                        \
    }                                                                                                    \
    TB_HIDDEN T tb_##name##_one_##S(T x, T y) __asm__("tb_" #name "_call_" #S);                          \
    TB_HIDDEN T tb_##name##_one_##S(T x, T y) {                                                          \
        tb_lanes##N##_##S a = {x}, b = (tb_lanes##N##_##S){} + 1;                                        \
        b[0] = y;                                                                                        \
        return tb_##name##_##N##_##S(a, b)[0];                                                           \
    }
#define TB_PAIR_PART(name, S, T, N, abi, M)                                                              \
    TB_HIDDEN tb_lanes##N##_##S tb_##name##_##N##_##S(tb_lanes##N##_##S x, tb_lanes##N##_##S y)          \
        __asm__("_ZGV" #abi "N" #N "vv_tb_" #name "_call_" #S);                                          \
    TB_HIDDEN tb_lanes##N##_##S tb_##name##_##N##_##S(tb_lanes##N##_##S x, tb_lanes##N##_##S y) {        \
        tb_lanes##M##_##S a = {}, b = a + 1;                                                             \
        __builtin_memcpy(&a, &x, sizeof x);                                                              \
        __builtin_memcpy(&b, &y, sizeof y);                                                              \
        a = tb_##name##_##M##_##S(a, b);                                                                 \
        __builtin_memcpy(&x, &a, sizeof x);                                                              \
        return x;                                                                                        \
    }

// Roots of whole vectors of AVX-512, from its estimate of their inverse; those that are too small for an exact rest, and
// what is no positive number, are for the instruction, as narrower vectors are.
#ifdef __AVX512F__
#define TB_CALLS_ROOTS
#define TB_CALL_ROOTS                                                                                    \
    TB_HIDDEN double tb_sqrt_call_f64(double x) __attribute__((simd("notinbranch"), const));             \
    TB_FN double tb_sqrt_f64(double x) { return tb_sqrt_call_f64(x); }                                   \
    TB_HIDDEN tb_lanes8_f64 tb_sqrt_8_f64(tb_lanes8_f64 x) __asm__("_ZGVeN8v_tb_sqrt_call_f64");         \
    TB_HIDDEN tb_lanes8_f64 tb_sqrt_8_f64(tb_lanes8_f64 x) {                                             \
        tb_lanes8_f64 y = __builtin_ia32_rsqrt14pd512_mask(x, x, -1);                                    \
        const tb_u8 large = __builtin_ia32_cmppd512_mask(x, (tb_lanes8_f64){} + 0x1p-900, 13, -1, 4);    \
        const tb_u8 near = __builtin_ia32_cmppd512_mask(x, (tb_lanes8_f64){} + TB_INF_F64, 1, large, 4); \
        for (int i = 0; i < 8; i++)                                                                      \
            ((double *)&y)[i] = tb_root_near_f64(((double *)&x)[i], ((double *)&y)[i]);                  \
        if (__builtin_expect(near != 255, 0)) return __builtin_ia32_sqrtpd512_mask(x, x, -1, 4);         \
        return y;                                                                                        \
    }                                                                                                    \
    TB_HIDDEN double tb_sqrt_one_f64(double x) __asm__("tb_sqrt_call_f64");                              \
    TB_HIDDEN double tb_sqrt_one_f64(double x) { return tb_root_f64(x); }                                \
    TB_HIDDEN tb_lanes4_f64 tb_sqrt_4_f64(tb_lanes4_f64 x) __asm__("_ZGVdN4v_tb_sqrt_call_f64");         \
    TB_HIDDEN tb_lanes4_f64 tb_sqrt_4_f64(tb_lanes4_f64 x) { return __builtin_ia32_sqrtpd256(x); }       \
    TB_HIDDEN tb_lanes2_f64 tb_sqrt_2_f64(tb_lanes2_f64 x) __asm__("_ZGVbN2v_tb_sqrt_call_f64");         \
    TB_HIDDEN tb_lanes2_f64 tb_sqrt_2_f64(tb_lanes2_f64 x) { return __builtin_ia32_sqrtpd(x); }
#endif

#else
#define TB_PAIR_CALLS_f32(name, T, limit) TB_PAIR_EITHER(name, f32, T, limit)
#define TB_PAIR_CALLS_f64(name, T, limit) TB_PAIR_EITHER(name, f64, T, limit)
#define TB_PAIR_EITHER(name, S, T, limit)                                  \
    TB_FN T tb_##name##_##S(T x, T y) {                                    \
        T size;                                                            \
        const T near = tb_##name##_near_##S(x, y, &size);                  \
        if (size < limit) return near;                                     \
        return tb_##name##_far_##S(x, y);                                  \
    }
#define TB_CALLS_f32(name, F, T, U) TB_BOTH(name, f32, F, T, U)
#define TB_CALLS_f64(name, F, T, U) TB_BOTH(name, f64, F, T, U)
#define TB_BOTH(name, S, F, T, U)                                          \
    TB_FN T tb_##name##_##S(T x) {                                         \
        const T a = tb_abs_##S(x);                                         \
        U n;                                                               \
        T low, r;                                                          \
        if (a < TB_NEAR_##F) r = tb_near_angle_##S(a, &n, &low);           \
        else r = tb_far_angle_##S(a, &n, &low);                            \
        return tb_##name##_of_##S(x, r, low, n);                           \
    }
#endif

#endif
