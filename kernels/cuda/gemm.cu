// SPDX-License-Identifier: Apache-2.0
// gemm.cu — C = A B for batches of matrices of any strides; C is contiguous
//
// A block of 256 threads computes a tile of C from tiles of A and B in shared memory, each thread PER x PER numbers.
// Sums go up k in order, so that results do not depend on the tile. TB_A, TB_B, TB_C are the types, TB_TILE the tile.
#include "elements.cuh"

#define SIDE 16
#define DEPTH 16
#define PER (TB_TILE / SIDE)

struct gemm_args {
    const TB_A *a;
    const TB_B *b;
    TB_C *c;
    tb_i64 m, n, k, batches;
    tb_i64 a_row, a_column, b_row, b_column;
    tb_axes batch;
};

extern "C" __global__ void __launch_bounds__(256) gemm(const gemm_args g) {
    __shared__ TB_C left[DEPTH][TB_TILE + 1];
    __shared__ TB_C right[DEPTH][TB_TILE + 1];
    const tb_i64 across = (g.n + TB_TILE - 1) / TB_TILE;
    const tb_i64 row = blockIdx.x / across * TB_TILE, column = blockIdx.x % across * TB_TILE;
    const int thread = (int)threadIdx.x, y = thread / SIDE, x = thread % SIDE;
    const bool a_down = g.a_row == 1, b_down = g.b_row == 1;  // neighbours in memory go to neighbouring threads
    for (tb_i64 batch = blockIdx.y; batch < g.batches; batch += gridDim.y) {
        const tb_offsets start = tb_locate(g.batch, batch);
        TB_C sum[PER][PER] = {};
        for (tb_i64 deep = 0; deep < g.k; deep += DEPTH) {
            for (int e = thread; e < TB_TILE * DEPTH; e += SIDE * SIDE) {
                const int i = a_down ? e % TB_TILE : e / DEPTH, p = a_down ? e / TB_TILE : e % DEPTH;
                const bool inside = row + i < g.m && deep + p < g.k;
                const tb_i64 place = start.first + (row + i) * g.a_row + (deep + p) * g.a_column;
                left[p][i] = inside ? tb_as<TB_C>(g.a[place]) : (TB_C)0;
            }
            for (int e = thread; e < TB_TILE * DEPTH; e += SIDE * SIDE) {
                const int j = b_down ? e / DEPTH : e % TB_TILE, p = b_down ? e % DEPTH : e / TB_TILE;
                const bool inside = column + j < g.n && deep + p < g.k;
                const tb_i64 place = start.second + (deep + p) * g.b_row + (column + j) * g.b_column;
                right[p][j] = inside ? tb_as<TB_C>(g.b[place]) : (TB_C)0;
            }
            __syncthreads();
            const int depth = (int)(g.k - deep < DEPTH ? g.k - deep : DEPTH);
            for (int p = 0; p < depth; ++p) {
#pragma unroll
                for (int i = 0; i < PER; ++i) {
#pragma unroll
                    for (int j = 0; j < PER; ++j) {
                        sum[i][j] = tb_fma(left[p][y + i * SIDE], right[p][x + j * SIDE], sum[i][j]);
                    }
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < PER; ++i) {
#pragma unroll
            for (int j = 0; j < PER; ++j) {
                const tb_i64 at_row = row + y + i * SIDE, at = column + x + j * SIDE;
                if (at_row < g.m && at < g.n) g.c[(batch * g.m + at_row) * g.n + at] = sum[i][j];
            }
        }
    }
}
