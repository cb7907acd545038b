// SPDX-License-Identifier: Apache-2.0
// tensor_core.cuh — matrix instructions of one warp, and copies to shared memory that run beside computation
//
// mma_m16n8k16_f16, mma_m16n8k16_bf16, mma_m16n8k8_tf32      D += A B    A 16 x K, B K x 8, D 16 x 8 in float32
//     Each lane holds part of them, with g = lane / 4 and t = lane % 4 (halves lie in pairs, the lower column first):
//       A   a[0] row g, columns 2t 2t+1    a[1] row g+8, the same    a[2] row g, columns 2t+8 2t+9    a[3] row g+8
//       B   b[0] rows 2t 2t+1, column g    b[1] rows 2t+8 2t+9
//       D   d[0] d[1] row g, columns 2t 2t+1    d[2] d[3] row g+8
//     tf32 (float32 bits, of which the device reads the upper 19) has one element where a pair is: columns t and t+4.
// cp_async_16(shared, global)    starts a copy of 16 bytes, both addresses multiples of 16
// cp_async_commit()              ends a group of the copies started by this thread
// cp_async_wait<n>()             waits until at most n of its latest groups are under way; others see it after a barrier
//
// On a device PTX, sm_80 and up. In the emulator plain loops with the same layout: products are exact, sums of one
// element are added in ascending k in float32 (a device's order is its own), and a copy lands when it is waited for.
// Checked       tests/gpu/test_emulator.py
#ifndef TB_TENSOR_CORE_CUH
#define TB_TENSOR_CORE_CUH

#ifdef TB_EMULATOR

namespace emulator {

// What the lanes of a warp show one another.
struct Fragments {
    uint a[4], b[2];
};
static Fragments fragments[1024];

EMULATOR_INLINE uint own_thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }

// `read(word, i)` is element i of a word.
template <int K, class Read>
static void mma(float *d, const uint *a, const uint *b, Read read, Place place) {
    const int per = K == 16 ? 2 : 1;
    int lane = (int)emulator_lane(), group = lane / 4, pair = lane % 4;
    Fragments *warp = fragments + own_thread() - lane;
    warp[lane] = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    __syncwarp(~0u, place);
    for (int k = 0; k < K; ++k) {
        int half = k / (4 * per), holder = k % (4 * per) / per, i = k % per;
        const uint *rows = warp[group * 4 + holder].a + 2 * half;
        for (int column = 0; column < 2; ++column) {
            float value = read(warp[(2 * pair + column) * 4 + holder].b[half], i);
            d[column] += read(rows[0], i) * value;
            d[2 + column] += read(rows[1], i) * value;
        }
    }
    __syncwarp(~0u, place);  // before anyone shows something else
}

// Copies that are under way, of one thread of `block`.
struct Copies {
    struct Copy {
        void *to;
        const void *from;
        int group;
    } list[64];
    int count, groups;
    unsigned long long block;
};
static Copies copies[1024];

EMULATOR_INLINE Copies &own_copies() {
    Copies &own = copies[own_thread()];
    if (own.block != emulator_block()) own.count = own.groups = 0;
    own.block = emulator_block();
    return own;
}

static void land(Copies &own, int groups_under_way) {
    int kept = 0;
    for (int i = 0; i < own.count; ++i) {
        if (own.list[i].group < own.groups - groups_under_way) {
            __builtin_memcpy(own.list[i].to, own.list[i].from, 16);
        } else {
            own.list[kept++] = own.list[i];
        }
    }
    own.count = kept;
}

}  // namespace emulator

EMULATOR_INLINE void mma_m16n8k16_f16(float *d, const uint *a, const uint *b, EMULATOR_HERE) {
    emulator::mma<16>(d, a, b, [](uint word, int i) { return emulator::from_half((ushort)(word >> 16 * i)); }, place);
}
EMULATOR_INLINE void mma_m16n8k16_bf16(float *d, const uint *a, const uint *b, EMULATOR_HERE) {
    emulator::mma<16>(d, a, b, [](uint word, int i) { return emulator::from_bfloat16((ushort)(word >> 16 * i)); }, place);
}
EMULATOR_INLINE void mma_m16n8k8_tf32(float *d, const uint *a, const uint *b, EMULATOR_HERE) {
    emulator::mma<8>(d, a, b, [](uint word, int) { return __uint_as_float(word & 0xFFFFE000u); }, place);
}

EMULATOR_INLINE void cp_async_16(void *shared, const void *global, EMULATOR_HERE) {
    if (((size_t)shared | (size_t)global) % 16) emulator_fail(place, "cp_async_16: an address is no multiple of 16");
    emulator::Copies &own = emulator::own_copies();
    if (own.count == 64) emulator_fail(place, "more than 64 copies of a thread are under way");
    own.list[own.count++] = {shared, global, own.groups};
}
EMULATOR_INLINE void cp_async_commit() { ++emulator::own_copies().groups; }
template <int n> EMULATOR_INLINE void cp_async_wait() { emulator::land(emulator::own_copies(), n); }

#else

#define TB_MMA(name, instruction)                                                                              \
    __device__ __forceinline__ void name(float *d, const unsigned *a, const unsigned *b) {                     \
        asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"            \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                      \
    }
TB_MMA(mma_m16n8k16_f16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
TB_MMA(mma_m16n8k16_bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
TB_MMA(mma_m16n8k8_tf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
#undef TB_MMA

__device__ __forceinline__ void cp_async_16(void *shared, const void *global) {
    unsigned address = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int n> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

#endif
#endif
