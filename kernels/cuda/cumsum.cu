// SPDX-License-Identifier: Apache-2.0
// cumsum.cu — running sums and products along an axis, into a contiguous result
//
// A block takes a line; each thread a stretch of it: first the stretch's sum, then, from the sums before it, the running
// sums. Products of floats may leave their range where sums do not, and are taken in order, a line by each thread. TB_X
// and TB_C are the types, TB_W that in which sums add up, TB_V that from which results are rounded.
#include "elements.cuh"

struct cumsum_args {
    const TB_X *x;
    TB_C *out;
    tb_i64 lines, length, x_stride, out_stride;
    tb_axes axes;  // of the lines; first: of x, second: of the result
};

extern "C" __global__ void __launch_bounds__(256) cumsum(const cumsum_args g) {
    __shared__ TB_W sums[256];
    const tb_i64 each = (g.length + blockDim.x - 1) / blockDim.x, from = threadIdx.x * each;
    const tb_i64 to = from + each < g.length ? from + each : g.length;
    for (tb_i64 line = blockIdx.x; line < g.lines; line += gridDim.x) {
        const tb_offsets start = tb_locate(g.axes, line);
        const TB_X *const x = g.x + start.first;
        TB_C *const out = g.out + start.second;
        TB_W sum = -(TB_W)0;  // that of one -0 is -0
        for (tb_i64 n = from; n < to; ++n) sum += tb_as<TB_W>(x[n * g.x_stride]);
        sums[threadIdx.x] = sum;
        __syncthreads();
        sum = -(TB_W)0;
        for (unsigned before = 0; before < threadIdx.x; ++before) sum += sums[before];
        for (tb_i64 n = from; n < to; ++n) {
            sum += tb_as<TB_W>(x[n * g.x_stride]);
            tb_put(out + n * g.out_stride, (TB_V)sum);
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256) cumprod(const cumsum_args g) {
    TB_EACH(line, g.lines) {
        const tb_offsets start = tb_locate(g.axes, line);
        const TB_X *x = g.x + start.first;
        TB_C *out = g.out + start.second;
        TB_W product = (TB_W)1;
        for (tb_i64 n = 0; n < g.length; ++n, x += g.x_stride, out += g.out_stride) {
            product *= tb_as<TB_W>(*x);
            tb_put(out, (TB_V)product);
        }
    }
}
