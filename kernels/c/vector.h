// SPDX-License-Identifier: Apache-2.0
// vector.h — how many bytes a vector of the compiler's target holds, its stores past the caches, and how loops are unrolled
#ifndef TB_VECTOR_H
#define TB_VECTOR_H

#include "chosen.h"

#if defined(__AVX512F__)
#define TB_VECTOR 64
#elif defined(__AVX__)
#define TB_VECTOR 32
#else
#define TB_VECTOR 16
#endif

// Whether there are 32 registers of vectors, not 16.
#if TB_VECTOR == 64 || defined(__aarch64__)
#define MANY_REGISTERS 1
#else
#define MANY_REGISTERS 0
#endif

// Of loops over vectors that must become one instruction after the other.
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 24")
#endif

typedef float whole_vector __attribute__((vector_size(TB_VECTOR), may_alias));

// Stores a vector past the caches, to an address that is a multiple of its size.
static inline void store_past(void *to, whole_vector x) {
#if defined(__clang__)
    __builtin_nontemporal_store(x, (whole_vector *)to);
#elif defined(__AVX512F__)
    __builtin_ia32_movntps512((float *)to, x);
#elif defined(__AVX__)
    __builtin_ia32_movntps256((float *)to, x);
#elif defined(__SSE__)
    __builtin_ia32_movntps((float *)to, x);
#else
    *(whole_vector *)to = x;
#endif
}

// Such stores become visible to other threads only in order with a fence.
static inline void finish_stores(void) {
#if defined(__SSE__)
    __builtin_ia32_sfence();
#endif
}

// A vector that is read once and used several times: left to itself, the compiler may read it for each use.
#if defined(__FMA__)
#define KEEP_IN_REGISTER(X) __asm__("" : "+v"(X))
#else
#define KEEP_IN_REGISTER(X) (void)(X)
#endif

#endif
