// SPDX-License-Identifier: Apache-2.0
// kernel.h — what generated kernels share beside the vector maths: scalars, stores, and the op table's
// few functions that are expressions of others
//
// Included by every generated kernel: no system header, little to parse.
#ifndef TB_KERNEL_H
#define TB_KERNEL_H

#include "vmath.h"
#include "half.h"
#include "square.h"
#include "philox.h"

// A scalar argument is 8 bytes: a double, or an integer.
TB_FN double tb_word_double(tb_i64 word) { return tb_from_bits_f64((tb_u64)word); }
TB_FN tb_i64 tb_word_tb_i64(tb_i64 word) { return word; }
TB_FN tb_i64 tb_double_word(double x) { return (tb_i64)tb_bits_f64(x); }

#define TB_LOWEST_f32 (-TB_INF_F32)
#define TB_HIGHEST_f32 TB_INF_F32
#define TB_LOWEST_f64 (-TB_INF_F64)
#define TB_HIGHEST_f64 TB_INF_F64
#define TB_LOWEST_i8 (-128)
#define TB_HIGHEST_i8 127
#define TB_LOWEST_i16 (-32768)
#define TB_HIGHEST_i16 32767
#define TB_LOWEST_i32 (-2147483647 - 1)
#define TB_HIGHEST_i32 2147483647
#define TB_LOWEST_i64 (-9223372036854775807LL - 1)
#define TB_HIGHEST_i64 9223372036854775807LL
#define TB_LOWEST_u8 0
#define TB_HIGHEST_u8 255
#define TB_LOWEST_u16 0
#define TB_HIGHEST_u16 65535
#define TB_LOWEST_u32 0
#define TB_HIGHEST_u32 4294967295u
#define TB_LOWEST_u64 0
#define TB_HIGHEST_u64 18446744073709551615ull

#ifndef TB_CUDA
#include "turn.h"

// The bits of `streams`: how a kernel goes about memory beyond the caches, as tensorbackend/backends/caches.py has them.
#define TB_STREAM_AHEAD 1
#define TB_STREAM_PAST 2
#define TB_STREAM_NEXT 4

// Additions by the units that multiply, for kernels that say TB_ONE first; compilers must not know the number.
#if defined(__FMA__)
#define TB_ONE \
    const double one = *(const volatile double *)&(const double){1}; \
    const float one_f = (float)one; \
    (void)one_f
#define TB_PLUS_f32(x, y) __builtin_fmaf(x, one_f, y)
#define TB_LESS_f32(x, y) __builtin_fmaf(x, one_f, -(y))
#define TB_PLUS_f64(x, y) __builtin_fma(x, one, y)
#define TB_LESS_f64(x, y) __builtin_fma(x, one, -(y))
#else
#define TB_ONE
#define TB_PLUS_f32(x, y) ((x) + (y))
#define TB_LESS_f32(x, y) ((x) - (y))
#define TB_PLUS_f64(x, y) ((x) + (y))
#define TB_LESS_f64(x, y) ((x) - (y))
#endif

// Asks for what is read some blocks later: processors by themselves stop at the end of a page, and look ahead too
// little where much is computed. An address beyond the end is no error.
TB_FN void tb_prefetch(const void *from, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch((const char *)from + i);
}

// Stores past the cache of N lines, in a straight line, or of half of one; addresses are multiples of 64, or of 32.
#if defined(__clang__)
#define TB_MOVE_PAST(SIZE, to, x) __builtin_nontemporal_store(x, to)
#else
#define TB_MOVE_PAST(SIZE, to, x) __builtin_ia32_movntps##SIZE((float *)(to), x)
#endif
#if defined(__AVX__)
#define TB_PAST 1
TB_FN void tb_past_half(void *to, const void *from) {
    typedef float half __attribute__((vector_size(32)));
    TB_MOVE_PAST(256, (half *)to, *(const half *)from);
}
#endif
#if defined(__AVX512F__)
TB_FN void tb_past1(void *to, const void *from) {
    typedef float line __attribute__((vector_size(64)));
    TB_MOVE_PAST(512, (line *)to, *(const line *)from);
}
#elif defined(__AVX__)
TB_FN void tb_past1(void *to, const void *from) {
    tb_past_half(to, from);
    tb_past_half((char *)to + 32, (const char *)from + 32);
}
#else
#define TB_PAST 0
TB_FN void tb_past1(void *to, const void *from) { __builtin_memcpy(to, from, 64); }
#endif
TB_FN void tb_past2(void *to, const void *from) { tb_past1(to, from); tb_past1((char *)to + 64, (const char *)from + 64); }
TB_FN void tb_past4(void *to, const void *from) { tb_past2(to, from); tb_past2((char *)to + 128, (const char *)from + 128); }

