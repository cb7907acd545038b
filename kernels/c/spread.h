// SPDX-License-Identifier: Apache-2.0
// spread.h — inputs of joined rows: one element for each of the result, from memory that does not run on with it
//
// Rows have `width` elements; `along` is the stride of memory from row to row, `across` within a row. Results are those of
// `m` elements from number `at` on, row after row. Behind them, a buffer has room for a row and 64 bytes.
#ifndef TB_SPREAD_H
#define TB_SPREAD_H

#include "apart.h"

// `rows` rows of one number each, by stores of so many bytes.
#define TB_REPEATS(T, SIZE, BYTES) \
    TB_FN void tb_repeat##SIZE##_##BYTES(T *to, const T *from, tb_i64 along, tb_i64 width, tb_i64 rows) { \
        for (tb_i64 row = 0; row < rows; ++row, to += width, from += along) { \
            T many[BYTES / SIZE]; \
            for (int l = 0; l < BYTES / SIZE; ++l) many[l] = *from; \
            __builtin_memcpy(to, many, BYTES); \
            for (tb_i64 j = BYTES / SIZE; j < width; j += BYTES / SIZE) __builtin_memcpy(to + j, many, BYTES); \
        } \
    }

// At least so many bytes, `bytes` of them (of a row 16); the last ones may be copied twice.
#define TB_COPIES(BYTES) \
    TB_FN void tb_copy_##BYTES(void *to, const void *from, tb_i64 bytes) { \
        for (tb_i64 k = 0; k + BYTES <= bytes; k += BYTES) __builtin_memcpy((char *)to + k, (const char *)from + k, BYTES); \
        __builtin_memcpy((char *)to + bytes - BYTES, (const char *)from + bytes - BYTES, BYTES); \
    }
TB_COPIES(16)
TB_COPIES(64)
TB_FN void tb_copy_row(void *to, const void *from, tb_i64 bytes) {
    if (bytes >= 64) tb_copy_64(to, from, bytes);
    else tb_copy_16(to, from, bytes);
}

#define TB_SPREADS(T, SIZE) \
    TB_REPEATS(T, SIZE, 16) \
    TB_REPEATS(T, SIZE, 32) \
    TB_REPEATS(T, SIZE, 64) \
    /* The same row again and again, from its beginning on. */ \
    TB_FN void tb_period##SIZE(void *buffer, const void *memory, tb_i64 across, tb_i64 width, tb_i64 m) { \
        T *const to = (T *)buffer; \
        const T *const from = (const T *)memory; \
        for (tb_i64 k = 0; k < width; ++k) to[k] = from[k * across]; \
        for (tb_i64 k = width, n; k < m; k += n) { \
            n = k < m - k ? k : m - k; \
            __builtin_memcpy(to + k, to, (unsigned long)n * SIZE); \
        } \
    } \
    /* One number a row. */ \
    TB_FN void tb_repeat##SIZE(void *buffer, const void *memory, tb_i64 along, tb_i64 width, tb_i64 at, tb_i64 m) { \
        const tb_i64 rest = width - at % width, rows = m > rest ? (m - rest + width - 1) / width : 0; \
        T *const to = (T *)buffer; \
        const T *const from = (const T *)memory + at / width * along; \
        for (tb_i64 k = 0; k < rest; ++k) to[k] = *from; \
        if (width * SIZE <= 16) tb_repeat##SIZE##_16(to + rest, from + along, along, width, rows); \
        else if (width * SIZE <= 32) tb_repeat##SIZE##_32(to + rest, from + along, along, width, rows); \
        else tb_repeat##SIZE##_64(to + rest, from + along, along, width, rows); \
    } \
    /* Any rows: whole ones that are short column by column, so that no loop is short. */ \
    TB_FN void tb_rows##SIZE(void *buffer, const void *memory, tb_i64 along, tb_i64 across, tb_i64 width, tb_i64 at, \
                             tb_i64 m) { \
        T *const to = (T *)buffer; \
        const T *from = (const T *)memory + at / width * along; \
        tb_i64 c = at % width; \
        for (tb_i64 k = 0, n; k < m; k += n, c = 0, from += along) { \
            const tb_i64 rows = c ? 0 : (m - k) / width; \
            n = width - c < m - k ? width - c : m - k; \
            if (across == 1 && n * SIZE >= 16) { \
                tb_copy_row(to + k, from + c, n * SIZE); \
            } else if (rows > 1 && width * SIZE < 64) { \
                for (; c < width; ++c) \
                    for (tb_i64 row = 0; row < rows; ++row) to[k + row * width + c] = from[row * along + c * across]; \
                n = rows * width; \
                from += (rows - 1) * along; \
            } else { \
                tb_apart##SIZE(to + k, from + c * across, across, (int)n); \
            } \
        } \
    }
TB_SPREADS(tb_any1, 1)
TB_SPREADS(tb_any2, 2)
TB_SPREADS(tb_any4, 4)
TB_SPREADS(tb_any8, 8)

#endif
