// SPDX-License-Identifier: Apache-2.0
// pool_places.h — places of the largest: from bytes to numbers as wide as those of vectors, and back
//
// Part of pool_spans.h, with the macros of pool.c. gcc takes fewer bytes than a register has apart, one by one, before it
// converts or compares them; hence the instructions by name where there are some.

typedef TB_I small __attribute__((vector_size(LANES * sizeof(TB_I))));

#if defined(__AVX2__) && !defined(__clang__)
typedef char bytes __attribute__((vector_size(16)));
typedef long long words __attribute__((vector_size(16)));

// As a register's low half: through memory it would be read in other pieces than it was written in.
TB_FN bytes padded_bytes(small here) {
    long long eight = 0;
    __builtin_memcpy(&eight, &here, sizeof here < 8 ? sizeof here : 8);
    return (bytes)(words){eight, 0};
}
#endif

// What is kept of places between loading and comparing them: where masks are bits, bytes do.
#if defined(__AVX512BW__) && defined(__AVX512VL__) && !defined(__clang__)
#define MASKS_ARE_BITS 1
typedef small held;
#else
#define MASKS_ARE_BITS 0
typedef mask held;
#endif

TB_FN mask widened(small here) {
#if defined(__AVX2__) && VECTOR_BYTES == 32 && !defined(__clang__)
    if (sizeof(TB_I) == 1)
        return sizeof(TB_N) == 4 ? (mask)__builtin_ia32_pmovzxbd256(padded_bytes(here))
                                 : (mask)__builtin_ia32_pmovzxbq256(padded_bytes(here));
#endif
    return __builtin_convertvector(here, mask);
}

TB_FN small narrowed(mask where) {
#if defined(__AVX2__) && VECTOR_BYTES == 32 && !defined(__clang__)
    if (sizeof(TB_I) == 1 && sizeof(TB_N) == 4) {  // the low bytes of both halves, four each
        typedef char both __attribute__((vector_size(32)));
        typedef long long halves __attribute__((vector_size(32)));
        const both low = {0,  4,  8,  12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                          -1, -1, -1, -1, 0,  4,  8,  12, -1, -1, -1, -1, -1, -1, -1, -1};
        const halves packed = (halves)__builtin_ia32_pshufb256((both)where, low);
        const long long eight = packed[0] | packed[2];
        small found;
        __builtin_memcpy(&found, &eight, sizeof found < 8 ? sizeof found : 8);
        return found;
    }
#endif
    return __builtin_convertvector(where, small);
}

TB_FN small load_small(const TB_I *places, int m) {
    small here = {0};
    if (m == LANES) __builtin_memcpy(&here, places, sizeof here);
    else tb_pad(&here, places, m * (int)sizeof(TB_I), sizeof here);
    return here;
}

TB_FN void store_small(TB_I *to, small found, int m) {
    if (m == LANES) __builtin_memcpy(to, &found, sizeof found);
    else tb_unpad(to, &found, m * (int)sizeof(TB_I), sizeof found);
}

TB_FN held load_places(const TB_I *places, int m) {
#if MASKS_ARE_BITS
    return load_small(places, m);
#else
    return widened(load_small(places, m));
#endif
}

TB_FN void store_places(TB_I *to, mask where, int m) { store_small(to, narrowed(where), m); }

// sum + e where the place is `number`.
TB_FN vec added_there(vec sum, vec e, held here, TB_N number) {
#if MASKS_ARE_BITS
    typedef float numbers __attribute__((vector_size(VECTOR_BYTES)));
    if (sizeof(TB_I) == 1 && sizeof(TB_W) == 4) {
#if TB_NARROW
        const bytes packed = padded_bytes(here);
#else
        bytes packed;
        __builtin_memcpy(&packed, &here, 16);
#endif
        const unsigned short there = __builtin_ia32_pcmpeqb128_mask(packed, (char)number + (bytes){0}, -1);
#if TB_NARROW
        return (vec)__builtin_ia32_addps256_mask((numbers)sum, (numbers)e, (numbers)sum, (unsigned char)there);
#else
        return (vec)__builtin_ia32_addps512_mask((numbers)sum, (numbers)e, (numbers)sum, there, 4);
#endif
    }
    return sum + (vec)((mask)e & (widened(here) == number));
#else
    return sum + (vec)((mask)e & (here == number));
#endif
}
