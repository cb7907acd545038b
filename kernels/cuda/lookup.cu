// SPDX-License-Identifier: Apache-2.0
// lookup.cu — the gradient of look-ups in a table: rows of errors added up by word
//
// Look-ups are counted, and their places sorted by word: a block takes them in order, a chunk at a time, so that each
// word's places stay in order, and sums have one order. Then a thread adds up one element of the table.
//
// TB_X and TB_I are the types of elements and of words, TB_W is the type of sums.
#include "elements.cuh"

#define THREADS 256

struct lut_args {
    const TB_X *errors;
    const TB_I *ids;
    tb_i32 *ends;  // of each word's places: first counts, then where they begin, at last where they end
    tb_i32 *places;
    tb_i32 *wrong;  // set where a word is not in the table
    TB_X *out;
    tb_i64 count, words, length, pad, padded;
    double alpha, beta;
};

TB_FN bool skipped(const lut_args &g, tb_i64 word) { return g.padded && word == g.pad; }

// Unsigned words beyond the signed range count as negative: no table has them either.
TB_FN bool missing(const lut_args &g, tb_i64 word) { return word < 0 || word >= g.words; }

extern "C" __global__ void __launch_bounds__(THREADS) lut_count(const lut_args g) {
    TB_EACH(j, g.count) {
        const tb_i64 word = (tb_i64)g.ids[j];
        if (skipped(g, word)) continue;
        if (missing(g, word)) *g.wrong = 1;
        else atomicAdd(&g.ends[word], 1);
    }
}

// Counts become beginnings. One block, each thread with a stretch of words.
extern "C" __global__ void __launch_bounds__(THREADS) lut_begin(const lut_args g) {
    __shared__ tb_i32 sums[THREADS];
    const tb_i64 each = (g.words + THREADS - 1) / THREADS, from = threadIdx.x * each;
    const tb_i64 to = from + each < g.words ? from + each : g.words;
    tb_i32 total = 0;
    for (tb_i64 w = from; w < to; ++w) total += g.ends[w];
    sums[threadIdx.x] = total;
    __syncthreads();
    tb_i32 begin = 0;
    for (unsigned thread = 0; thread < threadIdx.x; ++thread) begin += sums[thread];
    for (tb_i64 w = from; w < to; ++w) {
        const tb_i32 count = g.ends[w];
        g.ends[w] = begin;
        begin += count;
    }
}

// One block: a chunk of look-ups at a time, each after those of its word that come before it.
extern "C" __global__ void __launch_bounds__(THREADS) lut_sort(const lut_args g) {
    __shared__ tb_i64 words[THREADS];
    for (tb_i64 first = 0; first < g.count; first += THREADS) {
        const tb_i64 j = first + threadIdx.x;
        const tb_i64 word = j < g.count && !skipped(g, (tb_i64)g.ids[j]) ? (tb_i64)g.ids[j] : -1;
        words[threadIdx.x] = word;
        __syncthreads();
        tb_i32 before = 0, after = 0;
        for (unsigned other = 0; other < THREADS && word >= 0; ++other) {
            before += other < threadIdx.x && words[other] == word;
            after += other > threadIdx.x && words[other] == word;
        }
        if (word >= 0) g.places[g.ends[word] + before] = (tb_i32)j;
        __syncthreads();
        if (word >= 0 && after == 0) g.ends[word] += before + 1;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) lut_sum(const lut_args g) {
    TB_EACH(at, g.words * g.length) {
        const tb_i64 word = at / g.length, column = at % g.length;
        TB_W sum = 0;
        for (tb_i32 k = word ? g.ends[word - 1] : 0; k < g.ends[word]; ++k) {
            sum += tb_as<TB_W>(g.errors[g.places[k] * g.length + column]);
        }
        sum *= (TB_W)g.alpha;
        if (g.beta != 0) sum += (TB_W)g.beta * tb_as<TB_W>(g.out[at]);
        tb_put(&g.out[at], sum);
    }
}
