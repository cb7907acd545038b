// SPDX-License-Identifier: Apache-2.0
// zeros.h — zeros in a part of a result, whatever its elements
//
// Part of files that include kernel.h.

#define ZEROS 1024  // bytes that are written at a time

// Past the cache from the next line on, if so wanted.
TB_FN void write_zeros(void *to, tb_i64 bytes, tb_i64 streams) {
    const char zeros[ZEROS] __attribute__((aligned(64))) = {0};
    char *const o = (char *)to;
    tb_i64 i = (tb_i64)(-(unsigned long)o & 63);
    if (!streams || i > bytes) i = bytes;
    __builtin_memset(o, 0, (unsigned long)i);
    for (; i < bytes; i += ZEROS) tb_stream(o + i, zeros, (int)(bytes - i < ZEROS ? bytes - i : ZEROS));
}
