// SPDX-License-Identifier: Apache-2.0
// places.h — axes of arrays that are looked up or added to at places, and what is found of a place out of range
//
// Part of files that include kernel.h; TB_I is the type of places, if there are any.

// The first words of scratch: a place out of range (0: none; else its number + 1) and its entry.
typedef struct {
    tb_i64 wrong, entry, unused[6];
} status;

typedef struct {
    tb_i64 first, second;
} offsets;

// The offsets of element n over axes, each (length, stride in one array, stride in another).
TB_FN offsets locate(const tb_i64 *axes, tb_i64 rank, tb_i64 n) {
    offsets o = {0, 0};
    for (tb_i64 axis = rank; axis-- > 0; n /= axes[3 * axis]) {
        o.first += n % axes[3 * axis] * axes[3 * axis + 1];
        o.second += n % axes[3 * axis] * axes[3 * axis + 2];
    }
    return o;
}

#ifdef TB_I
// Places count from the end where they are negative.
TB_FN tb_i64 entry_of(TB_I place, tb_i64 entries) {
    return (tb_i64)place + (place < 0 ? entries : 0);
}
#endif
