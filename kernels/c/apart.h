// SPDX-License-Identifier: Apache-2.0
// apart.h — elements that lie apart, or the other way round, brought side by side
//
// The steps that views have most often are loops of their own, which compilers make vectors of; those of others load
// number by number. What computes with the numbers then finds them in a buffer, and is vectors in any case.
#ifndef TB_APART_H
#define TB_APART_H

#include "turn.h"

#define TB_APART(T, SIZE) \
    TB_FN void tb_apart##SIZE(void *buffer, const void *memory, tb_i64 step, int m) { \
        T *__restrict const to = (T *)buffer; \
        const T *__restrict const from = (const T *)memory; \
        if (step == -1) for (int j = 0; j < m; ++j) to[j] = from[-(tb_i64)j]; \
        else if (step == 2) for (int j = 0; j < m; ++j) to[j] = from[2 * (tb_i64)j]; \
        else for (int j = 0; j < m; ++j) to[j] = from[j * step]; \
    }

TB_APART(tb_any1, 1)
TB_APART(tb_any2, 2)
TB_APART(tb_any4, 4)
TB_APART(tb_any8, 8)

#endif
