// SPDX-License-Identifier: Apache-2.0
// gemm.cu — C = A B for batches of matrices of any strides; C is contiguous
//
// A block of 256 threads computes a tile of C from tiles of A and B in shared memory, each thread PER x PER numbers.
// Sums go up k in order, so that results do not depend on the tile. TB_A, TB_B, TB_C are the types, TB_TILE the tile.
#include "elements.cuh"

#define SIDE 16
#define THREADS (SIDE * SIDE)
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

// What a thread brings of a tile: entries at (line, deep), then every (lines, deeps), `step` apart in memory. Neighbours
// in memory go to neighbouring threads. One address and one step a matrix keep the registers for sums.
struct tb_share {
    int line, deep, lines, deeps;
    tb_i64 step;
};
TB_FN tb_share tb_share_of(tb_i64 along, tb_i64 inward) {
    const int thread = (int)threadIdx.x;
    if (along == 1) return {thread % TB_TILE, thread / TB_TILE, 0, THREADS / TB_TILE, THREADS / TB_TILE * inward};
    return {thread / DEPTH, thread % DEPTH, THREADS / DEPTH, 0, THREADS / DEPTH * along};
}

// The part of a tile that a thread brings; beyond `lines` and `depth` it is 0.
template <class T>
TB_FN void tb_bring(TB_C (*tile)[TB_TILE + 1], const T *from, const tb_share &share, tb_i64 lines, tb_i64 depth) {
#pragma unroll
    for (int e = 0; e < TB_TILE * DEPTH / THREADS; ++e) {
        const int line = share.line + e * share.lines, deep = share.deep + e * share.deeps;
        tile[deep][line] = line < lines && deep < depth ? tb_as<TB_C>(from[e * share.step]) : (TB_C)0;
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) gemm(const gemm_args g) {
    __shared__ TB_C left[DEPTH][TB_TILE + 1];
    __shared__ TB_C right[DEPTH][TB_TILE + 1];
    const tb_i64 across = (g.n + TB_TILE - 1) / TB_TILE;
    const tb_i64 row = blockIdx.x / across * TB_TILE, column = blockIdx.x % across * TB_TILE;
    const int y = (int)threadIdx.x / SIDE, x = (int)threadIdx.x % SIDE;
    const tb_share mine = tb_share_of(g.a_row, g.a_column), other = tb_share_of(g.b_column, g.b_row);
    for (tb_i64 batch = blockIdx.y; batch < g.batches; batch += gridDim.y) {
        const tb_offsets start = tb_locate(g.batch, batch);
        const TB_A *a = g.a + start.first + (row + mine.line) * g.a_row + mine.deep * g.a_column;
        const TB_B *b = g.b + start.second + (column + other.line) * g.b_column + other.deep * g.b_row;
        TB_C sum[PER][PER] = {};
        for (tb_i64 deep = 0; deep < g.k; deep += DEPTH, a += DEPTH * g.a_column, b += DEPTH * g.b_row) {
            tb_bring(left, a, mine, g.m - row, g.k - deep);
            tb_bring(right, b, other, g.n - column, g.k - deep);
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
