// SPDX-License-Identifier: Apache-2.0
// vector.h — how many bytes a vector of the compiler's target holds, and how loops over vectors are unrolled
#ifndef TB_VECTOR_H
#define TB_VECTOR_H

#if defined(__AVX512F__)
#define TB_VECTOR 64
#elif defined(__AVX__)
#define TB_VECTOR 32
#else
#define TB_VECTOR 16
#endif

// Of loops over vectors that must become one instruction after the other.
#define UNROLL _Pragma("GCC unroll 24")

#endif
