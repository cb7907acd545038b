// SPDX-License-Identifier: Apache-2.0
// chosen.h — lanes of two vectors by their numbers, those of the second counted on, in the way of each compiler
#ifndef TB_CHOSEN_H
#define TB_CHOSEN_H

#if defined(__clang__)  // finds one instruction where the numbers are known
#define TB_CHOSEN(a, b, from) \
    __extension__({ \
        enum { LANES_ = sizeof(from) / sizeof((from)[0]) }; \
        const __typeof__(a) a_ = (a), b_ = (b); \
        const __typeof__(from) from_ = (from) & (2 * LANES_ - 1); \
        __typeof__((a) + (b)) chosen_; \
        for (int l_ = 0; l_ < LANES_; ++l_) \
            chosen_[l_] = from_[l_] < LANES_ ? a_[from_[l_] & (LANES_ - 1)] : b_[from_[l_] & (LANES_ - 1)]; \
        chosen_; \
    })
#else
#define TB_CHOSEN(a, b, from) __builtin_shuffle(a, b, from)
#endif

#endif
