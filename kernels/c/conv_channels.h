// SPDX-License-Identifier: Apache-2.0
// conv_channels.h — copies of images with channels innermost, of the convolutions whose rows of places are short
//
// Layout    [depth][row][column][image][channel], and zeros around what there is of an image, unless it is copied alone:
//           so any places make a tile, each from its own address, and no lane is idle.
#ifndef TB_CONV_CHANNELS_H
#define TB_CONV_CHANNELS_H

#include "conv_axes.h"

// What the host passes in `size`, and then for each of three axes the members of `axis` up to `pad`.
enum {
    IMAGES = SIZES, MAPS_IN, MAPS_OUT,  // maps of a group
    GROUPS, BACKWARD,
    PART,      // places of a task
    PANEL,     // maps of a task
    CHANNELS,  // that are added up at a time
    COPIED,    // whether tasks copy the filters of these
    WITHIN,    // whether the copy has the image alone
    SLOTS, SLOT_BYTES,  // of scratch, as the kernels say that they need
    AXES,
};

typedef struct shape {
    int64_t images, maps_in, maps_out, groups, backward, part, panel, channels, copied, within;
    axis axes[3];
    int64_t low[3], extent[3];       // of the copy: the input that lies first, and lengths
    int64_t pitch;                   // of the copy: elements from a place to the next
    int64_t cells, phases, in_map, out_map;
} shape;

// Which part of an axis the copy has: what outputs reach at any tap.
static void find_extent(const axis *x, int64_t *low, int64_t *extent) {
    int64_t shift, from, first = INT64_MAX, last = INT64_MIN;
    for (int64_t tap = 0; tap < x->taps; ++tap) {
        const int64_t phase = served_phase(x, tap);
        if (phase_length(x, phase) < 1) continue;
        reach(x, tap, phase, &shift, &from);
        const int64_t start = shift * x->a + from, end = start + (phase_length(x, phase) - 1) * x->a;
        first = least(first, start);
        last = end > last ? end : last;
    }
    *low = first > last ? 0 : first;
    *extent = first > last ? 1 : last - first + 1;
}

static shape read_shape(const int64_t *size) {
    shape s = {
        size[IMAGES], size[MAPS_IN], size[MAPS_OUT], size[GROUPS], size[BACKWARD], size[PART], size[PANEL],
        size[CHANNELS], size[COPIED], size[WITHIN], .cells = 1, .phases = 1, .in_map = size[IMAGES], .out_map = size[IMAGES],
    };
    s.pitch = apart(s.maps_in * s.groups);
    for (int a = 0; a < 3; ++a) {
        axis *const x = s.axes + a;
        *x = read_axis(size + AXES + a * AXIS_SIZES, s.backward);
        if (s.within) s.low[a] = 0, s.extent[a] = x->in;
        else find_extent(x, s.low + a, s.extent + a);
        s.cells *= x->taps, s.phases *= x->b, s.in_map *= x->in, s.out_map *= x->out;
    }
    return s;
}

// Where a place of the copy is: its column, row and depth there, and its image.
INLINE int64_t copied_at(const shape *s, int64_t depth, int64_t row, int64_t column, int64_t image) {
    return (((depth * s->extent[1] + row) * s->extent[2] + column) * s->images + image) * s->pitch;
}

INLINE int64_t copied_places(const shape *s) { return s->extent[0] * s->extent[1] * s->extent[2] * s->images; }

#endif