// The same for any number of bytes; short blocks are best. A destination that is not aligned to 64 is copied plainly.
// It is to stay a loop: Zen waited for the stores of a block whose lines were read in a straight line right after them,
// and maps took up to twice as long.
TB_FN void tb_stream(void *to, const void *from, int bytes) {
    char *o = (char *)to;
    const char *x = (const char *)from;
    int i = 0;
#if TB_PAST
    if (((unsigned long)o & 63) == 0) {
        for (; i + 256 <= bytes; i += 256) tb_past4(o + i, x + i);
        for (; i + 64 <= bytes; i += 64) tb_past1(o + i, x + i);
    }
#endif
    if (i < bytes) __builtin_memcpy(o + i, x + i, (unsigned long)(bytes - i));
}
// Whether a vector is a whole line: what a map has computed then leaves for the line at once, past the caches or not.
#if defined(__AVX512F__)
#define TB_WHOLE_LINES 1
#else
#define TB_WHOLE_LINES 0
#endif
// A line of results to its place. What waits for memory anyway is out of the way of what does not. In vectors of the
// processor, which never lie in memory before: as a memcpy they would, since compilers take two of half the length.
TB_FN void tb_leave(void *to, const void *from, int past) {
#if defined(__AVX512F__)
    typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));
#else
    typedef float vector __attribute__((vector_size(32), aligned(4), may_alias));
#endif
    if (__builtin_expect(past, 0)) {
        tb_past1(to, from);
        return;
    }
    for (unsigned long i = 0; i < 64 / sizeof(vector); ++i) ((vector *)to)[i] = ((const vector *)from)[i];
}
// A block of results to its place, past the cache if so wanted.
TB_FN void tb_put_f32(float *to, const float *from, int m, tb_i64 past) {
    if (past) tb_stream(to, from, m * 4);
    else __builtin_memcpy(to, from, (unsigned long)m * 4);
}
TB_FN void tb_put_f64(double *to, const double *from, int m, tb_i64 past) {
    if (past) tb_stream(to, from, m * 8);
    else __builtin_memcpy(to, from, (unsigned long)m * 8);
}
TB_FN void tb_stream_end(tb_i64 streams) {
#if defined(__SSE__)
    if (streams & TB_STREAM_PAST) __builtin_ia32_sfence();
#else
    (void)streams;
#endif
}

// In a loop: its rounds follow each other, although they could be one of vectors.
#define TB_ONE_BY_ONE __asm__ volatile("")

// Asks for 64 elements of 1, 2, 4 or 8 bytes so many bytes ahead, into the first-level cache (3) or the second-level (2).
#define TB_FETCHES(NAME, AHEAD, LEVEL) \
    TB_FN void NAME##1(const void *from) { __builtin_prefetch((const char *)from + AHEAD, 0, LEVEL); } \
    TB_FN void NAME##2(const void *from) { NAME##1(from); NAME##1((const char *)from + 64); } \
    TB_FN void NAME##4(const void *from) { NAME##2(from); NAME##2((const char *)from + 128); } \
    TB_FN void NAME##8(const void *from) { NAME##4(from); NAME##4((const char *)from + 256); }
TB_FETCHES(tb_fetch, 4096, 3)
// For a map that computes about as long as it reads and stores past the caches: what it computes holds up its own reads.
TB_FETCHES(tb_next, 512, 3)
// For a kernel that reads one row alone: further ahead. Several rows at once would ask for more than the processor keeps
// track of.
TB_FETCHES(tb_reach, 8192, 2)
// What another row is read from: soon, or later.
TB_FETCHES(tb_touch, 0, 3)
TB_FETCHES(tb_bring, 0, 2)
// For each block of a row whose results leave, one line of what follows the row, into the second-level cache: so memory
// reads while it is written, and no more than that cache holds beside the row.
TB_FN void tb_fetch_after(const void *row_end, tb_i64 offset) { __builtin_prefetch((const char *)row_end + offset, 0, 2); }

// What is left of a row becomes whole vectors: `bytes` bytes, and zeros behind them up to `room`, a multiple of 64 that
// is more than `bytes`. And the way back.
#if defined(__AVX512BW__) && !defined(__clang__)
typedef char tb_wide __attribute__((vector_size(64), aligned(1), may_alias));
TB_FN tb_u64 tb_first(int bytes) { return ((tb_u64)1 << bytes) - 1; }
TB_FN tb_u64 tb_first_of(int bytes) { return bytes >= 64 ? ~(tb_u64)0 : tb_first(bytes > 0 ? bytes : 0); }
#define TB_PAD_ALL(to, from, bytes, room) \
    for (int i = 0; i < room; i += 64) TB_PAD((char *)(to) + i, (const char *)(from) + i, tb_first_of(bytes - i))
#define TB_PADS(room) ((room) == 64)
#define TB_PAD(to, from, mask) \
    *(tb_wide *)(to) = (tb_wide)__builtin_ia32_loaddquqi512_mask((const char *)(from), (tb_wide){0}, mask)
#define TB_UNPAD(to, from, bytes) \
    __builtin_ia32_storedquqi512_mask((char *)(to), *(const tb_wide *)(from), tb_first(bytes))
