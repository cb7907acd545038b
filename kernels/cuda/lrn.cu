// SPDX-License-Identifier: Apache-2.0
// lrn.cu — response normalisation across the maps of images (maps, pixels and images as one axis), and the way back
//
// A thread computes one result; neighbouring threads have neighbouring images. Sums go up the maps in order. TB_X and
// TB_C are the types of elements and of sums, TB_LOG2 and TB_EXP2 the functions in TB_C.
#include "elements.cuh"

struct lrn_sizes {
    tb_i64 maps, length, window;
    double alpha, beta, scale, power;  // scale: ascale / J
};

TB_FN void finish(const lrn_sizes &g, TB_X *to, TB_C value) {
    if ((TB_C)g.alpha != 1) value *= (TB_C)g.alpha;
    if ((TB_C)g.beta != 0) value += (TB_C)g.beta * tb_as<TB_C>(*to);
    tb_put(to, value);
}

TB_FN TB_C raised(TB_C d, TB_C power) { return TB_EXP2(power * TB_LOG2(d)); }

struct around {
    tb_i64 from, to;
};

// The maps around a map.
TB_FN around maps_around(const lrn_sizes &g, tb_i64 map) {
    const tb_i64 half = g.window / 2;
    return {map < half ? 0 : map - half, map + half + 1 < g.maps ? map + half + 1 : g.maps};
}

struct lrn_fprop_args {
    const TB_X *x;
    TB_X *out, *denom;
    lrn_sizes g;
};

extern "C" __global__ void __launch_bounds__(256) lrn_fprop(const lrn_fprop_args a) {
    const lrn_sizes &g = a.g;
    TB_EACH(at, g.maps * g.length) {
        const tb_i64 pixel = at % g.length;
        const around near = maps_around(g, at / g.length);
        TB_C sum = 0;
        for (tb_i64 map = near.from; map < near.to; ++map) {
            const TB_C x = tb_as<TB_C>(a.x[map * g.length + pixel]);
            sum += x * x;
        }
        sum = 1 + (TB_C)g.scale * sum;
        tb_put(a.denom + at, sum);
        finish(g, a.out + at, tb_as<TB_C>(a.x[at]) * raised(sum, -(TB_C)g.power));
    }
}

struct lrn_bprop_args {
    const TB_X *x, *y, *error, *denom;
    TB_X *out;
    lrn_sizes g;
};

extern "C" __global__ void __launch_bounds__(256) lrn_bprop(const lrn_bprop_args a) {
    const lrn_sizes &g = a.g;
    TB_EACH(at, g.maps * g.length) {
        const tb_i64 pixel = at % g.length;
        const around near = maps_around(g, at / g.length);
        TB_C sum = 0;
        for (tb_i64 map = near.from; map < near.to; ++map) {
            const tb_i64 there = map * g.length + pixel;
            sum += tb_as<TB_C>(a.y[there]) * tb_as<TB_C>(a.error[there]) / tb_as<TB_C>(a.denom[there]);
        }
        const TB_C power = (TB_C)g.power, direct = raised(tb_as<TB_C>(a.denom[at]), -power);
        const TB_C around = 2 * power * (TB_C)g.scale * (tb_as<TB_C>(a.x[at]) * sum);
        finish(g, a.out + at, tb_as<TB_C>(a.error[at]) * direct - around);
    }
}
