// SPDX-License-Identifier: Apache-2.0
// tail.h — an elementwise kernel that is run on each part of a result as soon as the part is complete
//
// The result and the operands of the tail are matrices here. What the tail is stands in a launch's `stride`.
#ifndef TB_TAIL_H
#define TB_TAIL_H

#include "runtime.h"

enum {
    TAIL,          // its address; 0 where there is none
    TAIL_INNER,    // which of its axes is the inner one
    TAIL_TURNED,   // the side of its square tiles, or 0
    TAIL_PRODUCT,  // the number of the result among its operands
    TAIL_COUNT,    // its operands
    TAIL_OTHERS,   // of each of the others, in order: bytes of an element, strides of rows and columns
};
enum { TAIL_OPERANDS = 33 };

// Runs the tail, if there is one, on rows [i, i + rows) and columns [j, j + columns) of a result of `row` elements of
// `item` bytes a row. `others` are the addresses of the other operands.
static void tb_run_tail(const int64_t *stride, void *const *others, const int64_t *scalar, char *result, int64_t item,
                        int64_t row, int64_t i, int64_t rows, int64_t j, int64_t columns) {
    if (!stride[TAIL] || rows < 1 || columns < 1) return;
    void *ptr[TAIL_OPERANDS];
    int64_t step[2 * TAIL_OPERANDS];
    const int64_t *other = stride + TAIL_OTHERS;
    for (int64_t slot = 0; slot < stride[TAIL_COUNT]; ++slot) {
        if (slot == stride[TAIL_PRODUCT]) {
            ptr[slot] = result + (i * row + j) * item;
            step[2 * slot] = row, step[2 * slot + 1] = 1;
            continue;
        }
        ptr[slot] = (char *)*others++ + (i * other[1] + j * other[2]) * other[0];
        step[2 * slot] = other[1], step[2 * slot + 1] = other[2];
        other += 3;
    }
    const int64_t inner = stride[TAIL_INNER] ? columns : rows, outer = stride[TAIL_INNER] ? rows : columns;
    const int64_t turned = stride[TAIL_TURNED], chunk = turned ? turned : inner, pieces = (inner + chunk - 1) / chunk;
    const int64_t size[] = {rows, columns, chunk, pieces, outer, 0, 1, 0};
    const int64_t tasks = turned ? (outer + turned - 1) / turned * pieces : 1;
    ((tb_kernel)stride[TAIL])(ptr, size, step, scalar, 0, tasks);
}

#endif
