// SPDX-License-Identifier: Apache-2.0
// take.cu — entries of an array along an axis at given places, the adjoint of that, and the check of places
//
// TB_X and TB_I are the types of the array and the places, TB_W is that in which `put` adds up. Results are contiguous;
// `take` moves elements as they are. Places count from the end where they are negative.
#include "elements.cuh"

TB_FN tb_i64 tb_entry(TB_I place, tb_i64 length) { return (tb_i64)place < 0 ? (tb_i64)place + length : (tb_i64)place; }

struct check_places_args {
    const TB_I *places;
    tb_i64 *bad;
    tb_i64 count, length;
    tb_axes axes;  // first: of the places
};

// *bad is set where a place is outside the axis.
extern "C" __global__ void __launch_bounds__(256) check_places(const check_places_args g) {
    TB_EACH(n, g.count) {
        const TB_I place = g.places[tb_locate(g.axes, n).first];
        const bool above = place > 0 && (tb_u64)place >= (tb_u64)g.length;
        const bool below = place < 0 && (tb_i64)place < -g.length;
        if (above || below || g.length == 0) *g.bad = 1;
    }
}

struct take_args {
    const TB_X *x;
    const TB_I *places;
    TB_X *out;
    tb_i64 count, length, stride;
    tb_axes axes;  // of the result; first: of x (0 along the places), second: of the places (0 elsewhere)
};

extern "C" __global__ void __launch_bounds__(256) take(const take_args g) {
    TB_EACH(n, g.count) {
        const tb_offsets at = tb_locate(g.axes, n);
        g.out[n] = g.x[at.first + tb_entry(g.places[at.second], g.length) * g.stride];
    }
}

struct put_args {
    const TB_X *x;
    const TB_I *places;
    TB_W *sums;
    tb_i64 lines, count, length, stride, ranges;
    tb_axes line;   // axes other than those of the places; first: of x, second: of the sums
    tb_axes picks;  // axes of the places; first: of x, second: of the places
};

// A thread owns a range of entries of one line, and goes through all places in order: sums have one order.
extern "C" __global__ void __launch_bounds__(256) put(const put_args g) {
    const tb_i64 each = (g.length + g.ranges - 1) / g.ranges;
    TB_EACH(n, g.lines * g.ranges) {
        const tb_offsets line = tb_locate(g.line, n % g.lines);
        const tb_i64 low = n / g.lines * each, high = low + each;
        for (tb_i64 k = 0; k < g.count; ++k) {
            const tb_offsets at = tb_locate(g.picks, k);
            const tb_i64 entry = tb_entry(g.places[at.second], g.length);
            if (entry >= low && entry < high) {
                g.sums[line.second + entry * g.stride] += tb_as<TB_W>(g.x[line.first + at.first]);
            }
        }
    }
}
