// SPDX-License-Identifier: Apache-2.0
// roi.cu — the largest of each bin of regions of images (C, H, W, images), and the way back
//
// A thread takes a result. On the way back that is a pixel, which asks every region's bins that may hold it, in the
// order of their results: sums have one order. TB_X and TB_C are the types of elements and of what is compared and
// added, TB_I is that of places.
#include "elements.cuh"

struct roi_sizes {
    tb_i64 images, maps, height, width, regions, rows, columns;
};

struct range {
    tb_i64 from, to;
};

TB_FN tb_i64 inside(tb_i64 at, tb_i64 length) { return at < 0 ? 0 : at < length ? at : length; }

// The pixels of one of the parts of the range from `low` to `high`, inside an axis.
TB_FN range span(tb_i64 low, tb_i64 high, tb_i64 part, tb_i64 parts, tb_i64 length) {
    const tb_i64 size = high - low + 1 < 1 ? 1 : high - low + 1;
    return {inside(low + part * size / parts, length),
            inside(low + ((part + 1) * size + parts - 1) / parts, length)};
}

// The parts that may hold pixel `at`.
TB_FN range parts_of(tb_i64 low, tb_i64 high, tb_i64 at, tb_i64 parts) {
    const tb_i64 size = high - low + 1 < 1 ? 1 : high - low + 1, away = at - low;
    if (away < 0 || away >= size) return {0, 0};
    const tb_i64 last = ((away + 1) * parts + size - 1) / size;
    return {away * parts / size, last < parts ? last : parts};
}

struct roi_check_args {
    const tb_i32 *boxes;
    tb_i32 *wrong;
    roi_sizes g;
};

extern "C" __global__ void __launch_bounds__(256) roi_check(const roi_check_args a) {
    TB_EACH(r, a.g.regions) {
        if (a.boxes[r * 5] < 0 || a.boxes[r * 5] >= a.g.images) *a.wrong = 1;
    }
}

struct roi_fprop_args {
    const TB_X *x;
    const tb_i32 *boxes;
    TB_X *out;
    TB_I *places;
    roi_sizes g;
};

extern "C" __global__ void __launch_bounds__(256) roi_fprop(const roi_fprop_args a) {
    const roi_sizes &g = a.g;
    const tb_i64 count = g.maps * g.rows * g.columns * g.regions;
    TB_EACH(at, count) {
        const tb_i32 *const box = a.boxes + at % g.regions * 5;
        const tb_i64 bin = at / g.regions % (g.rows * g.columns), map = at / g.regions / (g.rows * g.columns);
        const range h = span(box[2], box[4], bin / g.columns, g.rows, g.height);
        const range w = span(box[1], box[3], bin % g.columns, g.columns, g.width);
        const TB_X *const x = a.x + map * g.height * g.width * g.images + box[0];
        TB_C best = 0;
        tb_i64 where = -1;
        for (tb_i64 y = h.from; y < h.to; ++y) {
            for (tb_i64 place = y * g.width + w.from; place < y * g.width + w.to; ++place) {
                const TB_C v = tb_as<TB_C>(x[place * g.images]);
                if (where < 0 || (!(v <= best) && best == best)) {  // a NaN wins, and the first of them stays
                    best = v;
                    where = place;
                }
            }
        }
        tb_put(&a.out[at], best);
        a.places[at] = (TB_I)where;
    }
}

struct roi_bprop_args {
    const TB_X *error;
    const TB_I *places;
    const tb_i32 *boxes;
    TB_X *out;
    roi_sizes g;
};

extern "C" __global__ void __launch_bounds__(256) roi_bprop(const roi_bprop_args a) {
    const roi_sizes &g = a.g;
    const tb_i64 area = g.height * g.width, count = g.maps * area * g.images;
    TB_EACH(at, count) {
        const tb_i64 image = at % g.images, pixel = at / g.images % area, map = at / g.images / area;
        TB_C sum = 0;
        for (tb_i64 r = 0; r < g.regions; ++r) {
            const tb_i32 *const box = a.boxes + r * 5;
            if (box[0] != image) continue;
            const range p = parts_of(box[2], box[4], pixel / g.width, g.rows);
            const range q = parts_of(box[1], box[3], pixel % g.width, g.columns);
            for (tb_i64 row = p.from; row < p.to; ++row) {
                for (tb_i64 column = q.from; column < q.to; ++column) {
                    const tb_i64 from = ((map * g.rows + row) * g.columns + column) * g.regions + r;
                    if ((tb_i64)a.places[from] == pixel) sum += tb_as<TB_C>(a.error[from]);
                }
            }
        }
        tb_put(&a.out[at], sum);
    }
}