#else
#define TB_PADS(room) 0
#define TB_PAD(to, from, mask) (void)0
#if defined(__AVX2__)
// Of 4 or 8 bytes an element (64 of them fill the room): what is masked out is not read.
#define TB_PAD_ALL(to, from, bytes, room) \
    if (room < 256) tb_pad(to, from, bytes, room); \
    else \
        for (int i = 0; i < room; i += 32) tb_pad_words((char *)(to) + i, (const char *)(from) + i, (bytes - i) / 4)
TB_FN void tb_pad_words(void *to, const void *from, int count) {
    typedef int words __attribute__((vector_size(32), may_alias));
    typedef float numbers __attribute__((vector_size(32), may_alias));
    *(numbers *)to = __builtin_ia32_maskloadps256((const numbers *)from, (words){0, 1, 2, 3, 4, 5, 6, 7} < count);
}
#else
#define TB_PAD_ALL(to, from, bytes, room) tb_pad(to, from, bytes, room)
#endif
#define TB_UNPAD(to, from, bytes) (void)0
#endif
TB_FN const void *tb_pad(void *to, const void *from, int bytes, int room) {
    if (TB_PADS(room)) {
        TB_PAD(to, from, tb_first(bytes));
    } else {
        __builtin_memset(to, 0, (unsigned long)room);
        __builtin_memcpy(to, from, (unsigned long)bytes);
    }
    return to;
}
// The same for a room of several vectors. A function of its own, since elementwise kernels, which compile in less time
// than others, pad one.
TB_FN void tb_pad_all(void *to, const void *from, int bytes, int room) { TB_PAD_ALL(to, from, bytes, room); }
TB_FN void tb_unpad(void *to, const void *from, int bytes, int room) {
    if (TB_PADS(room)) {
        TB_UNPAD(to, from, bytes);
    } else {
        __builtin_memcpy(to, from, (unsigned long)bytes);
    }
}
#endif

#define TB_DERIVED(T, S, LN2, INF) \
    TB_FN int tb_isfinite_##S(T x) { return tb_abs_##S(x) < INF; } \
    TB_FN int tb_isinf_##S(T x) { return tb_abs_##S(x) == INF; } \
    TB_FN T tb_safelog_##S(T x) { T y = tb_log_##S(x); y = y < (T)-50 ? (T)-50 : y; return x <= 0 ? (T)-50 : y; } \
    TB_FN T tb_sigmoid2_##S(T x) { T e = tb_exp2_##S(-tb_abs_##S(x)); return (x < 0 ? e : (T)1) / (1 + e); } \
    TB_FN T tb_tanh2_##S(T x) { return tb_tanh_##S(x * (T)LN2); } \
    TB_FN T tb_pow2near_##S(T x) { \
        T y = tb_exp2_##S(tb_rint_##S(tb_log2_##S(tb_abs_##S(x)))); \
        y = x < 0 ? -y : y; \
        return x == 0 ? x : y; \
    }
TB_DERIVED(float, f32, 0.69314718055994531, TB_INF_F32)
TB_DERIVED(double, f64, 0.69314718055994531, TB_INF_F64)

// x with `kept` mantissa bits, rounded up where the random word exceeds what is lost.
TB_FN float tb_sround_f32(float x, tb_u32 word, tb_u32 kept) {
    tb_u32 bits = tb_bits_f32(x), mask = (1u << (23 - kept)) - 1u;
    float y = tb_from_bits_f32((bits + (word & mask)) & ~mask);
    return tb_isfinite_f32(x) ? y : x;
}

TB_FN double tb_sround_f64(double x, tb_u32 word, tb_u32 kept) {
    tb_u64 bits = tb_bits_f64(x), lost = 52 - kept, mask = ((tb_u64)1 << lost) - 1;
    double y = tb_from_bits_f64((bits + ((tb_u64)word << 32 >> (64 - lost))) & ~mask);
    return tb_isfinite_f64(x) ? y : x;
}

#define TB_BITS(T, S, WIDTH, NEGATIVE) \
    TB_FN T tb_invert_##S(T x) { return (T)~x; } \
    TB_FN T tb_shl_##S(T x, T y) { return (tb_u64)y < WIDTH ? (T)((tb_u64)x << ((tb_u64)y & (WIDTH - 1))) : (T)0; } \
    TB_FN T tb_shr_##S(T x, T y) { return (tb_u64)y < WIDTH ? (T)(x >> ((tb_u64)y & (WIDTH - 1))) : (T)(NEGATIVE ? -1 : 0); }
TB_BITS(tb_i8, i8, 8, x < 0)
TB_BITS(tb_i16, i16, 16, x < 0)
TB_BITS(tb_i32, i32, 32, x < 0)
TB_BITS(tb_i64, i64, 64, x < 0)
TB_BITS(tb_u8, u8, 8, 0)
TB_BITS(tb_u16, u16, 16, 0)
TB_BITS(tb_u32, u32, 32, 0)
TB_BITS(tb_u64, u64, 64, 0)

#ifndef TB_CUDA
#include "apart.h"
#include "inverse.h"
#include "philox_block.h"
#include "reduce.h"
#include "spread.h"
#include "wide.h"
#endif

#endif
