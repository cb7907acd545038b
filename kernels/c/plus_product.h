// SPDX-License-Identifier: Apache-2.0
// plus_product.h — a sum of vectors and their product, with one rounding where the processor can
//
// Macros    TB_T
#ifndef TB_PLUS_PRODUCT_H
#define TB_PLUS_PRODUCT_H

// PLUS_PRODUCT(x, V) is a function: sum + x y. Left to itself, the compiler moves sums from register to register, and some to
// memory.
#if defined(__FMA__)
#define PLUS_PRODUCT(NAME, V) \
    static inline __attribute__((always_inline)) V NAME(V sum, V x, V y) { \
        if ((TB_T)0.5 == 0) return sum + x * y; \
        if (sizeof(TB_T) == 4) __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y)); \
        else __asm__("vfmadd231pd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y)); \
        return sum; \
    }
#else
#define PLUS_PRODUCT(NAME, V) \
    static inline __attribute__((always_inline)) V NAME(V sum, V x, V y) { return sum + x * y; }
#endif

#endif
