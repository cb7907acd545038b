// SPDX-License-Identifier: Apache-2.0
// pool.cu — largest, mean or root of squares of windows of images (C, D, H, W, N), and the way back
//
// A thread computes one result, from the cells of its window (or, on the way back, the windows that hold its pixel) in
// C order. N is innermost, so that neighbouring threads read neighbouring numbers. TB_OP is 0 (largest), 1 (mean) or 2
// (root of squares); TB_X, TB_C and TB_I are the types of elements, of sums and of places; TB_INT, int or tb_i64,
// counts places along an axis and cells of a window.
#include "elements.cuh"

struct pool_sizes {
    tb_i64 images, in[4], out[4], window[4], step[4], pad[4];
    tb_i64 first[4], second[4], third[4], result[4];  // strides of the operands; neighbours along N lie side by side
    double alpha, beta;
};

struct range {
    TB_INT from, to;
};

// The cells of window number `at` of an axis that are inside the image.
TB_FN range cells_of(const pool_sizes &g, int axis, TB_INT at) {
    const TB_INT start = at * (TB_INT)g.step[axis] - (TB_INT)g.pad[axis], left = (TB_INT)g.in[axis] - start;
    return {start < 0 ? -start : 0, left < (TB_INT)g.window[axis] ? left : (TB_INT)g.window[axis]};
}

// The windows of an axis that hold pixel `at`.
TB_FN range windows_of(const pool_sizes &g, int axis, TB_INT at) {
    const TB_INT step = (TB_INT)g.step[axis], past = at + (TB_INT)g.pad[axis];
    const TB_INT first = past - (TB_INT)g.window[axis] + 1;
    const TB_INT from = first > 0 ? (first + step - 1) / step : 0, to = past / step + 1;
    return {from, to < (TB_INT)g.out[axis] ? to : (TB_INT)g.out[axis]};
}

TB_FN TB_INT length(range r) { return r.to - r.from; }

// A map, a pixel of it and an image.
struct place {
    TB_INT axis[4];
    tb_i64 n;
};

TB_FN place place_of(tb_i64 at, const tb_i64 *lengths, tb_i64 images) {
    place found;
    found.n = at % images;
    at /= images;
    for (int a = 3; a >= 0; --a) {
        found.axis[a] = (TB_INT)(at % lengths[a]);
        at /= lengths[a];
    }
    return found;
}

TB_FN tb_i64 offset(const tb_i64 *stride, tb_i64 a, tb_i64 b, tb_i64 c, tb_i64 d, tb_i64 n) {
    return a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3] + n;
}

// to = alpha value + beta to. Without beta the old contents are not read.
TB_FN void finish(const pool_sizes &g, TB_X *to, TB_C value) {
    if ((TB_C)g.alpha != 1) value *= (TB_C)g.alpha;
    if ((TB_C)g.beta != 0) value += (TB_C)g.beta * tb_as<TB_C>(*to);
    tb_put(to, value);
}

struct pool_fprop_args {
    const TB_X *x;
    TB_X *out;
    TB_I *places;  // largest only
    pool_sizes g;
};

