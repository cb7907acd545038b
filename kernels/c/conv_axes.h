// SPDX-License-Identifier: Apache-2.0
// conv_axes.h — geometry of a convolution's passes along one axis
//
// Computes  which input an output meets at a tap:
//               forward    i = o str + tap dil - pad
//               backward   i = (o + pad - tap dil) / str, where that is whole
#ifndef TB_CONV_AXES_H
#define TB_CONV_AXES_H

#include "conv.h"

enum { AXIS_SIZES = 6 };  // members of `axis`, up to `pad`, that the host passes

typedef struct axis {
    int64_t in, out, taps, stride, dilation, pad, backward;
    int64_t a, b;       // the strides of the input and of the output: one of them is 1
    int64_t low, high;  // the least and the greatest shift of a tap
    int64_t first, phases;  // of the input's phases those that taps read: all, or that of a single tap
} axis;

static int64_t floor_div(int64_t x, int64_t y) { return x >= 0 ? x / y : -((-x + y - 1) / y); }

// The only phase of the outputs that a tap serves.
static int64_t served_phase(const axis *x, int64_t tap) {
    const int64_t away = tap * x->dilation - x->pad;
    return away - floor_div(away, x->b) * x->b;
}

// Whether a tap serves outputs of a phase: output u b + phase then reads input (u + shift) a + from.
static int reach(const axis *x, int64_t tap, int64_t phase, int64_t *shift, int64_t *from) {
    const int64_t away = tap * x->dilation - x->pad, distance = x->backward ? phase - away : away;
    *shift = floor_div(distance, x->stride);
    *from = distance - *shift * x->stride;
    return !x->backward || *from == 0;
}

static axis read_axis(const int64_t *size, int64_t backward) {
    axis x = {size[0], size[1], size[2], size[3], size[4], size[5], backward, 1, 1, INT64_MAX, INT64_MIN, 0, 1};
    *(backward ? &x.b : &x.a) = x.stride;
    if (x.taps > 1) x.phases = x.a;
    else x.first = (x.a - x.pad % x.a) % x.a;
    for (int64_t tap = 0; tap < x.taps; ++tap) {
        int64_t shift, from;
        reach(&x, tap, served_phase(&x, tap), &shift, &from);
        if (shift < x.low) x.low = shift;
        if (shift > x.high) x.high = shift;
    }
    return x;
}

static int64_t phase_length(const axis *x, int64_t phase) { return ceil_div(x->out - phase, x->b); }

#endif
