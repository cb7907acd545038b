// SPDX-License-Identifier: Apache-2.0
// histogram.cu — counts of clamp(rint(log2 |x|) - offset, 0, bins - 1), added to `counts`; zero and NaN count in bin 0
//
// Counts are integers, so their order does not matter. TB_X is the type, TB_W the float type of the logarithm, called
// TB_S in names of functions.
#include "elements.cuh"

#define JOIN_(x, y) x##y
#define JOIN(x, y) JOIN_(x, y)
#define LOCAL_BINS 1024

struct histogram_args {
    const TB_X *x;
    tb_i32 *counts;
    tb_i64 count, bins;
    double offset;
    tb_axes axes;  // first: of x
};

extern "C" __global__ void __launch_bounds__(256) histogram(const histogram_args g) {
    __shared__ tb_i32 local[LOCAL_BINS];
    const bool shared = g.bins <= LOCAL_BINS;
    for (unsigned bin = threadIdx.x; bin < LOCAL_BINS; bin += blockDim.x) local[bin] = 0;
    __syncthreads();
    TB_EACH(n, g.count) {
        const TB_W x = tb_as<TB_W>(g.x[tb_locate(g.axes, n).first]);
        double place = (double)JOIN(tb_rint_, TB_S)(JOIN(tb_log2_, TB_S)(x < 0 ? -x : x)) - g.offset;
        place = place > 0 ? place : 0;
        place = place < (double)(g.bins - 1) ? place : (double)(g.bins - 1);
        const tb_i64 bin = (tb_i64)place;
        atomicAdd(shared ? &local[bin] : &g.counts[bin], 1);
    }
    __syncthreads();
    for (unsigned bin = threadIdx.x; shared && bin < g.bins; bin += blockDim.x) {
        if (local[bin]) atomicAdd(&g.counts[bin], local[bin]);
    }
}