extern "C" __global__ void __launch_bounds__(256, 2) pool_fprop(const pool_fprop_args a) {
    const pool_sizes &g = a.g;
    const tb_i64 count = g.out[0] * g.out[1] * g.out[2] * g.out[3] * g.images;
    TB_EACH(at, count) {
        const place o = place_of(at, g.out, g.images);
        const range j = cells_of(g, 0, o.axis[0]), t = cells_of(g, 1, o.axis[1]);
        const range r = cells_of(g, 2, o.axis[2]), s = cells_of(g, 3, o.axis[3]);
        tb_i64 start = o.n;  // of the whole window, perhaps in the padding
        for (int axis = 0; axis < 4; ++axis) start += (o.axis[axis] * g.step[axis] - g.pad[axis]) * g.first[axis];
        TB_C best = 0;
        TB_INT where = -1;
#pragma unroll 1
        for (TB_INT c = j.from; c < j.to; ++c) {
#pragma unroll 1
            for (TB_INT d = t.from; d < t.to; ++d) {
#pragma unroll 1
                for (TB_INT h = r.from; h < r.to; ++h) {
                    const TB_INT cell = ((c * (TB_INT)g.window[1] + d) * (TB_INT)g.window[2] + h) * (TB_INT)g.window[3];
#pragma unroll 1
                    for (TB_INT w = s.from; w < s.to; ++w) {
                        const TB_C x = tb_as<TB_C>(a.x[offset(g.first, c, d, h, w, start)]);
#if TB_OP == 0
                        if (where < 0 || (!(x <= best) && best == best)) {  // a NaN wins, and the first of them stays
                            best = x;
                            where = cell + w;
                        }
#elif TB_OP == 1
                        best += x;
#else
                        best += x * x;
#endif
                    }
                }
            }
        }
#if TB_OP == 0
        a.places[offset(g.second, o.axis[0], o.axis[1], o.axis[2], o.axis[3], o.n)] = (TB_I)where;
#elif TB_OP == 1
        best /= (TB_C)(length(j) * length(t) * length(r) * length(s));
#else
        best = TB_SQRT(best);
#endif
        finish(g, a.out + offset(g.result, o.axis[0], o.axis[1], o.axis[2], o.axis[3], o.n), best);
    }
}

struct pool_bprop_args {
    const TB_X *error;
    const TB_I *places;  // largest only
    const TB_X *x, *y;   // root of squares only: the forward pass's input and output
    TB_X *out;
    pool_sizes g;
};

extern "C" __global__ void __launch_bounds__(256, 2) pool_bprop(const pool_bprop_args a) {
    const pool_sizes &g = a.g;
    const tb_i64 count = g.in[0] * g.in[1] * g.in[2] * g.in[3] * g.images;
    TB_EACH(at, count) {
        const place i = place_of(at, g.in, g.images);
        const range ks = windows_of(g, 0, i.axis[0]), ms = windows_of(g, 1, i.axis[1]);
        const range ps = windows_of(g, 2, i.axis[2]), qs = windows_of(g, 3, i.axis[3]);
        TB_C sum = 0;
#pragma unroll 1
        for (TB_INT k = ks.from; k < ks.to; ++k) {
#pragma unroll 1
            for (TB_INT m = ms.from; m < ms.to; ++m) {
#pragma unroll 1
                for (TB_INT p = ps.from; p < ps.to; ++p) {
#pragma unroll 1
                    for (TB_INT q = qs.from; q < qs.to; ++q) {
                        const TB_C e = tb_as<TB_C>(a.error[offset(g.first, k, m, p, q, i.n)]);
#if TB_OP == 0
                        const TB_INT at[4] = {k, m, p, q};
                        TB_INT index = 0;
                        for (int b = 0; b < 4; ++b) {
                            const TB_INT start = at[b] * (TB_INT)g.step[b] - (TB_INT)g.pad[b];
                            index = index * (TB_INT)g.window[b] + i.axis[b] - start;
                        }
                        sum += (TB_INT)a.places[offset(g.second, k, m, p, q, i.n)] == index ? e : (TB_C)0;
#elif TB_OP == 1
                        const TB_C share = 1 / (TB_C)(length(cells_of(g, 0, k)) * length(cells_of(g, 1, m)) *
                                                      length(cells_of(g, 2, p)) * length(cells_of(g, 3, q)));
                        sum += e * share;
#else
                        const TB_C y = tb_as<TB_C>(a.y[offset(g.third, k, m, p, q, i.n)]);
                        sum += y != 0 ? e / y : (TB_C)0;
#endif
                    }
                }
            }
        }
#if TB_OP == 2
        sum *= tb_as<TB_C>(a.x[offset(g.second, i.axis[0], i.axis[1], i.axis[2], i.axis[3], i.n)]);
#endif
        finish(g, a.out + offset(g.result, i.axis[0], i.axis[1], i.axis[2], i.axis[3], i.n), sum);
    }
}
